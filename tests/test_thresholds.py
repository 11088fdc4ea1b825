"""The rules by hand, against slow oracles, and their promises by simulation.

A simulation draws thousands of calibration sets from a world whose true error rates are known.
"""

import dataclasses
import decimal
import fractions
import json
import math
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from btcp_tf import metrics, thresholds
from btcp_tf.core import binomial
from btcp_tf.core.command import FIELDS
from btcp_tf.core.config import MIN_COVERAGE, RULES

ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.1 + 1e-17, 0.5, 0.9, 1.0])), min_size=1
)
PROBABILITIES = st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9])
UNHURRIED = settings(deadline=None)


def columns(rows):
    return tuple(np.array(column) for column in zip(*rows, strict=True))


@UNHURRIED
@given(ROWS.filter(lambda rows: len({wrong for wrong, _ in rows}) == 2))
def test_best_bacc_is_the_best_of_all_cuts(rows):
    is_error, u = columns(rows)
    found = thresholds.best_bacc(is_error, u)
    best = metrics.bacc(is_error, u, tau=found.tau)
    cuts = [*np.unique(u), 2.0]
    assert best == pytest.approx(max(metrics.bacc(is_error, u, tau=cut) for cut in cuts))
    assert found.coverage == np.mean(u < found.tau)
    for cut in cuts:  # Nothing as good accepts more.
        if np.mean(u < cut) > found.coverage:
            assert metrics.bacc(is_error, u, tau=cut) < best - 1e-12


def test_best_bacc_by_hand():
    found = thresholds.best_bacc([False, False, True, False, True], [0.1, 0.2, 0.3, 0.4, 0.5])
    # Accepting two: (2/3 + 2/2) / 2; accepting four: (3/3 + 1/2) / 2.
    assert found == thresholds.Threshold(0.25, 0.4, "best BACC", 5, 2, errors=0, risk=0.0)


def test_best_bacc_between_neighboring_floats():
    low = 0.5
    high = np.nextafter(low, 1)
    assert thresholds.best_bacc([False, True], [low, high]).tau == high
    # Accepting nothing or everything is a cut, too.
    assert thresholds.best_bacc([True, False], [low, high]).coverage == 1.0
    assert thresholds.best_bacc([True, False, False], [0.5, 0.5, 0.5]).coverage == 1.0


@pytest.mark.parametrize("is_error", [[False, False], [True, True]])
def test_best_bacc_needs_both_kinds(is_error):
    with pytest.raises(ValueError, match="expected correct and wrong answers"):
        thresholds.best_bacc(is_error, [0.1, 0.2])


# Target risk: the walk.


def slow_walk(is_error, u, risk, delta, grid, min_coverage=0.0):
    """As the docstring has it, one candidate after the other: tau, and the level of its test."""
    chosen, at, level, failed, half = None, None, 0.8 * delta, False, False
    for tau in grid:
        accepted = u < tau
        rows, errors = accepted.sum(), is_error[accepted].sum()
        if rows < max(1, min_coverage * len(u)):
            continue
        if not half and 2 * rows >= len(u):
            half, level, failed = True, (1 - 0.8) * delta if failed else delta, False
        if failed or stats.binom.cdf(0, rows, risk) > level:
            continue
        if stats.binom.cdf(errors, rows, risk) > level:
            failed = True
        else:
            chosen, at = tau, level
    return chosen, at


@UNHURRIED
@given(ROWS, PROBABILITIES, PROBABILITIES, st.sampled_from([0.0, 0.3, 1.0]))
def test_target_risk_is_the_walk(rows, risk, delta, min_coverage):
    is_error, u = columns(rows)
    grid = np.array([0.0, 0.05, 0.3, 0.4, 0.7, 0.95, 1.5])
    found = thresholds.target_risk(
        is_error, u, risk=risk, delta=delta, grid=grid, min_coverage=min_coverage
    )
    tau, level = slow_walk(is_error, u, risk, delta, grid, min_coverage)
    assert found.tau == tau
    assert found.n == len(u)
    if found.tau is None:
        assert (found.accepted, found.errors, found.coverage) == (0, 0, 0.0)
        assert found.risk is None and found.risk_bound is None
    else:
        accepted = u < found.tau
        assert (found.accepted, found.errors) == (accepted.sum(), is_error[accepted].sum())
        assert (found.coverage, found.risk) == (accepted.mean(), is_error[accepted].mean())
        exact = stats.binomtest(found.errors, found.accepted, alternative="less")
        bound = exact.proportion_ci(1 - level, method="exact").high
        assert found.risk_bound == pytest.approx(bound)
        assert found.risk_bound <= risk + 1e-12
        assert found.least_risk is None


@UNHURRIED
@given(ROWS, PROBABILITIES, PROBABILITIES, st.sampled_from([0.0, 0.3]))
def test_least_risk_is_the_turning_point(rows, risk, delta, min_coverage):
    is_error, u = columns(rows)

    def tau(risk):
        return choose(risk).tau

    def choose(risk):
        return thresholds.target_risk(
            is_error, u, risk=risk, delta=delta, min_coverage=min_coverage
        )

    least = choose(risk).least_risk
    assume(tau(risk) is None)
    if least is None:
        assert is_error.all() or all(tau(r) is None for r in np.linspace(risk, 0.999999, 20))
    else:
        assert risk < least < 1
        assert tau(least + 1e-9) is not None
        assert all(tau(r) is None for r in np.linspace(risk, least - 1e-9, 10))


def test_target_risk_by_hand():
    # With r = 1/2, four rows without an error pass at 0.8 delta = 0.1: 1/16. At delta = 1/8 six
    # rows with one error pass, (1 + 6) / 64, and not five, (1 + 5) / 32; at 0.2 delta = 0.025 nine,
    # (1 + 9) / 512.
    u = np.arange(10) / 10
    grid = np.arange(1, 11) / 10 - 0.05
    is_error = np.zeros(10, bool)

    def choose(*wrong, **settings):
        is_error[:] = False
        is_error[list(wrong)] = True
        settings = {"min_coverage": 0.0, "grid": grid} | settings
        return thresholds.target_risk(is_error, u, risk=0.5, delta=0.125, **settings)

    assert choose().accepted == 10
    assert choose().risk_bound == pytest.approx(1 - 0.125**0.1)
    found = choose(5)
    assert found.accepted == 10
    assert found.risk_bound == pytest.approx(stats.beta.ppf(1 - 0.125, 2, 9))
    # The fifth row ends the walk from half of the rows on; the four before it have passed.
    found = choose(4)
    assert (found.tau, found.accepted) == (pytest.approx(0.35), 4)
    assert found.risk_bound == pytest.approx(1 - 0.1**0.25)
    assert found.least_risk is None
    # Both walks begin with an error too many, although six rows and more would pass, ...
    found = choose(1)
    assert (found.tau, found.coverage) == (None, 0.0)
    # ... but for a risk at which five of them pass, with a fifth of delta, ...
    assert found.least_risk == pytest.approx(stats.beta.ppf(1 - 0.025, 2, 4))
    # ... unless stricter thresholds than those of six rows are not wanted.
    assert choose(1, min_coverage=0.6).accepted == choose(1, grid=grid[5:]).accepted == 10
    # The second walk starts again, with a fifth of delta: nine rows, not eight.
    assert choose(1, grid=grid[[3, 8, 9]]).accepted == 10
    assert choose(1, grid=grid[[3, 7, 8, 9]]).tau is None


