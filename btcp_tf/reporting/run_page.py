"""The page of a run."""

import dataclasses
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import json_files
from btcp_tf.decisions.decision_file import NOT_EXPORTED, Decision
from btcp_tf.evaluation.explanations import EXPLANATIONS_FILE, Explanations, load_explanations
from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, Predictor
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods.registry import answer_costs
from btcp_tf.reporting import (
    cells,
    figures,
    gallery,
    glance,
    group_tables,
    pages,
    tables,
    terminal,
)
from btcp_tf.reporting.cells import Cell, Row, Table
from btcp_tf.reporting.class_failures import per_class
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance, Judged, Step
from btcp_tf.reporting.glossary import appendix
from btcp_tf.reporting.headline import (
    answers_to_check,
    first_screen,
    headline,
    main_method,
    outcome_text,
)
from btcp_tf.reporting.notes import error_count_notes, merge_notes, paper_blocks, uses_all_data
from btcp_tf.reporting.other_images import other_images
from btcp_tf.reporting.pages import Block, Report, Text
from btcp_tf.reporting.paper import PAPER
from btcp_tf.reporting.pictures import KEPT, Pictures, save_sheet
from btcp_tf.reporting.saved_run import SavedRun, load_history
from btcp_tf.reporting.study_data import shared
from btcp_tf.thresholds import Outcome, Threshold


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
    problem: str = "",
    costs: Mapping[str, float] | None = None,
) -> Path:
    """Writes `figures/` and `report.html` of a run.

    The pixels of the answers that are shown are saved beside the figures, with the paths of their
    files, so that a report can be drawn again without the data set.

    Args:
      folder: The run's folder.
      rows: Result rows of `btcp_tf.evaluation`, of every task and split.
      predictions: Predictions of the test set. Without a decision, the gallery shows answers of
        the last fine-tuned predictor, or else of the first one.
      history: Rows per epoch on validation data, see `btcp_tf.reporting.plots`.
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
      problem: Why nobody should use the model, such as an estimator that collapsed; "": nothing is
        known against it.
      costs: Method -> passes of the classifier, of those whose fits say so.

    Returns:
      Path of `report.html`.
    """
    folder = Path(folder)
    settings, test = settings or {}, cells.only(rows)
    promises = [{"delta": promise_delta(settings), **row} for row in promises]
    first, dataset = next(iter(predictions.values())), str(test[0]["dataset"])
    whole = uses_all_data(settings)
    shown = exported_answers(predictions, decision, test)
    by_name = {str(predictor): p for predictor, p in predictions.items()}
    kept = _pictures(shown, first, images, files, Path(pixels or folder / "figures"))
    to_check = _gallery(shown, kept["gallery"], class_names, explanations)
    report = Report(
        run_title(test),
        [*error_count_notes(test), *merge_notes(notes)],
        [
            ("Check these first", answers_to_check(to_check, shown.predictor)),
            ("Threshold and promise", _thresholds(promises, decision, shown, class_names)),
            (
                "How well u finds the errors",
                [block for group in cells.classifiers(test) for block in headline(group)],
            ),
            (
                "Figures",
                [
                    *figures.draw_run(by_name, history, tau=test[0]["tau"]),
                    *_costs(test, settings, costs),
                ],
            ),
            ("Failures per class", per_class([first], class_names, dataset)),
            ("All metrics", [tables.metric_table(group) for group in cells.classifiers(test)]),
            ("The paper's columns", paper_blocks(test, whole) if dataset in PAPER else []),
            (
                "OOD detection, joint task, covariate shift",
                other_images(cells.with_answers(rows), rows, whole),
            ),
            *appendix(rows, settings, environment or {}),
        ],
        run_glance(shown, decision, promises, saved_model, settings, problem),
    )
    for name, pictures in kept.items():
        pictures.save(folder / "figures" / f"{name}.npz")
    for stem, sheet in gallery.error_sheets(to_check, kept["gallery"]).items():
        save_sheet(folder / "figures" / stem, sheet)
    return pages.write_report(folder, report, files=False)


def _costs(
    test: Sequence[Row], settings: Mapping[str, Any], fitted: Mapping[str, float] | None
) -> list[Block]:
    """AURC against cost of the methods of the shared classifier, where there are looks."""
    rows = shared(cells.with_answers(test))
    drawing = figures.draw_costs(rows, answer_costs(settings, fitted or {}))
    return [drawing] if drawing else []


