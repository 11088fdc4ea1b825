"""Images with labels, and how a data set is split into its parts."""

import dataclasses
import hashlib

import numpy as np

from btcp_tf.core.groups import numbers
from btcp_tf.core.rows import take
from btcp_tf.data.overlaps import NONE, Overlaps


@dataclasses.dataclass(frozen=True)
class Split:
    """One part of a data set."""

    images: np.ndarray
    """uint8 [n, height, width, channels], 0 to 255; in a file where they are large."""
    labels: np.ndarray
    """int64 [n], 0 to classes - 1."""
    files: np.ndarray | None = None
    """Absolute path of each image's file, str [n]; None: the images have none of their own."""
    groups: np.ndarray | None = None
    """Which images belong together, [n], whole numbers or strings, see `core.groups`; None: they
    are independent."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Split":
        """Some of the images, by a mask or their numbers."""
        files = None if self.files is None else self.files[rows]
        groups = None if self.groups is None else self.groups[rows]
        return Split(take(self.images, rows), self.labels[rows], files, groups)

    def random_order(self, rng: np.random.Generator) -> np.ndarray:
        """The images in a random order, those of a group next to each other: [n]."""
        if self.groups is None:
            return rng.permutation(len(self))
        group = numbers(self.groups, len(self))
        return np.argsort(rng.permutation(group.max() + 1)[group], kind="stable")

    def end_of_group(self, order: np.ndarray, count: int) -> int:
        """The least number of images, at least `count`, in an order of `random_order` behind which
        no group goes on."""
        if self.groups is None or not 0 < count < len(order):
            return count
        own = self.groups[order]
        begins = np.flatnonzero(own[1:] != own[:-1]) + 1
        later = begins[begins >= count]
        return int(later[0]) if len(later) else len(order)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set split into the four parts of the protocol."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    """For every choice: epoch, gamma, method, tau of best BACC."""
    calibration: Split
    """For thresholds alone, after all choices."""
    test: Split
    """The official test set, in its order."""
    note: str
    """What a reader of any figure must know of this copy; "" for the whole data set."""
    fingerprint: str
    """16 hexadecimal digits of the SHA-256 of the images and labels of all four parts."""
    former_fingerprints: tuple[str, ...] = ()
    """Those of the same data by the rules of earlier versions, whose checkpoints go on."""
    overlaps: Overlaps = NONE
    """Which images stand in several parts, once `overlaps.leave_out` has left out the known."""


@dataclasses.dataclass(frozen=True)
class Source:
    """What is supplied of a data set, before the protocol splits it."""

    class_names: tuple[str, ...]
    """As they are supplied; `load` cleans them."""
    parts: dict[str, Split]
    """By "train", and where they are supplied "validation" and "test"."""
    notes: tuple[str, ...] = ()


def draw_test(train: Split, seed: int) -> tuple[Split, Split]:
    """Cuts a fifth of each class, in random order, from images without a test set; where images
    belong together, about a fifth of them, whole groups."""
    rng = np.random.default_rng([seed, 1])
    order = train.random_order(rng)
    if train.groups is not None:
        cut = train.end_of_group(order, round(len(train) / 5))
        _check_groups_left("test", train, order[cut:])
        return train.take(np.sort(order[cut:])), train.take(np.sort(order[:cut]))
    in_test = np.zeros(len(order), bool)
    for label in np.unique(train.labels):
        rows = np.flatnonzero(train.labels[order] == label)
        in_test[rows[: round(len(rows) / 5)]] = True
    if not in_test.any():
        raise ValueError(
            "test: expected a test set, or at least 3 images of a class to draw one from, "
            f"received {len(train)} images of {len(np.unique(train.labels))} classes"
        )
    return train.take(order[~in_test]), train.take(order[in_test])


def split_train(
    train: Split, seed: int, max_train_images: int, validation: Split | None = None
) -> dict[str, Split]:
    """Cuts train, validation and calibration from what is supplied for training and validation.

    Images that belong together stay together, so that the parts may be a little larger or smaller.
    """
    rng = np.random.default_rng(seed)
    order = train.random_order(rng)
    if max_train_images:
        order = order[:max_train_images]
    if validation is None:
        held_out = 5_000 if len(order) >= 30_000 else len(order) // 10
        if not held_out:
            what = "max_train_images" if len(order) < len(train) else "train"
            raise ValueError(f"{what}: expected at least 10 images, received {len(order)}")
        cut = train.end_of_group(order, 2 * held_out)
        validation = train.take(order[:cut])
        order = order[cut:]
        _check_groups_left("validation", train, order)
    elif len(validation) < 2:
        raise ValueError(f"validation: expected at least 2 images, received {len(validation)}")
    else:
        validation = validation.take(validation.random_order(rng))
    every = np.arange(len(validation))
    half = validation.end_of_group(every, (len(validation) + 1) // 2)
    _check_groups_left("calibration", validation, every[half:])
    return {
        "train": train.take(order),
        "validation": validation.take(np.arange(half)),
        "calibration": validation.take(np.arange(half, len(validation))),
    }


def _check_groups_left(part: str, split: Split, rows: np.ndarray) -> None:
    if not len(rows):
        assert split.groups is not None
        count = len(np.unique(split.groups))
        raise ValueError(
            f"groups: expected enough groups for all parts, received {count} for {len(split)} "
            f"images, none of which is left beside the {part} images"
        )


def check_groups(parts: dict[str, Split]) -> None:
    """ValueError where images that belong together are in several of the supplied parts, or only
    some parts say which do."""
    groups = {name: part.groups for name, part in parts.items() if part.groups is not None}
    if groups and (without := [name for name in parts if name not in groups]):
        raise ValueError(f"groups: expected those of all parts, received none of {without[0]}")
    seen: dict[str, str] = {}
    for name, together in groups.items():
        own = [str(one) for one in np.unique(together)]
        if both := [one for one in own if one in seen]:
            raise ValueError(
                f"groups: expected each in one part of the data, received {len(both)} in several, "
                f"such as {both[0]!r} in {seen[both[0]]} and {name}; move its images to one of them"
            )
        seen |= dict.fromkeys(own, name)


def fingerprint_of(start: str, parts: dict[str, Split]) -> str:
    digest = hashlib.sha256(start.encode("utf-8", "surrogateescape"))
    for part in parts.values():
        digest.update(f"{part.images.shape}".encode())
        digest.update(np.ascontiguousarray(part.images).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()[:16]
