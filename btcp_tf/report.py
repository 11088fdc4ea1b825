"""Tables, figures and the HTML page of a run, from saved rows and predictions.

Nothing here trains, predicts or computes a metric: numbers come from the rows
of `btcp_tf.evaluation`, curves from `btcp_tf.metrics`. Every plot draws on an
`ax` it is given, so that it can be put into any Matplotlib figure. Colors are
the Okabe-Ito set, and each line also has its own dashes and marker: figures
stay legible to color-blind readers and in gray.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import metrics
from btcp_tf.evaluation import DIFFERENCES, REFERENCE, Predictions
from btcp_tf.files import atomic_path
from btcp_tf.metrics import METRICS, reliability_curve, risk_coverage_curve, roc_curve

if TYPE_CHECKING:  # Matplotlib takes half a second, which `--help` need not wait for.
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""One flat result row of `btcp_tf.evaluation.rows`, or one row of a run's history."""

HEADLINE = ("auroc", "aupr_error", "aurc")
"""Metrics that a reader sees first."""

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

# Printed value = value x scale, with so many decimals. What is not listed is a share, in percent.
_SHARE = (100, 2)
_UNITS = {
    "aurc": (1000, 2),
    "e_aurc": (1000, 2),
    "augrc": (1000, 2),
    "brier": (1, 4),
    "nll": (1, 4),
}

# The order fixes each method's color, dashes and marker in all figures of all runs.
_KNOWN = ("mcp", "btcp", "tcp", "ohem", "mc_dropout", "trust_score", "thresholding")
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
    )
)
_CORRECT, _WRONG, _GRAY = "#56B4E9", "#D55E00", "#595959"

FEW_ERRORS = 30
"""Below this many errors a report says that its figures rest on little."""


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
    filled: dict[str, Any] = dict(facecolor=_CORRECT, edgecolor=_CORRECT)
    hatched: dict[str, Any] = dict(facecolor="none", edgecolor=_WRONG, hatch="////", linewidth=1.2)
    for name, rows, style in (("correct", ~is_error, filled), ("wrong", is_error, hatched)):
        counts, edges = np.histogram(uncertainty[rows], bins=bins, range=span)
        # A baseline below one, so that a bin with a single answer has a height.
        label = f"{name} ({counts.sum():,})"
        ax.stairs(counts, edges, baseline=0.5, fill=True, label=label, **style)
    if tau is not None:
        ax.axvline(tau, color="black", linestyle=":", linewidth=1.2, label=f"tau = {tau:g}")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.minorticks_off()
    _label(ax, "uncertainty u", "answers", title)
    ax.set_xlim(*span)
    _legend(ax)


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
    _legend(ax)


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
    _legend(ax)


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
    _legend(ax)


