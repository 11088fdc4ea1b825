"""The residual estimator: MCP, corrected by evidence that MCP does not use.

    logit(u) = a · logit(1 − max(probs)) + b + h · evidence

Where the evidence adds nothing, h is zero and u is MCP, calibrated. From corrupted copies it is
learned what to add where an input looks like one of them, see `corrections`.

Kinds of evidence (`EVIDENCE`): the whole answer; a second head on the same features; the training
samples next to them; and a second head and the next training samples by the `View` of the image,
which no training has shaped:
a classifier and these are not wrong about an image in the same way.

u is continuous: along a line between two inputs logit(u) jumps only where the predicted class
changes. So rounding, which differs between batches, threads and servers, cannot move it.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from scipy import special

from btcp_tf.core.groups import numbers
from btcp_tf.methods import look_choice, reference_index, residual_choice, second_head
from btcp_tf.methods.corrections import Correction
from btcp_tf.methods.looks import Behind, Layers, Offer
from btcp_tf.methods.residual_choice import ENOUGH_ERRORS, EVIDENCE, Fit, Weights
from btcp_tf.methods.residual_choice import NO_INDEX as NO_INDEX
from btcp_tf.methods.seen import Seen as Seen
from btcp_tf.methods.seen import evidence_inputs as evidence_inputs
from btcp_tf.methods.seen import in_batches, vectors
from btcp_tf.methods.stacking import Samples
from btcp_tf.networks import classifiers, evidence_layers
from btcp_tf.networks.correction_layers import CopyCorrection
from btcp_tf.networks.evidence_layers import (
    NEIGHBORS,
    AnswerEvidence,
    HeadEvidence,
    McpLogit,
    NeighborEvidence,
    Residual,
    View,
)
from btcp_tf.networks.image_quality import ImageQuality


def residual_model(model: keras.Model, layers: Layers, weights: Weights) -> keras.Model:
    """The classifier with the residual estimator in the place of the trained one.

    Args:
      model: From `networks.assemble`; its weights are shared, also by looks.
      layers: From `fit_residual`; {}: u is MCP, perhaps calibrated.
      weights: From `fit_residual`, or `residual_choice.MCP`.
    """
    encoder, classifier = model.get_layer("encoder"), model.get_layer("classifier")
    image = keras.Input(encoder.input_shape[1:], dtype=encoder.inputs[0].dtype, name="image")
    features, ends = encoder(image), classifiers.both_ends(classifier)
    logits, probs = ends(features)
    layers = {
        name: dataclasses.replace(layer, encoder=encoder, ends=ends)
        if isinstance(layer, Behind)
        else layer
        for name, layer in layers.items()
    }
    z = McpLogit(name="mcp_logit")(logits)
    outputs = residual_outputs(layers, weights, image, features, logits, z)
    return keras.Model(image, {"probs": probs, **outputs}, name="residual")


_BLOCK = 16_384
"""Samples whose evidence is in memory at once."""

_FEWEST = 256
"""Vectors in an index at least, however little may be paid for it."""

_NARROWEST, _WIDEST = 0.05, 0.3
"""Share of the inputs for which an index must be payable; and for which one is that is made smaller
to be so."""


_WIDEST_FEATURES = 2048
"""Features beyond which they do not say what looks like a copy."""


class Fitted(NamedTuple):
    """A fitted residual estimator."""

    fit: Fit
    """How it went."""
    layers: Layers
    """The layers that compute the evidence of the classifier itself, in order; last, under
    "copies", perhaps what is added where an input looks like a copy."""
    weights: Weights
    """For the evidence in that order."""
    held_out_u: np.ndarray
    """u `[n]` of the classifier's own held-out samples, each by a fit that has not seen it; where
    the estimator is MCP, that of MCP."""


class Index(NamedTuple):
    """What a `NeighborEvidence` is filled with."""

    points: np.ndarray
    """`[m, d]`, each once."""
    labels: np.ndarray
    """`[m]`."""
    shares: np.ndarray
    """`[m]`, see `distinct`."""
    faint: float
    """See `_faded`."""


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """A classifier's answers to samples that it was not trained on."""

    seen: Seen
    """The answers to n samples."""
    labels: np.ndarray
    """True classes, `[n]`."""
    reference: tuple[Seen, np.ndarray] | None = None
    """m samples that it was trained on, at least 2, and their labels `[m]`; None: only the answer
    is evidence."""
    copies: tuple[Seen, ...] = ()
    """Other versions of the samples, such as noisy ones."""
    kinds: tuple[np.ndarray, ...] = ()
    """For each of the copies what was done to each sample, `[n]`, numbers from 1 on; empty: each
    version is a kind."""
    ensemble: tuple[np.ndarray, ...] = ()
    """An ensemble's mean probabilities `[n, k]` for the samples, then for each of the copies;
    empty: there is none."""
    groups: np.ndarray | None = None
    """The group of each sample, `[n]`, see `core.groups`; None: they are independent."""
    _heads: dict[tuple[str, int], HeadEvidence] = dataclasses.field(
        default_factory=dict, repr=False
    )
    _indexes: dict[tuple[str, int], Index] = dataclasses.field(default_factory=dict, repr=False)

    def head(self, name: str, seed: int) -> HeadEvidence:
        """A second head, trained once however many estimators use it; see `train_head`.

        Args:
          name: "head" on the features, or "image_head" on the view.
          seed: Seed of the head.
        """
        assert self.reference is not None, "it learns from the reference"
        seen, labels = self.reference
        if (name, seed) not in self._heads:
            self._heads[name, seed] = second_head.train_head(
                vectors(name, seen),
                labels,
                seen.logits.shape[1],
                seed,
                name,
                evidence_layers.faint_contrast(name, seen),
            )
        return self._heads[name, seed]

    def index(self, name: str, most: int = reference_index.LARGEST) -> Index:
        """The index of the reference, made once.

        Args:
          name: "neighbors", or "image_neighbors".
          most: Vectors in it; of a larger reference it has means of near samples of a class.
        """
        assert self.reference is not None, "it is made of the reference"
        seen, labels = self.reference
        if (name, most) not in self._indexes:
            faint = evidence_layers.faint_contrast(name, seen)
            points = vectors(name, seen)
            if len(labels) > most:
                points, labels = reference_index.condensed(points, labels, most, faint)
            else:
                points = evidence_layers.as_points(points, faint)
            rows, shares = evidence_layers.distinct(points, labels)
            self._indexes[name, most] = Index(points[rows], labels[rows], shares, faint)
        return self._indexes[name, most]

    def affordable_index(self, name: str, offer: Offer | None) -> Index:
        """The index of the reference; where it costs more than can be paid for, a smaller one."""
        most = reference_index.LARGEST
        if offer is not None and self.reference is not None:
            seen, labels = self.reference
            size = min(most, len(labels))
            width = vectors(name, seen).shape[1]
            width = reference_index.axes_of(name, size, width) or width
            payable = (offer.budget - 1.0) * offer.multiply_adds / width
            if payable and size > payable / _NARROWEST:
                most = max(_FEWEST, int(payable / _WIDEST))
        return self.index(name, most)


