"""SavedModels that decide: written aside, checked in a fresh process, published under a number.

A version directory appears under its number only when it is complete and has
answered like the Keras model in a process that could not import this package.
There it must also accept, of the rows that its threshold was chosen on, just
those with u < tau. The threshold is a variable of the model: `with_threshold`
makes a version with another one, and needs neither the Keras model nor its data.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

import btcp_tf
from btcp_tf import evaluation, metrics, networks, thresholds, wording
from btcp_tf.checks import FLAT, InputRange
from btcp_tf.data import LUMA, PIXELS, are_image_sizes, scaled
from btcp_tf.evaluation import Predictions
from btcp_tf.exported import ABOUT_FILE, COLUMN, SIGNATURE, read_about, read_held_out, versions
from btcp_tf.files import as_path, check_folder
from btcp_tf.publishing import PUBLICATION
from btcp_tf.thresholds import Threshold
from btcp_tf.training import Inference

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Where TensorFlow Serving looks for requests to answer before a version goes live."""
TOLERANCE = 1e-3
"""Largest accepted difference between logit(u) of the SavedModel and of Keras, and between the
logits of probabilities, from `RESOLUTION` on."""
RESOLUTION = 1e-6
"""Differences that do not count between probabilities, which other classes' rounding moves, nor
between u of an estimator whose u is made of no logit."""
BATCH = 256
"""Inputs at once where the rows of the calibration set are answered: in the export, and when its
threshold is chosen. Other batches may round the last digits in another way."""

# Not a number, hence no version to TF Serving; hidden, hence no clutter to people.
_TEMPORARY_PREFIX = ".export-"
_CHECK_SECONDS = 600

# Runs with `python -I -c`. It sees the modules that this process sees, but not
# this package, so that a SavedModel that needs it cannot pass.
_CHECK_SCRIPT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
sys.modules["btcp_tf"] = None
import numpy as np
import tensorflow as tf
signatures = tf.saved_model.load(sys.argv[2]).signatures
images = np.load(sys.argv[3])
asked = tf.constant(["", "?"])
found = {"2/about/json": signatures["about"](ask=asked)["json"].numpy().astype("S")}
scale, offset = json.loads(sys.argv[6])
def files(images):
    pixels = np.rint((images - offset) / scale).astype(np.uint8)
    # An empty list would be one of floats.
    return tf.constant([tf.io.encode_png(image).numpy() for image in pixels], tf.string)
inputs = {
    "serving_default": lambda images: {"images": tf.constant(images)},
    "serving_float": lambda images: {"images": tf.constant(images, tf.float32)},
    "serving_bytes": lambda images: {"image_bytes": files(images)},
}
for size in json.loads(sys.argv[4]):
    for signature in sorted(set(inputs) & set(signatures)):
        answers = signatures[signature](**inputs[signature](images[:size]))
        for name, value in answers.items():
            value = value.numpy()
            found[f"{size}/{signature}/{name}"] = value.astype("S") if value.dtype == "O" else value
rows = np.load(sys.argv[7], mmap_mode="r") if sys.argv[7] else images[:0]
batch = int(sys.argv[8])
exact = set(inputs) if images.dtype == np.uint8 else {"serving_default"}
for signature in sorted(exact & set(signatures)) if len(rows) else ():
    parts = {name: [] for name in ("predicted", "uncertainty", "accept")}
    for start in range(0, len(rows), batch):
        answers = signatures[signature](**inputs[signature](np.array(rows[start : start + batch])))
        for name, part in parts.items():
            part.append(answers[name].numpy())
    found |= {f"calibration/{signature}/{name}": np.concatenate(p) for name, p in parts.items()}
