"""Does a threshold still hold? Scores from production beside the data that it was chosen on.

    python -m btcp_tf.monitor --baseline=saved_models/digits --scores=scores.csv

A promise such as "at most 5 % of the accepted answers are wrong" holds as long as what comes in is
drawn as the calibration set was. Without labels this looks for signs that it is not: in u, in the
classes predicted, in the share of abstentions. With labels, which may come later and for some rows
only, it tests the promise itself: all rows at once, whatever their order; or, where the order in
which labels came is stated, row by row, and says at which row it was shown broken. The verdicts go
to the terminal, to `monitor.json` and to `monitor.html`; the exit status tells a scheduler. No
TensorFlow here. Files are read in `btcp_tf.scores`, the statistics are in `btcp_tf.drift`, and what
earlier looks judged is kept by `btcp_tf.looks`.
"""

import dataclasses
import json
import math
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

import btcp_tf
from btcp_tf import (
    command,
    drift,
    evaluation,
    glance,
    metrics,
    monitor_history,
    pages,
    plots,
    svg,
    tables,
    tabular,
    thresholds,
)
from btcp_tf.files import atomic_path, check_folder
from btcp_tf.pages import Block, Report, text
from btcp_tf.plots import Drawing, panels
from btcp_tf.scores import Baseline, Scores, join_labels, load_baseline, load_scores
from btcp_tf.tables import Cell, Table
from btcp_tf.tabular import shown
from btcp_tf.thresholds import Threshold

USAGE = "python -m btcp_tf.monitor --baseline=BASELINE --scores=FILE [--labels=FILE]"

NOTHING, DRIFT, BROKEN = 0, 3, 4
"""Exit statuses: nothing found; the assumption of the promise no longer holds, or without a promise
the data has changed; the promise is shown broken, which is worse."""

ORDERS = ("", "rows", "time")
"""What is known of the order of labels: nothing; that of the rows is the one in which they came; a
column of times has put them in order."""

FIXED_SAMPLE, SEQUENTIAL = "fixed sample", "sequential"
"""Tests of the promise: for one look, of rows in any order; for any number of looks, in order."""

FEWEST = 100
"""Rows below which, on either side, there is no verdict about a change."""

_BLOCKS = 20  # Of the figure of abstentions.
_SHOWN_CLASSES = 20
_CURVE = 400  # Points of a curve over rows.


# Judging ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Check:
    """One test of whether the scores are drawn as the baseline was."""

    name: str
    title: str
    statistic: float
    shown: str
    """The statistic as it is printed."""
    beside: str
    """What belongs to it: an interval, degrees of freedom, the baseline's."""
    by_chance: float | None
    """What chance alone exceeds with the probability of a false alarm; None: not known."""
    p_value: float
    adjusted: float
    """p-value for all checks together (Holm)."""
    found: bool


@dataclasses.dataclass(frozen=True)
class Assumption:
    """Whether the scores are drawn as the baseline was, as far as they tell without labels."""

    verdict: str
    """"holds": nothing found; "changed"; "too few rows": no verdict."""
    words: str
    checks: tuple[Check, ...] = ()
    ks: drift.Ks | None = None
    psi: drift.Psi | None = None
    mix: drift.Mix | None = None
    abstention: drift.Rates | None = None


@dataclasses.dataclass(frozen=True)
class Share:
    """`count` of `rows`, and the exact 95 % interval of the share that it estimates."""

    count: int
    rows: int
    interval: tuple[float, float]

    @classmethod
    def of(cls, count: int, rows: int) -> "Share | None":
        """None where there are no rows."""
        return cls(count, rows, drift.clopper_pearson(count, rows)) if rows else None


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a threshold does with the scores; None: not known without rows, labels or errors."""

    accepted: Share | None = None
    """Accepted answers among all."""
    wrong: Share | None = None
    """Wrong ones among the accepted answers with a label."""
    handed_over: Share | None = None
    """Errors that are not accepted among all errors, of answers with a label."""


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


@dataclasses.dataclass(frozen=True, eq=False)
class Findings:
    """Everything that is reported."""

    baseline: Baseline
    scores: Scores
    threshold: Threshold | None
    assumption: Assumption
    promise: Promise
    figures: Figures
    history: monitor_history.History
    """All looks, this one among them."""
    delta: float
    notes: tuple[str, ...]
    then: np.ndarray
    """u of the baseline, `[n]` float64, in the precision that both share."""
    now: np.ndarray
    """u of the scores, `[m]` float64."""

    @property
    def status(self) -> int:
        """The exit status."""
        if self.promise.verdict == "broken":
            return BROKEN
        return DRIFT if self.assumption.verdict == "changed" else NOTHING

    @property
    def state(self) -> str:
        """Does the threshold still hold: "holds", "broken" or "cannot tell".

        Labels alone can show either: without a change in u the errors may have risen, and with one
        they need not have.
        """
        return {"kept": "holds", "broken": "broken"}.get(self.promise.verdict, "cannot tell")

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to do now, a sentence each, the most urgent first."""
        return tuple(_next_steps(self))


