"""Tests of thresholds by predicted class or group: chosen, served, and put into a SavedModel."""

import dataclasses
import json
import shutil
import warnings

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from keras import layers
from scipy import stats

import btcp_tf
from btcp_tf import monitor, predict, report, review, set_threshold, thresholds
from btcp_tf.core import json_files
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.reporting import glance
from btcp_tf.serving import publishing, saved_model, signatures
from btcp_tf.thresholds import GROUP, PREDICTED, GroupThreshold

pytestmark = pytest.mark.usefixtures("quick_checks")

NAMES = ("cat", "dog", "owl")
PROMISE = dict(rule="target_risk", risk=0.05, delta=0.1)


def rows(n, seed=0):
    """Predicted classes, u and errors: owls are often wrong, whatever their u."""
    random = np.random.default_rng(seed)
    predicted, u = random.integers(0, 3, n), random.random(n)
    is_error = random.random(n) < np.where(predicted == 2, 0.5, 0.4 * u * (predicted + 1) / 2)
    return predicted, u, is_error


def by_class(n=3000, **more):
    predicted, u, is_error = rows(n)
    settings = {"risk": 0.1, "delta": 0.1} | more
    return thresholds.choose(
        "target_risk", is_error, u, by=PREDICTED, names=predicted, **settings
    ), (predicted, u, is_error)


def test_each_part_is_target_risk_of_its_rows_with_its_share_of_delta():
    chosen, (predicted, u, is_error) = by_class()
    assert list(chosen.parts) == ["0", "1", "2"] and chosen.by == PREDICTED and chosen.tau is None
    for number in range(3):
        own = predicted == number
        alone = thresholds.target_risk(is_error[own], u[own], risk=0.1, delta=0.1 / 3)
        part = chosen.parts[str(number)]
        assert dataclasses.replace(part, rule="") == dataclasses.replace(alone, rule="")
        if part.tau is not None:
            # An oracle of the promise's last step: the exact test of the accepted rows.
            accepted = own & (u < part.tau)
            n, k = int(accepted.sum()), int(is_error[accepted].sum())
            assert stats.binom.cdf(k, n, 0.1) <= 0.1 / 3
    accepted = np.array([
        chosen.parts[str(one)].tau is not None and v < chosen.parts[str(one)].tau
        for one, v in zip(predicted, u, strict=True)
    ])  # fmt: skip
    np.testing.assert_array_equal(u < chosen.limits(predicted), accepted)
    assert chosen.accepted == accepted.sum() and chosen.errors == is_error[accepted].sum()
    assert chosen.closed(NAMES) == ["owl"] and chosen.closed() == ["2"]
    assert chosen.closed((*NAMES, "elk")) == ["owl", "elk"], "no row predicts an elk"
    assert "in each of 3 predicted classes with probability 0.9" in chosen.rule
    assert "none in 1 of 3" in chosen.accepts and not chosen.accepts_nothing
    found = thresholds.outcome(chosen, is_error, u, names=predicted)
    assert (found.accepted, found.errors) == (chosen.accepted, chosen.errors)
    with pytest.raises(ValueError, match="names: expected the predicted of each row"):
        thresholds.outcome(chosen, is_error, u)


def test_promises_hold_together_as_often_as_was_promised():
    """Drawn again and again, a broken promise of any class is as rare as delta."""
    random = np.random.default_rng(0)
    draws, broken = 300, 0
    for _ in range(draws):
        predicted, u = random.integers(0, 3, 900), random.random(900)
        rate = u * np.array([0.3, 0.6, 0.9])[predicted]
        chosen = thresholds.choose(
            "target_risk", random.random(900) < rate, u,
            by=PREDICTED, names=predicted, risk=0.15, delta=0.2, min_coverage=0.1,
        )  # fmt: skip
        # Below tau the error rate is that of the middle.
        true = [
            slope * min(part.tau, 1) / 2
            for slope, part in zip((0.3, 0.6, 0.9), chosen.parts.values(), strict=True)
            if part.tau is not None
        ]
        broken += any(rate > 0.15 for rate in true)
    assert stats.binom.sf(broken - 1, draws, 0.2) > 1e-3


def test_rows_that_belong_together_count_once_in_each_class():
    predicted, u, is_error = rows(4000)
    patient = np.arange(4000) // 4
    chosen = thresholds.choose(
        "target_risk", is_error, u,
        by=PREDICTED, names=predicted, groups=patient, risk=0.15, delta=0.1,
    )  # fmt: skip
    for name, part in chosen.parts.items():
        assert part.n == len(np.unique(patient[predicted == int(name)]))
    assert "of rows that belong together one" in chosen.rule


