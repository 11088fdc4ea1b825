"""Which version a run publishes, and which older one that replaces on a server.

A server takes the highest version in a folder. Therefore a model that is worse than the one that it
would replace, or promises less, is not published by a run unless the user asks for it, and a run
that was killed after it had published finds its own version again instead of adding another.
"""

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import json_files, wording
from btcp_tf.data import overlaps
from btcp_tf.data.splits import Dataset
from btcp_tf.decisions import drift, exported
from btcp_tf.decisions.exported import SIGNATURE
from btcp_tf.thresholds import PREDICTED, GroupThreshold, Threshold

PUBLICATION = "publication"
"""Key of `btcp_tf.json`: the id of the run that published the version."""

RUN = "run"
"""Key of `btcp_tf.json`: the run that a version is of, whatever its threshold; see `run_entry`."""

_ID_FILE = "publication.json"


def publication_id(folder: Path) -> str:
    """The id of the run in a folder, made at the first call."""
    path = folder / _ID_FILE
    # Without a readable id, the worst that follows is one more version.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json_files.parse(path.read_text(encoding="utf-8"))["id"]
        if isinstance(known, str) and known:
            return known
    new = uuid.uuid4().hex
    json_files.write(path, {"id": new})
    return new


def run_entry(folder: Path, target: Path) -> dict[str, str]:
    """Where a run's folder is, as seen from the folder of its versions, and its id."""
    seen_from = os.path.relpath(folder.resolve(), target.resolve())
    return {"folder": seen_from, "id": publication_id(folder)}


def run_of(version: Path, about: Mapping[str, Any]) -> Path | None:
    """The folder of the run that a version is of; None: it is not known, or no longer there.

    Args:
      version: The version's directory.
      about: What it says of itself.
    """
    entry = about.get(RUN)
    if not isinstance(entry, Mapping) or not {"folder", "id"} <= entry.keys():
        return None
    folder = Path(os.path.relpath(version.resolve().parent / str(entry["folder"])))
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json_files.parse((folder / _ID_FILE).read_text(encoding="utf-8"))["id"]
        return folder if known == entry["id"] else None
    return None


def own_version(target: Path, publication: str, threshold: dict[str, Any]) -> Path | None:
    """The version in `target` that a run published with a threshold; None if it has not yet."""
    for version, about in _newest_first(target):
        if about and about.get(PUBLICATION) == publication and about["threshold"] == threshold:
            return version
    return None


def replaced_version(target: Path, publication: str) -> Path | None:
    """The highest version in `target` that another run published; None if btcp_tf did not export
    it, or there is none."""
    for version, about in _newest_first(target):
        if about is None or about.get(PUBLICATION) != publication:
            return version if about else None
    return None


