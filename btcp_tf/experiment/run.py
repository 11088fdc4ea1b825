"""One run in its folder: prepare, train, score, decide, publish.

Each step takes values and returns values. What is saved on the way lets a killed run go on, and
everything after the training be redone without it.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from btcp_tf.core import command, versions, warning
from btcp_tf.core.config import ENSEMBLES, Config
from btcp_tf.core.files import check_folder, check_place, folder_lock
from btcp_tf.data import datasets, near_duplicates, overlaps
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import NOT_EXPORTED
from btcp_tf.evaluation import results
from btcp_tf.evaluation.explanations import EXPLANATIONS_FILE, save_explanations
from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, VALIDATION, Predictor
from btcp_tf.experiment import decide, looks, notes, prepare, publish, score, settings, train
from btcp_tf.experiment.decide import EvaluationSettings
from btcp_tf.experiment.journal import Journal, announce, log
from btcp_tf.experiment.looks import LookSettings
from btcp_tf.experiment.prepare import Architecture, Images, ImageSettings
from btcp_tf.experiment.publish import EXPORT_OPEN, FINISHED_FILE, End, Export, Replaced
from btcp_tf.experiment.score import Scorer, ScoreSettings
from btcp_tf.experiment.settings import DECISION_SETTINGS
from btcp_tf.experiment.train import Trained, Trainer
from btcp_tf.experiment.values import AllPredictions, Choice
from btcp_tf.methods.residual_scores import ResidualScore
from btcp_tf.reporting import run_page
from btcp_tf.serving import publishing


def run(config: Config, *, part_of_study: bool = False) -> None:
    """Carries out one run in `config.output_dir`, or what an earlier call has left to do.

    Args:
      config: Settings.
      part_of_study: Exports no SavedModel and prints no summary.

    Raises:
      ValueError: If the folder holds a run with other settings, or data or
        checkpoints are damaged.
      RuntimeError: If another process holds the folder. And if the export fails, or is refused as
        the version that it would replace is better: the run is reported and finished then, and the
        next call of this function tries only the export again. Or if nothing is exported as the
        training collapsed.
      FileNotFoundError: If the data set is not there.
    """
    folder = Path(config.output_dir)
    with folder_lock(folder):
        is_new = prepare.check_folder_is_free(folder, config)
        end = publish.read_finished(folder)
        if end:
            publish.check_results(folder, end)
        if end and (part_of_study or not end.to_export(config.export_collapsed)):
            if config.verbose and not part_of_study:
                print(f"{folder} is finished already; nothing is changed.\n")
                _print_summary(folder)
            if end.collapse and not part_of_study:
                raise publish.collapsed(end.collapse)
            return
        prepare.check_paths(config)
        if not part_of_study:
            # Now, and not after the training.
            check_folder("export_dir", config.export_dir, keep=False)
        prepared = _prepare(config, part_of_study)
        # Nothing is written before: a run that cannot begin leaves no folder.
        if is_new:
            settings.save_flagfile(config, folder / "flags.cfg")
        for line in prepared.log:
            log(folder, line)
        whole = prepared.images.whole
        journal = Journal(folder, whole.validation, whole.class_names, tau=config.tau)
        trained = _train(config, prepared.trainer, journal)
        with _early_check(part_of_study):
            scored = _score(config, prepared.images, trained, is_finished=end is not None)
            decided = _decide(config, prepared.images, scored, part_of_study)
            if end is None:
                _report(config, prepared, trained, scored, decided, journal)
            end, failure = _export(config, scored, decided, part_of_study)
        publish.finish_run(folder, decided.export.decision, end)
        if config.verbose and not part_of_study:
            print()
            _print_summary(folder)
        if failure:
            raise failure


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
    """What the training starts from."""

    images: Images
    trainer: Trainer
    pixels: str
    """A note on the input scaling of a given classifier; "": there is none."""
    versions: str
    """A note on versions of packages that trained the checkpoints, see `_check_versions`."""
    problem: str
    """Why a given classifier cannot be right; "": it can be, or there is none."""
    log: tuple[str, ...]
    """Lines for the run's log."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """The answers of all predictors, and which of them are exported."""

    scorer: Scorer
    choice: Choice
    predictions: AllPredictions