def monitor(
    baseline: Baseline,
    scores: Scores,
    *,
    labels: tuple[np.ndarray, np.ndarray] | None = None,
    tau: float | None = None,
    risk: float | None = None,
    alpha: float = 0.01,
    delta: float = 0.01,
    order: str = "",
    history: monitor_history.History = monitor_history.NONE,
) -> Findings:
    """Compares scores with what a threshold was chosen on, and tests its promise.

    Args:
      baseline: From `load_baseline`.
      scores: From `load_scores`.
      labels: From `join_labels`: rows and true classes. None: those of the scores, if any.
      tau: Threshold, for a baseline without one.
      risk: Limit of the error rate to test, in (0, 1); None: the one that was promised.
      alpha: Probability of a false alarm of all checks for a change together, each time they are
        made, in (0, 1).
      delta: Probability of a false alarm about the promise, in (0, 1): of one look without an
        order, else over the whole stream of labels, however often it is looked at.
      order: One of `ORDERS`: how it is known that labels stand in the order in which they came, or
        were put in it. Without one the verdict does not depend on their order.
      history: Earlier looks, from `monitor_history.load`.

    Raises:
      ValueError: If the scores are those of another model, or an argument is not as described; if
        rows that are said to be in order are sorted by their class or u, or are not those that were
        judged before.
    """
    if order not in ORDERS:
        raise ValueError(
            f"order: expected one of {', '.join(map(repr, ORDERS))}, received {order!r}"
        )
    for name, value, kind in (("baseline", baseline, Baseline), ("scores", scores, Scores)):
        if not isinstance(value, kind):
            raise ValueError(
                f"{name}: expected what load_{name} returns, received {type(value).__name__}"
            )
    threshold = baseline.threshold
    if tau is not None:
        if threshold is not None:
            raise ValueError(
                f"tau: expected only with a predictions file, received it with {baseline.name}, "
                "which has a threshold of its own"
            )
        tau = _check_tau(tau)
        threshold = dataclasses.replace(thresholds.DEFAULT, tau=tau, rule="given")
    known = _classes(baseline, scores)
    then, now = _same_precision(baseline.uncertainty, scores.uncertainty)
    if labels is not None:
        labels = _checked_labels(labels, len(now))
    else:
        labels = scores.labeled()
    if labels is not None and known is not None and len(labels[1]) and labels[1].max() >= known:
        row = int(labels[1].argmax())
        raise ValueError(
            f"labels: expected classes 0 to {known - 1}, received {labels[1][row]} for "
            f"{_name_of(scores, int(labels[0][row]))}"
        )
    cut = None if threshold is None else threshold.tau
    sorted_by = _sorted_by(scores, now, labels) if order and labels is not None else None
    if sorted_by is not None and order == "rows":
        raise ValueError(
            "ordered: expected rows in the order in which their labels came, received "
            f"{sorted_by}; leave out --ordered for the test of a fixed sample, which needs no "
            "order, or name a column of times or running numbers with --time_column"
        )
    promise = judge_promise(scores, now, threshold, labels, risk, delta, ordered=bool(order))
    history = _with_this_look(history, scores, now, labels, cut, promise)
    notes = [
        *_order_notes(promise, history, delta, sorted_by),
        *_notes(scores, threshold, now, labels, promise),
    ]
    return Findings(
        baseline,
        scores,
        threshold,
        judge_assumption((then, baseline.predicted), (now, scores.predicted), cut, alpha),
        promise,
        _figures(scores, now, labels, threshold),
        history,
        delta,
        tuple(notes),
        then,
        now,
    )


def _figures(
    scores: Scores,
    uncertainty: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray] | None,
    threshold: Threshold | None,
) -> Figures:
    if threshold is None:
        return Figures()
    accepted = np.zeros(len(uncertainty), bool)
    if threshold.tau is not None:
        accepted = uncertainty < threshold.tau
    share = Share.of(int(accepted.sum()), len(accepted))
    if labels is None:
        return Figures(share)
    rows, true = labels
    kept, wrong = accepted[rows], scores.predicted[rows] != true
    return Figures(
        share,
        Share.of(int(np.sum(wrong & kept)), int(kept.sum())),
        Share.of(int(np.sum(wrong & ~kept)), int(wrong.sum())),
    )


_SORTED = 0.001
"""p-value from which on rows are taken for sorted."""


def _sorted_by(
    scores: Scores, uncertainty: np.ndarray, labels: tuple[np.ndarray, np.ndarray]
) -> str | None:
    """By what labeled rows are sorted, or nearly so, in words; None: by nothing.

    Only an order that a sort makes: less than a third of the changes that chance would make. That
    classes come a little bunched is common in a stream, and no fault.
    """
    rows, true = labels
    if not len(rows):
        return None
    quarters = np.quantile(uncertainty[rows], [0.25, 0.5, 0.75])
    columns = {
        "true class": true,
        "predicted class": scores.predicted[rows],
        "uncertainty": np.searchsorted(quarters, uncertainty[rows]),
    }
    for name, groups in columns.items():
        found = drift.blocks(groups)
        if found.changes <= found.expected / 3 and found.p_value <= _SORTED:
            what = "the quarter that u is in" if name == "uncertainty" else f"the {name}"
            return (
                f"rows that stand together as if sorted by {name}: from one to the next {what} "
                f"changes {found.changes:,} times, and in a random order {found.expected:,.0f} "
                "times"
            )
    return None


def _with_this_look(
    history: monitor_history.History,
    scores: Scores,
    uncertainty: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray] | None,
    tau: float | None,
    promise: Promise,
) -> monitor_history.History:
    """All looks; ValueError if rows that were judged have not kept their places."""
    if promise.test is None or labels is None or tau is None or promise.limit is None:
        return history
    accepted = uncertainty[labels[0]] < tau
    digests = scores.digests(labels[0][accepted], labels[1][accepted])
    if promise.test == SEQUENTIAL:
        return history.with_stream(digests, tau, promise.limit)
    return history.with_sample(monitor_history.sample_digest(digests, tau, promise.limit))


def _order_notes(
    promise: Promise, history: monitor_history.History, delta: float, sorted_by: str | None
) -> Iterator[str]:
    """What follows from the order of rows and from earlier looks."""
    if promise.test == FIXED_SAMPLE:
        earlier = len(history.samples) - 1 + (history.stream is not None)
        if earlier:
            alarm = min(1.0, (earlier + 1) * delta)
            yield (
                "Looks at other rows or limits before this one, in the same output folder: "
                f"{earlier:,}. The test of a fixed sample is for one look; that any of "
                f"{earlier + 1:,} is a false alarm has a probability of up to {alarm:.4g}. With "
                "--ordered or --time_column one may look as often as one likes."
            )
    elif promise.test == SEQUENTIAL and sorted_by is not None:
        yield (
            f"In the order of time the test sees {sorted_by}. It counts each answer on its own, "
            "so a block of a difficult class can break the promise although all rows together "
            "keep it."
        )


