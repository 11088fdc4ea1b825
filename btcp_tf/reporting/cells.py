"""Cells, rows and headings of tables."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf.evaluation.keys import FINETUNED, Predictor
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS

Row = Mapping[str, Any]
"""One flat result row of `btcp_tf.evaluation`, or one row of a run's history."""

HEADLINE = ("auroc", "aupr_error", "aurc")
"""Metrics that a reader sees first."""

RANKING = ("auroc", "aupr_error", "fpr95", "aurc", "e_aurc", "augrc")
"""Metrics that no monotone map of u can move."""

MIN_ERRORS_TO_COMPARE = 30
"""Errors that a comparison of methods needs; below, a report says that it rests on little."""

FEW_ERRORS = MIN_ERRORS_TO_COMPARE
"""The same under its name in version 0.1.0."""

# Printed value = value x scale, with so many decimals. What is not listed is a share, in percent.
_SHARE = (100, 2)

_UNITS = {
    "aurc": (1000, 2),
    "e_aurc": (1000, 2),
    "augrc": (1000, 2),
    "brier": (1, 4),
    "nll": (1, 4),
    "ood_au": (1, 4),
    "tau": (1, 3),
}

_ALL_METRICS = METRICS | OOD_METRICS

_DIFFERENCE = f"_minus_{REFERENCE}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One entry of a table, or a number in a sentence."""

    text: str
    """As it is printed."""
    value: float | None = None
    """The exact number behind it, for programs."""
    spread: str = ""
    """What stands beside it in small print: an interval or a standard deviation."""
    exact: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The exact numbers of `spread`: "sd", or "low" and "high"."""
    word: str = ""
    """A verdict: "better", "worse" or "not distinguishable"."""
    paper: bool = False
    """Whether it is the paper's number and not ours."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.text, self.spread, self.word)))


Words = str | Cell
"""A piece of a sentence, or an entry of a table."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Headings and lines; how they look is a matter of the file that shows them."""

    name: str
    """Stem of its files."""
    caption: str
    columns: Mapping[str, str]
    """Name for programs -> heading for people."""
    lines: Sequence[Sequence[Words]]
    """One entry for each column; the first is the line's heading."""


def label(name: str) -> str:
    """What people call a method, a stage of training or a column: "BTCP fine-tuned"."""
    predictor = Predictor.from_text(name)
    method = predictor.method or name
    title = METHODS[method].title if method in METHODS else method
    return f"{title} fine-tuned" if predictor.stage == FINETUNED else title


def stage_label(name: str | Predictor) -> str:
    """What people call a classifier: "frozen", "fine-tuned", "BTCP fine-tuned"."""
    return "fine-tuned" if name == FINETUNED else label(str(name))


def marked(name: str) -> str:
    """The label of a method, saying so where it is a control or knows the labels."""
    if name not in METHODS:
        return label(name)
    marks = ["control"] * (METHODS[name].group == "control")
    marks += ["uses labels"] * METHODS[name].uses_labels
    return label(name) + (f" ({', '.join(marks)})" if marks else "")


def number(value: Any) -> float:
    """A float; NaN for None and "", which saved rows hold where a metric is not defined."""
    return math.nan if value in (None, "") else float(value)


def unit(name: str, times: str = "x") -> str:
    """Unit of a printed metric: "%", "x1000" or none."""
    factor, _ = _UNITS.get(name, _SHARE)
    return {1: "", 100: "%"}.get(factor, f"{times}{factor}")


def scale(name: str) -> float:
    """What a metric is multiplied with before it is printed: 100 for shares."""
    return _UNITS.get(name, _SHARE)[0]


def title_with_unit(name: str) -> str:
    """A metric's name for the axis of a figure."""
    return f"{title_of(name)} {unit(name, '×')}".strip()


def printed(value: float, name: str, sign: str = "") -> str:
    """A value of a metric as it is printed, "n/a" for NaN."""
    factor, decimals = _UNITS.get(name, _SHARE)
    return "n/a" if math.isnan(value) else f"{factor * value:{sign}.{decimals}f}"


def printed_u(u: float, decimals: int = 3) -> str:
    """An uncertainty as a person reads it: no exponent in [0, 1], raw scores in 4 digits."""
    if 0 < u < 10.0**-decimals:
        return f"< {10.0**-decimals:.{decimals}f}"
    return f"{u:.{decimals}f}" if 0 <= u <= 1 else f"{u:.4g}"


def of_hundred(share: float) -> str:
    """A share in percent with one decimal; less than all is never printed as 100, nor some as 0.

    Example:
      >>> of_hundred(0.5), of_hundred(1.0), of_hundred(0.99999)
      ('50.0', '100', 'over 99.9')
    """
    if 0 < share < 1:
        if share > 0.9995:
            return "over 99.9"
        if share < 0.0005:
            return "under 0.1"
    text = f"{100 * share:.1f}"
    return text.removesuffix(".0") if share in (0, 1) else text


