"""Whether the promised risk still holds on labeled answers."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from btcp_tf.decisions import drift
from btcp_tf.decisions.scores import Scores
from btcp_tf.evaluation import tabular
from btcp_tf.thresholds import Threshold

FIXED_SAMPLE, SEQUENTIAL = "fixed sample", "sequential"
"""Tests of the promise: for one look, of rows in any order; for any number of looks, in order."""

_CURVE = 400  # Points of a curve over rows.


@dataclasses.dataclass(frozen=True, eq=False)
class Promise:
    """What labels say of the error rate of accepted answers."""

    verdict: str
    """"broken"; "kept": shown to be so far; "open": neither is shown; "none": nothing to test."""
    words: str
    test: str | None = None
    """`FIXED_SAMPLE` or `SEQUENTIAL`; None: nothing is tested."""
    p_value: float | None = None
    """Of the promise being kept. In the sequential test for all looks together: the promise is
    broken from where it is at most delta for the first time."""
    limit: float | None = None
    """Error rate under test."""
    labeled: int = 0
    """Answers with a label."""
    accepted: int = 0
    """Accepted ones among them: only these count."""
    errors: int = 0
    """Wrong ones among `accepted`."""
    interval: tuple[float, float] | None = None
    """Exact 95 % interval of the error rate of accepted answers, for a single look."""
    broken_at: int | None = None
    """The promise was shown broken at so many accepted answers with a label; None: not so, or by a
    fixed sample, which has no order."""
    row: int | None = None
    """Row of the scores, from 0, that it was."""
    input: str | None = None
    since: int | None = None
    """From where on it shows most clearly, counted as `broken_at`: roughly where the rate rose."""
    since_row: int | None = None
    curve: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By number of accepted answers with a label, `rows`: `risk`, `low`, `high`, `evidence`. Empty
    where their order is not known."""


def judge_promise(
    scores: Scores,
    uncertainty: np.ndarray,
    threshold: Threshold | None,
    labels: tuple[np.ndarray, np.ndarray] | None,
    risk: float | None,
    delta: float,
    *,
    ordered: bool = False,
) -> Promise:
    """Whether accepted answers are wrong more often than was promised.

    Args:
      scores: The answers.
      uncertainty: Their u, `[m]` float64.
      threshold: The threshold.
      labels: Rows `[l]` and true classes `[l]`; None: no labels.
      risk: Limit to test in the place of the promised one.
      delta: Probability of a false alarm, in (0, 1): over the whole stream if `ordered`, else of
        one look.
      ordered: Whether labels are in the order in which they came. If not, they are a fixed sample,
        and no order of them gives another verdict.
    """
    drift.check_probability("delta", delta)
    if risk is not None:
        drift.check_probability("risk", risk)
    limit = risk if risk is not None else threshold.target if threshold else None
    if labels is None or not len(labels[0]):
        return Promise("none", "There are no labels.", limit=limit)
    rows, true = labels
    if threshold is None or threshold.tau is None:
        words = "no threshold" if threshold is None else "a threshold that accepts nothing"
        return Promise("none", f"There is {words}.", limit=limit, labeled=len(rows))
    accepted = uncertainty[rows] < threshold.tau
    rows, wrong = rows[accepted], (scores.predicted[rows] != true)[accepted]
    labeled, n, k = len(accepted), len(rows), int(wrong.sum())
    if not n:
        words = f"None of the {labeled:,} answers with a label was accepted."
        return Promise("none", words, limit=limit, labeled=labeled)
    result = Promise(
        "none",
        "Nothing was promised.",
        limit=limit,
        labeled=labeled,
        accepted=n,
        errors=k,
        interval=drift.clopper_pearson(k, n),
    )
    if ordered:
        return _judge_stream(result, scores, rows, wrong, delta)
    return _judge_sample(result, delta)


def _observed(promise: Promise) -> str:
    assert promise.interval is not None
    share = percent_text(promise.errors / promise.accepted, promise.interval)
    return (
        f"{promise.errors:,} of {promise.accepted:,} accepted answers with a label are wrong, "
        f"{share}"
    )


