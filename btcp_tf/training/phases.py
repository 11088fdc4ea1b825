"""The paper's algorithm 1: phases 1 (classifier), 2 (estimator) and 3 (fine-tuning).

`fit` runs them in this order. Each resumes after its last finished epoch, bit for bit: the order of
the images is a function of (seed, epoch), and everything else that changes during training is in
the checkpoint.

Losses are sums over examples divided by the number of examples in the *global* batch. So gradients,
reported losses and the histogram of U under a distribution strategy are those of one device, uneven
batches included.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import losses
from btcp_tf.core.config import PHASES, Phase
from btcp_tf.core.rows import in_pieces
from btcp_tf.data.splits import Dataset
from btcp_tf.networks import classifiers, mcp, models
from btcp_tf.training import checkpoints, diagnosis, one_phase
from btcp_tf.training.checkpoints import Row
from btcp_tf.training.inference import Inference
from btcp_tf.training.phase_model import LossSettings, PhaseModel, Recipe
from btcp_tf.training.settings import TrainingSettings


@dataclasses.dataclass(frozen=True)
class EpochOutputs:
    """What a network answers after an epoch, for curves and histograms."""

    probs: np.ndarray
    """Validation data, `[n, k]`."""
    uncertainty: np.ndarray
    """The estimator on validation data, `[n]`; MCP while there is only a classifier."""
    train_probs: np.ndarray
    """The first m = min(n, training images) of the training data, `[m, k]`."""
    train_uncertainty: np.ndarray
    """The same for the uncertainty, `[m]`."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A network at the end of one phase."""

    name: str
    """"classifier", "<method>" or "<method>_finetuned"."""
    method: str
    """The method whose estimator was trained; "" for the classifier."""
    values: list[np.ndarray]
    """Snapshot of the whole network, from `checkpoints.snapshot`."""
    rows: list[Row]
    """History, one row an epoch."""
    facts: dict[str, Any]
    """What belongs into the results beside the metrics: `gamma`, `train_errors`, …"""
    collapse: str = ""
    """Why the training failed (see `diagnosis`); "" if it did not."""
    loss: LossSettings | None = None
    """The estimator's loss; None for the classifier."""


Describe = Callable[[str, Row, EpochOutputs], Row]
"""(stage's name, epoch's row, outputs after the epoch) → the row completed."""


def fit(
    network: keras.Model,
    dataset: Dataset,
    settings: TrainingSettings,
    estimators: dict[str, Recipe],
    *,
    adopted: bool = False,
    folder: Path,
    strategy: tf.distribute.Strategy,
    describe: Describe | None = None,
    after_epoch: Callable[[str, list[Row]], None] = lambda stage, rows: None,
) -> dict[str, Stage]:
    """Trains a classifier, an estimator on it for each method, and fine-tunes some of them.

    All estimators share the classifier of phase 1, so that differences between methods are not
    differences between classifiers. Each starts from the same weights and sees the same order of
    images.

    Args:
      network: From `networks.build_model` or `networks.adopt`; made in the scope of `strategy`.
      dataset: Its training and validation images are used.
      settings: Settings of the phases.
      estimators: Method → what its estimator is trained with; empty: phase 1 only.
      adopted: Whether the classifier is trained already, which leaves out phase 1.
      folder: Where the checkpoints are and go, one `<stage>.npz` each.
      strategy: From `make_strategy`.
      describe: Completes a row after each epoch; None: rows stay as they are.
      after_epoch: Receives (stage, its rows so far) once an epoch's checkpoint is written, and once
        for a stage that was finished before.

    Returns:
      Stages by name, in order of training. The network is left at the last.
    """
    training = _Training(network, dataset, settings, folder, strategy, describe, after_epoch)
    stages = {"classifier": _classifier_phase(training, adopted)}
    if not estimators:
        return stages
    images = f"{len(dataset.train):,} training images"
    title = f"computing the features of {images}" if settings.verbose == 1 else ""
    features = _Features(
        training.encode(dataset.train.images, title), training.encode(dataset.validation.images)
    )
    for method, recipe in estimators.items():
        stages[method] = _estimator_phase(training, stages["classifier"], features, method, recipe)
    for method in settings.finetuned:
        stage = _finetuning_phase(training, stages[method])
        stages[stage.name] = stage
    return stages


