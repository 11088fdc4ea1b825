"""What a run needs before it trains: data, a given classifier, its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.core import files, wording
from btcp_tf.core.config import OWN_DATA, Config
from btcp_tf.data import datasets, overlaps
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.data.overlaps import PARTS
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.experiment import settings
from btcp_tf.methods.registry import METHODS

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def about_data(dataset: Dataset) -> dict[str, Any]:
    """What `results.json` says of the data."""
    return {
        "fingerprint": dataset.fingerprint,
        "note": dataset.note,
        "class_names": dataset.class_names,
        **{split: len(getattr(dataset, split)) for split in PARTS},
        "overlaps": dataset.overlaps.as_json(),
    }


def leave_out_known(whole: Dataset, config: Config) -> Dataset:
    """The data set for all that comes after training: without what other parts know already.

    Raises:
      ValueError: If hardly any image of a part is new, or an error rate is to be promised that
        cannot be.
    """
    found = overlaps.between({part: getattr(whole, part) for part in PARTS})
    dataset = overlaps.leave_out(whole, found)
    if found.no_promise and config.threshold == "target_risk":
        raise ValueError(
            "threshold: expected another one than target_risk, which promises an error rate, as "
            f"{found.no_promise}; remove the copies, or choose best_bacc, say"
        )
    return dataset


def known_others(dataset: Dataset, others: dict[str, np.ndarray]) -> list[str]:
    """Notes on sets of other images that hold images of the data set itself."""
    parts = {part: getattr(dataset, part) for part in PARTS}
    notes = []
    for name, images in others.items():
        if not name.startswith("ood_"):
            continue
        ood = Split(images, np.zeros(len(images), np.int64))
        known = int(overlaps.between({**parts, name: ood}).known[name].sum())
        if known:
            notes.append(
                f"{name}: {known:,} of {len(images):,} images are images of {dataset.name} itself"
            )
    return notes


def choose_pixels(config: Config, dataset: Dataset) -> tuple[str, str]:
    """What `config.classifier` reads for pixels, of `networks.PIXELS`, and the same in words.

    With `classifier_pixels=auto` that of the smallest cross entropy on validation images: many
    networks answer alike at any scale, but not as surely. At each scale the classes are put in the
    order that fits: one that is right at no scale would else choose a wrong one, and the class
    order be none of the suspects.

    Raises:
      FileNotFoundError, ValueError: As `networks.adopt`.
    """
    from btcp_tf.data.images import PIXELS
    from btcp_tf.networks import models
    from btcp_tf.networks.plausibility import class_order
    from btcp_tf.training.inference import Inference

    told = "; it reads pixels as "
    if config.classifier_pixels != "auto":
        return config.classifier_pixels, told + config.classifier_pixels
    entropy = {}
    images, labels = dataset.validation.images[:2000], dataset.validation.labels[:2000]
    for pixels in PIXELS:
        network = _around(config, dataset, pixels)
        if models.reads_whole_numbers(network):
            return pixels, ""
        probs = Inference(network, config.test_batch_size)(images)["probs"]
        order = class_order(probs.argmax(axis=1), labels, probs.shape[1])
        answers = np.asarray(order)[labels] if order else labels
        of_label = probs[np.arange(len(labels)), answers].astype(np.float64)
        entropy[pixels] = -np.log(np.maximum(of_label, 1e-12)).mean()
    best = min(entropy, key=lambda pixels: entropy[pixels])
    found = ", ".join(f"{value:.4g} as {pixels}" for pixels, value in entropy.items())
    return best, f"{told}{best} (cross entropy on validation images: {found})"


def _around(config: Config, dataset: Dataset, pixels: str) -> "keras.Model":
    from btcp_tf.networks import models

    return models.adopt(
        config.classifier,
        dataset.train.images.shape[1:],
        len(dataset.class_names),
        pixels=pixels,
        estimator_activation=config.estimator_activation,
    )


def refuse_poor_classifier(
    build: Callable[[int], "keras.Model"], dataset: Dataset, config: Config, adopted: str
) -> str:
    """Why `config.classifier` cannot be right, see `adopted.why_poor`; "": it can be.

    Args:
      build: From `builder`.
      dataset: Its validation images are answered.
      config: Settings.
      adopted: How it reads pixels, in words; from `choose_pixels`.

    Raises:
      ValueError: If it cannot be, unless `allow_poor_classifier`.
    """
    from btcp_tf.training.adopted import why_poor

    words = why_poor(build(config.seed), dataset, config.test_batch_size)
    if words and not config.allow_poor_classifier:
        raise ValueError(
            f"classifier: expected one that can be right about the images of {dataset.name}, "
            f"received {config.classifier}{adopted}: {words}; --allow_poor_classifier goes on "
            "with it"
        )
    return words


def builder(
    config: Config, dataset: Dataset, strategy: "tf.distribute.Strategy", pixels: str = ""
) -> Callable[[int], "keras.Model"]:
    """Seed → a new network of the run: the one around `config.classifier`, if there is one, which
    reads `pixels` as `choose_pixels` says."""
    import keras

    from btcp_tf.networks import models

    def build(seed: int) -> "keras.Model":
        # Sets the weights of all networks and the masks of all dropout layers.
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            if config.classifier:
                return _around(config, dataset, pixels)
            return models.build_model(
                config.encoder,
                dataset.train.images.shape[1:],
                len(dataset.class_names),
                feature_dim=config.feature_dim,
                estimator_activation=config.estimator_activation,
                synchronized=strategy.num_replicas_in_sync > 1,
            )

    return build


_LONGEST_OOD_NAME = 180


def load_others(dataset: Dataset, config: Config) -> dict[str, np.ndarray]:
    """Images that are no test images of the data set, by the name of their split.

    Loaded before the training, so that a missing one is known at once.

    Returns:
      "ood_<name>" for each of `config.ood`, and with `config.shift` the test images under each
      corruption as "shift_<name><strength>".
    """
    others = {}
    shape = dataset.test.images.shape[1:]
    for name in config.ood:
        # A data set under its name, a file under its stem.
        stem = Path(name).stem
        if not 0 < len(stem.encode()) <= _LONGEST_OOD_NAME:
            raise ValueError(
                f"ood: expected a name of 1 to {_LONGEST_OOD_NAME} bytes, which is part of those "
                f"of files here, received {wording.quoted(stem)}"
            )
        split = f"ood_{stem}"
        if split in others:
            raise ValueError(f"ood: expected each name once, received {stem} twice")
        for predictor in (*(m for m in METHODS if METHODS[m].samples), "finetuned"):
            if stem.endswith(f"_{predictor}"):
                # The predictions of "x" by `predictor` have the file that this one would have.
                raise ValueError(
                    f"ood: expected a name that does not end in _{predictor}, received {stem}"
                )
        others[split] = datasets.load_images(
            name, _prepared_dir(config), shape, config.max_test_images, bad_files=config.bad_files
        )
    if config.shift:
        for name, corrupt in CORRUPTIONS.items():
            for strength in (1, 2, 3):
                others[f"shift_{name}{strength}"] = corrupt(
                    dataset.test.images, strength, config.seed
                )
    return others


def check_paths(config: Config) -> None:
    """Looks for the files and folders that the settings name, before any work.

    Raises:
      FileNotFoundError, ValueError: If one is not there, or cannot be what it is to be.
    """
    if config.classifier:
        files.check_keras_file("classifier", config.classifier)
    if config.dataset in OWN_DATA:
        datasets.check_place(config.dataset, config.data_dir)
    for name in config.ood:
        datasets.check_images(name, _prepared_dir(config))


def _prepared_dir(config: Config) -> str:
    """The folder of prepared data sets: where one's own images are, there are none."""
    return "" if config.dataset in OWN_DATA else config.data_dir


def check_claim(folder: Path, config: Config) -> bool:
    """Whether the folder is free for this run; else it is this run's already, or an error."""
    path = folder / "flags.cfg"
    # A run that failed before its first epoch, for want of data say, does not hold its folder.
    traces = [folder / "finished.json", folder / "results.json"]
    # Those of further classifiers, which are trained first, are a folder deeper.
    traces += sorted((folder / "checkpoints").glob("**/*.npz"))
    held = [trace for trace in traces if trace.exists()]
    if not held:
        return True
    if not path.exists():
        raise ValueError(
            f"expected {path} with the settings of the run in {folder}, received a folder with "
            f"{held[0].relative_to(folder)} but without them; choose another --output_dir"
        )
    saved = settings.load_flagfile(path)
    names = settings.differences(config, saved)
    if names:
        expected = ", ".join(f"{name}={saved.get(name, 'as before')}" for name in names)
        received = ", ".join(f"{name}={config.settings()[name]}" for name in names)
        raise ValueError(
            f"{folder} holds a run with other settings: expected {expected}, received {received}; "
            f"--flagfile={path} goes on with its settings; choose another --output_dir for others"
        )
    return False
