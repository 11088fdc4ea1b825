"""MCP: 1 − the largest class probability, exact where float32 would round it to 0.

All of it is here but for the Keras layer `evidence_layers.McpLogit`, which computes `mcp_logit` in
graphs: this module needs no TensorFlow.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special


def mcp_logit(logits: ArrayLike) -> np.ndarray:
    """logit(u) of MCP: logsumexp of the other logits − the largest.

    1 − the largest probability would be 0 in float32, or one of a few values, for the surest
    answers, which other methods rank.

    Args:
      logits: `[n, k]`.

    Returns:
      `[n]` float32; NaN where a logit is infinite.

    >>> mcp_logit([[100.0, 0.0], [1.0, 1.0]]).tolist()
    [-100.0, 0.0]
    """
    logits = np.asarray(logits, np.float32)
    largest = np.arange(len(logits)), logits.argmax(axis=1)
    others = logits.copy()
    others[largest] = -np.inf
    second = others.max(axis=1)
    with np.errstate(invalid="ignore"):  # Infinity gives NaN, which the caller looks for.
        rest = np.log(np.exp(others - second[:, None]).sum(axis=1))
        return rest + second - logits[largest]


def mcp_of(logits: ArrayLike) -> np.ndarray:
    """u of MCP from logits `[n, k]`: `[n]` float64 in [0, 1 − 1/k].

    >>> mcp_of([[100.0, 0.0], [1.0, 1.0]]).tolist()
    [3.7200759760208356e-44, 0.5]
    """
    return special.expit(mcp_logit(logits).astype(np.float64))


def mcp_of_probs(probs: ArrayLike) -> np.ndarray:
    """u of MCP where only probabilities `[n, k]` are known: `[n]` in [0, 1 − 1/k].

    >>> mcp_of_probs([[0.75, 0.25]]).tolist()
    [0.25]
    """
    return 1.0 - np.max(probs, axis=1)


def mcp_logit_of_probs(probs: ArrayLike) -> np.ndarray:
    """logit(u) of MCP where only probabilities `[n, k]` are known: `[n]` float64.

    Of the others' sum, as 1 − the largest has lost most digits where that is almost 1.

    >>> mcp_logit_of_probs([[0.5, 0.5], [1.0, 0.0]]).tolist()
    [0.0, -inf]
    """
    others = np.array(probs, np.float64)
    places = np.arange(len(others)), others.argmax(axis=1)
    largest = others[places]
    others[places] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(others.sum(axis=1)) - np.log(largest)
