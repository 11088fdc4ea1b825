"""Baselines and scores are read as they were written, or refused in words."""

import dataclasses
import datetime
import json

import numpy as np
import pytest
from production import (
    NAMES,
    TAU,
    WRITERS,
    answers,
    rows_of,
    threshold,
    write_csv,
    write_jsonl,
    write_labels,
    write_model,
    write_run,
)

from btcp_tf.decisions import decision_file, exported, scores
from btcp_tf.decisions.scores import Scores
from btcp_tf.evaluation import predictions, results, tabular
from btcp_tf.evaluation.predictions import ENDINGS, Predictions
from btcp_tf.thresholds import Threshold


@pytest.fixture(scope="module")
def calibration():
    return answers(120, 0)


# Baselines -------------------------------------------------------------------------------------


def test_a_run_a_model_and_a_file_are_the_same_baseline(tmp_path, calibration):
    write_model(tmp_path / "models" / "9", answers(50, 1))
    write_model(tmp_path / "models" / "10", calibration)
    predictions.save_predictions(tmp_path / "some.npz", calibration)
    run = scores.load_baseline(write_run(tmp_path / "run", calibration))
    model = scores.load_baseline(tmp_path / "models" / "10")
    newest = scores.load_baseline(tmp_path / "models")
    file = scores.load_baseline(tmp_path / "some.npz")
    for found in (run, model, newest, file):
        np.testing.assert_array_equal(found.uncertainty, calibration.uncertainty["uncertainty"])
        np.testing.assert_array_equal(found.predicted, calibration.predicted)
        assert found.uncertainty.dtype == np.float32 and found.classes == 3
    assert (run.column, model.column, file.column) == ("btcp", "uncertainty", "uncertainty")
    assert run.threshold == model.threshold == newest.threshold == Threshold(**threshold())
    assert file.threshold is None
    assert run.class_names == model.class_names == NAMES and file.class_names is None


def test_a_threshold_that_accepts_nothing_and_one_that_promises_nothing(tmp_path, calibration):
    none = scores.load_baseline(write_run(tmp_path / "none", calibration, tau=None))
    best = scores.load_baseline(write_run(tmp_path / "best", calibration, target=None, delta=None))
    assert none.threshold.tau is None and none.threshold.target == 0.05
    assert best.threshold.tau == TAU and best.threshold.target is None


def test_a_column_is_chosen_by_name_where_there_are_several(tmp_path, calibration):
    u = calibration.uncertainty["uncertainty"]
    many = Predictions(calibration.labels, None, calibration.predicted, {"mcp": u, "btcp": u / 2})
    predictions.save_predictions(tmp_path / "many.npz", many)
    found = scores.load_baseline(tmp_path / "many.npz", column="btcp")
    np.testing.assert_array_equal(found.uncertainty, u / 2)
    with pytest.raises(ValueError, match="expected one uncertainty column, or --column, received"):
        scores.load_baseline(tmp_path / "many.npz")
    with pytest.raises(ValueError, match="expected an uncertainty column tcp, received mcp, btcp"):
        scores.load_baseline(tmp_path / "many.npz", column="tcp")


