"""The end of a page: what metrics and methods are, settings, environment."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from btcp_tf import metrics
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS
from btcp_tf.reporting import cells, tables
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.pages import Block, Definitions, Details
from btcp_tf.reporting.texts import text

_TRAINED = ("tcp", "ohem", "thresholding", "btcp")


def explanations(rows: Sequence[Row]) -> list[tuple[str, list[Block]]]:
    """Sections about the metrics and methods of some rows."""
    return [
        ("What the metrics mean", [_metrics(any(row.get("ood") for row in rows))]),
        ("What the methods are", _methods(rows)),
    ]


def folded_table(values: Mapping[str, Any], name: str, caption: str) -> list[Block]:
    """Names and values, folded away; nothing without values."""
    # In the order of a saved file, so that a page is drawn again alike.
    table = tables.pair_table(dict(sorted(values.items())), name, caption)
    return [Details(caption, [table])] if values else []


def appendix(
    rows: Sequence[Row], settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[tuple[str, list[Block]]]:
    """The last sections of a page, by heading."""
    return [
        *explanations(rows),
        ("Settings", folded_table(settings, "settings", "Settings of the run")),
        ("Environment", folded_table(environment, "environment", "Where it ran")),
    ]


def _metrics(ood: bool) -> Block:
    entries = []
    for name, metric in (METRICS | (OOD_METRICS if ood else {})).items():
        function = getattr(metrics, metric.formula.__name__.removeprefix("_"))
        better = "higher" if metric.higher_is_better else "lower"
        meaning = f"{cells.first_paragraph(function)} Better when {better}."
        entries.append((metric.title, name, meaning))
    return Details(f"{len(entries)} metrics", [Definitions(entries)])


def _methods(rows: Iterable[Row]) -> list[Block]:
    used = {row["method"] for row in rows}
    meanings = {name: cells.first_paragraph(m.prepare) for name, m in METHODS.items() if m.prepare}
    meanings |= {name: text(f"methods.{name}") for name in _TRAINED}
    entries = [
        (cells.marked(name), name, meanings.get(name, "")) for name in METHODS if name in used
    ]
    return [Details(f"{len(entries)} methods", [Definitions(entries)])] if entries else []
