"""The graph that is served: inputs, signatures and the decision."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import thresholds
from btcp_tf.core.config import MAX_PIXELS
from btcp_tf.data import named_inputs
from btcp_tf.data.images import LUMA, PIXELS, are_image_sizes, scaled
from btcp_tf.data.input_checks import FLAT, InputRange, Ranges
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.decisions.exported import SIGNATURE
from btcp_tf.methods.recalibration import SAME
from btcp_tf.networks import deciding, models
from btcp_tf.networks.classifiers import named_tensors
from btcp_tf.networks.gate_layers import place_among
from btcp_tf.serving.stored_variables import ABOUT as ABOUT
from btcp_tf.thresholds import GROUP, GroupThreshold, Threshold
from btcp_tf.training.inference import Inference

BATCH = 256
"""Batch size in which the calibration set is answered, when the threshold is chosen and when the
export is checked. Other batches may round the last digits in another way."""


def served(model: keras.Model, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Answers of the SavedModel of a model, before u is rounded to float32.

    The threshold of a SavedModel is chosen on these answers. They are computed on the CPU and in
    the same batches as in the check of the export.

    Args:
      model: As in `export`.
      inputs: `[n, ...]` in the model's type, n > 0; several by name.

    Returns:
      `probs` float32 `[n, k]`, and u float64 `[n]`: expit of logit(u) where there is one.
    """
    with tf.device("/CPU:0"):
        answers = Inference(models.with_logit(on_one_device(model)), BATCH)(inputs)
    return answers["probs"].astype(np.float32), models.uncertainty_of(answers)


def in_own_type(model: keras.Model, inputs: Any) -> Inputs:
    """Inputs as arrays; text as bytes in UTF-8, which files of arrays can hold."""

    def own(one: Any, like: Any) -> np.ndarray:
        one = np.asarray(one)
        is_text = like.dtype == "string" and one.dtype.kind in "OU"
        return np.char.encode(one.astype(str), "utf-8") if is_text else one

    return named_inputs.each(own, inputs, named_tensors(model))


def specs(like: Any) -> dict[str, tf.TensorSpec]:
    """What `SIGNATURE` takes, by name: the inputs of `named_tensors`, or `images` where it is
    one."""
    return {
        name or IMAGES: tf.TensorSpec((None, *one.shape[1:]), one.dtype, name=name or IMAGES)
        for name, one in named_inputs.items(like)
    }


def on_one_device(model: keras.Model) -> keras.Model:
    """The model, or a copy where it lives under a distribution strategy."""
    # The graphs of a distributed model name this machine's devices, and a server has others.
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in model.variables):
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        return copy
    return model


IMAGES = "images"
"""Name of the input of a model that has one, whatever it is of."""

TAU, LIMITS = "btcp_tf_tau", "btcp_tf_limits"
"""Names of the model's variables that `with_threshold` changes, beside `ABOUT`. It has the first
where it compares u, as all models of 0.1.0 do, or the second, `limits_of`, where it compares
logits. Each holds a row for each class that may be predicted, or for each group and one for all
others; in models of earlier versions one for all."""

GROUPS = "btcp_tf_groups"
"""Name of the variable with the names of the groups, beside `TAU` or `LIMITS` of a model whose
thresholds are by group."""

RECALIBRATION = "btcp_tf_recalibration"
"""Name of the variable with a `recalibration.Map`, beside `LIMITS` since 0.2.0."""


def groups_of(threshold: Threshold) -> list[str] | None:
    """The groups that have a threshold of their own, in order; None: it is not by group."""
    if isinstance(threshold, GroupThreshold) and threshold.by == GROUP:
        return [*threshold.parts]
    return None


def limits_of(
    threshold: Threshold, classes: int, by_logit: bool, groups: Sequence[str] | None = None
) -> np.ndarray:
    """What the graph compares with, a row for each: `[m]` u, or `[m, 3]` of `_limits`.

    Args:
      threshold: What is accepted.
      classes: The rows are for these, k.
      by_logit: Whether the graph compares logits.
      groups: Names of g groups; the rows are for them then, the last, `[g]`, for all others.
    """
    if groups is None:
        taus = threshold.limits(np.arange(classes))
    else:
        taus = threshold.limits(np.array([*groups, _no_group(groups)]))
    if not by_logit:
        return taus
    distinct, place = np.unique(taus, return_inverse=True)
    return np.stack([_limits(float(tau)) for tau in distinct])[place]


