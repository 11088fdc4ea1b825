"""Monitoring of a model with looks: the share that is looked at again, and what that costs."""

import dataclasses
import json

import numpy as np
import pytest
from production import answers, rows_of, write_csv, write_jsonl, write_model, write_run
from scipy import special, stats

from btcp_tf import monitor
from btcp_tf.decisions.looked_at import Gate
from btcp_tf.evaluation.predictions import REFERENCE, Predictions, save_predictions
from btcp_tf.thresholds import clopper_pearson

pytestmark = pytest.mark.usefixtures("undrawn")

GATE = -1.0

FIT = {"looks": ["mirror"], "gate": GATE, "share": 0.3, "cost": 1.3, "evidence": ["answer"]}


def unsure(n, seed, share):
    """Answers of which about this share have an MCP logit above the gate; their u and classes are
    those of `answers`."""
    p = answers(n, seed)
    above = np.random.default_rng(1000 + seed).random(n) < share
    mcp = special.expit(np.where(above, GATE + 0.5, GATE - 9.0))
    probs = np.tile(mcp[:, None] / 2, (1, 3))
    probs[np.arange(n), p.predicted] = 1 - mcp
    columns = {**p.uncertainty, REFERENCE: mcp}
    return Predictions(p.labels, probs.astype(np.float32), p.predicted, columns), int(above.sum())


def judged(baseline, scores, folder, *more):
    """Exit status and verdicts."""
    words = [f"--baseline={baseline}", f"--scores={scores}", f"--output_dir={folder}"]
    status = monitor.main([*words, *more])
    return status, json.loads((folder / "monitor.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def then():
    return unsure(800, 0, 0.3)


@pytest.fixture
def model(tmp_path, then):
    return write_model(tmp_path / "model", then[0], fit=FIT)


def test_more_inputs_that_are_looked_at_again_are_found_and_cost_more(
    model, then, tmp_path, capsys
):
    now, count = unsure(600, 1, 0.5)
    scores = write_csv(tmp_path / "s.csv", rows_of(now))
    status, found = judged(model, scores, tmp_path / "out")
    assert status == 3
    looked_at = found["looked_at"]
    table = [[then[1], 800 - then[1]], [count, 600 - count]]
    assert looked_at["p_value"] == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-6)
    for when, k, n in (("baseline", then[1], 800), ("production", count, 600)):
        assert looked_at[when] == k / n
        assert looked_at[f"{when}_interval"] == pytest.approx(clopper_pearson(k, n))
        assert looked_at[f"{when}_cost"] == pytest.approx(1 + k / n)  # A look is one pass.
    assert looked_at["planned_cost"] == 1.3
    *others, own = found["assumption"]["checks"]
    assert own["name"] == "looked_at" and own["found"] and len(others) == 4
    assert not any(check["found"] for check in others)
    assert own["adjusted"] == pytest.approx(5 * own["p_value"])  # Corrected with the others.
    page = " ".join((tmp_path / "out" / "monitor.html").read_text(encoding="utf-8").split())
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        f"An input costs {1 + count / 600:.2f} passes of the classifier, "
        f"{1 + then[1] / 800:.2f} then; 1.30 were planned.",
        "share looked at again",
        "Answers cost more",
    ):
        assert text in page and text in shown, text
    assert "Answers cost more" in " ".join(found["notes"])


@pytest.mark.parametrize(("share", "is_found"), [(0.3, False), (0.15, True)])
def test_as_many_or_fewer_that_are_looked_at_again_are_no_warning(model, tmp_path, share, is_found):
    now, count = unsure(600, 1, share)
    status, found = judged(model, write_jsonl(tmp_path / "s.jsonl", rows_of(now)), tmp_path / "out")
    assert found["looked_at"]["production"] == count / 600
    assert status == 3 * is_found == 3 * found["assumption"]["checks"][-1]["found"]
    assert "cost" not in " ".join(found["notes"])


