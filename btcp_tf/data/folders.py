"""Images from folders, one folder a class."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from btcp_tf.core import warning, wording
from btcp_tf.core.config import MAX_PIXELS, PILLOWS_LIMIT
from btcp_tf.core.progress import Bar
from btcp_tf.core.rows import Rows
from btcp_tf.data.images import convert
from btcp_tf.data.splits import Source, Split

if TYPE_CHECKING:
    import PIL.Image


def check_bad_files(word: str) -> None:
    if word not in (known := ("fail", "skip")):
        raise ValueError(wording.expected_one_of("bad_files", known, word))


def read_folder(
    root: pathlib.Path,
    size: tuple[int, int] | None,
    bad_files: str,
    verbose: int,
    groups: str = "",
    max_pixels: int = MAX_PIXELS,
) -> Source:
    splits = split_folders(root)
    folders = {part: class_folders(path) for part, path in splits.items()}
    # Before any image is decoded: as long as a folder is wrong, so may be the list of files.
    refuse(root, [*_class_faults(splits, folders), *_nested_faults(root, folders)])
    listed = [list(map(visible_entries, paths)) for paths in folders.values()]
    files = [file for entries in listed for file in in_turn(entries)]
    if bad_files == "fail":
        refuse(root, list(_group_faults(groups, files)))
    images, used, notes, faults = decode_all(
        root, files, size, None, bad_files, verbose, max_pixels
    )
    refuse(root, [*_empty_faults(folders, used if bad_files == "skip" else files), *faults])
    names = tuple(folder.name for folder in folders["train"])
    number = {wording.clean(name): label for label, name in enumerate(names)}
    labels = np.array([number[wording.clean(file.parent.name)] for file in used], np.int64)
    paths = np.array([str(file.absolute()) for file in used])
    # The files of a split are next to each other.
    counts = [sum(file.parent.parent == path for file in used) for path in splits.values()]
    ends = np.cumsum(counts)[:-1]
    by_row = [images, labels, paths]
    if groups:
        refuse(root, list(_group_faults(groups, used)))
        by_row.append(np.array([group_of(groups, file.name) for file in used]))
    columns = zip(splits, *(np.split(rows, ends) for rows in by_row), strict=True)
    return Source(names, {part: Split(*rows) for part, *rows in columns}, notes)


def group_of(pattern: str, name: str) -> str | None:
    r"""What a regular expression finds in a file's name: its first group in parentheses, or all of
    it; None: nothing.

    >>> group_of(r"person(\d+)_", "person12_virus_3.png")
    '12'
    """
    found = re.search(pattern, name)
    if found is None:
        return None
    return found[1] if found.re.groups else found[0]


def _group_faults(pattern: str, files: Sequence[pathlib.Path]) -> Iterator[str]:
    missing = [file.name for file in files if pattern and group_of(pattern, file.name) is None]
    if missing:
        yield (
            f"groups: expected {pattern!r} to find something in the name of every file, received "
            f"nothing in {some(missing)}"
        )


def refuse(root: pathlib.Path, faults: Sequence[str]) -> None:
    """ValueError that tells all faults of a folder at once, in one line, if there are any."""
    if len(faults) > 1:
        listed = [f"({n}) {text.removeprefix(f'{root}: ')}" for n, text in enumerate(faults, 1)]
        raise ValueError(
            f"{root}: expected a folder of images for each class, received {len(faults)} faults: "
            + "; ".join(listed)
        )
    for fault in faults:
        raise ValueError(fault)


def _class_faults(
    splits: Mapping[str, pathlib.Path], folders: Mapping[str, Sequence[pathlib.Path]]
) -> Iterator[str]:
    """What is wrong with the names of class folders, by part."""
    names = {}
    for part, paths in folders.items():
        try:
            # One class may have its name in two forms of Unicode, by part.
            names[part], _ = wording.class_names(
                [folder.name for folder in paths], f"{splits[part]}: class folders"
            )
        except ValueError as error:
            yield str(error)
    train = names.pop("train", None)
    if train is None:
        return
    if len(train) < 2:
        inner = folders["train"][0] if train else None
        wrapped = inner is not None and len(class_folders(inner)) > 1
        yield (
            f"{splits['train']}: expected a folder for each of at least 2 classes, received "
            f"{', '.join(train) or 'none'}"
            + (f"; --data_dir={inner} reads the folders in there" if wrapped else "")
        )
        return
    for part, own in names.items():
        missing, strange = sorted(set(train) - set(own)), sorted(set(own) - set(train))
        received = [f"them without {some(missing)}"] if missing else []
        received += [f"also {some(strange)}"] if strange else []
        if received:
            yield (
                f"{splits[part]}: expected the classes of {splits['train']}, received "
                + " and ".join(received)
            )


def _nested_faults(
    root: pathlib.Path, folders: Mapping[str, Sequence[pathlib.Path]]
) -> Iterator[str]:
    inner = [path for paths in folders.values() for one in paths for path in class_folders(one)]
    if nested := [str(path.relative_to(root)) for path in inner]:
        yield (
            f"{root}: expected images and no folders in the class folders, received the folders "
            f"{some(nested)}; move their images up to their class, or name with --data_dir a "
            "folder whose own folders are the classes"
        )


def _empty_faults(
    folders: Mapping[str, Sequence[pathlib.Path]], files: Sequence[pathlib.Path]
) -> Iterator[str]:
    used = {file.parent for file in files}
    empty = [str(folder) for paths in folders.values() for folder in paths if folder not in used]
    if empty:
        yield (
            f"expected images in each class folder, received none in {some(empty)}; put some in, "
            "or remove the folder"
        )


def split_folders(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Folders of class folders by what they are for: `root` alone, or its train and others."""
    # A class may be called train, too, but its folder holds images.
    if not ((root / "train").is_dir() and class_folders(root / "train")):
        return {"train": root}
    role = {"val": "validation", "valid": "validation"}
    names = [folder.name for folder in class_folders(root)]
    splits = {role.get(name, name): root / name for name in names}
    if not set(splits) <= {"train", "validation", "test"} or len(splits) < len(names):
        # Not left out in silence: Test, say, is meant to be test.
        raise ValueError(
            f"{root}: expected the folders train, val (or validation, valid) and test, each once, "
            f"received {', '.join(names)}"
        )
    return {part: splits[part] for part in ("train", "validation", "test") if part in splits}


