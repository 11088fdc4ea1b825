"""Corrupted images: of three strengths, for covariate shift; and at random, to learn from."""

from collections.abc import Callable

import numpy as np

from btcp_tf.core.rows import in_pieces
from btcp_tf.data.images import are_images


def _amount(amounts: tuple[float, float, float], images: np.ndarray, strength: int) -> float:
    """What a corruption does at a strength, after a look at its arguments."""
    if not are_images(images) or images.ndim != 4:
        raise ValueError(
            "images: expected uint8 [n, height, width, 1 or 3], received "
            f"{images.dtype} {list(images.shape)}"
        )
    if strength not in (1, 2, 3):
        raise ValueError(f"strength: expected 1, 2 or 3, received {strength}")
    return amounts[strength - 1]


def _noise(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Gaussian noise on every value, of standard deviation 16, 32 or 64 of 255."""
    scale = _amount((16.0, 32.0, 64.0), images, strength)
    rng = np.random.default_rng([seed, strength])

    def noisy(part: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal(part.shape, np.float32)
        return np.rint(part + scale * noise).clip(0, 255).astype(np.uint8)

    return in_pieces(noisy, images)


def _blur(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Gaussian blur of standard deviation 0.75, 1.5 or 3 pixels of a 28 pixels high image.

    In proportion to the height; the image is mirrored at its edges. `seed` changes nothing.
    """
    from scipy import ndimage

    del seed
    sigma = _amount((0.75, 1.5, 3.0), images, strength) * images.shape[1] / 28

    def blurred(part: np.ndarray) -> np.ndarray:
        smooth = ndimage.gaussian_filter(part.astype(np.float32), (0, sigma, sigma, 0))
        return np.rint(smooth).clip(0, 255).astype(np.uint8)

    return in_pieces(blurred, images)


def _rotation(images: np.ndarray, strength: int, seed: int) -> np.ndarray:
    """Rotation by 15, 30 or 60 degrees, to a side drawn by seed for each image; zeros beyond."""
    from scipy import ndimage

    angle = _amount((15.0, 30.0, 60.0), images, strength)
    left = np.random.default_rng([seed, strength]).random(len(images)) < 0.5

    def rotated(part: np.ndarray, left: np.ndarray) -> np.ndarray:
        result = np.empty_like(part)
        for side, rows in ((angle, left), (-angle, ~left)):
            if rows.any():
                turned = ndimage.rotate(
                    part[rows].astype(np.float32), side, (2, 1), reshape=False, order=1
                )
                result[rows] = np.rint(turned).clip(0, 255).astype(np.uint8)
        return result

    return in_pieces(rotated, images, left)


CORRUPTIONS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "noise": _noise,
    "blur": _blur,
    "rotation": _rotation,
}
"""Covariate shift by name: (uint8 images `[n, height, width, 1 or 3]`, strength 1 to 3, seed) →
images of the same shape and type, equal ones for equal arguments; in a file where they are large.
ValueError for other images or another strength."""


RANDOM_WAYS = ("noise", "blur", "rotation", "light", "dots")
"""The ways in which `random_copy` changes an image."""


def random_copy(
    images: np.ndarray, seed: int, low: float = 0.0, high: float = 255.0
) -> tuple[np.ndarray, np.ndarray]:
    """A copy of each image, corrupted in one of five ways (`RANDOM_WAYS`): Gaussian noise, blur,
    rotation, brighter or darker with less contrast, and some pixels replaced; from hardly visible
    to so strong that people, too, see little of the image.

    Each way is that of as many images as any other; which, and how strong it is, is drawn. Weaker
    and stronger copies of a way are two kinds: what they teach differs.

    Args:
      images: `[n, height, width, channels]` of numbers, n > 0.
      seed: Seed of all draws.
      low: Darkest value.
      high: Brightest value.

    Returns:
      `[n, height, width, channels]` of the same type, from low to high, in a file where they are
      large; and the number of the kind, `[n]`: 1 to 5 the weaker copies in the order of
      `RANDOM_WAYS`, 6 to 10 the stronger ones.

    >>> copies, kinds = random_copy(np.full((10, 8, 8, 1), 100, np.uint8), seed=0)
    >>> copies.shape, copies.dtype, np.bincount((kinds - 1) % 5).tolist()
    ((10, 8, 8, 1), dtype('uint8'), [2, 2, 2, 2, 2])
    """
    rng = np.random.default_rng(seed)
    ways = rng.permutation(np.arange(len(images)) % len(RANDOM_WAYS))
    strengths = rng.random(len(images))
    change = (_random_noise, _random_blur, _random_turn, _random_light, _random_dots)

    def changed(part: np.ndarray, ways: np.ndarray, strengths: np.ndarray) -> np.ndarray:
        result = np.empty_like(part)
        for row, (image, way, strength) in enumerate(zip(part, ways, strengths, strict=True)):
            pixels = (image.astype(np.float32) - low) * (255.0 / (high - low))
            pixels = change[way](pixels, strength, rng).clip(0.0, 255.0)
            values = low + pixels * ((high - low) / 255.0)
            result[row] = values if np.issubdtype(part.dtype, np.floating) else np.rint(values)
        return result

    kinds = 1 + ways + len(RANDOM_WAYS) * (strengths >= 0.5)
    return in_pieces(changed, images, ways, strengths), kinds


# Each of: pixels `[h, w, c]` from 0 to 255, a strength in [0, 1), random numbers → pixels.


def _random_noise(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    return x + _between(4.0, 128.0, strength) * rng.standard_normal(x.shape, np.float32)


def _random_blur(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    from scipy import ndimage

    sigma = _between(0.35, 3.0, strength) * x.shape[0] / 28
    return ndimage.gaussian_filter(x, (sigma, sigma, 0))


def _random_turn(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    from scipy import ndimage

    angle = _between(5.0, 90.0, strength) * rng.choice([-1, 1])
    return ndimage.rotate(x, angle, (1, 0), reshape=False, order=1)


def _random_light(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    share = 0.2 + 0.6 * strength
    return (1.0 - share) * x + share * 255.0 * rng.integers(2)


def _random_dots(x: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    shape = (*x.shape[:2], 1)
    share = _between(0.005, 0.3, strength)
    return np.where(rng.random(shape) < share, 255.0 * rng.random(shape), x)


def _between(weakest: float, strongest: float, strength: float) -> float:
    """On a logarithmic scale: each doubling is as frequent as any other."""
    return weakest * (strongest / weakest) ** strength
