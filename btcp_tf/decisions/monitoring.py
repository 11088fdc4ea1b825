"""Whether a threshold still holds on new data: findings as values."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import btcp_tf
from btcp_tf import metrics, thresholds
from btcp_tf.decisions import assumptions, drift, promises
from btcp_tf.decisions.assumptions import Assumption
from btcp_tf.decisions.history import NONE, History, sample_digest
from btcp_tf.decisions.promises import FIXED_SAMPLE, SEQUENTIAL, Promise
from btcp_tf.decisions.scores import Baseline, Scores
from btcp_tf.evaluation import tabular
from btcp_tf.thresholds import Threshold

NOTHING, DRIFT, BROKEN = 0, 3, 4
"""Exit statuses: nothing found; the assumption of the promise no longer holds, or without a promise
the data has changed; the promise is shown broken, which is worse."""

ORDERS = ("", "rows", "time")
"""What is known of the order of labels: nothing; that of the rows is the one in which they came; a
column of times has put them in order."""


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
class Findings:
    """Everything that is reported."""

    baseline: Baseline
    scores: Scores
    threshold: Threshold | None
    assumption: Assumption
    promise: Promise
    figures: Figures
    history: History
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
    history: History = NONE,
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
        rows that are said to be in order are sorted by class, u or error, or are not those that
        were judged before.
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
        tau = check_tau(tau)
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
            f"{promises.name_of(scores, int(labels[0][row]))}"
        )
    cut = None if threshold is None else threshold.tau
    sorted_by = _sorted_by(scores, now, labels, cut) if order and labels is not None else None
    if sorted_by is not None and order == "rows" and not sorted_by.may_be_a_break:
        raise ValueError(
            "ordered: expected rows in the order in which their labels came, received "
            f"{sorted_by.words}; leave out --ordered for the test of a fixed sample, which needs "
            "no order, or name a column of times or running numbers with --time_column"
        )
    promise = promises.judge_promise(
        scores, now, threshold, labels, risk, delta, ordered=bool(order)
    )
    history = _with_this_look(history, scores, now, labels, cut, promise)
    notes = [
        *_order_notes(promise, history, delta, sorted_by),
        *_range_notes(baseline, scores),
        *_notes(scores, threshold, now, labels, promise),
    ]
    return Findings(
        baseline,
        scores,
        threshold,
        assumptions.judge_assumption(
            (then, baseline.predicted), (now, scores.predicted), cut, alpha
        ),
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


_SORTED = 1e-4
"""p-value, for each of the columns looked at, from which on rows are taken for sorted."""


@dataclasses.dataclass(frozen=True)
class _Sorting:
    """What labeled rows are sorted by, or nearly so."""

    words: str
    by_error: bool = False
    """Right and wrong answers stand apart."""
    may_be_a_break: bool = False
    """The wrong ones come late, which is also what a model looks like that suddenly fails."""


def _sorted_by(
    scores: Scores,
    uncertainty: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray],
    tau: float | None,
) -> _Sorting | None:
    """By what labeled rows are sorted, or nearly so; None: by nothing.

    Only an order that a sort makes: less than a third of the changes that chance would make, and so
    few in at most one of 10,000 random orders. That classes come a little bunched is common in a
    stream, and no fault.
    """
    rows, true = labels
    if not len(rows):
        return None
    predicted, u = scores.predicted[rows], uncertainty[rows]
    # The promise is about accepted answers: in their order errors count.
    judged = np.ones(len(rows), bool) if tau is None else u < tau
    wrong = (predicted != true)[judged]
    columns = {
        "true class": ("the true class", true),
        "predicted class": ("the predicted class", predicted),
        "uncertainty": (
            "the quarter that u is in",
            np.searchsorted(np.quantile(u, [0.25, 0.5, 0.75]), u),
        ),
        "right and wrong": ("right or wrong among the accepted", wrong.astype(np.int64)),
    }
    for name, (what, groups) in columns.items():
        if not len(groups):
            continue
        found = drift.blocks(groups, shuffles=9_999)
        if found.changes <= found.expected / 3 and found.p_value <= _SORTED:
            by_error = groups is columns["right and wrong"][1]
            first = wrong[: int(wrong.sum())]
            return _Sorting(
                f"rows that stand together as if sorted by {name}: from one to the next {what} "
                f"changes {found.changes:,} time{'s' * (found.changes != 1)}, and in a random "
                f"order {found.expected:,.0f} times (p at most {_SORTED:g})",
                by_error,
                by_error and float(first.mean()) < 0.5,
            )
    return None


def _with_this_look(
    history: History,
    scores: Scores,
    uncertainty: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray] | None,
    tau: float | None,
    promise: Promise,
) -> History:
    """All looks; ValueError if rows that were judged have not kept their places."""
    if promise.test is None or labels is None or tau is None or promise.limit is None:
        return history
    accepted = uncertainty[labels[0]] < tau
    digests = scores.digests(labels[0][accepted], labels[1][accepted])
    if promise.test == SEQUENTIAL:
        return history.with_stream(digests, tau, promise.limit)
    return history.with_sample(sample_digest(digests, tau, promise.limit))


def _order_notes(
    promise: Promise, history: History, delta: float, sorted_by: _Sorting | None
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
        effect = (
            "It counts each answer on its own, so a block of a difficult class can break the "
            "promise although all rows together keep it."
        )
        if sorted_by.by_error:
            effect = (
                "If labels came in this order, the model failed all at once; if somebody sorted "
                "the rows, the verdict means nothing: look without --ordered or --time_column at "
                "all rows together."
            )
        yield f"In the order that is stated the test sees {sorted_by.words}. {effect}"


def _next_steps(findings: Findings) -> Iterator[str]:
    """See `Findings.next_steps`."""
    threshold, promise = findings.threshold, findings.promise
    changed = findings.assumption.verdict == "changed"
    anew = (
        "label a random sample of recent answers and choose the threshold on it: python -m "
        "btcp_tf.set_threshold MODEL --threshold=target_risk --risk=LIMIT --scores=LABELED"
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
            "btcp_tf.set_threshold MODEL --threshold=target_risk --risk=LIMIT"
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


def check_tau(tau: Any) -> float:
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
                f"{number} as in {baseline.name}, received {tabular.shown(name)!r}: the scores of "
                "another model"
            )
    return classes


def _same_precision(*columns: np.ndarray) -> list[np.ndarray]:
    """Numbers as float64, rounded to the lowest precision among them.

    A u that was written as a decimal and read again would else differ from itself, which looks like
    a change wherever many u are tied.
    """
    shared = min((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    return [column.astype(shared).astype(np.float64) for column in columns]


# u and tau may have been rounded on the way into a file.
_ROUNDING = 1e-6


def _range_notes(*files: Baseline | Scores) -> Iterator[str]:
    for file in files:
        u = file.uncertainty
        outside = (u < 0) | (u > 1)
        if outside.any():
            row = int(outside.argmax())
            yield (
                f"{file.name}: {int(outside.sum()):,} of {len(u):,} values of {file.column} lie "
                f"outside of 0 to 1, the first of them {u[row]:.6g}. They are compared as they "
                "are, as those of an unbounded score; where u was meant, they are wrong."
            )


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
            f"no answer and are left out, the first of them {tabular.shown(scores.problems[0])}."
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
                f"{len(differ):,} rows, the first being "
                f"{promises.name_of(scores, int(differ.argmax()))}: "
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


def to_json(findings: Findings, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings as JSON knows values: `status`, `state`, `figures`, `promise` and so on."""
    baseline, scores, threshold = findings.baseline, findings.scores, findings.threshold
    assumption, promise = findings.assumption, findings.promise
    promised = {name: value for name, value in vars(promise).items() if name != "curve"}
    if promise.input is not None:
        promised["input"] = tabular.shown(promise.input)
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