def test_json_has_it_again_and_refuses_what_is_none():
    chosen, _ = by_class()
    text = json.dumps(dataclasses.asdict(chosen), allow_nan=False)
    assert thresholds.from_json(json.loads(text)) == chosen
    assert json.loads(json.dumps(json_files.plain(chosen))) == json.loads(text)
    content = json.loads(text)
    for change, words in (
        ({"by": "site"}, "by: expected predicted or group"),
        ({"parts": {}}, "parts: expected thresholds by group"),
        ({"parts": {"0": {"tau": "x"}}}, "parts: 0: tau: expected a finite number"),
        ({"parts": {"0": content}}, "parts: 0: expected one tau"),
    ):
        with pytest.raises(ValueError, match=words):
            thresholds.from_json(content | change)


def test_only_target_risk_is_chosen_by_class():
    predicted, u, is_error = rows(100)
    with pytest.raises(ValueError, match="by: expected only with target_risk.*best_bacc"):
        thresholds.choose("best_bacc", is_error, u, by=PREDICTED, names=predicted)


def test_each_tau_keeps_clear_of_the_rows_of_its_class():
    predicted = np.repeat([0, 1], 400)
    u = np.tile(np.linspace(0.1, 0.9, 400), 2)
    chosen = thresholds.choose(
        "target_risk", u > 0.6, u, by=PREDICTED, names=predicted, risk=0.1, delta=0.1, grid=u[:400]
    )
    moved = thresholds.clear_of(chosen, u, predicted)
    np.testing.assert_array_equal(u < moved.limits(predicted), u < chosen.limits(predicted))
    for number in (0, 1):
        own, part = u[predicted == number], chosen.parts[str(number)]
        assert moved.parts[str(number)] == thresholds.clear_of(part, own) != part


def test_a_report_calls_a_promise_broken_where_one_class_breaks_it():
    """Beside Bonferroni's exact intervals; all answers together keep it."""
    predicted = np.repeat([0, 1, 2], [1000, 300, 50])
    one, none = (
        thresholds.Threshold(tau, 0.5, "", 10, 5, delta=0.1, target=0.1) for tau in (0.5, None)
    )
    chosen = GroupThreshold(
        None, 0.5, "", 30, 10, delta=0.1, target=0.1, parts={"0": one, "1": one, "2": none}
    )
    least = next(
        k for k in range(300)
        if stats.binomtest(k, 300).proportion_ci(1 - 0.05 / 3, "exact").low > 0.1
    )  # fmt: skip
    for errors, state in ((5, "holds"), (least - 1, "open"), (least, "broken")):
        is_error = np.zeros(1350, bool)
        is_error[1000 : 1000 + errors] = True
        judged = glance.judge(chosen, is_error, np.full(1350, 0.2), predicted=predicted)
        assert glance.state(judged).name == state
        assert judged.outcome.high < 0.1 and judged.outcome.accepted == 1300


# Judges.


