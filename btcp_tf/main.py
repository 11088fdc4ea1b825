"""One run: train a classifier and estimators of its uncertainty, and say which answers are wrong.

    python -m btcp_tf.main --dataset=fashion_mnist

The steps of `run` stand in order; each takes values and returns values. What is
saved on the way lets a killed run go on, and everything behind it be redone
without training.
"""

import csv
import datetime
import json
import logging
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import command, evaluation, report
from btcp_tf.config import Config
from btcp_tf.data import Dataset, Split, load
from btcp_tf.evaluation import Predictions
from btcp_tf.files import atomic_path, check_folder, folder_lock
from btcp_tf.methods import METHODS

if TYPE_CHECKING:
    import keras

    from btcp_tf.training import Answers, Stage

Row = dict[str, Any]

NOT_EXPORTED = "not exported"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and runs it; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    config = command.parse(argv)
    # Before TensorFlow is imported. The user's own setting wins.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not config.verbose:
        warnings.simplefilter("ignore")
    try:
        run(config)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except Exception as error:
        expected = (ValueError, RuntimeError, ArithmeticError, OSError, MemoryError)
        # TensorFlow's errors have a base class of their own, known only once it is imported.
        if not isinstance(error, expected) and not type(error).__module__.startswith("tensorflow"):
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print("error:", message, file=sys.stderr)
        return 1
    return 0


def run(config: Config) -> None:
    """Carries out one run in `config.output_dir`, or what is left of it.

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
            if not (config.export_collapsed and saved_model.startswith(NOT_EXPORTED)):
                if config.verbose:
                    print(f"{folder} is finished already; nothing is changed.\n")
                    _print_summary(folder)
                return
        # Now, and not after the training.
        check_folder("export_dir", config.export_dir)

        with command.hidden_stderr():
            # It warns of traces, of which every phase rightly needs some.
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            import keras

            from btcp_tf import networks, training

            strategy = training.make_strategy(config.strategy, config.logical_devices)
            training.start_devices()
        dataset = load(
            config.dataset,
            config.data_dir,
            config.seed,
            config.max_train_images,
            config.max_test_images,
        )
        log(folder, f"started with {dataset.name} {dataset.fingerprint}")
        # Sets the weights of all networks and the masks of all dropout layers.
        keras.utils.set_random_seed(config.seed)
        with strategy.scope():
            network = networks.build_model(
                config.encoder,
                dataset.train.images.shape[1:],
                len(dataset.class_names),
                feature_dim=config.feature_dim,
                estimator_activation=config.estimator_activation,
                synchronized=strategy.num_replicas_in_sync > 1,
            )
        journal = Journal(folder, config, dataset)
        stages = training.fit(
            network,
            dataset,
            config,
            {name: METHODS[name].gamma for name in config.method if METHODS[name].trained},
            folder=folder / "checkpoints",
            strategy=strategy,
            describe=journal.describe,
            after_epoch=journal.after_epoch,
        )
        predictions = predict_all(network, stages, dataset, config)
        for (split, stage), found in predictions.items():
            evaluation.save_predictions(predictions_file(folder, split, stage), found)
        log(folder, f"scored the test set: {len(dataset.test)} images")
        rows = evaluate(network, stages, predictions, config)
        notes = collect_notes(stages, dataset)
        evaluation.save_rows(
            folder / "results.json",
            rows,
            {
                "settings": config.settings(results_only=True),
                "data": {
                    "fingerprint": dataset.fingerprint,
                    "note": dataset.note,
                    **{
                        split: len(getattr(dataset, split))
                        for split in ("train", "validation", "calibration", "test")
                    },
                },
                "stages": {name: stage.facts for name, stage in stages.items() if stage.facts},
                "notes": notes,
                "environment": environment(),
            },
        )
        journal.finish(rows, predictions)
        report.write_run_report(
            folder,
            rows,
            {stage: found for (split, stage), found in predictions.items() if split == "test"},
            journal.history,
            images=dataset.test.images,
            class_names=dataset.class_names,
            settings=config.settings(results_only=True),
            environment=environment(),
            notes=notes,
        )
        exported = export_model(network, stages, dataset, config, rows)
        log(folder, f"exported: {exported}")
        with atomic_path(finished) as temporary:
            temporary.write_text(json.dumps({"saved_model": exported}) + "\n")
        log(folder, "finished")
        if config.verbose:
            print()
            _print_summary(folder)


def _claim(folder: Path, config: Config) -> None:
    """Makes the folder this run's, or checks that it is."""
    path = folder / "flags.cfg"
    # A run that failed before its first epoch, for want of data say, does not hold its folder.
    traces = [folder / "finished.json", folder / "results.json"]
    traces += (folder / "checkpoints").glob("*.npz")
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
            u, train_u = _score("mcp", answers.probs), _score("mcp", answers.train_probs)
        is_error = answers.probs.argmax(axis=1) != self._dataset.validation.labels
        row = {
            "stage": stage,
            **row,
            **evaluation.epoch_metrics(is_error, u, tau=self._config.tau),
        }
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

    def finish(self, rows: list[Row], predictions: "AllPredictions") -> None:
        """Shows the most uncertain validation images, and settings beside final metrics."""
        validation = self._dataset.validation
        for (split, stage), found in predictions.items():
            if split != "validation":
                continue
            for name, u in found.uncertainty.items():
                order = np.argsort(-u, kind="stable")[:16]
                names = self._dataset.class_names
                captions = [
                    f"true {names[found.labels[i]]}\n"
                    f"pred. {names[found.predicted[i]]}\n"
                    f"u = {u[i]:.3f}"
                    for i in order
                ]
                self._summaries.images(
                    f"highest_u/{stage}/{name}", validation.images[order], captions
                )
        self._summaries.hparams(
            self._config.settings(results_only=True),
            {
                f"{row['stage']}/{row['method']}/{name}": row[name]
                for row in rows
                for name in ("accuracy", "auroc", "aupr_error", "aurc", "bacc")
            },
        )
        self._summaries.close()


