import concurrent.futures
import dataclasses
import random
import re
import warnings

import fresh
import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

import btcp_tf
from btcp_tf import judge as module
from btcp_tf import thresholds
from btcp_tf.attached import held_out
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.decisions import exported
from btcp_tf.methods import residual_choice, residual_fit
from btcp_tf.methods.residual_fit import NO_INDEX, HeldOut, Seen

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")

CLASSES = 3


def samples(n, seed):
    """Three clusters in the plane; a fourth one, in their midst, is of a class by itself."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    centers = np.array([[0, 3], [3, -2], [-3, -2]])
    x = centers[y] + random.normal(size=(n, 2)) * 1.2
    # What a linear classifier cannot learn, and neighbors can tell.
    odd = random.random(n) < 0.15
    x[odd] = random.normal(size=(odd.sum(), 2)) * 0.3 + [0, 5]
    y[odd] = 1
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def classifier():
    """A linear classifier with features of its own, wrong on most of the odd cluster."""
    x, y = samples(2000, 0)
    regression = LogisticRegression().fit(x, y)
    inputs = keras.Input((2,))
    features = keras.layers.Dense(2, name="features", kernel_initializer="identity")(inputs)
    last = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Model(inputs, last(features))
    last.set_weights([regression.coef_.T, regression.intercept_])
    return model


@pytest.fixture(scope="module")
def fitted(classifier):
    judge = btcp_tf.attach(classifier, class_names=["a", "b", "c"])
    return judge.fit(*samples(1500, 1), reference=samples(2000, 0), looks=(), verbose=0)


def test_is_mcp_before_it_is_fitted(classifier):
    judge = btcp_tf.attach(classifier)
    x, _ = samples(50, 5)
    found = judge.predict(x)
    probs = np.asarray(classifier(x))
    np.testing.assert_array_equal(found["probs"], probs)
    np.testing.assert_array_equal(found["predicted"], probs.argmax(axis=1))
    np.testing.assert_allclose(found["uncertainty"], 1 - probs.max(axis=1), atol=1e-6)
    assert "accept" not in found and judge.fitted is None
    assert judge.class_names == ["0", "1", "2"]


def test_one_warning_says_that_an_unfitted_judge_is_mcp(unchecked, classifier, tmp_path):
    x, y = samples(100, 5)
    told = "the judge is not fitted, so its u is MCP, .*: call fit"

    def silent(call, judge):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="the judge is not fitted")
            call(judge)

    def export(judge):
        judge.export(tmp_path, "m", x[:2], verbose=0)

    for call in (
        lambda judge: judge.evaluate(x, y, draws=2),
        lambda judge: judge.select_threshold(x, y),
        export,
    ):
        judge = btcp_tf.attach(classifier)
        silent(lambda judge: judge.predict(x), judge)  # Its repr says so.
        with pytest.warns(UserWarning, match=told):
            call(judge)
        silent(call, judge)
    fitted = btcp_tf.attach(classifier).fit(x, y, looks=(), verbose=0)
    silent(export, fitted)


@pytest.mark.parametrize("names", [(), ("a", "ä b", "c")])
def test_answers_have_the_words_of_a_saved_model(unchecked, classifier, tmp_path, names):
    x, y = samples(60, 5)
    judge = btcp_tf.attach(classifier, class_names=names)
    with pytest.warns(UserWarning, match="not fitted"):
        judge.select_threshold(x, y)
    found = judge.predict(x)
    assert list(found) == ["predicted", "class_name", "probs", "uncertainty", "accept"]
    assert found["class_name"].dtype.kind == "U" and found["class_name"].shape == (60,)
    path = judge.export(tmp_path, "m", x[:2], verbose=0)
    served = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(x))
    assert set(served) == set(found)
    said = [name.decode() for name in served["class_name"].numpy()]
    assert found["class_name"].tolist() == said
    assert said == [judge.class_names[number] for number in found["predicted"]]


def test_says_in_one_line_what_it_is(classifier, fitted):
    line = repr(btcp_tf.attach(classifier, class_names=["a", "b", "c"]))
    assert line == (
        "<Judge of a classifier of float32 [n, 2], 3 classes (a, b, c): residual, not fitted, "
        "no threshold>"
    )
    assert "residual, fitted, no threshold" in repr(fitted)


@pytest.mark.parametrize(("setting", "value"), [("floatx", "float16"), ("image_data_format", 0)])
def test_keras_settings_that_do_not_go_together_with_it_are_refused(
    classifier, monkeypatch, setting, value
):
    from btcp_tf import judge

    monkeypatch.setattr(keras.config, setting, lambda: value)
    for use in (judge.attach, judge.load):
        with pytest.raises(ValueError, match=f"Keras: expected {setting} .*received {value!r}"):
            use(classifier)


def test_finds_errors_better_than_mcp_where_neighbors_know(fitted):
    rows = {row["method"]: row for row in fitted.evaluate(*samples(1500, 2), draws=200)}
    assert rows["residual"]["verdict"] == "better"
    assert rows["residual"]["aupr_error_minus_mcp_low"] > 0
    assert rows["residual"]["aurc_minus_mcp_high"] < 0
    assert rows["mcp"]["errors"] == rows["residual"]["errors"] > 50
    assert "neighbors" in fitted.fitted["evidence"]
    assert "the estimator is used" in fitted.fitted["words"]


def linear(x, y):
    """As `classifier`, of other samples, and with features of another scale and order."""
    regression = LogisticRegression().fit(x, y)
    inputs = keras.Input((2,))
    turned = keras.layers.Dense(2, name="features")
    last = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Model(inputs, last(turned(inputs)))
    turned.set_weights([np.array([[0.0, 3.0], [3.0, 0.0]]), np.zeros(2)])
    last.set_weights([regression.coef_.T[::-1] / 3, regression.intercept_])
    return model


def test_labels_of_one_class_alone_are_warned_of(classifier):
    x, y = samples(300, 5)
    with pytest.warns(
        UserWarning, match="y: expected labels of several classes, received .* of '0'"
    ):
        btcp_tf.attach(classifier).fit(x[y == 0], y[y == 0], looks=(), verbose=0)


def test_learns_from_the_answers_of_other_folds(classifier):
    few = samples(100, 1)
    x, y = samples(2000, 0)
    folds = []
    for number in range(2):
        unseen = np.arange(2000) % 2 == number
        seen = x[~unseen], y[~unseen]
        folds.append((linear(*seen), (x[unseen], y[unseen]), seen))
    judge = btcp_tf.attach(classifier, class_names=["a", "b", "c"])
    judge.fit(*few, reference=(x, y), folds=folds, looks=(), verbose=0)
    assert judge.fitted["samples"] == 2100 and judge.fitted["errors"] > 150
    assert "2100 held-out samples of 3 classifiers" in judge.fitted["words"]
    assert "neighbors" in judge.fitted["evidence"]
    rows = judge.evaluate(*samples(1500, 2), draws=200)
    assert rows[1]["aurc_minus_mcp_high"] < 0
    # The index that it looks at is its own.
    index = judge.model.get_layer("neighbors")
    found = np.asarray(index.points + index.mean)
    order, wanted = (rows[np.lexsort(rows.T)] for rows in (found, x))
    np.testing.assert_allclose(order, wanted, atol=1e-6)

    with pytest.raises(ValueError, match=r"folds\[0\]: expected none for a reference, .* one"):
        judge.fit(*few, folds=folds)
    with pytest.raises(ValueError, match=r"folds\[1\]: expected one for a reference, .* none"):
        mixed = [folds[0], (*folds[1][:2], None)]
        judge.fit(*few, reference=(x, y), folds=mixed, looks=(), verbose=0)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_with_a_dead_unit_is_fitted(policy):
    x, y = samples(2000, 0)
    regression = LogisticRegression().fit(x, y)
    inputs = keras.Input((2,))
    # The third unit is 0 for all, as after a ReLU.
    features = keras.layers.Dense(3, dtype=policy)
    outputs = keras.layers.Dense(CLASSES, activation="softmax", dtype="float32")
    model = keras.Model(inputs, outputs(features(inputs)))
    features.set_weights([np.eye(2, 3), np.zeros(3)])
    outputs.set_weights([np.vstack([regression.coef_.T, np.ones((1, 3))]), regression.intercept_])
    judge = btcp_tf.attach(model)
    judge.fit(*samples(1500, 1), reference=(x, y), looks=(), verbose=0)
    assert judge.fitted["evidence"]
    test, labels = samples(800, 2)
    found = judge.predict(test)["uncertainty"]
    assert found.dtype == np.float64 and np.isfinite(found).all()
    mcp, residual = judge.evaluate(test, labels, draws=20)
    assert residual["aurc"] < mcp["aurc"]


def test_learns_from_copies_what_another_sensor_does(classifier):
    def moved(x):
        return x + np.float32([15, 0])

    x, y = samples(1500, 1)
    test, labels = samples(3000, 2)
    rows, words = [], []
    for copies in ([], [moved(x)]):
        judge = btcp_tf.attach(classifier)
        judge.fit(x, y, reference=samples(2000, 0), copies=copies, looks=(), verbose=0)
        rows.append([judge.evaluate(one, labels, draws=2)[1] for one in (test, moved(test))])
        words.append(judge.fitted["words"])
        assert judge.fitted["corrected"] == bool(copies)
    plain, taught = rows
    assert taught[1]["aurc"] < 0.8 * plain[1]["aurc"]
    assert taught[1]["ece"] < 0.5 * plain[1]["ece"]
    assert taught[0]["aurc"] < 1.1 * plain[0]["aurc"]
    assert "1 copy of each" in words[1] and "of each" not in words[0]

    with pytest.raises(ValueError, match=r"copies\[0\]: expected 1500 inputs .* received 1499"):
        judge.fit(x, y, copies=[x[1:]], looks=(), verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    with pytest.raises(ValueError, match=r"copies: expected auto, or a list .* received 'all'"):
        judge.fit(x, y, copies="all", looks=(), verbose=0)
    with pytest.raises(ValueError, match=r"copies: .* \(empty: none\), received NoneType"):
        judge.fit(x, y, copies=None, looks=(), verbose=0)
    with pytest.raises(ValueError, match="copies: expected auto, or a list .* received ndarray"):
        judge.fit(x, y, copies=x, looks=(), verbose=0)
    with pytest.raises(ValueError, match="copies: expected none beside a dataset"):
        judge.fit(dataset, copies=[x], looks=(), verbose=0)
    with pytest.raises(ValueError, match=r"copies\[0\]: expected an array, received a dataset"):
        judge.fit(x, y, copies=[dataset], looks=(), verbose=0)
    with pytest.raises(ValueError, match=r"folds\[0\]: expected 1 copies, as of x, received 0"):
        judge.fit(x, y, copies=[x], folds=[(classifier, (x, y), None)], looks=(), verbose=0)


def test_learns_what_an_ensemble_thinks_of_the_true_class(classifier, learned):
    members = [linear(*samples(2000, seed)) for seed in (3, 4)]
    x, y = samples(1500, 1)
    judge = btcp_tf.attach(classifier, class_names=["a", "b", "c"])
    before = judge.predict(x)["probs"]
    judge.fit(
        x, y, reference=samples(2000, 0), copies=[x + 1], ensemble=members, looks=(), verbose=0
    )
    everyone = [classifier, *members]
    for mean, inputs in zip(learned[0].ensemble, (x, x + 1), strict=True):
        wanted = sum(np.asarray(member(inputs)) for member in everyone) / 3
        np.testing.assert_allclose(mean, wanted, atol=1e-6)
    assert "true class probabilities as targets" in judge.fitted["words"]
    # It answers alone, as before.
    np.testing.assert_array_equal(judge.predict(x)["probs"], before)
    rows = judge.evaluate(*samples(1500, 2), draws=200)
    assert rows[1]["aurc_minus_mcp_high"] < 0

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    for settings, message in (
        ({"ensemble": members[0]}, "a list of classifiers, received Functional"),
        ({"ensemble": members, "folds": [(classifier, (x, y), None)]}, "none beside folds"),
        ({"x": dataset, "y": None, "ensemble": members}, "none beside a dataset"),
    ):
        with pytest.raises(ValueError, match=f"ensemble: expected .*{message}"):
            judge.fit(**{"x": x, "y": y, "verbose": 0, **settings})


def test_says_which_of_its_classifiers_and_samples_is_wrong(classifier, tmp_path):
    x, y = samples(60, 1)
    judge = btcp_tf.attach(classifier)
    inputs = keras.Input((2,))
    two = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(inputs))
    inputs = keras.Input((5,))
    wide = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    bad = x.copy()
    bad[50, 0] = np.nan
    wrong = (
        ({"ensemble": [classifier, two]}, r"ensemble\[1\]: classifier: expected one of 3 .* of 2"),
        ({"ensemble": [wide]}, r"ensemble\[0\]: example: expected inputs that"),
        ({"ensemble": [None]}, r"ensemble\[0\]: classifier: expected"),
        ({"folds": [(two, (x, y), None)]}, r"folds\[0\]: classifier: expected one of 3 classes"),
        ({"folds": [(classifier, (bad, y), None)]}, r"folds\[0\]: x: .* nan in input 50"),
        ({"folds": [(classifier, None, None)]}, r"folds\[0\]: x: expected inputs .* None"),
        ({"copies": [None]}, r"copies\[0\]: x: expected inputs .* received None"),
        ({"copies": [bad]}, r"copies\[0\]: x: .* nan in input 50"),
        ({"reference": (bad, y)}, r"reference: x: .* nan in input 50"),
    )
    for settings, message in wrong:
        with pytest.raises(ValueError, match=f"^{message}"):
            judge.fit(x, y, looks=(), verbose=0, **settings)
    with pytest.raises(FileNotFoundError, match=r"^ensemble\[0\]: classifier: expected a .keras"):
        judge.fit(x, y, looks=(), verbose=0, ensemble=[tmp_path / "none.keras"])
    assert judge.fitted is None
    with pytest.raises(ValueError, match="60 of 60 samples are among those of the reference"):
        judge.fit(x, y, looks=(), verbose=0, reference=(x[::-1], y[::-1]))


def test_a_fold_that_sees_other_inputs_is_refused():
    def trained(channels):
        inputs = keras.Input((8, 8, channels))
        flat = keras.layers.Reshape((64,))(inputs)
        return keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(flat))

    random, y = np.random.default_rng(0), np.arange(20) % 2
    x, seen = random.random((2, 20, 8, 8, 1), np.float32)
    folds = [(trained(None), (x, y), (seen, y))]
    with pytest.raises(
        ValueError, match=r"^folds\[0\]: classifier: expected one of inputs .*1\], "
    ):
        btcp_tf.attach(trained(1)).fit(x, y, reference=(seen, y), folds=folds, looks=(), verbose=0)


def test_threads_share_a_subclassed_classifier():
    @keras.saving.register_keras_serializable("tests.threads")
    class Own(keras.Model):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.narrow, self.last = keras.layers.Dense(4, "relu"), keras.layers.Dense(3, "softmax")

        def call(self, x):
            return self.last(self.narrow(x))

    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    classifier = Own()
    classifier(x[:3])
    judge = btcp_tf.attach(classifier, example=x[:3])
    wanted = judge.predict(x)["uncertainty"]
    sizes = range(2, 10)  # Each is traced anew.
    with concurrent.futures.ThreadPoolExecutor(len(sizes)) as pool:
        for found in pool.map(lambda size: judge.predict(x, batch_size=size), sizes):
            np.testing.assert_allclose(found["uncertainty"], wanted, atol=1e-6)


def test_evidence_is_float32_whatever_keras_floats_are(classifier):
    keras.config.set_floatx("float64")
    try:
        inputs = keras.Input((8, 8, 1))
        flat = keras.layers.Flatten()(inputs)
        judge = btcp_tf.attach(keras.Model(inputs, keras.layers.Dense(3, "softmax")(flat)))
        x = np.random.default_rng(0).normal(size=(90, 8, 8, 1))
        y = np.arange(90) % 3
        judge.fit(x[:60], y[:60], reference=(x[60:], y[60:]), looks=(), verbose=0)
        assert np.isfinite(judge.predict(x)["uncertainty"]).all()
    finally:
        keras.config.set_floatx("float32")


def test_folds_are_read_where_the_classifier_is(learned, tmp_path):
    def trained(seed):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((2,))
        wide = keras.layers.Dense(6, "relu", name="wide")(inputs)
        narrow = keras.layers.Dense(4, "relu", name="narrow")(wide)
        return keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(narrow))

    x, y = samples(60, 1)
    judge = btcp_tf.attach(trained(0), features="wide")
    judge.save(tmp_path / "judge.keras")
    folds = [(trained(1), (x, y), None)]
    for one in (judge, btcp_tf.load(tmp_path / "judge.keras")):
        one.fit(x, y, folds=folds, looks=(), verbose=0)
    assert [held_out.seen.features.shape for held_out in learned] == 4 * [(60, 6)]
    assert all(held_out.seen.view is None for held_out in learned)


def test_models_of_text_have_folds_and_ensembles():
    def of_text(seed):
        keras.utils.set_random_seed(seed)
        words = keras.Input((), dtype="string")
        x = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words)
        return keras.Model(words, keras.layers.Dense(2, activation="softmax")(x))

    text, y = np.array(["a", "b", "c"] * 20), np.array([0, 1, 1] * 20)
    judge = btcp_tf.attach(of_text(0), example=text[:3])
    judge.fit(text, y, ensemble=[of_text(1)], looks=(), verbose=0)
    judge.fit(text, y, folds=[(of_text(2), (text, y), None)], looks=(), verbose=0)
    assert judge.fitted["samples"] == 120


def test_without_neighbors_no_sample_goes_into_the_model(classifier):
    judge = btcp_tf.attach(classifier)
    held_out, reference = samples(1500, 1), samples(2000, 0)
    judge.fit(*held_out, reference=reference, evidence=("answer", "head"), looks=(), verbose=0)
    assert judge.fitted["evidence"] == ["answer", "head"]
    assert max(max(weights.shape, default=0) for weights in judge.model.weights) < 2000
    rows = judge.evaluate(*samples(1500, 2), draws=200)
    assert rows[1]["aurc_minus_mcp_high"] < 0
    for evidence in ((), ("head",), ("answer", "oracle")):
        with pytest.raises(ValueError, match="evidence: expected answer, and perhaps some of head"):
            judge.fit(*held_out, reference=reference, evidence=evidence, looks=(), verbose=0)


def images(n, seed):
    """Bars in one of three directions, a noisy one in six, and their labels."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    rows, columns = np.mgrid[:12, :12]
    phase = random.uniform(0, 2 * np.pi, (n, 1, 1))
    patterns = np.stack([rows, columns, rows + columns])[y]
    x = 120 + 100 * np.sin(patterns + phase) + random.normal(0, 20, (n, 12, 12))
    return np.clip(x, 0, 255).astype(np.float32)[..., None], y


