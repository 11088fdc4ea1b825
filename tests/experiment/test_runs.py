import contextlib
import csv
import dataclasses
import hashlib
import html
import json
import os
import pathlib
import re
import shutil
import signal
import time
import types

import fresh
import keras
import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from btcp_tf import metrics, set_threshold, thresholds
from btcp_tf.core import files
from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.decisions import decision_file, exported
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import (
    CALIBRATION,
    CLASSIFIER,
    TEST,
    VALIDATION,
    ImageSet,
    Predictor,
)
from btcp_tf.evaluation.predictions import Predictions, load_predictions
from btcp_tf.experiment import decide, notes, prepare, publish
from btcp_tf.experiment import run as run_
from btcp_tf.experiment.decide import EvaluationSettings
from btcp_tf.experiment.score import Scorer, ScoreSettings
from btcp_tf.experiment.settings import parse, save_flagfile
from btcp_tf.experiment.train import Trainer
from btcp_tf.experiment.values import Choice
from btcp_tf.main import main
from btcp_tf.methods import residual_choice
from btcp_tf.reporting import drawing, pages
from btcp_tf.serving import export_check, publishing
from btcp_tf.serving.publishing import Comparison
from btcp_tf.training import diagnosis, distribution
from btcp_tf.training.inference import Inference
from btcp_tf.training.settings import TrainingSettings

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")

TUNED = Predictor("btcp", "finetuned")

WORDS = [
    "--dataset=digits",
    "--max_train_images=500",
    "--classifier_epochs=6",
    "--estimator_epochs=6",
    "--finetune_epochs=6",
    "--bootstrap_draws=50",
]


def words(folder, *more):
    return [*WORDS, f"--output_dir={folder}/run", f"--export_dir={folder}/models", *more]


def hashes(folder):
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run on digits; what it printed is in `printed`."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        # Others draw them; here their files are enough.
        patch.setattr(drawing, "_render", lambda figure, ending: b"")
        assert main(words(folder, "--verbose=0")) == 0
    return folder


