"""Models that compute only the looks that can change a decision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import btcp_tf
from btcp_tf import monitor, predict, report, review, set_threshold, thresholds
from btcp_tf.attached import model as judge_model
from btcp_tf.attached import offer
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.decisions import exported
from btcp_tf.decisions.scores import load_baseline
from btcp_tf.judge import Judge
from btcp_tf.methods.look_choice import Design
from btcp_tf.methods.residual_choice import Weights
from btcp_tf.networks import models
from btcp_tf.networks.correction_layers import CopyCorrection
from btcp_tf.networks.deciding import decide_only
from btcp_tf.networks.evidence_layers import AnswerEvidence
from btcp_tf.serving import signatures
from btcp_tf.serving.saved_model import with_threshold

pytestmark = pytest.mark.usefixtures("quick_checks")

SIDE, CLASSES = 8, 3


def net(seed: int) -> keras.Model:
    inputs = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    x = keras.layers.Flatten()(x)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(x), name=f"net{seed}")
    random = np.random.default_rng(seed)
    model.set_weights([0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def of_several() -> keras.Model:
    """An image and a number as inputs by name."""
    taken = {"image": keras.Input((SIDE, SIDE, 1), name="image")}
    taken["number"] = keras.Input((1,), name="number")
    flat = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu")(taken["image"]))
    last = keras.layers.Dense(CLASSES, "softmax")
    model = keras.Model(taken, last(keras.layers.Concatenate()([flat, taken["number"]])))
    random = np.random.default_rng(0)
    model.set_weights([0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def inputs(n: int, several: bool = False):
    images = np.random.default_rng(9).normal(size=(n, SIDE, SIDE, 1)).astype(np.float32)
    return {"image": images, "number": images[:, 0, 0]} if several else images


def judge_with(looks, free=(), paid=(), gate=None, seed=0, corrected=False, several=False) -> Judge:
    """One with looks, perhaps other evidence and a correction, and random weights."""
    classifier = of_several() if several else net(0)
    parts = AttachedClassifier.take_apart(classifier)
    offered = offer.make(parts, looks, 5.0, (inputs(60, several), None), None, seed=0)
    evidence = {"answer": AnswerEvidence(name="answer")}
    behind = offered.behind(Design(free, (*paid, *offered.looks), gate, 0.5), evidence)
    used = {name: evidence[name] for name in free} | {"looks": behind}
    width = 1 + (3 + 2 + CLASSES) * bool(free or paid) + 2 * len(offered.looks) + 1
    random = np.random.default_rng(seed)
    h = 0.1 * random.normal(size=width)
    if corrected:
        features = offered.encoder.output.shape[1]
        used["copies"] = CopyCorrection(CLASSES, 1 + width, features, 3, name="copies")
        used["copies"].set_weights(
            [0.2 * random.normal(size=one.shape) ** 2 for one in used["copies"].get_weights()]
        )
        h = np.append(h, 1.0)
    weights = Weights(1.0, 0.3, h)
    about = judge_model.about(btcp_tf.attach(classifier).model) | {"fit": {}}
    formula = judge_model.residual_formula(used, weights)
    return Judge(judge_model.join(offered.encoder, offered.ends, formula, about))


def with_inner(model: keras.Model) -> keras.Model:
    """A model that also answers logit(u), MCP's, and which rows reach the looks."""
    outputs = {**models.with_logit(model).output, "z": model.get_layer("mcp_logit").output}
    if "undecided" in [layer.name for layer in model.layers]:
        outputs["looked_at"] = model.get_layer("undecided").output > 0
        outputs["computed"] = model.get_layer("undecided_inputs").output
    return keras.Model(model.input, outputs)


def answers(model: keras.Model, x: np.ndarray) -> dict[str, np.ndarray]:
    """Of a model of `with_inner`, columns as vectors."""
    found = {name: value.numpy() for name, value in model(x).items()}
    return {name: v[:, 0] if v.shape[1:] == (1,) else v for name, v in found.items()}


