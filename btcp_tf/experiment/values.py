"""What the steps of a run hand to one another."""

from typing import Any, NamedTuple

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import rows
from btcp_tf.evaluation.keys import ImageSet, Predictor
from btcp_tf.evaluation.predictions import Predictions

Row = dict[str, Any]

AllPredictions = dict[tuple[ImageSet, Predictor], Predictions]
"""The answers of every predictor to every set of images."""


class Choice(NamedTuple):
    """Whose answers and whose u the run's SavedModel has."""

    predictor: Predictor
    method: str
    """A column of the predictor's answers."""
    reason: str
    """Why, in a phrase."""


def check_finite(*answers: np.ndarray) -> None:
    """Checks outputs of a network.

    Raises:
      FloatingPointError: If one is NaN or infinite.
    """
    if not all(rows.all_finite(array) for array in answers):
        raise FloatingPointError(
            "expected finite outputs of the network, received others: it diverged; a smaller "
            "learning rate usually helps"
        )


def best_tau(is_error: np.ndarray, u: np.ndarray) -> float | None:
    """The tau of best BACC; None unless there are both wrong and correct answers.

    >>> best_tau(np.array([True, False]), np.array([0.9, 0.2]))
    0.55
    """
    if not 0 < is_error.sum() < len(is_error):
        return None
    return thresholds.best_bacc(is_error, u).tau
