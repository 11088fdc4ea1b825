"""Decision thresholds on u: `u < tau` accepts an answer, `u >= tau` rejects it.

Chosen on validation or calibration data, never on the data that they are judged by.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import metrics


@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold and what it does to the data that it was chosen on."""

    tau: float
    """Between two of the distinct values of u, or beyond their ends."""
    coverage: float
    """Share of answers accepted."""
    rule: str
    """How it was chosen."""


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
    """
    groups = metrics.tie_groups(is_error, uncertainty)
    errors, correct = groups.errors[-1], groups.correct[-1]
    if not (errors and correct):
        raise ValueError(
            "expected correct and wrong answers to choose a threshold of best BACC, received "
            f"{correct} correct and {errors} wrong ones"
        )
    # Entry i accepts the i smallest values of u. BACC in whole numbers, so that ties are ties.
    bacc = groups.correct * errors + (errors - groups.errors) * correct
    best = len(bacc) - 1 - int(np.argmax(bacc[::-1]))
    ends = np.concatenate([[groups.u[0]], groups.u, [np.nextafter(groups.u[-1], np.inf)]])
    tau = float((ends[best] + ends[best + 1]) / 2)
    # The middle of neighboring floats is one of them: it must not accept the upper one.
    tau = tau if tau > ends[best] or not best else float(ends[best + 1])
    return Threshold(tau, float(groups.rows[best] / groups.rows[-1]), "best BACC")
