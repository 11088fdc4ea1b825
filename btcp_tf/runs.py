"""One run in its folder: train a classifier and estimators, score, measure, report, export.

The steps of `run` stand in order; each takes values and returns values. What is
saved on the way lets a killed run go on, and everything behind it be redone
without training.
"""

import csv
import dataclasses
import datetime
import functools
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btcp_tf import (
    command,
    evaluation,
    methods,
    metrics,
    overlaps,
    publishing,
    report,
    thresholds,
    wording,
)
from btcp_tf.config import OWN_DATA, Config
from btcp_tf.data import CORRUPTIONS, DATASETS, Dataset, Split, load, load_images, short_name
from btcp_tf.evaluation import Predictions
from btcp_tf.files import atomic_path, check_folder, check_place, folder_lock
from btcp_tf.methods import METHODS

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from btcp_tf.training import Answers, Stage

Row = dict[str, Any]

SIDE_DRAWS = 200
"""Bootstrap draws, at most, of rows that are not the test set's failure prediction. There are many
of them, and with a thousand draws they would take longer than the training."""


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
        _claim(folder, config)
        finished = folder / "finished.json"
        end = _read_finished(folder) if finished.exists() else None
        if end and (part_of_study or not end.to_export(config)):
            if config.verbose and not part_of_study:
                print(f"{folder} is finished already; nothing is changed.\n")
                _print_summary(folder)
            return
        # Now, and not after the training.
        if not part_of_study:
            check_folder("export_dir", config.export_dir)

        with command.hidden_stderr():
            # It warns of traces, of which every phase rightly needs some.
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            from btcp_tf import training

            strategy = training.make_strategy(config.strategy, config.logical_devices)
            training.start_devices()
        whole = load(
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
        dataset = leave_out_known(whole, config)
        if not part_of_study:
            check_place("export_dir", export_folder(config, dataset))
        others = load_others(dataset, config)
        log(folder, f"started with {dataset.name} {dataset.fingerprint}")

        pixels, adopted = choose_pixels(config, dataset) if config.classifier else ("", "")
        build = builder(config, dataset, strategy, pixels)
        poor = refuse_poor_classifier(build, dataset, config) if config.classifier else ""
        members = train_members(build, whole, config, folder / "checkpoints", strategy)
        folds = train_folds(build, whole, config, folder / "checkpoints", strategy)
        network = build(config.seed)
        if config.classifier:
            weights = training.weights_id(network)
            log(folder, f"adopted {config.classifier}, weights {weights}{adopted}")
        journal = Journal(folder, config, whole)
        stages = training.fit(
            network,
            whole,
            config,
            {
                name: training.Recipe(
                    METHODS[name].gamma,
                    config.ohem_fraction if METHODS[name].hard_examples else 1.0,
                )
                for name in config.method
                if METHODS[name].trained
            },
            folder=folder / "checkpoints",
            strategy=strategy,
            describe=journal.describe,
            after_epoch=journal.after_epoch,
        )
        scorer = Scorer(network, stages, members, folds, dataset, config)
        if end is None:
            predictions = predict_all(scorer, dataset, others, verbose=config.verbose)
            choice = choose_export(scorer, predictions, config)
        else:
            choice, predictions = _saved_choice(folder)
        predictions |= served_answers(predictions, scorer, dataset, choice)
        for (split, name), found in predictions.items():
            evaluation.save_predictions(predictions_file(folder, split, name), found)
        if end is None:
            log(folder, f"scored the test set: {len(dataset.test)} images")
        decision = decide(predictions, choice, config, scorer.mcp(dataset.calibration.images))
        beside = None if part_of_study else replaces(folder, decision, dataset, config)
        if end is None:
            taus = choose_taus(predictions, config)
            rows = evaluate(network, stages, predictions, taus, config)
            no_promise = bool(dataset.overlaps.no_promise)
            promises = [] if no_promise else make_promises(predictions, config)
            notes = collect_notes(stages, dataset, others, predictions, taus, config, adopted)
            notes += overlaps.notes(dataset.overlaps, dataset.class_names)
            notes += known_others(whole, others)
            notes += [f"the classifier cannot be right: {poor} (allow_poor_classifier)"] * bool(
                poor
            )
            notes += [f"{name}: {words}" for name, words in scorer.reference.facts.items()]
            if not part_of_study:
                notes += decision.notes + ([beside.note] if beside and beside.note else [])
            evaluation.save_rows(
                folder / "results.json",
                rows,
                {
                    "settings": config.settings(results_only=True),
                    "data": about_data(dataset),
                    "stages": {name: stage.facts for name, stage in stages.items() if stage.facts},
                    "taus": taus,
                    "promises": promises,
                    "notes": notes,
                    "environment": environment(),
                },
            )
            journal.finish(rows, predictions, dataset.validation)
            _save_decision(folder, decision, _EXPORT_OPEN)
            explanations = explain(folder, scorer, decision, dataset)
            _report(folder, predictions, journal.history, dataset, explanations)
        if part_of_study:
            _finish(folder, decision, End(f"{evaluation.NOT_EXPORTED}: part of a study"))
            return
        end, failure = _export(folder, scorer, decision, beside, dataset, config)
        _finish(folder, decision, end)
        if config.verbose:
            print()
            _print_summary(folder)
        if failure:
            raise failure


@dataclasses.dataclass(frozen=True)
class End:
    """What `finished.json` says: how the run ended."""

    saved_model: str
    """Where the SavedModel is, or why there is none."""
    retry: bool = False
    """Whether the same command is to try the export again."""

    def to_export(self, config: Config) -> bool:
        """Whether a finished run has an export left to do."""
        missing = self.saved_model.startswith(evaluation.NOT_EXPORTED)
        return missing and (self.retry or config.export_collapsed)


_EXPORT_OPEN = f"{evaluation.NOT_EXPORTED}: the run has not ended; the same command goes on with it"


def about_data(dataset: Dataset) -> dict[str, Any]:
    """What `results.json` says of the data."""
    return {
        "fingerprint": dataset.fingerprint,
        "note": dataset.note,
        "class_names": dataset.class_names,
        **{split: len(getattr(dataset, split)) for split in overlaps.PARTS},
        "overlaps": dataset.overlaps.as_json(),
    }


def _report(
    folder: Path,
    predictions: "AllPredictions",
    history: list[Row],
    dataset: Dataset,
    explanations: evaluation.Explanations | None,
) -> None:
    """Writes figures and page, before the export, which may fail."""
    rows, extra = evaluation.load_rows(folder / "results.json")
    report.write_run_report(
        folder,
        rows,
        {name: found for (split, name), found in predictions.items() if split == "test"},
        history,
        images=dataset.test.images,
        class_names=dataset.class_names,
        settings=extra["settings"],
        environment=extra["environment"],
        notes=extra["notes"],
        saved_model=_EXPORT_OPEN,
        promises=extra["promises"],
        decision=evaluation.load_decision(folder),
        explanations=explanations,
        files=dataset.test.files,
    )


def _finish(folder: Path, decision: "Decision", end: End) -> None:
    """Writes how the run ended where it is to be read, `finished.json` last."""
    _save_decision(folder, decision, end.saved_model)
    page = folder / "report.html"
    replaced = page.exists() and report.replace_saved_model(folder, end.saved_model)
    log(folder, f"exported: {end.saved_model}")
    with atomic_path(folder / "finished.json") as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(end)) + "\n")
    if not replaced:
        # Another version wrote the page, or nobody.
        report.redraw_run(folder)
    log(folder, "finished")