def samples(n, seed):
    """Points around three centers; those of the third are wrongly labeled half of the time."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    x = np.array([[0, 2.5], [2.5, -1.5], [-2.5, -1.5]])[y] + random.normal(size=(n, 2)) * 1.3
    y = np.where((y == 2) & (random.random(n) < 0.5), 0, y)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def classifier():
    inputs = keras.Input((2,))
    last = layers.Dense(3, activation="softmax")
    model = keras.Model(inputs, last(layers.Dense(2, kernel_initializer="identity")(inputs)))
    last.set_weights([np.array([[0.0, 1.2, -1.2], [1.5, -0.8, -0.8]]), np.zeros(3)])
    return model


@pytest.fixture
def judge(classifier, quick_heads):
    made = btcp_tf.attach(classifier, class_names=NAMES)
    return made.fit(*samples(600, 1), looks=(), verbose=0)


def owls_are_closed(judge, **more):
    with pytest.warns(UserWarning, match="nothing will be accepted of owl, where the promise"):
        return judge.select_threshold(*samples(1500, 2), by="predicted", **PROMISE, **more)


def test_a_judge_accepts_by_the_tau_of_the_predicted_class(judge, tmp_path):
    chosen = owls_are_closed(judge)
    x, y = samples(500, 3)
    found = judge.predict(x)
    taus = [-np.inf if part.tau is None else part.tau for part in chosen.parts.values()]
    wanted = found["uncertainty"] < np.array(taus)[found["predicted"]]
    np.testing.assert_array_equal(found["accept"], wanted)
    assert 0 < wanted.sum() and not found["accept"][found["class_name"] == "owl"].any()
    assert len({tau for tau in taus if np.isfinite(tau)}) == 2
    assert "none in 1 of 3" in repr(judge)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras")
    assert again.threshold == chosen == judge.threshold
    np.testing.assert_array_equal(again.predict(x)["accept"], wanted)
    with pytest.raises(ValueError, match="by: expected groups only where the threshold was chosen"):
        judge.predict(x, by=np.zeros(500, int))


def test_metrics_of_a_judge_are_those_of_its_decisions(judge):
    owls_are_closed(judge)
    x, y = samples(500, 3)
    found, row = judge.predict(x), judge.evaluate(x, y, draws=20)[1]
    wrong, rejected = found["predicted"] != y, ~found["accept"]
    # Positive: a correct answer that is accepted.
    assert row["fpr"] == pytest.approx(np.mean(~rejected[wrong]))
    assert row["fnr"] == pytest.approx(np.mean(rejected[~wrong]))
    assert row["fpr_low"] <= row["fpr"] <= row["fpr_high"]
    assert row["tau"] is None and row["method"] == "residual"
    judge.select_threshold(*samples(1500, 2), rule="target_coverage", coverage=0.5)
    assert judge.evaluate(x, y, draws=20)[1]["auroc"] == row["auroc"], "u is the same"


@pytest.mark.parametrize("kind", ["number", "text"])
def test_groups_have_thresholds_of_their_own(judge, kind, tmp_path):
    (x, y), (new, _) = samples(2400, 2), samples(300, 3)
    site = np.arange(2400) % 2
    y = np.where((site == 1) & (np.random.default_rng(0).random(2400) < 0.4), (y + 1) % 3, y)
    names = np.array([10, 20]) if kind == "number" else np.array(["north", "south"])
    with pytest.warns(UserWarning, match=f"nothing will be accepted of {names[1]}, where"):
        chosen = judge.select_threshold(x, y, by=names[site], **(PROMISE | {"risk": 0.1}))
    assert isinstance(chosen, GroupThreshold) and chosen.by == GROUP
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = judge.predict(new, by=names[np.arange(300) % 2])
    tau = chosen.parts[str(names[0])].tau
    wanted = (found["uncertainty"] < tau) & (np.arange(300) % 2 == 0)
    np.testing.assert_array_equal(found["accept"], wanted)
    assert wanted.any()
    with pytest.warns(UserWarning, match="by: nothing is accepted of east, which select_threshold"):
        assert not judge.predict(new, by=np.full(300, "east"))["accept"].any()
    with pytest.raises(ValueError, match="by: expected the group of each sample"):
        judge.predict(new)
    with pytest.raises(ValueError, match=r"by: expected shape \[300\]"):
        judge.predict(new, by=names[:1])
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras")
    np.testing.assert_array_equal(
        again.predict(new, by=names[np.arange(300) % 2])["accept"], wanted
    )
    rows = again.evaluate(x, y, by=names[site], draws=5)
    assert rows[1]["tau"] is None


def test_groups_are_asked_for_only_where_they_decide(classifier):
    judge = btcp_tf.attach(classifier)
    x, y = samples(60, 1)
    for call in (judge.predict, lambda x, by: judge.evaluate(x, y, by=by)):
        with (
            warnings.catch_warnings(),
            pytest.raises(ValueError, match="by: expected groups only where the threshold was"),
        ):
            warnings.simplefilter("ignore")
            call(x, by=np.arange(60))


@pytest.mark.parametrize(
    ("by", "rule", "message"),
    [
        ("site", {"rule": "target_risk"}, "by: expected groups, one of each input"),
        ("predicted", {"rule": "best_bacc"}, "by: expected only with target_risk"),
        (np.arange(5), {"rule": "target_risk"}, r"by: expected shape \[60\], received \[5\]"),
        (np.full(60, 0.5), {"rule": "target_risk"}, "by: expected whole numbers or strings"),
        (
            [float("nan"), *59 * ["a"]],
            {"rule": "target_risk"},
            "strings, received float beside str",
        ),
    ],
)
def test_a_judge_refuses_a_by_that_is_none(classifier, by, rule, message):
    settings = {"risk": 0.1, "delta": 0.1} if rule["rule"] == "target_risk" else {}
    with pytest.raises(ValueError, match=message):
        btcp_tf.attach(classifier).select_threshold(*samples(60, 1), by=by, **rule, **settings)


# SavedModels.


def served(path, x):
    answer = tf.saved_model.load(str(path)).signatures["serving_default"]
    return {name: value.numpy() for name, value in answer(images=tf.constant(x)).items()}


def test_a_saved_model_accepts_by_the_tau_of_the_predicted_class(judge, tmp_path):
    chosen = owls_are_closed(judge)
    path = judge.export(tmp_path, "points", samples(5, 3)[0], verbose=0)
    assert exported.read_about(path)["threshold"] == dataclasses.asdict(chosen)
    calibration = exported.read_about(path)["calibration"]
    assert calibration["fp_share"] == pytest.approx(chosen.errors / chosen.n)
    for x in (samples(500, 4)[0], samples(1, 4)[0], samples(1, 4)[0][:0]):
        found, kept = served(path, x), judge.predict(x) if len(x) else None
        limits = chosen.limits(found["predicted"])
        np.testing.assert_array_equal(found["accept"], found["uncertainty"].astype(float) < limits)
        if kept is not None:
            np.testing.assert_array_equal(found["accept"], kept["accept"])
    # What the threshold was chosen on is decided in all digits.
    x, _ = samples(1500, 2)
    rows = exported.read_held_out(path)["calibration"]
    wanted = rows.uncertainty[COLUMN] < chosen.limits(rows.predicted)
    np.testing.assert_array_equal(served(path, x)["accept"], wanted)
    assert wanted.sum() == chosen.accepted


def test_u_of_a_saved_model_is_on_the_side_of_the_tau_of_its_class(judge, tmp_path):
    """Between two float32, tau is told from neither where the other class has another."""
    judge.select_threshold(*samples(1500, 2), rule="target_coverage", coverage=0.5)
    path = judge.export(tmp_path, "points", samples(5, 3)[0], verbose=0)
    x, _ = samples(300, 5)
    exact, found = judge.predict(x), served(path, x)
    parts = {
        str(number): thresholds.given([0, 1], [0.1, 0.2], tau=float(
            np.sort(exact["uncertainty"][found["predicted"] == number])[20] + 1e-12
        ))
        for number in range(3)
    }  # fmt: skip
    chosen, _ = by_class()
    changed = saved_model.with_threshold(path, dataclasses.replace(chosen, parts=parts))
    now = served(changed, x)
    limits = np.array([part.tau for part in parts.values()])[now["predicted"]]
    np.testing.assert_array_equal(now["accept"], now["uncertainty"].astype(float) < limits)
    for number in range(3):
        assert now["accept"][now["predicted"] == number].sum() in (20, 21, 22)
    np.testing.assert_allclose(now["uncertainty"], found["uncertainty"], rtol=1e-6)
    # And back: one tau for all.
    back = saved_model.with_threshold(changed, thresholds.from_json(
        exported.read_about(path)["threshold"]
    ))  # fmt: skip
    np.testing.assert_array_equal(served(back, x)["accept"], found["accept"])


def test_the_command_predict_decides_alike(judge, tmp_path, capsys):
    chosen = owls_are_closed(judge)
    path = judge.export(tmp_path, "points", samples(5, 3)[0], verbose=0)
    x, _ = samples(200, 6)
    np.savez(tmp_path / "x.npz", images=x)
    command = [f"--model={path}", f"--input={tmp_path}/x.npz", f"--output={tmp_path}/scores.csv"]
    assert predict.main(command) == 0
    told = capsys.readouterr().out
    assert "u < the tau of its predicted class" in told
    scores = pandas.read_csv(tmp_path / "scores.csv")
    wanted = scores["uncertainty"].to_numpy() < chosen.limits(scores["predicted"])
    np.testing.assert_array_equal(scores["accept"].astype(str).str.lower() == "true", wanted)
    np.testing.assert_array_equal(judge.predict(x)["accept"], wanted)
    # As a report sees it, which does not know the model.
    u, predicted = scores["uncertainty"], scores["predicted"]
    scores["accept"] = u < np.array([u[predicted == 0].median(), 0.09, 0.0])[predicted]
    scores["labels"] = 0
    scores.to_csv(tmp_path / "labeled.csv", index=False)
    assert report.main([f"{tmp_path}/labeled.csv", "--by=predicted"]) == 0
    page = " ".join((tmp_path / "labeled.csv-report" / "report.md").read_text().split())
    assert "follows a threshold of its own for each predicted class" in page
    assert "follows no threshold" not in page


# The command set_threshold.

PREDICTED_ROWS, U, WRONG = rows(3000)
HELD_OUT = Predictions(
    np.where(WRONG, (PREDICTED_ROWS + 1) % 3, PREDICTED_ROWS),
    None,
    PREDICTED_ROWS,
    {COLUMN: U.astype(np.float32)},
)


def write_rows(root):
    """A version directory whose u is no logit, so that u itself is compared."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    u = layers.Dense(1, activation="hard_sigmoid")(inputs)
    model = keras.Model(inputs, {"probs": layers.Dense(3, "softmax")(inputs), "uncertainty": u})
    sample = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    return saved_model.export(
        model, root / "models", "rows", NAMES, sample,
        threshold=thresholds.DEFAULT, held_out={"calibration": HELD_OUT},
    )  # fmt: skip