def change_decision(folder, **changes):
    file = folder / "decision.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v != "gone"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "decision.json").unlink(), "baseline: expected a run's folder with"),
        (lambda run: (run / "decision.json").write_text('{"thr'), "decision.json: expected JSON"),
        (lambda run: (run / "decision.json").write_text("[1]"), "expected a JSON object"),
        (
            lambda run: (run / "predictions_calibration.npz").unlink(),
            "expected the calibration set's answers in .*the run is not complete",
        ),
        (
            lambda run: (run / "predictions_calibration.npz").write_bytes(b"PK\x03\x04"),
            "predictions_calibration.npz: no predictions file",
        ),
        (lambda run: change_decision(run, threshold="gone"), "expected a threshold with tau"),
        (lambda run: change_decision(run, threshold={"risk": 1}), "expected a threshold with tau"),
        (lambda run: change_decision(run, threshold={"tau": "x"}), "tau: expected a finite number"),
        (
            lambda run: change_decision(run, threshold=threshold(target=5)),
            "target: expected a number between 0 and 1 or null, received 5",
        ),
        (lambda run: change_decision(run, column="gone"), "expected the names predictions and"),
        (lambda run: change_decision(run, column="tcp"), "expected an uncertainty column tcp"),
        (
            lambda run: results.save_rows(
                run / "results.json", [], {"data": {"class_names": ["cat", "dog"]}}
            ),
            "expected answers of 2 classes, as many as have names, received 3",
        ),
    ],
)
def test_a_run_that_is_not_whole_says_what_is_missing(tmp_path, calibration, damage, message):
    run = write_run(tmp_path / "run", calibration)
    damage(run)
    with pytest.raises(ValueError, match=message):
        scores.load_baseline(run)


def test_a_model_without_calibration_rows_says_so(tmp_path):
    write_model(tmp_path / "1", None)
    with pytest.raises(
        ValueError, match="expected the calibration set's answers in .*name the run"
    ):
        scores.load_baseline(tmp_path)


# Scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("labels", [False, True])
def test_scores_of_every_form_are_the_same(tmp_path, ending, labels):
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    given = answers(30, 2)
    path = WRITERS[ending](tmp_path / f"s{ending}", rows_of(given, labels=labels, broken=(0, 7)))
    found = scores.load_scores(path)
    kept = np.delete(np.arange(30), [0, 7])
    np.testing.assert_array_equal(found.uncertainty, given.uncertainty["uncertainty"][kept])
    np.testing.assert_array_equal(found.predicted, given.predicted[kept])
    np.testing.assert_array_equal(found.accept, given.uncertainty["uncertainty"][kept] < TAU)
    assert found.inputs == tuple(f"x_test[{n}]" for n in kept)
    assert found.problems == ("x_test[0]", "x_test[7]") and found.classes == 3
    assert found.class_names == dict(enumerate(NAMES))
    if labels:
        np.testing.assert_array_equal(found.labels, given.labels[kept])
    else:
        assert found.labels is None
    # The package's own reader of such files agrees.
    same = predictions.load_predictions(path)
    np.testing.assert_array_equal(same.predicted, found.predicted)
    np.testing.assert_array_equal(same.uncertainty["uncertainty"], found.uncertainty)


def test_a_predictions_file_of_another_program_is_read(tmp_path):
    given = answers(30, 2)
    u = given.uncertainty["uncertainty"]
    many = Predictions(None, None, given.predicted, {"mcp": u, "btcp": u / 2})
    predictions.save_predictions(tmp_path / "s.npz", many)
    found = scores.load_scores(tmp_path / "s.npz", ["uncertainty", "btcp"])
    assert found.column == "btcp" and found.labels is None and found.inputs is None
    lines = ["name,probs_0,probs_1,score", "a,0.2,0.8,0.5", "b,0.6,0.4,0.1"]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    found = scores.load_scores(tmp_path / "s.csv", ["uncertainty", "btcp"])
    assert found.predicted.tolist() == [1, 0] and found.column == "score"


def test_labels_may_be_known_for_some_rows(tmp_path):
    rows = rows_of(answers(5, 3), labels=True)
    rows[1]["labels"] = rows[4]["labels"] = None
    for writer, name in ((write_csv, "s.csv"), (write_jsonl, "s.jsonl")):
        found = scores.load_scores(writer(tmp_path / name, rows))
        assert (found.labels == -1).tolist() == [False, True, False, False, True]


def test_names_that_are_not_utf8_survive(tmp_path):
    rows = rows_of(answers(2, 3))
    rows[0]["input"] = b"caf\xe9,\n.png".decode("utf-8", "surrogateescape")
    found = scores.load_scores(write_csv(tmp_path / "s.csv", rows))
    assert found.inputs[0] == rows[0]["input"]
    assert tabular.shown(found.inputs[0]) == "caf\\udce9,\n.png"


