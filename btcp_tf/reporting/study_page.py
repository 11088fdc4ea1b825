"""The page of a study."""

import dataclasses
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
from btcp_tf.reporting import cells as cells_
from btcp_tf.reporting import gallery, page_parts, pages, tables
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
    printed,
    who,
    with_answers,
)
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.figures import (
    draw_ablation,
    draw_confidence,
    draw_histograms,
    draw_ranks,
    draw_rates_per_epoch,
    draw_risk_coverage,
    draw_shift,
    draw_u_per_epoch,
)
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.page_parts import PAPER_WORDS, PART_WORDS, Kept
from btcp_tf.reporting.pages import Block, Details, Heading, Report, Text
from btcp_tf.reporting.paper import PAPER


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
        the pixels of errors; what is missing there is left out.
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
    seen = across_seeds(with_answers(plain))
    datasets = list(by(plain, "dataset"))
    cells = {name: list(by(only(page_parts.plain_of(plain, name)), "cell")) for name in datasets}
    settings = extra.get("cells", {})
    whole = all(
        page_parts.whole_number(settings.get(cell, {}))
        for names in cells.values()
        for cell in names
    )
    sections: dict[str, list[Block]] = {
        heading: []
        for heading in (
            "Which method to use",
            "Check these first",
            "Failure prediction",
            "OOD detection, joint task, covariate shift",
            "What the loss does",
            "Figures",
            "Failures per class",
            "All metrics",
        )
    }
    ranks = draw_ranks(_shared(plain))
    if len(datasets) and ranks:
        sections["Figures"].append(ranks)
    if any(name in PAPER for name in datasets):
        sections["Failure prediction"].append(pages.text(PAPER_WORDS if whole else PART_WORDS))
    for name in datasets:
        found = page_parts.plain_of(seen, name)
        test = only(found)
        sections["Which method to use"] += [*_summary(found, page_parts.plain_of(plain, name))]
        sections["Which method to use"].append(tables.difference_table(test))
        sections["Failure prediction"] += [
            tables.failure_table(test, paper=whole),
            tables.ranking_table(test),
        ]
        sections["OOD detection, joint task, covariate shift"] += page_parts.other_images(
            found, page_parts.plain_of(plain, name), whole
        )
        sections["What the loss does"] += _ablation(page_parts.plain_of(rows, name))
        data = extra.get("data", {}).get(name, {})
        about_cells = _cell_blocks(
            folder,
            name,
            cells[name],
            page_parts.plain_of(plain, name),
            data.get("class_names"),
            _winner(name, plain, seen).method,
        )
        shift = draw_shift(_shared(found, splits=True), name)
        for heading, blocks in about_cells.items():
            sections[heading] += blocks
        sections["Figures"] += [shift] if shift else []
        sections["All metrics"].append(tables.all_metrics_table(test))
    common, others = _settings(settings, [cell for names in cells.values() for cell in names])
    report = Report(
        f"Which answers are wrong? {', '.join(datasets)}",
        _study_notes(plain, extra),
        [
            *sections.items(),
            *page_parts.appendix(plain, common, extra.get("environment", {}))[:2],
            ("Settings", _study_settings(common, others, extra)),
            *page_parts.appendix(plain, {}, extra.get("environment", {}))[3:],
        ],
        _study_glance(folder, plain, seen, cells),
    )
    return pages.write_report(Path(output_dir or folder), report, files=True)


def _study_glance(
    folder: Path,
    plain: Sequence[Row],
    seen: Sequence[Row],
    cells: Mapping[str, Sequence[str]],
) -> Glance:
    """The first screen of a study: which method to use, and how sure that is.

    Args:
      folder: The study's, with its runs.
      plain: Rows of single runs.
      seen: Rows over seeds with `answers`.
      cells: Names of the runs by data set.
    """
    found = [_winner(name, plain, seen) for name in cells]
    better = [winner for winner in found if winner.best is not None and not winner.few]
    first = found[0]
    seeds = max(len(by(group, "seed")) for group in by(plain, "dataset").values())
    if len(found) == 1:
        state, words, figures = first.state(), first.sentence(), first.figures()
    else:
        state = State(
            "holds" if len(better) == len(found) else "open" if better else "none",
            f"better than {label(REFERENCE)} on {len(better)} of {len(found)} data sets",
        )
        words = [f"Use {', '.join(w.name + ' on ' + w.dataset for w in found)}."]
        figures = [winner.figures()[0] for winner in found]
    steps = [Step("Look at the errors that are trusted most.", link="#check-these-first")]
    if seeds < 5:
        steps.append(
            Step(
                f"{seeds} seed{'s' * (seeds > 1)} tell little of how much another training would "
                "change; the same command goes on with more:",
                "--seeds=5",
            )
        )
    if first.best is not None:
        steps.append(
            Step(
                "Train it by itself:",
                f"python -m btcp_tf.main --dataset={first.dataset} "
                f"--method={','.join(dict.fromkeys((REFERENCE, first.best['method'])))}",
            )
        )
    predictions = page_parts.load_predictions(
        folder / cells[first.dataset][0], page_parts.plain_of(plain, first.dataset)
    )
    chart = None
    shared = predictions.get(CLASSIFIER)
    if shared and first.method in shared.uncertainty:
        chart = page_parts.curve_of(shared, first.method, None)
    return Glance(
        state,
        f"{', '.join(cells)} · {seeds} seed{'s' * (seeds > 1)} · "
        f"{len(by(only(seen), 'method'))} methods on the same classifiers",
        words,
        figures,
        steps,
        f"Wrong among the accepted: {first.dataset}, first seed",
        chart,
    )


