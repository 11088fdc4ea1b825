"""What an exported SavedModel says of itself, read without TensorFlow.

`btcp_tf.serving.saved_model` writes it.
"""

import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

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


DECIDE_ONLY = predictions.DECIDE_ONLY
"""Key of `ABOUT_FILE`: true where u is computed only as far as `accept` hangs on it."""


HELD_OUT = "held_out"
"""Key of `ABOUT_FILE`: the `digest` of each predictions file beside it, by name."""


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
      ValueError: If it cannot be read, or says something else of the model's decisions than the
        model itself: it was edited, or is that of another version.
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
    own = _own_about(path.parents[1])
    if own and (changed := [name for name in _DECIDING if own.get(name) != content.get(name)]):
        raise ValueError(
            f"{path}: expected {', '.join(changed)} as the model itself has it, received a file "
            "that was changed after the export, or that of another model; put it back as it was, "
            "or export the model again"
        )
    return content


_DECIDING = ("threshold", "recalibrations", "class_names", GROUP_INPUT, DECIDE_ONLY, HELD_OUT)
"""What a version directory says of its decisions, in the file and in the graph."""


def _own_about(directory: Path) -> dict[str, Any] | None:
    """What the graph of a version directory answers about itself; None where it does not say.

    It is a variable with the text of `ABOUT_FILE`, which stands among the others as it is. Models
    of version 0.1.0 hold it elsewhere.
    """
    for path in sorted((directory / "variables").glob("variables.data-*")):
        for text in _texts_of_json(path):
            try:
                content = json.loads(text)
            except ValueError:  # Weights that look like the beginning of one.
                continue
            if isinstance(content, dict) and {"threshold", "class_names"} <= content.keys():
                return content
    return None


def _texts_of_json(path: Path) -> Iterator[bytes]:
    """What may be a JSON object as `saved_model` writes it, with an indent of 2."""
    if not path.stat().st_size:  # It cannot be mapped.
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(b'{\n  "')
        while start >= 0 and (end := data.find(b"\n}", start)) >= 0:
            yield data[start : end + 2]
            start = data.find(b'{\n  "', start + 1)


def digest(rows: Predictions) -> str:
    """What tells answers beside a model from others: SHA-256 of labels, predicted classes, u and
    groups."""
    columns = [rows.labels, rows.predicted]
    for name in (COLUMN, predictions.REFERENCE):
        u = rows.uncertainty.get(name)
        columns.append(None if u is None else u.astype(np.float64))
    columns += [None if one is None else one.astype(str) for one in (rows.groups, rows.by)]
    found = hashlib.sha256()
    for one in columns:
        found.update(b"-" if one is None else repr(one.tolist()).encode("utf-8", "replace"))
    return found.hexdigest()


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
    """The predictions files of a version directory, by name: "calibration", "validation".

    Raises:
      ValueError: If one cannot be read, or is not the one that was written with the model. What is
        beside models of earlier versions is taken as it is.
    """
    files = (as_path("model", directory) / ABOUT_FILE).parent.glob("*.npz")
    found = {path.stem: predictions.load_predictions(path) for path in sorted(files)}
    known = read_about(directory).get(HELD_OUT) or {}
    for name, rows in found.items():
        if name in known and digest(rows) != known[name]:
            raise ValueError(
                f"{Path(directory) / ABOUT_FILE}: expected {name}.npz beside it as it was "
                "exported, received other answers: it was changed, or is that of another model; "
                "put it back as it was, or export the model again"
            )
    return found


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