def test_class_names_are_compared_without_white_space_at_their_ends(tmp_path):
    rows = [row | {"class_name": f"c{row['predicted']}\r"} for row in rows_of(answers(6, 3))]
    found = scores.load_scores(write_csv(tmp_path / "s.csv", rows))
    assert set(found.class_names.values()) == {f"c{number}" for number in found.class_names}


def csv_of(tmp_path, *lines):
    (tmp_path / "s.csv").write_text("\n".join(lines))
    return tmp_path / "s.csv"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "expected names in the first line"),
        (["predicted,uncertainty"], "expected at least one row, received none"),
        (["predicted,u", "1,0.5"], "expected the column uncertainty, received predicted, u"),
        (["predicted,uncertainty", "1,0.5", "1"], "expected 2 entries, received 1 in line 3"),
        (["predicted,uncertainty", "x,0.5"], "predicted: expected a class number, received 'x'"),
        (["predicted,uncertainty", "-1,0.5"], "predicted: expected a class number, received '-1'"),
        (["predicted,uncertainty", "1,nan"], "uncertainty: expected a finite number, .* in line 2"),
        (["predicted,uncertainty", "1,"], "uncertainty: expected a finite number, received none"),
        (["predicted,uncertainty,labels", "1,0.1,two"], "labels: expected a class number or noth"),
        (["predicted,uncertainty,accept", "1,0.1,yes"], "accept: expected true or false"),
        (
            ["input,predicted,uncertainty,problem", "a,,,broken"],
            "received 1 with a problem: broken",
        ),
        (["predicted,uncertainty", '"1,0.5'], "expected rows of text"),
        (["uncertainty,uncertainty", "1,2"], "expected one column uncertainty, received 2"),
    ],
)
def test_scores_that_are_none_are_refused_in_words(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        scores.load_scores(csv_of(tmp_path, *lines))


def test_damaged_jsonl_and_parquet_are_refused_in_words(tmp_path):
    (tmp_path / "s.jsonl").write_text('{"predicted": 1, "uncertainty": 0.5}\n{"pre')
    with pytest.raises(
        ValueError, match="expected a JSON object, received Unterminated .* in line 2"
    ):
        scores.load_scores(tmp_path / "s.jsonl")
    (tmp_path / "s.jsonl").write_text('{"predicted": true, "uncertainty": 0.5}\n')
    with pytest.raises(ValueError, match="predicted: expected a class number, received True"):
        scores.load_scores(tmp_path / "s.jsonl")
    pytest.importorskip("pyarrow")
    (tmp_path / "s.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(ValueError, match="expected a Parquet file"):
        scores.load_scores(tmp_path / "s.parquet")


# Times -----------------------------------------------------------------------------------------


def times_of(tmp_path, *times):
    lines = ["when,predicted,uncertainty", *(f"{time},1,0.5" for time in times)]
    return scores.load_scores(csv_of(tmp_path, *lines), time_column="when").times


@pytest.mark.parametrize(
    "times",
    [
        ["2024-05-31", "2024-05-31T00:00:00.000001", "2024-05-31 12:00", "2024-06-01"],
        ["2024-05-31T12:00:00Z", "2024-05-31T14:00:01+02:00", "2024-05-31T06:00:02-06:00"],
        ["1717156800", "1717156800.5", "1.7171569e9"],
        ["20240531", "20240601", "20250101"],
        ["-1", "0", "7"],
    ],
)
def test_times_of_every_form_are_in_order(tmp_path, times):
    found = times_of(tmp_path, *times)
    assert (np.diff(found) > 0).all() and found.dtype == np.float64


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["2024-05-31", "yesterday"], "expected a time: ISO 8601.*received 'yesterday' in line 3"),
        (["2024-05-31", ""], "expected a time: .*received none in line 3"),
        (["1", "nan"], "expected a time: .*received 'nan' in line 3"),
        (["2024-02-30"], "expected a time: .*'2024-02-30' in line 2"),
        (["2024-05-31T12:00", "2024-05-31T12:00Z"], "without a time zone as in line 2, .* line 3"),
        (["1717156800", "1717156801", "2024-05-31"], "a number as in line 2, received .* line 4"),
    ],
)
def test_times_that_have_no_order_are_refused_in_words(tmp_path, times, message):
    with pytest.raises(ValueError, match=f"when: .*{message}"):
        times_of(tmp_path, *times)