@dataclasses.dataclass(frozen=True, eq=False)
class _Decided:
    """What is exported, and whether it is better than what it replaces."""

    export: Export
    replaced: Replaced | None
    notes: list[str]


def _prepare(config: Config, part_of_study: bool) -> _Prepared:
    """Loads the images, and builds the network once if its classifier is given."""
    announce(f"loading TensorFlow and the images of {config.dataset}", config.verbose)
    with command.hidden_stderr():
        # It warns of traces, of which every phase rightly needs some.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        from btcp_tf.training import checkpoints, distribution
        from btcp_tf.training.settings import TrainingSettings

        strategy = distribution.make_strategy(config.strategy, config.logical_devices)
        distribution.start_devices()
    others = checkpoints.other_versions(Path(config.output_dir) / "checkpoints")
    versions_note = _check_versions(others, config.strict)
    images = prepare.load_images(config.take(ImageSettings))
    folder, dataset = Path(config.output_dir), images.dataset
    if not part_of_study:
        check_place("export_dir", _export_folder(config, dataset.name))
    lines = [f"started with {dataset.name} {dataset.fingerprint}", *[versions_note] * bool(others)]
    pixels = note = problem = ""
    if config.classifier:
        announce(f"trying {config.classifier} out on validation images", config.verbose)
        pixels, note = prepare.choose_pixels(
            config.classifier,
            dataset,
            pixels=config.classifier_pixels,
            batch_size=config.test_batch_size,
        )
    architecture = config.take(Architecture, pixels=pixels)
    build = functools.partial(prepare.build_network, architecture, dataset, strategy)
    if config.classifier:
        network = build(config.seed)
        problem = prepare.refuse_poor_classifier(
            network,
            config.classifier,
            dataset,
            allow=config.allow_poor_classifier,
            batch_size=config.test_batch_size,
            note=note,
        )
        weights = checkpoints.weights_id(network)
        lines.append(f"adopted {config.classifier}, weights {weights}{note}")
    if "residual_looks" in config.method and config.residual_looks != ("auto",):
        announce("trying the looks out on validation images", config.verbose)
        # What does not suit is refused now, and not after the training.
        with_folds = config.residual_folds > 0
        looks.make_offer(build(config.seed), dataset, config.take(LookSettings), with_folds)
    trainer = Trainer(
        build,
        images.whole,
        TrainingSettings.of(config),
        folder / "checkpoints",
        strategy,
        adopted=bool(config.classifier),
    )
    return _Prepared(images, trainer, note, versions_note, problem, tuple(lines))


def _check_versions(others: Mapping[str, Sequence[str]], strict: bool) -> str:
    """A note on the versions that trained the checkpoints of a run that goes on; "": these.

    Raises:
      ValueError: If there are others and the run is strict.
    """
    if not others:
        return ""
    told = versions.others_text(others, versions.installed())
    if strict:
        raise ValueError(
            f"strict: expected the versions that trained the checkpoints, received others: {told}; "
            "install those, or leave out --strict"
        )
    note = f"checkpoints: trained, at least in part, with {told}"
    warning.warn(f"{note}; the figures may differ from those of a run with one of them alone")
    return note


def _train(config: Config, trainer: Trainer, journal: Journal) -> Trained:
    has_ensemble = config.residual_distilled or not ENSEMBLES.isdisjoint(config.method)
    return trainer.train(
        train.recipes(config.method, config.ohem_fraction),
        members=config.ensemble_members if has_ensemble else 0,
        folds=config.residual_folds,
        describe=journal.describe,
        after_epoch=journal.after_epoch,
    )


