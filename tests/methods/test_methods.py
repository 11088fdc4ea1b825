import dataclasses
import warnings

import numpy as np
import pytest
from scipy import special

from btcp_tf import metrics
from btcp_tf.methods import controls, residual_scores, rivals
from btcp_tf.methods import features as features_
from btcp_tf.methods.features import _dense, _nearest
from btcp_tf.methods.outputs import Outputs, Reference
from btcp_tf.methods.registry import METHODS
from btcp_tf.networks.evidence_arrays import odds_against
from btcp_tf.networks.mcp import mcp_logit, mcp_of

pytestmark = pytest.mark.usefixtures("quick_heads")

CLASSES = 3
CENTERS = np.array([[4.0, 0, 0, 0, 0, 0], [0, 4, 0, 0, 0, 0], [0, 0, 4, 0, 0, 0]])
BIAS = np.array([0.1, -0.2, 0.3])


def outputs_of(features, labels=None):
    """A classifier whose logits are distances to the centers, as those of two Gaussians are, and a
    look at the features without the first of them."""
    logits = (features @ CENTERS.T / 4 + BIAS).astype(np.float32)
    probs = special.softmax(logits, axis=1)
    look = features[:, 1:] @ CENTERS[:, 1:].T / 4
    return Outputs(
        features.astype(np.float32),
        logits,
        probs,
        labels,
        dict.fromkeys(("dropout", "few_passes"), probs)
        | dict.fromkeys(("ensemble", "few_members"), 0.5 * probs + 0.5 / CLASSES),
        odds=odds_against(logits, look)[:, None],
    )


def draw(n, seed, spread=1.5):
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=n)
    return outputs_of(CENTERS[labels] + spread * generator.normal(size=(n, 6)), labels)


def reference_of(train, validation=None, **settings):
    return Reference(
        train,
        validation or draw(200, seed=1),
        settings.pop("kernel", CENTERS.T / 4),
        settings.pop("bias", BIAS),
        **{"chosen": {0: 1.0}, **settings},
    )


def score(name, outputs, reference=None):
    return METHODS[name].prepare(reference or reference_of(draw(300, seed=0)))(outputs)


def from_probs(probs, labels=None, **sampled):
    """Outputs of which only the probabilities matter."""
    probs = np.asarray(probs, np.float32)
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(probs), -100)
    return Outputs(np.ones((len(probs), 2), np.float32), logits, probs, labels, sampled)


def from_features(features, predicted, classes=3, labels=None):
    """Outputs of which only the features and the answers matter."""
    probs = 0.1 * np.ones((len(features), classes)) / classes + 0.9 * np.eye(classes)[predicted]
    return Outputs(np.asarray(features, np.float64), np.log(probs), probs, labels)


def reference_in(features, labels, classes=3, **settings):
    features = np.asarray(features, np.float64)
    train = from_features(features, labels, classes, np.asarray(labels))
    return Reference(
        train, train, np.ones((features.shape[1], classes)), np.zeros(classes), **settings
    )


PREPARED = [name for name, method in METHODS.items() if method.prepare is not None]


def test_the_table_of_methods():
    assert " ".join(METHODS) == (
        "mcp mc_dropout trust_score tcp ohem thresholding btcp entropy margin max_logit energy "
        "temperature doctor relu knn mahalanobis relative_mahalanobis vim ensemble residual "
        "residual_no_index residual_looks looks_mean looks_move mc_dropout_few ensemble_few "
        "constant random mcp_cubed tcp_oracle"
    )
    trained = {name: method for name, method in METHODS.items() if method.trained}
    assert {name: method.gamma for name, method in trained.items()} == {
        "tcp": 0.0,
        "ohem": 0.0,
        "btcp": None,
    }
    assert [name for name, method in METHODS.items() if method.hard_examples] == ["ohem"]
    assert METHODS["thresholding"].column_of == "tcp"
    assert [name for name, method in METHODS.items() if method.uses_labels] == ["tcp_oracle"]
    rivals = {name: method.rival_of for name, method in METHODS.items() if method.rival_of}
    names = ("looks_mean", "looks_move", "mc_dropout_few", "ensemble_few")
    assert rivals == dict.fromkeys(names, "residual_looks")
    assert {METHODS[name].group for name in names} == {"later"}
    assert not any(METHODS[name].exported for name in names)
    assert {method.group for method in METHODS.values()} == {"paper", "later", "control"}
    assert {name for name in PREPARED if not METHODS[name].bounded} == {
        *("max_logit", "energy", "relu", "knn", "mahalanobis", "relative_mahalanobis", "vim")
    }
    assert len({method.title for method in METHODS.values()}) == len(METHODS)
    for name in PREPARED:
        assert METHODS[name].prepare.__doc__, name