np.savez(sys.argv[5], **found)
"""


def export(
    model: keras.Model,
    root: str | os.PathLike,
    name: str,
    class_names: Sequence[str],
    sample_images: np.ndarray,
    *,
    threshold: Threshold,
    held_out: Mapping[str, Predictions] | None = None,
    calibration_inputs: np.ndarray | None = None,
    about: Mapping[str, Any] | None = None,
    input_range: InputRange | None = None,
    pixels: str | None = None,
) -> Path:
    """Writes `<root>/<name>/<n>/`, a SavedModel that TF Serving and plain TensorFlow load.

    Signatures, for any number n of inputs from 0 on:

    - `serving_default` takes `images` `[n, ...]` as the model does: uint8 pixels `[n, height,
      width, channels]` for the networks trained here. NaN and infinity fail the request, and so do
      numbers that are too far from `input_range`;
    - `serving_float`, of uint8 models: `images` float32 of the same shape, from 0 to 255. They are
      rounded to whole numbers; NaN fails the request, and so does another scale: all from 0 to 1,
      or beyond 0 to 255 by more than 255;
    - `serving_bytes`, of uint8 models of gray or color images and of those with `pixels`:
      `image_bytes` `[n]`, JPEG or PNG files of 8 bits a channel, read as `data.read_image` does.
      Another file fails the request;
    - `about` takes `ask` `[n]`, any text, and answers `json` `[n]`, each the content of
      `assets.extra/btcp_tf.json`. A server's REST refuses what has no input, and a server that puts
      requests together what does not answer one row for each.

    The first three answer `predicted` int64 `[n]`, `class_name` `[n]`, `probs` float32 `[n, k]`,
    `uncertainty` float32 `[n]` in [0, 1] and `accept` bool `[n]`: whether u is below the threshold.
    Where u is made of a logit (see `networks.with_logit`), the logits are compared: float32 has one
    u for many answers of an accurate classifier. The `uncertainty` beside it is rounded to the side
    of the threshold that it is on, so that `accept` is `uncertainty < tau`, in float64, for those
    who have these answers alone.

    In `assets.extra` are `btcp_tf.json`: `class_names`, `image_shape`, `threshold` (the fields of
    `thresholds.Threshold`), `calibration` (metrics of those rows), `versions`, `git` (the commit of
    this package's checkout, null without one), where they are known `input_range` (its fields) and
    `pixels`, and `about`, NaN and infinity being null; each of
    `held_out` as a predictions file; and requests to warm up TensorFlow Serving.

    Before the directory gets its number, a fresh process without `btcp_tf`
    loads it and answers for no image, the first and all of `sample_images`, on
    the CPU; its answers must equal those of `model` (floats to `TOLERANCE`). By
    each signature it also answers for all of `calibration_inputs`, and must accept
    those that `held_out["calibration"]` says: u < tau, row by row.

    Args:
      model: Functional model from images, or other numbers, `[n, ...]` to
        `probs` `[n, k]` and `uncertainty` `[n, 1]`. May live under a
        distribution strategy; the SavedModel does not.
      root: Export root; made where it is missing.
      name: Directory below `root`, such as the data set's name.
      class_names: The k names, in the order of `probs`.
      sample_images: `[m, ...]` in the model's type, at least one.
      threshold: What is accepted; nothing where its `tau` is None.
      held_out: "calibration", the rows that the threshold was chosen on, and perhaps "validation",
        each with u of the model as its one column `COLUMN`, in float64 as `served` answers it.
      calibration_inputs: Those that the rows of "calibration" answer, in their order and in the
        model's type. None: they are not to be had, and the decision is checked on `sample_images`
        alone.
      about: What else a reader of the model should know; JSON values.
      input_range: Of the inputs that the estimator was fitted on, for models of floats: others that
        are too far from it are refused. None: none is.
      pixels: How a model of float images `[height, width, 1 or 3]` reads pixels from 0 to 255, of
        `data.PIXELS`; it gets `serving_bytes` then. None: it is not known.

    Returns:
      The new version directory. Its number is one above the largest that
      exists, 1 for the first; a version that exists is never touched.

    Raises:
      ValueError: If the arguments do not fit the model or each other.
      RuntimeError: If the check fails, with what differed; nothing is left behind.
    """
    held_out = held_out or {}
    class_names, _ = wording.class_names(class_names, "class_names")
    _validate(model, name, class_names, sample_images)
    rows = held_out.get("calibration")
    if calibration_inputs is not None and (
        rows is None or len(rows.predicted) != len(calibration_inputs)
    ):
        received = "none" if rows is None else str(len(rows.predicted))
        raise ValueError(
            f"calibration_inputs: expected an input for each calibration row, received "
            f"{len(calibration_inputs)} inputs for {received} rows"
        )
    sample_images = np.asarray(sample_images)
    intake = _Intake.of(model, sample_images, input_range, pixels)
    if pixels:
        # Files hold whole pixels: what is between them could not be compared.
        scale, offset = intake.scale
        whole = np.rint((sample_images - offset) / scale).clip(0, 255).astype(np.uint8)
        sample_images = scaled(whole, pixels).astype(sample_images.dtype)
    folder = as_path("root", as_path("root", root) / name)
    with _temporary_directory(folder) as temporary:
        content = {
            **(about or {}),
            "class_names": list(class_names),
            "image_shape": list(model.input.shape[1:]),
            **_decision(threshold, held_out),
            "versions": {
                "btcp_tf": btcp_tf.__version__,
                "keras": keras.__version__,
                "tensorflow": tf.__version__,
            },
            "git": _git_hash(),
        }
        if input_range is not None:
            content["input_range"] = dataclasses.asdict(input_range)
        if pixels is not None:
            content["pixels"] = pixels
        text = _json_text(content)
        _write(model, temporary, content["class_names"], threshold, text, intake)
        _write_extra(temporary, text, held_out)
        _write_warmup(temporary / WARMUP_FILE, name, sample_images)
        _check(
            model,
            temporary,
            content["class_names"],
            threshold,
            text,
            sample_images,
            intake,
            None if calibration_inputs is None else np.asarray(calibration_inputs),
            rows,
        )
        return _publish(temporary, folder)


def served(model: keras.Model, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the SavedModel of a model computes for some inputs, before u is rounded to float32.

    The threshold of a SavedModel is chosen on these answers: on the CPU, where it is checked, too,
    and in the same batches.

    Args:
      model: As in `export`.
      inputs: `[n, ...]` in the model's type, n > 0.

    Returns:
      `probs` float32 `[n, k]`, and u float64 `[n]`: expit of logit(u) where there is one.
    """
    with tf.device("/CPU:0"):
        found = Inference(networks.with_logit(_on_one_device(model)), BATCH)(inputs)
    return found["probs"].astype(np.float32), networks.uncertainty_of(found)


def _on_one_device(model: keras.Model) -> keras.Model:
    """The model, or a copy where it lives under a distribution strategy."""
    # The graphs of a distributed model name this machine's devices, and a server has others.
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in model.variables):
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        return copy
    return model


