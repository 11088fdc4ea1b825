"""What a threshold was chosen on, and a model's answers since: read from files, and checked.

A baseline is a run's folder, an exported model or a predictions file; scores are what
`btcp_tf.predict` writes, or a predictions file of any program. Labels may come later, in a file of
their own. The order of labels is that of a column of times, if one is named, else that of the rows.
`btcp_tf.monitor` compares them.

Three functions read such files, all through `evaluation.tabular`. `load_predictions` takes every
column of numbers for an uncertainty; `load_answers` adds the file's decisions and what is left out;
`load_scores` takes one uncertainty, and labels for some of the rows only.
"""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from btcp_tf import thresholds
from btcp_tf.core import arrays, files, wording
from btcp_tf.decisions import decision_file, exported
from btcp_tf.decisions.decision_file import DECISION_FILE
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.decisions.looked_at import Gate
from btcp_tf.evaluation import predictions, results, tabular
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.networks import mcp
from btcp_tf.thresholds import GROUP, GroupThreshold, Threshold


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
    gate: Gate | None = None
    """Of a model with looks; None: it has none, or they are at every input, or it is not known."""
    mcp_logit: np.ndarray | None = None
    """`[n]` float64, where there is a gate; None: it is not known."""
    is_error: np.ndarray | None = None
    """Whether each answer is wrong, `[n]` bool; None: there are no labels."""
    by: np.ndarray | None = None
    """The group whose threshold decides about each answer, `[n]`; None: the threshold is by none.
    """
    only_decides: bool = False
    """Whether later u is computed no further than decisions need, see `Judge.export`."""

    def limits(self, threshold: Threshold) -> np.ndarray:
        """What u has to be below to be accepted, `[n]`."""
        return threshold.limits(thresholds.names_of_rows(threshold, self.predicted, self.by))


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
    """The file's own column `accept`, `[m]` bool; compared with u < tau, not used."""
    classes: int | None = None
    class_names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """By class number, as far as the scores name them."""
    problems: tuple[str, ...] = ()
    """Inputs without an answer."""
    times: np.ndarray | None = None
    """When each row came, `[m]` float64; only its order counts. None: unknown."""
    mcp_logit: np.ndarray | None = None
    """`[m]` float64; None: nobody asked for it, or it is not known."""
    groups: np.ndarray | None = None
    """Which rows belong together, `[m]`, see `core.groups`; None: they are independent."""
    by: np.ndarray | None = None
    """The group, such as a site, in which each row is looked at by itself, `[m]` text or whole
    numbers; None: nobody asked for them. A threshold by group is by these."""

    def limits(self, threshold: Threshold) -> np.ndarray:
        """What u has to be below to be accepted, `[m]`."""
        return threshold.limits(thresholds.names_of_rows(threshold, self.predicted, self.by))

    def row_name(self, row: int) -> str:
        """What a row is called in messages: its input, if that is known, and its number from 0."""
        where = f"row {row} of the scores"
        return where if self.inputs is None else f"{tabular.shown(self.inputs[row])} ({where})"

    def digests(self, rows: np.ndarray, labels: np.ndarray) -> list[bytes]:
        """A digest of each labeled row, which does not depend on its place in the file: 32 bytes.

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
        predicted = predictions.load_predictions(path, columns=[column] if column else ())
        return _baseline(str(path), predicted, _choose_column(path, predicted, column))
    if decision := decision_file.load_decision(path):
        return _baseline(
            str(path),
            decision.calibration,
            decision.method,
            _class_names(path / "results.json"),
            decision.threshold,
            Gate.of(decision.fit),
        )
    return _exported_baseline(path)


def _class_names(file: Path) -> Sequence[str] | None:
    """The names of classes in a run's results, if there are any."""
    if not file.is_file():
        return None
    _, extra = results.load_rows(file)
    return (extra.get("data") or {}).get("class_names")


def _exported_baseline(path: Path) -> Baseline:
    """The calibration answers beside an exported model."""
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
    column = _choose_column(model, calibration, COLUMN)
    threshold = thresholds.from_json(about["threshold"])
    # With `decide_only` inputs above the gate are looked at only where it can matter.
    gate = None if about.get(exported.DECIDE_ONLY) else Gate.of(about.get("fit"))
    baseline = _baseline(str(model), calibration, column, about["class_names"], threshold, gate)
    return dataclasses.replace(baseline, only_decides=bool(about.get(exported.DECIDE_ONLY)))


