"""From arrays to batches of a `tf.data.Dataset`, shuffled anew each epoch."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core import rows

if TYPE_CHECKING:
    import tensorflow as tf


def epoch_variable() -> "tf.Variable":
    """An int64 epoch number, from 0, for `batches` to read.

    Create it outside of a distribution strategy's scope.
    """
    import tensorflow as tf

    # tf.data runs on the host and cannot read a variable of a GPU.
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch")


def batches(
    arrays: tuple[np.ndarray, ...],
    batch_size: int,
    *,
    seed: int = 0,
    epoch: "tf.Variable | None" = None,
) -> "tf.data.Dataset":
    """One pass over the rows of some arrays as a `tf.data.Dataset`.

    The order of the rows depends on `seed` and the value of `epoch` alone, so
    a run that resumes at some epoch sees what it would have seen. The value is
    read when an iterator is created: Keras' `fit` does that for each epoch,
    after the `on_epoch_begin` of its callbacks.

    Args:
      arrays: Arrays of the same length n. They stay as they are (uint8 stays
        uint8). TensorFlow holds one copy of each, but of large ones, which are
        perhaps in a file: their rows are read as they are needed.
      batch_size: Rows in a batch, over all replicas. The last batch may be
        smaller; no row is dropped.
      seed: Seed of the orders.
      epoch: From `epoch_variable`; None: rows in their order.

    Returns:
      Dataset of ceil(n / batch_size) tuples of one batch of each array.
    """
    import tensorflow as tf

    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"arrays: expected the same number of rows (at least one) in each, received "
            f"{[len(array) for array in arrays]}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, received {batch_size}")
    (n,) = lengths
    readers = [_reader(array) for array in arrays]

    def slices(_):
        order = tf.range(n, dtype=tf.int64) if epoch is None else shuffled(n, seed, epoch)
        # Whole batches of the order, not row after row: an epoch on features spends a tenth of
        # its time on that. So it would on handing each batch to another thread: no prefetch().
        whole = n - n % batch_size
        dataset = tf.data.Dataset.from_tensor_slices(tf.reshape(order[:whole], [-1, batch_size]))
        if whole == n:
            return dataset
        return dataset.concatenate(tf.data.Dataset.from_tensors(order[whole:]))

    return plain(
        tf.data.Dataset.range(1)
        .flat_map(slices)
        .map(lambda index: tuple(read(index) for read in readers))
        .apply(tf.data.experimental.assert_cardinality(-(-n // batch_size)))
    )


def shuffled(n: int, seed: int, epoch: "tf.Variable") -> "tf.Tensor":
    """The order of n rows, int64 `[n]`, in an epoch of `batches`."""
    import tensorflow as tf

    return tf.random.experimental.stateless_shuffle(
        tf.range(n, dtype=tf.int64),
        seed=tf.stack([tf.constant(seed, tf.int64), epoch]),
        alg="philox",
    )


def plain(dataset: "tf.data.Dataset") -> "tf.data.Dataset":
    """A data set with the options that `fit` needs."""
    import tensorflow as tf

    options = tf.data.Options()
    # Autotuning makes `fit` wait for up to minutes at the end of an epoch.
    options.autotune.enabled = False
    # One process reads everything; a strategy cuts the batches, not the files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def in_memory(array: np.ndarray) -> bool:
    """Whether TensorFlow gets a copy of an array, and does not read its rows as they are needed."""
    return array.nbytes <= rows.LARGEST


def _reader(array: np.ndarray) -> "Callable[[tf.Tensor], tf.Tensor]":
    """Numbers of rows → these rows of an array, in a graph."""
    import tensorflow as tf

    if in_memory(array):
        # Captured by reference: constants of the graph are limited to 2 GB.
        with tf.device("CPU:0"):
            tensor = tf.convert_to_tensor(array)
        return lambda index: tf.gather(tensor, index)

    # TensorFlow keeps a Python function that a graph calls for ever. This one holds no array: the
    # dataset does so, by `read`.
    held = weakref.ref(array)

    def rows_of(numbers: np.ndarray) -> np.ndarray:
        own = held()
        assert own is not None, "the dataset is in use"
        return own[numbers]

    def read(index: tf.Tensor) -> tf.Tensor:
        part = tf.numpy_function(rows_of, [index], array.dtype)
        part.set_shape([*index.shape, *array.shape[1:]])
        return part

    return read
