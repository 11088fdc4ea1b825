"""Given classifiers that cannot be right, and what is said of them."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.neural_network import MLPClassifier

from btcp_tf.core import rows
from btcp_tf.data import datasets
from btcp_tf.evaluation import results
from btcp_tf.experiment import prepare
from btcp_tf.main import main
from btcp_tf.networks import models, plausibility
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


@pytest.mark.parametrize("piece", [100, 2**22])
def test_the_mean_and_spread_of_the_pixels_are_among_the_scalings(piece, monkeypatch):
    monkeypatch.setattr(rows, "_PIECE", piece)
    images = np.random.default_rng(0).integers(0, 200, (50, 5, 7, 3), np.uint8)
    mean, std = round(images.mean(), 1), round(images.std(), 1)
    assert {f"x - {mean:g}", f"(x - {mean:g}) / {std:g}"} <= adopted.scalings(images).keys()
    # Of one color, nothing is divided by 0.
    assert "(x - 7) / 1" in adopted.scalings(np.full((3, 2, 2, 1), 7, np.uint8))


def test_another_class_order_is_named(tmp_path, digits, trained):
    path = saved(tmp_path / "my.keras", trained["x / 255"], order=np.roll(np.arange(10), 1))
    assert "shifted by +1: its answer 1 is 0" in why(path, digits)


@pytest.mark.parametrize("scale", ["x / 255", "x - 110"])
def test_a_class_order_is_found_behind_another_input_scale(tmp_path, digits, trained, scale):
    path = saved(tmp_path / "my.keras", trained[scale], order=np.roll(np.arange(10), 1))
    # At none of the named scales is it right as it is.
    told = why(path, digits, pixels="-1_1")
    wanted = "--classifier_pixels=0_1" if scale == "x / 255" else "x - "
    assert wanted in told and "and another class order (9" in told
    assert "shifted by +1: its answer 1 is 0" in told and "not trained" not in told


@pytest.mark.parametrize("order", [np.roll(np.arange(10), 3), np.arange(10)[::-1]])
def test_auto_finds_the_scale_of_a_classifier_in_another_class_order(
    tmp_path, digits, trained, order
):
    path = saved(tmp_path / "my.keras", trained["x / 255"], order=order, gain=3.0)
    assert prepare.choose_pixels(str(path), digits)[0] == "0_1"
    architecture = prepare.Architecture("small", 128, "sigmoid", str(path), "0_1")
    network = prepare.build_network(architecture, digits, tf.distribute.get_strategy(), 0)
    with pytest.raises(ValueError, match="it reads pixels as 0_1: right on .* in another order"):
        prepare.refuse_poor_classifier(
            network,
            str(path),
            digits,
            allow=False,
            batch_size=1024,
            note="; it reads pixels as 0_1",
        )


def test_an_untrained_classifier_has_its_suspects(tmp_path, digits):
    rng = np.random.default_rng(1)
    weights = [rng.normal(0, 0.2, shape) for shape in ((64, 32), 32, (32, 10), 10)]
    told = why(saved(tmp_path / "my.keras", weights), digits)
    assert "not clearly lower than" in told and "or it is not trained" in told


@pytest.fixture(scope="module")
def pair(tmp_path_factory, digits):
    """Threes and eights as a data set of two classes."""
    path = tmp_path_factory.mktemp("pair") / "pair.npz"
    arrays = {}
    for name, part in (("train", digits.train), ("test", digits.test), ("val", digits.train)):
        rows = np.flatnonzero(np.isin(part.labels, (3, 8)))
        # Both halves of the validation images are looked at, one after the other.
        arrays |= {f"x_{name}": part.images[rows], f"y_{name}": part.labels[rows] == 8}
    np.savez(path, **arrays)
    return datasets.load("npz", str(path))


def two_classes(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, "relu")]
    return keras.Sequential([*layers, keras.layers.Dense(2)])


def test_an_untrained_network_of_two_classes_is_refused_although_its_answers_pass(tmp_path, pair):
    images, labels = pair.validation.images, pair.validation.labels
    refused = []
    for seed in range(40):
        model = two_classes(seed)
        found = plausibility.examine(model(images / np.float32(255)).numpy(), labels)
        # What knows more than half of what there is to know can be right, wherever it is from.
        if found.problem or found.gain > 0.5 * found.entropy or len(refused) == 4:
            continue
        model.save(tmp_path / "my.keras")
        network = models.adopt(tmp_path / "my.keras", (8, 8, 1), 2, pixels="0_1")
        before = network.get_weights()
        logits = models.outputs_model(network)(images)["logits"].numpy()
        told = adopted.outdone(network, images, labels, logits)
        refused.append("a copy of it whose weights were shuffled knows more" in told)
        if refused == [True]:
            assert told in adopted.why_poor(network, pair, 256)
        assert all(map(np.array_equal, before, network.get_weights()))
    # Samples alone let four of forty pass. One of twenty may be the best of its kind.
    assert len(refused) == 4 and sum(refused) >= 3


@pytest.mark.parametrize("samples", [12, 200])
def test_a_poor_network_of_two_classes_that_is_trained_passes(tmp_path, pair, samples):
    x = pair.train.images[:samples].reshape(samples, 64) / 255
    mlp = MLPClassifier((32,), max_iter=40, random_state=0).fit(x, pair.train.labels[:samples])
    model = two_classes(0)
    (first, last), (bias, end) = mlp.coefs_, mlp.intercepts_
    # Its one logit beside a 0.
    model.set_weights([first, bias, last * [0.0, 1.0], end * [0.0, 1.0]])
    model.save(tmp_path / "my.keras")
    network = models.adopt(tmp_path / "my.keras", (8, 8, 1), 2, pixels="0_1")
    images, labels = pair.validation.images, pair.validation.labels
    logits = models.outputs_model(network)(images)["logits"].numpy()
    assert adopted.outdone(network, images, labels, logits) == ""


def test_what_the_check_costs_is_bounded(tmp_path, pair, monkeypatch):
    two_classes(0).save(tmp_path / "my.keras")
    network = models.adopt(tmp_path / "my.keras", (8, 8, 1), 2, pixels="0_1")
    many = pair.validation.take(np.arange(5000) % len(pair.validation))
    seen = []
    answer = adopted.Inference.__call__

    def counted(self, images, *more):
        seen.append(len(images))
        return answer(self, images, *more)

    monkeypatch.setattr(adopted.Inference, "__call__", counted)
    # Whatever it knows, networks of shuffled weights are tried.
    monkeypatch.setattr(adopted, "_PLAIN_GAIN", np.inf)
    monkeypatch.setattr(plausibility, "LEAST_GAIN", -np.inf)
    monkeypatch.setattr(plausibility, "class_order", lambda *_: ())
    monkeypatch.setattr(adopted, "_CLEARLY_MORE", np.inf)
    adopted.why_poor(network, dataclasses.replace(pair, validation=many), 256)
    first, *others = seen
    assert first == 2000 and others[:19] == [200] * 19
    assert max(others[19:], default=0) <= 500


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
    assert f"right about the images of digits, received {path}; its input scaling is 0_1" in message
    assert "shifted by -1: its answer 9 is 0" in message and "--allow_poor_classifier" in message
    assert message.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]

    assert main([*words, "--allow_poor_classifier", "--export_collapsed"]) == 0
    assert list((tmp_path / "models" / "digits").iterdir())
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    notes = extra["notes"]
    assert any("cannot be right: right on" in note and "shifted by -1" in note for note in notes)
