"""Whether a threshold still holds on new data: findings as values."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import btcp_tf
from btcp_tf import metrics, thresholds
from btcp_tf.core import json_files
from btcp_tf.core.groups import one_of_each
from btcp_tf.decisions import assumptions, drift, labeled, looked_at, messages, promises
from btcp_tf.decisions.assumptions import Assumption
from btcp_tf.decisions.expected_errors import ExpectedErrors, expected_errors
from btcp_tf.decisions.history import NONE, History, Look, mark, sample_digest
from btcp_tf.decisions.labeled import LabeledAnswers, Sorting
from btcp_tf.decisions.looked_at import LookedAt
from btcp_tf.decisions.promises import FIXED_SAMPLE, SEQUENTIAL, GroupPromise, Promise
from btcp_tf.decisions.scores import Baseline, Scores
from btcp_tf.evaluation import tabular
from btcp_tf.thresholds import GROUP, GroupThreshold, Threshold

NOTHING, DRIFT, BROKEN = 0, 3, 4
"""Exit statuses: nothing found; the assumption of the promise no longer holds, or without a promise
the data has changed; the promise is shown broken, which is worse."""

ORDERS = ("", "rows", "time")
"""What is known of the order of labels: nothing; that of the rows is the one in which they came; a
column of times has put them in order."""


_OF_GROUPS = ("verdict", "p_value", "labeled", "errors", "interval")
"""What `to_json` says of the promise in a group."""


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
    looked_at: LookedAt | None = None
    """None: there are no looks, or it is not known which inputs they are at."""
    expected: ExpectedErrors | None = None
    """Of all scores; None: u is no probability, or the baseline has no labels."""
    groups: tuple[GroupPromise, ...] = ()
    """The promise in each group by itself; empty: the scores have none."""
    accepted: tuple[np.ndarray, np.ndarray] | None = None
    """Which answers of the baseline `[n]` and of the scores `[m]` are accepted; None: there is no
    threshold, or it accepts nothing."""
    repeats: bool = False
    """Whether an earlier look tested the same rows in the same way. Not in the files: the same
    command writes the same ones."""

    @property
    def promised_by(self) -> str:
        """What the promise was made in each of, see `GroupThreshold.by`; these are the groups then.
        "": it is about all answers."""
        return self.threshold.by if isinstance(self.threshold, GroupThreshold) else ""

    @property
    def verdict(self) -> str:
        """About the promise, see `Promise.verdict`. One that was made in each class or group is
        broken where it is in one of them, and kept where it is shown for each that accepts."""
        if not self.promised_by:
            return self.promise.verdict
        found = {self.promise.verdict, *(one.promise.verdict for one in self.groups)}
        if "broken" in found:
            return "broken"
        accepting = [one.promise.verdict for one in self.groups if one.accepted]
        kept = self.promise.verdict == "kept" and all(one == "kept" for one in accepting)
        return "open" if self.promise.verdict == "kept" and not kept else self.promise.verdict

    @property
    def alarm(self) -> float:
        """Probability of a false alarm of the test of all answers, and of that of the groups: a
        promise that is made in each of these is tested by both, with half of `delta` each."""
        return self.delta / 2 if self.promised_by else self.delta

    @property
    def status(self) -> int:
        """The exit status."""
        if self.verdict == "broken":
            return BROKEN
        return DRIFT if self.assumption.verdict == "changed" else NOTHING

    @property
    def state(self) -> str:
        """Does the threshold still hold: "holds", "broken" or "cannot tell".

        Labels alone can show either: without a change in u the errors may have risen, and with one
        they need not have.
        """
        return {"kept": "holds", "broken": "broken"}.get(self.verdict, "cannot tell")

    @property
    def assumption_text(self) -> str:
        """The verdict about the data in a few sentences."""
        return messages.assumption_text(self.assumption)

    @property
    def promise_text(self) -> str:
        """The verdict about the promise in a few sentences."""
        text = messages.promise_text(self.promise, self.threshold, self.scores, self.alarm)
        return f"{text} {self.groups_text}" if self.promised_by and self.promise.labeled else text

    @property
    def looked_at_text(self) -> str:
        """How many inputs are looked at again, and what that costs; "": it is not known."""
        return "" if self.looked_at is None else messages.looked_at_text(self.looked_at)

    @property
    def expected_text(self) -> str:
        """How many answers are wrong by u alone, and if what; "": it cannot be told."""
        if self.expected is None:
            return ""
        changed = self.assumption.verdict == "changed"
        return messages.expected_text(self.expected, "the baseline's", changed=changed)

    @property
    def groups_text(self) -> str:
        """In which groups the promise is refuted or shown; "": there are no groups."""
        return messages.groups_text(self.groups, self.promise.limit, self.alarm, self.promised_by)

    @property
    def repeated_look(self) -> str:
        """What a second look at the same rows is worth; "": it is none."""
        looks = self.history.earlier_looks + 1
        return messages.repeated_look(looks, self.delta) if self.repeats else ""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to do now, a sentence each, the most urgent first."""
        accepted = 0 if self.figures.accepted is None else self.figures.accepted.count
        changed = self.assumption.verdict == "changed"
        return tuple(
            messages.next_steps(
                self.threshold, self.promise, accepted, self.verdict, changed=changed
            )
        )

    @property
    def look(self) -> Look:
        """What later reports in the same folder say of this one."""
        return Look(
            tabular.shown(self.scores.name),
            self.state,
            self.assumption.verdict,
            len(self.now),
            self.promise.accepted,
            self.promise.errors,
        )


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
      history: Earlier looks, from `history.load`.

    Raises:
      ValueError: If the scores are those of another model, or an argument is not as described; if
        rows that are said to be in order are sorted by class, u or error, or are not those that
        were judged before.
    """
    _check_arguments(baseline, scores, order)
    threshold = _threshold(baseline, tau)
    by = threshold.by if isinstance(threshold, GroupThreshold) else ""
    if by:
        scores = _by_promised(scores, by)
    classes = _classes(baseline, scores)
    before, now = _same_precision(baseline.uncertainty, scores.uncertainty)
    independent = _independent(scores.groups, len(now))
    decided = _decided(threshold, (before, baseline), (now, scores))
    compared = looked_at.compare(baseline.gate, baseline.mcp_logit, scores.mcp_logit)
    assumption = assumptions.judge_assumption(
        (before, baseline.predicted),
        (now[independent], scores.predicted[independent]),
        None if decided is None else (~decided[0], ~decided[1][independent]),
        alpha,
        None if compared is None else compared.rates,
    )
    limits = None
    if threshold is not None and decided is not None:
        limits = scores.limits(threshold)
    answers = _independent_answers(
        labeled.labeled_answers(scores, now, labels, classes, limits), scores.groups, bool(order)
    )
    sorting = _sorting(answers, order)
    if risk is not None:
        drift.check_probability("risk", risk)
    elif threshold is not None:
        risk = threshold.target
    # The tests of all answers and of the groups are two where both are promised.
    alarm = delta / 2 if by else delta
    promise = promises.judge_promise(answers, risk, alarm, ordered=bool(order))
    if promise.row is not None and scores.inputs is not None:
        promise = dataclasses.replace(promise, input=scores.inputs[promise.row])
    tested, history = (
        history.samples,
        _with_this_look(history, scores, answers, promise, threshold),
    )
    accepted = np.zeros(len(now), bool) if decided is None else decided[1]
    groups = _promises_of_groups(
        baseline, scores, accepted, answers, risk, alarm, ordered=bool(order)
    )
    notes = [
        *messages.look_notes(promise, history.earlier_looks, delta),
        *messages.order_notes(promise, sorting),
        *messages.group_notes(scores.groups, answers),
        *messages.range_notes(baseline, scores),
        *messages.score_notes(scores, threshold, now),
        *messages.cost_notes(baseline, scores, compared, assumption),
        *messages.label_notes(scores, threshold, answers, promise, int(accepted.sum())),
    ]
    findings = Findings(
        baseline,
        scores,
        threshold,
        assumption,
        promise,
        Figures() if threshold is None else _figures(accepted, answers),
        history,
        delta,
        tuple(notes),
        before,
        now,
        compared,
        _expected(baseline, before, now),
        groups,
        decided,
        repeats=promise.test == FIXED_SAMPLE and history.samples == tested,
    )
    return dataclasses.replace(findings, history=history.with_look(findings.look))


def _by_promised(scores: Scores, by: str) -> Scores:
    """Scores whose groups are those that were promised; ValueError if they have others, or none."""
    if by == GROUP:
        if scores.by is None:
            raise ValueError(
                f"by: expected the group of each row of {scores.name}, as the threshold promises "
                "for each group, received none; name its column"
            )
        return scores
    if scores.by is not None and scores.by is not scores.predicted:
        raise ValueError(
            "by: expected none, as the threshold promises for each predicted class and these are "
            "tested, received a column; leave it out"
        )
    return dataclasses.replace(scores, by=scores.predicted)


def _decided(
    threshold: Threshold | None, *answers: tuple[np.ndarray, Baseline | Scores]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Which of two sets of answers, given u, are accepted."""
    if threshold is None or threshold.accepts_nothing:
        return None
    before, now = (u < rows.limits(threshold) for u, rows in answers)
    return before, now


