"""Our thresholds against the risk control of MAPIE, with the same scores.

Collected only where MAPIE is installed, in an environment of its own:
`pip install mapie numpy scipy pytest "pytest-xdist[psutil]" hypothesis`.

In MAPIE's terms, an accepted answer is a positive prediction, and the error rate of the accepted
ones is 1 - precision. It accepts where "probability" >= lambda; u < tau is the same with
probability -u and lambda just above -tau, as no u here equals a tau.
"""

import warnings

import numpy as np
import pytest
from scipy import stats

from btcp_tf import metrics, thresholds

risk_control = pytest.importorskip("mapie.risk_control")
fwer_control = pytest.importorskip("mapie.risk_control.fwer_control")

GRID = (np.arange(40) + 1) / 40 + 1e-9


def draw(seed, n, values):
    rng = np.random.default_rng(seed)
    u = np.round(rng.random(n) * values) / values
    return rng.random(n) < 0.25 * u**2, u


def choose(is_error, u, risk, delta):
    """Our walk over the candidates from half of the rows on, which is one, as theirs."""
    return thresholds.target_risk(is_error, u, risk=risk, delta=delta, grid=GRID, min_coverage=0.5)


def can_pass(u, risk, delta):
    """The candidates from the start of our walk on."""
    rows = np.searchsorted(np.sort(u), GRID)
    return GRID[(2 * rows >= len(u)) & (stats.binom.cdf(0, rows, risk) <= delta)]


@pytest.mark.parametrize("n", [20, 200, 2000])
@pytest.mark.parametrize("values", [5, 40, 10**9])
@pytest.mark.parametrize("seed", range(10))
def test_the_same_walk_on_the_same_p_values(seed, values, n):
    """Exact agreement of the fixed-sequence test, given exact binomial p-values."""
    is_error, u = draw(seed, n, values)
    risk, delta = 0.05, 0.1
    ours = choose(is_error, u, risk, delta)
    taus = can_pass(u, risk, delta)
    if not len(taus):
        assert ours.tau is None
        return
    groups = metrics.tie_groups(is_error, u)
    cut = np.searchsorted(groups.u, taus)
    p = stats.binom.cdf(groups.errors[cut], groups.rows[cut], risk)
    valid = fwer_control.control_fwer(p, delta, "fixed_sequence")
    assert ours.tau == (taus[valid[-1]] if len(valid) else None)


def mapie(is_error, u, taus, risk, delta, method):
    """The largest threshold that MAPIE's controller finds valid, or None, and its p-values."""
    controller = risk_control.BinaryClassificationController(
        predict_function=lambda x: np.stack([x, -x], axis=1),
        risk="precision",
        target_level=1 - risk,
        confidence_level=1 - delta,
        # From strict to lenient: it starts there if the observed risk rises that way.
        list_predict_params=-taus,
        fwer_method=method,
    )
    with warnings.catch_warnings():
        # That the risk does not rise at each step, and that nothing is valid.
        warnings.simplefilter("ignore")
        controller.calibrate(u, (~is_error).astype(int))
    valid = -controller.valid_predict_params
    return max(valid, default=None), controller.p_values[:, 0]


@pytest.mark.parametrize("values", [5, 40, 10**9])
@pytest.mark.parametrize("seed", range(15))
def test_the_controller(seed, values):
    """Its p-value is the smaller of Hoeffding's and the binomial one, and Hoeffding's is never the
    smaller one for the same errors, so it should be ours. But it counts errors as
    ceil(rows * (1 - precision)): where that product is rounded up, it sees one error too many. Its
    threshold is then ours or a stricter one.
    """
    is_error, u = draw(seed, 2000, values)
    risk, delta = 0.05, 0.1
    ours = choose(is_error, u, risk, delta)
    taus = can_pass(u, risk, delta)
    groups = metrics.tie_groups(is_error, u)
    cut = np.searchsorted(groups.u, taus)
    exact, one_more = (
        stats.binom.cdf(groups.errors[cut] + more, groups.rows[cut], risk) for more in (0, 1)
    )
    theirs, p = mapie(is_error, u, taus, risk, delta, "fixed_sequence")
    equal = np.isclose(p, exact, rtol=1e-6, atol=0)
    assert equal.any()
    assert ((p > exact) & (p <= one_more * (1 + 1e-9)))[~equal].all()
    if ours.tau is None:
        assert theirs is None
    elif (p[taus <= ours.tau] <= delta).all():
        assert theirs == ours.tau
    else:
        assert theirs < ours.tau


def test_its_default_is_stricter():
    """Bonferroni-Holm needs no order, and pays for it: neighboring thresholds are all but one test,
    and it takes them for many.
    """
    risk, delta = 0.05, 0.1
    ours, theirs = [], []
    for seed in range(20):
        is_error, u = draw(seed, 2000, 10**9)
        found = choose(is_error, u, risk, delta)
        ours.append(found.tau)
        taus = can_pass(u, risk, delta)
        theirs.append(mapie(is_error, u, taus, risk, delta, "bonferroni_holm")[0])
    assert np.mean(ours) > np.mean(theirs) + 0.05


@pytest.mark.parametrize("method", ["fixed_sequence", "bonferroni_holm"])
def test_both_keep_the_promise(method):
    """Everywhere a little more wrong than allowed: any threshold breaks the promise."""
    rng = np.random.default_rng(0)
    risk, delta, draws, broken = 0.1, 0.2, 300, np.zeros(2)
    for _ in range(draws):
        is_error, u = rng.random(200) < 0.1000001, rng.random(200)
        ours = choose(is_error, u, risk, delta)
        theirs, _ = mapie(is_error, u, can_pass(u, risk, delta), risk, delta, method)
        broken += [ours.tau is not None, theirs is not None]
    assert (broken / draws <= delta + 3 * np.sqrt(delta * (1 - delta) / draws)).all()