def with_threshold(
    source: str | os.PathLike,
    threshold: Threshold,
    held_out: Mapping[str, Predictions] | None = None,
    folder: str | os.PathLike | None = None,
) -> Path:
    """Publishes the same model with another threshold as the next version.

    The graph and the weights are copied as they are. Before it gets its number, the new version is
    loaded and compared with its source.

    Args:
      source: A version directory that `export` wrote.
      threshold: The new threshold.
      held_out: Predictions files to put in the place of the source's, by name; others stay.
      folder: Where the numbered versions are; made where it is missing. None: beside the source.

    Returns:
      The new version directory.

    Raises:
      FileNotFoundError, ValueError: If `source` is no such directory.
      RuntimeError: If the new version does not answer as it should; nothing is left behind.
    """
    source = Path(source)
    content = read_about(source)
    held_out = read_held_out(source) | dict(held_out or {})
    folder = source.parent if folder is None else Path(folder)
    with _temporary_directory(folder) as temporary:
        _copy(source, temporary)
        # It would tell the hash of the weights as they were.
        (temporary / "fingerprint.pb").unlink(missing_ok=True)
        # The run whose version the source is did not publish this one.
        content.pop(PUBLICATION, None)
        text = _json_text({**content, **_decision(threshold, held_out)})
        by_logit = _LIMITS in _variables(temporary)
        _check_digits(source, threshold, held_out, by_logit)
        limit = {_LIMITS: _limits(threshold)} if by_logit else {_TAU: _limit(threshold)}
        _assign(temporary, {**limit, _ABOUT: text})
        _write_extra(temporary, text, held_out)
        _compare(source, temporary, threshold, text)
        return _publish(temporary, folder)


def _copy(source: Path, directory: Path) -> None:
    """Copies a directory's content; OSError with the reason of the first file that fails."""
    try:
        shutil.copytree(source, directory, dirs_exist_ok=True)
    except shutil.Error as error:
        _, target, reason = error.args[0][0]
        # Without the paths, of which one is gone by then.
        raise OSError(
            f"export: expected room for a copy of {source} in {directory.parent}, received for "
            f"{os.path.relpath(target, directory)}: {reason.partition(': ')[0]}"
        ) from None


def _validate(
    model: keras.Model, name: str, class_names: Sequence[str], sample_images: np.ndarray
) -> None:
    if not name or name in (".", "..") or Path(name).name != name:
        raise ValueError(f"name: expected one directory name, received {name!r}")
    if not isinstance(model.output, Mapping) or set(model.output) != {"probs", "uncertainty"}:
        raise ValueError(
            f"model: expected the outputs probs and uncertainty by name, received {model.output}"
        )
    if tf.distribute.has_strategy():
        raise ValueError("export: expected a call outside of strategy.scope(), received one inside")
    classes = model.output["probs"].shape[-1]
    if len(class_names) != classes:
        raise ValueError(f"class_names: expected {classes} names, received {len(class_names)}")
    sample_images = np.asarray(sample_images)
    shape, dtype = tuple(model.input.shape[1:]), model.input.dtype
    if dtype == "string":
        raise ValueError("model: expected inputs that are numbers, received text")
    if (
        sample_images.dtype != dtype
        or sample_images.ndim != len(shape) + 1
        or any(
            wanted not in (None, size)
            for wanted, size in zip(shape, sample_images.shape[1:], strict=True)
        )
        or not len(sample_images)
    ):
        raise ValueError(
            f"sample_images: expected at least one {dtype} image of shape {shape}, "
            f"received {sample_images.dtype} {sample_images.shape}"
        )


_TAU, _LIMITS, _ABOUT = "btcp_tf_tau", "btcp_tf_limits", "btcp_tf_about"
"""Names of the model's variables that `with_threshold` changes. It has the first where it compares
u, as all models of 0.1.0 do, or the second, `_limits`, where it compares logits."""


def _limit(threshold: Threshold) -> float:
    """u below it is accepted."""
    return -math.inf if threshold.tau is None else threshold.tau


def _limits(threshold: Threshold) -> np.ndarray:
    """The limit on logit(u), the largest float32 below tau, and the smallest from tau on."""
    tau, tiny = _limit(threshold), np.finfo(np.float32).tiny
    with np.errstate(over="ignore"):
        near = np.float32(tau)
    below = near if float(near) < tau else np.nextafter(near, np.float32(-np.inf))
    above = near if float(near) >= tau else np.nextafter(near, np.float32(np.inf))
    # Processors may take the numbers between 0 and tiny for 0.
    if 0 < tau <= tiny:
        below, above = np.float32(0), tiny
    return np.array([thresholds.logit_limit(threshold.tau), below, above], np.float64)


