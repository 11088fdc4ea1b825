"""Decision thresholds on u: `u < tau` accepts an answer, `u >= tau` rejects it.

Chosen on validation or calibration data, never on the data that they are judged by. One rule makes
a promise, `target_risk`: its threshold keeps the error rate of all answers that it will ever accept
under a limit, as long as they come from where the calibration rows came from. The others describe
the rows that they are given. `calibration_size` says how many rows a promise takes, and
`review_queue` orders the answers that a person can check.
"""

import dataclasses
import fractions
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.core import binomial, checks, wording
from btcp_tf.core.config import MIN_COVERAGE, PREDICTED, check_threshold
from btcp_tf.core.groups import numbers, one_of_each


@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold and what it does to the n rows that it was chosen on.

    All fields are plain and finite, so that `dataclasses.asdict` goes into any JSON file.
    """

    tau: float | None
    """Answers with u < tau are accepted. None: none may be, as the target is not achievable."""
    coverage: float | None
    """Share of answers accepted, in [0, 1]. None: chosen without rows."""
    rule: str
    """How it was chosen."""
    n: int
    """Rows that it was chosen on."""
    accepted: int
    """Those of them that it accepts."""
    errors: int | None = None
    """Wrong answers among `accepted`. None: chosen without labels."""
    risk: float | None = None
    """errors / accepted: what was observed, not what is promised. None where undefined."""
    risk_bound: float | None = None
    """`target_risk` alone: upper Clopper-Pearson bound of the error rate of accepted answers, at
    the level of its test, 1 - `delta` or a part of it; at most the target. It is the walk that
    turns it into a promise, and the promise is the target: a bound far below it holds for a tau
    that was fixed beforehand."""
    delta: float | None = None
    """`target_risk` alone: probability of a broken promise that was allowed for this threshold."""
    target: float | None = None
    """`target_risk` alone: the promised limit of the error rate of accepted answers."""
    least_risk: float | None = None
    """Where the target is not achievable: the least higher one that would have been, with the same
    data, grid, `delta` and `min_coverage`. It depends on the labels, so to promise it takes
    new ones. None: there is none."""

    def limits(self, names: ArrayLike) -> np.ndarray:
        """What u has to be below to be accepted, `[n]` float64; -infinity accepts nothing.

        Args:
          names: `[n]`, the predicted class or the group of each row, for a `GroupThreshold`.
        """
        return np.full(len(np.asarray(names)), -math.inf if self.tau is None else self.tau)

    @property
    def accepts_nothing(self) -> bool:
        """Whether no answer is accepted."""
        return self.tau is None

    @property
    def accepts(self) -> str:
        """What is accepted, in a few words, such as "u < 0.3062"."""
        return "nothing" if self.tau is None else f"u < {self.tau:.4g}"


GROUP = "group"
"""Beside `PREDICTED`, that by which answers have a threshold of their own: not the class that they
predict, but something that is known of their inputs, such as the hospital."""


@dataclasses.dataclass(frozen=True)
class GroupThreshold(Threshold):
    """A threshold for each predicted class, or for each group, with one promise in all of them.

    `tau` is None: each group has its own. `coverage`, `n`, `accepted`, `errors` and `risk` are
    those of all groups together, `delta` is for all of them, `target` for each.
    """

    by: str = PREDICTED
    """`PREDICTED` or `GROUP`."""
    parts: Mapping[str, Threshold] = dataclasses.field(default_factory=dict)
    """Predicted class (its number as text), or group → its threshold. Groups that had no
    calibration rows are not among them, and nothing in them is accepted."""

    def limits(self, names: ArrayLike) -> np.ndarray:
        """See `Threshold.limits`; the limit of another group is -infinity."""
        taus = {name: part.tau for name, part in self.parts.items()}
        return _limits_of(taus, checks.group_names("groups", names, len(np.asarray(names))))

    @property
    def accepts_nothing(self) -> bool:
        """Whether no answer of any group is accepted."""
        return all(part.tau is None for part in self.parts.values())

    @property
    def accepts(self) -> str:
        """What is accepted, in a few words."""
        taus = [part.tau for part in self.parts.values() if part.tau is not None]
        if not taus:
            return "nothing"
        what = "predicted class" if self.by == PREDICTED else "group"
        none = len(self.parts) - len(taus)
        return (
            f"u < the tau of its {what}, {min(taus):.4g} to {max(taus):.4g}"
            + f", none in {none} of {len(self.parts)}" * bool(none)
        )

    def closed(self, class_names: Sequence[str] = ()) -> list[str]:
        """The groups of which nothing is accepted, as people call them.

        Args:
          class_names: Names by class number, for `PREDICTED`: classes that no calibration row
            predicts are among them, too. Empty: classes are called by their numbers.
        """
        names = {str(number): name for number, name in enumerate(class_names)}
        if self.by == GROUP or not names:
            names = {name: name for name in self.parts}
        none = Threshold(None, None, "", 0, 0)
        return [names[name] for name in names if self.parts.get(name, none).tau is None]


def names_of_rows(threshold: Threshold, predicted: np.ndarray, by: np.ndarray | None) -> np.ndarray:
    """What `Threshold.limits` goes by, of n answers, `[n]`.

    Args:
      threshold: Any.
      predicted: Predicted classes, `[n]`.
      by: The group of each answer `[n]`, where it is known; needed by a threshold by group.

    Raises:
      ValueError: If a threshold is by group and these are not known.

    Example:
      >>> names_of_rows(DEFAULT, np.array([2, 0]), None).tolist()
      [2, 0]
    """
    if not (isinstance(threshold, GroupThreshold) and threshold.by == GROUP):
        return predicted
    if by is None:
        raise ValueError(
            "by: expected the group of each answer, as the threshold is by group, received none"
        )
    return by


_STRICT = 0.8
"""Share of delta for the thresholds of `target_risk` that accept less than half of the rows. The
less it is, the less these accept; the more, the less is left where the first walk failed."""

DEFAULT = Threshold(tau=0.5, coverage=None, rule="default", n=0, accepted=0)
"""Where none was chosen."""


def from_json(value: Any) -> Threshold:
    """The threshold of which a JSON file holds `dataclasses.asdict`: one with `parts` is a
    `GroupThreshold`.

    Raises:
      ValueError: If it is none; the message names the field.

    Example:
      >>> from_json(dataclasses.asdict(DEFAULT)) == DEFAULT
      True
    """
    if not isinstance(value, dict) or "tau" not in value:
        raise ValueError("expected a threshold with tau, received none")
    kind = GroupThreshold if "parts" in value else Threshold
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise ValueError(
                f"{name}: expected one of {', '.join(fields)}, received this field of a threshold"
            )
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            values[name] = _field(name, value[name], values)
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{name}: expected this field of a threshold, received none")
    return kind(**values)


# What a field of a threshold may be beside null: its description, and a test of a number.
_LIMITS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "tau": ("a finite number", math.isfinite),
    **dict.fromkeys(("target", "delta"), ("a number between 0 and 1", lambda x: 0 < x < 1)),
    **dict.fromkeys(
        ("coverage", "risk", "risk_bound", "least_risk"),
        ("a number from 0 to 1", lambda x: 0 <= x <= 1),
    ),
}


def _field(name: str, value: Any, before: Mapping[str, Any]) -> Any:
    """One field of a threshold, checked; `before` holds the fields that stand before it."""
    if name == "rule":
        if not isinstance(value, str):
            raise ValueError(f"rule: expected text, received {value!r}")
        return value
    if name == "by":
        if value not in (PREDICTED, GROUP):
            raise ValueError(f"by: expected {PREDICTED} or {GROUP}, received {value!r}")
        return value
    if name == "parts":
        return _parts(value)
    if name in _LIMITS:
        wanted, good = _LIMITS[name]
        return None if value is None else checks.number(name, value, f"{wanted} or null", good)
    if value is None and name == "errors":
        return None
    # Each counts some of the rows that the one before counts.
    above = {"n": None, "accepted": "n", "errors": "accepted"}[name]
    high = math.inf if above is None else before[above]
    wanted = (
        "a whole number >= 0" if above is None else f"a whole number from 0 to {above} = {high}"
    )
    return checks.whole_number(name, value, wanted + " or null" * (name == "errors"), 0, high)


def _parts(value: Any) -> dict[str, Threshold]:
    """The thresholds of groups, checked."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"parts: expected thresholds by group, received {value!r:.40}")
    parts = {}
    for name, part in value.items():
        try:
            parts[name] = from_json(part)
        except ValueError as error:
            raise ValueError(f"parts: {name}: {error}") from None
        if isinstance(parts[name], GroupThreshold):
            raise ValueError(f"parts: {name}: expected one tau, received thresholds by group")
    return parts


