"""Image data sets as uint8 arrays, their split by seed, and batches for training.

Also images from elsewhere in the shape of a data set, on which a classifier is tried beyond its
test set. Importing this module does not import TensorFlow; the functions that need it do.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from btcp_tf.core import wording
from btcp_tf.core.config import MAX_PIXELS, OWN_DATA
from btcp_tf.data import arrays, folders, prepared
from btcp_tf.data.catalog import DATASETS
from btcp_tf.data.images import convert
from btcp_tf.data.splits import (
    Dataset,
    Source,
    Split,
    check_groups,
    draw_test,
    fingerprint_of,
    split_train,
)


def check_name(name: str, data_dir: str) -> None:
    """Checks that `load` can know a name; whether the data is whole, only loading tells.

    Raises:
      ValueError: If the name is neither in `DATASETS` or `OWN_DATA` nor prepared in `data_dir`, or
        is in `OWN_DATA` and `data_dir` is empty.
    """
    if name in OWN_DATA and not data_dir:
        raise ValueError(f"data_dir: expected a path with dataset={name}, received none")
    if name not in (*DATASETS, *OWN_DATA) and not prepared.is_prepared(name, data_dir):
        raise ValueError(
            f"dataset: expected one of {', '.join((*DATASETS, *OWN_DATA))}, or a name with "
            f"<name>/<version>/dataset_info.json in {prepared.prepared_root(data_dir)}, received "
            + (wording.quoted(name) if name else "none")
            + (_own_data_hint(name or data_dir) or wording.suggestion(name, (*DATASETS, *OWN_DATA)))
        )


def _own_data_hint(path: str) -> str:
    """How to name one's own data, where it is at the path that stands for it; else ""."""
    place = pathlib.Path(path).expanduser()
    is_npz = place.suffix == ".npz" and place.is_file()
    is_folder = place.is_dir() and folders.class_folders(place)
    # Of prepared data sets only the name is missing.
    if not path or not (is_npz or is_folder) or any(place.glob("*/*/dataset_info.json")):
        return ""
    kind = "npz" if is_npz else "folder"
    return f"; --dataset={kind} --data_dir={place} reads the images in there"


def check_place(name: str, data_dir: str) -> None:
    """FileNotFoundError where one's own data, `load`'s "folder" or "npz", is not there."""
    path = pathlib.Path(data_dir).expanduser()
    if name == "folder" and not path.is_dir():
        raise FileNotFoundError(
            f"data_dir: expected a folder with a folder for each class, received {path}, which is "
            + ("a file" if path.exists() else "not there")
        )
    if name == "npz" and not path.is_file():
        raise FileNotFoundError(
            f"data_dir: expected an npz file with x_train, received {wording.quoted(str(path))}, "
            + ("which is a folder" if path.is_dir() else "which is not there")
        )


def short_name(name: str, data_dir: str) -> str:
    """What a data set is called in results, and in the names of folders.

    Args:
      name: As in `load`.
      data_dir: As in `load`.

    Returns:
      The name, and for one's own data the last part of its path, without `.npz`.
    """
    if name not in OWN_DATA:
        return name.replace("/", "-")
    path = pathlib.Path(os.path.abspath(os.path.expanduser(data_dir)))
    stem = re.sub(r"[^\w.-]+", "_", path.name.removesuffix(".npz"))
    # A folder called mnist is not MNIST, and is not shown beside published figures.
    return f"{name}-{stem}" if stem in DATASETS else stem or name


