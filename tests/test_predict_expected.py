"""Tests of what `btcp_tf.predict` says of errors without labels."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tiny_model
from scipy import special

from btcp_tf import predict, thresholds
from btcp_tf.core import wording
from btcp_tf.decisions.expected_errors import expected_errors
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.serving.expectation import Expecting
from btcp_tf.serving.scorer import Scorer

RANDOM = np.random.default_rng(0)
KNOWN_U = RANDOM.random(300)
WRONG = RANDOM.random(300) < KNOWN_U / 2
KNOWN = Predictions(1 * WRONG, None, np.zeros(300, int), {"uncertainty": KNOWN_U})
IMAGES = RANDOM.integers(0, 256, (50, 8, 8, 1), dtype=np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, answer = tiny_model.save(tmp_path_factory.mktemp("model") / "1", tau=0.1)
    predictions.save_predictions(folder / "assets.extra" / "calibration.npz", KNOWN)
    np.save(folder.parent / "x.npy", IMAGES)
    u = answer(IMAGES)[1]
    assert 5 < (u < 0.1).sum() < 45
    return folder, u


@pytest.fixture
def copy(model, tmp_path):
    shutil.copytree(model[0].parent, tmp_path / "m")
    return tmp_path / "m" / "1"


def score(folder, output, *more, status=0):
    words = [f"--model={folder}", f"--input={folder.parent / 'x.npy'}", f"--output={output}"]
    assert predict.main([*words, *more]) == status


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("expected")]


def line(title, u):
    found = expected_errors(u, (WRONG, KNOWN_U))
    assert found.low < found.rate < found.high
    return (
        f"expected among {title}: {round(found.rate * len(u))} of {len(u)} wrong, "
        + wording.percent_text(found.rate, (found.low, found.high))
    )


def test_expected_errors_are_those_of_all_answers_however_they_were_scored(
    model, tmp_path, monkeypatch, capsys
):
    folder, u = model
    wanted = [line("all answers", u), line("accepted ones", u[u < 0.1])]
    score(folder, tmp_path / "whole.csv")
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:-1] == wanted
    assert printed[-1] == (
        "that is by u alone, in a 95 % interval, if an answer of some u is as often wrong as among "
        f"the 300 calibration rows ({WRONG.sum()} wrong); where inputs have changed, it can be "
        "far off, either way"
    )
    # In batches, and by two processes one after the other.
    answer, asked = Scorer.answer, []

    def stopping(self, batch):
        asked.append(1)
        if len(asked) == 3:
            raise RuntimeError("stopped")
        return answer(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "answer", stopping)
        score(folder, tmp_path / "s.csv", "--batch_size=7", status=1)
    for _ in range(2):  # And of a finished file.
        capsys.readouterr()
        score(folder, tmp_path / "s.csv", "--batch_size=7")
        assert lines(capsys) == wanted
    kept = json.loads((tmp_path / "s.csv.about.json").read_text())["summary"]["expectation"]
    assert kept["answers"]["rows"] == 50 and kept["accepted"]["rows"] == (u < 0.1).sum()


def test_rows_without_an_answer_do_not_count(copy, tmp_path, capsys):
    from PIL import Image

    (tmp_path / "in").mkdir()
    for number in range(4):
        Image.fromarray(IMAGES[number, ..., 0]).save(tmp_path / "in" / f"{number}.png")
    (tmp_path / "in" / "broken.png").touch()
    output = f"--output={tmp_path}/s.csv"
    assert predict.main([f"--model={copy}", f"--input={tmp_path}/in", output]) == 3
    assert " of 4 wrong, " in lines(capsys)[0]
    # None with an answer: there is nothing to say.
    for number in range(4):
        (tmp_path / "in" / f"{number}.png").write_bytes(b"")
    output = f"--output={tmp_path}/none.csv"
    assert predict.main([f"--model={copy}", f"--input={tmp_path}/in", output]) == 3
    assert lines(capsys) == []


def test_one_row_of_each_group_calibrates(copy, tmp_path, capsys):
    groups = np.repeat(np.arange(100), 3)
    rows = Predictions(KNOWN.labels, None, KNOWN.predicted, KNOWN.uncertainty, groups)
    predictions.save_predictions(copy / "assets.extra" / "calibration.npz", rows)
    score(copy, tmp_path / "s.csv")
    assert "among the 100 calibration rows" in capsys.readouterr().out


def test_accepted_answers_are_those_of_their_classes(tmp_path):
    """The same u means other error rates in two classes, each of which has a tau of its own."""
    random = np.random.default_rng(1)

    def drawn(n):
        u, predicted = random.random(n), random.integers(0, 2, n)
        wrong = random.random(n) < special.expit(special.logit(u) + 1 - 2.5 * predicted)
        return Predictions(
            np.where(wrong, 1 - predicted, predicted), None, predicted, {"uncertainty": u}
        )

    rows = drawn(4000)
    chosen = thresholds.choose(
        "target_risk",
        rows.is_error,
        rows.uncertainty["uncertainty"],
        by="predicted",
        names=rows.predicted,
        risk=0.1,
        delta=0.1,
    )
    folder, _ = tiny_model.save(tmp_path / "1", tau=0.1)
    predictions.save_predictions(folder / "assets.extra" / "calibration.npz", rows)
    expecting = Expecting(folder, {"threshold": dataclasses.asdict(chosen)})
    later = drawn(20_000)
    u = later.uncertainty["uncertainty"]
    accept = u < chosen.limits(later.predicted)
    expecting.add(
        [{"problem": "", "accept": a, "uncertainty": v} for a, v in zip(accept, u, strict=True)]
    )
    found = expecting.expectation()
    assert found.answers.low < later.is_error.mean() < found.answers.high
    assert found.accepted.low < later.is_error[accept].mean() < found.accepted.high
    # By all rows it would be far off.
    other = expected_errors(u[accept], (rows.is_error, rows.uncertainty["uncertainty"]))
    assert other.low > 1.2 * later.is_error[accept].mean()
    closed = dataclasses.replace(
        chosen, parts={n: dataclasses.replace(p, tau=None) for n, p in chosen.parts.items()}
    )
    expecting = Expecting(folder, {"threshold": dataclasses.asdict(closed)})
    expecting.add([{"problem": "", "accept": False, "uncertainty": 0.5}])
    assert expecting.expectation().accepted is None


def unlabeled(folder):
    rows = Predictions(None, None, KNOWN.predicted, KNOWN.uncertainty)
    predictions.save_predictions(folder / "calibration.npz", rows)


def changed(**more):
    def change(folder):
        about = folder / "btcp_tf.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | more))

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "calibration.npz").unlink(), "there are no calibration rows"),
        (lambda folder: (folder / "calibration.npz").write_bytes(b"x"), "cannot be read .*npz"),
        (unlabeled, "the calibration rows beside the model have no labels"),
        (changed(decide_only=True), r"only as far as its decision needs \(decide_only\)"),
        (changed(data={"no_promise": "9.0% of them are known"}), "as 9.0% of them are known"),
    ],
)
def test_where_it_is_not_known_it_says_why(copy, tmp_path, capsys, change, why):
    change(copy / "assets.extra")
    score(copy, tmp_path / "s.csv")
    [told] = lines(capsys)
    assert told.startswith("expected errors: not known, as ")
    assert re.search(why, told)


def test_a_file_that_was_finished_before_has_no_such_line(model, tmp_path, capsys):
    score(model[0], tmp_path / "s.csv")
    about = tmp_path / "s.csv.about.json"
    content = json.loads(about.read_text())
    del content["summary"]["expectation"]
    about.write_text(json.dumps(content))
    capsys.readouterr()
    score(model[0], tmp_path / "s.csv")
    assert "finished already" in capsys.readouterr().out
    assert lines(capsys) == []
