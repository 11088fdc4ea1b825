"""Scores of every method for every set of images."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from btcp_tf.core.rows import take
from btcp_tf.data.corruptions import CORRUPTIONS, random_copy
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, ImageSet, Predictor
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.experiment import looks
from btcp_tf.experiment.looks import LookSettings, Odds
from btcp_tf.experiment.train import Fold, Trained, Weights
from btcp_tf.experiment.values import AllPredictions, check_finite
from btcp_tf.methods import rivals
from btcp_tf.methods.outputs import Outputs, Reference, Score
from btcp_tf.methods.registry import METHODS
from btcp_tf.methods.residual_scores import ResidualScore
from btcp_tf.networks.mcp import mcp_of

if TYPE_CHECKING:
    import keras

    from btcp_tf.methods.looks import Offer
    from btcp_tf.training.phases import Stage

_DROPOUT_BATCH = 256

_COPIES_SEED = 1_000_003
"""Added to the seed for images that `residual` learns from: other noise than on test images."""


@dataclasses.dataclass(frozen=True)
class ScoreSettings(LookSettings):
    """What the methods of a run need of its settings; the names are those of `btcp_tf.Config`."""

    method: tuple[str, ...]
    finetuned: tuple[str, ...]
    verbose: int
    mc_passes: int
    trust_alpha: float
    trust_neighbors: int
    residual_copies: tuple[str, ...]
    residual_distilled: bool


class TrainedNetwork:
    """A network with the weights that one stage of the training left: images in, arrays out.

    The stages of a run share one Keras model. It has the weights of a stage only inside `model`,
    and its former ones again after it, so no result depends on the order of calls.
    """

    def __init__(
        self,
        model: "keras.Model",
        stage: "Stage",
        batch_size: int,
        view: Callable[[np.ndarray], dict[str, Any]] | None = None,
    ) -> None:
        """
        Args:
          model: From `networks.assemble`.
          stage: Its weights, and whether it failed.
          batch_size: Images at once.
          view: Images → what `residual` sees of them, see `view_of`.
        """
        from btcp_tf.networks import models
        from btcp_tf.training.inference import Inference

        self._model, self._view = model, view
        self._weights, self.collapse = stage.values, stage.collapse
        self._infer = Inference(models.outputs_model(model), batch_size)
        self._estimate = Inference(model.get_layer("estimator"), batch_size)

    def with_weights(self, weights: Weights, collapse: str = "") -> Self:
        """The same network after another stage, with the reason if that failed."""
        other = copy.copy(self)
        other._weights, other.collapse = weights, collapse
        return other

    @contextlib.contextmanager
    def model(self) -> Iterator["keras.Model"]:
        """The Keras model, which has these weights inside the `with` block."""
        from btcp_tf.training import checkpoints

        before = checkpoints.snapshot(self._model)
        checkpoints.restore(self._model, self._weights)
        try:
            yield self._model
        finally:
            checkpoints.restore(self._model, before)

    def outputs(self, images: np.ndarray, labels: np.ndarray | None = None) -> Outputs:
        """Features, logits and probabilities of images `[n, ...]`.

        Raises:
          FloatingPointError: If one is not finite.
        """
        with self.model():
            arrays = self._infer(images)
        check_finite(*arrays.values())
        outputs = Outputs(**arrays, labels=labels)
        return outputs if self._view is None else dataclasses.replace(outputs, **self._view(images))

    def with_odds(
        self, outputs: Outputs, images: np.ndarray, odds: Odds | None, title: str = ""
    ) -> Outputs:
        """Outputs with the odds of looks at the same images `[n, ...]`; None: there are none."""
        if odds is None:
            return outputs
        with self.model():
            columns = odds(images, title)
        check_finite(columns)
        return dataclasses.replace(outputs, odds=columns)

    def probs(self, images: np.ndarray) -> np.ndarray:
        """Class probabilities `[n, k]` alone."""
        with self.model():
            return self._infer(images)["probs"]

    def estimate(self, features: np.ndarray) -> np.ndarray:
        """The estimator's u `[n]` for features `[n, d]`."""
        with self.model():
            return self._estimate(features)[:, 0]

    @property
    def classifier_id(self) -> str:
        """See `training.weights_id`."""
        from btcp_tf.training import checkpoints

        with self.model() as model:
            return checkpoints.weights_id(model, ("encoder", "classifier"))


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """All methods of a run, fitted on its training and validation data."""

    settings: ScoreSettings
    networks: Mapping[str, TrainedNetwork]
    """By name of the stage, see `training.Stage`."""
    members: Sequence[TrainedNetwork]
    """Further classifiers of the ensemble."""
    scores: Mapping[str, Score]
    """Method → its score of the classifier's outputs, if it has no estimator."""
    reference: Reference
    """What they were fitted on, with how that went in `facts`."""
    odds: Odds | None = None
    """Of the looks that `residual_looks` uses; None: there are none."""

    def __call__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        *,
        sampled: bool = True,
        title: str = "",
    ) -> dict[Predictor, Predictions]:
        """Answers of every predictor to images, with the u of every method.

        Args:
          images: `[n, ...]` uint8.
          labels: `[n]`, or None where no class is right.
          sampled: Whether methods that need many passes take part.
          title: Shows progress bars of them under this title.
        """
        outputs = self._outputs(images, labels)
        means = self._means(images, outputs.probs, title) if sampled else {}
        outputs = dataclasses.replace(
            outputs, sampled={METHODS[name].samples: mean for name, mean in means.items()}
        )
        columns = dict(self._columns(outputs, sampled))
        answers = {CLASSIFIER: Predictions(labels, outputs.probs, outputs.predicted, columns)}
        for name, mean in means.items():
            own = {name: columns[name]}
            answers[Predictor(name)] = Predictions(labels, mean, mean.argmax(axis=1), own)
        for name in self.settings.finetuned:
            predictor = Predictor(name, FINETUNED)
            network = self.networks[str(predictor)]
            outputs = network.outputs(images, labels)
            columns = {"mcp": mcp_of(outputs.logits), name: network.estimate(outputs.features)}
            answers[predictor] = Predictions(labels, outputs.probs, outputs.predicted, columns)
        return answers

    def _outputs(self, images: np.ndarray, labels: np.ndarray | None = None) -> Outputs:
        """Those of the classifier of phase 1, with all that its methods read but `sampled`."""
        outputs = self.classifier.outputs(images, labels)
        return self.classifier.with_odds(outputs, images, self.odds)

    @property
    def classifier(self) -> TrainedNetwork:
        """The network after phase 1."""
        return self.networks["classifier"]

    def network(self, predictor: Predictor, method: str) -> TrainedNetwork:
        """The network that gives a method's u of a predictor; without training that of phase 1."""
        name = str(predictor) if predictor.method else method
        return self.networks.get(name, self.classifier)

    def collapse(self, predictor: Predictor, method: str) -> str:
        """Why the training behind a method's u failed; "": it did not."""
        return self.classifier.collapse or self.network(predictor, method).collapse

    def _means(self, images: np.ndarray, probs: np.ndarray, title: str) -> dict[str, np.ndarray]:
        """Method → the mean probabilities `[n, k]` of its passes or members."""
        from btcp_tf.training import inference

        means, settings = {}, self.settings
        few = rivals.passes_of(self.reference)
        for name in settings.method:
            samples = METHODS[name].samples
            if samples in ("ensemble", "few_members"):
                members = self.members if samples == "ensemble" else self.members[: few - 1]
                means[name] = ensemble_mean(images, probs, members)
            elif samples:
                passes = settings.mc_passes if samples == "dropout" else few
                with self.classifier.model() as model:
                    means[name] = inference.sample_dropout(
                        model,
                        images,
                        passes=passes,
                        seed=settings.seed,
                        batch_size=min(_DROPOUT_BATCH, settings.test_batch_size),
                        title=title and f"{title}: {passes} passes with dropout",
                    )
        return means

    def _columns(self, outputs: Outputs, sampled: bool) -> Iterator[tuple[str, np.ndarray]]:
        """(method, u) of the classifier of phase 1."""
        for name in self.settings.method:
            method = METHODS[name]
            if (method.samples and not sampled) or (method.uses_labels and outputs.labels is None):
                continue
            if name in self.scores:
                yield name, self.scores[name](outputs)
            else:
                # A method that differs in its threshold alone has another one's estimator.
                yield name, self.networks[method.column_of or name].estimate(outputs.features)

    @property
    def held_out_u(self) -> dict[str, np.ndarray]:
        """Method → cross-fitted u `[n]` of the validation images, if it was fitted on them."""
        return {
            name: score.held_out_u
            for name, score in self.scores.items()
            if isinstance(score, ResidualScore)
        }

    @property
    def costs(self) -> dict[str, float]:
        """Method → mean cost of an image in passes of the classifier, if its fit limited it, and of
        the rivals of such a method."""
        fitted = {
            name: score.fit.cost
            for name, score in self.scores.items()
            if isinstance(score, ResidualScore) and score.fit.cost is not None
        }
        return fitted | {
            name: rival_cost(name, self.reference)
            for name in self.settings.method
            if METHODS[name].rival_of
        }

    @property
    def classifier_ids(self) -> dict[Predictor, str]:
        """Names the classifier of each predictor: rows that share one may be compared in pairs."""
        shared = self.classifier.classifier_id
        sampled = (name for name in self.settings.method if METHODS[name].samples)
        tuned = [Predictor(name, FINETUNED) for name in self.settings.finetuned]
        return (
            {CLASSIFIER: shared}
            | {Predictor(name): f"{shared}-{name}" for name in sampled}
            | {predictor: self.networks[str(predictor)].classifier_id for predictor in tuned}
        )

    def mcp(self, images: np.ndarray) -> np.ndarray:
        """u `[n]` of MCP of the classifier of phase 1."""
        return mcp_of(self.classifier.outputs(images).logits)

    def explain(self, method: str, images: np.ndarray) -> Explanations | None:
        """What each piece of evidence does to the u of images; None where u is no sum of them."""
        score = self.scores.get(method)
        if not isinstance(score, ResidualScore):
            return None
        names, values = score.contributions(self._outputs(images))
        return Explanations(method, tuple(names), np.asarray(values))

    @contextlib.contextmanager
    def exported_model(self, predictor: Predictor, method: str) -> Iterator["keras.Model"]:
        """Images → probs and u of a method; it has the weights for it inside the `with` block."""
        from btcp_tf.methods import residual_fit
        from btcp_tf.methods.residual_choice import MCP
        from btcp_tf.serving import signatures

        with self.network(predictor, method).model() as model:
            if method == "mcp":
                yield residual_fit.residual_model(model, {}, MCP)
            elif isinstance(score := self.scores.get(method), ResidualScore):
                # Now: with looks the encoder is in several layers, and Keras cannot copy those.
                alone = signatures.on_one_device(model)
                yield residual_fit.residual_model(alone, score.layers, score.weights)
            else:
                yield model


