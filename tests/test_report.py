"""Reports say what the rows say, stand on their own, and are drawn again from their files."""

import csv
import dataclasses
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import production
import pytest
from PIL import Image
from scipy.stats import binomtest

from btcp_tf import report, thresholds
from btcp_tf.decisions.decision_file import Decision
from btcp_tf.decisions.expected_errors import expected_errors
from btcp_tf.evaluation import results, seeds
from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.keys import CLASSIFIER, Predictor
from btcp_tf.evaluation.predictions import (
    Predictions,
    about_file,
    load_predictions,
    save_predictions,
)
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS
from btcp_tf.reporting import (
    cells,
    notes,
    pages,
    pictures,
    run_page,
    scores_page,
    study_page,
    terminal,
)
from btcp_tf.reporting.saved_run import SavedRun

CLASSES = ["<b>bold</b>", "a & b", "$x$ \\frac", "a class with a very long name indeed"]
SETTINGS = {"gamma": "auto", "max_train_images": "0", "max_test_images": "0", "data_dir": "<here>"}

TUNED = Predictor("btcp", "finetuned")


def make_predictions(methods=("mcp", "tcp", "btcp"), errors=12, n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.random.default_rng(99).integers(0, 4, n)  # One test set for all seeds.
    predicted = labels.copy()
    predicted[rng.permutation(n)[:errors]] += 1
    predicted %= 4
    columns = {
        name: np.minimum(rng.beta(1, 4, n) + 0.3 * place * (labels != predicted), 1)
        for place, name in enumerate(methods)
    }
    # Three errors that no method suspects.
    for u in columns.values():
        u[np.flatnonzero(labels != predicted)[:3]] = 0.01
    return Predictions(labels=labels, probs=None, predicted=predicted, uncertainty=columns)


def make_rows(predictions, stage="frozen", dataset="fashion_mnist", **changes):
    about = dict(
        dataset=dataset,
        seed=3,
        stage=stage,
        classifier_id=f"id-{stage}",
        split="test",
        tau=0.5,
        bootstrap_draws=20,
        bootstrap_seed=0,
    )
    return results.rows(predictions, **(about | changes))


def make_history(stages=("tcp", "btcp", "btcp_finetuned"), epochs=3):
    return [
        dict(
            stage=stage,
            epoch=epoch,
            u_mean=0.1 * place + 0.01 * epoch,
            u_std=0.2 * place + 0.02 * epoch,
            fpr=None if epoch == 1 else 0.1 * epoch,
            fnr=0.05 * epoch,
            fpr_best_tau=0.2 if stage == "tcp" else None,
            fnr_best_tau=0.1 if stage == "tcp" else None,
        )
        for place, stage in enumerate(stages)
        for epoch in range(1, epochs + 1)
    ]


def save_history(path, history):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(history[0]))
        writer.writeheader()
        writer.writerows(history)


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


def body(tree):
    return words(tree.find("body"))


# A run.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A drawn run of two classifiers: its folder, rows, predictions and page."""
    folder = tmp_path_factory.mktemp("run")
    predictions = {
        CLASSIFIER: make_predictions(),
        TUNED: make_predictions(("mcp", "btcp"), errors=31, seed=1),
    }
    rows = make_rows(predictions[CLASSIFIER])
    rows += make_rows(predictions[TUNED], "finetuned")
    history = make_history()
    notes = ["part: 60 of <10,000> images", "tcp: few errors", "btcp: few errors"]
    images = np.random.default_rng(0).integers(0, 256, (60, 5, 6, 3), dtype=np.uint8)
    path = run_page.write_run_report(
        folder,
        rows,
        predictions,
        history,
        images=images,
        class_names=CLASSES,
        settings=SETTINGS,
        environment={"python": "3.11"},
        notes=notes,
        saved_model="models/x/1",
    )
    # What a run leaves besides.
    results.save_rows(
        folder / "results.json",
        rows,
        {
            "settings": SETTINGS,
            "data": {"class_names": CLASSES},
            "notes": notes,
            "environment": {"python": "3.11"},
        },
    )
    save_predictions(folder / "predictions.npz", predictions[CLASSIFIER])
    save_predictions(folder / "predictions_btcp_finetuned.npz", predictions[TUNED])
    save_history(folder / "history.csv", history)
    (folder / "finished.json").write_text(json.dumps({"saved_model": "models/x/1"}))
    return folder, rows, predictions, path.read_text(encoding="utf-8")


def test_page_holds_every_metric_of_every_row(run):
    _, rows, _, text = run
    tree = parse(text)
    exact = [float(value.get("value")) for value in tree.iter("data")]
    for row in rows:
        for name in METRICS:
            assert row[name] in exact
    found = tables(tree)
    for stage, title, errors in (("frozen", "frozen", 12), ("finetuned", "fine-tuned", 31)):
        who = f"fashion_mnist, seed 3, test: {title} classifier id"
        head, *lines = found[f"{who}: {errors} errors of 60, tau = 0.5"]
        of_stage = [row for row in rows if row["stage"] == stage]
        assert head == ["metric", *(METHODS[row["method"]].title for row in of_stage)]
        assert len(lines) == len(METRICS)
        for (name, metric), printed in zip(METRICS.items(), lines, strict=True):
            assert printed[0].startswith(metric.title)
            assert printed[0].endswith("↑" if metric.higher_is_better else "↓")
            scale = 1000 if "×1000" in printed[0] else 100 if "%" in printed[0][-4:] else 1
            for row, cell in zip(of_stage, printed[1:], strict=True):
                numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", cell)]
                expected = [scale * row[name + end] for end in ("", "_low", "_high")]
                np.testing.assert_allclose(numbers, expected, atol=0.0051)


def test_page_answers_first_then_says_what_to_know_then_shows_what_to_look_at(run):
    text = words(parse(run[3]).find(".//main"))
    places = [
        text.index(word)
        for word in (
            "Which answers are wrong? fashion_mnist, seed 3",
            "Of 100 answers it accepts",
            "Serve models/x/1",
            "The frozen classifier makes only 12 errors",
            "part: 60 of <10,000> images",
            "tcp, btcp: few errors",
            "Highest u",
            "Right on 80.00 % of 60 test images, wrong on 12.",
            "Risk and coverage",
            "All metrics",
            "What the metrics mean",
        )
    ]
    assert places == sorted(places)
    assert "The fine-tuned classifier makes only" not in text


def test_page_calls_stages_by_one_word(run):
    shown = body(parse(run[3]))
    assert "btcp_finetuned" not in shown
    assert "BTCP fine-tuned" in shown


def test_page_shows_names_of_users_as_text(run):
    _, _, predictions, text = run
    assert "<b>bold" not in text and "<here>" not in text
    p = predictions[TUNED]
    found = tables(parse(text))
    head, *lines = found["Most confident errors"]
    assert head == ["image", "true class", "predicted class", "u (BTCP, BTCP fine-tuned)"]
    checked = set(np.argsort(-p.uncertainty["btcp"], kind="stable")[:24].tolist())
    order = np.argsort(np.where(p.is_error, p.uncertainty["btcp"], 2), kind="stable")
    order = [row for row in order if p.is_error[row] and row not in checked][:24]
    assert [line[:3] for line in lines] == [
        [str(row), CLASSES[p.labels[row]], CLASSES[p.predicted[row]]] for row in order
    ]
    assert ["data_dir", "<here>"] in found["Settings of the run"]
    assert ["python", "3.11"] in found["Where it ran"]
    trusted = {line[0] for line in found["Errors that every method trusts"][1:]}
    assert trusted == {
        str(row)
        for row in np.flatnonzero(p.is_error)
        if all((u <= u[row]).mean() <= 0.5 for u in p.uncertainty.values())
    }
    assert 3 <= len(trusted) < p.is_error.sum()


def test_paper_cells_stand_beside_the_run_where_the_paper_has_them(run):
    _, rows, predictions, text = run
    caption, lines = next(
        (caption, lines)
        for caption, lines in tables(parse(text)).items()
        if caption.startswith("Beside the paper") and "frozen" in caption
    )
    assert "12 errors of 60" in caption
    own = {row["method"]: row for row in rows if row["stage"] == "frozen"}
    for method, published in (
        ("mcp", ["60.63", "82.93", "7.87"]),
        ("btcp", ["81.09", "88.36", "0.20"]),
    ):
        cells = next(cells for cells in lines if cells[0] == METHODS[method].title)
        assert [cells[2], cells[4], cells[7]] == published
        names = ("bacc", "auroc", "fpr", "fp_share")
        assert [re.sub(r" \[.*", "", cells[place]) for place in (1, 3, 5, 6)] == [
            f"{100 * own[method][name]:.2f}" for name in names
        ]


