"""The three `fit()` phases: classifier, estimator, fine-tuning (paper, algorithm 1).

`fit_phase` runs any of them. It resumes at the last finished epoch, bit for
bit: the order of the images is a function of (seed, epoch), and everything else
that changes during training is in the checkpoint.

Losses are sums over examples divided by the number of examples in the *global*
batch, so that the gradients, the reported losses and the histogram of U under a
distribution strategy are those of one device, uneven batches included.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf import losses
from btcp_tf.core.config import PHASES, Config, Phase
from btcp_tf.data.splits import Dataset
from btcp_tf.networks import classifiers, mcp, models
from btcp_tf.training import checkpoints, diagnosis, one_phase
from btcp_tf.training.checkpoints import Row
from btcp_tf.training.inference import Inference
from btcp_tf.training.phase_model import LossSettings, PhaseModel, Recipe


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
    dataset: Dataset,
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
        rows = one_phase.fit_phase(
            model,
            x,
            y,
            config=config,
            epochs=epochs,
            learning_rate=learning_rate,
            checkpoint=folder / f"{name}.npz",
            # The data decides how the first phase goes; later ones start from its outcome.
            basis=checkpoints.weights_id(network) if stages else dataset.fingerprint,
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
        return Answers(probs, mcp.mcp_of(logits), train_probs, mcp.mcp_of(train_logits))

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
        checkpoints.snapshot(network),
        rows,
        {},
        diagnosis.unlearned(classify(encode(validation.images)), validation.labels)
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
        checkpoints.restore(network, stages["classifier"].values)
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
            checkpoints.snapshot(network),
            rows,
            {**facts, "gamma": used[method].gamma, "gamma_uncapped": uncapped},
            diagnosis.collapse(
                estimate(validation_features)[:, 0], rows[-1]["effective_sample_size"]
            ),
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
        checkpoints.restore(network, stages[method].values)
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
            checkpoints.snapshot(network),
            rows,
            {"gamma": used[method].gamma},
            diagnosis.unlearned(now["probs"], validation.labels)
            or diagnosis.collapse(now["uncertainty"][:, 0], rows[-1]["effective_sample_size"]),
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
    network = models.assemble(
        keras.Model(start, keras.ops.cast(start, start.dtype), name="encoder"),
        models.build_classifier(features.shape[1], probs.shape[1]),
        models.build_estimator(features.shape[1], activation=config.estimator_activation),
    )
    estimator = network.get_layer("estimator")
    # Seeds of its own: the caller's random numbers stay what they were.
    for number, layer in enumerate(estimator.layers[1:]):
        draw = keras.initializers.GlorotUniform(config.seed + number)
        layer.kernel.assign(draw(layer.kernel.shape))
    u_true, facts = _targets(probs, labels)
    settings, uncapped = loss_settings(config, Recipe(), u_true)
    model = PhaseModel(PHASES[1], network, settings)
    rows = one_phase.fit_phase(
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
    return estimator, facts | {"collapse": diagnosis.collapse(u, rows[-1]["effective_sample_size"])}


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