def _groups(validation: Split, train: Split, folds: Sequence[Fold]) -> tuple[np.ndarray, ...]:
    """See `Reference.groups`."""
    if validation.groups is None or train.groups is None:
        return ()
    return validation.groups, *(train.groups[unseen] for _, unseen in folds)


def fit_reference(
    classifier: TrainedNetwork,
    dataset: Dataset,
    settings: ScoreSettings,
    *,
    folds: Sequence[Fold] = (),
    members: Sequence[TrainedNetwork] = (),
    offer: "Offer | None" = None,
) -> Reference:
    """The outputs that methods are fitted on.

    Args:
      classifier: After phase 1.
      dataset: Its training and validation images are used.
      settings: Settings of the methods.
      folds: Classifiers for the cross-fitting of `residual`.
      members: Further classifiers of the ensemble.
      offer: What `residual_looks` may use.
    """
    from btcp_tf.networks.classifiers import last_dense

    train, validation = dataset.train, dataset.validation
    odds = None if offer is None else looks.odds_of(offer, settings.test_batch_size)
    count = 0 if offer is None else len(offer.looks)
    title = f"{count} looks at each held-out image" if settings.verbose == 1 else ""

    def learned(network: TrainedNetwork, images: np.ndarray, labels: np.ndarray) -> Outputs:
        """What `residual` learns from."""
        outputs = network.with_odds(network.outputs(images, labels), images, odds, title)
        if not settings.residual_distilled:
            return outputs
        mean = ensemble_mean(images, outputs.probs, members)
        return dataclasses.replace(outputs, sampled={"ensemble": mean})

    learns = any(name.startswith("residual") for name in settings.method)
    names = settings.residual_copies if learns else ("none",)

    def copies(
        network: TrainedNetwork, images: np.ndarray, labels: np.ndarray, number: int
    ) -> tuple[tuple[Outputs, ...], tuple[np.ndarray, ...]]:
        """What the network says of copies, and what was done to each image."""
        made, kinds = copies_of(images, names, settings.seed, number)
        return tuple(learned(network, copy, labels) for copy in made), kinds

    apart = []
    copied = [copies(classifier, validation.images, validation.labels, 0)]
    for number, (weights, unseen) in enumerate(folds, start=1):
        network, part = classifier.with_weights(weights), take(train.images, unseen)
        whole = network.outputs(train.images, train.labels)
        held_out = network.with_odds(whole[unseen], part, odds, title)
        apart.append((whole[~unseen], held_out))
        copied.append(copies(network, part, train.labels[unseen], number))
    with classifier.model() as model:
        kernel, bias = last_dense(model.get_layer("classifier"))
    return Reference(
        train=classifier.outputs(train.images, train.labels),
        validation=learned(classifier, validation.images, validation.labels),
        kernel=kernel,
        bias=bias,
        seed=settings.seed,
        alpha=settings.trust_alpha,
        neighbors=settings.trust_neighbors,
        folds=tuple(apart),
        copies=tuple(made for made, _ in copied),
        kinds=tuple(kinds for _, kinds in copied),
        groups=_groups(validation, train, folds),
        distilled=settings.residual_distilled,
        offer=offer,
        verbose=int(settings.verbose == 1),
    )


