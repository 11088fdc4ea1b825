"""Batch scoring: what is written, what is refused, and that a killed command goes on."""

import csv
import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tiny_model
from machine import room
from PIL import Image
from pyarrow import parquet
from scipy import stats

from benchmarks import hostile
from btcp_tf import predict, report, thresholds
from btcp_tf.core import interrupt
from btcp_tf.data.images import convert
from btcp_tf.evaluation import predictions
from btcp_tf.predict import USAGE
from btcp_tf.serving import batch_scoring, records
from btcp_tf.serving import scorer as scorer_
from btcp_tf.serving.batch_scoring import SOME_PROBLEMS
from btcp_tf.serving.records import _FORMATS
from btcp_tf.serving.row_log import RowLog
from btcp_tf.serving.scorer import Scorer

CLASSES = ("cat", "dog", "owl")
RANDOM = np.random.default_rng(0)
FORMATS = (".csv", ".jsonl", ".parquet")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of the versions of a model of 8x8x1 images, and its answers in NumPy."""
    root = tmp_path_factory.mktemp("models") / "tiny"
    # A version below 10 that must not be taken, and what is no version.
    tiny_model.save(root / "9", seed=1)
    (root / "11-broken").mkdir()
    _, answer = tiny_model.save(root / "10")
    return root, answer


@pytest.fixture(scope="module")
def rows_model(tmp_path_factory):
    """A model of rows of 5 float32 numbers."""
    return tiny_model.save(
        tmp_path_factory.mktemp("models") / "1", shape=(5,), dtype="float32", class_names=("0", "1")
    )


def some_images(n, shape=(8, 8, 1)):
    return RANDOM.integers(256, size=(n, *shape), dtype=np.uint8)


def run(model, source, output, *more, status=0):
    words = [f"--model={model}", f"--input={source}", f"--output={output}", *more]
    assert predict.main(words) == status
    return output


def read(path):
    """Rows of a file of scores as objects, by means that are not the package's."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    if path.suffix == ".parquet":
        return parquet.ParquetFile(path).read().to_pylist()
    with open(path, newline="", encoding="utf-8") as file:
        rows = []
        for row in csv.DictReader(file, strict=True):
            for name in [name for name in row if name.startswith("probs_")]:
                row.setdefault("probs", []).append(row.pop(name))
            rows.append({name: typed(name, word) for name, word in row.items()})
    return rows


def typed(name, word):
    if name == "probs":
        return [float(entry) for entry in word] if all(word) else None
    if not word:
        return None
    if name in ("predicted", "labels", "second_opinion"):
        return int(word)
    if name == "accept":
        return {"true": True, "false": False}[word]
    return float(word) if name in ("uncertainty", "second_probability") else word


def check_answers(rows, images, answer, tau=0.55, names=CLASSES):
    probs, u = answer(images)
    np.testing.assert_allclose([row["probs"] for row in rows], probs, atol=1e-5)
    np.testing.assert_allclose([row["uncertainty"] for row in rows], u, atol=1e-5)
    assert [row["predicted"] for row in rows] == probs.argmax(axis=1).tolist()
    assert [row["class_name"] for row in rows] == [names[i] for i in probs.argmax(axis=1)]
    assert [row["accept"] for row in rows] == [row["uncertainty"] < tau for row in rows]


def refused(capfd, *words, status=1):
    """The one line on stderr of a command that ends with an error."""
    try:
        assert predict.main(words) == status
    except SystemExit as error:
        assert error.code == status
    told = capfd.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1, told
    return told


@pytest.mark.parametrize("ending", FORMATS)
def test_answers_are_the_models_in_the_order_of_the_inputs(tiny, tmp_path, ending, capsys):
    root, answer = tiny
    images = some_images(50)
    np.savez(tmp_path / "some.npz", images=images, other=images)
    output = run(root, tmp_path / "some.npz", tmp_path / f"new/scores{ending}", "--batch_size=16")
    rows = read(output)
    assert list(rows[0]) == [
        "input",
        "predicted",
        "class_name",
        *(["uncertainty", "accept", "problem", "probs"] if ending == ".csv" else []),
        *(["probs", "uncertainty", "accept", "problem"] if ending != ".csv" else []),
    ]
    assert [row["input"] for row in rows] == [f"images[{number}]" for number in range(50)]
    assert all(row["problem"] is None for row in rows)
    check_answers(rows, images, answer)
    # In full: the number that the model compared with tau.
    served = tf.saved_model.load(str(root / "10")).signatures["serving_default"]
    u = served(images=tf.constant(images[:16]))["uncertainty"].numpy()
    assert [row["uncertainty"] for row in rows[:16]] == u.astype(np.float64).tolist()
    told = capsys.readouterr().out.splitlines()[-2]
    accepted = sum(row["accept"] for row in rows)
    assert told == (
        f"{output}: 50 scored, {accepted} accepted ({accepted / 50:.1%}), u < 0.55; "
        "0 without an answer"
    )
    assert {path.name for path in output.parent.iterdir()} == {
        output.name,
        f"{output.name}.about.json",
    }


@pytest.mark.parametrize("ending", FORMATS)
def test_a_second_opinion_is_kept(tmp_path, monkeypatch, undrawn, ending):
    model, answer = tiny_model.save(tmp_path / "looking" / "1", second=True)
    images = some_images(30)
    np.savez(tmp_path / "x.npz", x=images, y=RANDOM.integers(3, size=30))
    whole = run(model, tmp_path / "x.npz", tmp_path / f"s{ending}", "--labels", "--batch_size=8")
    rows = read(whole)
    check_answers(rows, images, answer)
    assert [*rows[0]][-4 - (ending == ".csv") :][:4] == [
        "accept",
        "second_opinion",
        "second_probability",
        "problem",
    ]
    probs, _ = answer(images)
    assert [row["second_opinion"] for row in rows] == (2 - probs.argmax(axis=1)).tolist()
    np.testing.assert_allclose(
        [row["second_probability"] for row in rows], probs.max(axis=1), atol=1e-5
    )
    # It is no uncertainty to a report.
    assert list(predictions.load_answers(whole).predictions.uncertainty) == ["uncertainty"]
    # Rows that were scored before an interruption have it, too, and those without an answer none.
    append = RowLog.append

    def interrupted(self, rows):
        append(self, rows)
        if self.done == 16:
            raise Stop

    output = tmp_path / f"again{ending}"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(RowLog, "append", interrupted)
        batch_scoring.score(model, tmp_path / "x.npz", output, labels=True, batch_size=8)
    run(model, tmp_path / "x.npz", output, "--labels", "--batch_size=8")
    assert output.read_bytes() == whole.read_bytes()
    (tmp_path / "photos").mkdir()
    Image.fromarray(images[0, ..., 0]).save(tmp_path / "photos" / "b.png")
    (tmp_path / "photos" / "a.png").write_bytes(b"none")
    found = run(model, tmp_path / "photos", tmp_path / f"p{ending}", status=SOME_PROBLEMS)
    bad, good = read(found)
    assert bad["second_opinion"] is None and bad["second_probability"] is None
    assert good["second_opinion"] == 2 - good["predicted"]


