"""Reports of a run, of a study and of anyone's scores, from what was saved: nothing is trained.

    python -m btcp_tf.report runs/fashion_mnist-seed0

draws the report and the figures of a run's or a study's folder again; for a predictions file it
computes the same tables and writes a report beside it. No TensorFlow here. What tables hold is in
`btcp_tf.tables`, figures are in `btcp_tf.plots`, and `btcp_tf.pages` writes them.
"""

import csv
import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from btcp_tf import (
    command,
    evaluation,
    gallery,
    glance,
    metrics,
    pages,
    plots,
    svg,
    tables,
    tabular,
    thresholds,
)
from btcp_tf.data import CORRUPTIONS
from btcp_tf.evaluation import REFERENCE, Answers, Decision, Predictions
from btcp_tf.files import atomic_path, check_folder
from btcp_tf.methods import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS
from btcp_tf.pages import (
    Block,
    Definitions,
    Details,
    Heading,
    Report,
    Text,
    text,
    write_report,
)
from btcp_tf.plots import Drawing
from btcp_tf.tables import (
    FEW_ERRORS,
    GIVEN,
    Cell,
    Row,
    Table,
    Words,
    by,
    classifiers,
    difference_cell,
    label,
    number,
    only,
    stage_label,
    terminal_table,
    value_cell,
)
from btcp_tf.thresholds import Outcome, Threshold, outcome

__all__ = [
    "main",
    "terminal_table",
    "write_predictions_report",
    "write_run_report",
    "write_study_report",
]

USAGE = "python -m btcp_tf.report PATH [--SETTING=VALUE ...]"

SHOWN = 24
"""Single errors that a report shows of each kind."""

_PAPER_WORDS = (
    "Beside the paper's table, in percent; the paper's BTCP is the fine-tuned one. Its FPR column "
    "cannot be matched. Read by the paper's formula (FPR: accepted errors ÷ errors), MCP on "
    "Fashion-MNIST would have to reject most correct answers; read as the authors' prototype "
    "computes it (FP / n: accepted errors ÷ all answers), the MNIST classifier would have to be "
    "wrong on more than 13 %. Both are shown, and no match is claimed. Our AUROC is the "
    "paper's AUC, several cells of which equal those of an earlier publication."
)
_PART_WORDS = (
    "The paper's cells are left out: this is a part of the data (max_train_images, "
    "max_test_images), whose figures do not belong beside them."
)


# A run -----------------------------------------------------------------------------------------


def write_run_report(
    folder: str | os.PathLike,
    rows: Sequence[Row],
    predictions: Mapping[str, Predictions],
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
    explanations: evaluation.Explanations | None = None,
    files: Sequence[str] | np.ndarray | None = None,
) -> Path:
    """Writes `figures/` and `report.html` of a run.

    The pixels of the answers that are shown are saved beside the figures, with the paths of their
    files, so that a report can be drawn again without the data set.

    Args:
      folder: The run's folder.
      rows: Result rows of `btcp_tf.evaluation`, of every task and split.
      predictions: Name of a predictor ("frozen", "<method>_finetuned", or a method that answers
        itself) -> its predictions of the test set. The last fine-tuned one, else the first,
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
    test = only(rows)
    whole = _whole(settings or {})
    source = Path(pixels or folder / "figures")
    shown = exported_answers(predictions, decision, test)
    drawings = plots.draw_run(predictions, history, tau=test[0]["tau"])
    results = [block for group in classifiers(test) for block in _headline(group)]
    seen = tables.with_answers(rows)
    paper = _paper(test, whole) if any(row["dataset"] in tables.PAPER for row in test) else []
    kept = _kept(source, shown, images, files)
    report = Report(
        run_title(test),
        [*_remarks(test), *merge_notes(notes)],
        [
            ("Check these first", [_run_gallery(shown, kept, class_names, explanations)]),
            ("Threshold and promise", _thresholds(promises, decision, predictions)),
            ("How well u finds the errors", results),
            ("Figures", drawings),
            ("Failures per class", [_class_table(predictions, class_names, test)]),
            ("Errors to look at", _error_blocks(source, predictions, class_names, images=images)),
            ("All metrics", [tables.metric_table(group) for group in classifiers(test)]),
            ("The paper's columns", paper),
            ("OOD detection, joint task, covariate shift", _other_images(seen, rows, whole)),
            *_appendix(rows, settings or {}, environment or {}),
        ],
        run_glance(shown, decision, promises, saved_model),
    )
    _save_pixels(folder / "figures", predictions, images, pixels)
    kept.save(folder / "figures")
    return write_report(folder, report, files=False)


@dataclasses.dataclass(frozen=True)
class Shown:
    """Whose answers and whose u a run's first screen is about: what its SavedModel answers."""

    predictions: Predictions
    """Of the test set."""
    stage: str
    """Predictor, as "frozen"."""
    method: str
    threshold: Threshold

    @property
    def judged(self) -> glance.Judged:
        """What the threshold does to the test answers."""
        u = self.predictions.uncertainty[self.method]
        return glance.judge(self.threshold, self.predictions.is_error, u)


def exported_answers(
    predictions: Mapping[str, Predictions], decision: Decision | None, test: Sequence[Row]
) -> Shown:
    """The answers that the SavedModel gives; without a decision those of the last fine-tuned
    classifier, else the first one, at the tau of the rows."""
    if decision and decision.predictor in predictions:
        found = predictions[decision.predictor]
        if decision.method in found.uncertainty:
            return Shown(found, decision.predictor, decision.method, decision.threshold)
    first, *_ = predictions
    main = next((name for name in reversed([*predictions]) if name.endswith("_finetuned")), first)
    threshold = dataclasses.replace(thresholds.DEFAULT, tau=float(test[0]["tau"]))
    return Shown(predictions[main], main, _main_method(predictions[main]), threshold)


def run_title(test: Sequence[Row]) -> str:
    """What a run's report is called."""
    return f"Which answers are wrong? {_names(test, 'dataset')}, seed {_names(test, 'seed')}"


def _class_table(
    predictions: Mapping[str, Predictions], class_names: Sequence[str] | None, test: Sequence[Row]
) -> Table:
    first, *_ = predictions.values()
    return tables.class_table([first], class_names, str(test[0]["dataset"]))