def copies_of(
    images: np.ndarray, names: Sequence[str], seed: int, number: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Copies of images: of some kinds; without names a random one, and what was done to each image.

    Args:
      images: `[n, ...]` uint8.
      names: The setting `residual_copies`.
      seed: Seed of the run.
      number: Number of the classifier: for each another copy is drawn.
    """
    if tuple(names) == ("none",):
        return (), ()
    if not names:
        copy, kinds = random_copy(images, seed + _COPIES_SEED * (1 + number))
        return (copy,), (kinds,)
    return tuple(CORRUPTIONS[name](images, 1, seed + _COPIES_SEED) for name in names), ()


def make_scorer(trained: Trained, dataset: Dataset, settings: ScoreSettings) -> Scorer:
    """Fits all methods of a run.

    Args:
      trained: The networks.
      dataset: Its training and validation images are used.
      settings: Settings of the methods.
    """
    view, batch_size = None, settings.test_batch_size
    if any(name.startswith("residual") for name in settings.method):
        view = view_of(dataset.train.images, batch_size)
    stages = trained.stages
    classifier = TrainedNetwork(trained.network, stages["classifier"], batch_size, view)
    networks = {
        name: classifier.with_weights(stage.values, stage.collapse)
        for name, stage in stages.items()
    }
    members = [classifier.with_weights(weights) for weights in trained.members]
    offer = None
    if "residual_looks" in settings.method:
        offer = looks.make_offer(trained.network, dataset, settings, bool(trained.folds))
    reference = fit_reference(
        classifier, dataset, settings, folds=trained.folds, members=members, offer=offer
    )
    # Rivals last: what they read is known once the others are fitted.
    methods = sorted(settings.method, key=lambda name: METHODS[name].rival_of)
    scores = {
        name: prepare(reference)
        for name in methods
        if (prepare := METHODS[name].prepare) is not None
    }
    settings = without_idle_rivals(settings, reference, len(members))
    odds = None
    if offer is not None and isinstance(score := scores["residual_looks"], ResidualScore):
        odds = looks.odds_of(offer, batch_size, score.fit.looks)
    return Scorer(settings, networks, members, scores, reference, odds)


def rival_cost(name: str, reference: Reference) -> float:
    """Passes of the classifier for an image, of a rival of `residual_looks`."""
    return float((rivals.passes_of if METHODS[name].samples else rivals.cost_of)(reference))


def without_idle_rivals(
    settings: ScoreSettings, reference: Reference, further: int
) -> ScoreSettings:
    """Settings without the rivals of `residual_looks` that cannot have rows; `reference.facts` then
    say why, and of the others what they cost.

    Args:
      settings: Settings of the methods.
      reference: After `residual_looks` was fitted.
      further: Classifiers of the ensemble beside the run's own.
    """
    methods = []
    for name in settings.method:
        why = _why_idle(name, reference, further)
        if not why:
            methods.append(name)
        elif settings.verbose:
            print(f"{name}: {why}", flush=True)
        if METHODS[name].rival_of:
            cost = f"{rival_cost(name, reference):.4g} passes of the classifier for every image"
            reference.facts[name] = why or f"{cost}, nothing fitted"
    return dataclasses.replace(settings, method=tuple(methods))


def _why_idle(name: str, reference: Reference, further: int) -> str:
    """Why a method has no rows; "": it has."""
    method = METHODS[name]
    if method.rival_of and not reference.chosen:
        return f"no rows, as {method.rival_of} uses no look"
    passes = rivals.passes_of(reference)
    if method.samples == "few_members" and passes > 1 + further:
        return (
            f"no rows, as the looks cost as much as {passes} classifiers, and the ensemble has "
            f"{1 + further} (ensemble_members)"
        )
    return ""


def ensemble_mean(
    images: np.ndarray, own: np.ndarray, members: Sequence[TrainedNetwork]
) -> np.ndarray:
    """Mean probabilities of an ensemble for images.

    Args:
      images: `[n, ...]`.
      own: Probabilities of the run's own classifier, `[n, k]`.
      members: The other classifiers.

    Returns:
      `[n, k]`.
    """
    total = own.copy()
    for member in members:
        total += member.probs(images)
    return total / (1 + len(members))


def view_of(images: np.ndarray, batch_size: int) -> Callable[[np.ndarray], dict[str, Any]] | None:
    """What `residual` sees of such images without the classifier, by field of `Outputs`; None:
    nothing."""
    import keras

    from btcp_tf.networks import evidence_layers
    from btcp_tf.networks.evidence_layers import View
    from btcp_tf.networks.image_quality import ImageQuality
    from btcp_tf.training.inference import Inference

    if not evidence_layers.is_image(images.shape[1:]):
        return None
    inputs = keras.Input(images.shape[1:], dtype=images.dtype.name)
    outputs = {"view": View()(inputs), "quality": ImageQuality()(inputs)}
    return Inference(keras.Model(inputs, outputs), batch_size)


def predict_all(
    scorer: Scorer,
    dataset: Dataset,
    others: Mapping[ImageSet, np.ndarray],
    *,
    show_progress: bool = False,
) -> AllPredictions:
    """Scores the validation, calibration and test images, and those of `prepare.load_others`."""
    predictions: AllPredictions = {}
    for name in ("validation", "calibration", "test"):
        part = getattr(dataset, name)
        answers = scorer(part.images, part.labels, title=name if show_progress else "")
        predictions |= {
            (ImageSet(name), who): dataclasses.replace(one, groups=part.groups)
            for who, one in answers.items()
        }
    for image_set, images in others.items():
        shifted = image_set.kind == "shift"
        answers = scorer(
            images,
            dataset.test.labels if shifted else None,
            # The passes of the sampled methods would cost more than all the rest together.
            sampled=not shifted,
            title=str(image_set) if show_progress else "",
        )
        groups = dataset.test.groups if shifted else None
        predictions |= {
            (image_set, who): dataclasses.replace(one, groups=groups)
            for who, one in answers.items()
        }
    return predictions
