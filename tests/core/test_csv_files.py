"""CSV files of any program, beside pandas' reader of them."""

import codecs
import csv
import io

import pandas
import pytest

from btcp_tf.core import csv_files

NAMES = ["text", "größe", "note"]
ROWS = [
    ["small, red", "0,5", "a"],
    ["two\nlines", "", "b;c"],
    ['"quoted"', "-1", "tab\there"],
    ["", "", "x"],
]


def written(separator=",", end="\n"):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator=end).writerows([NAMES, *ROWS])
    return file.getvalue()


def read(path):
    with csv_files.opened(path) as table:
        return table.names, [row for _, row in table.rows]


SEPARATORS = {"commas": ",", "semicolons": ";", "tabs": "\t"}

ENCODINGS = {
    "UTF-8": lambda text: text.encode(),
    "UTF-8 with its mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, big": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("separator", SEPARATORS)
def test_files_of_every_form_hold_the_same(tmp_path, separator, encoding, end):
    path = tmp_path / "t.csv"
    path.write_bytes(ENCODINGS[encoding](written(SEPARATORS[separator], end)))
    assert read(path) == (NAMES, ROWS)
    of_pandas = pandas.read_csv(
        path,
        sep=SEPARATORS[separator],
        dtype=str,
        keep_default_na=False,
        encoding="utf-16" if "16" in encoding else "utf-8-sig",
    )
    assert of_pandas.columns.tolist() == NAMES and of_pandas.to_numpy().tolist() == ROWS


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("a", ["a"]),
        ("a,b;c", ["a", "b;c"]),
        ("a;b\tc", ["a", "b\tc"]),
        ('"a;b"', ["a;b"]),
        ('"a,b"\tc', ["a,b", "c"]),
        ('"a\nb",c', ["a\nb", "c"]),
        (" a , b ", ["a", "b"]),
        (",a,", ["", "a", ""]),
    ],
)
def test_the_first_line_says_what_stands_between_entries(tmp_path, first, names):
    (tmp_path / "t.csv").write_text(f"{first}\n", encoding="utf-8")
    assert read(tmp_path / "t.csv") == (names, [])


@pytest.mark.parametrize("more", ["\n\n", ",,\n,,\n", "   \n", "\n , ,\n\t\n"])
def test_rows_without_an_entry_are_left_out(tmp_path, more):
    (tmp_path / "t.csv").write_text(written() + more, encoding="utf-8", newline="")
    assert read(tmp_path / "t.csv") == (NAMES, ROWS)


def test_an_empty_text_is_one(tmp_path):
    (tmp_path / "t.csv").write_text('text\n""\n\nx\n', encoding="utf-8")
    assert read(tmp_path / "t.csv")[1] == [[""], ["x"]]


def test_a_row_knows_its_line_and_entries_may_be_long(tmp_path):
    (tmp_path / "t.csv").write_text(f'a,b\n"x\ny",1\n\n{"z" * 200_000},2\n', encoding="utf-8")
    limit = csv.field_size_limit()
    with csv_files.opened(tmp_path / "t.csv") as table:
        assert [(line, len(row[0])) for line, row in table.rows] == [(3, 3), (5, 200_000)]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected names in the first line, received none"),
        (b",,\n1,2,3\n", "expected names in the first line, received none"),
        (b"gr\xf6\xdfe\n1\n", "expected names in UTF-8, received the byte 0xf6; save it anew"),
        (b"a,b\n1,2\n3\n", "expected 2 entries, received 1 in line 3"),
        (b"text\nhello, world\n", "expected 1 entries, received 2 in line 2.*in double quotes"),
        (b'a,b\n1,"2\n3,4\n', "expected rows of text, received unexpected end of data in line 3"),
        (codecs.BOM_UTF16_LE + b"a\0,\0b\0\n\0x", "expected rows of text, .*truncated"),
    ],
)
def test_a_damaged_file_is_told_in_one_line(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=f"^them: {message}") as caught:
        with csv_files.opened(tmp_path / "t.csv", "them") as table:
            list(table.rows)
    assert "\n" not in str(caught.value)