@pytest.fixture
def source(tmp_path):
    return write_rows(tmp_path)


BY = ["--threshold=target_risk", "--by=predicted", "--risk=0.1", "--delta=0.1"]


def test_the_command_chooses_by_predicted_class(source, capsys):
    with pytest.warns(UserWarning, match="threshold: nothing will be accepted of owl"):
        assert set_threshold.main([str(source), *BY]) == 0
    chosen = thresholds.from_json(exported.read_about(source.parent / "2")["threshold"])
    parts = thresholds.target_risk_by_group(
        WRONG, U.astype(np.float32), PREDICTED_ROWS, risk=0.1, delta=0.1
    )
    for number, part in parts.items():
        found = chosen.parts[str(number)]
        assert (found.accepted, found.errors, found.n) == (part.accepted, part.errors, part.n)
    assert "now     error rate <= 0.1 in each of 3 predicted classes" in capsys.readouterr().out
    x = np.random.default_rng(1).normal(0, 2, (400, 4)).astype(np.float32)
    found = served(source.parent / "2", x)
    wanted = found["uncertainty"].astype(float) < chosen.limits(found["predicted"])
    np.testing.assert_array_equal(found["accept"], wanted)
    assert {*found["predicted"][wanted]} == {0, 1}


@pytest.mark.filterwarnings("ignore:threshold. nothing will be accepted of owl")
def test_a_promise_for_each_class_is_lost_to_one_for_all(source):
    set_threshold.main([str(source), *BY])
    folder = source.parent
    chosen = thresholds.from_json(exported.read_about(folder / "2")["threshold"])
    assert publishing.lost_promise(folder, chosen) == ""
    all_alike = thresholds.target_risk(WRONG & (U > 0.5), U, risk=0.1, delta=0.1)
    lost = publishing.lost_promise(folder, all_alike)
    assert "promises error rate <= 0.1 in each predicted class with probability 0.9" in lost
    assert lost.endswith("promises error rate <= 0.1 with probability 0.9 of all answers together")
    nothing = dataclasses.replace(chosen.parts["0"], tau=None)
    fewer = dataclasses.replace(chosen, parts={**chosen.parts, "0": nothing})
    assert "accepts nothing of cat, where" in publishing.lost_promise(folder, fewer)
    # A promise in each class is one for all answers, too.
    with pytest.warns(UserWarning, match="of all answers together; a server takes the newest"):
        saved_model.with_threshold(folder / "2", all_alike)
    assert "nothing of owl" in publishing.lost_promise(folder, chosen)
    every = dataclasses.replace(chosen, parts=dict.fromkeys("012", chosen.parts["0"]))
    assert publishing.lost_promise(folder, every) == ""


