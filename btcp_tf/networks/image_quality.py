"""Numbers that say how an image looks, whatever is in it: noisy, blurred, turned, pale."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from btcp_tf.networks.evidence_layers import Float32Layer

_LEAST = 1e-3
"""Of what is taken relative to the spread of an image: below it nothing is told apart."""

_FLAT = 0.05
"""Spreads of an image, or its range: how far two pixels that look alike are from each other."""


@keras.saving.register_keras_serializable("btcp_tf")
class ImageQuality(Float32Layer):
    """Statistics of images `[n, h, w(, c)]`, at least 8 × 8 pixels: `[n, q]`.

    Of brightness: mean, spread, darkest and brightest pixel, in the unit of the pixels; how many
    pixels are about as dark or as bright as these; mean and spread of the corners, which are empty
    where an image was turned. Of the gray image, and of it in half and a quarter of its size (where
    4 × 4 pixels are left), relative to its spread: how large its differences across, down, and to
    the pixels around are (mean and root mean square of each, as logarithms), how many are about 0,
    and where its edges point to. Of colors: how strong they are and how much they change.

    Statistics of this kind are what quality of photos is judged by without their originals
    (Mittal, Moorthy and Bovik, 2012).
    """

    def build(self, shape: Sequence[int | None]) -> None:
        # Of what it is made for: a model for images of any size answers to all in one way.
        sides = [8 if side is None else side for side in shape[1:3]]
        self.margin = 3 if None in shape[1:3] else 0
        self.scales = 3 if min(sides) >= 16 else 2
        self.corner = [side // 5 for side in sides]

    def call(self, images: Any) -> Any:
        x = ops.cast(images, "float32")
        if len(x.shape) == 3:
            x = ops.expand_dims(x, -1)
        # Squares of pixels must neither overflow nor vanish. The initial value is for no rows.
        largest = ops.max(ops.abs(x), axis=(1, 2, 3), keepdims=True, initial=0.0)
        largest = ops.maximum(largest, 1e-30)
        x = x / largest
        gray = ops.mean(x, axis=-1, keepdims=True)
        columns = _brightness(gray, largest, *self.corner)
        spread = ops.std(gray, axis=(1, 2, 3), keepdims=True) + 1e-5
        small = (gray - ops.mean(gray, axis=(1, 2, 3), keepdims=True)) / spread
        colors = (x - gray) / spread
        if self.margin:
            # As small as they may be, something is left of half their size.
            side = (self.margin, self.margin)
            padding = ((0, 0), side, side, (0, 0))
            small, colors = ops.pad(small, padding), ops.pad(colors, padding)
        for scale in range(self.scales):
            if scale:
                small = _half(small)
            columns.append(_edges(small))
        if x.shape[-1] > 1:
            columns.append(_colors(colors))
        return ops.concatenate(columns, axis=1)

    def compute_output_spec(self, images: Any) -> Any:
        channels = images.shape[3] if len(images.shape) == 4 else 1
        columns = 8 + 12 * self.scales + (3 if channels > 1 else 0)
        return keras.KerasTensor((images.shape[0], columns), dtype="float32")


def _half(x: Any) -> Any:
    """`[n, h, w, 1]` in half its size, without a last odd row or column."""
    rows = x[:, 0:-1:2] + x[:, 1::2]
    return 0.25 * (rows[:, :, 0:-1:2] + rows[:, :, 1::2])


def _brightness(gray: Any, largest: Any, height: int, width: int) -> list[Any]:
    """`[n, h, w, 1]`, what its unit is, and the size of a corner → 8 columns `[n, 1]`."""
    whole: Any = dict(axis=(1, 2), keepdims=True)
    low, high = ops.min(gray, initial=1.0, **whole), ops.max(gray, initial=-1.0, **whole)
    near = _FLAT * (high - low) + 1e-5
    dark = ops.mean(ops.exp((low - gray) / near), **whole)
    bright = ops.mean(ops.exp((gray - high) / near), **whole)
    mean, spread = ops.mean(gray, **whole), ops.std(gray, **whole)
    rows = ops.concatenate([gray[:, :height], gray[:, -height:]], axis=1)
    corners = ops.concatenate([rows[:, :, :width], rows[:, :, -width:]], axis=2)
    inside = (corners - mean) / (spread + 1e-5)
    in_unit = [largest * column for column in (mean, spread, low, high)]
    relative = [dark, bright, ops.mean(inside, **whole), ops.std(inside, **whole)]
    return [column[:, 0, 0] for column in in_unit + relative]


def _edges(gray: Any) -> Any:
    """`[n, h, w, 1]`, standardized, → `[n, 12]`."""
    whole: Any = dict(axis=(1, 2))
    # Slices, as a convolution of no rows fails on some processors.
    left, right = gray[:, 1:-1, :-2], gray[:, 1:-1, 2:]
    above, below = gray[:, :-2, 1:-1], gray[:, 2:, 1:-1]
    around = 4.0 * gray[:, 1:-1, 1:-1] - left - right - above - below
    differences = ops.concatenate([right - left, below - above, around], axis=-1)
    size = ops.abs(differences)
    means = ops.log(ops.mean(size, **whole) + _LEAST)
    squares = ops.log(ops.sqrt(ops.mean(ops.square(differences), **whole) + _LEAST**2))
    flat = ops.mean(ops.exp(-size / _FLAT), **whole)
    # cos and sin of twice the angle of each edge, cos of four times, by how strong it is.
    across, down = differences[..., :1], differences[..., 1:2]
    strength = ops.sqrt(ops.square(across) + ops.square(down) + _LEAST**2)
    cosine, sine = across / strength, down / strength
    twice, product = ops.square(cosine) - ops.square(sine), cosine * sine
    angles = ops.concatenate(
        [twice, 2 * product, ops.square(twice) - 4 * ops.square(product)], axis=-1
    )
    total = ops.mean(strength, **whole)
    return ops.concatenate(
        [means, squares, flat, ops.mean(strength * angles, **whole) / total], axis=1
    )


def _colors(x: Any) -> Any:
    """Colors less the gray `[n, h, w, c]`, relative to its spread, → `[n, 3]`."""
    whole: Any = dict(axis=(1, 2, 3))
    across = ops.mean(ops.abs(x[:, :, 1:] - x[:, :, :-1]), **whole)
    strength = ops.sqrt(ops.mean(ops.square(x), axis=-1) + _LEAST**2)
    columns = [ops.mean(strength, axis=(1, 2)), ops.std(strength, axis=(1, 2)), across]
    return ops.log(ops.stack(columns, axis=1) + _LEAST)
