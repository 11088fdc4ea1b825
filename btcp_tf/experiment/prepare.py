"""What a run needs before it trains: its folder, its images and its networks."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.core import wording
from btcp_tf.core.config import IMAGE_LOOKS, OWN_DATA, Config
from btcp_tf.data import datasets, overlaps
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.data.overlaps import PARTS
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.evaluation.keys import ImageSet
from btcp_tf.experiment import settings as settings_
from btcp_tf.networks import keras_files

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_LONGEST_OOD_NAME = 180
"""Bytes of the name of an OOD set, which is part of the names of files."""

_PIXEL_IMAGES = 2000
"""Validation images with which the input scaling of a given classifier is chosen."""


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """Which images a run has; the names are those of `btcp_tf.Config`."""

    dataset: str
    data_dir: str
    size: tuple[int, int] | None
    bad_files: str
    max_pixels: int
    groups: str
    seed: int
    max_train_images: int
    max_test_images: int
    ood: tuple[str, ...]
    shift: bool
    threshold: str
    verbose: int


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """All images of a run."""

    whole: Dataset
    """The data set as it was loaded. The networks are trained on it, so that checkpoints stay valid
    whatever is left out later."""
    dataset: Dataset
    """The data set without images that stand in several of its parts, see `overlaps.leave_out`."""
    others: dict[ImageSet, np.ndarray]
    """From `load_others`."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What the networks of a run are built from."""

    encoder: str
    """Name in `networks.ENCODERS`."""
    feature_dim: int
    estimator_activation: str
    classifier: str = ""
    """A `.keras` file with a trained classifier, which replaces the encoder; "": there is none."""
    pixels: str = "0_255"
    """Its input scaling, a name in `data.images.PIXELS`."""


def about_data(dataset: Dataset) -> dict[str, Any]:
    """The entry `data` of `results.json`."""
    return {
        "fingerprint": dataset.fingerprint,
        "note": dataset.note,
        "class_names": dataset.class_names,
        **{part: len(getattr(dataset, part)) for part in PARTS},
        "overlaps": dataset.overlaps.as_json(),
    }


def load_images(settings: ImageSettings) -> Images:
    """Loads all images of a run.

    Raises:
      ValueError: If hardly any image of a part is new; if the threshold is to promise an error rate
        and too many calibration images are known for that; and as `data.load` and `load_others`.
      FileNotFoundError: If a set of images is not there.
    """
    whole = datasets.load(
        settings.dataset,
        settings.data_dir,
        settings.seed,
        settings.max_train_images,
        settings.max_test_images,
        size=settings.size,
        bad_files=settings.bad_files,
        max_pixels=settings.max_pixels,
        groups=settings.groups,
        verbose=settings.verbose,
    )
    repeated = overlaps.between({part: getattr(whole, part) for part in PARTS})
    dataset = overlaps.leave_out(whole, repeated)
    if repeated.no_promise and settings.threshold == "target_risk":
        raise ValueError(
            "threshold: expected another one than target_risk, which promises an error rate, as "
            f"{repeated.no_promise}; remove the copies, or choose best_bacc, say"
        )
    return Images(whole, dataset, load_others(settings, dataset.test.images))


def known_others(dataset: Dataset, others: dict[ImageSet, np.ndarray]) -> list[str]:
    """Notes on OOD sets that hold images of the data set itself."""
    parts = {part: getattr(dataset, part) for part in PARTS}
    notes = []
    for image_set, images in others.items():
        if image_set.kind != "ood":
            continue
        ood = Split(images, np.zeros(len(images), np.int64))
        known = int(overlaps.between({**parts, str(image_set): ood}).known[str(image_set)].sum())
        if known:
            notes.append(
                f"{image_set}: {known:,} of {len(images):,} images are images of {dataset.name} "
                "itself"
            )
    return notes


