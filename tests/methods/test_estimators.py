import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, special
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from btcp_tf import metrics
from btcp_tf.methods import residual_choice, residual_fit, second_head, stacking
from btcp_tf.methods.residual_choice import MCP, Concluded, Fit
from btcp_tf.methods.residual_fit import EVIDENCE, HeldOut, Seen
from btcp_tf.methods.stacking import Samples
from btcp_tf.networks import evidence_layers
from btcp_tf.networks.evidence_layers import (
    AnswerEvidence,
    HeadEvidence,
    McpLogit,
    NeighborEvidence,
    Residual,
    View,
)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("k", [2, 5])
def test_mcp_logit_is_the_logit_of_mcp(k):
    logits = np.random.default_rng(0).normal(size=(50, k)).astype(np.float32) * 3
    u = 1 - softmax(logits.astype(np.float64)).max(axis=1)
    z = np.asarray(McpLogit()(logits))
    assert z.shape == (50, 1)
    np.testing.assert_allclose(z[:, 0], np.log(u / (1 - u)), rtol=1e-4, atol=1e-5)


def test_mcp_logit_still_ranks_where_the_softmax_is_one():
    logits = np.array([[100, 0, 0], [90, 0, 0], [100, 50, 0]], np.float32)
    z = np.asarray(McpLogit()(logits))[:, 0]
    assert np.isfinite(z).all() and z[0] < z[1] < z[2]


def test_answer_evidence():
    logits = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    probs = softmax(logits)
    ordered = np.sort(probs, axis=1)[:, ::-1]
    found = np.asarray(AnswerEvidence(top=3)(logits))
    np.testing.assert_allclose(found[:, :3], np.log(ordered[:, :3]), atol=1e-5)
    np.testing.assert_allclose(found[:, 3], ordered[:, 0] - ordered[:, 1], atol=1e-5)
    np.testing.assert_allclose(found[:, 4], -(probs * np.log(probs)).sum(axis=1), atol=1e-5)
    np.testing.assert_array_equal(found[:, 5:], np.eye(4)[probs.argmax(axis=1)])
    # Logits of any size leave it finite.
    assert np.isfinite(AnswerEvidence()(logits * 1000)).all()


def brute_force(points, labels, queries, predicted, unit, k, shares=None):
    """One query at a time, all distances."""
    shares = np.ones(len(points)) if shares is None else shares
    rows = []
    for number, query in enumerate(queries):
        squared = np.square(points.astype(np.float64) - query).sum(axis=1)
        order = np.argsort(squared, kind="stable")[:k]
        d = np.sqrt(squared[order])
        other = labels[order] != predicted[number]
        row, share = [], 0.5
        for count in sorted({min(c, k) for c in (8, 16, 32, 64)}, reverse=True):
            reach = d[count - 1] ** 2
            weights = (reach - d[:count] ** 2) / (reach + unit**2) * shares[order][:count]
            weights *= (reach / (reach + unit**2)) ** 2
            share = (weights[other[:count]].sum() + 0.05 * share) / (weights.sum() + 0.05)
            row.insert(0, share)
        d = np.log(np.hypot(d, unit))
        row += [d[place - 1] for place in sorted({1, min(10, k)})] + [d[-1]]
        same = d[~other].min() if (~other).any() else d[-1]
        rest = d[other].min() if other.any() else d[-1]
        rows.append([*row, same - rest])
    return np.array(rows)


@pytest.mark.parametrize("size", [1, 2, 7, 120])
def test_neighbor_evidence_is_brute_force(size, monkeypatch):
    monkeypatch.setattr(evidence_layers, "_BLOCK", 50)  # Several blocks, the last one short.
    random = np.random.default_rng(size)
    points = random.normal(size=(size, 6)).astype(np.float32)
    labels = random.integers(0, 3, size)
    shares = random.choice([1.0, 0.5], size)
    queries = np.r_[points[:5], random.normal(size=(30, 6))].astype(np.float32)
    logits = random.normal(size=(len(queries), 3)).astype(np.float32)
    index = NeighborEvidence(size, 6)
    index.set_points(points, labels, shares)
    found = np.asarray(index(queries, logits))
    unit, k = float(index.unit.numpy()), min(64, size)
    wanted = brute_force(points, labels, queries, logits.argmax(axis=1), unit, k, shares)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_largest_are_found_in_groups(monkeypatch):
    random = np.random.default_rng(0)
    for columns in (4 * 16 * 20, 4 * 16 * 20 + 5, 100):
        # Ties, too: then any of them.
        values = np.round(random.normal(size=(7, columns)), 2).astype(np.float32)
        largest, places = map(np.asarray, evidence_layers._largest(values, 20))
        np.testing.assert_array_equal(largest, -np.sort(-values, axis=1)[:, :20])
        np.testing.assert_array_equal(np.take_along_axis(values, places, axis=1), largest)
        assert all(len(set(row)) == 20 for row in places.tolist())
    assert evidence_layers._largest(values[:0], 20)[1].shape == (0, 20)
    # A long index, of which the second block is long enough for groups, too.
    monkeypatch.setattr(evidence_layers, "_BLOCK", 5000)
    points = random.normal(size=(10_000, 3)).astype(np.float32)
    labels, shares = random.integers(0, 3, 10_000), np.ones(10_000)
    queries, logits = points[:9] + 0.1, random.normal(size=(9, 3)).astype(np.float32)
    index = NeighborEvidence(10_000, 3)
    index.set_points(points, labels)
    unit = float(index.unit.numpy())
    wanted = brute_force(points, labels, queries, logits.argmax(axis=1), unit, 64, shares)
    np.testing.assert_allclose(np.asarray(index(queries, logits)), wanted, atol=1e-4)
    # As without the squares, which earlier files lack.
    old = NeighborEvidence.from_config(index.get_config() | {"version": 2})
    assert len(old.weights) == len(index.weights) - 1
    old.set_points(points, labels)
    np.testing.assert_allclose(
        np.asarray(old(queries, logits)), np.asarray(index(queries, logits)), atol=1e-6
    )