def _independent(groups: np.ndarray | None, rows: int) -> np.ndarray:
    """Rows that are independent draws: all, or one of each group."""
    if groups is None:
        return np.arange(rows)
    return one_of_each(np.unique(groups, return_inverse=True)[1])


def _independent_answers(
    answers: LabeledAnswers | None, groups: np.ndarray | None, ordered: bool
) -> LabeledAnswers | None:
    """The labeled answers, of each group one: the first, where they come in order."""
    if answers is None or groups is None:
        return answers
    own = groups[answers.rows]
    rows = np.unique(own, return_index=True)[1] if ordered else _independent(own, len(own))
    kept = np.zeros(len(own), bool)
    kept[rows] = True
    return answers.taken(kept)


def _promises_of_groups(
    baseline: Baseline,
    scores: Scores,
    accepted: np.ndarray,
    answers: LabeledAnswers | None,
    risk: float | None,
    delta: float,
    ordered: bool,
) -> tuple[GroupPromise, ...]:
    """The promise in each group that is looked at by itself; none where nobody asked."""
    if scores.by is None:
        return ()
    names = _names_of_groups(baseline, scores)
    return promises.judge_groups(names, scores.by, accepted, answers, risk, delta, ordered=ordered)


def _names_of_groups(baseline: Baseline, scores: Scores) -> dict[int, str]:
    """The names of classes, where these are the groups: other numbers in a column are none."""
    is_class = scores.by is scores.predicted
    return dict(enumerate(baseline.class_names or ())) if is_class else {}


