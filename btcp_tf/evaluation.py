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
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics, tabular, thresholds
from btcp_tf.files import as_path, atomic_path
from btcp_tf.tabular import Columns
from btcp_tf.thresholds import Threshold

REFERENCE = "mcp"
"""The method that others are compared with."""

DIFFERENCES = ("auroc", "aupr_error", "aurc")
"""Metrics whose difference to the reference is reported, with a paired interval."""

OOD_DIFFERENCES = ("auroc", "fpr95")
"""The same for OOD detection."""

VERDICTS = ("better", "worse", "not distinguishable")
"""What the paired interval of the AUROC says of a method beside the reference."""

EPOCH_METRICS = ("fpr", "fnr", "bacc", "auroc", "aupr_error", "aurc")
"""Metrics of the curves per epoch."""

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


def mcp_of(predictions: Predictions) -> np.ndarray | None:
    """u of MCP, `[n]`: the column of that name, else made of `probs`; None without either."""
    if REFERENCE in predictions.uncertainty:
        return predictions.uncertainty[REFERENCE]
    return None if predictions.probs is None else 1.0 - predictions.probs.max(axis=1)


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
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
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
    return _predictions(path, told, _read_npz(path, told), None, reverse)


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
        arrays = _read_npz(path, told)
        found = _predictions(path, told, arrays, None, reverse)
        return Answers(found, _decisions(arrays.get(_ACCEPT), len(found.predicted), told))
    whole = tabular.read(path, file=told)
    answered = whole.answered()
    columns = _labeled(answered) if "problem" in whole.names else answered
    found = _predictions(path, told, _of_columns(columns), columns, reverse)
    accept = inputs = None
    if any(value is not None for value in columns.values.get(_ACCEPT, ())):
        accept = np.array(columns.converted(_ACCEPT, tabular.truth, "true or false"), bool)
    if "problem" in whole.names and "input" in whole.names:
        inputs = [str(name) for name in columns.values["input"]]
    left_out = len(whole) - len(answered), len(answered) - len(columns)
    return Answers(found, accept, inputs, *left_out, _tau_beside(path))


def _told(path: Any) -> str:
    """How an error about a predictions file begins; ValueError for what is no path."""
    as_path("path", path)
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


def _read_npz(path: str | os.PathLike, told: str) -> dict[str, np.ndarray]:
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
        raise ValueError(f"{told}: {error}") from error
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


DECISION_FILE = "decision.json"
"""In a run's folder: the threshold of its SavedModel and where its calibration rows are."""


NOT_EXPORTED = "not exported"
"""How the words begin that stand in the place of a SavedModel's path."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a run's SavedModel accepts."""

    threshold: Threshold
    predictor: str
    """Whose answers: "frozen", or a word such as "btcp_finetuned"."""
    method: str
    """Whose u: a column of `calibration`."""
    calibration: Predictions
    """Answers to the calibration set."""
    reason: str = ""
    """Why these; "": it was not said."""

    @property
    def stage(self) -> str:
        """ "frozen" or "finetuned"."""
        return "finetuned" if self.predictor.endswith("_finetuned") else "frozen"

    def of(self, saved_model: str) -> str:
        """Where the SavedModel is, and whose u it answers; or why there is none."""
        whose = f" (u of {self.method}, {self.stage} classifier)"
        return saved_model + ("" if saved_model.startswith(NOT_EXPORTED) else whose)


