"""Classifiers of several inputs of different types, from `attach` to the client."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import special
from sklearn.ensemble import HistGradientBoostingClassifier

import btcp_tf
from btcp_tf.attached import offer
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.core import json_files
from btcp_tf.decisions import exported
from btcp_tf.methods import other_eyes
from btcp_tf.serving import batch_scoring, transport
from btcp_tf.serving.client import Client
from btcp_tf.serving.scorer import Input, Scorer

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")

WORDS = ["low", "mid", "high"]


def samples(n, seed):
    """Rows of tokens, a number and a word, each of which tells something of three classes."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    tokens = random.integers(1, 20, (n, 6)).astype(np.int32)
    told = random.random(n) < 0.8
    tokens[told, random.integers(0, 6, n)[told]] = 20 + y[told]
    word = np.where(random.random(n) < 0.5, y, random.integers(0, 3, n))
    age = (random.normal(size=n) + y).astype(np.float32)
    return {"tokens": tokens, "age": age, "word": np.array(WORDS)[word]}, y


def network(kind):
    tokens = keras.Input((6,), dtype="int32", name="tokens")
    age = keras.Input((1,), name="age")
    word = keras.Input((1,), dtype="string", name="word")
    known = layers.StringLookup(vocabulary=WORDS, output_mode="one_hot")(word)
    seen = layers.GlobalAveragePooling1D()(layers.Embedding(23, 8)(tokens))
    x = layers.Dropout(0.3)(layers.Dense(16, "relu")(layers.Concatenate()([seen, age, known])))
    inputs = [tokens, age, word]
    given = {one.name: one for one in inputs} if kind == "dict" else inputs
    return keras.Model(given, layers.Dense(3, "softmax")(x))


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(0)
    model = network("dict")
    # So short that a second head finds more in the features.
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y = samples(600, 0)
    rows = {name: tf.constant(one if one.ndim > 1 else one[:, None]) for name, one in x.items()}
    model.fit(rows, tf.constant(y), epochs=8, verbose=0)
    return model


def attached(classifier):
    return btcp_tf.attach(classifier, example=samples(4, 0)[0], class_names=["a", "b", "c"])


@pytest.fixture(scope="module")
def judge(classifier):
    judge = attached(classifier)
    judge.fit(*samples(500, 1), reference=samples(600, 0), looks=["dropouts"], cost=9.0, verbose=0)
    judge.select_threshold(*samples(300, 2), rule="target_coverage", coverage=0.5)
    return judge


@pytest.fixture(scope="module")
def version(judge, tmp_path_factory):
    return judge.export(tmp_path_factory.mktemp("models"), "many", samples(8, 3)[0], verbose=0)


def test_a_judge_of_several_inputs_learns_answers_and_survives_a_file(judge, tmp_path):
    x, y = samples(60, 3)
    answers = judge.predict(x)
    assert judge.fitted["evidence"] and answers["accept"].any()
    assert "tokens int32 [n, 6], age float32 [n, 1], word string [n, 1]" in repr(judge)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)
    np.testing.assert_array_equal(again["uncertainty"], answers["uncertainty"])
    assert judge.predictions(x, y).uncertainty["residual"].tolist() == (
        answers["uncertainty"].tolist()
    )
    rows = {name: one if one.ndim > 1 else one[:, None] for name, one in x.items()}
    dataset = tf.data.Dataset.from_tensor_slices((rows, y)).batch(16)
    assert judge.evaluate(dataset, draws=10)[1]["auroc"] == pytest.approx(
        judge.evaluate(x, y, draws=10)[1]["auroc"]
    )


def test_the_copies_of_a_sample_are_known_by_all_of_its_inputs(judge):
    x, y = samples(500, 1)
    with pytest.raises(ValueError, match="samples that have not been seen"):
        judge.evaluate(x, y)
    other = {**x, "age": x["age"] + 0.5}
    assert judge.evaluate(other, y, draws=10)[1]["n"] == 500


