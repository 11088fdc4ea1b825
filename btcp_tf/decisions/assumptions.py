"""Whether new data look like the data that the threshold was chosen on."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from btcp_tf.decisions import drift, promises
from btcp_tf.decisions.drift import Ks, Mix, Psi, Rates

FEWEST = 100
"""Rows below which, on either side, there is no verdict about a change."""


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
    ks: Ks | None = None
    psi: Psi | None = None
    mix: Mix | None = None
    abstention: Rates | None = None


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
    classes, counts = class_counts(old, new)
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
                f"{promises.interval_text(abstention.production_interval)}, was "
                f"{promises.percent_text(abstention.baseline, abstention.baseline_interval)}",
                None,
                abstention.p_value,
            )
        )
    adjusted = drift.holm([draft[-1] for draft in drafts])
    checks = tuple(Check(*draft, p, p <= alpha) for draft, p in zip(drafts, adjusted, strict=True))
    return Assumption(*_say(checks, ks, psi, n, m, alpha), checks, ks, psi, mix, abstention)


def class_counts(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that occur, `[c]`, and how often each does in each column, `[columns, c]`."""
    # Numbers of classes may be anything: they are no places in an array.
    classes = np.unique(np.concatenate(columns))
    counts = [
        np.bincount(np.searchsorted(classes, column), minlength=len(classes)) for column in columns
    ]
    return classes, np.stack(counts)


def _say(
    checks: Sequence[Check], ks: Ks, psi: Psi, n: int, m: int, alpha: float
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