@pytest.mark.parametrize("name", PREPARED)
def test_a_score_is_finite_in_range_and_a_matter_of_the_sample_alone(name):
    prepared = METHODS[name].prepare(reference_of(draw(300, seed=0), seed=3))
    test = draw(40, seed=2)
    u = prepared(test)
    assert u.shape == (40,) and u.dtype.kind == "f" and np.isfinite(u).all()
    if METHODS[name].bounded:
        assert u.min() >= 0 and u.max() <= 1
    np.testing.assert_array_equal(prepared(test), u)
    if name == "random":
        return  # It is a matter of the set.
    np.testing.assert_allclose(prepared(test[np.arange(7)]), u[:7], rtol=1e-5)


@pytest.mark.parametrize("name", sorted(set(PREPARED) - {"constant", "random"}))
def test_wrong_answers_are_less_trusted(name):
    test = draw(2000, seed=2)
    wrong = test.predicted != test.labels
    # Features that lie far out say little of errors, so no more than a better guess is asked for.
    assert metrics.auroc(wrong, score(name, test)) > 0.55


# Not relative_mahalanobis: directions in which classes do not differ cancel out of it.
@pytest.mark.parametrize("name", ["knn", "mahalanobis", "vim"])
def test_what_lies_off_the_training_features_is_less_trusted(name):
    test = draw(200, seed=2)
    off = test.features.copy()
    off[:, 3:] += 20
    np.testing.assert_allclose(outputs_of(off).logits, test.logits, rtol=1e-4, atol=1e-5)
    off_u, test_u = score(name, outputs_of(off)), score(name, test)
    assert np.quantile(off_u, 0.05) > np.quantile(test_u, 0.95)


@pytest.mark.parametrize("name", ["energy", "max_logit", "trust_score", "mcp", "entropy"])
def test_what_lies_between_the_classes_is_less_trusted(name):
    center, middle = outputs_of(CENTERS), outputs_of(np.zeros((1, 6)))
    assert score(name, middle).min() > score(name, center).max()


# What the probabilities say.

