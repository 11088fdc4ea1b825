"""The figures of a report: several panels each, with their captions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from btcp_tf.evaluation.keys import ImageSet
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import auroc, reliability_curve, risk_coverage_curve, roc_curve, tie_groups
from btcp_tf.reporting import cells, drawing, plots
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.drawing import KNOWN, ROOM_BELOW, Drawing
from btcp_tf.reporting.svg import Axis, Chart, Line
from btcp_tf.thresholds import Threshold


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
        (f"{cells.label(method)}, {cells.stage_label(name)} classifier", method, is_error, u)
        for name, (is_error, columns) in found.items()
        for method, u in columns.items()
    ]
    if len(scores) > 9:
        # One panel for each is no help to anyone.
        scores = [score for score in scores if score[1] in KNOWN] or scores[:9]
    figure, axes, columns = drawing.panels(len(scores))
    for ax, (title, method, is_error, u) in zip(axes, scores, strict=True):
        mark = tau.get(method) if isinstance(tau, Mapping) else tau
        plots.plot_uncertainty_histogram(ax, is_error, u, tau=mark, title=title)
    drawings.append(
        Drawing(
            "uncertainty_histogram",
            "Uncertainty of correct and wrong answers",
            "Histogram of u in 50 bins, correct answers filled and wrong ones hatched, counts on "
            "a logarithmic axis. A useful u puts the wrong answers to the right of tau.",
            figure,
            columns,
            drawing.in_words(
                {title: drawing.halves(is_error, u) for title, _, is_error, u in scores}
            ),
        )
    )
    for name, title, caption, plot, chart in (
        (
            "risk_coverage",
            "Risk and coverage",
            "Answers are accepted from the most trusted on; the curve is the error rate among "
            "those accepted. Lower is better; the gray oracle knows every error.",
            plots.plot_risk_coverage,
            risk_chart,
        ),
        (
            "roc",
            "ROC: finding errors by their uncertainty",
            "Share of errors rejected against share of correct answers rejected with them, over "
            "all thresholds. Further to the upper left is better.",
            plots.plot_roc,
            roc_chart,
        ),
        (
            "reliability",
            "Reliability of 1 - u as the probability of being correct",
            "Share of correct answers in 15 bins of the confidence 1 - u. On the gray line the "
            "confidence is what it says; below it the method is overconfident.",
            plots.plot_reliability,
            reliability_chart,
        ),
    ):
        many = max(len(u) for _, u in found.values()) > 6
        figure, axes, columns = drawing.panels(len(found), **(ROOM_BELOW if many else {}))
        for ax, (classifier, scored) in zip(axes, found.items(), strict=True):
            plot(ax, *scored, title=f"{cells.stage_label(classifier)} classifier")
        if many:
            drawing.legend_below(figure, axes, 3 * columns)
        charts = [
            dataclasses.replace(made, title=f"{cells.stage_label(classifier)} classifier")
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
                drawing.in_words({made.title: made.alt for made in charts}),
                tuple(charts) if few and len(charts) == len(found) else (),
            )
        )
    history = list(history)
    if history:
        drawings.append(draw_u_per_epoch(history))
        stages = cells.by(plots.with_thresholding(history), "stage")
        figure, axes, columns = drawing.panels(len(stages))
        for ax, (stage, rows) in zip(axes, stages.items(), strict=True):
            plots.plot_fpr_fnr(ax, rows, title=cells.stage_label(stage))
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
                drawing.in_words(
                    {cells.stage_label(stage): _last(rows) for stage, rows in stages.items()}
                ),
            )
        )
    return drawings


_CHART_LINES = 5


def _last(rows: Sequence[Row], columns: Sequence[str] = ("fpr", "fnr")) -> str:
    """The values of a stage's last epoch, mean of the seeds."""
    told = []
    for column in columns:
        _, _, mean, _ = plots.over_epochs(rows, column)
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
        lines.append(Line(cells.label(name), curve.coverage[late], curve.risk[late], looks[name]))
        most = float(curve.risk[int(np.searchsorted(curve.coverage, 0.9))])
        told.append(f"{cells.label(name)} {most:.2%}")
    top = max(float(line.y.max()) for line in lines)
    return Chart(
        f"wrong among the 90 % accepted first: {', '.join(told)}; among all: {is_error.mean():.2%}",
        lines,
        Axis("answers accepted"),
        Axis("wrong among them", 0.0, min(1.0, 1.05 * top) or 0.01),
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
        lines.append(Line(cells.label(name), x, y, looks[name]))
        told.append(f"{cells.label(name)} {auroc(is_error, u):.2%}")
    return Chart(
        f"area under the curve: {', '.join(told)}",
        lines,
        Axis("correct answers rejected"),
        Axis("errors rejected"),
    )


def reliability_chart(is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray]) -> Chart | None:
    """Share correct against 1 - u, see `plot_reliability`; None where no u is within [0, 1]."""
    diagonal = np.array([0.0, 1.0])
    lines, told, looks = [Line("perfect", diagonal, diagonal, "guide")], [], _looks(uncertainty)
    for name, u in uncertainty.items():
        if u.min() >= 0 and u.max() <= 1:
            curve = reliability_curve(is_error, u, bins=15)
            lines.append(Line(cells.label(name), curve.confidence, curve.accuracy, looks[name]))
            told.append(f"{cells.label(name)} {1 - float(np.mean(u)):.1%}")
    if len(lines) == 1:
        return None
    return Chart(
        f"{1 - is_error.mean():.1%} are correct; mean confidence: {', '.join(told)}",
        lines,
        Axis("confidence 1 - u"),
        Axis("answers that are correct"),
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
    figure, axes, columns = drawing.panels(2, **ROOM_BELOW)
    words = ("coverage: answers accepted", "risk: errors among them")
    for ax, curves, quantity in zip(axes, (coverage, risk), words, strict=True):
        tau, value = curves["test"]
        marked = {
            name: (at, float(value[max(np.searchsorted(tau, at) - 1, 0)]))
            for name, at in points.items()
        }
        plots.plot_thresholds(ax, curves, marked, quantity=quantity)
    drawing.legend_below(figure, axes, 3)
    return Drawing(
        "thresholds",
        f"Coverage and risk against tau: {cells.label(method)}",
        "From 100 accepted answers on. A promise is kept on the test set if its point in the right "
        "panel is not above the promised rate.",
        figure,
        columns,
        drawing.in_words(
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
    figure, axes, columns = drawing.panels(2)
    plots.plot_epochs(axes[0], history, "u_mean", ylabel="mean of u", title="Mean")
    plots.plot_epochs(
        axes[1], history, "u_std", ylabel="standard deviation of u", title="Deviation"
    )
    return Drawing(
        "_".join(filter(None, ("uncertainty_per_epoch", about))),
        ": ".join(filter(None, ("Mean and standard deviation of u per epoch", about))),
        "Validation data. Uncertainty that stays low and narrow while errors remain is the "
        "imbalance that BTCP is made against.",
        figure,
        columns,
        drawing.in_words(
            {
                cells.stage_label(stage): _last(rows, ("u_mean", "u_std"))
                for stage, rows in cells.by(history, "stage").items()
            }
        ),
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
    figure, axes, columns = drawing.panels(2)
    plots.plot_rate(axes[0], rows, "fpr", title="FPR: errors accepted")
    plots.plot_rate(axes[1], rows, "fnr", title="FNR: correct answers rejected")
    return Drawing(
        f"rates_per_epoch_{about}",
        f"FPR and FNR per epoch: {about}",
        f"Validation data, at tau = {tau:g}; mean of the seeds, and their range shaded."
        + _THRESHOLDING,
        figure,
        columns,
        drawing.in_words(
            {cells.label(stage): _last(group) for stage, group in cells.by(rows, "stage").items()}
        ),
    )


def draw_risk_coverage(predictions: Predictions, about: str) -> Drawing:
    """Risk and coverage of all methods of a classifier on one axis, with the oracle."""
    figure, (ax,), columns = drawing.panels(1, **ROOM_BELOW)
    plots.plot_risk_coverage(ax, predictions.is_error, curves(predictions.uncertainty))
    drawing.legend_below(figure, [ax], 3)
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
    figure, axes, columns = drawing.panels(len(found))
    for ax, (name, u) in zip(axes, found.items(), strict=True):
        plots.plot_uncertainty_histogram(
            ax, predictions.is_error, u, tau=tau, title=cells.label(name)
        )
    return Drawing(
        f"uncertainty_histogram_{about}",
        f"Uncertainty of correct and wrong answers: {about}",
        "First seed, frozen classifier, test images; counts on a logarithmic axis.",
        figure,
        columns,
        drawing.in_words(
            {
                cells.label(name): drawing.halves(predictions.is_error, u)
                for name, u in found.items()
            }
        ),
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
    figure, axes, columns = drawing.panels(len(pairs))
    for ax, (ood, name) in zip(axes, pairs, strict=True):
        plots.plot_confidence(
            ax,
            test.uncertainty[name],
            others[ood].uncertainty[name],
            title=f"{cells.label(name)}: {about} and {ood}",
        )
    return Drawing(
        f"confidence_{about}",
        f"Confidence of test and OOD images: {about}",
        "First seed, frozen classifier. The less the two overlap, the better OOD images are told "
        "from the test images; test images are filled, OOD images hatched.",
        figure,
        columns,
        drawing.in_words(
            {
                f"{cells.label(name)}, {ood}": "median confidence "
                f"{1 - np.median(test.uncertainty[name]):.3g} of test images, "
                f"{1 - np.median(others[ood].uncertainty[name]):.3g} of OOD images"
                for ood, name in pairs
            }
        ),
    )


def draw_shift(rows: Sequence[Row], about: str) -> Drawing | None:
    """AURC under each corruption against its strength; None where there is none."""
    rows = _apart(rows)
    images = [ImageSet.of_row(row) for row in rows]
    names = dict.fromkeys(one.name for one in images if one.kind == "shift")
    if not names:
        return None
    figure, axes, columns = drawing.panels(len(names), height=3.9, bottom=1.05)
    for ax, name in zip(axes, names, strict=True):
        plots.plot_shift(ax, rows, name, title=name)
    drawing.legend_below(figure, axes, 3 * len(axes))
    return Drawing(
        f"shift_{about}",
        f"Covariate shift: {about}",
        "AURC of the frozen classifier's test answers, mean over seeds, as the images change more; "
        "below each strength, the accuracy there. AURC rises with the error rate itself.",
        figure,
        columns,
        drawing.in_words({name: _most_shifted(rows, name) for name in names}),
    )


def _most_shifted(rows: Sequence[Row], name: str) -> str:
    """AURC of each method where a corruption is strongest."""
    found = [row for row in rows if ImageSet.of_row(row) == ImageSet("shift", name, 3)]
    told = [f"{cells.label(row['method'])} {1000 * cells.number(row['aurc']):.3g}" for row in found]
    return f"AURC x 1000 at strength 3: {', '.join(told)}" if told else ""


def draw_ablation(rows: Sequence[Row], base: Sequence[Row], about: str) -> Drawing:
    """What each setting of the loss does to the threshold (BACC) and to the ranking.

    Args:
      rows: As `plot_ablation`.
      base: As `plot_ablation`.
      about: Name of the data set.
    """
    figure, axes, columns = drawing.panels(
        3, height=1.3 + 0.26 * (len(rows) + len(base)), left=1.35
    )
    for ax, name in zip(axes, ("bacc", "auroc", "aurc"), strict=True):
        plots.plot_ablation(ax, rows, name, base)
    return Drawing(
        f"ablation_{about}",
        f"What the loss does to the threshold and to the ranking: {about}",
        "Frozen BTCP on one classifier, one setting changed at a time, with 95 % intervals. BACC "
        "depends on where u lies around tau; AUROC and AURC only on the order of the answers.",
        figure,
        columns,
        drawing.in_words(
            {
                row.get("ablation")
                or cells.label(row["method"]): f"AUROC {cells.number(row['auroc']):.2%}"
                for row in (*base, *rows)
            }
        ),
    )


def draw_ranks(rows: Sequence[Row]) -> Drawing | None:
    """Mean ranks by AURC over data sets and seeds; None where there are too few methods."""
    rows = _apart(rows)
    names, ranks = plots.mean_ranks(rows)
    if len(names) < 2:
        return None
    figure, (ax,), columns = drawing.panels(1, height=1.6 + 0.25 * len(names), left=1.8)
    plots.plot_ranks(ax, rows)
    return Drawing(
        "mean_ranks",
        "Mean ranks",
        f"Rank by AURC among the frozen methods, mean of {ranks.shape[1]} data sets and seeds; the "
        "gray bar is the range, filled points are the paper's methods. Two methods whose mean "
        "ranks are closer than the critical difference (Nemenyi, 5 %) are not told apart by it; "
        "seeds of one data set share their test images, so that it is a rough guide.",
        figure,
        columns,
        drawing.in_words(
            {cells.label(name): f"{row.mean():.1f}" for name, row in zip(names, ranks, strict=True)}
        ),
    )
