"""Logistic stacking: a regression of right or wrong on MCP's logit and evidence."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy import special

from btcp_tf import metrics
from btcp_tf.core.progress import Bar

FOLDS = 5
"""Of the cross-validation."""

_NARROW = 100
"""Up to so many columns Newton's method is the faster one: a step of it takes their square."""

_MOST_STEPS = 100
"""Steps of Newton's method at most; it needs about eight."""


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Held-out answers to n samples, then to each of v - 1 copies of all of them.

    The arguments are those of `residual_choice.choose`.
    """

    all_errors: np.ndarray
    """Those of the copies, too, `[v · n]`."""
    z: np.ndarray
    evidence: Mapping[str, np.ndarray]
    classifier: np.ndarray
    target: np.ndarray | None
    looks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Of each look the log odds against the predicted class, `[v · n]`."""
    groups: np.ndarray | None = None
    """Number of the group that each of the n samples belongs to, see `core.groups`; None: each is
    an independent draw."""

    def take(self, rows: np.ndarray) -> "Samples":
        """Some of the n samples, with their copies."""
        every = self.with_copies(rows)
        return Samples(
            self.all_errors[every],
            self.z[every],
            {name: columns[every] for name, columns in self.evidence.items()},
            self.classifier[rows],
            None if self.target is None else self.target[every],
            {name: odds[every] for name, odds in self.looks.items()},
            None if self.groups is None else self.groups[rows],
        )

    def with_copies(self, rows: np.ndarray) -> np.ndarray:
        """Rows of samples, then those of their copies."""
        return np.concatenate([rows + self.n * version for version in range(self.copies + 1)])

    @property
    def n(self) -> int:
        return len(self.classifier)

    @property
    def is_error(self) -> np.ndarray:
        """Of the samples themselves, `[n]`."""
        return self.all_errors[: self.n]

    @property
    def errors(self) -> int:
        return int(self.is_error.sum())

    def independent(self) -> tuple[int, int]:
        """Independent draws with a wrong, and with a right answer: samples, or groups."""
        if self.groups is None:
            return self.errors, self.n - self.errors
        wrong, right = self.groups[self.is_error], self.groups[~self.is_error]
        return len(np.unique(wrong)), len(np.unique(right))

    @property
    def learned(self) -> np.ndarray:
        """What the regression learns, `[v · n]`."""
        return self.all_errors if self.target is None else self.target

    @property
    def copies(self) -> int:
        """Copies of each sample."""
        return len(self.all_errors) // self.n - 1

    @property
    def mcp(self) -> np.ndarray:
        """u of MCP, `[n]`."""
        return special.expit(self.z[: self.n, 0])

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """MCP's logit and some of the evidence, `[v · n, 1 + e]`."""
        return np.hstack([self.z, *(self.evidence[name] for name in names)])