def test_csv_columns(tiny, tmp_path):
    np.save(tmp_path / "many.npy", some_images(2))
    output = run(tiny[0], tmp_path / "many.npy", tmp_path / "scores.csv", "--verbose=0")
    first, second, *_ = output.read_text().split("\n")
    assert first == (
        "input,predicted,class_name,probs_0,probs_1,probs_2,uncertainty,accept,problem"
    )
    assert second.startswith("many[0],") and second.endswith((",true,", ",false,"))


@pytest.fixture
def photos(tmp_path):
    """A folder of good and bad files; and what is to be in the rows."""
    root = tmp_path / "photos"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / ".hidden").mkdir()
    good = {}
    # Of its own, whatever other tests have drawn: Pillow's gray of a color may be one level off.
    random = np.random.default_rng(0)

    def some_images(n, shape=(8, 8, 1)):
        return random.integers(256, size=(n, *shape), dtype=np.uint8)

    def save(name, pixels):
        Image.fromarray(pixels.squeeze()).save(os.fsencode(str(root / name)), "PNG")
        good[name] = convert(pixels[None], (8, 8, 1))[0]

    save("b.png", some_images(1)[0])
    save("sub/deep/c.png", some_images(1, (20, 10, 3))[0])
    save('sub/a, "b"\nc\r.png', some_images(1)[0])
    save(os.fsdecode(b"sub/\xff.png"), some_images(1)[0])
    save("sub/ü.png", some_images(1, (8, 8, 3))[0])
    save(".hidden/d.png", some_images(1)[0])
    save(".e.png", some_images(1)[0])
    del good[".hidden/d.png"], good[".e.png"]
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(root / "deep16.png")
    (root / "empty.png").touch()
    (root / "words.txt").write_text("no image")
    whole = (root / "b.png").read_bytes()
    (root / "torn.png").write_bytes(whole[: len(whole) // 2])
    os.symlink("nowhere", root / "dangling.png")
    os.symlink(root, root / "sub" / "loop")
    os.symlink("itself", root / "itself")
    os.mkfifo(root / "pipe.png")
    os.symlink("pipe.png", root / "to_pipe.png")
    bad = {
        "deep16.png": "expected 8 bits a channel",
        "empty.png": "empty",
        "words.txt": "not a PNG, JPEG or BMP image",
        "torn.png": "",
        "dangling.png": "No such file",
        "itself": "",
        "to_pipe.png": "no file",
    }
    return root, good, bad


@pytest.mark.parametrize("ending", FORMATS)
def test_a_folder_of_good_and_bad_files(tiny, tmp_path, photos, ending, capsys):
    root, good, bad = photos
    output = run(
        tiny[0], root, tmp_path / f"scores{ending}", "--batch_size=3", status=SOME_PROBLEMS
    )
    rows = read(output)
    names = sorted([*good, *bad], key=lambda name: name.split("/"))
    shown = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]
    assert "sub/\\xff.png" in shown
    assert [row["input"] for row in rows] == shown
    for name, row in zip(names, rows, strict=True):
        if name in bad:
            assert bad[name] in row["problem"]
            answers = ("predicted", "class_name", "probs", "uncertainty", "accept")
            assert all(row[column] is None for column in answers)
    kept = [row for row in rows if row["problem"] is None]
    check_answers(kept, np.stack([good[name] for name in names if name in good]), tiny[1])
    printed = capsys.readouterr()
    assert printed.out.count("are converted to [8, 8, 1]") == 1
    assert printed.err.startswith(f"{len(bad)} of {len(rows)} inputs have no answer: dangling.png")
    assert printed.err.endswith(" and 2 more\n") and printed.err.count("\n") == 1
    assert f"{len(good)} scored" in printed.out
    # Rows with a problem are no predictions.
    found = predictions.load_predictions(output)
    assert found.predicted.tolist() == [row["predicted"] for row in kept]
    assert list(found.uncertainty) == ["uncertainty"]


def test_a_folder_of_broken_files_only(tiny, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.png").write_bytes(b"x")
    output = run(tiny[0], tmp_path / "in", tmp_path / "s.csv", status=3)
    assert "s.csv: 0 scored, 0 accepted, u < 0.55; 2 without an answer" in capsys.readouterr().out
    assert len(read(output)) == 2
    with pytest.raises(ValueError, match="expected a row with an answer, received"):
        predictions.load_predictions(output)


def test_arrays_of_images_are_converted(tiny, tmp_path, capsys):
    color = some_images(6, (12, 9, 3))
    np.savez_compressed(tmp_path / "color.npz", x_test=color, x=some_images(1))
    np.save(tmp_path / "flat.npy", color[..., 0])
    for name, images in (("color.npz", color), ("flat.npy", color[..., 0])):
        output = run(tiny[0], tmp_path / name, tmp_path / f"{name}.csv", "--batch_size=4")
        check_answers(read(output), convert(images, (8, 8, 1)), tiny[1])
        assert capsys.readouterr().out.count("are converted to [8, 8, 1]") == 1


def test_rows_of_numbers(rows_model, tmp_path, capsys):
    model, answer = rows_model
    x = RANDOM.normal(size=(9, 5))
    x[2, 3], x[4, 0], x[5, 1] = np.nan, -np.inf, 1e300
    np.savez(tmp_path / "x.npz", x=x)
    output = run(model, tmp_path / "x.npz", tmp_path / "s.jsonl", "--batch_size=4", status=3)
    rows = read(output)
    problems = {number: row["problem"] for number, row in enumerate(rows) if row["problem"]}
    assert problems == {
        2: "expected finite numbers, received nan as number 3",
        4: "expected finite numbers, received -inf as number 0",
        5: "expected finite numbers, received inf as number 1",
    }
    kept = [number for number in range(9) if number not in problems]
    check_answers([rows[number] for number in kept], x[kept], answer, names=("0", "1"))
    assert "converted" not in capsys.readouterr().out
    # Class names that are numbers are no uncertainty.
    assert list(predictions.load_predictions(output).uncertainty) == ["uncertainty"]


def test_big_endian_and_whole_numbers_are_taken_as_floats(rows_model, tmp_path):
    model, answer = rows_model
    x = RANDOM.integers(-3, 4, size=(5, 5))
    for name, array in (("int", x), ("big", x.astype(">f8"))):
        np.save(tmp_path / f"{name}.npy", array)
        output = run(model, tmp_path / f"{name}.npy", tmp_path / f"{name}.csv", "--verbose=0")
        check_answers(read(output), x, answer, names=("0", "1"))


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_each_step_that_may_take_a_while_is_announced(tiny, tmp_path, capsys, verbose):
    np.save(tmp_path / "x.npy", some_images(5))
    run(tiny[0], tmp_path / "x.npy", tmp_path / "s.csv", f"--verbose={verbose}")
    steps = [
        "reading .*/x.npy",
        "loading .*/1",
        "scoring 5 inputs",
        "writing .*/s.csv",
        ".*s.csv: 5",
        "expected errors: not known",
    ]
    told = capsys.readouterr().out.splitlines()
    assert len(told) == (len(steps) if verbose else 0)
    for line, step in zip(told, steps, strict=False):
        assert re.match(step, line)


@pytest.mark.parametrize("ending", FORMATS)
def test_labels_of_folders_and_arrays(tiny, tmp_path, ending, undrawn, capsys):
    images, labels = some_images(30), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x_test=images, y_test=labels[:, None], labels=labels * 0)
    # As MedMNIST calls them.
    np.savez(tmp_path / "b.npz", test_images=images, test_labels=labels[:, None], train_labels=[0])
    for label, name in enumerate(CLASSES):
        folder = tmp_path / "in" / "part" / name
        folder.mkdir(parents=True)
        for row in np.flatnonzero(labels == label):
            Image.fromarray(images[row, ..., 0]).save(folder / f"{row:02}.png")
    for source in ("a.npz", "b.npz", "in"):
        output = tmp_path / f"{source}{ending}"
        run(tiny[0], tmp_path / source, output, "--labels", "--verbose=0")
        order = np.argsort(labels, kind="stable") if source == "in" else np.arange(30)
        assert [row["labels"] for row in read(output)] == labels[order].tolist()
        found = predictions.load_predictions(output)
        np.testing.assert_array_equal(found.labels, labels[order])
        probs, u = tiny[1](images[order])
        np.testing.assert_allclose(found.probs, probs, atol=1e-5)
        np.testing.assert_allclose(found.uncertainty["uncertainty"], u, atol=1e-5)
    capsys.readouterr()
    assert report.main([str(output), f"--output_dir={tmp_path / 'report'}"]) == 0
    assert "uncertainty" in capsys.readouterr().out


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_beside_the_folders_of_classes_has_no_label(tiny, tmp_path, ending, capsys):
    images = some_images(9)
    for row, image in enumerate(images):
        folder = tmp_path / "in" / CLASSES[row % 3] if row else tmp_path / "in"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{row}.png")
    (tmp_path / "in" / "README").write_text("words")
    output = tmp_path / f"s{ending}"
    run(tiny[0], tmp_path / "in", output, "--labels", "--batch_size=2", status=3)
    assert capsys.readouterr().out.count("'0.png' and 1 more files in no class's folder") == 1
    labels = {row["input"]: row["labels"] for row in read(output)}
    assert labels.pop("0.png") is None and labels.pop("README") is None
    assert labels == {f"{CLASSES[row % 3]}/{row}.png": row % 3 for row in range(1, 9)}
    found = predictions.load_answers(output)
    assert (len(found.predictions.labels), found.unanswered, found.unlabeled) == (8, 1, 1)


def test_a_model_without_a_threshold_accepts_nothing(tmp_path, capsys):
    tiny_model.save(tmp_path / "m", tau=None)
    np.save(tmp_path / "x.npy", some_images(4))
    run(tmp_path / "m", tmp_path / "x.npy", tmp_path / "s.csv")
    assert "0 accepted (0.0%), its threshold accepts nothing" in capsys.readouterr().out


# Going on --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from btcp_tf import predict
answer, calls = predict.Scorer.answer, []
def dying(self, batch):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(self, batch)
predict.Scorer.answer = dying
sys.exit(predict.main(sys.argv[1:]))
"""


def test_killed_it_goes_on_to_the_same_bytes(tiny, tmp_path, photos, capsys):
    words = [f"--model={tiny[0]}", f"--input={photos[0]}", "--batch_size=2"]
    checkout = pathlib.Path(__file__).resolve().parents[1]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *words, f"--output={tmp_path / 'killed.csv'}"],
        cwd=checkout,
        capture_output=True,
    )
    assert killed.returncode == -9, killed.stderr
    partial = tmp_path / "killed.csv.partial"
    assert partial.is_dir() and not (tmp_path / "killed.csv").exists()
    for name in ("killed", "whole"):
        assert predict.main([*words, f"--output={tmp_path / name}.csv"]) == 3
        assert ("resuming after 6 of 12" in capsys.readouterr().out) == (name == "killed")
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    about = [
        json.loads((tmp_path / f"{n}.csv.about.json").read_text()) for n in ("killed", "whole")
    ]
    assert about[0] == about[1]
    assert about[0]["order"].startswith("names of files")
    assert not partial.exists()


def rates(output, accepted=False):
    """Wrong answers and all with a label in a file of scores, and the exact interval."""
    rows = [row for row in read(output) if row["labels"] is not None and not row["problem"]]
    rows = [row for row in rows if row["accept"]] if accepted else rows
    wrong = sum(row["labels"] != row["predicted"] for row in rows)
    interval = stats.binomtest(wrong, len(rows)).proportion_ci(0.95, "exact")
    return (
        f"{wrong} of {len(rows)} wrong, {100 * wrong / len(rows):.2f} %, "
        f"exact 95 % interval [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
    )


def test_with_labels_it_says_how_many_are_wrong(tiny, tmp_path, monkeypatch, capsys):
    images, y = some_images(60), RANDOM.integers(3, size=60)
    probs, u = tiny[1](images)
    y[:30] = probs[:30].argmax(axis=1)
    np.savez(tmp_path / "x.npz", x=images, y=y)
    model, _ = tiny_model.save(tmp_path / "m", tau=float(np.median(u[:30])))
    words = [model, tmp_path / "x.npz", tmp_path / "s.csv", "--labels", "--batch_size=20"]
    answer, asked = Scorer.answer, []

    def stopping(self, batch):
        asked.append(1)
        if len(asked) == 3:
            raise Stop
        return answer(self, batch)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Scorer, "answer", stopping)
        run(*words)
    capsys.readouterr()
    # Of all rows, whoever has scored them; and of a finished file again.
    for again in (False, True):
        output = run(*words)
        told = capsys.readouterr().out.splitlines()
        assert ("finished already" in told[1]) == again
        assert told[-2:] == [
            f"all answers: {rates(output)}",
            f"accepted ones: {rates(output, accepted=True)}",
        ]
    assert rates(output) != rates(output, accepted=True)
    run(*words[:2], tmp_path / "quiet.csv", "--labels", "--verbose=0")
    run(*words[:2], tmp_path / "without.csv")
    assert "wrong" not in capsys.readouterr().out


def test_rows_without_a_label_or_an_answer_are_neither_right_nor_wrong(tiny, tmp_path, capsys):
    images = some_images(8)
    for row, image in enumerate(images):
        folder = tmp_path / "in" / CLASSES[row % 3] if row > 1 else tmp_path / "in"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{row}.png")
    (tmp_path / "in" / CLASSES[0] / "broken.png").touch()
    output = run(tiny[0], tmp_path / "in", tmp_path / "s.jsonl", "--labels", status=3)
    told = capsys.readouterr().out.splitlines()
    assert told[-2] == f"all answers that have a label: {rates(output)}"
    assert " of 6 wrong" in told[-2]
    # A threshold that accepts nothing leaves nothing to be wrong.
    tiny_model.save(tmp_path / "m", tau=None)
    run(tmp_path / "m", tmp_path / "in", tmp_path / "none.csv", "--labels", status=3)
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "accepted ones that have a label: none, hence no error rate"


class Stop(Exception):
    pass


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("torn", [b"", b"8f3", b"8f3a " + b'[{"input": "x[', b"\0" * 40])
def test_goes_on_after_its_last_whole_batch(tiny, tmp_path, monkeypatch, ending, torn, capfd):
    np.savez_compressed(tmp_path / "x.npz", x=some_images(45))
    source = tmp_path / "x.npz"
    whole = run(tiny[0], source, tmp_path / f"whole{ending}", "--batch_size=10", "--verbose=0")
    stopped = tmp_path / f"stopped{ending}"
    asked = []
    answer = Scorer.answer

    def stopping(self, batch):
        if len(asked) == 2:
            raise Stop
        asked.append(len(batch["input"]))
        return answer(self, batch)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Scorer, "answer", stopping)
        batch_scoring.score(tiny[0], source, stopped, batch_size=10, verbose=0)
    with open(tmp_path / f"{stopped.name}.partial" / "rows.jsonl", "ab") as rows:
        rows.write(torn)
    monkeypatch.setattr(
        Scorer, "answer", lambda self, batch: asked.append(1) or answer(self, batch)
    )
    run(tiny[0], source, stopped, "--batch_size=10", "--verbose=0")
    # Batches of 20 to 30, 30 to 40, and the last 5: none of the first 20 again.
    assert asked == [10, 10, 1, 1, 1]
    assert stopped.read_bytes() == whole.read_bytes()
    assert capfd.readouterr().err == ""


def cut_line(lines):
    return [*lines[:2], lines[2][:80], *lines[3:]]


def cut_line_with_its_end(lines):
    return [*lines[:2], lines[2][:80] + b"\n", *lines[3:]]


def another_number(lines):
    return [*lines[:2], re.sub(rb'("uncertainty": 0\.)\d', rb"\g<1>9", lines[2]), *lines[3:]]


def without_check(lines):
    return [*lines[:2], lines[2][65:], *lines[3:]]


def junk(lines):
    return [*lines[:2], bytes(range(256)), *lines[3:]]


def junk_for_the_rest(lines):
    return [*lines[:2], b"\xff\n\0" * 99]


def a_batch_less(lines):
    return [*lines[:2], *lines[3:]]


def a_batch_twice(lines):
    return [*lines[:3], *lines[2:]]


def another_check(lines):
    return [*lines[:2], bytes([lines[2][0] ^ 1]) + lines[2][1:], *lines[3:]]


def damaged_head(lines):
    return [lines[0].replace(b'"batch_size": 3', b'"batch_size": 4'), *lines[1:]]


def no_head(lines):
    return lines[1:]


def only_junk(lines):
    return [b"\0\xff\n" * 99]


def of_version_0_1_0(lines):
    """Rows that another format keeps."""
    return [b'{"command": {"batch_size": 3}}\n', b'{"done": 0, "sha256": "e3"}\n']


@pytest.mark.parametrize(
    ("damage", "sound"),
    [
        (cut_line, 3),
        (cut_line_with_its_end, 3),
        (another_number, 3),
        (without_check, 3),
        (junk, 3),
        (junk_for_the_rest, 3),
        (a_batch_less, 3),
        (a_batch_twice, 6),
        (another_check, 3),
        (damaged_head, 0),
        (no_head, 0),
        (only_junk, 0),
        (of_version_0_1_0, 0),
    ],
)
def test_damaged_rows_are_scored_again(tiny, done, tmp_path, monkeypatch, damage, sound, capfd):
    source, lines, whole = done
    content = b"".join(damage(lines))
    assert content != b"".join(lines)
    rows = tmp_path / "s.csv.partial" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_bytes(content)
    asked, answer = [], Scorer.answer
    monkeypatch.setattr(
        Scorer, "answer", lambda self, batch: asked.append(1) or answer(self, batch)
    )
    run(tiny[0], source, tmp_path / "s.csv", "--batch_size=3", "--verbose=0")
    told = capfd.readouterr().err
    assert len(asked) == (12 - sound) // 3
    assert told.startswith(f"{rows}: expected") and "damaged" in told
    assert f"the first {sound} are" in told and told.count("\n") == 1
    assert (tmp_path / "s.csv").read_bytes() == whole
    assert left(tmp_path) == ["s.csv", "s.csv.about.json"]


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    """An input, the lines of its rows when all are done, and the bytes of its scores."""
    folder = tmp_path_factory.mktemp("done")
    np.save(folder / "x.npy", some_images(12))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setitem(_FORMATS, ".csv", raising(Stop))
        batch_scoring.score(tiny[0], folder / "x.npy", folder / "s.csv", batch_size=3, verbose=0)
    rows = (folder / "s.csv.partial" / "rows.jsonl").read_bytes()
    run(tiny[0], folder / "x.npy", folder / "s.csv", "--batch_size=3", "--verbose=0")
    lines = rows.splitlines(keepends=True)
    # The command, then four batches.
    assert len(lines) == 1 + 4
    return folder / "x.npy", lines, (folder / "s.csv").read_bytes()


def raising(error):
    def raise_(*_):
        raise error

    return raise_


def test_whatever_the_damage_what_is_kept_was_written(tmp_path):
    random = np.random.default_rng(0)
    settings = {"batch_size": 2, "versions": {"a": "1"}}
    whole = RowLog(tmp_path / "rows", settings)
    ends = [0]
    for batch in range(5):
        whole.append([{"input": f"{batch}-{row}", "problem": "é" * row} for row in range(2)])
        ends.append(whole.path.stat().st_size)
    content = whole.path.read_bytes()
    head = content.index(b"\n") + 1
    for _ in range(400):
        damaged = bytearray(content)
        first, second = np.sort(random.integers(len(content) + 1, size=2))
        damaged[first : random.choice([first, first + 1, second])] = random.bytes(
            random.integers(4)
        )
        whole.path.write_bytes(damaged)
        rows = RowLog(whole.path, settings)
        kept = whole.path.read_bytes()
        assert content.startswith(kept)
        assert rows.done == (0 if len(kept) == head else 2 * ends.index(len(kept)))
        if damaged == content:
            assert not rows.damaged and rows.done == 10
        for batch in range(rows.done // 2, 5):
            rows.append([{"input": f"{batch}-{row}", "problem": "é" * row} for row in range(2)])
        assert whole.path.read_bytes() == content


@pytest.mark.parametrize(
    ("ending", "rows"), [*((ending, 100) for ending in FORMATS), (".csv", 600)]
)
def test_a_full_disk_loses_nothing(tiny, tmp_path, monkeypatch, ending, rows, capfd):
    np.save(tmp_path / "x.npy", some_images(rows))
    words = [f"--model={tiny[0]}", f"--input={tmp_path / 'x.npy'}", "--batch_size=50"]
    words += ["--verbose=0", f"--output={tmp_path / f's{ending}'}"]
    if rows == 100:  # In the file of scores; else in that of what is done.
        writer = _FORMATS[ending]

        def full(*arguments):
            with room(100):
                writer(*arguments)

        monkeypatch.setitem(_FORMATS, ending, full)
        told = refused(capfd, *words)
        monkeypatch.setitem(_FORMATS, ending, writer)
    else:
        Scorer(tiny[0])  # TensorFlow writes files of its own where it is new.
        with room(60_000):
            told = refused(capfd, *words)
    assert told.startswith(f"error: output: expected room on the disk for {tmp_path}/s{ending}, ")
    assert f"{tmp_path}/s{ending}.partial" in told and "run the same command again" in told
    assert left(tmp_path) == [f"s{ending}.partial", "x.npy"]
    assert left(tmp_path / f"s{ending}.partial") == [".lock", "rows.jsonl"]
    asked, answer = [], Scorer.answer
    monkeypatch.setattr(
        Scorer, "answer", lambda self, batch: asked.append(1) or answer(self, batch)
    )
    assert predict.main(words) == 0
    assert len(asked) < rows / 50 and capfd.readouterr().err == ""
    scored = (tmp_path / f"s{ending}").read_bytes()
    whole = run(tiny[0], tmp_path / "x.npy", tmp_path / f"whole{ending}", *words[2:4])
    assert scored == whole.read_bytes()


def test_stopped_while_the_file_is_written(tiny, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", some_images(7))
    output = tmp_path / "s.parquet"

    def torn(path, *_):
        path.write_bytes(b"half")
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setitem(_FORMATS, ".parquet", torn)
        batch_scoring.score(tiny[0], tmp_path / "x.npy", output, verbose=0)
    assert not output.exists() and (tmp_path / "s.parquet.partial" / "rows.jsonl").exists()
    # All rows are there: no model is needed any more.
    monkeypatch.setattr(scorer_, "Scorer", None)
    run(tiny[0], tmp_path / "x.npy", output, "--verbose=0")
    assert len(read(output)) == 7 and not (tmp_path / "s.parquet.partial").exists()


def test_a_kill_in_the_first_line(tiny, tmp_path):
    np.save(tmp_path / "x.npy", some_images(3))
    (tmp_path / "s.csv.partial").mkdir()
    (tmp_path / "s.csv.partial" / "rows.jsonl").write_bytes(b'0f3a {"mod')
    assert len(read(run(tiny[0], tmp_path / "x.npy", tmp_path / "s.csv"))) == 3


def test_ctrl_c(tiny, tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "x.npy", some_images(3))

    def interrupted(self, batch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "answer", interrupted)
        run(tiny[0], tmp_path / "x.npy", tmp_path / "s.csv", status=130)
    assert "goes on from here" in capsys.readouterr().err
    run(tiny[0], tmp_path / "x.npy", tmp_path / "s.csv")


def test_sigterm_ends_a_command_behind_its_batch(tiny, tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "x.npy", some_images(6))
    answer, given = Scorer.answer, (tiny[0], tmp_path / "x.npy", tmp_path / "s.csv")
    whole = run(*given[:2], tmp_path / "whole.csv", "--batch_size=2")

    def terminated(self, batch):
        os.kill(os.getpid(), signal.SIGTERM)
        return answer(self, batch)

    before = signal.signal(signal.SIGTERM, interrupt._end)  # As in a process of its own.
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "answer", terminated)
        run(*given, "--batch_size=2", status=143)
    signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "\nterminated; the same command goes on from here\n"
    run(*given, "--batch_size=2")
    assert "resuming after 2 of 6 inputs" in capsys.readouterr().out
    assert given[2].read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "error", [tf.errors.ResourceExhaustedError(None, None, "OOM"), MemoryError()]
)
def test_a_batch_without_memory_says_the_remedy(tiny, tmp_path, monkeypatch, capsys, error):
    def exhausted(*_, **__):
        raise error

    np.save(tmp_path / "x.npy", some_images(3))
    load = Scorer.__init__

    def loaded(self, *arguments):
        load(self, *arguments)
        self._signature = exhausted

    monkeypatch.setattr(Scorer, "__init__", loaded)
    run(tiny[0], tmp_path / "x.npy", tmp_path / "s.csv", status=1)
    told = capsys.readouterr().err
    assert told.startswith("error: batch_size: expected a batch for which there is memory")
    assert "256 inputs at once" in told and "name a smaller one" in told and told.count("\n") == 1


def test_files_of_too_many_pixels_have_no_answer(tiny, tmp_path, capsys):
    place, given = tmp_path / "photos", (tiny[0], tmp_path / "photos", tmp_path / "s.csv")
    place.mkdir()
    (place / "1.png").write_bytes(hostile.png(10, 10))
    (place / "2.png").write_bytes(hostile.png(11, 10))
    rows = read(run(*given, "--max_pixels=100", status=SOME_PROBLEMS))
    told = "expected at most 100 pixels (max_pixels), received 10 x 11"
    assert [row["problem"] for row in rows] == [None, told]
    # Part of what makes a file; files of earlier versions do not name it.
    run(*given, "--max_pixels=200", status=1)
    assert "max_pixels 200 in place of 100" in capsys.readouterr().err
    given[2].unlink()
    rows = read(run(*given))
    assert [row["problem"] for row in rows] == [None, None]
    about = predictions.about_file(given[2])
    content = json.loads(about.read_text())
    assert content["command"].pop("max_pixels") == 64_000_000
    about.write_text(json.dumps(content))
    run(*given)
    for wrong in ("0", "178956971", "many"):
        with pytest.raises(SystemExit):
            run(*given, f"--max_pixels={wrong}")
        assert "max_pixels" in capsys.readouterr().err


@pytest.fixture
def begun(tiny, tmp_path, monkeypatch):
    """A model, an input and an output of which one batch of two is done."""
    shutil.copytree(tiny[0] / "10", tmp_path / "m")
    np.savez(tmp_path / "x.npz", x=some_images(6), y=np.arange(6) % 3)
    answer, asked = Scorer.answer, []

    def stopping(self, batch):
        if asked:
            raise Stop
        asked.append(1)
        return answer(self, batch)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Scorer, "answer", stopping)
        batch_scoring.score(
            tmp_path / "m", tmp_path / "x.npz", tmp_path / "s.csv", batch_size=3, verbose=0
        )
    return (
        f"--model={tmp_path / 'm'}",
        f"--input={tmp_path / 'x.npz'}",
        f"--output={tmp_path / 's.csv'}",
        "--batch_size=3",
    )


def change_model(folder):
    path = folder / "m" / "assets.extra" / "btcp_tf.json"
    path.write_text(path.read_text().replace("0.55", "0.45"))


def change_input(folder):
    np.savez(folder / "x.npz", x=some_images(7), y=np.arange(7) % 3)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        (change_model, "", "another model"),
        (change_input, "", "another or a changed input"),
        (None, "--batch_size=2", "batch_size 2 in place of 3"),
        (None, "--labels", "received one with labels true in place of false;"),
    ],
)
def test_another_command_does_not_touch_what_one_left(
    begun, tmp_path, change, word, reason, finished, capfd
):
    if finished:
        assert predict.main(begun) == 0
    if change:
        change(tmp_path)
    before = snapshot(tmp_path)
    capfd.readouterr()
    told = refused(capfd, *begun, *([word] if word else []))
    if finished:
        reason = reason.replace("received one with ", "now with ").rstrip(";")
    assert reason in told and "output: expected" in told
    assert ("input" in told.split(" with ")[1]) == (change is change_input)
    assert snapshot(tmp_path) == before


def snapshot(folder):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_finished_already(begun, tmp_path, capfd):
    assert predict.main(begun) == 0
    before = snapshot(tmp_path)
    # Another path to the same model and input is the same command.
    os.rename(tmp_path / "m", tmp_path / "1")
    words = [f"--model={tmp_path / '1'}", *begun[1:]]
    capfd.readouterr()
    assert predict.main(words) == 0
    assert "finished already; nothing is changed" in capfd.readouterr().out
    os.rename(tmp_path / "1", tmp_path / "m")
    assert snapshot(tmp_path) == before
    with open(tmp_path / "s.csv", "a") as file:
        file.write("\n")
    remedy = "; name another --output, or move that file away"
    assert f"was changed since{remedy}" in refused(capfd, *begun)
    os.unlink(tmp_path / "s.csv.about.json")
    assert f"comes from elsewhere{remedy}" in refused(capfd, *begun)


def test_a_finished_file_with_problems_says_so_again(tiny, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").touch()
    for _ in range(2):
        run(tiny[0], tmp_path / "in", tmp_path / "s.csv", status=3)


def test_two_processes_on_one_file(begun, tmp_path, capfd):
    with open(tmp_path / "s.csv.partial" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = snapshot(tmp_path)
        assert "choose another --output" in refused(capfd, *begun)
        assert snapshot(tmp_path) == before
    assert predict.main(begun) == 0


def test_an_input_that_changes_meanwhile(tiny, tmp_path, monkeypatch, capfd):
    (tmp_path / "in").mkdir()
    for name in "ab":
        Image.fromarray(some_images(1)[0, ..., 0]).save(tmp_path / "in" / f"{name}.png")
    answer = Scorer.answer

    def adding(self, batch):
        Image.fromarray(some_images(1)[0, ..., 0]).save(tmp_path / "in" / "c.png")
        return answer(self, batch)

    monkeypatch.setattr(Scorer, "answer", adding)
    predict.main(
        [
            f"--model={tiny[0]}",
            f"--input={tmp_path / 'in'}",
            f"--output={tmp_path / 's.csv'}",
            "--batch_size=1",
        ]
    )
    assert "input: expected" in capfd.readouterr().err
    assert not (tmp_path / "s.csv").exists()


# What is refused -------------------------------------------------------------------------------


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--output=folder.csv"], "which is no file; name another --output"),
        (["--output=x.npy/s.csv"], "output: expected a folder that can be written"),
        (["--model=nowhere"], "model: expected the folder of a SavedModel"),
        (["--model=x.npy"], "which is a file"),
        (["--model=in"], "which holds neither"),
        (["--input=nowhere"], "which is not there"),
        (["--input=pipe.npz"], "which is no file"),
        (["--input=empty"], "expected image files, received none"),
        (["--input=words.npz"], "expected an npz file, received what cannot be read"),
        (["--input=empty.npy"], "expected the whole array empty"),
        (["--input=torn.npz"], "expected an npz file, received what cannot be read"),
        (["--input=torn.npy"], "expected the whole array torn"),
        (["--input=damaged.npz"], "expected the whole array x"),
        (["--input=other.npz"], "expected an array x_test or images or x, received pictures; "),
        (["--input=other.npz", "--key=x"], "expected an array x, received pictures\n"),
        (["--input=fortran.npz"], "expected an array in C order"),
        (["--input=objects.npz"], "expected numbers or text, received dtype object"),
        (["--input=words_inside.npz"], "for each input; received text of shape"),
        (["--input=none.npz"], "with at least one input, received (0, 8, 8, 1)"),
        (["--input=no_array.npz"], "expected the whole array x"),
        (["--input=floats.npz"], "expected uint8 of shape [8, 8, 1] for each input, or uint8"),
        (["--input=integers.npz"], "received int64 of shape [8, 8, 1]"),
        (["--input=channels.npz"], "received uint8 of shape [8, 8, 2]"),
        (
            ["--labels", "--input=other.npz", "--key=pictures"],
            "labels: expected an array y_test or",
        ),
        (["--labels", "--input=in"], "labels: expected each file in a folder named as one of"),
        (["--labels", "--input=classes.npz"], "expected classes 0 to 2, received 3 in row 4"),
        (["--labels", "--input=few.npz"], "expected a whole number for each of the 6 inputs"),
    ],
)
def test_bad_input(tiny, tmp_path, monkeypatch, capfd, words, reason):
    monkeypatch.chdir(tmp_path)
    images = some_images(6)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "in").mkdir()
    Image.fromarray(images[0, ..., 0]).save("in/a.png")
    (tmp_path / "words.npz").write_text("words")
    (tmp_path / "empty.npy").touch()
    os.mkfifo("pipe.npz")
    np.save("x.npy", images)
    (tmp_path / "torn.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-9])
    for name, arrays in {
        "other": {"pictures": images},
        "fortran": {"x": np.asfortranarray(images)},
        "objects": {"x": np.array([None, 1])},
        "words_inside": {"x": np.array(["a"])},
        "none": {"x": images[:0]},
        "floats": {"x": images / 255},
        "integers": {"x": images.astype(int)},
        "channels": {"x": some_images(2, (8, 8, 2))},
        "classes": {"x": images, "y": [0, 1, 2, 0, 3, 0]},
        "few": {"x": images, "y": [0, 1]},
    }.items():
        np.savez(f"{name}.npz", **arrays)
    whole = (tmp_path / "few.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    middle = whole.index(b"\n", 60) + 20
    (tmp_path / "damaged.npz").write_bytes(
        whole[:middle]
        + bytes(255 - byte for byte in whole[middle : middle + 9])
        + whole[middle + 9 :]
    )
    with zipfile.ZipFile("no_array.npz", "w") as archive:
        archive.writestr("x.npy", "words")
    before = left(tmp_path)
    told = refused(
        capfd, f"--model={tiny[0]}", "--input=x.npy", "--output=s.csv", "--verbose=0", *words
    )
    assert reason in told
    assert left(tmp_path) == before


def test_unwritable_folder(tiny, tmp_path, monkeypatch, capfd):
    np.save(tmp_path / "x.npy", some_images(1))

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "mkdir", denied)
    told = refused(
        capfd,
        f"--model={tiny[0]}",
        f"--input={tmp_path / 'x.npy'}",
        f"--output={tmp_path / 'new' / 's.csv'}",
    )
    assert "output: expected a folder that can be written" in told and "Permission denied" in told


def about(names):
    threshold = dataclasses.asdict(thresholds.DEFAULT)
    return json.dumps({"class_names": names, "threshold": threshold})


def other_signature(folder):
    module = tf.Module()
    module.serve = tf.function(
        lambda x: {"y": x}, input_signature=[tf.TensorSpec((None, 8, 8, 1), tf.uint8, name="x")]
    )
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "btcp_tf.json").write_text(about(["a", "b"]))


def no_signature(folder):
    shutil.rmtree(folder)
    tf.saved_model.save(tf.Module(), str(folder))
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "btcp_tf.json").write_text(about(["a", "b"]))


def without_about(folder):
    (folder / "assets.extra" / "btcp_tf.json").unlink()


def damaged_about(folder):
    (folder / "assets.extra" / "btcp_tf.json").write_text(about(3))


def fewer_classes(folder):
    (folder / "assets.extra" / "btcp_tf.json").write_text(about(["a", "b"]))


def damaged_graph(folder):
    (folder / "saved_model.pb").write_bytes(b"words")


def without_weights(folder):
    shutil.rmtree(folder / "variables")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_signature, "expected images in and predicted int64"),
        (no_signature, "expected the signature serving_default, received none"),
        (without_about, "expected a SavedModel that btcp_tf exported"),
        (damaged_about, "expected what btcp_tf writes about a model, received what cannot be"),
        (fewer_classes, "and 2 classes, received"),
        (damaged_graph, "expected a SavedModel that TensorFlow loads"),
        (without_weights, "expected a SavedModel that TensorFlow loads"),
    ],
)
def test_models_of_somebody_else(tiny, tmp_path, capfd, change, reason):
    np.save(tmp_path / "x.npy", some_images(1))
    model = tmp_path / "m"
    if change is other_signature:
        other_signature(model)
    else:
        shutil.copytree(tiny[0] / "10", model)
        change(model)
    told = refused(
        capfd,
        f"--model={model}",
        f"--input={tmp_path / 'x.npy'}",
        f"--output={tmp_path / 's.csv'}",
    )
    assert reason in told
    assert left(tmp_path) == ["m", "x.npy"]


def test_models_of_numbers_take_no_files(rows_model, tmp_path, capfd):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").touch()
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    for source, reason in (("in", "expected a model of gray or color images"), ("x.npy", "[5]")):
        told = refused(
            capfd,
            f"--model={rows_model[0]}",
            f"--input={tmp_path / source}",
            f"--output={tmp_path / 's.csv'}",
        )
        assert reason in told
    assert left(tmp_path) == ["in", "x.npy"]


PATHS = ("--model=m", "--input=i", "--output=s.csv")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "model: expected --model=PATH, received none"),
        (["--model=m", "--input=i"], "output: expected --output=PATH"),
        (["--batch_size=0"], "batch_size"),
        (["--batch_size=1000000000"], "batch_size"),
        (["--verbose=3"], "verbose: expected a whole number"),
        (["--batch_size=x"], "batch_size"),
        (["scores.csv"], "received the word 'scores.csv'"),
        (["--inputs=x"], "inputs"),
        ([*PATHS, "--output=s.txt"], "output: expected a file that ends in .csv, .jsonl, .parquet"),
        ([*PATHS, "--output=s"], "output: expected a file that ends in"),
        ([*PATHS, "--output=~no_such_user/s.csv"], "output: expected a path without ~"),
        ([*PATHS, "--input=words.txt"], "input: expected a folder of images, an npz or an npy fi"),
        ([*PATHS, f"--output={'s' * 240}.csv"], "output: expected a name of at most 240 bytes"),
        ([*PATHS, "--output=in/s.csv", "--input=in"], "output: expected a file outside of the inp"),
        ([*PATHS, "--input=x.npy", "--key=x"], "key: expected it with an npz file"),
        ([*PATHS, "--input=in", "--key=x"], "key: expected it with an npz file"),
        ([*PATHS, "--input=x.npy", "--labels"], "labels: expected them with a folder or an npz fi"),
    ],
)
def test_usage(words, reason, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "in").mkdir()
    np.save("x.npy", some_images(1))
    assert reason in refused(capfd, *words, status=2)


def test_help_does_not_wait_for_tensorflow():
    code = (
        "import sys\nfrom btcp_tf import predict\n"
        "try:\n    predict.main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert not {'tensorflow', 'keras', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--batch_size=256" in done.stdout and USAGE in done.stdout


# For other programs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "model: expected a path, received NoneType"),
        ({"input": None}, "input: expected a path, received NoneType"),
        ({"output": 5}, "output: expected a path, received int"),
        *(
            ({"batch_size": value}, "batch_size: expected a whole number from 1 to 1000000, rec")
            for value in (None, "x", 1.5, True, 0, 1_000_001)
        ),
    ],
)
def test_arguments_of_another_kind_are_refused(tiny, tmp_path, settings, message):
    np.save(tmp_path / "x.npy", some_images(1))
    given = {"model": tiny[0], "input": tmp_path / "x.npy", "output": tmp_path / "s.csv"}
    with pytest.raises(ValueError, match=message):
        batch_scoring.score(**given | settings)
    assert left(tmp_path) == ["x.npy"]


def test_what_is_no_batch_is_refused(tiny):
    with pytest.raises(ValueError, match="model: expected a path, received NoneType"):
        Scorer(None)
    with pytest.raises(ValueError, match="path: expected a path, received NoneType"):
        records.write(None, [])
    scorer = Scorer(tiny[0])
    for batch, message in (
        (None, "batch: expected arrays by name, received NoneType"),
        ({}, "batch: expected images or files, received none"),
        ({"images": None}, r"images: expected an array \[n, ...\], received NoneType"),
        ({"files": "a.png"}, r"files: expected an array \[n, ...\], received str"),
    ):
        with pytest.raises(ValueError, match=message):
            scorer(batch)


def test_scorer_is_its_model_when_pickled(tiny, tmp_path):
    scorer = Scorer(tiny[0])
    # The version is fixed: a newer one must not answer for a part of the rows.
    again = pickle.loads(pickle.dumps(scorer))
    assert again.directory == scorer.directory == tiny[0] / "10"
    images = some_images(5)
    found = again({"images": images, "input": np.arange(5), "extra": np.ones(5)})
    probs, u = tiny[1](images)
    np.testing.assert_allclose(found["probs"], probs, atol=1e-5)
    np.testing.assert_array_equal(found["input"], np.arange(5))
    assert "images" not in found and found["extra"].sum() == 5
    assert found["accept"].tolist() == (found["uncertainty"].astype(np.float64) < 0.55).tolist()
    assert scorer({"images": images[:0]})["probs"].shape == (0, 3)
    with pytest.raises(ValueError, match="batch: expected images or files, received x"):
        scorer({"x": images})
    with pytest.raises(ValueError, match="images: expected uint8"):
        scorer({"images": images.astype(np.float32)})


def test_answers_that_are_not_finite(rows_model):
    scorer = Scorer(rows_model[0])
    # Finite numbers whose sums, for some of the signs, are not.
    signs = np.array(list(itertools.product((-1, 1), repeat=5)), np.float32)
    found = scorer({"images": np.concatenate([signs, 3e38 * signs])})
    bad = found["problem"] == "the model's answer is not finite"
    assert 0 < bad.sum() < 32 and not bad[:32].any()
    assert (found["problem"][~bad] == "").all()
    np.testing.assert_array_equal(np.isnan(found["uncertainty"]), bad)
    np.testing.assert_array_equal(found["predicted"] == -1, bad)
    assert not found["accept"][bad].any()


def test_a_second_opinion_that_is_not_finite_is_no_answer(tmp_path, monkeypatch):
    model, _ = tiny_model.save(tmp_path / "looking" / "1", second=True)
    scorer = Scorer(model)
    signature = scorer._signature

    def overflowing(images):
        found = signature(images=images)
        row = tf.one_hot(1, tf.shape(images)[0], on_value=np.nan)
        return found | {"second_probability": found["second_probability"] + row}

    monkeypatch.setattr(scorer, "_signature", overflowing)
    found = scorer({"images": some_images(3)})
    assert [problem == "" for problem in found["problem"]] == [True, False, True]
    assert found["second_opinion"][1] == found["predicted"][1] == -1


def test_write_is_for_answers_from_anywhere(tiny, tmp_path):
    scorer = Scorer(tiny[0])
    images = some_images(7)
    np.save(tmp_path / "x.npy", images)
    batches = [
        scorer({"input": np.array([f"x[{row}]" for row in rows]), "images": images[rows]})
        for rows in (range(4), range(4, 7))
    ]
    for ending in FORMATS:
        records.write(tmp_path / f"w{ending}", batches)
        run(tiny[0], tmp_path / "x.npy", tmp_path / f"s{ending}", "--batch_size=4", "--verbose=0")
        assert (tmp_path / f"w{ending}").read_bytes() == (tmp_path / f"s{ending}").read_bytes()
        with pytest.raises(FileExistsError, match="expected a new file"):
            records.write(tmp_path / f"w{ending}", batches)
    with pytest.raises(ValueError, match="batches: expected at least one"):
        records.write(tmp_path / "none.csv", [])
    assert not (tmp_path / "none.csv").exists()


def test_row_groups_of_parquet_are_larger_than_batches_and_bounded(tiny, tmp_path):
    n = 20_000
    np.save(tmp_path / "x.npy", np.broadcast_to(some_images(1), (n, 8, 8, 1)))
    words = ("--batch_size=4096", "--verbose=0")
    output = run(tiny[0], tmp_path / "x.npy", tmp_path / "s.parquet", *words)
    about = parquet.ParquetFile(output).metadata
    rows = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    assert sum(rows) == n and len(rows) == 2 and max(rows) < 18_000


@pytest.mark.servers
@pytest.mark.parametrize(
    ("source", "ending", "status"),
    [("x.npz", ".csv", 0), ("photos", ".parquet", SOME_PROBLEMS)],
)
def test_ray_workers_answer_row_by_row_alike(tiny, tmp_path, photos, source, ending, status):
    pytest.importorskip("ray.data")
    checkout = pathlib.Path(__file__).resolve().parents[1]
    np.savez_compressed(tmp_path / "x.npz", x=some_images(700))
    alone, output = tmp_path / f"alone{ending}", tmp_path / f"ray{ending}"
    words = [f"--model={tiny[0]}", f"--input={tmp_path / source}"]
    assert predict.main([*words, f"--output={alone}", "--batch_size=64"]) == status
    done = subprocess.run(
        [
            sys.executable,
            "examples/batch_scoring_ray.py",
            *words,
            f"--output={output}",
            "--batch_size=64",
            "--workers=2",
        ],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected, found = read(alone), read(output)
    assert done.stdout.endswith(f"{output}: {len(expected)} inputs\n")
    for one, other in zip(expected, found, strict=True):
        assert list(other) == list(one)
        for name, value in one.items():
            if name in ("probs", "uncertainty") and value is not None:
                np.testing.assert_allclose(other[name], value, atol=1e-6)
            else:
                assert other[name] == value
