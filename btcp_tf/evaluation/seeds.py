"""Means and intervals over runs with several seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from btcp_tf import metrics
from btcp_tf.evaluation import results

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
      rows: From `rows` and `ood_rows`. Further columns `ablation` and `answers`, if there are any,
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
    return result | {"verdict": results.verdict(result)}


def _interval_of_mean(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """See `across_seeds`; all of shape [k]."""
    k = len(values)
    if k == 1:
        return float(low[0]), float(high[0])
    training = special.stdtrit(k - 1, 0.975) * values.std(ddof=1) / math.sqrt(k)
    below, above = (np.hypot(training, gap.mean()) for gap in (values - low, high - values))
    return float(values.mean() - below), float(values.mean() + above)
