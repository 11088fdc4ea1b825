"""What runs export and publish, and how they end where they cannot."""

import dataclasses
import html
import json
import os
import pathlib
import shutil
import types

import keras
import numpy as np
import pytest
from short_run import TUNED, words
from sklearn.linear_model import LogisticRegression

from btcp_tf import metrics, set_threshold, thresholds
from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.decisions import decision_file, exported
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation import results
from btcp_tf.evaluation.keys import (
    CALIBRATION,
    CLASSIFIER,
    VALIDATION,
)
from btcp_tf.evaluation.predictions import Predictions, load_predictions
from btcp_tf.experiment import decide, publish
from btcp_tf.experiment import run as run_
from btcp_tf.experiment.decide import EvaluationSettings
from btcp_tf.experiment.score import Scorer, ScoreSettings
from btcp_tf.experiment.settings import parse
from btcp_tf.experiment.values import Choice
from btcp_tf.main import main
from btcp_tf.reporting import drawing
from btcp_tf.serving import publishing
from btcp_tf.serving.publishing import Comparison
from btcp_tf.training import diagnosis

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


PLAIN = ("--method=mcp", "--finetune_epochs=0", "--classifier_epochs=2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A finished run without estimators, for tests of what it is published as."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_render", lambda figure, ending: b"")
        assert main(words(folder, *PLAIN, "--verbose=0")) == 0
    return folder


def test_a_classifier_that_learned_nothing_is_not_exported(undrawn, tmp_path, capsys):
    diverged = words(tmp_path, "--method=mcp", "--classifier_epochs=1", "--verbose=1")
    assert main([*diverged, "--learning_rate=1e3", "--batch_size=1000"]) == 1
    printed = capsys.readouterr()
    assert "not exported: the classifier answers class" in printed.out
    assert "--export_collapsed" in printed.err
    assert not (tmp_path / "models").exists()


def test_a_collapsed_estimator_is_not_exported_unless_asked_for(
    undrawn, unchecked, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(diagnosis, "collapse", lambda *_: "the estimator collapsed to a constant")
    short = words(tmp_path, "--classifier_epochs=1", "--estimator_epochs=1", "--finetune_epochs=0")
    short += ["--method=mcp,btcp", "--export_method=btcp"]
    for _ in range(2):  # And again where it is finished.
        assert main(short) == 1
        printed = capsys.readouterr()
        assert "not exported: the estimator collapsed" in printed.out
        [line] = printed.err.strip().splitlines()
        assert line.startswith("error: not exported: the estimator collapsed")
        assert "--export_collapsed" in line
        assert not (tmp_path / "models").exists()
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert "btcp: the estimator collapsed to a constant" in extra["notes"]

    assert main([*short, "--export_collapsed"]) == 0
    assert os.listdir(tmp_path / "models" / "digits-trial") == ["1"]


def unfinished(finished, tmp_path):
    """A copy of the finished run, trained to its end, of which the export is still to do."""
    shutil.copytree(finished / "run", tmp_path / "run")
    for name in ("finished.json", "publication.json", "report.html", "results.json"):
        (tmp_path / "run" / name).unlink()
    return tmp_path / "run"


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), TypeError("a fault")])
def test_a_run_is_reported_whatever_the_export_does(
    undrawn, unchecked, plain, tmp_path, monkeypatch, capsys, fault
):
    folder = unfinished(plain, tmp_path)

    def failing(*arguments, **settings):
        # As if the machine were switched off now: all of the report is there.
        assert "SavedModel" in (folder / "report.html").read_text()
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("btcp_tf.serving.saved_model.export", failing)
        for _ in range(2):
            if isinstance(fault, OSError):
                assert main(words(tmp_path, *PLAIN)) == 1
                [line] = capsys.readouterr().err.strip().splitlines()
                assert line.startswith("error: not exported: ") and "the same command" in line
            else:
                with pytest.raises(TypeError, match="a fault"):
                    main(words(tmp_path, *PLAIN))
            reason = json.loads((folder / "finished.json").read_text())["saved_model"]
            assert fault.args[-1] in reason and "Errno" not in reason
            assert html.escape(reason) in (folder / "report.html").read_text()
    before = (folder / "results.json").read_bytes()
    assert before == (plain / "run" / "results.json").read_bytes()
    capsys.readouterr()
    assert main(words(tmp_path, *PLAIN)) == 0
    printed = capsys.readouterr().out
    path = str(tmp_path / "models" / "digits-trial" / "1")
    assert f"SavedModel  {path}" in printed and "Epoch" not in printed
    assert json.loads((folder / "finished.json").read_text())["saved_model"] == path
    page = (folder / "report.html").read_text()
    assert path in page and "not exported" not in page
    assert (folder / "results.json").read_bytes() == before
    # Once for the copied run, once in this one: a further export scores no test image.
    assert (folder / "run.log").read_text().count("scored the test set") == 2