def _decision(threshold: Threshold, held_out: Mapping[str, Predictions]) -> dict[str, Any]:
    """What `btcp_tf.json` says of a threshold and the rows it comes from."""
    found = {"threshold": dataclasses.asdict(threshold), "calibration": None}
    rows = held_out.get("calibration")
    if rows is not None and rows.labels is not None:
        is_error = rows.is_error
        # A metric that lacks a class is null, which says it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            u, tau = rows.uncertainty[COLUMN], threshold.tau
            values = metrics.evaluate_all(is_error, u, tau=0.0 if tau is None else tau)
        found["calibration"] = {"n": len(is_error), "errors": int(is_error.sum()), **values}
    return found


_CONSTANT_SIZE = 2**16
"""Weights of at most so many numbers are constants of the graph."""


def _with_constants(model: keras.Model) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """The model at inference, as one function that all signatures share.

    oneDNN packs a product's weights once where they are constants, and at each call where they are
    variables. For a single image that packing costs an estimator of small layers more than its
    products; large weights gain less, and would bring the graph near protobuf's 2 GiB.
    """

    small = {
        id(variable): variable.value.numpy()
        for variable in model.variables
        if variable.value.dtype.is_floating
        and variable.value.shape.num_elements() <= _CONSTANT_SIZE
    }

    def values(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        # Made inside the function: a constant from outside would be an input of it.
        return [tf.constant(small[id(v)]) if id(v) in small else v.value for v in variables]

    @tf.function(
        input_signature=[tf.TensorSpec(model.input.shape, model.input.dtype)], autograph=False
    )
    def outputs(images: tf.Tensor) -> dict[str, tf.Tensor]:
        return model.stateless_call(
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            images,
            training=False,
        )[0]

    return outputs


def _decide(
    outputs: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    class_names: Sequence[str],
    limit: tf.Variable,
    images: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """What the signatures answer, by name."""
    # A server's session checks no shapes, and some networks take images of any size.
    images = tf.ensure_shape(images, images.shape)
    # oneDNN's fused convolution gives an empty batch the shape of its input (TensorFlow 2.21), and
    # what follows fails. So an empty batch runs as one blank image, whose answer is cut off.
    count = tf.shape(images)[0]
    blank = tf.cast(count == 0, tf.int32)
    padding = [[0, blank]] + [[0, 0]] * (images.shape.rank - 1)
    found = outputs(tf.pad(images, padding))
    probs = tf.cast(found["probs"][:count], tf.float32)
    uncertainty = tf.cast(found["uncertainty"][:count, 0], tf.float32)
    if "logit" in found:
        accept = tf.cast(found["logit"][:count, 0], tf.float64) < limit[0]
        # On the side of tau that it is on: float32 may round it to the other one.
        below, above = tf.cast(limit[1], tf.float32), tf.cast(limit[2], tf.float32)
        uncertainty = tf.where(
            accept, tf.minimum(uncertainty, below), tf.maximum(uncertainty, above)
        )
    else:
        # A tau between neighboring float32 must not be rounded to one of them.
        accept = tf.cast(uncertainty, tf.float64) < limit
    predicted = tf.argmax(probs, axis=-1, output_type=tf.int64)
    return {
        "predicted": predicted,
        "class_name": tf.gather(tf.constant(class_names, tf.string), predicted),
        "probs": probs,
        "uncertainty": uncertainty,
        "accept": accept,
    }


class _Intake(NamedTuple):
    """What a model takes, and what it refuses."""

    low: float
    high: float
    """Float inputs from `low` to `high` are taken."""
    least: float
    """Of a request's inputs that vary at all, one has to vary by as much."""
    words: str
    """What is expected."""
    pixels: str | None
    """Of `data.PIXELS`, for models of float images."""

    @classmethod
    def of(
        cls,
        model: keras.Model,
        sample_images: np.ndarray,
        input_range: InputRange | None,
        pixels: str | None,
    ) -> "_Intake":
        """For the arguments of `export`; ValueError where `pixels` is not for that model."""
        shape, dtype = tuple(model.input.shape[1:]), model.input.dtype
        if pixels is not None and (
            pixels not in PIXELS or "float" not in dtype or not are_image_sizes(shape)
        ):
            raise ValueError(
                f"pixels: expected one of {', '.join(PIXELS)} with a model of float images "
                f"[height, width, 1 or 3], received {pixels!r} with {dtype} {shape}"
            )
        if dtype == "uint8":
            # Images of two levels vary by one.
            seen = input_range or InputRange.of(sample_images)
            least = (seen.contrast or 0.0) / FLAT
            return cls(-255.0, 510.0, least, "pixels from 0 to 255", None)
        if input_range is None:
            return cls(-math.inf, math.inf, 0.0, "finite numbers", pixels)
        low, high = input_range.limits
        words = f"numbers like those of fit, {input_range.words}"
        return cls(low, high, (input_range.contrast or 0.0) / FLAT, words, pixels)

    @property
    def scale(self) -> tuple[float, float]:
        """(scale, offset) from pixels to the model's inputs."""
        return PIXELS[self.pixels or "0_255"]


def _meant(intake: _Intake, images: tf.Tensor) -> tf.Tensor:
    """The same floats; the request fails where they cannot be meant, see `checks`."""
    images = tf.debugging.check_numerics(images, f"images: expected {intake.words}")
    if math.isinf(intake.high):
        return images
    axes = list(range(1, images.shape.rank))
    top = tf.cast(tf.reduce_max(images, axes), tf.float64)
    bottom = tf.cast(tf.reduce_min(images, axes), tf.float64)
    near = tf.reduce_all((bottom >= intake.low) & (top <= intake.high))
    spread = top - bottom
    vary = tf.reduce_any(spread >= intake.least) | ~tf.reduce_any(spread > 0)
    found = [f"images: expected {intake.words}, received numbers from and to"]
    found += [tf.reduce_min(bottom), tf.reduce_max(top)]
    with tf.control_dependencies([tf.debugging.Assert(near & vary, found)]):
        return tf.identity(images)


def _rounded(intake: _Intake, images: tf.Tensor) -> tf.Tensor:
    """Float pixels as uint8."""
    return tf.saturate_cast(tf.round(_meant(intake, images)), tf.uint8)


_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


def _known_files(image_bytes: tf.Tensor) -> tf.Tensor:
    """The same files; the request fails where one is of a kind that TensorFlow decodes otherwise
    than Pillow, or Pillow not at all: palettes of BMP, GIF, WebP, 16 bits."""
    # Substr fails where a file is shorter.
    heads = tf.strings.join([tf.strings.substr(image_bytes, 0, 25), tf.constant(25 * b"\0")])
    is_png = tf.strings.substr(heads, 0, len(_PNG)) == _PNG
    # The first chunk of a PNG file is its header; its bits a channel are in the 25th byte.
    is_deep = is_png & (tf.strings.substr(heads, 24, 1) == b"\x10")
    is_jpeg = tf.strings.substr(heads, 0, len(_JPEG)) == _JPEG
    good = (is_png & ~is_deep) | is_jpeg
    first = tf.argmin(tf.concat([tf.cast(good, tf.int32), [0]], 0))
    told = "image_bytes: expected PNG or JPEG files of 8 bits a channel, received another in place"
    remedy = "save it as PNG of 8 bits"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [told, first, remedy])]):
        return tf.identity(image_bytes)


