"""Predictions files of anyone's making, result rows that survive the disk, and means over seeds."""

import csv
import dataclasses
import json
import math
import warnings

import numpy as np
import pyarrow
import pytest
import scipy.stats
import sklearn.metrics
from pyarrow import parquet

from btcp_tf import metrics
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import (
    Predictions,
    load_answers,
    load_predictions,
    save_predictions,
)
from btcp_tf.evaluation.seeds import _interval_of_mean, across_seeds

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
    save_predictions(tmp_path / "new" / "p.npz", before)
    after = load_predictions(tmp_path / "new" / "p.npz")
    assert_same(after, before)
    assert list(after.uncertainty) == ["btcp", "mcp", "trust-score"]
    assert {u.dtype for u in after.uncertainty.values()} == {np.dtype("f4"), np.dtype("f8")}
    assert (after.labels.dtype, after.predicted.dtype) == (np.int64, np.int64)
    assert after.probs.dtype == np.float32

    save_predictions(tmp_path / "again.npz", before)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "new" / "p.npz").read_bytes()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["p.npz"]


def test_an_npz_of_numpy_is_read(tmp_path):
    p, path = predictions(), tmp_path / "foreign.npz"
    labels, probs = p.labels.astype(np.uint8), p.probs.astype(np.float64)
    np.savez(path, labels=labels, probs=probs, mine=p.uncertainty["mcp"])
    read = load_predictions(path)
    np.testing.assert_array_equal(read.predicted, p.predicted)
    np.testing.assert_array_equal(read.is_error, p.labels != p.predicted)
    assert list(read.uncertainty) == ["mine"]
    assert (read.labels.dtype, read.probs.dtype) == (np.int64, np.float32)

    np.savez_compressed(path, labels=p.labels, predicted=p.predicted, u=p.uncertainty["btcp"])
    read = load_predictions(path)
    assert read.probs is None
    np.testing.assert_array_equal(read.is_error, p.is_error)


def test_without_labels_no_answer_is_right(tmp_path):
    before = predictions(labels=None)
    assert before.is_error.tolist() == [True] * 60
    save_predictions(tmp_path / "ood.npz", before)
    with np.load(tmp_path / "ood.npz") as archive:
        assert archive.files == ["predicted", "probs", "btcp", "mcp", "trust-score"]
    after = load_predictions(tmp_path / "ood.npz")
    assert after.labels is None
    assert_same(after, before)


def test_reversed_columns_keep_the_scale_of_u_or_are_negated(tmp_path):
    p, path = predictions(), tmp_path / "p.npz"
    save_predictions(path, p)
    read = load_predictions(path, reverse=["trust-score", "btcp"])
    np.testing.assert_array_equal(read.uncertainty["trust-score"], -p.uncertainty["trust-score"])
    np.testing.assert_array_equal(read.uncertainty["btcp"], 1 - p.uncertainty["btcp"])
    np.testing.assert_array_equal(read.uncertainty["mcp"], p.uncertainty["mcp"])
    assert list(read.uncertainty) == list(p.uncertainty)
    for name in ("labels", "confidence"):
        with pytest.raises(
            ValueError,
            match=rf"reverse: expected .*p.npz \(btcp, mcp, trust-score\), received {name}$",
        ):
            load_predictions(path, reverse=[name, "mcp"])


# CSV.