def best_bacc(is_error: ArrayLike, uncertainty: ArrayLike) -> Threshold:
    """The threshold of best balanced accuracy (the `thresholding` baseline of the paper).

    Only the cuts between distinct values of u differ in what they accept; tau lies half-way between
    the two values. Among equally good cuts the one that accepts most is taken.

    Args:
      is_error: `[n]`, whether each answer is wrong; both kinds must be there.
      uncertainty: `[n]`, finite.

    Raises:
      ValueError: As `metrics.tie_groups`, and without an error or without a correct answer: every
        cut is as good as any other.

    Example:
      >>> chosen = best_bacc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5])
      >>> round(chosen.tau, 2), chosen.accepted, chosen.errors
      (0.45, 4, 1)
    """
    groups = metrics.tie_groups(is_error, uncertainty)
    errors, correct = groups.errors[-1], groups.correct[-1]
    if not (errors and correct):
        raise ValueError(
            "expected correct and wrong answers to choose a threshold of best BACC, received "
            f"{correct} correct and {errors} wrong ones"
        )
    # BACC in whole numbers, so that ties are ties.
    bacc = groups.correct * errors + (errors - groups.errors) * correct
    return _at_cut(groups, _last(bacc == bacc.max()), "best BACC")


def least_cost(
    is_error: ArrayLike, uncertainty: ArrayLike, *, error_cost: float, abstention_cost: float
) -> Threshold:
    """The threshold that would have cost least: accepted errors and rejected answers have a price.

    Cuts and ties as in `best_bacc`.

    Args:
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      error_cost: Of accepting a wrong answer, >= 0.
      abstention_cost: Of rejecting an answer, right or wrong, >= 0, in the same unit. A threshold
        is of use where it is the smaller of the two.

    Raises:
      ValueError: As `metrics.tie_groups`, and if a cost is negative or not finite, or both are 0.

    Example:
      >>> chosen = least_cost(
      ...     [0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], error_cost=10, abstention_cost=1
      ... )
      >>> round(chosen.tau, 2), chosen.rule
      (0.15, 'least cost: 10 for an error, 1 for an abstention')
    """
    costs = {"error_cost": error_cost, "abstention_cost": abstention_cost}
    error_cost, abstention_cost = (
        checks.number(name, cost, "a finite number >= 0", lambda x: 0 <= x < math.inf)
        for name, cost in costs.items()
    )
    if not (error_cost or abstention_cost):
        raise ValueError("error_cost and abstention_cost: expected one above 0, received 0 and 0")
    groups = metrics.tie_groups(is_error, uncertainty)
    # In a unit of about the larger one, so that no sum overflows; by a power of two, which rounds
    # nothing.
    _, exponent = math.frexp(max(error_cost, abstention_cost))
    unit = [math.ldexp(cost, -exponent) for cost in (error_cost, abstention_cost)]
    cost = groups.errors * unit[0] + (groups.rows[-1] - groups.rows) * unit[1]
    rule = f"least cost: {error_cost:g} for an error, {abstention_cost:g} for an abstention"
    return _at_cut(groups, _last(cost == cost.min()), rule)


def target_coverage(uncertainty: ArrayLike, *, coverage: float) -> Threshold:
    """The smallest threshold that accepts at least a given share of the rows; needs no labels.

    Args:
      uncertainty: `[n]`, finite.
      coverage: In (0, 1].

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> round(target_coverage([0.1, 0.2, 0.3, 0.4], coverage=0.5).tau, 2)
      0.25
    """
    coverage = checks.share("coverage", coverage)
    groups = _unlabeled(uncertainty)
    # A quotient of counts is rounded as the literal is, so that 19 of 20 is 0.95.
    cut = int(np.argmax(groups.rows / groups.rows[-1] >= coverage))
    return _at_cut(groups, cut, f"coverage >= {coverage:g}", labeled=False)


