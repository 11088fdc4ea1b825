"""The three `fit()` phases: classifier, estimator, fine-tuning (paper, algorithm 1).

`fit_phase` runs any of them. It resumes at the last finished epoch, bit for
bit: the order of the images is a function of (seed, epoch), and everything else
that changes during training is in the checkpoint.

Losses are sums over examples divided by the number of examples in the *global*
batch, so that the gradients, the reported losses and the histogram of U under a
distribution strategy are those of one device, uneven batches included.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import classifiers, data, losses, methods, networks, plausibility
from btcp_tf.config import PHASES, Config, Phase
from btcp_tf.files import atomic_path
from btcp_tf.progress import Bar

Row = dict[str, Any]


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


class PhaseModel(keras.Model):
    """What one phase trains: some of the sub-models, and the loss terms of the phase.

    Reads batches `(x, y)` or `(x, y, weight)`. With the encoder among the trained parts x are
    uint8 images and y int64 labels; in the estimator phase x are features and y
    is `u_true`. `weight` is what a row counts in the means, see `_split_evenly`; 1 if not given.
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
          settings: Of the estimator's loss, where there is an estimator.
          term_weights: Of the loss terms; 1 where nothing is said.
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
        **arguments: Any,
    ) -> None:
        """As in Keras.

        Args:
          weight_decay: L2 on all that is trained, as PyTorch's SGD applies it.
          sam_rho: Gradients are those at weights that are moved by so much up the gradient
            (sharpness-aware minimization, Foret et al. 2021). 0: off.
          averaging_rate: Number of the step, from 1 → how far the averages move to the weights.
          **arguments: As in Keras.
        """
        self.weight_decay = weight_decay
        self.sam_rho = sam_rho
        self.averaging_rate = averaging_rate
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
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
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
        return {
            name: tracker.result()
            for name, tracker in self.trackers.items()
            if not name.startswith("weight")  # Of no use in a progress bar.
        }

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


class Inference:
    """A model in inference mode over arrays of any length, on one device.

    One device also under a distribution strategy: no replica is ever left with
    an empty batch, and the answers do not depend on the number of devices.
    """

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        spec = tf.TensorSpec((None, *model.inputs[0].shape[1:]), model.inputs[0].dtype)
        self._batch_size = batch_size
        self._call = tf.function(
            lambda x: model(x, training=False), input_signature=[spec], jit_compile=False
        ).get_concrete_function()

    def __call__(self, inputs: np.ndarray, title: str = "") -> Any:
        """Answers of the model for all `inputs`, as NumPy; `title` shows a progress bar."""
        return _in_batches(self._call, inputs, self._batch_size, title)


def _in_batches(call: Callable, inputs: np.ndarray, batch_size: int, title: str) -> Any:
    starts = range(0, len(inputs), batch_size)
    bar = Bar(title, len(starts), shown=bool(title))
    answers = []
    for number, start in enumerate(starts, 1):
        batch = call(tf.constant(inputs[start : start + batch_size]))
        answers.append(tf.nest.map_structure(lambda tensor: tensor.numpy(), batch))
        bar.update(number)
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *answers)


def sample_dropout(
    network: keras.Model,
    images: np.ndarray,
    *,
    passes: int,
    seed: int,
    batch_size: int,
    title: str = "",
) -> np.ndarray:
    """Mean class probabilities of passes with dropout on (Gal and Ghahramani, 2016).

    The network itself takes no part and is left bit-identical, see `networks.dropout_models`.

    Args:
      network: From `networks.assemble`.
      images: `[n, ...]`.
      passes: Stochastic passes for each image, at least 1.
      seed: Of the masks.
      batch_size: Images at once.
      title: Shows a progress bar under this title.

    Returns:
      `[n, k]` float32.
    """
    before, after = networks.dropout_models(network, seed)

    @tf.function(reduce_retracing=True, jit_compile=False)
    def mean(batch: tf.Tensor) -> tf.Tensor:
        fixed = before(batch, training=False)
        total = tf.zeros((tf.shape(batch)[0], after.output_shape[-1]))
        for _ in tf.range(passes):
            total += after(fixed, training=False)
        return total / passes

    return _in_batches(mean, images, batch_size, title)


