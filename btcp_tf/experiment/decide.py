"""What a run decides from its scores: exported method, threshold, promises, result rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import metrics, thresholds
from btcp_tf.core import wording
from btcp_tf.data.splits import Dataset
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import DECISION_FILE, Decision
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import (
    CALIBRATION,
    CLASSIFIER,
    FINETUNED,
    TEST,
    VALIDATION,
    Predictor,
)
from btcp_tf.evaluation.predictions import Predictions, load_predictions
from btcp_tf.experiment.score import Scorer
from btcp_tf.experiment.values import AllPredictions, Choice, Row, best_tau, check_finite
from btcp_tf.methods.registry import METHODS
from btcp_tf.thresholds import GroupThreshold

SIDE_DRAWS = 200
"""Bootstrap draws, at most, of rows that are not the test set's failure prediction. There are many
of them, and with a thousand draws they would take longer than the training."""

TARGETS = (0.01, 0.02, 0.05)
"""Error rates that the report of every run tries to promise."""


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """How result rows are made; the names are those of `btcp_tf.Config`."""

    seed: int
    """Also that of the bootstrap."""
    tau: float
    bootstrap_draws: int


def choose_taus(validation: Predictions, methods: Sequence[str]) -> dict[str, float]:
    """Decision thresholds of the methods that have one of their own.

    Args:
      validation: Answers of the classifier of phase 1 to the validation images.
      methods: Names of all methods.
    """
    own = [name for name in methods if METHODS[name].column_of]
    taus = {name: best_tau(validation.is_error, validation.uncertainty[name]) for name in own}
    return {name: tau for name, tau in taus.items() if tau is not None}


def candidates(methods: Sequence[str], finetuned: Sequence[str]) -> list[tuple[Predictor, str]]:
    """(predictor, method) of all that a SavedModel of the run can answer, MCP first."""
    pairs = [(CLASSIFIER, name) for name in methods if METHODS[name].exported]
    for name in finetuned:
        pairs += [(Predictor(name, FINETUNED), "mcp"), (Predictor(name, FINETUNED), name)]
    return sorted(pairs, key=lambda pair: pair[1] != "mcp")


def choose_export(
    predictions: AllPredictions,
    pairs: Sequence[tuple[Predictor, str]],
    held_out_u: Mapping[str, np.ndarray],
) -> Choice:
    """Chooses what ranks the validation errors best.

    The smallest AURC on validation images wins, the first among equal ones. AURC counts the errors
    of the classifier and those of the ranking together, so it compares different classifiers, too.

    Args:
      predictions: Those of the validation images are used.
      pairs: Some of `candidates`, at least one.
      held_out_u: Method → cross-fitted u `[n]`, of those that were fitted on these images.
    """
    aurc = {}
    for predictor, method in pairs:
        rows = predictions[VALIDATION, predictor]
        u = held_out_u.get(method) if predictor == CLASSIFIER else None
        aurc[predictor, method] = metrics.aurc(
            rows.is_error, rows.uncertainty[method] if u is None else u
        )
    best = min(pairs, key=lambda pair: aurc[pair])
    rows = predictions[VALIDATION, best[0]]
    reason = (
        f"it ranks the errors among {len(rows.is_error):,} validation images, "
        f"{int(rows.is_error.sum()):,} of them wrong, best: AURC x 1000 {1000 * aurc[best]:.3g}"
    )
    listed = [
        f"{_name(predictor, method)} {1000 * value:.3g}"
        for (predictor, method), value in sorted(aurc.items(), key=lambda item: item[1])
        if (predictor, method) != best
    ]
    return Choice(*best, reason + f" (others: {', '.join(listed)})" * bool(listed))


def _name(predictor: Predictor, method: str) -> str:
    """What can be exported, in words: MCP of a fine-tuned classifier is not that of the other."""
    if predictor.stage != FINETUNED:
        return method
    return f"{method} fine-tuned" if method != "mcp" else f"mcp of {predictor.method} fine-tuned"


def served_answers(
    predictions: AllPredictions, scorer: Scorer, dataset: Dataset, choice: Choice
) -> AllPredictions:
    """The predictions of what is exported, as the exported graph computes them.

    The threshold is chosen on these: images in, u out, in the graph that is served. `predict_all`
    goes other ways to the same u, and rounds in other places.
    """
    from btcp_tf.serving import signatures

    predictor, method, _ = choice
    answers: AllPredictions = {}
    with scorer.exported_model(predictor, method) as model:
        for image_set in (VALIDATION, CALIBRATION, TEST):
            if (image_set, predictor) not in predictions:
                continue
            probs, u = signatures.served(model, getattr(dataset, image_set.kind).images)
            check_finite(probs, u)
            rows = predictions[image_set, predictor]
            same = [name for name in rows.uncertainty if METHODS[name].column_of == method]
            answers[image_set, predictor] = dataclasses.replace(
                rows,
                probs=probs,
                predicted=probs.argmax(axis=1),
                uncertainty={**rows.uncertainty, **dict.fromkeys([method, *same], u)},
            )
    return answers


def saved_choice(folder: Path) -> tuple[Choice, AllPredictions]:
    """What a finished run exports, and the rows that its decision is made of."""
    known = decision_file.load_decision(folder)
    if known is None:
        raise ValueError(
            f"{folder}: expected {DECISION_FILE} of a finished run, received none; "
            "delete finished.json, and the same command makes it again from the checkpoints"
        )
    predictor = known.predictor
    return Choice(predictor, known.method, known.reason), {
        (image_set, predictor): load_predictions(
            folder / keys.predictions_file(image_set, predictor)
        )
        for image_set in (VALIDATION, CALIBRATION)
    }


def decide(
    predictions: AllPredictions,
    choice: Choice,
    rule: str,
    settings: Mapping[str, Any],
    class_names: Sequence[str] = (),
) -> tuple[Decision, list[str]]:
    """Chooses the threshold of what is exported, on calibration images.

    Args:
      predictions: Of the validation and the calibration set.
      choice: What is exported.
      rule: A rule of `thresholds.RULES`, or a number.
      settings: By name those of every rule, see `thresholds.from_word`; and `tau` for the case that
        there is no best BACC, and perhaps `by`.
      class_names: Names by class number, for the notes.

    Returns:
      The decision, and notes for the report.
    """
    predictor, method, reason = choice
    rows = predictions[CALIBRATION, predictor]
    u, notes = rows.uncertainty[method], []
    if rule == "best_bacc" and not 0 < rows.is_error.sum() < len(u):
        notes.append(
            "threshold: that of the best balanced accuracy (best_bacc) cannot be chosen, as the "
            f"calibration answers are all {'wrong' if rows.is_error.any() else 'right'}; the "
            f"SavedModel accepts answers with u < {settings['tau']:g} (--tau)"
        )
        rule = str(settings["tau"])
    grid = thresholds.quantile_grid(predictions[VALIDATION, predictor].uncertainty[method])
    settings = {**settings, "grid": grid, "groups": rows.groups}
    # A rule that makes no promise has no use for it.
    by = settings.get("by", "") if rule == "target_risk" else ""
    names = rows.predicted
    threshold = thresholds.from_word(rule, rows.is_error, u, settings, by=by, names=names)
    threshold = thresholds.clear_of(threshold, u, names)
    if threshold.accepts_nothing:
        least = threshold.least_risk
        notes.append(
            f"threshold: not achievable with {threshold.n} calibration images, so the SavedModel "
            f"accepts nothing: {threshold.rule}"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
        )
    elif isinstance(threshold, GroupThreshold) and (closed := threshold.closed(class_names)):
        notes.append(
            f"threshold: the SavedModel accepts nothing of {wording.some(closed, 20)}, as the "
            "promise is not achievable with the calibration images of these classes"
        )
    return Decision(threshold, predictor, method, rows, reason), notes


def worse_than_mcp(
    decision: Decision, mcp: np.ndarray | None, settings: EvaluationSettings
) -> list[str]:
    """A note if the exported u ranks the errors of the calibration images worse than MCP does.

    Args:
      decision: What is exported.
      mcp: u of MCP on the calibration images; None: a column of the decision's rows.
      settings: Of the paired interval, which has at most `SIDE_DRAWS` draws.
    """
    rows, method = decision.calibration, decision.method
    mcp = rows.uncertainty.get("mcp", mcp)
    if method == "mcp" or mcp is None or not 0 < rows.is_error.sum() < len(rows.is_error):
        return []
    columns = {"mcp": mcp, method: rows.uncertainty[method]}
    drawn = metrics.bootstrap(
        rows.is_error,
        columns,
        tau=settings.tau,
        draws=min(settings.bootstrap_draws, SIDE_DRAWS),
        seed=settings.seed,
        table={"aurc": metrics.METRICS["aurc"]},
        groups=rows.groups,
    )
    low, high = metrics.interval(drawn[method]["aurc"] - drawn["mcp"]["aurc"])
    if not low > 0:
        return []
    both = ", ".join(
        f"{name} {1000 * metrics.aurc(rows.is_error, u):.4g}" for name, u in columns.items()
    )
    return [
        f"export: the SavedModel answers {method}, which ranks the errors of the calibration "
        f"images worse than MCP: AURC x 1000 {both}, difference [{1000 * low:+.4g}, "
        f"{1000 * high:+.4g}]; --export_method takes another"
    ]


def make_promises(predictions: AllPredictions, *, delta: float, min_coverage: float) -> list[Row]:
    """What `target_risk` promises for every method on calibration images, and what test images say.

    The candidates for tau are quantiles of validation u.

    Args:
      predictions: Of the validation, calibration and test set.
      delta: See `thresholds.target_risk`.
      min_coverage: See `thresholds.target_risk`.

    Returns:
      Rows of `method`, `stage`, `target`, `tau`, of the calibration rows `n`, `accepted` and
      `errors`, `least_risk` (see `thresholds.Threshold`), and `test_` with each field of
      `thresholds.Outcome`.
    """
    rows = []
    for (image_set, predictor), calibration in predictions.items():
        if image_set != CALIBRATION:
            continue
        validation, test = predictions[VALIDATION, predictor], predictions[TEST, predictor]
        for method, u in calibration.uncertainty.items():
            if METHODS[method].uses_labels:
                continue
            grid = thresholds.quantile_grid(validation.uncertainty[method])
            for target in TARGETS:
                chosen = thresholds.target_risk(
                    calibration.is_error,
                    u,
                    risk=target,
                    delta=delta,
                    grid=grid,
                    min_coverage=min_coverage,
                    groups=calibration.groups,
                )
                outcome = thresholds.outcome(
                    chosen, test.is_error, test.uncertainty[method], groups=test.groups
                )
                about = {name: getattr(chosen, name) for name in _PROMISE_FIELDS}
                rows.append(
                    {"method": method, "stage": predictor.stage, "target": target, **about}
                    | {f"test_{name}": value for name, value in outcome._asdict().items()}
                )
    return rows


_PROMISE_FIELDS = ("tau", "n", "accepted", "errors", "least_risk")


def evaluate(
    predictions: AllPredictions,
    classifier_ids: Mapping[Predictor, str],
    taus: Mapping[str, float],
    dataset: str,
    settings: EvaluationSettings,
) -> list[Row]:
    """Result rows of the test set, OOD sets and corrupted images.

    Args:
      predictions: Of all sets of images.
      classifier_ids: From `Scorer.classifier_ids`.
      taus: From `choose_taus`.
      dataset: Name of the data set.
      settings: Of the rows; those beside the test set have at most `SIDE_DRAWS` draws.
    """
    rows, draws = [], settings.bootstrap_draws
    for (image_set, predictor), answers in predictions.items():
        if image_set in (VALIDATION, CALIBRATION):
            continue
        same: dict[str, Any] = dict(
            dataset=dataset,
            seed=settings.seed,
            stage=predictor.stage,
            classifier_id=classifier_ids[predictor],
            tau=settings.tau,
            taus={} if predictor.stage == FINETUNED else taus,
            raw=[name for name in answers.uncertainty if not METHODS[name].bounded],
            bootstrap_draws=draws if image_set == TEST else min(draws, SIDE_DRAWS),
            bootstrap_seed=settings.seed,
        )
        if image_set.kind == "ood":
            test = predictions[TEST, predictor]
            rows += results.ood_rows(test, answers, ood_name=image_set.name, **same)
        else:
            rows += results.rows(answers, split=image_set.column, **same)
    return rows
