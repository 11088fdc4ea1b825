"""Logistic stacking: a regression of right or wrong on MCP's logit and evidence."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from btcp_tf import metrics

FOLDS = 5
"""Of the cross-validation."""

_NARROW = 100
"""Up to so many columns Newton's method is the faster one: a step of it takes their square."""

_MOST_STEPS = 100
"""Steps of Newton's method at most; it needs about eight."""

_VARIANCE = 0.25
"""Of the log odds of classes, from which its estimate starts."""


class Columns(NamedTuple):
    """What a regression reads of n answers."""

    x: np.ndarray
    """`[n, e]`."""
    predicted: np.ndarray | None = None
    """Predicted classes `[n]`; None: they are no evidence."""
    classes: int = 0
    """Number of classes, k."""

    def rows(self, rows: np.ndarray) -> "Columns":
        """Some of the answers."""
        predicted = None if self.predicted is None else self.predicted[rows]
        return self._replace(x=self.x[rows], predicted=predicted)


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Held-out answers to n samples, then to each of v - 1 copies of all of them in their order."""

    all_errors: np.ndarray
    """Whether each answer is wrong, bool `[v · n]`."""
    z: np.ndarray
    """MCP's logit, `[v · n, 1]`."""
    evidence: Mapping[str, np.ndarray]
    """By name, `[v · n, e]`."""
    classifier: np.ndarray
    """Number of the classifier that gave the answer to each of the n samples, from 0."""
    target: np.ndarray | None
    """In [0, 1], what u is to be, `[v · n]`; None: whether the answer is wrong, by which it is
    judged anyhow."""
    looks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Of each look the log odds against the predicted class, `[v · n]`."""
    predicted: np.ndarray | None = None
    """Predicted classes `[v · n]`, where they are evidence as a part of "answer"."""
    classes: int = 0
    """Number of classes, k, where they are."""
    groups: np.ndarray | None = None
    """Number of the group that each of the n samples belongs to, see `core.groups`; None: each is
    an independent draw."""
    kinds: np.ndarray | None = None
    """What was done to each row of random copies, `[v · n]`: 0 for the samples themselves, else the
    number of a kind of copies from 1 on; None: the copies of each version are a kind."""
    features: np.ndarray | None = None
    """What else may tell a copy from a sample, `[v · n, f]`: the quality of images, or features;
    None: nothing."""

    def originals(self) -> "Samples":
        """The samples without their copies."""
        return self._rows(np.arange(self.n), np.arange(self.n))

    def take(self, rows: np.ndarray) -> "Samples":
        """Some of the n samples, with their copies."""
        return self._rows(rows, self.with_copies(rows))

    def _rows(self, rows: np.ndarray, every: np.ndarray) -> "Samples":
        """Some of the n samples, and their rows among all of them and copies."""

        def part(values: Any) -> Any:
            return None if values is None else values[every]

        return Samples(
            self.all_errors[every],
            self.z[every],
            {name: part(columns) for name, columns in self.evidence.items()},
            self.classifier[rows],
            part(self.target),
            {name: part(odds) for name, odds in self.looks.items()},
            part(self.predicted),
            self.classes,
            None if self.groups is None else self.groups[rows],
            part(self.kinds),
            part(self.features),
        )

    @property
    def kind(self) -> np.ndarray:
        """`kinds`, `[v · n]`."""
        versions = np.repeat(np.arange(self.copies + 1), self.n)
        return versions if self.kinds is None else self.kinds

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

    def columns(self, names: Sequence[str]) -> Columns:
        """MCP's logit and some of the evidence, `[v · n, 1 + e]`."""
        return self.read({name: self.evidence[name] for name in names})

    def read(self, evidence: Mapping[str, np.ndarray]) -> Columns:
        """MCP's logit and evidence `[v · n, e]` by name; predicted classes belong to "answer"."""
        predicted = self.predicted if "answer" in evidence else None
        return Columns(np.hstack([self.z, *evidence.values()]), predicted, self.classes)


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


class CrossValidated(NamedTuple):
    """How a regression does on samples that it was not fitted to."""

    aurc: float
    log_likelihood: np.ndarray
    """Of right or wrong, `[n]`."""


