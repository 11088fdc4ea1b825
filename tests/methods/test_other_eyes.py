import math
import random as python_random

import keras
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from btcp_tf.core import progress
from btcp_tf.methods import other_eyes
from btcp_tf.methods.other_eyes import (
    EYES,
    eyes_for,
    look_like_tokens,
    train_net,
    train_tokens,
    train_trees,
)
from btcp_tf.networks.cost import multiply_adds
from btcp_tf.networks.other_eyes import LEAST, small_net


def table(classes, n=400):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3)).astype(np.float32)
    score = np.argsort(np.argsort(x[:, 0] + x[:, 1] ** 2))
    return x, score * classes // n


def sequences(classes, n=300, length=12):
    """Each class has tokens of its own among those of all; short ones are filled up with 0."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, n)
    x = random.integers(20, 400, (n, length))
    x[:, :3] = 1 + y[:, None] * 3 + random.integers(0, 3, (n, 3))
    x[random.random(n) < 0.3, 9:] = 0
    return random.permuted(x, axis=1), y


def images(classes, n=300, side=8, dtype=np.float32):
    """A bright corner, or one of several rows, tells the class, somewhere between noise."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, n)
    x = random.integers(0, 60, (n, side, side, 1))
    x[np.arange(n), 1 + y] += 150
    return x.astype(dtype), y


def samples(name, classes):
    """Some that eyes of this name see."""
    return {"trees": table, "tokens": sequences}.get(name, images)(classes)


ALONE = [name for name in EYES if name != "student"]
"""Without a classifier's answers a student is a small network."""

TEXTS = np.array(
    ["a good film", "good acting, good plot", "not a good film", "a bad plot", "bad, bad acting"]
    * 10
)

LABELS = np.array([1, 1, 0, 0, 0] * 10)


def accuracy(eye, x, y):
    return (np.asarray(eye(x)).argmax(axis=1) == y).mean()


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_learn_what_scikit_learn_learns(classes):
    x, y = table(classes)
    eye = train_trees(x, y, classes, seed=0)
    assert eye.name == "trees"
    assert accuracy(eye, x, y) > 0.95
    own = HistGradientBoostingClassifier(
        max_iter=100, max_depth=6, min_samples_leaf=20, early_stopping=False
    ).fit(x, y)
    # The order of the samples is another one, which rounding shows.
    np.testing.assert_allclose(np.exp(eye(x)), own.predict_proba(x), atol=1e-3)
    assert eye.multiply_adds <= 100 * classes * 6


def test_trees_of_many_classes_stay_few():
    x, y = table(50)
    eye = train_trees(x, y, 60, seed=0)
    assert (eye.iterations, eye.groups) == (20, 50)
    assert eye.multiply_adds <= 1000 * 6
    np.testing.assert_array_equal(np.asarray(eye(x))[:, 50:], LEAST)


def test_trees_of_wide_inputs_are_few():
    x, y = table(2, n=60)
    eye = train_trees(np.tile(x, (1, 1000)), y, 2, seed=0)
    assert (eye.width, eye.iterations) == (3000, 43)
    assert accuracy(eye, np.tile(x, (1, 1000)), y) > 0.9


def test_trees_take_small_tables_and_whole_numbers():
    x, y = table(2)
    x = np.round(x * 10).astype(np.int16).repeat(2, axis=1).reshape(-1, 3, 2)
    eye = train_trees(x, y, 2, seed=0)
    assert eye.width == 6 and accuracy(eye, x, y) > 0.9


@pytest.mark.parametrize("classes", [2, 4])
def test_tokens_learn_what_scikit_learn_learns(classes):
    x, y = sequences(classes)
    eye = train_tokens(x, y, classes, seed=0)
    assert eye.name == "tokens" and eye.multiply_adds == 12 * classes
    assert accuracy(eye, x, y) > 0.95
    # One token at a time: those of at least two samples, each once, divided by the root of how many
    # a sample has.
    bags = [set(row) - {0} for row in x.tolist()]
    tokens = sorted(t for t in set().union(*bags) if sum(t in bag for bag in bags) > 1)
    present = np.array([[float(token in bag) for token in tokens] for bag in bags])
    present /= np.sqrt(present.sum(axis=1, keepdims=True))
    own = LogisticRegression(C=other_eyes._STRENGTH, max_iter=200).fit(present, y)
    np.testing.assert_allclose(np.exp(eye(x)), own.predict_proba(present), atol=2e-3)