HAND = [[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [1 / 3, 1 / 3, 1 / 3]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mcp", [0.3, 0.0, 0.5, 2 / 3]),
        ("margin", [0.5, 0.0, 0.75, 1.0]),
        ("doctor", [0.46, 0.0, 0.625, 2 / 3]),
        ("entropy", [0.80181855 / np.log(3), 0.0, 1.5 * np.log(2) / np.log(3), 1.0]),
        ("mcp_cubed", [1 - 0.343, 0.0, 0.875, 26 / 27]),
        ("max_logit", [-np.log(0.7), 0.0, np.log(2), np.log(3)]),
        ("energy", [0.0, 0.0, 0.0, 0.0]),
        ("constant", [0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_by_hand(name, expected):
    np.testing.assert_allclose(score(name, from_probs(HAND)), expected, rtol=1e-6, atol=1e-6)


def test_energy_by_hand_and_without_overflow():
    logits = np.float32([[1, 2], [1000, 0], [-1000, -1000]])
    outputs = Outputs(np.ones((3, 1), np.float32), logits, special.softmax(logits, axis=1))
    expected = [-np.log(np.e + np.e**2), -1000, 1000 - np.log(2)]
    np.testing.assert_allclose(score("energy", outputs), expected, rtol=1e-12)
    np.testing.assert_array_equal(score("max_logit", outputs), [-2, -1000, 1000])


def test_sampled_methods_read_the_mean_of_the_passes():
    own, mean = HAND[1:2], [[0.5, 0.5, 0.0]]
    for name, kind in (
        ("mc_dropout", "dropout"),
        ("ensemble", "ensemble"),
        ("mc_dropout_few", "few_passes"),
        ("ensemble_few", "few_members"),
    ):
        u = score(name, from_probs(own, **{kind: np.float32(mean)}))
        np.testing.assert_allclose(u, [np.log(2) / np.log(3)])
        other = {"elsewhere": np.float32(mean)}
        with pytest.raises(ValueError, match=rf"expected sampled\['{kind}'\].*received elsewhere"):
            score(name, from_probs(own, **other))


def test_looks_without_a_fit_are_a_mean_and_a_distance_of_probabilities():
    random = np.random.default_rng(0)
    own, *looks = (3 * random.normal(size=(50, 4)).astype(np.float32) for _ in range(4))
    odds = np.stack([odds_against(own, look) for look in looks], axis=1)
    outputs = Outputs(np.ones((50, 1)), own, special.softmax(own, axis=1), odds=odds)
    # The first and the last look are those that `residual_looks` chose.
    reference = reference_of(draw(20, seed=0), chosen={0: 1.0, 2: 4.0})
    mean, move = [], []
    for row in range(50):
        place = own[row].argmax()
        of_class = []
        for answer in (own, looks[0], looks[2]):
            raised = [float(np.exp(np.float64(value))) for value in answer[row]]
            of_class.append(raised[place] / sum(raised))
        mean.append(1 - sum(of_class) / 3)
        move.append((abs(of_class[1] - of_class[0]) + abs(of_class[2] - of_class[0])) / 2)
    np.testing.assert_allclose(score("looks_mean", outputs, reference), mean, atol=1e-6)
    np.testing.assert_allclose(score("looks_move", outputs, reference), move, atol=1e-6)
    none = reference_of(draw(20, seed=0), chosen={})
    np.testing.assert_array_equal(score("looks_mean", outputs, none), mcp_of(own))
    assert not score("looks_move", outputs, none).any()
    unseen = dataclasses.replace(outputs, odds=None)
    for name in ("looks_mean", "looks_move"):
        with pytest.raises(ValueError, match=f"{name}: expected .* odds of looks, received none"):
            score(name, unseen, reference)


@pytest.mark.parametrize(
    ("looks", "cost", "passes"),
    [
        ({}, 1.0, 2),
        ({0: 0.002}, 1.002, 2),
        ({0: 0.1, 1: 0.7, 2: 0.2}, 2.0, 2),
        ({3: 1.004}, 2.004, 3),
        ({0: 1.0, 4: 4.0}, 6.0, 6),
    ],
)
def test_rivals_take_as_many_passes_as_the_looks_cost(looks, cost, passes):
    reference = reference_of(draw(20, seed=0), chosen=looks)
    assert rivals.cost_of(reference) == pytest.approx(cost)
    assert rivals.passes_of(reference) == passes


def test_rounding_does_not_leave_the_scale():
    above = np.nextafter(np.float32(1), np.float32(2))
    outputs = from_probs([[above, 0, 0], [0.33333337, 0.33333337, 0.33333337]], np.array([0, 1]))
    for name in ("mcp", "entropy", "margin", "doctor", "mcp_cubed", "tcp_oracle"):
        u = score(name, outputs)
        assert u.min() >= 0 and u.max() <= 1, name


def test_mcp_cubed_ranks_exactly_as_mcp():
    # Neighboring float32 numbers, and 1 - p of some of them ties: cubes must tie as well.
    largest = np.float32(0.3) + np.arange(64, dtype=np.float32) * np.float32(2**-25)
    largest = np.concatenate([largest, 1 - np.arange(64, dtype=np.float32) * np.float32(2**-24)])
    outputs = from_probs(np.stack([largest, *[(1 - largest) / 4] * 4], axis=1))
    mcp, cubed = score("mcp", outputs), score("mcp_cubed", outputs)
    ranks = [np.unique(u, return_inverse=True)[1] for u in (mcp, cubed)]
    np.testing.assert_array_equal(*ranks)
    assert 1 < len(np.unique(mcp)) < len(mcp)


def test_random_is_uniform_and_of_the_seed_and_the_set():
    one, other = draw(2000, 2), draw(2000, 3)
    u = score("random", one, reference_of(draw(9, 0), seed=0))
    np.testing.assert_array_equal(u, score("random", one, reference_of(draw(9, 3), seed=0)))
    assert not np.array_equal(u, score("random", one, reference_of(draw(9, 0), seed=1)))
    # With equal numbers for two sets of one size, no OOD sample would differ from a test sample.
    assert not np.array_equal(u, score("random", other, reference_of(draw(9, 0), seed=0)))
    assert np.histogram(u, bins=4, range=(0, 1))[0] == pytest.approx(500, abs=100)


def test_tcp_oracle_reads_the_labels():
    u = score("tcp_oracle", from_probs(HAND, np.array([1, 0, 2, 0])))
    np.testing.assert_allclose(u, [0.8, 0.0, 0.75, 2 / 3], rtol=1e-6)
    with pytest.raises(ValueError, match="tcp_oracle: expected outputs with labels, received none"):
        score("tcp_oracle", from_probs(HAND))


@pytest.mark.parametrize("true_t", [0.4, 1.0, 3.0])
def test_temperature_recovers_the_one_that_labels_were_drawn_with(true_t):
    generator = np.random.default_rng(0)
    logits = 4 * generator.normal(size=(20_000, 4))
    p = special.softmax(logits / true_t, axis=1)
    labels = (p.cumsum(axis=1) > generator.random((20_000, 1))).argmax(axis=1)
    outputs = Outputs(np.ones((20_000, 1)), logits, special.softmax(logits, axis=1), labels)
    reference = Reference(outputs, outputs, np.ones((1, 4)), np.zeros(4))
    u = score("temperature", outputs, reference)
    np.testing.assert_allclose(u, 1 - p.max(axis=1), atol=0.02)
    assert u.mean() == pytest.approx((labels != logits.argmax(axis=1)).mean(), abs=0.005)


def test_temperature_without_errors_still_ranks():
    outputs = from_probs([[0.99, 0.01], [0.9, 0.1], [0.8, 0.2]], np.array([0, 0, 0]))
    reference = Reference(outputs, outputs, np.ones((2, 2)), np.zeros(2))
    u = score("temperature", outputs, reference)
    assert 0 < u[0] < u[1] < u[2] < 1e-6


def test_relu_is_the_closed_form_of_a_loop():
    validation = draw(150, seed=4)
    p = validation.probs.astype(np.float64)
    wrong = validation.predicted != validation.labels
    d = np.zeros((CLASSES, CLASSES))
    for i in range(CLASSES):
        for j in range(CLASSES):
            if i != j:
                among_wrong = np.mean([row[i] * row[j] for row in p[wrong]])
                among_correct = np.mean([row[i] * row[j] for row in p[~wrong]])
                d[i, j] = max(0, 0.5 * among_wrong - 0.5 * among_correct)
    d /= np.sqrt((d**2).sum())
    test = draw(30, seed=5)
    expected = [
        sum(row[i] * d[i, j] * row[j] for i in range(CLASSES) for j in range(CLASSES))
        for row in test.probs.astype(np.float64)
    ]
    u = score("relu", test, reference_of(draw(9, 0), validation))
    np.testing.assert_allclose(u, expected, rtol=1e-6)


def test_relu_keeps_only_pairs_of_classes_that_errors_share():
    # Errors confuse 0 and 1, correct answers share a little between 1 and 2.
    validation = from_probs(
        [[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.0, 0.8, 0.2], [0.0, 0.2, 0.8]],
        np.array([1, 0, 1, 2]),
    )
    reference = Reference(validation, validation, np.ones((2, 3)), np.zeros(3))
    u = score("relu", from_probs([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]), reference)
    np.testing.assert_allclose(u, [2 * 0.25 / np.sqrt(2), 0, 0], rtol=1e-6)


@pytest.mark.parametrize("wrong", [False, True])
def test_relu_without_errors_or_without_correct_answers(wrong):
    test, validation = from_probs(HAND), from_probs(HAND[:3], np.array([0, 0, 1]))
    if wrong:
        validation = dataclasses.replace(validation, labels=np.array([1, 1, 0]))
    reference = Reference(validation, validation, np.ones((2, 3)), np.zeros(3))
    u = score("relu", test, reference)
    if wrong:
        assert np.argsort(u)[0] == 1 and np.isfinite(u).all()
    else:
        np.testing.assert_allclose(u, score("doctor", test) / np.sqrt(6), rtol=1e-6, atol=1e-7)


# Where the features lie.


def textbook_distances(queries, points):
    queries, points = np.asarray(queries, np.float64), np.asarray(points, np.float64)
    return np.sort([[np.linalg.norm(q - p) for p in points] for q in queries], axis=1)


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("k", [1, 5, 1000])
def test_nearest_is_brute_force(k, offset):
    generator = np.random.default_rng(0)
    points = (offset + generator.normal(size=(60, 4))).astype(np.float32)
    queries = (offset + generator.normal(size=(25, 4))).astype(np.float32)
    queries[::5] = points[:5]
    found = _nearest(queries, points, k)
    np.testing.assert_allclose(found, textbook_distances(queries, points)[:, :k], rtol=1e-12)
    assert (found[::5, 0] == 0).all() and (found[1::5, 0] > 0).all()


@pytest.mark.parametrize(("spread", "clusters"), [(1e-4, 1), (0.0085, 2)])
def test_a_copy_is_at_distance_zero_beside_near_ones(spread, clusters):
    # At a length of 80, float32 products alone give squared distances in steps of 1e-3 or so.
    generator = np.random.default_rng(0)
    points = (10 + spread * generator.normal(size=(200, 64))).astype(np.float32)
    points = np.vstack([points, -points][:clusters])
    assert (_nearest(points, points)[:, 0] == 0).all()


@pytest.mark.parametrize("name", ["trust_score", "knn"])
@pytest.mark.parametrize("cells", [1, 700, 5000])
def test_the_size_of_a_block_changes_nothing(name, cells, monkeypatch):
    train, test = draw(300, seed=0), draw(101, seed=2)
    whole = score(name, test, reference_of(train, alpha=0.2))
    largest = []
    einsum = np.einsum

    def watched(subscripts, *arrays):
        largest.append(arrays[0].size)
        return einsum(subscripts, *arrays)

    monkeypatch.setattr(features_, "_BLOCK_CELLS", cells)
    monkeypatch.setattr(np, "einsum", watched)
    np.testing.assert_array_equal(score(name, test, reference_of(train, alpha=0.2)), whole)
    # At least one row is taken at once, of 58 candidates at most: memory is bounded by the larger.
    assert max(largest) <= max(cells, 58 * 6)


def textbook_trust(features, labels, queries, predicted, alpha=0.0, neighbors=10):
    """Jiang et al., algorithms 1 and 2, in float64, sample by sample."""
    kept = {}
    for c in np.unique(labels):
        points = np.asarray(features, np.float64)[labels == c]
        radii = textbook_distances(points, points)[:, min(neighbors, len(points)) - 1]
        allowed = int(np.floor(alpha * len(points) + 1e-9))
        threshold = min(r for r in radii if sum(radii > r) <= allowed)
        kept[c] = points[radii <= threshold]
    u = []
    for query, answer in zip(np.asarray(queries, np.float64), predicted, strict=True):
        near = {c: min(np.linalg.norm(query - p) for p in points) for c, points in kept.items()}
        own = near.pop(answer, np.inf)
        other = min(near.values(), default=np.inf)
        if own == other == 0:
            u.append(0.5)
        elif np.isinf(own):
            u.append(1.0)
        elif np.isinf(other):
            u.append(0.0)
        else:
            u.append(own / (own + other))
    return np.array(u)


@pytest.mark.parametrize(("alpha", "neighbors"), [(0.0, 10), (0.1, 10), (0.29, 3), (0.9, 100)])
def test_trust_score_is_the_textbook_one(alpha, neighbors):
    train, test = draw(150, seed=0), draw(40, seed=2)
    train = dataclasses.replace(train, labels=np.where(train.labels == 1, 0, train.labels))
    # A class of one sample; class 1 has none, and is predicted all the same.
    train.labels[np.flatnonzero(train.labels == 2)[1:]] = 0
    features = test.features.copy()
    features[:10] = train.features[:10]
    test = outputs_of(features)
    expected = textbook_trust(
        train.features, train.labels, test.features, test.predicted, alpha, neighbors
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = score("trust_score", test, reference_of(train, alpha=alpha, neighbors=neighbors))
    np.testing.assert_allclose(u, expected, rtol=1e-9, atol=0)
    assert {0.0, 1.0} <= set(u) and (u[test.predicted == 1] == 1).all()


def test_trust_score_by_hand():
    reference = reference_in([[0.0], [1.0], [5.0]], [0, 0, 2])
    test = from_features([[2.0], [2.0], [1.0], [5.0], [3.0], [7.0]], [0, 2, 0, 0, 2, 1])
    # Distances to class 0: 1 1 0 4 2 6; to class 2: 3 3 4 0 2 2.
    u = score("trust_score", test, reference)
    np.testing.assert_array_equal(u, [0.25, 0.75, 0.0, 1.0, 0.5, 1.0])


def test_trust_score_of_zero_by_zero_and_of_one_class():
    test = from_features([[1.0], [4.0]], [0, 1])
    same = reference_in([[1.0], [1.0], [4.0], [4.0], [4.0]], [0, 1, 0, 1, 1])
    np.testing.assert_array_equal(score("trust_score", test, same), [0.5, 0.5])
    np.testing.assert_array_equal(
        score("trust_score", test, reference_in([[1.0], [2.0]], [0, 0])), [0.0, 1.0]
    )


def test_trust_score_leaves_out_the_sparsest_of_each_class():
    # One outlier of class 0 in the midst of class 1; ten samples, so a tenth is one of them.
    line = [[0.1 * x] for x in range(9)]
    features = [*line, [50.0], *[[50.5 + x] for (x,) in line], [90.0]]
    labels = np.repeat([0, 1], 10)
    test = from_features([[50.0]], [0])
    of = {
        alpha: score("trust_score", test, reference_in(features, labels, alpha=alpha, neighbors=3))[
            0
        ]
        for alpha in (0.0, 0.09, 0.1)
    }
    assert of[0.0] == of[0.09] == 0.0
    assert of[0.1] == pytest.approx(49.2 / (49.2 + 0.5), rel=1e-6)


def test_samples_as_sparse_as_one_that_stays_stay():
    points = np.float32([[0], [1], [2], [3]])
    # Two samples in the ball: all radii are 1. One: all are 0.
    for neighbors in (1, 2):
        assert len(_dense(points, 0.5, neighbors)) == 4
    np.testing.assert_array_equal(_dense(points, 0.5, 3), [[1], [2]])
    np.testing.assert_array_equal(_dense(points, 0.99, 3), [[1], [2]])
    squares = np.float32([[x * x] for x in range(100)])
    assert len(_dense(squares, 0.29, 2)) == 71  # 0.29 * 100 is 28.999... in floats.


def test_knn_is_brute_force_on_lengths_of_one():
    train, test = draw(120, seed=0), draw(20, seed=2)
    features = test.features.copy()
    features[0] = 0
    test = outputs_of(features)

    def unit(x):
        x = x.astype(np.float64)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)

    expected = textbook_distances(unit(test.features), unit(train.features))[:, 49]
    u = score("knn", test, reference_of(train))
    np.testing.assert_allclose(u, expected, rtol=1e-5)
    assert u[0] == pytest.approx(1)
    np.testing.assert_allclose(score("knn", outputs_of(7 * features), reference_of(train)), u)


def test_knn_of_few_samples_takes_the_farthest():
    u = score(
        "knn", from_features([[2.0, 0]], [0]), reference_in([[1, 0], [0, 3], [-4, 0]], [0] * 3)
    )
    np.testing.assert_allclose(u, [2.0])


def test_mahalanobis_is_the_closed_form():
    train, test = draw(400, seed=0), draw(30, seed=2)
    x = train.features.astype(np.float64)
    means = [x[train.labels == c].mean(axis=0) for c in range(CLASSES)]
    within = sum(
        (row - means[c])[:, None] * (row - means[c]) for row, c in zip(x, train.labels, strict=True)
    )
    precision = np.linalg.inv(within / len(x))
    total = np.linalg.inv(np.cov(x.T, bias=True))
    expected, background = [], []
    for row in test.features:
        expected.append(min((row - m) @ precision @ (row - m) for m in means))
        background.append((row - x.mean(axis=0)) @ total @ (row - x.mean(axis=0)))
    reference = reference_of(train)
    np.testing.assert_allclose(score("mahalanobis", test, reference), expected, rtol=1e-9)
    np.testing.assert_allclose(
        score("relative_mahalanobis", test, reference),
        np.subtract(expected, background),
        rtol=1e-7,
    )


def test_mahalanobis_of_known_gaussians():
    train, test = draw(20_000, seed=0, spread=1.5), draw(50, seed=2)
    squared = np.square(test.features[:, None] - CENTERS).sum(axis=2).min(axis=1)
    u = score("mahalanobis", test, reference_of(train))
    np.testing.assert_allclose(u, squared / 1.5**2, rtol=0.05)


def test_mahalanobis_survives_features_that_do_not_vary():
    train, test = draw(400, seed=0), draw(30, seed=2)

    def widened(outputs, dead):
        # A dead feature, one that is always 3 up to float32's rounding, and a copy.
        n = len(outputs.features)
        columns = (
            np.full(n, dead),
            3 + 2e-7 * (np.arange(n) % 2),
            outputs.features[:, 0],
        )
        return dataclasses.replace(outputs, features=np.column_stack([outputs.features, *columns]))

    wide = reference_of(widened(train, 0), widened(draw(9, 1), 0), kernel=np.ones((9, CLASSES)))
    for name in ("mahalanobis", "relative_mahalanobis"):
        expected = score(name, test, reference_of(train))
        np.testing.assert_allclose(score(name, widened(test, 0), wide), expected, rtol=1e-5)
        # What never varied has no scale, and adds nothing.
        np.testing.assert_allclose(score(name, widened(test, 5), wide), expected, rtol=1e-5)


def test_mahalanobis_without_any_variance():
    reference = reference_in([[1.0, 2.0], [1.0, 2.0], [3.0, 0.0]], [0, 0, 1])
    u = score("mahalanobis", from_features([[5.0, 5.0]], [0]), reference)
    np.testing.assert_array_equal(u, [0.0])


def test_vim_is_the_residual_of_an_svd_minus_energy():
    train, test = draw(400, seed=0), draw(30, seed=2)
    kernel = CENTERS.T / 4
    # With logits = features @ kernel + bias, the origin is where they are all 0.
    origin = np.linalg.lstsq(kernel.T, -BIAS, rcond=None)[0]
    np.testing.assert_allclose(origin @ kernel + BIAS, 0, atol=1e-12)
    right = np.linalg.svd(train.features - origin)[2]

    def residual(outputs):
        x = outputs.features - origin
        principal = right[:3]  # Half of 6.
        return np.linalg.norm(x - x @ principal.T @ principal, axis=1)

    alpha = train.logits.max(axis=1).mean() / residual(train).mean()
    log_sums = np.log(np.exp(test.logits.astype(np.float64)).sum(axis=1))
    u = score("vim", test, reference_of(train))
    np.testing.assert_allclose(u, alpha * residual(test) - log_sums, rtol=1e-5, atol=1e-6)


def test_vim_without_residual_is_energy():
    train, test = draw(400, seed=0), draw(30, seed=2)

    def flat(outputs):
        return dataclasses.replace(outputs, features=outputs.features * [1, 1, 1, 0, 0, 0])

    u = score("vim", flat(test), reference_of(flat(train)))
    np.testing.assert_array_equal(u, score("energy", test))


# Raw scores as u.


def test_residual_nears_the_chance_of_error_of_known_gaussians():
    # Two classes, of which one is a pair of Gaussians that a linear classifier splits wrongly.
    random = np.random.default_rng(0)
    centers = np.array([[-2.0, 0.0], [2.0, 0.0], [-4.5, 0.0]])
    classes = np.array([0, 1, 1])

    def draw_two(n):
        which = random.choice(3, n, p=[0.45, 0.45, 0.1])
        x = (centers[which] + random.normal(size=(n, 2))).astype(np.float32)
        logits = np.column_stack([-2 * x[:, 0], 2 * x[:, 0]])
        return Outputs(x, logits, special.softmax(logits, axis=1), classes[which])

    train, held_out, test = draw_two(2000), draw_two(2000), draw_two(4000)
    reference = Reference(train, held_out, np.array([[-2.0, 2.0], [0.0, 0.0]]), np.zeros(2))
    density = np.stack(
        [
            share * np.exp(-np.square(test.features - center).sum(axis=1) / 2)
            for share, center in zip((0.45, 0.45, 0.1), centers, strict=True)
        ],
        axis=1,
    )
    right = np.where(test.predicted == 0, density[:, 0], density[:, 1] + density[:, 2])
    chance = 1 - right / density.sum(axis=1)
    wrong = test.predicted != test.labels
    found, mcp = (METHODS[name].prepare(reference)(test) for name in ("residual", "mcp"))
    best, ours, theirs = (metrics.aurc(wrong, u) for u in (chance, found, mcp))
    assert ours - best < 0.15 * (theirs - best)
    assert np.abs(found - chance).mean() < 0.05 < np.abs(mcp - chance).mean()


def test_residual_without_errors_is_mcp():
    perfect = draw(200, seed=0)
    perfect = outputs_of(perfect.features, perfect.predicted)
    u = residual_scores.residual(reference_of(perfect, perfect))(draw(50, seed=2))
    np.testing.assert_allclose(u, mcp_of(draw(50, seed=2).logits), atol=1e-6)


def test_squash_by_hand():
    validation = [0.0, 1.0, 2.0, 3.0, 4.0]  # Median 2, IQR 2.
    u = controls.squash([2.0, 4.0, 0.0], validation)
    np.testing.assert_allclose(u, [0.5, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])


@pytest.mark.parametrize("validation", [[3.0], [3.0, 3.0, 3.0, 3.0, 3.0, 8.0], [3, 3 + 1e-300]])
def test_squash_survives_scores_without_spread_and_far_out(validation):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = controls.squash([-1e308, 2.5, 3.0, 3.5, 1e308], validation)
    assert u[0] == 0 and u[2] == 0.5 and u[4] == 1
    assert u[1] < 0.5 < u[3] and u[1] > 0 and u[3] < 1


def test_squash_names_the_first_bad_row():
    with pytest.raises(ValueError, match="^score: expected finite numbers, received nan in row 1"):
        controls.squash([0.0, np.nan], [0.0])
    with pytest.raises(ValueError, match=r"validation_score: expected shape \[n\], n > 0"):
        controls.squash([0.0], [])


# What goes in.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((3, 2))}, r"features: expected floats of shape \[4, > 0\], received"),
        ({"features": np.ones((4, 0))}, r"features: expected floats of shape \[4, > 0\], received"),
        ({"features": np.ones((4, 2), int)}, "features: expected floats.*received int64"),
        ({"logits": np.ones(4)}, r"logits: expected floats of shape \[> 0, > 0\], received"),
        ({"logits": np.ones((4, 1))}, "expected at least 2 classes"),
        ({"probs": np.ones((4, 2))}, r"probs: expected floats of shape \[4, 3\], received float64"),
        ({"labels": np.zeros(3, int)}, r"labels: expected integers of shape \[4\], received int64"),
        ({"labels": np.zeros(4)}, "labels: expected integers.*received float64"),
        ({"labels": np.array([0, 1, 3, 5])}, "expected classes 0 to 2, received 3 in row 2"),
        ({"labels": np.array([0, -1, 3, 5])}, "expected classes 0 to 2, received -1 in row 1"),
        ({"sampled": {"dropout": np.ones((4, 4))}}, r"sampled\['dropout'\]: expected floats"),
    ],
)
def test_outputs_fit_together(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(from_probs(HAND), **change)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["features", "logits", "probs"])
def test_outputs_name_the_first_row_that_is_not_finite(field, bad):
    values = np.ones_like(getattr(from_probs(HAND), field))
    values[2, 1] = values[3, 0] = bad
    with pytest.raises(metrics.RowError, match=f"{field}: .*finite numbers, received {bad} in row"):
        dataclasses.replace(from_probs(HAND), **{field: values})
    try:
        dataclasses.replace(from_probs(HAND), **{field: values})
    except metrics.RowError as error:
        assert error.row == 2


def test_outputs_keep_their_types():
    outputs = draw(5, seed=0)
    assert {outputs.features.dtype, outputs.logits.dtype, outputs.probs.dtype} == {
        np.dtype(np.float32)
    }
    small = dataclasses.replace(outputs, labels=outputs.labels.astype(np.uint8))
    assert small.labels.dtype == np.int64
    np.testing.assert_array_equal(outputs.predicted, outputs.probs.argmax(axis=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": from_probs(HAND)}, "train: expected outputs with labels, received none"),
        ({"validation": from_probs(HAND)}, "validation: expected outputs with labels"),
        ({"validation": draw(5, 0)}, "expected 2 features and 3 classes as in train, received 6"),
        ({"kernel": np.ones((3, 3))}, r"kernel: expected floats of shape \[2, 3\]"),
        ({"bias": np.ones(2)}, r"bias: expected floats of shape \[3\], received"),
        (
            {"bias": np.array([0, np.nan, 0])},
            "bias: expected finite numbers, received nan in row 1",
        ),
        ({"alpha": 1.0}, r"alpha: expected a number in \[0, 1\), received 1.0"),
        ({"neighbors": 0}, "neighbors: expected at least 1, received 0"),
    ],
)
def test_a_reference_fits_together(change, message):
    labeled = from_probs(HAND, np.array([0, 0, 1, 2]))
    reference = Reference(labeled, labeled, np.ones((2, 3)), np.zeros(3))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(reference, **change)


def test_residual_with_and_without_an_index_train_one_head(monkeypatch):
    from btcp_tf.methods import second_head

    trained = []
    train_head = second_head.train_head
    monkeypatch.setattr(second_head, "train_head", lambda *a: trained.append(a) or train_head(*a))
    reference = reference_of(draw(300, 0), draw(200, 1))
    for name in ("residual", "residual_no_index"):
        METHODS[name].prepare(reference)
    assert len(trained) == 1


@pytest.mark.parametrize("size", [1, 30, 300])
def test_mcp_holds_apart_what_single_precision_does_not(size):
    logits = np.random.default_rng(size).uniform(-size, size, (500, 5)).astype(np.float32)
    logits[::7] = logits[0]
    logits[1, :2] = logits[1].max() + 1  # Two largest ones.
    u = mcp_of(logits)
    assert u.dtype == np.float64
    ordered = np.sort(logits.astype(np.float64), axis=1)
    exact = special.expit(special.logsumexp(ordered[:, :-1], axis=1) - ordered[:, -1])
    np.testing.assert_allclose(u, exact, rtol=1e-6 * (1 + 10 * size))
    # But for what is a tie in float32 logits, too.
    assert 420 < len(np.unique(u)) <= 500 - 71
    from btcp_tf.networks.evidence_layers import McpLogit

    z = np.asarray(McpLogit()(logits))[:, 0]
    np.testing.assert_allclose(mcp_logit(logits), z, rtol=1e-5, atol=1e-6)