def _decoded(shape: tuple[int, int, int], image_bytes: tf.Tensor) -> tf.Tensor:
    """Files as pixels, as `data` reads and converts them."""
    height, width, channels = shape

    def decoded(file: tf.Tensor) -> tf.Tensor:
        # As Pillow does it, pixel for pixel. It decodes PNG, too.
        pixels = tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE")
        pixels = _upright(file, tf.cast(pixels, tf.float32))
        pixels.set_shape((None, None, 3))
        if channels == 1:
            pixels = tf.round(tf.tensordot(pixels, tf.constant(LUMA), 1)[..., None])
        pixels = tf.image.resize(pixels, (height, width), "bilinear", antialias=True)
        return tf.saturate_cast(tf.round(pixels), tf.uint8)

    files = _known_files(image_bytes)
    return tf.map_fn(decoded, files, fn_output_signature=tf.TensorSpec(shape, tf.uint8))


# The entry of the orientation among those of the first directory, in either order of bytes. `\C` is
# any byte.
_ORIENTATION = (
    r"\C*(?:Exif\x00\x00|eXIf)(?:"
    r"II\*\x00\x08\x00\x00\x00\C\C(?:\C{12}){0,60}?\x12\x01\x03\x00\x01\x00\x00\x00([\x02-\x08])|"
    r"MM\x00\*\x00\x00\x00\x08\C\C(?:\C{12}){0,60}?\x01\x12\x00\x03\x00\x00\x00\x01\x00([\x02-\x08])"
    r")\C*"
)
_EXIF_BYTES = 2**17
"""Where Exif is looked for: it stands before the pixels."""