@pytest.mark.parametrize("kind", ["str", "object", "bytes", "column"])
def test_tokens_learn_texts(kind):
    texts = {
        "str": TEXTS,
        "object": TEXTS.astype(object),
        "bytes": np.array([text.encode() for text in TEXTS], object),
        "column": TEXTS[:, None],
    }[kind]
    eye = train_tokens(texts, LABELS, 2, seed=0)
    assert eye.text and accuracy(eye, texts, LABELS) == 1.0
    # The pair of words turns it.
    assert accuracy(eye, np.array(["A good film!", "not good"]), [1, 0]) == 1.0


def test_the_most_frequent_tokens_are_known(monkeypatch):
    x = np.array([[5, 6, 7], [5, 6, 8], [5, 9, 9], [6, 5, 4]])
    eye = train_tokens(x, np.array([0, 1, 0, 1]), 2, seed=0)
    assert eye.vocabulary.numpy().tolist() == [5, 6]
    monkeypatch.setattr(other_eyes, "_WEIGHTS", 2)
    eye = train_tokens(x, np.array([0, 1, 0, 1]), 2, seed=0)
    assert eye.vocabulary.numpy().tolist() == [5]


@pytest.mark.parametrize("name", ALONE)
def test_a_class_that_is_missing_has_the_least_probability(name):
    x, y = samples(name, 2)
    answers = np.asarray(EYES[name](x, 1 + 2 * y, 5, 0)(x))
    np.testing.assert_array_equal(answers[:, [0, 2, 4]], LEAST)
    assert (answers.argmax(axis=1) == 1 + 2 * y).mean() > 0.9


@pytest.mark.parametrize("name", EYES)
def test_samples_of_one_class_give_a_constant(name):
    x = np.arange(12).reshape(4, 3)
    answers = np.asarray(EYES[name](x, np.full(4, 1), 3, 0)(x))
    np.testing.assert_array_equal(answers, [[LEAST, 0, LEAST]] * 4)


def test_samples_without_a_token_in_common_give_the_shares_of_the_classes():
    x = np.arange(1, 13).reshape(4, 3)
    answers = np.exp(train_tokens(x, np.array([0, 1, 1, 1]), 2, seed=0)(x))
    np.testing.assert_allclose(answers, [[0.25, 0.75]] * 4, rtol=1e-6)
    assert np.isfinite(
        train_tokens(np.array(["", "?"]), np.array([0, 1]), 2, 0)(np.array(["x"]))
    ).all()


@pytest.mark.parametrize("name", ALONE)
def test_a_seed_decides_and_nothing_else_does(name, monkeypatch):
    monkeypatch.setattr(other_eyes, "_ROWS", 200)
    monkeypatch.setattr(other_eyes, "_EPOCHS", (1, 3))
    x, y = samples(name, 3)
    state, python_state = np.random.get_state(), python_random.getstate()
    first = EYES[name](x, y, 3, 7)
    assert python_random.getstate() == python_state
    assert all(np.array_equal(a, b) for a, b in zip(state, np.random.get_state(), strict=True))
    np.random.seed(5)
    again, other = EYES[name](x, y, 3, 7), EYES[name](x, y, 3, 8)
    np.random.set_state(state)
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first(x), other(x))


def test_few_samples_are_drawn_where_they_are_large(monkeypatch):
    x, y = table(2)
    monkeypatch.setattr(other_eyes, "_TREE_WORK", 100 * 3 * 10)
    # Of ten samples scikit-learn's trees are small.
    assert train_trees(x, y, 2, seed=0).nodes < 100 * 19
    x, y = sequences(2)
    monkeypatch.setattr(other_eyes, "_TOKEN_WORK", 2 * 12 * 5)
    assert train_tokens(x, y, 2, seed=0).size < 20


