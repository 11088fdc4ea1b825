"""Tests of u of a SavedModel after new labels: what is learned, from which rows, what is served."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import special

import btcp_tf
from btcp_tf import predict, set_threshold, thresholds
from btcp_tf.decisions import exported, recalibrated
from btcp_tf.decisions.exported import ABOUT_FILE, COLUMN
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods.recalibration import SAME, Map, Recalibration
from btcp_tf.serving import saved_model, signatures
from btcp_tf.serving.stored_variables import StoredVariables

pytestmark = pytest.mark.usefixtures("quick_checks", "quick_heads")


def samples(n, seed, noise=0.8):
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    return (np.eye(3)[y] + noise * random.normal(size=(n, 3))).astype(np.float32), y


NOW = 1.6
"""Noise of what comes after the drift."""


@pytest.fixture(scope="module")
def judge():
    classifier = keras.Sequential([keras.Input((3,)), layers.Dense(3, activation="softmax")])
    classifier.layers[-1].set_weights([2.0 * np.eye(3, dtype=np.float32), np.zeros(3, np.float32)])
    judge = btcp_tf.attach(classifier)
    judge.fit(*samples(800, 0), reference=samples(800, 1), looks=(), verbose=0)
    judge.select_threshold(*samples(400, 2), rule="target_risk", risk=0.2, delta=0.1)
    return judge


@pytest.fixture(scope="module")
def version(judge, tmp_path_factory):
    return judge.export(tmp_path_factory.mktemp("models"), "m", samples(8, 3)[0], verbose=0)


@pytest.fixture
def source(version, tmp_path):
    """A copy whose next versions are the test's own."""
    return shutil.copytree(version, tmp_path / "models" / "m" / "1")


def answers(path, x):
    found = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(x))
    return {name: value.numpy() for name, value in found.items()}


def scores(model, folder, x, y, name="s.csv"):
    """Labeled scores of a model, as `btcp_tf.predict` writes them."""
    np.savez(folder / "now.npz", x_test=x, y_test=y)
    words = [f"--model={model}", f"--input={folder}/now.npz", f"--output={folder}/{name}"]
    assert predict.main([*words, "--labels", "--verbose=0"]) == 0
    return folder / name


def logits_of(found):
    """logit(u) and MCP's of answers, from all digits that they have."""
    return (
        special.logit(found["uncertainty"].astype(np.float64)),
        special.logit(1 - found["probs"].astype(np.float64).max(axis=1)),
    )


def mapped(change, found):
    """u [n] float64 after a change, from the answers before it."""
    u, z = logits_of(found)
    return 1 / (1 + np.exp(-(change.alpha * u + change.beta + change.gamma * z)))


def change_of(path):
    return Map(**exported.read_about(path)["recalibrations"][-1]["map"])


def test_without_new_labels_u_is_the_same_to_the_bit(judge, version, monkeypatch, tmp_path):
    def as_before(answers, change):
        return tf.cast(answers["logit"], tf.float64), answers["uncertainty"]

    monkeypatch.setattr(signatures, "_recalibrated", as_before)
    other = judge.export(tmp_path, "m", samples(8, 3)[0], verbose=0)
    for n in (1, 7, 500):
        x, _ = samples(n, 4, NOW)
        found, wanted = answers(version, x), answers(other, x)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def test_one_command_brings_u_to_the_error_rate_and_chooses_a_threshold(source, tmp_path, capsys):
    x, y = samples(900, 5, NOW)
    path = scores(source, tmp_path, x, y)
    words = [str(source.parent), f"--scores={path}", "--recalibrate"]
    assert set_threshold.main([*words, "--threshold=target_risk", "--risk=0.4", "--delta=0.1"]) == 0
    printed = capsys.readouterr().out
    new = source.parent / "2"
    assert printed.splitlines()[-2] == str(new)
    assert "fitting u to 450 of 900 rows\nu       450 new labels, " in printed
    assert "inputs of these scores, nor recalibrated by them before, which" in printed

    about, change = exported.read_about(new), change_of(new)
    assert change.alpha < 1 or change.beta > 0
    assert [one["samples"] for one in about["recalibrations"]] == [450]
    # On inputs that had no part in it.
    x, y = samples(4000, 6, NOW)
    before, after = answers(source, x), answers(new, x)
    for name in ("predicted", "class_name", "probs"):
        np.testing.assert_array_equal(after[name], before[name])
    u = mapped(change, before)
    np.testing.assert_allclose(after["uncertainty"], u, rtol=1e-3)
    tau = about["threshold"]["tau"]
    np.testing.assert_array_equal(after["accept"], after["uncertainty"].astype(float) < tau)
    wrong = after["predicted"] != y
    assert abs(u.mean() - wrong.mean()) < 0.04 < abs(before["uncertainty"].mean() - wrong.mean())
    assert wrong[after["accept"]].mean() < 0.4


