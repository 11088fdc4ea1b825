"""Arrays of images: their shapes, pixel scales and conversions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from btcp_tf.core import rows


def are_images(array: Any) -> bool:
    """Whether an array, or what has its `shape` and `dtype` alone, is of images."""
    shape = array.shape
    return (
        array.dtype == np.uint8
        and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))
        and all(shape)
    )


LUMA = (0.299, 0.587, 0.114)
"""Of red, green and blue in gray (ITU-R BT.601)."""


def are_image_sizes(shape: Sequence[int | None]) -> bool:
    """Whether inputs of this shape are gray or color images of one size.

    Example:
      >>> are_image_sizes((28, 28, 1)), are_image_sizes((None, None, 3))
      (True, False)
    """
    return len(shape) == 3 and shape[2] in (1, 3) and all(shape[:2])


PIXELS = {"0_255": (1.0, 0.0), "0_1": (1.0 / 255, 0.0), "-1_1": (2.0 / 255, -1.0)}
"""What a classifier of floats may read for pixels from 0 to 255, by name: (scale, offset)."""


def scaled(images: np.ndarray, pixels: str) -> np.ndarray:
    """uint8 images as float32 on a scale of `PIXELS`, as Keras' Rescaling has them.

    Example:
      >>> scaled(np.array([[[0, 255]]], np.uint8), "-1_1").tolist()
      [[[-1.0, 1.0]]]
    """
    scale, offset = PIXELS[pixels]
    return images.astype(np.float32) * np.float32(scale) + np.float32(offset)


def convert(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Images in another size and number of channels.

    Color becomes gray by luma (0.299 R + 0.587 G + 0.114 B, ITU-R BT.601), gray becomes color by
    three equal channels. Another size is taken by bilinear interpolation, with a prefilter where
    the images shrink; the aspect ratio is not kept.

    Args:
      images: uint8 `[n, height, width]` or `[n, height, width, channels]`, 1 or 3 channels.
      shape: Height, width and channels, 1 or 3.

    Returns:
      uint8 `[n, *shape]`, rounded; `images` themselves where nothing changes. In a file where they
      are large.

    Raises:
      ValueError: If these are no such images, or no such shape.

    Example:
      >>> color = np.full((1, 2, 2, 3), 200, np.uint8)
      >>> convert(color, (4, 4, 1)).shape
      (1, 4, 4, 1)
    """
    if not are_images(images):
        raise ValueError(
            "images: expected uint8 [n, height, width] or [n, height, width, 1 or 3], received "
            f"{images.dtype} {list(images.shape)}"
        )
    if shape[2] not in (1, 3) or min(shape) < 1:
        raise ValueError(f"shape: expected (height, width, 1 or 3), received {shape}")
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[1:] == tuple(shape):
        return images
    return rows.in_pieces(lambda part: _converted(part, shape), images)


def _converted(images: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """`convert` of a piece of images `[n, height, width, channels]`."""
    if images.shape[3] == 3 and shape[2] == 1:
        luma = images.astype(np.float32) @ np.array(LUMA, np.float32)
        images = np.rint(luma[..., None]).astype(np.uint8)
    if images.shape[1:3] != shape[:2]:
        from PIL import Image

        resized = np.empty((len(images), *shape[:2], images.shape[3]), np.uint8)
        for row, channel in np.ndindex(len(images), images.shape[3]):
            # As float32: of whole numbers Pillow rounds the rows and then the columns.
            plane = Image.fromarray(images[row, :, :, channel].astype(np.float32))
            plane = plane.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
            resized[row, :, :, channel] = np.rint(np.asarray(plane)).clip(0, 255)
        images = resized
    return np.repeat(images, 3, axis=3) if images.shape[3] < shape[2] else images