def test_rows_that_can_pass_are_exactly_enough():
    """The start agrees with the test where (1 - r)^n is delta itself."""
    for risk, delta, rows in [
        (0.5, 0.25, 2),
        (0.5, 2**-10, 10),
        (0.75, 0.0625, 2),
        (0.05, 0.1, 45),
    ]:
        right = np.zeros(rows, bool)
        assert thresholds.calibration_size(risk, delta) == rows
        found = thresholds.target_risk(right, right * 0.0, risk=risk, delta=delta)
        assert found.coverage == 1.0
        assert (
            thresholds.target_risk(right[1:], right[1:] * 0.0, risk=risk, delta=delta).tau is None
        )


def test_a_test_of_any_size_is_exact():
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 10**6, 300)
    errors = rng.binomial(rows, 0.02)
    for risk in (1e-4, 0.0199, 0.02, 0.0201, 0.3):
        ours = binomial.tail(errors, rows, risk)
        assert ours == pytest.approx(stats.binom.cdf(errors, rows, risk), rel=1e-6, abs=1e-30)
    bound = stats.beta.ppf(0.9, errors + 1, rows - errors)
    assert binomial.upper_bound(errors, rows, 0.1) == pytest.approx(bound)


def test_target_risk_on_few_and_on_equal_rows():
    right, wrong = np.zeros(20, bool), np.ones(20, bool)
    u = np.full(20, 0.5)
    found = thresholds.target_risk(right, u, risk=0.05, delta=0.1)
    assert found.tau is None
    assert found.least_risk == pytest.approx(1 - 0.1 ** (1 / 20))
    assert thresholds.target_risk(right, u, risk=0.2, delta=0.1).coverage == 1.0
    assert thresholds.target_risk(wrong, u, risk=0.2, delta=0.1).least_risk is None
    assert thresholds.target_risk([False], [1.0], risk=0.95, delta=0.1).coverage == 1.0
    # A grid that accepts nothing.
    found = thresholds.target_risk(right, u, risk=0.2, delta=0.1, grid=[0.1, 0.2])
    assert (found.tau, found.least_risk) == (None, None)


def test_fixed_grid_reaches_all_of_the_unit_interval():
    for u in (0.0, 1e-15, 0.5, 1.0, np.float32(1)):
        found = thresholds.target_risk([False] * 9, [u] * 9, risk=0.5, delta=0.1)
        assert found.coverage == 1.0
        assert np.float32(u) < np.float32(found.tau)


def test_thresholds_go_into_json():
    rng = np.random.default_rng(0)
    is_error, u = rng.random(300) < 0.1, rng.random(300)
    grid = thresholds.quantile_grid(100 * u)
    for found in [
        thresholds.best_bacc(is_error, u),
        thresholds.least_cost(is_error, u, error_cost=3, abstention_cost=np.float32(1)),
        thresholds.target_coverage(u, coverage=0.5),
        thresholds.target_risk(is_error, u, risk=0.5, delta=0.1),
        thresholds.target_risk(is_error, 100 * u, risk=0.5, delta=0.1, grid=grid),
        thresholds.target_risk(is_error, u, risk=0.01, delta=0.1),
        *thresholds.target_risk_by_group(
            is_error, u, rng.integers(0, 3, 300), risk=0.2, delta=0.1
        ).values(),
    ]:
        fields = dataclasses.asdict(found)
        assert thresholds.Threshold(**json.loads(json.dumps(fields, allow_nan=False))) == found


def test_target_risk_is_fast():
    rng = np.random.default_rng(0)
    u = rng.random(100_000)
    is_error = rng.random(100_000) < u**2
    grid = thresholds.quantile_grid(rng.random(5000))
    start = time.process_time()
    thresholds.target_risk(is_error, u, risk=0.05, delta=0.1, grid=grid)
    assert time.process_time() - start < 1.0


# Target risk: the promise.


@dataclasses.dataclass(frozen=True)
class World:
    """Values of u, ascending, their probabilities, and how often answers with them are wrong."""

    u: np.ndarray
    mass: np.ndarray
    wrong: np.ndarray

    def draw(self, rng, n):
        index = np.searchsorted(np.cumsum(self.mass[:-1]), rng.random(n), "right")
        return rng.random(n) < self.wrong[index], self.u[index]

    def risk(self, tau):
        """True error rate of what tau accepts; 0 for nothing."""
        accepted = self.u < (-np.inf if tau is None else tau)
        mass = self.mass[accepted].sum()
        return (self.mass * self.wrong)[accepted].sum() / mass if mass else 0.0

    def coverage(self, tau):
        return self.mass[self.u < tau].sum()


def evenly(wrong):
    """A fine world: u uniform, so fine that it is all but continuous."""
    u = (np.arange(500) + 0.5) / 500
    return World(u, np.full(500, 1 / 500), wrong(u))


WORLDS = {
    "continuous": evenly(lambda u: u**2),
    # A tenth of the answers is wrong and very sure: risk falls first, then it rises.
    "overconfident": evenly(lambda u: np.where(u < 0.1, 0.15, np.where(u < 0.6, 0.02, 0.4))),
    # Risk crosses the limit three times.
    "waves": evenly(lambda u: np.where(u * 5 % 2 < 1, 0.04, 0.2)),
    # The worst case: everywhere a little more wrong than allowed.
    "just above": evenly(lambda u: np.full_like(u, 0.1000001)),
    "few values": World(
        np.array([0.0, 0.2, 0.5, 1.0]),
        np.array([0.4, 0.3, 0.2, 0.1]),
        np.array([0.09, 0.125, 0.3, 0.6]),
    ),
    "constant": World(np.array([0.5]), np.array([1.0]), np.array([0.1000001])),
    "no errors": evenly(np.zeros_like),
}


