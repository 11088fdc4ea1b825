"""Exact tests and limits of an unknown rate, from a count of errors among so many rows."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

MOST_ROWS = 2**53
"""Up to here a float tells every number of rows from the next."""


def tail(errors: ArrayLike, rows: ArrayLike, risk: float) -> np.ndarray:
    """Probability of at most so many errors among so many rows if each is wrong with p = risk."""
    errors, rows = np.asarray(errors), np.asarray(rows)
    correct = np.maximum(rows - errors, 1)
    # Of the risk itself: 1 - risk has lost digits, and that of a small one all of them.
    return np.where(errors < rows, special.betaincc(errors + 1.0, correct, risk), 1.0)


def upper_bound(errors: ArrayLike, rows: ArrayLike, delta: float) -> np.ndarray:
    """Clopper-Pearson: the error rate at which `tail` is delta; 1 if all rows are wrong."""
    errors, rows = np.asarray(errors), np.asarray(rows)
    correct = np.maximum(rows - errors, 1)
    return np.where(errors < rows, special.betainccinv(errors + 1.0, correct, delta), 1.0)


def least_rows(errors: np.ndarray, risk: float, delta: float) -> np.ndarray:
    """Fewest rows among which so many errors still pass the test; where those are more than
    `MOST_ROWS`, that and one more."""
    with np.errstate(over="ignore"):
        enough = np.ceil(2 * (errors - math.log(delta)) / risk)  # By Chernoff's bound.
    low, high = errors, np.minimum(enough, MOST_ROWS).astype(np.int64) + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        passes = tail(errors, middle, risk) <= delta
        low, high = np.where(passes, low, middle), np.where(passes, middle, high)
    return high


def beta_binomial(n: int, a: float, b: float) -> np.ndarray:
    """Probabilities of at most 0, 1, ..., n, [n + 1]; at a = 0 all is at 0, at b = 0 at n."""
    if not (a and b):
        return np.ones(n + 1) if not a else np.append(np.zeros(n), 1.0)
    x = np.arange(n + 1)
    ways = -special.betaln(x + 1, n - x + 1) - math.log(n + 1)
    return np.cumsum(np.exp(ways + special.betaln(x + a, n - x + b) - special.betaln(a, b)))