def fit_residual(
    held_out: HeldOut,
    folds: Sequence[HeldOut] = (),
    *,
    allowed: Sequence[str] = EVIDENCE,
    offer: Offer | None = None,
    seed: int = 0,
    batch_size: int = 256,
    verbose: int = 0,
) -> Fitted:
    """Fits the residual estimator to a classifier's answers to held-out samples.

    The evidence of one classifier means what that of another of its kind does. So classifiers that
    were each trained on all but one part of the training samples let it learn from all of these.
    Copies show it what the evidence means where inputs are corrupted, see `corrections`; what is
    used is chosen and judged by the samples themselves. An ensemble's 1 − true class probability is
    a target that is less a matter of chance than right or wrong (its distillation); it is still
    judged by these.

    Args:
      held_out: Answers of the classifier itself; with an `ensemble`, without `folds`.
      folds: Answers of further classifiers; with references if `held_out` has one, and as many
        copies.
      allowed: Evidence that it may use, of `EVIDENCE`, "answer" among it. With `NO_INDEX` no
        training sample goes into the model.
      offer: Looks, and what they and the evidence may cost; None: no looks, and evidence of any
        cost. With it all held-out samples have `odds`.
      seed: Seed of the cross-validation's parts, of the bootstrap and of the second head.
      batch_size: Samples at once.
      verbose: 1 prints what is being done.

    Raises:
      ValueError: If `allowed` or an argument is not as described.
    """
    check_evidence(allowed)
    all_held_out = [held_out, *folds]
    _check_held_out(all_held_out)
    errors = sum(int((one.seen.logits.argmax(axis=1) != one.labels).sum()) for one in all_held_out)
    # Which classes the errors are in changes with the data that a classifier meets, and so few of
    # them hardly show it even for this data.
    classes = errors >= ENOUGH_ERRORS
    if verbose and held_out.reference is not None:
        print("training small networks that answer beside the classifier", flush=True)
    neighbors = _shared_neighbors(all_held_out, allowed, offer)
    layers = [_evidence_layers(one, allowed, offer, neighbors, seed) for one in all_held_out]
    if verbose:
        answers = sum(len(seen.logits) for _, seen in _answers(all_held_out))
        print(
            f"computing what may show the errors among {answers:,} held-out answers, the "
            f"evidence:\n  {', '.join(layers[0])}",
            flush=True,
        )
    samples = _samples(all_held_out, layers, offer, classes, batch_size)
    # The model reads the class, too.
    layers[0]["answer"] = AnswerEvidence(classes=classes, name="answer")
    if offer is None:
        found = residual_choice.choose(samples, seed, verbose)
        used = {name: layers[0][name] for name in found.fit.evidence}
    else:
        costs = offer.costs(layers[0])
        found, design = look_choice.fit(samples, costs, offer.budget, seed, verbose)
        used = {name: layers[0][name] for name in design.free}
        if design.paid:
            used["looks"] = offer.behind(design, layers[0])
    fit, weights = found.fit, found.weights
    if found.correction is not None:
        of_images = held_out.seen.quality is not None
        used["copies"] = _correction_layer(found.correction, used, weights, samples, of_images)
        weights = weights._replace(h=np.append(weights.h, 1.0))
    return Fitted(fit, used, weights, found.u[: len(held_out.labels)])


