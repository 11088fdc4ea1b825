"""Predictions files of anyone's making, and result rows that survive the disk."""

import dataclasses
import json
import math
import warnings

import numpy as np
import pytest

from btcp_tf import evaluation, metrics
from btcp_tf.evaluation import Predictions

ABOUT = dict(dataset="digits", seed=3, stage="frozen", classifier_id="digits-3", split="test")
HOW = dict(tau=0.5, bootstrap_draws=50, bootstrap_seed=11)


def predictions(n: int = 60, **changes) -> Predictions:
    """Three classes, about a fifth wrong, three methods; float32 as a network gives it."""
    generator = np.random.default_rng(0)
    probs = generator.dirichlet([0.4] * 3, n).astype(np.float32)
    predicted = probs.argmax(axis=1)
    labels = np.where(generator.random(n) < 0.2, (predicted + 1) % 3, predicted)
    fields = dict(
        labels=labels,
        probs=probs,
        predicted=predicted,
        uncertainty={
            "btcp": generator.random(n, np.float32),
            "mcp": 1 - probs.max(axis=1),
            "trust-score": 7 * generator.random(n),
        },
    )
    return Predictions(**fields | changes)


def arrays(p: Predictions) -> dict[str, np.ndarray]:
    """The arrays of the file format."""
    return {"labels": p.labels, "probs": p.probs, "predicted": p.predicted} | dict(p.uncertainty)


def assert_same(a: Predictions, b: Predictions) -> None:
    np.testing.assert_equal(dataclasses.asdict(a), dataclasses.asdict(b))


def test_predictions_come_back_from_the_disk(tmp_path):
    before = predictions()
    evaluation.save_predictions(tmp_path / "new" / "p.npz", before)
    after = evaluation.load_predictions(tmp_path / "new" / "p.npz")
    assert_same(after, before)
    assert list(after.uncertainty) == ["btcp", "mcp", "trust-score"]
    assert {u.dtype for u in after.uncertainty.values()} == {np.dtype("f4"), np.dtype("f8")}
    assert (after.labels.dtype, after.predicted.dtype) == (np.int64, np.int64)
    assert after.probs.dtype == np.float32

    evaluation.save_predictions(tmp_path / "again.npz", before)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "new" / "p.npz").read_bytes()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["p.npz"]


def test_an_npz_of_numpy_is_read(tmp_path):
    p, path = predictions(), tmp_path / "foreign.npz"
    labels, probs = p.labels.astype(np.uint8), p.probs.astype(np.float64)
    np.savez(path, labels=labels, probs=probs, mine=p.uncertainty["mcp"])
    read = evaluation.load_predictions(path)
    np.testing.assert_array_equal(read.predicted, p.predicted)
    np.testing.assert_array_equal(read.is_error, p.labels != p.predicted)
    assert list(read.uncertainty) == ["mine"]
    assert (read.labels.dtype, read.probs.dtype) == (np.int64, np.float32)

    np.savez_compressed(path, labels=p.labels, predicted=p.predicted, u=p.uncertainty["btcp"])
    read = evaluation.load_predictions(path)
    assert read.probs is None
    np.testing.assert_array_equal(read.is_error, p.is_error)


def test_any_plain_word_may_name_a_column(tmp_path):
    u = predictions().uncertainty["mcp"]
    named = predictions(uncertainty={"file": u, "allow_pickle": u, "0": u})
    evaluation.save_predictions(tmp_path / "p.npz", named)
    assert_same(evaluation.load_predictions(tmp_path / "p.npz"), named)


def bad(**changes):
    """Fields of predictions with some replaced, or removed by None."""
    fields = arrays(predictions()) | changes
    return {name: array for name, array in fields.items() if array is not None}


def put(name: str, index, value) -> dict[str, np.ndarray]:
    """The array `name` with one entry replaced."""
    array = arrays(predictions())[name].copy()
    array[index] = value
    return {name: array}