def write_csv(path, p: Predictions, *, probs: bool) -> None:
    """With names that need quotes beside the columns, and numbers in full."""
    columns = {"image": [f"im,age {row}" for row in range(len(p.predicted))], "labels": p.labels}
    if probs:
        columns |= {f"probs_{k}": p.probs[:, k] for k in range(p.probs.shape[1])}
    else:
        columns |= {"predicted": p.predicted}
    columns |= p.uncertainty
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(",".join(f'"{x}"' if isinstance(x, str) else repr(x.item()) for x in row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("probs", [True, False])
def test_a_csv_is_read_as_an_npz_of_the_same_content(tmp_path, probs):
    p = predictions()
    write_csv(tmp_path / "Scores.CSV", p, probs=probs)
    read = load_predictions(tmp_path / "Scores.CSV", reverse=["btcp"])
    assert_same(
        read,
        dataclasses.replace(
            p,
            probs=p.probs if probs else None,
            uncertainty=dict(p.uncertainty, btcp=1 - p.uncertainty["btcp"]),
        ),
    )


def test_what_spreadsheets_add_to_a_csv_does_no_harm(tmp_path):
    path = tmp_path / "scores.csv"
    text = "\ufefflabels, predicted ,score\r\n0,1,3\r\n\r\n 1 ,1, 1e-3\r\n"
    path.write_bytes(text.encode("utf-8"))
    p = load_predictions(path)
    assert p.is_error.tolist() == [True, False]
    np.testing.assert_array_equal(p.uncertainty["score"], [3, 0.001])


def test_a_csv_without_labels_is_of_samples_from_elsewhere(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("predicted,u\n3,0.5\n0,0.25\n")
    p = load_predictions(path)
    assert p.labels is None and p.is_error.all()


def test_class_probabilities_of_a_csv_may_stand_in_any_order(tmp_path):
    path = tmp_path / "scores.csv"
    names = [f"probs_{k}" for k in (10, 2, 0, 1, *range(3, 10))]
    path.write_text(f"labels,u,{','.join(names)}\n2,0.1,0.25,0.75{',0' * 9}\n")
    p = load_predictions(path)
    np.testing.assert_array_equal(p.probs[0, [2, 10]], [0.75, 0.25])
    assert p.predicted.tolist() == [2] and list(p.uncertainty) == ["u"]


BAD_CSV = {
    "nothing": ("", "expected names in the first line, received none"),
    "only names": ("labels,predicted,u\n", "expected at least one row, received none"),
    "twice": ("labels,predicted,u,u\n1,1,2,3\n", "u: expected one column of this name"),
    "short": ("labels,predicted,u\n1,1,.5\n1,1\n", "expected 3 entries, received 2 in line 3"),
    "long": ("labels,predicted,u\n1,1,.5,7\n", "expected 3 entries, received 4 in line 2"),
    "an open quote": ('labels,predicted,u,name\n0,1,.1,"a\n1,1,.2,x\n', "unexpected end of data"),
    "word": (
        "labels,predicted,u\n1,1,.5\n\n1,1,high\n",
        "u: expected a finite number, received 'high' in line 4",
    ),
    "empty": (
        "labels,predicted,u\n1,1,.5\n1,1,\n",
        "u: expected a finite number, received none in line 3",
    ),
    "class name": (
        "labels,predicted,u\n1,1,.5\ncat,1,.5\n",
        "labels: expected a class number, received 'cat' in line 3",
    ),
    "class names": (
        "labels,predicted,u\ncat,1,.5\n",
        "labels: expected a class number, received 'cat'",
    ),
    "float label": (
        "labels,predicted,u\n1.5,1,.5\n",
        "labels: expected a class number, received '1.5' in line 2",
    ),
    "huge label": (
        f"labels,predicted,u\n{10**30},1,.5\n",
        "labels: expected a class number, received '10",
    ),
    "NaN": (
        "labels,predicted,u\n1,1,.5\n\n1,1,nan\n",
        "u: expected a finite number, received 'nan' in line 4; leave the row out",
    ),
    "negative": (
        "labels,predicted,u\n1,1,.5\n-1,1,.5\n",
        "labels: expected a class number, received '-1' in line 3",
    ),
    "several lines in one": (
        'labels,predicted,u,name\n1,1,.5,"a\nb"\n1,1,.5,c\n1,-2,.5,d\n',
        "predicted: expected a class number, received '-2' in line 5",
    ),
    "gap": (
        "labels,u,probs_0,probs_2\n0,.5,.5,.5\n",
        "probs_0 to probs_1, received probs_0, probs_2",
    ),
    "probability": (
        "labels,u,probs_0,probs_1\n0,.5,x,.5\n",
        "probs_0: expected a finite number, received 'x' in line 2",
    ),
    "no sum": (
        "labels,u,probs_0,probs_1\n0,.5,.5,.4\n",
        "probs: expected rows that sum to 1, received 0.9 in line 2",
    ),
    "no score": ("labels,predicted\n1,1\n", "at least one uncertainty column"),
    "odd name": ("labels,predicted,my u\n1,1,.5\n", "named by letters.*received 'my u'"),
    "Latin-1": (
        "labels,predicted,sc\xf6re\n1,1,.5\n".encode("latin-1"),
        "expected names in UTF-8, received the byte 0xf6",
    ),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_a_bad_csv_is_named_with_line_and_reason(tmp_path, case):
    content, message = BAD_CSV[case]
    path = tmp_path / "theirs.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=f"theirs.csv: no predictions file: .*{message}"):
        load_predictions(path)


def test_any_plain_word_may_name_a_column(tmp_path):
    u = predictions().uncertainty["mcp"]
    named = predictions(uncertainty={"file": u, "allow_pickle": u, "0": u})
    save_predictions(tmp_path / "p.npz", named)
    assert_same(load_predictions(tmp_path / "p.npz"), named)


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
    "no answers": (
        bad(probs=None, predicted=None),
        "expected probs or predicted, received labels, btcp, mcp, trust-score",
    ),
    "no answers and no labels": (
        bad(labels=None, probs=None, predicted=None),
        "expected probs or predicted, received btcp",
    ),
    "no labels, bad answers": (
        bad(labels=None, probs=None, **put("predicted", 7, -1)),
        "predicted: expected classes >= 0, received -1 in row 7",
    ),
    "no columns": (
        bad(btcp=None, mcp=None, **{"trust-score": None}),
        "at least one uncertainty column",
    ),
    "labels out of range": (
        bad(**put("labels", 7, 3)),
        "labels: expected classes 0 to 2, received 3 in row 7",
    ),
    "labels from 1": (
        bad(labels=OTHER + 1),
        "labels: expected classes 0 to 2, received 3 in row .*; subtract 1 if they count from 1",
    ),
    "negative label": (bad(**put("labels", 7, -1)), "received -1 in row 7"),
    "labels without probs": (
        bad(**put("labels", 7, -1), probs=None),
        "labels: expected classes >= 0, received -1 in row 7",
    ),
    "label column": (
        bad(labels=OTHER[:, None]),
        r"labels: expected shape \[n\], n > 0, received \[60, 1\]",
    ),
    "no rows": (bad(labels=OTHER[:0]), r"labels: expected shape \[n\], n > 0, received \[0\]"),
    "float labels": (bad(labels=OTHER + 0.5), r"labels: expected integers, received \d.5 in row 0"),
    "bool labels": (bad(labels=OTHER > 0), "labels: expected integers, received dtype bool"),
    "predicted out of range": (
        bad(**put("predicted", 2, 9)),
        "predicted: expected classes 0 to 2, received 9 in row 2",
    ),
    "short predicted": (
        bad(predicted=OTHER[:5]),
        r"predicted: expected shape \[60\], received \[5\]",
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
        r"probs: expected shape \[60, k\], k > 1, received \[60\]",
    ),
    "integer probs": (bad(probs=np.eye(3, dtype=int)[OTHER]), "probs: expected floats"),
    "NaN in u": (
        bad(**put("btcp", 3, np.nan)),
        "btcp: expected finite numbers, received nan in row 3; leave the row out",
    ),
    "infinite u": (
        bad(**put("btcp", 3, np.inf)),
        "btcp: expected finite numbers, received inf in row 3",
    ),
    "short u": (bad(btcp=np.zeros(7)), r"btcp: expected shape \[60\], received \[7\]"),
    "column of u": (
        bad(btcp=np.zeros((60, 1))),
        r"btcp: expected shape \[60\], received \[60, 1\]",
    ),
    "integer u": (bad(btcp=OTHER), "btcp: expected floats, received dtype int64"),
    "odd name": (
        bad(btcp=None, mcp=None, **{"trust-score": None, "my score": np.zeros(60)}),
        "named by letters.*received 'my score'",
    ),
    "objects": (bad(btcp=np.array([None] * 60)), "it holds an array of Python objects"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_predictions_file_is_named_with_what_is_wrong(tmp_path, case):
    content, message = BAD_FILES[case]
    path = tmp_path / "theirs.npz"
    np.savez(path, allow_pickle=True, **content)
    with pytest.raises(ValueError, match=f"theirs.npz: no predictions file: .*{message}"):
        load_predictions(path)


def test_a_damaged_predictions_file_is_named(tmp_path):
    whole, path = tmp_path / "whole.npz", tmp_path / "theirs.npz"
    save_predictions(whole, predictions())
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
            load_predictions(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        load_predictions(tmp_path / "absent.npz")


@pytest.mark.parametrize("name", ["labels", "probs", "predicted", "accept", "a/b", "x.npy", ""])
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
    rows = results.rows(p, **ABOUT, **HOW)
    assert [row["method"] for row in rows] == ["btcp", "mcp", "trust-score"]
    draws = metrics.bootstrap(p.is_error, p.uncertainty, tau=0.5, draws=50, seed=11)
    for row in rows:
        assert {name: row[name] for name in ABOUT} == ABOUT
        assert (row["task"], row["ood"]) == ("failure", "")
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
    rows = results.rows(
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
    assert by_method["twin"]["verdict"] == "not distinguishable"
    assert not any("minus" in key for key in by_method["mcp"])
    assert by_method["mcp"]["verdict"] == ""
    alone = results.rows(predictions(uncertainty={"twin": twin}), **ABOUT, **HOW)
    assert not any("minus" in key for key in alone[0])
    assert alone[0]["verdict"] == ""


def test_rows_without_errors_say_so():
    p = predictions(labels=predictions().predicted)
    with pytest.warns(RuntimeWarning, match="no errors among 60 rows"):
        row = results.rows(p, **ABOUT, **HOW)[0]
    assert (row["errors"], row["accuracy"], row["aurc"], row["aurc_high"]) == (0, 1, 0, 0)
    for name in ("auroc", "auroc_low", "auroc_high", "auroc_minus_mcp", "auroc_minus_mcp_low"):
        assert math.isnan(row[name])
    assert row["verdict"] == ""


def test_a_raw_score_has_no_threshold_or_calibration_cells():
    row = results.rows(predictions(), **ABOUT, **HOW)[2]
    for name in ("bacc", "fpr", "ece", "brier_low"):
        assert math.isnan(row[name])
    assert 0 < row["auroc_low"] < row["auroc"] < row["auroc_high"] < 1


def test_a_score_that_is_said_to_be_raw_has_none_either():
    plain, raw = (
        {row["method"]: row for row in results.rows(predictions(), **ABOUT, **HOW, raw=names)}
        for names in ([], ["btcp"])
    )
    for name, metric in metrics.METRICS.items():
        for column in (name, f"{name}_low", f"{name}_high"):
            if metric.kind == "ranking":
                assert raw["btcp"][column] == plain["btcp"][column]
            else:
                assert math.isnan(raw["btcp"][column]) and math.isfinite(plain["btcp"][column])
    assert raw["btcp"]["auroc_minus_mcp_low"] == plain["btcp"]["auroc_minus_mcp_low"]
    np.testing.assert_equal(raw["mcp"], plain["mcp"])


def test_a_method_may_have_a_threshold_of_its_own():
    p = predictions()
    twice = dataclasses.replace(p, uncertainty=dict(p.uncertainty, moved=p.uncertainty["btcp"]))
    rows = results.rows(twice, **ABOUT, **HOW, taus={"moved": 0.3, "absent": 0.1})
    by_method = {row["method"]: row for row in rows}
    assert [by_method[name]["tau"] for name in ("btcp", "moved")] == [0.5, 0.3]
    alone = results.rows(p, **ABOUT, **HOW | {"tau": 0.3})[0]
    np.testing.assert_equal(by_method["moved"] | {"method": "btcp"}, alone)
    assert by_method["moved"]["bacc"] != by_method["btcp"]["bacc"]


@pytest.mark.parametrize("sign, verdict", [(1, "better"), (-1, "worse")])
def test_the_verdict_follows_the_paired_interval(sign, verdict):
    p = predictions(n=300)
    generator = np.random.default_rng(1)
    u = 0.5 + sign * 0.2 * (p.is_error - 0.5) + 0.01 * generator.random(300)
    mixed = np.where(generator.random(300) < 0.5, u, 0.5)
    rows = results.rows(
        dataclasses.replace(p, uncertainty={"mcp": np.full(300, 0.5), "mine": mixed}),
        **ABOUT,
        **HOW,
    )
    low, high = (rows[1][f"auroc_minus_mcp_{end}"] for end in ("low", "high"))
    assert low > 0 if sign > 0 else high < 0
    assert [row["verdict"] for row in rows] == ["", verdict]


# OOD.


def elsewhere(n: int = 40) -> Predictions:
    """Answers to samples from elsewhere; no column for what needs labels."""
    generator = np.random.default_rng(5)
    probs = generator.dirichlet([1.0] * 3, n).astype(np.float32)
    return Predictions(
        labels=None,
        probs=probs,
        predicted=probs.argmax(axis=1),
        uncertainty={
            "trust-score": 9 * generator.random(n),
            "mcp": 1 - probs.max(axis=1),
            "btcp": (0.2 + 0.8 * generator.random(n)).astype(np.float32),
        },
    )


OOD_ABOUT = dict(dataset="digits", seed=3, stage="frozen", classifier_id="digits-3")


def test_ood_rows_hold_both_tasks_of_the_methods_of_both_sets():
    p, ood = predictions(), elsewhere()
    p = dataclasses.replace(p, uncertainty=dict(p.uncertainty, oracle=p.is_error * 1.0))
    rows = results.ood_rows(p, ood, ood_name="letters", **OOD_ABOUT, **HOW, taus={"mcp": 0.4})
    keys = [(row["task"], row["method"]) for row in rows]
    assert keys == [
        (task, name) for task in ("ood", "joint") for name in ("btcp", "mcp", "trust-score")
    ]
    is_ood = np.arange(100) >= 60
    is_failure = np.concatenate([p.is_error, np.ones(40, bool)])
    for row in rows:
        assert {name: row[name] for name in OOD_ABOUT} == OOD_ABOUT
        assert (row["split"], row["ood"], row["n"], row["n_ood"]) == ("test", "letters", 60, 40)
        assert (row["errors"], row["accuracy"]) == (
            p.is_error.sum(),
            pytest.approx(1 - p.is_error.mean()),
        )
        name = row["method"]
        assert row["tau"] == (0.4 if name == "mcp" else 0.5)
        u = np.concatenate([p.uncertainty[name], ood.uncertainty[name]])
        target = is_ood if row["task"] == "ood" else is_failure
        assert row["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(target, u))
        assert row["auroc_low"] < row["auroc"] < row["auroc_high"]
        if row["task"] == "ood":
            average_precision = sklearn.metrics.average_precision_score
            assert row["aupr_ood"] == pytest.approx(average_precision(is_ood, u))
            assert row["aupr_id"] == pytest.approx(average_precision(~is_ood, -u))
            acc, au = np.mean(ood.uncertainty[name] >= row["tau"]), ood.uncertainty[name].mean()
            raw = name == "trust-score"
            expected = [math.nan, math.nan] if raw else [acc, au]
            assert [row["ood_acc"], row["ood_au"]] == pytest.approx(expected, nan_ok=True)
            assert not any(key in row for key in ("aurc", "bacc", "aupr_error"))
        else:
            expected = metrics.evaluate_all(target, u, tau=row["tau"])
            assert {key: row[key] for key in expected} == pytest.approx(expected, nan_ok=True)
            assert not any(key in row for key in metrics.OOD_METRICS if key not in expected)
        others = {"ood": {"auroc", "fpr95"}, "joint": {"auroc", "aupr_error", "aurc"}}
        compared = {key.removesuffix("_minus_mcp") for key in row if key.endswith("_minus_mcp")}
        assert compared == (set() if name == "mcp" else others[row["task"]])
        assert (row["verdict"] == "") == (name == "mcp")


def test_ood_intervals_are_paired_and_keep_the_sizes():
    p, ood = predictions(), elsewhere()
    rows = results.ood_rows(p, ood, ood_name="letters", **OOD_ABOUT, **HOW)
    columns = {
        name: np.concatenate([p.uncertainty[name], ood.uncertainty[name]])
        for name in ("btcp", "mcp")
    }
    draws = metrics.bootstrap(
        np.arange(100) >= 60,
        columns,
        tau=0.5,
        draws=50,
        seed=11,
        table=metrics.OOD_METRICS,
        parts=(60, 40),
    )
    for name in ("auroc", "fpr95"):
        expected = metrics.interval(draws["btcp"][name] - draws["mcp"][name])
        received = tuple(rows[0][f"{name}_minus_mcp_{end}"] for end in ("low", "high"))
        assert received == expected


def test_ood_rows_need_a_common_method():
    ood = dataclasses.replace(elsewhere(), uncertainty={"mine": np.zeros(40)})
    with pytest.raises(
        ValueError, match="letters: expected an uncertainty among btcp, mcp.*received mine"
    ):
        results.ood_rows(predictions(), ood, ood_name="letters", **OOD_ABOUT, **HOW)


# Several seeds.


def seed_rows(values: dict[int, float], **changes) -> list[dict]:
    """A row for each seed: a difference with an interval of -0.01 to +0.03 about it."""
    same = ABOUT | dict(method="btcp", task="failure", ood="", n=60, tau=0.5, verdict="better")
    return [
        same
        | dict(
            seed=seed,
            errors=10 + seed,
            accuracy=0.8,
            classifier_id=f"id-{seed}",
            auroc_minus_mcp=value,
            auroc_minus_mcp_low=value - 0.01,
            auroc_minus_mcp_high=value + 0.03,
        )
        | changes
        for seed, value in values.items()
    ]


def test_across_seeds_is_mean_sd_and_the_interval_of_both_sources():
    values = {0: 0.02, 1: 0.05, 4: 0.11}
    (row,) = across_seeds(seed_rows(values))
    mean, sd = np.mean(list(values.values())), np.std(list(values.values()), ddof=1)
    training = scipy.stats.t.ppf(0.975, 2) * sd / math.sqrt(3)
    expected = dict(
        dataset="digits",
        method="btcp",
        stage="frozen",
        task="failure",
        split="test",
        ood="",
        n=60,
        seeds=3,
        errors=pytest.approx(10 + 5 / 3),
        tau=0.5,
        accuracy=pytest.approx(0.8),
        accuracy_sd=pytest.approx(0),
        auroc_minus_mcp=pytest.approx(mean),
        auroc_minus_mcp_sd=pytest.approx(sd),
        auroc_minus_mcp_low=pytest.approx(mean - math.hypot(training, 0.01)),
        auroc_minus_mcp_high=pytest.approx(mean + math.hypot(training, 0.03)),
        verdict="not distinguishable",
    )
    assert row == expected


def test_one_seed_keeps_its_own_interval():
    found = results.rows(predictions(), **ABOUT, **HOW)
    for one, row in zip(found, across_seeds(found), strict=True):
        assert row["seeds"] == 1
        for name, value in one.items():
            if name not in ("seed", "classifier_id"):
                np.testing.assert_equal(row[name], value, err_msg=name)
        for name in metrics.METRICS:
            assert math.isnan(row[f"{name}_sd"])


def test_the_verdict_over_seeds_is_that_of_their_mean():
    assert across_seeds(seed_rows({0: 0.5, 1: 0.501, 2: 0.502}))[0]["verdict"] == "better"
    assert across_seeds(seed_rows({0: -0.5, 1: -0.501, 2: -0.502}))[0]["verdict"] == ("worse")
    # Alike in all seeds, but within what the shared test set's draw can do.
    rows = seed_rows({0: 0.005, 1: 0.005, 2: 0.005})
    assert across_seeds(rows)[0]["verdict"] == "not distinguishable"


def test_groups_stay_apart_in_order_and_keep_their_names():
    rows = [
        *seed_rows({0: 0.1, 1: 0.2}),
        *seed_rows({0: 0.3}, task="joint", ood="letters", n_ood=40),
        *seed_rows({0: 0.4}, split="test:noise2"),
        *seed_rows({0: 0.5}, ablation="gamma=0"),
        *seed_rows({0: 0.6, 1: 0.8}, answers="tcp", stage="finetuned"),
        *seed_rows({0: 0.7}, answers="btcp", stage="finetuned"),
    ]
    means = across_seeds(rows)
    values = [row["auroc_minus_mcp"] for row in means]
    assert values == pytest.approx([0.15, 0.3, 0.4, 0.5, 0.7, 0.7])
    assert [row["seeds"] for row in means] == [2, 1, 1, 1, 2, 1]
    assert (means[1]["ood"], means[1]["n_ood"], means[3]["ablation"]) == ("letters", 40, "gamma=0")
    assert [row.get("answers") for row in means] == [None] * 4 + ["tcp", "btcp"]
    assert not across_seeds([])


def test_an_interval_over_seeds_ends_where_the_values_of_its_metric_do():
    rows = [
        row | {f"{name}{end}": value for name in ("auroc", "nll") for end in ("", "_low", "_high")}
        for value, row in zip((0.1, 0.9), seed_rows({0: -0.3, 1: 0.5}), strict=True)
    ]
    (row,) = across_seeds(rows)
    ends = [
        row[f"{name}_{end}"]
        for name in ("auroc_minus_mcp", "auroc", "nll")
        for end in ("low", "high")
    ]
    # Two seeds alone: Student's factor is 12.7.
    assert ends == [-1, 1, 0, 1, 0, pytest.approx(0.5 + 12.706 * 0.4, rel=1e-4)]


def test_what_is_undefined_for_one_seed_is_undefined_for_all():
    rows = seed_rows({0: 0.1, 1: math.nan})
    (row,) = across_seeds(rows)
    for end in ("", "_sd", "_low", "_high"):
        assert math.isnan(row[f"auroc_minus_mcp{end}"])
    assert (row["verdict"], row["errors"]) == ("", 10.5)
    # One run without mcp beside the method.
    del rows[1]["auroc_minus_mcp"], rows[1]["auroc_minus_mcp_low"], rows[1]["auroc_minus_mcp_high"]
    for order in (rows, rows[::-1]):
        assert math.isnan(across_seeds(order)[0]["auroc_minus_mcp"])


def test_rows_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="digits, btcp, frozen.*each seed, received seeds 0, 1, 0"):
        across_seeds([*seed_rows({0: 0.1, 1: 0.2}), *seed_rows({0: 0.3})])
    rows = [*seed_rows({0: 0.1}), *seed_rows({1: 0.2}, n=50)]
    with pytest.raises(ValueError, match=r"expected the same n for all seeds, received \[50, 60\]"):
        across_seeds(rows)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("training_sd, test_sd", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.5), (0.5, 1.0)])
def test_the_interval_over_seeds_covers_the_truth(seeds, training_sd, test_sd):
    """Studies of a method whose true difference is 0, all seeds on one draw of the test set."""
    generator = np.random.default_rng(3)
    studies = 1000
    shared = test_sd * generator.standard_normal((studies, 1))
    values = shared + training_sd * generator.standard_normal((studies, seeds))
    half = scipy.stats.norm.ppf(0.975) * test_sd
    covered = 0
    for found in values:
        low, high = _interval_of_mean(found, found - half, found + half)
        covered += low <= 0 <= high
    # 95 %, the standard error of 1,000 studies being 0.7 %.
    assert 0.925 < covered / studies < 0.985


def test_epoch_metrics():
    is_error, u = [0, 0, 1, 1, 0], np.float32([0.1, 0.5, 0.5, 0.9, 0.2])
    point = results.epoch_metrics(is_error, u, tau=0.5)
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
        point = results.epoch_metrics([errors] * 3, [0.1, 0.2, 0.9], tau=0.5)
    assert math.isnan(point["auroc"]) and point["aurc"] == errors


def test_rows_come_back_from_the_disk(tmp_path):
    path = tmp_path / "run" / "results.json"
    rows = results.rows(predictions(), **ABOUT, **HOW)
    extra = {
        "gamma": {"btcp": np.float32(2.5), "uncapped": math.inf, "below": -math.inf},
        "notes": ("a part of cifar10: 10 000 images — no reproduction",),
        "ess": None,
        "curve": np.array([1.0, np.nan]),
        "done": np.bool_(True),
        7: np.int64(3),
    }
    results.save_rows(path, rows, extra)
    loaded, loaded_extra = results.load_rows(path)
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

    again = results.rows(predictions(), **ABOUT, **HOW)
    reordered = [dict(reversed(row.items())) for row in again]
    results.save_rows(tmp_path / "again.json", reordered, dict(reversed(extra.items())))
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
        results.load_rows(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    save_predictions(path, predictions())
    before = path.read_bytes()

    def full_disk(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(np.lib.format, "write_array", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_predictions(path, predictions(n=30))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def scores(ending, path, p, more=()):
    """The predictions as `btcp_tf.predict` writes them, made by hand; one row has no answer."""
    rows = []
    for row in range(len(p.labels)):
        rows.append(
            {
                # Names that look like numbers are none.
                "input": str(row),
                "labels": int(p.labels[row]),
                "predicted": int(p.predicted[row]),
                "class_name": str(p.predicted[row]),
                "probs": p.probs[row].astype(float).tolist(),
                "uncertainty": float(p.uncertainty["mcp"][row]),
                "accept": bool(row % 2),
                "problem": None,
            }
        )
    rows.insert(3, dict.fromkeys(rows[0]) | {"input": "a,\n b", "labels": 0, "problem": "empty"})
    rows += more
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        k = p.probs.shape[1]
        for row in rows:
            probs = row.pop("probs") or [None] * k
            row |= {f"probs_{number}": entry for number, entry in enumerate(probs)}
            row["accept"] = {True: "true", False: "false", None: None}[row["accept"]]
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_scores_are_read_without_rows_that_have_no_answer(tmp_path, ending):
    p = predictions(n=20)
    found = load_predictions(scores(ending, tmp_path / f"s{ending}", p))
    np.testing.assert_array_equal(found.labels, p.labels)
    np.testing.assert_array_equal(found.predicted, p.predicted)
    np.testing.assert_array_equal(found.probs, p.probs)
    assert list(found.uncertainty) == ["uncertainty"]
    np.testing.assert_array_equal(found.uncertainty["uncertainty"], p.uncertainty["mcp"])


def test_a_table_is_read_with_all_its_columns_of_numbers(tmp_path):
    lines = [
        {"predicted": 0, "labels": 1, "mine": 0.5, "other": 3, "input": 7, "note": "a"},
        {"predicted": 1, "labels": 1, "mine": 1, "other": 4, "input": 8, "note": "b"},
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    table = pyarrow.Table.from_pylist(lines)
    parquet.write_table(table, tmp_path / "s.parquet")
    for name in ("s.jsonl", "s.parquet"):
        found = load_predictions(tmp_path / name, reverse=["mine"])
        assert {key: u.tolist() for key, u in found.uncertainty.items()} == {
            "mine": [0.5, 0],
            "other": [3, 4],
        }


GOOD_LINE = '{"predicted": 0, "labels": 1, "u": 0.5}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one row, received none"),
        (GOOD_LINE + "{", "expected a JSON object, received Expecting .* in line 2"),
        ("[1]\n", "expected a JSON object, received list in line 1"),
        (
            GOOD_LINE + '{"predicted": 0}\n',
            "labels: expected a class number, received none in line 2",
        ),
        (
            GOOD_LINE + GOOD_LINE.replace("1", "true"),
            "labels: expected a class number, received True",
        ),
        (
            GOOD_LINE + GOOD_LINE.replace("1", "1.5"),
            "labels: expected a class number, received 1.5",
        ),
        (
            GOOD_LINE + GOOD_LINE.replace("0.5", "null"),
            "u: expected a finite number, received none in line 2",
        ),
        (
            GOOD_LINE + GOOD_LINE.replace("0.5", "NaN"),
            "u: expected a finite number, received nan in line 2",
        ),
        (
            GOOD_LINE + "\n" + GOOD_LINE.replace("1", "-1"),
            "labels: expected a class number, received -1 in line 3",
        ),
        (
            '{"probs": [0.5, 0.5], "u": 1}\n{"probs": [0.5], "u": 1}\n',
            "a list of 2 numbers, received \\[0.5\\] in line 2",
        ),
        ('{"probs": [], "u": 1}\n', "expected a list of 2 numbers, received \\[\\] in line 1"),
        ('{"predicted": 0, "u": 1, "problem": "bad"}\n', "received 1 with a problem: bad"),
    ],
)
def test_a_bad_jsonl_is_named_with_line_and_reason(tmp_path, content, message):
    path = tmp_path / "theirs.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"theirs.jsonl: no predictions file: .*{message}"):
        load_predictions(path)


def test_a_bad_parquet_is_named_with_its_reason(tmp_path):
    path = tmp_path / "theirs.parquet"
    with pytest.raises(OSError, match="theirs.parquet"):
        load_predictions(path)
    for table, message in (
        (None, "expected a Parquet file, received"),
        (
            {"predicted": [1.5], "u": [0.5]},
            "predicted: expected a class number, received 1.5 in row 0",
        ),
        (
            {"predicted": [1], "u": [0.5], "problem": ["x"]},
            "expected a row with an answer, received 1 with a",
        ),
        ({"u": pyarrow.array([], "float32")}, "expected at least one row, received none"),
        ({"words": ["a"]}, "expected probs or predicted"),
    ):
        path.write_bytes(b"PAR1 no")
        if table:
            parquet.write_table(pyarrow.table(table), path)
        with pytest.raises(ValueError, match=f"theirs.parquet: no predictions file: {message}"):
            load_predictions(path)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_answers_are_read_with_the_decisions_and_what_is_left_out(tmp_path, ending):
    p = predictions(n=20)
    unlabeled = {
        "input": "late",
        "labels": None,
        "predicted": 0,
        "class_name": "0",
        "probs": np.eye(p.probs.shape[1])[0].tolist(),
        "uncertainty": 0.5,
        "accept": True,
        "problem": None,
    }
    path = scores(ending, tmp_path / f"s{ending}", p, [unlabeled])
    found = load_answers(path)
    np.testing.assert_array_equal(found.predictions.labels, p.labels)
    np.testing.assert_array_equal(found.accept, np.arange(20) % 2 == 1)
    assert found.inputs == list(map(str, range(20)))
    assert (found.unanswered, found.unlabeled) == (1, 1)
    # Who does not ask what is left out is told of it.
    with pytest.raises(ValueError, match="labels: expected a class number .*received none in"):
        load_predictions(path)


def test_a_file_that_decides_nothing_has_no_decisions(tmp_path):
    p = predictions(n=20)
    save_predictions(tmp_path / "p.npz", p)
    found = load_answers(tmp_path / "p.npz")
    assert_same(found.predictions, p)
    assert (found.accept, found.inputs, found.unanswered, found.unlabeled) == (None, None, 0, 0)
    (tmp_path / "p.csv").write_text("labels,predicted,u,accept\n0,0,0.5,\n0,0,0.5,\n")
    assert load_answers(tmp_path / "p.csv").accept is None
