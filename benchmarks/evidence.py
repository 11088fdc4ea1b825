"""What each kind of evidence gives the residual estimator.

    python -m benchmarks.evidence RUN [RUN ...] [--folds=0] [--copies=noise,blur] [--ensemble=0]

For each run's frozen classifier, the estimator is fitted on its validation samples with a part of
the evidence at a time, and judged on its calibration samples, on which nothing was fitted or
chosen: no test sample is read. `--folds=5` also fits it on what five further classifiers, each
trained without a fifth of the training samples, answer to that fifth; they take five times as long
as the run's own classifier, and are kept in the run's folder with its checkpoints. `--copies` also
fits it on corrupted copies of the validation samples, and judges all under every corruption, too:
mean AURC over the runs. `--ensemble=5` instead of folds also fits it to what the mean of five
classifiers thinks of the true class, the run's own and four further ones, and adds that ensemble.

The last column says for how many of the runs the estimator was taken to be better than MCP; for the
others it is MCP, and the difference is that of the calibration alone: none.
"""

import dataclasses
import functools
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import common
from btcp_tf import metrics
from btcp_tf.evaluation import results, seeds
from btcp_tf.evaluation.predictions import Predictions

if TYPE_CHECKING:
    from btcp_tf.config import Config

    from btcp_tf.data import Dataset
    from btcp_tf.experiment.score import Scorer

EVIDENCE = {
    "answer": ("answer",),
    "answer-head": ("answer", "head"),
    "answer-neighbors": ("answer", "neighbors"),
    "features": ("answer", "head", "neighbors"),
    "image": ("answer", "image_head", "image_neighbors"),
    "no-index": ("answer", "head", "image_head"),
    "all": ("answer", "head", "neighbors", "image_head", "image_neighbors"),
}
LEARNED_FROM_MORE = ("features", "no-index", "all")


