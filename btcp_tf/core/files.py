"""Whole files or none, and one process per folder."""

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from btcp_tf.core import wording

# Of temporary files: nobody else's name starts so.
_TEMPORARY = ".btcp_tf-half-written-"

_LOCK_POLL = 0.5
"""Seconds between two tries of a lock that another process holds."""


def as_path(name: str, value: Any) -> Path:
    """An argument as a path of this machine; ValueError, which names it, for what is none.

    Every file and folder that is written goes through here: an address such as gs://bucket would
    else quietly become a folder of that name.
    """
    try:
        path = Path(value)
    except TypeError:
        raise ValueError(f"{name}: expected a path, received {type(value).__name__}") from None
    if wrong := wording.fault(os.fspath(value)):
        raise ValueError(f"{name}: {wrong}")
    return path


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary file beside `path` that replaces it on a clean exit.

    A process killed at any time leaves the old file or the new one, never a
    part. An exception removes the temporary file and leaves `path` as it was.

    Raises:
      OSError: With the name of `path`, if it cannot be written.
      RuntimeError: If it is in a folder that this process holds, and that is another one by now.
    """
    path = as_path("path", path)
    _check_held(path)
    with _named(path), _temporary(path) as temporary:
        yield temporary


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Gives errors of the system the name of a file; those of a write have none of their own."""
    try:
        yield
    except OSError as error:
        own = error.filename is None or _TEMPORARY in os.fsdecode(error.filename)
        number = error.errno
        if number is None and wording.is_full_disk(error):
            number = errno.ENOSPC  # Of NumPy, which says how much it has written.
        if not own or number is None:
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The ending is kept, since writers such as NumPy and Matplotlib choose the format by it.
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256(path: str | os.PathLike) -> str:
    """The check sum of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[bool]:
    """Locks a file or folder for this process alone, until the `with` block or the process ends.

    Yields:
      Whether it is locked; False if another process holds it, or has removed it meanwhile.

    Raises:
      OSError: If there is no such file, or its file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(handle), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            held = False
        yield held
    finally:
        os.close(handle)


_held: dict[Path, os.stat_result] = {}
"""The folders that this process holds, and which they were then."""


def _check_held(path: Path) -> None:
    """RuntimeError for a file in a folder that was renamed or removed while this process held it.

    To make it anew would split what belongs together.
    """
    for folder, was in _held.items():
        if path.absolute().is_relative_to(folder):
            try:
                is_same = os.path.samestat(os.stat(folder), was)
            except FileNotFoundError:
                is_same = False
            if not is_same:
                raise RuntimeError(
                    f"expected the folder {folder} as it was when this command began, received "
                    f"{'another one' if folder.exists() else 'none'}: it was renamed or removed "
                    "meanwhile; what was saved before is in there: give it back its name, and the "
                    "same command goes on"
                )


@contextlib.contextmanager
def folder_lock(folder: str | os.PathLike, setting: str = "output_dir") -> Iterator[None]:
    """Holds `folder` for this process alone; the lock dies with the process.

    Also sweeps away the temporary files of writers that were killed, in the folder and in its
    sub-folders. After an error a folder in which nothing was written is left as it was before: one
    that was made here is removed, with the folders above it that were.

    Args:
      folder: Made where it is missing.
      setting: The setting that chose it, for errors.

    Raises:
      RuntimeError: If another process holds the folder.
      ValueError: If it is no folder that can be written.
    """
    folder = as_path(setting, folder)
    made = _missing(folder)
    check_folder(setting, folder)
    (folder / ".lock").touch()
    with locked(folder / ".lock") as held:
        if not held:
            raise RuntimeError(
                f"expected a folder that no other process writes to, received {folder}, "
                f"which another run holds; wait for it or choose another --{setting}"
            )
        for pattern in (f"{_TEMPORARY}*", f"*/{_TEMPORARY}*"):
            for leftover in folder.glob(pattern):
                leftover.unlink(missing_ok=True)
        place = folder.absolute()
        _held[place] = os.stat(folder)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if os.listdir(folder) == [".lock"]:
                    (folder / ".lock").unlink()
            _remove_empty(made)
            raise
        finally:
            del _held[place]


def wait_until_free(folder: str | os.PathLike, seconds: float) -> None:
    """Waits until no process holds a folder, or so many seconds; `folder_lock` has the last word.

    Args:
      folder: One that `folder_lock` may hold; it need not be there.
      seconds: The longest wait.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with locked(Path(folder) / ".lock") as free:
                if free:
                    return
        except FileNotFoundError:
            return
        time.sleep(_LOCK_POLL)


def check_place(setting: str, folder: str | os.PathLike) -> None:
    """ValueError where no folder can be, since a file stands there or above; makes nothing."""
    folder = as_path(setting, folder)
    lowest = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), None)
    if lowest is not None and not lowest.is_dir():
        raise ValueError(
            f"{setting}: expected a folder that can be written, received {os.fspath(folder)!r}: "
            + ("it is a file" if lowest == folder else f"{lowest} is a file")
        )


def _missing(folder: Path) -> list[Path]:
    """The folders that would have to be made for this one, the innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def check_folder(setting: str, folder: str | os.PathLike, *, keep: bool = True) -> None:
    """ValueError unless files can be made in a folder; it is made where it is missing.

    Args:
      setting: The setting that chose it, for errors.
      folder: The folder.
      keep: Whether one that is made here stays.
    """
    path = as_path(setting, folder)
    made: list[Path] = []
    try:
        made = _missing(path)
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{setting}: expected a folder that can be written, received {os.fspath(folder)!r}: "
            f"{reason}"
        ) from None
    finally:
        if not keep:
            _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    """Removes folders, the innermost first, until one is not empty."""
    with contextlib.suppress(OSError):
        for place in folders:
            place.rmdir()


def check_keras_file(setting: str, path: str | os.PathLike) -> Path:
    """The path of a file that may be a `.keras` file; whether it is one, only Keras can tell.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no path, or the file is no zip archive.
    """
    file = as_path(setting, path)
    if not file.is_file():
        state = "no file" if file.exists() else "not there"
        raise FileNotFoundError(
            f"{setting}: expected a .keras file, received {file}, which is {state}"
        )
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f"{setting}: expected a .keras file, which is a zip archive, received {file}, which "
            "is none or is cut off"
        )
    return file
