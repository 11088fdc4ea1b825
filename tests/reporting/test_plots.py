"""Figures hold the data they are given, and stay legible."""

import io
import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from btcp_tf import thresholds
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import cells, figures, gallery, monitor_plots, plots
from btcp_tf.reporting.drawing import Drawing, _render, panels, percent, save_figures

OKABE_ITO = {"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}


def make_history(stages=("tcp", "btcp", "btcp_finetuned"), epochs=4):
    return [
        dict(
            stage=stage,
            epoch=epoch,
            u_mean=0.1 * place + 0.01 * epoch,
            u_std=0.2 * place + 0.02 * epoch,
            fpr=None if epoch == 1 else 0.1 * epoch,
            fnr=0.05 * epoch,
        )
        for place, stage in enumerate(stages)
        for epoch in range(1, epochs + 1)
    ]


def make_ax():
    return Figure().add_subplot()


def lines(ax):
    return {line.get_label(): line for line in ax.get_lines()}


def test_histogram_counts_correct_and_wrong_answers_apart():
    u = np.array([0.0, 0.01, 0.5, 0.99, 1.0, 1.0])
    is_error = np.array([False, False, True, False, True, True])
    ax = make_ax()
    plots.plot_uncertainty_histogram(ax, is_error, u, tau=0.3)
    correct, wrong = (patch.get_data() for patch in ax.patches)
    np.testing.assert_allclose(correct.edges, np.linspace(0, 1, 51))
    assert list(correct.values[[0, 25, 49]]) == [2, 0, 1] and correct.values.sum() == 3
    assert list(wrong.values[[0, 25, 49]]) == [0, 1, 2] and wrong.values.sum() == 3
    assert ax.patches[1].get_hatch() and not ax.patches[0].get_hatch()
    assert list(lines(ax)["tau = 0.3"].get_xdata()) == [0.3, 0.3]
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == [
        "correct (3)",
        "wrong (3)",
    ]


def test_histogram_shows_every_value_of_a_raw_score():
    ax = make_ax()
    plots.plot_uncertainty_histogram(ax, np.array([0, 1, 0], bool), np.array([-3.0, 8, 0.5]))
    assert sum(patch.get_data().values.sum() for patch in ax.patches) == 3
    assert ax.get_xlim() == (-3, 8)


def test_risk_coverage_has_every_method_and_the_oracle():
    is_error = np.array([False, True, False, False, True])
    u = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    ax = make_ax()
    plots.plot_risk_coverage(ax, is_error, {"mcp": u, "btcp": 1 - u})
    drawn = lines(ax)
    assert set(drawn) == {"oracle", "MCP", "BTCP"}
    for name, expected in (
        ("MCP", [0, 1 / 2, 1 / 3, 1 / 4, 2 / 5]),
        ("BTCP", [1, 1 / 2, 1 / 3, 2 / 4, 2 / 5]),
        ("oracle", [0, 0, 0, 1 / 4, 2 / 5]),
    ):
        np.testing.assert_allclose(drawn[name].get_xdata(), [0.2, 0.4, 0.6, 0.8, 1])
        np.testing.assert_allclose(drawn[name].get_ydata(), expected)


def test_roc_rejects_the_least_trusted_first():
    is_error = np.array([False, True, False, True])
    ax = make_ax()
    plots.plot_roc(ax, is_error, {"mcp": np.array([0.1, 0.2, 0.3, 0.4])})
    np.testing.assert_allclose(
        lines(ax)["MCP"].get_xydata(), [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]]
    )


def test_reliability_shows_accuracy_against_confidence_and_leaves_out_raw_scores():
    is_error = np.array([False, False, True, True])
    columns = {"mcp": np.array([0.1, 0.1, 0.1, 0.9]), "raw": np.array([0.0, 5, 1, 2])}
    ax = make_ax()
    plots.plot_reliability(ax, is_error, columns, bins=2)
    assert set(lines(ax)) == {"perfect", "MCP"}
    np.testing.assert_allclose(lines(ax)["MCP"].get_xydata(), [[0.1, 0], [0.9, 2 / 3]])


