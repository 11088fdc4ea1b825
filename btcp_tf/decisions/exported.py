"""What an exported SavedModel says of itself, read without TensorFlow.

`btcp_tf.serving.saved_model` writes it.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from btcp_tf import thresholds
from btcp_tf.core import json_files
from btcp_tf.core.files import as_path
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions

SIGNATURE = "serving_default"
"""Of the model's own inputs."""

ABOUT_FILE = "assets.extra/btcp_tf.json"
"""In a version directory; see `saved_model.export`."""

COLUMN = "uncertainty"
"""Name of u in a model's answers, and in the predictions files beside the model."""


DECIDE_ONLY = "decide_only"
"""Key of `ABOUT_FILE`: true where u is computed only as far as `accept` hangs on it."""


GROUP_INPUT = "group_input"
"""Key of `ABOUT_FILE`: name of the input with the group of each row, where thresholds are by
group."""


def versions(folder: str | os.PathLike) -> list[int]:
    """Version numbers below `<root>/<name>`, ascending; empty where it does not exist."""
    folder = Path(folder)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("[0-9]+", name))


def read_about(directory: str | os.PathLike) -> dict[str, Any]:
    """What `export` wrote about the model of a version directory.

    Raises:
      FileNotFoundError: If there is none.
      ValueError: If it cannot be read.
    """
    path = as_path("model", directory) / ABOUT_FILE
    if not path.is_file():
        raise FileNotFoundError(
            "model: expected a SavedModel that btcp_tf exported, received "
            f"{os.fspath(directory)!r} without {ABOUT_FILE}"
        )
    try:
        content = json_files.parse(path.read_text(encoding="utf-8"))
        thresholds.from_json(content["threshold"])
        if not isinstance(content["class_names"], list):
            raise TypeError(f"class_names is {content['class_names']!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: expected what btcp_tf writes about a model, received what cannot be read "
            f"({error})"
        ) from error
    return content


def check_answers_u(directory: str | os.PathLike, about: Mapping[str, Any]) -> None:
    """ValueError if the model computes u only as far as its own threshold hangs on it, so that no
    other one can be chosen on its answers or put into it.

    Args:
      directory: Its version directory.
      about: From `read_about`.
    """
    if about.get(DECIDE_ONLY):
        raise ValueError(
            f"{os.fspath(directory)}: expected a model that computes every look, received one for "
            "decisions by its own threshold alone (decide_only); choose another one with "
            "Judge.select_threshold and export again"
        )


def check_same_u(
    scores: str | os.PathLike, source: str | os.PathLike, about: Mapping[str, Any]
) -> None:
    """ValueError where `btcp_tf.predict` says that scores are of a version with another u.

    Args:
      scores: The file of scores.
      source: A version directory, or a run's folder, that they are to be compared with.
      about: From `read_about`; of a run's folder nothing.
    """
    try:
        content = json_files.parse(predictions.about_file(scores).read_text(encoding="utf-8"))
        theirs = content.get("recalibrations") or []
    except (OSError, ValueError, AttributeError):
        return  # Of another program, or moved without it.
    if theirs != (about.get("recalibrations") or []):
        raise ValueError(
            f"{os.fspath(scores)}: expected u of {os.fspath(source)}, received u of a version that "
            "was recalibrated otherwise; name that version, or score the inputs again by this one: "
            "python -m btcp_tf.predict --labels"
        )


def read_held_out(directory: str | os.PathLike) -> dict[str, Predictions]:
    """The predictions files of a version directory, by name: "calibration", "validation"."""
    files = (as_path("model", directory) / ABOUT_FILE).parent.glob("*.npz")
    return {path.stem: predictions.load_predictions(path) for path in sorted(files)}


def newest(path: str | os.PathLike) -> Path:
    """The version directory of a SavedModel: `path` itself, or the highest version in it.

    Raises:
      FileNotFoundError: If it is neither.
      ValueError: If it is no path.
    """
    path = as_path("model", path).expanduser()
    for folder in (path, *(path / str(number) for number in reversed(versions(path)))):
        if (folder / "saved_model.pb").is_file():
            return folder
    state = "holds neither" if path.is_dir() else "is a file" if path.exists() else "is not there"
    raise FileNotFoundError(
        "model: expected the folder of a SavedModel or of its numbered versions, received "
        f"{os.fspath(path)!r}, which {state}"
    )