def percent(share: float) -> str:
    """A share in percent with two decimals; some is never printed as none.

    Example:
      >>> percent(0.0), percent(0.0312), percent(1e-6)
      ('0 %', '3.12 %', 'under 0.01 %')
    """
    return "0 %" if share == 0 else f"{100 * share:.2f} %" if share >= 5e-5 else "under 0.01 %"


def title_of(name: str) -> str:
    """A metric's column heading without unit and arrow."""
    return _ALL_METRICS[name].title if name in _ALL_METRICS else name


def heading(name: str, change: str = "") -> str:
    """A column's heading with its unit and an arrow to where it is better.

    Args:
      name: A metric, or a difference such as "auroc_minus_mcp".
      change: What stands before it.

    Example:
      >>> heading("auroc"), heading("aurc_minus_mcp")
      ('AUROC % ↑', 'AURC ×1000 ↓')
    """
    name = name.removesuffix(_DIFFERENCE)
    metric = _ALL_METRICS[name]
    arrow = "↑" if metric.higher_is_better else "↓"
    return " ".join(filter(None, (change, metric.title, unit(name, "×"), arrow)))


def interval(row: Row, name: str, metric: str = "") -> str:
    """The 95 % interval of a column in brackets; nothing where there is none.

    Args:
      row: With `NAME_low` and `NAME_high`.
      name: The column.
      metric: Of a difference its metric; the ends then have a sign.
    """
    sign = "+" if metric else ""
    ends = [printed(end, metric or name, sign) for end in _ends(row, name).values()]
    return f"[{', '.join(ends)}]" if ends else ""


def _ends(row: Row, name: str) -> dict[str, float]:
    """The exact interval of a column, where it has one."""
    ends = {end: number(row.get(f"{name}_{end}")) for end in ("low", "high")}
    return {} if any(map(math.isnan, ends.values())) else ends


def value_cell(row: Row, name: str, *, spread: bool = True) -> Cell:
    """A metric of a row, with its standard deviation over seeds or its interval."""
    value, sd = number(row.get(name)), number(row.get(f"{name}_sd"))
    if not spread:
        return Cell(printed(value, name), value)
    if math.isnan(sd):
        return Cell(printed(value, name), value, interval(row, name), _ends(row, name))
    return Cell(printed(value, name), value, f"± {printed(sd, name)}", {"sd": sd})


def difference_cell(row: Row, name: str) -> Cell:
    """A difference to MCP with its interval and, in words, what the interval allows to say."""
    column = f"{name}{_DIFFERENCE}"
    value, ends, word = number(row.get(column)), _ends(row, column), ""
    if ends and not math.isnan(value):
        word = "better" if (ends["low"] > 0) == _ALL_METRICS[name].higher_is_better else "worse"
        if ends["low"] <= 0 <= ends["high"]:
            word = "not distinguishable"
    # A cell of nothing: the reference has no difference to itself.
    text = "–" if math.isnan(value) else printed(value, name, "+")
    return Cell(text, value, interval(row, column, name), ends, word)


def cell(row: Row, column: str) -> Cell:
    """A metric of a row, or its difference to MCP where the column ends with "_minus_mcp"."""
    if column.endswith(_DIFFERENCE):
        return difference_cell(row, column.removesuffix(_DIFFERENCE))
    return value_cell(row, column)


def rate_cell(rate: float, low: float, high: float) -> Cell:
    """An error rate with its interval, in percent."""
    interval_text = f"[{low:.2%}, {high:.2%}]"
    return Cell(f"{rate:.2%}", rate, interval_text, {"low": low, "high": high})


def paper_cell(value: float | None, decimals: int = 2) -> Cell:
    """A number of the paper's; a dash where it has none."""
    text = "–" if value is None else f"{value:.{decimals}f}"
    return Cell(text, math.nan if value is None else value, paper=True)


def count_cell(value: float) -> Cell:
    """A number of answers; the mean count of several seeds need not be whole."""
    return Cell(f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}", float(value))


