"""Samples that stand in several parts of a data set."""

import numpy as np
import pytest

from btcp_tf.data import overlaps
from btcp_tf.data.overlaps import PARTS
from btcp_tf.data.splits import Dataset, Split


def test_hashes_are_of_the_values_whatever_their_type():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 4, 5, 1), np.uint8)
    expected = overlaps.sample_hashes(pixels)
    assert expected.shape == (50,) and expected.dtype == np.uint64
    assert len(set(expected.tolist())) == 50
    for same in (pixels.astype(np.float32), pixels.astype(np.int64), pixels[..., 0] * 1.0):
        np.testing.assert_array_equal(overlaps.sample_hashes(same), expected)
    # In any order of memory, and in any company.
    np.testing.assert_array_equal(
        overlaps.sample_hashes(np.asfortranarray(pixels)[::-1]), expected[::-1]
    )
    scaled = overlaps.sample_hashes(pixels / 255)
    assert not np.isin(scaled, expected).any()
    np.testing.assert_array_equal(overlaps.sample_hashes((pixels / 255).astype(np.float32)), scaled)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1.0, 2.0, 3.0, 4.0]], [[[1.0, 2.0], [3.0, 4.0]]]),
        ([[1.0, 2.0]], [[2.0, 1.0]]),
        ([[0.5]], [[-0.5]]),
        ([[300]], [[44]]),
        ([[-1]], [[255]]),
        ([[2**53 - 1]], [[2**53 - 2]]),
        ([[float("nan")]], [[0]]),
        ([["ab", "c"]], [["a", "bc"]]),
        (["1 a"], ["1"]),
    ],
)
def test_different_samples_have_different_hashes(one, other):
    assert overlaps.sample_hashes(one)[0] != overlaps.sample_hashes(other)[0]


def test_zero_has_no_sign_and_text_no_type():
    assert overlaps.sample_hashes([[0.0, 0.5]])[0] == overlaps.sample_hashes([[-0.0, 0.5]])[0]
    words = ["Bad film.", "schön", ""]
    expected = overlaps.sample_hashes(words)
    for same in (np.array(words, object), [[word] for word in words], [w.encode() for w in words]):
        np.testing.assert_array_equal(overlaps.sample_hashes(np.array(same, object)), expected)
    with pytest.raises(ValueError, match="expected samples"):
        overlaps.sample_hashes(np.float32(3))
    assert overlaps.sample_hashes(np.zeros((0, 3))).shape == (0,)


def dataset(**changes):
    """100 training, 40 validation, 40 calibration and 200 test images, none of them twice."""
    rng = np.random.default_rng(0)
    sizes = dict(zip(PARTS, (100, 40, 40, 200), strict=True))
    parts = {
        part: Split(rng.integers(0, 256, (n, 3, 3, 1), np.uint8), np.arange(n) % 2)
        for part, n in sizes.items()
    }
    for part, (rows, other, theirs) in changes.items():
        parts[part].images[rows] = parts[other].images[theirs]
    return Dataset("mine", ("cat", "dog"), **parts, note="", fingerprint="1234")


def found_in(data):
    return overlaps.between({part: getattr(data, part) for part in PARTS})


def test_nothing_is_said_of_parts_that_are_apart():
    data = dataset()
    found = found_in(data)
    assert not any(rows.any() for rows in found.known.values())
    assert found.as_json() == {"shared": {}, "repeats": {}, "two_labels": 0, "left_out": {}}
    assert overlaps.notes(found, data.class_names) == [] and found.no_promise == ""
    kept = overlaps.leave_out(data, found)
    assert all(getattr(kept, part) is getattr(data, part) for part in PARTS)


def test_one_known_image_is_counted_and_left_out_of_calibration():
    data = dataset(calibration=([6], "train", [8]))
    found = found_in(data)
    assert found.shared == {"calibration": {"train": 1}}
    (note,) = overlaps.notes(found, data.class_names)
    assert "1 of 40 calibration images, such as number 6," in note and "1 in train" in note
    assert found.no_promise == ""
    kept = overlaps.leave_out(data, found)
    np.testing.assert_array_equal(
        kept.calibration.images, np.delete(data.calibration.images, 6, axis=0)
    )
    np.testing.assert_array_equal(kept.calibration.labels, np.delete(data.calibration.labels, 6))
    # What was trained on the whole still belongs to it.
    assert kept.fingerprint == data.fingerprint and kept.train is data.train


@pytest.mark.parametrize(("count", "left"), [(2, 200), (4, 196)])
def test_a_test_set_stays_whole_while_hardly_any_of_it_is_known(count, left):
    data = dataset(test=(np.arange(count), "validation", np.arange(count)))
    found = found_in(data)
    assert found.shared == {"test": {"validation": count}}
    assert len(overlaps.leave_out(data, found).test) == left
    (note,) = overlaps.notes(found, data.class_names)
    assert f"{count} of 200 test images" in note
    assert ("they are left out" in note) == (left < 200)


def test_more_than_a_twentieth_of_known_calibration_images_forbids_a_promise():
    rows = np.arange(3)
    data = dataset(calibration=(rows, "validation", rows))
    found = found_in(data)
    assert "7.5% of the calibration images" in found.no_promise
    assert any("no error rate is promised" in note for note in overlaps.notes(found, "ab"))
    assert found_in(dataset(calibration=(rows[:2], "validation", rows[:2]))).no_promise == ""


def test_a_copy_of_the_training_images_is_no_test_set():
    data = dataset(test=(np.arange(190), "train", np.arange(190) % 100))
    with pytest.raises(ValueError, match="test: expected images .* received 190 of 200 .*in train"):
        overlaps.leave_out(data, found_in(data))


def test_images_of_two_classes_and_repeats_are_counted():
    data = dataset(train=([5, 7, 20], "train", [6, 8, 22]), test=([11], "train", [6]))
    found = found_in(data)
    # Images 5 = 6 = test 11 and 7 = 8 have two labels, 20 = 22 has one.
    assert found.two_labels == 2 and found.repeats == {"train": 3}
    assert {(part, row) for part, row, _ in found.example} <= {
        *[("train", row) for row in (5, 6, 7, 8)],
        ("test", 11),
    }
    note = overlaps.notes(found, data.class_names)[-1]
    assert "2 images have more than one label" in note and "as cat" in note and "as dog" in note