_CLUTTER = (
    "__macosx",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "$recycle.bin",
    "system volume information",
    "@eadir",
    "lost+found",
)
"""Small letters of what systems, archives and network disks leave in folders by themselves."""


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is none of the user's own, by its name."""
    return name.startswith(".") or name.lower() in _CLUTTER


def _visible(folder: pathlib.Path) -> list[tuple[str, bool]]:
    """Names of what is visible in a folder, in order, and whether each is a folder."""
    with os.scandir(folder) as entries:
        return sorted(
            # A link in a circle is neither folder nor file, and to ask the entry raises.
            (entry.name, os.path.isdir(entry))
            for entry in entries
            if not _is_hidden(entry.name)
            # Neither pipes nor sockets: to open one can wait for ever.
            and (entry.is_symlink() or entry.is_dir() or entry.is_file())
        )


def visible_entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return [folder / name for name, _ in _visible(folder)]


def class_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    return [folder / name for name, is_folder in _visible(folder) if is_folder]


def in_turn(groups: Sequence[Sequence[pathlib.Path]]) -> list[pathlib.Path]:
    """Files of some groups mixed in proportion, so that the first ones stand for all."""
    places = [
        ((rank + 0.5) / len(group), number, rank)
        for number, group in enumerate(groups)
        for rank in range(len(group))
    ]
    return [groups[number][rank] for _, number, rank in sorted(places)]


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


class Decoded(NamedTuple):
    """What `decode_all` has read."""

    images: np.ndarray
    """uint8 `[n, height, width, channels]`; of use where there are no faults."""
    files: list[pathlib.Path]
    """The n files that they are from."""
    notes: tuple[str, ...]
    faults: tuple[str, ...]
    """Why they cannot be used, of which kind each, for `refuse`."""


