"""The page and the terminal text of a monitoring report."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.core import wording
from btcp_tf.decisions import assumptions, drift
from btcp_tf.decisions.assumptions import MIN_ROWS
from btcp_tf.decisions.monitoring import Findings, Share
from btcp_tf.evaluation import tabular
from btcp_tf.reporting import cells, monitor_plots, pages, tables
from btcp_tf.reporting.cells import Cell, Table
from btcp_tf.reporting.drawing import Drawing, Panel, compose
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.pages import Block, Definitions, Report
from btcp_tf.reporting.svg import Axis, Chart, Line

_BLOCKS = 20  # Of the figure of abstentions.

_SHOWN_CLASSES = 20

_HEADS = {
    "holds": "No change was found.",
    "changed": "The data have changed.",
    "too few rows": "No verdict about a change.",
    "broken": "The promise is broken.",
    "kept": "The promise is kept.",
    "open": "The promise is not refuted.",
    "none": "The promise is not tested.",
}
"""By verdict."""


def to_report(findings: Findings, settings: Mapping[str, Any]) -> Report:
    """The findings as a page."""
    assumption, promise = findings.assumption, findings.promise
    threshold = findings.threshold
    about: list[Block] = [
        pages.text(Cell(_HEADS[assumption.verdict]), f" {findings.assumption_text}"),
        pages.text(Cell(_HEADS[promise.verdict]), f" {findings.promise_text}"),
    ]
    changed: list[Block] = []
    if assumption.checks:
        changed.append(_check_table(findings))
    changed += _draw_change(findings)
    promised: list[Block] = []
    if promise.accepted:
        promised.append(_promise_table(findings))
    if promise.curve:
        promised.append(_draw_promise(findings))
    values = dict(settings)
    if threshold is not None:
        values |= {f"threshold: {k}": v for k, v in dataclasses.asdict(threshold).items()}
    values = {key: "none" if value in (None, "") else value for key, value in values.items()}
    return Report(
        f"Does the threshold still hold? {tabular.shown(Path(findings.scores.name).name)}",
        findings.notes,
        [
            ("Verdict", about),
            ("Are the data as they were?", changed),
            ("Is the promise kept?", promised),
            ("How to read this", [_GLOSSARY]),
            ("Settings", [tables.pair_table(values, "settings", "Settings and threshold")]),
        ],
        _glance(findings),
    )


def _glance(findings: Findings) -> Glance:
    """The first screen: both verdicts, what they rest on, and what to do."""
    assumption, promise = findings.assumption, findings.promise
    states: dict[str, State] = {
        "broken": State("broken", "promise broken"),
        "kept": State("holds", "promise kept so far"),
        "open": State("open", "cannot tell yet"),
        "none": State("none", "promise not tested"),
    }
    state = states[promise.verdict]
    if assumption.verdict == "changed" and state.name != "broken":
        state = State("open", "data have changed")
    title, chart = _glance_chart(findings)
    return Glance(
        state,
        f"{len(findings.now):,} answers now · {len(findings.then):,} calibration answers of "
        f"{findings.baseline.column}",
        [Cell(_HEADS[promise.verdict]), " ", Cell(_HEADS[assumption.verdict])],
        [*_glance_figures(findings)],
        [Step(step) for step in findings.next_steps],
        title,
        chart,
    )


def _glance_figures(findings: Findings) -> Iterator[Figure]:
    promise, checks = findings.promise, findings.assumption.checks
    tau = None if findings.threshold is None else findings.threshold.tau
    if tau is None:
        yield Figure("n/a", "accepted: there is no threshold")
    else:
        now, then = (float(np.mean(u < tau)) for u in (findings.now, findings.then))
        yield Figure(
            f"{cells.of_hundred(now)} %",
            f"accepted (u < {tau:.4g}); of the calibration answers {cells.of_hundred(then)} %",
        )
    promised = "" if promise.limit is None else f"; promised: at most {100 * promise.limit:.4g} %"
    if promise.accepted and promise.interval is not None:
        yield Figure(
            cells.percent(promise.errors / promise.accepted),
            f"wrong among the accepted, {wording.interval_text(promise.interval)} with 95 % "
            "certainty: "
            f"{promise.errors:,} of {promise.accepted:,} with a label{promised}",
        )
    else:
        yield Figure("n/a", f"wrong among the accepted: none has a label{promised}")
    found = [check for check in checks if check.found]
    if checks:
        words = "checks find a change of the data"
        if found:
            words += f": {', '.join(check.title for check in found)}"
        yield Figure(f"{len(found)} of {len(checks)}", words)
    else:
        yield Figure("n/a", f"changes of the data: fewer than {MIN_ROWS} rows on a side")


def _glance_chart(findings: Findings) -> tuple[str, Chart]:
    """The error rate so far where there are labels, else u then and now."""
    curve, limit = findings.promise.curve, findings.promise.limit
    if "risk" in curve:
        rows, risk = (np.asarray(curve[name], np.float64) for name in ("rows", "risk"))
        late = rows >= rows[-1] / 10
        top = max(float(np.max(curve["high"][late])), 1.5 * (limit or 0.0))
        lines = [Line("so far", rows, risk, "ours")]
        alt = (
            f"Share of wrong answers among the accepted ones so far: {cells.percent(risk[-1])} "
            f"after {int(rows[-1]):,} with a label"
        )
        if limit is not None:
            lines.append(Line("promised", rows[[0, -1]], np.full(2, limit), "mcp"))
            alt += f"; at most {cells.percent(limit)} was promised"
        x = Axis("accepted answers with a label", 0.0, float(rows[-1]), percent=False)
        y = Axis("wrong among them", 0.0, min(1.0, 1.05 * top) or 0.01)
        band = rows, np.asarray(curve["low"]), np.asarray(curve["high"])
        return "Wrong among the accepted so far", Chart(f"{alt}.", lines, x, y, band=band)
    lines = []
    for name, look, u in (("now", "ours", findings.now), ("then", "mcp", findings.then)):
        lines.append(Line(name, np.sort(u), np.arange(1, len(u) + 1) / len(u), look))
    low, high = (
        min(0.0, *(line.x[0] for line in lines)),
        max(1.0, *(line.x[-1] for line in lines)),
    )
    now, then = (float(np.median(u)) for u in (findings.now, findings.then))
    alt = (
        f"Share of answers with at most each u: half of them have at most {now:.3g} now, and had "
        f"at most {then:.3g} at calibration."
    )
    x = Axis("uncertainty u", float(low), float(high), percent=False)
    return "Answers with at most each u", Chart(alt, lines, x, Axis("share"))


_GLOSSARY = Definitions(
    [
        (
            "Kolmogorov-Smirnov distance",
            "uncertainty_ks",
            "Largest difference between the shares of answers with at most some u, then and now. "
            "The interval is that of Dvoretzky, Kiefer, Wolfowitz and Massart for both samples, "
            "95 %. It bounds the change in the share that any threshold accepts.",
        ),
        (
            "Population stability index",
            "uncertainty_psi",
            "Sum over bins of (now - then) log(now / then) of their shares; the bins are tenths of "
            "the calibration set. 0.1 and 0.25 are customary limits of a small and a large change; "
            "what chance alone makes depends on the number of rows and stands beside it.",
        ),
        (
            "By chance up to",
            "by_chance",
            "Without a change, a value above this is seen as often as alpha says, in this check "
            "alone.",
        ),
        (
            "p, all checks",
            "adjusted",
            "Holm's p-value: a finding where it is at most alpha. With that, a false alarm in any "
            "of the checks has at most the probability alpha, each time that they are made.",
        ),
        (
            "Evidence",
            "evidence",
            "What a bet on errors would have won that is fair if the promise is just kept. While "
            "it is kept, the chance that this ever reaches 1 / delta is at most delta (Ville's "
            "inequality): one may look after every label. Only where the order of labels is known "
            "(--ordered, --time_column); else an exact binomial test of all rows, for one look.",
        ),
    ]
)


def _check_table(findings: Findings) -> Table:
    lines = [
        [
            check.title,
            "changed" if check.found else "no finding",
            Cell(check.shown, check.statistic, check.beside),
            "" if check.by_chance is None else Cell(f"{check.by_chance:.3f}", check.by_chance),
            Cell(wording.p_text(check.p_value), check.p_value),
            Cell(wording.p_text(check.adjusted), check.adjusted),
        ]
        for check in findings.assumption.checks
    ]
    mix = findings.assumption.mix
    pooled = f"; {len(mix.pooled)} rare classes counted as one" if mix and mix.pooled else ""
    return Table(
        "checks",
        f"Calibration set ({len(findings.then):,} rows) and scores ({len(findings.now):,} rows)"
        f"{pooled}",
        {
            "check": "check",
            "finding": "finding",
            "value": "value",
            "by_chance": "by chance up to",
            "p_value": "p",
            "adjusted": "p, all checks",
        },
        lines,
    )


def _draw_change(findings: Findings) -> list[Drawing]:
    tau = None if findings.threshold is None else findings.threshold.tau
    then, now = findings.then, findings.now
    sample: dict[str, Any] = dict(baseline=then, production=now, tau=tau)
    added_up = partial(
        monitor_plots.plot_distribution_functions, at=drift.ks(then, now).at, **sample
    )
    uncertainty = compose(
        "uncertainty",
        "Uncertainty then and now",
        "The calibration set and the scores. Left of tau answers are accepted. The thick line "
        "is the Kolmogorov-Smirnov distance.",
        [
            Panel("Distribution of u", partial(monitor_plots.plot_two_samples, **sample)),
            Panel("Cumulative distribution", added_up),
        ],
        alt=f"median {np.median(then):.3g} at calibration, {np.median(now):.3g} now",
    )
    shares, names, caption = _class_shares(findings)
    before, after = shares
    classes = compose(
        "classes",
        "Predicted classes then and now",
        caption,
        [
            Panel(
                "",
                partial(
                    monitor_plots.plot_class_shares, baseline=before, production=after, names=names
                ),
            )
        ],
        alt="; ".join(
            f"{name} {share:.1%}, now {now_:.1%}"
            for name, share, now_ in zip(names, before, after, strict=True)
        ),
        height=max(3.5, 1.2 + 0.32 * len(names)),
        left=1.6,
    )
    return [uncertainty, classes, *([] if tau is None else [_draw_abstention(findings, tau)])]


def _class_shares(findings: Findings) -> tuple[np.ndarray, list[str], str]:
    """Shares [2, k], names and caption of the classes that a figure has room for."""
    classes, counts = assumptions.class_counts(
        findings.baseline.predicted, findings.scores.predicted
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    given = findings.baseline.class_names
    own = findings.scores.class_names
    kept = np.arange(len(classes))
    words = "Share of the answers of each class that was predicted."
    if len(classes) > _SHOWN_CLASSES:
        changes = np.abs(shares[0] - shares[1])
        kept = np.sort(np.argsort(-changes, kind="stable")[:_SHOWN_CLASSES])
        words = f"The {_SHOWN_CLASSES} predicted classes whose shares differ most."
    names = [
        given[number] if given else tabular.shown(own.get(number, number))
        for number in map(int, classes[kept])
    ]
    return shares[:, kept], names, words


def _draw_abstention(findings: Findings, tau: float) -> Drawing:
    rejected, times = findings.now >= tau, findings.scores.times
    if times is not None:
        rejected = rejected[np.argsort(times, kind="stable")]
    order = "their order in the file" if times is None else "the order of time"
    blocks = min(_BLOCKS, max(1, len(rejected) // 25))
    parts = np.array_split(rejected, blocks)
    ends = np.cumsum([len(part) for part in parts])
    rates = np.array([part.mean() for part in parts])
    low, high = np.array([drift.clopper_pearson(int(part.sum()), len(part)) for part in parts]).T
    share = float(np.mean(findings.then >= tau))
    interval = drift.clopper_pearson(int(np.sum(findings.then >= tau)), len(findings.then))
    plot = partial(
        monitor_plots.plot_rate_by_block,
        rows=ends - np.array([len(part) for part in parts]) / 2,
        rates=rates,
        low=low,
        high=high,
        baseline=(share, *interval),
        ylabel="abstentions",
    )
    return compose(
        "abstention",
        "Abstentions along the file" if times is None else "Abstentions over time",
        f"The scores in {order}, in {blocks} blocks, each with its exact 95 % interval; the band "
        "is that of the calibration set.",
        [Panel("", plot)],
        alt=f"from {rates.min():.1%} to {rates.max():.1%} in blocks, {share:.1%} at calibration",
    )


def _promise_table(findings: Findings) -> Table:
    promise = findings.promise
    risk = promise.errors / promise.accepted
    assert promise.interval is not None
    values: dict[str, Any] = {
        "limit of the error rate": "none" if promise.limit is None else f"{promise.limit:.4g}",
        "answers with a label": f"{promise.labeled:,}",
        "accepted ones among them": f"{promise.accepted:,}",
        "wrong ones among these": f"{promise.errors:,}",
        "error rate, exact 95 % interval": wording.percent_text(risk, promise.interval),
    }
    if promise.curve:
        ends = (float(promise.curve["low"][-1]), float(promise.curve["high"][-1]))
        name = f"interval for all times together, level {1 - findings.delta:.4g}"
        values[name] = f"{wording.interval_text(ends)} %"
    if promise.p_value is not None:
        values[f"p of the promise, test: {promise.test}"] = wording.p_text(promise.p_value)
    if promise.broken_at is not None:
        values["shown broken at accepted answer"] = f"{promise.broken_at:,}"
        values["most clearly so from"] = f"{promise.since:,}"
    return tables.pair_table(values, "promise", "Accepted answers with a label")


def _draw_promise(findings: Findings) -> Drawing:
    promise, curve = findings.promise, findings.promise.curve
    caption = (
        f"In the order of the labels. The band covers the rate, if it stays the same, at all times "
        f"together (level {1 - findings.delta:.4g})."
    )
    band: dict[str, Any] = {name: curve[name] for name in ("rows", "risk", "low", "high")}
    risk = partial(
        monitor_plots.plot_risk_over_rows,
        **band,
        limit=promise.limit,
        broken=promise.broken_at,
    )
    parts = [Panel("Error rate of accepted answers", risk)]
    if "evidence" in curve:
        evidence = partial(
            monitor_plots.plot_evidence,
            rows=curve["rows"],
            evidence=curve["evidence"],
            enough=1 / findings.delta,
            broken=promise.broken_at,
        )
        parts.append(Panel("Evidence that the promise is broken", evidence))
        caption += (
            " The evidence is computed from every row on, so that a late rise shows although the "
            "rate of all rows together is still low."
        )
    alt = f"{promise.errors:,} of {promise.accepted:,} accepted answers with a label are wrong"
    return compose("promise", "The promise over time", caption, parts, alt=alt)


def terminal_text(findings: Findings) -> str:
    """What a person should know, in a few lines of fewer than 80 columns."""
    baseline, threshold = findings.baseline, findings.threshold
    tau = "no threshold"
    if threshold is not None:
        tau = "tau none" if threshold.tau is None else f"tau {threshold.tau:.4g}"
    rows = f"{len(findings.then):,} rows of {baseline.column}"
    lines = [
        f"baseline  {tabular.shown(baseline.name)}: {rows}, {tau}",
        f"scores    {tabular.shown(findings.scores.name)}: {len(findings.now):,} rows",
        "",
    ]
    if findings.assumption.checks:
        table = [["check", "value", "by chance", "p, all checks"]]
        table += [
            [
                check.title,
                check.shown,
                "" if check.by_chance is None else f"{check.by_chance:.3f}",
                wording.p_text(check.adjusted) + " !" * check.found,
            ]
            for check in findings.assumption.checks
        ]
        lines += [*cells.aligned(table), ""]
    paragraphs = [
        ("state", _state_words(findings)),
        ("data", f"{_HEADS[findings.assumption.verdict]} {findings.assumption_text}"),
        ("promise", f"{_HEADS[findings.promise.verdict]} {findings.promise_text}"),
    ]
    paragraphs += [("next", step) for step in findings.next_steps]
    paragraphs += [("note", note) for note in findings.notes]
    for title, words in paragraphs:
        lines += textwrap.wrap(words, 78, initial_indent=f"{title:<10}", subsequent_indent=" " * 10)
    return "\n".join(lines)


def _state_words(findings: Findings) -> str:
    """State and figures in a sentence."""
    figures = findings.figures

    def percent(share: Share) -> str:
        return wording.percent_text(share.count / share.rows, share.interval)

    words = f"{findings.state}."
    if figures.accepted is not None:
        words += f" Of the answers {percent(figures.accepted)} are accepted"
        if figures.wrong is not None:
            words += f", and of these {percent(figures.wrong)} are wrong"
        if figures.handed_over is not None:
            words += f"; of the errors {percent(figures.handed_over)} are handed over"
        words += " (exact 95 % intervals)."
    return words
