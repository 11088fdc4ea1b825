"""What the residual estimator is offered beside the classifier's own answer: looks."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import tree

from btcp_tf import metrics
from btcp_tf.attached import inference
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.attached.inference import errors_name
from btcp_tf.core import progress, wording
from btcp_tf.data import named_inputs
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.methods import look_choice, other_eyes
from btcp_tf.methods.looks import Look, Offer
from btcp_tf.methods.residual_choice import EVIDENCE
from btcp_tf.networks import classifiers, cost, looks
from btcp_tf.networks.look_layers import OnArrays
from btcp_tf.networks.other_eyes import of_some, side_by_side

_LEAST_PASS = 1e6
"""A smaller classifier counts as so many multiply-adds: what is around them takes longer."""

_EXAMPLES, _EXAMPLES_SIZE = 10_000, 2**27
"""Inputs from which the spread of columns is measured, and bytes of them, at most."""

_REFERENCE, _REFERENCE_SIZE = 100_000, 2**31
"""Reference samples that other eyes learn from, and bytes of them, at most."""

_TAKEN = (*EVIDENCE, "mcp", "looks")
"""What parts of u are called already."""

_TRIED = 16
"""Inputs on which a look is tried."""

_DRAWS = {"dropout": 1, "dropouts": 4}
"""The classifier itself, with so many fixed draws of its dropout."""


def make(
    classifier: AttachedClassifier,
    wanted: Any,
    budget: Any,
    samples: tuple[Any, Any],
    reference: Any,
    seed: int,
    with_folds: bool = False,
) -> Offer | None:
    """The looks that were asked for, and what they cost.

    Args:
      classifier: Answers the samples.
      wanted: "auto", or a list of names, layers, functions on arrays, classifiers (taken apart,
        too: they are called like their encoder) and paths; empty: None is returned.
      budget: See `Offer`.
      samples: Held-out (inputs, labels), or (dataset, None).
      reference: (inputs, labels), or (dataset, None), that other eyes learn from; None: there are
        no other eyes.
      seed: Seed of random changes, and of what other eyes learn.
      with_folds: Whether further classifiers look, too. Then there are only looks at changed
        inputs: another model may know the labels of the samples that these were trained without.

    Raises:
      ValueError: If a look is unknown or does not suit the inputs, or the budget is below 1.
    """
    budget = check_budget(budget)
    if not check(wanted):
        return None
    # Labels are checked where they are used.
    x, _ = inference.random_rows(samples[0], None, _EXAMPLES, _EXAMPLES_SIZE, classifier.inputs)
    maker = _Maker(classifier, classifier.check_inputs(x), reference, seed, with_folds)
    passes, auto = maker.pass_cost, isinstance(wanted, str)
    if auto and classifier.names and reference is not None and not maker.seen_inputs:
        line = (
            f"of several inputs ({', '.join(classifier.names)}) no look is on offer that learns "
            "from the reference"
        )
        progress.say(line, classifier.verbose)
    made = [maker.look(one) for one in wanted] if not auto else maker.all_suitable()
    looks = _affordable(_by_name(made, classifier), budget, classifier.verbose)
    if auto:
        looks = {name: dataclasses.replace(look, optional=True) for name, look in looks.items()}
    return Offer(looks, budget, passes, classifier.encoder, classifier.ends)


def make_auto(classifier: AttachedClassifier, budget: float, *samples: Any) -> Offer | None:
    """What `make` offers for "auto"; None where a classifier, or its inputs, are of a kind that
    looks cannot be made for.

    The arguments are those of `make`.
    """
    try:
        return make(classifier, "auto", budget, *samples)
    except Exception as error:  # Whatever foreign layers raise: without looks it works, too.
        reason = wording.one_line(error)
        progress.say(f"no looks are on offer: {reason}", classifier.verbose)
        return None


def check_budget(budget: Any) -> float:
    """The largest mean cost of an input, checked; ValueError if it is below 1."""
    expected = "a number >= 1, in passes of the classifier"
    return metrics.number("cost", budget, expected, lambda value: value >= 1)


def _affordable(looks: dict[str, Look], budget: float, verbose: int) -> dict[str, Look]:
    """Those that can be paid for, if only for the smallest share of the inputs."""
    dear = {
        name: f"{name} ({look.cost:.2f} passes)"
        for name, look in looks.items()
        if not look_choice.widest_share(look.cost, budget)
    }
    if dear:
        line = (
            f"not on offer, as cost={budget:g} is too little for them: {', '.join(dear.values())}"
        )
        progress.say(line, verbose)
    return {name: look for name, look in looks.items() if name not in dear}


def name_of(path: str | os.PathLike) -> str:
    """What a look is called that is another classifier: as its file, in letters that TensorFlow
    takes for the name of a layer.

    >>> name_of("nets/my net (2).keras")
    'my_net_2_'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(path).stem)


