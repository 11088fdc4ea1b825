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
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import command, evaluation, methods, metrics, overlaps, report, thresholds
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
      RuntimeError: If another process holds the folder, or the export fails.
      FileNotFoundError: If the data set is not there.
    """
    folder = Path(config.output_dir)
    with folder_lock(folder):
        _claim(folder, config)
        finished = folder / "finished.json"
        if finished.exists():
            saved_model = _read_finished(folder)
            again = config.export_collapsed and saved_model.startswith(evaluation.NOT_EXPORTED)
            if part_of_study or not again:
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
            check_place("export_dir", Path(config.export_dir) / dataset.name)
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
        predictions = predict_all(scorer, dataset, others, verbose=config.verbose)
        for (split, name), found in predictions.items():
            evaluation.save_predictions(predictions_file(folder, split, name), found)
        log(folder, f"scored the test set: {len(dataset.test)} images")
        taus = choose_taus(predictions, config)
        rows = evaluate(network, stages, predictions, taus, config)
        decision = decide(predictions, config)
        promises = make_promises(predictions, config) if not dataset.overlaps.no_promise else []
        notes = collect_notes(stages, dataset, others, predictions, taus, config, adopted)
        notes += overlaps.notes(dataset.overlaps, dataset.class_names)
        notes += known_others(whole, others)
        notes += [f"the classifier cannot be right: {poor} (allow_poor_classifier)"] * bool(poor)
        notes += [f"{name}: {words}" for name, words in scorer.reference.facts.items()]
        if not part_of_study:
            notes += decision.notes
        evaluation.save_rows(
            folder / "results.json",
            rows,
            {
                "settings": config.settings(results_only=True),
                "data": {
                    "fingerprint": dataset.fingerprint,
                    "note": dataset.note,
                    "class_names": dataset.class_names,
                    **{split: len(getattr(dataset, split)) for split in overlaps.PARTS},
                    "overlaps": dataset.overlaps.as_json(),
                },
                "stages": {name: stage.facts for name, stage in stages.items() if stage.facts},
                "taus": taus,
                "promises": promises,
                "notes": notes,
                "environment": environment(),
            },
        )
        journal.finish(rows, predictions, dataset.validation)
        if part_of_study:
            exported = f"{evaluation.NOT_EXPORTED}: part of a study"
        else:
            exported = export_model(network, stages, scorer, decision, dataset, config, rows)
        with atomic_path(folder / evaluation.DECISION_FILE) as temporary:
            temporary.write_text(json.dumps(decision.as_json(exported), indent=2) + "\n")
        report.write_run_report(
            folder,
            rows,
            {name: found for (split, name), found in predictions.items() if split == "test"},
            journal.history,
            images=dataset.test.images,
            class_names=dataset.class_names,
            settings=config.settings(results_only=True),
            environment=environment(),
            notes=notes,
            saved_model=exported,
            promises=promises,
            decision=evaluation.load_decision(folder),
        )
        log(folder, f"exported: {exported}")
        with atomic_path(finished) as temporary:
            temporary.write_text(json.dumps({"saved_model": exported}) + "\n")
        log(folder, "finished")
        if config.verbose and not part_of_study:
            print()
            _print_summary(folder)


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
        seen = Split(dataset.train.images[~unseen], dataset.train.labels[~unseen])
        rest = dataclasses.replace(
            dataset, train=seen, fingerprint=f"{dataset.fingerprint} without {number} of {count}"
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
        expected = ", ".join(f"{name}={saved.get(name, 'unset')}" for name in names)
        received = ", ".join(f"{name}={config.settings()[name]}" for name in names)
        raise ValueError(
            f"{folder} holds a run with other settings: expected {expected}, received {received}; "
            "choose another --output_dir, or delete the folder"
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
        if u is None or train_u is None:
            # There is only a classifier yet: what it says of itself.
            u, train_u = 1.0 - answers.probs.max(axis=1), 1.0 - answers.train_probs.max(axis=1)
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

    def score_of(self, name: str) -> "methods.Score | None":
        """What a method of the run was fitted to; None for trained estimators."""
        return self._scores.get(name)

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
            "saved_model": saved_model,
        }


def exported_method(config: Config) -> str:
    """Whose u the run's SavedModel answers, see `config.export_method`."""
    if config.export_method != "auto":
        return config.export_method
    if config.finetuned:
        return config.finetuned[-1]
    trained = [name for name in config.method if METHODS[name].trained]
    wanted = ("residual", "residual_no_index", *reversed(trained), "mcp")
    return next(name for name in wanted if name in config.method)


