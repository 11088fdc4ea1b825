"""Images that are almost equal to one of another part, such as frames of one video."""

from typing import NamedTuple

import numpy as np

from btcp_tf.data.images import convert
from btcp_tf.data.splits import Dataset

_SIDE = 16
"""Pixels of a side of what is compared."""

ALIKE = 0.998
"""Correlation of the pixels from which on two images count as almost equal: about one in 300 of
Fashion-MNIST's test images has such a training image, none of 1,000 of MNIST's and CIFAR-10's."""

_MOST = 1000
"""Images of a part that are looked at: they say how many there are about."""

_AT_ONCE = 8192


class Near(NamedTuple):
    """What was found."""

    near: int
    looked_at: int
    example: tuple[int, int]
    """Rows of an image and of its near-duplicate."""


def find(images: np.ndarray, among: np.ndarray) -> Near:
    """How many images are almost equal, but not equal, to one of others.

    Compared are gray thumbnails without their mean and contrast, so that a little light more or
    less makes no difference. Images of one gray level are left out.

    Args:
      images: uint8 `[n, height, width, channels]`; of more than 1,000 some at equal distances.
      among: uint8 `[m, height, width, channels]`.

    >>> random = np.random.default_rng(0)
    >>> images = random.integers(0, 200, (40, 8, 8, 1), np.uint8)
    >>> find(images[:3] + np.uint8(20), images)
    Near(near=3, looked_at=3, example=(0, 0))
    """
    rows = np.unique(np.linspace(0, len(images) - 1, min(len(images), _MOST)).astype(int))
    own = _thumbnails(images[rows])
    best, place = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), int)
    for start in range(0, len(among), _AT_ONCE):
        alike = own @ _thumbnails(among[start : start + _AT_ONCE]).T
        nearest = alike.argmax(axis=1)
        value = alike[np.arange(len(rows)), nearest]
        better = value > best
        best[better], place[better] = value[better], start + nearest[better]
    equal = (images[rows] == among[place]).reshape(len(rows), -1).all(axis=1)
    near = (best >= ALIKE) & ~equal
    first = int(near.argmax())
    return Near(int(near.sum()), len(rows), (int(rows[first]), int(place[first])))


def _thumbnails(images: np.ndarray) -> np.ndarray:
    """Float32 `[n, pixels]`, of mean 0 and length 1; 0 for images of one gray level."""
    height, width = (min(_SIDE, side) for side in images.shape[1:3])
    small = convert(images, (height, width, 1)).reshape(len(images), -1).astype(np.float32)
    small -= small.mean(axis=1, keepdims=True)
    return small / np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6)


def notes(dataset: Dataset) -> list[str]:
    """What a reader must know of near-duplicates across the border of the training images."""
    if dataset.train.groups is not None:
        return []  # It is said what belongs together.
    result = []
    for part in ("calibration", "test"):
        images = getattr(dataset, part).images
        count, looked_at, (row, place) = find(images, dataset.train.images)
        if count:
            result.append(
                f"{count:,} of {looked_at:,} {part} images that were looked at are almost equal to "
                f"a training image, such as number {row} to number {place}: figures and promises "
                "are too good for images of a new kind; name what belongs together (groups)"
            )
    return result
