"""What the steps of a run hand to one another."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btcp_tf import thresholds
from btcp_tf.evaluation.predictions import Predictions

Row = dict[str, Any]


def check_finite(*answers: np.ndarray) -> None:
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


def best_tau(is_error: np.ndarray, u: np.ndarray) -> float:
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
