"""The figures of a report: their panels and captions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from btcp_tf.evaluation.keys import ImageSet
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import tie_groups
from btcp_tf.reporting import cells, charts, plots
from btcp_tf.reporting.cells import Row, distinct_columns
from btcp_tf.reporting.drawing import KNOWN, Drawing, Panel, compose
from btcp_tf.reporting.svg import Chart
from btcp_tf.thresholds import Threshold

_MOST_HISTOGRAMS = 9

_MOST_LINES = 5  # Lines of an SVG chart: among more, names at their ends would not find room.

_MOST_IN_LEGEND = 6  # Lines whose legend fits into a panel.

_THRESHOLDING = " Thresholding moves tau, in each epoch, to where BACC is best."

_CURVES: tuple[tuple[str, str, str, Callable[..., None], Callable[..., Chart | None]], ...] = (
    (
        "risk_coverage",
        "Risk and coverage",
        "Answers are accepted in order of u, the most trusted first; the curve is the error rate "
        "among those accepted. Lower is better; the gray oracle knows every error.",
        plots.plot_risk_coverage,
        charts.risk_chart,
    ),
    (
        "roc",
        "ROC: finding errors by their uncertainty",
        "Share of errors rejected against share of correct answers rejected with them, over "
        "all thresholds. Closer to the upper left corner is better.",
        plots.plot_roc,
        charts.roc_chart,
    ),
    (
        "reliability",
        "Reliability of 1 - u as the probability of being correct",
        "Share of correct answers in 15 bins of the confidence 1 - u. On the gray line, confidence "
        "equals accuracy; below it the method is overconfident.",
        plots.plot_reliability,
        charts.reliability_chart,
    ),
)
"""Name, title, caption, plot and chart of each curve of a classifier's methods."""


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
        f"{cells.stage_label(name)} classifier": (p.is_error, distinct_columns(p.uncertainty))
        for name, p in predictions.items()
    }
    drawings = [_draw_histograms(scored, tau), *(_draw_curves(scored, *row) for row in _CURVES)]
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
    return compose(
        "uncertainty_histogram",
        "Uncertainty of correct and wrong answers",
        "Histogram of u in 50 bins, correct answers filled and wrong ones hatched, counts on "
        "a logarithmic axis. A useful u puts the wrong answers to the right of tau.",
        [
            _histogram(title, is_error, u, tau.get(method) if isinstance(tau, Mapping) else tau)
            for title, method, is_error, u in columns
        ],
    )


def _histogram(title: str, is_error: np.ndarray, u: np.ndarray, tau: float | None) -> Panel:
    medians = ", ".join(
        f"{np.median(u[rows]):.3g} for {int(rows.sum()):,} {name} answers"
        for name, rows in (("correct", ~is_error), ("wrong", is_error))
        if rows.any()
    )
    plot = partial(plots.plot_uncertainty_histogram, is_error=is_error, uncertainty=u, tau=tau)
    return Panel(title, plot, f"median u {medians}")


def _draw_curves(
    scored: _Scored,
    name: str,
    title: str,
    caption: str,
    plot: Callable[..., None],
    chart: Callable[..., Chart | None],
) -> Drawing:
    """One of `_CURVES` for each classifier; as SVG too, where all have few lines."""
    most = max(len(uncertainty) for _, uncertainty in scored.values())
    parts, made = [], []
    for classifier, (is_error, uncertainty) in scored.items():
        content = chart(is_error, uncertainty)
        draw = partial(plot, is_error=is_error, uncertainty=uncertainty)
        parts.append(Panel(classifier, draw, content.alt if content else ""))
        if content and most <= _MOST_LINES:
            made.append(dataclasses.replace(content, title=classifier))
    return compose(
        name,
        title,
        caption,
        parts,
        legend_below=most > _MOST_IN_LEGEND,
        charts=made if len(made) == len(parts) else (),
    )