def violations(world, n, draws, *, risk=0.1, delta=0.2, seed=0, **settings):
    """Shares of draws with a broken promise, and with a threshold."""
    rng = np.random.default_rng(seed)
    settings = {"grid": (np.arange(40) + 1) / 40 + 1e-9, "min_coverage": 0.0} | settings
    taus = [
        thresholds.target_risk(*world.draw(rng, n), risk=risk, delta=delta, **settings).tau
        for _ in range(draws)
    ]
    broken = np.mean([world.risk(tau) > risk for tau in taus])
    return broken, np.mean([tau is not None for tau in taus])


def allowed(delta, draws):
    return delta + 3 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("name", WORLDS)
def test_the_promise_is_kept(name, n):
    draws = 1000 if n == 20 else 1500
    broken, found = violations(WORLDS[name], n, draws)
    assert broken <= allowed(0.2, draws)
    if name == "no errors":
        assert found == 1.0  # 20 rows are enough: .9^20 = .12.
    if name == "constant" and n == 300:
        # As often broken as the exact test can be: it is not needlessly strict.
        level = stats.binom.cdf(np.arange(300), 300, 0.1)
        assert broken == pytest.approx(level[level <= 0.2].max(), abs=3 * math.sqrt(0.16 / draws))


@pytest.mark.parametrize("name", ["overconfident", "just above", "few values"])
@pytest.mark.parametrize(
    "settings",
    [{"grid": None}, {"min_coverage": 0.3}, {"delta": 0.05}],
    ids=["fixed grid", "min_coverage", "delta"],
)
def test_the_promise_is_kept_with(name, settings):
    broken, _ = violations(WORLDS[name], 200, 600, seed=1, **settings)
    assert broken <= allowed(settings.get("delta", 0.2), 600)


def test_the_promise_is_kept_with_a_grid_of_validation_quantiles():
    world, rng = WORLDS["waves"], np.random.default_rng(2)
    broken = []
    for _ in range(600):
        grid = thresholds.quantile_grid(world.draw(rng, 100)[1], size=30)
        found = thresholds.target_risk(*world.draw(rng, 200), risk=0.1, delta=0.2, grid=grid)
        broken.append(world.risk(found.tau) > 0.1)
    assert np.mean(broken) <= allowed(0.2, 600)