@dataclasses.dataclass(frozen=True)
class Shown:
    """Whose answers and whose u a run's first screen is about: what its SavedModel answers."""

    predictions: Predictions
    """Of the test set."""
    predictor: Predictor
    method: str
    threshold: Threshold

    @property
    def who(self) -> str:
        """Whose u, for people."""
        return f"{cells.label(self.method)}, {cells.stage_label(self.predictor)} classifier"

    @property
    def accepted(self) -> np.ndarray:
        """Which answers are accepted, `[n]` bool."""
        p = self.predictions
        return p.uncertainty[self.method] < self.threshold.limits(p.predicted)

    @property
    def judged(self) -> Judged:
        """What the threshold does to the test answers."""
        u = self.predictions.uncertainty[self.method]
        p = self.predictions
        return glance.judge(self.threshold, p.is_error, u, p.groups, p.predicted)


def exported_answers(
    predictions: Mapping[Predictor, Predictions], decision: Decision | None, test: Sequence[Row]
) -> Shown:
    """The answers of the SavedModel.

    Without a decision, those of the last fine-tuned classifier, or else of the first one, at the
    tau of the rows.
    """
    if decision and decision.predictor in predictions:
        answers = predictions[decision.predictor]
        if decision.method in answers.uncertainty:
            return Shown(answers, decision.predictor, decision.method, decision.threshold)
    first, *_ = predictions
    main = next((who for who in reversed([*predictions]) if who.stage == FINETUNED), first)
    threshold = dataclasses.replace(thresholds.DEFAULT, tau=float(test[0]["tau"]))
    return Shown(predictions[main], main, main_method(predictions[main]), threshold)


def run_title(test: Sequence[Row]) -> str:
    """Title of a run's report."""
    datasets, seeds = (
        ", ".join(dict.fromkeys(str(row[key]) for row in test)) for key in ("dataset", "seed")
    )
    return f"Which answers are wrong? {datasets}, seed {seeds}"


def promise_delta(settings: Mapping[str, Any]) -> float:
    """The probability with which promises of a run may be broken."""
    return float(settings.get("delta", glance.DELTA))


def run_glance(
    shown: Shown,
    decision: Decision | None,
    promises: Sequence[Row],
    saved_model: str,
    settings: Mapping[str, Any],
    problem: str = "",
) -> Glance:
    """The first screen of a run.

    Args:
      shown: What its SavedModel answers.
      decision: What that accepts.
      promises: As of `write_run_report`.
      saved_model: As of `write_run_report`.
      settings: As of `write_run_report`.
      problem: As of `write_run_report`.
    """
    steps: list[Step | None] = []
    if is_trial(settings):
        steps = [_train_step(settings)]
    elif decision:
        steps = _decision_steps(decision, shown.judged, promises, saved_model, settings)
    steps.append(_model_step(shown, decision, saved_model, settings, problem))
    return first_screen(
        shown.predictions, shown.method, shown.judged, ("test images", shown.who), steps
    )


def is_trial(settings: Mapping[str, Any]) -> bool:
    """Whether a run was a trial on a part of the training images: its model is not for use."""
    return str(settings.get("max_train_images", 0)) != "0"


def _train_step(settings: Mapping[str, Any]) -> Step:
    """What follows a trial."""
    return Step(
        "This was a trial on a part of the training images "
        f"(max_train_images={settings['max_train_images']}), to see that everything runs. Its "
        "figures and its model are not for use: train in full.",
        glance.train(settings) if settings.get("dataset") else "",
    )


def _decision_steps(
    decision: Decision,
    judged: Judged,
    promises: Sequence[Row],
    saved_model: str,
    settings: Mapping[str, Any],
) -> list[Step | None]:
    """What to do about the threshold."""
    exported = not saved_model.startswith(NOT_EXPORTED)
    model = saved_model if saved_model and exported else "MODEL"
    is_error = decision.calibration.is_error
    steps = [
        glance.harder(
            (judged.errors, judged.outcome.n), (int(is_error.sum()), len(is_error)), model
        ),
        _hardly_wrong(decision, judged, promises, settings)
        or glance.labels(
            decision.threshold,
            is_error,
            decision.calibration.uncertainty[decision.method],
            wanted=sorted({row["target"] for row in promises}),
            delta=promise_delta(settings),
            model=model,
        ),
    ]
    # Without a model no command can change its threshold.
    return [step for step in steps if step and (exported or not step.command)]


def _hardly_wrong(
    decision: Decision, judged: Judged, promises: Sequence[Row], settings: Mapping[str, Any]
) -> Step | None:
    """Says so where a run promises nothing, and a promise would be empty."""
    if decision.threshold.target is not None or is_trial(settings):
        return None
    return glance.hardly_wrong(
        (judged.errors, judged.outcome.n),
        decision.calibration.is_error,
        decision.calibration.uncertainty[decision.method],
        wanted=[row["target"] for row in promises],
        delta=promise_delta(settings),
        remedy="Try a harder data set (--dataset=fashion_mnist, say) or your own classifier "
        "(--classifier=my.keras).",
    )


