"""What is refused before a model answers: numbers on another scale, labels that are none."""

import dataclasses

import numpy as np
import pytest

from btcp_tf.data import images, input_checks
from btcp_tf.data.images import PIXELS
from btcp_tf.data.input_checks import InputRange, InputWatch

random = np.random.default_rng(0)
UNIT = random.random((50, 6, 6, 1)).astype(np.float32)


def watch(known, *batches):
    seen = InputWatch(known)
    for batch in batches:
        seen.see(batch)
    seen.end()
    return seen.range


def test_range_is_that_of_all_numbers():
    whole = np.array([[0, 7], [-3, 2]])
    found = watch(None, whole, whole + 0.5)
    assert dataclasses.astuple(found) == (-3.0, 7.5, "f", False, None)
    assert InputRange.of(whole.astype(np.float32)).whole
    assert InputRange.of(whole).text == "whole numbers from -3 to 7"
    usual = np.median([np.ptp(image) for image in UNIT])
    assert InputRange.of(UNIT).contrast == pytest.approx(usual)
    assert InputRange.of(np.zeros((3, 20))).contrast is None
    assert InputRange.from_json(dataclasses.asdict(found)) == found
    assert InputRange.from_json(None) is None


@pytest.mark.parametrize(
    "content",
    [
        {"low": 0},
        [0, 1],
        {"low": 1, "high": 0, "kind": "f", "whole": False},
        {"low": 0, "high": float("inf"), "kind": "f", "whole": False},
        {"low": "a", "high": 1, "kind": "f", "whole": False},
    ],
)
def test_what_is_no_range_is_refused(content):
    with pytest.raises(ValueError, match="input_range: expected low, high"):
        InputRange.from_json(content)


@pytest.mark.parametrize(
    ("known", "given", "message"),
    [
        (UNIT, np.uint8(255) * np.ones_like(UNIT, np.uint8), "received 255 in input 0 .whole"),
        (UNIT, 255 * UNIT, r"those of fit, .* to 0.999\d*, received 2\d\d"),
        (2 * UNIT - 1, 255 * UNIT, "received 2"),
        # Of another kind: already just outside.
        (UNIT, 3 * np.ones_like(UNIT, np.uint8), "received 3 in input 0"),
        (np.rint(255 * UNIT), UNIT, r"received \d\S* to 0.999\d* in all of 50"),
        (np.rint(255 * UNIT), UNIT[:1], "in all of 1"),
        (255 * UNIT, UNIT, "in all of 50"),
    ],
)
def test_another_scale_is_refused(known, given, message):
    with pytest.raises(ValueError, match=f"x: expected numbers like .*{message}.*input_range"):
        watch(InputRange.of(known), given)


def test_what_can_be_meant_is_taken():
    unit, pixels = InputRange.of(UNIT), InputRange.of(np.rint(255 * UNIT))
    noisy = UNIT + random.normal(0, 0.5, UNIT.shape)
    black, white = np.zeros_like(UNIT), np.ones_like(UNIT)
    for known, given in (
        (unit, noisy),
        (unit, black),
        (unit, white.astype(np.uint8)),
        (pixels, np.rint(255 * UNIT).astype(np.uint8)),
        (pixels, black),
        # A dark image among others.
        (pixels, np.concatenate([UNIT[:1], 255 * UNIT[1:2]])),
    ):
        watch(known, given)
    # Standardized features with heavy tails: a new largest one is no other scale.
    table = random.standard_t(2, (3000, 8))
    watch(InputRange.of(table[:500]), table[500:])
    # Few numbers may be nearly equal by chance.
    watch(InputRange.of(table[:, :2]), np.full((1, 2), 0.1) + [0, 1e-9])


def test_first_number_that_is_not_finite_is_named():
    bad = UNIT.copy()
    bad[3, 2, 0, 0] = np.nan
    bad[4] = np.inf
    with pytest.raises(
        ValueError, match="x: expected finite numbers, received nan in input 53; fill in"
    ):
        watch(None, UNIT, bad)
    assert input_checks.not_finite(bad[4:]) == (0, np.inf)
    assert input_checks.not_finite(np.array([1, 2])) is None


@pytest.mark.parametrize("dtype", [bool, int, np.float32])
def test_one_hot_labels_are_class_numbers(dtype):
    labels = np.array([2, 0, 1, 1])
    np.testing.assert_array_equal(
        input_checks.class_numbers(np.eye(3, dtype=dtype)[labels], 3), labels
    )


def test_labels_that_are_shares_of_classes_are_refused():
    soft = np.array([[0, 1, 0], [0.2, 0.8, 0]])
    two, none = np.array([[1, 1, 0]]), np.zeros((1, 3))
    for labels, row in ((soft, 1), (two, 0), (none, 0)):
        with pytest.raises(ValueError, match=rf"y: .* one-hot .*row {row} .*argmax\(axis=1\)"):
            input_checks.class_numbers(labels, 3)
    # Whether others are labels is not asked here.
    for labels in (np.arange(3), np.zeros((2, 1)), np.zeros((2, 4)), np.array([["a"]])):
        assert input_checks.class_numbers(labels, 3) is labels


@pytest.mark.parametrize(
    ("low", "high", "rescaling", "pixels"),
    [
        (0, 1, None, "0_1"),
        (0, 255, None, "0_255"),
        (-1, 1, None, "-1_1"),
        (0, 255, (1 / 255, 0), "0_255"),
        (0, 255, (1 / 127.5, -1), "0_255"),
        (0, 1, (2, -1), "0_1"),
        # It reads pixels, and was fitted on others: nothing can be said.
        (0, 1, (1 / 255, 0), None),
        # Features, digits from 0 to 16, pixels less their mean.
        (-2.1, 2.6, None, None),
        (0, 16, None, None),
        (-123, 151, None, None),
    ],
)
def test_scale_of_pixels_is_found(low, high, rescaling, pixels):
    seen = InputRange(low, high, "f", False, None)
    assert input_checks.pixels_of(seen, rescaling) == pixels
    assert pixels is None or input_checks.may_be_pixels(seen, pixels)


def test_pixels_are_scaled_as_keras_does():
    import keras

    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    for name, (scale, offset) in PIXELS.items():
        wanted = keras.layers.Rescaling(scale, offset)(pixels.astype(np.float32))
        np.testing.assert_allclose(images.scaled(pixels, name), wanted, atol=1e-6)
