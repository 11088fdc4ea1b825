import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from btcp_tf import metrics, thresholds


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.1 + 1e-17, 0.5, 0.9, 1.0]))
    ).filter(lambda rows: len({wrong for wrong, _ in rows}) == 2)
)
def test_best_bacc_is_the_best_of_all_cuts(rows):
    is_error, u = (np.array(x) for x in zip(*rows, strict=True))
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
    assert found == thresholds.Threshold(0.25, 0.4, "best BACC")


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