def _model_step(
    shown: Shown,
    decision: Decision | None,
    saved_model: str,
    settings: Mapping[str, Any],
    problem: str,
) -> Step | None:
    """What to do with the SavedModel: serve it where nothing speaks against it."""
    if not saved_model or saved_model.startswith(NOT_EXPORTED):
        return glance.serve(saved_model)
    if is_trial(settings):
        return Step(f"What it exported, {saved_model}, is there to try the commands with.")
    if problem:
        return Step(f"Do not serve {saved_model}: {problem}. See what to know.", link="#notes")
    if shown.threshold.accepts_nothing:
        return Step(
            f"Do not serve {saved_model} as it is: it accepts nothing, as no threshold keeps the "
            "promise. Choose a threshold that it can keep."
        )
    if glance.state(shown.judged).name == "broken":
        return Step(
            f"Do not serve {saved_model} as it is: on the test answers its promise is broken. "
            "Choose its threshold again first."
        )
    return glance.serve(saved_model, decision.of(saved_model) if decision else saved_model)


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
    run = SavedRun.load(folder)
    notes = [*error_count_notes(cells.only(run.rows)), *merge_notes(run.extra["notes"])]
    plain = [note for note in notes if not pages.is_technical(note)]
    decision, report = run.decision, f"{folder / 'report.html'}"
    model = decision.of(saved_model) if decision else saved_model
    if more := len(notes) - len(plain):
        report += f" (and {more} note{'s' * (more > 1)} about training)"
    if decision and decision.reason and not saved_model.startswith(NOT_EXPORTED):
        model += f": {decision.reason}"
    parts = [
        terminal_answer(run),
        "\n".join(f"note: {note}" for note in plain),
        f"report      {report}\n"
        f"TensorBoard tensorboard --logdir {folder / 'tensorboard'}\n"
        f"SavedModel  {model}",
    ]
    return "\n\n".join(filter(None, parts))


def terminal_answer(run: SavedRun) -> str:
    """Every method's figures, the sentence and figures of the first screen, and whether there is
    hardly an error to find."""
    test = cells.only(run.rows)
    judged = exported_answers(run.predictions, run.decision, test).judged
    answer = glance.terminal(
        glance.state(judged), run_title(test), glance.sentence(judged), glance.figures(judged)
    )
    promises, settings = run.extra.get("promises", ()), run.extra.get("settings") or {}
    if run.decision and (step := _hardly_wrong(run.decision, judged, promises, settings)):
        answer += "\n\n" + textwrap.fill(step.text, 78, break_on_hyphens=False)
    return f"{terminal.terminal_table(run.rows)}\n\n{answer}"


def replace_saved_model(folder: str | os.PathLike, saved_model: str) -> bool:
    """Changes what a run's page says of its SavedModel, without drawing the page again.

    Args:
      folder: The run's folder.
      saved_model: Path of the SavedModel, or why there is none.

    Returns:
      Whether the page has a place for it; one of an earlier version has none.
    """
    run = SavedRun.load(Path(folder))
    shown = exported_answers(run.predictions, run.decision, cells.only(run.rows))
    extra = run.extra
    first = run_glance(
        shown,
        run.decision,
        extra.get("promises", ()),
        saved_model,
        extra.get("settings") or {},
        extra.get("problem", ""),
    )
    return pages.replace_steps(run.folder / "report.html", first.steps)


def _pictures(
    shown: Shown,
    first: Predictions,
    images: np.ndarray | None,
    files: Sequence[str] | np.ndarray | None,
    earlier: Path,
) -> dict[str, Pictures]:
    """Pictures of a run's gallery and of the errors of its frozen classifier, see `KEPT`."""
    p = shown.predictions
    picked = gallery.pick(p, shown.method)
    rows = np.concatenate([*picked.values()]), gallery.candidate_errors(first)
    return {
        name: Pictures.of_rows(row, images, files, earlier)
        for name, row in zip(KEPT, rows, strict=True)
    }


def _gallery(
    shown: Shown,
    pictures: Pictures,
    class_names: Sequence[str] | None,
    explanations: Explanations | None,
) -> Gallery:
    return gallery.build(
        shown.predictions,
        shown.method,
        None,
        accept=shown.accepted,
        class_names=class_names,
        pictures=pictures.images,
        names=pictures.names,
        links=pictures.links,
        # Explanations of the frozen classifier do not hold for another one's answers.
        explanations=explanations if shown.predictor == CLASSIFIER else None,
    )