def test_few_rows_have_a_share_and_no_verdict(model, tmp_path):
    now, count = unsure(50, 1, 0.9)
    status, found = judged(model, write_csv(tmp_path / "s.csv", rows_of(now)), tmp_path / "out")
    assert status == 0 and found["assumption"]["checks"] == []
    assert found["looked_at"]["production"] == count / 50


def test_a_run_and_files_of_predictions_have_the_same_share(then, tmp_path):
    run = write_run(tmp_path / "run", then[0], column="residual_looks")
    save_predictions(
        run / "predictions_calibration.npz",
        dataclasses.replace(
            then[0],
            uncertainty={
                REFERENCE: then[0].uncertainty[REFERENCE],
                "residual_looks": then[0].uncertainty["uncertainty"],
            },
        ),
    )
    decision = json.loads((run / "decision.json").read_text())
    (run / "decision.json").write_text(json.dumps(decision | {"fit": FIT}))
    now, count = unsure(600, 1, 0.5)
    save_predictions(tmp_path / "s.npz", now)
    status, found = judged(run, tmp_path / "s.npz", tmp_path / "out")
    assert (found["looked_at"]["baseline"], found["looked_at"]["production"]) == (
        then[1] / 800,
        count / 600,
    )


@pytest.mark.parametrize(
    "fit",
    [
        None,
        {**FIT, "looks": []},
        {**FIT, "gate": None},
        {name: value for name, value in FIT.items() if name != "gate"},
        {**FIT, "share": 0.0},
        {**FIT, "cost": "x"},
        "fitted",
    ],
)
def test_without_looks_or_a_gate_nothing_new_appears(then, tmp_path, fit, capsys):
    model = write_model(tmp_path / "model", then[0], fit=fit)
    scores = write_csv(tmp_path / "s.csv", rows_of(unsure(600, 1, 0.9)[0]))
    status, found = judged(model, scores, tmp_path / "out")
    assert status == 0 and "looked_at" not in found
    assert len(found["assumption"]["checks"]) == 4
    page = (tmp_path / "out" / "monitor.html").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, page):
        assert "looked at again" not in text and "passes of the classifier" not in text


def test_a_share_that_cannot_be_told_is_a_note(then, tmp_path):
    old = dataclasses.replace(
        then[0], probs=None, uncertainty={"uncertainty": then[0].uncertainty["uncertainty"]}
    )
    now = rows_of(unsure(600, 1, 0.5)[0])
    bare = [{name: value for name, value in row.items() if name != "probs"} for row in now]
    for number, (rows, baseline, file) in enumerate(
        [(now, old, "model"), (bare, then[0], "bare.jsonl")]
    ):
        folder = tmp_path / str(number)
        model = write_model(folder / "model", baseline, fit=FIT)
        scores = write_jsonl(folder / "bare.jsonl", rows)
        status, found = judged(model, scores, folder / "out")
        assert status == 0 and "looked_at" not in found
        [note] = [note for note in found["notes"] if "looked at again" in note]
        assert f"{file} has neither class probabilities nor a column mcp" in note


def test_the_gate_is_told_from_probabilities_that_are_almost_one(then, tmp_path):
    # 1 - the largest one is 0 in float32.
    surest = dataclasses.replace(
        then[0],
        probs=np.tile(np.float32([1.0, 2e-12, 1e-12]), (800, 1)),
        predicted=np.zeros(800, np.int64),
    )
    rows = rows_of(surest)
    for gate, share in ((-26.6, 1.0), (-26.5, 0.0)):  # Of log(3e-12) = -26.53.
        model = write_model(tmp_path / f"{share}", then[0], fit=FIT | {"gate": gate})
        scores = write_csv(tmp_path / "s.csv", rows)
        assert judged(model, scores, tmp_path / "out")[1]["looked_at"]["production"] == share


def test_the_cost_of_a_share():
    gate = Gate.of(FIT | {"share": 0.2, "cost": 1.5})
    assert gate.cost_of(0.2) == 1.5 and gate.cost_of(0.0) == 1.0
    assert gate.cost_of(1.0) == pytest.approx(3.5)