@pytest.mark.parametrize("risk", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("min_rows", [0, 10])
def test_the_start_does_no_harm(risk, delta, min_rows):
    """The walk starts where enough rows are accepted, which depends on the calibration u.

    Exact, no simulation, for two thresholds that both break the promise, the second one barely: a
    draw with few rows below the first is tested at the second alone, and has fewer of the errors
    that are below the first than belong there. Even so, no more than delta of the draws pass.
    """
    n, rows = 30, np.arange(31)
    most = (stats.binom.cdf(np.arange(31)[:, None], rows, risk) <= delta).sum(axis=0) - 1
    starts = (most >= 0) & (rows >= min_rows)
    errors = np.arange(most[n] + 1)[:, None]
    for first_share in np.linspace(0.05, 0.95, 19):
        below = stats.binom.pmf(rows, n, first_share)
        for first_risk in risk * np.array([1.0, 1.02, 1.1, 1.5, 2.0]):
            other = (risk - first_share * first_risk) / (1 - first_share)
            if other < 0:
                continue
            first = stats.binom.cdf(most, rows, first_risk)
            second = stats.binom.pmf(errors, rows, first_risk)
            second = second * stats.binom.cdf(most[n] - errors, n - rows, other)
            assert below @ np.where(starts, first, second.sum(axis=0)) <= delta


def test_bisection_would_break_the_promise():
    """What the walk is for: the largest tau that passes a test is not one that keeps the risk."""
    world, rng = WORLDS["just above"], np.random.default_rng(3)
    grid, broken = (np.arange(40) + 1) / 40 + 1e-9, 0
    for _ in range(500):
        groups = metrics.tie_groups(*world.draw(rng, 300))
        cut = np.searchsorted(groups.u, grid)
        broken += (stats.binom.cdf(groups.errors[cut], groups.rows[cut], 0.1) <= 0.2).any()
    assert broken / 500 > 0.35


@pytest.mark.parametrize("name", ["continuous", "few values"])
def test_the_oracle_is_nearly_reached(name):
    """20,000 rows: in half of the draws 97 % of what the true risks allow is accepted.

    Of the few values only the first may be accepted, two fifths of the rows, and it is tested with
    less than delta.
    """
    world, rng = WORLDS[name], np.random.default_rng(4)
    cuts = np.append(world.u, 2.0)
    oracle = max(world.coverage(tau) for tau in cuts if world.risk(tau) <= 0.1)
    shares = []
    for _ in range(100):
        found = thresholds.target_risk(*world.draw(rng, 20_000), risk=0.1, delta=0.1)
        shares.append(world.coverage(found.tau or 0.0) / oracle)
    assert np.median(shares) > 0.97
    assert np.quantile(shares, 0.1 if name == "continuous" else 0.15) > 0.95


def test_a_second_walk_passes_where_the_first_rows_are_not_the_best():
    """Overconfident errors: the few rows of a strict start are often enough to end one walk."""
    world, grid = WORLDS["overconfident"], (np.arange(40) + 1) / 40 + 1e-9
    rng = np.random.default_rng(5)
    once = []
    for _ in range(300):
        is_error, u = world.draw(rng, 1000)
        rows = np.array([(u < tau).sum() for tau in grid])
        errors = np.array([is_error[u < tau].sum() for tau in grid])
        start = np.argmax(stats.binom.cdf(0, rows, 0.1) <= 0.2)
        once.append(stats.binom.cdf(errors[start], rows[start], 0.1) <= 0.2)
    _, found = violations(world, 1000, 300, seed=5)
    assert np.mean(once) < 0.3
    assert found > 0.95


def test_the_least_coverage_is_that_of_the_command_line_unless_named():
    """Early errors cost a part of delta only where somebody asks for the strict start."""
    assert MIN_COVERAGE == FIELDS["min_coverage"].default == 0.3
    u = np.arange(1000) / 1000
    is_error = np.isin(np.arange(1000), [40, 45])
    settings = {"risk": 0.05, "delta": 0.1}
    groups = np.zeros(1000, np.int64)

    def found(**more):
        [by_group] = thresholds.target_risk_by_group(
            is_error, u, groups, **settings, **more
        ).values()
        alone = thresholds.target_risk(is_error, u, **settings, **more)
        assert (by_group.tau, by_group.accepted) == (alone.tau, alone.accepted)
        return alone

    assert found().coverage == 1.0 and "coverage >= 0.3" in found().rule
    assert found() == found(min_coverage=0.3)
    strict = found(min_coverage=0)
    assert strict.coverage == 1.0 and strict.risk_bound > found().risk_bound
    # What is said of further labels considers the same thresholds.
    few = np.arange(1000) >= 100
    for function in (thresholds.expected_coverage, thresholds.labels_for_promise):
        rows = {"rows": 1000} if function is thresholds.expected_coverage else {}
        assert function(few, u, **rows, **settings) != function(
            few, u, **rows, **settings, min_coverage=0
        )


# By group.


def test_groups_share_delta():
    rng = np.random.default_rng(0)
    u, names = rng.random(3000), np.array(["cat", "dog", "owl"])[rng.integers(0, 3, 3000)]
    names[:5] = "yak"
    is_error = rng.random(3000) < u**2
    for given_names in (names, names.astype(object)):
        found = thresholds.target_risk_by_group(is_error, u, given_names, risk=0.1, delta=0.1)
        assert list(found) == ["cat", "dog", "owl", "yak"]
        assert found["yak"].tau is None and found["yak"].n == 5
        for name, threshold in found.items():
            alone = thresholds.target_risk(
                is_error[names == name], u[names == name], risk=0.1, delta=0.1 / 4
            )
            assert dataclasses.replace(threshold, rule=alone.rule) == alone
            assert "Bonferroni: delta / 4" in threshold.rule
    classes = np.arange(3000) % 2
    assert list(thresholds.target_risk_by_group(is_error, u, classes, risk=0.1, delta=0.1)) == [
        0,
        1,
    ]


def test_answers_are_accepted_by_the_threshold_of_their_group():
    rng = np.random.default_rng(0)
    u, groups = rng.random(2000), rng.integers(0, 3, 2000)
    is_error = rng.random(2000) < u**3
    chosen = thresholds.target_risk_by_group(is_error, u, groups, risk=0.1, delta=0.1)
    taus = {group: one.tau for group, one in chosen.items()}
    accepted = thresholds.accept_by_group(taus, u, groups)
    for group, one in chosen.items():
        assert accepted[groups == group].sum() == one.accepted
        assert (accepted[groups == group] == (u[groups == group] < one.tau)).all()
    # Files know text alone.
    as_text = {str(group): tau for group, tau in taus.items()}
    for keys, names in ((as_text, groups), (taus, groups.astype(str))):
        assert (thresholds.accept_by_group(keys, u, names) == accepted).all()
    assert not thresholds.accept_by_group(taus, u, groups + 3).any()
    assert not thresholds.accept_by_group({0: None}, u, groups).any()
    for name, call in (
        ("taus: 0", lambda: thresholds.accept_by_group({0: np.nan}, u, groups)),
        ("groups", lambda: thresholds.accept_by_group(taus, u, groups[1:])),
        ("groups", lambda: thresholds.accept_by_group(taus, u, groups / 2)),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            call()


def test_the_promise_is_kept_in_all_groups_at_once():
    rng = np.random.default_rng(6)
    names = ["just above", "constant", "few values", "waves"]
    broken = []
    for _ in range(600):
        groups = rng.integers(0, len(names), 500)
        columns = [WORLDS[name].draw(rng, np.sum(groups == i)) for i, name in enumerate(names)]
        groups.sort()
        is_error, u = (np.concatenate(column) for column in zip(*columns, strict=True))
        found = thresholds.target_risk_by_group(
            is_error, u, groups, risk=0.1, delta=0.2, grid=(np.arange(20) + 1) / 20 + 1e-9
        )
        broken.append(any(WORLDS[names[i]].risk(t.tau) > 0.1 for i, t in found.items()))
    assert np.mean(broken) <= allowed(0.2, 600)


# Grids and sizes.


@UNHURRIED
@given(ROWS, st.integers(1, 12))
def test_quantile_grid(rows, size):
    _, u = columns(rows)
    grid = thresholds.quantile_grid(u, size=size)
    assert (np.diff(grid) > 0).all() and len(grid) <= size
    shares = [np.mean(u < tau) for tau in grid]
    cuts = [np.mean(u <= value) for value in np.unique(u)]
    assert shares == sorted({min(c for c in cuts if c >= i / size) for i in range(1, size + 1)})
    assert grid[-1] > 1.0


def test_quantile_grid_by_hand():
    grid = thresholds.quantile_grid([0.0, 0.0, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0], size=4)
    assert grid == pytest.approx([0.1, 0.3, 0.7, 1.0], abs=1e-6)
    # Raw scores: there may be larger ones.
    grid = thresholds.quantile_grid([-7.0, 30.0, 50.0])
    assert grid[:-1].tolist() == [11.5, 40.0]
    assert grid[-1] > 1e30 and np.isfinite(grid.astype(np.float32)).all()


@pytest.mark.parametrize(
    "risk, delta, expected_risk, power",
    [(0.1, 0.1, 0.0, 0.8), (0.1, 0.1, 0.02, 0.8), (0.3, 0.05, 0.1, 0.9), (0.5, 0.5, 0.3, 0.5)],
)
def test_calibration_size_is_where_the_saw_teeth_stay_above(risk, delta, expected_risk, power):
    rows = np.arange(1, 500)
    errors = np.arange(300)[:, None]
    allowed_errors = (stats.binom.cdf(errors, rows, risk) <= delta).sum(axis=0) - 1
    passes = stats.binom.cdf(allowed_errors, rows, expected_risk) >= power
    expected = rows[np.flatnonzero(~passes)[-1] + 1]
    settings = {"expected_risk": expected_risk, "power": power}
    assert thresholds.calibration_size(risk, delta, **settings) == expected
    found = thresholds.calibration_size(risk, delta, coverage=0.3, **settings)
    assert found == math.ceil(expected / 0.3)


def test_calibration_size_by_hand():
    assert thresholds.calibration_size(0.01, 0.05) == 299
    assert thresholds.calibration_size(0.01, 0.05, coverage=0.5) == 598
    with pytest.raises(ValueError, match="expected_risk: expected a number further below 0.1"):
        thresholds.calibration_size(0.1, 0.1, expected_risk=0.0999)


def exact_tail(errors, rows, risk):
    """Of the floats as they are, without rounding."""
    risk = fractions.Fraction(risk)
    return sum(math.comb(rows, k) * risk**k * (1 - risk) ** (rows - k) for k in range(errors + 1))


@UNHURRIED
@given(st.floats(0.02, 0.999), st.floats(1e-6, 0.999))
def test_the_least_rows_are_exact(risk, delta):
    for errors, rows in enumerate(binomial.least_rows(np.arange(3), risk, delta).tolist()):
        # A tail may be within a rounding error of delta itself.
        assert exact_tail(errors, rows, risk) <= fractions.Fraction(delta * (1 + 1e-12))
        if rows > errors + 1:
            assert exact_tail(errors, rows - 1, risk) > fractions.Fraction(delta * (1 - 1e-12))


@pytest.mark.parametrize("risk", [1e-6, 1e-8, 1e-9, 1e-10, 3e-12, 1e-13, 1e-15])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-12, 1e-300])
def test_calibration_size_of_small_risks_is_exact(risk, delta):
    # Without errors: (1 - risk)^n <= delta, in 60 digits.
    with decimal.localcontext(prec=60):
        exact = decimal.Decimal(delta).ln() / (1 - decimal.Decimal(risk)).ln()
        wanted = int(exact.to_integral_value(decimal.ROUND_CEILING))
    if wanted > 2**53:
        with pytest.raises(ValueError, match=f"can support, received {risk}, {delta} and 1.0"):
            thresholds.calibration_size(risk, delta)
    else:
        # A float has 53 bits, of which a logarithm loses a few.
        assert thresholds.calibration_size(risk, delta) == pytest.approx(wanted, rel=1e-15)
        assert wanted > 1e12 or thresholds.calibration_size(risk, delta) == wanted


