"""The page of a run."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import NOT_EXPORTED, Decision
from btcp_tf.evaluation.explanations import EXPLANATIONS_FILE, Explanations, load_explanations
from btcp_tf.evaluation.keys import CLASSIFIER, Predictor
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.evaluation.results import load_rows
from btcp_tf.reporting import cells, figures, gallery, glance, page_parts, pages, tables, terminal
from btcp_tf.reporting.cells import Cell, Row, Table
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance, Judged, Step
from btcp_tf.reporting.page_parts import KEPT, Kept
from btcp_tf.reporting.pages import Block, Report, Text
from btcp_tf.reporting.paper import PAPER
from btcp_tf.thresholds import Outcome, Threshold, outcome


def write_run_report(
    folder: str | os.PathLike,
    rows: Sequence[Row],
    predictions: Mapping[Predictor, Predictions],
    history: Iterable[Row] = (),
    *,
    images: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
    saved_model: str = "",
    promises: Sequence[Row] = (),
    decision: Decision | None = None,
    pixels: str | os.PathLike | None = None,
    explanations: Explanations | None = None,
    files: Sequence[str] | np.ndarray | None = None,
) -> Path:
    """Writes `figures/` and `report.html` of a run.

    The pixels of the answers that are shown are saved beside the figures, with the paths of their
    files, so that a report can be drawn again without the data set.

    Args:
      folder: The run's folder.
      rows: Result rows of `btcp_tf.evaluation`, of every task and split.
      predictions: Predictions of the test set. The last fine-tuned predictor, else the first,
        chooses the errors that are shown.
      history: Rows per epoch on validation data, see `btcp_tf.plots`.
      images: `[n, height, width, channels]` uint8 in the order of the
        predictions. None: those of an earlier report of the folder.
      class_names: Names by class number.
      settings: Name -> value of each setting.
      environment: Name -> value, such as versions of packages.
      notes: Caveats that the reader must see first.
      saved_model: Where the SavedModel is, or why there is none.
      promises: Rows of promised error rates, see `runs.make_promises`.
      decision: What the SavedModel accepts, from `evaluation.load_decision`.
      pixels: Folder of an earlier report's `figures`; None: that of `folder`.
      explanations: What moved the u of each test answer.
      files: Path of the file of each test image, `[n]`; None: they have none, or those of an
        earlier report.

    Returns:
      Path of `report.html`.
    """
    folder = Path(folder)
    test = cells.only(rows)
    whole = page_parts.whole_number(settings or {})
    source = Path(pixels or folder / "figures")
    shown = exported_answers(predictions, decision, test)
    drawings = figures.draw_run(
        {str(who): p for who, p in predictions.items()}, history, tau=test[0]["tau"]
    )
    results = [block for group in cells.classifiers(test) for block in page_parts.headline(group)]
    seen = cells.with_answers(rows)
    paper = (
        page_parts.paper_blocks(test, whole) if any(row["dataset"] in PAPER for row in test) else []
    )
    picked = gallery.pick(shown.predictions.is_error, shown.predictions.uncertainty[shown.method])
    kept = Kept.of(np.concatenate([*picked.values()]), source, images, files)
    errors = Kept.of(
        page_parts.errors_kept(next(iter(predictions.values()))), source, images, files
    )
    report = Report(
        run_title(test),
        [*page_parts.remarks_of(test), *page_parts.merge_notes(notes)],
        [
            ("Check these first", [_run_gallery(shown, kept, class_names, explanations)]),
            ("Threshold and promise", _thresholds(promises, decision, predictions)),
            ("How well u finds the errors", results),
            ("Figures", drawings),
            ("Failures per class", page_parts.class_blocks(predictions, class_names, test)),
            (
                "Errors to look at",
                page_parts.error_blocks(source, predictions, class_names, images=images),
            ),
            ("All metrics", [tables.metric_table(group) for group in cells.classifiers(test)]),
            ("The paper's columns", paper),
            (
                "OOD detection, joint task, covariate shift",
                page_parts.other_images(seen, rows, whole),
            ),
            *page_parts.appendix(rows, settings or {}, environment or {}),
        ],
        run_glance(shown, decision, promises, saved_model),
    )
    page_parts.save_pixels(folder / "figures", predictions, images, pixels)
    for name, pictures in zip(KEPT, (kept, errors), strict=True):
        pictures.save(folder / "figures" / f"{name}.npz")
    return pages.write_report(folder, report, files=False)


@dataclasses.dataclass(frozen=True)
class Shown:
    """Whose answers and whose u a run's first screen is about: what its SavedModel answers."""

    predictions: Predictions
    """Of the test set."""
    predictor: Predictor
    method: str
    threshold: Threshold

    @property
    def judged(self) -> Judged:
        """What the threshold does to the test answers."""
        u = self.predictions.uncertainty[self.method]
        return glance.judge(self.threshold, self.predictions.is_error, u)


