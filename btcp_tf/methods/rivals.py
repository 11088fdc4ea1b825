"""Rivals of `residual_looks`: what its looks say without a fit, and what they cost.

`Reference.chosen` says which looks these are: here every sample is looked at. A run has no rows of
its rivals where `residual_looks` chose no look; the functions then take the classifier's own answer
for the only one.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf.methods.outputs import Outputs, Reference, Score
from btcp_tf.networks.mcp import mcp_of


def looks_mean(reference: Reference) -> Score:
    """1 − the probability of the predicted class, mean over the classifier's answer and those of
    the looks that residual_looks chose, at every image; nothing is fitted.

    u = (e₀ + e₁ + … + eₘ) / (1 + m), where e₀ is MCP and eⱼ what look j gives to all classes but
    the predicted one. A group of looks is one look, whose answer is their mean. Test-time
    augmentation (Ayhan and Berens, 2018). Range [0, 1].

    Raises ValueError for outputs without `odds`, if there are looks.

    >>> p = np.array([[0.75, 0.25]])
    >>> outputs = Outputs(p, np.log(p), p, np.array([0]), odds=np.array([[0.0]]))
    >>> reference = Reference(outputs, outputs, np.eye(2), np.zeros(2), chosen={0: 1.0})
    >>> looks_mean(reference)(outputs).round(4).tolist()
    [0.375]
    """
    return lambda outputs: mean_of(_against("looks_mean", reference, outputs))


def looks_move(reference: Reference) -> Score:
    """By how much the looks that residual_looks chose move the probability of the predicted class,
    mean over them, at every image; nothing is fitted.

    u = (|e₁ − e₀| + … + |eₘ − e₀|) / m, with the e of `looks_mean`; 0 without looks. How sure the
    classifier is counts for nothing (Bahat and Shakhnarovich, 2018). Range [0, 1].

    Raises ValueError for outputs without `odds`, if there are looks.

    >>> p = np.array([[0.75, 0.25]])
    >>> outputs = Outputs(p, np.log(p), p, np.array([0]), odds=np.array([[0.0]]))
    >>> reference = Reference(outputs, outputs, np.eye(2), np.zeros(2), chosen={0: 1.0})
    >>> looks_move(reference)(outputs).round(4).tolist()
    [0.25]
    """
    return lambda outputs: move_of(_against("looks_move", reference, outputs))


def against(logits: ArrayLike, odds: ArrayLike) -> np.ndarray:
    """Probability of any class but the predicted one, by the classifier and by m looks.

    Args:
      logits: The classifier's, `[n, k]`.
      odds: Log odds of each look against the predicted class, `[n, m]`.

    Returns:
      `[n, 1 + m]` float64 in [0, 1]; the first column is MCP.

    >>> against([[0.0, 0.0]], [[np.log(3.0)]]).round(4).tolist()
    [[0.5, 0.75]]
    """
    return np.hstack([mcp_of(logits)[:, None], special.expit(np.asarray(odds, np.float64))])


def mean_of(against: np.ndarray) -> np.ndarray:
    """u of `looks_mean`, `[n]`, from what `against` returns.

    >>> mean_of(np.array([[0.5, 0.75, 0.25]])).tolist()
    [0.5]
    """
    return against.mean(axis=1)


def move_of(against: np.ndarray) -> np.ndarray:
    """u of `looks_move`, `[n]`, from what `against` returns.

    >>> move_of(np.array([[0.5, 0.75, 0.25]])).tolist()
    [0.25]
    """
    moved = np.abs(against[:, 1:] - against[:, :1])
    return moved.sum(axis=1) / max(1, moved.shape[1])


def cost_of(reference: Reference) -> float:
    """Passes of the classifier for a sample: one, and those of the chosen looks."""
    return 1.0 + sum(reference.chosen.values())


def passes_of(reference: Reference) -> int:
    """Whole passes that cost as much as `cost_of` or a little more, at least 2: those of
    `mc_dropout_few` and the members of `ensemble_few`."""
    # Sums of shares that are not exact are no reason for one more pass.
    return max(2, math.ceil(round(cost_of(reference), 6)))


def _against(name: str, reference: Reference, outputs: Outputs) -> np.ndarray:
    places = list(reference.chosen)
    if places and outputs.odds is None:
        raise ValueError(f"{name}: expected outputs with odds of looks, received none")
    odds = np.zeros((len(outputs.logits), 0)) if outputs.odds is None else outputs.odds[:, places]
    return against(outputs.logits, odds)
