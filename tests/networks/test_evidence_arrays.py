"""Evidence computed in NumPy is that of the Keras layers."""

import numpy as np
import pytest

from btcp_tf.networks import evidence_arrays
from btcp_tf.networks.evidence_layers import AnswerEvidence
from btcp_tf.networks.gate_layers import OddsAgainst


def logits(seed: int, classes: int) -> np.ndarray:
    """Of unsure and of very sure answers, one with two equal largest."""
    random = np.random.default_rng(seed)
    spread = np.array([0.1, 1.0, 10.0, 100.0])[:, None]
    rows = np.tile(spread, (25, 1)) * random.normal(size=(100, classes))
    rows[0, :2] = rows[0].max() + 1.0
    return rows.astype(np.float32)


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_arrays_are_what_the_layers_compute(classes):
    own, look = logits(0, classes), logits(1, classes)
    for with_class in (False, True):
        columns = evidence_arrays.answer_columns(own, classes=with_class)
        expected = AnswerEvidence(classes=with_class)(own).numpy()
        assert columns.dtype == expected.dtype and columns.shape == expected.shape
        assert columns == pytest.approx(expected, rel=1e-5, abs=1e-6)
    odds = evidence_arrays.odds_against(own, look)
    assert odds.dtype == np.float32 and np.abs(odds).max() == evidence_arrays.CLIPPED
    assert odds == pytest.approx(OddsAgainst()([own, look]).numpy()[:, 0], rel=1e-5, abs=1e-5)


def test_a_batch_of_no_rows_has_its_columns():
    none = np.zeros((0, 4), np.float32)
    assert evidence_arrays.answer_columns(none).shape == (0, 4 + 2 + 4)
    assert evidence_arrays.odds_against(none, none).shape == (0,)
