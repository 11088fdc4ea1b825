"""Figures hold the data they are given, and the page and the table hold the rows."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from btcp_tf import evaluation, report
from btcp_tf.evaluation import Predictions
from btcp_tf.metrics import METRICS

CLASSES = ["<b>bold</b>", "a & b", "$x$ \\frac", "a class with a very long name indeed"]
OKABE_ITO = {"#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}


def make_predictions(methods=("mcp", "tcp", "btcp"), errors=12, n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    predicted = labels.copy()
    predicted[rng.permutation(n)[:errors]] += 1
    predicted %= 4
    columns = {
        name: np.minimum(rng.beta(1, 4, n) + 0.3 * place * (labels != predicted), 1)
        for place, name in enumerate(methods)
    }
    return Predictions(labels=labels, probs=None, predicted=predicted, uncertainty=columns)


def make_rows(predictions, stage="frozen", dataset="fashion_mnist"):
    return evaluation.rows(
        predictions,
        dataset=dataset,
        seed=3,
        stage=stage,
        classifier_id=f"id-{stage}",
        split="test",
        tau=0.5,
        bootstrap_draws=20,
        bootstrap_seed=0,
    )


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


def parse(text):
    """The page as a tree; that it parses shows that all tags are closed and all text escaped."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))


def tables(tree):
    """Caption -> lines of cell texts."""
    return {
        "".join(table.find("caption").itertext()): [
            [" ".join("".join(cell.itertext()).split()) for cell in line]
            for line in table.iter("tr")
        ]
        for table in tree.iter("table")
    }


