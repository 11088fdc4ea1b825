"""Which labels are wrong: ranking, probabilities, and what is refused."""

import numpy as np
import pytest
from scipy import special

import btcp_tf


def make_data(n=3000, classes=4, seed=0, sure=4.0):
    """True classes, and calibrated probabilities of a classifier that errs in some."""
    rng = np.random.default_rng(seed)
    probs = special.softmax(rng.normal(0, sure, (n, classes)), axis=1)
    true = (rng.random((n, 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    return true, probs, rng


def flipped(true, rng, rate, classes=4):
    wrong = rng.random(len(true)) < rate
    return np.where(wrong, (true + rng.integers(1, classes, len(true))) % classes, true), wrong


def test_probabilities_of_wrong_labels_are_right_where_noise_is_uniform():
    true, probs, rng = make_data(20_000)
    labels, wrong = flipped(true, rng, 0.08)
    found = btcp_tf.label_errors(probs, labels, out_of_fold=True)
    assert found.expected == pytest.approx(wrong.sum(), rel=0.06)
    for low, high in ((0.02, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        rows = (found.probability >= low) & (found.probability < high)
        mean, share = found.probability[rows].mean(), wrong[rows].mean()
        assert rows.sum() > 100
        assert abs(mean - share) < 4 * np.sqrt(share * (1 - share) / rows.sum()) + 0.02
    assert np.diag(found.noise) == pytest.approx(0.92, abs=0.01)


def test_the_order_is_that_of_the_probability_and_finds_most():
    true, probs, rng = make_data(sure=8.0)
    labels, wrong = flipped(true, rng, 0.05)
    found = btcp_tf.label_errors(probs, labels, out_of_fold=True)
    ordered = found.probability[found.order]
    assert (np.diff(ordered) <= 0).all() and sorted(found.order.tolist()) == list(range(3000))
    assert 0 <= ordered[-1] and ordered[0] <= 1
    first = found.order[:50]
    assert wrong[first].mean() > 0.9
    assert (found.suggested[first] == true[first]).mean() > 0.8


def test_a_pair_of_classes_that_is_mistaken_often_is_found_out():
    true, probs, rng = make_data(12_000, sure=6.0)
    labels = np.where((true == 1) & (rng.random(12_000) < 0.3), 2, true)
    found = btcp_tf.label_errors(probs, labels, out_of_fold=np.True_)
    others = np.where(np.eye(4, dtype=bool), 0, found.noise)
    assert np.unravel_index(others.argmax(), others.shape) == (1, 2)
    assert others[1, 2] > 5 * others[2, 1]


def test_logits_that_are_too_sure_are_tempered():
    true, probs, rng = make_data(8000)
    labels, wrong = flipped(true, rng, 0.05)
    sharp = special.softmax(2.5 * np.log(np.maximum(probs, 1e-30)), axis=1)
    plain = btcp_tf.label_errors(probs, labels, out_of_fold=True)
    found = btcp_tf.label_errors(sharp, labels, out_of_fold=True)
    assert found.temperature > 1.9 and plain.temperature == pytest.approx(1, abs=0.3)
    assert found.expected == pytest.approx(wrong.sum(), rel=0.25)


def test_looks_are_averaged_and_help():
    true, probs, rng = make_data(4000)
    labels, wrong = flipped(true, rng, 0.05)
    noisy = [
        special.softmax(np.log(probs) + rng.normal(0, 3, probs.shape), axis=1) for _ in range(4)
    ]
    one = btcp_tf.label_errors(noisy[0], labels, out_of_fold=True)
    all_four = btcp_tf.label_errors(noisy[0], labels, looks=noisy[1:], out_of_fold=True)
    assert wrong[all_four.order[:150]].mean() > wrong[one.order[:150]].mean() + 0.05
    mean = btcp_tf.label_errors(np.mean(noisy, axis=0), labels, out_of_fold=True)
    assert all_four.probability == pytest.approx(mean.probability)


def test_labels_without_an_error_and_extreme_answers_are_no_fault():
    labels = np.arange(300) % 3
    found = btcp_tf.label_errors(np.eye(3)[labels], labels, folds=labels % 2)
    assert np.isfinite(found.probability).all() and found.expected < 1
    # A class that nobody is labeled as.
    probs = np.full((10, 3), 1 / 3)
    found = btcp_tf.label_errors(probs, np.zeros(10, np.int64), out_of_fold=True)
    assert np.isfinite(found.probability).all() and np.isfinite(found.noise).all()


def test_single_precision_is_taken_as_it_is_and_nothing_is_changed():
    true, probs, rng = make_data(500)
    labels, _ = flipped(true, rng, 0.05)
    kept = probs.astype(np.float32)
    found = btcp_tf.label_errors(kept, labels.astype(np.uint8), out_of_fold=True)
    assert found.probability.dtype == np.float64 and found.order.dtype == np.int64
    assert (kept == probs.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"out_of_fold": False}, "folds: expected the fold of each sample.*known by heart"),
        ({"folds": [0, 0, 0]}, "folds: expected at least two folds, received one"),
        ({"folds": [0, 1]}, r"folds: expected whole numbers \[3\]"),
        ({"folds": [0.5, 1.0, 2.0]}, "folds: expected whole numbers"),
        ({"labels": [0, 1, 2]}, "labels: expected classes 0 to 1, received 2"),
        ({"labels": [1, 2, 1]}, "subtract 1 if they count from 1"),
        ({"labels": ["a", "b", "a"]}, "labels: expected integers"),
        ({"labels": [0, 1]}, r"expected shape \[2, k\]"),
        ({"probs": [[0.5, 0.6]] * 3}, "probs: expected rows that sum to 1"),
        ({"probs": [[3.0, -2.0]] * 3}, r"probs: expected numbers in \[0, 1\]"),
        ({"probs": [0.5, 0.6, 0.1]}, r"probs: expected floats \[n, k\]"),
        ({"probs": [[0, 1]] * 3}, r"probs: expected floats \[n, k\], received int64"),
        ({"probs": [[np.nan, 1.0]] * 3}, "probs: expected numbers"),
        ({"looks": [[[0.5, 0.6]] * 3]}, r"looks\[0\]: expected rows that sum to 1"),
        ({"looks": np.full((3, 2), 0.5)}, "looks: expected a list"),
        ({"looks": [np.full((3, 4), 0.25)]}, "looks: expected probabilities of the shape of probs"),
    ],
)
def test_what_is_no_evidence_is_refused(changes, match):
    values = {"probs": [[0.5, 0.5]] * 3, "labels": [0, 1, 0], "out_of_fold": True} | changes
    with pytest.raises(ValueError, match=match):
        btcp_tf.label_errors(values.pop("probs"), values.pop("labels"), **values)
