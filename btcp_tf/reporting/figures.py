"""The figures of a report: their panels and captions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from btcp_tf.evaluation.keys import ImageSet
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.metrics import tie_groups
from btcp_tf.reporting import cells, charts, plots, texts
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.drawing import KNOWN, Drawing, Panel, compose
from btcp_tf.reporting.svg import Chart
from btcp_tf.thresholds import Threshold

_MOST_HISTOGRAMS = 9

_MOST_LINES = 5  # Lines of an SVG chart: among more, names at their ends would not find room.

_MOST_IN_LEGEND = 6  # Lines whose legend fits into a panel.

_CURVES: Mapping[str, tuple[Callable[..., None], Callable[..., Chart | None]]] = {
    "risk_coverage": (plots.plot_risk_coverage, charts.risk_chart),
    "roc": (plots.plot_roc, charts.roc_chart),
    "reliability": (plots.plot_reliability, charts.reliability_chart),
}
"""Name, plot and chart of each curve of a classifier's methods."""


def draw_run(
    predictions: Mapping[str, Predictions],
    history: Iterable[Row] = (),
    *,
    tau: float | Mapping[str, float] | None = None,
) -> list[Drawing]:
    """All figures of a run.

    Args:
      predictions: Name of a classifier, such as "frozen" and "finetuned" -> its
        predictions; each becomes a panel, as its errors are its own.
      history: Rows of the run's history on validation data; empty: no curves
        per epoch.
      tau: Decision threshold to mark in the histograms, or one for each method by name.
    """
    scored = {
        f"{cells.stage_label(name)} classifier": (p.is_error, cells.distinct_columns(p.uncertainty))
        for name, p in predictions.items()
    }
    drawings = [_draw_histograms(scored, tau), *(_draw_curves(scored, name) for name in _CURVES)]
    history = list(history)
    if history:
        drawings += [draw_u_per_epoch(history), _draw_stages(history, tau)]
    return drawings


_Scored = Mapping[str, tuple[np.ndarray, Mapping[str, np.ndarray]]]
"""Title of a classifier -> is_error `[n]` and u `[n]` by method."""


def _draw_histograms(scored: _Scored, tau: float | Mapping[str, float] | None) -> Drawing:
    columns = [
        (f"{cells.label(method)}, {classifier}", method, is_error, u)
        for classifier, (is_error, uncertainty) in scored.items()
        for method, u in uncertainty.items()
    ]
    if len(columns) > _MOST_HISTOGRAMS:
        columns = [column for column in columns if column[1] in KNOWN] or columns[:_MOST_HISTOGRAMS]
    parts = [
        _histogram(title, is_error, u, tau.get(method) if isinstance(tau, Mapping) else tau)
        for title, method, is_error, u in columns
    ]
    return compose(*texts.figure("uncertainty_histogram"), parts)


def _histogram(title: str, is_error: np.ndarray, u: np.ndarray, tau: float | None) -> Panel:
    medians = ", ".join(
        f"{np.median(u[rows]):.3g} for {int(rows.sum()):,} {name} answers"
        for name, rows in (("correct", ~is_error), ("wrong", is_error))
        if rows.any()
    )
    plot = partial(plots.plot_uncertainty_histogram, is_error=is_error, uncertainty=u, tau=tau)
    return Panel(title, plot, f"median u {medians}")


def _draw_curves(scored: _Scored, name: str) -> Drawing:
    """One of `_CURVES` for each classifier; as SVG too, where all have few lines."""
    plot, chart = _CURVES[name]
    most = max(len(uncertainty) for _, uncertainty in scored.values())
    parts, made = [], []
    for classifier, (is_error, uncertainty) in scored.items():
        content = chart(is_error, uncertainty)
        draw = partial(plot, is_error=is_error, uncertainty=uncertainty)
        parts.append(Panel(classifier, draw, content.alt if content else ""))
        if content and most <= _MOST_LINES:
            made.append(dataclasses.replace(content, title=classifier))
    return compose(
        *texts.figure(name),
        parts,
        legend_below=most > _MOST_IN_LEGEND,
        charts=made if len(made) == len(parts) else (),
    )


def _draw_stages(history: Sequence[Row], tau: float | Mapping[str, float] | None) -> Drawing:
    stages = cells.by(plots.with_thresholding(history), "stage")
    about = texts.figure(
        "fpr_fnr_per_epoch",
        at_tau=f", at tau = {tau:g}" if isinstance(tau, float) else "",
        thresholding=_thresholding() if "thresholding" in stages else "",
    )
    parts = [
        Panel(cells.stage_label(stage), partial(plots.plot_fpr_fnr, history=rows), _last(rows))
        for stage, rows in stages.items()
    ]
    return compose(*about, parts)


def _thresholding() -> str:
    return " " + texts.text("fragments.thresholding")