def _expected(baseline: Baseline, before: np.ndarray, now: np.ndarray) -> ExpectedErrors | None:
    """The expected errors of u now, from the baseline's u and labels."""
    if baseline.only_decides or baseline.is_error is None:
        return None
    if any(u.min() < 0 or u.max() > 1 for u in (before, now)):
        return None
    return expected_errors(now, (baseline.is_error, before))


def _sorting(answers: LabeledAnswers | None, order: str) -> Sorting | None:
    """What labels that are said to be in order are sorted by; ValueError if that is no order."""
    sorting = labeled.sorted_by(answers) if order and answers is not None else None
    if sorting is not None and order == "rows" and not sorting.errors_last:
        raise ValueError(
            "ordered: expected rows in the order in which their labels came, received "
            f"{sorting}; leave out --ordered for the test of a fixed sample, which needs "
            "no order, or name a column of times or running numbers with --time_column"
        )
    return sorting


def _check_arguments(baseline: Any, scores: Any, order: Any) -> None:
    if order not in ORDERS:
        raise ValueError(
            f"order: expected one of {', '.join(map(repr, ORDERS))}, received {order!r}"
        )
    for name, value, kind in (("baseline", baseline, Baseline), ("scores", scores, Scores)):
        if not isinstance(value, kind):
            raise ValueError(
                f"{name}: expected what load_{name} returns, received {type(value).__name__}"
            )