@pytest.fixture(scope="module")
def short_sighted():
    """A classifier that sees two columns of an image alone."""
    inputs = keras.Input((12, 12, 1))
    x = keras.layers.Flatten()(keras.layers.Cropping2D(((0, 0), (5, 5)))(inputs))
    x = keras.layers.Dense(4, "relu")(keras.layers.Rescaling(1 / 255)(x))
    keras.utils.set_random_seed(0)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(*images(600, 0), epochs=5, verbose=0)
    return model


@pytest.mark.parametrize("evidence", [("answer", "image_neighbors"), NO_INDEX])
def test_an_image_is_seen_with_other_eyes_than_the_classifiers(short_sighted, evidence, tmp_path):
    judge = btcp_tf.attach(short_sighted)
    alone = {"looks": (), "copies": (), "verbose": 0}
    judge.fit(*images(800, 1), reference=images(600, 0), evidence=evidence, **alone)
    assert evidence[-1] in judge.fitted["evidence"]
    x, y = images(800, 2)
    mcp, residual = judge.evaluate(x, y, draws=100)
    assert mcp["errors"] > 100 and residual["auroc_minus_mcp_low"] > 0.05
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras")
    found = judge.predict(x)["uncertainty"]
    np.testing.assert_array_equal(again.predict(x)["uncertainty"], found)
    largest = max(max(weights.shape, default=0) for weights in judge.model.weights)
    assert (largest < 600) is (evidence == NO_INDEX)
    # Datasets are seen as arrays are.
    batches = tf.data.Dataset.from_tensor_slices(images(800, 1)).batch(300)
    judge.fit(batches, reference=images(600, 0), evidence=evidence, **alone)
    np.testing.assert_allclose(judge.predict(x)["uncertainty"], found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("with_fold", [False, True])
def test_what_random_copies_teach_reads_how_an_image_looks(short_sighted, with_fold, tmp_path):
    judge = btcp_tf.attach(short_sighted)
    folds = [(short_sighted, images(600, 4), images(600, 0))] if with_fold else ()
    few = {"evidence": NO_INDEX, "looks": (), "verbose": 0}
    judge.fit(*images(800, 1), reference=images(600, 0), folds=folds, **few)
    assert judge.fitted["corrected"]
    layer = judge.model.get_layer("copies")
    assert layer.of_images and layer.features == judge.model.get_layer("quality").output.shape[1]
    x, _ = images(40, 2)
    noisy = CORRUPTIONS["noise"](x.astype(np.uint8), 3, 0).astype(x.dtype)
    found = {name: judge.predict(of)["uncertainty"] for name, of in (("x", x), ("noisy", noisy))}
    judge.save(tmp_path / "judge.keras")
    path = judge.export(tmp_path, "served", x[:4])
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    again = btcp_tf.load(tmp_path / "judge.keras")
    for name, of in (("x", x), ("noisy", noisy)):
        np.testing.assert_array_equal(again.predict(of)["uncertainty"], found[name])
        answers = served(tf.constant(of))["uncertainty"].numpy()
        np.testing.assert_allclose(answers, found[name], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("own", [False, True])
def test_where_some_held_out_images_come_as_a_dataset_there_are_no_copies(short_sighted, own):
    x, y = images(300, 1)
    arrays, dataset = (x, y), tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    judge = btcp_tf.attach(short_sighted)
    first, second = (dataset, arrays) if own else (arrays, dataset)
    given = (first,) if own else first
    judge.fit(*given, folds=[(short_sighted, second, None)], looks=(), verbose=0)
    assert "600 held-out samples of 2 classifiers" in judge.fitted["words"]
    assert "copy" not in judge.fitted["words"]


def test_classifier_and_answers_are_bit_identical(classifier, fitted):
    x, _ = samples(400, 3)
    regression_weights = classifier.get_weights()
    np.testing.assert_array_equal(fitted.predict(x)["probs"], np.asarray(classifier(x)))
    for mine, given in zip(fitted.model.weights, regression_weights, strict=False):
        np.testing.assert_array_equal(mine, given)
    assert all(layer.trainable for layer in classifier.layers)


def test_estimate_is_a_probability_of_being_wrong(fitted):
    x, y = samples(4000, 4)
    found = fitted.predict(x)
    is_error = found["predicted"] != y
    u = found["uncertainty"]
    assert ((u >= 0) & (u <= 1)).all()
    for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 1.01)):
        part = (u >= low) & (u < high)
        assert is_error[part].mean() == pytest.approx(u[part].mean(), abs=0.08)


