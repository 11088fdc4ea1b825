import dataclasses
import errno
import functools
import gc
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import types
import urllib.request
import weakref

import numpy as np
import pytest
from machine import anonymous_mib
from PIL import Image

from benchmarks import hostile
from btcp_tf.core import config, rows
from btcp_tf.data import batching, datasets, folders, prepared
from btcp_tf.data.catalog import DATASETS
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.data.images import convert
from btcp_tf.data.splits import Split, fingerprint_of, split_train
from btcp_tf.evaluation import predictions

PARTS = ("train", "validation", "calibration", "test")


def rows_of(split):
    """The images of a split as one bytes object each."""
    return [image.tobytes() for image in split.images]


def sizes(dataset):
    return tuple(len(getattr(dataset, part)) for part in PARTS)


def test_import_does_not_wait_for_the_heavy_libraries():
    code = (
        "import sys, btcp_tf.data;"
        "print([m for m in ('tensorflow', 'keras', 'tensorflow_datasets', 'sklearn') "
        "if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"


# --- digits: the embedded data set, also the cheap one for what holds of all ---


def test_digits_are_all_there_unscaled_and_split_four_ways():
    from sklearn.datasets import load_digits

    dataset = datasets.load("digits")
    # Of the 1,797 images floor(count / 5) of each class are test; of the rest 10 % twice.
    assert sizes(dataset) == (1154, 144, 144, 355)
    assert dataset.class_names == tuple("0123456789")
    assert dataset.note == ""
    for part in PARTS:
        split = getattr(dataset, part)
        assert split.images.dtype == np.uint8
        assert split.images.shape[1:] == (8, 8, 1)
        assert split.labels.dtype == np.int64
        assert set(split.labels) == set(range(10))

    source = load_digits()
    scale = {value: round(value * 255 / 16) for value in range(17)}
    expected = sorted(
        (bytes(scale[value] for value in image.ravel()), label)
        for image, label in zip(source.images, source.target, strict=True)
    )
    received = sorted(
        (row, label)
        for part in PARTS
        for row, label in zip(
            rows_of(getattr(dataset, part)), getattr(dataset, part).labels, strict=True
        )
    )
    assert received == expected
    assert max(max(row) for row, _ in received) == 255


def test_split_follows_the_seed_and_leaves_the_test_set_alone():
    first, again, other = (
        datasets.load("digits", seed=4),
        datasets.load("digits", seed=4),
        datasets.load("digits", seed=5),
    )
    for part in PARTS:
        np.testing.assert_array_equal(getattr(first, part).images, getattr(again, part).images)
        np.testing.assert_array_equal(getattr(first, part).labels, getattr(again, part).labels)
    assert first.fingerprint == again.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", first.fingerprint)
    np.testing.assert_array_equal(first.test.images, other.test.images)
    assert rows_of(first.validation) != rows_of(other.validation)
    assert first.fingerprint != other.fingerprint


def test_parts_of_the_training_images_are_disjoint():
    images = np.arange(60_000, dtype=np.int64)[:, None]
    parts = split_train(Split(images, images[:, 0]), seed=0, max_train_images=0)
    assert [len(part) for part in parts.values()] == [50_000, 5_000, 5_000]
    together = np.concatenate([part.labels for part in parts.values()])
    np.testing.assert_array_equal(np.sort(together), np.arange(60_000))
    for part in parts.values():
        np.testing.assert_array_equal(part.images[:, 0], part.labels)


def test_one_validation_image_cannot_be_halved():
    labels = np.arange(20)
    split = Split(labels, labels)
    with pytest.raises(ValueError, match="validation: expected at least 2 images, received 1"):
        split_train(split, 0, 0, validation=Split(labels[:1], labels[:1]))


@pytest.mark.parametrize(
    "count, held_out", [(10, 1), (29_999, 2_999), (30_000, 5_000), (50_000, 5_000)]
)
def test_held_out_sizes(count, held_out):
    labels = np.arange(count)
    parts = split_train(Split(labels, labels), seed=0, max_train_images=0)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": count - 2 * held_out,
        "validation": held_out,
        "calibration": held_out,
    }


def test_fewer_images_are_drawn_by_seed_and_noted():
    whole = datasets.load("digits")
    few = datasets.load("digits", seed=1, max_train_images=200, max_test_images=50)
    assert sizes(few) == (160, 20, 20, 50)
    np.testing.assert_array_equal(few.test.images, whole.test.images[:50])
    assert "only 200 training images used (max_train_images)" in few.note
    assert "only the first 50 test images used (max_test_images)" in few.note
    used = [row for part in PARTS[:3] for row in rows_of(getattr(few, part))]
    official = [row for part in PARTS[:3] for row in rows_of(getattr(whole, part))]
    assert set(used) <= set(official)
    other = datasets.load("digits", seed=2, max_train_images=200)
    assert set(used) != {row for part in PARTS[:3] for row in rows_of(getattr(other, part))}


def test_more_images_than_there_are_means_all():
    dataset = datasets.load("digits", max_train_images=10**6, max_test_images=10**6)
    assert sizes(dataset) == (1154, 144, 144, 355)
    assert dataset.note == ""
    assert dataset.fingerprint == datasets.load("digits").fingerprint


def test_absent_classes_are_noted():
    note = datasets.load("digits", max_train_images=10).note
    assert "the validation images lack 9 of 10 classes" in note
    assert "the test images" not in note


def test_fingerprint_sees_one_pixel_and_one_label():
    split = Split(np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int64))
    pixel, label = split.images.copy(), split.labels.copy()
    pixel[2, 1, 1, 0], label[2] = 1, 1
    prints = {
        fingerprint_of("", {"train": part})
        for part in (split, Split(pixel, split.labels), Split(split.images, label))
    }
    assert len(prints) == 3


def test_fingerprints_are_hashes_of_images_and_labels_and_formerly_of_names_too():
    dataset = datasets.load("digits", max_train_images=100)
    parts = (dataset.train, dataset.validation, dataset.calibration, dataset.test)
    arrays = b"".join(
        str(part.images.shape).encode() + part.images.tobytes() + part.labels.tobytes()
        for part in parts
    )
    assert dataset.fingerprint == hashlib.sha256(arrays).hexdigest()[:16]
    names = b"0\n1\n2\n3\n4\n5\n6\n7\n8\n9"
    assert dataset.former_fingerprints == (hashlib.sha256(names + arrays).hexdigest()[:16],)


def test_refuses_unknown_names_and_too_few_images():
    with pytest.raises(ValueError, match="expected one of mnist, .*received 'minst'"):
        datasets.load("minst")
    with pytest.raises(ValueError, match="max_train_images: expected at least 10 .*received 9"):
        datasets.load("digits", max_train_images=9)


# --- prepared data sets ---


def test_without_data_and_network_one_error_says_where_and_what_to_do(tmp_path, monkeypatch):
    # Port 9 of this machine: refused at once, as a host that does not answer.
    spec = dataclasses.replace(DATASETS["mnist"], url="http://127.0.0.1:9/file")
    monkeypatch.setitem(DATASETS, "mnist", spec)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for argument, folder in (
        (str(tmp_path / "argument"), tmp_path / "argument"),
        ("", tmp_path / "environment"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            datasets.load("mnist", argument)
        message = str(caught.value)
        assert f"{folder}/mnist/<version>/dataset_info.json" in message
        assert f"tfds build mnist --data_dir={folder}`" in message
        assert "--data_dir or TFDS_DATA_DIR" in message
        assert "--dataset=digits" in message
    monkeypatch.delenv("TFDS_DATA_DIR")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "home" / "tensorflow_datasets")):
        datasets.load("mnist")
    assert list(tmp_path.iterdir()) == []


def test_host_that_never_answers_does_not_hold_up(monkeypatch):
    over = threading.Event()

    def hang(*_, **__):
        over.wait()
        raise TimeoutError

    monkeypatch.setattr(urllib.request, "urlopen", hang)
    assert not prepared._answers("http://127.0.0.1/", seconds=0.05)
    over.set()


