"""Images with labels, and how a data set is split into its parts."""

import dataclasses
import hashlib

import numpy as np

from btcp_tf.data.overlaps import NONE, Overlaps


@dataclasses.dataclass(frozen=True)
class Split:
    """One part of a data set."""

    images: np.ndarray
    """uint8 [n, height, width, channels], 0 to 255."""
    labels: np.ndarray
    """int64 [n], 0 to classes - 1."""
    files: np.ndarray | None = None
    """Absolute path of each image's file, str [n]; None: the images have none of their own."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Split":
        """Some of the images, by a mask or their numbers."""
        files = None if self.files is None else self.files[rows]
        return Split(self.images[rows], self.labels[rows], files)


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
    """Cuts a fifth of each class, in random order, from images without a test set."""
    order = np.random.default_rng([seed, 1]).permutation(len(train))
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
    """Cuts train, validation and calibration from what is supplied for training and validation."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(train))
    if max_train_images:
        order = order[:max_train_images]
    if validation is None:
        held_out = 5_000 if len(order) >= 30_000 else len(order) // 10
        if not held_out:
            what = "max_train_images" if len(order) < len(train) else "train"
            raise ValueError(f"{what}: expected at least 10 images, received {len(order)}")
        validation = train.take(order[: 2 * held_out])
        order = order[2 * held_out :]
    elif len(validation) < 2:
        raise ValueError(f"validation: expected at least 2 images, received {len(validation)}")
    else:
        validation = validation.take(rng.permutation(len(validation)))
    half = (len(validation) + 1) // 2
    return {
        "train": train.take(order),
        "validation": validation.take(np.arange(half)),
        "calibration": validation.take(np.arange(half, len(validation))),
    }


def fingerprint_of(start: str, parts: dict[str, Split]) -> str:
    digest = hashlib.sha256(start.encode("utf-8", "surrogateescape"))
    for part in parts.values():
        digest.update(f"{part.images.shape}".encode())
        digest.update(np.ascontiguousarray(part.images).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()[:16]