@pytest.mark.parametrize("axes", [0, 3])
def test_an_index_of_8_bits_is_brute_force_on_rounded_points(axes, monkeypatch, tmp_path):
    monkeypatch.setattr(evidence_layers, "_DECODED", 70)  # Several parts, the last one short.
    random = np.random.default_rng(0)
    points = (random.normal(size=(400, 6)) * [1, 2, 3, 0.1, 0, 5] + 7).astype(np.float32)
    labels, shares = random.integers(0, 3, 400), random.choice([1.0, 0.5], 400)
    queries = np.r_[points[:5], random.normal(size=(30, 6)) + 7].astype(np.float32)
    logits = random.normal(size=(len(queries), 3)).astype(np.float32)
    index, exact = (NeighborEvidence(400, 6, axes=axes, bits=bits) for bits in (8, 32))
    for layer in (index, exact):
        layer.set_points(points, labels, shares)
    assert index.points.dtype == "int8"
    # Half a level of 127 up to the largest number of each direction.
    largest = np.abs(exact.points.numpy()).max(axis=0)
    off = np.abs(index.decoded() - exact.points.numpy())
    assert (off <= largest / 254 * 1.001 + 1e-12).all() and off.max() > 0
    found = np.asarray(index(queries, logits))
    wanted = brute_force(
        index.decoded(),
        labels,
        np.asarray(index.turned(queries)),
        logits.argmax(axis=1),
        float(index.unit.numpy()),
        64,
        shares,
    )
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # The evidence hardly differs from that of the points as they are.
    off = np.abs(found - np.asarray(exact(queries, logits)))
    assert off.max() < 0.2 and off.mean() < 0.02
    rows, answers = keras.Input((6,)), keras.Input((3,))
    keras.Model([rows, answers], index(rows, answers)).save(tmp_path / "index.keras")
    again = keras.models.load_model(tmp_path / "index.keras")
    np.testing.assert_array_equal(np.asarray(again([queries, logits])), found)


def test_a_layer_of_0_1_0_keeps_its_formula():
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(80, 4)).astype(np.float32), random.integers(0, 3, 80)
    queries = random.normal(size=(20, 4)).astype(np.float32)
    logits = random.normal(size=(20, 3)).astype(np.float32)
    predicted = logits.argmax(axis=1)
    config = {"size": 80, "width": 4, "neighbors": 50, "axes": 0, "name": "neighbors"}
    index = NeighborEvidence.from_config(config)
    for weight, value in zip(index.weights, (points, labels, np.zeros(4), 0.1), strict=True):
        weight.assign(value)
    found = np.asarray(index(queries, logits))
    for row, query in enumerate(queries):
        d = np.linalg.norm(points - query, axis=1)
        order = np.argsort(d)[:50]
        other = labels[order] != predicted[row]
        np.testing.assert_allclose(found[row, :4], [other[:k].mean() for k in (5, 10, 20, 50)])
        d = np.log(d[order] + 0.1)
        wanted = [d[0], d[9], d[49], d[~other].min() - d[other].min()]
        np.testing.assert_allclose(found[row, 4:], wanted, atol=1e-4)
    head = HeadEvidence.from_config({"width": 4, "classes": 3, "hidden": 2})
    head.set_weights([random.normal(size=w.shape) for w in head.weights])
    told = np.asarray(head(queries, logits))
    # More against the predicted class than for it is another one, of which there may be several.
    assert set(told[:, 3]) == {0, 1} and (told[told[:, 0] < 0, 3] == 0).all()
    images = random.random((2, 9, 9))
    view = View()
    old = View.from_config({"name": "view"})
    np.testing.assert_array_equal(old(images), view(images)[:, :-1])
    for layer in (index, head, old):
        again = type(layer).from_config(layer.get_config())
        assert again.version == 1 and len(again.weights) == len(layer.weights)
    assert all(layer.version == 2 for layer in (view, View.from_config(view.get_config())))


def test_repeated_samples_do_not_change_the_neighbors():
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(90, 5)).astype(np.float32), random.integers(0, 3, 90)
    queries = np.r_[points[:9], random.normal(size=(30, 5))].astype(np.float32)
    logits = random.normal(size=(39, 3)).astype(np.float32)

    def read(points, labels):
        held_out = HeldOut(None, None, (Seen(points, logits), labels))
        readers = residual_fit._evidence_layers(held_out, ("answer", "neighbors"), None, 64, 0)
        return np.asarray(readers["neighbors"](queries, logits))

    plain = read(points, labels)
    rows = random.permutation(np.r_[np.arange(90), random.integers(0, 90, 200), [3] * 70])
    # As if computed in another batch.
    noisy = points[rows] * (1 + 1e-7 * random.normal(size=(len(rows), 5))).astype(np.float32)
    np.testing.assert_allclose(read(noisy, labels[rows]), plain, atol=1e-4)
    assert (read(points, (labels + 1) % 3) != plain).any()


