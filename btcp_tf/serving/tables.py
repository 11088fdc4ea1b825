"""CSV files as inputs to be scored: the columns of a model's inputs, by name, batch by batch.

Needs no TensorFlow.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.core import csv_files, wording
from btcp_tf.data import folders

LABELS = ("labels", "label", "y")
"""Usual names of the column of true classes."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Some columns of a CSV file, see `core.csv_files`."""

    path: Path
    columns: tuple[str, ...]
    numbers: frozenset[str]
    """Columns in which a comma of a semicolon file is written as a decimal point."""
    count: int
    """Rows, at least 1."""

    def batches(self, start: int, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Rows from `start` on, at most `size` in each: entries as text, `[m]` by column."""
        with csv_files.opened(self.path) as table:
            places = {name: table.names.index(name) for name in self.columns}
            comma = self.numbers if table.comma_is_decimal else ()
            rest = itertools.islice(table.rows, start, None)
            while part := list(itertools.islice(rest, size)):
                batch = {name: [row[place] for _, row in part] for name, place in places.items()}
                for name in comma:
                    batch[name] = [entry.replace(",", ".") for entry in batch[name]]
                yield {name: np.array(entries, object) for name, entries in batch.items()}


def header_of(path: Path) -> list[str]:
    """Names of the columns of a CSV file that have one; ValueError if none has."""
    with csv_files.opened(path) as table:
        return [*filter(None, table.names)]


def open_table(path: Path, columns: Sequence[str], numbers: Collection[str] = ()) -> Table:
    """Finds columns, and reads all of the file once.

    Args:
      path: The file.
      columns: Their names.
      numbers: Those of them that hold numbers.

    Raises:
      ValueError: If a column is missing or there are two, one of its entries is not UTF-8, a row
        has another number of entries than the first line, or there is no row.
    """
    with csv_files.opened(path) as table:
        header = table.names
        if missing := [name for name in columns if name not in header]:
            raise ValueError(
                f"{path}: expected the columns {', '.join(columns)}, received "
                f"{folders.some(header)}, without {', '.join(missing)}"
            )
        if twice := [name for name in columns if header.count(name) > 1]:
            raise ValueError(
                f"{path}: expected one column {twice[0]}, received {header.count(twice[0])}"
            )
        places, count = {header.index(name): name for name in columns}, 0
        for line, row in table.rows:
            count += 1
            for place, name in places.items():
                if byte := wording.strange_byte(row[place]):
                    raise ValueError(
                        f"{path}: {name}: expected text in UTF-8, received the byte {byte} in line "
                        f"{line}; save the file anew in UTF-8"
                    )
    if not count:
        raise ValueError(f"{path}: expected at least one row, received none")
    return Table(path, tuple(columns), frozenset(numbers), count)


def only_column(path: Path, key: str, group: str = "") -> str:
    """The column of a model of one input: `key`, or the only one that holds neither labels nor, in
    `group`, groups."""
    if key:
        return key
    header = header_of(path)
    others = [name for name in header if name not in (*LABELS, group)]
    if len(others) == 1:
        return others[0]
    raise ValueError(
        f"{path}: expected one column of inputs, as the model has one input, received "
        f"{folders.some(header)}; --key=NAME takes one of them; where all of them together are one "
        "input, give them as an array: "
        'numpy.save("x.npy", numpy.ascontiguousarray('
        f'pandas.read_csv("{path.name}"), "float32"))'
    )


def label_column(path: Path) -> str:
    """The column of true classes; ValueError if there is none of the usual names."""
    header = header_of(path)
    for name in LABELS:
        if name in header:
            return name
    raise ValueError(
        f"labels: expected a column {' or '.join(LABELS)} in {path}, received "
        f"{folders.some(header)}"
    )
