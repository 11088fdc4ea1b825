"""Verdicts about a threshold in production, and what the command leaves."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from production import (
    NAMES,
    TAU,
    answers,
    rows_of,
    write_csv,
    write_jsonl,
    write_labels,
    write_model,
    write_run,
)
from scipy import stats

from btcp_tf import monitor, thresholds
from btcp_tf.decisions import assumptions, drift, messages, monitoring, sequential
from btcp_tf.decisions.monitoring import Figures
from btcp_tf.decisions.promises import FIXED_SAMPLE, SEQUENTIAL
from btcp_tf.decisions.scores import Baseline, Scores, load_baseline, load_scores
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.reporting import monitor_page

pytestmark = pytest.mark.usefixtures("undrawn")


def baseline_of(p, threshold=None):
    u = p.uncertainty["uncertainty"]
    return Baseline("base", u, p.predicted, "btcp", 3, NAMES, threshold)


def scores_of(p, **more):
    return Scores("s.csv", p.uncertainty["uncertainty"], p.predicted, "uncertainty", **more)


def promising(tau, target=0.05, delta=0.1):
    """A threshold that promises an error rate, unless it is None."""
    return dataclasses.replace(thresholds.DEFAULT, tau=tau, target=target, delta=delta)


RULE = promising(TAU)


def all_labels(p):
    return np.arange(len(p.labels)), p.labels


def moved(p):
    """The same answers, less certain and with fewer of the last class."""
    u = p.uncertainty["uncertainty"]
    predicted = np.where((p.predicted == 2) & (np.arange(len(u)) % 2 == 0), 0, p.predicted)
    return Predictions(p.labels, None, predicted, {"uncertainty": np.sqrt(u)})


# Verdicts --------------------------------------------------------------------------------------


def test_the_same_distribution_is_no_finding():
    found = monitoring.monitor(baseline_of(answers(400, 0), RULE), scores_of(answers(600, 1)))
    assert found.assumption.verdict == "holds" and found.status == 0
    assert [check.found for check in found.assumption.checks] == [False] * 4
    assert "400 rows then, 600 now" in found.assumption_text
    # The absence of a finding is not sold as proof.
    assert f"up to {found.assumption.ks.high:.2f}" in found.assumption_text


def test_a_change_is_found_by_checks_that_equal_those_of_scipy():
    then, now = answers(400, 0), moved(answers(600, 1))
    found = monitoring.monitor(baseline_of(then, RULE), scores_of(now))
    assert found.assumption.verdict == "changed" and found.status == 3
    u, v = (p.uncertainty["uncertainty"].astype(np.float64) for p in (then, now))
    p = {check.name: check.p_value for check in found.assumption.checks}
    assert p["uncertainty_ks"] == pytest.approx(stats.ks_2samp(u, v, method="asymp").pvalue, rel=1)
    counts = [np.bincount(x.predicted, minlength=3) for x in (then, now)]
    assert p["classes"] == pytest.approx(stats.chi2_contingency(counts).pvalue)
    table = [[np.sum(x >= TAU), np.sum(x < TAU)] for x in (u, v)]
    assert p["abstention"] == pytest.approx(stats.fisher_exact(table).pvalue)
    adjusted = [check.adjusted for check in found.assumption.checks]
    assert adjusted == pytest.approx(drift.holm(list(p.values())))
    for word in ("u", "predicted classes", "share of abstentions", "large"):
        assert word in found.assumption_text


def test_false_alarms_of_all_checks_together():
    alarms = 0
    for seed in range(300):
        p = answers(450, seed)
        u = p.uncertainty["uncertainty"].astype(np.float64)
        judged = assumptions.judge_assumption(
            (u[:200], p.predicted[:200]),
            (u[200:], p.predicted[200:]),
            (u[:200] >= TAU, u[200:] >= TAU),
            0.1,
        )
        alarms += judged.verdict == "changed"
    # Above what chance makes of 10 %: never; and not zero, or the checks would be deaf.
    assert 0 < alarms <= 300 * 0.1 + 3 * (300 * 0.1 * 0.9) ** 0.5


def test_a_threshold_that_was_chosen_on_the_baseline_makes_no_more_false_alarms():
    p = []
    for seed in range(1000):
        u = np.random.default_rng(seed).beta(0.6, 2.5, 700)
        tau = thresholds.target_coverage(u[:300], coverage=0.8).tau
        then, now = (int(np.sum(part >= tau)) for part in (u[:300], u[300:]))
        p.append(drift.rates((then, 300), (now, 400)).p_value)
    assert 0.02 < np.mean(np.less_equal(p, 0.05)) <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.parametrize(("n", "m"), [(99, 500), (500, 99), (500, 1)])
def test_too_few_rows_are_no_verdict(n, m):
    found = monitoring.monitor(baseline_of(answers(n, 0), RULE), scores_of(moved(answers(m, 1))))
    assert found.assumption.verdict == "too few rows" and found.status == 0
    assert f"there are {n} of the calibration set and {m} now" in found.assumption_text


def test_a_number_that_was_rounded_on_its_way_is_no_change():
    # All u tied: float32 in the baseline, the shortest decimal in the scores.
    p = answers(200, 0)
    tied = dataclasses.replace(p, uncertainty={"uncertainty": np.full(200, 0.1, np.float32)})
    now = Scores("s.csv", np.full(200, 0.1), p.predicted, "uncertainty")
    found = monitoring.monitor(baseline_of(tied, RULE), now)
    assert found.assumption.ks.distance == 0 and found.assumption.verdict == "holds"


def test_one_class_and_constant_scores_are_compared():
    zeros = np.zeros(150, np.int64)
    then = Baseline("base", np.full(150, 0.2), zeros, "u", None, None, RULE)
    same = monitoring.monitor(then, Scores("s", np.full(120, 0.2), zeros[:120], "u"))
    assert same.assumption.verdict == "holds" and same.assumption.psi.value == 0
    other = monitoring.monitor(then, Scores("s", np.full(120, 0.1), zeros[:120], "u"))
    assert other.assumption.verdict == "changed"


# The promise -----------------------------------------------------------------------------------


def test_a_broken_promise_names_its_row_and_outweighs_drift():
    good, bad = answers(300, 2), moved(answers(900, 3, harder=0.25))
    joined = Predictions(
        np.append(good.labels, bad.labels),
        None,
        np.append(good.predicted, bad.predicted),
        {"uncertainty": np.append(*(p.uncertainty["uncertainty"] for p in (good, bad)))},
    )
    inputs = tuple(f"img{n}.png" for n in range(1200))
    scores = scores_of(joined, inputs=inputs)
    found = monitoring.monitor(
        baseline_of(answers(400, 0), RULE),
        scores,
        labels=all_labels(joined),
        delta=0.02,
        order="rows",
    )
    promise = found.promise
    assert found.assumption.verdict == "changed" and found.status == 4
    u = joined.uncertainty["uncertainty"].astype(np.float64)
    accepted = np.flatnonzero(u < TAU)
    wrong = joined.is_error[accepted]
    first = np.flatnonzero(sequential.evidence(wrong, 0.05) >= 1 / 0.02)[0]
    assert promise.verdict == "broken" and promise.broken_at == first + 1
    assert promise.row == accepted[first] and promise.input == inputs[accepted[first]]
    assert 300 < promise.row < 600
    assert abs(promise.since_row - 300) < 60
    assert (promise.labeled, promise.accepted) == (1200, len(accepted))
    exact = stats.binomtest(int(wrong.sum()), len(wrong)).proportion_ci(0.95, "exact")
    assert promise.interval == pytest.approx((exact.low, exact.high))
    assert f"accepted answer {first + 1:,} with a label" in found.promise_text
    assert promise.input in found.promise_text and "at most 0.02" in found.promise_text


def test_labels_count_in_the_order_in_which_they_came():
    p = answers(800, 3, harder=0.2)
    rows = np.random.default_rng(0).permutation(800)
    found = monitoring.monitor(
        baseline_of(answers(400, 0), RULE),
        scores_of(p),
        labels=(rows, p.labels[rows]),
        order="rows",
    )
    u = p.uncertainty["uncertainty"].astype(np.float64)
    order = rows[u[rows] < TAU]
    assert found.promise.row == order[found.promise.broken_at - 1]


def test_labels_of_abstained_answers_are_not_taken_for_accepted_ones():
    p = answers(400, 4)
    u = p.uncertainty["uncertainty"].astype(np.float64)
    reviewed = np.flatnonzero(u >= TAU)
    # All of them wrong, which says nothing of accepted answers.
    labels = reviewed, (p.predicted[reviewed] + 1) % 3
    found = monitoring.monitor(baseline_of(answers(400, 0), RULE), scores_of(p), labels=labels)
    assert found.promise.verdict == "none" and found.status == 0
    assert f"None of the {len(reviewed)} answers with a label was accepted" in found.promise_text
    assert any(f"{len(reviewed)} labels belong to answers" in note for note in found.notes)
    accepted = 400 - len(reviewed)
    assert any(f"None of the {accepted} accepted answers has a label" in x for x in found.notes)


def test_errors_are_expected_by_u_and_the_labels_of_the_baseline():
    then, now = answers(800, 0), answers(600, 1)
    base = dataclasses.replace(baseline_of(then, RULE), is_error=then.is_error)
    found = monitoring.monitor(base, scores_of(now))
    # u says four times as much as is wrong.
    assert found.expected.mean_u > 2 * found.expected.high
    assert found.expected.low < now.is_error.mean() < found.expected.high
    assert found.expected.calibration_errors == then.is_error.sum()
    text = found.expected_text
    assert "of these 600 answers are expected to be wrong" in text
    assert f"800 answers with a label ({then.is_error.sum()} wrong)" in text
    assert "have changed" not in text
    assert "expected  By u alone" in monitor_page.terminal_text(found)
    content = monitoring.to_json(found, {})["expected"]
    assert content["words"] == text and content["rate"] == found.expected.rate
    assert "have changed" in monitoring.monitor(base, scores_of(moved(now))).expected_text
    # Labels of the scores are not looked at: they may be those of a part that somebody picked.
    assert (
        monitoring.monitor(base, scores_of(now), labels=all_labels(now)).expected == found.expected
    )
    raw = dataclasses.replace(base, uncertainty=4 * base.uncertainty)
    for one in (baseline_of(then, RULE), raw):
        assert monitoring.monitor(one, scores_of(now)).expected is None


def test_every_baseline_knows_its_errors(run, tmp_path):
    p = answers(50, 1)
    write_model(tmp_path / "m" / "1", p)
    predictions.save_predictions(tmp_path / "p.npz", p)
    for path in (tmp_path / "m", tmp_path / "p.npz"):
        np.testing.assert_array_equal(load_baseline(path).is_error, p.is_error)
    assert load_baseline(run).is_error.any()
    predictions.save_predictions(tmp_path / "q.npz", dataclasses.replace(p, labels=None))
    assert load_baseline(tmp_path / "q.npz").is_error is None


def test_a_promise_is_tested_in_each_group_by_itself():
    good, bad = answers(1500, 1), answers(1500, 2, harder=0.2)
    both = Predictions(
        np.concatenate([good.labels, bad.labels]),
        None,
        np.concatenate([good.predicted, bad.predicted]),
        {"uncertainty": np.concatenate([p.uncertainty["uncertainty"] for p in (good, bad)])},
    )
    sites = np.array(["north"] * 1500 + ["south"] * 1500)
    scores = scores_of(both, by=sites)
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, scores, labels=all_labels(both), risk=0.1)
    assert [one.name for one in found.groups] == ["north", "south"]
    for one, p in zip(found.groups, (good, bad), strict=True):
        accepted = p.uncertainty["uncertainty"] < TAU
        assert (one.rows, one.accepted) == (1500, accepted.sum())
        wrong = int(p.is_error[accepted].sum())
        assert (one.promise.errors, one.promise.accepted) == (wrong, accepted.sum())
        tail = stats.binomtest(wrong, int(accepted.sum()), 0.1, alternative="greater").pvalue
        assert one.promise.p_value == pytest.approx(tail)
    assert [one.promise.verdict for one in found.groups] == ["kept", "broken"]
    assert "is refuted in south (" in found.groups_text and "1 shown" in found.groups_text
    content = monitoring.to_json(found, {})["groups"]
    assert content["by_name"]["south"]["verdict"] == "broken"
    assert content["words"] == found.groups_text
    assert "groups    That at most 10 % of the accepted" in monitor_page.terminal_text(found)
    # Groups share delta: what one test alone refutes, one of many need not.
    alone = monitoring.monitor(base, scores_of(both), labels=all_labels(both), risk=0.1)
    assert alone.groups == () and alone.groups_text == ""
    assert alone.promise.p_value == found.promise.p_value


def test_groups_share_the_false_alarms():
    p = answers(600, 3)
    accepted = p.uncertainty["uncertainty"] < TAU
    wrong, n = int(p.is_error[accepted].sum()), int(accepted.sum())
    limit = next(
        limit
        for limit in np.linspace(wrong / n, 0, 10_000)
        if stats.binomtest(wrong, n, limit, alternative="greater").pvalue <= 0.009
    )
    base = baseline_of(answers(400, 0), RULE)
    names = np.full(600, "a")
    for other, verdict in (("a", "broken"), ("b", "open")):
        # An answer that is not accepted, and so does not count, may be a group all the same.
        names[np.argmax(p.uncertainty["uncertainty"])] = other
        found = monitoring.monitor(
            base, scores_of(p, by=names), labels=all_labels(p), risk=float(limit)
        )
        assert found.groups[0].promise.verdict == verdict


def test_groups_are_a_column_of_the_scores_or_the_predicted_class(run, tmp_path, capsys):
    rows = [
        row | {"site": f"s{n % 2}"} for n, row in enumerate(rows_of(answers(300, 1), labels=True))
    ]
    path = write_csv(tmp_path / "s.csv", rows)
    for group, names in (("site", {"s0", "s1"}), ("predicted", set(NAMES))):
        words = [f"--baseline={run}", f"--scores={path}", f"--by={group}"]
        assert monitor.main(words) in (0, 3, 4)
        folder = tmp_path / "s.csv-monitor"
        content = json.loads((folder / "monitor.json").read_text())
        assert content["groups"]["by_name"].keys() == names
        assert sum(one["rows"] for one in content["groups"]["by_name"].values()) == 300
        page = (folder / "monitor.html").read_text()
        assert all(f">{name}<" in page for name in names) and "by itself is refuted in" in page
        assert "groups    That at most" in capsys.readouterr().out
    for row in rows:
        row["site"] = None
    for file, column, message in (
        (write_csv(tmp_path / "t.csv", rows), "site", "expected the group of each row, received n"),
        (path, "nowhere", "expected the column nowhere, received input, labels"),
    ):
        words = [f"--baseline={run}", f"--scores={file}", f"--by={column}"]
        assert monitor.main(words) == 1
        assert message in capsys.readouterr().err


def test_where_nothing_is_accepted_the_notes_say_so_in_words():
    p = answers(400, 4)
    p.uncertainty["uncertainty"][:] = 0.9
    found = monitoring.monitor(
        baseline_of(answers(400, 0), RULE), scores_of(p), labels=all_labels(p)
    )
    assert any("No answer was accepted" in note for note in found.notes)
    words = monitor_page.terminal_text(found) + json.dumps(monitoring.to_json(found, {}))
    assert "0 of 0" not in words and not re.search(r"\b0 of", words)


def test_rows_without_a_label_are_not_taken_for_wrong_ones():
    p = answers(500, 5)
    some = np.where(np.arange(500) % 2, p.predicted, -1)
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, scores_of(p, labels=some)).promise
    assert (found.labeled, found.errors) == (250, 0) and found.accepted < 250


def test_kept_and_open():
    p = answers(3000, 5)
    right = dataclasses.replace(p, labels=p.predicted)
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, scores_of(right), labels=all_labels(right), order="rows")
    assert found.promise.verdict == "kept" and found.promise.curve["high"][-1] <= 0.05
    assert found.state == "holds"
    few = tuple(column[:20] for column in all_labels(right))
    for order in ("", "rows"):
        found = monitoring.monitor(base, scores_of(right), labels=few, order=order)
        assert found.promise.verdict == "open" and found.status == 0
        assert found.state == "cannot tell"
    accepted = p.uncertainty["uncertainty"].astype(np.float64) < TAU
    part, whole = accepted[:20].sum(), accepted.sum()
    # What labels of some answers say of all of them hangs on how they were chosen.
    assert any(f"{part} of {whole:,} accepted answers have a label" in x for x in found.notes)


@pytest.mark.parametrize(
    ("rule", "risk", "words"),
    [
        (None, None, "There is no threshold"),
        (promising(None), None, "There is a threshold that accepts nothing"),
        (promising(TAU, None, None), None, "Nothing was promised"),
    ],
)
def test_without_a_promise_nothing_is_tested(rule, risk, words):
    p = answers(500, 5, harder=0.5)
    found = monitoring.monitor(
        baseline_of(answers(400, 0), rule), scores_of(p), labels=all_labels(p), risk=risk
    )
    assert found.promise.verdict == "none" and words in found.promise_text
    assert found.status == 0
    assert len(found.assumption.checks) == (4 if rule and rule.tau else 3)
    assert json.dumps(monitoring.to_json(found, {}), allow_nan=False)
    assert words in " ".join(monitor_page.terminal_text(found).split())


def test_a_limit_of_ones_own():
    p = answers(500, 5, harder=0.3)
    base = baseline_of(answers(400, 0), promising(TAU, None, None))
    found = monitoring.monitor(base, scores_of(p), labels=all_labels(p), risk=0.1)
    assert found.promise.verdict == "broken" and found.promise.limit == 0.1


def test_what_is_no_u_is_noted_on_either_side():
    p = answers(200, 0)
    assert not any(
        "outside" in note for note in monitoring.monitor(baseline_of(p), scores_of(p)).notes
    )
    p.uncertainty["uncertainty"][[3, 5]] = 1.5, -0.25
    findings = monitoring.monitor(baseline_of(p), scores_of(p))
    told = [note for note in findings.notes if "2 of" in note and "first of them 1.5" in note]
    assert len(told) == 2


def test_accept_of_another_threshold_is_noted():
    p = answers(200, 6)
    u = p.uncertainty["uncertainty"].astype(np.float64)
    base = baseline_of(answers(400, 0), RULE)
    own = monitoring.monitor(base, scores_of(p, accept=u < TAU))
    assert not any("column accept" in note for note in own.notes)
    other = monitoring.monitor(base, scores_of(p, accept=u < 0.2))
    count = int(np.sum((u >= 0.2) & (u < TAU)))
    assert any(f"in {count} of 200 rows" in note for note in other.notes)
    nothing = monitoring.monitor(
        baseline_of(answers(400, 0), promising(None)), scores_of(p, accept=u < TAU)
    )
    assert any("(which accepts nothing)" in note for note in nothing.notes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (dict(classes=4), "expected answers of 3 classes .* received 4 class probabilities"),
        (dict(class_names={0: "dog"}), "expected class_name 'cat' for class 0 .*received 'dog'"),
    ],
)
def test_scores_of_another_model_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        monitoring.monitor(baseline_of(answers(200, 0), RULE), scores_of(answers(200, 1), **more))


def test_classes_that_the_baseline_does_not_know_are_refused():
    p = answers(200, 1)
    unknown = dataclasses.replace(p, labels=None, probs=None, predicted=p.predicted + 1)
    with pytest.raises(ValueError, match="expected predicted classes 0 to 2 .* received 3"):
        monitoring.monitor(baseline_of(answers(200, 0), RULE), scores_of(unknown))
    with pytest.raises(ValueError, match=r"labels: expected classes 0 to 2, received 7 for row 4"):
        monitoring.monitor(
            baseline_of(answers(200, 0), RULE), scores_of(p), labels=(np.array([4]), np.array([7]))
        )


def test_labels_that_count_from_one_are_told_apart_from_those_of_another_model():
    p = answers(200, 1)
    base, rows = baseline_of(answers(200, 0), RULE), np.arange(200)
    remedy = "; subtract 1 if they count from 1"
    for labels, said in ((p.labels + 1, True), (p.labels + 2, False)):
        with pytest.raises(ValueError, match="labels: expected classes 0 to 2, rec") as caught:
            monitoring.monitor(base, scores_of(p), labels=(rows, labels))
        assert str(caught.value).endswith(remedy) is said


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "0.5", True, 10**400])
def test_a_threshold_of_ones_own_is_a_number(tau):
    with pytest.raises(ValueError, match="tau: expected a finite number, received"):
        monitoring.monitor(baseline_of(answers(200, 0)), scores_of(answers(200, 1)), tau=tau)


@pytest.mark.parametrize("value", [1, "0.1", True, [0.1], np.array([0.1, 0.2]), float("nan")])
@pytest.mark.parametrize("name", ["alpha", "delta", "risk"])
def test_probabilities_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected a number between 0 and 1"):
        monitoring.monitor(
            baseline_of(answers(200, 0), RULE), scores_of(answers(200, 1)), **{name: value}
        )


NUMBERS = np.array([0, 1])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("baseline", None, "baseline: expected what load_baseline returns, received NoneType"),
        ("baseline", "runs/x", "baseline: expected what load_baseline returns, received str"),
        ("scores", None, "scores: expected what load_scores returns, received NoneType"),
        ("labels", 5, "labels: expected .* received int"),
        ("labels", "ab", "labels: expected .* received str"),
        ("labels", (None, None), "labels: expected .* received object"),
        ("labels", (NUMBERS, NUMBERS[:1]), r"labels: expected .*\[2\] and int64 \[1\]"),
        ("labels", (NUMBERS + 0.5, NUMBERS), "labels: expected .* received float64"),
        ("labels", (NUMBERS + 199, NUMBERS), "labels: .* from 0 to 199, received 199 to 200"),
        ("labels", (NUMBERS, NUMBERS - 1), "labels: .* from 0 on, received -1 to 0"),
    ],
)
def test_arguments_of_another_kind_are_refused(name, value, message):
    given = {"baseline": baseline_of(answers(200, 0), RULE), "scores": scores_of(answers(200, 1))}
    with pytest.raises(ValueError, match=message):
        monitoring.monitor(**given | {name: value})


# Order -----------------------------------------------------------------------------------------


def hard_class(n=900, seed=3):
    """Answers that keep 5 % among the accepted, all of whose errors are of the first class."""
    p = answers(n, seed)
    labels = np.where(p.labels == p.predicted, p.predicted, 0)
    labels[(np.arange(n) % 60 == 0) & (p.predicted == 1)] = 0
    return dataclasses.replace(p, labels=labels)


def shuffled(p, order):
    """The same rows in another order, as scores with labels and names."""
    part = Predictions(
        p.labels[order],
        None,
        p.predicted[order],
        {"uncertainty": p.uncertainty["uncertainty"][order]},
    )
    return scores_of(part, labels=part.labels, inputs=tuple(f"{row}.png" for row in order))


def orders(p):
    """Orders in which a file may stand, one that breaks a test in the order of rows first."""
    u = p.uncertainty["uncertainty"]
    wrong_first = np.argsort(p.labels == p.predicted, kind="stable")
    rng = np.random.default_rng(0)
    yield from (wrong_first, np.argsort(p.labels, kind="stable"), np.argsort(-u), np.arange(len(u)))
    yield from (rng.permutation(len(u)) for _ in range(5))


@pytest.mark.parametrize("harder", [0.0, 0.03, 0.2])
def test_without_an_order_no_order_of_the_rows_changes_anything(harder):
    p = hard_class() if not harder else answers(900, 3, harder=harder)
    base = baseline_of(answers(400, 0), RULE)
    contents = [
        monitoring.to_json(monitoring.monitor(base, shuffled(p, one)), {}) for one in orders(p)
    ]
    assert all(content == contents[0] for content in contents)
    expected = {0.0: "kept", 0.03: "open", 0.2: "broken"}[harder]
    assert contents[0]["promise"]["verdict"] == expected
    assert contents[0]["promise"]["test"] == FIXED_SAMPLE
    # Of the same rows the test in their order would have said something else.
    if not harder:
        wrong = next(iter(orders(p)))
        assert sequential.first_break((p.labels != p.predicted)[wrong], 0.05, delta=0.01)


def test_the_verdict_on_a_fixed_sample_is_that_of_binomial_tests():
    for harder in (0.0, 0.01, 0.02, 0.03, 0.05):
        p = answers(900, 3, harder=harder)
        found = monitoring.monitor(
            baseline_of(answers(400, 0), RULE), scores_of(p, labels=p.labels), delta=0.02
        ).promise
        high, low = (
            stats.binomtest(found.errors, found.accepted, 0.05, side).pvalue
            for side in ("greater", "less")
        )
        assert found.p_value == pytest.approx(high)
        expected = "broken" if high <= 0.02 else "kept" if low <= 0.02 else "open"
        assert found.verdict == expected and found.broken_at is None and not found.curve


@pytest.mark.parametrize("by", ["true class", "predicted class", "uncertainty"])
def test_a_sorted_file_is_no_order_of_arrival(by):
    p = answers(600, 3)
    u = p.uncertainty["uncertainty"]
    keys = {"true class": p.labels, "predicted class": p.predicted, "uncertainty": u}
    scores = shuffled(p, np.argsort(keys[by], kind="stable"))
    base = baseline_of(answers(400, 0), RULE)
    with pytest.raises(ValueError, match=f"sorted by .*{by.split()[-1]}: .*leave out --ordered"):
        monitoring.monitor(base, scores, order="rows")
    assert monitoring.monitor(base, scores).promise.test == FIXED_SAMPLE
    # Times are evidence of an order, so there it is said alone.
    found = monitoring.monitor(base, scores, order="time")
    assert found.promise.test == SEQUENTIAL
    assert any("sorted by" in note for note in found.notes)


def by_error(p, *, first):
    """The rows of `p` with all wrong answers at one end, the others in their order."""
    wrong = p.predicted != p.labels
    return shuffled(p, np.argsort(~wrong if first else wrong, kind="stable"))


def test_errors_first_are_no_order_of_arrival():
    p = answers(600, 3)
    base, scores = baseline_of(answers(400, 0), RULE), by_error(p, first=True)
    assert monitoring.monitor(base, scores_of(p, labels=p.labels), order="rows").status != 4
    with pytest.raises(ValueError, match="as if sorted by right and wrong: .*leave out --ordered"):
        monitoring.monitor(base, scores, order="rows")
    # Errors that were handed over tell nothing, and hide nothing.
    u = scores.uncertainty
    accepted_first = np.argsort(u >= TAU, kind="stable")
    with pytest.raises(ValueError, match="as if sorted by right and wrong"):
        monitoring.monitor(
            base,
            scores,
            labels=(accepted_first, scores.labels[accepted_first]),
            order="rows",
        )
    found = monitoring.monitor(base, scores, order="time")
    assert found.status == 4 and any("right and wrong" in note for note in found.notes)


def test_errors_last_may_be_a_failure_and_are_told_from_one_by_a_person():
    p = answers(600, 3, harder=0.02)
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, by_error(p, first=False), order="rows")
    assert found.promise.verdict == "broken"
    assert any("right and wrong" in note and "--ordered" in note for note in found.notes)
    # A model that fails from one row on is told so: no refusal, whatever its errors look like.
    wrong = np.arange(600) >= 560
    p = answers(600, 3)
    labels = np.where(wrong, (p.predicted + 1) % 3, p.predicted)
    found = monitoring.monitor(base, scores_of(p, labels=labels), order="rows")
    accepted = p.uncertainty["uncertainty"][:560] < TAU
    assert found.status == 4 and found.promise.since == accepted.sum() + 1


@pytest.mark.parametrize("start", [0, 1, 40])
def test_one_error_or_a_few_at_random_are_no_sorted_file(start):
    p = answers(300, 3)
    labels = p.predicted.copy()
    labels[start] = (labels[start] + 1) % 3
    found = monitoring.monitor(
        baseline_of(answers(400, 0), RULE), scores_of(p, labels=labels), order="rows"
    )
    assert not any("sorted" in note for note in found.notes)


def test_bunches_that_a_stream_makes_are_no_sorted_file():
    p = answers(600, 3)
    # Three of a kind at a time, and the classes drift.
    order = np.argsort(np.arange(600) // 150 * 10 + np.random.default_rng(0).random(600))
    found = monitoring.monitor(baseline_of(p, RULE), shuffled(p, order), order="rows")
    assert not any("sorted" in note for note in found.notes)


def test_figures_are_shares_of_what_they_say():
    p = answers(900, 3, harder=0.1)
    accepted = p.uncertainty["uncertainty"].astype(np.float64) < TAU
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, scores_of(p, labels=p.labels)).figures
    wrong = p.labels != p.predicted
    counts = [(one.count, one.rows) for one in vars(found).values()]
    assert counts == [
        (accepted.sum(), 900),
        ((wrong & accepted).sum(), accepted.sum()),
        ((wrong & ~accepted).sum(), wrong.sum()),
    ]
    exact = stats.binomtest(*counts[2]).proportion_ci(0.95, "exact")
    assert found.handed_over.interval == pytest.approx((exact.low, exact.high))
    none = monitoring.monitor(base, scores_of(p)).figures
    assert none.accepted == found.accepted and none.wrong is None and none.handed_over is None
    assert monitoring.monitor(baseline_of(p), scores_of(p)).figures == Figures()


def test_an_input_that_is_answered_twice_is_noted():
    p = answers(300, 3)
    names = tuple(f"{row % 200}.png" for row in range(300))
    base = baseline_of(answers(400, 0), RULE)
    found = monitoring.monitor(base, scores_of(p, labels=p.labels, inputs=names))
    assert any("answer an input once more" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rule", "harder", "labeled", "state", "step"),
    [
        (RULE, 0.2, True, "broken", "--scores=LABELED"),
        (RULE, 0.03, True, "cannot tell", "Label more"),
        (RULE, 0.0, False, "cannot tell", "--labels"),
        (promising(TAU, None, None), 0.0, True, "cannot tell", "--risk"),
        (promising(None), 0.0, True, "cannot tell", "accepts nothing"),
        (None, 0.0, True, "cannot tell", "--tau"),
    ],
)
def test_a_state_and_what_to_do_next(rule, harder, labeled, state, step):
    p = answers(900, 3, harder=harder)
    scores = scores_of(p, labels=p.labels if labeled else None)
    found = monitoring.monitor(baseline_of(answers(400, 0), rule), scores)
    assert found.state == state and step in " ".join(found.next_steps)
    words = " ".join(monitor_page.terminal_text(found).split())
    assert f"state {state}." in words and found.next_steps[0] in words


def test_where_the_data_have_changed_the_next_step_names_the_recalibration():
    p = answers(900, 3, harder=0.2)
    found = monitoring.monitor(baseline_of(answers(400, 0), RULE), scores_of(p, labels=p.labels))
    assert found.promise.verdict == "broken"
    for changed in (False, True):
        told = found.threshold, found.promise, 1, found.verdict
        steps = messages.next_steps(*told, changed=changed)
        assert ("--recalibrate" in " ".join(steps)) == changed


@pytest.mark.parametrize("ordered", [False, True])
def test_where_all_accepted_answers_have_a_label_no_more_of_them_are_asked_for(ordered):
    p = answers(900, 3, harder=0.03)
    base = baseline_of(answers(400, 0), RULE)
    order = "rows" if ordered else ""
    some = np.where(np.arange(900) % 2, p.labels, -1)
    found = monitoring.monitor(base, scores_of(p, labels=some), order=order)
    assert found.state == "cannot tell" and "Label more accepted answers" in found.next_steps[0]
    found = monitoring.monitor(base, scores_of(p, labels=p.labels), order=order)
    assert found.state == "cannot tell" and "have a label already" in found.next_steps[0]
    assert "Label more accepted answers" not in " ".join(found.next_steps)


def test_where_nothing_is_accepted_no_label_is_asked_for():
    p = answers(900, 3)
    base = baseline_of(answers(400, 0), promising(-1.0))
    for labels in (None, p.labels):
        steps = " ".join(monitoring.monitor(base, scores_of(p, labels=labels)).next_steps)
        assert "Label a random sample of accepted answers" not in steps
        assert "no answer is accepted" in steps.lower()


@pytest.mark.parametrize(
    ("rule", "labeled", "harder", "change"),
    [
        (RULE, True, 0.0, False),
        (RULE, True, 0.0, True),
        (RULE, True, 0.02, True),
        (RULE, True, 0.2, True),
        (RULE, False, 0.0, False),
        (RULE, False, 0.0, True),
        (promising(TAU, None, None), True, 0.0, False),
        (None, False, 0.0, True),
    ],
)
def test_badge_sentence_and_file_tell_one_state(rule, labeled, harder, change):
    p = answers(900, 3, harder=harder)
    p = moved(p) if change else p
    scores = scores_of(p, labels=p.labels if labeled else None)
    found = monitoring.monitor(baseline_of(answers(400, 0), rule), scores)
    glance = monitor_page.to_report(found, {}).glance
    assert found.state in glance.state.word
    assert {"holds": "holds", "broken": "broken"}.get(found.state, "open") == glance.state.name
    assert ("data have changed" in glance.state.word) == (found.assumption.verdict == "changed")
    assert monitoring.to_json(found, {})["state"] == found.state
    others = {"holds", "broken", "cannot tell"} - {found.state}
    assert not [other for other in others if other in glance.state.word]


# The command -----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", answers(400, 0))


def test_status_files_and_words_of_the_command(run, tmp_path, capsys):
    path = write_csv(tmp_path / "today.csv", rows_of(answers(500, 1), broken=(3, 4)))
    assert monitor.main([f"--baseline={run}", f"--scores={path}"]) == 0
    shown = capsys.readouterr().out
    assert "No change was found" in shown and "The promise is not tested" in shown
    assert "2 of 500 inputs have" in " ".join(shown.split())
    # No character that a terminal or a log may not know, and lines that fit.
    assert shown.isascii()
    assert all(len(line) < 80 for line in shown.splitlines() if str(tmp_path) not in line)
    folder = tmp_path / "today.csv-monitor"
    assert sorted(file.name for file in folder.iterdir()) == ["monitor.html", "monitor.json"]
    content = json.loads((folder / "monitor.json").read_text())
    assert content["status"] == 0 and content["assumption"]["verdict"] == "holds"
    assert content["scores"] == {
        "path": str(path),
        "column": "uncertainty",
        "n": 498,
        "problems": 2,
    }
    assert content["threshold"]["tau"] == TAU and content["settings"]["alpha"] == 0.01


def test_scores_of_one_name_in_two_formats_have_a_folder_each(run, tmp_path):
    for write, path, n in ((write_csv, "s.csv", 150), (write_jsonl, "s.jsonl", 160)):
        write(tmp_path / path, rows_of(answers(n, 1)))
        assert monitor.main([f"--baseline={run}", f"--scores={tmp_path / path}"]) == 0
    for path, n in (("s.csv", 150), ("s.jsonl", 160)):
        content = json.loads((tmp_path / f"{path}-monitor" / "monitor.json").read_text())
        assert content["scores"]["path"] == str(tmp_path / path) and content["scores"]["n"] == n


def test_the_page_shows_what_was_found(run, tmp_path):
    p = moved(answers(900, 3, harder=0.3))
    p = dataclasses.replace(p, probs=answers(900, 3).probs * 0 + np.float32(1 / 3))
    rows = rows_of(p, labels=True)
    rows[0]["input"] = "<b>&.png"
    path = write_jsonl(tmp_path / "today.jsonl", rows)
    assert (
        monitor.main(
            [f"--baseline={run}", f"--scores={path}", f"--output_dir={tmp_path}/o", "--ordered"]
        )
        == 4
    )
    html = (tmp_path / "o" / "monitor.html").read_text(encoding="utf-8")
    tree = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    words = " ".join("".join(tree.itertext()).split())
    content = json.loads((tmp_path / "o" / "monitor.json").read_text())
    assert content["status"] == 4 and content["promise"]["broken_at"] > 0
    for part in (content["assumption"]["words"], content["promise"]["words"], *content["notes"]):
        assert " ".join(part.split()) in words
    heads = [words.index(head) for head in ("The data have changed.", "The promise is broken.")]
    # What was asked is answered before anything else is said.
    [notes] = [part for part in tree.iter("ul") if part.get("class") == "note"]
    assert max(heads) < words.index(" ".join("".join(notes.itertext()).split()))
    values = [float(data.get("value")) for data in tree.iter("data")]
    for check in content["assumption"]["checks"]:
        assert check["statistic"] in values and check["p_value"] in values
    assert len(list(tree.iter("img"))) == 4 and "http" not in html.split("</style>")[1]


def test_drift_without_labels_has_a_status_of_its_own(run, tmp_path):
    p = moved(answers(500, 1))
    p = dataclasses.replace(p, probs=np.full((500, 3), 1 / 3, np.float32))
    path = write_csv(tmp_path / "s.csv", rows_of(p))
    assert monitor.main([f"--baseline={run}", f"--scores={path}"]) == 3


def test_what_earlier_looks_said_is_kept(run, tmp_path, capsys):
    out = [f"--output_dir={tmp_path}/o"]
    before = []
    for name, harder in (("monday", 0.0), ("tuesday", 0.2), ("tuesday", 0.2), ("friday", 0.02)):
        rows = rows_of(answers(900, 3, harder=harder), labels=True)
        path = write_csv(tmp_path / f"{name}.csv", rows)
        monitor.main([f"--baseline={run}", f"--scores={path}", *out])
        content = json.loads((tmp_path / "o" / "monitor.json").read_text(encoding="utf-8"))
        looks = content["history"]["looks"]
        last = looks[-1]
        assert last["scores"] == str(path) and last["state"] == content["state"]
        assert last["errors"] == content["promise"]["errors"] and last["rows"] == 900
        assert looks[: len(before)] == before
        before = looks
    # The same look twice is one.
    assert [len(looks), looks[1]["state"]] == [3, "broken"]
    html = (tmp_path / "o" / "monitor.html").read_text(encoding="utf-8")
    assert html.count("tuesday.csv") and html.count("monday.csv")
    assert "tuesday.csv: broken" in " ".join(capsys.readouterr().out.split())
    # Files of earlier versions keep no looks.
    del content["history"]["looks"]
    (tmp_path / "o" / "monitor.json").write_text(json.dumps(content))
    assert monitor.main([f"--baseline={run}", f"--scores={path}", *out]) == 0


def test_names_are_readable_in_the_file(tmp_path):
    names = ("Größe", "猫", "cow")
    run = write_run(tmp_path / "run", answers(400, 0), names=names)
    folder = os.fsencode(tmp_path) + "/naïve 猫 ".encode() + b"\xff"
    os.mkdir(folder)
    path = write_csv(f"{os.fsdecode(folder)}/s.csv", rows_of(answers(500, 1), names=names))
    out = tmp_path / "o"
    assert monitor.main([f"--baseline={run}", f"--scores={path}", f"--output_dir={out}"]) == 0
    text = (out / "monitor.json").read_text(encoding="utf-8")
    # Of what is no UTF-8 the bytes are shown; the rest as it is.
    assert "naïve 猫 \\\\udcff" in text and "\\u" not in text.replace("\\\\udcff", "")
    assert json.loads(text)["scores"]["path"].endswith("naïve 猫 \\udcff/s.csv")


def test_labels_from_a_file_of_their_own(run, tmp_path, capsys):
    p = answers(600, 3, harder=0.3)
    path = write_csv(tmp_path / "s.csv", rows_of(p))
    order = np.random.default_rng(1).permutation(600)[:300]
    pairs = [(f"x_test[{row}]", p.labels[row]) for row in order]
    labels = write_labels(tmp_path / "l.csv", pairs)
    words = [f"--baseline={run}", f"--scores={path}", f"--labels={labels}", "--ordered"]
    assert monitor.main(words) == 4
    content = json.loads((tmp_path / "s.csv-monitor" / "monitor.json").read_text())
    found = content["promise"]
    assert found["labeled"] == 300 and found["input"] == f"x_test[{found['row']}]"
    accepted = [row for row in order if p.uncertainty["uncertainty"][row] < TAU]
    assert found["row"] == accepted[found["broken_at"] - 1]


def judged(run, path, *words):
    """Status of the command, and its monitor.json."""
    status = monitor.main([f"--baseline={run}", f"--scores={path}", *words])
    return status, json.loads((path.parent / f"{path.name}-monitor" / "monitor.json").read_text())


def test_a_stream_goes_on_where_it_ended_and_nowhere_else(run, tmp_path, capsys):
    rows = rows_of(answers(600, 3), labels=True)
    path = tmp_path / "s.csv"
    status, first = judged(run, write_csv(path, rows[:300]), "--ordered")
    assert status == 0 and first["promise"]["test"] == SEQUENTIAL
    assert judged(run, path, "--ordered") == (0, first)
    status, second = judged(run, write_csv(path, rows), "--ordered")
    assert status == 0 and second["promise"]["accepted"] == second["history"]["stream"]["rows"]
    other = [*rows]
    accepted = [number for number, row in enumerate(rows) if row["accept"]]
    other[accepted[0]], other[accepted[1]] = rows[accepted[1]], rows[accepted[0]]
    changed = [
        row | {"labels": (row["labels"] + (n == accepted[9])) % 3} for n, row in enumerate(rows)
    ]
    for broken in (other, changed, rows[:300], rows[accepted[0] + 1 :]):
        capsys.readouterr()
        assert judged(run, write_csv(path, broken), "--ordered") == (1, second)
        error = capsys.readouterr().err
        assert "earlier look" in error and "another --output_dir" in error
    words = [f"--baseline={run}", f"--scores={path}", "--ordered", f"--output_dir={tmp_path}/new"]
    assert monitor.main(words) == 0
    write_csv(path, rows)
    assert judged(run, path, "--ordered", "--risk=0.2") == (1, second)
    assert "threshold and limit of the earlier look" in capsys.readouterr().err


def test_rows_that_were_not_accepted_may_be_labeled_late(run, tmp_path):
    rows = rows_of(answers(600, 3), labels=True)
    late = [row | ({} if row["accept"] else {"labels": None}) for row in rows]
    assert judged(run, write_csv(tmp_path / "s.csv", late), "--ordered")[0] == 0
    assert judged(run, write_csv(tmp_path / "s.csv", rows), "--ordered")[0] == 0


def test_further_looks_at_fixed_samples_are_counted(run, tmp_path, capsys):
    rows = rows_of(answers(600, 3), labels=True)
    path = tmp_path / "s.csv"

    def noted(content):
        return [note for note in content["notes"] if "before this one" in note]

    def repeated():
        """What the terminal says of a second look; the files are those of the first."""
        told = " ".join(capsys.readouterr().out.split())
        return "".join(re.findall("note These rows were tested here before.*?--time_column", told))

    for look in range(2):
        assert not noted(judged(run, write_csv(path, rows[:300]))[1])
        assert bool(repeated()) is bool(look)
        # The same rows in another order are the same look; what one more would cost is said.
        assert not noted(judged(run, write_csv(path, rows[299::-1]))[1])
        told = repeated()
        assert "up to 0.02" in told and "--ordered" in told
    _, content = judged(run, write_csv(path, rows))
    [note] = noted(content)
    assert ": 1." in note and "0.02" in note and "--ordered" in note
    [note] = noted(judged(run, path, "--risk=0.1")[1])
    assert ": 2." in note and "0.03" in note
    # Looks at a stream are looks, too, but need no note themselves.
    assert not noted(judged(run, path, "--ordered")[1])
    _, content = judged(run, path)
    [note] = noted(content)
    assert ": 3." in note and "up to 0.05" in repeated()
    for _ in range(2):
        judged(run, path, "--ordered")
        assert not repeated()
    # Without labels nothing is tested, and nothing forgotten.
    write_csv(path, rows_of(answers(600, 3)))
    assert len(judged(run, path)[1]["history"]["samples"]) == 3


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"history": 3}', '{"history": {"samples": [], "stream": {"rows": 1}}}']
)
def test_a_damaged_memory_is_no_empty_one(run, tmp_path, capsys, content):
    path = write_csv(tmp_path / "s.csv", rows_of(answers(150, 1), labels=True))
    (tmp_path / "s.csv-monitor").mkdir()
    file = tmp_path / "s.csv-monitor" / "monitor.json"
    file.write_text(content)
    assert monitor.main([f"--baseline={run}", f"--scores={path}"]) == 1
    assert "delete the file" in capsys.readouterr().err and file.read_text() == content
    # Version 0.1.0 kept no memory.
    file.write_text('{"status": 0}')
    assert monitor.main([f"--baseline={run}", f"--scores={path}"]) == 0


def with_times(rows, times):
    return [{"when": time, **row} for time, row in zip(times, rows, strict=True)]


def test_a_column_of_times_states_the_order_wherever_rows_stand(run, tmp_path):
    rows = rows_of(answers(600, 3, harder=0.2), labels=True)
    status, expected = judged(run, write_csv(tmp_path / "o.csv", rows), "--ordered")
    timed = with_times(rows, range(1_700_000_000, 1_700_000_600))
    order = np.random.default_rng(0).permutation(600)
    mixed = write_csv(tmp_path / "t.csv", [timed[row] for row in order])
    same, found = judged(run, mixed, "--time_column=when")
    assert status == same == 4
    for name in ("broken_at", "since", "input", "p_value", "verdict"):
        assert found["promise"][name] == expected["promise"][name]
    # The class decides the order in the file, not in time.
    by_class = sorted(timed, key=lambda row: row["labels"])
    same, again = judged(run, write_csv(tmp_path / "t.csv", by_class), "--time_column=when")
    assert same == 4 and again["history"] == found["history"]


def test_rows_of_one_time_have_one_order(run, tmp_path):
    rows = rows_of(answers(600, 3), labels=True)
    days = [f"2024-05-{1 + row // 200:02}" for row in range(600)]
    timed = with_times(rows, days)
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(600)
        path = write_jsonl(tmp_path / "t.jsonl", [timed[row] for row in order])
        found.append(judged(run, path, "--time_column=when"))
    assert [status for status, _ in found] == [0, 0, 0]
    assert found[0][1]["promise"]["test"] == SEQUENTIAL
    assert all(content["history"] == found[0][1]["history"] for _, content in found)


def test_a_row_that_is_earlier_than_a_judged_one_is_refused(run, tmp_path, capsys):
    rows = with_times(rows_of(answers(600, 3), labels=True), range(600))
    path = write_csv(tmp_path / "t.csv", rows[10:500])
    assert judged(run, path, "--time_column=when")[0] == 0
    assert judged(run, write_csv(path, rows[10:]), "--time_column=when")[0] == 0
    assert judged(run, write_csv(path, rows), "--time_column=when")[0] == 1
    assert "earlier look" in capsys.readouterr().err


def test_times_of_labels_come_before_those_of_scores(run, tmp_path, capsys):
    p = answers(600, 3, harder=0.3)
    scores = write_csv(tmp_path / "s.csv", with_times(rows_of(p), range(600)))
    plain = write_csv(tmp_path / "p.csv", rows_of(p))
    order = np.random.default_rng(1).permutation(600)
    lines = [f"x_test[{row}],{p.labels[row]}" for row in order]
    (tmp_path / "l.csv").write_text("\n".join(["input,labels", *lines]))
    timed = [f"{line},2024-01-01T00:{n // 60:02}:{n % 60:02}Z" for n, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join(["input,labels,when", *reversed(timed)]))
    own, of_scores = (f"--labels={tmp_path}/{name}.csv" for name in "tl")
    expected = judged(run, plain, of_scores, "--ordered")[1]["promise"]
    for path in (scores, plain):
        found = judged(run, path, own, "--time_column=when")[1]["promise"]
        assert (found["broken_at"], found["input"]) == (expected["broken_at"], expected["input"])
    found = judged(
        run,
        write_csv(tmp_path / "o.csv", with_times(rows_of(p), range(600))),
        of_scores,
        "--time_column=when",
    )[1]["promise"]
    u = p.uncertainty["uncertainty"].astype(np.float64)
    assert found["row"] == np.flatnonzero(u < TAU)[found["broken_at"] - 1]
    capsys.readouterr()
    words = [f"--baseline={run}", f"--scores={plain}", "--time_column=when"]
    for more in ([], [of_scores]):
        assert monitor.main([*words, *more]) == 1
        assert "time_column: expected a column when in" in capsys.readouterr().err


def test_models_and_files_as_baselines(tmp_path, capsys):
    path = write_csv(tmp_path / "s.csv", rows_of(answers(500, 1)))
    write_model(tmp_path / "models" / "1", answers(400, 0))
    assert monitor.main([f"--baseline={tmp_path}/models", f"--scores={path}"]) == 0
    file = tmp_path / "cal.npz"
    predictions.save_predictions(file, answers(400, 0))
    assert monitor.main([f"--baseline={file}", f"--scores={path}"]) == 0
    assert "no threshold" in capsys.readouterr().out
    assert monitor.main([f"--baseline={file}", f"--scores={path}", "--tau=0.3", "--risk=.1"]) == 0
    shown = capsys.readouterr().out
    assert "tau 0.3" in shown and "share of abstentions" in shown


def test_a_column_in_the_scores_alone(run, tmp_path):
    p = answers(400, 1)
    u = p.uncertainty["uncertainty"]
    predictions.save_predictions(
        tmp_path / "s.npz", dataclasses.replace(p, uncertainty={"a": u, "b": 1 - u})
    )
    words = [f"--baseline={run}", f"--scores={tmp_path}/s.npz"]
    # The file has labels, so the promise is tested, too.
    assert monitor.main([*words, "--column=a"]) == 0
    assert monitor.main([*words, "--column=b"]) == 4
    assert monitor.main([*words, "--column=c"]) == 1
    assert monitor.main(words) == 1


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "baseline: expected a path, received none"),
        (["--baseline={run}"], 2, "scores: expected a path, received none"),
        (["--baseline={folder}/no", "--scores={scores}"], 2, "which is not there"),
        (["--baseline=~no_such_user/x", "--scores={scores}"], 2, "no such home folder"),
        (["--baseline={run}", "--scores={folder}/no.csv"], 2, "no.csv, which is not there"),
        (["--baseline={run}", "--scores={folder}/s.txt"], 2, "scores: expected a file (.csv"),
        (["--baseline={run}", "--scores={run}"], 2, "scores: expected a file (.csv"),
        (["--baseline={run}", "--scores={scores}", "--labels=no.csv"], 2, "labels: expected a fi"),
        (["--baseline={run}", "--scores={scores}", "--alpha=0"], 2, "alpha: expected a number"),
        (["--baseline={run}", "--scores={scores}", "--risk=x"], 2, "risk"),
        (["--baseline={run}", "--scores={scores}", "--tau=x"], 2, "--tau=x: could not convert"),
        (["--baseline={run}", "--scores={scores}", "word"], 2, "received the word 'word'"),
        (["--baseline={run}", "--scores={scores}", "--tau=0.2"], 2, "whose own threshold counts"),
        (
            ["--baseline={model}", "--scores={scores}", "--tau=0.2"],
            2,
            "tau: expected only with a p",
        ),
        (
            ["--baseline={scores}", "--scores={scores}", "--tau=nan"],
            2,
            "tau: expected a finite num",
        ),
        (
            ["--baseline={scores}", "--scores={scores}", "--risk=0.1"],
            2,
            "risk: expected with --tau",
        ),
        (["--baseline={run}", "--scores={scores}", "--column=tcp"], 1, "column: expected"),
        (
            ["--baseline={run}", "--scores={scores}", "--ordered", "--time_column=t"],
            2,
            "ordered: expected it or --time_column",
        ),
        (["--baseline={folder}", "--scores={scores}"], 1, "baseline: expected a run's folder"),
        (["--baseline={scores}", "--scores={folder}/bad.csv"], 1, "bad.csv: expected"),
        (
            ["--baseline={run}", "--scores={scores}", "--output_dir={scores}"],
            1,
            "output_dir: expected a folder that can be written",
        ),
    ],
)
def test_errors_are_one_clear_line_and_leave_nothing(run, tmp_path, capsys, words, status, message):
    path = write_csv(tmp_path / "s.csv", rows_of(answers(150, 1)))
    (tmp_path / "bad.csv").write_text("predicted,uncertainty\n")
    (tmp_path / "s.txt").touch()
    write_model(tmp_path / "models" / "1", answers(400, 0))
    before = sorted(tmp_path.rglob("*"))
    arguments = [
        word.format(run=run, folder=tmp_path, scores=path, model=tmp_path / "models")
        for word in words
    ]
    try:
        found = monitor.main(arguments)
    except SystemExit as end:
        found = end.code
    error = capsys.readouterr().err
    assert found == status and message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_half_a_report_is_never_left(run, tmp_path, monkeypatch, capsys):
    path = write_csv(tmp_path / "s.csv", rows_of(answers(150, 1)))

    def fail(*arguments, **named):
        raise ValueError("expected what can be drawn, received this")

    monkeypatch.setattr(monitor_page, "to_report", fail)
    assert monitor.main([f"--baseline={run}", f"--scores={path}"]) == 1
    assert not (tmp_path / "s.csv-monitor").exists()


def test_the_same_command_writes_the_same_bytes(run, tmp_path):
    path = write_csv(tmp_path / "s.csv", rows_of(answers(150, 1), labels=True))
    contents = []
    for _ in range(2):
        monitor.main([f"--baseline={run}", f"--scores={path}"])
        contents.append(
            [file.read_bytes() for file in sorted((tmp_path / "s.csv-monitor").iterdir())]
        )
    assert contents[0] == contents[1]


def test_help_and_import_wait_for_neither_tensorflow_nor_matplotlib():
    code = (
        "import sys, btcp_tf.monitor as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'tensorflow', 'keras', 'matplotlib', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
    for name in (
        "baseline",
        "scores",
        "labels",
        "output_dir",
        "column",
        "tau",
        "risk",
        "alpha",
        "time_column",
    ):
        assert f"--{name}=" in done.stdout


def test_many_classes_leave_room_for_the_ones_that_changed():
    rng = np.random.default_rng(0)
    then, now = (
        Predictions(None, None, rng.integers(0, 60, 900), {"u": rng.random(900)}) for _ in "ab"
    )
    predicted = np.where(now.predicted < 6, 59, now.predicted)
    base = Baseline("base", then.uncertainty["u"], then.predicted, "u", 60)
    found = monitoring.monitor(base, Scores("s", now.uncertainty["u"], predicted, "u"))
    assert found.assumption.verdict == "changed" and found.assumption.checks[2].found
    shares, names, words = monitor_page._class_shares(found)
    assert len(names) == 20 and "59" in names and "20 predicted classes" in words
    assert shares[1][names.index("59")] == pytest.approx(np.mean(predicted == 59))


def test_numbers_of_classes_may_be_anything():
    p = answers(300, 0)
    names = np.array([7, 10**15, 2])
    base = Baseline("base", p.uncertainty["uncertainty"], names[p.predicted], "u")
    other = np.where(p.predicted == 1, 10**17, names[p.predicted])
    found = monitoring.monitor(base, Scores("s", p.uncertainty["uncertainty"], other, "u"))
    assert found.assumption.checks[2].found
    _, shown, _ = monitor_page._class_shares(found)
    assert shown == ["2", "7", str(10**15), str(10**17)]


def test_json_keeps_its_names(run, tmp_path):
    found = monitoring.monitor(
        load_baseline(run),
        load_scores(write_csv(tmp_path / "s.csv", rows_of(answers(150, 1), labels=True))),
    )
    content = monitoring.to_json(found, {"alpha": 0.01})
    assert set(content) == set(
        "status state figures next assumption expected promise baseline scores threshold settings "
        "notes history versions".split()
    )
    assert set(content["promise"]) >= {"verdict", "broken_at", "row", "input", "interval", "errors"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", content["versions"]["btcp_tf"])
