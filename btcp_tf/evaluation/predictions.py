"""Predictions, and the result rows made of them: what a run leaves for tables and figures.

`predictions.npz` holds what a classifier and its uncertainties said of each sample, from anyone's
program: `labels`, `probs` or `predicted`, and every uncertainty under its own name; a CSV holds the
same in columns, and so do the files of scores that `btcp_tf.predict` writes. `results.json` holds
rows of metrics. What is written here is written whole or not at all, and equal contents give equal
bytes.
"""

import dataclasses
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import metrics
from btcp_tf.core import files, wording
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.tabular import Columns
from btcp_tf.networks import mcp

REFERENCE = "mcp"
"""The method that others are compared with."""

ENDINGS = (*tabular.ENDINGS, ".npz")
"""Of predictions files."""

_CLASS_FIELDS = ("labels", "probs", "predicted")

_LARGEST = 1e100  # Of an uncertainty.

_ACCEPT = "accept"
"""What a file itself decides about each answer; never an uncertainty."""

_ABOUT_ROWS = ("input", "class_name", "problem")
"""Columns of a file of scores that hold words, even where all of them look like numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of one classifier to n samples, and what each method thinks of them.

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
        for field, value in zip(
            ("labels", "probs", "predicted", "uncertainty"),
            (labels, probs, predicted, columns),
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
    metrics.check_rows(good, values, f"{name}: expected {wanted}")
    return values.astype(np.int64)


def _probabilities(values: ArrayLike, rows: int) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"probs: expected floats, received dtype {values.dtype}")
    if values.ndim != 2 or len(values) != rows or values.shape[1] < 2:
        raise ValueError(f"probs: expected shape [{rows}, k], k > 1, received {values.shape}")
    # Written so that NaN fails.
    in_range = np.all((values >= 0) & (values <= 1 + 1e-3), axis=1)
    metrics.check_rows(in_range, values, "probs: expected numbers in [0, 1]")
    total = values.sum(axis=1, dtype=np.float64)
    sums_to_one = np.isclose(total, 1, rtol=0, atol=1e-3)
    metrics.check_rows(sums_to_one, total, "probs: expected rows that sum to 1")
    return values.astype(np.float32)


def _column(name: str, values: ArrayLike, rows: int) -> np.ndarray:
    taken = (*_CLASS_FIELDS, _ACCEPT)
    if name in taken or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(
            "expected uncertainty columns named by letters, digits, _ and - other than "
            f"{', '.join(taken)}, received {name!r}"
        )
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"{name}: expected floats, received dtype {values.dtype}")
    _check_shape(name, values, rows)
    metrics.check_rows(np.isfinite(values), values, f"{name}: expected finite numbers")
    check_size(name, values)
    return values


def check_size(name: str, u: np.ndarray) -> None:
    """ValueError for an uncertainty so large that no figure has an axis for it."""
    good = np.abs(np.asarray(u, np.float64)) <= _LARGEST
    metrics.check_rows(good, u, f"{name}: expected numbers from {-_LARGEST:g} to {_LARGEST:g}")


def _check_shape(name: str, values: np.ndarray, rows: int | None) -> None:
    if values.ndim != 1 or not len(values) or rows not in (None, len(values)):
        wanted = "[n], n > 0" if rows is None else f"[{rows}]"
        raise ValueError(f"{name}: expected shape {wanted}, received {values.shape}")


def save_predictions(path: str | os.PathLike, predictions: Predictions) -> None:
    """Writes `path`, an npz of `labels`, `predicted`, `probs` if known, and one array a method."""
    arrays = {} if predictions.labels is None else {"labels": predictions.labels}
    arrays["predicted"] = predictions.predicted
    if predictions.probs is not None:
        arrays["probs"] = predictions.probs
    arrays |= predictions.uncertainty
    with files.atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        # As numpy.savez, whose own arguments would forbid some names of columns.
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_predictions(path: str | os.PathLike, *, reverse: Collection[str] = ()) -> Predictions:
    """Reads what `save_predictions` or `btcp_tf.predict` wrote, or anyone's file of that form.

    npz: every array besides `labels`, `probs`, `predicted` and `accept` is an uncertainty, named by
    its key.

    CSV, if the path ends so: UTF-8, commas, names in the first line. `labels` and `predicted` are
    integers; `probs_0`, `probs_1`, … are class probabilities; every other column of numbers but
    `accept` is an uncertainty. Columns without any number, such as names of files, are left out.
    With a column `problem` it is a file of scores: rows with a problem have no answer and are left
    out, and so are the columns `input` and `class_name`.

    JSONL (one object a line) and Parquet: the same names, but `probs` may be one list, and null
    stands for an empty entry. Parquet needs pyarrow. See `btcp_tf.tabular`.

    Args:
      path: The file. Without `labels` no class is right: samples from out of the distribution.
      reverse: Names of columns in which higher = more trusted. One within [0, 1] is returned as
        1 - itself, any other negated.

    Raises:
      ValueError: If it is no such file, or `reverse` names no column of it; the message names the
        file, what is wrong in it, and the line (from 1) or row (from 0).
      OSError: If it cannot be opened.
    """
    told = _told(path)
    if os.path.splitext(path)[1].lower() in tabular.ENDINGS:
        columns = tabular.read(path, file=told).answered()
        return _predictions(path, told, _of_columns(columns), columns, reverse)
    return _predictions(path, told, read_npz(path, told), None, reverse)


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
    told = _told(path)
    if os.path.splitext(path)[1].lower() not in tabular.ENDINGS:
        arrays = read_npz(path, told)
        found = _predictions(path, told, arrays, None, reverse)
        return Answers(found, _decisions(arrays.get(_ACCEPT), len(found.predicted), told))
    whole = tabular.read(path, file=told)
    answered = whole.answered()
    columns = _labeled(answered) if "problem" in whole.names else answered
    found = _predictions(path, told, _of_columns(columns), columns, reverse)
    accept = inputs = None
    if any(value is not None for value in columns.values.get(_ACCEPT, ())):
        accept = np.array(columns.converted(_ACCEPT, tabular.truth, "true or false"), bool)
    if "input" in whole.names and ("problem" in whole.names or not columns.has_numbers("input")):
        inputs = [str(name) for name in columns.values["input"]]
    left_out = len(whole) - len(answered), len(answered) - len(columns)
    return Answers(found, accept, inputs, *left_out, _tau_beside(path))


def _told(path: Any) -> str:
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


def _labeled(found: Columns) -> Columns:
    """The rows with a label; all of them, without the column, where none has one."""
    if "labels" not in found.values:
        return found
    rows = [row for row, label in enumerate(found.values["labels"]) if label is not None]
    if rows:
        return found.taken(rows)
    values = {name: column for name, column in found.values.items() if name != "labels"}
    return dataclasses.replace(found, values=values)


def _decisions(values: np.ndarray | None, rows: int, told: str) -> np.ndarray | None:
    if values is None:
        return None
    fits = values.shape == (rows,) and values.dtype.kind in "biu"
    if not fits or not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"{told}: {_ACCEPT}: expected true or false [{rows}], received {values.dtype} "
            f"{values.shape}"
        )
    return values.astype(bool)


def _predictions(
    path: str | os.PathLike,
    told: str,
    arrays: Mapping[str, np.ndarray],
    found: Columns | None,
    reverse: Collection[str],
) -> Predictions:
    """The arrays of a file, checked; `found` says where they stand in it."""
    if not {"probs", "predicted"} & set(arrays):
        received = ", ".join(arrays) or "no column of numbers between commas"
        raise ValueError(f"{told}: expected probs or predicted, received {received}")
    try:
        given = "predicted" in arrays
        predicted = arrays["predicted"] if given else np.argmax(arrays["probs"], axis=-1)
        about = (*_CLASS_FIELDS, _ACCEPT)
        uncertainty = {name: x for name, x in arrays.items() if name not in about}
        result = Predictions(arrays.get("labels"), arrays.get("probs"), predicted, uncertainty)
    except metrics.RowError as error:
        place = f"in row {error.row}" if found is None else found.place(error.row)
        raise ValueError(f"{told}: {error.reason} {place}") from error
    except ValueError as error:
        raise ValueError(f"{told}: {error}") from error
    unknown = [name for name in reverse if name not in result.uncertainty]
    if unknown:
        raise ValueError(
            f"reverse: expected uncertainty columns of {os.fspath(path)} "
            f"({', '.join(result.uncertainty)}), received {', '.join(unknown)}"
        )
    turned = {name: _reversed(result.uncertainty[name]) for name in reverse}
    return dataclasses.replace(result, uncertainty={**result.uncertainty, **turned})


def read_npz(path: str | os.PathLike, told: str) -> dict[str, np.ndarray]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("expected an npz file, received a single array")
        with archive:
            found = {name: archive[name] for name in archive.files}
        for name, array in found.items():
            # NumPy hands out what is no array as bytes.
            if not isinstance(array, np.ndarray):
                raise ValueError(f"expected arrays, received {name!r}, which is none")
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{told}: {wording.cause(error)}") from error
    return found


def _reversed(u: np.ndarray) -> np.ndarray:
    """Confidence as uncertainty; on the scale of u if it is one."""
    return 1 - u if 0 <= u.min() and u.max() <= 1 else -u


def _of_columns(found: Columns) -> dict[str, np.ndarray]:
    """Arrays by name, as an npz would hold them."""
    arrays = {}
    probs = found.probabilities()
    if probs is not None:
        arrays["probs"] = probs
    for name in found.values:
        if tabular.is_probability(name) or name == _ACCEPT:
            continue
        if "problem" in found.names and name in _ABOUT_ROWS:
            continue
        if name in ("labels", "predicted"):
            arrays[name] = found.class_numbers(name)
        elif found.has_numbers(name):
            arrays[name] = found.numbers(name)
    return arrays
