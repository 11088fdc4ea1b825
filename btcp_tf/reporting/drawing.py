"""Styles, axes, legends and files of figures."""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.core import files, wording
from btcp_tf.evaluation.keys import FINETUNED, Predictor
from btcp_tf.reporting import cells
from btcp_tf.reporting.svg import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# The order fixes each method's color, dashes and marker in all figures of all runs.
KNOWN = ("mcp", "btcp", "tcp", "ohem", "mc_dropout", "trust_score", "thresholding", "residual")

STYLES = tuple(
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

_CORRECT, WRONG, GRAY = "#56B4E9", "#D55E00", "#595959"

FILLED: dict[str, Any] = dict(fill=True, facecolor=_CORRECT, edgecolor=_CORRECT)

HATCHED: dict[str, Any] = dict(
    fill=True, facecolor="none", edgecolor=WRONG, hatch="////", linewidth=1.2
)

# Of lines that only show where the many are.
_REST = dict(color="#B0B0B0", linestyle="-", marker="", linewidth=0.8, zorder=1.5)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure with its title, caption and text for readers who do not see it."""

    name: str
    """Stem of its files."""
    title: str
    caption: str
    figure: Figure
    columns: int = 1
    """Panels side by side; a page keeps each of them readable."""
    alt: str = ""
    """What is seen, with its main numbers; "": the caption says it."""
    charts: tuple[Chart, ...] = ()
    """The same for a page, which then shows these and not the picture."""

    @functools.cached_property
    def png(self) -> bytes:
        """The figure as a PNG file, drawn once for its file and for the page."""
        return _render(self.figure, "png")


def short(name: str, length: int = 17) -> str:
    """A name of at most `length` letters, as a figure can show it."""
    name = wording.drawable(name)
    return name if len(name) <= length else name[: length - 1] + "…"


def draw_line(
    ax: Axes, x: np.ndarray, y: np.ndarray, name: str, style: dict, every: float | None = None
) -> None:
    """Draws a method's line with a marker at every point, or at every 12 % of a long line."""
    # Matplotlib leaves names that start with "_" out of a legend.
    title = style.get("label") or cells.label(name)
    title = f" {title}" if title.startswith("_") and "label" not in style else title
    every = every or (1 if len(x) <= 20 else 0.12)
    look = dict(linewidth=1.6, markersize=4.5, markevery=every) | style | dict(label=title)
    ax.plot(x, y, **look)


def draw_chart(ax: Axes, chart: Chart, *, title: str = "", legend: str = "best") -> None:
    """Draws a page's chart with the color, dashes and marker of each method."""
    known = styles(line.method for line in chart.lines if line.method)
    for line in chart.lines:
        if line.method:
            draw_line(ax, line.x, line.y, line.method, known[line.method])
        else:
            ax.plot(line.x, line.y, color=GRAY, linewidth=1.0, label=line.name)
    for axis, limit in ((chart.x, ax.set_xlim), (chart.y, ax.set_ylim)):
        span = axis.high - axis.low
        limit(axis.low - 0.01 * span, axis.high + 0.02 * span)
    percent(ax.xaxis, decimals=0)
    percent(ax.yaxis, decimals=0 if chart.y.high > 0.1 else None)
    finish(ax, chart.x.title, chart.y.title, title, loc=legend)


def draw_histograms(
    ax: Axes,
    samples: Iterable[tuple[str, np.ndarray, dict[str, Any]]],
    *,
    bins: int,
    span: tuple[float, float],
    shares: bool,
    baseline: float = 0.0,
) -> None:
    """Draws histograms over one another, as counts or as shares of each sample.

    Args:
      ax: Where to draw.
      samples: Label, values `[n]` and look of each; the label gets the number of values.
      bins: Number of equal bins.
      span: Lowest and highest edge.
      shares: Whether heights are shares.
      baseline: Height of the lower edge.
    """
    for name, values, style in samples:
        counts, edges = np.histogram(np.asarray(values, np.float64), bins=bins, range=span)
        heights = counts / len(values) if shares else counts
        label = f"{name} ({len(values):,})"
        ax.stairs(heights, edges, baseline=baseline, label=label, **style)
    ax.set_xlim(*span)


def span_of(*samples: np.ndarray) -> tuple[float, float]:
    """[0, 1], or the range of raw scores that leave it."""
    low, high = (float(f(list(map(f, samples)))) for f in (np.min, np.max))
    return min(0.0, low), max(1.0, high)


def mark_tau(ax: Axes, tau: float | None) -> None:
    """Marks a decision threshold, if there is one."""
    if tau is not None:
        ax.axvline(tau, color="black", linestyle=":", linewidth=1.2, label=f"tau = {tau:.4g}")


def styles(names: Iterable[str]) -> dict[str, dict]:
    """Line style of each name: known ones keep theirs, others take what is free.

    Where there are more names than styles, the unknown ones are thin and gray and share one entry
    of the legend.
    """
    names = list(names)
    places = {
        name: KNOWN.index(known)
        for name in names
        if (known := {"classifier": "mcp"}.get(name, Predictor.from_text(name).method)) in KNOWN
    }
    others = [name for name in names if name not in places]
    free = [place for place in range(len(STYLES)) if place not in places.values()]
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
        else STYLES[places[name]] | (tuned if Predictor.from_text(name).stage == FINETUNED else {})
        for name in names
    }