@pytest.mark.parametrize("name", EYES)
@pytest.mark.parametrize(
    "x, y, told",
    [
        (np.ones((3, 2)), [0, 1], r"a label for each of at least one sample, received labels \(2,"),
        (np.ones((0, 2)), [], "at least one sample"),
        (np.ones((2, 2)), [0, 2], "whole numbers from 0 to 1, received int64 from 0 to 2"),
        (np.ones((2, 2)), [-1, 0], "whole numbers from 0 to 1, received int64 from -1 to 0"),
        (np.ones((2, 2)), [0.0, 0.5], "whole numbers from 0 to 1, received float64"),
    ],
    ids=["lengths", "none", "above", "below", "shares"],
)
def test_labels_that_are_none_are_refused(name, x, y, told):
    with pytest.raises(ValueError, match=f"y: expected {told}|y: expected .*{told}"):
        EYES[name](x, np.array(y), 2, 0)


@pytest.mark.parametrize("dtype, shape", [("uint8", (8, 8, 1)), ("float64", (8, 8))])
def test_a_small_network_learns_images_of_any_size(dtype, shape):
    x, y = images(3, dtype=dtype)
    x = x.reshape(-1, *shape)
    eye = train_net(x, y, 3, seed=0)
    assert eye.name == "small_net" and accuracy(eye, x, y) > 0.95
    assert not eye.trainable_weights
    larger = np.pad(x, [(0, 0), (3, 2), (0, 7), (0, 0)][: x.ndim])
    assert np.asarray(eye(larger)).shape == (300, 3)


@pytest.fixture
def short(monkeypatch):
    """Networks learn little, in little time."""
    monkeypatch.setattr(other_eyes, "_EPOCHS", (1, 3))


def test_the_scale_of_numbers_does_not_matter_to_networks(short):
    x, y = images(3)
    scaled = train_net(1000 * x - 5000, y, 3, seed=0)(1000 * x - 5000)
    np.testing.assert_allclose(np.exp(scaled), np.exp(train_net(x, y, 3, seed=0)(x)), atol=0.05)


@pytest.mark.parametrize("side, most", [(8, 0.4e6), (32, 4.08e6), (100, 5e6), (224, 5e6)])
def test_a_small_network_costs_a_tenth_of_a_resnet_20_at_most(side, most):
    net = small_net(np.zeros((1, side, side, 3), np.uint8), classes=10, seed=0)
    assert multiply_adds(net, (side, side, 3), "uint8") < most


def test_a_student_learns_the_mean_of_truth_and_classifier():
    x, y = images(2)
    probs = np.tile(np.float32([0.2, 0.1, 0.7]), (len(y), 1))
    student = train_net(x, y, 3, seed=0, probs=probs)
    assert student.name == "student"
    answers = np.exp(student(x))
    for label, wanted in enumerate([[0.6, 0.05, 0.35], [0.1, 0.55, 0.35]]):
        np.testing.assert_allclose(answers[y == label].mean(axis=0), wanted, atol=0.05)
    alone = train_net(x[:1], y[:1], 3, seed=0, probs=probs[:1])
    assert np.isfinite(alone(x[:1])).all()


