import dataclasses

import numpy as np
import pytest
from scipy import optimize, special
from sklearn.linear_model import LogisticRegression

from btcp_tf import metrics
from btcp_tf.methods import corrections, residual_choice, residual_fit
from btcp_tf.methods.nesting import Nested
from btcp_tf.methods.residual_fit import HeldOut, Seen
from btcp_tf.methods.stacking import Samples

N, CLASSES = 900, 4


def held_out(seed: int, corrupted: float = 0.0, n: int = N) -> tuple[Seen, np.ndarray]:
    """Answers to n inputs, of which those of class 3 are wrong more often than they look. Some
    inputs are corrupted: then a feature says so, and class 0 is predicted far too often, by answers
    that are sure."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, n)
    answer = np.where((labels == 0) & (random.random(n) < 0.5), 3, labels)
    logits = 3.0 * np.eye(CLASSES)[answer] + random.normal(size=(n, CLASSES))
    is_corrupted = random.random(n) < corrupted
    lost = is_corrupted & (random.random(n) < 0.5)
    logits[lost] = [4.0, 0.0, 0.0, 0.0] + random.normal(size=(lost.sum(), CLASSES))
    features = random.normal(size=(n, 3))
    features[:, 0] += 4 * is_corrupted
    return Seen(features.astype(np.float32), logits.astype(np.float32)), labels


def with_copies(seed: int = 0) -> HeldOut:
    seen, labels = held_out(seed)
    copy, _ = held_out(seed, corrupted=1.0)
    assert (held_out(seed)[1] == labels).all()
    return HeldOut(seen, labels, copies=(copy,))


def test_a_correction_is_what_its_formula_says():
    """A gate by scikit-learn, and of each kind of copies a regression by a general minimizer."""
    random = np.random.default_rng(0)
    n, rows = 300, 600
    kinds = np.r_[np.zeros(n, int), 1 + np.arange(n) % 2]
    z = random.normal(size=(rows, 1)) + 2 * (kinds == 2)[:, None]
    evidence, features = random.normal(size=(rows, 2)), random.normal(size=(rows, 2))
    features[:, 0] += 10 * (kinds == 1)
    predicted = random.integers(0, CLASSES, rows)
    chance = special.expit(z[:, 0] + evidence[:, 0] * (kinds == 1) + predicted * (kinds == 2) - 2)
    wrong = random.random(rows) < chance
    samples = Samples(
        wrong,
        z,
        {"answer": evidence},
        np.zeros(n, int),
        None,
        predicted=predicted,
        classes=CLASSES,
        kinds=kinds,
        features=features,
    )
    x, before = np.hstack([z, evidence]), 0.7 * z[:, 0] - 1.0
    correction = corrections.learn(samples, x, before, seed=0)

    read = np.hstack([x, features])
    mean, scale = read[:n].mean(axis=0), read[:n].std(axis=0)
    near = np.clip((read - mean) / scale, -6, 6)
    near = np.hstack([near, near**2])
    gate = LogisticRegression(C=0.1, max_iter=300).fit(near, kinds)
    # As if ten times as many inputs were like the samples as like the copies.
    shares = gate.predict_proba(near) * [10.0, 1.0, 1.0]
    shares /= shares.sum(axis=1, keepdims=True)
    added = []
    for kind in (1, 2):
        own = kinds == kind
        centered = (x - x[own].mean(axis=0)) / x[own].std(axis=0)
        hot = predicted[:, None] == np.arange(CLASSES)

        def logit(weights, centered=centered, hot=hot):
            return centered @ weights[:3] + hot @ weights[3:-1] + weights[-1]

        def loss(weights, own=own, logit=logit):
            total = (before + logit(weights))[own]
            likelihood = np.logaddexp(0.0, total).sum() - total[wrong[own]].sum()
            return likelihood + 0.5 * np.square(weights[:-1]).sum()

        added.append(logit(optimize.minimize(loss, np.zeros(4 + CLASSES), tol=1e-9).x))
    wanted = (shares[:, 1:] * np.stack(added, axis=1)).sum(axis=1)
    np.testing.assert_allclose(correction.of(x, samples), wanted, atol=2e-3)
    # What looks like no copy gets nothing.
    sure = shares[:, 0] > 0.99
    assert sure.any() and np.abs(wanted[sure]).max() < 0.1


def test_a_corrupted_input_gets_what_copies_taught_and_others_keep_their_u():
    own = with_copies()
    plain = residual_fit.fit_residual(dataclasses.replace(own, copies=()))
    taught = residual_fit.fit_residual(own)
    assert taught.fit.corrected and not plain.fit.corrected
    assert list(taught.layers) == [*plain.layers, "copies"]
    assert plain.weights.h.tolist() == taught.weights.h[:-1].tolist()
    for corrupted in (0.0, 1.0):
        seen, labels = held_out(7, corrupted, 4000)
        wrong = seen.logits.argmax(axis=1) != labels
        u = {
            name: residual_fit.score_residual(one.layers, one.weights, seen)
            for name, one in {"plain": plain, "taught": taught}.items()
        }
        of = {name: metrics.aurc(wrong, values) for name, values in u.items()}
        if corrupted:
            assert of["taught"] < 0.8 * of["plain"]
            # What the fit says of copies holds for others.
            told, mcp = taught.fit.on_copies, special.softmax(seen.logits, axis=1).max(axis=1)
            assert told["with"] == pytest.approx(of["taught"], rel=0.2)
            assert told["without"] == pytest.approx(of["plain"], rel=0.2)
            assert told["mcp"] == pytest.approx(metrics.aurc(wrong, -mcp), rel=0.2)
            assert told["with"] < 0.85 * told["without"] and not plain.fit.on_copies
            said = f"on copies AURC x 1000 is {1000 * told['with']:.1f} with the correction, "
            assert said in taught.fit.words and "on copies" not in plain.fit.words
        else:
            assert of["taught"] < 1.02 * of["plain"]
            # The mean u stays what it was.
            assert abs(u["taught"].mean() - u["plain"].mean()) < 0.01


def test_the_parts_of_u_add_up_with_what_copies_taught():
    fit, layers, weights, _ = residual_fit.fit_residual(with_copies())
    seen, _ = held_out(8, 0.5, 200)
    names, parts = residual_fit.contributions(layers, weights, seen, fit.baseline)
    u = residual_fit.score_residual(layers, weights, seen)
    assert names[-1] == "copies"
    mean = weights.b + sum(fit.baseline.values())
    np.testing.assert_allclose(parts.sum(axis=1) + mean, special.logit(u), atol=1e-4)


def test_the_layer_computes_the_correction():
    own = with_copies()
    samples = residual_fit._samples([own], [{"answer": _answer()}], None, True, 256)
    found = residual_choice.choose(samples, 0)
    assert found.correction is not None
    fit, layers, weights, _ = residual_fit.fit_residual(own)
    x = np.hstack([samples.z, samples.evidence["answer"]])
    seen = Seen(
        *(np.concatenate(pair) for pair in zip(own.seen[:2], own.copies[0][:2], strict=True))
    )
    _, columns = residual_fit._compute(layers, seen, 256)
    wanted = found.correction.of(x, samples)
    np.testing.assert_allclose(columns["copies"][:, 0], wanted, atol=1e-3)


def _answer():
    from btcp_tf.networks.evidence_layers import AnswerEvidence

    return AnswerEvidence(classes=False)


def test_copies_that_cost_most_of_the_gain_are_not_used():
    own = with_copies()
    samples = residual_fit._samples([own], [{"answer": _answer()}], None, True, 256)
    read = {"answer": samples.evidence["answer"]}
    wrong, mcp = samples.is_error, samples.mcp
    better = np.where(wrong, 0.6 + 0.4 * mcp, 0.6 * mcp)
    for kept, used in ((0.9, True), (0.1, False), (-1.0, False)):
        # Between them by so much, where 1 is all of the gain.
        corrected = kept * better + (1 - kept) * mcp
        gain = metrics.aurc(wrong, mcp) - metrics.aurc(wrong, better)
        left = metrics.aurc(wrong, mcp) - metrics.aurc(wrong, corrected)
        assert (left >= 0.75 * gain) == used
        nested = Nested(better, corrected)
        found = residual_choice.conclude(samples, nested, read, 1.0, 0)
        assert found.fit.corrected == (found.correction is not None) == used
        assert found.u.tolist() == (corrected if used else better).tolist()
        assert "and 1 copy of each" in found.fit.words
        assert ("less than 75% of the gain was left" in found.fit.words) != used


def test_a_kind_without_errors_adds_nothing():
    samples = Samples(
        np.r_[np.arange(100) % 4 == 0, np.zeros(100, bool)],
        np.random.default_rng(0).normal(size=(200, 1)),
        {},
        np.zeros(100, int),
        None,
    )
    correction = corrections.learn(samples, samples.z, samples.z[:, 0], 0)
    assert correction.of(samples.z, samples).tolist() == [0.0] * 200


def test_kinds_of_several_classifiers_stand_in_the_order_of_their_answers():
    seen, labels = held_out(0, n=30)
    ones = [HeldOut(seen, labels, copies=(seen,), kinds=(np.full(30, kind),)) for kind in (2, 5)]
    samples = residual_fit._samples(ones, [{"answer": _answer()}] * 2, None, True, 256)
    assert samples.kind.tolist() == [0] * 60 + [2] * 30 + [5] * 30 == samples.kinds.tolist()
    assert samples.features is None
    part = samples.take(np.arange(20, 40))
    assert part.kind.tolist() == [0] * 20 + [2] * 10 + [5] * 10 and part.originals().copies == 0


@pytest.mark.parametrize("versions", [1, 3])
def test_each_version_is_a_kind_unless_they_are_told(versions):
    seen, labels = held_out(0, n=80)
    own = HeldOut(seen, labels, copies=(seen,) * versions)
    samples = residual_fit._samples([own], [{"answer": _answer()}], None, True, 256)
    assert samples.kind.tolist() == np.repeat(np.arange(versions + 1), 80).tolist()
    assert len(samples.features) == (versions + 1) * 80


def test_a_kind_that_is_missing_among_the_copies_is_never_seen(monkeypatch):
    random = np.random.default_rng(0)
    kinds = np.r_[np.zeros(100, int), np.repeat([1, 3], 50)]
    z = random.normal(size=(200, 1)) + 5 * (kinds == 3)[:, None]
    wrong = random.random(200) < 0.3
    samples = Samples(wrong, z, {}, np.zeros(100, int), None, kinds=kinds)
    for most in (20_000, 60):
        monkeypatch.setattr(corrections, "_MOST", most)
        correction = corrections.learn(samples, z, z[:, 0], 0)
        shares = correction.gate.of(z)
        assert shares[:, 2].tolist() == [0.0] * 200
        assert shares[kinds == 3, 3].mean() > 0.5 > shares[kinds == 0, 3].mean()
        assert np.isfinite(correction.of(z, samples)).all()
