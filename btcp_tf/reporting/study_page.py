"""The page of a study."""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.evaluation import results
from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, ImageSet, Predictor, predictions_file
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.evaluation.seeds import across_seeds
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import cells, figures, gallery, pages, tables
from btcp_tf.reporting.cells import (
    FEW_ERRORS,
    Cell,
    Row,
    Words,
    by,
    difference_cell,
    label,
    number,
    only,
    with_answers,
)
from btcp_tf.reporting.class_failures import per_class
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.glossary import explanations, folded_table
from btcp_tf.reporting.headline import metric_in_percent, risk_chart
from btcp_tf.reporting.notes import PAPER_NOTE, PART_NOTE, merge_notes, uses_all_data
from btcp_tf.reporting.other_images import other_images
from btcp_tf.reporting.pages import Block, Heading, Report, Text
from btcp_tf.reporting.paper import PAPER
from btcp_tf.reporting.pictures import Pictures
from btcp_tf.reporting.saved_run import load_history, load_if_saved, load_predictions


@dataclasses.dataclass(frozen=True)
class _Dataset:
    """What a study holds about one data set."""

    name: str
    folder: Path
    """The study's."""
    rows: Sequence[Row]
    """Of single runs, ablations included."""
    class_names: Sequence[str] | None

    @functools.cached_property
    def plain(self) -> list[Row]:
        """Rows of single runs without ablations."""
        return [row for row in self.rows if not row["ablation"]]

    @functools.cached_property
    def over_seeds(self) -> list[dict[str, Any]]:
        """Rows over seeds with `answers`."""
        return across_seeds(with_answers(self.plain))

    @functools.cached_property
    def test(self) -> list[Row]:
        """Rows over seeds of failure prediction on the test set."""
        return only(self.over_seeds)

    @functools.cached_property
    def cells(self) -> list[str]:
        """Names of the runs' folders, in order of appearance."""
        return list(by(only(self.plain), "cell"))

    @functools.cached_property
    def predictions(self) -> dict[str, dict[Predictor, Predictions]]:
        """Name of a run -> its test predictions; of runs whose files exist."""
        saved = {cell: load_predictions(self.folder / cell, self.plain) for cell in self.cells}
        return {cell: found for cell, found in saved.items() if found}

    @functools.cached_property
    def history(self) -> list[dict[str, Any]]:
        """Rows per epoch of all runs."""
        return [r for cell in self.cells for r in load_history(self.folder / cell / "history.csv")]

    @functools.cached_property
    def reference(self) -> Row | None:
        """The row of the frozen classifier's MCP."""
        rows = (r for r in self.test if r["method"] == REFERENCE and r["stage"] != "finetuned")
        return next(rows, None)

    @functools.cached_property
    def errors(self) -> list[int]:
        """Errors of each seed's frozen classifier."""
        rows = [row for row in only(self.plain) if row["stage"] != "finetuned"]
        return [row["errors"] for row in rows if row["method"] == REFERENCE]

    @functools.cached_property
    def few(self) -> bool:
        """Whether there are too few errors to choose a method by."""
        rows = [row for row in only(self.plain) if row["stage"] != "finetuned"]
        return min(row["errors"] for row in rows) < FEW_ERRORS

    @functools.cached_property
    def candidates(self) -> list[Row]:
        return _candidates(self.test)

    @functools.cached_property
    def best(self) -> Row | None:
        """The method that ranks the errors better than MCP; None: none is shown to."""
        return _best(self.candidates)

    @property
    def method(self) -> str:
        """The method to use."""
        return REFERENCE if self.best is None or self.few else self.best["method"]


