"""Tables for the terminal."""

import os
from collections.abc import Mapping, Sequence

from btcp_tf.reporting import cells
from btcp_tf.reporting.cells import HEADLINE, Row


def terminal_table(
    rows: Sequence[Row], files: Mapping[str, str | os.PathLike] | None = None
) -> str:
    """What a person should know at the end of a run, in fewer than 80 columns.

    Args:
      rows: Result rows; those of the test set itself are shown. Those of one
        classifier stand together under its accuracy and its number of errors.
      files: What each file is -> where it is.

    Returns:
      Lines without a trailing newline; only ASCII besides names of the caller's.
    """
    lines = []
    rows = cells.only(rows)
    headings = ["method", *(f"{cells.title_of(name)} {cells.unit(name)}" for name in HEADLINE)]
    for group in cells.classifiers(rows):
        first = group[0]
        lines += [
            cells.answers_title(first),
            f"  accuracy {cells.printed(cells.number(first['accuracy']), 'accuracy')} %, "
            f"{first['errors']:,} errors of {first['n']:,}",
        ]
        # All intervals if they fit, else the first metric's.
        for shown in (HEADLINE, HEADLINE[:1]):
            table = [headings]
            for row in group:
                values = [cells.value_cell(row, name, spread=name in shown) for name in HEADLINE]
                table.append([row["method"], *map(str, values)])
            aligned = cells.aligned(table)
            if max(map(len, aligned)) < 80:
                break
        lines += [*aligned, ""]
    if any(cells.interval(row, name) for row in rows for name in HEADLINE):
        lines += ["In brackets: 95 % bootstrap intervals.", ""]
    if files:
        width = max(map(len, files)) + 2
        lines += [f"{name:<{width}}{os.fspath(path)}" for name, path in files.items()]
    return "\n".join(lines).rstrip()


def study_terminal_table(rows: Sequence[Row]) -> str:
    """The ranking of errors by every method of a study, in fewer than 80 columns.

    Args:
      rows: Rows over seeds with `answers`, see `failure_table`.
    """
    lines = []
    for group in cells.by(rows, "dataset").values():
        table = [["method", "AUROC %", "to MCP", "AURC x1000", "verdict"]]
        for row in cells.ordered(group):
            difference = cells.difference_cell(row, "auroc")
            name = row["method"] + "*" * bool(row["answers"])
            values = [str(cells.value_cell(row, "auroc")), cells.value_cell(row, "aurc").text]
            line = [name, values[0], difference.text, values[1], row.get("verdict", "")]
            table.append([entry.replace("±", "+-").replace("–", "-") for entry in line])
        lines += [cells.about_row(group[0]), *cells.aligned(table)]
        if any(row["answers"] for row in group):
            lines.append("  * not the shared classifier: its own answers, or fine-tuned")
        lines.append("")
    return "\n".join(lines).rstrip()