def target_risk(
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    *,
    risk: float,
    delta: float,
    grid: ArrayLike | None = None,
    min_coverage: float = MIN_COVERAGE,
    groups: ArrayLike | None = None,
) -> Threshold:
    """A threshold that keeps the error rate of accepted answers at or under `risk`.

    The promise: with probability at least 1 - delta over the draw of the calibration rows, the
    error rate of all answers with u < tau, not just of these rows, is at most `risk`. It assumes
    rows that are independent draws of what the threshold will be used on, and that neither the
    classifier nor u nor `grid` was chosen with these labels. Nothing is assumed about the order
    that u gives: risk need not rise with tau.

    Method: learn then test, with exact binomial tests of "the error rate is above `risk`" in a
    fixed order. A walk goes through the grid from the strict end, as long as the tests reject; the
    last tau that it reaches is kept. It starts where a test can pass and `min_coverage` is reached.
    One error among the few rows of the first steps would end it, though wider thresholds could
    pass. So four fifths of delta are spent on the thresholds that accept less than half of the
    rows, and a fifth on a second walk, from there on, which has all of delta unless the first has
    failed (the fallback procedure). Without errors, a test at level delta takes
    ceil(log(delta) / log(1 - risk)) accepted rows.

    Args:
      is_error: `[n]`, whether each answer of the calibration set is wrong.
      uncertainty: `[n]`, finite.
      risk: In (0, 1).
      delta: In (0, 1).
      grid: Candidates for tau, ascending, made without the calibration rows; see `quantile_grid`.
        None: fixed ones for u in [0, 1], evenly spaced in log odds, 0.01 apart. Where u keeps to a
        small part of [0, 1], quantiles are finer. Candidates are not taken from the calibration
        rows: which of them is the first to break the limit would then depend on the rows that test
        it, which does no harm only where risk rises with tau.
      min_coverage: Share of the rows, in [0, 1], that a threshold has to accept to be considered.
        Chosen without the labels. 0 considers all thresholds, also those that accept a handful.
      groups: `[n]`, whole numbers or strings: rows with equal ones belong together, such as the
        images of a patient, and are no independent draws. One row of each is drawn at random, and
        the threshold is chosen on these: g groups support what g rows do. The promise is then about
        a random row of a new group, so that each group counts once, however many rows it has.

    Returns:
      The threshold. `tau` is None where the target is not achievable with this data; `least_risk`
      then says what would have been.

    Raises:
      ValueError: As `metrics.tie_groups`, if an argument is not as described, and for u outside
        [0, 1] without a grid.

    Example:
      >>> u = np.arange(1000) / 1000
      >>> is_error = u > 0.8
      >>> chosen = target_risk(is_error, u, risk=0.05, delta=0.1)
      >>> round(chosen.coverage, 2), chosen.risk_bound <= 0.05
      (0.83, True)

    Source: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test, 2021; Wiens, A fixed
    sequence Bonferroni procedure, 2003; Clopper and Pearson, 1934.
    """
    risk, delta = checks.probability("risk", risk), checks.probability("delta", delta)
    rule = f"error rate <= {risk:g} with probability {1 - delta:g}"
    tied = metrics.tie_groups(is_error, uncertainty)
    if groups is not None:
        errors, u = np.asarray(is_error), np.asarray(uncertainty)
        rows = one_of_each(numbers(groups, len(u)))
        tied = metrics.tie_groups(errors[rows], u[rows])
        rule += f", of a row of each of {len(rows)} groups"
    return _walk(tied, _candidates(grid, uncertainty), risk, delta, min_coverage, rule)


