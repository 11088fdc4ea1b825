"""Whether a classifier can be right: does it know more than how frequent the classes are?

A classifier that is fed other pixels than it was trained on, or whose classes are in another order
than those of the labels, answers without an error. No TensorFlow here.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special, stats

LEAST_GAIN = 0.05
"""Share of the entropy of the class frequencies by which a classifier must lower it, at least. Of
36 untrained networks of ten classes (digits, Fashion-MNIST, CIFAR-10) the lower end of the interval
stayed below it for all. Of untrained networks of two classes 0 % (cats and dogs) to 35 % (zeros and
ones) do lower it so: by chance, and yet truly; see `adopted`."""

DOUBTFUL_GAIN = 0.1
"""From this share on a classifier is not refused where the interval alone is too wide: the samples
are too few to tell, or the classes too rare."""

MOST_ERRORS_LEFT = 0.5
"""A class order, or a way to scale pixels, is taken for the right one if it leaves less than this
share of the errors."""

_FEWEST = 10
"""With fewer samples there is no verdict."""

_FOLDS = 5

_STEEPEST = 100.0
"""Largest steepness of logits in units of their standard deviation."""

_TAIL = 0.01
"""Share of each class's logits, on either side, that is cut off: a few that explode must not decide
for all."""

_CLEARLY = 1e-3
"""Probability, at most, of as many more right answers by chance."""


@dataclasses.dataclass(frozen=True)
class Plausibility:
    """How plausible a classifier is, by labeled samples; from `examine`."""

    n: int
    """Number of samples."""
    accuracy: float
    gain: float
    """Mean cross-entropy of the class frequencies minus the classifier's, in nats."""
    low: float
    high: float
    """95 % interval of `gain`, paired by sample."""
    entropy: float
    """Mean cross-entropy of the class frequencies, in nats."""
    order: tuple[int, ...] = ()
    """For each label the answer that stands for it, if another class order fits; else empty."""
    problem: str = ""
    """Why the classifier cannot be right; "" where nothing speaks against it, or too few samples
    to tell."""