def test_falls_back_on_mcp_where_nothing_else_is_known(classifier):
    # Labels that follow the classifier's own probabilities: MCP is all there is to know.
    x, _ = samples(3000, 6)
    probs = np.asarray(classifier(x))
    y = (probs.cumsum(axis=1) < np.random.default_rng(0).random((3000, 1))).sum(axis=1)
    judge = btcp_tf.attach(classifier).fit(x, y, looks=(), verbose=0)
    assert judge.fitted["evidence"] == []
    assert "not better: u is MCP" in judge.fitted["words"]
    order = np.argsort(1 - probs.max(axis=1), kind="stable")
    assert (np.diff(judge.predict(x)["uncertainty"][order]) >= -1e-6).all()


@pytest.mark.parametrize("wrong", [0, 3])
def test_too_few_errors_leave_mcp_and_a_warning(classifier, wrong):
    x, _ = samples(200, 7)
    y = np.asarray(classifier(x)).argmax(axis=1)
    y[:wrong] = (y[:wrong] + 1) % CLASSES
    judge = btcp_tf.attach(classifier)
    before = judge.predict(x)["uncertainty"]
    with pytest.warns(UserWarning, match=f"wrong on {wrong} of 200 held-out samples"):
        judge.fit(x, y, reference=samples(200, 0), looks=(), verbose=0)
    np.testing.assert_array_equal(judge.predict(x)["uncertainty"], before)
    assert f"{wrong} wrong answers among 200 are too few" in judge.fitted["words"]


