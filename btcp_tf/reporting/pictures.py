"""Pictures of answers: thumbnails, the ones a run keeps, files of a score file, and sheets."""

import base64
import contextlib
import dataclasses
import io
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.core import arrays, json_files, wording
from btcp_tf.core.files import as_path, atomic_path
from btcp_tf.evaluation.predictions import about_file
from btcp_tf.reporting.drawing import WRONG

LARGEST_FILE, MOST_PIXELS = 2**25, 50_000_000
"""Bytes and pixels of the files that are opened for a picture: 32 MiB, and a large photo."""

KEPT = ("gallery", "errors")
"""Files of pictures beside the figures: of a run's own gallery, and of the wrong answers that the
page of a study may show, whichever method turns out to be the best of it."""

SHEET_CELL = 240
"""Width of an image's place on a sheet in pixels; TensorBoard shows a sheet at half its size."""

_FRAME, _LINE = 8, 32  # Of a sheet: width of a frame, height of a line of text.

_LARGEST = 160  # Pixels of a thumbnail's longer side.

LARGE = 640
"""Pixels of the longer side of a picture that is looked at alone."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")

_GRAY, _COLOR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def thumbnail(pixels: np.ndarray, longest: int = _LARGEST) -> np.ndarray:
    """An image, uint8 `[height, width, 1 or 3]`, at most so long; a small one unchanged."""
    from PIL import Image

    if max(pixels.shape[:2]) <= longest:
        return pixels
    image = Image.fromarray(_without_channel(pixels))
    image.thumbnail((longest, longest), Image.Resampling.BOX)
    return np.asarray(image).reshape(*image.size[::-1], pixels.shape[-1])


def _without_channel(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def data_uri(pixels: np.ndarray, longest: int = _LARGEST) -> str:
    """An image, no longer than that, inside a `data:` address; above a thumbnail's size a JPEG."""
    from PIL import Image

    buffer, small = io.BytesIO(), thumbnail(pixels, longest)
    kind = "PNG" if max(small.shape[:2]) <= _LARGEST else "JPEG"
    Image.fromarray(_without_channel(small)).save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


