"""SavedModels: written aside, checked in a fresh process, then published under a number.

A version directory appears under its number only when it is complete and has
answered like the Keras model in a process that could not import this package.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import btcp_tf

SIGNATURE = "serving_default"
METADATA_FILE = "assets.extra/btcp_tf.json"
TOLERANCE = 1e-6
"""Largest accepted difference between a float answer of the SavedModel and of Keras."""

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
model = tf.saved_model.load(sys.argv[2])
answer = model.signatures[sys.argv[3]]
images = np.load(sys.argv[4])
found = {}
for size in json.loads(sys.argv[5]):
    for name, value in answer(images=tf.constant(images[:size])).items():
        found[f"{size}/{name}"] = value.numpy()
np.savez(sys.argv[6], **found)
"""


def export(
    model: keras.Model,
    root: str | os.PathLike,
    name: str,
    class_names: Sequence[str],
    metadata: Mapping[str, Any],
    sample_images: np.ndarray,
) -> Path:
    """Writes `<root>/<name>/<n>/`, a SavedModel that TF Serving and plain TensorFlow load.

    The signature `serving_default` takes `images` `[n, ...]` as the model does
    (uint8 `[n, height, width, channels]` for the networks trained here), any n
    from 0, and answers `predicted` int64 `[n]`, `probs`
    float32 `[n, k]` and `uncertainty` float32 `[n]` in [0, 1]. The file
    `assets.extra/btcp_tf.json` holds `class_names`, `image_shape`, `versions`
    and `metadata`; NaN and infinity become null in it.

    Before the directory gets its number, a fresh process without `btcp_tf`
    loads it and answers for no image, the first and all of `sample_images`, on
    the CPU; its answers must equal those of `model` (floats to `TOLERANCE`).

    Args:
      model: Functional model from images, or other numbers, `[n, ...]` to
        `probs` `[n, k]` and `uncertainty` `[n, 1]`. May live under a
        distribution strategy; the SavedModel does not.
      root: Export root; made where it is missing.
      name: Directory below `root`, such as the data set's name.
      class_names: The k names, in the order of `probs`.
      metadata: What else a reader of the model should know; JSON values.
      sample_images: `[m, ...]` in the model's type, at least one.

    Returns:
      The new version directory. Its number is one above the largest that
      exists, 1 for the first; a version that exists is never touched.

    Raises:
      ValueError: If the arguments do not fit the model or each other.
      RuntimeError: If the check fails, with what differed; nothing is left behind.
    """
    _validate(model, name, class_names, sample_images)
    folder = Path(root) / name
    with _temporary_directory(folder) as temporary:
        _write(model, temporary)
        _write_metadata(temporary / METADATA_FILE, model, class_names, metadata)
        _check(model, temporary, sample_images)
        return _publish(temporary, folder)


def versions(folder: str | os.PathLike) -> list[int]:
    """Version numbers below `<root>/<name>`, ascending; empty where it does not exist."""
    folder = Path(folder)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("[0-9]+", name))


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


def _answers(model: keras.Model, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """What the signature answers, by name."""
    # oneDNN's fused convolution gives an empty batch the shape of its input (TensorFlow 2.21), and
    # what follows fails. So an empty batch runs as one blank image, whose answer is cut off.
    count = tf.shape(images)[0]
    blank = tf.cast(count == 0, tf.int32)
    padding = [[0, blank]] + [[0, 0]] * (images.shape.rank - 1)
    outputs = model(tf.pad(images, padding), training=False)
    probs, uncertainty = outputs["probs"][:count], outputs["uncertainty"][:count, 0]
    return {
        "predicted": tf.argmax(probs, axis=-1, output_type=tf.int64),
        "probs": tf.cast(probs, tf.float32),
        "uncertainty": tf.cast(uncertainty, tf.float32),
    }


def _write(model: keras.Model, directory: Path) -> None:
    # The graphs of a distributed model name this machine's devices, and a server has others.
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in model.variables):
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        model = copy
    images = tf.TensorSpec((None, *model.input.shape[1:]), model.input.dtype, name="images")
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        SIGNATURE, lambda images: _answers(model, images), input_signature=[images]
    )
    archive.write_out(str(directory), verbose=False)


