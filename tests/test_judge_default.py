"""`Judge.fit` as it is by default, with looks: it takes whatever it took without."""

import itertools
import re
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import btcp_tf
from btcp_tf.methods import other_eyes

pytestmark = pytest.mark.usefixtures("quick_heads")

N = 60


@keras.saving.register_keras_serializable("test_judge_default")
class OwnDropout(layers.Dropout):
    """It takes other arguments than Keras' own."""

    def __init__(self, share, **settings):
        super().__init__(share, **{name: settings[name] for name in settings if name != "rate"})
        self.share = share

    def call(self, inputs):
        return inputs

    def get_config(self):
        return {"name": self.name, "share": self.share}


@keras.saving.register_keras_serializable("test_judge_default")
class Log(layers.Layer):
    def call(self, inputs):
        return keras.ops.log(inputs)


@keras.saving.register_keras_serializable("test_judge_default")
class Own(keras.Model):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.flat, self.drop, self.last = layers.Flatten(), layers.Dropout(0.3), layers.Dense(2)

    def call(self, inputs, training=False):
        return self.last(self.drop(self.flat(inputs), training=training))


def net(shape, *inner, dtype="float32", answer=("softmax", 2), **settings) -> keras.Model:
    activation, units = answer
    last = layers.Dense(units, activation)
    start = keras.Input(shape, dtype=dtype, **settings)
    return keras.Sequential([start, *inner, layers.Flatten(), last])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random((N, *shape)).astype(np.float32)


def whole(high: int, *shape: int, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, (N, *shape)).astype(dtype)


def words() -> np.ndarray:
    return np.array(["good film", "bad film", "so so"] * (N // 3))


def of_words() -> keras.Model:
    lookup = layers.TextVectorization(vocabulary=["good", "bad"], output_sequence_length=4)
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            lookup,
            layers.Embedding(4, 2),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2, "softmax"),
        ]
    )


def own() -> keras.Model:
    model = Own()
    model(numbers(8, 8, 1)[:2])
    return model


def with_shared_dropout() -> keras.Model:
    inputs = keras.Input((8, 8, 1))
    drop, wide = layers.Dropout(0.3), layers.Conv2D(1, 3, padding="same")
    x = drop(wide(drop(wide(inputs))))
    return keras.Model(inputs, layers.Dense(2, "softmax")(layers.Flatten()(x)))


def of_any_size() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None, None, 1)),
            layers.Conv2D(3, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, "softmax"),
        ]
    )


Case = tuple[Callable[[], keras.Model], Callable[[], np.ndarray]]

