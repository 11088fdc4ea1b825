"""Keras layers of the residual estimator: what each kind of evidence computes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from btcp_tf.networks.evidence_arrays import LEAST_LOG_PROB, TOP

_PACKAGE = "btcp_tf"

NEIGHBORS = 64
"""Nearest samples that are looked at, unless there are fewer."""

SIDE = 28
"""Sides of the images that a `View` is computed from, in pixels; others are brought to it."""

_CELL = 4

_DIRECTIONS = 8

_FLAT = 0.4  # Energy of gradients next to which what a cell shows is not blown up.

_FADED = 0.05  # Of the usual contrast: a few gray levels. Images of less show noise.

_COUNTS = {1: (5, 10, 20, 50), 2: (8, 16, 32, 64), 3: (8, 16, 32, 64)}  # By version.

_BLOCK = 32_768

_GROUP = 16  # Points of which the nearest is found first.

_DECODED = 8192  # Points of 8 bits that are turned to floats at once.

# Multiply-adds that take as long, see `NeighborEvidence.overhead`: for each point that is found and
# each doubling of their number; for each point; for each number of 8 bits.
_FOUND, _PASSED, _DECODED_EACH = 4096, 32, 0.25

_SPARE = 14  # Candidates beyond the nearest: rounding may rank them among these.

_SAME = 1e-5  # Of the spread: points that are this close are one, computed twice.

_NEAR = 3e-2  # Of the spread: below it all distances are alike.

_DOUBT = 0.05  # Weight of not knowing, beside at most 1 for each neighbor.


class Float32Layer(layers.Layer):
    """A layer in float32 whatever the policy: half precision has too few digits for u near 0."""

    _arguments: Sequence[str] = ()
    """Arguments of `__init__` that a file keeps; attributes of the same names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"dtype": "float32", **settings})

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._arguments}
        return {**super().get_config(), **own}

    def _constant(
        self, name: str, *shape: int, start: str = "zeros", dtype: str | None = None
    ) -> Any:
        """A weight that no training changes."""
        return self.add_weight(
            shape=shape, initializer=start, trainable=False, dtype=dtype, name=name
        )


class _Versioned(Float32Layer):
    """A layer whose formula has changed; one from a file of btcp_tf 0.1.0 keeps the first."""

    _arguments: Sequence[str] = ("version",)

    def __init__(self, version: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.version = version

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**{"version": 1, **config})


@keras.saving.register_keras_serializable(_PACKAGE)
class McpLogit(Float32Layer):
    """logits `[n, k]` → logit(1 − max(softmax)) `[n, 1]`: `mcp.mcp_logit` in a graph."""

    def call(self, logits: Any) -> Any:
        ordered = ops.flip(ops.sort(logits, axis=1), axis=1)
        return ops.logsumexp(ordered[:, 1:], axis=1, keepdims=True) - ordered[:, :1]


