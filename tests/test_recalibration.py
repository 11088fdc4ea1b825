"""u after the data has changed: what a few hundred new labels make of it."""

import json

import keras
import numpy as np
import pytest
from scipy import optimize, special
from sklearn.linear_model import LogisticRegression

import btcp_tf
from btcp_tf.attached import recalibrating
from btcp_tf.methods import recalibration
from btcp_tf.methods.recalibration import SAME, Map

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


def answers(n, change, seed=0):
    """Whether answers are wrong, logit(u) and MCP's, where `change` of these is right."""
    random = np.random.default_rng(seed)
    z = random.normal(-2.0, 2.0, n)
    logit = z + random.normal(0.0, 1.0, n)
    return random.random(n) < special.expit(change(logit, z)), logit, z


@pytest.mark.parametrize(
    "change, kind",
    [
        (SAME, "same"),
        (Map(1.0, 1.5, 0.0), "shift"),
        (Map(0.4, 1.0, 0.0), "scale"),
        (Map(0.2, 0.5, 0.8), "mix"),
    ],
)
def test_no_more_is_changed_than_the_labels_show(change, kind):
    found = [recalibration.recalibrate(*answers(4000, change, seed)) for seed in range(5)]
    assert [one.kind for one in found].count(kind) >= 4
    best = next(one for one in found if one.kind == kind)
    np.testing.assert_allclose(best.map, change, atol=0.25)
    rate = best.errors / best.samples
    assert best.expected_after == pytest.approx(rate, abs=0.01)


def test_few_labels_without_a_change_rarely_change_u():
    kinds = [recalibration.recalibrate(*answers(300, SAME, seed)).kind for seed in range(40)]
    assert kinds.count("same") >= 24
    for seed in range(10):
        one = recalibration.recalibrate(*answers(300, SAME, seed))
        assert abs(one.map.alpha - 1) < 0.5 and abs(one.map.beta) < 1.0


def test_the_map_is_that_of_the_largest_penalized_likelihood():
    wrong, logit, z = answers(500, Map(0.3, 1.0, 0.5))
    found = recalibration._fit(wrong, logit, z, (0, 1, 2))

    def loss(weights):
        total = weights[0] * logit + weights[1] + weights[2] * z
        likelihood = np.where(wrong, special.log_expit(total), special.log_expit(-total)).sum()
        return -likelihood + 0.5 * np.square(np.subtract(weights, SAME)).sum()

    textbook = optimize.minimize(loss, SAME, method="Nelder-Mead", options={"maxiter": 4000})
    np.testing.assert_allclose(found, textbook.x, atol=2e-3)


def test_the_scale_is_that_of_platt():
    wrong, logit, z = answers(20_000, Map(0.5, 1.0, 0.0))
    found = recalibration._fit(wrong, logit, z, (0, 1))
    platt = LogisticRegression(C=np.inf).fit(logit[:, None], wrong)
    assert found.alpha == pytest.approx(platt.coef_[0, 0], abs=1e-3)
    assert found.beta == pytest.approx(platt.intercept_[0], abs=1e-3)
    assert found.gamma == 0.0


def test_neither_u_nor_mcp_counts_against_itself():
    """Evidence that has turned round is given up, not turned."""
    found = recalibration.recalibrate(*answers(3000, lambda logit, z: 1.5 * z - 0.5 * logit))
    assert found.kind == "mix" and found.map.alpha == 0.0 and found.map.gamma > 0.3


def test_where_u_is_mcp_there_is_nothing_to_mix():
    wrong, _, z = answers(2000, Map(0.0, 0.5, 0.5))
    assert recalibration.recalibrate(wrong, z, z).kind in ("shift", "scale")


@pytest.mark.parametrize("errors, told", [(4, "wrong"), (396, "right")])
def test_few_errors_are_an_error(errors, told):
    wrong = np.arange(400) < errors
    with pytest.raises(ValueError, match=f"expected at least 10 answers that are {told}"):
        recalibration.recalibrate(wrong, np.zeros(400), np.zeros(400))


def test_groups_stay_together():
    wrong, logit, z = answers(60, Map(1.0, 0.4, 0.0))
    rows = np.repeat(np.arange(60), 10)
    alone = recalibration.recalibrate(wrong[rows], logit[rows], z[rows])
    found = recalibration.recalibrate(wrong[rows], logit[rows], z[rows], groups=rows)
    assert alone.kind != "same"
    low, high = found.gain[1:]
    assert found.kind == "same" or high - low > 2 * (alone.gain[2] - alone.gain[1])


# --- a judge ---


@pytest.fixture(scope="module")
def classifier():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="softmax")])
    model.layers[-1].set_weights([2.0 * np.eye(3, dtype=np.float32), np.zeros(3, np.float32)])
    return model


