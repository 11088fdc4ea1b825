"""Image data sets as uint8 arrays, their split by seed, and batches for training.

Also images from elsewhere in the shape of a data set, and the same images seen worse: what a
classifier is tried on beyond its test set. Importing this module does not import TensorFlow; what
needs it does.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import threading
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds


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

    def __len__(self) -> int:
        return len(self.labels)


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
    """16 hexadecimal digits of the SHA-256 of names, images and labels of all four parts."""


def load(
    name: str,
    data_dir: str = "",
    seed: int = 0,
    max_train_images: int = 0,
    max_test_images: int = 0,
) -> Dataset:
    """Loads a data set into memory and splits its training images by seed.

    Validation and calibration get 5,000 of the training images each, or 10 %
    each where there are fewer than 30,000. The test set is the official one.

    Args:
      name: A name in `DATASETS`.
      data_dir: Folder of prepared tensorflow-datasets data. Default: the
        environment's TFDS_DATA_DIR, else ~/tensorflow_datasets. Without a
        prepared copy there, the data set is downloaded and prepared if its
        host answers.
      seed: Seed of the split, and of the draw of `max_train_images`.
      max_train_images: Use at most this many of the training images, drawn
        before the split; 0: all.
      max_test_images: Use at most the first of the test images; 0: all.

    Raises:
      FileNotFoundError: If there is neither a prepared copy nor a network.
      ValueError: If the name is unknown, the prepared copy is damaged, or too
        few images are asked for.
    """
    if name not in DATASETS:
        raise ValueError(f"dataset: expected one of {', '.join(DATASETS)}, received {name!r}")
    spec = DATASETS[name]
    if spec.source == "digits":
        class_names, train, test = _load_digits()
    else:
        class_names, train, test = _load_tfds(name, spec, data_dir)

    notes = []
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
    if 0 < max_train_images < len(train):
        notes.append(f"only {max_train_images:,} training images used (max_train_images)")
    if 0 < max_test_images < len(test):
        notes.append(f"only the first {max_test_images:,} test images used (max_test_images)")
        test = Split(test.images[:max_test_images].copy(), test.labels[:max_test_images].copy())

    parts = _split(train, seed, max_train_images)
    parts["test"] = test
    for part_name, part in parts.items():
        missing = spec.num_classes - len(np.unique(part.labels))
        if missing:
            notes.append(f"the {part_name} images lack {missing} of {spec.num_classes} classes")
    return Dataset(
        name=name,
        class_names=class_names,
        **parts,
        note=f"{name}: {'; '.join(notes)}" if notes else "",
        fingerprint=_fingerprint(class_names, parts),
    )


def _split(train: Split, seed: int, max_train_images: int) -> dict[str, Split]:
    """Cuts the official training images into train, validation and calibration."""
    order = np.random.default_rng(seed).permutation(len(train))
    if max_train_images:
        order = order[:max_train_images]
    held_out = 5_000 if len(order) >= 30_000 else len(order) // 10
    if not held_out:
        raise ValueError(f"max_train_images: expected at least 10 images, received {len(order)}")
    rows = {
        "train": order[2 * held_out :],
        "validation": order[:held_out],
        "calibration": order[held_out : 2 * held_out],
    }
    return {part: Split(train.images[r], train.labels[r]) for part, r in rows.items()}


def _fingerprint(class_names: tuple[str, ...], parts: dict[str, Split]) -> str:
    digest = hashlib.sha256("\n".join(class_names).encode())
    for part in parts.values():
        digest.update(f"{part.images.shape}".encode())
        digest.update(part.images.tobytes())
        digest.update(part.labels.tobytes())
    return digest.hexdigest()[:16]


def _load_digits() -> tuple[tuple[str, ...], Split, Split]:
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
    return tuple(str(n) for n in digits.target_names), train, test


def _load_tfds(name: str, spec: DatasetSpec, data_dir: str) -> tuple[tuple[str, ...], Split, Split]:
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    folder = pathlib.Path(root).expanduser() / name
    prepared = _newest_prepared(folder) or _prepare(name, spec, folder)

    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(str(prepared))
        label_names = builder.info.features["label"].names
        train, test = (_read_split(builder, part, spec) for part in ("train", "test"))
        if len(label_names) != spec.num_classes:
            raise ValueError(
                f"expected {spec.num_classes} class names, received {len(label_names)}"
            )
    # tfds lets through errors of TensorFlow, JSON, protobuf and the file system: whatever it is,
    # the copy on disk cannot be used.
    except Exception as error:
        raise ValueError(
            f"{name}: expected a whole prepared data set in {prepared}, received "
            f"{type(error).__name__}: {_first_line(error)}. "
            "Remove that folder and prepare it again."
        ) from error
    return tuple(label_names), train, test


def _newest_prepared(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest <folder>/<version> that tfds finished preparing."""
    versions = [
        path
        for path in folder.glob("*.*.*")
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and (path / "dataset_info.json").is_file()
    ]
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


def _read_split(builder: "tfds.core.DatasetBuilder", part: str, spec: DatasetSpec) -> Split:
    """Reads a whole tfds split at once, in its order."""
    import tensorflow_datasets as tfds

    examples = builder.as_dataset(
        split=part,
        batch_size=-1,
        shuffle_files=False,
        # With batch_size=-1 a cache would only hold a second copy.
        read_config=tfds.ReadConfig(try_autocache=False),
    )
    images = examples["image"].numpy()
    labels = examples["label"].numpy().astype(np.int64)
    if images.dtype != np.uint8 or images.shape[1:] != spec.image_shape:
        raise ValueError(
            f"expected uint8 images of shape {spec.image_shape}, received {images.dtype} "
            f"{images.shape[1:]} in {part}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < spec.num_classes:
        raise ValueError(
            f"expected labels from 0 to {spec.num_classes - 1}, received {labels.min()} to "
            f"{labels.max()} in {part}"
        )
    return Split(images, labels)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def load_images(
    name: str, data_dir: str, shape: tuple[int, int, int], limit: int = 0
) -> np.ndarray:
    """Images alone, in the shape of another data set's: to be told from its own.

    Args:
      name: A name in `DATASETS`, for the test set, or the path of an npz file with uint8 images
        `[n, height, width]` or `[n, height, width, channels]` under the key `x_test`, `images` or
        `x`, or as its only array of images.
      data_dir: As in `load`.
      shape: Height, width and channels to convert to, see `convert`.
      limit: Take at most the first of them; 0: all.

    Returns:
      uint8 `[n, *shape]`.

    Raises:
      FileNotFoundError: If there is no such file, or as in `load`.
      ValueError: If the file holds no images, or as in `load`.
    """
    if name in DATASETS:
        return convert(load(name, data_dir, max_test_images=limit).test.images, shape)
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"ood: expected one of {', '.join(DATASETS)} or an npz file of images, received "
            f"{name!r}, which is neither"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    # Not only ValueError: a damaged file can raise nearly anything.
    except Exception as error:
        raise ValueError(
            f"{path}: expected an npz file of images, received what cannot be read "
            f"({_first_line(error) or type(error).__name__})"
        ) from error
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
        luma = images.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        images = np.rint(luma[..., None]).astype(np.uint8)
    if images.shape[1:3] != shape[:2]:
        import tensorflow as tf

        parts = [
            tf.image.resize(images[start : start + 1024], shape[:2], antialias=True).numpy()
            for start in range(0, len(images), 1024)
        ]
        images = np.rint(np.concatenate(parts)).clip(0, 255).astype(np.uint8)
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