@dataclasses.dataclass(frozen=True)
class _Features:
    """Outputs of the encoder in inference mode, `[n, d]`."""

    train: np.ndarray
    validation: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Training:
    """What all phases have in common."""

    network: keras.Model
    dataset: Dataset
    settings: TrainingSettings
    folder: Path
    strategy: tf.distribute.Strategy
    describe: Describe | None
    after_epoch: Callable[[str, list[Row]], None]

    @functools.cached_property
    def encode(self) -> Inference:
        """Images → features `[n, d]`."""
        return Inference(self.network.get_layer("encoder"), self.settings.test_batch_size)

    @functools.cached_property
    def classify(self) -> Inference:
        """Features → [logits, probs]."""
        ends = classifiers.both_ends(self.network.get_layer("classifier"))
        return Inference(ends, self.settings.test_batch_size)

    @functools.cached_property
    def estimate(self) -> Inference:
        """Features → uncertainty `[n, 1]`."""
        return Inference(self.network.get_layer("estimator"), self.settings.test_batch_size)

    def outputs(self, features: _Features | None, *, of_mcp: bool = False) -> EpochOutputs:
        """What the network answers now.

        Args:
          features: Outputs of the frozen encoder; None: they are computed anew.
          of_mcp: Whether the uncertainty is MCP, not the estimator's.
        """
        few = len(self.dataset.validation)
        if features is None:
            train = self.encode(self.dataset.train.images[:few])
            features = _Features(train, self.encode(self.dataset.validation.images))
        values = []
        for part in (features.validation, features.train[:few]):
            logits, probs = self.classify(part)
            values += [probs, mcp.mcp_of(logits) if of_mcp else self.estimate(part)[:, 0]]
        return EpochOutputs(*values)

    def train(
        self,
        name: str,
        phase: Phase,
        x: np.ndarray,
        y: np.ndarray,
        *,
        loss: LossSettings | None = None,
        targets: Callable[[], np.ndarray] | None = None,
        features: _Features | None = None,
    ) -> list[Row]:
        """Trains a stage, and returns a row for each epoch; see `one_phase.fit_phase`.

        Args:
          name: Name of the stage, and of its checkpoint.
          phase: One of `PHASES`.
          x: Images, or features `[n, d]`.
          y: Labels, or targets `[n]`.
          loss: The estimator's loss.
          targets: Computes U before each epoch.
          features: Where the encoder is frozen, its outputs.
        """
        rate_name = "learning_rate" if phase == PHASES[0] else f"{phase.name}_learning_rate"
        model = self._phase_model(phase, loss)

        def describe(row: Row) -> Row:
            if self.describe is None:
                return row
            return self.describe(name, row, self.outputs(features, of_mcp=phase == PHASES[0]))

        # The data decides how the first phase goes; later ones start from its weights.
        basis, former_bases = self.dataset.fingerprint, self.dataset.former_fingerprints
        if phase != PHASES[0]:
            basis, former_bases = checkpoints.weights_id(self.network), ()
        rows = one_phase.fit_phase(
            model,
            x,
            y,
            settings=self.settings,
            epochs=getattr(self.settings, f"{phase.name}_epochs"),
            learning_rate=getattr(self.settings, rate_name),
            checkpoint=self.folder / f"{name}.npz",
            basis=basis,
            former_bases=former_bases,
            describe=describe,
            before_epoch=(lambda: model.set_targets(targets())) if targets else None,
            after_epoch=lambda rows: self.after_epoch(name, rows),
        )
        self.after_epoch(name, rows)
        return rows

    def _phase_model(self, phase: Phase, loss: LossSettings | None) -> PhaseModel:
        settings = self.settings
        terms = {"cross_entropy": settings.cross_entropy_weight, "dfl": settings.dfl_weight}
        with self.strategy.scope():
            return PhaseModel(
                phase,
                self.network,
                loss,
                terms if len(phase.objective) > 1 else None,
                averaging=settings.weight_averaging != "none" and "encoder" in phase.trains,
            )


def _classifier_phase(training: _Training, adopted: bool) -> Stage:
    """Phase 1: encoder and classifier, by cross-entropy."""
    rows, problem = [], ""
    if not adopted:
        train, validation = training.dataset.train, training.dataset.validation
        rows = training.train("classifier", PHASES[0], train.images, train.labels)
        _, probs = training.classify(training.encode(validation.images))
        problem = diagnosis.unlearned(probs, validation.labels)
    values = checkpoints.snapshot(training.network)
    return Stage("classifier", "", values, rows, {}, problem)


def _estimator_phase(
    training: _Training, classifier: Stage, features: _Features, method: str, recipe: Recipe
) -> Stage:
    """Phase 2: the estimator, by the DFL, on the features of the frozen encoder."""
    network, labels = training.network, training.dataset.train.labels
    checkpoints.restore(network, classifier.values)
    _, probs = training.classify(features.train)
    u_true = _u_true(probs, labels)
    loss, uncapped = loss_settings(training.settings, recipe, u_true)
    rows = training.train(
        method,
        PHASES[1],
        features.train,
        u_true,
        loss=loss,
        targets=lambda: u_true,
        features=features,
    )
    facts = _facts(probs, labels, u_true, loss, uncapped)
    u = training.estimate(features.validation)[:, 0]
    problem = diagnosis.collapse(u, rows[-1]["effective_sample_size"])
    return Stage(method, method, checkpoints.snapshot(network), rows, facts, problem, loss)


