"""Outputs for anyone's arrays and datasets: inputs, labels and outputs are checked."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import metrics
from btcp_tf.core import wording
from btcp_tf.core.rows import Rows
from btcp_tf.data import overlaps
from btcp_tf.data.input_checks import InputRange, InputWatch
from btcp_tf.data.input_checks import check_labels as check_labels
from btcp_tf.networks import classifiers
from btcp_tf.training.inference import Inference

_BLOCK = 65_536
"""Outputs that are checked at once."""


class Outputs(NamedTuple):
    """A model's outputs for n inputs, and what else is known of these."""

    outputs: list[np.ndarray]
    """Each `[n, ...]`."""
    labels: Any
    """Labels that came with the inputs, or beside them; unchecked."""
    hashes: np.ndarray | None
    """`overlaps.sample_hashes` of the inputs, uint64 `[n]`; None: not asked for."""
    input_range: InputRange | None
    """None: text."""


class CheckedInference:
    """A model in inference mode over arrays or datasets, its inputs and outputs checked.

    Args:
      model: Functional, with one input.
      batch_size: Inputs at once.
    """

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        metrics.whole_number("batch_size", batch_size, "a whole number >= 1", 1)
        self._infer = Inference(model, batch_size)
        self._shape = tuple(model.inputs[0].shape[1:])
        self._dtype = model.inputs[0].dtype

    def __call__(
        self,
        x: Any,
        y: Any = None,
        title: str = "",
        *,
        like: InputRange | None = None,
        hashed: bool = False,
        beside: Callable[[np.ndarray, list[np.ndarray]], np.ndarray] | None = None,
    ) -> Outputs:
        """Outputs for all inputs.

        A dataset is gone through once, for inputs and labels together: it may be shuffled anew the
        next time.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels beside an array.
          title: Shows a progress bar under this title, for arrays.
          like: The range that inputs are compared with; None: with none.
          hashed: Whether hashes are asked for.
          beside: (inputs, the model's outputs for them) → one more output.

        Raises:
          ValueError: If inputs do not fit the model, are not finite or far from `like`, or outputs
            are not finite.
        """
        watch = InputWatch(like)
        parts: list[Rows] = []
        labels, hashes = [], []
        for batch, batch_labels in batches(x, y):
            inputs = check_inputs(batch, self._shape, self._dtype)
            if self._dtype != "string":
                watch.see(inputs, np.asarray(batch).dtype.kind)
                if not is_dataset(x):
                    watch.end()  # Before long work.
            if hashed:
                hashes.append(overlaps.sample_hashes(inputs))
            labels += batch_labels
            outputs = self._outputs(inputs, "" if is_dataset(x) else title)
            outputs = outputs if beside is None else [*outputs, beside(inputs, outputs)]
            parts = parts or [Rows() for _ in outputs]
            for rows, output in zip(parts, outputs, strict=True):
                rows.add(output)
        watch.end()
        if not parts:
            raise ValueError("x: expected a dataset of batches, received one without any")
        outputs = [rows.array() for rows in parts]
        _check_finite(outputs)
        return Outputs(
            outputs,
            np.concatenate(labels) if labels else y,
            np.concatenate(hashes) if hashed else None,
            watch.range,
        )

    def _outputs(self, inputs: np.ndarray, title: str) -> list[np.ndarray]:
        try:
            outputs = self._infer(inputs, title)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "x: expected inputs that the classifier can take, received "
                f"{wording.shape_text(inputs.shape)}: {classifiers.reason(error)}"
            ) from error
        # A model with one output returns no list.
        return outputs if isinstance(outputs, list) else [outputs]


def is_dataset(x: Any) -> bool:
    """Whether x is a `tf.data.Dataset`."""
    return hasattr(x, "element_spec")


def batches(x: Any, y: Any) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """Batches of inputs, each with its labels where a dataset has some."""
    if not is_dataset(x):
        yield x, []
        return
    if y is not None:
        raise ValueError("y: expected none beside a dataset, received labels")
    if int(x.cardinality()) == -1:
        raise ValueError("x: expected a dataset that ends, received an infinite one")
    for item in x:
        inputs, *labels = item if isinstance(item, tuple) else (item,)
        yield inputs, [np.asarray(column) for column in labels[:1]]


