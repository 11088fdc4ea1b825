"""The Keras model whose `train_step` is one of the paper's phases."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import losses
from btcp_tf.core.config import Phase
from btcp_tf.networks import classifiers


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What sets one estimator of a run apart from the others."""

    gamma: float | None = None
    """Exponent of the focal factor; None takes the run's `gamma` setting."""
    hardest: float = 1.0
    """Share of each batch that is trained on, by largest loss, in (0, 1]: OHEM below 1."""


@dataclasses.dataclass(frozen=True)
class LossSettings:
    """How the estimator's loss weighs an example; see `losses.distributional_focal_loss`."""

    gamma: float
    epsilon: float
    form: str
    scope: str
    bins: int
    hardest: float = 1.0
    """See `Recipe`."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """An epoch as one call of one loop, in place of a call for each batch."""

    rows: Callable[[], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
    """Features `[n, d]`, `u_true` `[n]` and their order `[n]` in this epoch, in a graph."""
    batch_size: int
    """Rows of a step; the last one may have fewer."""
    fused: bool
    """Whether XLA compiles the loop."""


class PhaseModel(keras.Model):
    """What one phase trains: some of the sub-models, and the loss terms of the phase.

    Trains on batches `(x, y)` or `(x, y, weight)`. With the encoder among the trained parts x are
    uint8 images and y int64 labels; in the estimator phase x are features and y
    is `u_true`. `weight` is what a row counts in the means, see `one_phase`; 1 by default.
    """

    def __init__(
        self,
        phase: Phase,
        network: keras.Model,
        settings: LossSettings | None = None,
        term_weights: dict[str, float] | None = None,
        *,
        averaging: bool = False,
    ) -> None:
        """
        Args:
          phase: What is trained, and the loss terms.
          network: With the sub-models.
          settings: Settings of the estimator's loss, where there is an estimator.
          term_weights: Weights of the loss terms by name; 1 by default.
          averaging: Whether averages of the weights are kept, at the rate of `compile`.
        """
        super().__init__(name=phase.name)
        self.phase = phase
        self.settings = settings
        self.term_weights = {"cross_entropy": 1.0, "dfl": 1.0, **(term_weights or {})}
        # Only what is trained becomes part of the model, and so of its checkpoints.
        self.parts = {name: network.get_layer(name) for name in phase.trains}
        if "classifier" in self.parts:
            self.parts["classifier"] = classifiers.both_ends(self.parts["classifier"])
        for name in ("encoder", "classifier", "estimator"):
            network.get_layer(name).trainable = name in phase.trains
        names = ["loss", *phase.objective]
        names += ["accuracy"] * ("classifier" in self.parts)
        names += ["weight", "weight_squared"] * ("estimator" in self.parts)
        self.trackers = {name: keras.metrics.Mean(name=name) for name in names}
        if settings is not None:
            self.counts = self.add_weight(
                shape=(settings.bins,), initializer="zeros", trainable=False, name="counts"
            )
        # BatchNorm's statistics, too: those of the last weights would not fit averaged ones.
        self.averaged = [w for part in self.parts.values() for w in part.weights] * averaging
        self.averages = [
            self.add_weight(
                shape=w.shape,
                initializer="zeros",
                trainable=False,
                aggregation="mean",
                name=f"average{number}",
            )
            for number, w in enumerate(self.averaged)
        ]
        self.built = True

    def compile(
        self,
        *,
        weight_decay: float = 0.0,
        sam_rho: float = 0.0,
        averaging_rate: Callable[[tf.Tensor], tf.Tensor] | None = None,
        loop: Loop | None = None,
        **arguments: Any,
    ) -> None:
        """As in Keras.

        Args:
          weight_decay: L2 on all that is trained, as PyTorch's SGD applies it.
          sam_rho: Gradients are those at weights that are moved by so much up the gradient
            (sharpness-aware minimization, Foret et al. 2021). 0: off.
          averaging_rate: Number of the step, from 1 → how far the averages move to the weights.
          loop: What takes the place of the batches; those of `fit` are then without meaning.
          **arguments: As in Keras.
        """
        self.weight_decay = weight_decay
        self.sam_rho = sam_rho
        self.averaging_rate = averaging_rate
        self.loop = loop
        super().compile(**arguments)

    @contextlib.contextmanager
    def with_averages(self) -> Iterator[None]:
        """Puts the averages, where there are any, into the place of the weights for a while."""
        weights = [w.numpy() for w in self.averaged]
        self.take_averages()
        try:
            yield
        finally:
            for variable, value in zip(self.averaged, weights, strict=True):
                variable.assign(value)

    def take_averages(self) -> None:
        """Puts the averages, where there are any, into the place of the weights."""
        for variable, average in zip(self.averaged, self.averages, strict=True):
            variable.assign(average.numpy())

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return list(self.trackers.values())

    def call(self, x: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs = {}
        features = self.parts["encoder"](x, training=training) if "encoder" in self.parts else x
        if "classifier" in self.parts:
            outputs["logits"], _ = self.parts["classifier"](features, training=training)
        if "estimator" in self.parts:
            outputs["uncertainty"] = self.parts["estimator"](features, training=training)[:, 0]
        return outputs

    def set_targets(self, u_true: np.ndarray) -> None:
        """Takes U, the training set's `u_true` `[n]`, for the density with scope "dataset"."""
        assert self.settings is not None, "a phase without the DFL has no density"
        self.counts.assign(losses.histogram(u_true, self.settings.bins))

    def terms(self, y: tf.Tensor, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One value per example `[n]` for each tracked quantity except the total loss."""
        terms = {}
        u_true = y
        if "logits" in outputs:
            logits = outputs["logits"]
            terms["cross_entropy"] = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            terms["accuracy"] = tf.cast(tf.argmax(logits, axis=1) == y, tf.float32)
            # exp(-cross-entropy) is the true class probability of this very pass.
            u_true = 1.0 - tf.exp(-tf.stop_gradient(terms["cross_entropy"]))
        if "uncertainty" in outputs:
            settings = self.settings
            assert settings is not None, "a phase with the DFL has its settings"
            counts = self.counts.value
            if settings.scope == "batch":
                # Summed over replicas here, outside of the loss's own tf.function: a
                # collective inside of it would fail.
                counts = tf.distribute.get_replica_context().all_reduce(
                    tf.distribute.ReduceOp.SUM, losses.histogram(u_true, settings.bins)
                )
            terms["dfl"] = losses.distributional_focal_loss(
                u_true,
                outputs["uncertainty"],
                counts,
                settings.gamma,
                settings.epsilon,
                settings.form,
            )
            density = losses.density(u_true, counts, settings.epsilon, settings.form)
            terms["weight"] = losses.focal_weight(density, settings.gamma)
            terms["weight_squared"] = tf.square(terms["weight"])
        return terms

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        if self.loop is None:
            self._step(*keras.utils.unpack_x_y_sample_weight(batch))
        else:
            self._steps(self.loop)
        return {
            name: tracker.result()
            for name, tracker in self.trackers.items()
            if not name.startswith("weight")  # Of no use in a progress bar.
        }

    def _steps(self, loop: Loop) -> None:
        """One step for each batch of the order, and one for the rows that remain."""
        x, y, order = loop.rows()
        size, whole = loop.batch_size, order.shape[0] // loop.batch_size

        @tf.function(jit_compile=loop.fused, autograph=False)
        def steps(x: tf.Tensor, y: tf.Tensor, order: tf.Tensor) -> None:
            def body(number: tf.Tensor) -> tf.Tensor:
                # Not order[a:b]: of such a part XLA does not know the length.
                rows = tf.slice(order, [number * size], [size])
                self._step(tf.gather(x, rows), tf.gather(y, rows))
                return number + 1

            tf.while_loop(lambda number: number < whole, body, [0])

        if whole:
            steps(x, y, order)
        if order.shape[0] > whole * size:
            rest = order[whole * size :]
            self._step(tf.gather(x, rest), tf.gather(y, rest))

    def _step(self, x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor | None = None) -> None:
        if weight is None:
            weight = tf.ones(tf.shape(y), tf.float32)
        replica = tf.distribute.get_replica_context()
        size = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(weight))
        weights = self.trainable_weights
        terms, gradients = self._gradients(x, y, weight, size)
        if self.sam_rho:
            # The direction is the whole batch's, whatever the number of replicas.
            # BatchNorm's statistics follow both passes.
            whole = [replica.all_reduce(tf.distribute.ReduceOp.SUM, g) for g in gradients]
            scale = self.sam_rho / tf.maximum(tf.linalg.global_norm(whole), 1e-12)
            steps = [scale * gradient for gradient in whole]
            for value, step in zip(weights, steps, strict=True):
                value.assign(value + step)
            _, gradients = self._gradients(x, y, weight, size)
            for value, step in zip(weights, steps, strict=True):
                value.assign(value - step)
        if self.weight_decay:
            # Through the momentum, as in PyTorch; the decay of Keras' optimizers is decoupled.
            # Added here, as penalties in the loss cost the small estimator a quarter of its step.
            share = self.weight_decay / replica.num_replicas_in_sync
            gradients = [
                gradient + share * value for gradient, value in zip(gradients, weights, strict=True)
            ]
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        if self.averaging_rate is not None:
            rate = self.averaging_rate(tf.cast(self.optimizer.iterations.value, tf.float32))
            for average, value in zip(self.averages, self.averaged, strict=True):
                average.assign(average + rate * (value - average))
        for name, tracker in self.trackers.items():
            tracker.update_state(terms[name], sample_weight=weight)

    def _gradients(
        self, x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor, size: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """The terms of a batch, and this replica's share of the gradients of the global mean."""
        replica = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            terms = self.terms(y, self(x, training=True))
            if self.settings is not None and self.settings.hardest < 1.0:
                chosen = _hardest(terms["dfl"], self.settings.hardest)
                share = replica.all_reduce(
                    tf.distribute.ReduceOp.SUM, tf.reduce_sum(weight * chosen) / size
                )
                # Scaled so that means over the batch are means over what is trained on.
                terms["dfl"] *= chosen / share
                terms["weight"] *= chosen
                terms["weight_squared"] *= chosen
            terms["loss"] = tf.add_n(
                [self.term_weights[name] * terms[name] for name in self.phase.objective]
            )
            # Gradients are summed over replicas: each contributes its examples.
            objective = tf.reduce_sum(weight * terms["loss"]) / size
        return terms, tape.gradient(objective, self.trainable_weights)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Under a strategy Keras averages the replicas' first batches to learn their shape, which
        # fails where they differ in size. Everything here is built already.
        del iterator, data_batch


def _hardest(loss: tf.Tensor, share: float) -> tf.Tensor:
    """1 for the `share` of the global batch with the largest losses, else 0 (OHEM).

    Args:
      loss: `[n]`, this replica's part of the batch.
      share: In (0, 1); at least one example is chosen, and all that tie with the last one.

    Returns:
      `[n]` float32, without a gradient.
    """
    loss = tf.stop_gradient(loss)
    replica = tf.distribute.get_replica_context()
    whole = replica.all_gather(loss, axis=0) if replica.num_replicas_in_sync > 1 else loss
    count = tf.cast(tf.math.ceil(share * tf.cast(tf.size(whole), tf.float64)), tf.int32)
    smallest = tf.sort(whole, direction="DESCENDING")[count - 1]
    return tf.cast(loss >= smallest, tf.float32)
