"""Predictions, and the result rows made of them: what a run leaves for tables and figures.

`predictions.npz` holds a classifier's answer to each sample and its uncertainties, from any
program: `labels`, `probs` or `predicted`, and every uncertainty under its own name; a CSV holds the
same in columns, and so do the files of scores that `btcp_tf.predict` writes. `results.json` holds
rows of metrics. Files appear whole or not at all, and equal contents give equal bytes.
"""

import contextlib
import dataclasses
import math
import os
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.core import checks, files, json_files, wording
from btcp_tf.core.arrays import read_npz
from btcp_tf.core.groups import numbers, one_of_each
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.tabular import Columns
from btcp_tf.methods.registry import METHODS
from btcp_tf.networks import mcp

REFERENCE = "mcp"
"""The method that others are compared with."""

ENDINGS = (*tabular.ENDINGS, ".npz")
"""Of predictions files."""

_LARGEST = 1e100  # Of an uncertainty.

_MOST_GROUPS = 1000  # More are names of rows.

_CLASS_NAME = "class_name"
"""The name of the predicted class."""

_ACCEPT = "accept"
"""What a file itself decides about each answer."""

_GROUPS = "groups"
"""Which rows belong together."""

_BY = "threshold_group"
"""Which group's threshold decides about each answer."""

_RESERVED = ("labels", "probs", "predicted", _ACCEPT, _GROUPS, _BY)
"""Names that are no uncertainty."""

_ABOUT_ROWS = re.compile(
    r"input|class_name|second_opinion|second_probability|problem|unnamed: .*"
    r"|__index_level_[0-9]+__|(.*[_ .-])?(id|index|time|timestamp|date|datetime|group)s?",
    re.IGNORECASE,
)
"""Names of columns that say which row it is, or what else was answered: no uncertainty, even where
all entries look like numbers, unless somebody names them."""

_METHODS = (*METHODS, "uncertainty")
"""Columns that are an uncertainty whatever they hold."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of one classifier to n samples, and the uncertainty of each method.

    Checked on construction; classes become int64 and `probs` float32. Rows of `probs` that do not
    sum to 1 because their entries were rounded, to 3 digits say, are divided by their sum.

    Raises:
      ValueError: If the fields do not fit together; the message names the field and the first bad
        row.
    """

    labels: np.ndarray | None
    """True classes, [n], integers >= 0 (< k where `probs` is given); None where no class is right:
    samples from out of the distribution."""
    probs: np.ndarray | None
    """Class probabilities, [n, k], rows summing to 1 within 1e-3; None where unknown."""
    predicted: np.ndarray
    """Predicted classes, [n], integers; each a most probable class of `probs` if given."""
    uncertainty: Mapping[str, np.ndarray]
    """By name of the method, [n] floats, finite; higher = less to be trusted. At least one."""
    groups: np.ndarray | None = None
    """The group of each sample, [n], whole numbers or strings: those with equal ones belong
    together, see `core.groups`. None: samples are independent."""
    by: np.ndarray | None = None
    """The group whose threshold decides about each sample, [n], whole numbers or strings, see
    `thresholds.GroupThreshold`. None: it is not known, or there is none."""

    def __post_init__(self) -> None:
        known = self.predicted if self.labels is None else self.labels
        name = "predicted" if self.labels is None else "labels"
        n, classes, probs = len(_classes(name, known, rows=None)), math.inf, None
        if self.probs is not None:
            probs = _probabilities(self.probs, n)
            classes = probs.shape[1]
        labels = None if self.labels is None else _classes("labels", self.labels, n, classes)
        predicted = _classes("predicted", self.predicted, n, classes)
        if probs is not None:
            best = probs[np.arange(n), predicted] == probs.max(axis=1)
            metrics.check_rows(
                best, predicted, "predicted: expected the most probable class of probs"
            )
        if not self.uncertainty:
            raise ValueError("expected at least one uncertainty column [n], received none")
        columns = {name: _column(name, u, n) for name, u in self.uncertainty.items()}
        groups = None
        if self.groups is not None:
            numbers(self.groups, n)
            groups = np.asarray(self.groups)
            # Text of pandas is objects, which no npz file holds.
            groups = groups.astype(str) if groups.dtype == object else groups
        by = None if self.by is None else checks.group_names("by", self.by, n)
        for field, value in zip(
            ("labels", "probs", "predicted", "uncertainty", "groups", "by"),
            (labels, probs, predicted, columns, groups, by),
            strict=True,
        ):
            object.__setattr__(self, field, value)

    @property
    def is_error(self) -> np.ndarray:
        """Whether each answer is wrong, [n] bool; all are where no class is right."""
        if self.labels is None:
            return np.ones(len(self.predicted), bool)
        return self.predicted != self.labels

    def independent(self) -> "Predictions":
        """One of the samples of each group, drawn at random; all where none belong together."""
        if self.groups is None:
            return self
        rows = one_of_each(numbers(self.groups, len(self.predicted)))
        return dataclasses.replace(self, groups=None).taken(rows)

    def taken(self, rows: np.ndarray) -> "Predictions":
        """Some of the samples: numbers of rows, or a mask."""
        fields = (self.labels, self.probs, self.predicted, self.groups, self.by)
        labels, probs, predicted, groups, by = (
            None if one is None else one[rows] for one in fields
        )
        assert predicted is not None
        columns = {name: u[rows] for name, u in self.uncertainty.items()}
        return Predictions(labels, probs, predicted, columns, groups, by)


