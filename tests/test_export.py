"""Tests of the command that gives a SavedModel another threshold."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

from btcp_tf import set_threshold, thresholds
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import ABOUT_FILE, COLUMN
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.serving import saved_model

pytestmark = pytest.mark.usefixtures("quick_checks")

RNG = np.random.default_rng(0)
U = RNG.random(400).astype(np.float32)
# Wrong as often as u says, a tenth of the time at most.
WRONG = RNG.random(400) < 0.1 * U
ROWS = Predictions(np.where(WRONG, 1, 0), None, np.zeros(400, np.int64), {COLUMN: U})
VALIDATION_U = RNG.random(300).astype(np.float32)
VALIDATION = Predictions(
    np.zeros(300, np.int64), None, np.zeros(300, np.int64), {COLUMN: VALIDATION_U}
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A version directory of a model of rows."""
    keras.utils.set_random_seed(0)
    rows = keras.Input((4,))
    model = keras.Model(
        rows,
        {
            "probs": layers.Dense(2, activation="softmax")(rows),
            "uncertainty": layers.Dense(1, activation="sigmoid")(rows),
        },
    )
    return saved_model.export(
        model,
        tmp_path_factory.mktemp("models"),
        "rows",
        ("no", "yes"),
        RNG.random((3, 4)).astype(np.float32),
        threshold=thresholds.DEFAULT,
        held_out={"calibration": ROWS, "validation": VALIDATION},
    )


def test_weights_are_there_once(tmp_path):
    rows = keras.Input((4,))
    wide = layers.Dense(20_000)(rows)
    probs, u = layers.Dense(2, activation="softmax")(wide), layers.Dense(1, "sigmoid")(wide)
    model = keras.Model(rows, {"probs": probs, "uncertainty": u})
    sample = RNG.random((3, 4)).astype(np.float32)
    path = saved_model.export(
        model, tmp_path, "rows", ("no", "yes"), sample, threshold=thresholds.DEFAULT
    )
    [data] = (path / "variables").glob("*.data-*")
    assert 4 * 80_000 <= data.stat().st_size < 1.3 * 4 * 80_000


def threshold_of(path):
    return thresholds.Threshold(**exported.read_about(path)["threshold"])


def test_thresholds_are_those_of_the_rules_on_the_calibration_rows(source, capsys):
    grid = thresholds.quantile_grid(VALIDATION_U)
    wanted = {
        "--threshold=0.25": thresholds.given(WRONG, U, tau=0.25),
        "--threshold=best_bacc": thresholds.best_bacc(WRONG, U),
        "--threshold=target_coverage --coverage=0.7": thresholds.target_coverage(U, coverage=0.7),
        "--threshold=target_risk --risk=0.08 --min_coverage=0.5": thresholds.target_risk(
            WRONG, U, risk=0.08, delta=0.05, grid=grid, min_coverage=0.5
        ),
    }
    # Of the parent folder, the newest version is taken: the decision of each replaces the last.
    for words, threshold in wanted.items():
        before = exported.versions(source.parent)
        assert set_threshold.main([str(source.parent), *words.split()]) == 0
        [new] = set(exported.versions(source.parent)) - set(before)
        assert threshold_of(source.parent / str(new)) == threshold
        told = capsys.readouterr().out
        assert told.endswith(f"{source.parent / str(new)}\n")
        # Each step that may take a while.
        starts = ["loading", "before", "now", "writing and checking", f"{source.parent}"]
        for line, start in zip(told.splitlines(), starts, strict=True):
            assert line.startswith(start)
    assert threshold_of(source) == thresholds.DEFAULT


def test_trials_go_elsewhere(source, tmp_path):
    before = exported.versions(source.parent)
    assert (
        set_threshold.main([str(source), "--threshold=0.2", f"--export_dir={tmp_path}/trials"]) == 0
    )
    assert exported.versions(source.parent) == before
    assert threshold_of(tmp_path / "trials" / source.parent.name / "1").tau == 0.2


def test_a_promise_that_is_lost_or_weakened_is_named_with_the_new_one(source, tmp_path, recwarn):
    def now(*settings):
        recwarn.clear()
        words = [str(source), f"--export_dir={tmp_path}", *settings]
        assert set_threshold.main(words) == 0
        return "; ".join(str(warning.message) for warning in recwarn)

    def promise(risk, delta):
        return ["--threshold=target_risk", f"--risk={risk}", f"--delta={delta}"]

    folder = tmp_path / source.parent.name
    assert now(*promise(0.08, 0.05)) == ""
    assert now(*promise(0.1, 0.05)).startswith(
        f"{folder}/1 promises error rate <= 0.08 with probability 0.95; this one promises error "
        "rate <= 0.1 with probability 0.95; "
    )
    assert f"{folder}/2 promises error rate <= 0.1" in now("--threshold=best_bacc")
    assert exported.versions(folder) == [1, 2, 3]


