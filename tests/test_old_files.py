"""What version 0.1.0 wrote is read and answers as it did, or is refused with a remedy.

`fixtures/make_0_1_0.py` made the files, and kept beside them what 0.1.0 answered. Whoever has to
refuse some of them writes in `REFUSED` which, and with which remedy.
"""

import csv
import hashlib
import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from fixtures import make_0_1_0 as made

import btcp_tf
from btcp_tf import monitor, predict, report, set_threshold, study
from btcp_tf.decisions import exported
from btcp_tf.evaluation import predictions, results
from btcp_tf.experiment import studies
from btcp_tf.main import main
from btcp_tf.serving.scorer import Scorer

pytestmark = pytest.mark.usefixtures("undrawn", "unchecked", "quick_heads")

REFUSED: dict[str, str] = {}
"""Judges, SavedModels and commands of 0.1.0, by their names below → the remedy that the error
names."""

JUDGES = ("images", "rows", "rows_with_threshold", "btcp", "mcp")
MODELS = ("residual", "mcp", "btcp", "rows")
KILLED = ("killed_after_phase_1", "killed_in_phase_2", "killed_in_folds")
FORMATS = ("csv", "jsonl", "parquet")


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """The folder that 0.1.0 worked in."""
    folder = tmp_path_factory.mktemp("old")
    for path in sorted(made.HERE.glob("*.tar.xz")):
        with tarfile.open(path) as file:
            file.extractall(folder, filter="data")
    return folder


@pytest.fixture
def here(old, tmp_path, monkeypatch):
    """A copy of it that may be changed, as the working folder: paths in the files are relative."""
    shutil.copytree(old, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def hashes(folder):
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "run.log")
    }


def assert_same(found, wanted):
    """Answers are those of 0.1.0, up to the rounding of another processor."""
    for name in {"predicted", "class_name", "accept"} & wanted.keys():
        assert np.asarray(found[name]).astype(wanted[name].dtype).tolist() == wanted[name].tolist()
    for name in {"probs", "uncertainty", "mcp"} & wanted.keys():
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-5)


def refused(name, error):
    """Whether this error is the one that `REFUSED` announces."""
    return name in REFUSED and re.search(REFUSED[name], error) is not None


# Judges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_answers_as_it_did(old, tmp_path, name):
    path, wanted = old / "judges" / f"{name}.keras", arrays(old / "judges" / f"{name}.npz")
    try:
        judge = btcp_tf.load(path)
    except ValueError as error:
        assert refused(name, str(error)), error
        return
    x, y = wanted["x"], wanted["y"]

    def answers(judge):
        found = judge.predict(x)
        return found | {"mcp": judge.predictions(x, y).uncertainty["mcp"]}

    assert_same(answers(judge), wanted)
    assert (judge.threshold is not None) == ("accept" in wanted)
    assert judge.method == ("btcp" if name == "btcp" else "residual")
    assert bool(judge.fitted.get("evidence")) == (name not in ("btcp", "mcp"))
    assert {row["n"] for row in judge.evaluate(x, y, draws=10)} == {len(y)}
    # Written by this version, it still does.
    judge.save(tmp_path / "again.keras")
    assert_same(answers(btcp_tf.load(tmp_path / "again.keras")), wanted)


def test_a_judge_is_exported_with_the_threshold_that_it_had(old, tmp_path):
    if "rows_with_threshold" in REFUSED:
        return
    wanted = arrays(old / "judges" / "rows_with_threshold.npz")
    judge = btcp_tf.load(old / "judges" / "rows_with_threshold.keras")
    path = judge.export(tmp_path, "rows", wanted["x"][:4])
    found = Scorer(path)({"images": wanted.pop("x")})
    assert_same(found, {name: wanted[name] for name in ("probs", "uncertainty", "accept")})


# SavedModels -------------------------------------------------------------------------------------


