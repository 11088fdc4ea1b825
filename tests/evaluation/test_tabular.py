"""Files of rows are read as the same columns from every format, or refused with the place."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.tabular import ENDINGS

ROWS = [
    {"input": "a,\n b", "labels": 2, "u": 0.5, "probs": [0.25, 0.75], "problem": None},
    {"input": "c", "labels": None, "u": None, "probs": None, "problem": "broken"},
    {"input": "d", "labels": 0, "u": 1e-3, "probs": [1.0, 0.0], "problem": None},
]


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_text("\n\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = ["\ufeffinput, labels ,u,probs_0,probs_1,problem"]
        for row in rows:
            values = [row["labels"], row["u"], *(row["probs"] or [None] * 2), row["problem"]]
            words = ["" if value is None else str(value) for value in values]
            lines.append(",".join([f'"{row["input"]}"', *words]))
        path.write_text("\r\n\r\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(params=ENDINGS)
def path(request, tmp_path):
    return write(tmp_path / f"rows{request.param}")


def test_every_format_holds_the_same(path):
    found = tabular.read(path)
    assert len(found) == 3 and found.classes == 2
    assert found.values["input"] == ["a,\n b", "c", "d"]
    assert found.values["problem"] == [None, "broken", None]
    good = found.answered()
    assert (len(found), len(good)) == (3, 2) and good.names == found.names
    np.testing.assert_array_equal(good.numbers("u"), [0.5, 1e-3])
    np.testing.assert_array_equal(good.class_numbers("labels"), [2, 0])
    np.testing.assert_array_equal(good.probabilities(), [[0.25, 0.75], [1, 0]])
    assert found.has_numbers("u") and not found.has_numbers("input")


def test_only_what_is_wanted_is_kept(path):
    found = tabular.read(path, ["u", "absent"])
    assert list(found.values) == ["u"] and len(found) == 3
    assert set(found.names) >= {"input", "labels", "u", "problem"} and found.classes == 2
    assert found.answered() is found and found.probabilities() is None
    assert len(tabular.read(path, [])) == 3
    with pytest.raises(ValueError, match=r"rows\.\w+: expected the column absent, received input,"):
        found.require("u", "absent")


def test_an_error_names_the_place_in_the_file(path):
    # Empty lines count, and so does a line break between quotes.
    places = {".csv": "line 6", ".jsonl": "line 3", ".parquet": "row 1"}
    found = tabular.read(path, file="theirs")
    for name, wanted in (("u", "a finite number"), ("labels", "a class number")):
        convert = found.numbers if name == "u" else found.class_numbers
        message = f"^theirs: {name}: expected {wanted}, received none in {places[path.suffix]}"
        message += "; leave the row out, or give it a number$" if name == "u" else "$"
        with pytest.raises(ValueError, match=message):
            convert(name)
    # What is left out does not shift what follows.
    last = {".csv": "line 8", ".jsonl": "line 5", ".parquet": "row 2"}[path.suffix]
    with pytest.raises(ValueError, match=f"input: expected a or b, received 'd' in {last}"):
        found.answered().converted("input", ["a,\n b", "b"].index, "a or b")


def test_without_an_answer_the_first_problem_is_told(tmp_path):
    path = write(tmp_path / "rows.csv", [ROWS[1]])
    with pytest.raises(ValueError, match="expected a row with an answer, received 1 .*: broken"):
        tabular.read(path).answered()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "probs",
            '"[0.8,0.2]"',
            "expected class probabilities as a column for each, probs_0, probs_1",
        ),
        ("probs", "0.8", "expected class probabilities as a column for each, probs_0, probs_1"),
        ("probs_0", "0.8", "probs_0 and probs_1, received probs_0 alone"),
    ],
)
def test_a_csv_of_one_column_of_probabilities_says_how_to_write_them(tmp_path, name, value, told):
    (tmp_path / "rows.csv").write_text(f"{name}\n{value}\n")
    with pytest.raises(ValueError, match=told):
        tabular.read(tmp_path / "rows.csv").probabilities()


@pytest.mark.parametrize("value", [True, "x", "", None, float("nan"), float("inf"), [1], 10**400])
def test_what_is_no_finite_number_is_refused(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"u": 1}) + "\n" + json.dumps({"u": value}))
    with pytest.raises(ValueError, match="u: expected a finite number, received .* in line 2"):
        tabular.read(path).numbers("u")


def test_a_word_is_a_number_in_a_csv_alone(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"u": "0.5"}\n')
    (tmp_path / "rows.csv").write_text("u\n 0.5 \n")
    assert tabular.read(tmp_path / "rows.csv").numbers("u").tolist() == [0.5]
    found = tabular.read(tmp_path / "rows.jsonl")
    assert not found.has_numbers("u")
    with pytest.raises(ValueError, match="u: expected a finite number, received '0.5' in line 1"):
        found.numbers("u")


@pytest.mark.parametrize(("value", "number"), [(0, 0), (2**63 - 1, 2**63 - 1), (" +7 ", 7)])
def test_class_numbers(value, number):
    assert tabular.class_number(value) == number


@pytest.mark.parametrize(
    "value",
    [
        -1,
        2**63,
        True,
        1.5,
        -1.0,
        2.0**63,
        "-1",
        "1.5",
        "1.0.",
        "1e0",
        "1_0",
        "\u0661",
        "9" * 19,
        "",
        None,
        [0],
    ],
)
def test_what_is_no_class_number_is_refused(value):
    with pytest.raises(ValueError, match="expected a class number, received"):
        tabular.class_number(value)


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (True, True),
        (0, False),
        (" True", True),
        ("FALSE", False),
        ("1", True),
        (1.0, True),
        ("0.0", 0),
    ],
)
def test_truths(value, truth):
    assert tabular.truth(value) is bool(truth)


@pytest.mark.parametrize("value", ["", "yes", None, 2, 0.5, "1.5", 2.0, float("nan"), [True]])
def test_what_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ValueError, match="expected true or false, received"):
        tabular.truth(value)


def test_a_column_may_begin_late_and_end_early(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"b": 2, "a": 3}\n{"b": 4, "c": null}\n')
    found = tabular.read(path)
    assert found.names == ("a", "b", "c") and found.classes is None
    assert found.values == {"a": [1, 3, None], "b": [None, 2, 4], "c": [None, None, None]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["probs_0,probs_2", "1,0"], "expected class probabilities probs_0 to probs_1, received"),
        (["probs_0,probs_1", "1,x"], "probs_1: expected a finite number, received 'x' in line 2"),
        (["probs", "0.5"], "expected class probabilities as a column for each, probs_0, probs_1"),
    ],
)
def test_probabilities_that_are_none_are_refused(tmp_path, lines, message):
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        tabular.read(tmp_path / "rows.csv").probabilities()


def test_lists_of_probabilities_have_one_length(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"probs": [0.5, 0.25, 0.25]}\n{"probs": [0.5, true, 0]}')
    with pytest.raises(ValueError, match=r"expected a list of 3 numbers, received \[0.5, True, 0"):
        tabular.read(tmp_path / "rows.jsonl").probabilities()


def test_names_of_files_need_not_be_utf8_but_names_of_columns_do(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"input,u\ncaf\xe9.png,0.5\n")
    found = tabular.read(path)
    assert found.values["input"] == [b"caf\xe9.png".decode("utf-8", "surrogateescape")]
    assert tabular.shown(found.values["input"][0]) == "caf\\udce9.png"
    path.write_bytes(b"input,\xe9\n")
    with pytest.raises(ValueError, match="expected names in UTF-8, received the byte 0xe9"):
        tabular.read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": "caf\xe9"}', "received the byte 0xe9, which is not UTF-8, in line 2"),
        (b"[" * 100_000, "expected a JSON object, received .* in line 1"),
        (b"\n \n", "expected at least one row, received none"),
        (b"3\n", "expected a JSON object, received int in line 1"),
    ],
)
def test_damaged_jsonl_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        tabular.read(tmp_path / "rows.jsonl")
    assert "\n" not in str(error.value)


def test_damaged_parquet_is_refused_in_one_line(tmp_path):
    path = write(tmp_path / "rows.parquet")
    content = bytearray(path.read_bytes())
    for damage in (b"", content[:-5], content[4:], b"PAR1" + b"\xff" * 40 + b"PAR1"):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match="rows.parquet: expected a Parquet file") as error:
            tabular.read(path)
        assert "\n" not in str(error.value)
    twice = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(ValueError, match="expected names, each once, received a, a"):
        tabular.read(path)


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    for ending in ENDINGS:
        with pytest.raises(FileNotFoundError, match="absent"):
            tabular.read(tmp_path / f"absent{ending}")
    with pytest.raises(ValueError, match=r"expected a file that ends in .csv, .jsonl, .parquet"):
        tabular.read(tmp_path / "rows.txt")
