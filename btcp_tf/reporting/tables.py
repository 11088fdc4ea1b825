"""Tables of result rows: their content, not how a page, a CSV or a LaTeX file shows it.

No metric is computed here: numbers come from the rows of `btcp_tf.evaluation`, of one run or over
several seeds. A row over several seeds shows its standard deviation, a row of one run its interval.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from btcp_tf.decisions.promises import state_of
from btcp_tf.evaluation.keys import Predictor
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.evaluation.results import DIFFERENCES
from btcp_tf.methods.residual_choice import TRIED_COLUMNS, USED, Tried, tried_cells
from btcp_tf.metrics import METRICS
from btcp_tf.reporting import cells, texts
from btcp_tf.reporting.cells import Cell, Row, Table, Words, label, number
from btcp_tf.reporting.paper import PAPER
from btcp_tf.thresholds import Outcome

DIFFERENCE_COLUMNS = tuple(f"{name}_minus_{REFERENCE}" for name in DIFFERENCES)
"""Columns of rows that hold differences to MCP."""

ABLATION = ("bacc", "fpr", "fnr", "auroc", "aupr_error", "aurc")
"""Metrics of the ablation: what moves with the threshold, then what no threshold moves."""


def method_table(
    name: str,
    caption: str,
    rows: Iterable[Row],
    columns: Mapping[str, str] | Sequence[str],
    *,
    who: Callable[[Row], str] = cells.who,
    cell: Callable[[Row, str], Words] = cells.cell,
    first: str = "method",
) -> Table:
    """A table with a line for each method.

    Args:
      name: Stem of its files.
      caption: Its caption.
      rows: Result rows, in the order of the lines.
      columns: Metrics, or differences as "auroc_minus_mcp"; or such names -> headings.
      who: Row -> heading of its line.
      cell: Row and column -> entry.
      first: Heading of the first column.
    """
    if not isinstance(columns, Mapping):
        columns = {column: cells.heading(column) for column in columns}
    lines = [[who(row), *(cell(row, column) for column in columns)] for row in rows]
    return Table(name, caption, {first: first, **columns}, lines)


def headline_tables(group: Sequence[Row]) -> list[Table]:
    """The first metrics of a classifier's methods, and their differences to its MCP."""
    stem = cells.file_name(group[0]["stage"], group[0]["classifier_id"])
    about = dict(classifier=cells.group_title(group[0]), mcp=label(REFERENCE))
    caption = texts.caption("headline", **about)
    tables = [method_table(f"headline_{stem}", caption, group, cells.HEADLINE, who=_marked)]
    if compared := [row for row in group if DIFFERENCE_COLUMNS[0] in row]:
        name, caption = f"difference_{stem}", texts.caption("headline_difference", **about)
        tables.append(method_table(name, caption, compared, DIFFERENCE_COLUMNS, who=_marked))
    return tables


def _marked(row: Row) -> str:
    return cells.marked(row["method"])


def metric_table(group: Sequence[Row]) -> Table:
    """Every metric of every method of a classifier, methods side by side."""
    first = group[0]
    taus = {row["method"]: row["tau"] for row in group if row["tau"] != first["tau"]}
    own = "".join(f", {label(name)} {tau:.3g}" for name, tau in taus.items())
    return Table(
        cells.file_name("metrics", first["stage"], first["classifier_id"]),
        texts.caption("metrics", classifier=cells.group_title(first), own=own, **first),
        {"metric": "metric", **{row["method"]: cells.marked(row["method"]) for row in group}},
        [
            [cells.heading(name), *(cells.value_cell(row, name) for row in group)]
            for name in METRICS
            if name in first
        ],
    )


_PAPER_ORDER = ("paper_bacc", "paper_auc", "paper_fpr")


def paper_tables(rows: Iterable[Row]) -> list[Table]:
    """The columns of the paper beside its cells, for the data sets that it has."""
    return [
        method_table(
            cells.file_name("paper", group[0]["stage"], group[0]["classifier_id"]),
            texts.caption("paper", classifier=cells.group_title(group[0]), **group[0]),
            group,
            texts.columns("paper"),
            who=_marked,
            cell=lambda row, name: _beside_paper(row, name, spread=False),
        )
        for group in cells.classifiers(row for row in rows if row["dataset"] in PAPER)
    ]


def _beside_paper(row: Row, name: str, *, spread: bool = True) -> Cell:
    """A metric of a row, or the paper's cell."""
    if name in _PAPER_ORDER:
        published = PAPER.get(row["dataset"], {}).get(row["method"])
        return cells.paper_cell(published and published[_PAPER_ORDER.index(name)])
    if name == "errors":
        return cells.count_cell(row["errors"])
    return cells.value_cell(row, name, spread=spread and name != "tau")


def promise_table(rows: Sequence[Row]) -> Table:
    """Promised error rates of accepted answers, and what came of them on the test set.

    Args:
      rows: From `decide.make_promises`, perhaps with the `delta` of the promises.
    """
    deltas = dict.fromkeys(row["delta"] for row in rows if "delta" in row)
    value = "".join(f" (delta {delta:g})" for delta in deltas)
    lines = [_promise_line(row) for row in rows]
    caption = texts.caption("promises", delta=value)
    return Table("promises", caption, texts.columns("promises"), lines)


