"""Tables hold the rows they are given, to the last digit, under the right names."""

import math
import re

import numpy as np
import pytest

from btcp_tf.evaluation import seeds
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS
from btcp_tf.reporting import class_failures, other_images, tables, terminal
from btcp_tf.reporting.cells import (
    Cell,
    difference_cell,
    label,
    marked,
    ordered,
    printed_u,
    stage_label,
    value_cell,
    who,
    with_answers,
)
from btcp_tf.reporting.paper import PAPER


def make_row(method="mcp", **changes):
    """A row of one run whose metrics are all different numbers."""
    row = dict(
        dataset="fashion_mnist",
        seed=3,
        method=method,
        stage="frozen",
        classifier_id="abc",
        task="failure",
        split="test",
        ood="",
        n=200,
        errors=40,
        accuracy=0.8,
        tau=0.5,
        verdict="",
    )
    for place, name in enumerate({**METRICS, **OOD_METRICS}):
        value = 0.1 + 0.01 * place + 0.001 * len(method)
        row |= {name: value, f"{name}_low": value - 0.002, f"{name}_high": value + 0.003}
    return row | changes


def differ(row, value, low, high):
    """The row with differences to mcp, in auroc, aupr_error and aurc alike."""
    found = {
        f"{name}_minus_mcp{end}": x
        for name in ("auroc", "aupr_error", "aurc")
        for end, x in (("", value), ("_low", low), ("_high", high))
    }
    verdict = "better" if low > 0 else "worse" if high < 0 else "not distinguishable"
    return row | found | {"verdict": verdict}


def texts(table):
    return [[str(cell) for cell in line] for line in table.lines]


def test_labels_are_what_people_say():
    assert label("trust_score") == METHODS["trust_score"].title
    assert label("btcp_finetuned") == "BTCP fine-tuned"
    assert stage_label("finetuned") == "fine-tuned"
    assert stage_label("frozen") == "frozen"
    assert label("their_score") == marked("their_score") == "their_score"
    assert marked("mcp") == "MCP"
    assert marked("constant").endswith(" (control)")
    assert marked("tcp_oracle").endswith(" (control, uses labels)")


@pytest.mark.parametrize(
    ("u", "words"),
    [(0.0, "0.000"), (6.3e-5, "< 0.001"), (0.0123, "0.012"), (1.0, "1.000"), (-17.5, "-17.5")],
)
def test_u_is_printed_without_exponents(u, words):
    assert printed_u(u) == words


def test_a_value_shows_its_deviation_over_seeds_or_its_interval():
    one = value_cell(make_row(auroc=0.91, auroc_low=0.9, auroc_high=0.925), "auroc")
    assert str(one) == "91.00 [90.00, 92.50]" and one.exact == {"low": 0.9, "high": 0.925}
    many = value_cell(make_row(auroc=0.91, auroc_sd=0.0123), "auroc")
    assert str(many) == "91.00 ± 1.23" and many.exact == {"sd": 0.0123} and many.value == 0.91
    lone = make_row(auroc=math.nan, auroc_low=math.nan, auroc_sd=math.nan)
    assert str(value_cell(lone, "auroc")) == "n/a"


@pytest.mark.parametrize(
    ("low", "high", "auroc", "aurc"),
    [
        (0.01, 0.03, "better", "worse"),
        (-0.03, -0.01, "worse", "better"),
        (-0.01, 0.03, "not distinguishable", "not distinguishable"),
        (math.nan, 0.03, "", ""),
    ],
)
def test_a_difference_says_what_its_interval_allows(low, high, auroc, aurc):
    row = differ(make_row("btcp"), 0.01, low, high)
    assert difference_cell(row, "auroc").word == auroc
    assert difference_cell(row, "aurc").word == aurc


def test_rows_know_whose_answers_they_speak_of():
    rows = [
        make_row("mcp"),
        make_row("mc_dropout"),
        make_row("mc_dropout", classifier_id="abc-mc_dropout"),
        *(
            make_row(method, stage="finetuned", classifier_id=f"of-{tuned}")
            for tuned in ("btcp", "tcp")
            for method in ("mcp", tuned)
        ),
    ]
    found = with_answers(rows)
    assert [row["answers"] for row in found] == ["", "", "mc_dropout", "btcp", "btcp", "tcp", "tcp"]
    assert [who(row) for row in ordered(found)] == [
        "MCP",
        METHODS["mc_dropout"].title,
        f"{METHODS['mc_dropout'].title}, own answers",
        "MCP of the fine-tuned BTCP classifier",
        "BTCP fine-tuned",
        "MCP of the fine-tuned TCP classifier",
        "TCP fine-tuned",
    ]
    # Four MCP rows of one seed stay four rows over seeds.
    over = seeds.across_seeds(found)
    assert len(over) == len(rows)


