"""A reference of any length: blocks of it in memory, and an index of it that is bounded."""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from btcp_tf.networks import evidence_layers
from btcp_tf.networks.evidence_layers import NeighborEvidence

LARGEST = 65_536
"""Vectors in an index at most."""

NUMBERS = 2**24
"""Numbers in an index at most; vectors that are too wide for it are projected."""

_EXACT = 2**22
"""Numbers in an index at most that is kept in 32 bits, 16 MiB; a larger one is kept in 8, which
loses next to nothing (`python -m benchmarks.index_size`): 16 MiB, too, at most."""

_IMAGE_AXES = 64
"""Principal axes along which `image_neighbors` measures distances."""

BLOCK = 65_536
"""Rows in memory at once."""

_OF_A_CLASS = 1024
"""Samples of a class that are grouped at once: so the time for all grows as their number."""

_QUERIES = 4096
"""Rows that are searched for at once."""

_ROUNDS = 5
"""Of k-means: later ones move hardly any sample."""


class Moments(NamedTuple):
    """Of columns, `[d]` each."""

    mean: np.ndarray
    spread: np.ndarray
    """Standard deviations."""
    largest: np.ndarray
    """Absolute values."""


def moments(vectors: np.ndarray, faint: float = 0.0) -> Moments:
    """Moments of the points of a reference.

    Args:
      vectors: Features `[n, d]`, or views `[n, d + 1]`; perhaps in a file.
      faint: See `evidence_layers.faded`.

    >>> moments(np.array([[1.0, 2.0], [3.0, 2.0]], np.float32)).spread.tolist()
    [1.0, 0.0]
    """
    parts = [
        (len(block), block.mean(axis=0), block.std(axis=0), np.abs(block).max(axis=0))
        for block in _blocks(vectors, faint)
    ]
    counts, means, spreads, largest = map(np.array, zip(*parts, strict=True))
    if len(parts) == 1:
        return Moments(means[0], spreads[0], largest[0])
    shares = counts[:, None] / counts.sum()
    mean = (shares * means).sum(axis=0)
    variance = (shares * (np.square(spreads) + np.square(means - mean))).sum(axis=0)
    moved = (mean, np.sqrt(variance), largest.max(axis=0))
    return Moments(*(values.astype(np.float32) for values in moved))


def _blocks(vectors: np.ndarray, faint: float) -> Iterator[np.ndarray]:
    for start in range(0, len(vectors), BLOCK):
        yield evidence_layers.as_points(vectors[start : start + BLOCK], faint)


def condensed(
    vectors: np.ndarray, labels: np.ndarray, most: int, faint: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Points that stand for a reference, each the mean of near samples of one class.

    Each class keeps its share of the points. It is divided at random into parts of about 1,024
    samples, and each of these into groups by k-means.

    Args:
      vectors: Features `[n, d]`, or views `[n, d + 1]`; perhaps in a file.
      labels: `[n]`.
      most: Points at most; at least one of each class is there even so.
      faint: See `evidence_layers.faded`.
      seed: Seed of the parts and of the groups.

    Returns:
      Points float32 `[m, d]`, and their labels `[m]`.

    >>> vectors = np.array([[0.0], [0.1], [5.0], [5.1], [9.0]], np.float32)
    >>> points, labels = condensed(vectors, np.array([0, 0, 0, 0, 1]), 3)
    >>> points.shape, labels.tolist()
    ((3, 1), [0, 0, 1])
    """
    random = np.random.default_rng(seed)
    points, of = [], []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        wanted = max(1, most * len(rows) // len(labels))
        parts = np.array_split(rows, min(wanted, -(-len(rows) // _OF_A_CLASS)))
        for number, part in enumerate(parts):
            count = wanted * (number + 1) // len(parts) - wanted * number // len(parts)
            # In order: a file is read forwards.
            own = evidence_layers.as_points(vectors[np.sort(part)], faint)
            points.append(_groups(own, count, random))
            of.append(np.full(len(points[-1]), label))
    return np.concatenate(points), np.concatenate(of)


def _groups(points: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Means `[m, d]` of at most so many groups of points `[n, d]`, by k-means."""
    from scipy import sparse

    means = points[random.choice(len(points), min(count, len(points)), replace=False)]
    if len(means) == len(points):
        return means
    for _ in range(_ROUNDS):
        # Far from the origin, rounding would swamp the distances.
        middle = means.mean(axis=0)
        apart = means - middle
        ranks = np.square(apart).sum(axis=1) - 2 * (points - middle) @ apart.T
        group = ranks.argmin(axis=1)
        members = np.bincount(group, minlength=len(means))
        belongs = sparse.csr_array(
            (np.ones(len(points), np.float32), (group, np.arange(len(points)))),
            shape=(len(means), len(points)),
        )
        means = (belongs @ points)[members > 0] / members[members > 0, None]
    return means.astype(np.float32)


def axes_of(name: str, size: int, width: int) -> int:
    """Principal axes along which an index measures distances; 0: between vectors as they are.

    >>> axes_of("neighbors", 10_000, 512), axes_of("neighbors", 65_536, 512)
    (0, 256)
    """
    if name.startswith("image_"):
        return min(_IMAGE_AXES, width)
    return NUMBERS // size if size * width > NUMBERS else 0


def bits_of(size: int, width: int) -> int:
    """Bits of each number in an index of vectors of this width.

    >>> bits_of(10_000, 128), bits_of(65_536, 256)
    (32, 8)
    """
    return 8 if size * width > _EXACT else 32


def search(layer: NeighborEvidence, vectors: np.ndarray) -> np.ndarray | None:
    """The nearest samples as `NeighborEvidence` itself finds them, by faiss, which is faster.

    Args:
      layer: Its index is searched, exhaustively.
      vectors: Features `[n, d]`, or views `[n, d + 1]`.

    Returns:
      Places in the index `[n, c]`, for the layer's argument of that name; None: faiss is not
      installed (`pip install faiss-cpu`).
    """
    try:
        import faiss
    except ImportError:
        return None
    points = layer.decoded()
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)
    starts = range(0, len(vectors), _QUERIES)
    turned = (layer.turned(vectors[start : start + _QUERIES]) for start in starts)
    found = [index.search(keras.ops.convert_to_numpy(part), layer.candidates) for part in turned]
    return np.concatenate([places for _, places in found]).astype(np.int32)
