"""What stands on the first screen is what the rows say."""

import dataclasses
import re

import numpy as np
import pytest
from scipy.stats import beta

from btcp_tf import thresholds
from btcp_tf.reporting import charts, glance, pages, tables
from btcp_tf.thresholds import DEFAULT


def make_rows(n, errors, accepted_errors, accepted):
    """Wrong answers and u of n answers of which u < 0.5 accepts some."""
    is_error, u = np.zeros(n, bool), np.full(n, 0.9)
    u[:accepted] = 0.1
    is_error[:accepted_errors] = True
    is_error[accepted : accepted + errors - accepted_errors] = True
    return is_error, u


def promise(risk):
    return dataclasses.replace(DEFAULT, target=risk, delta=0.1)


def interval(k, n):
    """Clopper and Pearson, 1934."""
    low = 0.0 if k == 0 else beta.ppf(0.025, k, n - k + 1)
    return low, 1.0 if k == n else beta.ppf(0.975, k + 1, n - k)


@pytest.mark.parametrize("wrong", [0, 1, 5, 20, 60, 400])
@pytest.mark.parametrize("risk", [0.005, 0.02, 0.05, 0.3])
def test_the_state_is_that_of_the_exact_interval(wrong, risk):
    judged = glance.judge(promise(risk), *make_rows(1000, 420, wrong, 500))
    low, high = interval(wrong, 500)
    expected = "holds" if high <= risk else "broken" if low > risk else "open"
    assert glance.state(judged).name == expected


def test_without_a_promise_nothing_is_kept_or_broken():
    rows = make_rows(100, 30, 25, 50)
    assert glance.state(glance.judge(DEFAULT, *rows)).name == "none"
    impossible = dataclasses.replace(promise(0.01), tau=None)
    assert glance.state(glance.judge(impossible, *rows)).name == "none"
    strict = dataclasses.replace(promise(0.01), tau=-1.0)
    assert glance.state(glance.judge(strict, *rows)).name == "open"


def told(judged):
    return "".join(str(piece) for piece in glance.sentence(judged))


def test_the_sentence_and_the_figures_say_the_same():
    judged = glance.judge(promise(0.03), *make_rows(1000, 80, 20, 900))
    assert "accepts 90.0, and 2.22 % of those" in told(judged)
    assert "The 10.0 it hands over hold 75 % of all errors" in told(judged)
    values = [figure.value for figure in glance.figures(judged)]
    assert values == ["90.0 %", "2.22 %", "75 %"]
    low, high = interval(20, 900)
    words = " ".join(figure.text for figure in glance.figures(judged))
    assert f"[{100 * low:.2f}, {100 * high:.2f}]" in words and "at most 3 %" in words
    assert "60 of 80, in 100 answers" in words and "20 of 900" in words
    shown = glance.terminal(
        glance.state(judged), "name", glance.sentence(judged), glance.figures(judged)
    )
    assert all(value in shown for value in values) and glance.state(judged).word in shown
    assert all(len(line) < 80 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("rows", "pieces"),
    [
        ((100, 0, 0, 60), ["No answer here is wrong"]),
        ((100, 7, 7, 100), ["accepts 100,", "7.00 %", "hands over none"]),
        ((100, 9, 0, 0), ["accepts nothing"]),
        ((100_000, 9, 9, 99_999), ["accepts over 99.9,", "under 0.1 it hands over hold 0 %"]),
    ],
)
def test_nothing_is_rounded_to_all_or_none(rows, pieces):
    judged = glance.judge(DEFAULT, *make_rows(*rows))
    for piece in pieces:
        assert piece in told(judged)
    assert len(glance.figures(judged)) == 3


def test_every_figure_of_a_promise_names_its_delta():
    judged = glance.judge(promise(0.03), *make_rows(1000, 80, 20, 900))
    [figure] = [figure for figure in glance.figures(judged) if "promised" in figure.text]
    assert "at most 3 % (delta 0.1)" in figure.text
    is_error, u = draw(400)
    for chosen in (
        thresholds.target_risk(is_error, u, risk=0.05, delta=0.1),
        thresholds.target_risk(is_error[:60], u[:60], risk=0.02, delta=0.1),
        dataclasses.replace(promise(0.001), tau=None),
    ):
        assert "(delta 0.1)" in glance.labels(chosen, is_error, u, delta=0.3).text
    for rows in (400, 60):
        step = glance.labels(DEFAULT, is_error[:rows], u[:rows], wanted=[0.05], delta=0.07)
        assert "(delta 0.07)" in step.text and ("--delta=0.07" in step.command or rows == 60)


