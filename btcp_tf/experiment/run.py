"""One run in its folder: train a classifier and estimators, score, measure, report, export.

The steps of `run` stand in order; each takes values and returns values. What is
saved on the way lets a killed run go on, and everything behind it be redone
without training.
"""

import logging
from pathlib import Path

from btcp_tf.core import command
from btcp_tf.core.config import Config
from btcp_tf.core.files import check_folder, check_place, folder_lock
from btcp_tf.data import datasets, overlaps
from btcp_tf.decisions.decision_file import NOT_EXPORTED
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import save_predictions
from btcp_tf.experiment import decide, prepare, publish, score, settings, train, values
from btcp_tf.experiment.journal import Journal, log
from btcp_tf.experiment.publish import EXPORT_OPEN, End
from btcp_tf.experiment.score import Scorer
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import run_page


def run(config: Config, *, part_of_study: bool = False) -> None:
    """Carries out one run in `config.output_dir`, or what is left of it.

    Args:
      config: Settings.
      part_of_study: Leaves no SavedModel and prints no summary.

    Raises:
      ValueError: If the folder holds a run with other settings, or data or
        checkpoints are damaged.
      RuntimeError: If another process holds the folder. And if the export fails, or is refused as
        the version that it would replace is better: the run is reported and finished then, and the
        next call of this function tries only the export again.
      FileNotFoundError: If the data set is not there.
    """
    folder = Path(config.output_dir)
    with folder_lock(folder):
        is_new = prepare.check_claim(folder, config)
        finished = folder / "finished.json"
        end = publish.read_finished(folder) if finished.exists() else None
        if end and (part_of_study or not end.to_export(config)):
            if config.verbose and not part_of_study:
                print(f"{folder} is finished already; nothing is changed.\n")
                _print_summary(folder)
            return
        prepare.check_paths(config)
        # Now, and not after the training.
        if not part_of_study:
            check_folder("export_dir", config.export_dir, keep=False)

        with command.hidden_stderr():
            # It warns of traces, of which every phase rightly needs some.
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            from btcp_tf.training import checkpoints, distribution, phases
            from btcp_tf.training.phase_model import Recipe
            from btcp_tf.training.settings import TrainingSettings

            strategy = distribution.make_strategy(config.strategy, config.logical_devices)
            distribution.start_devices()
        whole = datasets.load(
            config.dataset,
            config.data_dir,
            config.seed,
            config.max_train_images,
            config.max_test_images,
            size=config.size,
            bad_files=config.bad_files,
            verbose=config.verbose,
        )
        # The classifiers are trained on the whole, so that checkpoints hold whatever is left out.
        dataset = prepare.leave_out_known(whole, config)
        if not part_of_study:
            check_place("export_dir", publish.export_folder(config, dataset))
        others = prepare.load_others(dataset, config)
        pixels, adopted = prepare.choose_pixels(config, dataset) if config.classifier else ("", "")
        build = prepare.builder(config, dataset, strategy, pixels)
        poor = (
            prepare.refuse_poor_classifier(build, dataset, config, adopted)
            if config.classifier
            else ""
        )

        # Nothing is written before: what cannot begin leaves no folder.
        if is_new:
            settings.save_flagfile(config, folder / "flags.cfg")
        log(folder, f"started with {dataset.name} {dataset.fingerprint}")
        members = train.train_members(build, whole, config, folder / "checkpoints", strategy)
        folds = train.train_folds(build, whole, config, folder / "checkpoints", strategy)
        network = build(config.seed)
        if config.classifier:
            weights = checkpoints.weights_id(network)
            log(folder, f"adopted {config.classifier}, weights {weights}{adopted}")
        journal = Journal(folder, config, whole)
        stages = phases.fit(
            network,
            whole,
            TrainingSettings.of(config),
            {
                name: Recipe(
                    METHODS[name].gamma,
                    config.ohem_fraction if METHODS[name].hard_examples else 1.0,
                )
                for name in config.method
                if METHODS[name].trained
            },
            adopted=bool(config.classifier),
            folder=folder / "checkpoints",
            strategy=strategy,
            describe=journal.describe,
            after_epoch=journal.after_epoch,
        )
        scorer = Scorer(network, stages, members, folds, dataset, config)
        if end is None:
            predictions = score.predict_all(scorer, dataset, others, verbose=config.verbose)
            choice = decide.choose_export(scorer, predictions, config)
        else:
            choice, predictions = decide.saved_choice(folder)
        predictions |= decide.served_answers(predictions, scorer, dataset, choice)
        for (split, name), found in predictions.items():
            save_predictions(values.predictions_file(folder, split, name), found)
        if end is None:
            log(folder, f"scored the test set: {len(dataset.test)} images")
        decision = decide.decide(
            predictions, choice, config, scorer.mcp(dataset.calibration.images)
        )
        beside = None if part_of_study else publish.replaces(folder, decision, dataset, config)
        if end is None:
            taus = decide.choose_taus(predictions, config)
            rows = decide.evaluate(network, stages, predictions, taus, config)
            no_promise = bool(dataset.overlaps.no_promise)
            promises = [] if no_promise else decide.make_promises(predictions, config)
            notes = decide.collect_notes(
                stages, dataset, others, predictions, taus, config, adopted
            )
            notes += overlaps.notes(dataset.overlaps, dataset.class_names)
            notes += prepare.known_others(whole, others)
            notes += [f"the classifier cannot be right: {poor} (allow_poor_classifier)"] * bool(
                poor
            )
            notes += [f"{name}: {words}" for name, words in scorer.reference.facts.items()]
            if not part_of_study:
                notes += decision.notes + ([beside.note] if beside and beside.note else [])
            results.save_rows(
                folder / "results.json",
                rows,
                {
                    "settings": config.settings(results_only=True),
                    "data": prepare.about_data(dataset),
                    "stages": {name: stage.facts for name, stage in stages.items() if stage.facts},
                    "taus": taus,
                    "promises": promises,
                    "notes": notes,
                    "environment": decide.environment(),
                },
            )
            journal.finish(rows, predictions, dataset.validation)
            publish.save_decision(folder, decision, EXPORT_OPEN)
            explanations = score.explain(folder, scorer, decision, dataset)
            publish.report_run(folder, predictions, journal.history, dataset, explanations)
        if part_of_study:
            publish.finish_run(folder, decision, End(f"{NOT_EXPORTED}: part of a study"))
            return
        end, failure = publish.try_export(folder, scorer, decision, beside, dataset, config)
        publish.finish_run(folder, decision, end)
        if config.verbose:
            print()
            _print_summary(folder)
        if failure:
            raise failure


def _print_summary(folder: Path) -> None:
    files = {
        "report": folder / "report.html",
        "results": folder / "results.json",
        "predictions": folder / "predictions.npz",
        "figures": folder / "figures",
    }
    missing = [path for path in files.values() if not path.exists()]
    remedy = f"delete {folder / 'finished.json'}, and the same command makes them again"
    if missing:
        print(f"note: {', '.join(map(str, missing))} are missing; {remedy}")
    try:
        told = run_page.closing_screen(folder, publish.read_finished(folder).saved_model)
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise ValueError(
            f"expected the results of a finished run in {files['results']}, received what cannot "
            f"be read ({error}); {remedy}"
        ) from error
    print(told)
