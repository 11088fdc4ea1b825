"""Plots of a monitoring report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf.reporting import drawing
from btcp_tf.reporting.drawing import GRAY, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THEN, NOW = "#0072B2", WRONG
"""Colors of the calibration set and of the scores."""

_DASHES = (0, (5, 2))


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
    span = drawing.span_of(baseline, production)
    samples = _samples(baseline, production)
    drawing.draw_histograms(ax, samples, bins=bins, span=span, shares=True)
    drawing.mark_tau(ax, tau)
    ax.set_ylim(bottom=0)
    _finish(ax, "uncertainty u", "share of the answers", title)


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
    span = drawing.span_of(baseline, production)
    heights = []
    for name, u, style in _samples(baseline, production):
        values, counts = np.unique(u, return_counts=True)
        shares = np.cumsum(counts) / len(u)
        x, y = np.concatenate([[span[0]], values, [span[1]]]), np.concatenate([[0], shares, [1]])
        ax.step(x, y, where="post", label=f"{name} ({len(u):,})", **style)
        heights.append(float(np.mean(np.asarray(u) <= at)))
    ax.plot([at, at], heights, color="black", linewidth=2.5, label="distance", zorder=3)
    drawing.mark_tau(ax, tau)
    ax.set_xlim(*span)
    ax.set_ylim(0, 1.01)
    _finish(ax, "uncertainty u", "answers with at most u", title, loc="lower right")


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
    hatched: dict[str, Any] = dict(facecolor="none", edgecolor=NOW, hatch="////")
    ax.barh(places - 0.2, baseline, height=0.38, label="calibration", color=THEN)
    ax.barh(places + 0.2, production, height=0.38, label="now", **hatched)
    ax.set_yticks(places, [drawing.short(name) for name in names])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    # Room for the legend above the bars.
    ax.set_ylim(len(names) - 0.5, -0.6 - 0.1 * len(names))
    drawing.percent(ax.xaxis, decimals=0)
    drawing.finish(ax, "share of the answers", "", title, loc="upper right", ncols=2)


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
    ax.axhspan(bottom, top, color=THEN, alpha=0.15, linewidth=0)
    ax.axhline(share, color=THEN, linestyle=_DASHES, linewidth=1.6, label="calibration")
    ax.vlines(rows, low, high, color=NOW, linewidth=1.2)
    ax.plot(rows, rates, "o", color=NOW, markersize=4.5, label="now, in blocks")
    ax.set_ylim(0, min(1.0, 1.1 * max(float(np.max(high)), top)))
    _finish(ax, "row of the scores", ylabel, title)


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
    ax.fill_between(rows, low, high, color=THEN, alpha=0.18, linewidth=0, label="interval")
    ax.plot(rows, risk, color=THEN, linewidth=1.6, label="error rate so far")
    if limit is not None:
        ax.axhline(limit, color="black", linestyle=":", linewidth=1.4, label=f"limit {limit:.4g}")
    _mark_break(ax, broken)
    # The first few rows say nothing, over the whole axis.
    late = rows >= rows[-1] / 10
    top = max(float(np.max(high[late])), float(np.max(risk[late])), 1.5 * (limit or 0))
    ax.set_ylim(0, min(1.0, 1.1 * top))
    _finish(ax, "accepted answers with a label", "wrong among them", title, loc="upper right")


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
    ax.plot(rows, evidence, color=NOW, linewidth=1.6, label="evidence")
    ax.axhline(enough, color="black", linestyle=":", linewidth=1.4, label=f"enough: {enough:.4g}")
    _mark_break(ax, broken)
    ax.set_yscale("log")
    ax.minorticks_off()
    labels = ("accepted answers with a label", "evidence against the promise")
    drawing.finish(ax, *labels, title, loc="upper left")


def _samples(
    baseline: np.ndarray, production: np.ndarray
) -> tuple[tuple[str, np.ndarray, dict[str, Any]], ...]:
    """Label, values and look of both samples."""
    return (
        ("calibration", baseline, dict(color=THEN, linewidth=1.6, linestyle=_DASHES)),
        ("now", production, dict(color=NOW, linewidth=1.6)),
    )


def _finish(ax: Axes, x: str, y: str, title: str, **legend: Any) -> None:
    """Labels and legend of a panel whose y axis is a share."""
    drawing.percent(ax.yaxis)
    drawing.finish(ax, x, y, title, **legend)


def _mark_break(ax: Axes, broken: int | None) -> None:
    if broken is not None:
        ax.axvline(broken, color=GRAY, linewidth=1.2, label=f"broken at {broken:,}")
