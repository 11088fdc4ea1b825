"""Which method to use after a study, and how sure that is."""

from collections.abc import Iterable, Sequence

from btcp_tf.evaluation.keys import FINETUNED
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import cells, pages, tables
from btcp_tf.reporting.cells import Cell, Row, Words, count_of, difference_cell, label, number
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.headline import metric_in_percent, risk_chart
from btcp_tf.reporting.pages import Block, Heading, Text
from btcp_tf.reporting.study_data import StudyDataset, best_of, candidates

MCP = label(REFERENCE)


def study_glance(datasets: Sequence[StudyDataset]) -> Glance:
    """The first screen: which method to use on each data set, and the figures behind it."""
    first = datasets[0]
    seeds = max(len(cells.by(dataset.plain, "seed")) for dataset in datasets)
    methods = {row["method"] for dataset in datasets for row in dataset.test}
    if len(datasets) == 1:
        state, sentence, figures = _state(first), _sentence(first), _key_figures(first)
    else:
        better = sum(d.best is not None and not d.too_few_errors for d in datasets)
        state = State(
            "holds" if better == len(datasets) else "open" if better else "none",
            f"better than {MCP} on {better} of {len(datasets)} data sets",
        )
        sentence = [f"Use {', '.join(f'{label(d.method)} on {d.name}' for d in datasets)}."]
        figures = [_key_figures(dataset)[0] for dataset in datasets]
    answers = first.cells[0].frozen
    drawn = answers is not None and first.method in answers.uncertainty
    return Glance(
        state,
        f"{', '.join(d.name for d in datasets)} · {count_of(seeds, 'seed')} · "
        f"{len(methods)} methods on the same classifiers",
        sentence,
        figures,
        _steps(first, seeds),
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
        return [f"Nothing is compared: there is no {MCP} among the methods."]
    if dataset.too_few_errors:
        advice = f" to choose a method: take {MCP}, which costs nothing."
        return [Cell("Too few errors"), advice]
    pairs = f"{100 * number(dataset.reference['auroc']):.1f}"
    start = "it trusts the wrong one less in "
    end: list[Words] = [f"{start}{pairs} of 100 pairs."]
    if dataset.best is not None:
        auroc = dataset.best["auroc"]
        end = [start, Cell(f"{100 * auroc:.1f}", auroc), f" of 100 pairs, {MCP} in {pairs}."]
    return ["Use ", Cell(label(dataset.method)), ": of a right and a wrong answer ", *end]


def _key_figures(dataset: StudyDataset) -> list[Figure]:
    """The gain of the best method, what is wrong among 90 %, and the number of errors."""
    best, reference, name = dataset.best, dataset.reference, dataset.name
    if reference is None:
        return [Figure("n/a", f"{name}: nothing is compared")]
    gain = Figure("none", f"{name}: no method is shown to rank the errors better than MCP")
    if best is not None:
        cell = difference_cell(best, "auroc")
        gain = Figure(
            cell.text,
            f"points of AUROC, {label(best['method'])} against {MCP} on {name}, {cell.spread} with "
            "95 % certainty",
        )
    beside = "" if dataset.method == REFERENCE else f"; {MCP}: {_risk_at_90(reference)}"
    return [
        gain,
        Figure(
            _risk_at_90(reference if best is None or not beside else best),
            f"wrong among the 90 % that {label(dataset.method)} trusts most{beside}",
        ),
        Figure(
            f"{reference['errors']:,.0f}",
            f"errors of {int(reference['n']):,} test answers for the methods to find",
        ),
    ]


def _risk_at_90(row: Row) -> str:
    name = "risk_at_coverage_90"
    return f"{cells.printed(number(row.get(name)), name)} %"


def _steps(first: StudyDataset, seeds: int) -> list[Step]:
    steps = [Step("Look at the errors that are trusted most.", link="#check-these-first")]
    if seeds < 5:
        sentence = (
            f"{count_of(seeds, 'seed')} say little about how much another training would change; "
            "the same command adds more:"
        )
        steps.append(Step(sentence, "--seeds=5"))
    if first.best is not None:
        methods = ",".join(dict.fromkeys((REFERENCE, first.best["method"])))
        command = f"python -m btcp_tf.main --dataset={first.name} --method={methods}"
        steps.append(Step("Train it by itself:", command))
    return steps


def recommend(dataset: StudyDataset) -> list[Block]:
    """Which method to use on one data set, by how much, and with what certainty."""
    difference = tables.difference_table(dataset.test)
    reference, errors = dataset.reference, dataset.errors
    if reference is None:
        return [difference]
    fewest, most = min(errors), max(errors)
    counts = f"{fewest:,}" + (f" to {most:,}" if most > fewest else "")
    return [
        Heading(dataset.name),
        pages.text(
            f"{count_of(len(errors), 'seed')}, {int(reference['n']):,} test images, of which the "
            "classifiers get ",
            metric_in_percent(reference, "accuracy"),
            " right: ",
            Cell(counts),
            f" errors{' each' * (len(errors) > 1)} for the methods to find. {MCP}, which costs "
            "nothing, trusts an error less than a correct answer with probability ",
            metric_in_percent(reference, "auroc"),
            " (AUROC).",
        ),
        _choice(dataset),
        *_btcp(dataset.test),
        *_ood(dataset),
        difference,
    ]


def _choice(dataset: StudyDataset) -> Text:
    rows, best = candidates(dataset.test), dataset.best
    counts = ", ".join(
        f"{sum(row['verdict'] == verdict for row in rows)} {verdict}"
        for verdict in ("better", "not distinguishable", "worse")
    )
    tally = f"Methods against {MCP}, by AUROC with paired 95 % intervals: {counts}."
    if not rows:
        return pages.text("No other method was compared.")
    if dataset.too_few_errors:
        return pages.text(
            Cell(f"Fewer than {cells.MIN_ERRORS_TO_COMPARE} errors cannot choose a method."),
            f" Without more data take {MCP}, which costs nothing. {tally} With so few errors these "
            "intervals are uncertain themselves.",
        )
    if best is None:
        nothing = " No other method is shown to rank the errors better. "
        return pages.text(Cell(f"Use {MCP}."), nothing + tally)
    return pages.text(
        Cell(f"Use {label(best['method'])}."),
        f" It ranks the errors better than {MCP}: ",
        *_gain(best),
        ". ",
        *(_cheaper(rows) if _needs_more(best) else ()),
        tally,
    )


def _gain(row: Row) -> list[Words]:
    """What a method changes in ranking, beside MCP."""
    return ["AUROC ", difference_cell(row, "auroc"), ", AURC × 1000 ", difference_cell(row, "aurc")]


def _needs_more(row: Row) -> bool:
    """Whether a method needs many passes or classifiers."""
    return row["method"] in METHODS and bool(METHODS[row["method"]].samples)


def _cheaper(rows: Iterable[Row]) -> list[Words]:
    """The best method that needs one pass."""
    start = "It takes many passes or classifiers for each answer; "
    cheap = best_of(row for row in rows if not _needs_more(row))
    if cheap is None:
        return [f"{start}of those that take one, none is better than {MCP}. "]
    name = label(cheap["method"])
    gain = difference_cell(cheap, "auroc")
    return [f"{start}the best that takes one is {name}, AUROC ", gain, ". "]


def _btcp(test: Sequence[Row]) -> list[Block]:
    """Whether BTCP beats the MCP of its classifier, in ranking and at the threshold."""
    bases = {(row["stage"], row["answers"]): row for row in test if row["method"] == REFERENCE}
    cubed = next((row for row in test if row["method"] == "mcp_cubed"), None)
    return [
        _btcp_text(
            row, bases[row["stage"], row["answers"]], None if row["stage"] == FINETUNED else cubed
        )
        for row in cells.ordered(test)
        if row["method"] == "btcp" and row.get("verdict")
    ]


def _btcp_text(row: Row, base: Row, cubed: Row | None) -> Text:
    """BTCP beside the MCP of its classifier, and the cube of MCP, which moves tau alone."""
    name, reference = cells.who(row), cells.who(base)
    verdict = {
        "better": f"{name} beats {reference} in ranking errors",
        "worse": f"{name} does not beat {reference}: it ranks errors worse",
    }.get(row["verdict"], f"{name} and {reference} are not distinguishable in ranking errors")
    control: list[Words] = []
    if cubed is not None:
        control = [
            f"; {label('mcp_cubed')}, which ranks exactly as {MCP} and knows nothing more, has ",
            metric_in_percent(cubed, "bacc"),
        ]
    return pages.text(
        Cell(verdict),
        " (",
        *_gain(row),
        f"). At tau = {row['tau']:g} its BACC is ",
        metric_in_percent(row, "bacc"),
        " against ",
        metric_in_percent(base, "bacc"),
        *control,
        ".",
    )


def _ood(dataset: StudyDataset) -> list[Block]:
    """Which method separates the images of each OOD set best."""
    names = filter(None, cells.by(dataset.over_seeds, "ood"))
    compared = {name: candidates(cells.only(dataset.over_seeds, "ood", name)) for name in names}
    return [_ood_text(name, rows) for name, rows in compared.items() if rows]


def _ood_text(name: str, rows: Sequence[Row]) -> Text:
    best = best_of(rows)
    start: list[Words] = [
        f"No method is shown to separate images of {name} from test images better than {MCP} "
        "(AUROC)"
    ]
    if best is not None:
        start = [
            f"Images of {name} are separated from test images best by ",
            Cell(label(best["method"])),
            ": AUROC ",
            metric_in_percent(best, "auroc"),
            f", difference to {MCP} ",
            difference_cell(best, "auroc"),
        ]
    for row in rows:
        if row["method"] == "btcp" and row is not best:
            start += [f"; {label('btcp')} ", difference_cell(row, "auroc")]
    return pages.text(*start, ".")
