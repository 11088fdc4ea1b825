"""What a model of `model.join` answers: predictions, u, and u of MCP."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from scipy import special

from btcp_tf.attached.inference import CheckedInference, check_labels
from btcp_tf.data.input_checks import Ranges
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.networks import models


class Scored(NamedTuple):
    """Answers to n inputs, and what else is known of these."""

    probs: np.ndarray
    """`[n, k]`."""
    uncertainty: np.ndarray
    """u, float64 `[n]` in [0, 1]."""
    mcp: np.ndarray
    """u of MCP, float64 `[n]`."""
    labels: Any
    """See `inference.Outputs`."""
    hashes: np.ndarray | None
    """See `inference.Outputs`."""
    input_range: Ranges
    """See `inference.Outputs`."""
    class_names: Sequence[str]
    """Of the k classes."""
    second_opinion: np.ndarray | None
    """Mean probabilities `[n, k]` over the classifier and its looks; None: no looks."""
    looked_at: np.ndarray | None
    """Whether an input is above the gate, so that looks were computed, bool `[n]`; None: no
    looks."""

    @property
    def predicted(self) -> np.ndarray:
        """The most probable class, int64 `[n]`."""
        return self.probs.argmax(axis=1)

    def true_classes(self) -> np.ndarray:
        """The labels, checked, int64 `[n]`."""
        return check_labels(self.labels, len(self.probs), self.class_names)

    def predictions(self, method: str, rows: Any = slice(None), groups: Any = None) -> Predictions:
        """Some of the answers, with u of a method and, beside it, of "mcp"; and their groups, of
        which those of all answers are given."""
        columns = {"mcp": self.mcp[rows], method: self.uncertainty[rows]}
        labels = self.true_classes()[rows]
        of_rows = None if groups is None else np.asarray(groups)[rows]
        return Predictions(labels, self.probs[rows], self.predicted[rows], columns, of_rows)

    def about_second_opinion(self, rows: Any = slice(None)) -> dict[str, Any]:
        """How often classifier and second opinion are right on those of some inputs that were
        looked at, see `Judge.evaluate`; {}: no looks."""
        if self.second_opinion is None or self.looked_at is None:
            return {}
        at, labels = self.looked_at[rows], self.true_classes()[rows]
        right = {
            "looked_at_accuracy": self.predicted[rows] == labels,
            "looked_at_second_accuracy": self.second_opinion.argmax(axis=1)[rows] == labels,
        }
        count = int(at.sum())
        return {"looked_at": count} | {
            name: float(values[at].mean()) if count else np.nan for name, values in right.items()
        }


class Scoring:
    """Scores inputs.

    Args:
      model: From `model.join`.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._inferences: dict[int, CheckedInference] = {}

    def __call__(
        self, x: Any, y: Any, batch_size: int, *, like: Ranges, hashed: bool = False
    ) -> Scored:
        """Scores inputs; arguments and errors as of `CheckedInference`."""
        served = self._served
        name = "logit" if "logit" in served.output else "uncertainty"
        if batch_size not in self._inferences:
            # Traced once: it takes seconds for a large network.
            ends = [served.output["probs"], served.output[name]]
            ends.append(served.get_layer("mcp_logit").output)
            if "second_opinion" in served.output:
                ends.append(served.output["second_opinion"])
            model = keras.Model(served.input, ends)
            self._inferences[batch_size] = CheckedInference(model, batch_size)
        answers = self._inferences[batch_size](x, y, like=like, hashed=hashed)
        probs, u, z, *second = answers.outputs
        mcp = special.expit(z[:, 0].astype(np.float64))
        names = self._model.get_layer("card").about["class_names"]
        u = models.uncertainty_of({name: u})
        looked_at = None
        if second:
            gate = self._model.get_layer("ramp").gate
            looked_at = np.ones(len(z), bool) if gate is None else z[:, 0] > gate
        opinion = second[0] if second else None
        return Scored(probs, u, mcp, *answers[1:], names, opinion, looked_at)

    @functools.cached_property
    def _served(self) -> keras.Model:
        """The model as it is exported: with logit(u), if u is made of one. Its few weights are
        copied now and not when the model is made, which may get others before it is used."""
        return models.with_logit(self._model)
