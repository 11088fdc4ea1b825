"""The residual estimator: MCP, corrected by what MCP does not see.

    logit(u) = a · logit(1 − max(probs)) + b + h(evidence)

h is linear, and zero where the evidence adds nothing: what is left then is MCP, calibrated. The
evidence is what the whole answer and the training samples around its features say.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

_PACKAGE = "btcp_tf"

NEIGHBORS = 50
"""Nearest samples that are looked at, where there are so many."""

_COUNTS = (5, 10, 20, 50)
_BLOCK = 8192


@keras.saving.register_keras_serializable(_PACKAGE)
class McpLogit(layers.Layer):
    """logits `[n, k]` → logit(1 − max(softmax)) `[n, 1]`, exact where the softmax is 1 or 0."""

    def call(self, logits: Any) -> Any:
        ordered = ops.flip(ops.sort(logits, axis=1), axis=1)
        return ops.logsumexp(ordered[:, 1:], axis=1, keepdims=True) - ordered[:, :1]


@keras.saving.register_keras_serializable(_PACKAGE)
class AnswerEvidence(layers.Layer):
    """What the answer itself says: logits `[n, k]` → `[n, e]`.

    The largest log-probabilities in order, the margin between the first two, the entropy, and the
    predicted class (one column for each).

    Args:
      top: Log-probabilities that are taken, at most k.
    """

    def __init__(self, top: int = 5, **settings: Any) -> None:
        super().__init__(**settings)
        self.top = top

    def call(self, logits: Any) -> Any:
        k = logits.shape[1]
        log_probs = ops.maximum(ops.log_softmax(logits, axis=1), -30.0)
        probs = ops.exp(log_probs)
        ordered = ops.flip(ops.sort(log_probs, axis=1), axis=1)
        chances = ops.exp(ordered[:, :2])
        return ops.concatenate(
            [
                ordered[:, : min(self.top, k)],
                chances[:, :1] - chances[:, 1:],
                -ops.sum(probs * log_probs, axis=1, keepdims=True),
                ops.one_hot(ops.argmax(logits, axis=1), k),
            ],
            axis=1,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "top": self.top}


@keras.saving.register_keras_serializable(_PACKAGE)
class NeighborEvidence(layers.Layer):
    """What the training samples around the features say: (features, logits) → `[n, e]`.

    The share of other labels than the predicted class among the nearest 5, 10, 20 and 50; the
    logarithm of the distance to the first, the tenth and the last of them; and of the distance to
    the nearest sample of the predicted class over that to the nearest of any other.

    The index is an exhaustive one and goes wherever the model goes. It is searched in blocks:
    memory is bounded by the batch times 8,192 numbers, or times 50 feature vectors.

    Args:
      size: Samples in the index, at least 2.
      width: Length of a feature vector.
    """

    def __init__(self, size: int, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.size = size
        self.width = width
        self.neighbors = min(NEIGHBORS, size - 1)
        self.points = self.add_weight(
            shape=(size, width), initializer="zeros", trainable=False, name="points"
        )
        self.labels = self.add_weight(
            shape=(size,), initializer="zeros", trainable=False, dtype="int32", name="labels"
        )
        # A length below which all distances are alike.
        self.unit = self.add_weight(shape=(), initializer="ones", trainable=False, name="unit")

    def set_points(self, points: np.ndarray, labels: np.ndarray) -> None:
        """Fills the index.

        Args:
          points: `[size, width]` float32, features of the training samples.
          labels: `[size]`.
        """
        self.points.assign(points)
        self.labels.assign(labels)
        spread = np.sqrt(np.var(points, axis=0, dtype=np.float64).sum())
        self.unit.assign(max(1e-3 * spread, 1e-12))

    def call(self, features: Any, logits: Any, own: Any = None) -> Any:
        """
        Args:
          features: `[n, width]`.
          logits: `[n, k]`.
          own: `[n]` int32, the place of each row in the index, where it is not its own neighbor.
        """
        squared, labels = self._nearest(features, own)
        distances = ops.log(ops.sqrt(squared) + self.unit)
        predicted = ops.cast(ops.argmax(logits, axis=1), "int32")
        other = labels != predicted[:, None]
        counts = sorted({min(count, self.neighbors) for count in _COUNTS})
        parts = [ops.mean(ops.cast(other[:, :count], "float32"), axis=1) for count in counts]
        parts += [distances[:, place - 1] for place in sorted({1, min(10, self.neighbors)})]
        parts += [distances[:, -1]]
        # Where there is none among the neighbors, it is at least as far as the last of them.
        far = distances[:, -1:]
        same = ops.min(ops.where(other, far, distances), axis=1)
        rest = ops.min(ops.where(other, distances, far), axis=1)
        return ops.stack([*parts, same - rest], axis=1)

    def _nearest(self, features: Any, own: Any) -> tuple[Any, Any]:
        """Squared distances `[n, neighbors]`, ascending, and labels of the nearest samples."""
        best = places = None  # Negative ranks, largest first.
        for start in range(0, self.size, _BLOCK):
            end = min(start + _BLOCK, self.size)
            points = self.points[start:end]
            # |p|² − 2 q·p ranks the points by their distance to q.
            ranks = ops.sum(ops.square(points), axis=1) - 2 * ops.matmul(
                features, ops.transpose(points)
            )
            if own is not None:
                ranks = ops.where(
                    ops.arange(start, end, dtype="int32") == own[:, None], np.inf, ranks
                )
            near, order = ops.top_k(-ranks, min(self.neighbors, end - start))
            order = order + start
            if best is not None:
                near, order = ops.concatenate([best, near], 1), ops.concatenate([places, order], 1)
                near, chosen = ops.top_k(near, min(self.neighbors, near.shape[1]))
                order = ops.take_along_axis(order, chosen, axis=1)
            best, places = near, order
        # Anew from the differences: the product's rounding would swamp small distances.
        difference = ops.expand_dims(features, 1) - ops.take(self.points, places, axis=0)
        return ops.sum(ops.square(difference), axis=2), ops.take(self.labels, places)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "size": self.size, "width": self.width}


@keras.saving.register_keras_serializable(_PACKAGE)
class Residual(layers.Layer):
    """(z `[n, 1]`, evidence `[n, e]`, …) → u `[n, 1]` = sigmoid(a · z + b + h · all evidence).

    With a = 1, b = 0 and h = 0, as it is made, it is MCP.

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
        return ops.sigmoid(total)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "read": self.read}
