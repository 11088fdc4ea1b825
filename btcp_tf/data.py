"""Image data sets as uint8 arrays, their split by seed, and batches for training.

Also images from elsewhere in the shape of a data set, and the same images seen worse: what a
classifier is tried on beyond its test set. Importing this module does not import TensorFlow; what
needs it does.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import wording
from btcp_tf.config import OWN_DATA
from btcp_tf.overlaps import NONE, Overlaps
from btcp_tf.progress import Bar

if TYPE_CHECKING:
    import PIL.Image
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Where one data set comes from and what it is as published.

    Its official test set is never re-split; see `load`.
    """

    source: str
    """tensorflow-datasets name and version, or "digits" (scikit-learn)."""
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    num_classes: int
    expected_train: int
    """Published number of training images; a prepared copy may hold fewer."""
    expected_test: int
    """Published number of test images."""
    url: str = ""
    """A file that preparing the data set downloads, to see if a network is there."""


DATASETS: dict[str, DatasetSpec] = {
    "mnist": DatasetSpec(
        source="mnist:3.*.*",
        image_shape=(28, 28, 1),
        num_classes=10,
        expected_train=60_000,
        expected_test=10_000,
        url="https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz",
    ),
    "fashion_mnist": DatasetSpec(
        source="fashion_mnist:3.*.*",
        image_shape=(28, 28, 1),
        num_classes=10,
        expected_train=60_000,
        expected_test=10_000,
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
    ),
    "cifar10": DatasetSpec(
        source="cifar10:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=10,
        expected_train=50_000,
        expected_test=10_000,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    "cifar100": DatasetSpec(
        source="cifar100:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=100,
        expected_train=50_000,
        expected_test=10_000,
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ),
    "svhn_cropped": DatasetSpec(
        source="svhn_cropped:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=10,
        expected_train=73_257,
        expected_test=26_032,
        url="http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
    ),
    # scikit-learn's 1,797 handwritten digits come with the library and have no official
    # test set: every fifth image of each class is the test set, whatever the seed.
    "digits": DatasetSpec(
        source="digits",
        image_shape=(8, 8, 1),
        num_classes=10,
        expected_train=1_442,
        expected_test=355,
    ),
}


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
class _Source:
    """What is supplied of a data set, before the protocol splits it."""

    class_names: tuple[str, ...]
    """As they are supplied; `load` cleans them."""
    parts: dict[str, Split]
    """By "train", and where they are supplied "validation" and "test"."""
    notes: tuple[str, ...] = ()


def check_name(name: str, data_dir: str) -> None:
    """Checks that `load` can know a name; whether the data is whole, only loading tells.

    Raises:
      ValueError: If the name is neither in `DATASETS` or `OWN_DATA` nor prepared in `data_dir`, or
        is in `OWN_DATA` and `data_dir` is empty.
    """
    if name in OWN_DATA and not data_dir:
        raise ValueError(f"data_dir: expected a path with dataset={name}, received none")
    if name not in (*DATASETS, *OWN_DATA) and not _is_prepared(name, data_dir):
        raise ValueError(
            f"dataset: expected one of {', '.join((*DATASETS, *OWN_DATA))}, or a name with "
            f"<name>/<version>/dataset_info.json in {_prepared_root(data_dir)}, received "
            + (
                wording.quoted(name) + wording.suggestion(name, (*DATASETS, *OWN_DATA))
                if name
                else "none"
            )
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
    verbose: int = 0,
) -> Dataset:
    """Loads a data set into memory and splits its training images by seed.

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
          there. Images are gray if all files are, else color; transparency is
          dropped. Hidden files, and files beside the class folders, are not
          read;
        - "npz": a file with uint8 images `[n, height, width]` or `[n, height,
          width, 1 or 3]` as `x_train`, `x_test` and perhaps `x_val`, whole
          numbers `[n]` or `[n, 1]` from 0 on as `y_train`, `y_test` and
          `y_val`, and perhaps words `[classes]` as `class_names`.
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
      verbose: 1 shows a progress bar while files are decoded.

    Raises:
      FileNotFoundError: If there is no such folder or file, or neither a
        prepared copy nor a network.
      ValueError: If the name is unknown, the data is damaged or is not as
        above, a class has no training image, classes are fewer than two or
        differ between splits, or too few images are asked for.
    """
    check_name(name, data_dir)
    if name == "folder":
        source = _read_folder(pathlib.Path(data_dir).expanduser(), size, bad_files, verbose)
    elif name == "npz":
        source = _read_npz(pathlib.Path(data_dir).expanduser())
    elif name == "digits":
        source = _load_digits()
    else:
        source = _load_tfds(name, data_dir, size)

    class_names, cleaned = wording.class_names(source.class_names, f"{name}: class names")
    notes = [*source.notes, *filter(None, [cleaned])]
    supplied = {part: _resized(split, size) for part, split in source.parts.items()}
    train = supplied["train"]
    if "test" in supplied:
        test = supplied["test"]
    else:
        train, test = _draw_test(train, seed)
        notes.append(
            "no test images supplied: a fifth of the training images of each class, drawn by "
            "seed, is the test set"
        )
    spec = DATASETS.get(name)
    if spec:
        shortfall = [
            f"{len(part):,} of {expected:,} {kind} images"
            for part, expected, kind in (
                (train, spec.expected_train, "training"),
                (test, spec.expected_test, "test"),
            )
            if len(part) != expected
        ]
        if shortfall:
            notes.append(f"part or stand-in: {', '.join(shortfall)}")
        if size and size != spec.image_shape[:2]:
            notes.append(f"images resized to {size[0]}x{size[1]} (image_size)")
    if 0 < max_train_images < len(train):
        notes.append(f"only {max_train_images:,} training images used (max_train_images)")
    if 0 < max_test_images < len(test):
        notes.append(f"only the first {max_test_images:,} test images used (max_test_images)")
        test = test.take(np.arange(max_test_images))

    parts: dict[str, Any] = _split(train, seed, max_train_images, supplied.get("validation"))
    parts["test"] = test
    classes = len(class_names)
    for part_name, part in parts.items():
        missing = classes - len(np.unique(part.labels))
        if missing:
            notes.append(f"the {part_name} images lack {missing} of {classes} classes")
    called = short_name(name, data_dir)
    return Dataset(
        name=called,
        class_names=class_names,
        **parts,
        note=f"{called}: {'; '.join(notes)}" if notes else "",
        fingerprint=_fingerprint("", parts),
        # Version 0.1.0 put the names of the classes before the images.
        former_fingerprints=(_fingerprint("\n".join(source.class_names), parts),),
    )


def _resized(split: Split, size: tuple[int, int] | None) -> Split:
    if size is None:
        return split
    images = convert(split.images, (*size, split.images.shape[3]))
    return dataclasses.replace(split, images=images)


def _draw_test(train: Split, seed: int) -> tuple[Split, Split]:
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


def _split(
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


def _fingerprint(start: str, parts: dict[str, Split]) -> str:
    digest = hashlib.sha256(start.encode("utf-8", "surrogateescape"))
    for part in parts.values():
        digest.update(f"{part.images.shape}".encode())
        digest.update(np.ascontiguousarray(part.images).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()[:16]


def _load_digits() -> _Source:
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
    return _Source(names, {"train": train, "test": test})


def _read_folder(
    root: pathlib.Path, size: tuple[int, int] | None, bad_files: str, verbose: int
) -> _Source:
    splits = _split_folders(root)
    folders = {part: _class_folders(path) for part, path in splits.items()}
    # Before any image is decoded. One class may have its name in two forms of Unicode, by part.
    found_names = {
        part: wording.class_names(
            [folder.name for folder in found], f"{splits[part]}: class folders"
        )
        for part, found in folders.items()
    }
    names = found_names["train"][0]
    if len(names) < 2:
        raise ValueError(
            f"{splits['train']}: expected a folder for each of at least 2 classes, received "
            f"{', '.join(names) or 'none'}"
        )
    for part, (part_names, _) in found_names.items():
        here = set(part_names)
        if here != set(names):
            missing, strange = sorted(set(names) - here), sorted(here - set(names))
            received = [f"them without {some(missing)}"] if missing else []
            received += [f"also {some(strange)}"] if strange else []
            raise ValueError(
                f"{splits[part]}: expected the classes of {splits['train']}, received "
                + " and ".join(received)
            )
    files = [
        file
        for found in folders.values()
        for file in _in_turn([_visible(folder) for folder in found])
    ]
    _refuse_empty(folders, files)
    images, files, notes = _decode_all(root, files, size, None, bad_files, verbose)
    _refuse_empty(folders, files)
    number = {name: label for label, name in enumerate(names)}
    labels = np.array([number[wording.clean(file.parent.name)] for file in files], np.int64)
    # The files of a split are next to each other.
    counts = [sum(file.parent.parent == path for file in files) for path in splits.values()]
    ends = np.cumsum(counts)[:-1]
    paths = np.array([str(file.absolute()) for file in files])
    columns = zip(splits, *(np.split(rows, ends) for rows in (images, labels, paths)), strict=True)
    own_names = tuple(folder.name for folder in folders["train"])
    return _Source(own_names, {part: Split(*rows) for part, *rows in columns}, notes)


def _split_folders(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Folders of class folders by what they are for: `root` alone, or its train and others."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"data_dir: expected a folder with a folder for each class, received {root}, which is "
            + ("a file" if root.exists() else "not there")
        )
    # A class may be called train, too, but its folder holds images.
    if not ((root / "train").is_dir() and _class_folders(root / "train")):
        return {"train": root}
    role = {"val": "validation", "valid": "validation"}
    names = [folder.name for folder in _class_folders(root)]
    splits = {role.get(name, name): root / name for name in names}
    if not set(splits) <= {"train", "validation", "test"} or len(splits) < len(names):
        # Not left out in silence: Test, say, is meant to be test.
        raise ValueError(
            f"{root}: expected the folders train, val (or validation, valid) and test, each once, "
            f"received {', '.join(names)}"
        )
    return {part: splits[part] for part in ("train", "validation", "test") if part in splits}


def _visible(folder: pathlib.Path) -> list[pathlib.Path]:
    # Neither pipes nor sockets: to open one can wait for ever.
    return sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".") and (path.is_dir() or path.is_file() or path.is_symlink())
    )


def _class_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _in_turn(groups: Sequence[Sequence[pathlib.Path]]) -> list[pathlib.Path]:
    """Files of some groups mixed in proportion, so that the first ones stand for all."""
    places = [
        ((rank + 0.5) / len(group), number, rank)
        for number, group in enumerate(groups)
        for rank in range(len(group))
    ]
    return [groups[number][rank] for _, number, rank in sorted(places)]


def _refuse_empty(
    folders: Mapping[str, Sequence[pathlib.Path]], files: Sequence[pathlib.Path]
) -> None:
    used = {file.parent for file in files}
    empty = [str(folder) for found in folders.values() for folder in found if folder not in used]
    if empty:
        raise ValueError(f"expected images in each class folder, received none in {some(empty)}")


def some(words: Sequence[str], most: int = 5) -> str:
    """The first of many words, and how many more there are."""
    shown = ", ".join(words[:most])
    return shown + (f" and {len(words) - most:,} more" if len(words) > most else "")


def _decode_all(
    root: pathlib.Path,
    files: Sequence[pathlib.Path],
    size: tuple[int, int] | None,
    channels: int | None,
    bad_files: str,
    verbose: int,
) -> tuple[np.ndarray, list[pathlib.Path], tuple[str, ...]]:
    """Reads image files.

    Args:
      root: What warnings and errors are about.
      files: Paths below it.
      size: Height and width; None: the files', which must agree.
      channels: 1 or 3; None: 1 if all files are gray, else 3.
      bad_files: As in `load`.
      verbose: As in `load`.

    Returns:
      uint8 `[n, height, width, channels]`, the n files they are from, and notes.
    """
    bad: dict[pathlib.Path, str] = {}
    shapes = {}
    # Sizes and colors stand in a file's first bytes: what does not fit is known in seconds, and
    # no memory is needed but that of the images as they will be.
    for file in files:
        with _noted(file, bad), _opened(file) as image:
            sideways = image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
            shapes[file] = (*image.size[:: 1 if sideways else -1], 1 if image.mode in _GRAY else 3)
    if size is None:
        sizes = {f"{height}x{width}" for height, width, _ in shapes.values()}
        if len(sizes) > 1:
            raise ValueError(
                f"{root}: expected images of one size (height x width), received "
                f"{some(sorted(sizes))}; --image_size=HEIGHTxWIDTH brings them to one"
            )
        height, width, _ = next(iter(shapes.values()), (1, 1, 1))
        size = height, width
    channels = channels or max((shape[2] for shape in shapes.values()), default=1)
    images = np.zeros((len(files), *size, channels), np.uint8)
    bar = Bar(f"{root}: {len(files):,} images", len(files), shown=verbose == 1)
    for row, file in enumerate(files):
        if file in shapes:
            with _noted(file, bad), _opened(file) as image:
                images[row] = _pixels(image, (*size, channels))
        bar.update(row + 1)
    if not bad:
        return images, list(files), ()
    told = [f"{file.relative_to(root)} ({reason})" for file, reason in bad.items()]
    count = f"{len(bad):,} of {len(files):,} files"
    if bad_files == "fail":
        raise ValueError(
            f"{root}: expected whole PNG, JPEG or BMP images in the class folders, received "
            f"{count} that are not: {some(told)}; --bad_files=skip goes on without them"
        )
    note = f"{count} are no whole images and were skipped (bad_files)"
    warnings.warn(f"{root}: {note}: {', '.join(told)}", stacklevel=4)
    rows = [row for row, file in enumerate(files) if file not in bad]
    return images[rows], [files[row] for row in rows], (note,)


_ORIENTATION = 0x0112
"""Exif: with 5 to 8, what is stored as rows is seen as columns."""
_GRAY = ("1", "L", "LA")
"""Pillow's modes of gray images of at most 8 bits."""
_COLOR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextlib.contextmanager
def _noted(file: pathlib.Path, bad: dict[pathlib.Path, str]) -> Iterator[None]:
    """Notes why a file cannot be read, rather than to end."""
    import PIL

    try:
        yield
    except PIL.UnidentifiedImageError:
        bad[file] = "not a PNG, JPEG or BMP image" if file.stat().st_size else "empty"
    # Pillow lets through what its decoders raise, which is nearly anything.
    except Exception as error:
        bad[file] = getattr(error, "strerror", None) or _first_line(error) or type(error).__name__


@contextlib.contextmanager
def _opened(file: pathlib.Path) -> "Iterator[PIL.Image.Image]":
    from PIL import Image

    # A link may lead to a pipe, which to open can take for ever.
    if file.exists() and not file.is_file():
        raise ValueError("no file")
    with Image.open(file, formats=("PNG", "JPEG", "BMP")) as image:
        if image.mode not in (*_GRAY, *_COLOR):
            # Pillow would cut 16 bits off at 255.
            raise ValueError(f"expected 8 bits a channel, received the mode {image.mode}")
        yield image


def read_image(
    file: str | os.PathLike, shape: tuple[int, int, int]
) -> tuple[np.ndarray | None, str]:
    """One image file as `load` reads those of a folder, or why it cannot be read.

    Args:
      file: PNG, JPEG or BMP of 8 bits a channel.
      shape: Height, width and channels (1 or 3) to convert to, see `convert`.

    Returns:
      (uint8 `[*shape]`, "") or (None, the reason in a few words). Safe in threads.
    """
    path = pathlib.Path(file)
    pixels: np.ndarray | None = None
    bad: dict[pathlib.Path, str] = {}
    with _noted(path, bad), _opened(path) as image:
        pixels = _pixels(image, shape)
    return pixels, bad.get(path, "")


def files_below(folder: str | os.PathLike) -> Iterator[str]:
    """Paths, relative to `folder`, of the visible files in it and in its visible sub-folders.

    Name by name in the order of code points, a sub-folder's files in its place; one folder's names
    are in memory at a time for each level. Links to folders are followed, but not into a folder
    that they are in. Pipes and sockets are left out, links to what is not there are not: whoever
    reads them will say so.

    Raises:
      OSError: If a folder cannot be listed.
    """

    def below(path: pathlib.Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        place = path.stat()
        if (place.st_dev, place.st_ino) in above:
            return
        above = above | {(place.st_dev, place.st_ino)}
        with os.scandir(path) as entries:
            # A link in a circle is neither folder nor file, and to ask raises.
            visible = sorted(
                (entry.name, os.path.isdir(entry))
                for entry in entries
                if not entry.name.startswith(".")
                and (entry.is_symlink() or entry.is_dir() or entry.is_file())
            )
        for name, is_folder in visible:
            if is_folder:
                yield from below(path / name, f"{prefix}{name}/", above)
            else:
                yield prefix + name

    return below(pathlib.Path(folder), "", frozenset())


def _pixels(image: "PIL.Image.Image", shape: tuple[int, int, int]) -> np.ndarray:
    """An image the right way up as uint8 `[*shape]`."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image).convert("L" if shape[2] == 1 else "RGB")
    return convert(np.asarray(upright)[None], shape)[0]


def _read_npz(path: pathlib.Path) -> _Source:
    arrays = _read_arrays(path, "data_dir: expected an npz file with x_train")
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
            f"at least once, received {some([str(label) for label in classes], 10)}"
        )
    for part, key in parts.items():
        strange = np.setdiff1d(supplied[part].labels, known)
        if len(strange):
            raise ValueError(
                f"{path}: y_{key}: expected labels from 0 to {len(names) - 1}, received "
                f"{some([str(label) for label in strange])}"
            )
    return _Source(tuple(str(name) for name in names), supplied)


def _npz_split(
    path: pathlib.Path, x_key: str, images: np.ndarray, y_key: str, labels: np.ndarray
) -> Split:
    if not _are_images(images):
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


def _read_arrays(path: pathlib.Path, expected: str, remedy: str = "") -> dict[str, np.ndarray]:
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
            f"({_first_line(error) or type(error).__name__})"
        ) from error


def _prepared_root(data_dir: str) -> pathlib.Path:
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if root.startswith("~/") and os.path.expanduser(root) == root:
        raise ValueError(
            "data_dir: expected the folder of prepared data sets with --data_dir or TFDS_DATA_DIR, "
            f"as there is no home folder (HOME) for {root}, received none"
        )
    return pathlib.Path(os.path.expanduser(root))


def _is_prepared(name: str, data_dir: str) -> bool:
    # A configuration starts with a letter or a digit: `..` is no data set.
    is_name = re.fullmatch(r"\w+(/\w[\w.+-]*)?", name)
    return bool(is_name and _newest_prepared(_prepared_root(data_dir) / name))


def _load_tfds(name: str, data_dir: str, size: tuple[int, int] | None) -> _Source:
    folder = _prepared_root(data_dir) / name
    prepared = _newest_prepared(folder) or _prepare(name, DATASETS[name], folder)
    spec = DATASETS.get(name)

    import tensorflow_datasets as tfds

    with _whole(name, prepared):
        builder = tfds.builder_from_directory(str(prepared))
        features = dict(builder.info.features.items())
        splits = list(builder.info.splits)
    image = _feature(name, features, tfds.features.Image, "image")
    label = _feature(name, features, tfds.features.ClassLabel, "label")
    if "train" not in splits:
        raise ValueError(f"{name}: expected a split train, received {', '.join(splits) or 'none'}")
    if None in features[image].shape and size is None:
        raise ValueError(
            f"{name}: expected images of one size, received sizes that differ; "
            "--image_size=HEIGHTxWIDTH brings them to one"
        )
    # A published test set that is not there is damage; of another data set nothing is known.
    parts = {"train": "train"} | ({"test": "test"} if spec or "test" in splits else {})
    for key in ("validation", "val", "valid"):
        if key in splits:
            parts.setdefault("validation", key)
    names = tuple(features[label].names or ())
    with _whole(name, prepared):
        if spec and len(names) != spec.num_classes:
            raise ValueError(f"expected {spec.num_classes} class names, received {len(names)}")
        supplied = {
            part: _read_split(builder, key, (image, label), len(names), spec, size)
            for part, key in parts.items()
        }
    return _Source(names, supplied)


@contextlib.contextmanager
def _whole(name: str, prepared: pathlib.Path) -> Iterator[None]:
    """Turns whatever goes wrong in reading a prepared copy into one clear error."""
    try:
        yield
    # tfds lets through errors of TensorFlow, JSON, protobuf and the file system: whatever it is,
    # the copy on disk cannot be used.
    except Exception as error:
        remedy = " Remove that folder and prepare it again." if name in DATASETS else ""
        raise ValueError(
            f"{name}: expected a whole prepared data set in {prepared}, received "
            f"{type(error).__name__}: {_first_line(error)}.{remedy}"
        ) from error


def _feature(name: str, features: Mapping[str, Any], kind: type, usual: str) -> str:
    """The key of a data set's only feature of a kind, or of the one that has its usual name."""
    found = [key for key, feature in features.items() if isinstance(feature, kind)]
    if usual not in found and len(found) != 1:
        raise ValueError(
            f"{name}: expected one {kind.__name__} feature, or one called {usual!r}, received "
            f"{', '.join(f'{key} ({type(f).__name__})' for key, f in features.items())}"
        )
    return usual if usual in found else found[0]


def _newest_prepared(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest <folder>/<version> that tfds finished preparing."""
    try:
        versions = [
            path
            for path in folder.glob("*.*.*")
            if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and (path / "dataset_info.json").is_file()
        ]
    except PermissionError as error:
        # A home folder of somebody else, say.
        raise ValueError(
            f"data_dir: expected a folder that can be read, received {folder}: {error.strerror}; "
            "name another with --data_dir or TFDS_DATA_DIR"
        ) from None
    return max(versions, key=lambda path: [int(n) for n in path.name.split(".")], default=None)


def _prepare(name: str, spec: DatasetSpec, folder: pathlib.Path) -> pathlib.Path:
    """Downloads and prepares a data set; without a network fails in seconds, in words."""
    remedy = (
        f"looked for {folder}/<version>/dataset_info.json. On a machine with a network run "
        f"`tfds build {name} --data_dir={folder.parent}` and copy the folder here; or name the "
        "folder that holds a prepared copy with --data_dir or TFDS_DATA_DIR; or use "
        "--dataset=digits, which needs no download"
    )
    # Left to itself, tfds retries for minutes before it says that there is no network.
    if not _answers(spec.url):
        raise FileNotFoundError(
            f"{name}: expected a prepared copy or a network, received neither ({spec.url} does not "
            f"answer); {remedy}."
        )

    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(spec.source, data_dir=str(folder.parent))
        builder.download_and_prepare()
    # Any failure of the download, the unpacking or the disk has the same remedy.
    except Exception as error:
        raise FileNotFoundError(
            f"{name}: the download failed: {type(error).__name__}: {_first_line(error)}; {remedy}."
        ) from error
    return pathlib.Path(builder.data_dir)


def _answers(url: str, seconds: float = 5.0) -> bool:
    """Whether the host serves this file, by the environment's proxy if it names one."""
    answers = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, method="HEAD"), timeout=seconds
            ):
                answers.set()
        except OSError:
            pass

    # A thread, because the timeout does not cover the resolving of the host's name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers.is_set()


def _read_split(
    builder: Any,
    part: str,
    keys: tuple[str, str],
    num_classes: int,
    spec: DatasetSpec | None,
    size: tuple[int, int] | None,
) -> Split:
    """Reads a whole tfds split in its order.

    Args:
      builder: tensorflow-datasets' builder.
      part: Name of the split.
      keys: Of the image and the label.
      num_classes: Labels are below it.
      spec: What the images must be, if that is known.
      size: Height and width to bring images to whose size is not fixed.
    """
    import tensorflow_datasets as tfds

    fixed = None not in builder.info.features[keys[0]].shape
    examples = builder.as_dataset(
        split=part,
        # All at once where that is possible. A cache would only hold a second copy.
        batch_size=-1 if fixed else None,
        shuffle_files=False,
        read_config=tfds.ReadConfig(try_autocache=False),
    )
    if fixed:
        images, labels = (examples[key].numpy() for key in keys)
    else:
        channels = 1 if builder.info.features[keys[0]].shape[2] == 1 else 3
        shape = (*(size or ()), channels)
        rows = [
            (convert(example[keys[0]].numpy()[None], shape)[0], example[keys[1]].numpy())
            for example in examples
        ]
        images, labels = (np.stack(column) for column in zip(*rows, strict=True))
    labels = labels.astype(np.int64)
    wanted = spec.image_shape if spec else images.shape[1:]
    if not _are_images(images) or images.shape[1:] != wanted:
        raise ValueError(
            f"expected uint8 images of shape {wanted if spec else '(height, width, 1 or 3)'}, "
            f"received {images.dtype} {images.shape[1:]} in {part}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"expected labels from 0 to {num_classes - 1}, received {labels.min()} to "
            f"{labels.max()} in {part}"
        )
    return Split(images, labels)


def _first_line(error: Exception) -> str:
    return (wording.cause(error).splitlines() or [""])[0]


def load_images(
    name: str,
    data_dir: str,
    shape: tuple[int, int, int],
    limit: int = 0,
    *,
    bad_files: str = "fail",
) -> np.ndarray:
    """Images alone, in the shape of another data set's: to be told from its own.

    Args:
      name: A name in `DATASETS` or of another data set that is prepared in `data_dir`, for the
        test set; or the path of an npz file with uint8 images `[n, height, width]` or `[n, height,
        width, channels]` under the key `x_test`, `images` or `x`, or as its only array of images;
        or of a folder as in `load`, for its test folder if there is one, or of a folder of image
        files.
      data_dir: As in `load`: the folder of prepared data sets.
      shape: Height, width and channels to convert to, see `convert`.
      limit: Take at most the first of them; 0: all.
      bad_files: As in `load`.

    Returns:
      uint8 `[n, *shape]`.

    Raises:
      FileNotFoundError: If there is no such file, or as in `load`.
      ValueError: If the file or folder holds no images, or as in `load`.
    """
    if name in DATASETS or _is_prepared(name, data_dir):
        size = None if name in DATASETS else shape[:2]
        test = load(name, data_dir, max_test_images=limit, size=size).test
        return convert(test.images, shape)
    path = pathlib.Path(name).expanduser()
    if path.is_dir():
        splits = _split_folders(path)
        folder = splits.get("test", splits["train"])
        files = _in_turn([_visible(group) for group in _class_folders(folder) or [folder]])
        images, *_ = _decode_all(path, files[: limit or None], shape[:2], shape[2], bad_files, 0)
        if not len(images):
            raise ValueError(f"{path}: expected image files, received none")
        return images
    arrays = _read_arrays(
        path,
        f"ood: expected one of {', '.join(DATASETS)}, an npz file or a folder of images",
        wording.suggestion(name, DATASETS),
    )
    found = [key for key, array in arrays.items() if _are_images(array)]
    key = next((key for key in ("x_test", "images", "x") if key in found), "")
    if not key and len(found) == 1:
        key = found[0]
    if not key:
        held = ", ".join(f"{key} {array.dtype} {array.shape}" for key, array in arrays.items())
        raise ValueError(
            f"{path}: expected uint8 images [n, height, width] or [n, height, width, channels] as "
            f"x_test, images, x or the only such array, received {held or 'no array'}"
        )
    return convert(arrays[key][: limit or None], shape)


def _are_images(array: np.ndarray) -> bool:
    shape = array.shape
    return (
        array.dtype == np.uint8
        and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))
        and all(shape)
    )


