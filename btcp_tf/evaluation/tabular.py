"""Files of rows, .csv, .jsonl and .parquet, read as columns; every error names the place.

Which columns a file must have is up to the caller: `evaluation.predictions`, `decisions.scores`.
So is what an entry is: it is read as a number, a class, a time or a text where a column is used as
one, and what nobody uses may hold anything.
"""

# CSV and JSONL are read with Python's own readers. pyarrow's, which are faster, do not say in which
# line an entry stands that is no number, refuse a column that is a number in one row and text in
# another, and know neither names of files that are not UTF-8 nor where a quoted entry has lines.

import collections
import contextlib
import dataclasses
import datetime
import decimal
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf.core import checks, csv_cells, csv_files, json_files, wording
from btcp_tf.core.checks import LEAVE_OUT

ENDINGS = (".csv", ".jsonl", ".parquet")
"""How the names of files end that can be read."""

_PROBABILITY = re.compile(r"probs_[0-9]+")

# So many digits fit an int64. Programs that know no missing whole number write 2.0 for 2.
# Three digits behind a comma may as well be thousands.
_CLASS_NUMBER = re.compile(r"\s*\+?([0-9]{1,18})([.]0*|,0{0,2})?\s*", re.ASCII)

_DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?\s*", re.ASCII)

_THOUSANDS = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+\s*", re.ASCII)

# Of dates that start with the year, which alone leave no doubt which number is the day.
_DATE = re.compile(r"([0-9]{4})([-/.])([0-9]{1,2})\2([0-9]{1,2})(?![0-9])", re.ASCII)

_FRACTION = re.compile(r":[0-9]{2}[.,][0-9]{6}([0-9]{1,3})", re.ASCII)

_EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a file of n rows, n > 0."""

    file: str
    """How errors begin."""
    names: tuple[str, ...]
    """All columns of the file, each once."""
    values: Mapping[str, list[Any]]
    """Those that were asked for, `[n]` each, entries as they are in the file, but for times of
    Parquet, which are ISO 8601 text, and cells that `csv_cells.safe` made safe; None: empty."""
    places: Sequence[int]
    """Line of each row, `[n]`, from 1; where `unit` is "row" its number, from 0."""
    unit: str
    text_only: bool
    """Whether every entry is text, even one of a number, as in CSV."""
    classes: int | None
    """Number of class probabilities, in `probs_0`, `probs_1`, … or a list `probs`; None: none."""
    twice: tuple[str, ...] = ()
    """Names that several columns have, which are left out."""
    comma_is_decimal: bool = False
    """Whether no comma separates thousands, as in a CSV with semicolons between entries."""

    def __len__(self) -> int:
        return len(self.places)

    def require(self, *names: str) -> None:
        """ValueError unless the file has these columns."""
        for name in names:
            if name not in self.names:
                received = ", ".join(map(shown, self.names)) or "none"
                raise ValueError(f"{self.file}: expected the column {name}, received {received}")

    def place(self, row: int) -> str:
        """Where a row is in the file, such as "in line 2"."""
        return f"in {self.unit} {self.places[row]}"

    def answered(self) -> "Columns":
        """The rows without a `problem`, where that column was read; ValueError if none is left."""
        problems: Sequence[Any] = self.values.get("problem", ())
        kept = [row for row, problem in enumerate(problems) if not problem or is_missing(problem)]
        if len(kept) == len(problems):
            return self
        if not kept:
            raise ValueError(
                f"{self.file}: expected a row with an answer, received {len(problems)} with a "
                f"problem: {shown(problems[0])}"
            )
        return self.taken(kept)

    def taken(self, rows: Sequence[int]) -> "Columns":
        """These rows alone, at least one, by their numbers from 0."""
        values = {name: [column[row] for row in rows] for name, column in self.values.items()}
        return dataclasses.replace(self, values=values, places=[self.places[row] for row in rows])

    def converted(
        self, name: str, convert: Callable[[Any], Any], wanted: str, remedy: str = ""
    ) -> list[Any]:
        """A column, each entry converted, `[n]`.

        Args:
          name: A column in `values`.
          convert: Entry → anything; its ValueError, TypeError, OverflowError or KeyError becomes
            one that says `wanted` and where the entry is.
          wanted: What is expected of an entry.
          remedy: What to do about another, after a semicolon.
        """
        result: list[Any] = []
        try:
            for value in self.values[name]:
                result.append(convert(value))
        except (ValueError, TypeError, OverflowError, KeyError):
            raise self._error(name, wanted, len(result), remedy) from None
        return result

    def numbers(self, name: str) -> np.ndarray:
        """A column of finite numbers, `[n]` float64; else ValueError.

        In a CSV, a comma is a decimal one unless all commas of the column may separate thousands
        and commas stand between entries, too.
        """
        wanted, convert = "a finite number", self._number_of(name)
        values = np.array(self.converted(name, convert, wanted, LEAVE_OUT), np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise self._error(name, wanted, int(bad[0]), LEAVE_OUT)
        return values

    def has_numbers(self, name: str) -> bool:
        """Whether any entry of a column is a number, finite or not."""
        convert = self._number_of(name)
        for value in self.values[name]:
            try:
                convert(value)
            except (ValueError, TypeError, OverflowError):
                continue
            return True
        return False

    def _number_of(self, name: str) -> Callable[[Any], float]:
        """What makes a number of an entry of a column."""
        if not self.text_only:
            return _number
        if self.comma_is_decimal:
            return _number_with_comma
        with_comma = [value for value in self.values[name] if value and "," in value]
        return wording.number if all(map(_THOUSANDS.fullmatch, with_comma)) else _number_with_comma

    def truths(self, name: str) -> np.ndarray | None:
        """A column of true and false, `[n]` bool; None where no row has one."""
        if all(value is None for value in self.values.get(name, ())):
            return None
        return np.array(self.converted(name, truth, "true or false"), bool)

    def texts(self, name: str) -> list[str]:
        """A column of text, `[n]`; a whole number that was stored as 2.0 is 2."""
        return [
            str(int(value) if isinstance(value, float) and value.is_integer() else value)
            for value in self.values[name]
        ]

    def groups(self, name: str, missing: str = "") -> np.ndarray:
        """A column of groups, such as sites, `[n]` text; `missing` where one is missing, ValueError
        without."""
        self.require(name)
        without = list(map(is_missing, self.values[name]))
        if any(without) and not missing:
            raise self._error(name, "a group", without.index(True))
        texts = self.texts(name)
        for row, text in enumerate(texts):
            if wrong := checks.long_name(len(text)):
                raise ValueError(f"{self.file}: {name}: {wrong} {self.place(row)}")
        pairs = zip(without, texts, strict=True)
        return np.array([missing if none else text for none, text in pairs])

    def class_numbers(self, name: str, numbers: Mapping[str, int] | None = None) -> np.ndarray:
        """A column of classes, whole numbers from 0 on or names that `numbers` has, `[n]` int64;
        else ValueError."""
        convert, wanted = class_reader(numbers or {})
        return np.array(self.converted(name, convert, wanted), np.int64)

    def numbers_by_class_name(self) -> dict[str, int]:
        """The number of a class by its name, where `class_name` beside `predicted` tells it; empty
        where a name has two numbers."""
        columns = (self.values.get(name, ()) for name in ("class_name", "predicted"))
        pairs = set()
        for name, number in zip(*columns, strict=False):
            with contextlib.suppress(ValueError):
                if not is_missing(name):
                    pairs.add((wording.clean(str(name)), class_number(number)))
        numbers = dict(sorted(pairs, key=lambda pair: pair[1]))
        return numbers if len(numbers) == len(pairs) else {}

    def probabilities(self) -> np.ndarray | None:
        """Class probabilities, `[n, classes]` float64, not checked to be any; None: there are none.

        Raises:
          ValueError: If a number is missing or none, or not all rows have as many.
        """
        if "probs" in self.values and self.text_only:
            raise ValueError(
                f"{self.file}: expected class probabilities as a column for each, probs_0, probs_1 "
                "and so on, as this format has no lists, received a column probs"
            )
        if "probs" in self.values:
            size = max(self.classes or 0, 2)

            def numbers(value: Any) -> list[float]:
                if not isinstance(value, list) or len(value) != size:
                    raise ValueError
                return list(map(_number, value))

            return np.array(self.converted("probs", numbers, f"a list of {size} numbers"))
        names = [name for name in self.values if _PROBABILITY.fullmatch(name)]
        expected = [f"probs_{number}" for number in range(len(names))]
        if set(names) != set(expected):
            raise ValueError(
                f"{self.file}: expected class probabilities {expected[0]} to {expected[-1]}, "
                f"received {', '.join(names)}"
            )
        if len(names) == 1:
            raise ValueError(
                f"{self.file}: expected class probabilities of at least two classes, probs_0 and "
                "probs_1, received probs_0 alone; of two classes, probs_0 is 1 - probs_1"
            )
        return np.stack([self.numbers(name) for name in expected], axis=1) if names else None

    def times(self, name: str) -> np.ndarray:
        """The places of a column of points in time in their order, `[n]` float64 from 0 on.

        All are numbers, such as Unix seconds, or all are ISO 8601 dates, with time or without, all
        with a time zone or none. Parquet's own dates are those. Nanoseconds count.

        Raises:
          ValueError: If an entry is missing, is none of these, or not of the kind of the first one;
            the message names its line.
        """
        wanted = "a time: ISO 8601, such as 2024-05-31T12:00:00Z, or a number such as Unix seconds"
        times = self.converted(name, _time, wanted)
        first, _ = times[0]
        for row, (kind, _) in enumerate(times):
            if kind != first:
                raise self._error(name, f"{first} as {self.place(0)}", row)
        moments = sorted({moment for _, moment in times})
        place_of = {moment: place for place, moment in enumerate(moments)}
        return np.array([place_of[moment] for _, moment in times], np.float64)

    def _error(self, name: str, wanted: str, row: int, remedy: str = "") -> ValueError:
        value = self.values[name][row]
        received = "none" if value is None else repr(value)
        return ValueError(
            f"{self.file}: {name}: expected {wanted}, received {received} {self.place(row)}{remedy}"
        )


def is_table(path: str | os.PathLike) -> bool:
    """Whether a file's name ends as those that `read` reads."""
    return os.path.splitext(path)[1].lower() in ENDINGS