def write_study_report(
    folder: str | os.PathLike,
    rows: Sequence[Row] | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    output_dir: str | os.PathLike | None = None,
) -> Path:
    """Writes `report.html`, `report.md`, `tables/` and `figures/` of a study.

    Args:
      folder: The study's folder. From the runs in it, `<cell>/`, come predictions, history and
        the pictures of errors; what is missing there is left out.
      rows: Rows of all runs, with `cell` (name of the run's folder) and `ablation` (the changed
        setting, "" elsewhere). None: those of the folder's `results.json`, and `extra` with them.
      extra: `cells` (settings by cell), `data` (by data set: `class_names`, `note`), `notes` (note
        -> cells), `environment`, `failed` (message by cell), `command` (words). All may be missing.
      output_dir: Where to write; None: `folder`.

    Returns:
      Path of `report.html`.
    """
    folder = Path(folder)
    if rows is None:
        rows, extra = results.load_rows(folder / "results.json")
    extra = extra or {}
    rows = [{"ablation": "", "cell": f"{row['dataset']}-seed{row['seed']}", **row} for row in rows]
    plain = [row for row in rows if not row["ablation"]]
    data = extra.get("data", {})
    datasets = [
        _Dataset(
            name,
            folder,
            [row for row in rows if row["dataset"] == name],
            data.get(name, {}).get("class_names"),
        )
        for name in by(plain, "dataset")
    ]
    settings = extra.get("cells", {})
    whole = all(uses_all_data(settings.get(cell, {})) for d in datasets for cell in d.cells)
    environment = extra.get("environment", {})
    report = Report(
        f"Which answers are wrong? {', '.join(d.name for d in datasets)}",
        _study_notes(plain, extra),
        [
            ("Which method to use", _each(datasets, _recommend)),
            ("Check these first", _each(datasets, _errors_to_check)),
            ("Failure prediction", _failure_prediction(datasets, whole)),
            (
                "OOD detection, joint task, covariate shift",
                _each(datasets, lambda d: other_images(d.over_seeds, d.plain, whole)),
            ),
            ("What the loss does", _each(datasets, _ablation)),
            ("Figures", [*_some(figures.draw_ranks(_shared(plain))), *_each(datasets, _figures)]),
            ("Failures per class", _each(datasets, _failures_per_class)),
            ("All metrics", [tables.all_metrics_table(d.test) for d in datasets]),
            *explanations(plain),
            ("Settings", _study_settings(datasets, extra)),
            ("Environment", folded_table(environment, "environment", "Where it ran")),
        ],
        _study_glance(datasets),
    )
    return pages.write_report(Path(output_dir or folder), report, files=True)


def _each(datasets: Iterable[_Dataset], section: Any) -> list[Block]:
    """The blocks of a section for one data set after the other."""
    return [block for dataset in datasets for block in section(dataset)]


def _some(*drawings: Drawing | None) -> list[Drawing]:
    return [drawing for drawing in drawings if drawing is not None]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"


# The first screen: which method to use, and how sure that is.


def _study_glance(datasets: Sequence[_Dataset]) -> Glance:
    first = datasets[0]
    seeds = max(len(by(d.plain, "seed")) for d in datasets)
    if len(datasets) == 1:
        state, sentence, shown = _state(first), _sentence(first), _key_figures(first)
    else:
        better = [d for d in datasets if d.best is not None and not d.few]
        state = State(
            "holds" if len(better) == len(datasets) else "open" if better else "none",
            f"better than {label(REFERENCE)} on {len(better)} of {len(datasets)} data sets",
        )
        sentence = [f"Use {', '.join(f'{label(d.method)} on {d.name}' for d in datasets)}."]
        shown = [_key_figures(d)[0] for d in datasets]
    chart = None
    shared = first.predictions.get(first.cells[0], {}).get(CLASSIFIER)
    if shared and first.method in shared.uncertainty:
        chart = risk_chart(shared, first.method, None)
    methods = dict.fromkeys(row["method"] for d in datasets for row in d.test)
    return Glance(
        state,
        f"{', '.join(d.name for d in datasets)} · {_plural(seeds, 'seed')} · "
        f"{len(methods)} methods on the same classifiers",
        sentence,
        shown,
        _steps(first, seeds),
        f"Wrong among the accepted: {first.name}, first seed",
        chart,
    )


