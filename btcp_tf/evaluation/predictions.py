"""Predictions, and the result rows made of them: what a run leaves for tables and figures.

`predictions.npz` holds a classifier's answer to each sample and its uncertainties, from any
program: `labels`, `probs` or `predicted`, and every uncertainty under its own name; a CSV holds the
same in columns, and so do the files of scores that `btcp_tf.predict` writes. `results.json` holds
rows of metrics. Files appear whole or not at all, and equal contents give equal bytes.
"""

import dataclasses
import json
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
from btcp_tf.core import checks, files, wording
from btcp_tf.core.arrays import read_npz
from btcp_tf.core.groups import numbers
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.tabular import Columns
from btcp_tf.networks import mcp

REFERENCE = "mcp"
"""The method that others are compared with."""

ENDINGS = (*tabular.ENDINGS, ".npz")
"""Of predictions files."""

_LARGEST = 1e100  # Of an uncertainty.

_ACCEPT = "accept"
"""What a file itself decides about each answer."""

_GROUPS = "groups"
"""Which rows belong together."""

_RESERVED = ("labels", "probs", "predicted", _ACCEPT, _GROUPS)
"""Names that are no uncertainty."""

_ABOUT_ROWS = ("input", "class_name", "second_opinion", "second_probability", "problem")
"""Columns of a file of scores that are no uncertainty, even where all entries look like numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of one classifier to n samples, and the uncertainty of each method.

    Checked on construction; integers become int64 and `probs` float32.

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
        for field, value in zip(
            ("labels", "probs", "predicted", "uncertainty", "groups"),
            (labels, probs, predicted, columns, groups),
            strict=True,
        ):
            object.__setattr__(self, field, value)

    @property
    def is_error(self) -> np.ndarray:
        """Whether each answer is wrong, [n] bool; all are where no class is right."""
        if self.labels is None:
            return np.ones(len(self.predicted), bool)
        return self.predicted != self.labels


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
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, received dtype {values.dtype}")
    _check_shape(name, values, rows)
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
    sums_to_one = np.isclose(total, 1, rtol=0, atol=1e-3)
    metrics.check_rows(sums_to_one, total, "probs: expected rows that sum to 1")
    return values.astype(np.float32)


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
    arrays |= predictions.uncertainty
    with files.atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        # As numpy.savez, whose own arguments would forbid some names of columns.
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_predictions(path: str | os.PathLike, *, reverse: Collection[str] = ()) -> Predictions:
    """Reads what `save_predictions` or `btcp_tf.predict` wrote, or anyone's file of that form.

    npz: every array besides `labels`, `probs`, `predicted`, `accept` and `groups` (which samples
    belong together: numbers or text) is an uncertainty, named by its key.

    CSV, if the path ends so: UTF-8, commas, names in the first line. `labels` and `predicted` are
    integers; `probs_0`, `probs_1`, … are class probabilities; `groups` is numbers or text; every
    other column of numbers but `accept` is an uncertainty. Columns without any number, such as
    names of files, are left out.
    With a column `problem` it is a file of scores: rows with a problem have no answer and are left
    out, and so are the columns `input`, `class_name`, `second_opinion` and `second_probability`.

    JSONL (one object a line) and Parquet: the same names, but `probs` may be one list, and null
    stands for an empty entry. See `evaluation.tabular`.

    Args:
      path: The file. Without `labels` no class is right: samples from out of the distribution.
      reverse: Names of columns in which higher = more trusted. One within [0, 1] is returned as
        1 - itself, any other negated.

    Raises:
      ValueError: If it is no such file, or `reverse` names no column of it; the message names the
        file, what is wrong in it, and the line (from 1) or row (from 0).
      OSError: If it cannot be opened.
    """
    file = _file(path)
    if tabular.is_table(path):
        return _of_table(tabular.read(path, file=file).answered(), reverse, path)
    return _of_arrays(read_npz(path, file), reverse, path)


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


def load_answers(path: str | os.PathLike, *, reverse: Collection[str] = ()) -> Answers:
    """Reads a file as `load_predictions` does, with its decisions and what is left out of it.

    Where labels are known for a part of a file of scores, the other rows are left out.

    Args:
      path: See `load_predictions`. In a column or array `accept`, true or 1 is an accepted answer.
      reverse: See `load_predictions`.

    Raises:
      ValueError: As `load_predictions`, and if `accept` holds something else.
      OSError: If it cannot be opened.
    """
    file = _file(path)
    if not tabular.is_table(path):
        arrays = read_npz(path, file)
        answers = _of_arrays(arrays, reverse, path)
        return Answers(answers, _decisions(arrays.get(_ACCEPT), len(answers.predicted), file))
    whole = tabular.read(path, file=file)
    answered = whole.answered()
    columns = _labeled(answered) if "problem" in whole.names else answered
    inputs = None
    if "input" in whole.names and ("problem" in whole.names or not columns.has_numbers("input")):
        inputs = [str(name) for name in columns.values["input"]]
    return Answers(
        _of_table(columns, reverse, path),
        columns.truths(_ACCEPT),
        inputs,
        unanswered=len(whole) - len(answered),
        unlabeled=len(answered) - len(columns),
        tau=_tau_beside(path),
    )


def _file(path: Any) -> str:
    """How an error about a predictions file begins; ValueError for what is no path."""
    files.as_path("path", path)
    return f"{os.fspath(path)}: no predictions file"


def _tau_beside(path: str | os.PathLike) -> float | None:
    try:
        with open(about_file(path), encoding="utf-8") as file:
            tau = json.load(file)["tau"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # It is no more than a help.
    return float(tau) if type(tau) in (int, float) and math.isfinite(tau) else None


def about_file(path: str | os.PathLike) -> Path:
    """Where `btcp_tf.predict` says what a file of scores comes from."""
    return Path(f"{os.fspath(path)}.about.json")


def _labeled(table: Columns) -> Columns:
    """The rows with a label; all of them, without the column, where none has one."""
    if "labels" not in table.values:
        return table
    rows = [row for row, label in enumerate(table.values["labels"]) if label is not None]
    if rows:
        return table.taken(rows)
    values = {name: column for name, column in table.values.items() if name != "labels"}
    return dataclasses.replace(table, values=values)


def _decisions(values: np.ndarray | None, rows: int, file: str) -> np.ndarray | None:
    """The array `accept` of an npz file, checked."""
    if values is None:
        return None
    fits = values.shape == (rows,) and values.dtype.kind in "biu"
    if not fits or not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"{file}: {_ACCEPT}: expected true or false [{rows}], received {values.dtype} "
            f"{list(values.shape)}"
        )
    return values.astype(bool)


def _of_table(table: Columns, reverse: Collection[str], path: str | os.PathLike) -> Predictions:
    return _of_arrays(_arrays_of(table), reverse, path, table.place)


def _of_arrays(
    arrays: Mapping[str, np.ndarray],
    reverse: Collection[str],
    path: str | os.PathLike,
    place: Callable[[int], str] = "in row {}".format,
) -> Predictions:
    """The arrays of a file, checked; `place` says where a row is in it."""
    file = _file(path)
    if not {"probs", "predicted"} & set(arrays):
        received = ", ".join(arrays) or "no column of numbers between commas"
        raise ValueError(f"{file}: expected probs or predicted, received {received}")
    try:
        predicted = arrays.get("predicted")
        if predicted is None:
            predicted = np.argmax(arrays["probs"], axis=-1)
        uncertainty = {name: u for name, u in arrays.items() if name not in _RESERVED}
        result = Predictions(
            arrays.get("labels"), arrays.get("probs"), predicted, uncertainty, arrays.get(_GROUPS)
        )
    except metrics.RowError as error:
        raise ValueError(f"{file}: {error.reason} {place(error.row)}{error.remedy}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if unknown := [name for name in reverse if name not in result.uncertainty]:
        raise ValueError(
            f"reverse: expected uncertainty columns of {os.fspath(path)} "
            f"({', '.join(result.uncertainty)}), received {', '.join(unknown)}"
        )
    turned = {name: _reversed(result.uncertainty[name]) for name in reverse}
    return dataclasses.replace(result, uncertainty={**result.uncertainty, **turned})


def _reversed(u: np.ndarray) -> np.ndarray:
    """Confidence as uncertainty; on the scale of u if it is one."""
    return 1 - u if 0 <= u.min() and u.max() <= 1 else -u


def _arrays_of(table: Columns) -> dict[str, np.ndarray]:
    """The columns of a table as the arrays that an npz file would hold."""
    arrays = {}
    probs = table.probabilities()
    if probs is not None:
        arrays["probs"] = probs
    for name in table.values:
        if tabular.is_probability(name) or name == _ACCEPT:
            continue
        if "problem" in table.names and name in _ABOUT_ROWS:
            continue
        if name == _GROUPS:
            arrays[name] = np.array([str(one) for one in table.values[name]])
        elif name in ("labels", "predicted"):
            arrays[name] = table.class_numbers(name)
        elif table.has_numbers(name):
            arrays[name] = table.numbers(name)
    return arrays
