"""Plots: each draws saved rows or predictions on an `ax`, so that it fits any Matplotlib figure.

Colors are the Okabe-Ito set, and each line also has its own dashes and marker: figures stay
legible to color-blind readers and in gray. Where there are more methods than a reader can follow,
the paper's and `residual` stand out and the others are thin and gray.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.evaluation.keys import TEST, ImageSet
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.metrics import METRICS, risk_coverage_curve
from btcp_tf.reporting import cells, charts, drawing
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.drawing import FILLED, GRAY, HATCHED, KNOWN, STYLES, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RANGE = "#B0B0B0"

_COSTS = tuple(step * 10**power for power in range(5) for step in (1, 2, 5))
"""Where a log axis of costs has its labels."""


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

    The paper's uncertainty histogram, with the two kinds of answers apart: on a linear axis the few
    errors would not be seen.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: `[n]`. Bins span [0, 1], or the range of a raw score beyond.
      bins: Number of equal bins.
      tau: Decision threshold to mark.
      title: Title of the panel.
    """
    is_error, u = np.asarray(is_error, bool), np.asarray(uncertainty, np.float64)
    drawing.draw_histograms(
        ax,
        (("correct", u[~is_error], FILLED), ("wrong", u[is_error], HATCHED)),
        bins=bins,
        span=drawing.span_of(u),
        shares=False,
        baseline=0.5,  # Below one, so that a bin with a single answer has a height.
    )
    drawing.mark_tau(ax, tau)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.minorticks_off()
    drawing.finish(ax, "uncertainty u", "answers", title, loc="upper right")


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
    chart = charts.risk_chart(is_error, uncertainty, since=0.0)
    drawing.draw_chart(ax, chart, title=title, legend="upper left")


def plot_roc(
    ax: Axes, is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], *, title: str = ""
) -> None:
    """Share of errors rejected against share of correct answers rejected.

    Says so in the panel where there is no error, or nothing else: no curve exists.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`.
      title: Title of the panel.
    """
    is_error = np.asarray(is_error, bool)
    chart = charts.roc_chart(is_error, uncertainty)
    if chart is None:
        kind = "wrong" if is_error.any() else "correct"
        drawing.draw_message(ax, f"no ROC curve: every answer is {kind}", title)
    else:
        ax.plot([0, 1], [0, 1], color=GRAY, linewidth=1.0, label="chance")
        drawing.draw_chart(ax, chart, title=title, legend="lower right")


