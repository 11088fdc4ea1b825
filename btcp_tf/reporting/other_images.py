"""OOD sets, the joint task and shifted images: their tables."""

import math
from collections.abc import Mapping, Sequence

from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.evaluation.keys import ImageSet
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.reporting import cells, pages, texts
from btcp_tf.reporting.cells import Cell, Row, Table, Words, label, number
from btcp_tf.reporting.pages import Block
from btcp_tf.reporting.paper import PAPER_OOD
from btcp_tf.reporting.tables import method_table

JOINT = ("auroc", "aupr_error", "fpr95", "aurc", "risk_at_coverage_80")
"""Metrics of the joint task that a table shows."""

_PAPER_AFTER = {"ood_acc": "paper_acc", "ood_au": "paper_au"}
"""Metric -> the paper's column beside it."""


def other_images(all_rows: Sequence[Row], single_runs: Sequence[Row], whole: bool) -> list[Block]:
    """Tables of OOD sets, the joint task and shifted images; without such rows nothing.

    Args:
      all_rows: Rows with `answers`, of one run or over seeds.
      single_runs: Rows of single runs, for the number of OOD images.
      whole: Whether the paper's cells may be shown.
    """
    blocks: list[Block] = []
    for rows in cells.by(all_rows, "dataset").values():
        sets = [ood for ood in cells.by(rows, "ood") if ood]
        for ood in sets:
            n_ood = next(int(row["n_ood"]) for row in single_runs if row.get("ood") == ood)
            blocks.append(ood_table(cells.only(rows, "ood", ood), n_ood=n_ood, paper=whole))
        if len(sets) > 1:
            blocks.append(near_far_table([row for row in rows if row.get("task") == "ood"]))
        blocks += [joint_table(cells.only(rows, "joint", ood)) for ood in sets]
        failure = [row for row in rows if row.get("task", "failure") == "failure"]
        if any(":" in row["split"] for row in failure):
            meanings = " ".join(map(cells.first_paragraph, CORRUPTIONS.values()))
            blocks.append(pages.text(f"Shifted images, at strength 1, 2 and 3: {meanings}"))
            blocks += [shift_table(failure, name) for name in ("aurc", "auroc")]
    return blocks


def ood_table(rows: Sequence[Row], *, n_ood: int, paper: bool = True) -> Table:
    """Table 2: telling images of one OOD set from the test images.

    Args:
      rows: Rows of task "ood" with `answers`, of one data set and OOD set.
      n_ood: Images of the OOD set.
      paper: Whether to show the paper's cells.
    """
    first = rows[0]
    published = PAPER_OOD.get((first["dataset"], first["ood"]), {}) if paper else {}
    # The verdict second, where a phone shows it.
    columns = _minus_reference("auroc")
    for name in ("ood_acc", "ood_au", "auroc", "fpr95", "aupr_ood", "aupr_id"):
        columns[name] = cells.heading(name)
        if published and name in _PAPER_AFTER:
            columns[_PAPER_AFTER[name]] = "paper's"

    def cell(row: Row, name: str) -> Cell:
        acc, au = published.get(row["method"], (None, None))
        if name == "paper_acc":
            return cells.paper_cell(acc)
        return cells.paper_cell(au, 4) if name == "paper_au" else cells.cell(row, name)

    return method_table(
        cells.file_name("ood", first["dataset"], first["ood"]),
        texts.caption(
            "ood", ood=first["ood"], n_ood=n_ood, about=cells.about_row(first), n=int(first["n"])
        ),
        cells.ordered(rows),
        columns,
        cell=cell,
    )


def _minus_reference(*names: str) -> dict[str, str]:
    """Columns of differences to MCP beside other columns, and their headings."""
    return {
        f"{name}_minus_{REFERENCE}": cells.heading(name, f"minus {label(REFERENCE)}:")
        for name in names
    }


def joint_table(rows: Sequence[Row]) -> Table:
    """Failure prediction where an OOD image counts as an error, as `ood_table`."""
    first = rows[0]
    return method_table(
        cells.file_name("joint", first["dataset"], first["ood"]),
        texts.caption("joint", ood=first["ood"], about=cells.about_row(first)),
        cells.ordered(rows),
        _minus_reference("auroc", "aurc") | {name: cells.heading(name) for name in JOINT},
    )


def near_far_table(rows: Sequence[Row]) -> Table:
    """AUROC of all OOD sets of a data set side by side, the one hardest for MCP first.

    Args:
      rows: Rows of task "ood" with `answers`, of one data set.
    """
    hardness = {
        row["ood"]: number(row["auroc"])
        for row in rows
        if row["method"] == REFERENCE and not row["answers"]
    }
    sets = sorted(cells.by(rows, "ood"), key=lambda name: hardness.get(name, math.inf))
    lines = [
        _across(values, sets, who) for who, values in _side_by_side(rows, "ood", "auroc").values()
    ]
    return Table(
        cells.file_name("near_far", rows[0]["dataset"]),
        texts.caption("near_far", mcp=label(REFERENCE), about=cells.about_row(rows[0])),
        {"method": "method", **{name: name for name in sets}},
        lines,
    )


def shift_table(rows: Sequence[Row], name: str) -> Table:
    """One metric on test images that were changed more and more.

    Args:
      rows: Rows of task "failure" with `answers`, of one data set and every split.
      name: Name of the metric.
    """
    splits = sorted(cells.by(rows, "split"))  # "test" before "test:…", strengths in order.
    accuracy = {
        row["split"]: cells.value_cell(row, "accuracy") for row in rows if not row["answers"]
    }
    lines = [_across(accuracy, splits, "accuracy % of the frozen classifier")]
    for who, values in _side_by_side(rows, "split", name).values():
        if values.keys() != {"test"}:
            lines.append(_across(values, splits, f"{who}: {cells.title_with_unit(name)}"))
    return Table(
        cells.file_name("shift", name, rows[0]["dataset"]),
        texts.caption("shift", metric=cells.title_of(name), about=cells.about_row(rows[0])),
        {"method": "method", **{split: _corruption(split) for split in splits}},
        lines,
    )


def _corruption(split: str) -> str:
    images = ImageSet.of_row({"split": split})
    return f"{images.name}{images.strength}" if images.kind == "shift" else split


def _side_by_side(
    rows: Sequence[Row], column: str, metric: str
) -> dict[str, tuple[str, dict[str, Cell]]]:
    """For each method its heading, and value of a column -> the metric."""
    lines: dict[str, tuple[str, dict[str, Cell]]] = {}
    for row in cells.ordered(rows):
        _, values = lines.setdefault(cells.sort_key(row), (cells.who(row), {}))
        values[row[column]] = cells.value_cell(row, metric)
    return lines


def _across(values: Mapping[str, Cell], names: Sequence[str], head: str) -> list[Words]:
    return [head, *(values.get(name, Cell("–")) for name in names)]