def run_glance(
    shown: Shown, decision: Decision | None, promises: Sequence[Row], saved_model: str
) -> glance.Glance:
    """The first screen of a run."""
    judged, p = shown.judged, shown.predictions
    gallery_ = gallery.pick(p.is_error, p.uncertainty[shown.method])
    steps: list[glance.Step | None] = [_look(gallery_)]
    exported = bool(saved_model) and not saved_model.startswith(evaluation.NOT_EXPORTED)
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
    return glance.Glance(
        glance.state(judged),
        _about(shown),
        glance.sentence(judged),
        glance.figures(judged),
        [step for step in steps if step],
        "Wrong among the accepted, by how many are accepted",
        _curve(p, shown.method, judged.outcome),
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
    rows, extra = evaluation.load_rows(folder / "results.json")
    predictions, decision = load_predictions(folder, rows), evaluation.load_decision(folder)
    if not predictions:
        raise ValueError(f"expected {folder / 'predictions.npz'}, received no such file")
    notes = [*_remarks(only(rows)), *merge_notes(extra["notes"])]
    plain = [note for note in notes if not pages.is_technical(note)]
    parts = [
        _terminal_answer(rows, predictions, decision),
        "\n".join(f"note: {note}" for note in plain),
    ]
    files = [f"report      {folder / 'report.html'}"]
    if more := len(notes) - len(plain):
        files[0] += f" (and {more} note{'s' * (more > 1)} about training)"
    files.append(f"TensorBoard tensorboard --logdir {folder / 'tensorboard'}")
    files.append(f"SavedModel  {decision.of(saved_model) if decision else saved_model}")
    if decision and decision.reason and not saved_model.startswith(evaluation.NOT_EXPORTED):
        files[-1] += f": {decision.reason}"
    return "\n\n".join(filter(None, [*parts, "\n".join(files)]))


def _terminal_answer(
    rows: Sequence[Row], predictions: Mapping[str, Predictions], decision: Decision | None
) -> str:
    """Every method's figures, and the sentence and figures of the first screen."""
    test = only(rows)
    judged = exported_answers(predictions, decision, test).judged
    answer = glance.terminal(
        glance.state(judged), run_title(test), glance.sentence(judged), glance.figures(judged)
    )
    return f"{terminal_table(rows)}\n\n{answer}"


def replace_saved_model(folder: str | os.PathLike, saved_model: str) -> bool:
    """Changes what a run's page says of its SavedModel, without drawing the page again.

    Args:
      folder: The run's folder.
      saved_model: Path of the SavedModel, or why there is none.

    Returns:
      Whether the page has a place for it; one of an earlier version has none.
    """
    folder = Path(folder)
    rows, extra = evaluation.load_rows(folder / "results.json")
    predictions, decision = load_predictions(folder, rows), evaluation.load_decision(folder)
    shown = exported_answers(predictions, decision, only(rows))
    found = run_glance(shown, decision, extra.get("promises", ()), saved_model)
    return pages.replace_steps(folder / "report.html", found.steps)


def _look(picked: Mapping[str, np.ndarray]) -> glance.Step:
    unsure, trusted = (len(picked[kind]) for kind in ("uncertain", "trusted"))
    words = f"Look at the {unsure} answers with the highest u"
    if trusted:
        words += f", and at the {trusted} error{'s' * (trusted > 1)} that it trusts most"
    return glance.Step(f"{words}.", link="#check-these-first")


def _about(shown: Shown) -> str:
    p = shown.predictions
    errors = int(p.is_error.sum())
    return (
        f"{len(p.is_error):,} test images · {100 * (1 - errors / len(p.is_error)):.2f} % right · "
        f"{errors:,} error{'s' * (errors != 1)} · u of {label(shown.method)}, "
        f"{stage_label(shown.stage)} classifier"
    )


def _curve(p: Predictions, method: str, chosen: Outcome | None) -> svg.Chart:
    """Risk and coverage of a method and of MCP."""
    columns = [(label(method), "ours", p.uncertainty[method])]
    mcp = evaluation.mcp_of(p)
    if method != REFERENCE and mcp is not None:
        columns.append((label(REFERENCE), "mcp", mcp))
    return glance.risk_coverage(p.is_error, columns, chosen)


# The answers to check first --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Pictures of the answers in the gallery, and where they come from."""

    rows: np.ndarray
    images: np.ndarray | None
    files: Sequence[str] | None

    def save(self, folder: Path) -> None:
        """Writes `gallery.npz`, from which a report is drawn again."""
        if self.images is None:
            return
        files = [] if self.files is None else list(self.files)
        with atomic_path(folder / "gallery.npz") as temporary:
            np.savez_compressed(
                temporary, rows=self.rows, images=self.images, files=np.array(files, str)
            )


def _kept(
    source: Path,
    shown: Shown,
    images: np.ndarray | None,
    files: Sequence[str] | np.ndarray | None,
) -> _Kept:
    """The pictures of the gallery's rows, from the images or an earlier report."""
    picked = gallery.pick(shown.predictions.is_error, shown.predictions.uncertainty[shown.method])
    rows = np.concatenate([*picked.values()])
    if images is not None:
        return _Kept(rows, images[rows], None if files is None else [files[row] for row in rows])
    path = source / "gallery.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as saved:
            if np.array_equal(saved["rows"], rows):
                names = [str(name) for name in saved["files"]]
                return _Kept(rows, saved["images"], names or None)
    # An earlier version kept the confident errors alone.
    found: dict[int, np.ndarray] = {}
    for name in ("most_confident_errors", "likely_label_errors"):
        if (source / f"{name}.npz").exists():
            with np.load(source / f"{name}.npz", allow_pickle=False) as saved:
                found |= dict(zip(saved["rows"].tolist(), saved["images"], strict=True))
    here = np.array([row for row in rows if int(row) in found], np.int64)
    return _Kept(here, np.stack([found[int(row)] for row in here]) if len(here) else None, None)


def _run_gallery(
    shown: Shown,
    kept: _Kept,
    class_names: Sequence[str] | None,
    explanations: evaluation.Explanations | None,
) -> gallery.Gallery:
    rows = kept.rows.tolist()
    paths = dict(zip(rows, map(Path, kept.files or ()), strict=False))
    return gallery.build(
        shown.predictions,
        shown.method,
        shown.threshold.tau,
        class_names=class_names,
        pictures=None if kept.images is None else dict(zip(rows, kept.images, strict=True)),
        names={row: f"image {row}" for row in range(len(shown.predictions.predicted))}
        | {row: f"{path.parent.name}/{path.name}" for row, path in paths.items()},
        links={row: path.as_uri() for row, path in paths.items() if path.is_absolute()},
        # Those of the frozen classifier say nothing of another one's answers.
        explanations=explanations if shown.stage == "frozen" else None,
    )


def _thresholds(
    promises: Sequence[Row], decision: Decision | None, predictions: Mapping[str, Predictions]
) -> list[Block]:
    blocks: list[Block] = []
    if decision and decision.reason:
        whose = f"{label(decision.method)}, {stage_label(decision.predictor)} classifier"
        blocks.append(text(f"Why u of {whose}, is exported: {decision.reason}."))
    if decision and decision.predictor in predictions:
        test, chosen = predictions[decision.predictor], decision.threshold
        u = test.uncertainty.get(decision.method)
        if u is not None:
            blocks.append(_decision_words(chosen, outcome(chosen, test.is_error, u)))
            mine = [
                row
                for row in promises
                if (row["method"], row["stage"]) == (decision.method, decision.stage)
            ]
            blocks.append(
                plots.draw_thresholds(decision.calibration, test, decision.method, chosen, mine)
            )
            blocks.append(_review_table(decision, test))
    if promises:
        blocks.append(
            tables.promise_table([row for row in promises if _is_candidate(row["method"])])
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
        return text(f"The SavedModel accepts nothing: {chosen.rule} is not achievable.")
    return text(
        f"The SavedModel accepts answers with u < {tables.printed_u(chosen.tau, 4)} "
        f"({chosen.rule}, chosen on {chosen.n:,} calibration images): of the {test.n:,} test "
        "images ",
        *_outcome_words(test),
    )


def _outcome_words(found: Outcome) -> list[Words]:
    """The share that is accepted, and how much of it is wrong."""
    words: list[Words] = [Cell(f"{found.coverage:.1%}", found.coverage)]
    if found.accepted:
        rate = f"{found.risk:.2%} [{found.low:.2%}, {found.high:.2%}]"
        words += [", and of those ", Cell(rate, found.risk), " are wrong"]
    return [*words, "."]


def merge_notes(notes: Iterable[str]) -> list[str]:
    """Notes in their order; the same sentence about several stages, "tcp: …", becomes one."""
    whose: dict[str, list[str]] = {}
    for note in notes:
        head, colon, rest = note.partition(": ")
        alone = colon and " " not in head
        whose.setdefault(rest if alone else note, []).extend([head] if alone else [])
    return [
        f"{', '.join(dict.fromkeys(heads))}: {words}" if heads else words
        for words, heads in whose.items()
    ]


def _whole(settings: Mapping[str, Any]) -> bool:
    """Whether a run took all of its data set."""
    limits = ("max_train_images", "max_test_images")
    return all(str(settings.get(name, 0)) == "0" for name in limits)


def _names(rows: Iterable[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(str(row[column]) for row in rows))


def _remarks(rows: Iterable[Row]) -> list[str]:
    """What the numbers of errors say about the rest of the page."""
    remarks = []
    for group in classifiers(rows):
        errors, who = group[0]["errors"], f"The {stage_label(group[0]['stage'])} classifier"
        if errors == 0:
            remarks.append(f"{who} has no wrong answers: {_undefined(group)}.")
        elif errors == group[0]["n"]:
            remarks.append(f"{who} has no right answers: {_undefined(group)}.")
        elif errors < FEW_ERRORS:
            remarks.append(
                f"{who} makes only {errors} error{'s' * (errors > 1)}: every figure about finding "
                "them rests on these few."
            )
    return list(dict.fromkeys(remarks))


def _undefined(group: Sequence[Row]) -> str:
    """The metrics that are not defined where all answers are right, or all are wrong."""
    titles = [
        metric.title
        for name, metric in METRICS.items()
        if metric.kind != "calibration" and all(math.isnan(number(row[name])) for row in group)
    ]
    return f"{', '.join(titles)} are not defined (n/a)"


def _headline(group: Sequence[Row]) -> list[Block]:
    first = group[0]
    where = "answers" if first["stage"] == GIVEN else f"{first['split']} images"
    return [
        Heading(tables.answers_title(first)),
        text(
            "Right on ",
            Cell(f"{tables.printed(first['accuracy'], 'accuracy')} %", first["accuracy"]),
            f" of {first['n']:,} {where}, wrong on ",
            Cell(f"{first['errors']:,}", first["errors"]),
            ". ",
            *_hand_over(group),
            "How well each method finds these errors:",
        ),
        *tables.headline_tables(group),
    ]


def _hand_over(group: Sequence[Row]) -> list[str | Cell]:
    """What is left of the errors if the least trusted answers go to a person."""
    real = [row for row in group if _is_candidate(row["method"])] or group
    known = [row for row in real if not math.isnan(number(row.get("risk_at_coverage_90")))]
    if not known:
        return []
    row = min(known, key=lambda row: number(row["aurc"]))
    risk = number(row["risk_at_coverage_90"])
    words: list[str | Cell] = [
        f"Among the 90 % that {label(row['method'])} trusts most (ties included), ",
        Cell(f"{tables.printed(risk, 'risk_at_coverage_90')} %", risk),
        " are wrong",
    ]
    if len(known) > 1:
        words.append("; of the methods here it has the least AURC on these answers")
    return [*words, ". "]


def _is_candidate(name: str) -> bool:
    """Whether a method is one to choose, no control."""
    return name not in METHODS or METHODS[name].group != "control"


def _main_method(p: Predictions) -> str:
    """The method whose errors are shown where there is room for one: that of the least AURC."""
    names = [name for name in p.uncertainty if _is_candidate(name)] or list(p.uncertainty)
    return min(names, key=lambda name: metrics.aurc(p.is_error, p.uncertainty[name]))


def _paper(rows: Sequence[Row], whole: bool) -> list[Block]:
    return [text(_PAPER_WORDS), *tables.paper_tables(rows)] if whole else [text(_PART_WORDS)]


def _other_images(seen: Sequence[Row], raw: Sequence[Row], whole: bool) -> list[Block]:
    """Tables of OOD sets, the joint task and shifted images; without such rows nothing.

    Args:
      seen: Rows with `answers`, of one run or over seeds.
      raw: Rows of single runs, for the number of OOD images.
      whole: Whether the paper's cells may be shown.
    """
    blocks: list[Block] = []
    for rows in by(seen, "dataset").values():
        sets = [ood for ood in by(rows, "ood") if ood]
        for ood in sets:
            n_ood = next(int(row["n_ood"]) for row in raw if row.get("ood") == ood)
            blocks.append(tables.ood_table(only(rows, "ood", ood), n_ood=n_ood, paper=whole))
        if len(sets) > 1:
            blocks.append(tables.near_far_table([r for r in rows if r.get("task") == "ood"]))
        blocks += [tables.joint_table(only(rows, "joint", ood)) for ood in sets]
        failure = [row for row in rows if row.get("task", "failure") == "failure"]
        if any(":" in row["split"] for row in failure):
            words = " ".join(map(_first_words, CORRUPTIONS.values()))
            blocks.append(text(f"Shifted images, at strength 1, 2 and 3: {words}"))
            blocks += [tables.shift_table(failure, name) for name in ("aurc", "auroc")]
    return blocks


def _appendix(
    rows: Sequence[Row], settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[tuple[str, list[Block]]]:
    def folded(values: Mapping[str, Any], name: str, caption: str) -> list[Block]:
        # In the order of a saved file, so that a page is drawn again alike.
        table = tables.pair_table(dict(sorted(values.items())), name, caption)
        return [Details(caption, [table])] if values else []

    return [
        ("What the metrics mean", [_glossary(any(row.get("ood") for row in rows))]),
        ("What the methods are", _methods(rows)),
        ("Settings", folded(settings, "settings", "Settings of the run")),
        ("Environment", folded(environment, "environment", "Where it ran")),
    ]


def _glossary(ood: bool) -> Block:
    entries = []
    for name, metric in (METRICS | (OOD_METRICS if ood else {})).items():
        function = getattr(metrics, metric.formula.__name__.removeprefix("_"))
        better = "higher" if metric.higher_is_better else "lower"
        entries.append((metric.title, name, f"{_first_words(function)} Better when {better}."))
    return Details(f"{len(entries)} metrics", [Definitions(entries)])


_TRAINED = {
    "tcp": "Estimator of the true class probability, plain squared error (ConfidNet).",
    "ohem": "The same estimator, trained on the hardest examples of each batch alone.",
    "thresholding": "TCP's u; tau is where BACC is best on validation data.",
    "btcp": "The same estimator, trained with the Distributional Focal Loss.",
}


def _methods(rows: Iterable[Row]) -> list[Block]:
    entries = []
    for name in METHODS:
        if any(row["method"] == name for row in rows):
            prepare = METHODS[name].prepare
            words = _TRAINED.get(name) or (_first_words(prepare) if prepare else "")
            entries.append((tables.marked(name), name, words))
    return [Details(f"{len(entries)} methods", [Definitions(entries)])] if entries else []


def _first_words(function: Any) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split()).replace("`", "")


# Single errors ---------------------------------------------------------------------------------


def _picks(predictions: Mapping[str, Predictions]) -> dict[str, tuple[str, str, np.ndarray]]:
    """Which errors are shown: file of their pixels -> predictor, method, rows."""
    first, *_ = predictions
    main = next((name for name in reversed([*predictions]) if name.endswith("_finetuned")), first)
    p, shared = predictions[main], predictions[first]
    method = _main_method(p)
    confident = plots.confident_errors(p.is_error, p.uncertainty[method], SHOWN)
    picks = {"most_confident_errors": (main, method, confident)}
    columns = plots.curves(shared.uncertainty)
    if len(columns) > 1:
        suspects = plots.trusted_by_all(shared.is_error, columns, SHOWN)
        picks["likely_label_errors"] = (first, "", suspects)
    return picks


def _error_blocks(
    folder: Path,
    predictions: Mapping[str, Predictions],
    class_names: Sequence[str] | None,
    *,
    images: np.ndarray | None = None,
    about: str = "",
    seeds: Sequence[Predictions] = (),
    names: Sequence[str] | None = None,
) -> list[Block]:
    """Sheets and tables of confident errors, and of errors that no method distrusts.

    Args:
      folder: The `figures` of the run, whose pixels are used where `images` is None.
      predictions: See `write_run_report`.
      class_names: Names by class number.
      images: All test images.
      about: The data set, where a report has more than one.
      seeds: The frozen classifiers of all seeds, to count who else says the same.
      names: What each row answers; None: its number says it.
    """
    blocks: list[Block] = []
    for stem, (predictor, method, rows) in _picks(predictions).items():
        p = predictions[predictor]
        labels = tables.known_labels(p)
        if not len(rows):
            continue
        same = [sum(o.predicted[row] == p.predicted[row] for o in seeds) for row in rows]
        if method:
            title = "Most confident errors"
            caption = (
                f"Wrong answers of the {stage_label(predictor)} classifier with the smallest u by "
                f"{label(method)}, the most trusted first: what it is, what the classifier said, "
                "and u."
            )
            key = f"u ({label(method)}, {stage_label(predictor)})"
            values = [tables.printed_u(float(p.uncertainty[method][row]), 4) for row in rows]
            shown = [tables.printed_u(float(p.uncertainty[method][row])) for row in rows]
            remarks = [f"u {u}" if u.startswith("<") else f"u = {u}" for u in shown]
        else:
            title = "Errors that every method trusts"
            caption = (
                f"Wrong answers of the {stage_label(predictor)} classifier that every method "
                "trusts more than half of all answers, ordered by the least trusting method's "
                "rank. Look at the label first: it may be the label that is wrong."
            )
            key = "seeds that say the same" if seeds else "largest u of all methods in [0, 1]"
            scales = [
                u
                for name, u in p.uncertainty.items()
                if _is_candidate(name) and u.min() >= 0 and u.max() <= 1
            ]
            if seeds:
                values = [f"{count} of {len(seeds)}" for count in same]
                remarks = [f"{count} of {len(seeds)} seeds" for count in same]
            else:
                largest = [max((float(u[row]) for u in scales), default=math.nan) for row in rows]
                values = ["n/a" if math.isnan(u) else tables.printed_u(u, 4) for u in largest]
                remarks = [f"u up to {u}" for u in values]
        listed = [
            {
                "image": _one_line(names[row]) if names else int(row),
                "true class": tables.class_name(labels[row], class_names),
                "predicted class": tables.class_name(p.predicted[row], class_names),
                key: value,
            }
            for row, value in zip(rows, values, strict=True)
        ]
        pixels = images[rows] if images is not None else _pixels(folder / f"{stem}.npz", rows)
        name, words = "_".join(filter(None, (stem, about))), ": ".join(filter(None, (title, about)))
        if pixels is None:
            blocks += [Heading(words), text(caption)]
        else:
            sheet = plots.error_sheet(pixels, labels[rows], p.predicted[rows], remarks, class_names)
            alt = "; ".join(", ".join(map(str, row.values())) for row in listed[:3])
            blocks.append(Drawing(name, words, caption, sheet, 2, f"{len(rows)}, first {alt}"))
        table = tables.error_table(listed, name, words)
        blocks.append(Details(f"{len(listed)} error{'s' * (len(listed) > 1)} as a table", [table]))
    return blocks


def _save_pixels(
    folder: Path,
    predictions: Mapping[str, Predictions],
    images: np.ndarray | None,
    source: str | os.PathLike | None,
) -> None:
    """Keeps the pixels of the errors that are shown, from the images or an earlier report."""
    for stem, (*_, rows) in _picks(predictions).items():
        found = images[rows] if images is not None else None
        if found is None and source is not None and Path(source) != folder:
            found = _pixels(Path(source) / f"{stem}.npz", rows)
        if found is not None:
            with atomic_path(folder / f"{stem}.npz") as temporary:
                np.savez_compressed(temporary, rows=rows, images=found)


def _pixels(path: Path, rows: np.ndarray) -> np.ndarray | None:
    """Images of these rows from an earlier report; None where it has others or is not there."""
    if path.exists():
        with np.load(path) as saved:
            if np.array_equal(saved["rows"], rows):
                return saved["images"]
    return None


# A study ---------------------------------------------------------------------------------------


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
        rows, extra = evaluation.load_rows(folder / "results.json")
    extra = extra or {}
    rows = [{"ablation": "", "cell": f"{row['dataset']}-seed{row['seed']}", **row} for row in rows]
    plain = [row for row in rows if not row["ablation"]]
    seen = evaluation.across_seeds(tables.with_answers(plain))
    datasets = list(by(plain, "dataset"))
    cells = {name: list(by(only(plain_of(plain, name)), "cell")) for name in datasets}
    settings = extra.get("cells", {})
    whole = all(_whole(settings.get(cell, {})) for names in cells.values() for cell in names)
    sections: dict[str, list[Block]] = {
        heading: []
        for heading in (
            "Which method to use",
            "Failure prediction",
            "OOD detection, joint task, covariate shift",
            "What the loss does",
            "Figures",
            "Failures per class",
            "Errors to look at",
            "All metrics",
        )
    }
    ranks = plots.draw_ranks(_shared(plain))
    if len(datasets) and ranks:
        sections["Figures"].append(ranks)
    if any(name in tables.PAPER for name in datasets):
        sections["Failure prediction"].append(text(_PAPER_WORDS if whole else _PART_WORDS))
    for name in datasets:
        found = plain_of(seen, name)
        test = only(found)
        sections["Which method to use"] += [*_summary(found, plain_of(plain, name))]
        sections["Which method to use"].append(tables.difference_table(test))
        sections["Failure prediction"] += [
            tables.failure_table(test, paper=whole),
            tables.ranking_table(test),
        ]
        sections["OOD detection, joint task, covariate shift"] += _other_images(
            found, plain_of(plain, name), whole
        )
        sections["What the loss does"] += _ablation(plain_of(rows, name))
        data = extra.get("data", {}).get(name, {})
        about_cells = _cell_blocks(
            folder, name, cells[name], plain_of(plain, name), data.get("class_names")
        )
        shift = plots.draw_shift(_shared(found, splits=True), name)
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
            *_appendix(plain, common, extra.get("environment", {}))[:2],
            ("Settings", _study_settings(common, others, extra)),
            *_appendix(plain, {}, extra.get("environment", {}))[3:],
        ],
        _study_glance(folder, plain, seen, cells),
    )
    return write_report(Path(output_dir or folder), report, files=True)


def _study_glance(
    folder: Path,
    plain: Sequence[Row],
    seen: Sequence[Row],
    cells: Mapping[str, Sequence[str]],
) -> glance.Glance:
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
        state = glance.State(
            "holds" if len(better) == len(found) else "open" if better else "none",
            f"better than {label(REFERENCE)} on {len(better)} of {len(found)} data sets",
        )
        words = [f"Use {', '.join(w.name + ' on ' + w.dataset for w in found)}."]
        figures = [winner.figures()[0] for winner in found]
    steps = [glance.Step("Look at the errors that are trusted most.", link="#errors-to-look-at")]
    if seeds < 5:
        steps.append(
            glance.Step(
                f"{seeds} seed{'s' * (seeds > 1)} tell little of how much another training would "
                "change; the same command goes on with more:",
                "--seeds=5",
            )
        )
    if first.best is not None:
        steps.append(
            glance.Step(
                "Train it by itself:",
                f"python -m btcp_tf.main --dataset={first.dataset} "
                f"--method={','.join(dict.fromkeys((REFERENCE, first.best['method'])))}",
            )
        )
    predictions = load_predictions(folder / cells[first.dataset][0], plain_of(plain, first.dataset))
    chart = None
    if "frozen" in predictions and first.method in predictions["frozen"].uncertainty:
        chart = _curve(predictions["frozen"], first.method, None)
    return glance.Glance(
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

    def state(self) -> glance.State:
        if self.few:
            return glance.State("open", "too few errors to tell")
        if self.best is None:
            return glance.State("none", f"none shown better than {label(REFERENCE)}")
        return glance.State("holds", f"better than {label(REFERENCE)}")

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

    def figures(self) -> list[glance.Figure]:
        row, reference = self.best, self.reference
        if reference is None:
            return [glance.Figure("n/a", f"{self.dataset}: nothing is compared")]
        against = f"{self.dataset}: no method is shown to rank the errors better than MCP"
        shown = glance.Figure("none", against)
        if row is not None:
            cell = difference_cell(row, "auroc")
            shown = glance.Figure(
                cell.text,
                f"points of AUROC, {label(row['method'])} against {label(REFERENCE)} on "
                f"{self.dataset}, {cell.spread} with 95 % certainty",
            )
        chosen = reference if row is None or self.few else row
        risks = [
            f"{tables.printed(number(r.get('risk_at_coverage_90')), 'risk_at_coverage_90')} %"
            for r in (chosen, reference)
        ]
        beside = f"; {label(REFERENCE)}: {risks[1]}" if chosen is not reference else ""
        return [
            shown,
            glance.Figure(risks[0], f"wrong among the 90 % that {self.name} trusts most{beside}"),
            glance.Figure(
                f"{reference['errors']:,.0f}",
                f"errors of {int(reference['n']):,} test answers for the methods to find",
            ),
        ]


def _winner(dataset: str, plain: Sequence[Row], seen: Sequence[Row]) -> _Winner:
    test = only(plain_of(seen, dataset))
    reference = next(
        (row for row in test if row["method"] == REFERENCE and row["stage"] != "finetuned"), None
    )
    errors = [
        row["errors"] for row in only(plain_of(plain, dataset)) if row["stage"] != "finetuned"
    ]
    return _Winner(dataset, _best(_candidates(test)), reference, min(errors) < FEW_ERRORS)


def plain_of(rows: Iterable[Row], dataset: str) -> list[Row]:
    """Rows of one data set."""
    return [row for row in rows if row["dataset"] == dataset]


def _shared(rows: Iterable[Row], *, splits: bool = False) -> list[dict[str, Any]]:
    """Rows of failure prediction that speak of the shared frozen classifiers."""
    rows = list(rows)
    rows = rows if "answers" in rows[0] else tables.with_answers(rows)
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
        text(
            f"{len(errors)} seed{'s' * (len(errors) > 1)}, {int(reference['n']):,} test images, of "
            "which the classifiers get ",
            _percent(reference, "accuracy"),
            " right: ",
            Cell(counts, None),
            f" errors{' each' * (len(errors) > 1)} for the methods to find. {label(REFERENCE)}, "
            "which costs nothing, trusts an error less than a correct answer with probability ",
            _percent(reference, "auroc"),
            " (AUROC).",
        ),
    ]
    blocks.append(_recommendation(test, few=min(errors) < FEW_ERRORS))
    blocks += _btcp(test)
    for ood in [name for name in by(seen, "ood") if name]:
        blocks += _ood_words(only(seen, "ood", ood), ood)
    return blocks


def _percent(row: Row, name: str) -> Cell:
    cell = value_cell(row, name)
    return dataclasses.replace(cell, text=f"{cell.text} %")


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
        return text("No other method was compared.")
    if few:
        return text(
            Cell(f"Fewer than {FEW_ERRORS} errors cannot choose a method."),
            f" Without more data take {label(REFERENCE)}, which costs nothing. {_tally(rows)} With "
            "so few errors these intervals are uncertain themselves.",
        )
    if best is None:
        return text(
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
    return text(*words, _tally(rows))


def _btcp(test: Sequence[Row]) -> list[Block]:
    """Whether BTCP beats the MCP of its classifier, in ranking and at the threshold."""
    blocks: list[Block] = []
    cubed = next((row for row in test if row["method"] == "mcp_cubed"), None)
    for row in tables.ordered(test):
        if row["method"] != "btcp" or not row.get("verdict"):
            continue
        same = next(
            other
            for other in test
            if other["method"] == REFERENCE
            and other["stage"] == row["stage"]
            and other["answers"] == row["answers"]
        )
        name, base = tables.who(row), tables.who(same)
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
            _percent(row, "bacc"),
            " against ",
            _percent(same, "bacc"),
        ]
        if cubed is not None and row["stage"] != "finetuned":
            words += [
                f"; {label('mcp_cubed')}, which ranks exactly as {label(REFERENCE)} and knows "
                "nothing more, has ",
                _percent(cubed, "bacc"),
            ]
        blocks.append(text(*words, "."))
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
            _percent(best, "auroc"),
            f", difference to {label(REFERENCE)} ",
            difference_cell(best, "auroc"),
        ]
    for row in compared:
        if row["method"] == "btcp" and row is not best:
            words += [f"; {label('btcp')} ", difference_cell(row, "auroc")]
    return [text(*words, ".")]


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
    drawing = plots.draw_ablation(changed, base, base[0]["dataset"])
    return [drawing, tables.ablation_table(changed, base)]


