"""Methods that compare features with those of the training samples."""

import numpy as np

from btcp_tf.methods import answers
from btcp_tf.methods.outputs import Outputs, Reference, Score, labels_of

KNN_NEIGHBORS = 50
"""Neighbor whose distance is `knn`'s score: that of Sun et al. for CIFAR-10."""

_BLOCK_CELLS = 2**23
"""Differences held at once, in float64: 64 MB."""

_SPARE = 8
"""Candidates beyond the k nearest whose distances are computed exactly."""

_FLOAT32 = float(np.finfo(np.float32).eps)


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

    The second sample is nearer to the other class than to its own:

    >>> train = Outputs.from_probs(np.eye(2), labels=[0, 1], features=[[0.0], [3.0]])
    >>> outputs = Outputs.from_probs([[0.9, 0.1], [0.6, 0.4]], features=[[1.0], [2.0]])
    >>> score = trust_score(Reference(train, train, np.ones((1, 2)), np.zeros(2)))
    >>> score(outputs).round(4).tolist()
    [0.3333, 0.6667]
    """
    labels = labels_of("train", reference.train)
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

    >>> train = Outputs.from_probs([[0.9, 0.1]], labels=[0], features=[[2.0, 0.0]])
    >>> outputs = Outputs.from_probs([[0.9, 0.1], [0.5, 0.5]], features=[[1.0, 0.0], [-1.0, 0.0]])
    >>> knn(Reference(train, train, np.eye(2), np.zeros(2)))(outputs).tolist()
    [0.0, 2.0]
    """
    points = _unit(reference.train.features)
    return lambda outputs: _nearest(_unit(outputs.features), points, KNN_NEIGHBORS)[:, -1]


def _unit(features: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.finfo(np.float32).tiny)


def _nearest(queries: np.ndarray, points: np.ndarray, k: int = 1) -> np.ndarray:
    """Distances to the nearest points, exhaustively.

    scikit-learn finds k + 8 candidates for each query in float32; their distances are then computed
    from differences in float64, so that the distance to a copy is exactly 0. The candidates are
    right up to the rounding of a product, about 1e-6 of the squared extent of `points`: only where
    the squared distances of more than 8 points differ by less can one of them stand for another.

    Args:
      queries: [n, d] float32.
      points: [m, d] float32, m > 0.
      k: How many points, at least 1; at most m are taken.

    Returns:
      [n, min(k, m)] float64, ascending.
    """
    from sklearn.neighbors import NearestNeighbors

    k = min(k, len(points))
    candidates = min(k + _SPARE, len(points))
    # About their mean the points are short, which keeps the product's rounding small.
    center = points.mean(axis=0, dtype=np.float64).astype(np.float32)
    search = NearestNeighbors(n_neighbors=candidates, algorithm="brute").fit(points - center)
    best = search.kneighbors(queries - center, return_distance=False)
    distances = np.empty((len(queries), k))
    step = max(1, _BLOCK_CELLS // (candidates * points.shape[1]))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        difference = np.subtract(queries[rows, None], points[best[rows]], dtype=np.float64)
        squared = np.einsum("ncd,ncd->nc", difference, difference)
        distances[rows] = np.sqrt(np.sort(squared, axis=1)[:, :k])
    return distances


def mahalanobis(reference: Reference) -> Score:
    """Smallest squared Mahalanobis distance of the features to a class mean, under one covariance
    for all classes (Lee et al., 2018).

    Mean and covariance of the training samples, within their labels. The covariance is inverted on
    the directions in which features vary (pseudo-inverse): one without variance, as a ReLU that
    never fires makes it, adds nothing. Without variance means: an eigenvalue of at most d eps² of
    the largest one, eps being float32's, so a spread that rounding alone explains. Raw; not
    negative.

    >>> train = Outputs.from_probs([[0.9, 0.1]] * 2, labels=[0, 0], features=[[-1.0], [1.0]])
    >>> outputs = Outputs.from_probs([[0.9, 0.1]] * 2, features=[[0.0], [3.0]])
    >>> mahalanobis(Reference(train, train, np.ones((1, 2)), np.zeros(2)))(outputs).tolist()
    [0.0, 9.0]
    """
    x = reference.train.features.astype(np.float64)
    classes, index = np.unique(labels_of("train", reference.train), return_inverse=True)
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

    With one class there is nothing to tell apart:

    >>> train = Outputs.from_probs([[0.9, 0.1]] * 2, labels=[0, 0], features=[[-1.0], [1.0]])
    >>> reference = Reference(train, train, np.ones((1, 2)), np.zeros(2))
    >>> relative_mahalanobis(reference)(train).tolist()
    [0.0, 0.0]
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

    Training features lie along the first axis; the second sample does not:

    >>> x, logits, probs = np.float32([[[1, 0.1], [-1, 0.1]], [[2, 0], [0, 2]], [[0.9, 0.1]] * 2])
    >>> train = Outputs(x, logits, probs, labels=np.array([0, 1]))
    >>> u = vim(Reference(train, train, np.eye(2), np.zeros(2)))(
    ...     Outputs(np.float32([[1, 0], [1, 2]]), logits, probs)
    ... )
    >>> bool(u[1] > u[0])
    True
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
    of_logits = answers.energy(reference)

    def score(outputs: Outputs) -> np.ndarray:
        virtual = np.linalg.norm((outputs.features - origin) @ outside, axis=1)
        return alpha * virtual + of_logits(outputs)

    return score