def _correction_layer(
    correction: Correction, layers: Layers, weights: Weights, samples: Samples, of_images: bool
) -> CopyCorrection:
    """The layer that computes a correction; it reads the predicted class as offsets, and no column
    of the evidence that says it."""
    gate, kinds = correction
    features = 0 if samples.features is None else samples.features.shape[1]
    read = 1 + len(weights.h)
    # The columns of the predicted class follow the others of the answer, which stands first.
    missing = read + features - len(gate.mean)
    place = 1 + samples.evidence["answer"].shape[1]

    def filled(rows: np.ndarray, value: float = 0.0) -> np.ndarray:
        return np.insert(rows, [place] * missing, value, axis=0) if missing else rows

    classes = samples.classes
    offsets = [np.zeros(classes) if one.offsets is None else one.offsets for one in kinds]
    layer = CopyCorrection(classes, read, features, len(kinds), of_images, name="copies")
    layer.set_weights(
        [
            filled(gate.mean),
            filled(gate.scale, 1.0),
            np.concatenate([filled(half) for half in np.split(gate.kernel, 2)]),
            gate.bias,
            filled(np.stack([one.slopes for one in kinds], axis=1)),
            np.array([one.intercept for one in kinds]),
            np.stack(offsets, axis=1),
        ]
    )
    return layer


