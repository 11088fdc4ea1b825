"""Every way to get the uncertainty u of a prediction, by name.

A method is either a function `name(reference) -> Score`, which fits what it needs on training and
validation data and returns what scores any other samples, or it trains the estimator (`tcp`,
`ohem`, `btcp`). Every score is higher = less to be trusted. Most lie in [0, 1]; the raw ones, which
have no scale of their own, are marked `bounded=False` and can be mapped by `squash`.

NumPy and SciPy alone until `residual` is fitted: a command line can be checked against `METHODS`
without waiting for TensorFlow.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from btcp_tf import metrics

if TYPE_CHECKING:
    import keras

    from btcp_tf import estimators

KNN_NEIGHBORS = 50
"""Neighbor whose distance is `knn`'s score: that of Sun et al. for CIFAR-10."""
RELU_LAMBDA = 0.5
"""Weight of wrong answers in `relu`; correct ones have the rest. The authors' default."""

_TEMPERATURES = (0.05, 20.0)
_BLOCK_CELLS = 2**23
"""Distances held at once, in float32: with their order about 100 MB."""
_SPARE = 8
"""Candidates beyond the k nearest whose distances are computed exactly."""
_FLOAT32 = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True, eq=False)
class Outputs:
    """What a trained classifier leaves of n samples.

    Checked on construction; floats become float32, labels int64.

    Raises:
      ValueError: If the shapes do not fit together or a number is not finite; the message names the
        field and the first bad row.
    """

    features: np.ndarray
    """Input of the last dense layer, [n, d]."""
    logits: np.ndarray
    """[n, k], k > 1."""
    probs: np.ndarray
    """Softmax of the logits, [n, k]."""
    labels: np.ndarray | None = None
    """True classes, [n], integers in [0, k); None where no class is right or it is unknown."""
    sampled: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Mean probabilities [n, k] of the passes with dropout ("dropout") or of the ensemble's members
    ("ensemble")."""
    view: np.ndarray | None = None
    """[n, v + 1], from `estimators.View`; None: `residual` does without."""

    def __post_init__(self) -> None:
        logits = _finite("logits", self.logits, (None, None))
        n, k = logits.shape
        if k < 2:
            raise ValueError(f"logits: expected at least 2 classes, received shape {logits.shape}")
        fields = {
            "features": _finite("features", self.features, (n, None)),
            "logits": logits,
            "probs": _finite("probs", self.probs, (n, k)),
            "sampled": {
                name: _finite(f"sampled[{name!r}]", mean, (n, k))
                for name, mean in self.sampled.items()
            },
        }
        if self.view is not None:
            fields["view"] = _finite("view", self.view, (n, None))
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if labels.shape != (n,) or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"labels: expected integers of shape [{n}], "
                    f"received {labels.dtype} of shape {list(labels.shape)}"
                )
            good = (labels >= 0) & (labels < k)
            metrics.check_rows(good, labels, f"labels: expected classes 0 to {k - 1}")
            fields["labels"] = labels.astype(np.int64, copy=False)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __getitem__(self, rows: np.ndarray) -> "Outputs":
        """Those of some samples, a mask or their numbers."""
        return Outputs(
            self.features[rows],
            self.logits[rows],
            self.probs[rows],
            None if self.labels is None else self.labels[rows],
            {name: mean[rows] for name, mean in self.sampled.items()},
            None if self.view is None else self.view[rows],
        )

    @property
    def predicted(self) -> np.ndarray:
        """The most probable class, [n] int64."""
        return self.probs.argmax(axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What a method may be fitted on: never test data.

    Raises:
      ValueError: If labels are missing, shapes do not fit together, or a setting is out of range.
    """

    train: Outputs
    """With labels."""
    validation: Outputs
    """With labels."""
    kernel: np.ndarray
    """Of the last dense layer, [d, k]."""
    bias: np.ndarray
    """Of the last dense layer, [k]."""
    seed: int = 0
    """Of the control `random`."""
    alpha: float = 0.0
    """Share of each class that `trust_score` leaves out, in [0, 1)."""
    neighbors: int = 10
    """Training samples in the ball whose radius tells `trust_score` how sparse they are, itself
    among them."""
    folds: tuple[tuple[Outputs, Outputs], ...] = ()
    """Of further classifiers, each of what it was trained on and of what was kept from it, with
    labels: `residual` learns from the latter, too."""
    copies: tuple[tuple[Outputs, ...], ...] = ()
    """Answers to other versions of the samples that `residual` learns from, such as noisy ones: a
    tuple for validation, and one of as many for each of `folds`; empty: none."""
    distilled: bool = False
    """Whether `residual` learns 1 − the true class probability of `sampled["ensemble"]`, which
    validation and its copies then have, instead of right or wrong; without folds."""
    verbose: int = 0
    """1: `residual` shows how far it is."""
    facts: dict[str, str] = dataclasses.field(default_factory=dict)
    """Filled by methods that are fitted: how it went, by name."""

    def __post_init__(self) -> None:
        _labels("train", self.train)
        _labels("validation", self.validation)
        d, k = self.train.features.shape[1], self.train.logits.shape[1]
        of_validation = (self.validation.features.shape[1], self.validation.logits.shape[1])
        if of_validation != (d, k):
            raise ValueError(
                f"validation: expected {d} features and {k} classes as in train, "
                f"received {of_validation[0]} and {of_validation[1]}"
            )
        object.__setattr__(self, "kernel", _finite("kernel", self.kernel, (d, k)))
        object.__setattr__(self, "bias", _finite("bias", self.bias, (k,)))
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha: expected a number in [0, 1), received {self.alpha}")
        if self.neighbors < 1:
            raise ValueError(f"neighbors: expected at least 1, received {self.neighbors}")

    @functools.cached_property
    def held_out(self) -> "list[estimators.HeldOut]":
        """What `residual` learns from: the classifier's own samples, then those of the folds."""
        from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

        pairs = [(self.train, self.validation), *self.folds]
        copies = self.copies or ((),) * len(pairs)
        with_index = all(len(train.features) > 1 for train, _ in pairs)

        def seen(outputs: Outputs) -> estimators.Seen:
            return estimators.Seen(outputs.features, outputs.logits, outputs.view)

        return [
            estimators.HeldOut(
                seen(held_out),
                _labels("held out", held_out),
                (seen(train), _labels("train", train)) if with_index else None,
                tuple(seen(copy) for copy in others),
                tuple(
                    _sampled("residual", outputs, "ensemble")
                    for outputs in ((held_out, *others) if self.distilled else ())
                ),
            )
            for (train, held_out), others in zip(pairs, copies, strict=True)
        ]


