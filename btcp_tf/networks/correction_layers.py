"""The Keras layer that corrects u where an input looks corrupted; see `methods.corrections`."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from btcp_tf.networks.evidence_layers import Float32Layer

_PACKAGE = "btcp_tf"

_FARTHEST = 6.0
"""Standard deviations by which a column counts at most."""


@keras.saving.register_keras_serializable(_PACKAGE)
class CopyCorrection(Float32Layer):
    """(logits `[n, k]`, z `[n, 1]`, evidence `[n, e]`, …, perhaps features or the quality of images
    `[n, f]`) → what is added to logit(u), `[n, 1]`: `methods.corrections.Correction` in a graph.

    As it is made, it adds 0.

    Args:
      classes: Number of classes, k.
      read: Columns of z and all evidence together.
      features: Columns of the last input; 0: there is none.
      kinds: Kinds of corruptions.
      of_images: The last input is the quality of images, from `ImageQuality`, not features.
    """

    _arguments = ("classes", "read", "features", "kinds", "of_images")

    def __init__(
        self,
        classes: int,
        read: int,
        features: int,
        kinds: int,
        of_images: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.classes = classes
        self.read = read
        self.features = features
        self.kinds = kinds
        self.of_images = of_images
        width = read + features
        self.mean = self._constant("mean", width)
        self.scale = self._constant("scale", width, start="ones")
        self.kernel = self._constant("kernel", 2 * width, 1 + kinds)
        self.bias = self._constant("bias", 1 + kinds)
        self.slopes = self._constant("slopes", read, kinds)
        self.intercepts = self._constant("intercepts", kinds)
        self.offsets = self._constant("offsets", classes, kinds)

    def call(self, inputs: Sequence[Any]) -> Any:
        logits, *columns = inputs
        x = ops.concatenate(columns, axis=1)
        near = ops.clip((x - self.mean) / self.scale, -_FARTHEST, _FARTHEST)
        near = ops.concatenate([near, ops.square(near)], axis=1)
        shares = ops.softmax(ops.matmul(near, self.kernel) + self.bias, axis=1)
        own = ops.take(self.offsets, ops.argmax(logits, axis=1), axis=0)
        added = ops.matmul(x[:, : self.read], self.slopes) + self.intercepts + own
        return ops.sum(shares[:, 1:] * added, axis=1, keepdims=True)

    def compute_output_spec(self, inputs: Sequence[Any]) -> Any:
        return keras.KerasTensor((inputs[0].shape[0], 1), dtype="float32")