def test_scores_of_ones_own_replace_the_calibration_rows(source, tmp_path):
    few = Predictions(
        np.array([0, 0, 1, 1]),
        None,
        np.array([0, 0, 0, 0]),
        {COLUMN: np.array([0.1, 0.2, 0.6, 0.7], np.float32)},
    )
    predictions.save_predictions(tmp_path / "few.npz", few)
    assert (
        set_threshold.main([str(source), "--threshold=best_bacc", f"--scores={tmp_path}/few.npz"])
        == 0
    )
    newest = exported.newest(source.parent)
    assert threshold_of(newest).tau == pytest.approx(0.4)
    found = exported.read_held_out(newest)
    np.testing.assert_array_equal(found["calibration"].labels, few.labels)
    np.testing.assert_array_equal(found["validation"].labels, VALIDATION.labels)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "expected one SavedModel, received none"),
        (["{source}"], 2, "threshold: expected a rule or a number, received none"),
        (["{source}", "--threshold=best"], 2, "threshold: expected one of best_bacc, .* 'best'"),
        (["{source}", "--threshold=nan"], 2, "or a number above 0, received 'nan'"),
        (
            ["{source}", "--threshold=target_risk", "--risk=0.001"],
            1,
            "one that 400 rows can support, .* not achievable; .* no version is written",
        ),
        (["{source}", "--threshold=0.5", "--scores={tmp}/three.npz"], 1, "received 3 classes: the"),
        (
            ["{source}", "--threshold=0.5", "--scores={tmp}/one.npz"],
            1,
            "labels: expected classes 0 to 1, received 2; subtract 1 if they count from 1",
        ),
        (["{source}", "--threshold=0.5", "--scores={tmp}/s.csv"], 1, "the class name 'maybe': the"),
        (["{source}", "--threshold=target_risk", "--risk=2"], 2, "risk: expected a finite number"),
        (["{tmp}", "--threshold=0.5"], 1, "its numbered versions, received .* holds neither"),
        (
            ["{source}", "--threshold=0.5", "--scores={tmp}/x.csv"],
            2,
            r"scores: expected a file \(.*\), received .*x.csv, which is not there",
        ),
        (["{source}", "--threshold=0.5", "--scores={tmp}"], 2, r"scores: expected a file \(.csv"),
        (
            ["{source}", "--threshold=target_coverage", "--risk=0.05"],
            2,
            "risk: expected only with --threshold=target_risk, received it with --threshold=target",
        ),
        (
            ["{source}", "--delta", "0.1", "--threshold=0.5"],
            2,
            "delta: expected only with --threshold=target_risk, received it with --threshold=0.5",
        ),
        (
            ["--coverage=0.9", "{source}", "--threshold=best_bacc"],
            2,
            "coverage: expected only with --threshold=target_coverage, received",
        ),
        (
            ["{source}", "--threshold=0.5", "--export_dir={tmp}/s.csv"],
            1,
            "export_dir: expected a folder that can be written, received '.*s.csv is a file",
        ),
        (
            ["{source}", "--threshold=0.5", "--scores={tmp}/other.npz"],
            1,
            "expected a column uncertainty, received mcp",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    source, tmp_path, capsys, words, status, message
):
    other = Predictions(ROWS.labels, None, ROWS.predicted, {"mcp": U})
    predictions.save_predictions(tmp_path / "other.npz", other)
    three = Predictions(ROWS.labels, np.full((400, 3), 1 / 3), ROWS.predicted, ROWS.uncertainty)
    predictions.save_predictions(tmp_path / "three.npz", three)
    one = dataclasses.replace(ROWS, labels=ROWS.labels + 1)
    predictions.save_predictions(tmp_path / "one.npz", one)
    row = "labels,predicted,class_name,uncertainty\n0,1,maybe,0.5\n"
    (tmp_path / "s.csv").write_text(row)
    before = exported.versions(source.parent)
    words = [word.format(source=source, tmp=tmp_path) for word in words]
    if status == 2:
        with pytest.raises(SystemExit) as stopped:
            set_threshold.main(words)
        assert stopped.value.code == 2
    else:
        assert set_threshold.main(words) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)
    assert exported.versions(source.parent) == before


def test_no_promise_on_calibration_images_that_were_trained_on(source, tmp_path, capsys):
    copy = shutil.copytree(source, tmp_path / "rows" / "1")
    about = copy / ABOUT_FILE
    content = json.loads(about.read_text()) | {"data": {"no_promise": "9.0% of them are known"}}
    about.write_text(json.dumps(content))
    promise = [str(copy), "--threshold=target_risk", "--risk=0.2"]
    assert set_threshold.main(promise) == 1
    assert "as 9.0% of them are known; name labeled scores" in capsys.readouterr().err
    assert exported.versions(copy.parent) == [1]
    predictions.save_predictions(tmp_path / "new.npz", ROWS)
    assert set_threshold.main([*promise, f"--scores={tmp_path}/new.npz"]) == 0
    assert set_threshold.main([str(copy), "--threshold=best_bacc"]) == 0


def test_help_does_not_wait_for_tensorflow():
    script = (
        "import sys\n"
        "from btcp_tf import export\n"
        "try:\n    export.main(['--help'])\n"
        "except SystemExit:\n    print('tensorflow' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert "--min_coverage" in shown
    assert shown.splitlines()[-1] == "False"
