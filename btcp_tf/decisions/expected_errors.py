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
from btcp_tf.methods import platt

_DRAWS = 2000
"""Of the calibration, for the interval."""

_BINS = 1024
"""Of logit(u), in each of which answers count as their mean."""

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


class Batch:
    """u of answers without labels, any number of them: only sums are kept.

    Example:
      >>> batch = Batch()
      >>> for part in ([0.1, 0.2], [0.6]):
      ...     batch.add(part)
      >>> batch.rows, round(batch.mean_u, 4)
      (3, 0.3)
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._logits = np.zeros(_BINS)
        self._sum = 0.0

    def add(self, uncertainty: ArrayLike) -> None:
        """Counts further answers.

        Args:
          uncertainty: `[m]` in [0, 1], m > 0.

        Raises:
          ValueError: If u is not as described.
        """
        metrics.tie_groups(np.zeros(max(np.size(uncertainty), 1), bool), uncertainty)
        # In one order, so that sums do not depend on that of the rows.
        u = np.sort(np.asarray(uncertainty, np.float64))
        checks.check_rows((u >= 0) & (u <= 1), u, "uncertainty: expected values in [0, 1]")
        z = _logit(u)
        place = ((z / _LARGEST + 1) / 2 * _BINS).astype(int).clip(max=_BINS - 1)
        self._counts += np.bincount(place, minlength=_BINS)
        self._logits += np.bincount(place, weights=z, minlength=_BINS)
        self._sum += float(u.sum())

    @property
    def rows(self) -> int:
        """Answers."""
        return int(self._counts.sum())

    @property
    def mean_u(self) -> float:
        """NaN without any."""
        return self._sum / self.rows if self.rows else np.nan

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits that stand for all answers, and the share of these that each stands for."""
        held = np.flatnonzero(self._counts)
        counts = self._counts[held]
        return self._logits[held] / counts, counts / self.rows


def expected_errors(
    uncertainty: ArrayLike | Batch, calibration: tuple[ArrayLike, ArrayLike], *, level: float = 0.95
) -> ExpectedErrors:
    """The expected error rate of answers without labels.

    logit(u) gets the shift and the slope that fit the calibration rows best, and the interval
    follows from what these rows leave open of both (Laplace's approximation) and from chance in
    each answer. The same arguments give the same interval.

    Args:
      uncertainty: `[m]` in [0, 1], of the batch; or their sums.
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
    """
    level = checks.probability("level", level)
    if not isinstance(calibration, tuple | list) or len(calibration) != 2:
        raise ValueError(
            "calibration: expected the pair (is_error, uncertainty), received "
            f"{type(calibration).__name__}"
        )
    groups = metrics.tie_groups(*calibration)
    if isinstance(uncertainty, Batch):
        batch = uncertainty
    else:
        batch = Batch()
        batch.add(uncertainty)
    if not batch.rows:
        raise ValueError("uncertainty: expected at least one answer, received none")
    is_error, known = (np.asarray(column, np.float64) for column in calibration)
    checks.check_rows((known >= 0) & (known <= 1), known, "uncertainty: expected values in [0, 1]")
    order = np.lexsort((is_error, known))
    z, is_error = _logit(known[order]), is_error[order]
    center = float(z.mean())
    columns = np.column_stack([np.ones(len(z)), z - center])
    fitted = platt.fit(is_error, z, columns, 1.0 / np.square(_PRIOR))
    random = np.random.default_rng(0)
    covariance = np.linalg.inv(fitted.curvature)
    drawn = random.multivariate_normal(fitted.weights, covariance, _DRAWS, method="cholesky")
    weights = np.vstack([fitted.weights, drawn])
    points, shares = batch.points()
    logits = points + weights[:, :1] + weights[:, 1:] * (points - center)
    rate, *rates = (special.expit(logits) @ shares).clip(0.0, 1.0)
    # Chance in the answers: no sum of so many has a greater variance than the binomial one.
    wrong = random.binomial(batch.rows, rates) / batch.rows
    low, high = np.quantile(wrong, [(1 - level) / 2, (1 + level) / 2])
    ends = min(float(low), float(rate)), max(float(high), float(rate))
    counts = int(groups.rows[-1]), int(groups.errors[-1])
    return ExpectedErrors(float(rate), *ends, batch.mean_u, batch.rows, *counts)


def _logit(u: np.ndarray) -> np.ndarray:
    return special.logit(np.clip(u, _NEAREST, 1 - _NEAREST))


_LARGEST = float(_logit(np.ones(1))[0])