def test_a_fallback_ranks_exactly_as_mcp():
    """Also where 1 - p has no digits left in float32."""
    x, y = samples(600, 1)
    inputs = keras.Input((2,))
    last = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Model(inputs, last(inputs))
    regression = LogisticRegression().fit(*samples(2000, 0))
    last.set_weights([12 * regression.coef_.T, 12 * regression.intercept_])
    assert (np.asarray(model(x)).max(axis=1) == 1).mean() > 0.1
    judge = btcp_tf.attach(model)
    few = np.flatnonzero(judge.predict(x)["predicted"] != y)[:3]
    some = np.r_[few, np.flatnonzero(judge.predict(x)["predicted"] == y)[:100]]
    with pytest.warns(UserWarning, match="wrong on 3 of 103"):
        judge.fit(x[some], y[some], reference=samples(600, 0), looks=(), verbose=0)
    x, y = samples(600, 2)
    mcp, residual = judge.evaluate(x, y, draws=20)
    assert residual["auroc_minus_mcp"] == 0 and residual["verdict"] == "not distinguishable"
    assert mcp["aurc"] == pytest.approx(residual["aurc"], rel=1e-12)
    found = judge.predictions(x, y)
    np.testing.assert_array_equal(found.predicted, judge.predict(x)["predicted"])
    np.testing.assert_allclose(found.uncertainty["mcp"], 1 - found.probs.max(axis=1), atol=1e-6)


