"""Our metrics against those of others: torchmetrics and torch-uncertainty.

Collected only where both are installed, in an environment of their own (the README says how).
"""

import numpy as np
import pytest

from btcp_tf import metrics

torch = pytest.importorskip("torch")
torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
torch_uncertainty = pytest.importorskip("torch_uncertainty.metrics")


def draw(seed, ties):
    """Random rows whose u says something of the errors; float32, as PyTorch compares it."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 600))
    is_error = rng.random(n) < rng.uniform(0.05, 0.6)
    is_error[:2] = [False, True]
    u = 1 / (1 + np.exp(-rng.normal(-1.0 + 1.5 * is_error, 1.0)))
    if ties:
        u = np.round(u * ties) / ties
    return is_error, u.astype(np.float32)


@pytest.mark.parametrize("ties", [0, 5, 40])
@pytest.mark.parametrize("seed", range(20))
def test_torchmetrics(seed, ties):
    is_error, u = draw(seed, ties)
    score, wrong = torch.from_numpy(u), torch.from_numpy(is_error.astype(int))
    trust = 1 - score

    def same(ours, theirs, tolerance=1e-5):
        assert ours == pytest.approx(float(theirs), abs=tolerance)

    same(metrics.auroc(is_error, u), torchmetrics.binary_auroc(score, wrong))
    same(metrics.aupr_error(is_error, u), torchmetrics.binary_average_precision(score, wrong))
    same(metrics.aupr_success(is_error, u), torchmetrics.binary_average_precision(trust, 1 - wrong))
    # Rows on the edge of a bin, which only rounded u has, go into the lower one with us.
    if not ties:
        theirs = torchmetrics.binary_calibration_error(trust, 1 - wrong, n_bins=15, norm="l1")
        same(metrics.ece(is_error, u), theirs)
    for tau in (0.3, 0.5, 0.77):
        rejected = torch.from_numpy((u >= tau).astype(int))
        recall = torchmetrics.binary_recall(rejected, wrong)
        specificity = torchmetrics.binary_specificity(rejected, wrong)
        same(metrics.fpr(is_error, u, tau=tau), 1 - recall)
        same(metrics.fnr(is_error, u, tau=tau), 1 - specificity)
        same(metrics.bacc(is_error, u, tau=tau), (recall + specificity) / 2)


@pytest.mark.parametrize("seed", range(20))
def test_torch_uncertainty(seed):
    """Without ties: theirs takes tied rows in the order in which they stand."""
    is_error, u = draw(seed, ties=0)
    n = len(u)
    # Two classes: the confidence of the predicted one has to be above 1/2 and rank as 1 - u.
    confidence = torch.from_numpy(1 - u.astype(np.float64) / 2)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    target = torch.from_numpy(is_error.astype(int))

    def theirs(metric):
        metric.update(probs, target)
        return float(metric.compute())

    # Theirs integrates over [1/n, 1] by trapezoids, ours is the mean over k of the risks.
    k = np.arange(1, n + 1)
    risk = np.cumsum(is_error[np.argsort(u, kind="stable")]) / k
    assert metrics.aurc(is_error, u) == pytest.approx(risk.mean())
    trapezoids = np.trapezoid(risk, k / n) / (1 - 1 / n)
    assert theirs(torch_uncertainty.AURC()) == pytest.approx(trapezoids, abs=1e-5)
    assert metrics.aurc(is_error, u) == pytest.approx(trapezoids, abs=2 / n)

    ours = metrics.risk_at_coverage(is_error, u, coverage=0.8)
    assert ours == pytest.approx(theirs(torch_uncertainty.RiskAt80Cov()), abs=1e-5)
    ours = metrics.coverage_at_risk(is_error, u, risk=0.05)
    found = theirs(torch_uncertainty.CovAt5Risk())
    assert ours == pytest.approx(0.0 if np.isnan(found) else found, abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_torch_uncertainty_fpr95(seed):
    is_ood, u = draw(seed, ties=0)
    metric = torch_uncertainty.FPR95(pos_label=0)
    metric.update(torch.from_numpy(1 - u), torch.from_numpy(is_ood.astype(int)))
    ours = metrics.OOD_METRICS["fpr95"](is_ood, u)
    assert ours == pytest.approx(float(metric.compute()), abs=1e-5)