def make_strategy(name: str, logical_devices: int) -> tf.distribute.Strategy:
    """The distribution strategy of a run; call it before anything else touches TensorFlow.

    Args:
      name: "none" or "mirrored".
      logical_devices: With "mirrored", the number of devices that the CPU is
        split into; 0 takes all GPUs (or the one CPU).

    Raises:
      RuntimeError: If TensorFlow has started already with other devices.
    """
    if name == "none":
        return tf.distribute.get_strategy()
    devices = None
    if logical_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * logical_devices
            )
        except RuntimeError:
            # TensorFlow runs already; that is fine if it has the devices.
            present = len(tf.config.list_logical_devices("CPU"))
            if present < logical_devices:
                raise RuntimeError(
                    f"expected {logical_devices} logical CPU devices, received a process in which "
                    f"TensorFlow runs already with {present}"
                ) from None
        devices = [f"CPU:{number}" for number in range(logical_devices)]
    # The default cross-device operations crash in fit() with steps_per_execution > 1
    # (keras #19246).
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()
    )


def start_devices() -> None:
    """Starts TensorFlow's devices, which it would otherwise do with the first tensor."""
    tf.config.list_logical_devices()


def snapshot(model: keras.Model) -> list[np.ndarray]:
    """Everything that training changes in a model, states of dropout included."""
    return [variable.numpy() for variable in model.variables]


def restore(model: keras.Model, values: Sequence[np.ndarray]) -> None:
    """Puts back what `snapshot` took."""
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


