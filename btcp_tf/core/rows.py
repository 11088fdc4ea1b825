"""Arrays of any length: in memory or, where they are large, in a file; read and made in pieces."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from btcp_tf.core.wording import NO_ROOM

LARGEST = 2**28
"""Bytes of an array that are kept in memory."""

_PIECE = 2**22
"""Bytes of a piece; what is computed from it may take several times as much."""


class NoRoomError(OSError):
    """There is no room on the disk for a large array."""


class Rows:
    """Rows `[n, ...]` that come in batches.

    More than 256 MiB of them go to a file in the folder for temporary files (`TMPDIR`), which has
    no name and is gone with the last use of its rows. The system keeps in memory what it has room
    for.

    >>> rows = Rows()
    >>> rows.add(np.array([[1, 2]]))
    >>> rows.add(np.array([[3, 4], [5, 6]]))
    >>> rows.array().tolist()
    [[1, 2], [3, 4], [5, 6]]
    """

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._bytes = 0
        self._stored = 0
        self._file: IO[bytes] | None = None

    def add(self, batch: np.ndarray) -> None:
        """Adds rows `[m, ...]` of the same kind as those before.

        Raises:
          NoRoomError: If there is no room on the disk.
        """
        self._parts.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > LARGEST and batch.dtype != object:
            self._store()

    def _store(self) -> None:
        try:
            self._file = self._file or tempfile.TemporaryFile()
            for part in self._parts:
                self._file.write(np.ascontiguousarray(part).data)
                self._stored += len(part)
            self._file.flush()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise NoRoomError(
                f"TMPDIR: expected room for arrays of more than {LARGEST / 2**20:,.0f} MiB in "
                f"{tempfile.gettempdir()}, received none ({os.strerror(error.errno)}); make room, "
                "or set TMPDIR to a folder on another disk"
            ) from error
        # One is kept: it knows shape and type. The next ones are stored by the piece.
        self._parts, self._bytes = [self._parts[-1][:0]], LARGEST - _PIECE

    def array(self) -> np.ndarray:
        """All rows, at least one batch; no more may be added."""
        if self._file is None:
            return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        self._store()
        shape, dtype = (self._stored, *self._parts[0].shape[1:]), self._parts[0].dtype
        return np.memmap(self._file, dtype, "r+", shape=shape).view(np.ndarray)


def pieces(array: np.ndarray) -> Iterator[slice]:
    """Slices that cut the rows of an array into pieces of about 4 MiB, in order.

    >>> [(piece.start, piece.stop) for piece in pieces(np.zeros((5, 2**20), np.uint8))]
    [(0, 4), (4, 5)]
    """
    size = piece_size(array.shape, array.dtype)
    for start in range(0, len(array), size):
        yield slice(start, min(start + size, len(array)))


def piece_size(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Rows in a piece of an array `[n, ...]`, at least 1."""
    return max(1, _PIECE // max(1, _row_bytes(shape, dtype)))


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize


def in_pieces(function: Callable[..., np.ndarray], first: np.ndarray, *others: Any) -> np.ndarray:
    """What a function makes of rows, a piece of them at a time.

    Args:
      function: Rows `[m, ...]` of all arrays → m rows. Called for one piece after the other, in
        order; what it makes of a row must not depend on the others in its piece.
      first: `[n, ...]`, n > 0. Its rows say how many make a piece.
      *others: Further arrays `[n, ...]`.

    Returns:
      `[n, ...]`, in a file where it is large.

    >>> in_pieces(lambda x, y: 10 * x + y, np.arange(3), np.ones(3, int)).tolist()
    [1, 11, 21]
    """
    found = Rows()
    for piece in pieces(first):
        found.add(function(*(array[piece] for array in (first, *others))))
    return found.array()


def take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows of an array, in a file where they are large.

    Args:
      array: `[n, ...]`.
      rows: Their numbers, or a mask `[n]`.

    >>> take(np.array([5, 6, 7]), np.array([2, 0])).tolist()
    [7, 5]
    """
    numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
    size = _row_bytes(array.shape, array.dtype)
    if len(numbers) * size <= LARGEST or array.dtype == object:
        return array[numbers]
    found, size = Rows(), piece_size(array.shape, array.dtype)
    for start in range(0, len(numbers), size):
        found.add(array[numbers[start : start + size]])
    return found.array()


def equal(first: np.ndarray, second: np.ndarray) -> bool:
    """`numpy.array_equal`, a piece at a time.

    >>> equal(np.arange(3), np.array([0, 1, 2])), equal(np.arange(3), np.arange(2))
    (True, False)
    """
    return first.shape == second.shape and all(
        np.array_equal(first[piece], second[piece]) for piece in pieces(first)
    )


def all_finite(array: np.ndarray) -> bool:
    """Whether no number is NaN or infinite.

    >>> all_finite(np.array([1.0, np.nan]))
    False
    """
    return all(bool(np.isfinite(array[piece]).all()) for piece in pieces(array))
