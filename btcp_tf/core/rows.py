"""Arrays that grow batch by batch, in memory or, where they are large, in a file."""

import tempfile
from typing import IO

import numpy as np

LARGEST = 2**28
"""Bytes that are kept in memory."""


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
        """Adds rows `[m, ...]` of the same kind as those before."""
        self._parts.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > LARGEST and batch.dtype != object:
            self._store()

    def _store(self) -> None:
        self._file = self._file or tempfile.TemporaryFile()
        for part in self._parts:
            self._file.write(np.ascontiguousarray(part).data)
            self._stored += len(part)
        # One is kept: it knows shape and type.
        self._parts, self._bytes = [self._parts[-1][:0]], 0

    def array(self) -> np.ndarray:
        """All rows; no more may be added."""
        if self._file is None:
            return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        self._store()
        self._file.flush()
        shape, dtype = (self._stored, *self._parts[0].shape[1:]), self._parts[0].dtype
        return np.memmap(self._file, dtype, "r+", shape=shape).view(np.ndarray)