def test_a_model_of_a_list_takes_a_list_a_tuple_and_names(classifier):
    twin = network("list")
    twin.set_weights(classifier.get_weights())
    judge, (x, _) = attached(twin), samples(20, 4)
    wanted = attached(classifier).predict(x)["probs"]
    assert list(judge.model.input) == ["tokens", "age", "word"]
    for given in (x, list(x.values()), tuple(x.values())):
        np.testing.assert_allclose(judge.predict(given)["probs"], wanted, rtol=1e-6)


@keras.saving.register_keras_serializable("test_named_inputs")
class Pair(keras.Model):
    """A subclass that takes two inputs as a tuple."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.last = layers.Dense(3, "softmax")

    def build(self, shapes):
        self.last.build((None, 4))
        self.built = True

    def call(self, inputs):
        first, second = inputs
        return self.last(keras.ops.concatenate([first, second], axis=1))


def test_a_subclass_of_two_inputs_is_taken_with_an_example():
    model, x = Pair(), (np.eye(3, 2, dtype=np.float32), np.ones((3, 2), np.float32))
    wanted = model(x).numpy()
    judge = btcp_tf.attach(model, example=x)
    np.testing.assert_allclose(judge.predict(x)["probs"], wanted, rtol=1e-6)
    np.testing.assert_allclose(
        judge.predict({"input_1": x[0], "input_2": x[1]})["probs"], wanted, rtol=1e-6
    )


WRONG = {
    "one is missing": (lambda x: {"age": x["age"]}, "x: expected the inputs .* received age alone"),
    "another one": (lambda x: {**x, "more": x["age"]}, "x: expected .* received .* and more"),
    "not as many": (lambda x: {**x, "age": x["age"][:3]}, "x: .*as many samples .* 3 of age"),
    "too few in a list": (lambda x: [x["age"]], "x: expected the inputs .* 1 in a list"),
    "an array": (lambda x: x["age"], "x: expected the inputs .* of type ndarray"),
    "fractions": (lambda x: {**x, "tokens": x["tokens"] + 0.5}, r'x\["tokens"\]: expected int32'),
    "no text": (lambda x: {**x, "word": x["age"]}, r'x\["word"\]: expected text'),
    "NaN": (lambda x: {**x, "age": x["age"] * np.nan}, r'x\["age"\]: expected finite numbers'),
    "scale": (lambda x: {**x, "age": x["age"] * 1e4}, r'x\["age"\]: expected numbers like those'),
    "shape": (lambda x: {**x, "tokens": x["tokens"][:, :5]}, r'x\["tokens"\]: .* shape \[n, 6\]'),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_input(judge, case):
    change, message = WRONG[case]
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        judge.predict(change(samples(9, 5)[0]))
    assert "\n" not in str(caught.value)


def test_looks_change_the_inputs_that_they_suit(classifier, capsys):
    judge = attached(classifier)
    with pytest.raises(ValueError, match="looks: expected some that suit inputs of tokens int32"):
        judge.fit(*samples(100, 1), looks=["mirror"], verbose=0)
    with pytest.raises(ValueError, match="looks: expected some that suit .*received 'drop_tokens'"):
        judge.fit(*samples(100, 1), looks=["drop_tokens"], verbose=0)
    with pytest.raises(ValueError, match="changes the only input, received 'own'"):
        judge.fit(*samples(100, 1), looks=[layers.Rescaling(2.0, name="own")], verbose=0)
    judge.fit(*samples(200, 1), looks=[network("dict"), "dropouts"], cost=5.0, verbose=0)
    assert {"dropouts"} <= {row["name"] for row in judge.fitted["tried"]}
    judge.fit(*samples(200, 1), reference=samples(300, 0), cost=9.0, verbose=1)
    assert {"jitter", "dropouts"} <= {row["name"] for row in judge.fitted["tried"]}
    assert {"trees", "tokens"} <= {row["name"] for row in judge.fitted["tried"]}
    said = capsys.readouterr().out
    assert "training other eyes on 300 reference samples: trees" in said
    with pytest.raises(ValueError, match="looks: expected some that suit .*received 'small_net'"):
        judge.fit(*samples(100, 1), reference=samples(100, 0), looks=["small_net"], verbose=0)


@pytest.mark.parametrize("name", ["trees", "tokens"])
def test_other_eyes_see_the_inputs_that_suit_them(classifier, name, tmp_path):
    judge = attached(classifier)
    reference, y = samples(2000, 0)
    parts = AttachedClassifier.of(judge.model)
    x = parts.check_inputs(samples(300, 1)[0])
    made = offer.make(parts, [name], 9.0, (x, None), (reference, y), 0).looks[name]
    new = parts.check_inputs(samples(400, 7)[0])
    found = np.asarray(made.answer({key: tf.constant(one) for key, one in new.items()}))
    # An oracle that has seen nothing of this package.
    if name == "trees":
        table = [np.hstack([one["tokens"], one["age"].reshape(-1, 1)]) for one in (reference, new)]
        own = HistGradientBoostingClassifier(
            learning_rate=0.1, max_iter=100, max_depth=6, max_leaf_nodes=31, min_samples_leaf=20,
            early_stopping=False, random_state=0,
        ).fit(table[0].astype(np.float32), y)  # fmt: skip
        wanted = np.log(own.predict_proba(table[1].astype(np.float32)))
        assert np.abs(found - wanted).mean() < 0.3 and made.cost < 0.01
        assert np.mean(found.argmax(axis=1) == wanted.argmax(axis=1)) > 0.9
    else:
        shares = np.array([
            np.bincount(y[reference["word"] == word], minlength=3) for word in WORDS
        ])  # fmt: skip
        at = [WORDS.index(str(word)) for word in new["word"].ravel()]
        wanted = np.log(shares / shares.sum(axis=1, keepdims=True))[at]
        np.testing.assert_allclose(np.exp(found), np.exp(wanted), atol=0.02)
    # Row by row: alone and none.
    first = {key: tf.constant(one[:1]) for key, one in new.items()}
    np.testing.assert_allclose(np.asarray(made.answer(first)), found[:1], atol=1e-5)
    none = {key: tf.constant(one[:0]) for key, one in new.items()}
    assert np.asarray(made.answer(none)).shape == (0, 3)


def test_other_eyes_of_several_inputs_survive_files_and_export(classifier, tmp_path):
    judge = attached(classifier)
    judge.fit(
        *samples(1500, 1), reference=samples(2000, 0), looks=["trees", "tokens"],
        evidence=("answer",), cost=3.0, verbose=0,
    )  # fmt: skip
    assert judge.fitted["looks"], judge.fitted["words"]
    x, _ = samples(60, 4)
    wanted = judge.predict(x)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)
    np.testing.assert_array_equal(again["uncertainty"], wanted["uncertainty"])
    version = judge.export(tmp_path, "many", samples(8, 3)[0], verbose=0)
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    own = {name: one if one.ndim > 1 else one[:, None] for name, one in x.items()}
    served = serve(**{name: tf.constant(one) for name, one in own.items()})
    assert served["uncertainty"].numpy() == pytest.approx(wanted["uncertainty"], abs=1e-5)


def test_numbers_of_tokens_are_seen_alone_and_wide_tables_not():
    shapes = {"ids": ((9,), "int32"), "places": ((9,), "int32"), "wide": ((5000,), "float32")}
    inputs = {name: keras.Input(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    random = np.random.default_rng(0)
    x = {"ids": random.geometric(0.01, (60, 9)), "places": np.tile(np.arange(9), (60, 1))}
    x["wide"] = random.normal(size=(60, 5000))
    assert other_eyes.seen_inputs(inputs, x) == {"trees": ["places"], "tokens": ["ids"]}
    more = {**inputs, "others": keras.Input((9,), dtype="int32")}
    assert other_eyes.seen_inputs(more, {**x, "others": x["ids"]}) == {"trees": ["places"]}
    two = {name: keras.Input((3000,)) for name in "ab"}
    assert other_eyes.seen_inputs(two, dict.fromkeys("ab", random.normal(size=(9, 3000)))) == {}


def pictures(n, seed):
    """Two images of one class, bright on the left or the right, beside two numbers."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, n)
    images = random.integers(0, 120, (n, 8, 8, 1))
    images[np.arange(n), :, random.integers(0, 8, n)] += 90 * y[:, None, None]
    numbers = (random.normal(size=(n, 2)) + 0.5 * y[:, None]).astype(np.float32)
    return {"left": images.astype(np.uint8), "row": numbers, "wide": images[:, :, ::-1] / 255}, y


