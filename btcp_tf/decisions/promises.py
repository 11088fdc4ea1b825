"""Whether the promised error rate still holds on labeled answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from btcp_tf.decisions import drift, sequential
from btcp_tf.decisions.labeled import LabeledAnswers
from btcp_tf.thresholds import Outcome

State = Literal["holds", "broken", "open", "none"]
"""Whether a promise holds: "open" where the answers cannot tell, "none" without a promise."""

FIXED_SAMPLE, SEQUENTIAL = "fixed sample", "sequential"
"""Tests of the promise: for one look, of rows in any order; for any number of looks, in order."""

_CURVE = 400  # Points of a curve over rows.


def state_of(outcome: Outcome, limit: float | None) -> State:
    """Whether a promise holds, by the exact interval of the error rate of accepted answers.

    It holds where the whole interval is at most the promised rate, and is broken where the whole of
    it is above; between the two, and where nothing is accepted, these answers cannot tell.

    Args:
      outcome: What a threshold does to labeled answers.
      limit: The promised rate; None: nothing was promised.
    """
    if limit is None:
        return "none"
    if not outcome.accepted or outcome.low <= limit < outcome.high:
        return "open"
    return "holds" if outcome.high <= limit else "broken"


@dataclasses.dataclass(frozen=True, eq=False)
class Promise:
    """What labels say of the error rate of accepted answers."""

    verdict: str
    """"broken"; "kept": shown to be so far; "open": neither is shown; "none": nothing to test."""
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
    """Row of the scores, from 0, of that answer."""
    input: str | None = None
    since: int | None = None
    """From where on it shows most clearly, counted as `broken_at`: roughly where the rate rose."""
    since_row: int | None = None
    errors_since: int | None = None
    """Wrong answers from `since` to `broken_at`, both included."""
    curve: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """By number of accepted answers with a label, `rows`: `risk`, `low`, `high`, `evidence`. Empty
    where their order is not known."""


@dataclasses.dataclass(frozen=True)
class GroupPromise:
    """What labels say of the accepted answers of one group."""

    name: str
    rows: int
    """Answers of the group."""
    accepted: int
    """Accepted ones among them, with a label or without."""
    promise: Promise


def judge_groups(
    names: Mapping[Any, str],
    groups: np.ndarray,
    accepted: np.ndarray,
    answers: LabeledAnswers | None,
    limit: float | None,
    delta: float,
    *,
    ordered: bool = False,
) -> tuple[GroupPromise, ...]:
    """Whether the error rate of accepted answers is within the limit in each group by itself.

    Each of the g groups is tested with delta / g, so that a false alarm in any of them has a
    probability of at most delta (Bonferroni).

    Args:
      names: How groups are called, where not by their own names.
      groups: Of each answer, `[m]` text or whole numbers.
      accepted: `[m]` bool.
      answers: See `judge_promise`.
      limit: See `judge_promise`.
      delta: For all groups together.
      ordered: See `judge_promise`.
    """
    distinct = np.unique(groups)
    found = []
    for group in distinct:
        own = groups == group
        labeled = None if answers is None else answers.taken(own[answers.rows])
        promise = judge_promise(labeled, limit, delta / len(distinct), ordered=ordered)
        name = names.get(group.item(), str(group))
        found.append(GroupPromise(name, int(own.sum()), int(accepted[own].sum()), promise))
    return tuple(found)


def judge_promise(
    answers: LabeledAnswers | None, limit: float | None, delta: float, *, ordered: bool = False
) -> Promise:
    """Whether accepted answers are wrong more often than was promised.

    Args:
      answers: Those with a label; None: there are none.
      limit: Error rate to test; None: nothing was promised.
      delta: Probability of a false alarm, in (0, 1): over the whole stream if `ordered`, else of
        one look.
      ordered: Whether labels are in the order in which they came. If not, they are a fixed sample,
        and the verdict does not depend on their order.
    """
    drift.check_probability("delta", delta)
    if answers is None or not answers.accepted.any():
        return Promise("none", limit=limit, labeled=0 if answers is None else len(answers.rows))
    wrong = answers.is_error[answers.accepted]
    n, k = len(wrong), int(wrong.sum())
    promise = Promise(
        "none",
        limit=limit,
        labeled=len(answers.rows),
        accepted=n,
        errors=k,
        interval=drift.clopper_pearson(k, n),
    )
    if ordered:
        return _judge_stream(promise, wrong, answers.rows[answers.accepted], delta)
    return _judge_sample(promise, delta)


def _judge_sample(promise: Promise, delta: float) -> Promise:
    """The verdict on rows whose order is not known, from their counts alone."""
    if promise.limit is None:
        return promise
    test = drift.rate_test(promise.errors, promise.accepted, promise.limit)
    verdict = "broken" if test.above <= delta else "kept" if test.below <= delta else "open"
    return dataclasses.replace(promise, verdict=verdict, test=FIXED_SAMPLE, p_value=test.above)


def _judge_stream(promise: Promise, wrong: np.ndarray, rows: np.ndarray, delta: float) -> Promise:
    """The verdict on accepted answers in the order of their labels, after every one of them."""
    limit, n = promise.limit, promise.accepted
    counts = np.unique(np.linspace(1, n, min(n, _CURVE)).astype(np.int64))
    errors = np.cumsum(wrong)[counts - 1]
    low, high = sequential.anytime_interval(errors, counts, delta=delta, scale=limit or 0.1)
    curve = {"rows": counts, "risk": errors / counts, "low": low, "high": high}
    if limit is None:
        return dataclasses.replace(promise, curve=curve)
    evidence = sequential.evidence(wrong, limit)
    curve["evidence"] = evidence[counts - 1]
    promise = dataclasses.replace(
        promise, test=SEQUENTIAL, p_value=min(1.0, 1 / float(evidence.max())), curve=curve
    )
    place = sequential.first_break(wrong, limit, delta=delta)
    if place is None:
        return dataclasses.replace(promise, verdict="kept" if high[-1] <= limit else "open")
    return dataclasses.replace(
        promise,
        verdict="broken",
        broken_at=place.row + 1,
        row=int(rows[place.row]),
        since=place.since + 1,
        since_row=int(rows[place.since]),
        errors_since=int(wrong[place.since : place.row + 1].sum()),
    )
