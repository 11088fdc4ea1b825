"""Looks: further answers to the same input, computed only where MCP is unsure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from btcp_tf.methods import look_choice
from btcp_tf.methods.look_choice import Design
from btcp_tf.methods.seen import Seen, evidence_inputs, in_batches
from btcp_tf.networks.evidence_layers import View
from btcp_tf.networks.gate_layers import (
    BehindGate,
    LookEvidence,
    MeanAnswer,
    OddsAgainst,
    Ramp,
    Scatter,
    SecondOpinion,
    UnlessEmpty,
)
from btcp_tf.networks.looks import fixed_dropout


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """A further answer to an input."""

    title: str
    """A few words, for reports."""
    cost: float
    """In passes of the classifier."""
    change: keras.layers.Layer | None = None
    """A change of the input that does not change its class; None: it is taken as it is."""
    answer: keras.layers.Layer | None = None
    """Inputs → logits or log-probabilities `[n, k]`; None: the classifier itself answers."""
    dropout_seed: int | None = None
    """Of one draw of the dropout in the classifier's encoder; None: it drops nothing."""
    parts: tuple["Look", ...] = ()
    """Looks of which this one is the mean; empty: it is none."""
    optional: bool = False
    """Whether it is left out where it cannot be computed; nobody asked for it by name."""

    def logits(self, inputs: Any, encoder: keras.Model, ends: keras.Model) -> Any:
        """What it answers, logits or log-probabilities `[n, k]`, of Keras tensors; it has no parts.

        Args:
          inputs: `[n, ...]`.
          encoder: Inputs → features, of the classifier.
          ends: Features → [logits, probs].
        """
        changed = inputs if self.change is None else self.change(inputs)
        if self.answer is not None:
            return _run(self.answer, changed)
        if self.dropout_seed is not None:
            encoder = fixed_dropout(encoder, self.dropout_seed)
        return ends(_run(encoder, changed))[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Behind:
    """What is computed only for inputs whose MCP logit is above a gate."""

    design: Design
    evidence: dict[str, keras.layers.Layer]
    """By name, see `evidence_inputs`."""
    looks: dict[str, Look]
    places: list[int]
    """Columns of the looks in `Seen.odds`."""
    encoder: keras.Model
    """Inputs → features."""
    ends: keras.Model
    """Features → [logits, probs]."""

    def columns(self, inputs: Any, features: Any, logits: Any, z: Any) -> tuple[Any, Any]:
        """The weighted evidence `[n, 1 + e]`, 0 below the gate, of Keras tensors; and with looks
        the mean probabilities over the classifier and them `[n, k]`, else None.

        Args:
          inputs: `[n, ...]`.
          features: `[n, d]`.
          logits: `[n, k]`.
          z: MCP's logit `[n, 1]`.
        """
        every, every_logits, gate = z, logits, self.design.gate
        if gate is not None:
            inputs, features, logits, z = (
                BehindGate(gate, name=f"unsure_{name}")([every, values])
                for name, values in (
                    ("inputs", inputs),
                    ("features", features),
                    ("logits", logits),
                    ("z", z),
                )
            )
        of_images = any(name.startswith("image_") for name in self.evidence)
        seen = Seen(features, logits, View(name="unsure_view")(inputs) if of_images else None)
        parts = [layer(*evidence_inputs(name, seen)) for name, layer in self.evidence.items()]
        change = None
        if self.looks:
            answers = _answers(self.looks.values(), inputs, self.encoder, self.ends)
            odds = [OddsAgainst()([logits, answer]) for answer in answers]
            parts.append(LookEvidence(name="looks")([z, *odds]))
            change = SecondOpinion(gate, name="second_opinion")([z, logits, *answers])
        weighted = Ramp(gate, name="ramp")([z, *parts])
        if gate is not None:
            weighted = Scatter(gate, name="all_inputs")([every, weighted])
            change = change if change is None else Scatter(gate)([every, change])
        return weighted, None if change is None else ops.softmax(every_logits, axis=1) + change

    def compute(self, z: np.ndarray, seen: Any, batch_size: int) -> np.ndarray:
        """The same from answers that are there already.

        Args:
          z: MCP's logit `[n, 1]`.
          seen: `Seen`, or another object with its fields.
          batch_size: Samples at once.
        """
        evidence = {
            name: in_batches(layer, evidence_inputs(name, seen), batch_size)
            for name, layer in self.evidence.items()
        }
        looks = {
            name: seen.odds[:, place] for name, place in zip(self.looks, self.places, strict=True)
        }
        return look_choice.weighted(z, evidence, looks, self.design)


def look_odds(
    looks: Sequence[Look], inputs: Any, logits: Any, encoder: keras.Model, ends: keras.Model
) -> Any:
    """`Seen.odds` of at least one look, `[n, j]`, of Keras tensors.

    Args:
      looks: In the order of the columns.
      inputs: `[n, ...]`.
      logits: The classifier's, `[n, k]`.
      encoder: Inputs → features, of the classifier.
      ends: Features → [logits, probs].
    """
    answers = _answers(looks, inputs, encoder, ends)
    return ops.concatenate([OddsAgainst()([logits, answer]) for answer in answers], axis=1)


def _answers(
    looks: Iterable[Look], inputs: Any, encoder: keras.Model, ends: keras.Model
) -> list[Any]:
    """What each look answers; what several of them have in common is computed once."""
    done: dict[Any, Any] = {}

    def answer(look: Look) -> Any:
        if look.parts:
            return MeanAnswer()([answer(part) for part in look.parts])
        key = (id(look.change), id(look.answer), look.dropout_seed)
        if key not in done:
            done[key] = look.logits(inputs, encoder, ends)
        return done[key]

    return [answer(look) for look in looks]


def _run(model: keras.layers.Layer, inputs: Any) -> Any:
    return UnlessEmpty(model)(inputs) if isinstance(model, keras.Model) else model(inputs)


_SLOW_PASS = 2**24
"""Multiply-adds of a pass of a classifier that takes about 0.1 ms an input: beside it, and slower
ones, what an index does beside its products counts in full."""


def evidence_cost(name: str, layer: keras.layers.Layer, multiply_adds: float) -> float:
    """What evidence costs, in passes of the classifier.

    What an index does beside its products (`NeighborEvidence.overhead`) counts beside a smaller
    classifier as beside one of `_SLOW_PASS`. In full it would take the index away from classifiers
    that answer in microseconds, and with it a good part of what u is better than MCP's.

    Args:
      name: Name of the evidence.
      layer: What computes it.
      multiply_adds: Of a pass of the classifier.
    """
    products = layer.multiply_adds + View.multiply_adds * name.startswith("image_")
    overhead = getattr(layer, "overhead", 0)
    return products / multiply_adds + overhead / max(multiply_adds, _SLOW_PASS)


Layers = dict[str, Any]
"""What computes the evidence, by its name: a Keras layer, or `Behind` under the name "looks"."""


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
    """What `fit_residual` may use, and what it may cost."""

    looks: dict[str, Look]
    """In the order of the columns of `Seen.odds`."""
    budget: float
    """The largest mean cost of an input in passes of the classifier, its own included."""
    multiply_adds: float
    """Of a pass of the classifier."""
    encoder: keras.Model
    """Inputs → features, of the classifier."""
    ends: keras.Model
    """Features → [logits, probs]."""

    def costs(self, evidence: Mapping[str, keras.layers.Layer]) -> dict[str, float]:
        """In passes of the classifier, of evidence and looks; the answer itself is free."""
        return {
            name: evidence_cost(name, layer, self.multiply_adds)
            for name, layer in evidence.items()
            if name != "answer"
        } | {name: look.cost for name, look in self.looks.items()}

    def behind(self, design: Design, evidence: Mapping[str, keras.layers.Layer]) -> Behind:
        """What the design says is computed where MCP is unsure, of evidence and looks."""
        names = list(self.looks)
        looks = [name for name in design.paid if name in names]
        return Behind(
            design,
            {name: evidence[name] for name in design.paid if name in evidence},
            {name: self.looks[name] for name in looks},
            [names.index(name) for name in looks],
            self.encoder,
            self.ends,
        )