def test_times_of_parquet_and_of_files_with_probabilities_alone(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    moments = [datetime.datetime(2024, 5, day, tzinfo=datetime.UTC) for day in (3, 1, 2)]
    for column in (moments, [moment.date() for moment in moments]):
        table = {"when": column, "predicted": [0, 1, 1], "uncertainty": [0.1, 0.2, 0.3]}
        parquet.write_table(pyarrow.table(table), tmp_path / "s.parquet")
        found = scores.load_scores(tmp_path / "s.parquet", time_column="when").times
        assert np.argsort(found).tolist() == [1, 2, 0]
    lines = ["when,probs_0,probs_1,score,problem", "2024-05-31,,,,broken", "x,.2,.8,.5,"]
    with pytest.raises(ValueError, match="when: .*'x' in line 3"):
        scores.load_scores(csv_of(tmp_path, *lines), ["score"], time_column="when")
    lines[2] = "2024-05-31,.2,.8,.5,"
    assert (
        len(scores.load_scores(csv_of(tmp_path, *lines), ["score"], time_column="when").times) == 1
    )
    assert scores.load_scores(csv_of(tmp_path, *lines), ["score"], time_column="t").times is None


# Labels ----------------------------------------------------------------------------------------


def test_labels_are_joined_in_the_order_in_which_they_came(tmp_path):
    found = scores.load_scores(write_csv(tmp_path / "s.csv", rows_of(answers(9, 4), broken=(2,))))
    pairs = [("x_test[7]", 1), ("x_test[0]", 0), ("x_test[2]", 2), ("x_test[3]", 1)]
    rows, labels = scores.join_labels(found, write_labels(tmp_path / "l.csv", pairs))
    # Row 2 has no answer, so the rows behind it move up.
    assert rows.tolist() == [6, 0, 2] and labels.tolist() == [1, 0, 1]
    assert [found.inputs[row] for row in rows] == ["x_test[7]", "x_test[0]", "x_test[3]"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("x_test[1]", 0), ("x_test[1]", 0)], "expected each input once, .*in line 3 again"),
        ([("x_test[99]", 0)], r"expected inputs of .*, received 'x_test\[99\]' in line 2"),
        (
            [("x_test[1]", "")],
            "labels: expected a class number or one of .*, received none in line 2",
        ),
        ([("x_test[1]", "fox")], "labels: expected a class number or .*, received 'fox' in line 2"),
        ([("x_test[2]", 1)], "expected labels of inputs that have an answer, received 1 of"),
        ([("x_test[5]", 1)], "expected inputs that .* holds once"),
        ([], "expected at least one row"),
    ],
)
def test_labels_that_fit_nothing_are_refused_in_words(tmp_path, pairs, message):
    rows = rows_of(answers(9, 4), broken=(2,))
    rows[6]["input"] = "x_test[5]"
    found = scores.load_scores(write_csv(tmp_path / "s.csv", rows))
    with pytest.raises(ValueError, match=message):
        scores.join_labels(found, write_labels(tmp_path / "l.csv", pairs))