def _draw_stages(history: Sequence[Row], tau: float | Mapping[str, float] | None) -> Drawing:
    stages = cells.by(plots.with_thresholding(history), "stage")
    at_tau = f", at tau = {tau:g}" if isinstance(tau, float) else ""
    return compose(
        "fpr_fnr_per_epoch",
        "FPR and FNR per epoch",
        f"Validation data{at_tau}. FPR: share of errors accepted. FNR: share of correct answers "
        "rejected." + _THRESHOLDING * ("thresholding" in stages),
        [
            Panel(cells.stage_label(stage), partial(plots.plot_fpr_fnr, history=rows), _last(rows))
            for stage, rows in stages.items()
        ],
    )


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
        "thresholds",
        f"Coverage and risk against tau: {cells.label(method)}",
        "From 100 accepted answers on. In the right panel a promise's point stands at the test "
        "set's rate; whether it is above the promised one by chance, the table of promises says.",
        [panel(coverage, "coverage: answers accepted"), panel(risk, "risk: errors among them")],
        legend_below=True,
        alt="; ".join(
            f"{name}: tau {at:.4g} accepts {np.mean(test.uncertainty[method] < at):.1%} of the "
            "test answers"
            for name, at in points.items()
        ),
    )


def _with_own_ranking(rows: Iterable[Row]) -> list[Row]:
    """Rows without those of methods that differ from another in tau alone."""
    return [
        row for row in rows if row["method"] not in METHODS or not METHODS[row["method"]].column_of
    ]


def draw_u_per_epoch(history: Sequence[Row], about: str = "") -> Drawing:
    """Mean and standard deviation of u over the epochs.

    Args:
      history: Rows of one run or of several seeds, see `plot_epochs`.
      about: Name of the data set, where a report has several such figures.
    """

    def panel(title: str, column: str, ylabel: str) -> Panel:
        plot = partial(plots.plot_epochs, history=history, column=column, ylabel=ylabel)
        return Panel(title, plot)

    return compose(
        "_".join(filter(None, ("uncertainty_per_epoch", about))),
        ": ".join(filter(None, ("Mean and standard deviation of u per epoch", about))),
        "Validation data. If u stays low and narrow while errors remain, it is imbalanced: this is "
        "what BTCP is designed to prevent.",
        [
            panel("Mean", "u_mean", "mean of u"),
            panel("Deviation", "u_std", "standard deviation of u"),
        ],
        alt=_by_stage(history, ("u_mean", "u_std")),
    )


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
    return compose(
        f"rates_per_epoch_{about}",
        f"FPR and FNR per epoch: {about}",
        f"Validation data, at tau = {tau:g}; mean of the seeds, and their range shaded."
        + _THRESHOLDING,
        [
            Panel(title, partial(plots.plot_rate, history=rows, column=column))
            for title, column in (
                ("FPR: errors accepted", "fpr"),
                ("FNR: correct answers rejected", "fnr"),
            )
        ],
        alt=_by_stage(rows),
    )


def draw_risk_coverage(predictions: Predictions, about: str) -> Drawing:
    """Risk and coverage of all methods of a classifier on one axis, with the oracle."""
    scored = (predictions.is_error, distinct_columns(predictions.uncertainty))
    plot = partial(plots.plot_risk_coverage, is_error=scored[0], uncertainty=scored[1])
    return compose(
        f"risk_coverage_{about}",
        f"Risk and coverage: {about}",
        "All methods on the answers of the first seed's frozen classifier. Lower is better; the "
        "oracle knows every error. Thin and gray: controls, and methods that the paper does not "
        "have, except residual.",
        [Panel("", plot, charts.risk_chart(*scored).alt)],
        legend_below=True,
    )


