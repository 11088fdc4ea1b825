"""What a threshold was chosen on, and what a model said since: read from files, and checked.

A baseline is a run's folder, an exported model or a predictions file; scores are what
`btcp_tf.predict` writes, or a predictions file of any program. Labels may come later, in a file of
their own. `btcp_tf.monitor` compares them.
"""

import csv
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btcp_tf import evaluation
from btcp_tf.command import one_line
from btcp_tf.evaluation import Predictions

SCORES = (".csv", ".jsonl", ".parquet", ".npz")
"""Endings of the files that scores may be in."""


# What is compared ------------------------------------------------------------------------------


class Rule(NamedTuple):
    """The threshold under watch."""

    tau: float | None
    """u < tau is accepted; None: nothing is."""
    target: float | None
    """Limit of the error rate of accepted answers; None: nothing was promised."""
    delta: float | None
    """Probability, allowed when tau was chosen, that the promise does not hold."""
    words: str
    """How tau was chosen."""


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
    rule: Rule | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Answers to what came later, in order; rows without an answer are left out."""

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


# Reading ---------------------------------------------------------------------------------------


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
    path = Path(path)
    if path.is_file():
        found = evaluation.load_predictions(path)
        return _of_predictions(str(path), found, _choose(path, found, column))
    if (path / "decision.json").is_file():
        return _of_run(path)
    versions = [int(entry.name) for entry in path.glob("*") if re.fullmatch(r"[0-9]+", entry.name)]
    for folder in (path, *([path / str(max(versions))] if versions else [])):
        if (folder / "assets.extra" / "btcp_tf.json").is_file():
            return _of_model(folder)
    raise ValueError(
        "baseline: expected a run's folder with decision.json, an exported model with "
        f"assets.extra/btcp_tf.json, or a predictions file, received {path}, which is none of them"
    )


def _of_run(folder: Path) -> Baseline:
    source = folder / "decision.json"
    decision = _read_json(source)
    rule = _rule(decision.get("threshold"), source)
    name, column = decision.get("predictions"), decision.get("column")
    if not (isinstance(name, str) and isinstance(column, str)):
        raise ValueError(
            f"{source}: expected the names predictions and column, "
            f"received {', '.join(decision) or 'none'}"
        )
    file = folder / name
    if not file.is_file():
        raise ValueError(
            f"{source}: expected the calibration set's answers in {file}, received no such file; "
            "the run is not complete"
        )
    found = evaluation.load_predictions(file)
    class_names = None
    if (folder / "results.json").is_file():
        _, extra = evaluation.load_rows(folder / "results.json")
        class_names = _names((extra.get("data") or {}).get("class_names"))
    baseline = _of_predictions(str(folder), found, _choose(file, found, column), class_names)
    return dataclasses.replace(baseline, rule=rule)


def _of_model(folder: Path) -> Baseline:
    source = folder / "assets.extra" / "btcp_tf.json"
    about = _read_json(source)
    rule = _rule(about.get("threshold"), source)
    file = folder / "assets.extra" / "calibration.npz"
    if not file.is_file():
        raise ValueError(
            f"{folder}: expected the calibration set's answers in {file}, received none; "
            "name the run's folder or a predictions file instead"
        )
    found = evaluation.load_predictions(file)
    names = _names(about.get("class_names"))
    baseline = _of_predictions(str(folder), found, _choose(file, found, "uncertainty"), names)
    return dataclasses.replace(baseline, rule=rule)


def _of_predictions(
    name: str, found: Predictions, column: str, class_names: tuple[str, ...] | None = None
) -> Baseline:
    classes = None if found.probs is None else found.probs.shape[1]
    if class_names is not None:
        if classes not in (None, len(class_names)) or found.predicted.max() >= len(class_names):
            raise ValueError(
                f"{name}: expected answers of {len(class_names)} classes, as many as have names, "
                f"received {classes or int(found.predicted.max()) + 1}"
            )
        classes = len(class_names)
    return Baseline(name, found.uncertainty[column], found.predicted, column, classes, class_names)


def _choose(path: Path, found: Predictions, column: str) -> str:
    names = list(found.uncertainty)
    if column in names or (not column and len(names) == 1):
        return column or names[0]
    wanted = f"an uncertainty column {column}" if column else "one uncertainty column, or --column"
    raise ValueError(f"{path}: expected {wanted}, received {', '.join(names)}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, received {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, received {type(found).__name__}")
    return found


def _rule(threshold: Any, source: Path) -> Rule:
    if not isinstance(threshold, dict) or "tau" not in threshold:
        raise ValueError(f"{source}: expected a threshold with tau, received none")
    limits = {"tau": (-math.inf, math.inf), "target": (0.0, 1.0), "delta": (0.0, 1.0)}
    values = {name: threshold.get(name) for name in limits}
    for name, (low, high) in limits.items():
        value = values[name]
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and low < value < high):
            wanted = "a finite number" if name == "tau" else "a number between 0 and 1"
            raise ValueError(f"{source}: {name}: expected {wanted} or null, received {value!r}")
    return Rule(values["tau"], values["target"], values["delta"], str(threshold.get("rule", "")))


def _names(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) and value else None


@dataclasses.dataclass(frozen=True)
class _Table:
    """Some columns of a file of rows, as they stand there; None where a value is missing."""

    path: Path
    names: tuple[str, ...]
    """All columns of the file."""
    columns: Mapping[str, Sequence[Any]]
    places: Sequence[int]
    """Each row's line in the file, or its number."""
    place: str
    """What `places` counts: "line" or "row"."""
    classes: int | None
    """Number of class probabilities."""

    def __len__(self) -> int:
        return len(self.places)

    def converted(
        self, name: str, convert: Callable[[Any], Any], wanted: str, rows: Sequence[int]
    ) -> list[Any]:
        """A column's values at these rows; ValueError where `convert` raises one."""
        result = []
        for row in rows:
            value = self.columns[name][row]
            try:
                result.append(convert(value))
            except (TypeError, ValueError, OverflowError):
                received = "none" if value is None else repr(value)
                raise ValueError(
                    f"{self.path}: {name}: expected {wanted}, received {received} "
                    f"in {self.place} {self.places[row]}"
                ) from None
        return result

    def require(self, *names: str) -> None:
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ValueError(
                f"{self.path}: expected the column {missing[0]}, received "
                f"{', '.join(map(shown, self.names)) or 'none'}"
            )


