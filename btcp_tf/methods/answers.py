"""Methods that need the classifier's answer alone: probabilities or logits."""

import numpy as np
from scipy import optimize, special

from btcp_tf.methods.outputs import Outputs, Reference, Score, labels_of
from btcp_tf.networks.mcp import mcp_of

RELU_LAMBDA = 0.5
"""Weight of wrong answers in `relu`; correct ones have the rest. The authors' default."""

_TEMPERATURES = (0.05, 20.0)


def mcp(reference: Reference) -> Score:
    """1 − largest softmax probability (Hendrycks and Gimpel, 2017).

    Range [0, 1 − 1/k].
    """
    return lambda outputs: mcp_of(outputs.logits)


def entropy(reference: Reference) -> Score:
    """Entropy of the probabilities (Shannon, 1948), divided by log k.

    Range [0, 1].
    """
    return lambda outputs: entropy_of(outputs.probs)


def margin(reference: Reference) -> Score:
    """1 − (largest − second largest probability) (Scheffer, Decomain and Wrobel, 2001).

    Range [0, 1].
    """

    def score(outputs: Outputs) -> np.ndarray:
        second, first = np.partition(outputs.probs.astype(np.float64), (-2, -1))[:, -2:].T
        return np.clip(1.0 - (first - second), 0.0, 1.0)

    return score


def doctor(reference: Reference) -> Score:
    """1 − sum of the squared probabilities (Granese et al., 2021).

    The authors' D-alpha is (1 − g) / g of the same sum g: the same ranking. Range [0, 1 − 1/k].
    """

    def score(outputs: Outputs) -> np.ndarray:
        return np.clip(1.0 - np.square(outputs.probs, dtype=np.float64).sum(axis=1), 0.0, 1.0)

    return score


def temperature(reference: Reference) -> Score:
    """MCP of softmax(logits / T), with the T of the smallest NLL on validation data (Guo et al.,
    2017).

    T stays in [0.05, 20]: without an error on validation data the best T would be 0. Range
    [0, 1 − 1/k].
    """
    labels = labels_of("validation", reference.validation)
    logits = reference.validation.logits.astype(np.float64)
    of_label = logits[np.arange(len(labels)), labels]

    def nll(log_t: float) -> float:
        scale = np.exp(-log_t)
        return float((special.logsumexp(logits * scale, axis=1) - of_label * scale).mean())

    bounds = tuple(np.log(_TEMPERATURES))
    t = np.exp(optimize.minimize_scalar(nll, bounds=bounds, method="bounded").x)

    def score(outputs: Outputs) -> np.ndarray:
        z = outputs.logits.astype(np.float64)
        odds = np.exp((z - z.max(axis=1, keepdims=True)) / t)
        # The sum of the others, not 1 − the largest: a small T leaves differences below 1e-16.
        np.put_along_axis(odds, z.argmax(axis=1)[:, None], 0.0, axis=1)
        others = odds.sum(axis=1)
        return others / (1.0 + others)

    return score


def relu(reference: Reference) -> Score:
    """Relative uncertainty p D pᵀ, where D weighs pairs of classes by how much more probability
    wrong answers on validation data share between them than correct ones (Dadalto et al., 2023).

    The authors' closed form: D = max(0, lambda E[pᵀp | wrong] − (1 − lambda) E[pᵀp | correct]) off
    the diagonal, 0 on it, divided by its Frobenius norm. Where that is 0 throughout, as it is
    without wrong answers, D is 1 off the diagonal, as in their program: the ranking of `doctor`.
    Raw; not negative.
    """
    validation = reference.validation
    wrong = validation.predicted != labels_of("validation", validation)

    def mean_outer(p: np.ndarray) -> np.ndarray:
        return p.T @ p / max(1, len(p))

    p = validation.probs.astype(np.float64)
    d = RELU_LAMBDA * mean_outer(p[wrong]) - (1 - RELU_LAMBDA) * mean_outer(p[~wrong])
    d = np.maximum(d, 0.0)
    np.fill_diagonal(d, 0.0)
    if not d.any():
        d = 1.0 - np.eye(len(d))
    d /= np.linalg.norm(d)
    return lambda outputs: ((outputs.probs @ d) * outputs.probs).sum(axis=1)


def max_logit(reference: Reference) -> Score:
    """−largest logit (Hendrycks et al., 2022).

    Raw.
    """
    return lambda outputs: -outputs.logits.max(axis=1)


def energy(reference: Reference) -> Score:
    """−log of the sum of exp(logit), at temperature 1 (Liu et al., 2020).

    Raw.
    """
    return lambda outputs: -special.logsumexp(outputs.logits.astype(np.float64), axis=1)


def entropy_of(probs: np.ndarray) -> np.ndarray:
    total = special.entr(probs.astype(np.float64)).sum(axis=1)
    return np.clip(total / np.log(probs.shape[1]), 0.0, 1.0)
