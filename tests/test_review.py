"""`python -m btcp_tf.review`: what a person should check, and what their decisions show."""

import csv
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import production
import pytest
from PIL import Image

from btcp_tf import monitor, review
from btcp_tf.core.groups import one_of_each
from btcp_tf.decisions import reviewing
from btcp_tf.decisions.scores import load_scores
from btcp_tf.evaluation import predictions

N = 300


@pytest.fixture
def place(tmp_path):
    """A baseline, and answers to images of an npz file."""
    production.write_run(tmp_path / "run", production.answers(400, 0))
    answers = production.answers(N, 1)
    production.write_csv(tmp_path / "scores.csv", production.rows_of(answers))
    images = np.random.default_rng(0).integers(0, 256, (N, 9, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", x_test=images)
    return tmp_path


def run(place, *flags, scores="scores.csv"):
    return review.main([f"--scores={place / scores}", *flags])


def page_of(folder):
    return (folder / "review.html").read_text(encoding="utf-8")


def items_of(page):
    return re.findall(r'<li class="item".*?</div>\n</li>', page, re.S)


def decide(place, answers, rows, *, name="decisions.csv", wrong_unknown=()):
    """The file that the page saves when all these rows are decided rightly."""
    with open(place / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "input", "predicted", "decision", "label"])
        for row in rows:
            label, said = int(answers.labels[row]), int(answers.predicted[row])
            word = "right" if label == said else "wrong"
            shown = "" if row in wrong_unknown else label
            writer.writerow([row, f"x_test[{row}]", said, word, shown])
    return place / name


def test_a_queue_is_a_page_with_pictures_and_a_record(place, capsys):
    flags = (f"--input={place / 'x.npz'}", f"--baseline={place / 'run'}")
    assert run(place, *flags, "--budget=12", "--audit=20", "--seed=5") == 0
    folder = place / "scores.csv-review"
    kept = json.loads((folder / "queue.json").read_text())
    u = production.answers(N, 1).uncertainty["uncertainty"]
    assert kept["checked_first"] == np.argsort(-u, kind="stable")[:12].tolist()
    assert kept["sample"] == np.random.default_rng(5).permutation(N)[:20].tolist()
    assert kept["inclusion_probability"] == 20 / N and kept["seed"] == 5
    page = page_of(folder)
    items = items_of(page)
    assert len(items) == len({*kept["checked_first"], *kept["sample"]})
    assert all("data:image/png;base64," in item for item in items)
    assert f'data-row="{kept["checked_first"][0]}"' in items[0] and "highest u" in items[0]
    assert "random sample" in items[-1]
    for word in ("cat", "dog", "cow"):
        assert word in items[0]
    assert not re.findall(r'(?:src|href)="(?!data:|#|file:)', page)
    shown = capsys.readouterr().out
    assert "--labels=scores-decisions.csv" in shown and "are wrong" in shown
    assert f"--baseline={place / 'run'}" in shown


@pytest.mark.parametrize("ending", production.WRITERS)
def test_every_form_of_a_file_of_scores_gives_the_same_queue(place, ending):
    rows = production.rows_of(production.answers(N, 1), broken=(3,))
    production.WRITERS[ending](place / f"other{ending}", rows)
    assert run(place, "--budget=9", "--audit=9", scores=f"other{ending}") == 0
    kept = json.loads((place / f"other{ending}-review" / "queue.json").read_text())
    assert kept["answers"] == N - 1
    production.write_csv(place / "again.csv", rows)
    run(place, "--budget=9", "--audit=9", scores="again.csv")
    again = json.loads((place / "again.csv-review" / "queue.json").read_text())
    assert again["fingerprint"] == kept["fingerprint"] and again["sample"] == kept["sample"]


def test_label_studio_gets_tasks_with_predictions_that_its_interface_knows(place):
    run(place, f"--input={place / 'x.npz'}", "--budget=5", "--audit=5")
    folder = place / "scores.csv-review"
    tasks = json.loads((folder / "label_studio.json").read_text())
    view = ET.parse(folder / "label_studio.xml").getroot()
    picture, choices = view.find("Image"), view.find("Choices")
    names = {choice.get("value") for choice in choices}
    assert names == {"cat", "dog", "cow"}
    answers = production.answers(N, 1)
    for task in tasks:
        assert task["data"][picture.get("value").removeprefix("$")].startswith("data:image/png")
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert result["from_name"] == choices.get("name") and result["type"] == "choices"
        assert result["to_name"] == choices.get("toName") == picture.get("name")
        row = task["data"]["row"]
        assert result["value"] == {"choices": [production.NAMES[answers.predicted[row]]]}
        assert prediction["score"] == pytest.approx(1 - answers.uncertainty["uncertainty"][row])


def test_photos_of_a_folder_are_shown_large_and_linked(place):
    names = ("a b.jpg", "c.png")
    (place / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    for name in names:
        Image.fromarray(pixels).save(place / "photos" / name)
    rows = production.rows_of(production.answers(3, 1))
    for row, name in zip(rows, (*names, "missing.png"), strict=True):
        row["input"] = name
    production.write_csv(place / "few.csv", rows)
    assert run(place, f"--input={place / 'photos'}", scores="few.csv") == 0
    items = items_of(page_of(place / "few.csv-review"))
    assert sum("data:image/jpeg" in item for item in items) == 2
    assert any((place / "photos" / "a b.jpg").as_uri() in item for item in items)
    assert any("missing.png" in item for item in items)
    tasks = json.loads((place / "few.csv-review" / "label_studio.json").read_text())
    # One answer has no picture, so that no task could be shown as an image.
    assert all(set(task["data"]) & {"image", "text"} == {"text"} for task in tasks)


def test_texts_and_rows_come_from_a_table(place):
    lines = [f"<b>film {row}</b>, fine,{row},=1+{row}" for row in range(N)]
    table = ["id,text,stars,note"] + [
        f'{row},"{line.split(",")[0]}, fine",{row},=1+{row}' for row, line in enumerate(lines)
    ]
    (place / "reviews.csv").write_text("\n".join(table) + "\n")
    flags = (f"--input={place / 'reviews.csv'}", "--budget=4", "--audit=0")
    assert run(place, *flags, "--columns=text") == 0
    page = page_of(place / "scores.csv-review")
    row = int(re.search(r'data-row="(\d+)"', page)[1])
    assert f'<p class="text" tabindex="0">&lt;b&gt;film {row}&lt;/b&gt;, fine</p>' in page
    assert run(place, *flags) == 0
    assert f"<dt>stars</dt><dd>{row}</dd>" in page_of(place / "scores.csv-review")
    # Of a table that btcp_tf.predict scored it is known where it is, and which column is the label.
    (place / "reviews.csv").write_text("label,text\n" + "secret,a film\n" * N)
    about = {"paths": {"input": str(place / "reviews.csv"), "model": "gone"}}
    (place / "scores.csv.about.json").write_text(json.dumps(about))
    assert run(place, "--budget=4", "--audit=0") == 0
    page = page_of(place / "scores.csv-review")
    assert page.count('<p class="text" tabindex="0">a film</p>') == 4 and "secret" not in page
    (place / "short.csv").write_text("text\none\n")
    rows = production.rows_of(production.answers(N, 1))
    for number, entry in enumerate(rows):
        entry["input"] = f"id {number}"
    production.write_csv(place / "named.csv", rows)
    assert run(place, f"--input={place / 'short.csv'}", scores="named.csv") == 1
    production.write_csv(place / "own.csv", [row | {"comment": "so <so>"} for row in rows])
    assert run(place, "--budget=3", "--audit=0", scores="own.csv") == 0
    assert '<p class="text" tabindex="0">so &lt;so&gt;</p>' in page_of(place / "own.csv-review")


@pytest.mark.parametrize("name", ["label", "labels", "y", "target", "truth", "Label", "y_true"])
def test_the_page_does_not_give_the_answer_away(place, name):
    rows = production.rows_of(production.answers(20, 1))
    for row in rows:
        del row["input"]
        row.update({name: "7", "text": "a film"})
    production.write_csv(place / "own.csv", rows)
    (place / "table.csv").write_text(f"{name},text\n" + "7,a film\n" * 20)
    for flags in ((), (f"--input={place / 'table.csv'}",)):
        assert run(place, *flags, "--budget=4", "--audit=0", scores="own.csv") == 0
        folder = place / "own.csv-review"
        assert page_of(folder).count('<p class="text" tabindex="0">a film</p>') == 4
        tasks = json.loads((folder / "label_studio.json").read_text())
        assert [task["data"]["text"] for task in tasks] == ["a film"] * 4


def test_an_array_of_labels_is_not_shown(place, capsys):
    predictions.save_predictions(place / "p.npz", production.answers(20, 1))
    flags = (f"--input={place / 'x.npz'}", "--budget=2", "--audit=0")
    numbers, onehot = np.arange(20.0).reshape(20, 1), np.eye(4)[np.arange(20) % 4]
    pixels = np.zeros((20, 4, 4, 3), np.uint8)
    for labels in ({"y_test": numbers}, {"Target": numbers}, {"a": onehot}, {"a": onehot > 0}):
        np.savez(place / "x.npz", **labels, truth=numbers, names=np.array(["a"] * 20))
        assert run(place, *flags, scores="p.npz") == 1
        arrays = ", ".join((*labels, "truth", "names"))
        assert f"an array of inputs (x_test, images, x), received {arrays}; name the one" in (
            capsys.readouterr().err
        )
        np.savez(place / "x.npz", **labels, pixels=pixels)
        assert run(place, *flags, scores="p.npz") == 0
        assert page_of(place / "p.npz-review").count("data:image/png") == 2
    assert run(place, *flags, "--key=a", scores="p.npz") == 0  # Whoever names it wants it.
    assert "<dt>3</dt>" in page_of(place / "p.npz-review")
    # Scores that name their array are about that one, whatever it looks like.
    rows = production.rows_of(production.answers(20, 1))
    for number, row in enumerate(rows):
        row["input"] = f"tokens[{number}]"
    production.write_csv(place / "named.csv", rows)
    np.savez(place / "x.npz", x=numbers, tokens=onehot)
    assert run(place, *flags, scores="named.csv") == 0
    assert "<dt>3</dt>" in page_of(place / "named.csv-review")


class Scanned(np.ndarray):
    """An array that counts how often all of it is compared."""

    scans = 0

    def __eq__(self, other):
        Scanned.scans += 1
        return np.asarray(self) == other


def test_a_large_sample_is_not_scanned_for_each_answer(place, monkeypatch):
    draw = reviewing.draw

    def draw_scanned(*args, **kwargs):
        queue = draw(*args, **kwargs)
        changes = {"drawn": queue.drawn.view(Scanned)}
        fields = ("rows", "first", "drawn", "probability")
        return type(queue)(**{name: getattr(queue, name) for name in fields} | changes)

    monkeypatch.setattr(reviewing, "draw", draw_scanned)
    assert run(place, "--budget=30", "--audit=40") == 0
    assert Scanned.scans == 0
    places = re.findall(r'data-place="(\d+)"', page_of(place / "scores.csv-review"))
    assert sorted(map(int, places)) == list(range(1, 41))


def test_rows_of_numbers_are_shown(place):
    np.save(place / "x.npy", np.arange(2 * N, dtype=np.float32).reshape(N, 2))
    answers = production.answers(N, 1)
    predictions.save_predictions(place / "p.npz", answers)
    flags = (f"--input={place / 'x.npy'}", "--budget=2", "--audit=0")
    assert run(place, *flags, scores="p.npz") == 0
    page = page_of(place / "p.npz-review")
    row = int(re.search(r'data-row="(\d+)"', page)[1])
    assert f"<dt>0</dt><dd>{2 * row}</dd>" in page and f"<dt>1</dt><dd>{2 * row + 1}</dd>" in page
    np.save(place / "x.npy", np.zeros((3, 2)))
    assert run(place, *flags, scores="p.npz") == 1


def test_decisions_test_the_promise_by_the_sample_alone(place, capsys):
    run(place, f"--baseline={place / 'run'}", "--budget=60", "--audit=150")
    answers, folder = production.answers(N, 1), place / "scores.csv-review"
    kept = json.loads((folder / "queue.json").read_text())
    rows = list(dict.fromkeys(kept["checked_first"] + kept["sample"]))
    labels = decide(place, answers, rows)
    capsys.readouterr()
    status = run(place, f"--labels={labels}", f"--baseline={place / 'run'}")
    shown = capsys.readouterr().out
    verdicts = json.loads((folder / "monitor.json").read_text())
    sample = np.array(kept["sample"])
    accepted = answers.uncertainty["uncertainty"][sample] < production.TAU
    assert verdicts["promise"]["labeled"] == 150 and status == verdicts["status"]
    assert verdicts["promise"]["accepted"] == accepted.sum()
    assert verdicts["promise"]["errors"] == answers.is_error[sample][accepted].sum()
    assert "0.5" in verdicts["settings"]["sample"]
    assert "Checked for their u: 60 of 60" in shown and "drawn at random" in shown
    # monitor and set_threshold read what is left of it: these rows, and no others.
    checked = load_scores(folder / "checked_sample.csv", ("uncertainty",))
    assert checked.inputs == tuple(f"x_test[{row}]" for row in sample)
    assert checked.labels.tolist() == answers.labels[sample].tolist()
    assert checked.uncertainty.tolist() == pytest.approx(
        answers.uncertainty["uncertainty"][sample].tolist(), abs=0
    )
    assert checked.classes == 3
    assert f"--scores={folder / 'checked_sample.csv'} --threshold=target_risk --risk=0.05" in shown
    done = monitor.main(
        [f"--baseline={place / 'run'}", f"--scores={folder / 'checked_sample.csv'}"]
    )
    assert done in (0, 3, 4)
    assert f"{verdicts['promise']['errors']:,} of {accepted.sum():,} accepted" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_rows_of_one_group_count_once(place, capsys, ending):
    answers, groups = production.answers(N, 1), np.arange(N) // 6
    if ending == ".npz":
        columns = answers.probs, answers.predicted, answers.uncertainty
        predictions.save_predictions(
            place / "g.npz", predictions.Predictions(None, *columns, groups)
        )
    else:
        rows = zip(production.rows_of(answers), groups.tolist(), strict=True)
        production.write_csv(place / "g.csv", [row | {"groups": group} for row, group in rows])
    flags = (f"--baseline={place / 'run'}",)
    run(place, *flags, "--budget=40", "--audit=150", scores=f"g{ending}")
    folder = place / f"g{ending}-review"
    kept = json.loads((folder / "queue.json").read_text())
    first, sample = kept["checked_first"], np.array(kept["sample"])
    labels = place / "decisions.csv"
    with open(labels, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("row", "label"), *((row, answers.labels[row]) for row in {*first, *kept["sample"]})]
        )
    capsys.readouterr()
    run(place, *flags, f"--labels={labels}", scores=f"g{ending}")
    shown = capsys.readouterr().out
    checked = load_scores(folder / "checked_sample.csv")
    assert checked.groups.tolist() == [str(group) for group in groups[sample]]
    verdicts = json.loads((folder / "monitor.json").read_text())
    one = sample[one_of_each(groups[sample])]
    assert verdicts["promise"]["labeled"] == len(one) == len(set(groups[sample].tolist()))
    others = sample[~np.isin(sample, first)]
    others = others[one_of_each(groups[others])]
    errors = answers.is_error[others].sum()
    assert (
        f"{len(others)} were drawn at random and checked, one of each group: {errors} of them wrong"
    ) in shown
    # monitor draws the same rows of the file that is left.
    monitor.main([*flags, f"--scores={folder / 'checked_sample.csv'}"])
    again = json.loads((folder / "checked_sample.csv-monitor" / "monitor.json").read_text())
    assert [again["promise"][name] for name in ("labeled", "accepted", "errors")] == [
        verdicts["promise"][name] for name in ("labeled", "accepted", "errors")
    ]


def test_a_label_without_a_decision_is_one(place):
    run(place, f"--baseline={place / 'run'}", "--budget=0", "--audit=150")
    answers, folder = production.answers(N, 1), place / "scores.csv-review"
    sample = json.loads((folder / "queue.json").read_text())["sample"]
    # Nobody can tell, whatever stands beside it; left open; labels that were typed, right or wrong.
    rows = [[sample[0], "unsure", answers.predicted[sample[0]]], [sample[1], "", ""]]
    rows += [[row, "", answers.labels[row]] for row in sample[2:]]
    with open(place / "typed.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("row", "decision", "label"), *rows])
    run(place, f"--labels={place / 'typed.csv'}", f"--baseline={place / 'run'}")
    checked = load_scores(folder / "checked_sample.csv")
    wrong = answers.is_error[sample[2:]].tolist()
    assert 0 < sum(wrong) < len(wrong)
    assert (checked.labels != checked.predicted).tolist() == [True, True, *wrong]


def test_a_threshold_is_given_where_the_baseline_has_none(place, capsys):
    predictions.save_predictions(place / "base.npz", production.answers(400, 0))
    flags = (f"--baseline={place / 'base.npz'}", "--tau=0.05")
    run(place, *flags, "--budget=20", "--audit=100")
    answers, folder = production.answers(N, 1), place / "scores.csv-review"
    kept = json.loads((folder / "queue.json").read_text())
    rows = list(dict.fromkeys(kept["checked_first"] + kept["sample"]))
    accepted = answers.uncertainty["uncertainty"] < 0.05
    page = page_of(folder)
    assert page.count("· accepted") == accepted[rows].sum() > 0
    assert "--tau=0.05" in capsys.readouterr().out
    labels = decide(place, answers, rows)
    status = run(place, *flags, f"--labels={labels}", "--risk=0.5")
    promise = json.loads((folder / "monitor.json").read_text())["promise"]
    assert status in (0, 3) and promise["verdict"] == "kept" and promise["limit"] == 0.5
    assert promise["accepted"] == accepted[kept["sample"]].sum()
    # Without a baseline the page still says what is accepted; 0 is a threshold, too.
    capsys.readouterr()
    run(place, "--tau=0", "--budget=5", "--audit=5")
    page = page_of(folder)
    assert "· accepted" not in page and "· handed over" in page
    assert "--tau=0" in capsys.readouterr().out


def test_an_error_of_a_class_that_nobody_knows_counts(place, capsys):
    run(place, f"--baseline={place / 'run'}", "--budget=0", "--audit=100")
    answers = production.answers(N, 1, harder=0.0)
    sample = json.loads((place / "scores.csv-review" / "queue.json").read_text())["sample"]
    labels = decide(place, answers, sample, wrong_unknown=sample)
    run(place, f"--labels={labels}", f"--baseline={place / 'run'}")
    checked = load_scores(place / "scores.csv-review" / "checked_sample.csv")
    assert (checked.labels != checked.predicted).sum() == answers.is_error[sample].sum() > 0


def test_a_run_is_reviewed_by_its_folder(place):
    test = production.answers(N, 1)
    columns = {"mcp": test.uncertainty["uncertainty"], "btcp": test.uncertainty["uncertainty"]}
    found = predictions.Predictions(test.labels, test.probs, test.predicted, columns)
    predictions.save_predictions(place / "run" / "predictions.npz", found)
    flags = (f"--input={place / 'x.npz'}", "--budget=3", "--audit=3")
    assert review.main([f"--scores={place / 'run'}", *flags]) == 0
    page = page_of(place / "run" / "review")
    assert "data:image/png" in page and "cow" in page


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "scores: expected a path, received none"),
        (["--scores=none.csv"], "scores: expected a file"),
        (["--scores={}/scores.csv", "--budget=-1"], "budget"),
        (["--scores={}/scores.csv", "--input={}/nothing"], "input: expected a path"),
        (["--scores={}/scores.csv", "--input={}/run/results.json"], "input: expected a file"),
        (["--scores={}/scores.csv", "--risk=0.1"], "risk: expected it with --labels"),
        (
            ["--scores={}/scores.csv", "--labels={}/scores.csv", "--audit=5"],
            "audit: expected it without --labels",
        ),
        (["--scores={}", "--budget=5"], "scores: expected a file"),
        (
            ["--scores={}/scores.csv", "--labels={}/scores.csv", "--risk=0.1"]
            + ["--baseline={}/scores.csv"],
            "risk: expected with --tau where a predictions file is the baseline",
        ),
        (
            ["--scores={}/scores.csv", "--baseline={}/run", "--tau=0.1"],
            "tau: expected only with a predictions file as the baseline",
        ),
        (["--scores={}/scores.csv", "--tau=nan"], "tau: expected a finite number"),
        (["--scores={}/scores.csv", "word"], "received the word 'word'"),
    ],
)
def test_a_wrong_command_line_is_one_line(place, capsys, flags, told):
    with pytest.raises(SystemExit) as end:
        review.main([flag.format(place) for flag in flags])
    error = capsys.readouterr().err
    assert end.value.code == 2 and told in error and error.count("\n") == 1


def test_decisions_need_a_baseline_and_the_queue(place, capsys):
    labels = decide(place, production.answers(N, 1), [1])
    assert run(place, f"--labels={labels}") == 1
    assert "baseline: expected what the threshold was chosen on" in capsys.readouterr().err
    assert run(place, f"--labels={labels}", f"--baseline={place / 'run'}") == 1
    assert "labels: expected the queue that was checked" in capsys.readouterr().err


def test_nothing_to_check_is_one_line(place, capsys):
    assert run(place, "--budget=0", "--audit=0") == 1
    assert "budget: expected answers to check" in capsys.readouterr().err