def test_a_point_of_two_labels_is_half_of_each():
    points = np.float32([[0, 0], [0, 0], [0, 0], [-0.0, 0], [5, 0], [0, 9], [1, 1]])
    labels = np.array([1, 0, 1, 1, 2, 2, 2])
    rows, shares = evidence_layers.distinct(points, labels)
    found = {(*points[row], labels[row]): share for row, share in zip(rows, shares, strict=True)}
    once = {(5, 0, 2): 1, (0, 9, 2): 1, (1, 1, 2): 1}
    assert found == {(0, 0, 1): 0.5, (0, 0, 0): 0.5, **once}
    for n in (1, 2, 30):
        rows, shares = evidence_layers.distinct(np.ones((n, 3), np.float32), np.zeros(n, np.int64))
        assert len(rows) == 1 and shares == [1.0]


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_neighbors_are_found_far_from_the_origin(offset):
    random = np.random.default_rng(0)
    points = (np.round(random.normal(size=(300, 5)) * 64) / 64).astype(np.float32)
    labels = random.integers(0, 3, 300)
    queries = (np.round(random.normal(size=(40, 5)) * 64) / 64).astype(np.float32)
    logits = random.normal(size=(40, 3)).astype(np.float32)
    # Like a year or a price beside small numbers; all sums are exact.
    far = np.array([0, 0, offset, 0, -offset], np.float32)
    found = []
    for shift in (0 * far, far):
        index = NeighborEvidence(300, 5)
        index.set_points(points + shift, labels)
        found.append(np.asarray(index(queries + shift, logits)))
        alone = [
            np.asarray(index(query[None] + shift, z[None]))[0]
            for query, z in zip(queries, logits, strict=True)
        ]
        np.testing.assert_allclose(np.stack(alone), found[-1], atol=1e-4)
    np.testing.assert_allclose(found[1], found[0], atol=2e-3)


def test_neighbor_evidence_of_copies_is_finite():
    points = np.zeros((20, 3), np.float32)
    index = NeighborEvidence(20, 3)
    index.set_points(points, np.arange(20) % 2)
    assert np.isfinite(index(points, np.zeros((20, 2), np.float32))).all()