def _read_table(path: Path, wanted: Sequence[str]) -> _Table:
    """Reads the wanted columns of a .csv, .jsonl or .parquet file.

    Raises:
      ValueError: If it cannot be read, or has no row.
    """
    read = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_csv)
    try:
        table = read(path, wanted)
    except (csv.Error, UnicodeError) as error:
        raise ValueError(f"{path}: expected rows of text, received {error}") from None
    if not len(table):
        raise ValueError(f"{path}: expected at least one row, received none")
    return table


def _read_csv(path: Path, wanted: Sequence[str]) -> _Table:
    # Names of files need not be UTF-8.
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        reader = csv.reader(file, strict=True)
        names = tuple(name.strip() for name in next(reader, []))
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"{path}: expected names in the first line, each once, "
                f"received {', '.join(map(shown, names)) or 'none'}"
            )
        kept = {name: names.index(name) for name in wanted if name in names}
        columns: dict[str, list[Any]] = {name: [] for name in kept}
        places = []
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(
                    f"{path}: expected {len(names)} entries, "
                    f"received {len(row)} in line {reader.line_num}"
                )
            for name, index in kept.items():
                columns[name].append(row[index] or None)
            places.append(reader.line_num)
    classes = sum(bool(re.fullmatch(r"probs_[0-9]+", name)) for name in names)
    return _Table(path, names, columns, places, "line", classes or None)


def _read_jsonl(path: Path, wanted: Sequence[str]) -> _Table:
    names: dict[str, None] = {}
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    places = []
    classes = None
    with open(path, encoding="utf-8") as file:
        for line, words in enumerate(file, start=1):
            if not words.strip():
                continue
            try:
                row = json.loads(words)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"{path}: expected a JSON object in line {line}, received none")
            names |= dict.fromkeys(row)
            for name, values in columns.items():
                values.append(row.get(name))
            probs = row.get("probs")
            if classes is None and isinstance(probs, list):
                classes = len(probs)
            places.append(line)
    return _Table(path, tuple(names), columns, places, "line", classes)


def _read_parquet(path: Path, wanted: Sequence[str]) -> _Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: expected pyarrow, which reads .parquet, to be installed, received none: "
            "pip install pyarrow"
        ) from None
    classes = None
    try:
        with parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
            found = file.read(columns=[name for name in wanted if name in names])
            if "probs" in names and file.num_row_groups:
                # A row without an answer has none.
                for value in file.read_row_group(0, columns=["probs"])["probs"]:
                    if value.as_py() is not None:
                        classes = len(value.as_py())
                        break
    except (pyarrow.ArrowException, TypeError) as error:
        raise ValueError(f"{path}: expected a Parquet file, received {one_line(error)}") from None
    columns = {name: found[name].to_pylist() for name in found.column_names}
    return _Table(path, names, columns, range(found.num_rows), "row", classes)


