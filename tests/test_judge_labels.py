"""Labels and samples as people have them: words, tables, datasets of their own."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import btcp_tf
from btcp_tf import predict
from btcp_tf.data import input_checks

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


@pytest.fixture(scope="module")
def classifier():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="softmax")])
    model.layers[-1].set_weights([2.0 * np.eye(3, dtype=np.float32), np.zeros(3, np.float32)])
    return model


def samples(n=300, seed=0):
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    return (np.eye(3)[y] + random.normal(size=(n, 3))).astype(np.float32), y


class Batches(keras.utils.PyDataset):
    """30 samples a batch."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 30

    def __getitem__(self, number):
        rows = slice(30 * number, 30 * number + 30)
        return self.x[rows], self.y[rows]


class Endless(Batches):
    @property
    def num_batches(self):
        return None


WORDS = np.array(["cat", "dog", "owl"])


@pytest.mark.parametrize(
    "make",
    [
        lambda y: WORDS[y],
        lambda y: WORDS[y].tolist(),
        lambda y: WORDS[y].astype(object)[:, None],
        lambda y: pandas.Series(WORDS[y]),
        lambda y: pandas.Categorical(WORDS[y]),
        lambda y: WORDS[y].astype("S"),
    ],
)
def test_words_are_labels_in_alphabetical_order(classifier, make):
    x, y = samples()
    judge = btcp_tf.attach(classifier)
    with pytest.warns(UserWarning, match="alphabetical order .0 is cat, 1 is dog, 2 is owl.; name"):
        judge.fit(x, make(y), looks=(), verbose=0)
    plain = btcp_tf.attach(classifier).fit(x, y, looks=(), verbose=0)
    assert judge.class_names == WORDS.tolist()
    assert judge.fitted["errors"] == plain.fitted["errors"]
    assert set(judge.predict(x[:50])["class_name"]) <= set(WORDS)
    rows = judge.evaluate(*samples(seed=1)[:1], make(samples(seed=1)[1]), draws=5)
    assert rows[0]["accuracy"] == plain.evaluate(*samples(seed=1), draws=5)[0]["accuracy"]


def test_words_that_are_too_few_or_named_already_are_not_learned(classifier):
    x, y = samples()
    judge = btcp_tf.attach(classifier)
    with pytest.raises(ValueError, match="to give them by name"):
        judge.fit(x, WORDS[np.minimum(y, 1)], looks=(), verbose=0)
    assert judge.class_names == ["0", "1", "2"]
    named = btcp_tf.attach(classifier, class_names=["owl", "dog", "cat"])
    named.fit(x, WORDS[::-1][y], looks=(), verbose=0)
    assert named.class_names == ["owl", "dog", "cat"]
    with pytest.raises(ValueError, match="expected names of classes"):
        named.fit(x, np.array(["a", "b", "c"])[y], looks=(), verbose=0)


def test_a_fit_that_failed_leaves_the_names_as_they_were(classifier):
    x, y = samples()
    judge = btcp_tf.attach(classifier)
    with pytest.warns(UserWarning, match="alphabetical"), pytest.raises(ValueError, match="labels"):
        judge.fit(x[:200], np.array(["u", "v", "w"])[y], looks=(), verbose=0)
    assert judge.class_names == ["0", "1", "2"]
    with pytest.warns(UserWarning, match="alphabetical"):
        judge.fit(x, np.array([" cat", "dog ", "owl"])[y], looks=(), verbose=0)
    assert judge.class_names == WORDS.tolist()


@pytest.mark.parametrize("y", [[0, 1], [[1, 0], [0, 1]], None, ["0", "1"], [0.5, 1.0], []])
def test_other_labels_are_no_words(y):
    assert input_checks.names_among(y, 2) == []