def test_classes_are_told_where_errors_are_many(monkeypatch):
    x, y = samples(1500, 1)
    features, logits = x, np.random.default_rng(0).normal(size=(1500, CLASSES)).astype(np.float32)
    told, choose = [], residual_choice.choose

    def watched(samples, *others):
        told.append((samples.predicted, samples.classes))
        return choose(samples, *others)

    monkeypatch.setattr(residual_choice, "choose", watched)
    for n in (120, 1500):
        held_out = HeldOut(Seen(features[:n], logits[:n]), y[:n])
        errors = (logits[:n].argmax(axis=1) != y[:n]).sum()
        fit, readers, *_ = residual_fit.fit_residual(held_out)
        predicted, classes = told[-1]
        assert classes == CLASSES and (predicted is None) == (errors < 100)
        if readers:
            read = readers["answer"](logits[:2])
            assert read.shape[1] == 3 + 2 + CLASSES * (predicted is not None)
    np.testing.assert_array_equal(predicted, logits.argmax(axis=1))
    assert fit.errors > 900 and all(layer.classes for layer in readers.values())


def test_threshold_is_kept_and_survives_a_file(fitted, tmp_path):
    judge = module.Judge(keras.models.clone_model(fitted.model))
    judge.model.set_weights(fitted.model.get_weights())
    chosen = judge.select_threshold(*samples(800, 8))
    x, y = samples(800, 9)
    found = judge.predict(x)
    assert judge.threshold == chosen
    np.testing.assert_array_equal(found["accept"], found["uncertainty"] < chosen.tau)
    is_error = found["predicted"] != y
    assert is_error[found["accept"]].mean() < is_error.mean() < is_error[~found["accept"]].mean()

    judge.save(tmp_path / "judge.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["judge.keras"]
    code = (
        "import sys, numpy as np, btcp_tf\n"
        "judge = btcp_tf.load(sys.argv[1])\n"
        "found = judge.predict(np.load(sys.argv[2]))\n"
        "np.savez(sys.argv[3], tau=judge.threshold.tau, names=judge.class_names, **found)\n"
        "assert judge.fitted['words']\n"
    )
    np.save(tmp_path / "x.npy", x)
    files = [tmp_path / name for name in ("judge.keras", "x.npy", "found.npz")]
    assert fresh.run("-c", code, *files).returncode == 0
    with np.load(tmp_path / "found.npz") as again:
        assert again["tau"] == chosen.tau and list(again["names"]) == ["a", "b", "c"]
        for name, value in found.items():
            np.testing.assert_array_equal(again[name], value)


def test_rules_of_thresholds(fitted):
    judge = module.Judge(keras.models.clone_model(fitted.model))
    judge.model.set_weights(fitted.model.get_weights())
    x, y = samples(1500, 8)
    found = judge.predict(x)
    is_error, u = found["predicted"] != y, found["uncertainty"]
    chosen = judge.select_threshold(x, rule="target_coverage", coverage=0.7)
    assert chosen == judge.threshold == thresholds.target_coverage(u, coverage=0.7)
    target = dict(risk=0.05, delta=0.1, min_coverage=0.3)
    chosen = judge.select_threshold(x, y, rule="target_risk", **target)
    assert chosen == thresholds.target_risk(is_error, u, **target)
    accepted = judge.predict(x)["accept"]
    assert accepted.sum() == chosen.accepted > 500
    assert is_error[accepted].mean() <= 0.05

    with pytest.warns(UserWarning, match="not achievable .* nothing will be accepted: error rate"):
        none = judge.select_threshold(x, y, rule="target_risk", risk=1e-4, delta=0.1)
    assert none.tau is None and not judge.predict(x)["accept"].any()
    assert judge.evaluate(x, y, draws=20)[0]["fnr"] == 1.0  # No correct answer is accepted.


def test_fitting_again_takes_the_threshold_back(classifier):
    judge = btcp_tf.attach(classifier).fit(*samples(1500, 1), looks=(), verbose=0)
    judge.select_threshold(*samples(800, 8))
    judge.fit(*samples(1500, 1), looks=(), verbose=0)
    assert judge.threshold is None


def test_datasets_give_what_arrays_give(classifier, fitted):
    def dataset(n, seed):
        return tf.data.Dataset.from_tensor_slices(samples(n, seed)).batch(170)

    judge = btcp_tf.attach(classifier)
    judge.fit(dataset(1500, 1), reference=dataset(2000, 0), looks=(), verbose=0)
    assert judge.fitted == fitted.fitted
    x, _ = samples(300, 3)
    wanted = fitted.predict(x)["uncertainty"]
    np.testing.assert_allclose(judge.predict(x)["uncertainty"], wanted, atol=1e-5)
    batches = tf.data.Dataset.from_tensor_slices(x).batch(64)
    np.testing.assert_allclose(judge.predict(batches)["uncertainty"], wanted, atol=1e-5)
    first, second = (
        found.evaluate(data, draws=20)
        for found, data in ((judge, dataset(300, 3)), (fitted, dataset(300, 3)))
    )
    assert [row["auroc"] for row in first] == pytest.approx([row["auroc"] for row in second])


def test_inputs_and_labels_of_a_shuffled_dataset_stay_together(classifier):
    x, y = samples(400, 3)
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(400, seed=0).batch(50)
    judge = btcp_tf.attach(classifier)
    wanted = [row["errors"] for row in judge.evaluate(x, y, draws=5)]
    assert [row["errors"] for row in judge.evaluate(shuffled, draws=5)] == wanted


def test_exports_a_saved_model(fitted, tmp_path):
    x, _ = samples(40, 3)
    path = fitted.export(tmp_path, "clusters", x[:8], {"note": "three clusters"})
    answers = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(x))
    found = fitted.predict(x)
    for name in ("probs", "uncertainty", "predicted"):
        np.testing.assert_allclose(answers[name], found[name], atol=1e-6)
    about = (path / "assets.extra" / "btcp_tf.json").read_text()
    assert "three clusters" in about and "the estimator is used" in about
    # Without a threshold the usual one.
    np.testing.assert_array_equal(answers["accept"], found["uncertainty"] < 0.5)


