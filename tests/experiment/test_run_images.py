"""Runs on further images: folds, copies, ensembles, other data, and images that are known."""

import numpy as np
import pytest
from scipy import special
from short_run import TUNED, words

from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import (
    CLASSIFIER,
    ImageSet,
    Predictor,
)
from btcp_tf.evaluation.predictions import load_predictions
from btcp_tf.experiment.train import Trainer
from btcp_tf.main import main
from btcp_tf.training.settings import TrainingSettings

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


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
