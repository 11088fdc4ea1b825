"""The files of a finished run or study that a report is made of."""

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from btcp_tf.decisions.decision_file import Decision, load_decision
from btcp_tf.evaluation import predictions as predictions_
from btcp_tf.evaluation.keys import CLASSIFIER, TEST, Predictor, predictions_file
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.evaluation.results import load_rows
from btcp_tf.reporting import cells
from btcp_tf.reporting.cells import Row


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """Results, test predictions and decision of a run."""

    folder: Path
    rows: list[dict[str, Any]]
    """Result rows of every task and split."""
    extra: dict[str, Any]
    """Settings, environment, notes, promises and `problem` of `results.json`."""
    predictions: dict[Predictor, Predictions]
    """Answers to the test set."""
    decision: Decision | None

    @classmethod
    def load(cls, folder: Path) -> "SavedRun":
        """Reads a run's folder.

        Raises:
          ValueError: If a file is damaged, or `predictions.npz` is missing.
          OSError: If a file cannot be opened.
        """
        rows, extra = load_rows(folder / "results.json")
        predictions = load_predictions(folder, rows)
        if not predictions:
            raise ValueError(f"{folder}: expected predictions.npz of a run, received none")
        return cls(folder, rows, extra, predictions, load_decision(folder))


def load_predictions(folder: Path, rows: Iterable[Row]) -> dict[Predictor, Predictions]:
    """Test predictions of a run's predictors, in order of its rows; those whose file exists.

    Args:
      folder: The run's folder.
      rows: Rows of the run, or of runs with the same methods.

    Returns:
      Predictions of each, the classifier of phase 1 among them; empty without that one.

    Raises:
      ValueError: If a file holds another number of answers than the rows.
    """
    rows = cells.only(rows)
    others = [
        Predictor(row["answers"], row["stage"])
        for row in cells.with_answers(rows)
        if row["answers"]
    ]
    predictions = {}
    for predictor in dict.fromkeys([CLASSIFIER, *others]):
        path = folder / predictions_file(TEST, predictor)
        saved = load_if_saved(path)
        if saved is None:
            continue
        if len(saved.predicted) != rows[0]["n"]:
            raise ValueError(
                f"{path}: expected the {rows[0]['n']} answers of results.json, received "
                f"{len(saved.predicted)}"
            )
        predictions[predictor] = saved
    return predictions if CLASSIFIER in predictions else {}


def load_if_saved(path: Path) -> Predictions | None:
    """A file of predictions; None if it does not exist."""
    return predictions_.load_predictions(path) if path.exists() else None


def load_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a run's history, numbers as floats, NaN where a cell is empty; none without a file.

    Raises:
      ValueError: If it is no history; the message names the file.
    """
    if not path.exists():
        return []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [
                {
                    key: value if key in ("stage", "phase") else float(value or "nan")
                    for key, value in row.items()
                }
                for row in csv.DictReader(file)
            ]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected a run's history, received {error}") from error
