"""What the choice of evidence without looks says of itself, where there is nothing to choose."""

import dataclasses

import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from btcp_tf.methods import residual_choice, stacking
from btcp_tf.methods.stacking import Columns, Samples


def noise(seed: int, n: int = 150, columns: int = 10) -> Samples:
    """Answers of three classifiers, and evidence that says nothing about them; nor does MCP, so
    that any ranking is as good as another on the average."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, 1)) - 1.5
    is_error = random.random(n) < special.expit(-1.5)
    names = ("answer", *(f"noise{number}" for number in range(columns - 1)))
    evidence = {name: random.normal(size=(n, 1)) for name in names}
    return Samples(is_error, z, evidence, np.arange(n) % 3, None)


def test_evidence_that_says_nothing_does_not_look_better_than_mcp(monkeypatch):
    monkeypatch.setattr(residual_choice, "_DRAWS", 100)
    monkeypatch.setattr(residual_choice, "_STRENGTHS", (1.0,))
    better, aurc = 0, []
    for seed in range(40):
        one = noise(seed)
        fit = residual_choice.choose(one, seed).fit
        better += fit.evidence != ()
        aurc.append(fit.difference["aurc"])
    value, _, high = np.array(aurc).T
    assert better <= 2 and (high < 0).sum() <= 3
    # Chosen on the same folds, the winner gains 0.02 on the average.
    assert abs(value.mean()) < 0.01


def test_the_table_says_what_each_source_adds_by_itself():
    random = np.random.default_rng(3)
    n = 600
    hidden, z = random.normal(size=(n, 1)), random.normal(size=(n, 1)) - 2.0
    is_error = random.random(n) < special.expit(z + 2 * hidden)[:, 0]
    evidence = {"answer": random.normal(size=(n, 2)), "sees": hidden}
    fit = residual_choice.choose(Samples(is_error, z, evidence, np.zeros(n, int), None), 0).fit
    answer, sees = fit.tried
    assert [answer.name, sees.name] == ["answer", "sees"] and answer.cost is None
    assert sees.used and (answer.used == ("answer" in fit.evidence))
    assert sees.log_likelihood[1] > 0 > answer.log_likelihood[1]
    # The same by hand: out-of-fold log-likelihood with and without it.
    of = {}
    for name, x in {"mcp": z, "sees": np.hstack([z, hidden])}.items():
        logits = np.empty(n)
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        for train, test in folds.split(x, is_error):
            scaler = StandardScaler().fit(x[train])
            model = LogisticRegression(C=fit.strength, solver="newton-cholesky")
            model.fit(scaler.transform(x[train]), is_error[train])
            logits[test] = model.decision_function(scaler.transform(x[test]))
        of[name] = special.log_expit(np.where(is_error, logits, -logits))
    gain = of["sees"] - of["mcp"]
    half = 1.96 * gain.std() / np.sqrt(n)
    wanted = (gain.mean(), gain.mean() - half, gain.mean() + half)
    assert sees.log_likelihood == pytest.approx(wanted, rel=1e-4)
    assert sees.aurc < -0.01


@pytest.mark.parametrize("errors", [0, 4, 5, 6, 7, 12, 195])
def test_few_errors_are_no_fault(errors, recwarn):
    one = noise(1, 200, 3)
    is_error = np.arange(200) < errors
    found = residual_choice.choose(dataclasses.replace(one, all_errors=is_error), 0)
    fit, u = found.fit, found.u
    assert ("too few" in fit.words) == (errors < 5) and np.isfinite(u).all()
    assert not recwarn.list


@pytest.mark.parametrize("columns", [3, 120])
@pytest.mark.parametrize("kind", ["right or wrong", "probability", "separable", "one error"])
def test_a_quick_regression_is_the_same_up_to_rounding(columns, kind):
    random = np.random.default_rng(0)
    x = random.normal(size=(400, columns)).astype(np.float32)
    # As the log-probabilities of an answer: columns that are sums of others.
    x[:, 0] = x[:, 1] + x[:, 2]
    x = np.hstack([x, np.full((400, 1), 7.0, np.float32), 1e4 + x[:, :1]])
    wanted = {
        "right or wrong": random.random(400) < special.expit(x[:, 1]),
        "probability": special.expit(x[:, 1] + random.normal(size=400)),
        "separable": x[:, 1] > 1.0,
        "one error": np.arange(400) == 7,
    }[kind]
    slow, quick = (
        make(x, wanted, 10.0).logits(x) for make in (stacking.regression, stacking.quick_regression)
    )
    np.testing.assert_allclose(special.expit(quick), special.expit(slow), atol=0.005)
    np.testing.assert_allclose(quick, slow, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("kind", ["right or wrong", "probability"])
def test_a_quick_regression_has_the_smallest_penalized_loss(kind):
    random = np.random.default_rng(1)
    x = random.normal(size=(300, 4)) * [1.0, 10.0, 0.1, 3.0] + 2.0
    p = special.expit(x[:, 0] - 0.3 * x[:, 1])
    wanted = random.random(300) < p if kind == "right or wrong" else p
    found = stacking.quick_regression(x, wanted, 0.5)

    def loss(weights):
        logits = x @ weights[:-1] + weights[-1]
        fit = np.sum(np.logaddexp(0, logits) - wanted * logits)
        return fit + np.sum((weights[:-1] * x.std(axis=0)) ** 2) / (2 * 0.5)

    best = np.append(found.slopes, found.intercept)
    for _ in range(200):
        assert loss(best + 1e-2 * random.normal(size=5)) > loss(best)


def of_classes(k: int, n: int, spread: float, seed: int = 0) -> tuple[np.ndarray, Columns]:
    """Right or wrong, and answers of k classes whose log odds differ by so much."""
    random = np.random.default_rng(seed)
    predicted, z = random.integers(0, k, n), random.normal(size=(n, 1)) - 1.5
    logits = z[:, 0] + spread * random.normal(size=k)[predicted]
    return random.random(n) < special.expit(logits), Columns(z, predicted, k)


@pytest.mark.parametrize("make", [stacking.regression, None])
@pytest.mark.parametrize("k", [3, 200])
def test_classes_have_the_smallest_penalized_loss(k, make):
    wrong, columns = of_classes(k, 2000, 1.0)
    found = stacking.fitted(columns, wrong, 0.5, make)
    base = stacking.quick_regression(columns.x, wrong, 0.5)
    _, variance = stacking.class_offsets(base.logits(columns.x), wrong, columns.predicted, k)
    assert 0.5 < variance < 2.0

    def loss(offsets, slope, intercept):
        logits = columns.x[:, 0] * slope + intercept + offsets[columns.predicted]
        fit = np.sum(np.logaddexp(0, logits) - wrong * logits)
        return fit + offsets @ offsets / (2 * variance) + (slope * columns.x.std()) ** 2 / 1.0

    best = loss(found.offsets, found.slopes[0], found.intercept)
    random = np.random.default_rng(1)
    for _ in range(200):
        moved, (slope, intercept) = 1e-2 * random.normal(size=k), 1e-2 * random.normal(size=2)
        assert loss(found.offsets + moved, found.slopes[0] + slope, found.intercept + intercept) > (
            best
        )


@pytest.mark.parametrize("wrong", ["never", "always"])
def test_a_class_that_is_seldom_predicted_is_drawn_to_the_mean(wrong):
    predicted = np.repeat(np.arange(5), [500, 500, 50, 5, 0])
    wanted = np.arange(len(predicted)) % np.array([2, 10, 5, 5, 5])[predicted] == 0
    wanted[predicted >= 2] = wrong == "always"
    offsets, _ = stacking.class_offsets(np.full(len(predicted), -1.0), wanted, predicted, 5)
    sign = 1 if wrong == "always" else -1
    assert np.isfinite(offsets).all() and offsets[4] == 0.0
    assert sign * offsets[2] > sign * offsets[3] > 0


def test_classes_that_do_not_differ_get_hardly_any_offsets():
    largest = []
    for seed in range(5):
        wrong, columns = of_classes(20, 4000, 0.0, seed)
        base = stacking.quick_regression(columns.x, wrong, 1.0).logits(columns.x)
        offsets, _ = stacking.class_offsets(base, wrong, columns.predicted, 20)
        largest.append(np.abs(offsets).max())
    assert np.mean(largest) < 0.1  # Without the variance they are above 0.4.


def test_a_thousand_classes_of_few_errors_each_help_if_they_differ_and_else_do_no_harm():
    gains = {}
    for spread in (0.0, 1.0):
        wrong, columns = of_classes(1000, 10_000, spread)
        samples = Samples(
            wrong,
            columns.x,
            {"answer": np.zeros((10_000, 1))},
            np.zeros(10_000, int),
            None,
            {},
            columns.predicted,
            1000,
        )
        folds = stacking.splits(samples, 0)
        mcp, own = (
            stacking.cross_validated(samples, samples.columns(names), 1.0, folds)
            for names in ((), ("answer",))
        )
        gains[spread] = 1000 * (mcp.aurc - own.aurc)
    # One column for each class, standardized, loses 20 and more in both.
    assert gains[0.0] > -1.0 and gains[1.0] > 10.0


def test_weights_of_classes_are_those_of_their_columns():
    wrong, columns = of_classes(30, 3000, 1.0)
    answer = np.random.default_rng(0).normal(size=(3000, 2))
    further = answer[:, :1] ** 2
    evidence = {"answer": answer, "further": further}
    samples = Samples(
        wrong, columns.x, evidence, np.zeros(3000, int), None, {}, columns.predicted, 30
    )
    model = stacking.fitted(samples.read(evidence), wrong, 1.0, stacking.regression)
    weights = residual_choice._weights_of(model, evidence)
    read = np.hstack([answer, columns.predicted[:, None] == np.arange(30), further])
    found = weights.a * columns.x[:, 0] + weights.b + read @ weights.h
    np.testing.assert_allclose(found, model.of(samples.read(evidence)), atol=1e-9)
    baseline = residual_choice._baseline(samples, weights, evidence)
    assert sum(baseline.values()) + weights.b == pytest.approx(found.mean())
    found = residual_choice.choose(samples, 0)
    assert "answer" in found.fit.evidence and len(found.weights.h) in (32, 33)


@pytest.mark.parametrize(
    ("aupr_error", "aurc", "both", "one"),
    [
        ((0.1, 0.05, 0.2), (-0.02, -0.03, -0.01), True, True),
        ((0.1, 0.05, 0.2), (-0.001, -0.03, 0.02), False, True),
        ((0.1, 0.05, 0.2), (0.001, -0.03, 0.02), False, False),
        ((0.01, -0.05, 0.2), (-0.02, -0.03, -0.01), False, True),
        ((-0.01, -0.05, 0.2), (-0.02, -0.03, -0.01), False, False),
        ((0.01, -0.05, 0.2), (-0.001, -0.03, 0.02), False, False),
    ],
)
def test_one_measure_shows_a_gain_only_where_the_other_is_not_worse(aupr_error, aurc, both, one):
    difference = {"aupr_error": aupr_error, "aurc": aurc}
    assert residual_choice._is_better(difference, one_is_enough=False) == both
    assert residual_choice._is_better(difference, one_is_enough=True) == one