def plot_reliability(
    ax: Axes,
    is_error: np.ndarray,
    uncertainty: Mapping[str, np.ndarray],
    *,
    bins: int = 15,
    title: str = "",
) -> None:
    """Share correct against 1 - u as the probability of being correct.

    Args:
      ax: Where to draw.
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`; columns that leave [0, 1] are
        raw scores, no probabilities, and are left out.
      bins: Number of equal bins; empty ones have no point.
      title: Title of the panel.
    """
    chart = charts.reliability_chart(is_error, uncertainty, bins=bins)
    if chart is None:
        drawing.draw_message(ax, "no column of u lies in [0, 1]", title)
    else:
        drawing.draw_chart(ax, chart, title=title, legend="upper left")


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
      points: Label of a chosen threshold -> (tau, value on the last curve).
      quantity: Label of the value.
      title: Title of the panel.
    """
    for (name, (tau, value)), dashes, color in zip(
        curves.items(), ("--", "-"), (GRAY, "black"), strict=True
    ):
        ax.step(tau, value, where="post", linestyle=dashes, color=color, linewidth=1.2, label=name)
    for size, (label, (at, height)), style in zip(
        range(11, 0, -2), points.items(), STYLES, strict=False
    ):
        # Thresholds that coincide stand on one another.
        marker: dict[str, Any] = style | {"linestyle": "", "markersize": size, "zorder": 3}
        ax.plot([at], [height], label=label, **marker)
    top = max(float(value.max()) for _, value in curves.values())
    ax.set_ylim(0, min(1.02, 1.08 * top) or 0.01)
    if 0 < 100 * min(tau[0] for tau, _ in curves.values()) < max(t[-1] for t, _ in curves.values()):
        ax.set_xscale("log")
    drawing.percent(ax.yaxis)
    drawing.label_axes(ax, "tau: answers with u below it are accepted", quantity, title)


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
    test, ood = (1.0 - np.asarray(u, np.float64) for u in (inside, outside))
    samples = ("test", test, FILLED), ("OOD", ood, HATCHED)
    drawing.draw_histograms(ax, samples, bins=bins, span=(0, 1), shares=True)
    drawing.percent(ax.yaxis, decimals=0)
    drawing.finish(ax, "confidence 1 - u", "share of the images", title)


def with_thresholding(history: Iterable[Row]) -> list[Row]:
    """A history with the stage "thresholding" added: another's u at the tau of best BACC.

    Args:
      history: Rows per epoch; those with `fpr_best_tau` and `fnr_best_tau` give a row each.
    """
    rows = list(history)
    return rows + [
        {**row, "stage": "thresholding", "fpr": row["fpr_best_tau"], "fnr": row["fnr_best_tau"]}
        for row in rows
        if not math.isnan(cells.number(row.get("fpr_best_tau")))
    ]


def over_epochs(rows: Iterable[Row], column: str) -> tuple[np.ndarray, ...]:
    """Epochs, and the smallest, mean and largest value of the seeds in each, `[epochs]` each."""
    groups = cells.by(rows, "epoch")
    epochs = sorted(groups)
    values = [[cells.number(row.get(column)) for row in groups[epoch]] for epoch in epochs]
    statistics = (np.array([f(value) for value in values]) for f in (np.min, np.mean, np.max))
    return np.array(epochs), *statistics


def _plot_over_epochs(
    ax: Axes, lines: Iterable[tuple[str, Sequence[Row], str, dict[str, Any]]]
) -> None:
    """Lines over the epochs: name, rows, column and style of each; the seeds' range is shaded."""
    last = 1
    for name, rows, column, style in lines:
        epochs, low, mean, high = over_epochs(rows, column)
        drawing.draw_line(ax, epochs, mean, name, style, every=max(1, len(epochs) // 8))
        if np.any(high > low):
            ax.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
        last = max(last, epochs[-1])
    drawing.epoch_axis(ax, last)


def plot_epochs(
    ax: Axes, history: Iterable[Row], column: str, *, ylabel: str = "", title: str = ""
) -> None:
    """One column of the history against the epoch, one line per stage.

    Args:
      ax: Where to draw.
      history: Rows with `stage`, `epoch` (from 1) and `column`; None and NaN
        leave a gap. Rows of several seeds are averaged, and their range shaded.
      column: Name of the column, such as `u_mean` or `u_std`.
      ylabel: Label of the column.
      title: Title of the panel.
    """
    stages = cells.by(history, "stage")
    styles = drawing.styles(stages)
    _plot_over_epochs(ax, ((name, stages[name], column, styles[name]) for name in stages))
    ax.set_ylim(bottom=0)
    drawing.finish(ax, "epoch of the phase", ylabel, title)


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
    _plot_over_epochs(ax, (("FPR", rows, "fpr", STYLES[1]), ("FNR", rows, "fnr", STYLES[0])))
    drawing.label_axes(ax, "epoch of the phase", "rate", title)
    _rate_axis(ax)


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
    rows = sorted(
        (row for row in rows if row["split"] in strengths), key=lambda row: strengths[row["split"]]
    )
    groups = {name: group for name, group in cells.by(rows, "method").items() if len(group) > 1}
    for method, style in drawing.styles(groups).items():
        x = np.array([strengths[row["split"]] for row in groups[method]])
        y = cells.scale(metric) * np.array([cells.number(row[metric]) for row in groups[method]])
        drawing.draw_line(ax, x, y, method, style)
    accuracy = {strengths[row["split"]]: cells.number(row["accuracy"]) for row in rows}
    ax.set_xticks(list(accuracy), [f"{tick}\n{share:.0%}" for tick, share in accuracy.items()])
    ax.set_ylim(bottom=0)
    drawing.finish(ax, "strength, accuracy", cells.title_with_unit(metric), title)


def mean_ranks(rows: Iterable[Row], metric: str = "aurc") -> tuple[list[str], np.ndarray]:
    """Ranks of methods within each classifier, 1 the best; ties share their mean rank.

    Args:
      rows: Rows of the shared classifiers, one for each data set, seed and method. Methods that
        are missing or NaN anywhere are left out.
      metric: Name of the metric.

    Returns:
      Methods and their ranks `[methods, classifiers]`, best mean rank first.
    """
    from scipy import stats

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
    ranks = stats.rankdata(-values if METRICS[metric].higher_is_better else values, axis=0)
    order = np.argsort(ranks.mean(axis=1), kind="stable")
    return [names[place] for place in order], ranks[order]


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's critical difference of two mean ranks at 5 % (Demsar, 2006, section 3.2.2).

    Args:
      methods: Number of methods compared, at least 2.
      blocks: Number of data sets and seeds.
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(0.95, methods, np.inf)) / math.sqrt(2)
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
        mean, face = row.mean(), "black" if name in KNOWN else "white"
        ax.plot([row.min(), row.max()], [place, place], color=_RANGE, linewidth=2.5, zorder=1)
        ax.plot(mean, place, "o", color="black", markerfacecolor=face)
        drawing.annotate(ax, f"{mean:.1f}", (mean, place), (0, 5), ha="center", fontsize=7)
    ax.set_yticks(range(len(names)), [cells.label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -1.6)
    ax.set_xlim(0.5, max(len(names), 2) + 0.5)
    drawing.label_axes(ax, f"rank by {cells.title_of(metric)}, 1 = best", "", title)
    if len(names) > 1:
        cd = critical_difference(len(names), ranks.shape[1])
        ax.plot([1, 1 + cd], [-1, -1], color=WRONG, linewidth=2.5)
        drawing.annotate(ax, f"critical difference {cd:.1f}", (1, -1), (0, 4), color="#8c2f00")


def plot_costs(
    ax: Axes, rows: Sequence[Row], costs: Mapping[str, float], *, title: str = ""
) -> None:
    """AURC with its interval against the cost of an answer, a named point for each method.

    Args:
      ax: Where to draw.
      rows: Rows of methods, at least two, with `method`, `aurc`, `aurc_low` and `aurc_high`.
      costs: Method -> passes of the classifier; the axis is a log axis if they span more than 10.
      title: Title of the panel.
    """
    names = [row["method"] for row in rows]
    x = np.array([costs[name] for name in names], np.float64)
    # Lines beyond the styles would have no marker, and be no points.
    plain = dict(color=GRAY, marker="o")
    styles = dict.fromkeys(names, plain) | drawing.styles(names[: len(STYLES)])
    low, y, high = (
        cells.scale("aurc") * np.array([cells.number(row.get(column)) for row in rows])
        for column in ("aurc_low", "aurc", "aurc_high")
    )
    ax.vlines(x, low, high, color=_RANGE, linewidth=2, zorder=1)
    if x.max() > 10 * x.min():
        ax.set_xscale("log")
        ticks = [tick for tick in _COSTS if x.min() <= tick <= x.max()]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        across = np.log(x)
    else:
        across = x
    # Names that would overlap stand above one another; those on the right, left of their points.
    apart = 0.07 * (np.nanmax([y, high]) - np.nanmin([y, low]))
    heights, order = y.copy(), np.argsort(y, kind="stable")
    for below, row in itertools.pairwise(order):
        heights[row] = max(heights[row], heights[below] + apart)
    is_left = across < across.min() + np.ptp(across) / 2
    for name, at, value, height, side in zip(names, x, y, heights, is_left, strict=True):
        ax.plot(at, value, **styles[name] | dict(linestyle="", markersize=6))
        look = dict(ha="left" if side else "right", va="center", parse_math=False)
        drawing.annotate(ax, cells.label(name), (at, height), (8 if side else -8, 0), **look)
    ax.margins(x=0.12)
    drawing.label_axes(
        ax, "passes of the classifier per answer", cells.title_with_unit("aurc"), title
    )


def plot_ablation(
    ax: Axes, rows: Sequence[Row], metric: str, base: Sequence[Row] = (), *, title: str = ""
) -> None:
    """A metric of BTCP with one setting changed at a time, with its intervals.

    Args:
      ax: Where to draw.
      rows: Rows with `ablation`, the metric and its `_low` and `_high`.
      metric: Name of the metric.
      base: Rows of the classifier itself; that of mcp is a dashed line, others come first.
      title: Title of the panel.
    """
    scale = cells.scale(metric)
    lines = [(cells.label(row["method"]), row) for row in base if row["method"] != REFERENCE]
    lines += [(row["ablation"], row) for row in rows]
    for row in base:
        if row["method"] == REFERENCE:
            at, color = scale * cells.number(row[metric]), STYLES[0]["color"]
            ax.axvline(at, color=color, linestyle="--")
            look: dict[str, Any] = dict(xycoords=("data", "axes fraction"), color=color)
            drawing.annotate(ax, cells.label(REFERENCE), (at, 1), (2, -9), **look)
    for place, (_, row) in enumerate(lines):
        low, high = (scale * cells.number(row.get(f"{metric}_{end}")) for end in ("low", "high"))
        ax.plot([low, high], [place, place], color="#8a8a8a", linewidth=2)
        value = scale * cells.number(row[metric])
        ax.plot(value, place, "o", color=STYLES[1]["color"], markersize=5)
    ax.set_yticks(range(len(lines)), [name for name, _ in lines])
    ax.set_ylim(len(lines) - 0.4, -1.2)
    drawing.label_axes(ax, cells.title_with_unit(metric), "", title)
