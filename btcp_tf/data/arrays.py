"""Images and labels from an npz file."""

import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from btcp_tf.core import wording
from btcp_tf.core.arrays import read_npz
from btcp_tf.core.groups import numbers as check_groups
from btcp_tf.data import folders
from btcp_tf.data.images import are_images
from btcp_tf.data.input_checks import class_numbers
from btcp_tf.data.splits import Source, Split

_KINDS = {"x": "x", "image": "x", "images": "x", "y": "y", "label": "y", "labels": "y"}
_KINDS |= {"group": "groups", "groups": "groups"}

_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def npz_names(path: pathlib.Path, names: Sequence[str]) -> dict[str, str]:
    """How a file calls its arrays `x_train`, `y_train`, `x_val` and so on.

    Args:
      path: The file, for errors.
      names: Of its arrays: those, or as MedMNIST has them (`train_images`, `train_labels`), in
        small letters or not; `groups_train` and so on likewise.

    Returns:
      Its names by ours. Other arrays are left out.

    Raises:
      ValueError: If two of them stand for one.
    """
    by_own: dict[str, str] = {}
    for name in names:
        pair = name.lower().split("_")
        for kind, part in (pair, pair[::-1]) if len(pair) == 2 else ():
            if kind in _KINDS and part in _PARTS:
                own = f"{_KINDS[kind]}_{_PARTS[part]}"
                if own in by_own:
                    raise ValueError(
                        f"{path}: expected {own} once, received the arrays {by_own[own]} and {name}"
                    )
                by_own[own] = name
    return by_own


def read_source(path: pathlib.Path) -> Source:
    """The data set that an npz file holds, see `datasets.load`."""
    arrays = read_npz(path)
    names = npz_names(path, list(arrays))
    parts = {"train": "train", "test": "test"}
    if {"x_val", "y_val"} & names.keys():
        parts["validation"] = "val"
    wanted = [f"{letter}_{part}" for part in parts.values() for letter in "xy"]
    if not names.keys() >= set(wanted):
        medmnist = [f"{part}_{kind}" for part in parts.values() for kind in ("images", "labels")]
        raise ValueError(
            f"{path}: expected the arrays {', '.join(wanted)} (or {', '.join(medmnist)}), received "
            f"{', '.join(arrays) or 'none'}; numpy.savez(path, x_train=..., y_train=..., "
            "x_test=..., y_test=...) names them so"
        )
    images, labels = {}, {}
    for part, key in parts.items():
        x, y = names[f"x_{key}"], names[f"y_{key}"]
        images[part] = _images(f"{path}: {x}", arrays[x])
        labels[f"{path}: {y}"] = npz_labels(f"{path}: {y}", arrays[y], x, len(images[part]))
    shapes = {part: array.shape[1:] for part, array in images.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"{path}: expected images of one shape, received {shapes}")
    class_names, numbers, notes = _classes(path, labels, arrays.get("class_names"))
    supplied = {}
    for (part, key), number in zip(parts.items(), numbers, strict=True):
        name = names.get(f"groups_{key}")
        together = None if name is None else arrays[name]
        if together is not None:
            check_groups(together, len(number), f"{path}: {name}")
        supplied[part] = Split(images[part], number, groups=together)
    return Source(class_names, supplied, notes)


def read_images(path: pathlib.Path) -> np.ndarray:
    """The images of an npz file that is no data set of its own, see `datasets.load_images`."""
    arrays = read_npz(path)
    kinds = {key: arrays.kind(key) for key in arrays}
    keys = [key for key, kind in kinds.items() if are_images(kind)]
    usual = (npz_names(path, keys).get("x_test", "x_test"), "images", "x")
    key = next((key for key in usual if key in keys), keys[0] if len(keys) == 1 else "")
    if not key:
        received = ", ".join(
            f"{key} {dtype} {list(shape)}" for key, (shape, dtype) in kinds.items()
        )
        raise ValueError(
            f"{path}: expected uint8 images [n, height, width] or [n, height, width, channels] as "
            f"x_test, images, x or the only such array, received {received or 'no array'}"
        )
    return arrays[key]


def _images(where: str, images: np.ndarray) -> np.ndarray:
    """Images of one part `[n, height, width, 1 or 3]`; `where` is the file and the array."""
    if are_images(images):
        return images if images.ndim == 4 else images[..., None]
    remedy = ""
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3):
        remedy = "; numpy.moveaxis(x, 1, -1) brings the channels to the end"
    elif images.dtype.kind in "biuf" and images.dtype != np.uint8 and np.isfinite(images).all():
        times = "255 * " if images.max(initial=0) <= 1 else ""
        remedy = f"; save pixels from 0 to 255, such as numpy.rint({times}x).astype('uint8')"
    raise ValueError(
        f"{where}: expected uint8 [n, height, width] or [n, height, width, 1 or 3], received "
        f"{_description(images)}{remedy}"
    )