def check_paths(config: Config) -> None:
    """Checks that the files and folders that the settings name exist, before any work.

    Raises:
      FileNotFoundError, ValueError: If one does not, or cannot be what it should be.
    """
    if config.classifier:
        keras_files.check_classifier("classifier", config.classifier)
    for look in config.residual_looks:
        if look not in ("auto", *IMAGE_LOOKS):
            keras_files.check_classifier("residual_looks", look)
    if config.dataset in OWN_DATA:
        datasets.check_place(config.dataset, config.data_dir)
    for name in config.ood:
        datasets.check_images(name, _prepared_dir(config.dataset, config.data_dir))


def _prepared_dir(dataset: str, data_dir: str) -> str:
    """The folder of prepared data sets: where one's own images are, there are none."""
    return "" if dataset in OWN_DATA else data_dir


def load_others(settings: ImageSettings, test_images: np.ndarray) -> dict[ImageSet, np.ndarray]:
    """Loads OOD sets, and makes corrupted versions of the test images.

    Args:
      settings: `ood` and `shift` say which.
      test_images: uint8 `[n, height, width, channels]`.

    Returns:
      uint8 images of the test images' shape by their set, of kind "ood" or "shift". An OOD data set
      has its own name, a file or folder the stem of its path.

    Raises:
      ValueError: If two OOD sets have one name, or a name is too long for a file.
      FileNotFoundError: If an OOD set is not there.
    """
    data_dir = _prepared_dir(settings.dataset, settings.data_dir)
    others: dict[ImageSet, np.ndarray] = {}
    for path in settings.ood:
        name = Path(path).stem
        if not 0 < len(name.encode()) <= _LONGEST_OOD_NAME:
            raise ValueError(
                f"ood: expected a name of 1 to {_LONGEST_OOD_NAME} bytes, which is part of those "
                f"of files here, received {wording.quoted(name)}"
            )
        image_set = ImageSet("ood", name)
        if image_set in others:
            raise ValueError(f"ood: expected each name once, received {name} twice")
        others[image_set] = datasets.load_images(
            path,
            data_dir,
            test_images.shape[1:],
            settings.max_test_images,
            bad_files=settings.bad_files,
            max_pixels=settings.max_pixels,
        )
    for name, corrupt in CORRUPTIONS.items() if settings.shift else ():
        for strength in (1, 2, 3):
            shifted = corrupt(test_images, strength, settings.seed)
            others[ImageSet("shift", name, strength)] = shifted
    return others


def build_network(
    architecture: Architecture, dataset: Dataset, strategy: "tf.distribute.Strategy", seed: int
) -> "keras.Model":
    """Builds the network of a run, see `networks.build_model` and `networks.adopt`.

    Args:
      architecture: What it is built from.
      dataset: Its images and classes are the network's inputs and outputs.
      strategy: From `training.make_strategy`.
      seed: Seed of the weights, and of all dropout masks.
    """
    import keras

    from btcp_tf.networks import models

    image_shape, num_classes = dataset.train.images.shape[1:], len(dataset.class_names)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        if architecture.classifier:
            return models.adopt(
                architecture.classifier,
                image_shape,
                num_classes,
                pixels=architecture.pixels,
                estimator_activation=architecture.estimator_activation,
            )
        return models.build_model(
            architecture.encoder,
            image_shape,
            num_classes,
            feature_dim=architecture.feature_dim,
            estimator_activation=architecture.estimator_activation,
            synchronized=strategy.num_replicas_in_sync > 1,
        )


