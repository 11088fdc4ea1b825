"""CSV files of any program, row by row: every reader of this package reads them here."""

import codecs
import contextlib
import csv
import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any

from btcp_tf.core import wording

Row = tuple[int, list[str]]
"""The last line of a row, from 1, and its entries, as many as there are columns."""


@dataclasses.dataclass(frozen=True, eq=False)
class CsvFile:
    """A CSV file that is open."""

    names: list[str]
    """Of the columns, cleaned, "" where one has none, perhaps some twice."""
    rows: Iterator[Row]
    """Those behind the names, once."""
    separator: str
    """What stands between entries."""

    @property
    def comma_is_decimal(self) -> bool:
        """Whether a comma in a number can be no other one: programs put something else between
        entries where it stands for the decimal point."""
        return self.separator != ","


_SEPARATORS = ",;\t"
"""The first of them that divides the first line divides all lines."""

_LONGEST_ENTRY = 2**31 - 1  # The reader's own limit is shorter than some texts.


@contextlib.contextmanager
def opened(path: str | os.PathLike, file: str = "") -> Iterator[CsvFile]:
    r"""A CSV file as a context, in which it can be read.

    Commas stand between entries; where the first line has none, semicolons or tabs may. Text is in
    UTF-8, or in UTF-16 with its mark at the start, as spreadsheets save it; bytes that are neither
    become single halves of characters, as in names of files. A row without any entry, as at the end
    of many spreadsheets, is left out, but an empty text in a file of one column stays.

    Args:
      path: The file.
      file: How errors begin; empty: with the path.

    Raises:
      ValueError: If there is no name, one is not UTF-8, or a row is damaged; the message names the
        line.
      OSError: If it cannot be opened.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "a.csv")
      >>> _ = path.write_text('text;age\nsmall, red;"3,5"\n;\n', encoding="utf-16")
      >>> with opened(path) as table:
      ...     table.names, list(table.rows)
      (['text', 'age'], [(2, ['small, red', '3,5'])])
    """
    file = file or os.fspath(path)
    with open(path, newline="", encoding=_encoding(path), errors="surrogateescape") as lines:
        # For all readers of this process: another one may be at work, and none needs less.
        csv.field_size_limit(_LONGEST_ENTRY)
        with _errors_name(file, None):
            first = next(lines, "")
        separator = _separator(first)
        # Strict: an open quote would swallow the rows behind it.
        reader = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
        with _errors_name(file, reader):
            names = list(map(wording.clean, next(reader, [])))
        _check_names(names, file)
        yield CsvFile(names, _complete(reader, len(names), file), separator)


def _encoding(path: str | os.PathLike) -> str:
    with open(path, "rb") as file:
        is_wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return "utf-16" if is_wide else "utf-8-sig"


def _separator(line: str) -> str:
    """What stands between the entries of the first line."""
    for separator in _SEPARATORS:
        # Where a name has a line break, the quote stays open here.
        with contextlib.suppress(csv.Error):
            if len(next(csv.reader([line], delimiter=separator), [])) > 1:
                return separator
    return _SEPARATORS[0]


def _check_names(names: list[str], file: str) -> None:
    for name in names:
        if byte := wording.strange_byte(name):
            raise ValueError(
                f"{file}: expected names in UTF-8, received the byte {byte}; save it anew in UTF-8"
            )
    if not any(names):
        raise ValueError(f"{file}: expected names in the first line, received none")


def _complete(reader: Any, width: int, file: str) -> Iterator[Row]:
    """Rows with an entry; ValueError for one of another number of entries."""
    with _errors_name(file, reader):
        for row in reader:
            if not row or (width > 1 and not any(map(str.strip, row))):
                continue
            if len(row) != width:
                raise ValueError(
                    f"{file}: expected {width} entries, received {len(row)} in line "
                    f"{reader.line_num}; the first line has a name for each, and an entry that "
                    "holds what stands between entries is in double quotes"
                )
            yield reader.line_num, row


@contextlib.contextmanager
def _errors_name(file: str, reader: Any) -> Iterator[None]:
    """Says in which line of the file what cannot be read is; `reader`: None: in the first."""
    try:
        yield
    except (csv.Error, UnicodeDecodeError) as error:
        line = 1 if reader is None else reader.line_num
        raise ValueError(
            f"{file}: expected rows of text, received {wording.one_line(error)} in line {line}"
        ) from None