def fit_phase(
    model: PhaseModel,
    x: np.ndarray,
    y: np.ndarray,
    *,
    config: Config,
    epochs: int,
    learning_rate: float,
    checkpoint: Path,
    basis: str,
    former_bases: Sequence[str] = (),
    describe: Callable[[Row], Row],
    before_epoch: Callable[[], None] | None = None,
    after_epoch: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """Trains one phase to its last epoch, from the last finished one if there is a checkpoint.

    Args:
      model: The phase's model, made in the scope of the strategy.
      x: Images or features `[n, ...]`.
      y: Labels int64 `[n]`, or `u_true` float32 `[n]` in the estimator phase.
      config: Batch size, optimizer, schedule, seed and verbosity are read.
      epochs: Epochs of the phase.
      learning_rate: Learning rate of the phase (the peak of a schedule).
      checkpoint: Its `.npz` file, written whole after every epoch.
      basis: Fingerprint of what the phase starts from; a checkpoint of another one is refused.
      former_bases: Other fingerprints of the same, such as those of earlier versions.
      describe: Receives the epoch's row (`epoch`, losses, `seconds`, …) and returns it
        completed, after each epoch and before it counts as finished.
      before_epoch: Called before each epoch's first batch.
      after_epoch: Receives all rows once an epoch's checkpoint is written.

    Returns:
      One row per epoch, those before a resume included.

    Raises:
      ValueError: If the batch cannot be split over the replicas, or the checkpoint is damaged or of
        another network.
      FloatingPointError: If the loss is no longer finite.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    if config.batch_size % replicas:
        raise ValueError(
            f"batch_size: expected a multiple of the {replicas} replicas, received "
            f"{config.batch_size}"
        )
    steps = -(-len(x) // config.batch_size)
    epoch_variable = data.epoch_variable()
    # One order for all methods of a phase: no difference between them comes from the order.
    seed = config.seed * len(PHASES) + PHASES.index(model.phase)
    dataset = data.batches((x, y), config.batch_size, seed=seed, epoch=epoch_variable)
    if replicas > 1:
        dataset = _split_evenly(dataset, replicas)
    # Steps on features are so short that the calls between them would count.
    steps_per_call = config.steps_per_execution * (1 if "encoder" in model.parts else 5)
    with model.distribute_strategy.scope():
        optimizer = _optimizer(config, learning_rate, epochs * steps)
        optimizer.build(model.trainable_variables)
        # A new optimizer and a new compile() for every phase: Keras would go on with the old set
        # of trainable variables. XLA has no kernel for the histogram.
        model.compile(
            optimizer=optimizer,
            weight_decay=config.weight_decay,
            sam_rho=config.sam_rho if "encoder" in model.parts else 0.0,
            averaging_rate=_averaging_rate(config, epochs * steps) if model.averages else None,
            jit_compile=False,
            steps_per_execution=min(steps_per_call, steps),
        )
    known = (basis, *former_bases)
    rows = _load_checkpoint(checkpoint, model, known) if checkpoint.exists() else []
    if config.verbose:
        parts = " + ".join(model.phase.trains)
        done = f", resumed after epoch {len(rows)}" if 0 < len(rows) < epochs else ""
        done = ", finished already" if len(rows) >= epochs else done
        print(f"{checkpoint.stem}: {parts}, {epochs} epochs{done}", flush=True)
    if len(rows) < epochs:
        model.fit(
            dataset,
            epochs=epochs,
            initial_epoch=len(rows),
            shuffle=False,  # The data set shuffles itself.
            verbose=0,
            callbacks=[
                *([_EpochLine(epochs, steps, live=config.verbose == 1)] if config.verbose else []),
                _EveryEpoch(
                    len(x),
                    epoch_variable,
                    rows,
                    lambda: _save_checkpoint(checkpoint, model, rows, basis),
                    describe,
                    before_epoch,
                    after_epoch,
                ),
            ],
        )
    model.take_averages()
    return rows


def _averaging_rate(config: Config, steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """How far averages move to the weights in step t, from 1, of so many."""
    if config.weight_averaging == "swa":
        before = steps * 3 // 4
        return lambda t: 1.0 / tf.maximum(t - before, 1.0)
    # Early on the average must forget the weights that training started from.
    return lambda t: 1.0 - tf.minimum(config.ema_momentum, t / (10.0 + t))


def _split_evenly(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Adds to batches (x, y) the weight of each row, and makes them divisible by `replicas`.

    An odd last batch would leave some replica with fewer rows or none, for which BatchNorm has no
    gradient. Such a batch is repeated once for each replica, with weights 1 / replicas: its mean
    loss, its BatchNorm statistics and its histogram's shares stay what they are.
    """

    def split(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.shape(x)[0]
        copies = tf.where(rows % replicas == 0, 1, replicas)
        weight = tf.fill([rows * copies], 1.0 / tf.cast(copies, tf.float32))
        x, y = (
            tf.tile(tensor, tf.stack([copies, *[1] * (tensor.shape.rank - 1)])) for tensor in (x, y)
        )
        return x, y, weight

    return dataset.map(split)


class _EpochLine(keras.callbacks.Callback):
    """One line for each epoch; Keras' own bar takes two in a terminal of 80 columns."""

    def __init__(self, epochs: int, steps: int, live: bool) -> None:
        super().__init__()
        self._epochs = epochs
        self._steps = steps
        self._live = live and sys.stdout.isatty()

    def on_epoch_begin(self, epoch: int, logs: Row | None = None) -> None:
        self._started = time.monotonic()
        self._title = f"Epoch {epoch + 1}/{self._epochs}"
        self._bar = Bar(self._title, self._steps, shown=self._live)

    def on_train_batch_end(self, batch: int, logs: Row | None = None) -> None:
        if self._bar.due:
            # The last call of the compiled function may count steps that it did not run. The line
            # ends with the epoch, behind what is measured then.
            self._bar.update(min(batch + 1, self._steps - 1), self._words(logs))

    def on_epoch_end(self, epoch: int, logs: Row | None = None) -> None:
        if self._live:
            self._bar.update(self._steps, self._words(logs))
        else:
            seconds = time.monotonic() - self._started
            print(f"{self._title}  {seconds:.0f} s  {self._words(logs)}", flush=True)

    def _words(self, logs: Row | None) -> str:
        logs = logs or {}
        terms = self.model.phase.objective
        names = [*(terms if len(terms) > 1 else ["loss"]), "accuracy"]
        return "  ".join(f"{name} {float(logs[name]):.4f}" for name in names if name in logs)


class _EveryEpoch(keras.callbacks.Callback):
    """Counts the epochs, measures them, and leaves a checkpoint after each."""

    def __init__(
        self,
        examples: int,
        epoch_variable: tf.Variable,
        rows: list[Row],
        save: Callable[[], None],
        describe: Callable[[Row], Row],
        before_epoch: Callable[[], None] | None,
        after_epoch: Callable[[list[Row]], None] | None,
    ) -> None:
        super().__init__()
        self._examples = examples
        self._epoch_variable = epoch_variable
        self._rows = rows
        self._save = save
        self._describe = describe
        self._before_epoch = before_epoch
        self._after_epoch = after_epoch

    def on_epoch_begin(self, epoch: int, logs: Row | None = None) -> None:
        self._started = time.monotonic()
        self._epoch = epoch
        self._epoch_variable.assign(epoch)
        if self._before_epoch is not None:
            self._before_epoch()

    def on_train_batch_end(self, batch: int, logs: Row | None = None) -> None:
        # A mean over the epoch so far: once it is not finite it stays so.
        loss = float((logs or {})["loss"])
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"{self.model.name} phase: expected a finite loss, received {loss} in epoch "
                f"{self._epoch + 1}; a smaller learning rate usually helps"
            )

    def on_epoch_end(self, epoch: int, logs: Row | None = None) -> None:
        logs = {name: float(value) for name, value in (logs or {}).items()}
        row = {
            "phase": self.model.name,
            "epoch": epoch + 1,
            "seconds": time.monotonic() - self._started,
            "learning_rate": float(tf.convert_to_tensor(self.model.optimizer.learning_rate)),
            **{name: logs[name] for name in ("loss", *self.model.phase.objective)},
        }
        if "accuracy" in logs:
            row["train_accuracy"] = logs["accuracy"]
        if "estimator" in self.model.parts:
            # (sum w)^2 / sum w^2 over the epoch's examples, from the two means.
            mean, square = (
                float(self.model.trackers[name].result()) for name in ("weight", "weight_squared")
            )
            row["effective_sample_size"] = self._examples * mean**2 / square if square else 0.0
        with self.model.with_averages():
            self._rows.append(self._describe(row))
        self._save()
        if self._after_epoch is not None:
            self._after_epoch(self._rows)


def _optimizer(config: Config, learning_rate: float, steps: int) -> keras.optimizers.Optimizer:
    rate: Any = learning_rate
    if config.schedule == "one_cycle":
        warmup = max(1, steps // 5)
        rate = keras.optimizers.schedules.CosineDecay(
            learning_rate / 25,
            decay_steps=max(1, steps - warmup),
            warmup_target=learning_rate,
            warmup_steps=warmup,
        )
    if config.optimizer == "adam":
        return keras.optimizers.Adam(rate)
    return _SGD(rate, momentum=config.momentum, name="sgd")


class _SGD(keras.optimizers.SGD):
    """Keras' SGD with momentum in one pass over each variable; bit for bit the same update.

    The several passes of Keras' own cost as much as the estimator's gradients.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if not self.momentum:
            super().update_step(gradient, variable, learning_rate)
            return
        velocity = self.momentums[self._get_variable_index(variable)]
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=velocity.value.handle,
            lr=tf.cast(learning_rate, variable.dtype),
            grad=gradient,
            momentum=tf.constant(self.momentum, variable.dtype),
        )


def _state(model: PhaseModel) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


def _save_checkpoint(path: Path, model: PhaseModel, rows: list[Row], basis: str) -> None:
    arrays = {f"variable{n}": variable.numpy() for n, variable in enumerate(_state(model))}
    with atomic_path(path) as temporary:
        np.savez(temporary, about=np.array(json.dumps({"basis": basis, "rows": rows})), **arrays)


def _load_checkpoint(path: Path, model: PhaseModel, bases: Sequence[str]) -> list[Row]:
    variables = _state(model)
    try:
        with np.load(path) as saved:
            about = json.loads(str(saved["about"]))
            rows, found_basis = about["rows"], about["basis"]
            arrays = [saved[f"variable{n}"] for n in range(len(saved.files) - 1)]
        if not all(row["epoch"] == number for number, row in enumerate(rows, 1)):
            raise ValueError("its epochs are not in order")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("it holds weights that are not finite")
    # A damaged file can raise nearly anything; whatever it is, the file cannot be used.
    except Exception as error:
        raise ValueError(
            f"expected a checkpoint of the phase {model.name}, received {path}, which cannot be "
            f"used ({error or type(error).__name__}); delete it to train this phase anew"
        ) from error
    if found_basis not in bases:
        raise ValueError(
            f"{path}: expected a checkpoint that started from {bases[0]}, received one that "
            f"started from {found_basis}: the data or an earlier phase is not the one it was "
            "trained with; check --data_dir, or delete it to train this phase anew"
        )
    found = [array.shape for array in arrays]
    wanted = [tuple(variable.shape) for variable in variables]
    if found != wanted:
        raise ValueError(
            f"{path}: expected variables of shapes {wanted}, received {found}; it belongs to "
            "another network"
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
    return rows


def collapse(u: np.ndarray, effective_sample_size: float) -> str:
    """Says in words whether an estimator stopped telling examples apart; "" if it did not.

    Args:
      u: Estimates `[n]` on held-out data.
      effective_sample_size: Of its training weights; below 1 only where they are all 0.
    """
    if effective_sample_size < 0.5:
        return (
            "the estimator learned nothing: every weight of the DFL is 0, as all targets lie in "
            "one window; a smaller gamma or a longer classifier phase usually helps"
        )
    dead = float(np.mean(u * (1.0 - u) < 1e-7))
    if dead >= 0.99:
        return (
            f"the estimator is saturated: {dead:.1%} of its outputs are 0 or 1 to within 1e-7, "
            "where the sigmoid no longer learns; a smaller learning rate or gamma usually helps"
        )
    spread = float(u.max() - u.min())
    if spread < 1e-3:
        return (
            f"the estimator collapsed to a constant: all outputs lie within {spread:.1e} of "
            f"{float(np.median(u)):.4f}; more epochs or another learning rate or gamma "
            "usually helps"
        )
    return ""


def constant_class(probs: np.ndarray) -> str:
    """Says in words if a classifier gives one answer to everything; "" if it does not.

    Args:
      probs: `[n, k]` on held-out data.
    """
    predicted = np.unique(probs.argmax(axis=1))
    if len(predicted) > 1 or len(probs) == 1:
        return ""
    return (
        f"the classifier answers class {predicted[0]} to all {len(probs)} validation images: it "
        "did not learn, or diverged; more epochs or another learning rate usually helps"
    )


def unlearned(probs: np.ndarray, labels: np.ndarray) -> str:
    """Says in words if a classifier that was trained here learned nothing; "" if it did.

    Args:
      probs: `[n, k]` on held-out data.
      labels: `[n]`.
    """
    if constant := constant_class(probs):
        return constant
    # As float32 has them, p = 0 for all that is improbable.
    logits = np.log(np.maximum(probs, np.finfo(np.float32).tiny))
    found = plausibility.examine(logits, labels)
    if not found.low <= 0:
        return ""
    return (
        f"the classifier did not learn: right on {found.accuracy:.1%} of {found.n} validation "
        "images, its cross-entropy is not clearly lower than that of the class frequencies (by "
        f"{found.gain:.3g}, interval [{found.low:.3g}, {found.high:.3g}]); more epochs or another "
        "learning rate usually helps"
    )


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a network says during training, for curves and histograms."""

    probs: np.ndarray
    """Validation data, `[n, k]`."""
    uncertainty: np.ndarray
    """The estimator on validation data, `[n]`; MCP while there is only a classifier."""
    train_probs: np.ndarray
    """The first of the training data, `[m, k]`."""
    train_uncertainty: np.ndarray
    """The same on the first of the training data, `[m]`."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A network at the end of one phase.

    Attributes:
      name: "classifier", "<method>" or "<method>_finetuned".
      method: The method whose estimator was trained; "" for the classifier.
      values: Snapshot of the whole network.
      rows: History, one row an epoch.
      facts: What belongs into the results beside the metrics: `gamma`, …
      collapse: Words of `collapse` or `unlearned`, "" where all is well.
    """

    name: str
    method: str
    values: list[np.ndarray]
    rows: list[Row]
    facts: dict[str, Any]
    collapse: str = ""


Describe = Callable[[str, Row, Answers], Row]
"""(stage's name, epoch's row, answers) → the row completed."""


def fit(
    network: keras.Model,
    dataset: data.Dataset,
    config: Config,
    estimators: dict[str, Recipe],
    *,
    folder: Path,
    strategy: tf.distribute.Strategy,
    describe: Describe,
    after_epoch: Callable[[str, list[Row]], None],
) -> dict[str, Stage]:
    """Trains one classifier unless it is given, then every estimator on it, then fine-tunes.

    All frozen stages share the classifier, so that differences between methods
    are not differences between classifiers. Each estimator starts from the same
    weights and sees the same order of images.

    Args:
      network: From `networks.build_model`, or from `networks.adopt` with `config.classifier`; made
        in the scope of `strategy`.
      dataset: Its training and validation images are used.
      config: Settings.
      estimators: Method → what its estimator is trained with.
      folder: Where the checkpoints are and go, one `<stage>.npz` each.
      strategy: From `make_strategy`.
      describe: Completes a row after each epoch.
      after_epoch: Receives (stage, its rows so far) once an epoch's checkpoint
        is written, and once for a stage that was finished before.

    Returns:
      Stages by name, in order of training. The network is left at the last.
    """
    train, validation = dataset.train, dataset.validation
    few = slice(0, len(validation))
    encode = Inference(network.get_layer("encoder"), config.test_batch_size)
    classify = Inference(network.get_layer("classifier"), config.test_batch_size)
    estimate = Inference(network.get_layer("estimator"), config.test_batch_size)
    stages: dict[str, Stage] = {}

    def train_stage(
        name: str,
        phase: Phase,
        x: np.ndarray,
        y: np.ndarray,
        epochs: int,
        learning_rate: float,
        answers: Callable[[], Answers],
        settings: LossSettings | None = None,
        targets: Callable[[], np.ndarray] | None = None,
    ) -> list[Row]:
        with strategy.scope():
            model = PhaseModel(
                phase,
                network,
                settings,
                {"cross_entropy": config.cross_entropy_weight, "dfl": config.dfl_weight}
                if len(phase.objective) > 1
                else None,
                averaging=config.weight_averaging != "none" and "encoder" in phase.trains,
            )
        rows = fit_phase(
            model,
            x,
            y,
            config=config,
            epochs=epochs,
            learning_rate=learning_rate,
            checkpoint=folder / f"{name}.npz",
            # The data decides how the first phase goes; later ones start from its outcome.
            basis=weights_id(network) if stages else dataset.fingerprint,
            former_bases=() if stages else dataset.former_fingerprints,
            describe=lambda row: describe(name, row, answers()),
            before_epoch=(lambda: model.set_targets(targets())) if targets else None,
            after_epoch=lambda rows: after_epoch(name, rows),
        )
        after_epoch(name, rows)
        return rows

    # Phase 1.
    ends = Inference(classifiers.both_ends(network.get_layer("classifier")), config.test_batch_size)

    def classifier_answers() -> Answers:
        logits, probs = ends(encode(validation.images))
        train_logits, train_probs = ends(encode(train.images[few]))
        return Answers(probs, methods.mcp_of(logits), train_probs, methods.mcp_of(train_logits))

    rows = []
    if not config.classifier:
        rows = train_stage(
            "classifier",
            PHASES[0],
            train.images,
            train.labels,
            config.classifier_epochs,
            config.learning_rate,
            classifier_answers,
        )
    stages["classifier"] = Stage(
        "classifier",
        "",
        snapshot(network),
        rows,
        {},
        unlearned(classify(encode(validation.images)), validation.labels)
        if not config.classifier
        else "",
    )
    if not estimators:
        return stages

    # Phase 2. The encoder's output per image is constant now: computed once, trained on often.
    progress = "features of the training images" if config.verbose == 1 else ""
    features = encode(train.images, progress)
    validation_features = encode(validation.images)
    probs = classify(features)
    validation_probs = classify(validation_features)
    u_true, facts = _targets(probs, train.labels)

    def estimator_answers() -> Answers:
        return Answers(
            validation_probs,
            estimate(validation_features)[:, 0],
            probs[few],
            estimate(features[few])[:, 0],
        )

    used = {}
    for method, recipe in estimators.items():
        restore(network, stages["classifier"].values)
        used[method], uncapped = loss_settings(config, recipe, u_true)
        rows = train_stage(
            method,
            PHASES[1],
            features,
            u_true,
            config.estimator_epochs,
            config.estimator_learning_rate,
            estimator_answers,
            used[method],
            lambda: u_true,
        )
        stages[method] = Stage(
            method,
            method,
            snapshot(network),
            rows,
            {**facts, "gamma": used[method].gamma, "gamma_uncapped": uncapped},
            collapse(estimate(validation_features)[:, 0], rows[-1]["effective_sample_size"]),
        )

    # Phase 3.
    infer = Inference(network, config.test_batch_size)

    def finetune_targets() -> np.ndarray:
        fresh = classify(encode(train.images))
        return 1.0 - losses.true_class_probability(fresh, train.labels).numpy()

    def finetune_answers() -> Answers:
        now, before = infer(validation.images), infer(train.images[few])
        return Answers(
            now["probs"], now["uncertainty"][:, 0], before["probs"], before["uncertainty"][:, 0]
        )

    for method in config.finetuned:
        name = f"{method}_finetuned"
        restore(network, stages[method].values)
        rows = train_stage(
            name,
            PHASES[2],
            train.images,
            train.labels,
            config.finetune_epochs,
            config.finetune_learning_rate,
            finetune_answers,
            used[method],
            finetune_targets,
        )
        now = infer(validation.images)
        stages[name] = Stage(
            name,
            method,
            snapshot(network),
            rows,
            {"gamma": used[method].gamma},
            unlearned(now["probs"], validation.labels)
            or collapse(now["uncertainty"][:, 0], rows[-1]["effective_sample_size"]),
        )
    return stages


def fit_estimator(
    features: np.ndarray, probs: np.ndarray, labels: np.ndarray, config: Config, folder: Path
) -> tuple[keras.Model, dict[str, Any]]:
    """Trains BTCP's estimator alone, on what some classifier's features and answers are.

    Args:
      features: `[n, d]`.
      probs: The classifier's, `[n, k]`.
      labels: `[n]`.
      config: Settings.
      folder: Where the checkpoint goes.

    Returns:
      features → u `[n, 1]`, and `Stage.facts` with the words of `collapse`.

    Raises:
      FloatingPointError: If the loss is no longer finite.
    """
    start = keras.Input(features.shape[1:], name="features")
    network = networks.assemble(
        keras.Model(start, keras.ops.cast(start, start.dtype), name="encoder"),
        networks.build_classifier(features.shape[1], probs.shape[1]),
        networks.build_estimator(features.shape[1], activation=config.estimator_activation),
    )
    estimator = network.get_layer("estimator")
    # Seeds of its own: the caller's random numbers stay what they were.
    for number, layer in enumerate(estimator.layers[1:]):
        draw = keras.initializers.GlorotUniform(config.seed + number)
        layer.kernel.assign(draw(layer.kernel.shape))
    u_true, facts = _targets(probs, labels)
    settings, uncapped = loss_settings(config, Recipe(), u_true)
    model = PhaseModel(PHASES[1], network, settings)
    rows = fit_phase(
        model,
        features,
        u_true,
        config=config,
        epochs=config.estimator_epochs,
        learning_rate=config.estimator_learning_rate,
        checkpoint=folder / "btcp.npz",
        basis="",
        describe=lambda row: row,
        before_epoch=lambda: model.set_targets(u_true),
    )
    u = Inference(estimator, config.test_batch_size)(features)[:, 0]
    facts |= {"gamma": settings.gamma, "gamma_uncapped": uncapped}
    return estimator, facts | {"collapse": collapse(u, rows[-1]["effective_sample_size"])}


def _targets(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """U of the training samples, `[n]`, and what results say of them."""
    u_true = 1.0 - losses.true_class_probability(probs, labels).numpy()
    return u_true, {
        "train_accuracy": float(np.mean(probs.argmax(axis=1) == labels)),
        "train_errors": int(np.sum(probs.argmax(axis=1) != labels)),
        "u_true_mean": float(np.mean(u_true, dtype=np.float64)),
        "u_true_variance": float(np.var(u_true, dtype=np.float64)),
    }


def loss_settings(config: Config, recipe: Recipe, u_true: np.ndarray) -> tuple[LossSettings, float]:
    """The loss of one estimator for training targets U, and its gamma before the cap.

    Args:
      config: `gamma`, `gamma_max`, `epsilon`, `density`, `scope`, `fine_bins`.
      recipe: Of the estimator.
      u_true: U, `[n]`.
    """
    if recipe.gamma is None and config.gamma == "auto":
        gamma, uncapped = losses.auto_gamma(u_true, config.gamma_max)
    else:
        gamma = uncapped = float(config.gamma) if recipe.gamma is None else recipe.gamma
    bins = losses.FIXED_BINS if config.density == "bins" else config.fine_bins
    settings = LossSettings(
        gamma, config.epsilon, config.density, config.scope, bins, recipe.hardest
    )
    return settings, uncapped


def weights_id(
    network: keras.Model, parts: Sequence[str] = ("encoder", "classifier", "estimator")
) -> str:
    """12 hexadecimal digits of the SHA-256 of the weights of some sub-models.

    Of the encoder and the classifier it is the classifier's id: rows of one id are of the same
    classifier, and differences between them are paired.
    """
    digest = hashlib.sha256()
    for part in parts:
        for weights in network.get_layer(part).get_weights():
            digest.update(weights.tobytes())
    return digest.hexdigest()[:12]