def _promise_line(row: Row) -> list[Words]:
    method = label(str(Predictor(row["method"], row["stage"])))
    target = Cell(f"{row['target']:.0%}", row["target"])
    if row["tau"] is None:
        least = number(row["least_risk"])
        lowest = "" if math.isnan(least) else f"least: {least:.1%}"
        return [method, "not achievable", target, "", lowest, "", ""]
    test = Outcome._make(number(row.get(f"test_{name}")) for name in Outcome._fields)
    side = "above" if test.risk > row["target"] else "below"
    perhaps = f"{side} it, perhaps by chance" if test.accepted else "cannot tell: none accepted"
    state = state_of(test, row["target"])
    return [
        method,
        {"holds": "kept", "broken": "broken"}.get(state, perhaps),
        target,
        Cell(cells.printed_u(row["tau"], 4), row["tau"]),
        Cell(f"{row['accepted']:,} of {row['n']:,}, {row['errors']:,} wrong"),
        Cell(f"{row['test_coverage']:.1%}", row["test_coverage"]),
        cells.rate_cell(test.risk, test.low, test.high),
    ]


def decision_table(outcomes: Mapping[str, Outcome], errors: int) -> Table:
    """Decisions about the same labeled answers, side by side.

    Args:
      outcomes: Name of a decision -> its outcome.
      errors: How many of the answers are wrong.
    """
    lines: list[list[Words]] = []
    for name, outcome in outcomes.items():
        caught = errors - outcome.errors
        risk = Cell("n/a", outcome.risk)
        if outcome.accepted:
            risk = cells.rate_cell(outcome.risk, outcome.low, outcome.high)
        lines.append(
            [
                name,
                cells.count_cell(outcome.accepted),
                Cell(f"{outcome.coverage:.1%}", outcome.coverage),
                cells.count_cell(outcome.errors),
                risk,
                Cell(f"{caught:,} of {errors:,}", caught),
                cells.count_cell(outcome.n - outcome.accepted - caught),
            ]
        )
    return Table("decisions", texts.caption("decisions"), texts.columns("decisions"), lines)


def pair_table(values: Mapping[str, Any], name: str, caption: str) -> Table:
    """Names and values."""
    lines = [[str(key), str(value)] for key, value in values.items()]
    return Table(name, caption, {"name": "name", "value": "value"}, lines)


def tried_table(tried: Sequence[Tried]) -> Table:
    """What each kind of evidence and each look adds to MCP by itself."""
    columns = {name: name for name in TRIED_COLUMNS}
    lines = [list(tried_cells(one)) for one in tried]
    return Table(
        "tried", f"What each adds to MCP by itself, cross-validated. Used: {USED}", columns, lines
    )


def failure_table(rows: Sequence[Row], *, paper: bool = True) -> Table:
    """Table 1: failure prediction on one data set, the paper's columns beside its cells.

    Args:
      rows: Rows of `across_seeds` with `answers`, of one data set, see `only`.
      paper: Whether to show the paper's cells; not for runs on a part of the data.
    """
    first = rows[0]
    shown = paper and first["dataset"] in PAPER
    spread = "; mean ± standard deviation" if first.get("seeds", 1) > 1 else ""
    paper_columns = texts.columns("paper")
    columns = {
        "accuracy": "accuracy %",
        "errors": "errors",
        "tau": "tau",
        **{key: title for key, title in paper_columns.items() if shown or "paper" not in key},
        "fnr": cells.heading("fnr"),
    }
    return method_table(
        cells.file_name("failure", first["dataset"]),
        texts.caption("failure", about=cells.about_row(first), n=int(first["n"]), spread=spread),
        cells.ordered(rows),
        columns,
        cell=_beside_paper,
    )


def difference_table(rows: Sequence[Row]) -> Table:
    """Differences to the MCP of the same classifier, the best AUROC first.

    Args:
      rows: As `failure_table`.
    """
    column = DIFFERENCE_COLUMNS[0]
    compared = [row for row in cells.ordered(rows) if not math.isnan(number(row.get(column)))]
    return method_table(
        cells.file_name("difference", rows[0]["dataset"]),
        texts.caption("difference", about=cells.about_row(rows[0]), mcp=label(REFERENCE)),
        sorted(compared, key=lambda row: -row[column]),
        DIFFERENCE_COLUMNS,
    )


def ranking_table(rows: Sequence[Row]) -> Table:
    """Metrics that no monotone map of u changes.

    Args:
      rows: As `failure_table`.
    """
    return method_table(
        cells.file_name("ranking", rows[0]["dataset"]),
        texts.caption("ranking", about=cells.about_row(rows[0])),
        cells.ordered(rows),
        cells.RANKING,
    )


def all_metrics_table(rows: Sequence[Row]) -> Table:
    """Every metric of every line of `failure_table`."""
    lines = cells.ordered(rows)
    return Table(
        cells.file_name("metrics", rows[0]["dataset"]),
        texts.caption("all_metrics", about=cells.about_row(rows[0])),
        {"metric": "metric", **{cells.sort_key(row): cells.who(row) for row in lines}},
        [
            [cells.heading(name), *(cells.value_cell(row, name) for row in lines)]
            for name in METRICS
        ],
    )


def ablation_table(rows: Sequence[Row], base: Sequence[Row]) -> Table:
    """Frozen BTCP with one setting changed at a time, after MCP and the run's own BTCP.

    Args:
      rows: Rows of one data set and seed with `ablation`, method btcp.
      base: Rows of the classifier that they share: of mcp, tcp and btcp those that exist.
    """
    first = base[0]
    return method_table(
        cells.file_name("ablation", first["dataset"]),
        texts.caption("ablation", **first),
        [*base, *rows],
        ABLATION,
        who=lambda row: ", ".join(filter(None, (label(row["method"]), row.get("ablation")))),
        first="setting",
    )
