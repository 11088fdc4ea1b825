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
from btcp_tf.decisions.history import Look
from btcp_tf.decisions.monitoring import Findings, Share
from btcp_tf.evaluation import tabular
from btcp_tf.reporting import cells, glance, monitor_plots, pages, tables
from btcp_tf.reporting.cells import Cell, Table
from btcp_tf.reporting.drawing import Drawing, Panel, compose
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.pages import Block, Include, Report
from btcp_tf.reporting.svg import Axis, Chart, Line
from btcp_tf.thresholds import PREDICTED

_BLOCKS = 20  # Of the figure of abstentions.

_SHOWN_CLASSES = 20

_HEADS = {
    "holds": "No change was found.",
    "changed": "The data have changed.",
    "too few rows": "No verdict about a change.",
    "broken": "The promise is broken.",
    "kept": "The promise is kept.",
    "open": "Kept or broken: cannot tell.",
    "none": "The promise is not tested.",
}
"""By verdict."""

_CHECKS = {
    "check": "check",
    "finding": "finding",
    "value": "value",
    "by_chance": "by chance up to",
    "p_value": "p",
    "adjusted": "p, all checks",
}

_LOOKS = {
    "scores": "scores",
    "state": "threshold",
    "data": "data",
    "rows": "answers",
    "accepted": "accepted with a label",
    "errors": "wrong among these",
}


_GROUPS = {
    "group": "group",
    "rows": "answers",
    "accepted": "accepted",
    "labeled": "accepted with a label",
    "errors": "wrong among these",
    "risk": "error rate",
    "p_value": "p of the limit",
    "verdict": "limit",
}

_GROUP_VERDICTS = {
    "broken": "refuted",
    "kept": "shown",
    "open": "cannot tell",
    "none": "not tested",
}


def to_report(findings: Findings, settings: Mapping[str, Any]) -> Report:
    """The findings as a page."""
    threshold, promise = findings.threshold, findings.promise
    values = dict(settings)
    if threshold is not None:
        fields = dataclasses.asdict(threshold) | {"accepts": threshold.accepts}
        fields.pop("parts", None)
        values |= {f"threshold: {name}": value for name, value in fields.items()}
    values = {key: "none" if value in (None, "") else value for key, value in values.items()}
    return Report(
        f"Does the threshold still hold? {_file_name(findings.scores.name)}",
        findings.notes,
        [
            (
                "Verdict",
                [pages.text(Cell(head), f" {text}") for head, text in _verdicts(findings).values()],
            ),
            (
                "Are the data as they were?",
                [
                    *([_check_table(findings)] if findings.assumption.checks else []),
                    *([pages.text(findings.looked_at_text)] if findings.looked_at else []),
                    *([pages.text(findings.expected_text)] if findings.expected else []),
                    *_draw_change(findings),
                ],
            ),
            (
                "Is the promise kept?",
                [
                    *([_promise_table(findings)] if promise.accepted else []),
                    *([_draw_promise(findings)] if promise.curve else []),
                    *_about_groups(findings),
                ],
            ),
            ("Earlier looks", _earlier_looks(findings)),
            ("How to read this", [Include("monitor_terms.html")]),
            ("Settings", [tables.pair_table(values, "settings", "Settings and threshold")]),
        ],
        _glance(findings),
    )


def _file_name(path: str) -> str:
    return tabular.shown(Path(path).name)


def _verdicts(findings: Findings) -> dict[str, tuple[str, str]]:
    """What was asked -> the verdict, and what it rests on."""
    return {
        "data": (_HEADS[findings.assumption.verdict], findings.assumption_text),
        "promise": (_HEADS[findings.verdict], findings.promise_text),
    }


def _state(findings: Findings) -> State:
    """The badge: the state of the findings, and whether the data have changed."""
    title = {"holds": "promise holds", "broken": "promise broken"}.get(findings.state)
    changed = ", data have changed" * (findings.assumption.verdict == "changed")
    # The name is one of a badge's shapes: what is neither shown nor refuted is open.
    name = {"holds": "holds", "broken": "broken"}.get(findings.state, "open")
    return State(name, f"{title or findings.state}{changed}")  # type: ignore[arg-type]


def _glance(findings: Findings) -> Glance:
    """The first screen: both verdicts, what they rest on, and what to do."""
    title, chart = _glance_chart(findings)
    verdicts = _verdicts(findings)
    return Glance(
        _state(findings),
        f"{len(findings.now):,} answers now · {len(findings.then):,} calibration answers of "
        f"{findings.baseline.column}",
        [Cell(verdicts["promise"][0]), " ", Cell(verdicts["data"][0])],
        [_accepted_figure(findings), _wrong_figure(findings), _change_figure(findings)],
        [Step(step) for step in findings.next_steps],
        title,
        chart,
    )


