import functools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingClassifier

from btcp_tf.networks import other_eyes
from btcp_tf.networks.other_eyes import LEAST, Tokens, Trees, trees_of


def table(labels, kind="float32", n=300):
    """Rows whose sums over two columns decide which of the labels they have."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 4)) * 30
    x = (x if kind == "float32" else np.abs(x)).astype(kind)
    order = np.argsort(np.argsort(x[:, 0].astype(float) + x[:, 2] ** 2 / 20))
    return x, np.array(labels)[order * len(labels) // n]


def boosted(x, y, **settings):
    settings = {"max_iter": 8, "min_samples_leaf": 5, "early_stopping": False, **settings}
    return HistGradientBoostingClassifier(**settings).fit(x, y)


def probs_of(fitted, x, classes):
    """Probabilities `[n, k]` by scikit-learn, 0 for classes that it does not know."""
    probs = np.zeros((len(x), classes))
    probs[:, fitted.classes_] = fitted.predict_proba(x.astype(np.float32))
    return probs


def thresholds_of(fitted):
    nodes = np.concatenate([tree.nodes for trees in fitted._predictors for tree in trees])
    inner = nodes[nodes["is_leaf"] == 0]
    return inner["feature_idx"], inner["num_threshold"]


@pytest.mark.parametrize("kind", ["float32", "uint8", "int64"])
@pytest.mark.parametrize(
    "labels, classes",
    [([0, 1], 2), ([0, 1, 2], 3), ([1, 3], 4), ([0, 2, 3], 5)],
    ids=["binary", "three", "binary, missing", "three, missing"],
)
def test_trees_answer_as_scikit_learn_does(labels, classes, kind):
    x, y = table(labels, kind)
    fitted = boosted(x, y)
    found = np.asarray(trees_of(fitted, classes)(x))
    wanted = probs_of(fitted, x, classes)
    assert found.dtype == np.float32 and found.shape == (300, classes)
    np.testing.assert_allclose(np.exp(found), wanted, atol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found, np.maximum(np.log(wanted), LEAST), atol=1e-5)
    assert (found.argmax(axis=1) == y).mean() > 0.9


def test_trees_on_and_next_to_their_thresholds():
    x, _ = table([0, 1, 2])
    fitted, _ = fitted_trees()
    features, thresholds = thresholds_of(fitted)
    # Halves between float32 neighbors round to either side.
    assert (thresholds.astype(np.float32) > thresholds).any()
    near = thresholds.astype(np.float32)
    rows = []
    for value in (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.inf)):
        row = x[np.arange(len(value)) % len(x)].copy()
        row[np.arange(len(value)), features] = value
        rows.append(row)
    rows = np.concatenate(rows)
    found = np.exp(trees_of(fitted, 3)(rows))
    np.testing.assert_allclose(found, probs_of(fitted, rows, 3), atol=1e-6)


def test_a_threshold_in_float32_parts_the_same_numbers():
    random = np.random.default_rng(0)
    exact = random.normal(size=50).astype(np.float32)
    thresholds = np.concatenate(
        [random.normal(size=200), exact, 10.0 ** np.arange(-30, 38), [0, 1e300, np.inf, -1e300]]
    )
    rounded = other_eyes._at_most(thresholds)
    assert rounded.dtype == np.float32
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
    for x in (
        near,
        np.nextafter(near, np.float32(-np.inf)),
        np.nextafter(near, np.float32(np.inf)),
    ):
        np.testing.assert_array_equal(x <= rounded, x.astype(np.float64) <= thresholds)


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "with gaps"])
def test_trees_on_extreme_values(missing):
    x, y = table([0, 1])
    if missing:
        x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    fitted = boosted(x, y)
    values = np.array([np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, np.nan], np.float32)
    rows = np.stack(np.meshgrid(values, values, values, [1.0]), axis=-1).reshape(-1, 4)
    found = np.exp(trees_of(fitted, 2)(rows))
    np.testing.assert_allclose(found, probs_of(fitted, rows, 2), atol=1e-6)


def test_sums_of_trees_keep_their_digits(monkeypatch):
    layer = Trees(1, 2, nodes=1, iterations=1000, groups=1, depth=0)
    zeros = np.zeros(1000)
    layer.set_weights(
        [np.zeros((1, 4)), zeros[:1], np.array([1e-5]), zeros, np.array([1, 0]), np.array([0, 99])]
    )
    monkeypatch.setattr(other_eyes, "_log_probs", lambda scores: scores)
    assert float(layer(np.zeros((1, 1)))[0, 1]) == pytest.approx(99.01, abs=1e-9)


def test_leaves_alone_and_constants_are_trees():
    x = np.zeros((30, 2), np.float32)
    fitted = boosted(x, np.arange(30) % 3 // 2)  # Nothing to split by.
    np.testing.assert_allclose(np.exp(trees_of(fitted, 2)(x)), [[2 / 3, 1 / 3]] * 30, atol=1e-6)
    start = other_eyes.log_shares(np.array([1, 1, 2, 1]), 3)
    found = np.asarray(other_eyes.constant_trees(2, start)(x[:2]))
    np.testing.assert_allclose(found, [[LEAST, math.log(0.75), math.log(0.25)]] * 2, rtol=1e-6)


def test_trees_take_tables_of_several_axes():
    layer, x = some_trees()
    np.testing.assert_array_equal(layer(x.reshape(-1, 2, 2)), layer(x))


def test_trees_of_categories_are_refused():
    x = np.arange(60).reshape(-1, 1) % 3
    fitted = boosted(x, x[:, 0] // 2, categorical_features=[0])
    with pytest.raises(ValueError, match="expected trees without categorical features, received 1"):
        trees_of(fitted, 2)


def filled(text):
    """A layer that knows some tokens, with weights by chance."""
    random = np.random.default_rng(0)
    if text:
        words = ["good", "bad", "film", "good film", "not good", "über", "не", "42"]
        vocabulary = np.sort(tf.strings.to_hash_bucket_fast(words, 2**40).numpy() + 1)
    else:
        vocabulary = np.array([2, 3, 7, 40_000, 2**40])
    layer = Tokens(len(vocabulary), 3, 9, text)
    kernel, bias = random.normal(size=(len(vocabulary), 3)), random.normal(size=3)
    layer.set_weights([vocabulary, kernel, bias])
    return layer


def slow_tokens(layer, bags):
    """One token at a time."""
    vocabulary, kernel, bias = layer.get_weights()
    weights = dict(zip(vocabulary.tolist(), kernel.astype(np.float64), strict=True))
    answers = []
    for bag in bags:
        known = [weights[token] for token in set(bag) if token in weights]
        scores = bias + sum(known) / math.sqrt(max(len(known), 1))
        answers.append(scores - np.log(np.exp(scores).sum()))
    return np.array(answers)


IDS = np.array(
    [
        [2, 3, 7, 0, 0],
        [3, 3, 3, 2, 2],
        [9, 9, 1, 40_000, 6],
        [0, 0, 0, 0, 0],
        [0, 2, 0, -5, 2],
        [2**40, 2**41, 7, 2**62, 8],
    ]
)

TEXTS = [
    "Good film, good film!",
    "not  good...FILM\tnot-good",
    "",
    " ,;! ",
    "ÜBER не 42 things_good",
    "bad, (bad): bad",
]


def test_tokens_of_sequences_are_those_of_a_slow_version():
    layer = filled(text=False)
    found = np.asarray(layer(IDS))
    assert found.dtype == np.float32
    wanted = slow_tokens(layer, [set(row) - {0} for row in IDS.tolist()])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    # In any order and with any filling.
    mixed = np.pad(IDS[:, ::-1], ((0, 0), (2, 5)))
    np.testing.assert_allclose(layer(mixed), found, atol=1e-6)
    np.testing.assert_array_equal(
        layer(IDS[:5].astype(np.float32)), layer(IDS[:5].astype(np.int32))
    )


def test_tokens_of_texts_are_those_of_a_slow_version():
    layer = filled(text=True)
    bags = []
    for text in TEXTS:
        words = re.findall(r"[^\W_]+", text.lower())
        tokens = words + [" ".join(pair) for pair in zip(words, words[1:], strict=False)]
        bags.append([int(tf.strings.to_hash_bucket_fast(token, 2**40)) + 1 for token in tokens])
    wanted = slow_tokens(layer, bags)
    np.testing.assert_allclose(layer(np.array(TEXTS)), wanted, atol=1e-5)
    np.testing.assert_allclose(layer(np.array(TEXTS, object)[:, None]), wanted, atol=1e-5)
    # Words beyond the 512th are not read; bytes that are no text do no harm.
    many = ["x " * 511 + "good", "x " * 512 + "good"]
    np.testing.assert_allclose(layer(tf.constant(many))[1], slow_tokens(layer, [[]])[0], atol=1e-5)
    assert not np.allclose(*layer(tf.constant(many)))
    assert np.isfinite(layer(tf.constant([b"good \xff\xfe \x80"]))).all()


@functools.cache
def fitted_trees():
    x, y = table([0, 1, 2])
    return boosted(x, y), x[:20]


def some_trees():
    fitted, x = fitted_trees()
    return trees_of(fitted, 3, name="trees"), x


CASES = {
    "trees": lambda: (*some_trees(), keras.Input((4,))),
    "tokens": lambda: (filled(text=False), IDS, keras.Input((5,), dtype="int64")),
    "any length": lambda: (filled(text=False), IDS, keras.Input((None,), dtype="int64")),
    "texts": lambda: (filled(text=True), tf.constant(TEXTS), keras.Input((), dtype="string")),
    "texts in a column": lambda: (
        filled(text=True),
        tf.constant(TEXTS)[:, None],
        keras.Input((1,), dtype="string"),
    ),
}


@functools.cache
def made(name):
    layer, x, inputs = CASES[name]()
    return keras.Model(inputs, layer(inputs)), x


@pytest.fixture(params=CASES)
def case(request):
    """A model of the layer alone, and inputs."""
    return made(request.param)


def test_rows_do_not_depend_on_their_batch(case):
    model, x = case
    assert model.output_shape == (None, 3) and not model.trainable_weights
    answers = np.asarray(model(x))
    for row in range(len(x)):
        np.testing.assert_array_equal(np.asarray(model(x[row : row + 1]))[0], answers[row])
    np.testing.assert_array_equal(model(x[::-1]), answers[::-1])
    assert np.asarray(model(x[:0])).shape == (0, 3)


def test_a_graph_of_any_batch_size_answers_alike(case):
    model, x = case
    signature = tf.TensorSpec([None, *model.inputs[0].shape[1:]], model.inputs[0].dtype)
    graph = tf.function(model, input_signature=[signature], jit_compile=False)
    for rows in (x, x[:1], x[:0]):
        np.testing.assert_allclose(graph(rows), model(rows), atol=1e-6)


def test_files_and_saved_models_answer_alike(case, tmp_path):
    model, x = case
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert loaded.layers[-1].multiply_adds == model.layers[-1].multiply_adds
    assert [weight.dtype for weight in loaded.weights] == [weight.dtype for weight in model.weights]
    archive = keras.export.ExportArchive()
    archive.track(loaded)
    shape = [None, *model.inputs[0].shape[1:]]
    archive.add_endpoint(
        "serve", loaded.call, [tf.TensorSpec(shape, model.inputs[0].dtype, name="x")]
    )
    archive.write_out(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved").signatures["serve"]
    for rows in (x, x[:1], x[:0]):
        (answers,) = served(x=tf.convert_to_tensor(rows)).values()
        np.testing.assert_allclose(answers, model(rows), atol=1e-6)


def test_half_precision_elsewhere_changes_nothing():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer, x = some_trees()
        assert layer.values.dtype == "float64" and layer.compute_dtype == "float32"
        wanted = np.asarray(layer(x))
    finally:
        keras.config.set_dtype_policy(before)
    np.testing.assert_array_equal(some_trees()[0](x), wanted)


def test_costs():
    layer, _ = some_trees()
    assert layer.multiply_adds == 8 * 3 * layer.depth
    assert filled(text=False).multiply_adds == 27


def nets():
    random = np.random.default_rng(0)
    return {
        "images": random.integers(0, 256, (6, 9, 12, 3)).astype(np.uint8),
        "gray images": random.normal(size=(6, 40, 40)).astype(np.float32),
        "numbers": random.normal(size=(6, 3)).astype(np.float32),
        "tokens": IDS,
        "texts": np.array(TEXTS, object),
    }


@pytest.mark.parametrize("kind", nets())
def test_small_networks_in_files_and_saved_models_answer_alike(kind, tmp_path):
    x = nets()[kind]
    net = other_eyes.small_net(x, 3, 0, tokens=kind in ("tokens", "texts"))
    model = other_eyes.with_log_probs(net, np.array([False, True, False]), "net")
    x = tf.constant(x)
    answers = np.asarray(model(x))
    assert answers.dtype == np.float32 and not model.trainable_weights
    np.testing.assert_array_equal(answers[:, 1], LEAST)
    np.testing.assert_allclose(np.exp(answers).sum(axis=1), 1.0, atol=1e-5)
    for row in range(len(x)):
        np.testing.assert_allclose(model(x[row : row + 1])[0], answers[row], atol=1e-5)
    if not kind.endswith(
        "images"
    ):  # oneDNN's convolutions take no empty batch; `UnlessEmpty` keeps it away.
        assert np.asarray(model(x[:0])).shape == (0, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), answers)
    archive = keras.export.ExportArchive()
    archive.track(loaded)
    spec = tf.TensorSpec(loaded.input.shape, loaded.input.dtype, name="x")
    archive.add_endpoint("serve", loaded.call, [spec])
    archive.write_out(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved").signatures["serve"]
    np.testing.assert_allclose(*served(x=x).values(), answers, atol=1e-5)