def test_each_class_has_its_threshold_on_recalibrated_u(source, tmp_path):
    x, y = samples(2400, 5, 1.2)
    path = scores(source, tmp_path, x, y)
    words = [
        str(source.parent),
        f"--scores={path}",
        "--recalibrate",
        "--by=predicted",
        "--min_coverage=0",
    ]
    assert (
        set_threshold.main([*words, "--threshold=target_risk", "--risk=0.45", "--delta=0.1"]) == 0
    )
    new = source.parent / "2"
    chosen = thresholds.from_json(exported.read_about(new)["threshold"])
    assert set(chosen.parts) == {"0", "1", "2"} and len(set(chosen.limits([0, 1, 2]))) == 3
    x, y = samples(3000, 6, 1.2)
    found = answers(new, x)
    u = found["uncertainty"].astype(np.float64)
    np.testing.assert_allclose(u, mapped(change_of(new), answers(source, x)), rtol=1e-3)
    np.testing.assert_array_equal(found["accept"], u < chosen.limits(found["predicted"]))
    for number in range(3):
        taken = found["accept"] & (found["predicted"] == number)
        assert taken.any() and (found["predicted"] != y)[taken].mean() < 0.45


def test_the_threshold_is_of_the_half_that_u_has_not_seen(source, tmp_path):
    x, y = samples(900, 5, NOW)
    path = scores(source, tmp_path, x, y)
    words = [str(source), f"--scores={path}", "--recalibrate", "--threshold=best_bacc"]
    assert set_threshold.main([*words, "--verbose=0"]) == 0
    new = source.parent / "2"
    about, change = exported.read_about(new), change_of(new)
    rows = exported.read_held_out(new)["calibration"]
    before, after = answers(source, x), answers(new, x)
    z = special.expit(logits_of(before)[1])
    everything = Predictions(
        y, None, before["predicted"], {COLUMN: before["uncertainty"], REFERENCE: z}
    )
    first, second = recalibrated.halves(everything)
    # The second half stays beside the model, with u as it is now.
    for name in ("labels", "predicted"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(second, name))
    logit, z = (special.logit(second.uncertainty[name]) for name in (COLUMN, REFERENCE))
    u = rows.uncertainty[COLUMN]
    np.testing.assert_allclose(u, special.expit(change(logit, z)), rtol=1e-4)
    assert np.isin(u, after["uncertainty"]).mean() > 0.5  # Or off by a digit of float32.
    chosen = thresholds.best_bacc(rows.is_error, u)
    assert about["threshold"]["tau"] == pytest.approx(chosen.tau, rel=1e-2)
    assert about["threshold"]["n"] == about["calibration"]["n"] == 450
    told = tf.saved_model.load(str(new)).signatures["about"](ask=tf.constant(["?"]))["json"]
    assert json.loads(told.numpy()[0]) == about
    # The first half alone taught u: all rows teach another map.
    np.testing.assert_allclose(recalibrated.learn(first).map, change, rtol=1e-3)
    assert np.abs(np.subtract(recalibrated.learn(everything).map, change)).max() > 1e-2