def load(
    name: str,
    data_dir: str = "",
    seed: int = 0,
    max_train_images: int = 0,
    max_test_images: int = 0,
    *,
    size: tuple[int, int] | None = None,
    bad_files: str = "fail",
    max_pixels: int = MAX_PIXELS,
    groups: str = "",
    verbose: int = 0,
) -> Dataset:
    """Loads a data set and splits its training images by seed.

    Images of more than 256 MiB are unpacked into temporary files, see `core.rows`.

    Validation and calibration get 5,000 of the training images each, or 10 %
    each where there are fewer than 30,000; a validation set that is supplied is
    halved instead. The test set is the official one; where none is supplied, it
    is a fifth of the training images of each class, drawn by seed, and the note
    says so.

    Args:
      name: One of

        - a name in `DATASETS`;
        - another tensorflow-datasets name, perhaps with `/config`, that is
          prepared in `data_dir`, with an image and a label feature;
        - "folder": PNG, JPEG and BMP files in one folder for each class. The
          class folders are in `data_dir`, or in its sub-folders `train`, `val`
          (or `validation`, `valid`) and `test`, of which `train` alone must be
          there. Images are gray if all files are, else color; of what is
          transparent the color is taken, which a note says, and an animated
          PNG is no whole image. Hidden files, what systems leave by themselves (`__MACOSX`,
          `Thumbs.db`, `desktop.ini`), and files beside the class folders, are
          not read;
        - "npz": a file with uint8 images `[n, height, width]` or `[n, height,
          width, 1 or 3]` as `x_train`, `x_test` and perhaps `x_val`, their
          labels as `y_train`, `y_test` and `y_val`, and perhaps words
          `[classes]` as `class_names`; or with the names of MedMNIST, such as
          `train_images` and `train_labels`. Labels are whole numbers from 0, or
          else from 1, on, of any type, or words, `[n]` or `[n, 1]`; or one-hot
          rows `[n, classes]`. Which images belong together, such as those of a
          patient, may stand in `groups_train`, `groups_test` and `groups_val`,
          numbers or words `[n]`: they then stay on one side of every split.
      data_dir: That folder or file; otherwise the folder of prepared
        tensorflow-datasets data. Default: the environment's TFDS_DATA_DIR, else
        ~/tensorflow_datasets. Without a prepared copy there, a data set in
        `DATASETS` is downloaded and prepared if its host answers.
      seed: Seed of the split, and of the draw of `max_train_images`.
      max_train_images: Use at most this many of the training images, drawn
        before the split; 0: all.
      max_test_images: Use at most the first of the test images; 0: all.
      size: Height and width in pixels to bring all images to, see `convert`;
        None: images that are not all of one size are refused.
      bad_files: "fail", or "skip" to go on, with a warning and a note, without
        files in a class folder that are no whole image.
      max_pixels: An image file of more pixels is not decoded, and counts as no whole image. At most
        178,956,970, above which Pillow opens none.
      groups: For "folder", a regular expression: images belong together in whose file names it
        finds the same, its first group in parentheses if it has any. "": none do.
      verbose: 1 shows a progress bar while files are decoded.

    Raises:
      FileNotFoundError: If there is no such folder or file, or neither a
        prepared copy nor a network.
      core.rows.NoRoomError: If there is no room on the disk for the images.
      ValueError: If the name is unknown, the data is damaged or is not as
        above, a class has no training image, classes are fewer than two or
        differ between splits, or too few images are asked for.
    """
    folders.check_bad_files(bad_files)
    check_name(name, data_dir)
    check_place(name, data_dir)
    if name == "folder":
        root = pathlib.Path(data_dir).expanduser()
        source = folders.read_folder(root, size, bad_files, verbose, groups, max_pixels)
    elif name == "npz":
        source = arrays.read_source(pathlib.Path(data_dir).expanduser())
    elif name == "digits":
        source = _load_digits()
    else:
        source = prepared.load_tfds(name, data_dir, size)

    class_names, cleaned = wording.class_names(source.class_names, f"{name}: class names")
    supplied = {part: _resized(split, size) for part, split in source.parts.items()}
    check_groups(supplied)
    notes = [*source.notes, *filter(None, [cleaned])]
    if "test" in supplied:
        train, test = supplied["train"], supplied["test"]
    else:
        train, test = draw_test(supplied["train"], seed)
        notes.append(_TEST_DRAWN if train.groups is None else _GROUPS_DRAWN)
    notes += _published_notes(name, train, test, size)
    if 0 < max_train_images < len(train):
        notes.append(f"only {max_train_images:,} training images used (max_train_images)")
    if 0 < max_test_images < len(test):
        notes.append(f"only the first {max_test_images:,} test images used (max_test_images)")
        test = test.take(np.arange(max_test_images))
    parts: dict[str, Any] = split_train(train, seed, max_train_images, supplied.get("validation"))
    parts["test"] = test
    for part, split in parts.items():
        if missing := len(class_names) - len(np.unique(split.labels)):
            notes.append(f"the {part} images lack {missing} of {len(class_names)} classes")
    called = short_name(name, data_dir)
    return Dataset(
        name=called,
        class_names=class_names,
        **parts,
        note=f"{called}: {'; '.join(notes)}" if notes else "",
        fingerprint=fingerprint_of("", parts),
        # Version 0.1.0 put the names of the classes before the images.
        former_fingerprints=(fingerprint_of("\n".join(source.class_names), parts),),
    )