def _no_group(groups: Sequence[str]) -> str:
    """A name that none of them has."""
    return "".join(groups) + "?"


def _limits(tau: float) -> np.ndarray:
    """The limit on logit(u), the largest float32 below tau, and the smallest from tau on."""
    tiny = np.finfo(np.float32).tiny
    with np.errstate(over="ignore"):
        near = np.float32(tau)
    below = near if float(near) < tau else np.nextafter(near, np.float32(-np.inf))
    above = near if float(near) >= tau else np.nextafter(near, np.float32(np.inf))
    # Processors may take the numbers between 0 and tiny for 0.
    if 0 < tau <= tiny:
        below, above = np.float32(0), tiny
    return np.array([thresholds.logit_limit(tau), below, above], np.float64)


_CONSTANT_SIZE = 2**16
"""Weights of at most so many numbers are constants of the graph."""


def _with_constants(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
    """The model at inference, as one function that all signatures share.

    oneDNN packs a product's weights once where they are constants, and at each call where they are
    variables. For a single image that packing costs an estimator of small layers more than its
    products; large weights gain less, and would bring the graph near protobuf's 2 GiB.
    """

    small = {
        id(variable): variable.value.numpy()
        for variable in model.variables
        if variable.value.dtype.is_floating
        and variable.value.shape.num_elements() <= _CONSTANT_SIZE
    }

    def values(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
        # Made inside the function: a constant from outside would be an input of it.
        return [tf.constant(small[id(v)]) if id(v) in small else v.value for v in variables]

    like = named_tensors(model)
    spec = named_inputs.each(lambda one: tf.TensorSpec(one.shape, one.dtype), like)

    @tf.function(input_signature=[spec], autograph=False)
    def outputs(images: Any) -> dict[str, tf.Tensor]:
        return model.stateless_call(
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            images,
            training=False,
        )[0]

    return outputs


def _padded(one: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """An empty batch as one blank row, whose answer is cut off.

    oneDNN's fused convolution gives an empty batch the shape of its input (TensorFlow 2.21), and
    what follows fails.
    """
    blank = tf.cast(count == 0, tf.int32)
    return tf.pad(one, [[0, blank]] + [[0, 0]] * (one.shape.rank - 1))


def _recalibrated(
    answers: dict[str, tf.Tensor], change: tf.Variable
) -> tuple[tf.Tensor, tf.Tensor]:
    """logit(u) float64 and u float32, `[n, 1]` each, as a `recalibration.Map` changes them."""
    alpha, beta, gamma = tf.unstack(change.read_value())
    logit, z = (tf.cast(answers[name], tf.float64) for name in ("logit", "mcp_logit"))
    # Neither infinity times 0 is NaN.
    logit = tf.math.multiply_no_nan(logit, alpha) + tf.math.multiply_no_nan(z, gamma) + beta
    u = tf.cast(tf.sigmoid(logit), tf.float32)
    # To the bit as it was, without a change.
    is_same = tf.reduce_all(change == tf.constant(list(SAME), tf.float64))
    return logit, tf.where(is_same, tf.cast(answers["uncertainty"], tf.float32), u)


class _Decision(NamedTuple):
    """The variables of a graph that it decides by."""

    limit: tf.Variable
    """Of `limits_of`."""
    change: tf.Variable | None = None
    """A `recalibration.Map`; None: u is compared, and nothing changes it."""
    groups: tf.Variable | None = None
    """Names `[g]` of the groups of `limit`; None: its rows are for classes."""
    group_input: str = ""
    """Name of the input with the group of each row."""

    def limits(self, predicted: tf.Tensor, group: tf.Tensor | None) -> tf.Tensor:
        """What each answer is compared with: `[n]`, or `[n, 3]`."""
        if self.groups is None or group is None:
            return tf.gather(self.limit, predicted)
        # The row behind those of all groups is for others.
        return tf.gather(self.limit, place_among(group, self.groups.read_value()))


def _decide(
    outputs: Callable[[Any, tf.Tensor | None], dict[str, tf.Tensor]],
    class_names: Sequence[str],
    decision: _Decision,
    inputs: Any,
    group: tf.Tensor | None,
) -> dict[str, tf.Tensor]:
    """What the signatures answer, by name."""
    change = decision.change
    # A server's session checks no shapes, and some networks take images of any size.
    inputs = named_inputs.each(lambda one: tf.ensure_shape(one, one.shape), inputs)
    counts = [tf.shape(one)[0] for _, one in named_inputs.items(inputs)]
    names = [name or IMAGES for name, _ in named_inputs.items(inputs)]
    if group is not None:
        counts, names = [*counts, tf.shape(group)[0]], [*names, decision.group_input]
    count = counts[0]
    if len(counts) > 1:
        message = [f"expected as many rows of each of {', '.join(names)}, received", *counts]
        same = tf.reduce_all(tf.stack(counts) == count)
        with tf.control_dependencies([tf.debugging.Assert(same, message)]):
            count = tf.identity(count)
    answers = outputs(
        named_inputs.each(lambda one: _padded(one, count), inputs),
        None if group is None else _padded(group, count),
    )
    probs = tf.cast(answers["probs"][:count], tf.float32)
    predicted = tf.argmax(probs, axis=-1, output_type=tf.int64)
    uncertainty = tf.cast(answers["uncertainty"][:count, 0], tf.float32)
    own = decision.limits(predicted, group)
    if change is not None:
        logit, uncertainty = (one[:count, 0] for one in _recalibrated(answers, change))
        accept = logit < own[:, 0]
        # On the side of tau that it is on: float32 may round it to the other one.
        below, above = tf.cast(own[:, 1], tf.float32), tf.cast(own[:, 2], tf.float32)
        uncertainty = tf.where(
            accept, tf.minimum(uncertainty, below), tf.maximum(uncertainty, above)
        )
    else:
        # A tau between neighboring float32 must not be rounded to one of them.
        accept = tf.cast(uncertainty, tf.float64) < own
    second = {}
    if "second_opinion" in answers:
        mean = tf.cast(answers["second_opinion"][:count], tf.float32)
        second["second_opinion"] = tf.argmax(mean, axis=-1, output_type=tf.int64)
        second["second_probability"] = tf.reduce_max(mean, axis=-1)
    return {
        "predicted": predicted,
        "class_name": tf.gather(tf.constant(class_names, tf.string), predicted),
        "probs": probs,
        "uncertainty": uncertainty,
        "accept": accept,
        **second,
    }


class Intake(NamedTuple):
    """What a model takes, and what it refuses."""

    low: float
    high: float
    """Float inputs from `low` to `high` are taken."""
    least: float
    """Unless all inputs of a request are constant, one must vary by as much."""
    expected: str
    """Description of these inputs, for errors."""
    pixels: str | None
    """Scale of `data.PIXELS`, for models of float images; None: unknown."""

    @classmethod
    def of(
        cls,
        like: Any,
        sample_images: np.ndarray,
        input_range: InputRange | None,
        pixels: str | None,
    ) -> "Intake":
        """Of one input, for the arguments of `export`; ValueError where `pixels` is not for it."""
        shape, dtype = tuple(like.shape[1:]), like.dtype
        if pixels is not None and (
            pixels not in PIXELS or "float" not in dtype or not are_image_sizes(shape)
        ):
            raise ValueError(
                f"pixels: expected one of {', '.join(PIXELS)} with a model of float images "
                f"[height, width, 1 or 3], received {pixels!r} with {dtype} {shape}"
            )
        if dtype == "uint8":
            # Images of two levels vary by one.
            fitted_on = input_range or InputRange.of(sample_images)
            least = (fitted_on.contrast or 0.0) / FLAT
            return cls(-255.0, 510.0, least, "pixels from 0 to 255", None)
        if input_range is None:
            return cls(-math.inf, math.inf, 0.0, "finite numbers", pixels)
        low, high = input_range.limits
        expected = f"numbers like those of fit, {input_range.text}"
        return cls(low, high, (input_range.contrast or 0.0) / FLAT, expected, pixels)

    @property
    def scale(self) -> tuple[float, float]:
        """(scale, offset) from pixels to the model's inputs."""
        return PIXELS[self.pixels or "0_255"]

    @classmethod
    def of_all(
        cls, model: keras.Model, sample: Inputs, input_range: Ranges, pixels: str | None
    ) -> Any:
        """Of the only input; of several by name."""
        like = named_tensors(model)
        if not isinstance(like, dict):
            return cls.of(like, sample, input_range, pixels)
        if pixels is not None:
            raise ValueError(
                f"pixels: expected none with several inputs ({', '.join(like)}), whose images come "
                f"as arrays, received {pixels!r}"
            )
        ranges = input_range or dict.fromkeys(like)
        return named_inputs.each(
            lambda one, rows, seen: cls.of(one, rows, seen, None), like, sample, ranges
        )

    def with_whole_pixels(self, images: np.ndarray) -> np.ndarray:
        """The nearest images that files can hold, where the model takes files of float images."""
        if not self.pixels:
            return images
        scale, offset = self.scale
        whole = np.rint((images - offset) / scale).clip(0, 255).astype(np.uint8)
        return scaled(whole, self.pixels).astype(images.dtype)


def _checked(intake: Intake, images: tf.Tensor, name: str = IMAGES) -> tf.Tensor:
    """The same floats; the request fails unless they are like those of fit, see `Intake`."""
    images = tf.debugging.check_numerics(images, f"{name}: expected {intake.expected}")
    if math.isinf(intake.high):
        return images
    axes = list(range(1, images.shape.rank))
    top = tf.cast(tf.reduce_max(images, axes), tf.float64)
    bottom = tf.cast(tf.reduce_min(images, axes), tf.float64)
    near = tf.reduce_all((bottom >= intake.low) & (top <= intake.high))
    spread = top - bottom
    vary = tf.reduce_any(spread >= intake.least) | ~tf.reduce_any(spread > 0)
    message = [f"{name}: expected {intake.expected}, received numbers from and to"]
    message += [tf.reduce_min(bottom), tf.reduce_max(top)]
    with tf.control_dependencies([tf.debugging.Assert(near & vary, message)]):
        return tf.identity(images)


def _rounded(intake: Intake, images: tf.Tensor) -> tf.Tensor:
    """Float pixels as uint8."""
    return tf.saturate_cast(tf.round(_checked(intake, images)), tf.uint8)


_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


_ANIMATION = r"\C*\x00\x00\x00\x08acTL\C*"
"""A PNG file with the chunk of animations. `\\C` is any byte."""

_HEAD_BYTES = 2**17
"""Where Exif and the chunk of animations are looked for: they stand before the pixels."""


def _known_files(image_bytes: tf.Tensor) -> tf.Tensor:
    """The same files; the request fails where `data.read_image` refuses one, or decodes it in
    another way than TensorFlow: palettes of BMP, GIF, WebP, 16 bits, animations."""
    heads = tf.strings.substr(image_bytes, 0, _HEAD_BYTES)
    # Substr fails where a file is shorter.
    padded = tf.strings.join([heads, tf.constant(25 * b"\0")])
    is_png = tf.strings.substr(padded, 0, len(_PNG)) == _PNG
    # The first chunk of a PNG file is its header; its bits a channel are in the 25th byte.
    is_deep = tf.strings.substr(padded, 24, 1) == b"\x10"
    is_animated = tf.strings.regex_full_match(heads, _ANIMATION)
    is_jpeg = tf.strings.substr(padded, 0, len(_JPEG)) == _JPEG
    good = (is_png & ~is_deep & ~is_animated) | is_jpeg
    first = tf.argmin(tf.concat([tf.cast(good, tf.int32), [0]], 0))
    expected = (
        "image_bytes: expected PNG or JPEG files of 8 bits a channel, received another in place"
    )
    remedy = "save it as PNG of 8 bits, without animation"
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.reduce_all(good), [expected, first, remedy])]
    ):
        return tf.identity(image_bytes)


