"""Answers as rows of CSV, JSON Lines or Parquet."""

import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.core import csv_cells, files, wording
from btcp_tf.serving import answers
from btcp_tf.serving.inputs import UNLABELED

Record = dict[str, Any]
"""One row of scores, columns in order; None: empty."""


def _columns(names: Collection[str]) -> list[str]:
    """The columns of a row of scores, in order, among the names of a `Scorer`'s answer."""
    known = [name for name in ("labels", answers.GROUP) if name in names]
    return ["input", *known, *answers.parts(names), "problem"]


def records(batch: Mapping[str, np.ndarray]) -> list[Record]:
    """Rows of a file of scores from a `Scorer`'s answer that has `input`, perhaps `labels` and
    `group`.

    A label that is `UNLABELED` is left empty.

    Numbers keep all digits of their single precision, so that a reader who compares an
    uncertainty compares the same number with tau as the model did.
    """
    names, parts = _columns(batch), answers.parts(batch)
    columns = [batch[name].tolist() for name in names]
    rows = []
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        if row.get("labels") == UNLABELED:
            row["labels"] = None
        row["problem"] = wording.one_line(row["problem"]) or None
        if row["problem"]:
            row |= dict.fromkeys(parts)
        rows.append(row)
    return rows


def write(path: str | os.PathLike, batches: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes a file of scores from a `Scorer`'s answers; it appears whole or not at all.

    Args:
      path: Its ending, .csv, .jsonl or .parquet, is the format. Must not exist.
      batches: See `records`; of at least one batch, all with the same columns.

    Raises:
      ValueError: If the ending is another one, or there is no batch.
      FileExistsError: If there is a file already.
    """
    path = files.as_path("path", path).expanduser()
    writer = writer_for(path)
    if os.path.lexists(path):
        raise FileExistsError(f"output: expected a new file, received {path}, which exists")
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise ValueError("batches: expected at least one, received none")
    chunks = (records(batch) for batch in itertools.chain([first], rest))
    with files.atomic_path(path) as temporary:
        writer(temporary, chunks, first["probs"].shape[1], _columns(first))


_Writer = Callable[[Path, Iterable[list[Record]], int, Sequence[str]], None]
"""(path, rows in pieces, number of classes, columns of a row in order)."""


def _write_csv(
    path: Path, chunks: Iterable[list[Record]], classes: int, columns: Sequence[str]
) -> None:
    # Not pyarrow.csv, which quotes all text, nor csv.writer, which before Python 3.13 leaves a lone
    # carriage return without quotes.
    names: list[str] = []
    for name in columns:
        names += [f"probs_{number}" for number in range(classes)] if name == "probs" else [name]
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(",".join(names) + "\n")
        for row in itertools.chain.from_iterable(chunks):
            values: list[Any] = []
            for name, value in row.items():
                values += (value or [None] * classes) if name == "probs" else [value]
            file.write(",".join(map(_csv_text, values)) + "\n")


def _csv_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    value = csv_cells.safe(value)
    quoted = any(letter in value for letter in ',"\r\n') or value != value.strip()
    return '"' + value.replace('"', '""') + '"' if quoted else value


def _write_jsonl(
    path: Path, chunks: Iterable[list[Record]], classes: int, columns: Sequence[str]
) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for row in itertools.chain.from_iterable(chunks):
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _write_parquet(
    path: Path, chunks: Iterable[list[Record]], classes: int, columns: Sequence[str]
) -> None:
    import pyarrow
    import pyarrow.parquet

    whole, text, real = pyarrow.int64(), pyarrow.string(), pyarrow.float32()
    types = {"input": text, "labels": whole, answers.GROUP: text, "problem": text}
    types |= {"predicted": whole, "class_name": text, "probs": pyarrow.list_(real)}
    types |= {"uncertainty": real, "accept": pyarrow.bool_()}
    types |= {"second_opinion": whole, "second_probability": real}
    schema = pyarrow.schema([(name, types[name]) for name in columns])
    # A row group is in memory at once: at most 16 MB of probabilities, or a batch.
    group_rows = min(16_384, max(1, 2**22 // classes))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        group = schema.empty_table()
        for chunk in chunks:
            part = pyarrow.Table.from_pylist(chunk, schema=schema)
            group = pyarrow.concat_tables([group, part])
            if len(group) >= group_rows:
                writer.write_table(group, row_group_size=len(group))
                group = schema.empty_table()
        if len(group):
            writer.write_table(group, row_group_size=len(group))


_FORMATS: dict[str, _Writer] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def writer_for(path: Path) -> _Writer:
    """The writer of a file's format; ValueError where its ending is none."""
    ending = path.suffix.lower()
    if ending not in _FORMATS:
        raise ValueError(
            f"output: expected a file that ends in {', '.join(_FORMATS)}, received {str(path)!r}"
        )
    return _FORMATS[ending]