@pytest.mark.parametrize(
    "make",
    [lambda y: y + 1, lambda y: (y + 1.0)[:, None], pandas.Series, lambda y: (y + 1).astype(str)],
)
def test_numbers_from_1_are_labels(classifier, make):
    x, y = samples()
    given = pandas.Series(y + 1) if make is pandas.Series else make(y)
    judge = btcp_tf.attach(classifier)
    reference = samples(seed=2)
    said = "count from 1 to 3, and are taken .* .0 is 1, 1 is 2, 2"
    with pytest.warns(UserWarning, match=said) as caught:
        judge.fit(
            x,
            given,
            reference=(reference[0], (reference[1] + 1).astype(given.dtype)),
            looks=(),
            verbose=0,
        )
    assert caught[0].filename == __file__  # The line of whoever called.
    plain = btcp_tf.attach(classifier).fit(x, y, reference=reference, looks=(), verbose=0)
    assert judge.class_names == ["1", "2", "3"]
    assert judge.fitted["errors"] == plain.fitted["errors"]
    x, y = samples(seed=1)
    expected = plain.evaluate(x, y, draws=5)
    # As numbers from 1, as names, and as class numbers.
    for labels in (y + 1, (y + 1).astype(str), y):
        assert judge.evaluate(x, labels, draws=5) == expected
    with pytest.raises(ValueError, match="expected a 0 or a 3 among .* received 1 to 2.*astype"):
        judge.evaluate(x[:2], [1, 2])
    for names, numbers in ((["1", "2"], [0, 1]), (["2", "2"], [1, 1]), (["3", "2"], [2, 1])):
        np.testing.assert_array_equal(judge.predictions(x[:2], names).labels, numbers)
    np.testing.assert_array_equal(judge.predictions(x[:2], np.eye(3)[[1, 1]]).labels, [1, 1])
    with pytest.raises(ValueError, match="labels from 0 to 2, received 0 to 3"):
        judge.evaluate(x[:3], [0, 1, 3])


@pytest.fixture(scope="module")
def exported_from_1(classifier, tmp_path_factory):
    judge = btcp_tf.attach(classifier, class_names=["1", "2", "3"])
    return judge.export(tmp_path_factory.mktemp("models"), "m", samples()[0], verbose=0).parent


@pytest.mark.parametrize(
    "make",
    [lambda y: y + 1, lambda y: y, lambda y: (y + 1).astype(str), lambda y: y[:, None] + 1.0],
)
def test_predict_reads_labels_from_1_as_a_judge_does(exported_from_1, make, tmp_path):
    x, y = samples(90, 7)
    path = tmp_path / "x.npz"
    np.savez(path, x_test=x, y_test=make(y))
    words = [f"--model={exported_from_1}", f"--input={path}", f"--output={tmp_path}/s.csv"]
    assert predict.main([*words, "--labels", "--verbose=0"]) == 0
    table = pandas.read_csv(tmp_path / "s.csv")
    assert table["labels"].tolist() == y.tolist()
    assert (table["predicted"] == y).mean() > 0.5


def test_labels_of_which_nobody_can_tell_are_refused_by_predict(exported_from_1, tmp_path, capsys):
    x, _ = samples(4, 7)
    words = [f"--model={exported_from_1}", f"--input={tmp_path}/x.npz", "--labels"]
    one_hot = np.eye(3, dtype=int)[[1, 1, 2, 1]]
    for labels, fault in (
        ([1, 2, 2, 1], "y_test: expected a 0 or a 3 among the labels, as the classes are called"),
        ([1, 4, 2, 3], "y_test: expected classes 0 to 2, received 4"),
        (one_hot, ""),
    ):
        np.savez(tmp_path / "x.npz", x_test=x, y_test=labels)
        status = predict.main([*words, f"--output={tmp_path}/s{len(fault)}.csv"])
        error = capsys.readouterr().err
        assert status == bool(fault) and fault in error, error
    assert pandas.read_csv(tmp_path / "s0.csv")["labels"].tolist() == [1, 1, 2, 1]


def test_numbers_from_1_that_are_not_named_are_refused_after_fit(classifier):
    x, y = samples()
    judge = btcp_tf.attach(classifier)
    with pytest.raises(ValueError, match="received 1 to 3; subtract 1 if they count from 1"):
        judge.evaluate(x, y + 1)
    judge.fit(x, y, looks=(), verbose=0)
    x, y = samples(seed=1)
    with pytest.raises(ValueError, match="received 1 to 3; subtract 1 if they count from 1"):
        judge.select_threshold(x, y + 1)