@keras.saving.register_keras_serializable(_PACKAGE)
class AnswerEvidence(Float32Layer):
    """Evidence in the answer itself: logits `[n, k]` → `[n, e]`, as in
    `evidence_arrays.answer_columns`.

    The largest log-probabilities in order, the margin between the first two, the entropy, and
    perhaps the predicted class (one column for each).

    Args:
      top: Log-probabilities that are taken, at most k.
      classes: Whether the predicted class is among the columns.
    """

    _arguments = ("top", "classes")

    def __init__(self, top: int = TOP, classes: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.top = top
        self.classes = classes

    def call(self, logits: Any) -> Any:
        k = logits.shape[1]
        log_probs = ops.maximum(ops.log_softmax(logits, axis=1), LEAST_LOG_PROB)
        probs = ops.exp(log_probs)
        ordered = ops.flip(ops.sort(log_probs, axis=1), axis=1)
        chances = ops.exp(ordered[:, :2])
        parts = [
            ordered[:, : min(self.top, k)],
            chances[:, :1] - chances[:, 1:],
            -ops.sum(probs * log_probs, axis=1, keepdims=True),
        ]
        if self.classes:
            parts.append(ops.one_hot(ops.argmax(logits, axis=1), k, dtype="float32"))
        return ops.concatenate(parts, axis=1)


@keras.saving.register_keras_serializable(_PACKAGE)
class View(_Versioned):
    """A description of images that no training has shaped: `[n, h, w(, c)]` → `[n, v + 1]`.

    Histograms of oriented gradients (Dalal and Triggs, 2005) of the gray image in 28 × 28 pixels:
    8 directions in 7 × 7 cells, each by the energy of the 3 × 3 cells around it. And the image
    itself, in 14 × 14 pixels of c channels: v = 392 + 196 c. Other sizes are brought to that one.
    Each image is standardized first, so the scale of its pixels does not matter. The last column is
    its contrast: the standard deviation of its pixels, in their unit.
    """

    multiply_adds = SIDE**2 * _DIRECTIONS * 8
    """Of one image, roughly; it is little beside any classifier of images."""

    def call(self, images: Any) -> Any:
        x = ops.cast(images, "float32")
        if len(x.shape) == 3:
            x = ops.expand_dims(x, -1)
        whole: Any = dict(axis=(1, 2, 3), keepdims=True)
        # Squares of pixels must neither overflow nor vanish; and the mean of one color is exact.
        # The initial value is for batches of no rows.
        largest = ops.maximum(ops.max(ops.abs(x), initial=0.0, **whole), 1e-30)
        x = x / largest
        x = x - ops.mean(x, **whole)
        # An image of one color has no more than rounding errors to show.
        spread = ops.std(x, **whole)
        x = x / ops.maximum(spread, 1e-5)
        if x.shape[1:3] != (SIDE, SIDE):
            x = ops.image.resize(x, (SIDE, SIDE), antialias=True, data_format="channels_last")
        gray = ops.mean(x, axis=-1)
        across = ops.pad(gray[:, :, 2:] - gray[:, :, :-2], ((0, 0), (0, 0), (1, 1)))
        down = ops.pad(gray[:, 2:] - gray[:, :-2], ((0, 0), (1, 1), (0, 0)))
        # Each pixel votes for the two directions next to its own.
        direction = ops.mod(ops.arctan2(down, across) * (_DIRECTIONS / (2 * np.pi)), _DIRECTIONS)
        apart = ops.abs(direction[..., None] - np.arange(_DIRECTIONS, dtype=np.float32))
        votes = ops.relu(1.0 - ops.minimum(apart, _DIRECTIONS - apart))
        votes = votes * ops.sqrt(ops.square(across) + ops.square(down))[..., None]
        cells = _CELL**2 * _means(votes, _CELL)
        energy = ops.sum(ops.square(cells), axis=-1, keepdims=True)
        around = 9 * _means(ops.pad(energy, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, 1)
        cells = cells / ops.sqrt(around + _FLAT)
        parts = [(cells, (SIDE // _CELL) ** 2 * _DIRECTIONS)]
        parts += [(_means(x, 2), (SIDE // 2) ** 2 * x.shape[-1])]
        parts += [(spread * largest, 1)] if self.version > 1 else []
        return ops.concatenate([ops.reshape(part, (-1, size)) for part, size in parts], axis=1)


def faded(view: Any, faint: float) -> Any:
    """A `View` `[n, v + 1]` without its last column: less of it, the less contrast there is.

    Standardized, a single gray level would look like an image; without any, a blank one jumps.

    Args:
      view: Views; or features, which stay as they are.
      faint: The contrast of which 1 / √2 remains; 0: for features.
    """
    if not faint:
        return view
    contrast = view[:, -1:]
    larger = ops.maximum(contrast, faint)  # Neither square overflows.
    share = (contrast / larger) / ops.sqrt(
        ops.square(contrast / larger) + ops.square(faint / larger)
    )
    return view[:, :-1] * share


def as_points(features: np.ndarray, faint: float) -> np.ndarray:
    """float32 `[n, d]` for heads and indexes; half precision's squares overflow."""
    if not faint:
        return np.asarray(features, np.float32)
    return np.asarray(keras.ops.convert_to_numpy(faded(np.asarray(features, np.float32), faint)))


def faint_contrast(name: str, reference: Any) -> float:
    """The argument `faint` of evidence of this name; `reference` is `Seen` of training samples."""
    if not name.startswith("image_"):
        return 0.0
    return max(_FADED * float(np.median(reference.view[:, -1])), 1e-12)


def _means(maps: Any, side: int, step: int | None = None) -> Any:
    return ops.average_pool(maps, side, step, data_format="channels_last")


def is_image(shape: Sequence[int | None]) -> bool:
    """Whether samples of this shape have a `View`: at least 8 × 8 pixels of at most 4 channels."""
    sides, channels = shape[:2], shape[2:]
    return (
        len(shape) in (2, 3)
        and all(side is None or side >= 8 for side in sides)
        and all(count is not None and count <= 4 for count in channels)
    )


@keras.saving.register_keras_serializable(_PACKAGE)
class NeighborEvidence(_Versioned):
    """Evidence in the training samples next to the features: (features, logits) → `[n, e]`.

    The share of other labels than the predicted class among the nearest 8, 16, 32 and 64; the
    logarithm of the distance to the first, the tenth and the last of them; and of the distance to
    the nearest sample of the predicted class over that to the nearest of any other.

    Among the nearest k, a sample at distance d weighs 1 − d² / d_k² (Epanechnikov's kernel). So
    nothing jumps where one of them comes or goes: its weight is 0 there. Where they are all equally
    far, or all at the sample itself, what the next larger k says remains, and one half where that
    says nothing either.

    The index is an exhaustive one and goes wherever the model goes. It is searched in blocks:
    memory is bounded by the batch times twice 32,768 numbers, or times 78 feature vectors.

    Args:
      size: Samples in the index.
      width: Length of a feature vector.
      neighbors: Nearest samples that are looked at, where there are so many.
      axes: Principal components of the standardized points that distances are measured along, each
        divided by the square root of its standard deviation; 0: they are measured between the
        vectors as they are.
      faint: See `faded`.
      bits: 8 keeps the points rounded to 255 levels along each direction, in a fourth of the room;
        32: as they are.
      version: 1 takes the nearest 5, 10, 20 and 50 without weights, repeated ones too, and the
        logarithm of distance plus `unit`. 2 computes the squares of the points at each call.
    """

    _arguments = ("version", "size", "width", "neighbors", "axes", "faint", "bits")

    def __init__(
        self,
        size: int,
        width: int,
        neighbors: int = NEIGHBORS,
        axes: int = 0,
        faint: float = 0.0,
        bits: int = 32,
        version: int = 3,
        **settings: Any,
    ) -> None:
        super().__init__(version, **settings)
        self.size = size
        self.width = width
        self.neighbors = min(neighbors, size)
        self.axes = axes
        self.faint = faint
        self.bits = bits
        dtype = "int8" if bits == 8 else None
        self.points = self._constant("points", size, axes or width, dtype=dtype)
        self.labels = self._constant("labels", size, dtype="int32")
        self.mean = self._constant("mean", width)
        # A length below which all distances are alike.
        self.unit = self._constant("unit", start="ones")
        if axes:
            self.turn = self._constant("turn", width, axes)
        if self.version > 1:
            self.shares = self._constant("shares", size, start="ones")
        if version > 2:
            self.squares = self._constant("squares", size)
        if bits == 8:
            self.scale = self._constant("scale", axes or width, start="ones")

    @property
    def multiply_adds(self) -> int:
        """Of one sample."""
        width = self.axes or self.width
        return self.size * width + self.width * self.axes + (self.neighbors + _SPARE) * width

    @property
    def overhead(self) -> int:
        """Multiply-adds of a convolutional network that take as long as what a search does beside
        its products: it finds the nearest among all distances, and turns 8 bits to floats.

        Measured for one sample of a batch of 64 on a CPU, with 256 to 65,536 points beside a
        ResNet-20 (`python -m benchmarks.index_cost`): it grows with the points, and for each that
        is found with the logarithm of their number. So that costs hang on no machine, it is a
        formula.
        """
        decoded = _DECODED_EACH * self.size * (self.axes or self.width) * (self.bits == 8)
        found = _FOUND * self.candidates * np.log2(max(self.size, 2))
        return int(_PASSED * self.size + found + decoded)

    def set_points(
        self, points: np.ndarray, labels: np.ndarray, shares: np.ndarray | float = 1.0
    ) -> None:
        """Fills the index.

        Args:
          points: `[size, width]`, features of the training samples.
          labels: `[size]`.
          shares: `[size]`, how much of a sample each is, see `distinct`.
        """
        # Far from the origin, rounding would swamp the distances.
        mean = points.mean(axis=0, dtype=np.float64)
        self.mean.assign(mean)
        points = (points - mean).astype(np.float32)
        if self.axes:
            turn = _principal_axes(points, self.axes)
            self.turn.assign(turn)
            points = points @ turn
        self.unit.assign(max(_NEAR * _spread(points), 1e-12))
        if self.bits == 8:
            scale = np.maximum(np.abs(points).max(axis=0), 1e-30) / 127
            self.scale.assign(scale)
            points = np.rint(points / scale).astype(np.int8)
        self.points.assign(points)
        if self.version > 2:
            self.squares.assign(np.square(self.decoded()).sum(axis=1))
        self.labels.assign(labels)
        self.shares.assign(np.broadcast_to(shares, labels.shape))

    def decoded(self) -> np.ndarray:
        """The points as distances are measured to them, `[size, axes or width]`."""
        points = ops.convert_to_numpy(self.points)
        return points * ops.convert_to_numpy(self.scale) if self.bits == 8 else points

    def call(self, features: Any, logits: Any, places: Any = None) -> Any:
        """
        Args:
          features: `[n, width]`, one column more if they are views.
          logits: `[n, k]`.
          places: Of `candidates` nearest samples, `[n, c]`, found by another search; None: they
            are searched for here.
        """
        features = self.turned(features)
        squared, places = self._nearest(features, places)
        predicted = ops.cast(ops.argmax(logits, axis=1), "int32")
        other = ops.take(self.labels, places) != predicted[:, None]
        counts = sorted({min(count, self.neighbors) for count in _COUNTS[self.version]})
        if self.version == 1:
            distances = ops.log(ops.sqrt(squared) + self.unit)
            parts = [ops.mean(ops.cast(other[:, :count], "float32"), axis=1) for count in counts]
        else:
            unit = ops.square(self.unit)
            # Flat at 0, so that rounding does not move a sample that is in the index.
            distances = 0.5 * ops.log(squared + unit)
            parts = _weighted_shares(squared, unit, ops.take(self.shares, places), other, counts)
        parts += [distances[:, place - 1] for place in sorted({1, min(10, self.neighbors)})]
        parts += [distances[:, -1]]
        # Where there is none among the neighbors, it is at least as far as the last of them.
        far = distances[:, -1:]
        same = ops.min(ops.where(other, far, distances), axis=1)
        rest = ops.min(ops.where(other, distances, far), axis=1)
        return ops.stack([*parts, same - rest], axis=1)

    @property
    def candidates(self) -> int:
        """Nearest samples among which the neighbors are, whatever rounding does."""
        return min(self.neighbors + _SPARE, self.size) if self.version > 1 else self.neighbors

    def turned(self, features: Any) -> Any:
        """Features as distances to the points of the index are measured, `[n, axes or width]`."""
        features = faded(features, self.faint) - self.mean
        return ops.matmul(features, self.turn) if self.axes else features

    def _nearest(self, features: Any, places: Any) -> tuple[Any, Any]:
        """Squared distances `[n, neighbors]`, ascending, of the nearest samples, and their places
        in the index."""
        places = self._search(features) if places is None else places
        # From the differences: the rounding of a product would swamp small distances.
        points = ops.take(self.points, places, axis=0)
        if self.bits == 8:
            points = ops.cast(points, "float32") * self.scale
        difference = ops.expand_dims(features, 1) - points
        squared = ops.sum(ops.square(difference), axis=2)
        if self.version == 1:
            return squared, places
        # All in order: TensorFlow sorts few numbers faster than it picks some of them.
        nearest, order = ops.top_k(-squared, self.candidates)
        order = order[:, : self.neighbors]
        return -nearest[:, : self.neighbors], ops.take_along_axis(places, order, axis=1)

    def _search(self, features: Any) -> Any:
        """Places of the candidates `[n, c]`, nearest first."""
        count = self.candidates
        best = places = None  # Ranks, largest first.
        for start in range(0, self.size, _BLOCK):
            end = min(start + _BLOCK, self.size)
            if self.version > 2:
                squares = self.squares[start:end]
            else:
                squares = ops.sum(ops.square(self.points[start:end]), axis=1)
            # 2 q·p − |p|² ranks the points by their distance to q.
            ranks = self._products(2 * features, start, end) - squares
            near, order = _largest(ranks, min(count, end - start))
            order = order + start
            if best is not None:
                near, order = ops.concatenate([best, near], 1), ops.concatenate([places, order], 1)
                near, chosen = ops.top_k(near, min(count, near.shape[1]))
                order = ops.take_along_axis(order, chosen, axis=1)
            best, places = near, order
        return places

    def _products(self, features: Any, start: int, end: int) -> Any:
        """Of features `[n, d]` with some of the points, `[n, end - start]`."""
        # Points times features, and then turned: TensorFlow takes twice as long for features times
        # wide points (`python -m benchmarks.index_cost`).
        if self.bits != 8:
            products = ops.matmul(self.points[start:end], ops.transpose(features))
            return ops.transpose(products)
        features = ops.transpose(features * self.scale)
        parts = []
        for first in range(start, end, _DECODED):
            points = ops.cast(self.points[first : min(first + _DECODED, end)], "float32")
            parts.append(ops.matmul(points, features))
        return ops.transpose(ops.concatenate(parts, axis=0))


def _largest(values: Any, count: int) -> tuple[Any, Any]:
    """As `ops.top_k`, which takes longer than a product of matrices where there are many columns.

    The `count` largest are in the groups whose largest values are the `count` largest.

    Args:
      values: `[n, m]`.
      count: At most m.

    Returns:
      The largest values `[n, count]`, in order, and their columns.
    """
    columns = values.shape[1]
    if columns < 4 * _GROUP * count:
        return ops.top_k(values, count)
    if columns % _GROUP:
        values = ops.pad(values, ((0, 0), (0, -columns % _GROUP)), constant_values=-np.inf)
    count_of_groups = values.shape[1] // _GROUP
    grouped = ops.reshape(values, (-1, _GROUP))
    highest = ops.reshape(ops.max(grouped, axis=1), (-1, count_of_groups))
    _, groups = ops.top_k(highest, count, sorted=False)
    # Rows of a matrix are taken fast.
    first = count_of_groups * ops.arange(ops.shape(values)[0], dtype="int32")
    kept = ops.take(grouped, first[:, None] + groups, axis=0)
    largest, order = ops.top_k(ops.reshape(kept, (-1, count * _GROUP)), count)
    group = ops.take_along_axis(groups, order // _GROUP, axis=1)
    return largest, group * _GROUP + order % _GROUP


def _weighted_shares(
    squared: Any, unit: Any, shares: Any, other: Any, counts: Sequence[int]
) -> list[Any]:
    """Shares `[n]` of other labels among as many of the nearest, see `NeighborEvidence`.

    Args:
      squared: Squared distances `[n, m]`, ascending.
      unit: A square below which they are alike.
      shares: `[n, m]`, how much of a sample each is.
      other: bool `[n, m]`, whether its label is another one than that predicted.
      counts: Ascending, at most m.
    """
    each: list[Any] = []
    share: Any = 0.5
    for count in reversed(counts):
        reach = squared[:, count - 1 : count]
        # Where they are all alike, which of them is nearer is a matter of rounding.
        apart = ops.square(reach / (reach + unit))
        weights = (reach - squared[:, :count]) / (reach + unit) * apart * shares[:, :count]
        against = ops.sum(ops.where(other[:, :count], weights, 0.0), axis=1)
        share = (against + _DOUBT * share) / (ops.sum(weights, axis=1) + _DOUBT)
        each.insert(0, share)
    return each


def _spread(points: np.ndarray) -> float:
    return float(np.sqrt(np.var(points, axis=0, dtype=np.float64).sum()))


def distinct(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a reference in which each point counts once, however often it is there.

    Points are one if they are equal up to rounding, as if computed in another batch. One of several
    labels is there with each of them, and is divided among these.

    Args:
      points: `[n, d]` float32.
      labels: `[n]`.

    Returns:
      Numbers of the rows `[m]`, and how much of a point each is `[m]`.
    """
    from scipy import sparse, spatial

    rows = points + np.float32(0)  # -0 is 0.
    content = np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(rows))
    _, first, point = np.unique(content, return_index=True, return_inverse=True)
    unique = rows[first]
    count, least = len(unique), _SAME * _spread(rows)
    # What is near is near along some directions, too: there a tree finds it.
    directions = np.random.default_rng(0).normal(size=(rows.shape[1], 8)) / 8**0.5
    seen = (unique - unique.mean(axis=0, dtype=np.float64)) @ directions
    _, near = spatial.KDTree(seen).query(seen, k=min(8, count), distance_upper_bound=3 * least)
    here, column = np.nonzero(near.reshape(count, -1) < count)
    there = near.reshape(count, -1)[here, column]
    close = np.linalg.norm(unique[here] - unique[there], axis=1) <= least
    links = sparse.coo_array((close, (here, there)), shape=(count, count))
    _, group = sparse.csgraph.connected_components(links, directed=False)
    # A point with each of its labels, in the order in which they came.
    pairs = np.stack([group[point], labels], axis=1)
    chosen = np.sort(np.unique(pairs, axis=0, return_index=True)[1])
    of = group[point[chosen]]
    return chosen, 1.0 / np.bincount(of)[of]


def _principal_axes(points: np.ndarray, count: int) -> np.ndarray:
    """Turn `[d, count]` of points whose mean is 0: the first axes, see `NeighborEvidence`."""
    scale = standard_scale(points.std(axis=0))
    apart = points * scale
    variances, axes = np.linalg.eigh(apart.T @ apart / len(points))
    # Where nothing varies there is rounding alone.
    variances = np.maximum(variances[-count:], max(1e-6 * variances[-1], 1e-12))
    return scale[:, None] * axes[:, -count:] / variances**0.25


def standard_scale(spread: np.ndarray) -> np.ndarray:
    """Scale `[d]` that standardizes the columns of a view, from their standard deviations.

    They have one unit. So what hardly differs between these images is not blown up: it may differ
    between others.
    """
    least = 0.1 * np.sqrt(np.square(spread).mean())
    return 1.0 / np.maximum(spread, least) if least else 0.0 * spread


@keras.saving.register_keras_serializable(_PACKAGE)
class HeadEvidence(_Versioned):
    """Evidence in a second head on the same features: (features, logits) → `[n, 3]`.

    The log odds against the predicted class (from -10 to 10), its improbability, and the entropy of
    the head's own answer.

    Args:
      width: Length of a feature vector.
      classes: Classes, k.
      hidden: Units of its hidden layer.
      faint: See `faded`.
      version: 1 also says whether the head's own answer is another one, which jumps.
    """

    _arguments = ("version", "width", "classes", "hidden", "faint")

    def __init__(
        self, width: int, classes: int, hidden: int = 256, faint: float = 0.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.width = width
        self.classes = classes
        self.hidden = hidden
        self.faint = faint
        self.values = [
            self._constant("mean", width),
            self._constant("scale", width),
            self._constant("kernel1", width, hidden),
            self._constant("bias1", hidden),
            self._constant("kernel2", hidden, classes),
            self._constant("bias2", classes),
        ]

    @property
    def multiply_adds(self) -> int:
        """Of one sample."""
        return (self.width + self.classes) * self.hidden

    def call(self, features: Any, logits: Any) -> Any:
        mean, scale, kernel1, bias1, kernel2, bias2 = self.values
        features = faded(features, self.faint)
        x = ops.relu(ops.matmul((features - mean) * scale, kernel1) + bias1)
        own = ops.log_softmax(ops.matmul(x, kernel2) + bias2, axis=1)
        predicted = ops.argmax(logits, axis=1)
        one_hot = ops.one_hot(predicted, self.classes, dtype="float32")
        log_p = ops.sum(one_hot * own, axis=1)
        against = ops.logsumexp(own - 1e9 * one_hot, axis=1)
        parts = [
            ops.clip(against - log_p, -10.0, 10.0),
            1.0 - ops.exp(log_p),
            -ops.sum(ops.exp(own) * own, axis=1),
        ]
        if self.version == 1:
            parts.append(ops.cast(ops.argmax(own, axis=1) != predicted, "float32"))
        return ops.stack(parts, axis=1)


@keras.saving.register_keras_serializable(_PACKAGE)
class ResidualLogit(Float32Layer):
    """(z `[n, 1]`, evidence `[n, e]`, …) → logit(u) `[n, 1]` = a · z + b + h · all evidence.

    With a = 1, b = 0 and h = 0, as it is made, it is MCP's.

    Args:
      read: Columns of all evidence together; 0: there is none.
    """

    _arguments = ("read",)

    def __init__(self, read: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.read = read
        self.a = self.add_weight(shape=(), initializer="ones", name="a")
        self.b = self.add_weight(shape=(), initializer="zeros", name="b")
        if read:
            self.h = self.add_weight(shape=(read, 1), initializer="zeros", name="h")

    def call(self, inputs: Sequence[Any]) -> Any:
        z, *evidence = inputs
        total = self.a * z + self.b
        if evidence:
            total += ops.matmul(ops.concatenate(evidence, axis=1), self.h)
        return total


@keras.saving.register_keras_serializable(_PACKAGE)
class Residual(ResidualLogit):
    """The same → u `[n, 1]`, the sigmoid of it."""

    def call(self, inputs: Sequence[Any]) -> Any:
        return ops.sigmoid(super().call(inputs))