def _thresholds(
    promises: Sequence[Row],
    decision: Decision | None,
    shown: Shown,
    class_names: Sequence[str] | None,
) -> list[Block]:
    blocks: list[Block] = []
    if decision and decision.reason:
        who = f"{cells.label(decision.method)}, {cells.stage_label(decision.predictor)} classifier"
        blocks.append(pages.text(f"Why u of {who}, is exported: {decision.reason}."))
    exported = (shown.method, shown.predictor)
    if decision and (decision.method, decision.predictor) == exported:
        test, chosen = shown.predictions, decision.threshold
        mine = [
            row
            for row in promises
            if (row["method"], row["stage"]) == (decision.method, decision.predictor.stage)
        ]
        blocks += [
            _decision_text(chosen, shown.judged.outcome),
            *group_tables.of_classes(chosen, test, decision.method, class_names or ()),
            figures.draw_thresholds(decision.calibration, test, decision.method, chosen, mine),
            _review_table(decision, test),
        ]
    if rows := [row for row in promises if cells.is_candidate(row["method"])]:
        blocks.append(tables.promise_table(rows))
    return blocks


def _review_table(decision: Decision, test: Predictions) -> Table:
    """How many errors checking the least trusted test answers finds, expected and in fact."""
    calibration, u = decision.calibration, test.uncertainty[decision.method]
    lines: list[list[str | Cell]] = []
    for share in (0.01, 0.05, 0.1, 0.2):
        k = max(round(share * len(u)), 1)
        queue = thresholds.review_queue(
            u, k, calibration=(calibration.is_error, calibration.uncertainty[decision.method])
        )
        errors, expected = int(test.is_error[queue.rows].sum()), queue.expected_errors
        lines.append(
            [
                Cell(f"{k:,}", k),
                Cell("n/a" if expected is None else f"{expected:.0f}", expected),
                f"{queue.low:,} to {queue.high:,}",
                Cell(f"{errors:,}", errors),
                Cell(f"{errors / max(test.is_error.sum(), 1):.0%}"),
            ]
        )
    return Table(
        "review",
        "If a person checks the test answers with the highest u: wrong ones among them, as "
        "expected from the calibration images (with a 90 % interval), and in fact.",
        {
            "checked": "checked",
            "expected": "wrong, expected",
            "interval": "interval",
            "found": "wrong, found",
            "share": "of all errors",
        },
        lines,
    )


def _decision_text(chosen: Threshold, test: Outcome) -> Text:
    if chosen.accepts_nothing:
        return pages.text(f"The SavedModel accepts nothing: {chosen.rule} is not achievable.")
    rule = chosen.rule.replace("best BACC", "the best balanced accuracy, BACC")
    which = chosen.accepts if chosen.tau is None else f"u < {cells.printed_u(chosen.tau, 4)}"
    return pages.text(
        f"The SavedModel accepts answers with {which} "
        f"({rule}, chosen on {chosen.n:,} calibration images): of the {test.n:,} test images ",
        *outcome_text(test),
    )


def redraw_run(
    folder: Path, output_dir: Path | None = None, *, saved_model: str = "", **pictures: Any
) -> tuple[Path, SavedRun]:
    """Draws a run's report from its files; returns the page's path and the run.

    Args:
      folder: The run's folder.
      output_dir: Where the report goes; None: to the run's folder.
      saved_model: See `write_run_report`, for a run that is not finished.
      **pictures: `images` and `files` as in `write_run_report`, for the first report of a run.
    """
    run = SavedRun.load(folder)
    finished = folder / "finished.json"
    if finished.exists():
        saved_model = str(
            json_files.parse(finished.read_text(encoding="utf-8")).get("saved_model", "")
        )
    page = write_run_report(
        output_dir or folder,
        run.rows,
        run.predictions,
        load_history(folder / "history.csv"),
        class_names=run.extra.get("data", {}).get("class_names"),
        settings=run.extra.get("settings"),
        environment=run.extra.get("environment"),
        notes=run.extra.get("notes", ()),
        saved_model=saved_model,
        promises=run.extra.get("promises", ()),
        decision=run.decision,
        pixels=folder / "figures",
        explanations=load_explanations(
            folder / EXPLANATIONS_FILE, len(run.predictions[CLASSIFIER].predicted)
        ),
        problem=run.extra.get("problem", ""),
        costs=run.extra.get("costs"),
        **pictures,
    )
    return page, run
