"""Arrays in npy and npz files: read whole, or a few rows at a time where memory is too small."""

import contextlib
import dataclasses
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from btcp_tf.core import archives, rows, wording


class Kind(NamedTuple):
    """What an array is, without its content."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Npz(Mapping[str, np.ndarray]):
    """The arrays of an npz file by name, each of which is read when it is first asked for.

    What nobody asks for is not read, and cannot be too large.
    """

    def __init__(self, path: str | os.PathLike, file: str) -> None:
        self._file = file
        with self._readable():
            # NumPy would take whatever is no zip archive for an npy file or for pickled objects.
            if not zipfile.is_zipfile(path):
                raise ValueError("it is no zip archive, or is cut off")
            # A file that is replaced meanwhile is read to its end.
            self._archive = zipfile.ZipFile(path)
            names = self._archive.namelist()
            if others := [name for name in names if not name.endswith(_ENDING)]:
                raise ValueError(f"{others[0]} is no array")
        self._arrays: dict[str, np.ndarray | None] = dict.fromkeys(
            name.removesuffix(_ENDING) for name in names
        )

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays[name]
        if array is None:
            with self._readable():
                array = self._arrays[name] = _member(self._archive, self._file, name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        # The base class asks for the array itself.
        return name in self._arrays

    def kind(self, name: str) -> Kind:
        """Shape and type of an array, which is not read for it."""
        with self._readable(), self._archive.open(name + _ENDING) as stream:
            shape, _, dtype = _header(stream)
        return Kind(shape, dtype)

    def _readable(self) -> contextlib.AbstractContextManager[None]:
        return _readable(self._file, "an npz file")


_ENDING = ".npy"
"""Of arrays in npz files; NumPy leaves it out of their names."""


def read_npz(path: str | os.PathLike, file: str = "") -> Npz:
    """Opens an npz file, whose arrays are read when they are asked for; large ones of numbers into
    files, see `core.rows`.

    Args:
      path: The file.
      file: How errors begin; "": with the path.

    Returns:
      Name -> array, of any shape and type but Python objects. To ask for a damaged one is a
      ValueError, and an OSError where there is no room for a large one.

    Raises:
      OSError: If the file cannot be opened.
      ValueError: If it is no npz file, is cut off, or holds something else than arrays.
    """
    with open(path, "rb"):
        pass  # What cannot be opened is no damaged file.
    return Npz(path, file or os.fspath(path))


_REMEDY = "if it is meant so, save it with numpy.savez, which does not compress"


def _check_size(archive: zipfile.ZipFile, file: str, name: str) -> None:
    """ValueError for an array that is much larger than its file."""
    info = archive.getinfo(name + _ENDING)
    archives.check_size(f"{file}: {name}", info.file_size, info.compress_size, _REMEDY)


def _member(archive: zipfile.ZipFile, file: str, name: str) -> np.ndarray:
    """An array of an npz file: whole, or in pieces into a file where it is large."""
    key = name + _ENDING
    _check_size(archive, file, name)
    size = archive.getinfo(key).file_size
    with archive.open(key) as stream:
        shape, fortran, dtype = _header(stream)
        # NumPy takes the memory before it looks how much is there.
        if not dtype.hasobject:
            _check_content(size - stream.tell(), shape, dtype)
        if size > rows.LARGEST and not fortran and dtype.kind in "biuf" and shape and all(shape):
            found = rows.Rows()
            for batch in _batches(stream, dtype, shape, 0, rows.piece_size(shape, dtype)):
                found.add(batch)
            # The check sum is compared behind the last byte.
            stream.read()
            return found.array()
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def _check_content(received: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """ValueError unless there are as many bytes as an array of this shape has."""
    if received != (size := math.prod(shape) * dtype.itemsize):
        raise ValueError(f"{received:,} bytes in place of {size:,}")


def _batches(
    stream: IO[bytes], dtype: np.dtype, shape: tuple[int, ...], start: int, size: int
) -> Iterator[np.ndarray]:
    """The rows from `start` on of an array of this shape, at most `size` in each array; the stream
    is at the first of them."""
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    for first in range(start, shape[0], size):
        count = min(size, shape[0] - first)
        content = stream.read(count * row_bytes)
        if len(content) < count * row_bytes:
            raise EOFError(f"it ends in row {first + len(content) // row_bytes}")
        yield np.frombuffer(content, dtype).reshape(count, *shape[1:])


def array_names(path: str | os.PathLike) -> list[str]:
    """Names of the arrays in an npz file; errors as of `read_npz`."""
    with (
        open(path, "rb") as stream,
        _readable(os.fspath(path), "an npz file"),
        zipfile.ZipFile(stream) as archive,
    ):
        return [name.removesuffix(_ENDING) for name in archive.namelist()]


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a file, `[n, ...]`, of which a few rows are in memory at a time.

    One way for both kinds of files: `numpy.load(mmap_mode=)` maps no array of an npz file, and the
    process is killed (SIGBUS) where an npy file is cut off while it is mapped.
    """

    path: Path
    key: str
    """Its name in an npz file; "" for an npy file, which holds one array."""
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    """Bytes before the first entry."""
    checksum: str
    """Differs where the content does: size and check sum, or time of change of an npy file."""

    @property
    def name(self) -> str:
        """What the array is called: in its npz file, or as the npy file."""
        return self.key or self.path.stem

    def __len__(self) -> int:
        return self.shape[0]

    def batches(self, start: int, size: int) -> Iterator[np.ndarray]:
        """Rows from `start` on, at most `size` in each array; compressed files are read from 0 on.

        Raises:
          ValueError: If the file is damaged.
        """
        row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        with self._readable(), _opened(self.path, self.key) as stream:
            stream.seek(self.start + start * row_bytes)
            yield from _batches(stream, self.dtype, self.shape, start, size)

    def verify(self) -> None:
        """Raises a ValueError unless the content fits the check sum that its npz file has of it."""
        if self.key:
            with self._readable(), _opened(self.path, self.key) as stream:
                while stream.read(2**20):
                    pass

    def _readable(self) -> contextlib.AbstractContextManager[None]:
        return _readable(str(self.path), f"the whole array {self.name}")


