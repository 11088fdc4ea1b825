"""Which version a run publishes, and beside which older one it stands.

A server takes the highest version of a folder. So a model that is worse than the one it would
replace is not published unasked, and a run that was killed after it had published finds its own
version again instead of adding another.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from btcp_tf.core import json_files
from btcp_tf.core.config import Config
from btcp_tf.data import overlaps
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import SIGNATURE

PUBLICATION = "publication"
"""Of `btcp_tf.json`: the id of the run that published the version."""

_ID_FILE = "publication.json"

_LEVEL = 0.05
"""Of the two-sided exact test of `compare`."""


def publication_id(folder: Path) -> str:
    """The id under which the run in a folder publishes, made at the first call."""
    path = folder / _ID_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
        if isinstance(found, str) and found:
            return found
    except (OSError, ValueError, TypeError, KeyError):
        pass  # None yet, or none that can be read: the worst that follows is one more version.
    new = uuid.uuid4().hex
    json_files.write(path, {"id": new})
    return new


def own_version(target: Path, publication: str, threshold: dict[str, Any]) -> Path | None:
    """The version below `target` that this run has published with this threshold, or None."""
    for number in reversed(exported.versions(target)):
        about = _about(target / str(number))
        if about and about.get(PUBLICATION) == publication and about["threshold"] == threshold:
            return target / str(number)
    return None


def replaced_version(target: Path, publication: str) -> Path | None:
    """The highest version below `target` that is another's; None where it is not one of ours."""
    for number in reversed(exported.versions(target)):
        about = _about(target / str(number))
        if about is None or about.get(PUBLICATION) != publication:
            return target / str(number) if about else None
    return None


def _about(version: Path) -> dict[str, Any] | None:
    try:
        return exported.read_about(version)
    except (OSError, ValueError):
        return None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A new classifier beside the one that it would replace, on the same images."""

    n: int
    """Images that neither was trained on."""
    new_errors: int
    old_errors: int
    only_new: int
    """Images that the new one alone is wrong about."""
    only_old: int

    @property
    def difference(self) -> float:
        """Error rate of the new classifier - that of the old one."""
        return (self.only_new - self.only_old) / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference, exact at 95 % given how many images the two differ on (McNemar)."""
        differ = self.only_new + self.only_old
        if not differ:
            return 0.0, 0.0
        low, high = 0.0, 1.0
        if self.only_new:
            low = float(special.betaincinv(self.only_new, self.only_old + 1, _LEVEL / 2))
        if self.only_old:
            high = float(special.betaincinv(self.only_new + 1, self.only_old, 1 - _LEVEL / 2))
        return (2 * low - 1) * differ / self.n, (2 * high - 1) * differ / self.n

    @property
    def is_worse(self) -> bool:
        """Whether the new classifier is wrong more often, by more than chance lets expect."""
        return self.interval[0] > 0

    def words(self, version: Path) -> str:
        """Without a verdict."""
        low, high = self.interval
        return (
            f"wrong about {self.new_errors:,} of {self.n:,} validation images that neither "
            f"classifier was trained on, {version} about {self.old_errors:,} of them: "
            f"{100 * self.difference:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]"
        )


def compare(new_predicted: np.ndarray, old_predicted: np.ndarray, labels: np.ndarray) -> Comparison:
    """Two classifiers' answers to the same images, `[n]` each, n > 0."""
    new, old = new_predicted != labels, old_predicted != labels
    only_new, only_old = int((new & ~old).sum()), int((old & ~new).sum())
    return Comparison(len(labels), int(new.sum()), int(old.sum()), only_new, only_old)


def compare_with(
    version: Path,
    predicted: np.ndarray,
    dataset: Dataset,
    config: Config,
    load: Callable[..., Dataset],
) -> Comparison:
    """The run's classifier beside that of a published version.

    The images are those of the run's validation set that the older classifier was not trained on:
    its settings say how its data was split, and its fingerprint whether that split is what the
    data gives today.

    Args:
      version: A version directory that a run exported.
      predicted: The run's answers to its validation images, `[n]`.
      dataset: The run's.
      config: Of the run.
      load: `data.load`, or what stands for it.

    Raises:
      ValueError: If they cannot be compared; the message says why.
    """
    about = exported.read_about(version)
    if about["class_names"] != [str(name) for name in dataset.class_names]:
        raise ValueError("it has other classes")
    if about.get("image_shape") != list(dataset.validation.images.shape[1:]):
        raise ValueError(f"it takes inputs of shape {about.get('image_shape')}")
    settings = (about.get("metadata") or {}).get("settings") or {}
    known = (about.get("data") or {}).get("fingerprint")
    if not known or not {"dataset", "seed", "max_train_images"} <= settings.keys():
        raise ValueError("it does not say what it was trained on")
    if settings.get("classifier") or config.classifier:
        raise ValueError("what a given classifier was trained on is not known")
    unseen = _unseen(dataset, config, settings, known, load)
    if not unseen.any():
        raise ValueError("it was trained on all of these validation images")
    part = Split(dataset.validation.images[unseen], dataset.validation.labels[unseen])
    return compare(predicted[unseen], _answers(version, part.images), part.labels)


def _unseen(
    dataset: Dataset,
    config: Config,
    settings: dict[str, str],
    known: str,
    load: Callable[..., Dataset],
) -> np.ndarray:
    """Which validation images are none of the training images of a run with these settings."""
    if known in (dataset.fingerprint, *dataset.former_fingerprints):
        return np.ones(len(dataset.validation), bool)
    old = load(
        config.dataset,
        config.data_dir,
        int(settings["seed"]),
        int(settings["max_train_images"]),
        int(settings.get("max_test_images", 0)),
        size=config.size,
        bad_files=config.bad_files,
    )
    if known not in (old.fingerprint, *old.former_fingerprints):
        raise ValueError("it was trained on other data")
    seen = overlaps.sample_hashes(old.train.images)
    return ~np.isin(overlaps.sample_hashes(dataset.validation.images), seen)


def _answers(version: Path, images: np.ndarray) -> np.ndarray:
    """Classes `[n]` that a SavedModel predicts."""
    import tensorflow as tf

    from btcp_tf.serving.signatures import BATCH

    answer = tf.saved_model.load(str(version)).signatures[SIGNATURE]
    starts = range(0, len(images), BATCH)
    parts = [answer(images=tf.constant(images[start : start + BATCH])) for start in starts]
    return np.concatenate([part["predicted"].numpy() for part in parts])