def test_host_that_answers_is_seen():
    class Files(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert prepared._answers(f"{url}/there")
        assert not prepared._answers(f"{url}/gone")
        server.shutdown()
        thread.join()


def test_newest_finished_version_is_taken(tmp_path):
    assert prepared._newest_prepared(tmp_path / "absent") is None
    for version in ("3.0.2", "3.0.10", "2.9.9", "3.1.0", "4.0.0.incompleteAB12"):
        (tmp_path / version).mkdir()
        if version != "3.1.0":
            (tmp_path / version / "dataset_info.json").write_text("{}")
    assert prepared._newest_prepared(tmp_path).name == "3.0.10"


@pytest.fixture(scope="session")
def tiny_mnist(tmp_path_factory):
    """Folder in which tfds prepared 40 + 20 random images as mnist 3.0.1."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def examples(count):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28, 1), np.uint8)
        return tf.data.Dataset.from_tensor_slices({"image": images, "label": np.arange(count) % 10})

    root = tmp_path_factory.mktemp("tiny")
    tfds.disable_progress_bar()
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mnist",
        version="3.0.1",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        ),
        split_datasets={"train": examples(40), "test": examples(20)},
        data_dir=str(root),
        disable_shuffling=True,
    )
    return root


def test_prepared_copy_is_read_as_it_is(tiny_mnist, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tiny_mnist))
    dataset = datasets.load("mnist")
    assert sizes(dataset) == (32, 4, 4, 20)
    expected = np.random.default_rng(20).integers(0, 256, (20, 28, 28, 1), np.uint8)
    np.testing.assert_array_equal(dataset.test.images, expected)
    assert dataset.test.labels.tolist() == [*range(10), *range(10)]
    assert dataset.note.startswith(
        "mnist: part or stand-in: 40 of 60,000 training images, 20 of 10,000 test images"
    )


@pytest.mark.parametrize("damage", ["truncated", "file gone", "metadata", "images", "classes"])
def test_unusable_copy_is_named(damage, tiny_mnist, tmp_path, monkeypatch):
    folder = tmp_path / "mnist" / "3.0.1"
    shutil.copytree(tiny_mnist / "mnist" / "3.0.1", folder)
    records = folder / "mnist-test.tfrecord-00000-of-00001"
    if damage == "truncated":
        records.write_bytes(records.read_bytes()[: records.stat().st_size // 2])
    elif damage == "file gone":
        records.unlink()
    elif damage == "metadata":
        (folder / "dataset_info.json").write_text('{"name": ')
    elif damage == "images":
        spec = dataclasses.replace(DATASETS["mnist"], image_shape=(32, 32, 3))
        monkeypatch.setitem(DATASETS, "mnist", spec)
    else:
        spec = dataclasses.replace(DATASETS["mnist"], num_classes=9)
        monkeypatch.setitem(DATASETS, "mnist", spec)
    with pytest.raises(ValueError) as caught:
        datasets.load("mnist", str(tmp_path))
    message = str(caught.value)
    assert f"mnist: expected a whole prepared data set in {folder}, received " in message
    assert "Remove that folder" in message


def test_with_a_network_the_data_set_is_prepared(tiny_mnist, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(prepared, "_answers", lambda url: True)
    asked = []

    def builder(source, data_dir):
        folder = pathlib.Path(data_dir) / "mnist" / "3.0.1"

        def download_and_prepare():
            asked.append(source)
            if len(asked) == 1:
                raise ConnectionError("reset by peer")
            shutil.copytree(tiny_mnist / "mnist" / "3.0.1", folder)

        return types.SimpleNamespace(
            download_and_prepare=download_and_prepare, data_dir=str(folder)
        )

    monkeypatch.setattr(tfds, "builder", builder)
    with pytest.raises(FileNotFoundError, match="download failed: ConnectionError: reset by peer"):
        datasets.load("mnist", str(tmp_path))
    for _ in range(2):
        assert sizes(datasets.load("mnist", str(tmp_path))) == (32, 4, 4, 20)
    # Asked for the version range once more, and not again once it was there.
    assert asked == ["mnist:3.*.*"] * 2


# Sizes: train, validation, calibration, test of the complete data sets.
COMPLETE = {
    "mnist": (50_000, 5_000, 5_000, 10_000),
    "fashion_mnist": (50_000, 5_000, 5_000, 10_000),
    "cifar10": (40_000, 5_000, 5_000, 10_000),
    "cifar100": (40_000, 5_000, 5_000, 10_000),
    "svhn_cropped": (63_257, 5_000, 5_000, 26_032),
}
NAMES = {
    "mnist": ("0", "9"),
    "fashion_mnist": ("T-shirt/top", "Ankle boot"),
    "cifar10": ("airplane", "truck"),
    "cifar100": ("apple", "worm"),
    "svhn_cropped": ("0", "9"),
}


def prepared_counts(folder, name):
    """Numbers of training and test images, read from dataset_info.json alone."""
    (info,) = (folder / name).glob("*/dataset_info.json")
    splits = json.loads(info.read_text())["splits"]
    return {split["name"]: sum(map(int, split["shardLengths"])) for split in splits}


@functools.cache
def load_once(name, folder):
    return datasets.load(name, folder)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.prepared_data(name)) for name in COMPLETE]
)
def test_real_data_set_is_whole_or_says_that_it_is_not(name, prepared_data_dir):
    spec = DATASETS[name]
    here = prepared_counts(pathlib.Path(prepared_data_dir), name)
    dataset = load_once(name, prepared_data_dir)
    assert sum(sizes(dataset)[:3]) == here["train"]
    assert len(dataset.test) == here["test"]
    if (here["train"], here["test"]) == (spec.expected_train, spec.expected_test):
        assert sizes(dataset) == COMPLETE[name]
        assert dataset.note == ""
    else:
        assert dataset.note.startswith(f"{name}: part or stand-in: ")
        for kind, published in (("training", spec.expected_train), ("test", spec.expected_test)):
            count = here["train" if kind == "training" else "test"]
            phrase = f"{count:,} of {published:,} {kind} images"
            assert (phrase in dataset.note) == (count != published)
    assert len(dataset.class_names) == spec.num_classes
    assert (dataset.class_names[0], dataset.class_names[-1]) == NAMES[name]
    for part in PARTS:
        split = getattr(dataset, part)
        assert split.images.dtype == np.uint8
        assert split.images.shape == (len(split), *spec.image_shape)
        assert split.images.max() > 200
        assert split.labels.dtype == np.int64
        assert set(np.unique(split.labels)) <= set(range(spec.num_classes))
    assert set(dataset.train.labels) == set(range(spec.num_classes))


@pytest.mark.prepared_data("mnist")
def test_mnist_equals_published_counts_per_class(prepared_data_dir):
    dataset = load_once("mnist", prepared_data_dir)
    training = sum(np.bincount(getattr(dataset, part).labels) for part in PARTS[:3])
    assert training.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = np.bincount(dataset.test.labels).tolist()
    assert test == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The published channel mean of the 60,000 training images is 0.1307.
    total = sum(getattr(dataset, part).images.sum(dtype=np.int64) for part in PARTS[:3])
    assert round(total / (255 * 60_000 * 28 * 28), 4) == 0.1307


# --- one's own data: a folder of images ---


def picture(seed, shape=(6, 8)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_images(root, count=10, shape=(6, 8), classes=("cat", "dog"), suffix="png"):
    """Class folders of random images; the number of the class stands in the first pixel."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = picture([label, number], shape)
            pixels[0, 0] = label
            Image.fromarray(pixels).save(root / name / f"{number:03}.{suffix}")
    return root


def files_of(root):
    """(pixels, class) of each PNG below a folder of class folders."""
    return sorted(
        (np.asarray(Image.open(path)).tobytes(), path.parent.name) for path in root.rglob("*.png")
    )


def rows_and_classes(dataset, *parts):
    return sorted(
        (image.tobytes(), dataset.class_names[label])
        for part in parts
        for image, label in zip(
            getattr(dataset, part).images, getattr(dataset, part).labels, strict=True
        )
    )


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 3)])
def test_a_folder_of_class_folders_is_read_bit_by_bit(tmp_path, shape):
    root = write_images(tmp_path / "xrays", 50, shape, ("dog", "cat", "ant"))
    (root / "cat" / ".DS_Store").write_text("hidden")
    (root / ".cache").mkdir()
    (root / "README.txt").write_text("beside the class folders")
    dataset = datasets.load("folder", f"{root}/")
    assert (dataset.name, dataset.class_names) == ("xrays", ("ant", "cat", "dog"))
    assert sizes(dataset) == (96, 12, 12, 30)
    assert dataset.test.images.shape[1:] == (6, 8, 1 if len(shape) == 2 else 3)
    for part in PARTS:
        assert getattr(dataset, part).images.dtype == np.uint8
        assert getattr(dataset, part).labels.dtype == np.int64
    assert rows_and_classes(dataset, *PARTS) == files_of(root)
    assert dataset.note == (
        "xrays: no test images supplied: a fifth of the training images of each class, drawn by "
        "seed, is the test set"
    )


def test_transparent_parts_are_noted_and_animations_are_no_images(tmp_path):
    root = write_images(tmp_path / "photos", 20)
    clear = Image.fromarray(np.full((6, 8, 4), 255, np.uint8))
    clear.save(root / "cat" / "000.png")
    assert "transparent" not in datasets.load("folder", str(root)).note
    clear.putpixel((1, 1), (0, 0, 0, 0))
    clear.save(root / "cat" / "000.png")
    assert "1 of 40 images have transparent parts" in datasets.load("folder", str(root)).note
    frames = [Image.fromarray(np.full((6, 8), gray, np.uint8)) for gray in (0, 99)]
    frames[0].save(root / "cat" / "001.png", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=r"cat/001.png \(expected one picture, received an anim"):
        datasets.load("folder", str(root))
    assert folders.read_image(root / "cat" / "001.png", (6, 8, 1))[0] is None


def test_a_word_that_bad_files_does_not_know_is_refused(tmp_path):
    for load in (
        lambda: datasets.load("digits", bad_files="error"),
        lambda: datasets.load_images("digits", "", (8, 8, 1), bad_files="error"),
    ):
        with pytest.raises(
            ValueError, match="bad_files: expected one of fail, skip, received 'err"
        ):
            load()


def test_what_systems_leave_in_folders_is_no_class_and_no_image(tmp_path):
    root = write_images(tmp_path / "photos", 30)
    before = datasets.load("folder", str(root)).fingerprint
    for place in (root, root / "cat"):
        for name in ("Thumbs.db", "desktop.ini", ".DS_Store"):
            (place / name).write_text("left by a system")
        for name in ("__MACOSX", "$RECYCLE.BIN"):
            (place / name).mkdir()
            (place / name / "._000.png").write_text("a copy's shadow")
    dataset = datasets.load("folder", str(root))
    assert dataset.class_names == ("cat", "dog") and dataset.fingerprint == before
    assert len(list(folders.files_below(root))) == 60
    assert len(datasets.load_images(str(root / "cat"), "", (6, 8, 1))) == 30