def draw_histograms(predictions: Predictions, about: str, tau: float) -> Drawing | None:
    """The paper's uncertainty histograms: MCP, TCP and BTCP; None where there are none of them."""
    parts = [
        _histogram(cells.label(name), predictions.is_error, predictions.uncertainty[name], tau)
        for name in (REFERENCE, "tcp", "btcp")
        if name in predictions.uncertainty
    ]
    if not parts:
        return None
    return compose(
        f"uncertainty_histogram_{about}",
        f"Uncertainty of correct and wrong answers: {about}",
        "First seed, frozen classifier, test images; counts on a logarithmic axis.",
        parts,
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
    if not parts:
        return None
    return compose(
        f"confidence_{about}",
        f"Confidence of test and OOD images: {about}",
        "First seed, frozen classifier; test images are filled, OOD images hatched. The less the "
        "two overlap, the better u separates OOD images from test images.",
        parts,
    )


def draw_shift(rows: Sequence[Row], about: str) -> Drawing | None:
    """AURC under each corruption against its strength; None where there is none."""
    rows = _with_own_ranking(rows)
    images = [ImageSet.of_row(row) for row in rows]
    names = dict.fromkeys(one.name for one in images if one.kind == "shift")
    if not names:
        return None
    return compose(
        f"shift_{about}",
        f"Covariate shift: {about}",
        "AURC of the frozen classifier's test answers, mean over seeds, as the images change more; "
        "below each strength, the accuracy there. AURC rises with the error rate itself.",
        [
            Panel(
                name, partial(plots.plot_shift, rows=rows, corruption=name), _strongest(rows, name)
            )
            for name in names
        ],
        legend_below=True,
        height=3.9,
        bottom=1.05,
    )


def _strongest(rows: Sequence[Row], name: str) -> str:
    """AURC of each method where a corruption is strongest."""
    values = [
        f"{cells.label(row['method'])} {1000 * cells.number(row['aurc']):.3g}"
        for row in rows
        if ImageSet.of_row(row) == ImageSet("shift", name, 3)
    ]
    return f"AURC x 1000 at strength 3: {', '.join(values)}" if values else ""


def draw_ablation(rows: Sequence[Row], base: Sequence[Row], about: str) -> Drawing:
    """What each setting of the loss does to the threshold (BACC) and to the ranking.

    Args:
      rows: As `plot_ablation`.
      base: As `plot_ablation`.
      about: Name of the data set.
    """
    return compose(
        f"ablation_{about}",
        f"What the loss does to the threshold and to the ranking: {about}",
        "Frozen BTCP on one classifier, one setting changed at a time, with 95 % intervals. BACC "
        "depends on where u lies around tau; AUROC and AURC only on the order of the answers.",
        [
            Panel("", partial(plots.plot_ablation, rows=rows, metric=name, base=base))
            for name in ("bacc", "auroc", "aurc")
        ],
        alt="; ".join(
            f"{row.get('ablation') or cells.label(row['method'])}: AUROC "
            f"{cells.number(row['auroc']):.2%}"
            for row in (*base, *rows)
        ),
        height=1.3 + 0.26 * (len(rows) + len(base)),
        left=1.35,
    )


def draw_ranks(rows: Sequence[Row]) -> Drawing | None:
    """Mean ranks by AURC over data sets and seeds; None where there are too few methods."""
    rows = _with_own_ranking(rows)
    names, ranks = plots.mean_ranks(rows)
    if len(names) < 2:
        return None
    means = [
        f"{cells.label(name)}: {row.mean():.1f}" for name, row in zip(names, ranks, strict=True)
    ]
    return compose(
        "mean_ranks",
        "Mean ranks",
        f"Rank by AURC among the frozen methods, mean of {ranks.shape[1]} data sets and seeds; the "
        "gray bar is the range, filled points are the paper's methods. Two methods whose mean "
        "ranks are closer than the critical difference (Nemenyi, 5 %) are not distinguishable by "
        "it. Seeds of one data set share their test images, so this is a rough guide.",
        [Panel("", partial(plots.plot_ranks, rows=rows), "; ".join(means))],
        height=1.6 + 0.25 * len(names),
        left=1.8,
    )