def npz_labels(where: str, labels: np.ndarray, x_name: str, n: int) -> np.ndarray:
    """Labels of one part `[n]` as they are meant: int64, or words.

    Args:
      where: The file and the array, for errors.
      labels: Whole numbers of any type, booleans, words, or one-hot rows.
      x_name: The array of their images, for errors.
      n: How many images there are.
    """
    received = _description(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    elif labels.ndim == 2:
        labels = class_numbers(labels, labels.shape[1], where)
    if labels.dtype.kind in "SU":
        cleaned = [wording.clean(os.fsdecode(word)) for word in labels.flat]
        labels = np.array(cleaned, str).reshape(labels.shape)
    elif labels.dtype.kind in "bf" and not np.mod(labels, 1).any():
        # NaN and infinity have a remainder, which is NaN.
        labels = labels.astype(np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or len(labels) != n:
        raise ValueError(
            f"{where}: expected a whole number, a word or a one-hot row for each of the {n} images "
            f"in {x_name}, received {received}"
        )
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _classes(
    path: pathlib.Path, labels: Mapping[str, np.ndarray], names: np.ndarray | None
) -> tuple[tuple[str, ...], list[np.ndarray], tuple[str, ...]]:
    """Class names, the labels of each part as int64 from 0 on, and notes.

    Args:
      path: The file, for errors.
      labels: From `npz_labels` by file and array, those of the training images first.
      names: The file's `class_names`, if it has any.
    """
    (train_key, train), *_ = labels.items()
    if len({array.dtype.kind for array in labels.values()}) > 1:
        kinds = ", ".join(f"{key} {array.dtype}" for key, array in labels.items())
        raise ValueError(f"{path}: expected labels of one kind in all parts, received {kinds}")
    given = None if names is None else _given_names(path, names)
    present = np.unique(train)
    if train.dtype.kind == "U":
        # In the order of folders of these names, where the file does not say another.
        known = np.array(list(map(wording.clean, given)) if given else present, str)
        expected, remedy = folders.some(known.tolist(), 10), ""
    else:
        # Some count from 1: not so with a class that no training image has.
        first = int(len(present) > 1 and np.array_equal(present, 1 + np.arange(len(present))))
        known = first + np.arange(max(len(given or present), 2))
        expected = f"from {known[0]} to {known[-1]}"
        remedy = "; numpy.unique(y_train, return_inverse=True)[1] numbers them so"
    if given and len(given) != len(present):
        raise ValueError(
            f"{path}: class_names: expected a name for each of the {len(present)} classes in "
            f"{train_key.removeprefix(f'{path}: ')}, received {len(given)}"
        )
    if len(known) < 2 or not np.array_equal(np.sort(known), present):
        received = folders.some([str(label) for label in present], 10)
        raise ValueError(
            f"{train_key}: expected at least 2 classes, each label {expected} at least once, "
            f"received {received}" + (remedy if len(present) > 1 else "")
        )
    for key, array in labels.items():
        if len(strange := np.setdiff1d(array, known)):
            shown = folders.some([str(label) for label in strange])
            raise ValueError(f"{key}: expected labels {expected}, received {shown}")
    order = np.argsort(known)
    numbers = [order[np.searchsorted(known, array, sorter=order)] for array in labels.values()]
    starts_at_one = train.dtype.kind != "U" and known[0] == 1
    notes = (f"labels count from 1 in {path.name}: answer 0 is class 1",) if starts_at_one else ()
    return given or tuple(str(label) for label in known), numbers, notes


def _given_names(path: pathlib.Path, names: np.ndarray) -> tuple[str, ...]:
    if names.dtype.kind == "S":
        names = np.array([os.fsdecode(word) for word in names.flat], str).reshape(names.shape)
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ValueError(
            f"{path}: class_names: expected words [classes], received {_description(names)}"
        )
    wording.class_names(names.tolist(), f"{path}: class_names")
    return tuple(names.tolist())


def _description(array: np.ndarray) -> str:
    """Type, shape and range of an array."""
    text = f"{array.dtype} {list(array.shape)}"
    if array.dtype.kind not in "iuf" or not array.size:
        return text
    if np.isnan(array).any():
        return f"{text} with NaN"
    return f"{text} from {array.min():g} to {array.max():g}"
