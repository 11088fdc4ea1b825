"""Metrics against figures by hand, textbook loops, scikit-learn and a plain bootstrap."""

import math
import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from btcp_tf import metrics
from btcp_tf.metrics import METRICS, OOD_METRICS

TAU = 0.5
GRID = (0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Uncertainties that tie often and hit tau and edges of the 15 bins of 1 - u."""


def sample(seed: int, n: int, decimals: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Errors (a fifth) and a fair u in [0, 1] with ties."""
    generator = np.random.default_rng(seed)
    is_error = generator.random(n) < 0.2
    return is_error, np.round(np.clip(generator.beta(0.5, 2, n) + 0.2 * is_error, 0, 1), decimals)


def call(name: str, is_error, u) -> float:
    """The metric of the table, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return METRICS[name](is_error, u, **tau_if_used(name))


def tau_if_used(name: str) -> dict[str, float]:
    return {"tau": TAU} if METRICS[name].kind == "threshold" else {}


def assert_in_range(values: dict[str, float], table) -> None:
    for name, value in values.items():
        assert math.isnan(value) or -1e-12 <= value <= table[name].top + 1e-12, name


# Textbook versions: one loop over rows or pairs for each definition.


def ratio(part, whole) -> float:
    return part / whole if whole else math.nan


def slow_auroc(rows):
    pairs = [(u > v) + (u == v) / 2 for e, u in rows for f, v in rows if e and not f]
    return ratio(sum(pairs), len(pairs))


def slow_average_precision(rows, wanted, sign):
    total, result = sum(e == wanted for e, _ in rows), 0.0
    for threshold in {u for _, u in rows}:
        above = [e == wanted for e, u in rows if sign * u >= sign * threshold]
        new = sum(e == wanted for e, u in rows if u == threshold)
        result += new * sum(above) / len(above)
    return ratio(result, total)


def slow_fpr95(rows):
    correct, errors = [u for e, u in rows if not e], [u for e, u in rows if e]
    for threshold in sorted(u for _, u in rows):
        if correct and Fraction(sum(u <= threshold for u in correct), len(correct)) >= Fraction(
            "0.95"
        ):
            return ratio(sum(u <= threshold for u in errors), len(errors))
    return math.nan


def slow_aurc(rows):
    """A row is among the first k with the probability that random orders of ties put it there."""
    total = 0.0
    for k in range(1, len(rows) + 1):
        for e, u in rows:
            before, tied = sum(v < u for _, v in rows), sum(v == u for _, v in rows)
            total += e * min(max((k - before) / tied, 0), 1) / k
    return total / len(rows)


def slow_e_aurc(rows):
    n, errors = len(rows), sum(e for e, _ in rows)
    return slow_aurc(rows) - sum(max(0, j - (n - errors)) / j for j in range(1, n + 1)) / n


def slow_augrc(rows):
    """By its probabilistic meaning: half of all pairs of errors, and the misranked mixed pairs."""
    wrong = sum(e for e, _ in rows) / len(rows)
    mixed = (1 - slow_auroc(rows)) * wrong * (1 - wrong) if 0 < wrong < 1 else 0
    return mixed + wrong**2 / 2


def slow_operating_points(rows):
    for threshold in sorted({u for _, u in rows}):
        accepted = [e for e, u in rows if u <= threshold]
        yield Fraction(len(accepted), len(rows)), Fraction(sum(accepted), len(accepted))


def slow_risk_at_coverage(rows, coverage):
    return float(next(r for c, r in slow_operating_points(rows) if c >= Fraction(coverage)))


def slow_coverage_at_risk(rows, risk):
    return float(max((c for c, r in slow_operating_points(rows) if r <= Fraction(risk)), default=0))


def slow_rates(rows):
    fp, tn = (sum(e and accept == (u < TAU) for e, u in rows) for accept in (True, False))
    tp, fn = (sum(not e and accept == (u < TAU) for e, u in rows) for accept in (True, False))
    fpr, fnr = ratio(fp, fp + tn), ratio(fn, fn + tp)
    bacc = (ratio(tn, fp + tn) + ratio(tp, fn + tp)) / 2
    return {"fpr": fpr, "fp_share": fp / len(rows), "fnr": fnr, "bacc": bacc}


def slow_ece(rows):
    result = 0.0
    for b in range(15):
        inside = [
            (e, 1 - u) for e, u in rows if b / 15 < 1 - u <= (b + 1) / 15 or (b == 0 and u == 1)
        ]
        if inside:
            accuracy = sum(not e for e, _ in inside) / len(inside)
            confidence = sum(p for _, p in inside) / len(inside)
            result += len(inside) / len(rows) * abs(accuracy - confidence)
    return result


def slow_brier(rows):
    return sum(((1 - u) - (not e)) ** 2 for e, u in rows) / len(rows)


def slow_nll(rows):
    clipped = [(e, min(max(1 - u, 1e-7), 1 - 1e-7)) for e, u in rows]
    return -sum(math.log(1 - p if e else p) for e, p in clipped) / len(rows)


SLOW = {
    "bacc": lambda rows: slow_rates(rows)["bacc"],
    "auroc": slow_auroc,
    "fpr": lambda rows: slow_rates(rows)["fpr"],
    "fp_share": lambda rows: slow_rates(rows)["fp_share"],
    "fnr": lambda rows: slow_rates(rows)["fnr"],
    "aupr_error": lambda rows: slow_average_precision(rows, wanted=True, sign=1),
    "aupr_success": lambda rows: slow_average_precision(rows, wanted=False, sign=-1),
    "fpr95": slow_fpr95,
    "aurc": slow_aurc,
    "e_aurc": slow_e_aurc,
    "augrc": slow_augrc,
    "risk_at_coverage_80": lambda rows: slow_risk_at_coverage(rows, "0.8"),
    "risk_at_coverage_90": lambda rows: slow_risk_at_coverage(rows, "0.9"),
    "risk_at_coverage_95": lambda rows: slow_risk_at_coverage(rows, "0.95"),
    "coverage_at_risk_1": lambda rows: slow_coverage_at_risk(rows, "0.01"),
    "coverage_at_risk_2": lambda rows: slow_coverage_at_risk(rows, "0.02"),
    "coverage_at_risk_5": lambda rows: slow_coverage_at_risk(rows, "0.05"),
    "ece": slow_ece,
    "brier": slow_brier,
    "nll": slow_nll,
}


def slow_all(is_error, u) -> dict[str, float]:
    rows = [(bool(e), float(x)) for e, x in zip(is_error, u, strict=True)]
    return {name: slow(rows) for name, slow in SLOW.items()}


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(GRID)), min_size=1, max_size=25))
def test_every_metric_equals_its_textbook_version_under_ties(rows):
    is_error, u = (np.array(column) for column in zip(*rows, strict=True))
    expected = slow_all(is_error, u)
    received = {name: call(name, is_error, u) for name in METRICS}
    assert received == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert_in_range(received, METRICS)


def test_every_metric_equals_its_textbook_version_without_ties():
    is_error, u = sample(seed=1, n=150, decimals=15)
    assert len(np.unique(u)) == 150
    received = metrics.evaluate_all(is_error, u, tau=TAU)
    assert received == pytest.approx(slow_all(is_error, u), abs=1e-12)


def test_figures_by_hand_without_ties():
    is_error, u = [0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]
    assert metrics.aurc(is_error, u) == pytest.approx(0.296667, abs=5e-7)
    assert metrics.augrc(is_error, u) == pytest.approx(0.16)


@pytest.mark.parametrize("order", [range(10), range(9, -1, -1), (3, 0, 8, 1, 9, 2, 7, 4, 6, 5)])
def test_figures_by_hand_with_ties_in_any_order(order):
    u = np.array([0.0] * 8 + [0.5] * 2)[list(order)]
    is_error = np.array([1] + [0] * 7 + [1, 0])[list(order)]
    assert metrics.aurc(is_error, u) == pytest.approx(0.1367, abs=5e-5)
    assert metrics.e_aurc(is_error, u) == pytest.approx(0.105556, abs=5e-7)
    assert metrics.augrc(is_error, u) == pytest.approx(0.07)
    assert metrics.aupr_error(is_error, u) == pytest.approx(0.35)
    assert metrics.aupr_success(is_error, u) == pytest.approx(0.865625)
    assert metrics.auroc(is_error, u) == pytest.approx(0.6875)
    assert metrics.bacc(is_error, u, tau=0.5) == pytest.approx(0.6875)
    assert metrics.fpr95(is_error, u) == 1.0


@pytest.mark.parametrize("decimals", [1, 15])
def test_agrees_with_scikit_learn(decimals):
    is_error, u = sample(seed=2, n=3000, decimals=decimals)
    correct, accepted = ~is_error, u < TAU
    received = metrics.evaluate_all(is_error, u, tau=TAU)
    expected = {
        "auroc": sklearn.metrics.roc_auc_score(is_error, u),
        "aupr_error": sklearn.metrics.average_precision_score(is_error, u),
        "aupr_success": sklearn.metrics.average_precision_score(correct, -u),
        "bacc": sklearn.metrics.balanced_accuracy_score(correct, accepted),
        "fpr": 1 - sklearn.metrics.recall_score(is_error, ~accepted),
        "fnr": 1 - sklearn.metrics.recall_score(correct, accepted),
        "brier": sklearn.metrics.brier_score_loss(correct, 1 - u),
        "nll": sklearn.metrics.log_loss(correct, np.clip(1 - u, 1e-7, 1 - 1e-7)),
    }
    assert {name: received[name] for name in expected} == pytest.approx(expected, abs=1e-12)

    curve = metrics.roc_curve(is_error, u)
    theirs = sklearn.metrics.roc_curve(is_error, u, drop_intermediate=False)
    for mine, their in zip(curve, theirs, strict=True):
        np.testing.assert_allclose(mine, their, atol=1e-12)
    assert np.trapezoid(curve.errors_rejected, curve.correct_rejected) == pytest.approx(
        received["auroc"]
    )


def test_functions_are_the_entries_of_the_table():
    is_error, u = sample(seed=3, n=500)
    plain = [name for name, metric in METRICS.items() if not metric.settings]
    direct = {name: getattr(metrics, name)(is_error, u, **tau_if_used(name)) for name in plain}
    for percent in (80, 90, 95):
        direct[f"risk_at_coverage_{percent}"] = metrics.risk_at_coverage(
            is_error, u, coverage=percent / 100
        )
    for percent in (1, 2, 5):
        direct[f"coverage_at_risk_{percent}"] = metrics.coverage_at_risk(
            is_error, u, risk=percent / 100
        )
    assert direct == {name: call(name, is_error, u) for name in METRICS}
    assert direct == metrics.evaluate_all(is_error, u, tau=TAU)
    assert all(type(value) is float for value in direct.values())


def test_better_is_what_the_table_says():
    is_error, spread = sample(seed=4, n=400)
    knows, wrong_way = (
        np.where(is_error == fact, 0.95, 0.0) + 0.05 * spread for fact in (True, False)
    )
    for name, metric in METRICS.items():
        good, bad = call(name, is_error, knows), call(name, is_error, wrong_way)
        assert (good > bad) if metric.higher_is_better else (good < bad), name


def test_ranking_metrics_ignore_the_scale_of_u():
    is_error, u = sample(seed=5, n=300)
    raw = metrics.evaluate_all(is_error, np.exp(5 * u) - 100, tau=TAU)
    scaled = metrics.evaluate_all(is_error, u, tau=TAU)
    for name, metric in METRICS.items():
        if metric.kind == "ranking":
            assert raw[name] == scaled[name]
        else:
            assert math.isnan(raw[name]) and math.isfinite(scaled[name])


@pytest.mark.parametrize("errors", [1, 7, 100])
def test_a_perfect_order_has_no_excess(errors):
    is_error = np.arange(1000) >= 1000 - errors
    assert 0 <= metrics.e_aurc(is_error, np.arange(1000.0)) < 1e-15
    assert metrics.auroc(is_error, np.arange(1000.0)) == 1


def test_u_is_compared_as_float64():
    # As float32 both are 0.3; as float64 the rounded one lies above.
    assert metrics.fpr([1, 1], np.float32([0.3, 0.2]), tau=0.3) == 0.5
    assert metrics.auroc([0, 1], np.array([0.3, 0.3 + 1e-12])) == 1


def test_shares_are_compared_as_the_literals_say():
    # 0.07 * 100 > 7 in float64.
    assert metrics.risk_at_coverage(np.arange(100) < 7, np.arange(100), coverage=0.07) == 1
    assert metrics.coverage_at_risk(np.arange(100) >= 93, np.arange(100), risk=0.07) == 1
    # 19 of 20 correct answers are 95 %.
    assert metrics.fpr95([0] * 19 + [1, 0], np.arange(21)) == 0


def test_risk_coverage_curve():
    curve = metrics.risk_coverage_curve([0, 1, 0, 0, 1], [0.3, 0.1, 0.3, 0.1, 0.7])
    np.testing.assert_allclose(curve.coverage, [0.4, 0.8, 1.0])
    np.testing.assert_allclose(curve.risk, [0.5, 0.25, 0.4])
    np.testing.assert_array_equal(curve.threshold, [0.1, 0.3, 0.7])


def test_reliability_curve():
    u = [0.9, 1.0, 0.5, 0.3, 0.1, 0.2]
    curve = metrics.reliability_curve([1, 0, 1, 0, 0, 1], u, bins=4)
    np.testing.assert_array_equal(curve.rows, [2, 1, 1, 2])
    np.testing.assert_allclose(curve.confidence, [0.05, 0.5, 0.7, 0.85])
    np.testing.assert_allclose(curve.accuracy, [0.5, 0, 1, 0.5])

    is_error, u = sample(seed=6, n=200, decimals=1)
    curve = metrics.reliability_curve(is_error, u)
    filled = curve.rows > 0
    assert not filled.all() and np.isnan(curve.accuracy[~filled]).all()
    gap = np.abs(curve.accuracy - curve.confidence)[filled]
    assert metrics.ece(is_error, u) == pytest.approx(gap @ curve.rows[filled] / 200)


@pytest.mark.parametrize(
    "errors, absent, undefined",
    [
        (0, "no errors among 4 rows", {"bacc", "auroc", "fpr", "aupr_error", "fpr95"}),
        (1, "no correct answers among 4 rows", {"bacc", "auroc", "fnr", "aupr_success", "fpr95"}),
    ],
)
def test_only_metrics_that_divide_by_an_absent_class_are_nan(errors, absent, undefined):
    is_error, u = [errors] * 4, [0.1, 0.2, 0.2, 0.9]
    for name, metric in METRICS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = metric(is_error, u, **tau_if_used(name))
        assert math.isnan(value) == (name in undefined), name
        messages = [str(w.message) for w in caught]
        assert messages == ([f"{absent}: {name} undefined (NaN)"] if name in undefined else [])
    with pytest.warns(RuntimeWarning, match=absent) as caught:
        values = metrics.evaluate_all(is_error, u, tau=TAU)
    assert len(caught) == 1
    assert {name for name, x in values.items() if math.isnan(x)} == undefined
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=absent):
        curve = metrics.roc_curve(is_error, u)
    assert np.isnan(curve.errors_rejected).all() == (errors == 0)
    assert np.isnan(curve.correct_rejected).all() == (errors == 1)


def test_areas_are_zero_without_errors():
    for name in ("aurc", "e_aurc", "augrc"):
        assert call(name, [0, 0, 0], [0.1, 0.1, 0.4]) == 0


@pytest.mark.parametrize(
    "is_error, u, message",
    [
        ([0, 1, 1], [0.1, np.nan, np.inf], "finite numbers, received nan in row 1"),
        ([0, 1, 1], [0.1, 0.2, -np.inf], "finite numbers, received -inf in row 2"),
        ([0, 1, 2], [0.1, 0.2, 0.3], "is_error: expected 0 or 1, received 2 in row 2"),
        ([0, np.nan], [0.1, 0.2], "is_error: expected 0 or 1, received nan in row 1"),
        ([0, 1], [0.1, 0.2, 0.3], r"same shape, received \[2\] and \[3\]"),
        ([[0], [1]], [0.1, 0.2], r"is_error: expected shape \[n\], n > 0, received \[2, 1\]"),
        ([0, 1], [[0.1], [0.2]], r"uncertainty: expected shape \[n\], n > 0, received \[2, 1\]"),
        ([], [], r"expected shape \[n\], n > 0, received \[0\]"),
        (0, 0.5, r"expected shape \[n\], n > 0, received \[\]"),
        ([0, 1], ["0.1", "0.2"], "uncertainty: expected numbers, received dtype <U3"),
    ],
)
def test_bad_columns_are_refused(is_error, u, message):
    for name in METRICS:
        with pytest.raises(ValueError, match=message):
            call(name, is_error, u)
    with pytest.raises(ValueError, match=message):
        metrics.bootstrap(is_error, {"u": u}, tau=TAU, draws=2, seed=0)


@pytest.mark.parametrize(
    "function, bad, message",
    [
        (metrics.bacc, {"tau": math.nan}, "tau: expected a finite number, received nan"),
        (metrics.risk_at_coverage, {"coverage": 0}, r"coverage: expected .* \(0, 1\], received 0"),
        (metrics.coverage_at_risk, {"risk": 1.5}, r"risk: expected .* \[0, 1\], received 1.5"),
        (metrics.ece, {"bins": 0}, "bins: expected at least 1, received 0"),
    ],
)
def test_bad_settings_are_refused(function, bad, message):
    with pytest.raises(ValueError, match=message):
        function([0, 1], [0.2, 0.4], **bad)


@pytest.mark.parametrize(
    "function", [metrics.ece, metrics.brier, metrics.nll, metrics.reliability_curve]
)
@pytest.mark.parametrize("outside", [-0.25, 1.5])
def test_calibration_needs_u_in_the_unit_interval(function, outside):
    with pytest.raises(ValueError, match=rf"expected values in \[0, 1\], received {outside}"):
        function([0, 1], [0.5, outside])


def test_bootstrap_equals_a_loop_over_resampled_rows(monkeypatch):
    n, draws, seed = 12, 40, 7
    generator = np.random.default_rng(8)
    is_error = np.arange(n) < 2
    columns = {
        "a": generator.choice(GRID, n),
        "b": generator.random(n),
        "raw": 9 * generator.random(n),
    }
    whole = metrics.bootstrap(is_error, columns, tau=TAU, draws=draws, seed=seed)
    rows = np.random.default_rng(seed).integers(n, size=(draws, n))
    assert any(not is_error[r].any() for r in rows), "some draw should lack errors"
    for column, u in columns.items():
        for d in range(draws):
            expected = slow_all(is_error[rows[d]], u[rows[d]])
            if column == "raw":
                expected |= {m: math.nan for m in METRICS if METRICS[m].kind != "ranking"}
            received = {name: values[d] for name, values in whole[column].items()}
            assert received == pytest.approx(expected, abs=1e-12, nan_ok=True)

    monkeypatch.setattr(metrics, "_BLOCK_CELLS", 7 * n)
    in_blocks = metrics.bootstrap(is_error, columns, tau=TAU, draws=draws, seed=seed)
    one = metrics.bootstrap(is_error, {"b": columns["b"]}, tau=TAU, draws=draws, seed=seed)
    for name in METRICS:
        np.testing.assert_array_equal(in_blocks["b"][name], whole["b"][name])
        np.testing.assert_array_equal(one["b"][name], whole["b"][name])


def test_tables_in_part():
    is_error, u = sample(seed=9, n=50)
    table = {"aurc": METRICS["aurc"], "mine": METRICS["fnr"]}
    draws = metrics.bootstrap(is_error, {"u": u}, tau=TAU, draws=3, seed=0, table=table)
    assert list(draws) == ["u"] and list(draws["u"]) == ["aurc", "mine"]
    values = metrics.evaluate_all(is_error, u, tau=TAU, table=table)
    assert values == {
        "aurc": metrics.aurc(is_error, u),
        "mine": metrics.fnr(is_error, u, tau=TAU),
    }
    with pytest.raises(ValueError, match="draws: expected a whole number >= 1, received 0"):
        metrics.bootstrap(is_error, {"u": u}, tau=TAU, draws=0, seed=0)
    for seed in (-1, None, "0", 0.5):
        with pytest.raises(ValueError, match="seed: expected a whole number >= 0, received"):
            metrics.bootstrap(is_error, {"u": u}, tau=TAU, draws=1, seed=seed)


def test_bootstrap_takes_a_threshold_for_each_column():
    is_error, u = sample(seed=10, n=60)
    columns = {"low": u, "high": u}
    both = metrics.bootstrap(is_error, columns, tau={"low": 0.1, "high": 0.7}, draws=20, seed=0)
    for column, tau in (("low", 0.1), ("high", 0.7)):
        alone = metrics.bootstrap(is_error, {column: u}, tau=tau, draws=20, seed=0)
        np.testing.assert_equal(both[column], alone[column])
    assert (both["low"]["bacc"] != both["high"]["bacc"]).any()
    np.testing.assert_array_equal(both["low"]["aurc"], both["high"]["aurc"])


def test_bootstrap_draws_parts_in_their_sizes(monkeypatch):
    is_ood, u = np.arange(50) >= 20, np.arange(50) / 50
    how = dict(tau=TAU, draws=300, seed=4, parts=(20, 30))
    # Where all is accepted, FP / n is the share of OOD samples in the draw.
    table = {name: METRICS[name] for name in ("fp_share", "auroc", "fpr")}
    draws = metrics.bootstrap(is_ood, {"u": u}, **how | {"tau": 2.0}, table=table)["u"]
    assert set(draws["fp_share"]) == {0.6}
    mixed = metrics.bootstrap(is_ood, {"u": u}, **how | {"tau": 2.0, "parts": None}, table=table)
    assert len(set(mixed["u"]["fp_share"])) > 5
    # 5 of the 30 OOD samples have u < 0.5: their count in a draw is binomial.
    shares = metrics.bootstrap(is_ood, {"u": u}, **how, table=table)["u"]["fpr"]
    assert np.mean(shares) == pytest.approx(5 / 30, abs=4 * math.sqrt(5 * 25 / 30**3 / 300))
    assert np.std(shares) == pytest.approx(math.sqrt(5 * 25 / 30**3), rel=0.2)
    monkeypatch.setattr(metrics, "_BLOCK_CELLS", 7 * 50)
    again = metrics.bootstrap(is_ood, {"u": u}, **how, table=table)["u"]["fpr"]
    np.testing.assert_array_equal(again, shares)
    for parts in ((20, 29), (51, -1), ()):
        with pytest.raises(ValueError, match="parts: expected sizes that add up to 50, received"):
            metrics.bootstrap(is_ood, {"u": u}, **how | {"parts": parts})


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    # The error rate at full coverage is a plain share: its spread is known.
    is_error = np.arange(2000) < 200
    table = {"risk_at_coverage_95": METRICS["risk_at_coverage_95"]}
    draws = metrics.bootstrap(
        is_error, {"u": np.zeros(2000)}, tau=TAU, draws=2000, seed=1, table=table
    )
    low, high = metrics.interval(draws["u"]["risk_at_coverage_95"])
    half = 1.96 * math.sqrt(0.1 * 0.9 / 2000)
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.1 * half)


def test_interval():
    assert metrics.interval(np.arange(1001.0)) == pytest.approx((25, 975))
    assert metrics.interval(np.arange(1001.0), level=0.5) == pytest.approx((250, 750))
    assert metrics.interval(np.array([np.nan, 2.0, np.nan])) == (2, 2)
    assert np.isnan(metrics.interval(np.full(3, np.nan))).all()
    with pytest.raises(ValueError, match="level: expected .* received 95"):
        metrics.interval(np.arange(3.0), level=95)


# OOD detection.


def slow_ood(rows) -> dict[str, float]:
    ood = [u for is_ood, u in rows if is_ood]
    return {
        "auroc": slow_auroc(rows),
        "fpr95": slow_fpr95(rows),
        "aupr_ood": slow_average_precision(rows, wanted=True, sign=1),
        "aupr_id": slow_average_precision(rows, wanted=False, sign=-1),
        "ood_acc": ratio(sum(u >= TAU for u in ood), len(ood)),
        "ood_au": ratio(sum(ood), len(ood)),
    }


def call_ood(name: str, is_ood, u) -> float:
    tau = {"tau": TAU} if OOD_METRICS[name].kind == "threshold" else {}
    return OOD_METRICS[name](is_ood, u, **tau)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(GRID)), min_size=1, max_size=25))
def test_every_ood_metric_equals_its_textbook_version(rows):
    is_ood, u = (np.array(column) for column in zip(*rows, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = metrics.evaluate_all(is_ood, u, tau=TAU, table=OOD_METRICS)
        single = {name: call_ood(name, is_ood, u) for name in OOD_METRICS}
    expected = slow_ood([(bool(e), float(x)) for e, x in rows])
    assert whole == pytest.approx(expected, abs=1e-12, nan_ok=True)
    np.testing.assert_equal(single, whole)
    assert_in_range(whole, OOD_METRICS)


def test_ood_metrics_agree_with_scikit_learn():
    is_ood, u = sample(seed=12, n=3000)
    received = metrics.evaluate_all(is_ood, u, tau=TAU, table=OOD_METRICS)
    assert received["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(is_ood, u))
    average_precision = sklearn.metrics.average_precision_score
    assert received["aupr_ood"] == pytest.approx(average_precision(is_ood, u))
    assert received["aupr_id"] == pytest.approx(average_precision(~is_ood, -u))
    assert received["ood_acc"] == pytest.approx(np.mean(u[is_ood] >= TAU))
    assert received["ood_au"] == pytest.approx(np.mean(u[is_ood]))


def test_ood_functions_are_the_entries_of_the_table():
    is_ood, u = sample(seed=13, n=500)
    direct = {
        "auroc": metrics.auroc(is_ood, u),
        "fpr95": metrics.fpr95(is_ood, u),
        "aupr_ood": metrics.aupr_ood(is_ood, u),
        "aupr_id": metrics.aupr_id(is_ood, u),
        "ood_acc": metrics.ood_acc(is_ood, u, tau=TAU),
        "ood_au": metrics.ood_au(is_ood, u),
    }
    assert direct == metrics.evaluate_all(is_ood, u, tau=TAU, table=OOD_METRICS)


def test_better_is_what_the_table_says_of_ood():
    is_ood, spread = sample(seed=14, n=400)
    knows, wrong_way = (
        np.where(is_ood == fact, 0.95, 0.0) + 0.05 * spread for fact in (True, False)
    )
    for name, metric in OOD_METRICS.items():
        good, bad = call_ood(name, is_ood, knows), call_ood(name, is_ood, wrong_way)
        assert (good > bad) if metric.higher_is_better else (good < bad), name


def test_raw_scores_have_no_acc_and_no_au():
    is_ood, u = sample(seed=15, n=300)
    raw = metrics.evaluate_all(is_ood, 7 * u - 3, tau=TAU, table=OOD_METRICS)
    scaled = metrics.evaluate_all(is_ood, u, tau=TAU, table=OOD_METRICS)
    assert {name for name, value in raw.items() if math.isnan(value)} == {"ood_acc", "ood_au"}
    for name in ("auroc", "fpr95", "aupr_ood", "aupr_id"):
        assert raw[name] == scaled[name]
    with pytest.raises(ValueError, match=r"expected values in \[0, 1\], received 4.0"):
        metrics.ood_au([0, 1], [0.5, 4.0])


@pytest.mark.parametrize(
    "ood, absent, undefined",
    [
        (0, "no OOD samples among 4", {"auroc", "fpr95", "aupr_ood", "ood_acc", "ood_au"}),
        (1, "no in-distribution samples among 4", {"auroc", "fpr95", "aupr_id"}),
    ],
)
def test_ood_metrics_name_the_absent_class(ood, absent, undefined):
    is_ood, u = [ood] * 4, [0.1, 0.2, 0.2, 0.9]
    for name in OOD_METRICS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = call_ood(name, is_ood, u)
        assert math.isnan(value) == (name in undefined), name
        messages = [str(w.message) for w in caught]
        assert messages == ([f"{absent} rows: {name} undefined (NaN)"] if name in undefined else [])
    with pytest.warns(RuntimeWarning, match=absent) as caught:
        values = metrics.evaluate_all(is_ood, u, tau=TAU, table=OOD_METRICS)
    assert len(caught) == 1
    assert {name for name, x in values.items() if math.isnan(x)} == undefined
    with pytest.raises(ValueError, match="is_ood: expected 0 or 1, received 2 in row 1"):
        metrics.aupr_ood([0, 2], [0.1, 0.2])


def test_a_million_rows():
    """Counts are exact and areas accurate where float32 or int32 would fail."""
    n = 10**6
    is_error = np.arange(n) % 4 == 0
    values = metrics.evaluate_all(is_error, np.full(n, 0.25), tau=TAU)
    assert values["aurc"] == pytest.approx(0.25, abs=1e-14)
    assert values["auroc"] == 0.5
    assert values["augrc"] == 0.125
    assert values["ece"] == pytest.approx(0, abs=1e-14)
    values = metrics.evaluate_all(is_error, np.arange(n) / n, tau=TAU)
    accepted = np.arange(1, n + 1)
    expected = np.mean(np.cumsum(is_error) / accepted)
    assert values["aurc"] == pytest.approx(expected, abs=1e-12)
    oracle = np.mean(np.maximum(0, accepted - n * 3 // 4) / accepted)
    assert values["e_aurc"] == pytest.approx(expected - oracle, abs=1e-12)
    assert values["auroc"] == pytest.approx(0.5 - 2 / n, abs=1e-12)


def test_imports_neither_tensorflow_nor_keras():
    code = (
        "import sys, btcp_tf.metrics, btcp_tf.evaluation;"
        "sys.exit(bool({'tensorflow', 'keras', 'absl'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