def test_calibration_size_scales_with_a_small_risk():
    # Poisson's limit: what counts is the number of errors expected.
    sizes = [
        risk * thresholds.calibration_size(risk, 0.05, expected_risk=risk / 2)
        for risk in (1e-5, 1e-8, 1e-11, 1e-13)
    ]
    assert sizes == pytest.approx([sizes[0]] * 4, rel=1e-4)


@pytest.mark.parametrize(
    "risk, delta, settings, message",
    [
        (1e-17, 0.05, {}, "expected a promise that at most 9,007,199,254,740,992 rows can support"),
        (5e-324, 0.5, {}, "risk, delta and coverage: expected"),
        (1e-16, 0.1, {"expected_risk": 1e-17}, "risk, delta and coverage: expected"),
        (0.1, 0.1, {"coverage": 1e-300}, "received 0.1, 0.1 and 1e-300"),
        (0.1, 0.1, {"expected_risk": math.nextafter(0.1, 0)}, "a number further below 0.1"),
    ],
)
def test_what_no_number_of_rows_supports_is_said(risk, delta, settings, message):
    with pytest.raises(ValueError, match=message):
        thresholds.calibration_size(risk, delta, **settings)


def test_calibration_size_at_the_limits():
    assert thresholds.calibration_size(1 - 2**-53, 0.1) == 1
    assert thresholds.calibration_size(0.5, 1 - 1e-12) == 1
    # 29 rows; the share is the one that is written, though its float is a little less or more.
    assert thresholds.calibration_size(0.1, 0.05) == 29
    for share, rows in ((0.29, 100), (0.58, 50), (0.145, 200), (0.1, 290), (1e-9, 29 * 10**9)):
        assert thresholds.calibration_size(0.1, 0.05, coverage=share) == rows


def test_a_grid_of_more_candidates_than_rows_is_that_of_the_rows():
    u = np.random.default_rng(0).integers(0, 40, 100) / 40
    wanted = thresholds.quantile_grid(u, size=100)
    for size in (101, 250, 10**9, 10**30):
        np.testing.assert_array_equal(thresholds.quantile_grid(u, size=size), wanted)
    assert len(wanted) == len(np.unique(u))


# The other rules.


def test_numbers_near_the_end_of_their_range():
    u = np.array([-1.7e308, 1e308, 1.7e308])
    found = thresholds.best_bacc([0, 0, 1], u)
    assert (found.accepted, found.tau) == (2, pytest.approx(1.35e308))
    assert thresholds.target_coverage(u, coverage=1).accepted == 3
    grid = thresholds.quantile_grid(u)
    assert np.isfinite(grid).all() and (np.diff(grid) > 0).all() and grid[-1] > u[-1]
    tiny = np.array([5e-324, 1e-323, 1.5e-323])
    cuts = [thresholds.target_coverage(tiny, coverage=share / 3).tau for share in (1, 2, 3)]
    assert [np.sum(tiny < tau) for tau in cuts] == [1, 2, 3]
    most = np.finfo(np.float64).max
    with pytest.raises(ValueError, match=r"expected numbers below 1.797\S+e\+308, received it"):
        thresholds.target_coverage([0.5, most], coverage=0.5)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e300])
def test_least_cost_depends_on_the_proportion_alone(scale):
    rng = np.random.default_rng(0)
    u = rng.random(5000)
    is_error = rng.random(5000) < u**2
    wanted = thresholds.least_cost(is_error, u, error_cost=8, abstention_cost=1)
    found = thresholds.least_cost(is_error, u, error_cost=8 * scale, abstention_cost=1 * scale)
    assert (found.tau, found.accepted) == (wanted.tau, wanted.accepted)
    # One cost so large that the other counts only between equals.
    found = thresholds.least_cost(is_error, u, error_cost=1e308, abstention_cost=5e-324)
    assert found.errors == 0 and 0 < found.accepted < np.argmax(is_error[np.argsort(u)]) + 1


@UNHURRIED
@given(ROWS, st.sampled_from([(5, 1), (1, 5), (1, 0), (0, 1), (0.1, 0.3)]))
def test_least_cost_is_the_least_of_all_cuts(rows, costs):
    is_error, u = columns(rows)
    error_cost, abstention_cost = costs

    def cost(tau):
        return error_cost * is_error[u < tau].sum() + abstention_cost * np.sum(u >= tau)

    found = thresholds.least_cost(
        is_error, u, error_cost=error_cost, abstention_cost=abstention_cost
    )
    cuts = [*np.unique(u), 2.0]
    assert cost(found.tau) == pytest.approx(min(map(cost, cuts)))
    assert (found.coverage, found.errors) == (np.mean(u < found.tau), is_error[u < found.tau].sum())
    if error_cost != 0.1:  # Costs that are added up without rounding.
        for cut in cuts:  # Nothing as cheap accepts more.
            assert np.mean(u < cut) <= found.coverage or cost(cut) > cost(found.tau)


