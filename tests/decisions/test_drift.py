"""Tests of two samples against SciPy and slow textbook versions; the promise by simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from btcp_tf.decisions import drift, sequential


def rng(seed=0):
    return np.random.default_rng(seed)


# Population stability index --------------------------------------------------------------------


def slow_psi(baseline, production, edges):
    """Row by row: which bin, then the sum."""
    counts = [[0] * (len(edges) + 1) for _ in range(2)]
    for side, values in enumerate((baseline, production)):
        for value in values:
            counts[side][sum(value > edge for edge in edges)] += 1
    used = [(a, b) for a, b in zip(*counts, strict=True) if a + b]
    total = 0.0
    for a, b in used:
        p = (a + 0.5) / (len(baseline) + 0.5 * len(used))
        q = (b + 0.5) / (len(production) + 0.5 * len(used))
        total += (q - p) * math.log(q / p)
    return total, len(used) - 1


@pytest.mark.parametrize("decimals", [16, 1, 0])
def test_psi_is_the_sum_over_the_bins_of_the_baseline(decimals):
    baseline, production = rng(1).random(211).round(decimals), rng(2).beta(2, 3, 97).round(decimals)
    found = drift.psi(baseline, production)
    value, degrees = slow_psi(baseline, production, drift.quantile_edges(baseline))
    assert found.value == pytest.approx(value, rel=1e-12) and found.degrees == degrees
    assert found.counts.sum(axis=1).tolist() == [211, 97]
    assert found.scale == pytest.approx(1 / 211 + 1 / 97)
    assert found.p_value == pytest.approx(stats.chi2.sf(value / found.scale, degrees))
    assert stats.chi2.sf(found.by_chance(0.03) / found.scale, degrees) == pytest.approx(0.03)


def test_edges_are_quantiles_of_the_baseline_alone():
    values = rng().permutation(np.arange(1, 101))
    np.testing.assert_array_equal(drift.quantile_edges(values), np.arange(10, 100, 10))
    assert drift.psi(values, values + 1000).counts.tolist() == [[10] * 10, [0] * 9 + [100]]


def test_a_value_that_fills_a_bin_has_one_of_its_own():
    baseline = np.concatenate([np.zeros(50), np.linspace(0.1, 1, 50)])
    counts = drift.psi(baseline, np.full(10, -1.0)).counts
    assert counts[0, :2].tolist() == [0, 50] and counts[1, :2].tolist() == [10, 0]


@pytest.mark.parametrize("other", [0.2, 0.4])
def test_psi_of_constant_scores(other):
    same = drift.psi(np.full(30, 0.3), np.full(20, 0.3))
    assert (same.value, same.degrees, same.p_value, same.by_chance(0.01)) == (0, 0, 1, 0)
    assert drift.psi(np.full(30, 0.3), np.full(20, other)).p_value < 1e-6


def test_psi_of_one_row_is_finite():
    found = drift.psi([0.5], [0.7])
    assert math.isfinite(found.value) and 0 < found.p_value <= 1


@pytest.mark.parametrize(("n", "m"), [(200, 100), (150, 3000)])
@pytest.mark.parametrize("decimals", [16, 1])
def test_psi_without_a_change_is_about_chi_squared(n, m, decimals):
    generator = rng(3)
    p = [
        drift.psi(
            generator.beta(0.5, 2, n).round(decimals), generator.beta(0.5, 2, m).round(decimals)
        ).p_value
        for _ in range(1000)
    ]
    for alpha in (0.05, 0.2):
        # Never too many, and near enough: half a row in every bin makes it a little too cautious.
        assert (
            0.5 * alpha < np.mean(np.less_equal(p, alpha)) < alpha + 3.5 * math.sqrt(alpha / 1000)
        )


# Kolmogorov-Smirnov ----------------------------------------------------------------------------


def slow_distance(a, b):
    return max(abs(np.mean(a <= x) - np.mean(b <= x)) for x in np.concatenate([a, b]))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=30),
)
def test_distance_equals_the_textbook(a, b):
    a, b = np.array(a), np.array(b)
    found = drift.ks(a, b)
    assert found.distance == pytest.approx(slow_distance(a, b), abs=1e-12)
    assert abs(np.mean(a <= found.at) - np.mean(b <= found.at)) == pytest.approx(found.distance)
    assert 0 <= found.low <= found.distance <= found.high <= 1


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.06])
def test_p_value_is_that_of_scipy_and_rather_too_large(shift):
    a, b = rng(4).random(700), rng(5).random(900) + shift
    found, exact = drift.ks(a, b), stats.ks_2samp(a, b, method="exact")
    assert found.distance == pytest.approx(exact.statistic) and found.at in (*a, *b)
    assert exact.pvalue - 1e-9 <= found.p_value <= 1.25 * exact.pvalue + 1e-3
    assert drift.ks_by_chance(700, 900, found.p_value) == pytest.approx(found.distance)


def test_ties_make_fewer_false_alarms_not_more():
    generator = rng(6)
    found = [
        drift.ks(generator.random(150).round(1), generator.random(120).round(1)).p_value <= 0.05
        for _ in range(1500)
    ]
    assert np.mean(found) <= 0.05


def test_the_interval_is_the_band_of_both_samples_and_covers():
    generator = rng(7)
    # u against u squared: the distance is max x**0.5 - x = 1 / 4.
    found = [
        drift.ks(generator.random(80), generator.random(60) ** 2, level=0.9) for _ in range(500)
    ]
    assert np.mean([f.low <= 0.25 <= f.high for f in found]) >= 0.9
    slack = sum(math.sqrt(math.log(2 / 0.05) / (2 * n)) for n in (80, 60))
    assert found[0].high - found[0].distance == pytest.approx(slack)
    # For one sample, the bound with that constant is known to be sharp: with half of it, it fails.
    deviation = [stats.kstest(generator.random(80), "uniform").statistic for _ in range(1000)]
    assert 0.01 < np.mean(np.array(deviation) > math.sqrt(math.log(2 / 0.05) / 160)) <= 0.065


# Classes ---------------------------------------------------------------------------------------


def test_mix_is_pearsons_test():
    a, b = np.array([50, 30, 20, 12]), np.array([70, 10, 25, 9])
    found = drift.mix(a, b)
    expected = stats.chi2_contingency([a, b], correction=False)
    assert found.chi2 == pytest.approx(expected.statistic) and found.degrees == expected.dof
    assert found.p_value == pytest.approx(expected.pvalue) and found.pooled == ()
    assert found.by_chance(expected.pvalue) == pytest.approx(expected.statistic)
    assert found.psi.value == pytest.approx(drift.psi_of_counts(a, b).value)


def test_rare_classes_are_counted_as_one():
    a, b = np.array([90, 1, 60, 4, 0, 3]), np.array([80, 5, 70, 2, 0, 0])
    found = drift.mix(a, b)
    assert found.pooled == (1, 3, 5)
    expected = stats.chi2_contingency([[90, 60, 8], [80, 70, 7]], correction=False)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_a_single_rare_class_takes_the_next_one_with_it():
    found = drift.mix([90, 20, 1], [95, 30, 0])
    assert found.pooled == (1, 2) and found.degrees == 1


def test_a_class_that_is_new_is_found():
    assert drift.mix([100, 100, 0], [100, 100, 40]).p_value < 1e-6


@pytest.mark.parametrize("counts", [([10], [20]), ([10, 0], [20, 0]), ([1, 0], [0, 1])])
def test_nothing_to_compare_is_no_finding(counts):
    found = drift.mix(*counts)
    assert found.degrees == 0 and found.p_value == 1 and found.by_chance(0.01) == 0


def test_false_alarms_of_the_mix_with_many_rare_classes():
    generator = rng(8)
    shares = 1 / np.arange(1, 101)
    shares /= shares.sum()
    p = [
        drift.mix(generator.multinomial(300, shares), generator.multinomial(200, shares)).p_value
        for _ in range(2000)
    ]
    assert 0.03 < np.mean(np.less_equal(p, 0.05)) < 0.068


# Shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("baseline", "production"),
    [
        ((3, 20), (9, 25)),
        ((0, 10), (5, 10)),
        ((0, 10), (0, 7)),
        ((10, 10), (7, 7)),
        ((1, 1), (0, 1)),
    ]
    + [((400, 5000), (900, 10000)), ((2, 4), (2, 4)), ((0, 2), (2, 5)), ((1, 2), (6, 8))],
)
def test_rates_are_fishers_test_with_exact_intervals(baseline, production):
    found = drift.rates(baseline, production)
    table = [[k, n - k] for k, n in (baseline, production)]
    assert found.p_value == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-6)
    for (k, n), interval in (
        (baseline, found.baseline_interval),
        (production, found.production_interval),
    ):
        exact = stats.binomtest(k, n).proportion_ci(0.95, "exact")
        assert interval == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert found.baseline == baseline[0] / baseline[1]


def test_holm_by_hand():
    assert drift.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert drift.holm([0.9, 0.8]) == [1, 1] and drift.holm([]) == []


# The promise -----------------------------------------------------------------------------------


def slow_evidence(errors, risk):
    """Every start by itself: weight of the start times the mean likelihood ratio from there on."""
    odds = 2.0 ** np.array([1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 4]) * risk / (1 - risk)
    rates = odds / (1 + odds)

    def left(t):
        return 1.0 if t == 0 else 0.5 / (1 + math.log(t))

    result = []
    for t in range(1, len(errors) + 1):
        total = left(t)
        for start in range(t):
            k, n = sum(errors[start:t]), t - start
            ratios = (rates / risk) ** k * ((1 - rates) / (1 - risk)) ** (n - k)
            total += (left(start) - left(start + 1)) * ratios.mean()
        result.append(total)
    return result


def test_evidence_is_the_mixture_over_starts_and_rates():
    errors = rng(9).random(40) < 0.3
    np.testing.assert_allclose(
        sequential.evidence(errors, 0.1), slow_evidence(errors, 0.1), rtol=1e-9
    )
    both = sequential.evidence(np.stack([errors, ~errors]), 0.1)
    np.testing.assert_allclose(both[1], slow_evidence(~errors, 0.1), rtol=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), max_size=8), st.floats(0.01, 0.9), st.floats(0, 1))
def test_no_bet_pays_while_the_promise_is_kept(past, risk, part):
    # One step: the expectation at any rate up to the promised one is at most what is owned now.
    past = np.array(past, bool)
    now = sequential.evidence(past, risk)[-1] if len(past) else 1.0
    right, wrong = (sequential.evidence(np.append(past, x), risk)[-1] for x in (False, True))
    rate = risk * part
    assert rate * wrong + (1 - rate) * right <= now * (1 + 1e-9)
    assert risk * wrong + (1 - risk) * right == pytest.approx(now)


@pytest.mark.parametrize("risk", [0.05, 0.3])
def test_false_alarms_over_the_whole_stream(risk):
    delta, streams = 0.1, 4000
    errors = rng(10).random((streams, 1500)) < risk
    alarms = np.mean((sequential.evidence(errors, risk) >= 1 / delta).any(axis=1))
    assert alarms <= delta + 3 * math.sqrt(delta * (1 - delta) / streams)
    # Not by being deaf.
    assert alarms > 0.01


def test_a_test_made_anew_after_every_row_would_not_do():
    # What the sequential test is for: looking on and on breaks the usual one.
    errors = rng(11).random((500, 1000)) < 0.1
    k, n = errors.cumsum(axis=1), np.arange(1, 1001)
    assert np.mean((stats.binom.sf(k - 1, n, 0.1) <= 0.01).any(axis=1)) > 0.03


def test_power_at_once_and_after_a_long_good_time():
    generator = rng(12)
    bad = sequential.evidence(generator.random((300, 600)) < 0.1, 0.05) >= 100
    assert np.mean(bad.any(axis=1)) > 0.9
    good = generator.random((300, 3000)) < 0.02
    late = sequential.evidence(
        np.concatenate([good, generator.random((300, 600)) < 0.15], axis=1), 0.05
    )
    found = late >= 100
    assert np.mean(found[:, :3000].any(axis=1)) <= 0.01 and np.mean(found.any(axis=1)) > 0.95
    # Over all rows together the rate is still below what was promised.
    assert (3000 * 0.02 + 600 * 0.15) / 3600 < 0.05


def test_evidence_neither_overflows_nor_dies():
    found = sequential.evidence(np.ones(5000, bool), 0.01)
    assert np.isfinite(found).all() and found[-1] >= 1e99
    found = sequential.evidence(np.append(np.zeros(50_000, bool), np.ones(20, bool)), 0.2)
    assert (found > 0).all() and found[-1] > 100


def test_first_break_names_the_row_and_where_it_began():
    errors = np.zeros(500, bool)
    errors[400::2] = True
    found = sequential.first_break(errors, 0.05, delta=0.01)
    assert found.since == 400 and 404 <= found.row <= 430
    enough = sequential.evidence(errors, 0.05) >= 100
    assert found.row == np.flatnonzero(enough)[0]
    # What comes later does not move it.
    assert sequential.first_break(errors[: found.row + 1], 0.05, delta=0.01) == found
    assert sequential.first_break(errors[: found.row], 0.05, delta=0.01) is None
    assert sequential.first_break(np.zeros(0, bool), 0.05, delta=0.01) is None


def test_anytime_interval_holds_the_rates_that_the_mixture_does_not_refute():
    k, n, delta, scale = 7, 60, 0.05, 0.2
    low, high = sequential.anytime_interval([k], [n], delta=delta, scale=scale)

    def mixture(q):
        prior = stats.beta(1, 1 / scale)
        ratio = integrate.quad(
            lambda p: prior.pdf(p) * (p / q) ** k * ((1 - p) / (1 - q)) ** (n - k), 0, 1
        )
        return ratio[0]

    for end in (low[0], high[0]):
        assert mixture(end) == pytest.approx(1 / delta, rel=1e-5)
    assert mixture(k / n) < 1 / delta


def test_anytime_interval_covers_at_all_times_together():
    delta, streams, rate = 0.1, 600, 0.08
    rows = np.arange(1, 201)
    errors = (rng(13).random((streams, 200)) < rate).cumsum(axis=1)
    low, high = sequential.anytime_interval(errors.ravel(), np.tile(rows, streams), delta=delta)
    missed = ((low > rate) | (high < rate)).reshape(streams, 200).any(axis=1)
    assert 0.005 < missed.mean() <= delta + 3 * math.sqrt(delta / streams)


def test_anytime_interval_at_the_ends():
    low, high = sequential.anytime_interval([0, 0, 5, 0], [0, 3, 5, 10**6], delta=0.01, scale=0.05)
    assert low.tolist()[:2] == [0, 0] and high[0] == 1 and high[2] == 1
    assert 0 < low[2] < 1 and 0 < high[3] < 1e-4


# Arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: drift.ks([], [1.0]), r"baseline: expected numbers \[n\], n > 0, received"),
        (lambda: drift.psi([0.1], [[0.1]]), "production: expected numbers"),
        (lambda: drift.psi([0.1], [np.nan]), "production: expected finite numbers, received nan"),
        (lambda: drift.psi(["a"], [0.1]), "baseline: expected numbers"),
        (
            lambda: drift.quantile_edges([0.1], bins=1),
            "bins: expected a whole number >= 2, received 1",
        ),
        (lambda: drift.mix([1, 2], [1, 2, 3]), "expected counts of the same classes"),
        (lambda: drift.mix([0, 0], [1, 2]), "baseline: expected at least one row"),
        (lambda: drift.mix([1, 2], [1, -2]), "production: expected whole numbers >= 0"),
        (lambda: drift.mix([1.5, 2], [1, 2]), "baseline: expected whole numbers >= 0"),
        (lambda: drift.rates((1, 0), (1, 2)), "rows: expected a whole number >= 1, received 0"),
        (lambda: drift.rates((True, 2), (1, 2)), "count: expected a whole number .* True"),
        (lambda: drift.clopper_pearson("1", 2), "count: expected a whole number .* '1'"),
        (
            lambda: sequential.evidence([[True], [True, False]], 0.1),
            "is_error: expected .* lengths",
        ),
        (
            lambda: drift.clopper_pearson(3, 2),
            "count: expected a whole number from 0 to 2, received 3",
        ),
        (lambda: drift.clopper_pearson(1, 2, level=1), "level: expected a number between 0 and 1"),
        (lambda: sequential.evidence([0, 1], 0.1), "is_error: expected bool"),
        (lambda: sequential.evidence([True], 0), "risk: expected a number between 0 and 1"),
        (lambda: sequential.first_break([True], 0.1, delta=0), "delta: expected a number between"),
        (lambda: sequential.first_break([[True]], 0.1, delta=0.1), r"expected shape \[n\]"),
        (lambda: sequential.anytime_interval([3], [2], delta=0.1), "0 <= errors <= rows"),
    ],
)
def test_bad_arguments_are_refused_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# A fixed sample --------------------------------------------------------------------------------


@pytest.mark.parametrize(("errors", "rows"), [(0, 1), (1, 1), (0, 40), (3, 40), (40, 40), (9, 999)])
@pytest.mark.parametrize("risk", [0.01, 0.05, 0.5])
def test_the_test_of_a_rate_is_scipys(errors, rows, risk):
    found = drift.rate_test(errors, rows, risk)
    assert found.above == pytest.approx(stats.binomtest(errors, rows, risk, "greater").pvalue)
    assert found.below == pytest.approx(stats.binomtest(errors, rows, risk, "less").pvalue)


@pytest.mark.parametrize("rows", [1, 20, 300])
@pytest.mark.parametrize("risk", [0.01, 0.05, 0.3])
def test_false_alarms_of_the_test_of_a_rate_are_at_most_its_level(rows, risk):
    counts = np.arange(rows + 1)
    chance = stats.binom.pmf(counts, rows, risk)
    found = [drift.rate_test(int(errors), rows, risk) for errors in counts]
    for delta in (0.01, 0.1):
        for side in range(2):
            assert chance[[p[side] <= delta for p in found]].sum() <= delta + 1e-12


@pytest.mark.parametrize("groups", [[0] * 4 + [1] * 3, [0, 0, 1, 1, 2, 2, 3], [0, 0, 0, 0, 0, 1]])
def test_blocks_are_those_of_all_orders(groups):
    every = [np.count_nonzero(np.diff(order)) for order in itertools.permutations(groups)]
    for seed in range(3):
        order = rng(seed).permutation(groups)
        found = drift.blocks(order, shuffles=4999)
        changes = np.count_nonzero(np.diff(order))
        exact = np.mean(np.less_equal(every, changes))
        assert found.changes == changes
        assert found.expected == pytest.approx(np.mean(every))
        # Fewer shuffles where it is plain sooner.
        assert found.p_value == pytest.approx(exact, rel=0.8, abs=0.02)
    assert drift.blocks(np.sort(groups)).changes == len(set(groups)) - 1


@pytest.mark.parametrize("groups", [(0, 0, 0, 1, 1), (1, 0, 0, 0, 0, 0), (0, 1) * 3])
def test_two_groups_have_the_exact_distribution_of_runs(groups):
    orders = [*itertools.permutations(groups)]
    every = [np.count_nonzero(np.diff(order)) for order in orders]
    for order in set(orders):
        found = drift.blocks(order)
        assert found.p_value == pytest.approx(np.mean(np.less_equal(every, found.changes)))


def test_few_errors_at_the_start_of_a_long_file_are_in_order_as_exactly_as_they_are_rare():
    groups = np.arange(100_000) < 3
    assert drift.blocks(groups.astype(int)).p_value == pytest.approx(2 / math.comb(100_000, 3))


def test_the_bound_for_long_files_is_no_less_than_what_shuffles_show():
    # Blocks of three: fewer changes than chance makes, by so much that no shuffle shows it.
    groups = np.repeat(rng().integers(0, 3, 1000), 3)
    found, shuffled = drift.blocks(groups, shuffles=99), np.empty(2000)
    for seed in range(2000):
        shuffled[seed] = np.count_nonzero(np.diff(rng(seed).permutation(groups)))
    assert found.p_value < 1 / 100 and found.changes < shuffled.min()
    assert found.expected == pytest.approx(shuffled.mean(), rel=0.01)
    # As a normal distribution has it; the bound is far above.
    z = (found.changes - shuffled.mean()) / shuffled.std()
    assert found.p_value > stats.norm.cdf(z)


def test_blocks_make_no_more_false_alarms_than_their_level():
    p = [drift.blocks(rng(seed).integers(0, 4, 40), shuffles=99).p_value for seed in range(400)]
    assert 0 < np.mean(np.less_equal(p, 0.1)) <= 0.1 + 3 * math.sqrt(0.09 / 400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: drift.blocks([]), "groups: expected whole numbers"),
        (lambda: drift.blocks([0.5]), "groups: expected whole numbers"),
        (lambda: drift.blocks([1], shuffles=0), "shuffles: expected a whole number >= 1"),
        (lambda: drift.rate_test(1, 0, 0.1), "rows: expected a whole number >= 1"),
        (lambda: drift.rate_test(3, 2, 0.1), "errors: expected a whole number from 0 to 2"),
        (lambda: drift.rate_test(1, 2, 1.0), "risk: expected a number between 0 and 1"),
    ],
)
def test_arguments_of_tests_of_a_sample(call, message):
    with pytest.raises(ValueError, match=message):
        call()
