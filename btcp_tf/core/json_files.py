"""JSON files that are written whole or not at all, of values that JSON does not know; JSON texts of
strangers."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from btcp_tf.core import files


def plain(value: Any, *, infinity: bool = False) -> Any:
    """A value made of what JSON knows: dict, list, text, numbers, booleans and None.

    Args:
      value: Named tuples and dataclasses become dicts of their fields, arrays and tuples lists.
        Other kinds stay as they are.
      infinity: Whether infinity becomes the text "Infinity" or "-Infinity". It becomes None
        otherwise, as NaN always does: JSON has neither.

    Example:
      >>> plain({"tau": np.float32(0.5), "counts": np.array([1, 2]), "auroc": float("nan")})
      {'tau': 0.5, 'counts': [1, 2], 'auroc': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item, infinity=infinity) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, infinity=infinity) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value) or not infinity:
            return None
        return "Infinity" if value > 0 else "-Infinity"
    return value


def parse(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
      ValueError: If it is none. `json.loads` raises RecursionError, too, for a few kilobytes of
        lists in one another.

    >>> parse("[" * 100_000)
    Traceback (most recent call last):
    ValueError: JSON: expected fewer lists and objects in one another
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON: expected fewer lists and objects in one another") from None


def to_text(
    value: Any, *, indent: int | None = None, sort_keys: bool = False, infinity: bool = False
) -> str:
    """JSON text of a value, see `plain`; ends with a line break.

    Raises:
      TypeError: If it holds something else than `plain` and JSON know.
    """
    content = plain(value, infinity=infinity)
    style: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False}
    return json.dumps(content, indent=indent, sort_keys=sort_keys, **style) + "\n"


def write(path: str | os.PathLike, value: Any, **style: Any) -> None:
    """Writes `to_text(value, **style)` as a file in UTF-8, which appears whole or not at all."""
    text = to_text(value, **style)
    with files.atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