def _newest_first(target: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """The versions in a folder and what each says of itself, see `_about`."""
    for number in reversed(exported.versions(target)):
        yield target / str(number), _about(target / str(number))


def lost_promise(target: Path, new: Threshold) -> str:
    """What the version that a server takes now promises, and one more would not; "": nothing.

    The promise is that of `thresholds.target_risk`, and is lost to a larger risk or delta, to
    another rule, or where the new threshold accepts nothing. One that was made in each predicted
    class or group is lost to one that is not, or where nothing is accepted of one of them any more.

    Args:
      target: The folder of all versions.
      new: The threshold of the version that would replace the highest.
    """
    version, about = next(_newest_first(target), (None, None))
    if about is None:
        return ""
    old = thresholds.from_json(about["threshold"])
    if old.target is None or old.accepts_nothing:
        return ""
    if new.target is None:
        kept = f"promises none ({new.rule})"
    elif new.accepts_nothing:
        kept = f"accepts nothing, as {_promise(new)} is not achievable"
    elif isinstance(old, GroupThreshold) and not isinstance(new, GroupThreshold):
        kept = f"promises {_promise(new)} of all answers together"
    elif isinstance(old, GroupThreshold) and old.by != getattr(new, "by", ""):
        kept = f"promises {_promise(new)}"
    elif new.target > old.target or (new.delta or 0.0) > (old.delta or 0.0):
        kept = f"promises {_promise(new)}"
    elif closed := _closed_anew(old, new, about["class_names"]):
        kept = f"accepts nothing of {wording.some(closed)}, where that is not achievable"
    else:
        return ""
    return f"{version} promises {_promise(old)}; this one {kept}"


def _closed_anew(old: Threshold, new: Threshold, class_names: Sequence[str]) -> list[str]:
    """Classes or groups of which the new threshold accepts nothing, and the old one something."""
    if not isinstance(new, GroupThreshold):
        return []
    closed = old.closed(class_names) if isinstance(old, GroupThreshold) else []
    return [name for name in new.closed(class_names) if name not in closed]


def _promise(threshold: Threshold) -> str:
    each = ""
    if isinstance(threshold, GroupThreshold):
        each = " in each " + ("predicted class" if threshold.by == PREDICTED else "group")
    level = 1 - (threshold.delta or 0.0)
    return f"error rate <= {threshold.target:g}{each} with probability {level:g}"


def _about(version: Path) -> dict[str, Any] | None:
    """What btcp_tf wrote about a version; None: nothing that can be read."""
    try:
        return exported.read_about(version)
    except (OSError, ValueError):
        return None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The errors of a new classifier and of the one that it would replace, on the same n images.

    Example:
      >>> compare(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([0, 0, 1])).only_new
      1
    """

    n: int
    """Images that neither was trained on."""
    new_errors: int
    old_errors: int
    only_new: int
    """Images that only the new one is wrong about."""
    only_old: int
    """Images that only the old one is wrong about."""

    @property
    def difference(self) -> float:
        """Error rate of the new classifier - that of the old one."""
        return (self.only_new - self.only_old) / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the difference, given `only_new` + `only_old` (McNemar)."""
        differ = self.only_new + self.only_old
        if not differ:
            return 0.0, 0.0
        low, high = drift.clopper_pearson(self.only_new, differ, level=0.95)
        return (2 * low - 1) * differ / self.n, (2 * high - 1) * differ / self.n

    @property
    def is_worse(self) -> bool:
        """Whether the new classifier is wrong significantly more often."""
        return self.interval[0] > 0

    def text(self, version: Path) -> str:
        """The comparison in a phrase; `version` is the directory of the older classifier."""
        low, high = self.interval
        return (
            f"wrong about {self.new_errors:,} of {self.n:,} validation images that neither "
            f"classifier was trained on, {version} about {self.old_errors:,} of them: "
            f"{100 * self.difference:+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]"
        )


def compare(new_predicted: np.ndarray, old_predicted: np.ndarray, labels: np.ndarray) -> Comparison:
    """Compares the predicted classes of two classifiers, `[n]` each, n > 0, with the labels."""
    new, old = new_predicted != labels, old_predicted != labels
    only_new, only_old = int((new & ~old).sum()), int((old & ~new).sum())
    return Comparison(len(labels), int(new.sum()), int(old.sum()), only_new, only_old)


def compare_with(
    version: Path,
    predicted: np.ndarray,
    dataset: Dataset,
    load: Callable[[int, int, int], Dataset],
    *,
    classifier: str = "",
) -> Comparison:
    """Compares a run's classifier with that of a published version.

    The images are those of the run's validation set that the older classifier was not trained on:
    its settings say how its data was split, and its fingerprint whether the data still gives that
    split.

    Args:
      version: A version directory that a run exported.
      predicted: Classes that the run's classifier predicts for its validation images, `[n]`.
      dataset: The run's data.
      load: (seed, max_train_images, max_test_images) -> the same data in another split.
      classifier: The run's setting: where its classifier comes from; "" if the run trained it.

    Raises:
      ValueError: If they cannot be compared; the message says why.
    """
    about = exported.read_about(version)
    if about["class_names"] != [str(name) for name in dataset.class_names]:
        raise ValueError("it has other classes")
    if about.get("image_shape") != list(dataset.validation.images.shape[1:]):
        raise ValueError(f"it takes inputs of shape {about.get('image_shape')}")
    settings = (about.get("metadata") or {}).get("settings") or {}
    fingerprint = (about.get("data") or {}).get("fingerprint")
    if not fingerprint or not {"dataset", "seed", "max_train_images"} <= settings.keys():
        raise ValueError("it does not say what it was trained on")
    if settings.get("classifier") or classifier:
        raise ValueError("what a given classifier was trained on is not known")
    unseen = np.ones(len(dataset.validation), bool)
    if fingerprint not in (dataset.fingerprint, *dataset.former_fingerprints):
        sizes = (int(settings.get(name, 0)) for name in ("max_train_images", "max_test_images"))
        old = load(int(settings["seed"]), *sizes)
        if fingerprint not in (old.fingerprint, *old.former_fingerprints):
            raise ValueError("it was trained on other data")
        trained_on = overlaps.sample_hashes(old.train.images)
        unseen = ~np.isin(overlaps.sample_hashes(dataset.validation.images), trained_on)
    if not unseen.any():
        raise ValueError("it was trained on all of these validation images")
    new = dataset.validation.take(unseen)
    return compare(predicted[unseen], _answers(version, new.images), new.labels)


def _answers(version: Path, images: np.ndarray) -> np.ndarray:
    """Classes `[n]` that a SavedModel predicts."""
    import tensorflow as tf

    from btcp_tf.serving.signatures import BATCH

    answer = tf.saved_model.load(str(version)).signatures[SIGNATURE]
    starts = range(0, len(images), BATCH)
    parts = [answer(images=tf.constant(images[start : start + BATCH])) for start in starts]
    return np.concatenate([part["predicted"].numpy() for part in parts])