def test_exported_model_decides_and_brings_its_calibration_rows(unchecked, fitted, tmp_path):
    x, y = samples(400, 5)
    chosen = fitted.select_threshold(x, y, rule="target_coverage", coverage=0.6)
    fitted.save(tmp_path / "judge.keras")
    path = btcp_tf.load(tmp_path / "judge.keras").export(tmp_path, "clusters", x[:8])
    found = fitted.predict(x)
    answers = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(x))
    np.testing.assert_array_equal(answers["accept"], found["accept"])
    assert exported.read_about(path)["threshold"] == dataclasses.asdict(chosen)
    rows = exported.read_held_out(path)["calibration"]
    np.testing.assert_array_equal(rows.labels, y)
    np.testing.assert_array_equal(rows.predicted, found["predicted"])
    np.testing.assert_array_equal(rows.uncertainty["uncertainty"], found["uncertainty"])


def test_shape_of_labels_does_not_matter(classifier, fitted):
    x, y = samples(1500, 1)
    again = btcp_tf.attach(classifier).fit(
        x, y[:, None].astype(np.float64), reference=samples(2000, 0), looks=(), verbose=0
    )
    assert again.fitted == fitted.fitted


X, Y = samples(60, 1)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:, :1], Y, r"x: expected inputs of shape \[n, 2\], at least one, received \[60, 1\]"),
        (X[:0], Y[:0], r"at least one, received \[0, 2\]"),
        (X.astype(str), Y, "x: expected numbers, received"),
        (X, Y[:-1], r"y: expected 60 labels, whole numbers, received int64 \[59\]"),
        (X, Y + 0.5, "whole numbers, received float64"),
        (X, np.where(Y > 0, np.nan, Y), "whole numbers, received float64"),
        (X, Y.astype(str), "whole numbers, received <U"),
        (X, Y + 2, "y: expected labels from 0 to 2, received 2 to 4"),
        (X, Y - 1, "y: expected labels from 0 to 2, received -1 to 1"),
        (X, None, r"y: expected labels \[n\], received none"),
        (np.where(X > 2, np.nan, X), Y, r"x: expected finite numbers, received nan in input"),
    ],
)
def test_refuses(classifier, x, y, message):
    judge = btcp_tf.attach(classifier)
    for call in (judge.fit, judge.evaluate, judge.select_threshold):
        with pytest.raises(ValueError, match=message):
            call(x, y)
    assert judge.fitted is None and judge.threshold is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "3 names, received 2"),
        ("abc", "3 names in a list, received 'abc'"),
        (None, "3 names in a list, received None"),
        ({"a", "b", "c"}, "3 names in a list, received {"),
        (["a", "b", None], "3 names, each some text, received None"),
        ([0, 1, 2], "3 names, each some text, received 0"),
        (["a", "", "c"], "3 names, each some text, received ''"),
        (["a", "b", "\ud800"], "3 names, each some text, received "),
        (["a", "b", "a"], "3 names, each once, received 'a' 2 times"),
        (["a", "b", "b\r"], "each name once, received 'b' 2 times"),
        (["a", "b", "b\rc"], "names without control characters"),
    ],
)
def test_names_that_are_none_are_refused(classifier, names, message):
    with pytest.raises(ValueError, match=f"class_names: expected {message}"):
        btcp_tf.attach(classifier, class_names=names)
    given = np.array(["a", "b", "c"])
    assert btcp_tf.attach(classifier, class_names=given).class_names == ["a", "b", "c"]


def test_names_with_line_ends_are_cleaned_with_a_warning(classifier):
    with pytest.warns(UserWarning, match="1 cleaned of white space"):
        judge = btcp_tf.attach(classifier, class_names=["a", "b\r", "c"])
    assert judge.class_names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"seed": seed}, "seed: expected a whole number from 0 to 2147483647, received")
            for seed in (-1, 1.5, "0", None, True, 2**31)
        ),
        ({"evidence": "answer"}, "evidence: expected answer, .* in a list, received 'answer'"),
        ({"evidence": None}, "evidence: expected answer, .* in a list, received None"),
        ({"evidence": ["answer", None]}, "evidence: expected answer, .*received answer, None"),
        ({"evidence": ["answer", "oracle"]}, "evidence: expected answer, .*answer, oracle"),
        ({"evidence": []}, "evidence: expected answer, .*received none"),
        ({"folds": None}, "folds: expected .classifier.* received NoneType"),
        ({"folds": [(1, 2)]}, "folds: expected .classifier.* received tuple of 2"),
    ],
)
def test_fit_refuses_settings_before_any_work(classifier, monkeypatch, settings, message):
    judge = btcp_tf.attach(classifier)
    monkeypatch.setattr(held_out, "collect", None)
    with pytest.raises(ValueError, match=message):
        judge.fit(X, Y, **settings)


