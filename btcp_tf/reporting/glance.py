"""What a report says before all else: one sentence, three figures, a state, and what to do next.

Pure functions of counts and saved rows, the same for the page and for the terminal.
"""

import dataclasses
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.decisions import drift
from btcp_tf.decisions.decision_file import NOT_EXPORTED
from btcp_tf.decisions.promises import State as StateName
from btcp_tf.decisions.promises import state_of
from btcp_tf.reporting.cells import MIN_ERRORS_TO_COMPARE, Cell, Words, of_hundred, percent
from btcp_tf.reporting.svg import Chart
from btcp_tf.thresholds import GroupThreshold, Outcome, Threshold

TITLES: dict[StateName, str] = {
    "holds": "promise holds",
    "broken": "promise broken",
    "open": "cannot tell yet",
    "none": "no promise made",
}
"""A state in a word or two."""

BY_FILE = "as the file decides"
"""What accepts answers of a file that has decisions of its own."""

MORE = 500
"""Further labels whose worth a report tells."""

DELTA = 0.05
"""Probability that a promise may be broken, where none is stated: that of the commands."""


@dataclasses.dataclass(frozen=True)
class State:
    """How things are: a name for programs, which gives color and shape, and one for people."""

    name: StateName
    word: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """One of the figures that stand out, and what it is."""

    value: str
    text: str


@dataclasses.dataclass(frozen=True)
class Step:
    """What to do next; `command` is what to type, `link` an anchor of the page."""

    text: str
    command: str = ""
    link: str = ""


@dataclasses.dataclass(frozen=True)
class Glance:
    """The first screen of a report."""

    state: State
    about: str
    """What was judged, in one line."""
    sentence: Sequence[Words]
    figures: Sequence[Figure]
    steps: Sequence[Step] = ()
    chart_title: str = ""
    chart: Chart | None = None


@dataclasses.dataclass(frozen=True)
class Judged:
    """A decision about labeled answers."""

    outcome: Outcome
    errors: int
    """Wrong ones among all answers."""
    accepts: str
    """Which answers are accepted, as "u < 0.306"."""
    target: float | None = None
    """Promised limit of the error rate of accepted answers; None: nothing was promised."""
    delta: float | None = None
    """Probability that the promise may be broken."""
    achievable: bool = True
    """False: a promise was asked for, and no threshold keeps it."""
    each: tuple[Outcome, ...] = ()
    """Where each predicted class has a threshold and a promise of its own, what they do, with
    intervals for all of them together (Bonferroni)."""

    @property
    def caught(self) -> int:
        """Wrong answers among those that are handed over."""
        return self.errors - self.outcome.errors


def judge(
    threshold: Threshold,
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    groups: np.ndarray | None = None,
    predicted: np.ndarray | None = None,
) -> Judged:
    """What a threshold does to labeled answers `[n]`; groups as in `thresholds.outcome`. A
    threshold by predicted class needs `predicted`."""
    each: list[Outcome] = []
    if isinstance(threshold, GroupThreshold):
        assert predicted is not None
        classes = np.unique(predicted)
        for number in classes:
            own = predicted == number
            subjects = None if groups is None else groups[own]
            if subjects is not None and len(np.unique(subjects)) < 2:
                continue  # A single independent row.
            each.append(
                thresholds.outcome(
                    threshold,
                    is_error[own],
                    uncertainty[own],
                    delta=0.05 / len(classes),
                    groups=subjects,
                    names=predicted[own],
                )
            )
    return Judged(
        thresholds.outcome(threshold, is_error, uncertainty, groups=groups, names=predicted),
        int(np.sum(is_error)),
        threshold.accepts,
        threshold.target,
        threshold.delta,
        not threshold.accepts_nothing,
        tuple(each),
    )


