"""CSV files as inputs to be scored: the columns of a model's inputs, by name, batch by batch.

Needs no TensorFlow.
"""

import contextlib
import csv
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.core import wording
from btcp_tf.data import folders

LABELS = ("labels", "label", "y")
"""Usual names of the column of true classes."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Some columns of a CSV file in UTF-8, with the names of the columns in its first line."""

    path: Path
    columns: tuple[str, ...]
    count: int
    """Rows, at least 1."""

    def batches(self, start: int, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Rows from `start` on, at most `size` in each: entries as text, `[m]` by column."""
        with _rows(self.path) as (header, rows):
            known = {name: place for place, name in enumerate(header)}
            places = [known[name] for name in self.columns]
            rest = itertools.islice(rows, start, None)
            while part := list(itertools.islice(rest, size)):
                yield {
                    name: np.array([row[place] for row in part], object)
                    for name, place in zip(self.columns, places, strict=True)
                }


def header_of(path: Path) -> list[str]:
    """Names of the columns of a CSV file; ValueError if it has none."""
    with _rows(path) as (header, _):
        return header


def open_table(path: Path, columns: Sequence[str]) -> Table:
    """Finds columns, and reads all of the file once.

    Raises:
      ValueError: If a column is missing, a row has another number of entries than the first line,
        or there is no row.
    """
    with _rows(path) as (header, rows):
        if missing := [name for name in columns if name not in header]:
            raise ValueError(
                f"{path}: expected the columns {', '.join(columns)}, received "
                f"{folders.some(header)}, without {', '.join(missing)}"
            )
        count = sum(1 for _ in rows)
    if not count:
        raise ValueError(f"{path}: expected at least one row, received none")
    return Table(path, tuple(columns), count)


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


@contextlib.contextmanager
def _rows(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names of the columns, and the rows behind them; ValueError where one is damaged."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        # A text may be longer than the reader's own limit.
        limit = csv.field_size_limit(2**31 - 1)
        try:
            reader = csv.reader(file, strict=True)
            header = [wording.clean(name) for name in next(reader, [])]
            if not header or len({*header}) < len(header):
                received = ", ".join(header) or "none"
                raise ValueError(f"expected different names of columns, received {received}")
            yield header, _complete(reader, len(header))
        except (csv.Error, UnicodeDecodeError, ValueError) as error:
            if str(error).startswith(os.fspath(path)):
                raise
            raise ValueError(f"{path}: {wording.one_line(error)}") from None
        finally:
            csv.field_size_limit(limit)


def _complete(reader: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    """The rows, without empty lines; ValueError for one of another number of entries."""
    for row in reader:
        if row and len(row) != width:
            line = reader.line_num  # type: ignore[attr-defined]
            raise ValueError(f"line {line}: expected {width} entries, received {len(row)}")
        if row:
            yield row
