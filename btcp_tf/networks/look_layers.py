"""Keras layers of looks: what each of them changes in an input.

Each is a layer from inputs to inputs of the same shape and dtype. It is deterministic: what is
random in it was drawn once, is stored with the layer and is the same for every row. It treats each
row by itself, and takes batches of no rows.

No scale of pixels is known here. So layers of images keep to the range between the darkest and the
brightest value of each image, and an image of one color stays as it is.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

_PACKAGE = "btcp_tf"

TILE = 64
"""Side of stored patterns where an axis is longer or has no fixed length; they are repeated."""

_SHARE = 16  # A shift is this part of the side: 2 pixels of 32.

_SUBPIXELS = 256  # Where between two pixels a place can be.

_NOISE = 0.03  # Of the range between the darkest and the brightest value.

_JITTER = 0.1  # Of the spread of a column.

_TOKENS = 0.1  # Share of the positions.

_LEAST = 1e-30  # Ranges of values below it count as it: no division by 0.


class LookLayer(layers.Layer):
    """A layer whose outputs have the shape and dtype of its inputs, whatever the policy."""

    _arguments: Sequence[str] = ()
    """Arguments of `__init__` that a file keeps; attributes of the same names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"dtype": "float32", "autocast": False, **settings})

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._arguments}
        return {**super().get_config(), **own}

    def compute_output_spec(self, inputs: Any, *others: Any, **named: Any) -> Any:
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def _store(self, name: str, values: np.ndarray) -> Any:
        """A weight that no training changes and no policy rounds."""
        return self.add_weight(
            shape=values.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(values, dtype),
            dtype=str(values.dtype),
            trainable=False,
            autocast=False,
            name=name,
        )


