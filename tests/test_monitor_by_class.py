"""What monitor and review say of a threshold for each predicted class."""

import dataclasses
import json

import numpy as np
import pytest
from production import NAMES, answers, rows_of, threshold, write_csv, write_model, write_run
from scipy import stats

from btcp_tf import monitor, review, thresholds
from btcp_tf.decisions import history, monitoring
from btcp_tf.decisions.scores import Baseline, Scores, load_baseline
from btcp_tf.evaluation.predictions import Predictions, about_file
from btcp_tf.reporting import monitor_page

pytestmark = pytest.mark.usefixtures("undrawn")

TAUS = (0.3, 0.1, None)


def part(tau):
    return thresholds.Threshold(**threshold(tau=tau))


CHOSEN = thresholds.GroupThreshold(
    **(threshold(tau=None) | {"rule": "in each of 3 predicted classes", "target": 0.1}),
    by="predicted",
    parts={str(number): part(tau) for number, tau in enumerate(TAUS)},
)
FIELDS = dataclasses.asdict(CHOSEN)


def look(p, labels=True, chosen=CHOSEN, **more):
    then = answers(900, 0)
    u = "uncertainty"
    base = Baseline("base", then.uncertainty[u], then.predicted, u, 3, NAMES, chosen)
    scores = Scores("s.csv", p.uncertainty[u], p.predicted, u, **more.pop("columns", {}))
    pairs = (np.arange(len(p.labels)), p.labels) if labels else None
    return monitoring.monitor(base, scores, labels=pairs, **more)


def accepted(p):
    u = p.uncertainty["uncertainty"].astype(np.float64)
    return np.array([TAUS[k] is not None and v < TAUS[k] for k, v in zip(p.predicted, u)])  # noqa: B905


def broken_in(p, number, share):
    """The same answers; some of those that are accepted of a class are wrong."""
    rows = np.flatnonzero(accepted(p) & (p.predicted == number))
    labels = p.predicted.copy()
    labels[rows[: round(share * len(rows))]] = (number + 1) % 3
    return dataclasses.replace(p, labels=labels)


def test_each_class_is_decided_and_tested_by_its_own_tau():
    p = answers(3000, 1)
    found = look(p)
    kept = accepted(p)
    assert (found.figures.accepted.count, found.figures.wrong.count) == (
        kept.sum(),
        (kept & p.is_error).sum(),
    )
    np.testing.assert_array_equal(found.accepted[1], kept)
    assert [one.name for one in found.groups] == list(NAMES)
    for number, one in enumerate(found.groups):
        own = kept & (p.predicted == number)
        assert (one.accepted, one.promise.errors) == (own.sum(), (own & p.is_error).sum())
    table = [[np.sum(~part), np.sum(part)] for part in (accepted(answers(900, 0)), kept)]
    p_value = stats.fisher_exact(table).pvalue
    assert found.assumption.abstention.p_value == pytest.approx(p_value)
    assert found.state == "holds" and found.status == 0
    assert "in each of 3 predicted classes by itself is refuted in none" in found.promise_text
    assert "a tau for each predicted class" in monitor_page.terminal_text(found)


def test_a_class_breaks_the_promise_that_all_answers_keep():
    p = broken_in(answers(3000, 1), 1, 0.17)
    found = look(p)
    assert found.promise.verdict == "kept" and found.figures.wrong.count / sum(accepted(p)) < 0.1
    assert found.state == "broken" and found.status == monitoring.BROKEN
    assert "is refuted in dog (" in found.promise_text
    assert found.next_steps[0].startswith("Do not act on accepted answers")
    content = monitoring.to_json(found, {})
    assert content["state"] == "broken" and content["groups"]["by_name"]["dog"]["errors"] > 0
    assert content["threshold"]["parts"]["1"]["tau"] == TAUS[1]
    # One threshold for all answers made no promise about a class.
    one = dataclasses.replace(part(0.3), target=0.1)
    assert look(p, chosen=one).status != monitoring.BROKEN


