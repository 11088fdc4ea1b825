"""Sentences of reports: what `templates/texts.toml` says, with values in their places."""

import functools
import string
import tomllib
from pathlib import Path
from typing import Any

from btcp_tf.reporting.cells import Cell, Words


@functools.cache
def _sections() -> dict[str, Any]:
    path = Path(__file__).parent / "templates" / "texts.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def text(name: str, /, **values: Any) -> str:
    """A text with values in its fields.

    Args:
      name: Section and entry of `texts.toml`, such as "notes.one_seed".
      **values: Value of each field, as in `str.format`; others do not matter.

    Raises:
      KeyError: If there is no such text, or a field of it has no value.

    Example:
      >>> text("notes.few_seeds", seeds=3)
      '3 seeds: the spread over seeds is only roughly known.'
    """
    return "".join(map(str, pieces(name, **values)))


def pieces(name: str, /, **values: Any) -> list[Words]:
    """A text in pieces, for `pages.text`: cells, and lists of pieces, stay what they are.

    Args:
      name: As in `text`.
      **values: As in `text`.

    Raises:
      KeyError: As `text`.
    """
    entry: Any = _sections()
    for key in name.split("."):
        entry = entry[key]
    result: list[Words] = []
    # Lines of the file are broken for its readers alone.
    for before, field, form, _ in string.Formatter().parse(" ".join(entry.split())):
        value = values[field] if field else []
        if not isinstance(value, list):
            value = [value if isinstance(value, Cell) else format(value, form or "")]
        result += [piece for piece in (before, *value) if piece]
    return result


def figure(name: str, about: str = "", /, **values: Any) -> tuple[str, str, str]:
    """Stem of the files, title and caption of a figure.

    Args:
      name: Entry of the section "figures".
      about: Data set, where a report has a figure of this kind for each.
      **values: As in `text`.
    """
    stem = name.partition("__")[0]
    title = text(f"figures.{name}.title", **values)
    caption = text(f"figures.{name}.caption", **values)
    return (f"{stem}_{about}", f"{title}: {about}", caption) if about else (stem, title, caption)


def caption(name: str, /, **values: Any) -> str:
    """Caption of a table, an entry of the section "tables"."""
    return text(f"tables.{name}.caption", **values)


def columns(name: str) -> dict[str, str]:
    """Columns of a table: name for programs -> heading."""
    return dict(_sections()["tables"][name]["columns"])
