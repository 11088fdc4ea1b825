"""Noise, blur and rotation of five strengths, for covariate shift."""

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
