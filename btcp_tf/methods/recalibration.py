"""u after the data has changed: its scale, and its trust in what it learned, from a few hundred
labels.

    logit(u') = alpha · logit(u) + beta + gamma · logit(MCP)

alpha and beta bring u back to the error rate (Platt, Probabilistic outputs for support vector
machines, 1999). Where the evidence no longer tells what it told, gamma gives MCP more weight
against it; ranking then moves towards that of MCP.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from btcp_tf.core.groups import mean_error
from btcp_tf.methods import platt, stacking
from btcp_tf.methods.stacking import FOLDS, Samples

_PENALTY = 1.0
"""Of the distance from alpha = 1, beta = 0, gamma = 0, in units of a sample's log-likelihood."""

_LARGEST_LOGIT = 700.0

_SMALLEST = 1e-300
"""A u below this, which has no logit in float64, counts as this."""


def logit_of(u: np.ndarray) -> np.ndarray:
    """logit(u) `[n]`, finite where u is 0 or 1, too.

    >>> logit_of(np.array([0.0, 0.5])).round(1).tolist()
    [-690.8, 0.0]
    """
    return special.logit(u.astype(np.float64).clip(_SMALLEST, np.nextafter(1.0, 0.0)))


class Map(NamedTuple):
    """What becomes of logit(u)."""

    alpha: float = 1.0
    """Of logit(u), >= 0."""
    beta: float = 0.0
    gamma: float = 0.0
    """Of MCP's logit, >= 0."""

    def __call__(self, logit: np.ndarray, z: np.ndarray) -> np.ndarray:
        """logit(u') `[n]`.

        Args:
          logit: logit(u), `[n]`.
          z: MCP's logit, `[n]`.

        >>> Map(0.5, 1.0, 0.25)(np.array([2.0]), np.array([4.0])).tolist()
        [3.0]
        """
        return self.alpha * logit + self.beta + self.gamma * z

    def after(self, before: "Map") -> "Map":
        """The map that does what `before` does, then this one.

        >>> Map(0.5, 1.0, 0.25).after(Map(2.0, 1.0, 1.0))
        Map(alpha=1.0, beta=1.5, gamma=0.75)
        """
        alpha, beta, gamma = before
        return Map(
            self.alpha * alpha, self.alpha * beta + self.beta, self.alpha * gamma + self.gamma
        )


SAME = Map()
"""u as it is."""


@dataclasses.dataclass(frozen=True)
class Recalibration:
    """What was learned from new labels, and what it gains."""

    map: Map
    kind: str
    """"same", "shift" (beta alone), "scale" (alpha and beta) or "mix" (all three)."""
    samples: int
    errors: int
    gain: tuple[float, float, float]
    """Mean log-likelihood of right or wrong with the map minus that of u as it is, cross-validated:
    (value, low, high), 95 %. Without a map 0."""
    expected_before: float
    """Mean u of these samples, as it is."""
    expected_after: float
    """With the map, cross-validated."""

    @property
    def entry(self) -> dict[str, Any]:
        """What the card of a judge, and `btcp_tf.json`, keep of it."""
        return dataclasses.asdict(self) | {"map": self.map._asdict(), "words": self.words}

    @property
    def words(self) -> str:
        """The same in a sentence."""
        rate = self.errors / self.samples
        said = f"{self.samples} new labels, {self.errors} errors ({rate:.1%}): "
        if self.kind == "same":
            return said + f"u stays as it is (mean {self.expected_before:.1%})"
        value, low, high = (1000 * one for one in self.gain)
        return said + (
            f"mean u {self.expected_before:.1%} before, {self.expected_after:.1%} now; "
            f"log-likelihood x 1000 {value:+.1f} [{low:+.1f}, {high:+.1f}]"
        )


_FREE = {"shift": (1,), "scale": (0, 1), "mix": (0, 1, 2)}
"""Which of (alpha, beta, gamma) are fitted."""


def recalibrate(
    is_error: np.ndarray,
    logit: np.ndarray,
    z: np.ndarray | None,
    *,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> Recalibration:
    """Fits u to new labels, as far as these show that it helps.

    A map with more parameters is taken where its cross-validated log-likelihood is better by more
    than a standard error.

    Args:
      is_error: Whether each answer is wrong, bool `[n]`.
      logit: logit(u), `[n]`, finite.
      z: MCP's logit, `[n]`, finite; None: it is not known, and gamma stays 0.
      groups: From `core.groups.numbers`, `[n]`; None: samples are independent.
      seed: Seed of the folds.

    Raises:
      ValueError: With fewer than `2 · FOLDS` wrong, or right, answers.

    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(-2, 2, 800)
    >>> wrong = random.random(800) < special.expit(0.5 * logit + 1)
    >>> recalibrate(wrong, logit, logit).kind
    'scale'
    """
    least = 2 * FOLDS
    n = len(logit)
    samples = Samples(is_error, logit[:, None], {}, np.zeros(n, int), None, groups=groups)
    wrong, right = samples.independent()
    if min(wrong, right) < least:
        what = "wrong" if wrong < right else "right"
        of = "answers" if groups is None else "groups with answers"
        raise ValueError(
            f"labels: expected at least {least} {of} that are {what}, received "
            f"{min(wrong, right)}; label more, or leave u as it is"
        )
    folds = stacking.splits(samples, seed)
    best, kind = _likelihood(is_error, logit), "same"
    before = best
    logits = logit
    # u and MCP are one where no evidence is used.
    with_z = z is not None and not np.allclose(logit, z)
    kinds = [name for name in _FREE if name != "mix" or with_z]
    z = np.zeros(n) if z is None else z
    for name in kinds:
        crossed = np.empty(len(logit))
        for train, test in folds:
            fitted = _fit(is_error[train], logit[train], z[train], _FREE[name])
            crossed[test] = fitted(logit[test], z[test])
        new = _likelihood(is_error, crossed)
        gain = new - best
        if gain.mean() > mean_error(gain, groups):
            best, kind, logits = new, name, crossed
    gain = best - before
    error = mean_error(gain, groups)
    value = float(gain.mean())
    return Recalibration(
        SAME if kind == "same" else _fit(is_error, logit, z, _FREE[kind]),
        kind,
        len(is_error),
        int(is_error.sum()),
        (value, value - 1.96 * error, value + 1.96 * error),
        float(special.expit(logit).mean()),
        float(special.expit(logits).mean()),
    )


def _likelihood(is_error: np.ndarray, logit: np.ndarray) -> np.ndarray:
    return special.log_expit(np.where(is_error, logit, -logit))


def _fit(is_error: np.ndarray, logit: np.ndarray, z: np.ndarray, free: Sequence[int]) -> Map:
    """The map of the largest penalized likelihood among those with some parameters free."""
    columns = np.stack([logit, np.ones_like(logit), z], axis=1)[:, list(free)].clip(
        -_LARGEST_LOGIT, _LARGEST_LOGIT
    )
    # What is added to each parameter of `SAME`.
    least = [None if one == 1 else -SAME[one] for one in free]
    found = platt.fit(is_error, logit, columns, np.full(len(free), _PENALTY), least)
    weights = np.array(SAME)
    weights[list(free)] += found.weights
    return Map(*map(float, weights))
