"""Tables of result rows: what stands in them, not how a page, a CSV or a LaTeX file shows it.

Nothing here computes a metric: numbers come from the rows of `btcp_tf.evaluation`, of one run or
over several seeds; rows per class are counts of the predictions. A row of several seeds
shows its standard deviation, a row of one run its interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf.evaluation.keys import ImageSet, Predictor
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.evaluation.results import DIFFERENCES
from btcp_tf.metrics import METRICS
from btcp_tf.reporting import cells as cells_
from btcp_tf.reporting.cells import (
    HEADLINE,
    RANKING,
    Cell,
    Row,
    Table,
    Words,
    about_row,
    by,
    class_name,
    classifiers,
    count_cell,
    difference_cell,
    file_name,
    group_title,
    label,
    marked,
    number,
    ordered,
    paper_cell,
    printed_u,
    sort_key,
    title_of,
    unit,
    value_cell,
)
from btcp_tf.reporting.paper import PAPER, PAPER_OOD
from btcp_tf.thresholds import Outcome


def headline_tables(group: Sequence[Row]) -> list[Table]:
    """The first metrics of a classifier's methods, and their differences to its MCP."""
    title, stem = group_title(group[0]), file_name(group[0]["stage"], group[0]["classifier_id"])
    found = [
        Table(
            f"headline_{stem}",
            f"{title}, 95 % intervals in brackets",
            {"method": "method", **{name: cells_.heading(name) for name in HEADLINE}},
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
                    **{f"{name}_minus_{REFERENCE}": cells_.heading(name) for name in DIFFERENCES},
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
        file_name("metrics", first["stage"], first["classifier_id"]),
        f"{group_title(first)}: {first['errors']:,} errors of {first['n']:,}, "
        f"tau = {first['tau']:g}{own}",
        {"metric": "metric", **{row["method"]: marked(row["method"]) for row in group}},
        [
            [cells_.heading(name), *(value_cell(row, name) for row in group)]
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
                file_name("paper", first["stage"], first["classifier_id"]),
                f"Beside the paper: {group_title(first)}, {first['errors']:,} errors of "
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
    bacc, auc, fpr = (paper_cell(cell) for cell in cells or (None,) * 3)
    own = {
        name: value_cell(row, name, spread=spread) for name in ("bacc", "auroc", "fpr", "fp_share")
    }
    return [own["bacc"], bacc, own["auroc"], auc, own["fpr"], own["fp_share"], fpr]


def promise_table(rows: Sequence[Row]) -> Table:
    """Promised error rates of accepted answers, and what came of them on the test set."""
    lines: list[list[Words]] = []
    for row in rows:
        method = label(str(Predictor(row["method"], row["stage"])))
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
                count_cell(found.accepted),
                Cell(f"{found.coverage:.1%}", found.coverage),
                count_cell(found.errors),
                Cell(f"{found.risk:.2%}" if found.accepted else "n/a", found.risk, interval, ends),
                Cell(f"{caught:,} of {errors:,}", caught),
                count_cell(found.n - found.accepted - caught),
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
        "fnr": cells_.heading("fnr"),
    }
    lines: list[list[Words]] = []
    for row in ordered(rows):
        cells = zip(_PAPER_COLUMNS, _beside_paper(row, shown=shown, spread=True), strict=True)
        lines.append(
            [
                cells_.who(row),
                value_cell(row, "accuracy"),
                count_cell(row["errors"]),
                value_cell(row, "tau", spread=False),
                *(cell for key, cell in cells if key in columns),
                value_cell(row, "fnr"),
            ]
        )
    spread = "; mean ± standard deviation" if rows[0].get("seeds", 1) > 1 else ""
    return Table(
        file_name("failure", rows[0]["dataset"]),
        f"Failure prediction: {about_row(rows[0])}, {int(rows[0]['n']):,} test images{spread}",
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
        file_name("difference", rows[0]["dataset"]),
        f"Ranking of errors, difference to the {label(REFERENCE)} of the same classifier: "
        f"{about_row(rows[0])}; paired 95 % intervals",
        {
            "method": "method",
            **{f"{name}_minus_{REFERENCE}": cells_.heading(name) for name in DIFFERENCES},
        },
        [
            [cells_.who(row), *(difference_cell(row, name) for name in DIFFERENCES)]
            for row in compared
        ],
    )


def ranking_table(rows: Sequence[Row]) -> Table:
    """What no monotone map of u can move.

    Args:
      rows: As `failure_table`.
    """
    return Table(
        file_name("ranking", rows[0]["dataset"]),
        f"Ranking of errors, which no monotone map of u can move: {about_row(rows[0])}",
        {"method": "method", **{name: cells_.heading(name) for name in RANKING}},
        [[cells_.who(row), *(value_cell(row, name) for name in RANKING)] for row in ordered(rows)],
    )


def all_metrics_table(rows: Sequence[Row]) -> Table:
    """Every metric of every line of `failure_table`."""
    lines = ordered(rows)
    return Table(
        file_name("metrics", rows[0]["dataset"]),
        f"All metrics of failure prediction: {about_row(rows[0])}",
        {"metric": "metric", **{sort_key(row): cells_.who(row) for row in lines}},
        [[cells_.heading(name), *(value_cell(row, name) for row in lines)] for name in METRICS],
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
    columns = {
        "method": "method",
        difference: cells_.heading("auroc", f"minus {label(REFERENCE)}:"),
    }
    for name in ("ood_acc", "ood_au", "auroc", "fpr95", "aupr_ood", "aupr_id"):
        columns[name] = cells_.heading(name)
        if name in beside:
            columns[beside[name]] = "paper's"
    lines = []
    for row in ordered(rows):
        acc, au = published.get(row["method"], (None, None))
        line: list[Words] = [cells_.who(row), difference_cell(row, "auroc")]
        for name in list(columns)[2:]:
            if name == "paper_acc":
                line.append(paper_cell(acc))
            elif name == "paper_au":
                line.append(paper_cell(au, 4))
            else:
                line.append(value_cell(row, name))
        lines.append(line)
    return Table(
        file_name("ood", first["dataset"], first["ood"]),
        f"OOD detection: {first['ood']} ({n_ood:,} images) against {about_row(first)} "
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
        file_name("joint", first["dataset"], first["ood"]),
        f"Joint task: an error or an image of {first['ood']} is what must be found; "
        f"{about_row(first)}",
        {
            "method": "method",
            **{
                f"{name}_minus_{REFERENCE}": cells_.heading(name, f"minus {label(REFERENCE)}:")
                for name in ("auroc", "aurc")
            },
            **{name: cells_.heading(name) for name in JOINT},
        },
        [
            [
                cells_.who(row),
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
        lines.setdefault(sort_key(row), {"": cells_.who(row)})[row["ood"]] = value_cell(
            row, "auroc"
        )
    return Table(
        file_name("near_far", rows[0]["dataset"]),
        f"Near and far: AUROC in %, the set that {label(REFERENCE)} finds hardest to tell from the "
        f"test images first; {about_row(rows[0])}",
        {"method": "method", **{name: name for name in sets}},
        [[line[""], *(line.get(name, Cell("–")) for name in sets)] for line in lines.values()],
    )


def _corruption(split: str) -> str:
    images = ImageSet.of_row({"split": split})
    return f"{images.name}{images.strength}" if images.kind == "shift" else split


def shift_table(rows: Sequence[Row], name: str) -> Table:
    """One metric on test images that were changed more and more.

    Args:
      rows: Rows of task "failure" with `answers`, of one data set and every split.
      name: Name of the metric.
    """
    splits = sorted(by(rows, "split"))  # "test" before "test:…", strengths in order.
    lines: dict[str, dict[str, Words]] = {}
    for row in ordered(rows):
        line = lines.setdefault(sort_key(row), {"": cells_.who(row)})
        line[row["split"]] = value_cell(row, name)
    accuracy = {row["split"]: value_cell(row, "accuracy") for row in rows if not row["answers"]}
    shown: list[list[Words]] = [["accuracy % of the frozen classifier"]]
    shown[0] += [accuracy.get(split, Cell("–")) for split in splits]
    for line in lines.values():
        if len(line) > 2 or "test" not in line:  # More than the heading and the plain test set.
            head = f"{line['']}: {title_of(name)} {unit(name, '×')}".rstrip()
            shown.append([head, *(line.get(split, Cell("–")) for split in splits)])
    return Table(
        file_name("shift", name, rows[0]["dataset"]),
        f"Covariate shift: {title_of(name)} as the test images change; {about_row(rows[0])}",
        {"method": "method", **{name: _corruption(name) for name in splits}},
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
        file_name("ablation", base[0]["dataset"]),
        f"Ablation of the loss: {base[0]['dataset']}, seed {base[0]['seed']}, "
        f"{base[0]['errors']:,} errors, one classifier, tau = {base[0]['tau']:g}; 95 % intervals",
        {"setting": "setting", **{name: cells_.heading(name) for name in ABLATION}},
        [
            [words, *(value_cell(row, name) for name in ABLATION)]
            for words, row in [
                *((label(row["method"]), row) for row in base),
                *((f"{label('btcp')}, {row['ablation']}", row) for row in rows),
            ]
        ],
    )


def class_table(
    predictions: Sequence[Predictions],
    class_names: Sequence[str] | None,
    dataset: str,
    who: str = "frozen classifier",
) -> Table:
    """Failures per class, summed over seeds.

    Args:
      predictions: Those of the frozen classifier on the test set, one for each seed.
      class_names: Names by class number.
      dataset: Name of the data set.
      who: Whose answers they are; "": the data set says it.
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
        line: list[Words] = [class_name(int(number_), class_names), count_cell(here.sum())]
        share = float(wrong.sum() / here.sum())
        line += [count_cell(wrong.sum()), Cell(f"{100 * share:.2f}", share)]
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
        file_name("classes", dataset),
        f"Failures per class: {dataset}{who and ', '}{who}"
        + (f", images and errors of {count} seeds added up" if count > 1 else ""),
        {"class": "class", **headings, "taken_for": "most often taken for", **means},
        lines,
    )


def confusion(predictions: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
    """How often a class is taken for another one, summed over classifiers.

    Args:
      predictions: With labels.

    Returns:
      Numbers of the classes that occur, `[k]`, ascending; counts `[k, k]` int64, a row for each
      true and a column for each predicted class.
    """
    labels = np.concatenate([known_labels(p) for p in predictions])
    predicted = np.concatenate([p.predicted for p in predictions])
    classes = np.unique(np.concatenate([labels, predicted]))
    k = len(classes)
    cells = np.searchsorted(classes, labels) * k + np.searchsorted(classes, predicted)
    return classes, np.bincount(cells, minlength=k * k).reshape(k, k)


def confused(counts: np.ndarray) -> list[tuple[int, int]]:
    """Places (true, predicted) of the wrong cells of a confusion matrix, the fullest first."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
    places = np.unravel_index(order, wrong.shape)
    return [(int(true), int(said)) for true, said in zip(*places, strict=True)]


def confused_table(
    classes: np.ndarray,
    counts: np.ndarray,
    class_names: Sequence[str] | None,
    dataset: str,
    most: int = 20,
) -> Table | None:
    """The pairs of classes that are confused most; None: none is.

    Args:
      classes: From `confusion`.
      counts: The same.
      class_names: Names by class number.
      dataset: Name of the data set.
      most: How many pairs.
    """
    pairs = confused(counts)
    errors = sum(int(counts[pair]) for pair in pairs)
    lines: list[list[Words]] = []
    for true, said in pairs[:most]:
        found, of_class = int(counts[true, said]), int(counts[true].sum())
        shares = found / of_class, found / errors
        lines.append(
            [
                class_name(int(classes[true]), class_names),
                class_name(int(classes[said]), class_names),
                count_cell(found),
                *(Cell(f"{100 * share:.2f}", share) for share in shares),
            ]
        )
    if not lines:
        return None
    more = f", the {most} most frequent of {len(pairs):,} pairs" if len(pairs) > most else ""
    return Table(
        file_name("confused", dataset),
        f"Which class is taken for which: {dataset}{more}",
        {
            "true": "true class",
            "predicted": "predicted",
            "times": "times",
            "share_of_class": "of the class %",
            "share_of_errors": "of all errors %",
        },
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
