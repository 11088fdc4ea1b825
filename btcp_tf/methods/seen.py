"""What the evidence of the residual estimator is computed from."""

from typing import Any, NamedTuple

import keras
import numpy as np


class Seen(NamedTuple):
    """What the evidence of n samples is computed from."""

    features: np.ndarray
    """`[n, d]`."""
    logits: np.ndarray
    """`[n, k]`."""
    view: np.ndarray | None = None
    """`[n, v + 1]`, from `View`; None: they are no images."""
    odds: np.ndarray | None = None
    """`[n, j]`, of each of j looks the log odds against the predicted class; None: no looks."""
    quality: np.ndarray | None = None
    """`[n, q]`, from `ImageQuality`; None: they are no images."""


def vectors(name: str, seen: Any) -> Any:
    """The vectors that evidence of this name is computed from; None: there are none."""
    return seen.view if name.startswith("image_") else seen.features


def evidence_inputs(name: str, seen: Any) -> list[Any]:
    """The inputs of the layer of a kind of evidence.

    Args:
      name: One of `EVIDENCE`.
      seen: `Seen`, or another object with its fields.
    """
    return [seen.logits] if name == "answer" else [vectors(name, seen), seen.logits]


def in_batches(layer: keras.layers.Layer, arrays: list[np.ndarray], batch_size: int) -> np.ndarray:
    """What a layer answers to arrays `[n, ...]`, some rows at once."""
    starts = range(0, len(arrays[0]), batch_size)
    parts = [layer(*(array[start : start + batch_size] for array in arrays)) for start in starts]
    return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])