@pytest.mark.parametrize(
    ("dataset", "settings", "words_"),
    [
        ("digits", {}, None),
        ("fashion_mnist", {"max_train_images": "500"}, "The paper's cells are left out"),
        ("fashion_mnist", {"max_test_images": 5}, "The paper's cells are left out"),
    ],
)
def test_paper_cells_are_left_out_where_they_do_not_belong(
    undrawn, tmp_path, dataset, settings, words_
):
    predictions = {CLASSIFIER: make_predictions(("mcp",))}
    rows = make_rows(predictions[CLASSIFIER], dataset=dataset)
    page = run_page.write_run_report(tmp_path, rows, predictions, settings=settings)
    tree = parse(page.read_text(encoding="utf-8"))
    assert not [caption for caption in tables(tree) if "Beside the paper" in caption]
    assert (words_ or "What the metrics mean") in body(tree)


def test_run_report_writes_each_figure_as_png_and_pdf(run):
    folder = run[0]
    names = [
        "fpr_fnr_per_epoch",
        "likely_label_errors",
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


def test_a_run_is_drawn_again_alike_without_images(run, capsys):
    folder = run[0]
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert report.main([str(folder)]) == 0
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    shown = capsys.readouterr().out
    assert "accuracy 80.00 %, 12 errors of 60" in shown
    assert f"report    {folder / 'report.html'}" in shown


def test_a_run_is_drawn_again_elsewhere(undrawn, run, tmp_path):
    folder = run[0]
    assert report.main([str(folder), f"--output_dir={tmp_path}"]) == 0
    again = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert body(parse(again)) == body(parse(run[3]))
    assert not (tmp_path / "results.json").exists()
    names = sorted(path.name for path in (folder / "figures").iterdir())
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == names


def test_what_becomes_of_the_export_is_written_into_the_page(undrawn, run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    assert run_page.replace_saved_model(folder, "not exported: <no> room")
    said = body(parse((folder / "report.html").read_text(encoding="utf-8")))
    assert "There is no SavedModel to serve: not exported: <no> room." in said
    assert "models/x/1" not in said
    assert run_page.replace_saved_model(folder, "models/x/1")
    assert (folder / "report.html").read_text(encoding="utf-8") == run[3]


def test_the_closing_screen_says_what_the_page_says(run):
    folder, _, _, text = run
    told = run_page.closing_screen(folder, "models/x/1")
    tree = parse(text)
    for value in tree.find(".//ul[@class='figures']").iter("b"):
        assert value.text in told
    sentence = words(tree.find(".//p[@class='answer']"))
    assert sentence in " ".join(told.split())
    assert "part: 60 of <10,000> images" in told and "few errors" not in told
    assert "1 note about training" in told
    assert told.splitlines()[-1] == "SavedModel  models/x/1"


def test_the_gallery_shows_what_the_exported_u_says(run):
    _, _, predictions, text = run
    p = predictions[TUNED]
    u = p.uncertainty["btcp"]
    tree = parse(text)
    cards = [card for card in tree.iter("li") if (card.get("class") or "").startswith("card")]
    rows = [int(card.get("id").removeprefix("answer-")) for card in cards]
    assert len(set(rows)) == len(rows) and rows[0] == u.argmax()
    for card, row in zip(cards, rows, strict=True):
        assert card.get("data-truth") == ("wrong" if p.is_error[row] else "right")
        assert card.get("data-accept") == ("accepted" if u[row] < 0.5 else "handed-over")
        assert CLASSES[p.predicted[row]] in words(card)
        assert card.find("img").get("src").startswith("data:image/png")


def test_a_run_of_an_earlier_version_is_drawn_again_with_the_pictures_it_has(
    undrawn, run, tmp_path
):
    folder = shutil.copytree(run[0], tmp_path / "run")
    # That version kept the pictures of its two sheets, by these names.
    figures = folder / "figures"
    (figures / "gallery.npz").rename(figures / "most_confident_errors.npz")
    (figures / "errors.npz").rename(figures / "likely_label_errors.npz")
    assert report.main([str(folder)]) == 0
    tree = parse((folder / "report.html").read_text(encoding="utf-8"))
    with np.load(folder / "figures" / "most_confident_errors.npz") as saved:
        kept = set(saved["rows"].tolist())
    with np.load(folder / "figures" / "likely_label_errors.npz") as saved:
        kept |= set(saved["rows"].tolist())
    cards = [card for card in tree.iter("li") if (card.get("class") or "").startswith("card")]
    with_picture = {int(c.get("id")[7:]) for c in cards if c.find("img") is not None}
    assert with_picture == {int(c.get("id")[7:]) for c in cards} & kept and with_picture


def test_why_an_answer_has_its_u_and_where_its_file_is(undrawn, tmp_path):
    p = make_predictions(("mcp", "residual"), errors=20)
    values = np.zeros((60, 2), np.float32)
    values[:, 0], values[:, 1] = 2.5, -0.4
    (tmp_path / "a").mkdir()
    about = dict(
        images=np.zeros((60, 3, 3, 1), np.uint8),
        files=np.array([str(tmp_path / "a" / f"{row} &.png") for row in range(60)]),
        explanations=Explanations("residual", ("neighbors", "answer"), values),
        decision=Decision(thresholds.DEFAULT, CLASSIFIER, "residual", p),
    )
    page = run_page.write_run_report(tmp_path / "run", make_rows(p), {CLASSIFIER: p}, **about)
    tree = parse(page.read_text(encoding="utf-8"))
    card = next(c for c in tree.iter("li") if (c.get("class") or "").startswith("card"))
    row = card.get("id").removeprefix("answer-")
    assert card.find(".//a").get("href") == (tmp_path / "a" / f"{row} &.png").as_uri()
    assert card.find(".//a").text == f"a/{row} &.png"
    why = [words(reason) for reason in card.find(".//ul[@class='why']")]
    assert len(why) == 2 and why[0].endswith("disagree: +2.5") and why[1].endswith("-0.4")
    # Of another method's u they say nothing.
    about["explanations"] = dataclasses.replace(about["explanations"], method="mcp")
    page = run_page.write_run_report(tmp_path / "run", make_rows(p), {CLASSIFIER: p}, **about)
    assert 'class="why"' not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("errors", "remark"),
    [
        (0, "has no wrong answers: BACC, AUROC, FPR, AUPR-error, FPR95 are not defined (n/a)"),
        (60, "has no right answers: BACC, AUROC, FNR, AUPR-success, FPR95 are not defined (n/a)"),
    ],
)
@pytest.mark.filterwarnings("ignore:no .* among:RuntimeWarning")
def test_runs_without_errors_or_with_nothing_else_are_drawn(undrawn, tmp_path, errors, remark):
    predictions = make_predictions(("mcp", "btcp"), errors=errors)
    rows = make_rows(predictions, dataset="digits")
    images = np.zeros((60, 3, 3, 1), np.uint8)
    path = run_page.write_run_report(
        tmp_path, rows, {CLASSIFIER: predictions}, make_history(("btcp",), epochs=1), images=images
    )
    tree = parse(path.read_text(encoding="utf-8"))
    assert remark in words(tree)
    who = "digits, seed 3, test: frozen classifier id"
    _, *lines = tables(tree)[f"{who}, 95 % intervals in brackets"]
    assert [cells[1] for cells in lines] == ["n/a", "n/a"]
    assert "nan" not in terminal.terminal_table(rows)


def test_notes_that_say_the_same_become_one():
    given = ["tcp: few", "a part of: x", "btcp: few", "btcp: other", "tcp: few"]
    assert notes.merge_notes(given) == ["tcp, btcp: few", "a part of: x", "btcp: other"]


# A study.

METHODS_HERE = ("mcp", "mc_dropout", "tcp", "thresholding", "btcp", "doctor", "mcp_cubed")


def make_study(folder, dataset="fashion_mnist", best="doctor", limit="0"):
    """A study of two seeds: mcp is noise, `best` finds the errors, btcp is worse than noise."""
    rows, settings = [], {}
    for seed in (0, 1):
        cell = f"{dataset}-seed{seed}"
        # Alike, since two seeds that differ prove nothing; every second error is another one.
        p = make_predictions(METHODS_HERE, errors=40, n=400)
        other = p.is_error & (np.arange(400) % 2 == 1)
        p = dataclasses.replace(p, predicted=(p.predicted + seed * other) % 4)
        rng = np.random.default_rng(0)
        pushes = (0.05, 0.0, 0.05, 0.05, -0.15, 0.05, 0.05)
        columns = {
            name: np.clip(0.4 + push * p.is_error + 0.2 * rng.random(400) + 0.001 * seed, 0, 1)
            for name, push in zip(METHODS_HERE, pushes, strict=True)
        }
        if best:
            columns[best] = columns["mcp"] + 0.3 * p.is_error
        for u in columns.values():
            u[np.flatnonzero(p.is_error)[:4]] = 0.05  # Errors that no method suspects.
        p = dataclasses.replace(p, uncertainty=columns)
        place = dict(dataset=dataset, seed=seed, classifier_id=f"c{seed}")
        found = make_rows(p, **place)
        found += make_rows(
            dataclasses.replace(p, uncertainty={"mc_dropout": columns["mc_dropout"]}),
            **place | {"classifier_id": f"c{seed}-mc_dropout"},
        )
        tuned = make_predictions(("mcp", "btcp"), errors=38, n=400, seed=seed + 7)
        found += make_rows(tuned, "finetuned", **place | {"classifier_id": f"t{seed}"})
        ood = Predictions(
            None, None, np.zeros(50, int), {name: u[:50] ** 0.5 for name, u in columns.items()}
        )
        found += results.ood_rows(
            p,
            ood,
            ood_name="mnist",
            stage="frozen",
            tau=0.5,
            bootstrap_draws=20,
            bootstrap_seed=0,
            **place,
        )
        found += make_rows(p, **place | {"split": "test:noise1"})
        rows += [row | {"ablation": "", "cell": cell} for row in found]
        settings[cell] = {"gamma": "auto", "seed": str(seed), "max_train_images": limit}
        (folder / cell).mkdir()
        save_predictions(folder / cell / "predictions.npz", p)
        save_predictions(folder / cell / "predictions_btcp_finetuned.npz", tuned)
        save_predictions(folder / cell / "predictions_ood_mnist.npz", ood)
        save_history(folder / cell / "history.csv", make_history())
    changed = make_rows(make_predictions(("btcp",), 40, 400), **place | {"classifier_id": "c0"})
    rows += [row | {"ablation": "gamma=0", "cell": f"ablation/{dataset}"} for row in changed]
    extra = {
        "cells": settings,
        "data": {dataset: {"class_names": CLASSES, "note": ""}},
        "notes": {
            "tcp: few errors": list(settings),
            "only here": [cell],
            # One sentence, not one for each seed.
            "btcp: wrong on only 1,340 images, tau 0.5": list(settings)[:1],
            "btcp: wrong on only 1,012 images, tau 0.5": list(settings)[1:],
        },
        "environment": {"python": "3.11"},
        "failed": {"mnist-seed0": "no data"},
        "command": ["python -m btcp_tf.study", f"--dataset={dataset}"],
    }
    results.save_rows(folder / "results.json", rows, extra)
    return rows


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study's folder, its rows over seeds, and its page."""
    folder = tmp_path_factory.mktemp("study")
    rows = make_study(folder)
    page = study_page.write_study_report(folder)
    plain = [row for row in rows if not row["ablation"]]
    over = seeds.across_seeds(cells.with_answers(plain))
    return folder, over, page.read_text(encoding="utf-8")


def find(rows, method, task="failure", answers="", split="test"):
    (row,) = (
        row
        for row in rows
        if (row["method"], row["task"], row["answers"], row["split"])
        == (method, task, answers, split)
    )
    return row


def test_study_says_first_which_method_to_use_and_how_sure_it_is(study):
    _, rows, text = study
    first = next(
        section
        for section in parse(text).iter("section")
        if words(section).startswith("Which method to use")
    )
    said = words(first)
    best, btcp, mcp = (find(rows, name) for name in ("doctor", "btcp", "mcp"))
    assert best["verdict"] == "better" and btcp["verdict"] == "worse"

    def difference(row, name, scale):
        value, low, high = (scale * row[f"{name}_minus_mcp{end}"] for end in ("", "_low", "_high"))
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}] {row['verdict']}"

    title = METHODS["doctor"].title
    assert f"Use {title}. It ranks the errors better than MCP: AUROC " in said
    assert f"AUROC {difference(best, 'auroc', 100)}" in said
    assert "BTCP does not beat MCP: it ranks errors worse" in said
    assert f"AUROC {difference(btcp, 'auroc', 100)}" in said
    assert f"its BACC is {100 * btcp['bacc']:.2f} %" in said
    assert "2 seeds, 400 test images" in said and "right: 40 errors each" in said
    # thresholding, the control and mcp itself are no choice.
    count = [find(rows, m)["verdict"] for m in ("mc_dropout", "tcp", "btcp", "doctor")]
    assert (
        f"with paired 95 % intervals: {count.count('better')} better, "
        f"{count.count('not distinguishable')} not distinguishable, {count.count('worse')} worse."
    ) in said
    assert f"{100 * mcp['auroc']:.2f} %" in said
    tuned = find(rows, "btcp", answers="btcp")
    beats = "beats" if tuned["verdict"] == "better" else "does not beat"
    assert f"BTCP fine-tuned {beats} MCP of the fine-tuned BTCP classifier" in said