PLAIN = ("--method=mcp", "--finetune_epochs=0", "--classifier_epochs=2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A finished run without estimators, for tests of what it is published as."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_render", lambda figure, ending: b"")
        assert main(words(folder, *PLAIN, "--verbose=0")) == 0
    return folder


def test_leaves_the_files_of_a_run(whole):
    found = {path.name for path in (whole / "run").iterdir()}
    expected = "flags.cfg history.csv predictions.npz predictions_btcp_finetuned.npz results.json"
    expected += " figures tensorboard checkpoints report.html run.log finished.json decision.json"
    assert set(expected.split()) <= found
    figures = {path.stem for path in (whole / "run" / "figures").glob("*.pdf")}
    assert {
        "uncertainty_histogram",
        "risk_coverage",
        "roc",
        "reliability",
        "uncertainty_per_epoch",
        "fpr_fnr_per_epoch",
        "most_confident_errors",
    } <= figures
    log = (whole / "run" / "run.log").read_text()
    assert log.count("scored the test set: 355 images") == 1


def test_rows_are_of_two_classifiers(whole):
    rows, extra = results.load_rows(whole / "run" / "results.json")
    assert [(row["stage"], row["method"]) for row in rows] == [
        ("frozen", "mcp"),
        ("frozen", "tcp"),
        ("frozen", "btcp"),
        ("frozen", "residual"),
        ("finetuned", "mcp"),
        ("finetuned", "btcp"),
    ]
    ids = [row["classifier_id"] for row in rows]
    assert len(set(ids[:4])) == len(set(ids[4:])) == 1 and ids[0] != ids[4]
    assert all(row["n"] == 355 and row["accuracy"] > 0.6 for row in rows)
    assert extra["data"]["test"] == 355
    assert any("only 500 training images used" in note for note in extra["notes"])
    assert extra["environment"]["tensorflow"]


def test_results_follow_from_the_predictions(whole):
    rows, _ = results.load_rows(whole / "run" / "results.json")
    for stage, name in (("frozen", "predictions"), ("finetuned", "predictions_btcp_finetuned")):
        found = load_predictions(whole / "run" / f"{name}.npz")
        wrong = found.probs.argmax(axis=1) != found.labels
        for row in rows:
            if row["stage"] == stage:
                assert row["errors"] == wrong.sum()
                u = found.uncertainty[row["method"]]
                assert row["auroc"] == pytest.approx(roc_auc_score(wrong, u))
        np.testing.assert_allclose(found.uncertainty["mcp"], 1 - found.probs.max(axis=1), atol=1e-6)


def test_history_has_every_epoch_on_validation_data(whole):
    with open(whole / "run" / "history.csv", newline="") as file:
        history = list(csv.DictReader(file))
    stages = [row["stage"] for row in history]
    assert stages == [
        stage for stage in ("classifier", "tcp", "btcp", "btcp_finetuned") for _ in range(6)
    ]
    validation = load_predictions(whole / "run" / "predictions_validation.npz")
    last = [row for row in history if row["stage"] == "btcp"][-1]
    u = validation.uncertainty["btcp"].astype(np.float64)
    assert float(last["u_mean"]) == pytest.approx(u.mean(), rel=1e-5)
    assert float(last["u_std"]) == pytest.approx(u.std(), rel=1e-5)
    assert float(last["accuracy"]) == pytest.approx(1 - validation.is_error.mean())


def test_saved_model_answers_what_the_run_scored(whole):
    import tensorflow as tf

    path = json.loads((whole / "run" / "finished.json").read_text())["saved_model"]
    assert path == str(whole / "models" / "digits-trial" / "1")
    images = datasets.load("digits", max_train_images=500).test.images
    answers = tf.saved_model.load(path).signatures["serving_default"](images=images)
    decision = decision_file.load_decision(whole / "run")
    method = decision.method
    found = load_predictions(whole / "run" / keys.predictions_file(TEST, decision.predictor))
    np.testing.assert_allclose(answers["probs"], found.probs, atol=1e-5)
    np.testing.assert_allclose(answers["uncertainty"], found.uncertainty[method], atol=1e-5)
    rows = decision.calibration
    best = thresholds.best_bacc(rows.is_error, rows.uncertainty[method])
    best = thresholds.clear_of(best, rows.uncertainty[method])
    assert decision.threshold == best
    np.testing.assert_array_equal(answers["accept"], found.uncertainty[method] < best.tau)
    beside = exported.read_held_out(path)["calibration"]
    np.testing.assert_array_equal(beside.uncertainty["uncertainty"], rows.uncertainty[method])
    about = exported.read_about(path)
    assert about["uncertainty"] == {"method": method, "stage": decision.predictor.stage}
    assert about["threshold"] == dataclasses.asdict(best)


def test_what_is_exported_ranks_the_validation_errors_best(whole):
    decision = decision_file.load_decision(whole / "run")
    aurc = {}
    for predictor in (CLASSIFIER, TUNED):
        rows = load_predictions(whole / "run" / keys.predictions_file(VALIDATION, predictor))
        for name, u in rows.uncertainty.items():
            # Of `residual` the file has u by the fit that has seen these rows.
            if name != "residual":
                aurc[predictor, name] = metrics.aurc(rows.is_error, u)
    chosen = decision.predictor, decision.method
    if chosen in aurc:
        assert aurc[chosen] == min(aurc.values())
    for value in aurc.values():
        assert f"{1000 * value:.3g}" in decision.reason


def test_promises_are_made_on_calibration_and_told_of_the_test_set(whole):
    _, extra = results.load_rows(whole / "run" / "results.json")
    promises = extra["promises"]
    assert [(row["method"], row["stage"]) for row in promises[::3]] == [
        ("mcp", "frozen"),
        ("tcp", "frozen"),
        ("btcp", "frozen"),
        ("residual", "frozen"),
        ("mcp", "finetuned"),
        ("btcp", "finetuned"),
    ]
    validation, calibration, test = (
        load_predictions(whole / "run" / f"predictions{split}.npz")
        for split in ("_validation", "_calibration", "")
    )
    for row in promises[:9]:
        name = row["method"]
        grid = thresholds.quantile_grid(validation.uncertainty[name])
        chosen = thresholds.target_risk(
            calibration.is_error,
            calibration.uncertainty[name],
            risk=row["target"],
            delta=0.05,
            grid=grid,
            min_coverage=0.3,
        )
        assert row["tau"] == chosen.tau
        if chosen.tau is not None:
            accepted = test.uncertainty[name].astype(np.float64) < chosen.tau
            assert row["test_accepted"] == accepted.sum()
            assert row["test_errors"] == test.is_error[accepted].sum()
    # 50 calibration images are too few for 1 %, and enough for none without an error.
    assert promises[0]["target"] == 0.01 and promises[0]["tau"] is None


def test_tensorboard_has_every_phase_under_one_run(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "run" / "tensorboard"), {"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    for stage in ("classifier", "tcp", "btcp", "btcp_finetuned"):
        assert [event.step for event in events.Tensors(f"{stage}/loss")] == [1, 2, 3, 4, 5, 6]
        assert f"{stage}/learning_rate" in tags
        assert {f"{stage}/u_validation", f"{stage}/u_train"} <= set(tags)
    assert "btcp/effective_sample_size" in tags
    assert any(tag.startswith("highest_u/") for tag in tags)


def test_a_finished_run_says_so_and_changes_nothing(whole, capsys):
    before = hashes(whole)
    assert main(words(whole)) == 0
    printed = capsys.readouterr().out
    assert "finished already; nothing is changed" in printed
    assert "AUPR-error" in printed
    assert hashes(whole) == before


def test_its_flag_file_repeats_the_run(whole, capsys):
    assert main([f"--flagfile={whole}/run/flags.cfg"]) == 0
    assert hashes(whole)
    assert capsys.readouterr().out == ""  # The file holds --verbose=0 too.


def test_a_folder_of_other_settings_is_refused(whole, capsys):
    before = hashes(whole)
    assert main(words(whole, "--gamma=2", "--seed=1")) == 1
    message = capsys.readouterr().err
    assert "expected seed=0, gamma=auto, received seed=1, gamma=2.0" in message
    assert message.count("\n") == 1
    assert hashes(whole) == before


@pytest.mark.parametrize("name", ["finished.json", "results.json"])
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"saved_model": null}'])
def test_a_damaged_end_is_one_clear_error(whole, tmp_path, capsys, name, text):
    shutil.copytree(whole / "run", tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    assert main(words(tmp_path)) == 1
    message = capsys.readouterr().err
    assert name in message and "expected" in message and message.count("\n") == 1


def test_a_finished_run_without_checkpoints_still_holds_its_folder(whole, tmp_path, capsys):
    shutil.copytree(whole / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = hashes(tmp_path)
    assert main(words(tmp_path, "--gamma=3")) == 1
    assert "received gamma=3.0" in capsys.readouterr().err
    assert hashes(tmp_path) == before


def test_other_data_than_at_the_start_is_refused(whole, tmp_path, monkeypatch, capsys):
    shutil.copytree(whole / "run", tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    monkeypatch.setattr(
        datasets,
        "load",
        lambda *a, load=datasets.load, **k: dataclasses.replace(load(*a, **k), fingerprint="other"),
    )
    assert main(words(tmp_path)) == 1
    assert "expected a checkpoint that started from other, received" in capsys.readouterr().err


def test_a_run_of_an_earlier_version_goes_on(whole, tmp_path, monkeypatch):
    shutil.copytree(whole / "run", tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    # As 0.1.0 left it: the names of the classes are in the fingerprint, later settings unknown.
    flags = tmp_path / "run" / "flags.cfg"
    lines = flags.read_text().splitlines(keepends=True)
    flags.write_text("".join(line for line in lines if not line.startswith("--residual_copies=")))
    checkpoint = tmp_path / "run" / "checkpoints" / "classifier.npz"
    arrays = dict(np.load(checkpoint))
    about = json.loads(str(arrays["about"]))
    [about["basis"]] = datasets.load("digits", max_train_images=500).former_fingerprints
    np.savez(checkpoint, **arrays | {"about": np.array(json.dumps(about))})
    before = hashes(tmp_path / "run" / "checkpoints")
    monkeypatch.setattr(drawing, "_render", lambda figure, ending: b"")
    monkeypatch.setattr(export_check, "check", lambda *arguments: None)
    monkeypatch.setattr(export_check, "early_process", contextlib.nullcontext)
    assert main(words(tmp_path, "--verbose=0")) == 0
    assert hashes(tmp_path / "run" / "checkpoints") == before
    scored = [folder / "run" / "predictions.npz" for folder in (tmp_path, whole)]
    assert scored[0].read_bytes() == scored[1].read_bytes()


def test_a_run_that_never_trained_does_not_hold_its_folder(tmp_path, monkeypatch):
    from btcp_tf.data import prepared

    monkeypatch.setattr(prepared, "_answers", lambda url: False)
    folders = [f"--output_dir={tmp_path}/run", f"--data_dir={tmp_path}/none"]
    assert main(["--dataset=mnist", *folders, f"--export_dir={tmp_path}/deep/models"]) == 1
    assert not list(tmp_path.iterdir())
    # As 0.1.0 left it.
    (tmp_path / "run").mkdir()
    save_flagfile(Config(dataset="mnist"), tmp_path / "run" / "flags.cfg")
    assert main(["--dataset=mnist", *folders, "--seed=1"]) == 1
    assert set(os.listdir(tmp_path / "run")) <= {"flags.cfg", ".lock"}


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--classifier=none.keras", "classifier: expected a .keras file, received none.keras, w"),
        ("--classifier=flags.cfg", "classifier: expected a .keras file, which is a zip archive"),
        ("--classifier=~/none.keras", "classifier: expected a .keras file, received /"),
        ("--ood=mnist,none.npz", "ood: expected one of .* received 'none.npz', which is no file"),
        ("--dataset=folder --data_dir=none", "data_dir: expected a folder .* none, which is not t"),
        ("--dataset=npz --data_dir=none.npz", "data_dir: expected an npz file .*'none.npz', which"),
        ("--dataset=npz --data_dir=.", "data_dir: expected an npz file .* which is a folder"),
    ],
)
def test_files_that_are_not_there_are_named_before_any_work(
    tmp_path, monkeypatch, capsys, flag, words
):
    (tmp_path / "flags.cfg").write_text("no archive")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load", None)
    monkeypatch.setattr(distribution, "start_devices", None)
    assert main(["--dataset=digits", *flag.split(), "--output_dir=deep/run"]) == 1
    message = capsys.readouterr().err
    assert re.match(f"error: {words}", message) and message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["flags.cfg"]


@pytest.mark.parametrize("further", ["fold1", "member2"])
def test_what_was_trained_of_further_classifiers_holds_the_folder(tmp_path, further):
    config = Config(dataset="digits")
    assert prepare.check_folder_is_free(tmp_path, config)
    save_flagfile(config, tmp_path / "flags.cfg")
    # These are trained first: nothing else is there yet.
    (tmp_path / "checkpoints" / further).mkdir(parents=True)
    (tmp_path / "checkpoints" / further / "classifier.npz").touch()
    assert not prepare.check_folder_is_free(tmp_path, config)
    before = (tmp_path / "flags.cfg").read_bytes()
    with pytest.raises(
        ValueError, match="expected learning_rate=0.001, received learning_rate=0.1"
    ):
        prepare.check_folder_is_free(tmp_path, dataclasses.replace(config, learning_rate=0.1))
    assert (tmp_path / "flags.cfg").read_bytes() == before


@pytest.mark.parametrize("pixels", ["0_255", "0_1", "-1_1"])
def test_a_given_classifier_reads_pixels_as_it_is_surest_of_the_truth(tmp_path, pixels):
    from btcp_tf.data.images import PIXELS

    digits = datasets.load("digits")
    scale, offset = PIXELS[pixels]
    flat = digits.train.images.reshape(len(digits.train), -1) * scale + offset
    # The class of the largest logit does not depend on the scale.
    regression = LogisticRegression(C=1 / scale**2, fit_intercept=pixels == "-1_1", max_iter=30)
    regression.fit(flat, digits.train.labels)
    last = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), last])
    last.set_weights([regression.coef_.T, regression.intercept_ * np.ones(10)])
    model.save(tmp_path / "my.keras")
    file = str(tmp_path / "my.keras")
    found, words = prepare.choose_pixels(file, digits)
    assert found == pixels
    assert f"input scaling is {pixels} (cross-entropy on validation images: " in words
    assert prepare.choose_pixels(file, digits, pixels="0_1")[0] == "0_1"


