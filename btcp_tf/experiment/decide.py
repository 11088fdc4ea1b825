"""What a run decides from its scores: exported method, threshold, promises, notes."""

import dataclasses
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import metrics, thresholds
from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.data.catalog import DATASETS
from btcp_tf.data.splits import Dataset
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import DECISION_FILE
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import Predictions, load_predictions
from btcp_tf.experiment.score import Scorer
from btcp_tf.experiment.values import (
    AllPredictions,
    Choice,
    Decision,
    Row,
    best_tau,
    check_finite,
    predictions_file,
)
from btcp_tf.methods.registry import METHODS
from btcp_tf.methods.residual_choice import FEW_ERRORS

if TYPE_CHECKING:
    import keras

    from btcp_tf.training.phases import Stage

SIDE_DRAWS = 200
"""Bootstrap draws, at most, of rows that are not the test set's failure prediction. There are many
of them, and with a thousand draws they would take longer than the training."""


def choose_taus(predictions: AllPredictions, config: Config) -> dict[str, float]:
    """Decision thresholds of the methods that have one of their own, from validation data."""
    found = predictions["validation", "frozen"]
    taus = {}
    for name in config.method:
        if METHODS[name].column_of and 0 < found.is_error.sum() < len(found.is_error):
            taus[name] = best_tau(found.is_error, found.uncertainty[name])
    return taus


def choose_export(scorer: Scorer, predictions: AllPredictions, config: Config) -> Choice:
    """What to export: `config.export_method`, or what ranks the validation errors best.

    Candidates are the frozen classifier with each method that a SavedModel can answer, and each
    fine-tuned classifier with MCP and with its own estimator, without those that collapsed. The
    smallest AURC on validation images wins, MCP among equal ones. AURC counts the errors of the
    classifier and those of the ranking together, so it compares different classifiers, too. The
    residual estimators were fitted on these images: they stand there with their cross-fitted u.
    """
    if config.export_method != "auto":
        name = config.export_method
        predictor = f"{name}_finetuned" if name in config.finetuned else "frozen"
        return Choice(predictor, name, f"--export_method={name}")
    candidates = [("frozen", name) for name in config.method if METHODS[name].exported]
    for name in config.finetuned:
        candidates += [(f"{name}_finetuned", "mcp"), (f"{name}_finetuned", name)]
    if not config.export_collapsed:
        candidates = [pair for pair in candidates if not scorer.collapse(*pair)] or candidates
    candidates.sort(key=lambda pair: pair[1] != "mcp")
    aurc = {}
    for predictor, method in candidates:
        rows = predictions["validation", predictor]
        u = scorer.held_out_u(method) if predictor == "frozen" else None
        aurc[predictor, method] = metrics.aurc(
            rows.is_error, rows.uncertainty[method] if u is None else u
        )
    best = min(candidates, key=lambda pair: aurc[pair])
    rows = predictions["validation", best[0]]
    others = sorted(aurc.items(), key=lambda item: item[1])
    reason = (
        f"smallest AURC x 1000 on {len(rows.is_error):,} validation images, "
        f"{int(rows.is_error.sum()):,} of them wrong: {1000 * aurc[best]:.3g}"
    )
    listed = [
        f"{method}{' fine-tuned' * (predictor != 'frozen')} {1000 * value:.3g}"
        for (predictor, method), value in others
        if (predictor, method) != best
    ]
    return Choice(*best, reason + (f"; {', '.join(listed)}" if listed else ""))


def served_answers(
    predictions: AllPredictions, scorer: Scorer, dataset: Dataset, choice: Choice
) -> AllPredictions:
    """The predictions of what is exported, as the exported graph computes them.

    The threshold is chosen on these: images in, u out, in the graph that is served. `predict_all`
    goes other ways to the same u, and rounds in other places.
    """
    from btcp_tf.serving import signatures

    predictor, method, _ = choice
    model = scorer.exported_model(predictor, method)
    found = {}
    for split in ("validation", "calibration", "test"):
        if (split, predictor) not in predictions:
            continue
        probs, u = signatures.served(model, getattr(dataset, split).images)
        check_finite(probs, u)
        rows = predictions[split, predictor]
        same = [name for name in rows.uncertainty if METHODS[name].column_of == method]
        found[split, predictor] = dataclasses.replace(
            rows,
            probs=probs,
            predicted=probs.argmax(axis=1),
            uncertainty={**rows.uncertainty, **dict.fromkeys([method, *same], u)},
        )
    return found