def test_the_next_command_of_a_study_has_the_data_of_its_runs(undrawn, tmp_path):
    make_study(tmp_path)
    rows, extra = results.load_rows(tmp_path / "results.json")
    own = {"dataset": "npz", "data_dir": "/data/my x-rays.npz"}
    extra["cells"] = {row.get("cell", f"{row['dataset']}-seed{row['seed']}"): own for row in rows}
    said = body(parse(study_page.write_study_report(tmp_path, rows, extra).read_text("utf-8")))
    assert "--dataset=npz --data_dir='/data/my x-rays.npz' --method=mcp,doctor" in said


def test_study_recommends_mcp_where_nothing_is_better(undrawn, tmp_path):
    make_study(tmp_path, best="")
    rows, extra = results.load_rows(tmp_path / "results.json")
    for row in rows:
        if row["method"] != "btcp" and row["task"] == "failure":
            row |= {f"auroc_minus_mcp{end}": x for end, x in (("_low", -0.1), ("_high", 0.1))}
    page = study_page.write_study_report(tmp_path, rows, extra)
    said = body(parse(page.read_text(encoding="utf-8")))
    assert "Use MCP. No other method is shown to rank the errors better. Methods" in said
    assert "intervals: 0 better, 3 not distinguishable, 1 worse." in said


def test_study_recommends_no_method_by_few_errors(undrawn, tmp_path):
    make_study(tmp_path)
    rows, extra = results.load_rows(tmp_path / "results.json")
    for row in rows:
        row["errors"] = 29 + (row["seed"] == 1)  # The seed with the fewest counts.
    page = study_page.write_study_report(tmp_path, rows, extra)
    said = body(parse(page.read_text(encoding="utf-8")))
    assert "Fewer than 30 errors cannot choose a method. Without more data take MCP" in said
    assert "worse. With so few errors these intervals are uncertain themselves." in said
    assert "Use " not in said


def test_study_says_what_many_passes_cost_and_what_is_best_without(undrawn, tmp_path):
    make_study(tmp_path, best="mc_dropout")
    said = body(parse(study_page.write_study_report(tmp_path).read_text(encoding="utf-8")))
    assert f"Use {METHODS['mc_dropout'].title}." in said
    assert (
        "It takes many passes or classifiers for each answer; of those that take one, none" in said
    )


def test_study_shows_what_looks_cost_beside_what_they_gain(undrawn, tmp_path):
    make_study(tmp_path)
    rows, extra = results.load_rows(tmp_path / "results.json")
    for row in rows:
        row["method"] = {"doctor": "residual_looks"}.get(row["method"], row["method"])
    for settings in extra["cells"].values():
        settings["mc_passes"] = "20"
    names = [*extra["cells"]]
    costs = {name: {"residual_looks": 1.2 + 0.2 * n} for n, name in enumerate(names)}
    title = "What a better ranking costs: fashion_mnist"
    page = study_page.write_study_report(tmp_path, rows, extra | {"costs": costs})
    text = page.read_text(encoding="utf-8")
    assert title in body(parse(text))
    plain = seeds.across_seeds(cells.with_answers(r for r in rows if not r["ablation"]))
    found = {row["method"]: row for row in cells.only(plain) if not row["answers"]}
    # The mean of the runs; of the same answers, not of those of MC dropout itself.
    for name, label, cost in (
        ("mcp", "MCP", "1"),
        ("residual_looks", "Residual, looks", "1.3"),
        ("mc_dropout", "MC dropout", "20"),
    ):
        value = f"{1000 * found[name]['aurc']:.2f}"
        assert re.search(rf"{label} {value} \S+ [^;]*at {cost}\b", text), name
    for known in ({}, {names[0]: costs[names[0]]}):
        page = study_page.write_study_report(tmp_path, rows, extra | {"costs": known})
        assert title not in page.read_text(encoding="utf-8")


def test_study_tables_hold_the_rows(study):
    folder, rows, text = study
    exact = {float(value.get("value")) for value in parse(text).iter("data")}
    for row in rows:
        if row["split"] == "test" and row["task"] == "failure":
            assert {row[name] for name in METRICS if not math.isnan(row[name])} <= exact
    with open(folder / "tables" / "failure_fashion_mnist.csv", encoding="utf-8") as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    btcp, own = lines["BTCP"], lines[f"{METHODS['mc_dropout'].title}, own answers"]
    row = find(rows, "btcp")
    assert float(btcp["bacc"]) == row["bacc"] and float(btcp["bacc_sd"]) == row["bacc_sd"]
    assert float(btcp["paper_bacc"]) == 81.09 and float(btcp["errors"]) == 40
    assert float(own["auroc"]) == find(rows, "mc_dropout", answers="mc_dropout")["auroc"]
    assert set(lines) >= {"MCP of the fine-tuned BTCP classifier", "BTCP fine-tuned"}
    assert any("control" in name for name in lines)
    with open(folder / "tables" / "ood_fashion_mnist_mnist.csv", encoding="utf-8") as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    row = find(rows, "btcp", task="ood")
    assert float(lines["BTCP"]["ood_au"]) == row["ood_au"]
    assert float(lines["BTCP"]["paper_acc"]) == 56.24
    for name in ("difference", "ranking", "metrics", "classes", "shift_aurc", "ablation"):
        assert (folder / "tables" / f"{name}_fashion_mnist.csv").exists()
        assert (folder / "tables" / f"{name}_fashion_mnist.tex").exists()
    assert (folder / "tables" / "joint_fashion_mnist_mnist.csv").exists()


