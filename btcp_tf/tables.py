"""Tables of result rows: what stands in them, not how a page, a CSV or a LaTeX file shows it.

Nothing here computes a metric: numbers come from the rows of `btcp_tf.evaluation`, of one run or
over several seeds; rows per class are counts of the predictions. A row of several seeds
shows its standard deviation, a row of one run its interval.
"""

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf.evaluation import DIFFERENCES, REFERENCE, Predictions
from btcp_tf.methods import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS
from btcp_tf.thresholds import Outcome

Row = Mapping[str, Any]
"""One flat result row of `btcp_tf.evaluation`, or one row of a run's history."""

HEADLINE = ("auroc", "aupr_error", "aurc")
"""Metrics that a reader sees first."""

RANKING = ("auroc", "aupr_error", "fpr95", "aurc", "e_aurc", "augrc")
"""Metrics that no monotone map of u can move."""

FEW_ERRORS = 30
"""Below this many errors a report says that its figures rest on little."""

PAPER = {
    "cifar10": {
        "mcp": (64.32, 84.23, 10.62),
        "mc_dropout": (78.62, 89.08, 9.02),
        "trust_score": (78.21, 88.47, 5.70),
        "ohem": (78.00, 85.71, 2.13),
        "tcp": (71.93, 85.60, 7.72),
        "btcp": (78.80, 89.09, 2.01),
    },
    "cifar100": {
        "mcp": (72.86, 85.67, 7.20),
        "mc_dropout": (75.78, 86.09, 4.68),
        "trust_score": (74.70, 84.17, 4.74),
        "ohem": (77.14, 87.17, 3.53),
        "tcp": (77.51, 86.28, 3.19),
        "btcp": (77.80, 88.07, 3.11),
    },
    "svhn_cropped": {
        "mcp": (61.26, 93.20, 8.66),
        "mc_dropout": (84.55, 92.85, 5.60),
        "trust_score": (85.35, 92.16, 3.74),
        "ohem": (80.27, 90.60, 1.16),
        "tcp": (83.86, 93.44, 2.41),
        "btcp": (87.97, 93.66, 0.67),
    },
    "mnist": {
        "mcp": (85.54, 97.13, 3.80),
        "mc_dropout": (89.33, 97.15, 2.26),
        "trust_score": (90.52, 97.52, 3.00),
        "ohem": (87.16, 97.29, 0.52),
        "tcp": (90.75, 97.83, 0.34),
        "btcp": (91.52, 97.33, 0.26),
    },
    "fashion_mnist": {
        "mcp": (60.63, 82.93, 7.87),
        "mc_dropout": (76.65, 87.04, 4.87),
        "trust_score": (78.16, 87.53, 4.64),
        "ohem": (80.78, 87.53, 2.78),
        "tcp": (65.16, 87.99, 3.93),
        "btcp": (81.09, 88.36, 0.20),
    },
}
"""The paper's table of failure prediction: data set -> method -> (BACC, AUC, FPR) in percent."""

PAPER_OOD = {
    ("cifar10", "svhn_cropped"): {
        "mcp": (43.97, 0.3652),
        "mc_dropout": (85.86, 0.5056),
        "trust_score": (87.82, 0.5919),
        "ohem": (99.80, 0.7056),
        "tcp": (99.64, 0.7190),
        "btcp": (99.83, 0.7239),
    },
    ("svhn_cropped", "cifar10"): {
        "mcp": (43.56, 0.3690),
        "mc_dropout": (74.28, 0.4927),
        "trust_score": (79.38, 0.5166),
        "ohem": (85.93, 0.6074),
        "tcp": (75.18, 0.5476),
        "btcp": (86.04, 0.5823),
    },
    ("mnist", "fashion_mnist"): {
        "mcp": (53.46, 0.2745),
        "mc_dropout": (92.48, 0.5147),
        "trust_score": (85.64, 0.4168),
        "ohem": (93.66, 0.5826),
        "tcp": (88.88, 0.5434),
        "btcp": (99.56, 0.8216),
    },
    ("fashion_mnist", "mnist"): {
        "mcp": (38.42, 0.2146),
        "mc_dropout": (46.09, 0.3488),
        "trust_score": (42.78, 0.3261),
        "ohem": (51.97, 0.4437),
        "tcp": (47.09, 0.4146),
        "btcp": (56.24, 0.4789),
    },
}
"""The paper's table of OOD detection: (data set, OOD set) -> method -> (ACC in percent, AU)."""

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


