"""Outputs for anyone's arrays and datasets: inputs, labels and outputs are checked."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import metrics
from btcp_tf.core import wording
from btcp_tf.core.rows import Rows
from btcp_tf.data import named_inputs
from btcp_tf.data.input_checks import InputsWatch, Ranges
from btcp_tf.data.input_checks import check_labels as check_labels
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.networks import classifiers
from btcp_tf.training.inference import Inference

_BLOCK = 65_536
"""Outputs that are checked at once."""

_NO_BATCHES = "x: expected a dataset of batches, received one without any"


class Outputs(NamedTuple):
    """A model's outputs for n inputs, and what else is known of these."""

    outputs: list[np.ndarray]
    """Each `[n, ...]`."""
    labels: Any
    """Labels that came with the inputs, or beside them; unchecked."""
    hashes: np.ndarray | None
    """`sample_hashes` of the inputs, uint64 `[n]`; None: not asked for."""
    input_range: Ranges
    """None: text."""


class CheckedInference:
    """A model in inference mode over arrays or datasets, its inputs and outputs checked.

    Args:
      model: Functional.
      batch_size: Inputs at once.
    """

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        metrics.whole_number("batch_size", batch_size, "a whole number >= 1", 1)
        self._infer = Inference(model, batch_size)
        self._like = classifiers.named_tensors(model)

    def __call__(
        self,
        x: Any,
        y: Any = None,
        title: str = "",
        *,
        like: Ranges = None,
        hashed: bool = False,
        beside: Callable[[Inputs, list[np.ndarray]], np.ndarray] | None = None,
    ) -> Outputs:
        """Outputs for all inputs.

        A dataset is gone through once, for inputs and labels together: it may be shuffled anew the
        next time.

        Args:
          x: Inputs `[n, ...]`, several in a dictionary, list or tuple; or a dataset of batches
            (inputs, labels).
          y: Labels beside arrays.
          title: Shows a progress bar under this title, for arrays.
          like: The range that inputs are compared with; None: with none.
          hashed: Whether hashes are asked for.
          beside: (inputs, the model's outputs for them) → one more output.

        Raises:
          ValueError: If inputs do not fit the model, are not finite or far from `like`, or outputs
            are not finite.
        """
        watch = InputsWatch(like)
        parts: list[Rows] = []
        labels, hashes = [], []
        for batch, batch_labels in batches(x, y):
            inputs, kinds = checked(batch, self._like)
            watch.see(inputs, kinds)
            if not is_dataset(x):
                watch.end()  # Before long work.
            if hashed:
                hashes.append(named_inputs.sample_hashes(inputs))
            labels += batch_labels
            outputs = self._outputs(inputs, "" if is_dataset(x) else title)
            outputs = outputs if beside is None else [*outputs, beside(inputs, outputs)]
            parts = parts or [Rows() for _ in outputs]
            for rows, output in zip(parts, outputs, strict=True):
                rows.add(output)
        watch.end()
        if not parts:
            raise ValueError(_NO_BATCHES)
        outputs = [rows.array() for rows in parts]
        _check_finite(outputs)
        return Outputs(
            outputs,
            np.concatenate(labels) if labels else y,
            np.concatenate(hashes) if hashed else None,
            watch.range,
        )

    def _outputs(self, inputs: Inputs, title: str) -> list[np.ndarray]:
        try:
            outputs = self._infer(inputs, title)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"x: expected inputs that the classifier can take, received {_shapes(inputs)}: "
                f"{classifiers.reason(error)}"
            ) from error
        # A model with one output returns no list.
        return outputs if isinstance(outputs, list) else [outputs]


def is_dataset(x: Any) -> bool:
    """Whether x is a `tf.data.Dataset`, a `keras.utils.PyDataset` or something else of batches that
    has a length and can be gone through again, such as a loader of PyTorch."""
    return hasattr(x, "element_spec") or isinstance(x, keras.utils.PyDataset) or _is_loader(x)


_ARRAYS = ("__array__", "shape", "to_numpy")
"""What arrays, tensors and tables of any library have at least one of."""


def _is_loader(x: Any) -> bool:
    is_other = isinstance(x, Sequence | Set | Mapping | Iterator)
    if is_other or any(hasattr(x, name) for name in _ARRAYS):
        return False
    return hasattr(x, "__len__") and hasattr(x, "__iter__")


def batches(x: Any, y: Any) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """Batches of inputs, each with its labels where a dataset has some."""
    if not is_dataset(x):
        refuse_iterator(x, "x")
        yield x, []
        return
    if y is not None:
        raise ValueError("y: expected none beside a dataset, received labels")
    for item in _items(x):
        inputs, *labels = item if isinstance(item, tuple) else (item,)
        # A dataset may say that it has none by None in their place.
        yield inputs, [np.asarray(column) for column in labels[:1] if column is not None]


def refuse_iterator(x: Any, argument: str) -> None:
    """ValueError for a generator, which is empty the second time."""
    if isinstance(x, Iterator):
        raise ValueError(
            f"{argument}: expected arrays or a dataset, received a {type(x).__name__}, which can "
            "be gone through once: write it as a class with __len__ and __iter__, or as a "
            "keras.utils.PyDataset, or give tf.data.Dataset.from_generator(...)"
        )


