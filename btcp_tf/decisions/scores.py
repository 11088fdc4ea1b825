"""What a threshold was chosen on, and what a model said since: read from files, and checked.

A baseline is a run's folder, an exported model or a predictions file; scores are what
`btcp_tf.predict` writes, or a predictions file of any program. Labels may come later, in a file of
their own. The order of labels is that of a column of times, if one is named, else that of the rows.
`btcp_tf.monitor` compares them.
"""

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import files, wording
from btcp_tf.decisions import decision_file, exported
from btcp_tf.decisions.decision_file import DECISION_FILE
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation import predictions, results, tabular
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.evaluation.tabular import ENDINGS
from btcp_tf.thresholds import Threshold


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """What the threshold was chosen on."""

    name: str
    """Where it comes from."""
    uncertainty: np.ndarray
    """`[n]` floats."""
    predicted: np.ndarray
    """`[n]` int64."""
    column: str
    """Name of the uncertainty."""
    classes: int | None = None
    """Number of classes; None: unknown."""
    class_names: tuple[str, ...] | None = None
    threshold: Threshold | None = None
    """None: a predictions file has none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Answers to what came later, in the order of the file; rows without an answer are left out."""

    name: str
    uncertainty: np.ndarray
    """`[m]` floats."""
    predicted: np.ndarray
    """`[m]` int64."""
    column: str
    inputs: tuple[str, ...] | None = None
    """What each row answers, `[m]`; None: unknown."""
    labels: np.ndarray | None = None
    """True classes `[m]` int64, -1 where unknown; None: all are."""
    accept: np.ndarray | None = None
    """What the scores themselves say, `[m]` bool; not used but to be compared."""
    classes: int | None = None
    class_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """By class number, as far as the scores name them."""
    problems: tuple[str, ...] = ()
    """Inputs without an answer."""
    times: np.ndarray | None = None
    """When each row came, `[m]` float64; only its order counts. None: unknown."""

    def digests(self, rows: np.ndarray, labels: np.ndarray) -> list[bytes]:
        """What tells labeled rows apart wherever they stand in a file: 32 bytes for each.

        Args:
          rows: `[l]` whole numbers from 0.
          labels: Their true classes, `[l]` whole numbers.
        """
        names = self.inputs or [""] * len(self.predicted)
        # Every form of a file keeps the digits of float32; u of others may be beyond its range.
        with np.errstate(over="ignore"):
            u = self.uncertainty.astype(np.float32)
        return [
            hashlib.sha256(
                f"{u[row]!r} {self.predicted[row]} {label} {names[row]}".encode(
                    "utf-8", "surrogateescape"
                )
            ).digest()
            for row, label in zip(rows.tolist(), labels.tolist(), strict=True)
        ]

    def labeled(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows that have a label and their true classes, as `join_labels`; None: there are none."""
        if self.labels is None:
            return None
        rows = np.flatnonzero(self.labels >= 0)
        times = None if self.times is None else self.times[rows]
        return _in_time(self, rows, self.labels[rows], times)


def load_baseline(path: str | os.PathLike, *, column: str = "") -> Baseline:
    """Reads what a threshold was chosen on.

    Args:
      path: A run's folder, an exported model's directory or its parent (then its highest version),
        or a predictions file.
      column: Name of the uncertainty in a predictions file that has several.

    Raises:
      ValueError: If it is none of these, or not complete; the message says what is missing.
      OSError: If a file cannot be opened.
    """
    path = files.as_path("baseline", path)
    if path.is_file():
        found = predictions.load_predictions(path)
        return _of_predictions(str(path), found, _choose(path, found, column))
    decision = decision_file.load_decision(path)
    if decision:
        class_names = None
        if (path / "results.json").is_file():
            _, extra = results.load_rows(path / "results.json")
            class_names = (extra.get("data") or {}).get("class_names")
        found = decision.calibration
        return _of_predictions(str(path), found, decision.method, class_names, decision.threshold)
    try:
        model = exported.newest(path)
    except FileNotFoundError:
        raise ValueError(
            f"baseline: expected a run's folder with {DECISION_FILE}, an exported model "
            f"or a predictions file, received {path}, which is none of them"
        ) from None
    about = exported.read_about(model)
    calibration = exported.read_held_out(model).get("calibration")
    if calibration is None:
        raise ValueError(
            f"{model}: expected the calibration set's answers in assets.extra, received none; "
            "name the run's folder or a predictions file instead"
        )
    column = _choose(model, calibration, COLUMN)
    threshold = thresholds.from_json(about["threshold"])
    return _of_predictions(str(model), calibration, column, about["class_names"], threshold)


def _of_predictions(
    name: str,
    found: Predictions,
    column: str,
    class_names: Sequence[str] | None = None,
    threshold: Threshold | None = None,
) -> Baseline:
    classes = None if found.probs is None else found.probs.shape[1]
    # As the answers of a model that was exported before names were cleaned are compared, too.
    names = tuple(wording.clean(str(name)) for name in class_names) if class_names else None
    if class_names:
        if classes not in (None, len(class_names)) or found.predicted.max() >= len(class_names):
            raise ValueError(
                f"{name}: expected answers of {len(class_names)} classes, as many as have names, "
                f"received {classes or int(found.predicted.max()) + 1}"
            )
        classes = len(class_names)
    u = found.uncertainty[column]
    return Baseline(name, u, found.predicted, column, classes, names, threshold)


def _choose(path: Path, found: Predictions, column: str) -> str:
    names = list(found.uncertainty)
    if column in names or (not column and len(names) == 1):
        return column or names[0]
    wanted = f"an uncertainty column {column}" if column else "one uncertainty column, or --column"
    raise ValueError(f"{path}: expected {wanted}, received {', '.join(names)}")


def load_scores(
    path: str | os.PathLike, columns: Sequence[str] = ("uncertainty",), *, time_column: str = ""
) -> Scores:
    """Reads what `btcp_tf.predict` wrote, or a predictions file of any program.

    Args:
      path: .csv, .jsonl or .parquet with `predicted` and an uncertainty, perhaps `input`, `labels`
        (may be empty), `class_name`, `accept`, `problem` and class probabilities; or whatever
        `evaluation.load_predictions` reads.
      columns: Names that the uncertainty may have; the first that is there is taken.
      time_column: Column that says when a row came, see `Columns.times`; `times` is None without.

    Raises:
      ValueError: If the file is not as described or has no row with an answer; the message names
        the column and the line.
      OSError: If it cannot be opened.
    """
    path = files.as_path("scores", path)
    found = None
    if path.suffix.lower() in ENDINGS:
        aside = ("input", "labels", "predicted", "class_name", "accept", "problem")
        found = tabular.read(path, (*aside, *columns, *filter(None, [time_column])))
    if found is None or "predicted" not in found.names:
        times = None
        if found is not None and time_column in found.values:
            times = found.answered().times(time_column)
        return _of_file(path, columns, times)
    column = next((name for name in columns if name in found.names), columns[0])
    found.require(column)
    names = found.values.get("input", found.places)
    bad = found.values.get("problem", ())
    problems = tuple(str(name) for name, problem in zip(names, bad, strict=False) if problem)
    found = found.answered()
    predicted = np.array(found.converted("predicted", _class, "a class number"), np.int64)
    inputs = labels = accept = None
    if "input" in found.values:
        inputs = tuple(map(str, found.values["input"]))
    if "labels" in found.values:
        labels = np.array(found.converted("labels", _label, "a class number or nothing"), np.int64)
    if any(value is not None for value in found.values.get("accept", ())):
        accept = np.array(found.converted("accept", tabular.truth, "true or false"), bool)
    times = found.times(time_column) if time_column in found.values else None
    u = found.numbers(column)
    predictions.check_size(f"{path}: {column}", u)
    pairs = zip(predicted.tolist(), found.values.get("class_name", ()), strict=False)
    class_names = {number: wording.clean(str(name)) for number, name in pairs if name is not None}
    return Scores(
        str(path),
        u,
        predicted,
        column,
        inputs,
        labels,
        accept,
        found.classes,
        class_names,
        problems,
        times,
    )


def _of_file(path: Path, columns: Sequence[str], times: np.ndarray | None) -> Scores:
    found = predictions.load_predictions(path)
    names = list(found.uncertainty)
    column = next((name for name in columns if name in names), None)
    if column is None and len(names) == 1:
        column = names[0]
    column = column or _choose(path, found, columns[0])
    classes = None if found.probs is None else found.probs.shape[1]
    u = found.uncertainty[column]
    # Without labels here they are unknown, whatever else that may mean elsewhere.
    return Scores(
        str(path), u, found.predicted, column, labels=found.labels, classes=classes, times=times
    )


def _class(value: Any) -> int:
    # Programs that know no missing whole number write floats, and NaN.
    return tabular.class_number(
        int(value) if isinstance(value, float) and value.is_integer() else value
    )


def _label(value: Any) -> int:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return -1 if missing else _class(value)


def join_labels(
    scores: Scores, path: str | os.PathLike, *, time_column: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Labels that arrived later, in their order.

    Args:
      scores: With `inputs`.
      path: .csv, .jsonl or .parquet with the columns `input` and `labels`, a row for each label.
      time_column: Column of this file that says when a label came, see `Columns.times`; if it is
        not there, the order is that of `scores.times`.

    Returns:
      Rows of the scores `[l]` int64 and their true classes `[l]` int64, in the order of time, or
      without any times in that of the file. Labels of inputs that have no answer are left out.

    Raises:
      ValueError: If an input is unknown, ambiguous or labeled twice, a label is missing, or none
        belongs to an answer.
      OSError: If the file cannot be opened.
    """
    path = files.as_path("labels", path)
    if not isinstance(scores, Scores):
        raise ValueError(f"scores: expected those of load_scores, received {type(scores).__name__}")
    if scores.inputs is None:
        raise ValueError(
            f"labels: expected scores with a column input to join them by, received {scores.name}, "
            "which has none"
        )
    if scores.labels is not None:
        raise ValueError(
            f"labels: expected labels in {path} or in {scores.name}, received them in both"
        )
    found = tabular.read(path, ("input", "labels", *filter(None, [time_column])))
    found.require("input", "labels")
    given = found.times(time_column) if time_column in found.values else None
    if time_column and given is None and scores.times is None:
        raise ValueError(
            f"time_column: expected a column {time_column} in {path} or {scores.name}, "
            "received none"
        )
    rows_of: dict[str, int] = {}
    twice = set()
    for row, name in enumerate(scores.inputs):
        if name in rows_of:
            twice.add(name)
        rows_of[name] = row
    without = set(scores.problems)
    values = found.converted("labels", _class, "a class number")
    seen: set[str] = set()
    rows, labels, kept = [], [], []
    for number, value in enumerate(values):
        name = str(found.values["input"][number])
        where = f"{tabular.shown(name)!r} {found.place(number)}"
        if name in seen:
            raise ValueError(f"{path}: expected each input once, received {where} again")
        if name in twice:
            raise ValueError(
                f"{path}: expected inputs that {scores.name} holds once, received {where}, "
                "which it holds several times"
            )
        if name not in rows_of and name not in without:
            raise ValueError(f"{path}: expected inputs of {scores.name}, received {where}")
        seen.add(name)
        if name in rows_of:
            rows.append(rows_of[name])
            labels.append(value)
            kept.append(number)
    if not rows:
        raise ValueError(
            f"{path}: expected labels of inputs that have an answer, received "
            f"{len(values)} of inputs without one"
        )
    places, times = np.array(rows, np.int64), None
    if given is not None:
        times = given[kept]
    elif scores.times is not None:
        times = scores.times[places]
    return _in_time(scores, places, np.array(labels, np.int64), times)


def _in_time(
    scores: Scores, rows: np.ndarray, labels: np.ndarray, times: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels in the order of time, if there is one.

    Rows of the same time follow their digests: an order that has nothing to do with who is right,
    and is the same wherever the rows stand in a file.
    """
    if times is None:
        return rows, labels
    starts = b"".join(digest[:8] for digest in scores.digests(rows, labels))
    order = np.lexsort((np.frombuffer(starts, np.uint64), times))
    return rows[order], labels[order]
