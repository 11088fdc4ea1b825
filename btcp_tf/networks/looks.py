"""Looks: changes of an input that should leave its class as it is.

What a classifier answers to a changed input is evidence about its answer to the input itself, and
so is what it answers with a part of it dropped out. Both are deterministic, and a row's answer does
not depend on the other rows.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from btcp_tf.data import named_inputs
from btcp_tf.networks.classifiers import named_tensors, new_inputs
from btcp_tf.networks.evidence_layers import is_image
from btcp_tf.networks.look_layers import (
    TILE,
    Blur,
    DropTokens,
    Jitter,
    LookLayer,
    MaskTokens,
    Mirror,
    Noise,
    Resample,
    Shift,
    Tone,
    tiled,
)

_PACKAGE = "btcp_tf"

_DEGREES = 8.0

_ZOOM = 1.12

# Binary fractions: 8-bit pixels are computed without rounding, in whatever order.
_BRIGHTNESS = 0.125  # Of the range between the darkest and the brightest value.

_CONTRAST = 0.25  # More, or less.

_GAMMA = 1.25  # Or one over it.


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

GROUPS: dict[str, tuple[str, ...]] = {
    "shifts": ("shift_up", "shift_down", "shift_left", "shift_right"),
    "rotations": ("rotate_left", "rotate_right"),
    "zooms": ("zoom_in", "zoom_out"),
}
"""By name of a group the names of looks whose mean probabilities are one look: each of them may
change too few answers to be shown to help, where all of them together do."""

AUTO = ("mirror", "zoom_in", *GROUPS, "jitter", "drop_tokens", "mask_tokens")
"""Names that "auto" stands for. The more looks are on offer, the more errors it takes to show that
one of them helps; changes of color, blur and noise did not for a ResNet-20 on CIFAR-10."""


def looks_for(shape: Sequence[int | None], dtype: str) -> tuple[str, ...]:
    """Names of the looks that suit inputs of a classifier.

    Images are of at least 8 × 8 pixels and at most 4 channels, float or integer; numbers are rows
    of floats; tokens are rows of integers, whatever their length.

    Args:
      shape: Shape of one input; None where an axis has no fixed length.
      dtype: Type of the inputs.

    Returns:
      Names in `LOOKS` and `GROUPS`; none if there is no look for such inputs.

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
    names = [name for name, look in LOOKS.items() if look.kind == kind]
    return (*names, *(name for name, parts in GROUPS.items() if parts[0] in names))


_DROPOUT = (layers.Dropout, layers.GaussianDropout, layers.AlphaDropout)


@keras.saving.register_keras_serializable(_PACKAGE)
class StoredDropout(LookLayer):
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
        scale = ops.cast(tiled(self.scale, shape), inputs.dtype)
        return inputs * scale + ops.cast(tiled(self.offset, shape), inputs.dtype)


@keras.saving.register_keras_serializable(_PACKAGE)
class FixedDropout(LookLayer):
    """A classifier in inference mode, but with one draw of its dropout for all rows and passes.

    The classifier itself stays as it is, and its weights are used, not copied. A file that has the
    classifier beside this layer keeps them once.

    Args:
      model: See `fixed_dropout`.
      seed: Seed of the draws.
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
        if draws is None:
            draws = [
                _draw(layer, seed + place) for place, layer in enumerate(dropout_layers(model))
            ]
        self.draws = list(draws)

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
        tensors = named_tensors(self.model)
        inputs = named_inputs.each(lambda one, like: ops.cast(one, like.dtype), inputs, tensors)
        # Not kept: TensorFlow would save it, and cannot save numbers as names.
        draw_of = {
            id(layer): draw
            for layer, draw in zip(dropout_layers(self.model), self.draws, strict=True)
        }
        return through(self.model, inputs, draw_of)


def through(model: keras.Model, inputs: Any, dropout: Mapping[int, layers.Layer]) -> Any:
    """The output of a graph of layers in inference mode, with others in place of its dropout.

    Models inside of it that have dropout are taken as the graphs that they are.

    Args:
      model: Functional, or a Sequential that is built.
      inputs: As the model takes them.
      dropout: What takes the place of each of `dropout_layers(model)`, by its `id`.
    """

    def instead(operation: Any) -> Callable[..., Any]:
        if id(operation) in dropout:
            other = dropout[id(operation)]
            return lambda inputs, **named: other(inputs)
        if _is_graph(operation) and dropout_layers(operation):
            return lambda inputs, **named: through(operation, inputs, dropout)
        if isinstance(operation, layers.Layer):
            return lambda *inputs, **named: operation(*inputs, **{"training": False, **named})
        return operation

    # Not with clone_model: files of two models of the same layers are read wrongly by Keras.
    graph = getattr(model, "_functional", model)
    outputs = graph._run_through_graph(inputs, operation_fn=instead)
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs


def fixed_dropout(model: keras.Model, seed: int) -> keras.Model:
    """A thinned classifier: its dropout is on, with one draw for all rows and passes.

    So a pass of MC dropout (Gal and Ghahramani, 2016) becomes deterministic. Dropout,
    SpatialDropout, GaussianDropout and AlphaDropout are replaced, inside of nested functional and
    Sequential models, too; what other layers drop by themselves (attention, recurrent layers,
    wrappers) is not. Everything else, BatchNorm too, is in inference mode.

    Args:
      model: Functional, its inputs in a dictionary if there are several; or a Sequential that is
        built.
      seed: Seed of the draws.

    Returns:
      A model of the same inputs and outputs. The weights are those of `model`: whoever changes one
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
    if not _is_graph(model):
        raise ValueError(
            "fixed_dropout: expected a functional or a built Sequential model, "
            f"received a {type(model).__name__}; build its layers as a functional model"
        )
    if not dropout_layers(model):
        raise ValueError(
            f"fixed_dropout: expected a model with dropout, received {model.name} of layers "
            f"{', '.join(layer.name for layer in model.layers)}; leave this look out"
        )
    inputs = new_inputs(named_tensors(model))
    # Of a name of its own: it may stand beside the classifier in one model.
    name = f"{model.name}_dropout_{seed}"
    return keras.Model(inputs, FixedDropout(model, seed)(inputs), name=name)


def _output(model: keras.Model) -> Any:
    """The output of a model, or what holds its outputs by name or in order."""
    output = model.outputs if isinstance(model, keras.Sequential) else model.output
    return output[0] if isinstance(output, list) and len(output) == 1 else output


def _is_graph(layer: Any) -> bool:
    return isinstance(layer, keras.Model) and bool(getattr(layer, "outputs", None))


def dropout_layers(model: keras.Model) -> list[layers.Layer]:
    """Layers of dropout in a model and in the models inside of it."""
    dropping: dict[int, layers.Layer] = {}
    for layer in model.layers:
        if isinstance(layer, _DROPOUT) and layer.rate > 0:
            dropping[id(layer)] = layer
        elif _is_graph(layer):
            dropping |= {id(inner): inner for inner in dropout_layers(layer)}
    return list(dropping.values())


def _draw(layer: keras.layers.Layer, seed: int) -> StoredDropout:
    """One draw of a dropout layer."""
    settings = {**layer.get_config(), "seed": seed, "dtype": "float32"}
    if settings.get("noise_shape"):
        settings["noise_shape"] = (1, *settings["noise_shape"][1:])
    shape = tuple(TILE if side is None else side for side in layer.input.shape[1:])
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