def png(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_answers_as_it_did(old, name):
    wanted = arrays(old / "models" / name / "answers.npz")
    images = wanted.pop("images")
    try:
        scorer = Scorer(old / "models" / name)
    except ValueError as error:
        assert refused(f"model {name}", str(error)), error
        return
    found = scorer({"images": images})
    assert set(found["problem"]) == {""}
    assert_same(found, wanted)
    if name == "rows":
        return
    signatures = tf.saved_model.load(str(old / "models" / name / "1")).signatures
    files = tf.constant([png(image) for image in images])
    for answers in (
        signatures["serving_float"](images=tf.constant(images, tf.float32)),
        signatures["serving_bytes"](image_bytes=files),
    ):
        assert_same({key: value.numpy() for key, value in answers.items()}, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gets_another_threshold(here, name):
    root = here / "models" / name
    wanted = arrays(root / "answers.npz")
    tau = float(np.median(wanted["uncertainty"])) + 1e-7
    for words in ([f"--threshold={tau!r}"], ["--threshold=target_coverage", "--coverage=0.5"]):
        assert set_threshold.main([str(root / "1"), *words, "--verbose=0"]) == 0
    about = {number: exported.read_about(root / number) for number in ("1", "2", "3")}
    assert about["2"]["threshold"]["tau"] == tau
    assert about["3"]["threshold"]["accepted"] >= about["3"]["threshold"]["n"] / 2
    same = {"class_names", "image_shape", "uncertainty"}
    assert all(about["1"][key] == about["3"][key] for key in same)
    for number in ("2", "3"):
        wanted["accept"] = wanted["uncertainty"] < about[number]["threshold"]["tau"]
        found = Scorer(root / number)({"images": wanted["images"]})
        assert_same(found, {key: wanted[key] for key in wanted if key != "images"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [("residual", "earlier version exported; export its run or its"), ("btcp", "u of btcp, which")],
)
def test_a_saved_model_is_not_recalibrated(here, name, reason, capsys):
    root = here / "models" / name
    words = [f"--scores={here / 'scores' / 'scores.csv'}", "--recalibrate", "--threshold=0.5"]
    assert set_threshold.main([str(root), *words]) == 1
    assert reason in capsys.readouterr().err
    assert exported.versions(root) == [1]


# Scores ------------------------------------------------------------------------------------------

SCORING = ["--model=models/residual", "--input=digits.npz", "--labels", "--verbose=0"]


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def columns(path):
    """A CSV of scores as what `assert_same` takes."""
    rows = rows_of(path)
    probs = [[float(row[f"probs_{k}"]) for k in range(10)] for row in rows]
    return {
        "predicted": np.array([int(row["predicted"]) for row in rows]),
        "class_name": np.array([row["class_name"] for row in rows]),
        "accept": np.array([row["accept"] == "true" for row in rows]),
        "probs": np.array(probs),
        "uncertainty": np.array([float(row["uncertainty"]) for row in rows]),
    }


def test_an_old_model_scores_a_file_as_it_did(here):
    assert predict.main([*SCORING, "--output=new.csv"]) == 0
    assert_same(columns("new.csv"), columns("scores/scores.csv"))
    for name in ("input", "labels", "problem"):
        new, before = ([row[name] for row in rows_of(p)] for p in ("new.csv", "scores/scores.csv"))
        assert new == before


def test_scoring_that_was_killed_goes_on_or_says_what_to_do(here, capsys):
    kept = hashes(here / "scores" / "killed.csv.partial")
    words = [*SCORING, "--batch_size=32", "--output=scores/killed.csv"]
    if predict.main(words) == 0:
        assert_same(columns("scores/killed.csv"), columns("scores/scores.csv"))
        return
    # Another version may round otherwise: then it is no part of what this one would write.
    assert "another --output begins anew" in capsys.readouterr().err
    assert hashes(here / "scores" / "killed.csv.partial") == kept
    assert predict.main([*words[:-1], "--output=anew.csv"]) == 0
    assert_same(columns("anew.csv"), columns("scores/scores.csv"))


def test_scores_that_are_there_are_not_written_over(here):
    before = hashes(here / "scores")
    assert predict.main([*SCORING, "--output=scores/scores.csv"]) in (0, 1)
    assert hashes(here / "scores") == before


@pytest.mark.parametrize("ending", [*FORMATS, "npz"])
def test_scores_are_reported(here, ending):
    path = Path("runs/run/predictions.npz" if ending == "npz" else f"scores/scores.{ending}")
    assert report.main([str(path), "--output_dir=page", "--bootstrap_draws=20"]) == 0
    [page] = Path("page").glob("report.html")
    text = page.read_text(encoding="utf-8")
    wanted = columns("scores/scores.csv")
    errors = arrays("digits.npz")["y_test"] != wanted["predicted"]
    # Both are of the same classifier.
    assert str(errors.sum()) in text and f"{100 * (1 - errors.mean()):.2f}" in text
    column = "residual" if ending == "npz" else "uncertainty"
    found = predictions.load_predictions(path)
    np.testing.assert_allclose(found.uncertainty[column], wanted["uncertainty"], rtol=0, atol=1e-5)
    assert found.predicted.tolist() == wanted["predicted"].tolist()


# Monitoring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["models/residual", "runs/run"])
@pytest.mark.parametrize("ending", FORMATS)
def test_monitoring_goes_on_from_an_old_baseline(here, baseline, ending):
    wanted = json.loads(Path("scores/verdicts.json").read_text())[baseline]
    words = [f"--baseline={baseline}", f"--scores=scores/scores.{ending}"]
    status = monitor.main([*words, "--output_dir=page"])
    assert status == wanted["status"]
    found = json.loads(Path("page/monitor.json").read_text())
    assert found["assumption"]["verdict"] == wanted["assumption"]["verdict"]


# Runs and studies --------------------------------------------------------------------------------


def words_of(name):
    return [*made.COMMON, *made.RUNS[name]]


@pytest.mark.parametrize("name", ["run", "mcp", "btcp"])
def test_a_finished_run_stays_as_it_is(here, name):
    before = hashes(here)
    assert main(words_of(name)) == 0
    assert main([f"--flagfile=runs/{name}/flags.cfg"]) == 0
    assert hashes(here) == before


def test_a_finished_study_stays_as_it_is(here):
    kept = {path: digest for path, digest in hashes(here).items() if "/npz-digits" in path}
    rows, _ = results.load_rows("runs/study/results.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "ABLATION", (("gamma", "0"),))
        assert study.main(made.STUDY) == 0
    assert kept and kept.items() <= hashes(here).items()
    assert results.load_rows("runs/study/results.json")[0] == rows


@pytest.mark.parametrize(
    ("folder", "methods"),
    [
        ("run", ("mcp", "tcp", "btcp", "residual")),
        ("mcp", ("mcp",)),
        ("study", ("mcp", "btcp", "residual")),
    ],
)
def test_reports_are_drawn_again(here, folder, methods):
    saved = {path for path in hashes(here) if path.endswith((".json", ".npz", ".cfg"))}
    before = {path: hashes(here)[path] for path in saved}
    assert report.main([f"runs/{folder}"]) == 0
    text = Path(f"runs/{folder}/report.html").read_text(encoding="utf-8")
    for method in methods:
        assert re.search(rf"\b{method}\b", text)
    rows, _ = results.load_rows(f"runs/{folder}/results.json")
    if folder != "study":
        row = next(row for row in rows if (row["method"], row["split"]) == ("mcp", "test"))
        assert f"{100 * row['accuracy']:.2f}" in text and f"{100 * row['auroc']:.2f}" in text
    assert {path: hashes(here)[path] for path in saved} == before


@pytest.mark.parametrize("name", KILLED)
def test_a_run_that_was_killed_ends_with_the_same_command(here, name, capsys):
    folder = here / "runs" / name
    checkpoints = hashes(folder / "checkpoints")
    # The stage that was killed is trained on; what was finished stays.
    half = {"killed_in_phase_2": "btcp.npz", "killed_in_folds": "fold2/classifier.npz"}.get(name)
    status = main([*words_of(name), "--export_dir=new"])
    if status and refused(name, capsys.readouterr().err):
        assert hashes(folder / "checkpoints") == checkpoints
        return
    assert status == 0
    after = hashes(folder / "checkpoints")
    for path, digest in checkpoints.items():
        assert (after[path] == digest) == (half is None or not path.endswith(half))
    found = predictions.load_predictions(folder / "predictions.npz")
    wanted = predictions.load_predictions(f"ends/{name}.npz")
    assert found.labels.tolist() == wanted.labels.tolist()
    if name == "killed_in_folds":
        # Its classifier is trained here, and what rounding makes of it grows with every step.
        assert abs(found.is_error.mean() - wanted.is_error.mean()) < 0.15
    else:
        np.testing.assert_allclose(found.probs, wanted.probs, rtol=0, atol=1e-4)
        for column, u in wanted.uncertainty.items():
            np.testing.assert_allclose(found.uncertainty[column], u, rtol=0, atol=1e-3)
    rows, _ = results.load_rows(folder / "results.json")
    assert {row["method"] for row in rows} == set(wanted.uncertainty)
