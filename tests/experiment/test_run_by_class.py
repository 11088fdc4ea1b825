"""A run whose SavedModel has a threshold for each predicted class, from end to end."""

import json

import numpy as np
import pytest
import tensorflow as tf
from short_run import words

from btcp_tf import monitor, report, set_threshold, thresholds
from btcp_tf.data import datasets
from btcp_tf.decisions import decision_file, exported
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import load_predictions
from btcp_tf.experiment.settings import parse
from btcp_tf.main import main
from btcp_tf.reporting import group_tables
from btcp_tf.thresholds import GroupThreshold

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks", "undrawn")

# A promise that some classes can keep with few answers in each.
BY = ("--threshold=target_risk", "--by=predicted", "--risk=0.4", "--delta=0.5", "--min_coverage=0")
PLAIN = ("--method=mcp", "--finetune_epochs=0", "--classifier_epochs=2", "--verbose=0")


def by_hand(calibration, grid):
    u = calibration.uncertainty["mcp"]
    parts = thresholds.target_risk_by_group(
        calibration.is_error,
        u,
        calibration.predicted,
        risk=0.4,
        delta=0.5,
        min_coverage=0,
        grid=grid,
    )
    return {str(number): part for number, part in parts.items()}


def test_a_run_decides_by_predicted_class(tmp_path, capsys):
    command = words(tmp_path, *PLAIN, *BY)
    assert main(command) == 0
    run = tmp_path / "run"
    decision = decision_file.load_decision(run)
    chosen = decision.threshold
    assert isinstance(chosen, GroupThreshold)
    validation = load_predictions(run / "predictions_validation.npz")
    grid = thresholds.quantile_grid(validation.uncertainty["mcp"])
    wanted = by_hand(decision.calibration, grid)
    assert chosen.parts.keys() == wanted.keys()
    for name, part in wanted.items():
        found = chosen.parts[name]
        assert (found.n, found.accepted, found.errors) == (part.n, part.accepted, part.errors)
    assert any(part.tau is None for part in wanted.values()) and chosen.accepted

    # The SavedModel decides by them.
    [version] = (tmp_path / "models" / "digits-trial").iterdir()
    assert thresholds.from_json(exported.read_about(version)["threshold"]) == chosen
    images = datasets.load("digits", seed=0, max_train_images=500).test.images
    answer = tf.saved_model.load(str(version)).signatures["serving_default"]
    found = {name: x.numpy() for name, x in answer(images=tf.constant(images)).items()}
    limits = chosen.limits(found["predicted"])
    np.testing.assert_array_equal(found["accept"], found["uncertainty"].astype(float) < limits)

    # So do the report and its notes.
    test = load_predictions(run / "predictions.npz")
    accepted = test.uncertainty["mcp"] < chosen.limits(test.predicted)
    page = (run / "report.html").read_text()
    of_parts, outcomes = group_tables.of_classes(chosen, test, "mcp", ())
    assert [line[0] for line in outcomes.lines] == sorted(map(str, np.unique(test.predicted)))
    for line in outcomes.lines:
        own = test.predicted == int(line[0])
        wanted_counts = (own.sum(), (own & test.is_error).sum(), (own & accepted).sum())
        assert tuple(cell.value for cell in line[1:4]) == wanted_counts
        assert line[4].value == (own & accepted & test.is_error).sum()
    assert [line[0] for line in of_parts.lines] == sorted(chosen.parts, key=int)
    assert (
        "A threshold for each predicted class; one with too few" in page
        and "u &lt; the tau of its predicted class" in page
    )
    _, extra = results.load_rows(run / "results.json")
    [note] = [note for note in extra["notes"] if note.startswith("threshold: ")]
    for name in chosen.closed([str(number) for number in range(10)]):
        assert name in note

    # Nothing is made again by the same command.
    assert main(command) == 0
    assert exported.versions(version.parent) == [1]

    # Another threshold, and back.
    assert set_threshold.main([str(version), "--threshold=0.3"]) == 0
    assert decision_file.load_decision(run).threshold.tau == 0.3
    with pytest.warns(UserWarning, match="nothing will be accepted of"):
        assert set_threshold.main([str(version.parent), *BY]) == 0
    assert decision_file.load_decision(run).threshold == chosen
    assert "u &lt; the tau of its predicted class" in (run / "report.html").read_text()
    assert report.main([str(run)]) == 0

    # And it is a baseline.
    capsys.readouterr()
    command = [f"--baseline={run}", f"--scores={run}/predictions.npz", "--column=mcp"]
    assert monitor.main(command) in (0, 3, 4)
    content = json.loads((run / "predictions.npz-monitor" / "monitor.json").read_text())
    assert content["threshold"]["by"] == "predicted"
    assert content["figures"]["accepted"]["count"] == accepted.sum()


def test_the_setting_goes_with_target_risk_alone(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(words(tmp_path, "--threshold=best_bacc", "--by=predicted"))
    assert "by: expected only with --threshold=target_risk" in capsys.readouterr().err
    assert parse(words(tmp_path, *BY)).by == "predicted"