@dataclasses.dataclass(frozen=True)
class _Winner:
    """What a data set's rows say about the method to use."""

    dataset: str
    best: Row | None
    """Of the method that ranks the errors better than MCP; None: none is shown to."""
    reference: Row | None
    few: bool
    """Whether there are too few errors to choose by."""

    @property
    def method(self) -> str:
        return REFERENCE if self.best is None or self.few else self.best["method"]

    @property
    def name(self) -> str:
        return label(self.method)

    def state(self) -> State:
        if self.few:
            return State("open", "too few errors to tell")
        if self.best is None:
            return State("none", f"none shown better than {label(REFERENCE)}")
        return State("holds", f"better than {label(REFERENCE)}")

    def sentence(self) -> list[Words]:
        if self.reference is None:
            return [f"Nothing is compared: there is no {label(REFERENCE)} among the methods."]
        if self.few:
            return [
                Cell("Too few errors"),
                f" to choose a method: take {label(REFERENCE)}, which costs nothing.",
            ]
        words: list[Words] = ["Use ", Cell(self.name), ": of a right and a wrong answer "]
        pairs = 100 * number(self.reference["auroc"])
        if self.method == REFERENCE:
            return [*words, f"it trusts the wrong one less in {pairs:.1f} of 100 pairs."]
        assert self.best is not None, "it is the method"
        return [
            *words,
            "it trusts the wrong one less in ",
            Cell(f"{100 * self.best['auroc']:.1f}", self.best["auroc"]),
            f" of 100 pairs, {label(REFERENCE)} in {pairs:.1f}.",
        ]

    def figures(self) -> list[Figure]:
        row, reference = self.best, self.reference
        if reference is None:
            return [Figure("n/a", f"{self.dataset}: nothing is compared")]
        against = f"{self.dataset}: no method is shown to rank the errors better than MCP"
        shown = Figure("none", against)
        if row is not None:
            cell = difference_cell(row, "auroc")
            shown = Figure(
                cell.text,
                f"points of AUROC, {label(row['method'])} against {label(REFERENCE)} on "
                f"{self.dataset}, {cell.spread} with 95 % certainty",
            )
        chosen = reference if row is None or self.few else row
        risks = [
            f"{printed(number(r.get('risk_at_coverage_90')), 'risk_at_coverage_90')} %"
            for r in (chosen, reference)
        ]
        beside = f"; {label(REFERENCE)}: {risks[1]}" if chosen is not reference else ""
        return [
            shown,
            Figure(risks[0], f"wrong among the 90 % that {self.name} trusts most{beside}"),
            Figure(
                f"{reference['errors']:,.0f}",
                f"errors of {int(reference['n']):,} test answers for the methods to find",
            ),
        ]


def _winner(dataset: str, plain: Sequence[Row], seen: Sequence[Row]) -> _Winner:
    test = only(page_parts.plain_of(seen, dataset))
    reference = next(
        (row for row in test if row["method"] == REFERENCE and row["stage"] != "finetuned"), None
    )
    errors = [
        row["errors"]
        for row in only(page_parts.plain_of(plain, dataset))
        if row["stage"] != "finetuned"
    ]
    return _Winner(dataset, _best(_candidates(test)), reference, min(errors) < FEW_ERRORS)