def state(judged: Judged) -> State:
    """Whether a promise holds, see `state_of`; one in each class, where it does in all that accept
    anything."""
    if judged.target is not None and not judged.achievable:
        return State("none", "no promise possible")
    if judged.target is None and judged.accepts == BY_FILE:
        # What its model promises is tested by monitor, which is given the model.
        return State("none", "the file tells of no promise")
    name = state_of(judged.outcome, judged.target)
    found = [state_of(one, judged.target) for one in judged.each if one.accepted]
    if "broken" in found:
        name = "broken"
    elif name == "holds" and "open" in found:
        name = "open"
    return State(name, TITLES[name])


def promised(risk: float, delta: float | None) -> str:
    """A promise in a few words.

    Example:
      >>> promised(0.05, 0.1)
      'at most 5 % (delta 0.1)'
    """
    return f"at most {100 * risk:.4g} %" + ("" if delta is None else f" (delta {delta:g})")


def sentence(judged: Judged) -> list[Words]:
    """The answer in one sentence: accepted of 100, wrong among these, errors handed over."""
    outcome, errors = judged.outcome, judged.errors
    if not outcome.accepted:
        return ["It accepts ", Cell("nothing", 0.0), ": all answers are handed over."]
    accepted: list[Words] = [
        "Of 100 answers it accepts ",
        Cell(of_hundred(outcome.coverage), outcome.coverage),
        ", and ",
        Cell(percent(outcome.risk), outcome.risk),
        " of those are wrong. ",
    ]
    if not errors:
        return [*accepted, "No answer here is wrong."]
    if outcome.accepted == outcome.n:
        return [*accepted, "It hands over none."]
    share = judged.caught / errors
    return [
        *accepted,
        f"The {of_hundred(1 - outcome.coverage)} it hands over hold ",
        Cell(f"{100 * share:.0f} %", share),
        " of all errors"
        + (f", which are only {errors}." if errors < MIN_ERRORS_TO_COMPARE else "."),
    ]


def figures(judged: Judged) -> list[Figure]:
    """The three figures of the sentence, with the counts and the intervals behind them."""
    outcome, errors, caught = judged.outcome, judged.errors, judged.caught
    handed = outcome.n - outcome.accepted
    wrong = Figure("n/a", "wrong among the accepted: there are none")
    if outcome.accepted:
        limit = "" if judged.target is None else promised(judged.target, judged.delta)
        wrong = Figure(
            percent(outcome.risk),
            f"wrong among the accepted, {_certain(outcome.low, outcome.high)}: {outcome.errors:,} "
            f"of {outcome.accepted:,}" + (limit and f"; promised: {limit}"),
        )
    handed_over = Figure("n/a", "of the errors handed over: no answer is wrong")
    if errors:
        handed_over = Figure(
            f"{100 * caught / errors:.0f} %",
            f"of the errors handed over, {_certain(*drift.clopper_pearson(caught, errors))}: "
            f"{caught:,} of {errors:,}"
            + (f", in {handed:,} answers" if handed else ", as nothing is"),
        )
    accepted = Figure(
        f"{of_hundred(outcome.coverage)} %",
        f"accepted ({judged.accepts}): {outcome.accepted:,} of {outcome.n:,}",
    )
    return [accepted, wrong, handed_over]


def _certain(low: float, high: float) -> str:
    return f"[{100 * low:.2f}, {100 * high:.2f}] with 95 % certainty"


def about(is_error: np.ndarray, what: str, who: str) -> str:
    """Number of answers, accuracy and errors in one line.

    Args:
      is_error: `[n]` bool.
      what: What was answered, such as "test images".
      who: Whose u it is.
    """
    n, errors = len(is_error), int(np.sum(is_error))
    return (
        f"{n:,} {what} · {100 * (1 - errors / n):.2f} % right · {errors:,} "
        f"error{'s' * (errors != 1)} · u of {who}"
    )


def terminal(state: State, title: str, answer: Sequence[Words], rows: Sequence[Figure]) -> str:
    """The first screen in a few lines of text."""
    width = max(len(figure.value) for figure in rows)
    plain = "".join(piece if isinstance(piece, str) else piece.text for piece in answer)
    lines = [f"{title}: {state.word}", "", *textwrap.wrap(plain, 78), ""]
    for figure in rows:
        head = f"  {figure.value:>{width}}  "
        after = " " * len(head)
        lines += textwrap.wrap(figure.text, 78, initial_indent=head, subsequent_indent=after)
    return "\n".join(lines)


