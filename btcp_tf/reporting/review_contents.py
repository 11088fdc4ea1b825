"""What the answers of a queue are about: pictures, texts or rows of a table, from their files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from btcp_tf.core import arrays
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.evaluation.tabular import Columns
from btcp_tf.reporting.pictures import (
    LARGE,
    data_uri,
    find_file,
    input_folders,
    read_picture,
    scored_input,
    stored_pictures,
)
from btcp_tf.reporting.review_page import Content

_ANSWER = ("input", "predicted", "class_name", "uncertainty", "accept", "problem")

_BESIDE = ("second_opinion", "second_probability", REFERENCE)

_ARRAYS = ("x_test", "images", "x")
"""Names of the array of inputs in an npz file."""

_LABELS = re.compile(r"(labels?|targets?|truth|y)(_(train|val|test|true))?", re.IGNORECASE)
"""Columns and arrays that would give the answer away."""

_MOST = 60
"""Fields of a row that are shown."""

_LONGEST = 4000
"""Characters of a text that are shown."""


def contents(
    scores: Path,
    place: Path | None,
    names: Mapping[int, str] | None,
    rows: Sequence[int],
    *,
    key: str = "",
    columns: Sequence[str] = (),
) -> dict[int, Content]:
    """What some rows of a file of scores are about, by row; those of which nothing is found have
    no entry.

    Args:
      scores: The file of scores.
      place: A folder of image files, an npz or npy array, or a table with a row for each answer.
        None: what `btcp_tf.predict` wrote beside the scores of its input, else other columns of
        the scores.
      names: What the scores call the input of each of these rows; None: they name none.
      rows: The rows, counted from 0 among those that have an answer.
      key: Array of an npz file; "": `x_test`, `images` or `x`.
      columns: Of a table, those to show; (): all but labels.

    Raises:
      ValueError: If a table does not fit the scores, or an array has not as many rows.
      OSError: If a file cannot be opened.
    """
    if place is None:
        scored = scored_input(scores)
        place = scored if scored is not None and scored.is_file() else None
    if place is not None and place.suffix.lower() in (".npz", ".npy"):
        return _of_array(place, key, names, rows)
    if place is not None and place.is_file():
        return _of_table(tabular.read(place), columns, scores, names, rows)
    found = {}
    if names:
        found = _of_files([place] if place is not None else input_folders(scores, None), names)
    if not found and place is None and tabular.is_table(scores):
        table = tabular.read(scores).answered()
        shown = list(columns) or [name for name in table.names if _is_own(name)]
        found = _fields(table, shown, {row: row for row in rows})
    return found


def _is_own(name: str) -> bool:
    """Whether a column of scores may say what was answered, and is no part of the answer."""
    return not (
        name in (*_ANSWER, *_BESIDE) or _LABELS.fullmatch(name) or tabular.is_probability(name)
    )


def _of_files(folders: Sequence[Path], names: Mapping[int, str]) -> dict[int, Content]:
    found = {}
    for row, name in names.items():
        if (file := find_file(name, folders)) is not None:
            pixels = read_picture(file, LARGE)
            picture = "" if pixels is None else data_uri(pixels, LARGE)
            found[row] = Content(picture=picture, link=file.as_uri())
    return found


def _of_array(
    file: Path, key: str, names: Mapping[int, str] | None, rows: Sequence[int]
) -> dict[int, Content]:
    """Pictures of an array of uint8 images, fields of one of rows of numbers."""
    is_npz = file.suffix.lower() == ".npz"
    if is_npz and not key:
        key = _array_of_inputs(file, names)
    stored = arrays.stored_array(file, key if is_npz else "")
    if names is None or key:
        named = {row: f"{stored.name}[{_number(names, row)}]" for row in rows}
    else:
        named = dict(names)
    last = max(_number(named, row) for row in rows)
    if last >= len(stored):
        raise ValueError(
            f"input: expected {file} with at least {last + 1} rows of {stored.name}, received "
            f"{len(stored)}"
        )
    if len(stored.shape) == 2:
        wanted = {_number(named, row): row for row in rows}
        found = {}
        for number, values in zip(range(last + 1), stored.batches(0, 1), strict=False):
            if number in wanted:
                fields = {str(at): f"{x:.6g}" for at, x in enumerate(values[0, :_MOST].tolist())}
                found[wanted[number]] = Content(fields=fields)
        return found
    pictures = stored_pictures(file, named, LARGE)
    return {row: Content(picture=data_uri(pixels, LARGE)) for row, pixels in pictures.items()}


def _array_of_inputs(file: Path, names: Mapping[int, str] | None) -> str:
    """The array of an npz file that the scores name, else the first that may be the inputs."""
    there = arrays.array_names(file)
    named = {name.rpartition("[")[0] for name in names.values()} if names else set()
    for name in (*(named if len(named) == 1 else ()), *_ARRAYS):
        if name in there:
            return name
    for name in there:
        if not _gives_answers(file, name):
            return name
    raise ValueError(
        f"input: expected {file} with an array of inputs ({', '.join(_ARRAYS)}), received "
        f"{', '.join(map(tabular.shown, there)) or 'none'}; name the one to show with --key"
    )


def _gives_answers(file: Path, name: str) -> bool:
    """Whether an array holds labels, by its name or as one-hot rows, or only a value a row."""
    if _LABELS.fullmatch(name):
        return True
    stored = arrays.stored_array(file, name, text=True)
    if len(stored.shape) != 2:
        return len(stored.shape) == 1
    return stored.shape[1] > 1 and all(
        ((rows != 0).sum(axis=1) == 1).all() and (rows.max(axis=1) == 1).all()
        for rows in stored.batches(0, 4096)
    )


def _number(names: Mapping[int, str] | None, row: int) -> int:
    """The row of an array or table that an answer is of: "x_test[3]" is of 3."""
    match = re.fullmatch(r".*\[([0-9]+)\]", names[row], re.DOTALL) if names else None
    return int(match[1]) if match else row


def _of_table(
    table: Columns,
    columns: Sequence[str],
    scores: Path,
    names: Mapping[int, str] | None,
    rows: Sequence[int],
) -> dict[int, Content]:
    """Rows of a table: by the numbers in the names, by its column `input`, or one after another."""
    table.require(*columns)
    if names and all(re.fullmatch(r".*\[[0-9]+\]", name, re.DOTALL) for name in names.values()):
        places = {row: _number(names, row) for row in rows}
    elif names and "input" in table.values:
        place_of = {str(name): place for place, name in enumerate(table.values["input"])}
        places = {row: place_of.get(names[row], -1) for row in rows}
    else:
        places = _in_order(table, scores, rows)
    if missing := [row for row, place in places.items() if not 0 <= place < len(table)]:
        raise ValueError(
            f"input: expected {table.file} with the inputs of {scores}, received none for its row "
            f"{missing[0]}"
        )
    shown = list(columns) or [
        name for name in table.names if name != "input" and not _LABELS.fullmatch(name)
    ]
    return _fields(table, shown, places)


def _in_order(table: Columns, scores: Path, rows: Sequence[int]) -> dict[int, int]:
    """Row of the scores → row of a table that has as many."""
    if not tabular.is_table(scores):
        return {row: row for row in rows}
    answers = tabular.read(scores, ("problem",))
    if len(answers) != len(table):
        raise ValueError(
            f"input: expected {table.file} with a column input or the {len(answers)} rows of "
            f"{scores}, received {len(table)} rows and {', '.join(table.names)}"
        )
    problems = answers.values.get("problem") or [None] * len(answers)
    answered = [place for place, problem in enumerate(problems) if not problem]
    return {row: answered[row] for row in rows}


def _fields(table: Columns, shown: Sequence[str], places: Mapping[int, int]) -> dict[int, Content]:
    """Some columns of some rows; one alone is a text. Empty entries are left out."""
    table.require(*shown)
    found = {}
    for row, place in places.items():
        entries = {name: table.values[name][place] for name in shown[:_MOST]}
        fields = {
            tabular.shown(name): tabular.shown(value)[:_LONGEST]
            for name, value in entries.items()
            if value is not None
        }
        if len(shown) == 1:
            found[row] = Content(text=next(iter(fields.values()), ""))
        elif shown:
            found[row] = Content(fields=fields)
    return found
