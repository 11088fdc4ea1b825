"""Rows of metrics with confidence intervals and differences from MCP."""

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import metrics
from btcp_tf.core import json_files
from btcp_tf.core.groups import numbers
from btcp_tf.evaluation.predictions import REFERENCE, Predictions

DIFFERENCES = ("auroc", "aupr_error", "aurc")
"""Metrics whose difference to the reference is reported, with a paired interval."""

OOD_DIFFERENCES = ("auroc", "fpr95")
"""The same for OOD detection."""

VERDICTS = ("better", "worse", "not distinguishable")
"""What the paired interval of the AUROC says of a method beside the reference."""

EPOCH_METRICS = ("fpr", "fnr", "bacc", "auroc", "aupr_error", "aurc")
"""Metrics of the curves per epoch."""


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
    limits: np.ndarray | None = None,
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
      limits: The tau of each answer, `[n]`, where they differ, see `thresholds.GroupThreshold`; the
        rows then have None as their `tau`.

    Returns:
      Rows of `method`, `task` "failure", `ood` "", the arguments above from `dataset` to `tau` (the
      method's own, if any), `n`, `errors`, `accuracy`, each metric M of `btcp_tf.metrics.METRICS`
      as `M`, and its 95 % bootstrap interval as `M_low`, `M_high`. Beside an `mcp` column, other
      methods also have `M_minus_mcp`, `M_minus_mcp_low` and `M_minus_mcp_high` for the metrics in
      `DIFFERENCES`, with paired intervals. `verdict` is one of `VERDICTS`, or "" where there is no
      difference to judge. NaN where a metric is undefined, see `btcp_tf.metrics.evaluate_all`.
    """
    is_error = predictions.is_error
    about: dict[str, Any] = dict(
        dataset=dataset, seed=seed, stage=stage, classifier_id=classifier_id
    )
    about |= dict(task="failure", split=split, ood="") | _counts(is_error)
    groups = predictions.groups
    scoring = _Scoring(tau, taus or {}, raw, bootstrap_draws, bootstrap_seed, groups=groups)
    columns = predictions.uncertainty
    found = scoring.rows(is_error, columns, about, metrics.METRICS, DIFFERENCES)
    if limits is None:
        return found
    # 1 for what is rejected, so that one tau stands for all.
    decided = {name: (~(u < limits)).astype(np.float64) for name, u in columns.items()}
    by_one = dataclasses.replace(scoring, tau=0.5, taus={})
    again = by_one.rows(is_error, decided, {}, metrics.DECISION_METRICS, ())
    return [
        {**row, "tau": None}
        | {name: value for name, value in own.items() if name in row}
        | {"tau": None, "verdict": row["verdict"]}
        for row, own in zip(found, again, strict=True)
    ]


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
        dataset=dataset, seed=seed, stage=stage, classifier_id=classifier_id
    )
    about |= dict(split="test", ood=ood_name, n_ood=sizes[1]) | _counts(test.is_error)
    is_ood = np.repeat([False, True], sizes)
    is_failure = np.concatenate([test.is_error, np.ones(sizes[1], bool)])
    scoring = _Scoring(
        tau, taus or {}, raw, bootstrap_draws, bootstrap_seed, sizes, _joined_groups(test, ood)
    )
    ood_task, joint = about | {"task": "ood"}, about | {"task": "joint"}
    return [
        *scoring.rows(is_ood, columns, ood_task, metrics.OOD_METRICS, OOD_DIFFERENCES),
        *scoring.rows(is_failure, columns, joint, metrics.METRICS, DIFFERENCES),
    ]


def _joined_groups(first: Predictions, second: Predictions) -> np.ndarray | None:
    """Numbers of the groups of both sets, which share none; None: all samples are independent."""
    if first.groups is None and second.groups is None:
        return None
    sizes = [len(one.predicted) for one in (first, second)]
    own, other = (
        np.arange(size) if one.groups is None else numbers(one.groups, size)
        for one, size in zip((first, second), sizes, strict=True)
    )
    return np.concatenate([own, sizes[0] + other])


def _counts(is_error: np.ndarray) -> dict[str, Any]:
    errors, accuracy = int(is_error.sum()), float(1 - is_error.mean())
    return {"n": len(is_error), "errors": errors, "accuracy": accuracy}


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """How rows are computed; see `rows` for the fields, and `metrics.bootstrap` for the draws."""

    tau: float
    taus: Mapping[str, float]
    raw: Collection[str]
    draws: int
    seed: int
    parts: Sequence[int] | None = None
    groups: np.ndarray | None = None

    def rows(
        self,
        target: np.ndarray,
        columns: Mapping[str, np.ndarray],
        about: Mapping[str, Any],
        table: Mapping[str, metrics.Metric],
        differences: Collection[str],
    ) -> list[dict[str, Any]]:
        """A row for each of the columns, for a target `[n]` bool that a high u is to find."""
        tau_of = {method: self.taus.get(method, self.tau) for method in columns}
        values = {
            method: metrics.evaluate_all(target, u, tau=tau_of[method], table=table)
            for method, u in columns.items()
        }
        drawn = metrics.bootstrap(
            target,
            columns,
            tau=tau_of,
            draws=self.draws,
            seed=self.seed,
            table=table,
            parts=self.parts,
            groups=self.groups,
        )
        result = []
        for method in columns:
            row = dict(about) | {"method": method, "tau": tau_of[method]}
            for name, value in values[method].items():
                if method in self.raw and table[name].kind != "ranking":
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
            result.append(row | {"verdict": verdict(row)})
        return result


def verdict(row: Mapping[str, Any]) -> str:
    """One of `VERDICTS`, or "" without a defined difference to the reference."""
    low, high = (row.get(f"auroc_minus_{REFERENCE}_{end}", math.nan) for end in ("low", "high"))
    if math.isnan(low) or math.isnan(high):
        return ""
    better, worse, neither = VERDICTS
    return better if low > 0 else worse if high < 0 else neither


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
      extra: Whatever belongs to all rows, of dicts, lists, text and numbers. NaN is written as
        null, infinity as the text "Infinity" or "-Infinity": JSON knows neither.
    """
    content = {"rows": rows, "extra": extra}
    json_files.write(path, content, indent=1, sort_keys=True, infinity=True)


def load_rows(path: str | os.PathLike) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Reads what `save_rows` wrote: `(rows, extra)`, with NaN for null in the rows.

    Raises:
      ValueError: If it is no such file; the message names it.
      OSError: If it cannot be opened.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json_files.parse(file.read())
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