def _check_finite(outputs: Sequence[np.ndarray]) -> None:
    for output in outputs:
        for start in range(0, len(output), _BLOCK):
            block = output[start : start + _BLOCK]
            rows = np.isfinite(block).reshape(len(block), -1).all(axis=1)
            if not rows.all():
                raise ValueError(
                    "classifier: expected finite answers, received NaN or infinity for input "
                    f"{start + int(np.argmin(rows))}"
                )


def check_inputs(
    batch: Any, shape: Sequence[int | None], dtype: str, name: str = "x"
) -> np.ndarray:
    """Inputs as a model takes them.

    Args:
      batch: `[n, *shape]`, n >= 1.
      shape: Shape of one input; None stands for any length.
      dtype: The model's.
      name: Name of the argument, for errors.

    Raises:
      ValueError: If the inputs have another shape, or values that the type does not hold.

    >>> check_inputs([[1, 2]], (2,), "float32")
    array([[1., 2.]], dtype=float32)
    >>> check_inputs([[0.5, 2]], (2,), "uint8")
    Traceback (most recent call last):
    ValueError: x: expected uint8, received float64 with 0.5
    """
    batch = metrics.array(name, batch)
    if dtype == "string":
        if batch.dtype.kind not in "OSU" or not all(
            isinstance(one, str | bytes) for one in batch.flat
        ):
            raise ValueError(f"{name}: expected text, received {batch.dtype}")
    else:
        if batch.dtype.kind not in "biuf":
            raise ValueError(f"{name}: expected numbers, received {batch.dtype}")
        if (dtype == "bool" or "int" in dtype) and batch.dtype != dtype:
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            with np.errstate(invalid="ignore"):
                fits = (batch >= low) & (batch <= high) & (batch % 1 == 0)
            if not fits.all():
                raise ValueError(
                    f"{name}: expected {dtype}, received {batch.dtype} with {batch[~fits].flat[0]}"
                )
        batch = batch.astype(dtype, copy=False)
    fits = len(batch.shape) == len(shape) + 1 and all(
        wanted in (None, size) for wanted, size in zip(shape, batch.shape[1:], strict=True)
    )
    if not fits or not len(batch):
        raise ValueError(
            f"{name}: expected inputs of shape {wording.shape_text(('n', *shape))}, at least one, "
            f"received {wording.shape_text(batch.shape)}"
        )
    return batch


def rows_of(x: Any) -> np.ndarray:
    """Inputs `[n, ...]` as an array."""
    rows = metrics.array("x", x)
    if not rows.ndim:
        raise ValueError(f"x: expected inputs [n, ...], received {x!r:.40}")
    return rows


def random_rows(x: Any, y: Any, most: int, size: int = 2**62) -> tuple[np.ndarray, Any]:
    """At most so many labeled samples: any of arrays, the first of a dataset.

    Args:
      x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
      y: Labels beside an array.
      most: Their number.
      size: Bytes of their inputs, at most, unless one sample takes more.
    """
    if not is_dataset(x):
        x = rows_of(x)
        most = min(most, _within(x, size))
        rows = np.random.default_rng(0).permutation(len(x))[:most]
        return x[rows], np.asarray(y)[rows]
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for batch, batch_labels in batches(x, None):
        batch = np.asarray(batch)
        most = min(most, _within(batch, size))
        # Where the length of an input is not fixed, batches differ in it.
        if not inputs or batch.shape[1:] == inputs[0].shape:
            inputs += list(batch)
            labels += list(batch_labels[0])
        if len(inputs) >= most:
            break
    return np.stack(inputs[:most]), np.stack(labels[:most])


def _within(x: np.ndarray, size: int) -> int:
    """Rows that have so many bytes together, at least one."""
    return max(1, size // max(1, x[:1].nbytes))


@contextlib.contextmanager
def errors_name(argument: str) -> Iterator[None]:
    """Puts the name of an argument before the errors that arise inside."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{argument}: {error}") from error