def _steps(first: _Dataset, seeds: int) -> list[Step]:
    steps = [Step("Look at the errors that are trusted most.", link="#check-these-first")]
    if seeds < 5:
        sentence = (
            f"{_plural(seeds, 'seed')} say little about how much another training would change; "
            "the same command adds more:"
        )
        steps.append(Step(sentence, "--seeds=5"))
    if first.best is not None:
        methods = ",".join(dict.fromkeys((REFERENCE, first.best["method"])))
        command = f"python -m btcp_tf.main --dataset={first.name} --method={methods}"
        steps.append(Step("Train it by itself:", command))
    return steps


def _state(dataset: _Dataset) -> State:
    if dataset.few:
        return State("open", "too few errors to tell")
    if dataset.best is None:
        return State("none", f"none shown better than {label(REFERENCE)}")
    return State("holds", f"better than {label(REFERENCE)}")


def _sentence(dataset: _Dataset) -> list[Words]:
    reference, best = dataset.reference, dataset.best
    if reference is None:
        return [f"Nothing is compared: there is no {label(REFERENCE)} among the methods."]
    if dataset.few:
        advice = f" to choose a method: take {label(REFERENCE)}, which costs nothing."
        return [Cell("Too few errors"), advice]
    start: list[Words] = ["Use ", Cell(label(dataset.method)), ": of a right and a wrong answer "]
    pairs = 100 * number(reference["auroc"])
    if best is None:
        return [*start, f"it trusts the wrong one less in {pairs:.1f} of 100 pairs."]
    return [
        *start,
        "it trusts the wrong one less in ",
        Cell(f"{100 * best['auroc']:.1f}", best["auroc"]),
        f" of 100 pairs, {label(REFERENCE)} in {pairs:.1f}.",
    ]


def _key_figures(dataset: _Dataset) -> list[Figure]:
    best, reference, name = dataset.best, dataset.reference, dataset.name
    if reference is None:
        return [Figure("n/a", f"{name}: nothing is compared")]
    gain = Figure("none", f"{name}: no method is shown to rank the errors better than MCP")
    if best is not None:
        cell = difference_cell(best, "auroc")
        gain = Figure(
            cell.text,
            f"points of AUROC, {label(best['method'])} against {label(REFERENCE)} on {name}, "
            f"{cell.spread} with 95 % certainty",
        )
    chosen = reference if best is None or dataset.few else best
    risks = [
        f"{cells.printed(number(row.get('risk_at_coverage_90')), 'risk_at_coverage_90')} %"
        for row in (chosen, reference)
    ]
    beside = f"; {label(REFERENCE)}: {risks[1]}" if chosen is not reference else ""
    return [
        gain,
        Figure(risks[0], f"wrong among the 90 % that {label(dataset.method)} trusts most{beside}"),
        Figure(
            f"{reference['errors']:,.0f}",
            f"errors of {int(reference['n']):,} test answers for the methods to find",
        ),
    ]


# Which method to use.


def _recommend(dataset: _Dataset) -> list[Block]:
    """Which method to use on one data set, by how much, and with what certainty."""
    difference = tables.difference_table(dataset.test)
    reference, errors, seeds = dataset.reference, dataset.errors, len(dataset.errors)
    if reference is None:
        return [difference]
    counts = f"{min(errors):,}" + (f" to {max(errors):,}" if max(errors) > min(errors) else "")
    return [
        Heading(dataset.name),
        pages.text(
            f"{_plural(seeds, 'seed')}, {int(reference['n']):,} test images, of which the "
            "classifiers get ",
            metric_in_percent(reference, "accuracy"),
            " right: ",
            Cell(counts, None),
            f" errors{' each' * (seeds > 1)} for the methods to find. {label(REFERENCE)}, which "
            "costs nothing, trusts an error less than a correct answer with probability ",
            metric_in_percent(reference, "auroc"),
            " (AUROC).",
        ),
        _recommendation(dataset),
        *_btcp(dataset.test),
        *(
            text
            for ood in by(dataset.over_seeds, "ood")
            if ood
            for text in _ood_text(only(dataset.over_seeds, "ood", ood), ood)
        ),
        difference,
    ]