def _answers(all_held_out: Sequence[HeldOut]) -> list[tuple[int, Seen]]:
    """(number of the classifier, its answers): to the samples of all, then to the first copies of
    all, and so on."""
    return [
        (number, [one.seen, *one.copies][version])
        for version in range(1 + len(all_held_out[0].copies))
        for number, one in enumerate(all_held_out)
    ]


def _samples(
    all_held_out: Sequence[HeldOut],
    layers: Sequence[Layers],
    offer: Offer | None,
    classes: bool,
    batch_size: int,
) -> Samples:
    """What is learned from.

    Args:
      all_held_out: Of all classifiers.
      layers: Of each, what computes the evidence.
      offer: As in `fit_residual`.
      classes: Whether the predicted class is evidence.
      batch_size: Samples at once.
    """
    answers = _answers(all_held_out)
    chosen = [seen.logits.argmax(axis=1) for _, seen in answers]
    wrong = [own != all_held_out[at].labels for own, (at, _) in zip(chosen, answers, strict=True)]
    computed = [
        _compute(layers[number], seen, batch_size, search=reference_index.search)
        for number, seen in answers
    ]
    columns = {
        name: np.concatenate([evidence[name] for _, evidence in computed]) for name in layers[0]
    }
    looks = {}
    if offer is not None and offer.looks:
        odds = np.concatenate([seen.odds for _, seen in answers if seen.odds is not None])
        looks = {name: odds[:, place] for place, name in enumerate(offer.looks)}
    return Samples(
        np.concatenate(wrong),
        np.concatenate([z for z, _ in computed]),
        columns,
        np.repeat(np.arange(len(all_held_out)), [len(one.labels) for one in all_held_out]),
        _ensemble_target(all_held_out[0]),
        looks,
        np.concatenate(chosen) if classes else None,
        all_held_out[0].seen.logits.shape[1],
        groups_of(all_held_out),
        _kinds(all_held_out),
        _features(all_held_out, answers),
    )


def _features(
    all_held_out: Sequence[HeldOut], answers: Sequence[tuple[int, Seen]]
) -> np.ndarray | None:
    """`Samples.features`: the quality of images; of other inputs the features of one classifier, as
    those of another mean something else."""
    own = all_held_out[0]
    if not own.copies:
        return None
    if own.seen.quality is not None:
        return np.concatenate([seen.quality for _, seen in answers])
    if len(all_held_out) > 1 or own.seen.features.shape[1] > _WIDEST_FEATURES:
        return None
    return np.concatenate([seen.features for _, seen in answers])


def _kinds(all_held_out: Sequence[HeldOut]) -> np.ndarray | None:
    """`Samples.kinds`, in the order of `_answers`."""
    if not all_held_out[0].kinds:
        return None
    versions = zip(*(one.kinds for one in all_held_out), strict=True)
    own = [np.zeros(len(one.labels), np.int64) for one in all_held_out]
    return np.concatenate([*own, *(kinds for version in versions for kinds in version)])


def groups_of(all_held_out: Sequence[HeldOut]) -> np.ndarray | None:
    """Numbers of the groups of the samples of all classifiers; None: they are independent."""
    every = [one.groups for one in all_held_out if one.groups is not None]
    if not every:
        return None
    names = np.concatenate(every)
    return numbers(names, len(names))


def _check_held_out(all_held_out: Sequence[HeldOut]) -> None:
    if len({len(one.copies) for one in all_held_out}) > 1:
        raise ValueError(
            "copies: expected as many of all held-out samples, received "
            + ", ".join(str(len(one.copies)) for one in all_held_out)
        )
    if len({one.groups is None for one in all_held_out}) > 1:
        raise ValueError("groups: expected those of all held-out samples, received some")
    if len(all_held_out) > 1 and any(one.ensemble for one in all_held_out):
        raise ValueError("ensemble: expected none beside folds, received one")