def test_a_judge_that_could_not_be_loaded_is_not_saved(tmp_path):
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    layers = [keras.Input((2,)), Doubled(), keras.layers.Dense(CLASSES, "softmax")]
    judge = btcp_tf.attach(keras.Sequential(layers))
    file = tmp_path / "new" / "judge.keras"
    with pytest.raises(
        ValueError, match="classifier: expected .* received one with Doubled, which"
    ):
        judge.save(file)
    assert not any(tmp_path.iterdir())
    keras.saving.register_keras_serializable("test_judge")(Doubled)
    state = random.getstate()
    judge.save(file)
    assert random.getstate() == state
    again = btcp_tf.load(file).predict(X)["uncertainty"]
    np.testing.assert_array_equal(again, judge.predict(X)["uncertainty"])
    # Elsewhere it is not known before the module that registers it is imported.
    script = "import sys, btcp_tf\nbtcp_tf.load(sys.argv[1])"
    last = fresh.run("-c", script, file).stderr.strip().splitlines()[-1]
    assert re.search("ValueError: path: .*it holds Doubled, .* import the module", last)


@pytest.mark.parametrize("path", [None, 5, b"judge.keras"])
def test_what_is_no_path_is_refused(fitted, path):
    for call in (fitted.save, btcp_tf.load, lambda root: fitted.export(root, "name", X[:2])):
        with pytest.raises(ValueError, match=f"expected a path, received {type(path).__name__}"):
            call(path)


def test_refuses_other_things(classifier, fitted, tmp_path):
    with pytest.raises(ValueError, match="rule: expected one of best_bacc, .* received 'best'"):
        fitted.select_threshold(X, Y, rule="best")
    for settings, words in (
        ({}, r"risk \(required\), delta \(required\), .* none; add risk=0.05, delta=0.1, say"),
        ({"risk": 0.1}, r"risk \(required\), delta .* received risk; add delta=0.1, say"),
        ({"risk": 0.1, "delta": 0.1, "tau": 1}, ".* received risk, delta, tau; .*leave out tau"),
    ):
        with pytest.raises(ValueError, match=f"target_risk: expected the settings {words}"):
            fitted.select_threshold(X, Y, rule="target_risk", **settings)
    # With the rule that it is a setting of.
    with pytest.raises(
        ValueError, match="best_bacc: .* none, received risk; rules .*: target_risk"
    ):
        fitted.select_threshold(X, Y, risk=0.1)
    with pytest.raises(ValueError, match="reference: expected at least 2 samples, received 1"):
        btcp_tf.attach(classifier).fit(X, Y, reference=(X[:1], Y[:1]), looks=(), verbose=0)
    with pytest.raises(ValueError, match="ends with .keras, received"):
        fitted.save(tmp_path / "judge.h5")
    (tmp_path / "folder.keras").mkdir()
    with pytest.raises(ValueError, match="ends with .keras, received"):
        fitted.save(tmp_path / "folder.keras")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="path: expected a folder that can be written, received"):
        fitted.save(tmp_path / "file" / "judge.keras")
    for name in ("none.keras", ""):
        with pytest.raises(FileNotFoundError, match="expected a .keras file, received"):
            btcp_tf.load(name and tmp_path / name)
    classifier.save(tmp_path / "classifier.keras")
    with pytest.raises(ValueError, match="a file that Judge.save wrote, received"):
        btcp_tf.load(tmp_path / "classifier.keras")
    whole = (tmp_path / "classifier.keras").read_bytes()
    for cut in (0, len(whole) // 2):
        (tmp_path / "cut.keras").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="a zip archive, received .*cut.keras, which is none"):
            btcp_tf.attach(tmp_path / "cut.keras")
    fitted.save(tmp_path / "judge.keras")
    for judge in (fitted, fitted.model, tmp_path / "judge.keras"):
        with pytest.raises(ValueError, match="classifier: expected a classifier, received a Judge"):
            btcp_tf.attach(judge)


def test_export_takes_what_predict_takes(unchecked, fitted, tmp_path):
    x = np.round(samples(5, 3)[0])
    path = fitted.export(tmp_path, "whole", x.astype(np.int64))
    assert (path / "saved_model.pb").exists()
    for sample, message in (
        (np.full((1, 2), np.nan), "sample: expected finite numbers"),
        (x[:, :1], r"sample: expected inputs of shape \[n, 2\], at least one, received \[5, 1\]"),
        (x[:0], "sample: expected inputs of shape"),
        (np.array(["a"]), "sample: expected numbers, received"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.export(tmp_path, "none", sample)
    assert not (tmp_path / "none").exists()
    judge = module.Judge(keras.models.clone_model(fitted.model))
    with pytest.warns(UserWarning, match="not achievable"):
        judge.select_threshold(*samples(800, 8), rule="target_risk", risk=1e-4, delta=0.1)
    with pytest.warns(
        UserWarning, match="not achievable, so the SavedModel accepts nothing: error"
    ):
        judge.export(tmp_path, "nothing", x)


def test_inputs_too_small_for_a_classifier_are_refused():
    inputs = keras.Input((None, None, 1))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 5)(inputs))
    judge = btcp_tf.attach(
        keras.Model(inputs, keras.layers.Dense(2, "softmax")(x)), example=np.zeros((1, 9, 9, 1))
    )
    assert len(judge.predict(np.zeros((2, 9, 9, 1)))["predicted"]) == 2
    with pytest.raises(
        ValueError, match=r"x: expected inputs that the classifier can take, received \[2, 3, 3"
    ):
        judge.predict(np.zeros((2, 3, 3, 1)))


