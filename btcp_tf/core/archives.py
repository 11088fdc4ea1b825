"""Files that grow when they are read: what small ones may claim to hold."""

import zipfile

FLOOR = 2**30
"""Bytes that anything in a file may have."""

EXPANSION = 250
"""Above that, how many times larger it may be than what the file stores of it. Deflate reaches
1,000 with zeros alone, other methods a million."""


def check_size(where: str, size: int, stored: int, remedy: str) -> None:
    """ValueError for what is a bomb: a few kilobytes that would fill memory or disk.

    Args:
      where: What it is, for the error.
      size: Bytes that it has when it is read.
      stored: Bytes that the file has of it.
      remedy: What to do if it is none.

    >>> check_size("a.npz: x", 2**31, 2**30, "")
    """
    if size > FLOOR and size > EXPANSION * stored:
        raise ValueError(
            f"{where}: expected at most {EXPANSION} times what is stored of it, received "
            f"{stored:,} bytes that claim to be {size:,}; {remedy}"
        )


def check_members(where: str, archive: zipfile.ZipFile, remedy: str) -> None:
    """`check_size` of all that is in a zip archive.

    Args:
      where: The file, for the error.
      archive: It, opened.
      remedy: What to do if it is no bomb.
    """
    for info in archive.infolist():
        check_size(f"{where}: {info.filename}", info.file_size, info.compress_size, remedy)
