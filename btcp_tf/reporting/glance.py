"""What a report says before all else: one sentence, three figures, a state, and what to do next.

Pure functions of counts and saved rows, the same for the page and for the terminal.
"""

import dataclasses
import shlex
import textwrap
from collections.abc import Sequence
from typing import Literal

import numpy as np

from btcp_tf import thresholds
from btcp_tf.decisions import drift
from btcp_tf.decisions.decision_file import NOT_EXPORTED
from btcp_tf.reporting.cells import Cell, Words, of_hundred, percent
from btcp_tf.reporting.svg import Chart
from btcp_tf.thresholds import Outcome, Threshold

StateName = Literal["holds", "broken", "open", "none"]

WORDS: dict[StateName, str] = {
    "holds": "promise holds",
    "broken": "promise broken",
    "open": "cannot tell yet",
    "none": "no promise made",
}
"""A state in a word or two."""

MORE = 500
"""Further labels whose worth a report tells."""


@dataclasses.dataclass(frozen=True)
class State:
    """How things are: a name for programs, which gives color and shape, and words."""

    name: StateName
    word: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """One of the figures that stand out, and what it is."""

    value: str
    words: str


@dataclasses.dataclass(frozen=True)
class Step:
    """What to do next; `command` is what to type or where to look, `link` an anchor of the page."""

    words: str
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
    achievable: bool = True
    """False: a promise was asked for, and no threshold keeps it."""

    @property
    def caught(self) -> int:
        """Wrong answers among those that are handed over."""
        return self.errors - self.outcome.errors


def judge(threshold: Threshold, is_error: np.ndarray, uncertainty: np.ndarray) -> Judged:
    """What a threshold does to labeled answers `[n]`."""
    found = thresholds.outcome(threshold, is_error, uncertainty)
    accepts = "nothing" if threshold.tau is None else f"u < {threshold.tau:.4g}"
    return Judged(
        found, int(np.sum(is_error)), accepts, threshold.target, threshold.tau is not None
    )


def state(judged: Judged) -> State:
    """Whether a promise holds, by the exact interval of the error rate of accepted answers.

    It holds where the whole interval is at most the promised rate, and is broken where the whole of
    it is above; between the two these answers cannot tell.
    """
    if judged.target is None:
        return State("none", WORDS["none"])
    if not judged.achievable:
        return State("none", "no promise possible")
    found = judged.outcome
    if not found.accepted:
        return State("open", WORDS["open"])
    name: StateName = "open"
    if found.high <= judged.target:
        name = "holds"
    elif found.low > judged.target:
        name = "broken"
    return State(name, WORDS[name])


def sentence(judged: Judged) -> list[Words]:
    """The answer in one sentence: accepted of 100, wrong among these, errors handed over."""
    found = judged.outcome
    if not found.accepted:
        return ["It accepts ", Cell("nothing", 0.0), ": all answers are handed over."]
    words: list[Words] = [
        "Of 100 answers it accepts ",
        Cell(of_hundred(found.coverage), found.coverage),
        ", and ",
        Cell(percent(found.risk), found.risk),
        " of those are wrong. ",
    ]
    handed = found.n - found.accepted
    if not judged.errors:
        return [*words, "No answer here is wrong."]
    if not handed:
        return [*words, "It hands over none."]
    share = judged.caught / judged.errors
    return [
        *words,
        f"The {of_hundred(handed / found.n)} it hands over hold ",
        Cell(f"{100 * share:.0f} %", share),
        " of all errors.",
    ]


def figures(judged: Judged) -> list[Figure]:
    """The three figures of the sentence, with the counts and the interval behind them."""
    found = judged.outcome
    handed = found.n - found.accepted
    promised = "" if judged.target is None else f"; promised: at most {100 * judged.target:.4g} %"
    wrong = Figure("n/a", "wrong among the accepted: there are none")
    if found.accepted:
        wrong = Figure(
            percent(found.risk),
            f"wrong among the accepted, [{100 * found.low:.2f}, {100 * found.high:.2f}] with 95 % "
            f"certainty: {found.errors:,} of {found.accepted:,}{promised}",
        )
    caught = Figure("n/a", "of the errors handed over: no answer is wrong")
    if judged.errors:
        caught = Figure(
            f"{100 * judged.caught / judged.errors:.0f} %",
            f"of the errors handed over: {judged.caught:,} of {judged.errors:,}"
            + (f", in {handed:,} answers" if handed else ", as nothing is"),
        )
    return [
        Figure(
            f"{of_hundred(found.coverage)} %",
            f"accepted ({judged.accepts}): {found.accepted:,} of {found.n:,}",
        ),
        wrong,
        caught,
    ]


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