def test_a_second_recalibration_follows_the_first(source, tmp_path):
    x, y = samples(900, 5, NOW)
    everything = answers(source, x)
    model = source.parent
    for seed, name in ((5, "a.csv"), (6, "b.csv")):
        path = scores(model, tmp_path, *samples(700, seed, 2 * NOW if seed == 6 else NOW), name)
        words = [str(model), f"--scores={path}", "--recalibrate", "--threshold=target_coverage"]
        assert set_threshold.main([*words, "--verbose=0"]) == 0
    first, second = (
        Map(**one["map"]) for one in exported.read_about(model / "3")["recalibrations"]
    )
    assert first != SAME != second
    middle = mapped(first, everything)
    logit, z = special.logit(middle), logits_of(everything)[1]
    found = special.logit(answers(model / "3", x)["uncertainty"].astype(np.float64))
    np.testing.assert_allclose(found, second(logit, z), atol=5e-3)
    # Scores of an earlier version are of another u.
    words = [str(model), f"--scores={tmp_path}/a.csv", "--threshold=0.5"]
    assert set_threshold.main(words) == 1
    assert exported.versions(model) == [1, 2, 3]
    # Another threshold leaves u as it is now.
    assert set_threshold.main([str(model), "--threshold=0.5", "--verbose=0"]) == 0
    np.testing.assert_array_equal(answers(model / "4", x)["probs"], everything["probs"])
    u = answers(model / "4", x)["uncertainty"]
    np.testing.assert_allclose(special.logit(u.astype(np.float64)), found, atol=1e-3)


def test_without_probabilities_u_does_not_move_towards_mcp(source, tmp_path, capsys):
    x, y = samples(900, 5, NOW)
    found = answers(source, x)
    words = [str(source), f"--scores={tmp_path}/s.npz", "--recalibrate", "--threshold=0.5"]
    rounded = found["probs"].round(3)
    kept = rounded.argmax(axis=1) == found["predicted"]
    for version, probs in (("2", None), ("3", rounded[kept])):
        u, predicted = found["uncertainty"][kept], found["predicted"][kept]
        rows = Predictions(y[kept], probs, predicted, {COLUMN: u})
        predictions.save_predictions(tmp_path / "s.npz", rows)
        assert set_threshold.main(words) == 0
        assert "u is not moved towards MCP" in capsys.readouterr().out
        assert change_of(source.parent / version).gamma == 0.0
    rows = dataclasses.replace(rows, uncertainty={COLUMN: u.round(3)})
    predictions.save_predictions(tmp_path / "s.npz", rows)
    assert set_threshold.main(words) == 1
    assert "expected u in all its digits" in capsys.readouterr().err


def test_the_report_of_a_run_keeps_its_u(source, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "publication.json").write_text('{"id": "x"}')
    about = source / ABOUT_FILE
    content = json.loads(about.read_text()) | {"run": {"folder": "../../run", "id": "x"}}
    about.write_text(json.dumps(content))
    path = scores(source, tmp_path, *samples(600, 5, NOW))
    words = [str(source.parent), f"--scores={path}", "--recalibrate", "--threshold=0.5"]
    assert set_threshold.main(words) == 0
    assert "keeps the threshold and the u that it has; " in capsys.readouterr().out
    # Nor do the rows of the new version become those of the run.
    assert set_threshold.main([str(source.parent), "--threshold=0.6"]) == 0
    assert "keeps the threshold and the u that it has; " in capsys.readouterr().out
    assert [path.name for path in run.iterdir()] == ["publication.json"]


# --- refused ---


def refused(capsys, source, *words):
    """The line of an error, after which there is no other version."""
    before = exported.versions(source.parent)
    assert set_threshold.main([str(source), "--recalibrate", "--threshold=0.5", *words]) == 1
    assert exported.versions(source.parent) == before
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


def test_what_cannot_be_recalibrated_is_refused_with_the_remedy(
    source, tmp_path, capsys, monkeypatch
):
    path = scores(source, tmp_path, *samples(30, 5))
    line = refused(capsys, source, f"--scores={path}")
    assert "in the half that u is fitted to, labels: expected at least 10 answers" in line
    with pytest.raises(SystemExit):
        set_threshold.main([str(source), "--recalibrate", "--threshold=0.5"])
    assert "recalibrate: expected labeled answers" in capsys.readouterr().err

    has = StoredVariables.__contains__
    with monkeypatch.context() as patch:
        patch.setattr(
            StoredVariables,
            "__contains__",
            lambda stored, name: name != signatures.RECALIBRATION and has(stored, name),
        )
        line = refused(capsys, source, f"--scores={path}")
    assert "that an earlier version exported; export its run or its judge again" in line

    about = source / ABOUT_FILE
    about.write_text(json.dumps(json.loads(about.read_text()) | {"decide_only": True}))
    # As if the model itself said so.
    monkeypatch.setattr(exported, "_own_about", lambda directory: None)
    assert "for decisions by its own threshold alone" in refused(capsys, source, f"--scores={path}")


