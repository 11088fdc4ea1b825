"""What is to be scored: a folder of image files, an .npz or an .npy file, in batches.

Everything is looked at once and read batch by batch, from any input on, so that memory does not
grow with the number of inputs. `btcp_tf.predict` answers the batches. No TensorFlow here.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.core import arrays, files, wording
from btcp_tf.core.arrays import StoredArray
from btcp_tf.data import folders, input_checks

_KEYS = ("x_test", "images", "x")

_LABEL_KEYS = ("y_test", "labels", "y")

UNLABELED = -1
"""The label of an input whose true class is not known."""

Batch = dict[str, np.ndarray]
"""Arrays of n rows by name."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is to be scored, in a fixed order."""

    count: int
    """At least 1."""
    fingerprint: str
    """Another one where files or arrays have changed; labels aside."""
    batches: Callable[[int, int], Iterator[Batch]]
    """(first input, batch size) → batches as `predict.Scorer` takes them, with `input`, the names,
    and `labels` if they were asked for, `UNLABELED` where there is none."""
    what: str
    """Names the inputs in errors."""
    order: str
    """How inputs follow one another, for people."""
    key: str = ""
    """Of an array in an npz file."""
    dtype: np.dtype | None = None
    """Of an array; None: image files."""
    shape: tuple[int, ...] = ()
    """Of one input of an array."""
    label_fingerprint: str = ""
    """Another one where labels that do not stand in the files' names have changed."""
    note: str = ""
    """What is to be said of them once."""
    verify: Callable[[], None] = lambda: None
    """Reads all that has a check sum, that is npz files; raises a ValueError if it is damaged."""


def open_inputs(
    path: str | os.PathLike, *, key: str = "", class_names: Sequence[str] | None = None
) -> Inputs:
    """Looks at all inputs, without reading them.

    Args:
      path: A folder, whose visible files are inputs, see `data.files_below`; an npz file, read
        under `x_test`, `images` or `x`; or an npy file. Arrays are `[n, ...]` in the order of C,
        and are read in pieces, compressed ones from their start.
      key: Another array of an npz file.
      class_names: Adds the true classes: the number of the name of the folder a file is in, none
        for a file in no sub-folder, such as a README; in an npz file, whole numbers `[n]` or
        `[n, 1]`, or one-hot `[n, k]`, under the key with y for x (`x_test` → `y_test`), else
        `y_test`, `labels` or `y`.

    Raises:
      FileNotFoundError: If there is nothing at `path`.
      ValueError: If it holds no inputs, or labels that are not of these classes.
    """
    found = files.as_path("input", path).expanduser()
    if found.is_dir():
        if key:
            raise ValueError(f"key: expected it with an npz file, received it with {found}")
        return _folder(found, class_names)
    if not found.is_file():
        raise FileNotFoundError(
            "input: expected a folder of images, an npz or an npy file, received "
            f"{os.fspath(path)!r}, which is {'no file' if found.exists() else 'not there'}"
        )
    check_ending(found)
    return _arrays(found, key, class_names)


def check_ending(path: str | os.PathLike) -> None:
    """ValueError for a file whose name ends otherwise than those that can be read."""
    found = Path(os.path.expanduser(path))
    if found.is_file() and found.suffix.lower() not in (".npz", ".npy"):
        raise ValueError(
            "input: expected a folder of images, an npz or an npy file, received "
            f"{os.fspath(path)!r}"
        )


def _folder(root: Path, class_names: Sequence[str] | None) -> Inputs:
    number = {wording.clean(name): label for label, name in enumerate(class_names or ())}
    digest, count, stray = hashlib.sha256(), 0, 0
    first = ""
    for name in folders.files_below(root):
        with contextlib.suppress(OSError):
            stat = os.stat(root / name)
            digest.update(f"{stat.st_size} {stat.st_mtime_ns} ".encode())
        digest.update(os.fsencode(name) + b"\0")
        count += 1
        if class_names is not None and _sub_folder(name) not in number:
            if "/" in name:
                raise _unknown_class(class_names, root / name)
            first, stray = first or name, stray + 1
    if not count:
        raise ValueError(f"{root}: expected image files, received none")
    if class_names is not None and stray == count:
        raise _unknown_class(class_names, root / first)

    def batches(start: int, size: int) -> Iterator[Batch]:
        names = itertools.islice(folders.files_below(root), start, None)
        while part := list(itertools.islice(names, size)):
            batch = {
                "input": np.array([as_text(name) for name in part], object),
                "files": np.array([os.fspath(root / name) for name in part], object),
            }
            if class_names is not None:
                labels = [number.get(_sub_folder(name), UNLABELED) for name in part]
                batch["labels"] = np.array(labels, np.int64)
            yield batch

    note = ""
    if stray:
        told = f"{as_text(first)!r}" + (f" and {stray - 1:,} more files" if stray > 1 else "")
        note = f"{told} in no class's folder: without a label"
    order = "names of files, folder by folder, by code points"
    return Inputs(count, digest.hexdigest(), batches, os.fspath(root), order, note=note)