def choose_pixels(
    classifier: str, dataset: Dataset, *, pixels: str = "auto", batch_size: int = 1024
) -> tuple[str, str]:
    """The input scaling of a trained classifier.

    `auto` tries those in `data.images.PIXELS` and takes the one with the lowest cross-entropy on
    validation images: many networks predict the same classes at any scale, but with other
    probabilities. At each scale the classes are put into the order that fits best: a classifier
    with another class order is right at no scale, and a wrong scale would hide that.

    Args:
      classifier: Its `.keras` file.
      dataset: Its validation images are used.
      pixels: "auto", or the scaling itself.
      batch_size: Images at once.

    Returns:
      A name in `data.images.PIXELS`, and the end of a note about it.

    Raises:
      FileNotFoundError, ValueError: As `networks.adopt`.
    """
    from btcp_tf.data.images import PIXELS
    from btcp_tf.networks import models
    from btcp_tf.networks.plausibility import class_order
    from btcp_tf.training.inference import Inference

    note = "; its input scaling is "
    if pixels != "auto":
        return pixels, note + pixels
    images = dataset.validation.images[:_PIXEL_IMAGES]
    labels = dataset.validation.labels[:_PIXEL_IMAGES]
    cross_entropy = {}
    for name in PIXELS:
        network = models.adopt(classifier, images.shape[1:], len(dataset.class_names), pixels=name)
        if models.reads_whole_numbers(network):
            return name, ""
        probs = Inference(network, batch_size)(images)["probs"]
        order = class_order(probs.argmax(axis=1), labels, probs.shape[1])
        answers = np.asarray(order)[labels] if order else labels
        of_label = probs[np.arange(len(labels)), answers].astype(np.float64)
        cross_entropy[name] = -np.log(np.maximum(of_label, 1e-12)).mean()
    best = min(cross_entropy, key=lambda name: cross_entropy[name])
    values = ", ".join(f"{value:.4g} for {name}" for name, value in cross_entropy.items())
    return best, f"{note}{best} (cross-entropy on validation images: {values})"


def refuse_poor_classifier(
    network: "keras.Model",
    classifier: str,
    dataset: Dataset,
    *,
    allow: bool,
    batch_size: int,
    note: str = "",
) -> str:
    """Checks whether a given classifier can be right about the images, see `adopted.why_poor`.

    Args:
      network: From `build_network`.
      classifier: The classifier's file.
      dataset: Its validation images are used.
      allow: Whether a poor classifier is accepted.
      batch_size: Images at once.
      note: From `choose_pixels`, for the error.

    Returns:
      Why it cannot be right; "": it can be.

    Raises:
      ValueError: If it cannot be right, unless that is allowed.
    """
    from btcp_tf.training.adopted import why_poor

    problem = why_poor(network, dataset, batch_size)
    if problem and not allow:
        raise ValueError(
            f"classifier: expected one that can be right about the images of {dataset.name}, "
            f"received {classifier}{note}: {problem}; --allow_poor_classifier goes on with it"
        )
    return problem


def check_folder_is_free(folder: Path, config: Config) -> bool:
    """Checks that a folder holds no run with other settings.

    A run that failed before its first epoch, for want of data say, does not hold its folder.

    Returns:
      Whether the folder holds no run at all; False: it holds this one.

    Raises:
      ValueError: If the folder holds a run with other settings.
      FileNotFoundError: If, besides, a file or folder that the settings name is not there.
    """
    path = folder / "flags.cfg"
    held = _traces(folder)
    if not held:
        return True
    if not path.exists():
        raise ValueError(
            f"expected {path} with the settings of the run in {folder}, received a folder with "
            f"{held[0].relative_to(folder)} but without them; choose another --output_dir"
        )
    saved = settings_.load_flagfile(path)
    names = settings_.differences(config, saved)
    if names:
        # A file that is not there is the nearer fault, and would be the next one.
        check_paths(config)
        expected = ", ".join(f"{name}={saved.get(name, 'as before') or 'none'}" for name in names)
        received = ", ".join(f"{name}={config.settings()[name] or 'none'}" for name in names)
        raise ValueError(
            f"{folder} holds a run with other settings: expected {expected}, received {received}; "
            f"--flagfile={path} goes on with its settings; choose another --output_dir for others"
        )
    return False


def _traces(folder: Path) -> list[Path]:
    """Files of a run that has trained or ended."""
    ends = (folder / "finished.json", folder / "results.json")
    # Those of further classifiers, which are trained first, are a folder deeper.
    checkpoints: Iterable[Path] = (folder / "checkpoints").glob("**/*.npz")
    return [path for path in (*ends, *sorted(checkpoints)) if path.exists()]
