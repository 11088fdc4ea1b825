"""Samples that stand in several parts of a data set, found by hashes of what they are.

A sample that was trained on says nothing of how often the classifier errs on new ones. No
TensorFlow here.
"""

import hashlib
from typing import Any

import numpy as np

from btcp_tf import metrics

_ROWS = 4096
"""Converted at once, so that memory does not grow with the number of samples."""


def sample_hashes(x: Any) -> np.ndarray:
    """One number for each sample, equal for equal samples.

    Equal are samples of the same shape, axes of length 1 aside, and the same numbers, whatever
    their type: pixels as uint8 and as float32 of 0 to 255 have one hash. Real numbers count as
    float32. Of text, each character counts.

    Args:
      x: `[n, ...]`, numbers, words or bytes.

    Returns:
      uint64 `[n]`, of BLAKE2b. Two different ones of a million samples have the same hash with a
      probability of 3e-8.

    Raises:
      ValueError: If x has no axis of samples.
    """
    samples = metrics.array("x", x)
    if not samples.ndim:
        raise ValueError("x: expected samples [n, ...], received a single value")
    shape = ",".join(str(length) for length in samples.shape[1:] if length != 1)
    start = hashlib.blake2b(shape.encode(), digest_size=8)
    hashes = np.empty(len(samples), np.uint64)
    for first in range(0, len(samples), _ROWS):
        part = samples[first : first + _ROWS].reshape(len(samples[first : first + _ROWS]), -1)
        for row, content in enumerate(_contents(part), first):
            digest = start.copy()
            digest.update(content)
            hashes[row] = int.from_bytes(digest.digest(), "little")
    return hashes


def _contents(rows: np.ndarray) -> list[Any]:
    """What the samples `[n, values]` are, in bytes that do not depend on their type."""
    if rows.dtype.kind not in "buif":
        return [b"".join(_text(value) for value in row) for row in rows.tolist()]
    if rows.dtype == np.uint8:
        return list(np.ascontiguousarray(rows))
    if rows.dtype.kind == "f":
        rows = rows.astype(np.float32)
    with np.errstate(invalid="ignore"):
        pixels = rows.astype(np.uint8)
    whole = (pixels == rows).all(axis=1)
    return [
        # Whole numbers are exact up to 2^53; -0 becomes 0.
        pixel if is_pixel else row.astype(np.float64) + 0.0
        for row, pixel, is_pixel in zip(rows, pixels, whole, strict=True)
    ]


def _text(value: Any) -> bytes:
    content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    # With its length: ("ab", "c") is not ("a", "bc").
    return b"%d " % len(content) + content