def test_all_classes_and_all_answers_share_delta():
    """The smallest count that refutes in a class is that of the exact test with delta / 2 / 3."""
    p = answers(3000, 1)
    n = int((accepted(p) & (p.predicted == 1)).sum())
    least = next(k for k in range(n) if stats.binom.sf(k - 1, n, 0.1) <= 0.04 / 2 / 3)
    for errors, verdict in ((least - 1, "open"), (least, "broken")):
        found = look(broken_in(p, 1, errors / n), delta=0.04)
        assert found.groups[1].promise.errors == errors
        assert found.groups[1].promise.verdict == verdict
        assert (found.status == monitoring.BROKEN) == (verdict == "broken")


def test_other_groups_do_not_take_the_place_of_the_classes(tmp_path, capsys):
    p = answers(2000, 1)
    site = np.array(["north", "south"])[np.arange(2000) % 2]
    with pytest.raises(ValueError, match="by: expected none, as the threshold promises for each"):
        look(p, columns={"by": site})
    base = write_model(tmp_path / "base", answers(900, 0), **FIELDS)
    scores = write_csv(tmp_path / "s.csv", rows_of(p, labels=True))
    words = [f"--baseline={base}", f"--scores={scores}"]
    found = [monitor.main([*words, *more]) for more in ([], ["--by=predicted"])]
    assert found[0] == found[1] != 1
    capsys.readouterr()
    assert monitor.main([*words, "--by=class_name"]) == 1
    assert "error: by: expected none" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["run", "model"])
def test_scores_of_another_u_are_refused(tmp_path, capsys, kind):
    base = {"run": write_run, "model": write_model}[kind](tmp_path / "base", answers(900, 0))
    scores = write_csv(tmp_path / "s.csv", rows_of(answers(500, 1), labels=True))
    words = [f"--baseline={base}", f"--scores={scores}"]
    about = about_file(scores)
    about.write_text(json.dumps({"recalibrations": []}))
    assert monitor.main(words) != 1
    about.write_text(json.dumps({"recalibrations": [{"kind": "shift"}]}))
    capsys.readouterr()
    assert monitor.main(words) == 1
    assert "received u of a version that was recalibrated otherwise" in capsys.readouterr().err


def test_a_stream_knows_its_threshold_again(tmp_path):
    p = answers(600, 2)
    first = look(p, order="rows").history
    assert first.stream.tau == history.mark(CHOSEN)
    read = history._from_json(json.loads(json.dumps(dataclasses.asdict(first))))
    assert read == first
    more = answers(300, 3)
    joined = Predictions(
        np.append(p.labels, more.labels),
        None,
        np.append(p.predicted, more.predicted),
        {"uncertainty": np.append(*(x.uncertainty["uncertainty"] for x in (p, more)))},
    )
    assert look(joined, order="rows", history=read).history.stream.rows > first.stream.rows
    other = dataclasses.replace(CHOSEN, parts=CHOSEN.parts | {"1": part(0.2)})
    with pytest.raises(ValueError, match="expected the threshold and limit of the earlier look"):
        look(joined, order="rows", history=read, chosen=other)


def test_decisions_by_another_threshold_are_noted():
    p = answers(900, 1)
    for accept, noted in ((accepted(p), False), (p.uncertainty["uncertainty"] < 0.3, True)):
        notes = look(p, columns={"accept": accept}).notes
        assert any("own column accept differs" in note for note in notes) == noted
    assert any("u < the tau of its predicted class, 0.1 to 0.3" in note for note in notes)


@pytest.mark.parametrize("kind", ["run", "model"])
def test_commands_read_it_of_a_run_and_of_a_model(tmp_path, capsys, kind):
    write = {"run": write_run, "model": write_model}[kind]
    base = write(tmp_path / "base", answers(900, 0), **FIELDS)
    assert load_baseline(base).threshold == CHOSEN
    p = broken_in(answers(1500, 1), 1, 0.4)
    scores = write_csv(tmp_path / "s.csv", rows_of(p, labels=True))
    assert monitor.main([f"--baseline={base}", f"--scores={scores}"]) == monitoring.BROKEN
    assert "refuted in dog" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "s.csv-monitor" / "monitor.html").read_text()
    assert "u &lt; the tau of its predicted class" in page and "threshold: parts" not in page
    assert review.main([f"--baseline={base}", f"--scores={scores}"]) == 0
