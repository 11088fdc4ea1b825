"""The residual estimator: MCP, corrected by what MCP does not see.

    logit(u) = a · logit(1 − max(probs)) + b + h(evidence)

h is linear, and zero where the evidence adds nothing: what is left then is MCP, calibrated. The
evidence is what the whole answer says; what a second head on the same features says, and what the
training samples around them say; and what such a head and such samples say that see of an image
what no training has shaped. The classifier cannot be wrong about an image in the same way there.

u is continuous: along a line between two inputs logit(u) jumps only where the predicted class
changes. So rounding, which differs between batches, threads and servers, cannot move it.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers, ops
from scipy import special

from btcp_tf import metrics
from btcp_tf.progress import Bar

_PACKAGE = "btcp_tf"

NEIGHBORS = 64
"""Nearest samples that are looked at, unless there are fewer."""

_SIDE = 28
_CELL = 4
_DIRECTIONS = 8
_FLAT = 0.4  # Energy of gradients next to which what a cell shows is not blown up.
_AXES = 64
_FADED = 0.05  # Of the usual contrast: a few gray levels. Images of less show noise.

_COUNTS = {1: (5, 10, 20, 50), 2: (8, 16, 32, 64)}  # By version.
_BLOCK = 8192
_SPARE = 14  # Candidates beyond the nearest: rounding may rank them among these.
_SAME = 1e-5  # Of the spread: points that are this close are one, computed twice.
_NEAR = 3e-2  # Of the spread: below it all distances are alike.
_DOUBT = 0.05  # Weight of not knowing, beside at most 1 for each neighbor.

_FOLDS = 5
_STRENGTHS = (0.01, 0.1, 1.0, 10.0)
_DRAWS = 1000
FEW_ERRORS = 100
"""Fewer teach an estimator little."""

_SMOOTHING = 0.1
_HEAD_BATCH = 256
_HEAD_STEPS = 2400
_HEAD_PASSES = 100

EVIDENCE = ("answer", "head", "neighbors", "image_head", "image_neighbors")
"""What the residual estimator may read: the whole answer; a second head on the features, and the
nearest of the classifier's training samples by their features; the same two by the `View` of the
images. All but the first need the training samples."""

NO_INDEX = ("answer", "head", "image_head")
"""What of `EVIDENCE` takes no training sample into the model."""


class _Float32(layers.Layer):
    """A layer in float32 whatever the policy: half precision has too few digits for u near 0."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"dtype": "float32", **settings})

    def get_config(self) -> dict[str, Any]:
        # Keras' default would look for the arguments of `__init__`, and lose name and dtype.
        return dict(super().get_config())


class _Versioned(_Float32):
    """A layer whose formula has changed; one from a file of btcp_tf 0.1.0 keeps the first."""

    def __init__(self, version: int = 2, **settings: Any) -> None:
        super().__init__(**settings)
        self.version = version

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "version": self.version}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**{"version": 1, **config})


@keras.saving.register_keras_serializable(_PACKAGE)
class McpLogit(_Float32):
    """logits `[n, k]` → logit(1 − max(softmax)) `[n, 1]`, exact where the softmax is 1 or 0."""

    def call(self, logits: Any) -> Any:
        ordered = ops.flip(ops.sort(logits, axis=1), axis=1)
        return ops.logsumexp(ordered[:, 1:], axis=1, keepdims=True) - ordered[:, :1]


