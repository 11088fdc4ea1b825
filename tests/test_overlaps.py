"""Samples that stand in several parts of a data set."""

import numpy as np
import pytest

from btcp_tf import overlaps


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
