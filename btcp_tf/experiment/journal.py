"""What a run logs: TensorBoard, `history.csv`, `run.log`."""

import csv
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core import files
from btcp_tf.data.splits import Split
from btcp_tf.evaluation import results
from btcp_tf.evaluation.keys import VALIDATION
from btcp_tf.experiment.values import AllPredictions, Row, best_tau, check_finite
from btcp_tf.methods.registry import METHODS

if TYPE_CHECKING:
    from btcp_tf.training.phases import EpochOutputs

_HPARAMS_METRICS = ("accuracy", "auroc", "aupr_error", "aurc", "bacc")

_SHOWN = 16
"""Images of the sheets in TensorBoard."""


def log(folder: Path, event: str) -> None:
    """Adds a line with the time to the run's log."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open(folder / "run.log", "a", encoding="utf-8") as file:
        file.write(f"{now} {event}\n")


def announce(step: str, verbose: int) -> None:
    """Says on the terminal what is done next, which takes its time."""
    if verbose:
        print(step, flush=True)


class Journal:
    """Curves per epoch: the history file and TensorBoard, on validation data alone."""

    def __init__(
        self, folder: Path, validation: Split, class_names: Sequence[str], *, tau: float
    ) -> None:
        """
        Args:
          folder: The run's folder.
          validation: The validation set that the networks are judged on.
          class_names: Names by class number.
          tau: Decision threshold of the metrics per epoch.
        """
        from btcp_tf.experiment.summaries import Summaries

        self._folder, self._validation = folder, validation
        self._class_names, self._tau = class_names, tau
        self._rows: dict[str, list[Row]] = {}
        self._summaries = Summaries(folder / "tensorboard")

    @property
    def history(self) -> list[Row]:
        """Rows of all stages, in order of training."""
        return [row for rows in self._rows.values() for row in rows]

    def describe(self, stage: str, row: Row, outputs: "EpochOutputs") -> Row:
        """Completes an epoch's row with metrics of the validation data."""
        u, train_u = outputs.uncertainty, outputs.train_uncertainty
        check_finite(outputs.probs, u, train_u)
        is_error = outputs.probs.argmax(axis=1) != self._validation.labels
        row = {"stage": stage, **row, **results.epoch_metrics(is_error, u, tau=self._tau)}
        if METHODS["thresholding"].column_of == stage:
            tau = best_tau(is_error, u)
            if tau is not None:
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

    def finish(
        self,
        rows: Sequence[Row],
        predictions: AllPredictions,
        validation: Split,
        settings: Mapping[str, str],
    ) -> None:
        """Shows the most uncertain validation images, and settings beside final metrics.

        Args:
          rows: Result rows of the run.
          predictions: Those of the validation images are shown, wrong ones with a frame.
          validation: These images.
          settings: Settings of the run that change its results.
        """
        for (image_set, predictor), answers in predictions.items():
            if image_set != VALIDATION:
                continue
            for method, u in answers.uncertainty.items():
                order = np.argsort(-u, kind="stable")[:_SHOWN]
                names, labels = self._class_names, validation.labels
                captions = [
                    f"true {names[labels[i]]}\npred. {names[answers.predicted[i]]}\nu = {u[i]:.3f}"
                    for i in order
                ]
                self._summaries.images(
                    f"highest_u/{predictor}/{method}",
                    validation.images[order],
                    captions,
                    answers.is_error[order],
                )
        final = {
            f"{row['stage']}/{row['method']}/{name}": row[name]
            for row in rows
            if (row["task"], row["split"]) == ("failure", "test")
            for name in _HPARAMS_METRICS
        }
        self._summaries.hparams(str(self._folder), settings, final)
        self._summaries.close()
