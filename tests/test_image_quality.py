"""How an image looks, whatever is in it: against a slow version in NumPy."""

import keras
import numpy as np
import pytest

from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.networks.image_quality import ImageQuality


def images(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def quality(x: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(ImageQuality()(x))


def slow(image: np.ndarray) -> list[float]:
    """Pixel by pixel, of one image `[h, w, c]`."""
    x = image.astype(float)
    gray = x.mean(axis=2)
    mean, spread, low, high = gray.mean(), gray.std(), gray.min(), gray.max()
    near = 0.05 * (high - low)
    dark = np.mean([np.exp(-(value - low) / near) for value in gray.flat])
    bright = np.mean([np.exp(-(high - value) / near) for value in gray.flat])
    h, w = (side // 5 for side in gray.shape)
    corners = np.concatenate(
        [part.ravel() for part in (gray[:h, :w], gray[:h, -w:], gray[-h:, :w], gray[-h:, -w:])]
    )
    columns = [mean, spread, low, high, dark, bright]
    columns += [(corners.mean() - mean) / spread, corners.std() / spread]
    small = (gray - mean) / spread
    for _ in range(3):
        rows = range(1, small.shape[0] - 1), range(1, small.shape[1] - 1)
        places = [(row, column) for row in rows[0] for column in rows[1]]
        across = np.array([small[r, c + 1] - small[r, c - 1] for r, c in places])
        down = np.array([small[r + 1, c] - small[r - 1, c] for r, c in places])
        around = np.array(
            [
                4 * small[r, c] - small[r, c - 1] - small[r, c + 1] - small[r - 1, c]
                - small[r + 1, c]
                for r, c in places
            ]
        )  # fmt: skip
        found = across, down, around
        columns += [np.log(np.abs(one).mean()) for one in found]
        columns += [np.log(np.sqrt((one**2).mean())) for one in found]
        columns += [np.exp(-np.abs(one) / 0.05).mean() for one in found]
        angle, strength = np.arctan2(down, across), np.hypot(across, down)
        for turned in (np.cos(2 * angle), np.sin(2 * angle), np.cos(4 * angle)):
            columns.append((strength * turned).sum() / strength.sum())
        h, w = (side // 2 for side in small.shape)
        small = small[: 2 * h, : 2 * w].reshape(h, 2, w, 2).mean(axis=(1, 3))
    if x.shape[2] > 1:
        color = (x - gray[..., None]) / spread
        strong = np.sqrt((color**2).mean(axis=2))
        changes = np.abs(np.diff(color, axis=1)).mean()
        columns += [np.log(strong.mean()), np.log(strong.std()), np.log(changes)]
    return columns


@pytest.mark.parametrize("shape", [(3, 28, 28, 1), (3, 32, 32, 3), (2, 29, 21, 3)])
def test_it_is_what_it_says(shape: tuple[int, ...]) -> None:
    x = images(shape)
    # The floors below which nothing is told apart move logarithms by up to 1 %.
    np.testing.assert_allclose(quality(x), [slow(image) for image in x], atol=0.015, rtol=1e-3)


def test_only_brightness_has_a_unit() -> None:
    x = images((4, 28, 28, 3))
    scaled = quality((x / 255).astype(np.float32))
    np.testing.assert_allclose(scaled[:, 4:], quality(x)[:, 4:], atol=1e-4)
    np.testing.assert_allclose(255 * scaled[:, :4], quality(x)[:, :4], rtol=1e-4)


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (8, 8, 3), (9, 11), (None, None, 3)])
def test_a_row_alone_in_a_batch_and_none(shape: tuple[int | None, ...]) -> None:
    inputs = keras.Input(shape)
    model = keras.Model(inputs, ImageQuality()(inputs))
    x = images((5, *(side or 40 for side in shape)))
    together = model.predict(x, verbose=0)
    assert together.shape == (5, model.output.shape[1])
    np.testing.assert_allclose(model.predict(x[2:3], verbose=0), together[2:3], atol=2e-6)
    assert model(x[:0]).shape == (0, model.output.shape[1])
    assert keras.ops.convert_to_numpy(model(x)) == pytest.approx(together, abs=2e-6)


@pytest.mark.parametrize("side", [1, 2, 5, 8])
def test_images_of_any_size_may_be_smaller_than_others(side: int) -> None:
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, ImageQuality()(inputs))
    assert np.isfinite(model.predict(images((2, side, side, 3)), verbose=0)).all()


@pytest.mark.parametrize("value", [0, 255])
def test_of_one_color_all_is_finite_and_near_that_of_an_almost_equal_image(value: int) -> None:
    flat = np.full((1, 16, 16, 1), value, np.float32)
    other = flat + 1e-3 * np.random.default_rng(0).normal(size=flat.shape).astype(np.float32)
    assert np.isfinite(quality(flat)).all()
    assert np.isfinite(quality(other)).all()
    assert np.isfinite(quality(np.full((1, 16, 16, 1), 1e30, np.float32))).all()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_it_tells_corrupted_images_from_others(name: str) -> None:
    """By a plain classifier on its columns, for pictures that it has not seen."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    random = np.random.default_rng(0)
    row = np.linspace(0, 1, 28)
    waves = random.uniform(2, 9, (400, 2, 1))
    x = np.sin(waves[:, 0] * row)[:, :, None] * np.cos(waves[:, 1] * row)[:, None, :]
    x = np.where(np.hypot(row - 0.5, (row - 0.5)[:, None]) < 0.45, 127 + 120 * x, 0.0)
    x = x[..., None].astype(np.uint8)
    columns = np.concatenate([quality(x), quality(CORRUPTIONS[name](x, 1, 0))])
    kind = np.repeat([0, 1], 400)
    fit = np.tile(np.arange(400) < 200, 2)
    scaler = StandardScaler().fit(columns[fit])
    model = LogisticRegression(C=0.1, max_iter=300).fit(scaler.transform(columns[fit]), kind[fit])
    assert model.score(scaler.transform(columns[~fit]), kind[~fit]) > 0.8