def _small_enough(file: tf.Tensor) -> tf.Tensor:
    """The same file; the request fails where its head says that it has more pixels than are
    decoded. A few kilobytes can hold as many as fill the memory."""

    def of_png() -> tf.Tensor:
        # Width and height are the first two numbers of the header; high bytes come first.
        head = tf.strings.join([tf.strings.substr(file, 0, 24), tf.constant(24 * b"\0")])
        sides = tf.reshape(tf.io.decode_raw(tf.strings.substr(head, 16, 8), tf.uint8), (2, 4))
        places = tf.constant([2**24, 2**16, 2**8, 1], tf.int64)
        return tf.reduce_sum(tf.cast(sides, tf.int64) * places, axis=1)

    def of_jpeg() -> tf.Tensor:
        return tf.cast(tf.image.extract_jpeg_shape(file)[:2], tf.int64)

    is_png = tf.strings.substr(file, 0, len(_PNG)) == _PNG
    pixels = tf.reduce_prod(tf.cond(is_png, of_png, of_jpeg))
    message = [f"image_bytes: expected files of at most {MAX_PIXELS:,} pixels, received one of"]
    with tf.control_dependencies([tf.debugging.Assert(pixels <= MAX_PIXELS, [*message, pixels])]):
        return tf.identity(file)


