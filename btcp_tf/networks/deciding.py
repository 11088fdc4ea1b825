"""A model with looks that computes only those which can change a decision."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from btcp_tf.networks.classifiers import named_tensors
from btcp_tf.networks.correction_layers import CopyCorrection
from btcp_tf.networks.gate_layers import (
    BehindGate,
    LookEvidence,
    Ramp,
    RowLimit,
    Scatter,
    Undecided,
)

_GROUP = "group_of_row"
"""Name of the input of a model by group that tells the group."""


def decide_only(
    model: keras.Model, limits: Sequence[float], groups: Sequence[str] = ()
) -> keras.Model:
    """The same model for decisions by given thresholds; weights are shared.

    What a look may answer is bounded, and so is logit(u) once all but the looks is known. Where
    that whole interval is on one side of the row's limit, no look is computed: u is what it would
    be if each look were as sure as MCP, which is on the right side, and the second opinion is the
    classifier's answer. With a correction for corrupted inputs the interval is that of all kinds
    of corruptions together.

    Args:
      model: With the residual estimator and looks, from `residual_model` or `attached.model.join`.
      limits: `logit(u) < limit` is accepted, with the limit of the predicted class, `[k]`; or with
        that of the row's group, `[g + 1]`, of which the last is for all other groups.
      groups: Names of g groups; none: the limits are of classes. Where there are some, the model
        also takes the group of each row as text, see `asked`.

    Raises:
      ValueError: If it has no looks.
    """
    if "second_opinion" not in model.output:
        raise ValueError(
            "decide_only: expected an estimator that uses looks, received one without; it has "
            "nothing to save: export it as it is"
        )
    residual, ramp, looks, second = map(
        model.get_layer, ("residual", "ramp", "looks", "second_opinion")
    )
    gate, width = ramp.gate, looks.output.shape[1]
    corrects = any(layer.name == "copies" for layer in model.layers)
    z, *free = residual.input[: -2 if corrects else -1]
    z_behind, *paid, _ = ramp.input
    inputs_behind, logits_behind, logits = model.input, second.input[1], second.input[1]
    weighted = Ramp(gate)([z_behind, *paid])
    if gate is not None:
        inputs_behind = model.get_layer("unsure_inputs").output
        logits = model.get_layer("unsure_logits").input[1]
        weighted = Scatter(gate)([z, weighted])
    weight = weighted[:, :1]

    copies = model.get_layer("copies") if corrects else None
    a, b, h = residual.get_weights()
    slopes, bias, offsets = forms(a, b, h, copies)
    known_columns = ops.concatenate([z, *free, weighted], axis=1)
    logit = _sum(known_columns, slopes[:-width], bias, "without_looks")
    if copies is not None:
        predicted = ops.one_hot(ops.argmax(logits, axis=1), copies.classes, dtype="float32")
        logit = logit + _sum(predicted, offsets, None, "without_looks_classes")
    group = keras.Input((), dtype="string", name=_GROUP) if groups else None
    limit = RowLimit(limits, groups, name="row_limit")(
        model.output["probs"] if group is None else group
    )
    undecided = Undecided(slopes[-width:].T.tolist(), name="undecided")([z, logit, weight, limit])

    # What was computed behind the gate, now of fewer rows.
    known: dict[int, Any] = {}
    for name, old, values in (
        ("inputs", inputs_behind, model.input),
        ("logits", logits_behind, logits),
        ("z", z_behind, z),
    ):
        rows = BehindGate(0.0, name=f"undecided_{name}")([undecided, values])
        pairs = zip(tree.flatten(old), tree.flatten(rows), strict=True)
        known |= {id(one): again for one, again in pairs}
    columns, change = (_again(tensor, known) for tensor in (looks.output, second.output))
    # Odds are clipped there.
    skipped = LookEvidence()([z] * (1 + width // 2))
    columns = ops.where(undecided > 0, Scatter(0.0)([undecided, columns]), skipped)
    weighted = ops.concatenate([weighted, weight * columns], axis=1)
    read = [z, *free, weighted]
    if copies is not None:
        features = copies.input[1 + len(read) :]
        read.append(copies([logits, *read, *features]))
    outputs = {
        "probs": model.output["probs"],
        "uncertainty": residual(read),
        "second_opinion": ops.softmax(logits, axis=1) + Scatter(0.0)([undecided, change]),
    }
    taken = model.input
    if group is not None:
        own = named_tensors(model)
        taken = {**(own if isinstance(own, dict) else {own.name: own}), _GROUP: group}
    return keras.Model(taken, outputs, name=model.name)


def _takes_group(model: keras.Model) -> bool:
    return any(isinstance(one, RowLimit) and one.groups for one in model.layers)


def own_inputs(model: keras.Model) -> Any:
    """`named_tensors` of a model, without the group that one of `decide_only` may take."""
    taken = named_tensors(model)
    if not _takes_group(model):
        return taken
    own = {name: one for name, one in taken.items() if name != _GROUP}
    return own if len(own) > 1 else next(iter(own.values()))


def asked(model: keras.Model, inputs: Any, group: Any) -> Any:
    """What a model is called with.

    Args:
      model: Any; one of `decide_only` by group takes the group, too.
      inputs: As `own_inputs` has them: one, or several by name.
      group: The group of each row as text, `[n]`; None where there are no groups.
    """
    if not _takes_group(model):
        return inputs
    own = own_inputs(model)
    return {**(inputs if isinstance(own, dict) else {own.name: inputs}), _GROUP: group}


def forms(
    a: float, b: float, h: np.ndarray, copies: CopyCorrection | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What logit(u) is for inputs as they are, and for each of v kinds of corrupted ones; with a
    correction it is between these.

    Args:
      a: Weight of MCP's logit.
      b: What is added.
      h: Weights of the evidence, `[e]`; with a correction its weight, 1, is the last.
      copies: The correction; None: there is none.

    Returns:
      Weights of MCP's logit and of the evidence, `[1 + e, 1 + v]`; what is added, `[1 + v]`; and
      what is added for each predicted class, `[k, 1 + v]`.
    """
    own = np.append(a, h)[:, None]
    if copies is None:
        return own, np.array([b]), np.zeros((0, 1))
    more, intercepts, offsets = map(
        ops.convert_to_numpy, (copies.slopes, copies.intercepts, copies.offsets)
    )
    return (
        own[:-1] + np.pad(more, ((0, 0), (1, 0))),
        b + np.append(0.0, intercepts),
        np.pad(offsets, ((0, 0), (1, 0))),
    )


def _sum(columns: Any, weights: np.ndarray, bias: np.ndarray | None, name: str) -> Any:
    """columns · weights + bias, of Keras tensors."""
    layer = keras.layers.Dense(
        weights.shape[1], use_bias=bias is not None, dtype="float32", name=name
    )
    total = layer(columns)
    layer.set_weights([weights] if bias is None else [weights, bias])
    return total


def _again(tensor: Any, known: dict[int, Any]) -> Any:
    """A tensor of a model, computed by the same layers from other tensors.

    Args:
      tensor: A Keras tensor.
      known: By its id what stands for a tensor; those that are computed are added.
    """
    if id(tensor) not in known:
        layer, number, _ = tensor._keras_history
        node = layer._inbound_nodes[number]
        args, named = tree.map_structure(
            lambda one: _again(one, known) if isinstance(one, keras.KerasTensor) else one,
            (node.arguments.args, node.arguments.kwargs),
        )
        outputs = tree.flatten(layer(*args, **named))
        known |= {id(old): new for old, new in zip(node.output_tensors, outputs, strict=True)}
    return known[id(tensor)]