def _judge_sample(result: Promise, delta: float) -> Promise:
    """The verdict on rows whose order is not known, from their counts alone."""
    observed, limit = _observed(result), result.limit
    if limit is None:
        return dataclasses.replace(result, words=f"{result.words} {observed}.")
    found = drift.rate_test(result.errors, result.accepted, limit)
    rate = f"{100 * limit:.4g} %"
    result = dataclasses.replace(result, test=FIXED_SAMPLE, p_value=found.above)
    if found.above <= delta:
        return dataclasses.replace(
            result,
            verdict="broken",
            words=f"{observed}; that at most {rate} are is refuted (exact binomial test, p "
            f"{p_text(found.above)}, false alarm at most {delta:.4g} for one look).",
        )
    if found.below <= delta:
        return dataclasses.replace(
            result,
            verdict="kept",
            words=f"{observed}; that the rate is at most {rate} is shown (exact binomial test, "
            f"level {1 - delta:.4g}, for one look).",
        )
    return dataclasses.replace(
        result,
        verdict="open",
        words=f"{observed}; so many labels neither refute nor show that at most {rate} are (exact "
        f"binomial test, level {1 - delta:.4g}, for one look).",
    )


def _judge_stream(
    result: Promise, scores: Scores, rows: np.ndarray, wrong: np.ndarray, delta: float
) -> Promise:
    """The verdict on accepted answers in the order of their labels, after every one of them."""
    limit, n = result.limit, result.accepted
    assert result.interval is not None
    single_look, _ = result.interval
    seen = np.unique(np.linspace(1, n, min(n, _CURVE)).astype(np.int64))
    totals = np.cumsum(wrong)[seen - 1]
    low, high = drift.anytime_interval(totals, seen, delta=delta, scale=limit or 0.1)
    curve = {"rows": seen, "risk": totals / seen, "low": low, "high": high}
    observed = _observed(result)
    if limit is None:
        return dataclasses.replace(result, words=f"{result.words} {observed}.", curve=curve)
    evidence = drift.evidence(wrong, limit)
    curve["evidence"] = evidence[seen - 1]
    p_value = min(1.0, 1 / float(evidence.max()))
    result = dataclasses.replace(result, test=SEQUENTIAL, p_value=p_value, curve=curve)
    rate = f"{100 * limit:.4g} %"
    if (found := drift.first_break(wrong, limit, delta=delta)) is not None:
        part = wrong[found.since : found.row + 1]
        row, since = (int(rows[place]) for place in (found.row, found.since))
        return dataclasses.replace(
            result,
            verdict="broken",
            words=f"That at most {rate} of the accepted answers are wrong is refuted at "
            f"accepted answer {found.row + 1:,} with a label, {name_of(scores, row)} "
            f"(false alarm at most {delta:.4g} over the whole stream, however often one looks). "
            f"The errors are densest from accepted answer {found.since + 1:,} on, "
            f"{name_of(scores, since)}: {int(part.sum()):,} wrong of {len(part):,} up to here. "
            f"Altogether {observed}.",
            broken_at=found.row + 1,
            row=row,
            input=None if scores.inputs is None else scores.inputs[row],
            since=found.since + 1,
            since_row=since,
        )
    if high[-1] <= limit:
        words = (
            f"{observed}; that the rate is at most {rate} is shown (at level {1 - delta:.4g}, at "
            "whatever time one looks)."
        )
        return dataclasses.replace(result, verdict="kept", words=words)
    words = (
        f"{observed}; so many labels neither refute nor show that at most {rate} are, at whatever "
        "time one looks."
    )
    if single_look > limit:
        words += (
            " A single look at these rows would refute it: the interval is for that. More labels "
            "will tell."
        )
    else:
        words += " (The interval is for a single look.)"
    return dataclasses.replace(result, verdict="open", words=words)


def name_of(scores: Scores, row: int) -> str:
    where = f"row {row} of the scores"
    return where if scores.inputs is None else f"{tabular.shown(scores.inputs[row])} ({where})"


def percent_text(share: float, interval: tuple[float, float]) -> str:
    return f"{100 * share:.2f} % {interval_text(interval)}"


def interval_text(interval: tuple[float, float]) -> str:
    return f"[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"


def p_text(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