def _baseline(
    name: str,
    answers: Predictions,
    column: str,
    class_names: Sequence[str] | None = None,
    threshold: Threshold | None = None,
    gate: Gate | None = None,
) -> Baseline:
    answers = answers.independent()
    classes = None if answers.probs is None else answers.probs.shape[1]
    # As the answers of a model that was exported before names were cleaned are compared, too.
    names = tuple(wording.clean(str(name)) for name in class_names) if class_names else None
    if names:
        if classes not in (None, len(names)) or answers.predicted.max() >= len(names):
            raise ValueError(
                f"{name}: expected answers of {len(names)} classes, as many as have names, "
                f"received {classes or int(answers.predicted.max()) + 1}"
            )
        classes = len(names)
    u = answers.uncertainty[column]
    z = None if gate is None else predictions.mcp_logit(answers)
    wrong = None if answers.labels is None else answers.is_error
    return Baseline(
        name, u, answers.predicted, column, classes, names, threshold, gate, z, wrong, answers.by
    )


def group_column(baseline: Baseline | None, by: str) -> str:
    """The column of scores with the group of each row: `by`, or where the baseline's threshold is
    by group and `by` is "", the one that `btcp_tf.predict` writes."""
    threshold = None if baseline is None else baseline.threshold
    by_group = isinstance(threshold, GroupThreshold) and threshold.by == GROUP
    return by or GROUP * by_group


def nameless_note(scores: Scores) -> str:
    """Says that rows have no group, where they should have one; "": all have."""
    if not (count := predictions.nameless(scores.by)):
        return ""
    rows = "1 row has" if count == 1 else f"{count:,} rows have"
    return (
        f"{scores.name}: {rows} no group, counted as the group {predictions.NO_GROUP}; a threshold "
        "by group accepts none of these"
    )


def _choose_column(path: Path | str, answers: Predictions, column: str) -> str:
    names = list(answers.uncertainty)
    if column in names or (not column and len(names) == 1):
        return column or names[0]
    wanted = f"an uncertainty column {column}" if column else "one uncertainty column, or --column"
    raise ValueError(f"{path}: expected {wanted}, received {', '.join(names)}")


def load_scores(
    path: str | os.PathLike,
    columns: Sequence[str] = ("uncertainty",),
    *,
    time_column: str = "",
    class_names: Sequence[str] | None = None,
    with_mcp: bool = False,
    by: str = "",
) -> Scores:
    """Reads what `btcp_tf.predict` wrote, or a predictions file of any program.

    Args:
      path: .csv, .jsonl or .parquet with `predicted` and an uncertainty, perhaps `input`, `labels`
        (may be empty), `class_name`, `accept`, `problem` and class probabilities; or whatever
        `evaluation.load_predictions` takes.
      columns: Names that the uncertainty may have; the first that is there is taken.
      time_column: Column that says when a row came, see `Columns.times`; `times` is None without.
      class_names: Names of the classes, which `labels` may have in the place of numbers; None: they
        are not known.
      with_mcp: Whether to read `mcp_logit`, from a column mcp or the class probabilities.
      by: Column of the group, such as a site, that a row belongs to, or "predicted"; "": none. A
        row without a group is of `predictions.NO_GROUP`.

    Raises:
      ValueError: If the file is not as described or has no row with an answer; the message names
        the column and the line.
      OSError: If it cannot be opened.
    """
    path = files.as_path("scores", path)
    table = None
    if tabular.is_table(path):
        own = ("input", "labels", "predicted", "class_name", "accept", "problem", "groups")
        wanted = (*own, *columns, *filter(None, [time_column, by]))
        if with_mcp:
            wanted = (*wanted, predictions.REFERENCE)
        table = tabular.read(path, wanted, probabilities=with_mcp)
        if "predicted" in table.names:
            scores = _scores_of_table(table, str(path), columns, time_column, class_names or ())
            answered = table.answered()
            return dataclasses.replace(
                scores,
                mcp_logit=_mcp_logit(answered) if with_mcp else None,
                by=predictions.groups_of(by, scores.predicted, answered, str(path)),
            )
    names = arrays.array_names(path) if table is None else table.names
    # A column that is named is read whatever it is called.
    named = [name for name in columns if name in names][:1]
    if named and with_mcp and predictions.REFERENCE in names:
        named.append(predictions.REFERENCE)
    answers = predictions.load_predictions(path, columns=named)
    about_rows = (time_column, by)
    scores = _scores_of_predictions(str(path), answers, columns, about_rows, with_mcp=with_mcp)
    source = arrays.read_npz(path) if table is None else table.answered()
    groups = predictions.groups_of(by, scores.predicted, source, str(path))
    times = None
    if isinstance(source, tabular.Columns) and time_column in source.values:
        times = source.times(time_column)
    return dataclasses.replace(scores, times=times, by=groups)