def _cell_blocks(
    folder: Path,
    dataset: str,
    cells: Sequence[str],
    rows: Sequence[Row],
    class_names: Sequence[str] | None,
) -> dict[str, list[Block]]:
    """What comes from the files of a data set's runs, by section."""
    found = {cell: load_predictions(folder / cell, rows) for cell in cells}
    found = {cell: predictions for cell, predictions in found.items() if predictions}
    history = [row for cell in cells for row in load_history(folder / cell / "history.csv")]
    tau = next(row["tau"] for row in rows)
    drawings: list[Drawing | None] = []
    blocks: dict[str, list[Block]] = {}
    if found:
        first, predictions = next(iter(found.items()))
        frozen = [p["frozen"] for p in found.values()]
        others = {
            ood: saved
            for ood in by(rows, "ood")
            if ood and (saved := _load(folder / first / f"predictions_ood_{ood}.npz"))
        }
        drawings += [
            plots.draw_histograms(frozen[0], dataset, tau),
            plots.draw_risk_coverage(frozen[0], dataset),
            plots.draw_confidence(frozen[0], others, dataset),
        ]
        blocks["Failures per class"] = [tables.class_table(frozen, class_names, dataset)]
        blocks["Errors to look at"] = _error_blocks(
            folder / first / "figures",
            predictions,
            class_names,
            about=dataset,
            seeds=frozen if len(frozen) > 1 else (),
        )
    estimators = [row for row in history if not row["stage"].endswith("_finetuned")]
    if estimators:
        drawings.append(plots.draw_rates_per_epoch(estimators, dataset, tau))
        drawings.append(plots.draw_u_per_epoch(estimators, dataset))
    blocks["Figures"] = [drawing for drawing in drawings if drawing is not None]
    return blocks


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
    notes = merge_notes(notes)
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
        text(f"Hash of all settings: {digest}." + f" Command: {command_line}" * bool(command_line))
    ]
    for values, name, caption in (
        (common, "settings", "Settings of all runs"),
        (single, "settings_of_runs", "Settings that differ between runs"),
    ):
        if values:
            blocks.append(Details(caption, [tables.pair_table(values, name, caption)]))
    return blocks


