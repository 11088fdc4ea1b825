"""Tests of which version a run publishes."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from scipy import stats

from btcp_tf import thresholds
from btcp_tf.data import datasets
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.serving import publishing

THRESHOLD = dataclasses.asdict(thresholds.DEFAULT)


def write(folder, number, **about):
    """What is read of a version: none of these tests loads its graph."""
    path = folder / str(number) / ABOUT_FILE
    path.parent.mkdir(parents=True)
    content = {"class_names": ["a"], "image_shape": [8, 8, 1], "threshold": THRESHOLD}
    path.write_text(json.dumps({**content, **about}))
    return folder / str(number)


def test_an_id_stays_with_its_folder(tmp_path):
    (tmp_path / "other").mkdir()
    first = publishing.publication_id(tmp_path)
    assert publishing.publication_id(tmp_path) == first
    assert publishing.publication_id(tmp_path / "other") != first
    (tmp_path / "publication.json").write_text("{")
    assert publishing.publication_id(tmp_path) not in ("", first)


def test_a_run_finds_its_own_version_and_the_one_before(tmp_path):
    assert publishing.own_version(tmp_path, "me", THRESHOLD) is None
    assert publishing.replaced_version(tmp_path, "me") is None
    theirs = write(tmp_path, 3)
    mine = write(tmp_path, 10, publication="me")
    assert publishing.own_version(tmp_path, "me", THRESHOLD) == mine
    assert publishing.own_version(tmp_path, "me", {**THRESHOLD, "tau": 0.25}) is None
    assert publishing.own_version(tmp_path, "another", THRESHOLD) is None
    assert publishing.replaced_version(tmp_path, "me") == theirs
    assert publishing.replaced_version(tmp_path, "another") == mine
    (tmp_path / "11").mkdir()  # Not one of ours.
    assert publishing.replaced_version(tmp_path, "me") is None


@pytest.mark.parametrize(
    ("only_new", "only_old", "both", "right"),
    [(0, 0, 3, 50), (5, 0, 0, 20), (6, 0, 0, 20), (30, 10, 5, 900), (10, 30, 5, 900), (9, 8, 1, 9)],
)
def test_two_classifiers_are_compared_exactly_and_in_pairs(only_new, only_old, both, right):
    n = only_new + only_old + both + right
    labels, new, old = np.zeros((3, n), int)
    new[: only_new + both] = 1
    old[only_new : only_new + both + only_old] = 1
    found = publishing.compare(new, old, labels)
    assert (found.n, found.only_new, found.only_old) == (n, only_new, only_old)
    assert (found.new_errors, found.old_errors) == (only_new + both, only_old + both)
    assert found.difference == pytest.approx(new.mean() - old.mean())
    differ = only_new + only_old
    if not differ:
        assert found.interval == (0, 0) and not found.is_worse
        return
    test = stats.binomtest(only_new, differ)
    ends = test.proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(
        found.interval, [(2 * end - 1) * differ / n for end in ends], rtol=1e-9
    )
    assert found.is_worse == (test.pvalue < 0.05 and only_new > only_old)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def about_of(dataset, **settings):
    words = {"dataset": "digits", "seed": "0", "max_train_images": "0", "classifier": ""}
    return {
        "class_names": list(dataset.class_names),
        "data": {"fingerprint": dataset.fingerprint},
        "metadata": {"settings": {**words, **settings}},
    }


def compared(version, dataset, monkeypatch, **config):
    """With an older classifier that is always right."""
    asked = []

    def answers(version, images):
        asked.append(images)
        known = dataset.validation
        right = {i.tobytes(): y for i, y in zip(known.images, known.labels, strict=True)}
        return np.array([right[image.tobytes()] for image in images])

    monkeypatch.setattr(publishing, "_answers", answers)
    predicted = dataset.validation.labels.copy()
    predicted[::2] = (predicted[::2] + 1) % 10
    load = functools.partial(datasets.load, "digits", "")
    found = publishing.compare_with(version, predicted, dataset, load, **config)
    return found, asked[0]


def test_the_same_split_is_compared_on_all_of_its_validation_images(digits, tmp_path, monkeypatch):
    found, images = compared(write(tmp_path, 1, **about_of(digits)), digits, monkeypatch)
    np.testing.assert_array_equal(images, digits.validation.images)
    assert found.n == len(digits.validation) and found.old_errors == 0 and found.is_worse
    assert f"wrong about {found.n // 2 + found.n % 2:,} of {found.n:,}" in found.text(tmp_path)


def test_another_split_is_compared_where_neither_was_trained(digits, tmp_path, monkeypatch):
    other = datasets.load("digits", seed=1)
    assert other.fingerprint != digits.fingerprint
    version = write(tmp_path, 1, **about_of(other, seed="1"))
    found, images = compared(version, digits, monkeypatch)
    trained = {i.tobytes() for part in (other.train, digits.train) for i in part.images}
    assert 0 < len(images) == found.n < len(digits.validation)
    assert not trained & {image.tobytes() for image in images}


def test_what_cannot_be_compared_says_why(digits, tmp_path, monkeypatch):
    good = about_of(digits)
    for number, (message, about, config) in enumerate(
        [
            ("it has other classes", {**good, "class_names": ["b"]}, {}),
            ("inputs of shape", {**good, "image_shape": [9, 9, 1]}, {}),
            ("does not say what it was trained on", {**good, "metadata": {}}, {}),
            ("does not say what it was trained on", {**good, "data": None}, {}),
            ("given classifier", about_of(digits, classifier="x.keras"), {}),
            ("given classifier", good, {"classifier": "x.keras"}),
            ("other data", {**good, "data": {"fingerprint": "0"}}, {}),
        ]
    ):
        version = write(tmp_path, number, **about)
        with pytest.raises(ValueError, match=message):
            compared(version, digits, monkeypatch, **config)