class OnArrays(LookLayer):
    """Somebody's function on arrays as a layer; it lives in this process, as no file can hold it.

    Args:
      function: Inputs `[n, ...]`, n ≥ 1 → changed inputs of the same shape and type, both arrays.

    >>> OnArrays(lambda x: x + 1)(np.array([[1, 2]])).numpy().tolist()
    [[2, 3]]
    """

    def __init__(self, function: Callable[[np.ndarray], Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.function = function
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        inputs = tf.convert_to_tensor(inputs)
        return tf.ensure_shape(
            tf.numpy_function(self._changed, [inputs], inputs.dtype), inputs.shape
        )

    def _changed(self, x: np.ndarray) -> np.ndarray:
        if not len(x):
            return x
        # A copy: what the function writes into its input is TensorFlow's own memory.
        changed = np.asarray(self.function(np.array(x)))
        if (changed.shape, changed.dtype) != (x.shape, x.dtype):
            raise ValueError(
                f"expected {x.dtype} {list(x.shape)} from {self.name!r}, as its input, received "
                f"{changed.dtype} {list(changed.shape)}"
            )
        return changed


@keras.saving.register_keras_serializable(_PACKAGE)
class Mirror(LookLayer):
    """Images `[n, h, w(, c)]`, left and right exchanged.

    >>> Mirror()(np.array([[[1, 2], [3, 4]]])).numpy().tolist()
    [[[2, 1], [4, 3]]]
    """

    def call(self, inputs: Any) -> Any:
        return ops.flip(inputs, axis=2)


@keras.saving.register_keras_serializable(_PACKAGE)
class Shift(LookLayer):
    """Images `[n, h, w(, c)]`, moved by whole pixels; those at the edge are repeated.

    Args:
      down: Sixteenths of the height, rounded to whole pixels, at least one pixel unless it is 0;
        negative: up.
      right: Sixteenths of the width, likewise; negative: to the left.

    >>> Shift(right=1)(np.array([[[1, 2], [3, 4]]])).numpy().tolist()
    [[[1, 1], [3, 3]]]
    """

    _arguments = ("down", "right")

    def __init__(self, down: int = 0, right: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.down = down
        self.right = right

    def call(self, inputs: Any) -> Any:
        for axis, share in ((1, self.down), (2, self.right)):
            if share:
                side = ops.shape(inputs)[axis]
                steps = ops.maximum((abs(share) * side + _SHARE // 2) // _SHARE, 1)
                inputs = _along(inputs, axis, -steps if share > 0 else steps)
        return inputs


def _along(images: Any, axis: int, steps: Any) -> Any:
    """Images in which each pixel is the one `steps` further along an axis, or that at the edge."""
    side = ops.shape(images)[axis]
    return ops.take(images, ops.clip(ops.arange(side) + steps, 0, side - 1), axis=axis)


class _ImageLook(LookLayer):
    """A look that computes new values of pixels.

    It computes in float32, or in float64 where that is the images' dtype or float32 has too few
    digits for it. Integers are rounded.
    """

    def call(self, inputs: Any) -> Any:
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        wide = dtype in ("float64", "int32", "uint32", "int64", "uint64")
        x = ops.cast(inputs, "float64" if wide else "float32")
        gray = len(x.shape) == 3
        if gray:
            x = ops.expand_dims(x, -1)
        # The initial values are for batches of no rows.
        low = ops.min(x, axis=(1, 2, 3), keepdims=True, initial=np.inf)
        high = ops.max(x, axis=(1, 2, 3), keepdims=True, initial=-np.inf)
        x = _between(self._change(x, low, high), low, high)
        if gray:
            x = ops.squeeze(x, -1)
        return ops.cast(x if keras.backend.is_float_dtype(dtype) else ops.round(x), dtype)

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        """
        Args:
          x: Images `[n, h, w, c]`, float32 or float64.
          low: The smallest value of each, `[n, 1, 1, 1]`.
          high: The largest.
        """
        raise NotImplementedError


def _between(x: Any, low: Any, high: Any) -> Any:
    return ops.minimum(ops.maximum(x, low), high)


@keras.saving.register_keras_serializable(_PACKAGE)
class Resample(_ImageLook):
    """Images `[n, h, w(, c)]`, turned and enlarged about their middle, by bilinear interpolation.

    What was outside of the image has the color of the nearest edge. Places are rounded to 1/256 of
    a pixel.

    Args:
      degrees: Turned to the left by so much; negative: to the right.
      zoom: Enlarged by this factor; below 1: made smaller.
    """

    _arguments = ("degrees", "zoom")

    def __init__(self, degrees: float = 0.0, zoom: float = 1.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.degrees = degrees
        self.zoom = zoom

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        height, width, channels = ops.shape(x)[1:]
        sine = math.sin(math.radians(self.degrees)) / self.zoom
        cosine = math.cos(math.radians(self.degrees)) / self.zoom
        # In float64, so that they are the same however a graph is optimized.
        middle_row = ops.cast(height - 1, "float64") / 2
        middle_column = ops.cast(width - 1, "float64") / 2
        down = (ops.cast(ops.arange(height), "float64") - middle_row)[:, None]
        right = (ops.cast(ops.arange(width), "float64") - middle_column)[None, :]
        # Where in the image each pixel comes from.
        row, row_share = _whole(middle_row + cosine * down + sine * right, height, x.dtype)
        column, column_share = _whole(middle_column + cosine * right - sine * down, width, x.dtype)
        next_row = ops.minimum(row + 1, height - 1)
        next_column = ops.minimum(column + 1, width - 1)
        # Pixel by pixel, of all rows together: so they are copied in long pieces.
        flat = ops.transpose(ops.reshape(x, (-1, height * width, channels)), (1, 0, 2))

        def pixels(row: Any, column: Any) -> Any:
            return ops.take(flat, row * width + column, axis=0)

        above = _mixed(pixels(row, column), pixels(row, next_column), column_share)
        below = _mixed(pixels(next_row, column), pixels(next_row, next_column), column_share)
        return ops.transpose(_mixed(above, below, row_share), (2, 0, 1, 3))


def _whole(places: Any, side: Any, dtype: Any) -> tuple[Any, Any]:
    """Places along an axis, within the image: whole part `[h, w]` and the rest `[h, w, 1, 1]`."""
    places = _between(places, 0, ops.cast(side - 1, places.dtype))
    places = ops.round(places * _SUBPIXELS) / _SUBPIXELS
    whole = ops.floor(places)
    return ops.cast(whole, "int32"), ops.cast(places - whole, dtype)[..., None, None]


def _mixed(first: Any, second: Any, share: Any) -> Any:
    return first + share * (second - first)


@keras.saving.register_keras_serializable(_PACKAGE)
class Tone(_ImageLook):
    """Images `[n, h, w(, c)]` of another brightness, contrast or gamma.

    Args:
      brightness: Added, in units of the range of the image's own values.
      contrast: Factor of what differs from the middle of that range. (Not from the mean:
        how that is rounded depends on the other rows.)
      gamma: Exponent of the values, which are brought to [0, 1] for it.
    """

    _arguments = ("brightness", "contrast", "gamma")

    def __init__(
        self, brightness: float = 0.0, contrast: float = 1.0, gamma: float = 1.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.brightness = brightness
        self.contrast = contrast
        self.gamma = gamma

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        span = high - low
        if self.contrast != 1:
            x = _mixed((low + high) / 2, x, self.contrast)
        x = _between(x + self.brightness * span, low, high)
        if self.gamma != 1:
            share = (x - low) / ops.maximum(span, _LEAST)
            # The same as a power, which takes several times as long.
            x = low + span * ops.exp(self.gamma * ops.log(ops.maximum(share, _LEAST)))
        return x


@keras.saving.register_keras_serializable(_PACKAGE)
class Blur(_ImageLook):
    """Images `[n, h, w(, c)]`, blurred a little: binomial weights 1, 2, 1 along both sides.

    Pixels at the edge are repeated.
    """

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        for axis in (1, 2):
            x = (_along(x, axis, -1) + 2 * x + _along(x, axis, 1)) / 4
        return x


@keras.saving.register_keras_serializable(_PACKAGE)
class Noise(_ImageLook):
    """Images `[n, h, w(, c)]` with normal noise, the same for all of them.

    It is drawn once for 64 × 64 pixels, which are repeated.

    Args:
      strength: Standard deviation of the noise, in units of the range of the image's own values.
      seed: Seed of the noise.
    """

    _arguments = ("strength", "seed")

    def __init__(self, strength: float = _NOISE, seed: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.strength = strength
        self.seed = seed

    def build(self, input_shape: Sequence[Any]) -> None:
        shape = (TILE, TILE, *(input_shape[3:] or (1,)))
        noise = np.random.default_rng(self.seed).normal(size=shape)
        self.noise = self._store("noise", noise.astype(np.float32))

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        noise = ops.cast(tiled(self.noise, ops.shape(x)[1:]), x.dtype)
        return x + self.strength * (high - low) * noise


def tiled(pattern: Any, shape: Sequence[Any]) -> Any:
    """A pattern that is repeated along each axis until it has this shape, or cut.

    Axes of length 1 stay: they fit any.
    """
    for axis, side in enumerate(shape):
        own = pattern.shape[axis]
        if own != 1 and not (isinstance(side, int) and own == side):
            pattern = ops.take(pattern, ops.arange(side) % own, axis=axis)
    return pattern


@keras.saving.register_keras_serializable(_PACKAGE)
class Jitter(LookLayer):
    """Rows of numbers `[n, d]`, each column moved by a fixed step.

    Args:
      spread: Standard deviation of each column, in its unit. `adapt` measures it; where it is 0
        nothing is changed.
      strength: Standard deviation of the steps, in spreads.
      seed: Seed of the steps.

    >>> look = Jitter([0.0, 0.0])
    >>> look.adapt(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> look.spread_of_columns.numpy().tolist()
    [1.0, 0.0]
    """

    _arguments = ("spread", "strength", "seed")

    def __init__(
        self, spread: Sequence[float], strength: float = _JITTER, seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.spread = [float(value) for value in spread]
        self.strength = strength
        self.seed = seed
        steps = np.random.default_rng(seed).normal(size=len(self.spread))
        self.spread_of_columns = self._store("spread", np.array(self.spread, np.float32))
        self.steps = self._store("steps", steps.astype(np.float32))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "spread": list(self.spread)}

    def adapt(self, x: Any) -> None:
        """Takes the standard deviations of the columns of samples `[m, d]` as the spread."""
        self.spread_of_columns.assign(np.std(np.asarray(x, np.float64), axis=0))

    def call(self, inputs: Any) -> Any:
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        x = ops.cast(inputs, "float64" if dtype == "float64" else "float32")
        moved = self.strength * self.spread_of_columns * self.steps
        return ops.cast(x + ops.cast(moved, x.dtype), dtype)


class _TokenLook(LookLayer):
    """A look at token ids `[n, t]`, in which a tenth of the positions is chosen.

    Where t is not fixed, the choice among the first 64 is repeated.

    Args:
      seed: Seed of the choice.
    """

    _arguments = ("seed",)

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.seed = seed

    def build(self, input_shape: Sequence[int | None]) -> None:
        length = input_shape[1] or TILE
        count = min(max(round(_TOKENS * length), 1), length - 1)
        chosen = np.zeros(length, np.int32)
        chosen[np.random.default_rng(self.seed).permutation(length)[:count]] = 1
        self.chosen = self._store("chosen", chosen)


@keras.saving.register_keras_serializable(_PACKAGE)
class DropTokens(_TokenLook):
    """Token ids `[n, t]` without a tenth of them: the rest moves up, and 0 follows at the end.

    Where t is not fixed, the choice among the first 64 positions is repeated.

    Args:
      seed: Seed of the choice.
    """

    def call(self, inputs: Any) -> Any:
        length = ops.shape(inputs)[1]
        chosen, places = tiled(self.chosen, [length]), ops.arange(length)
        # Those that stay come first, in their order.
        order = ops.argsort(chosen * length + places)
        rest = ops.take(chosen, order) == 0
        return ops.where(rest, ops.take(inputs, order, axis=1), ops.zeros_like(inputs))


@keras.saving.register_keras_serializable(_PACKAGE)
class MaskTokens(_TokenLook):
    """Token ids `[n, t]`, a tenth of them set to 0.

    Where t is not fixed, the choice among the first 64 positions is repeated.

    Args:
      seed: Seed of the choice.
    """

    def call(self, inputs: Any) -> Any:
        chosen = tiled(self.chosen, ops.shape(inputs)[1:])
        return ops.where(chosen == 1, ops.zeros_like(inputs), inputs)