def test_a_kill_behind_the_export_adds_no_version(undrawn, unchecked, plain, tmp_path, monkeypatch):
    folder = unfinished(plain, tmp_path)
    for _ in range(2):
        with monkeypatch.context() as patch:

            def killed(*arguments):
                raise KeyboardInterrupt

            patch.setattr(publish, "finish_run", killed)
            assert main(words(tmp_path, *PLAIN)) == 130
        assert not (folder / "finished.json").exists()
        assert (folder / "report.html").exists()
        assert os.listdir(tmp_path / "models" / "digits-trial") == ["1"]
    assert main(words(tmp_path, *PLAIN)) == 0
    assert os.listdir(tmp_path / "models" / "digits-trial") == ["1"]
    # Another threshold of it is not the run's own.
    path = tmp_path / "models" / "digits-trial" / "1"
    assert set_threshold.main([str(path), "--threshold=0.25"]) == 0
    assert "publication" in exported.read_about(path)
    assert "publication" not in exported.read_about(path.with_name("2"))


def test_what_is_worse_than_the_version_it_replaces_is_published_when_asked_for(
    undrawn, unchecked, plain, tmp_path, monkeypatch, capsys
):
    folder = unfinished(plain, tmp_path)
    shutil.copytree(plain / "models", tmp_path / "models")
    first = tmp_path / "models" / "digits-trial" / "1"
    found = Comparison(50, new_errors=20, old_errors=5, only_new=16, only_old=1)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "compare_with", lambda *arguments, **named: found)
        for _ in range(2):
            assert main(words(tmp_path, *PLAIN, "--verbose=0")) == 1
            [line] = capsys.readouterr().err.strip().splitlines()
            assert f"{first} about 5 of them" in line and "--publish publishes it" in line
            assert exported.versions(first.parent) == [1]
            assert "--publish" in (folder / "report.html").read_text()
        assert main(words(tmp_path, *PLAIN, "--publish")) == 0
    assert exported.versions(first.parent) == [1, 2]
    assert "about 5 of them" in exported.read_about(first.with_name("2"))["replaces"]


def test_a_version_that_cannot_be_compared_is_told(undrawn, unchecked, plain, tmp_path, capsys):
    unfinished(plain, tmp_path)
    shutil.copytree(plain / "models", tmp_path / "models")
    about = tmp_path / "models" / "digits-trial" / "1" / ABOUT_FILE
    content = json.loads(about.read_text())
    about.write_text(json.dumps({**content, "data": {"fingerprint": "other"}}))
    assert main(words(tmp_path, *PLAIN)) == 0
    assert "cannot be compared: it was trained on other data" in capsys.readouterr().out
    assert exported.versions(about.parents[2]) == [1, 2]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (["--dataset=digits"], "digits"),
        (["--dataset=digits", "--preset=fast"], "digits"),
        (["--dataset=digits", "--preset=smoke"], "digits-smoke"),
        (["--dataset=digits", "--preset=quick"], "digits-quick"),
        (["--dataset=digits", "--max_train_images=500"], "digits-trial"),
        (["--dataset=digits", "--preset=smoke", "--export_name=mine"], "mine"),
    ],
)
def test_trials_are_exported_beside_what_is_served(settings, name):
    config = parse([*settings, "--export_dir=models"])
    assert run_._export_folder(config, "digits") == pathlib.Path("models") / name