def saved_choice(folder: Path) -> tuple[Choice, AllPredictions]:
    """Of a finished run, what is exported, and the rows that its decision is made of."""
    known = decision_file.load_decision(folder)
    if known is None:
        raise ValueError(
            f"{folder}: expected {DECISION_FILE} of a finished run, received none; "
            "delete finished.json, and the same command makes it again from the checkpoints"
        )
    predictor = known.predictor
    return Choice(predictor, known.method, known.reason), {
        (split, predictor): load_predictions(predictions_file(folder, split, predictor))
        for split in ("validation", "calibration")
    }


def decide(
    predictions: AllPredictions, choice: Choice, config: Config, mcp: np.ndarray | None = None
) -> Decision:
    """Chooses the threshold of what is exported, on calibration images.

    Args:
      predictions: Of the validation and the calibration set.
      choice: What is exported.
      config: Settings.
      mcp: u of MCP on the calibration images, if the predictions have no such column.
    """
    predictor, method, reason = choice
    held_out = {}
    for split in ("validation", "calibration"):
        rows = predictions[split, predictor]
        column = {"uncertainty": rows.uncertainty[method]}
        held_out[split] = dataclasses.replace(rows, probs=None, uncertainty=column)
    rows = held_out["calibration"]
    u, notes, word = rows.uncertainty["uncertainty"], [], config.threshold
    if told := _worse_than_mcp(predictions["calibration", predictor], method, config, mcp):
        notes.append(told)
    if word == "best_bacc" and not 0 < rows.is_error.sum() < len(u):
        notes.append(
            "threshold: none of best BACC, as the calibration answers are all correct or all "
            f"wrong; the SavedModel has tau = {config.tau:g}"
        )
        word = str(config.tau)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values["grid"] = thresholds.quantile_grid(held_out["validation"].uncertainty["uncertainty"])
    threshold = thresholds.clear_of(thresholds.from_word(word, rows.is_error, u, values), u)
    if threshold.tau is None:
        least = threshold.least_risk
        notes.append(
            f"threshold: not achievable with {threshold.n} calibration images, so the SavedModel "
            f"accepts nothing: {threshold.rule}"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
        )
    return Decision(predictor, method, reason, threshold, held_out, notes)


def _worse_than_mcp(rows: Predictions, method: str, config: Config, mcp: np.ndarray | None) -> str:
    """A warning if u ranks the errors of these rows worse than MCP does, else ""."""
    mcp = rows.uncertainty.get("mcp", mcp)
    if method == "mcp" or mcp is None or not 0 < rows.is_error.sum() < len(rows.is_error):
        return ""
    columns = {"mcp": mcp, method: rows.uncertainty[method]}
    draws = metrics.bootstrap(
        rows.is_error,
        columns,
        tau=config.tau,
        draws=min(config.bootstrap_draws, SIDE_DRAWS),
        seed=config.seed,
        table={"aurc": metrics.METRICS["aurc"]},
    )
    low, high = metrics.interval(draws[method]["aurc"] - draws["mcp"]["aurc"])
    if not low > 0:
        return ""
    both = ", ".join(
        f"{name} {1000 * metrics.aurc(rows.is_error, u):.4g}" for name, u in columns.items()
    )
    return (
        f"export: the SavedModel answers {method}, which ranks the errors of the calibration "
        f"images worse than MCP: AURC x 1000 {both}, difference [{1000 * low:+.4g}, "
        f"{1000 * high:+.4g}]; --export_method takes another"
    )


TARGETS = (0.01, 0.02, 0.05)
"""Error rates that the report of every run tries to promise."""


def make_promises(predictions: AllPredictions, config: Config) -> list[Row]:
    """What `target_risk` promises for every method on calibration images, and what test images say.

    The candidates for tau are quantiles of validation u; `delta` and `min_coverage` are the run's.

    Returns:
      Rows of `method`, `stage`, `target`, `tau`, of the calibration rows `n`, `accepted` and
      `errors`, `least_risk` (see `thresholds.Threshold`), and `test_` with each field of
      `thresholds.Outcome`.
    """
    rows = []
    for (split, predictor), calibration in predictions.items():
        if split != "calibration":
            continue
        validation, test = predictions["validation", predictor], predictions["test", predictor]
        for method, u in calibration.uncertainty.items():
            if METHODS[method].uses_labels or (predictor in METHODS and method != predictor):
                continue
            grid = thresholds.quantile_grid(validation.uncertainty[method])
            for target in TARGETS:
                chosen = thresholds.target_risk(
                    calibration.is_error,
                    u,
                    risk=target,
                    delta=config.delta,
                    grid=grid,
                    min_coverage=config.min_coverage,
                )
                found = thresholds.outcome(chosen, test.is_error, test.uncertainty[method])
                rows.append(
                    {
                        "method": method,
                        "stage": "finetuned" if predictor.endswith("_finetuned") else "frozen",
                        "target": target,
                        "tau": chosen.tau,
                        "n": chosen.n,
                        "accepted": chosen.accepted,
                        "errors": chosen.errors,
                        "least_risk": chosen.least_risk,
                        **{f"test_{name}": value for name, value in found._asdict().items()},
                    }
                )
    return rows


