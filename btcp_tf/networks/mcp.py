"""The maximum class probability, exact where float32 would round it to 1."""

import numpy as np
from scipy import special


def mcp_logit(logits: np.ndarray) -> np.ndarray:
    """logit(u) of `mcp`: logsumexp of the other logits − the largest, `[n, k]` → `[n]` float32.

    As `estimators.McpLogit` computes it in graphs. 1 − the largest probability would be 0 in
    float32, or one of a few values, for the surest answers, which other methods rank.
    """
    logits = np.asarray(logits, np.float32)
    largest = np.arange(len(logits)), logits.argmax(axis=1)
    others = logits.copy()
    others[largest] = -np.inf
    second = others.max(axis=1)
    with np.errstate(invalid="ignore"):  # Infinity gives NaN, which the caller looks for.
        rest = np.log(np.exp(others - second[:, None]).sum(axis=1))
        return rest + second - logits[largest]


def mcp_of(logits: np.ndarray) -> np.ndarray:
    """`mcp` of logits `[n, k]` → u `[n]` float64, in which u below 1e-38 are not all 0."""
    return special.expit(mcp_logit(logits).astype(np.float64))