def test_failure_table_has_every_number_and_the_papers():
    rows = with_answers([make_row("mcp"), make_row("btcp"), make_row("knn", bacc=math.nan)])
    table = tables.failure_table(rows)
    heads = list(table.columns)
    for row, line in zip(ordered(rows), table.lines, strict=True):
        cells = dict(zip(heads, line, strict=True))
        for name in ("bacc", "auroc", "fpr", "fp_share", "fnr", "tau", "accuracy"):
            value = cells[name].value
            assert value == row[name] or (math.isnan(value) and math.isnan(row[name]))
        assert cells["errors"].value == 40
        published = PAPER["fashion_mnist"].get(row["method"], (math.nan,) * 3)
        shown = [cells[name].value for name in ("paper_bacc", "paper_auc", "paper_fpr")]
        np.testing.assert_array_equal(shown, published)
        assert cells["paper_bacc"].paper and not cells["bacc"].paper
    part = tables.failure_table(rows, paper=False)
    assert not [name for name in part.columns if "paper" in name]
    assert len(part.lines[0]) == len(part.columns)


def test_difference_table_puts_the_best_first_and_leaves_out_mcp():
    rows = with_answers(
        [
            make_row("mcp"),
            differ(make_row("btcp"), -0.02, -0.03, -0.01),
            differ(make_row("doctor"), 0.01, 0.004, 0.02),
        ]
    )
    found = texts(tables.difference_table(rows))
    assert [line[0] for line in found] == [METHODS["doctor"].title, "BTCP"]
    assert found[0][1] == "+1.00 [+0.40, +2.00] better"
    assert found[1][3] == "-20.00 [-30.00, -10.00] better"


def test_ood_table_has_the_papers_cells_for_the_papers_pairs():
    row = make_row("btcp", task="ood", ood="mnist", n_ood=90)
    table = other_images.ood_table([row | {"answers": ""}], n_ood=90)
    cells = dict(zip(table.columns, table.lines[0], strict=True))
    assert cells["paper_acc"].value == 56.24 and cells["paper_au"].text == "0.4789"
    for name in OOD_METRICS:
        assert cells[name].value == row[name]
    other = other_images.ood_table([row | {"answers": "", "ood": "letters"}], n_ood=90)
    assert not [name for name in other.columns if "paper" in name]
    assert "letters (90 images)" in other.caption and "200 test images" in other.caption


def test_near_and_far_sets_are_in_order_of_hardness_for_mcp():
    rows = [
        make_row(method, task="ood", ood=ood, auroc=auroc)
        for ood, auroc in (("far", 0.99), ("near", 0.6))
        for method in ("mcp", "btcp")
    ]
    table = other_images.near_far_table(with_answers(rows))
    assert list(table.columns) == ["method", "near", "far"]
    assert [[cell.value for cell in line[1:]] for line in table.lines] == [[0.6, 0.99]] * 2


def test_shift_table_has_a_column_for_each_strength_and_the_accuracy():
    rows = [
        make_row(method, split=split, aurc=aurc, accuracy=0.9 - aurc)
        for split, aurc in (("test", 0.01), ("test:noise1", 0.02), ("test:noise2", 0.03))
        for method in ("mcp", "btcp")
    ]
    rows.append(make_row("mc_dropout", accuracy=0.89))
    table = other_images.shift_table(with_answers(rows), "aurc")
    assert list(table.columns.values()) == ["method", "test", "noise1", "noise2"]
    assert len(table.lines) == 3
    for line, expected in zip(
        table.lines, ([0.89, 0.88, 0.87], *[[0.01, 0.02, 0.03]] * 2), strict=True
    ):
        np.testing.assert_allclose([cell.value for cell in line[1:]], expected)
    assert table.lines[1][0] == "MCP: AURC ×1000"


def test_ablation_table_names_what_was_changed():
    base = [make_row("mcp"), make_row("btcp", bacc=0.6)]
    changed = [make_row("btcp", ablation="gamma=0", bacc=0.7)]
    table = tables.ablation_table(changed, base)
    assert [(line[0], line[1].value) for line in table.lines] == [
        ("MCP", base[0]["bacc"]),
        ("BTCP", 0.6),
        ("BTCP, gamma=0", 0.7),
    ]


