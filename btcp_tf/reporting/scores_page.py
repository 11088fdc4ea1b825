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
from btcp_tf.decisions import messages
from btcp_tf.decisions.expected_errors import ExpectedErrors, expected_errors
from btcp_tf.evaluation import results, tabular
from btcp_tf.evaluation.predictions import (
    NO_GROUP,
    Answers,
    Predictions,
    load_answers,
    nameless,
)
from btcp_tf.methods.residual_choice import Fit
from btcp_tf.reporting import cells, figures, gallery, glance, group_tables, pages, tables
from btcp_tf.reporting.cells import GIVEN
from btcp_tf.reporting.class_failures import per_class
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance
from btcp_tf.reporting.glossary import appendix
from btcp_tf.reporting.headline import (
    answers_to_check,
    first_screen,
    headline,
    main_method,
    outcome_text,
)
from btcp_tf.reporting.notes import error_count_notes
from btcp_tf.reporting.pages import Block, Report, Text
from btcp_tf.reporting.pictures import (
    find_file,
    input_folders,
    read_picture,
    scored_array,
    stored_pictures,
)
from btcp_tf.thresholds import Outcome, Threshold, outcome

_FITTED = "residual"
"""The column that a fit is of."""

DEFAULT_TAU = 0.5
"""Of files that do not decide themselves."""