def exported_answers(
    predictions: Mapping[Predictor, Predictions], decision: Decision | None, test: Sequence[Row]
) -> Shown:
    """The answers that the SavedModel gives; without a decision those of the last fine-tuned
    classifier, else the first one, at the tau of the rows."""
    if decision and decision.predictor in predictions:
        found = predictions[decision.predictor]
        if decision.method in found.uncertainty:
            return Shown(found, decision.predictor, decision.method, decision.threshold)
    main = page_parts.main_predictor(predictions)
    threshold = dataclasses.replace(thresholds.DEFAULT, tau=float(test[0]["tau"]))
    return Shown(predictions[main], main, page_parts.main_method(predictions[main]), threshold)


def run_title(test: Sequence[Row]) -> str:
    """What a run's report is called."""
    dataset, seed = (page_parts.names_of(test, key) for key in ("dataset", "seed"))
    return f"Which answers are wrong? {dataset}, seed {seed}"


def run_glance(
    shown: Shown, decision: Decision | None, promises: Sequence[Row], saved_model: str
) -> Glance:
    """The first screen of a run."""
    judged, p = shown.judged, shown.predictions
    gallery_ = gallery.pick(p.is_error, p.uncertainty[shown.method])
    steps: list[Step | None] = [page_parts.look_step(gallery_)]
    exported = bool(saved_model) and not saved_model.startswith(NOT_EXPORTED)
    model = saved_model if exported else "MODEL"
    if decision:
        calibration = decision.calibration
        test_counts = judged.errors, judged.outcome.n
        held_out = int(calibration.is_error.sum()), len(calibration.is_error)
        steps.append(glance.harder(test_counts, held_out, model))
        steps.append(
            glance.labels(
                decision.threshold,
                calibration.is_error,
                calibration.uncertainty[decision.method],
                wanted=sorted({row["target"] for row in promises}),
                model=model,
            )
        )
    words = decision.of(saved_model) if decision else saved_model
    steps.append(glance.serve(saved_model, words))
    return Glance(
        glance.state(judged),
        _about(shown),
        glance.sentence(judged),
        glance.figures(judged),
        [step for step in steps if step],
        "Wrong among the accepted, by how many are accepted",
        page_parts.curve_of(p, shown.method, judged.outcome),
    )


def closing_screen(folder: str | os.PathLike, saved_model: str) -> str:
    """What a person should know at the end of a run, from its files.

    The sentence and figures of the page's first screen, every method's figures, what to know, and
    in the last line what was exported, and why.

    Args:
      folder: The run's folder.
      saved_model: Path of the SavedModel, or why there is none.

    Raises:
      ValueError: If a file is damaged.
      OSError: If one is not there.
    """
    folder = Path(folder)
    rows, extra = load_rows(folder / "results.json")
    predictions, decision = (
        page_parts.load_predictions(folder, rows),
        decision_file.load_decision(folder),
    )
    if not predictions:
        raise ValueError(f"expected {folder / 'predictions.npz'}, received no such file")
    notes = [*page_parts.remarks_of(cells.only(rows)), *page_parts.merge_notes(extra["notes"])]
    plain = [note for note in notes if not pages.is_technical(note)]
    parts = [
        terminal_answer(rows, predictions, decision),
        "\n".join(f"note: {note}" for note in plain),
    ]
    files = [f"report      {folder / 'report.html'}"]
    if more := len(notes) - len(plain):
        files[0] += f" (and {more} note{'s' * (more > 1)} about training)"
    files.append(f"TensorBoard tensorboard --logdir {folder / 'tensorboard'}")
    files.append(f"SavedModel  {decision.of(saved_model) if decision else saved_model}")
    if decision and decision.reason and not saved_model.startswith(NOT_EXPORTED):
        files[-1] += f": {decision.reason}"
    return "\n\n".join(filter(None, [*parts, "\n".join(files)]))


def terminal_answer(
    rows: Sequence[Row], predictions: Mapping[Predictor, Predictions], decision: Decision | None
) -> str:
    """Every method's figures, and the sentence and figures of the first screen."""
    test = cells.only(rows)
    judged = exported_answers(predictions, decision, test).judged
    answer = glance.terminal(
        glance.state(judged), run_title(test), glance.sentence(judged), glance.figures(judged)
    )
    return f"{terminal.terminal_table(rows)}\n\n{answer}"


def replace_saved_model(folder: str | os.PathLike, saved_model: str) -> bool:
    """Changes what a run's page says of its SavedModel, without drawing the page again.

    Args:
      folder: The run's folder.
      saved_model: Path of the SavedModel, or why there is none.

    Returns:
      Whether the page has a place for it; one of an earlier version has none.
    """
    folder = Path(folder)
    rows, extra = load_rows(folder / "results.json")
    predictions, decision = (
        page_parts.load_predictions(folder, rows),
        decision_file.load_decision(folder),
    )
    shown = exported_answers(predictions, decision, cells.only(rows))
    found = run_glance(shown, decision, extra.get("promises", ()), saved_model)
    return pages.replace_steps(folder / "report.html", found.steps)