@pytest.fixture(scope="module")
def seeing():
    keras.utils.set_random_seed(1)
    shapes = {"left": ((8, 8, 1), "uint8"), "row": ((2,), "float32"), "wide": ((8, 8, 1), None)}
    inputs = {name: keras.Input(shape, name=name, dtype=t) for name, (shape, t) in shapes.items()}
    seen = [layers.Flatten()(layers.Rescaling(1 / 255)(inputs["left"]))]
    seen += [layers.Flatten()(inputs["wide"]), inputs["row"]]
    x = layers.Dense(16, "relu")(layers.Concatenate()(seen))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y = pictures(400, 0)
    model.fit({k: tf.constant(v, inputs[k].dtype) for k, v in x.items()}, y, epochs=5, verbose=0)
    return model


def test_a_look_by_name_changes_all_images_and_no_numbers(seeing):
    judge = btcp_tf.attach(seeing, example=pictures(4, 0)[0])
    x, _ = pictures(50, 1)
    changes = {}
    for name in ("mirror", "jitter"):
        parts = AttachedClassifier.of(judge.model)
        made = offer.make(parts, [name], 3.0, (x, None), None, 0)
        changes[name] = made.looks[name].change({k: tf.constant(v) for k, v in x.items()})
    for name in ("left", "wide"):
        np.testing.assert_allclose(changes["mirror"][name], x[name][:, :, ::-1], rtol=1e-6)
        np.testing.assert_allclose(changes["jitter"][name], x[name], rtol=1e-6)
    np.testing.assert_array_equal(changes["mirror"]["row"], x["row"])
    moved = np.asarray(changes["jitter"]["row"]) - x["row"]
    assert np.ptp(moved, axis=0) == pytest.approx([0, 0], abs=1e-6) and (moved[0] != 0).all()