def test_u_of_a_trained_estimator_is_refused(unchecked, tmp_path, capsys):
    rows = keras.Input((3,))
    probs, u = layers.Dense(3, activation="softmax")(rows), layers.Dense(1, "sigmoid")(rows)
    source = saved_model.export(
        keras.Model(rows, {"probs": probs, "uncertainty": u}),
        tmp_path / "models",
        "m",
        ("0", "1", "2"),
        samples(3, 0)[0],
        threshold=thresholds.DEFAULT,
        about={"uncertainty": {"method": "btcp"}},
    )
    path = scores(source, tmp_path, *samples(60, 5))
    line = refused(capsys, source, f"--scores={path}")
    assert "u of btcp, which is what its estimator was trained to give" in line


def test_a_version_that_answers_another_u_is_not_published(source, monkeypatch):
    learned = Recalibration(Map(0.5, 1.0, 0.25), "mix", 100, 30, (0.1, 0.0, 0.2), 0.1, 0.3)
    assign = StoredVariables.assign

    def wrong(stored, values):
        assign(stored, values | {signatures.RECALIBRATION: [0.5, 1.1, 0.25]})

    monkeypatch.setattr(StoredVariables, "assign", wrong)
    with pytest.raises(RuntimeError, match="uncertainty of a batch of 8: 8 values"):
        saved_model.with_threshold(source, thresholds.DEFAULT, {}, None, learned)
    assert exported.versions(source.parent) == [1]
    monkeypatch.setattr(StoredVariables, "assign", assign)
    new = saved_model.with_threshold(source, thresholds.DEFAULT, {}, None, learned)
    # The old rows have no MCP beside u, which this change takes: they are not kept as they were.
    assert not exported.read_held_out(new)
    assert exported.read_about(new)["calibration"] is None
    shift = dataclasses.replace(learned, map=Map(0.5, 1.0, 0.0))
    new = saved_model.with_threshold(source, thresholds.DEFAULT, {}, None, shift)
    old = exported.read_held_out(source)["calibration"].uncertainty[COLUMN]
    found = exported.read_held_out(new)["calibration"].uncertainty[COLUMN]
    np.testing.assert_allclose(special.logit(found), 0.5 * special.logit(old) + 1.0, rtol=1e-9)


# --- halves ---


def rows_of(n, groups=None):
    labels = np.arange(n) % 2
    return Predictions(labels, None, 0 * labels, {COLUMN: np.linspace(0.1, 0.9, n)}, groups)


def test_halves_are_random_disjoint_and_always_the_same():
    rows = rows_of(101)
    first, second = recalibrated.halves(rows)
    assert (len(first.labels), len(second.labels)) == (50, 51)
    together = np.concatenate([first.uncertainty[COLUMN], second.uncertainty[COLUMN]])
    np.testing.assert_array_equal(np.sort(together), rows.uncertainty[COLUMN])
    assert 10 < np.sum(first.uncertainty[COLUMN] < 0.5) < 40
    again, _ = recalibrated.halves(rows)
    np.testing.assert_array_equal(again.uncertainty[COLUMN], first.uncertainty[COLUMN])


def test_a_group_is_in_one_half():
    groups = np.repeat([f"patient {number}" for number in range(20)], 5)
    first, second = recalibrated.halves(rows_of(100, groups))
    assert len(set(first.groups)) == 10 and not set(first.groups) & set(second.groups)


def test_u_keeps_its_precision_and_what_is_not_known_is_not_made_up():
    rows = rows_of(50)
    assert recalibrated.apply(rows, SAME) is rows
    assert recalibrated.apply(rows, Map(1.0, 0.0, 0.5)) is None
    single = dataclasses.replace(
        rows,
        uncertainty={
            COLUMN: rows.uncertainty[COLUMN].astype(np.float32),
            REFERENCE: rows.uncertainty[COLUMN],
        },
    )
    for one, dtype in ((rows, np.float64), (single, np.float32)):
        found = recalibrated.apply(one, Map(0.5, 1.0, 0.0)).uncertainty[COLUMN]
        assert found.dtype == dtype
        odds = np.exp(1.0) * np.sqrt(one.uncertainty[COLUMN] / (1 - one.uncertainty[COLUMN]))
        np.testing.assert_allclose(found, odds / (1 + odds), rtol=1e-6)