@pytest.mark.parametrize("bad_files", ["fail", "skip"])
def test_folders_inside_of_class_folders_are_refused_before_images_are_read(
    tmp_path, monkeypatch, bad_files
):
    root = write_images(tmp_path, 10)
    write_images(root / "dog", 2, classes=("puppy", "old"))
    monkeypatch.setattr(folders, "decode_all", None)
    with pytest.raises(ValueError, match="received the folders dog/old, dog/puppy; move"):
        datasets.load("folder", str(root), bad_files=bad_files)


def test_the_folder_around_the_class_folders_is_named(tmp_path):
    write_images(tmp_path / "photos", 10)
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(ValueError, match="received photos; --data_dir=.*/photos reads"):
        datasets.load("folder", str(tmp_path))


@pytest.mark.parametrize("settings", [{}, {"size": (6, 8)}, {"max_test_images": 7}])
def test_every_image_of_a_folder_knows_its_file(tmp_path, settings):
    root = write_images(tmp_path / "xrays", 20, (6, 8), ("cat", "ant"))
    dataset = datasets.load("folder", str(root), **settings)
    for part in PARTS:
        split = getattr(dataset, part)
        assert len(split.files) == len(split) > 0
        for image, file in zip(split.images, split.files, strict=True):
            assert pathlib.Path(file).is_absolute()
            np.testing.assert_array_equal(image[..., 0], np.asarray(Image.open(file)))
    assert datasets.load("digits").test.files is None


def test_a_drawn_test_set_is_stratified_and_follows_the_seed(tmp_path):
    root = write_images(tmp_path / "many", 60, classes=("a",))
    write_images(root, 20, classes=("b", "c"))
    first, again, other = (datasets.load("folder", str(root), seed) for seed in (1, 1, 2))
    for dataset in (first, other):
        assert np.bincount(dataset.test.labels).tolist() == [12, 4, 4]
        assert len(set(dataset.test.labels[:10])) > 1
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert rows_of(first.test) != rows_of(other.test)
    # Fewer training images leave the test set as it is.
    few = datasets.load("folder", str(root), 1, max_train_images=20)
    np.testing.assert_array_equal(few.test.images, first.test.images)
    assert sizes(few)[:3] == (16, 2, 2)


@pytest.mark.parametrize("called", ["val", "validation", "valid"])
def test_supplied_splits_are_used_and_validation_is_halved(tmp_path, called):
    for part, count in (("train", 15), (called, 5), ("test", 7)):
        write_images(tmp_path / "own" / part, count)
    dataset = datasets.load("folder", str(tmp_path / "own"))
    assert sizes(dataset) == (30, 5, 5, 14)
    assert dataset.note == ""
    assert rows_and_classes(dataset, "train") == files_of(tmp_path / "own" / "train")
    assert rows_and_classes(dataset, "test") == files_of(tmp_path / "own" / "test")
    assert rows_and_classes(dataset, "validation", "calibration") == files_of(
        tmp_path / "own" / called
    )
    other = datasets.load("folder", str(tmp_path / "own"), seed=1)
    np.testing.assert_array_equal(dataset.test.images, other.test.images)
    assert rows_of(dataset.validation) != rows_of(other.validation)


def test_first_test_images_of_a_folder_stand_for_all_classes(tmp_path):
    write_images(tmp_path / "train", 10)
    write_images(tmp_path / "test", 30, classes=("cat",))
    write_images(tmp_path / "test", 10, classes=("dog",))
    labels = datasets.load("folder", str(tmp_path), max_test_images=8).test.labels
    assert np.bincount(labels).tolist() == [6, 2]


def test_without_a_validation_folder_it_comes_from_the_training_images(tmp_path):
    for part, count in (("train", 20), ("test", 3)):
        write_images(tmp_path / part, count)
    dataset = datasets.load("folder", str(tmp_path))
    assert sizes(dataset) == (32, 4, 4, 6)
    assert rows_and_classes(dataset, *PARTS[:3]) == files_of(tmp_path / "train")


def test_a_class_may_be_called_train(tmp_path):
    write_images(tmp_path, 10, classes=("train", "plane", "test"))
    assert datasets.load("folder", str(tmp_path)).class_names == ("plane", "test", "train")


def test_formats_and_modes_are_read_as_a_person_sees_them(tmp_path):
    root = write_images(tmp_path / "mixed", 10)
    gray = picture(1)
    color = np.zeros((6, 8, 3), np.uint8) + np.array([200, 30, 60], np.uint8)
    sideways = Image.Exif()
    sideways[0x0112] = 6
    upright = np.zeros((6, 8, 3), np.uint8)
    upright[:, 4:] = 255
    for name, image, options in (
        ("cat/one.bmp", Image.fromarray(gray), {}),
        ("cat/two.JPG", Image.fromarray(color), {"format": "JPEG"}),
        ("cat/three.png", Image.fromarray(color).quantize(4), {}),
        ("cat/four.png", Image.fromarray(np.dstack([color, gray])), {}),
        ("cat/five.png", Image.fromarray(gray > 99), {}),
        # As a camera that is held upright stores it: turned to the left.
        ("cat/six.jpg", Image.fromarray(np.rot90(upright)), {"exif": sideways}),
    ):
        image.save(root / name, **options)
    dataset = datasets.load("folder", str(root))
    assert sum(sizes(dataset)) == 26
    found = [row for part in PARTS for row in getattr(dataset, part).images]
    for expected, count, tolerance in (
        (gray[..., None].repeat(3, 2), 1, 0),
        (color, 3, 3),
        (((gray > 99) * np.uint8(255))[..., None].repeat(3, 2), 1, 0),
        (upright, 1, 8),
    ):
        near = [np.abs(image.astype(int) - expected).max() <= tolerance for image in found]
        assert sum(near) == count


def test_other_sizes_need_an_image_size(tmp_path):
    root = write_images(tmp_path / "sizes", 10)
    Image.fromarray(picture(5, (12, 9))).save(root / "cat" / "large.png")
    with pytest.raises(ValueError, match="expected images of one size .* received 12x9, 6x8; --im"):
        datasets.load("folder", str(root))
    dataset = datasets.load("folder", str(root), size=(5, 7))
    assert dataset.test.images.shape[1:] == (5, 7, 1)
    expected = convert(picture(5, (12, 9))[None], (5, 7, 1))[0].tobytes()
    assert expected in [row for part in PARTS for row in rows_of(getattr(dataset, part))]