def test_study_markdown_has_what_the_page_has(study):
    folder, _, text = study
    found = (folder / "report.md").read_text(encoding="utf-8")
    tree = parse(text)
    headings = [words(h) for section in tree.iter("section") for h in section.iter("h2")]
    assert headings.pop(0) == "What to know"
    assert re.findall(r"^## (.*)$", found, re.MULTILINE) == headings
    for name in re.findall(r"\]\((figures/[^)]*)\)", found):
        assert (folder / name).exists()
    assert found.count("](figures/") == len(list(parse(text).iter("img")))


def test_study_says_what_failed_and_how_it_was_made(study):
    shown = body(parse(study[2]))
    for said in (
        "mnist-seed0 failed: no data",
        "tcp: few errors",
        "only here (fashion_mnist-seed1)",
        "Command: python -m btcp_tf.study --dataset=fashion_mnist",
        "2 seeds: one difference is all that is known of the spread",
        "btcp: wrong on only 1,012 to 1,340 images, tau 0.5",
    ):
        assert said in shown
    assert re.search(r"Hash of all settings: [0-9a-f]{12}\.", shown)
    found = tables(parse(study[2]))
    assert ["gamma", "auto"] in found["Settings of all runs"]
    assert ["fashion_mnist-seed1: seed", "1"] in found["Settings that differ between runs"]


def test_study_draws_the_papers_figures(study):
    names = {path.stem for path in (study[0] / "figures").glob("*.pdf")}
    assert names == {
        "mean_ranks",
        *(
            f"{name}_fashion_mnist"
            for name in (
                "ablation",
                "confidence",
                "rates_per_epoch",
                "risk_coverage",
                "shift",
                "uncertainty_histogram",
                "uncertainty_per_epoch",
            )
        ),
    }


def cards_of(tree):
    return [card for card in tree.iter("li") if (card.get("class") or "").startswith("card")]


def test_study_shows_the_wrong_answers_of_its_best_method(study):
    folder, rows, text = study
    first, second = (
        load_predictions(folder / f"fashion_mnist-seed{k}" / "predictions.npz") for k in (0, 1)
    )
    tree, u = parse(text), first.uncertainty["doctor"]
    tau = find(rows, "doctor")["tau"]
    shown: dict[str, list[int]] = {}
    for card in cards_of(tree):
        row = int(card.get("id").removeprefix("answer-fashion-mnist-"))
        shown.setdefault(card.get("data-kind"), []).append(row)
        said = words(card)
        assert first.is_error[row] and CLASSES[first.predicted[row]] in said
        assert card.get("data-accept") == ("accepted" if u[row] < tau else "handed-over")
        count = 1 + int(second.predicted[row] == first.predicted[row])
        assert f"the same in {count} of 2 seeds" in said
    assert [*shown] == ["unsuspected", "trusted", "caught"]
    others = set(np.flatnonzero(first.is_error).tolist()) - set(shown["unsuspected"])
    by_u = sorted(others, key=lambda row: u[row])
    assert shown["trusted"] == by_u[:12] and shown["caught"] == by_u[::-1][:12]
    assert len(shown["unsuspected"]) >= 4
    # No other class of answers is there to choose.
    filters = {select.get("data-filter") for select in tree.iter("select")}
    assert filters == {"kind", "accept", "class"}


def test_study_shows_the_pictures_that_its_runs_keep_for_any_method(undrawn, tmp_path):
    make_study(tmp_path)
    cell = tmp_path / "fashion_mnist-seed0"
    p = load_predictions(cell / "predictions.npz")
    images = np.random.default_rng(0).integers(0, 256, (400, 3, 2, 1), np.uint8)
    files = np.array([str(tmp_path / "a" / f"{row}.png") for row in range(400)])
    # The run's own gallery is about another method than the study's.
    decision = Decision(thresholds.DEFAULT, CLASSIFIER, "btcp", p)
    run_page.write_run_report(
        cell, make_rows(p), {CLASSIFIER: p}, images=images, files=files, decision=decision
    )
    cards = cards_of(parse(study_page.write_study_report(tmp_path).read_text(encoding="utf-8")))
    assert len(cards) >= 24
    for card in cards:
        row = int(card.get("id").rpartition("-")[2])
        assert card.find("img").get("src") == pictures.data_uri(images[row])
        assert card.find(".//a").get("href") == (tmp_path / "a" / f"{row}.png").as_uri()


def test_study_without_files_of_its_runs_still_has_its_tables(undrawn, study, tmp_path):
    rows, extra = results.load_rows(study[0] / "results.json")
    page = study_page.write_study_report(tmp_path, rows, extra)
    found = tables(parse(page.read_text(encoding="utf-8")))
    assert any(caption.startswith("Failure prediction") for caption in found)
    assert not any(caption.startswith("Failures per class") for caption in found)


def test_study_of_a_part_of_the_data_has_no_paper_cells(undrawn, tmp_path):
    make_study(tmp_path, limit="200")
    study_page.write_study_report(tmp_path)
    assert "paper" not in (tmp_path / "tables" / "failure_fashion_mnist.tex").read_text()
    assert "The paper's cells are left out" in (tmp_path / "report.md").read_text()


def test_a_study_is_drawn_again_alike(study, capsys):
    folder = study[0]
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert report.main([str(folder)]) == 0
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    shown = capsys.readouterr().out
    assert re.search(r"^  btcp .* worse$", shown, re.MULTILINE)
    assert str(folder / "report.md") in shown


# Anyone's scores.


def write_csv(path, predictions):
    names = list(predictions.uncertainty)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["labels", "predicted", *names])
        columns = [predictions.uncertainty[name].tolist() for name in names]
        writer.writerows(
            zip(predictions.labels.tolist(), predictions.predicted.tolist(), *columns, strict=True)
        )


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_scores_of_any_program_get_the_same_tables(undrawn, tmp_path, capsys, ending):
    predictions = make_predictions(("theirs", "mcp"), errors=12)
    columns = {**predictions.uncertainty, "confidence": 1 - predictions.uncertainty["mcp"]}
    given = dataclasses.replace(predictions, uncertainty=columns)
    path = tmp_path / f"scores.{ending}"
    if ending == "csv":
        write_csv(path, given)
    else:
        save_predictions(path, given)
    options = ["--reverse=confidence", "--tau=0.4", "--bootstrap_draws=30", "--seed=5"]
    assert report.main([str(path), *options]) == 0
    folder = tmp_path / f"scores.{ending}-report"
    rows, extra = results.load_rows(folder / "results.json")
    assert [row["method"] for row in rows] == ["theirs", "mcp", "confidence"]
    assert rows[1]["auroc"] == pytest.approx(rows[2]["auroc"])
    assert rows[0]["tau"] == 0.4 and extra["settings"]["bootstrap_draws"] == 30
    assert rows[1]["bacc"] == pytest.approx(rows[2]["bacc"])
    tree = parse((folder / "report.html").read_text(encoding="utf-8"))
    exact = {float(value.get("value")) for value in tree.iter("data")}
    assert {row[name] for row in rows for name in METRICS if not math.isnan(row[name])} <= exact
    for name in ("report.md", "tables/headline_given_scores.csv", "tables/classes_scores.tex"):
        assert (folder / name).exists()
    shown = capsys.readouterr().out
    assert shown.startswith("scores\n  accuracy 80.00 %, 12 errors of 60\n")
    assert str(folder / "report.html") in shown