# Words and numbers -----------------------------------------------------------------------------


def label(name: str) -> str:
    """What people call a method, a stage of training or a column: "BTCP fine-tuned"."""
    method = name.removesuffix("_finetuned")
    title = METHODS[method].title if method in METHODS else method
    return title if method == name else f"{title} fine-tuned"


def stage_label(name: str) -> str:
    """What people call a classifier: "frozen", "fine-tuned", "BTCP fine-tuned"."""
    return {"finetuned": "fine-tuned"}.get(name) or label(name)


def marked(name: str) -> str:
    """The label of a method, saying so where it is a control or knows the labels."""
    if name not in METHODS:
        return label(name)
    marks = ["control"] * (METHODS[name].group == "control")
    marks += ["uses labels"] * METHODS[name].uses_labels
    return label(name) + (f" ({', '.join(marks)})" if marks else "")


def number(value: Any) -> float:
    """A float; rows read from foreign JSON may hold None where a metric is not defined."""
    return math.nan if value is None else float(value)


def unit(name: str, times: str = "x") -> str:
    """Unit of a printed metric: "%", "x1000" or none."""
    scale, _ = _UNITS.get(name, _SHARE)
    return {1: "", 100: "%"}.get(scale, f"{times}{scale}")


def printed(value: float, name: str, sign: str = "") -> str:
    """A value of a metric as it is printed, "n/a" for NaN."""
    scale, decimals = _UNITS.get(name, _SHARE)
    return "n/a" if math.isnan(value) else f"{scale * value:{sign}.{decimals}f}"


def printed_u(u: float, decimals: int = 3) -> str:
    """An uncertainty as a person reads it: no exponent in [0, 1], raw scores in 4 digits."""
    if 0 < u < 10.0**-decimals:
        return f"< {10.0**-decimals:.{decimals}f}"
    return f"{u:.{decimals}f}" if 0 <= u <= 1 else f"{u:.4g}"


def title_of(name: str) -> str:
    """A metric's column heading without unit and arrow."""
    return _ALL_METRICS[name].title if name in _ALL_METRICS else name


def heading(name: str, change: str = "") -> str:
    """A metric's column heading with its unit and an arrow to where it is better."""
    metric = _ALL_METRICS[name]
    arrow = "↑" if metric.higher_is_better else "↓"
    return " ".join(filter(None, (change, metric.title, unit(name, "×"), arrow)))


def interval(row: Row, name: str, metric: str = "") -> str:
    """The 95 % interval of a column in brackets; nothing where there is none."""
    low, high = number(row.get(f"{name}_low")), number(row.get(f"{name}_high"))
    if math.isnan(low) or math.isnan(high):
        return ""
    sign = "+" if metric else ""
    return f"[{printed(low, metric or name, sign)}, {printed(high, metric or name, sign)}]"


def value_cell(row: Row, name: str, *, spread: bool = True) -> Cell:
    """A metric of a row, with its standard deviation over seeds or its interval."""
    value, sd = number(row.get(name)), number(row.get(f"{name}_sd"))
    if not spread:
        return Cell(printed(value, name), value)
    if math.isnan(sd):
        return Cell(printed(value, name), value, interval(row, name), _ends(row, name))
    return Cell(printed(value, name), value, f"± {printed(sd, name)}", {"sd": sd})


def _ends(row: Row, name: str) -> dict[str, float]:
    """The exact interval of a column, where it has one."""
    return {end: float(row[f"{name}_{end}"]) for end in ("low", "high") if interval(row, name)}