def main() -> None:
    parser = common.parser("evidence", __doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--copies", default="", help="names of corruptions, by commas")
    parser.add_argument("--ensemble", type=int, default=0, help="classifiers; not with --folds")
    arguments = parser.parse_args()
    if arguments.folds and arguments.ensemble:
        parser.error("--ensemble: expected no --folds beside it, received both")
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    rows: list[dict[str, Any]] = []
    used: dict[str, int] = {}
    shifted: dict[str, dict[str, list[float]]] = {}
    copies = tuple(filter(None, arguments.copies.split(",")))
    for number, run in enumerate(arguments.runs):
        print(f"{run} ...", flush=True)
        try:
            found, taken = rows_of(
                run, number, arguments.folds, copies, arguments.ensemble, shifted
            )
        except (OSError, ValueError) as error:
            sys.exit(f"error: {run}: {error}")
        rows += found
        for name, is_used in taken.items():
            used[name] = used.get(name, 0) + is_used
    lines = common.differences(seeds.across_seeds(rows), "none: MCP")
    common.print_table(
        (*common.DIFFERENCES, "used"),
        [
            (*line, f"{used[line[0]]} of {len(arguments.runs)}" if line[0] in used else "")
            for line in lines
        ],
    )
    if shifted:
        names = list(next(iter(shifted.values())))
        common.print_table(
            ("AURC x 1000 under", *names),
            [
                (split, *(f"{1000 * statistics.mean(values[name]):.2f}" for name in names))
                for split, values in shifted.items()
            ],
        )


def scorer_of(run: Path, **changes: Any) -> "tuple[Scorer, Dataset, Config]":
    """What scores images as a run does, its data and its settings.

    Args:
      run: Its folder, with checkpoints; what it lacks is trained and kept there.
      changes: Of its settings.
    """
    import keras

    from btcp_tf.experiment import prepare, score, settings
    from btcp_tf.experiment.train import Trainer
    from btcp_tf.training import distribution
    from btcp_tf.training.settings import TrainingSettings

    # What an earlier run left in memory.
    keras.backend.clear_session()
    config = settings.parse([f"--flagfile={run / 'flags.cfg'}"])
    config = dataclasses.replace(
        config, method=("mcp", "residual"), finetune_method=(), verbose=2, ood=(), **changes
    )
    dataset = prepare.load_images(config.take(prepare.ImageSettings)).whole
    strategy = distribution.make_strategy("none", 0)
    pixels = prepare.choose_pixels(config.classifier, dataset)[0] if config.classifier else ""
    architecture = config.take(prepare.Architecture, pixels=pixels)
    trainer = Trainer(
        functools.partial(prepare.build_network, architecture, dataset, strategy),
        dataset,
        TrainingSettings.of(config),
        run / "checkpoints",
        strategy,
        adopted=bool(config.classifier),
    )
    members = config.ensemble_members if config.residual_distilled else 0
    trained = trainer.train({}, members=members, folds=config.residual_folds)
    return score.make_scorer(trained, dataset, config.take(score.ScoreSettings)), dataset, config


def rows_of(
    run: Path,
    number: int,
    folds: int,
    copies: tuple[str, ...],
    ensemble: int,
    shifted: dict[str, dict[str, list[float]]],
) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Rows of the calibration samples, and which estimators were taken to be better than MCP.

    With `copies`, AURC under every corruption is added to `shifted`, by split and method.
    """
    from btcp_tf.data.corruptions import CORRUPTIONS
    from btcp_tf.experiment import score
    from btcp_tf.methods import residual_fit
    from btcp_tf.networks import mcp

    changes: dict[str, Any] = {"ensemble_members": ensemble} if ensemble else {}
    scorer, dataset, config = scorer_of(
        run,
        residual_folds=folds,
        residual_copies=copies,
        residual_distilled=bool(ensemble),
        **changes,
    )
    everything = scorer.reference.held_out
    # The second heads, once trained, are those of all.
    with_copies = [dataclasses.replace(one, ensemble=()) for one in everything]
    plainly = [dataclasses.replace(one, copies=()) for one in with_copies]
    variants = [(name, plainly[:1], EVIDENCE[name]) for name in EVIDENCE]
    more = [(name, EVIDENCE[name]) for name in LEARNED_FROM_MORE]
    if folds:
        variants += [(f"cross-fitted-{name}", plainly, allowed) for name, allowed in more]
    if copies:
        variants += [(f"copies-{name}", with_copies[:1], allowed) for name, allowed in more]
    if folds and copies:
        variants += [
            (f"cross-fitted-copies-{name}", with_copies, allowed) for name, allowed in more
        ]
    if ensemble:
        distilled = dataclasses.replace(
            everything[0], copies=(), ensemble=everything[0].ensemble[:1]
        )
        variants += [(f"distilled-{name}", [distilled], allowed) for name, allowed in more]
    calibration = dataset.calibration
    splits = {"calibration": calibration.images}
    for name, corrupt in (CORRUPTIONS if copies else {}).items():
        for strength in (1, 2, 3):
            splits[f"{name} {strength}"] = corrupt(calibration.images, strength, config.seed)
    judged = {
        split: scorer.classifier.outputs(images, calibration.labels)
        for split, images in splits.items()
    }
    columns = {split: {"mcp": mcp.mcp_of(answers.logits)} for split, answers in judged.items()}
    used = {}
    for name, (own, *others), allowed in variants:
        fit, readers, weights, _ = residual_fit.fit_residual(
            own, others, allowed=allowed, seed=config.seed
        )
        print(f"  {name}: {fit.words}", flush=True)
        used[name] = bool(fit.evidence)
        for split, answers in judged.items():
            columns[split][name] = residual_fit.score_residual(readers, weights, answers)
    if ensemble:
        for split, answers in judged.items():
            mean = score.ensemble_mean(splits[split], answers.probs, scorer.members)
            columns[split]["ensemble"] = 1.0 - mean[np.arange(len(mean)), answers.predicted]
    if copies:
        for split, answers in judged.items():
            is_error = answers.predicted != answers.labels
            for name, u in columns[split].items():
                values = shifted.setdefault(split, {}).setdefault(name, [])
                values.append(metrics.aurc(is_error, u))
    answers = judged["calibration"]
    found = results.rows(
        Predictions(answers.labels, answers.probs, answers.predicted, columns["calibration"]),
        dataset=dataset.name,
        seed=number,
        stage="frozen",
        classifier_id=str(run),
        split="calibration",
        tau=config.tau,
        bootstrap_draws=config.bootstrap_draws,
        bootstrap_seed=config.seed,
    )
    return found, used


if __name__ == "__main__":
    main()
