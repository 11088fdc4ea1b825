"""Keras layers by which looks enter the residual estimator: computed only where MCP is unsure.

`BehindGate` picks the rows of a batch whose MCP logit is above the gate; what is computed of them
is weighed by `Ramp`, and `Scatter` puts it back, 0 for all other rows. So an answer does not depend
on the rest of its batch, and a batch in which no row is picked pays nothing. `Undecided` finds the
rows whose looks can still change a decision, see `deciding`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops, tree

from btcp_tf.networks.evidence_arrays import CLIPPED, look_extremes
from btcp_tf.networks.evidence_layers import Float32Layer

_PACKAGE = "btcp_tf"


class _Gated(Float32Layer):
    """A layer that knows the gate, a value of MCP's logit z; None: there is none."""

    _arguments = ("gate",)

    def __init__(self, gate: float | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.gate = gate


@keras.saving.register_keras_serializable(_PACKAGE)
class BehindGate(_Gated):
    """(z `[n, 1]`, values `[n, ...]`, perhaps several by name) → the m rows of the values with z
    above the gate."""

    def __init__(self, gate: float, **settings: Any) -> None:
        super().__init__(gate, autocast=False, **settings)  # Values keep their type.

    def call(self, inputs: Sequence[Any]) -> Any:
        z, values = inputs
        above = z[:, 0] > self.gate
        return tree.map_structure(lambda one: tf.boolean_mask(one, above), values)

    def compute_output_spec(self, inputs: Sequence[Any]) -> Any:
        return tree.map_structure(
            lambda one: keras.KerasTensor((None, *one.shape[1:]), dtype=one.dtype), inputs[1]
        )


@keras.saving.register_keras_serializable(_PACKAGE)
class UnlessEmpty(keras.layers.Layer):
    """A model in inference mode that is not run where a batch has no rows.

    So no time is lost on it; and oneDNN's fused convolution gives an empty batch the shape of its
    input (TensorFlow 2.21), on which what follows fails. The model itself is used, not a copy.

    Args:
      model: A model of one output, whose shape is known but for the rows.
    """

    def __init__(self, model: keras.Model, **settings: Any) -> None:
        super().__init__(autocast=False, **settings)
        self.model = model

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        model = keras.saving.deserialize_keras_object(config["model"])
        return cls(**{**config, "model": model})

    def compute_output_spec(self, inputs: Any) -> Any:
        output = self.model.outputs[0]
        return keras.KerasTensor((None, *output.shape[1:]), dtype=output.dtype)

    def call(self, inputs: Any) -> Any:
        spec = self.compute_output_spec(inputs)
        return tf.cond(
            tf.shape(tree.flatten(inputs)[0])[0] > 0,
            lambda: ops.reshape(self.model(inputs, training=False), (-1, *spec.shape[1:])),
            lambda: tf.zeros((0, *spec.shape[1:]), spec.dtype),
        )


@keras.saving.register_keras_serializable(_PACKAGE)
class Scatter(_Gated):
    """(z `[n, 1]`, values `[m, e]` of the rows with z above the gate) → `[n, e]`, else 0."""

    def call(self, inputs: Sequence[Any]) -> Any:
        z, values = inputs
        rows = tf.where(z[:, 0] > self.gate)
        return tf.scatter_nd(rows, values, (tf.shape(z, rows.dtype)[0], values.shape[1]))

    def compute_output_spec(self, inputs: Sequence[Any]) -> Any:
        z, values = inputs
        return keras.KerasTensor((z.shape[0], values.shape[1]), dtype=values.dtype)


def _weight(z: Any, gate: float | None) -> Any:
    """See `Ramp`."""
    return ops.ones_like(z) if gate is None else ops.clip(z - gate, 0.0, 1.0)


@keras.saving.register_keras_serializable(_PACKAGE)
class Ramp(_Gated):
    """z, then evidence `[n, e]`, … → `[n, 1 + e]`: a weight, and the weight times all evidence.

    The weight is 0 where z is at the gate, and grows to 1 one logit above it. Without a gate it is
    1 everywhere.

    Args:
      gate: A value of z; None: there is none.
    """

    def call(self, inputs: Sequence[Any]) -> Any:
        z, *evidence = inputs
        weight = _weight(z, self.gate)
        return ops.concatenate([weight, *(weight * part for part in evidence)], axis=1)


@keras.saving.register_keras_serializable(_PACKAGE)
class SecondOpinion(_Gated):
    """z `[n, 1]`, logits `[n, k]`, then logits or log-probabilities of looks → `[n, k]`.

    By how much the mean probabilities over the classifier and all looks differ from the
    classifier's. The looks weigh as much as `Ramp` says, so that nothing jumps at the gate.

    Args:
      gate: A value of z; None: there is none.
    """

    def call(self, inputs: Sequence[Any]) -> Any:
        z, logits, *looks = inputs
        weight = _weight(z, self.gate)
        own = ops.softmax(logits, axis=1)
        total = own + weight * sum(ops.softmax(look, axis=1) for look in looks)
        return total / (1.0 + weight * len(looks)) - own


@keras.saving.register_keras_serializable(_PACKAGE)
class MeanAnswer(Float32Layer):
    """Logits or log-probabilities `[n, k]` of several looks → logs of their mean probabilities."""

    def call(self, inputs: Sequence[Any]) -> Any:
        logs = ops.stack([ops.log_softmax(look, axis=1) for look in inputs])
        return ops.logsumexp(logs, axis=0) - float(np.log(len(inputs)))


@keras.saving.register_keras_serializable(_PACKAGE)
class OddsAgainst(Float32Layer):
    """(logits `[n, k]`, logits or log-probabilities of a look `[n, k]`) → `[n, 1]`.

    The look's log odds against the class with the largest of the first logits, clipped to ± 15:
    `evidence_arrays.odds_against` in a graph.
    """

    def call(self, inputs: Sequence[Any]) -> Any:
        logits, look = inputs
        one_hot = ops.one_hot(ops.argmax(logits, axis=1), logits.shape[1], dtype="float32")
        against = ops.logsumexp(look - 1e9 * one_hot, axis=1, keepdims=True)
        return ops.clip(against - ops.sum(one_hot * look, axis=1, keepdims=True), -CLIPPED, CLIPPED)


@keras.saving.register_keras_serializable(_PACKAGE)
class LookEvidence(Float32Layer):
    """MCP's logit `[n, 1]`, then of each of m looks the log odds against the predicted class
    `[n, 1]` → `[n, 2 m + 1]`: `look_choice.look_columns` in a graph."""

    def call(self, inputs: Sequence[Any]) -> Any:
        every = ops.clip(ops.concatenate(inputs, axis=1), -CLIPPED, CLIPPED)
        against = ops.mean(ops.sigmoid(every), axis=1, keepdims=True)
        for_it = ops.mean(ops.sigmoid(-every), axis=1, keepdims=True)
        odds = every[:, 1:]
        return ops.concatenate(
            [odds, ops.sigmoid(odds), ops.log(against) - ops.log(for_it)], axis=1
        )


@keras.saving.register_keras_serializable(_PACKAGE)
class RowLimit(Float32Layer):
    """Class probabilities `[n, k]`, or the names of groups as text `[n]` → the limit of logit(u) of
    each row, `[n, 1]`.

    Args:
      limits: Of each predicted class `[k]`; or of each of g groups, and then of all others
        `[g + 1]`.
      groups: Names of the groups; none: the limits are of classes.
    """

    _arguments = ("limits", "groups")

    def __init__(
        self, limits: Sequence[float], groups: Sequence[str] = (), **settings: Any
    ) -> None:
        super().__init__(autocast=False, **settings)
        self.limits = list(limits)
        self.groups = list(groups)

    def call(self, inputs: Any) -> Any:
        if self.groups:
            row = place_among(inputs, tf.constant(self.groups))
        else:
            # In float32, as an exported model tells its answer.
            row = tf.argmax(tf.cast(inputs, tf.float32), axis=1)
        return tf.gather(tf.constant(self.limits, tf.float32), row)[:, None]

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((inputs.shape[0], 1), dtype="float32")


def place_among(names: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
    """Where each of n names is among g known ones, text; g for all others: int64 `[n]`.

    >>> place_among(tf.constant(["b", "c"]), tf.constant(["a", "b"])).numpy().tolist()
    [1, 2]
    """
    is_its = tf.cast(tf.equal(names[:, None], known[None]), tf.int32)
    return tf.argmax(tf.pad(is_its, [[0, 0], [0, 1]], constant_values=1), axis=1)


_MARGIN = 1e-3
"""Of logit(u): more than rounding, which differs between batches, can carry it."""


@keras.saving.register_keras_serializable(_PACKAGE)
class Undecided(Float32Layer):
    """(z `[n, 1]`, logit(u) without looks `[n, v]`, the looks' weight `[n, 1]`, limits of logit(u)
    `[n, 1]`) → `[n, 1]`, above 0 where the looks may decide on which side of its limit logit(u) is.

    logit(u) is between v linear forms of the evidence.

    Args:
      slopes: Weights of the columns of `LookEvidence` in each of the forms, `[v, 2 m + 1]`.
    """

    _arguments = ("slopes",)

    def __init__(self, slopes: Sequence[Sequence[float]], **settings: Any) -> None:
        super().__init__(**settings)
        self.slopes = [list(own) for own in slopes]

    def bounds(self, z: Any) -> tuple[Any, Any]:
        """`look_choice.look_bounds` of each form in a graph, `[n, v]` each."""
        one = [CLIPPED * ops.ones_like(z)] * (len(self.slopes[0]) // 2)
        evidence = LookEvidence()
        means = [evidence([z, *(sign * odds for odds in one)])[:, -1:] for sign in (-1.0, 1.0)]
        lows, highs = [], []
        for slopes in self.slopes:
            low, high = look_extremes(slopes[:-1])
            ends = [slopes[-1] * mean for mean in means]
            lows.append(low + ops.minimum(*ends))
            highs.append(high + ops.maximum(*ends))
        return ops.concatenate(lows, axis=1), ops.concatenate(highs, axis=1)

    def call(self, inputs: Sequence[Any]) -> Any:
        z, logit, weight, limit = inputs
        low, high = (logit + weight * bound for bound in self.bounds(z))
        low = ops.min(low, axis=1, keepdims=True)
        high = ops.max(high, axis=1, keepdims=True)
        near = ops.minimum(limit - low, high - limit) + _MARGIN
        return ops.where(weight > 0, near, -ops.ones_like(near))