ODD: dict[str, Case] = {
    "words": (of_words, words),
    "rows of float64": (lambda: net((5,), dtype="float64"), lambda: numbers(5)),
    "rows of float16": (lambda: net((5,), dtype="float16"), lambda: numbers(5)),
    "rows of bool": (
        lambda: net((6,), layers.Rescaling(1.0), dtype="bool"),
        lambda: numbers(6) > 0.5,
    ),
    "rows in a list": (lambda: net((5,)), lambda: numbers(5).tolist()),
    "one number": (
        lambda: keras.Sequential([keras.Input((1,)), layers.Dense(2)]),
        lambda: numbers(1),
    ),
    "the log of rows": (lambda: net((5,), Log()), lambda: 1e-6 + 1e-3 * numbers(5)),
    "one token": (
        lambda: net((1,), layers.Embedding(9, 3), dtype="int64"),
        lambda: whole(9, 1),
    ),
    "tokens without 0": (
        lambda: net((9,), layers.Rescaling(1.0, -1.0), layers.Embedding(9, 3), dtype="int32"),
        lambda: 1 + whole(9, 9),
    ),
    "sequences": (
        lambda: keras.Sequential(
            [keras.Input((7, 3)), layers.LSTM(4, dropout=0.2), layers.Dense(2)]
        ),
        lambda: numbers(7, 3),
    ),
    "videos": (lambda: net((4, 8, 8, 3)), lambda: numbers(4, 8, 8, 3)),
    "images of 7 x 7": (lambda: net((7, 7, 1), layers.Dropout(0.2)), lambda: numbers(7, 7, 1)),
    "images of 5 channels": (lambda: net((8, 8, 5)), lambda: numbers(8, 8, 5)),
    "gray images": (lambda: net((8, 9)), lambda: numbers(8, 9)),
    "images of any size": (of_any_size, lambda: numbers(9, 9, 1)),
    "images of one color": (lambda: net((8, 8, 1)), lambda: np.ones((N, 8, 8, 1), np.float32)),
    "tensors": (lambda: net((8, 8, 1)), lambda: tf.constant(numbers(8, 8, 1))),
    "logits of pixels": (
        lambda: net((8, 8, 3), layers.Rescaling(1 / 255), dtype="uint8", answer=(None, 2)),
        lambda: whole(256, 8, 8, 3, dtype="uint8"),
    ),
    "a sigmoid": (lambda: net((8, 8, 1), answer=("sigmoid", 1)), lambda: numbers(8, 8, 1)),
    "a fixed batch": (lambda: net(None, batch_shape=(20, 8, 8, 1)), lambda: numbers(8, 8, 1)),
    "a subclass": (own, lambda: numbers(8, 8, 1)),
    "dropout that is shared": (with_shared_dropout, lambda: numbers(8, 8, 1)),
    "dropout of one's own": (
        lambda: net((8, 8, 1), OwnDropout(0.3)),
        lambda: numbers(8, 8, 1),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_classifiers_and_inputs_are_fitted(name):
    make, inputs = ODD[name]
    keras.utils.set_random_seed(0)
    x, y = inputs(), np.arange(N) % 2
    judge = btcp_tf.attach(make(), example=np.asarray(x)[:2])
    judge.fit(x, y, verbose=0)
    assert judge.fitted["samples"] == N
    assert np.isfinite(judge.predict(x)["uncertainty"]).all()


@pytest.mark.parametrize("n", [1, 2, 9, 20, 21])
def test_few_samples_are_enough(n):
    x, y = numbers(8, 8, 1)[:n], np.arange(n) % 2
    assert btcp_tf.attach(net((8, 8, 1))).fit(x, y, verbose=0).fitted["samples"] == n


@pytest.mark.parametrize("offset", [0, 1])
def test_answers_that_are_all_right_or_all_wrong_have_no_looks(offset):
    model, x = net((8, 8, 1)), numbers(8, 8, 1)
    y = (model(x).numpy().argmax(axis=1) + offset) % 2
    judge = btcp_tf.attach(model).fit(x, y, verbose=0)
    assert judge.fitted["looks"] == [] and "too few" in judge.fitted["words"]


def read_once(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """A dataset that is empty when it is read again."""
    rows = iter([(x[start : start + 20], y[start : start + 20]) for start in range(0, len(x), 20)])
    like = tf.TensorSpec((None, *x.shape[1:]), x.dtype), tf.TensorSpec((None,), y.dtype)
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=like)


@pytest.mark.parametrize("shape", [(5,), (8, 8, 1)])
def test_datasets_that_can_be_read_once_have_no_looks(shape, capsys):
    x, y = numbers(*shape), np.arange(N) % 3
    judge = btcp_tf.attach(net(shape, answer=("softmax", 3)))
    judge.fit(read_once(x, y), reference=read_once(x + 0.01, y), evidence=["answer"])
    assert judge.fitted["samples"] == N and judge.fitted["looks"] == []
    assert "on offer" in capsys.readouterr().out


def test_batches_of_a_dataset_may_differ_in_length():
    parts = [(np.ones((30, side, side, 1), np.float32), np.arange(30) % 2) for side in (9, 12)]
    like = tf.TensorSpec((None, None, None, 1), tf.float32), tf.TensorSpec((None,), tf.int64)
    rows = tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=like)
    judge = btcp_tf.attach(of_any_size(), example=parts[0][0])
    judge.fit(rows, verbose=0)
    assert {"mirror", "zoom_in"} < {one["name"] for one in judge.fitted["tried"]}


def test_a_dataset_that_gives_other_samples_each_time_has_no_looks(capsys):
    x, y = numbers(8, 8, 1), np.arange(N) % 3
    readings = itertools.count()
    like = tf.TensorSpec(x.shape, x.dtype), tf.TensorSpec(y.shape, y.dtype)
    rows = tf.data.Dataset.from_generator(
        lambda: iter([(x + np.float32(next(readings) / 100), y)]), output_signature=like
    )
    judge = btcp_tf.attach(net((8, 8, 1), answer=("softmax", 3))).fit(rows)
    assert judge.fitted["looks"] == []
    assert "when read again: mirror, zoom_in" in capsys.readouterr().out


def test_what_is_wrong_with_arguments_is_said_before_other_eyes_learn(monkeypatch):
    monkeypatch.setitem(other_eyes.EYES, "trees", None)
    x, y = numbers(5), np.arange(N) % 2
    judge = btcp_tf.attach(net((5,)))
    bad = x.copy()
    bad[7] = np.nan
    for wrong, message in (
        ({"y": y + 5}, "y: expected labels from 0 to 1"),
        ({"x": bad}, "x: expected finite numbers, received nan in input 7"),
        ({"reference": (bad, y)}, "reference: x: .* nan in input 7"),
        ({"reference": (x, y)}, "60 of 60 samples are among those of the reference"),
        ({"cost": 0.5}, "cost: expected a number >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            judge.fit(**{"x": x, "y": y, "reference": (x + 1, y), "verbose": 0, **wrong})


def test_large_inputs_are_not_copied_all_to_measure_a_spread():
    from btcp_tf.attached import inference

    x, y = numbers(5), np.arange(N)
    some, labels = inference.random_rows(x, y, 40, size=10 * x[0].nbytes)
    assert some.shape == (10, 5)
    np.testing.assert_array_equal(some, x[labels])
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    some, labels = inference.random_rows(rows, None, 40, size=10 * x[0].nbytes)
    np.testing.assert_array_equal(some, x[:10])
    assert inference.random_rows(x, y, 40, size=1)[0].shape == (1, 5)


@pytest.mark.filterwarnings("ignore")
def test_fit_says_beforehand_how_often_the_classifier_answers(capsys):
    """And not what it will not do."""

    def told(shape, **more):
        judge = btcp_tf.attach(net(shape))
        judge.fit(numbers(*shape), np.arange(N) % 2, **more)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if "is faster, and may learn less" in line], lines

    (line,), lines = told((8, 8, 1))
    assert line == (
        "the classifier answers each of 60 held-out samples 2 times, as it is and as a copy; then "
        "it looks again at those that MCP is unsure of; fit(..., looks=(), copies=()) is faster, "
        "and may learn less"
    )
    assert lines[0] == line
    (line,), _ = told((8, 8, 1), looks=())
    assert "2 times" in line and "looks" not in line and "fit(..., copies=()) is faster" in line
    (line,), _ = told((5,), looks=["jitter"])
    assert "samples once; then it looks again" in line and "fit(..., looks=())" in line
    assert not told((5,), looks=())[0] and not told((8, 8, 1), verbose=0)[0]
    with pytest.raises(ValueError, match="expected inputs .*, received 5; give an array"):
        btcp_tf.attach(net((5,))).fit(5, 5)


def test_looking_again_says_how_many_looks_it_takes(capsys):
    judge = btcp_tf.attach(net((8, 8, 1)))
    random = np.random.default_rng(1)
    x = random.random((400, 8, 8, 1)).astype(np.float32)
    judge.fit(x, random.integers(0, 2, 400), looks=["mirror"], copies=(), cost=2.0)
    told = re.search(
        r"looking again at ([0-9]+) inputs that MCP is unsure of, ([0-9]+) looks in all: mirror",
        capsys.readouterr().out,
    )
    count, answers = map(int, told.groups())
    assert 0 < count <= 400 and answers == count  # One look at each.
