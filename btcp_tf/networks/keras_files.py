"""What a file is that is given as a classifier, and how its network was trained; without Keras."""

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

from btcp_tf.core import files

_HDF5 = b"\x89HDF\r\n\x1a\n"

_SAVE = "then model.save('my.keras')"

_REGRESSION = {
    "meansquarederror": "mse",
    "meanabsoluteerror": "mae",
    "meanabsolutepercentageerror": "mape",
    "meansquaredlogarithmicerror": "msle",
    "huber": "huber",
    "logcosh": "log_cosh",
    "poisson": "poisson",
}
"""Losses of regressions, in letters alone, and short names for them."""


def check_file(setting: str, path: str | os.PathLike) -> Path:
    """The path of a file that may be a `.keras` file; what is something else is called by its name.

    Args:
      setting: Name of the argument, for errors.
      path: The file.

    Raises:
      FileNotFoundError: If there is no such file, or it is a folder.
      ValueError: If it is no path, or the file is no zip archive.
    """
    found = files.as_path(setting, path)
    kind = _kind_of_folder(found) if found.is_dir() else _kind_of_file(found)
    if not kind:
        return files.check_keras_file(setting, found)
    error = FileNotFoundError if found.is_dir() else ValueError
    raise error(f"{setting}: expected a .keras file, received {found}, which is {kind}")


def check_classifier(setting: str, path: str | os.PathLike) -> Path:
    """As `check_file`, of the file of a classifier: one of a `Judge` is refused, too."""
    found = check_file(setting, path)
    if b'"btcp_tf>Card"' in _config(found):
        raise ValueError(
            f"{setting}: expected a classifier, received a Judge ({found}), which holds one with "
            "an estimator: give the classifier's own .keras file; btcp_tf.load reads this one"
        )
    return found


def loss_in(path: str | os.PathLike) -> Any:
    """The loss that the model in a `.keras` file was compiled with, as Keras wrote it: a name, a
    dictionary, perhaps one for each output; None: it was not compiled, or the file is damaged."""
    try:
        return (json.loads(_config(Path(path))).get("compile_config") or {}).get("loss")
    except (AttributeError, ValueError):
        return None


def regression_loss(loss: Any) -> str:
    """The short name of a loss if it is that of a regression; else "".

    Args:
      loss: What `keras.Model.compile` takes, or what a file holds of it.

    >>> regression_loss("mean_squared_error"), regression_loss("binary_crossentropy")
    ('mse', '')
    """
    if isinstance(loss, dict) and "class_name" not in loss:
        loss = list(loss.values())
    if isinstance(loss, list | tuple):
        return regression_loss(loss[0]) if len(loss) == 1 else ""
    if isinstance(loss, dict):
        # A function is written as the name of its kind, with its own name beside it.
        is_function = loss["class_name"] == "function"
        loss = loss.get("config") if is_function else loss["class_name"]
    elif loss is not None and not isinstance(loss, str):
        loss = getattr(loss, "__name__", type(loss).__name__)
    letters = re.sub("[^a-z]", "", str(loss).lower())
    return letters if letters in _REGRESSION.values() else _REGRESSION.get(letters, "")


def _config(path: Path) -> bytes:
    """The description of the layers in a `.keras` file; b"": there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read("config.json")
    except (KeyError, OSError, zipfile.BadZipFile):
        return b""


def _kind_of_folder(path: Path) -> str:
    """What a folder holds in the place of a `.keras` file, and what to do; "": something else."""
    if (path / "saved_model.pb").exists() or any(path.glob("*/saved_model.pb")):
        return (
            "no file, but a SavedModel: Keras cannot take it apart into layers; give the model "
            "that it was exported from, saved with model.save('my.keras')"
        )
    if (path / "flags.cfg").is_file():
        return (
            "no file, but the folder of a run, whose checkpoints are no .keras files: "
            f"--flagfile={path / 'flags.cfg'} repeats the run with its own classifier"
        )
    return ""


def _kind_of_file(path: Path) -> str:
    """What a file is in the place of a `.keras` file, and what to do; "": nothing known."""
    try:
        with path.open("rb") as file:
            is_hdf5 = file.read(len(_HDF5)) == _HDF5
    except OSError:
        return ""
    if not is_hdf5:
        return ""
    if path.name.endswith(".weights.h5"):
        return (
            "a file of weights alone: build the model, call model.load_weights on this file, "
            + _SAVE
        )
    return (
        "an HDF5 file: read it with keras.models.load_model (or, if it holds weights alone, build "
        f"the model and call model.load_weights), {_SAVE}"
    )