def _score(config: Config, images: Images, trained: Trained, *, is_finished: bool) -> _Scored:
    """Fits the methods and scores all images; those of a finished run are read."""
    verbose = config.verbose
    announce(f"fitting the methods: {', '.join(config.method)}", verbose)
    scorer = score.make_scorer(trained, images.dataset, config.take(ScoreSettings))
    if is_finished:
        choice, predictions = decide.saved_choice(Path(config.output_dir))
    else:
        sets = 3 + len(images.others)
        announce(f"computing u of {len(config.method)} methods for {sets} sets of images", verbose)
        predictions = score.predict_all(
            scorer, images.dataset, images.others, show_progress=verbose == 1
        )
        choice = _choose_export(config, scorer, predictions)
    predictions |= decide.served_answers(predictions, scorer, images.dataset, choice)
    return _Scored(scorer, choice, predictions)


def _choose_export(config: Config, scorer: Scorer, predictions: AllPredictions) -> Choice:
    """The method that was asked for, or the best on validation images that did not collapse."""
    name = config.export_method
    if name != "auto":
        predictor = Predictor(name, FINETUNED) if name in config.finetuned else CLASSIFIER
        choice = Choice(predictor, name, f"--export_method={name}")
    else:
        pairs = decide.candidates(config.method, config.finetuned)
        if not config.export_collapsed:
            pairs = [pair for pair in pairs if not scorer.collapse(*pair)] or pairs
        choice = decide.choose_export(predictions, pairs, scorer.held_out_u)
    if few := config.max_train_images:
        trial = f"{choice.reason}; a trial with {few:,} training images, not to be served"
        return choice._replace(reason=trial)
    return choice


def _decide(config: Config, images: Images, scored: _Scored, part_of_study: bool) -> _Decided:
    """Saves the answers, and chooses the threshold of those that are exported."""
    folder, dataset = Path(config.output_dir), images.dataset
    publish.save_answers(folder, scored.predictions)
    settings = {name: getattr(config, name) for name in (*DECISION_SETTINGS, "tau")}
    decision, warnings = decide.decide(
        scored.predictions, scored.choice, config.threshold, settings, dataset.class_names
    )
    score = scored.scorer.scores.get(decision.method)
    if isinstance(score, ResidualScore) and score.fit.gate is not None:
        decision = dataclasses.replace(decision, fit=dataclasses.asdict(score.fit))
    export = Export(
        folder,
        _export_folder(config, dataset.name),
        decision,
        publish.held_out_rows(scored.predictions, decision),
        dataset,
        config.settings(results_only=True),
        verbose=config.verbose,
    )
    if part_of_study:
        return _Decided(export, None, [])
    mcp = None if "mcp" in config.method else scored.scorer.mcp(dataset.calibration.images)
    worse = decide.worse_than_mcp(decision, mcp, config.take(EvaluationSettings))
    predicted = export.held_out["validation"].predicted
    load = functools.partial(
        datasets.load,
        config.dataset,
        config.data_dir,
        size=config.size,
        bad_files=config.bad_files,
        max_pixels=config.max_pixels,
        groups=config.groups,
    )
    replaced = publish.find_replaced(
        folder,
        export.target,
        decision.threshold,
        lambda version: publishing.compare_with(
            version, predicted, dataset, load, classifier=config.classifier
        ),
        config.verbose,
    )
    about = [replaced.note] if replaced and replaced.note else []
    return _Decided(export, replaced, worse + warnings + about)


def _export_folder(config: Config, dataset: str) -> Path:
    return publish.export_folder(
        config.export_dir, config.export_name, dataset, is_trial=bool(config.max_train_images)
    )


