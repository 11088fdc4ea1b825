"""Which labels of a data set are wrong: the evidence about wrong answers, turned round.

Where an answer and a label disagree, one of them is wrong. How sure the classifier is, and how
often samples of a class are labeled as another one, say which. NumPy and SciPy alone.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf.core import checks
from btcp_tf.evaluation.predictions import REFERENCE, Predictions

_TEMPERATURES = np.geomspace(0.1, 4, 17)
"""Candidates for what logits are divided by. Most networks are too sure of themselves (above 1);
models that were trained on wrong labels, or strongly regularized, are not sure enough (below)."""

_ROUNDS, _FIRST_ROUNDS = 200, 30
"""Most rounds of the fit, and those for a candidate temperature."""

_SMALL = 1e-4
"""Change of the noise at which the fit ends."""

_ENOUGH = 2_000_000
"""Probabilities, of as many rows as that takes, by which the temperature is chosen."""

_LEAST_PROB = 1e-30
"""Smaller probabilities count as this: the logarithm of 0 is no number."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelErrors:
    """The labels of n samples of k classes, by how probably they are wrong."""

    order: np.ndarray
    """`[n]` int64, all rows, the most probably wrong label first."""
    probability: np.ndarray
    """`[n]` float64 in [0, 1], that of each label to be wrong."""
    suggested: np.ndarray
    """`[n]` int64, the most probable class by answer and label together."""
    noise: np.ndarray
    """`[k, k]` float64, how often a sample of the row's class is labeled as the column's."""
    temperature: float
    """What the logits of the probabilities were divided by, chosen by likelihood."""

    @property
    def expected(self) -> float:
        """How many labels are wrong, in expectation."""
        return float(self.probability.sum())