def slow_view(image):
    """[28, 28] → [588], one pixel at a time."""
    x = (image.astype(np.float64) - image.mean()) / image.std()
    votes = np.zeros((7, 7, 8))
    for row in range(28):
        for column in range(28):
            across = x[row, column + 1] - x[row, column - 1] if 0 < column < 27 else 0.0
            down = x[row + 1, column] - x[row - 1, column] if 0 < row < 27 else 0.0
            direction = (np.arctan2(down, across) / (2 * np.pi) * 8) % 8
            low = int(direction)
            share = direction - low
            cell = votes[row // 4, column // 4]
            cell[low % 8] += (1 - share) * np.hypot(across, down)
            cell[(low + 1) % 8] += share * np.hypot(across, down)
    normed = np.zeros_like(votes)
    for row in range(7):
        for column in range(7):
            block = votes[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
            normed[row, column] = votes[row, column] / np.sqrt((block**2).sum() + 0.4)
    coarse = [x[r : r + 2, c : c + 2].mean() for r in range(0, 28, 2) for c in range(0, 28, 2)]
    return np.concatenate([normed.ravel(), coarse])


def test_view_is_its_textbook_version():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    images[1, :, 14:] = 0
    wanted = np.stack([slow_view(image) for image in images])
    found = np.asarray(View()(images))
    np.testing.assert_allclose(found[:, :-1], wanted, atol=1e-4)
    np.testing.assert_allclose(found[:, -1], images.std(axis=(1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(View()(images), View()(images[..., None].astype(np.float32)))


def test_view_does_not_depend_on_the_scale_of_pixels_or_on_the_size_of_the_batch():
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 20, 3), np.uint8)
    found = np.asarray(View()(images))
    assert found.shape == (4, 392 + 3 * 196 + 1)
    for scale, shift in ((1 / 255.0, 0), (1 / 127.5, -1), (1e30, 0), (1e-20, 0)):
        other = np.asarray(View()(images * scale + shift))
        np.testing.assert_allclose(other[:, :-1], found[:, :-1], atol=1e-3)
        np.testing.assert_allclose(other[:, -1], found[:, -1] * scale, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(View()(images[2:3])), found[2:3], atol=1e-5)
    turned = np.asarray(View()(images[:, ::-1]))
    assert abs(turned - found).max() > 0.1


@pytest.mark.parametrize("color", [0, 77.7, -1e-3, 255, 0.1])
@pytest.mark.parametrize("shape", [(30, 9, 1), (256, 256, 3)])
def test_view_of_one_color_shows_nothing(color, shape):
    found = np.asarray(View()(np.full((2, *shape), color, np.float32)))
    assert abs(found).max() < 0.01


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((28, 28, 1), True),
        ((8, 9), True),
        ((None, None, 3), True),
        ((7, 28, 1), False),
        ((28, 28, 5), False),
        ((28, 28, None), False),
        ((28,), False),
        ((4, 28, 28, 1), False),
    ],
)
def test_what_is_an_image(shape, expected):
    assert evidence_layers.is_image(shape) is expected


def test_neighbors_along_axes_are_those_of_principal_components():
    random = np.random.default_rng(0)
    points = (random.normal(size=(200, 9)) @ random.normal(size=(9, 9))).astype(np.float32)
    points[:, 8] = 3.0  # Nothing differs there.
    labels = random.integers(0, 3, 200)
    queries = random.normal(size=(30, 9)).astype(np.float32)
    logits = random.normal(size=(30, 3)).astype(np.float32)
    index = NeighborEvidence(200, 9, axes=4)
    index.set_points(points, labels)
    spread = points.std(axis=0)
    spread = np.maximum(spread, 0.1 * np.sqrt((spread**2).mean()))
    pca = PCA(4).fit(points / spread)

    def turned(x):
        return pca.transform(x / spread) / pca.explained_variance_**0.25

    wanted = brute_force(
        turned(points), labels, turned(queries), logits.argmax(axis=1), index.unit.numpy(), 64
    )
    np.testing.assert_allclose(np.asarray(index(queries, logits)), wanted, atol=1e-2)


def test_points_that_do_not_differ_leave_neighbors_along_axes_finite():
    index = NeighborEvidence(20, 12, axes=5)
    index.set_points(np.full((20, 12), 7.0, np.float32), np.arange(20) % 2)
    found = index(np.random.default_rng(0).normal(size=(6, 12)), np.zeros((6, 2), np.float32))
    assert np.isfinite(np.asarray(found)).all()


def test_what_the_image_shows_corrects_a_classifier_that_does_not_see_it():
    random = np.random.default_rng(0)

    def held_out(n, m):
        def seen(n):
            labels = random.integers(0, 2, n)
            view = random.normal(size=(n, 6)).astype(np.float32)
            view[:, 0] += 4 * labels
            # A fifth of the answers are wrong, whatever the image shows.
            answer = np.where(random.random(n) < 0.2, 1 - labels, labels)
            logits = np.eye(2)[answer] * random.uniform(0.5, 2, (n, 1))
            features = random.normal(size=(n, 3))
            return Seen(*(x.astype(np.float32) for x in (features, logits, view))), labels

        around = seen(m)
        return HeldOut(*seen(n), around)

    own = held_out(600, 400)
    for allowed, used in (
        (("answer", "head", "neighbors"), False),
        (("answer", "image_head"), True),
        (("answer", "image_neighbors"), True),
        (EVIDENCE, True),
    ):
        fit, readers, weights, _ = residual_fit.fit_residual(own, allowed=allowed)
        assert any(name.startswith("image_") for name in fit.evidence) is used
        is_error = own.seen.logits.argmax(axis=1) != own.labels
        u = residual_fit.score_residual(readers, weights, own.seen)
        assert (metrics.auroc(is_error, u) > 0.95) is used
    blind = dataclasses.replace(own, seen=own.seen._replace(view=None))
    blind = dataclasses.replace(
        blind, reference=(own.reference[0]._replace(view=None), own.reference[1])
    )
    assert set(residual_fit._evidence_layers(blind, EVIDENCE, None, 50, 0)) == {
        "answer",
        "head",
        "neighbors",
    }


def test_head_evidence():
    random = np.random.default_rng(0)
    features = random.normal(size=(30, 6)).astype(np.float32)
    logits = random.normal(size=(30, 3)).astype(np.float32)
    head = HeadEvidence(6, 3, hidden=5)
    shapes = [(6,), (6,), (6, 5), (5,), (5, 3), (3,)]
    mean, scale, kernel1, bias1, kernel2, bias2 = values = [random.normal(size=s) for s in shapes]
    head.set_weights(values)
    hidden = np.maximum(((features - mean) * scale) @ kernel1 + bias1, 0)
    probs = softmax(hidden @ kernel2 + bias2)
    predicted = logits.argmax(axis=1)
    p = probs[np.arange(30), predicted]
    wanted = np.stack(
        [
            np.clip(np.log((1 - p) / p), -10, 10),
            1 - p,
            -(probs * np.log(probs)).sum(axis=1),
        ],
        axis=1,
    )
    np.testing.assert_allclose(np.asarray(head(features, logits)), wanted, atol=1e-4)
    assert not head.trainable_weights
    assert np.isfinite(np.asarray(head(features * 1e4, logits))).all()


def test_everything_is_float32_under_a_policy_of_half_precision():
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 4)).astype(np.float32)
    labels = random.integers(0, 3, 60)
    logits = random.normal(size=(60, 3)).astype(np.float32)
    with_policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        index = NeighborEvidence(60, 4)
        index.set_points(features, labels)
        read = [AnswerEvidence()(logits), index(features, logits)]
        read.append(second_head.train_head(features, labels, 3, seed=0)(features, logits))
        read.append(Residual(0)([McpLogit()(logits)]))
    finally:
        keras.mixed_precision.set_dtype_policy(with_policy)
    for found in read:
        assert found.dtype == "float32" and np.isfinite(np.asarray(found)).all()