def terminal(state_: State, title: str, words: Sequence[Words], rows: Sequence[Figure]) -> str:
    """The first screen in a few lines of text."""
    width = max(len(figure.value) for figure in rows)
    told = textwrap.wrap("".join(map(_plain, words)), 78)
    lines = [f"{title}: {state_.word}", "", *told, ""]
    for figure in rows:
        head = f"  {figure.value:>{width}}  "
        after = " " * len(head)
        lines += textwrap.wrap(figure.words, 78, initial_indent=head, subsequent_indent=after)
    return "\n".join(lines)


def _plain(words: Words) -> str:
    return words if isinstance(words, str) else words.text


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
    delta: float = 0.1,
    model: str = "MODEL",
    scores: str = "",
) -> Step | None:
    """What more labels would bring: for a promise, or where there is none, for one.

    Args:
      threshold: What was chosen.
      is_error: Of the calibration answers, `[n]`.
      uncertainty: Of the same, `[n]`.
      wanted: Limits that could be promised, where `threshold` promises nothing.
      delta: Of such a promise.
      model: The SavedModel's path.
      scores: File of the answers, where they are not those that the model brings along.
    """
    n = len(is_error)
    if threshold.target is None:
        place = shlex.quote(model) + (f" --scores={shlex.quote(scores)}" if scores else "")
        return _first_promise(is_error, uncertainty, wanted, delta, place)
    rule = {"risk": threshold.target, "delta": threshold.delta or delta}
    rate = f"{100 * threshold.target:.4g} %"
    if threshold.tau is None:
        found = thresholds.labels_for_promise(is_error, uncertainty, **rule)
        if found is None:
            return Step(
                f"No number of labels makes a promise of at most {rate} likely: even the most "
                "trusted calibration answers are wrong about as often. A better classifier does, "
                "or a promise of more."
            )
        return Step(
            f"A promise of at most {rate} takes about {found[0]:,} labeled calibration answers "
            f"(there are {n:,}) and would accept about {100 * found[1]:.0f} % of all."
        )
    now, then = (
        thresholds.expected_coverage(is_error, uncertainty, rows=rows, **rule)
        for rows in (n, n + MORE)
    )
    if then - now < 0.0005:
        return Step(
            f"{MORE} more labeled calibration answers would hardly let more through at the same "
            f"promise: there are {n:,} of them."
        )
    return Step(
        f"{MORE} more labeled calibration answers (there are {n:,}) would let about "
        f"{100 * (then - now):.1f} more of 100 answers through at the same promise."
    )


def _first_promise(
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    wanted: Sequence[float],
    delta: float,
    model: str,
) -> Step | None:
    """The strictest of some promises that these answers support, else what one would take."""
    n = len(is_error)
    for risk in sorted(wanted):
        share = thresholds.expected_coverage(is_error, uncertainty, rows=n, risk=risk, delta=delta)
        if share:
            return Step(
                f"Nothing is promised yet. That at most {100 * risk:.4g} % of the accepted answers "
                f"are wrong could be, with about {100 * share:.0f} of 100 accepted:",
                f"python -m btcp_tf.set_threshold {model} --threshold=target_risk --risk={risk:g} "
                f"--delta={delta:g}",
            )
    for risk in sorted(wanted, reverse=True):
        found = thresholds.labels_for_promise(is_error, uncertainty, risk=risk, delta=delta)
        if found:
            return Step(
                f"Nothing is promised. That at most {100 * risk:.4g} % of the accepted answers are "
                f"wrong takes about {found[0]:,} labeled calibration answers; there are {n:,}."
            )
    return None


def serve(saved_model: str, shown: str = "") -> Step | None:
    """Where the SavedModel is, or why there is none.

    Args:
      saved_model: Its path, or words that begin with `evaluation.NOT_EXPORTED`; "": not known.
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