def write_predictions_report(
    path: str | os.PathLike,
    *,
    output_dir: str | os.PathLike | None = None,
    tau: float | None = None,
    bootstrap_draws: int = 1000,
    reverse: Sequence[str] = (),
    seed: int = 0,
    files_dir: str | os.PathLike | None = None,
    fit: Fit | None = None,
    columns: Sequence[str] = (),
    by: str = "",
    risk: float | None = None,
    delta: float = 0.05,
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
        linked, and those that are images (see `pictures.read_picture`) are shown; so are rows of
        an array of uint8 images that was scored, if its file is there.
      fit: How the column `residual` came about, `ScoresFit.fit`: the page says so, and its figures
        are of this column. None: unknown.
      columns: Names of the uncertainty columns, see `evaluation.load_answers`; empty: all.
      by: Column that says to which group a row belongs, or "predicted": what is accepted in each
        group, and how much of it is wrong; "": no groups.
      risk: Error rate that a threshold for each group promises, see `target_risk_by_group`; None:
        none is chosen.
      delta: Probability that the promise of any group may be broken.

    Returns:
      Path of `report.html`, and the rows, which are in `results.json` beside it, together with
      `decision`, what `accept` does, `left_out`, the numbers of rows without an answer or a label,
      `expected`, how many of the latter are wrong by u alone, `fit`, `groups`, with `outcomes` and
      `thresholds` by name, and `notes`.

    Raises:
      ValueError: If the file is none of predictions with labels, or has no column `residual` that a
        fit could be of; the message says why.
    """
    page, rows, _ = write_scores_page(
        path,
        output_dir,
        tau,
        bootstrap_draws,
        reverse,
        seed,
        files_dir,
        fit,
        columns,
        by,
        risk,
        delta,
    )
    return page, rows


def write_scores_page(
    path: str | os.PathLike,
    output_dir: str | os.PathLike | None,
    tau: float | None,
    bootstrap_draws: int,
    reverse: Sequence[str],
    seed: int,
    files_dir: str | os.PathLike | None,
    fit: Fit | None,
    columns: Sequence[str],
    by: str,
    risk: float | None,
    delta: float,
) -> tuple[Path, list[dict[str, Any]], list[str]]:
    """As `write_predictions_report`, and what the terminal says beside the table."""
    path = Path(path)
    folders, array = input_folders(path, files_dir), scored_array(path, files_dir)
    answers = load_answers(path, reverse=reverse, columns=columns, by=by)
    predictions = answers.predictions
    _check(predictions, path, fit)
    own_taus = _taus(answers)
    usual = DEFAULT_TAU if tau is None else tau
    rows = _rows(answers, path, usual, own_taus if tau is None else {}, bootstrap_draws, seed)
    settings = {"file": str(path), "tau": rows[0]["tau"], "bootstrap_draws": bootstrap_draws}
    settings |= {"reverse": ",".join(reverse), "columns": ",".join(columns), "seed": seed}
    settings |= ({"by": by} if by else {}) | ({} if risk is None else dict(risk=risk, delta=delta))
    folder = Path(output_dir) if output_dir else path.with_name(f"{path.name}-report")
    check_folder("output_dir", folder)
    taus = {row["method"]: row["tau"] for row in rows}
    method = _FITTED if fit else next(iter(own_taus), main_method(predictions))
    threshold = _threshold_of(predictions.uncertainty[method], taus[method], chosen=tau)
    notes = [*_left_out_notes(answers), *_nameless_notes(answers), *_unread_notes(answers)]
    notes += [*_contradiction_notes(answers, own_taus), *error_count_notes(rows)]
    decision, own = _judge(answers, own_taus, usual)
    expected = _expected(answers, method)
    expectation = messages.expected_text(expected, "this file's") if expected else ""
    by_group, groups = group_tables.by_group(answers, method, threshold, risk, delta)
    first = _scores_glance(answers, method, threshold, path)
    to_check = _scores_gallery(answers, method, threshold, folders, array)
    sections: list[tuple[str, Sequence[Block]]] = [
        ("Check these first", answers_to_check(to_check)),
        ("How well u finds the errors", headline(rows)),
        ("How u was fitted", _about_fit(fit)),
        ("What the file accepts", decision),
        ("Answers without a label", [pages.text(expectation)] if expected else []),
        ("By group", by_group),
        ("Figures", figures.draw_run({path.stem: predictions}, tau=taus)),
        ("All metrics", [tables.metric_table(rows)]),
        ("Failures per class", per_class([predictions], answers.class_names, path.stem, "")),
        *appendix(rows, settings, {}),
    ]
    report = Report(f"Which answers are wrong? {path.name}", notes, sections, first)
    page = pages.write_report(folder, report, files=True)
    extra: dict[str, Any] = {
        "settings": settings,
        "notes": notes,
        "left_out": {"unanswered": answers.unanswered, "unlabeled": answers.unlabeled},
        **({"fit": dataclasses.asdict(fit)} if fit else {}),
        **({"expected": expected._asdict()} if expected else {}),
        **({"groups": {"column": by, **groups}} if groups else {}),
        **({"decision": own._asdict() | {"taus": own_taus}} if own else {}),
    }
    # Last: a report that cannot be drawn leaves an earlier one whole.
    results.save_rows(folder / "results.json", rows, extra)
    sentences = ["".join(map(str, block.pieces)) for block in decision if isinstance(block, Text)]
    shown = glance.terminal(first.state, path.name, first.sentence, first.figures)
    fitted = [f"{_FITTED}: {fit.words}"] if fit else []
    told = [f"Answers without a label: {expectation}"] if expected else []
    return page, rows, [shown, *sentences, *fitted, *told, *notes]


def _check(predictions: Predictions, path: Path, fit: Fit | None) -> None:
    """ValueError for answers without labels, or without what a fit is of."""
    if predictions.labels is None:
        raise ValueError(f"{path}: expected labels, the true classes, received none")
    if fit and _FITTED not in predictions.uncertainty:
        raise ValueError(
            f"fit: expected scores with the column {_FITTED}, as ScoresFit.predictions makes them, "
            f"received {path} with {', '.join(predictions.uncertainty)}"
        )


def _expected(answers: Answers, method: str) -> ExpectedErrors | None:
    """How many of the answers without a label are expected to be wrong; None: it is not known."""
    p, u = answers.predictions, answers.unlabeled_u.get(method)
    known = p.uncertainty[method]
    if u is None or any(column.min() < 0 or column.max() > 1 for column in (u, known)):
        return None
    return expected_errors(u, (p.is_error, known))


def _about_fit(fit: Fit | None) -> list[Block]:
    """How an estimator came about: what it learned from, what it uses, and for which cost."""
    if fit is None:
        return []
    values: dict[str, Any] = {
        "held-out samples": f"{fit.samples:,}",
        "wrong answers among them": f"{fit.errors:,}",
        "evidence beside MCP": ", ".join(fit.evidence) or "none",
        "looks": ", ".join(fit.looks) or "none",
    }
    if fit.share:
        values["share of the inputs that they are computed for"] = f"{fit.share:.0%}"
    if fit.cost is not None:
        values["mean cost of an input, in passes of the classifier"] = f"{fit.cost:.2f}"
    return [
        pages.text(f"{cells.label(_FITTED)}, on the samples that it was fitted to: {fit.words}."),
        tables.pair_table(values, "fit", "How u was fitted"),
        *([tables.tried_table(fit.tried)] if fit.tried else []),
    ]


def _rows(
    answers: Answers,
    path: Path,
    tau: float,
    taus: Mapping[str, float],
    bootstrap_draws: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Result rows of the file's columns."""
    with warnings.catch_warnings():
        # What is not defined is among the notes.
        warnings.simplefilter("ignore", RuntimeWarning)
        return results.rows(
            answers.predictions,
            dataset=path.stem,
            seed=seed,
            stage=GIVEN,
            classifier_id=path.stem,
            split="given",
            tau=tau,
            taus=taus,
            bootstrap_draws=bootstrap_draws,
            bootstrap_seed=seed,
        )


def _scores_gallery(
    answers: Answers,
    method: str,
    threshold: Threshold,
    folders: Sequence[Path],
    array: Path | None,
) -> Gallery:
    """The answers of a file to check first, with the pictures that its rows name."""
    p, inputs = answers.predictions, answers.inputs or ()
    picked = gallery.pick(p, method)
    shown = np.concatenate([*picked.values()]).tolist() if inputs else []
    named = {row: inputs[row] for row in shown}
    files = {
        row: file for row, name in named.items() if (file := find_file(name, folders)) is not None
    }
    pictures = {row: read_picture(file) for row, file in files.items()}
    return gallery.build(
        p,
        method,
        threshold.tau,
        class_names=answers.class_names,
        accept=answers.accept,
        names={row: " ".join(tabular.shown(name).split()) for row, name in named.items()},
        links={row: file.as_uri() for row, file in files.items()},
        pictures=stored_pictures(array, named)
        | {row: image for row, image in pictures.items() if image is not None},
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
    judged = glance.judge(threshold, p.is_error, u, p.groups)
    if answers.accept is not None:
        own = _own_outcome(answers.accept, p)
        judged = dataclasses.replace(judged, outcome=own, accepts=glance.BY_FILE)
    wanted = (0.01, 0.02, 0.05)
    step = glance.hardly_wrong(
        (judged.errors, len(u)),
        p.is_error,
        u,
        wanted=wanted,
        remedy="More answers with a label, or harder ones, have more.",
    ) or glance.labels(threshold, p.is_error, u, wanted=wanted, scores=str(path))
    about = "answers with a label", cells.label(method)
    return first_screen(p, method, judged, about, [step])


def _own_outcome(accept: np.ndarray, p: Predictions) -> Outcome:
    """What the file's own decisions do: a decision is an uncertainty of two values."""
    rejected = (~accept).astype(np.float64)
    return outcome(thresholds.DEFAULT, p.is_error, rejected, groups=p.groups)


def _taus(answers: Answers) -> dict[str, float]:
    """For each column by which the file may have decided, a tau that decides alike."""
    if answers.accept is None:
        return {}
    taus = {
        name: _tau_of(answers.accept, u, answers.tau)
        for name, u in answers.predictions.uncertainty.items()
    }
    return {name: tau for name, tau in taus.items() if tau is not None}


def _tau_of(accept: np.ndarray, u: np.ndarray, stated: float | None) -> float | None:
    """A tau for which `accept` is u < tau, or None.

    Args:
      accept: `[n]` bool.
      u: `[n]`.
      stated: The tau that the file beside the scores states; it is taken if it decides alike,
        otherwise one with few digits.
    """
    low, high = _gap(accept, u)
    if not low < high:
        return None
    if stated is not None and low < stated <= high:
        return stated
    if low == -math.inf:
        return min(high, 0.0)
    if high == math.inf:
        return max(1.0, math.nextafter(low, high))
    rounded = (float(f"{low / 2 + high / 2:.{digits}g}") for digits in range(1, 17))
    return next((tau for tau in rounded if low < tau <= high), high)


def _gap(accept: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """The largest u that is accepted, and the smallest that is not."""
    u = u.astype(np.float64)
    return float(u[accept].max(initial=-math.inf)), float(u[~accept].min(initial=math.inf))


def _decides_by(names: np.ndarray, accept: np.ndarray, u: np.ndarray) -> bool:
    """Whether among the answers of each name those are accepted that are below some u."""
    parts = [names == name for name in np.unique(names)]
    return all(low < high for low, high in (_gap(accept[own], u[own]) for own in parts))


def _judge(
    answers: Answers, own_taus: Mapping[str, float], tau: float
) -> tuple[list[Block], Outcome | None]:
    """What the file's decisions do, beside the decisions by `tau`; nothing without any."""
    p, accept = answers.predictions, answers.accept
    if accept is None:
        return [], None
    own, errors = _own_outcome(accept, p), int(p.is_error.sum())
    by_tau = " or ".join(f"{cells.label(name)} < {at:.6g}" for name, at in own_taus.items())
    rejected = own.n - own.accepted
    sentence = pages.text(
        f"The file's column accept{f' (as {by_tau})' * bool(by_tau)} accepts {own.accepted:,} of "
        f"{own.n:,} answers, ",
        *outcome_text(own),
        f" Let through: {own.errors:,} of {errors:,} wrong answers. Rejected: {rejected:,} "
        f"answers, {errors - own.errors:,} of them wrong.",
    )
    other = dataclasses.replace(thresholds.DEFAULT, tau=tau)
    others = {
        f"{cells.label(name)} < {tau:.6g}": outcome(other, p.is_error, u, groups=p.groups)
        for name, u in p.uncertainty.items()
    }
    return [sentence, tables.decision_table({"accept, as in the file": own, **others}, errors)], own


def _left_out_notes(answers: Answers) -> list[str]:
    counts = {"without an answer": answers.unanswered, "without a label": answers.unlabeled}
    parts = [f"{count:,} {kind}" for kind, count in counts.items() if count]
    total = sum(counts.values())
    return [f"{total:,} row{'s' * (total > 1)} left out: {', '.join(parts)}."] if parts else []


def _nameless_notes(answers: Answers) -> list[str]:
    if not (count := nameless(answers.by)):
        return []
    return [f"{count:,} row{'s' * (count > 1)} without a group, shown as {NO_GROUP}."]


def _unread_notes(answers: Answers) -> list[str]:
    """Says which columns of numbers are no uncertainty."""
    reasons = " ".join(f"{tabular.shown(why)}." for why in answers.unread.values())
    return [f"Left out: {reasons} --columns names those that count."] if reasons else []


def _contradiction_notes(answers: Answers, own_taus: Mapping[str, float]) -> list[str]:
    """Says so where no tau of any column decides as the file does."""
    if answers.accept is None or own_taus:
        return []
    columns = answers.predictions.uncertainty
    kinds = {"predicted class": answers.predictions.predicted, "group": answers.by}
    for each, names in kinds.items():
        if names is not None and any(
            _decides_by(names, answers.accept, u) for u in columns.values()
        ):
            return [
                f"The file's column accept follows a threshold of its own for each {each}. Its "
                "decisions are reported as they are; metrics at one threshold are of another "
                "decision."
            ]
    gaps = {name: _gap(answers.accept, u) for name, u in columns.items()}
    parts = [
        f"{cells.label(name)} {low:.6g} is accepted and {high:.6g} is not"
        for name, (low, high) in gaps.items()
    ]
    return [
        f"The file's column accept follows no threshold on u: {'; '.join(parts)}. Its decisions "
        "are reported as they are; the metrics are those of another decision."
    ]
