"""A second head on the features of a classifier, or on the `View` of its images."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from btcp_tf.methods import reference_index
from btcp_tf.networks import evidence_layers
from btcp_tf.networks.evidence_layers import HeadEvidence, standard_scale

_SMOOTHING = 0.1

_BATCH = 256

_STEPS = 2400

_MOST_PASSES = 100

_STEPS_PER_CALL = 50


def train_head(
    vectors: np.ndarray,
    labels: np.ndarray,
    classes: int,
    seed: int,
    name: str = "head",
    faint: float = 0.0,
) -> HeadEvidence:
    """Trains a second head on training samples of a classifier.

    Dropout and smoothed labels keep it from knowing the samples by heart.

    Args:
      vectors: Features `[n, d]`; or views `[n, v + 1]`; perhaps in a file: a part of them is in
        memory at a time.
      labels: True classes, `[n]`.
      classes: Number of classes, k.
      seed: Seed of weights, dropout and order.
      name: Name of the layer: "head", or "image_head" for views.
      faint: For views, see `evidence_layers.faded`.
    """
    of = reference_index.moments(vectors, faint)
    mean, scale = of.mean, _scale(of) if name == "head" else standard_scale(of.spread)
    head = HeadEvidence(len(mean), classes, faint=faint, name=name)

    def points(rows: np.ndarray) -> np.ndarray:
        return (evidence_layers.as_points(vectors[rows], faint) - mean) * scale

    # Seeds of its own: the caller's random numbers stay what they were.
    first, second = (keras.initializers.GlorotUniform(seed + n) for n in range(2))
    model = keras.Sequential(
        [
            keras.Input((len(mean),)),
            layers.Dense(head.hidden, "relu", kernel_initializer=first, dtype="float32"),
            layers.Dropout(0.5, seed=seed, dtype="float32"),
            layers.Dense(classes, kernel_initializer=second, dtype="float32"),
        ]
    )
    _train(model, points, labels, _order(len(vectors), seed))
    head.set_weights([mean, scale, *model.get_weights()])
    return head


def _train(
    model: keras.Model,
    points: Callable[[np.ndarray], np.ndarray],
    labels: np.ndarray,
    order: np.ndarray,
) -> None:
    """Trains a model on batches of rows `order` `[steps, batch]`; `points` gives those of rows.

    Without `fit`, which on few samples takes longer to build its graph than for these steps.
    """
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(2e-3, len(order)))
    optimizer.build(model.trainable_variables)
    batch, width = order.shape[1], model.input_shape[1]

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_smoothed_cross_entropy(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, batch, width), tf.float32),
            tf.TensorSpec((None, batch), tf.int64),
        ],
        autograph=False,
        jit_compile=False,
    )
    def steps(x: tf.Tensor, y: tf.Tensor) -> None:
        def body(number: tf.Tensor) -> list[tf.Tensor]:
            step(x[number], y[number])
            return [number + 1]

        tf.while_loop(lambda number: number < tf.shape(y)[0], body, [tf.constant(0)])

    # TensorFlow warns where calls of one function make many graphs; here each model has one.
    graph = steps.get_concrete_function()
    # In parts: the interpreter hears Ctrl-C between them.
    for start in range(0, len(order), _STEPS_PER_CALL):
        rows = order[start : start + _STEPS_PER_CALL]
        x = points(rows.ravel()).reshape(*rows.shape, width)
        graph(tf.constant(x, tf.float32), tf.constant(labels[rows], tf.int64))


def _scale(of: reference_index.Moments) -> np.ndarray:
    """Scale `[d]` that standardizes features."""
    # A column of rounding errors is a constant; elsewhere it may be none.
    varies = of.spread > 1e-5 * of.largest
    return np.where(varies, 1.0 / np.where(varies, of.spread, 1.0), 0.0)


def _order(n: int, seed: int) -> np.ndarray:
    """Rows of n samples, each pass in an order of its own: `[steps, batch]`."""
    batch = min(_BATCH, n)
    passes = min(_MOST_PASSES, -(-_STEPS * batch // n))
    random = np.random.default_rng(seed)
    order = np.concatenate([random.permutation(n) for _ in range(passes)])
    return order[: len(order) // batch * batch].reshape(-1, batch)


def _smoothed_cross_entropy(labels: Any, logits: Any) -> Any:
    log_probs = ops.log_softmax(logits, axis=1)
    of_label = ops.take_along_axis(log_probs, ops.cast(labels, "int32")[:, None], axis=1)[:, 0]
    return -((1.0 - _SMOOTHING) * of_label + _SMOOTHING * ops.mean(log_probs, axis=1))