def _upright(file: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`[height, width, 3]` turned as the file's Exif orientation says."""
    head = tf.strings.substr(file, 0, _EXIF_BYTES)

    def turned() -> tf.Tensor:
        found = tf.strings.regex_replace(head, _ORIENTATION, r"\1\2", replace_global=False)
        # One byte, from 2 to 8.
        turns = [
            lambda: pixels[:, ::-1],
            lambda: pixels[::-1, ::-1],
            lambda: pixels[::-1],
            lambda: tf.transpose(pixels, (1, 0, 2)),
            lambda: tf.transpose(pixels, (1, 0, 2))[:, ::-1],
            lambda: tf.transpose(pixels, (1, 0, 2))[::-1, ::-1],
            lambda: tf.transpose(pixels, (1, 0, 2))[::-1],
        ]
        return tf.switch_case(tf.cast(tf.io.decode_raw(found, tf.uint8)[0], tf.int32) - 2, turns)

    return tf.cond(tf.strings.regex_full_match(head, _ORIENTATION), turned, lambda: pixels)


def _signatures(model: keras.Model, intake: _Intake) -> dict[str, tuple[tf.TensorSpec, Callable]]:
    """By name what a signature takes, and how the model's inputs are made of it."""
    shape, dtype = tuple(model.input.shape[1:]), model.input.dtype

    def floats(image_bytes: tf.Tensor) -> tf.Tensor:
        scale, offset = intake.scale
        return tf.cast(_decoded(shape, image_bytes), dtype) * scale + offset

    own: Callable = functools.partial(_meant, intake) if "float" in dtype else lambda images: images
    found: dict[str, tuple[tf.TensorSpec, Callable]] = {
        SIGNATURE: (tf.TensorSpec((None, *shape), dtype, name="images"), own)
    }
    files = tf.TensorSpec((None,), tf.string, name="image_bytes")
    if dtype == "uint8":
        spec = tf.TensorSpec((None, *shape), tf.float32, name="images")
        found["serving_float"] = (spec, functools.partial(_rounded, intake))
        if are_image_sizes(shape):
            found["serving_bytes"] = (files, functools.partial(_decoded, shape))
    elif intake.pixels:
        found["serving_bytes"] = (files, floats)
    return found


def _write(
    model: keras.Model,
    directory: Path,
    class_names: Sequence[str],
    threshold: Threshold,
    about: str,
    intake: _Intake,
) -> None:
    model = networks.with_logit(_on_one_device(model))
    compares = _LIMITS if "logit" in model.output else _TAU
    value = _limits(threshold) if compares == _LIMITS else _limit(threshold)
    limit = tf.Variable(value, dtype=tf.float64, trainable=False, name=compares)
    text = tf.Variable(about, trainable=False, name=_ABOUT)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_variable_collection("decision", [limit, text])
    outputs = _with_constants(model)

    def endpoint(spec: tf.TensorSpec, prepare: Callable) -> tf.types.experimental.GenericFunction:
        def answer(value: tf.Tensor) -> dict[str, tf.Tensor]:
            return _decide(outputs, class_names, limit, prepare(value))

        function = tf.function(answer, input_signature=[spec], autograph=False)
        function.get_concrete_function()
        return function

    for name, (spec, prepare) in _signatures(model, intake).items():
        archive.add_endpoint(name, endpoint(spec, prepare))

    def tell(ask: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"json": tf.fill(tf.shape(ask), text.read_value())}

    spec = tf.TensorSpec((None,), tf.string, name="ask")
    told = tf.function(tell, input_signature=[spec], autograph=False)
    told.get_concrete_function()
    archive.add_endpoint("about", told)
    archive.write_out(str(directory), verbose=False)


def _variables(directory: Path) -> dict[str, str]:
    """Of a SavedModel on disk: name of each variable → its key in the checkpoint."""
    try:
        reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        )
    # TensorFlow's, and those that its Python side turns some of them into.
    except (tf.errors.OpError, LookupError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{directory}: expected the variables of a SavedModel, received what cannot be read "
            f"({str(error).splitlines()[0][:200]}); export the model again"
        ) from error
    return {
        attribute.full_name: attribute.checkpoint_key
        for node in graph.nodes
        for attribute in node.attributes
    }


def _assign(directory: Path, values: Mapping[str, Any]) -> None:
    """Changes variables of a SavedModel on disk, by name; the rest stays bit for bit."""
    path = str(directory / "variables" / "variables")
    reader = tf.train.load_checkpoint(path)
    keys = {key: name for name, key in _variables(directory).items() if name in values}
    if not set(values) <= set(keys.values()):
        raise ValueError(f"{directory}: expected the variables {', '.join(values)}, received none")
    dtypes = reader.get_variable_to_dtype_map()
    tensors = {
        key: tf.constant(
            values[keys[key]] if keys.get(key) in values else reader.get_tensor(key), dtype
        )
        for key, dtype in dtypes.items()
    }
    for old in (directory / "variables").iterdir():
        old.unlink()
    try:
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
    except tf.errors.OpError as error:
        raise OSError(
            f"export: expected room for variables in {directory.parent}, received: "
            f"{error.message.rpartition('; ')[2]}"
        ) from None


