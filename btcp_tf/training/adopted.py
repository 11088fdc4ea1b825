"""Whether a classifier from elsewhere can be right about a data set, and if not, why.

It may expect pixels on another scale, or its classes may be in another order. Neither is an error
of Keras, so that it is looked for before long work.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from btcp_tf.core.rows import pieces
from btcp_tf.data.images import PIXELS
from btcp_tf.data.named_inputs import Inputs
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

_SHUFFLED = 19
"""Networks with the same weights in random order."""

SHUFFLED_SAMPLES = 200
"""Validation images, at most, that each of them classifies; they are spread evenly over `_IMAGES`.
All networks together take at most twice as long as `_IMAGES` do once, however large they are."""

_CLEARLY_MORE = 0.05
"""Share of the entropy by which a network of weights in random order must know more. Of 201 dense
networks of pairs of digits that were not trained, 43 pass `plausibility.examine` with 180 samples
and know less than `_PLAIN_GAIN`; 5 of these pass here, too. Of 59 such that were trained on 12 to
170 samples, of which 20 to 40 % had wrong labels, 2 are refused; without this margin and without
the reverse order of the classes, 5 passed and 5 were refused."""

_PLAIN_GAIN = 0.5
"""Share of the entropy of the class frequencies from which on it does not matter where the weights
are from: whoever knows so much can be right."""


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
    mean, std = _mean_and_std(images)
    mean, std = round(mean, 1), round(std, 1) or 1.0
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


def _mean_and_std(images: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of all pixels of uint8 images."""
    values, counts = np.arange(256), np.zeros(256, np.int64)
    for piece in pieces(images):
        counts += np.bincount(images[piece].ravel(), minlength=256)
    mean = float(np.average(values, weights=counts))
    return mean, float(np.sqrt(np.average(np.square(values - mean), weights=counts)))


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
    examined = plausibility.examine(logits, labels, dataset.class_names)
    is_error = logits.argmax(axis=1) != labels
    problem = examined.problem
    if may_be_untrained(examined):
        few = slice(None, None, -(-len(images) // SHUFFLED_SAMPLES))
        problem = outdone(network, images[few], labels[few], logits[few])
    if not problem and not is_error.mean() > _LOW_ERROR_RATE:
        return ""
    suspect = _another_reading(network, dataset, logits[:_TRIED].argmax(axis=1), examined.order)
    if suspect:
        return f"{problem}; {suspect}" if problem else suspect
    if examined.problem and not examined.order:
        return (
            f"{problem}; suspects are the input scale (tried: those of --classifier_pixels, "
            "inverted pixels, the mean subtracted), the color order and the class order (no "
            "exchange of classes fits at any of these scales), or it is not trained"
        )
    return problem


def may_be_untrained(examined: plausibility.Plausibility) -> bool:
    """Whether a classifier against which nothing speaks knows so little that `outdone` must tell
    whether it is trained."""
    return not examined.problem and examined.gain < _PLAIN_GAIN * examined.entropy


def outdone(
    network: "keras.Model",
    images: Inputs,
    labels: np.ndarray,
    logits: np.ndarray,
) -> str:
    """Says so if the network knows less than one with the same weights in random order; else "".

    A network that is not trained, or whose weights were not loaded, sees brightness and rough forms
    all the same: some tell two classes apart by luck, and their samples alone cannot show that.
    Each network with shuffled weights counts twice, as it is and with its classes in reverse order:
    that is another of the kind, and costs nothing.

    Args:
      network: Has layers `encoder` and `classifier`, and its own weights again afterwards.
      images: Validation images, or other inputs.
      labels: Their labels.
      logits: What the network answers.
    """
    own = plausibility.examine(logits, labels)
    least = own.gain + _CLEARLY_MORE * own.entropy
    parts = (network.get_layer("encoder"), network.get_layer("classifier"))
    weights = [weight for part in parts for weight in part.weights]
    before = [weight.numpy() for weight in weights]
    infer = Inference(models.outputs_model(network), len(labels))
    rng = np.random.default_rng(0)
    try:
        for _ in range(_SHUFFLED):
            for weight, values in zip(weights, before, strict=True):
                weight.assign(rng.permutation(values.ravel()).reshape(values.shape))
            answers = infer(images)["logits"]
            if not np.isfinite(answers).all():
                continue
            other = max(plausibility.gain(a, labels) for a in (answers, answers[:, ::-1]))
            if other > least:
                return (
                    f"right on {own.accuracy:.1%} of {own.n} samples, but a copy of it whose "
                    "weights were shuffled knows more about them: it may not be trained, or its "
                    "weights may not be loaded (the cross-entropy of always answering the class "
                    f"frequencies is {own.entropy:.4g}, its own {own.entropy - own.gain:.4g}, the "
                    f"copy's {own.entropy - other:.4g})"
                )
    finally:
        for weight, values in zip(weights, before, strict=True):
            weight.assign(values)
    return ""


def _another_reading(
    network: "keras.Model", dataset: Dataset, predicted: np.ndarray, order: tuple[int, ...]
) -> str:
    """Says which other ways to read pixels make a classifier clearly better; "" if none does.

    At each of them its classes, too, may be in another order: the two faults hide each other.

    Args:
      network: As in `why_poor`.
      dataset: As in `why_poor`.
      predicted: What it answers to the first validation images as it reads them now.
      order: The class order that fits these answers, see `plausibility.class_order`.
    """
    few, classes = slice(0, len(predicted)), len(dataset.class_names)
    images, labels = dataset.validation.images[few], dataset.validation.labels[few]
    right = predicted == labels
    reordered = predicted == np.asarray(order)[labels] if order else right
    better: dict[str, tuple[float, tuple[int, ...]]] = {}
    for name, answers in _trials(network, images, scalings(dataset.train.images)):
        others = answers.argmax(axis=1)
        if plausibility.clearly_better(others == labels, right):
            better[name] = float((others == labels).mean()), ()
        elif other_order := plausibility.class_order(others, labels, classes):
            fits = others == np.asarray(other_order)[labels]
            if plausibility.clearly_better(fits, reordered):
                better[f"{name} and another class order"] = float(fits.mean()), other_order
    if not better:
        return ""
    best = sorted(better, key=lambda name: -better[name][0])[:3]
    shown = ", ".join(f"{name} ({better[name][0]:.1%})" for name in best)
    suspect = (
        f"pixels x may have to be read otherwise: of {len(labels)} samples it is right on "
        f"{right.mean():.1%}, and with {shown}; what --classifier_pixels cannot say belongs into "
        "the file as first layers"
    )
    best_order = better[best[0]][1]
    if not best_order:
        return suspect
    return f"{suspect}; {plausibility.order_text(best_order, dataset.class_names)}"


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