def read_picture(file: Path, longest: int = _LARGEST) -> np.ndarray | None:
    """An image file, no longer than that and upright; None if it is none, or too large."""
    from PIL import Image, ImageOps

    try:
        if not file.is_file() or file.stat().st_size > LARGEST_FILE:
            return None
        with warnings.catch_warnings():
            # Pillow warns of sizes that are refused here.
            warnings.simplefilter("ignore")
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    return None
                if image.mode not in (*_GRAY, *_COLOR):
                    return None  # Of 16 bits Pillow would show the darkest alone.
                # A JPEG is decoded no larger than necessary.
                image.draft(None, (2 * longest, 2 * longest))
                upright = ImageOps.exif_transpose(image)
                pixels = np.asarray(upright.convert("L" if image.mode in _GRAY else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return thumbnail(pixels.reshape(*pixels.shape[:2], -1), longest)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Thumbnails of answers and the files that they come from, both by row."""

    images: Mapping[int, np.ndarray]
    files: Mapping[int, str]
    """Paths, as far as they are known."""

    @classmethod
    def of_rows(
        cls,
        rows: np.ndarray,
        images: np.ndarray | None,
        files: Sequence[str] | np.ndarray | None,
        earlier: Path,
    ) -> "Pictures":
        """Pictures of some rows, from all images or, without them, from an earlier report.

        Args:
          rows: Row numbers.
          images: All images `[n, height, width, channels]` uint8, or None.
          files: Path of the file of each image; None: they have none.
          earlier: The `figures` of the earlier report.
        """
        if images is None:
            saved = cls.load(earlier)
            kept = [row for row in rows.tolist() if row in saved.images]
            return cls(
                {row: saved.images[row] for row in kept},
                {row: saved.files[row] for row in kept if row in saved.files},
            )
        return cls(
            {row: thumbnail(images[row]) for row in rows.tolist()},
            {} if files is None else {row: str(files[row]) for row in rows.tolist()},
        )

    @classmethod
    def load(cls, folder: Path) -> "Pictures":
        """All pictures of an earlier report; version 0.1.0 kept some errors under other names."""
        images: dict[int, np.ndarray] = {}
        files: dict[int, str] = {}
        for name in ("likely_label_errors", "most_confident_errors", *KEPT):
            if not (folder / f"{name}.npz").exists():
                continue
            with np.load(folder / f"{name}.npz", allow_pickle=False) as saved:
                rows = saved["rows"].tolist()
                images |= dict(zip(rows, map(thumbnail, saved["images"]), strict=True))
                if "files" in saved and len(saved["files"]):
                    pairs = zip(rows, map(str, saved["files"]), strict=True)
                    files |= {row: file for row, file in pairs if file}
        return cls(images, files)

    @property
    def links(self) -> dict[int, str]:
        """Row -> address of its file."""
        paths = {row: Path(file) for row, file in self.files.items()}
        return {row: path.as_uri() for row, path in paths.items() if path.is_absolute()}

    @property
    def names(self) -> dict[int, str]:
        """Row -> folder and name of its file."""
        paths = {row: Path(file) for row, file in self.files.items()}
        return {row: f"{path.parent.name}/{path.name}" for row, path in paths.items()}

    def save(self, path: Path) -> None:
        """Writes one of the files of `KEPT`, from which a report is drawn again."""
        if not self.images:
            return
        rows = [*self.images]
        files = [self.files.get(row, "") for row in rows] if self.files else []
        with atomic_path(path) as temporary:
            np.savez_compressed(
                temporary,
                rows=np.array(rows, np.int64),
                images=np.stack([*self.images.values()]),
                files=np.array(files, str),
            )


def input_folders(path: Path, files_dir: str | os.PathLike | None) -> list[Path]:
    """Folders that may hold the files that the rows of a file of scores name.

    Args:
      path: The file of scores.
      files_dir: The only such folder; None: the folder that was scored, as the file beside `path`
        says, and that of `path`.

    Raises:
      ValueError: If `files_dir` does not exist.
    """
    if files_dir is not None:
        folder = as_path("files_dir", files_dir)
        if not folder.is_dir():
            raise ValueError(f"files_dir: expected a folder that exists, received {folder}")
        return [folder]
    place = scored_input(path)
    return [path.parent] if place is None else [place, path.parent]


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The file that a row names; None if no folder holds it.

    A page may be passed on, so no name leads out of the folders: "../" and other places stay shut.
    """
    for folder in map(os.path.abspath, folders):
        file = Path(os.path.abspath(os.path.join(folder, name)))
        try:
            if file.is_relative_to(folder) and file.is_file():
                return file
        except (OSError, ValueError):
            continue  # No name that a file can have.
    return None


def scored_input(path: Path) -> Path | None:
    """What was scored, as the file beside a file of scores says; None: it does not say."""
    try:
        about = json_files.parse(about_file(path).read_text(encoding="utf-8"))
        return Path(about["paths"]["input"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # The file beside it is optional.


def scored_array(path: Path, files_dir: str | os.PathLike | None) -> Path | None:
    """The npz or npy file that was scored, as the file beside `path` says; None: it was none.

    Args:
      path: The file of scores.
      files_dir: Folder where it lies now; None: where it was.
    """
    file = scored_input(path)
    if file is None or file.suffix.lower() not in (".npz", ".npy"):
        return None
    return file if files_dir is None else Path(files_dir) / file.name


def stored_pictures(
    array: Path | None, named: Mapping[int, str], longest: int = _LARGEST
) -> dict[int, np.ndarray]:
    """Pictures of rows that name an image of an array, as "x_test[3]"; none if it is damaged."""
    pictures: dict[int, np.ndarray] = {}
    if array is None:
        return pictures
    places: dict[str, dict[int, int]] = {}
    for row, name in named.items():
        if match := re.fullmatch(r"(.+)\[([0-9]+)\]", name):
            places.setdefault(match[1], {})[int(match[2])] = row
    for key, rows in places.items():
        with contextlib.suppress(OSError, ValueError):
            stored = arrays.stored_array(array, key if array.suffix.lower() == ".npz" else "")
            is_image = len(stored.shape) == 3 or stored.shape[3:] in ((1,), (3,))
            if stored.dtype != np.uint8 or not is_image or stored.name != key:
                continue
            for number, pixels in zip(range(max(rows) + 1), stored.batches(0, 1), strict=False):
                if number in rows:
                    height, width = pixels.shape[1:3]
                    pictures[rows[number]] = thumbnail(pixels.reshape(height, width, -1), longest)
    return pictures


def sheet(
    images: Sequence[np.ndarray] | np.ndarray,
    captions: Sequence[str],
    marked: Sequence[bool] | np.ndarray = (),
    *,
    columns: int = 4,
) -> np.ndarray:
    """A grid of images with captions.

    Args:
      images: uint8 `[n, height, width, 1 or 3]`, n at least 1. They are brought to one width,
        small ones without smoothing.
      captions: n texts; line breaks are kept, and lines that are too long cut.
      marked: For each image, whether it gets a frame; empty: none does.
      columns: Images in a row.

    Returns:
      Pixels, uint8 `[height, width, 3]`.
    """
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    columns = min(columns, len(images))
    lines = [wording.drawable(caption).split("\n") for caption in captions]
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), _LINE * 3 // 4)
    space = SHEET_CELL - 2 * _FRAME
    # A whole multiple where the image is the smaller one: each of its pixels a sharp square.
    height, width = images[0].shape[:2]
    scale = max(1, space // width) if width <= space else None
    height, width = (height * scale, width * scale) if scale else (height * space // width, space)
    row = height + 2 * _FRAME + _LINE * max(map(len, lines)) + _LINE // 2
    grid = Image.new("RGB", (SHEET_CELL * columns, row * math.ceil(len(images) / columns)), "white")
    draw = ImageDraw.Draw(grid)
    for place, pixels in enumerate(images):
        left, top = SHEET_CELL * (place % columns), row * (place // columns)
        x, y = left + (SHEET_CELL - width) // 2, top + _FRAME
        if len(marked) and marked[place]:
            frame = _FRAME - 1
            corners = (x - frame, y - frame, x + width + frame - 1, y + height + frame - 1)
            draw.rectangle(corners, fill=WRONG)
        how = Image.Resampling.NEAREST if scale else Image.Resampling.BOX
        grid.paste(Image.fromarray(_without_channel(pixels)).resize((width, height), how), (x, y))
        for number, line in enumerate(lines[place]):
            while line and font.getlength(line) > SHEET_CELL:
                line = line[:-2] + "…" if len(line) > 2 else ""
            below = top + height + 2 * _FRAME + _LINE * number
            draw.text((left + SHEET_CELL // 2, below), line, fill="black", font=font, anchor="ma")
    return np.asarray(grid)


def save_sheet(stem: Path, pixels: np.ndarray) -> None:
    """Writes a sheet as PNG and PDF; equal pixels give equal bytes."""
    from PIL import Image

    for ending in ("png", "pdf"):
        buffer = io.BytesIO()
        dates = {"creationDate": None, "modDate": None} if ending == "pdf" else {}
        Image.fromarray(pixels).save(buffer, ending, dpi=(140, 140), **dates)
        with atomic_path(stem.with_name(f"{stem.name}.{ending}")) as temporary:
            temporary.write_bytes(buffer.getvalue())
