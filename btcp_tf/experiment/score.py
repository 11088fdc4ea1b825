"""Scores of every method on every part of the data."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core.config import Config
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.data.splits import Dataset
from btcp_tf.evaluation import explanations
from btcp_tf.evaluation.explanations import EXPLANATIONS_FILE, Explanations
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.experiment.values import AllPredictions, Decision, check_finite
from btcp_tf.methods.outputs import Outputs, Reference, Score
from btcp_tf.methods.registry import METHODS
from btcp_tf.methods.residual_scores import ResidualScore
from btcp_tf.networks.mcp import mcp_of

if TYPE_CHECKING:
    import keras

    from btcp_tf.training.phases import Stage


class Scorer:
    """All methods of a run, fitted on its training and validation data, ready to score images."""

    def __init__(
        self,
        network: "keras.Model",
        stages: dict[str, "Stage"],
        members: list[list[np.ndarray]],
        folds: list[tuple[list[np.ndarray], np.ndarray]],
        dataset: Dataset,
        config: Config,
    ) -> None:
        """
        Args:
          network: Takes on the weights of one stage after the other.
          stages: From `training.fit`.
          members: Further classifiers of the ensemble, from `train_members`.
          folds: Those of `train_folds`.
          dataset: The run's.
          config: Settings.
        """
        from btcp_tf.networks import models
        from btcp_tf.networks.classifiers import last_dense
        from btcp_tf.training import checkpoints
        from btcp_tf.training.inference import Inference

        self._network, self._stages, self._members = network, stages, members
        self._config = config
        self._infer = Inference(models.outputs_model(network), config.test_batch_size)
        self._view = None
        if any(name.startswith("residual") for name in config.method):
            self._view = _view_of(dataset.train.images, config.test_batch_size)
        self._estimate = Inference(network.get_layer("estimator"), config.test_batch_size)
        apart, copies = [], []
        for values, unseen in folds:
            checkpoints.restore(network, values)
            whole = self.outputs(dataset.train.images, dataset.train.labels)
            apart.append((whole[~unseen], whole[unseen]))
            copies.append(self._copies(dataset.train.images[unseen], dataset.train.labels[unseen]))
        checkpoints.restore(network, stages["classifier"].values)
        validation = dataset.validation
        copies.insert(0, self._copies(validation.images, validation.labels))
        kernel, bias = last_dense(network.get_layer("classifier"))
        self.reference = Reference(
            train=self.outputs(dataset.train.images, dataset.train.labels),
            validation=self._learned(validation.images, validation.labels),
            kernel=kernel,
            bias=bias,
            seed=config.seed,
            alpha=config.trust_alpha,
            neighbors=config.trust_neighbors,
            folds=tuple(apart),
            copies=tuple(copies),
            distilled=config.residual_distilled,
            verbose=int(config.verbose == 1),
        )

    @functools.cached_property
    def _scores(self) -> dict[str, Score]:
        return {
            name: prepare(self.reference)
            for name in self._config.method
            if (prepare := METHODS[name].prepare) is not None
        }

    def mcp(self, images: np.ndarray) -> np.ndarray | None:
        """u of MCP, of the classifier as phase 1 left it; None where its rows have it anyhow."""
        from btcp_tf.training import checkpoints

        if "mcp" in self._config.method:
            return None
        checkpoints.restore(self._network, self._stages["classifier"].values)
        return mcp_of(self._infer(images)["logits"])

    def stage_of(self, predictor: str, method: str) -> "Stage":
        """The stage whose weights make a method's u. What is not trained reads the classifier as
        phase 1 left it."""
        name = predictor if predictor != "frozen" else method
        return self._stages.get(name, self._stages["classifier"])

    def collapse(self, predictor: str, method: str) -> str:
        """What is wrong with the networks behind a method's u; "": nothing."""
        of_classifier = self._stages["classifier"].collapse
        return of_classifier or self.stage_of(predictor, method).collapse

    def exported_model(self, predictor: str, method: str) -> "keras.Model":
        """Images → probs and u of the method; it shares the run's network, which takes on its
        weights."""
        from btcp_tf.methods import residual_fit
        from btcp_tf.methods.residual_choice import MCP
        from btcp_tf.training import checkpoints

        checkpoints.restore(self._network, self.stage_of(predictor, method).values)
        if method == "mcp":
            return residual_fit.residual_model(self._network, {}, MCP)
        if isinstance(score := self._scores.get(method), ResidualScore):
            return residual_fit.residual_model(self._network, score.readers, score.weights)
        return self._network

    def __call__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        *,
        sampled: bool = True,
        title: str = "",
    ) -> dict[str, Predictions]:
        """Predictions by predictor.

        Args:
          images: `[n, ...]` uint8.
          labels: `[n]`, or None where no class is right.
          sampled: Whether methods that need many passes take part.
          title: Shows progress bars of them under this title.
        """
        from btcp_tf.training import checkpoints, inference

        checkpoints.restore(self._network, self._stages["classifier"].values)
        outputs = self.outputs(images, labels)
        means = {}
        for name in self._config.method if sampled else ():
            if METHODS[name].samples == "dropout":
                means[name] = inference.sample_dropout(
                    self._network,
                    images,
                    passes=self._config.mc_passes,
                    seed=self._config.seed,
                    batch_size=min(256, self._config.test_batch_size),
                    title=title and f"{title}: {self._config.mc_passes} passes with dropout",
                )
            elif METHODS[name].samples == "ensemble":
                means[name] = self.ensemble_mean(images, outputs.probs)
        outputs = dataclasses.replace(
            outputs, sampled={METHODS[name].samples: mean for name, mean in means.items()}
        )
        columns = dict(self._columns(outputs, sampled))
        found = {"frozen": Predictions(labels, outputs.probs, outputs.predicted, columns)}
        for name, mean in means.items():
            # It predicts with its own mean, which is another classifier.
            found[name] = Predictions(labels, mean, mean.argmax(axis=1), {name: columns[name]})
        for method in self._config.finetuned:
            stage = self._stages[f"{method}_finetuned"]
            checkpoints.restore(self._network, stage.values)
            outputs = self.outputs(images, labels)
            columns = {
                "mcp": mcp_of(outputs.logits),
                method: self._estimate(outputs.features)[:, 0],
            }
            found[stage.name] = Predictions(labels, outputs.probs, outputs.predicted, columns)
        return found

    def held_out_u(self, method: str) -> np.ndarray | None:
        """Cross-fitted u of the validation images; None for methods that were not fitted on
        them."""
        score = self._scores.get(method)
        return score.held_out_u if isinstance(score, ResidualScore) else None

    def contributions(
        self, method: str, images: np.ndarray
    ) -> tuple[tuple[str, ...], np.ndarray] | None:
        """What moved logit(u) of each image: names and `[n, parts]`; None where u is not a sum."""
        from btcp_tf.training import checkpoints

        score = self._scores.get(method)
        if not isinstance(score, ResidualScore):
            return None
        checkpoints.restore(self._network, self._stages["classifier"].values)
        return score.contributions(self.outputs(images, None))

    def outputs(self, images: np.ndarray, labels: np.ndarray | None) -> Outputs:
        """What the network answers to images `[n, ...]`; FloatingPointError unless finite."""
        found = self._infer(images)
        check_finite(*found.values())
        view = None if self._view is None else self._view(images)
        return Outputs(**found, labels=labels, view=view)

    def _learned(self, images: np.ndarray, labels: np.ndarray) -> Outputs:
        """What `residual` learns from, with the ensemble's answers if it learns these."""
        found = self.outputs(images, labels)
        if not self._config.residual_distilled:
            return found
        mean = self.ensemble_mean(images, found.probs)
        return dataclasses.replace(found, sampled={"ensemble": mean})

    def _copies(self, images: np.ndarray, labels: np.ndarray) -> tuple[Outputs, ...]:
        """Answers to corrupted images, for `residual` to learn from."""
        # Not the noise that the test images get.
        seed = self._config.seed + 1_000_003
        return tuple(
            self._learned(CORRUPTIONS[name](images, 1, seed), labels)
            for name in self._config.residual_copies
        )

    def _columns(self, outputs: Outputs, sampled: bool) -> Iterator[tuple[str, np.ndarray]]:
        from btcp_tf.training import checkpoints

        for name in self._config.method:
            method = METHODS[name]
            if (method.samples and not sampled) or (method.uses_labels and outputs.labels is None):
                continue
            if name in self._scores:
                yield name, self._scores[name](outputs)
            else:
                # A threshold of its own makes a method of another's estimator.
                checkpoints.restore(self._network, self._stages[method.column_of or name].values)
                yield name, self._estimate(outputs.features)[:, 0]

    def ensemble_mean(self, images: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Mean probabilities `[n, k]` of the network, whose own they are, and the members."""
        from btcp_tf.training import checkpoints

        total = own.copy()
        for values in self._members:
            checkpoints.restore(self._network, values)
            total += self._infer(images)["probs"]
        checkpoints.restore(self._network, self._stages["classifier"].values)
        return total / (1 + len(self._members))


def _view_of(images: np.ndarray, batch_size: int) -> "Callable[[np.ndarray], np.ndarray] | None":
    """What `residual` sees of such images, whatever the classifier makes of them."""
    import keras

    from btcp_tf.networks import evidence_layers
    from btcp_tf.networks.evidence_layers import View
    from btcp_tf.training.inference import Inference

    if not evidence_layers.is_image(images.shape[1:]):
        return None
    inputs = keras.Input(images.shape[1:], dtype=images.dtype.name)
    return Inference(keras.Model(inputs, View()(inputs)), batch_size)


def predict_all(
    scorer: Scorer, dataset: Dataset, others: dict[str, np.ndarray], *, verbose: int = 0
) -> AllPredictions:
    """Scores validation, calibration and test images, and those of `load_others`."""
    predictions: AllPredictions = {}
    for split in ("validation", "calibration", "test"):
        part = getattr(dataset, split)
        title = split if verbose == 1 else ""
        for name, found in scorer(part.images, part.labels, title=title).items():
            predictions[split, name] = found
    for split, images in others.items():
        shifted = split.startswith("shift_")
        # The passes of the sampled methods would cost more than all the rest together.
        labels = dataset.test.labels if shifted else None
        title = split if verbose == 1 else ""
        for name, found in scorer(images, labels, sampled=not shifted, title=title).items():
            predictions[split, name] = found
    return predictions


def explain(
    folder: Path, scorer: Scorer, decision: "Decision", dataset: Dataset
) -> Explanations | None:
    """Saves and returns what moved the u of each test image; None where the exported u is not
    made of pieces of evidence."""
    if decision.predictor != "frozen":
        return None
    parts = scorer.contributions(decision.method, dataset.test.images)
    if parts is None:
        return None
    names, values = parts
    found = Explanations(decision.method, tuple(names), np.asarray(values))
    explanations.save_explanations(folder / EXPLANATIONS_FILE, found)
    return found
