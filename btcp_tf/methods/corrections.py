"""What is added to logit(u) where an input looks like a corrupted one.

An estimator that was fitted to samples as they are reads evidence that no longer means the same
where inputs are noisy, blurred or turned: which classes are predicted wrongly, first of all. Copies
of the samples, corrupted in several ways, show what it means there. So a correction is fitted for
each kind of copies, and an input gets as much of it as it looks like that kind: a mixture of
experts with a fitted gate (Jacobs, Jordan, Nowlan and Hinton, 1991). An input that looks like no
copy keeps the u that the samples themselves gave it.
"""

import warnings
from typing import NamedTuple

import numpy as np
from scipy import special

from btcp_tf.methods import stacking
from btcp_tf.methods.stacking import FOLDS, Columns, Logistic, Samples

_MOST, _MOST_NUMBERS = 20_000, 2**23
"""Rows from which it is learned what looks like a copy; and their columns together."""

_NEVER = -1e3
"""Log odds of a kind of which there was no copy."""

_FARTHEST = 6.0
"""Standard deviations by which a column counts at most in that."""

_GATE_STRENGTH = 0.1

_AS_THEY_ARE = 10.0
"""How many times as many inputs are expected to be like the samples as like random copies. Among
what is learned from there are as many copies; with these odds u would be too large where nothing is
corrupted. Copies of a kind that somebody gave are expected as often as they stand there."""

_STRENGTH = 1.0

_VARIANCE = 1.0
"""Of the offsets of predicted classes in a correction."""


class Gate(NamedTuple):
    """How much an input looks like a sample, and like each kind of copies: a multinomial logistic
    regression on columns, standardized and clipped, and on their squares."""

    mean: np.ndarray
    """`[w]`."""
    scale: np.ndarray
    """`[w]`."""
    kernel: np.ndarray
    """`[2 w, 1 + v]`, for samples and v kinds of copies."""
    bias: np.ndarray
    """`[1 + v]`."""

    def of(self, x: np.ndarray) -> np.ndarray:
        """Probabilities `[n, 1 + v]` from columns `[n, w]`.

        >>> gate = Gate(np.zeros(1), np.ones(1), np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros(2))
        >>> gate.of(np.array([[0.0], [100.0]])).round(3).tolist()
        [[0.5, 0.5], [0.002, 0.998]]
        """
        return special.softmax(_squared(x, self.mean, self.scale) @ self.kernel + self.bias, axis=1)


class Correction(NamedTuple):
    """What is added to logit(u)."""

    gate: Gate
    """Reads MCP's logit, the evidence, and perhaps `Samples.features`, in this order."""
    kinds: tuple[Logistic, ...]
    """For each kind of copies what is added to the log odds of a wrong answer."""

    def of(self, x: np.ndarray, samples: Samples) -> np.ndarray:
        """For each row of samples and their copies, `[n]`.

        Args:
          x: MCP's logit and the evidence, `[n, 1 + e]`.
          samples: Their predicted classes and `features` count.
        """
        shares = self.gate.of(_seen(x, samples))[:, 1:]
        columns = _columns(x, samples)
        added = np.stack([kind.of(columns) for kind in self.kinds], axis=1)
        return (shares * added).sum(axis=1)


def learn(samples: Samples, x: np.ndarray, before: np.ndarray, seed: int) -> Correction:
    """Fits a correction to samples and their copies.

    Args:
      samples: n samples, each with copies.
      x: MCP's logit and the evidence of all of them, `[v · n, 1 + e]`.
      before: logit(u) of all of them, as fitted to the samples alone.
      seed: Seed of the draw of the rows that the gate learns from, where there are too many.
    """
    kind, columns = samples.kind, _columns(x, samples)
    gate = _fit_gate(x, samples, seed)
    kinds = []
    for number in range(1, int(kind.max()) + 1):
        rows = np.flatnonzero(kind == number)
        wrong = int(samples.all_errors[rows].sum())
        if min(wrong, len(rows) - wrong) < FOLDS:
            # Nothing can be learned from these.
            kinds.append(Logistic(np.zeros(x.shape[1]), 0.0))
            continue
        own, wanted = columns.rows(rows), samples.learned[rows]
        kinds.append(stacking.difference(own, wanted, before[rows], _STRENGTH, _VARIANCE))
    return Correction(gate, tuple(kinds))


def _columns(x: np.ndarray, samples: Samples) -> Columns:
    """What a correction reads: the predicted class, too, whatever the estimator itself does."""
    return Columns(x, samples.predicted, samples.classes)


def _seen(x: np.ndarray, samples: Samples) -> np.ndarray:
    """What the gate reads."""
    return x if samples.features is None else np.hstack([x, samples.features])


def _squared(x: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Columns, standardized and clipped, then their squares: noise makes some larger on both sides,
    `[n, 2 w]`."""
    x = np.clip((x - mean) / scale, -_FARTHEST, _FARTHEST)
    return np.hstack([x, np.square(x)])


def _fit_gate(x: np.ndarray, samples: Samples, seed: int) -> Gate:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    kind, features = samples.kind, samples.features
    width = x.shape[1] + (0 if features is None else features.shape[1])
    most = min(_MOST, _MOST_NUMBERS // width)
    rows = np.sort(np.random.default_rng(seed).permutation(len(x))[:most])
    known = x[rows] if features is None else np.hstack([x[rows], features[rows]])
    known, kinds = known.astype(np.float64), kind[rows]
    own = known[kinds == 0]
    mean, scale = own.mean(axis=0), own.std(axis=0)
    scale[scale < 1e-6 * np.maximum(1.0, np.abs(mean))] = 1.0
    model = LogisticRegression(C=_GATE_STRENGTH, max_iter=300)
    # Of many small steps each would wait for all threads, which takes far longer where other work
    # runs.
    with threadpool_limits(1), warnings.catch_warnings():
        # Near the end it tells inputs apart as well as at it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(_squared(known, mean, scale), kinds)
    weights = np.column_stack([model.intercept_, model.coef_])
    if len(weights) == 1:
        # Of two classes scikit-learn has the difference alone.
        weights = np.concatenate([0.0 * weights, weights])
    kernel = np.zeros((2 * width, 1 + int(kind.max())))
    bias = np.full(kernel.shape[1], _NEVER)
    bias[model.classes_], kernel[:, model.classes_] = weights[:, 0], weights[:, 1:].T
    if samples.kinds is not None:
        bias[0] += np.log(_AS_THEY_ARE * (kind > 0).sum() / (kind == 0).sum())
    return Gate(mean, scale, kernel, bias)
