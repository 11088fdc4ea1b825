"""One phase of training: `fit` with its callbacks, optimizer and checkpoints."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.core import interrupt
from btcp_tf.core.config import PHASES
from btcp_tf.core.progress import Bar
from btcp_tf.data import batching
from btcp_tf.training import checkpoints
from btcp_tf.training.checkpoints import Row
from btcp_tf.training.phase_model import Loop, PhaseModel
from btcp_tf.training.settings import TrainingSettings

_WORTH_COMPILING = 2000
"""Steps of a phase; XLA takes half a second to compile a loop, and saves a third of a step."""


def fit_phase(
    model: PhaseModel,
    x: np.ndarray,
    y: np.ndarray,
    *,
    settings: TrainingSettings,
    epochs: int,
    learning_rate: float,
    checkpoint: Path,
    basis: str,
    former_bases: Sequence[str] = (),
    describe: Callable[[Row], Row] = lambda row: row,
    before_epoch: Callable[[], None] | None = None,
    after_epoch: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """Trains one phase to its last epoch, from the last finished one if there is a checkpoint.

    Args:
      model: The phase's model, made in the scope of the strategy.
      x: Images or features `[n, ...]`.
      y: Labels int64 `[n]`, or `u_true` float32 `[n]` in the estimator phase.
      settings: Batch size, optimizer, schedule, seed and verbosity.
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
    steps = -(-len(x) // settings.batch_size)
    epoch_variable = batching.epoch_variable()
    loop = _loop(model, x, y, settings, steps * epochs, epoch_variable)
    if loop is None:
        batches = _batches(model, x, y, settings, epoch_variable)
    else:
        batches = batching.plain(tf.data.Dataset.range(1))
    _compile(model, settings, learning_rate, steps, epochs, loop)
    known = (basis, *former_bases)
    rows: list[Row] = []
    versions: checkpoints.Versions = {}
    if checkpoint.exists():
        rows, versions = checkpoints.load_checkpoint(checkpoint, model, known)

    def start_epoch(epoch: int) -> None:
        epoch_variable.assign(epoch)
        if before_epoch is not None:
            before_epoch()

    def finish_epoch(row: Row) -> None:
        with model.with_averages():
            rows.append(describe(row))
        checkpoints.save_checkpoint(checkpoint, model, rows, basis, versions)
        if after_epoch is not None:
            after_epoch(rows)
        interrupt.step_done()

    callbacks: list[keras.callbacks.Callback] = [_EveryEpoch(len(x), start_epoch, finish_epoch)]
    if settings.verbose:
        _announce(checkpoint.stem, model.phase.trains, len(rows), epochs)
        callbacks.insert(0, _EpochLine(epochs, len(batches), live=settings.verbose == 1))
    if len(rows) < epochs:
        with interrupt.by_step():
            model.fit(
                batches,
                epochs=epochs,
                initial_epoch=len(rows),
                shuffle=False,  # The data set shuffles itself.
                verbose=0,
                callbacks=callbacks,
            )
    model.take_averages()
    return rows


def _loop(
    model: PhaseModel,
    x: np.ndarray,
    y: np.ndarray,
    settings: TrainingSettings,
    steps: int,
    epoch: tf.Variable,
) -> Loop | None:
    """The loop of an epoch on features in memory, on one device; else None.

    Steps on features are so short that handing over each batch takes a good part of their time.

    Args:
      model: The phase's model.
      x: Features `[n, d]`, or images.
      y: Targets `[n]`.
      settings: Batch size and seed.
      steps: Those of all epochs.
      epoch: From `batching.epoch_variable`.
    """
    on_features = "encoder" not in model.parts and x.ndim == 2 and batching.in_memory(x)
    if not on_features or model.distribute_strategy is not tf.distribute.get_strategy():
        return None
    features, targets = tf.constant(x), tf.constant(y)
    seed = _order_seed(model, settings)
    # XLA has no kernel for the histogram, which a step computes where the density is the batch's.
    without_histogram = model.settings is not None and model.settings.scope == "dataset"
    return Loop(
        lambda: (features, targets, batching.shuffled(len(x), seed, epoch)),
        settings.batch_size,
        fused=without_histogram and steps >= _WORTH_COMPILING,
    )


def _order_seed(model: PhaseModel, settings: TrainingSettings) -> int:
    """One order for all methods of a phase: no difference between them comes from the order."""
    return settings.seed * len(PHASES) + PHASES.index(model.phase)


def _batches(
    model: PhaseModel,
    x: np.ndarray,
    y: np.ndarray,
    settings: TrainingSettings,
    epoch: tf.Variable,
) -> tf.data.Dataset:
    """Shuffled batches of (x, y), split evenly over the model's replicas."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if settings.batch_size % replicas:
        raise ValueError(
            f"batch_size: expected a multiple of the {replicas} replicas, received "
            f"{settings.batch_size}"
        )
    seed = _order_seed(model, settings)
    dataset = batching.batches((x, y), settings.batch_size, seed=seed, epoch=epoch)
    return _split_evenly(dataset, replicas) if replicas > 1 else dataset


def _compile(
    model: PhaseModel,
    settings: TrainingSettings,
    learning_rate: float,
    steps: int,
    epochs: int,
    loop: Loop | None,
) -> None:
    """Gives a model its optimizer; `steps` are those of one epoch."""
    trains_encoder = "encoder" in model.parts
    # Steps on features are so short that the calls between them would count.
    steps_per_call = settings.steps_per_execution * (1 if trains_encoder else 5)
    with model.distribute_strategy.scope():
        optimizer = _optimizer(settings, learning_rate, epochs * steps)
        optimizer.build(model.trainable_variables)
        # A new optimizer and a new compile() for every phase: Keras would go on with the old set
        # of trainable variables. XLA is slower than oneDNN for convolutions.
        model.compile(
            optimizer=optimizer,
            weight_decay=settings.weight_decay,
            sam_rho=settings.sam_rho if trains_encoder else 0.0,
            averaging_rate=_averaging_rate(settings, epochs * steps) if model.averages else None,
            jit_compile=False,
            loop=loop,
            steps_per_execution=min(steps_per_call, steps) if loop is None else 1,
        )


def _announce(stage: str, parts: Sequence[str], done: int, epochs: int) -> None:
    resumed = f", resumed after epoch {done}" if done else ""
    state = ", finished already" if done >= epochs else resumed
    count = f"{epochs} epoch{'s' * (epochs != 1)}"
    print(f"{stage}: training {' + '.join(parts)}, {count}{state}", flush=True)


def _averaging_rate(settings: TrainingSettings, steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """The share by which averages move to the weights in step t, which counts from 1."""
    if settings.weight_averaging == "swa":
        before = steps * 3 // 4
        return lambda t: 1.0 / tf.maximum(t - before, 1.0)
    # Early on the average must forget the weights that training started from.
    return lambda t: 1.0 - tf.minimum(settings.ema_momentum, t / (10.0 + t))


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
            self._bar.update(min(batch + 1, self._steps - 1), self._losses(logs))

    def on_epoch_end(self, epoch: int, logs: Row | None = None) -> None:
        if self._live:
            self._bar.update(self._steps, self._losses(logs))
        else:
            seconds = time.monotonic() - self._started
            print(f"{self._title}  {seconds:.0f} s  {self._losses(logs)}", flush=True)

    def _losses(self, logs: Row | None) -> str:
        logs = logs or {}
        terms = self.model.phase.objective
        names = [*(terms if len(terms) > 1 else ["loss"]), "accuracy"]
        return "  ".join(f"{name} {float(logs[name]):.4f}" for name in names if name in logs)


class _EveryEpoch(keras.callbacks.Callback):
    """Measures each epoch and stops where the loss is not finite.

    Args:
      examples: Rows of the training data.
      start_epoch: Receives the number of the epoch, from 0.
      finish_epoch: Receives the epoch's row.
    """

    def __init__(
        self,
        examples: int,
        start_epoch: Callable[[int], None],
        finish_epoch: Callable[[Row], None],
    ) -> None:
        super().__init__()
        self._examples = examples
        self._start_epoch = start_epoch
        self._finish_epoch = finish_epoch

    def on_epoch_begin(self, epoch: int, logs: Row | None = None) -> None:
        self._started = time.monotonic()
        self._epoch = epoch
        self._start_epoch(epoch)

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
        self._finish_epoch(row)


def _optimizer(
    settings: TrainingSettings, learning_rate: float, steps: int
) -> keras.optimizers.Optimizer:
    rate: Any = learning_rate
    if settings.schedule == "one_cycle":
        warmup = max(1, steps // 5)
        rate = keras.optimizers.schedules.CosineDecay(
            learning_rate / 25,
            decay_steps=max(1, steps - warmup),
            warmup_target=learning_rate,
            warmup_steps=warmup,
        )
    if settings.optimizer == "adam":
        return keras.optimizers.Adam(rate)
    return _SGD(rate, momentum=settings.momentum, name="sgd")


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