def splits(samples: Samples, seed: int, least: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to train on, among them the copies of the same samples; and samples to test on.

    A group is never on both sides.

    Args:
      samples: Held-out answers; at least 2 are wrong, and 2 right.
      seed: Seed of the folds.
      least: Wrong, and right, answers that all but one classifier have, where each is a fold.
    """
    from sklearn.model_selection import PredefinedSplit, StratifiedGroupKFold, StratifiedKFold

    classifier, is_error = samples.classifier, samples.is_error
    rest = [is_error[classifier != number] for number in np.unique(classifier)]
    # Unless nearly all errors, or nearly all other answers, are one classifier's.
    enough = (least <= others.sum() <= len(others) - least for others in rest)
    folds: Any
    if classifier.any() and all(enough):
        folds = PredefinedSplit(classifier)
    else:
        rarer = min(samples.independent())
        by = StratifiedKFold if samples.groups is None else StratifiedGroupKFold
        folds = by(min(FOLDS, rarer), shuffle=True, random_state=seed)
    return [
        (samples.with_copies(train), test)
        for train, test in folds.split(is_error, is_error, samples.groups)
    ]


class Choice(Protocol):
    """What a search chooses; what else it holds is known to the search."""

    @property
    def strength(self) -> float:
        """Inverse of the L2 penalty."""


Chosen = TypeVar("Chosen", bound=Choice)


def nested(
    samples: Samples,
    search: Callable[[Samples], Chosen],
    columns: Callable[[Samples, Chosen], np.ndarray],
    seed: int,
    title: str,
    verbose: int = 0,
) -> tuple[Chosen, np.ndarray]:
    """What all samples choose, and how such a choice does on samples that it has not seen.

    The winner of many trials looks better on the folds that it won on than it is. So the whole
    search is repeated without each fold of an outer cross-validation.

    Args:
      samples: All held-out answers; at least `FOLDS` are wrong, and as many right.
      search: Chooses by the samples that it is given, all or some of them.
      columns: What the regression of a choice reads, `[v · n, 1 + e]`.
      seed: Seed of the folds.
      title: What is done, for the progress bar.
      verbose: 1 shows how far it is.

    Returns:
      The choice of all samples; and u `[n]`, where each sample had no part in the choice, the
      penalty or the weights behind its own.
    """
    outer = splits(samples, seed, FOLDS)
    bar = Bar(title, len(outer) + 1, shown=bool(verbose))
    chosen = search(samples)
    x = columns(samples, chosen)
    scale = quick_regression(x, samples.learned, chosen.strength).logits(x)
    bar.add(1)
    logits = np.empty(samples.n)
    for train, test in outer:
        part = samples.take(train[train < samples.n])
        without = search(part)
        x = columns(part, without)
        model = quick_regression(x, part.learned, without.strength)
        own = model.logits(x)
        new = model.logits(columns(samples.take(test), without))
        logits[test] = on_scale(new[: len(test)], own, scale)
        bar.add(1)
    return chosen, special.expit(logits)


class CrossValidated(NamedTuple):
    """How a regression does on samples that it was not fitted to."""

    aurc: float
    log_likelihood: np.ndarray
    """Of right or wrong, `[n]`."""


def cross_validated(
    samples: Samples, x: np.ndarray, strength: float, folds: list[tuple[np.ndarray, np.ndarray]]
) -> CrossValidated:
    """Cross-validates a regression.

    Args:
      samples: All held-out answers.
      x: What it reads, `[v · n, e]`.
      strength: Inverse of the L2 penalty.
      folds: From `splits`.
    """
    is_error = samples.is_error
    logits, ranks = np.empty(samples.n), np.empty(samples.n)
    for train, test in folds:
        model = quick_regression(x[train], samples.learned[train], strength)
        logits[test] = model.logits(x[test])
        own = model.logits(x[train])
        ranks[test] = on_scale(logits[test], own, samples.z[:, 0])
    right = np.where(is_error, logits, -logits)
    return CrossValidated(metrics.aurc(is_error, ranks), special.log_expit(right))


def on_scale(logits: np.ndarray, own: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Logits of one model on the scale of another: the same quantiles, `[n]`.

    Models of different folds rank alike what each of them has answered, but not what another has:
    where u is small, a little more slope is many ranks.

    Args:
      logits: `[n]`, to be brought to the scale.
      own: `[m]`, the same model's for the samples that it was fitted on.
      scale: `[l]`, the other's, for samples of the same kind.

    >>> on_scale(np.array([2.0, 5.0]), np.array([0.0, 2.0, 4.0]), np.array([0.0, 10.0, 40.0]))
    array([10., 40.])
    """
    places = np.interp(logits, np.sort(own), np.linspace(0.0, 1.0, len(own)))
    # As `np.quantile`, which takes ten times as long for so many places.
    return np.interp(places, np.linspace(0.0, 1.0, len(scale)), np.sort(scale))


class Logistic(NamedTuple):
    """A logistic regression that was fitted."""

    slopes: np.ndarray
    """`[e]`."""
    intercept: float

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Log odds of a wrong answer, `[n]`, from columns `[n, e]`.

        >>> Logistic(np.array([2.0]), 1.0).logits(np.array([[3.0]])).tolist()
        [7.0]
        """
        return x @ self.slopes + self.intercept


def regression(x: np.ndarray, wanted: np.ndarray, strength: float) -> Logistic:
    """A logistic regression on standardized columns; `wanted` is bool or a probability, `[n]`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=strength, max_iter=1000)
    if wanted.dtype == bool:
        model.fit(scaler.transform(x), wanted)
    else:
        # A probability is so much of a wrong answer and the rest of a right one.
        wrong = np.repeat([True, False], len(x))
        weight = np.concatenate([wanted, 1.0 - wanted])
        model.fit(np.tile(scaler.transform(x), (2, 1)), wrong, weight)
    slopes = model.coef_[0] / scaler.scale_
    return Logistic(slopes, float(model.intercept_[0] - slopes @ scaler.mean_))


def quick_regression(x: np.ndarray, wanted: np.ndarray, strength: float) -> Logistic:
    """As `regression`, up to rounding; for choices, of which each takes hundreds.

    With few columns it is much faster: most of scikit-learn's time goes into checks of what it is
    given. In float64, as columns that are sums of others leave no digits in float32.
    """
    x = x.astype(np.float64)
    if x.shape[1] > _NARROW:
        return regression(x, wanted, strength)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0  # Of a column that says nothing.
    weights = _newton(np.column_stack([(x - mean) / scale, np.ones(len(x))]), wanted, strength)
    slopes = weights[:-1] / scale
    return Logistic(slopes, float(weights[-1] - slopes @ mean))


def _newton(x: np.ndarray, wanted: np.ndarray, strength: float) -> np.ndarray:
    """Weights of columns `[n, e]`, the last without a penalty, by Newton's method: `[e]`."""
    penalty = np.full(x.shape[1], 1.0 / strength)
    penalty[-1] = 0.0
    wanted = wanted.astype(np.float64)

    def loss(weights: np.ndarray) -> float:
        logits = x @ weights
        value = np.logaddexp(0.0, logits).sum() - wanted @ logits
        return float(value + 0.5 * penalty @ np.square(weights))

    weights = np.zeros(x.shape[1])
    weights[-1] = special.logit(wanted.mean())
    before = loss(weights)
    for _ in range(_MOST_STEPS):
        p = special.expit(x @ weights)
        slope = x.T @ (p - wanted) + penalty * weights
        # The last keeps what is without a penalty, and hardly curved, from a division by zero.
        curvature = (x.T * (p * (1.0 - p))) @ x + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curvature, slope)
        size = 1.0
        while (after := loss(weights - size * step)) > before and size > 1e-6:
            size /= 2.0
        weights, gain, before = weights - size * step, before - after, after
        if gain <= 1e-9 * abs(after):
            break
    return weights
