"""The fit behind every calibration of u: a logistic regression of right or wrong, near a start.

Source: Platt, Probabilistic outputs for support vector machines, 1999.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special


class Fitted(NamedTuple):
    """Weights of the largest penalized likelihood."""

    weights: np.ndarray
    """`[p]`."""
    curvature: np.ndarray
    """Of the penalized -log-likelihood there, `[p, p]`: its inverse is the covariance that
    Laplace's approximation gives the weights."""


def fit(
    is_error: np.ndarray,
    start: np.ndarray,
    columns: np.ndarray,
    precision: np.ndarray,
    least: Sequence[float | None] | None = None,
) -> Fitted:
    """Fits weights, of which none are needed where the start is right.

    The logit of an error is `start + columns @ weights`; 1/2 · precision · weights² is the penalty.

    Args:
      is_error: Whether each answer is wrong, `[n]`, bool or 0 / 1.
      start: Its logit where all weights are 0, `[n]`.
      columns: `[n, p]`.
      precision: Of each weight, `[p]`, > 0.
      least: The smallest value of each weight, at most 0; None: no limit.

    >>> is_error = np.array([1, 0, 0, 0] * 100)
    >>> found = fit(is_error, np.zeros(400), np.ones((400, 1)), np.array([1e-6]))
    >>> found.weights.round(4).tolist(), found.curvature.round(2).tolist()  # log(1 / 3); n p (1-p)
    ([-1.0986], [[75.0]])
    """
    from scipy import optimize  # It takes a while to import, which `--help` need not wait for.

    wrong = np.asarray(is_error, np.float64)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = start + columns @ weights
        value = np.logaddexp(0.0, logits).sum() - wrong @ logits
        slope = columns.T @ (special.expit(logits) - wrong)
        return value + 0.5 * precision @ np.square(weights), slope + precision * weights

    found = optimize.minimize(
        loss,
        np.zeros(columns.shape[1]),
        jac=True,
        bounds=None if least is None else [(limit, None) for limit in least],
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-8},
    )
    p = special.expit(start + columns @ found.x)
    return Fitted(found.x, (columns.T * (p * (1.0 - p))) @ columns + np.diag(precision))
