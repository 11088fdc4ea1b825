"""Whether a given classifier can be right about a data set, and if not, what may be the matter.

It may be fed other pixels than it was trained on, or its classes may be in another order: both
answer without an error. What it answers then is refused before long work.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from btcp_tf.data.images import PIXELS
from btcp_tf.data.splits import Dataset
from btcp_tf.networks import models, plausibility
from btcp_tf.training.inference import Inference

if TYPE_CHECKING:
    import keras

_IMAGES = 2000
"""Validation images that are looked at."""

_TRIED = 500
"""Of them for each way to read pixels."""

_FEW_ERRORS = 0.1
"""Share of errors below which no other ways to read pixels are tried."""


class Reading(NamedTuple):
    """What a classifier may have been trained on: scale * x + offset of pixels x of 0 to 255."""

    scale: float | tuple[float, ...]
    offset: float | tuple[float, ...]
    bgr: bool = False
    """Whether the channels are in the order blue, green, red."""


def readings(images: np.ndarray) -> dict[str, Reading]:
    """Ways to read pixels that are in use, in words.

    Args:
      images: Training images, uint8 `[n, height, width, channels]`.
    """
    mean, std = round(float(images.mean()), 1), round(float(images.std()), 1) or 1.0
    known = {name: Reading(*pair) for name, pair in PIXELS.items()}
    found = {f"--classifier_pixels={name}": one for name, one in known.items()} | {
        "255 - x": Reading(-1.0, 255.0),
        "1 - x / 255": Reading(-1.0 / 255, 1.0),
        "1 - x / 127.5": Reading(-2.0 / 255, 1.0),
        f"x - {mean:g}": Reading(1.0, -mean),
        f"(x - {mean:g}) / 255": Reading(1.0 / 255, -mean / 255),
        f"(x - {mean:g}) / {std:g}": Reading(1.0 / std, -mean / std),
    }
    if images.shape[3] == 3:
        found |= {
            f"{name} in the color order BGR": one._replace(bgr=True) for name, one in known.items()
        }
        # As Keras' applications prepare images in the modes "caffe" and "torch".
        found["x - (103.939, 116.779, 123.68), in the color order BGR (caffe)"] = Reading(
            1.0, (-103.939, -116.779, -123.68), True
        )
        center, width = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        found["(x / 255 - ImageNet's mean) / its standard deviation"] = Reading(
            tuple(1 / 255 / w for w in width),
            tuple(-c / w for c, w in zip(center, width, strict=True)),
        )
    return found


def why_poor(network: "keras.Model", dataset: Dataset, batch_size: int) -> str:
    """Why a given classifier cannot be right about the validation images, in words; "": it can be.

    Args:
      network: From `networks.adopt`; stays as it is.
      dataset: Its validation images are answered.
      batch_size: Images at once.
    """
    images, labels = dataset.validation.images[:_IMAGES], dataset.validation.labels[:_IMAGES]
    outputs = models.outputs_model(network)
    logits = Inference(outputs, batch_size)(images)["logits"]
    if not np.isfinite(logits).all():
        return "it answers NaN or infinity"
    found = plausibility.examine(logits, labels, dataset.class_names)
    right = logits.argmax(axis=1) == labels
    if not found.words and not (~right).mean() > _FEW_ERRORS:
        return ""
    few = slice(0, _TRIED)
    better = {}
    for words, answers in _readings_tried(network, images[few], readings(dataset.train.images)):
        others = answers.argmax(axis=1) == labels[few]
        if plausibility.clearly_better(others, right[few]):
            better[words] = others.mean()
    if better:
        best = sorted(better, key=lambda words: -better[words])[:3]
        shown = ", ".join(f"{words} ({better[words]:.1%})" for words in best)
        suspect = (
            f"pixels x may have to be read otherwise: of {len(labels[few])} samples it is right on "
            f"{right[few].mean():.1%}, and with {shown}; what --classifier_pixels cannot say "
            "belongs into the file as first layers"
        )
        return f"{found.words}; {suspect}" if found.words else suspect
    if found.words and not found.order:
        return (
            f"{found.words}; suspects are the input scale (tried: those of --classifier_pixels, "
            "inverted pixels, the mean subtracted), the color order and the class order (no "
            "exchange of classes fits), or it is not trained"
        )
    return found.words


def _readings_tried(
    network: "keras.Model", images: np.ndarray, ways: dict[str, Reading]
) -> Iterator[tuple[str, np.ndarray]]:
    """(words, logits) of each way to read pixels that the network can be made to read."""
    encoder = network.get_layer("encoder")
    if models.reads_whole_numbers(network):
        # It takes them as they are, without a layer that could be set.
        infer = Inference(models.outputs_model(network), _TRIED)
        yield "255 - x", infer(255 - images)["logits"]
        if images.shape[3] == 3:
            yield "x in the color order BGR", infer(images[..., ::-1])["logits"]
        return
    layer = encoder.get_layer("scale")
    before = layer.scale, layer.offset
    try:
        for words, (scale, offset, bgr) in ways.items():
            layer.scale, layer.offset = np.asarray(scale), np.asarray(offset)
            # Traced anew: the numbers are constants of the graph.
            infer = Inference(models.outputs_model(network), _TRIED)
            yield words, infer(images[..., ::-1] if bgr else images)["logits"]
    finally:
        layer.scale, layer.offset = before