# Anyone's scores -------------------------------------------------------------------------------


def write_predictions_report(
    path: str | os.PathLike,
    *,
    output_dir: str | os.PathLike | None = None,
    tau: float | None = None,
    bootstrap_draws: int = 1000,
    reverse: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Path, list[dict[str, Any]]]:
    """The report of a predictions file from any program: tables, figures, rows.

    Args:
      path: An .npz, .csv, .jsonl or .parquet file, see `evaluation.load_answers`. Its decisions
        `accept`, if it has any, are judged as they stand.
      output_dir: Where to write; None: `<name>-report/` beside the file, as
        scores.csv-report.
      tau: Decision threshold on u. None: for each column one that decides as the file does, 0.5
        where there is none.
      bootstrap_draws: Draws of the intervals.
      reverse: Columns where higher = more trusted.
      seed: Seed of the draws.

    Returns:
      Path of `report.html`, and the rows, which are in `results.json` beside it, together with
      `decision`, what `accept` does, `left_out`, the numbers of rows without an answer or a label,
      and `notes`.

    Raises:
      ValueError: If the file is none of predictions with labels; the message says why.
    """
    page, rows, _ = _write_predictions_report(
        path,
        output_dir=output_dir,
        tau=tau,
        bootstrap_draws=bootstrap_draws,
        reverse=reverse,
        seed=seed,
    )
    return page, rows