def _save_decision(folder: Path, decision: "Decision", saved_model: str) -> None:
    with atomic_path(folder / evaluation.DECISION_FILE) as temporary:
        temporary.write_text(json.dumps(decision.as_json(saved_model), indent=2) + "\n")


def leave_out_known(whole: Dataset, config: Config) -> Dataset:
    """The data set for all that comes after training: without what other parts know already.

    Raises:
      ValueError: If hardly any image of a part is new, or an error rate is to be promised that
        cannot be.
    """
    found = overlaps.between({part: getattr(whole, part) for part in overlaps.PARTS})
    dataset = overlaps.leave_out(whole, found)
    if found.no_promise and config.threshold == "target_risk":
        raise ValueError(
            "threshold: expected another one than target_risk, which promises an error rate, as "
            f"{found.no_promise}; remove the copies, or choose best_bacc, say"
        )
    return dataset


def known_others(dataset: Dataset, others: dict[str, np.ndarray]) -> list[str]:
    """Notes on sets of other images that hold images of the data set itself."""
    parts = {part: getattr(dataset, part) for part in overlaps.PARTS}
    notes = []
    for name, images in others.items():
        if not name.startswith("ood_"):
            continue
        ood = Split(images, np.zeros(len(images), np.int64))
        known = int(overlaps.between({**parts, name: ood}).known[name].sum())
        if known:
            notes.append(
                f"{name}: {known:,} of {len(images):,} images are images of {dataset.name} itself"
            )
    return notes


def choose_pixels(config: Config, dataset: Dataset) -> tuple[str, str]:
    """What `config.classifier` reads for pixels, of `networks.PIXELS`, and the same in words.

    With `classifier_pixels=auto` that of the smallest cross entropy on validation images: many
    networks answer alike at any scale, but not as surely.

    Raises:
      FileNotFoundError, ValueError: As `networks.adopt`.
    """
    from btcp_tf import networks, training

    told = "; it reads pixels as "
    if config.classifier_pixels != "auto":
        return config.classifier_pixels, told + config.classifier_pixels
    entropy = {}
    images, labels = dataset.validation.images[:2000], dataset.validation.labels[:2000]
    for pixels in networks.PIXELS:
        network = _around(config, dataset, pixels)
        if networks.reads_whole_numbers(network):
            return pixels, ""
        probs = training.Inference(network, config.test_batch_size)(images)["probs"]
        of_label = probs[np.arange(len(labels)), labels].astype(np.float64)
        entropy[pixels] = -np.log(np.maximum(of_label, 1e-12)).mean()
    best = min(entropy, key=lambda pixels: entropy[pixels])
    found = ", ".join(f"{value:.4g} as {pixels}" for pixels, value in entropy.items())
    return best, f"{told}{best} (cross entropy on validation images: {found})"