def damaged(tmp_path):
    root = write_images(tmp_path / "bad", 10)
    (root / "cat" / "empty.png").touch()
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / "dog" / "deeper").symlink_to("nowhere")
    whole = (root / "dog" / "000.png").read_bytes()
    (root / "dog" / "part.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(picture(3).astype(np.uint16) * 256).save(root / "dog" / "deep.png")
    Image.fromarray(picture(3)).save(root / "dog" / "other.gif")
    return root


def test_bad_files_are_named_and_counted(tmp_path):
    root = damaged(tmp_path)
    with pytest.raises(ValueError) as caught:
        datasets.load("folder", str(root))
    message = str(caught.value)
    assert "bad: expected whole PNG, JPEG or BMP images" in message and "\n" not in message
    assert "received 6 of 26 files that are not" in message
    # One kind after the other, and of each the first few files.
    assert message.count(" (") == 5 and "; --bad_files=skip" in message
    assert "cat/empty.png (empty)" in message
    assert "cat/notes.txt, dog/other.gif (not a PNG, JPEG or BMP image)" in message


def faulty(tmp_path):
    """Class folders with faults of several kinds: files that are no whole image, an empty class,
    a picture of another size."""
    root = damaged(tmp_path)
    frames = [Image.fromarray(picture(number)) for number in (1, 2)]
    frames[0].save(root / "cat" / "moving.png", save_all=True, append_images=frames[1:])
    for number in range(8):
        (root / "dog" / f"{number}.txt").write_text("not an image")
    (root / "eel").mkdir()
    Image.fromarray(picture(5, (12, 9))).save(root / "cat" / "large.png")
    return root


def test_faults_of_several_kinds_are_told_all_at_once(tmp_path):
    root = faulty(tmp_path)
    with pytest.raises(ValueError) as caught:
        datasets.load("folder", str(root))
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{root}: expected ")
    assert message.count(str(root)) == 2  # At the start, and as a part of the empty folder's path.
    for part in (
        "received 3 faults: (1) ",
        f"expected images in each class folder, received none in {root / 'eel'}; put some in",
        "received 15 of 36 files that are not: ",
        "cat/empty.png (empty)",
        "cat/moving.png (expected one picture, received an animation)",
        "cat/notes.txt, dog/0.txt, dog/1.txt and 7 more (not a PNG, JPEG or BMP image)",
        "expected images of one size (height x width), received 12x9, 6x8; --image_size=",
    ):
        assert part in message
    # With an image_size and without the bad files there is one fault left.
    with pytest.warns(UserWarning, match="15 of 36 files"), pytest.raises(ValueError) as caught:
        datasets.load("folder", str(root), size=(6, 8), bad_files="skip")
    assert str(caught.value).startswith("expected images in each class folder, received none in ")
    (root / "eel").rmdir()
    with pytest.warns(UserWarning, match="15 of 36 files"):
        datasets.load("folder", str(root), size=(6, 8), bad_files="skip")


def test_faults_of_the_folders_are_told_all_at_once_before_files_are_read(tmp_path, monkeypatch):
    for part, classes in (("train", ("a", "b")), ("val", ("a",)), ("test", ("a", "b", "c"))):
        write_images(tmp_path / part, 2, classes=classes)
    write_images(tmp_path / "test" / "c", 2, classes=("deeper",))
    monkeypatch.setattr(folders, "decode_all", None)
    with pytest.raises(ValueError, match="received 3 faults: ") as caught:
        datasets.load("folder", str(tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    for part in ("them without b", "received also c", "received the folders test/c/deeper; move"):
        assert part in message


def test_faults_of_a_folder_of_other_images_are_told_all_at_once(tmp_path):
    root = faulty(tmp_path)
    with pytest.raises(ValueError, match="received 15 of 36 files that are not: ") as caught:
        datasets.load_images(str(root), "", (6, 8, 1))
    assert "moving.png (expected one picture" in str(caught.value)
    assert " and 7 more (not a PNG" in str(caught.value)


def test_bad_files_are_skipped_on_request_with_a_warning_and_a_note(tmp_path):
    root = damaged(tmp_path)
    with pytest.warns(UserWarning) as caught:
        dataset = datasets.load("folder", str(root), bad_files="skip")
    (warning,) = caught
    for name in ("empty.png", "notes.txt", "deeper", "part.png", "deep.png", "other.gif"):
        assert name in str(warning.message)
    assert "6 of 26 files are no whole images and were skipped (bad_files)" in dataset.note
    assert sum(sizes(dataset)) == 20
    for name in ("cat/empty.png", "dog/part.png", "dog/deep.png"):
        (root / name).unlink()
    assert rows_and_classes(dataset, *PARTS) == files_of(root)


def test_a_class_with_bad_files_alone_is_empty(tmp_path):
    root = write_images(tmp_path, 10)
    (root / "eel").mkdir()
    (root / "eel" / "a.png").touch()
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="received none in .*eel; put"):
        datasets.load("folder", str(root), bad_files="skip")


@pytest.mark.parametrize(
    "change, message",
    [
        (
            "empty",
            "expected images in each class folder, received none in .*dog; put some in, or rem",
        ),
        ("one class", "expected a folder for each of at least 2 classes, received cat$"),
        ("no class", "expected a folder for each of at least 2 classes, received none$"),
        ("missing", "test: expected the classes of .*train, received them without dog$"),
        ("strange", "val: expected the classes of .*train, received also eel$"),
        ("twice", r"expected the folders train, val .* received test, train, val, valid$"),
        ("spelled", r"expected the folders train, val .* received Test, train, val$"),
        ("few", "train: expected at least 10 images, received 4"),
        ("no test", "test: expected a test set, or at least 3 images .* received 4 images of 2"),
    ],
)
def test_a_folder_that_is_no_data_set_is_refused(tmp_path, change, message):
    root = tmp_path / "own"
    for part in ("train", "val", "test"):
        write_images(root / part, 2)
    if change == "empty":
        shutil.rmtree(root / "test" / "dog")
        (root / "test" / "dog").mkdir()
    elif change == "one class":
        shutil.rmtree(root / "train" / "dog")
    elif change == "no class":
        root = root / "train" / "cat"
    elif change == "missing":
        shutil.rmtree(root / "test" / "dog")
    elif change == "strange":
        write_images(root / "val", 2, classes=("eel",))
    elif change == "twice":
        write_images(root / "valid", 2)
    elif change == "spelled":
        (root / "test").rename(root / "Test")
    elif change == "few":
        shutil.rmtree(root / "val")
    else:
        shutil.rmtree(root / "test")
    with pytest.raises(ValueError, match=message) as caught:
        datasets.load("folder", str(root))
    assert "\n" not in str(caught.value)


def test_names_with_line_ends_are_cleaned_and_guard_nothing(tmp_path):
    found = [
        save_arrays(tmp_path / f"{number}.npz", class_names=np.array(names))
        for number, names in enumerate((["a\r", "b\r", "c"], ["a", "b", "c"], ["d", "e", "f"]))
    ]
    raw, clean, other = found
    assert raw.class_names == clean.class_names == ("a", "b", "c")
    assert "2 cleaned of white space" in raw.note and clean.note == ""
    assert raw.fingerprint == clean.fingerprint == other.fingerprint
    # What 0.1.0 trained on a list with line ends goes on, too.
    assert raw.former_fingerprints != clean.former_fingerprints


def save_arrays(path, **changes):
    np.savez(path, **arrays(**changes))
    return datasets.load("npz", str(path))


def test_a_class_may_have_its_name_in_two_forms_of_unicode_but_not_twice(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    write_images(tmp_path / "train", 10, classes=(composed, "dog"))
    write_images(tmp_path / "test", 2, classes=(decomposed, "dog "))
    dataset = datasets.load("folder", str(tmp_path))
    assert dataset.class_names == (composed, "dog")
    assert sorted(dataset.test.labels) == [0, 0, 1, 1]
    assert (dataset.test.images[:, 0, 0, 0] == dataset.test.labels).all()
    write_images(tmp_path / "train", 2, classes=(decomposed,))
    with pytest.raises(ValueError, match="train: class folders: expected each name once"):
        datasets.load("folder", str(tmp_path))


@pytest.mark.parametrize("name", ["a\rb", "a\u2028b", "x" * 201, os.fsdecode(b"\xff")])
def test_class_folders_that_cannot_be_names_are_refused_before_images_are_read(
    tmp_path, monkeypatch, name
):
    write_images(tmp_path, 2, classes=(name, "dog"))
    monkeypatch.setattr(folders, "decode_all", None)
    with pytest.raises(ValueError, match="class folders: expected names ") as caught:
        datasets.load("folder", str(tmp_path))
    assert str(caught.value).isprintable()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder .* received .*none, which is n"):
        datasets.load("folder", str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="received .*file, which is a file"):
        datasets.load("folder", str(tmp_path / "file"))
    for name in ("folder", "npz"):
        with pytest.raises(ValueError, match=f"data_dir: expected a path with dataset={name}"):
            datasets.load(name)


def test_decoding_shows_its_progress_where_it_may(tmp_path, capsys):
    root = write_images(tmp_path, 10)
    datasets.load("folder", str(root))
    assert capsys.readouterr().out == ""
    datasets.load("folder", str(root), verbose=1)
    assert "20 images" in capsys.readouterr().out


def test_fingerprint_of_a_folder_sees_one_pixel(tmp_path):
    root = write_images(tmp_path, 10)
    before = datasets.load("folder", str(root)).fingerprint
    pixels = np.asarray(Image.open(root / "cat" / "003.png")).copy()
    pixels[2, 3] ^= 1
    Image.fromarray(pixels).save(root / "cat" / "003.png")
    assert datasets.load("folder", str(root)).fingerprint != before


# --- one's own data: a file of arrays ---


def arrays(channels=(), **changes):
    rng = np.random.default_rng(0)
    found = {}
    for part, count in (("train", 40), ("val", 10), ("test", 12)):
        found[f"x_{part}"] = rng.integers(0, 256, (count, 5, 6, *channels), np.uint8)
        found[f"y_{part}"] = (np.arange(count) % 3).astype(np.uint8)
    found |= changes
    return {key: array for key, array in found.items() if array is not None}


@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_a_file_of_arrays_is_read_as_it_is(tmp_path, channels):
    found = arrays(channels, class_names=np.array(["a", "b", "see"]))
    found["y_train"] = found["y_train"][:, None].astype(np.int32)
    np.savez(tmp_path / "own.v2.npz", **found)
    dataset = datasets.load("npz", str(tmp_path / "own.v2.npz"))
    assert (dataset.name, dataset.class_names) == ("own.v2", ("a", "b", "see"))
    assert (sizes(dataset), dataset.note) == ((40, 5, 5, 12), "")
    shape = (12, 5, 6, *(channels or (1,)))
    np.testing.assert_array_equal(dataset.test.images, found["x_test"].reshape(shape))
    np.testing.assert_array_equal(dataset.test.labels, found["y_test"])
    assert dataset.test.labels.dtype == np.int64
    held_out = rows_and_classes(dataset, "validation", "calibration")
    assert held_out == sorted(
        (image.tobytes(), dataset.class_names[label])
        for image, label in zip(found["x_val"], found["y_val"], strict=True)
    )
    small = datasets.load("npz", str(tmp_path / "own.v2.npz"), size=(4, 3))
    expected = convert(dataset.test.images, (4, 3, shape[3]))
    np.testing.assert_array_equal(small.test.images, expected)


def test_a_file_without_validation_and_names_gives_its_training_images_and_numbers(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays(x_val=None, y_val=None))
    dataset = datasets.load("npz", str(tmp_path / "own.npz"))
    assert (sizes(dataset), dataset.class_names) == ((32, 4, 4, 12), ("0", "1", "2"))


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            dict(x_test=None),
            r"expected the arrays x_train, y_train, x_test, y_test, x_val, y_val \(or train_im",
        ),
        (dict(y_val=None), "expected the arrays .* y_val .*received x_train, .*x_val, x_test"),
        (
            dict(x_train=np.linspace(0, 1, 1200, dtype=np.float32).reshape(40, 5, 6)),
            r"x_train: .* received float32 \[40, 5, 6\] from 0 to 1; save .*rint\(255 \* x\)",
        ),
        (dict(x_test=np.zeros((12, 3, 5, 6), np.uint8)), r"x_test: .*; numpy.moveaxis\(x, 1, -1\)"),
        (dict(train_labels=np.zeros(40)), "expected y_train once, received .*y_train and train_la"),
        (
            dict(y_train=np.ones((40, 3))),
            "y_train: expected .* one-hot .* received shares of class",
        ),
        (
            dict(y_train=np.array(list("abcd") * 10)),
            "labels of one kind in all parts, received .*<U",
        ),
        (dict(x_test=np.full((12, 5, 6), np.nan)), r"x_test: .*float64 \[12, 5, 6\] with NaN$"),
        (dict(x_test=np.zeros((12, 5, 6, 2), np.uint8)), r"x_test: expected .*\[12, 5, 6, 2\]"),
        (dict(x_test=np.zeros((12, 6, 5), np.uint8)), "expected images of one shape, received .*6"),
        (dict(y_train=np.zeros(39, int)), r"y_train: .*each of the 40 images .*int64 \[39\]"),
        (dict(y_train=np.arange(40) % 3 / 2), "y_train: expected a whole number, .*from 0 to 1$"),
        (dict(y_val=np.full(10, np.nan)), "y_val: expected a whole number, .*with NaN"),
        (dict(y_train=np.arange(40) % 3 - 1), "each label from 0 to 2 .* received -1, 0, 1"),
        (
            dict(y_train=np.arange(40) % 3 * 2),
            "each label from 0 to 2 .* received 0, 2, 4; .*return_inverse",
        ),
        (dict(y_train=np.zeros(40, int)), "at least 2 classes, .* received 0$"),
        (dict(y_test=np.arange(12)), "y_test: expected labels from 0 to 2, received 3, 4, 5, 6, 7"),
        (dict(y_val=np.arange(10) - 1), "y_val: expected labels from 0 to 2, received -1, 3"),
        (
            dict(class_names=np.array(list("abcd"))),
            "class_names: .* 3 classes in y_train, received 4",
        ),
        (
            dict(class_names=np.array(["a", "b", "a"])),
            "class_names: expected each name once, .*'a' 2",
        ),
        (dict(class_names=np.array(["a", "b", "c\rd"])), "class_names: expected names without .*"),
        (dict(class_names=np.array(["a", "b", ".."])), "class_names: expected a name for each .*"),
        (dict(class_names=np.array([1, 2, 3])), "class_names: expected words .*int64"),
    ],
)
def test_a_file_that_is_no_data_set_is_refused(tmp_path, changes, message):
    np.savez(tmp_path / "own.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=f"own.npz: .*{message}") as caught:
        datasets.load("npz", str(tmp_path / "own.npz"))
    assert "\n" not in str(caught.value)


def test_a_missing_or_unreadable_file_of_arrays_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="data_dir: expected an npz file .*none.npz"):
        datasets.load("npz", str(tmp_path / "none.npz"))
    objects = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.array([{}], object))
    np.savez(tmp_path / "own.npz", **objects)
    with pytest.raises(
        ValueError, match="own.npz: expected an npz file, received what cannot be read"
    ):
        datasets.load("npz", str(tmp_path / "own.npz"))


