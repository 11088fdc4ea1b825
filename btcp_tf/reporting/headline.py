"""The first figures of a classifier, and what its threshold does."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from btcp_tf import metrics
from btcp_tf.evaluation.keys import Predictor
from btcp_tf.evaluation.predictions import REFERENCE, Predictions, mcp_column
from btcp_tf.reporting import cells, charts, gallery, glance, pages, tables
from btcp_tf.reporting.cells import GIVEN, Cell, Row, Words, is_candidate
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance, Judged, Step
from btcp_tf.reporting.pages import Block, Details, Heading
from btcp_tf.reporting.svg import Chart
from btcp_tf.thresholds import Outcome


def look_step(picked: Mapping[str, np.ndarray]) -> Step:
    """The first thing to do: look at the answers of the gallery.

    Args:
      picked: Rows by kind, from `gallery.pick`.
    """
    trusted = sum(len(picked[kind]) for kind in ("label", "unsuspected", "trusted"))
    sentence = f"Look at the {len(picked['uncertain'])} answers with the highest u"
    if trusted:
        sentence += f", and at the {trusted} error{'s' * (trusted > 1)} that are trusted most"
    return Step(f"{sentence}.", link="#check-these-first")


def first_screen(
    p: Predictions,
    method: str,
    judged: Judged,
    about: tuple[str, str],
    steps: Iterable[Step | None],
) -> Glance:
    """The first screen about labeled answers.

    Args:
      p: The answers.
      method: Column of u.
      judged: What is decided about them.
      about: What was answered, such as "test images", and whose u it is.
      steps: What to do after looking at the gallery; None is left out.
    """
    return Glance(
        glance.state(judged),
        glance.about(p.is_error, *about),
        glance.sentence(judged),
        glance.figures(judged),
        [look_step(gallery.pick(p, method)), *filter(None, steps)],
        "Wrong among the accepted, by how many are accepted",
        risk_chart(p, method, judged.outcome),
    )


def answers_to_check(shown: Gallery, predictor: Predictor | None = None) -> list[Block]:
    """A gallery, and its wrong answers as tables.

    Args:
      shown: The gallery.
      predictor: Whose answers; None: there is only one.
    """
    who = cells.label(shown.method)
    if predictor is not None:
        who += f", {cells.stage_label(predictor)}"
    tables_ = gallery.error_tables(shown, who)
    return [shown, *([Details("Its errors as tables", tables_)] if tables_ else [])]


def risk_chart(p: Predictions, method: str, chosen: Outcome | None) -> Chart:
    """Risk and coverage of a method and of MCP, with the outcome of a threshold.

    Args:
      p: Predictions with labels.
      method: Column of u.
      chosen: What the threshold does to these answers; None: there is none.
    """
    columns = {method: p.uncertainty[method]}
    mcp = mcp_column(p)
    if mcp is not None and method != REFERENCE and not np.allclose(mcp, columns[method], atol=1e-6):
        columns[REFERENCE] = mcp
    chart = charts.risk_chart(p.is_error, columns)
    return charts.with_outcome(chart, chosen) if chosen is not None and chosen.accepted else chart


def outcome_text(outcome: Outcome) -> list[Words]:
    """The share that is accepted, and how much of it is wrong."""
    share: list[Words] = [Cell(f"{outcome.coverage:.1%}", outcome.coverage)]
    if not outcome.accepted:
        return [*share, "."]
    rate = f"{outcome.risk:.2%} [{outcome.low:.2%}, {outcome.high:.2%}]"
    return [*share, ", and of those ", Cell(rate, outcome.risk), " are wrong."]


def headline(group: Sequence[Row]) -> list[Block]:
    """Accuracy, errors and first metrics of a classifier.

    Args:
      group: Rows of its methods on the test set.
    """
    first = group[0]
    where = "answers" if first["stage"] == GIVEN else f"{first['split']} images"
    return [
        Heading(cells.answers_title(first)),
        pages.text(
            "Right on ",
            Cell(f"{cells.printed(first['accuracy'], 'accuracy')} %", first["accuracy"]),
            f" of {first['n']:,} {where}, wrong on ",
            Cell(f"{first['errors']:,}", first["errors"]),
            ". ",
            *_risk_at_90(group),
            "How well each method finds these errors:",
        ),
        *tables.headline_tables(group),
    ]


def _risk_at_90(group: Sequence[Row]) -> list[Words]:
    """The error rate among the 90 % of the answers that the best method trusts most."""
    choices = [row for row in group if is_candidate(row["method"])] or group
    known = [row for row in choices if not math.isnan(cells.number(row.get("risk_at_coverage_90")))]
    if not known:
        return []
    row = min(known, key=lambda row: cells.number(row["aurc"]))
    risk = cells.number(row["risk_at_coverage_90"])
    best = "; of the methods here it has the lowest AURC on these answers" * (len(known) > 1)
    return [
        f"Among the 90 % that {cells.label(row['method'])} trusts most (ties included), ",
        Cell(f"{cells.printed(risk, 'risk_at_coverage_90')} %", risk),
        f" are wrong{best}. ",
    ]


def main_method(p: Predictions) -> str:
    """The method whose errors are shown where there is room for one: that of the lowest AURC."""
    names = [name for name in p.uncertainty if is_candidate(name)] or list(p.uncertainty)
    return min(names, key=lambda name: metrics.aurc(p.is_error, p.uncertainty[name]))


def metric_in_percent(row: Row, name: str) -> Cell:
    """A metric for a sentence, with its unit."""
    cell = cells.value_cell(row, name)
    return dataclasses.replace(cell, text=f"{cell.text} %")