def difference_cell(row: Row, name: str) -> Cell:
    """A difference to MCP with its interval and, in words, what the interval allows to say."""
    column = f"{name}_minus_{REFERENCE}"
    value = number(row.get(column))
    low, high = number(row.get(f"{column}_low")), number(row.get(f"{column}_high"))
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        word = ""
    elif low <= 0 <= high:
        word = "not distinguishable"
    else:
        word = "better" if (low > 0) == _ALL_METRICS[name].higher_is_better else "worse"
    # A cell of nothing: the reference has no difference to itself.
    text = "–" if math.isnan(value) else printed(value, name, "+")
    return Cell(text, value, interval(row, column, name), _ends(row, column), word)


def _paper_cell(value: float | None, decimals: int = 2) -> Cell:
    text = "–" if value is None else f"{value:.{decimals}f}"
    return Cell(text, math.nan if value is None else value, paper=True)


def _count(value: float) -> Cell:
    # The mean count of several seeds is no whole number.
    return Cell(f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}", float(value))


# Groups of rows --------------------------------------------------------------------------------


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
    groups = by(rows, "dataset", "seed", "ablation", "stage", "classifier_id")
    result = []
    for (*_, stage, _), group in groups.items():
        tuned = next((row["method"] for row in group if row["method"] != REFERENCE), "")
        for row in group:
            own = row["method"] if _answers_itself(row) else ""
            result.append({**row, "answers": tuned if stage == "finetuned" else own})
    return result


def _answers_itself(row: Row) -> bool:
    return row["classifier_id"].endswith(f"-{row['method']}")


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows as a table has them: shared classifier, own answers, fine-tuned; methods as METHODS."""
    names = list(METHODS)

    def place(row: Row) -> tuple:
        known = names.index(row["method"]) if row["method"] in names else len(names)
        return row["stage"] == "finetuned", bool(row["answers"]), row["answers"], known

    return sorted(rows, key=place)


def who(row: Row) -> str:
    """The line's heading of a row of several seeds."""
    if row["stage"] == "finetuned":
        if row["method"] == REFERENCE:
            return f"{label(REFERENCE)} of the fine-tuned {label(row['answers'])} classifier"
        return f"{label(row['method'])} fine-tuned"
    if row["answers"]:
        return f"{label(row['method'])}, own answers"
    return marked(row["method"])


def _key(row: Row) -> str:
    """The name of a row's line for programs."""
    if row["stage"] == "finetuned":
        return f"{row['answers']}_finetuned:{row['method']}"
    return f"{row['method']}:own" if row["answers"] else row["method"]


def _about(row: Row) -> str:
    if "seeds" not in row:
        return f"{row['dataset']}, seed {row['seed']}"
    seeds = int(row["seeds"])
    return f"{row['dataset']}, {seeds} seed{'s' * (seeds > 1)}"