def label_errors(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    looks: Sequence[ArrayLike] = (),
    folds: ArrayLike | None = None,
    out_of_fold: bool = False,
) -> LabelErrors:
    """How probably each label is wrong, from answers of classifiers that never saw it.

    The true class of a sample is taken to follow the classifier's probabilities, at a temperature
    of its own, and the label to depend on the true class alone: `noise`, drawn towards the same
    rate for all pairs of classes by as many samples as a class has. Both are found by maximum
    likelihood (expectation maximization); Bayes' rule then gives the probability that a label is
    wrong.

    The probabilities are right where labels are wrong irrespective of the sample, as after a slip
    of the hand. People also err where the classifier is unsure; of these errors a part is taken for
    those of the classifier, and `expected` is too low. The order hardly suffers.

    Args:
      probs: `[n, k]` floats in [0, 1], rows that sum to 1: for each sample the answer of a
        classifier that was not trained on its label.
      labels: `[n]` whole numbers from 0 to k - 1.
      looks: Further answers of that kind, `[n, k]` each, such as those to the mirrored images: the
        mean of all counts.
      folds: `[n]` whole numbers: a sample's answer comes from a classifier that was trained on the
        other folds. At least two.
      out_of_fold: States the same without folds, as of a test set.

    Returns:
      Ranking and probabilities.

    Raises:
      ValueError: If an argument is not as described, or neither `folds` nor `out_of_fold` says that
        no label was trained on: a classifier knows those by heart, and finds none of them wrong.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> true = rng.integers(0, 3, 300)
      >>> probs = np.full((300, 3), 0.02) + 0.94 * np.eye(3)[true]
      >>> labels = np.where(np.arange(300) < 5, (true + 1) % 3, true)
      >>> found = label_errors(probs, labels, out_of_fold=True)
      >>> sorted(found.order[:5].tolist()), (found.suggested == true).all()
      ([0, 1, 2, 3, 4], np.True_)

    Source: Dawid and Skene, Maximum Likelihood Estimation of Observer Error-Rates Using the EM
      Algorithm, 1979; with the classifier in the place of the other observers.
    """
    p, y = _checked(probs, labels, looks)
    _check_folds(folds, out_of_fold, len(y))
    # Sorted by label, so that sums over the samples of a label are sums of neighboring rows.
    by_label = np.argsort(y, kind="stable")
    logs, labels_sorted = np.log(np.maximum(p[by_label], _LEAST_PROB)), y[by_label]
    every = -(-p.size // _ENOUGH)
    temperature, noise = _temperature(logs[::every], labels_sorted[::every])
    prior = special.softmax(logs / temperature, axis=1)
    noise, _ = _fit(prior, labels_sorted, noise, _ROUNDS)
    posterior = np.empty_like(prior)
    posterior[by_label] = _posterior(prior, labels_sorted, noise)[0]
    rows = np.arange(len(y))
    others = posterior.copy()
    others[rows, y] = 0
    # Not 1 minus its own, which rounds the smallest away.
    wrong = others.sum(axis=1)
    return LabelErrors(
        np.argsort(-wrong, kind="stable"),
        np.minimum(wrong, 1.0),
        posterior.argmax(axis=1),
        noise,
        temperature,
    )


def _checked(
    probs: ArrayLike, labels: ArrayLike, looks: Sequence[ArrayLike]
) -> tuple[np.ndarray, np.ndarray]:
    """The mean probabilities, float64 `[n, k]`, and the labels; ValueError unless they fit."""
    if not isinstance(looks, list | tuple):
        raise ValueError(
            f"looks: expected a list of probabilities [n, k], received {type(looks).__name__}"
        )
    answers = [_answers("probs", probs, labels)]
    answers += [_answers(f"looks[{place}]", look, labels) for place, look in enumerate(looks)]
    shapes = {one.probs.shape for one in answers if one.probs is not None}
    if len(shapes) > 1:
        received = " and ".join(str(list(shape)) for shape in sorted(shapes))
        raise ValueError(
            f"looks: expected probabilities of the shape of probs, received {received}"
        )
    mean = np.mean([np.asarray(one.probs, np.float64) for one in answers], axis=0)
    known = answers[0].labels
    assert known is not None
    return mean, known


def _answers(name: str, probs: ArrayLike, labels: ArrayLike) -> Predictions:
    values = checks.array(name, probs)
    if values.ndim != 2 or values.dtype.kind != "f" or not values.size:
        raise ValueError(
            f"{name}: expected floats [n, k], received {values.dtype} {list(values.shape)}"
        )
    try:
        predicted = np.argmax(values, axis=1)
        mcp = 1 - values.max(axis=1)
        return Predictions(checks.array("labels", labels), values, predicted, {REFERENCE: mcp})
    except ValueError as error:
        raise ValueError(str(error).replace("probs: ", f"{name}: ", 1)) from error


def _check_folds(folds: ArrayLike | None, out_of_fold: bool, rows: int) -> None:
    """ValueError unless somebody says that no label was trained on."""
    if folds is None:
        if not (isinstance(out_of_fold, bool | np.bool_) and out_of_fold):
            raise ValueError(
                "folds: expected the fold of each sample, or out_of_fold=True where every answer "
                "is of a classifier that was not trained on that label, received neither: labels "
                "that were trained on are known by heart; cross_val_predict of scikit-learn gives "
                "such answers"
            )
        return
    values = checks.array("folds", folds)
    if values.shape != (rows,) or values.dtype.kind not in "iu":
        raise ValueError(
            f"folds: expected whole numbers [{rows}], received {values.dtype} {list(values.shape)}"
        )
    if len(np.unique(values)) < 2:
        raise ValueError("folds: expected at least two folds, received one")


def _temperature(logs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The candidate temperature of the greatest likelihood, and its noise.

    Args:
      logs: Logarithms of the probabilities, `[n, k]`.
      labels: `[n]`, ascending.
    """
    noise, tried = _uniform(logs.shape[1], 0.05), []
    for temperature in _TEMPERATURES.tolist():
        prior = special.softmax(logs / temperature, axis=1)
        noise, likelihood = _fit(prior, labels, noise, _FIRST_ROUNDS)
        tried.append((likelihood, temperature, noise))
    _, temperature, noise = max(tried, key=lambda one: one[0])
    return temperature, noise


def _uniform(classes: int, rate: float) -> np.ndarray:
    """Noise that is the same for all pairs of classes."""
    return np.where(np.eye(classes, dtype=bool), 1 - rate, rate / (classes - 1))


def _posterior(
    prior: np.ndarray, labels: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each class `[n, k]` given the label, and that of the label `[n]`."""
    joint = prior * noise.T[labels]
    total = np.maximum(joint.sum(axis=1), np.finfo(np.float64).tiny)
    return joint / total[:, None], total


def _fit(
    prior: np.ndarray, labels: np.ndarray, noise: np.ndarray, rounds: int
) -> tuple[np.ndarray, float]:
    """The noise that explains the labels best, and the log likelihood.

    Args:
      prior: Class probabilities `[n, k]`.
      labels: `[n]`, ascending.
      noise: Where to begin.
      rounds: Most rounds.
    """
    classes = prior.shape[1]
    present, starts = np.unique(labels, return_index=True)
    weight = len(labels) / classes
    total = np.ones(1)
    for _ in range(rounds):
        posterior, total = _posterior(prior, labels, noise)
        counts = np.zeros((classes, classes))
        counts[:, present] = np.add.reduceat(posterior, starts, axis=0).T
        rate = 1 - np.trace(counts) / counts.sum()
        updated = counts + weight * _uniform(classes, rate)
        updated /= updated.sum(axis=1, keepdims=True)
        change = np.abs(updated - noise).max()
        noise = updated
        if change < _SMALL:
            break
    return noise, float(np.log(total).sum())