LUMA = (0.299, 0.587, 0.114)
"""Of red, green and blue in gray (ITU-R BT.601)."""


def are_image_sizes(shape: Sequence[int | None]) -> bool:
    """Whether inputs of this shape are gray or color images of one size."""
    return len(shape) == 3 and shape[2] in (1, 3) and all(shape[:2])


PIXELS = {"0_255": (1.0, 0.0), "0_1": (1.0 / 255, 0.0), "-1_1": (2.0 / 255, -1.0)}
"""What a classifier of floats may read for pixels from 0 to 255, by name: (scale, offset)."""


def scaled(images: np.ndarray, pixels: str) -> np.ndarray:
    """uint8 images as float32 on a scale of `PIXELS`, as Keras' Rescaling has them."""
    scale, offset = PIXELS[pixels]
    return images.astype(np.float32) * np.float32(scale) + np.float32(offset)


def convert(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Images in another size and number of channels.

    Color becomes gray by luma (0.299 R + 0.587 G + 0.114 B, ITU-R BT.601), gray becomes color by
    three equal channels. Another size is taken by bilinear interpolation, with a prefilter where
    the images shrink; the aspect ratio is not kept.

    Args:
      images: uint8 `[n, height, width]` or `[n, height, width, channels]`, 1 or 3 channels.
      shape: Height, width and channels, 1 or 3.

    Returns:
      uint8 `[n, *shape]`, rounded; `images` themselves where nothing changes.

    Raises:
      ValueError: If these are no such images, or no such shape.
    """
    if not _are_images(images):
        raise ValueError(
            "images: expected uint8 [n, height, width] or [n, height, width, 1 or 3], received "
            f"{images.dtype} {images.shape}"
        )
    if shape[2] not in (1, 3) or min(shape) < 1:
        raise ValueError(f"shape: expected (height, width, 1 or 3), received {shape}")
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[3] == 3 and shape[2] == 1:
        luma = images.astype(np.float32) @ np.array(LUMA, np.float32)
        images = np.rint(luma[..., None]).astype(np.uint8)
    if images.shape[1:3] != shape[:2]:
        from PIL import Image

        resized = np.empty((len(images), *shape[:2], images.shape[3]), np.uint8)
        for row, channel in np.ndindex(len(images), images.shape[3]):
            # As float32: of whole numbers Pillow rounds the rows and then the columns.
            plane = Image.fromarray(images[row, :, :, channel].astype(np.float32))
            plane = plane.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
            resized[row, :, :, channel] = np.rint(np.asarray(plane)).clip(0, 255)
        images = resized
    return np.repeat(images, 3, axis=3) if images.shape[3] < shape[2] else images


def _amount(amounts: tuple[float, float, float], images: np.ndarray, strength: int) -> float:
    """What a corruption does at a strength, after a look at its arguments."""
    if not _are_images(images) or images.ndim != 4:
        raise ValueError(
            "images: expected uint8 [n, height, width, 1 or 3], received "
            f"{images.dtype} {images.shape}"
        )
    if strength not in (1, 2, 3):
        raise ValueError(f"strength: expected 1, 2 or 3, received {strength}")
    return amounts[strength - 1]


def _noise(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Gaussian noise on every value, of standard deviation 16, 32 or 64 of 255."""
    scale = _amount((16.0, 32.0, 64.0), images, strength)
    rng = np.random.default_rng([seed, strength])
    noise = rng.standard_normal(images.shape, np.float32)
    return np.rint(images + scale * noise).clip(0, 255).astype(np.uint8)


def _blur(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Gaussian blur of standard deviation 0.75, 1.5 or 3 pixels of a 28 pixels high image.

    In proportion to the height; the image is mirrored at its edges. `seed` changes nothing.
    """
    from scipy import ndimage

    del seed
    sigma = _amount((0.75, 1.5, 3.0), images, strength) * images.shape[1] / 28
    blurred = ndimage.gaussian_filter(images.astype(np.float32), (0, sigma, sigma, 0))
    return np.rint(blurred).clip(0, 255).astype(np.uint8)


def _rotation(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Rotation by 15, 30 or 60 degrees, to a side drawn by seed for each image; zeros beyond."""
    from scipy import ndimage

    angle = _amount((15.0, 30.0, 60.0), images, strength)
    left = np.random.default_rng([seed, strength]).random(len(images)) < 0.5
    result = np.empty_like(images)
    for side, rows in ((angle, left), (-angle, ~left)):
        if rows.any():
            turned = ndimage.rotate(
                images[rows].astype(np.float32), side, (2, 1), reshape=False, order=1
            )
            result[rows] = np.rint(turned).clip(0, 255).astype(np.uint8)
    return result


CORRUPTIONS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "noise": _noise,
    "blur": _blur,
    "rotation": _rotation,
}
"""Covariate shift by name: (uint8 images `[n, height, width, 1 or 3]`, strength 1 to 3, seed) →
images of the same shape and type, equal ones for equal arguments. ValueError for other images or
another strength."""


def epoch_variable() -> "tf.Variable":
    """An int64 epoch number, from 0, for `batches` to read.

    Create it outside of a distribution strategy's scope.
    """
    import tensorflow as tf

    # tf.data runs on the host and cannot read a variable of a GPU.
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch")


def batches(
    arrays: tuple[np.ndarray, ...],
    batch_size: int,
    *,
    seed: int = 0,
    epoch: "tf.Variable | None" = None,
) -> "tf.data.Dataset":
    """One pass over the rows of some arrays as a `tf.data.Dataset`.

    The order of the rows depends on `seed` and the value of `epoch` alone, so
    a run that resumes at some epoch sees what it would have seen. The value is
    read when an iterator is created: Keras' `fit` does that for each epoch,
    after the `on_epoch_begin` of its callbacks.

    Args:
      arrays: Arrays of the same length n. They stay as they are (uint8 stays
        uint8); TensorFlow holds one copy.
      batch_size: Rows in a batch, over all replicas. The last batch may be
        smaller; no row is dropped.
      seed: Seed of the orders.
      epoch: From `epoch_variable`; None: rows in their order.

    Returns:
      Dataset of ceil(n / batch_size) tuples of one batch of each array.
    """
    import tensorflow as tf

    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"arrays: expected the same number of rows (at least one) in each, received "
            f"{[len(array) for array in arrays]}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, received {batch_size}")
    (n,) = lengths
    # Held as tensors that the functions below capture by reference: constants of the graph
    # are limited to 2 GB.
    with tf.device("CPU:0"):
        tensors = tuple(tf.convert_to_tensor(array) for array in arrays)

    def slices(_):
        if epoch is None:
            order = tf.range(n, dtype=tf.int64)
        else:
            order = tf.random.experimental.stateless_shuffle(
                tf.range(n, dtype=tf.int64),
                seed=tf.stack([tf.constant(seed, tf.int64), epoch]),
                alg="philox",
            )
        # Whole batches of the order, not row after row: an epoch on features spends a tenth of
        # its time on that. So it would on handing each batch to another thread: no prefetch().
        whole = n - n % batch_size
        dataset = tf.data.Dataset.from_tensor_slices(tf.reshape(order[:whole], [-1, batch_size]))
        if whole == n:
            return dataset
        return dataset.concatenate(tf.data.Dataset.from_tensors(order[whole:]))

    dataset = (
        tf.data.Dataset.range(1)
        .flat_map(slices)
        .map(lambda index: tuple(tf.gather(tensor, index) for tensor in tensors))
        .apply(tf.data.experimental.assert_cardinality(-(-n // batch_size)))
    )
    options = tf.data.Options()
    # Autotuning makes `fit` wait for up to minutes at the end of an epoch.
    options.autotune.enabled = False
    # One process reads everything; a strategy cuts the batches, not the files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