def _file(*words: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", "_".join(words))


# Tables of a run -------------------------------------------------------------------------------


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


def _group_title(row: Row) -> str:
    if row["stage"] == GIVEN:
        return answers_title(row)
    return f"{answers_title(row)} {row['classifier_id'].partition('-')[0]}"


def headline_tables(group: Sequence[Row]) -> list[Table]:
    """The first metrics of a classifier's methods, and their differences to its MCP."""
    title, stem = _group_title(group[0]), _file(group[0]["stage"], group[0]["classifier_id"])
    found = [
        Table(
            f"headline_{stem}",
            f"{title}, 95 % intervals in brackets",
            {"method": "method", **{name: heading(name) for name in HEADLINE}},
            [
                [marked(row["method"]), *(value_cell(row, name) for name in HEADLINE)]
                for row in group
            ],
        )
    ]
    compared = [row for row in group if f"{DIFFERENCES[0]}_minus_{REFERENCE}" in row]
    if compared:
        found.append(
            Table(
                f"difference_{stem}",
                f"{title}: difference to {label(REFERENCE)}, paired 95 % intervals",
                {
                    "method": "method",
                    **{f"{name}_minus_{REFERENCE}": heading(name) for name in DIFFERENCES},
                },
                [
                    [marked(row["method"]), *(difference_cell(row, name) for name in DIFFERENCES)]
                    for row in compared
                ],
            )
        )
    return found


def metric_table(group: Sequence[Row]) -> Table:
    """Every metric of every method of a classifier, methods side by side."""
    first = group[0]
    taus = {row["method"]: row["tau"] for row in group if row["tau"] != first["tau"]}
    own = "".join(f", {label(name)} {tau:.3g}" for name, tau in taus.items())
    return Table(
        _file("metrics", first["stage"], first["classifier_id"]),
        f"{_group_title(first)}: {first['errors']:,} errors of {first['n']:,}, "
        f"tau = {first['tau']:g}{own}",
        {"metric": "metric", **{row["method"]: marked(row["method"]) for row in group}},
        [
            [heading(name), *(value_cell(row, name) for row in group)]
            for name in METRICS
            if name in first
        ],
    )


def paper_tables(rows: Iterable[Row]) -> list[Table]:
    """The columns of the paper beside its cells, for the data sets that it has."""
    tables = []
    for group in classifiers(row for row in rows if row["dataset"] in PAPER):
        first = group[0]
        tables.append(
            Table(
                _file("paper", first["stage"], first["classifier_id"]),
                f"Beside the paper: {_group_title(first)}, {first['errors']:,} errors of "
                f"{first['n']:,}, tau = {first['tau']:g}",
                {"method": "method", **_PAPER_COLUMNS},
                [[marked(row["method"]), *_beside_paper(row)] for row in group],
            )
        )
    return tables


_PAPER_COLUMNS = {
    "bacc": "BACC % ↑",
    "paper_bacc": "paper's",
    "auroc": "AUROC % ↑",
    "paper_auc": "paper's",
    "fpr": "FPR % ↓",
    "fp_share": "FP / n % ↓",
    "paper_fpr": "paper's FPR",
}


def _beside_paper(row: Row, *, shown: bool = True, spread: bool = False) -> list[Cell]:
    cells = PAPER.get(row["dataset"], {}).get(row["method"]) if shown else None
    bacc, auc, fpr = (_paper_cell(cell) for cell in cells or (None,) * 3)
    own = {
        name: value_cell(row, name, spread=spread) for name in ("bacc", "auroc", "fpr", "fp_share")
    }
    return [own["bacc"], bacc, own["auroc"], auc, own["fpr"], own["fp_share"], fpr]


def promise_table(rows: Sequence[Row]) -> Table:
    """Promised error rates of accepted answers, and what came of them on the test set."""
    lines: list[list[Words]] = []
    for row in rows:
        method = label(row["method"] + "_finetuned" * (row["stage"] == "finetuned"))
        target = Cell(f"{row['target']:.0%}", row["target"])
        calibration = Cell(f"{row['accepted']:,} of {row['n']:,}, {row['errors']:,} wrong")
        if row["tau"] is None:
            least = number(row["least_risk"])
            words = "" if math.isnan(least) else f"least: {least:.1%}"
            lines.append([method, "not achievable", target, "", words, "", ""])
            continue
        risk, low, high = (number(row[f"test_{name}"]) for name in ("risk", "low", "high"))
        kept = "kept" if risk <= row["target"] else "above it, perhaps by chance"
        lines.append(
            [
                method,
                "broken" if low > row["target"] else kept,
                target,
                Cell(printed_u(row["tau"], 4), row["tau"]),
                calibration,
                Cell(f"{row['test_coverage']:.1%}", row["test_coverage"]),
                Cell(f"{risk:.2%}", risk, f"[{low:.2%}, {high:.2%}]", {"low": low, "high": high}),
            ]
        )
    return Table(
        "promises",
        "An error rate of accepted answers that holds with a probability of 1 - delta over the "
        "draw of the calibration images, for images drawn as they were (learn then test); then "
        "what the test images say, with exact 95 % intervals.",
        {
            "method": "method",
            "verdict": "on the test set",
            "target": "promised",
            "tau": "tau",
            "calibration": "accepted in calibration",
            "coverage": "coverage",
            "risk": "error rate",
        },
        lines,
    )


def decision_table(outcomes: Mapping[str, Outcome], errors: int) -> Table:
    """Decisions about the same labeled answers, side by side.

    Args:
      outcomes: What each does to them, by its name.
      errors: How many of the answers are wrong.
    """
    lines: list[list[Words]] = []
    for name, found in outcomes.items():
        caught = errors - found.errors
        ends = {"low": found.low, "high": found.high} if found.accepted else {}
        interval = f"[{found.low:.2%}, {found.high:.2%}]" if found.accepted else ""
        lines.append(
            [
                name,
                _count(found.accepted),
                Cell(f"{found.coverage:.1%}", found.coverage),
                _count(found.errors),
                Cell(f"{found.risk:.2%}" if found.accepted else "n/a", found.risk, interval, ends),
                Cell(f"{caught:,} of {errors:,}", caught),
                _count(found.n - found.accepted - caught),
            ]
        )
    return Table(
        "decisions",
        "Which answers are accepted, and how many of them are wrong, with exact (Clopper-Pearson) "
        "95 % intervals of the error rate.",
        {
            "decision": "decision",
            "accepted": "accepted",
            "coverage": "coverage",
            "errors": "wrong ones among them",
            "risk": "error rate of accepted answers",
            "caught": "wrong answers caught",
            "correct_rejected": "right answers rejected",
        },
        lines,
    )


def error_table(errors: Sequence[Mapping[str, Any]], name: str, caption: str) -> Table:
    """Single errors, by column heading."""
    columns = {heading: heading for heading in errors[0]}
    return Table(name, caption, columns, [list(map(str, row.values())) for row in errors])


def pair_table(values: Mapping[str, Any], name: str, caption: str) -> Table:
    """Names and values."""
    lines = [[str(key), str(value)] for key, value in values.items()]
    return Table(name, caption, {"name": "name", "value": "value"}, lines)


# Tables over seeds -----------------------------------------------------------------------------


def failure_table(rows: Sequence[Row], *, paper: bool = True) -> Table:
    """Table 1: failure prediction on one data set, the paper's columns beside its cells.

    Args:
      rows: Rows of `across_seeds` with `answers`, of one data set, see `only`.
      paper: Whether to show the paper's cells; not for runs on a part of the data.
    """
    shown = paper and rows[0]["dataset"] in PAPER
    columns = {
        "method": "method",
        "accuracy": "accuracy %",
        "errors": "errors",
        "tau": "tau",
        **{key: text for key, text in _PAPER_COLUMNS.items() if shown or "paper" not in key},
        "fnr": heading("fnr"),
    }
    lines: list[list[Words]] = []
    for row in ordered(rows):
        cells = zip(_PAPER_COLUMNS, _beside_paper(row, shown=shown, spread=True), strict=True)
        lines.append(
            [
                who(row),
                value_cell(row, "accuracy"),
                _count(row["errors"]),
                value_cell(row, "tau", spread=False),
                *(cell for key, cell in cells if key in columns),
                value_cell(row, "fnr"),
            ]
        )
    spread = "; mean ± standard deviation" if rows[0].get("seeds", 1) > 1 else ""
    return Table(
        _file("failure", rows[0]["dataset"]),
        f"Failure prediction: {_about(rows[0])}, {int(rows[0]['n']):,} test images{spread}",
        columns,
        lines,
    )


def difference_table(rows: Sequence[Row]) -> Table:
    """Differences to the MCP of the same classifier, the best AUROC first.

    Args:
      rows: As `failure_table`.
    """
    column = f"{DIFFERENCES[0]}_minus_{REFERENCE}"
    compared = [row for row in ordered(rows) if not math.isnan(number(row.get(column)))]
    compared.sort(key=lambda row: -row[column])
    return Table(
        _file("difference", rows[0]["dataset"]),
        f"Ranking of errors, difference to the {label(REFERENCE)} of the same classifier: "
        f"{_about(rows[0])}; paired 95 % intervals",
        {
            "method": "method",
            **{f"{name}_minus_{REFERENCE}": heading(name) for name in DIFFERENCES},
        },
        [[who(row), *(difference_cell(row, name) for name in DIFFERENCES)] for row in compared],
    )


def ranking_table(rows: Sequence[Row]) -> Table:
    """What no monotone map of u can move.

    Args:
      rows: As `failure_table`.
    """
    return Table(
        _file("ranking", rows[0]["dataset"]),
        f"Ranking of errors, which no monotone map of u can move: {_about(rows[0])}",
        {"method": "method", **{name: heading(name) for name in RANKING}},
        [[who(row), *(value_cell(row, name) for name in RANKING)] for row in ordered(rows)],
    )


def all_metrics_table(rows: Sequence[Row]) -> Table:
    """Every metric of every line of `failure_table`."""
    lines = ordered(rows)
    return Table(
        _file("metrics", rows[0]["dataset"]),
        f"All metrics of failure prediction: {_about(rows[0])}",
        {"metric": "metric", **{_key(row): who(row) for row in lines}},
        [[heading(name), *(value_cell(row, name) for row in lines)] for name in METRICS],
    )


def ood_table(rows: Sequence[Row], *, n_ood: int, paper: bool = True) -> Table:
    """Table 2: telling images of one OOD set from the test images.

    Args:
      rows: Rows of task "ood" with `answers`, of one data set and OOD set.
      n_ood: Images of the OOD set.
      paper: Whether to show the paper's cells.
    """
    first = rows[0]
    published = PAPER_OOD.get((first["dataset"], first["ood"]), {}) if paper else {}
    beside = {"ood_acc": "paper_acc", "ood_au": "paper_au"} if published else {}
    difference = f"auroc_minus_{REFERENCE}"
    # The verdict second, where a phone shows it.
    columns = {"method": "method", difference: heading("auroc", f"minus {label(REFERENCE)}:")}
    for name in ("ood_acc", "ood_au", "auroc", "fpr95", "aupr_ood", "aupr_id"):
        columns[name] = heading(name)
        if name in beside:
            columns[beside[name]] = "paper's"
    lines = []
    for row in ordered(rows):
        acc, au = published.get(row["method"], (None, None))
        line: list[Words] = [who(row), difference_cell(row, "auroc")]
        for name in list(columns)[2:]:
            if name == "paper_acc":
                line.append(_paper_cell(acc))
            elif name == "paper_au":
                line.append(_paper_cell(au, 4))
            else:
                line.append(value_cell(row, name))
        lines.append(line)
    return Table(
        _file("ood", first["dataset"], first["ood"]),
        f"OOD detection: {first['ood']} ({n_ood:,} images) against {_about(first)} "
        f"({int(first['n']):,} test images)",
        columns,
        lines,
    )


JOINT = ("auroc", "aupr_error", "fpr95", "aurc", "risk_at_coverage_80")
"""Metrics of the joint task that a table shows."""


def joint_table(rows: Sequence[Row]) -> Table:
    """Failure prediction where an OOD image counts as an error, as `ood_table`."""
    first = rows[0]
    return Table(
        _file("joint", first["dataset"], first["ood"]),
        f"Joint task: an error or an image of {first['ood']} is what must be found; "
        f"{_about(first)}",
        {
            "method": "method",
            **{
                f"{name}_minus_{REFERENCE}": heading(name, f"minus {label(REFERENCE)}:")
                for name in ("auroc", "aurc")
            },
            **{name: heading(name) for name in JOINT},
        },
        [
            [
                who(row),
                *(difference_cell(row, name) for name in ("auroc", "aurc")),
                *(value_cell(row, name) for name in JOINT),
            ]
            for row in ordered(rows)
        ],
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
    sets = sorted(by(rows, "ood"), key=lambda name: hardness.get(name, math.inf))
    lines: dict[str, dict[str, Words]] = {}
    for row in ordered(rows):
        lines.setdefault(_key(row), {"": who(row)})[row["ood"]] = value_cell(row, "auroc")
    return Table(
        _file("near_far", rows[0]["dataset"]),
        f"Near and far: AUROC in %, the set that {label(REFERENCE)} finds hardest to tell from the "
        f"test images first; {_about(rows[0])}",
        {"method": "method", **{name: name for name in sets}},
        [[line[""], *(line.get(name, Cell("–")) for name in sets)] for line in lines.values()],
    )


def shift_table(rows: Sequence[Row], name: str) -> Table:
    """One metric on test images that were changed more and more.

    Args:
      rows: Rows of task "failure" with `answers`, of one data set and every split.
      name: Name of the metric.
    """
    splits = sorted(by(rows, "split"))  # "test" before "test:…", strengths in order.
    lines: dict[str, dict[str, Words]] = {}
    for row in ordered(rows):
        line = lines.setdefault(_key(row), {"": who(row)})
        line[row["split"]] = value_cell(row, name)
    accuracy = {row["split"]: value_cell(row, "accuracy") for row in rows if not row["answers"]}
    shown: list[list[Words]] = [["accuracy % of the frozen classifier"]]
    shown[0] += [accuracy.get(split, Cell("–")) for split in splits]
    for line in lines.values():
        if len(line) > 2 or "test" not in line:  # More than the heading and the plain test set.
            head = f"{line['']}: {title_of(name)} {unit(name, '×')}".rstrip()
            shown.append([head, *(line.get(split, Cell("–")) for split in splits)])
    return Table(
        _file("shift", name, rows[0]["dataset"]),
        f"Covariate shift: {title_of(name)} as the test images change; {_about(rows[0])}",
        {"method": "method", **{split: split.removeprefix("test:") for split in splits}},
        shown,
    )


ABLATION = ("bacc", "fpr", "fnr", "auroc", "aupr_error", "aurc")
"""Metrics of the ablation: what moves with the threshold, then what no threshold moves."""


def ablation_table(rows: Sequence[Row], base: Sequence[Row]) -> Table:
    """Frozen BTCP with one setting changed at a time, after MCP and the run's own BTCP.

    Args:
      rows: Rows of one data set and seed with `ablation`, method btcp.
      base: Rows of the classifier that they share: of mcp, tcp and btcp those that exist.
    """
    return Table(
        _file("ablation", base[0]["dataset"]),
        f"Ablation of the loss: {base[0]['dataset']}, seed {base[0]['seed']}, "
        f"{base[0]['errors']:,} errors, one classifier, tau = {base[0]['tau']:g}; 95 % intervals",
        {"setting": "setting", **{name: heading(name) for name in ABLATION}},
        [
            [words, *(value_cell(row, name) for name in ABLATION)]
            for words, row in [
                *((label(row["method"]), row) for row in base),
                *((f"{label('btcp')}, {row['ablation']}", row) for row in rows),
            ]
        ],
    )


def class_table(
    predictions: Sequence[Predictions], class_names: Sequence[str] | None, dataset: str
) -> Table:
    """Failures per class, summed over seeds.

    Args:
      predictions: Those of the frozen classifier on the test set, one for each seed.
      class_names: Names by class number.
      dataset: Name of the data set.
    """
    labels = np.concatenate([known_labels(p) for p in predictions])
    predicted = np.concatenate([p.predicted for p in predictions])
    shown = [
        name for name in (REFERENCE, "btcp") if all(name in p.uncertainty for p in predictions)
    ]
    columns = {name: np.concatenate([p.uncertainty[name] for p in predictions]) for name in shown}
    lines = []
    for number_ in np.unique(labels):
        here = labels == number_
        wrong = here & (predicted != number_)
        line: list[Words] = [class_name(int(number_), class_names), _count(here.sum())]
        share = float(wrong.sum() / here.sum())
        line += [_count(wrong.sum()), Cell(f"{100 * share:.2f}", share)]
        said, times = np.unique(predicted[wrong], return_counts=True)
        most = (
            f"{class_name(int(said[times.argmax()]), class_names)} ({times.max():,})"
            if len(said)
            else "–"
        )
        line.append(most)
        for name in shown:
            for rows in (here & ~wrong, wrong):
                mean = float(columns[name][rows].mean()) if rows.any() else math.nan
                line.append(Cell("n/a" if math.isnan(mean) else printed_u(mean), mean))
        lines.append(line)
    headings = {"images": "images", "errors": "errors", "error_rate": "error rate %"}
    means = {
        f"{name}_{kind}": f"mean u of {label(name)}, {kind}"
        for name in shown
        for kind in ("correct", "wrong")
    }
    count = len(predictions)
    return Table(
        _file("classes", dataset),
        f"Failures per class: {dataset}, frozen classifier"
        + (f", images and errors of {count} seeds added up" if count > 1 else ""),
        {"class": "class", **headings, "taken_for": "most often taken for", **means},
        lines,
    )


def known_labels(predictions: Predictions) -> np.ndarray:
    """The true classes `[n]`.

    Raises:
      ValueError: If there are none: the samples of an OOD set.
    """
    if predictions.labels is None:
        raise ValueError("expected predictions with labels, the true classes, received none")
    return predictions.labels


def class_name(number: int, class_names: Sequence[str] | None) -> str:
    """The name of a class, its number where there are no names."""
    return str(number) if class_names is None else str(class_names[number])


# The terminal ----------------------------------------------------------------------------------


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
    rows = only(rows)
    headings = ["method", *(f"{title_of(name)} {unit(name)}" for name in HEADLINE)]
    for group in classifiers(rows):
        first = group[0]
        lines += [
            answers_title(first),
            f"  accuracy {printed(number(first['accuracy']), 'accuracy')} %, "
            f"{first['errors']:,} errors of {first['n']:,}",
        ]
        # All intervals if they fit, else the first metric's.
        for shown in (HEADLINE, HEADLINE[:1]):
            table = [
                [row["method"], *(str(value_cell(row, m, spread=m in shown)) for m in HEADLINE)]
                for row in group
            ]
            shown_lines = aligned([headings, *table])
            if max(map(len, shown_lines)) < 80:
                break
        lines += [*shown_lines, ""]
    if any(interval(row, name) for row in rows for name in HEADLINE):
        lines += ["In brackets: 95 % bootstrap intervals.", ""]
    if files:
        width = max(map(len, files)) + 2
        lines += [f"{name:<{width}}{os.fspath(path)}" for name, path in files.items()]
    return "\n".join(lines).rstrip()


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text, indented, with the entries of a column below one another."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [("  " + "  ".join(map(str.ljust, cells, widths))).rstrip() for cells in table]


def study_terminal_table(rows: Sequence[Row]) -> str:
    """The ranking of errors by every method of a study, in fewer than 80 columns.

    Args:
      rows: Rows over seeds with `answers`, see `failure_table`.
    """
    lines = []
    for group in by(rows, "dataset").values():
        table = [["method", "AUROC %", "to MCP", "AURC x1000", "verdict"]]
        for row in ordered(group):
            difference = difference_cell(row, "auroc")
            name = row["method"] + "*" * bool(row["answers"])
            values = [str(value_cell(row, "auroc")), value_cell(row, "aurc").text]
            line = [name, values[0], difference.text, values[1], row.get("verdict", "")]
            table.append([words.replace("±", "+-").replace("–", "-") for words in line])
        lines += [_about(group[0]), *aligned(table)]
        if any(row["answers"] for row in group):
            lines.append("  * not the shared classifier: its own answers, or fine-tuned")
        lines.append("")
    return "\n".join(lines).rstrip()
