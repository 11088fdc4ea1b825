"""MC dropout: a network whose dropout is always on, cut where the first of it begins."""

from typing import Any

import keras
from keras import layers

from btcp_tf.networks.classifiers import named_tensors, new_inputs
from btcp_tf.networks.looks import dropout_layers, through


class _AlwaysOn(layers.Layer):
    """A layer of dropout that drops in inference mode, too."""

    def __init__(self, dropout: layers.Layer) -> None:
        super().__init__(name=dropout.name, dtype=dropout.dtype_policy)
        self.dropout = dropout
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        return self.dropout(inputs, training=True)


def dropout_models(model: keras.Model, seed: int) -> tuple[keras.Model, keras.Model]:
    """The classifier with its dropout always on, cut in two where the first of it begins.

    Everything else, BatchNorm too, is in inference mode. Weights are those of `model`, which no
    pass changes; the layers of dropout, and their random states, are new. Models inside of the
    encoder are looked into, and what leads past the dropout is no obstacle: whatever does not
    depend on a mask is computed before the cut. What other layers drop by themselves (attention,
    recurrent layers, wrappers) is not dropped.

    Args:
      model: From `assemble`.
      seed: Seed of the masks; the n-th pass after the call always draws the same.

    Returns:
      `(before, after)`: inputs → a tensor, or a list of several, the same in every pass; and that →
      probs, which differ in every pass.

    Raises:
      ValueError: If the encoder has no dropout.
    """
    encoder, classifier = model.get_layer("encoder"), model.get_layer("classifier")
    dropping = dropout_layers(encoder)
    if not dropping:
        raise ValueError(
            f"expected a network with dropout for mc_dropout, received {encoder.name} of layers "
            f"{', '.join(layer.name for layer in encoder.layers)}"
        )
    always_on = {
        id(layer): _AlwaysOn(type(layer).from_config(layer.get_config() | {"seed": seed + place}))
        for place, layer in enumerate(dropping)
    }
    inputs = new_inputs(named_tensors(encoder))
    whole = keras.Model(inputs, classifier(through(encoder, inputs, always_on), training=False))
    fixed = _fixed(whole)
    after = keras.Model(fixed, whole.output)
    after.supports_masking = True  # What it is given may have a mask, which its layers read.
    return keras.Model(inputs, fixed), after


def _fixed(model: keras.Model) -> list[Any]:
    """The tensors of a graph that no dropout has a part in, but that are read where it has."""
    random: set[int] = set()
    fixed: dict[int, Any] = {}
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            read = {id(tensor): tensor for tensor in node.input_tensors}
            if isinstance(node.operation, _AlwaysOn) or random & read.keys():
                random |= {id(tensor) for tensor in node.outputs}
                fixed |= {key: tensor for key, tensor in read.items() if key not in random}
    return list(fixed.values())