@UNHURRIED
@given(ROWS, st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_target_coverage_is_the_smallest_that_is_enough(rows, coverage):
    _, u = columns(rows)
    found = thresholds.target_coverage(u, coverage=coverage)
    assert found.coverage == np.mean(u < found.tau) >= coverage
    stricter = [np.mean(u < cut) for cut in np.unique(u)]
    assert not any(coverage <= share < found.coverage for share in stricter)
    assert (found.errors, found.risk, found.risk_bound) == (None, None, None)


# The review queue.


def test_review_queue_by_hand():
    u = [0.1, 0.9, 0.5, 0.5, 0.7, 0.5]
    # Above .5: three rows, two wrong. At .5: four rows, one wrong; half of them count, as one of
    # two tied rows is in the queue.
    is_error = [1, 1, 0, 1, 0, 0, 0, 0]
    calibration = is_error, [0.8, 0.8, 0.8, 0.5, 0.5, 0.5, 0.5, 0.2]
    found = thresholds.review_queue(u, 3, calibration=calibration)
    assert found.rows.tolist() == [1, 4, 2]
    share = 1 / 3
    assert found.expected_errors == pytest.approx(3 * (2 + share) / (3 + 4 * share))
    assert thresholds.review_queue(u, 6, calibration=calibration).rows.tolist() == [
        1,
        4,
        2,
        3,
        5,
        0,
    ]
    # Nothing is known of rows like these.
    found = thresholds.review_queue([1.0, 2.0], 1, calibration=calibration)
    assert found[1:] == (None, 0, 1)


@UNHURRIED
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), PROBABILITIES)
def test_review_queue_interval_is_that_of_the_hypergeometric(k, errors, correct, delta):
    """A number of errors among the k is in unless those of the calibration rows are in a tail."""
    assume(errors + correct)
    rows = errors + correct
    calibration = np.arange(rows) < errors, np.ones(rows)
    found = thresholds.review_queue(np.ones(k), k, calibration=calibration, delta=delta)
    assert found.expected_errors == pytest.approx(k * errors / rows)
    tails = []
    for x in range(k + 1):
        tail = stats.hypergeom(rows + k, errors + x, rows)
        tails.append(min(tail.cdf(errors), tail.sf(errors - 1)))
    # A tail of just delta / 2 may be rounded to either side.
    surely = np.flatnonzero(np.array(tails) > delta / 2 + 1e-9)
    perhaps = np.flatnonzero(np.array(tails) > delta / 2 - 1e-9)
    assert perhaps[0] <= found.low <= (surely[0] if len(surely) else found.high)
    assert (surely[-1] if len(surely) else found.low) <= found.high <= perhaps[-1]


@pytest.mark.parametrize("name", ["continuous", "overconfident", "few values"])
@pytest.mark.parametrize("k", [30, 200])
def test_the_queue_catches_what_it_says(name, k):
    world, rng = WORLDS[name], np.random.default_rng(7)
    caught, expected, inside = [], [], []
    draws = 500
    for _ in range(draws):
        is_error, u = world.draw(rng, 600)
        found = thresholds.review_queue(u, k, calibration=world.draw(rng, 400), delta=0.1)
        caught.append(is_error[found.rows].sum())
        expected.append(np.nan if found.expected_errors is None else found.expected_errors)
        inside.append(found.low <= caught[-1] <= found.high)
    gap = np.array(expected) - caught
    assert abs(gap.mean()) < 4 * gap.std() / math.sqrt(draws)
    assert np.mean(inside) >= 0.9 - 3 * math.sqrt(0.09 / draws)


# What is refused.

