"""A model with looks that computes only those which can change a decision."""

from typing import Any

import keras
from keras import ops, tree

from btcp_tf.networks.evidence_layers import ResidualLogit
from btcp_tf.networks.gate_layers import BehindGate, LookEvidence, Ramp, Scatter, Undecided


def decide_only(model: keras.Model, limit: float) -> keras.Model:
    """The same model for decisions by one threshold; weights are shared.

    What a look may answer is bounded, and so is logit(u) once all but the looks is known. Where
    that whole interval is on one side of the limit, no look is computed: u is what it would be if
    each look were as sure as MCP, which is on the right side, and the second opinion is the
    classifier's answer.

    Args:
      model: With the residual estimator and looks, from `residual_model` or `attached.model.join`.
      limit: `logit(u) < limit` is accepted.

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
    z, *free, _ = residual.input
    z_behind, *paid, _ = ramp.input
    inputs_behind, logits_behind, logits = model.input, second.input[1], second.input[1]
    weighted = Ramp(gate)([z_behind, *paid])
    if gate is not None:
        inputs_behind = model.get_layer("unsure_inputs").output
        logits = model.get_layer("unsure_logits").input[1]
        weighted = Scatter(gate)([z, weighted])
    weight = weighted[:, :1]

    a, b, h = residual.get_weights()
    without = ResidualLogit(read=len(h) - width, name="without_looks")
    logit = without([z, *free, weighted])
    without.set_weights([a, b, h[:-width]])
    undecided = Undecided(h[-width:, 0].tolist(), limit, name="undecided")([z, logit, weight])

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
    outputs = {
        "probs": model.output["probs"],
        "uncertainty": residual([z, *free, weighted]),
        "second_opinion": ops.softmax(logits, axis=1) + Scatter(0.0)([undecided, change]),
    }
    return keras.Model(model.input, outputs, name=model.name)


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
