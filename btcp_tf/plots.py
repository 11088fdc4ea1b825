"""Every figure: curves of predictions, curves per epoch, and pictures of result rows.

Each plot draws on an `ax` it is given, from saved rows or predictions, so that
it can be put into any Matplotlib figure. Colors are the Okabe-Ito set, and each
line also has its own dashes and marker: figures stay legible to color-blind
readers and in gray. Where there are more methods than a reader can follow, the
paper's and `residual` stand out and the others are thin and gray.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.evaluation import REFERENCE, Predictions
from btcp_tf.files import atomic_path
from btcp_tf.methods import METHODS
from btcp_tf.metrics import (
    METRICS,
    auroc,
    reliability_curve,
    risk_coverage_curve,
    roc_curve,
    tie_groups,
)
from btcp_tf.svg import Axis as Scale
from btcp_tf.svg import Chart, Line
from btcp_tf.tables import (
    Row,
    by,
    class_name,
    label,
    number,
    stage_label,
    title_of,
    unit,
)
from btcp_tf.thresholds import Threshold
from btcp_tf.wording import drawable

if TYPE_CHECKING:  # Matplotlib takes half a second, which `--help` need not wait for.
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# The order fixes each method's color, dashes and marker in all figures of all runs.
_KNOWN = ("mcp", "btcp", "tcp", "ohem", "mc_dropout", "trust_score", "thresholding", "residual")
_STYLES = tuple(
    dict(color=color, linestyle=dashes, marker=marker, markerfacecolor=color)
    for color, dashes, marker in (
        ("#0072B2", (0, (5, 2)), "s"),
        ("#D55E00", "-", "o"),
        ("#009E73", (0, (1, 1.2)), "^"),
        ("#CC79A7", (0, (6, 1.5, 1, 1.5)), "D"),
        ("#56B4E9", (0, (3, 1, 1, 1, 1, 1)), "v"),
        ("#E69F00", (0, (8, 2)), "P"),
        ("#000000", (0, (2, 2)), "X"),
        ("#5D3A9B", (0, (12, 1.5)), "*"),  # Theirs has no more that shows on white.
    )
)
_CORRECT, WRONG, _GRAY = "#56B4E9", "#D55E00", "#595959"
_FILLED: dict[str, Any] = dict(facecolor=_CORRECT, edgecolor=_CORRECT)
_HATCHED: dict[str, Any] = dict(facecolor="none", edgecolor=WRONG, hatch="////", linewidth=1.2)
# Of lines that only show where the many are.
_REST = dict(color="#B0B0B0", linestyle="-", marker="", linewidth=0.8, zorder=1.5)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure with the words that go with it."""

    name: str
    """Stem of its files."""
    title: str
    caption: str
    figure: Figure
    columns: int = 1
    """Panels side by side; a page keeps each of them readable."""
    alt: str = ""
    """What is seen, in words with numbers; "": the caption says it."""
    charts: tuple[Chart, ...] = ()
    """The same for a page, which then shows these and not the picture."""

    @functools.cached_property
    def png(self) -> bytes:
        """The figure as a PNG file, drawn once for its file and for the page."""
        return _render(self.figure, "png")


# Plots -----------------------------------------------------------------------------------------


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
    for name, rows, style in (("correct", ~is_error, _FILLED), ("wrong", is_error, _HATCHED)):
        counts, edges = np.histogram(uncertainty[rows], bins=bins, range=span)
        # A baseline below one, so that a bin with a single answer has a height.
        words = f"{name} ({counts.sum():,})"
        ax.stairs(counts, edges, baseline=0.5, fill=True, label=words, **style)
    if tau is not None:
        ax.axvline(tau, color="black", linestyle=":", linewidth=1.2, label=f"tau = {tau:g}")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.minorticks_off()
    _label(ax, "uncertainty u", "answers", title)
    ax.set_xlim(*span)
    _legend(ax, loc="upper right")


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
    ax.plot(curve.coverage, curve.risk, color=_GRAY, linewidth=1.0, label="oracle")
    top = curve.risk[-1]
    for name, style in _styles(uncertainty).items():
        curve = risk_coverage_curve(is_error, uncertainty[name])
        _line(ax, curve.coverage, curve.risk, name, style)
        # The first few answers make the curve jump; they must not set the scale.
        top = max(top, curve.risk[curve.coverage >= 0.05].max())
    ax.set_ylim(0, min(1.0, 1.08 * top) or 0.01)
    ax.set_xlim(0, 1)
    _percent(ax.xaxis, decimals=0)
    _percent(ax.yaxis)
    _label(ax, "coverage: answers accepted", "risk: errors among them", title)
    _legend(ax, loc="upper left")


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
        curves.items(), ("--", "-"), (_GRAY, "black"), strict=True
    ):
        ax.step(tau, value, where="post", linestyle=dashes, color=color, linewidth=1.2, label=name)
        top = max(top, float(value.max()))
    for size, (words, (at, height)), style in zip(
        range(11, 0, -2), points.items(), _STYLES, strict=False
    ):
        # Thresholds that coincide stand on one another.
        marker: dict[str, Any] = style | {"linestyle": "", "markersize": size, "zorder": 3}
        ax.plot([at], [height], label=words, **marker)
    ax.set_ylim(0, min(1.02, 1.08 * top) or 0.01)
    low = min(tau[0] for tau, _ in curves.values())
    high = max(tau[-1] for tau, _ in curves.values())
    if 0 < 100 * low < high:
        ax.set_xscale("log")
    _percent(ax.yaxis)
    _label(ax, "tau: answers with u below it are accepted", quantity, title)


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
    ax.plot([0, 1], [0, 1], color=_GRAY, linewidth=1.0, label="chance")
    if is_error.any() and not is_error.all():
        for name, style in _styles(uncertainty).items():
            curve = roc_curve(is_error, uncertainty[name])
            _line(ax, curve.correct_rejected, curve.errors_rejected, name, style)
    else:
        _say(ax, "no ROC curve: every answer is " + ("wrong" if is_error.any() else "correct"))
    ax.set_xlim(-0.01, 1)
    ax.set_ylim(0, 1.01)
    for axis in (ax.xaxis, ax.yaxis):
        _percent(axis, decimals=0)
    _label(ax, "correct answers rejected", "errors rejected", title)
    _legend(ax, loc="lower right")


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
    ax.plot([0, 1], [0, 1], color=_GRAY, linewidth=1.0, label="perfect")
    some = False
    for name, style in _styles(uncertainty).items():
        u = uncertainty[name]
        if np.min(u) >= 0 and np.max(u) <= 1:
            some = True
            curve = reliability_curve(is_error, u, bins=bins)
            _line(ax, curve.confidence, curve.accuracy, name, style, every=1)
    if not some:
        _say(ax, "no column of u lies in [0, 1]")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.03)
    for axis in (ax.xaxis, ax.yaxis):
        _percent(axis, decimals=0)
    _label(ax, "confidence 1 - u", "answers that are correct", title)
    _legend(ax, loc="upper left")


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
    for name, u, style in (("test", inside, _FILLED), ("OOD", outside, _HATCHED)):
        counts, edges = np.histogram(1.0 - np.asarray(u, np.float64), bins=bins, range=(0, 1))
        words = f"{name} ({len(u):,})"
        ax.stairs(counts / len(u), edges, fill=True, label=words, **style)
    ax.set_xlim(0, 1)
    _percent(ax.yaxis, decimals=0)
    _label(ax, "confidence 1 - u", "share of the images", title)
    _legend(ax)


