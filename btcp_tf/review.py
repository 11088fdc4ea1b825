"""What a person should check, as a page that opens from disk; and what their decisions show.

    python -m btcp_tf.review --scores=scores.csv --input=photos --budget=100 --audit=100

writes `review.html`: the answers with the highest u, where errors are expected, then a sample drawn
at random from all answers. Decisions are made with a mouse or single keys, and downloaded as CSV.
The same queue is written as tasks of Label Studio.

    python -m btcp_tf.review --scores=scores.csv --labels=scores-decisions.csv

takes the decisions back: the promise is tested as in `btcp_tf.monitor`, and a file is written on
which `btcp_tf.set_threshold` chooses a new threshold. Both rest on the random sample alone: answers
that were picked for their u say nothing about those that were not. No TensorFlow here.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from scipy import special

from btcp_tf import monitor, thresholds
from btcp_tf.core import command, files, json_files
from btcp_tf.core.command import UsageError
from btcp_tf.decisions import decision_file, drift, monitoring, reviewing
from btcp_tf.decisions.history import load
from btcp_tf.decisions.reviewing import Queue, Sample
from btcp_tf.decisions.scores import (
    Baseline,
    Scores,
    group_column,
    load_baseline,
    load_scores,
    nameless_note,
)
from btcp_tf.evaluation import keys, predictions, tabular
from btcp_tf.evaluation.predictions import ENDINGS, REFERENCE
from btcp_tf.reporting import pictures, review_contents, review_page
from btcp_tf.reporting.review_page import BOTH, FIRST, SAMPLE, Content, Item, Review
from btcp_tf.serving import records
from btcp_tf.serving.answers import GROUP

USAGE = "python -m btcp_tf.review --scores=FILE [--input=DIR_OR_FILE] [--labels=DECISIONS]"

PAGE, QUEUE, TASKS, CONFIG, CHECKED = (
    "review.html",
    "queue.json",
    "label_studio.json",
    "label_studio.xml",
    "checked_sample.csv",
)
"""The page; how the queue was drawn; the queue and the interface for Label Studio; the answers of
the random sample with their labels."""

_TEXT_FLAGS = {
    "scores": f"Answers of btcp_tf.predict or of any program ({', '.join(ENDINGS)}), or a run's "
    "folder.",
    "input": "What was answered: a folder of images, an .npz or .npy array, or a table with a row "
    "for each answer. Empty: what <scores>.about.json names, else other columns of the scores.",
    "key": "Array of an .npz file; empty: x_test, images or x.",
    "baseline": "What the threshold was chosen on, as in btcp_tf.monitor. Empty: the model that "
    "<scores>.about.json names.",
    "column": "Name of the uncertainty in scores that have several.",
    "labels": "Decisions that the page saved, or a CSV that Label Studio exported: tests the "
    "promise by the random sample among them.",
    "output_dir": "Where to write; empty: <scores>-review beside the scores.",
}

_NUMBER_FLAGS = {
    "budget": (100, "Answers to check for their u, the highest first."),
    "audit": (100, "Answers to draw at random from all, from which alone promises follow."),
    "seed": (0, "Seed of the draw."),
}

_LABEL_FLAGS = {
    "risk": (None, "With --labels: error rate of accepted answers to test; else the promised one."),
    "delta": (0.01, "With --labels: probability of a false alarm about the promise."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, and writes a queue or judges decisions; returns the exit status.

    With --labels the status is that of `btcp_tf.monitor`.

    Args:
      argv: The arguments after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if leftovers:
            raise UsageError(f"expected --NAME=VALUE, received the word {leftovers[0]!r}")
        values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
        paths = _paths(values)
        back = "labels" in paths
        misplaced = (*_NUMBER_FLAGS, "input", "key", "columns") if back else _LABEL_FLAGS
        for name in misplaced:
            if flag_values[name].present:
                raise UsageError(
                    f"{name}: expected it {'without' if back else 'with'} --labels, received it "
                    f"{'with' if back else 'without'}"
                )
        for name in _LABEL_FLAGS:
            if values[name] is not None:
                drift.check_probability(name, values[name])
        monitor.check_threshold(values, paths.get("baseline"))
    return command.carry_out(
        lambda: _take_back(values, paths) if back else _write_queue(values, paths), verbose=1
    )


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    for name, help in _TEXT_FLAGS.items():
        flags.DEFINE_string(name, "", help, flag_values=flag_values)
    flags.DEFINE_list(
        "columns", [], "Of a table, those to show; empty: all but labels.", flag_values
    )
    for name, (default, help) in _NUMBER_FLAGS.items():
        flags.DEFINE_integer(name, default, help, lower_bound=0, flag_values=flag_values)
    for name, (number, help) in _LABEL_FLAGS.items():
        flags.DEFINE_float(name, number, help, flag_values=flag_values)
    flags.DEFINE_float(
        "tau", None, "Threshold, for a predictions file as the baseline.", flag_values=flag_values
    )
    return flag_values


def _paths(values: Mapping[str, Any]) -> dict[str, Path]:
    """Where the files are; UsageError if one of them is not there."""
    paths = {
        name: Path(os.path.expanduser(values[name]))
        for name in ("scores", "input", "baseline", "labels", "output_dir")
        if values[name]
    }
    if "scores" not in paths:
        raise UsageError("scores: expected a path, received none")
    scores = paths["scores"]
    if scores.is_dir():
        _use_run(values, paths)
    else:
        command.check_file("scores", scores, ENDINGS)
        paths.setdefault("output_dir", scores.with_name(f"{scores.name}-review"))
    for name in ("input", "baseline"):
        if name in paths and not paths[name].exists():
            raise UsageError(f"{name}: expected a path, received {paths[name]}, which is not there")
    if (place := paths.get("input")) is not None and place.is_file():
        command.check_file("input", place, (*tabular.ENDINGS, ".npz", ".npy"))
    if "labels" in paths:
        command.check_file("labels", paths["labels"], tabular.ENDINGS)
    model = _about(scores).get("model")
    if isinstance(model, str) and Path(model).exists():
        paths.setdefault("baseline", Path(model))
    return paths


def _use_run(values: Mapping[str, Any], paths: dict[str, Path]) -> None:
    """Puts a run's answers to its test images, and its threshold, into the place of its folder."""
    folder = paths["scores"]
    decision = decision_file.load_decision(folder)
    file = folder / keys.predictions_file(keys.TEST, decision.predictor) if decision else folder
    if not file.is_file():
        raise UsageError(
            f"scores: expected a file ({', '.join(ENDINGS)}) or the folder of a finished run, "
            f"received {folder}"
        )
    paths["scores"] = file
    paths.setdefault("baseline", folder)
    paths.setdefault("output_dir", folder / "review")


