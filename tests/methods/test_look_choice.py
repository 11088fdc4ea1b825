"""Which looks are chosen, at which cost, and what the nested cross-validation says of them."""

import numpy as np
import pytest
from scipy import special

from btcp_tf import metrics
from btcp_tf.methods import look_choice, residual_choice, stacking
from btcp_tf.methods.look_choice import Design
from btcp_tf.methods.stacking import Samples


def held_out(seed: int, n: int = 900, looks: dict[str, float] | None = None) -> Samples:
    """Answers of which MCP says something, and looks that know as much of the truth as their number
    says."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=n)
    z = (-2.5 + 1.5 * random.normal(size=(n, 1))).astype(np.float32)
    is_error = random.random(n) < special.expit(z[:, 0] + 2.0 * hidden)
    odds = {
        name: np.clip(share * 3.0 * hidden + random.normal(size=n) - 2.0, -15, 15)
        for name, share in (looks or {}).items()
    }
    return Samples(is_error, z, {}, np.zeros(n, int), None, odds)


def test_columns_of_looks_are_those_of_their_formula():
    z, odds = np.array([[-3.0], [0.5]]), np.array([[-2.0, 20.0], [1.0, -0.5]])
    rows = []
    for own, others in zip(z[:, 0], odds, strict=True):
        others = [min(max(one, -15.0), 15.0) for one in others]
        p = np.mean([1 / (1 + np.exp(-one)) for one in (own, *others)])
        rows.append([*others, *(1 / (1 + np.exp(-one)) for one in others), np.log(p / (1 - p))])
    assert look_choice.look_columns(z, odds) == pytest.approx(np.array(rows), rel=1e-9)


def test_what_stands_behind_the_gate_is_zero_there_and_grows_from_it():
    z = np.array([[-2.0], [-1.0], [-0.5], [0.0], [3.0]])
    assert look_choice.ramp(z, -1.0)[:, 0].tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert look_choice.ramp(z, None)[:, 0].tolist() == [1.0] * 5


@pytest.mark.parametrize("looks", [1, 2])
def test_no_odds_lead_out_of_their_bounds(looks):
    random = np.random.default_rng(looks)
    z = np.array([[-20.0], [-3.0], [0.4], [5.0]])
    grid = np.linspace(-16.0, 16.0, 1601 if looks == 1 else 81)
    odds = np.stack(np.meshgrid(*[grid] * looks), axis=-1).reshape(-1, looks)
    turned = 0
    for _ in range(60):
        # Of many sizes, so that some turn between the ends.
        slopes = random.normal(size=2 * looks + 1) * 10 ** random.uniform(-2, 1, 2 * looks + 1)
        low, high = look_choice.look_bounds(z, slopes)
        for own, least, most in zip(z, low[:, 0], high[:, 0], strict=True):
            sums = look_choice.look_columns(np.tile(own, (len(odds), 1)), odds) @ slopes
            assert least - 1e-9 <= sums.min() and sums.max() <= most + 1e-9
            if (slopes >= 0).all() or (slopes <= 0).all():
                assert [sums.min(), sums.max()] == pytest.approx([least, most], abs=1e-9)
            turned += sums.argmin() not in (0, len(sums) - 1)
    assert turned > 10


@pytest.mark.parametrize("slopes", [[0.2, 0.1, 0.3], [-0.2, 0.0, -0.3], [0.1, -3.0, 0.0]])
def test_bounds_are_reached_where_all_pull_the_same_way_or_the_mean_says_nothing(slopes):
    z, odds = np.full((30001, 1), -1.0), np.linspace(-15.0, 15.0, 30001)[:, None]
    sums = look_choice.look_columns(z, odds) @ slopes
    low, high = look_choice.look_bounds(z[:1], np.array(slopes))
    assert [sums.min(), sums.max()] == pytest.approx([low.item(), high.item()], abs=1e-6)


def test_the_graph_has_the_same_bounds():
    from btcp_tf.networks.gate_layers import Undecided

    random = np.random.default_rng(0)
    z = random.normal(scale=8.0, size=(50, 1)).astype(np.float32)
    for looks in (1, 2, 3):
        slopes = random.normal(size=2 * looks + 1)
        layer = Undecided([slopes.tolist()])
        for got, want in zip(layer.bounds(z), look_choice.look_bounds(z, slopes), strict=True):
            assert np.asarray(got) == pytest.approx(want, abs=1e-5)


def test_looks_that_say_nothing_are_rejected():
    alone = beside = 0
    noise = {f"noise{number}": 0.0 for number in range(2)}
    for seed in range(10):
        samples = held_out(seed, 400, noise)
        found, _ = look_choice.fit(samples, dict.fromkeys(samples.looks, 0.1), 2.0, seed)
        alone += found.fit.looks != ()
        samples = held_out(seed, 400, {"sees": 1.0, **noise})
        design = look_choice._search(samples, dict.fromkeys(samples.looks, 0.1), 2.0, seed)
        beside += len(design.paid) > 1
    assert alone <= 1 and beside <= 1


def test_a_look_that_knows_something_is_chosen_and_gains_on_samples_without_part_in_the_choice():
    samples = held_out(0, looks={"noise": 0.0, "sees": 1.0})
    found, design = look_choice.fit(samples, {"noise": 1.0, "sees": 1.0}, 2.0, seed=0)
    fit, weights, _, u = found
    assert design.paid == fit.looks == ("sees",) and fit.cost == pytest.approx(2.0)
    # The ramp, and of the look its odds, its disagreement and the odds of the mean.
    assert weights.h.shape == (1 + 3,)
    assert metrics.aurc(samples.is_error, u) < 0.9 * metrics.aurc(samples.is_error, samples.mcp)
    assert "sees for all inputs (2.00 passes of the classifier per input)" in fit.words
    noise, sees = fit.tried
    assert (noise.name, noise.cost, noise.used) == ("noise", 1.0, False)
    assert (sees.name, sees.cost, sees.used) == ("sees", 1.0, True)
    assert noise.log_likelihood[1] < 0 < sees.log_likelihood[1] and sees.aurc < 0


@pytest.mark.parametrize("budget", [1.02, 1.3, 1.6])
def test_the_mean_cost_stays_within_the_budget(budget):
    samples = held_out(1, 1500, {"first": 1.0, "second": 0.9})
    costs = {"first": 1.0, "second": 0.5}
    design, _ = look_choice.choose(samples, costs, budget, seed=0)
    assert design.cost(costs) <= budget + 1e-9
    assert (design.paid != ()) == (budget > 1.05)
    if budget == 1.3:
        above = (samples.z[:, 0] > design.gate).mean()
        assert above == pytest.approx(design.share, abs=2e-3) and design.share < 1


def test_of_two_looks_that_know_the_same_the_cheaper_is_taken():
    samples = held_out(2, looks={"dear": 1.0})
    samples = Samples(
        samples.all_errors,
        samples.z,
        {},
        samples.classifier,
        None,
        samples.looks | {"cheap": samples.looks["dear"].copy()},
    )
    design, _ = look_choice.choose(samples, {"dear": 1.0, "cheap": 0.1}, 3.0, seed=0)
    assert design.paid == ("cheap",)


def test_a_cheap_look_does_not_keep_out_a_better_one_that_is_in_the_budget():
    samples = held_out(6, looks={"good": 2.0, "poor": 0.6})
    # The cheap look gains most for its cost, and beside it the good one is too dear for all.
    design = look_choice._search(samples, {"good": 1.0, "poor": 0.5}, 2.2, seed=0)
    assert design.paid == ("good",) and design.share == 1.0


@pytest.mark.parametrize("seed", [2, 3])
def test_evidence_that_is_shown_to_help_together_is_taken_together(seed):
    """Each of six says a sixth of what there is to say: beside another, too little to be shown."""
    random = np.random.default_rng(seed)
    parts = random.normal(size=(240, 6))
    z = (-1.5 + random.normal(size=(240, 1))).astype(np.float32)
    is_error = random.random(240) < special.expit(z[:, 0] + 3.0 * parts.sum(axis=1) / np.sqrt(6))
    evidence = {f"part {i}": parts[:, [i]] for i in range(6)}
    samples = Samples(is_error, z, evidence, np.zeros(240, int), None)
    design = look_choice._search(samples, dict.fromkeys(evidence, 0.01), 1.3, seed=0)
    assert set(design.paid) == set(evidence) and design.share == 1.0


def test_a_budget_between_two_shares_is_spent():
    samples = held_out(6, 1500, {"good": 2.0})
    design = look_choice._search(samples, {"good": 1.6}, 1.6, seed=0)
    assert design.share == pytest.approx(0.6 / 1.6)
    assert (samples.z[:, 0] > design.gate).mean() == pytest.approx(0.6 / 1.6, abs=2e-3)


def test_without_errors_or_looks_worth_it_u_is_mcp():
    samples = held_out(3, looks={"noise": 0.0})
    (fit, weights, _, u), design = look_choice.fit(samples, {"noise": 1.0}, 2.0, seed=0)
    assert design == Design() and fit.looks == fit.evidence == () and fit.cost == 1.0
    assert len(weights.h) == 0 and u.tolist() == samples.mcp.tolist()
    none = Samples(np.zeros(50, bool), samples.z[:50], {}, np.zeros(50, int), None)
    (fit, weights, *_), _ = look_choice.fit(none, {}, 2.0, seed=0)
    assert weights is residual_choice.MCP and "too few" in fit.words


@pytest.mark.parametrize("errors", [0, 4, 9, 10, 30])
def test_few_errors_are_no_fault(errors, recwarn):
    samples = held_out(5, 200, {"sees": 1.0})
    is_error = np.zeros(200, bool)
    is_error[np.argsort(samples.looks["sees"])[-errors:] if errors else []] = True
    samples = Samples(is_error, samples.z, {}, samples.classifier, None, samples.looks)
    (fit, _, _, u), _ = look_choice.fit(samples, {"sees": 0.1}, 2.0, seed=0)
    assert ("too few" in fit.words) == (errors < 10) and np.isfinite(u).all()
    assert not recwarn.list


def test_samples_have_no_part_in_the_choice_and_weights_behind_their_own_u(monkeypatch):
    samples = held_out(4, 300, {"sees": 1.0})
    searched, learned = [], []
    regression = stacking.quick_regression

    def search(part, *arguments):
        searched.append(set(part.z[:, 0]))
        return Design((), ("sees",))

    def fit(x, wanted, strength):
        learned.append(set(x[:, 0]))
        return regression(x, wanted, strength)

    monkeypatch.setattr(look_choice, "_search", search)
    monkeypatch.setattr(stacking, "quick_regression", fit)
    look_choice.choose(samples, {"sees": 0.1}, 2.0, seed=0)
    tests = [set(samples.z[test, 0]) for _, test in stacking.splits(samples, 0)]
    assert set.union(*tests) == set(samples.z[:, 0]) and len(searched) == 1 + len(tests)
    for test, chosen, fitted in zip(tests, searched[1:], learned[1:], strict=True):
        assert not test & chosen and not test & fitted


@pytest.mark.parametrize("second", [0, 1, 12])
def test_a_classifier_of_hardly_any_errors_is_no_fold_of_its_own(second):
    samples = held_out(6, 400, {"sees": 1.0})
    classifier = (np.arange(400) >= 200).astype(int)
    is_error = np.zeros(400, bool)
    is_error[:20] = True
    is_error[200 : 200 + second] = True
    samples = Samples(is_error, samples.z, {}, classifier, None, samples.looks)
    (fit, _, _, u), _ = look_choice.fit(samples, {"sees": 0.1}, 2.0, seed=0)
    assert np.isfinite(u).all() and fit.errors == 20 + second


def test_folds_of_other_slopes_are_brought_to_one_scale():
    random = np.random.default_rng(0)
    z = random.normal(size=1000)
    brought = np.empty(1000)
    for fold, slope in enumerate((0.5, 2.0)):
        test = np.arange(1000) % 2 == fold
        brought[test] = stacking.on_scale(slope * z[test], slope * z[~test], z)
    inner = np.abs(z) < 1.5
    assert np.abs(brought - z)[inner].max() < 0.3 < np.abs(0.5 * z - z)[inner].max()