def test_columns_that_are_no_uncertainty_are_left_out_and_told(undrawn, tmp_path, capfd):
    p = make_predictions(("theirs",), errors=12)
    lines = ["id,labels,predicted,theirs,age,comment"]
    lines += [
        f"{row},{p.labels[row]}.0,{p.predicted[row]},{p.uncertainty['theirs'][row]},{row},nan"
        for row in range(60)
    ]
    lines[3] = lines[3].replace(",2,nan", ",,blurred")
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines) + "\n")
    tree, printed, rows, extra = reported(path, capfd)
    assert [row["method"] for row in rows] == ["theirs"]
    for place in (printed, body(tree), " ".join(extra["notes"])):
        assert "Left out: age: expected a finite number, received none in line 4;" in place
        assert "--columns names those that count." in place
    _, printed, rows, extra = reported(path, capfd, "--columns=id,theirs")
    assert [row["method"] for row in rows] == ["id", "theirs"] and "Left out" not in printed
    assert extra["settings"]["columns"] == "id,theirs"


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_a_report_by_group_counts_and_chooses_in_each(undrawn, tmp_path, capfd, ending):
    rng = np.random.default_rng(0)
    u, sites = rng.random(900), np.array(["north", "south", "west"])[np.arange(900) % 3]
    sites[:3] = "east"
    predicted = rng.integers(0, 3, 900)
    labels = np.where(rng.random(900) < u**3, (predicted + 1) % 3, predicted)
    path = tmp_path / f"scores.{ending}"
    if ending == "npz":
        np.savez(path, labels=labels, predicted=predicted, mine=u, site=sites)
    else:
        lines = zip(labels, predicted, u.tolist(), sites, strict=True)
        rows = "".join(",".join(map(str, line)) + "\n" for line in lines)
        path.write_text("labels,predicted,mine,site\n" + rows)
    is_error = labels != predicted
    for name, groups in (("site", sites), ("predicted", predicted)):
        words = (f"--by={name}", "--risk=0.1", "--delta=0.1", "--tau=0.4")
        tree, _, _, extra = reported(path, capfd, *words)
        found = extra["groups"]
        assert found["column"] == name and found["outcomes"].keys() == set(map(str, groups))
        chosen = thresholds.target_risk_by_group(is_error, u, groups, risk=0.1, delta=0.1)
        for group, threshold in chosen.items():
            own = groups == group
            outcome = found["outcomes"][str(group)]
            accepted = own & (u < 0.4)
            assert (outcome["n"], outcome["accepted"]) == (own.sum(), accepted.sum())
            assert outcome["errors"] == (accepted & is_error).sum()
            assert found["thresholds"][str(group)] == dataclasses.asdict(threshold)
        shown = tables(tree)
        (lines,) = (lines for title, lines in shown.items() if "threshold for each group" in title)
        assert [line[0] for line in lines[1:]] == [str(group) for group in chosen]
    assert "thresholds" not in reported(path, capfd, "--by=site")[3]["groups"]


@pytest.mark.parametrize("ending", production.WRITERS)
def test_errors_are_expected_among_answers_without_a_label(undrawn, tmp_path, capfd, ending):
    p = production.answers(900, seed=2)
    rows = production.rows_of(p, labels=True, broken=(4,))
    for row in rows[600:]:
        row["labels"] = None
    path = production.WRITERS[ending](tmp_path / f"s{ending}", rows)
    tree, printed, _, extra = reported(path, capfd)
    kept, u = np.delete(np.arange(600), 4), p.uncertainty["uncertainty"].astype(float)
    expected = expected_errors(u[600:], (p.is_error[kept], u[kept]))
    assert extra["expected"] == expected._asdict()
    for place in (printed, body(tree)):
        assert "of these 300 answers are expected to be wrong (95 % interval)" in place
    # Where all rows have one, nothing is expected.
    path = production.WRITERS[ending](tmp_path / f"t{ending}", rows[:600])
    assert "expected" not in reported(path, capfd)[3]


def test_scores_of_a_folder_link_to_its_files(undrawn, tmp_path):
    p = make_predictions(("mcp",), errors=12)
    lines = ["input,predicted,uncertainty,problem,labels"]
    lines += [
        f"a/{row} #.png,{p.predicted[row]},{p.uncertainty['mcp'][row]},,{p.labels[row]}"
        for row in range(60)
    ]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines) + "\n")
    about = about_file(path)
    about.write_text(json.dumps({"paths": {"input": str(tmp_path / "images")}}))
    (tmp_path / "images" / "a").mkdir(parents=True)
    suspect = int(p.uncertainty["mcp"].argmax())
    file = tmp_path / "images" / "a" / f"{suspect} #.png"
    file.touch()

    def links():
        page, _ = scores_page.write_predictions_report(path, bootstrap_draws=5)
        tree = parse(page.read_text(encoding="utf-8"))
        return [
            a.get("href") for li in tree.iter("li") if li.get("data-kind") for a in li.iter("a")
        ]

    assert links() == [file.as_uri()]
    about.write_text("no JSON")
    assert links() == []


def write_named(path, names, *, problem=""):
    """Scores of as many rows as there are names; the first one has the highest u."""
    lines = [f"input,predicted,labels,uncertainty{problem and ',problem'}"]
    lines += [
        f"{name},{row % 2},{row % 3 % 2},{1 - row / len(names)}{problem and ','}"
        for row, name in enumerate(names)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shown_cards(path, **options):
    """Row -> card of the report of a file."""
    page, _ = scores_page.write_predictions_report(path, bootstrap_draws=5, **options)
    cards = cards_of(parse(page.read_text(encoding="utf-8")))
    return {int(card.get("id").removeprefix("answer-")): card for card in cards}


@pytest.mark.parametrize("problem", ["", "problem"])
@pytest.mark.parametrize("place", ["beside", "given", "scored"])
def test_cards_of_scores_show_the_files_that_rows_name(undrawn, tmp_path, problem, place):
    folder = {"beside": tmp_path, "given": tmp_path / "x", "scored": tmp_path / "y"}[place]
    (folder / "a").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "a" / "0 #.png")
    (folder / "a" / "1.png").write_bytes(b"no picture")
    Image.fromarray(pixels).save(tmp_path.parent / f"{tmp_path.name}.png")
    outside = f"../{tmp_path.name}.png"
    path = tmp_path / "scores.csv"
    write_named(
        path,
        ["a/0 #.png", "a/1.png", outside, str(tmp_path.parent / f"{tmp_path.name}.png")]
        + [f"n{row}" for row in range(40)],
        problem=problem,
    )
    if place == "scored":
        about = {"paths": {"input": str(folder)}}
        about_file(path).write_text(json.dumps(about))
    cards = shown_cards(path, **({"files_dir": folder} if place == "given" else {}))
    picture, link = cards[0].find("img"), cards[0].find(".//a")
    assert picture.get("src") == pictures.data_uri(pixels) and "a/0 #.png" in picture.get("alt")
    assert link.get("href") == (folder / "a" / "0 #.png").as_uri()
    # What is no picture is linked alone; what lies outside or is not there is a row.
    assert cards[1].find("img") is None and cards[1].find(".//a") is not None
    for row in (2, 3, 4):
        assert cards[row].find("img") is None and cards[row].find(".//a") is None
    assert "n0" in words(cards[4])


@pytest.mark.parametrize("ending", ["npz", "npy"])
@pytest.mark.parametrize("place", ["scored", "given"])
def test_cards_of_scored_arrays_show_their_images(undrawn, tmp_path, ending, place):
    images = np.random.default_rng(0).integers(0, 256, (40, 5, 4, 1), np.uint8)
    folder = tmp_path / "x"
    folder.mkdir()
    if ending == "npz":
        np.savez_compressed(folder / "data.npz", x_test=images, other=images.astype(np.float32))
    else:
        np.save(folder / "data.npy", images)
    path = tmp_path / "scores.csv"
    key = "x_test" if ending == "npz" else "data"
    names = [f"{key}[{39 - row}]" for row in range(36)] + ["other[1]", f"{key}[40]", "none[0]", "a"]
    write_named(path, names)
    scored = folder if place == "scored" else tmp_path / "moved"
    about = {"paths": {"input": str(scored / f"data.{ending}")}}
    about_file(path).write_text(json.dumps(about))
    options = {"files_dir": folder} if place == "given" else {}
    cards = shown_cards(path, **options)
    assert len(cards) > 20
    for row, card in cards.items():
        if row < 36:
            assert card.find("img").get("src") == pictures.data_uri(images[39 - row])
        else:
            assert card.find("img") is None
    for damage in (b"", (folder / f"data.{ending}").read_bytes()[:-400]):
        (folder / f"data.{ending}").write_bytes(damage)
        cards = shown_cards(path, **options).values()
        assert all(card.find("img") is None for card in cards)


def test_a_folder_of_files_is_there_and_belongs_to_scores(run, tmp_path, capsys):
    path = tmp_path / "scores.csv"
    write_named(path, ["a", "b", "c"])
    with pytest.raises(SystemExit, match="2"):
        report.main([str(path), f"--files_dir={tmp_path / 'none'}"])
    with pytest.raises(ValueError, match="files_dir: expected a folder"):
        scores_page.write_predictions_report(path, files_dir=path)
    assert "files_dir: expected a folder" in capsys.readouterr().err
    assert not (tmp_path / "scores.csv-report").exists()
    with pytest.raises(SystemExit, match="2"):
        report.main([str(run[0]), f"--files_dir={tmp_path}"])
    assert "files_dir: expected only with a predictions file" in capsys.readouterr().err