def test_class_table_counts_the_failures_of_all_seeds():
    first = Predictions(
        labels=np.array([0, 0, 1, 1]),
        probs=None,
        predicted=np.array([0, 1, 1, 2]),
        uncertainty={"mcp": np.array([0.1, 0.4, 0.2, 0.9])},
    )
    second = Predictions(
        labels=np.array([0, 0, 1, 1]),
        probs=None,
        predicted=np.array([0, 1, 1, 1]),
        uncertainty={"mcp": np.array([0.3, 0.6, 0.2, 0.2])},
    )
    table = class_failures.class_table([first, second], ["zero", "one", "two"], "small")
    assert texts(table) == [
        ["zero", "4", "2", "50.00", "one (2)", "0.200", "0.500"],
        ["one", "4", "1", "25.00", "two (1)", "0.200", "0.900"],
    ]
    # No error of a class: nothing it is taken for.
    assert texts(class_failures.class_table([second], None, "small"))[1][3:] == [
        "0.00",
        "–",
        "0.200",
        "n/a",
    ]


def test_terminal_table_holds_the_test_set_alone_and_fits():
    rows = [
        make_row("mcp"),
        make_row("btcp"),
        make_row("relative_mahalanobis"),
        make_row("mcp", split="test:noise1", errors=77),
        make_row("mcp", task="ood", ood="mnist", errors=88),
        make_row("mc_dropout", classifier_id="abc-mc_dropout", errors=39),
    ]
    table = terminal.terminal_table(rows, {"report": "runs/x/report.html"})
    assert "accuracy 80.00 %, 40 errors of 200" in table
    assert "77 errors" not in table and "88 errors" not in table
    own = f"frozen classifier, own answers of {label('mc_dropout')}"
    assert f"fashion_mnist, seed 3, test: {own}" in table.splitlines()
    for row in rows[:3]:
        line = next(line for line in table.splitlines() if line.split()[:1] == [row["method"]])
        values = re.sub(r"\[.*?\]", "", line).split()[1:]
        auroc, aupr, aurc = 100 * row["auroc"], 100 * row["aupr_error"], 1000 * row["aurc"]
        assert values == [f"{auroc:.2f}", f"{aupr:.2f}", f"{aurc:.2f}"]
    assert table.endswith("report  runs/x/report.html")
    assert table.isascii() and max(map(len, table.splitlines())) < 80


def test_terminal_table_takes_old_rows_without_intervals():
    row = make_row("mcp", auroc=None) | {f"{name}_low": math.nan for name in METRICS}
    old = {name: x for name, x in row.items() if name not in ("task", "ood", "verdict")}
    table = terminal.terminal_table([old])
    assert table.splitlines()[-1].split()[:2] == ["mcp", "n/a"]
    assert "[" not in table


def test_study_terminal_table_shows_verdicts():
    rows = with_answers(
        [make_row("mcp"), differ(make_row("relative_mahalanobis"), -0.5, -0.6, -0.4)]
        + [
            make_row("mcp", stage="finetuned", classifier_id="t"),
            differ(make_row("btcp", stage="finetuned", classifier_id="t"), 0.1, -0.1, 0.2),
        ]
    )
    rows = [row | {"seed": seed} for seed in (0, 1) for row in rows]
    table = terminal.study_terminal_table(seeds.across_seeds(rows))
    assert table.isascii() and max(map(len, table.splitlines())) < 80
    assert table.splitlines()[0] == "fashion_mnist, 2 seeds"
    assert re.search(r"relative_mahalanobis .* -50\.00 .* worse$", table, re.MULTILINE)
    assert re.search(r"btcp\* .* \+10\.00 .* not distinguishable$", table, re.MULTILINE)


def test_cells_are_text_with_what_stands_beside():
    assert str(Cell("1.0", 1.0, "± 0.1", {"sd": 0.1}, "better")) == "1.0 ± 0.1 better"


def test_promises_say_what_came_of_them():
    def promise(**changes):
        row = dict(method="btcp", stage="finetuned", target=0.05, tau=0.25, n=500, accepted=400)
        row |= dict(errors=10, least_risk=None, test_coverage=0.78, test_risk=0.03)
        return row | dict(test_low=0.02, test_high=0.04) | changes

    rows = [
        promise(),
        promise(test_risk=0.06, test_low=0.04, test_high=0.08),
        promise(test_risk=0.09, test_low=0.07, test_high=0.12),
        promise(method="mcp", stage="frozen", tau=None, accepted=0, least_risk=0.071),
    ]
    table = tables.promise_table(rows)
    kept, chance, broken, none = [list(map(str, line)) for line in table.lines]
    assert kept == [
        "BTCP fine-tuned",
        "kept",
        "5%",
        "0.2500",
        "400 of 500, 10 wrong",
        "78.0%",
        "3.00% [2.00%, 4.00%]",
    ]
    # Second, where a phone shows it.
    assert chance[1] == "above it, perhaps by chance"
    assert broken[1] == "broken"
    assert none[:5] == ["MCP", "not achievable", "5%", "", "least: 7.1%"]
    assert all(len(line) == len(table.columns) for line in table.lines)
