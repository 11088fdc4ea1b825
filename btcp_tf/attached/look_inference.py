"""What looks answer to inputs that `Judge.fit` learns from, one look after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.data import named_inputs
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.methods.looks import Look
from btcp_tf.networks import classifiers
from btcp_tf.networks.evidence_arrays import all_odds_against, mean_odds
from btcp_tf.networks.looks import fixed_dropout
from btcp_tf.training.inference import traced


class LookInference:
    """Odds of looks at arrays, as `methods.looks.look_odds` computes them in a graph.

    A graph of all looks together would hold the classifier once for each, which takes long to make,
    and TensorFlow may compute them side by side, in as many times the memory.

    Args:
      looks: In the order of the columns.
      encoder: Inputs → features, of the classifier.
      ends: Features → [logits, probs].
      batch_size: Inputs at once.
    """

    def __init__(
        self, looks: Sequence[Look], encoder: keras.Model, ends: keras.Model, batch_size: int
    ) -> None:
        self._looks = looks
        self._encoder, self._ends = encoder, ends
        self._batch_size = batch_size
        self._graphs: dict[Any, tuple[Callable[[Any], Any], Any]] = {}

    def __call__(
        self,
        x: Inputs,
        logits: np.ndarray,
        rows: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """Odds `[n, j]`, float32, clipped; NaN for a look that is optional and fails.

        Args:
          x: Inputs, several by name.
          logits: The classifier's, `[n, k]`.
          rows: Whether an input is looked at, bool `[n]` for each look; the others' odds are 0.
            None: all are.
        """
        if rows is None:
            rows = [np.ones(len(logits), bool)] * len(self._looks)
        simple: dict[Any, tuple[Look, np.ndarray]] = {}
        for look, own in zip(self._looks, rows, strict=True):
            for part in look.parts or (look,):
                _, others = simple.get(_key(part), (part, np.zeros(len(logits), bool)))
                simple[_key(part)] = part, own | others
        odds = {
            key: self._odds(part, x, logits, np.flatnonzero(some))
            for key, (part, some) in simple.items()
        }
        columns = [
            np.where(own, mean_odds([odds[_key(part)] for part in look.parts or (look,)]), 0.0)
            for look, own in zip(self._looks, rows, strict=True)
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def _odds(self, look: Look, x: Inputs, logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Odds of a look without parts, float32 `[n]`; 0 but for the rows."""
        odds = np.zeros(len(logits), np.float32)
        try:
            for start in range(0, len(rows), self._batch_size):
                some = rows[start : start + self._batch_size]
                inputs = named_inputs.each(tf.constant, named_inputs.take(x, some))
                answers = self._answers(look, inputs).numpy()
                finite = np.isfinite(answers).all(axis=1)
                odds[some] = np.where(finite, all_odds_against(logits[some], answers), np.nan)
        except Exception:  # Whatever a change or a classifier that takes no changed inputs raises.
            if not all(one.optional for one in self._looks):
                raise
            odds[rows] = np.nan
        return odds

    def _answers(self, look: Look, inputs: Any) -> Any:
        """Logits or log-probabilities, as `Look.logits` has them of Keras tensors."""
        if look.change is not None:
            # Without a graph: to make one takes longer than the few batches do.
            inputs = look.change(inputs, training=False)
        if look.answer is not None:
            return self._graph(("answer", id(look.answer)), lambda: look.answer)(inputs)
        seed = look.dropout_seed
        return self._graph(("dropout", seed), lambda: self._classifier(seed))(inputs)

    def _graph(self, key: Any, make: Callable[[], Any]) -> Callable[[Any], Any]:
        """Made once for all looks that have it in common."""
        if key not in self._graphs:
            model = make()
            # A graph does not keep its model's weights.
            like = classifiers.named_tensors(self._encoder)
            self._graphs[key] = traced(model, like), model
        return self._graphs[key][0]

    def _classifier(self, dropout_seed: int | None) -> Callable[..., Any]:
        """Inputs → logits."""
        encoder, ends = self._encoder, self._ends
        if dropout_seed is not None:
            encoder = fixed_dropout(encoder, dropout_seed)
        return lambda x, training: ends(encoder(x, training=training), training=training)[0]


def _key(look: Look) -> Any:
    """The same for looks that answer the same."""
    return id(look.change), id(look.answer), look.dropout_seed