def is_probability(name: str) -> bool:
    """Whether a column holds class probabilities."""
    return name == "probs" or _PROBABILITY.fullmatch(name) is not None


def is_missing(value: Any) -> bool:
    """Whether an entry stands for none: null, NaN, or the word nan.

    Example:
      >>> [is_missing(value) for value in (None, float("nan"), "NaN", "", 0)]
      [True, True, True, False, False]
    """
    text = isinstance(value, str) and checks.is_nan(value)
    return value is None or text or (isinstance(value, float) and math.isnan(value))


def class_number(value: Any) -> int:
    """A number of a class, in [0, 2^63), from an entry of a file; 2.0 is 2.

    Raises:
      ValueError: If it is none, such as 1.5.

    Example:
      >>> class_number("2.0"), class_number(2.0), class_number(" 2 ")
      (2, 2, 2)
    """
    if isinstance(value, str) and (match := _CLASS_NUMBER.fullmatch(value)):
        return int(match[1])
    whole = value
    if isinstance(value, float | decimal.Decimal) and math.isfinite(value):
        whole = int(value)
    if type(whole) is int and whole == value and 0 <= whole < 2**63:
        return whole
    raise ValueError(f"expected a class number, received {value!r}")


def class_reader(numbers: Mapping[str, int]) -> tuple[Callable[[Any], int], str]:
    """What makes a class number of an entry of a file, and what it expects.

    Args:
      numbers: By name of a class its number; a number is one even if a class is called so.
    """
    if not numbers:
        return class_number, "a class number"

    def convert(value: Any) -> int:
        try:
            return class_number(value)
        except ValueError:
            return numbers[wording.clean(value) if isinstance(value, str) else value]

    return convert, f"a class number or one of {', '.join([*numbers][:5])}" + (
        ", ..." if len(numbers) > 5 else ""
    )


def truth(value: Any) -> bool:
    """Whether an answer is accepted, from an entry of a file: true, false, 1 or 0; 1.0 is 1.

    Raises:
      ValueError: If it is none of these.
    """
    meanings = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
    text = str(value).strip().lower()
    if type(value) not in (bool, int, float, str) or text not in meanings:
        raise ValueError(f"expected true or false, received {value!r}")
    return meanings[text]