GOOD = [False, True], [0.2, 0.4]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: choose(risk=0.0), "risk: expected a number between 0 and 1, received 0.0"),
        (lambda: choose(risk=math.nan), "risk: expected .* received nan"),
        (lambda: choose(delta=1), "delta: expected a number between 0 and 1, received 1"),
        (lambda: choose(min_coverage=1.1), r"min_coverage: expected .* \[0, 1\], received 1.1"),
        (
            lambda: choose(u=[0.2, math.nan]),
            "uncertainty: expected finite .* nan in row 1; leave the row out",
        ),
        (lambda: choose(u=[0.2, 1.5]), r"expected values in \[0, 1\], or a grid, received 1.5 in"),
        (lambda: choose(u=[0.2]), "expected the same shape"),
        (lambda: choose(errors=[0, 2]), "is_error: expected 0 or 1, received 2 in row 1"),
        (lambda: choose(errors=[], u=[]), r"is_error: expected shape \[n\], n > 0"),
        (lambda: choose(grid=[]), r"grid: expected numbers \[m\], m > 0"),
        (lambda: choose(grid=[[0.1]]), "grid: expected numbers"),
        (lambda: choose(grid=["a"]), "grid: expected numbers"),
        (lambda: choose(grid=[0.1, 0.1]), "grid: expected finite thresholds, ascending"),
        (lambda: choose(grid=[0.1, math.inf]), "grid: expected finite thresholds, ascending"),
        (lambda: by_group([1]), r"groups: expected shape \[2\], received \[1\]"),
        (lambda: by_group([0.5, 1.0]), "groups: expected whole numbers or strings, .* float64"),
        (lambda: by_group(["", "a"]), "groups: expected a name in every row, received '' in row 0"),
        (lambda: by_group(["a", "NaN"]), "groups: expected a name .* received 'NaN' in row 1"),
        (
            lambda: by_group(["a", "a\0b"]),
            r"groups: expected a name .* received 'a\\x00b' in row 1",
        ),
        (lambda: by_group(["a", "\ud800"]), "groups: expected a name .* in row 1"),
        (lambda: by_group(np.uint64([1, 2**63])), "groups: expected whole numbers below 2.63"),
        (lambda: by_group([None, "a"]), "groups: expected whole numbers or strings, .* NoneType"),
        (lambda: thresholds.quantile_grid([]), r"uncertainty: expected shape|is_error: expected"),
        (lambda: thresholds.quantile_grid([[0.1]]), r"uncertainty: expected shape \[n\]"),
        (lambda: thresholds.quantile_grid([0.1], size=0), "size: expected a whole number >= 1"),
        (lambda: thresholds.quantile_grid([0.1], size=1e9), "size: expected .* 1000000000.0"),
        (lambda: thresholds.target_coverage([0.1], coverage=0), "coverage: expected .* above 0"),
        (lambda: thresholds.target_coverage([0.1, math.inf], coverage=1), "inf in row 1"),
        (lambda: cost(-1, 1), "error_cost: expected a finite number >= 0, received -1"),
        (lambda: cost(1, math.nan), "abstention_cost: expected .* received nan"),
        (lambda: cost(math.inf, 1), "error_cost: expected .* received inf"),
        (lambda: cost(0, 0), "expected one above 0"),
        (lambda: thresholds.calibration_size(0.1, 0.0), "delta: expected"),
        (lambda: thresholds.calibration_size(0.1, 0.1, power=1), "power: expected"),
        (lambda: thresholds.calibration_size(0.1, 0.1, coverage=0), "coverage: expected"),
        (lambda: thresholds.calibration_size(0.1, 0.1, expected_risk=0.1), "below 0.1, received"),
        (lambda: queue(k=0), "k: expected a whole number from 1 to 2, received 0"),
        (lambda: queue(k=3), "k: expected a whole number from 1 to 2, received 3"),
        (lambda: queue(k=1.0), "k: expected a whole number from 1 to 2, received 1.0"),
        (lambda: queue(calibration=None), "calibration: expected the pair .* received NoneType"),
        (lambda: queue(delta=0), "delta: expected"),
        (lambda: queue(calibration=([True], [math.nan])), "nan in row 0"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


HUGE = 10**400
NO_NUMBERS = ["0.1", None, True, 0.1 + 0j, np.array([0.1]), [0.1], HUGE, math.nan]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "name, call",
    [
        ("risk", lambda x: choose(risk=x)),
        ("delta", lambda x: choose(delta=x)),
        ("min_coverage", lambda x: choose(min_coverage=x)),
        ("risk", lambda x: thresholds.target_risk_by_group(*GOOD, [0, 1], risk=x, delta=0.1)),
        ("coverage", lambda x: thresholds.target_coverage([0.1], coverage=x)),
        ("error_cost", lambda x: cost(x, 1)),
        ("abstention_cost", lambda x: cost(1, x)),
        ("tau", lambda x: thresholds.given(*GOOD, tau=x)),
        ("size", lambda x: thresholds.quantile_grid([0.1], size=x)),
        ("k", lambda x: queue(k=x)),
        ("delta", lambda x: queue(delta=x)),
        ("delta", lambda x: thresholds.outcome(thresholds.DEFAULT, *GOOD, delta=x)),
        ("risk", lambda x: thresholds.calibration_size(x, 0.1)),
        ("delta", lambda x: thresholds.calibration_size(0.1, x)),
        ("coverage", lambda x: thresholds.calibration_size(0.1, 0.1, coverage=x)),
        ("expected_risk", lambda x: thresholds.calibration_size(0.1, 0.1, expected_risk=x)),
        ("power", lambda x: thresholds.calibration_size(0.1, 0.1, power=x)),
    ],
)
def test_what_is_no_number_is_one_clear_error(name, call, value):
    if name == "size" and value is HUGE:
        return  # As many candidates as there are.
    with pytest.raises(ValueError, match=f"^{name}: expected .*, received ") as caught:
        call(value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "column", ["u", None, [None, 1], ["a", "b"], [0.1j, 1], [[0.1], [0.2]], [[0.1], [0.2, 0.3]]]
)
def test_what_is_no_column_is_one_clear_error(column):
    for call in (
        lambda: thresholds.best_bacc([0, 1], column),
        lambda: thresholds.best_bacc(column, [0.1, 0.2]),
        lambda: choose(u=column),
        lambda: choose(grid=[[0.1], [0.2, 0.3]]),
        lambda: thresholds.target_coverage(column, coverage=0.5),
        lambda: thresholds.quantile_grid(column),
        lambda: by_group([[1], [1, 2]]),
        lambda: thresholds.review_queue(column, 1, calibration=GOOD),
        lambda: queue(calibration=(GOOD[0], column)),
    ):
        with pytest.raises(ValueError, match="expected .*, received "):
            call()
    masked = np.ma.masked_array([0.1, 0.2], [False, True])
    with pytest.raises(ValueError, match="received a masked array"):
        thresholds.quantile_grid(masked)


def choose(errors=GOOD[0], u=GOOD[1], **settings):
    return thresholds.target_risk(errors, u, **{"risk": 0.1, "delta": 0.1, **settings})


def by_group(groups):
    return thresholds.target_risk_by_group(*GOOD, groups, risk=0.1, delta=0.1)


def cost(error_cost, abstention_cost):
    return thresholds.least_cost(*GOOD, error_cost=error_cost, abstention_cost=abstention_cost)


def queue(k=1, calibration=GOOD, **settings):
    return thresholds.review_queue([0.1, 0.2], k, calibration=calibration, **settings)