def mcp_column(predictions: Predictions) -> np.ndarray | None:
    """u of MCP, `[n]`: the column of that name, else made of `probs`; None without either."""
    if REFERENCE in predictions.uncertainty:
        return predictions.uncertainty[REFERENCE]
    return None if predictions.probs is None else mcp.mcp_of_probs(predictions.probs)


def mcp_logit(predictions: Predictions) -> np.ndarray | None:
    """logit(u) of MCP, float64 `[n]`, of the same column or of `probs`; None without either."""
    if REFERENCE in predictions.uncertainty:
        return special.logit(predictions.uncertainty[REFERENCE].astype(np.float64))
    return None if predictions.probs is None else mcp.mcp_logit_of_probs(predictions.probs)


def _classes(
    name: str, values: ArrayLike, rows: int | None, classes: float = math.inf
) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name}: expected integers, received dtype {values.dtype}")
    _check_shape(name, values, rows)
    if values.dtype.kind == "f":
        # Whoever has had missing ones writes them so.
        whole = (np.floor(values) == values) & (np.abs(values) < 2.0**63)
        metrics.check_rows(whole, values, f"{name}: expected integers")
        values = values.astype(np.int64)
    wanted = f"classes 0 to {classes - 1}" if classes < math.inf else "classes >= 0"
    # Unsigned classes beyond int64 would turn negative.
    good = (values >= 0) & (values < classes) & (values <= np.iinfo(np.int64).max)
    remedy = ""
    if name == "labels" and classes < math.inf and not good.all():
        remedy = wording.from_one(values.tolist(), int(classes))
    metrics.check_rows(good, values, f"{name}: expected {wanted}", remedy)
    return values.astype(np.int64)


def _probabilities(values: ArrayLike, rows: int) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"probs: expected floats, received dtype {values.dtype}")
    if values.ndim != 2 or len(values) != rows or values.shape[1] < 2:
        raise ValueError(f"probs: expected shape [{rows}, k], k > 1, received {list(values.shape)}")
    # Written so that NaN fails.
    in_range = np.all((values >= 0) & (values <= 1 + 1e-3), axis=1)
    metrics.check_rows(in_range, values, "probs: expected numbers in [0, 1]")
    total = values.sum(axis=1, dtype=np.float64)
    # A little less than 1e-3, so that what is near it is not refused once it is single precision.
    off = np.abs(total - 1) > 0.999e-3
    if off.any():
        good = np.isclose(total, 1, rtol=0, atol=max(1e-3, _rounding_error(values)))
        metrics.check_rows(good, total, "probs: expected rows that sum to 1")
        values = np.where(off[:, None], values / total[:, None], values)
    return values.astype(np.float32)