def words(tree):
    return " ".join("".join(tree.itertext()).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A drawn run of two classifiers: its folder, rows, predictions and page."""
    folder = tmp_path_factory.mktemp("run")
    predictions = {
        "frozen": make_predictions(),
        "finetuned": make_predictions(("mcp", "btcp"), errors=31, seed=1),
    }
    rows = [row for stage, p in predictions.items() for row in make_rows(p, stage)]
    images = np.random.default_rng(0).integers(0, 256, (60, 5, 6, 3), dtype=np.uint8)
    path = report.write_run_report(
        folder,
        rows,
        predictions,
        make_history(),
        images=images,
        class_names=CLASSES,
        settings={"gamma": "auto", "data_dir": "<here>"},
        environment={"python": "3.11"},
        notes=["this data is a part: 60 of <10,000> images"],
    )
    return folder, rows, predictions, path.read_text(encoding="utf-8")


# Plots.


def test_histogram_counts_correct_and_wrong_answers_apart():
    u = np.array([0.0, 0.01, 0.5, 0.99, 1.0, 1.0])
    is_error = np.array([False, False, True, False, True, True])
    ax = make_ax()
    report.plot_uncertainty_histogram(ax, is_error, u, tau=0.3)
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
    report.plot_uncertainty_histogram(ax, np.array([0, 1, 0], bool), np.array([-3.0, 8, 0.5]))
    assert sum(patch.get_data().values.sum() for patch in ax.patches) == 3
    assert ax.get_xlim() == (-3, 8)


def test_risk_coverage_has_every_method_and_the_oracle():
    is_error = np.array([False, True, False, False, True])
    u = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    ax = make_ax()
    report.plot_risk_coverage(ax, is_error, {"mcp": u, "btcp": 1 - u})
    drawn = lines(ax)
    assert set(drawn) == {"oracle", "mcp", "btcp"}
    for name, expected in (
        ("mcp", [0, 1 / 2, 1 / 3, 1 / 4, 2 / 5]),
        ("btcp", [1, 1 / 2, 1 / 3, 2 / 4, 2 / 5]),
        ("oracle", [0, 0, 0, 1 / 4, 2 / 5]),
    ):
        np.testing.assert_allclose(drawn[name].get_xdata(), [0.2, 0.4, 0.6, 0.8, 1])
        np.testing.assert_allclose(drawn[name].get_ydata(), expected)


def test_roc_rejects_the_least_trusted_first():
    is_error = np.array([False, True, False, True])
    ax = make_ax()
    report.plot_roc(ax, is_error, {"mcp": np.array([0.1, 0.2, 0.3, 0.4])})
    np.testing.assert_allclose(
        lines(ax)["mcp"].get_xydata(), [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]]
    )


def test_reliability_shows_accuracy_against_confidence_and_leaves_out_raw_scores():
    is_error = np.array([False, False, True, True])
    columns = {"mcp": np.array([0.1, 0.1, 0.1, 0.9]), "raw": np.array([0.0, 5, 1, 2])}
    ax = make_ax()
    report.plot_reliability(ax, is_error, columns, bins=2)
    assert set(lines(ax)) == {"perfect", "mcp"}
    np.testing.assert_allclose(lines(ax)["mcp"].get_xydata(), [[0.1, 0], [0.9, 2 / 3]])


def test_epoch_curves_hold_the_history_of_each_stage():
    history = make_history()
    ax = make_ax()
    report.plot_epochs(ax, history, "u_std")
    assert list(lines(ax)) == ["tcp", "btcp", "btcp_finetuned"]
    np.testing.assert_allclose(
        lines(ax)["btcp"].get_xydata(), [[1, 0.22], [2, 0.24], [3, 0.26], [4, 0.28]]
    )
    ax = make_ax()
    report.plot_fpr_fnr(ax, history[:4])
    np.testing.assert_allclose(lines(ax)["FPR"].get_ydata(), [math.nan, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(lines(ax)["FNR"].get_ydata(), [0.05, 0.1, 0.15, 0.2])


def test_legend_names_every_column():
    columns = {"_odd": np.array([0.1, 0.2]), "mcp": np.array([0.2, 0.1])}
    ax = make_ax()
    report.plot_roc(ax, np.array([False, True]), columns)
    shown = [text.get_text().strip() for text in ax.get_legend().get_texts()]
    assert shown == ["chance", "_odd", "mcp"]


@pytest.mark.parametrize("epochs", [1, 100])
def test_epoch_axis_has_whole_numbers(epochs):
    ax = make_ax()
    report.plot_epochs(ax, make_history(epochs=epochs), "u_mean")
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert ticks and all(tick == round(tick) for tick in ticks)


def test_lines_differ_in_color_dashes_and_marker_and_keep_them_between_figures():
    rng = np.random.default_rng(0)
    known = ["mcp", "tcp", "btcp", "ohem", "trust_score", "foreign"]
    is_error = rng.random(30) < 0.5
    ax = make_ax()
    report.plot_roc(ax, is_error, {name: rng.random(30) for name in known})
    drawn = lines(ax)
    looks = {
        name: (to_hex(line.get_color()), str(line._dash_pattern), line.get_marker())
        for name, line in drawn.items()
    }
    for part in zip(*(looks[name] for name in known), strict=True):
        assert len(set(part)) == len(known)
    assert {looks[name][0] for name in known} <= OKABE_ITO
    other = make_ax()
    report.plot_risk_coverage(other, is_error, {"btcp": rng.random(30)})
    assert lines(other)["btcp"].get_color() == drawn["btcp"].get_color()


def test_confident_errors_are_the_wrong_answers_with_the_smallest_u_first():
    is_error = np.array([True, False, True, True, True])
    u = np.array([0.4, 0.0, 0.2, 0.4, 0.1])
    assert list(report.confident_errors(is_error, u)) == [4, 2, 0, 3]
    assert list(report.confident_errors(is_error, u, count=2)) == [4, 2]


@pytest.mark.parametrize("channels", [1, 3])
def test_error_sheet_shows_image_classes_and_u(channels):
    images = np.arange(4 * 3 * 2 * channels, dtype=np.uint8).reshape(4, 3, 2, channels)
    labels, predicted = np.array([0, 1, 2, 3]), np.array([0, 2, 2, 1])
    u = np.array([0.0, 0.5, 0.1, 0.25])
    figure = report.error_sheet(images, labels, predicted, u, CLASSES)
    shown = [ax.get_title() for ax in figure.axes]
    assert shown == [
        "is a class with a v…\nsaid a & b\nu = 0.25",
        "is a & b\nsaid $x$ \\frac\nu = 0.5",
    ]
    pixels = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(pixels, images[3] if channels == 3 else images[3, ..., 0])
    figure.canvas.draw()  # The broken formula in a class name must stay text.


# Tables.


def test_terminal_table_holds_what_a_person_should_know():
    rows = make_rows(make_predictions(errors=12))
    table = report.terminal_table(rows, {"report": "runs/x/report.html"})
    assert "accuracy 80.00 %, 12 errors of 60" in table
    for row in rows:
        auroc, aupr, aurc = 100 * row["auroc"], 100 * row["aupr_error"], 1000 * row["aurc"]
        line = next(line for line in table.splitlines() if line.split()[:1] == [row["method"]])
        values = re.sub(r"\[.*?\]", "", line).split()[1:]
        assert values == [f"{auroc:.2f}", f"{aupr:.2f}", f"{aurc:.2f}"]
        assert f"[{100 * row['auroc_low']:.2f}, {100 * row['auroc_high']:.2f}]" in line
    assert table.endswith("report  runs/x/report.html")
    assert table.isascii() and max(map(len, table.splitlines())) < 80


def test_terminal_table_takes_rows_without_intervals_and_none():
    rows = [
        dict(row, auroc=None) | {f"{name}_low": math.nan for name in METRICS}
        for row in make_rows(make_predictions(("mcp",)))
    ]
    table = report.terminal_table(rows)
    assert table.splitlines()[-1].split()[:2] == ["mcp", "n/a"]
    assert "[" not in table


def test_methods_with_answers_of_their_own_stand_under_their_own_accuracy():
    rows = make_rows(make_predictions(("mcp",), errors=12))
    rows += make_rows(make_predictions(("mc_dropout",), errors=9))
    table = report.terminal_table(rows)
    assert table.index("12 errors") < table.index("mcp") < table.index("9 errors of 60")
    assert table.index("9 errors of 60") < table.index("mc_dropout")


# The page.


def test_page_holds_every_metric_of_every_row(run):
    _, rows, _, text = run
    tree = parse(text)
    exact = [float(value.get("value")) for value in tree.iter("data")]
    for row in rows:
        for name in METRICS:
            assert row[name] in exact
    found = tables(tree)
    for stage, title, errors in (("frozen", "frozen", 12), ("finetuned", "fine-tuned", 31)):
        who = f"fashion_mnist, seed 3, test: {title} classifier id-{stage}"
        head, *body = found[f"{who}: {errors} errors of 60, tau = 0.5"]
        of_stage = [row for row in rows if row["stage"] == stage]
        assert head == ["metric", *(row["method"] for row in of_stage)]
        assert len(body) == len(METRICS)
        for (name, metric), cells in zip(METRICS.items(), body, strict=True):
            assert cells[0].startswith(metric.title)
            assert cells[0].endswith("↑" if metric.higher_is_better else "↓")
            scale = 1000 if "×1000" in cells[0] else 100 if "%" in cells[0][-4:] else 1
            for row, cell in zip(of_stage, cells[1:], strict=True):
                numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", cell)]
                expected = [scale * row[name + end] for end in ("", "_low", "_high")]
                np.testing.assert_allclose(numbers, expected, atol=0.0051)


def test_page_says_what_the_paired_intervals_allow():
    base = make_rows(make_predictions(("mcp",)))[0]

    def row(method, value, low, high):
        ends = {"": value, "_low": low, "_high": high}
        return dict(base, method=method) | {
            f"{name}_minus_mcp{end}": x
            for name in ("auroc", "aupr_error", "aurc")
            for end, x in ends.items()
        }

    rows = [base, row("tcp", 0.02, 0.01, 0.03), row("btcp", 0.02, -0.01, 0.03)]
    found = tables(parse(report.page(rows)))
    caption = next(caption for caption in found if "difference to mcp" in caption)
    assert found[caption][1:] == [
        ["tcp", "+2.00 [+1.00, +3.00] better"]
        + ["+2.00 [+1.00, +3.00] better", "+20.00 [+10.00, +30.00] worse"],
        ["btcp", "+2.00 [-1.00, +3.00] not clear"]
        + ["+2.00 [-1.00, +3.00] not clear", "+20.00 [-10.00, +30.00] not clear"],
    ]


def test_page_puts_caveats_before_results_and_results_before_figures(run):
    text = words(parse(run[3]).find("body"))
    places = [
        text.index(word)
        for word in (
            "Failure prediction on fashion_mnist, seed 3",
            "this data is a part: 60 of <10,000> images",
            "The frozen classifier makes only 12 errors",
            "Right on 80.00 % of 60 test images, wrong on 12.",
            "Risk and coverage",
            "All metrics",
            "What the metrics mean",
        )
    ]
    assert places == sorted(places)
    assert "The fine-tuned classifier makes only" not in text


def test_page_needs_no_other_file(run):
    tree = parse(run[3])
    sources = [
        element.get(name)
        for element in tree.iter()
        for name in ("src", "href", "srcset", "poster", "action")
        if element.get(name)
    ]
    assert len(sources) == 7
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not {element.tag for element in tree.iter()} & {"script", "link", "iframe", "object"}
    style = tree.find("head/style").text
    assert "url(" not in style and "@import" not in style
    assert all(image.get("alt") for image in tree.iter("img"))


def test_page_keeps_wide_content_in_boxes_that_scroll(run):
    tree = parse(run[3])
    boxes = [box for box in tree.iter("div") if box.get("class") == "scroll"]
    for tag in ("table", "img"):
        assert len(list(tree.iter(tag))) == sum(len(list(box.iter(tag))) for box in boxes)
    assert all(box.get("tabindex") == "0" and box.get("aria-label") for box in boxes)
    viewport = next(meta for meta in tree.iter("meta") if meta.get("name") == "viewport")
    assert viewport.get("content").startswith("width=device-width")


def test_page_shows_names_of_users_as_text(run):
    _, _, predictions, text = run
    assert "<b>" not in text and "<here>" not in text
    p = predictions["finetuned"]
    found = tables(parse(text))
    head, *body = found["Wrong answers with the smallest u"]
    assert head == ["image", "true class", "predicted class", "u (btcp, fine-tuned)"]
    order = np.argsort(np.where(p.is_error, p.uncertainty["btcp"], 2), kind="stable")[:24]
    assert [line[:3] for line in body] == [
        [str(row), CLASSES[p.labels[row]], CLASSES[p.predicted[row]]] for row in order
    ]
    assert ["data_dir", "<here>"] in found["Settings of the run"]
    assert ["python", "3.11"] in found["Where it ran"]


def test_paper_cells_stand_beside_the_run_where_the_paper_has_them(run):
    _, rows, _, text = run
    caption, lines_ = next(
        (caption, lines_)
        for caption, lines_ in tables(parse(text)).items()
        if caption.startswith("Beside the paper") and "frozen" in caption
    )
    assert "12 errors of 60" in caption
    own = {row["method"]: row for row in rows if row["stage"] == "frozen"}
    for method, published in (
        ("mcp", ["60.63", "82.93", "7.87"]),
        ("btcp", ["81.09", "88.36", "0.20"]),
    ):
        cells = next(cells for cells in lines_ if cells[0] == method)
        assert [cells[2], cells[4], cells[7]] == published
        names = ("bacc", "auroc", "fpr", "fp_share")
        assert [cells[1], cells[3], cells[5], cells[6]] == [
            f"{100 * own[method][name]:.2f}" for name in names
        ]
    other = words(parse(report.page(make_rows(make_predictions(), dataset="digits"))))
    assert "paper's" not in other.split("What the metrics mean")[0]


# A whole run.


def test_run_report_writes_each_figure_as_png_and_pdf(run):
    folder = run[0]
    names = [
        "fpr_fnr_per_epoch",
        "most_confident_errors",
        "reliability",
        "risk_coverage",
        "roc",
        "uncertainty_histogram",
        "uncertainty_per_epoch",
    ]
    for ending, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        files = sorted((folder / "figures").glob(f"*.{ending}"))
        assert [file.stem for file in files] == names
        assert all(file.read_bytes().startswith(start) for file in files)
    assert not list(folder.rglob(".*"))


def test_run_report_is_drawn_again_alike_without_the_images(run):
    folder, rows, predictions, text = run
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    report.write_run_report(
        folder,
        rows,
        predictions,
        make_history(),
        class_names=CLASSES,
        settings={"gamma": "auto", "data_dir": "<here>"},
        environment={"python": "3.11"},
        notes=["this data is a part: 60 of <10,000> images"],
    )
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_images_of_other_errors_are_not_shown(tmp_path):
    path = tmp_path / "kept.npz"
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1)
    report._pixels(path, np.array([2, 0]), images)
    np.testing.assert_array_equal(report._pixels(path, np.array([2, 0]), None), images[[2, 0]])
    assert report._pixels(path, np.array([0, 2]), None) is None


@pytest.mark.parametrize(
    ("errors", "remark"),
    [
        (0, "makes no error: metrics that need errors are n/a"),
        (60, "is always wrong: metrics that need correct answers are n/a"),
    ],
)
@pytest.mark.filterwarnings("ignore:no .* among:RuntimeWarning")
def test_runs_without_errors_or_with_nothing_else_are_drawn(tmp_path, errors, remark):
    predictions = make_predictions(("mcp", "btcp"), errors=errors)
    rows = make_rows(predictions, dataset="digits")
    images = np.zeros((60, 3, 3, 1), np.uint8)
    path = report.write_run_report(
        tmp_path, rows, {"frozen": predictions}, make_history(("btcp",), epochs=1), images=images
    )
    tree = parse(path.read_text(encoding="utf-8"))
    assert remark in words(tree)
    who = "digits, seed 3, test: frozen classifier id-frozen"
    _, *body = tables(tree)[f"{who}, 95 % intervals in brackets"]
    assert [cells[1] for cells in body] == ["n/a", "n/a"]
    assert "nan" not in report.terminal_table(rows)
    assert len(list((tmp_path / "figures").glob("*.pdf"))) == 7


def test_import_waits_for_neither_tensorflow_nor_matplotlib():
    code = (
        "import sys, btcp_tf.report; "
        "print(sorted({'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
