"""Is an error rate above its limit? Tests of labeled answers in order, for any number of looks.

Functions of plain arrays. `decisions.drift` has the tests for one look.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.decisions import drift

_EXCESS = 2.0 ** np.array([0.125, 0.25, 0.5, 1, 2, 3, 4])
"""Odds of an error that the test looks out for, in multiples of the promised ones."""

_ENOUGH = 1e100  # Evidence beyond this is not counted on: it would overflow.


def evidence(is_error: ArrayLike, risk: float) -> np.ndarray:
    """Evidence, after each row, that the error rate is or has been above `risk`: an e-process.

    Its value is what a gambler would own who began with 1 and bet on errors at odds that are fair
    if each row is wrong with probability `risk`. As long as no row's probability of being wrong,
    given the rows before it, is above `risk`, the bets do not pay: the probability that the value
    *ever* reaches 1 / delta is at most delta (Ville's inequality), however often one looks and
    whenever one stops.

    The bets are likelihood ratios of higher error rates, begun at each row: half of the money at
    the first, the rest spread over the later ones, less and less. So a rate that rises late is
    found, though the rows before were good. A rate that exceeds `risk` by less than about 4 % of it
    may never be.

    Args:
      is_error: `[..., n]` bool, each row of answers in the order in which they were labeled; rows
        along the last axis, any number of streams.
      risk: In (0, 1).

    Returns:
      `[..., n]`, >= 0, at most 1e100.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> evidence(np.array([True] * 3), risk=0.05).round(1).tolist()
      [2.2, 10.9, 77.8]

    Source: Ville, Étude critique de la notion de collectif, 1939; Shin, Ramdas and Rinaldo,
    E-detectors, 2024; Ramdas, Grünwald, Vovk and Shafer, Game-Theoretic Statistics and Safe
    Anytime-Valid Inference, 2023.
    """
    drift.check_probability("risk", risk)
    wrong = metrics.array("is_error", is_error)
    if wrong.dtype != bool or not wrong.ndim:
        raise ValueError(
            f"is_error: expected bool, shape [..., n], received {wrong.dtype} {list(wrong.shape)}"
        )
    factors = _likelihood_ratios(risk)
    length = wrong.shape[-1]
    # Entry t: what is not bet yet after row t, rows counted from 1; half of it is bet at once.
    waiting = np.append(1.0, 0.5 / (1 + np.log(np.arange(1, length + 1))))
    new = -np.diff(waiting)
    running = np.zeros((*wrong.shape[:-1], len(_EXCESS)))
    result = np.empty(wrong.shape)
    for row in range(length):
        running = np.minimum(
            (running + new[row]) * factors[wrong[..., row].astype(np.intp)], _ENOUGH
        )
        result[..., row] = running.mean(axis=-1) + waiting[row + 1]
    return result


def _likelihood_ratios(risk: float) -> np.ndarray:
    """Of a right and a wrong answer, [2, rates]."""
    odds = _EXCESS * risk / (1 - risk)
    rate = odds / (1 + odds)
    return np.stack([(1 - rate) / (1 - risk), rate / risk])


class Break(NamedTuple):
    """When a promise was shown broken."""

    row: int
    """First row, from 0, after which the evidence is enough."""
    since: int
    """Row, from 0, from which on the rows up to `row` speak most clearly for a higher rate: about
    when it rose."""


def first_break(is_error: ArrayLike, risk: float, *, delta: float) -> Break | None:
    """The first row at which an error rate of at most `risk` is shown broken; None: it is not.

    Args:
      is_error: `[n]` bool, in the order in which rows were labeled; n may be 0.
      risk: In (0, 1).
      delta: Probability of a false alarm over the whole stream, in (0, 1). See `evidence`.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> is_error = np.arange(200) >= 100
      >>> first_break(is_error, risk=0.05, delta=0.01)
      Break(row=106, since=100)
    """
    drift.check_probability("delta", delta)
    wrong = metrics.array("is_error", is_error)
    if wrong.ndim != 1:
        raise ValueError(f"is_error: expected shape [n], received {list(wrong.shape)}")
    enough = evidence(wrong, risk) >= 1 / delta
    if not enough.any():
        return None
    row = int(enough.argmax())
    gains = np.log(_likelihood_ratios(risk))[wrong[: row + 1].astype(np.intp)]
    from_here = np.cumsum(gains[::-1], axis=0)[::-1]
    return Break(row, int(from_here.max(axis=1).argmax()))


def anytime_interval(
    errors: ArrayLike, rows: ArrayLike, *, delta: float, scale: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """An interval for an error rate that holds after every row at once.

    With probability 1 - delta it covers the rate, if that stays the same, for all numbers of rows
    together, so that one may look and stop at will. It holds the rates q at which the beta-binomial
    mixture of likelihood ratios against q is below 1 / delta, prior Beta(1, 1 / scale).

    Args:
      errors: `[p]` whole numbers, wrong answers among the first `rows`.
      rows: `[p]` whole numbers >= `errors`.
      delta: In (0, 1).
      scale: About the rate that is expected, in (0, 1): the interval is shortest near it, and holds
        for any.

    Returns:
      Lower and upper ends, `[p]` each, in [0, 1].

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> low, high = anytime_interval([5], [100], delta=0.05)
      >>> print(f"{low[0]:.3f} {high[0]:.3f}")
      0.008 0.152

    Source: Robbins, Statistical Methods Related to the Law of the Iterated Logarithm, 1970; Howard,
    Ramdas, McAuliffe and Sekhon, Time-Uniform, Nonparametric, Nonasymptotic Confidence Sequences,
    2021.
    """
    drift.check_probability("delta", delta)
    drift.check_probability("scale", scale)
    k, n = np.broadcast_arrays(np.asarray(errors), np.asarray(rows))
    if k.dtype.kind not in "iu" or n.dtype.kind not in "iu" or not np.all((k >= 0) & (k <= n)):
        raise ValueError("errors and rows: expected whole numbers, 0 <= errors <= rows")
    a, b = 1.0, 1.0 / scale
    best = np.where(n > 0, k / np.maximum(n, 1), 0.5)
    # log of likelihood at q that is just enough: below it the mixture has gained 1 / delta.
    limit = special.betaln(a + k, b + n - k) - special.betaln(a, b) + math.log(delta)

    def end(outer: float) -> np.ndarray:
        inside, outside = best.copy(), np.full(best.shape, outer)
        # The likelihood falls from its maximum to either side; 60 halvings are all of a double.
        for _ in range(60):
            middle = (inside + outside) / 2
            kept = special.xlogy(k, middle) + special.xlog1py(n - k, -middle) > limit
            inside, outside = np.where(kept, middle, inside), np.where(kept, outside, middle)
        return outside

    low, high = end(0.0), end(1.0)
    # Where all rows are right or wrong the end itself is not excluded.
    return np.where(k > 0, low, 0.0), np.where(k < n, high, 1.0)