def decide(predictions: AllPredictions, config: Config) -> Decision:
    """Chooses the threshold of what is exported, on calibration images."""
    method = exported_method(config)
    predictor = f"{method}_finetuned" if method in config.finetuned else "frozen"
    held_out = {}
    for split in ("validation", "calibration"):
        rows = predictions[split, predictor]
        column = {"uncertainty": rows.uncertainty[method]}
        held_out[split] = dataclasses.replace(rows, probs=None, uncertainty=column)
    rows = held_out["calibration"]
    u, notes, word = rows.uncertainty["uncertainty"], [], config.threshold
    if told := _worse_than_mcp(predictions["calibration", predictor], method, config):
        notes.append(told)
    if word == "best_bacc" and not 0 < rows.is_error.sum() < len(u):
        notes.append(
            "threshold: none of best BACC, as the calibration answers are all correct or all "
            f"wrong; the SavedModel has tau = {config.tau:g}"
        )
        word = str(config.tau)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values["grid"] = thresholds.quantile_grid(held_out["validation"].uncertainty["uncertainty"])
    threshold = thresholds.from_word(word, rows.is_error, u, values)
    if threshold.tau is None:
        least = threshold.least_risk
        notes.append(
            f"threshold: not achievable with {threshold.n} calibration images, so the SavedModel "
            f"accepts nothing: {threshold.rule}"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
        )
    return Decision(predictor, method, threshold, held_out, notes)


def _worse_than_mcp(rows: Predictions, method: str, config: Config) -> str:
    """A warning if u ranks the errors of these rows worse than MCP does, else ""."""
    if method == "mcp" or not 0 < rows.is_error.sum() < len(rows.is_error):
        return ""
    mcp = rows.uncertainty.get("mcp")
    if mcp is None:
        # A run whose methods leave MCP out.
        assert rows.probs is not None, "classifiers here have them"
        mcp = 1.0 - rows.probs.max(axis=1)
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


def export_model(
    network: "keras.Model",
    stages: dict[str, "Stage"],
    scorer: Scorer,
    decision: Decision,
    dataset: Dataset,
    config: Config,
    rows: list[Row],
) -> str:
    """Exports what was decided on; returns the version's folder, or why there is none."""
    from btcp_tf import networks, training
    from btcp_tf.saved_model import export

    name = decision.predictor if decision.predictor != "frozen" else decision.method
    # What is not trained reads the classifier as phase 1 left it.
    stage = stages.get(name, stages["classifier"])
    collapse = stages["classifier"].collapse or stage.collapse
    if collapse and not config.export_collapsed:
        return f"{evaluation.NOT_EXPORTED}: {collapse}; --export_collapsed exports it all the same"
    training.restore(network, stage.values)
    if decision.method == "mcp":
        model = networks.mcp_model(network)
    elif isinstance(score := scorer.score_of(decision.method), methods.ResidualScore):
        model = networks.residual_model(network, score.readers, score.weights)
    else:
        model = network
    wanted = (decision.method, decision.stage)
    path = export(
        model,
        config.export_dir,
        dataset.name,
        dataset.class_names,
        dataset.validation.images[:64],
        threshold=decision.threshold,
        held_out=decision.held_out,
        about={
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
    return str(path)


def _read_finished(folder: Path) -> str:
    """Where the SavedModel of a finished run is, or why there is none."""
    path = folder / "finished.json"
    try:
        saved_model = json.loads(path.read_text(encoding="utf-8"))["saved_model"]
        if not isinstance(saved_model, str):
            raise ValueError(f"saved_model is {saved_model!r}")
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(
            f"expected the end of a run in {path}, received what cannot be read ({error}); delete "
            "it, and the same command goes on from the checkpoints"
        ) from error
    return saved_model


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
        rows, extra = evaluation.load_rows(files["results"])
        decision, saved_model = evaluation.load_decision(folder), _read_finished(folder)
        table = report.terminal_table(
            rows,
            {
                **files,
                "TensorBoard": f"tensorboard --logdir {folder / 'tensorboard'}",
                "SavedModel": saved_model if decision is None else decision.of(saved_model),
            },
        )
        notes = [f"note: {note}" for note in extra["notes"]]
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise ValueError(
            f"expected the results of a finished run in {files['results']}, received what cannot "
            f"be read ({error}); {remedy}"
        ) from error
    print("\n".join([table, *notes]))