def _candidates(rows: Iterable[Row]) -> list[Row]:
    """What a user could take instead of MCP on the same classifier."""
    return [
        row
        for row in rows
        if row["stage"] != "finetuned"
        and not row["answers"]
        and row["method"] != REFERENCE
        and row.get("verdict")
        and cells.is_candidate(row["method"])
        # A method that moves tau alone ranks as its base.
        and not (row["method"] in METHODS and METHODS[row["method"]].column_of)
    ]


def _tally(rows: Sequence[Row]) -> str:
    counts = ", ".join(
        f"{sum(row['verdict'] == verdict for row in rows)} {verdict}"
        for verdict in ("better", "not distinguishable", "worse")
    )
    return f"Methods against {label(REFERENCE)}, by AUROC with paired 95 % intervals: {counts}."


def _best(rows: Iterable[Row]) -> Row | None:
    better = [row for row in rows if row["verdict"] == "better"]
    return max(better, key=lambda row: row[f"auroc_minus_{REFERENCE}"], default=None)


def _needs_more(name: str) -> bool:
    """Whether a method needs many passes or classifiers."""
    return name in METHODS and bool(METHODS[name].samples)


def _recommendation(dataset: _Dataset) -> Text:
    rows, best = dataset.candidates, dataset.best
    if not rows:
        return pages.text("No other method was compared.")
    if dataset.few:
        return pages.text(
            Cell(f"Fewer than {FEW_ERRORS} errors cannot choose a method."),
            f" Without more data take {label(REFERENCE)}, which costs nothing. {_tally(rows)} With "
            "so few errors these intervals are uncertain themselves.",
        )
    if best is None:
        return pages.text(
            Cell(f"Use {label(REFERENCE)}."),
            f" No other method is shown to rank the errors better. {_tally(rows)}",
        )
    return pages.text(
        Cell(f"Use {label(best['method'])}."),
        f" It ranks the errors better than {label(REFERENCE)}: AUROC ",
        difference_cell(best, "auroc"),
        ", AURC × 1000 ",
        difference_cell(best, "aurc"),
        ". ",
        *(_cheaper(rows) if _needs_more(best["method"]) else ()),
        _tally(rows),
    )


def _cheaper(rows: Sequence[Row]) -> list[Words]:
    """The best method that needs one pass."""
    start = "It takes many passes or classifiers for each answer; "
    cheap = _best(row for row in rows if not _needs_more(row["method"]))
    if cheap is None:
        return [f"{start}of those that take one, none is better than {label(REFERENCE)}. "]
    return [
        f"{start}the best that takes one is {label(cheap['method'])}, AUROC ",
        difference_cell(cheap, "auroc"),
        ". ",
    ]


def _btcp(test: Sequence[Row]) -> list[Block]:
    """Whether BTCP beats the MCP of its classifier, in ranking and at the threshold."""
    cubed = next((row for row in test if row["method"] == "mcp_cubed"), None)
    blocks: list[Block] = []
    for row in cells.ordered(test):
        if row["method"] == "btcp" and row.get("verdict"):
            same = ("stage", "answers")
            (base, *_) = (
                other
                for other in test
                if other["method"] == REFERENCE and all(other[key] == row[key] for key in same)
            )
            shown = None if row["stage"] == "finetuned" else cubed
            blocks.append(_btcp_text(row, base, shown))
    return blocks


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
            f"; {label('mcp_cubed')}, which ranks exactly as {label(REFERENCE)} and knows nothing "
            "more, has ",
            metric_in_percent(cubed, "bacc"),
        ]
    return pages.text(
        Cell(verdict),
        " (AUROC ",
        difference_cell(row, "auroc"),
        ", AURC × 1000 ",
        difference_cell(row, "aurc"),
        f"). At tau = {row['tau']:g} its BACC is ",
        metric_in_percent(row, "bacc"),
        " against ",
        metric_in_percent(base, "bacc"),
        *control,
        ".",
    )