def _sub_folder(name: str) -> str:
    return wording.clean(os.path.basename(os.path.dirname(name)))


def _unknown_class(class_names: Sequence[str], path: Path) -> ValueError:
    return ValueError(
        f"labels: expected each file in a folder named as one of the classes "
        f"{folders.some(class_names)}, received {as_text(os.fspath(path))!r}"
    )


def as_text(name: str) -> str:
    r"""A file's name as text that no other name has; `as_name` is the way back.

    Bytes that are no UTF-8 become \x and two digits, and so that this is not mistaken for a name
    with these letters in it, a backslash becomes two.
    """
    doubled = os.fsencode(name).replace(b"\\", rb"\\")
    return doubled.decode("utf-8", "backslashreplace")


def as_name(text: str) -> str:
    """The file's name that `as_text` turned into this text."""
    plain = re.sub(rb"\\(\\|x[0-9a-f]{2})", _unescaped, text.encode())
    return os.fsdecode(plain)


def _unescaped(match: re.Match[bytes]) -> bytes:
    return match[1] if match[1] == b"\\" else bytes.fromhex(match[1][1:].decode())


def _arrays(path: Path, key: str, class_names: Sequence[str] | None) -> Inputs:
    held: list[str] = []
    if path.suffix.lower() == ".npy":
        if key:
            raise ValueError(f"key: expected it with an npz file, received it with {path}")
        images = arrays.stored_array(path)
    else:
        held = arrays.array_names(path)
        wanted = (key,) if key else _KEYS
        key = next((name for name in wanted if name in held), "")
        if not key:
            hint = "" if len(wanted) == 1 else "; --key=NAME takes another array"
            raise ValueError(
                f"{path}: expected an array {' or '.join(wanted)}, received "
                f"{folders.some(held) or 'no array'}{hint}"
            )
        images = arrays.stored_array(path, key)
    labels = None
    if class_names is not None:
        beside = (f"y{key[1:]}",) if key.startswith("x") else ()
        found = next((name for name in (*beside, *_LABEL_KEYS) if name in held), "")
        if not found:
            raise ValueError(
                f"labels: expected an array {' or '.join(_LABEL_KEYS)} in {path}, received "
                f"{folders.some(held) or 'a file of one array'}"
            )
        labels = arrays.stored_array(path, found)
        _check_labels(labels, images, len(class_names))

    def batches(start: int, size: int) -> Iterator[Batch]:
        truth = labels.batches(start, size) if labels else itertools.repeat(None)
        for piece, true in zip(images.batches(start, size), truth, strict=False):
            rows = range(start, start + len(piece))
            batch = {
                "input": np.array([f"{images.name}[{row}]" for row in rows], object),
                "images": piece,
            }
            if true is not None:
                numbers = input_checks.class_numbers(true, len(class_names or ()))
                batch["labels"] = numbers.reshape(-1).astype(np.int64)
            yield batch
            start += len(piece)

    def verify() -> None:
        images.verify()
        if labels:
            labels.verify()

    about = [images.checksum, images.dtype.str, *map(str, images.shape)]
    return Inputs(
        images.shape[0],
        hashlib.sha256("\n".join(about).encode()).hexdigest(),
        batches,
        f"{path}: {images.name}",
        "rows of the array",
        key,
        images.dtype,
        images.shape[1:],
        label_fingerprint=labels.checksum if labels else "",
        verify=verify,
    )


def _check_labels(labels: StoredArray, images: StoredArray, classes: int) -> None:
    n, name = images.shape[0], f"{labels.path}: {labels.name}"
    is_one_hot = classes > 1 and labels.shape == (n, classes)
    if not is_one_hot and (labels.dtype.kind not in "iu" or labels.shape not in ((n,), (n, 1))):
        raise ValueError(
            f"{name}: expected a whole number for each of the {n} inputs in {images.name}, or "
            f"one-hot labels [{n}, {classes}], received {labels.dtype} {labels.shape}"
        )
    row = 0
    for piece in labels.batches(0, 2**16):
        numbers = input_checks.class_numbers(piece, classes, name).reshape(-1)
        bad = np.flatnonzero((numbers < 0) | (numbers >= classes))
        if len(bad):
            raise ValueError(
                f"{name}: expected classes 0 to {classes - 1}, received {numbers[bad[0]]} in row "
                f"{row + bad[0]}"
            )
        row += len(piece)
