import contextlib
import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import time

import fresh
import keras
import numpy as np
import pytest
from short_run import TUNED, words
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from btcp_tf import metrics, set_threshold, thresholds
from btcp_tf.core import files
from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.decisions import decision_file, exported
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import (
    CLASSIFIER,
    TEST,
    VALIDATION,
)
from btcp_tf.evaluation.predictions import load_predictions
from btcp_tf.experiment import notes, prepare
from btcp_tf.experiment.settings import save_flagfile
from btcp_tf.main import main
from btcp_tf.methods import residual_choice
from btcp_tf.methods.stacking import Samples
from btcp_tf.reporting import drawing, pages
from btcp_tf.serving import export_check
from btcp_tf.training import distribution
from btcp_tf.training.inference import Inference

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


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


def test_an_edited_result_and_a_lost_model_of_a_finished_run_are_noticed(
    undrawn, unchecked, whole, tmp_path, capsys
):
    for name in ("run", "models"):
        shutil.copytree(whole / name, tmp_path / name)
    end = json.loads((tmp_path / "run" / "finished.json").read_text())
    assert {"results.json", "predictions.npz"} <= set(end["sha256"])
    # The model's path is that of the copied run's.
    end["saved_model"] = str(tmp_path / "models" / "digits-trial" / "1")
    (tmp_path / "run" / "finished.json").write_text(json.dumps(end))
    assert main(words(tmp_path)) == 0
    assert capsys.readouterr().err == ""
    results_file = tmp_path / "run" / "results.json"
    before = results_file.read_bytes()
    results_file.write_bytes(before.replace(b'"errors": ', b'"errors": 1', 1))
    assert main(words(tmp_path)) == 1
    assert "expected results.json in" in (error := capsys.readouterr().err)
    assert "finished.json" in error and error.count("\n") == 1
    # As the remedy says.
    (tmp_path / "run" / "finished.json").unlink()
    assert main(words(tmp_path)) == 0
    assert results_file.read_bytes() == before
    shutil.rmtree(tmp_path / "models")
    with pytest.warns(UserWarning, match="is not in .*models.* any more"):
        assert main(words(tmp_path)) == 0


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


def test_sigterm_ends_a_run_behind_the_epoch_that_is_under_way(tmp_path):
    with fresh.Popen(
        ["-m", "btcp_tf.main", *words(tmp_path, "--classifier_epochs=5000")]
    ) as process:
        process.start()
        checkpoint = tmp_path / "run" / "checkpoints" / "classifier.npz"
        while not checkpoint.exists():
            assert process.poll() is None, process.communicate()[1][-2000:]
            time.sleep(0.01)
        process.kill(signal.SIGTERM)
        out, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (
        143,
        "\nterminated; the same command goes on from here\n",
    )
    # Each epoch that was printed is in the checkpoint, the last one too.
    with np.load(checkpoint) as saved:
        rows = json.loads(str(saved["about"]))["rows"]
    assert 0 < len(rows) == out.count("Epoch ") < 5000


def test_checkpoints_of_other_versions_are_said_or_refused(
    undrawn, unchecked, whole, tmp_path, capsys
):
    shutil.copytree(whole / "run" / "checkpoints", tmp_path / "run" / "checkpoints")
    shutil.copy(whole / "run" / "flags.cfg", tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "tcp.npz"
    with np.load(checkpoint) as saved:
        arrays = dict(saved)
    about = json.loads(str(arrays["about"]))
    assert about["versions"]["keras"] == [keras.__version__]
    # As if it had been begun with another Keras, and killed.
    about["versions"]["keras"] = ["3.14.0"]
    del about["rows"][-2:]
    np.savez(checkpoint, **arrays | {"about": np.array(json.dumps(about))})
    told = f"trained, at least in part, with keras 3.14.0 (here {keras.__version__})"
    before = checkpoint.read_bytes()
    assert main(words(tmp_path, "--strict")) == 1
    error = "error: strict: expected the versions that trained the checkpoints, received others: "
    assert capsys.readouterr().err.startswith(f"{error}keras 3.14.0 (here {keras.__version__}); ")
    assert checkpoint.read_bytes() == before
    with pytest.warns(UserWarning, match=f"checkpoints: {re.escape(told)}; the figures may differ"):
        assert main(words(tmp_path)) == 0
    with np.load(checkpoint) as saved:
        used = json.loads(str(saved["about"]))["versions"]
    assert used["keras"] == ["3.14.0", keras.__version__]
    assert used["numpy"] == [np.__version__]
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert f"checkpoints: {told}" in extra["notes"]
    assert told in (tmp_path / "run" / "run.log").read_text()
    # Not said where nothing changed.
    _, extra = results.load_rows(whole / "run" / "results.json")
    assert not any("here" in note for note in extra["notes"])


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
        samples = Samples(is_error, z, columns, np.zeros(300, np.int64), None)
        fit = residual_choice.choose(samples, 0).fit
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