def examine(
    logits: np.ndarray, labels: np.ndarray, class_names: Sequence[str] = ()
) -> Plausibility:
    """Compares a classifier with the frequencies of the classes, and looks for another class order.

    Cross-entropies are out of fold: one steepness, at least 0, and the frequencies are fitted to
    the other folds, where the mean logit of each class is subtracted. So neither the scale of the
    logits (a saturated softmax) nor other class frequencies in training make a classifier look
    poor, and none that knows nothing, or takes one class for another, can look good. Rare classes
    count by their cross-entropy, not by the accuracy.

    Args:
      logits: `[n, k]`, finite.
      labels: `[n]`, whole numbers from 0 to k - 1, of samples that the classifier has not seen.
      class_names: k words for messages; default: the numbers.

    Returns:
      With `problem` if the interval of the gain does not lie above `LEAST_GAIN` times the entropy
      and the gain itself is below `DOUBTFUL_GAIN` times it, or if another class order leaves less
      than `MOST_ERRORS_LEFT` of the errors.

    >>> random = np.random.default_rng(0)
    >>> labels = random.integers(0, 3, 200)
    >>> logits = 2 * np.eye(3)[labels] + random.normal(size=(200, 3))
    >>> examine(logits, labels).problem
    ''
    >>> examine(logits, (labels + 1) % 3).order
    (2, 0, 1)
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels, np.int64)
    n, right = len(labels), logits.argmax(axis=1) == labels
    accuracy = float(right.mean()) if n else np.nan
    if n < _FEWEST or len(np.unique(labels)) < 2:
        return Plausibility(n, accuracy, np.nan, np.nan, np.nan, np.nan)
    gains, frequencies = _gains(logits, labels)
    gain, entropy = float(gains.mean()), float(frequencies.mean())
    half = stats.t.ppf(0.975, n - 1) * gains.std(ddof=1) / np.sqrt(n)
    low, high = gain - half, gain + half
    order = class_order(logits.argmax(axis=1), labels, logits.shape[1])
    reasons = []
    if low <= LEAST_GAIN * entropy and gain < DOUBTFUL_GAIN * entropy:
        reasons.append(
            f"its cross-entropy is not clearly lower than the {entropy:.4g} of the class "
            f"frequencies: by {gain:.3g} with the interval [{low:.3g}, {high:.3g}], "
            f"expected more than {LEAST_GAIN * entropy:.3g}"
        )
    if order:
        reasons.append(order_text(order, class_names))
    problem = f"right on {accuracy:.1%} of {n} samples, {'; '.join(reasons)}" if reasons else ""
    return Plausibility(n, accuracy, gain, low, high, entropy, order, problem)


def gain(logits: np.ndarray, labels: np.ndarray) -> float:
    """`Plausibility.gain` alone, of logits `[n, k]` and labels `[n]`."""
    return float(_gains(np.asarray(logits, np.float64), labels)[0].mean())


def clearly_better(right: np.ndarray, before: np.ndarray) -> bool:
    """Whether answers leave less than `MOST_ERRORS_LEFT` of the errors that there were before.

    Args:
      right: `[n]` bool, which answers are right.
      before: The same of other answers to the same samples.

    >>> clearly_better(np.arange(50) != 0, np.arange(50) > 25)
    True
    """
    gained, lost = int((right & ~before).sum()), int((before & ~right).sum())
    if not gained > lost:
        return False
    is_fewer = (~right).sum() < MOST_ERRORS_LEFT * (~before).sum()
    by_chance = stats.binomtest(gained, gained + lost, alternative="greater").pvalue
    return bool(is_fewer and by_chance < _CLEARLY)


def _gains(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Out of fold, `[n]` each: by how much the classifier lowers the cross-entropy of the class
    frequencies, and that one."""
    n, classes = logits.shape
    fold = np.random.default_rng(0).permutation(n) % _FOLDS
    own, frequencies = np.empty(n), np.empty(n)
    for number in range(_FOLDS):
        apart, seen = fold == number, fold != number
        counts = np.bincount(labels[seen], minlength=classes) + 0.5
        prior = np.log(counts / counts.sum())
        z = np.clip(logits, *np.quantile(logits[seen], (_TAIL, 1 - _TAIL), axis=0))
        z -= z[seen].mean(axis=0)
        z /= z[seen].std() or 1.0

        def cross_entropy(
            steepness: float, rows: np.ndarray, z: np.ndarray = z, prior: np.ndarray = prior
        ) -> np.ndarray:
            scores = steepness * z[rows] + prior
            of_label = np.take_along_axis(scores, labels[rows, None], axis=1)[:, 0]
            return special.logsumexp(scores, axis=1) - of_label

        # Convex in the steepness.
        best = optimize.minimize_scalar(
            lambda steepness, seen=seen, loss=cross_entropy: loss(steepness, seen).mean(),
            bounds=(0.0, _STEEPEST),
            method="bounded",
        )
        own[apart], frequencies[apart] = cross_entropy(best.x, apart), cross_entropy(0.0, apart)
    return frequencies - own, frequencies


def class_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> tuple[int, ...]:
    """The answer that stands for each label; empty if they are in order as they are.

    Found on every other sample, and tried on the rest.

    Args:
      predicted: Answers `[n]`, whole numbers from 0 to classes - 1.
      labels: `[n]`, of the same numbers.
      classes: Their number.
    """
    rows = np.random.default_rng(0).permutation(len(labels))
    order = _assignment(predicted[rows[::2]], labels[rows[::2]], classes)
    answers, truth = predicted[rows[1::2]], labels[rows[1::2]]
    if not clearly_better(answers == order[truth], answers == truth):
        return ()
    return tuple(int(answer) for answer in _assignment(predicted, labels, classes))


def _assignment(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    confusion = np.zeros((classes, classes))
    np.add.at(confusion, (labels, predicted), 1)
    # Shares of each class: a frequent one must not decide for the others.
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # Of equals, the order as it is.
    return optimize.linear_sum_assignment(shares + 1e-9 * np.eye(classes), maximize=True)[1]


def order_text(order: Sequence[int], class_names: Sequence[str] = ()) -> str:
    """A class order of `class_order` as text; the names are those of the labels."""
    classes = len(order)
    class_names = class_names or [str(label) for label in range(classes)]
    shift = order[0]
    head = "its classes are in another order than those of the labels"
    if all(answer == (label + shift) % classes for label, answer in enumerate(order)):
        if classes == 2:
            return f"{head}: the two are exchanged"
        shown = shift if shift <= classes // 2 else shift - classes
        return f"{head}, shifted by {shown:+d}: its answer {order[0]} is {class_names[0]}"
    moved = [label for label, answer in enumerate(order) if answer != label]
    pairs = [f"{order[label]} is {class_names[label]}" for label in moved[:10]]
    more = f" and {len(moved) - 10} more" if len(moved) > 10 else ""
    return f"{head}: its answer {', '.join(pairs)}{more}"
