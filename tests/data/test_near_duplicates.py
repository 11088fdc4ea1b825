import dataclasses

import numpy as np
import pytest

from btcp_tf.data import datasets, near_duplicates
from btcp_tf.data.near_duplicates import find


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def test_the_nearest_are_those_of_a_slow_search(digits):
    """By NumPy's own correlation, one pair at a time."""
    train, test = digits.train.images[:200], digits.test.images[:60]
    changed = test.copy()
    changed[::3] = (train[:20] // 2 + 30).astype(np.uint8)
    expected = sum(
        max(np.corrcoef(one.ravel(), other.ravel())[0, 1] for other in train)
        >= near_duplicates.ALIKE
        for one in changed
    )
    found = find(changed, train)
    assert found.near == expected >= 20 and found.looked_at == 60 and found.example == (0, 0)


def test_equal_images_and_gray_ones_do_not_count(digits):
    train = digits.train.images[:50]
    assert find(train[:10], train).near == 0
    gray = np.full((4, 8, 8, 1), 7, np.uint8)
    assert find(gray, np.concatenate([gray + np.uint8(1), train])).near == 0


def test_of_many_images_some_are_looked_at(digits):
    images = np.repeat(digits.train.images, 3, axis=0)[:3000]
    assert find(images, digits.test.images).looked_at == 1000


def test_images_of_other_sizes_and_channels():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (30, 40, 24, 3), np.uint8)
    shifted = np.clip(images[:5].astype(int) + 2, 0, 255).astype(np.uint8)
    assert find(shifted, images).near == 5


def test_a_note_says_where_they_are(digits):
    assert near_duplicates.notes(digits) == []
    images = digits.test.images.copy()
    images[7] = digits.train.images[3] // 2
    near = dataclasses.replace(digits, test=dataclasses.replace(digits.test, images=images))
    [note] = near_duplicates.notes(near)
    assert note.startswith("1 of 355 test images that were looked at are almost equal")
    assert "number 7 to number 3" in note
    known = dataclasses.replace(near.train, groups=np.arange(len(near.train)))
    assert near_duplicates.notes(dataclasses.replace(near, train=known)) == []
