"""The looks of a run: what the method `residual_looks` is offered, and what they answer."""

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core.config import IMAGE_LOOKS
from btcp_tf.data.splits import Dataset
from btcp_tf.experiment import prepare

if TYPE_CHECKING:
    import keras

    from btcp_tf.attached.classifier import AttachedClassifier
    from btcp_tf.methods.looks import Offer

_BATCH = 256
"""Images at once, at most: TensorFlow may compute all looks at them side by side."""

Odds = Callable[..., np.ndarray]
"""(images `[n, ...]`, title of a progress bar) → `Outputs.odds`."""


@dataclasses.dataclass(frozen=True)
class LookSettings:
    """What is offered; the names are those of `btcp_tf.Config`."""

    residual_looks: tuple[str, ...]
    residual_cost: float
    seed: int
    test_batch_size: int


def make_offer(
    network: "keras.Model", dataset: Dataset, settings: LookSettings, with_folds: bool
) -> "Offer":
    """What `residual_looks` may use, as `Judge.fit` offers it.

    Args:
      network: From `prepare.build_network`. The looks use its weights, whatever these are then.
      dataset: Its validation images are used.
      settings: Which looks, and what they may cost.
      with_folds: See `attached.offer.make`.

    Raises:
      ValueError: If a look does not suit the images or the network, or a file is no classifier of
        such images and classes.
      FileNotFoundError: If a file is not there.
    """
    from btcp_tf.attached import offer

    names, batch_size = list(dataset.class_names), settings.test_batch_size
    try:
        looks = [
            name if name in ("auto", *IMAGE_LOOKS) else _other(name, dataset, names, batch_size)
            for name in settings.residual_looks
        ]
        offered = offer.make(
            _parts(network, names, batch_size),
            "auto" if looks == ["auto"] else looks,
            settings.residual_cost,
            (dataset.validation.images, dataset.validation.labels),
            None,
            settings.seed,
            with_folds,
        )
    except (ValueError, FileNotFoundError) as error:
        # Without the names of arguments that a run does not have.
        text = re.sub(r"^((looks|classifier): )+", "", str(error))
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"residual_looks: {text}") from error
    assert offered is not None, "Config refuses an empty list"
    return offered


def _parts(network: "keras.Model", names: list[str], batch_size: int) -> "AttachedClassifier":
    from btcp_tf.attached.classifier import AttachedClassifier
    from btcp_tf.networks import classifiers

    ends = classifiers.both_ends(network.get_layer("classifier"))
    return AttachedClassifier(network.get_layer("encoder"), ends, names, batch_size=batch_size)


def _other(path: str, dataset: Dataset, names: list[str], batch_size: int) -> "AttachedClassifier":
    """Another classifier, which is given pixels on the scale that it reads; its encoder is called
    like the file."""
    import keras

    from btcp_tf.attached import offer
    from btcp_tf.networks import models

    pixels, _ = prepare.choose_pixels(path, dataset, batch_size=batch_size)
    image_shape = dataset.train.images.shape[1:]
    parts = _parts(models.adopt(path, image_shape, len(names), pixels=pixels), names, batch_size)
    encoder = keras.Model(parts.encoder.input, parts.encoder.output, name=offer.name_of(path))
    return dataclasses.replace(parts, encoder=encoder)


def odds_of(offer: "Offer", batch_size: int, used: Collection[str] | None = None) -> Odds | None:
    """What computes `Outputs.odds` with the weights that the network has at the call.

    Args:
      offer: From `make_offer`.
      batch_size: Images at once.
      used: Names of the looks that are read; the others are not computed, and their columns are 0.
        None: all are.

    Returns:
      None where no look is read.
    """
    import keras

    from btcp_tf.methods.looks import look_odds
    from btcp_tf.training.inference import Inference

    places = [place for place, name in enumerate(offer.looks) if used is None or name in used]
    if not places:
        return None
    looks = [*offer.looks.values()]
    encoder, ends = offer.encoder, offer.ends
    inputs = keras.Input(encoder.input_shape[1:], dtype=encoder.inputs[0].dtype)
    logits = ends(encoder(inputs))[0]
    columns = look_odds([looks[place] for place in places], inputs, logits, encoder, ends)
    infer = Inference(keras.Model(inputs, columns), min(_BATCH, batch_size))

    def odds(images: np.ndarray, title: str = "") -> np.ndarray:
        every = np.zeros((len(images), len(looks)), np.float32)
        every[:, places] = infer(images, title)
        return every

    return odds