def _accepted_figure(findings: Findings) -> Figure:
    share, threshold = findings.figures.accepted, findings.threshold
    if threshold is None or share is None:
        return Figure("n/a", "accepted: there is no threshold")
    if findings.accepted is None:
        return Figure("0 %", "accepted: the threshold accepts nothing")
    then = cells.of_hundred(float(np.mean(findings.accepted[0])))
    return Figure(
        f"{cells.of_hundred(share.count / share.rows)} %",
        f"accepted ({threshold.accepts}); of the calibration answers {then} %",
    )


def _wrong_figure(findings: Findings) -> Figure:
    wrong, promise = findings.figures.wrong, findings.promise
    limit = ""
    if promise.limit is not None:
        threshold = findings.threshold
        own = threshold is not None and promise.limit == threshold.target
        delta = threshold.delta if threshold is not None and own else None
        limit = f"; promised: {glance.promised(promise.limit, delta)}"
    if wrong is None:
        return Figure("n/a", f"wrong among the accepted: none has a label{limit}")
    return Figure(
        cells.percent(wrong.count / wrong.rows),
        f"wrong among the accepted, {wording.interval_text(wrong.interval)} with 95 % certainty: "
        f"{wrong.count:,} of {wrong.rows:,} with a label{limit}",
    )


def _change_figure(findings: Findings) -> Figure:
    checks = findings.assumption.checks
    if not checks:
        return Figure("n/a", f"changes of the data: fewer than {MIN_ROWS} rows on a side")
    changed = [check.title for check in checks if check.found]
    return Figure(
        f"{len(changed)} of {len(checks)}",
        "checks find a change of the data" + (f": {', '.join(changed)}" if changed else ""),
    )


def _glance_chart(findings: Findings) -> tuple[str, Chart]:
    """The error rate so far where there are labels, else u then and now."""
    if "risk" in findings.promise.curve:
        return "Wrong among the accepted so far", _risk_chart(findings)
    lines = [
        Line(name, np.sort(u), np.arange(1, len(u) + 1) / len(u), look)
        for name, look, u in (("now", "ours", findings.now), ("then", "mcp", findings.then))
    ]
    low = float(min(0.0, *(line.x[0] for line in lines)))
    high = float(max(1.0, *(line.x[-1] for line in lines)))
    alt = (
        f"Share of answers with at most each u: half of them have at most "
        f"{np.median(findings.now):.3g} now, and had at most {np.median(findings.then):.3g} at "
        "calibration."
    )
    x = Axis("uncertainty u", low, high, percent=False)
    return "Answers with at most each u", Chart(alt, lines, x, Axis("share"))


def _risk_chart(findings: Findings) -> Chart:
    """The error rate of accepted answers, label by label."""
    curve, limit = findings.promise.curve, findings.promise.limit
    rows, risk, low, high = (
        np.asarray(curve[name], np.float64) for name in ("rows", "risk", "low", "high")
    )
    late = rows >= rows[-1] / 10
    top = max(float(np.max(high[late])), 1.5 * (limit or 0.0))
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
    return Chart(f"{alt}.", lines, x, y, band=(rows, low, high))


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
    rows = f"Calibration set ({len(findings.then):,} rows) and scores ({len(findings.now):,} rows)"
    return Table("checks", rows + pooled, _CHECKS, lines)


def _draw_change(findings: Findings) -> Iterator[Drawing]:
    """u, predicted classes and abstentions, then and now."""
    tau = None if findings.threshold is None else findings.threshold.tau
    then, now = findings.then, findings.now
    sample: dict[str, Any] = dict(baseline=then, production=now, tau=tau)
    added_up = partial(
        monitor_plots.plot_distribution_functions, at=drift.ks(then, now).at, **sample
    )
    yield compose(
        "uncertainty",
        "Uncertainty then and now",
        "The calibration set and the scores. "
        + "Left of tau answers are accepted. " * (tau is not None)
        + "The thick line is the Kolmogorov-Smirnov distance.",
        [
            Panel("Distribution of u", partial(monitor_plots.plot_two_samples, **sample)),
            Panel("Cumulative distribution", added_up),
        ],
        alt=f"median {np.median(then):.3g} at calibration, {np.median(now):.3g} now",
    )
    (before, after), names, caption = _class_shares(findings)
    shares: dict[str, Any] = dict(baseline=before, production=after, names=names)
    yield compose(
        "classes",
        "Predicted classes then and now",
        caption,
        [Panel("", partial(monitor_plots.plot_class_shares, **shares))],
        alt="; ".join(
            f"{name} {share:.1%}, now {now_:.1%}"
            for name, share, now_ in zip(names, before, after, strict=True)
        ),
        height=max(3.5, 1.2 + 0.32 * len(names)),
        left=1.6,
    )
    if findings.accepted is not None:
        yield _draw_abstention(findings, *findings.accepted)