def samples(n, seed, noise=0.8):
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    return (np.eye(3)[y] + noise * random.normal(size=(n, 3))).astype(np.float32), y


@pytest.fixture
def fitted(classifier):
    judge = btcp_tf.attach(classifier)
    judge.fit(*samples(800, 0), reference=samples(800, 1), looks=(), verbose=0)
    return judge


def test_a_judge_is_recalibrated_and_kept(fitted, tmp_path):
    x, y = samples(600, 5, noise=1.6)
    before = fitted.predictions(x, y)
    fitted.select_threshold(*samples(400, 6), rule="target_coverage", coverage=0.8)
    learned = fitted.recalibrate(x, y, verbose=0)
    assert learned.kind != "same" and fitted.threshold is None
    logit, z = (special.logit(before.uncertainty[name]) for name in ("residual", "mcp"))
    after = fitted.predict(x)
    found = special.logit(after["uncertainty"])
    np.testing.assert_allclose(found, learned.map(logit, z), atol=1e-4)
    np.testing.assert_array_equal(after["predicted"], before.predicted)
    # On inputs that had no part in it, u is the error rate again.
    new = samples(3000, 7, noise=1.6)
    answers = fitted.predict(new[0])
    wrong = (answers["predicted"] != new[1]).mean()
    assert answers["uncertainty"].mean() == pytest.approx(wrong, abs=0.03)
    assert learned.words.startswith("600 new labels, ") and "mean u" in learned.words
    assert [one["kind"] for one in fitted.fitted["recalibrations"]] == [learned.kind]

    fitted.save(tmp_path / "judge.keras")
    loaded = btcp_tf.load(tmp_path / "judge.keras")
    np.testing.assert_array_equal(loaded.predict(x)["uncertainty"], after["uncertainty"])
    with pytest.raises(ValueError, match="600 of 600 samples are among those of recalibrate"):
        loaded.evaluate(x, y)
    version = loaded.export(tmp_path / "models", "m", x[:4], verbose=0)
    about = json.loads((version / "assets.extra" / "btcp_tf.json").read_text())
    assert about["fit"]["recalibrations"][0]["samples"] == 600


def test_explanations_start_from_the_recalibrated_mean(fitted):
    x, y = samples(800, 0)
    baseline = dict(fitted.fitted["baseline"])
    a, b, *h = fitted.model.get_layer("residual").get_weights()
    learned = recalibration.Recalibration(Map(0.5, 1.0, 0.25), "mix", 9, 3, (0, 0, 0), 0.1, 0.2)
    recalibrating.apply(fitted.model, learned, np.arange(9, dtype=np.uint64))
    new = fitted.fitted["baseline"]
    assert new["mcp"] == pytest.approx(baseline["mcp"] / a * (0.5 * a + 0.25))
    for name, value in baseline.items():
        if name != "mcp":
            assert new[name] == pytest.approx(0.5 * value)


def test_all_labels_that_u_was_ever_fitted_to_stay_known(fitted):
    first, second = samples(400, 5, noise=1.6), samples(400, 6, noise=1.6)
    logit = special.logit(fitted.predict(first[0])["uncertainty"])
    z = special.logit(fitted.predictions(*first).uncertainty["mcp"])
    maps = [fitted.recalibrate(*one, verbose=0).map for one in (first, second)]
    found = special.logit(fitted.predict(first[0])["uncertainty"])
    np.testing.assert_allclose(found, maps[1](maps[0](logit, z), z), atol=1e-4)
    assert len(fitted.fitted["recalibrations"]) == 2
    for one in (first, second):
        with pytest.raises(ValueError, match="400 of 400 samples are among those of recalibrate"):
            fitted.evaluate(*one)
    with pytest.raises(ValueError, match="seed: expected a whole number"):
        fitted.recalibrate(*samples(400, 7), seed=-1)


def test_a_judge_is_fitted_before_it_is_recalibrated(classifier):
    with pytest.raises(ValueError, match="expected a judge that is fitted, received one that is"):
        btcp_tf.attach(classifier).recalibrate(*samples(100, 1))


def test_what_cannot_be_recalibrated_is_refused_and_stays(fitted, classifier):
    x, y = samples(60, 5)
    before = fitted.predict(x)["uncertainty"]
    right = fitted.predict(x)["predicted"]
    with pytest.raises(ValueError, match="expected at least 10 answers that are wrong"):
        fitted.recalibrate(x, right)
    np.testing.assert_array_equal(fitted.predict(x)["uncertainty"], before)
    other = btcp_tf.attach(classifier)
    other.fit_btcp(*samples(200, 1), estimator_epochs=1, verbose=0)
    with pytest.raises(ValueError, match="expected a judge of fit, received one of fit_btcp"):
        other.recalibrate(x, y)