def _rounding_error(probs: np.ndarray) -> float:
    """How far rounded probabilities may be from a sum of 1; 0: these are not rounded."""
    for digits in range(2, 6):
        step = 10.0**-digits
        if np.allclose(probs, np.round(probs, digits), rtol=0, atol=step / 50):
            # Half a step for each class; a row of many classes must keep half of what it has.
            return min(1.02 * probs.shape[1] * step / 2, 0.5)
    return 0.0


def _column(name: str, values: ArrayLike, rows: int) -> np.ndarray:
    if name in _RESERVED or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(
            "expected uncertainty columns named by letters, digits, _ and - other than "
            f"{', '.join(_RESERVED)}, received {name!r}"
        )
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"{name}: expected floats, received dtype {values.dtype}")
    _check_shape(name, values, rows)
    metrics.check_rows(
        np.isfinite(values), values, f"{name}: expected finite numbers", checks.LEAVE_OUT
    )
    check_size(name, values)
    return values


def check_size(name: str, u: np.ndarray) -> None:
    """ValueError for an uncertainty so large that no figure has an axis for it."""
    good = np.abs(np.asarray(u, np.float64)) <= _LARGEST
    metrics.check_rows(good, u, f"{name}: expected numbers from {-_LARGEST:g} to {_LARGEST:g}")


def _check_shape(name: str, values: np.ndarray, rows: int | None) -> None:
    if values.ndim != 1 or not len(values) or rows not in (None, len(values)):
        wanted = "[n], n > 0" if rows is None else f"[{rows}]"
        raise ValueError(f"{name}: expected shape {wanted}, received {list(values.shape)}")


def save_predictions(path: str | os.PathLike, predictions: Predictions) -> None:
    """Writes `path`, an npz of `labels`, `predicted`, `probs` and `groups` if known, and one array
    a method."""
    arrays = {} if predictions.labels is None else {"labels": predictions.labels}
    arrays["predicted"] = predictions.predicted
    if predictions.probs is not None:
        arrays["probs"] = predictions.probs
    if predictions.groups is not None:
        arrays[_GROUPS] = predictions.groups
    if predictions.by is not None:
        arrays[_BY] = predictions.by
    arrays |= predictions.uncertainty
    with files.atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        # As numpy.savez, whose own arguments would forbid some names of columns.
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_predictions(
    path: str | os.PathLike, *, reverse: Collection[str] = (), columns: Collection[str] = ()
) -> Predictions:
    """Reads what `save_predictions` or `btcp_tf.predict` wrote, or anyone's file of that form.

    CSV, if the path ends so, see `core.csv_files`. `labels` and `predicted` are whole numbers, or
    `labels` names that `class_name` beside `predicted` has; `probs_0`, `probs_1`, … class
    probabilities. Rows with a `problem` have no answer and are left out. Every other column of
    numbers is an uncertainty, but for `accept` and those that say which row it is: `input`, `id`,
    `patient_id`, `timestamp`, an index. Of several, those that hold anything else than finite
    numbers, such as comments, are left out, unless they have the name of a method of this package.
    `groups`, numbers or text, says which rows belong together.

    JSONL (one object a line) and Parquet: the same names, but `probs` may be one list, and null
    stands for an empty entry. npz: the same names, `probs` is one array. See `evaluation.tabular`.

    Args:
      path: The file. Without `labels` no class is right: samples from out of the distribution.
      reverse: Names of columns in which higher = more trusted. One within [0, 1] is returned as
        1 - itself, any other negated.
      columns: Names of the uncertainties, whatever they are; empty: as above, and `reverse`.

    Raises:
      ValueError: If it is no such file, or `reverse` or `columns` names no column of it; the
        message names the file, what is wrong in it, and the line (from 1) or row (from 0).
      OSError: If it cannot be opened.
    """
    file = _file(path)
    if tabular.is_table(path):
        return _of_table(_table(path, columns).answered(), reverse, columns, path)[0]
    asked = _asked(read_npz(path, file), reverse, columns, path)
    return _of_arrays(asked, reverse, columns, path)[0]