def harder(
    test: tuple[int, int], calibration: tuple[int, int], model: str = "MODEL"
) -> Step | None:
    """Says so where the test answers are wrong more often than those of calibration.

    Args:
      test: Wrong answers and all answers.
      calibration: The same of those that the threshold was chosen on.
      model: The SavedModel's path.
    """
    (k, n), (j, m) = test, calibration
    if not (n and m) or k / n <= j / m or drift.rates(calibration, test).p_value > 0.05:
        return None
    return Step(
        "The test answers are harder than those that the threshold was chosen on "
        f"({100 * k / n:.1f} % wrong against {100 * j / m:.1f} %). Choose it again on labeled "
        "answers from where the model will work:",
        f"python -m btcp_tf.set_threshold {shlex.quote(model)} --threshold=target_risk "
        "--scores=LABELED.csv",
    )


def labels(
    threshold: Threshold,
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    *,
    wanted: Sequence[float] = (),
    delta: float = DELTA,
    model: str = "MODEL",
    scores: str = "",
) -> Step | None:
    """What more labels would bring: for a promise, or where there is none, for one.

    Args:
      threshold: What was chosen.
      is_error: Whether each calibration answer is wrong, `[n]`.
      uncertainty: u of the same answers, `[n]`.
      wanted: Limits that could be promised, where `threshold` promises nothing.
      delta: Probability that such a promise may be broken.
      model: The SavedModel's path.
      scores: File of the answers, where they are not those that the model brings along.
    """
    n, risk = len(is_error), threshold.target
    if risk is None:
        place = shlex.quote(model) + (f" --scores={shlex.quote(scores)}" if scores else "")
        return _first_promise(is_error, uncertainty, wanted, delta, place)
    if isinstance(threshold, GroupThreshold):
        return _more_of_classes(threshold)
    delta = threshold.delta or delta
    limit = promised(risk, delta)
    if threshold.tau is None:
        size = thresholds.labels_for_promise(is_error, uncertainty, risk=risk, delta=delta)
        if size is None:
            return Step(
                f"No number of labels makes a promise of {limit} likely: even the most trusted "
                "calibration answers are wrong about as often. A better classifier does, or a "
                "promise of more."
            )
        return Step(
            f"A promise of {limit} takes about {size[0]:,} labeled calibration answers (there are "
            f"{n:,}) and would accept about {100 * size[1]:.0f} % of all."
        )
    # The threshold is there, however few answers it accepts.
    asked = dict(risk=risk, delta=delta, min_coverage=0.0)
    now, then = (
        thresholds.expected_coverage(is_error, uncertainty, rows=rows, **asked)
        for rows in (n, n + MORE)
    )
    gain = f"about {100 * (then - now):.1f} more of 100 answers"
    return Step(
        f"{MORE} more labeled calibration answers (there are {n:,}) would let "
        f"{gain if then - now >= 0.0005 else 'hardly more'} through at the same promise of {limit}."
    )


def _more_of_classes(threshold: GroupThreshold) -> Step | None:
    """Says of how many predicted classes nothing is accepted; None: there are none."""
    if not (closed := threshold.closed()):
        return None
    return Step(
        f"Nothing is accepted of {len(closed):,} of {len(threshold.parts):,} predicted classes: a "
        "promise in each takes as many labeled calibration answers in each of them as one promise "
        "does in all. One promise for all answers accepts more, and says nothing of a class."
    )


def _first_promise(
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    wanted: Sequence[float],
    delta: float,
    model: str,
) -> Step | None:
    """The strictest of some promises that these answers support, else what one would take."""
    if found := _possible_promise(is_error, uncertainty, wanted, delta):
        risk, share = found
        return Step(
            f"Nothing is promised yet. A promise that {_wrong(risk, delta)} is possible, with "
            f"about {100 * share:.0f} of 100 accepted:",
            f"python -m btcp_tf.set_threshold {model} --threshold=target_risk --risk={risk:g} "
            f"--delta={delta:g}",
        )
    for risk in reversed(_worth_promising(is_error, wanted)):
        size = thresholds.labels_for_promise(is_error, uncertainty, risk=risk, delta=delta)
        if size:
            return Step(
                f"Nothing is promised. A promise that {_wrong(risk, delta)} takes about "
                f"{size[0]:,} labeled calibration answers; there are {len(is_error):,}."
            )
    return None