def _shared_neighbors(
    all_held_out: Sequence[HeldOut], allowed: Sequence[str], offer: Offer | None
) -> int:
    """How many neighbors are looked at: no more than the smallest index has, so that the evidence
    means the same for all classifiers."""
    indexes = [
        one.affordable_index(name, offer)
        for one in all_held_out
        for name in _from_reference(one, allowed)
        if name.endswith("neighbors")
    ]
    return min([NEIGHBORS, *(len(index.points) for index in indexes)])


def _ensemble_target(held_out: HeldOut) -> np.ndarray | None:
    """1 − the ensemble's true class probability, of the samples, then of the copies; None without
    an ensemble."""
    if not held_out.ensemble:
        return None
    of_label = [p[np.arange(len(p)), held_out.labels] for p in held_out.ensemble]
    return 1.0 - np.concatenate(of_label)


def check_evidence(allowed: Any) -> None:
    """ValueError unless it is a list of kinds of evidence, "answer" among them."""
    expected = f"evidence: expected answer, and perhaps some of {', '.join(EVIDENCE[1:])}"
    if isinstance(allowed, str | bytes) or not isinstance(allowed, Collection):
        raise ValueError(f"{expected}, in a list, received {allowed!r}")
    names = list(allowed)
    if "answer" not in names or any(name not in EVIDENCE for name in names):
        raise ValueError(f"{expected}, received {', '.join(map(str, names)) or 'none'}")


def _evidence_layers(
    held_out: HeldOut, allowed: Sequence[str], offer: Offer | None, neighbors: int, seed: int
) -> Layers:
    """The layers that compute the evidence, in the order of `EVIDENCE`; "answer" without the
    predicted class, of which `Samples` hold the number."""
    layers: Layers = {"answer": AnswerEvidence(classes=False, name="answer")}
    for name in _from_reference(held_out, allowed):
        if name.endswith("head"):
            layers[name] = held_out.head(name, seed)
            continue
        index = held_out.affordable_index(name, offer)
        size, width = index.points.shape
        axes = reference_index.axes_of(name, size, width)
        bits = reference_index.bits_of(size, axes or width)
        layer = NeighborEvidence(size, width, neighbors, axes, index.faint, bits, name=name)
        layer.set_points(index.points, index.labels, index.shares)
        layers[name] = layer
    return layers


def _from_reference(held_out: HeldOut, allowed: Sequence[str]) -> list[str]:
    """The evidence that needs a reference, and has one, in the order of `EVIDENCE`."""
    if held_out.reference is None:
        return []
    seen, _ = held_out.reference
    return [name for name in EVIDENCE[1:] if name in allowed and vectors(name, seen) is not None]


def score_residual(
    layers: Layers,
    weights: Weights,
    seen: Any,
    *,
    batch_size: int = 256,
) -> np.ndarray:
    """u `[n]` of the estimator that `fit_residual` returned.

    Args:
      layers: From `fit_residual`.
      weights: From `fit_residual`.
      seen: `Seen`, or another object with its fields.
      batch_size: Samples at once.
    """
    a, b, h = weights
    every = [getattr(seen, name, None) for name in Seen._fields]
    logits = np.empty(len(seen.logits))
    # Evidence of many classes takes as much memory as their logits.
    for start in range(0, len(logits), _BLOCK):
        rows = slice(start, start + _BLOCK)
        part: list[Any] = [None if values is None else values[rows] for values in every]
        z, evidence = _compute(layers, Seen(*part), batch_size)
        logits[rows] = np.hstack([a * z + b, *evidence.values()]) @ [1.0, *h]
    return special.expit(logits)