@pytest.mark.filterwarnings("ignore:threshold. nothing will be accepted of owl")
@pytest.mark.parametrize("changed", ["threshold", "recalibrations"])
def test_a_file_that_was_changed_beside_the_model_is_not_believed(
    source, capsys, tmp_path, changed
):
    set_threshold.main([str(source), *BY])
    version = source.parent / "2"
    file = version / exported.ABOUT_FILE
    content = json.loads(file.read_text())
    if changed == "threshold":
        content["threshold"]["parts"]["0"]["tau"] = 0.9
    else:
        content["recalibrations"] = [{"map": {"alpha": 2.0, "beta": 0.0, "gamma": 0.0}}]
    before = file.read_text()
    file.write_text(json.dumps(content))
    np.savez(tmp_path / "x.npz", images=np.ones((3, 4), np.float32))
    command = [f"--model={version}", f"--input={tmp_path}/x.npz", f"--output={tmp_path}/s.csv"]
    (tmp_path / "rows.csv").write_text("predicted,uncertainty,labels\n0,0.2,0\n1,0.1,1\n")
    watched = [f"--baseline={version}", f"--scores={tmp_path}/rows.csv"]
    for call in (
        lambda: predict.main(command),
        lambda: set_threshold.main([str(version), *BY]),
        lambda: monitor.main(watched),
        lambda: review.main(watched),
    ):
        assert call() == 1
        assert f"expected {changed} as the model itself has it" in capsys.readouterr().err
    assert exported.versions(source.parent) == [1, 2] and not (tmp_path / "s.csv").exists()
    file.write_text(before)
    assert predict.main(command) == 0
    assert review.main(watched) == 0