def _write_predictions_report(
    path: str | os.PathLike,
    *,
    output_dir: str | os.PathLike | None,
    tau: float | None,
    bootstrap_draws: int,
    reverse: Sequence[str],
    seed: int,
) -> tuple[Path, list[dict[str, Any]], list[str]]:
    """As `write_predictions_report`, and what the terminal says beside the table."""
    path = Path(path)
    answers = evaluation.load_answers(path, reverse=reverse)
    predictions = answers.predictions
    if predictions.labels is None:
        raise ValueError(f"{path}: expected labels, the true classes, received none")
    given = _taus(answers)
    usual = thresholds.DEFAULT.tau if tau is None else tau
    assert usual is not None
    taus = given if tau is None else {}
    with warnings.catch_warnings():
        # What is not defined is among the notes.
        warnings.simplefilter("ignore", RuntimeWarning)
        rows = evaluation.rows(
            predictions,
            dataset=path.stem,
            seed=seed,
            stage=GIVEN,
            classifier_id=path.stem,
            split="given",
            tau=usual,
            taus=taus,
            bootstrap_draws=bootstrap_draws,
            bootstrap_seed=seed,
        )
    folder = Path(output_dir) if output_dir else path.with_name(f"{path.name}-report")
    settings = {
        "file": str(path),
        "tau": rows[0]["tau"],
        "bootstrap_draws": bootstrap_draws,
        "reverse": ",".join(reverse),
        "seed": seed,
    }
    check_folder("output_dir", folder)
    decision, judged = _judge(answers, given, usual)
    notes = [*_left_out(answers), *_contradiction(answers, given), *_remarks(rows)]
    named = {path.stem: predictions}
    marks = {row["method"]: row["tau"] for row in rows}
    method = next(iter(given), _main_method(predictions))
    threshold = _threshold_of(predictions.uncertainty[method], marks[method], chosen=tau)
    first = _scores_glance(answers, method, threshold, path)
    cards = gallery.build(
        predictions,
        method,
        threshold.tau,
        accept=answers.accept,
        names={row: _one_line(name) for row, name in enumerate(answers.inputs or ())},
        links=_links(path, answers.inputs or ()),
    )
    report = Report(
        f"Which answers are wrong? {path.name}",
        notes,
        [
            ("Check these first", [cards]),
            ("How well u finds the errors", _headline(rows)),
            ("What the file accepts", decision),
            ("Figures", plots.draw_run(named, tau=marks)),
            ("All metrics", [tables.metric_table(rows)]),
            ("Failures per class", [tables.class_table([predictions], None, path.stem)]),
            (
                "Errors to look at",
                _error_blocks(folder / "figures", named, None, names=answers.inputs),
            ),
            *_appendix(rows, settings, {}),
        ],
        first,
    )
    page = write_report(folder, report, files=True)
    extra: dict[str, Any] = {"settings": settings, "notes": notes}
    extra["left_out"] = {"unanswered": answers.unanswered, "unlabeled": answers.unlabeled}
    if judged:
        extra["decision"] = judged._asdict() | {"taus": given}
    # Last: a report that cannot be drawn leaves an earlier one whole.
    evaluation.save_rows(folder / "results.json", rows, extra)
    told = ["".join(map(str, block.words)) for block in decision if isinstance(block, Text)]
    shown = glance.terminal(first.state, path.name, first.sentence, first.figures)
    return page, rows, [shown, *told, *notes]