def test_a_second_process_is_refused(tmp_path, capsys):
    with files.folder_lock(tmp_path / "run"):
        assert main(words(tmp_path)) == 1
    assert "which another run holds" in capsys.readouterr().err
    assert os.listdir(tmp_path / "run") == [".lock"]


@pytest.mark.parametrize(
    ("setting", "place"), [("output_dir", "file"), ("export_dir", "file"), ("export_dir", ".")]
)
def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path, capsys, setting, place
):
    for name in ("file", "digits-trial"):  # The last is where the model's versions would be.
        (tmp_path / name).touch()
    assert main([*words(tmp_path), f"--{setting}={tmp_path}/{place}"]) == 1
    message = capsys.readouterr().err
    assert f"{setting}: expected a folder that can be written, received" in message
    assert not list(tmp_path.rglob("*.npz"))


def test_a_classifier_that_learned_nothing_is_not_exported(undrawn, tmp_path, capsys):
    diverged = words(tmp_path, "--method=mcp", "--classifier_epochs=1", "--verbose=1")
    assert main([*diverged, "--learning_rate=1e3", "--batch_size=1000"]) == 1
    printed = capsys.readouterr()
    assert "not exported: the classifier answers class" in printed.out
    assert "--export_collapsed" in printed.err
    assert not (tmp_path / "models").exists()


