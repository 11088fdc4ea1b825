"""Charts of how well u ranks a classifier's errors: one set of lines for pages, PNG and PDF."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.metrics import auroc, reliability_curve, risk_coverage_curve, roc_curve
from btcp_tf.reporting import cells
from btcp_tf.reporting.cells import of_hundred, percent
from btcp_tf.reporting.svg import Axis, Chart, Line, Point
from btcp_tf.thresholds import Outcome


def risk_chart(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], *, since: float = 0.1
) -> Chart:
    """Error rate of the accepted answers against the share accepted.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`.
      since: Coverage at which the lines start: the first few answers make them jump.
    """
    lines, risks, top = [], [], 0.0
    for name, look in _looks(uncertainty).items():
        curve = risk_coverage_curve(is_error, uncertainty[name])
        shown = curve.coverage >= since
        line = Line(cells.label(name), curve.coverage[shown], curve.risk[shown], look, name)
        lines.append(line)
        top = max(top, float(curve.risk[curve.coverage >= 0.1].max()))
        at_90 = float(curve.risk[int(np.searchsorted(curve.coverage, 0.9))])
        risks.append(f"{line.name} {percent(at_90)}")
    return Chart(
        "Share of wrong answers among the accepted, as more are accepted. Where 90 % are accepted: "
        f"{', '.join(risks)}; where all are: {percent(float(np.mean(is_error)))}.",
        lines,
        Axis("answers accepted"),
        Axis("wrong among them", 0.0, min(1.0, 1.05 * top) or 0.01),
    )


def with_outcome(chart: Chart, chosen: Outcome) -> Chart:
    """A `risk_chart` with the point that a threshold reaches."""
    share, risk = of_hundred(chosen.coverage), percent(chosen.risk)
    point = Point(chosen.coverage, chosen.risk, (f"{share} % accepted,", f"{risk} wrong"))
    return dataclasses.replace(
        chart,
        alt=f"{chart.alt} Chosen: {share} % accepted, {risk} of them wrong.",
        y=dataclasses.replace(chart.y, high=max(chart.y.high, min(1.0, 1.05 * chosen.risk))),
        points=[point],
    )


def roc_chart(is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray]) -> Chart | None:
    """Share of errors rejected against the share of correct answers rejected with them.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`.

    Returns:
      The chart; None where all answers are correct or all are wrong, as no curve exists.
    """
    if not 0 < is_error.sum() < len(is_error):
        return None
    lines, areas = [], []
    for name, look in _looks(uncertainty).items():
        curve = roc_curve(is_error, uncertainty[name])
        x, y = curve.correct_rejected, curve.errors_rejected
        lines.append(Line(cells.label(name), x, y, look, name))
        areas.append(f"{cells.label(name)} {auroc(is_error, uncertainty[name]):.2%}")
    return Chart(
        f"area under the curve: {', '.join(areas)}",
        lines,
        Axis("correct answers rejected"),
        Axis("errors rejected"),
    )


def reliability_chart(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], *, bins: int = 15
) -> Chart | None:
    """Share correct against 1 - u as the probability of being correct.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`; columns that leave [0, 1] are no probabilities and
        are left out.
      bins: Number of equal bins; empty ones have no point.

    Returns:
      The chart; None where no column lies in [0, 1].
    """
    ends = np.array([0.0, 1.0])
    lines, means = [Line("perfect", ends, ends, "guide")], []
    for name, look in _looks(uncertainty).items():
        u = uncertainty[name]
        if np.min(u) >= 0 and np.max(u) <= 1:
            curve = reliability_curve(is_error, u, bins=bins)
            lines.append(Line(cells.label(name), curve.confidence, curve.accuracy, look, name))
            means.append(f"{cells.label(name)} {1 - float(np.mean(u)):.1%}")
    if not means:
        return None
    return Chart(
        f"{1 - np.mean(is_error):.1%} are correct; mean confidence: {', '.join(means)}",
        lines,
        Axis("confidence 1 - u"),
        Axis("answers that are correct"),
    )


def _looks(names: Iterable[str]) -> dict[str, str]:
    """The look of each method's line; the last one that is not MCP stands out."""
    names = list(names)
    others = [name for name in reversed(names) if name != REFERENCE]
    looks = {name: "rest" for name in names} | {REFERENCE: "mcp"}
    looks |= dict(zip(others, ("ours", "third"), strict=False))
    return {name: looks[name] for name in names}