_GROUPS_DRAWN = (
    "no test images supplied: about a fifth of the training images, whole groups drawn by seed, is "
    "the test set"
)

_TEST_DRAWN = (
    "no test images supplied: a fifth of the training images of each class, drawn by seed, is the "
    "test set"
)


def _published_notes(
    name: str, train: Split, test: Split, size: tuple[int, int] | None
) -> Iterator[str]:
    """How a data set in `DATASETS` differs from what was published."""
    spec = DATASETS.get(name)
    if spec is None:
        return
    published = {"training": (train, spec.expected_train), "test": (test, spec.expected_test)}
    shortfall = [
        f"{len(part):,} of {expected:,} {kind} images"
        for kind, (part, expected) in published.items()
        if len(part) != expected
    ]
    if shortfall:
        yield f"part or stand-in: {', '.join(shortfall)}"
    if size and size != spec.image_shape[:2]:
        yield f"images resized to {size[0]}x{size[1]} (image_size)"


def _resized(split: Split, size: tuple[int, int] | None) -> Split:
    if size is None:
        return split
    images = convert(split.images, (*size, split.images.shape[3]))
    return dataclasses.replace(split, images=images)


def _load_digits() -> Source:
    """scikit-learn's digits: 8x8 pixels of 0 to 16, stretched to 0 to 255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images[..., None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    # The rows are in blocks by writer: every fifth image of a class takes from all of them.
    in_test = np.zeros(len(labels), bool)
    for label in range(len(digits.target_names)):
        in_test[np.flatnonzero(labels == label)[4::5]] = True
    train = Split(images[~in_test], labels[~in_test])
    test = Split(images[in_test], labels[in_test])
    names = tuple(str(name) for name in digits.target_names)
    return Source(names, {"train": train, "test": test})


def check_images(name: str, data_dir: str) -> None:
    """FileNotFoundError for a name that `load_images` cannot know, or a path that is not there."""
    path = pathlib.Path(name).expanduser()
    if not (
        name in DATASETS or path.is_dir() or path.is_file() or prepared.is_prepared(name, data_dir)
    ):
        raise FileNotFoundError(
            f"ood: expected one of {', '.join(DATASETS)}, an npz file or a folder of images, "
            f"received {wording.quoted(name)}, which is no file"
            + wording.suggestion(name, DATASETS)
        )


def load_images(
    name: str,
    data_dir: str,
    shape: tuple[int, int, int],
    limit: int = 0,
    *,
    bad_files: str = "fail",
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Images alone, in the shape of another data set's: to be told from its own.

    Args:
      name: A name in `DATASETS` or of another data set that is prepared in `data_dir`, for the
        test set; or the path of an npz file with uint8 images `[n, height, width]` or `[n, height,
        width, channels]` under the key `x_test` (or `test_images`), `images` or `x`, or as its only
        array of images;
        or of a folder as in `load`, for its test folder if there is one, or of a folder of image
        files.
      data_dir: As in `load`: the folder of prepared data sets.
      shape: Height, width and channels to convert to, see `convert`.
      limit: Take at most the first of them; 0: all.
      bad_files: As in `load`.
      max_pixels: As in `load`.

    Returns:
      uint8 `[n, *shape]`.

    Raises:
      FileNotFoundError: If there is no such file, or as in `load`.
      ValueError: If the file or folder holds no images, or as in `load`.
    """
    folders.check_bad_files(bad_files)
    check_images(name, data_dir)
    if name in DATASETS or prepared.is_prepared(name, data_dir):
        size = None if name in DATASETS else shape[:2]
        test = load(name, data_dir, max_test_images=limit, size=size).test
        return convert(test.images, shape)
    path = pathlib.Path(name).expanduser()
    if path.is_dir():
        splits = folders.split_folders(path)
        folder = splits.get("test", splits["train"])
        files = folders.in_turn(
            [folders.visible_entries(group) for group in folders.class_folders(folder) or [folder]]
        )
        images, _, _, faults = folders.decode_all(
            path, files[: limit or None], shape[:2], shape[2], bad_files, 0, max_pixels
        )
        folders.refuse(path, faults)
        if not len(images):
            raise ValueError(f"{path}: expected image files, received none")
        return images
    return convert(arrays.read_images(path)[: limit or None], shape)