def _shared(rows: Iterable[Row], *, splits: bool = False) -> list[dict[str, Any]]:
    """Rows of failure prediction that speak of the shared frozen classifiers."""
    rows = list(rows)
    rows = rows if "answers" in rows[0] else with_answers(rows)
    return [
        dict(row)
        for row in rows
        if row.get("task", "failure") == "failure"
        and row["stage"] != "finetuned"
        and not row["answers"]
        and (splits or ":" not in row["split"])
    ]


def _summary(seen: Sequence[Row], raw: Sequence[Row]) -> list[Block]:
    """Which method to use on one data set, by how much, and with what certainty.

    Args:
      seen: Rows over seeds with `answers`.
      raw: Rows of single runs.
    """
    test = only(seen)
    reference = next(
        (r for r in test if r["method"] == REFERENCE and r["stage"] != "finetuned"), None
    )
    if reference is None:
        return []
    dataset = reference["dataset"]
    errors = [
        row["errors"]
        for row in only(raw)
        if row["method"] == REFERENCE and row["stage"] != "finetuned"
    ]
    counts = f"{min(errors):,}" + (f" to {max(errors):,}" if max(errors) > min(errors) else "")
    blocks: list[Block] = [
        Heading(dataset),
        pages.text(
            f"{len(errors)} seed{'s' * (len(errors) > 1)}, {int(reference['n']):,} test images, of "
            "which the classifiers get ",
            page_parts.percent(reference, "accuracy"),
            " right: ",
            Cell(counts, None),
            f" errors{' each' * (len(errors) > 1)} for the methods to find. {label(REFERENCE)}, "
            "which costs nothing, trusts an error less than a correct answer with probability ",
            page_parts.percent(reference, "auroc"),
            " (AUROC).",
        ),
    ]
    blocks.append(_recommendation(test, few=min(errors) < FEW_ERRORS))
    blocks += _btcp(test)
    for ood in [name for name in by(seen, "ood") if name]:
        blocks += _ood_words(only(seen, "ood", ood), ood)
    return blocks


def _candidates(rows: Iterable[Row]) -> list[Row]:
    """What a user could take instead of MCP on the same classifier."""
    return [
        row
        for row in rows
        if row["stage"] != "finetuned"
        and not row["answers"]
        and row["method"] != REFERENCE
        and row.get("verdict")
        and not (row["method"] in METHODS and _no_choice(row["method"]))
    ]


def _no_choice(name: str) -> bool:
    # A control is no method, and a method that moves tau alone ranks as its base.
    return METHODS[name].group == "control" or bool(METHODS[name].column_of)


def _tally(rows: Sequence[Row]) -> str:
    count = {
        verdict: sum(row["verdict"] == verdict for row in rows)
        for verdict in ("better", "not distinguishable", "worse")
    }
    return (
        f"Methods against {label(REFERENCE)}, by AUROC with paired 95 % intervals: "
        f"{count['better']} better, {count['not distinguishable']} not distinguishable, "
        f"{count['worse']} worse."
    )


def _best(rows: Iterable[Row]) -> Row | None:
    better = [row for row in rows if row["verdict"] == "better"]
    return max(better, key=lambda row: row[f"auroc_minus_{REFERENCE}"], default=None)


def _needs_more(name: str) -> bool:
    return name in METHODS and bool(METHODS[name].samples)


def _recommendation(test: Sequence[Row], *, few: bool) -> Text:
    rows = _candidates(test)
    best = _best(rows)
    if not rows:
        return pages.text("No other method was compared.")
    if few:
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
    words: list[str | Cell] = [
        Cell(f"Use {label(best['method'])}."),
        f" It ranks the errors better than {label(REFERENCE)}: AUROC ",
        difference_cell(best, "auroc"),
        ", AURC × 1000 ",
        difference_cell(best, "aurc"),
        ". ",
    ]
    if _needs_more(best["method"]):
        cheap = _best(row for row in rows if not _needs_more(row["method"]))
        words.append("It takes many passes or classifiers for each answer; ")
        if cheap is None:
            words.append(f"of those that take one, none is better than {label(REFERENCE)}. ")
        else:
            words += [
                f"the best that takes one is {label(cheap['method'])}, AUROC ",
                difference_cell(cheap, "auroc"),
                ". ",
            ]
    return pages.text(*words, _tally(rows))


