"""Whether a classifier can be right, from labeled samples."""

import numpy as np
import pytest

from btcp_tf.networks import plausibility
from btcp_tf.networks.plausibility import LEAST_GAIN


def answers(n=600, classes=10, noise=1.0, seed=0, weights=None):
    """Logits of a classifier that is mostly right, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n, p=weights)
    return rng.normal(0, noise, (n, classes)) + 3 * np.eye(classes)[labels], labels


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_the_scale_of_logits_says_nothing(scale):
    logits, labels = answers(noise=1.5)
    found = plausibility.examine(scale * logits, labels)
    assert found.problem == "" and found.order == ()
    assert found.accuracy == np.mean(logits.argmax(axis=1) == labels) > 0.6
    assert found.low > 0.3 * found.entropy


def test_the_gain_is_that_of_the_cross_entropy_by_hand():
    # A classifier with the true posterior gains the mutual information: here
    # log 2 - H(0.9) = 0.3681 nats.
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 20_000)
    seen = np.where(rng.random(20_000) < 0.9, labels, 1 - labels)
    found = plausibility.examine(np.log(9) * np.eye(2)[seen], labels)
    assert found.entropy == pytest.approx(np.log(2), abs=0.001)
    assert found.gain == pytest.approx(0.3681, abs=0.01)
    assert found.low < found.gain < found.high < found.entropy


def test_rare_classes_pass_though_the_accuracy_is_that_of_the_frequent_class():
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < 0.02).astype(int)
    # It ranks well and never answers the rare class; and one that was trained on equal shares.
    for bias in (-8.0, 0.0):
        z = rng.normal(size=4000) + 2 * labels + bias
        found = plausibility.examine(np.stack([np.zeros(4000), z], axis=1), labels)
        assert found.problem == "", bias


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_noise_and_inverted_answers_cannot_be_right(classes):
    logits, labels = answers(classes=classes, n=1000)
    noise = np.random.default_rng(5).normal(size=logits.shape) * 20
    for poor in (noise, np.zeros_like(logits), -logits if classes > 2 else noise):
        found = plausibility.examine(poor, labels)
        assert "not clearly lower than" in found.problem
        assert found.low <= LEAST_GAIN * found.entropy


@pytest.mark.parametrize("shift", [1, -1, 4])
def test_a_shift_of_the_class_order_is_named(shift):
    logits, labels = answers()
    names = [f"class {c}" for c in range(10)]
    found = plausibility.examine(np.roll(logits, shift, axis=1), labels, names)
    assert found.order == tuple((np.arange(10) + shift) % 10)
    assert f"shifted by {shift:+d}: its answer {shift % 10} is class 0" in found.problem
    assert found.accuracy < 0.2


def test_two_classes_in_the_wrong_order_are_named():
    logits, labels = answers(classes=2, n=200)
    assert "the two are exchanged" in plausibility.examine(logits[:, ::-1], labels).problem
    logits, labels = answers(n=1000)
    swapped = logits[:, [0, 1, 2, 7, 4, 5, 6, 3, 8, 9]]
    found = plausibility.examine(swapped, labels, list("abcdefghij"))
    # It knows far more than the frequencies, and is wrong all the same.
    assert found.low > 0.2 * found.entropy
    assert found.problem.endswith("its answer 7 is d, 3 is h")
    # One class that is mostly taken for another is no other order.
    taken = logits.copy()
    taken[labels == 3, 7] += 5
    assert plausibility.examine(taken, labels).problem == ""


@pytest.mark.parametrize("labels", [[0, 1] * 3, [1] * 50])
def test_nothing_is_said_of_few_samples_or_of_one_class(labels):
    found = plausibility.examine(np.zeros((len(labels), 3)), labels)
    assert found.problem == "" and np.isnan(found.gain)


def test_clearly_better_answers_leave_less_than_half_of_the_errors():
    before = np.arange(100) >= 40
    assert plausibility.clearly_better(np.arange(100) >= 10, before)
    assert not plausibility.clearly_better(np.arange(100) >= 25, before)
    assert not plausibility.clearly_better(before, before)
    # Four errors fewer of five may be chance.
    assert not plausibility.clearly_better(np.arange(100) >= 1, np.arange(100) >= 5)


@pytest.mark.parametrize("seed", range(5))
def test_too_few_samples_or_errors_do_not_refuse_what_is_right(seed):
    rng = np.random.default_rng(seed)
    # All right, with two of sixty in the rare class.
    labels = np.arange(60) % 30 == 0
    logits = np.stack([rng.normal(2, 1, 60), rng.normal(-2, 1, 60)], axis=1)
    logits[labels] = logits[labels][:, ::-1]
    assert plausibility.examine(logits, labels.astype(int)).problem == ""
    # A few answers that explode say nothing of the others.
    labels = rng.integers(0, 10, 300)
    logits = rng.normal(0, 1, (300, 10)) + 4 * np.eye(10)[labels]
    logits[:2] *= 1000
    assert plausibility.examine(logits, labels).problem == ""
    # An untrained network is refused all the same.
    assert plausibility.examine(rng.normal(0, 1, (300, 10)), labels).problem
