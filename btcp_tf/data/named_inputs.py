"""Inputs of a model: one array of n samples, or several of the same n samples, by name.

All that is done with the inputs of a classifier is done with either of them through these
functions. No TensorFlow here.
"""

import keyword
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from btcp_tf.data import overlaps

Inputs = Any
"""An array `[n, ...]`, or a dictionary of such arrays by name."""


def is_named(x: Any) -> bool:
    """Whether these are several inputs by name: a dictionary, the arrays of an npz file, …"""
    return hasattr(x, "keys")


def by_name(x: Any, names: Sequence[str], argument: str = "x") -> Any:
    """Inputs as a model of these names has them.

    Args:
      x: An array; or several, in a dictionary or in the order of the names in a list or tuple.
      names: Of the model's inputs; none: it has one input.
      argument: Name of the argument, for errors.

    Returns:
      For one input what was given, else a dictionary in the order of the names. Its arrays are not
      looked at.

    Raises:
      ValueError: If one is missing, or there is another one.

    >>> by_name(([1, 2], [3, 4]), ["a", "b"])
    {'a': [1, 2], 'b': [3, 4]}
    >>> by_name({"a": [1, 2]}, ["a", "b"])
    Traceback (most recent call last):
    ValueError: x: expected the inputs a and b, received a alone; give {"a": ..., "b": ...}
    """
    if hasattr(x, "to_numpy") and (not names or getattr(x, "ndim", 0) == 1):
        x = _of_table(x)  # A column has keys, too: the numbers of its rows.
    if not names:
        if not is_named(x):
            return x
        if len(x) == 1:
            return next(iter(dict(x).values()))
        received = ", ".join(map(str, x))
        raise ValueError(f"{argument}: expected one input, received several by name ({received})")
    remedy = "; give {" + ", ".join(f'"{name}": ...' for name in names) + "}"
    expected = f"{argument}: expected the inputs {_and(names)}, received"
    if is_named(x):
        given = [str(name) for name in x]
        missing = [name for name in names if name not in given]
        others = [name for name in given if name not in names]
        if missing or others:
            received = _and(given) or "none"
            alone = " alone" * (not others and bool(given))
            raise ValueError(f"{expected} {received}{alone}{remedy}")
        return {name: x[name] for name in names}
    if isinstance(x, list | tuple | np.ndarray) and any(isinstance(one, str) for one in x[:1]):
        raise ValueError(
            f"{expected} texts; they go through the preprocessor of the classifier first: "
            "preprocessor(texts)"
        )
    if not isinstance(x, list | tuple):
        raise ValueError(f"{expected} one of type {type(x).__name__}{remedy}")
    if len(x) != len(names):
        raise ValueError(f"{expected} {len(x)} in a {type(x).__name__}{remedy}")
    return dict(zip(names, x, strict=True))


def _of_table(table: Any) -> np.ndarray:
    """A table of pandas as one input, its columns in their order; or one column."""
    types = [table.dtype] if hasattr(table, "dtype") else getattr(table, "dtypes", ())
    kinds = [getattr(kind, "kind", "O") for kind in types]
    if len(kinds) and all(kind in "biuf" for kind in kinds):
        # Columns of several types, or of types of pandas' own, would become objects; float64 holds
        # all but the largest whole numbers.
        if table.to_numpy().dtype == object:
            return table.to_numpy(dtype=np.float64, na_value=np.nan)
    return table.to_numpy()


def place(argument: str, name: str | None) -> str:
    """How errors call an input: `x`, or `x["name"]`."""
    return argument if name is None else f'{argument}["{name}"]'


def unservable(x: Inputs) -> list[str]:
    """Names of inputs that the signature of a SavedModel cannot have: TensorFlow makes arguments of
    a Python function of them.

    >>> unservable({"age": 1, "emp.var": 2, "self": 3})
    ['emp.var', 'self']
    """

    def fits(name: str) -> bool:
        taken = keyword.iskeyword(name) or name == "self"
        return name.isascii() and name.isidentifier() and not taken

    return [name for name, _ in items(x) if name is not None and not fits(name)]


def items(x: Inputs) -> list[tuple[str | None, Any]]:
    """(name, array) of all inputs; one alone has no name."""
    return [*x.items()] if is_named(x) else [(None, x)]


def each(function: Callable[..., Any], x: Inputs, *others: Any) -> Any:
    """The function of each input, by name where there are several; of `others` those of the same
    name go with it.

    >>> each(len, {"a": [1, 2], "b": [3, 4]})
    {'a': 2, 'b': 2}
    """
    if not is_named(x):
        return function(x, *others)
    return {name: function(x[name], *(other[name] for other in others)) for name in x}


def count(x: Inputs) -> int:
    """The number of samples n."""
    return len(next(iter(x.values())) if is_named(x) else x)


def check_count(x: Inputs, argument: str = "x") -> None:
    """ValueError unless all inputs have as many samples."""
    counts = {name: len(array) for name, array in items(x)}
    if len({*counts.values()}) > 1:
        received = ", ".join(f"{n:,} of {name}" for name, n in counts.items())
        raise ValueError(f"{argument}: expected as many samples of each input, received {received}")


def take(x: Inputs, rows: Any) -> Inputs:
    """Some of the samples: a slice, numbers of rows, or a mask."""
    return each(lambda array: array[rows], x)


def concatenated(parts: Sequence[Inputs]) -> Inputs:
    """The samples of several parts, at least one, in order."""
    return each(lambda *arrays: np.concatenate(arrays), parts[0], *parts[1:])


def size(x: Inputs) -> int:
    """Bytes of all inputs together."""
    return sum(array.nbytes for _, array in items(x))


def sample_hashes(x: Inputs) -> np.ndarray:
    """`overlaps.sample_hashes`: one number for each sample, equal where all its inputs are; uint64
    `[n]`."""
    if not is_named(x):
        return overlaps.sample_hashes(x)
    columns = [overlaps.sample_hashes(x[name]) for name in sorted(x)]
    return overlaps.sample_hashes(np.stack(columns, axis=1).view(np.uint8))


def _and(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> _and(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