def decode_all(
    root: pathlib.Path,
    files: Sequence[pathlib.Path],
    size: tuple[int, int] | None,
    channels: int | None,
    bad_files: str,
    verbose: int,
    max_pixels: int = MAX_PIXELS,
) -> Decoded:
    """Reads image files.

    Args:
      root: What warnings and faults are about.
      files: Paths below it.
      size: Height and width; None: the files', which must agree.
      channels: 1 or 3; None: 1 if all files are gray, else 3.
      bad_files: As in `load`.
      verbose: As in `load`.
      max_pixels: As in `load`.
    """
    bad: dict[pathlib.Path, str] = {}
    shapes = {}
    # Sizes and colors stand in a file's first bytes: with them known, no memory is needed but that
    # of the images as they will be.
    for file in files:
        with _noted(file, bad), _opened(file, max_pixels) as image:
            sideways = image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
            shapes[file] = (*image.size[:: 1 if sideways else -1], 1 if image.mode in _GRAY else 3)
    faults = []
    sizes = {f"{height}x{width}" for height, width, _ in shapes.values()}
    if size is None and len(sizes) > 1:
        faults.append(
            f"{root}: expected images of one size (height x width), received "
            f"{some(sorted(sizes))}; --image_size=HEIGHTxWIDTH brings them to one"
        )
    height, width, _ = next(iter(shapes.values()), (1, 1, 1))
    channels = channels or max((shape[2] for shape in shapes.values()), default=1)
    shape = (*(size or (height, width)), channels)
    # Images that cannot be used are decoded too, to tell those that are cut off, but not kept.
    images, transparent = Rows(), 0
    images.add(np.zeros((0, *shape), np.uint8))
    bar = Bar(f"{root}: {len(files):,} images", len(files), shown=verbose == 1)
    for row, file in enumerate(files):
        pixels = None
        if file in shapes:
            with _noted(file, bad), _opened(file, max_pixels) as image:
                image.load()
                if not faults:
                    pixels = _pixels(image, shape)
                    transparent += _is_transparent(image)
        if pixels is not None and file not in bad:
            images.add(pixels[None])
        bar.update(row + 1)
    notes = []
    if transparent:
        notes.append(
            f"{transparent:,} of {len(files):,} images have transparent parts, of which the colors "
            "below are taken"
        )
    if bad:
        count = f"{len(bad):,} of {len(files):,} files"
        if bad_files == "fail":
            faults.append(
                f"{root}: expected whole PNG, JPEG or BMP images in the class folders, received "
                f"{count} that are not: {_by_reason(root, bad, 3)}; --bad_files=skip goes on "
                "without them"
            )
        else:
            notes.append(f"{count} are no whole images and were skipped (bad_files)")
            warning.warn(f"{root}: {notes[-1]}: {_by_reason(root, bad, len(bad))}")
    kept = [file for file in files if file not in bad]
    return Decoded(images.array(), kept, tuple(notes), tuple(faults))


def _by_reason(root: pathlib.Path, bad: Mapping[pathlib.Path, str], most: int) -> str:
    """Files by why they cannot be read; of each reason as many as `most`."""
    kinds: dict[str, dict[str, str]] = {}
    for file, reason in bad.items():
        # Numbers, such as those of bytes that are missing, make no other reason.
        kind = kinds.setdefault(re.sub(r"\d+", "", reason), {})
        kind[str(file.relative_to(root))] = reason
    return ", ".join(
        f"{some(sorted(kind), most)} ({next(iter(kind.values()))})" for kind in kinds.values()
    )


_ORIENTATION = 0x0112
"""Exif: with 5 to 8, what is stored as rows is seen as columns."""

_GRAY = ("1", "L", "LA")
"""Pillow's modes of gray images of at most 8 bits."""

