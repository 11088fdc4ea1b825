"""Evidence in answers that are there already, in NumPy: this module needs no TensorFlow.

The Keras layers `evidence_layers.AnswerEvidence` and `gate_layers.OddsAgainst` compute the same in
graphs.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

CLIPPED = 15.0
"""Log odds of a look are clipped to ± this."""

TOP = 5
"""Log-probabilities of an answer that are evidence, if there are so many classes."""

LEAST_LOG_PROB = -30.0
"""Smaller log-probabilities count as this."""


def answer_columns(logits: ArrayLike, top: int = TOP, classes: bool = True) -> np.ndarray:
    """Evidence in the answer itself.

    The largest log-probabilities in order, the margin between the first two probabilities, the
    entropy in nats, and perhaps the predicted class (one column for each).

    Args:
      logits: `[n, k]`.
      top: Log-probabilities that are taken, at most k.
      classes: Whether the predicted class is among the columns.

    Returns:
      float32 `[n, min(top, k) + 2]`, with the classes `[n, min(top, k) + 2 + k]`.

    >>> answer_columns([[0.0, 0.0]], classes=False).round(3).tolist()
    [[-0.6930000185966492, -0.6930000185966492, 0.0, 0.6930000185966492]]
    """
    logits = np.asarray(logits, np.float32)
    log_probs = np.maximum(special.log_softmax(logits, axis=1), LEAST_LOG_PROB)
    ordered = np.sort(log_probs, axis=1)[:, ::-1]
    chances = np.exp(ordered[:, :2])
    entropy = -(np.exp(log_probs) * log_probs).sum(axis=1, keepdims=True)
    parts = [ordered[:, :top], chances[:, :1] - chances[:, 1:], entropy]
    if classes:
        parts.append(logits.argmax(axis=1)[:, None] == np.arange(logits.shape[1]))
    return np.hstack(parts).astype(np.float32)


def look_extremes(slopes: ArrayLike) -> tuple[float, float]:
    """The smallest and the largest value of a weighted sum over what looks say.

    Args:
      slopes: Weights `[2 m]`: of the m looks' log odds against the predicted class, each within
        ± `CLIPPED`, then of the probabilities that belong to these.

    >>> look_extremes([1.0, 0.0])
    (-15.0, 15.0)
    """
    of_odds, of_probability = np.split(np.asarray(slopes, np.float64), 2)
    with np.errstate(all="ignore"):
        # Between the ends a sum turns where p (1 - p), the slope of the probability, balances it.
        p = (1 + np.sqrt(1 + 4 * of_odds / of_probability)) / 2
        turn = np.clip(np.nan_to_num(special.logit(p)), -CLIPPED, CLIPPED)
    # Where it does not turn, these are some odds like any others.
    ends = np.full_like(turn, CLIPPED)
    odds = np.stack([-ends, ends, -turn, turn])
    sums = of_odds * odds + of_probability * special.expit(odds)
    return float(sums.min(axis=0).sum()), float(sums.max(axis=0).sum())


def odds_against(logits: ArrayLike, look: ArrayLike) -> np.ndarray:
    """The log odds that a look gives against the class with the largest logit.

    Args:
      logits: The classifier's logits, `[n, k]`.
      look: Logits or log-probabilities of the look, `[n, k]`.

    Returns:
      float32 `[n]`, clipped to ± `CLIPPED`.

    >>> odds_against([[2.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [40.0, 0.0]]).tolist()
    [-1.0, 15.0]
    """
    return np.clip(all_odds_against(logits, look), -CLIPPED, CLIPPED)


def all_odds_against(logits: ArrayLike, look: ArrayLike) -> np.ndarray:
    """As `odds_against`, but not clipped."""
    look = np.asarray(look, np.float32)
    predicted = np.arange(len(look)), np.argmax(logits, axis=1)
    others = look.copy()
    others[predicted] = -np.inf
    second = others.max(axis=1)
    with np.errstate(invalid="ignore"):  # Infinite ones.
        against = np.log(np.exp(others - second[:, None]).sum(axis=1)) + second
        return against - look[predicted]


def mean_odds(odds: ArrayLike) -> np.ndarray:
    """The log odds of the mean probability over several looks.

    Args:
      odds: Those of each, `[p, n]`, not clipped.

    Returns:
      float32 `[n]`, clipped to ± `CLIPPED`.

    >>> mean_odds([[0.0, 1.0], [0.0, -1.0]]).tolist()
    [0.0, 0.0]
    """
    odds = np.asarray(odds, np.float64)
    against, for_it = (
        special.logsumexp(special.log_expit(sign * odds), axis=0) for sign in (1.0, -1.0)
    )
    return np.clip(against - for_it, -CLIPPED, CLIPPED).astype(np.float32)