def test_the_names_of_medmnist_are_taken(tmp_path):
    found = arrays()
    ours = save_arrays(tmp_path / "own.npz")
    theirs = {
        f"{name[2:]}_{dict(x='images', y='labels')[name[0]]}": array
        for name, array in found.items()
    }
    theirs |= {name: array[:, None] for name, array in theirs.items() if name.endswith("labels")}
    np.savez(tmp_path / "medmnist.npz", **theirs)
    taken = datasets.load("npz", str(tmp_path / "medmnist.npz"))
    assert taken.fingerprint == ours.fingerprint and taken.class_names == ours.class_names
    images = datasets.load_images(str(tmp_path / "medmnist.npz"), "", (5, 6, 1))
    np.testing.assert_array_equal(images[..., 0], found["x_test"])


WORDS = np.array(["dog", "bee", "cat"])


@pytest.mark.parametrize(
    "encode, names, given",
    [
        (lambda y: y.astype(np.float32), "012", None),
        (lambda y: y.astype(np.int16) + 1, "123", None),
        (lambda y: y + 1, "abc", list("abc")),
        (lambda y: np.eye(3)[y], "012", None),
        (lambda y: np.eye(3, dtype=bool)[y], "012", None),
        (lambda y: np.sort(WORDS)[y], sorted(WORDS), None),
        (lambda y: WORDS[y].astype("S"), list(WORDS), list(WORDS)),
    ],
)
def test_labels_are_taken_however_a_file_writes_them(tmp_path, encode, names, given):
    found = arrays()
    y = {f"y_{part}": encode(found[f"y_{part}"]) for part in ("train", "val", "test")}
    if given:
        y["class_names"] = np.array(given)
    plain, encoded = save_arrays(tmp_path / "a.npz"), save_arrays(tmp_path / "b.npz", **y)
    assert encoded.class_names == tuple(names)
    assert encoded.fingerprint == plain.fingerprint
    counts_from_one = np.max(y["y_train"].astype("S") == b"3")
    assert ("labels count from 1" in encoded.note) == counts_from_one


def test_true_and_false_are_two_classes(tmp_path):
    found = arrays()
    y = {f"y_{part}": found[f"y_{part}"] > 0 for part in ("train", "val", "test")}
    dataset = save_arrays(tmp_path / "a.npz", **y)
    assert dataset.class_names == ("0", "1")
    np.testing.assert_array_equal(dataset.test.labels, found["y_test"] > 0)