def _number(value: Any) -> float:
    if type(value) not in (int, float, decimal.Decimal):
        raise ValueError(f"expected a number, received {value!r}")
    return float(value)


def written_number(text: str) -> float:
    """The number of an entry of a CSV by itself, with a decimal point or comma.

    Raises:
      ValueError: If it is none, or its commas may as well separate thousands.

    Example:
      >>> written_number("0,25"), written_number("0.25")
      (0.25, 0.25)
    """
    return wording.number(text) if _THOUSANDS.fullmatch(text) else _number_with_comma(text)


def _number_with_comma(text: str) -> float:
    return wording.number(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text)


def _time(value: Any) -> tuple[str, float]:
    """The kind of a point in time, and what puts it in order, exactly: a number as it is, of a date
    its nanoseconds; ValueError if it is none."""
    if isinstance(value, str):
        try:
            number = wording.number(value)
            value = int(value) if value.strip().lstrip("+-").isdecimal() else number
        except ValueError:
            return _moment(value.strip())
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return "a number", value
    raise ValueError(f"expected a time, received {value!r}")


def _moment(text: str) -> tuple[str, int]:
    """Whether an ISO 8601 date has a time zone, and its nanoseconds."""

    def iso(date: re.Match[str]) -> str:
        return f"{date[1]}-{int(date[3]):02}-{int(date[4]):02}"

    if date := _DATE.match(text):
        text = iso(date) + text[date.end() :]
    fraction = _FRACTION.search(text)
    moment = datetime.datetime.fromisoformat(text.replace(" UTC", "Z"))
    # Without a zone, the local one would make the order hang on the machine.
    since = moment - _EPOCH.replace(tzinfo=moment.tzinfo and datetime.UTC)
    nanoseconds = since // datetime.timedelta(microseconds=1) * 1000
    # Python's own times end at microseconds.
    nanoseconds += int(fraction[1].ljust(3, "0")) if fraction else 0
    return f"a time with{'out' * (moment.tzinfo is None)} a time zone", nanoseconds


