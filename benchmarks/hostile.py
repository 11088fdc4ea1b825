"""Files that somebody may have made to do harm: small ones that would fill the memory."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np


def _chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def png(width: int, height: int) -> bytes:
    """A whole black PNG file, of about a thousandth of its pixels."""
    squeeze = zlib.compressobj(9)
    row = bytes(width + 1)
    pixels = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", pixels), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def jpeg(width: int, height: int) -> bytes:
    """A JPEG file whose head claims this size."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "JPEG")
    content = buffer.getvalue()
    # The height is in the fifth byte of the frame's head; the width follows.
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def npz(path: Path, size: int, method: int = zipfile.ZIP_BZIP2, **others: np.ndarray) -> None:
    """Writes an npz file of `x`, so many zeros, and of other arrays."""
    with zipfile.ZipFile(path, "w", method) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            about = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
            np.lib.format.write_array_header_1_0(file, about)
            for start in range(0, size, 2**24):
                file.write(bytes(min(2**24, size - start)))
        for name, array in others.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