AllPredictions = dict[tuple[str, str], Predictions]
"""(split, name of the classifier's stage: "frozen" or "<method>_finetuned") → predictions."""


def predictions_file(folder: Path, split: str, stage: str) -> Path:
    """Where the predictions of a split and classifier are; `predictions.npz`: test, frozen."""
    parts = [
        "predictions",
        *([split] if split != "test" else []),
        *([stage] if stage != "frozen" else []),
    ]
    return folder / f"{'_'.join(parts)}.npz"


def _score(method: str, probs: np.ndarray) -> np.ndarray:
    score = METHODS[method].score
    assert score is not None, f"{method} is a trained method"
    return score(probs)


def predict_all(
    network: "keras.Model", stages: dict[str, "Stage"], dataset: Dataset, config: Config
) -> AllPredictions:
    """Scores validation, calibration and test images with every stage."""
    from btcp_tf import training

    encode, classify, estimate = (
        training.Inference(network.get_layer(part), config.test_batch_size)
        for part in ("encoder", "classifier", "estimator")
    )
    predictions: AllPredictions = {}

    def predict(name: str, classifier: "Stage", heads: list["Stage"], scored: list[str]) -> None:
        for split in ("validation", "calibration", "test"):
            part: Split = getattr(dataset, split)
            training.restore(network, classifier.values)
            features = encode(part.images)
            probs = classify(features)
            uncertainty = {method: _score(method, probs) for method in scored}
            for head in heads:
                training.restore(network, head.values)
                uncertainty[head.method] = estimate(features)[:, 0]
            predictions[split, name] = Predictions(
                labels=part.labels,
                probs=probs,
                predicted=probs.argmax(axis=1),
                uncertainty={
                    method: uncertainty[method] for method in config.method if method in uncertainty
                },
            )

    scored = [name for name in config.method if not METHODS[name].trained]
    frozen = [stages[name] for name in config.method if METHODS[name].trained]
    predict("frozen", stages["classifier"], frozen, scored)
    for method in config.finetuned:
        stage = stages[f"{method}_finetuned"]
        predict(stage.name, stage, [stage], scored)
    return predictions


def evaluate(
    network: "keras.Model",
    stages: dict[str, "Stage"],
    predictions: AllPredictions,
    config: Config,
) -> list[Row]:
    """Result rows of the test set, every classifier with its own id."""
    from btcp_tf import training

    rows = []
    for (split, name), found in predictions.items():
        if split != "test":
            continue
        training.restore(network, stages["classifier" if name == "frozen" else name].values)
        rows += evaluation.rows(
            found,
            dataset=config.dataset,
            seed=config.seed,
            stage="frozen" if name == "frozen" else "finetuned",
            classifier_id=training.weights_id(network, ("encoder", "classifier")),
            split=split,
            tau=config.tau,
            bootstrap_draws=config.bootstrap_draws,
            bootstrap_seed=config.seed,
        )
    return rows


def collect_notes(stages: dict[str, "Stage"], dataset: Dataset) -> list[str]:
    """What a reader must know before believing the figures."""
    notes = [dataset.note] if dataset.note else []
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
    dataset: Dataset,
    config: Config,
    rows: list[Row],
) -> str:
    """Exports the run's last estimator; returns the version's folder, or why there is none."""
    from btcp_tf import networks, training
    from btcp_tf.export import export

    stage = list(stages.values())[-1]
    collapse = stages["classifier"].collapse or stage.collapse
    if collapse and not config.export_collapsed:
        return f"{NOT_EXPORTED}: {collapse}; --export_collapsed exports it all the same"
    training.restore(network, stage.values)
    model = network if stage.method else networks.mcp_model(network)
    wanted = (stage.method or "mcp", "finetuned" if stage.name.endswith("_finetuned") else "frozen")
    row = next(row for row in rows if (row["method"], row["stage"]) == wanted)
    path = export(
        model,
        config.export_dir,
        config.dataset,
        dataset.class_names,
        {"settings": config.settings(results_only=True), "test": row, "data_note": dataset.note},
        dataset.validation.images[:64],
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
        table = report.terminal_table(
            rows,
            {
                **files,
                "TensorBoard": f"tensorboard --logdir {folder / 'tensorboard'}",
                "SavedModel": _read_finished(folder),
            },
        )
        notes = [f"note: {note}" for note in extra["notes"]]
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise ValueError(
            f"expected the results of a finished run in {files['results']}, received what cannot "
            f"be read ({error}); {remedy}"
        ) from error
    print("\n".join([table, *notes]))


if __name__ == "__main__":
    sys.exit(main())
