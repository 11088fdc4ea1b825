"""CSV files as inputs of `btcp_tf.predict`."""

import numpy as np
import pandas
import pytest

from btcp_tf.evaluation.predictions import load_answers
from btcp_tf.serving.inputs import UNLABELED, open_inputs

CLASSES = ["cat", "dog", "owl"]


def table(folder, text, name="in.csv"):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_columns_are_taken_by_name_and_batches_begin_anywhere(tmp_path):
    path = table(
        tmp_path,
        '\ufeffid,"age",word,label\n1,3.5,"a, b",dog\n2,,"line\nbreak",\n\n3,x,c,0\n',
    )
    inputs = open_inputs(path, class_names=CLASSES, names=["word", "age"])
    assert (inputs.count, inputs.dtype, inputs.key) == (3, None, "")
    assert [*inputs.named] == ["word", "age"]
    first, second = inputs.batches(0, 2)
    assert first["input"].tolist() == ["in[0]", "in[1]"]
    assert first["word"].tolist() == ["a, b", "line\nbreak"]
    assert first["age"].tolist() == ["3.5", ""] and second["age"].tolist() == ["x"]
    assert np.concatenate([first["labels"], second["labels"]]).tolist() == [1, UNLABELED, 0]
    (rest,) = inputs.batches(2, 9)
    assert rest["input"].tolist() == ["in[2]"] and rest["labels"].tolist() == [0]
    table(tmp_path, "id,age,word,label\n1,3.5,a,dog\n")
    assert open_inputs(path, names=["word", "age"]).fingerprint != inputs.fingerprint


def test_a_model_of_one_input_takes_the_only_column_or_the_key(tmp_path):
    path = table(tmp_path, "text,y\nfine,cat\n" + "long " * 50_000 + ",owl\n")
    inputs = open_inputs(path, class_names=CLASSES)
    (batch,) = inputs.batches(0, 9)
    assert (inputs.key, len(batch["images"][1])) == ("text", 250_000)
    assert batch["labels"].tolist() == [0, 2]
    two = table(tmp_path, "id,text\n1,fine\n", "two.csv")
    with pytest.raises(ValueError, match="expected one column of inputs, .*id.*text; --key=NAME"):
        open_inputs(two)
    assert open_inputs(two, key="text").key == "text"


def test_columns_of_numbers_are_not_one_input_and_the_remedy_works(tmp_path, monkeypatch):
    names = [f"pixel_{number}" for number in range(64)]
    values = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    pandas.DataFrame(values, columns=names).to_csv(tmp_path / "in.csv", index=False)
    with pytest.raises(ValueError) as refused:
        open_inputs(tmp_path / "in.csv")
    told = str(refused.value)
    assert "pixel_4 and 59 more; --key=NAME takes one" in told and "pixel_5" not in told
    remedy = told.partition("give them as an array: ")[2]
    monkeypatch.chdir(tmp_path)
    exec(remedy, {"numpy": np, "pandas": pandas})
    (batch,) = open_inputs(tmp_path / "x.npy").batches(0, 9)
    np.testing.assert_allclose(batch["images"], values)
    assert batch["images"].dtype == np.float32
    with pytest.raises(ValueError) as refused:
        load_answers(tmp_path / "in.csv")
    told = str(refused.value)
    assert "pixel_4 and 59 more" in told and "pixel_5" not in told
    assert "python -m btcp_tf.predict makes" in told


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("a,b\n1\n", {"key": "a"}, "expected 2 entries, received 1 in line 2"),
        ("a,a\n1,2\n", {"key": "a"}, "expected one column a, received 2"),
        ("", {"key": "a"}, "expected names in the first line, received none"),
        ("a,b\n", {"key": "a"}, "at least one row, received none"),
        ("a,b\n1,2\n", {"key": "c"}, "expected the columns c, received a, b, without c"),
        ("a,b\n1,2\n", {"names": ["b", "c"]}, "the columns b, c, received a, b, without c"),
        ('a,b\n1,"2\n', {"key": "a"}, "in.csv: .*unexpected end of data in line 2"),
        ("a,y\n1,2\n1,fox\n", {"class_names": CLASSES}, "y: expected one of .* 'fox' in row 1"),
        ("a\n1\n", {"class_names": CLASSES}, "labels: expected a column labels or label or y"),
        ("a\n1\n", {"names": ["a"], "key": "a"}, "the inputs a, and no key"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, more, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        open_inputs(table(tmp_path, text), **more)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_utf_8_are_refused_where_they_are_needed(tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(b"a,b\nfine,1\ncaf\xe9,2\n")
    with pytest.raises(ValueError, match="a: expected text in UTF-8, .* the byte 0xe9 in line 3"):
        open_inputs(path, key="a")
    (batch,) = open_inputs(path, key="b").batches(0, 9)
    assert batch["images"].tolist() == ["1", "2"]


def test_a_comma_in_a_number_is_decimal_where_semicolons_stand_between_entries(tmp_path):
    path = table(tmp_path, "age;word\n93,994;a, b\n5;1,5\n")
    (batch,) = open_inputs(path, names=["age", "word"], numeric=["age"]).batches(0, 9)
    assert batch["age"].tolist() == ["93.994", "5"] and batch["word"].tolist() == ["a, b", "1,5"]
    (batch,) = open_inputs(path, names=["age", "word"], numeric=["age"]).batches(1, 9)
    assert batch["age"].tolist() == ["5"]
    path = table(tmp_path, 'age,word\n"93,994",a\n')
    (batch,) = open_inputs(path, names=["age", "word"], numeric=["age"]).batches(0, 9)
    assert batch["age"].tolist() == ["93,994"]


def test_labels_are_written_as_elsewhere(tmp_path):
    path = table(tmp_path, "text,label\na,2.0\nb,nan\nc,1\nd,cat\ne,\n")
    (batch,) = open_inputs(path, class_names=CLASSES).batches(0, 9)
    assert batch["labels"].tolist() == [2, UNLABELED, 1, 0, UNLABELED]


def test_classes_that_are_called_1_to_k_are_labels_by_these_names(tmp_path):
    path, names = tmp_path / "x.csv", ["1", "2", "3"]
    path.write_text("text,label\na,3\nb,1\nc,\n", encoding="utf-8")
    (batch,) = open_inputs(path, class_names=names).batches(0, 9)
    assert batch["labels"].tolist() == [2, 0, UNLABELED]
    path.write_text("text,label\na,3.0\nb,1.0\nc,\n", encoding="utf-8")
    (batch,) = open_inputs(path, class_names=names).batches(0, 9)
    assert batch["labels"].tolist() == [2, 0, UNLABELED]
    path.write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="one of the classes 1, 2, 3, received '0' in row 0"):
        open_inputs(path, class_names=names)
