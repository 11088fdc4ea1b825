"""Inputs to be scored, in batches: a folder of image files, an npz, an npy or a CSV file.

They are read batch by batch, from any input on, so that memory does not grow with their number.
Needs no TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.core import arrays, files, wording
from btcp_tf.core.arrays import StoredArray
from btcp_tf.data import folders
from btcp_tf.data.arrays import npz_labels, npz_names
from btcp_tf.data.input_checks import first_number, names_from_one
from btcp_tf.evaluation import tabular
from btcp_tf.serving import answers, tables

_KEYS = ("images", "x")

_LABEL_KEYS = ("y_test", "labels", "y")

RESERVED = {"input", "labels", "problem", *answers.ANSWERS, *answers.SECOND}
"""Names of columns that no input can have."""

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
    """Changes where files or arrays change, but for labels."""
    batches: Callable[[int, int], Iterator[Batch]]
    """(first input, batch size) -> batches for `Scorer`, with the names as `input`, and `labels` if
    they were asked for, `UNLABELED` where there is none."""
    what: str
    """How errors name the inputs."""
    order: str
    """A description of the order of the inputs."""
    key: str = ""
    """Name of the array in an npz file."""
    dtype: np.dtype | None = None
    """Type of the array; None for image files, and of several inputs."""
    shape: tuple[int, ...] = ()
    """Shape of one input of the array."""
    named: Mapping[str, tuple[np.dtype, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    """Type and shape of several inputs, by name."""
    label_fingerprint: str = ""
    """Changes where an array of labels changes."""
    note: str = ""
    """Something to tell the user once."""
    verify: Callable[[], None] = lambda: None
    """Reads everything that has a check sum (npz files); ValueError if it is damaged."""


def open_inputs(
    path: str | os.PathLike,
    *,
    key: str = "",
    class_names: Sequence[str] | None = None,
    names: Sequence[str] = (),
    numeric: Collection[str] = (),
    group: str = "",
) -> Inputs:
    """Finds all inputs, without reading them (of a CSV file: reads them once).

    Args:
      path: A folder, of which all visible files are inputs, see `data.files_below`; an npz file, of
        which the array `x_test`, `images` or `x` is taken; an npy file; or a CSV file, of which the
        only column is taken that holds no labels. Arrays are `[n, ...]` in C order.
      key: Name of another array of the npz file, or of a column.
      class_names: The k classes, to add the true class of each input; None adds none. It is the
        name of the folder that a file is in (files in no sub-folder have none); in an
        npz file, an array of whole numbers of any type or of names `[n]` or `[n, 1]`, or one-hot
        `[n, k]`: the one with y for x in its name (`x_test`, `y_test`), or else `y_test`, `labels`
        or `y`; in a CSV file a column of numbers or names, `labels`, `label` or `y`, of which
        entries may be empty.
      names: Of the inputs of a model that has several: the arrays, or columns, of these names are
        taken. None: it has one.
      numeric: Those of the names that are of numbers, not of texts.
      group: Array, or column, with the group of each input, for a model whose thresholds are by
        group; "": there is none.

    Raises:
      FileNotFoundError: If there is nothing at `path`.
      ValueError: If it holds no inputs, or labels that are not of these classes.
    """
    place = files.as_path("input", path).expanduser()
    check_place(place, key, class_names is not None)
    if names and (key or place.suffix.lower() not in (".npz", ".csv")):
        raise ValueError(
            f"input: expected an npz or a CSV file with the inputs {', '.join(names)}, and no key, "
            f"received {place}{f' and {key}' if key else ''}"
        )
    if group and place.exists() and place.suffix.lower() not in (".npz", ".csv"):
        raise ValueError(
            f"input: expected an npz or a CSV file, in which {group} says the group of each input, "
            f"as the model's thresholds are by group, received {place}"
        )
    if place.is_file():
        if place.suffix.lower() == ".csv":
            return _table(place, key, class_names, names, numeric, group)
        return _arrays(place, key, class_names, names, group)
    if not place.is_dir():
        raise FileNotFoundError(
            "input: expected a folder of images, an npz or an npy file, or a CSV file, received "
            f"{os.fspath(path)!r}, which is {'no file' if place.exists() else 'not there'}"
        )
    return _folder(place, class_names)


def check_place(place: Path, key: str, labels: bool) -> None:
    """ValueError for a file of another kind, or what cannot be asked of it; nothing is read."""
    is_array = place.is_file() and place.suffix.lower() == ".npy"
    if place.is_file() and not is_array and place.suffix.lower() not in (".npz", ".csv"):
        raise ValueError(
            "input: expected a folder of images, an npz or an npy file, or a CSV file, received "
            f"{os.fspath(place)!r}"
        )
    if key and (is_array or place.is_dir()):
        raise ValueError(
            f"key: expected it with an npz file or a CSV file, received it with {place}"
        )
    if labels and is_array:
        raise ValueError(
            "labels: expected them with a folder or an npz file, or a CSV file, received them with "
            f"{place}, which holds one array"
        )


def _folder(root: Path, class_names: Sequence[str] | None) -> Inputs:
    labels = None
    if class_names is not None:
        labels = {wording.clean(name): label for label, name in enumerate(class_names)}
    digest, count, unlabeled = hashlib.sha256(), 0, 0
    first = ""
    for name in folders.files_below(root):
        with contextlib.suppress(OSError):
            stat = os.stat(root / name)
            digest.update(f"{stat.st_size} {stat.st_mtime_ns} ".encode())
        digest.update(os.fsencode(name) + b"\0")
        count += 1
        if labels is not None and _sub_folder(name) not in labels:
            if "/" in name:
                raise _unknown_class(labels, root / name)
            first, unlabeled = first or name, unlabeled + 1
    if not count:
        raise ValueError(f"{root}: expected image files, received none")
    if labels is not None and unlabeled == count:
        raise _unknown_class(labels, root / first)
    note = ""
    if unlabeled:
        more = f" and {unlabeled - 1:,} more files" if unlabeled > 1 else ""
        note = f"{as_text(first)!r}{more} in no class's folder: without a label"
    return Inputs(
        count,
        digest.hexdigest(),
        lambda start, size: _folder_batches(root, labels, start, size),
        os.fspath(root),
        "names of files, folder by folder, by code points",
        note=note,
    )


def _folder_batches(
    root: Path, labels: Mapping[str, int] | None, start: int, size: int
) -> Iterator[Batch]:
    names = itertools.islice(folders.files_below(root), start, None)
    while part := list(itertools.islice(names, size)):
        batch = {
            "input": np.array([as_text(name) for name in part], object),
            "files": np.array([os.fspath(root / name) for name in part], object),
        }
        if labels is not None:
            numbers = [labels.get(_sub_folder(name), UNLABELED) for name in part]
            batch["labels"] = np.array(numbers, np.int64)
        yield batch


def _sub_folder(name: str) -> str:
    return wording.clean(os.path.basename(os.path.dirname(name)))


def _unknown_class(class_names: Iterable[str], path: Path) -> ValueError:
    return ValueError(
        f"labels: expected each file in a folder named as one of the classes "
        f"{folders.some(list(class_names))}, received {as_text(os.fspath(path))!r}"
    )


def as_text(name: str) -> str:
    r"""A file's name as text that no other name has; `as_name` is its inverse.

    Bytes that are not UTF-8 become \x and two digits; a backslash becomes two, so that a name with
    these very letters is another one.

    Example:
      >>> print(as_text("caf\udce9.png"), as_text(r"caf\xe9.png"))
      caf\xe9.png caf\\xe9.png
    """
    doubled = os.fsencode(name).replace(b"\\", rb"\\")
    return doubled.decode("utf-8", "backslashreplace")


def as_name(text: str) -> str:
    r"""The file's name that `as_text` turned into a text.

    Example:
      >>> as_name(r"caf\xe9.png")
      'caf\udce9.png'
    """

    def plain(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[2].decode()) if match[2] else b"\\"

    return os.fsdecode(re.sub(rb"\\(\\|x([0-9a-f]{2}))", plain, text.encode()))


def _arrays(
    path: Path, key: str, class_names: Sequence[str] | None, names: Sequence[str], group: str
) -> Inputs:
    known: list[str] = []
    if path.suffix.lower() == ".npz":
        known = arrays.array_names(path)
        key = "" if names else _image_key(path, known, key)
    wanted = [*names, *[group] * bool(group)]
    if missing := [name for name in wanted if name not in known]:
        raise ValueError(
            f"{path}: expected the arrays {', '.join(wanted)}, received "
            f"{folders.some(known) or 'no array'}, without {', '.join(missing)}"
        )
    stored = {
        name: arrays.stored_array(path, name or key, text=True)
        for name in (*(names or ("",)), *wanted[len(names) :])
    }
    first = next(iter(stored.values()))
    for array in stored.values():
        if len(array) != len(first):
            raise ValueError(
                f"{path}: expected as many rows in each input, received {len(first):,} in "
                f"{first.name} and {len(array):,} in {array.name}"
            )
    labels = None
    if class_names is not None:
        own = arrays.stored_array(path, _label_key(path, known, key), text=True)
        labels = _Labels(own, first, class_names)

    def verify() -> None:
        for array in (*stored.values(), labels.stored) if labels else stored.values():
            array.verify()

    content = [
        text
        for array in stored.values()
        for text in (array.checksum, array.dtype.str, *map(str, array.shape))
    ]
    return Inputs(
        len(first),
        hashlib.sha256("\n".join(content).encode()).hexdigest(),
        lambda start, size: _array_batches(stored, labels, start, size),
        f"{path}: {', '.join(names) or first.name}",
        "rows of the array" if not names else "rows of the arrays",
        key,
        None if names else first.dtype,
        () if names else first.shape[1:],
        {name: (stored[name].dtype, stored[name].shape[1:]) for name in names},
        label_fingerprint=labels.stored.checksum if labels else "",
        verify=verify,
    )


def _table(
    path: Path,
    key: str,
    class_names: Sequence[str] | None,
    names: Sequence[str],
    numeric: Collection[str],
    group: str,
) -> Inputs:
    key = "" if names else tables.only_column(path, key, group)
    columns, labels = [*(names or [key]), *[group] * bool(group)], ""
    if class_names is not None:
        labels = tables.label_column(path)
    table = tables.open_table(path, [*columns, *[labels] * bool(labels)], numeric)
    numbers = {}
    if class_names is not None:
        numbers = {wording.clean(name): label for label, name in enumerate(class_names)}
        if list(numbers) != names_from_one(len(numbers)):  # A 0 would count from elsewhere.
            numbers = {str(label): label for label in numbers.values()} | numbers
    stat, text = path.stat(), np.dtype(object)

    def batches(start: int, size: int) -> Iterator[Batch]:
        for rows in table.batches(start, size):
            count = len(next(iter(rows.values())))
            row_names = [f"{path.stem}[{row}]" for row in range(start, start + count)]
            batch = {"input": np.array(row_names, object)}
            batch |= {name: rows[name] for name in names} or {"images": rows[key]}
            batch |= {group: rows[group]} if group else {}
            if labels:
                batch["labels"] = _classes(path, labels, rows[labels], numbers, start)
            yield batch
            start += count

    if labels:
        for _ in batches(0, 2**16):
            pass
    content = f"{stat.st_size} {stat.st_mtime_ns} {columns}"
    return Inputs(
        table.count,
        hashlib.sha256(content.encode()).hexdigest(),
        batches,
        f"{path}: {', '.join(columns)}",
        "rows of the table",
        key,
        None if names else text,
        (),
        {name: (text, ()) for name in names},
        label_fingerprint=labels,
    )


def _classes(
    path: Path, column: str, entries: np.ndarray, numbers: Mapping[str, int], start: int
) -> np.ndarray:
    """Class numbers of the entries of a column; `UNLABELED` where one is empty or NaN."""
    labels = np.full(len(entries), UNLABELED, np.int64)
    for row, entry in enumerate(map(wording.clean, entries)):
        label = numbers.get(entry)
        if label is None and (number := _written_class(entry)):
            label = numbers.get(number)
        if label is None and entry and not tabular.is_missing(entry):
            raise ValueError(
                f"{path}: {column}: expected one of the classes {folders.some(list(numbers))}, "
                f"received {entry!r} in row {start + row}"
            )
        labels[row] = UNLABELED if label is None else label
    return labels


def _written_class(entry: str) -> str:
    """The number of a class as it is usually written: 2 for 2.0; "": it is none."""
    try:
        return str(tabular.class_number(entry))
    except ValueError:
        return ""


def _image_key(path: Path, names: Sequence[str], key: str) -> str:
    """The name of the array of inputs in an npz file: `key`, or one of the usual names."""
    wanted = (key,) if key else (npz_names(path, names).get("x_test", "x_test"), *_KEYS)
    for name in wanted:
        if name in names:
            return name
    raise ValueError(
        f"{path}: expected an array {' or '.join(wanted)}, received "
        f"{folders.some(names) or 'no array'}" + ("" if key else "; --key=NAME takes another array")
    )


def _label_key(path: Path, names: Sequence[str], key: str) -> str:
    """The name of the array of labels: y_test beside x_test, or one of the usual names."""
    own_names = npz_names(path, names)
    part = next((own[1:] for own, name in own_names.items() if name == key), key[1:])
    for name in (own_names.get(f"y{part}", f"y{part}"), *_LABEL_KEYS):
        if name in names:
            return name
    raise ValueError(
        f"labels: expected an array {' or '.join(_LABEL_KEYS)} in {path}, received "
        f"{folders.some(names) or 'a file of one array'}"
    )


def _array_batches(
    stored: Mapping[str, StoredArray], labels: "_Labels | None", start: int, size: int
) -> Iterator[Batch]:
    """`stored`: by name of the input, "" where there is one."""
    first = next(iter(stored.values()))
    called = first.path.stem if len(stored) > 1 else first.name
    label_batches = labels.batches(start, size) if labels else itertools.repeat(None)
    parts = zip(*(array.batches(start, size) for array in stored.values()), strict=True)
    for rows, row_labels in zip(parts, label_batches, strict=False):
        names = [f"{called}[{row}]" for row in range(start, start + len(rows[0]))]
        batch = {"input": np.array(names, object)}
        batch |= {name or "images": one for name, one in zip(stored, rows, strict=True)}
        if row_labels is not None:
            batch["labels"] = row_labels
        yield batch
        start += len(rows[0])


class _Labels:
    """The true classes of an array of inputs, as an npz file has them beside it."""

    def __init__(
        self, stored: StoredArray, images: StoredArray, class_names: Sequence[str]
    ) -> None:
        """Reads all of them once; ValueError if they are not of these inputs and classes."""
        self.stored = stored
        self._images, self._name = images.name, f"{stored.path}: {stored.name}"
        self._numbers = {wording.clean(name): label for label, name in enumerate(class_names)}
        n, k = len(images), len(class_names)
        if stored.shape not in ((n,), (n, 1), (n, k)):
            raise ValueError(
                f"{self._name}: expected a whole number for each of the {n} inputs in "
                f"{images.name}, the name of its class, or one-hot labels [{n}, {k}], received "
                f"{stored.dtype} {list(stored.shape)}"
            )
        self._first = 0
        if stored.shape != (n, k) and list(self._numbers) == names_from_one(k):
            parts = (self._given(rows) for rows in stored.batches(0, 2**16))
            ends = [
                part[[part.argmin(), part.argmax()]] for part in parts if part.dtype.kind != "U"
            ]
            if ends:
                self._first = first_number(np.concatenate(ends), class_names, self._name)
        for _ in self.batches(0, 2**16):
            pass

    def _given(self, rows: np.ndarray) -> np.ndarray:
        return npz_labels(self._name, rows, self._images, len(rows))

    def batches(self, start: int, size: int) -> Iterator[np.ndarray]:
        """Class numbers int64 `[<= size]` of the inputs from `start` on."""
        for rows in self.stored.batches(start, size):
            labels = self._given(rows)
            numbers = labels
            if labels.dtype.kind != "U":
                numbers = labels - self._first
            else:
                known = [self._numbers.get(word, UNLABELED) for word in labels.tolist()]
                numbers = np.array(known, np.int64)
            bad = np.flatnonzero((numbers < 0) | (numbers >= len(self._numbers)))
            if len(bad):
                raise self._error(labels[bad[0]].item(), start + int(bad[0]))
            yield numbers
            start += len(rows)

    def _error(self, label: int | str, row: int) -> ValueError:
        """Of a label that is no class."""
        last, remedy = len(self._numbers) - 1, ""
        wanted = f"one of the classes {folders.some(list(self._numbers))}"
        if not isinstance(label, str):
            wanted = f"classes 0 to {last}"
            remedy = "; subtract 1 if they count from 1" * (label == last + 1)
        return ValueError(
            f"{self._name}: expected {wanted}, received {label!r} in row {row}{remedy}"
        )