def _scores_of_table(
    table: tabular.Columns,
    name: str,
    columns: Sequence[str],
    time_column: str,
    class_names: Sequence[str],
) -> Scores:
    column = next((name for name in columns if name in table.names), columns[0])
    table.require(column)
    inputs = table.texts("input") if "input" in table.values else table.places
    problems = zip(inputs, table.values.get("problem", ()), strict=False)
    failed = tuple(
        str(name) for name, problem in problems if problem and not tabular.is_missing(problem)
    )
    table = table.answered()
    predicted = table.class_numbers("predicted")
    labels = None
    if "labels" in table.values:
        numbers = {name: number for number, name in enumerate(class_names)}
        convert, wanted = tabular.class_reader(numbers or table.numbers_by_class_name())

        def or_none(value: Any) -> int:
            try:
                return convert(value)
            except (ValueError, KeyError):
                if tabular.is_missing(value):
                    return -1
                raise

        values = table.converted("labels", or_none, f"{wanted} or nothing")
        labels = np.array(values, np.int64)
    accept = table.truths("accept")
    times = table.times(time_column) if time_column in table.values else None
    u = table.numbers(column)
    predictions.check_size(f"{name}: {column}", u)
    names = zip(predicted.tolist(), table.values.get("class_name", ()), strict=False)
    groups = table.groups("groups") if "groups" in table.values else None
    return Scores(
        name,
        u,
        predicted,
        column,
        inputs=tuple(table.texts("input")) if "input" in table.values else None,
        labels=labels,
        accept=accept,
        classes=table.classes,
        class_names={k: wording.clean(str(name)) for k, name in names if name is not None},
        problems=failed,
        times=times,
        groups=groups,
    )


def _mcp_logit(table: tabular.Columns) -> np.ndarray | None:
    """MCP's logit of a file of scores, float64 `[m]`; None: it does not say."""
    if predictions.REFERENCE in table.values:
        return special.logit(table.numbers(predictions.REFERENCE))
    probs = table.probabilities()
    return None if probs is None else mcp.mcp_logit_of_probs(probs)


def _scores_of_predictions(
    name: str,
    answers: Predictions,
    columns: Sequence[str],
    about_rows: Sequence[str],
    *,
    with_mcp: bool,
) -> Scores:
    others = [column for column in answers.uncertainty if column not in about_rows]
    column = next((column for column in columns if column in others), None)
    if column is None:
        column = others[0] if len(others) == 1 else _choose_column(name, answers, columns[0])
    classes = None if answers.probs is None else answers.probs.shape[1]
    # Elsewhere a file without labels is one of samples that have no right class; here they are
    # unknown.
    return Scores(
        name,
        answers.uncertainty[column],
        answers.predicted,
        column,
        labels=answers.labels,
        classes=classes,
        mcp_logit=predictions.mcp_logit(answers) if with_mcp else None,
        groups=answers.groups,
    )


def join_labels(
    scores: Scores,
    path: str | os.PathLike,
    *,
    time_column: str = "",
    class_names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Labels that arrived later, in their order.

    Args:
      scores: With `inputs`.
      path: .csv, .jsonl or .parquet with the columns `input` and `labels`, a row for each label.
      time_column: Column of this file that says when a label came, see `Columns.times`; if it is
        not there, the order is that of `scores.times`.
      class_names: See `load_scores`.

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
    table = tabular.read(path, ("input", "labels", *filter(None, [time_column])))
    table.require("input", "labels")
    own_times = table.times(time_column) if time_column in table.values else None
    if time_column and own_times is None and scores.times is None:
        raise ValueError(
            f"time_column: expected a column {time_column} in {path} or {scores.name}, "
            "received none"
        )
    numbers = {name: number for number, name in enumerate(class_names or ())}
    numbers = numbers or {name: number for number, name in scores.class_names.items()}
    values = table.converted("labels", *tabular.class_reader(numbers))
    rows = np.array(_rows_of_inputs(scores, table), np.int64)
    answered = np.flatnonzero(rows >= 0)
    if not len(answered):
        raise ValueError(
            f"{path}: expected labels of inputs that have an answer, received "
            f"{len(values)} of inputs without one"
        )
    rows, labels = rows[answered], np.array(values, np.int64)[answered]
    times = None if scores.times is None else scores.times[rows]
    return _in_time(scores, rows, labels, times if own_times is None else own_times[answered])


def _rows_of_inputs(scores: Scores, table: tabular.Columns) -> list[int]:
    """The row of the scores that answers each input of a file of labels; -1: it has no answer."""
    assert scores.inputs is not None
    row_of = {name: row for row, name in enumerate(scores.inputs)}
    times = collections.Counter(scores.inputs)
    without_answer = set(scores.problems)
    seen: set[str] = set()
    rows = []
    for number, name in enumerate(table.texts("input")):
        where = f"{tabular.shown(name)!r} {table.place(number)}"
        if name in seen:
            raise ValueError(f"{table.file}: expected each input once, received {where} again")
        if times[name] > 1:
            raise ValueError(
                f"{table.file}: expected inputs that {scores.name} holds once, received {where}, "
                "which it holds several times"
            )
        if name not in row_of and name not in without_answer:
            raise ValueError(f"{table.file}: expected inputs of {scores.name}, received {where}")
        seen.add(name)
        rows.append(row_of.get(name, -1))
    return rows


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