def test_trained_head_knows_the_classes_and_leaves_random_numbers_alone():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    features = (random.normal(size=(600, 4)) + 3 * np.eye(3, 4)[labels]).astype(np.float32)
    keras.utils.set_random_seed(5)
    expected = keras.random.normal((3,)), np.random.normal(size=3)
    keras.utils.set_random_seed(5)
    heads = [second_head.train_head(features, labels, 3, seed=1) for _ in range(2)]
    drawn = keras.random.normal((3,)), np.random.normal(size=3)
    for one, other in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(*(head.get_weights() for head in heads), strict=True):
        np.testing.assert_array_equal(one, other)
    truth, lie = (np.eye(3, dtype=np.float32)[(labels + n) % 3] for n in (0, 1))
    assert np.asarray(heads[0](features, truth))[:, 1].mean() < 0.2
    assert np.asarray(heads[0](features, lie))[:, 1].mean() > 0.9
    # Smoothed labels: it is not sure of what it has seen.
    assert 0.01 < np.median(np.asarray(heads[0](features, truth))[:, 1])


def test_residual_is_mcp_as_it_is_made():
    logits = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    z = McpLogit()(logits)
    evidence = np.ones((9, 4), np.float32)
    for read, inputs in ((0, [z]), (4, [z, evidence]), (8, [z, evidence, evidence])):
        u = np.asarray(Residual(read)(inputs))
        np.testing.assert_allclose(u[:, 0], 1 - softmax(logits).max(axis=1), atol=1e-6)


def test_residual_adds_its_evidence():
    layer = Residual(3)
    layer.set_weights([np.array(2.0), np.array(-1.0), np.array([[1.0], [0.0], [3.0]])])
    z, first, second = np.ones((1, 1)), np.array([[5.0, 7.0]]), np.array([[0.5]])
    u = float(np.asarray(layer([z, first, second]))[0, 0])
    assert u == pytest.approx(1 / (1 + np.exp(-(2 - 1 + 5 + 1.5))))


def test_the_estimator_is_chosen_fitted_and_judged_by_hand():
    random = np.random.default_rng(0)
    n = 600
    clear, z = random.normal(size=(n, 1)), random.normal(size=(n, 1)) - 2
    is_error = random.random(n) < 1 / (1 + np.exp(-(z + 2 * clear)[:, 0]))
    x = np.hstack([z, clear])

    def fitted(train, test, strength, solver="newton-cholesky"):
        scaler = StandardScaler().fit(x[train])
        exact = 1e-9 if solver == "newton-cholesky" else 1e-4
        regression = LogisticRegression(C=strength, max_iter=1000, solver=solver, tol=exact)
        regression.fit(scaler.transform(x[train]), is_error[train])
        return regression.decision_function(scaler.transform(x[test]))

    def chosen(rows, solver="newton-cholesky"):
        tried = {}
        for strength in (0.01, 0.1, 1.0, 10.0):
            logits = np.empty(len(rows))
            folds = StratifiedKFold(5, shuffle=True, random_state=7)
            for train, test in folds.split(rows, is_error[rows]):
                logits[test] = fitted(rows[train], rows[test], strength, solver)
            tried[strength] = metrics.aurc(is_error[rows], logits)
        return min(tried, key=tried.get)

    samples = Samples(is_error, z, {"answer": clear}, np.zeros(n, np.int64), None)
    fit, (a, b, h), correction, held_out_u = residual_choice.choose(samples, 7)
    assert fit.evidence == ("answer",) and correction is None and not fit.corrected
    assert (fit.samples, fit.errors) == (n, is_error.sum())
    rows = np.arange(n)
    assert fit.strength == chosen(rows, "lbfgs")
    scale, u = fitted(rows, rows, fit.strength), np.empty(n)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=7).split(z, is_error):
        strength = chosen(train)
        new, own = (fitted(train, of, strength) for of in (test, train))
        u[test] = special.expit(stacking.on_scale(new, own, scale))
    np.testing.assert_allclose(held_out_u, u, rtol=1e-6)
    found = metrics.aurc(is_error, u) - metrics.aurc(is_error, z[:, 0])
    assert fit.difference["aurc"][0] == pytest.approx(found)
    wanted = special.expit(fitted(rows, rows, fit.strength, "lbfgs"))
    np.testing.assert_allclose(special.expit(b + x @ np.r_[a, h]), wanted, rtol=1e-6)


def test_targets_are_probabilities_and_errors_judge():
    random = np.random.default_rng(0)
    n = 500
    seen, z = random.normal(size=(n, 1)), random.normal(size=(n, 1)) - 2
    chance = 1 / (1 + np.exp(-(z + 2 * seen)[:, 0]))
    is_error = random.random(n) < chance
    every = np.zeros(n, np.int64)
    samples = Samples(is_error, z, {"answer": seen}, every, chance)
    fit, (a, b, h), *_ = residual_choice.choose(samples, 7)
    assert fit.evidence == ("answer",) and fit.errors == is_error.sum()
    assert "an ensemble's true class probabilities as targets" in fit.words
    # Cross entropy to the probabilities and an L2 penalty, minimized without scikit-learn.
    x = np.hstack([z, seen])
    x = (x - x.mean(axis=0)) / x.std(axis=0)

    def loss(weights):
        logit = x @ weights[:2] + weights[2]
        cross_entropy = np.logaddexp(0, logit) - chance * logit
        return cross_entropy.sum() + (weights[:2] ** 2).sum() / (2 * fit.strength)

    best = optimize.minimize(loss, np.zeros(3), tol=1e-10).x
    u = 1 / (1 + np.exp(-(np.hstack([z, seen]) @ np.r_[a, h] + b)))
    np.testing.assert_allclose(u, 1 / (1 + np.exp(-(x @ best[:2] + best[2]))), atol=1e-3)
    # Wrong targets do not beat MCP on right and wrong; it is calibrated by these.
    wrong, weights, *_ = residual_choice.choose(dataclasses.replace(samples, target=1 - chance), 7)
    noise = Samples(is_error, z, {"answer": random.normal(size=(n, 1))}, every, None)
    plain = residual_choice.choose(noise, 7)
    assert wrong.evidence == plain[0].evidence == ()
    assert weights[:2] == plain[1][:2]


