"""Arguments of functions, checked: one error that names the argument, before any work."""

import contextlib
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def array(name: str, values: ArrayLike) -> np.ndarray:
    """An argument as an array; ValueError, which names it, for rows of different lengths, and where
    entries are masked."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name}: expected numbers, received a masked array; fill in what is masked, or leave "
            "these rows out"
        )
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name}: expected numbers, shape [n], received rows of different lengths"
        ) from None


def group_names(name: str, groups: ArrayLike, rows: int) -> np.ndarray:
    """Groups `[rows]` as whole numbers or strings; ValueError, which names the argument, if they
    are none.

    Example:
      >>> group_names("by", ["ann", "bob"], 2).tolist()
      ['ann', 'bob']
    """
    names = names_array(name, groups)
    if names.dtype.kind not in "biuU":
        raise ValueError(f"{name}: expected whole numbers or strings, received {types_text(names)}")
    if names.shape != (rows,):
        raise ValueError(f"{name}: expected shape [{rows}], received {list(names.shape)}")
    return names


def is_no_name(text: str) -> bool:
    """Whether files take a text for a group that is missing.

    >>> [is_no_name(text) for text in ("", "NaN ", "nancy")]
    [True, True, False]
    """
    return not text.strip() or is_nan(text)


def is_nan(text: str) -> bool:
    """Whether a text is the word nan, by which many programs write what is missing."""
    return text.strip().lower() == "nan"


def refuse_unnamed(name: str, names: np.ndarray) -> None:
    """ValueError unless a model can be told each of the groups, from `group_names`."""
    if names.dtype.kind == "u" and names.size and names.max() >= 2**63:
        raise ValueError(
            f"{name}: expected whole numbers below 2^63, received {names.max()}; give "
            "them as strings"
        )
    if names.dtype.kind == "U":
        for row, one in enumerate(names.tolist()):
            if is_no_name(one) or "\0" in one or not _can_be_written(one):
                raise ValueError(
                    f"{name}: expected a name in every row, received {one!r:.60} in row {row}; "
                    "give rows without a group one of their own"
                )


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def names_array(name: str, values: ArrayLike) -> np.ndarray:
    """As `array`, of names: of text alone the array is of text, and of text beside anything else it
    is one of objects. ValueError where a name is longer than `LONGEST_NAME`: each entry of an array
    of text takes the room of the longest."""
    if isinstance(values, list | tuple):
        _refuse_long(name, values)
    names = array(name, values)
    if names.dtype.kind == "U" and names.dtype.itemsize > 4 * LONGEST_NAME:
        _refuse_long(name, names.flat)
        names = names.astype(f"U{LONGEST_NAME}")
    if names.dtype.kind == "U" and isinstance(values, list | tuple):
        # NumPy makes text of what stands beside text: of nan a group called "nan".
        names = np.array(values, object)
    if names.dtype == object and all(isinstance(one, str) for one in names.flat):
        _refuse_long(name, names.flat)
        names = names.astype(str)
    return names


LONGEST_NAME = 1000
"""Characters that the name of a group may have."""


def long_name(length: int) -> str:
    """What is wrong with a name of so many characters; "": nothing."""
    if length <= LONGEST_NAME:
        return ""
    return (
        f"expected a name of at most {LONGEST_NAME:,} characters, received one of {length:,}; "
        "give a shorter one"
    )


def _refuse_long(name: str, values: Iterable[Any]) -> None:
    for row, one in enumerate(values):
        if isinstance(one, str | bytes) and (wrong := long_name(len(one))):
            raise ValueError(f"{name}: row {row}: {wrong}")


def types_text(values: np.ndarray) -> str:
    """The type of an array's entries, for errors.

    Example:
      >>> types_text(np.array([1.5, "a"], object))
      'float beside str'
    """
    if values.dtype != object:
        return str(values.dtype)
    return " beside ".join(sorted({type(one).__name__ for one in values.flat}))


def number(name: str, value: Any, wanted: str, good: Callable[[float], bool]) -> float:
    """A plain real number as a float; ValueError, which names it, unless it is one and good.

    Text, bool, complex numbers and arrays are none, nor is a number that no float can hold.

    Args:
      name: Name of the argument.
      value: What it is given.
      wanted: What is expected, for the message.
      good: Whether a number is accepted; False for NaN.

    Example:
      >>> number("risk", 1, "a number >= 0", lambda x: x >= 0)
      1.0
    """
    result = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            result = float(value)
    if not good(result):
        raise ValueError(f"{name}: expected {wanted}, received {_shown(value)}")
    return result


def whole_number(name: str, value: Any, wanted: str, low: int, high: float = math.inf) -> int:
    """A whole number from `low` to `high` as an int; ValueError, which names it, unless it is one.

    Args:
      name: Name of the argument.
      value: What it is given; a float is none, whatever its value.
      wanted: What is expected, for the message.
      low: The least that is accepted.
      high: The greatest.

    Example:
      >>> whole_number("draws", 10, "a whole number >= 1", 1)
      10
    """
    whole = not isinstance(value, bool) and isinstance(value, numbers.Integral)
    if not (whole and low <= value <= high):
        raise ValueError(f"{name}: expected {wanted}, received {_shown(value)}")
    return int(value)


def _shown(value: Any) -> str:
    """A value in a message: text in quotes, numbers bare, all of it short and on one line."""
    text = str(value) if isinstance(value, numbers.Real) else repr(value)
    return " ".join(text.split())[:80]


class RowError(ValueError):
    """A row that is not as expected."""

    def __init__(self, expectation: str, value: Any, row: int, remedy: str = "") -> None:
        self.reason = f"{expectation}, received {value}"
        """What is wrong with it."""
        self.row = row
        """Its number, from 0."""
        self.remedy = remedy
        """What to do, after a semicolon; "": that is clear."""
        super().__init__(f"{self.reason} in row {row}{remedy}")


LEAVE_OUT = "; leave the row out, or give it a number"
"""What to do about NaN, or what else is no number, in a column."""


def check_rows(good: np.ndarray, column: np.ndarray, expectation: str, remedy: str = "") -> None:
    """Raises RowError, a ValueError, unless all is good.

    Args:
      good: Whether each row is as expected, [n] bool.
      column: What the rows hold, [n, ...], for the message.
      expectation: What is expected of which column.
      remedy: What to do, after a semicolon.
    """
    if not good.all():
        row = int(np.argmin(good))
        raise RowError(expectation, column[row], row, remedy)


def probability(name: str, value: Any) -> float:
    """A number between 0 and 1, both excluded; see `number`."""
    return number(name, value, "a number between 0 and 1", lambda x: 0 < x < 1)


def share(name: str, value: Any) -> float:
    """A number above 0, at most 1; see `number`."""
    return number(name, value, "a number above 0, at most 1", lambda x: 0 < x <= 1)