def test_a_matrix_shows_which_class_is_taken_for_which(run):
    _, _, predictions, text = run
    p = predictions[CLASSIFIER]
    counts = np.zeros((4, 4), int)
    for true, said in zip(p.labels, p.predicted, strict=True):
        counts[true, said] += 1
    (matrix,) = (svg for svg in parse(text).iter("svg") if svg.get("class") == "matrix")
    cells = {
        cell.find("title").text for cell in matrix.iter("rect") if cell.find("title") is not None
    }
    assert cells == {
        f"{CLASSES[true]} taken for {CLASSES[said]}: {counts[true, said]}"
        for true, said in np.argwhere(counts)
    }
    wrong = counts - np.diag(np.diag(counts))
    true, said = np.unravel_index(wrong.argmax(), wrong.shape)
    alt = matrix.get("aria-label")
    assert f"{np.trace(counts)} of 60 answers are right" in alt
    assert f"{CLASSES[true]} taken for {CLASSES[said]}, {wrong.max()} times" in alt
    _, first, *_ = tables(parse(text))["Which class is taken for which: fashion_mnist"]
    assert first[:3] == [CLASSES[true], CLASSES[said], str(wrong.max())]
    assert float(first[3]) == pytest.approx(100 * wrong.max() / counts[true].sum(), abs=0.005)
    assert float(first[4]) == pytest.approx(100 * wrong.max() / wrong.sum(), abs=0.005)


def test_of_many_classes_the_most_confused_pairs_are_listed(undrawn, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 40, 2000)
    predicted = np.where(rng.random(2000) < 0.3, rng.integers(0, 40, 2000), labels)
    predicted[labels == 7] = 31
    p = Predictions(labels, None, predicted, {"mcp": rng.random(2000)})
    page = run_page.write_run_report(tmp_path, make_rows(p, dataset="many"), {CLASSIFIER: p})
    tree = parse(page.read_text(encoding="utf-8"))
    assert not [svg for svg in tree.iter("svg") if svg.get("class") == "matrix"]
    (lines,) = (lines for name, lines in tables(tree).items() if "class is taken for which" in name)
    assert len(lines) == 21
    assert lines[1][:4] == ["7", "31", str(np.sum(labels == 7)), "100.00"]


@pytest.fixture
def answers():
    """As of a model with the threshold 0.3 of `production`."""
    return production.answers(80, seed=1, harder=0.1)


def reported(path, capfd, *more):
    """The tree of the page, what was printed, and `results.json`."""
    assert report.main([str(path), "--bootstrap_draws=5", *more]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    folder = path.with_name(f"{path.name}-report")
    tree = parse((folder / "report.html").read_text(encoding="utf-8"))
    return tree, " ".join(printed.out.split()), *results.load_rows(folder / "results.json")


def decisions(tree):
    """Lines of the table of decisions, by their headings."""
    (table,) = (lines for caption, lines in tables(tree).items() if "are accepted" in caption)
    return {name: cells for name, *cells in table[1:]}


def counted(accept, is_error):
    """The cells of a decision, counted row by row; the interval is scipy's."""
    accepted, wrong = int(accept.sum()), int((accept & is_error).sum())
    low, high = binomtest(wrong, accepted).proportion_ci(0.95, "exact")
    return [
        str(accepted),
        f"{accepted / len(accept):.1%}",
        str(wrong),
        f"{wrong / accepted:.2%} [{low:.2%}, {high:.2%}]",
        f"{is_error.sum() - wrong} of {is_error.sum()}",
        str(int((~accept & ~is_error).sum())),
    ]


@pytest.mark.parametrize("ending", production.WRITERS)
def test_a_file_that_decides_is_judged_by_its_own_decision(
    undrawn, answers, tmp_path, capfd, ending
):
    if ending == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    rows = production.rows_of(answers, labels=True, broken=(4, 7))
    rows[9]["labels"] = None
    path = production.WRITERS[ending](tmp_path / f"scores{ending}", rows)
    tree, printed, found, extra = reported(path, capfd)
    kept = np.delete(np.arange(80), [4, 7, 9])
    is_error, u = answers.is_error[kept], answers.uncertainty["uncertainty"][kept].astype(float)
    accept = u < production.TAU
    # A tau that decides alike, and not 0.5.
    (row,) = found
    np.testing.assert_array_equal(u < row["tau"], accept)
    assert row["fpr"] == (accept & is_error).sum() / is_error.sum()
    assert extra["settings"]["tau"] == extra["decision"]["taus"]["uncertainty"] == row["tau"]
    assert decisions(tree) == {
        "accept, as in the file": counted(accept, is_error),
        "uncertainty < 0.5": counted(u < 0.5, is_error),
    }
    wrong = int((accept & is_error).sum())
    assert (extra["decision"]["accepted"], extra["decision"]["errors"]) == (accept.sum(), wrong)
    told = (
        f"The file's column accept (as uncertainty < {row['tau']:.6g}) accepts {accept.sum()} of "
        f"77 answers, {accept.mean():.1%}, and of those {wrong / accept.sum():.2%} ["
    )
    rejected = f"Rejected: {(~accept).sum()} answers, {is_error.sum() - wrong} of them wrong."
    let_through = f"Let through: {wrong} of {is_error.sum()} wrong answers. {rejected}"
    left_out = "3 rows left out: 2 without an answer, 1 without a label."
    for place in (printed, body(tree)):
        assert told in place and let_through in place and left_out in place
    assert extra["left_out"] == {"unanswered": 2, "unlabeled": 1}
    # Errors are named as the file names them: their number is not that of the line.
    (shown,) = (lines for caption, lines in tables(tree).items() if "confident" in caption)
    assert set(column[0] for column in shown[1:]) <= {f"x_test[{row}]" for row in kept}
    # A tau that is asked for is that of the metrics; the decision stays what it is.
    tree, _, (row,), _ = reported(path, capfd, "--tau=0.4")
    assert row["tau"] == 0.4
    assert decisions(tree)["accept, as in the file"] == counted(accept, is_error)
    assert decisions(tree)["uncertainty < 0.4"] == counted(u < 0.4, is_error)


def test_a_decision_in_an_npz_may_be_about_one_of_its_columns(undrawn, answers, tmp_path, capfd):
    u = answers.uncertainty["uncertainty"]
    columns = {"mine": 1 - u, "noise": np.random.default_rng(0).random(80)}
    np.savez(
        tmp_path / "s.npz",
        labels=answers.labels,
        predicted=answers.predicted,
        accept=u < np.float32(0.3),
        **columns,
    )
    tree, printed, found, _ = reported(tmp_path / "s.npz", capfd, "--reverse=mine")
    assert {row["method"]: row["tau"] for row in found} == {
        "mine": pytest.approx(0.3, abs=0.05),
        "noise": 0.5,
    }
    assert "(as mine < 0.3) accepts" in printed
    assert len(decisions(tree)) == 3


def test_a_decision_that_no_tau_makes_is_judged_and_said_to_be_none(
    undrawn, answers, tmp_path, capfd
):
    rows = production.rows_of(answers, labels=True)
    u = answers.uncertainty["uncertainty"]
    rows[int(u.argmin())]["accept"] = False
    accept = np.array([row["accept"] for row in rows])
    path = production.write_csv(tmp_path / "scores.csv", rows)
    tree, printed, (row,), _ = reported(path, capfd)
    assert row["tau"] == 0.5
    note = (
        "The file's column accept follows no threshold on u: uncertainty "
        f"{u[accept].max():.6g} is accepted and {u.min():.6g} is not."
    )
    assert note in printed and note in body(tree)
    assert decisions(tree)["accept, as in the file"] == counted(accept, answers.is_error)
    assert "The file's column accept accepts" in printed


@pytest.mark.parametrize(("text", "is_told"), [('{"tau": 0.4125}', True), ('{"tau": 9}', False)])
def test_the_tau_that_stands_beside_a_file_is_told(
    undrawn, answers, tmp_path, capfd, text, is_told
):
    u = answers.uncertainty["uncertainty"]
    rows = production.rows_of(answers, labels=True, tau=0.4125)
    path = production.write_csv(tmp_path / "scores.csv", rows)
    (tmp_path / "scores.csv.about.json").write_text(text)
    _, printed, (row,), _ = reported(path, capfd)
    assert (row["tau"] == 0.4125) is is_told
    np.testing.assert_array_equal(u < row["tau"], u < 0.4125)
    assert ("(as uncertainty < 0.4125)" in printed) is is_told


@pytest.mark.parametrize("tau", [-1, 2])
def test_a_file_that_accepts_nothing_or_everything(undrawn, answers, tmp_path, capfd, tau):
    path = production.write_csv(
        tmp_path / "scores.csv", production.rows_of(answers, labels=True, tau=tau)
    )
    tree, printed, (row,), _ = reported(path, capfd)
    assert row["tau"] == (0 if tau < 0 else 1)
    errors = answers.is_error.sum()
    if tau < 0:
        assert f"accepts 0 of 80 answers, 0.0%. Let through: 0 of {errors} wrong" in printed
        assert decisions(tree)["accept, as in the file"][3] == "n/a"
    else:
        assert f"accepts 80 of 80 answers, 100.0%, and of those {errors / 80:.2%} [" in printed


@pytest.mark.parametrize(
    ("accepted", "rejected", "tau"),
    [
        ([0.5413, 0.2], [0.5562, 0.9], 0.55),
        ([0.5], [np.nextafter(0.5, 1)], np.nextafter(0.5, 1)),
        ([1e308], [1.7e308], 1e308),
        ([1.0], [], np.nextafter(1.0, 2)),
        ([-3.0], [], 1.0),
        ([], [-3.0, 2.0], -3.0),
        ([0.5], [0.5], None),
        ([0.6], [0.5], None),
    ],
)
def test_the_tau_of_a_decision_decides_alike(accepted, rejected, tau):
    u = np.array([*accepted, *rejected], np.float64)
    accept = np.repeat([True, False], [len(accepted), len(rejected)])
    found = scores_page._tau_of(accept, u, None)
    if tau is None:
        assert found is None
    else:
        assert found == pytest.approx(tau, rel=0.4)
        np.testing.assert_array_equal(u < found, accept)
        if tau == 0.55:
            assert found == tau


@pytest.mark.parametrize(("error", "remark"), [(0, "no wrong"), (1, "no right")])
@pytest.mark.filterwarnings("error")
def test_scores_without_errors_or_with_nothing_else_are_reported(
    answers, tmp_path, capfd, error, remark
):
    labels = (answers.predicted + error) % 3
    given = dataclasses.replace(answers, labels=labels)
    path = production.write_csv(tmp_path / "scores.csv", production.rows_of(given, labels=True))
    tree, printed, _, _ = reported(path, capfd)
    for place in (printed, body(tree)):
        assert f"has {remark} answers: BACC, AUROC, " in place
        assert "are not defined (n/a)." in place


def test_scores_of_which_no_row_has_a_label_are_refused(answers, tmp_path, capfd):
    rows = production.rows_of(answers, labels=True)
    path = production.write_csv(tmp_path / "s.csv", [row | {"labels": None} for row in rows])
    assert report.main([str(path)]) == 1
    assert "s.csv: expected labels, the true classes, received none" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words_", "status", "message"),
    [
        ([], 2, "expected one PATH, received 0"),
        (["{folder}/a", "{folder}/b"], 2, "expected one PATH, received 2: "),
        (["{folder}"], 2, "expected a run's or a study's folder with results.json"),
        (
            ["{folder}/none.npz"],
            2,
            "or a predictions file (.csv, .jsonl, .parquet, .npz), received none: "
            "{folder}/none.npz is not there",
        ),
        (["{folder}/none"], 2, "received none: {folder}/none is not there"),
        (["{folder}/decided.csv"], 1, "accept: expected true or false, received 'maybe' in line 3"),
        (["{folder}/decided.npz"], 1, "accept: expected true or false [60], received float64 [60]"),
        (["{folder}/scores.csv", "--tau=2"], 2, "tau: expected"),
        (["{folder}/scores.csv", "--tua=2"], 2, "tua"),
        (["{run}", "--tau=0.3"], 2, "tau: expected only with a predictions file"),
        (["{folder}/scores.csv", "--reverse=nope"], 1, "received nope"),
        (
            ["{folder}/scores.csv", "--columns=nope"],
            1,
            "an uncertainty column nope, received theirs",
        ),
        (["{folder}/broken.npz"], 1, "broken.npz"),
        (["{folder}/unlabeled.npz"], 1, "expected labels, the true classes, received none"),
        (["{folder}/odd"], 1, "odd: expected predictions.npz of a run, received none"),
    ],
)
def test_errors_are_one_clear_line(run, tmp_path, capsys, words_, status, message):
    predictions = make_predictions(("theirs",))
    write_csv(tmp_path / "scores.csv", predictions)
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    save_predictions(tmp_path / "unlabeled.npz", dataclasses.replace(predictions, labels=None))
    (tmp_path / "decided.csv").write_text(
        "labels,predicted,u,accept\n0,0,0.5,True\n0,0,0.5,maybe\n"
    )
    labels, u = predictions.labels, np.linspace(0, 1, 60)
    np.savez(tmp_path / "decided.npz", labels=labels, predicted=labels, u=u, accept=u)
    (tmp_path / "odd").mkdir()
    results.save_rows(tmp_path / "odd" / "results.json", make_rows(predictions), {})
    arguments = [word.format(folder=tmp_path, run=run[0]) for word in words_]
    try:
        found = report.main(arguments)
    except SystemExit as end:
        found = end.code
    error = capsys.readouterr().err
    assert found == status
    assert message.format(folder=tmp_path) in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_help_lists_the_flags(capsys):
    with pytest.raises(SystemExit) as end:
        report.main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for name in ("output_dir", "tau", "bootstrap_draws", "reverse", "columns", "by", "seed"):
        assert f"--{name}=" in shown