def _next_steps(findings: Findings) -> Iterator[str]:
    """See `Findings.next_steps`."""
    threshold, promise = findings.threshold, findings.promise
    changed = findings.assumption.verdict == "changed"
    anew = (
        "label a random sample of recent answers and choose the threshold on it: python -m "
        "btcp_tf.export MODEL --threshold=target_risk --risk=LIMIT --scores=LABELED"
    )
    again = "To look again as labels come, add them at the end and name --ordered."
    if promise.test == SEQUENTIAL:
        again = "Look again with more labels as often as you like."
    if promise.verdict == "broken":
        yield "Do not act on accepted answers without a check until there is a new threshold."
        yield f"Then {anew}."
        return
    if threshold is None:
        yield "Name the threshold with --tau, and the error rate to test with --risk."
    elif threshold.tau is None or promise.limit is None:
        what = "accepts nothing" if threshold.tau is None else "promises nothing"
        yield (
            f"The threshold {what}: choose one that promises an error rate, with python -m "
            "btcp_tf.export MODEL --threshold=target_risk --risk=LIMIT"
            + ("." if threshold.tau is None else ", or test a limit of your own with --risk.")
        )
    elif promise.verdict == "kept":
        if changed:
            yield (
                "Accepted answers are still right often enough, but what comes in has changed: "
                f"{anew}."
            )
        else:
            yield f"Nothing needs to be done. {again}"
    elif promise.verdict == "open":
        yield f"Label more accepted answers, drawn at random. {again}"
    elif changed:
        yield f"What was promised was promised for other data: {anew}."
    else:
        yield (
            "Label a random sample of accepted answers, and look again with --labels: without "
            "labels nobody can tell whether the promise is kept."
        )


def _check_tau(tau: Any) -> float:
    return metrics.number("tau", tau, "a finite number", math.isfinite)


