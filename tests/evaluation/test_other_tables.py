"""Tables of other people's programs: what is read depends on the columns that are needed alone."""

import csv
import datetime
import decimal
import hashlib
import io
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from btcp_tf.core import csv_cells
from btcp_tf.decisions import scores
from btcp_tf.evaluation import predictions, tabular
from btcp_tf.evaluation.predictions import load_answers, load_predictions, save_predictions

ENDINGS = [".csv", ".jsonl", ".parquet"]


def write(path, columns):
    """A table of columns, as the format has them; None is an empty entry."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(
                ["" if x is None else x for x in row] for row in zip(*columns.values(), strict=True)
            )
    return path


def good(**more):
    """A table of four answers and one uncertainty, with further columns."""
    return {"labels": [0, 1, 1, 0], "predicted": [0, 1, 0, 0], "mine": [0.1, 0.2, 0.9, 0.3]} | more


MD5 = [hashlib.md5(bytes([number])).hexdigest() for number in range(3)]

UNNEEDED = {
    "md5": [*MD5, "12345678901234567890123456789012"],
    "short_hash": ["1e5", "a0f", "00ff", "12e7"],
    "code": ["0001", "a0", "0002", "b7"],
    "comment": ["nan", None, "blurred", "inf"],
    "age": [31.0, float("nan"), 47.0, None],
    "patient age": [31, 20, 47, 3],
    "id": [1, 2, 3, 4],
    "patient_id": [7, 7, 8, 8],
    "timestamp": [1717156800, 1717156801, 1717156802, 1717156803],
    "Unnamed: 0": [0, 1, 2, 3],
    "Unnamed: 0.1": [0, 1, 2, 3],
    "__index_level_0__": [5, 6, 7, 8],
    "input": [1, 2, 3, 4],
    "day": ["31.05.2024", "2024", "05/31/24", "May"],
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", UNNEEDED)
def test_a_column_that_nobody_needs_does_no_harm(tmp_path, ending, name):
    path = write(tmp_path / f"t{ending}", good(**{name: UNNEEDED[name]}))
    found = load_predictions(path)
    assert list(found.uncertainty) == ["mine"] and found.labels.tolist() == [0, 1, 1, 0]
    assert load_answers(path).predictions.uncertainty.keys() == {"mine"}
    assert scores.load_baseline(path).column == "mine"
    assert scores.load_scores(path, ["mine"]).uncertainty.tolist() == [0.1, 0.2, 0.9, 0.3]


def test_arrays_that_nobody_needs_do_no_harm_in_an_npz(tmp_path):
    arrays = {name: np.array(column) for name, column in good().items()}
    unneeded = {
        "age": np.array([31, np.nan, 47, 3]),
        "id": np.arange(4),
        "timestamp": np.arange(4.0),
        "files": np.array(["a", "b", "c", "1"]),
        "x": np.zeros((4, 2)),
        "patient age": np.arange(4.0),
    }
    np.savez(tmp_path / "t.npz", **arrays, **unneeded)
    assert list(load_predictions(tmp_path / "t.npz").uncertainty) == ["mine"]


@pytest.mark.parametrize("ending", [*ENDINGS, ".npz"])
def test_what_looked_like_an_uncertainty_and_is_none_is_told(tmp_path, ending):
    columns = good(age=[31.0, 20.0, float("nan"), 3.0], note=["a", "b", "c", "d"])
    path = tmp_path / f"t{ending}"
    if ending == ".npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    else:
        write(path, columns)
    unread = load_answers(path).unread
    assert list(unread) == ["age"]
    assert unread["age"].startswith("age: expected ")
    assert "received nan" in unread["age"].replace("'", "")


@pytest.mark.parametrize("ending", [*ENDINGS, ".npz"])
def test_a_column_that_is_named_is_needed(tmp_path, ending):
    columns = good(age=[31.0, 20.0, float("nan"), 3.0], id=[0.5, 0.25, 0.75, 0.125])
    path = tmp_path / f"t{ending}"
    if ending == ".npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    else:
        write(path, columns)
    assert list(load_predictions(path, columns=["id"]).uncertainty) == ["id"]
    assert set(load_predictions(path, reverse=["id"]).uncertainty) == {"mine", "id"}
    assert scores.load_baseline(path, column="id").column == "id"
    for call in (
        lambda: load_predictions(path, columns=["mine", "age"]),
        lambda: load_predictions(path, reverse=["age"]),
        lambda: scores.load_baseline(path, column="age"),
    ):
        with pytest.raises(ValueError, match="age: expected .*finite number.*received '?nan'? in"):
            call()
    with pytest.raises(ValueError, match="expected an uncertainty column other, received mine"):
        load_predictions(path, columns=["other"])


@pytest.mark.parametrize("name", ["mcp", "residual", "uncertainty"])
def test_a_method_of_this_package_is_always_needed(tmp_path, name):
    path = write(tmp_path / "t.csv", good(**{name: [0.5, None, 0.5, 0.5]}))
    with pytest.raises(ValueError, match=f"{name}: expected a finite number, received none in lin"):
        load_predictions(path)


# Class numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_class_numbers_may_be_written_as_floats_in_every_reader(tmp_path, ending):
    columns = good(labels=[0.0, 1.0, 1.0, 0.0], predicted=[0.0, 1.0, 0.0, 0.0])
    columns["uncertainty"] = columns.pop("mine")
    columns["input"] = ["a", "b", "c", "d"]
    path = write(tmp_path / f"t{ending}", columns)
    for labels, predicted in (
        (found := load_predictions(path).labels, load_predictions(path).predicted),
        (load_answers(path).predictions.labels, load_answers(path).predictions.predicted),
        (scores.load_scores(path).labels, scores.load_scores(path).predicted),
    ):
        assert labels.tolist() == [0, 1, 1, 0] and predicted.tolist() == [0, 1, 0, 0]
    assert found.dtype == np.int64
    without = write(tmp_path / f"s{ending}", {k: v for k, v in columns.items() if k != "labels"})
    late = {"input": ["c", "a"], "labels": [2.0, 1.0]}
    late_path = write(tmp_path / f"l{ending}", late)
    rows, labels = scores.join_labels(scores.load_scores(without), late_path)
    assert rows.tolist() == [2, 0] and labels.tolist() == [2, 1]
    _, named = scores.join_labels(
        scores.load_scores(without), late_path, class_names=["x", "y", "z"]
    )
    assert named.tolist() == [2, 1]


def test_a_threshold_is_chosen_on_labels_of_every_form(tmp_path):
    from btcp_tf import set_threshold

    columns = {"predicted": [0.0, 1.0], "uncertainty": [0.5, 0.25], "labels": ["dog", "1.0"]}
    path = write(tmp_path / "s.csv", columns)
    found = set_threshold._labeled(str(path), ["cat ", "dog"], False)
    assert found.labels.tolist() == [1, 1] and found.is_error.tolist() == [True, False]


@pytest.mark.parametrize("ending", [*ENDINGS, ".npz"])
def test_decisions_may_be_floats_in_every_reader(tmp_path, ending):
    columns = good(accept=[1.0, 0.0, 0.0, 1.0])
    path = tmp_path / f"t{ending}"
    if ending == ".npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    else:
        write(path, columns)
        assert scores.load_scores(path, ["mine"]).accept.tolist() == [True, False, False, True]
    assert load_answers(path).accept.tolist() == [True, False, False, True]


def test_class_numbers_may_be_floats_in_an_npz(tmp_path):
    arrays = {name: np.array(column) for name, column in good().items()}
    arrays |= {
        "labels": arrays["labels"].astype(np.float32),
        "predicted": arrays["predicted"] * 1.0,
    }
    np.savez(tmp_path / "t.npz", **arrays)
    found = load_predictions(tmp_path / "t.npz")
    assert found.labels.tolist() == [0, 1, 1, 0] and found.labels.dtype == np.int64
    assert scores.load_scores(tmp_path / "t.npz").labels.tolist() == [0, 1, 1, 0]
    for bad in (0.5, np.nan, np.inf, -1.0, 2.0**63):
        np.savez(tmp_path / "t.npz", **arrays | {"labels": np.array([0, 1, bad, 0])})
        with pytest.raises(ValueError, match=r"labels: expected .*received .* in row 2"):
            load_predictions(tmp_path / "t.npz")


@pytest.mark.parametrize("value", [2.0, "2.0", "2.", " +2.00 ", "2,0", decimal.Decimal("2.0")])
def test_whole_numbers_of_every_form_are_class_numbers(value):
    assert tabular.class_number(value) == 2


@pytest.mark.parametrize("ending", ENDINGS)
def test_labels_that_are_nan_are_missing(tmp_path, ending):
    columns = good(labels=[0.0, float("nan"), 1.0, float("nan")], problem=[None] * 4)
    columns["uncertainty"] = columns.pop("mine")
    path = write(tmp_path / f"t{ending}", columns)
    assert scores.load_scores(path).labels.tolist() == [0, -1, 1, -1]
    found = load_answers(path)
    assert found.predictions.labels.tolist() == [0, 1] and found.unlabeled == 2


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_problem_that_is_nan_is_none(tmp_path, ending):
    columns = good(problem=[float("nan"), None, float("nan"), "broken"])
    if ending == ".parquet":
        columns["problem"] = [None, None, None, "broken"]
    assert len(load_predictions(write(tmp_path / f"t{ending}", columns)).labels) == 3


def test_inputs_that_became_floats_are_joined_with_whole_numbers(tmp_path):
    columns = {"input": [1.0, 2.0], "predicted": [0, 1], "uncertainty": [0.5, 0.25]}
    found = scores.load_scores(write(tmp_path / "s.parquet", columns))
    assert found.inputs == ("1", "2")
    late = write(tmp_path / "l.csv", {"input": [2], "labels": [0]})
    assert scores.join_labels(found, late)[0].tolist() == [1]


# Numbers ---------------------------------------------------------------------------------------


def test_a_quoted_decimal_comma_is_one(tmp_path):
    path = tmp_path / "t.csv"
    lines = ["labels,predicted,mine,probs_0,probs_1", '0,0,"0,125","0,75","0,25"']
    path.write_text("\n".join([*lines, '1,0,"1,25e-1","1,000","0,000"', '1,1,0.5,"0,1","0,9"']))
    found = load_predictions(path)
    assert found.uncertainty["mine"].tolist() == [0.125, 0.125, 0.5]
    np.testing.assert_allclose(found.probs, [[0.75, 0.25], [1, 0], [0.1, 0.9]], rtol=1e-6)
    path.write_text('predicted,mine\n0,"0,125"\n1,"0,5"\n')
    assert load_predictions(path).uncertainty["mine"].tolist() == [0.125, 0.5]
    path.write_text('predicted,uncertainty\n0,"0,125"\n1,"1,000"\n')
    assert scores.load_scores(path).uncertainty.tolist() == [0.125, 1.0]


def test_a_comma_that_may_stand_between_thousands_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text('predicted,uncertainty\n0,"1,234"\n1,"12,000"\n')
    with pytest.raises(ValueError, match="expected a finite number, received '1,234' in line 2"):
        scores.load_scores(tmp_path / "t.csv")


def test_no_comma_separates_thousands_where_semicolons_stand_between_entries(tmp_path):
    (tmp_path / "t.csv").write_text("predicted;uncertainty\n0;1,234\n1;12,000\n")
    assert scores.load_scores(tmp_path / "t.csv").uncertainty.tolist() == [1.234, 12.0]


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("ending", ENDINGS)
def test_probabilities_may_be_rounded(tmp_path, ending, digits):
    rng = np.random.default_rng(digits)
    exact = rng.dirichlet(np.full(20, 0.5), 50)
    rounded = exact.round(digits)
    assert np.abs(rounded.sum(axis=1) - 1).max() > 10.0**-digits
    columns = {"labels": rng.integers(0, 20, 50).tolist(), "mine": rng.random(50).tolist()}
    columns |= {f"probs_{k}": rounded[:, k].tolist() for k in range(20)}
    found = load_predictions(write(tmp_path / f"t{ending}", columns))
    np.testing.assert_allclose(found.probs, exact, atol=20 * 10.0**-digits)
    np.testing.assert_allclose(found.probs.sum(axis=1), 1, atol=1e-3)
    assert (found.predicted == rounded.argmax(axis=1)).all()


def test_probabilities_that_rounding_does_not_explain_are_refused(tmp_path):
    columns = {"labels": [0, 1], "mine": [0.5, 0.5], "probs_0": [0.5, 0.25], "probs_1": [0.5, 0.72]}
    with pytest.raises(ValueError, match="probs: expected rows that sum to 1, .* in line 3"):
        load_predictions(write(tmp_path / "t.csv", columns))


# Columns without a name, and dates -------------------------------------------------------------


def test_an_index_without_a_name_is_no_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",labels,predicted,mine,,\n0,1,1,.5,,\n1,0,1,.75,,\n")
    assert list(load_predictions(path).uncertainty) == ["mine"]
    assert tabular.read(path).names == ("labels", "predicted", "mine")
    path.write_text(",predicted,uncertainty\n0,1,.5\n")
    assert scores.load_scores(path).uncertainty.tolist() == [0.5]
    path.write_text(",,\n0,1,.5\n")
    with pytest.raises(ValueError, match="expected names in the first line, .*received none"):
        tabular.read(path)


MOMENT = datetime.datetime(2024, 5, 31, 12)


def times_of(path, column="when"):
    return scores.load_scores(path, time_column=column).times


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_unit_of_parquet_are_in_order(tmp_path, unit, zone):
    step = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = [1717156800 * step + more for more in (2, 0, 1)]
    when = pyarrow.array(moments, pyarrow.timestamp(unit, zone))
    table = {"when": when, "predicted": [0, 1, 1], "uncertainty": [0.1, 0.2, 0.3]}
    parquet.write_table(pyarrow.table(table), tmp_path / "s.parquet", version="2.6")
    # A nanosecond is less than a float64 of seconds can hold.
    assert np.argsort(times_of(tmp_path / "s.parquet")).tolist() == [1, 2, 0]
    assert list(load_predictions(tmp_path / "s.parquet").uncertainty) == ["uncertainty"]


def test_dates_that_python_does_not_know_do_no_harm_unless_they_are_needed(tmp_path):
    columns = {
        "when": pyarrow.array([10**14, 0], pyarrow.timestamp("s")),
        "day": pyarrow.array([10**7, 0], pyarrow.date32()),
        "predicted": [0, 1],
        "uncertainty": [0.1, 0.2],
        "took": pyarrow.array([10**17 + 1, 1], pyarrow.duration("ns")),
        "at": pyarrow.array([10**9 + 1, 1], pyarrow.time64("ns")),
        "pixels": pyarrow.array([b"\xff", b""], pyarrow.binary()),
        "embedding": pyarrow.array([[0.5], [0.25, 0.5]]),
    }
    path = tmp_path / "s.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    assert load_predictions(path).uncertainty["uncertainty"].tolist() == [0.1, 0.2]
    for name in ("when", "day"):
        with pytest.raises(ValueError, match=f"{name}: expected a time: .* in row 0"):
            times_of(path, name)


@pytest.mark.parametrize(
    "times",
    [
        ["2024-05-31T12:00:00.123456788Z", "2024-05-31T12:00:00.123456789Z"],
        ["2024-05-31 12:00:00,123456788", "2024-05-31 12:00:00,123456789"],
        ["1717156800000000001", "1717156800000000002"],
        ["2024/05/31 09:00", "2024/05/31 10:00"],
        ["2024/5/31", "2024/06/1"],
        ["2024-5-9", "2024-5-10"],
        ["2024.05.31 09:00:00", "2024.05.31 10:00:00"],
        ["2024-05-31 09:00:00 UTC", "2024-05-31T10:00:00Z"],
    ],
)
def test_odd_times_are_in_order(tmp_path, times):
    columns = {"when": times[::-1], "predicted": [0, 1], "uncertainty": [0.1, 0.2]}
    assert np.diff(times_of(write(tmp_path / "s.csv", columns))) < 0


@pytest.mark.parametrize("time", ["31.05.2024", "05/31/2024", "May 31, 2024", "24-05-31", "noon"])
def test_dates_of_which_the_day_is_not_sure_are_refused(tmp_path, time):
    columns = {"when": [time], "predicted": [0], "uncertainty": [0.1]}
    with pytest.raises(ValueError, match="when: expected a time: ISO 8601.* in line 2"):
        times_of(write(tmp_path / "s.csv", columns))


def test_a_time_column_is_no_uncertainty_of_a_file_with_probabilities_alone(tmp_path):
    columns = {"when": [2, 1], "probs_0": [0.25, 0.5], "probs_1": [0.75, 0.5], "mine": [0.5, 0.1]}
    found = scores.load_scores(write(tmp_path / "s.csv", columns), time_column="when")
    assert found.column == "mine" and np.argsort(found.times).tolist() == [1, 0]


# Cells that a spreadsheet would compute ---------------------------------------------------------

DANGEROUS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=1", "''-x", "\t=1", "\r=1"]
HARMLESS = ["", "a=b", "'quoted'", "x_test[3]", "-5", "+1.5e3", "it's", "'", "#", "1+1", "=", "-"]


@pytest.mark.parametrize("text", DANGEROUS)
def test_no_cell_starts_as_a_formula_and_each_comes_back(text):
    safe = csv_cells.safe(text)
    assert safe == f"'{text}" and csv_cells.plain(safe) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_other_cells_stay_as_they_are(text):
    assert csv_cells.safe(text) == text == csv_cells.plain(text)


def test_our_files_of_scores_come_back_and_hold_no_formula(tmp_path):
    from btcp_tf.serving import records

    names = DANGEROUS + [name for name in HARMLESS if name]
    n = len(names)
    batch = {
        "input": np.array(names, object),
        "predicted": np.zeros(n, np.int64),
        "class_name": np.array(["=HYPERLINK(1)"] * n, object),
        "probs": np.tile(np.float32([0.75, 0.25]), (n, 1)),
        "uncertainty": np.full(n, 0.25, np.float32),
        "accept": np.ones(n, bool),
        "problem": np.array([""] * (n - 1) + ["-it broke"], object),
    }
    records.write(tmp_path / "s.csv", [batch])
    with open(tmp_path / "s.csv", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=HYPERLINK(1)" in cells and "0.25" in cells
    assert not [cell for cell in cells if csv_cells.safe(cell) != cell and cell[0] != "'"]
    found = scores.load_scores(tmp_path / "s.csv")
    assert found.inputs == tuple(names[:-1]) and found.problems == (names[-1],)
    assert found.class_names == {0: "=HYPERLINK(1)"}
    answered = load_answers(tmp_path / "s.csv")
    assert answered.predictions is not None and answered.inputs == names[:-1]


def test_our_tables_hold_no_formula():
    from btcp_tf.reporting import pages
    from btcp_tf.reporting.cells import Cell, Table

    table = Table("t", "caption", {"name": "name", "value": "value"}, [["=1+1", Cell("-2", -2.0)]])
    assert list(csv.reader(io.StringIO(pages.to_csv(table))))[1] == ["'=1+1", "-2.0"]


def test_numbers_of_ours_stay_numbers(tmp_path):
    path = write(tmp_path / "t.csv", good(mine=[-1.5, 2.0, -0.5, 1e-30]))
    assert load_predictions(path).uncertainty["mine"].tolist() == [-1.5, 2.0, -0.5, 1e-30]
    save_predictions(tmp_path / "p.npz", load_predictions(path))
    assert predictions.load_predictions(tmp_path / "p.npz").uncertainty["mine"][0] == -1.5


@pytest.mark.parametrize("text", ["1,000", "2,000", "1_0"])
def test_what_may_be_thousands_is_no_class(text):
    with pytest.raises(ValueError, match="expected a class number"):
        tabular.class_number(text)


def test_python_s_own_way_of_writing_numbers_is_none(tmp_path):
    path = tmp_path / "u.csv"
    path.write_text("labels,predicted,u\n0,0,0_1\n1,1,0.2\n")
    with pytest.raises(ValueError, match="u: expected a finite number, received '0_1' in line 2"):
        predictions.load_predictions(path, columns=["u"])


@pytest.mark.parametrize("text", ["0.1_5", "1_000", "٠.٥", "0.５"])
def test_what_only_python_takes_for_a_number_is_none(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(f"predicted,labels,uncertainty\n0,0,{text}\n1,0,0.5\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a.csv: .*uncertainty: expected a finite number"):
        predictions.load_predictions(path, columns=["uncertainty"])


def test_a_wide_table_is_read(tmp_path):
    # In time that grows with the square of its columns it took more than a minute.
    columns = 100_000
    header = ["predicted", "labels", *(f"c{n}" for n in range(columns))]
    rows = [["0", str(row), *[f"0.{n}" for n in range(columns)]] for row in (0, 1)]
    (tmp_path / "a.csv").write_text("\n".join(map(",".join, [header, *rows])))
    found = predictions.load_predictions(tmp_path / "a.csv")
    assert len(found.uncertainty) == columns
    assert found.uncertainty["c98765"].tolist() == [0.98765, 0.98765]


def test_parquet_of_names_that_are_not_utf_8_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"predicted": [0], "uncertainty": [0.5]}), path)
    path.write_bytes(path.read_bytes().replace(b"uncertainty", b"uncertaint\xe4"))
    with pytest.raises(ValueError, match="a.parquet"):
        predictions.load_predictions(path)
