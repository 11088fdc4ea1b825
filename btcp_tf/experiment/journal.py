"""What a run logs: TensorBoard, `history.csv`, `run.log`."""

import csv
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core import files
from btcp_tf.core.config import Config
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.evaluation import results
from btcp_tf.experiment import values
from btcp_tf.experiment.values import AllPredictions, Row
from btcp_tf.methods.registry import METHODS

if TYPE_CHECKING:
    from btcp_tf.training.phases import EpochOutputs


def log(folder: Path, event: str) -> None:
    """Adds a line with the time to the run's log."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open(folder / "run.log", "a", encoding="utf-8") as file:
        file.write(f"{now} {event}\n")


class Journal:
    """Curves per epoch: the history file and TensorBoard, on validation data alone."""

    def __init__(self, folder: Path, config: Config, dataset: Dataset) -> None:
        from btcp_tf.experiment.summaries import Summaries

        self._folder = folder
        self._config = config
        self._dataset = dataset
        self._rows: dict[str, list[Row]] = {}
        self._summaries = Summaries(folder / "tensorboard")

    @property
    def history(self) -> list[Row]:
        """Rows of all stages, in order of training."""
        return [row for rows in self._rows.values() for row in rows]

    def describe(self, stage: str, row: Row, outputs: "EpochOutputs") -> Row:
        """Completes an epoch's row with metrics of the validation data."""
        u, train_u = outputs.uncertainty, outputs.train_uncertainty
        values.check_finite(outputs.probs, u, train_u)
        is_error = outputs.probs.argmax(axis=1) != self._dataset.validation.labels
        row = {
            "stage": stage,
            **row,
            **results.epoch_metrics(is_error, u, tau=self._config.tau),
        }
        # Classifiers without an error, or without a correct answer, have no best threshold.
        if METHODS["thresholding"].column_of == stage and 0 < is_error.sum() < len(is_error):
            tau = values.best_tau(is_error, u)
            best = results.epoch_metrics(is_error, u, tau=tau)
            row |= {"best_tau": tau, "fpr_best_tau": best["fpr"], "fnr_best_tau": best["fnr"]}
        self._summaries.epoch(stage, row, {"u_validation": u, "u_train": train_u})
        return row

    def after_epoch(self, stage: str, rows: list[Row]) -> None:
        """Rewrites the history with a stage's rows so far."""
        self._rows[stage] = rows
        history = self.history
        columns = dict.fromkeys(name for row in history for name in row)
        with (
            files.atomic_path(self._folder / "history.csv") as temporary,
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