def test_looks_at_several_inputs_survive_files_and_export(seeing, tmp_path):
    judge = btcp_tf.attach(seeing, example=pictures(4, 0)[0])
    judge.fit(*pictures(600, 2), looks=["mirror", "jitter"], evidence=("answer",), cost=3.0)
    assert judge.fitted["looks"], judge.fitted["words"]
    judge.select_threshold(*pictures(300, 3), rule="target_coverage", coverage=0.5)
    x, _ = pictures(40, 4)
    wanted = judge.predict(x)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)
    np.testing.assert_array_equal(again["uncertainty"], wanted["uncertainty"])
    version = judge.export(tmp_path, "pictures", x, verbose=0)
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    served = serve(**{name: tf.constant(v, seeing.input[name].dtype) for name, v in x.items()})
    assert served["uncertainty"].numpy() == pytest.approx(wanted["uncertainty"], abs=1e-5)
    assert served["accept"].numpy().tolist() == wanted["accept"].tolist()
    assert served["second_opinion"].numpy().tolist() == wanted["second_opinion"].tolist()


def test_the_saved_model_takes_inputs_by_name(judge, version):
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    assert {*serve.structured_input_signature[1]} == {"tokens", "age", "word"}
    x, _ = samples(30, 6)
    wanted = judge.predict(x)
    rows = {name: tf.constant(one if one.ndim > 1 else one[:, None]) for name, one in x.items()}
    served = {name: value.numpy() for name, value in serve(**rows).items()}
    assert special.logit(served["uncertainty"].astype(float)) == pytest.approx(
        special.logit(wanted["uncertainty"]), abs=1e-3
    )
    assert served["accept"].tolist() == wanted["accept"].tolist()
    for wrong, message in (
        ({"age": rows["age"] * np.nan}, "age: expected numbers like those"),
        ({"age": rows["age"] * 1e5}, "age: expected numbers like those"),
        ({"age": rows["age"][:3]}, "expected as many rows of each of"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            serve(**{**rows, **wrong})
    about = exported.read_about(version)
    assert about["image_shape"] is None
    assert about["inputs"]["tokens"] == {"dtype": "int32", "shape": [6]}


@pytest.mark.parametrize("name", ["a b", "self", "class", "a-b", "1a", "ä"])
def test_names_that_no_signature_can_have_are_refused(name, tmp_path):
    inputs = {name: keras.Input((2,), name="one"), "other": keras.Input((2,), name="two")}
    seen = layers.Concatenate()([*inputs.values()])
    with pytest.warns(UserWarning, match=f"inputs called '{name}' cannot be exported"):
        judge = btcp_tf.attach(keras.Model(inputs, layers.Dense(2, "softmax")(seen)))
    x = {one: np.ones((3, 2), np.float32) for one in inputs}
    assert judge.predict(x)["predicted"].shape == (3,)
    with pytest.raises(ValueError, match=f"model: expected inputs whose names .*received '{name}'"):
        judge.export(tmp_path, "model", x, verbose=0)
    assert not [*tmp_path.iterdir()]


def test_predict_scores_npz_and_csv_by_name(judge, version, tmp_path):
    x, y = samples(40, 7)
    np.savez(tmp_path / "in.npz", **{**x, "tokens": x["tokens"].astype(np.int64)}, y=y)
    path = tmp_path / "a.csv"
    summary = batch_scoring.score(
        version, tmp_path / "in.npz", path, labels=True, batch_size=16, verbose=0
    )
    assert (summary.inputs, summary.problems, summary.labeled) == (40, 0, 40)
    wanted = judge.predict(x)["uncertainty"]
    rows = [line.split(",") for line in path.read_text().splitlines()]
    u = [float(row[rows[0].index("uncertainty")]) for row in rows[1:]]
    assert special.logit(u) == pytest.approx(special.logit(wanted), abs=1e-3)
    np.savez(tmp_path / "less.npz", age=x["age"])
    with pytest.raises(ValueError, match="arrays tokens, age, word, received age, without tokens"):
        batch_scoring.score(version, tmp_path / "less.npz", tmp_path / "b.csv", verbose=0)
    np.savez(tmp_path / "rows.npz", **{**x, "age": x["age"][:3]})
    with pytest.raises(ValueError, match="as many rows in each input, received 40 in tokens and 3"):
        batch_scoring.score(version, tmp_path / "rows.npz", tmp_path / "b.csv", verbose=0)
    with pytest.raises(ValueError, match="input: expected an npz or a CSV file with the inputs"):
        batch_scoring.score(version, tmp_path, tmp_path.parent / "b.csv", verbose=0)


def test_the_scorer_says_what_is_wrong_with_a_row(version):
    x, _ = samples(6, 8)
    x = {**x, "age": x["age"].astype(object), "tokens": x["tokens"].astype(np.int64)}
    x["word"] = x["word"].astype(object)
    x["age"][1], x["word"][2], x["tokens"][3, 0] = "old", None, 2**40
    answers = Scorer(version)(x)
    problems = dict(enumerate(answers["problem"]))
    assert {row for row, text in problems.items() if text} == {1, 2, 3}
    assert problems[1] == "age: expected a number, received 'old'"
    assert problems[2] == "word: expected text, received None"
    assert problems[3] == f"tokens: expected int32, received {2**40}"
    assert np.isfinite(answers["uncertainty"]).tolist() == [True, False, False, False, True, True]


def test_the_scorer_reads_numbers_as_other_readers_do(version):
    x, _ = samples(3, 8)
    written = {**x, "age": np.array(["0,25", " -1,5e0", "1,234"], object)}
    plain = {**x, "age": np.array(["0.25", "-1.5", "0"], object)}
    answers = Scorer(version)(written)
    # It may as well be a thousand and more.
    assert answers["problem"].tolist() == ["", "", "age: expected a number, received '1,234'"]
    np.testing.assert_array_equal(
        answers["uncertainty"][:2], Scorer(version)(plain)["uncertainty"][:2]
    )


def test_true_and_false_of_a_table_are_read():
    takes = Input("ok", np.dtype(bool), (1,), None)
    rows, problem = takes.converted(np.array(["True", "false", "1", "0.0", "yes", ""], object))
    assert rows.dtype == bool and rows[:4, 0].tolist() == [True, False, True, False]
    assert problem.tolist() == ["", "", "", ""] + [
        f"expected true or false, received {text!r}" for text in ("yes", "")
    ]


class Server:
    """A model that answers a client what a SavedModel says, as TensorFlow Serving's REST does."""

    where = "double"

    def __init__(self, version):
        self.serve = tf.saved_model.load(str(version)).signatures["serving_default"]
        self.asked = []

    def signatures(self, deadline):
        specs = self.serve.structured_input_signature[1]
        inputs = {name: transport.Spec(s.dtype.name, tuple(s.shape)) for name, s in specs.items()}
        return {"serving_default": transport.Signature(inputs, {})}

    def call(self, signature, inputs, deadline):
        self.asked.append({name: len(value) for name, value in inputs.items()})
        outputs = self.serve(**{name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def test_the_client_sends_inputs_by_name(judge, version, monkeypatch):
    client = Client("127.0.0.1:1", "many", batch_size=16)
    client._transport = server = Server(version)
    x, _ = samples(20, 9)
    answers = client.predict(x)
    assert server.asked == [dict.fromkeys(x, 16), dict.fromkeys(x, 4)]
    assert answers["accept"].tolist() == judge.predict(x)["accept"].tolist()
    with pytest.raises(ValueError, match="one with one input, .* with 3; give a dictionary of"):
        client.predict(x["age"])
    with pytest.raises(ValueError, match="images: expected the inputs .*, received age"):
        client.predict({"age": x["age"]})
    with pytest.raises(ValueError, match="as many rows of each input, received .*3 of age"):
        client.predict({**x, "age": x["age"][:3]})


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_rest_has_rows_and_columns_of_several_inputs(form, monkeypatch):
    client = Client("127.0.0.1:1", "many", form=form)
    sent = []

    def ask(path, body, deadline, retries):
        sent.append(json.loads(body))
        row = {"json": "{}"}
        content = {"predictions": [row, row]} if form == "rows" else {"outputs": {"json": ["{}"]}}
        return 200, json_files.to_text(content).encode()

    monkeypatch.setattr(client._transport, "_ask", ask)
    inputs = {"age": np.array([[1.5], [2.5]], np.float32), "word": [[b"low"], [b"mid"]]}
    client._transport.call("serving_default", inputs, transport.Deadline(9))
    words = [[{"b64": "bG93"}], [{"b64": "bWlk"}]]
    (request,) = sent
    if form == "rows":
        assert request["instances"] == [
            {"age": [1.5], "word": words[0]},
            {"age": [2.5], "word": words[1]},
        ]
    else:
        assert request["inputs"] == {"age": [[1.5], [2.5]], "word": words}