def _write_metadata(
    path: Path, model: keras.Model, class_names: Sequence[str], metadata: Mapping[str, Any]
) -> None:
    content = {
        "class_names": [str(name) for name in class_names],
        "image_shape": list(model.input.shape[1:]),
        "versions": {
            "btcp_tf": btcp_tf.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "metadata": _jsonable(metadata),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


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


def _check(model: keras.Model, directory: Path, sample_images: np.ndarray) -> None:
    """Raises RuntimeError unless the directory answers like `model` in a fresh process."""
    sizes = sorted({0, 1, len(sample_images)})
    with tempfile.TemporaryDirectory() as scratch:
        images, answers = os.path.join(scratch, "images.npy"), os.path.join(scratch, "answers.npz")
        np.save(images, sample_images)
        arguments = (
            json.dumps(sys.path),
            str(directory),
            SIGNATURE,
            images,
            json.dumps(sizes),
            answers,
        )
        # This process may hold all memory of the GPUs, and they round differently from a CPU.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        try:
            subprocess.run(
                [sys.executable, "-I", "-c", _CHECK_SCRIPT, *arguments],
                env=environment,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=_CHECK_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                "export: expected a SavedModel that answers in a fresh process without btcp_tf, "
                f"received exit status {error.returncode} and\n{error.stderr[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                "export: expected answers of a fresh process, "
                f"received none within {_CHECK_SECONDS} s"
            ) from error
        with np.load(answers) as loaded:
            found = dict(loaded)
    wanted = _keras_answers(model, sample_images, sizes)
    differences = _differences(found, wanted)
    if differences:
        raise RuntimeError(
            "export: expected a SavedModel that answers like the Keras model, received "
            + "; ".join(differences)
        )


def _keras_answers(
    model: keras.Model, images: np.ndarray, sizes: Sequence[int]
) -> dict[str, np.ndarray]:
    images_spec = tf.TensorSpec((None, *images.shape[1:]), images.dtype)

    @tf.function(input_signature=[images_spec], jit_compile=False)
    def outputs_on_cpu(images: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            return model(images, training=False)

    wanted = {}
    for size in sizes:
        outputs = outputs_on_cpu(tf.constant(images[: max(size, 1)]))
        probs = outputs["probs"].numpy()[:size].astype(np.float32)
        wanted[f"{size}/predicted"] = probs.argmax(axis=-1).astype(np.int64)
        wanted[f"{size}/probs"] = probs
        wanted[f"{size}/uncertainty"] = outputs["uncertainty"].numpy()[:size, 0].astype(np.float32)
    return wanted


def _differences(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[str]:
    """What differs, in words, one line for each answer; empty where nothing does."""
    if found.keys() != wanted.keys():
        return [f"the answers {sorted(found)} in place of {sorted(wanted)}"]
    lines = []
    for key, want in wanted.items():
        size, name = key.split("/")
        got, where = found[key], f"{name} of a batch of {size}"
        if got.dtype != want.dtype or got.shape != want.shape:
            lines.append(f"{where}: {got.dtype} {got.shape} in place of {want.dtype} {want.shape}")
        elif name == "predicted" and (got != want).any():
            lines.append(f"{where}: {np.count_nonzero(got != want)} other classes")
        elif name != "predicted":
            bad = ~(np.abs(got - want) <= TOLERANCE)  # "not <=", so that NaN is a difference.
            if bad.any():
                lines.append(
                    f"{where}: {np.count_nonzero(bad)} values, the first {got[bad][0]:.9g} "
                    f"in place of {want[bad][0]:.9g}"
                )
    return lines


@contextlib.contextmanager
def _temporary_directory(folder: Path) -> Iterator[Path]:
    """Yields a new directory in `folder`; removes it unless it was renamed by then.

    Also sweeps away what killed exports left. A live export holds a lock on its
    directory; one younger than the sweep's limit may not have taken it yet.
    """
    folder.mkdir(parents=True, exist_ok=True)
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