def test_labels_may_be_names_of_classes_that_the_baseline_knows(tmp_path):
    rows = rows_of(answers(6, 3), labels=True)
    numbers = [row["labels"] for row in rows]
    pairs = [(row["input"], NAMES[row["labels"]]) for row in rows]
    pairs[0] = pairs[0][0], numbers[0]
    path = write_labels(tmp_path / "l.csv", pairs)
    plain = scores.load_scores(
        write_csv(
            tmp_path / "s.csv", [{k: v for k, v in row.items() if k != "labels"} for row in rows]
        )
    )
    _, labels = scores.join_labels(plain, path, class_names=NAMES)
    assert labels.tolist() == numbers
    named = [row | {"labels": NAMES[row["labels"]]} for row in rows]
    own = scores.load_scores(write_csv(tmp_path / "own.csv", named), class_names=NAMES)
    assert own.labels.tolist() == numbers
    # Or that the scores know, beside the numbers of what was predicted.
    assert {*numbers} <= {*plain.class_names}
    assert scores.join_labels(plain, path)[1].tolist() == numbers
    assert scores.load_scores(tmp_path / "own.csv").labels.tolist() == numbers
    nameless = dataclasses.replace(plain, class_names={})
    with pytest.raises(ValueError, match="a class number, received"):
        scores.join_labels(nameless, path)
    with pytest.raises(
        ValueError, match=rf"a class number or one of {NAMES[0]}, .*'bird\?' in line 2"
    ):
        wrong = write_labels(tmp_path / "w.csv", [(rows[0]["input"], "bird?")])
        scores.join_labels(plain, wrong, class_names=NAMES)


def test_labels_need_something_to_be_joined_by(tmp_path):
    path = write_labels(tmp_path / "l.csv", [("a", 1)])
    predictions.save_predictions(tmp_path / "s.npz", answers(9, 4))
    with pytest.raises(ValueError, match="expected scores with a column input"):
        scores.join_labels(scores.load_scores(tmp_path / "s.npz"), path)
    both = scores.load_scores(write_csv(tmp_path / "s.csv", rows_of(answers(9, 4), labels=True)))
    with pytest.raises(ValueError, match="received them in both"):
        scores.join_labels(both, path)
    (tmp_path / "l.csv").write_text("file,label\na,1\n")
    plain = scores.load_scores(write_csv(tmp_path / "s.csv", rows_of(answers(9, 4))))
    with pytest.raises(ValueError, match="expected the column input, received file, label"):
        scores.join_labels(plain, tmp_path / "l.csv")


def test_every_ending_has_a_reader():
    assert set(WRITERS) | {".npz"} == set(ENDINGS)


def test_numbers_that_no_axis_has_are_refused(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("predicted,uncertainty\n1,0.5\n1,1e200\n")
    message = r"uncertainty: expected numbers from -1e\+100 to 1e\+100, received 1e\+200 in row 1"
    with pytest.raises(ValueError, match=message):
        scores.load_scores(path, ("uncertainty",))


def test_decisions_may_be_ones_and_zeros(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("predicted,uncertainty,accept\n1,0.5,0\n1,0.1,1\n")
    np.testing.assert_array_equal(scores.load_scores(path, ("uncertainty",)).accept, [False, True])


@pytest.mark.parametrize("path", [None, 5])
def test_what_is_no_path_is_refused(path):
    p = answers(3, 0)
    known = Scores("s", p.uncertainty["uncertainty"], p.predicted, "u", ("a", "b", "c"))
    for name, call in (
        ("baseline", scores.load_baseline),
        ("scores", scores.load_scores),
        ("labels", lambda path: scores.join_labels(known, path)),
        ("path", predictions.load_predictions),
        ("path", predictions.load_answers),
        ("folder", decision_file.load_decision),
        ("model", exported.newest),
        ("model", exported.read_about),
        ("model", exported.read_held_out),
    ):
        with pytest.raises(
            ValueError, match=f"^{name}: expected a path, received {type(path).__name__}"
        ):
            call(path)
    with pytest.raises(ValueError, match="scores: expected those of load_scores, received None"):
        scores.join_labels(None, "labels.csv")