def _decoded(shape: tuple[int, int, int], image_bytes: tf.Tensor) -> tf.Tensor:
    """Files as pixels, decoded and converted as `data.read_image` does."""
    height, width, channels = shape

    def decoded(file: tf.Tensor) -> tf.Tensor:
        file = _small_enough(file)
        # As Pillow does it, pixel for pixel. It decodes PNG, too.
        pixels = tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE")
        pixels = _upright(file, tf.cast(pixels, tf.float32))
        pixels.set_shape((None, None, 3))
        if channels == 1:
            pixels = tf.round(tf.tensordot(pixels, tf.constant(LUMA), 1)[..., None])
        pixels = tf.image.resize(pixels, (height, width), "bilinear", antialias=True)
        return tf.saturate_cast(tf.round(pixels), tf.uint8)

    files = _known_files(image_bytes)
    return tf.map_fn(decoded, files, fn_output_signature=tf.TensorSpec(shape, tf.uint8))


# The entry of the orientation among those of the first directory, in either order of bytes.
_ORIENTATION = (
    r"\C*(?:Exif\x00\x00|eXIf)(?:"
    r"II\*\x00\x08\x00\x00\x00\C\C(?:\C{12}){0,60}?\x12\x01\x03\x00\x01\x00\x00\x00([\x02-\x08])|"
    r"MM\x00\*\x00\x00\x00\x08\C\C(?:\C{12}){0,60}?\x01\x12\x00\x03\x00\x00\x00\x01\x00([\x02-\x08])"
    r")\C*"
)