def percent(axis: Axis, decimals: int | None = None) -> None:
    """Shows shares in percent on an axis.

    Args:
      axis: The axis.
      decimals: 0: whole numbers, with decimals only at a label that lies between two of them.
        None: all labels with as many as the range of the axis needs.
    """
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    short = FuncFormatter(lambda share, _: f"{100 * share:.4g}%")
    axis.set_major_formatter(short if decimals == 0 else PercentFormatter(1, decimals=decimals))


def epoch_axis(ax: Axes, last: float) -> None:
    """Makes the x axis one of whole epochs, from 1 to the last one."""
    from matplotlib.ticker import MaxNLocator

    space = max(0.5, 0.03 * last)
    ax.set_xlim(1 - space, last + space)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def label_axes(ax: Axes, x: str, y: str, title: str) -> None:
    """Titles of both axes and of the panel, a grid, and no frame on the upper and right side."""
    ax.set_xlabel(x, fontsize=10)
    ax.set_ylabel(y, fontsize=10)
    # Names of users may hold a "$", which must not start a formula.
    ax.set_title(title, fontsize=11, parse_math=False)
    ax.tick_params(labelsize=9)
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def finish(ax: Axes, x: str, y: str, title: str, **legend: Any) -> None:
    """Labels both axes, and draws the legend of a panel.

    Args:
      ax: What is drawn so far.
      x: Label of the x axis.
      y: Label of the y axis.
      title: Title of the panel.
      **legend: Arguments of `Axes.legend`, such as `loc`.
    """
    label_axes(ax, x, y, title)
    draw_legend(ax, **legend)


_LEGEND: dict[str, Any] = dict(fontsize=9, handlelength=3.2)


def draw_legend(ax: Axes, **legend: Any) -> None:
    """Draws a panel's legend; a "$" in it starts no formula."""
    _without_formulas(ax.legend(framealpha=0.85, **_LEGEND, **legend))


def _without_formulas(legend: Legend) -> None:
    for text in legend.get_texts():
        text.set_parse_math(False)


def _legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    entries: dict[str, Any] = {}
    for ax in axes:
        lines, names = ax.get_legend_handles_labels()
        entries = dict(zip(names, lines, strict=True)) | entries
        if (own := ax.get_legend()) is not None:
            own.remove()
    look: dict[str, Any] = dict(loc="lower center", ncols=columns, frameon=False)
    _without_formulas(figure.legend(entries.values(), entries.keys(), **_LEGEND, **look))


def draw_message(ax: Axes, message: str, title: str) -> None:
    """A sentence where a panel has nothing to draw."""
    ax.text(0.5, 0.5, message, transform=ax.transAxes, ha="center", va="center", fontsize=10)
    ax.set_title(title, fontsize=11, parse_math=False)
    ax.set_axis_off()


def annotate(
    ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **look: Any
) -> None:
    """A small text beside a point, `offset` in points."""
    ax.annotate(text, at, offset, textcoords="offset points", **dict(fontsize=8) | look)


ROOM_BELOW = dict(height=4.9, bottom=1.25)
"""Sizes of `panels` that leave room for a legend below them."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of a figure."""

    title: str
    plot: Callable[..., None]
    """Called with an ax and `title=`."""
    alt: str = ""
    """What the panel shows, with its main numbers."""


def compose(
    name: str,
    title: str,
    caption: str,
    parts: Sequence[Panel],
    *,
    legend_below: bool = False,
    alt: str = "",
    charts: Sequence[Chart] = (),
    **size: float,
) -> Drawing:
    """A figure of several panels.

    Args:
      name: Stem of its files.
      title: Title of the figure.
      caption: What a reader needs to read it.
      parts: Its panels.
      legend_below: One legend below all panels; among many lines a legend would cover some.
      alt: Text for readers who do not see it; "": that of its panels.
      charts: The same as SVG, for a page.
      **size: See `panels`.
    """
    figure, axes, columns = panels(len(parts), **(size or (ROOM_BELOW if legend_below else {})))
    for ax, part in zip(axes, parts, strict=True):
        part.plot(ax, title=part.title)
    if legend_below:
        _legend_below(figure, axes, 3 * columns)
    of_panels = [": ".join(filter(None, (part.title, part.alt))) for part in parts if part.alt]
    alt = alt or "; ".join(of_panels)
    return Drawing(name, title, caption, figure, columns, alt, tuple(charts))


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


def save_figures(folder: str | os.PathLike, drawings: Iterable[Drawing]) -> list[Path]:
    """Writes each drawing as PNG and as PDF, atomically; equal drawings give equal bytes.

    Returns:
      The paths, a PNG followed by its PDF for each drawing.
    """
    paths = []
    for drawing in drawings:
        for ending, content in (("png", drawing.png), ("pdf", _render(drawing.figure, "pdf"))):
            path = Path(folder) / f"{drawing.name}.{ending}"
            with files.atomic_path(path) as temporary:
                temporary.write_bytes(content)
            paths.append(path)
    return paths


def _render(figure: Figure, ending: str) -> bytes:
    from matplotlib.text import Text

    # Files of the same data must not differ by the day or by Matplotlib's version.
    hidden = {"png": ["Software"], "pdf": ["CreationDate", "Creator", "Producer"]}[ending]
    buffer = io.BytesIO()
    # All texts of a figure pass here: names of classes and of foreign columns among them.
    for text in figure.findobj(Text):
        text.set_text(wording.drawable(text.get_text()))
    with warnings.catch_warnings():
        # Letters that the font does not have are shown as boxes.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=ending, dpi=140, metadata=dict.fromkeys(hidden))
    return buffer.getvalue()
