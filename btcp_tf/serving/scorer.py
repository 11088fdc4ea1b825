"""An exported model that scores batches."""

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.core import command, wording
from btcp_tf.data import folders
from btcp_tf.data.images import PIXELS, are_image_sizes, convert, scaled
from btcp_tf.data.input_checks import InputRange
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import SIGNATURE
from btcp_tf.serving.inputs import Batch

ANSWERS = {
    "predicted": "int64",
    "class_name": "string",
    "probs": "float32",
    "uncertainty": "float32",
    "accept": "bool",
}
"""What a model answers, and in which type."""

MAX_BATCH = 1_000_000


class Scorer:
    """Answers batches with a SavedModel; an actor of Ray Data's `map_batches` as it stands.

        rows.map_batches(predict.Scorer, fn_constructor_args=(model,), batch_size=256, ...)

    A batch is a dict of arrays of n rows: `images`, numbers as the model takes them or uint8 images
    that `data.convert` brings to its size and channels (and `data.scaled` to its scale, for a model
    of float images whose scale is known); or `files`, paths of image files, as
    `data.read_image`. Other entries pass through. The answer has them, and `predicted` int64 `[n]`,
    `class_name` `[n]`, `probs` float32 `[n, k]`, `uncertainty` float32 `[n]` in [0, 1], `accept`
    bool `[n]`, and `problem` `[n]`: "", or why the row has no answer, which then is -1, "", NaN,
    NaN and False. Pickled, it is the path of its model, and is loaded again where it arrives.
    """

    def __init__(self, model: str | os.PathLike) -> None:
        """Loads a model.

        Args:
          model: See `exported.newest`.

        Raises:
          FileNotFoundError: If there is no model, or one of somebody else.
          ValueError: If it does not answer as this package's models do.
        """
        self.directory = exported.newest(model)
        about = exported.read_about(self.directory)
        self.class_names: list[str] = about["class_names"]
        self._range, self._pixels = _intake(self.directory, about)
        with command.hidden_stderr():
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            import tensorflow as tf

            try:
                self._loaded = tf.saved_model.load(os.fspath(self.directory))
            # Not only TensorFlow's own: a damaged model can raise nearly anything.
            except Exception as error:
                raise ValueError(
                    f"model: expected a SavedModel that TensorFlow loads, received "
                    f"{self.directory}: {wording.one_line(error)}"
                ) from error
        found = ", ".join(self._loaded.signatures) or "none"
        if SIGNATURE not in self._loaded.signatures:
            raise ValueError(
                f"{self.directory}: expected the signature {SIGNATURE}, received {found}"
            )
        self._signature = self._loaded.signatures[SIGNATURE]
        inputs = self._signature.structured_input_signature[1]
        answers = {
            name: spec.dtype.name for name, spec in self._signature.structured_outputs.items()
        }
        if set(inputs) != {"images"} or not ANSWERS.items() <= answers.items():
            raise ValueError(
                f"{self.directory}: expected images in and {_words(ANSWERS)} out, received "
                f"{', '.join(inputs)} in and {_words(answers)} out; export the model again with "
                "this version of btcp_tf"
            )
        spec = inputs["images"]
        classes = self._signature.structured_outputs["probs"].shape[-1]
        if spec.shape.rank is None or classes not in (None, len(self.class_names)):
            raise ValueError(
                f"{self.directory}: expected inputs of a known rank and {len(self.class_names)} "
                f"classes, received {spec.shape} and {classes}"
            )
        self.dtype = np.dtype(spec.dtype.as_numpy_dtype)
        self.shape: tuple[int | None, ...] = tuple(spec.shape[1:])
        self._readers: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (os.fspath(self.directory),)

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
        wanted, fits = self.shape, len(shape) == len(self.shape)
        fits = fits and all(a in (None, b) for a, b in zip(wanted, shape, strict=True))
        is_scaled = self._pixels not in (None, "0_255") and dtype == np.uint8
        if fits and _keeps_kind(dtype, self.dtype) and not is_scaled:
            return False
        if self.image_shape and dtype == np.uint8 and all(shape):
            if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)):
                return True
        size = ["any" if size is None else size for size in wanted]
        images = ", or uint8 images of any size" if self.image_shape else ""
        raise ValueError(
            f"{what}: expected {self.dtype} of shape {shape_text(size)} for each input{images}; "
            f"received {dtype} of shape {shape_text(shape)}"
        )

    def check_files(self, what: str) -> None:
        """Raises a ValueError that begins with `what` unless the model takes image files."""
        if self.image_shape is None:
            size = ["any" if size is None else size for size in self.shape]
            raise ValueError(
                f"{what}: expected a model of gray or color images of one size, in uint8 or with a "
                f"known scale of its pixels (Judge.export(pixels=...)), for image files, received "
                f"one of {self.dtype} of shape {shape_text(size)}"
            )

    def prepare(self, batch: Mapping[str, np.ndarray]) -> Batch:
        """A batch with `images` as the model takes them, and `problem`; touches no TensorFlow.

        Raises:
          ValueError: If the inputs do not fit the model.
        """
        if not isinstance(batch, Mapping):
            raise ValueError(f"batch: expected arrays by name, received {type(batch).__name__}")
        for name in ("images", "files"):
            if name in batch and not np.ndim(batch[name]):
                received = type(batch[name]).__name__
                raise ValueError(f"{name}: expected an array [n, ...], received {received}")
        rest = {name: column for name, column in batch.items() if name not in ("images", "files")}
        if "files" in batch:
            self.check_files("files")
            shape = self.image_shape
            assert shape is not None
            files = batch["files"]
            images = np.zeros((len(files), *shape), np.uint8)

            def read(row: int) -> str:
                pixels, reason = folders.read_image(files[row], shape)
                if pixels is not None:
                    images[row] = pixels
                return reason

            # Pillow decodes without holding the interpreter.
            if self._readers is None:
                self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
            problem = np.array(list(self._readers.map(read, range(len(files)))), object)
            images = self._scaled(images)
        elif "images" in batch:
            images = np.asarray(batch["images"])
            problem = np.full(len(images), "", object)
            if self.check("images", images.dtype, images.shape[1:]):
                assert self.image_shape is not None
                images = self._scaled(convert(images, self.image_shape))
            else:
                images, problem = _meant(images, self.dtype, self._range)
        else:
            raise ValueError(
                f"batch: expected images or files, received {', '.join(batch) or 'none'}"
            )
        return rest | {"images": images, "problem": problem}

    def _scaled(self, images: np.ndarray) -> np.ndarray:
        """uint8 images of the model's size, in its type."""
        if self._pixels is None:
            return images
        return scaled(images, self._pixels).astype(self.dtype, copy=False)

    def answer(self, prepared: Mapping[str, np.ndarray]) -> Batch:
        """The model's answers to a batch from `prepare`."""
        rest = {name: column for name, column in prepared.items() if name != "images"}
        n, k = len(prepared["images"]), len(self.class_names)
        problem = np.array(prepared["problem"], object)
        found: Batch = {
            "predicted": np.full(n, -1, np.int64),
            "class_name": np.full(n, "", object),
            "probs": np.full((n, k), np.nan, np.float32),
            "uncertainty": np.full(n, np.nan, np.float32),
            "accept": np.zeros(n, bool),
        }
        # Rows with a problem go through the model as blank ones: batches of always the same size
        # need memory once.
        if (problem == "").any():
            import tensorflow as tf

            answers = self._signature(images=tf.constant(prepared["images"]))
            told = {name: answers[name].numpy() for name in ANSWERS}
            finite = np.isfinite(told["probs"]).all(axis=1) & np.isfinite(told["uncertainty"])
            problem[(problem == "") & ~finite] = "the model's answer is not finite"
            told["class_name"] = np.array(
                [name.decode("utf-8") for name in told["class_name"]], object
            )
            good = problem == ""
            for name, column in found.items():
                column[good] = told[name][good]
        return rest | found | {"problem": problem}


