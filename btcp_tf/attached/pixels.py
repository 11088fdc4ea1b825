"""On which scale a classifier of float images expects the pixels of a file."""

import keras
import numpy as np

from btcp_tf.data import input_checks
from btcp_tf.data.images import PIXELS, are_image_sizes
from btcp_tf.data.input_checks import InputRange
from btcp_tf.networks import classifiers


def scale_of_pixels(encoder: keras.Model, pixels: str, inputs: InputRange | None) -> str | None:
    """The scale of pixels, of `data.PIXELS`, for a classifier; None: unknown, or they are taken as
    they are.

    Args:
      encoder: The classifier's first part.
      pixels: "auto" or a name of `data.PIXELS`.
      inputs: Range of the inputs that it was fitted on.

    Raises:
      ValueError: If there is no such name, or inputs of this range are on another scale.
    """
    if pixels not in ("auto", *PIXELS):
        raise ValueError(
            f"pixels: expected auto or one of {', '.join(PIXELS)}, received {pixels!r}"
        )
    if len(encoder.inputs) > 1:  # None is known by files; `export` refuses a scale.
        return None if pixels == "auto" else pixels
    is_float = "float" in encoder.inputs[0].dtype
    if pixels == "auto":
        if not is_float or not are_image_sizes(encoder.inputs[0].shape[1:]) or inputs is None:
            return None
        return input_checks.pixels_of(inputs, _rescaling(encoder))
    if not is_float and pixels == "0_255":
        return None
    if inputs is not None and not input_checks.may_be_pixels(inputs, pixels):
        raise ValueError(
            f"pixels: expected the scale of the numbers that fit saw, {inputs.text}, received "
            f"{pixels!r}"
        )
    return pixels


def _rescaling(encoder: keras.Model) -> tuple[float, float] | None:
    """(scale, offset) of a Rescaling layer that is the first of the encoder."""
    for layer in classifiers.flat_layers(encoder):
        if isinstance(layer, keras.layers.Rescaling):
            if np.ndim(layer.scale) or np.ndim(layer.offset):
                return None
            return float(layer.scale), float(layer.offset)
        if not isinstance(layer, keras.layers.InputLayer | keras.Model):
            return None
    return None
