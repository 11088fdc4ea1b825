"""A reference of any length: blocks of it in memory, and an index that is bounded."""

import math

import numpy as np
import pytest

from btcp_tf.methods import reference_index, residual_fit, second_head
from btcp_tf.methods.looks import Offer
from btcp_tf.methods.residual_fit import HeldOut
from btcp_tf.methods.seen import Seen
from btcp_tf.networks import evidence_layers
from btcp_tf.networks.evidence_layers import HeadEvidence, NeighborEvidence, View


def blobs(n: int, d: int = 8, classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features around a center for each class, far from the origin, and their classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    centers = 3 * np.random.default_rng(99).normal(size=(classes, d))
    return (100 + centers[labels] + random.normal(size=(n, d))).astype(np.float32), labels


@pytest.mark.parametrize("faint", [0.0, 0.5])
def test_moments_of_blocks_are_those_of_all(faint, monkeypatch):
    vectors, _ = blobs(1000)
    points = evidence_layers.as_points(vectors, faint)
    whole = reference_index.moments(vectors, faint)
    np.testing.assert_array_equal(whole.mean, points.mean(axis=0))
    np.testing.assert_array_equal(whole.spread, points.std(axis=0))
    monkeypatch.setattr(reference_index, "BLOCK", 300)
    for found, wanted in zip(reference_index.moments(vectors, faint), whole, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_condensed_reference_keeps_classes_and_shape(monkeypatch):
    monkeypatch.setattr(reference_index, "_OF_A_CLASS", 200)
    vectors, labels = blobs(5000)
    labels[:4] = 5  # A class of four samples.
    points, of = reference_index.condensed(vectors, labels, 500)
    assert 450 <= len(points) <= 501 and points.dtype == np.float32
    shares = np.bincount(of) / len(of)
    np.testing.assert_allclose(shares, np.bincount(labels) / 5000, atol=0.01)
    assert (of == 5).sum() == 1
    # Nearer to the samples than as many of them, drawn at random.
    drawn = np.random.default_rng(1).permutation(5000)[: len(points)]

    def distance(some):
        return np.sqrt(np.square(vectors[:, None] - some[None]).sum(axis=2)).min(axis=1).mean()

    others = np.setdiff1d(np.arange(5000), drawn)[:1000]
    vectors = vectors[others]
    assert distance(points) < 0.9 * distance(blobs(5000)[0][drawn])
    again, _ = reference_index.condensed(*blobs(5000), 500)
    np.testing.assert_array_equal(again, reference_index.condensed(*blobs(5000), 500)[0])


@pytest.mark.parametrize("most", [1, 3, 10_000])
def test_a_condensed_reference_of_too_many_classes_or_enough_room(most):
    vectors, labels = blobs(300)
    points, of = reference_index.condensed(vectors, labels, most)
    assert len(points) == {1: 5, 3: 5, 10_000: 300}[most]
    assert np.unique(of).tolist() == [0, 1, 2, 3, 4]


def test_samples_that_repeat_are_no_fault(recwarn):
    vectors = np.repeat(blobs(10)[0], 100, axis=0)
    points, _ = reference_index.condensed(vectors, np.zeros(1000, int), 50)
    assert 1 <= len(points) <= 50 and np.isfinite(points).all()
    assert not recwarn.list


def held_out(n: int = 900) -> HeldOut:
    """Wrong answers where two classes are near each other, which features show."""
    random = np.random.default_rng(5)
    labels, known = random.integers(0, 3, n), random.integers(0, 3, 4000)
    centers = np.eye(3, 6) * 4

    def features(of):
        return (centers[of] + random.normal(size=(len(of), 6)) * 1.5).astype(np.float32)

    x, reference = features(labels), features(known)
    logits = (x[:, :3] * [1.0, 1.0, 0.2] + random.normal(size=(n, 3))).astype(np.float32)
    seen = Seen(reference, reference[:, :3])
    return HeldOut(Seen(x, logits), labels, (seen, known))


@pytest.mark.usefixtures("quick_heads")
def test_a_large_reference_makes_a_bounded_index_that_says_as_much(monkeypatch):
    kinds, aurc = ("answer", "neighbors"), {}
    for most in (10_000, 400):
        monkeypatch.setattr(HeldOut.index, "__defaults__", (most,))
        monkeypatch.setattr(reference_index, "LARGEST", most)
        fit, layers, _, _ = residual_fit.fit_residual(held_out(), allowed=kinds)
        aurc[most] = fit.difference["aurc"]
        assert layers["neighbors"].size == {10_000: 4000, 400: pytest.approx(400, abs=3)}[most]
    assert aurc[400][0] < 0.7 * aurc[10_000][0] < 0


def test_a_wide_index_is_projected(monkeypatch):
    monkeypatch.setattr(reference_index, "NUMBERS", 4000 * 3)
    _, layers, _, _ = residual_fit.fit_residual(held_out(), allowed=("answer", "neighbors"))
    assert layers["neighbors"].points.shape == (4000, 3)


def test_a_large_index_is_kept_in_8_bits(monkeypatch):
    kinds, aurc = ("answer", "neighbors"), {}
    for largest, bits in ((2**22, 32), (4000, 8)):
        monkeypatch.setattr(reference_index, "_EXACT", largest)
        fit, layers, _, _ = residual_fit.fit_residual(held_out(), allowed=kinds)
        assert layers["neighbors"].bits == bits
        aurc[bits] = fit.difference["aurc"][0]
    assert aurc[8] == pytest.approx(aurc[32], rel=0.05) and aurc[8] < 0


@pytest.mark.parametrize(
    ("budget", "size"), [(1.0, 4000), (1.3, 400), (1.4, 533), (3.0, 4000), (1.01, 256)]
)
def test_an_index_that_costs_too_much_is_made_smaller(budget, size):
    one = held_out()
    # Six numbers of each vector; a pass has 2,400 multiply-adds.
    offer = Offer({}, budget, 2400.0, None, None)
    index = one.affordable_index("neighbors", offer)
    assert len(index.points) == pytest.approx(size, abs=3)


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("multiply_adds", [1e6, 2**24, 4e7])
def test_ranking_counts_in_the_cost_of_an_index(multiply_adds, bits):
    """In full beside a slow classifier; products are those of an exhaustive search."""
    size, width, axes, found = 5000, 12, 4, 78
    index = NeighborEvidence(size, width, axes=axes, bits=bits)
    head = HeadEvidence(width, 3)
    offer = Offer({}, 1.3, multiply_adds, None, None)
    costs = offer.costs(
        {"answer": None, "neighbors": index, "image_neighbors": index, "head": head}
    )
    products = size * axes + width * axes + found * axes
    ranking = 32 * size + 4096 * found * math.log2(size) + 0.25 * size * axes * (bits == 8)
    wanted = products / multiply_adds + ranking / max(multiply_adds, 2**24)
    assert costs["neighbors"] == pytest.approx(wanted, rel=1e-6)
    assert costs["image_neighbors"] - costs["neighbors"] == pytest.approx(
        View.multiply_adds / multiply_adds
    )
    assert costs["head"] == head.multiply_adds / multiply_adds


@pytest.mark.parametrize("bits", [32, 8])
def test_the_search_finds_the_same_alone_and_in_a_batch(bits, monkeypatch):
    monkeypatch.setattr(evidence_layers, "_BLOCK", 3000)
    monkeypatch.setattr(evidence_layers, "_DECODED", 700)
    random = np.random.default_rng(0)
    points = random.normal(size=(7001, 24)).astype(np.float32)
    queries = random.normal(size=(40, 24)).astype(np.float32)
    index = NeighborEvidence(7001, 24, bits=bits)
    index.set_points(points, random.integers(0, 3, 7001))
    together = np.asarray(index._search(index.turned(queries)))
    alone = [np.asarray(index._search(index.turned(one[None])))[0] for one in queries]
    distances = np.square(
        np.asarray(index.turned(queries), np.float64)[:, None] - index.decoded()
    ).sum(axis=2)
    for found in (together, np.array(alone)):
        # The last of the spare ones may be another of those as far.
        nearest = np.argsort(distances, axis=1)[:, :64]
        for row, want in zip(found, nearest, strict=True):
            assert set(want) <= set(row.tolist()) and len(set(row.tolist())) == 78


@pytest.mark.parametrize("name", ["head", "image_head"])
def test_a_head_learns_the_same_from_a_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr(second_head, "_STEPS", 60)
    vectors, labels = blobs(700)
    np.save(tmp_path / "vectors.npy", vectors)
    stored = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    faint = 0.5 * name.startswith("image_")
    heads = [second_head.train_head(x, labels, 5, 0, name, faint) for x in (vectors, stored)]
    for one, other in zip(*(head.get_weights() for head in heads), strict=True):
        np.testing.assert_array_equal(one, other)
    logits = np.eye(5, dtype=np.float32)[labels]
    assert np.asarray(heads[0](vectors, logits))[:, 1].mean() < 0.5  # It has learned something.


@pytest.mark.parametrize(
    ("axes", "n", "bits"), [(0, 10_000, 32), (4, 3000, 32), (0, 40, 32), (0, 3000, 8)]
)
def test_faiss_finds_the_same_evidence(axes, n, bits):
    pytest.importorskip("faiss")
    vectors, labels = blobs(n)
    layer = NeighborEvidence(n, 8, axes=axes, bits=bits)
    layer.set_points(vectors, labels)
    queries, _ = blobs(500, seed=1)
    queries[:20] = vectors[:20]
    logits = np.eye(5, dtype=np.float32)[np.arange(500) % 5]
    places = reference_index.search(layer, queries)
    assert places.shape == (500, layer.candidates)
    np.testing.assert_allclose(
        layer(queries, logits, places), layer(queries, logits), rtol=1e-4, atol=1e-4
    )


def test_without_faiss_the_layer_searches(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    layer = NeighborEvidence(20, 8)
    layer.set_points(*blobs(20))
    assert reference_index.search(layer, blobs(3)[0]) is None
