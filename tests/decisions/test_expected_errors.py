"""The expected error rate of answers without labels, and what its interval holds."""

import numpy as np
import pytest
from scipy import optimize, special

from btcp_tf import thresholds
from btcp_tf.decisions.expected_errors import Batch, expected_errors

ERROR_RATES = {
    "calibrated": lambda u: u,
    "half": lambda u: u / 2,
    "too sure": lambda u: special.expit(special.logit(u) / 2),
    "hump": lambda u: np.clip(u + 0.1 * np.sin(6 * u), 0, 1),
}


def draw(random, n, error_rate, power=1.0):
    u = random.beta(0.4, 4, n) ** power
    return random.random(n) < error_rate(u), u


@pytest.mark.parametrize("power", [1.0, 0.6])
@pytest.mark.parametrize("name", ERROR_RATES)
def test_the_interval_holds_the_share_also_of_more_uncertain_inputs(name, power):
    random = np.random.default_rng(3)
    held, nearer = [], []
    for _ in range(50):
        calibration = draw(random, 300, ERROR_RATES[name])
        is_error, u = draw(random, 500, ERROR_RATES[name], power)
        found = expected_errors(u, calibration, level=0.9)
        held.append(found.low <= is_error.mean() <= found.high)
        nearer.append(abs(found.rate - is_error.mean()) - abs(found.mean_u - is_error.mean()))
    # At the level of 0.9 fewer than 40 of 50 have a probability of 0.01.
    assert np.mean(held) >= 0.8
    if name in ("half", "too sure"):
        assert np.mean(nearer) < 0


def test_the_interval_holds_the_error_of_the_calibration():
    random = np.random.default_rng(0)
    _, u = draw(random, 100_000, ERROR_RATES["calibrated"])
    widths = []
    for n in (100, 400, 1600, 100_000):
        found = expected_errors(u, draw(random, n, ERROR_RATES["calibrated"]))
        widths.append(found.high - found.low)
        assert found.low <= u.mean() <= found.high and found.mean_u == pytest.approx(u.mean())
        assert (found.rows, found.calibration_rows) == (100_000, n)
    # About as the root of the rows; with 100 the prior helps.
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]
    assert widths[3] < 0.01


def test_the_order_of_rows_and_a_second_call_change_nothing():
    random = np.random.default_rng(0)
    is_error, known = draw(random, 200, ERROR_RATES["half"])
    _, u = draw(random, 300, ERROR_RATES["half"])
    found = expected_errors(u, (is_error, known))
    assert found == expected_errors(u, (is_error, known))
    order = random.permutation(200)
    again = expected_errors(u[::-1], (is_error[order], known[order]))
    assert again._replace(mean_u=found.mean_u) == found


def test_rate_and_interval_are_those_of_a_textbook_version_row_by_row():
    random = np.random.default_rng(5)
    is_error, known = draw(random, 300, ERROR_RATES["half"])
    _, u = draw(random, 3000, ERROR_RATES["half"], 0.7)
    z, new = (special.logit(one.clip(1e-7, 1 - 1e-7)) for one in (known, u))

    def loss(weights):
        shift, slope = weights
        p = 1 / (1 + np.exp(-(z + shift + slope * (z - z.mean()))))
        likelihood = np.where(is_error, np.log(p), np.log(1 - p)).sum()
        return -likelihood + 0.5 * (shift / 2.0) ** 2 + 0.5 * (slope / 0.5) ** 2

    found = optimize.minimize(loss, [0, 0], method="Nelder-Mead", options={"xatol": 1e-8})
    step = 1e-3 * np.eye(2)
    curvature = [
        [
            sum(a * b * loss(found.x + a * step[i] + b * step[j]) for a in (1, -1) for b in (1, -1))
            / 4e-6
            for i in (0, 1)
        ]
        for j in (0, 1)
    ]
    drawn = random.multivariate_normal(found.x, np.linalg.inv(curvature), 5000)
    p = [special.expit(new + shift + slope * (new - z.mean())) for shift, slope in drawn]
    shares = [(random.random(3000) < one).mean() for one in p]
    got = expected_errors(u, (is_error, known))
    shift, slope = found.x
    rate = special.expit(new + shift + slope * (new - z.mean())).mean()
    assert got.rate == pytest.approx(rate, rel=1e-3)
    # Within what chance does to quantiles of so many draws.
    np.testing.assert_allclose((got.low, got.high), np.quantile(shares, [0.025, 0.975]), atol=5e-3)


def test_a_batch_in_pieces_is_the_whole_batch():
    random = np.random.default_rng(1)
    calibration = draw(random, 200, ERROR_RATES["half"])
    _, u = draw(random, 5000, ERROR_RATES["half"])
    u[:3] = 0.0, 1.0, 0.5
    batch = Batch()
    for part in np.split(u, [1, 10, 1000]):
        batch.add(part)
    whole, pieces = expected_errors(u, calibration), expected_errors(batch, calibration)
    assert pieces.rows == 5000 and pieces.mean_u == pytest.approx(u.mean(), rel=1e-12)
    np.testing.assert_allclose(pieces, whole, rtol=1e-9)
    with pytest.raises(ValueError, match="expected at least one answer, received none"):
        expected_errors(Batch(), calibration)
    with pytest.raises(ValueError, match="uncertainty: expected values in .0, 1., received -1"):
        batch.add([-1.0])
    assert batch.rows == 5000 and np.isnan(Batch().mean_u)


@pytest.mark.parametrize("name", ERROR_RATES)
def test_the_interval_holds_the_share_of_accepted_answers_too(name):
    """Also where their threshold was chosen on the calibration rows."""
    random = np.random.default_rng(4)
    held = []
    for _ in range(50):
        calibration = draw(random, 400, ERROR_RATES[name])
        tau = thresholds.best_bacc(*calibration).tau
        is_error, u = draw(random, 1000, ERROR_RATES[name])
        found = expected_errors(u[u < tau], calibration, level=0.9)
        held.append(found.low <= is_error[u < tau].mean() <= found.high)
    # As above.
    assert np.mean(held) >= 0.8


@pytest.mark.parametrize("errors", [0, 1, 99, 100])
@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_few_errors_and_equal_u_have_a_finite_interval(errors, known):
    is_error = np.arange(100) < errors
    found = expected_errors([0.0, 0.25, 1.0], (is_error, np.full(100, known)))
    assert 0 <= found.low <= found.rate <= found.high <= 1
    assert found.calibration_errors == errors
    same = expected_errors(np.full(1000, known), (is_error, np.full(100, known)))
    assert same.low - 0.03 <= errors / 100 <= same.high + 0.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 2.0], ([0, 1], [0.1, 0.2])), "uncertainty: expected values in .0, 1., received 2"),
        (([0.5], ([0, 1], [0.1, -0.2])), "uncertainty: expected values in .0, 1., received -0.2"),
        (([0.5], [0.1, 0.2, 0.3]), "calibration: expected the pair .*received list"),
        (([], ([0, 1], [0.1, 0.2])), "uncertainty: expected"),
        (([0.5], ([], [])), "expected"),
        (([np.nan], ([0, 1], [0.1, 0.2])), "uncertainty: expected finite"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        expected_errors(*arguments)
    with pytest.raises(ValueError, match="level: expected a number between 0 and 1, received 2"):
        expected_errors([0.5], ([0, 1], [0.1, 0.2]), level=2)
