"""Inputs are looked at once, read in pieces from anywhere on, and known again by a fingerprint."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from btcp_tf.serving.inputs import UNLABELED, as_name, as_text, open_inputs

CLASSES = ("cat", "dog", "owl")
IMAGES = np.random.default_rng(0).integers(256, size=(100, 8, 8, 1), dtype=np.uint8)


def folder_of(root, names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number, ..., 0]).save(os.fsencode(path), "PNG")
    return root


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_arrays_are_read_in_pieces(tmp_path, save):
    one = save is np.save
    path = tmp_path / ("x.npy" if one else "x.npz")
    save(path, **({"arr": IMAGES} if one else {"x": IMAGES, "other": IMAGES[:3]}))
    inputs = open_inputs(path)
    assert (inputs.count, inputs.key) == (100, "" if one else "x")
    assert (inputs.dtype, inputs.shape) == (np.uint8, (8, 8, 1))
    found = list(inputs.batches(13, 30))
    assert [len(batch["images"]) for batch in found] == [30, 30, 27]
    assert found[0]["input"][0] == "x[13]" and found[-1]["input"][-1] == "x[99]"
    np.testing.assert_array_equal(np.concatenate([b["images"] for b in found]), IMAGES[13:])
    assert not list(inputs.batches(100, 30))
    inputs.verify()


def test_a_key_chooses_another_array_and_its_labels(tmp_path):
    labels = np.arange(100) % 3
    np.savez(tmp_path / "a.npz", x_test=IMAGES[:5], x_new=IMAGES, y_new=labels, y_test=labels[:5])
    inputs = open_inputs(tmp_path / "a.npz", key="x_new", class_names=CLASSES)
    (first, _) = inputs.batches(50, 25)
    assert first["input"][0] == "x_new[50]" and first["labels"].dtype == np.int64
    np.testing.assert_array_equal(first["labels"], labels[50:75])
    assert open_inputs(tmp_path / "a.npz").key == "x_test"
    assert "rows" in inputs.order


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_one_hot_labels_are_class_numbers(tmp_path, dtype):
    labels = np.arange(100) % 3
    np.savez(tmp_path / "a.npz", x_test=IMAGES, y_test=np.eye(3, dtype=dtype)[labels])
    inputs = open_inputs(tmp_path / "a.npz", class_names=CLASSES)
    found = np.concatenate([batch["labels"] for batch in inputs.batches(10, 40)])
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, labels[10:])
    np.savez(tmp_path / "b.npz", x_test=IMAGES, y_test=np.full((100, 3), 1 / 3))
    with pytest.raises(ValueError, match=r"y_test: expected labels \[n\], or one-hot .* row 0"):
        open_inputs(tmp_path / "b.npz", class_names=CLASSES)


@pytest.mark.parametrize(
    "given",
    [
        lambda labels: np.array(CLASSES)[labels],
        lambda labels: np.array([f" {name}\r" for name in CLASSES])[labels],
        lambda labels: np.array(CLASSES, "S")[labels][:, None],
        lambda labels: labels.astype(np.float32),
        lambda labels: labels[:, None].astype(np.float64),
        lambda labels: (labels > 0)[:, None],
    ],
    ids=["words", "words to clean", "bytes", "floats", "column of floats", "booleans"],
)
def test_labels_are_read_as_those_of_a_data_set(tmp_path, given):
    labels = np.arange(100) % 3
    np.savez(tmp_path / "a.npz", x_test=IMAGES, y_test=given(labels))
    inputs = open_inputs(tmp_path / "a.npz", class_names=CLASSES)
    found = np.concatenate([batch["labels"] for batch in inputs.batches(10, 40)])
    assert found.dtype == np.int64
    wanted = labels > 0 if given(labels).dtype == bool else labels
    np.testing.assert_array_equal(found, wanted[10:])
    inputs.verify()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["cat"] * 99 + ["cow"],
            "y: expected one of the classes cat, dog, owl, received 'cow' in row 99",
        ),
        ([0.5] + [0] * 99, "expected a whole number, .* received float64"),
        ([np.nan] * 100, "expected a whole number, .* with NaN"),
        ([0] * 98 + [3.0, 0], "expected classes 0 to 2, received 3 in row 98; subtract 1 if"),
        ([-1] + [0] * 99, "expected classes 0 to 2, received -1 in row 0$"),
        (["cat"] * 99, r"expected a whole number for each of the 100 inputs in x, .* <U3 \[99\]"),
        ([[0, 1]] * 100, r"expected a whole number for each .*one-hot labels \[100, 3\], received"),
        ([object()] * 100, "y: expected numbers or text, received dtype object"),
    ],
)
def test_labels_of_other_classes_are_refused(tmp_path, labels, message):
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.array(labels))
    with pytest.raises(ValueError, match=message):
        open_inputs(tmp_path / "a.npz", class_names=CLASSES)


def test_folders_are_classes_whatever_the_form_of_their_names(tmp_path):
    root = folder_of(tmp_path / "in", ["cafe\u0301/a.png", "dog/b.png"])
    (batch,) = open_inputs(root, class_names=["dog", "caf\u00e9\r"]).batches(0, 5)
    labels = dict(zip(batch["input"], batch["labels"], strict=True))
    assert labels == {"cafe\u0301/a.png": 1, "dog/b.png": 0}


def test_files_have_one_order_names_as_text_and_labels_of_their_folders(tmp_path):
    names = ["cat/b.png", "dog/a.png", "sub/owl/c.png", os.fsdecode(b"cat/\xff.png")]
    inputs = open_inputs(folder_of(tmp_path / "in", names), class_names=CLASSES)
    assert (inputs.count, inputs.dtype) == (4, None)
    whole = [batch for batch in inputs.batches(0, 3)]
    assert [len(batch["input"]) for batch in whole] == [3, 1]
    told = np.concatenate([batch["input"] for batch in whole]).tolist()
    assert sorted(told) == ["cat/\\xff.png", "cat/b.png", "dog/a.png", "sub/owl/c.png"]
    files = np.concatenate([batch["files"] for batch in whole])
    assert all(os.path.isfile(file) for file in files)
    labels = np.concatenate([batch["labels"] for batch in whole])
    assert [CLASSES[label] for label in labels] == [name.split("/")[-2] for name in told]
    (rest,) = inputs.batches(2, 100)
    assert rest["input"].tolist() == told[2:]


def test_the_fingerprint_is_that_of_what_is_scored(tmp_path):
    def print_of(path, **more):
        return open_inputs(path, **more).fingerprint

    arrays = {"x": IMAGES, "y": np.arange(100) % 3}
    np.savez(tmp_path / "a.npz", **arrays)
    first = print_of(tmp_path / "a.npz")
    # Time does not matter, nor what is not read.
    np.savez(tmp_path / "b.npz", **arrays, more=IMAGES)
    assert print_of(tmp_path / "b.npz") == first
    np.savez(tmp_path / "c.npz", **arrays | {"y": arrays["y"][::-1]})
    assert print_of(tmp_path / "c.npz") == first
    labeled, others = (
        open_inputs(tmp_path / name, class_names=CLASSES) for name in ("a.npz", "c.npz")
    )
    assert labeled.fingerprint == others.fingerprint == first
    assert len({"", labeled.label_fingerprint, others.label_fingerprint}) == 3
    np.savez(tmp_path / "d.npz", **arrays | {"x": IMAGES[::-1]})
    assert print_of(tmp_path / "d.npz") != first

    root = folder_of(tmp_path / "in", ["a.png", "b.png"])
    before = print_of(root)
    assert print_of(root) == before
    os.utime(root / "a.png", (0, 0))
    touched = print_of(root)
    (root / "b.png").rename(root / "c.png")
    assert len({before, touched, print_of(root)}) == 3


def test_files_beside_the_folders_of_classes_have_no_label(tmp_path):
    names = ["README", "LICENSE", "Thumbs.db", "cat/a.png", "owl/b.png"]
    inputs = open_inputs(folder_of(tmp_path / "in", names), class_names=CLASSES)
    (batch,) = inputs.batches(0, 9)
    labels = dict(zip(batch["input"].tolist(), batch["labels"].tolist(), strict=True))
    assert labels == {"LICENSE": UNLABELED, "README": UNLABELED, "cat/a.png": 0, "owl/b.png": 2}
    assert inputs.note == "'LICENSE' and 1 more files in no class's folder: without a label"
    assert not open_inputs(tmp_path / "in").note
    with pytest.raises(ValueError, match="labels: expected each file in a folder.*cat/a.png"):
        open_inputs(tmp_path / "in" / "cat", class_names=CLASSES)


@given(st.binary(min_size=1).filter(lambda name: not {0, ord("/")} & set(name)))
def test_every_name_has_a_text_of_its_own(name):
    text = as_text(os.fsdecode(name))
    text.encode()
    assert os.fsencode(as_name(text)) == name


def test_the_letters_of_a_byte_are_not_the_byte(tmp_path):
    names = ["lit\\xff.png", os.fsdecode(b"lit\xff.png"), "caf\xe9.png"]
    (batch,) = open_inputs(folder_of(tmp_path / "in", names)).batches(0, 9)
    told = set(batch["input"].tolist())
    assert told == {"lit\\\\xff.png", "lit\\xff.png", "caf\xe9.png"}
    assert {as_name(text) for text in told} == set(names)


def test_damage_is_found_before_the_first_answer(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=IMAGES)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    inputs = open_inputs(path)
    with pytest.raises(ValueError, match="expected the whole array x, received what cannot be re"):
        inputs.verify()


def test_what_is_not_there_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="input: expected a folder of images.*not there"):
        open_inputs(tmp_path / "absent")
    (tmp_path / "words.txt").write_text("words")
    with pytest.raises(ValueError, match="input: expected a folder of images, an npz or an npy"):
        open_inputs(tmp_path / "words.txt")
    with pytest.raises(ValueError, match="key: expected it with an npz file"):
        open_inputs(tmp_path, key="x")
    root = folder_of(tmp_path / "in", ["cat/a.png", "cow/b.png"])
    with pytest.raises(ValueError, match="labels: expected each file in a folder.*cow/b.png"):
        open_inputs(root, class_names=CLASSES)
