"""The encoders: small, svhn and vgg16."""

from collections.abc import Callable
from typing import Any

from keras import layers


def _small(pixels: Any, feature_dim: int, synchronized: bool) -> Any:
    del synchronized  # No BatchNorm here.
    x = pixels
    for number, filters in enumerate((32, 64), 1):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv{number}")(x)
    x = _pool(x, "pool")
    x = layers.Dropout(0.25, name="dropout1")(x)
    return _features(x, feature_dim, 0.5)


def _svhn(pixels: Any, feature_dim: int, synchronized: bool) -> Any:
    x = pixels
    for block, filters in enumerate((32, 64, 128), 1):
        for number in (1, 2):
            x = _conv_bn_relu(x, filters, f"block{block}_conv{number}", synchronized)
        x = _pool(x, f"block{block}_pool")
        x = layers.Dropout(0.3, name=f"block{block}_dropout")(x)
    return _features(x, feature_dim, 0.3)


def _vgg16(pixels: Any, feature_dim: int, synchronized: bool) -> Any:
    x = pixels
    for block, (convs, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, convs + 1):
            x = _conv_bn_relu(x, filters, f"block{block}_conv{number}", synchronized)
        x = _pool(x, f"block{block}_pool")
    return _features(x, feature_dim, 0.5)


def _conv_bn_relu(x: Any, filters: int, name: str, synchronized: bool) -> Any:
    x = layers.Conv2D(filters, 3, padding="same", name=name)(x)
    x = layers.BatchNormalization(
        # PyTorch's running statistics move by 0.1 a step and its epsilon is 1e-5.
        momentum=0.9,
        epsilon=1e-5,
        synchronized=synchronized,
        name=f"{name}_bn",
    )(x)
    return layers.ReLU(name=f"{name}_relu")(x)


def _pool(x: Any, name: str) -> Any:
    if min(x.shape[1:3]) < 2:
        raise ValueError(
            f"expected images large enough for every pooling layer, received ones that are "
            f"{x.shape[1]}x{x.shape[2]} before {name}; choose a shallower --encoder"
        )
    return layers.MaxPooling2D(2, name=name)(x)


def _features(x: Any, feature_dim: int, dropout: float) -> Any:
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(feature_dim, activation="relu", name="features")(x)
    # The last dropout belongs to the encoder: both heads read what it leaves.
    return layers.Dropout(dropout, name="dropout")(x)


ENCODERS: dict[str, Callable[[Any, int, bool], Any]] = {
    "small": _small,
    "svhn": _svhn,
    "vgg16": _vgg16,
}
"""Encoders by name: (scaled pixels, feature_dim, synchronized) → features.

The layers are those of the authors' prototype with zero padding (SPEC of the
three networks: paper, supplement table; ConfidNet, Corbière et al. 2019).
"""