def test_a_table_of_numbers_is_an_input(classifier):
    x, y = samples()
    table = pandas.DataFrame(x, columns=["a", "b", "c"])
    judge = btcp_tf.attach(classifier).fit(table, pandas.Series(y), looks=(), verbose=0)
    plain = btcp_tf.attach(classifier).fit(x, y, looks=(), verbose=0)
    np.testing.assert_array_equal(
        judge.predict(table)["uncertainty"], plain.predict(x)["uncertainty"]
    )
    for kinds in ({"a": "Float64"}, {"a": "Float32", "b": "float64"}):
        judge.predict(table.astype(kinds))
    table["b"] = table["b"] > 0
    assert len(judge.predict(table)["predicted"]) == 300
    table["b"] = "word"
    with pytest.raises(ValueError, match="x: expected numbers, received object"):
        judge.predict(table)


class Unlabeled(Batches):
    def __getitem__(self, number):
        return super().__getitem__(number)[0], None


def test_a_dataset_may_say_that_it_has_no_labels(classifier):
    x, y = samples()
    judge, batches = btcp_tf.attach(classifier), Unlabeled(x, y)
    np.testing.assert_array_equal(judge.predict(batches)["probs"], judge.predict(x)["probs"])
    for call in (judge.fit, judge.evaluate, judge.select_threshold):
        with pytest.raises(ValueError, match=r"^y: expected labels \[n\], received none"):
            call(batches)


def test_datasets_of_keras_are_taken_everywhere(classifier):
    x, y = samples()
    batches = Batches(x, y)
    judge = btcp_tf.attach(classifier).fit(batches, looks=["jitter"], cost=2.0, verbose=0)
    plain = btcp_tf.attach(classifier)
    plain.fit(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(30), looks=["jitter"], cost=2.0, verbose=0
    )
    assert judge.fitted["words"] == plain.fitted["words"]
    new = Batches(*samples(seed=1))
    chosen = judge.select_threshold(new, rule="target_coverage", coverage=0.5)
    assert chosen.n == 300
    found = judge.predictions(Batches(*samples(seed=2)))
    np.testing.assert_array_equal(found.labels, samples(seed=2)[1])
    with pytest.raises(ValueError, match="received an infinite one"):
        judge.predict(Endless(x, y))
    with pytest.raises(ValueError, match="y: expected none beside a dataset, received labels"):
        judge.fit(batches, y)


class Loader:
    """Batches as PyTorch's loader gives them: lists, with a length, as often as one likes."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return -(-len(self.arrays[0]) // 70)

    def __iter__(self):
        for start in range(0, len(self.arrays[0]), 70):
            yield [array[start : start + 70] for array in self.arrays]


def test_a_generator_with_a_length_is_as_its_arrays(classifier):
    x, y = samples()
    judges = [btcp_tf.attach(classifier) for _ in range(2)]
    few = {"looks": (), "copies": (), "verbose": 0}
    judges[0].fit(x, y, **few)
    judges[1].fit(Loader(x, y), **few)
    u = [judge.predict(x)["uncertainty"] for judge in judges]
    np.testing.assert_allclose(u[1], u[0], rtol=1e-5)
    again = judges[1].predict(Loader(x))["uncertainty"]
    np.testing.assert_allclose(again, u[1], rtol=1e-5)
    x, y = samples(seed=1)
    rows = [judges[1].evaluate(*given, draws=5) for given in ((x, y), (Loader(x, y),))]
    for mine, other in zip(*rows, strict=True):
        assert (mine["errors"], mine["auroc"]) == (other["errors"], pytest.approx(other["auroc"]))
    with pytest.raises(ValueError, match="y: expected none beside a dataset"):
        judges[1].evaluate(Loader(x, y), y)


def test_generators_are_refused_with_a_remedy(classifier):
    x, y = samples()
    judge = btcp_tf.attach(classifier)
    for call in (judge.fit, judge.predict, judge.evaluate):
        with pytest.raises(ValueError, match="a generator, which can be gone through once: write"):
            call((x[i : i + 30], y[i : i + 30]) for i in range(0, 300, 30))
    with pytest.raises(ValueError, match="masked"):
        judge.fit(np.ma.masked_array(x, x > 1), y)