@pytest.mark.parametrize("field", ["labels", "predicted", "uncertainty"])
def test_other_answers_beside_the_model_are_not_believed(source, capsys, tmp_path, field):
    """Those that the threshold was chosen on, edited or of another model."""
    file = source / "assets.extra" / "calibration.npz"
    rows = exported.read_held_out(source)["calibration"]
    arrays = {"labels": rows.labels, "predicted": rows.predicted, **rows.uncertainty}
    last = arrays[field][-1]
    arrays[field] = np.append(arrays[field][:-1], last / 2 if last % 1 else (last + 1) % 3)
    np.savez(file, **arrays)
    (tmp_path / "rows.csv").write_text("predicted,uncertainty\n0,0.2\n1,0.1\n")
    watched = [f"--baseline={source}", f"--scores={tmp_path}/rows.csv"]
    for call in (lambda: monitor.main(watched), lambda: set_threshold.main([str(source), *BY])):
        assert call() == 1
        told = capsys.readouterr().err
        assert "expected calibration.npz beside it as it was exported, received other" in told
    # What an earlier version wrote has no digest.
    about = exported.read_about(source)
    del about[exported.HELD_OUT]
    (source / exported.ABOUT_FILE).write_text(json.dumps(about))
    shutil.rmtree(source / "variables")
    assert len(exported.read_held_out(source)["calibration"].predicted) == len(rows.predicted)


def test_the_command_refuses_by_with_another_rule_or_column(source, capsys):
    for words, message in (
        (["--threshold=best_bacc", "--by=predicted"], "by: expected only with --threshold=target"),
        (
            ["--threshold=target_risk", "--by=site"],
            "by: expected predicted or group, or nothing for one threshold, received 'site'",
        ),
    ):
        with pytest.raises(SystemExit):
            set_threshold.main([str(source), *words])
        assert message in capsys.readouterr().err
    assert exported.versions(source.parent) == [1]


def test_no_version_is_written_where_no_class_keeps_the_promise(source, capsys):
    words = ["--threshold=target_risk", "--by=predicted", "--risk=0.0001"]
    assert set_threshold.main([str(source), *words]) == 1
    assert "not achievable" in capsys.readouterr().err
    assert exported.versions(source.parent) == [1]


@pytest.mark.parametrize("by_logit", [False, True])
def test_models_of_earlier_versions_hold_one_threshold(judge, tmp_path, monkeypatch, by_logit):
    """Their variable holds no row for each class: another tau goes in, one by class is refused."""
    decide, limits_of = signatures._decide, signatures.limits_of

    def with_one(outputs, class_names, decision, inputs, group):
        limit = tf.stack([decision.limit.read_value()] * 3)
        return decide(outputs, class_names, decision._replace(limit=limit), inputs, group)

    with monkeypatch.context() as patch:
        patch.setattr(signatures, "_decide", with_one)
        patch.setattr(signatures, "limits_of", lambda *settings: limits_of(*settings)[0])
        old = write_rows(tmp_path)
        x = np.random.default_rng(1).normal(0, 2, (400, 4)).astype(np.float32)
        if by_logit:
            x, _ = samples(200, 6)
            old = judge.export(tmp_path, "old", x[:5], verbose=0)
    chosen, _ = by_class()
    with pytest.raises(ValueError, match="earlier version, which holds one for all; export the"):
        saved_model.with_threshold(old, chosen)
    u = np.sort(served(old, x)["uncertainty"].astype(float))
    other = thresholds.given([0, 1], [0.1, 0.2], tau=(u[50] + u[-50]) / 2)
    found = served(saved_model.with_threshold(old, other), x)
    np.testing.assert_array_equal(found["accept"], found["uncertainty"].astype(float) < other.tau)
    assert 0 < found["accept"].sum() < len(x)
    assert exported.versions(old.parent) == [1, 2]