OTHER = (predictions().predicted + 1) % 3
BAD_FILES = {
    "no labels": (bad(labels=None), "expected labels, and probs or predicted, received probs"),
    "no answers": (bad(probs=None, predicted=None), "expected labels, and probs or predicted"),
    "no columns": (
        bad(btcp=None, mcp=None, **{"trust-score": None}),
        "at least one uncertainty column",
    ),
    "labels out of range": (
        bad(**put("labels", 7, 3)),
        "labels: expected classes 0 to 2, received 3 in row 7",
    ),
    "negative label": (bad(**put("labels", 7, -1)), "received -1 in row 7"),
    "labels without probs": (
        bad(**put("labels", 7, -1), probs=None),
        "labels: expected classes >= 0, received -1 in row 7",
    ),
    "label column": (
        bad(labels=OTHER[:, None]),
        r"labels: expected shape \[n\], n > 0, received \(60, 1\)",
    ),
    "no rows": (bad(labels=OTHER[:0]), r"labels: expected shape \[n\], n > 0, received \(0,\)"),
    "float labels": (bad(labels=OTHER * 1.0), "labels: expected integers, received dtype float64"),
    "predicted out of range": (
        bad(**put("predicted", 2, 9)),
        "predicted: expected classes 0 to 2, received 9 in row 2",
    ),
    "short predicted": (
        bad(predicted=OTHER[:5]),
        r"predicted: expected shape \[60\], received \(5,\)",
    ),
    "predicted against probs": (
        bad(predicted=OTHER),
        "predicted: expected the most probable class of probs, received . in row 0",
    ),
    "NaN in probs": (
        bad(**put("probs", (4, 1), np.nan)),
        r"probs: expected numbers in \[0, 1\].* in row 4",
    ),
    "logits": (
        bad(probs=np.full((60, 3), 1 / 3) * [-1, 2, 2]),
        r"probs: expected numbers in \[0, 1\].* in row 0",
    ),
    "unnormalized": (
        bad(**put("probs", 5, 0.2)),
        "probs: expected rows that sum to 1, received 0.6.* in row 5",
    ),
    "flat probs": (
        bad(probs=np.full(60, 1.0)),
        r"probs: expected shape \[60, k\], k > 1, received \(60,\)",
    ),
    "integer probs": (bad(probs=np.eye(3, dtype=int)[OTHER]), "probs: expected floats"),
    "NaN in u": (
        bad(**put("btcp", 3, np.nan)),
        "btcp: expected finite numbers, received nan in row 3",
    ),
    "infinite u": (
        bad(**put("btcp", 3, np.inf)),
        "btcp: expected finite numbers, received inf in row 3",
    ),
    "short u": (bad(btcp=np.zeros(7)), r"btcp: expected shape \[60\], received \(7,\)"),
    "column of u": (
        bad(btcp=np.zeros((60, 1))),
        r"btcp: expected shape \[60\], received \(60, 1\)",
    ),
    "integer u": (bad(btcp=OTHER), "btcp: expected floats, received dtype int64"),
    "odd name": (bad(**{"my score": np.zeros(60)}), "named by letters.*received 'my score'"),
    "objects": (bad(btcp=np.array([None] * 60)), "Object arrays cannot be loaded"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_predictions_file_is_named_with_what_is_wrong(tmp_path, case):
    content, message = BAD_FILES[case]
    path = tmp_path / "theirs.npz"
    np.savez(path, allow_pickle=True, **content)
    with pytest.raises(ValueError, match=f"theirs.npz: no predictions file: .*{message}"):
        evaluation.load_predictions(path)


def test_a_damaged_predictions_file_is_named(tmp_path):
    whole, path = tmp_path / "whole.npz", tmp_path / "theirs.npz"
    evaluation.save_predictions(whole, predictions())
    content = bytearray(whole.read_bytes())
    flipped = content.copy()
    flipped[len(content) // 2] ^= 0xFF
    np.savez_compressed(tmp_path / "compressed.npz", labels=np.arange(1000))
    deflated = bytearray((tmp_path / "compressed.npz").read_bytes())
    deflated[200:240] = b"\xff" * 40
    np.save(tmp_path / "single.npy", np.zeros(3))
    single = (tmp_path / "single.npy").read_bytes()
    for damaged in (b"", b"words", content[: len(content) // 2], flipped, deflated, single):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="theirs.npz: no predictions file: "):
            evaluation.load_predictions(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        evaluation.load_predictions(tmp_path / "absent.npz")


@pytest.mark.parametrize("name", ["labels", "probs", "predicted", "a/b", "x.npy", ""])
def test_a_column_cannot_take_another_array_s_name(name):
    with pytest.raises(ValueError, match="expected uncertainty columns named by letters"):
        predictions(uncertainty={name: np.zeros(60)})


def test_predicted_may_be_any_of_equally_probable_classes():
    p = Predictions(
        labels=[1, 0],
        probs=np.full((2, 2), 0.5),
        predicted=[1, 0],
        uncertainty={"mcp": np.full(2, 0.5)},
    )
    assert not p.is_error.any()


def test_rows_hold_the_metrics_of_each_method():
    p = predictions()
    rows = evaluation.rows(p, **ABOUT, **HOW)
    assert [row["method"] for row in rows] == ["btcp", "mcp", "trust-score"]
    draws = metrics.bootstrap(p.is_error, p.uncertainty, tau=0.5, draws=50, seed=11)
    for row in rows:
        assert {name: row[name] for name in ABOUT} == ABOUT
        assert (row["n"], row["errors"], row["tau"]) == (60, p.is_error.sum(), 0.5)
        assert row["accuracy"] == pytest.approx(1 - p.is_error.sum() / 60)
        expected = metrics.evaluate_all(p.is_error, p.uncertainty[row["method"]], tau=0.5)
        for name, value in expected.items():
            received = (row[name], row[f"{name}_low"], row[f"{name}_high"])
            interval = metrics.interval(draws[row["method"]][name])
            assert received == pytest.approx((value, *interval), nan_ok=True)
    assert rows[0]["aurc_low"] < rows[0]["aurc"] < rows[0]["aurc_high"]


def test_differences_to_mcp_are_paired():
    p = predictions()
    twin = p.uncertainty["mcp"] ** 2
    rows = evaluation.rows(
        dataclasses.replace(p, uncertainty=dict(p.uncertainty, twin=twin)), **ABOUT, **HOW
    )
    by_method = {row["method"]: row for row in rows}
    draws = metrics.bootstrap(p.is_error, p.uncertainty, tau=0.5, draws=50, seed=11)
    for name in ("auroc", "aupr_error", "aurc"):
        row = by_method["btcp"]
        assert row[f"{name}_minus_mcp"] == row[name] - by_method["mcp"][name]
        low, high = metrics.interval(draws["btcp"][name] - draws["mcp"][name])
        assert (row[f"{name}_minus_mcp_low"], row[f"{name}_minus_mcp_high"]) == (low, high)
        # The same order of rows: nothing differs in any draw.
        ends = [by_method["twin"][f"{name}_minus_mcp{end}"] for end in ("", "_low", "_high")]
        assert ends == [0, 0, 0]
    assert not any("minus" in key for key in by_method["mcp"])
    alone = evaluation.rows(predictions(uncertainty={"twin": twin}), **ABOUT, **HOW)
    assert not any("minus" in key for key in alone[0])


def test_rows_without_errors_say_so():
    p = predictions(labels=predictions().predicted)
    with pytest.warns(RuntimeWarning, match="no errors among 60 rows"):
        row = evaluation.rows(p, **ABOUT, **HOW)[0]
    assert (row["errors"], row["accuracy"], row["aurc"], row["aurc_high"]) == (0, 1, 0, 0)
    for name in ("auroc", "auroc_low", "auroc_high", "auroc_minus_mcp", "auroc_minus_mcp_low"):
        assert math.isnan(row[name])


def test_a_raw_score_has_no_threshold_or_calibration_cells():
    row = evaluation.rows(predictions(), **ABOUT, **HOW)[2]
    for name in ("bacc", "fpr", "ece", "brier_low"):
        assert math.isnan(row[name])
    assert 0 < row["auroc_low"] < row["auroc"] < row["auroc_high"] < 1


def test_epoch_metrics():
    is_error, u = [0, 0, 1, 1, 0], np.float32([0.1, 0.5, 0.5, 0.9, 0.2])
    point = evaluation.epoch_metrics(is_error, u, tau=0.5)
    expected = metrics.evaluate_all(is_error, u, tau=0.5)
    names = ["fpr", "fnr", "bacc", "auroc", "aupr_error", "aurc"]
    assert list(point) == ["accuracy", "u_mean", "u_std", *names]
    assert {name: point[name] for name in names} == {name: expected[name] for name in names}
    assert point["accuracy"] == pytest.approx(0.6)
    assert point["u_mean"] == pytest.approx(0.44)
    assert point["u_std"] == pytest.approx(0.28)
    assert all(type(value) is float for value in point.values())


@pytest.mark.parametrize("errors", [0, 1])
def test_epoch_metrics_of_one_class_warn_of_nothing(errors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        point = evaluation.epoch_metrics([errors] * 3, [0.1, 0.2, 0.9], tau=0.5)
    assert math.isnan(point["auroc"]) and point["aurc"] == errors


def test_rows_come_back_from_the_disk(tmp_path):
    path = tmp_path / "run" / "results.json"
    rows = evaluation.rows(predictions(), **ABOUT, **HOW)
    extra = {
        "gamma": {"btcp": np.float32(2.5), "uncapped": math.inf, "below": -math.inf},
        "notes": ("a part of cifar10: 10 000 images — no reproduction",),
        "ess": None,
        "curve": np.array([1.0, np.nan]),
        "done": np.bool_(True),
        7: np.int64(3),
    }
    evaluation.save_rows(path, rows, extra)
    loaded, loaded_extra = evaluation.load_rows(path)
    np.testing.assert_equal(loaded, rows)
    assert loaded_extra == {
        "gamma": {"btcp": 2.5, "uncapped": "Infinity", "below": "-Infinity"},
        "notes": ["a part of cifar10: 10 000 images — no reproduction"],
        "ess": None,
        "curve": [1.0, None],
        "done": True,
        "7": 3,
    }
    text = path.read_text(encoding="utf-8")
    assert "NaN" not in text and text.endswith("}\n")
    assert json.loads(text)["rows"][2]["bacc"] is None

    again = evaluation.rows(predictions(), **ABOUT, **HOW)
    reordered = [dict(reversed(row.items())) for row in again]
    evaluation.save_rows(tmp_path / "again.json", reordered, dict(reversed(extra.items())))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        b'{"rows": [], "extra": 3}',
        b'{"rows": 1, "extra": {}}',
        b'{"rows": [1], "extra": {}}',
        b"\xff\xfe",
    ],
)
def test_a_bad_results_file_is_named(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="results.json: expected JSON with rows and extra"):
        evaluation.load_rows(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    evaluation.save_predictions(path, predictions())
    before = path.read_bytes()

    def full_disk(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(np.lib.format, "write_array", full_disk)
    with pytest.raises(OSError, match="no space left"):
        evaluation.save_predictions(path, predictions(n=30))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
