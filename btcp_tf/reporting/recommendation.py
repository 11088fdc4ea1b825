"""Which method to use after a study, and how sure that is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from btcp_tf.evaluation.keys import FINETUNED
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import cells, tables
from btcp_tf.reporting.cells import Cell, Row, Words, count_of, difference_cell, label, number
from btcp_tf.reporting.glance import Figure, Glance, State, Step, train
from btcp_tf.reporting.headline import metric_in_percent, risk_chart
from btcp_tf.reporting.pages import Block, Heading, Text
from btcp_tf.reporting.study_data import StudyDataset, best_of, candidates
from btcp_tf.reporting.texts import pieces, text

MCP = label(REFERENCE)


def study_glance(
    datasets: Sequence[StudyDataset], settings: Mapping[str, Mapping[str, Any]]
) -> Glance:
    """The first screen: which method to use on each data set, and the figures behind it.

    Args:
      datasets: What the study holds, at least one data set.
      settings: Name of a run -> its settings.
    """
    first = datasets[0]
    seeds = max(len(cells.by(dataset.plain, "seed")) for dataset in datasets)
    methods = {row["method"] for dataset in datasets for row in dataset.test}
    if len(datasets) == 1:
        state, sentence, figures = _state(first), _sentence(first), _key_figures(first)
    else:
        better = sum(dataset.is_better for dataset in datasets)
        state = State(
            "holds" if better == len(datasets) else "open" if better else "none",
            f"better than {MCP} on {better} of {len(datasets)} data sets",
        )
        each = [f"{label(dataset.method)} on {dataset.name}" for dataset in datasets]
        sentence = [f"Use {', '.join(each)}."]
        figures = [_key_figures(dataset)[0] for dataset in datasets]
    answers = first.cells[0].frozen
    drawn = answers is not None and first.method in answers.uncertainty
    return Glance(
        state,
        f"{', '.join(dataset.name for dataset in datasets)} · {count_of(seeds, 'seed')} · "
        f"{len(methods)} methods on the same classifiers",
        sentence,
        figures,
        _steps(first, seeds, settings.get(first.cells[0].name, {"dataset": first.name})),
        f"Wrong among the accepted: {first.name}, first seed",
        risk_chart(answers, first.method, None) if answers is not None and drawn else None,
    )


def _state(dataset: StudyDataset) -> State:
    if dataset.too_few_errors:
        return State("open", "too few errors to tell")
    if dataset.best is None:
        return State("none", f"none shown better than {MCP}")
    return State("holds", f"better than {MCP}")


def _sentence(dataset: StudyDataset) -> list[Words]:
    if dataset.reference is None:
        return pieces("study.not_compared", mcp=MCP)
    if dataset.too_few_errors:
        return pieces("study.too_few", too_few=Cell("Too few errors"), mcp=MCP)
    method = Cell(label(dataset.method))
    pairs = f"{100 * number(dataset.reference['auroc']):.1f}"
    if dataset.best is None:
        return pieces("study.use_reference", method=method, pairs=pairs)
    auroc = dataset.best["auroc"]
    best = Cell(f"{100 * auroc:.1f}", auroc)
    return pieces("study.use_best", method=method, best=best, mcp=MCP, pairs=pairs)


def _key_figures(dataset: StudyDataset) -> list[Figure]:
    """The gain of the best method, what is wrong among 90 %, and the number of errors."""
    best, reference, name = dataset.best, dataset.reference, dataset.name
    if reference is None:
        return [Figure("n/a", f"{name}: nothing is compared")]
    gain = Figure("none", text("study.no_gain", dataset=name, mcp=MCP))
    if best is not None:
        cell, method = difference_cell(best, "auroc"), label(best["method"])
        about = dict(method=method, mcp=MCP, dataset=name, interval=cell.spread)
        gain = Figure(cell.text, text("study.gain", **about))
    chosen, beside = reference, ""
    if best is not None and dataset.is_better:
        chosen, beside = best, f"; {MCP}: {_risk_at_90(reference)}"
    wrong = text("study.risk_at_90", method=label(dataset.method), beside=beside)
    errors = text("study.errors", n=int(reference["n"]))
    return [
        gain,
        Figure(_risk_at_90(chosen), wrong),
        Figure(f"{reference['errors']:,.0f}", errors),
    ]


def _risk_at_90(row: Row) -> str:
    name = "risk_at_coverage_90"
    return f"{cells.printed(number(row.get(name)), name)} %"


def _steps(first: StudyDataset, seeds: int, settings: Mapping[str, Any]) -> list[Step]:
    steps = [Step("Look at the errors that are trusted most.", link="#check-these-first")]
    if seeds < 5:
        more = text("study.more_seeds", seeds=count_of(seeds, "seed"))
        steps.append(Step(more, "--seeds=5"))
    if first.best is not None:
        methods = ",".join(dict.fromkeys((REFERENCE, first.best["method"])))
        steps.append(Step("Train it by itself:", train(settings, f"--method={methods}")))
    return steps


def recommend(dataset: StudyDataset) -> list[Block]:
    """Which method to use on one data set, by how much, and with what certainty."""
    difference = tables.difference_table(dataset.test)
    reference, errors = dataset.reference, dataset.errors
    if reference is None:
        return [difference]
    fewest, most = min(errors), max(errors)
    task = pieces(
        "study.task",
        seeds=count_of(len(errors), "seed"),
        n=int(reference["n"]),
        accuracy=metric_in_percent(reference, "accuracy"),
        errors=Cell(f"{fewest:,}" + (f" to {most:,}" if most > fewest else "")),
        each=" each" if len(errors) > 1 else "",
        mcp=MCP,
        auroc=metric_in_percent(reference, "auroc"),
    )
    sections = [task, _choice(dataset), *_btcp(dataset.test), *_ood(dataset)]
    return [Heading(dataset.name), *map(Text, sections), difference]


def _choice(dataset: StudyDataset) -> list[Words]:
    """Which method to use, and how many were compared with MCP."""
    rows, best = candidates(dataset.test), dataset.best
    if not rows:
        return ["No other method was compared."]
    verdicts = [row["verdict"] for row in rows]
    names = ("better", "not distinguishable", "worse")
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in names]
    tally = text("study.tally", mcp=MCP, counts=", ".join(counts))
    if dataset.too_few_errors:
        few = Cell(f"Fewer than {cells.MIN_ERRORS_TO_COMPARE} errors cannot choose a method.")
        return pieces("study.choose_none", too_few=few, mcp=MCP, tally=tally)
    use = Cell(f"Use {label(dataset.method)}.")
    if best is None:
        return pieces("study.choose_reference", use=use, tally=tally)
    cheaper = [*_cheaper(rows), " "] if _needs_more(best) else []
    return pieces(
        "study.choose_best", use=use, mcp=MCP, gain=_gain(best), cheaper=cheaper, tally=tally
    )


def _gain(row: Row) -> list[Words]:
    """What a method changes in ranking, beside MCP."""
    return ["AUROC ", difference_cell(row, "auroc"), ", AURC × 1000 ", difference_cell(row, "aurc")]


def _needs_more(row: Row) -> bool:
    """Whether a method needs many passes or classifiers."""
    method = METHODS.get(row["method"])
    return method is not None and bool(method.samples or method.rival_of)


def _cheaper(rows: Iterable[Row]) -> list[Words]:
    """The best method that needs one pass."""
    cheap = best_of(row for row in rows if not _needs_more(row))
    if cheap is None:
        return pieces("study.none_cheaper", mcp=MCP)
    gain = difference_cell(cheap, "auroc")
    return pieces("study.cheaper", method=label(cheap["method"]), gain=gain)


def _btcp(test: Sequence[Row]) -> list[list[Words]]:
    """Whether BTCP beats the MCP of its classifier, in ranking and at the threshold."""
    bases = {(row["stage"], row["answers"]): row for row in test if row["method"] == REFERENCE}
    cubed = next((row for row in test if row["method"] == "mcp_cubed"), None)
    return [
        _beside_base(
            row, bases[row["stage"], row["answers"]], None if row["stage"] == FINETUNED else cubed
        )
        for row in cells.ordered(test)
        if row["method"] == "btcp" and row.get("verdict")
    ]


def _beside_base(row: Row, base: Row, cubed: Row | None) -> list[Words]:
    """BTCP beside the MCP of its classifier, and the cube of MCP, which moves tau alone."""
    name, reference = cells.who(row), cells.who(base)
    verdict = {
        "better": f"{name} beats {reference} in ranking errors",
        "worse": f"{name} does not beat {reference}: it ranks errors worse",
    }.get(row["verdict"], f"{name} and {reference} are not distinguishable in ranking errors")
    control: list[Words] = []
    if cubed is not None:
        bacc = metric_in_percent(cubed, "bacc")
        control = pieces("study.cubed", method=label("mcp_cubed"), mcp=MCP, bacc=bacc)
    return pieces(
        "study.btcp",
        verdict=Cell(verdict),
        gain=_gain(row),
        tau=row["tau"],
        bacc=metric_in_percent(row, "bacc"),
        reference=metric_in_percent(base, "bacc"),
        control=control,
    )


def _ood(dataset: StudyDataset) -> list[list[Words]]:
    """Which method separates the images of each OOD set best."""
    names = filter(None, cells.by(dataset.over_seeds, "ood"))
    compared = {name: candidates(cells.only(dataset.over_seeds, "ood", name)) for name in names}
    return [_separation(name, rows) for name, rows in compared.items() if rows]


def _separation(ood: str, rows: Sequence[Row]) -> list[Words]:
    best = best_of(rows)
    btcp: list[Words] = []
    for row in rows:
        if row["method"] == "btcp" and row is not best:
            btcp = [f"; {label('btcp')} ", difference_cell(row, "auroc")]
    if best is None:
        return pieces("study.ood_none", ood=ood, mcp=MCP, btcp=btcp)
    return pieces(
        "study.ood_best",
        ood=ood,
        method=Cell(label(best["method"])),
        auroc=metric_in_percent(best, "auroc"),
        mcp=MCP,
        gain=difference_cell(best, "auroc"),
        btcp=btcp,
    )