def test_import_waits_for_neither_tensorflow_nor_matplotlib():
    code = (
        "import sys, btcp_tf.report; "
        "print(sorted({'tensorflow', 'keras', 'matplotlib', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_report_that_cannot_be_drawn_leaves_the_earlier_one(undrawn, tmp_path, monkeypatch):
    path = tmp_path / "scores.npz"
    save_predictions(path, make_predictions())
    assert report.main([str(path), "--bootstrap_draws=5"]) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "scores.npz-report").rglob("*") if p.is_file()}
    save_predictions(path, make_predictions(seed=1))

    def fail(*arguments, **named):
        raise ValueError("expected what can be drawn, received this")

    monkeypatch.setattr(pages, "write_report", fail)
    assert report.main([str(path), "--bootstrap_draws=5"]) == 1
    after = {p: p.read_bytes() for p in (tmp_path / "scores.npz-report").rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("figures/most_confident_errors.npz", b"PK\x03\x04", "BadZipFile"),
        ("history.csv", b"a,b\n1,2\n", "KeyError"),
        ("finished.json", b"[1]", "AttributeError"),
        ("results.json", b'{"rows": [], "extra": {}}', "damaged|expected"),
    ],
)
def test_a_damaged_folder_is_one_clear_error(
    undrawn, run, tmp_path, capsys, file, content, message
):
    shutil.copytree(run[0], tmp_path / "run")
    (tmp_path / "run" / file).write_bytes(content)
    assert report.main([str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error) and "expected" in error and error.count("\n") == 1


def test_predictions_of_other_data_are_refused(undrawn, run, tmp_path, capsys):
    shutil.copytree(run[0], tmp_path / "run")
    save_predictions(tmp_path / "run" / "predictions.npz", make_predictions(n=70))
    assert report.main([str(tmp_path / "run")]) == 1
    assert "expected the 60 answers of results.json, received 70" in capsys.readouterr().err


def test_a_study_that_is_not_finished_says_so(tmp_path, capsys):
    (tmp_path / "digits-seed0").mkdir()
    (tmp_path / "digits-seed0" / "flags.cfg").touch()
    with pytest.raises(SystemExit):
        report.main([str(tmp_path)])
    assert "a run or a study that is finished" in capsys.readouterr().err


def test_the_method_of_least_aurc_is_what_the_first_sentence_is_about(undrawn, tmp_path):
    p = make_predictions(("good",))
    noise = np.random.default_rng(0).random(60)
    columns = {"good": 0.5 * noise + 0.4 * p.is_error, "bad": noise}
    path = tmp_path / "scores.npz"
    save_predictions(path, dataclasses.replace(p, uncertainty=columns))
    page, _ = scores_page.write_predictions_report(path, bootstrap_draws=5)
    shown = body(parse(page.read_text(encoding="utf-8")))
    assert "90 % that good trusts most" in shown and "bad trusts most" not in shown
    assert "answers that good trusts least" in shown and "that bad trusts" not in shown


def decided(model, *, settings=None, problem="", rule=None, test=None):
    """Steps of the first screen of a run that exports MCP, as text with their commands."""
    rng = np.random.default_rng(0)
    u = rng.random(2000)
    wrong = rng.random(2000) < u**2
    p = Predictions(wrong.astype(np.int64), None, np.zeros(2000, np.int64), {"mcp": u})
    rule = rule or thresholds.best_bacc(p.is_error, u)
    decision = Decision(rule, CLASSIFIER, "mcp", p)
    shown = run_page.Shown(test or p, CLASSIFIER, "mcp", rule)
    promises = [{"target": 0.05}, {"target": 0.01}]
    settings = SETTINGS | {"dataset": "digits"} | (settings or {})
    glance = run_page.run_glance(shown, decision, promises, model, settings, problem)
    return " | ".join(f"{step.text} {step.command} {step.link}" for step in glance.steps)


def test_what_to_do_next_has_the_delta_of_the_run():
    steps = decided("models/1", settings={"delta": "0.2"})
    assert "(delta 0.2)" in steps and "--delta=0.2" in steps and "Serve models/1" in steps
    assert "--delta=0.05" in decided("models/1")
    assert "delta 0.1" not in decided("models/1")


def test_the_page_names_the_delta_beside_each_promise(undrawn, tmp_path):
    p = make_predictions(("mcp",))
    rule = thresholds.target_risk(p.is_error, p.uncertainty["mcp"], risk=0.3, delta=0.2)
    row = dict(method="mcp", stage="frozen", target=0.3, tau=0.5, n=60, accepted=9, errors=1)
    outcome = thresholds.outcome(rule, p.is_error, p.uncertainty["mcp"])
    row |= {f"test_{name}": value for name, value in outcome._asdict().items()}
    page = run_page.write_run_report(
        tmp_path,
        make_rows(p),
        {CLASSIFIER: p},
        settings=SETTINGS | {"delta": "0.2"},
        promises=[row | {"least_risk": None}],
        decision=Decision(rule, CLASSIFIER, "mcp", p),
    )
    tree = parse(page.read_text(encoding="utf-8"))
    [caption] = [caption for caption in tables(tree) if "learn then test" in caption]
    assert "delta (delta 0.2)" in caption and "0.05" not in words(tree.find(".//header"))


def test_a_trial_is_trained_in_full_and_not_served():
    steps = decided("models/1", settings={"max_train_images": "600"})
    assert "Serve" not in steps and "btcp_tf.predict" not in steps and "set_threshold" not in steps
    assert "models/1" in steps  # Where the file is, it says all the same.
    assert "max_train_images=600" in steps and "btcp_tf.main --dataset=digits" in steps
    own = {"max_train_images": "600", "dataset": "folder", "data_dir": "a b"}
    assert "--dataset=folder --data_dir='a b'" in decided("models/1", settings=own)


def test_what_failed_or_was_not_exported_is_not_served():
    steps = decided("models/1", problem="the estimator collapsed to a constant")
    assert "Do not serve models/1: the estimator collapsed" in steps and "#notes" in steps
    assert "btcp_tf.predict" not in steps
    steps = decided("not exported: no room")
    assert "not exported: no room" in steps
    assert "btcp_tf.predict" not in steps and "set_threshold" not in steps
    nothing = dataclasses.replace(thresholds.DEFAULT, tau=None, target=0.01, delta=0.1)
    assert "it accepts nothing" in decided("models/1", rule=nothing)
    wrong = Predictions(np.ones(900, int), None, np.zeros(900, int), {"mcp": np.zeros(900)})
    promised = dataclasses.replace(thresholds.DEFAULT, target=0.05, delta=0.1)
    steps = decided("models/1", rule=promised, test=wrong)
    assert "its promise is broken" in steps and "btcp_tf.predict" not in steps


def easy(errors, *, n=360, rows=300, calibration_errors=2, target=None, settings=None):
    """A run whose classifier is hardly ever wrong: its steps, and what the terminal says."""
    test = make_predictions(("tcp", "mcp"), errors=errors, n=n)
    calibration = make_predictions(("tcp", "mcp"), errors=calibration_errors, n=rows, seed=1)
    rule = thresholds.best_bacc(calibration.is_error, calibration.uncertainty["mcp"])
    decision = Decision(dataclasses.replace(rule, target=target), CLASSIFIER, "mcp", calibration)
    extra = {
        "settings": SETTINGS | {"dataset": "digits"} | (settings or {}),
        "promises": [{"target": 0.05}, {"target": 0.01}],
    }
    run = SavedRun(pathlib.Path("runs/x"), make_rows(test), extra, {CLASSIFIER: test}, decision)
    shown = run_page.Shown(test, CLASSIFIER, "mcp", decision.threshold)
    first = run_page.run_glance(shown, decision, extra["promises"], "models/1", extra["settings"])
    steps = " | ".join(f"{step.text} {step.command}" for step in first.steps)
    return steps, " ".join(run_page.terminal_answer(run).split())


@pytest.mark.parametrize(("errors", "told"), [(0, "No answer is wrong"), (5, "Hardly any answer")])
def test_a_run_with_hardly_an_error_says_so_instead_of_an_empty_promise(errors, told):
    for text in easy(errors):
        assert told in text and f": {errors} of 360" in text
        assert "--dataset=fashion_mnist" in text and "--classifier=my.keras" in text
        assert "set_threshold" not in text and "Nothing is promised" not in text


def test_a_promise_that_a_threshold_is_needed_for_is_offered_all_the_same():
    for more in (
        dict(errors=31, n=1000),  # Enough to judge u by.
        dict(errors=20, n=300),  # 6.7 %: a promise of 5 % says something.
        dict(errors=5, calibration_errors=30),  # 10 % of those of calibration.
        dict(errors=5, target=0.05),  # There is a promise.
        dict(errors=5, settings={"max_train_images": "500"}),  # A trial says other things.
    ):
        for text in easy(**more):
            assert "even if all are accepted" not in text
    # Of 20,000 calibration answers, 0.8 % wrong, a promise below that can be made.
    steps, printed = easy(5, rows=20_000, calibration_errors=160)
    assert "at most 0.4 %" in steps and "--risk=0.004" in steps
    assert "even if all are accepted" not in steps + printed


def test_a_file_of_scores_with_hardly_an_error_says_so(undrawn, tmp_path):
    save_predictions(tmp_path / "s.npz", make_predictions(("mcp",), errors=2, n=200))
    page, _ = scores_page.write_predictions_report(tmp_path / "s.npz", bootstrap_draws=5)
    said = body(parse(page.read_text(encoding="utf-8")))
    assert "Hardly any answer is wrong even if all are accepted: 2 of 200 (1 %)." in said
    assert "More answers with a label" in said and "set_threshold" not in said


@pytest.mark.parametrize(
    ("predictor", "method", "told"),
    [
        (CLASSIFIER, "residual", "(the classifier; its uncertainty u is Residual)"),
        (
            TUNED,
            "mcp",
            "(the fine-tuned classifier; its uncertainty u is MCP, one minus the largest "
            "probability)",
        ),
    ],
)
def test_what_a_model_answers_is_said_in_plain_words(predictor, method, told):
    decision = Decision(thresholds.DEFAULT, predictor, method, make_predictions((method,)))
    assert decision.of("models/x/1") == f"models/x/1 {told}"
    assert decision.of("not exported: no room") == "not exported: no room"


def test_notes_on_few_errors_are_about_their_classifier():
    rows = make_rows(make_predictions(errors=12)) + make_rows(
        make_predictions(("mcp", "btcp"), errors=31), "finetuned"
    )
    [note] = notes.error_count_notes(rows)
    assert "The frozen classifier makes only 12 errors" in note and "its errors" in note


def test_review_table_checks_what_was_expected_of_the_test_set():
    rng = np.random.default_rng(0)
    rows = []
    for n in (2000, 1000):
        u = rng.random(n)
        wrong = rng.random(n) < u**2
        zeros = np.zeros(n, np.int64)
        rows.append(Predictions(wrong.astype(np.int64), None, zeros, {"btcp": u}))
    calibration, test = rows
    threshold = thresholds.best_bacc(calibration.is_error, calibration.uncertainty["btcp"])
    decision = Decision(threshold, CLASSIFIER, "btcp", calibration)
    table = run_page._review_table(decision, test)
    assert [int(line[0].value) for line in table.lines] == [10, 50, 100, 200]
    for checked, expected, _, found, share in table.lines:
        k = int(checked.value)
        highest = np.argsort(-test.uncertainty["btcp"])[:k]
        assert found.value == test.is_error[highest].sum()
        tau = test.uncertainty["btcp"][highest[-1]]
        rate = calibration.is_error[calibration.uncertainty["btcp"] >= tau].mean()
        assert expected.value == pytest.approx(k * rate)
        assert str(share) == f"{found.value / test.is_error.sum():.0%}"


def test_a_report_calls_classes_by_the_names_that_the_file_has(undrawn, tmp_path):
    given = make_predictions(("u",), errors=12)
    path = tmp_path / "scores.csv"
    write_csv(path, given)
    table = [line.split(",") for line in path.read_text().splitlines()]
    known = {number: f"kind {number}" for number in sorted({row[1] for row in table[1:]})[:-1]}
    lines = [",".join([*table[0], "class_name"])]
    lines += [",".join([*row, known.get(row[1], "")]) for row in table[1:]]
    path.write_text("\n".join(lines) + "\n")
    page, _ = scores_page.write_predictions_report(path, bootstrap_draws=5, by="predicted")
    text = page.with_name("report.md").read_text(encoding="utf-8")
    classes = (page.parent / "tables" / "classes_scores.csv").read_text(encoding="utf-8")
    _, extra = results.load_rows(page.parent / "results.json")
    found = extra["groups"]["outcomes"]
    numbers = sorted({*map(str, given.predicted.tolist())})
    assert set(found) == {known.get(number, number) for number in numbers}
    assert all(name in text and name in classes for name in known.values())
    # One name for two classes is none.
    path.write_text("\n".join([lines[0], *(f"{','.join(row)},same" for row in table[1:])]) + "\n")
    page, _ = scores_page.write_predictions_report(path, bootstrap_draws=5)
    assert "same" not in (page.parent / "tables" / "classes_scores.csv").read_text()