def cross_validated(
    samples: Samples, x: Columns, strength: float, folds: list[tuple[np.ndarray, np.ndarray]]
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
        learned = x.rows(train)
        model = fitted(learned, samples.learned[train], strength)
        logits[test] = model.of(x.rows(test))
        own = model.of(learned)
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
    offsets: np.ndarray | None = None
    """What each predicted class adds to the log odds, `[k]`; None: nothing."""

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Log odds of a wrong answer, `[n]`, from columns `[n, e]`, without the predicted class.

        >>> Logistic(np.array([2.0]), 1.0).logits(np.array([[3.0]])).tolist()
        [7.0]
        """
        return x @ self.slopes + self.intercept

    def of(self, columns: Columns) -> np.ndarray:
        """Log odds of a wrong answer, `[n]`.

        >>> columns = Columns(np.array([[3.0], [3.0]]), np.array([0, 1]), 2)
        >>> Logistic(np.array([2.0]), 1.0, np.array([0.0, 0.5])).of(columns).tolist()
        [7.0, 7.5]
        """
        logits = self.logits(columns.x)
        return logits if self.offsets is None else logits + self.offsets[columns.predicted]


def fitted(
    columns: Columns,
    wanted: np.ndarray,
    strength: float,
    regression: Callable[[np.ndarray, np.ndarray, float], Logistic] | None = None,
) -> Logistic:
    """A logistic regression, then what is left of it to each predicted class.

    Args:
      columns: What it reads of n answers.
      wanted: bool or a probability, `[n]`.
      strength: Inverse of the L2 penalty.
      regression: `regression`; None: `quick_regression`.
    """
    model = (regression or quick_regression)(columns.x, wanted, strength)
    if columns.predicted is None:
        return model
    logits, k = model.logits(columns.x), columns.classes
    offsets, variance = class_offsets(logits, wanted, columns.predicted, k)
    if columns.x.shape[1] > _NARROW:
        return model._replace(offsets=offsets)
    # Beside the classes the other columns weigh a little differently.
    x, mean, scale = _standardized(columns.x)
    start = np.concatenate([model.slopes * scale, [model.intercept + model.slopes @ mean], offsets])
    weights = _newton(x, wanted, strength, columns.predicted, variance, start)
    return _on_columns(weights[: x.shape[1]], mean, scale, weights[x.shape[1] :])


def class_offsets(
    logits: np.ndarray, wanted: np.ndarray, predicted: np.ndarray, classes: int
) -> tuple[np.ndarray, float]:
    """By how much the log odds of a wrong answer of each predicted class differ from given ones.

    A class that was seldom predicted says little of itself. So each is drawn to 0, the more, the
    fewer answers it has and the less all classes differ: offsets are normally distributed, and
    their variance is estimated from all of them (empirical Bayes; a random intercept, fitted by
    penalized quasi-likelihood: Breslow and Clayton, 1993).

    Args:
      logits: Log odds so far, `[n]`.
      wanted: bool or a probability, `[n]`.
      predicted: Classes `[n]`.
      classes: Their number, k.

    Returns:
      float64 `[k]`, 0 for classes that were never predicted; and the variance.

    >>> predicted = np.repeat([0, 1, 2], [200, 200, 4])
    >>> wrong = np.arange(404) % np.array([2, 10, 2])[predicted] == 0
    >>> offsets, _ = class_offsets(np.full(404, -1.0), wrong, predicted, 4)
    >>> offsets.round(1).tolist()
    [1.0, -1.1, 0.5, 0.0]
    """
    offsets, variance = np.zeros(classes), _VARIANCE
    present = np.bincount(predicted, minlength=classes) > 0
    for _ in range(_MOST_STEPS):
        p = special.expit(logits + offsets[predicted])
        slope = np.bincount(predicted, wanted - p, classes) - offsets / variance
        curvature = np.bincount(predicted, p * (1.0 - p), classes) + 1.0 / variance
        # Far from its end, where p is 0 or 1, a step would be too long.
        step = np.clip(slope / curvature, -1.0, 1.0)
        offsets, before = offsets + step, variance
        variance = float(np.mean(np.square(offsets[present]) + 1.0 / curvature[present]))
        if abs(variance - before) <= 1e-3 * before and np.abs(step).max() <= 1e-3:
            break
    return offsets, variance


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
    if x.shape[1] > _NARROW:
        return regression(x.astype(np.float64), wanted, strength)
    x, mean, scale = _standardized(x)
    return _on_columns(_newton(x, wanted, strength), mean, scale)


def _standardized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns with mean 0 and variance 1, then one of ones, `[n, e + 1]`; mean and scale `[e]`."""
    x = x.astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale < 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0  # Of a column that says nothing.
    return np.column_stack([(x - mean) / scale, np.ones(len(x))]), mean, scale


def _on_columns(
    weights: np.ndarray, mean: np.ndarray, scale: np.ndarray, offsets: np.ndarray | None = None
) -> Logistic:
    """A regression on columns as they are, from the weights of standardized ones."""
    slopes = weights[:-1] / scale
    return Logistic(slopes, float(weights[-1] - slopes @ mean), offsets)


def difference(
    columns: Columns, wanted: np.ndarray, before: np.ndarray, strength: float, variance: float
) -> Logistic:
    """What is to be added to log odds for other answers than those that they were fitted to.

    Args:
      columns: What the regression reads of n answers.
      wanted: bool or a probability, `[n]`.
      before: Log odds so far, `[n]`.
      strength: Inverse of the L2 penalty.
      variance: Of the offsets of predicted classes.
    """
    x, mean, scale = _standardized(columns.x)
    k = 0 if columns.predicted is None else columns.classes
    start = np.zeros(x.shape[1] + k)
    weights = _newton(x, wanted, strength, columns.predicted, variance, start, before)
    offsets = weights[x.shape[1] :] if k else None
    return _on_columns(weights[: x.shape[1]], mean, scale, offsets)


def _newton(
    x: np.ndarray,
    wanted: np.ndarray,
    strength: float,
    predicted: np.ndarray | None = None,
    variance: float = 1.0,
    start: np.ndarray | None = None,
    given: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Weights of columns, and perhaps offsets of classes, by Newton's method.

    Among the classes the matrix of second derivatives is diagonal. So a thousand of them take
    hardly longer than none.

    Args:
      x: `[n, e]`; the last has no penalty.
      wanted: bool or a probability, `[n]`.
      strength: Inverse of the L2 penalty of the others.
      predicted: Classes `[n]`; None: there are none.
      variance: Of the offsets; its inverse is their penalty.
      start: Where it starts, `[e + k]`; None: where only the last weight is not 0.
      given: Log odds to which the others are added, `[n]`.

    Returns:
      `[e + k]`.
    """
    n, e = x.shape
    wanted = wanted.astype(np.float64)
    if start is None:
        start = np.zeros(e)
        start[-1] = special.logit(wanted.mean())
    k = len(start) - e
    penalty = np.concatenate([np.full(e - 1, 1.0 / strength), [0.0], np.full(k, 1.0 / variance)])

    def sums(values: np.ndarray) -> np.ndarray:
        return np.zeros(0) if predicted is None else np.bincount(predicted, values, k)

    def logits_of(weights: np.ndarray) -> np.ndarray:
        logits = given + x @ weights[:e]
        return logits if predicted is None else logits + weights[e:][predicted]

    def loss(weights: np.ndarray) -> float:
        logits = logits_of(weights)
        value = np.logaddexp(0.0, logits).sum() - wanted @ logits
        return float(value + 0.5 * penalty @ np.square(weights))

    weights, before = start, loss(start)
    for _ in range(_MOST_STEPS):
        p = special.expit(logits_of(weights))
        curved = p * (1.0 - p)
        slope = penalty * weights + np.concatenate([x.T @ (p - wanted), sums(p - wanted)])
        # The last keeps what is without a penalty, and hardly curved, from a division by zero.
        curvature = (x.T * curved) @ x + np.diag(penalty[:e] + 1e-9)
        mixed = np.array([sums(curved * column) for column in x.T])
        of_classes = sums(curved) + penalty[e:]
        shares = mixed / of_classes
        step = np.linalg.solve(curvature - shares @ mixed.T, slope[:e] - shares @ slope[e:])
        step = np.concatenate([step, (slope[e:] - step @ mixed) / of_classes])
        size = 1.0
        while (after := loss(weights - size * step)) > before and size > 1e-6:
            size /= 2.0
        weights, gain, before = weights - size * step, before - after, after
        if gain <= 1e-9 * abs(after):
            break
    return weights
