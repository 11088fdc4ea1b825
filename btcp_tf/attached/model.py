"""The Keras model of a `Judge`: the parts of the classifier, the estimate of u, the card."""

import collections
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import keras
import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import files, wording
from btcp_tf.core.warning import warn
from btcp_tf.data import input_checks, named_inputs
from btcp_tf.data.input_checks import Ranges
from btcp_tf.data.known import Part
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods import residual_fit
from btcp_tf.methods.residual_choice import Weights
from btcp_tf.networks import classifiers
from btcp_tf.networks.evidence_layers import McpLogit
from btcp_tf.networks.look_layers import OnArrays


@keras.saving.register_keras_serializable("btcp_tf")
class Card(keras.layers.Layer):
    """(u, MCP's logit) → u; keeps in the model's file what belongs to it.

    The logit is an input so that it can be found in the graph, whatever u is made of.

    Args:
      about: JSON values by name.
    """

    passes_on_first = True
    """For `networks.with_logit`, which looks for what u is made of."""

    def __init__(self, about: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.about = dict(about)

    def call(self, inputs: Sequence[Any]) -> Any:
        return inputs[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "about": self.about}


Formula = Callable[[Any, Any, Any, Any], dict[str, Any]]
"""(inputs, features `[n, d]`, logits `[n, k]`, MCP's logit `[n, 1]`) → `uncertainty` `[n, 1]`, and
perhaps `second_opinion` `[n, k]`, of Keras tensors."""


def residual_formula(layers: dict[str, keras.layers.Layer], weights: Weights) -> Formula:
    """u of the residual estimator, see `residual_fit.residual_outputs`."""
    return functools.partial(residual_fit.residual_outputs, layers, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A fitted estimate of which answers are wrong."""

    method: str
    """Its name: "residual" or "btcp"."""
    formula: Formula
    fit: dict[str, Any]
    """How it came about; JSON values by name."""
    hashes: dict[str, np.ndarray]
    """Hashes of the samples that it learned from, by part, see `data.known`."""
    input_range: Ranges
    """Range of its inputs; None: text."""

    @property
    def about(self) -> dict[str, Any]:
        """What the card says of it; there is no threshold yet."""
        return {
            "method": self.method,
            # As JSON has it, so that a loaded one is equal.
            "fit": json.loads(json.dumps(self.fit)),
            "threshold": None,
            "calibration": None,
            "seen": {name: Part.of(hashes).to_json() for name, hashes in self.hashes.items()},
            "input_range": input_checks.to_json(self.input_range),
        }


def join(
    encoder: keras.Model, ends: keras.Model, formula: Formula, about: dict[str, Any]
) -> keras.Model:
    """Joins the parts to a model: inputs → {`probs` `[n, k]`, `uncertainty` `[n, 1]`}, and with
    looks `second_opinion` `[n, k]`.

    Args:
      encoder: Inputs, several as a dictionary by name, → features `[n, d]`.
      ends: Features → [logits, probs].
      formula: How u is computed.
      about: What the card says.
    """
    inputs = classifiers.new_inputs(classifiers.named_tensors(encoder))
    features = encoder(inputs)
    logits, probs = ends(features)
    z = McpLogit(name="mcp_logit")(logits)
    outputs = formula(inputs, features, logits, z)
    u = Card(about, dtype="float32", name="card")([outputs["uncertainty"], z])
    return keras.Model(inputs, {"probs": probs, **outputs, "uncertainty": u}, name="judge")


def about(model: keras.Model) -> dict[str, Any]:
    """What the card of a model of `join` says; to be changed in place."""
    return model.get_layer("card").about


def threshold(about: Mapping[str, Any]) -> thresholds.Threshold | None:
    """The threshold that a card says; None: there is none yet."""
    chosen = about["threshold"]
    return None if chosen is None else thresholds.from_json(chosen)


def describe(model: keras.Model) -> str:
    """A model of `join` in one line."""
    card = about(model)
    names, chosen = card["class_names"], threshold(card)
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    inputs = ", ".join(
        ("" if name is None else f"{name} ") + _input_text(tensor)
        for name, tensor in named_inputs.items(classifiers.named_tensors(model))
    )
    decision = "no threshold"
    if chosen is not None:
        decision = f"accepts {chosen.accepts}"
    return (
        f"<Judge of a classifier of {inputs}, {len(names)} classes "
        f"({shown}): {card['method']}, {'fitted' if card['fit'] else 'not fitted'}, {decision}>"
    )


def _input_text(tensor: Any) -> str:
    shape = ", ".join("?" if size is None else str(size) for size in tensor.shape[1:])
    return f"{tensor.dtype} [n, {shape}]"


def check_storable(model: keras.Model) -> None:
    """ValueError for a model that looks with a function on arrays."""
    for change in model._flatten_layers():
        own = change.layers if isinstance(change, keras.Model) else ()
        if any(isinstance(layer, OnArrays) for layer in own):
            name = change.name.removeprefix("look_")
            raise ValueError(
                f"looks: expected registered Keras layers or models, received {name!r}, a function "
                "on arrays, which no file can hold; write it as a Keras layer with "
                "@keras.saving.register_keras_serializable(), and fit with that or without it"
            )


def save(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes a model of `join` as one `.keras` file; errors are those of `Judge.save`."""
    check_storable(model)
    path = files.as_path("path", path)
    if path.suffix != ".keras" or path.is_dir():
        raise ValueError(f"path: expected a name that ends with .keras, received {path}")
    classifiers.settle_policies(model)
    classifiers.check_loadable(model)
    files.check_folder("path", path.parent)
    with files.atomic_path(path) as temporary:
        # Keras goes by the ending.
        written = temporary.with_name(temporary.name + ".keras")
        try:
            model.save(written)
            written.replace(temporary)
        finally:
            written.unlink(missing_ok=True)


def has_card(model: Any) -> bool:
    """Whether a model is one of `join`."""
    return any(isinstance(layer, Card) for layer in getattr(model, "layers", ()))


def load(path: str | os.PathLike) -> keras.Model:
    """The model in a file that `Judge.save` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no such file.
    """
    model = classifiers.load(path)
    try:
        if not has_card(model):
            raise ValueError("a model without an estimator: btcp_tf.attach puts one on it")
        _check_about(about(model), model.output["probs"].shape[-1])
    except ValueError as error:
        raise ValueError(
            f"path: expected a file that Judge.save wrote, received {path} ({error})"
        ) from None
    return model


def _check_about(about: Mapping[str, Any], classes: int) -> None:
    """ValueError unless a card says all that a `Judge` needs."""
    missing = {"class_names", "method", "fit", "threshold", "calibration"} - about.keys()
    if missing:
        raise ValueError(f"none of {', '.join(sorted(missing))}")
    check_names(about["class_names"] or [None], classes)
    for name, kind in (("method", str), ("fit", dict | None), ("calibration", dict | None)):
        if not isinstance(about[name], kind):
            raise ValueError(f"{name} is {about[name]!r:.40}")
    if about["threshold"] is not None:
        thresholds.from_json(about["threshold"])
    input_checks.from_json(about.get("input_range"))
    known_parts(about)


def known_parts(about: Mapping[str, Any]) -> dict[str, Part]:
    """Samples that the estimator knows, by name of the part; none in files of version 0.1.0.

    Raises:
      ValueError: If the card does not say this in the form of `Part.to_json`.
    """
    parts = about.get("seen") or {}
    if not isinstance(parts, Mapping):
        raise ValueError(f"seen is {parts!r:.40}")
    return {name: Part.from_json(part) for name, part in parts.items()}


def calibration(about: Mapping[str, Any]) -> dict[str, Predictions]:
    """The answers that the threshold was chosen on, as `serving.saved_model.export` takes them."""
    rows = about.get("calibration")
    if not rows:
        return {}
    labels = None if rows["labels"] is None else np.array(rows["labels"])
    columns = {COLUMN: np.array(rows["uncertainty"], np.float64)}
    if REFERENCE in rows:
        columns[REFERENCE] = np.array(rows[REFERENCE], np.float64)
    groups, by = (
        None if rows.get(name) is None else np.array(rows[name]) for name in ("groups", "by")
    )
    found = Predictions(labels, None, np.array(rows["predicted"]), columns, groups, by)
    return {"calibration": found}


def class_names(names: Any, classes: int) -> list[str]:
    """k different names, cleaned of white space at their ends with a warning; none: the numbers.

    Raises:
      ValueError: If they are no k different names.

    >>> class_names((), 3)
    ['0', '1', '2']
    """
    cleaned, note = wording.class_names(check_names(names, classes), "class_names")
    if note:
        warn(note)
    return list(cleaned)


def check_names(names: Any, classes: int) -> list[str]:
    """k different names as a list; none: the numbers."""
    expected = f"class_names: expected {classes} names"
    # Sets have no order.
    if isinstance(names, str | bytes | Set | Mapping) or not hasattr(names, "__len__"):
        raise ValueError(f"{expected} in a list, received {names!r}")
    names = list(names)
    if not names:
        return [str(number) for number in range(classes)]
    for name in names:
        # One that no file can hold is none, nor is the mark of an answer that is missing.
        if not isinstance(name, str) or not name or not wording.is_utf8(name):
            raise ValueError(f"{expected}, each some text, received {name!r}")
    name, times = collections.Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{expected}, each once, received {name!r} {times} times")
    if len(names) != classes:
        raise ValueError(f"{expected}, received {len(names)}")
    return [str(name) for name in names]