def _btcp(test: Sequence[Row]) -> list[Block]:
    """Whether BTCP beats the MCP of its classifier, in ranking and at the threshold."""
    blocks: list[Block] = []
    cubed = next((row for row in test if row["method"] == "mcp_cubed"), None)
    for row in cells_.ordered(test):
        if row["method"] != "btcp" or not row.get("verdict"):
            continue
        same = next(
            other
            for other in test
            if other["method"] == REFERENCE
            and other["stage"] == row["stage"]
            and other["answers"] == row["answers"]
        )
        name, base = who(row), who(same)
        lead = {
            "better": f"{name} beats {base} in ranking errors",
            "worse": f"{name} does not beat {base}: it ranks errors worse",
        }.get(row["verdict"], f"{name} cannot be told from {base} by how it ranks errors")
        words: list[str | Cell] = [
            Cell(lead),
            " (AUROC ",
            difference_cell(row, "auroc"),
            ", AURC × 1000 ",
            difference_cell(row, "aurc"),
            f"). At tau = {row['tau']:g} its BACC is ",
            page_parts.percent(row, "bacc"),
            " against ",
            page_parts.percent(same, "bacc"),
        ]
        if cubed is not None and row["stage"] != "finetuned":
            words += [
                f"; {label('mcp_cubed')}, which ranks exactly as {label(REFERENCE)} and knows "
                "nothing more, has ",
                page_parts.percent(cubed, "bacc"),
            ]
        blocks.append(pages.text(*words, "."))
    return blocks


def _ood_words(rows: Sequence[Row], ood: str) -> list[Block]:
    compared = _candidates(rows)
    if not compared:
        return []
    best = _best(compared)
    words: list[str | Cell]
    if best is None:
        words = [
            f"No method is shown to tell images of {ood} from test images better than "
            f"{label(REFERENCE)} (AUROC)"
        ]
    else:
        words = [
            f"Images of {ood} are told from test images best by ",
            Cell(label(best["method"])),
            ": AUROC ",
            page_parts.percent(best, "auroc"),
            f", difference to {label(REFERENCE)} ",
            difference_cell(best, "auroc"),
        ]
    for row in compared:
        if row["method"] == "btcp" and row is not best:
            words += [f"; {label('btcp')} ", difference_cell(row, "auroc")]
    return [pages.text(*words, ".")]


def _ablation(rows: Sequence[Row]) -> list[Block]:
    changed = [row for row in only(rows) if row["ablation"]]
    if not changed:
        return []
    names = {row["classifier_id"] for row in changed}
    base = [
        row
        for name in (REFERENCE, "tcp", "btcp")
        for row in only(rows)
        if not row["ablation"] and row["classifier_id"] in names and row["method"] == name
    ]
    if not base:
        return []
    drawing = draw_ablation(changed, base, base[0]["dataset"])
    return [drawing, tables.ablation_table(changed, base)]


def _cell_blocks(
    folder: Path,
    dataset: str,
    cells: Sequence[str],
    rows: Sequence[Row],
    class_names: Sequence[str] | None,
    method: str,
) -> dict[str, list[Block]]:
    """What comes from the files of a data set's runs, by section.

    Args:
      folder: The study's.
      dataset: Name of the data set.
      cells: Names of its runs.
      rows: Rows of these runs.
      class_names: Names by class number.
      method: The one to use, whose errors are shown.
    """
    found = {cell: page_parts.load_predictions(folder / cell, rows) for cell in cells}
    found = {cell: predictions for cell, predictions in found.items() if predictions}
    history = [
        row for cell in cells for row in page_parts.load_history(folder / cell / "history.csv")
    ]
    tau = next(row["tau"] for row in rows)
    drawings: list[Drawing | None] = []
    blocks: dict[str, list[Block]] = {}
    if found:
        first, *_ = found
        frozen = [p[CLASSIFIER] for p in found.values()]
        others = {
            ood: saved
            for ood in by(rows, "ood")
            if ood
            and (
                saved := page_parts.load_saved(
                    folder / first / predictions_file(ImageSet("ood", ood))
                )
            )
        }
        drawings += [
            draw_histograms(frozen[0], dataset, tau),
            draw_risk_coverage(frozen[0], dataset),
            draw_confidence(frozen[0], others, dataset),
        ]
        blocks["Failures per class"] = page_parts.per_class(frozen, class_names, dataset)
        taus = [row["tau"] for row in only(rows) if row["method"] == method]
        blocks["Check these first"] = _study_gallery(
            folder / first / "figures", dataset, frozen, method, taus[0], class_names
        )
    estimators = [row for row in history if Predictor.from_text(row["stage"]).stage != FINETUNED]
    if estimators:
        drawings.append(draw_rates_per_epoch(estimators, dataset, tau))
        drawings.append(draw_u_per_epoch(estimators, dataset))
    blocks["Figures"] = [drawing for drawing in drawings if drawing is not None]
    return blocks


