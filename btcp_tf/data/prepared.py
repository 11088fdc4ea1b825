"""Data sets prepared for tensorflow-datasets."""

import contextlib
import os
import pathlib
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from btcp_tf.core.rows import NoRoomError, Rows
from btcp_tf.data import folders
from btcp_tf.data.catalog import DATASETS, DatasetSpec
from btcp_tf.data.images import are_images, convert
from btcp_tf.data.splits import Source, Split

_BATCH = 256
"""Images of one size that are read at once."""


def prepared_root(data_dir: str) -> pathlib.Path:
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if root.startswith("~/") and os.path.expanduser(root) == root:
        raise ValueError(
            "data_dir: expected the folder of prepared data sets with --data_dir or TFDS_DATA_DIR, "
            f"as there is no home folder (HOME) for {root}, received none"
        )
    return pathlib.Path(os.path.expanduser(root))


def is_prepared(name: str, data_dir: str) -> bool:
    # A configuration starts with a letter or a digit: `..` is no data set.
    is_name = re.fullmatch(r"\w+(/\w[\w.+-]*)?", name)
    return bool(is_name and _newest_prepared(prepared_root(data_dir) / name))


def load_tfds(name: str, data_dir: str, size: tuple[int, int] | None) -> Source:
    folder = prepared_root(data_dir) / name
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
    return Source(names, supplied)


@contextlib.contextmanager
def _whole(name: str, prepared: pathlib.Path) -> Iterator[None]:
    """Turns whatever goes wrong in reading a prepared copy into one clear error."""
    try:
        yield
    except NoRoomError:
        raise
    # tfds lets through errors of TensorFlow, JSON, protobuf and the file system: whatever it is,
    # the copy on disk cannot be used.
    except Exception as error:
        remedy = " Remove that folder and prepare it again." if name in DATASETS else ""
        raise ValueError(
            f"{name}: expected a whole prepared data set in {prepared}, received "
            f"{type(error).__name__}: {folders.first_line(error)}.{remedy}"
        ) from error


def _feature(name: str, features: Mapping[str, Any], kind: type, usual: str) -> str:
    """The key of a data set's only feature of a kind, or of the one that has its usual name."""
    keys = [key for key, feature in features.items() if isinstance(feature, kind)]
    if usual not in keys and len(keys) != 1:
        raise ValueError(
            f"{name}: expected one {kind.__name__} feature, or one called {usual!r}, received "
            f"{', '.join(f'{key} ({type(f).__name__})' for key, f in features.items())}"
        )
    return usual if usual in keys else keys[0]


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
            f"{name}: the download failed: {type(error).__name__}: {folders.first_line(error)}; "
            f"{remedy}."
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
        # A cache would only hold a second copy.
        batch_size=_BATCH if fixed else 1,
        shuffle_files=False,
        read_config=tfds.ReadConfig(try_autocache=False),
    )
    channels = 1 if builder.info.features[keys[0]].shape[2] == 1 else 3
    rows, answers = Rows(), [np.zeros(0, np.int64)]
    for batch in examples:
        own = batch[keys[0]].numpy()
        rows.add(own if fixed else convert(own, (*(size or ()), channels)))
        answers.append(batch[keys[1]].numpy())
    labels = np.concatenate(answers).astype(np.int64)
    if not len(labels):
        raise ValueError(f"expected images in {part}, received none")
    images = rows.array()
    wanted = spec.image_shape if spec else images.shape[1:]
    if not are_images(images) or images.shape[1:] != wanted:
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
