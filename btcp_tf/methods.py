"""Every way to get the uncertainty u of a prediction, by name.

A method either scores what the classifier already says (`score`), or trains the
estimator with the Distributional Focal Loss at its own `gamma` (`train`). All
return u in [0, 1], higher = less to be trusted. No TensorFlow here: a command
line can be checked against `METHODS` at once.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Method:
    """One entry of the comparison.

    Attributes:
      title: How tables and figures call it.
      score: probs `[n, k]` → u `[n]`, for methods that need no training.
      gamma: For trained methods, the exponent of the focal factor; None takes
        the run's `gamma` setting.
    """

    title: str
    score: Callable[[np.ndarray], np.ndarray] | None = None
    gamma: float | None = None

    @property
    def trained(self) -> bool:
        """Whether the method trains the estimator."""
        return self.score is None


def mcp(probs: np.ndarray) -> np.ndarray:
    """1 − max softmax probability (Hendrycks and Gimpel, 2017).

    Args:
      probs: `[n, k]`, rows sum to 1.

    Returns:
      u `[n]` in [0, 1 − 1/k].
    """
    return 1.0 - probs.max(axis=1)


METHODS: dict[str, Method] = {
    "mcp": Method("MCP", score=mcp),
    # gamma = 0 leaves the plain squared error of the true class probability: ConfidNet's loss
    # (Corbière et al., 2019).
    "tcp": Method("TCP", gamma=0.0),
    "btcp": Method("BTCP"),
}
