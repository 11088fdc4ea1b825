"""Whether new data look like the data that the threshold was chosen on."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from btcp_tf.core.wording import interval_text, percent_text
from btcp_tf.decisions import drift
from btcp_tf.decisions.drift import Ks, Mix, Psi, Rates

MIN_ROWS = 100
"""Rows below which, in either sample, there is no verdict about a change."""


ABSTENTION, LOOKED_AT = "abstention", "looked_at"
"""Names of the checks of shares."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One test of whether the scores are drawn as the baseline was."""

    name: str
    title: str
    statistic: float
    shown: str
    """The statistic as text."""
    beside: str
    """What is printed beside it: an interval, degrees of freedom, the baseline's."""
    by_chance: float | None
    """What chance alone exceeds with the probability of a false alarm; None: not known."""
    p_value: float
    adjusted: float = 1.0
    """p-value for all checks together (Holm)."""
    found: bool = False
    """Whether it finds a change: `adjusted` <= alpha."""


@dataclasses.dataclass(frozen=True)
class Assumption:
    """Whether the scores are drawn as the baseline was, as far as can be seen without labels."""

    verdict: str
    """"holds": no check finds a change; "changed"; "too few rows": no verdict."""
    rows: tuple[int, int]
    """Of the baseline and of the scores."""
    alpha: float
    """Probability of a false alarm of all checks together."""
    checks: tuple[Check, ...] = ()
    ks: Ks | None = None
    psi: Psi | None = None
    mix: Mix | None = None
    abstention: Rates | None = None


def judge_assumption(
    baseline: tuple[np.ndarray, np.ndarray],
    production: tuple[np.ndarray, np.ndarray],
    rejected: tuple[np.ndarray, np.ndarray] | None,
    alpha: float,
    looked_at: Rates | None = None,
) -> Assumption:
    """Whether rows are drawn as a baseline was, from u and the predicted classes alone.

    Args:
      baseline: u `[n]` float64 and predicted classes `[n]`.
      production: The same of what came later, `[m]`.
      rejected: Which rows of the two are not accepted, bool `[n]` and `[m]`, for the share of
        abstentions; None: that is not tested. That the threshold was chosen on the baseline does no
        harm: a share of rows above one of their own quantiles varies no more.
      alpha: Probability of a false alarm of all checks together, in (0, 1).
      looked_at: Shares of the inputs that are looked at again; None: there are no looks.
    """
    drift.check_probability("alpha", alpha)
    (before, classes_before), (now, classes_now) = baseline, production
    rows = len(before), len(now)
    if min(rows) < MIN_ROWS:
        return Assumption("too few rows", rows, alpha)
    ks, psi = drift.ks(before, now), drift.psi(before, now)
    mix = _class_mix(classes_before, classes_now)
    abstention = None
    if rejected is not None:
        abstention = drift.rates(*((int(part.sum()), len(part)) for part in rejected))
    checks = list(_checks(ks, psi, mix, rows, alpha))
    if abstention is not None:
        checks.append(_check_of_rates(ABSTENTION, "share of abstentions", abstention))
    if looked_at is not None:
        checks.append(_check_of_rates(LOOKED_AT, "share looked at again", looked_at))
    adjusted = drift.holm([check.p_value for check in checks])
    judged = tuple(
        dataclasses.replace(check, adjusted=p, found=p <= alpha)
        for check, p in zip(checks, adjusted, strict=True)
    )
    verdict = "changed" if any(check.found for check in judged) else "holds"
    return Assumption(verdict, rows, alpha, judged, ks, psi, mix, abstention)


def class_counts(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that occur, `[c]`, and how often each does in each column, `[columns, c]`."""
    # Numbers of classes may be anything: they are no places in an array.
    classes = np.unique(np.concatenate(columns))
    counts = [
        np.bincount(np.searchsorted(classes, column), minlength=len(classes)) for column in columns
    ]
    return classes, np.stack(counts)


def _class_mix(before: np.ndarray, now: np.ndarray) -> Mix:
    classes, counts = class_counts(before, now)
    mix = drift.mix(*counts)
    return mix._replace(pooled=tuple(int(classes[place]) for place in mix.pooled))


def _checks(ks: Ks, psi: Psi, mix: Mix, rows: tuple[int, int], alpha: float) -> Iterator[Check]:
    """The checks of u and of the predicted classes."""
    yield Check(
        "uncertainty_ks",
        "u: Kolmogorov-Smirnov distance",
        ks.distance,
        f"{ks.distance:.3f}",
        f"[{ks.low:.3f}, {ks.high:.3f}]",
        drift.ks_by_chance(*rows, alpha),
        ks.p_value,
    )
    yield Check(
        "uncertainty_psi",
        "u: population stability index",
        psi.value,
        f"{psi.value:.3f}",
        f"{psi.degrees + 1} bins",
        psi.by_chance(alpha),
        psi.p_value,
    )
    yield Check(
        "classes",
        "predicted classes: chi-squared",
        mix.chi2,
        f"{mix.chi2:.1f}",
        f"{mix.degrees} degrees of freedom, PSI {mix.psi.value:.3f}",
        mix.by_chance(alpha),
        mix.p_value,
    )


def _check_of_rates(name: str, title: str, rates: Rates) -> Check:
    return Check(
        name,
        title,
        rates.production,
        f"{100 * rates.production:.2f} %",
        f"{interval_text(rates.production_interval)}, was "
        f"{percent_text(rates.baseline, rates.baseline_interval)}",
        None,
        rates.p_value,
    )