def _asked(
    arrays: Mapping[str, np.ndarray],
    reverse: Collection[str],
    columns: Collection[str],
    path: str | os.PathLike,
    by: str = "",
) -> dict[str, np.ndarray]:
    """The arrays of a file that are predictions, without the groups `by`; others are not read."""
    names = [name for name in arrays if name != by]
    wanted = {*_candidates(names, reverse, columns, path), *_RESERVED}
    return {name: arrays[name] for name in names if name in wanted}


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """The labeled answers of a predictions file, and what else it says."""

    predictions: Predictions
    """Of n rows."""
    accept: np.ndarray | None = None
    """What the file itself decides, `[n]` bool; None: nothing."""
    inputs: Sequence[str] | None = None
    """What each row answers, `[n]`; None: it does not say."""
    unanswered: int = 0
    """Rows that are left out because they have a `problem`."""
    unlabeled: int = 0
    """Rows of a file of scores that are left out because they alone have no label."""
    tau: float | None = None
    """What `btcp_tf.predict` wrote beside the file of the threshold; None: nothing."""
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By name of a column with numbers that is left out: why it is no uncertainty."""
    by: np.ndarray | None = None
    """The group, such as a site, in which each row is looked at by itself, `[n]` text or whole
    numbers; None: nobody asked for them."""
    class_names: tuple[str, ...] | None = None
    """By class number, of a file that names the predicted class beside its number; a class that is
    never predicted has its number. None: the file names none."""
    unlabeled_u: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """The uncertainties of the `unlabeled` rows, `[unlabeled]` each, by name; not of columns in
    `reverse`, and not where one is no finite number."""


def load_answers(
    path: str | os.PathLike,
    *,
    reverse: Collection[str] = (),
    columns: Collection[str] = (),
    by: str = "",
) -> Answers:
    """Reads a file as `load_predictions` does, with its decisions and what is left out of it.

    Where labels are known for a part of a file of scores, the other rows are left out.

    Args:
      path: See `load_predictions`. In a column or array `accept`, true or 1 is an accepted answer.
      reverse: See `load_predictions`.
      columns: See `load_predictions`.
      by: Column of the group, such as a site, that a row belongs to, or "predicted"; "": none.

    Raises:
      ValueError: As `load_predictions`, and if `accept` holds something else.
      OSError: If it cannot be opened.
    """
    file = _file(path)
    if not tabular.is_table(path):
        arrays = read_npz(path, file)
        asked = _asked(arrays, reverse, columns, path, _column_of(by))
        answers, unread = _of_arrays(asked, reverse, columns, path)
        accept = _decisions(asked.get(_ACCEPT), len(answers.predicted), file)
        groups = groups_of(by, answers.predicted, arrays, file)
        return Answers(answers, accept, unread=unread, by=groups)
    whole = _table(path, columns, _column_of(by))
    answered = whole.answered()
    labeled = _labeled(answered) if "problem" in whole.names else answered
    answers, unread = _of_table(labeled, reverse, columns, path, _column_of(by))
    return Answers(
        answers,
        labeled.truths(_ACCEPT),
        labeled.texts("input") if "input" in labeled.values else None,
        unanswered=len(whole) - len(answered),
        unlabeled=len(answered) - len(labeled),
        tau=_tau_beside(path),
        unread=unread,
        by=groups_of(by, answers.predicted, labeled, file),
        class_names=_class_names(labeled, answers),
        unlabeled_u=_unlabeled_u(answered, set(answers.uncertainty) - set(reverse)),
    )


def _class_names(table: Columns, answers: Predictions) -> tuple[str, ...] | None:
    """See `Answers.class_names`; None, too, where a class has two names, or two classes one."""
    if _CLASS_NAME not in table.values or "predicted" not in table.values:
        return None
    given = zip(answers.predicted.tolist(), table.values[_CLASS_NAME], strict=True)
    pairs = {
        (number, wording.clean(str(name))) for number, name in given if not tabular.is_missing(name)
    }
    names = dict(pairs)
    if not pairs or not len(pairs) == len(names) == len({*names.values()}):
        return None
    known = answers.predicted if answers.labels is None else (answers.predicted, answers.labels)
    return tuple(names.get(number, str(number)) for number in range(int(np.max(known)) + 1))


def _unlabeled_u(table: Columns, names: Collection[str]) -> dict[str, np.ndarray]:
    """The uncertainties of rows that alone have no label."""
    labels = table.values.get("labels", ())
    rows = [row for row, label in enumerate(labels) if tabular.is_missing(label)]
    found: dict[str, np.ndarray] = {}
    if rows and len(rows) < len(table):
        rest = table.taken(rows)
        for name in sorted(names):
            with contextlib.suppress(ValueError):
                found[name] = rest.numbers(name)
    return found


NO_GROUP = "(no group)"
"""What rows without a group are called: they are a group of their own, which no threshold knows."""


def nameless(groups: np.ndarray | None) -> int:
    """How many rows have no group, of `groups_of`.

    >>> nameless(np.array(["north", NO_GROUP]))
    1
    """
    return 0 if groups is None else int((groups.astype(str) == NO_GROUP).sum())


def groups_of(
    group: str, predicted: np.ndarray, source: Columns | Mapping[str, np.ndarray], file: str
) -> np.ndarray | None:
    """The group of each answer, `[n]` text or whole numbers; None where `group` is "".

    A row without one is of the group `NO_GROUP`.

    Args:
      group: Name of a column or array, or "predicted": the predicted class is the group.
      predicted: Predicted classes, `[n]`.
      source: The table of these answers, or the arrays of a file.
      file: How errors begin.

    Raises:
      ValueError: If there is no such column, or no row has a group.
    """
    if not group:
        return None
    if group == _GROUPS:
        raise ValueError(
            f"by: expected another column than {_GROUPS}, whose rows belong together, received it; "
            "name one that many groups share"
        )
    if not _column_of(group):
        groups = predicted
    elif isinstance(source, Columns):
        groups = source.groups(group, missing=NO_GROUP)
    else:
        groups = source.get(group, np.array([]))
        if groups.dtype.kind == "U":
            groups = np.where(groups == "", NO_GROUP, groups)
    if groups.shape != predicted.shape or groups.dtype.kind not in "iuU":
        raise ValueError(
            f"{file}: {group}: expected the group of each row, text or whole numbers "
            f"[{len(predicted)}], received {groups.dtype} {list(groups.shape)}"
        )
    if len(groups) and nameless(groups) == len(groups):
        raise ValueError(
            f"{file}: {group}: expected the group of each row, received none in any; name another "
            "column"
        )
    if (distinct := len(np.unique(groups))) > _MOST_GROUPS:
        raise ValueError(
            f"{file}: {group}: expected at most {_MOST_GROUPS:,} groups, received {distinct:,}; "
            "name a column that many rows share"
        )
    return groups


def _column_of(group: str) -> str:
    """The column that says to which group a row belongs; "": none does."""
    return "" if group == "predicted" else group


def _table(path: str | os.PathLike, columns: Collection[str], group: str = "") -> Columns:
    """A table with all that may be needed of it, the uncertainties `columns` if they are named."""
    wanted = None
    if columns:
        wanted = (
            "labels",
            "predicted",
            _ACCEPT,
            "input",
            "problem",
            _GROUPS,
            _CLASS_NAME,
            group,
            *columns,
        )
    return tabular.read(path, wanted, probabilities=True, file=_file(path))


def _file(path: Any) -> str:
    """How an error about a predictions file begins; ValueError for what is no path."""
    files.as_path("path", path)
    return f"{os.fspath(path)}: no predictions file"


def _tau_beside(path: str | os.PathLike) -> float | None:
    try:
        with open(about_file(path), encoding="utf-8") as file:
            tau = json_files.parse(file.read())["tau"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # It is no more than a help.
    return float(tau) if type(tau) in (int, float) and math.isfinite(tau) else None


def about_file(path: str | os.PathLike) -> Path:
    """Where `btcp_tf.predict` says what a file of scores comes from."""
    return Path(f"{os.fspath(path)}.about.json")


DECIDE_ONLY = "decide_only"
"""Under which a model, and a file of its scores, say that u was computed only for `accept`."""


def ranking_note(path: str | os.PathLike) -> str:
    """Says of a file of scores that its u ranks no answers; "": it does, as far as is known."""
    try:
        about = json_files.parse(about_file(path).read_text(encoding="utf-8"))
        only_decides = about.get(DECIDE_ONLY) is True
    except (OSError, ValueError, AttributeError):
        return ""  # Of another program, or moved without it.
    if not only_decides:
        return ""
    return (
        f"{os.fspath(path)}: its model computes u only as far as its decision needs (decide_only): "
        "accept is what it would be, but u does not rank answers, and says of none how often it is "
        "wrong; score with a model that was exported without decide_only to see that"
    )


def _labeled(table: Columns) -> Columns:
    """The rows with a label; all of them, without the column, where none has one."""
    if "labels" not in table.values:
        return table
    labels = enumerate(table.values["labels"])
    rows = [row for row, label in labels if not tabular.is_missing(label)]
    if rows:
        return table.taken(rows)
    values = {name: column for name, column in table.values.items() if name != "labels"}
    return dataclasses.replace(table, values=values)


def _decisions(values: np.ndarray | None, rows: int, file: str) -> np.ndarray | None:
    """The array `accept` of an npz file, checked."""
    if values is None:
        return None
    fits = values.shape == (rows,) and values.dtype.kind in "biuf"
    if not fits or not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"{file}: {_ACCEPT}: expected true or false [{rows}], received {values.dtype} "
            f"{list(values.shape)}"
        )
    return values.astype(bool)


_Read = tuple[Predictions, dict[str, str]]
"""Predictions, and by name of a column of numbers that is no uncertainty why it is none."""


def _of_table(
    table: Columns,
    reverse: Collection[str],
    columns: Collection[str],
    path: str | os.PathLike,
    group: str = "",
) -> _Read:
    """The columns of a table as the arrays that an npz file would hold, checked."""
    arrays: dict[str, np.ndarray] = {}
    unread = {
        name: ValueError(f"{table.file}: {name}: expected one column of this name")
        for name in table.twice
    }
    for name in table.twice:
        if name in (*_METHODS, *reverse, *columns):
            raise unread[name]
    probs = table.probabilities()
    if probs is not None:
        arrays["probs"] = probs
    if "labels" in table.values:
        arrays["labels"] = table.class_numbers("labels", table.numbers_by_class_name())
    if "predicted" in table.values:
        arrays["predicted"] = table.class_numbers("predicted")
    if _GROUPS in table.values:
        arrays[_GROUPS] = table.groups(_GROUPS)
    others = [n for n in table.names if n != group and not tabular.is_probability(n)]
    for name in _candidates(others, reverse, columns, path):
        if name not in table.values or not (name in columns or table.has_numbers(name)):
            continue
        try:
            arrays[name] = table.numbers(name)
        except ValueError as error:
            if name in (*_METHODS, *reverse, *columns):
                raise
            unread[name] = error
    if unread and not set(arrays) - set(_RESERVED):
        raise next(iter(unread.values()))
    result, more = _of_arrays(arrays, reverse, columns, path, table.place)
    reasons = {name: str(error).removeprefix(f"{table.file}: ") for name, error in unread.items()}
    return result, reasons | more


def _of_arrays(
    arrays: Mapping[str, np.ndarray],
    reverse: Collection[str],
    columns: Collection[str],
    path: str | os.PathLike,
    place: Callable[[int], str] = "in row {}".format,
) -> _Read:
    """The arrays of a file, checked; `place` says where a row is in it."""
    file = _file(path)
    if not {"probs", "predicted"} & set(arrays):
        received = wording.some([*arrays]) or "no column of numbers between commas"
        raise ValueError(
            f"{file}: expected probs or predicted, received {received}; this reads the answers of "
            "a classifier, which python -m btcp_tf.predict makes of its inputs"
        )
    names = _candidates(arrays, reverse, columns, path)
    unread = _unread(arrays, [n for n in names if n not in (*_METHODS, *reverse, *columns)], place)
    if len(unread) == len(names):
        unread = {}  # It is what the file should be about.
    try:
        predicted = arrays.get("predicted")
        if predicted is None:
            predicted = np.argmax(arrays["probs"], axis=-1)
        uncertainty = {name: arrays[name] for name in names if name not in unread}
        together = arrays.get(_GROUPS)
        result = Predictions(
            arrays.get("labels"),
            arrays.get("probs"),
            predicted,
            uncertainty,
            together,
            arrays.get(_BY),
        )
    except metrics.RowError as error:
        raise ValueError(f"{file}: {_row_text(error, place)}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if unknown := [name for name in reverse if name not in result.uncertainty]:
        raise ValueError(
            f"reverse: expected uncertainty columns of {os.fspath(path)} "
            f"({', '.join(result.uncertainty)}), received {', '.join(unknown)}"
        )
    turned = {name: _reversed(result.uncertainty[name]) for name in reverse}
    result = dataclasses.replace(result, uncertainty={**result.uncertainty, **turned})
    return result, {name: why for name, why in unread.items() if arrays[name].dtype.kind in "iuf"}


def _candidates(
    names: Collection[str],
    reverse: Collection[str],
    columns: Collection[str],
    path: str | os.PathLike,
) -> list[str]:
    """Names of the columns that may be uncertainties: `columns` if they are named."""
    usual = [
        name
        for name in names
        if name not in _RESERVED and (name in reverse or not _ABOUT_ROWS.fullmatch(name))
    ]
    for name in columns:
        if name not in names or name in _RESERVED:
            raise ValueError(
                f"{_file(path)}: expected an uncertainty column {name}, received "
                f"{', '.join(map(tabular.shown, usual)) or 'none'}"
            )
    return list(dict.fromkeys(columns)) or usual


def _unread(
    arrays: Mapping[str, np.ndarray], names: Collection[str], place: Callable[[int], str]
) -> dict[str, str]:
    """By name of an array that is no uncertainty: why."""
    answers = next(arrays[name] for name in ("labels", "predicted", "probs") if name in arrays)
    reasons = {}
    for name in names:
        try:
            _column(name, arrays[name], len(np.atleast_1d(answers)))
        except metrics.RowError as error:
            reasons[name] = _row_text(error, place)
        except ValueError as error:
            reasons[name] = str(error)
    return reasons


def _row_text(error: metrics.RowError, place: Callable[[int], str]) -> str:
    return f"{error.reason} {place(error.row)}{error.remedy}"


def _reversed(u: np.ndarray) -> np.ndarray:
    """Confidence as uncertainty; on the scale of u if it is one."""
    return 1 - u if 0 <= u.min() and u.max() <= 1 else -u