def test_the_papers_estimator_in_its_place(unchecked, classifier, tmp_path):
    x, y = samples(2000, 0)
    judge = btcp_tf.attach(classifier, class_names=["a", "b", "c"])
    before = judge.predict(x[:50])
    settings = dict(estimator_epochs=8, estimator_learning_rate=0.1, gamma=1.0, batch_size=64)
    state = np.random.get_state()[1].copy()
    judge.fit_btcp(x, y, verbose=0, **settings)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    found = judge.predict(x[:50])
    np.testing.assert_array_equal(found["probs"], before["probs"])
    assert judge.method == "btcp" and judge.fitted["gamma"] == 1.0
    probs = np.asarray(classifier(x))
    assert judge.fitted["errors"] == (probs.argmax(axis=1) != y).sum()

    # It learns 1 - true class probability: better than the best constant on samples of the kind.
    fresh, truth = samples(1500, 2)
    u = judge.predict(fresh)["uncertainty"]
    target = 1 - np.asarray(classifier(fresh))[np.arange(1500), truth]
    assert np.mean((u - target) ** 2) < 0.8 * target.var()
    rows = judge.evaluate(fresh, truth, draws=20)
    assert [row["method"] for row in rows] == ["mcp", "btcp"]
    assert [*judge.predictions(fresh, truth).uncertainty] == ["mcp", "btcp"]

    judge.select_threshold(fresh, truth)
    judge.save(tmp_path / "judge.keras")
    loaded = btcp_tf.load(tmp_path / "judge.keras")
    assert (loaded.method, loaded.fitted) == ("btcp", judge.fitted)
    np.testing.assert_array_equal(loaded.predict(fresh)["uncertainty"], u)
    path = judge.export(tmp_path, "btcp", fresh[:4])
    assert exported.read_about(path)["uncertainty"] == {"method": "btcp", "stage": "frozen"}

    again = btcp_tf.attach(classifier).fit_btcp(x, y, verbose=0, **settings)
    np.testing.assert_array_equal(again.predict(fresh)["uncertainty"], u)
    # And back: what it was makes no difference.
    judge.fit(*samples(1500, 1), reference=(x, y), looks=(), verbose=0)
    assert judge.method == "residual" and judge.threshold is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 3}, "settings: expected some of .*estimator_epochs.*, received epochs"),
        ({"estimator_epochs": 0}, "estimator_epochs: expected .* received 0"),
        ({"gamma": "much"}, "gamma: expected .* received 'much'"),
        ({"epsilon": 2.0}, "epsilon: expected .* received 2"),
    ],
)
def test_the_papers_estimator_refuses_settings(classifier, settings, message):
    with pytest.raises(ValueError, match=message):
        btcp_tf.attach(classifier).fit_btcp(*samples(100, 0), **settings)


def test_the_papers_estimator_says_that_it_learned_nothing(classifier):
    judge = btcp_tf.attach(classifier)
    with pytest.warns(UserWarning, match="the estimator learned nothing"):
        judge.fit_btcp(*samples(2000, 0), estimator_epochs=1, gamma=1e6, verbose=0)
    assert "learned nothing" in judge.fitted["words"]


def test_what_is_no_set_of_inputs_is_refused_in_words(classifier):
    judge = btcp_tf.attach(classifier)
    x, y = samples(60, 0)
    labeled = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    cases = [
        (lambda: judge.evaluate(labeled, y), "y: expected none beside a dataset"),
        (lambda: judge.predict(labeled.repeat()), "a dataset that ends, received an infinite one"),
        (lambda: judge.predict(labeled.take(0)), "received one without any"),
        (
            lambda: judge.fit(labeled.map(lambda x, y: (x,))),
            r"y: expected labels \[n\], received none",
        ),
        (lambda: judge.predict([[1.0, 2.0], [3.0]]), "x: .* rows of different lengths"),
        (lambda: judge.predict(x, batch_size=0), "batch_size: expected a whole number >= 1"),
        (lambda: judge.fit(x, y, reference=(x,)), "expected a pair .* received 1 parts"),
        (lambda: btcp_tf.attach(classifier, example=x[:0]), "example: expected at least one"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_whole_numbers_are_not_cut_to_fit():
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    judge = btcp_tf.attach(model)
    for value in (np.nan, 300, -1, 0.5):
        with pytest.raises(ValueError, match=f"x: expected uint8, received float64 with {value}"):
            judge.predict(np.full((2, 4), value, np.float64))
    assert len(judge.predict(np.full((2, 4), 255.0))["predicted"]) == 2
    inputs = keras.Input((4,), dtype="bool")
    bits = keras.ops.cast(inputs, "float32")
    judge = btcp_tf.attach(keras.Model(inputs, keras.layers.Dense(3, "softmax")(bits)))
    assert len(judge.predict(np.eye(4))["predicted"]) == 4
    with pytest.raises(ValueError, match="x: expected bool, received uint8 with 200"):
        judge.predict(np.full((2, 4), 200, np.uint8))


def test_a_limit_that_only_pixels_reach_is_seen():
    """Its answers are not the softmax of its last Dense layer, but for small inputs they are."""
    inputs = keras.Input((16,))
    logits = keras.layers.Dense(3)(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Softmax()(keras.ops.clip(logits, -0.2, 0.2)))
    with pytest.raises(ValueError, match="expected answers that are the softmax"):
        btcp_tf.attach(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.pop("class_names"), "none of class_names"),
        (lambda about: about.__setitem__("threshold", {"tau": "x"}), "tau"),
        (lambda about: about.__setitem__("class_names", ["a"]), "expected 3 names"),
        (lambda about: about.__setitem__("class_names", None), "class_names"),
        (lambda about: about.__setitem__("method", 5), "method is 5"),
        (lambda about: about.__setitem__("fit", "x"), "fit is 'x'"),
        (lambda about: about.__setitem__("calibration", 7), "calibration is 7"),
    ],
)
def test_a_card_that_is_damaged_is_refused(classifier, tmp_path, change, message):
    judge = btcp_tf.attach(classifier)
    change(judge.model.get_layer("card").about)
    judge.save(tmp_path / "j.keras")
    with pytest.raises(ValueError, match=f"a file that Judge.save wrote, received .*{message}"):
        btcp_tf.load(tmp_path / "j.keras")