def _checked_labels(labels: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    told = "labels: expected a pair of whole numbers, rows [l] of the scores and true classes [l]"
    if not isinstance(labels, tuple | list) or len(labels) != 2:
        raise ValueError(f"{told}, received {type(labels).__name__}")
    places, true = (metrics.array("labels", column) for column in labels)
    for column, high in ((places, rows - 1), (true, math.inf)):
        empty = not column.size
        if column.ndim != 1 or not (empty or column.dtype.kind in "iu") or len(column) != len(true):
            received = " and ".join(f"{one.dtype} {one.shape}" for one in (places, true))
            raise ValueError(f"{told}, received {received}")
        if not empty and not 0 <= column.min() <= column.max() <= high:
            limits = f"from 0 to {high}" if high < math.inf else "from 0 on"
            received = f"{column.min()} to {column.max()}"
            raise ValueError(f"{told}, {limits}, received {received}")
    return places.astype(np.int64), true.astype(np.int64)


def _classes(baseline: Baseline, scores: Scores) -> int | None:
    """The number of classes of both; None: neither knows it.

    Raises:
      ValueError: If they differ in number or name.
    """
    known, given = baseline.classes, scores.classes
    if known is not None and given is not None and known != given:
        raise ValueError(
            f"{scores.name}: expected answers of {known} classes as those of {baseline.name}, "
            f"received {given} class probabilities: the scores of another model"
        )
    classes = known or given
    highest = int(max(baseline.predicted.max(), scores.predicted.max()))
    if classes is not None and highest >= classes:
        raise ValueError(
            f"{scores.name}: expected predicted classes 0 to {classes - 1} as in {baseline.name}, "
            f"received {highest}: the scores of another model"
        )
    for number, name in scores.class_names.items():
        if baseline.class_names is not None and name != baseline.class_names[number]:
            raise ValueError(
                f"{scores.name}: expected class_name {baseline.class_names[number]!r} for class "
                f"{number} as in {baseline.name}, received {shown(name)!r}: the scores of another "
                "model"
            )
    return classes


def _same_precision(*columns: np.ndarray) -> list[np.ndarray]:
    """Numbers as float64, rounded to the lowest precision among them.

    A u that was written as a decimal and read again would else differ from itself, which looks like
    a change wherever many u are tied.
    """
    shared = min((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    return [column.astype(shared).astype(np.float64) for column in columns]


def judge_assumption(
    baseline: tuple[np.ndarray, np.ndarray],
    production: tuple[np.ndarray, np.ndarray],
    tau: float | None,
    alpha: float,
) -> Assumption:
    """Whether rows are drawn as a baseline was, from u and the predicted classes alone.

    Args:
      baseline: u `[n]` float64 and predicted classes `[n]`.
      production: The same of what came later, `[m]`.
      tau: Threshold, for the share of abstentions; None: it is not looked at. That it was chosen on
        the baseline does no harm: a share of rows above one of their own quantiles varies no more.
      alpha: Probability of a false alarm of all checks together, in (0, 1).
    """
    drift.check_probability("alpha", alpha)
    (then, old), (now, new) = baseline, production
    n, m = len(then), len(now)
    if min(n, m) < FEWEST:
        return Assumption(
            "too few rows",
            f"{FEWEST} rows are needed on either side to speak of a change, and there "
            f"are {n:,} of the calibration set and {m:,} now.",
        )
    ks, psi = drift.ks(then, now), drift.psi(then, now)
    classes, counts = _class_counts(old, new)
    mix = drift.mix(*counts)
    mix = mix._replace(pooled=tuple(int(classes[place]) for place in mix.pooled))
    ks_by_chance = drift.ks_by_chance(n, m, alpha)
    drafts: list[tuple[str, str, float, str, str, float | None, float]] = [
        (
            "uncertainty_ks",
            "u: Kolmogorov-Smirnov distance",
            ks.distance,
            f"{ks.distance:.3f}",
            f"[{ks.low:.3f}, {ks.high:.3f}]",
            ks_by_chance,
            ks.p_value,
        ),
        (
            "uncertainty_psi",
            "u: population stability index",
            psi.value,
            f"{psi.value:.3f}",
            f"{psi.degrees + 1} bins",
            psi.by_chance(alpha),
            psi.p_value,
        ),
        (
            "classes",
            "predicted classes: chi-squared",
            mix.chi2,
            f"{mix.chi2:.1f}",
            f"{mix.degrees} degrees of freedom, PSI {mix.psi.value:.3f}",
            mix.by_chance(alpha),
            mix.p_value,
        ),
    ]
    abstention = None
    if tau is not None:
        abstention = drift.rates((int(np.sum(then >= tau)), n), (int(np.sum(now >= tau)), m))
        drafts.append(
            (
                "abstention",
                "share of abstentions",
                abstention.production,
                f"{100 * abstention.production:.2f} %",
                f"{_interval(abstention.production_interval)}, was "
                f"{_percent(abstention.baseline, abstention.baseline_interval)}",
                None,
                abstention.p_value,
            )
        )
    adjusted = drift.holm([draft[-1] for draft in drafts])
    checks = tuple(Check(*draft, p, p <= alpha) for draft, p in zip(drafts, adjusted, strict=True))
    return Assumption(*_say(checks, ks, psi, n, m, alpha), checks, ks, psi, mix, abstention)


def _class_counts(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that occur, `[c]`, and how often each does in each column, `[columns, c]`."""
    # Numbers of classes may be anything: they are no places in an array.
    classes = np.unique(np.concatenate(columns))
    counts = [
        np.bincount(np.searchsorted(classes, column), minlength=len(classes)) for column in columns
    ]
    return classes, np.stack(counts)


def _say(
    checks: Sequence[Check], ks: drift.Ks, psi: drift.Psi, n: int, m: int, alpha: float
) -> tuple[str, str]:
    found = [check.title.split(":")[0] for check in checks if check.found]
    together = (
        f"{len(checks)} checks, false alarm at most {alpha:.4g} for all together (Holm); "
        f"{n:,} rows then, {m:,} now"
    )
    if not found:
        return "holds", (
            "Nothing speaks against the scores being drawn as the "
            f"calibration set was ({together}). That is no proof: with so many rows, a distance of "
            f"up to {ks.high:.2f} between the distributions of u is not ruled out."
        )
    size = next(word for limit, word in _SIZES if psi.value < limit)
    return "changed", (
        "The scores are not drawn as the calibration set was: chance does not explain the change "
        f"in {', '.join(dict.fromkeys(found))} ({together}). By the customary limits of the PSI "
        f"the change of u is {size}. What was promised about accepted answers was promised for "
        "data like the calibration set's."
    )


_SIZES = ((0.1, "small"), (0.25, "moderate"), (math.inf, "large"))
"""Customary limits of the population stability index."""


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
    share = _percent(promise.errors / promise.accepted, promise.interval)
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
            f"{_p(found.above)}, false alarm at most {delta:.4g} for one look).",
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
            f"accepted answer {found.row + 1:,} with a label, {_name_of(scores, row)} "
            f"(false alarm at most {delta:.4g} over the whole stream, however often one looks). "
            f"The errors are densest from accepted answer {found.since + 1:,} on, "
            f"{_name_of(scores, since)}: {int(part.sum()):,} wrong of {len(part):,} up to here. "
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


def _name_of(scores: Scores, row: int) -> str:
    where = f"row {row} of the scores"
    return where if scores.inputs is None else f"{shown(scores.inputs[row])} ({where})"


def _percent(share: float, interval: tuple[float, float]) -> str:
    return f"{100 * share:.2f} % {_interval(interval)}"


def _interval(interval: tuple[float, float]) -> str:
    return f"[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"


# u and tau may have been rounded on the way into a file.
_ROUNDING = 1e-6


def _notes(
    scores: Scores,
    threshold: Threshold | None,
    uncertainty: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray] | None,
    promise: Promise,
) -> Iterator[str]:
    if scores.problems:
        yield (
            f"{len(scores.problems):,} of {len(scores.problems) + len(uncertainty):,} inputs have "
            f"no answer and are left out, the first of them {shown(scores.problems[0])}."
        )
    tau = None if threshold is None else threshold.tau
    accepted = np.zeros(len(uncertainty), bool) if tau is None else uncertainty < tau
    if threshold is not None and scores.accept is not None:
        differ = accepted != scores.accept
        if tau is not None:
            differ &= np.abs(uncertainty - tau) > _ROUNDING * max(1, abs(tau))
        if differ.any():
            yield (
                "The scores' own column accept differs from u < tau (tau "
                f"{'none' if tau is None else f'{tau:.6g}'}) in {int(differ.sum()):,} of "
                f"{len(differ):,} rows, the first being {_name_of(scores, int(differ.argmax()))}: "
                "they were made with another threshold or another model. Here u < tau counts."
            )
    if threshold is not None and tau is None:
        yield "The threshold accepts nothing: no tau kept the promise on the calibration set."
    if not promise.labeled:
        yield (
            "There are no labels. Where the errors of accepted answers rise and neither u nor the "
            "predicted classes change, nothing here can tell."
        )
    elif threshold is not None and tau is not None:
        count = int(accepted.sum())
        if promise.accepted:
            yield (
                f"{promise.accepted:,} of {count:,} accepted answers have a label. What they say "
                "holds for all of them only if it does not depend on the answer which ones got "
                "one, as in a random sample."
            )
        elif count:
            yield f"None of the {count:,} accepted answers has a label: nothing tests the promise."
        else:
            yield "No answer was accepted: there is nothing that the promise would be about."
        if labels is not None and scores.inputs is not None:
            names = [scores.inputs[row] for row in labels[0] if accepted[row]]
            if again := len(names) - len(set(names)):
                yield (
                    f"{again:,} of {len(names):,} accepted answers with a label answer an input "
                    "once more. Each counts, but the test takes answers to be independent: answer "
                    "each input once."
                )
        if rest := promise.labeled - promise.accepted:
            yield (
                f"{rest:,} labels belong to answers that were not accepted; the promise is not "
                "about those, and they are left out."
            )
        if threshold.target is not None and threshold.delta is not None:
            yield (
                "When tau was chosen, a promise that does not hold was allowed with probability "
                f"{threshold.delta:.4g}: it can be broken without any change of the data."
            )


# Reporting -------------------------------------------------------------------------------------


def to_json(findings: Findings, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings as JSON knows values: `status`, `state`, `figures`, `promise` and so on."""
    baseline, scores, threshold = findings.baseline, findings.scores, findings.threshold
    assumption, promise = findings.assumption, findings.promise
    promised = {name: value for name, value in vars(promise).items() if name != "curve"}
    if promise.input is not None:
        promised["input"] = shown(promise.input)
    return {
        "status": findings.status,
        "state": findings.state,
        "figures": dataclasses.asdict(findings.figures),
        "next": list(findings.next_steps),
        "assumption": {
            "verdict": assumption.verdict,
            "words": assumption.words,
            "checks": [dataclasses.asdict(check) for check in assumption.checks],
            "ks": _plain(assumption.ks),
            "psi": _plain(assumption.psi),
            "classes": _plain(assumption.mix),
            "abstention": _plain(assumption.abstention),
        },
        "promise": promised,
        "baseline": {"path": baseline.name, "column": baseline.column, "n": len(findings.then)},
        "scores": {
            "path": scores.name,
            "column": scores.column,
            "n": len(findings.now),
            "problems": len(scores.problems),
        },
        "threshold": None if threshold is None else dataclasses.asdict(threshold),
        "settings": dict(settings),
        "notes": list(findings.notes),
        "history": findings.history.to_json(),
        "versions": {"btcp_tf": btcp_tf.__version__, "numpy": np.__version__},
    }


def _plain(value: Any) -> Any:
    """A named tuple as an object, whatever it holds."""
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


_HEADS = {
    "holds": "No change was found.",
    "changed": "The data have changed.",
    "too few rows": "No verdict about a change.",
    "broken": "The promise is broken.",
    "kept": "The promise is kept.",
    "open": "The promise is not refuted.",
    "none": "The promise is not tested.",
}
"""By verdict."""


def to_report(findings: Findings, settings: Mapping[str, Any]) -> Report:
    """The findings as a page."""
    assumption, promise = findings.assumption, findings.promise
    threshold = findings.threshold
    about: list[Block] = [
        text(Cell(_HEADS[found.verdict]), f" {found.words}") for found in (assumption, promise)
    ]
    changed: list[Block] = []
    if assumption.checks:
        changed.append(_check_table(findings))
    changed += _draw_change(findings)
    promised: list[Block] = []
    if promise.accepted:
        promised.append(_promise_table(findings))
    if promise.curve:
        promised.append(_draw_promise(findings))
    values = dict(settings)
    if threshold is not None:
        values |= {f"threshold: {k}": v for k, v in dataclasses.asdict(threshold).items()}
    values = {key: "none" if value in (None, "") else value for key, value in values.items()}
    return Report(
        f"Does the threshold still hold? {shown(Path(findings.scores.name).name)}",
        findings.notes,
        [
            ("Verdict", about),
            ("Are the data as they were?", changed),
            ("Is the promise kept?", promised),
            ("How to read this", [_GLOSSARY]),
            ("Settings", [tables.pair_table(values, "settings", "Settings and threshold")]),
        ],
        _glance(findings),
    )


def _glance(findings: Findings) -> glance.Glance:
    """The first screen: both verdicts, what they rest on, and what to do."""
    assumption, promise = findings.assumption, findings.promise
    states: dict[str, glance.State] = {
        "broken": glance.State("broken", "promise broken"),
        "kept": glance.State("holds", "promise kept so far"),
        "open": glance.State("open", "cannot tell yet"),
        "none": glance.State("none", "promise not tested"),
    }
    state = states[promise.verdict]
    if assumption.verdict == "changed" and state.name != "broken":
        state = glance.State("open", "data have changed")
    title, chart = _glance_chart(findings)
    return glance.Glance(
        state,
        f"{len(findings.now):,} answers now · {len(findings.then):,} calibration answers of "
        f"{findings.baseline.column}",
        [Cell(_HEADS[promise.verdict]), " ", Cell(_HEADS[assumption.verdict])],
        [*_glance_figures(findings)],
        [glance.Step(step) for step in findings.next_steps],
        title,
        chart,
    )


def _glance_figures(findings: Findings) -> Iterator[glance.Figure]:
    promise, checks = findings.promise, findings.assumption.checks
    tau = None if findings.threshold is None else findings.threshold.tau
    if tau is None:
        yield glance.Figure("n/a", "accepted: there is no threshold")
    else:
        now, then = (float(np.mean(u < tau)) for u in (findings.now, findings.then))
        yield glance.Figure(
            f"{glance.of_hundred(now)} %",
            f"accepted (u < {tau:.4g}); of the calibration answers {glance.of_hundred(then)} %",
        )
    promised = "" if promise.limit is None else f"; promised: at most {100 * promise.limit:.4g} %"
    if promise.accepted and promise.interval is not None:
        yield glance.Figure(
            glance.percent(promise.errors / promise.accepted),
            f"wrong among the accepted, {_interval(promise.interval)} with 95 % certainty: "
            f"{promise.errors:,} of {promise.accepted:,} with a label{promised}",
        )
    else:
        yield glance.Figure("n/a", f"wrong among the accepted: none has a label{promised}")
    found = [check for check in checks if check.found]
    if checks:
        words = "checks find a change of the data"
        if found:
            words += f": {', '.join(check.title for check in found)}"
        yield glance.Figure(f"{len(found)} of {len(checks)}", words)
    else:
        yield glance.Figure("n/a", f"changes of the data: fewer than {FEWEST} rows on a side")


def _glance_chart(findings: Findings) -> tuple[str, svg.Chart]:
    """The error rate so far where there are labels, else u then and now."""
    curve, limit = findings.promise.curve, findings.promise.limit
    if "risk" in curve:
        rows, risk = (np.asarray(curve[name], np.float64) for name in ("rows", "risk"))
        late = rows >= rows[-1] / 10
        top = max(float(np.max(curve["high"][late])), 1.5 * (limit or 0.0))
        lines = [svg.Line("so far", rows, risk, "ours")]
        alt = (
            f"Share of wrong answers among the accepted ones so far: {glance.percent(risk[-1])} "
            f"after {int(rows[-1]):,} with a label"
        )
        if limit is not None:
            lines.append(svg.Line("promised", rows[[0, -1]], np.full(2, limit), "mcp"))
            alt += f"; at most {glance.percent(limit)} was promised"
        x = svg.Axis("accepted answers with a label", 0.0, float(rows[-1]), percent=False)
        y = svg.Axis("wrong among them", 0.0, min(1.0, 1.05 * top) or 0.01)
        band = rows, np.asarray(curve["low"]), np.asarray(curve["high"])
        return "Wrong among the accepted so far", svg.Chart(f"{alt}.", lines, x, y, band=band)
    lines = []
    for name, look, u in (("now", "ours", findings.now), ("then", "mcp", findings.then)):
        lines.append(svg.Line(name, np.sort(u), np.arange(1, len(u) + 1) / len(u), look))
    low, high = (
        min(0.0, *(line.x[0] for line in lines)),
        max(1.0, *(line.x[-1] for line in lines)),
    )
    now, then = (float(np.median(u)) for u in (findings.now, findings.then))
    alt = (
        f"Share of answers with at most each u: half of them have at most {now:.3g} now, and had "
        f"at most {then:.3g} at calibration."
    )
    x = svg.Axis("uncertainty u", float(low), float(high), percent=False)
    return "Answers with at most each u", svg.Chart(alt, lines, x, svg.Axis("share"))


_GLOSSARY = pages.Definitions(
    [
        (
            "Kolmogorov-Smirnov distance",
            "uncertainty_ks",
            "Largest difference between the shares of answers with at most some u, then and now. "
            "The interval is that of Dvoretzky, Kiefer, Wolfowitz and Massart for both samples, "
            "95 %. It bounds the change in the share that any threshold accepts.",
        ),
        (
            "Population stability index",
            "uncertainty_psi",
            "Sum over bins of (now - then) log(now / then) of their shares; the bins are tenths of "
            "the calibration set. 0.1 and 0.25 are customary limits of a small and a large change; "
            "what chance alone makes depends on the number of rows and stands beside it.",
        ),
        (
            "By chance up to",
            "by_chance",
            "Without a change, a value above this is seen as often as alpha says, in this check "
            "alone.",
        ),
        (
            "p, all checks",
            "adjusted",
            "Holm's p-value: a finding where it is at most alpha. With that, a false alarm in any "
            "of the checks has at most the probability alpha, each time that they are made.",
        ),
        (
            "Evidence",
            "evidence",
            "What a bet on errors would have won that is fair if the promise is just kept. While "
            "it is kept, the chance that this ever reaches 1 / delta is at most delta (Ville's "
            "inequality): one may look after every label. Only where the order of labels is known "
            "(--ordered, --time_column); else an exact binomial test of all rows, for one look.",
        ),
    ]
)


def _check_table(findings: Findings) -> Table:
    lines = [
        [
            check.title,
            "changed" if check.found else "no finding",
            Cell(check.shown, check.statistic, check.beside),
            "" if check.by_chance is None else Cell(f"{check.by_chance:.3f}", check.by_chance),
            Cell(_p(check.p_value), check.p_value),
            Cell(_p(check.adjusted), check.adjusted),
        ]
        for check in findings.assumption.checks
    ]
    mix = findings.assumption.mix
    pooled = f"; {len(mix.pooled)} rare classes counted as one" if mix and mix.pooled else ""
    return Table(
        "checks",
        f"Calibration set ({len(findings.then):,} rows) and scores ({len(findings.now):,} rows)"
        f"{pooled}",
        {
            "check": "check",
            "finding": "finding",
            "value": "value",
            "by_chance": "by chance up to",
            "p_value": "p",
            "adjusted": "p, all checks",
        },
        lines,
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _draw_change(findings: Findings) -> list[Drawing]:
    tau = None if findings.threshold is None else findings.threshold.tau
    then, now = findings.then, findings.now
    figure, (left, right), columns = panels(2)
    plots.plot_two_samples(left, then, now, tau=tau, title="How u is distributed")
    at = drift.ks(then, now).at
    plots.plot_distribution_functions(right, then, now, at=at, tau=tau, title="The same, added up")
    drawings = [
        Drawing(
            "uncertainty",
            "Uncertainty then and now",
            "The calibration set and the scores. Left of tau answers are accepted. The thick line "
            "is the Kolmogorov-Smirnov distance.",
            figure,
            columns,
            f"median {np.median(then):.3g} at calibration, {np.median(now):.3g} now",
        )
    ]
    shares, names, words = _class_shares(findings)
    figure, (ax,), columns = panels(1, height=max(3.5, 1.2 + 0.32 * len(names)), left=1.6)
    plots.plot_class_shares(ax, shares[0], shares[1], names)
    alt = "; ".join(
        f"{name} {before:.1%}, now {after:.1%}"
        for name, before, after in zip(names, *shares, strict=True)
    )
    drawings.append(
        Drawing("classes", "Predicted classes then and now", words, figure, columns, alt)
    )
    if tau is not None:
        drawings.append(_draw_abstention(findings, tau))
    return drawings


def _class_shares(findings: Findings) -> tuple[np.ndarray, list[str], str]:
    """Shares [2, k], names and caption of the classes that a figure has room for."""
    classes, counts = _class_counts(findings.baseline.predicted, findings.scores.predicted)
    shares = counts / counts.sum(axis=1, keepdims=True)
    given = findings.baseline.class_names
    own = findings.scores.class_names
    kept = np.arange(len(classes))
    words = "Share of the answers of each class that was predicted."
    if len(classes) > _SHOWN_CLASSES:
        changes = np.abs(shares[0] - shares[1])
        kept = np.sort(np.argsort(-changes, kind="stable")[:_SHOWN_CLASSES])
        words = f"The {_SHOWN_CLASSES} predicted classes whose shares differ most."
    names = [
        given[number] if given else shown(own.get(number, number))
        for number in map(int, classes[kept])
    ]
    return shares[:, kept], names, words


def _draw_abstention(findings: Findings, tau: float) -> Drawing:
    rejected, times = findings.now >= tau, findings.scores.times
    if times is not None:
        rejected = rejected[np.argsort(times, kind="stable")]
    order = "their order in the file" if times is None else "the order of time"
    blocks = min(_BLOCKS, max(1, len(rejected) // 25))
    parts = np.array_split(rejected, blocks)
    ends = np.cumsum([len(part) for part in parts])
    rates = np.array([part.mean() for part in parts])
    low, high = np.array([drift.clopper_pearson(int(part.sum()), len(part)) for part in parts]).T
    share = float(np.mean(findings.then >= tau))
    interval = drift.clopper_pearson(int(np.sum(findings.then >= tau)), len(findings.then))
    figure, (ax,), columns = panels(1)
    plots.plot_rate_by_block(
        ax,
        ends - np.array([len(part) for part in parts]) / 2,
        rates,
        low,
        high,
        baseline=(share, *interval),
        ylabel="abstentions",
    )
    return Drawing(
        "abstention",
        "Abstentions along the file" if times is None else "Abstentions over time",
        f"The scores in {order}, in {blocks} blocks, each with its exact 95 % interval; the band "
        "is that of the calibration set.",
        figure,
        columns,
        f"from {rates.min():.1%} to {rates.max():.1%} in blocks, {share:.1%} at calibration",
    )


def _promise_table(findings: Findings) -> Table:
    promise = findings.promise
    risk = promise.errors / promise.accepted
    assert promise.interval is not None
    values: dict[str, Any] = {
        "limit of the error rate": "none" if promise.limit is None else f"{promise.limit:.4g}",
        "answers with a label": f"{promise.labeled:,}",
        "accepted ones among them": f"{promise.accepted:,}",
        "wrong ones among these": f"{promise.errors:,}",
        "error rate, exact 95 % interval": _percent(risk, promise.interval),
    }
    if promise.curve:
        ends = (float(promise.curve["low"][-1]), float(promise.curve["high"][-1]))
        name = f"interval for all times together, level {1 - findings.delta:.4g}"
        values[name] = f"{_interval(ends)} %"
    if promise.p_value is not None:
        values[f"p of the promise, test: {promise.test}"] = _p(promise.p_value)
    if promise.broken_at is not None:
        values["shown broken at accepted answer"] = f"{promise.broken_at:,}"
        values["most clearly so from"] = f"{promise.since:,}"
    return tables.pair_table(values, "promise", "Accepted answers with a label")


def _draw_promise(findings: Findings) -> Drawing:
    promise = findings.promise
    curve = promise.curve
    figure, axes, columns = panels(2 if "evidence" in curve else 1)
    plots.plot_risk_over_rows(
        axes[0],
        curve["rows"],
        curve["risk"],
        curve["low"],
        curve["high"],
        limit=promise.limit,
        broken=promise.broken_at,
        title="Error rate of accepted answers",
    )
    words = (
        f"In the order of the labels. The band covers the rate, if it stays the same, at all times "
        f"together (level {1 - findings.delta:.4g})."
    )
    if "evidence" in curve:
        plots.plot_evidence(
            axes[1],
            curve["rows"],
            curve["evidence"],
            enough=1 / findings.delta,
            broken=promise.broken_at,
            title="Evidence that the promise is broken",
        )
        words += (
            " The evidence counts from every row on, so that a late rise shows although the rate "
            "of all rows together is still low."
        )
    alt = f"{promise.errors:,} of {promise.accepted:,} accepted answers with a label are wrong"
    return Drawing("promise", "The promise over time", words, figure, columns, alt)


def terminal_text(findings: Findings) -> str:
    """What a person should know, in a few lines of fewer than 80 columns."""
    baseline, threshold = findings.baseline, findings.threshold
    tau = "no threshold"
    if threshold is not None:
        tau = "tau none" if threshold.tau is None else f"tau {threshold.tau:.4g}"
    rows = f"{len(findings.then):,} rows of {baseline.column}"
    lines = [
        f"baseline  {shown(baseline.name)}: {rows}, {tau}",
        f"scores    {shown(findings.scores.name)}: {len(findings.now):,} rows",
        "",
    ]
    if findings.assumption.checks:
        table = [["check", "value", "by chance", "p, all checks"]]
        table += [
            [
                check.title,
                check.shown,
                "" if check.by_chance is None else f"{check.by_chance:.3f}",
                _p(check.adjusted) + " !" * check.found,
            ]
            for check in findings.assumption.checks
        ]
        lines += [*tables.aligned(table), ""]
    paragraphs = [
        (title, f"{_HEADS[found.verdict]} {found.words}")
        for title, found in (("data", findings.assumption), ("promise", findings.promise))
    ]
    paragraphs.insert(0, ("state", _state_words(findings)))
    paragraphs += [("next", step) for step in findings.next_steps]
    paragraphs += [("note", note) for note in findings.notes]
    for title, words in paragraphs:
        lines += textwrap.wrap(words, 78, initial_indent=f"{title:<10}", subsequent_indent=" " * 10)
    return "\n".join(lines)


def _state_words(findings: Findings) -> str:
    """State and figures in a sentence."""
    figures = findings.figures

    def percent(share: Share) -> str:
        return _percent(share.count / share.rows, share.interval)

    words = f"{findings.state}."
    if figures.accepted is not None:
        words += f" Of the answers {percent(figures.accepted)} are accepted"
        if figures.wrong is not None:
            words += f", and of these {percent(figures.wrong)} are wrong"
        if figures.handed_over is not None:
            words += f"; of the errors {percent(figures.handed_over)} are handed over"
        words += " (exact 95 % intervals)."
    return words


# The command -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, compares and reports; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if leftovers:
            raise command.UsageError(f"expected --NAME=VALUE, received the word {leftovers[0]!r}")
        values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
        paths = _paths(values)
        for name in ("risk", "alpha", "delta"):
            if values[name] is not None:
                drift.check_probability(name, values[name])
        _check_threshold(values, paths["baseline"])
        if values["ordered"] and values["time_column"]:
            raise command.UsageError(
                "ordered: expected it or --time_column, received both: one order counts"
            )
    return command.carry_out(lambda: _run(values, paths), verbose=1)


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()

    def text_flag(name: str, help: str) -> None:
        flags.DEFINE_string(name, "", help, flag_values=flag_values)

    def number_flag(name: str, default: float | None, help: str) -> None:
        flags.DEFINE_float(name, default, help, flag_values=flag_values)

    text_flag(
        "baseline",
        "What the threshold was chosen on: a run's folder, an exported model's directory or its "
        "parent, or a predictions file.",
    )
    text_flag("scores", f"Answers of btcp_tf.predict ({', '.join(evaluation.ENDINGS)}).")
    text_flag(
        "labels",
        "Labels that came later: a CSV file of input,labels for any of the inputs. Or a column "
        "labels in the scores.",
    )
    flags.DEFINE_boolean(
        "ordered",
        False,
        "Labels stand in the order in which they came, and further ones are added at the end: the "
        "promise is tested row by row, however often one looks. Else all rows are tested at once, "
        "which is for one look.",
        flag_values=flag_values,
    )
    text_flag(
        "time_column",
        "As --ordered, in the order of this column of the labels' file or the scores: ISO 8601, or "
        "numbers such as Unix seconds.",
    )
    text_flag("output_dir", "Where to write; empty: <scores>-monitor beside the scores.")
    text_flag("column", "Name of the uncertainty in a predictions file that has several.")
    number_flag("tau", None, "Threshold, for a predictions file as the baseline.")
    number_flag("risk", None, "Error rate of accepted answers to test; else the promised one.")
    number_flag("alpha", 0.01, "False alarms of all checks for a change together, each time.")
    number_flag(
        "delta", 0.01, "False alarms about the promise: of a look, or of an ordered stream."
    )
    return flag_values


def _paths(values: Mapping[str, Any]) -> dict[str, Path]:
    """Where the files are.

    Raises:
      UsageError: If one of them is not there.
    """
    paths = {
        name: Path(os.path.expanduser(values[name]))
        for name in ("baseline", "scores", "labels", "output_dir")
        if values[name]
    }
    for name in ("baseline", "scores"):
        if name not in paths:
            raise command.UsageError(f"{name}: expected a path, received none")
    if not paths["baseline"].exists():
        raise command.UsageError(
            f"baseline: expected a run's folder, an exported model or a predictions file, "
            f"received {paths['baseline']}, which is not there"
        )
    for name, endings in (("scores", evaluation.ENDINGS), ("labels", tabular.ENDINGS)):
        if name in paths:
            command.check_file(name, paths[name], endings)
    paths.setdefault("output_dir", paths["scores"].with_name(f"{paths['scores'].name}-monitor"))
    return paths


def _check_threshold(values: Mapping[str, Any], baseline: Path) -> None:
    """UsageError unless what is asked of the threshold fits where it comes from."""
    tau = values["tau"]
    if tau is not None:
        _check_tau(tau)
    if tau is not None and baseline.is_dir():
        raise command.UsageError(
            "tau: expected only with a predictions file as the baseline, received it with "
            f"{baseline}, whose own threshold counts"
        )
    if tau is None and values["risk"] is not None and baseline.is_file():
        raise command.UsageError(
            "risk: expected with --tau where a predictions file is the baseline, received without: "
            "which answers are accepted is not known"
        )


def _run(values: Mapping[str, Any], paths: Mapping[str, Path]) -> int:
    folder = paths["output_dir"]
    history = monitor_history.load(folder / "monitor.json")
    baseline = load_baseline(paths["baseline"], column=values["column"])
    scores = _load_scores(values, paths["scores"], baseline)
    labels, order = None, "rows" if values["ordered"] else ""
    if "labels" in paths:
        labels = join_labels(scores, paths["labels"], time_column=values["time_column"])
    elif (name := values["time_column"]) and scores.times is None:
        raise ValueError(f"time_column: expected a column {name} in {scores.name}, received none")
    if values["time_column"]:
        order = "time"
    findings = monitor(
        baseline,
        scores,
        labels=labels,
        order=order,
        history=history,
        **{name: values[name] for name in ("tau", "risk", "alpha", "delta")},
    )
    settings = {
        name: shown(value) if isinstance(value, str) else value for name, value in values.items()
    }
    content = {
        "monitor.html": pages.to_html(to_report(findings, settings)),
        "monitor.json": json.dumps(to_json(findings, settings), indent=1, allow_nan=False) + "\n",
    }
    check_folder("output_dir", folder)
    for name, words in content.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(words, encoding="utf-8")
    print(terminal_text(findings))
    print()
    for name, file in (("report", "monitor.html"), ("verdicts", "monitor.json")):
        print(f"{name:<10}{folder / file}")
    return findings.status


def _load_scores(values: Mapping[str, Any], path: Path, baseline: Baseline) -> Scores:
    column = values["column"]
    names = [name for name in (column, "uncertainty", baseline.column) if name]
    scores = load_scores(path, list(dict.fromkeys(names)), time_column=values["time_column"])
    if column and column not in (baseline.column, scores.column):
        raise ValueError(
            f"column: expected an uncertainty of {baseline.name} or {scores.name}, "
            f"received {column}"
        )
    return scores


if __name__ == "__main__":
    sys.exit(main())