def stored_array(path: Path, key: str = "", *, text: bool = False) -> StoredArray:
    """Finds an array of numbers in a file, without reading its content.

    Args:
      path: An npz file, or an npy file where there is no key.
      key: Name of the array in an npz file.
      text: Whether it may be of text, too.

    Raises:
      OSError: If the file cannot be opened.
      ValueError: If the array is damaged, empty, in Fortran order, or of another kind.
    """
    with _readable(str(path), f"the whole array {key or path.stem}"):
        with _opened(path, key) as stream:
            shape, fortran, dtype = _header(stream)
            start = stream.tell()
        if key:
            with zipfile.ZipFile(path) as archive:
                _check_size(archive, str(path), key)
                info = archive.getinfo(key + _ENDING)
            total, mark = info.file_size, f"{info.CRC:08x}"
        else:
            stat = path.stat()
            total, mark = stat.st_size, f"{stat.st_mtime_ns}"
        if not dtype.hasobject:
            _check_content(total - start, shape, dtype)
    where = f"{path}: {key or path.name}: expected"
    if dtype.kind not in ("biufSU" if text else "biuf"):
        raise ValueError(f"{where} numbers{' or text' if text else ''}, received dtype {dtype}")
    if not shape or not all(shape):
        raise ValueError(f"{where} shape [n, ...] with at least one input, received {shape}")
    if fortran and sum(size > 1 for size in shape) > 1:
        raise ValueError(
            f"{where} an array in C order, of which a row can be read alone, received one in "
            "Fortran order; numpy.ascontiguousarray makes it one"
        )
    return StoredArray(path, key, dtype, shape, start, f"{total} {mark}")


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran order, and type of the npy data that a stream begins with."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"a file of version {version}")


@contextlib.contextmanager
def _opened(path: Path, key: str) -> Iterator[IO[bytes]]:
    with contextlib.ExitStack() as stack:
        if key:
            archive = stack.enter_context(zipfile.ZipFile(path))
            yield stack.enter_context(archive.open(key + _ENDING))
        else:
            yield stack.enter_context(open(path, "rb"))


@contextlib.contextmanager
def _readable(file: str, expected: str) -> Iterator[None]:
    """Turns whatever a damaged file raises, which can be nearly anything, into one ValueError."""
    try:
        yield
    except rows.NoRoomError:
        raise
    except MemoryError as error:
        raise MemoryError(
            f"{file}: expected {expected}, received one for which there is no memory "
            f"({wording.one_line(error)})"
        ) from error
    except Exception as error:
        raise ValueError(
            f"{file}: expected {expected}, received what cannot be read ({wording.one_line(error)})"
        ) from error
