"""Whether a classifier from elsewhere can be right about a data set, and if not, why.

It may expect pixels on another scale, or its classes may be in another order. Neither is an error
of Keras, so that it is looked for before long work.
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
"""Validation images for each trial of another scale."""

_LOW_ERROR_RATE = 0.1
"""Error rate below which no other scale is tried."""


class Scaling(NamedTuple):
    """The input that a classifier may expect: scale * x + offset of pixels x from 0 to 255."""

    scale: float | tuple[float, ...]
    offset: float | tuple[float, ...]
    bgr: bool = False
    """Whether the channels are in the order blue, green, red."""


def scalings(images: np.ndarray) -> dict[str, Scaling]:
    """Scalings that are in use, by a description.

    Args:
      images: Training images, uint8 `[n, height, width, channels]`.

    >>> [name for name in scalings(np.zeros((1, 2, 2, 1), np.uint8)) if "255 - x" in name]
    ['255 - x']
    """
    mean, std = round(float(images.mean()), 1), round(float(images.std()), 1) or 1.0
    known = {name: Scaling(*pair) for name, pair in PIXELS.items()}
    ways = {f"--classifier_pixels={name}": one for name, one in known.items()} | {
        "255 - x": Scaling(-1.0, 255.0),
        "1 - x / 255": Scaling(-1.0 / 255, 1.0),
        "1 - x / 127.5": Scaling(-2.0 / 255, 1.0),
        f"x - {mean:g}": Scaling(1.0, -mean),
        f"(x - {mean:g}) / 255": Scaling(1.0 / 255, -mean / 255),
        f"(x - {mean:g}) / {std:g}": Scaling(1.0 / std, -mean / std),
    }
    if images.shape[3] == 3:
        ways |= {
            f"{name} in the color order BGR": one._replace(bgr=True) for name, one in known.items()
        }
        # As Keras' applications prepare images in the modes "caffe" and "torch".
        ways["x - (103.939, 116.779, 123.68), in the color order BGR (caffe)"] = Scaling(
            1.0, (-103.939, -116.779, -123.68), True
        )
        center, width = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        ways["(x / 255 - ImageNet's mean) / its standard deviation"] = Scaling(
            tuple(1 / 255 / w for w in width),
            tuple(-c / w for c, w in zip(center, width, strict=True)),
        )
    return ways


def why_poor(network: "keras.Model", dataset: Dataset, batch_size: int) -> str:
    """Why a classifier from elsewhere cannot be right about the validation images; "": it can be.

    Args:
      network: From `networks.adopt`; stays as it is.
      dataset: The data set; its validation images are classified.
      batch_size: Images at once.
    """
    images, labels = dataset.validation.images[:_IMAGES], dataset.validation.labels[:_IMAGES]
    outputs = models.outputs_model(network)
    logits = Inference(outputs, batch_size)(images)["logits"]
    if not np.isfinite(logits).all():
        return "it answers NaN or infinity"
    found = plausibility.examine(logits, labels, dataset.class_names)
    right = logits.argmax(axis=1) == labels
    if not found.words and not (~right).mean() > _LOW_ERROR_RATE:
        return ""
    few = slice(0, _TRIED)
    better = {}
    ways = scalings(dataset.train.images)
    for name, others in _trials(network, images[few], ways):
        is_right = others.argmax(axis=1) == labels[few]
        if plausibility.clearly_better(is_right, right[few]):
            better[name] = is_right.mean()
    if better:
        best = sorted(better, key=lambda name: -better[name])[:3]
        shown = ", ".join(f"{name} ({better[name]:.1%})" for name in best)
        suspect = (
            f"pixels x may have to be read otherwise: of {len(labels[few])} samples it is right on "
            f"{right[few].mean():.1%}, and with {shown}; a scaling that --classifier_pixels does "
            "not offer belongs into the file as first layers"
        )
        return f"{found.words}; {suspect}" if found.words else suspect
    if found.words and not found.order:
        return (
            f"{found.words}; suspects are the input scale (tried: those of --classifier_pixels, "
            "inverted pixels, the mean subtracted), the color order and the class order (no "
            "exchange of classes fits), or it is not trained"
        )
    return found.words


def _trials(
    network: "keras.Model", images: np.ndarray, ways: dict[str, Scaling]
) -> Iterator[tuple[str, np.ndarray]]:
    """(name, logits) of each scaling that can be set in the network."""
    encoder = network.get_layer("encoder")
    if models.reads_whole_numbers(network):
        # It takes pixels as they are, without a layer that could be set.
        infer = Inference(models.outputs_model(network), _TRIED)
        yield "255 - x", infer(255 - images)["logits"]
        if images.shape[3] == 3:
            yield "x in the color order BGR", infer(images[..., ::-1])["logits"]
        return
    layer = encoder.get_layer("scale")
    before = layer.scale, layer.offset
    try:
        for name, (scale, offset, bgr) in ways.items():
            layer.scale, layer.offset = np.asarray(scale), np.asarray(offset)
            # Traced anew: the numbers are constants of the graph.
            infer = Inference(models.outputs_model(network), _TRIED)
            yield name, infer(images[..., ::-1] if bgr else images)["logits"]
    finally:
        layer.scale, layer.offset = before
