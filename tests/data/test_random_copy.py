"""What `random_copy` shows an estimator: every kind, from hardly visible to very strong."""

import numpy as np
import pytest

from btcp_tf.data.corruptions import RANDOM_WAYS, random_copy


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """A smooth pattern, the same for all, so that changes can be compared."""
    row = np.linspace(0.0, 1.0, 28)
    pattern = 255 * (0.5 + 0.5 * np.sin(9 * row)[:, None] * np.cos(7 * row))
    return np.broadcast_to(pattern[None, :, :, None], (1000, 28, 28, 1)).astype(np.uint8)


def changes(images: np.ndarray, kind: str) -> np.ndarray:
    """Root mean square of the change of each image of a kind, `[n]`."""
    copies, kinds = random_copy(images, seed=0)
    rows = (kinds - 1) % 5 == RANDOM_WAYS.index(kind)
    difference = copies[rows].astype(float) - images[rows]
    return np.sqrt(np.square(difference).mean(axis=(1, 2, 3)))


def test_noise_spans_five_doublings_each_as_frequent(images: np.ndarray) -> None:
    gray = np.full_like(images, 128)
    # Up to 64 hardly any pixel is clipped: there the change is the noise's standard deviation.
    spread = changes(gray, "noise")
    assert spread.min() < 5.0
    counts = np.histogram(spread, [4.0, 8.0, 16.0, 32.0])[0] / len(spread)
    np.testing.assert_allclose(counts, 0.2, atol=0.07)
    assert (spread > 40.0).mean() > 0.2


@pytest.mark.parametrize("kind", RANDOM_WAYS)
def test_each_kind_has_weak_and_strong_copies(images: np.ndarray, kind: str) -> None:
    change = changes(images, kind)
    assert len(change) == 200
    assert change.min() < 50.0
    assert change.max() > 2.5 * change.min()


def test_weaker_and_stronger_copies_are_two_kinds(images: np.ndarray) -> None:
    copies, kinds = random_copy(np.full_like(images, 128), seed=0)
    spread = copies.astype(float).std(axis=(1, 2, 3))
    # In the middle of the scale between 4 and 128.
    middle = np.sqrt(4.0 * 128.0)
    assert spread[kinds == 1].max() < 1.1 * middle
    assert spread[kinds == 6].min() > 0.9 * middle
    counts = np.bincount(kinds, minlength=11)
    assert counts[0] == 0
    assert counts[1:].min() > 70


def test_a_turn_goes_to_both_sides() -> None:
    images = np.zeros((400, 29, 29, 1), np.uint8)
    images[:, 14, 15:] = 255
    copies, kinds = random_copy(images, seed=1)
    turned = copies[(kinds - 1) % 5 == RANDOM_WAYS.index("rotation")].astype(float)
    above, below = turned[:, :14].sum(axis=(1, 2, 3)), turned[:, 15:].sum(axis=(1, 2, 3))
    assert 0.3 < (above > below).mean() < 0.7


def test_the_same_for_floats_in_another_range(images: np.ndarray) -> None:
    bytes_, kinds = random_copy(images, seed=3)
    floats, same = random_copy((images / 127.5 - 1.0).astype(np.float32), 3, -1.0, 1.0)
    np.testing.assert_array_equal(kinds, same)
    np.testing.assert_allclose(127.5 * (floats + 1.0), bytes_, atol=0.51)
    assert floats.min() >= -1.0
    assert floats.max() <= 1.0