def _last(rows: Sequence[Row], columns: Sequence[str] = ("fpr", "fnr")) -> str:
    """The values of a stage's last epoch, mean of the seeds."""
    values = []
    for column in columns:
        _, _, mean, _ = plots.over_epochs(rows, column)
        if not math.isnan(mean[-1]):
            name = {"u_mean": "mean of u", "u_std": "deviation"}.get(column, column.upper())
            values.append(f"{name} {mean[-1]:.3g}")
    epoch = max(row["epoch"] for row in rows)
    return f"in epoch {epoch:g} {', '.join(values)}" if values else ""


def _by_stage(rows: Iterable[Row], columns: Sequence[str] = ("fpr", "fnr")) -> str:
    return "; ".join(
        f"{cells.stage_label(stage)}: {values}"
        for stage, group in cells.by(rows, "stage").items()
        if (values := _last(group, columns))
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
      promises: Rows of `decide.make_promises` for this method, perhaps with their `delta`.
    """
    taus = {"SavedModel": chosen.tau}
    for row in promises:
        delta = f", delta {row['delta']:g}" if "delta" in row else ""
        taus[f"promise {row['target']:.0%}{delta}"] = row["tau"]
    points = {name: float(tau) for name, tau in taus.items() if tau is not None}
    coverage, risk = {}, {}
    for name, rows in (("calibration", calibration), ("test", test)):
        groups = tie_groups(rows.is_error, rows.uncertainty[method])
        # From where the curve stops to jump; tau just above the value accepts it.
        enough = groups.rows[1:] >= min(100, groups.rows[-1])
        tau, accepted = groups.u[enough], groups.rows[1:][enough]
        coverage[name] = tau, accepted / groups.rows[-1]
        risk[name] = tau, groups.errors[1:][enough] / accepted

    def panel(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], quantity: str) -> Panel:
        tau, value = curves["test"]
        marked = {
            name: (at, float(value[max(int(np.searchsorted(tau, at)) - 1, 0)]))
            for name, at in points.items()
        }
        plot = partial(plots.plot_thresholds, curves=curves, points=marked, quantity=quantity)
        return Panel("", plot)

    return compose(
        *texts.figure("thresholds", method=cells.label(method)),
        [panel(coverage, "coverage: answers accepted"), panel(risk, "risk: errors among them")],
        legend_below=True,
        alt="; ".join(
            f"{name}: tau {at:.4g} accepts {np.mean(test.uncertainty[method] < at):.1%} of the "
            "test answers"
            for name, at in points.items()
        ),
    )


def draw_u_per_epoch(history: Sequence[Row], about: str = "") -> Drawing:
    """Mean and standard deviation of u over the epochs.

    Args:
      history: Rows of one run or of several seeds, see `plot_epochs`.
      about: Name of the data set, where a report has several such figures.
    """

    def panel(title: str, column: str, ylabel: str) -> Panel:
        plot = partial(plots.plot_epochs, history=history, column=column, ylabel=ylabel)
        return Panel(title, plot)

    parts = [
        panel("Mean", "u_mean", "mean of u"),
        panel("Deviation", "u_std", "standard deviation of u"),
    ]
    alt = _by_stage(history, ("u_mean", "u_std"))
    return compose(*texts.figure("uncertainty_per_epoch", about), parts, alt=alt)


def draw_rates_per_epoch(history: Iterable[Row], about: str, tau: float) -> Drawing | None:
    """FPR and FNR of the paper's estimators over the epochs; None where no history has them.

    Args:
      history: Rows of one data set, of one seed or of several.
      about: Name of the data set.
      tau: Decision threshold of the rows.
    """
    stages = ("btcp", "tcp", "ohem", "thresholding")
    rows = [row for row in plots.with_thresholding(history) if row["stage"] in stages]
    if not rows:
        return None
    titles = {"fpr": "FPR: errors accepted", "fnr": "FNR: correct answers rejected"}
    parts = [
        Panel(title, partial(plots.plot_rate, history=rows, column=column))
        for column, title in titles.items()
    ]
    name = texts.figure("rates_per_epoch", about, tau=tau, thresholding=_thresholding())
    return compose(*name, parts, alt=_by_stage(rows))


def draw_risk_coverage(predictions: Predictions, about: str) -> Drawing:
    """Risk and coverage of all methods of a classifier on one axis, with the oracle."""
    is_error, columns = predictions.is_error, cells.distinct_columns(predictions.uncertainty)
    plot = partial(plots.plot_risk_coverage, is_error=is_error, uncertainty=columns)
    panel = Panel("", plot, charts.risk_chart(is_error, columns).alt)
    return compose(*texts.figure("risk_coverage__of_a_study", about), [panel], legend_below=True)


def draw_histograms(predictions: Predictions, about: str, tau: float) -> Drawing | None:
    """The paper's uncertainty histograms: MCP, TCP and BTCP; None where there are none of them."""
    parts = [
        _histogram(cells.label(name), predictions.is_error, predictions.uncertainty[name], tau)
        for name in (REFERENCE, "tcp", "btcp")
        if name in predictions.uncertainty
    ]
    if not parts:
        return None
    return compose(*texts.figure("uncertainty_histogram__of_a_study", about), parts)


def draw_confidence(
    test: Predictions, others: Mapping[str, Predictions], about: str
) -> Drawing | None:
    """The paper's figure of OOD against in-distribution confidence, for BTCP and TCP.

    Args:
      test: Of the frozen classifier on the test images.
      others: Name of an OOD set -> predictions of its images.
      about: Name of the data set.
    """
    parts = []
    for ood, predictions in others.items():
        for name in ("btcp", "tcp"):
            if name in test.uncertainty and name in predictions.uncertainty:
                inside, outside = test.uncertainty[name], predictions.uncertainty[name]
                parts.append(
                    Panel(
                        f"{cells.label(name)}: {about} and {ood}",
                        partial(plots.plot_confidence, inside=inside, outside=outside),
                        f"median confidence {1 - np.median(inside):.3g} of test images, "
                        f"{1 - np.median(outside):.3g} of OOD images",
                    )
                )
    return compose(*texts.figure("confidence", about), parts) if parts else None


def draw_shift(rows: Sequence[Row], about: str) -> Drawing | None:
    """AURC under each corruption against its strength; None where there is none."""
    rows = [row for row in rows if cells.has_own_ranking(row["method"])]
    images = [ImageSet.of_row(row) for row in rows]
    names = dict.fromkeys(one.name for one in images if one.kind == "shift")
    if not names:
        return None
    parts = [
        Panel(name, partial(plots.plot_shift, rows=rows, corruption=name), _strongest(rows, name))
        for name in names
    ]
    name = texts.figure("shift", about)
    return compose(*name, parts, legend_below=True, height=3.9, bottom=1.05)


def _strongest(rows: Sequence[Row], name: str) -> str:
    """AURC of each method where a corruption is strongest."""
    values = [
        f"{cells.label(row['method'])} {1000 * cells.number(row['aurc']):.3g}"
        for row in rows
        if ImageSet.of_row(row) == ImageSet("shift", name, 3)
    ]
    return f"AURC x 1000 at strength 3: {', '.join(values)}" if values else ""


def draw_costs(rows: Sequence[Row], costs: Mapping[str, float], about: str = "") -> Drawing | None:
    """AURC against what an answer costs; None where all methods cost the same.

    Args:
      rows: As `plot_costs`; of methods that are not in `costs` nothing is drawn.
      costs: Method -> passes of the classifier, from `registry.answer_costs`.
      about: Name of the data set, where a report has several such figures.
    """
    rows = [
        row for row in rows if row["method"] in costs and not math.isnan(cells.number(row["aurc"]))
    ]
    if len({costs[row["method"]] for row in rows}) < 2:
        return None
    values = [
        f"{cells.label(name)} {cells.value_cell(row, 'aurc')} at {costs[name]:.3g}"
        for name, row in ((row["method"], row) for row in rows)
    ]
    panel = Panel("", partial(plots.plot_costs, rows=rows, costs=costs))
    alt = f"{cells.title_with_unit('aurc')} at a number of passes: {'; '.join(values)}"
    return compose(*texts.figure("costs", about), [panel], alt=alt)


def draw_ablation(rows: Sequence[Row], base: Sequence[Row], about: str) -> Drawing:
    """What each setting of the loss does to the threshold (BACC) and to the ranking.

    Args:
      rows: As `plot_ablation`.
      base: As `plot_ablation`.
      about: Name of the data set.
    """
    parts = [
        Panel("", partial(plots.plot_ablation, rows=rows, metric=name, base=base))
        for name in ("bacc", "auroc", "aurc")
    ]
    values = [
        f"{row.get('ablation') or cells.label(row['method'])}: AUROC "
        f"{cells.number(row['auroc']):.2%}"
        for row in (*base, *rows)
    ]
    name, height = texts.figure("ablation", about), 1.3 + 0.26 * len(values)
    return compose(*name, parts, alt="; ".join(values), height=height, left=1.35)


def draw_ranks(rows: Sequence[Row]) -> Drawing | None:
    """Mean ranks by AURC over data sets and seeds; None where there are too few methods."""
    rows = [row for row in rows if cells.has_own_ranking(row["method"])]
    names, ranks = plots.mean_ranks(rows)
    if len(names) < 2:
        return None
    means = [
        f"{cells.label(name)}: {row.mean():.1f}" for name, row in zip(names, ranks, strict=True)
    ]
    panel = Panel("", partial(plots.plot_ranks, rows=rows), "; ".join(means))
    about, height = texts.figure("mean_ranks", classifiers=ranks.shape[1]), 1.6 + 0.25 * len(names)
    return compose(*about, [panel], height=height, left=1.8)