def test_epoch_curves_hold_the_history_of_each_stage():
    history = make_history()
    ax = make_ax()
    plots.plot_epochs(ax, history, "u_std")
    assert list(lines(ax)) == ["TCP", "BTCP", "BTCP fine-tuned"]
    np.testing.assert_allclose(
        lines(ax)["BTCP"].get_xydata(), [[1, 0.22], [2, 0.24], [3, 0.26], [4, 0.28]]
    )
    ax = make_ax()
    plots.plot_fpr_fnr(ax, history[:4])
    np.testing.assert_allclose(lines(ax)["FPR"].get_ydata(), [math.nan, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(lines(ax)["FNR"].get_ydata(), [0.05, 0.1, 0.15, 0.2])


def test_legend_names_every_column():
    columns = {"_odd": np.array([0.1, 0.2]), "mcp": np.array([0.2, 0.1])}
    ax = make_ax()
    plots.plot_roc(ax, np.array([False, True]), columns)
    shown = [text.get_text().strip() for text in ax.get_legend().get_texts()]
    assert shown == ["chance", "_odd", "MCP"]


@pytest.mark.parametrize("epochs", [1, 100])
def test_epoch_axis_has_whole_numbers(epochs):
    ax = make_ax()
    plots.plot_epochs(ax, make_history(epochs=epochs), "u_mean")
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert ticks and all(tick == round(tick) for tick in ticks)


def test_lines_differ_in_color_dashes_and_marker_and_keep_them_between_figures():
    rng = np.random.default_rng(0)
    known = ["mcp", "tcp", "btcp", "ohem", "trust_score", "foreign"]
    shown = [cells.label(name) for name in known]
    is_error = rng.random(30) < 0.5
    ax = make_ax()
    plots.plot_roc(ax, is_error, {name: rng.random(30) for name in known})
    drawn = lines(ax)
    looks = {
        name: (to_hex(line.get_color()), str(line._dash_pattern), line.get_marker())
        for name, line in drawn.items()
    }
    for part in zip(*(looks[name] for name in shown), strict=True):
        assert len(set(part)) == len(known)
    assert {looks[name][0] for name in shown} <= OKABE_ITO
    other = make_ax()
    plots.plot_risk_coverage(other, is_error, {"btcp": rng.random(30)})
    assert lines(other)["BTCP"].get_color() == drawn["BTCP"].get_color()


def test_many_methods_leave_the_papers_in_front_and_one_word_for_the_rest():
    rng = np.random.default_rng(0)
    names = ["mcp", "btcp", *(f"other{number}" for number in range(9))]
    ax = make_ax()
    plots.plot_risk_coverage(ax, rng.random(30) < 0.5, {name: rng.random(30) for name in names})
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["oracle", "MCP", "BTCP", "9 others"]
    # 9 lines beside oracle, mcp and btcp, all alike.
    rest = [line for line in ax.get_lines() if to_hex(line.get_color()) == "#b0b0b0"]
    assert len(rest) == 9 and len(ax.get_lines()) == 12
    assert max(line.get_zorder() for line in rest) < lines(ax)["BTCP"].get_zorder()


def test_seeds_are_averaged_in_each_epoch():
    history = [
        dict(stage="btcp", epoch=epoch, u_mean=0.1 * epoch + 0.02 * seed)
        for seed in (0, 1)
        for epoch in (1, 2)
    ]
    ax = make_ax()
    plots.plot_epochs(ax, history, "u_mean")
    np.testing.assert_allclose(lines(ax)["BTCP"].get_xydata(), [[1, 0.11], [2, 0.21]])
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([corners.min(), corners.max()], [0.1, 0.22])


def test_thresholding_is_the_tcp_row_at_its_best_tau():
    history = make_history(("tcp", "btcp"), epochs=2)
    for row in history:
        best = row["stage"] == "tcp"
        row |= dict(fpr_best_tau=0.3 if best else "", fnr_best_tau=0.2 if best else math.nan)
    rows = plots.with_thresholding(history)
    added = [row for row in rows if row["stage"] == "thresholding"]
    assert [(row["epoch"], row["fpr"], row["fnr"]) for row in added] == [
        (1, 0.3, 0.2),
        (2, 0.3, 0.2),
    ]
    assert plots.with_thresholding(make_history()) == make_history()
    drawing = figures.draw_rates_per_epoch(history, "digits", 0.5)
    for ax, value in zip(drawing.figure.axes, (0.3, 0.2), strict=True):
        assert set(lines(ax)) == {"TCP", "BTCP", "Thresholding"}
        np.testing.assert_allclose(lines(ax)["Thresholding"].get_ydata(), value)
    assert figures.draw_rates_per_epoch(make_history(("classifier",)), "digits", 0.5) is None


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_legend_of_rates_covers_no_line(rate):
    names = ("btcp", "tcp", "ohem", "thresholding")
    history = [dict(stage=s, epoch=e, fpr=rate, fnr=rate) for s in names for e in (1, 2, 3)]
    figure = Figure(figsize=(4.4, 3.5))
    for place, draw in enumerate(
        (
            lambda ax: plots.plot_rate(ax, history, "fpr"),
            lambda ax: plots.plot_fpr_fnr(ax, history[:3]),
        )
    ):
        ax = figure.add_subplot(1, 2, place + 1)
        draw(ax)
        figure.canvas.draw()
        box = ax.get_legend().get_window_extent()
        for line in ax.get_lines():
            assert not any(box.contains(*ax.transData.transform(xy)) for xy in line.get_xydata())


def test_confidence_shows_shares_of_both_sets():
    ax = make_ax()
    plots.plot_confidence(ax, np.array([0.0, 0.05, 0.85, 1.0]), np.array([1.0, 0.95]), bins=10)
    test, ood = (patch.get_data() for patch in ax.patches)
    np.testing.assert_allclose(test.values, [0.25, 0.25, 0, 0, 0, 0, 0, 0, 0, 0.5], atol=1e-12)
    np.testing.assert_allclose(ood.values, [1, *[0] * 9], atol=1e-12)
    assert ax.patches[1].get_hatch() and not ax.patches[0].get_hatch()


@pytest.mark.parametrize("decimals", [0, None])
@pytest.mark.parametrize("top", [0.0112, 0.19, 0.6, 1.0])
def test_labels_in_percent_say_where_they_stand(decimals, top):
    ax = make_ax()
    ax.set_ylim(0, top)
    percent(ax.yaxis, decimals=decimals)
    ax.figure.canvas.draw()
    labels = [label.get_text().removesuffix("%") for label in ax.get_yticklabels()]
    places = 100 * ax.get_yticks()
    np.testing.assert_allclose([float(label) for label in labels], places, rtol=1e-3, atol=1e-9)
    assert decimals is None or top < 0.5 or not any("." in label for label in labels)


def test_shift_shows_the_metric_by_strength_with_the_accuracy_below():
    rows = [
        dict(method=method, split=split, accuracy=accuracy, aurc=0.01 * (place + 1) + shift)
        for shift, method in ((0, "mcp"), (0.5, "btcp"))
        for place, (split, accuracy) in enumerate(
            (("test:noise2", 0.7), ("test", 0.9), ("test:noise1", 0.8), ("test:blur1", 0.1))
        )
    ]
    ax = make_ax()
    plots.plot_shift(ax, rows, "noise")
    np.testing.assert_allclose(lines(ax)["MCP"].get_xydata(), [[0, 20], [1, 30], [2, 10]])
    np.testing.assert_allclose(lines(ax)["BTCP"].get_ydata(), [520, 530, 510])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0\n90%", "1\n80%", "2\n70%"]


def rank_rows():
    """Two classifiers; c is missing in one of them."""
    aurcs = {("x", 0): dict(a=0.3, b=0.1, d=0.1, c=0.2), ("x", 1): dict(a=0.1, b=0.2, d=0.3)}
    return [
        dict(dataset=dataset, seed=seed, method=method, aurc=aurc, auroc=1 - aurc)
        for (dataset, seed), values in aurcs.items()
        for method, aurc in values.items()
    ]


@pytest.mark.parametrize("metric", ["aurc", "auroc"])
def test_mean_ranks_share_ties_and_leave_out_what_is_missing(metric):
    names, ranks = plots.mean_ranks(rank_rows(), metric)
    assert names == ["b", "a", "d"]
    np.testing.assert_array_equal(ranks, [[1.5, 2], [3, 1], [1.5, 3]])


def test_critical_difference_is_demsars():
    # Table 5 of Demsar (2006): q of 5 classifiers is 2.728, of 10 it is 3.164.
    assert plots.critical_difference(5, 30) == pytest.approx(
        2.728 * math.sqrt(5 * 6 / 180), abs=1e-3
    )
    assert plots.critical_difference(10, 9) == pytest.approx(
        3.164 * math.sqrt(10 * 11 / 54), abs=2e-3
    )


def test_ranks_are_drawn_best_first():
    ax = make_ax()
    plots.plot_ranks(ax, rank_rows())
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["b", "a", "d"]
    means = [line.get_xydata()[0] for line in ax.get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(means, [[1.75, 0], [2, 1], [2.25, 2]])
    low, high = ax.get_ylim()
    assert low > high
    assert figures.draw_ranks(rank_rows()[:1]) is None


def cost_rows(**aurcs):
    return [
        dict(method=name, aurc=aurc, aurc_low=aurc - 0.001, aurc_high=aurc + 0.002)
        for name, aurc in aurcs.items()
    ]


@pytest.mark.parametrize(("most", "scale"), [(50.0, "log"), (10.0, "linear")])
def test_costs_are_points_with_names_and_intervals(most, scale):
    rows = cost_rows(mcp=0.010, residual=0.0101, mc_dropout=0.012, residual_looks=0.009)
    costs = {"mcp": 1.0, "residual": 1.0, "residual_looks": 1.3, "mc_dropout": most}
    ax = make_ax()
    plots.plot_costs(ax, rows, costs)
    points = {line.get_marker(): line.get_xydata()[0] for line in ax.get_lines()}
    assert len(points) == 4
    drawn = sorted(map(tuple, np.round(list(points.values()), 9)))
    wanted = [(costs[row["method"]], 1000 * row["aurc"]) for row in rows]
    assert drawn == sorted((x, round(y, 9)) for x, y in wanted)
    [intervals] = ax.collections
    ends = [segment.tolist() for segment in intervals.get_segments()]
    for (x, y), end in zip(wanted, ends, strict=True):
        np.testing.assert_allclose(end, [[x, y - 1], [x, y + 2]])
    assert ax.get_xscale() == scale
    assert "AURC ×1000" in ax.get_ylabel() and "passes" in ax.get_xlabel()
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert [*heights] == ["MCP", "Residual", "MC dropout", "Residual, looks"]
    # MCP and residual have almost the same place, and names that can be read.
    assert heights["MCP"] == pytest.approx(10.0) and heights["Residual"] > 10.3
    if scale == "log":
        assert [tick.get_text() for tick in ax.get_xticklabels()] == "1 2 5 10 20 50".split()
        assert ax.texts[2].get_ha() == "right" and ax.texts[0].get_ha() == "left"


def test_points_of_all_methods_that_cost_is_known_of_are_seen():
    names = ["mcp", "mc_dropout", "ensemble", "residual"]
    names += [name for name in METHODS if "looks" in (name + METHODS[name].rival_of)]
    rows = cost_rows(**{name: 0.01 + 0.001 * place for place, name in enumerate(names)})
    ax = make_ax()
    plots.plot_costs(ax, rows, {name: 1.0 + place for place, name in enumerate(names)})
    points = {(line.get_marker(), line.get_color()) for line in ax.get_lines()}
    assert len(points) == len(names) == 9 and all(mark not in ("", "None") for mark, _ in points)
    assert [text.get_text() for text in ax.texts] == [cells.label(name) for name in names]


def test_costs_are_drawn_where_they_differ():
    rows = cost_rows(mcp=0.010, btcp=0.011, residual_looks=0.009, ensemble=float("nan"))
    costs = {"mcp": 1.0, "residual_looks": 1.25, "ensemble": 3.0, "residual": 1.0}
    drawing = figures.draw_costs(rows, costs, "mnist")
    assert drawing.name == "costs_mnist"
    assert "MCP 10.00 [9.00, 12.00] at 1; Residual, looks 9.00 [8.00, 11.00] at 1.25" in drawing.alt
    assert "BTCP" not in drawing.alt and "Ensemble" not in drawing.alt
    assert figures.draw_costs(rows, costs | {"residual_looks": 1.0}) is None
    assert figures.draw_costs(rows, {}) is None


def test_ablation_shows_settings_with_intervals_and_mcp_as_a_line():
    def row(method, value, **more):
        return (
            dict(method=method, auroc=value, auroc_low=value - 0.1, auroc_high=value + 0.05) | more
        )

    base = [row("mcp", 0.9), row("btcp", 0.8)]
    ax = make_ax()
    plots.plot_ablation(ax, [row("btcp", 0.7, ablation="gamma=0")], "auroc", base)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["BTCP", "gamma=0"]
    points = [line.get_xydata()[0] for line in ax.get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(points, [[80, 0], [70, 1]])
    bars = [list(line.get_xdata()) for line in ax.get_lines() if list(line.get_ydata()) == [1, 1]]
    np.testing.assert_allclose(bars, [[60, 75]])
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    np.testing.assert_allclose(dashed[0].get_xdata(), [90, 90])


def test_errors_that_every_method_trusts():
    is_error = np.array([True, True, True, False, False])
    columns = {
        "mcp": np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
        "energy": np.array([9.0, -5.0, -4.0, 0.0, 1.0]),  # Raw: ranks count, not values.
        "random": np.array([0.0, 0.9, 0.1, 0.2, 0.3]),  # A control has no say.
        "tcp_oracle": np.array([0.0, 1.0, 0.1, 0.2, 0.3]),
    }
    # Row 0 has energy's highest rank, row 2 mcp's third of 5.
    assert list(gallery.trusted_by_all(is_error, columns)) == [1]
    longer = {name: np.append(u, [99.0, 99.0]) for name, u in columns.items()}
    is_error = np.append(is_error, [False, False])
    assert list(gallery.trusted_by_all(is_error, longer)) == [1, 2]
    assert list(gallery.trusted_by_all(is_error, longer, count=1)) == [1]


def test_a_method_that_moves_tau_alone_has_no_curve_of_its_own():
    u = np.zeros(3)
    assert list(cells.distinct_columns({"tcp": u, "thresholding": u})) == ["tcp"]
    assert list(cells.distinct_columns({"thresholding": u})) == ["thresholding"]


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_figures_survive_any_words(recwarn, ending):
    strange = "a\x1cb\ufeffc\r\x85\u2028\u2029\ud800人"
    figure, (ax,), _ = panels(1)
    plots.plot_roc(ax, np.array([False, True]), {strange: np.array([0.1, 0.2])}, title="$x$ \\frac")
    figure.text(0.1, 0.1, strange)
    assert _render(figure, ending)
    assert not recwarn.list


def test_a_run_with_many_methods_has_few_histograms():
    rng = np.random.default_rng(0)
    columns = {name: rng.random(20) for name in ("mcp", "btcp", *(f"m{k}" for k in range(12)))}
    predictions = Predictions(np.zeros(20, int), None, rng.integers(0, 2, 20), columns)
    histogram, *others = figures.draw_run({"btcp_finetuned": predictions})
    titles = [ax.get_title() for ax in histogram.figure.axes]
    assert titles == ["MCP, BTCP fine-tuned classifier", "BTCP, BTCP fine-tuned classifier"]
    assert {ax.get_title() for d in others for ax in d.figure.axes} == {
        "BTCP fine-tuned classifier"
    }


def test_files_of_equal_drawings_are_equal(tmp_path):
    def save(folder):
        figure, (ax,), _ = panels(1)
        plots.plot_ranks(ax, rank_rows())
        return save_figures(tmp_path / folder, [Drawing("r", "t", "c", figure)])

    first, second = save("a"), save("b")
    assert [path.name for path in first] == ["r.png", "r.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG") and first[1].read_bytes().startswith(
        b"%PDF"
    )


def test_figures_of_all_methods_have_one_legend_that_covers_nothing():
    rng = np.random.default_rng(0)
    names = ["mcp", "btcp", "trust_score", "ohem", "tcp", "mc_dropout", "knn", "vim", "energy"]
    columns = {name: rng.random(40) for name in names}
    p = Predictions(np.zeros(40, int), None, rng.integers(0, 2, 40), columns)
    rows = [
        dict(method=method, split=split, accuracy=0.5, aurc=0.1)
        for method in names
        for split in (
            "test",
            *(f"test:{c}{s}" for c in ("noise", "blur", "rotation") for s in "123"),
        )
    ]
    for drawing in (figures.draw_risk_coverage(p, "x"), figures.draw_shift(rows, "x")):
        drawing.figure.canvas.draw()
        (legend,) = drawing.figure.legends
        shown = [text.get_text() for text in legend.get_texts()]
        assert "BTCP" in shown and "3 others" in shown
        box = legend.get_window_extent()
        assert 0 <= box.x0 and box.x1 <= drawing.figure.bbox.x1 and box.y0 >= 0
        for ax in drawing.figure.axes:
            assert ax.get_legend() is None
            assert not box.overlaps(ax.get_tightbbox())


def test_thresholds_lie_on_the_curve_of_the_test_set():
    rng = np.random.default_rng(0)
    rows = {}
    for split, n in (("calibration", 400), ("test", 600)):
        u = rng.random(n)
        wrong = rng.random(n) < 0.5 * u
        zeros = np.zeros(n, np.int64)
        rows[split] = Predictions(wrong.astype(np.int64), None, zeros, {"btcp": u})
    chosen = thresholds.given(rows["test"].is_error, rows["test"].uncertainty["btcp"], tau=0.6)
    promises = [{"target": 0.05, "tau": 0.3}, {"target": 0.01, "tau": None}]
    drawing = figures.draw_thresholds(rows["calibration"], rows["test"], "btcp", chosen, promises)
    coverage, risk = drawing.figure.axes
    u, wrong = rows["test"].uncertainty["btcp"], rows["test"].is_error
    for ax, values in (
        (coverage, [(u < tau).mean() for tau in (0.6, 0.3)]),
        (risk, [wrong[u < tau].mean() for tau in (0.6, 0.3)]),
    ):
        lines = {line.get_label(): line for line in ax.get_lines()}
        assert list(lines) == ["calibration", "test", "SavedModel", "promise 5%"]
        for name, tau, value in zip(list(lines)[2:], (0.6, 0.3), values, strict=True):
            np.testing.assert_allclose(lines[name].get_xydata(), [(tau, value)])


def test_two_samples_are_drawn_as_shares_of_each():
    then, now = np.array([0.0, 0.1, 0.9, 0.9]), np.array([0.05, 1.0])
    ax = make_ax()
    monitor_plots.plot_two_samples(ax, then, now, bins=10, tau=0.3)
    first, second = (patch.get_data() for patch in ax.patches)
    assert first.values[[0, 1, 9]].tolist() == [0.25, 0.25, 0.5]
    assert second.values[[0, 9]].tolist() == [0.5, 0.5]
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["calibration (4)", "now (2)", "tau = 0.3"]
    # Two colors that differ in gray as well are not enough: the dashes differ.
    assert len({patch.get_linestyle() for patch in ax.patches}) == 2


def test_distribution_functions_hold_every_value_and_mark_the_distance():
    then, now = np.array([0.2, 0.2, 0.6]), np.array([0.4, 0.8])
    ax = make_ax()
    monitor_plots.plot_distribution_functions(ax, then, now, at=0.2)
    drawn = lines(ax)
    x, y = drawn["calibration (3)"].get_data()
    assert list(x) == [0, 0.2, 0.6, 1] and list(y) == pytest.approx([0, 2 / 3, 1, 1])
    assert list(drawn["distance"].get_ydata()) == pytest.approx([2 / 3, 0])


def test_class_shares_are_pairs_of_bars_from_top_to_bottom():
    ax = make_ax()
    monitor_plots.plot_class_shares(ax, np.array([0.7, 0.3]), np.array([0.2, 0.8]), ["$a", "b"])
    assert [bar.get_width() for bar in ax.patches] == [0.7, 0.3, 0.2, 0.8]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["$a", "b"]
    bottom, top = ax.get_ylim()
    assert bottom > top
    ax.figure.savefig(io.BytesIO())


def test_rates_by_block_stand_beside_the_band_of_the_baseline():
    ax = make_ax()
    rows, rates = np.array([50, 150]), np.array([0.1, 0.3])
    monitor_plots.plot_rate_by_block(
        ax, rows, rates, rates - 0.05, rates + 0.05, baseline=(0.12, 0.1, 0.15), ylabel="rate"
    )
    assert list(lines(ax)["now, in blocks"].get_ydata()) == [0.1, 0.3]
    assert list(lines(ax)["calibration"].get_ydata()) == [0.12, 0.12]
    assert ax.get_ylim()[1] > 0.35


def test_the_promise_is_drawn_with_its_limit_and_its_break():
    rows = np.arange(1, 101)
    risk = np.full(100, 0.04)
    ax = make_ax()
    monitor_plots.plot_risk_over_rows(ax, rows, risk, risk / 2, risk * 2, limit=0.05, broken=70)
    assert list(lines(ax)["limit 0.05"].get_ydata()) == [0.05, 0.05]
    assert list(lines(ax)["broken at 70"].get_xdata()) == [70, 70]
    assert ax.get_ylim()[1] >= 0.08
    ax = make_ax()
    monitor_plots.plot_evidence(ax, rows, 1.05**rows, enough=100, broken=95)
    assert ax.get_yscale() == "log" and list(lines(ax)["enough: 100"].get_ydata()) == [100, 100]
    assert lines(ax)["evidence"].get_ydata()[-1] == pytest.approx(1.05**100)
