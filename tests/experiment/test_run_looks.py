"""Runs with the method `residual_looks`."""

import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from btcp_tf import metrics
from btcp_tf.core.config import IMAGE_LOOKS
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.monitoring import monitor
from btcp_tf.decisions.scores import load_baseline, load_scores
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import CLASSIFIER, ImageSet
from btcp_tf.evaluation.predictions import load_predictions
from btcp_tf.experiment import train
from btcp_tf.main import main

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")

SIDE, CLASSES = 10, 3
PROTOTYPES = np.random.default_rng(0).normal(size=(CLASSES, SIDE, SIDE))
PROTOTYPES += PROTOTYPES[:, :, ::-1]


def images(n, seed):
    """Gray images of classes that look the same in a mirror, and labels."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    x = PROTOTYPES[y] + 4.0 * random.normal(size=(n, SIDE, SIDE))
    return np.clip(128 + 8 * x, 0, 255).astype(np.uint8)[..., None], y


def save_classifier(path, seed, classes=CLASSES, dropout=0.2):
    """One whose weights are not the same in a mirror: its answer to the mirrored image is a second
    opinion."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Rescaling(1 / 8, -16.0),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(classes, "softmax"),
        ]
    )
    kernel = np.resize(PROTOTYPES.reshape(CLASSES, -1).T, (SIDE * SIDE, classes))
    noise = np.random.default_rng(seed).normal(size=kernel.shape)
    model.set_weights([0.05 * (kernel + 1.5 * noise), np.zeros(classes)])
    model.save(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with images, and classifiers of them."""
    folder = tmp_path_factory.mktemp("data")
    parts = {"train": (300, 1), "val": (1800, 2), "test": (600, 3)}
    arrays = {name: images(*part) for name, part in parts.items()}
    np.savez(
        folder / "images.npz",
        **{f"x_{name}": x for name, (x, _) in arrays.items()},
        **{f"y_{name}": y for name, (_, y) in arrays.items()},
    )
    save_classifier(folder / "net.keras", 1)
    save_classifier(folder / "a second (one).keras", 2)
    save_classifier(folder / "of_four.keras", 3, classes=4)
    save_classifier(folder / "dry.keras", 4, dropout=0.0)
    return folder


def words(data, folder, *more):
    return [
        "--dataset=npz",
        f"--data_dir={data}/images.npz",
        f"--classifier={data}/net.keras",
        "--classifier_pixels=0_255",
        "--method=mcp,looks_mean,residual_looks,looks_move,mc_dropout_few",
        "--finetune_epochs=0",
        "--bootstrap_draws=20",
        "--verbose=0",
        f"--output_dir={folder}/run",
        f"--export_dir={folder}/models",
        *more,
    ]


# A pass counts as a million multiply-adds: this pays for one look at 37 % of the images, and for no
# other evidence.
CHEAP = (
    "--residual_looks=mirror,shift_up",
    "--residual_cost=1.00011",
    "--export_method=residual_looks",
    "--shift",
)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    from btcp_tf.reporting import drawing

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_render", lambda figure, ending: b"")
        assert main(words(data, folder, *CHEAP)) == 0
    return folder


def test_a_look_finds_errors_that_mcp_does_not(whole):
    rows, extra = results.load_rows(whole / "run" / "results.json")
    mcp, _, looks = rows[:3]
    assert (mcp["method"], looks["method"]) == ("mcp", "residual_looks")
    assert looks["aurc"] < 0.95 * mcp["aurc"] and looks["aupr_error"] > mcp["aupr_error"]
    assert 1.0 < extra["costs"]["residual_looks"] <= 1.00011 + 1e-9
    page = (whole / "run" / "report.html").read_text(encoding="utf-8")
    assert "What a better ranking costs" in page
    [note] = [note for note in extra["notes"] if note.startswith("residual_looks: ")]
    assert "with mirror for the 37% with the largest MCP (1.00 passes of the classifier" in note
    test = load_predictions(whole / "run" / "predictions.npz")
    u = test.uncertainty["residual_looks"]
    assert looks["aurc"] == pytest.approx(metrics.aurc(test.is_error, u))


def test_the_chosen_look_says_something_without_a_fit_too(whole, data):
    with np.load(data / "images.npz") as arrays:
        x = arrays["x_test"]
    classifier = keras.models.load_model(data / "net.keras")
    own, mirrored = (np.asarray(classifier(part.astype(np.float32))) for part in (x, x[:, :, ::-1]))
    test = load_predictions(whole / "run" / "predictions.npz")
    rows = np.arange(len(x)), own.argmax(axis=1)
    own, mirrored = own[rows], mirrored[rows]
    mean, move = 1 - (own + mirrored) / 2, np.abs(mirrored - own)
    np.testing.assert_allclose(test.uncertainty["looks_mean"], mean, atol=1e-5)
    np.testing.assert_allclose(test.uncertainty["looks_move"], move, atol=1e-5)
    # Under noise, too, but for dropout: many passes are left out there.
    noisy = keys.predictions_file(ImageSet("shift", "noise", 2), CLASSIFIER)
    columns = load_predictions(whole / "run" / noisy).uncertainty
    assert set(columns) == {"mcp", "looks_mean", "residual_looks", "looks_move"}


def test_rivals_stand_beside_residual_looks_at_their_cost(whole):
    rows, extra = results.load_rows(whole / "run" / "results.json")
    frozen = [row["method"] for row in rows if row["split"] == "test"]
    assert set(frozen) == {"mcp", "looks_mean", "residual_looks", "looks_move", "mc_dropout_few"}
    costs = extra["costs"]
    # Every image is looked at, and not only those that MCP is unsure of: 300 of a million.
    assert costs["looks_mean"] == costs["looks_move"] == pytest.approx(1.0003, abs=1e-9)
    assert costs["mc_dropout_few"] == 2.0
    notes = dict(note.split(": ", 1) for note in extra["notes"] if note[:5] in ("looks", "mc_dr"))
    assert notes["mc_dropout_few"].startswith("2 passes of the classifier for every image")
    assert set(notes) == {"looks_mean", "looks_move", "mc_dropout_few"}
    page = (whole / "run" / "report.html").read_text(encoding="utf-8")
    for title, cost in (("mean", "1"), ("movement", "1")):
        assert re.search(rf"Looks, {title} [\d.]+ \S+ [^;]*at {cost}\b", page), title
    assert re.search(r"MC dropout, few passes [\d.]+ \S+ [^;]*at 2\b", page)


def test_the_saved_model_answers_what_the_run_scored(whole, data):
    # That it was written says that the check in a fresh process agrees on the calibration images.
    path = str(next((whole / "models" / "images").iterdir()))
    with np.load(data / "images.npz") as arrays:
        x = arrays["x_test"]
    answers = tf.saved_model.load(path).signatures["serving_default"](images=x)
    test = load_predictions(whole / "run" / "predictions.npz")
    u = test.uncertainty["residual_looks"]
    np.testing.assert_allclose(answers["uncertainty"], u, atol=1e-5)
    decision = decision_file.load_decision(whole / "run")
    assert decision.method == "residual_looks"
    np.testing.assert_array_equal(answers["accept"], u < decision.threshold.tau)
    # Those of other sets are not the exported graph's, but computed from the looks' odds.
    noisy = ImageSet("shift", "noise", 2)
    answers = tf.saved_model.load(path).signatures["serving_default"](
        images=CORRUPTIONS["noise"](x, 2, 0)
    )
    found = load_predictions(whole / "run" / keys.predictions_file(noisy, CLASSIFIER))
    u = found.uncertainty["residual_looks"]
    np.testing.assert_allclose(answers["uncertainty"], u, atol=1e-5)


def test_monitoring_knows_how_many_images_a_run_looks_at_again(whole, data):
    run, model = whole / "run", next((whole / "models" / "images").iterdir())
    then = load_predictions(run / "predictions_calibration.npz")
    shift = run / keys.predictions_file(ImageSet("shift", "noise", 3), CLASSIFIER)
    found = []
    for path in (run, model):
        baseline = load_baseline(path)
        scores = load_scores(shift, ("residual_looks",), with_mcp=True)
        looked_at = monitor(baseline, scores).looked_at
        for share, rows in (
            (looked_at.rates.baseline, then),
            (looked_at.rates.production, load_predictions(shift)),
        ):
            z = special.logit(rows.uncertainty["mcp"])
            assert share == (z > baseline.gate.logit).mean() > 0
        found.append(looked_at)
    assert found[0] == found[1] and found[0].planned_cost > 1.0


def test_the_second_opinion_is_right_where_the_classifier_is_not(whole, data):
    path = str(next((whole / "models" / "images").iterdir()))
    with np.load(data / "images.npz") as arrays:
        x, y = arrays["x_test"], arrays["y_test"]
    answers = tf.saved_model.load(path).signatures["serving_default"](images=x)
    second = answers["second_opinion"].numpy()
    assert (second == y).mean() > (answers["predicted"].numpy() == y).mean()


def test_a_run_that_goes_on_has_the_same_results(whole, data, undrawn, unchecked, tmp_path):
    shutil.copytree(whole / "run", tmp_path / "run")
    for name in ("finished.json", "predictions.npz", "results.json"):
        (tmp_path / "run" / name).unlink()
    assert main(words(data, tmp_path, *CHEAP)) == 0
    for name in ("predictions.npz", "predictions_calibration.npz", "explanations.npz"):
        before = (whole / "run" / name).read_bytes()
        assert (tmp_path / "run" / name).read_bytes() == before, name


def test_another_classifier_and_dropout_are_looks_that_copies_have_too(
    data, undrawn, tmp_path, learned
):
    other = f"--residual_looks=dropout,{data}/a second (one).keras"
    more = (CHEAP[1], "--residual_copies=noise", "--export_method=residual_looks")
    assert main(words(data, tmp_path, other, *more)) == 0
    for seen in (learned[0].seen, *learned[0].copies):
        assert seen.odds.shape == (900, 2)
        # Both mostly agree with the classifier, and not always with each other.
        assert (seen.odds < 0).mean(axis=0).min() > 0.5
        assert (seen.odds[:, 0] != seen.odds[:, 1]).mean() > 0.5
    assert (learned[0].seen.odds != learned[0].copies[0].odds).any()
    _, extra = results.load_rows(tmp_path / "run" / "results.json")
    [note] = [note for note in extra["notes"] if note.startswith("residual_looks: ")]
    assert "and 1 copy of each" in note and "the estimator is used, with " in note
    assert "a_second_one_" in note


@pytest.mark.parametrize(
    ("flags", "status", "told"),
    [
        (["--residual_looks=miror"], 2, "expected some of auto, mirror, .* did you mean mirror"),
        (["--residual_looks=jitter"], 2, "expected some of auto, .* received 'jitter'"),
        (["--residual_looks=auto,mirror"], 2, "expected auto alone, .*received auto,mirror"),
        (["--residual_looks="], 2, "expected auto alone, or names and files, received none"),
        (["--residual_looks=mirror,mirror"], 2, "expected each name once, received mirror 2 times"),
        (["--residual_looks=none.keras"], 1, "expected a .keras file, received none.keras, wh"),
        (["--residual_looks=DATA/of_four.keras"], 1, "expected answers of the 3 classes"),
        (
            ["--residual_looks=dropout", "--classifier=DATA/dry.keras"],
            1,
            r"expected some that suit inputs of uint8 \[10, 10, 1\] .* received 'dropout'",
        ),
    ],
)
def test_looks_that_cannot_be_used_are_refused_before_any_training(
    data, tmp_path, capsys, monkeypatch, flags, status, told
):
    monkeypatch.setattr(train.Trainer, "train", None)
    flags = [flag.replace("DATA", str(data)) for flag in flags]
    try:
        found = main(words(data, tmp_path, *flags))
    except SystemExit as end:
        found = end.code
    message = capsys.readouterr().err
    assert found == status and message.count("\n") == 1
    assert re.match(f"error: residual_looks: {told}", message), message
    assert not (tmp_path / "run").exists()


def test_the_names_are_those_of_looks_at_images():
    from btcp_tf.methods import LOOKS
    from btcp_tf.networks import GROUPS

    of_images = [name for name, look in LOOKS.items() if look.kind == "image"]
    assert list(IMAGE_LOOKS) == [*of_images, *GROUPS, "dropout", "dropouts"]
