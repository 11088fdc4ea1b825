"""Every figure: curves of predictions, curves per epoch, and pictures of result rows.

Each plot draws on an `ax` it is given, from saved rows or predictions, so that
it can be put into any Matplotlib figure. Colors are the Okabe-Ito set, and each
line also has its own dashes and marker: figures stay legible to color-blind
readers and in gray. Where there are more methods than a reader can follow, the
paper's and `residual` stand out and the others are thin and gray.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.evaluation.keys import TEST, ImageSet
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS, reliability_curve, risk_coverage_curve, roc_curve
from btcp_tf.reporting import cells, drawing
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.drawing import FILLED, GRAY, HATCHED, KNOWN, STYLES, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_uncertainty_histogram(
    ax: Axes,
    is_error: np.ndarray,
    uncertainty: np.ndarray,
    *,
    bins: int = 50,
    tau: float | None = None,
    title: str = "",
) -> None:
    """Histograms of u for correct and for wrong answers, counts on a log axis.

    The paper's uncertainty histogram, with the two kinds of answers apart: on a
    linear axis the few errors would not be seen.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: `[n]`. Bins span [0, 1], or the range of a raw score beyond.
      bins: Number of equal bins.
      tau: Decision threshold to mark.
      title: Title of the panel.
    """
    is_error, uncertainty = np.asarray(is_error, bool), np.asarray(uncertainty, np.float64)
    span = (min(0.0, uncertainty.min()), max(1.0, uncertainty.max()))
    for name, rows, style in (("correct", ~is_error, FILLED), ("wrong", is_error, HATCHED)):
        counts, edges = np.histogram(uncertainty[rows], bins=bins, range=span)
        # A baseline below one, so that a bin with a single answer has a height.
        words = f"{name} ({counts.sum():,})"
        ax.stairs(counts, edges, baseline=0.5, fill=True, label=words, **style)
    if tau is not None:
        ax.axvline(tau, color="black", linestyle=":", linewidth=1.2, label=f"tau = {tau:g}")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.minorticks_off()
    drawing.label_axes(ax, "uncertainty u", "answers", title)
    ax.set_xlim(*span)
    drawing.draw_legend(ax, loc="upper right")


def plot_risk_coverage(
    ax: Axes, is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], *, title: str = ""
) -> None:
    """Error rate of the accepted answers against the share accepted, with the oracle.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`.
      title: Title of the panel.
    """
    is_error = np.asarray(is_error, bool)
    # The oracle accepts every correct answer before any wrong one; its ranks have no ties.
    oracle = np.argsort(np.argsort(is_error, kind="stable"), kind="stable")
    curve = risk_coverage_curve(is_error, oracle)
    ax.plot(curve.coverage, curve.risk, color=GRAY, linewidth=1.0, label="oracle")
    top = curve.risk[-1]
    for name, style in drawing.styles(uncertainty).items():
        curve = risk_coverage_curve(is_error, uncertainty[name])
        drawing.draw_line(ax, curve.coverage, curve.risk, name, style)
        # The first few answers make the curve jump; they must not set the scale.
        top = max(top, curve.risk[curve.coverage >= 0.05].max())
    ax.set_ylim(0, min(1.0, 1.08 * top) or 0.01)
    ax.set_xlim(0, 1)
    drawing.percent(ax.xaxis, decimals=0)
    drawing.percent(ax.yaxis)
    drawing.label_axes(ax, "coverage: answers accepted", "risk: errors among them", title)
    drawing.draw_legend(ax, loc="upper left")


def plot_thresholds(
    ax: Axes,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    points: Mapping[str, tuple[float, float]],
    *,
    quantity: str,
    title: str = "",
) -> None:
    """Coverage or risk against tau, with chosen thresholds.

    Args:
      ax: Where to draw.
      curves: Names of two splits -> (tau `[m]`, ascending, value `[m]` in [0, 1]).
      points: Words about a chosen threshold -> (tau, value on the last curve).
      quantity: Label of the value.
      title: Title of the panel.
    """
    top = 0.0
    for (name, (tau, value)), dashes, color in zip(
        curves.items(), ("--", "-"), (GRAY, "black"), strict=True
    ):
        ax.step(tau, value, where="post", linestyle=dashes, color=color, linewidth=1.2, label=name)
        top = max(top, float(value.max()))
    for size, (words, (at, height)), style in zip(
        range(11, 0, -2), points.items(), STYLES, strict=False
    ):
        # Thresholds that coincide stand on one another.
        marker: dict[str, Any] = style | {"linestyle": "", "markersize": size, "zorder": 3}
        ax.plot([at], [height], label=words, **marker)
    ax.set_ylim(0, min(1.02, 1.08 * top) or 0.01)
    low = min(tau[0] for tau, _ in curves.values())
    high = max(tau[-1] for tau, _ in curves.values())
    if 0 < 100 * low < high:
        ax.set_xscale("log")
    drawing.percent(ax.yaxis)
    drawing.label_axes(ax, "tau: answers with u below it are accepted", quantity, title)


def plot_roc(
    ax: Axes, is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], *, title: str = ""
) -> None:
    """Share of errors rejected against share of correct answers rejected.

    Says so in words where there is no error, or nothing else: no curve exists.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`.
      title: Title of the panel.
    """
    is_error = np.asarray(is_error, bool)
    ax.plot([0, 1], [0, 1], color=GRAY, linewidth=1.0, label="chance")
    if is_error.any() and not is_error.all():
        for name, style in drawing.styles(uncertainty).items():
            curve = roc_curve(is_error, uncertainty[name])
            drawing.draw_line(ax, curve.correct_rejected, curve.errors_rejected, name, style)
    else:
        drawing.say_so(
            ax, "no ROC curve: every answer is " + ("wrong" if is_error.any() else "correct")
        )
    ax.set_xlim(-0.01, 1)
    ax.set_ylim(0, 1.01)
    for axis in (ax.xaxis, ax.yaxis):
        drawing.percent(axis, decimals=0)
    drawing.label_axes(ax, "correct answers rejected", "errors rejected", title)
    drawing.draw_legend(ax, loc="lower right")


def plot_reliability(
    ax: Axes,
    is_error: np.ndarray,
    uncertainty: Mapping[str, np.ndarray],
    *,
    bins: int = 15,
    title: str = "",
) -> None:
    """Share correct against 1 - u, read as the probability of being correct.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`; columns that leave [0, 1] are
        raw scores, no probabilities, and are left out.
      bins: Number of equal bins; empty ones have no point.
      title: Title of the panel.
    """
    ax.plot([0, 1], [0, 1], color=GRAY, linewidth=1.0, label="perfect")
    some = False
    for name, style in drawing.styles(uncertainty).items():
        u = uncertainty[name]
        if np.min(u) >= 0 and np.max(u) <= 1:
            some = True
            curve = reliability_curve(is_error, u, bins=bins)
            drawing.draw_line(ax, curve.confidence, curve.accuracy, name, style, every=1)
    if not some:
        drawing.say_so(ax, "no column of u lies in [0, 1]")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.03)
    for axis in (ax.xaxis, ax.yaxis):
        drawing.percent(axis, decimals=0)
    drawing.label_axes(ax, "confidence 1 - u", "answers that are correct", title)
    drawing.draw_legend(ax, loc="upper left")


def plot_confidence(
    ax: Axes, inside: np.ndarray, outside: np.ndarray, *, bins: int = 40, title: str = ""
) -> None:
    """Confidence 1 - u of test images and of OOD images: the paper's figure.

    Args:
      ax: Where to draw.
      inside: u of the test images `[n]`, in [0, 1].
      outside: u of the OOD images `[m]`, in [0, 1].
      bins: Number of equal bins; heights are shares of each set.
      title: Title of the panel.
    """
    for name, u, style in (("test", inside, FILLED), ("OOD", outside, HATCHED)):
        counts, edges = np.histogram(1.0 - np.asarray(u, np.float64), bins=bins, range=(0, 1))
        words = f"{name} ({len(u):,})"
        ax.stairs(counts / len(u), edges, fill=True, label=words, **style)
    ax.set_xlim(0, 1)
    drawing.percent(ax.yaxis, decimals=0)
    drawing.label_axes(ax, "confidence 1 - u", "share of the images", title)
    drawing.draw_legend(ax)


def with_thresholding(history: Iterable[Row]) -> list[Row]:
    """A history with the stage "thresholding" added: another's u at the tau of best BACC.

    Args:
      history: Rows per epoch; those with `fpr_best_tau` and `fnr_best_tau` give a row each.
    """
    rows = list(history)
    moved = [row for row in rows if not math.isnan(drawing.optional(row, "fpr_best_tau"))]
    return rows + [
        {**row, "stage": "thresholding", "fpr": row["fpr_best_tau"], "fnr": row["fnr_best_tau"]}
        for row in moved
    ]


def plot_epochs(
    ax: Axes, history: Iterable[Row], column: str, *, ylabel: str = "", title: str = ""
) -> None:
    """One column of the history against the epoch, one line for each stage.

    Args:
      ax: Where to draw.
      history: Rows with `stage`, `epoch` (from 1) and `column`; None and NaN
        leave a gap. Rows of several seeds are averaged, and their range shaded.
      column: Name of the column, such as `u_mean` or `u_std`.
      ylabel: What the column is.
      title: Title of the panel.
    """
    stages = cells.by(history, "stage")
    for stage, style in drawing.styles(stages).items():
        epochs, low, mean, high = over_epochs(stages[stage], column)
        drawing.draw_line(ax, epochs, mean, stage, style, every=max(1, len(epochs) // 8))
        if np.any(high > low):
            ax.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    ax.set_ylim(bottom=0)
    drawing.epoch_axis(ax, max(row["epoch"] for rows in stages.values() for row in rows))
    drawing.label_axes(ax, "epoch of the phase", ylabel, title)
    drawing.draw_legend(ax)


def plot_rate(ax: Axes, history: Iterable[Row], column: str, *, title: str = "") -> None:
    """A rate of several stages against the epoch, as `plot_epochs`: the paper's figure.

    Args:
      ax: Where to draw.
      history: Rows of `with_thresholding`.
      column: "fpr" or "fnr".
      title: Title of the panel.
    """
    plot_epochs(ax, history, column, ylabel=column.upper(), title=title)
    _rate_axis(ax)


def plot_fpr_fnr(ax: Axes, history: Iterable[Row], *, title: str = "") -> None:
    """FPR and FNR of one stage against the epoch.

    FPR is the share of errors accepted, FNR the share of correct answers
    rejected, both at the run's tau.

    Args:
      ax: Where to draw.
      history: Rows of one stage with `epoch` (from 1), `fpr` and `fnr`.
      title: Title of the panel.
    """
    rows = list(history)
    for name, style in (("fpr", STYLES[1]), ("fnr", STYLES[0])):
        epochs, _, mean, _ = over_epochs(rows, name)
        drawing.draw_line(ax, epochs, mean, name.upper(), style, every=max(1, len(epochs) // 8))
    drawing.epoch_axis(ax, max(row["epoch"] for row in rows))
    drawing.label_axes(ax, "epoch of the phase", "rate", title)
    _rate_axis(ax)


def over_epochs(rows: Iterable[Row], column: str) -> tuple[np.ndarray, ...]:
    """Epochs, and the least, mean and largest value of the seeds in each."""
    groups = cells.by(rows, "epoch")
    epochs = np.array(sorted(groups))
    values = [
        np.array([drawing.optional(row, column) for row in groups[epoch]]) for epoch in epochs
    ]
    return epochs, *(
        np.array([function(value) for value in values]) for function in (np.min, np.mean, np.max)
    )


def _rate_axis(ax: Axes) -> None:
    # Both ends of the scale carry lines: the legend stands above the upper one.
    ax.set_ylim(-0.02, 1.32)
    ax.set_yticks(np.arange(0, 1.01, 0.2))
    drawing.percent(ax.yaxis, decimals=0)
    drawing.draw_legend(ax, loc="upper center", ncols=2)


def plot_shift(
    ax: Axes, rows: Iterable[Row], corruption: str, metric: str = "aurc", *, title: str = ""
) -> None:
    """A metric against the strength of a corruption, with the accuracy below each strength.

    Args:
      ax: Where to draw.
      rows: Rows of one data set with `method`, `split` ("test", "test:noise1", ...), `accuracy`
        and the metric, of the shared classifier.
      corruption: Name of the corruption, such as "noise".
      metric: Name of the metric.
      title: Title of the panel.
    """
    images = [TEST, *(ImageSet("shift", corruption, strength) for strength in (1, 2, 3))]
    strengths = {one.column: one.strength for one in images}
    rows = [row for row in rows if row["split"] in strengths]
    methods = {
        method: group for method, group in cells.by(rows, "method").items() if len(group) > 1
    }
    scale = {"%": 100.0, "x1000": 1000.0}.get(cells.unit(metric), 1.0)
    for method, style in drawing.styles(methods).items():
        group = sorted(methods[method], key=lambda row: strengths[row["split"]])
        x = np.array([strengths[row["split"]] for row in group])
        y = scale * np.array([cells.number(row[metric]) for row in group])
        drawing.draw_line(ax, x, y, method, style, every=1)
    accuracy = {strengths[row["split"]]: cells.number(row["accuracy"]) for row in rows}
    ticks = sorted(accuracy)
    ax.set_xticks(ticks, [f"{tick}\n{accuracy[tick]:.0%}" for tick in ticks])
    ax.set_ylim(bottom=0)
    drawing.label_axes(
        ax,
        "strength, accuracy",
        f"{cells.title_of(metric)} {cells.unit(metric, '×')}".strip(),
        title,
    )
    drawing.draw_legend(ax)


def mean_ranks(rows: Iterable[Row], metric: str = "aurc") -> tuple[list[str], np.ndarray]:
    """Ranks of methods within each classifier, 1 the best; ties share their mean rank.

    Args:
      rows: Rows of the shared classifiers, one for each data set, seed and method. Methods that
        are missing or NaN anywhere are left out.
      metric: Name of the metric.

    Returns:
      Methods and their ranks `[methods, classifiers]`, best mean rank first.
    """
    blocks = [
        {row["method"]: cells.number(row[metric]) for row in group}
        for group in cells.by(rows, "dataset", "seed").values()
    ]
    names = [
        name
        for name in dict.fromkeys(name for block in blocks for name in block)
        if all(not math.isnan(block.get(name, math.nan)) for block in blocks)
    ]
    values = np.array([[block[name] for block in blocks] for name in names]).reshape(
        len(names), len(blocks)
    )
    values = -values if METRICS[metric].higher_is_better else values
    below = (values[:, None] > values[None]).sum(axis=1)
    equal = (values[:, None] == values[None]).sum(axis=1)
    ranks = below + (equal + 1) / 2
    order = np.argsort(ranks.mean(axis=1), kind="stable")
    return [names[place] for place in order], ranks[order]


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's critical difference of two mean ranks at 5 % (Demsar, 2006, section 3.2.2).

    Args:
      methods: Number of methods compared, at least 2.
      blocks: Number of data sets and seeds.
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def plot_ranks(ax: Axes, rows: Iterable[Row], metric: str = "aurc", *, title: str = "") -> None:
    """Mean rank of each method over data sets and seeds, with Nemenyi's critical difference.

    Args:
      ax: Where to draw.
      rows: As `mean_ranks`.
      metric: Name of the metric.
      title: Title of the panel.
    """
    names, ranks = mean_ranks(rows, metric)
    for place, (name, row) in enumerate(zip(names, ranks, strict=True)):
        main = name in KNOWN
        ax.plot([row.min(), row.max()], [place, place], color="#B0B0B0", linewidth=2.5, zorder=1)
        ax.plot(row.mean(), place, "o", color="black", markerfacecolor="black" if main else "white")
        ax.annotate(
            f"{row.mean():.1f}",
            (row.mean(), place),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )
    ax.set_yticks(range(len(names)), [cells.label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -1.6)
    ax.set_xlim(0.5, max(len(names), 2) + 0.5)
    drawing.label_axes(ax, f"rank by {cells.title_of(metric)}, 1 = best", "", title)
    if len(names) > 1:
        cd = critical_difference(len(names), ranks.shape[1])
        ax.plot([1, 1 + cd], [-1, -1], color=WRONG, linewidth=2.5)
        ax.annotate(
            f"critical difference {cd:.1f}",
            (1, -1),
            (0, 4),
            textcoords="offset points",
            fontsize=8,
            color="#8c2f00",
        )


def plot_ablation(
    ax: Axes, rows: Sequence[Row], metric: str, base: Sequence[Row] = (), *, title: str = ""
) -> None:
    """A metric of BTCP under one changed setting after the other, with its intervals.

    Args:
      ax: Where to draw.
      rows: Rows with `ablation`, the metric and its `_low` and `_high`.
      metric: Name of the metric.
      base: Rows of the classifier itself; that of mcp is a dashed line, others come first.
      title: Title of the panel.
    """
    scale = {"%": 100.0, "x1000": 1000.0}.get(cells.unit(metric), 1.0)
    lines = [(cells.label(row["method"]), row) for row in base if row["method"] != REFERENCE]
    lines += [(row["ablation"], row) for row in rows]
    for row in base:
        if row["method"] == REFERENCE:
            ax.axvline(scale * cells.number(row[metric]), color=STYLES[0]["color"], linestyle="--")
            ax.annotate(
                cells.label(REFERENCE),
                (scale * cells.number(row[metric]), 1),
                (2, -9),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=8,
                color=STYLES[0]["color"],
            )
    for place, (_, row) in enumerate(lines):
        low, high = (cells.number(row.get(f"{metric}_{end}")) for end in ("low", "high"))
        ax.plot([scale * low, scale * high], [place, place], color="#8a8a8a", linewidth=2)
        ax.plot(
            scale * cells.number(row[metric]), place, "o", color=STYLES[1]["color"], markersize=5
        )
    ax.set_yticks(range(len(lines)), [words for words, _ in lines])
    ax.set_ylim(len(lines) - 0.4, -1.2)
    drawing.label_axes(ax, f"{cells.title_of(metric)} {cells.unit(metric, '×')}".strip(), "", title)


def confident_errors(is_error: np.ndarray, uncertainty: np.ndarray, count: int = 24) -> np.ndarray:
    """Rows of the wrong answers that are trusted most, most trusted first.

    Args:
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: `[n]`.
      count: How many at most.

    Returns:
      `[<= count]` int64; tied rows in their order.
    """
    wrong = np.flatnonzero(is_error)
    return wrong[np.argsort(np.asarray(uncertainty)[wrong], kind="stable")[:count]]


def trusted_by_all(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], count: int = 24
) -> np.ndarray:
    """Rows of the wrong answers that every method trusts: the label itself may be wrong.

    To trust an answer is here to rank it among the more trusted half of all answers. Ordered by the
    worst rank that any method gives the row among all rows, ties of u sharing the higher rank.

    Args:
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`. Methods that know the labels, and controls that
        know nothing, do not count.
      count: How many at most.

    Returns:
      `[<= count]` int64; tied rows in their order.
    """
    wrong = np.flatnonzero(is_error)
    worst = np.zeros(len(wrong), np.int64)
    for name, u in uncertainty.items():
        if name not in METHODS or METHODS[name].group != "control":
            worst = np.maximum(worst, np.searchsorted(np.sort(u), u[wrong], side="right"))
    order = np.argsort(worst, kind="stable")[:count]
    return wrong[order[worst[order] <= len(is_error) / 2]]


def error_sheet(
    images: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    remarks: Sequence[str],
    class_names: Sequence[str] | None = None,
    *,
    columns: int = 6,
) -> Figure:
    """A sheet of wrong answers: image, true and predicted class, and a remark.

    Args:
      images: `[n, height, width, channels]` uint8, 1 or 3 channels, in the order shown.
      labels: `[n]` true classes.
      predicted: `[n]` predicted classes.
      remarks: `[n]` last line of each image's title, such as "u = 0.012".
      class_names: Names by class number; without them the numbers are shown.
      columns: Images side by side.
    """
    from matplotlib.figure import Figure

    if not len(images):
        figure = Figure(figsize=(6, 1))
        figure.text(0.5, 0.5, "no errors", ha="center", va="center", fontsize=11)
        return figure
    lines = math.ceil(len(images) / columns)
    width, height, words = 1.55, 2.2, 0.65  # Inches of a cell, and of the words above its image.
    figure = Figure(figsize=(width * columns, height * lines))
    for place, image in enumerate(images):
        line, column = divmod(place, columns)
        ax = figure.add_axes(
            (
                (column + 0.05) / columns,
                1 - (line + 1 - 0.05) / lines,
                0.9 / columns,
                (0.95 - words / height) / lines,
            )
        )
        ax.set_axis_off()
        gray = image.shape[-1] == 1
        ax.imshow(
            image[..., 0] if gray else image,
            cmap="gray" if gray else None,
            vmin=0,
            vmax=255,
            interpolation="nearest",
        )
        ax.set_title(
            f"is {drawing.short(cells.class_name(labels[place], class_names))}\n"
            f"said {drawing.short(cells.class_name(predicted[place], class_names))}\n"
            f"{remarks[place]}",
            fontsize=8,
            pad=3,
            parse_math=False,
        )
    return figure


THEN, NOW = "#0072B2", WRONG