def contributions(
    layers: Layers,
    weights: Weights,
    seen: Any,
    baseline: Mapping[str, float],
    *,
    batch_size: int = 256,
) -> tuple[tuple[str, ...], np.ndarray]:
    """Why u is what it is: what MCP and each kind of evidence add to logit(u).

    Args:
      layers: From `fit_residual`.
      weights: From `fit_residual`.
      seen: `Seen` of n answers, or what has its fields.
      baseline: `Fit.baseline`.
      batch_size: Samples at once.

    Returns:
      g names, "mcp" and those of the layers; and `[n, g]` by how much each moves logit(u) from its
      mean over the held-out samples. The sum of a row is logit(u) minus the mean logit(u) there.
    """
    parts = residual_choice.parts_of(*_compute(layers, seen, batch_size), weights)
    return tuple(parts), np.stack([part - baseline[name] for name, part in parts.items()], axis=1)


def residual_outputs(
    layers: Layers,
    weights: Weights,
    inputs: Any,
    features: Any,
    logits: Any,
    z: Any,
) -> dict[str, Any]:
    """What a functional model answers beside the classifier, of Keras tensors.

    Args:
      layers: From `fit_residual`.
      weights: From `fit_residual`.
      inputs: The classifier's, `[n, ...]`.
      features: `[n, d]`.
      logits: `[n, k]`.
      z: MCP's logit `[n, 1]`, from `McpLogit`.

    Returns:
      `uncertainty` `[n, 1]`; and with looks `second_opinion` `[n, k]`, the mean probabilities over
      the classifier and them.
    """
    of_images = any(name.startswith("image_") for name in layers)
    seen = Seen(features, logits, View(name="view")(inputs) if of_images else None)
    correction = layers.get("copies")
    if isinstance(correction, CopyCorrection) and correction.of_images:
        seen = seen._replace(quality=ImageQuality(name="quality")(inputs))
    evidence: list[Any] = []
    outputs: dict[str, Any] = {}
    for name, layer in layers.items():
        if isinstance(layer, CopyCorrection):
            columns = layer(_correction_inputs(layer, seen, [z, *evidence]))
        elif isinstance(layer, Behind):
            columns, second = layer.columns(inputs, features, logits, z)
            outputs = {} if second is None else {"second_opinion": second}
        else:
            columns = layer(*evidence_inputs(name, seen))
        evidence.append(columns)
    a, b, h = weights
    layer = Residual(read=len(h), name="residual")
    u = layer([z, *evidence])
    layer.set_weights([np.array(a), np.array(b), *([h[:, None]] if len(h) else [])])
    return {"uncertainty": u, **outputs}


def _compute(
    layers: Layers,
    seen: Any,
    batch_size: int,
    search: Callable[[NeighborEvidence, np.ndarray], np.ndarray | None] | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """MCP's logit `[n, 1]`, and the evidence `[n, e]` by name; `search` finds neighbors, perhaps
    faster than the layer does."""
    z = in_batches(McpLogit(), [seen.logits], batch_size)
    evidence: dict[str, np.ndarray] = {}
    for name, layer in layers.items():
        if isinstance(layer, CopyCorrection):
            columns = _correction_inputs(layer, seen, [z, *evidence.values()])
            evidence[name] = in_batches(lambda *some, at=layer: at(some), columns, batch_size)
            continue
        if isinstance(layer, Behind):
            evidence[name] = layer.compute(z, seen, batch_size)
            continue
        inputs = evidence_inputs(name, seen)
        if search is not None and isinstance(layer, NeighborEvidence):
            places = search(layer, inputs[0])
            inputs += [] if places is None else [places]
        evidence[name] = in_batches(layer, inputs, batch_size)
    return z, evidence


def _correction_inputs(layer: CopyCorrection, seen: Any, columns: list[Any]) -> list[Any]:
    """What a correction reads, after MCP's logit and the evidence are there."""
    last = seen.quality if layer.of_images else seen.features
    return [seen.logits, *columns, *([last] if layer.features else [])]