@keras.saving.register_keras_serializable(_PACKAGE)
class AnswerEvidence(_Float32):
    """What the answer itself says: logits `[n, k]` → `[n, e]`.

    The largest log-probabilities in order, the margin between the first two, the entropy, and
    perhaps the predicted class (one column for each).

    Args:
      top: Log-probabilities that are taken, at most k.
      classes: Whether the predicted class is told.
    """

    def __init__(self, top: int = 5, classes: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.top = top
        self.classes = classes

    def call(self, logits: Any) -> Any:
        k = logits.shape[1]
        log_probs = ops.maximum(ops.log_softmax(logits, axis=1), -30.0)
        probs = ops.exp(log_probs)
        ordered = ops.flip(ops.sort(log_probs, axis=1), axis=1)
        chances = ops.exp(ordered[:, :2])
        told = [
            ordered[:, : min(self.top, k)],
            chances[:, :1] - chances[:, 1:],
            -ops.sum(probs * log_probs, axis=1, keepdims=True),
        ]
        if self.classes:
            told.append(ops.one_hot(ops.argmax(logits, axis=1), k, dtype="float32"))
        return ops.concatenate(told, axis=1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "top": self.top, "classes": self.classes}


@keras.saving.register_keras_serializable(_PACKAGE)
class View(_Versioned):
    """What an image shows, whatever a classifier makes of it: `[n, h, w(, c)]` → `[n, v + 1]`.

    Histograms of oriented gradients (Dalal and Triggs, 2005) of the gray image in 28 × 28 pixels:
    8 directions in 7 × 7 cells, each by the energy of the 3 × 3 cells around it. And the image
    itself, in 14 × 14 pixels of c channels: v = 392 + 196 c. Other sizes are brought to that one.
    Each image is standardized first, so the scale of its pixels does not matter. The last column is
    its contrast: the standard deviation of its pixels, in their unit.
    """

    def call(self, images: Any) -> Any:
        x = ops.cast(images, "float32")
        if len(x.shape) == 3:
            x = ops.expand_dims(x, -1)
        whole: Any = dict(axis=(1, 2, 3), keepdims=True)
        # Squares of pixels must neither overflow nor vanish; and the mean of one color is exact.
        largest = ops.maximum(ops.max(ops.abs(x), **whole), 1e-30)
        x = x / largest
        x = x - ops.mean(x, **whole)
        # An image of one color has no more than rounding errors to show.
        spread = ops.std(x, **whole)
        x = x / ops.maximum(spread, 1e-5)
        if x.shape[1:3] != (_SIDE, _SIDE):
            x = ops.image.resize(x, (_SIDE, _SIDE), antialias=True, data_format="channels_last")
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
        parts = [(cells, (_SIDE // _CELL) ** 2 * _DIRECTIONS)]
        parts += [(_means(x, 2), (_SIDE // 2) ** 2 * x.shape[-1])]
        parts += [(spread * largest, 1)] if self.version > 1 else []
        return ops.concatenate([ops.reshape(part, (-1, size)) for part, size in parts], axis=1)


def _faded(view: Any, faint: float) -> Any:
    """A `View` `[n, v + 1]` without its last column: less of it, the less contrast there is.

    Standardized, a single gray level would look like an image; without any, a blank one jumps.

    Args:
      view: Of images.
      faint: The contrast of which 1 / √2 is left; 0: they are features, and stay what they are.
    """
    if not faint:
        return view
    contrast = view[:, -1:]
    larger = ops.maximum(contrast, faint)  # Neither square overflows.
    share = (contrast / larger) / ops.sqrt(
        ops.square(contrast / larger) + ops.square(faint / larger)
    )
    return view[:, :-1] * share


def _as_points(features: np.ndarray, faint: float) -> np.ndarray:
    """float32 `[n, d]` for heads and indexes; half precision's squares overflow."""
    return np.asarray(keras.ops.convert_to_numpy(_faded(np.asarray(features, np.float32), faint)))


def _faint(name: str, around: Any) -> float:
    """`faint` for evidence of this name, from `Seen` of the reference."""
    if not name.startswith("image_"):
        return 0.0
    return max(_FADED * float(np.median(around.view[:, -1])), 1e-12)


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
    """What the training samples around the features say: (features, logits) → `[n, e]`.

    The share of other labels than the predicted class among the nearest 8, 16, 32 and 64; the
    logarithm of the distance to the first, the tenth and the last of them; and of the distance to
    the nearest sample of the predicted class over that to the nearest of any other.

    Among the nearest k, a sample at distance d weighs 1 − d² / d_k² (Epanechnikov's kernel). So
    nothing jumps where one of them comes or goes: its weight is 0 there. Where they are all equally
    far, or all at the sample itself, what the next larger k says remains, and one half where that
    says nothing either.

    The index is an exhaustive one and goes wherever the model goes. It is searched in blocks:
    memory is bounded by the batch times 8,192 numbers, or times 78 feature vectors.

    Args:
      size: Samples in the index.
      width: Length of a feature vector.
      neighbors: Nearest samples that are looked at, where there are so many.
      axes: Principal components of the standardized points that distances are measured along, each
        divided by the square root of its standard deviation; 0: they are measured between the
        vectors as they are.
      faint: See `_faded`.
      version: 1 takes the nearest 5, 10, 20 and 50 without weights, repeated ones too, and the
        logarithm of distance plus `unit`.
    """

    def __init__(
        self,
        size: int,
        width: int,
        neighbors: int = NEIGHBORS,
        axes: int = 0,
        faint: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.size = size
        self.width = width
        self.neighbors = min(neighbors, size)
        self.axes = axes
        self.faint = faint
        self.points = self.add_weight(
            shape=(size, axes or width), initializer="zeros", trainable=False, name="points"
        )
        self.labels = self.add_weight(
            shape=(size,), initializer="zeros", trainable=False, dtype="int32", name="labels"
        )
        self.mean = self.add_weight(
            shape=(width,), initializer="zeros", trainable=False, name="mean"
        )
        # A length below which all distances are alike.
        self.unit = self.add_weight(shape=(), initializer="ones", trainable=False, name="unit")
        if axes:
            self.turn = self.add_weight(
                shape=(width, axes), initializer="zeros", trainable=False, name="turn"
            )
        if self.version > 1:
            self.shares = self.add_weight(
                shape=(size,), initializer="ones", trainable=False, name="shares"
            )

    def set_points(
        self, points: np.ndarray, labels: np.ndarray, shares: np.ndarray | float = 1.0
    ) -> None:
        """Fills the index.

        Args:
          points: `[size, width]`, features of the training samples.
          labels: `[size]`.
          shares: `[size]`, how much of a sample each is, see `_distinct`.
        """
        # Far from the origin, rounding would swamp the distances.
        mean = points.mean(axis=0, dtype=np.float64)
        self.mean.assign(mean)
        points = (points - mean).astype(np.float32)
        if self.axes:
            turn = _principal_axes(points, self.axes)
            self.turn.assign(turn)
            points = points @ turn
        self.points.assign(points)
        self.labels.assign(labels)
        self.shares.assign(np.broadcast_to(shares, labels.shape))
        self.unit.assign(max(_NEAR * _spread(points), 1e-12))

    def call(self, features: Any, logits: Any) -> Any:
        """
        Args:
          features: `[n, width]`, one column more if they are views.
          logits: `[n, k]`.
        """
        features = _faded(features, self.faint) - self.mean
        if self.axes:
            features = ops.matmul(features, self.turn)
        squared, places = self._nearest(features)
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

    def _nearest(self, features: Any) -> tuple[Any, Any]:
        """Squared distances `[n, neighbors]`, ascending, of the nearest samples, and their places
        in the index."""
        count = min(self.neighbors + _SPARE, self.size) if self.version > 1 else self.neighbors
        best = places = None  # Negative ranks, largest first.
        for start in range(0, self.size, _BLOCK):
            end = min(start + _BLOCK, self.size)
            points = self.points[start:end]
            # |p|² − 2 q·p ranks the points by their distance to q.
            ranks = ops.sum(ops.square(points), axis=1) - 2 * ops.matmul(
                features, ops.transpose(points)
            )
            near, order = ops.top_k(-ranks, min(count, end - start))
            order = order + start
            if best is not None:
                near, order = ops.concatenate([best, near], 1), ops.concatenate([places, order], 1)
                near, chosen = ops.top_k(near, min(count, near.shape[1]))
                order = ops.take_along_axis(order, chosen, axis=1)
            best, places = near, order
        # Anew from the differences: the product's rounding would swamp small distances.
        difference = ops.expand_dims(features, 1) - ops.take(self.points, places, axis=0)
        squared = ops.sum(ops.square(difference), axis=2)
        if self.version == 1:
            return squared, places
        nearest, order = ops.top_k(-squared, self.neighbors)
        return -nearest, ops.take_along_axis(places, order, axis=1)

    def get_config(self) -> dict[str, Any]:
        sizes = {"size": self.size, "width": self.width, "neighbors": self.neighbors}
        return {**super().get_config(), **sizes, "axes": self.axes, "faint": self.faint}


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
    found: list[Any] = []
    share: Any = 0.5
    for count in reversed(counts):
        reach = squared[:, count - 1 : count]
        # Where they are all alike, which of them is nearer is a matter of rounding.
        apart = ops.square(reach / (reach + unit))
        weights = (reach - squared[:, :count]) / (reach + unit) * apart * shares[:, :count]
        against = ops.sum(ops.where(other[:, :count], weights, 0.0), axis=1)
        share = (against + _DOUBT * share) / (ops.sum(weights, axis=1) + _DOUBT)
        found.insert(0, share)
    return found


def _spread(points: np.ndarray) -> float:
    return float(np.sqrt(np.var(points, axis=0, dtype=np.float64).sum()))


def _distinct(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    _, scale = _standard(points)
    apart = points * scale
    variances, axes = np.linalg.eigh(apart.T @ apart / len(points))
    # Where nothing varies there is rounding alone.
    variances = np.maximum(variances[-count:], max(1e-6 * variances[-1], 1e-12))
    return scale[:, None] * axes[:, -count:] / variances**0.25


def _standard(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale `[d]` that standardize the columns of a view.

    They have one unit. So what hardly differs between these images is not blown up: it may differ
    between others.
    """
    spread = points.std(axis=0)
    least = 0.1 * np.sqrt(np.square(spread).mean())
    return points.mean(axis=0), 1.0 / np.maximum(spread, least) if least else 0.0 * spread


@keras.saving.register_keras_serializable(_PACKAGE)
class HeadEvidence(_Versioned):
    """What a second head on the same features says of the answer: (features, logits) → `[n, 3]`.

    The log odds against the predicted class (from -10 to 10), its improbability, and the entropy of
    the head's own answer.

    Args:
      width: Length of a feature vector.
      classes: Classes, k.
      hidden: Units of its hidden layer.
      faint: See `_faded`.
      version: 1 also says whether the head's own answer is another one, which jumps.
    """

    def __init__(
        self, width: int, classes: int, hidden: int = 256, faint: float = 0.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.width = width
        self.classes = classes
        self.hidden = hidden
        self.faint = faint
        shapes = [(width,), (width,), (width, hidden), (hidden,), (hidden, classes), (classes,)]
        names = ["mean", "scale", "kernel1", "bias1", "kernel2", "bias2"]
        self.values = [
            self.add_weight(shape=shape, initializer="zeros", trainable=False, name=name)
            for shape, name in zip(shapes, names, strict=True)
        ]

    def call(self, features: Any, logits: Any) -> Any:
        mean, scale, kernel1, bias1, kernel2, bias2 = self.values
        features = _faded(features, self.faint)
        x = ops.relu(ops.matmul((features - mean) * scale, kernel1) + bias1)
        own = ops.log_softmax(ops.matmul(x, kernel2) + bias2, axis=1)
        predicted = ops.argmax(logits, axis=1)
        told = ops.one_hot(predicted, self.classes, dtype="float32")
        log_p = ops.sum(told * own, axis=1)
        against = ops.logsumexp(own - 1e9 * told, axis=1)
        parts = [
            ops.clip(against - log_p, -10.0, 10.0),
            1.0 - ops.exp(log_p),
            -ops.sum(ops.exp(own) * own, axis=1),
        ]
        if self.version == 1:
            parts.append(ops.cast(ops.argmax(own, axis=1) != predicted, "float32"))
        return ops.stack(parts, axis=1)

    def get_config(self) -> dict[str, Any]:
        sizes = {"width": self.width, "classes": self.classes, "hidden": self.hidden}
        return {**super().get_config(), **sizes, "faint": self.faint}


def train_head(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    seed: int,
    name: str = "head",
    faint: float = 0.0,
) -> HeadEvidence:
    """A second head, kept from knowing its samples by heart: by dropout and smoothed labels.

    Args:
      features: `[n, d]` of training samples.
      labels: `[n]`.
      classes: k.
      seed: Of weights, dropout and order.
      name: Of the layer.
      faint: See `_faded`; of views.
    """
    import tensorflow as tf

    features = _as_points(features, faint)
    head = HeadEvidence(features.shape[1], classes, faint=faint, name=name)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    # A column of rounding errors is a constant; elsewhere it may be none.
    varies = spread > 1e-5 * np.abs(features).max(axis=0)
    scale = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
    if name == "image_head":
        mean, scale = _standard(features)

    def smoothed(labels: Any, logits: Any) -> Any:
        log_probs = ops.log_softmax(logits, axis=1)
        told = ops.take_along_axis(log_probs, ops.cast(labels, "int32")[:, None], axis=1)[:, 0]
        return -((1.0 - _SMOOTHING) * told + _SMOOTHING * ops.mean(log_probs, axis=1))

    # Seeds of its own: the caller's random numbers stay what they were.
    first, second = (keras.initializers.GlorotUniform(seed + n) for n in range(2))
    model = keras.Sequential(
        [
            keras.Input((features.shape[1],)),
            layers.Dense(head.hidden, "relu", kernel_initializer=first, dtype="float32"),
            layers.Dropout(0.5, seed=seed, dtype="float32"),
            layers.Dense(classes, kernel_initializer=second, dtype="float32"),
        ]
    )
    n = len(features)
    batch = min(_HEAD_BATCH, n)
    passes = min(_HEAD_PASSES, -(-_HEAD_STEPS * batch // n))
    random = np.random.default_rng(seed)
    order = np.concatenate([random.permutation(n) for _ in range(passes)])
    x = tf.constant((features - mean) * scale, tf.float32)
    y = tf.constant(labels, tf.int64)
    # All passes are one epoch: with few samples the pauses between epochs would take longest.
    batches = tf.data.Dataset.from_tensor_slices(order).batch(batch, drop_remainder=True)
    batches = batches.map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)))
    options = tf.data.Options()
    options.autotune.enabled = False  # It can stall `fit` for seconds.
    steps = len(order) // batch
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(2e-3, steps)),
        smoothed,
        jit_compile=False,
        steps_per_execution=min(50, steps),
    )
    model.fit(batches.with_options(options), verbose=0, shuffle=False)
    head.set_weights([mean, scale, *model.get_weights()])
    return head


@keras.saving.register_keras_serializable(_PACKAGE)
class ResidualLogit(_Float32):
    """(z `[n, 1]`, evidence `[n, e]`, …) → logit(u) `[n, 1]` = a · z + b + h · all evidence.

    With a = 1, b = 0 and h = 0, as it is made, it is MCP's.

    Args:
      read: Columns of all evidence together; 0: there is none.
    """

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

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "read": self.read}


@keras.saving.register_keras_serializable(_PACKAGE)
class Residual(ResidualLogit):
    """The same → u `[n, 1]`, the sigmoid of it."""

    def call(self, inputs: Sequence[Any]) -> Any:
        return ops.sigmoid(super().call(inputs))


@dataclasses.dataclass(frozen=True)
class Fit:
    """How an estimator came about."""

    samples: int
    """Held-out samples that it learned from."""
    errors: int
    """Wrong answers among them."""
    evidence: tuple[str, ...]
    """What it reads beside MCP, of `EVIDENCE`; empty: it is MCP, calibrated."""
    strength: float
    """Inverse of the L2 penalty."""
    difference: dict[str, tuple[float, float, float]]
    """Cross-validated on the same samples, minus MCP: metric → (value, low, high), 95 %."""
    words: str
    """The same in a sentence."""
    summary: str
    """What it learned from and whether it is used, without figures of the difference."""
    baseline: dict[str, float] = dataclasses.field(default_factory=dict)
    """Mean share in logit(u), over the classifier's own held-out samples, of MCP ("mcp") and of
    each kind of evidence: what `contributions` are compared with."""


Weights = tuple[float, float, np.ndarray]
"""a, b and h of `Residual`."""

MCP: Weights = (1.0, 0.0, np.zeros(0))
"""Of MCP itself."""


class Fitted(NamedTuple):
    """A fitted residual estimator."""

    fit: Fit
    """How it went."""
    readers: dict[str, keras.layers.Layer]
    """The layers that read the evidence of the classifier itself, in order."""
    weights: Weights
    """Of MCP's logit, and of all evidence in that order."""
    held_out_u: np.ndarray
    """u `[n]` of the classifier's own held-out samples, each by a fit that has not seen it; where
    the estimator is MCP, that of MCP."""


class Seen(NamedTuple):
    """What the evidence of n samples is read from."""

    features: np.ndarray
    """`[n, d]`."""
    logits: np.ndarray
    """`[n, k]`."""
    view: np.ndarray | None = None
    """`[n, v + 1]`, from `View`; None: they are no images."""


class Index(NamedTuple):
    """What a `NeighborEvidence` is filled with."""

    points: np.ndarray
    """`[m, d]`, each once."""
    labels: np.ndarray
    """`[m]`."""
    shares: np.ndarray
    """`[m]`, see `_distinct`."""
    faint: float
    """See `_faded`."""


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """A classifier's answers to samples that it was not trained on."""

    seen: Seen
    """Of the n samples."""
    labels: np.ndarray
    """`[n]`."""
    reference: tuple[Seen, np.ndarray] | None = None
    """m samples that it was trained on, at least 2, and their labels `[m]`; None: what is around a
    sample is no evidence."""
    copies: tuple[Seen, ...] = ()
    """Other versions of the samples, such as noisy ones."""
    ensemble: tuple[np.ndarray, ...] = ()
    """An ensemble's mean probabilities `[n, k]` for the samples, then for each of the copies;
    empty: there is none."""
    _heads: dict[tuple[str, int], HeadEvidence] = dataclasses.field(
        default_factory=dict, repr=False
    )
    _indexes: dict[str, Index] = dataclasses.field(default_factory=dict, repr=False)

    def head(self, name: str, seed: int) -> HeadEvidence:
        """A second head of `train_head`, trained once however many estimators read it.

        Args:
          name: "head" on the features, or "image_head" on the view.
          seed: Of the head.
        """
        assert self.reference is not None, "it learns from the reference"
        seen, labels = self.reference
        if (name, seed) not in self._heads:
            self._heads[name, seed] = train_head(
                _space(name, seen), labels, seen.logits.shape[1], seed, name, _faint(name, seen)
            )
        return self._heads[name, seed]

    def index(self, name: str) -> Index:
        """Of the reference, made once.

        Args:
          name: "neighbors", or "image_neighbors".
        """
        assert self.reference is not None, "it is made of the reference"
        seen, labels = self.reference
        if name not in self._indexes:
            faint = _faint(name, seen)
            points = _as_points(_space(name, seen), faint)
            rows, shares = _distinct(points, labels)
            self._indexes[name] = Index(points[rows], labels[rows], shares, faint)
        return self._indexes[name]


def _space(name: str, seen: Any) -> Any:
    """The vectors that evidence of this name is read from; None: there are none.

    Args:
      name: Of `EVIDENCE`.
      seen: `Seen`, or what has its fields.
    """
    return seen.view if name.startswith("image_") else seen.features


def fit_residual(
    held_out: HeldOut,
    folds: Sequence[HeldOut] = (),
    *,
    allowed: Sequence[str] = EVIDENCE,
    seed: int = 0,
    batch_size: int = 256,
    verbose: int = 0,
) -> Fitted:
    """Fits the residual estimator to a classifier's answers to held-out samples.

    The evidence of one classifier means what that of another of its kind does. So classifiers that
    were each trained on all but one part of the training samples let it learn from all of these.
    Copies show it what becomes of the evidence where samples are less clear; it is chosen and
    judged by the samples themselves. An ensemble's 1 − true class probability is a target that
    is less a matter of chance than right or wrong (its distillation); it is still judged by these.

    Args:
      held_out: Of the classifier itself; with an `ensemble`, without `folds`.
      folds: Of such further classifiers; with references if `held_out` has one, and as many copies.
      allowed: What it may read, of `EVIDENCE`, "answer" among it. With `NO_INDEX` no training
        sample goes into the model.
      seed: Of the cross-validation's parts, of the bootstrap and of the second head.
      batch_size: Samples at once.
      verbose: 1 says what is being done.

    Raises:
      ValueError: If `allowed` or an argument is not as described.

    """
    check_evidence(allowed)
    everyone = [held_out, *folds]
    if len({len(one.copies) for one in everyone}) > 1:
        raise ValueError(
            "copies: expected as many of all held-out samples, received "
            + ", ".join(str(len(one.copies)) for one in everyone)
        )
    if folds and any(one.ensemble for one in everyone):
        raise ValueError("ensemble: expected none beside folds, received one")
    # The samples of all, then the first copies of all, and so on.
    answers = [
        (number, [one.seen, *one.copies][version])
        for version in range(1 + len(held_out.copies))
        for number, one in enumerate(everyone)
    ]
    is_error = np.concatenate(
        [seen.logits.argmax(axis=1) != everyone[number].labels for number, seen in answers]
    )
    classifier = np.repeat(np.arange(len(everyone)), [len(one.labels) for one in everyone])
    # Which classes the errors are in changes with the data that a classifier meets, and so few of
    # them hardly show it even for this data.
    classes = bool(is_error[: len(classifier)].sum() >= FEW_ERRORS)
    # What is read means the same for all: no more neighbors than the smallest index has.
    indexes = [
        one.index(name) for one in everyone for name in _readable(one, allowed) if "neigh" in name
    ]
    neighbors = min([NEIGHBORS, *(len(index.points) for index in indexes)])
    if verbose:
        print("second heads ...", flush=True)
    readers = [_readers(one, allowed, classes, neighbors, seed) for one in everyone]
    if verbose:
        print(f"evidence of {len(is_error):,} answers: {', '.join(readers[0])} ...", flush=True)
    read = [_read(readers[number], seen, batch_size) for number, seen in answers]
    target = None
    if held_out.ensemble:
        of_label = [p[np.arange(len(p)), held_out.labels] for p in held_out.ensemble]
        target = 1.0 - np.concatenate(of_label)
    fit, weights, u = choose(
        is_error,
        np.concatenate([z for z, _ in read]),
        {name: np.concatenate([evidence[name] for _, evidence in read]) for name in readers[0]},
        seed,
        classifier,
        target,
        verbose,
    )
    used = {name: readers[0][name] for name in fit.evidence}
    return Fitted(fit, used, weights, u[: len(held_out.labels)])


def check_evidence(allowed: Any) -> None:
    """ValueError unless it is a list of kinds of evidence, "answer" among them."""
    told = f"evidence: expected answer, and perhaps some of {', '.join(EVIDENCE[1:])}"
    if isinstance(allowed, str | bytes) or not isinstance(allowed, Collection):
        raise ValueError(f"{told}, in a list, received {allowed!r}")
    names = list(allowed)
    if "answer" not in names or any(name not in EVIDENCE for name in names):
        raise ValueError(f"{told}, received {', '.join(map(str, names)) or 'none'}")


def _readers(
    held_out: HeldOut, allowed: Sequence[str], classes: bool, neighbors: int, seed: int
) -> dict[str, keras.layers.Layer]:
    """The layers that read the evidence, in the order of `EVIDENCE`."""
    readers: dict[str, keras.layers.Layer] = {
        "answer": AnswerEvidence(classes=classes, name="answer")
    }
    for name in _readable(held_out, allowed):
        if name.endswith("head"):
            readers[name] = held_out.head(name, seed)
            continue
        index = held_out.index(name)
        size, width = index.points.shape
        axes = min(_AXES, width) if name.startswith("image_") else 0
        reader = NeighborEvidence(size, width, neighbors, axes, index.faint, name=name)
        reader.set_points(index.points, index.labels, index.shares)
        readers[name] = reader
    return readers


def _readable(held_out: HeldOut, allowed: Sequence[str]) -> list[str]:
    """What of the evidence needs a reference, and has it, in the order of `EVIDENCE`."""
    if held_out.reference is None:
        return []
    around = held_out.reference[0]
    return [name for name in EVIDENCE[1:] if name in allowed and _space(name, around) is not None]


def score_residual(
    readers: dict[str, keras.layers.Layer],
    weights: Weights,
    seen: Any,
    *,
    batch_size: int = 256,
) -> np.ndarray:
    """u `[n]` of the estimator that `fit_residual` returned.

    Args:
      readers: Of `fit_residual`.
      weights: Of `fit_residual`.
      seen: `Seen`, or what has its fields.
      batch_size: Samples at once.
    """
    z, evidence = _read(readers, seen, batch_size)
    a, b, h = weights
    return special.expit(np.hstack([a * z + b, *evidence.values()]) @ [1.0, *h])


def contributions(
    readers: dict[str, keras.layers.Layer],
    weights: Weights,
    seen: Any,
    baseline: Mapping[str, float],
    *,
    batch_size: int = 256,
) -> tuple[tuple[str, ...], np.ndarray]:
    """Why u is what it is: what MCP and each kind of evidence add to logit(u).

    Args:
      readers: Of `fit_residual`.
      weights: Of `fit_residual`.
      seen: `Seen` of n answers, or what has its fields.
      baseline: `Fit.baseline`.
      batch_size: Samples at once.

    Returns:
      g names, "mcp" and those of the readers; and `[n, g]` by how much each moves logit(u) from its
      mean over the held-out samples. The sum of a row is logit(u) minus the mean logit(u) there.
    """
    parts = _parts(*_read(readers, seen, batch_size), weights)
    return tuple(parts), np.stack([part - baseline[name] for name, part in parts.items()], axis=1)


def _parts(
    z: np.ndarray, evidence: dict[str, np.ndarray], weights: Weights
) -> dict[str, np.ndarray]:
    """What MCP's logit and each kind of evidence add to logit(u) − b: `[n]` by name."""
    a, _, h = weights
    ends = np.cumsum([columns.shape[1] for columns in evidence.values()])[:-1]
    slopes = np.split(h, ends) if evidence else []
    return {"mcp": a * z[:, 0].astype(np.float64)} | {
        name: columns @ part for (name, columns), part in zip(evidence.items(), slopes, strict=True)
    }


def residual_of(
    readers: dict[str, keras.layers.Layer],
    weights: Weights,
    inputs: Any,
    features: Any,
    logits: Any,
    z: Any,
) -> Any:
    """The same in a functional model: u `[n, 1]`, of Keras tensors.

    Args:
      readers: Of `fit_residual`.
      weights: Of `fit_residual`.
      inputs: The classifier's, `[n, ...]`.
      features: `[n, d]`.
      logits: `[n, k]`.
      z: MCP's logit `[n, 1]`, from `McpLogit`.
    """
    of_images = any(name.startswith("image_") for name in readers)
    seen = Seen(features, logits, View(name="view")(inputs) if of_images else None)
    read = [reader(*reads(name, seen)) for name, reader in readers.items()]
    a, b, h = weights
    layer = Residual(read=len(h), name="residual")
    u = layer([z, *read])
    layer.set_weights([np.array(a), np.array(b), *([h[:, None]] if len(h) else [])])
    return u


def _read(
    readers: dict[str, keras.layers.Layer], seen: Any, batch_size: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """MCP's logit `[n, 1]`, and the evidence `[n, e]` by name."""
    z = _in_batches(McpLogit(), [seen.logits], batch_size)
    return z, {
        name: _in_batches(reader, reads(name, seen), batch_size) for name, reader in readers.items()
    }


def choose(
    is_error: np.ndarray,
    z: np.ndarray,
    evidence: dict[str, np.ndarray],
    seed: int,
    classifier: np.ndarray,
    target: np.ndarray | None = None,
    verbose: int = 0,
) -> tuple[Fit, Weights, np.ndarray]:
    """Fits the residual estimator by logistic regression, or falls back on MCP.

    The L2 penalty is that of the smallest cross-validated AURC with all evidence. What is read, the
    answer with all, none or one of the others, is then that of the smallest AURC with this penalty.
    All samples weigh the same: a focal factor, the density of the residuals or the rarity of errors
    as weights ranked held-out samples worse.
    The result counts as better than MCP if the paired 95 % bootstrap intervals of its
    cross-validated differences in AUPR-error and in AURC both exclude zero on the better side. One
    of them was not enough: on few held-out samples the winner of so many trials then lost on
    others.

    Args:
      is_error: `[v · n]` bool, whether each held-out answer is wrong: to the n samples, then to
        each of v - 1 copies of all of them, in the same order. Copies are learned from alone.
      z: `[v · n, 1]`, from `McpLogit`.
      evidence: By name, `[v · n, e]`.
      seed: Of folds and bootstrap.
      classifier: `[n]`, whose answers they are, as numbers from 0. If there are several, each is a
        fold of the cross-validation where it can be: what is learned from others is tried on it.
      target: `[v · n]` in [0, 1], what u is to be; None: `is_error`, by which it is judged anyhow.
      verbose: 1 shows how many of the trials are done.

    Returns:
      How it went; the weights; and u `[n]`, each by a fit that has not seen the sample. Where the
      result is not better than MCP, all are MCP's.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def baseline(weights: Weights, names: tuple[str, ...]) -> dict[str, float]:
        own = np.flatnonzero(classifier == 0)
        parts = _parts(z[own], {name: evidence[name][own] for name in names}, weights)
        return {name: float(part.mean()) for name, part in parts.items()}

    n = len(classifier)
    every, is_error = is_error if target is None else target, is_error[:n]
    errors = int(is_error.sum())
    same = dict(samples=n, errors=errors)
    if min(errors, n - errors) < _FOLDS:
        rare = f"{errors} wrong" if errors <= n - errors else f"{n - errors} right"
        told = f"{rare} answers among {n} are too few to learn from: u is MCP"
        none = Fit(
            **same,
            evidence=(),
            strength=0.0,
            difference={},
            words=told,
            summary=told,
            baseline=baseline(MCP, ()),
        )
        return none, MCP, special.expit(z[:n, 0])

    def fitted(x: np.ndarray, wanted: np.ndarray, strength: float) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        if wanted.dtype == bool:
            return model.fit(x, wanted)
        # A probability is so much of a wrong answer and the rest of a right one.
        wrong = np.repeat([True, False], len(x))
        weight = np.concatenate([wanted, 1.0 - wanted])
        return model.fit(np.tile(x, (2, 1)), wrong, logisticregression__sample_weight=weight)

    folds: Any = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    several = [is_error[classifier != number] for number in np.unique(classifier)]
    # Unless all errors, or all other answers, are one classifier's.
    if classifier.any() and all(0 < others.sum() < len(others) for others in several):
        folds = PredefinedSplit(classifier)
    # Of a sample that is held out, the copies are, too.
    splits = [
        (np.concatenate([train + start for start in range(0, len(every), n)]), test)
        for train, test in folds.split(is_error, is_error)
    ]

    def held_out(x: np.ndarray, strength: float) -> np.ndarray:
        u = np.empty(n)
        for train, test in splits:
            u[test] = fitted(x[train], every[train], strength).predict_proba(x[test])[:, 1]
        return u

    def trial(names: tuple[str, ...], strength: float) -> tuple[float, tuple[str, ...], float, Any]:
        u = held_out(np.hstack([z, *(evidence[name] for name in names)]), strength)
        bar.add(1)
        return metrics.aurc(is_error, u), names, strength, u

    others = [name for name in evidence if name != "answer"]
    parts = [(), *((name,) for name in others)] if len(others) > 1 else [()] * len(others)
    bar = Bar("trials on held-out samples", len(_STRENGTHS) + len(parts), shown=bool(verbose))
    # All of it needs the penalty most; the parts are tried with what suits it.
    trials = [trial(tuple(evidence), strength) for strength in _STRENGTHS]
    _, _, strength, _ = min(trials, key=lambda found: found[0])
    trials += [trial(("answer", *part), strength) for part in parts]
    _, names, strength, u = min(trials, key=lambda found: found[0])
    difference = _difference(is_error, z[:n, 0], u, seed)
    gain = {"aupr_error": 1.0, "aurc": -1.0}
    sides = [np.sort([gain[name] * end for end in difference[name][1:]]) for name in gain]
    better = all(low > 0 for low, _ in sides)
    names = names if better else ()
    x = np.hstack([z, *(evidence[name] for name in names)])
    # MCP is calibrated for samples as they are.
    rows, wanted = (slice(None), every) if better else (slice(n), is_error)
    scaler, regression = fitted(x[rows], wanted, strength if better else 1e6)
    slopes = regression.coef_[0] / scaler.scale_
    a, b = float(slopes[0]), float(regression.intercept_[0] - slopes @ scaler.mean_)
    figures = "AUPR-error {:+.2f} [{:+.2f}, {:+.2f}] points".format(
        *(100 * value for value in difference["aupr_error"])
    ) + ", AURC x 1000 {:+.2f} [{:+.2f}, {:+.2f}]".format(
        *(1000 * value for value in difference["aurc"])
    )
    count = int(classifier.max()) + 1
    who = f" of {count} classifiers" if count > 1 else ""
    if copies := len(every) // n - 1:
        who += f", and {copies} cop{'y' if copies == 1 else 'ies'} of each"
    if target is not None:
        who += ", an ensemble's true class probabilities as targets"
    source = f"{n} held-out samples{who}, {errors} errors"
    end = "the estimator is used" if better else "not better: u is MCP, calibrated"
    few = ", which are few to learn from" if errors < FEW_ERRORS else ""
    # MCP whose u rises where its own answer is more certain would be MCP no more.
    weights = (a, b, slopes[1:]) if better or a > 0 else MCP
    fit = Fit(
        **same,
        evidence=names,
        strength=strength,
        difference=difference,
        words=f"{source}, minus MCP: {figures}; {end}",
        summary=f"learned from {source}{few}; {end}",
        baseline=baseline(weights, names),
    )
    return fit, weights, u if better else special.expit(z[:n, 0])


def _difference(
    is_error: np.ndarray, mcp: np.ndarray, u: np.ndarray, seed: int
) -> dict[str, tuple[float, float, float]]:
    table = {name: metrics.METRICS[name] for name in ("aupr_error", "aurc")}
    draws = metrics.bootstrap(
        is_error, {"mcp": mcp, "u": u}, tau=0.5, draws=_DRAWS, seed=seed, table=table
    )
    found = {}
    for name in table:
        function = getattr(metrics, name)
        low, high = metrics.interval(draws["u"][name] - draws["mcp"][name])
        value = function(is_error, u) - function(is_error, mcp)
        found[name] = (float(value), float(low), float(high))
    return found


def reads(name: str, seen: Any) -> list[Any]:
    """What the layer of a kind of evidence takes of `Seen`, or of what has its fields."""
    return [seen.logits] if name == "answer" else [_space(name, seen), seen.logits]


def _in_batches(layer: keras.layers.Layer, arrays: list[np.ndarray], batch_size: int) -> np.ndarray:
    starts = range(0, len(arrays[0]), batch_size)
    parts = [layer(*(array[start : start + batch_size] for array in arrays)) for start in starts]
    return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])