def _links(path: Path, inputs: Sequence[str]) -> dict[int, str]:
    """Row -> address of the file that it answers, where `btcp_tf.predict` scored a folder of them
    that is still there."""
    try:
        about = json.loads(evaluation.about_file(path).read_text(encoding="utf-8"))
        root = Path(about["paths"]["input"])
        if not root.is_dir():
            return {}
        found = {row: (root / name).absolute() for row, name in enumerate(inputs)}
        return {row: file.as_uri() for row, file in found.items() if file.is_file()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # They are no more than a help.


def _threshold_of(u: np.ndarray, tau: float, *, chosen: float | None) -> Threshold:
    """The threshold that a file of scores is judged by where it decides nothing itself."""
    if chosen is None and not 0 <= u.min() <= u.max() <= 1:
        # A raw score: the usual tau means nothing on its scale.
        return thresholds.target_coverage(u, coverage=0.9)
    return dataclasses.replace(thresholds.DEFAULT, tau=tau, rule="given")


def _scores_glance(
    answers: Answers, method: str, threshold: Threshold, path: Path
) -> glance.Glance:
    """The first screen of a file of scores."""
    p, u = answers.predictions, answers.predictions.uncertainty[method]
    judged = glance.judge(threshold, p.is_error, u)
    if answers.accept is not None:
        # A decision is an uncertainty of two values.
        found = outcome(thresholds.DEFAULT, p.is_error, (~answers.accept).astype(np.float64))
        judged = dataclasses.replace(judged, outcome=found, accepts="as the file decides")
    right = 100 * (1 - judged.errors / judged.outcome.n)
    steps = [
        _look(gallery.pick(p.is_error, u)),
        glance.labels(threshold, p.is_error, u, wanted=(0.01, 0.02, 0.05), scores=str(path)),
    ]
    return glance.Glance(
        glance.state(judged),
        f"{judged.outcome.n:,} answers with a label · {right:.2f} % right · {judged.errors:,} "
        f"error{'s' * (judged.errors != 1)} · u of {label(method)}",
        glance.sentence(judged),
        glance.figures(judged),
        [step for step in steps if step],
        "Wrong among the accepted, by how many are accepted",
        _curve(p, method, judged.outcome),
    )


def _one_line(name: object) -> str:
    """What a row answers, on one line."""
    return " ".join(tabular.shown(name).split())


def _taus(answers: Answers) -> dict[str, float]:
    """For each column by which the file may have decided, a tau that decides alike."""
    if answers.accept is None:
        return {}
    found = {
        name: _tau_of(answers.accept, u, answers.tau)
        for name, u in answers.predictions.uncertainty.items()
    }
    return {name: tau for name, tau in found.items() if tau is not None}


def _tau_of(accept: np.ndarray, u: np.ndarray, told: float | None) -> float | None:
    """A tau of which `accept` is u < tau: the one that is told, if it is one, else one of few
    digits; None: of no tau."""
    low, high = _gap(accept, u)
    if not low < high:
        return None
    if told is not None and low < told <= high:
        return told
    if low == -math.inf:
        return min(high, 0.0)
    if high == math.inf:
        return max(1.0, math.nextafter(low, high))
    for digits in range(1, 17):
        tau = float(f"{low / 2 + high / 2:.{digits}g}")
        if low < tau <= high:
            return tau
    return high


def _gap(accept: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """The largest u that is accepted, and the smallest that is not."""
    u = u.astype(np.float64)
    return float(u[accept].max(initial=-math.inf)), float(u[~accept].min(initial=math.inf))


def _judge(
    answers: Answers, given: Mapping[str, float], tau: float
) -> tuple[list[Block], Outcome | None]:
    """What the file's decisions do, in words and beside those of `tau`; nothing without any."""
    p, accept = answers.predictions, answers.accept
    if accept is None:
        return [], None
    # A decision is an uncertainty of two values.
    found = outcome(thresholds.DEFAULT, p.is_error, (~accept).astype(np.float64))
    errors = int(p.is_error.sum())
    by_tau = " or ".join(f"{label(name)} < {at:.6g}" for name, at in given.items())
    rejected = found.n - found.accepted
    words = text(
        f"The file's column accept{f' (as {by_tau})' * bool(by_tau)} accepts {found.accepted:,} of "
        f"{found.n:,} answers, ",
        *_outcome_words(found),
        f" Let through: {found.errors:,} of {errors:,} wrong answers. Rejected: {rejected:,} "
        f"answers, {errors - found.errors:,} of them wrong.",
    )
    other = dataclasses.replace(thresholds.DEFAULT, tau=tau)
    others = {
        f"{label(name)} < {tau:.6g}": outcome(other, p.is_error, u)
        for name, u in p.uncertainty.items()
    }
    table = tables.decision_table({"accept, as in the file": found, **others}, errors)
    return [words, table], found


def _left_out(answers: Answers) -> list[str]:
    counts = {"without an answer": answers.unanswered, "without a label": answers.unlabeled}
    told = [f"{count:,} {words}" for words, count in counts.items() if count]
    total = sum(counts.values())
    return [f"{total:,} row{'s' * (total > 1)} left out: {', '.join(told)}."] if told else []


def _contradiction(answers: Answers, given: Mapping[str, float]) -> list[str]:
    """Says so where no tau of any column decides as the file does."""
    if answers.accept is None or given:
        return []
    gaps = {name: _gap(answers.accept, u) for name, u in answers.predictions.uncertainty.items()}
    told = [
        f"{label(name)} {low:.6g} is accepted and {high:.6g} is not"
        for name, (low, high) in gaps.items()
    ]
    return [
        "The file's column accept is not u < tau, whatever tau is: "
        f"{'; '.join(told)}. It is judged as it stands; the metrics are those of another decision."
    ]


# Drawing again ---------------------------------------------------------------------------------


def load_predictions(folder: Path, rows: Iterable[Row]) -> dict[str, Predictions]:
    """Test predictions of a run's predictors, in order of its rows; those whose file is there.

    Args:
      folder: The run's folder.
      rows: Rows of the run, or of runs with the same methods.

    Returns:
      Name of a predictor -> predictions, "frozen" among them; or nothing without that one.
    """
    names = ["frozen"]
    for row in tables.with_answers(only(rows)):
        if row["answers"]:
            tuned = "_finetuned" * (row["stage"] == "finetuned")
            names.append(row["answers"] + tuned)
    found = {}
    for name in dict.fromkeys(names):
        stem = "predictions" if name == "frozen" else f"predictions_{name}"
        predictions = _load(folder / f"{stem}.npz")
        if predictions is not None:
            count = only(rows)[0]["n"]
            if len(predictions.predicted) != count:
                raise ValueError(
                    f"{folder / stem}.npz: expected the {count} answers of results.json, received "
                    f"{len(predictions.predicted)}"
                )
            found[name] = predictions
    return found if "frozen" in found else {}


def _load(path: Path) -> Predictions | None:
    return evaluation.load_predictions(path) if path.exists() else None


def load_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a run's history, numbers as floats, NaN where a cell is empty; none without a file.

    Raises:
      ValueError: If it is no history; the message names the file.
    """
    if not path.exists():
        return []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [
                {
                    key: value if key in ("stage", "phase") else float(value or "nan")
                    for key, value in row.items()
                }
                for row in csv.DictReader(file)
            ]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected a run's history, received {error}") from error


def redraw_run(folder: Path, output_dir: Path | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """Draws a run's report again from its files; returns the page's path and the rows."""
    rows, extra = evaluation.load_rows(folder / "results.json")
    predictions = load_predictions(folder, rows)
    if not predictions:
        raise ValueError(f"{folder}: expected predictions.npz of a run, received none")
    finished = folder / "finished.json"
    saved_model = ""
    if finished.exists():
        saved_model = str(json.loads(finished.read_text(encoding="utf-8")).get("saved_model", ""))
    page = write_run_report(
        output_dir or folder,
        rows,
        predictions,
        load_history(folder / "history.csv"),
        class_names=extra.get("data", {}).get("class_names"),
        settings=extra.get("settings"),
        environment=extra.get("environment"),
        notes=extra.get("notes", ()),
        saved_model=saved_model,
        promises=extra.get("promises", ()),
        decision=evaluation.load_decision(folder),
        pixels=folder / "figures",
        explanations=evaluation.load_explanations(
            folder / evaluation.EXPLANATIONS_FILE, len(predictions["frozen"].predicted)
        ),
    )
    return page, rows


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and writes the report; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if len(leftovers) != 1:
            raise command.UsageError(
                f"expected one PATH, received {len(leftovers)}: {' '.join(leftovers)}".rstrip(": ")
            )
        path = Path(leftovers[0]).expanduser()
        scores = path.suffix.lower() in evaluation.ENDINGS
        if path.is_dir() and not (path / "results.json").exists() and any(path.rglob("flags.cfg")):
            raise command.UsageError(
                f"expected a run or a study that is finished, received {path} without "
                "results.json; the command that began it goes on with it"
            )
        if not (path.is_file() if scores else (path / "results.json").is_file()):
            received = str(path) if path.exists() else f"none: {path} is not there"
            raise command.UsageError(
                "expected a run's or a study's folder with results.json, or a predictions file "
                f"({', '.join(evaluation.ENDINGS)}), received {received}"
            )
        given = [name for name in _SCORING if flag_values[name].present]
        if given and not scores:
            raise command.UsageError(
                f"{given[0]}: expected only with a predictions file, received it with {path}, "
                "whose rows are saved already"
            )
    return command.carry_out(lambda: _write(path, flag_values), verbose=1)


_SCORING = ("tau", "bootstrap_draws", "reverse", "seed")


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    flags.DEFINE_string(
        "output_dir",
        "",
        "Where to write; empty: the folder itself, or <name>-report beside a file.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "tau",
        thresholds.DEFAULT.tau,
        "Decision threshold on u; without it, a file that decides itself (accept) is taken at its "
        "word.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "bootstrap_draws", 1000, "Draws of the bootstrap intervals.", flag_values=flag_values
    )
    flags.DEFINE_list(
        "reverse", [], "Columns where higher = more trusted.", flag_values=flag_values
    )
    flags.DEFINE_integer("seed", 0, "Seed of the bootstrap draws.", flag_values=flag_values)
    return flag_values


def _write(path: Path, flag_values: flags.FlagValues) -> None:
    values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
    output_dir = Path(values["output_dir"]).expanduser() if values["output_dir"] else None
    notes: list[str] = []
    if path.is_file():
        given = {name: values[name] for name in _SCORING}
        if not flag_values["tau"].present:
            given["tau"] = None
        page, rows, notes = _write_predictions_report(path, output_dir=output_dir, **given)
        table = terminal_table(rows)
    else:
        page, table = _redraw(path, output_dir)
    print(f"{table}\n")
    for note in notes:
        print(note if "\n" in note else textwrap.fill(note, 79), end="\n\n")
    files = {
        "report": "report.html",
        "markdown": "report.md",
        "results": "results.json",
        "tables": "tables",
        "figures": "figures",
    }
    for name, file in files.items():
        if (page.parent / file).exists():
            print(f"{name:<10}{page.parent / file}")


def _redraw(folder: Path, output_dir: Path | None) -> tuple[Path, str]:
    """Draws the report of a run or study again; returns the page's path and the terminal table.

    Raises:
      ValueError: If a file of the folder is damaged, in whatever way.
    """
    try:
        if not _is_study(folder):
            page, rows = redraw_run(folder, output_dir)
            predictions, decision = load_predictions(folder, rows), evaluation.load_decision(folder)
            return page, _terminal_answer(rows, predictions, decision)
        page = write_study_report(folder, output_dir=output_dir)
        rows, _ = evaluation.load_rows(folder / "results.json")
        plain = tables.with_answers(row for row in rows if not row["ablation"])
        return page, tables.study_terminal_table(only(evaluation.across_seeds(plain)))
    except (LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{folder}: expected the files of a finished run or study, received some that are "
            f"damaged ({type(error).__name__}: {command.one_line(error)})"
        ) from error


def _is_study(folder: Path) -> bool:
    rows, _ = evaluation.load_rows(folder / "results.json")
    return any("cell" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