def _around(config: Config, dataset: Dataset, pixels: str) -> "keras.Model":
    from btcp_tf import networks

    return networks.adopt(
        config.classifier,
        dataset.train.images.shape[1:],
        len(dataset.class_names),
        pixels=pixels,
        estimator_activation=config.estimator_activation,
    )


def refuse_poor_classifier(
    build: Callable[[int], "keras.Model"], dataset: Dataset, config: Config
) -> str:
    """Why `config.classifier` cannot be right, see `adopted.why_poor`; "": it can be.

    Raises:
      ValueError: If it cannot be, unless `allow_poor_classifier`.
    """
    from btcp_tf import adopted

    words = adopted.why_poor(build(config.seed), dataset, config.test_batch_size)
    if words and not config.allow_poor_classifier:
        raise ValueError(
            f"classifier: expected one that can be right about the images of {dataset.name}, "
            f"received {config.classifier}: {words}; --allow_poor_classifier goes on with it"
        )
    return words


def builder(
    config: Config, dataset: Dataset, strategy: "tf.distribute.Strategy", pixels: str = ""
) -> Callable[[int], "keras.Model"]:
    """Seed → a new network of the run: the one around `config.classifier`, if there is one, which
    reads `pixels` as `choose_pixels` says."""
    import keras

    from btcp_tf import networks

    def build(seed: int) -> "keras.Model":
        # Sets the weights of all networks and the masks of all dropout layers.
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            if config.classifier:
                return _around(config, dataset, pixels)
            return networks.build_model(
                config.encoder,
                dataset.train.images.shape[1:],
                len(dataset.class_names),
                feature_dim=config.feature_dim,
                estimator_activation=config.estimator_activation,
                synchronized=strategy.num_replicas_in_sync > 1,
            )

    return build


_LONGEST_OOD_NAME = 180


def load_others(dataset: Dataset, config: Config) -> dict[str, np.ndarray]:
    """Images that are no test images of the data set, by the name of their split.

    Loaded before the training, so that a missing one is known at once.

    Returns:
      "ood_<name>" for each of `config.ood`, and with `config.shift` the test images under each
      corruption as "shift_<name><strength>".
    """
    others = {}
    shape = dataset.test.images.shape[1:]
    # Where one's own images are, no prepared data sets are.
    data_dir = "" if config.dataset in OWN_DATA else config.data_dir
    for name in config.ood:
        # A data set under its name, a file under its stem.
        stem = Path(name).stem
        if not 0 < len(stem.encode()) <= _LONGEST_OOD_NAME:
            raise ValueError(
                f"ood: expected a name of 1 to {_LONGEST_OOD_NAME} bytes, which is part of those "
                f"of files here, received {wording.quoted(stem)}"
            )
        split = f"ood_{stem}"
        if split in others:
            raise ValueError(f"ood: expected each name once, received {stem} twice")
        for predictor in (*(m for m in METHODS if METHODS[m].samples), "finetuned"):
            if stem.endswith(f"_{predictor}"):
                # The predictions of "x" by `predictor` have the file that this one would have.
                raise ValueError(
                    f"ood: expected a name that does not end in _{predictor}, received {stem}"
                )
        others[split] = load_images(
            name, data_dir, shape, config.max_test_images, bad_files=config.bad_files
        )
    if config.shift:
        for name, corrupt in CORRUPTIONS.items():
            for strength in (1, 2, 3):
                others[f"shift_{name}{strength}"] = corrupt(
                    dataset.test.images, strength, config.seed
                )
    return others