@pytest.mark.parametrize("kind", ["table", "whole numbers", "sequences", "texts", "flags"])
def test_a_student_sees_what_other_eyes_see(kind, monkeypatch):
    x, y = {
        "table": lambda: table(2),
        "whole numbers": lambda: (np.round(10 * table(2)[0]).astype(np.int16), table(2)[1]),
        "sequences": lambda: sequences(2),
        "texts": lambda: (TEXTS, LABELS),
        "flags": lambda: (table(2)[0] > 0, (table(2)[0][:, 1] > 0).astype(int)),
    }[kind]()
    probs = np.eye(2, dtype=np.float32)[y]
    monkeypatch.setattr(other_eyes, "_EPOCHS", (40, 40))
    student = train_net(x, y, 2, seed=0, probs=probs)
    assert accuracy(student, x, y) > 0.9
    monkeypatch.setattr(other_eyes, "_EPOCHS", (1, 1))
    once, again = (np.asarray(train_net(x, y, 2, seed=0, probs=probs)(x)) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert np.isfinite(student(np.zeros_like(x[:2]))).all()


def test_a_column_that_was_constant_says_nothing_to_a_network():
    x, y = table(2)
    x[:, 2] = 1e9
    eye = train_net(x, y, 2, seed=0)
    np.testing.assert_allclose(eye(x * [1, 1, 3]), eye(x), atol=1e-3)
    assert accuracy(eye, x, y) > 0.9


def test_the_best_epoch_counts():
    """Labels by chance: each epoch learns them better by heart, and the held-back ones worse."""
    x, _ = images(3)
    y = np.random.default_rng(1).integers(0, 3, len(x))
    eye = train_net(x, y, 3, seed=0)
    held_back = other_eyes._drawn(len(x), len(x), 0)[:30]
    # Three equal shares have 1.1.
    assert -np.asarray(eye(x))[held_back, y[held_back]].mean() < 1.3


@pytest.mark.parametrize("passes, epochs", [(0, 3), (2700, 10), (10**9, 50)])
def test_work_is_bounded_and_shown(passes, epochs, monkeypatch):
    class Shown(Exception):
        pass

    def bar(title, total, *, shown):
        raise Shown(title, total, shown)

    monkeypatch.setattr(progress, "Bar", bar)
    monkeypatch.setattr(other_eyes, "_PASSES", passes)
    for title in ("training", ""):
        # Of 270 samples four batches of 64.
        with pytest.raises(Shown) as told:
            train_net(*images(3), 3, seed=0, title=title)
        assert told.value.args == (title, 4 * epochs, bool(title))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_networks_take_finite_numbers_alone(value):
    x, y = images(2)
    x[3, 2, 2] = value
    with pytest.raises(ValueError, match="x: expected finite numbers, received NaN or infinity"):
        train_net(x, y, 2, seed=0)


def test_half_precision_elsewhere_changes_no_network(short):
    x, y = images(2)
    wanted = np.asarray(train_net(x, y, 2, seed=0)(x))
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        found = np.asarray(train_net(x, y, 2, seed=0)(x))
    finally:
        keras.config.set_dtype_policy(before)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "shape, dtype, wanted",
    [
        ((14,), "float32", ("trees",)),
        ((14,), "bool", ("trees",)),
        ((14,), "uint8", ("trees",)),
        ((), "float32", ("trees",)),
        ((5, 3), "float64", ("trees",)),
        ((4096,), "float32", ("trees",)),
        ((4097,), "float32", ()),
        ((None,), "float32", ()),
        ((None, 3), "float32", ()),
        ((28, 28), "uint8", ()),
        ((28, 28, 1), "float32", ()),
        ((None, None, 3), "uint8", ()),
        ((28, 29, 1), "float32", ("small_net",)),
        ((224, 224, 3), "uint8", ("small_net",)),
        ((224, 224, 5), "uint8", ()),
        ((), "string", ("tokens",)),
        ((1,), "string", ("tokens",)),
        ((2,), "string", ()),
        ((None,), "string", ()),
        ((40,), "int32", ("trees", "tokens")),
        ((None,), "int64", ("tokens",)),
        ((5000,), "int64", ("tokens",)),
    ],
)
def test_who_sees_what(shape, dtype, wanted):
    assert eyes_for(shape, dtype) == wanted
    assert set(wanted) <= set(EYES)


@pytest.mark.parametrize(
    "shape, dtype, wanted",
    [
        ((28, 28), "float32", ("small_net", "student")),
        ((None, None, 3), "uint8", ("small_net", "student")),
        ((14,), "float32", ("trees", "student")),
        ((), "string", ("tokens", "student")),
        ((5000,), "float32", ()),
    ],
)
def test_who_sees_what_by_name(shape, dtype, wanted):
    assert eyes_for(shape, dtype, by_name=True) == wanted


def test_samples_show_whether_numbers_are_tokens():
    random = np.random.default_rng(0)
    tokens = random.zipf(1.3, (200, 30)) % 5000
    tokens[:, 20:] *= random.random((200, 1)) < 0.5  # Filled up with 0.
    tokens[:, 0] = 101  # As some start.
    rows = random.integers(1000, 10**6, 200)
    a_table = np.stack([random.integers(0, 90, 200), rows, random.integers(0, 9, 200)], axis=1)
    assert look_like_tokens(tokens) and look_like_tokens(tokens.astype(np.float32))
    assert not look_like_tokens(a_table)
    for others in (tokens - 1, tokens + 0.5, tokens % 256, tokens[:0], tokens[0], 0 * tokens):
        assert not look_like_tokens(others)
    assert not look_like_tokens(np.where(tokens == 101, math.nan, tokens))
    assert eyes_for((30,), "int32", tokens) == ("tokens",)
    assert eyes_for((30,), "float32", tokens) == ("trees", "tokens")
    assert eyes_for((3,), "int32", a_table) == ("trees",)
