"""Looks: changes of an input that should leave its class as it is, as Keras layers.

What a classifier answers to a changed input is evidence about its answer to the input itself.
Each look is a layer from inputs to inputs of the same shape and dtype. It is deterministic: what is
random in it was drawn once, is stored with the layer and is the same for every row. It treats each
row by itself, and takes batches of no rows.

No scale of pixels is known here. So looks at images keep to the range between the darkest and the
brightest value of each image, and an image of one color stays as it is.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from btcp_tf.networks.evidence_layers import is_image

_PACKAGE = "btcp_tf"

_TILE = 64
"""Side of stored patterns where an axis is longer or has no fixed length; they are repeated."""

_SHARE = 16  # A shift is this part of the side: 2 pixels of 32.

_DEGREES = 8.0

_ZOOM = 1.12

# Binary fractions: 8-bit pixels are computed without rounding, in whatever order.
_BRIGHTNESS = 0.125  # Of the range between the darkest and the brightest value.

_CONTRAST = 0.25  # More, or less.

_SUBPIXELS = 256  # Where between two pixels a place can be.

_GAMMA = 1.25  # Or one over it.

_NOISE = 0.03  # Of the same range.

_JITTER = 0.1  # Of the spread of a column.

_TOKENS = 0.1  # Share of the positions.

_LEAST = 1e-30  # Ranges of values below it count as it: no division by 0.


class _Look(layers.Layer):
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


@keras.saving.register_keras_serializable(_PACKAGE)
class Mirror(_Look):
    """Images `[n, h, w(, c)]`, left and right exchanged.

    >>> Mirror()(np.array([[[1, 2], [3, 4]]])).numpy().tolist()
    [[[2, 1], [4, 3]]]
    """

    def call(self, inputs: Any) -> Any:
        return ops.flip(inputs, axis=2)


@keras.saving.register_keras_serializable(_PACKAGE)
class Shift(_Look):
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


class _ImageLook(_Look):
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
    """Whole part `[h, w]` of places along an axis, within the image, and the rest `[h, w, 1, 1]`."""
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
      contrast: Factor of what differs from the middle of that range. (Not from the
        mean: how that is rounded depends on the other rows.)
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
      seed: Of the noise.
    """

    _arguments = ("strength", "seed")

    def __init__(self, strength: float = _NOISE, seed: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.strength = strength
        self.seed = seed

    def build(self, input_shape: Sequence[Any]) -> None:
        shape = (_TILE, _TILE, *(input_shape[3:] or (1,)))
        noise = np.random.default_rng(self.seed).normal(size=shape)
        self.noise = self._store("noise", noise.astype(np.float32))

    def _change(self, x: Any, low: Any, high: Any) -> Any:
        noise = ops.cast(_tiled(self.noise, ops.shape(x)[1:]), x.dtype)
        return x + self.strength * (high - low) * noise


def _tiled(pattern: Any, shape: Sequence[Any]) -> Any:
    """A pattern that is repeated along each axis until it has this shape, or cut.

    Axes of length 1 stay: they fit any.
    """
    for axis, side in enumerate(shape):
        own = pattern.shape[axis]
        if own != 1 and not (isinstance(side, int) and own == side):
            pattern = ops.take(pattern, ops.arange(side) % own, axis=axis)
    return pattern


@keras.saving.register_keras_serializable(_PACKAGE)
class Jitter(_Look):
    """Rows of numbers `[n, d]`, each column moved by a fixed step.

    Args:
      spread: Of each column, in its unit. `adapt` measures it; where it is 0 nothing is changed.
      strength: Standard deviation of the steps, in spreads.
      seed: Of the steps.

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


class _TokenLook(_Look):
    """A look at token ids `[n, t]`, in which a tenth of the positions is chosen.

    Where t is not fixed, the choice among the first 64 is repeated.

    Args:
      seed: Of the choice.
    """

    _arguments = ("seed",)

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        self.seed = seed

    def build(self, input_shape: Sequence[int | None]) -> None:
        length = input_shape[1] or _TILE
        count = min(max(round(_TOKENS * length), 1), length - 1)
        chosen = np.zeros(length, np.int32)
        chosen[np.random.default_rng(self.seed).permutation(length)[:count]] = 1
        self.chosen = self._store("chosen", chosen)


@keras.saving.register_keras_serializable(_PACKAGE)
class DropTokens(_TokenLook):
    """Token ids `[n, t]` without a tenth of them: the rest moves up, and 0 follows at the end.

    Where t is not fixed, the choice among the first 64 positions is repeated.

    Args:
      seed: Of the choice.
    """

    def call(self, inputs: Any) -> Any:
        length = ops.shape(inputs)[1]
        chosen, places = _tiled(self.chosen, [length]), ops.arange(length)
        # Those that stay come first, in their order.
        order = ops.argsort(chosen * length + places)
        rest = ops.take(chosen, order) == 0
        return ops.where(rest, ops.take(inputs, order, axis=1), ops.zeros_like(inputs))


@keras.saving.register_keras_serializable(_PACKAGE)
class MaskTokens(_TokenLook):
    """Token ids `[n, t]`, a tenth of them set to 0.

    Where t is not fixed, the choice among the first 64 positions is repeated.

    Args:
      seed: Of the choice.
    """

    def call(self, inputs: Any) -> Any:
        chosen = _tiled(self.chosen, ops.shape(inputs)[1:])
        return ops.where(chosen == 1, ops.zeros_like(inputs), inputs)


@dataclasses.dataclass(frozen=True)
class Look:
    """One kind of change."""

    title: str
    """How reports call it."""
    kind: Literal["image", "numbers", "tokens"]
    """Which inputs it changes, see `looks_for`."""
    make: Callable[[tuple[int | None, ...], str, int], keras.layers.Layer]
    """(shape of one input, dtype, seed) → the layer. If it has a method `adapt`, that is to be
    called with samples `[m, …]` before the layer is used."""
    seeded: bool = False
    """Whether another seed makes another change."""


def _image(title: str, layer: Callable[..., keras.layers.Layer], **settings: Any) -> Look:
    return Look(title, "image", lambda shape, dtype, seed: layer(**settings))


def _jitter(shape: tuple[int | None, ...], dtype: str, seed: int) -> keras.layers.Layer:
    return Jitter([0.0] * (shape[0] or 0), seed=seed)


LOOKS: dict[str, Look] = {
    "mirror": _image("mirrored", Mirror),
    "shift_up": _image("moved up", Shift, down=-1),
    "shift_down": _image("moved down", Shift, down=1),
    "shift_left": _image("moved to the left", Shift, right=-1),
    "shift_right": _image("moved to the right", Shift, right=1),
    "rotate_left": _image("turned to the left", Resample, degrees=_DEGREES),
    "rotate_right": _image("turned to the right", Resample, degrees=-_DEGREES),
    "zoom_in": _image("enlarged", Resample, zoom=_ZOOM),
    "zoom_out": _image("made smaller", Resample, zoom=1 / _ZOOM),
    "brighter": _image("brighter", Tone, brightness=_BRIGHTNESS),
    "darker": _image("darker", Tone, brightness=-_BRIGHTNESS),
    "more_contrast": _image("more contrast", Tone, contrast=1 + _CONTRAST),
    "less_contrast": _image("less contrast", Tone, contrast=1 - _CONTRAST),
    "gamma_up": _image("darker middle tones", Tone, gamma=_GAMMA),
    "gamma_down": _image("brighter middle tones", Tone, gamma=1 / _GAMMA),
    "blur": _image("blurred", Blur),
    "noise": Look("with noise", "image", lambda shape, dtype, seed: Noise(seed=seed), seeded=True),
    "jitter": Look("numbers moved a little", "numbers", _jitter, seeded=True),
    "drop_tokens": Look(
        "without some tokens", "tokens", lambda shape, dtype, seed: DropTokens(seed), seeded=True
    ),
    "mask_tokens": Look(
        "some tokens masked", "tokens", lambda shape, dtype, seed: MaskTokens(seed), seeded=True
    ),
}
"""By name, in the order of reports."""


def looks_for(shape: Sequence[int | None], dtype: str) -> tuple[str, ...]:
    """Names of the looks that suit inputs of a classifier.

    Images are of at least 8 × 8 pixels and at most 4 channels, float or integer; numbers are rows
    of floats; tokens are rows of integers, whatever their length.

    Args:
      shape: Of one input; None where an axis has no fixed length.
      dtype: Of the inputs.

    Returns:
      Names in `LOOKS`; none if there is no look for such inputs.

    >>> looks_for((20,), "float32"), looks_for((None,), "int64"), looks_for((), "string")
    (('jitter',), ('drop_tokens', 'mask_tokens'), ())
    """
    floats, integers = keras.backend.is_float_dtype(dtype), keras.backend.is_int_dtype(dtype)
    kind = ""
    if is_image(shape) and (floats or integers):
        kind = "image"
    elif len(shape) == 1 and integers:
        kind = "tokens"
    elif len(shape) == 1 and floats and shape[0] is not None:
        kind = "numbers"
    return tuple(name for name, look in LOOKS.items() if look.kind == kind)


_DROPOUT = (layers.Dropout, layers.GaussianDropout, layers.AlphaDropout)


@keras.saving.register_keras_serializable(_PACKAGE)
class StoredDropout(_Look):
    """One draw of a dropout layer, the same for every row: x `[n, …]` → scale · x + offset.

    Args:
      scale_shape: Shape of the stored scale, without the axis of rows. It is repeated along axes
        that are longer, and fits any where it is 1.
      offset_shape: The same for the offset.
    """

    _arguments = ("scale_shape", "offset_shape")

    def __init__(
        self, scale_shape: Sequence[int], offset_shape: Sequence[int], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.supports_masking = True
        self.scale_shape = tuple(scale_shape)
        self.offset_shape = tuple(offset_shape)
        self.scale = self._store("scale", np.ones(self.scale_shape, np.float32))
        self.offset = self._store("offset", np.zeros(self.offset_shape, np.float32))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        shape = ops.shape(inputs)[1:]
        scale = ops.cast(_tiled(self.scale, shape), inputs.dtype)
        return inputs * scale + ops.cast(_tiled(self.offset, shape), inputs.dtype)


@keras.saving.register_keras_serializable(_PACKAGE)
class FixedDropout(_Look):
    """A classifier in inference mode, but with one draw of its dropout for all rows and passes.

    The classifier itself stays as it is, and its weights are used, not copied. A file that has the
    classifier beside this layer keeps them once.

    Args:
      model: See `fixed_dropout`.
      seed: Of the draws.
      draws: One for each of the layers that drop, in their order; None draws them.
    """

    def __init__(
        self,
        model: keras.Model,
        seed: int = 0,
        draws: Sequence[StoredDropout] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.model = model
        self.seed = seed
        dropping = _dropping(model)
        if draws is None:
            draws = [_draw(layer, seed + place) for place, layer in enumerate(dropping)]
        self.draws = list(draws)
        self._draw_of = {id(layer): draw for layer, draw in zip(dropping, draws, strict=True)}

    def get_config(self) -> dict[str, Any]:
        own = {
            "model": keras.saving.serialize_keras_object(self.model),
            "seed": self.seed,
            "draws": [keras.saving.serialize_keras_object(draw) for draw in self.draws],
        }
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        read = keras.saving.deserialize_keras_object
        own = {"model": read(config["model"]), "draws": [read(draw) for draw in config["draws"]]}
        return cls(**{**config, **own})

    def compute_output_spec(self, inputs: Any, *others: Any, **named: Any) -> Any:
        return keras.tree.map_structure(
            lambda output: keras.KerasTensor(output.shape, output.dtype), _output(self.model)
        )

    def call(self, inputs: Any) -> Any:
        return self._pass(self.model, ops.cast(inputs, self.model.inputs[0].dtype))

    def _pass(self, model: keras.Model, inputs: Any) -> Any:
        # Not with clone_model: files of two models of the same layers are read wrongly by Keras.
        graph = getattr(model, "_functional", model)
        outputs = graph._run_through_graph(inputs, operation_fn=self._step)
        return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs

    def _step(self, operation: Any) -> Callable[..., Any]:
        """What takes the place of a layer of the classifier."""
        if id(operation) in self._draw_of:
            return self._draw_of[id(operation)]
        if _is_graph(operation) and _dropping(operation):
            return lambda inputs, **named: self._pass(operation, inputs)
        if isinstance(operation, layers.Layer):
            return lambda *inputs, **named: operation(*inputs, **{"training": False, **named})
        return operation


def fixed_dropout(model: keras.Model, seed: int) -> keras.Model:
    """A thinned classifier: its dropout is on, with one draw for all rows and passes.

    So a pass of MC dropout (Gal and Ghahramani, 2016) becomes deterministic. Dropout,
    SpatialDropout, GaussianDropout and AlphaDropout are replaced, inside of nested functional and
    Sequential models, too; what other layers drop by themselves (attention, recurrent layers,
    wrappers) is not. Everything else, BatchNorm too, is in inference mode.

    Args:
      model: Functional, or a Sequential that is built; of one input.
      seed: Of the draws.

    Returns:
      A model of the same input and outputs. The weights are those of `model`: whoever changes one
      changes both. A file may have both of them. (Of a classifier that is cut in two, thin the part
      with the dropout itself: Keras cannot read a file that has a model and, beside it, another
      one that calls it.)

    Raises:
      ValueError: If the model is of another kind, or has no dropout that can be replaced.

    >>> model = keras.Sequential([keras.Input((1000,)), layers.Dropout(0.2)])
    >>> thin = fixed_dropout(model, seed=0)
    >>> sorted({round(float(value), 2) for value in thin(np.ones((1, 1000)))[0]})
    [0.0, 1.25]
    """
    if not _is_graph(model) or len(model.inputs) != 1:
        raise ValueError(
            "fixed_dropout: expected a functional or a built Sequential model of one input, "
            f"received a {type(model).__name__}; build its layers as a functional model"
        )
    if not _dropping(model):
        raise ValueError(
            f"fixed_dropout: expected a model with dropout, received {model.name} of layers "
            f"{', '.join(layer.name for layer in model.layers)}; leave this look out"
        )
    start = model.inputs[0]
    inputs = keras.Input(start.shape[1:], dtype=start.dtype)
    # Of a name of its own: it may stand beside the classifier in one model.
    name = f"{model.name}_dropout_{seed}"
    return keras.Model(inputs, FixedDropout(model, seed)(inputs), name=name)


def _output(model: keras.Model) -> Any:
    """The output of a model, or what holds its outputs by name or in order."""
    output = model.outputs if isinstance(model, keras.Sequential) else model.output
    return output[0] if isinstance(output, list) and len(output) == 1 else output


def _is_graph(layer: Any) -> bool:
    return isinstance(layer, keras.Model) and bool(getattr(layer, "outputs", None))


def _dropping(model: keras.Model) -> list[layers.Layer]:
    """Layers of dropout in a model and in the models inside of it."""
    found: dict[int, layers.Layer] = {}
    for layer in model.layers:
        if isinstance(layer, _DROPOUT) and layer.rate > 0:
            found[id(layer)] = layer
        elif _is_graph(layer):
            found |= {id(inner): inner for inner in _dropping(layer)}
    return list(found.values())


def _draw(layer: keras.layers.Layer, seed: int) -> StoredDropout:
    """One draw of a dropout layer."""
    settings = {**layer.get_config(), "seed": seed, "dtype": "float32"}
    if settings.get("noise_shape"):
        settings["noise_shape"] = (1, *settings["noise_shape"][1:])
    shape = tuple(_TILE if side is None else side for side in layer.input.shape[1:])
    # All of them are linear in each number: what they do with 0 and with 1 says it all.
    offset, total = (
        ops.convert_to_numpy(
            type(layer).from_config(settings)(
                np.full((1, *shape), value, np.float32), training=True
            )
        )[0]
        for value in (0, 1)
    )
    scale, offset = _shortest(total - offset), _shortest(offset)
    stored = StoredDropout(scale.shape, offset.shape, name=layer.name)
    stored.scale.assign(scale)
    stored.offset.assign(offset)
    return stored


def _shortest(pattern: np.ndarray) -> np.ndarray:
    """The pattern, of length 1 along axes along which nothing changes."""
    for axis in range(pattern.ndim):
        first = pattern.take([0], axis)
        if (pattern == first).all():
            pattern = first
    return pattern