def shown(name: object) -> str:
    """A name as it can be printed: one that is not UTF-8 with its bytes in hexadecimal."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def read(
    path: str | os.PathLike,
    wanted: Collection[str] | None = None,
    *,
    probabilities: bool = False,
    file: str = "",
) -> Columns:
    """Reads a file row by row, and keeps the columns that are wanted.

    Args:
      path: .csv: see `core.csv_files`; columns without a name, or that share one, are left out.
        .jsonl: one object a line. .parquet: columns of numbers, text, true and false, dates and
        times, and the lists `probs`.
      wanted: Names of the columns to keep, as far as they are there; None: all.
      probabilities: Whether to keep class probabilities, too, where `wanted` does not name them.
      file: How errors begin; empty: with the path.

    Raises:
      ValueError: If it is no such file, or has no row; the message names the line.
      OSError: If it cannot be opened.
    """
    file = file or os.fspath(path)
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    reader = readers.get(os.path.splitext(path)[1].lower())
    if reader is None:
        raise ValueError(f"{file}: expected a file that ends in {', '.join(ENDINGS)}")

    def keep(name: str) -> bool:
        return wanted is None or name in wanted or (probabilities and is_probability(name))

    needed = set(wanted or ()) - {"input", "class_name", "problem"}
    columns = reader(path, keep, file, needed)
    if not len(columns):
        raise ValueError(f"{file}: expected at least one row, received none")
    return columns


def _read_csv(
    path: str | os.PathLike, keep: Callable[[str], bool], file: str, needed: Collection[str]
) -> Columns:
    places: list[int] = []
    with csv_files.opened(path, file) as table:
        header, comma = table.names, table.comma_is_decimal
        times = collections.Counter(filter(None, header))
        twice = tuple(name for name, count in times.items() if count > 1)
        for name in twice:
            if name in {*needed, *_ROLES, "input"} or is_probability(name):
                raise ValueError(
                    f"{file}: expected one column {shown(name)}, received {times[name]}"
                )
        names = tuple(name for name in times if name not in twice)
        values: dict[str, list[Any]] = {name: [] for name in names if keep(name)}
        place = {name: index for index, name in enumerate(header)}
        kept = [(place[name], column) for name, column in values.items()]
        for line, row in table.rows:
            for index, column in kept:
                column.append(csv_cells.plain(row[index]) or None)
            places.append(line)
    classes = sum(_PROBABILITY.fullmatch(name) is not None for name in names)
    return Columns(file, names, values, places, "line", True, classes or None, twice, comma)


def _read_jsonl(
    path: str | os.PathLike, keep: Callable[[str], bool], file: str, needed: Collection[str]
) -> Columns:
    names: dict[str, None] = {}
    values: dict[str, list[Any]] = {}
    places: list[int] = []
    classes = None
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = _json_object(line, number, file)
            if not row.keys() <= names.keys():
                for name in row:
                    if name not in names and keep(name):
                        values[name] = [None] * len(places)
                names |= dict.fromkeys(row)
            for name, column in values.items():
                column.append(row.get(name))
            if classes is None and isinstance(row.get("probs"), list):
                classes = len(row["probs"])
            places.append(number)
    return Columns(file, tuple(names), values, places, "line", False, classes)


def _json_object(line: bytes, number: int, file: str) -> dict[str, Any]:
    try:
        row = json_files.parse(line.decode("utf-8-sig"))
        received = type(row).__name__
    except UnicodeDecodeError as error:
        row, received = None, f"the byte {line[error.start]:#04x}, which is not UTF-8,"
    except (ValueError, RecursionError) as error:
        row, received = None, str(error)
    if not isinstance(row, dict):
        raise ValueError(f"{file}: expected a JSON object, received {received} in line {number}")
    return row


def _read_parquet(
    path: str | os.PathLike, keep: Callable[[str], bool], file: str, needed: Collection[str]
) -> Columns:
    import pyarrow
    from pyarrow import parquet

    classes = None
    with open(path, "rb") as content:
        try:
            with parquet.ParquetFile(content) as table:
                names = tuple(table.schema_arrow.names)
                if not names or len(set(names)) < len(names):
                    raise ValueError(
                        f"{file}: expected names, each once, received {', '.join(names) or 'none'}"
                    )
                fields = [table.schema_arrow.field(name) for name in names]
                useless = {field.name: field.type for field in fields if not _has_a_role(field)}
                for name, kind in useless.items():
                    if keep(name) and (name in needed or name in _ROLES):
                        raise ValueError(
                            f"{file}: {name}: expected numbers or text, received {kind}"
                        )
                names = tuple(name for name in names if name not in useless)
                values: dict[str, list[Any]] = {name: [] for name in names if keep(name)}
                for batch in table.iter_batches(columns=list(values)):
                    for name, column in values.items():
                        column += _entries(batch[name])
                rows = table.metadata.num_rows
                if "probs" in names:
                    classes = _list_length(table)
        except (pyarrow.ArrowException, OSError, TypeError, UnicodeDecodeError) as error:
            received = wording.one_line(error)
            raise ValueError(f"{file}: expected a Parquet file, received {received}") from None
    return Columns(file, names, values, range(rows), "row", False, classes)


_ROLES = ("labels", "predicted", "accept", "groups")
"""Columns that say something of each answer, whatever is asked for."""


def _has_a_role(field: Any) -> bool:
    """Whether a column of this type can be used as anything: not so pixels, say."""
    from pyarrow import types

    if types.is_nested(field.type):
        return field.name == "probs"
    is_other = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return not any(test(field.type) for test in (*is_other, types.is_duration, types.is_time))


def _entries(column: Any) -> list[Any]:
    """The entries of a column of Parquet; of times their text, as Python's own times have neither
    nanoseconds nor all years."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type):
        if column.type.tz:
            column = column.cast(pyarrow.timestamp(column.type.unit, "UTC"))
        column = column.cast(pyarrow.string())
    elif pyarrow.types.is_date(column.type):
        column = column.cast(pyarrow.string())
    return column.to_pylist()


def _list_length(table: Any) -> int | None:
    """Length of the first list in the column `probs`; a row without an answer has none."""
    for batch in table.iter_batches(columns=["probs"], batch_size=1024):
        for value in batch["probs"]:
            if value.as_py() is not None:
                return len(value.as_py())
    return None