def _about(scores: Path) -> dict[str, Any]:
    """Paths that `btcp_tf.predict` wrote beside its file; empty without."""
    try:
        content = json_files.parse(predictions.about_file(scores).read_text(encoding="utf-8"))
        return dict(content["paths"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # It is no more than a help.


def _baseline(paths: Mapping[str, Path], column: str) -> Baseline | None:
    """What the threshold was chosen on; None where nobody says."""
    return load_baseline(paths["baseline"], column=column) if "baseline" in paths else None


def _scores(values: Mapping[str, Any], path: Path, baseline: Baseline | None) -> Scores:
    names = [values["column"], "uncertainty", baseline.column if baseline else ""]
    scores = load_scores(
        path,
        list(dict.fromkeys(filter(None, names))),
        class_names=baseline.class_names if baseline else None,
        with_mcp=baseline is not None and baseline.gate is not None,
        by=group_column(baseline, ""),
    )
    for note in filter(None, (nameless_note(scores), predictions.ranking_note(path))):
        print(f"note: {note}")
    return scores


def _write_queue(values: Mapping[str, Any], paths: Mapping[str, Path]) -> int:
    """Draws a queue and writes its files."""
    baseline = _baseline(paths, values["column"])
    scores = _scores(values, paths["scores"], baseline)
    budget, audit, seed = (values[name] for name in _NUMBER_FLAGS)
    queue = reviewing.draw(scores.uncertainty, budget=budget, audit=audit, seed=seed)
    review = _review(values, paths, scores, baseline, queue, _calibration(baseline))
    folder = paths["output_dir"]
    content = {
        PAGE: review_page.to_html(review),
        QUEUE: json_files.to_text(reviewing.record(queue, scores, budget, audit, seed), indent=1),
        TASKS: json_files.to_text(review_page.label_studio(review), indent=1),
        CONFIG: review_page.label_config(review),
    }
    files.check_folder("output_dir", folder)
    for name, text in content.items():
        with files.atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    print(
        f"{review.sentence}\n\npage      {folder / PAGE}\ntasks     {folder / TASKS} (Label "
        f"Studio; its interface is {CONFIG})\nthen      {review.command}"
    )
    return 0


def _calibration(baseline: Baseline | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Whether each calibration answer is wrong, and its u; None where that is not known."""
    if baseline is None or baseline.is_error is None:
        return None
    return baseline.is_error, baseline.uncertainty


def _review(
    values: Mapping[str, Any],
    paths: Mapping[str, Path],
    scores: Scores,
    baseline: Baseline | None,
    queue: Queue,
    calibration: tuple[np.ndarray, np.ndarray] | None,
) -> Review:
    """Everything on the page."""
    rows = queue.rows.tolist()
    u = scores.uncertainty.astype(np.float64)
    names = None if scores.inputs is None else {row: scores.inputs[row] for row in rows}
    shown = _contents(values, paths, names, rows)
    class_names = _class_names(scores, baseline)
    probs = _probabilities(paths["scores"], scores, rows)
    accept = _accepted(scores, baseline, values["tau"])
    places = list(map(queue.place_in_sample, rows))
    items = [
        Item(
            row,
            " ".join(tabular.shown(names[row]).split()) if names else "",
            shown.get(row, Content()),
            float(u[row]),
            review_page.choices(
                int(scores.predicted[row]), None if probs is None else probs[at], class_names
            ),
            SAMPLE if at >= queue.first else FIRST if places[at] is None else BOTH,
            places[at],
            None if accept is None else bool(accept[row]),
        )
        for at, row in enumerate(rows)
    ]
    expected = None
    if calibration is not None and queue.first:
        expected = thresholds.review_queue(u, queue.first, calibration=calibration)
    mark = f"{reviewing.fingerprint(scores)} {queue.first} {len(queue.drawn)} {values['seed']}"
    return Review(
        tabular.shown(paths["scores"].name),
        mark,
        items,
        class_names,
        queue.probability,
        len(u),
        values["seed"],
        review_page.sentence(queue, expected, u),
        _command(values, paths),
    )


def _contents(
    values: Mapping[str, Any],
    paths: Mapping[str, Path],
    names: Mapping[int, str] | None,
    rows: Sequence[int],
) -> dict[int, Content]:
    """What was answered, by row; of a run as far as its report keeps pictures."""
    found = review_contents.contents(
        paths["scores"],
        paths.get("input"),
        names,
        rows,
        key=values["key"],
        columns=values["columns"],
    )
    figures = paths["scores"].parent / "figures"
    if not found and "input" not in paths and figures.is_dir():
        kept = pictures.Pictures.load(figures).images
        found = {row: Content(picture=pictures.data_uri(kept[row])) for row in rows if row in kept}
    return found


def _class_names(scores: Scores, baseline: Baseline | None) -> list[str]:
    """The names of all classes; their numbers where they have none."""
    if baseline is not None and baseline.class_names:
        return list(baseline.class_names)
    highest = int(scores.predicted.max()) + 1
    count = scores.classes or (baseline.classes if baseline else None) or max(highest, 2)
    return [scores.class_names.get(number, str(number)) for number in range(count)]


def _probabilities(path: Path, scores: Scores, rows: Sequence[int]) -> np.ndarray | None:
    """Class probabilities of some rows, `[q, classes]`; None: the scores have none."""
    if not tabular.is_table(path):
        probs = predictions.load_predictions(path).probs
        return None if probs is None else probs[rows]
    wanted = ["problem", "probs", *(f"probs_{number}" for number in range(scores.classes or 0))]
    if scores.classes is None:
        return None
    return tabular.read(path, wanted).answered().taken(rows).probabilities()


def _accepted(scores: Scores, baseline: Baseline | None, tau: float | None) -> np.ndarray | None:
    """Which answers are accepted, `[m]`; None where there is no threshold."""
    if tau is None:
        if baseline is None or baseline.threshold is None:
            return scores.accept
        return scores.uncertainty < scores.limits(baseline.threshold)
    return scores.uncertainty < tau


def _command(values: Mapping[str, Any], paths: Mapping[str, Path]) -> str:
    """What takes the decisions of the page back."""
    given = {name: values[name] for name in ("scores", "baseline", "tau", "column", "output_dir")}
    given["labels"] = f"{paths['scores'].stem}-decisions.csv"
    words = [
        shlex.quote(f"--{name}={value}") for name, value in given.items() if value not in ("", None)
    ]
    return tabular.shown(" ".join(["python -m btcp_tf.review", *words]))


def _take_back(values: Mapping[str, Any], paths: Mapping[str, Path]) -> int:
    """Tests the promise by the random sample of a queue, and writes it for a new threshold."""
    baseline = _baseline(paths, values["column"])
    if baseline is None:
        raise ValueError(
            "baseline: expected what the threshold was chosen on (a model, a run's folder or a "
            "predictions file), received none"
        )
    place, folder = paths["baseline"], paths["output_dir"]
    scores = _scores(values, paths["scores"], baseline)
    queue = reviewing.read_record(folder / QUEUE, scores)
    class_names = _class_names(scores, baseline)
    decisions = reviewing.read_decisions(paths["labels"], queue, scores, class_names)
    sample = reviewing.checked_sample(queue, decisions, scores)
    findings = monitoring.monitor(
        baseline,
        scores,
        labels=(sample.rows, sample.labels),
        tau=values["tau"],
        risk=values["risk"],
        delta=values["delta"],
        history=load(folder / "monitor.json"),
    )
    _write_sample(folder / CHECKED, paths["scores"], sample, scores)
    print("\n".join(reviewing.words(queue, decisions, sample, scores)) + "\n")
    notes = f"{len(sample.rows):,} answers drawn at random, each with probability"
    about = {"sample": f"{notes} {sample.probability:.4g}, counted wrong: {sample.assumed}"}
    monitor.write_report(findings, dict(values) | about, folder)
    target = baseline.threshold.target if baseline.threshold else None
    risk = values["risk"] or target or 0.05
    model = place if (place.is_dir() and not (place / "decision.json").exists()) else "MODEL"
    print(
        f"sample    {folder / CHECKED}\n\nA new threshold on this sample: python -m "
        f"btcp_tf.set_threshold {model} --scores={folder / CHECKED} --threshold=target_risk "
        f"--risk={risk:g}" + f" --by={findings.promised_by}" * bool(findings.promised_by)
    )
    return findings.status


def _write_sample(path: Path, source: Path, sample: Sample, scores: Scores) -> None:
    """Writes the checked answers of the random sample as a file of scores with labels."""
    probs = _probabilities(source, scores, sample.rows.tolist())
    rows = []
    for at, (row, label) in enumerate(
        zip(sample.rows.tolist(), sample.labels.tolist(), strict=True)
    ):
        record: dict[str, Any] = {
            "input": f"row {row}" if scores.inputs is None else scores.inputs[row],
            "labels": label,
            "predicted": int(scores.predicted[row]),
            "class_name": scores.class_names.get(int(scores.predicted[row])),
            "probs": None if probs is None else probs[at].tolist(),
            "uncertainty": float(scores.uncertainty[row]),
        }
        if scores.mcp_logit is not None:
            record[REFERENCE] = float(special.expit(scores.mcp_logit[row]))
        if scores.groups is not None:
            record["groups"] = str(scores.groups[row])
        if scores.by is not None:
            record[GROUP] = str(scores.by[row])
        rows.append(record | {"problem": None})
    classes = 0 if probs is None else probs.shape[1]
    write = records.writer_for(path)
    with files.atomic_path(path) as temporary:
        write(temporary, [rows], classes, list(rows[0]))


if __name__ == "__main__":
    sys.exit(main())