def with_thresholding(history: Iterable[Row]) -> list[Row]:
    """A history with the stage "thresholding" added: another's u at the tau of best BACC.

    Args:
      history: Rows per epoch; those with `fpr_best_tau` and `fnr_best_tau` give a row each.
    """
    rows = list(history)
    moved = [row for row in rows if not math.isnan(_optional(row, "fpr_best_tau"))]
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
    stages = by(history, "stage")
    for stage, style in _styles(stages).items():
        epochs, low, mean, high = _over_epochs(stages[stage], column)
        _line(ax, epochs, mean, stage, style, every=max(1, len(epochs) // 8))
        if np.any(high > low):
            ax.fill_between(epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    ax.set_ylim(bottom=0)
    _epoch_axis(ax, max(row["epoch"] for rows in stages.values() for row in rows))
    _label(ax, "epoch of the phase", ylabel, title)
    _legend(ax)


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
    for name, style in (("fpr", _STYLES[1]), ("fnr", _STYLES[0])):
        epochs, _, mean, _ = _over_epochs(rows, name)
        _line(ax, epochs, mean, name.upper(), style, every=max(1, len(epochs) // 8))
    _epoch_axis(ax, max(row["epoch"] for row in rows))
    _label(ax, "epoch of the phase", "rate", title)
    _rate_axis(ax)


def _over_epochs(rows: Iterable[Row], column: str) -> tuple[np.ndarray, ...]:
    """Epochs, and the least, mean and largest value of the seeds in each."""
    groups = by(rows, "epoch")
    epochs = np.array(sorted(groups))
    values = [np.array([_optional(row, column) for row in groups[epoch]]) for epoch in epochs]
    return epochs, *(
        np.array([function(value) for value in values]) for function in (np.min, np.mean, np.max)
    )


def _rate_axis(ax: Axes) -> None:
    # Both ends of the scale carry lines: the legend stands above the upper one.
    ax.set_ylim(-0.02, 1.32)
    ax.set_yticks(np.arange(0, 1.01, 0.2))
    _percent(ax.yaxis, decimals=0)
    _legend(ax, loc="upper center", ncols=2)


def _optional(row: Row, column: str) -> float:
    value = row.get(column)
    return number(None if value == "" else value)


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
    strengths = {"test": 0} | {f"test:{corruption}{strength}": strength for strength in (1, 2, 3)}
    rows = [row for row in rows if row["split"] in strengths]
    methods = {method: group for method, group in by(rows, "method").items() if len(group) > 1}
    scale = {"%": 100.0, "x1000": 1000.0}.get(unit(metric), 1.0)
    for method, style in _styles(methods).items():
        group = sorted(methods[method], key=lambda row: strengths[row["split"]])
        x = np.array([strengths[row["split"]] for row in group])
        y = scale * np.array([number(row[metric]) for row in group])
        _line(ax, x, y, method, style, every=1)
    accuracy = {strengths[row["split"]]: number(row["accuracy"]) for row in rows}
    ticks = sorted(accuracy)
    ax.set_xticks(ticks, [f"{tick}\n{accuracy[tick]:.0%}" for tick in ticks])
    ax.set_ylim(bottom=0)
    _label(ax, "strength, accuracy", f"{title_of(metric)} {unit(metric, '×')}".strip(), title)
    _legend(ax)


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
        {row["method"]: number(row[metric]) for row in group}
        for group in by(rows, "dataset", "seed").values()
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
        main = name in _KNOWN
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
    ax.set_yticks(range(len(names)), [label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -1.6)
    ax.set_xlim(0.5, max(len(names), 2) + 0.5)
    _label(ax, f"rank by {title_of(metric)}, 1 = best", "", title)
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
    scale = {"%": 100.0, "x1000": 1000.0}.get(unit(metric), 1.0)
    lines = [(label(row["method"]), row) for row in base if row["method"] != REFERENCE]
    lines += [(row["ablation"], row) for row in rows]
    for row in base:
        if row["method"] == REFERENCE:
            ax.axvline(scale * number(row[metric]), color=_STYLES[0]["color"], linestyle="--")
            ax.annotate(
                label(REFERENCE),
                (scale * number(row[metric]), 1),
                (2, -9),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=8,
                color=_STYLES[0]["color"],
            )
    for place, (_, row) in enumerate(lines):
        low, high = (number(row.get(f"{metric}_{end}")) for end in ("low", "high"))
        ax.plot([scale * low, scale * high], [place, place], color="#8a8a8a", linewidth=2)
        ax.plot(scale * number(row[metric]), place, "o", color=_STYLES[1]["color"], markersize=5)
    ax.set_yticks(range(len(lines)), [words for words, _ in lines])
    ax.set_ylim(len(lines) - 0.4, -1.2)
    _label(ax, f"{title_of(metric)} {unit(metric, '×')}".strip(), "", title)


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
            f"is {_short(class_name(labels[place], class_names))}\n"
            f"said {_short(class_name(predicted[place], class_names))}\n"
            f"{remarks[place]}",
            fontsize=8,
            pad=3,
            parse_math=False,
        )
    return figure


def _short(name: str, length: int = 17) -> str:
    name = drawable(name)
    return name if len(name) <= length else name[: length - 1] + "…"


def _line(
    ax: Axes, x: np.ndarray, y: np.ndarray, name: str, style: dict, every: float = 0.12
) -> None:
    # Matplotlib leaves names that start with "_" out of a legend.
    words = style.get("label") or label(name)
    words = f" {words}" if words.startswith("_") and "label" not in style else words
    look = dict(linewidth=1.6, markersize=4.5, markevery=every) | style | dict(label=words)
    ax.plot(x, y, **look)


def _styles(names: Iterable[str]) -> dict[str, dict]:
    """Line style of each name: known ones keep theirs, others take what is free.

    Where there are more names than styles, the unknown ones are thin and gray and share one entry
    of the legend.
    """
    names = list(names)
    places = {
        name: _KNOWN.index(known)
        for name in names
        if (known := {"classifier": "mcp"}.get(name, name.removesuffix("_finetuned"))) in _KNOWN
    }
    others = [name for name in names if name not in places]
    free = [place for place in range(len(_STYLES)) if place not in places.values()]
    crowded = len(others) > len(free)
    if not (crowded and places):
        # Without a known name the first ones stand out.
        places |= dict(zip(others, free, strict=False))
    tuned = dict(linestyle=(0, (1, 2.5)), markerfacecolor="white")
    rest = [name for name in names if name not in places]
    shared = {name: "_nolegend_" for name in rest} | {
        name: f"{len(rest)} others" for name in rest[:1]
    }
    return {
        name: _REST | dict(label=shared[name])
        if name in shared
        else _STYLES[places[name]] | (tuned if name.endswith("_finetuned") else {})
        for name in names
    }


def _percent(axis: Axis, decimals: int | None = None) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def _epoch_axis(ax: Axes, last: float) -> None:
    from matplotlib.ticker import MaxNLocator

    space = max(0.5, 0.03 * last)
    ax.set_xlim(1 - space, last + space)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _label(ax: Axes, x: str, y: str, title: str) -> None:
    ax.set_xlabel(x, fontsize=10)
    ax.set_ylabel(y, fontsize=10)
    # Names of users may hold a "$", which must not start a formula.
    ax.set_title(title, fontsize=11, parse_math=False)
    ax.tick_params(labelsize=9)
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _legend(ax: Axes, **place: Any) -> None:
    for text in ax.legend(fontsize=9, framealpha=0.85, handlelength=3.2, **place).get_texts():
        text.set_parse_math(False)


def _legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all panels, below them: among many lines it would cover some."""
    entries: dict[str, Any] = {}
    for ax in axes:
        lines, words = ax.get_legend_handles_labels()
        entries = dict(zip(words, lines, strict=True)) | entries
        if (own := ax.get_legend()) is not None:
            own.remove()
    legend = figure.legend(
        entries.values(),
        entries.keys(),
        loc="lower center",
        ncols=columns,
        fontsize=9,
        frameon=False,
        handlelength=3.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _say(ax: Axes, words: str) -> None:
    ax.text(
        0.5,
        0.5,
        words,
        transform=ax.transAxes,
        ha="center",
        va="center",
        fontsize=10,
        backgroundcolor="white",
    )


_ROOM_BELOW = dict(height=4.9, bottom=1.25)
"""Of `panels`, for a legend below them."""


def panels(
    count: int, *, height: float = 3.5, left: float = 0.85, bottom: float = 0.55
) -> tuple[Figure, list[Axes], int]:
    """A figure with panels in even rows of at most three, and the row's length.

    Args:
      count: Number of panels.
      height: Height of a panel in inches.
      left: Inches for what stands to the left of an axis.
      bottom: Inches for what stands below it.
    """
    from matplotlib.figure import Figure

    columns = 2 if count in (2, 4) else min(count, 3)
    lines = math.ceil(count / columns)
    # Margins in inches: the same for every figure, and far cheaper than a layout engine.
    width, right, top = 3.55 + left, 0.2, 0.35
    inner_width, inner_height = width - left - right, height - top - bottom
    figure = Figure(figsize=(width * columns, height * lines))
    axes = figure.subplots(
        lines,
        columns,
        squeeze=False,
        gridspec_kw=dict(
            left=left / figure.get_figwidth(),
            right=1 - right / figure.get_figwidth(),
            top=1 - top / figure.get_figheight(),
            bottom=bottom / figure.get_figheight(),
            wspace=(left + right) / inner_width,
            hspace=(top + bottom) / inner_height,
        ),
    )
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return figure, list(axes.flat[:count]), columns


# A run's figures -------------------------------------------------------------------------------


def draw_run(
    predictions: Mapping[str, Predictions],
    history: Iterable[Row] = (),
    *,
    tau: float | Mapping[str, float] | None = None,
) -> list[Drawing]:
    """All figures of a run but the sheet of errors, which needs images.

    Args:
      predictions: Name of a classifier, such as "frozen" and "finetuned" -> its
        predictions; each becomes a panel, as its errors are its own.
      history: Rows of the run's history on validation data; empty: no curves
        per epoch.
      tau: Decision threshold to mark in the histograms, or one for each method by name.
    """
    drawings = []
    found = {name: (p.is_error, curves(p.uncertainty)) for name, p in predictions.items()}
    scores = [
        (f"{label(method)}, {stage_label(name)} classifier", method, is_error, u)
        for name, (is_error, columns) in found.items()
        for method, u in columns.items()
    ]
    if len(scores) > 9:
        # One panel for each is no help to anyone.
        scores = [score for score in scores if score[1] in _KNOWN] or scores[:9]
    figure, axes, columns = panels(len(scores))
    for ax, (title, method, is_error, u) in zip(axes, scores, strict=True):
        mark = tau.get(method) if isinstance(tau, Mapping) else tau
        plot_uncertainty_histogram(ax, is_error, u, tau=mark, title=title)
    drawings.append(
        Drawing(
            "uncertainty_histogram",
            "Uncertainty of correct and wrong answers",
            "Histogram of u in 50 bins, correct answers filled and wrong ones hatched, counts on "
            "a logarithmic axis. A useful u puts the wrong answers to the right of tau.",
            figure,
            columns,
            _in_words({title: _halves(is_error, u) for title, _, is_error, u in scores}),
        )
    )
    for name, title, caption, plot, chart in (
        (
            "risk_coverage",
            "Risk and coverage",
            "Answers are accepted from the most trusted on; the curve is the error rate among "
            "those accepted. Lower is better; the gray oracle knows every error.",
            plot_risk_coverage,
            risk_chart,
        ),
        (
            "roc",
            "ROC: finding errors by their uncertainty",
            "Share of errors rejected against share of correct answers rejected with them, over "
            "all thresholds. Further to the upper left is better.",
            plot_roc,
            roc_chart,
        ),
        (
            "reliability",
            "Reliability of 1 - u as the probability of being correct",
            "Share of correct answers in 15 bins of the confidence 1 - u. On the gray line the "
            "confidence is what it says; below it the method is overconfident.",
            plot_reliability,
            reliability_chart,
        ),
    ):
        many = max(len(u) for _, u in found.values()) > 6
        figure, axes, columns = panels(len(found), **(_ROOM_BELOW if many else {}))
        for ax, (classifier, scored) in zip(axes, found.items(), strict=True):
            plot(ax, *scored, title=f"{stage_label(classifier)} classifier")
        if many:
            _legend_below(figure, axes, 3 * columns)
        charts = [
            dataclasses.replace(made, title=f"{stage_label(classifier)} classifier")
            for classifier, scored in found.items()
            if (made := chart(*scored)) is not None
        ]
        # Among many lines, names at their ends would not find room.
        few = max(len(u) for _, u in found.values()) <= _CHART_LINES
        drawings.append(
            Drawing(
                name,
                title,
                caption,
                figure,
                columns,
                _in_words({made.title: made.alt for made in charts}),
                tuple(charts) if few and len(charts) == len(found) else (),
            )
        )
    history = list(history)
    if history:
        drawings.append(draw_u_per_epoch(history))
        stages = by(with_thresholding(history), "stage")
        figure, axes, columns = panels(len(stages))
        for ax, (stage, rows) in zip(axes, stages.items(), strict=True):
            plot_fpr_fnr(ax, rows, title=stage_label(stage))
        drawings.append(
            Drawing(
                "fpr_fnr_per_epoch",
                "FPR and FNR per epoch",
                "Validation data"
                + ("" if tau is None else f", at tau = {tau:g}")
                + ". FPR: share of errors accepted. FNR: share of correct answers rejected."
                + _THRESHOLDING * ("thresholding" in stages),
                figure,
                columns,
                _in_words({stage_label(stage): _last(rows) for stage, rows in stages.items()}),
            )
        )
    return drawings


# What figures show, as charts and in words -------------------------------------------------------

_CHART_LINES = 5


def _in_words(parts: Mapping[str, str]) -> str:
    """What is seen in each panel of a figure."""
    return "; ".join(f"{title}: {words}" for title, words in parts.items() if words)


def _halves(is_error: np.ndarray, u: np.ndarray) -> str:
    told = [
        f"{np.median(u[rows]):.3g} for {int(rows.sum()):,} {name} answers"
        for name, rows in (("correct", ~is_error), ("wrong", is_error))
        if rows.any()
    ]
    return f"median u {', '.join(told)}"


def _last(rows: Sequence[Row], columns: Sequence[str] = ("fpr", "fnr")) -> str:
    """The values of a stage's last epoch, mean of the seeds."""
    told = []
    for column in columns:
        _, _, mean, _ = _over_epochs(rows, column)
        if not math.isnan(mean[-1]):
            name = {"u_mean": "mean of u", "u_std": "deviation"}.get(column, column.upper())
            told.append(f"{name} {mean[-1]:.3g}")
    epoch = max(row["epoch"] for row in rows)
    return f"in epoch {epoch:g} {', '.join(told)}" if told else ""


def _looks(names: Iterable[str]) -> dict[str, str]:
    """The look of each method's line; the last one that is not MCP stands out."""
    others = [name for name in names if name != REFERENCE]
    looks = ["ours", "third", *["rest"] * len(others)]
    return {REFERENCE: "mcp"} | dict(zip(reversed(others), looks, strict=False))


def risk_chart(is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray]) -> Chart:
    """Error rate of the accepted answers against the share accepted, from a tenth on.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`.
    """
    lines, told, looks = [], [], _looks(uncertainty)
    for name, u in uncertainty.items():
        curve = risk_coverage_curve(is_error, u)
        late = curve.coverage >= 0.1
        lines.append(Line(label(name), curve.coverage[late], curve.risk[late], looks[name]))
        most = float(curve.risk[int(np.searchsorted(curve.coverage, 0.9))])
        told.append(f"{label(name)} {most:.2%}")
    top = max(float(line.y.max()) for line in lines)
    return Chart(
        f"wrong among the 90 % accepted first: {', '.join(told)}; among all: {is_error.mean():.2%}",
        lines,
        Scale("answers accepted"),
        Scale("wrong among them", 0.0, min(1.0, 1.05 * top) or 0.01),
    )


def roc_chart(is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray]) -> Chart | None:
    """Share of errors rejected against that of correct answers; None where one kind is missing."""
    if not 0 < is_error.sum() < len(is_error):
        return None
    lines, told, looks = [], [], _looks(uncertainty)
    for name, u in uncertainty.items():
        curve = roc_curve(is_error, u)
        order = np.argsort(curve.correct_rejected, kind="stable")
        x, y = curve.correct_rejected[order], np.sort(curve.errors_rejected)
        lines.append(Line(label(name), x, y, looks[name]))
        told.append(f"{label(name)} {auroc(is_error, u):.2%}")
    return Chart(
        f"area under the curve: {', '.join(told)}",
        lines,
        Scale("correct answers rejected"),
        Scale("errors rejected"),
    )


def reliability_chart(is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray]) -> Chart | None:
    """Share correct against 1 - u, see `plot_reliability`; None where no u is within [0, 1]."""
    diagonal = np.array([0.0, 1.0])
    lines, told, looks = [Line("perfect", diagonal, diagonal, "guide")], [], _looks(uncertainty)
    for name, u in uncertainty.items():
        if u.min() >= 0 and u.max() <= 1:
            curve = reliability_curve(is_error, u, bins=15)
            lines.append(Line(label(name), curve.confidence, curve.accuracy, looks[name]))
            told.append(f"{label(name)} {1 - float(np.mean(u)):.1%}")
    if len(lines) == 1:
        return None
    return Chart(
        f"{1 - is_error.mean():.1%} are correct; mean confidence: {', '.join(told)}",
        lines,
        Scale("confidence 1 - u"),
        Scale("answers that are correct"),
    )


def draw_thresholds(
    calibration: Predictions,
    test: Predictions,
    method: str,
    chosen: Threshold,
    promises: Sequence[Row] = (),
) -> Drawing:
    """Coverage and risk against tau for the u of a SavedModel, with its threshold and others.

    Args:
      calibration: Rows that thresholds are chosen on.
      test: Other rows.
      method: Column of both.
      chosen: The SavedModel's threshold.
      promises: Rows of `runs.make_promises` for this method.
    """
    points = {} if chosen.tau is None else {"SavedModel": chosen.tau}
    points |= {
        f"promise {row['target']:.0%}": row["tau"] for row in promises if row["tau"] is not None
    }
    coverage, risk = {}, {}
    for name, rows in (("calibration", calibration), ("test", test)):
        groups = tie_groups(rows.is_error, rows.uncertainty[method])
        # From where the curve stops to jump; tau just above the value accepts it.
        enough = groups.rows[1:] >= min(100, groups.rows[-1])
        tau = groups.u[enough]
        coverage[name] = tau, groups.rows[1:][enough] / groups.rows[-1]
        risk[name] = tau, groups.errors[1:][enough] / groups.rows[1:][enough]
    figure, axes, columns = panels(2, **_ROOM_BELOW)
    words = ("coverage: answers accepted", "risk: errors among them")
    for ax, curves, quantity in zip(axes, (coverage, risk), words, strict=True):
        tau, value = curves["test"]
        marked = {
            name: (at, float(value[max(np.searchsorted(tau, at) - 1, 0)]))
            for name, at in points.items()
        }
        plot_thresholds(ax, curves, marked, quantity=quantity)
    _legend_below(figure, axes, 3)
    return Drawing(
        "thresholds",
        f"Coverage and risk against tau: {label(method)}",
        "From 100 accepted answers on. A promise is kept on the test set if its point in the right "
        "panel is not above the promised rate.",
        figure,
        columns,
        _in_words(
            {
                name: f"tau {at:.4g} accepts {np.mean(test.uncertainty[method] < at):.1%} of the "
                "test answers"
                for name, at in points.items()
            }
        ),
    )


_THRESHOLDING = " Thresholding moves tau, in each epoch, to where BACC is best."


def curves(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns with a curve of their own: not those that differ from another in tau alone."""
    return {
        name: u
        for name, u in columns.items()
        if name not in METHODS or METHODS[name].column_of not in columns
    }


def _apart(rows: Iterable[Row]) -> list[Row]:
    """Rows without those of methods that differ from another in tau alone."""
    return [
        row for row in rows if row["method"] not in METHODS or not METHODS[row["method"]].column_of
    ]


def draw_u_per_epoch(history: Sequence[Row], about: str = "") -> Drawing:
    """Mean and standard deviation of u over the epochs.

    Args:
      history: Rows of one run or of several seeds, see `plot_epochs`.
      about: Whose they are, where a report has more than one such figure.
    """
    figure, axes, columns = panels(2)
    plot_epochs(axes[0], history, "u_mean", ylabel="mean of u", title="Mean")
    plot_epochs(axes[1], history, "u_std", ylabel="standard deviation of u", title="Deviation")
    return Drawing(
        "_".join(filter(None, ("uncertainty_per_epoch", about))),
        ": ".join(filter(None, ("Mean and standard deviation of u per epoch", about))),
        "Validation data. Uncertainty that stays low and narrow while errors remain is the "
        "imbalance that BTCP is made against.",
        figure,
        columns,
        _in_words(
            {
                stage_label(stage): _last(rows, ("u_mean", "u_std"))
                for stage, rows in by(history, "stage").items()
            }
        ),
    )


# A study's figures -----------------------------------------------------------------------------


def draw_rates_per_epoch(history: Iterable[Row], about: str, tau: float) -> Drawing | None:
    """FPR and FNR of the paper's estimators over the epochs; None where no history has them.

    Args:
      history: Rows of one data set, of one seed or of several.
      about: Name of the data set.
      tau: Decision threshold of the rows.
    """
    stages = ("btcp", "tcp", "ohem", "thresholding")
    rows = [row for row in with_thresholding(history) if row["stage"] in stages]
    if not rows:
        return None
    figure, axes, columns = panels(2)
    plot_rate(axes[0], rows, "fpr", title="FPR: errors accepted")
    plot_rate(axes[1], rows, "fnr", title="FNR: correct answers rejected")
    return Drawing(
        f"rates_per_epoch_{about}",
        f"FPR and FNR per epoch: {about}",
        f"Validation data, at tau = {tau:g}; mean of the seeds, and their range shaded."
        + _THRESHOLDING,
        figure,
        columns,
        _in_words({label(stage): _last(group) for stage, group in by(rows, "stage").items()}),
    )


def draw_risk_coverage(predictions: Predictions, about: str) -> Drawing:
    """Risk and coverage of all methods of a classifier on one axis, with the oracle."""
    figure, (ax,), columns = panels(1, **_ROOM_BELOW)
    plot_risk_coverage(ax, predictions.is_error, curves(predictions.uncertainty))
    _legend_below(figure, [ax], 3)
    return Drawing(
        f"risk_coverage_{about}",
        f"Risk and coverage: {about}",
        "All methods on the answers of the first seed's frozen classifier. Lower is better; the "
        "oracle knows every error. Thin and gray: methods that the paper does not have, but for "
        "residual, and controls.",
        figure,
        columns,
        risk_chart(predictions.is_error, curves(predictions.uncertainty)).alt,
    )


def draw_histograms(predictions: Predictions, about: str, tau: float) -> Drawing | None:
    """The paper's uncertainty histograms: MCP, TCP and BTCP; None where there are none of them."""
    found = {
        name: predictions.uncertainty[name]
        for name in (REFERENCE, "tcp", "btcp")
        if name in predictions.uncertainty
    }
    if not found:
        return None
    figure, axes, columns = panels(len(found))
    for ax, (name, u) in zip(axes, found.items(), strict=True):
        plot_uncertainty_histogram(ax, predictions.is_error, u, tau=tau, title=label(name))
    return Drawing(
        f"uncertainty_histogram_{about}",
        f"Uncertainty of correct and wrong answers: {about}",
        "First seed, frozen classifier, test images; counts on a logarithmic axis.",
        figure,
        columns,
        _in_words({label(name): _halves(predictions.is_error, u) for name, u in found.items()}),
    )


def draw_confidence(
    test: Predictions, others: Mapping[str, Predictions], about: str
) -> Drawing | None:
    """The paper's figure of OOD against in-distribution confidence, for BTCP and TCP.

    Args:
      test: Of the frozen classifier on the test images.
      others: Name of an OOD set -> predictions of its images.
      about: Name of the data set.
    """
    pairs = [
        (ood, name)
        for ood, found in others.items()
        for name in ("btcp", "tcp")
        if name in test.uncertainty and name in found.uncertainty
    ]
    if not pairs:
        return None
    figure, axes, columns = panels(len(pairs))
    for ax, (ood, name) in zip(axes, pairs, strict=True):
        plot_confidence(
            ax,
            test.uncertainty[name],
            others[ood].uncertainty[name],
            title=f"{label(name)}: {about} and {ood}",
        )
    return Drawing(
        f"confidence_{about}",
        f"Confidence of test and OOD images: {about}",
        "First seed, frozen classifier. The less the two overlap, the better OOD images are told "
        "from the test images; test images are filled, OOD images hatched.",
        figure,
        columns,
        _in_words(
            {
                f"{label(name)}, {ood}": "median confidence "
                f"{1 - np.median(test.uncertainty[name]):.3g} of test images, "
                f"{1 - np.median(others[ood].uncertainty[name]):.3g} of OOD images"
                for ood, name in pairs
            }
        ),
    )


def draw_shift(rows: Sequence[Row], about: str) -> Drawing | None:
    """AURC under each corruption against its strength; None where there is none."""
    rows = _apart(rows)
    names = dict.fromkeys(
        row["split"].removeprefix("test:").rstrip("0123456789")
        for row in rows
        if row["split"].startswith("test:")
    )
    if not names:
        return None
    figure, axes, columns = panels(len(names), height=3.9, bottom=1.05)
    for ax, name in zip(axes, names, strict=True):
        plot_shift(ax, rows, name, title=name)
    _legend_below(figure, axes, 3 * len(axes))
    return Drawing(
        f"shift_{about}",
        f"Covariate shift: {about}",
        "AURC of the frozen classifier's test answers, mean over seeds, as the images change more; "
        "below each strength, the accuracy there. AURC rises with the error rate itself.",
        figure,
        columns,
        _in_words({name: _most_shifted(rows, name) for name in names}),
    )


def _most_shifted(rows: Sequence[Row], name: str) -> str:
    """AURC of each method where a corruption is strongest."""
    found = [row for row in rows if row["split"] == f"test:{name}3"]
    told = [f"{label(row['method'])} {1000 * number(row['aurc']):.3g}" for row in found]
    return f"AURC x 1000 at strength 3: {', '.join(told)}" if told else ""


def draw_ablation(rows: Sequence[Row], base: Sequence[Row], about: str) -> Drawing:
    """What each setting of the loss does to the threshold (BACC) and to the ranking.

    Args:
      rows: As `plot_ablation`.
      base: As `plot_ablation`.
      about: Name of the data set.
    """
    figure, axes, columns = panels(3, height=1.3 + 0.26 * (len(rows) + len(base)), left=1.35)
    for ax, name in zip(axes, ("bacc", "auroc", "aurc"), strict=True):
        plot_ablation(ax, rows, name, base)
    return Drawing(
        f"ablation_{about}",
        f"What the loss does to the threshold and to the ranking: {about}",
        "Frozen BTCP on one classifier, one setting changed at a time, with 95 % intervals. BACC "
        "depends on where u lies around tau; AUROC and AURC only on the order of the answers.",
        figure,
        columns,
        _in_words(
            {
                row.get("ablation") or label(row["method"]): f"AUROC {number(row['auroc']):.2%}"
                for row in (*base, *rows)
            }
        ),
    )


def draw_ranks(rows: Sequence[Row]) -> Drawing | None:
    """Mean ranks by AURC over data sets and seeds; None where there are too few methods."""
    rows = _apart(rows)
    names, ranks = mean_ranks(rows)
    if len(names) < 2:
        return None
    figure, (ax,), columns = panels(1, height=1.6 + 0.25 * len(names), left=1.8)
    plot_ranks(ax, rows)
    return Drawing(
        "mean_ranks",
        "Mean ranks",
        f"Rank by AURC among the frozen methods, mean of {ranks.shape[1]} data sets and seeds; the "
        "gray bar is the range, filled points are the paper's methods. Two methods whose mean "
        "ranks are closer than the critical difference (Nemenyi, 5 %) are not told apart by it; "
        "seeds of one data set share their test images, so that it is a rough guide.",
        figure,
        columns,
        _in_words(
            {label(name): f"{row.mean():.1f}" for name, row in zip(names, ranks, strict=True)}
        ),
    )


# Monitoring ------------------------------------------------------------------------------------

_THEN, _NOW = "#0072B2", WRONG


def plot_two_samples(
    ax: Axes,
    baseline: np.ndarray,
    production: np.ndarray,
    *,
    bins: int = 40,
    tau: float | None = None,
    title: str = "",
) -> None:
    """Histograms of u of a baseline and of what came later, as shares of each.

    Args:
      ax: Where to draw.
      baseline: `[n]`.
      production: `[m]`. Bins span [0, 1], or the range of raw scores beyond.
      bins: Number of equal bins.
      tau: Decision threshold to mark.
      title: Title of the panel.
    """
    span = _span(baseline, production)
    for name, u, style in _samples(baseline, production):
        counts, edges = np.histogram(u, bins=bins, range=span)
        ax.stairs(counts / len(u), edges, linewidth=1.6, label=name, **style)
    _mark_tau(ax, tau)
    ax.set_xlim(*span)
    ax.set_ylim(bottom=0)
    _percent(ax.yaxis)
    _label(ax, "uncertainty u", "share of the answers", title)
    _legend(ax)


def plot_distribution_functions(
    ax: Axes,
    baseline: np.ndarray,
    production: np.ndarray,
    *,
    at: float,
    tau: float | None = None,
    title: str = "",
) -> None:
    """Share of answers with at most each u, then and now, and where the two differ most.

    Args:
      ax: Where to draw.
      baseline: `[n]`.
      production: `[m]`.
      at: Where to mark the difference.
      tau: Decision threshold to mark.
      title: Title of the panel.
    """
    span = _span(baseline, production)
    heights = []
    for name, u, style in _samples(baseline, production):
        values, counts = np.unique(u, return_counts=True)
        shares = np.cumsum(counts) / len(u)
        x, y = np.concatenate([[span[0]], values, [span[1]]]), np.concatenate([[0], shares, [1]])
        ax.step(x, y, where="post", linewidth=1.6, label=name, **style)
        heights.append(float(np.mean(np.asarray(u) <= at)))
    ax.plot([at, at], heights, color="black", linewidth=2.5, label="distance", zorder=3)
    _mark_tau(ax, tau)
    ax.set_xlim(*span)
    ax.set_ylim(0, 1.01)
    _percent(ax.yaxis)
    _label(ax, "uncertainty u", "answers with at most u", title)
    _legend(ax, loc="lower right")


def plot_class_shares(
    ax: Axes,
    baseline: np.ndarray,
    production: np.ndarray,
    names: Sequence[str],
    *,
    title: str = "",
) -> None:
    """Share of each predicted class, then and now, as pairs of bars.

    Args:
      ax: Where to draw.
      baseline: Shares, `[k]`.
      production: Shares, `[k]`.
      names: `[k]`, drawn from top to bottom.
      title: Title of the panel.
    """
    places = np.arange(len(names))
    hatched: dict[str, Any] = dict(facecolor="none", edgecolor=_NOW, hatch="////")
    ax.barh(places - 0.2, baseline, height=0.38, label="calibration", color=_THEN)
    ax.barh(places + 0.2, production, height=0.38, label="now", **hatched)
    ax.set_yticks(places, [_short(name) for name in names])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    # Room for the legend above the bars.
    ax.set_ylim(len(names) - 0.5, -0.6 - 0.1 * len(names))
    _percent(ax.xaxis, decimals=0)
    _label(ax, "share of the answers", "", title)
    _legend(ax, loc="upper right", ncols=2)


def plot_rate_by_block(
    ax: Axes,
    rows: np.ndarray,
    rates: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    baseline: tuple[float, float, float],
    ylabel: str,
    title: str = "",
) -> None:
    """A share in blocks of rows, with intervals, beside the baseline's.

    Args:
      ax: Where to draw.
      rows: Middle of each block, `[b]`.
      rates: `[b]`.
      low: Lower ends of the intervals, `[b]`.
      high: Upper ends, `[b]`.
      baseline: The baseline's share and its interval.
      ylabel: What the share is.
      title: Title of the panel.
    """
    share, bottom, top = baseline
    ax.axhspan(bottom, top, color=_THEN, alpha=0.15, linewidth=0)
    ax.axhline(share, color=_THEN, linestyle=(0, (5, 2)), linewidth=1.6, label="calibration")
    ax.vlines(rows, low, high, color=_NOW, linewidth=1.2)
    ax.plot(rows, rates, "o", color=_NOW, markersize=4.5, label="now, in blocks")
    ax.set_ylim(0, min(1.0, 1.1 * max(float(np.max(high)), top)))
    _percent(ax.yaxis)
    _label(ax, "row of the scores", ylabel, title)
    _legend(ax)


def plot_risk_over_rows(
    ax: Axes,
    rows: np.ndarray,
    risk: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    limit: float | None = None,
    broken: int | None = None,
    title: str = "",
) -> None:
    """The error rate of accepted answers so far, with an interval that holds at all times.

    Args:
      ax: Where to draw.
      rows: Number of rows seen, `[p]`, ascending.
      risk: Error rate among them, `[p]`.
      low: Lower ends of the intervals, `[p]`.
      high: Upper ends, `[p]`.
      limit: The rate that was promised.
      broken: Number of rows at which the promise is shown broken.
      title: Title of the panel.
    """
    ax.fill_between(rows, low, high, color=_THEN, alpha=0.18, linewidth=0, label="interval")
    ax.plot(rows, risk, color=_THEN, linewidth=1.6, label="error rate so far")
    if limit is not None:
        ax.axhline(limit, color="black", linestyle=":", linewidth=1.4, label=f"limit {limit:.4g}")
    _mark_break(ax, broken)
    # The first few rows say nothing, over the whole axis.
    late = rows >= rows[-1] / 10
    top = max(float(np.max(high[late])), float(np.max(risk[late])), 1.5 * (limit or 0))
    ax.set_ylim(0, min(1.0, 1.1 * top))
    _percent(ax.yaxis)
    _label(ax, "accepted answers with a label", "wrong among them", title)
    _legend(ax, loc="upper right")


def plot_evidence(
    ax: Axes,
    rows: np.ndarray,
    evidence: np.ndarray,
    *,
    enough: float,
    broken: int | None = None,
    title: str = "",
) -> None:
    """Evidence that a promise is broken, on a log axis.

    Args:
      ax: Where to draw.
      rows: Number of rows seen, `[p]`, ascending.
      evidence: `[p]`, above 0.
      enough: Evidence at which the promise counts as broken.
      broken: Number of rows at which it did.
      title: Title of the panel.
    """
    ax.plot(rows, evidence, color=_NOW, linewidth=1.6, label="evidence")
    ax.axhline(enough, color="black", linestyle=":", linewidth=1.4, label=f"enough: {enough:.4g}")
    _mark_break(ax, broken)
    ax.set_yscale("log")
    ax.minorticks_off()
    _label(ax, "accepted answers with a label", "evidence against the promise", title)
    _legend(ax, loc="upper left")


def _samples(
    baseline: np.ndarray, production: np.ndarray
) -> tuple[tuple[str, np.ndarray, dict[str, Any]], ...]:
    return (
        (f"calibration ({len(baseline):,})", baseline, dict(color=_THEN, linestyle=(0, (5, 2)))),
        (f"now ({len(production):,})", production, dict(color=_NOW)),
    )


def _span(*samples: np.ndarray) -> tuple[float, float]:
    return (
        min(0.0, *(float(np.min(u)) for u in samples)),
        max(1.0, *(float(np.max(u)) for u in samples)),
    )


def _mark_tau(ax: Axes, tau: float | None) -> None:
    if tau is not None:
        ax.axvline(tau, color="black", linestyle=":", linewidth=1.2, label=f"tau = {tau:.4g}")


def _mark_break(ax: Axes, broken: int | None) -> None:
    if broken is not None:
        ax.axvline(broken, color=_GRAY, linewidth=1.2, label=f"broken at {broken:,}")


# Files -----------------------------------------------------------------------------------------


def save_figures(folder: str | os.PathLike, drawings: Iterable[Drawing]) -> list[Path]:
    """Writes each drawing as PNG and as PDF, atomically; equal drawings give equal bytes.

    Returns:
      The paths, a PNG followed by its PDF for each drawing.
    """
    paths = []
    for drawing in drawings:
        for ending, content in (("png", drawing.png), ("pdf", _render(drawing.figure, "pdf"))):
            path = Path(folder) / f"{drawing.name}.{ending}"
            with atomic_path(path) as temporary:
                temporary.write_bytes(content)
            paths.append(path)
    return paths


def _render(figure: Figure, ending: str) -> bytes:
    from matplotlib.text import Text

    # Files of the same data must not differ by the day or by Matplotlib's version.
    hidden = {"png": ["Software"], "pdf": ["CreationDate", "Creator", "Producer"]}[ending]
    buffer = io.BytesIO()
    # All words of a figure pass here: names of classes and of foreign columns among them.
    for words in figure.findobj(Text):
        words.set_text(drawable(words.get_text()))
    with warnings.catch_warnings():
        # Letters that the font does not have are shown as boxes.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=ending, dpi=140, metadata=dict.fromkeys(hidden))
    return buffer.getvalue()