def _class_shares(findings: Findings) -> tuple[np.ndarray, list[str], str]:
    """Shares [2, k], names and caption of the classes that a figure has room for."""
    classes, counts = assumptions.class_counts(
        findings.baseline.predicted, findings.scores.predicted
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    given, own = findings.baseline.class_names, findings.scores.class_names
    kept = np.arange(len(classes))
    caption = "Share of the answers of each class that was predicted."
    if len(classes) > _SHOWN_CLASSES:
        changes = np.abs(shares[0] - shares[1])
        kept = np.sort(np.argsort(-changes, kind="stable")[:_SHOWN_CLASSES])
        caption = f"The {_SHOWN_CLASSES} predicted classes whose shares differ most."
    names = [
        given[number] if given else tabular.shown(own.get(number, number))
        for number in map(int, classes[kept])
    ]
    return shares[:, kept], names, caption


def _draw_abstention(findings: Findings, then: np.ndarray, now: np.ndarray) -> Drawing:
    """Abstentions by place in the file or time, from which answers are accepted then and now."""
    rejected, times = ~now, findings.scores.times
    if times is not None:
        rejected = rejected[np.argsort(times, kind="stable")]
    order = "their order in the file" if times is None else "the order of time"
    blocks = min(_BLOCKS, max(1, len(rejected) // 25))
    parts = np.array_split(rejected, blocks)
    sizes = np.array([len(part) for part in parts])
    rates = np.array([part.mean() for part in parts])
    low, high = np.array([drift.clopper_pearson(int(part.sum()), len(part)) for part in parts]).T
    count, n = int(np.sum(~then)), len(then)
    plot = partial(
        monitor_plots.plot_rate_by_block,
        rows=np.cumsum(sizes) - sizes / 2,
        rates=rates,
        low=low,
        high=high,
        baseline=(count / n, *drift.clopper_pearson(count, n)),
        ylabel="abstentions",
    )
    return compose(
        "abstention",
        "Abstentions along the file" if times is None else "Abstentions over time",
        f"The scores in {order}, in {blocks} blocks, each with its exact 95 % interval; the band "
        "is that of the calibration set.",
        [Panel("", plot)],
        alt=f"from {rates.min():.1%} to {rates.max():.1%} in blocks, {count / n:.1%} at "
        "calibration",
    )


def _promise_table(findings: Findings) -> Table:
    promise = findings.promise
    assert promise.interval is not None
    risk = wording.percent_text(promise.errors / promise.accepted, promise.interval)
    values: dict[str, Any] = {
        "limit of the error rate": "none" if promise.limit is None else f"{promise.limit:.4g}",
        "answers with a label": f"{promise.labeled:,}",
        "accepted ones among them": f"{promise.accepted:,}",
        "wrong ones among these": f"{promise.errors:,}",
        "error rate, exact 95 % interval": risk,
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


def _about_groups(findings: Findings) -> list[Block]:
    """The promise in each group; nothing without groups."""
    if not findings.groups:
        return []
    lines: list[list[str | Cell]] = []
    for one in findings.groups:
        promise = one.promise
        rate: str | Cell = ""
        if promise.interval is not None:
            rate = cells.rate_cell(promise.errors / promise.accepted, *promise.interval)
        lines.append(
            [
                tabular.shown(one.name),
                *map(cells.count_cell, (one.rows, one.accepted, promise.accepted, promise.errors)),
                rate,
                "" if promise.p_value is None else Cell(wording.p_text(promise.p_value)),
                _GROUP_VERDICTS[promise.verdict],
            ]
        )
    caption = "Accepted answers by group, exact 95 % intervals, each for one look"
    return [pages.text(findings.groups_text), Table("groups", caption, _GROUPS, lines)]


def _draw_promise(findings: Findings) -> Drawing:
    promise, curve = findings.promise, findings.promise.curve
    caption = (
        f"In the order of the labels. The band covers the rate, if it stays the same, at all times "
        f"together (level {1 - findings.alarm:.4g})."
    )
    band: dict[str, Any] = {name: curve[name] for name in ("rows", "risk", "low", "high")}
    marked: dict[str, Any] = dict(limit=promise.limit, broken=promise.broken_at)
    risk = partial(monitor_plots.plot_risk_over_rows, **band, **marked)
    parts = [Panel("Error rate of accepted answers", risk)]
    if "evidence" in curve:
        evidence = partial(
            monitor_plots.plot_evidence,
            rows=curve["rows"],
            evidence=curve["evidence"],
            enough=1 / findings.alarm,
            broken=promise.broken_at,
        )
        parts.append(Panel("Evidence that the promise is broken", evidence))
        caption += (
            " The evidence is computed from every row on, so that a late rise shows although the "
            "rate of all rows together is still low."
        )
    alt = f"{promise.errors:,} of {promise.accepted:,} accepted answers with a label are wrong"
    return compose("promise", "The promise over time", caption, parts, alt=alt)


def _earlier_looks(findings: Findings) -> list[Block]:
    """What earlier reports in the same folder said, the last one first; nothing without any."""
    *earlier, _ = findings.history.looks
    lines = [[_look_cell(name, look) for name in _LOOKS] for look in reversed(earlier)]
    caption = "What earlier reports in this folder said, the last one first"
    return [Table("looks", caption, _LOOKS, lines)] if lines else []


def _look_cell(name: str, look: Look) -> str | Cell:
    value = getattr(look, name)
    return Cell(f"{value:,}", value) if isinstance(value, int) else str(value)


def terminal_text(findings: Findings) -> str:
    """What a person should know, in a few lines of fewer than 80 columns."""
    baseline, threshold = findings.baseline, findings.threshold
    tau = "no threshold"
    if threshold is not None:
        tau = "tau none" if threshold.tau is None else f"tau {threshold.tau:.4g}"
        if threshold.tau is None and not threshold.accepts_nothing:
            what = "predicted class" if findings.promised_by == PREDICTED else "group"
            tau = f"a tau for each {what}"
    rows = f"{len(findings.then):,} rows of {baseline.column}"
    lines = [
        f"baseline  {tabular.shown(baseline.name)}: {rows}, {tau}",
        f"scores    {tabular.shown(findings.scores.name)}: {len(findings.now):,} rows",
        "",
    ]
    if findings.assumption.checks:
        table = [["check", "value", "by chance", "p, all checks"]]
        for check in findings.assumption.checks:
            by_chance = "" if check.by_chance is None else f"{check.by_chance:.3f}"
            adjusted = wording.p_text(check.adjusted) + " !" * check.found
            table.append([check.title, check.shown, by_chance, adjusted])
        lines += [*cells.aligned(table), ""]
    paragraphs = [("state", _state_text(findings))]
    paragraphs += [(name, " ".join(verdict)) for name, verdict in _verdicts(findings).items()]
    if findings.expected is not None:
        paragraphs.append(("expected", findings.expected_text))
    # Where the promise is about them, the verdict has them.
    if findings.groups and not (findings.promised_by and findings.promise.labeled):
        paragraphs.append(("groups", findings.groups_text))
    if findings.looked_at is not None:
        paragraphs.append(("cost", findings.looked_at_text))
    paragraphs += [("next", step) for step in findings.next_steps]
    notes = [findings.repeated_look, *findings.notes]
    paragraphs += [("note", note) for note in notes if note]
    for look in findings.history.looks[-2:-1]:
        paragraphs.append(("last time", f"{_file_name(look.scores)}: {look.state}."))
    for title, text in paragraphs:
        lines += textwrap.wrap(text, 78, initial_indent=f"{title:<10}", subsequent_indent=" " * 10)
    return "\n".join(lines)


def _state_text(findings: Findings) -> str:
    """State and figures in a sentence."""
    figures = findings.figures

    def percent(share: Share) -> str:
        return wording.percent_text(share.count / share.rows, share.interval)

    if figures.accepted is None:
        return f"{findings.state}."
    text = f"{findings.state}. Of the answers {percent(figures.accepted)} are accepted"
    if figures.wrong is not None:
        text += f", and of these {percent(figures.wrong)} are wrong"
    if figures.handed_over is not None:
        text += f"; of the errors {percent(figures.handed_over)} are handed over"
    return f"{text} (exact 95 % intervals)."
