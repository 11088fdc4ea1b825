import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from btcp_tf.data import datasets
from btcp_tf.evaluation import predictions, results
from btcp_tf.main import main

pytestmark = pytest.mark.usefixtures("quick_heads")


def test_mirrored_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "btcp_tf.main", "--dataset=digits", "--max_train_images=500"]
    command += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    command += ["--bootstrap_draws=50"]
    command += ["--strategy=mirrored", "--logical_devices=2", "--method=mcp,btcp"]
    # Tracing takes the time; tests/training/test_training.py has fine-tuning under this strategy.
    command += ["--classifier_epochs=2", "--estimator_epochs=1", "--finetune_epochs=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert extra["settings"]["strategy"] == "mirrored"
    assert extra["settings"]["logical_devices"] == "2"
    assert (tmp_path / "models" / "digits-trial" / "1" / "saved_model.pb").exists()


@pytest.mark.prepared_data("fashion_mnist")
def test_real_images(undrawn, unchecked, tmp_path, prepared_data_dir, capsys):
    arguments = ["--dataset=fashion_mnist", "--preset=smoke", f"--data_dir={prepared_data_dir}"]
    arguments += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "fashion_mnist, seed 0, test: frozen classifier" in printed
    assert "Epoch 4/4" in printed
    rows, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert rows[0]["accuracy"] > 0.6
    assert rows[0]["auroc"] > 0.6
    assert extra["data"]["train"] == 480
    assert "T-shirt/top" in (tmp_path / "run" / "report.html").read_text()


def test_a_classifier_of_ones_own(undrawn, unchecked, tmp_path, capsys):
    digits = datasets.load("digits")
    pixels = digits.train.images / np.float32(127.5) - 1
    keras.utils.set_random_seed(0)
    classifier = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(24, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile("adam", loss)
    classifier.fit(pixels, digits.train.labels, epochs=12, verbose=0)
    file = tmp_path / "my.keras"
    classifier.save(file)
    before = file.read_bytes()
    words = ["--dataset=digits", f"--classifier={file}", "--finetune_epochs=0"]
    words += ["--method=mcp,mc_dropout,vim,residual,btcp", "--mc_passes=3", "--estimator_epochs=3"]
    words += ["--bootstrap_draws=20", "--verbose=2", "--export_collapsed"]
    words += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"the classifier is {file}, not trained here: right on" in printed
    assert "its input scaling is -1_1 (cross-entropy on validation images: " in printed
    assert not (tmp_path / "run" / "checkpoints" / "classifier.npz").exists()
    found = predictions.load_predictions(tmp_path / "run" / "predictions.npz")
    images = digits.test.images / np.float32(127.5) - 1
    expected = keras.ops.softmax(classifier.predict(images, verbose=0))
    np.testing.assert_allclose(found.probs, expected, atol=1e-5)
    assert set(found.uncertainty) == {"mcp", "vim", "residual", "btcp", "mc_dropout"}
    rows, _ = results.load_rows(tmp_path / "run" / "results.json")
    assert {row["stage"] for row in rows} == {"frozen"} and rows[0]["accuracy"] > 0.85
    assert file.read_bytes() == before
    # Of what a SavedModel can answer, the residual estimator goes before the trained one.
    exported = tmp_path / "models" / "digits" / "1"
    assert f"{exported} (the classifier; its uncertainty u is Residual)" in printed
    assert f"{exported} (the classifier; its uncertainty u is Residual)" in (
        tmp_path / "run" / "report.html"
    ).read_text(encoding="utf-8")
    about = json.loads((exported / "assets.extra" / "btcp_tf.json").read_text())
    assert about["uncertainty"] == {"method": "residual", "stage": "frozen"}
    answers = tf.saved_model.load(str(exported)).signatures["serving_default"](
        images=tf.constant(digits.test.images)
    )
    np.testing.assert_allclose(answers["uncertainty"], found.uncertainty["residual"], atol=1e-5)
    np.testing.assert_allclose(answers["probs"], expected, atol=1e-5)
    tau = about["threshold"]["tau"]
    np.testing.assert_array_equal(answers["accept"], answers["uncertainty"].numpy() < tau)


def test_a_folder_of_ones_own_images(undrawn, unchecked, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for label, name in enumerate(("healthy", "ill")):
        folder = tmp_path / "xrays" / name
        folder.mkdir(parents=True)
        for number in range(60):
            pixels = rng.integers(0, 200, (12 + number % 2, 10), np.uint8)
            pixels[:, 5 * label : 5 * label + 5] += 30
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "xrays" / "ill" / "notes.txt").write_text("not an image")
    words = ["--dataset=folder", f"--data_dir={tmp_path}/xrays", "--preset=smoke", "--verbose=2"]
    words += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    words += ["--method=mcp,btcp", "--export_collapsed", "--image_size=12x10"]
    assert main(words) == 1
    assert "received 1 of 121 files that are not: ill/notes.txt" in capsys.readouterr().err
    # OOD sets are found where they are without data of one's own.
    with pytest.warns(UserWarning, match="were skipped .*: ill/notes.txt"):
        assert main([*words, "--bad_files=skip", f"--ood=digits,{tmp_path}/xrays/healthy"]) == 0
    assert "xrays, seed 0, test: frozen classifier" in capsys.readouterr().out
    rows, extra = results.load_rows(tmp_path / "run" / "results.json")
    assert {row["dataset"] for row in rows} == {"xrays"}
    assert {row["ood"] for row in rows if row["task"] == "ood"} == {"digits", "healthy"}
    assert extra["data"]["class_names"] == ["healthy", "ill"]
    assert "1 of 121 files are no whole images" in extra["notes"][0]
    assert "a fifth of the training images of each class" in extra["notes"][0]
    about = tmp_path / "models" / "xrays-smoke" / "1" / "assets.extra" / "btcp_tf.json"
    found = json.loads(about.read_text())
    assert (found["class_names"], found["image_shape"]) == (["healthy", "ill"], [12, 10, 1])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "healthy" in page and "notes.txt" not in page