def test_nobody_is_told_to_load_files_unsafely(tmp_path):
    (tmp_path / "text.npz").write_text("x,y")
    np.savez(tmp_path / "objects.npz", **arrays(y_train=np.array([None] * 40)))
    # Both readers refuse it; what is no zip archive is not even read as an array.
    for name, words in (
        ("text", "not in NumPy's format|no zip archive"),
        ("objects", "array of Python objects"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            datasets.load("npz", str(tmp_path / f"{name}.npz"))
        assert "pickle" not in str(caught.value)
        with pytest.raises(ValueError, match=words) as caught:
            predictions.load_predictions(tmp_path / f"{name}.npz")
        assert "pickle" not in str(caught.value)


@pytest.mark.prepared_data("pneumoniamnist.npz")
def test_real_x_rays_keep_their_official_splits(prepared_data_dir):
    path = pathlib.Path(prepared_data_dir).parent / "pneumoniamnist.npz"
    dataset = datasets.load("npz", str(path))
    assert sizes(dataset) == (4708, 262, 262, 624)
    assert (dataset.name, dataset.note) == ("pneumoniamnist", "")
    with np.load(path) as archive:
        np.testing.assert_array_equal(dataset.test.images[..., 0], archive["x_test"])
        np.testing.assert_array_equal(dataset.test.labels, archive["y_test"])


@pytest.mark.parametrize(
    "name, path, expected",
    [
        ("folder", "data/xrays", "xrays"),
        ("folder", "data/xrays/", "xrays"),
        ("folder", "data/my x-rays, new", "my_x-rays_new"),
        ("npz", "~/data/letters.v2.npz", "letters.v2"),
        # Not to be taken for the data set of that name.
        ("folder", "data/mnist", "folder-mnist"),
        ("npz", "mnist.npz", "npz-mnist"),
        ("folder", "/", "folder"),
        ("mnist", "data/xrays", "mnist"),
        ("eurosat/rgb", "", "eurosat-rgb"),
    ],
)
def test_ones_own_data_is_called_by_its_path(name, path, expected):
    assert datasets.short_name(name, path) == expected


# --- other data sets of tensorflow-datasets ---


def prepare_tfds(root, parts, features=None, name="weeds", shape=(6, 8, 3)):
    """Has tfds prepare random images, and labels of two classes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    features = features or {
        "photo": tfds.features.Image(shape=shape),
        "kind": tfds.features.ClassLabel(names=["thistle", "nettle"]),
        "id": np.int64,
    }

    def examples(count):
        for number in range(count):
            height, width = (size or 6 + number % 3 for size in shape[:2])
            image = picture(number, (height, width, shape[2]))
            yield dict(zip(features, (image, number % 2, number), strict=False))

    signature = {
        key: tf.TensorSpec(shape if number == 0 else (), tf.uint8 if number == 0 else tf.int64)
        for number, key in enumerate(features)
    }
    tfds.disable_progress_bar()
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            part: tf.data.Dataset.from_generator(
                functools.partial(examples, count), output_signature=signature
            )
            for part, count in parts.items()
        },
        data_dir=str(root),
        disable_shuffling=True,
    )
    return str(root)


def test_any_prepared_data_set_loads_by_its_name(tmp_path):
    root = prepare_tfds(tmp_path, {"train": 20, "validation": 7, "test": 5})
    dataset = datasets.load("weeds", root)
    assert (dataset.name, dataset.class_names) == ("weeds", ("thistle", "nettle"))
    assert (sizes(dataset), dataset.note) == ((20, 4, 3, 5), "")
    for number, image in enumerate(dataset.test.images):
        np.testing.assert_array_equal(image, picture(number, (6, 8, 3)))
    assert dataset.test.labels.tolist() == [0, 1, 0, 1, 0]
    assert datasets.load("weeds", root, size=(3, 4)).test.images.shape == (5, 3, 4, 3)
    others = datasets.load_images("weeds", root, (6, 8, 3), limit=2)
    np.testing.assert_array_equal(others, dataset.test.images[:2])


def test_a_prepared_data_set_without_a_test_split_gives_a_fifth(tmp_path):
    root = prepare_tfds(tmp_path, {"train": 50}, shape=(6, 8, 1))
    dataset = datasets.load("weeds", root)
    assert sizes(dataset) == (32, 4, 4, 10)
    assert np.bincount(dataset.test.labels).tolist() == [5, 5]
    assert dataset.note.startswith("weeds: no test images supplied: a fifth")


def test_a_prepared_data_set_of_other_sizes_needs_an_image_size(tmp_path):
    root = prepare_tfds(tmp_path, {"train": 20, "test": 4}, shape=(None, None, 3))
    with pytest.raises(ValueError, match="weeds: expected images of one size, .*--image_size"):
        datasets.load("weeds", root)
    dataset = datasets.load("weeds", root, size=(5, 4))
    assert dataset.train.images.shape == (16, 5, 4, 3)
    expected = convert(picture(1, (7, 7, 3))[None], (5, 4, 3))[0]
    np.testing.assert_array_equal(dataset.test.images[1], expected)


def test_a_prepared_data_set_without_image_label_or_training_split_is_refused(tmp_path):
    import tensorflow_datasets as tfds

    features = {
        "left": tfds.features.Image(shape=(6, 8, 3)),
        "right": tfds.features.Scalar(np.int64),
    }
    root = prepare_tfds(tmp_path / "a", {"train": 4}, features)
    with pytest.raises(
        ValueError, match="weeds: expected one ClassLabel feature, or one called 'l"
    ):
        datasets.load("weeds", root)
    root = prepare_tfds(tmp_path / "b", {"test": 4})
    with pytest.raises(ValueError, match="weeds: expected a split train, received test"):
        datasets.load("weeds", root)


def test_a_damaged_copy_of_another_data_set_is_named_and_never_downloaded(tmp_path, monkeypatch):
    root = prepare_tfds(tmp_path, {"train": 20, "test": 4})
    monkeypatch.setattr(prepared, "_prepare", None)
    (tmp_path / "weeds" / "1.0.0" / "weeds-test.tfrecord-00000-of-00001").unlink()
    with pytest.raises(ValueError, match="weeds: expected a whole prepared data set in .*1.0.0"):
        datasets.load("weeds", root)
    with pytest.raises(ValueError) as caught:
        datasets.load("reeds", root)
    known = ", ".join([*DATASETS, "folder", "npz"])
    assert str(caught.value) == (
        f"dataset: expected one of {known}, or a name with <name>/<version>/dataset_info.json in "
        f"{root}, received 'reeds'"
    )
    for name in ("../" + tmp_path.name + "/weeds", "", "weeds/1.0.0/x"):
        with pytest.raises(ValueError, match="dataset: expected one of mnist"):
            datasets.load(name, root)


def test_a_known_data_set_in_another_size_says_so():
    dataset = datasets.load("digits", size=(4, 6))
    assert dataset.test.images.shape == (355, 4, 6, 1)
    assert dataset.note == "digits: images resized to 4x6 (image_size)"


# --- images from elsewhere ---


def color_images(n: int = 4, height: int = 7, width: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(n, height, width, 3), dtype=np.uint8)


def test_images_of_their_shape_stay_as_they_are():
    images = color_images()
    np.testing.assert_array_equal(convert(images, (7, 9, 3)), images)
    np.testing.assert_array_equal(convert(images[..., 0], (7, 9, 1))[..., 0], images[..., 0])


def test_color_becomes_gray_by_luma_and_gray_becomes_color():
    images = color_images()
    gray = convert(images, (7, 9, 1))
    red, green, blue = np.moveaxis(images.astype(float), -1, 0)
    np.testing.assert_array_equal(gray[..., 0], np.rint(0.299 * red + 0.587 * green + 0.114 * blue))
    np.testing.assert_array_equal(convert(np.full((1, 2, 2, 3), 255, np.uint8), (2, 2, 1)), 255)
    color = convert(gray, (7, 9, 3))
    for channel in range(3):
        np.testing.assert_array_equal(color[..., channel], gray[..., 0])


def slow_axis(pixels: np.ndarray, size: int) -> np.ndarray:
    """One axis, bilinear: pixel centers, a triangle that is widened where the axis shrinks."""
    scale = len(pixels) / size
    result = []
    for new in range(size):
        center = (new + 0.5) * scale - 0.5
        weights = [max(0, 1 - abs(old - center) / max(scale, 1)) for old in range(len(pixels))]
        result.append(sum(w * p for w, p in zip(weights, pixels, strict=True)) / sum(weights))
    return np.array(result)


@pytest.mark.parametrize("shape", [(28, 32, 3), (3, 4, 3), (7, 18, 1), (1, 1, 3)])
def test_another_size_is_bilinear(shape):
    images = color_images()
    resized = convert(images, shape)
    assert (resized.dtype, resized.shape) == (np.uint8, (4, *shape))
    source = convert(images, (7, 9, shape[2])).astype(float)
    for image, received in zip(source, resized, strict=True):
        expected = np.apply_along_axis(slow_axis, 0, image, shape[0])
        expected = np.apply_along_axis(slow_axis, 1, expected, shape[1])
        assert np.abs(expected - received).max() < 0.51  # Rounded, from float32.


def test_flat_images_stay_flat_in_any_shape():
    for shape in ((5, 50, 1), (2, 3, 3)):
        assert set(convert(np.full((2, 7, 9, 3), 200, np.uint8), shape).ravel()) == {200}


def test_convert_refuses_what_is_no_image_or_no_shape():
    for bad in (np.zeros((2, 7, 9, 3)), np.zeros((7, 9), np.uint8), np.zeros((1, 7, 9, 4), "u1")):
        with pytest.raises(ValueError, match="images: expected uint8"):
            convert(bad, (7, 9, 1))
    for shape in ((7, 9, 2), (0, 9, 1)):
        with pytest.raises(
            ValueError, match=r"shape: expected \(height, width, 1 or 3\), received"
        ):
            convert(color_images(), shape)


def test_images_of_a_data_set_are_its_test_images():
    digits = datasets.load("digits").test.images
    np.testing.assert_array_equal(datasets.load_images("digits", "", (8, 8, 1)), digits)
    few = datasets.load_images("digits", "", (4, 4, 3), limit=5)
    np.testing.assert_array_equal(few, convert(digits[:5], (4, 4, 3)))


def test_images_of_a_folder_are_found(tmp_path):
    write_images(tmp_path / "flat", 3, (6, 8, 3), classes=("only",))
    flat = datasets.load_images(str(tmp_path / "flat" / "only"), "", (6, 8, 1))
    expected = [np.asarray(Image.open(path)) for path in sorted(tmp_path.rglob("*.png"))]
    np.testing.assert_array_equal(flat, convert(np.stack(expected), (6, 8, 1)))
    # Of class folders all; of splits the test set.
    write_images(tmp_path / "own" / "train", 5)
    write_images(tmp_path / "own" / "test", 4, (9, 9))
    assert len(datasets.load_images(str(tmp_path / "own" / "train"), "", (6, 8, 1))) == 10
    test = datasets.load_images(str(tmp_path / "own"), "", (9, 9, 3), limit=6)
    assert test.shape == (6, 9, 9, 3)
    assert test[:, 0, 0, 0].tolist() == [0, 1] * 3
    (tmp_path / "flat" / "only" / "000.png").write_text("words")
    with pytest.raises(ValueError, match="received 1 of 3 files that are not: only/000.png"):
        datasets.load_images(str(tmp_path / "flat"), "", (6, 8, 1))
    with pytest.warns(UserWarning, match="only/000.png"):
        few = datasets.load_images(str(tmp_path / "flat"), "", (6, 8, 1), bad_files="skip")
    np.testing.assert_array_equal(few, flat[1:])
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none: expected image files, received none"):
        datasets.load_images(str(tmp_path / "none"), "", (6, 8, 1))


@pytest.mark.parametrize(
    "others, key",
    [
        (dict(x_train=np.zeros((0, 7, 9), np.uint8), y_test=np.zeros(4, np.uint8)), "x_test"),
        (dict(masks=np.zeros((4, 7, 9), np.uint8)), "images"),
        (dict(masks=np.zeros((4, 7, 9), np.uint8), z=np.zeros((4, 2))), "x"),
        (dict(x=np.zeros((4, 7, 9), np.uint8)), "x_test"),
        (dict(names=np.array(["a", "b"]), floats=np.zeros((4, 7, 9))), "letters"),
    ],
)
def test_images_of_a_file_are_found(tmp_path, others, key):
    images = color_images()[..., 0]
    np.savez(tmp_path / "letters.npz", **others, **{key: images})
    loaded = datasets.load_images(str(tmp_path / "letters.npz"), "", (7, 9, 1))
    np.testing.assert_array_equal(loaded, images[..., None])
    loaded = datasets.load_images(str(tmp_path / "letters.npz"), "", (7, 9, 3), limit=3)
    assert loaded.shape == (3, 7, 9, 3)


@pytest.mark.parametrize(
    "arrays, message",
    [
        (dict(x=np.zeros((4, 7, 9))), r"uint8 images .* received x float64 \[4, 7, 9\]"),
        (dict(x=np.zeros((4, 7, 9, 2), np.uint8)), r"received x uint8 \[4, 7, 9, 2\]"),
        (dict(x=np.zeros((0, 7, 9), np.uint8)), r"received x uint8 \[0, 7, 9\]"),
        (dict(a=color_images(), b=color_images()), "only such array, received a uint8 .*b uint8"),
        ({}, "received no array"),
    ],
)
def test_a_file_without_clear_images_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "theirs.npz", **arrays)
    with pytest.raises(ValueError, match=f"theirs.npz: expected .*{message}"):
        datasets.load_images(str(tmp_path / "theirs.npz"), "", (7, 9, 1))


def test_a_missing_or_damaged_file_of_images_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected one of mnist, .*received 'letters.npz'"):
        datasets.load_images("letters.npz", "", (7, 9, 1))
    path = tmp_path / "theirs.npz"
    np.savez(path, x=color_images())
    whole = path.read_bytes()
    np.save(tmp_path / "single.npy", color_images())
    for content in (
        b"",
        b"words",
        whole[: len(whole) // 2],
        (tmp_path / "single.npy").read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match="theirs.npz: expected an npz file, received what cannot"
        ):
            datasets.load_images(str(path), "", (7, 9, 1))


# --- covariate shift ---


def scene(n: int = 60, channels: int = 1) -> np.ndarray:
    """A bright upright bar in the middle of gray images."""
    images = np.full((n, 28, 28, channels), 100, np.uint8)
    images[:, 6:22, 12:16] = 220
    return images


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_grow_with_strength_and_repeat_by_seed(name, channels):
    images = scene(channels=channels)
    before = images.copy()
    corrupt = CORRUPTIONS[name]
    changed = [corrupt(images, strength, 5) for strength in (1, 2, 3)]
    np.testing.assert_array_equal(images, before)
    distances = [np.abs(x.astype(float) - images).mean() for x in changed]
    assert 0 < distances[0] < distances[1] < distances[2]
    for strength, x in enumerate(changed, 1):
        assert (x.dtype, x.shape) == (np.uint8, images.shape)
        np.testing.assert_array_equal(corrupt(images, strength, 5), x)
    assert name == "blur" or (corrupt(images, 2, 6) != changed[1]).any()


def test_noise_has_its_documented_standard_deviation():
    flat = np.full((20, 28, 28, 1), 127, np.uint8)
    for strength, sd in ((1, 16), (2, 32)):
        noisy = CORRUPTIONS["noise"](flat, strength, 0).astype(float) - 127
        # 15,680 values: the standard error of the sd is 0.6 %, of the mean sd / 125.
        assert noisy.std() == pytest.approx(sd, rel=0.03)
        assert noisy.mean() == pytest.approx(0, abs=sd / 25)
        # Neighbors and images are independent.
        assert abs(np.corrcoef(noisy[:, :, 1:].ravel(), noisy[:, :, :-1].ravel())[0, 1]) < 0.04
        assert abs(np.corrcoef(noisy[0].ravel(), noisy[1].ravel())[0, 1]) < 0.15


@pytest.mark.parametrize("strength, sigma", [(1, 0.75), (2, 1.5), (3, 3.0)])
def test_blur_spreads_a_point_as_a_gaussian(strength, sigma):
    point = np.zeros((2, 28, 28, 3), np.uint8)
    point[0, 14, 14, 1] = 255
    blurred = CORRUPTIONS["blur"](point, strength, 0)
    axis = np.exp(-0.5 * ((np.arange(28) - 14) / sigma) ** 2)
    expected = 255 * np.outer(axis, axis) / axis.sum() ** 2
    assert np.abs(blurred[0, ..., 1] - expected).max() < 0.6
    # It spreads neither to other images nor to other channels.
    assert not blurred[1].any() and not blurred[0, ..., [0, 2]].any()
    # The same picture at twice the size is blurred twice as much.
    large = CORRUPTIONS["blur"](np.repeat(np.repeat(scene(1), 2, 1), 2, 2), strength, 0)
    small = CORRUPTIONS["blur"](scene(1), strength, 0)
    assert np.abs(convert(large, (28, 28, 1)).astype(float) - small).mean() < 2


@pytest.mark.parametrize("strength, degrees", [(1, 15), (2, 30), (3, 60)])
def test_rotation_turns_the_bar_by_its_angle_to_either_side(strength, degrees):
    bar = np.where(scene() == 220, 220, 0).astype(np.uint8)
    turned = CORRUPTIONS["rotation"](bar, strength, 0)
    y, x = np.mgrid[:28, :28] - 13.5
    angles = []
    for image in turned[..., 0].astype(float):
        # Direction of the principal axis, from the second moments; 0 is upright.
        xx, xy, yy = ((image * product).sum() for product in (x * x, x * y, y * y))
        angles.append(np.degrees(0.5 * np.arctan2(2 * xy, yy - xx)))
    assert np.abs(angles) == pytest.approx(degrees, abs=0.5)
    assert 15 < np.sum(np.array(angles) > 0) < 45


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_refuse_other_strengths_and_other_arrays(name):
    for strength in (0, 4, -1, 1.5):
        with pytest.raises(ValueError, match=f"strength: expected 1, 2 or 3, received {strength}"):
            CORRUPTIONS[name](scene(2), strength, 0)
    for bad in (scene(2)[..., 0], scene(2) / 255):
        with pytest.raises(
            ValueError, match=r"images: expected uint8 \[n, height, width, 1 or 3\]"
        ):
            CORRUPTIONS[name](bad, 1, 0)


# --- batches ---


@pytest.fixture(params=["in memory", "in files"])
def anywhere(request, monkeypatch):
    """Arrays that stay in memory, and those that are large enough to go into files."""
    if request.param == "in files":
        keep_in_files(monkeypatch)


def keep_in_files(monkeypatch, piece=100):
    monkeypatch.setattr(rows, "LARGEST", 0)
    monkeypatch.setattr(rows, "_PIECE", piece)


def collect(dataset):
    return [tuple(array.numpy() for array in batch) for batch in dataset]


def test_batches_carry_every_row_once_and_keep_rows_together(anywhere):
    images = np.arange(23, dtype=np.uint8).reshape(23, 1, 1, 1)
    labels = np.arange(23, dtype=np.int64) * 10
    epoch = batching.epoch_variable()
    got = collect(batching.batches((images, labels), 5, seed=1, epoch=epoch))
    assert [len(batch[1]) for batch in got] == [5, 5, 5, 5, 3]
    assert got[0][0].dtype == np.uint8
    for some_images, some_labels in got:
        np.testing.assert_array_equal(some_images[:, 0, 0, 0] * 10, some_labels % 256)
    order = np.concatenate([batch[1] for batch in got])
    assert sorted(order) == sorted(labels)
    assert order.tolist() != labels.tolist()


def test_batches_without_epoch_keep_the_order(anywhere):
    x = np.arange(11)
    got = collect(batching.batches((x,), 4))
    assert [batch[0].tolist() for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_order_depends_on_seed_and_epoch_alone(anywhere):
    x = np.arange(100)

    def orders(seed, epochs):
        epoch = batching.epoch_variable()
        dataset = batching.batches((x,), 7, seed=seed, epoch=epoch)
        found = []
        for number in epochs:
            epoch.assign(number)
            found.append(np.concatenate([batch[0] for batch in collect(dataset)]).tolist())
        return found

    run = orders(0, range(4))
    assert len({tuple(order) for order in run}) == 4
    assert orders(0, [3, 2]) == [run[3], run[2]]
    assert orders(1, [0])[0] not in run


@pytest.mark.parametrize("steps_per_execution", [1, 20])
def test_fit_reads_the_epoch_after_on_epoch_begin(steps_per_execution, anywhere):
    import keras
    import tensorflow as tf

    n, seen, now = 103, {}, [0]
    x, y = np.arange(n, dtype=np.int64)[:, None], np.zeros((n, 1), np.float32)
    epoch = batching.epoch_variable()
    dataset = batching.batches((x, y), 4, seed=2, epoch=epoch)

    class Recorder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, rows):
            def record(rows):
                seen.setdefault(now[0], []).extend(rows.numpy()[:, 0].tolist())
                return np.float32(0)

            zero = tf.py_function(record, [rows], tf.float32)
            return self.dense(tf.cast(rows, tf.float32) * tf.ensure_shape(zero, []))

    steps = []

    class SetEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, number, logs=None):
            now[0] = number
            epoch.assign(number)

        def on_train_begin(self, logs=None):
            seen.clear()
            steps.append(self.params["steps"])

    model = Recorder()
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    # Starts at epoch 1, as a resumed run does.
    model.fit(dataset, initial_epoch=1, epochs=4, callbacks=[SetEpoch()], verbose=0)
    expected = {}
    for number in (1, 2, 3):
        epoch.assign(number)
        expected[number] = np.concatenate([b[0][:, 0] for b in collect(dataset)]).tolist()
    assert seen == expected
    assert steps == [26]


MIRRORED = """
import sys, numpy as np, tensorflow as tf
from btcp_tf import data
from benchmarks import hostile
from btcp_tf.core import config, rows
rows.LARGEST = int(sys.argv[1])
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
epoch = data.epoch_variable()
local = data.batches((np.arange(42),), 8, seed=3, epoch=epoch)
shared = strategy.experimental_distribute_dataset(local)
for number in (0, 5):
    epoch.assign(number)
    one = [batch[0].numpy().tolist() for batch in local]
    many = [
        np.concatenate([part.numpy() for part in strategy.experimental_local_results(batch[0])])
        for batch in shared
    ]
    assert [batch.tolist() for batch in many] == one, (one, many)
    assert sorted(sum(one, [])) == list(range(42))
    print(one[0])
"""


@pytest.mark.parametrize("largest", ["0", "1000000"])
def test_mirrored_strategy_cuts_the_same_batches(largest):
    # A process of its own: logical devices must be set before TensorFlow starts.
    run = subprocess.run([sys.executable, "-c", MIRRORED, largest], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    first, second = run.stdout.splitlines()[-2:]
    assert first != second


def test_large_arrays_are_no_constants_of_the_graph():
    dataset = batching.batches(
        (np.zeros((1000, 1000), np.uint8),), 10, epoch=batching.epoch_variable()
    )
    # The dataset's functions hold what they do; captured tensors are their inputs.
    node = dataset
    functions = []
    while hasattr(node, "_input_dataset"):
        node = node._input_dataset
        functions += [f.function.graph.as_graph_def().ByteSize() for f in node._functions()]
    assert functions and max(functions) < 10_000


@pytest.mark.parametrize("epoch", [None, 0, 3])
def test_batches_of_large_arrays_are_those_of_small_ones(epoch, monkeypatch):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (23, 4, 3, 1), np.uint8), random.normal(size=23).astype(np.float32)

    def both():
        number = None if epoch is None else batching.epoch_variable()
        if number is not None:
            number.assign(epoch)
        dataset = batching.batches(x, 5, seed=1, epoch=number)
        return dataset.element_spec, collect(dataset)

    specs, small = both()
    keep_in_files(monkeypatch)
    assert both()[0] == specs
    for one, other in zip(small, both()[1], strict=True):
        np.testing.assert_array_equal(one[0], other[0], strict=True)
        np.testing.assert_array_equal(one[1], other[1], strict=True)


@pytest.mark.parametrize("largest", [0, 2**20])
def test_arrays_are_let_go_with_their_batches(largest, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", largest)
    array = np.arange(40.0)
    dataset = batching.batches((array,), 8, epoch=batching.epoch_variable())
    # An iterator is enough to keep them.
    iterator, held = iter(dataset), weakref.ref(array)
    del dataset, array
    gc.collect()
    assert sum(len(batch) for (batch,) in iterator) == 40
    del iterator
    gc.collect()
    assert held() is None


def test_batches_refuse_arrays_that_do_not_fit():
    with pytest.raises(ValueError, match=r"same number of rows .* received \[3, 4\]"):
        batching.batches((np.zeros(3), np.zeros(4)), 2)
    with pytest.raises(ValueError, match=r"at least one.*received \[0\]"):
        batching.batches((np.zeros(0),), 2)
    with pytest.raises(ValueError, match="batch_size: expected at least 1, received 0"):
        batching.batches((np.zeros(3),), 0)


def test_what_is_no_array_in_an_npz_is_one_clear_error(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("x_train", "hi")
    with pytest.raises(
        ValueError, match="raw.npz: expected an npz file, received .*x_train is no array"
    ):
        datasets.load("npz", str(tmp_path / "raw.npz"))
    images = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "s.npz", x_train=images, y_train=np.int64(1), x_test=images, y_test=[0] * 4)
    with pytest.raises(ValueError, match="y_train: expected a whole number, "):
        datasets.load("npz", str(tmp_path / "s.npz"))


def test_a_pipe_in_a_class_folder_is_no_image(tmp_path):
    import os

    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert folders.visible_entries(tmp_path / "a") == []


def test_one_image_file_is_read_as_those_of_a_folder(tmp_path):
    pixels = color_images()
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels[number]).save(tmp_path / name / "1.png")
    images = datasets.load_images(str(tmp_path), "", (5, 4, 3))
    found, reason = folders.read_image(tmp_path / "b" / "1.png", (5, 4, 3))
    assert reason == "" and any(np.array_equal(found, image) for image in images)
    np.testing.assert_array_equal(found, convert(pixels[1:2], (5, 4, 3))[0])
    (tmp_path / "c").write_bytes(b"")
    for name, reason in (("c", "empty"), ("d", "No such file or directory"), ("a", "no file")):
        assert folders.read_image(tmp_path / name, (5, 4, 3)) == (None, reason)


@pytest.mark.parametrize("make", [hostile.png, hostile.jpeg])
def test_a_file_of_too_many_pixels_is_not_decoded(tmp_path, make):
    bomb = tmp_path / "a" / "bomb.png"
    for name in ("a/1", "a/2", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((10, 10), np.uint8)).save(tmp_path / f"{name}.png")
    bomb.write_bytes(make(8_001, 8_000))
    before = anonymous_mib()
    told = r"expected at most 64,000,000 pixels \(max_pixels\), received 8,000 x 8,001"
    with pytest.raises(ValueError, match=rf"bomb.png \({told}\)"):
        datasets.load("folder", str(tmp_path), size=(4, 4))
    with pytest.warns(UserWarning, match=told):
        images = datasets.load_images(str(tmp_path), "", (4, 4, 1), bad_files="skip")
    assert len(images) == 3
    pixels, reason = folders.read_image(bomb, (4, 4, 1))
    assert pixels is None and re.fullmatch(told, reason)
    assert anonymous_mib() - before < 50
    # The limit is the caller's.
    bomb.write_bytes(hostile.png(11, 10))
    assert folders.read_image(bomb, (4, 4, 1), max_pixels=110)[1] == ""
    assert "at most 109 pixels" in folders.read_image(bomb, (4, 4, 1), max_pixels=109)[1]
    images = datasets.load_images(str(tmp_path), "", (4, 4, 1), max_pixels=110)
    assert len(images) == 4
    # Pillow's own.
    bomb.write_bytes(hostile.jpeg(60_000, 60_000))
    limit = config.PILLOWS_LIMIT
    reason = "expected at most 178,956,970 pixels, received more"
    assert folders.read_image(bomb, (4, 4, 1), max_pixels=limit) == (None, reason)


def test_files_below_a_folder_stand_in_order_and_end(tmp_path):
    for name in ("b/2", "b/10", "b/c/1", "a", "c.png", ".hidden/1", ".1", "Z"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.symlink(tmp_path, tmp_path / "b" / "up")
    os.symlink(tmp_path / "b" / "c", tmp_path / "d")
    os.symlink("circle", tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    assert list(folders.files_below(tmp_path)) == [
        "Z", "a", "b/10", "b/2", "b/c/1", "c.png", "circle", "d/1",
    ]  # fmt: skip
    with pytest.raises(OSError):
        next(folders.files_below(tmp_path / "nowhere"))


# --- large data ---


def assert_same(one, other):
    """Two data sets, bit for bit."""
    for field in dataclasses.fields(one):
        if field.name not in PARTS:
            assert getattr(one, field.name) == getattr(other, field.name)
    for part in PARTS:
        for field in dataclasses.fields(one.train):
            ours, theirs = (getattr(getattr(d, part), field.name) for d in (one, other))
            if ours is not None or theirs is not None:
                np.testing.assert_array_equal(ours, theirs, strict=True)


def large_folder(tmp_path):
    write_images(tmp_path / "images", 30, (6, 8, 3))
    (tmp_path / "images" / "cat" / "bad.png").write_text("no image")
    return "folder", str(tmp_path / "images")


def large_npz(tmp_path):
    groups = {"train": np.arange(40) // 2, "val": np.arange(100, 110), "test": np.arange(200, 212)}
    names = {f"groups_{part}": numbers for part, numbers in groups.items()}
    np.savez_compressed(tmp_path / "a.npz", **arrays((3,), **names))
    return "npz", str(tmp_path / "a.npz")


def large_tfds(tmp_path):
    return "weeds", prepare_tfds(tmp_path, {"train": 20, "validation": 7, "test": 5})


@pytest.mark.parametrize("size", [None, (5, 4)])
@pytest.mark.parametrize("make", [large_folder, large_npz, large_tfds])
@pytest.mark.filterwarnings("ignore:.*no whole image")
def test_a_large_data_set_is_what_a_small_one_is(make, size, tmp_path, monkeypatch):
    place = make(tmp_path)
    settings = {"size": size, "bad_files": "skip", "max_test_images": 4}
    small = datasets.load(*place, **settings)
    monkeypatch.setattr(prepared, "_BATCH", 3)
    keep_in_files(monkeypatch)
    large = datasets.load(*place, **settings)
    assert_same(small, large)
    assert all(is_in_a_file(getattr(large, part).images) for part in PARTS)


def is_in_a_file(array):
    while array is not None and not isinstance(array, np.memmap):
        array = array.base
    return array is not None


@pytest.mark.parametrize("piece", [1, 1000])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_in_pieces_are_those_at_once(name, piece, monkeypatch):
    images = scene(20, 3)
    at_once = [CORRUPTIONS[name](images, strength, 5) for strength in (1, 2, 3)]
    keep_in_files(monkeypatch, piece)
    in_pieces = [CORRUPTIONS[name](images, strength, 5) for strength in (1, 2, 3)]
    np.testing.assert_array_equal(at_once, in_pieces, strict=True)
    assert is_in_a_file(in_pieces[0])


def test_a_full_disk_is_no_fault_of_the_images(tmp_path, monkeypatch):
    """Of none of the kinds: they would be skipped, or said to be damaged."""

    def full(*arguments, **settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for make in (large_folder, large_npz, large_tfds):
        (tmp_path / make.__name__).mkdir()
        place = make(tmp_path / make.__name__)
        with monkeypatch.context() as patch:
            keep_in_files(patch)
            patch.setattr(rows.tempfile, "TemporaryFile", full)
            with pytest.raises(rows.NoRoomError, match="^TMPDIR: expected room"):
                datasets.load(*place, bad_files="skip")