def _items(x: Any) -> Iterator[Any]:
    """The batches of a dataset, each (inputs, labels) or inputs alone."""
    if isinstance(x, keras.utils.PyDataset):
        if (count := x.num_batches) is None:
            raise ValueError("x: expected a dataset that ends, received an infinite one")
        yield from (x[number] for number in range(count))
        return
    if hasattr(x, "element_spec"):
        # It has a length, too, but no number of batches where it is infinite.
        if int(x.cardinality()) == -1:
            raise ValueError("x: expected a dataset that ends, received an infinite one")
        yield from x
        return
    # Loaders put lists together where datasets have tuples.
    yield from (tuple(item) if isinstance(item, list) else item for item in x)


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


def _shapes(inputs: Inputs) -> str:
    """The shapes of inputs, for errors."""
    texts = {name: wording.shape_text(array.shape) for name, array in named_inputs.items(inputs)}
    return ", ".join(text if name is None else f"{name} {text}" for name, text in texts.items())


def checked(batch: Any, like: Any, argument: str = "x") -> tuple[Inputs, Any]:
    """Inputs as a model takes them, see `check_inputs`, and the kinds of the types they came in.

    Args:
      batch: An array; or several, in a dictionary by name, or in order in a list or tuple.
      like: The model's symbolic input, or several by name.
      argument: Its name, for errors, which name the input.

    Raises:
      ValueError: If one is missing or does not fit, or they are not of the same n samples.
    """
    batch = rows_of(batch, like, argument)
    kinds = named_inputs.each(lambda array: array.dtype.kind, batch)
    if not isinstance(like, dict):
        return check_inputs(batch, tuple(like.shape[1:]), like.dtype, argument), kinds
    inputs = {}
    for name, array in batch.items():
        shape = tuple(like[name].shape[1:])
        # A column of a table.
        column = array[:, None] if array.ndim == 1 and shape == (1,) else array
        where = named_inputs.place(argument, name)
        inputs[name] = check_inputs(column, shape, like[name].dtype, where)
    return inputs, kinds


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


def rows_of(x: Any, like: Any, argument: str = "x") -> Inputs:
    """Inputs as arrays `[n, ...]` of the same n samples, several by name; their shapes and types
    are not looked at.

    Args:
      x: An array; or several, in a dictionary by name, or in order in a list or tuple.
      like: The model's symbolic input, or several by name.
      argument: Its name, for errors.
    """
    refuse_iterator(x, argument)
    inputs = named_inputs.by_name(x, [*like] if isinstance(like, dict) else (), argument)
    arrays = {}
    for name, one in named_inputs.items(inputs):
        where = named_inputs.place(argument, name)
        arrays[name] = metrics.array(where, one)
        if not arrays[name].ndim:
            raise ValueError(
                f"{where}: expected inputs [n, ...], received {one!r:.40}; give an array, of a "
                "file what it holds: pandas.read_csv(path).to_numpy()"
            )
    if None in arrays:
        return arrays[None]
    named_inputs.check_count(arrays, argument)
    return arrays


def random_rows(
    x: Any, y: Any, most: int, size: int = 2**62, like: Any = None
) -> tuple[Inputs, np.ndarray | None]:
    """At most so many samples: any of arrays, the first of a dataset.

    Args:
      x: Inputs, or a dataset of batches (inputs, labels).
      y: Labels beside arrays; None: there are none.
      most: Their number.
      size: Bytes of their inputs, at most, unless one sample takes more.
      like: The model's symbolic inputs by name, where it has several.
    """
    if not is_dataset(x):
        x = rows_of(x, like)
        most = min(most, _within(x, size))
        rows = np.random.default_rng(0).permutation(named_inputs.count(x))[:most]
        return named_inputs.take(x, rows), None if y is None else np.asarray(y)[rows]
    inputs: list[Inputs] = []
    labels: list[np.ndarray] = []
    for batch, batch_labels in batches(x, None):
        batch = rows_of(batch, like)
        most = min(most, _within(batch, size))
        # Where the length of an input is not fixed, batches differ in it.
        if not inputs or _sides(batch) == _sides(inputs[0]):
            inputs.append(batch)
            labels += list(batch_labels[0])
        if len(labels) >= most:
            break
    if not inputs:
        raise ValueError(_NO_BATCHES)
    return named_inputs.take(named_inputs.concatenated(inputs), slice(most)), np.stack(
        labels[:most]
    )


def _sides(x: Inputs) -> list[tuple[int, ...]]:
    """Shapes of one sample."""
    return [array.shape[1:] for _, array in named_inputs.items(x)]


def _within(x: Inputs, size: int) -> int:
    """Rows that have so many bytes together, at least one."""
    return max(1, size // max(1, named_inputs.size(named_inputs.take(x, slice(1)))))


@contextlib.contextmanager
def errors_name(argument: str) -> Iterator[None]:
    """Puts the name of an argument before the errors that arise inside."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{argument}: {error}") from error