Score = Callable[[Outputs], np.ndarray]
"""Outputs of n samples → uncertainty [n], finite, higher = less to be trusted."""


@dataclasses.dataclass(frozen=True)
class Method:
    """One entry of the comparison."""

    title: str
    """How tables and figures call it."""
    group: str
    """"paper": compared in the BTCP paper; "later": not; "control": says what a metric is worth."""
    prepare: Callable[[Reference], Score] | None = None
    """Fits the method; None where the estimator is trained, here or under `column_of`."""
    bounded: bool = True
    """Whether the score is a u in [0, 1]; otherwise it has no scale on which a tau would mean
    something."""
    gamma: float | None = None
    """For trained methods, the exponent of the focal factor; None takes the run's `gamma`."""
    hard_examples: bool = False
    """Whether the estimator learns from the hardest share of each batch alone (`ohem_fraction`)."""
    uses_labels: bool = False
    """Whether the score needs the labels of what it scores: no method, but a bound for methods."""
    column_of: str = ""
    """Another method whose u this one has; its decision threshold is its own."""
    samples: str = ""
    """What it needs of `Outputs.sampled`."""
    fits_graph: bool = False
    """Whether a SavedModel can compute the u that `prepare` fits."""

    @property
    def trained(self) -> bool:
        """Whether the method trains the estimator."""
        return self.prepare is None and not self.column_of

    @property
    def exported(self) -> bool:
        """Whether a SavedModel can answer its u."""
        return self.trained or self.fits_graph


