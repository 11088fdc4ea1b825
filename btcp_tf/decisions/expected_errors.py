"""How many answers of a batch are wrong, told from u alone: none of them has a label.

If u is calibrated, the mean of u is the expected error rate. How well it is calibrated is known
from rows with labels that u was not fitted on, and only as well as so many rows can tell; the
interval holds that error, too. All of it rests on one assumption: an answer of some u is as often
wrong now as it was among those rows. More uncertain inputs, in whatever number, keep it; inputs
that make the classifier wrong without making it uncertain break it, and nothing here can tell.
`python -m benchmarks.unlabeled_accuracy` measures how much that matters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.core import checks

_DRAWS = 2000
"""Of the calibration, for the interval."""

_POINTS = 1000
"""Quantiles that stand for u where a batch has more rows."""

_NEAREST = 1e-7
"""Of u to 0 and 1: what is nearer was decided by rounding."""

_PRIOR = np.array([2.0, 0.5])
"""Standard deviations of the shift and of the change of slope of logit(u) before any row is seen: u
is about what it says. It decides where the calibration rows have hardly an error."""


class ExpectedErrors(NamedTuple):
    """The share of wrong answers in a batch, as far as u tells it."""

    rate: float
    """The expected share, in [0, 1]: the mean of u, once that is calibrated."""
    low: float
    """With `high` an interval of the share itself."""
    high: float
    mean_u: float
    """The mean of u as it is."""
    rows: int
    """Answers of the batch."""
    calibration_rows: int
    calibration_errors: int


def expected_errors(
    uncertainty: ArrayLike, calibration: tuple[ArrayLike, ArrayLike], *, level: float = 0.95
) -> ExpectedErrors:
    """The expected error rate of answers without labels.

    logit(u) gets the shift and the slope that fit the calibration rows best, and the interval
    follows from what these rows leave open of both (Laplace's approximation) and from chance in
    each answer. The same arguments give the same interval.

    Args:
      uncertainty: `[m]` in [0, 1], of the batch.
      calibration: (is_error, uncertainty) of rows with labels, `[n]` each. u must not have been
        fitted on them: on such rows it looks better than it is. They may be those that a threshold
        was chosen on.
      level: Probability, in (0, 1), with which the interval holds the share of wrong answers, if an
        answer of some u is as often wrong as among the calibration rows.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> random = np.random.default_rng(0)
      >>> u = random.random(1000)
      >>> is_error = random.random(1000) < u / 2  # u says twice as much as is wrong.
      >>> found = expected_errors(random.random(500), (is_error, u))
      >>> round(found.mean_u, 2), round(found.rate, 2)
      (0.49, 0.27)

    Source: Platt, Probabilistic Outputs for Support Vector Machines, 1999.
    """
    level = checks.probability("level", level)
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise ValueError(
            "calibration: expected the pair (is_error, uncertainty), received "
            f"{type(calibration).__name__}"
        )
    groups = metrics.tie_groups(*calibration)
    metrics.tie_groups(np.zeros(max(np.size(uncertainty), 1), bool), uncertainty)
    is_error, known = (np.asarray(column, np.float64) for column in calibration)
    u = np.asarray(uncertainty, np.float64)
    for column in (u, known):
        good = (column >= 0) & (column <= 1)
        checks.check_rows(good, column, "uncertainty: expected values in [0, 1]")
    # In one order, so that sums do not depend on that of the rows.
    u, order = np.sort(u), np.lexsort((is_error, known))
    z, is_error = _logit(known[order]), is_error[order]
    center = float(z.mean())
    mode, covariance = _calibration(z, is_error, center)
    points = u
    if len(u) > _POINTS:
        points = np.quantile(u, (np.arange(_POINTS) + 0.5) / _POINTS)
    random = np.random.default_rng(0)
    weights = np.vstack([mode, random.multivariate_normal(mode, covariance, _DRAWS)])
    rates = _calibrated(_logit(points), weights[:, None], center).mean(axis=1)
    # Chance in the answers: no sum of so many has a greater variance than the binomial one.
    shares = random.binomial(len(u), rates[1:]) / len(u)
    low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2])
    rate = float(_calibrated(_logit(u), mode, center).mean())
    counts = int(groups.rows[-1]), int(groups.errors[-1])
    ends = min(float(low), rate), max(float(high), rate)
    return ExpectedErrors(rate, *ends, float(u.mean()), len(u), *counts)


def _logit(u: np.ndarray) -> np.ndarray:
    return special.logit(np.clip(u, _NEAREST, 1 - _NEAREST))


def _calibrated(z: np.ndarray, weights: np.ndarray, center: float) -> np.ndarray:
    """Error rates of logits `[n]`, shifted and stretched: shift and change of slope `[..., 2]`."""
    return special.expit(z + weights[..., 0] + weights[..., 1] * (z - center))


def _calibration(
    z: np.ndarray, is_error: np.ndarray, center: float
) -> tuple[np.ndarray, np.ndarray]:
    """Shift and change of slope that fit labeled rows best, `[2]`, and their covariance."""
    from scipy import optimize  # It takes a while to import, which `--help` need not wait for.

    x = np.column_stack([np.ones(len(z)), z - center])
    penalty = 1.0 / np.square(_PRIOR)

    def loss(weights: np.ndarray) -> float:
        logits = z + x @ weights
        fit = np.logaddexp(0.0, logits).sum() - is_error @ logits
        return float(fit + 0.5 * penalty @ np.square(weights))

    def slope(weights: np.ndarray) -> np.ndarray:
        return x.T @ (special.expit(z + x @ weights) - is_error) + penalty * weights

    def curvature(weights: np.ndarray) -> np.ndarray:
        p = special.expit(z + x @ weights)
        return (x.T * (p * (1.0 - p))) @ x + np.diag(penalty)

    start = np.zeros(2)
    best = optimize.minimize(loss, start, jac=slope, hess=curvature, method="trust-exact").x
    return best, np.linalg.inv(curvature(best))