def check(wanted: Any) -> bool:
    """Whether looks are asked for.

    Raises:
      ValueError: If it is neither "auto" nor a list.
    """
    if isinstance(wanted, str) and wanted == "auto":
        return True
    if isinstance(wanted, str | bytes | Mapping) or not isinstance(wanted, Sequence):
        raise ValueError(
            'looks: expected "auto" or a list of names, layers, functions, classifiers and paths, '
            f"received {wanted!r:.80}"
        )
    return len(wanted) > 0


def _by_name(made: Sequence[tuple[str, Look]], classifier: AttachedClassifier) -> dict[str, Look]:
    """Looks by names that differ, also from those of evidence: a second one of a name is NAME_2."""
    named: dict[str, Look] = {}
    models: dict[int, keras.Model] = {}

    def with_models(look: Look, name: str) -> Look:
        own: dict[str, Any] = {}
        for field in ("change", "answer"):
            if (layer := getattr(look, field)) is not None:
                if id(layer) not in models:
                    models[id(layer)] = _as_model(layer, classifier, f"look_{name}")
                own[field] = models[id(layer)]
        parts = (with_models(part, f"{name}_{n}") for n, part in enumerate(look.parts, 1))
        return dataclasses.replace(look, parts=tuple(parts), **own)

    for name, look in made:
        number, free = 1, name
        while free in named or free in _TAKEN:
            number += 1
            free = f"{name}_{number}"
        # Layers of a model need names of their own, too.
        named[free] = with_models(look, free)
    return named


def _joined(parts: AttachedClassifier, name: str) -> keras.Model:
    """Inputs → logits."""
    # Not the encoder's own input: Keras would count it twice in a copy.
    inputs = classifiers.new_inputs(parts.inputs)
    # The name of no layer may start with "_".
    return keras.Model(inputs, parts.ends(parts.encoder(inputs))[0], name=f"logits_{name}")


def _as_model(layer: keras.layers.Layer, classifier: AttachedClassifier, name: str) -> keras.Model:
    inputs = classifiers.new_inputs(classifier.inputs)
    return keras.Model(inputs, layer(inputs), name=name)


def _mean(title: str, parts: Sequence[Look]) -> Look:
    """The look that is the mean of some."""
    return Look(title, sum(part.cost for part in parts), parts=tuple(parts))


def _adapted(layer: keras.layers.Layer, x: np.ndarray) -> keras.layers.Layer:
    if hasattr(layer, "adapt"):
        layer.adapt(x)
    return layer


def _run(layer: keras.layers.Layer, x: np.ndarray) -> np.ndarray:
    return keras.ops.convert_to_numpy(layer(x, training=False))


def _is_classifier(model: Any) -> bool:
    """Whether a Keras model answers rows of numbers; a change answers what it was given."""
    if not isinstance(model, keras.Model):
        return False
    shape = getattr(model, "output_shape", None) if model.built else None
    return not (isinstance(shape, tuple) and len(shape) > 2)