def load_scores(path: str | os.PathLike, columns: Sequence[str] = ("uncertainty",)) -> Scores:
    """Reads what `btcp_tf.predict` wrote, or a predictions file of any program.

    Args:
      path: .csv, .jsonl or .parquet with `predicted` and an uncertainty, perhaps `input`, `labels`
        (may be empty), `class_name`, `accept`, `problem` and class probabilities; or whatever
        `evaluation.load_predictions` reads.
      columns: Names that the uncertainty may have; the first that is there is taken.

    Raises:
      ValueError: If the file is not as described or has no row with an answer; the message names
        the column and the line.
      OSError: If it cannot be opened.
    """
    path = Path(path)
    aside = ("input", "labels", "predicted", "class_name", "accept", "problem")
    table = None
    if path.suffix.lower() != ".npz":
        table = _read_table(path, (*aside, *columns))
    if table is None or "predicted" not in table.names:
        return _of_file(path, columns)
    column = next((name for name in columns if name in table.names), None)
    if column is None:
        table.require(columns[0])
    assert column is not None
    present = set(table.names)
    rows: Sequence[int] = range(len(table))
    problems: list[str] = []
    if "problem" in present:
        bad = [row for row in rows if table.columns["problem"][row]]
        names = table.columns["input"] if "input" in present else table.places
        problems = [str(names[row]) for row in bad]
        rows = [row for row in rows if not table.columns["problem"][row]]
        if not rows:
            raise ValueError(
                f"{path}: expected a row with an answer, received {len(bad)} with a problem: "
                f"{shown(table.columns['problem'][bad[0]])}"
            )
    predicted = table.converted("predicted", _whole, "a class number", rows)
    labels = accept = None
    if "labels" in present:
        known = table.converted("labels", _whole_or_none, "a class number or nothing", rows)
        labels = np.array([-1 if value is None else value for value in known], np.int64)
    if "accept" in present and any(table.columns["accept"][row] is not None for row in rows):
        accept = np.array(table.converted("accept", _truth, "true or false", rows), bool)
    class_names = {}
    if "class_name" in present:
        given = zip(predicted, (table.columns["class_name"][row] for row in rows), strict=True)
        class_names = {number: str(name) for number, name in given if name is not None}
    inputs = None
    if "input" in present:
        inputs = tuple(str(table.columns["input"][row]) for row in rows)
    return Scores(
        str(path),
        np.array(table.converted(column, _finite, "a finite number", rows), np.float64),
        np.array(predicted, np.int64),
        column,
        inputs,
        labels,
        accept,
        table.classes,
        class_names,
        tuple(problems),
    )


def _of_file(path: Path, columns: Sequence[str]) -> Scores:
    found = evaluation.load_predictions(path)
    names = list(found.uncertainty)
    column = next((name for name in columns if name in names), None)
    if column is None and len(names) == 1:
        column = names[0]
    column = column or _choose(path, found, columns[0])
    classes = None if found.probs is None else found.probs.shape[1]
    u = found.uncertainty[column]
    # Without labels here they are unknown, whatever else that may mean elsewhere.
    return Scores(str(path), u, found.predicted, column, labels=found.labels, classes=classes)


def _whole(value: Any) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value, re.ASCII):
            raise ValueError
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError
    if not 0 <= value < 2**63:
        raise ValueError
    return int(value)


def _whole_or_none(value: Any) -> int | None:
    # Programs that know no missing whole number write NaN.
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return None if missing else _whole(value)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(number := float(value)):
        raise ValueError
    return number


def _truth(value: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in words:
        raise ValueError
    return words[value.strip().lower()]


def shown(name: object) -> str:
    """A name as it can be printed: one that is not UTF-8 with its bytes in hexadecimal."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def join_labels(scores: Scores, path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    """Labels that arrived later, in the order in which they did.

    Args:
      scores: With `inputs`.
      path: .csv, .jsonl or .parquet with the columns `input` and `labels`, a row for each label.

    Returns:
      Rows of the scores `[l]` int64 and their true classes `[l]` int64, in the order of the file.
      Labels of inputs that have no answer are left out.

    Raises:
      ValueError: If an input is unknown, ambiguous or labelled twice, a label is missing, or none
        belongs to an answer.
      OSError: If the file cannot be opened.
    """
    path = Path(path)
    if scores.inputs is None:
        raise ValueError(
            f"labels: expected scores with a column input to join them by, received {scores.name}, "
            "which has none"
        )
    if scores.labels is not None:
        raise ValueError(
            f"labels: expected labels in {path} or in {scores.name}, received them in both"
        )
    table = _read_table(path, ("input", "labels"))
    table.require("input", "labels")
    rows_of: dict[str, int] = {}
    twice = set()
    for row, name in enumerate(scores.inputs):
        if name in rows_of:
            twice.add(name)
        rows_of[name] = row
    without = set(scores.problems)
    values = table.converted("labels", _whole, "a class number", range(len(table)))
    seen: set[str] = set()
    rows, labels = [], []
    for number, value in enumerate(values):
        name = str(table.columns["input"][number])
        where = f"{shown(name)!r} in {table.place} {table.places[number]}"
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
    if not rows:
        raise ValueError(
            f"{path}: expected labels of inputs that have an answer, received "
            f"{len(values)} of inputs without one"
        )
    return np.array(rows, np.int64), np.array(labels, np.int64)
