"""Images and labels from an npz file."""

import pathlib

import numpy as np

from btcp_tf.core import wording
from btcp_tf.data import folders
from btcp_tf.data.images import are_images
from btcp_tf.data.splits import Source, Split


def read_npz(path: pathlib.Path) -> Source:
    arrays = read_arrays(path, "data_dir: expected an npz file with x_train")
    parts = {"train": "train", "test": "test"}
    if {"x_val", "y_val"} & arrays.keys():
        parts["validation"] = "val"
    wanted = [f"{letter}_{part}" for part in parts.values() for letter in "xy"]
    if not arrays.keys() >= set(wanted):
        held = ", ".join(arrays) or "none"
        raise ValueError(f"{path}: expected the arrays {', '.join(wanted)}, received {held}")
    supplied = {
        part: _npz_split(path, f"x_{key}", arrays[f"x_{key}"], f"y_{key}", arrays[f"y_{key}"])
        for part, key in parts.items()
    }
    shapes = {part: split.images.shape[1:] for part, split in supplied.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"{path}: expected images of one shape, received {shapes}")

    classes = np.unique(supplied["train"].labels)
    names = arrays.get("class_names", np.arange(max(len(classes), 2)).astype(str))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ValueError(f"{path}: class_names: expected words [classes], received {_told(names)}")
    wording.class_names(names.tolist(), f"{path}: class_names")
    if len(names) != len(classes) and "class_names" in arrays:
        raise ValueError(
            f"{path}: class_names: expected a name for each of the {len(classes)} classes in "
            f"y_train, received {len(names)}"
        )
    known = np.arange(len(names))
    if len(names) < 2 or not np.array_equal(classes, known):
        raise ValueError(
            f"{path}: y_train: expected at least 2 classes, each label from 0 to {len(names) - 1} "
            f"at least once, received {folders.some([str(label) for label in classes], 10)}"
        )
    for part, key in parts.items():
        strange = np.setdiff1d(supplied[part].labels, known)
        if len(strange):
            raise ValueError(
                f"{path}: y_{key}: expected labels from 0 to {len(names) - 1}, received "
                f"{folders.some([str(label) for label in strange])}"
            )
    return Source(tuple(str(name) for name in names), supplied)


def _npz_split(
    path: pathlib.Path, x_key: str, images: np.ndarray, y_key: str, labels: np.ndarray
) -> Split:
    if not are_images(images):
        raise ValueError(
            f"{path}: {x_key}: expected uint8 [n, height, width] or [n, height, width, 1 or 3], "
            f"received {_told(images)}"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images):
        raise ValueError(
            f"{path}: {y_key}: expected a whole number for each of the {len(images)} images in "
            f"{x_key}, received {_told(labels)}"
        )
    return Split(images if images.ndim == 4 else images[..., None], labels.astype(np.int64))


def _told(array: np.ndarray) -> str:
    """What an array is, in words."""
    words = f"{array.dtype} {array.shape}"
    if array.dtype.kind in "iuf" and array.size:
        nan = np.isnan(array).any()
        words += " with NaN" if nan else f" from {array.min():g} to {array.max():g}"
    return words


def read_arrays(path: pathlib.Path, expected: str, remedy: str = "") -> dict[str, np.ndarray]:
    """All arrays of an npz file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{expected}, received {wording.quoted(str(path))}, which is no file{remedy}"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        for key, array in arrays.items():
            # NumPy hands out what is no array as bytes.
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{key} is no array")
        return arrays
    # Not only ValueError: a damaged file can raise nearly anything.
    except Exception as error:
        raise ValueError(
            f"{path}: expected an npz file of images, received what cannot be read "
            f"({folders.first_line(error) or type(error).__name__})"
        ) from error
