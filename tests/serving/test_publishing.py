"""Tests of which version a run publishes."""

import contextlib
import dataclasses
import functools
import json
import re

import numpy as np
import pytest
from scipy import stats

from btcp_tf import thresholds
from btcp_tf.data import datasets
from btcp_tf.decisions.decision_file import Decision
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation.keys import CLASSIFIER
from btcp_tf.experiment import publish
from btcp_tf.experiment.publish import Export
from btcp_tf.serving import publishing
from btcp_tf.serving.publishing import Comparison

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


def promise(risk, delta=0.05, tau=0.3):
    rule = f"error rate <= {risk:g} with probability {1 - delta:g}"
    return thresholds.Threshold(tau, 0.9, rule, 100, 90, target=risk, delta=delta)


NO_PROMISE = thresholds.Threshold(0.4, 0.9, "best BACC", 100, 90)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            promise(0.02),
            NO_PROMISE,
            r"<= 0.02 with probability 0.95; this one promises none \(best",
        ),
        (promise(0.02), thresholds.DEFAULT, r"<= 0.02 .*; this one promises none \(default\)"),
        (promise(0.02), promise(0.03), "<= 0.02 with .* 0.95; .* <= 0.03 with probability 0.95"),
        (
            promise(0.02),
            promise(0.02, 0.1),
            "<= 0.02 with .* 0.95; .* <= 0.02 with probability 0.9",
        ),
        (
            promise(0.02),
            promise(0.01, 0.1),
            "<= 0.02 with .* 0.95; .* <= 0.01 with probability 0.9",
        ),
        (
            promise(0.02),
            promise(0.02, tau=None),
            "; this one accepts nothing, as error rate <= 0.02",
        ),
        (promise(0.02), promise(0.02, tau=0.9), ""),
        (promise(0.02), promise(0.01, 0.01), ""),
        (promise(0.02, tau=None), NO_PROMISE, ""),
        (NO_PROMISE, thresholds.DEFAULT, ""),
        (NO_PROMISE, promise(0.5, 0.5), ""),
    ],
)
def test_a_promise_that_would_be_lost_is_named_with_the_new_one(tmp_path, old, new, message):
    version = write(tmp_path, 4, threshold=dataclasses.asdict(old))
    found = publishing.lost_promise(tmp_path, new)
    assert re.search(f"^{version} promises error rate .*{message}" if message else "^$", found)


def test_what_is_no_version_of_ours_has_no_promise_to_lose(tmp_path):
    assert publishing.lost_promise(tmp_path, NO_PROMISE) == ""
    write(tmp_path, 4, threshold=dataclasses.asdict(promise(0.02)))
    (tmp_path / "5").mkdir()
    assert publishing.lost_promise(tmp_path, NO_PROMISE) == ""


@pytest.fixture
def export(digits, tmp_path):
    (tmp_path / "run").mkdir()
    decision = Decision(NO_PROMISE, CLASSIFIER, "mcp", None, "")
    return Export(tmp_path / "run", tmp_path / "models", decision, {}, digits, {})


def tried(export, compare, *, publish_worse=False):
    threshold = export.decision.threshold
    replaced = publish.find_replaced(export.folder, export.target, threshold, compare)
    asked = {"replaced": replaced, "collapse": "", "publish_worse": publish_worse}
    return replaced, *publish.try_export(contextlib.nullcontext(), export, **asked)


SAME = Comparison(50, new_errors=5, old_errors=5, only_new=0, only_old=0)
WORSE = Comparison(50, new_errors=20, old_errors=5, only_new=16, only_old=1)


@pytest.mark.parametrize("comparison", [SAME, WORSE, None])
def test_a_run_that_promises_less_is_published_when_asked_for(export, monkeypatch, comparison):
    monkeypatch.setattr(publish, "export_model", lambda *arguments: "published")
    version = write(export.target, 1, threshold=dataclasses.asdict(promise(0.02)))

    def compare(version):
        if comparison is None:
            raise ValueError("it has other classes")
        return comparison

    replaced, end, failure = tried(export, compare)
    for text in (end.saved_model, str(failure), replaced.note):
        assert f"{version} promises error rate <= 0.02 with probability 0.95" in text
        assert "this one promises none (best BACC)" in text and "--publish" in text
        assert ("about 5 of them" in text) == (comparison is WORSE)
    assert end.saved_model.startswith("not exported: ") and end.retry
    assert ("cannot be compared: it has other classes" in replaced.note) == (comparison is None)
    assert tried(export, compare, publish_worse=True)[1:] == (publish.End("published"), None)


def test_a_run_that_promises_as_much_is_published(export, monkeypatch, capsys):
    monkeypatch.setattr(publish, "export_model", lambda *arguments: "published")
    version = write(export.target, 1, threshold=dataclasses.asdict(promise(0.02)))
    export = dataclasses.replace(
        export, decision=dataclasses.replace(export.decision, threshold=promise(0.02, 0.01))
    )
    replaced, end, failure = tried(export, lambda version: SAME)
    assert replaced.note == "" and (end, failure) == (publish.End("published"), None)
    assert capsys.readouterr().out == ""
    where = (export.folder, export.target, promise(0.02))
    assert publish.find_replaced(*where, lambda version: SAME, verbose=1) == replaced
    assert capsys.readouterr().out == f"comparing the classifier with {version}\n"