def _ood_text(rows: Sequence[Row], ood: str) -> list[Block]:
    compared = _candidates(rows)
    if not compared:
        return []
    best = _best(compared)
    start: list[Words] = [
        f"No method is shown to separate images of {ood} from test images better than "
        f"{label(REFERENCE)} (AUROC)"
    ]
    if best is not None:
        start = [
            f"Images of {ood} are separated from test images best by ",
            Cell(label(best["method"])),
            ": AUROC ",
            metric_in_percent(best, "auroc"),
            f", difference to {label(REFERENCE)} ",
            difference_cell(best, "auroc"),
        ]
    for row in compared:
        if row["method"] == "btcp" and row is not best:
            start += [f"; {label('btcp')} ", difference_cell(row, "auroc")]
    return [pages.text(*start, ".")]


# Other sections.


def _failure_prediction(datasets: Sequence[_Dataset], whole: bool) -> list[Block]:
    blocks: list[Block] = []
    if any(dataset.name in PAPER for dataset in datasets):
        blocks.append(pages.text(PAPER_NOTE if whole else PART_NOTE))
    for dataset in datasets:
        blocks.append(tables.failure_table(dataset.test, paper=whole))
        blocks.append(tables.ranking_table(dataset.test))
    return blocks


def _ablation(dataset: _Dataset) -> list[Block]:
    rows = only(dataset.rows)
    changed = [row for row in rows if row["ablation"]]
    classifiers = {row["classifier_id"] for row in changed}
    base = [
        row
        for name in (REFERENCE, "tcp", "btcp")
        for row in rows
        if not row["ablation"] and row["classifier_id"] in classifiers and row["method"] == name
    ]
    if not base:
        return []
    drawing = figures.draw_ablation(changed, base, dataset.name)
    return [drawing, tables.ablation_table(changed, base)]


def _figures(dataset: _Dataset) -> list[Drawing]:
    name, tau = dataset.name, dataset.plain[0]["tau"]
    drawings: list[Drawing | None] = []
    for cell, predictions in [*dataset.predictions.items()][:1]:
        frozen = predictions[CLASSIFIER]
        files = {
            ood: dataset.folder / cell / predictions_file(ImageSet("ood", ood))
            for ood in by(dataset.plain, "ood")
            if ood
        }
        others = {ood: saved for ood, file in files.items() if (saved := load_if_saved(file))}
        drawings += [
            figures.draw_histograms(frozen, name, tau),
            figures.draw_risk_coverage(frozen, name),
            figures.draw_confidence(frozen, others, name),
        ]
    estimators = [
        row for row in dataset.history if Predictor.from_text(row["stage"]).stage != FINETUNED
    ]
    if estimators:
        drawings.append(figures.draw_rates_per_epoch(estimators, name, tau))
        drawings.append(figures.draw_u_per_epoch(estimators, name))
    return _some(*drawings, figures.draw_shift(_shared(dataset.over_seeds, splits=True), name))


def _shared(rows: Iterable[Row], *, splits: bool = False) -> list[Row]:
    """Rows of failure prediction about the shared frozen classifiers.

    Args:
      rows: Rows of single runs, or over seeds with `answers`.
      splits: Whether to keep the rows of shifted test images.
    """
    rows = list(rows)
    return [
        row
        for row in (rows if "answers" in rows[0] else with_answers(rows))
        if row.get("task", "failure") == "failure"
        and row["stage"] != "finetuned"
        and not row["answers"]
        and (splits or ":" not in row["split"])
    ]


def _failures_per_class(dataset: _Dataset) -> list[Block]:
    frozen = [predictions[CLASSIFIER] for predictions in dataset.predictions.values()]
    return per_class(frozen, dataset.class_names, dataset.name) if frozen else []