def test_an_ensemble_says_how_probable_the_true_class_is(monkeypatch):
    random = np.random.default_rng(0)
    features, logits = random.normal(size=(40, 2)), random.normal(size=(40, 3))
    labels = random.integers(0, 3, 40)
    first, second = (softmax(random.normal(size=(40, 3))) for _ in range(2))
    seen = Seen(features, logits)
    held_out = HeldOut(seen, labels, copies=(seen,), ensemble=(first, second))
    targets = []

    def choose(samples, *_):
        targets.append(samples.target)
        return Concluded(Fit(40, 9, (), 0.0, {}, "", ""), MCP, None, np.zeros(80))

    monkeypatch.setattr(residual_choice, "choose", choose)
    residual_fit.fit_residual(held_out)
    rows = np.arange(40)
    np.testing.assert_allclose(
        targets[0], np.concatenate([1 - first[rows, labels], 1 - second[rows, labels]])
    )
    with pytest.raises(ValueError, match="ensemble: expected none beside folds"):
        residual_fit.fit_residual(held_out, [held_out])


def test_errors_of_one_classifier_alone_are_learned_from():
    random = np.random.default_rng(0)
    z, seen = random.normal(size=(400, 1)) - 2, random.normal(size=(400, 1))
    is_error = random.random(400) < 1 / (1 + np.exp(-(z + 3 * seen)[:, 0]))
    for flawless in (is_error, ~is_error):
        # The first 100 answers, all right or all wrong, are of another classifier.
        first = np.flatnonzero(~flawless)[:100]
        rest = np.setdiff1d(np.arange(400), first)
        order = np.r_[first, rest]
        classifier = np.repeat([0, 1], [100, 300])
        samples = Samples(is_error[order], z[order], {"answer": seen[order]}, classifier, None)
        fit = residual_choice.choose(samples, 0).fit
        assert fit.errors == is_error.sum()
        assert np.isfinite(fit.difference["aurc"]).all()


def test_no_more_neighbors_than_the_smallest_reference_has():
    random = np.random.default_rng(0)

    def held_out(n):
        features, logits = random.normal(size=(60, 2)), random.normal(size=(60, 3))
        labels = random.integers(0, 3, 60)
        points = random.normal(size=(n, 2)).astype(np.float32)
        around = Seen(points, random.normal(size=(n, 3))), random.integers(0, 3, n)
        seen = Seen(features.astype(np.float32), logits)
        one = HeldOut(seen, labels, around)
        # As if trained: nothing to learn from.
        one._heads["head", 0] = HeadEvidence(2, 3, hidden=2)
        return one

    read = []
    choose = residual_choice.choose

    def watched(samples, *others):
        read.append(samples.evidence["neighbors"])
        return choose(samples, *others)

    for sizes in ((90, 7), (90, 30, 80)):
        own, *folds = map(held_out, sizes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(residual_choice, "choose", watched)
            residual_fit.fit_residual(own, folds)
        index = NeighborEvidence(90, 2, min(sizes))
        index.set_points(own.reference[0].features, own.reference[1])
        found = index(own.seen.features, own.seen.logits)
        np.testing.assert_allclose(read[-1][:60], found, atol=1e-6)
        again = NeighborEvidence.from_config(index.get_config())
        assert again.neighbors == min(sizes)


def test_copies_of_some_classifiers_only_are_refused():
    random = np.random.default_rng(0)
    features, logits = random.normal(size=(40, 2)), random.normal(size=(40, 3))
    labels = random.integers(0, 3, 40)
    seen = Seen(features, logits)
    plain = HeldOut(seen, labels)
    copied = HeldOut(seen, labels, copies=(seen,))
    with pytest.raises(ValueError, match="copies: expected as many .*, received 0, 1"):
        residual_fit.fit_residual(plain, [copied])


def test_layers_survive_a_file(tmp_path):
    random = np.random.default_rng(0)
    index = NeighborEvidence(30, 4)
    index.set_points(random.normal(size=(30, 4)), random.integers(0, 3, 30))
    by_view = NeighborEvidence(30, 588, axes=5, faint=0.1)
    by_view.set_points(random.normal(size=(30, 588)).astype("f4"), random.integers(0, 3, 30))
    features, logits, images = keras.Input((4,)), keras.Input((3,)), keras.Input((9, 12, 1))
    head = HeadEvidence(4, 3, hidden=5)
    head.set_weights([random.normal(size=w.shape) for w in head.weights])
    read = [AnswerEvidence(2, False)(logits), index(features, logits)]
    read.append(head(features, logits))
    read.append(by_view(View()(images), logits))
    u = Residual(sum(x.shape[1] for x in read))([McpLogit()(logits), *read])
    model = keras.Model([features, logits, images], u)
    model.save(tmp_path / "m.keras")
    x = [random.normal(size=(5, *shape)).astype("f4") for shape in ((4,), (3,), (9, 12, 1))]
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(x), model(x))


