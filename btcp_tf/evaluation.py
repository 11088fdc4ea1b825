"""Predictions, and the result rows made of them: what a run leaves for tables and figures.

`predictions.npz` holds what a classifier and its uncertainties said of each sample, from anyone's
program: `labels`, `probs` or `predicted`, and every uncertainty under its own name.
`results.json` holds rows of metrics. Both are written whole or not at all, and equal contents give
equal bytes.
"""

import dataclasses
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import metrics
from btcp_tf.files import atomic_path

REFERENCE = "mcp"
"""The method that others are compared with."""

DIFFERENCES = ("auroc", "aupr_error", "aurc")
"""Metrics whose difference to the reference is reported, with a paired interval."""

EPOCH_METRICS = ("fpr", "fnr", "bacc", "auroc", "aupr_error", "aurc")
"""Metrics of the curves per epoch."""

_CLASS_FIELDS = ("labels", "probs", "predicted")


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of one classifier to n samples, and what each method thinks of them.

    Checked on construction; integers become int64 and `probs` float32.

    Raises:
      ValueError: If the fields do not fit together; the message names the field and the first bad
        row.
    """

    labels: np.ndarray
    """True classes, [n], integers >= 0 (< k where `probs` is given)."""
    probs: np.ndarray | None
    """Class probabilities, [n, k], rows summing to 1 within 1e-3; None where unknown."""
    predicted: np.ndarray
    """Predicted classes, [n], integers; each a most probable class of `probs` if given."""
    uncertainty: Mapping[str, np.ndarray]
    """By name of the method, [n] floats, finite; higher = less to be trusted. At least one."""

    def __post_init__(self) -> None:
        labels = _classes("labels", self.labels, rows=None)
        n, classes, probs = len(labels), math.inf, None
        if self.probs is not None:
            probs = _probabilities(self.probs, n)
            classes = probs.shape[1]
            _classes("labels", labels, n, classes)
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
        """Whether each answer is wrong, [n] bool."""
        return self.predicted != self.labels


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
    if name in _CLASS_FIELDS or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(
            "expected uncertainty columns named by letters, digits, _ and - other than "
            f"{', '.join(_CLASS_FIELDS)}, received {name!r}"
        )
    values = np.asarray(values)
    if values.dtype.kind != "f":
        raise ValueError(f"{name}: expected floats, received dtype {values.dtype}")
    _check_shape(name, values, rows)
    metrics.check_rows(np.isfinite(values), values, f"{name}: expected finite numbers")
    return values


def _check_shape(name: str, values: np.ndarray, rows: int | None) -> None:
    if values.ndim != 1 or not len(values) or rows not in (None, len(values)):
        wanted = "[n], n > 0" if rows is None else f"[{rows}]"
        raise ValueError(f"{name}: expected shape {wanted}, received {values.shape}")


def save_predictions(path: str | os.PathLike, predictions: Predictions) -> None:
    """Writes `path`, an npz of `labels`, `predicted`, `probs` if known, and one array a method."""
    arrays = {"labels": predictions.labels, "predicted": predictions.predicted}
    if predictions.probs is not None:
        arrays["probs"] = predictions.probs
    arrays |= predictions.uncertainty
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        # As numpy.savez, whose own arguments would forbid some names of columns.
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_predictions(path: str | os.PathLike) -> Predictions:
    """Reads what `save_predictions` wrote, or anyone's npz of that form.

    Every array besides `labels`, `probs` and `predicted` is an uncertainty, named by its key.

    Raises:
      ValueError: If it is no such file; the message names the file and what is wrong in it.
      OSError: If it cannot be opened.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("expected an npz file, received a single array")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
        if "labels" not in arrays or not {"probs", "predicted"} & set(arrays):
            raise ValueError(
                "expected labels, and probs or predicted, "
                f"received {', '.join(arrays) or 'no arrays'}"
            )
        given = "predicted" in arrays
        predicted = arrays["predicted"] if given else np.argmax(arrays["probs"], axis=-1)
        columns = {name: x for name, x in arrays.items() if name not in _CLASS_FIELDS}
        return Predictions(arrays["labels"], arrays.get("probs"), predicted, columns)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{os.fspath(path)}: no predictions file: {error}") from error


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
) -> list[dict[str, Any]]:
    """One flat row of results for each method of the predictions.

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

    Returns:
      Rows of `method`, the arguments above except the last two, `n`, `errors`, `accuracy`, each
      metric M of `btcp_tf.metrics.METRICS` as `M`, and its 95 % bootstrap interval as `M_low`,
      `M_high`. Beside an `mcp` column, other methods also have `M_minus_mcp`, `M_minus_mcp_low`
      and `M_minus_mcp_high` for the metrics in `DIFFERENCES`, with paired intervals. NaN where a
      metric is undefined, see `btcp_tf.metrics.evaluate_all`.
    """
    is_error, columns = predictions.is_error, predictions.uncertainty
    values = {name: metrics.evaluate_all(is_error, u, tau=tau) for name, u in columns.items()}
    draws = metrics.bootstrap(
        is_error, columns, tau=tau, draws=bootstrap_draws, seed=bootstrap_seed
    )
    result = []
    for method in columns:
        row = dict(
            dataset=dataset,
            seed=seed,
            method=method,
            stage=stage,
            classifier_id=classifier_id,
            split=split,
            n=len(is_error),
            errors=int(is_error.sum()),
            accuracy=float(1 - is_error.mean()),
            tau=tau,
        )
        for name, value in values[method].items():
            row |= _with_interval(name, value, draws[method][name])
        if REFERENCE in columns and method != REFERENCE:
            for name in DIFFERENCES:
                row |= _with_interval(
                    f"{name}_minus_{REFERENCE}",
                    values[method][name] - values[REFERENCE][name],
                    draws[method][name] - draws[REFERENCE][name],
                )
        result.append(row)
    return result


def _with_interval(name: str, value: float, draws: np.ndarray) -> dict[str, float]:
    low, high = metrics.interval(draws)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def epoch_metrics(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> dict[str, float]:
    """A point of the curves per epoch: `accuracy`, `u_mean`, `u_std` and `EPOCH_METRICS`.

    Arguments as `btcp_tf.metrics.tie_groups` and `evaluate_groups`. NaN, without a warning, where a
    metric is undefined: an early classifier may have no correct answer, a late one no error.
    """
    groups = metrics.tie_groups(is_error, uncertainty)
    u = np.asarray(uncertainty, np.float64)
    values = metrics.evaluate_groups(groups, tau=tau, names=EPOCH_METRICS)
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