def _finetuning_phase(training: _Training, estimator: Stage) -> Stage:
    """Phase 3: everything, by cross-entropy + DFL."""
    train, validation = training.dataset.train, training.dataset.validation
    name, loss = f"{estimator.method}_finetuned", estimator.loss
    assert loss is not None, "phase 2 has left its loss"
    checkpoints.restore(training.network, estimator.values)

    def targets() -> np.ndarray:
        _, probs = training.classify(training.encode(train.images))
        return _u_true(probs, train.labels)

    rows = training.train(name, PHASES[2], train.images, train.labels, loss=loss, targets=targets)
    outputs = training.outputs(None)
    problem = diagnosis.unlearned(outputs.probs, validation.labels) or diagnosis.collapse(
        outputs.uncertainty, rows[-1]["effective_sample_size"]
    )
    values, facts = checkpoints.snapshot(training.network), {"gamma": loss.gamma}
    return Stage(name, estimator.method, values, rows, facts, problem, loss)


def _u_true(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The targets, `[n]`."""
    return in_pieces(lambda p, y: 1.0 - losses.true_class_probability(p, y).numpy(), probs, labels)


def fit_estimator(
    features: np.ndarray,
    probs: np.ndarray,
    labels: np.ndarray,
    settings: TrainingSettings,
    folder: Path,
) -> tuple[keras.Model, dict[str, Any]]:
    """Phase 2 alone: trains BTCP's estimator on the features and probabilities of any classifier.

    Args:
      features: `[n, d]`.
      probs: The classifier's probabilities, `[n, k]`.
      labels: True classes, `[n]`.
      settings: Settings of the phase.
      folder: Where the checkpoint goes.

    Returns:
      The estimator, features → u `[n, 1]`; and `Stage.facts` with `collapse`.

    Raises:
      FloatingPointError: If the loss is no longer finite.
    """
    start = keras.Input(features.shape[1:], name="features")
    network = models.assemble(
        keras.Model(start, keras.ops.cast(start, start.dtype), name="encoder"),
        models.build_classifier(features.shape[1], probs.shape[1]),
        models.build_estimator(features.shape[1], activation=settings.estimator_activation),
    )
    estimator = network.get_layer("estimator")
    # Seeds of its own: the caller's random numbers stay what they were.
    for number, layer in enumerate(estimator.layers[1:]):
        draw = keras.initializers.GlorotUniform(settings.seed + number)
        layer.kernel.assign(draw(layer.kernel.shape))
    u_true = _u_true(probs, labels)
    loss, uncapped = loss_settings(settings, Recipe(), u_true)
    model = PhaseModel(PHASES[1], network, loss)
    rows = one_phase.fit_phase(
        model,
        features,
        u_true,
        settings=settings,
        epochs=settings.estimator_epochs,
        learning_rate=settings.estimator_learning_rate,
        checkpoint=folder / "btcp.npz",
        basis="",
        before_epoch=lambda: model.set_targets(u_true),
    )
    u = Inference(estimator, settings.test_batch_size)(features)[:, 0]
    facts = _facts(probs, labels, u_true, loss, uncapped)
    return estimator, facts | {"collapse": diagnosis.collapse(u, rows[-1]["effective_sample_size"])}


def _facts(
    probs: np.ndarray,
    labels: np.ndarray,
    u_true: np.ndarray,
    loss: LossSettings,
    uncapped: float,
) -> dict[str, Any]:
    """What the results say of the training samples and of gamma; see `Stage.facts`."""
    is_error = probs.argmax(axis=1) != labels
    return {
        "train_accuracy": float(np.mean(~is_error)),
        "train_errors": int(np.sum(is_error)),
        "u_true_mean": float(np.mean(u_true, dtype=np.float64)),
        "u_true_variance": float(np.var(u_true, dtype=np.float64)),
        "gamma": loss.gamma,
        "gamma_uncapped": uncapped,
    }


def loss_settings(
    settings: TrainingSettings, recipe: Recipe, u_true: np.ndarray
) -> tuple[LossSettings, float]:
    """The loss of one estimator for training targets U, and its gamma before the cap.

    Args:
      settings: `gamma`, `gamma_max`, `epsilon`, `density`, `scope`, `fine_bins`.
      recipe: What sets this estimator apart.
      u_true: U, `[n]`.
    """
    if recipe.gamma is None and settings.gamma == "auto":
        gamma, uncapped = losses.auto_gamma(u_true, settings.gamma_max)
    else:
        gamma = uncapped = float(settings.gamma) if recipe.gamma is None else recipe.gamma
    bins = losses.FIXED_BINS if settings.density == "bins" else settings.fine_bins
    loss = LossSettings(
        gamma, settings.epsilon, settings.density, settings.scope, bins, recipe.hardest
    )
    return loss, uncapped
