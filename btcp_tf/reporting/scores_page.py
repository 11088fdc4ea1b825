"""The page of a file of scores."""

import dataclasses
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core.files import check_folder
from btcp_tf.evaluation import results
from btcp_tf.evaluation.keys import Predictor
from btcp_tf.evaluation.predictions import Answers, load_answers
from btcp_tf.reporting import cells, figures, gallery, glance, page_parts, pages, tables
from btcp_tf.reporting.cells import GIVEN
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance
from btcp_tf.reporting.pages import Block, Report, Text
from btcp_tf.thresholds import Outcome, Threshold, outcome


def write_predictions_report(
    path: str | os.PathLike,
    *,
    output_dir: str | os.PathLike | None = None,
    tau: float | None = None,
    bootstrap_draws: int = 1000,
    reverse: Sequence[str] = (),
    seed: int = 0,
    files_dir: str | os.PathLike | None = None,
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
      files_dir: Folder of the files that the column `input` names. None: that which
        `btcp_tf.predict` scored, else that of `path`. Those of the answers that are shown are
        linked, and those that are images (see `gallery.read_picture`) are shown.

    Returns:
      Path of `report.html`, and the rows, which are in `results.json` beside it, together with
      `decision`, what `accept` does, `left_out`, the numbers of rows without an answer or a label,
      and `notes`.

    Raises:
      ValueError: If the file is none of predictions with labels; the message says why.
    """
    page, rows, _ = write_scores_page(
        path,
        output_dir=output_dir,
        tau=tau,
        bootstrap_draws=bootstrap_draws,
        reverse=reverse,
        seed=seed,
        files_dir=files_dir,
    )
    return page, rows


def write_scores_page(
    path: str | os.PathLike,
    *,
    output_dir: str | os.PathLike | None,
    tau: float | None,
    bootstrap_draws: int,
    reverse: Sequence[str],
    seed: int,
    files_dir: str | os.PathLike | None,
) -> tuple[Path, list[dict[str, Any]], list[str]]:
    """As `write_predictions_report`, and what the terminal says beside the table."""
    path = Path(path)
    folders = page_parts.folders_(path, files_dir)
    answers = load_answers(path, reverse=reverse)
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
        rows = results.rows(
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
    notes = [*_left_out(answers), *_contradiction(answers, given), *page_parts.remarks_of(rows)]
    marks = {row["method"]: row["tau"] for row in rows}
    method = next(iter(given), page_parts.main_method(predictions))
    threshold = _threshold_of(predictions.uncertainty[method], marks[method], chosen=tau)
    first = _scores_glance(answers, method, threshold, path)
    cards = _scores_gallery(answers, method, threshold, folders)
    report = Report(
        f"Which answers are wrong? {path.name}",
        notes,
        [
            ("Check these first", [cards]),
            ("How well u finds the errors", page_parts.headline(rows)),
            ("What the file accepts", decision),
            ("Figures", figures.draw_run({path.stem: predictions}, tau=marks)),
            ("All metrics", [tables.metric_table(rows)]),
            ("Failures per class", page_parts.per_class([predictions], None, path.stem, "")),
            (
                "Errors to look at",
                page_parts.error_blocks(
                    folder / "figures",
                    {Predictor(path.stem): predictions},
                    None,
                    names=answers.inputs,
                ),
            ),
            *page_parts.appendix(rows, settings, {}),
        ],
        first,
    )
    page = pages.write_report(folder, report, files=True)
    extra: dict[str, Any] = {"settings": settings, "notes": notes}
    extra["left_out"] = {"unanswered": answers.unanswered, "unlabeled": answers.unlabeled}
    if judged:
        extra["decision"] = judged._asdict() | {"taus": given}
    # Last: a report that cannot be drawn leaves an earlier one whole.
    results.save_rows(folder / "results.json", rows, extra)
    told = ["".join(map(str, block.words)) for block in decision if isinstance(block, Text)]
    shown = glance.terminal(first.state, path.name, first.sentence, first.figures)
    return page, rows, [shown, *told, *notes]


def _scores_gallery(
    answers: Answers, method: str, threshold: Threshold, folders: Sequence[Path]
) -> Gallery:
    """The answers of a file to check first, with the pictures that its rows name."""
    p, inputs = answers.predictions, answers.inputs or ()
    picked = gallery.pick(p.is_error, p.uncertainty[method])
    files = {}
    for row in np.concatenate([*picked.values()]).tolist() if inputs else ():
        if (file := page_parts.file_of(inputs[row], folders)) is not None:
            files[row] = file
    pictures = {row: gallery.read_picture(file) for row, file in files.items()}
    return gallery.build(
        p,
        method,
        threshold.tau,
        accept=answers.accept,
        names={row: page_parts.one_line(name) for row, name in enumerate(inputs)},
        links={row: file.as_uri() for row, file in files.items()},
        pictures={row: found for row, found in pictures.items() if found is not None},
        picked=picked,
    )


def _threshold_of(u: np.ndarray, tau: float, *, chosen: float | None) -> Threshold:
    """The threshold that a file of scores is judged by where it decides nothing itself."""
    if chosen is None and not 0 <= u.min() <= u.max() <= 1:
        # A raw score: the usual tau means nothing on its scale.
        return thresholds.target_coverage(u, coverage=0.9)
    return dataclasses.replace(thresholds.DEFAULT, tau=tau, rule="given")


def _scores_glance(answers: Answers, method: str, threshold: Threshold, path: Path) -> Glance:
    """The first screen of a file of scores."""
    p, u = answers.predictions, answers.predictions.uncertainty[method]
    judged = glance.judge(threshold, p.is_error, u)
    if answers.accept is not None:
        # A decision is an uncertainty of two values.
        found = outcome(thresholds.DEFAULT, p.is_error, (~answers.accept).astype(np.float64))
        judged = dataclasses.replace(judged, outcome=found, accepts="as the file decides")
    right = 100 * (1 - judged.errors / judged.outcome.n)
    steps = [
        page_parts.look_step(gallery.pick(p.is_error, u)),
        glance.labels(threshold, p.is_error, u, wanted=(0.01, 0.02, 0.05), scores=str(path)),
    ]
    return Glance(
        glance.state(judged),
        f"{judged.outcome.n:,} answers with a label · {right:.2f} % right · {judged.errors:,} "
        f"error{'s' * (judged.errors != 1)} · u of {cells.label(method)}",
        glance.sentence(judged),
        glance.figures(judged),
        [step for step in steps if step],
        "Wrong among the accepted, by how many are accepted",
        page_parts.curve_of(p, method, judged.outcome),
    )


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
    by_tau = " or ".join(f"{cells.label(name)} < {at:.6g}" for name, at in given.items())
    rejected = found.n - found.accepted
    words = pages.text(
        f"The file's column accept{f' (as {by_tau})' * bool(by_tau)} accepts {found.accepted:,} of "
        f"{found.n:,} answers, ",
        *page_parts.outcome_words(found),
        f" Let through: {found.errors:,} of {errors:,} wrong answers. Rejected: {rejected:,} "
        f"answers, {errors - found.errors:,} of them wrong.",
    )
    other = dataclasses.replace(thresholds.DEFAULT, tau=tau)
    others = {
        f"{cells.label(name)} < {tau:.6g}": outcome(other, p.is_error, u)
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
        f"{cells.label(name)} {low:.6g} is accepted and {high:.6g} is not"
        for name, (low, high) in gaps.items()
    ]
    return [
        "The file's column accept is not u < tau, whatever tau is: "
        f"{'; '.join(told)}. It is judged as it stands; the metrics are those of another decision."
    ]