@dataclasses.dataclass(frozen=True, eq=False)
class _Maker:
    """Makes looks for one classifier; the arguments are those of `make`."""

    classifier: AttachedClassifier
    x: Inputs
    """Some inputs."""
    reference: Any
    seed: int
    with_folds: bool
    changes: dict[str, Look] = dataclasses.field(default_factory=dict)
    """Those that are made already, by name: looks that have some in common run them once."""

    @functools.cached_property
    def whole(self) -> float:
        """Multiply-adds of a pass of the classifier."""
        return self._multiply_adds(_joined(self.classifier, "classifier"))

    @property
    def pass_cost(self) -> float:
        """The same, as costs count it."""
        return max(self.whole, _LEAST_PASS)

    def _multiply_adds(self, model: keras.layers.Layer) -> float:
        likes = named_inputs.each(
            lambda array, like: (array.shape[1:], like.dtype), self.x, self.classifier.inputs
        )
        return float(cost.of_call(model, likes))

    def suitable(self, by_name: bool = False) -> list[str]:
        """Names of the looks that suit the inputs.

        Args:
          by_name: Also those that are tried only where they are named.
        """
        names = [name for name in self._changes if by_name or name in looks.AUTO]
        if self.reference is not None and not self.with_folds:
            names += self._eyes(by_name)
        if self._drops:
            names += _DRAWS if by_name else ["dropouts"]
        return names

    def all_suitable(self) -> list[tuple[str, Look]]:
        """The looks that suit the inputs, but for those that cannot be made."""
        made = []
        for name in self.suitable():
            try:
                made.append(self.look(name))
            except Exception as error:  # Nobody asked for this one.
                reason = wording.one_line(error)
                progress.say(f"{name} is not on offer: {reason}", self.classifier.verbose)
        return made

    @functools.cached_property
    def _changes(self) -> tuple[str, ...]:
        """Names of the changes that suit the input, or one of several."""
        if not self.classifier.names:
            return looks.looks_for(self.classifier.input_shape, self.classifier.dtype)
        suitable = {name for name, inputs in self._changed_inputs.items() if inputs}
        return tuple(name for name in (*looks.LOOKS, *looks.GROUPS) if name in suitable)

    @functools.cached_property
    def _changed_inputs(self) -> dict[str, list[str]]:
        """Of several inputs those that a change is made of, all that it suits."""
        changed: dict[str, list[str]] = {}
        for name, one in self.classifier.inputs.items():
            suitable = looks.looks_for(one.shape[1:], one.dtype)
            # Without some of the tokens, a mask or a position beside them would no longer fit.
            for look in () if "drop_tokens" in suitable else suitable:
                changed.setdefault(look, []).append(name)
        return changed

    @functools.cached_property
    def seen_inputs(self) -> dict[str, list[str]]:
        """Which of several inputs other eyes see, by the names of these."""
        return other_eyes.seen_inputs(self.classifier.inputs, self.x)

    def _eyes(self, by_name: bool) -> tuple[str, ...]:
        if self.classifier.names:
            return tuple(self.seen_inputs)
        shape, dtype = self.classifier.input_shape, self.classifier.dtype
        return other_eyes.eyes_for(shape, dtype, self.x, by_name)

    def look(self, wanted: Any) -> tuple[str, Look]:
        """A look, and its name."""
        name, look = self._look(wanted)
        if look.answer is not None:
            self._check_no_folds(name)
        return name, look

    def _check_no_folds(self, name: str) -> None:
        if self.with_folds:
            raise ValueError(
                f"looks: expected changes of the input alone beside folds, received {name!r}, "
                "which may know the labels of their samples; leave it, or the folds, out"
            )

    def _look(self, wanted: Any) -> tuple[str, Look]:
        if isinstance(wanted, str) and wanted in (looks.LOOKS | looks.GROUPS):
            self._check_suits(wanted, self._changes)
            if wanted in looks.GROUPS:
                return wanted, _mean(wanted, [self._change(part) for part in looks.GROUPS[wanted]])
            return wanted, self._change(wanted)
        if isinstance(wanted, str) and wanted in other_eyes.EYES:
            self._check_suits(wanted, self._eyes(by_name=True))
            return wanted, self._eye(wanted)
        if isinstance(wanted, str) and wanted in _DRAWS:
            self._check_suits(wanted, [*_DRAWS] if self._drops else [])
            cost = self.whole / self.pass_cost
            # Draws of one layer are seeded by what follows a seed.
            seeds = range(self.seed, self.seed + 1000 * _DRAWS[wanted], 1000)
            draws = [Look("with dropout", cost, dropout_seed=seed) for seed in seeds]
            return wanted, draws[0] if len(draws) == 1 else _mean(wanted, draws)
        if isinstance(wanted, AttachedClassifier):
            name = wanted.encoder.name
            return name, self._other(name, _joined(wanted, name))
        if isinstance(wanted, str | os.PathLike) or _is_classifier(wanted):
            return self._classifier(wanted)
        if isinstance(wanted, keras.layers.Layer):
            return wanted.name, self._own(wanted)
        if callable(wanted) and not isinstance(wanted, type):
            return self._function(wanted)
        raise ValueError(
            "looks: expected names, Keras layers, functions, classifiers and paths, received "
            f"{type(wanted).__name__}"
        )

    @property
    def _drops(self) -> bool:
        return bool(looks.dropout_layers(self.classifier.encoder))

    def _check_suits(self, name: str, suitable: Sequence[str]) -> None:
        if name not in suitable:
            raise ValueError(
                f"looks: expected some that suit inputs of {self.classifier.takes} "
                f"({', '.join(self.suitable(by_name=True)) or 'none do'}), "
                f"received {name!r}"
            )

    def _change(self, name: str) -> Look:
        """One of `LOOKS`, always the same object."""
        if name not in self.changes:
            self.changes[name] = self._changed(looks.LOOKS[name].title, self._layer(name))
        return self.changes[name]

    def _layer(self, name: str) -> keras.layers.Layer:
        """What changes the input, or those of several that it suits."""
        if not self.classifier.names:
            return self._made(name, self.classifier.inputs, self.x, self.seed)
        inputs = classifiers.new_inputs(self.classifier.inputs)
        outputs = dict(inputs)
        # Not two columns by the same step.
        for seed, one in enumerate(self._changed_inputs[name], self.seed):
            outputs[one] = self._made(name, inputs[one], self.x[one], seed)(inputs[one])
        return keras.Model(inputs, outputs, name=f"changed_{name}")

    @staticmethod
    def _made(name: str, like: Any, x: np.ndarray, seed: int) -> keras.layers.Layer:
        return _adapted(looks.LOOKS[name].make(like.shape[1:], like.dtype, seed), x)

    def _changed(self, title: str, layer: keras.layers.Layer, products: float = 0.0) -> Look:
        """The classifier's answer to an input that is changed with so many multiply-adds."""
        return Look(title, (self.whole + products) / self.pass_cost, change=layer)

    def _function(self, function: Callable[[np.ndarray], Any]) -> tuple[str, Look]:
        """That of a function on arrays, called like it; "lambda" is in angle brackets."""
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        # The name of no layer may start with "_".
        return name, self._own(OnArrays(function, name=name.lstrip("_") or "function"))

    def _own(self, layer: keras.layers.Layer) -> Look:
        """That of a change that somebody else wrote, which is tried."""
        expected = "looks: expected a layer or function that"
        if self.classifier.names:
            raise ValueError(
                f"{expected} changes the only input, received {layer.name!r} beside a classifier "
                f"of {', '.join(self.classifier.names)}; take one by name, which changes several"
            )
        x = self.x[:_TRIED]
        try:
            layer = _adapted(layer, self.x)
            look = self._changed(layer.name, layer, self._multiply_adds(layer))
            changed, again, alone, none = (_run(layer, rows) for rows in (x, x, x[:1], x[:0]))
        except Exception as error:  # Anything can be wrong with it.
            raise ValueError(
                f"{expected} changes inputs {self.classifier.dtype} {list(x.shape)} in a graph, "
                f"received {layer.name!r}: {wording.one_line(error)}"
            ) from error
        if (changed.shape, none.shape) != (x.shape, x[:0].shape) or changed.dtype != x.dtype:
            raise ValueError(
                f"{expected} keeps shape and type of its inputs, {x.dtype} {list(x.shape)}, "
                f"received {layer.name!r}, which makes {changed.dtype} {list(changed.shape)}"
            )
        fault = ""
        if x.dtype.kind == "f" and not np.isfinite(changed).all():
            fault = "makes NaN or infinity of inputs"
        elif (changed != again).any() or (changed[:1] != alone).any():
            fault = "changes the same input in several ways, at random or by its batch"
        elif (changed == x).all():
            fault = "leaves inputs as they are (layers that augment do so outside of training)"
        if fault:
            raise ValueError(
                f"{expected} changes each input in one way, received {layer.name!r}, which {fault}"
            )
        return look

    def _other(self, title: str, model: keras.layers.Layer) -> Look:
        return Look(title, self._multiply_adds(model) / self.pass_cost, answer=model)

    def _eye(self, name: str) -> Look:
        self._check_no_folds(name)
        if self.reference is None:
            raise ValueError(
                f"looks: expected a reference, from which {name!r} learns, received none; give "
                "reference=(inputs, labels) that the classifier was trained on"
            )
        with errors_name("reference"):
            inputs, labels = self.reference
            like = self.classifier.inputs
            x, y = inference.random_rows(inputs, labels, _REFERENCE, _REFERENCE_SIZE, like)
            x = self.classifier.check_inputs(x)
            y = inference.check_labels(y, named_inputs.count(x), self.classifier.class_names)
            own = {}
            if name == "student":
                own["probs"] = self.classifier.probs(x, "answers to the reference")
            title = f"training other eyes on {len(y):,} reference samples: {name}"
            title *= bool(self.classifier.verbose)
            classes = len(self.classifier.class_names)
            if self.classifier.names:
                x = side_by_side([x[one] for one in self.seen_inputs[name]])
            layer = other_eyes.EYES[name](x, y, classes, self.seed, title, **own)
        count = getattr(layer, "multiply_adds", None) or self._multiply_adds(layer)
        if self.classifier.names:
            inputs = classifiers.new_inputs(self.classifier.inputs)
            layer = of_some(layer, self.seen_inputs[name], inputs)
        return Look(name, count / self.pass_cost, answer=layer)

    def _classifier(self, model: Any) -> tuple[str, Look]:
        """Another classifier of the same inputs and classes."""
        with errors_name("looks"):
            if isinstance(model, str) and not Path(model).suffix:
                suitable = self.suitable(by_name=True)
                known = [*suitable, *(name for name in other_eyes.EYES if name not in suitable)]
                raise ValueError(f"expected one of {', '.join(known)}, received {model!r}")
            # It has features and an end of its own.
            like = dataclasses.replace(self.classifier, features="", from_logits=None)
            parts = like.take_alike_apart(model, self.x)
            kinds = zip(
                tree.flatten(parts.inputs), tree.flatten(self.classifier.inputs), strict=True
            )
            if any("int" in one.dtype and "float" in own.dtype for one, own in kinds):
                raise ValueError(
                    f"expected a classifier of {self.classifier.takes} as yours, received one of "
                    f"{parts.takes}, to which fractions and negative numbers mean nothing"
                )
        name = model.name if isinstance(model, keras.Model) else name_of(model)
        return name, self._other(name, _joined(parts, name))
