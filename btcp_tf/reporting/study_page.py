"""The page of a study."""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.reporting import cells, figures, gallery, notes, pages, tables
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.class_failures import per_class
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.glossary import explanations, folded_table
from btcp_tf.reporting.other_images import other_images
from btcp_tf.reporting.pages import Block, Report
from btcp_tf.reporting.paper import PAPER
from btcp_tf.reporting.pictures import Pictures
from btcp_tf.reporting.recommendation import recommend, study_glance
from btcp_tf.reporting.study_data import SavedStudy, StudyDataset, shared
from btcp_tf.reporting.texts import text


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
    study = SavedStudy.of_rows(folder, rows, extra or {})
    datasets = study.datasets
    of_each = functools.partial(_of_each, datasets)
    report = Report(
        f"Which answers are wrong? {', '.join(dataset.name for dataset in datasets)}",
        _notes(study),
        [
            ("Which method to use", of_each(recommend)),
            ("Check these first", of_each(_errors_to_check)),
            ("Failure prediction", _failure_prediction(study)),
            (
                "OOD detection, joint task, covariate shift",
                of_each(lambda d: other_images(d.over_seeds, d.plain, study.whole)),
            ),
            ("What the loss does", of_each(_ablation)),
            ("Figures", [*_ranks(study), *of_each(_figures)]),
            ("Failures per class", of_each(_failures_per_class)),
            ("All metrics", [tables.all_metrics_table(dataset.test) for dataset in datasets]),
            *explanations(study.plain),
            ("Settings", _settings(study)),
            ("Environment", folded_table(study.environment, "environment", "Where it ran")),
        ],
        study_glance(datasets, study.settings),
    )
    return pages.write_report(Path(output_dir or folder), report, files=True)


def _of_each(
    datasets: Sequence[StudyDataset], section: Callable[[StudyDataset], Sequence[Block]]
) -> list[Block]:
    """The blocks of a section for one data set after the other."""
    return [block for dataset in datasets for block in section(dataset)]


def _errors_to_check(dataset: StudyDataset) -> list[Block]:
    """The wrong answers of the first seed's frozen classifier that a person should look at."""
    if not dataset.frozen:
        return []
    first, method = dataset.frozen[0], dataset.method
    errors, seeds = np.flatnonzero(first.is_error).tolist(), len(dataset.frozen)
    if method not in first.uncertainty or not errors:
        return []
    kept = Pictures.load(dataset.answered[0].folder / "figures")
    remarks = {}
    for row in errors if seeds > 1 else ():
        same = sum(other.predicted[row] == first.predicted[row] for other in dataset.frozen)
        remarks[row] = f"the same in {same} of {seeds} seeds"
    shown = gallery.build(
        first,
        method,
        next(row["tau"] for row in cells.only(dataset.plain) if row["method"] == method),
        class_names=dataset.class_names,
        pictures=kept.images,
        names=kept.names,
        links=kept.links,
        picked=gallery.pick_errors(first.is_error, first.uncertainty, method),
        remarks=remarks,
        name=dataset.name,
    )
    about = dict(dataset=dataset.name, n=len(first.is_error), method=cells.label(method))
    return [pages.text(text("study.first_seed", errors=len(errors), **about)), shown]


def _failure_prediction(study: SavedStudy) -> list[Block]:
    blocks: list[Block] = []
    if any(dataset.name in PAPER for dataset in study.datasets):
        blocks.append(pages.text(text("notes.paper" if study.whole else "notes.part")))
    for dataset in study.datasets:
        blocks.append(tables.failure_table(dataset.test, paper=study.whole))
        blocks.append(tables.ranking_table(dataset.test))
    return blocks


def _ablation(dataset: StudyDataset) -> list[Block]:
    rows = cells.only(dataset.rows)
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


def _ranks(study: SavedStudy) -> list[Drawing]:
    drawing = figures.draw_ranks(shared(cells.with_answers(study.plain)))
    return [drawing] if drawing else []


def _figures(dataset: StudyDataset) -> list[Drawing]:
    name, tau, history = dataset.name, dataset.plain[0]["tau"], dataset.history()
    drawings: list[Drawing | None] = []
    if dataset.frozen:
        frozen = dataset.frozen[0]
        drawings += [
            figures.draw_histograms(frozen, name, tau),
            figures.draw_risk_coverage(frozen, name),
            figures.draw_confidence(frozen, dataset.answered[0].ood(), name),
        ]
    if history:
        drawings.append(figures.draw_rates_per_epoch(history, name, tau))
        drawings.append(figures.draw_u_per_epoch(history, name))
    drawings.append(figures.draw_costs(shared(dataset.test), dataset.costs, name))
    drawings.append(figures.draw_shift(shared(dataset.over_seeds, splits=True), name))
    return [drawing for drawing in drawings if drawing is not None]


def _failures_per_class(dataset: StudyDataset) -> list[Block]:
    if not dataset.frozen:
        return []
    return per_class(dataset.frozen, dataset.class_names, dataset.name)


def _notes(study: SavedStudy) -> list[str]:
    runs = set(cells.by(study.plain, "cell"))
    seeds = max(len(cells.by(dataset.plain, "seed")) for dataset in study.datasets)
    few = {1: "notes.one_seed", 2: "notes.two_seeds", 3: "notes.few_seeds", 4: "notes.few_seeds"}
    return notes.merge_notes(
        [
            *(f"{cell} failed: {why}" for cell, why in study.failed.items()),
            *notes.of_runs(runs, study.notes),
            *([text(few[seeds], seeds=seeds)] if seeds in few else []),
            text("notes.many_comparisons"),
        ]
    )


def _settings(study: SavedStudy) -> list[Block]:
    if not study.settings:
        return []
    names = [cell.name for dataset in study.datasets for cell in dataset.cells]
    runs = {name: study.settings[name] for name in names if name in study.settings}
    first: Mapping[str, Any] = next(iter(runs.values()), {})
    common = {
        key: value
        for key, value in first.items()
        if all(run.get(key) == value for run in runs.values())
    }
    single = {
        f"{name}: {key}": value
        for name, run in runs.items()
        for key, value in run.items()
        if key not in common
    }
    digest = hashlib.sha256(json.dumps(study.settings, sort_keys=True).encode()).hexdigest()[:12]
    command = f" Command: {study.command}" if study.command else ""
    return [
        pages.text(f"Hash of all settings: {digest}.{command}"),
        *folded_table(common, "settings", "Settings of all runs"),
        *folded_table(single, "settings_of_runs", "Settings that differ between runs"),
    ]