def test_few_errors_are_said_where_their_share_is_said():
    few, many = (
        glance.judge(DEFAULT, *make_rows(1000, errors, errors // 2, 900)) for errors in (29, 30)
    )
    assert "hold 52 % of all errors, which are only 29" in told(few)
    assert "only" not in told(many)
    low, high = interval(15, 29)
    assert f"[{100 * low:.2f}, {100 * high:.2f}]" in glance.figures(few)[2].text


@pytest.mark.parametrize(
    ("accepted", "wrong"), [(500, 1), (500, 12), (500, 14), (500, 20), (500, 60), (0, 0)]
)
def test_the_badge_and_the_table_of_promises_say_the_same(accepted, wrong):
    is_error, u = make_rows(1000, 420, wrong, accepted)
    judged = glance.judge(promise(0.03), is_error, u)
    row = dict(method="mcp", stage="frozen", target=0.03, tau=0.5, n=9, accepted=9, errors=0)
    row |= {f"test_{name}": value for name, value in judged.outcome._asdict().items()}
    [line] = tables.promise_table([row | {"least_risk": None}]).lines
    words = {"holds": "kept", "broken": "broken"}.get(glance.state(judged).name, "perhaps")
    assert words in str(line[1]) or (not accepted and "cannot tell" in str(line[1]))


def test_harder_test_answers_are_named_where_chance_does_not_explain_them():
    step = glance.harder((120, 1000), (60, 1000), "models/1")
    assert "12.0 % wrong against 6.0 %" in step.text and "models/1" in step.command
    assert glance.harder((63, 1000), (60, 1000)) is None
    assert glance.harder((60, 1000), (120, 1000)) is None


def draw(n, seed=0):
    rng = np.random.default_rng(seed)
    u = rng.random(n)
    return rng.random(n) < 0.3 * u**2, u


def test_a_promise_says_what_more_labels_would_buy():
    is_error, u = draw(400)
    chosen = thresholds.target_risk(is_error, u, risk=0.05, delta=0.1)
    step = glance.labels(chosen, is_error, u)
    more = float(re.search(r"about (\d+\.\d) more of 100", step.text)[1]) / 100
    now, then = (
        thresholds.expected_coverage(is_error, u, rows=rows, risk=0.05, delta=0.1)
        for rows in (400, 900)
    )
    assert more == pytest.approx(then - now, abs=6e-4) and more > 0


def test_an_impossible_promise_says_how_many_labels_it_takes():
    is_error, u = draw(60)
    chosen = thresholds.target_risk(is_error, u, risk=0.02, delta=0.1)
    assert chosen.tau is None
    words = glance.labels(chosen, is_error, u).text
    size, _ = thresholds.labels_for_promise(is_error, u, risk=0.02, delta=0.1)
    assert f"about {size:,} labeled" in words and "there are 60" in words
    hopeless = dataclasses.replace(chosen, target=0.001)
    assert "No number of labels" in glance.labels(hopeless, np.ones(60, bool), u).text


def test_without_a_promise_the_strictest_possible_one_is_offered():
    is_error, u = draw(3000)
    step = glance.labels(DEFAULT, is_error, u, wanted=(0.05, 0.0001, 0.02), model="m/1")
    assert "at most 2 %" in step.text
    assert step.command.startswith("python -m btcp_tf.set_threshold m/1 --threshold=target_risk")
    assert "--risk=0.02" in step.command
    few = glance.labels(DEFAULT, is_error[:20], u[:20], wanted=(0.01,))
    assert few is None or "takes about" in few.text


def test_an_empty_promise_is_never_offered():
    """One that holds even if all are accepted; half of the error rate is offered in its place."""
    u = np.arange(2000) / 2000
    is_error = u >= 1 - 0.008
    step = glance.labels(DEFAULT, is_error, u, wanted=(0.01, 0.02))
    assert "at most 0.4 %" in step.text and "--risk=0.004" in step.command
    step = glance.labels(DEFAULT, is_error, u, wanted=(0.01, 0.005))
    assert "--risk=0.005" in step.command
    assert glance.labels(DEFAULT, u > 2, u, wanted=(0.01,)) is None
    few = glance.labels(DEFAULT, np.arange(20) >= 18, u[:20], wanted=(0.5,))
    assert "takes about" in few.text


def test_expected_coverage_is_the_best_cut_that_passes_alone():
    is_error, u = draw(500)
    found = thresholds.expected_coverage(is_error, u, rows=500, risk=0.06, delta=0.1)
    order = np.argsort(u)
    errors = np.cumsum(is_error[order])
    rows = np.arange(1, 501)
    upper = beta.ppf(0.9, errors + 1, rows - errors)
    assert found == max(rows[upper <= 0.06]) / 500
    wider = thresholds.expected_coverage(is_error, u, rows=5000, risk=0.06, delta=0.1)
    assert wider > found
    assert thresholds.expected_coverage(is_error, u, rows=3, risk=0.06, delta=0.1) == 0


def test_labels_for_a_promise_are_those_of_the_best_share():
    is_error, u = draw(500)
    size, share = thresholds.labels_for_promise(is_error, u, risk=0.05, delta=0.1)
    kept = np.sort(u)[: round(share * 500)][-1]
    observed = (is_error[u <= kept].sum() + 0.5) / (round(share * 500) + 1)
    assert size == thresholds.calibration_size(0.05, 0.1, coverage=share, expected_risk=observed)
    assert thresholds.labels_for_promise(np.ones(50, bool), u[:50], risk=0.05, delta=0.1) is None


def test_serving_names_the_model_or_why_there_is_none():
    assert "models/1" in glance.serve("models/1").command
    step = glance.serve("not exported: the estimator collapsed")
    assert "the estimator collapsed" in step.text and not step.command
    assert glance.serve("") is None


def test_the_curve_is_described_with_numbers():
    is_error, u = draw(400)
    found = thresholds.outcome(DEFAULT, is_error, u)
    chart = charts.with_outcome(charts.risk_chart(is_error, {"mcp": u[::-1], "ours": u}), found)
    order = np.argsort(u)[:360]
    assert f"ours {is_error[order].mean():.2%}".replace("%", " %") in chart.alt
    (point,) = chart.points
    assert (point.x, point.y) == (found.coverage, found.risk)
    markup = pages.markup("chart", chart)
    assert markup.count("<path") == 2 and "ours" in markup and "MCP" in markup