def test_a_classifier_without_finite_answers_is_one_clear_error(tmp_path, monkeypatch, capsys):
    answer = Inference.__call__

    def diverged(*arguments):
        found = answer(*arguments)
        return keras.tree.map_structure(lambda output: output * np.float32(np.nan), found)

    monkeypatch.setattr(Inference, "__call__", diverged)
    assert main(words(tmp_path, "--method=mcp", "--classifier_epochs=1", "--verbose=0")) == 1
    message = capsys.readouterr().err
    assert "it diverged" in message and message.count("\n") == 1


def test_missing_data_is_one_clear_error(tmp_path, monkeypatch, capsys):
    from btcp_tf.data import prepared

    monkeypatch.setattr(prepared, "_answers", lambda url: False)
    found = main(["--dataset=mnist", f"--data_dir={tmp_path}/none", f"--output_dir={tmp_path}/run"])
    assert found == 1
    message = capsys.readouterr().err
    assert f"{tmp_path}/none/mnist" in message and "--data_dir" in message
    assert message.count("\n") == 1


def test_a_killed_run_ends_like_one_that_was_not(undrawn, whole, tmp_path, capsys):
    checkpoints = tmp_path / "run" / "checkpoints"
    # Each kill costs a process; tests/training/test_training.py has one in every phase without.
    process = fresh.Popen(["-m", "btcp_tf.main", *words(tmp_path)]).start()
    while not (checkpoints / "btcp.npz").exists():
        assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with np.load(checkpoints / "btcp.npz") as saved:
        rows = json.loads(str(saved["about"]))["rows"]
    assert len(rows) < 6, "killed too late to show anything"
    assert not (tmp_path / "run" / "results.json").exists()
    assert main(words(tmp_path, "--verbose=2")) == 0
    assert "resumed after epoch" in capsys.readouterr().out
    first, second = (folder / "run" / "results.json" for folder in (whole, tmp_path))
    assert first.read_bytes() == second.read_bytes()
    for name in ("predictions.npz", "predictions_btcp_finetuned.npz"):
        assert (whole / "run" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


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


def test_another_threshold_of_a_model_is_in_the_report_of_its_run(undrawn, whole, tmp_path, capsys):
    for name in ("run", "models"):
        shutil.copytree(whole / name, tmp_path / name)
    run, model = tmp_path / "run", tmp_path / "models" / "digits-trial"
    # The second version's threshold is chosen on the first one's rows, and so on.
    for version, word in (("2", "0.25"), ("3", "0.75")):
        assert set_threshold.main([str(model), f"--threshold={word}"]) == 0
        page = run / "report.html"
        printed = capsys.readouterr().out.splitlines()
        assert (printed[-3], pathlib.Path(printed[-1]).resolve()) == (str(model / version), page)
        chosen = decision_file.load_decision(run).threshold
        assert dataclasses.asdict(chosen) == exported.read_about(model / version)["threshold"]
        assert f"u &lt; {chosen.tau:.4g}" in page.read_text(encoding="utf-8")
        for file in ("decision.json", "finished.json"):
            assert json.loads((run / file).read_text())["saved_model"] == str(model / version)
    assert main(words(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "is finished already" in shown and f"SavedModel  {model / '3'} (" in shown
    # What is chosen for another place, or on other rows, is not the run's.
    before = hashes(run)
    trial = [str(model), "--threshold=0.3", f"--export_dir={tmp_path}/trials"]
    assert set_threshold.main(trial) == 0
    assert "keeps the threshold that it has" in capsys.readouterr().out
    # Nor is that of a run whose folder holds another one by now.
    (run / "publication.json").write_text('{"id": "another"}')
    assert set_threshold.main([str(model), "--threshold=0.3"]) == 0
    assert capsys.readouterr().out.endswith(f"{model / '4'}\n")
    (run / "publication.json").write_text((whole / "run" / "publication.json").read_text())
    assert hashes(run) == before
    # The version stands where the run cannot follow.
    (run / "results.json").write_text("{")
    with pytest.warns(UserWarning, match="still shows the threshold before, as .*results.json"):
        assert set_threshold.main([str(model), "--threshold=0.3"]) == 0
    assert exported.versions(model)[-1] == 5


def test_a_fallback_on_mcp_is_said_in_a_note_of_its_own():
    wrong = np.arange(300) < 40
    columns = {"answer": np.random.default_rng(0).normal(size=(300, 1))}
    z = np.linspace(3, -3, 300)[:, None]
    for is_error in (wrong, wrong & (np.arange(300) < 3)):
        fit, _, _ = residual_choice.choose(is_error, z, columns, 0, np.zeros(300, np.int64))
        [note] = notes.of_methods({"residual": fit.summary})
        assert not pages.is_technical(note) and "residual" in note and "fell back on" in note
        assert fit.summary in note
    [note] = notes.of_methods({"residual": "learned from 300 samples; the estimator is used"})
    assert pages.is_technical(note)


def test_a_classifier_that_is_not_there_is_said_before_other_settings(whole, tmp_path, capsys):
    shutil.copytree(whole / "run", tmp_path / "run")
    for wrong in ("--classifier=missing.keras", "--ood=missing.npz"):
        assert main(words(tmp_path, wrong, "--finetune_epochs=0")) == 1
        error = capsys.readouterr().err
        assert "missing" in error and "another --output_dir" not in error
    assert main(words(tmp_path, "--finetune_epochs=0")) == 1
    assert "choose another --output_dir" in capsys.readouterr().err


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


def test_the_same_model_again_is_compared_and_published(undrawn, unchecked, whole, tmp_path):
    for name in ("run", "models"):
        shutil.copytree(whole / name, tmp_path / name)
    # With all of its estimators, and nothing left to do but an export that failed.
    (tmp_path / "run" / "publication.json").unlink()
    end = {"saved_model": "not exported: no room", "retry": True}
    (tmp_path / "run" / "finished.json").write_text(json.dumps(end))
    assert main(words(tmp_path)) == 0
    for name in ("results.json", "predictions.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes()
    about = exported.read_about(tmp_path / "models" / "digits-trial" / "2")
    assert "+0.00 points [+0.00, +0.00]" in about["replaces"]
    assert "of 50 validation images" in about["replaces"]


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


def test_folds_are_parts_of_the_training_images(tmp_path, monkeypatch):
    trained = []

    def train(trainer, dataset, number, folder):
        trained.append((dataset, number, folder))
        return [number]

    monkeypatch.setattr(Trainer, "_further", train)
    dataset = datasets.load("digits")
    settings = TrainingSettings.of(Config(dataset="digits", verbose=0))
    trainer = Trainer(None, dataset, settings, tmp_path, None)
    folds = trainer.train_folds(3)
    assert (sum(unseen.astype(int) for _, unseen in folds) == 1).all()
    for (weights, unseen), (part, number, name) in zip(folds, trained, strict=True):
        assert weights == [number] and name == f"fold{-number}"
        np.testing.assert_array_equal(part.train.images, dataset.train.images[~unseen])
        np.testing.assert_array_equal(part.train.labels, dataset.train.labels[~unseen])
        np.testing.assert_array_equal(part.test.images, dataset.test.images)
    assert len({part.fingerprint for part, *_ in trained}) == 3
    assert [part.former_fingerprints for part, *_ in trained] == [
        (f"{dataset.former_fingerprints[0]} without {number} of 3",) for number in (1, 2, 3)
    ]
    assert trainer.train_folds(0) == trainer.train_members(0) == []


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


def test_residual_learns_from_folds_and_copies(undrawn, unchecked, tmp_path, capsys, learned):
    short = words(tmp_path, "--method=mcp,residual", "--residual_folds=2", "--verbose=2")
    short.append("--residual_copies=noise,rotation")
    assert main([*short, "--classifier_epochs=1"]) == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    assert {"classifier.npz", "fold1", "fold2"} <= {path.name for path in checkpoints.iterdir()}
    printed = capsys.readouterr().out
    assert "residual: fold 2 of 2" in printed
    steps = ["loading TensorFlow and the images of digits", "classifier: training encoder"]
    steps += ["fitting the methods: mcp, residual"]
    steps += ["computing u of 2 methods for 3 sets of images", "computing metrics"]
    steps += ["drawing the report", "writing a SavedModel to", "SavedModel  "]
    places = [printed.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), printed
    # And no word that only those know who wrote it.
    assert "second head" not in printed and "trials" not in printed
    rows, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert [row["method"] for row in rows] == ["mcp", "residual"]
    starts = ("residual: ", "The estimator of residual ")
    [note] = [note for note in extra["notes"] if note.startswith(starts)]
    assert "held-out samples of 3 classifiers, and 2 copies of each" in note
    assert "the estimator is used" in note or "u is MCP" in note
    # The classifier itself comes last, whatever weights the network had for the folds.
    saved = load_predictions(tmp_path / "run" / "predictions.npz")
    np.testing.assert_allclose(saved.uncertainty["mcp"], 1 - saved.probs.max(axis=1), atol=1e-6)
    assert len(learned) == 3
    for held_out in learned:
        noisy, turned = (copy.logits - held_out.seen.logits for copy in held_out.copies)
        # Of the same images in the same order, hence not far off, but others.
        spread = held_out.seen.logits.std(axis=0).mean()
        assert 0 < np.abs(noisy).mean() < spread / 2
        assert np.abs(noisy).mean() < np.abs(turned).mean() < spread
        # What the images themselves show, of the copies what these show.
        around, labels = held_out.reference
        assert around.view.shape == (len(labels), 589)
        assert held_out.seen.view.shape == (len(held_out.labels), 589)
        for copy in held_out.copies:
            # Without the last column, the contrast, which is in gray levels.
            assert 0.01 < np.abs(copy.view - held_out.seen.view)[:, :-1].mean() < 1


def test_residual_learns_from_an_ensemble(undrawn, unchecked, tmp_path, capsys, learned):
    short = words(tmp_path, "--method=mcp,residual", "--residual_distilled", "--verbose=2")
    short += ["--residual_copies=noise", "--ensemble_members=2", "--classifier_epochs=1"]
    assert main(short) == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    assert {"classifier.npz", "member2"} == {path.name for path in checkpoints.iterdir()}
    assert "ensemble: member 2 of 2" in capsys.readouterr().out
    (held_out,) = learned
    answers = [held_out.seen.logits, held_out.copies[0].logits]
    for mean, logits in zip(held_out.ensemble, answers, strict=True):
        other = 2 * mean - special.softmax(logits, axis=1)
        # Probabilities of another classifier of the same images.
        np.testing.assert_allclose(other.sum(axis=1), 1, atol=1e-5)
        assert other.min() > -1e-5 and np.abs(other - mean).mean() > 1e-3
        assert (other.argmax(axis=1) == logits.argmax(axis=1)).mean() > 0.5


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/x.npz", "b/x.npz"], "ood: expected each name once, received x twice"),
        ([f"a/{'x' * 200}.npz"], "ood: expected a name of 1 to 180 bytes"),
    ],
)
def test_ood_sets_whose_predictions_would_share_a_file_are_refused(
    tmp_path, capsys, names, message
):
    for name in names:
        (tmp_path / name).parent.mkdir()
        np.savez(tmp_path / name, x=np.zeros((2, 8, 8, 1), np.uint8))
    ood = ",".join(str(tmp_path / name) for name in names)
    assert main(words(tmp_path, f"--ood={ood}", "--verbose=0")) == 1
    assert message in capsys.readouterr().err


def test_an_ood_set_may_be_called_like_a_predictor(undrawn, unchecked, tmp_path):
    random = np.random.default_rng(0)
    sets = {"x": 5, "x_ensemble": 7, "x_btcp_finetuned": 9, "ood_x": 11, "frozen": 13}
    for name, count in sets.items():
        np.savez(tmp_path / f"{name}.npz", x=random.integers(0, 256, (count, 8, 8, 1), np.uint8))
    short = words(tmp_path, "--method=mcp,btcp,ensemble", "--ensemble_members=2", "--verbose=0")
    short += ["--classifier_epochs=2", "--estimator_epochs=1", "--finetune_epochs=1"]
    short += ["--ood=" + ",".join(f"{tmp_path}/{name}.npz" for name in sets)]
    assert main(short) == 0
    rows, _ = results.load_rows(tmp_path / "run" / "results.json")
    sizes = {row["ood"]: row["n_ood"] for row in rows if row["task"] == "ood"}
    assert sizes == sets
    for name, count in sets.items():
        for predictor in (CLASSIFIER, Predictor("ensemble"), TUNED):
            file = keys.predictions_file(ImageSet("ood", name), predictor)
            assert len(load_predictions(tmp_path / "run" / file).predicted) == count
    # The usual names are those of before.
    files = {path.name for path in (tmp_path / "run").glob("*.npz")}
    assert {f"predictions_ood_x{end}.npz" for end in ("", "_ensemble", "_btcp_finetuned")} <= files


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


def test_known_images_are_left_out_and_said(undrawn, unchecked, tmp_path, capsys):
    digits = datasets.load("digits")
    x_val = np.concatenate([digits.validation.images, digits.calibration.images])
    y_val = np.concatenate([digits.validation.labels, digits.calibration.labels])
    x_val[:4], y_val[:4] = digits.train.images[:4], digits.train.labels[:4]
    x_test = np.concatenate([digits.test.images, digits.train.images[:100]])
    y_test = np.concatenate([digits.test.labels, digits.train.labels[:100]])
    arrays = {"x_train": digits.train.images, "y_train": digits.train.labels}
    arrays |= {"x_val": x_val, "y_val": y_val, "x_test": x_test, "y_test": y_test}
    np.savez(tmp_path / "mine.npz", **arrays)
    short = [word for word in words(tmp_path) if "dataset" not in word and "max_train" not in word]
    short += ["--dataset=npz", f"--data_dir={tmp_path}/mine.npz", "--method=mcp,residual"]
    short += ["--finetune_epochs=0", "--classifier_epochs=2", "--shift", "--verbose=0"]
    assert main([*short, f"--ood={tmp_path}/mine.npz"]) == 0
    rows, extra = results.load_rows(tmp_path / "run" / "results.json")
    about = extra["data"]["overlaps"]
    assert about["shared"]["test"]["train"] == 100
    assert about["left_out"]["test"] == list(range(355, 455))
    # Of the four some are among the validation images and some among the calibration images.
    held_out = [len(about["left_out"].get(part, [])) for part in ("validation", "calibration")]
    assert sum(held_out) == 4 and extra["data"]["validation"] == 144 - held_out[0]
    found = load_predictions(tmp_path / "run" / "predictions.npz")
    np.testing.assert_array_equal(found.labels, digits.test.labels)
    assert {row["n"] for row in rows if row["task"] == "failure"} == {355}
    for part, count in zip(("validation", "calibration"), held_out, strict=True):
        found = load_predictions(tmp_path / "run" / f"predictions_{part}.npz")
        assert len(found.labels) == 144 - count
    notes = "\n".join(extra["notes"])
    assert "100 of 455 test images, such as number 355, also stand in other parts" in notes
    assert "ood_mine: 455 of 455 images are images of mine itself" in notes
    assert "100 of 455 test images" in (tmp_path / "run" / "report.html").read_text()


def test_a_promise_on_known_images_is_refused_before_training(tmp_path, capsys):
    digits = datasets.load("digits")
    arrays = {"x_train": digits.train.images, "y_train": digits.train.labels}
    # Every fifth validation image is a training image.
    x_val, y_val = digits.validation.images.copy(), digits.validation.labels.copy()
    x_val[::5], y_val[::5] = digits.train.images[:29], digits.train.labels[:29]
    arrays |= {"x_val": x_val, "y_val": y_val}
    np.savez(tmp_path / "a.npz", **arrays, x_test=digits.test.images, y_test=digits.test.labels)
    short = ["--dataset=npz", f"--data_dir={tmp_path}/a.npz", f"--output_dir={tmp_path}/run"]
    short += [f"--export_dir={tmp_path}/models", "--verbose=0"]
    assert main([*short, "--threshold=target_risk"]) == 1
    message = capsys.readouterr().err
    assert "threshold: expected another one than target_risk" in message
    assert "of the calibration images stand in the training or validation images" in message
    np.savez(
        tmp_path / "a.npz", **arrays, x_test=digits.train.images[:90], y_test=np.arange(90) % 10
    )
    assert main(short) == 1
    assert "test: expected images that stand in no other part of a, received 90 of 90 that do" in (
        capsys.readouterr().err
    )
    assert not list((tmp_path / "run").rglob("*.npz"))