def _words(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in types.items()) or "nothing"


def shape_text(sizes: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _keeps_kind(dtype: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers of one type mean the same in the other, but for digits of a float."""
    if wanted.kind == "f":
        return dtype.kind in "iuf"
    return dtype.kind == wanted.kind and np.can_cast(dtype, wanted, "safe")


def _intake(directory: Path, about: Mapping[str, Any]) -> tuple[InputRange | None, str | None]:
    """The range of the inputs that the estimator was fitted on, and the scale of pixels, as far as
    the model tells; models of version 0.1.0 tell neither."""
    try:
        seen, pixels = InputRange.from_json(about.get("input_range")), about.get("pixels")
        if pixels not in (None, *PIXELS):
            raise ValueError(f"pixels is {pixels!r}")
    except ValueError as error:
        raise ValueError(
            f"{directory}: expected what btcp_tf writes about a model, received what cannot be "
            f"read ({error})"
        ) from None
    return seen, pixels


def _meant(
    rows: np.ndarray, dtype: np.dtype, seen: InputRange | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in a type, and what is wrong in those that cannot be meant: NaN, infinity, or numbers
    far from those that the estimator was fitted on. In their place stand harmless ones."""
    problem = np.full(len(rows), "", object)
    if dtype.kind != "f" and seen is None:
        return rows.astype(dtype, copy=False), problem
    # A number too large for the type becomes infinite, which is looked for next.
    with np.errstate(over="ignore"):
        taken = rows.astype(dtype)
    flat = taken.reshape(len(taken), -1)
    blank = 0.0 if seen is None else seen.low
    bad = ~np.isfinite(flat)
    for row in np.flatnonzero(bad.any(axis=1)):
        entry = int(np.flatnonzero(bad[row])[0])
        problem[row] = f"expected finite numbers, received {flat[row, entry]} as number {entry}"
        flat[row] = blank
    if seen is not None:
        expected = f"expected numbers like those of fit, {seen.words}, received"
        for row in np.flatnonzero(seen.far(flat, rows.dtype.kind)):
            problem[row] = f"{expected} {seen.farthest(flat[row]):.6g}"
        for row in seen.all_flat(flat):
            problem[row] = f"{expected} {flat[row].min():.6g} to {flat[row].max():.6g}"
        flat[problem != ""] = blank
    return flat.reshape(taken.shape), problem