def _errors_to_check(dataset: _Dataset) -> list[Block]:
    """The wrong answers of the first seed's frozen classifier that a person should look at."""
    seeds = [predictions[CLASSIFIER] for predictions in dataset.predictions.values()]
    method = dataset.method
    if not seeds or method not in seeds[0].uncertainty or not seeds[0].is_error.any():
        return []
    p = seeds[0]
    kept = Pictures.load(dataset.folder / next(iter(dataset.predictions)) / "figures")
    remarks = {}
    if len(seeds) > 1:
        for row in np.flatnonzero(p.is_error).tolist():
            same = sum(other.predicted[row] == p.predicted[row] for other in seeds)
            remarks[row] = f"the same in {same} of {len(seeds)} seeds"
    tau = next(row["tau"] for row in only(dataset.plain) if row["method"] == method)
    return [
        pages.text(
            f"{dataset.name}, first seed, frozen classifier: wrong on {int(p.is_error.sum()):,} of "
            f"{len(p.is_error):,} test images, here by u of {label(method)}."
        ),
        gallery.build(
            p,
            method,
            tau,
            class_names=dataset.class_names,
            pictures=kept.images,
            names=kept.names,
            links=kept.links,
            picked=gallery.pick_errors(p.is_error, p.uncertainty, method),
            remarks=remarks,
            name=dataset.name,
        ),
    ]


def _study_notes(rows: Sequence[Row], extra: Mapping[str, Any]) -> list[str]:
    notes = [f"{cell} failed: {why}" for cell, why in extra.get("failed", {}).items()]
    notes += _notes_of_runs(set(by(rows, "cell")), extra.get("notes", {}))
    seeds = max(len(by(group, "seed")) for group in by(rows, "dataset").values())
    if seeds == 1:
        notes.append("One seed: nothing here says how much another training would change.")
    elif seeds == 2:
        notes.append(
            "2 seeds: one difference is all that is known of the spread, and the intervals are so "
            "wide that hardly any two methods can be distinguished; take 3 or more."
        )
    elif seeds < 5:
        notes.append(f"{seeds} seeds: the spread over seeds is only roughly known.")
    notes.append(
        "A verdict is about one comparison; among twenty methods that do not differ, one is "
        "expected to be called better or worse. The best of many looks better on these test "
        "images than it will on others."
    )
    return merge_notes(notes)


def _notes_of_runs(cells: set[str], notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes of runs; those that differ in their numbers alone are one with ranges.

    Args:
      cells: Names of all runs.
      notes: Note -> names of the runs that have it.
    """
    alike: dict[str, dict[str, Sequence[str]]] = {}
    for note, where in notes.items():
        alike.setdefault(_NUMBER.sub("#", note), {})[note] = where
    merged = []
    for group in alike.values():
        where_ = dict.fromkeys(cell for names in group.values() for cell in names)
        suffix = "" if cells <= set(where_) else f" ({', '.join(where_)})"
        merged.append(_with_ranges([*group]) + suffix)
    return merged


_NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]\d+)?")


def _with_ranges(notes: Sequence[str]) -> str:
    """One sentence for several that differ in their numbers.

    Example:
      >>> _with_ranges(["12 errors of 100", "15 errors of 100"])
      '12 to 15 errors of 100'
    """
    ranges = []
    for numbers in zip(*map(_NUMBER.findall, notes), strict=True):
        ordered = sorted(set(numbers), key=lambda text: float(text.replace(",", "")))
        ranges.append(" to ".join(dict.fromkeys((ordered[0], ordered[-1]))))
    return _NUMBER.sub(lambda _: ranges.pop(0), notes[0])


def _study_settings(datasets: Sequence[_Dataset], extra: Mapping[str, Any]) -> list[Block]:
    settings = extra.get("cells", {})
    if not settings:
        return []
    shown = {cell: settings[cell] for d in datasets for cell in d.cells if cell in settings}
    runs: list[Mapping[str, Any]] = [*shown.values()] or [{}]
    common = {
        key: value for key, value in runs[0].items() if all(run.get(key) == value for run in runs)
    }
    single = {
        f"{cell}: {key}": value
        for cell, values in shown.items()
        for key, value in values.items()
        if key not in common
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    command = " ".join(extra.get("command", []))
    return [
        pages.text(f"Hash of all settings: {digest}." + f" Command: {command}" * bool(command)),
        *folded_table(common, "settings", "Settings of all runs"),
        *folded_table(single, "settings_of_runs", "Settings that differ between runs"),
    ]
