"""Given classifiers that cannot be right, and what is said of them."""

import keras
import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier

from btcp_tf.data import datasets
from btcp_tf.evaluation import results
from btcp_tf.main import main
from btcp_tf.networks import models
from btcp_tf.training import adopted

SCALES = {"x / 255": (1 / 255, 0.0), "1 - x / 255": (-1 / 255, 1.0), "x - 110": (1.0, -110.0)}


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


@pytest.fixture(scope="module")
def trained(digits):
    """Weights of a network of the digits, trained on pixels at a scale, by its words."""
    found = {}
    for words, (scale, offset) in SCALES.items():
        x = digits.train.images.reshape(-1, 64) * scale + offset
        # It learns at any scale; the first layer takes the scale it is given.
        unit = 1.0 if abs(scale) < 1 else 128.0
        mlp = MLPClassifier((32,), max_iter=40, learning_rate_init=0.01, random_state=0)
        mlp.fit(x / unit, digits.train.labels)
        found[words] = [mlp.coefs_[0] / unit, mlp.intercepts_[0], mlp.coefs_[1], mlp.intercepts_[1]]
    return found


def saved(path, weights, order=None, gain=1.0):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    order = np.arange(10) if order is None else order
    first, bias, last, end = weights
    model.set_weights([first, bias, gain * last[:, order], gain * end[order]])
    model.save(path)
    return path


def why(path, dataset, pixels="0_1"):
    network = models.adopt(path, (8, 8, 1), 10, pixels=pixels)
    return adopted.why_poor(network, dataset, 256)


def test_a_right_classifier_is_taken_however_sure_it_is(tmp_path, digits, trained):
    assert why(saved(tmp_path / "a.keras", trained["x / 255"]), digits) == ""
    # Logits of thousands: the softmax is 0 or 1, and its own cross-entropy infinite.
    assert why(saved(tmp_path / "b.keras", trained["x / 255"], gain=1e3), digits) == ""


@pytest.mark.parametrize(
    ("scale", "pixels", "words"),
    [
        ("1 - x / 255", "0_1", "1 - x / 255 (9"),
        ("x - 110", "0_255", "and with x - "),
        ("x / 255", "-1_1", "--classifier_pixels=0_1 (9"),
    ],
)
def test_another_input_scale_is_named(tmp_path, digits, trained, scale, pixels, words):
    path = saved(tmp_path / "my.keras", trained[scale])
    network = models.adopt(path, (8, 8, 1), 10, pixels=pixels)
    before = network.predict(digits.validation.images, verbose=0)["probs"]
    told = adopted.why_poor(network, digits, 256)
    assert words in told
    after = network.predict(digits.validation.images, verbose=0)["probs"]
    np.testing.assert_array_equal(after, before)


def test_another_class_order_is_named(tmp_path, digits, trained):
    path = saved(tmp_path / "my.keras", trained["x / 255"], order=np.roll(np.arange(10), 1))
    assert "shifted by +1: its answer 1 is 0" in why(path, digits)


def test_an_untrained_classifier_has_its_suspects(tmp_path, digits):
    rng = np.random.default_rng(1)
    weights = [rng.normal(0, 0.2, shape) for shape in ((64, 32), 32, (32, 10), 10)]
    told = why(saved(tmp_path / "my.keras", weights), digits)
    assert "not clearly lower than" in told and "or it is not trained" in told


def test_colors_in_another_order_are_named(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    images = rng.integers(0, 100, (600, 4, 4, 3), np.uint8)
    images[np.arange(600), 1, 1, labels] = 250
    arrays = {"x_train": images[:500], "y_train": labels[:500]}
    np.savez(tmp_path / "colors.npz", **arrays, x_test=images[500:], y_test=labels[500:])
    dataset = datasets.load("npz", str(tmp_path / "colors.npz"))
    last = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), last])
    kernel = np.zeros((4, 4, 3, 3))
    # Trained on blue, green, red: what is red here is the last channel there.
    kernel[1, 1, [2, 1, 0], [0, 1, 2]] = 9.0
    last.set_weights([kernel.reshape(48, 3), np.zeros(3)])
    model.save(tmp_path / "bgr.keras")
    network = models.adopt(tmp_path / "bgr.keras", (4, 4, 3), 3, pixels="0_1")
    told = adopted.why_poor(network, dataset, 256)
    assert "its answer 2 is 0, 0 is 2" in told
    assert "in the color order BGR (100.0%)" in told


def test_main_refuses_before_any_training_unless_told(
    undrawn, unchecked, tmp_path, trained, capsys
):
    path = saved(tmp_path / "my.keras", trained["x / 255"], order=np.roll(np.arange(10), -1))
    words = ["--dataset=digits", f"--classifier={path}", "--method=mcp,btcp", "--verbose=0"]
    words += ["--estimator_epochs=1", "--finetune_epochs=0", "--bootstrap_draws=5"]
    words += [f"--output_dir={tmp_path}/run", f"--export_dir={tmp_path}/models"]
    assert main(words) == 1
    message = capsys.readouterr().err
    assert f"right about the images of digits, received {path}: right on" in message
    assert "shifted by -1: its answer 9 is 0" in message and "--allow_poor_classifier" in message
    assert message.count("\n") == 1
    assert not list(tmp_path.rglob("*.npz")) and not list((tmp_path / "models").iterdir())

    assert main([*words, "--allow_poor_classifier", "--export_collapsed"]) == 0
    assert list((tmp_path / "models" / "digits").iterdir())
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    notes = extra["notes"]
    assert any("cannot be right: right on" in note and "shifted by -1" in note for note in notes)