def train_members(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[list[np.ndarray]]:
    """Trains the further classifiers of the ensemble, alike but for their seed.

    Args:
      build: Seed → a new network.
      dataset: The run's: all members share its split.
      config: Settings.
      folder: Where the checkpoints are; `member<number>/` in it for each.
      strategy: From `training.make_strategy`.

    Returns:
      A snapshot of each network; none where neither `ensemble` nor `residual` needs them.
    """
    members = []
    wanted = "ensemble" in config.method or config.residual_distilled
    for number in range(2, config.ensemble_members + 1) if wanted else ():
        if config.verbose:
            print(f"ensemble: member {number} of {config.ensemble_members}")
        members.append(
            _train_further(build, dataset, config, number - 1, folder / f"member{number}", strategy)
        )
    return members


def train_folds(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Trains classifiers on all but one part of the training images each, for `residual`.

    Args:
      build: Seed → a new network.
      dataset: The run's.
      config: Settings; `residual_folds` parts, drawn by seed.
      folder: Where the checkpoints are; `fold<number>/` in it for each.
      strategy: From `training.make_strategy`.

    Returns:
      For each a snapshot of the network, and which training images it did not see, bool `[n]`.
    """
    folds = []
    count = config.residual_folds
    if count > len(dataset.train):
        raise ValueError(
            f"residual_folds: expected at most the {len(dataset.train)} training images, received "
            f"{count}"
        )
    part = np.random.default_rng(config.seed).permutation(len(dataset.train)) % max(count, 1)
    for number in range(1, count + 1):
        if config.verbose:
            print(f"residual: fold {number} of {count}")
        unseen = part == number - 1
        seen = dataset.train.take(~unseen)
        less = f"without {number} of {count}"
        rest = dataclasses.replace(
            dataset,
            train=seen,
            fingerprint=f"{dataset.fingerprint} {less}",
            former_fingerprints=tuple(f"{mark} {less}" for mark in dataset.former_fingerprints),
        )
        # Other seeds than those of the ensemble.
        values = _train_further(build, rest, config, -number, folder / f"fold{number}", strategy)
        folds.append((values, unseen))
    return folds


def _train_further(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    number: int,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[np.ndarray]:
    """Trains a classifier that is like the run's but for its seed; a snapshot of its network."""
    from btcp_tf import training

    # Far from the seeds that a person would choose for further runs.
    seed = (config.seed + 1_000_003 * number) % 2**31
    stages = training.fit(
        build(seed),
        dataset,
        dataclasses.replace(config, seed=seed),
        {},
        folder=folder,
        strategy=strategy,
        describe=lambda stage, row, answers: row,
        after_epoch=lambda stage, rows: None,
    )
    return stages["classifier"].values


def _claim(folder: Path, config: Config) -> None:
    """Makes the folder this run's, or checks that it is."""
    path = folder / "flags.cfg"
    # A run that failed before its first epoch, for want of data say, does not hold its folder.
    traces = [folder / "finished.json", folder / "results.json"]
    # Those of further classifiers, which are trained first, are a folder deeper.
    traces += sorted((folder / "checkpoints").glob("**/*.npz"))
    held = [trace for trace in traces if trace.exists()]
    if not held:
        command.save_flagfile(config, path)
        return
    if not path.exists():
        raise ValueError(
            f"expected {path} with the settings of the run in {folder}, received a folder with "
            f"{held[0].relative_to(folder)} but without them; choose another --output_dir"
        )
    saved = command.load_flagfile(path)
    names = command.differences(config, saved)
    if names:
        expected = ", ".join(f"{name}={saved.get(name, 'as before')}" for name in names)
        received = ", ".join(f"{name}={config.settings()[name]}" for name in names)
        raise ValueError(
            f"{folder} holds a run with other settings: expected {expected}, received {received}; "
            f"--flagfile={path} goes on with its settings; choose another --output_dir for others"
        )


def log(folder: Path, event: str) -> None:
    """Adds a line with the time to the run's log."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open(folder / "run.log", "a", encoding="utf-8") as file:
        file.write(f"{now} {event}\n")


class Journal:
    """Curves per epoch: the history file and TensorBoard, on validation data alone."""

    def __init__(self, folder: Path, config: Config, dataset: Dataset) -> None:
        from btcp_tf.summaries import Summaries

        self._folder = folder
        self._config = config
        self._dataset = dataset
        self._rows: dict[str, list[Row]] = {}
        self._summaries = Summaries(folder / "tensorboard")

    @property
    def history(self) -> list[Row]:
        """Rows of all stages, in order of training."""
        return [row for rows in self._rows.values() for row in rows]

    def describe(self, stage: str, row: Row, answers: "Answers") -> Row:
        """Completes an epoch's row with metrics of the validation data."""
        u, train_u = answers.uncertainty, answers.train_uncertainty
        _check_finite(answers.probs, u, train_u)
        is_error = answers.probs.argmax(axis=1) != self._dataset.validation.labels
        row = {
            "stage": stage,
            **row,
            **evaluation.epoch_metrics(is_error, u, tau=self._config.tau),
        }
        # Classifiers without an error, or without a correct answer, have no best threshold.
        if METHODS["thresholding"].column_of == stage and 0 < is_error.sum() < len(is_error):
            tau = _best_tau(is_error, u)
            best = evaluation.epoch_metrics(is_error, u, tau=tau)
            row |= {"best_tau": tau, "fpr_best_tau": best["fpr"], "fnr_best_tau": best["fnr"]}
        self._summaries.epoch(stage, row, {"u_validation": u, "u_train": train_u})
        return row

    def after_epoch(self, stage: str, rows: list[Row]) -> None:
        """Rewrites the history with a stage's rows so far."""
        self._rows[stage] = rows
        history = self.history
        columns = dict.fromkeys(name for row in history for name in row)
        with (
            atomic_path(self._folder / "history.csv") as temporary,
            open(temporary, "w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, list(columns), restval="")
            writer.writeheader()
            writer.writerows(history)

    def finish(self, rows: list[Row], predictions: "AllPredictions", validation: Split) -> None:
        """Shows the most uncertain validation images, wrong answers with a frame; and settings
        beside final metrics."""
        for (split, stage), found in predictions.items():
            if split != "validation":
                continue
            for name, u in found.uncertainty.items():
                order = np.argsort(-u, kind="stable")[:16]
                names, labels = self._dataset.class_names, validation.labels
                captions = [
                    f"true {names[labels[i]]}\npred. {names[found.predicted[i]]}\nu = {u[i]:.3f}"
                    for i in order
                ]
                self._summaries.images(
                    f"highest_u/{stage}/{name}",
                    validation.images[order],
                    captions,
                    found.is_error[order],
                )
        self._summaries.hparams(
            str(self._folder),
            self._config.settings(results_only=True),
            {
                f"{row['stage']}/{row['method']}/{name}": row[name]
                for row in rows
                if (row["task"], row["split"]) == ("failure", "test")
                for name in ("accuracy", "auroc", "aupr_error", "aurc", "bacc")
            },
        )
        self._summaries.close()


def _check_finite(*answers: np.ndarray) -> None:
    if not all(np.isfinite(array).all() for array in answers):
        raise FloatingPointError(
            "expected finite outputs of the network, received others: it diverged; a smaller "
            "learning rate usually helps"
        )


AllPredictions = dict[tuple[str, str], Predictions]
"""(split, predictor) → predictions. Splits: "validation", "calibration", "test" and those of
`load_others`. Predictors: "frozen", the classifier; "mc_dropout" and "ensemble", which predict with
means of their own; "<method>_finetuned"."""


def predictions_file(folder: Path, split: str, predictor: str) -> Path:
    """Where the predictions of a split and predictor are; `predictions.npz`: test, frozen."""
    parts = [
        "predictions",
        *([split] if split != "test" else []),
        *([predictor] if predictor != "frozen" else []),
    ]
    return folder / f"{'_'.join(parts)}.npz"


class Scorer:
    """All methods of a run, fitted on its training and validation data, ready to score images."""

    def __init__(
        self,
        network: "keras.Model",
        stages: dict[str, "Stage"],
        members: list[list[np.ndarray]],
        folds: list[tuple[list[np.ndarray], np.ndarray]],
        dataset: Dataset,
        config: Config,
    ) -> None:
        """
        Args:
          network: Takes on the weights of one stage after the other.
          stages: From `training.fit`.
          members: Further classifiers of the ensemble, from `train_members`.
          folds: Those of `train_folds`.
          dataset: The run's.
          config: Settings.
        """
        from btcp_tf import classifiers, networks, training

        self._network, self._stages, self._members = network, stages, members
        self._config = config
        self._infer = training.Inference(networks.outputs_model(network), config.test_batch_size)
        self._view = None
        if any(name.startswith("residual") for name in config.method):
            self._view = _view_of(dataset.train.images, config.test_batch_size)
        self._estimate = training.Inference(network.get_layer("estimator"), config.test_batch_size)
        apart, copies = [], []
        for values, unseen in folds:
            training.restore(network, values)
            whole = self.outputs(dataset.train.images, dataset.train.labels)
            apart.append((whole[~unseen], whole[unseen]))
            copies.append(self._copies(dataset.train.images[unseen], dataset.train.labels[unseen]))
        training.restore(network, stages["classifier"].values)
        validation = dataset.validation
        copies.insert(0, self._copies(validation.images, validation.labels))
        kernel, bias = classifiers.last_dense(network.get_layer("classifier"))
        self.reference = methods.Reference(
            train=self.outputs(dataset.train.images, dataset.train.labels),
            validation=self._learned(validation.images, validation.labels),
            kernel=kernel,
            bias=bias,
            seed=config.seed,
            alpha=config.trust_alpha,
            neighbors=config.trust_neighbors,
            folds=tuple(apart),
            copies=tuple(copies),
            distilled=config.residual_distilled,
            verbose=int(config.verbose == 1),
        )

    @functools.cached_property
    def _scores(self) -> dict[str, methods.Score]:
        return {
            name: prepare(self.reference)
            for name in self._config.method
            if (prepare := METHODS[name].prepare) is not None
        }

    def mcp(self, images: np.ndarray) -> np.ndarray | None:
        """u of MCP, of the classifier as phase 1 left it; None where its rows have it anyhow."""
        from btcp_tf import training

        if "mcp" in self._config.method:
            return None
        training.restore(self._network, self._stages["classifier"].values)
        return methods.mcp_of(self._infer(images)["logits"])

    def stage_of(self, predictor: str, method: str) -> "Stage":
        """The stage whose weights make a method's u. What is not trained reads the classifier as
        phase 1 left it."""
        name = predictor if predictor != "frozen" else method
        return self._stages.get(name, self._stages["classifier"])

    def collapse(self, predictor: str, method: str) -> str:
        """What is wrong with the networks behind a method's u; "": nothing."""
        of_classifier = self._stages["classifier"].collapse
        return of_classifier or self.stage_of(predictor, method).collapse

    def exported_model(self, predictor: str, method: str) -> "keras.Model":
        """Images → probs and u of the method; it shares the run's network, which takes on its
        weights."""
        from btcp_tf import estimators, networks, training

        training.restore(self._network, self.stage_of(predictor, method).values)
        if method == "mcp":
            return networks.residual_model(self._network, {}, estimators.MCP)
        if isinstance(score := self._scores.get(method), methods.ResidualScore):
            return networks.residual_model(self._network, score.readers, score.weights)
        return self._network

    def __call__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        *,
        sampled: bool = True,
        title: str = "",
    ) -> dict[str, Predictions]:
        """Predictions by predictor.

        Args:
          images: `[n, ...]` uint8.
          labels: `[n]`, or None where no class is right.
          sampled: Whether methods that need many passes take part.
          title: Shows progress bars of them under this title.
        """
        from btcp_tf import training

        training.restore(self._network, self._stages["classifier"].values)
        outputs = self.outputs(images, labels)
        means = {}
        for name in self._config.method if sampled else ():
            if METHODS[name].samples == "dropout":
                means[name] = training.sample_dropout(
                    self._network,
                    images,
                    passes=self._config.mc_passes,
                    seed=self._config.seed,
                    batch_size=min(256, self._config.test_batch_size),
                    title=title and f"{title}: {self._config.mc_passes} passes with dropout",
                )
            elif METHODS[name].samples == "ensemble":
                means[name] = self.ensemble_mean(images, outputs.probs)
        outputs = dataclasses.replace(
            outputs, sampled={METHODS[name].samples: mean for name, mean in means.items()}
        )
        columns = dict(self._columns(outputs, sampled))
        found = {"frozen": Predictions(labels, outputs.probs, outputs.predicted, columns)}
        for name, mean in means.items():
            # It predicts with its own mean, which is another classifier.
            found[name] = Predictions(labels, mean, mean.argmax(axis=1), {name: columns[name]})
        for method in self._config.finetuned:
            stage = self._stages[f"{method}_finetuned"]
            training.restore(self._network, stage.values)
            outputs = self.outputs(images, labels)
            columns = {
                "mcp": methods.mcp_of(outputs.logits),
                method: self._estimate(outputs.features)[:, 0],
            }
            found[stage.name] = Predictions(labels, outputs.probs, outputs.predicted, columns)
        return found

    def held_out_u(self, method: str) -> np.ndarray | None:
        """Cross-fitted u of the validation images; None for methods that were not fitted on
        them."""
        score = self._scores.get(method)
        return score.held_out_u if isinstance(score, methods.ResidualScore) else None

    def contributions(
        self, method: str, images: np.ndarray
    ) -> tuple[tuple[str, ...], np.ndarray] | None:
        """What moved logit(u) of each image: names and `[n, parts]`; None where u is not a sum."""
        from btcp_tf import training

        score = self._scores.get(method)
        if not isinstance(score, methods.ResidualScore):
            return None
        training.restore(self._network, self._stages["classifier"].values)
        return score.contributions(self.outputs(images, None))

    def outputs(self, images: np.ndarray, labels: np.ndarray | None) -> methods.Outputs:
        """What the network answers to images `[n, ...]`; FloatingPointError unless finite."""
        found = self._infer(images)
        _check_finite(*found.values())
        view = None if self._view is None else self._view(images)
        return methods.Outputs(**found, labels=labels, view=view)

    def _learned(self, images: np.ndarray, labels: np.ndarray) -> methods.Outputs:
        """What `residual` learns from, with the ensemble's answers if it learns these."""
        found = self.outputs(images, labels)
        if not self._config.residual_distilled:
            return found
        mean = self.ensemble_mean(images, found.probs)
        return dataclasses.replace(found, sampled={"ensemble": mean})

    def _copies(self, images: np.ndarray, labels: np.ndarray) -> tuple[methods.Outputs, ...]:
        """Answers to corrupted images, for `residual` to learn from."""
        # Not the noise that the test images get.
        seed = self._config.seed + 1_000_003
        return tuple(
            self._learned(CORRUPTIONS[name](images, 1, seed), labels)
            for name in self._config.residual_copies
        )

    def _columns(self, outputs: methods.Outputs, sampled: bool) -> Iterator[tuple[str, np.ndarray]]:
        from btcp_tf import training

        for name in self._config.method:
            method = METHODS[name]
            if (method.samples and not sampled) or (method.uses_labels and outputs.labels is None):
                continue
            if name in self._scores:
                yield name, self._scores[name](outputs)
            else:
                # A threshold of its own makes a method of another's estimator.
                training.restore(self._network, self._stages[method.column_of or name].values)
                yield name, self._estimate(outputs.features)[:, 0]

    def ensemble_mean(self, images: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Mean probabilities `[n, k]` of the network, whose own they are, and the members."""
        from btcp_tf import training

        total = own.copy()
        for values in self._members:
            training.restore(self._network, values)
            total += self._infer(images)["probs"]
        training.restore(self._network, self._stages["classifier"].values)
        return total / (1 + len(self._members))


def _view_of(images: np.ndarray, batch_size: int) -> "Callable[[np.ndarray], np.ndarray] | None":
    """What `residual` sees of such images, whatever the classifier makes of them."""
    import keras

    from btcp_tf import estimators, training

    if not estimators.is_image(images.shape[1:]):
        return None
    inputs = keras.Input(images.shape[1:], dtype=images.dtype.name)
    return training.Inference(keras.Model(inputs, estimators.View()(inputs)), batch_size)


def predict_all(
    scorer: Scorer, dataset: Dataset, others: dict[str, np.ndarray], *, verbose: int = 0
) -> AllPredictions:
    """Scores validation, calibration and test images, and those of `load_others`."""
    predictions: AllPredictions = {}
    for split in ("validation", "calibration", "test"):
        part = getattr(dataset, split)
        title = split if verbose == 1 else ""
        for name, found in scorer(part.images, part.labels, title=title).items():
            predictions[split, name] = found
    for split, images in others.items():
        shifted = split.startswith("shift_")
        # The passes of the sampled methods would cost more than all the rest together.
        labels = dataset.test.labels if shifted else None
        title = split if verbose == 1 else ""
        for name, found in scorer(images, labels, sampled=not shifted, title=title).items():
            predictions[split, name] = found
    return predictions


def choose_taus(predictions: AllPredictions, config: Config) -> dict[str, float]:
    """Decision thresholds of the methods that have one of their own, from validation data."""
    found = predictions["validation", "frozen"]
    taus = {}
    for name in config.method:
        if METHODS[name].column_of and 0 < found.is_error.sum() < len(found.is_error):
            taus[name] = _best_tau(found.is_error, found.uncertainty[name])
    return taus


def _best_tau(is_error: np.ndarray, u: np.ndarray) -> float:
    tau = thresholds.best_bacc(is_error, u).tau
    assert tau is not None, "one of the cuts is always the best"
    return tau


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the run's SavedModel accepts, and on which rows that was chosen."""

    predictor: str
    """Whose answers, see `AllPredictions`."""
    method: str
    """Whose u: a column of theirs."""
    reason: str
    """Why it is these."""
    threshold: thresholds.Threshold
    held_out: dict[str, Predictions]
    """Validation and calibration rows with u alone, under the name that it has in SavedModels."""
    notes: list[str]

    @property
    def stage(self) -> str:
        return "frozen" if self.predictor == "frozen" else "finetuned"

    def as_json(self, saved_model: str) -> dict[str, Any]:
        """The content of `decision.json`."""
        return {
            "threshold": dataclasses.asdict(self.threshold),
            "predictions": predictions_file(Path(), "calibration", self.predictor).name,
            "column": self.method,
            "reason": self.reason,
            "saved_model": saved_model,
        }


class Choice(NamedTuple):
    """Whose answers and whose u the run's SavedModel has."""

    predictor: str
    """See `AllPredictions`."""
    method: str
    """A column of the predictor's."""
    reason: str
    """Why, in a phrase."""


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
    from btcp_tf import saved_model

    predictor, method, _ = choice
    model = scorer.exported_model(predictor, method)
    found = {}
    for split in ("validation", "calibration", "test"):
        if (split, predictor) not in predictions:
            continue
        probs, u = saved_model.served(model, getattr(dataset, split).images)
        _check_finite(probs, u)
        rows = predictions[split, predictor]
        same = [name for name in rows.uncertainty if METHODS[name].column_of == method]
        found[split, predictor] = dataclasses.replace(
            rows,
            probs=probs,
            predicted=probs.argmax(axis=1),
            uncertainty={**rows.uncertainty, **dict.fromkeys([method, *same], u)},
        )
    return found


def _saved_choice(folder: Path) -> tuple[Choice, AllPredictions]:
    """Of a finished run, what is exported, and the rows that its decision is made of."""
    known = evaluation.load_decision(folder)
    if known is None:
        raise ValueError(
            f"{folder}: expected {evaluation.DECISION_FILE} of a finished run, received none; "
            "delete finished.json, and the same command makes it again from the checkpoints"
        )
    predictor = known.predictor
    return Choice(predictor, known.method, known.reason), {
        (split, predictor): evaluation.load_predictions(predictions_file(folder, split, predictor))
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


def explain(
    folder: Path, scorer: Scorer, decision: "Decision", dataset: Dataset
) -> evaluation.Explanations | None:
    """Saves and returns what moved the u of each test image; None where the exported u is not
    made of pieces of evidence."""
    if decision.predictor != "frozen":
        return None
    parts = scorer.contributions(decision.method, dataset.test.images)
    if parts is None:
        return None
    names, values = parts
    found = evaluation.Explanations(decision.method, tuple(names), np.asarray(values))
    evaluation.save_explanations(folder / evaluation.EXPLANATIONS_FILE, found)
    return found


def evaluate(
    network: "keras.Model",
    stages: dict[str, "Stage"],
    predictions: AllPredictions,
    taus: dict[str, float],
    config: Config,
) -> list[Row]:
    """Result rows of the test set and of other images, every predictor with its own id."""
    from btcp_tf import training

    ids = {}
    for name in ("classifier", *(f"{method}_finetuned" for method in config.finetuned)):
        training.restore(network, stages[name].values)
        ids[name] = training.weights_id(network, ("encoder", "classifier"))
    rows = []
    for (split, name), found in predictions.items():
        if split in ("validation", "calibration"):
            continue
        finetuned = name.endswith("_finetuned")
        same: dict[str, Any] = dict(
            dataset=short_name(config.dataset, config.data_dir),
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
            rows += evaluation.ood_rows(test, found, ood_name=rest, **same)
        else:
            rows += evaluation.rows(found, split=f"test:{rest}" if rest else split, **same)
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
        if stage.facts.get("train_errors", 100) < 100:
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


def export_folder(config: Config, dataset: Dataset) -> Path:
    """Where the run's versions are, below `config.export_dir`."""
    trial = "-trial" if config.max_train_images else ""
    return Path(config.export_dir) / (config.export_name or dataset.name + trial)


@dataclasses.dataclass(frozen=True)
class Beside:
    """What is known of the version that the run's would replace."""

    version: Path
    words: str
    is_worse: bool
    compared: bool

    @property
    def note(self) -> str:
        """For the report; "" where all is well."""
        if self.is_worse:
            return f"export: {self.words}; a worse model is published with --publish alone"
        return "" if self.compared else f"export: {self.words}"


def replaces(folder: Path, decision: Decision, dataset: Dataset, config: Config) -> Beside | None:
    """The run's classifier beside the version that it would replace; None where there is none."""
    target, version = export_folder(config, dataset), None
    predicted = decision.held_out["validation"].predicted
    try:
        version = publishing.replaced_version(target, publishing.publication_id(folder))
        if version is None:
            return None
        found = publishing.compare_with(version, predicted, dataset, config, load)
    except Exception as error:  # Whatever a model of other times raises.
        place = version or target
        words = f"{place} and this model cannot be compared: {command.one_line(error)[:300]}"
        return Beside(place, words, is_worse=False, compared=False)
    return Beside(version, found.words(version), found.is_worse, compared=True)


def _export(
    folder: Path,
    scorer: Scorer,
    decision: Decision,
    beside: Beside | None,
    dataset: Dataset,
    config: Config,
) -> tuple[End, Exception | None]:
    """Exports what was decided on.

    Returns:
      How the run ends, and what to raise once that is written.
    """
    none = evaluation.NOT_EXPORTED
    collapse = scorer.collapse(decision.predictor, decision.method)
    if collapse and not config.export_collapsed:
        return End(f"{none}: {collapse}; --export_collapsed exports it all the same"), None
    try:
        publication = publishing.publication_id(folder)
        threshold = dataclasses.asdict(decision.threshold)
        # A run that was killed behind its export has published already.
        own = publishing.own_version(export_folder(config, dataset), publication, threshold)
        if own is not None:
            return End(str(own)), None
        if beside and beside.is_worse and not config.publish:
            words = f"{none}: {beside.words}; the same command with --publish publishes it"
            return End(words, retry=True), RuntimeError(words)
        about = {publishing.PUBLICATION: publication}
        if beside:
            about["replaces"] = beside.words
        return End(str(export_model(folder, scorer, decision, about, dataset, config))), None
    except Exception as error:
        log(folder, f"the export failed: {command.one_line(error)}")
        words = (
            f"{none}: {command.one_line(error)[:500]}; everything else is done, and the same "
            "command tries the export again"
        )
        # A fault of the program shows where it is.
        raised = RuntimeError(words) if command.is_expected(error) else error
        return End(words, retry=True), raised


def export_model(
    folder: Path,
    scorer: Scorer,
    decision: Decision,
    about: dict[str, Any],
    dataset: Dataset,
    config: Config,
) -> Path:
    """Writes the SavedModel of what was decided on; returns the version's folder."""
    from btcp_tf.saved_model import export

    rows, _ = evaluation.load_rows(folder / "results.json")
    wanted = (decision.method, decision.stage)
    target = export_folder(config, dataset)
    return export(
        scorer.exported_model(decision.predictor, decision.method),
        target.parent,
        target.name,
        dataset.class_names,
        dataset.validation.images[:64],
        threshold=decision.threshold,
        held_out=decision.held_out,
        calibration_inputs=dataset.calibration.images,
        about={
            **about,
            "uncertainty": {"method": decision.method, "stage": decision.stage},
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "note": dataset.note,
                # For those who choose another threshold on the calibration rows.
                "no_promise": dataset.overlaps.no_promise,
            },
            "metadata": {
                "settings": config.settings(results_only=True),
                "test": next(
                    (row for row in rows if (row["method"], row["stage"]) == wanted), None
                ),
            },
        },
    )


def _read_finished(folder: Path) -> End:
    """How a finished run ended."""
    path = folder / "finished.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Without the second where 0.1.0 wrote it.
        end = End(content["saved_model"], content.get("retry", False))
        if not (isinstance(end.saved_model, str) and isinstance(end.retry, bool)):
            raise ValueError(f"it is {content!r}")
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ValueError(
            f"expected the end of a run in {path}, received what cannot be read ({error}); delete "
            "it, and the same command goes on from the checkpoints"
        ) from error
    return end


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
        told = report.closing_screen(folder, _read_finished(folder).saved_model)
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise ValueError(
            f"expected the results of a finished run in {files['results']}, received what cannot "
            f"be read ({error}); {remedy}"
        ) from error
    print(told)