def test_a_rule_is_chosen_by_its_name():
    wrong, u = np.array([0, 0, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert set(RULES) | {"given"} == set(thresholds.RULES)
    assert thresholds.choose("best_bacc", wrong, u) == thresholds.best_bacc(wrong, u)
    assert thresholds.choose("target_coverage", None, u, coverage=0.5) == (
        thresholds.target_coverage(u, coverage=0.5)
    )
    assert not thresholds.needs_labels("target_coverage") and thresholds.needs_labels("given")
    values = {"risk": 0.9, "delta": 0.2, "coverage": 1.0, "tau": 0.1}
    assert thresholds.from_word("target_risk", wrong, u, values) == thresholds.target_risk(
        wrong, u, risk=0.9, delta=0.2
    )
    found = thresholds.from_word("0.3", wrong, u, values)
    assert (found.tau, found.accepted, found.errors, found.coverage) == (0.3, 2, 0, 0.4)
    for call, message in (
        (lambda: thresholds.choose("best", wrong, u), "rule: expected one of best_bacc, "),
        (lambda: thresholds.choose("given", wrong, u), r"settings tau \(required\), received none"),
        (lambda: thresholds.choose("best_bacc", wrong, u, tau=1), "settings none, received tau"),
        (lambda: thresholds.from_word("0,3", wrong, u, {}), "or a number above 0, received '0,3'"),
        (lambda: thresholds.from_word("inf", wrong, u, {}), "or a number above 0, received 'inf'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_outcome_counts_what_a_threshold_accepts_with_its_exact_interval():
    rng = np.random.default_rng(0)
    u = rng.integers(0, 20, 300) / 20
    wrong = rng.random(300) < 0.3 * u
    for tau in (-1.0, 0.0, 0.25, 0.5, 2.0):
        threshold = thresholds.given(wrong[:50], u[:50], tau=tau)
        found = thresholds.outcome(threshold, wrong, u, delta=0.1)
        accepted = u < tau
        assert (found.n, found.accepted, found.errors) == (
            300,
            accepted.sum(),
            wrong[accepted].sum(),
        )
        if not found.accepted:
            assert math.isnan(found.risk) and (found.low, found.high) == (0, 1)
            continue
        assert found.risk == wrong[accepted].mean()
        interval = stats.binomtest(found.errors, found.accepted).proportion_ci(0.9, "exact")
        assert (found.low, found.high) == pytest.approx(tuple(interval), abs=1e-12)
    nothing = thresholds.target_risk([0, 1], [0.1, 0.2], risk=0.1, delta=0.1)
    assert thresholds.outcome(nothing, wrong, u).accepted == 0
    for value, kind in ((None, "NoneType"), (0.5, "float")):
        with pytest.raises(ValueError, match=f"threshold: expected a Threshold, received {kind}"):
            thresholds.outcome(value, wrong, u)


def test_a_threshold_comes_back_from_json():
    for chosen in (
        thresholds.DEFAULT,
        thresholds.target_risk(np.zeros(200), np.linspace(0, 1, 200), risk=0.05, delta=0.1),
    ):
        saved = json.loads(json.dumps(dataclasses.asdict(chosen)))
        assert thresholds.from_json(saved) == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": math.nan}, "tau: expected a finite number or null, received nan"),
        ({"tau": True}, "tau: expected a finite number or null, received True"),
        ({"target": 1}, "target: expected a number between 0 and 1 or null, received 1"),
        ({"delta": "0.1"}, "delta: expected a number between 0 and 1 or null, received '0.1'"),
        ({"color": "red"}, "color: expected one of tau, coverage, .*, received this field"),
        ({"tau": "0.5"}, "tau: expected a finite number or null, received '0.5'"),
        ({"tau": -math.inf}, "tau: expected a finite number or null, received -inf"),
        ({"tau": 10**400}, "tau: expected a finite number or null, received 1000"),
        ({"tau": [0.5]}, r"tau: expected a finite number or null, received \[0.5\]"),
        ({"coverage": 3}, "coverage: expected a number from 0 to 1 or null, received 3"),
        ({"coverage": False}, "coverage: expected a number from 0 to 1 or null, received False"),
        ({"risk": -0.1}, "risk: expected a number from 0 to 1 or null, received -0.1"),
        ({"risk_bound": {}}, "risk_bound: expected a number from 0 to 1 or null, received {}"),
        ({"least_risk": "1"}, "least_risk: expected a number from 0 to 1 or null, received '1'"),
        ({"rule": None}, "rule: expected text, received None"),
        ({"n": 4.0}, "n: expected a whole number >= 0, received 4.0"),
        ({"n": True}, "n: expected a whole number >= 0, received True"),
        ({"n": None}, "n: expected a whole number >= 0, received None"),
        ({"accepted": 1}, "accepted: expected a whole number from 0 to n = 0, received 1"),
        ({"errors": -1}, "errors: expected a whole number from 0 to accepted = 0 or null, rec"),
    ],
)
def test_what_is_no_threshold_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        thresholds.from_json(dataclasses.asdict(thresholds.DEFAULT) | changes)
    for value in (None, [0.5], {"rule": "given"}):
        with pytest.raises(ValueError, match="expected a threshold with tau, received none"):
            thresholds.from_json(value)
    for name in ("coverage", "rule", "n", "accepted"):
        lacking = dataclasses.asdict(thresholds.DEFAULT)
        del lacking[name]
        with pytest.raises(ValueError, match=f"{name}: expected this field of a threshold, rec"):
            thresholds.from_json(lacking)


@pytest.mark.parametrize(
    "tau", [5e-324, 1e-300, 2.6e-261, 1e-38, 1e-8, 0.1, 0.5, 0.9, 1 - 1e-9, 1 - 2**-53, 1.0]
)
def test_a_limit_on_logits_accepts_what_tau_accepts(tau):
    limit = thresholds.logit_limit(tau)
    below = np.nextafter(limit, -np.inf)
    assert special.expit(limit) >= tau > special.expit(below)
    z = np.concatenate([limit + np.linspace(-3, 3, 1001), np.linspace(-800, 40, 2001)])
    for values in (z, z.astype(np.float32).astype(np.float64)):
        np.testing.assert_array_equal(values < limit, special.expit(values) < tau)


def test_limits_that_accept_nothing_or_everything():
    assert thresholds.logit_limit(None) == thresholds.logit_limit(0.0) == -np.inf
    assert thresholds.logit_limit(np.nextafter(1.0, 2)) == np.inf


def test_a_tau_next_to_a_row_moves_away_from_it_and_decides_the_same():
    u = special.expit(np.array([-600.0, -590.0, -3.0, -1.0, 2.0]))
    wrong = np.array([0, 0, 0, 1, 1], bool)
    for tau in (u[3], np.nextafter(u[2], 1), np.nextafter(u[1], 1), u[1], 0.1):
        chosen = thresholds.given(wrong, u, tau=float(tau))
        moved = thresholds.clear_of(chosen, u)
        np.testing.assert_array_equal(u < moved.tau, u < tau)
        distance = np.abs(special.logit(u) - special.logit(moved.tau))
        assert distance.min() > 0.9 * thresholds.CLEARANCE
        assert abs(special.logit(moved.tau) - special.logit(tau)) < 0.1
        assert dataclasses.replace(moved, tau=chosen.tau) == chosen
    assert thresholds.clear_of(chosen, u) == chosen, "nothing is near"
    # Neighboring floats: there is nowhere to go.
    u = np.array([0.25, np.nextafter(0.25, 1)])
    chosen = thresholds.given([0, 1], u, tau=float(u[1]))
    assert (u < thresholds.clear_of(chosen, u).tau).tolist() == [True, False]
    none = thresholds.target_risk([1, 1], u, risk=0.1, delta=0.1)
    assert thresholds.clear_of(none, u) == none
