"""An exported model that scores batches."""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.core import checks, command, wording
from btcp_tf.core.config import MAX_PIXELS
from btcp_tf.core.wording import shape_text
from btcp_tf.data import folders, input_checks
from btcp_tf.data.images import PIXELS, are_image_sizes, convert, scaled
from btcp_tf.data.input_checks import InputRange
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import SIGNATURE
from btcp_tf.evaluation.tabular import truth, written_number
from btcp_tf.serving import answers
from btcp_tf.serving.inputs import Batch


def _types(parts: Mapping[str, np.dtype]) -> dict[str, str]:
    return {name: "string" if kind.kind == "U" else kind.name for name, kind in parts.items()}


_TYPES, _SECOND_TYPES = _types(answers.ANSWERS), _types(answers.SECOND)
"""What every model answers, and what one with looks does, too: name -> TensorFlow's type."""

MAX_BATCH = 1_000_000


class Scorer:
    """Answers batches with a SavedModel; an actor of Ray Data's `map_batches` as it stands.

        rows.map_batches(predict.Scorer, fn_constructor_args=(model,), batch_size=256, ...)

    A batch is a dict of arrays of n rows: `images`, numbers `[n, ...]` as the model takes them, or
    uint8 images that `data.convert` brings to its size and channels (and `data.scaled` to its
    scale, for a model of float images whose scale is known), text for a model of text; or `files`,
    paths of image files as `data.read_image` takes them. Of a model of several inputs each of them
    by its name. Of a model whose thresholds are by group also `group_input` of its `btcp_tf.json`,
    the name of each row's group: text or whole numbers. Other entries are passed through. Numbers
    may come as text, as CSV has them.

    The answer adds `predicted` int64 `[n]`, `class_name` `[n]`, `probs` float32 `[n, k]`,
    `uncertainty` float32 `[n]` in [0, 1] (higher = less to be trusted), `accept` bool `[n]`, and
    `problem` `[n]`: "", or why the row has no answer, which then is -1, "", NaN, NaN and False. Of
    a model with looks it also adds `second_opinion` int64 `[n]` and `second_probability` float32
    `[n]`, -1 and NaN without an answer; where thresholds are by group, `group` `[n]`, its name.

    Pickled, it is the path of its model, which is loaded again where it is unpickled.
    """

    def __init__(self, model: str | os.PathLike, max_pixels: int = MAX_PIXELS) -> None:
        """Loads a model.

        Args:
          model: A version directory, or the folder of the versions, of which the highest is taken.
          max_pixels: An image file of more is not decoded, and has no answer.

        Raises:
          FileNotFoundError: If there is no model that btcp_tf exported.
          ValueError: If it does not answer as this package's models do.
        """
        self.directory, self._max_pixels = exported.newest(model), max_pixels
        about = exported.read_about(self.directory)
        self.class_names: list[str] = about["class_names"]
        ranges, self._pixels = _intake(self.directory, about)
        # The signature does not keep the model alive.
        self._loaded = _load(self.directory)
        names = [*(about.get("inputs") or {})]
        self.group_input: str = about.get(exported.GROUP_INPUT) or ""
        """Name of the input with the group of each row; "": there is none."""
        wanted = [*(names or ("images",)), *[self.group_input] * bool(self.group_input)]
        self._signature, specs = _signature(
            self.directory, self._loaded, len(self.class_names), wanted
        )
        self._has_second = _SECOND_TYPES.items() <= _output_types(self._signature).items()
        self._range = None if names else ranges
        self.inputs: dict[str, Input] = {}
        """Several inputs, by name; none: there is one."""
        for name in names:
            spec, range_ = specs[name], (ranges or {}).get(name)
            dtype = np.dtype(spec.dtype.as_numpy_dtype)
            self.inputs[name] = Input(name, dtype, tuple(spec.shape[1:]), range_)
        spec = specs[wanted[0]]
        self.dtype = np.dtype(spec.dtype.as_numpy_dtype)
        self.shape: tuple[int | None, ...] = tuple(spec.shape[1:])
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (os.fspath(self.directory), self._max_pixels)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Batch:
        return self.answer(self.prepare(batch))

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels that images can be converted to; None: none can."""
        if (self.dtype != np.uint8 and not self._pixels) or not are_image_sizes(self.shape):
            return None
        height, width, channels = self.shape
        assert height and width and channels
        return height, width, channels

    def check(self, what: str, dtype: np.dtype, shape: Sequence[int]) -> bool:
        """Whether inputs of this type and shape (of one input) have to be converted to be taken.

        Raises:
          ValueError: If they are not taken at all; the message begins with `what`.
        """
        only = Input(what, self.dtype, self.shape, self._range)
        if (dtype.kind in "OSU" or self.dtype == object) and not self.inputs:
            only.check(dtype, shape)
            return False
        is_scaled = self._pixels not in (None, "0_255") and dtype == np.uint8
        fits = answers.fits(shape, self.shape)
        if fits and _keeps_kind(dtype, self.dtype) and not is_scaled:
            return False
        if self.image_shape and dtype == np.uint8 and all(shape):
            if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)):
                return True
        images = ", or uint8 images of any size" if self.image_shape else ""
        raise ValueError(
            f"{what}: expected {self._takes} for each input{images}; "
            f"received {dtype} of shape {shape_text(shape)}"
        )

    def check_named(
        self, what: str, arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    ) -> None:
        """ValueError that begins with `what` unless these are the model's inputs: type and shape
        of one, by name."""
        if arrays.keys() != self.inputs.keys():
            raise ValueError(
                f"{what}: expected {self._takes}, received {', '.join(arrays) or 'none'}"
            )
        for name, one in self.inputs.items():
            one.check(*arrays[name])

    def check_files(self, what: str) -> None:
        """Raises a ValueError that begins with `what` unless the model takes image files."""
        if self.image_shape is None:
            raise ValueError(
                f"{what}: expected a model of gray or color images of one size, in uint8 or with a "
                f"known scale of its pixels (Judge.export(pixels=...)), for image files, received "
                f"one of {self._takes}"
            )

    @property
    def _takes(self) -> str:
        if self.inputs:
            return ", ".join(f"{name}: {one.text}" for name, one in self.inputs.items())
        return Input("", self.dtype, self.shape, None).text

    def prepare(self, batch: Mapping[str, np.ndarray]) -> Batch:
        """A batch with `images`, or inputs by name, as the model takes them, and `problem`; needs
        no TensorFlow.

        Raises:
          ValueError: If the inputs do not fit the model.
        """
        if not isinstance(batch, Mapping):
            raise ValueError(f"batch: expected arrays by name, received {type(batch).__name__}")
        for name in self.inputs or ("images", "files"):
            if name in batch and not np.ndim(batch[name]):
                received = type(batch[name]).__name__
                raise ValueError(f"{name}: expected an array [n, ...], received {received}")
        if self.group_input and self.group_input not in batch:
            raise ValueError(
                f"batch: expected {self.group_input}, the group of each row, as the model's "
                f"thresholds are by group, received {', '.join(batch) or 'none'}"
            )
        if self.inputs:
            return self._with_groups(self._prepared_by_name(batch))
        if "files" in batch:
            images, problem = self._read(batch["files"])
        elif "images" in batch:
            images, problem = self._converted(np.asarray(batch["images"]))
        else:
            raise ValueError(
                f"batch: expected images or files, received {', '.join(batch) or 'none'}"
            )
        rest = {name: column for name, column in batch.items() if name not in ("images", "files")}
        return self._with_groups(rest | {"images": images, "problem": problem})

    def _with_groups(self, prepared: Batch) -> Batch:
        """The same with the names of groups as text, and a problem where a row has none."""
        if not self.group_input:
            return prepared
        given, problem = np.asarray(prepared[self.group_input]), prepared["problem"]
        if given.shape != problem.shape:
            raise ValueError(
                f"{self.group_input}: expected one group for each of {len(problem):,} rows, "
                f"received shape {list(given.shape)}"
            )
        names, wrong = _group_names(given)
        bad = (problem == "") & (wrong != "")
        problem[bad] = [f"{self.group_input}: {reason}" for reason in wrong[bad]]
        return {**prepared, self.group_input: names, "problem": problem}

    def _prepared_by_name(self, batch: Mapping[str, np.ndarray]) -> Batch:
        if missing := [name for name in self.inputs if name not in batch]:
            raise ValueError(
                f"batch: expected {self._takes}, received {', '.join(batch) or 'none'}, without "
                f"{', '.join(missing)}"
            )
        inputs = {}
        problem = np.full(len(next(batch[name] for name in self.inputs)), "", object)
        for name, one in self.inputs.items():
            array = np.asarray(batch[name])
            if len(array) != len(problem):
                raise ValueError(
                    f"{name}: expected {len(problem):,} rows, as of the input before it, received "
                    f"{len(array):,}"
                )
            inputs[name], wrong = one.converted(array)
            bad = (problem == "") & (wrong != "")
            problem[bad] = [f"{name}: {reason}" for reason in wrong[bad]]
        return {**batch, **inputs, "problem": problem}

    def _read(self, files: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Image files as inputs of the model, and what is wrong with each."""
        self.check_files("files")
        shape = self.image_shape
        assert shape is not None
        images = np.zeros((len(files), *shape), np.uint8)

        def read(row: int) -> str:
            pixels, reason = folders.read_image(files[row], shape, self._max_pixels)
            if pixels is not None:
                images[row] = pixels
            return reason

        # Pillow decodes without holding the interpreter.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        problem = np.array(list(self._pool.map(read, range(len(files)))), object)
        return self._scaled(images), problem

    def _converted(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Arrays as inputs of the model, and what is wrong with each row."""
        if self.check("images", images.dtype, images.shape[1:]):
            assert self.image_shape is not None
            images = self._scaled(convert(images, self.image_shape))
            return images, np.full(len(images), "", object)
        return Input("images", self.dtype, self.shape, self._range).converted(images)

    def _scaled(self, images: np.ndarray) -> np.ndarray:
        """uint8 images of the model's size, in its type."""
        if self._pixels is None:
            return images
        return scaled(images, self._pixels).astype(self.dtype, copy=False)

    def answer(self, prepared: Mapping[str, np.ndarray]) -> Batch:
        """The model's answers to a batch from `prepare`."""
        names = [*(self.inputs or ("images",))]
        n = len(prepared["problem"])
        problem = np.array(prepared["problem"], object)
        columns: Batch = {
            "predicted": np.full(n, -1, np.int64),
            "class_name": np.full(n, "", object),
            "probs": np.full((n, len(self.class_names)), np.nan, np.float32),
            "uncertainty": np.full(n, np.nan, np.float32),
            "accept": np.zeros(n, bool),
        }
        if self._has_second:
            columns["second_opinion"] = np.full(n, -1, np.int64)
            columns["second_probability"] = np.full(n, np.nan, np.float32)
        # Rows with a problem go through the model as blank ones: batches of always the same size
        # need memory once.
        if (problem == "").any():
            import tensorflow as tf

            asked = {name: tf.constant(prepared[name]) for name in names}
            if self.group_input:
                asked[self.group_input] = tf.constant(prepared[self.group_input].tolist())
            try:
                outputs = self._signature(**asked)
            except tf.errors.ResourceExhaustedError as error:
                raise MemoryError(wording.one_line(error)) from error
            values = {name: outputs[name].numpy() for name in columns}
            finite = np.isfinite(values["probs"]).all(axis=1)
            for name in ("uncertainty", "second_probability"):
                finite &= np.isfinite(values.get(name, 0.0))
            problem[(problem == "") & ~finite] = "the model's answer is not finite"
            classes = [name.decode("utf-8") for name in values["class_name"]]
            values["class_name"] = np.array(classes, object)
            good = problem == ""
            for name, column in columns.items():
                column[good] = values[name][good]
        rest = {name: column for name, column in prepared.items() if name not in names}
        if self.group_input:
            columns[answers.GROUP] = prepared[self.group_input]
        return rest | columns | {"problem": problem}


def _load(directory: Path) -> Any:
    """The SavedModel in a directory; ValueError if TensorFlow cannot load it."""
    with command.hidden_stderr():
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        import tensorflow as tf

        try:
            return tf.saved_model.load(os.fspath(directory))
        # Not only TensorFlow's own: a damaged model can raise nearly anything.
        except Exception as error:
            failure = error
    # Out here, what TensorFlow printed about it stays hidden.
    raise ValueError(
        f"model: expected a SavedModel that TensorFlow loads, received {directory}: "
        f"{wording.one_line(failure)}"
    ) from failure


def _signature(
    directory: Path, loaded: Any, classes: int, names: Sequence[str]
) -> tuple[Callable, Mapping[str, Any]]:
    """The serving signature of a model and the `TensorSpec` of each of its inputs; ValueError if it
    does not answer as this package's models do.

    Args:
      directory: Where it is, for errors.
      loaded: The SavedModel.
      classes: Number of its classes.
      names: Of its inputs.
    """
    if SIGNATURE not in loaded.signatures:
        raise ValueError(
            f"{directory}: expected the signature {SIGNATURE}, received "
            f"{', '.join(loaded.signatures) or 'none'}"
        )
    signature = loaded.signatures[SIGNATURE]
    inputs, outputs = signature.structured_input_signature[1], signature.structured_outputs
    types = _output_types(signature)
    if set(inputs) != {*names} or not _TYPES.items() <= types.items():
        raise ValueError(
            f"{directory}: expected {', '.join(names)} in and {_types_text(_TYPES)} out, received "
            f"{', '.join(inputs)} in and {_types_text(types)} out; export the model again with "
            "this version of btcp_tf"
        )
    shapes, width = [inputs[name].shape for name in names], outputs["probs"].shape[-1]
    if any(shape.rank is None for shape in shapes) or width not in (None, classes):
        raise ValueError(
            f"{directory}: expected inputs of a known rank and {classes} classes, received "
            f"{', '.join(map(str, shapes))} and {width}"
        )
    return signature, inputs


def _output_types(signature: Any) -> dict[str, str]:
    return {name: spec.dtype.name for name, spec in signature.structured_outputs.items()}


def _types_text(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in types.items()) or "nothing"


@dataclasses.dataclass(frozen=True)
class Input:
    """What a model takes as one input."""

    name: str
    """For errors."""
    dtype: np.dtype
    """Object for text."""
    shape: tuple[int | None, ...]
    """Of one sample."""
    fitted_on: InputRange | None
    """Numbers far from it are refused."""

    @property
    def text(self) -> str:
        """In a few words."""
        kind = "text" if self.dtype == object else self.dtype
        return f"{kind} of shape {shape_text(self.shape)}"

    def check(self, dtype: np.dtype, shape: Sequence[int]) -> None:
        """ValueError unless arrays of this type and shape (of one sample) are taken: numbers as
        text, too, and `[n]` for `[n, 1]`."""
        is_text = dtype.kind in "OSU"
        fits = answers.fits(shape, self.shape) or (not shape and self.shape == (1,))
        if is_text:
            kind_fits = self.dtype == object or self.shape in ((), (1,))
        else:
            whole = dtype.kind in "biu" and self.dtype.kind in "biu"
            kind_fits = whole or (self.dtype != object and _keeps_kind(dtype, self.dtype))
        if not fits or not kind_fits:
            raise ValueError(
                f"{self.name}: expected {self.text} for each input; received "
                f"{'text' if is_text else dtype} of shape {shape_text(shape)}"
            )

    def converted(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An array as the model takes it, and what is wrong with each row; such rows are blank."""
        self.check(array.dtype, array.shape[1:])
        if array.ndim == 1 and self.shape == (1,):
            array = array[:, None]
        if self.dtype == object:
            return _texts(array)
        problem = np.full(len(array), "", object)
        if array.dtype.kind in "OSU":
            array, problem = _numbers(array, self.dtype.kind == "b")
        if self.dtype.kind in "biu" and array.dtype != self.dtype:
            array, others = _in_range(array, self.dtype)
            problem = np.where(problem == "", others, problem)
        rows, others = _checked_rows(array, self.dtype, self.fitted_on)
        return rows, np.where(problem == "", others, problem)


def _group_names(given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Names of groups as text, as `thresholds.GroupThreshold` has them, and what is none; that is
    blank."""
    names, problem = np.full(len(given), "", object), np.full(len(given), "", object)
    for row, one in enumerate(given.tolist()):
        name = one.decode("utf-8", "replace") if isinstance(one, bytes) else one
        if isinstance(name, str) and (wrong := checks.long_name(len(name))):
            problem[row] = wrong
        elif isinstance(name, str) and checks.is_no_name(name):
            problem[row] = "expected a group, received none"
        elif isinstance(name, str | int):
            names[row] = str(name)
        else:
            problem[row] = f"expected text or a whole number, received {one!r:.40}"
    return names, problem


def _texts(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Text as bytes in UTF-8, and what is no text."""
    rows = np.empty(array.shape, object)
    problem = np.full(len(array), "", object)
    for place, value in np.ndenumerate(array):
        if isinstance(value, str | bytes):
            rows[place] = value.encode("utf-8", "replace") if isinstance(value, str) else value
        else:
            rows[place] = b""
            problem[place[0]] = f"expected text, received {value!r:.40}"
    return rows, problem


def _numbers(array: np.ndarray, truths: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that are written out, or words of what is true, float64, and what is none; that is
    0."""
    rows = np.zeros(array.shape)
    problem = np.full(len(array), "", object)
    wanted = "true or false" if truths else "a number"
    for place, value in np.ndenumerate(array):
        try:
            if truths:
                rows[place] = truth(value)
            else:
                rows[place] = written_number(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            problem[place[0]] = f"expected {wanted}, received {value!r:.40}"
    return rows, problem


def _in_range(array: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers, and rows with others than the type holds; these are 0."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    with np.errstate(invalid="ignore"):
        good = (array >= low) & (array <= high) & (array % 1 == 0)
    problem = np.full(len(array), "", object)
    for row in np.flatnonzero(~good.reshape(len(array), -1).all(axis=1)):
        value = array[row][~good[row]].flat[0] if array.ndim > 1 else array[row]
        problem[row] = f"expected {dtype}, received {value.item()}"
    return np.where(good, array, 0).astype(dtype), problem


def _keeps_kind(dtype: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers keep their meaning in the other type, but for digits of a float."""
    if wanted.kind == "f":
        return dtype.kind in "iuf"
    return dtype.kind == wanted.kind and np.can_cast(dtype, wanted, "safe")


def _intake(directory: Path, about: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The range of the inputs that the estimator was fitted on, by name where there are several,
    and the scale of pixels; None where the model does not say, as those of version 0.1.0."""
    try:
        fitted_on, pixels = input_checks.from_json(about.get("input_range")), about.get("pixels")
        if pixels not in (None, *PIXELS):
            raise ValueError(f"pixels is {pixels!r}")
    except ValueError as error:
        raise ValueError(
            f"{directory}: expected what btcp_tf writes about a model, received what cannot be "
            f"read ({error})"
        ) from None
    return fitted_on, pixels


def _checked_rows(
    rows: np.ndarray, dtype: np.dtype, fitted_on: InputRange | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the model's type, and what is wrong with each.

    Wrong are NaN, infinity and numbers far from those that the estimator was fitted on; these rows
    become blank ones.
    """
    problem = np.full(len(rows), "", object)
    if dtype.kind != "f" and fitted_on is None:
        return rows.astype(dtype, copy=False), problem
    # A number too large for the type becomes infinite, which is checked next.
    with np.errstate(over="ignore"):
        converted = rows.astype(dtype)
    flat = converted.reshape(len(converted), -1)
    blank = 0.0 if fitted_on is None else fitted_on.low
    bad = ~np.isfinite(flat)
    for row in np.flatnonzero(bad.any(axis=1)):
        entry = int(np.flatnonzero(bad[row])[0])
        problem[row] = f"expected finite numbers, received {flat[row, entry]} as number {entry}"
        flat[row] = blank
    if fitted_on is not None:
        expected = f"expected numbers like those of fit, {fitted_on.text}, received"
        for row in np.flatnonzero(fitted_on.far(flat, rows.dtype.kind)):
            problem[row] = f"{expected} {fitted_on.farthest(flat[row]):.6g}"
        for row in fitted_on.all_flat(flat):
            problem[row] = f"{expected} {flat[row].min():.6g} to {flat[row].max():.6g}"
        flat[problem != ""] = blank
    return flat.reshape(converted.shape), problem