def given(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> Threshold:
    """A threshold that somebody named, and what it does.

    Args:
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      tau: Finite.

    Raises:
      ValueError: As `metrics.tie_groups`, and if tau is not finite.

    Example:
      >>> given([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.45).risk
      0.25
    """
    tau = checks.number("tau", tau, "a finite number", math.isfinite)
    groups = metrics.tie_groups(is_error, uncertainty)
    cut = np.searchsorted(groups.u, tau)
    rows, errors = int(groups.rows[cut]), int(groups.errors[cut])
    return _threshold(tau, "given", int(groups.rows[-1]), rows, errors)


RULES: dict[str, Callable[..., Threshold]] = {
    rule.__name__: rule for rule in (best_bacc, least_cost, target_coverage, target_risk, given)
}
"""Ways to a threshold by name, for `choose`."""


def settings_of(rule: str) -> dict[str, bool]:
    """Settings of a rule by name, and whether each has to be named.

    Raises:
      ValueError: If the rule is not in `RULES`.

    Example:
      >>> settings_of("target_risk")
      {'risk': True, 'delta': True, 'grid': False, 'min_coverage': False, 'groups': False}
    """
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(wording.expected_one_of("rule", RULES, rule))
    known = inspect.signature(RULES[rule]).parameters.values()
    return {p.name: p.default is p.empty for p in known if p.kind is p.KEYWORD_ONLY}


def needs_labels(rule: str) -> bool:
    """Whether a rule of `RULES` asks which answers are wrong.

    Example:
      >>> needs_labels("target_coverage")
      False
    """
    return "is_error" in inspect.signature(RULES[rule]).parameters


def check_settings(rule: str, settings: Collection[str]) -> None:
    """ValueError for settings that a rule of `RULES` does not have, or lacks."""
    known = settings_of(rule)
    missing = [name for name, needed in known.items() if needed and name not in settings]
    others = [name for name in settings if name not in known]
    if not (missing or others):
        return
    expected = [f"{name} (required)" if needed else name for name, needed in known.items()]
    takers = [name for name in RULES if others and set(others) <= set(settings_of(name))]
    example = ", ".join(f"{name}={_EXAMPLES[name]}" for name in missing)
    remedies = [
        f"rules that have them: {', '.join(takers)}" if takers else "",
        f"leave out {' and '.join(others)}" if others else "",
        f"add {example}, say" if missing else "",
    ]
    raise ValueError(
        f"{rule}: expected the settings {', '.join(expected) or 'none'}, received "
        f"{', '.join(settings) or 'none'}; {'; '.join(filter(None, remedies))}"
    )


_EXAMPLES = {
    "risk": 0.05,
    "delta": 0.1,
    "coverage": 0.9,
    "error_cost": 10,
    "abstention_cost": 1,
    "tau": 0.5,
}
"""A value of each setting that a rule cannot do without."""


def choose(
    rule: str,
    is_error: ArrayLike | None,
    uncertainty: ArrayLike,
    *,
    by: str = "",
    names: ArrayLike | None = None,
    **settings: Any,
) -> Threshold:
    """The threshold of the rule of this name.

    Args:
      rule: One of `RULES`.
      is_error: `[n]`; None where `needs_labels(rule)` is False.
      uncertainty: `[n]`.
      by: `PREDICTED` or `GROUP`: a `GroupThreshold` of `target_risk_by_group`, for `target_risk`
        alone; "": one threshold for all rows.
      names: With `by` the predicted class, or the group, of each row, `[n]`.
      **settings: Of the rule.

    Raises:
      ValueError: As the rule, as `check_settings`, and as `check_by`.

    Example:
      >>> choose("target_coverage", None, [0.1, 0.2, 0.3, 0.4], coverage=0.5).accepted
      2
    """
    check_settings(rule, settings)
    check_by(by, rule)
    if by:
        assert is_error is not None and names is not None
        settings["together"] = settings.pop("groups", None)
        parts = target_risk_by_group(is_error, uncertainty, names, **settings)
        return _joined(by, parts, settings["risk"], settings["delta"])
    rows = (is_error, uncertainty) if needs_labels(rule) else (uncertainty,)
    return RULES[rule](*rows, **settings)


def check_by(by: str, rule: str) -> None:
    """ValueError unless thresholds of a rule can be chosen by this; "" is always possible."""
    if by and rule != "target_risk":
        raise ValueError(
            "by: expected only with target_risk, whose promise is then made in each group, "
            f"received it with {rule}; leave it out"
        )


def _joined(
    by: str, parts: Mapping[int | str, Threshold], risk: float, delta: float
) -> GroupThreshold:
    """What `target_risk_by_group` chose, as one threshold."""
    n, accepted, errors = (
        sum(getattr(part, field) for part in parts.values())
        for field in ("n", "accepted", "errors")
    )
    rule = next(iter(parts.values())).rule
    if by == PREDICTED:
        rule = rule.replace(" groups with", " predicted classes with")
    return GroupThreshold(
        tau=None,
        coverage=accepted / n,
        rule=rule,
        n=n,
        accepted=accepted,
        errors=errors,
        risk=errors / accepted if accepted else None,
        delta=delta,
        target=risk,
        by=by,
        parts={str(name): part for name, part in parts.items()},
    )


def check_word(word: str) -> None:
    """Raises a ValueError unless a word names a rule of `RULES` for a command line, or is a number
    above 0: with another one a server would accept nothing.

    Example:
      >>> check_word("target_risk")
      >>> check_word("0.3")
    """
    check_threshold(word)


def from_word(
    word: str,
    is_error: ArrayLike | None,
    uncertainty: ArrayLike,
    values: Mapping[str, Any],
    *,
    by: str = "",
    names: ArrayLike | None = None,
) -> Threshold:
    """A threshold as a command line asks for it.

    Args:
      word: A rule of `RULES`, or a number, which is tau.
      is_error: See `choose`.
      uncertainty: See `choose`.
      values: By name at least the settings that the rule needs; it takes those that it has.
      by: See `choose`.
      names: See `choose`.

    Raises:
      ValueError: As `choose`.

    Example:
      >>> from_word("0.25", [0, 1, 1], [0.1, 0.2, 0.3], {}).accepted
      2
    """
    check_word(word)
    rule = word if word in RULES else "given"
    if rule == "given":
        values = {**values, "tau": float(word)}
    known = settings_of(rule)
    settings = {name: values[name] for name in known if name in values}
    return choose(rule, is_error, uncertainty, by=by, names=names, **settings)


def logit_limit(tau: float | None) -> float:
    """The limit on logit(u) that accepts what `u < tau` accepts, with u = expit(logit(u)).

    A graph answers logit(u) in float32, where u itself would be 0 for many answers of an accurate
    classifier. `z < logit_limit(tau)` is `special.expit(z) < tau` for every z, also where float64
    cannot tell neighboring u apart.

    Args:
      tau: As in `Threshold`; None accepts nothing.

    Returns:
      The smallest float64 whose expit is at least tau; -infinity accepts nothing, infinity all.
    """
    if tau is None or tau <= 0:
        return -math.inf
    if tau > 1:
        return math.inf
    low, high = -746.0, 38.0  # expit is 0 and 1 here.
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if special.expit(middle) >= tau else (middle, high)
    return high


CLEARANCE = 1e-4
"""Distance in logit(u), times 1 + |logit(tau)|, that `clear_of` leaves between tau and a row."""


def clear_of(
    chosen: Threshold, uncertainty: ArrayLike, names: ArrayLike | None = None
) -> Threshold:
    """The same threshold, no nearer to a row than rounding could carry that row across.

    The same input gets a u that differs in its last digits where a server puts it into another
    batch. tau moves within the gap between the largest u that it accepts and the smallest that it
    rejects, so that it decides as before about all of these rows, and by 0.01 % in most cases
    where it moves at all.

    Args:
      chosen: Any threshold.
      uncertainty: `[n]` in [0, 1], of the rows that it was chosen on. Others leave it as it is.
      names: `[n]`, the group of each row, for a `GroupThreshold`.

    Example:
      >>> chosen = target_coverage([0.1, 0.2], coverage=0.5)
      >>> clear_of(chosen, [0.1, 0.2]) == chosen
      True
    """
    u = np.asarray(uncertainty, np.float64)
    if isinstance(chosen, GroupThreshold):
        assert names is not None
        own = np.asarray(names).astype(str)
        parts = {name: clear_of(part, u[own == name]) for name, part in chosen.parts.items()}
        return dataclasses.replace(chosen, parts=parts)
    if chosen.tau is None or not 0 < chosen.tau < 1 or u.min() < 0 or u.max() > 1:
        return chosen
    accepted = u < chosen.tau
    tau = float(special.logit(chosen.tau))
    low = float(special.logit(u[accepted].max(initial=0)))
    high = float(special.logit(u[~accepted].min(initial=1)))
    margin = min(CLEARANCE * (1 + abs(tau)), (high - low) / 3)
    moved = min(max(tau, low + margin), high - margin)
    new_tau = chosen.tau if moved == tau else float(special.expit(moved))
    # Where float64 has no number between the two rows, there is nowhere to move.
    return chosen if ((u < new_tau) != accepted).any() else dataclasses.replace(chosen, tau=new_tau)


def target_risk_by_group(
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    groups: ArrayLike,
    *,
    risk: float,
    delta: float,
    grid: ArrayLike | None = None,
    min_coverage: float = MIN_COVERAGE,
    together: ArrayLike | None = None,
) -> dict[int | str, Threshold]:
    """`target_risk` in each group, such as the predicted class, all promises together.

    With probability at least 1 - delta no group's error rate of accepted answers is above `risk`:
    each of the g groups gets delta / g (Bonferroni). That takes more rows than one promise for all
    groups, in each of them; a group with too few has a threshold without tau.

    Args:
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      groups: `[n]`, whole numbers or strings. Known for future answers, too, so not the true class.
      risk: In (0, 1).
      delta: In (0, 1), for all groups together.
      grid: See `target_risk`; the same for all groups.
      min_coverage: See `target_risk`; a share of each group's rows.
      together: `[n]`: rows with equal ones belong together and are no independent draws, which
        `target_risk` calls its groups. Of those in one of the groups here, one row is drawn.

    Returns:
      A threshold for each group that occurs, in ascending order.

    Raises:
      ValueError: As `target_risk`, and if groups are not as described.

    Example:
      >>> u = np.arange(1000) / 1000
      >>> is_error = u > 0.8
      >>> groups = np.arange(1000) % 2
      >>> chosen = target_risk_by_group(is_error, u, groups, risk=0.05, delta=0.1)
      >>> {group: round(one.coverage, 2) for group, one in chosen.items()}
      {0: 0.83, 1: 0.83}
    """
    risk, delta = checks.probability("risk", risk), checks.probability("delta", delta)
    whole = metrics.tie_groups(is_error, uncertainty)
    taus = _candidates(grid, uncertainty)
    names = checks.group_names("groups", groups, int(whole.rows[-1]))
    checks.refuse_unnamed("groups", names)
    distinct = np.unique(names)
    rule = (
        f"error rate <= {risk:g} in each of {len(distinct)} groups with probability {1 - delta:g} "
        f"(Bonferroni: delta / {len(distinct)} each)"
        + ", of rows that belong together one"
        * (together is not None)
    )
    errors, u = np.asarray(is_error), np.asarray(uncertainty)
    subjects = None if together is None else numbers(together, len(u))
    chosen = {}
    for name in distinct:
        rows = np.flatnonzero(names == name)
        if subjects is not None:
            rows = rows[one_of_each(subjects[rows])]
        tied = metrics.tie_groups(errors[rows], u[rows])
        chosen[name.item()] = _walk(
            tied, taus, risk, delta, min_coverage, rule, promises=len(distinct)
        )
    return chosen


def accept_by_group(
    taus: Mapping[int | str, float | None], uncertainty: ArrayLike, groups: ArrayLike
) -> np.ndarray:
    """Which answers are accepted where each group has a threshold of its own.

    A group that `taus` does not name is one without calibration rows: nothing was promised for it,
    and nothing in it is accepted.

    Args:
      taus: Group → its tau, such as those of `target_risk_by_group`; None accepts nothing. 1 and
        "1" are the same group, as files know text alone.
      uncertainty: `[n]`, finite.
      groups: `[n]`, whole numbers or strings.

    Returns:
      `[n]` bool: u < tau of the row's group.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> accept_by_group({"a": 0.5, "b": None}, [0.4, 0.4, 0.6, 0.1], ["a", "b", "a", "new"])
      array([ True, False, False, False])
    """
    rows = int(_unlabeled(uncertainty).rows[-1])
    limits = _limits_of(taus, checks.group_names("groups", groups, rows))
    return np.asarray(uncertainty, np.float64) < limits


def _limits_of(taus: Mapping[Any, float | None], names: np.ndarray) -> np.ndarray:
    """The tau of each row's group, `[n]` float64; -infinity where there is none."""
    limits = {
        str(name): -math.inf
        if tau is None
        else checks.number(f"taus: {name}", tau, "a finite number or None", math.isfinite)
        for name, tau in taus.items()
    }
    distinct, place = np.unique(names, return_inverse=True)
    limit = [limits.get(str(name), -math.inf) for name in distinct.tolist()]
    return np.array(limit, np.float64)[place]


def quantile_grid(uncertainty: ArrayLike, *, size: int = 1000) -> np.ndarray:
    """Candidates for `target_risk` from validation u, which must not be the calibration rows.

    Args:
      uncertainty: `[n]`, finite.
      size: Candidates at most, >= 1: for each share i / size the smallest cut between distinct
        values that accepts it. Tied rows make them fewer.

    Returns:
      `[<= size]`, ascending. Half-way between two distinct values each, but for the last, which
      accepts everything: it is above 1 for u in [0, 1], else the largest single-precision number,
      or what is above u.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> quantile_grid([0.1, 0.2, 0.3, 0.4], size=4).round(2).tolist()
      [0.15, 0.25, 0.35, 1.0]
    """
    size = checks.whole_number("size", size, "a whole number >= 1", 1)
    groups = _unlabeled(uncertainty)
    # Shares that are no further apart than those of single rows find every cut.
    size = min(size, int(groups.rows[-1]))
    # In whole numbers: the first cut of at least i / size of all rows.
    wanted = np.arange(1, size + 1) * groups.rows[-1]
    grid = _cuts(groups.u)[np.unique(np.searchsorted(groups.rows * size, wanted))]
    in_unit_interval = groups.u[0] >= 0 and groups.u[-1] <= 1
    grid[-1] = _ABOVE_ONE if in_unit_interval else max(grid[-1], np.finfo(np.float32).max)
    return grid


def calibration_size(
    risk: float,
    delta: float,
    *,
    coverage: float = 1.0,
    expected_risk: float = 0.0,
    power: float = 0.8,
) -> int:
    """How many labeled calibration rows a promise of `target_risk` takes.

    As if the final tau were tested alone: the walk has to pass stricter ones before it, too.

    Args:
      risk: Target, in (0, 1).
      delta: In (0, 1).
      coverage: Share of answers that are to be accepted, in (0, 1]; only they count.
      expected_risk: Error rate expected among them, in [0, risk).
      power: Probability with which the test is to pass if that is so, in (0, 1).

    Returns:
      Rows of which, on average, enough are accepted. Enough is the least number from which on the
      test passes with that probability, however many more there are: an additional row can lower
      it, as the number of errors that may be among the rows is whole. Without errors it is
      ceil(log(delta) / log(1 - risk)).

    Raises:
      ValueError: If an argument is not as described, if more than 2^53 rows would be needed, which
        is where floats no longer count, or if `expected_risk` is so near to `risk` that more than
        4,096 errors would have to be seen.

    Example:
      >>> calibration_size(0.05, 0.1)
      45
      >>> calibration_size(0.05, 0.1, coverage=0.8, expected_risk=0.02)
      262
    """
    risk, delta = checks.probability("risk", risk), checks.probability("delta", delta)
    power, coverage = checks.probability("power", power), checks.share("coverage", coverage)
    expected_risk = checks.number(
        "expected_risk", expected_risk, f"0 or more, below {risk}", lambda x: 0 <= x < risk
    )
    too_many = ValueError(
        f"risk, delta and coverage: expected a promise that at most {binomial.MOST_ROWS:,} rows "
        f"can support, received {risk}, {delta} and {coverage}"
    )
    limit = 64
    while limit <= 2**13:
        # Entry c of `first` is where c errors are allowed. From there to the next one's, each row
        # makes passing less probable.
        first = binomial.least_rows(np.arange(limit + 1), risk, delta)
        if expected_risk and first[-1] > binomial.MOST_ROWS:
            raise too_many
        failing = np.flatnonzero(
            binomial.tail(np.arange(limit), first[1:] - 1, expected_risk) < power
        )
        start = failing[-1] + 1 if len(failing) else 0
        # The teeth get smaller and the way up is long: what holds for so many holds for all.
        if start <= limit // 2:
            # The share as it is written: 7 rows of 7 % are 100, not 101.
            rows = math.ceil(int(first[start]) / fractions.Fraction(repr(coverage)))
            if rows > binomial.MOST_ROWS:
                raise too_many
            return rows
        limit *= 2
    raise ValueError(
        f"expected_risk: expected a number further below {risk}, received {expected_risk}"
    )


def expected_coverage(
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    *,
    rows: int,
    risk: float,
    delta: float,
    min_coverage: float = MIN_COVERAGE,
) -> float:
    """The coverage that `target_risk` would reach with so many calibration rows like these.

    As if the errors of any number of rows were spread over u as those of these rows are, and the
    final tau were tested alone. An estimate, to see what further labels would buy.

    Args:
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      rows: How many calibration rows there would be.
      risk: In (0, 1).
      delta: In (0, 1).
      min_coverage: As in `target_risk`.

    Returns:
      A share in [0, 1]; 0 where nothing could be promised.

    Raises:
      ValueError: As `metrics.tie_groups`, or if an argument is not as described.

    Example:
      >>> u = np.arange(1000) / 1000
      >>> is_error = u > 0.8
      >>> expected_coverage(is_error, u, rows=200, risk=0.05, delta=0.1)
      0.822
    """
    risk, delta = checks.probability("risk", risk), checks.probability("delta", delta)
    rows = checks.whole_number("rows", rows, "a whole number >= 1", 1)
    groups = metrics.tie_groups(is_error, uncertainty)
    times = rows / groups.rows[-1]
    counts, errors = groups.rows[1:] * times, groups.errors[1:] * times
    share = groups.rows[1:] / groups.rows[-1]
    # The test of `binomial.tail`, whose function takes parts of errors and rows as well.
    right = np.maximum(counts - errors, 1e-9)
    passes = (special.betaincc(errors + 1.0, right, risk) <= delta) & (share >= min_coverage)
    return float(share[passes].max(initial=0.0))


def labels_for_promise(
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    *,
    risk: float,
    delta: float,
    min_coverage: float = MIN_COVERAGE,
) -> tuple[int, float] | None:
    """About how many calibration rows a promise takes, and the share that it would accept.

    For each twentieth of the rows, `calibration_size` with the error rate among those that u trusts
    most; the share that takes fewest rows counts.

    Args:
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      risk: In (0, 1).
      delta: In (0, 1).
      min_coverage: As in `target_risk`.

    Returns:
      Rows and share; None where the error rate is too near to `risk`, or above it, at every share.

    Raises:
      ValueError: As `metrics.tie_groups`.

    Example:
      >>> u = np.arange(1000) / 1000
      >>> is_error = u > 0.8
      >>> labels_for_promise(is_error, u, risk=0.05, delta=0.1)
      (57, 0.8)
    """
    groups = metrics.tie_groups(is_error, uncertainty)
    n, sizes = int(groups.rows[-1]), []
    for share in np.arange(1, 21) / 20:
        cut = int(np.argmax(groups.rows >= share * n))
        rows = int(groups.rows[cut])
        # Half an error more: none among few rows does not mean that there never is one.
        observed = (int(groups.errors[cut]) + 0.5) / (rows + 1)
        if observed >= risk or rows / n < min_coverage:
            continue
        try:
            size = calibration_size(risk, delta, coverage=rows / n, expected_risk=observed)
        except ValueError:
            continue  # Too near to the limit for any number of rows.
        sizes.append((size, rows / n))
    return min(sizes, default=None)


def clopper_pearson(count: int, rows: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share, of `count` rows among `rows` independent ones.

    Args:
      count: From 0 to `rows`.
      rows: At least 1.
      level: Least probability with which the interval covers the share, in (0, 1).

    Returns:
      Lower and upper end, in [0, 1].

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> low, high = clopper_pearson(5, 100)
      >>> print(f"{low:.4f} {high:.4f}")
      0.0164 0.1128

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    level = checks.probability("level", level)
    rows = checks.whole_number("rows", rows, "a whole number >= 1", 1)
    count = checks.whole_number("count", count, f"a whole number from 0 to {rows}", 0, rows)
    delta = (1 - level) / 2
    low = special.betaincinv(count, rows - count + 1, delta) if count else 0.0
    return float(low), float(binomial.upper_bound(count, rows, delta))


class Outcome(NamedTuple):
    """What a threshold does to other rows than those it was chosen on."""

    n: int
    """Rows."""
    accepted: int
    errors: int
    """Wrong answers among `accepted`."""
    coverage: float
    """accepted / n."""
    risk: float
    """errors / accepted; NaN where nothing is accepted."""
    low: float
    """With `high` the exact (Clopper-Pearson) interval of the error rate of accepted answers; 0 to
    1 where nothing is accepted."""
    high: float


def outcome(
    threshold: Threshold,
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    *,
    delta: float = 0.05,
    groups: ArrayLike | None = None,
    names: ArrayLike | None = None,
) -> Outcome:
    """What a threshold does to labeled rows.

    Args:
      threshold: Any; nothing is accepted where its tau is None.
      is_error: `[n]`, whether each answer is wrong.
      uncertainty: `[n]`, finite.
      delta: Probability, in (0, 1), that is allowed outside of the interval.
      groups: `[n]`, whole numbers or strings: rows with equal ones belong together. The interval is
        then that of one row of each group, drawn at random; None: rows are independent.
      names: `[n]`, the predicted class or the group of each row, for a `GroupThreshold`.

    Raises:
      ValueError: As `metrics.tie_groups`, or if threshold, delta or groups are not as described.

    Example:
      >>> threshold = target_coverage([0.1, 0.2, 0.3, 0.4], coverage=0.5)
      >>> result = outcome(threshold, [0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4])
      >>> result.accepted, result.errors, result.risk
      (2, 1, 0.5)
    """
    if not isinstance(threshold, Threshold):
        raise ValueError(f"threshold: expected a Threshold, received {type(threshold).__name__}")
    delta = checks.probability("delta", delta)
    if isinstance(threshold, GroupThreshold):
        if names is None:
            raise ValueError(
                f"names: expected the {threshold.by} of each row, as each has a threshold of its "
                "own, received none"
            )
        metrics.tie_groups(is_error, uncertainty)
        # One threshold for what they decide.
        rejected = ~(np.asarray(uncertainty, np.float64) < threshold.limits(names))
        threshold, uncertainty = DEFAULT, rejected.astype(np.float64)
    n, accepted, errors = _accepted(threshold, is_error, uncertainty)
    independent, wrong = accepted, errors
    if groups is not None:
        rows = one_of_each(numbers(groups, n))
        own, u = np.asarray(is_error)[rows], np.asarray(uncertainty)[rows]
        _, independent, wrong = _accepted(threshold, own, u)
    low, high = 0.0, 1.0
    if independent:
        low, high = clopper_pearson(wrong, independent, level=1 - delta)
    risk = errors / accepted if accepted else math.nan
    return Outcome(n, accepted, errors, accepted / n, risk, low, high)


def _accepted(
    threshold: Threshold, is_error: ArrayLike, uncertainty: ArrayLike
) -> tuple[int, int, int]:
    """Rows, accepted ones, and wrong ones among these."""
    tied = metrics.tie_groups(is_error, uncertainty)
    cut = 0 if threshold.tau is None else np.searchsorted(tied.u, threshold.tau)
    return int(tied.rows[-1]), int(tied.rows[cut]), int(tied.errors[cut])


class ReviewQueue(NamedTuple):
    """The answers that a person should check, and what that is expected to bring."""

    rows: np.ndarray
    """Numbers of the k rows, the most uncertain first, tied ones in their order, [k] int64."""
    expected_errors: float | None
    """Wrong answers expected among them, in [0, k]; None without calibration rows like them."""
    low: int
    """Least number of wrong answers, with `high` an interval at level 1 - delta."""
    high: int
    """Greatest number of wrong answers."""


def review_queue(
    uncertainty: ArrayLike,
    k: int,
    *,
    calibration: tuple[ArrayLike, ArrayLike],
    delta: float = 0.1,
) -> ReviewQueue:
    """The k of n answers to check, when a person can check k, and the errors this should catch.

    The queue holds the rows whose u is at or above some value. The calibration rows there tell how
    many of them are wrong; of rows with just that value, the same share counts in both sets. This
    assumes that answers as uncertain as those are as often wrong as in the calibration set, not
    that there are as many of them. The interval is the exact one for the errors among k rows after
    those among the calibration rows, both binomial with the same unknown rate.

    Args:
      uncertainty: `[n]`, finite, of the answers that wait; no labels.
      k: From 1 to n.
      calibration: (is_error, uncertainty) of labeled rows, `[m]` each.
      delta: Probability, in (0, 1), that is allowed outside of the interval.

    Raises:
      ValueError: As `metrics.tie_groups`, or if an argument is not as described.

    Example:
      >>> u = np.arange(1000) / 1000
      >>> is_error = u > 0.8
      >>> queue = review_queue([0.2, 0.95, 0.9, 0.1], 2, calibration=(is_error, u))
      >>> queue.rows.tolist(), queue.expected_errors
      ([1, 2], 2.0)
    """
    delta = checks.probability("delta", delta)
    n = int(_unlabeled(uncertainty).rows[-1])
    k = checks.whole_number("k", k, f"a whole number from 1 to {n}", 1, n)
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise ValueError(
            "calibration: expected the pair (is_error, uncertainty), received "
            f"{type(calibration).__name__}"
        )
    u = np.asarray(uncertainty, np.float64)
    queue = np.argsort(-u, kind="stable")[:k]
    last = u[queue[-1]]
    tied_share = np.sum(u[queue] == last) / np.sum(u == last)

    groups = metrics.tie_groups(*calibration)
    at, above = (np.searchsorted(groups.u, last, side) for side in ("left", "right"))

    def counted(counts: np.ndarray) -> float:
        return float(counts[-1] - counts[above] + tied_share * (counts[above] - counts[at]))

    rows, errors = counted(groups.rows), counted(groups.errors)
    correct = max(rows - errors, 0.0)
    # The beta distributions of the two Clopper-Pearson bounds, carried on to k new rows.
    low = np.searchsorted(binomial.beta_binomial(k, errors, correct + 1), delta / 2, "right")
    high = np.searchsorted(binomial.beta_binomial(k, errors + 1, correct), 1 - delta / 2)
    return ReviewQueue(
        queue, k * errors / rows if rows else None, min(int(low), k), min(int(high), k)
    )


_ABOVE_ONE = float(np.nextafter(np.float32(1), np.float32(2)))
"""Accepts u = 1, in single precision as well."""

# Log odds of -40: far below what single precision tells from 0. Above 37 they are 1.
_FIXED_GRID = np.append(np.unique(special.expit(np.arange(-4000, 3701) / 100)), _ABOVE_ONE)
"""Candidates for u in [0, 1] that no data has shaped."""


def _cuts(u: np.ndarray) -> np.ndarray:
    """Entry i, [g + 1], accepts i of the g distinct values of u, ascending."""
    if u[-1] == np.finfo(np.float64).max:
        raise ValueError(f"uncertainty: expected numbers below {u[-1]}, received it")
    low, high = np.append(u[:1], u), np.append(u, np.nextafter(u[-1], np.inf))
    # Not half of their sum, which may overflow.
    middle = low / 2 + high / 2
    # The middle of neighboring floats is one of them: it must not be the lower one.
    return np.where(middle > low, middle, high)


def _last(wanted: np.ndarray) -> int:
    return int(np.flatnonzero(wanted)[-1])


def _at_cut(groups: metrics.TieGroups, cut: int, rule: str, labeled: bool = True) -> Threshold:
    """The threshold that accepts the `cut` smallest distinct values."""
    errors = int(groups.errors[cut]) if labeled else None
    tau = float(_cuts(groups.u)[cut])
    return _threshold(tau, rule, int(groups.rows[-1]), int(groups.rows[cut]), errors)


def _threshold(
    tau: float | None, rule: str, n: int, accepted: int, errors: int | None, **more: float | None
) -> Threshold:
    risk = errors / accepted if accepted and errors is not None else None
    return Threshold(tau, accepted / n, rule, n, accepted, errors, risk, **more)


def _walk(
    groups: metrics.TieGroups,
    taus: np.ndarray,
    risk: float,
    delta: float,
    min_coverage: float,
    rule: str,
    promises: int = 1,
) -> Threshold:
    """The walk of `target_risk`; `delta` is shared by so many promises."""
    min_coverage = checks.number(
        "min_coverage", min_coverage, "a number in [0, 1]", lambda x: 0 <= x <= 1
    )
    delta /= promises
    if min_coverage:
        rule += f", coverage >= {min_coverage:g}"
    n = int(groups.rows[-1])
    cut = np.searchsorted(groups.u, taus)
    # Candidates that accept the same rows have the same test; the last of them stands for all.
    last = np.flatnonzero(np.diff(groups.rows[cut], append=n + 1))
    cut, taus = cut[last], taus[last]
    wide = (groups.rows[cut] > 0) & (groups.rows[cut] / n >= min_coverage)
    cut, taus = cut[wide], taus[wide]
    rows, errors = groups.rows[cut], groups.errors[cut]

    strict = rows < n / 2
    best, level = None, _STRICT * delta
    for part in (strict, ~strict):
        # Errors are looked at from the first candidate on that could pass without one.
        tested = np.flatnonzero(part & (binomial.tail(0, rows, risk) <= level))
        fails = binomial.tail(errors[tested], rows[tested], risk) > level
        passed = tested[: int(np.argmax(fails)) if fails.any() else len(tested)]
        if len(passed):
            best = passed[-1]
            bound = binomial.upper_bound(errors[best], rows[best], level)
        level = (1.0 - _STRICT) * delta if fails.any() else delta
    if best is not None:
        return _threshold(
            float(taus[best]),
            rule,
            n,
            int(rows[best]),
            int(errors[best]),
            risk_bound=float(bound),
            delta=delta,
            target=risk,
        )
    least = _least_risk(rows, errors, strict, risk, delta)
    return _threshold(None, rule, n, 0, 0, delta=delta, target=risk, least_risk=least)


def _least_risk(
    rows: np.ndarray, errors: np.ndarray, strict: np.ndarray, risk: float, delta: float
) -> float | None:
    """The lowest target above `risk` that the walk of `_walk` achieves; None: there is none."""

    def lowest(part: np.ndarray, level: float, low: float, high: float) -> float:
        """The lowest in [low, high) at which the first candidate tested passes."""
        # A candidate is the first one tested for targets from its bound without errors on, up to
        # that of the candidate before it; within them, the test passes from its bound on.
        end = np.append(high, binomial.upper_bound(0, rows[part], level))[:-1]
        start = np.maximum(binomial.upper_bound(errors[part], rows[part], level), low)
        return float(start[(start > risk) & (start < np.minimum(end, high))].min(initial=1.0))

    # From here on a strict candidate is tested, so that the others have their own share alone.
    some = float(binomial.upper_bound(0, rows[strict], _STRICT * delta).min(initial=1.0))
    least = min(
        lowest(strict, _STRICT * delta, 0.0, 1.0),
        lowest(~strict, delta, 0.0, some),
        lowest(~strict, (1.0 - _STRICT) * delta, some, 1.0),
    )
    return least if least < 1.0 else None


def _candidates(grid: ArrayLike | None, uncertainty: ArrayLike) -> np.ndarray:
    """The grid, checked, or the fixed one if u fits it."""
    u = np.asarray(uncertainty)
    if grid is None:
        checks.check_rows(
            ~((u < 0) | (u > 1)), u, "uncertainty: expected values in [0, 1], or a grid"
        )
        return _FIXED_GRID
    taus = checks.array("grid", grid)
    if taus.dtype.kind not in "iuf" or taus.ndim != 1 or not taus.size:
        raise ValueError(
            f"grid: expected numbers [m], m > 0, received {taus.dtype} {list(taus.shape)}"
        )
    taus = taus.astype(np.float64)
    if not (np.isfinite(taus).all() and (np.diff(taus) > 0).all()):
        raise ValueError("grid: expected finite thresholds, ascending, received other ones")
    return taus


def _unlabeled(uncertainty: ArrayLike) -> metrics.TieGroups:
    """`metrics.tie_groups` of u alone."""
    rows = checks.array("uncertainty", uncertainty).size
    return metrics.tie_groups(np.zeros(max(rows, 1), bool), uncertainty)