def _worth_promising(is_error: np.ndarray, wanted: Sequence[float]) -> list[float]:
    """Limits of the error rate, ascending, that are not kept if all answers are accepted; where
    there is none among those that are wanted, half of the error rate."""
    rate = float(np.mean(is_error))
    stricter = [float(f"{rate / 2:.1g}")] if rate and wanted else []
    return sorted(risk for risk in wanted if risk < rate) or stricter


def _possible_promise(
    is_error: np.ndarray, uncertainty: np.ndarray, wanted: Sequence[float], delta: float
) -> tuple[float, float] | None:
    """The strictest limit that calibration answers support and that is worth a promise, and the
    share that would be accepted."""
    for risk in _worth_promising(is_error, wanted):
        share = thresholds.expected_coverage(
            is_error, uncertainty, rows=len(is_error), risk=risk, delta=delta
        )
        if share:
            return risk, share
    return None


def hardly_wrong(
    answers: tuple[int, int],
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    *,
    wanted: Sequence[float],
    delta: float = DELTA,
    remedy: str,
) -> Step | None:
    """Says so where so few answers are wrong that a promise would be empty.

    Args:
      answers: Wrong answers and all answers that the report is about.
      is_error: Whether each calibration answer is wrong, `[n]`.
      uncertainty: u of the same answers, `[n]`.
      wanted: Limits that could be promised.
      delta: Probability that such a promise may be broken.
      remedy: What has more errors.

    Returns:
      None where a promise is possible that does not hold without a threshold, or where there are
      `MIN_ERRORS_TO_COMPARE` errors or more to judge u by.
    """
    (errors, n), risk = answers, max(wanted, default=0.0)
    if errors >= MIN_ERRORS_TO_COMPARE or errors > risk * n or is_error.mean() > risk:
        return None
    if _possible_promise(is_error, uncertainty, wanted, delta):
        return None
    how_many = "Hardly any answer is" if errors else "No answer is"
    return Step(
        f"{how_many} wrong even if all are accepted: {errors} of {n:,} ({100 * errors / n:.2g} %). "
        f"A promise of at most {100 * risk:.4g} % would add nothing, and so few errors do not show "
        f"how well u finds them. {remedy}"
    )


def _wrong(risk: float, delta: float) -> str:
    return f"at most {100 * risk:.4g} % of the accepted answers are wrong (delta {delta:g})"


def train(settings: Mapping[str, Any], *more: str) -> str:
    """The command that trains on the data of a run.

    Args:
      settings: The run's, by name.
      more: Further words of the command.

    >>> train({"dataset": "npz", "data_dir": "my data.npz", "classifier": ""}, "--seed=1")
    "python -m btcp_tf.main --dataset=npz --data_dir='my data.npz' --seed=1"
    """
    data = [
        f"--{name}={shlex.quote(str(value))}"
        for name in ("dataset", "data_dir", "classifier")
        if (value := settings.get(name))
    ]
    return " ".join(["python -m btcp_tf.main", *data, *more])


def serve(saved_model: str, shown: str = "") -> Step | None:
    """Where the SavedModel is, or why there is none.

    Args:
      saved_model: Its path, or text that begins with `NOT_EXPORTED`; "": not known.
      shown: The same for people.
    """
    if not saved_model:
        return None
    if saved_model.startswith(NOT_EXPORTED):
        return Step(f"There is no SavedModel to serve: {saved_model}.")
    return Step(
        f"Serve {shown or saved_model}, or let it score files:",
        f"python -m btcp_tf.predict --model={shlex.quote(saved_model)} --input=FILES "
        "--output=scores.csv",
    )