def _finite(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> np.ndarray:
    """`values` as float32 of the given shape, where None is any size but 0."""
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        size > 0 if wanted is None else size == wanted
        for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype.kind != "f":
        sizes = ", ".join("> 0" if wanted is None else str(wanted) for wanted in shape)
        raise ValueError(
            f"{name}: expected floats of shape [{sizes}], "
            f"received {array.dtype} of shape {list(array.shape)}"
        )
    array = array.astype(np.float32, copy=False)
    bad = ~np.isfinite(array)
    if bad.any():
        cells, rows = bad.reshape(len(bad), -1), array.reshape(len(bad), -1)
        first = np.take_along_axis(rows, cells.argmax(axis=1)[:, None], axis=1)[:, 0]
        metrics.check_rows(~cells.any(axis=1), first, f"{name}: expected finite numbers")
    return array


def _labels(name: str, outputs: Outputs) -> np.ndarray:
    if outputs.labels is None:
        raise ValueError(f"{name}: expected outputs with labels, received none")
    return outputs.labels


# What the probabilities say.


def mcp(reference: Reference) -> Score:
    """1 − largest softmax probability (Hendrycks and Gimpel, 2017).

    Range [0, 1 − 1/k].
    """
    return lambda outputs: mcp_of(outputs.logits)


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


def entropy(reference: Reference) -> Score:
    """Entropy of the probabilities (Shannon, 1948), divided by log k.

    Range [0, 1].
    """
    return lambda outputs: _entropy(outputs.probs)


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
    labels = _labels("validation", reference.validation)
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
    wrong = validation.predicted != _labels("validation", validation)

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


# What the logits say.


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


# What many passes say.


def mc_dropout(reference: Reference) -> Score:
    """Entropy of the mean probabilities of many passes with dropout on, divided by log k (Gal and
    Ghahramani, 2016; u as in the ConfidNet protocol).

    Range [0, 1]. Needs `sampled["dropout"]`.
    """
    return lambda outputs: _entropy(_sampled("mc_dropout", outputs, "dropout"))


def ensemble(reference: Reference) -> Score:
    """Entropy of the mean probabilities of classifiers trained apart, divided by log k
    (Lakshminarayanan, Pritzel and Blundell, 2017).

    Range [0, 1]. Needs `sampled["ensemble"]`.
    """
    return lambda outputs: _entropy(_sampled("ensemble", outputs, "ensemble"))


def _entropy(probs: np.ndarray) -> np.ndarray:
    total = special.entr(probs.astype(np.float64)).sum(axis=1)
    return np.clip(total / np.log(probs.shape[1]), 0.0, 1.0)


def _sampled(method: str, outputs: Outputs, kind: str) -> np.ndarray:
    if kind not in outputs.sampled:
        received = ", ".join(sorted(outputs.sampled)) or "none"
        raise ValueError(
            f"{method}: expected sampled[{kind!r}] in the outputs, received {received}"
        )
    return outputs.sampled[kind]


# Where the features lie.


def trust_score(reference: Reference) -> Score:
    """d_pred / (d_pred + d_other): distances in feature space to the nearest training sample of the
    predicted and of any other class (Jiang et al., 2018).

    Their trust score is d_other / d_pred: 1 is u = 0.5 here. 0 / 0, a training sample that stands
    under two labels, gives 0.5 as well. The distance to a class without training samples is
    infinite: u = 1 where the predicted class has none, since nothing speaks for the answer, and
    u = 0 where all training samples are of the predicted class, since nothing speaks against it.

    With alpha > 0 each class first loses its sparse samples: as many as make up at most this share
    of the class, those with the largest distance to the `neighbors`-th nearest sample of the class,
    itself the first. Samples as sparse as one that stays stay, so at least one does. A class of
    fewer than `neighbors` samples takes the farthest of them. Range [0, 1].
    """
    labels = _labels("train", reference.train)
    classes = {
        int(c): _dense(reference.train.features[labels == c], reference.alpha, reference.neighbors)
        for c in np.unique(labels)
    }

    def score(outputs: Outputs) -> np.ndarray:
        predicted = outputs.predicted
        d_pred = np.full(len(predicted), np.inf)
        d_other = np.full(len(predicted), np.inf)
        for c, points in classes.items():
            d = _nearest(outputs.features, points)[:, 0]
            own = predicted == c
            d_pred[own] = d[own]
            np.minimum(d_other, d, out=d_other, where=~own)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            trust = d_other / d_pred
        return np.where(np.isnan(trust), 0.5, 1.0 / (1.0 + trust))

    return score


def _dense(points: np.ndarray, alpha: float, neighbors: int) -> np.ndarray:
    """`points` [m, d] without the share alpha of the sparsest."""
    # A hair more, so that 0.29 of 100 is 29.
    dropped = int(alpha * len(points) + 1e-9)
    if not dropped:
        return points
    radius = _nearest(points, points, neighbors)[:, -1]
    return points[radius <= np.sort(radius)[-1 - dropped]]


def knn(reference: Reference) -> Score:
    """Distance to the 50th nearest training sample, features scaled to length 1 (Sun et al., 2022).

    To the farthest where there are fewer. Features that are all 0 stay 0. Raw; in [0, 2].
    """
    points = _unit(reference.train.features)
    return lambda outputs: _nearest(_unit(outputs.features), points, KNN_NEIGHBORS)[:, -1]


def _unit(features: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.finfo(np.float32).tiny)


def _nearest(queries: np.ndarray, points: np.ndarray, k: int = 1) -> np.ndarray:
    """Distances to the nearest points, exhaustively, in blocks of bounded memory.

    A float32 matrix product finds k + 8 candidates for each query; their distances are then
    computed from differences in float64, so that the distance to a copy is exactly 0. The
    candidates are right up to the product's rounding, about 1e-6 of the squared extent of `points`:
    only where the squared distances of more than 8 points differ by less can one of them stand for
    another.

    Args:
      queries: [n, d] float32.
      points: [m, d] float32, m > 0.
      k: How many points, at least 1; at most m are taken.

    Returns:
      [n, min(k, m)] float64, ascending.
    """
    (m, d), n = points.shape, len(queries)
    k = min(k, m)
    candidates = min(k + _SPARE, m)
    # About their mean the points are short, which keeps the product's rounding small.
    center = points.mean(axis=0, dtype=np.float64).astype(np.float32)
    shifted = points - center
    # |p|² / 2 − q·p ranks the points by their distance to q. One product, with a row of halves.
    lifted = np.vstack([-shifted.T, np.square(shifted).sum(axis=1) / 2])
    found = np.empty((n, k))
    step = max(1, _BLOCK_CELLS // max(m, candidates * d))
    for start in range(0, n, step):
        block = queries[start : start + step]
        ranks = np.column_stack([block - center, np.ones(len(block), np.float32)]) @ lifted
        best = np.argpartition(ranks, candidates - 1, axis=1)[:, :candidates]
        difference = np.subtract(block[:, None], points[best], dtype=np.float64)
        squared = np.einsum("ncd,ncd->nc", difference, difference)
        found[start : start + step] = np.sqrt(np.sort(squared, axis=1)[:, :k])
    return found


def mahalanobis(reference: Reference) -> Score:
    """Smallest squared Mahalanobis distance of the features to a class mean, under one covariance
    for all classes (Lee et al., 2018).

    Mean and covariance of the training samples, within their labels. The covariance is inverted on
    the directions in which features vary (pseudo-inverse): one without variance, as a ReLU that
    never fires makes it, adds nothing. Without variance means: an eigenvalue of at most d eps² of
    the largest one, eps being float32's, so a spread that rounding alone explains. Raw; not
    negative.
    """
    x = reference.train.features.astype(np.float64)
    classes, index = np.unique(_labels("train", reference.train), return_inverse=True)
    means = np.stack([x[index == c].mean(axis=0) for c in range(len(classes))])
    whiten = _whitening(x - means[index])
    centers = means @ whiten

    def score(outputs: Outputs) -> np.ndarray:
        z = outputs.features @ whiten
        return np.min([np.square(z - center).sum(axis=1) for center in centers], axis=0)

    return score


def relative_mahalanobis(reference: Reference) -> Score:
    """`mahalanobis` minus the squared distance under one Gaussian for all classes (Ren et al.,
    2021).

    Each of the two covariances is inverted on its own directions of variance. Raw.
    """
    of_class = mahalanobis(reference)
    x = reference.train.features.astype(np.float64)
    mean = x.mean(axis=0)
    whiten = _whitening(x - mean)
    center = mean @ whiten

    def score(outputs: Outputs) -> np.ndarray:
        z = outputs.features @ whiten
        return of_class(outputs) - np.square(z - center).sum(axis=1)

    return score


def _whitening(centered: np.ndarray) -> np.ndarray:
    """W [d, r] with W Wᵀ = pseudo-inverse of the covariance of rank r, from [n, d] float64."""
    values, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
    kept = values > values[-1] * len(values) * _FLOAT32**2
    return vectors[:, kept] / np.sqrt(values[kept])


def vim(reference: Reference) -> Score:
    """alpha · length of the features outside their principal space − log of the sum of exp(logit)
    (ViM; Wang et al., 2022).

    Features are taken from the point whose logits are all 0 (the smallest such change of the
    origin). The principal space is spanned by the d // 2 largest directions of training features;
    the authors choose 512 of 768 and 1,000 of 2,048 and say nothing of smaller d. alpha makes the
    mean length on training data the mean of the largest logit. Where training features have no
    length outside (at most float32's rounding of them), alpha is 0, which leaves `energy`. Raw.
    """
    kernel, bias = reference.kernel.astype(np.float64), reference.bias.astype(np.float64)
    origin = -np.linalg.pinv(kernel.T) @ bias
    x = reference.train.features - origin
    d = x.shape[1]
    _, vectors = np.linalg.eigh(x.T @ x / len(x))
    outside = vectors[:, : d - d // 2]
    length = np.linalg.norm(x @ outside, axis=1).mean()
    whole = np.linalg.norm(x, axis=1).mean()
    largest = reference.train.logits.max(axis=1).mean(dtype=np.float64)
    alpha = largest / length if length > _FLOAT32 * whole else 0.0
    of_logits = energy(reference)

    def score(outputs: Outputs) -> np.ndarray:
        virtual = np.linalg.norm((outputs.features - origin) @ outside, axis=1)
        return alpha * virtual + of_logits(outputs)

    return score


def residual(reference: Reference) -> Score:
    """MCP, corrected by the whole answer, by second heads on the features and on the image itself,
    and by the training samples that are nearest in either: logit(u) = a · logit(1 − largest
    probability) + b + h · evidence; see `estimators.fit_residual`.

    Fitted by cross-validated logistic regression to the errors of the validation samples, and to
    those of further classifiers in `folds`, and of `copies` of both. Where it does not beat MCP on
    the samples themselves, it is MCP, calibrated. Range [0, 1].
    """
    from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

    return _residual("residual", reference, estimators.EVIDENCE)


def residual_no_index(reference: Reference) -> Score:
    """`residual` without the nearest training samples: nothing of them goes into the model.

    Range [0, 1].
    """
    from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

    return _residual("residual_no_index", reference, estimators.NO_INDEX)


@dataclasses.dataclass(frozen=True)
class ResidualScore:
    """A fitted residual estimator: u of outputs, and the parts that a model is made of."""

    readers: "dict[str, keras.layers.Layer]"
    weights: "estimators.Weights"
    fit: "estimators.Fit"
    held_out_u: np.ndarray
    """u `[n]` of the validation samples, each by a fit that has not seen it."""

    def __call__(self, outputs: Outputs) -> np.ndarray:
        from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

        return estimators.score_residual(self.readers, self.weights, outputs)

    def contributions(self, outputs: Outputs) -> tuple[tuple[str, ...], np.ndarray]:
        """What moved logit(u) of each answer, and by how much: see `estimators.contributions`."""
        from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

        return estimators.contributions(self.readers, self.weights, outputs, self.fit.baseline)


def _residual(name: str, reference: Reference, allowed: tuple[str, ...]) -> ResidualScore:
    from btcp_tf import estimators  # TensorFlow, which the rest of this module does without.

    if reference.verbose:
        print(f"fitting {name}", flush=True)
    own, *folds = reference.held_out
    fit, readers, weights, held_out_u = estimators.fit_residual(
        own, folds, allowed=allowed, seed=reference.seed, verbose=reference.verbose
    )
    reference.facts[name] = fit.summary
    return ResidualScore(readers, weights, fit, held_out_u)


# Controls.


def constant(reference: Reference) -> Score:
    """0.5 for every sample: knows nothing."""
    return lambda outputs: np.full(len(outputs.probs), 0.5)


def random(reference: Reference) -> Score:
    """Uniform random numbers: knows nothing, without ties.

    They depend on the seed and on the samples together: the same set gets the same numbers, and two
    sets of one size, which OOD detection tells apart, do not get equal ones. Range [0, 1).
    """

    def score(outputs: Outputs) -> np.ndarray:
        of_set = zlib.crc32(np.ascontiguousarray(outputs.logits).tobytes())
        return np.random.default_rng([reference.seed, of_set]).random(len(outputs.probs))

    return score


def mcp_cubed(reference: Reference) -> Score:
    """1 − largest probability³: MCP's ranking, moved towards 1.

    What changes against `mcp` was not learned. Range [0, 1 − 1/k³].
    """
    of_mcp = mcp(reference)

    # From MCP's own u, in float64: equal stays equal and different stays different.
    def score(outputs: Outputs) -> np.ndarray:
        u = of_mcp(outputs).astype(np.float64)
        return u * (3.0 - 3.0 * u + u**2)  # 1 − (1 − u)³, exact near 0.

    return score


def tcp_oracle(reference: Reference) -> Score:
    """1 − probability of the true class, read from the labels: what `tcp` and `btcp` estimate.

    Range [0, 1]. Raises ValueError for outputs without labels.
    """

    def score(outputs: Outputs) -> np.ndarray:
        labels = _labels("tcp_oracle", outputs)
        return np.clip(1.0 - outputs.probs[np.arange(len(labels)), labels], 0.0, 1.0)

    return score


def squash(score: ArrayLike, validation_score: ArrayLike) -> np.ndarray:
    """A raw score as u: 1 / (1 + exp(−(s − median) / IQR)), median and IQR of validation data.

    Where the IQR is 0 the standard deviation takes its place, and 1 where that is 0 too.

    Args:
      score: [n], finite, higher = less to be trusted.
      validation_score: [m], the same method's on validation data, finite.

    Returns:
      u [n] in [0, 1], float64, rising with the score; a score very far out gives exactly 0 or 1.
    """
    s, known = (np.asarray(x, np.float64) for x in (score, validation_score))
    for name, column in (("score", s), ("validation_score", known)):
        if column.ndim != 1 or not column.size:
            raise ValueError(f"{name}: expected shape [n], n > 0, received {list(column.shape)}")
        metrics.check_rows(np.isfinite(column), column, f"{name}: expected finite numbers")
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    scale = high - low or known.std() or 1.0
    with np.errstate(over="ignore"):
        return special.expit((s - median) / scale)


METHODS: dict[str, Method] = {
    "mcp": Method("MCP", "paper", mcp, fits_graph=True),
    "mc_dropout": Method("MC dropout", "paper", mc_dropout, samples="dropout"),
    "trust_score": Method("TrustScore", "paper", trust_score),
    # gamma = 0 leaves the plain squared error of the true class probability: ConfidNet's loss
    # (Corbière et al., 2019).
    "tcp": Method("TCP", "paper", gamma=0.0),
    # The same loss on the examples of each batch with the largest loss (Shrivastava et al., 2016).
    "ohem": Method("OHEM", "paper", gamma=0.0, hard_examples=True),
    "thresholding": Method("Thresholding", "paper", column_of="tcp"),
    "btcp": Method("BTCP", "paper"),
    "entropy": Method("Entropy", "later", entropy),
    "margin": Method("Margin", "later", margin),
    "max_logit": Method("Max logit", "later", max_logit, bounded=False),
    "energy": Method("Energy", "later", energy, bounded=False),
    "temperature": Method("Temperature", "later", temperature),
    "doctor": Method("Doctor", "later", doctor),
    "relu": Method("RelU", "later", relu, bounded=False),
    "knn": Method("kNN", "later", knn, bounded=False),
    "mahalanobis": Method("Mahalanobis", "later", mahalanobis, bounded=False),
    "relative_mahalanobis": Method(
        "Relative Mahalanobis", "later", relative_mahalanobis, bounded=False
    ),
    "vim": Method("ViM", "later", vim, bounded=False),
    "ensemble": Method("Ensemble", "later", ensemble, samples="ensemble"),
    "residual": Method("Residual", "later", residual, fits_graph=True),
    "residual_no_index": Method("Residual, no index", "later", residual_no_index, fits_graph=True),
    "constant": Method("Constant", "control", constant),
    "random": Method("Random", "control", random),
    "mcp_cubed": Method("MCP cubed", "control", mcp_cubed),
    "tcp_oracle": Method("TCP oracle", "control", tcp_oracle, uses_labels=True),
}
"""By name, in the order of tables."""
