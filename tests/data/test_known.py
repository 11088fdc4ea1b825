"""Samples that a judge knows, and rows that repeat by nature."""

import json

import numpy as np
import pytest

from btcp_tf.data import known, overlaps
from btcp_tf.data.known import Part


def part_of(x):
    return Part.of(overlaps.sample_hashes(x))


def test_what_was_seen_is_known_again():
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 4))
    part = Part.from_json(json.loads(json.dumps(part_of(x[:300]).to_json())))
    found = known.overlap(overlaps.sample_hashes(x[250:]), {"fit": part}, ("fit", "reference"))
    np.testing.assert_array_equal(found.known, np.arange(250, 500) < 300)
    assert found.share == 0.2
    assert "50 of 250 samples are among those of fit" in found.text
    fresh = known.overlap(overlaps.sample_hashes(x[300:]), {"fit": part}, ("fit",))
    assert not fresh.known.any() and fresh.text == ""
    # From one on.
    one = known.overlap(overlaps.sample_hashes(x[299:]), {"fit": part}, ("fit",))
    assert one.known.sum() == 1 and "1 of 201" in one.text
    empty = Part.of(np.zeros(0, np.uint64))
    assert not empty.holds(overlaps.sample_hashes(x)).any()


@pytest.mark.parametrize("values", [3, 5, 8])
def test_rows_that_repeat_by_nature_are_fresh(values):
    """A table of few values: many rows of a fresh part equal ones of the other."""
    random = np.random.default_rng(values)
    for _ in range(20):
        table = random.integers(0, values, (1500, 4))
        part = part_of(table[:1000])
        found = known.overlap(overlaps.sample_hashes(table[1000:]), {"fit": part}, ("fit",))
        assert not found.known.any() and "repeat by nature" in found.text
    # The same rows again are more than that, unless all rows repeat.
    table = np.concatenate([random.integers(0, 8, (800, 4)), random.normal(size=(800, 4))])
    found = known.overlap(
        overlaps.sample_hashes(table[600:1000]), {"fit": part_of(table)}, ("fit",)
    )
    assert found.known.all()


def test_each_part_is_looked_at_by_itself():
    random = np.random.default_rng(1)
    x, fit = random.normal(size=(200, 3)), random.normal(size=(100, 3))
    # Each sample of the reference stands there twice, which is no nature.
    parts = {"reference": part_of(np.concatenate([x, x])), "fit": part_of(fit)}
    given = np.concatenate([x[:50], fit[:10]])
    found = known.overlap(overlaps.sample_hashes(given), parts, ("fit", "reference"))
    assert found.known.sum() == 60
    assert "10 of 60" in found.text and "50 of 60" in found.text


@pytest.mark.parametrize(
    "content",
    [
        None,
        {"hashes": "AAAAAAAAAAA=", "rows": 1},
        {"hashes": "?", "rows": 1, "repeated": 0},
        {"hashes": "AAAA", "rows": 1, "repeated": 0},
        {"hashes": "AAAAAAAAAAA=", "rows": 1, "repeated": 2},
        {"hashes": "AAAAAAAAAAA=", "rows": 0, "repeated": 0},
    ],
)
def test_what_is_no_part_is_refused(content):
    with pytest.raises(ValueError, match="seen: expected hashes"):
        Part.from_json(content)


def test_oversampled_samples_do_not_pass_for_natural_repetition():
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 2**63, 600).astype(np.uint64)
    # All of them twice in `fit`, once in what is to be calibrated on.
    twice = {"fit": Part.of(np.repeat(distinct, 2))}
    assert known.overlap(distinct, twice, ["fit"]).share == 1.0
    # Some of them twice, and a quarter of what is calibrated on among them.
    some = {"fit": Part.of(np.concatenate([distinct, distinct[:60]]))}
    fresh = rng.integers(0, 2**63, 300).astype(np.uint64)
    assert known.overlap(np.concatenate([fresh, distinct[:100]]), some, ["fit"]).share == 0.25
    # A table of a few hundred possible rows repeats on both sides.
    rows = rng.integers(0, 300, (2, 1000)).astype(np.uint64)
    natural = known.overlap(rows[0], {"fit": Part.of(rows[1])}, ["fit"])
    assert natural.share == 0 and "by nature" in natural.text