def test_half_of_the_answers_of_a_sure_classifier_are_accepted_where_half_are_to_be(
    undrawn, tmp_path
):
    import tensorflow as tf

    digits = datasets.load("digits")
    flat = digits.train.images.reshape(len(digits.train), -1) / 255
    regression = LogisticRegression(max_iter=300).fit(flat, digits.train.labels)
    last = keras.layers.Dense(10)
    pixels = keras.layers.Rescaling(1 / 255)
    model = keras.Sequential([keras.Input((8, 8, 1)), pixels, keras.layers.Flatten(), last])
    # So sure that 1 - max(probs) is 0 in single precision for most.
    last.set_weights([8 * regression.coef_.T, 8 * regression.intercept_])
    model.save(tmp_path / "sure.keras")
    same = ["--dataset=digits", f"--classifier={tmp_path}/sure.keras", "--classifier_pixels=0_255"]
    same += ["--method=mcp", "--threshold=target_coverage", "--coverage=0.5", "--verbose=0"]
    same += ["--bootstrap_draws=20", f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/m"]
    assert main(same) == 0
    found = load_predictions(tmp_path / "run" / "predictions.npz")
    assert (found.probs.max(axis=1) == 1).mean() > 0.5
    tau = decision_file.load_decision(tmp_path / "run").threshold.tau
    accept = found.uncertainty["mcp"] < tau
    served = tf.saved_model.load(str(tmp_path / "m" / "digits" / "1")).signatures
    answers = served["serving_default"](images=tf.constant(digits.test.images))
    np.testing.assert_array_equal(answers["accept"], accept)
    assert 0.4 < accept.mean() < 0.6
    # Its calibration rows travel along with all of their digits.
    calibration = exported.read_held_out(tmp_path / "m" / "digits" / "1")["calibration"]
    u = calibration.uncertainty["uncertainty"]
    answers = served["serving_default"](images=tf.constant(digits.calibration.images))
    np.testing.assert_array_equal(answers["accept"], u < tau)
    assert set_threshold.main([str(tmp_path / "m" / "digits"), "--threshold=target_coverage"]) == 0
    path = tmp_path / "m" / "digits" / "2"
    answers = tf.saved_model.load(str(path)).signatures["serving_default"](
        images=tf.constant(digits.calibration.images)
    )
    chosen = thresholds.target_coverage(u, coverage=0.9)
    np.testing.assert_array_equal(answers["accept"], u < chosen.tau)


def test_whose_u_is_exported():
    is_error = np.arange(20) < 5
    good, fair, bad = is_error - 0.5, np.r_[0.9, 0.8, 0.7, np.full(17, 0.5)], -1.0 * is_error

    def rows(**columns):
        columns = {name: (u + 1) / 3 for name, u in columns.items()}
        return Predictions(is_error.astype(int), None, np.zeros(20, int), columns)

    def chosen(tuned=None, held_out_u=None, **columns):
        predictions = {(VALIDATION, CLASSIFIER): rows(**columns)}
        if tuned:
            predictions[VALIDATION, TUNED] = rows(**tuned)
        pairs = decide.candidates(tuple(columns), ("btcp",) if tuned else ())
        return decide.choose_export(predictions, pairs, held_out_u or {})

    assert chosen(mcp=fair, tcp=good, btcp=bad)[:2] == (CLASSIFIER, "tcp")
    # Of equal ones the one that costs nothing, wherever it stands.
    assert chosen(tcp=fair, mcp=fair)[:2] == (CLASSIFIER, "mcp")
    # `residual` was fitted on these images: what counts is u by a fit that has not seen them.
    assert chosen(mcp=fair, residual=good)[:2] == (CLASSIFIER, "residual")
    seen = {"residual": (bad + 1) / 3}
    assert chosen(None, seen, mcp=fair, residual=good)[:2] == (CLASSIFIER, "mcp")
    # A fine-tuned classifier comes with MCP and with its own estimator.
    both = dict(mcp=bad, btcp=fair)
    assert chosen(tuned=dict(mcp=fair, btcp=good), **both)[:2] == (TUNED, "btcp")
    assert chosen(tuned=dict(mcp=good, btcp=bad), **both)[:2] == (TUNED, "mcp")
    assert chosen(tuned=dict(mcp=bad, btcp=bad), **both)[:2] == (CLASSIFIER, "btcp")
    # What a SavedModel cannot answer is no candidate.
    assert chosen(mcp=fair, knn=good)[:2] == (CLASSIFIER, "mcp")
    found = chosen(mcp=bad, btcp=fair)
    assert found[:2] == (CLASSIFIER, "btcp")
    assert "20 validation images, 5 of them wrong" in found.reason
    for name, u in (("btcp", fair), ("mcp", bad)):
        assert f"{1000 * metrics.aurc(is_error, u):.3g}" in found.reason, name


def test_what_collapsed_is_no_candidate_unless_asked_for():
    is_error = np.arange(20) < 5
    columns = {"mcp": np.full(20, 0.5), "btcp": 0.4 + 0.2 * is_error, "tcp": 1.0 * is_error}
    columns["btcp"][0] = 0.0
    rows = Predictions(is_error.astype(int), None, np.zeros(20, int), columns)
    networks = {
        name: types.SimpleNamespace(collapse="it collapsed" * (name == "tcp"))
        for name in ("classifier", "tcp", "btcp")
    }
    predictions = {(VALIDATION, CLASSIFIER): rows}
    config = Config(dataset="digits", method=("mcp", "tcp", "btcp"), finetune_method=())

    def chosen(**changes):
        changed = dataclasses.replace(config, **changes)
        scorer = Scorer(changed.take(ScoreSettings), networks, [], {}, None)
        return run_._choose_export(changed, scorer, predictions)

    assert chosen().method == "btcp"
    assert chosen(export_collapsed=True).method == "tcp"
    # All of them hang on the classifier: then there is nothing better to take.
    networks["classifier"].collapse = "it answers one class"
    assert chosen().method == "tcp"


@pytest.mark.parametrize("name", ["mcp", "btcp", "residual"])
def test_a_method_that_is_asked_for_is_exported(name):
    config = Config(dataset="digits", method=("mcp", "btcp", "residual"), export_method=name)
    predictor = TUNED if name == "btcp" else CLASSIFIER
    found = run_._choose_export(config, None, {})
    assert found == (predictor, name, f"--export_method={name}")
    trial = dataclasses.replace(config, max_train_images=500)
    reason = run_._choose_export(trial, None, {}).reason
    assert reason.startswith(f"--export_method={name}; a trial with 500 training images")


def test_an_export_that_ranks_worse_than_mcp_is_told():
    random = np.random.default_rng(0)
    is_error = random.random(400) < 0.3
    probs = np.where(is_error, 0.6, 0.9) + random.normal(0, 0.02, 400)
    columns = {
        "mcp": 1 - probs,
        "btcp": np.where(is_error, 0.4, 0.5) + random.normal(0, 0.2, 400),
    }
    probs = np.stack([probs, 1 - probs], axis=1)
    rows = Predictions(is_error.astype(int), probs, np.zeros(400, int), columns)

    def notes(method, mcp=True):
        column = {name: u for name, u in columns.items() if mcp or name != "mcp"}
        part = dataclasses.replace(rows, uncertainty=column)
        found = {(images, CLASSIFIER): part for images in (VALIDATION, CALIBRATION)}
        choice = Choice(CLASSIFIER, method, "asked for")
        decision, warnings = decide.decide(found, choice, "best_bacc", {"tau": 0.5})
        assert (decision.method, decision.predictor, warnings) == (method, CLASSIFIER, [])
        beside = None if mcp else columns["mcp"]
        return decide.worse_than_mcp(decision, beside, EvaluationSettings(0, 0.5, 1000))

    assert notes("mcp") == []
    for mcp in (True, False):
        [note] = notes("btcp", mcp)
        assert "the SavedModel answers btcp, which ranks the errors" in note
        assert f"mcp {1000 * metrics.aurc(is_error, columns['mcp']):.4g}, btcp" in note
    columns["btcp"] = columns["mcp"] ** 2
    assert notes("btcp") == []


def test_residual_alone_is_exported(undrawn, tmp_path):
    short = words(tmp_path, "--method=residual", "--export_collapsed", "--threshold=0.25")
    assert main([*short, "--classifier_epochs=2", "--finetune_epochs=0"]) == 0
    folder = tmp_path / "run"
    rows, _ = results.load_rows(folder / "results.json")
    assert [row["method"] for row in rows] == ["residual"]
    decision = decision_file.load_decision(folder)
    assert (decision.method, decision.threshold.tau) == ("residual", 0.25)
    about = tmp_path / "models" / "digits-trial" / "1" / "assets.extra" / "btcp_tf.json"
    assert json.loads(about.read_text())["uncertainty"]["method"] == "residual"


def test_a_run_without_an_estimator_exports_mcp(undrawn, unchecked, tmp_path):
    import tensorflow as tf

    assert main(words(tmp_path, "--method=mcp", "--classifier_epochs=1", "--verbose=0")) == 0
    rows, _ = results.load_rows(tmp_path / "run" / "results.json")
    assert [row["method"] for row in rows] == ["mcp"]
    model = tf.saved_model.load(str(tmp_path / "models" / "digits-trial" / "1"))
    answers = model.signatures["serving_default"](images=np.zeros((2, 8, 8, 1), np.uint8))
    np.testing.assert_allclose(
        answers["uncertainty"], 1 - answers["probs"].numpy().max(axis=1), atol=1e-6
    )