@pytest.mark.parametrize("gate", [None, -2.0])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("free, paid", [((), ()), (("answer",), ()), ((), ("answer",))])
@pytest.mark.parametrize("corrected", [False, True])
def test_no_decision_hangs_on_a_look_that_is_left_out(gate, count, free, paid, corrected):
    """Row by row at several thresholds; rows that are looked at have u and second opinion as
    before."""
    x, left_out, looked_at = inputs(400), 0, 0
    looks = ["mirror", net(1)][:count]
    for seed in range(2):
        model = judge_with(looks, free, paid, gate, seed, corrected).model
        whole = answers(with_inner(model), x)
        asked = np.ones(len(x), bool) if gate is None else whole["z"] > gate
        decides = with_inner(decide_only(model, CLASSES * [0.0]))
        accepted = np.quantile(whole["logit"], [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
        for limit in (*accepted + 1e-4, -np.inf, np.inf):
            decides.get_layer("row_limit").limits = CLASSES * [float(limit)]
            few = answers(decides, x)
            at = few["looked_at"]
            assert len(few["computed"]) == at.sum() and not (at & ~asked).any()
            np.testing.assert_array_equal(few["logit"] < limit, whole["logit"] < limit)
            for name in ("logit", "second_opinion"):
                np.testing.assert_allclose(few[name][at], whole[name][at], rtol=1e-5, atol=1e-5)
            own = few["probs"].argmax(axis=1)
            np.testing.assert_array_equal(few["second_opinion"].argmax(axis=1)[~at], own[~at])
            left_out += (asked & ~at).sum()
            looked_at += at.sum()
            assert np.isfinite(limit) or not at.any()
    assert left_out > 200 and looked_at > 200


@pytest.mark.parametrize("gate", [None, -2.0])
def test_a_row_that_is_not_looked_at_is_scored_as_if_looks_were_as_sure_as_mcp(gate):
    judge = judge_with(["mirror"], gate=gate)
    x = inputs(200)
    few = answers(with_inner(decide_only(judge.model, CLASSES * [-1.0])), x)
    z = few["z"]
    a, b, h = judge.model.get_layer("residual").get_weights()
    weight = np.ones_like(z) if gate is None else np.clip(z - gate, 0, 1)
    odds = np.clip(z, -15, 15)
    want = a * z + b + weight * (np.stack([z**0, odds, special.expit(odds), odds], 1) @ h[:, 0])
    rest = ~few["looked_at"]
    assert rest.sum() > 20
    assert few["logit"][rest] == pytest.approx(want[rest], abs=1e-4)


@pytest.mark.parametrize("gate", [None, -2.0])
def test_batches_of_one_row_and_of_decided_rows_alone(gate):
    model = judge_with(["mirror", net(1)], gate=gate).model
    x = inputs(120)
    limit = float(np.quantile(answers(with_inner(model), x)["logit"], 0.85)) + 1e-4
    few = with_inner(decide_only(model, CLASSES * [limit]))
    together = answers(few, x)
    at = together["looked_at"]
    assert at.any() and not at.all()
    for rows in (~at, at, [int(at.argmin())], [int(at.argmax())]):
        found = answers(few, x[rows])
        assert found["logit"] == pytest.approx(together["logit"][rows], abs=1e-4)
        np.testing.assert_array_equal(found["looked_at"], at[rows])


@pytest.fixture(scope="module")
def judge():
    """Its threshold was chosen on an array."""
    judge = judge_with(["mirror"], free=("answer",), gate=-2.0)
    x = inputs(300)
    judge.select_threshold(x, rule="target_coverage", coverage=0.6)
    return judge


@pytest.fixture(scope="module")
def version(judge, tmp_path_factory):
    """Of an export for decisions alone."""
    root = tmp_path_factory.mktemp("models")
    return judge.export(root, "net", inputs(8), decide_only=True, verbose=0)


def test_an_export_for_decisions_alone_decides_as_the_judge(judge, version):
    x = inputs(300)
    assert exported.read_about(version)["decide_only"] is True
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    accepted = judge.predict(x)["accept"]
    for rows in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
        found = serve(images=tf.constant(x[rows]))
        np.testing.assert_array_equal(found["accept"].numpy(), accepted[rows])
        below = found["uncertainty"].numpy().astype(np.float64) < judge.threshold.tau
        np.testing.assert_array_equal(below, accepted[rows])


def test_the_calibration_rows_beside_it_are_its_own_answers(judge, version):
    """What monitor compares its later answers with."""
    x = inputs(300)
    rows = exported.read_held_out(version)["calibration"]
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    own = serve(images=tf.constant(x))["uncertainty"].numpy()
    assert rows.uncertainty[exported.COLUMN] == pytest.approx(own, abs=1e-5)
    assert np.abs(own - judge.predict(x)["uncertainty"]).max() > 1e-3


def test_monitor_does_not_take_the_gate_for_what_is_looked_at(version, monkeypatch):
    fit = {"looks": ["mirror"], "gate": -2.0, "share": 0.3, "cost": 1.3}
    about = exported.read_about(version) | {"fit": fit}
    for decides_only, gate in ((True, None), (False, -2.0)):
        changed = about | {"decide_only": decides_only}
        monkeypatch.setattr(exported, "read_about", lambda path, changed=changed: changed)
        known = load_baseline(version).gate
        assert (None if known is None else known.logit) == gate


def test_without_their_inputs_it_has_no_calibration_rows(judge, tmp_path):
    judge.save(tmp_path / "judge.keras")
    loaded = btcp_tf.load(tmp_path / "judge.keras")
    with pytest.warns(UserWarning, match="the SavedModel keeps none"):
        path = loaded.export(tmp_path, "net", inputs(8), decide_only=True, verbose=0)
    assert not exported.read_held_out(path)


def test_its_threshold_is_not_replaced(version, capsys):
    assert set_threshold.main([str(version), "--threshold=0.3"]) == 1
    assert "computes every look" in capsys.readouterr().err
    with pytest.raises(ValueError, match="select_threshold and export again"):
        with_threshold(version, thresholds.DEFAULT)
    assert exported.versions(version.parent) == [1]


def test_decisions_that_differ_are_not_published(judge, tmp_path, monkeypatch):
    served = signatures.served
    monkeypatch.setattr(signatures, "served", lambda *args: (None, 1 - served(*args)[1]))
    with pytest.raises(RuntimeError, match="same decisions .* others about [0-9]+ calibration row"):
        judge.export(tmp_path, "net", inputs(8), decide_only=True, verbose=0)
    assert not (tmp_path / "net").exists()


@pytest.mark.filterwarnings("ignore:the judge is not fitted")
def test_what_has_no_looks_or_no_threshold_is_refused(tmp_path):
    x = inputs(60)
    with pytest.raises(ValueError, match="expected a threshold .* call select_threshold first"):
        judge_with(["mirror"]).export(tmp_path, "net", x[:8], decide_only=True, verbose=0)
    plain = btcp_tf.attach(net(0))
    plain.select_threshold(x, rule="target_coverage", coverage=0.5)
    with pytest.raises(ValueError, match="expected an estimator that uses looks, received one"):
        plain.export(tmp_path, "net", x[:8], decide_only=True, verbose=0)
    assert not (tmp_path / "net").exists()


# A threshold for each predicted class, or for each group.

SITES = ("north", "süd")


@pytest.mark.parametrize("gate", [None, -2.0])
@pytest.mark.parametrize("corrected", [False, True])
def test_each_predicted_class_has_its_own_limit(gate, corrected):
    """Row by row; the answers are those of the models of one limit each."""
    x, left_out = inputs(400), 0
    for seed in range(3):
        model = judge_with(["mirror", net(1)], (), ("answer",), gate, seed, corrected).model
        whole = answers(with_inner(model), x)
        predicted = whole["probs"].argmax(axis=1)
        limits = np.quantile(whole["logit"], [0.05, 0.5, 0.9]) + 1e-4
        limits[seed] = -np.inf  # Nothing of it is accepted.
        few = answers(with_inner(decide_only(model, limits.tolist())), x)
        np.testing.assert_array_equal(few["logit"] < limits[predicted], accepts(whole, limits))
        for number, limit in enumerate(limits):
            one = answers(with_inner(decide_only(model, CLASSES * [float(limit)])), x)
            own = predicted == number
            np.testing.assert_array_equal(few["looked_at"][own], one["looked_at"][own])
        assert not few["looked_at"][predicted == seed].any()
        left_out += (~few["looked_at"]).sum()
    assert 100 < left_out < 1170


def accepts(whole, limits):
    """Slowly: of each row, by the limit of its predicted class."""
    rows = zip(whole["logit"], whole["probs"], strict=True)
    return np.array([logit < limits[int(np.argmax(p))] for logit, p in rows])


def sites(n: int) -> np.ndarray:
    """Random sites, of which one has no threshold."""
    return np.random.default_rng(3).choice([*SITES, "new"], n)


@pytest.fixture(scope="module", params=["predicted", "group"])
def several(request, tmp_path_factory):
    """(judge, SavedModel, groups of `inputs(300)` or None), with a threshold of each."""
    request.getfixturevalue("quick_checks")
    judge, x, by = judge_with(["mirror"], free=("answer",), gate=-2.0), inputs(300), "predicted"
    whole = answers(with_inner(judge.model), x)
    names = whole["probs"].argmax(axis=1)
    if request.param == "group":
        names = by = np.random.default_rng(4).choice(SITES, 300)
    wrong = np.random.default_rng(1).random(300) < np.where(names == names[0], 0.02, 0.3)
    y = np.where(wrong, (whole["probs"].argmax(axis=1) + 1) % 3, whole["probs"].argmax(axis=1))
    judge.select_threshold(x, y, rule="target_risk", risk=0.3, delta=0.4, by=by, min_coverage=0)
    root = tmp_path_factory.mktemp("models")
    named = {"group_input": "site"} if request.param == "group" else {}
    path = judge.export(root, "net", inputs(8), decide_only=True, verbose=0, **named)
    return judge, path, sites(300) if request.param == "group" else None


@pytest.mark.filterwarnings("ignore:by. nothing is accepted of new")
def test_an_export_decides_by_the_tau_of_each_row(several):
    judge, path, by = several
    x = np.concatenate([inputs(300)[:150], np.random.default_rng(5).normal(size=(150, 8, 8, 1))])
    x = x.astype(np.float32)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    accepted = judge.predict(x, by=by)["accept"]
    assert 20 < accepted.sum() < 280
    taus = {part.tau for part in judge.threshold.parts.values()}
    assert len(taus) > 1
    for rows in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
        more = {} if by is None else {"site": tf.constant(by[rows].astype(object))}
        found = serve(images=tf.constant(x[rows]), **more)
        np.testing.assert_array_equal(found["accept"].numpy(), accepted[rows])
    if by is not None:
        assert not accepted[by == "new"].any()


def test_a_model_of_several_inputs_reads_the_group_beside_them(tmp_path):
    judge, x = judge_with(["mirror"], gate=-2.0, several=True), inputs(300, several=True)
    by = np.random.default_rng(4).choice(SITES, 300)
    answer = judge.predict(x)["predicted"]
    wrong = np.random.default_rng(1).random(300) < np.where(by == SITES[0], 0.02, 0.3)
    y = np.where(wrong, (answer + 1) % 3, answer)
    judge.select_threshold(x, y, rule="target_risk", risk=0.25, delta=0.4, by=by, min_coverage=0)
    assert len({part.tau for part in judge.threshold.parts.values()}) == 2
    few = {name: one[:8] for name, one in x.items()}
    with pytest.raises(ValueError, match="pixels: expected none with several inputs"):
        judge.export(tmp_path, "net", few, pixels="0_1", group_input="site", verbose=0)
    path = judge.export(tmp_path, "net", few, decide_only=True, group_input="ramp", verbose=0)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = serve(**{name: tf.constant(one) for name, one in x.items()}, ramp=tf.constant(by))
    accepted = judge.predict(x, by=by)["accept"]
    np.testing.assert_array_equal(found["accept"].numpy(), accepted)
    assert 20 < accepted.sum() < 280
    full = judge.predict(x, by=by)["uncertainty"]
    assert np.abs(found["uncertainty"].numpy() - full).max() > 1e-3


def test_the_calibration_rows_beside_it_are_its_own(several):
    judge, path, _ = several
    rows = exported.read_held_out(path)["calibration"]
    names = thresholds.names_of_rows(judge.threshold, rows.predicted, rows.by)
    assert (rows.uncertainty[exported.COLUMN] < judge.threshold.limits(names)).sum() == (
        judge.threshold.accepted
    )
    x = inputs(300)
    assert (
        np.abs(
            rows.uncertainty[exported.COLUMN] - judge.predict(x, by=rows.by)["uncertainty"]
        ).max()
        > 1e-3
    )


@pytest.mark.parametrize("only", [True, False])
def test_what_does_not_rank_answers_is_said_by_all_who_read_it(only, tmp_path, capsys):
    judge = judge_with(["mirror"], free=("answer",), gate=-2.0)
    x, labels = inputs(300), np.arange(300) % CLASSES
    judge.select_threshold(x, labels, rule="target_coverage", coverage=0.6)
    judge.export(tmp_path, "net", x[:8], decide_only=only, verbose=0)
    np.savez(tmp_path / "later.npz", x=x[::-1], y=labels[::-1])
    scores = str(tmp_path / "scores.csv")
    given = [f"--input={tmp_path / 'later.npz'}", f"--output={scores}", "--labels"]
    assert predict.main([f"--model={tmp_path / 'net'}", *given]) == 0
    capsys.readouterr()
    files = [f"--scores={scores}", f"--baseline={tmp_path / 'net'}"]
    for name, command in (
        ("monitor", lambda to: monitor.main([*files, to])),
        ("review", lambda to: review.main([*files, to])),
        ("report", lambda to: report.main([scores, to])),
    ):
        assert command(f"--output_dir={tmp_path / name}") == 0, capsys.readouterr().err
        out = " ".join(capsys.readouterr().out.split())
        assert ("u does not rank answers" in out) is only, name
        assert ("By u alone" in out) is (name == "monitor" and not only)
        assert ("the file tells of no promise" in out) is (name == "report")
