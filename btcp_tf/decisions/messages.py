"""Sentences about what `btcp_tf.monitor` finds: verdicts, notes and what to do next."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from btcp_tf.core.wording import p_text, percent_text
from btcp_tf.decisions.assumptions import LOOKED_AT, MIN_ROWS, Assumption
from btcp_tf.decisions.expected_errors import ExpectedErrors
from btcp_tf.decisions.labeled import LabeledAnswers, Sorting
from btcp_tf.decisions.looked_at import LookedAt
from btcp_tf.decisions.promises import FIXED_SAMPLE, SEQUENTIAL, GroupPromise, Promise
from btcp_tf.decisions.scores import Baseline, Scores
from btcp_tf.evaluation import tabular
from btcp_tf.thresholds import PREDICTED, Threshold

_PSI_SIZES = ((0.1, "small"), (0.25, "moderate"), (math.inf, "large"))
"""Customary limits of the population stability index."""


def assumption_text(assumption: Assumption) -> str:
    """The verdict about the data, and what it rests on."""
    n, m = assumption.rows
    if assumption.ks is None or assumption.psi is None:
        return (
            f"{MIN_ROWS} rows are needed on either side to speak of a change, and there "
            f"are {n:,} of the calibration set and {m:,} now."
        )
    together = (
        f"{len(assumption.checks)} checks, false alarm at most {assumption.alpha:.4g} for all "
        f"together (Holm); {n:,} rows then, {m:,} now"
    )
    changed = [check.title.split(":")[0] for check in assumption.checks if check.found]
    if not changed:
        return (
            "Nothing speaks against the scores being drawn as the calibration set was "
            f"({together}). That is no proof: with so many rows, a distance of up to "
            f"{assumption.ks.high:.2f} between the distributions of u is not ruled out."
        )
    size = next(word for limit, word in _PSI_SIZES if assumption.psi.value < limit)
    return (
        "The scores are not drawn as the calibration set was: chance does not explain the change "
        f"in {', '.join(dict.fromkeys(changed))} ({together}). By the customary limits of the PSI "
        f"the change of u is {size}. The promise about accepted answers is for data like the "
        "calibration set's."
    )


def looked_at_text(looked_at: LookedAt) -> str:
    """How many inputs are looked at again, and what an input costs with that."""
    rates = looked_at.rates
    return (
        f"Of the inputs {percent_text(rates.production, rates.production_interval)} are looked at "
        f"again, {percent_text(rates.baseline, rates.baseline_interval)} of the calibration set. "
        f"An input costs {looked_at.production_cost:.2f} passes of the classifier, "
        f"{looked_at.baseline_cost:.2f} then; {looked_at.planned_cost:.2f} were planned."
    )


def cost_notes(
    baseline: Baseline, scores: Scores, looked_at: LookedAt | None, assumption: Assumption
) -> Iterator[str]:
    """Looks that cost more than they did, or whose share cannot be told."""
    if baseline.gate is None:
        return
    if looked_at is None:
        file = scores if scores.mcp_logit is None else baseline
        yield (
            f"How many inputs are looked at again cannot be told: {tabular.shown(file.name)} has "
            "neither class probabilities nor a column mcp."
        )
        return
    found = any(check.found and check.name == LOOKED_AT for check in assumption.checks)
    if found and looked_at.rates.production > looked_at.rates.baseline:
        yield (
            f"Answers cost more: {looked_at.production_cost:.2f} passes of the classifier per "
            f"input, {looked_at.baseline_cost:.2f} on the calibration set. More inputs are unsure "
            "and are looked at again, and chance does not explain it. Where that is too much, fit "
            "the estimator again, to recent samples."
        )


def promise_text(
    promise: Promise, threshold: Threshold | None, scores: Scores, delta: float
) -> str:
    """The verdict about the promise, and what it rests on."""
    if not promise.labeled:
        return "There are no labels."
    if threshold is None:
        return "There is no threshold."
    if threshold.accepts_nothing:
        return "There is a threshold that accepts nothing."
    if not promise.accepted or promise.interval is None:
        return f"None of the {promise.labeled:,} answers with a label was accepted."
    share = percent_text(promise.errors / promise.accepted, promise.interval)
    observed = (
        f"{promise.errors:,} of {promise.accepted:,} accepted answers with a label are wrong, "
        f"{share}"
    )
    if promise.limit is None:
        return f"Nothing was promised. {observed}."
    if promise.verdict == "broken" and promise.test == SEQUENTIAL:
        return f"{_break_text(promise, scores, delta)} Altogether {observed}."
    return f"{observed}; {_result_text(promise, promise.limit, delta)}"


def expected_text(expected: ExpectedErrors, whose: str, *, changed: bool = False) -> str:
    """How many answers are wrong by u alone, and what that rests on.

    Args:
      expected: Of the answers.
      whose: Of the labeled answers that u was calibrated on, such as "the baseline's".
      changed: Whether the data are known to have changed.
    """
    doubt = ", and the data have changed: where inputs are wrong without being uncertain, more are"
    return (
        f"By u alone {percent_text(expected.rate, (expected.low, expected.high))} of these "
        f"{expected.rows:,} answers are expected to be wrong (95 % interval). That holds if an "
        f"answer of some u is as often wrong as among {whose} {expected.calibration_rows:,} "
        f"answers with a label ({expected.calibration_errors:,} wrong), and if u was not fitted on "
        f"those{doubt * changed}."
    )


def group_notes(groups: np.ndarray | None, answers: LabeledAnswers | None) -> list[str]:
    """What is tested where rows belong together."""
    if groups is None:
        return []
    labeled = "" if answers is None else f", {len(answers.rows):,} of them with a label"
    return [
        f"rows belong together ({len(np.unique(groups)):,} groups): one of each is tested{labeled}"
    ]


def groups_text(
    groups: Sequence[GroupPromise], limit: float | None, delta: float, promised_by: str = ""
) -> str:
    """In which groups a limit of the error rate is refuted or shown, each by itself.

    Args:
      groups: Each with its verdict.
      limit: Of the error rate of accepted answers; None: none was promised.
      delta: Probability of a false alarm in any group.
      promised_by: What the threshold promises it in each of, see `GroupThreshold.by`; "": it was
        chosen for all answers.
    """
    if not groups or limit is None:
        return "Nothing was promised, so no group is tested." if groups else ""
    by_verdict = {
        verdict: [one for one in groups if one.promise.verdict == verdict]
        for verdict in ("broken", "kept", "open", "none")
    }
    refuted = [
        f"{one.name} ({one.promise.errors:,} of {one.promise.accepted:,}, "
        f"{percent_text(one.promise.errors / one.promise.accepted, one.promise.interval)})"
        for one in by_verdict["broken"]
        if one.promise.interval is not None
    ]
    counts = {
        "shown": len(by_verdict["kept"]),
        "neither shown nor refuted": len(by_verdict["open"]),
        "without accepted answers that have a label": len(by_verdict["none"]),
    }
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    what = "predicted classes" if promised_by == PREDICTED else "groups"
    return (
        f"That at most {100 * limit:.4g} % of the accepted answers are wrong in each of "
        f"{len(groups):,} {what} by itself is "
        f"refuted in {', '.join(refuted) or 'none'}"
        f"{'; ' * bool(rest)}{rest} (false alarm in any of them at most {delta:.4g})."
        + " A threshold that was chosen for all answers promises nothing about a group."
        * (not promised_by)
    )


def _result_text(promise: Promise, limit: float, delta: float) -> str:
    """What a test says of a limit, but for one that was broken in the order of labels."""
    rate = f"{100 * limit:.4g} %"
    if promise.verdict == "broken":
        return (
            f"that at most {rate} are is refuted (exact binomial test, p "
            f"{p_text(promise.p_value or 0.0)}, false alarm at most {delta:.4g} for one look)."
        )
    how = "at whatever time one looks"
    if promise.test == FIXED_SAMPLE:
        how = "exact binomial test, for one look"
    level = f"(level {1 - delta:.4g}, {how})"
    if promise.verdict == "kept":
        return f"that the rate is at most {rate} is shown {level}."
    text = f"so many labels neither refute nor show that at most {rate} are {level}."
    if promise.test == FIXED_SAMPLE or promise.interval is None:
        return text
    if promise.interval[0] <= limit:
        return f"{text} (The interval is for a single look.)"
    return (
        f"{text} A single look at these rows would refute it: the interval is for that. More "
        "labels will tell."
    )


def _break_text(promise: Promise, scores: Scores, delta: float) -> str:
    """Where a test in the order of labels has shown the promise broken."""
    assert promise.broken_at is not None and promise.row is not None and promise.limit is not None
    assert promise.since is not None and promise.since_row is not None
    return (
        f"That at most {100 * promise.limit:.4g} % of the accepted answers are wrong is refuted at "
        f"accepted answer {promise.broken_at:,} with a label, {scores.row_name(promise.row)} "
        f"(false alarm at most {delta:.4g} over the whole stream, however often one looks). The "
        f"errors are densest from accepted answer {promise.since:,} on, "
        f"{scores.row_name(promise.since_row)}: {promise.errors_since:,} wrong of "
        f"{promise.broken_at - promise.since + 1:,} up to here."
    )


def next_steps(
    threshold: Threshold | None, promise: Promise, accepted: int, verdict: str, *, changed: bool
) -> Iterator[str]:
    """What to do, a sentence each, the most urgent first.

    Args:
      threshold: None: there is none.
      promise: What was tested.
      accepted: Accepted answers, with a label or without.
      verdict: About the promise, see `Findings.verdict`.
      changed: Whether the data have changed.
    """
    new_threshold = (
        "label a random sample of recent answers and choose the threshold on it: python -m "
        "btcp_tf.set_threshold MODEL --threshold=target_risk --risk=LIMIT --scores=LABELED"
    )
    if changed:
        new_threshold += " (with --recalibrate half of the sample brings u to the error rate first)"
    again = "To look again as labels come, add them at the end and name --ordered."
    if promise.test == SEQUENTIAL:
        again = "Look again with more labels as often as you like."
    if verdict == "broken":
        yield "Do not act on accepted answers without a check until there is a new threshold."
        yield f"Then {new_threshold}."
    elif threshold is None:
        yield "Name the threshold with --tau, and the error rate to test with --risk."
    elif threshold.accepts_nothing or promise.limit is None:
        what = "accepts nothing" if threshold.accepts_nothing else "promises nothing"
        yield (
            f"The threshold {what}: choose one that promises an error rate, with python -m "
            "btcp_tf.set_threshold MODEL --threshold=target_risk --risk=LIMIT"
            + ("." if threshold.accepts_nothing else ", or test a limit of your own with --risk.")
        )
    elif verdict == "kept" and changed:
        yield (
            "Accepted answers are still right often enough, but what comes in has changed: "
            f"{new_threshold}."
        )
    elif verdict == "kept":
        yield f"Nothing needs to be done. {again}"
    elif verdict == "open" and promise.accepted == accepted:
        yield (
            f"All {accepted:,} accepted answers have a label already. Label more of what comes in "
            f"next, and score it. {again}"
        )
    elif verdict == "open":
        yield f"Label more accepted answers, drawn at random. {again}"
    elif changed:
        yield f"The promise is for other data: {new_threshold}."
    elif not accepted:
        yield (
            "No answer is accepted, so there is none whose label could test the promise: score "
            "more, or choose a threshold that accepts some, with python -m btcp_tf.set_threshold."
        )
    else:
        yield (
            "Label a random sample of accepted answers, and look again with --labels: without "
            "labels nobody can tell whether the promise is kept."
        )


def look_notes(promise: Promise, earlier_looks: int, delta: float) -> Iterator[str]:
    """What follows from earlier looks at other rows or limits in the same output folder."""
    if promise.test == FIXED_SAMPLE and earlier_looks:
        alarm = min(1.0, (earlier_looks + 1) * delta)
        yield (
            "Looks at other rows or limits before this one, in the same output folder: "
            f"{earlier_looks:,}. The test of a fixed sample is for one look; that any of "
            f"{earlier_looks + 1:,} is a false alarm has a probability of up to {alarm:.4g}. With "
            "--ordered or --time_column one may look as often as one likes."
        )


def repeated_look(looks: int, delta: float) -> str:
    """What a second look at the same rows is worth, and what one more at others costs.

    Args:
      looks: Different looks in the same output folder, this one among them.
      delta: Probability of a false alarm of one look.
    """
    return (
        "These rows were tested here before, with the same threshold and limit: that is the same "
        "look, and counts once. Looks are counted, as the test of a fixed sample is for one: with "
        "one more, at further or other rows, the probability that any of them is a false alarm "
        f"is up to {min(1.0, (looks + 1) * delta):.4g}. To look as often as you like, put labels "
        "in the order in which they came and name --ordered or --time_column."
    )


def order_notes(promise: Promise, sorting: Sorting | None) -> Iterator[str]:
    """What a test in the order of labels is worth where the rows look sorted."""
    if promise.test != SEQUENTIAL or sorting is None:
        return
    effect = (
        "It counts each answer on its own, so a block of a difficult class can break the promise "
        "although all rows together keep it."
    )
    if sorting.column == "right and wrong":
        effect = (
            "If labels came in this order, the model failed all at once; if somebody sorted the "
            "rows, the verdict means nothing: look without --ordered or --time_column at all rows "
            "together."
        )
    yield f"In the order that is stated the test sees {sorting}. {effect}"


def range_notes(*files: Baseline | Scores) -> Iterator[str]:
    """Files whose u leaves [0, 1]."""
    for file in files:
        u = file.uncertainty
        outside = (u < 0) | (u > 1)
        if outside.any():
            row = int(outside.argmax())
            yield (
                f"{tabular.shown(file.name)}: {int(outside.sum()):,} of {len(u):,} values of "
                f"{file.column} lie outside of 0 to 1, the first of them {u[row]:.6g}. They are "
                "compared as they are, as those of an unbounded score; where u was meant, they are "
                "wrong."
            )


def score_notes(
    scores: Scores, threshold: Threshold | None, uncertainty: np.ndarray
) -> Iterator[str]:
    """Inputs without an answer, and decisions in the file that differ from u < tau."""
    if scores.problems:
        yield (
            f"{len(scores.problems):,} of {len(scores.problems) + len(uncertainty):,} inputs have "
            f"no answer and are left out, the first of them {tabular.shown(scores.problems[0])}."
        )
    if threshold is None:
        return
    if scores.accept is not None:
        differ = _differing(scores.accept, uncertainty, scores.limits(threshold))
        if differ.any():
            yield (
                "The scores' own column accept differs from the baseline's threshold "
                f"({_what_is_accepted(threshold)}) in "
                f"{int(differ.sum()):,} of {len(differ):,} rows, the first being "
                f"{scores.row_name(int(differ.argmax()))}: they were made with another threshold "
                "or another model. Here the baseline's counts."
            )
    if threshold.accepts_nothing:
        yield "The threshold accepts nothing: none kept the promise on the calibration set."


def _what_is_accepted(threshold: Threshold) -> str:
    if threshold.accepts_nothing:
        return "which accepts nothing"
    which = threshold.accepts if threshold.tau is None else f"u < {threshold.tau:.6g}"
    return f"{which} is accepted"


def _differing(accept: np.ndarray, u: np.ndarray, taus: np.ndarray) -> np.ndarray:
    # u and tau may have been rounded on the way into a file.
    rounding = 1e-6 * np.maximum(1, np.abs(np.where(np.isfinite(taus), taus, 0.0)))
    return (accept != (u < taus)) & (np.abs(u - taus) > rounding)


def label_notes(
    scores: Scores,
    threshold: Threshold | None,
    answers: LabeledAnswers | None,
    promise: Promise,
    accepted: int,
) -> Iterator[str]:
    """What labels can show; `accepted` is how many of all answers are accepted."""
    if answers is None or not promise.labeled:
        yield (
            "There are no labels. Where the errors of accepted answers rise and neither u nor the "
            "predicted classes change, nothing here can tell."
        )
        return
    if threshold is None or threshold.accepts_nothing:
        return
    if promise.accepted:
        yield (
            f"{promise.accepted:,} of {accepted:,} accepted answers have a label. What they say "
            "holds for all of them only if it does not depend on the answer which ones got one, as "
            "in a random sample."
        )
    elif accepted:
        yield f"None of the {accepted:,} accepted answers has a label: nothing tests the promise."
    else:
        yield "No answer was accepted: there is nothing that the promise would be about."
    if scores.inputs is not None:
        names = [scores.inputs[row] for row in answers.rows[answers.accepted]]
        if again := len(names) - len(set(names)):
            yield (
                f"{again:,} of {len(names):,} accepted answers with a label answer an input once "
                "more. Each counts, but the test takes answers to be independent: answer each "
                "input once."
            )
    if rest := promise.labeled - promise.accepted:
        yield (
            f"{rest:,} labels belong to answers that were not accepted; the promise is not about "
            "those, and they are left out."
        )
    if threshold.target is not None and threshold.delta is not None:
        yield (
            "When the threshold was chosen, a promise that does not hold was allowed with "
            f"probability {threshold.delta:.4g}: it can be broken without any change of the data."
        )