def _threshold(baseline: Baseline, tau: float | None) -> Threshold | None:
    if tau is None:
        return baseline.threshold
    if baseline.threshold is not None:
        raise ValueError(
            f"tau: expected only with a predictions file, received it with {baseline.name}, "
            "which has a threshold of its own"
        )
    return dataclasses.replace(thresholds.DEFAULT, tau=check_tau(tau), rule="given")


def _figures(accepted: np.ndarray, answers: LabeledAnswers | None) -> Figures:
    """What the threshold does, from which answers are accepted `[m]` and those with a label."""
    share = Share.of(int(accepted.sum()), len(accepted))
    if answers is None:
        return Figures(share)
    kept, wrong = answers.accepted, answers.is_error
    return Figures(
        share,
        Share.of(int(np.sum(wrong & kept)), int(kept.sum())),
        Share.of(int(np.sum(wrong & ~kept)), int(wrong.sum())),
    )


def _with_this_look(
    history: History,
    scores: Scores,
    answers: LabeledAnswers | None,
    promise: Promise,
    threshold: Threshold | None,
) -> History:
    """All looks; ValueError if rows that were judged have not kept their places."""
    if promise.test is None or promise.limit is None or answers is None or threshold is None:
        return history
    kept = answers.accepted
    digests = scores.digests(answers.rows[kept], answers.labels[kept])
    if promise.test == SEQUENTIAL:
        return history.with_stream(digests, mark(threshold), promise.limit)
    return history.with_sample(sample_digest(digests, mark(threshold), promise.limit))


def check_tau(tau: Any) -> float:
    """The threshold as a float; ValueError unless it is a finite number."""
    return metrics.number("tau", tau, "a finite number", math.isfinite)


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


def to_json(findings: Findings, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings as JSON knows values: `status`, `state`, `figures`, `promise` and so on."""
    baseline, scores, threshold = findings.baseline, findings.scores, findings.threshold
    assumption, promise = findings.assumption, findings.promise
    promised = {"verdict": promise.verdict, "words": findings.promise_text} | vars(promise)
    del promised["curve"], promised["errors_since"]
    expected: dict[str, Any] = {}
    if findings.expected is not None:
        expected["expected"] = {"words": findings.expected_text, **findings.expected._asdict()}
    groups: dict[str, Any] = {}
    if findings.groups:
        by_name = {
            one.name: {"rows": one.rows, "accepted": one.accepted}
            | {name: getattr(one.promise, name) for name in _OF_GROUPS}
            for one in findings.groups
        }
        groups = {"groups": {"words": findings.groups_text, "by_name": by_name}}
    looked: dict[str, Any] = {}
    if (compared := findings.looked_at) is not None:
        rates, *costs = compared
        values = rates._asdict() | dict(zip(compared._fields[1:], costs, strict=True))
        looked = {"looked_at": {"words": findings.looked_at_text, **values}}
    if promise.input is not None:
        promised["input"] = tabular.shown(promise.input)
    content = {
        "status": findings.status,
        "state": findings.state,
        "figures": findings.figures,
        "next": list(findings.next_steps),
        "assumption": {
            "verdict": assumption.verdict,
            "words": findings.assumption_text,
            "checks": assumption.checks,
            "ks": assumption.ks,
            "psi": assumption.psi,
            "classes": assumption.mix,
            "abstention": assumption.abstention,
        },
        **looked,
        **expected,
        **groups,
        "promise": promised,
        "baseline": {
            "path": tabular.shown(baseline.name),
            "column": baseline.column,
            "n": len(findings.then),
        },
        "scores": {
            "path": tabular.shown(scores.name),
            "column": scores.column,
            "n": len(findings.now),
            "problems": len(scores.problems),
        },
        "threshold": threshold,
        "settings": dict(settings),
        "notes": list(findings.notes),
        "history": findings.history,
        "versions": {"btcp_tf": btcp_tf.__version__, "numpy": np.__version__},
    }
    return json_files.plain(content)