def by(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    """Rows by the values of some columns, in order of appearance; "" where one is missing."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row.get(name, "") for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(row)
    return groups


def only(rows: Iterable[Row], task: str = "failure", ood: str = "") -> list[Row]:
    """Rows of one task and OOD set on the plain test set, or on whatever an old file calls it."""
    return [
        row
        for row in rows
        if row.get("task", "failure") == task
        and row.get("ood", "") == ood
        and ":" not in row.get("split", "")
    ]


def is_candidate(name: str) -> bool:
    """Whether a method is one to choose, and not a control."""
    return name not in METHODS or METHODS[name].group != "control"


def has_own_ranking(name: str) -> bool:
    """Whether a method ranks answers by itself; one that moves tau alone ranks as another."""
    return name not in METHODS or not METHODS[name].column_of


def known_labels(predictions: Predictions) -> np.ndarray:
    """The true classes `[n]`.

    Raises:
      ValueError: If there are none, as for the samples of an OOD set.
    """
    if predictions.labels is None:
        raise ValueError("expected predictions with labels, the true classes, received none")
    return predictions.labels


def distinct_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of u without those of methods that differ from another in tau alone."""
    return {
        name: u
        for name, u in columns.items()
        if name not in METHODS or METHODS[name].column_of not in columns
    }


def classifiers(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that speak of the same answers, in order of appearance."""
    keys = ("dataset", "seed", "split", "stage", "classifier_id", "n", "errors")
    return list(by(rows, *keys).values())


def with_answers(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows with `answers`: whose answers they speak of.

    "" is the frozen classifier that all methods share. "mc_dropout" and "ensemble" answer with
    means of their own; of fine-tuned rows it is the method that was fine-tuned, also in the row of
    the MCP of that classifier.

    Args:
      rows: Rows of single runs, with `stage` and `classifier_id`.
    """
    result = []
    for group in by(rows, "dataset", "seed", "ablation", "stage", "classifier_id").values():
        tuned = next((row["method"] for row in group if row["method"] != REFERENCE), "")
        for row in group:
            own = row["method"] if _answers_itself(row) else ""
            result.append({**row, "answers": tuned if row["stage"] == FINETUNED else own})
    return result


def _answers_itself(row: Row) -> bool:
    return row["classifier_id"].endswith(f"-{row['method']}")


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows as a table has them: shared classifier, own answers, fine-tuned; methods as METHODS."""
    names = list(METHODS)

    def place(row: Row) -> tuple:
        known = names.index(row["method"]) if row["method"] in names else len(names)
        return row["stage"] == FINETUNED, bool(row["answers"]), row["answers"], known

    return sorted(rows, key=place)


def who(row: Row) -> str:
    """Heading of a row's line: the method, and whose answers, where not the shared classifier's.

    Args:
      row: With `answers`, see `with_answers`.
    """
    if row["stage"] == FINETUNED:
        if row["method"] == REFERENCE:
            return f"{label(REFERENCE)} of the fine-tuned {label(row['answers'])} classifier"
        return f"{label(row['method'])} fine-tuned"
    if row["answers"]:
        return f"{label(row['method'])}, own answers"
    return marked(row["method"])


def sort_key(row: Row) -> str:
    """Name of a row's line for programs, as `who` is for people."""
    if row["stage"] == FINETUNED:
        return f"{Predictor(row['answers'], FINETUNED)}:{row['method']}"
    return f"{row['method']}:own" if row["answers"] else row["method"]


def count_of(count: int, noun: str) -> str:
    """A number of things, such as "1 seed" or "2 seeds"."""
    return f"{count} {noun}{'s' * (count > 1)}"


def about_row(row: Row) -> str:
    """Data set and seed of a row, or how many seeds it is about."""
    seeds = count_of(int(row["seeds"]), "seed") if "seeds" in row else f"seed {row['seed']}"
    return f"{row['dataset']}, {seeds}"


def file_name(*parts: str) -> str:
    """The stem of a file: the parts, with "_" between them and for what is no letter or digit."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", "_".join(parts))


GIVEN = "given"
"""The stage of rows made from a predictions file of anyone's."""


def answers_title(row: Row) -> str:
    """The answers that a row of one run speaks of, for people."""
    if row["stage"] == GIVEN:
        return str(row["dataset"])
    own = f", own answers of {label(row['method'])}" if _answers_itself(row) else ""
    return (
        f"{row['dataset']}, seed {row['seed']}, {row['split']}: {stage_label(row['stage'])} "
        f"classifier{own}"
    )


def group_title(row: Row) -> str:
    """The classifier that a row of one run speaks of, with the start of its id."""
    if row["stage"] == GIVEN:
        return answers_title(row)
    return f"{answers_title(row)} {row['classifier_id'].partition('-')[0]}"


def class_name(number: int, class_names: Sequence[str] | None) -> str:
    """The name of a class, its number where there are no names."""
    return str(number) if class_names is None else str(class_names[number])


def first_paragraph(function: Any) -> str:
    """The first paragraph of a docstring on one line, as a definition on a page."""
    return " ".join((function.__doc__ or "").split("\n\n")[0].split()).replace("`", "")


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text, indented, with the entries of a column below one another."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [("  " + "  ".join(map(str.ljust, cells, widths))).rstrip() for cells in table]