def plot_epochs(
    ax: Axes, history: Iterable[Row], column: str, *, ylabel: str = "", title: str = ""
) -> None:
    """One column of the history against the epoch, one line for each stage.

    Args:
      ax: Where to draw.
      history: Rows with `stage`, `epoch` (from 1) and `column`; None and NaN
        leave a gap.
      column: Name of the column, such as `u_mean` or `u_std`.
      ylabel: What the column is.
      title: Title of the panel.
    """
    stages = _by(history, "stage")
    for stage, style in _styles(stages).items():
        epochs, values = _column(stages[stage], "epoch"), _column(stages[stage], column)
        _line(ax, epochs, values, stage, style, every=max(1, len(epochs) // 8))
    ax.set_ylim(bottom=0)
    _epoch_axis(ax, max(row["epoch"] for rows in stages.values() for row in rows))
    _label(ax, "epoch of the phase", ylabel, title)
    _legend(ax)


def plot_fpr_fnr(ax: Axes, history: Iterable[Row], *, title: str = "") -> None:
    """FPR and FNR of one stage against the epoch: the paper's figure.

    FPR is the share of errors accepted, FNR the share of correct answers
    rejected, both at the run's tau.

    Args:
      ax: Where to draw.
      history: Rows of one stage with `epoch` (from 1), `fpr` and `fnr`.
      title: Title of the panel.
    """
    rows = list(history)
    epochs = _column(rows, "epoch")
    for name, style in (("fpr", _STYLES[1]), ("fnr", _STYLES[0])):
        values = _column(rows, name)
        _line(ax, epochs, values, name.upper(), style, every=max(1, len(epochs) // 8))
    ax.set_ylim(-0.02, 1.02)
    _epoch_axis(ax, max(epochs))
    _percent(ax.yaxis, decimals=0)
    _label(ax, "epoch of the phase", "rate", title)
    _legend(ax)


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


def error_sheet(
    images: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    uncertainty: np.ndarray,
    class_names: Sequence[str] | None = None,
    *,
    count: int = 24,
    columns: int = 6,
) -> Figure:
    """A sheet of the most confident errors: image, predicted and true class, u.

    Args:
      images: `[n, height, width, channels]` uint8, 1 or 3 channels.
      labels: `[n]` true classes.
      predicted: `[n]` predicted classes.
      uncertainty: `[n]`; the wrong answers with the smallest are shown.
      class_names: Names by class number; without them the numbers are shown.
      count: How many errors at most.
      columns: Images side by side.
    """
    from matplotlib.figure import Figure

    shown = confident_errors(predicted != labels, uncertainty, count)
    if not len(shown):
        figure = Figure(figsize=(6, 1))
        figure.text(0.5, 0.5, "no errors", ha="center", va="center", fontsize=11)
        return figure
    lines = math.ceil(len(shown) / columns)
    width, height, words = 1.55, 2.2, 0.65  # Inches of a cell, and of the words above its image.
    figure = Figure(figsize=(width * columns, height * lines))
    for place, row in enumerate(shown):
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
        image = images[row]
        gray = image.shape[-1] == 1
        ax.imshow(
            image[..., 0] if gray else image,
            cmap="gray" if gray else None,
            vmin=0,
            vmax=255,
            interpolation="nearest",
        )
        ax.set_title(
            f"is {_short(_class_name(labels[row], class_names))}\n"
            f"said {_short(_class_name(predicted[row], class_names))}\n"
            f"u = {uncertainty[row]:.3g}",
            fontsize=8,
            pad=3,
            parse_math=False,
        )
    return figure


def _line(
    ax: Axes, x: np.ndarray, y: np.ndarray, name: str, style: dict, every: float = 0.12
) -> None:
    # Matplotlib leaves names that start with "_" out of a legend.
    label = f" {name}" if name.startswith("_") else name
    ax.plot(x, y, label=label, linewidth=1.6, markersize=4.5, markevery=every, **style)


def _styles(names: Iterable[str]) -> dict[str, dict]:
    """Line style of each name: known ones keep theirs, others take what is free."""
    names = list(names)
    places = {
        name: _KNOWN.index(known)
        for name in names
        if (known := {"classifier": "mcp"}.get(name, name.removesuffix("_finetuned"))) in _KNOWN
    }
    free = [place for place in range(len(_STYLES)) if place not in places.values()]
    for number, name in enumerate(name for name in names if name not in places):
        places[name] = free[number] if number < len(free) else number % len(_STYLES)
    tuned = dict(linestyle=(0, (1, 2.5)), markerfacecolor="white")
    return {
        name: _STYLES[places[name]] | (tuned if name.endswith("_finetuned") else {})
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


def _legend(ax: Axes) -> None:
    for text in ax.legend(fontsize=9, framealpha=0.85, handlelength=3.2).get_texts():
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


def _panels(count: int) -> tuple[Figure, list[Axes], int]:
    """A figure with `count` panels in even rows of at most three, and the row's length."""
    from matplotlib.figure import Figure

    columns = 2 if count in (2, 4) else min(count, 3)
    lines = math.ceil(count / columns)
    # Margins in inches: the same for every figure, and far cheaper than a layout engine.
    width, height, left, right, top, bottom = 4.4, 3.5, 0.85, 0.2, 0.35, 0.55
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
    tau: float | None = None,
) -> list[Drawing]:
    """All figures of a run but the sheet of errors, which needs images.

    Args:
      predictions: Name of a classifier, such as "frozen" and "finetuned" -> its
        predictions; each becomes a panel, as its errors are its own.
      history: Rows of the run's history on validation data; empty: no curves
        per epoch.
      tau: Decision threshold to mark in the histograms.
    """
    drawings = []
    scores = [
        (f"{method}, {_stage(name)} classifier", p.is_error, u)
        for name, p in predictions.items()
        for method, u in p.uncertainty.items()
    ]
    figure, axes, columns = _panels(len(scores))
    for ax, (title, is_error, u) in zip(axes, scores, strict=True):
        plot_uncertainty_histogram(ax, is_error, u, tau=tau, title=title)
    drawings.append(
        Drawing(
            "uncertainty_histogram",
            "Uncertainty of correct and wrong answers",
            "Histogram of u in 50 bins, correct answers filled and wrong ones hatched, counts on "
            "a logarithmic axis. A useful u puts the wrong answers to the right of tau.",
            figure,
            columns,
        )
    )
    for name, title, caption, plot in (
        (
            "risk_coverage",
            "Risk and coverage",
            "Answers are accepted from the most trusted on; the curve is the error rate among "
            "those accepted. Lower is better; the gray oracle knows every error.",
            plot_risk_coverage,
        ),
        (
            "roc",
            "ROC: finding errors by their uncertainty",
            "Share of errors rejected against share of correct answers rejected with them, over "
            "all thresholds. Further to the upper left is better.",
            plot_roc,
        ),
        (
            "reliability",
            "Reliability of 1 - u as the probability of being correct",
            "Share of correct answers in 15 bins of the confidence 1 - u. On the gray line the "
            "confidence is what it says; below it the method is overconfident.",
            plot_reliability,
        ),
    ):
        figure, axes, columns = _panels(len(predictions))
        for ax, (classifier, p) in zip(axes, predictions.items(), strict=True):
            plot(ax, p.is_error, p.uncertainty, title=f"{_stage(classifier)} classifier")
        drawings.append(Drawing(name, title, caption, figure, columns))
    stages = _by(history, "stage")
    if stages:
        rows = [row for group in stages.values() for row in group]
        figure, axes, columns = _panels(2)
        plot_epochs(axes[0], rows, "u_mean", ylabel="mean of u", title="Mean")
        plot_epochs(axes[1], rows, "u_std", ylabel="standard deviation of u", title="Deviation")
        drawings.append(
            Drawing(
                "uncertainty_per_epoch",
                "Mean and standard deviation of u per epoch",
                "Validation data. Uncertainty that stays low and narrow while errors remain is "
                "the imbalance that BTCP is made against.",
                figure,
                columns,
            )
        )
        figure, axes, columns = _panels(len(stages))
        for ax, (stage, rows) in zip(axes, stages.items(), strict=True):
            plot_fpr_fnr(ax, rows, title=stage)
        drawings.append(
            Drawing(
                "fpr_fnr_per_epoch",
                "FPR and FNR per epoch",
                "Validation data"
                + ("" if tau is None else f", at tau = {tau:g}")
                + ". FPR: share of errors accepted. FNR: share of correct answers rejected.",
                figure,
                columns,
            )
        )
    return drawings


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
    # Files of the same data must not differ by the day or by Matplotlib's version.
    hidden = {"png": ["Software"], "pdf": ["CreationDate", "Creator", "Producer"]}[ending]
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, dpi=140, metadata=dict.fromkeys(hidden))
    return buffer.getvalue()


# Tables ----------------------------------------------------------------------------------------


def terminal_table(
    rows: Sequence[Row], files: Mapping[str, str | os.PathLike] | None = None
) -> str:
    """What a person should know at the end of a run, in fewer than 80 columns.

    Args:
      rows: Result rows. Those of one classifier stand together under its
        accuracy and its number of errors.
      files: What each file is -> where it is.

    Returns:
      Lines without a trailing newline; only ASCII besides names of the caller's.
    """
    lines = []
    headings = ["method", *(f"{METRICS[name].title} {_unit(name)}" for name in HEADLINE)]
    for group in _classifiers(rows):
        first = group[0]
        lines += [
            f"{first['dataset']}, seed {first['seed']}, {first['split']}: "
            f"{_stage(first['stage'])} classifier",
            f"  accuracy {_value(first, 'accuracy')} %, "
            f"{first['errors']:,} errors of {first['n']:,}",
        ]
        table = [headings] + [
            [row["method"], *(_value(row, name) + _interval(row, name) for name in HEADLINE)]
            for row in group
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
        lines.append("")
    if any(_interval(row, name) for row in rows for name in HEADLINE):
        lines += ["In brackets: 95 % bootstrap intervals.", ""]
    if files:
        width = max(map(len, files)) + 2
        lines += [f"{name:<{width}}{os.fspath(path)}" for name, path in files.items()]
    return "\n".join(lines).rstrip()


def _unit(name: str, times: str = "x") -> str:
    scale, _ = _UNITS.get(name, _SHARE)
    return {1: "", 100: "%"}.get(scale, f"{times}{scale}")


def _format(value: float, name: str, sign: str = "") -> str:
    scale, decimals = _UNITS.get(name, _SHARE)
    return "n/a" if math.isnan(value) else f"{scale * value:{sign}.{decimals}f}"


def _value(row: Row, name: str) -> str:
    return _format(_number(row.get(name)), name)


def _interval(row: Row, name: str, metric: str = "") -> str:
    """The 95 % interval of a column in brackets, after a space; nothing where there is none."""
    low, high = _number(row.get(f"{name}_low")), _number(row.get(f"{name}_high"))
    if math.isnan(low) or math.isnan(high):
        return ""
    sign = "+" if metric else ""
    return f" [{_format(low, metric or name, sign)}, {_format(high, metric or name, sign)}]"


def _number(value: Any) -> float:
    """Rows read from foreign JSON may hold None where a metric is not defined."""
    return math.nan if value is None else float(value)


def _column(rows: Iterable[Row], name: str) -> np.ndarray:
    return np.array([_number(row[name]) for row in rows])


def _by(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(row)
    return groups


def _classifiers(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that speak of the same answers, in order of appearance."""
    return list(
        _by(rows, "dataset", "seed", "split", "stage", "classifier_id", "n", "errors").values()
    )


def _who(row: Row) -> str:
    """The answers that a row speaks of, for the caption of a table."""
    return (
        f"{row['dataset']}, seed {row['seed']}, {row['split']}: {_stage(row['stage'])} classifier "
        f"{row['classifier_id']}"
    )


def _stage(name: str) -> str:
    return {"finetuned": "fine-tuned"}.get(name, name)


def _class_name(number: int, class_names: Sequence[str] | None) -> str:
    return str(number) if class_names is None else str(class_names[number])


def _short(name: str, length: int = 17) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


# The page --------------------------------------------------------------------------------------


def page(
    rows: Sequence[Row],
    drawings: Iterable[Drawing] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
    errors: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The report of a run: one HTML page that needs no other file and no network.

    Args:
      rows: Result rows.
      drawings: Figures, embedded as PNG in this order.
      settings: Name -> value of each setting.
      environment: Name -> value, such as versions of packages.
      notes: Caveats in plain words, shown above the results; remarks on few or
        no errors are added to them.
      errors: Rows of a table of single errors, by column heading.
    """
    dataset, seeds = _names(rows, "dataset"), _names(rows, "seed")
    title = f"Failure prediction on {dataset}, seed {seeds}"
    sections = [
        ("Results", _headline(rows)),
        ("Figures", "".join(map(_figure, drawings))),
        ("Most confident errors", _error_table(errors)),
        ("All metrics", "".join(map(_metric_table, _classifiers(rows)))),
        ("The paper's columns", _paper_tables(rows)),
        ("What the metrics mean", _glossary()),
        ("Settings", _pairs(settings or {}, "Settings of the run")),
        ("Environment", _pairs(environment or {}, "Where it ran")),
    ]
    caveats = [*notes, *_remarks(rows)]
    notice = f'<ul class="note" aria-label="Caveats">{_items(caveats)}</ul>' if caveats else ""
    body = "".join(
        f'<section><h2 id="{anchor}">{heading}</h2>{content}</section>'
        for anchor, heading, content in (
            (heading.lower().replace(" ", "-").replace("'", ""), heading, content)
            for heading, content in sections
        )
        if content
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{_escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body><main><h1>{_escape(title)}</h1>{notice}{body}</main></body></html>\n"
    )


def _names(rows: Iterable[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(str(row[column]) for row in rows))


def _escape(value: Any) -> str:
    return html.escape(str(value))


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{_escape(text)}</li>" for text in texts)


def _remarks(rows: Iterable[Row]) -> list[str]:
    """What the numbers of errors say about the rest of the page."""
    remarks = []
    for group in _classifiers(rows):
        errors, who = group[0]["errors"], f"The {_stage(group[0]['stage'])} classifier"
        if errors == 0:
            remarks.append(f"{who} makes no error: metrics that need errors are n/a.")
        elif errors == group[0]["n"]:
            remarks.append(f"{who} is always wrong: metrics that need correct answers are n/a.")
        elif errors < FEW_ERRORS:
            remarks.append(
                f"{who} makes only {errors} error{'s' * (errors > 1)}: every figure about finding "
                "them rests on these few."
            )
    return remarks


def _headline(rows: Sequence[Row]) -> str:
    parts = []
    for group in _classifiers(rows):
        first = group[0]
        parts.append(
            f"<h3>{_escape(_stage(first['stage']).capitalize())} classifier</h3>"
            f"<p>Right on <strong>{_data(first, 'accuracy')} %</strong> of {first['n']:,} "
            f"{_escape(first['split'])} images, wrong on <strong>"
            f'<data value="{first["errors"]}">{first["errors"]:,}</data></strong>. '
            f"{_hand_over(group)}How well each method finds these errors:</p>"
        )
        parts.append(
            _table(
                f"{_who(first)}, 95 % intervals in brackets",
                ["method", *map(_heading, HEADLINE)],
                [
                    [_escape(row["method"]), *(_cell(row, name) for name in HEADLINE)]
                    for row in group
                ],
            )
        )
        compared = [row for row in group if f"{DIFFERENCES[0]}_minus_{REFERENCE}" in row]
        if compared:
            parts.append(
                _table(
                    f"{_who(first)}: difference to {REFERENCE}, paired 95 % intervals",
                    ["method", *map(_heading, DIFFERENCES)],
                    [
                        [
                            _escape(row["method"]),
                            *(_difference(row, name) for name in DIFFERENCES),
                        ]
                        for row in compared
                    ],
                )
            )
    return "".join(parts)


def _hand_over(group: Sequence[Row]) -> str:
    """What is left of the errors if the least trusted answers go to a person."""
    method = _main_method(row["method"] for row in group)
    row = next(row for row in group if row["method"] == method)
    if math.isnan(_number(row.get("risk_at_coverage_90"))):
        return ""
    risk = f"<strong>{_data(row, 'risk_at_coverage_90')} %</strong>"
    return f"Among the 90 % that {_escape(method)} trusts most (ties included), {risk} are wrong. "


def _main_method(names: Iterable[str]) -> str:
    """The method whose errors and promises are shown where there is room for one."""
    names = list(names)
    return "btcp" if "btcp" in names else names[-1]


def _difference(row: Row, name: str) -> str:
    """A difference with its interval and, in a word, what the interval allows to say."""
    column = f"{name}_minus_{REFERENCE}"
    value = _number(row.get(column))
    low, high = _number(row.get(f"{column}_low")), _number(row.get(f"{column}_high"))
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        verdict = ""
    elif low <= 0 <= high:
        verdict = "not clear"
    else:
        verdict = "better" if (low > 0) == METRICS[name].higher_is_better else "worse"
    return (
        f'<data value="{value!r}">{_format(value, name, "+")}</data>'
        f' <span class="ci">{_interval(row, column, name)}</span>'
        f' <span class="verdict {verdict.replace(" ", "-")}">{verdict}</span>'
    )


def _metric_table(group: Sequence[Row]) -> str:
    first = group[0]
    return _table(
        f"{_who(first)}: {first['errors']:,} errors of {first['n']:,}, tau = {first['tau']:g}",
        ["metric", *(_escape(row["method"]) for row in group)],
        [
            [_heading(name), *(_cell(row, name) for row in group)]
            for name in METRICS
            if name in first
        ],
    )


_PAPER_WORDS = (
    "<p>This run beside the paper's table, in percent; the paper's BTCP is the fine-tuned one. "
    "Its FPR column cannot be matched. Read by the paper's formula (FPR: accepted errors ÷ "
    "errors), MCP on Fashion-MNIST would have to reject most correct answers; read as the authors' "
    "prototype computes it (FP / n: accepted errors ÷ all answers), the MNIST classifier would "
    "have to be wrong on more than 13 %. Both are shown, and no match is claimed. Several AUC "
    "cells of the paper equal those of an earlier publication.</p>"
)


def _paper_tables(rows: Sequence[Row]) -> str:
    """Beside the paper's cells, for the data sets that it has; otherwise nothing."""
    tables = []
    for group in _classifiers(row for row in rows if row["dataset"] in PAPER):
        first, lines = group[0], []
        for row in group:
            cells = PAPER[row["dataset"]].get(row["method"])
            bacc, auc, fpr = (
                f'<span class="paper">{f"{cell:.2f}" if cells else "–"}</span>'
                for cell in cells or (None,) * 3
            )
            own = {name: _data(row, name) for name in ("bacc", "auroc", "fpr", "fp_share")}
            lines.append(
                [
                    _escape(row["method"]),
                    *(own["bacc"], bacc, own["auroc"], auc, own["fpr"], own["fp_share"], fpr),
                ]
            )
        tables.append(
            _table(
                f"Beside the paper: {_who(first)}, {first['errors']:,} errors of {first['n']:,}, "
                f"tau = {first['tau']:g}",
                ["method", "BACC", "paper's", "AUC", "paper's", "FPR", "FP / n", "paper's FPR"],
                lines,
            )
        )
    return _PAPER_WORDS + "".join(tables) if tables else ""


def _error_table(errors: Sequence[Mapping[str, Any]]) -> str:
    if not errors:
        return ""
    table = _table(
        "Wrong answers with the smallest u",
        map(_escape, errors[0]),
        (map(_escape, row.values()) for row in errors),
    )
    return _details(f"{len(errors)} errors as a table", table)


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{_escape(summary)}</summary>{content}</details>"


def _glossary() -> str:
    entries = []
    for name, metric in METRICS.items():
        function = getattr(metrics, metric.formula.__name__.removeprefix("_"))
        words = " ".join((function.__doc__ or "").split("\n\n")[0].split()).replace("`", "")
        better = "higher" if metric.higher_is_better else "lower"
        entries.append(
            f"<dt>{_escape(metric.title)} <code>{_escape(name)}</code></dt>"
            f"<dd>{_escape(words)} Better when {better}.</dd>"
        )
    return _details(f"{len(entries)} metrics", f"<dl>{''.join(entries)}</dl>")


def _pairs(values: Mapping[str, Any], summary: str) -> str:
    if not values:
        return ""
    table = _table(summary, ["name", "value"], (map(_escape, pair) for pair in values.items()))
    return _details(summary, table)


def _figure(drawing: Drawing) -> str:
    image = base64.b64encode(drawing.png).decode()
    # Panels keep a readable width; on a narrow screen the box scrolls, not the page.
    width = f"min-width:{19 * drawing.columns}rem;max-width:{30 * drawing.columns}rem"
    return (
        f"<figure><h3>{_escape(drawing.title)}</h3>"
        f'{_scroll(drawing.title)}<img src="data:image/png;base64,{image}" style="{width}" '
        f'alt="{_escape(drawing.title)}"/></div>'
        f"<figcaption>{_escape(drawing.caption)}</figcaption></figure>"
    )


def _scroll(label: str) -> str:
    # A box that scrolls must be reachable by keyboard and have a name.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(label)}">'


def _table(caption: str, headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in a box of its own that scrolls; its caption is text, all cells are HTML."""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in lines
    )
    return (
        f"{_scroll(caption)}<table><caption><span>{_escape(caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _heading(name: str) -> str:
    metric = METRICS[name]
    arrow, better = ("↑", "higher") if metric.higher_is_better else ("↓", "lower")
    return (
        f"{_escape(metric.title)} {_unit(name, '×')} "
        f'<span title="{better} is better" aria-label="{better} is better">{arrow}</span>'
    )


def _data(row: Row, name: str) -> str:
    """A value as printed, with the exact one beside it for programs."""
    return f'<data value="{_number(row.get(name))!r}">{_value(row, name)}</data>'


def _cell(row: Row, name: str) -> str:
    return f'{_data(row, name)} <span class="ci">{_interval(row, name)}</span>'


_CSS = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1a1a1a;font:1rem/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
main{max-width:72rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0 1rem}
h2{font-size:1.3rem;margin:2.5rem 0 .75rem;padding-bottom:.3rem;border-bottom:2px solid #0b4f7a}
h3{font-size:1.05rem;margin:1.5rem 0 .4rem}
p,dd,figcaption,.note{max-width:46rem}
.note{background:#fff4d6;border-left:.35rem solid #b36b00;margin:0 0 1rem;
padding:.75rem 1rem .75rem 2rem}
.scroll{overflow-x:auto;margin:.5rem 0 1.25rem}
.scroll:focus-visible{outline:3px solid #0b4f7a;outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#4a4a4a;font-size:.9rem;padding:.25rem 0}
caption span{display:block;position:sticky;left:0;width:max-content;
max-width:min(46rem,calc(100vw - 2rem))}
th,td{padding:.4rem .8rem .4rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #d9d9d9}
thead th{border-bottom:2px solid #6b6b6b;font-size:.9rem}
tbody th{font-weight:600;position:sticky;left:0;background:#fff}
.ci{color:#4a4a4a;font-size:.85rem;white-space:nowrap;display:inline-block}
.verdict{font-size:.85rem;white-space:nowrap}
.better{color:#00573f;font-weight:600}
.worse{color:#8c2f00;font-weight:600}
.paper{color:#4a4a4a;font-style:italic}
figure{margin:0 0 2rem}
figure img{display:block;width:100%;height:auto}
figcaption{color:#3a3a3a;font-size:.95rem}
summary{cursor:pointer;font-weight:600;padding:.4rem 0}
dt{font-weight:600;margin-top:.6rem}
dd{margin:0 0 0 1rem}
code{font-size:.9em}
figure .scroll{margin-bottom:.25rem}
@media (max-width:40rem){h1{font-size:1.4rem}table{font-size:.9rem}
thead th,td,tbody th{padding-right:.5rem}.ci{display:block;font-size:.75rem}}
@media print{.scroll{overflow:visible}figure,table{break-inside:avoid}}
"""


# A whole run -----------------------------------------------------------------------------------


def write_run_report(
    folder: str | os.PathLike,
    rows: Sequence[Row],
    predictions: Mapping[str, Predictions],
    history: Iterable[Row] = (),
    *,
    images: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
) -> Path:
    """Writes `figures/` and `report.html` of a run.

    The pixels of the errors that are shown are saved beside the figures, so
    that a report can be drawn again without the data set.

    Args:
      folder: The run's folder.
      rows: Result rows of `btcp_tf.evaluation.rows`.
      predictions: Name of a classifier -> its predictions of one split, the one
        that is exported last; its btcp column, or its last one, chooses the
        errors that are shown.
      history: Rows per epoch on validation data, see `plot_epochs`, `plot_fpr_fnr`.
      images: `[n, height, width, channels]` uint8 in the order of the
        predictions. None: those of an earlier report of the folder.
      class_names: Names by class number.
      settings: Name -> value of each setting.
      environment: Name -> value, such as versions of packages.
      notes: Caveats that the reader must see first.

    Returns:
      Path of `report.html`.
    """
    folder = Path(folder)
    figures = folder / "figures"
    drawings = draw_run(predictions, history, tau=rows[0]["tau"])
    classifier, p = list(predictions.items())[-1]
    method = _main_method(p.uncertainty)
    shown = confident_errors(p.is_error, p.uncertainty[method])
    pixels = _pixels(figures / "most_confident_errors.npz", shown, images)
    if pixels is not None:
        drawings.append(
            Drawing(
                "most_confident_errors",
                "Most confident errors",
                f"Wrong answers of the {_stage(classifier)} classifier with the smallest u by "
                f"{method}, the most trusted first: what it is, what the classifier said, and u.",
                error_sheet(
                    pixels,
                    p.labels[shown],
                    p.predicted[shown],
                    p.uncertainty[method][shown],
                    class_names,
                ),
                2,
            )
        )
    save_figures(figures, drawings)
    errors = [
        {
            "image": int(row),
            "true class": _class_name(p.labels[row], class_names),
            "predicted class": _class_name(p.predicted[row], class_names),
            f"u ({method}, {_stage(classifier)})": f"{p.uncertainty[method][row]:.4g}",
        }
        for row in shown
    ]
    text = page(
        rows,
        drawings,
        settings=settings,
        environment=environment,
        notes=notes,
        errors=errors,
    )
    path = folder / "report.html"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _pixels(path: Path, shown: np.ndarray, images: np.ndarray | None) -> np.ndarray | None:
    """Images of the rows `shown`, kept in `path`; None where neither has them."""
    if images is not None:
        with atomic_path(path) as temporary:
            np.savez_compressed(temporary, rows=shown, images=images[shown])
        return images[shown]
    if path.exists():
        with np.load(path) as saved:
            if np.array_equal(saved["rows"], shown):
                return saved["images"]
    return None