_COLOR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@contextlib.contextmanager
def _noted(file: pathlib.Path, bad: dict[pathlib.Path, str]) -> Iterator[None]:
    """Notes why a file cannot be read, rather than to end."""
    import PIL.Image

    try:
        yield
    except PIL.UnidentifiedImageError:
        bad[file] = "not a PNG, JPEG or BMP image" if file.stat().st_size else "empty"
    except PIL.Image.DecompressionBombError:
        bad[file] = f"expected at most {PILLOWS_LIMIT:,} pixels, received more"
    # Pillow lets through what its decoders raise, which is nearly anything.
    except Exception as error:
        bad[file] = getattr(error, "strerror", None) or first_line(error) or type(error).__name__


@contextlib.contextmanager
def _opened(file: pathlib.Path, max_pixels: int) -> "Iterator[PIL.Image.Image]":
    """An image file whose head is read, and is as it should be; the pixels are not decoded."""
    from PIL import Image

    # A link may lead to a pipe, which to open can take for ever.
    if file.exists() and not file.is_file():
        raise ValueError("no file")
    with Image.open(file, formats=("PNG", "JPEG", "BMP")) as image:
        if image.width * image.height > max_pixels:
            raise ValueError(
                f"expected at most {max_pixels:,} pixels (max_pixels), received "
                f"{image.height:,} x {image.width:,}"
            )
        if image.mode not in (*_GRAY, *_COLOR):
            # Pillow would cut 16 bits off at 255.
            raise ValueError(f"expected 8 bits a channel, received the mode {image.mode}")
        # Not so of JPEG: phones put a small copy or a map of depths behind a photo.
        if image.format == "PNG" and getattr(image, "is_animated", False):
            raise ValueError("expected one picture, received an animation")
        yield image


def _is_transparent(image: "PIL.Image.Image") -> bool:
    return image.has_transparency_data and bool(
        (np.asarray(image.convert("RGBA"))[..., 3] < 255).any()
    )


def read_image(
    file: str | os.PathLike, shape: tuple[int, int, int], max_pixels: int = MAX_PIXELS
) -> tuple[np.ndarray | None, str]:
    """One image file as `load` reads those of a folder, or why it cannot be read.

    Args:
      file: PNG, JPEG or BMP of 8 bits a channel.
      shape: Height, width and channels (1 or 3) to convert to, see `convert`.
      max_pixels: A file of more is not decoded.

    Returns:
      (uint8 `[*shape]`, "") or (None, the reason in a few words). Safe in threads.
    """
    path = pathlib.Path(file)
    pixels: np.ndarray | None = None
    bad: dict[pathlib.Path, str] = {}
    with _noted(path, bad), _opened(path, max_pixels) as image:
        pixels = _pixels(image, shape)
    return pixels, bad.get(path, "")


def files_below(folder: str | os.PathLike) -> Iterator[str]:
    """Paths, relative to `folder`, of the visible files in it and in its visible sub-folders.

    What systems leave by themselves, such as `Thumbs.db`, is not visible.

    Name by name in the order of code points, a sub-folder's files in its place; one folder's names
    are in memory at a time for each level. Links to folders are followed, but not into a folder
    that they are in. Pipes and sockets are left out, links to what is not there are not: whoever
    reads them will say so.

    Raises:
      OSError: If a folder cannot be listed.
    """

    def below(path: pathlib.Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        place = path.stat()
        if (place.st_dev, place.st_ino) in above:
            return
        above = above | {(place.st_dev, place.st_ino)}
        for name, is_folder in _visible(path):
            if is_folder:
                yield from below(path / name, f"{prefix}{name}/", above)
            else:
                yield prefix + name

    return below(pathlib.Path(folder), "", frozenset())


def _pixels(image: "PIL.Image.Image", shape: tuple[int, int, int]) -> np.ndarray:
    """An image the right way up as uint8 `[*shape]`."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image).convert("L" if shape[2] == 1 else "RGB")
    return convert(np.asarray(upright)[None], shape)[0]


def first_line(error: Exception) -> str:
    return (wording.cause(error).splitlines() or [""])[0]