def evaluate(
    network: "keras.Model",
    stages: dict[str, "Stage"],
    predictions: AllPredictions,
    taus: dict[str, float],
    config: Config,
) -> list[Row]:
    """Result rows of the test set and of other images, every predictor with its own id."""
    from btcp_tf.training import checkpoints

    ids = {}
    for name in ("classifier", *(f"{method}_finetuned" for method in config.finetuned)):
        checkpoints.restore(network, stages[name].values)
        ids[name] = checkpoints.weights_id(network, ("encoder", "classifier"))
    rows = []
    for (split, name), found in predictions.items():
        if split in ("validation", "calibration"):
            continue
        finetuned = name.endswith("_finetuned")
        same: dict[str, Any] = dict(
            dataset=datasets.short_name(config.dataset, config.data_dir),
            seed=config.seed,
            stage="finetuned" if finetuned else "frozen",
            classifier_id=ids[name]
            if finetuned
            else ids["classifier"] + (f"-{name}" if name != "frozen" else ""),
            tau=config.tau,
            taus={} if finetuned else taus,
            raw=[column for column in found.uncertainty if not METHODS[column].bounded],
            bootstrap_draws=config.bootstrap_draws
            if split == "test"
            else min(config.bootstrap_draws, SIDE_DRAWS),
            bootstrap_seed=config.seed,
        )
        kind, _, rest = split.partition("_")
        if kind == "ood":
            test = predictions["test", name]
            rows += results.ood_rows(test, found, ood_name=rest, **same)
        else:
            rows += results.rows(found, split=f"test:{rest}" if rest else split, **same)
    return rows


def collect_notes(
    stages: dict[str, "Stage"],
    dataset: Dataset,
    others: dict[str, np.ndarray],
    predictions: AllPredictions,
    taus: dict[str, float],
    config: Config,
    adopted: str,
) -> list[str]:
    """What a reader must know before believing the figures."""
    notes = [dataset.note] if dataset.note else []
    if config.classifier:
        notes.append(_adopted_note(config, predictions, adopted))
    for name in config.ood:
        found, whole = len(others[f"ood_{Path(name).stem}"]), DATASETS.get(name)
        if whole and found != whole.expected_test:
            notes.append(
                f"OOD set {name}: part or stand-in: {found:,} of {whole.expected_test:,} images"
            )
    same = [name for name in others if np.array_equal(others[name], dataset.test.images)]
    notes += [f"{name}: leaves every test image as it is, so small are they" for name in same]
    for name in config.method:
        if METHODS[name].column_of and name not in taus:
            notes.append(
                f"{name}: no threshold could be chosen, as the validation answers are all correct "
                f"or all wrong; tau stays {config.tau:g}"
            )
    for stage in stages.values():
        if stage.collapse:
            notes.append(f"{stage.name}: {stage.collapse}")
        uncapped = stage.facts.get("gamma_uncapped", 0.0)
        if uncapped > stage.facts.get("gamma", 0.0):
            notes.append(
                f"{stage.name}: gamma = 1 / (12 var(U)) is {uncapped:.4g}, capped at "
                f"{stage.facts['gamma']:g} (gamma_max)"
            )
        if stage.facts.get("train_errors", FEW_ERRORS) < FEW_ERRORS:
            notes.append(
                f"{stage.name}: the classifier is wrong on only {stage.facts['train_errors']} "
                "training images; an estimator learns little from so few errors"
            )
    return list(dict.fromkeys(notes))


def _adopted_note(config: Config, predictions: AllPredictions, adopted: str) -> str:
    right = {
        split: 1.0 - predictions[split, "frozen"].is_error.mean()
        for split in ("validation", "calibration", "test")
    }
    return (
        f"the classifier is {config.classifier}, not trained here: right on "
        + ", ".join(f"{share:.2%} of the {split} images" for split, share in right.items())
        + adopted
        + ". Validation and calibration images that it was trained on make what is chosen on them "
        "look better than it is."
    )


def environment() -> dict[str, str]:
    """What besides the settings can change a figure."""
    import tensorflow as tf

    packages = ("btcp_tf", "tensorflow", "keras", "numpy", "tensorflow-datasets", "scikit-learn")
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {
        "platform": platform.platform(),
        # Physical ones: how a CPU is split is a setting of the run.
        "devices": ", ".join(
            device.name.removeprefix("/physical_device:")
            for device in tf.config.list_physical_devices()
        ),
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "unset"),
    }
