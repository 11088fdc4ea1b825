"""What a run's SavedModel answers and accepts, and why: `decision.json`, written and read."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from btcp_tf import thresholds
from btcp_tf.core import files, json_files
from btcp_tf.evaluation import keys, predictions
from btcp_tf.evaluation.keys import CALIBRATION, FINETUNED, Predictor
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.thresholds import Threshold

DECISION_FILE = "decision.json"
"""In a run's folder: the threshold of its SavedModel and where its calibration rows are."""

NOT_EXPORTED = "not exported"
"""Start of the text that stands in the place of a SavedModel's path."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a run's SavedModel answers and accepts."""

    threshold: Threshold
    predictor: Predictor
    """Whose answers."""
    method: str
    """Whose u: a column of `calibration`."""
    calibration: Predictions
    """Answers to the calibration set, on which the threshold was chosen."""
    reason: str = ""
    """Why this predictor and method; "": unknown."""
    fit: Mapping[str, Any] | None = None
    """How the estimator was fitted, where it computes looks for a share of the inputs, see
    `residual_choice.Fit`; None: it does not, or an earlier version wrote the file."""

    def of(self, saved_model: str) -> str:
        """Where the SavedModel is, and whose answers and u it gives; or why there is none."""
        if saved_model.startswith(NOT_EXPORTED):
            return saved_model
        is_finetuned = self.predictor.stage == FINETUNED
        classifier = "fine-tuned classifier" if is_finetuned else "classifier"
        u = METHODS[self.method].title if self.method in METHODS else self.method
        if self.method == REFERENCE:
            u += ", one minus the largest probability"
        return f"{saved_model} (the {classifier}; its uncertainty u is {u})"


def save_decision(folder: str | os.PathLike, decision: Decision, saved_model: str) -> None:
    """Writes a run's `decision.json`; the calibration rows have a file of their own.

    Args:
      folder: The run's folder.
      decision: What was decided.
      saved_model: Path of the SavedModel, or why there is none.
    """
    content = {
        "threshold": decision.threshold,
        "predictions": keys.predictions_file(CALIBRATION, decision.predictor),
        "column": decision.method,
        "reason": decision.reason,
        "saved_model": saved_model,
        **({} if decision.fit is None else {"fit": decision.fit}),
    }
    json_files.write(files.as_path("folder", folder) / DECISION_FILE, content, indent=2)


def load_decision(folder: str | os.PathLike) -> Decision | None:
    """Reads a run's `decision.json` and the predictions that it names; None without the file.

    Raises:
      ValueError: If it is no such file, or the predictions are not there; the message names it.
      OSError: If a file cannot be opened.
    """
    path = files.as_path("folder", folder) / DECISION_FILE
    if not path.exists():
        return None
    try:
        content = json_files.parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, received {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, received {type(content).__name__}")
    try:
        threshold = thresholds.from_json(content.get("threshold"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    name, method = content.get("predictions"), content.get("column")
    if not (isinstance(name, str) and isinstance(method, str)):
        raise ValueError(
            f"{path}: expected the names predictions and column, received {', '.join(content)}"
        )
    file = path.parent / name
    if not file.is_file():
        raise ValueError(
            f"{path}: expected the calibration set's answers in {file}, received no such file; "
            "the run is not complete"
        )
    calibration = predictions.load_predictions(file)
    if method not in calibration.uncertainty:
        raise ValueError(
            f"{file}: expected an uncertainty column {method}, received "
            f"{', '.join(calibration.uncertainty)}"
        )
    predictor = keys.predictor_of_file(name, CALIBRATION)
    reason = content.get("reason", "")
    reason = reason if isinstance(reason, str) else ""
    fit = content.get("fit")
    fit = fit if isinstance(fit, dict) else None
    return Decision(threshold, predictor, method, calibration, reason, fit)
