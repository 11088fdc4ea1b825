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

    >>> outputs = Outputs.from_probs([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]])
    >>> mcp(None)(outputs).round(4).tolist()
    [0.3, 0.6]
    """
    return lambda outputs: mcp_of(outputs.logits)


def entropy(reference: Reference) -> Score:
    """Entropy of the probabilities (Shannon, 1948), divided by log k.

    Range [0, 1].

    >>> outputs = Outputs.from_probs([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]])
    >>> entropy(None)(outputs).round(4).tolist()
    [0.7298, 0.9912]
    """
    return lambda outputs: entropy_of(outputs.probs)


def margin(reference: Reference) -> Score:
    """1 − (largest − second largest probability) (Scheffer, Decomain and Wrobel, 2001).

    Range [0, 1].

    >>> outputs = Outputs.from_probs([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]])
    >>> margin(None)(outputs).round(4).tolist()
    [0.5, 0.9]
    """

    def score(outputs: Outputs) -> np.ndarray:
        second, first = np.partition(outputs.probs.astype(np.float64), (-2, -1))[:, -2:].T
        return np.clip(1.0 - (first - second), 0.0, 1.0)

    return score


def doctor(reference: Reference) -> Score:
    """1 − sum of the squared probabilities (Granese et al., 2021).

    The authors' D-alpha is (1 − g) / g of the same sum g: the same ranking. Range [0, 1 − 1/k].

    >>> outputs = Outputs.from_probs([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]])
    >>> doctor(None)(outputs).round(4).tolist()
    [0.46, 0.66]
    """

    def score(outputs: Outputs) -> np.ndarray:
        return np.clip(1.0 - np.square(outputs.probs, dtype=np.float64).sum(axis=1), 0.0, 1.0)

    return score


def temperature(reference: Reference) -> Score:
    """MCP of softmax(logits / T), with the T of the smallest NLL on validation data (Guo et al.,
    2017).

    T stays in [0.05, 20]: without an error on validation data the best T would be 0. Range
    [0, 1 − 1/k].

    Half of these sure answers are wrong, so that u grows:

    >>> outputs = Outputs.from_probs([[0.9, 0.1], [0.9, 0.1]], labels=[0, 1])
    >>> reference = Reference(outputs, outputs, np.eye(2), np.zeros(2))
    >>> temperature(reference)(outputs).round(2).tolist()
    [0.47, 0.47]
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

    Class 1 is where this classifier is wrong:

    >>> outputs = Outputs.from_probs([[0.5, 0.4, 0.1], [0.5, 0.1, 0.4]], labels=[1, 0])
    >>> reference = Reference(outputs, outputs, np.eye(3), np.zeros(3))
    >>> relu(reference)(outputs).round(4).tolist()
    [0.2828, 0.0707]
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

    >>> logits = np.float32([[2.0, 1.0]])
    >>> max_logit(None)(Outputs(logits, logits, special.softmax(logits, axis=1))).tolist()
    [-2.0]
    """
    return lambda outputs: -outputs.logits.max(axis=1)


def energy(reference: Reference) -> Score:
    """−log of the sum of exp(logit), at temperature 1 (Liu et al., 2020).

    Raw.

    >>> logits = np.float32([[2.0, 1.0]])
    >>> energy(None)(Outputs(logits, logits, special.softmax(logits, axis=1))).round(4).tolist()
    [-2.3133]
    """
    return lambda outputs: -special.logsumexp(outputs.logits.astype(np.float64), axis=1)


def entropy_of(probs: np.ndarray) -> np.ndarray:
    """Entropy of probabilities `[n, k]` divided by log k, `[n]` float64 in [0, 1].

    >>> entropy_of(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    total = special.entr(probs.astype(np.float64)).sum(axis=1)
    return np.clip(total / np.log(probs.shape[1]), 0.0, 1.0)
