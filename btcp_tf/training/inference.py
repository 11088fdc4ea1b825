"""Outputs of Keras models over many samples, in batches."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.core.progress import Bar
from btcp_tf.core.rows import Rows
from btcp_tf.data import named_inputs
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.networks.classifiers import named_tensors
from btcp_tf.networks.dropout_passes import dropout_models


class Inference:
    """A model in inference mode over arrays of any length, on one device.

    One device also under a distribution strategy: no replica is ever left with
    an empty batch, and the outputs do not depend on the number of devices.

    Args:
      model: Functional.
      batch_size: Samples at once.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Rescaling(10.0)])
    >>> Inference(model, batch_size=2)(np.ones((3, 2), np.float32)).shape
    (3, 2)
    """

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        self._batch_size = batch_size
        self._call = traced(model, named_tensors(model))

    def __call__(self, inputs: Inputs, title: str = "") -> Any:
        """Outputs for all `inputs`, as NumPy arrays; `title` shows a progress bar."""
        return _in_batches(self._call, inputs, self._batch_size, title)


def traced(model: Callable[..., Any], like: Any) -> Callable[[Any], Any]:
    """A model in inference mode as one graph.

    Args:
      model: Called with inputs and `training=False`.
      like: Its symbolic input, or several by name.
    """
    spec = named_inputs.each(lambda one: tf.TensorSpec((None, *one.shape[1:]), one.dtype), like)
    return tf.function(
        lambda x: model(x, training=False), input_signature=[spec], jit_compile=False
    ).get_concrete_function()


def _in_batches(call: Callable, inputs: Inputs, batch_size: int, title: str) -> Any:
    starts = range(0, named_inputs.count(inputs), batch_size)
    bar = Bar(title, len(starts), shown=bool(title))
    rows: list[Rows] = []
    for number, start in enumerate(starts, 1):
        part = named_inputs.take(inputs, slice(start, start + batch_size))
        batch = call(named_inputs.each(tf.constant, part))
        tensors = tf.nest.flatten(batch)
        rows = rows or [Rows() for _ in tensors]
        for own, tensor in zip(rows, tensors, strict=True):
            own.add(tensor.numpy())
        bar.update(number)
    return tf.nest.pack_sequence_as(batch, [own.array() for own in rows])


def sample_dropout(
    network: keras.Model,
    images: np.ndarray,
    *,
    passes: int,
    seed: int,
    batch_size: int,
    title: str = "",
) -> np.ndarray:
    """Mean class probabilities of passes with dropout on (Gal and Ghahramani, 2016).

    The network itself takes no part and is left bit-identical, see `networks.dropout_models`.

    Args:
      network: From `networks.assemble`.
      images: `[n, ...]`.
      passes: Stochastic passes for each image, at least 1.
      seed: Seed of the masks.
      batch_size: Images at once.
      title: Shows a progress bar under this title.

    Returns:
      `[n, k]` float32.
    """
    return _in_batches(dropout_mean(network, passes, seed), images, batch_size, title)


def dropout_mean(network: keras.Model, passes: int, seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Images `[n, ...]` → their mean probabilities `[n, k]`, as one graph; see `sample_dropout`."""
    before, after = dropout_models(network, seed)

    @tf.function(reduce_retracing=True, jit_compile=False)
    def mean(batch: tf.Tensor) -> tf.Tensor:
        fixed = before(batch, training=False)
        total = tf.zeros((tf.shape(batch)[0], after.output_shape[-1]))
        for _ in tf.range(passes):
            total += after(fixed, training=False)
        return total / passes

    return mean