def _upright(file: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`[height, width, 3]` turned as the file's Exif orientation says."""
    head = tf.strings.substr(file, 0, _HEAD_BYTES)

    def turned() -> tf.Tensor:
        orientation = tf.strings.regex_replace(head, _ORIENTATION, r"\1\2", replace_global=False)
        number = tf.cast(tf.io.decode_raw(orientation, tf.uint8)[0], tf.int32)
        # From 1 on: as it is, mirrored, turned by half, upside down; then the same, transposed.
        turns = [
            functools.partial(operator.getitem, image, (slice(None, None, y), slice(None, None, x)))
            for image in (pixels, tf.transpose(pixels, (1, 0, 2)))
            for y, x in ((1, 1), (1, -1), (-1, -1), (-1, 1))
        ]
        return tf.switch_case(number - 1, turns)

    return tf.cond(tf.strings.regex_full_match(head, _ORIENTATION), turned, lambda: pixels)


Signatures = dict[str, tuple[list[tf.TensorSpec], Callable]]
"""By name what a signature takes, and how the model's inputs are made of it."""


def signatures(like: Any, intake: Any) -> Signatures:
    """The signatures of a model of these inputs, for what `Intake.of_all` says of them."""
    if isinstance(like, dict):
        return {SIGNATURE: ([*specs(like).values()], functools.partial(_by_name, intake, like))}
    shape, dtype = tuple(like.shape[1:]), like.dtype

    def floats(image_bytes: tf.Tensor) -> tf.Tensor:
        scale, offset = intake.scale
        return tf.cast(_decoded(shape, image_bytes), dtype) * scale + offset

    own: Callable = (
        functools.partial(_checked, intake) if "float" in dtype else lambda images: images
    )
    known: Signatures = {SIGNATURE: ([*specs(like).values()], own)}
    files = tf.TensorSpec((None,), tf.string, name="image_bytes")
    if dtype == "uint8":
        spec = tf.TensorSpec((None, *shape), tf.float32, name=IMAGES)
        known["serving_float"] = ([spec], functools.partial(_rounded, intake))
        if are_image_sizes(shape):
            known["serving_bytes"] = ([files], functools.partial(_decoded, shape))
    elif intake.pixels:
        known["serving_bytes"] = ([files], floats)
    return known


def _by_name(intakes: dict[str, Intake], like: dict[str, Any], *inputs: tf.Tensor) -> Any:
    """Several inputs, checked as `_checked` does it."""
    named = dict(zip(like, inputs, strict=True))
    return {
        name: _checked(intakes[name], one, name) if "float" in like[name].dtype else one
        for name, one in named.items()
    }


class Blueprint(NamedTuple):
    """Everything that the answers of a SavedModel depend on."""

    model: keras.Model
    class_names: Sequence[str]
    threshold: Threshold
    about: str
    """What the signature `about` answers: JSON."""
    intake: Any
    """See `Intake.of_all`."""
    group_input: str = ""
    """Name of the input of all signatures with the group of each row, for a threshold by group; "":
    there is none."""


def _may_hold_tables(layer: keras.layers.Layer) -> bool:
    resource = tf.saved_model.experimental.TrackableResource
    return not layer.variables or any(isinstance(one, resource) for one in vars(layer).values())


def write(blueprint: Blueprint, directory: Path) -> None:
    """Writes a SavedModel, with the signatures of `saved_model.export`."""
    model, class_names, threshold, about, intake, group_input = blueprint
    model = models.with_logit(on_one_device(model))
    compares = LIMITS if "logit" in model.output else TAU
    groups = groups_of(threshold)
    value = limits_of(threshold, len(class_names), compares == LIMITS, groups)
    names = None
    if groups is not None:
        names = tf.Variable(groups, trainable=False, name=GROUPS, shape=[None])
    # Another threshold may be for other groups.
    shape = value.shape if groups is None else [None, *value.shape[1:]]
    limit = tf.Variable(value, dtype=tf.float64, trainable=False, name=compares, shape=shape)
    text = tf.Variable(about, trainable=False, name=ABOUT)
    change = None
    if compares == LIMITS:
        change = tf.Variable(list(SAME), dtype=tf.float64, trainable=False, name=RECALIBRATION)
    archive = keras.export.ExportArchive()
    # Layers that may hold lookup tables. Not the whole model: large weights would be stored once
    # more, beside those that the signatures use.
    tables = tf.Module()
    tables.layers = [*filter(_may_hold_tables, model._flatten_layers(include_self=False))]
    archive.track(tables)
    decision = _Decision(limit, change, names, group_input)
    variables = [one for one in (limit, text, change, names) if one is not None]
    archive.add_variable_collection("decision", variables)
    outputs = _with_constants(model)

    def answers(inputs: Any, group: tf.Tensor | None) -> dict[str, tf.Tensor]:
        return outputs(deciding.asked(model, inputs, group))

    def add(name: str, taken: list[tf.TensorSpec], answer: Callable) -> None:
        function = tf.function(answer, input_signature=taken, autograph=False)
        function.get_concrete_function()
        archive.add_endpoint(name, function)

    def decision_on(prepare: Callable) -> Callable:
        def answer(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            *own, group = inputs if group_input else (*inputs, None)
            return _decide(answers, class_names, decision, prepare(*own), group)

        return answer

    of_groups = [tf.TensorSpec((None,), tf.string, name=group_input)] if group_input else []
    for name, (taken, prepare) in signatures(deciding.own_inputs(model), intake).items():
        add(name, [*taken, *of_groups], decision_on(prepare))
    ask = tf.TensorSpec((None,), tf.string, name="ask")
    add("about", [ask], lambda ask: {"json": tf.fill(tf.shape(ask), text.read_value())})
    archive.write_out(str(directory), verbose=False)