def _json_text(content: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(_jsonable(content), indent=2, allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"about: expected what JSON can hold, received: {error}") from None
    return text + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _git_hash() -> str | None:
    """Commit of the checkout that this package is in; "+" behind it: with changes."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _write_extra(directory: Path, about: str, held_out: Mapping[str, Predictions]) -> None:
    path = directory / ABOUT_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(about, encoding="utf-8")
    for name, rows in held_out.items():
        evaluation.save_predictions(
            path.parent / f"{name}.npz",
            # The probabilities of all rows would be as large as a small model.
            dataclasses.replace(rows, probs=None, uncertainty={COLUMN: rows.uncertainty[COLUMN]}),
        )


def _warmup_inputs(path: Path) -> tf.Tensor:
    """The most inputs that a request of `_write_warmup` holds: such as the model was made for."""
    from tensorflow_serving.apis import prediction_log_pb2

    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    if not records:
        raise ValueError(f"{path}: expected requests, received none")
    log = prediction_log_pb2.PredictionLog.FromString(records[-1])
    return tf.constant(tf.make_ndarray(log.predict_log.request.inputs["images"]))


def _write_warmup(path: Path, name: str, images: np.ndarray) -> None:
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in sorted({1, len(images)}):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = SIGNATURE
            request.inputs["images"].CopyFrom(tf.make_tensor_proto(images[:size]))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


def _check(
    model: keras.Model,
    directory: Path,
    class_names: Sequence[str],
    threshold: Threshold,
    about: str,
    sample_images: np.ndarray,
    intake: _Intake,
    calibration_inputs: np.ndarray | None,
    rows: Predictions | None,
) -> None:
    """Raises RuntimeError unless the directory answers like `model` in a fresh process, and accepts
    what u < tau accepts of the calibration rows."""
    sizes = sorted({0, 1, len(sample_images)})
    found = _fresh_answers(directory, sample_images, sizes, intake.scale, calibration_inputs)
    with_logit = "logit" in networks.with_logit(model).output
    wanted = {"2/about/json": np.array(2 * [about.encode()])}
    for size, answer in _keras_answers(model, class_names, sample_images, sizes).items():
        for signature in _signatures(model, intake):
            # Whether it decided by its own u, which may differ in the last digits.
            u = found.get(f"{size}/{signature}/uncertainty", np.zeros(0, np.float32))
            accept = u.astype(np.float64) < _limit(threshold)
            wanted |= {
                f"{size}/{signature}/{name}": value
                for name, value in {**answer, "accept": accept}.items()
            }
    if calibration_inputs is not None and rows is not None:
        u = rows.uncertainty[COLUMN]
        answer = {
            "predicted": rows.predicted,
            "uncertainty": u.astype(np.float32),
            # Of u in all its digits: what the threshold was chosen on.
            "accept": u.astype(np.float64) < _limit(threshold),
        }
        wanted |= {
            f"calibration/{signature}/{name}": value
            for signature in _signatures(model, intake)
            if signature in _exact_signatures(model)
            for name, value in answer.items()
        }
    differences = _differences(found, wanted, with_logit)
    if differences:
        raise RuntimeError(
            "export: expected a SavedModel that answers like the Keras model, received "
            + "; ".join(differences)
        )


def _exact_signatures(model: keras.Model) -> tuple[str, ...]:
    """Signatures that take any input of the model as it is. Files hold whole pixels alone, which
    float inputs need not be."""
    of_pixels = (SIGNATURE, "serving_float", "serving_bytes")
    return of_pixels if model.input.dtype == "uint8" else (SIGNATURE,)


def _fresh_answers(
    directory: Path,
    sample_images: np.ndarray,
    sizes: Sequence[int],
    scale: tuple[float, float],
    rows: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """What a SavedModel answers in a process without this package.

    Returns:
      "<size>/<signature>/<answer>" for the first images, and "calibration/<signature>/<answer>" for
      `rows`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        images, answers = os.path.join(scratch, "images.npy"), os.path.join(scratch, "answers.npz")
        np.save(images, sample_images)
        more = ""
        if rows is not None:
            more = os.path.join(scratch, "rows.npy")
            np.save(more, rows)
        arguments = (json.dumps(sys.path), str(directory), images, json.dumps(sizes), answers)
        # This process may hold all memory of the GPUs, and they round differently from a CPU.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        seconds = _CHECK_SECONDS + (0 if rows is None else len(rows))
        try:
            subprocess.run(
                [
                    *(sys.executable, "-I", "-c", _CHECK_SCRIPT, *arguments),
                    *(json.dumps(scale), more, str(BATCH)),
                ],
                env=environment,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                "export: expected a SavedModel that answers in a fresh process without btcp_tf, "
                f"received exit status {error.returncode} and\n{error.stderr[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"export: expected answers of a fresh process, received none within {seconds} s"
            ) from error
        with np.load(answers) as loaded:
            return dict(loaded)


def _keras_answers(
    model: keras.Model, class_names: Sequence[str], images: np.ndarray, sizes: Sequence[int]
) -> dict[int, dict[str, np.ndarray]]:
    images_spec = tf.TensorSpec((None, *images.shape[1:]), images.dtype)

    @tf.function(input_signature=[images_spec], jit_compile=False)
    def outputs_on_cpu(images: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            return model(images, training=False)

    names = np.array([name.encode() for name in class_names])
    wanted = {}
    for size in sizes:
        outputs = outputs_on_cpu(tf.constant(images[: max(size, 1)]))
        probs = outputs["probs"].numpy()[:size].astype(np.float32)
        predicted = probs.argmax(axis=-1).astype(np.int64)
        wanted[size] = {
            "predicted": predicted,
            "class_name": names[predicted],
            "probs": probs,
            "uncertainty": outputs["uncertainty"].numpy()[:size, 0].astype(np.float32),
        }
    return wanted


def _differences(
    found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], with_logit: bool = False
) -> list[str]:
    """What differs, in words, one line for each answer; empty where nothing does.

    Args:
      found: By "<which inputs>/<signature>/<answer>".
      wanted: The same.
      with_logit: Whether u is made of a logit, so that a small u is right to all of its digits.
    """
    if found.keys() != wanted.keys():
        return [f"the answers {sorted(found)} in place of {sorted(wanted)}"]
    lines = []
    for key, want in wanted.items():
        size, signature, name = key.split("/")
        which = "of the calibration rows" if size == "calibration" else f"of a batch of {size}"
        got, where = found[key], f"{signature}: {name} {which}"
        # Words are as wide as the longest of them.
        same_kind = got.dtype == want.dtype or got.dtype.kind == want.dtype.kind == "S"
        if not same_kind or got.shape != want.shape:
            lines.append(f"{where}: {got.dtype} {got.shape} in place of {want.dtype} {want.shape}")
        elif want.dtype.kind != "f":
            if (got != want).any():
                lines.append(f"{where}: {np.count_nonzero(got != want)} others")
        else:
            bad = ~_close(got, want, with_logit and name == "uncertainty")
            if bad.any():
                lines.append(
                    f"{where}: {np.count_nonzero(bad)} values, the first {got[bad][0]:.9g} "
                    f"in place of {want[bad][0]:.9g}"
                )
    return lines


def _close(got: np.ndarray, want: np.ndarray, small: bool) -> np.ndarray:
    """Whether logits of float32 p agree within `TOLERANCE`, as far as the digits of p tell.

    The derivative of p is p (1 - p).
    """
    got, want = got.astype(np.float64), want.astype(np.float64)
    # Digits of float32 below, at and above 1/2; a small p has more of them.
    digits = np.finfo(np.float32)
    resolution = 4 * float(digits.eps) * want + float(digits.tiny) if small else RESOLUTION
    # NaN is not close to anything.
    return np.abs(got - want) <= TOLERANCE * want * (1 - want) + resolution


def _check_digits(
    source: Path, threshold: Threshold, held_out: Mapping[str, Predictions], by_logit: bool
) -> None:
    """ValueError where the model cannot accept what u < tau accepts of the calibration rows, since
    one of the two has no more than the digits of float32."""
    rows, tau = held_out.get("calibration"), threshold.tau
    if rows is None or tau is None:
        return
    u = rows.uncertainty[COLUMN].astype(np.float64)
    # MCP of 0.1.0 is 1 - max(probs), which is rounded as numbers near 1 are.
    rounded_mcp = not by_logit and _method(source) == "mcp"
    if not rounded_mcp and by_logit != (u == u.astype(np.float32)).all():
        return  # Both have the same digits.
    digits = np.finfo(np.float32)
    rounding = RESOLUTION if rounded_mcp else 4 * float(digits.eps) * u + float(digits.tiny)
    near = int(np.sum(np.abs(u - tau) <= rounding))
    if near and by_logit:
        raise ValueError(
            f"{source}: expected calibration rows as exact as this model decides, received u in "
            f"single precision, {near} of them nearer to tau {tau:.6g} than that tells apart; the "
            "rows that the model brings along have all digits"
        )
    if near:
        raise ValueError(
            f"{source}: expected a threshold that this model can hold, which compares u in single "
            f"precision, received tau {tau:.6g} with {near} calibration rows nearer to it than "
            "that tells apart; export the run or the judge again"
        )


def _method(source: Path) -> str:
    about = read_about(source).get("uncertainty")
    return str(about.get("method", "")) if isinstance(about, Mapping) else ""


def _compare(source: Path, changed: Path, threshold: Threshold, about: str) -> None:
    """Raises RuntimeError unless two versions answer alike but for their decision."""
    old, new = (tf.saved_model.load(str(path)).signatures for path in (source, changed))
    # The graph is a copy: where `about` of the source takes nothing, as it once did, it does here.
    told = new["about"]
    asked = {name: tf.constant(["?"]) for name in told.structured_input_signature[1]}
    if np.ravel(told(**asked)["json"].numpy())[0].decode() != about:
        raise RuntimeError(f"export: expected the new threshold in {ABOUT_FILE}, received the old")
    images = _warmup_inputs(source / WARMUP_FILE)
    wanted, found = (
        {name: value.numpy() for name, value in s[SIGNATURE](images=images).items()}
        for s in (old, new)
    )
    u = found["uncertainty"].astype(np.float64)
    if (
        (wanted["predicted"] != found["predicted"]).any()
        # It is rounded to the side of tau that it is on.
        or not _close(found["uncertainty"], wanted["uncertainty"], True).all()
        or (found["accept"] != (u < _limit(threshold))).any()
    ):
        raise RuntimeError(
            "export: expected the answers of the version that was copied, received others"
        )


@contextlib.contextmanager
def _temporary_directory(folder: Path) -> Iterator[Path]:
    """Yields a new directory in `folder`; removes it unless it was renamed by then.

    Also sweeps away what killed exports left. A live export holds a lock on its
    directory; one younger than the sweep's limit may not have taken it yet.
    """
    check_folder("export", folder)
    for leftover in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        # One that is published meanwhile is gone under this name.
        with contextlib.suppress(FileNotFoundError), _lock(leftover) as held:
            if held and time.time() - leftover.stat().st_mtime > 5:
                shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        with _lock(temporary):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[bool]:
    """Yields whether `directory` is now held; False also where the file system has no locks."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = True
    except OSError:
        held = False
    try:
        yield held
    finally:
        os.close(handle)


def _publish(temporary: Path, folder: Path) -> Path:
    """Renames `temporary` to the next free version number, whoever else exports meanwhile."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
    while True:
        target = folder / str(max(versions(folder), default=0) + 1)
        try:
            # Fails on a directory with content, so an export that was faster keeps its number.
            os.rename(temporary, target)
            return target
        except OSError:
            if not target.exists():
                raise