def load_decision(folder: str | os.PathLike) -> Decision | None:
    """Reads a run's `decision.json` and the predictions that it names; None without the file.

    Raises:
      ValueError: If it is no such file, or the predictions are not there; the message names it.
      OSError: If a file cannot be opened.
    """
    path = as_path("folder", folder) / DECISION_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, received {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, received {type(content).__name__}")
    try:
        threshold = thresholds.from_json(content.get("threshold"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    name, method = content.get("predictions"), content.get("column")
    if not (isinstance(name, str) and isinstance(method, str)):
        raise ValueError(
            f"{path}: expected the names predictions and column, received {', '.join(content)}"
        )
    file = path.parent / name
    if not file.is_file():
        raise ValueError(
            f"{path}: expected the calibration set's answers in {file}, received no such file; "
            "the run is not complete"
        )
    calibration = load_predictions(file)
    if method not in calibration.uncertainty:
        raise ValueError(
            f"{file}: expected an uncertainty column {method}, received "
            f"{', '.join(calibration.uncertainty)}"
        )
    predictor = name.removeprefix("predictions_calibration").removesuffix(".npz").lstrip("_")
    reason = content.get("reason", "")
    return Decision(
        threshold,
        predictor or "frozen",
        method,
        calibration,
        reason if isinstance(reason, str) else "",
    )


EXPLANATIONS_FILE = "explanations.npz"
"""In a run's folder: what moved the u of each test answer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Explanations:
    """What each piece of evidence did to the u of n answers.

    Checked on construction.

    Raises:
      ValueError: If the fields do not fit together; the message names the field.
    """

    method: str
    """Whose u: a column of the predictions."""
    names: tuple[str, ...]
    """Of the g pieces of evidence."""
    values: np.ndarray
    """`[n, g]` float32: how far each moved logit(u), beside the mean held-out answer."""

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.dtype.kind != "f" or values.ndim != 2 or values.shape[1] != len(self.names):
            raise ValueError(
                f"values: expected floats [n, {len(self.names)}], one for each of the names, "
                f"received {values.dtype} {values.shape}"
            )
        metrics.check_rows(
            np.isfinite(values).all(axis=1), values, "values: expected finite numbers"
        )
        object.__setattr__(self, "values", values.astype(np.float32))
        object.__setattr__(self, "names", tuple(map(str, self.names)))


def save_explanations(path: str | os.PathLike, explanations: Explanations) -> None:
    """Writes `path`, an npz of `method`, `names` and `values`."""
    with atomic_path(path) as temporary:
        np.savez_compressed(
            temporary,
            method=np.array(explanations.method),
            names=np.array(explanations.names),
            values=explanations.values,
        )


def load_explanations(path: str | os.PathLike, rows: int) -> Explanations | None:
    """Reads what `save_explanations` wrote; None without the file.

    Args:
      path: The file.
      rows: How many answers it has to explain.

    Raises:
      ValueError: If it is no such file, or one of other answers; the message names it.
    """
    if not os.path.exists(path):
        return None
    told = f"{os.fspath(path)}: no explanations"
    arrays = _read_npz(path, told)
    try:
        found = Explanations(
            str(arrays["method"]), tuple(map(str, arrays["names"])), arrays["values"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{told}: expected method, names and values, received {error}") from error
    if len(found.values) != rows:
        raise ValueError(f"{told}: expected those of {rows} answers, received {len(found.values)}")
    return found


def rows(
    predictions: Predictions,
    *,
    dataset: str,
    seed: int,
    stage: str,
    classifier_id: str,
    split: str,
    tau: float,
    bootstrap_draws: int,
    bootstrap_seed: int,
    taus: Mapping[str, float] | None = None,
    raw: Collection[str] = (),
) -> list[dict[str, Any]]:
    """One flat row of results for each method of the predictions: failure prediction.

    Args:
      predictions: The answers of one classifier.
      dataset: Name of the data set.
      seed: Seed of the run.
      stage: "frozen" or "finetuned".
      classifier_id: Names the classifier: rows that share it may be compared sample by sample.
      split: Name of the part of the data.
      tau: Decision threshold on u.
      bootstrap_draws: Draws of the intervals.
      bootstrap_seed: Seed of the draws; all methods get the same draws of samples.
      taus: By method, a threshold of its own in the place of `tau`.
      raw: Methods whose scores have no scale of their own: their threshold and calibration metrics
        are NaN, as those of any score that leaves [0, 1] are.

    Returns:
      Rows of `method`, `task` "failure", `ood` "", the arguments above from `dataset` to `tau` (the
      method's own, if any), `n`, `errors`, `accuracy`, each metric M of `btcp_tf.metrics.METRICS`
      as `M`, and its 95 % bootstrap interval as `M_low`, `M_high`. Beside an `mcp` column, other
      methods also have `M_minus_mcp`, `M_minus_mcp_low` and `M_minus_mcp_high` for the metrics in
      `DIFFERENCES`, with paired intervals. `verdict` is one of `VERDICTS`, or "" where there is no
      difference to judge. NaN where a metric is undefined, see `btcp_tf.metrics.evaluate_all`.
    """
    is_error = predictions.is_error
    about = dict(
        dataset=dataset,
        seed=seed,
        stage=stage,
        classifier_id=classifier_id,
        task="failure",
        split=split,
        ood="",
        n=len(is_error),
        errors=int(is_error.sum()),
        accuracy=float(1 - is_error.mean()),
    )
    return _rows(
        is_error,
        predictions.uncertainty,
        about,
        table=metrics.METRICS,
        differences=DIFFERENCES,
        tau=tau,
        taus=taus,
        raw=raw,
        draws=bootstrap_draws,
        seed=bootstrap_seed,
    )


def ood_rows(
    test: Predictions,
    ood: Predictions,
    *,
    dataset: str,
    ood_name: str,
    seed: int,
    stage: str,
    classifier_id: str,
    tau: float,
    bootstrap_draws: int,
    bootstrap_seed: int,
    taus: Mapping[str, float] | None = None,
    raw: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Rows of OOD detection and of the joint task, one of each for every method of both sets.

    Args:
      test: Answers to the test set.
      ood: Answers of the same classifier to samples from out of its distribution; their labels, if
        any, do not matter.
      dataset: As in `rows`, and so are the arguments that are not here.
      ood_name: Name of the OOD set.
      bootstrap_draws: Draws of the intervals; each takes as many test and OOD samples as there are.

    Returns:
      Rows as those of `rows`, with `split` "test", `ood`, and `n_ood`, the number of OOD samples;
      `n`, `errors` and `accuracy` are those of the test samples alone. First of `task` "ood": the
      metrics in `btcp_tf.metrics.OOD_METRICS` of telling OOD from test samples, with differences in
      `OOD_DIFFERENCES`. Then of `task` "joint": the metrics in `METRICS`, where both the wrong
      answers and the OOD samples, `errors + n_ood`, are errors. (Kim, Koo and Hwang, A Unified
      Benchmark for the Unknown Detection Capability of Deep Neural Networks, 2021.)

    Raises:
      ValueError: If no method scored both sets.
    """
    sizes = len(test.predicted), len(ood.predicted)
    columns = {
        name: np.concatenate([u, ood.uncertainty[name]])
        for name, u in test.uncertainty.items()
        if name in ood.uncertainty
    }
    if not columns:
        raise ValueError(
            f"{ood_name}: expected an uncertainty among {', '.join(test.uncertainty)}, "
            f"received {', '.join(ood.uncertainty)}"
        )
    about: dict[str, Any] = dict(
        dataset=dataset,
        seed=seed,
        stage=stage,
        classifier_id=classifier_id,
        split="test",
        ood=ood_name,
        n=sizes[0],
        n_ood=sizes[1],
        errors=int(test.is_error.sum()),
        accuracy=float(1 - test.is_error.mean()),
    )
    is_ood = np.repeat([False, True], sizes)
    is_failure = np.concatenate([test.is_error, np.ones(sizes[1], bool)])
    result = []
    for task, target, table, differences in (
        ("ood", is_ood, metrics.OOD_METRICS, OOD_DIFFERENCES),
        ("joint", is_failure, metrics.METRICS, DIFFERENCES),
    ):
        result += _rows(
            target,
            columns,
            about | {"task": task},
            table=table,
            differences=differences,
            tau=tau,
            taus=taus,
            raw=raw,
            draws=bootstrap_draws,
            seed=bootstrap_seed,
            parts=sizes,
        )
    return result


def _rows(
    target: np.ndarray,
    columns: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    *,
    table: Mapping[str, metrics.Metric],
    differences: Collection[str],
    tau: float,
    taus: Mapping[str, float] | None,
    raw: Collection[str],
    draws: int,
    seed: int,
    parts: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Rows of the columns, for a target that a high u is to find; see `rows` and `bootstrap`."""
    tau_of = {method: (taus or {}).get(method, tau) for method in columns}
    values = {
        method: metrics.evaluate_all(target, u, tau=tau_of[method], table=table)
        for method, u in columns.items()
    }
    drawn = metrics.bootstrap(
        target, columns, tau=tau_of, draws=draws, seed=seed, table=table, parts=parts
    )
    result = []
    for method in columns:
        row = dict(about) | {"method": method, "tau": tau_of[method]}
        for name, value in values[method].items():
            if method in raw and table[name].kind != "ranking":
                row |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
            else:
                row |= _with_interval(name, value, drawn[method][name])
        if REFERENCE in columns and method != REFERENCE:
            for name in differences:
                row |= _with_interval(
                    f"{name}_minus_{REFERENCE}",
                    values[method][name] - values[REFERENCE][name],
                    drawn[method][name] - drawn[REFERENCE][name],
                )
        result.append(row | {"verdict": _verdict(row)})
    return result


def _verdict(row: Mapping[str, Any]) -> str:
    """One of `VERDICTS`, or "" without a defined difference to the reference."""
    low, high = (row.get(f"auroc_minus_{REFERENCE}_{end}", math.nan) for end in ("low", "high"))
    if math.isnan(low) or math.isnan(high):
        return ""
    better, worse, neither = VERDICTS
    return better if low > 0 else worse if high < 0 else neither


def _with_interval(name: str, value: float, draws: np.ndarray) -> dict[str, float]:
    low, high = metrics.interval(draws)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


_GROUP = ("dataset", "method", "stage", "task", "split", "ood", "ablation", "answers")
"""Columns in which rows of one method under several seeds agree; the last two may be missing."""


def across_seeds(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, with the certainty of the means and of the differences to MCP.

    Two things make the mean of k seeds uncertain. Training, split and all else that a seed sets
    differ between the seeds: t s / sqrt(k) bounds it, with s the sample standard deviation of the k
    values and t the 97.5 % point of Student's distribution with k - 1 degrees of freedom. The test
    samples, which all seeds share, are a draw themselves, and more seeds do not average it out: the
    seeds' own bootstrap intervals bound it, on the mean b below and above the value. The two are
    independent, so the interval of the mean reaches sqrt((t s)^2 / k + b^2) to either side (Zou and
    Donner, Construction of Confidence Limits about Effect Measures, 2008). For one seed s says
    nothing, and the interval is that seed's own.

    Where the test draw does not move all seeds alike, s sees some of its noise too, which is then
    counted twice: the interval is rather too wide than too narrow. It ends where the values that a
    metric can have, or a difference of two, end.

    Args:
      rows: Of `rows` and `ood_rows`. Further columns `ablation` and `answers`, if there are any,
        tell apart what is not the same method or not the same classifier.

    Returns:
      One row for each dataset, method, stage, task, split, ood, ablation and answers, in order of
      appearance, of these columns and `seeds`, their number; `n` and, if there, `n_ood`; the means
      of `errors`, `tau`, `accuracy`, each metric M and each difference D = `M_minus_mcp`;
      `accuracy_sd`, `M_sd` and `D_sd`, sample standard deviations, NaN for one seed; the intervals
      `M_low`, `M_high`, `D_low`, `D_high`; and `verdict`, from that of the difference in AUROC.
      NaN where a value is undefined for one of the seeds.

    Raises:
      ValueError: If a group has two rows of one seed, or test sets of different sizes.
    """
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name, "") for name in _GROUP), []).append(row)
    return [_mean_row(group) for group in groups.values()]


def _mean_row(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = group[0]
    result = {name: first[name] for name in _GROUP if name in first}
    who = ", ".join(str(value) for value in result.values() if value != "")
    seeds = [row["seed"] for row in group]
    if len(set(seeds)) != len(seeds):
        raise ValueError(
            f"{who}: expected one row for each seed, received seeds {', '.join(map(str, seeds))}; "
            "rows of other classifiers need other words in a column `answers`"
        )
    for name in ("n", "n_ood"):
        if name in first:
            sizes = {row[name] for row in group}
            if len(sizes) > 1:
                raise ValueError(
                    f"{who}: expected the same {name} for all seeds, received {sorted(sizes)}"
                )
            result[name] = first[name]
    result["seeds"] = len(group)
    columns = dict.fromkeys(name for row in group for name in row)
    measured = [name for name in columns if f"{name}_low" in columns]

    def values_of(name: str) -> np.ndarray:
        return np.array([row.get(name, math.nan) for row in group], np.float64)

    for name in ("errors", "tau", "accuracy", *measured):
        values = values_of(name)
        result[name] = float(values.mean())
        if name in ("errors", "tau"):
            continue
        result[f"{name}_sd"] = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        if name in measured:
            ends = values_of(f"{name}_low"), values_of(f"{name}_high")
            low, high = _interval_of_mean(values, *ends)
            metric, minus, _ = name.partition("_minus_")
            top = (metrics.METRICS | metrics.OOD_METRICS)[metric].top
            result[f"{name}_low"] = max(low, -top if minus else 0.0)
            result[f"{name}_high"] = min(high, top)
    return result | {"verdict": _verdict(result)}


def _interval_of_mean(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """See `across_seeds`; all of shape [k]."""
    k = len(values)
    if k == 1:
        return float(low[0]), float(high[0])
    training = special.stdtrit(k - 1, 0.975) * values.std(ddof=1) / math.sqrt(k)
    below, above = (np.hypot(training, gap.mean()) for gap in (values - low, high - values))
    return float(values.mean() - below), float(values.mean() + above)


def epoch_metrics(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> dict[str, float]:
    """A point of the curves per epoch: `accuracy`, `u_mean`, `u_std` and `EPOCH_METRICS`.

    Arguments as `btcp_tf.metrics.tie_groups` and `evaluate_groups`. NaN, without a warning, where a
    metric is undefined: an early classifier may have no correct answer, a late one no error.
    """
    groups = metrics.tie_groups(is_error, uncertainty)
    u = np.asarray(uncertainty, np.float64)
    table = {name: metrics.METRICS[name] for name in EPOCH_METRICS}
    values = metrics.evaluate_groups(groups, tau=tau, table=table)
    return {
        "accuracy": float(groups.correct[-1] / groups.rows[-1]),
        "u_mean": float(u.mean()),
        "u_std": float(u.std()),
    } | {name: float(value) for name, value in values.items()}


def save_rows(
    path: str | os.PathLike, rows: list[dict[str, Any]], extra: Mapping[str, Any]
) -> None:
    """Writes `path`, JSON `{"extra": …, "rows": […]}` with sorted keys.

    Args:
      path: The file.
      rows: See `rows`; NaN is written as null.
      extra: Whatever belongs to all rows, of dicts, lists, words and numbers. NaN is written as
        null, infinity as the word "Infinity" or "-Infinity": JSON knows neither.
    """
    text = json.dumps(
        _plain({"rows": rows, "extra": extra}), sort_keys=True, indent=1, ensure_ascii=False
    )
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """`value` with types and numbers that JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def load_rows(path: str | os.PathLike) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Reads what `save_rows` wrote: `(rows, extra)`, with NaN for null in the rows.

    Raises:
      ValueError: If it is no such file; the message names it.
      OSError: If it cannot be opened.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        saved, extra = content["rows"], content["extra"]
        result = [
            {key: math.nan if value is None else value for key, value in row.items()}
            for row in saved
        ]
        return result, dict(extra)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{os.fspath(path)}: expected JSON with rows and extra as save_rows writes it, "
            f"received {type(error).__name__}: {error}"
        ) from error