def images_and_answers(n, seed):
    """Pictures of a bar in one of three places, and a classifier that confuses two of them."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, n)
    images = 0.2 * random.random((n, 12, 12, 1))
    for image, label in zip(images, labels, strict=True):
        image[:, 2 + 3 * label : 4 + 3 * label] += random.uniform(0.05, 0.6)
    # Rare ones are blank, and some are there twice.
    images[::50] = 0.3
    images[1::50] = images[2::50]
    return images.astype(np.float32), labels


def seen_of(images, kernel):
    features = images[:, ::3, ::3].reshape(len(images), -1)
    return Seen(features, features @ kernel, np.asarray(View()(images)))


def test_no_jump_between_inputs_but_where_the_class_changes(quick_heads):
    kernel = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    (x, y), (images, labels) = images_and_answers(500, 1), images_and_answers(300, 2)
    own = HeldOut(seen_of(x, kernel), y, (seen_of(images, kernel), labels))
    readers = residual_fit._evidence_layers(own, EVIDENCE, None, 64, 0)
    assert list(readers) == list(EVIDENCE)
    z, evidence = residual_fit._compute(readers, own.seen, 512)
    spreads = {name: columns.std(axis=0) for name, columns in evidence.items()}

    def at(t, starts, ends):
        t = t[:, None, None, None]
        seen = seen_of((starts * (1 - t) + ends * t).astype(np.float32), kernel)
        _, evidence = residual_fit._compute(readers, seen, 512)
        # In units of what the evidence differs by: a linear model has such slopes.
        values = np.hstack([evidence[name] / (spreads[name] + 1e-3) for name in evidence])
        return values, seen.logits.argmax(axis=1)

    blank = np.zeros_like(x[:1])
    starts = np.concatenate([x[:6], x[:6], x[1:2], x[3:5], blank, blank + 0.3])
    crops = np.pad(x[3:5, 1:, 1:], [(0, 0), (0, 1), (0, 1), (0, 0)])
    ends = np.concatenate([x[6:12], images[:6], x[2:3], crops, x[7:8], x[8:9]])
    t = np.tile(np.linspace(0, 1, 33), len(starts))
    line = np.repeat(np.arange(len(starts)), 33)
    values, predicted = at(t, starts[line], ends[line])
    whole = [array.reshape(len(starts), 33, *array.shape[1:]) for array in (values, predicted, t)]
    change = np.abs(np.diff(whole[0], axis=1))
    change[np.diff(whole[1], axis=1) != 0] = 0
    # Of each line and column the part of the largest change, halved to a millionth of the line.
    part = change.argmax(axis=1)
    line, column = np.indices(part.shape)
    line, column, part = line.ravel(), column.ravel(), part.ravel()
    ends_t = [whole[2][line, part + end] for end in (0, 1)]
    ends_v = [whole[0][line, part + end, column] for end in (0, 1)]
    for _ in range(15):
        middle = sum(ends_t) / 2
        found, predicted = at(middle, starts[line], ends[line])
        found = found[np.arange(len(line)), column]
        first = np.abs(found - ends_v[0]) > np.abs(found - ends_v[1])
        for end, keep in ((0, first), (1, ~first)):
            ends_t[end] = np.where(keep, ends_t[end], middle)
            ends_v[end] = np.where(keep, ends_v[end], found)
    (_, before), (_, after) = (at(t, starts[line], ends[line]) for t in ends_t)
    left = np.where(before == after, np.abs(ends_v[0] - ends_v[1]), 0)
    assert (before == after).mean() > 0.9
    assert left.max() < 2e-3


def test_rounding_does_not_move_a_sample_that_is_in_the_index():
    random = np.random.default_rng(0)
    points = random.normal(size=(300, 8)).astype(np.float32)
    labels, logits = random.integers(0, 3, 300), random.normal(size=(300, 3)).astype(np.float32)
    # A dense cluster far from the mean, where the ranks' rounding is larger than the distances.
    points[:100] = 20 + 1e-2 * points[:100]
    index = NeighborEvidence(300, 8)
    index.set_points(points, labels)
    found = np.asarray(index(points, logits))
    moved = points * (1 + 2e-7 * random.choice([-1, 1], points.shape)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(index(moved, logits)), found, atol=1e-3)
    alone = [np.asarray(index(points[i : i + 1], logits[i : i + 1]))[0] for i in range(0, 300, 20)]
    np.testing.assert_allclose(alone, found[::20], atol=1e-4)


def test_hardly_any_contrast_shows_hardly_anything():
    images, _ = images_and_answers(40, 0)
    view = np.asarray(View()(images))
    faint = evidence_layers.faint_contrast("image_head", Seen(None, None, view))
    assert faint == pytest.approx(0.05 * np.median(images.std(axis=(1, 2, 3))), rel=1e-4)
    assert evidence_layers.faint_contrast("head", Seen(None, None, view)) == 0
    shown = np.asarray(evidence_layers.faded(view, faint))
    np.testing.assert_allclose(shown[3], view[3, :-1], atol=2e-2)
    dots = np.zeros((4, 12, 12, 1), np.float32)
    dots[:, 5, 5] = np.array([0, 1e-12, 1e-6, 1.0])[:, None]
    shown = np.asarray(evidence_layers.faded(np.asarray(View()(dots)), faint))
    largest = np.abs(shown).max(axis=1)
    assert largest[0] == 0 and largest[1] < 1e-6 and largest[2] < 0.01 and largest[3] > 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_feature_that_is_always_the_same_is_harmless(dtype, quick_heads):
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 400)
    features = np.zeros((400, 6), dtype)
    features[:, :3] = 300 * np.eye(3)[labels] + random.normal(size=(400, 3)) * 150
    features[:, 4] = 60000
    logits = (features[:, [1, 0, 2]] / 100).astype(dtype)
    seen = Seen(features, logits)
    own = HeldOut(Seen(features[:200], logits[:200]), labels[:200], (seen, labels))
    fit, readers, weights, _ = residual_fit.fit_residual(own)
    assert fit.evidence
    assert np.isfinite(residual_fit.score_residual(readers, weights, seen)).all()
    # Another value where the reference has but one says nothing.
    other = features.copy()
    other[:, 3] = 0.01
    found, wanted = (
        np.asarray(readers_of(readers, own)["head"](x, logits)) for x in (other, features)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.isfinite(evidence_layers.standard_scale(np.zeros(4, np.float32))).all()


def readers_of(readers, held_out):
    return readers | {"head": held_out.head("head", 0)}


def test_contributions_add_up_to_the_logit():
    random = np.random.default_rng(0)
    features = random.normal(size=(800, 3)).astype(np.float32)
    labels = random.integers(0, 3, 800)
    logits = 2 * np.eye(3)[labels] + random.normal(size=(800, 3)) * 2
    features[:, 0] += 2 * (logits.argmax(axis=1) != labels)
    seen = Seen(features, logits.astype(np.float32))
    first, rest = (
        (seen.features[rows], seen.logits[rows]) for rows in (slice(400), slice(400, 800))
    )
    own = HeldOut(Seen(*first), labels[:400], (Seen(*rest), labels[400:]))
    for allowed in (("answer", "neighbors"), ("answer",)):
        fit, readers, weights, held_out_u = residual_fit.fit_residual(own, allowed=allowed)
        assert json.loads(json.dumps(dataclasses.asdict(fit)))["baseline"] == fit.baseline
        names, parts = residual_fit.contributions(readers, weights, own.seen, fit.baseline)
        assert names == ("mcp", *fit.evidence) == tuple(fit.baseline)
        u = residual_fit.score_residual(readers, weights, own.seen)
        logit = np.log(u / (1 - u))
        np.testing.assert_allclose(parts.sum(axis=1), logit - logit.mean(), atol=1e-5)
        np.testing.assert_allclose(parts.mean(axis=0), 0, atol=1e-6)
        others, of_others = residual_fit.contributions(
            readers, weights, own.reference[0], fit.baseline
        )
        z = np.asarray(McpLogit()(own.reference[0].logits))[:, 0]
        assert others == names
        np.testing.assert_allclose(of_others[:, 0], weights[0] * z - fit.baseline["mcp"], atol=1e-5)
        assert held_out_u.shape == (400,)
        assert not fit.evidence or np.abs(held_out_u - u).max() > 1e-4
    assert ("neighbors" in names) is False


def test_held_out_u_is_that_of_the_classifiers_own_samples():
    random = np.random.default_rng(0)

    def held_out(n):
        labels = random.integers(0, 3, n)
        logits = 2 * np.eye(3)[labels] + random.normal(size=(n, 3)) * 2
        logits[:, 0] += 2  # Answers of the first class are wrong more often.
        return HeldOut(Seen(np.zeros((n, 1), np.float32), logits.astype(np.float32)), labels)

    own, other = held_out(1500), held_out(2000)
    fit, readers, weights, u = residual_fit.fit_residual(own, [other])
    assert fit.evidence == ("answer",) and u.shape == (1500,)
    # With two classifiers, what is learned from one is tried on the other.
    x = [
        np.hstack([np.asarray(layer(one.seen.logits)) for layer in (McpLogit(), readers["answer"])])
        for one in (own, other)
    ]
    is_error = [one.seen.logits.argmax(axis=1) != one.labels for one in (own, other)]

    def columns(read):
        return stacking.Columns(read[:, :-3], read[:, -3:].argmax(axis=1), 3)

    def fitted(train, wrong, test, strength):
        return stacking.fitted(columns(train), wrong, strength).of(columns(test))

    both = np.concatenate(x)
    scale = fitted(both, np.concatenate(is_error), both, fit.strength)
    logit = special.logit(u)
    # On the scale of the estimator that learns from both, with the penalty that the other chose.
    distances = [
        np.abs(
            stacking.on_scale(*(fitted(x[1], is_error[1], test, strength) for test in x), scale)
            - logit
        ).max()
        for strength in (0.01, 0.1, 1.0, 10.0)
    ]
    assert min(distances) < 1e-3


def test_training_many_heads_makes_tensorflow_warn_of_nothing(monkeypatch, caplog):
    """It warns where calls of one function make graph after graph."""
    monkeypatch.setattr(second_head, "_STEPS", 3)
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    random = np.random.default_rng(0)
    for _ in range(7):
        second_head.train_head(
            random.normal(size=(64, 4)).astype(np.float32), random.integers(0, 3, 64), 3, seed=0
        )
    assert "retracing" not in caplog.text