def _study_gallery(
    source: Path,
    dataset: str,
    seeds: Sequence[Predictions],
    method: str,
    tau: float,
    class_names: Sequence[str] | None,
) -> list[Block]:
    """The wrong answers of the first seed's frozen classifier that a person should look at.

    Args:
      source: `figures` of the first seed's run, whose pictures are shown.
      dataset: Name of the data set.
      seeds: Answers of the frozen classifiers.
      method: Whose u.
      tau: Its threshold.
      class_names: Names by class number.
    """
    p, kept = seeds[0], Kept.load(source)
    if method not in p.uncertainty or not p.is_error.any():
        return []
    remarks = {}
    if len(seeds) > 1:
        for row in np.flatnonzero(p.is_error).tolist():
            same = sum(o.predicted[row] == p.predicted[row] for o in seeds)
            remarks[row] = f"the same in {same} of {len(seeds)} seeds"
    errors = int(p.is_error.sum())
    return [
        pages.text(
            f"{dataset}, first seed, frozen classifier: wrong on {errors:,} of "
            f"{len(p.is_error):,} test images, here by u of {label(method)}."
        ),
        gallery.build(
            p,
            method,
            tau,
            class_names=class_names,
            pictures=kept.pictures,
            names=kept.names(len(p.predicted)),
            links=kept.links,
            picked=gallery.pick_errors(p.is_error, p.uncertainty, method),
            remarks=remarks,
            name=dataset,
        ),
    ]


def _study_notes(rows: Sequence[Row], extra: Mapping[str, Any]) -> list[str]:
    notes = [f"{cell} failed: {why}" for cell, why in extra.get("failed", {}).items()]
    cells = list(by(rows, "cell"))
    alike: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for note, where in extra.get("notes", {}).items():
        alike.setdefault(_NUMBER.sub("#", note), []).append((note, where))
    for found in alike.values():
        note = _with_ranges([note for note, _ in found])
        where = dict.fromkeys(cell for _, names in found for cell in names)
        everywhere = set(cells) <= set(where)
        notes.append(note if everywhere else f"{note} ({', '.join(where)})")
    notes = page_parts.merge_notes(notes)
    seeds = max(len(by(group, "seed")) for group in by(rows, "dataset").values())
    if seeds == 1:
        notes.append("One seed: nothing here says how much another training would change.")
    elif seeds == 2:
        notes.append(
            "2 seeds: one difference is all that is known of the spread, and the intervals are so "
            "wide that hardly a method can be told from another; take 3 or more."
        )
    elif seeds < 5:
        notes.append(f"{seeds} seeds: the spread over seeds is only roughly known.")
    notes.append(
        "A verdict is about one comparison; among twenty methods that do not differ, one is "
        "expected to be called better or worse. The best of many looks better on these test "
        "images than it will on others."
    )
    return notes


_NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]\d+)?")


def _with_ranges(notes: Sequence[str]) -> str:
    """One sentence for several that differ in their numbers: "12 to 15 errors"."""
    numbers = zip(*map(_NUMBER.findall, notes), strict=True)
    ranges = []
    for words in numbers:
        ordered = sorted(set(words), key=lambda word: float(word.replace(",", "")))
        ranges.append(" to ".join(dict.fromkeys((ordered[0], ordered[-1]))))
    return _NUMBER.sub(lambda _: ranges.pop(0), notes[0])


def _settings(
    cells: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings that all runs share, and those of each run that they do not share."""
    known = [cells[name] for name in names if name in cells]
    common = {
        key: value
        for key, value in (known[0] if known else {}).items()
        if all(other.get(key) == value for other in known)
    }
    return common, {
        name: {key: value for key, value in cells[name].items() if key not in common}
        for name in names
        if name in cells
    }


def _study_settings(
    common: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Any]
) -> list[Block]:
    if not extra.get("cells"):
        return []
    words = json.dumps(extra["cells"], sort_keys=True)
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    command_line = " ".join(extra.get("command", []))
    single = {
        f"{cell}: {key}": value for cell, values in others.items() for key, value in values.items()
    }
    blocks: list[Block] = [
        pages.text(
            f"Hash of all settings: {digest}." + f" Command: {command_line}" * bool(command_line)
        )
    ]
    for values, name, caption in (
        (common, "settings", "Settings of all runs"),
        (single, "settings_of_runs", "Settings that differ between runs"),
    ):
        if values:
            blocks.append(Details(caption, [tables.pair_table(values, name, caption)]))
    return blocks