def _report(
    config: Config,
    prepared: _Prepared,
    trained: Trained,
    scored: _Scored,
    decided: _Decided,
    journal: Journal,
) -> None:
    """Writes the results, the page and what it shows."""
    folder, dataset, scorer = Path(config.output_dir), prepared.images.dataset, scored.scorer
    log(folder, f"scored the test set: {len(dataset.test)} images")
    draws = config.bootstrap_draws
    announce(
        f"computing metrics and their intervals from {draws:,} bootstrap draws", config.verbose
    )
    taus = decide.choose_taus(scored.predictions[VALIDATION, CLASSIFIER], config.method)
    rows = decide.evaluate(
        scored.predictions,
        scorer.classifier_ids,
        taus,
        datasets.short_name(config.dataset, config.data_dir),
        config.take(EvaluationSettings),
    )
    promises = []
    if not dataset.overlaps.no_promise:
        promises = decide.make_promises(
            scored.predictions, delta=config.delta, min_coverage=config.min_coverage
        )
    settings = config.settings(results_only=True)
    decision = decided.export.decision
    about = {
        "settings": settings,
        "problem": prepared.problem or scorer.collapse(decision.predictor, decision.method),
        "data": prepare.about_data(dataset),
        "stages": {name: stage.facts for name, stage in trained.stages.items() if stage.facts},
        "taus": taus,
        "promises": promises,
        "notes": _notes(config, prepared, trained, scored, taus) + decided.notes,
        "environment": publish.environment(),
    }
    if costs := scorer.costs:
        about["costs"] = costs
    results.save_rows(folder / "results.json", rows, about)
    journal.finish(rows, scored.predictions, dataset.validation, settings)
    decision_file.save_decision(folder, decision, EXPORT_OPEN)
    explained = None
    if decision.predictor == CLASSIFIER:
        explained = scorer.explain(decision.method, dataset.test.images)
    if explained is not None:
        save_explanations(folder / EXPLANATIONS_FILE, explained)
    announce("drawing the report", config.verbose)
    # Before the export, which may fail.
    run_page.redraw_run(
        folder, saved_model=EXPORT_OPEN, images=dataset.test.images, files=dataset.test.files
    )


def _notes(
    config: Config, prepared: _Prepared, trained: Trained, scored: _Scored, taus: dict[str, float]
) -> list[str]:
    """What a reader must know before believing the figures."""
    images, dataset, path = prepared.images, prepared.images.dataset, config.classifier
    about = [dataset.note] * bool(dataset.note)
    if path:
        about.append(notes.of_classifier(path, scored.predictions, prepared.pixels))
    about += notes.of_others(config.ood, images.others, dataset.test.images)
    about += notes.of_taus(config.method, taus, config.tau)
    about += notes.of_training(trained.stages.values())
    about += [prepared.versions] * bool(prepared.versions)
    about = list(dict.fromkeys(about))
    about += overlaps.notes(dataset.overlaps, dataset.class_names)
    about += near_duplicates.notes(dataset)
    about += prepare.known_others(images.whole, images.others)
    if prepared.problem:
        about.append(f"the classifier cannot be right: {prepared.problem} (allow_poor_classifier)")
    return about + notes.of_methods(scored.scorer.reference.facts)


def _early_check(part_of_study: bool) -> contextlib.AbstractContextManager[None]:
    """Within it the process that checks the export gets ready; runs of a study export nothing."""
    if part_of_study:
        return contextlib.nullcontext()
    # TensorFlow, which a folder that is finished already is read without.
    from btcp_tf.serving import export_check

    return export_check.early_process()


def _export(
    config: Config, scored: _Scored, decided: _Decided, part_of_study: bool
) -> tuple[End, Exception | None]:
    """How the run ends, and what to raise once that is written."""
    predictor, method, _ = scored.choice
    collapse = "" if config.export_collapsed else scored.scorer.collapse(predictor, method)
    if part_of_study:
        return End(f"{NOT_EXPORTED}: part of a study", collapse=collapse), None
    return publish.try_export(
        scored.scorer.exported_model(predictor, method),
        decided.export,
        replaced=decided.replaced,
        collapse=collapse,
        publish_worse=config.publish,
    )


def _print_summary(folder: Path) -> None:
    results_file = folder / "results.json"
    paths = [folder / "report.html", results_file, folder / "predictions.npz", folder / "figures"]
    missing = [path for path in paths if not path.exists()]
    remedy = f"delete {folder / FINISHED_FILE}, and the same command makes them again"
    if missing:
        print(f"note: {', '.join(map(str, missing))} are missing; {remedy}")
    end = publish.read_finished(folder)
    try:
        summary = run_page.closing_screen(folder, end.saved_model if end else EXPORT_OPEN)
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise ValueError(
            f"expected the results of a finished run in {results_file}, received what cannot "
            f"be read ({error}); {remedy}"
        ) from error
    print(summary)