def _about(shown: Shown) -> str:
    p = shown.predictions
    errors = int(p.is_error.sum())
    return (
        f"{len(p.is_error):,} test images · {100 * (1 - errors / len(p.is_error)):.2f} % right · "
        f"{errors:,} error{'s' * (errors != 1)} · u of {cells.label(shown.method)}, "
        f"{cells.stage_label(shown.predictor)} classifier"
    )


def _run_gallery(
    shown: Shown,
    kept: Kept,
    class_names: Sequence[str] | None,
    explanations: Explanations | None,
) -> Gallery:
    return gallery.build(
        shown.predictions,
        shown.method,
        shown.threshold.tau,
        class_names=class_names,
        pictures=kept.pictures,
        names=kept.names(len(shown.predictions.predicted)),
        links=kept.links,
        # Those of the frozen classifier say nothing of another one's answers.
        explanations=explanations if shown.predictor == CLASSIFIER else None,
    )


def _thresholds(
    promises: Sequence[Row], decision: Decision | None, predictions: Mapping[Predictor, Predictions]
) -> list[Block]:
    blocks: list[Block] = []
    if decision and decision.reason:
        whose = (
            f"{cells.label(decision.method)}, {cells.stage_label(decision.predictor)} classifier"
        )
        blocks.append(pages.text(f"Why u of {whose}, is exported: {decision.reason}."))
    if decision and decision.predictor in predictions:
        test, chosen = predictions[decision.predictor], decision.threshold
        u = test.uncertainty.get(decision.method)
        if u is not None:
            blocks.append(_decision_words(chosen, outcome(chosen, test.is_error, u)))
            mine = [
                row
                for row in promises
                if (row["method"], row["stage"]) == (decision.method, decision.predictor.stage)
            ]
            blocks.append(
                figures.draw_thresholds(decision.calibration, test, decision.method, chosen, mine)
            )
            blocks.append(_review_table(decision, test))
    if promises:
        blocks.append(
            tables.promise_table(
                [row for row in promises if page_parts.is_candidate(row["method"])]
            )
        )
    return blocks


def _review_table(decision: Decision, test: Predictions) -> Table:
    """What checking the least trusted test answers was expected to bring, and what it brings."""
    calibration, u = decision.calibration, test.uncertainty[decision.method]
    lines: list[list[str | Cell]] = []
    for share in (0.01, 0.05, 0.1, 0.2):
        k = max(round(share * len(u)), 1)
        queue = thresholds.review_queue(
            u, k, calibration=(calibration.is_error, calibration.uncertainty[decision.method])
        )
        found, expected = int(test.is_error[queue.rows].sum()), queue.expected_errors
        lines.append(
            [
                Cell(f"{k:,}", k),
                Cell("n/a" if expected is None else f"{expected:.0f}", expected),
                f"{queue.low:,} to {queue.high:,}",
                Cell(f"{found:,}", found),
                Cell(f"{found / max(test.is_error.sum(), 1):.0%}"),
            ]
        )
    return Table(
        "review",
        "If a person checks the test answers of highest u: wrong ones among them as the "
        "calibration images let expect (with a 90 % interval), and as they are.",
        {
            "checked": "checked",
            "expected": "wrong, expected",
            "interval": "interval",
            "found": "wrong, found",
            "share": "of all errors",
        },
        lines,
    )


def _decision_words(chosen: Threshold, test: Outcome) -> Text:
    if chosen.tau is None:
        return pages.text(f"The SavedModel accepts nothing: {chosen.rule} is not achievable.")
    return pages.text(
        f"The SavedModel accepts answers with u < {cells.printed_u(chosen.tau, 4)} "
        f"({chosen.rule}, chosen on {chosen.n:,} calibration images): of the {test.n:,} test "
        "images ",
        *page_parts.outcome_words(test),
    )


def redraw_run(
    folder: Path, output_dir: Path | None = None, *, saved_model: str = "", **pictures: Any
) -> tuple[Path, list[dict[str, Any]]]:
    """Draws a run's report from its files; returns the page's path and the rows.

    Args:
      folder: The run's folder.
      output_dir: Where the report goes; None: to the run's folder.
      saved_model: See `write_run_report`, for a run that is not finished.
      **pictures: `images` and `files` as in `write_run_report`, for the first report of a run.
    """
    rows, extra = load_rows(folder / "results.json")
    predictions = page_parts.load_predictions(folder, rows)
    if not predictions:
        raise ValueError(f"{folder}: expected predictions.npz of a run, received none")
    finished = folder / "finished.json"
    if finished.exists():
        saved_model = str(json.loads(finished.read_text(encoding="utf-8")).get("saved_model", ""))
    page = write_run_report(
        output_dir or folder,
        rows,
        predictions,
        page_parts.load_history(folder / "history.csv"),
        class_names=extra.get("data", {}).get("class_names"),
        settings=extra.get("settings"),
        environment=extra.get("environment"),
        notes=extra.get("notes", ()),
        saved_model=saved_model,
        promises=extra.get("promises", ()),
        decision=decision_file.load_decision(folder),
        pixels=folder / "figures",
        explanations=load_explanations(
            folder / EXPLANATIONS_FILE, len(predictions[CLASSIFIER].predicted)
        ),
        **pictures,
    )
    return page, rows
