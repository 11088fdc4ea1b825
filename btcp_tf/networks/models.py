"""The networks: encoder, classifier and uncertainty estimator, as functional Keras models.

Everything is built from three named sub-models, so that a phase can freeze one,
an estimator can be trained on features alone, and later work can put an
estimator on a classifier it did not build.
"""

import math
import os
from collections.abc import Mapping

import keras
import numpy as np
from keras import layers, ops
from scipy import special

from btcp_tf.data.images import PIXELS
from btcp_tf.networks import classifiers
from btcp_tf.networks.encoders import ENCODERS
from btcp_tf.networks.evidence_layers import Residual, ResidualLogit


def build_model(
    encoder: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    feature_dim: int,
    estimator_activation: str = "sigmoid",
    synchronized: bool = False,
) -> keras.Model:
    """Builds image → (probs, uncertainty) with a shared encoder (paper, figure 1).

    Args:
      encoder: Name in `ENCODERS`.
      image_shape: Height, width, channels.
      num_classes: Number of classes, at least 2.
      feature_dim: Length of the feature vector that both heads read.
      estimator_activation: "sigmoid", or the prototype's "hard_sigmoid".
      synchronized: Whether BatchNorm sums its statistics over replicas.

    Returns:
      A functional model from uint8 images `[n, height, width, channels]` to
      `probs` `[n, num_classes]` and `uncertainty` `[n, 1]` in [0, 1].

    Raises:
      ValueError: If the encoder is unknown, or the images are too small for it.

    >>> model = build_model("small", (8, 8, 1), 10, feature_dim=16)
    >>> [(name, tuple(output.shape)) for name, output in model.output.items()]
    [('probs', (None, 10)), ('uncertainty', (None, 1))]
    """
    if encoder not in ENCODERS:
        raise ValueError(f"encoder: expected one of {', '.join(ENCODERS)}, received {encoder!r}")
    if num_classes < 2:
        raise ValueError(f"num_classes: expected at least 2, received {num_classes}")
    image = keras.Input(image_shape, dtype="uint8", name="image")
    # Scaling lives in the graph: whoever serves the model sends pixels as they are.
    pixels = layers.Rescaling(1.0 / 255, name="scale")(image)
    features = ENCODERS[encoder](pixels, feature_dim, synchronized)
    return assemble(
        keras.Model(image, features, name="encoder"),
        build_classifier(feature_dim, num_classes),
        build_estimator(feature_dim, activation=estimator_activation),
    )


def adopt(
    path: str | os.PathLike,
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    pixels: str = "0_255",
    estimator_activation: str = "sigmoid",
) -> keras.Model:
    """Builds a model like that of `build_model` around a trained classifier.

    Args:
      path: Its `.keras` file, see `classifiers.take_apart`.
      image_shape: Height, width, channels of the images.
      num_classes: Number of classes, at least 2.
      pixels: The scale of its inputs, of `data.PIXELS`. Models of whole numbers take pixels as
        they are.
      estimator_activation: See `build_model`.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: As `classifiers.take_apart`; and if it takes other images, or has another number
        of classes.
    """
    original = classifiers.load(path, "classifier")
    inputs = getattr(original, "inputs", None)
    dtype = inputs[0].dtype if inputs else "float32"
    example = None
    if not inputs or None in inputs[0].shape[1:]:
        random = np.random.default_rng(0)
        example = random.integers(0, 256, (8, *image_shape)).astype(dtype)
    encoder, classifier = classifiers.take_apart(original, example=example)
    classes = classifier.output_shape[1]
    if classes != num_classes:
        raise ValueError(
            f"classifier: expected answers of the {num_classes} classes of the data set, received "
            f"{path} of {classes}"
        )
    image = keras.Input(image_shape, dtype="uint8", name="image")
    x = image
    if "float" in dtype:
        x = layers.Rescaling(*PIXELS[pixels], name="scale")(x)
    elif dtype != "uint8":
        x = ops.cast(x, dtype)
    wanted = encoder.input_shape[1:]
    if None not in wanted and wanted != image_shape:
        # Without the axis of a single channel, or flat.
        if math.prod(wanted) != math.prod(image_shape) or len(wanted) == 3:
            raise ValueError(
                f"classifier: expected a model that reads images of {image_shape}, received {path} "
                f"that reads {wanted}"
            )
        x = layers.Reshape(wanted, name="shape")(x)
    return assemble(
        keras.Model(image, encoder(x), name="encoder"),
        classifier,
        build_estimator(classifier.input_shape[1], activation=estimator_activation),
    )


def reads_whole_numbers(model: keras.Model) -> bool:
    """Whether a model of `adopt` takes pixels as they are, whatever the argument `pixels`."""
    return "scale" not in [layer.name for layer in model.get_layer("encoder").layers]


def assemble(encoder: keras.Model, classifier: keras.Model, estimator: keras.Model) -> keras.Model:
    """Joins three sub-models into image → {`probs`, `uncertainty`}; weights are shared."""
    image = keras.Input(encoder.input_shape[1:], dtype=encoder.inputs[0].dtype, name="image")
    features = encoder(image)
    outputs = {"probs": classifier(features), "uncertainty": estimator(features)}
    return keras.Model(image, outputs, name="btcp")


def with_logit(model: keras.Model) -> keras.Model:
    """A model that also answers logit(u), where its u is made of one.

    That is u of MCP and of the residual estimator. A trained estimator is left as it is: its
    u is what its last activation, sigmoid or hard sigmoid, was trained to give, and float32 holds
    apart what it ranks as sure down to 1e-38.

    Args:
      model: Functional, inputs → `probs` `[n, k]` and `uncertainty` `[n, 1]`.

    Returns:
      The model itself; or one of the same layers with `logit` and `mcp_logit`, MCP's, float32
      `[n, 1]`, beside the others. u is the sigmoid of `logit`. The few weights behind u are copied,
      all others are shared.
    """
    u = model.output["uncertainty"]
    while True:
        layer, node, _ = u._keras_history
        inputs = layer._inbound_nodes[node].input_tensors
        if not getattr(layer, "passes_on_first", False):
            break
        u = inputs[0]
    if not isinstance(layer, Residual):
        return model
    twin = ResidualLogit(layer.read, name="logit_of_u")
    logit = twin(inputs)
    twin.set_weights(layer.get_weights())
    outputs = {**model.output, "uncertainty": ops.sigmoid(logit), "logit": logit}
    outputs["mcp_logit"] = inputs[0]
    return keras.Model(model.input, outputs, name=model.name)


def uncertainty_of(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """u `[n]` float64 from the outputs of a model of `with_logit`.

    >>> uncertainty_of({"logit": np.float32([[0.0]])}).tolist()
    [0.5]
    """
    if "logit" in outputs:
        return special.expit(outputs["logit"][:, 0].astype(np.float64))
    return outputs["uncertainty"][:, 0].astype(np.float64)


def outputs_model(model: keras.Model) -> keras.Model:
    """Inputs → {`features`, `logits`, `probs`}, the inputs of the methods; weights are shared."""
    encoder, classifier = model.get_layer("encoder"), model.get_layer("classifier")
    inputs = classifiers.new_inputs(classifiers.named_tensors(encoder))
    features = encoder(inputs)
    logits, probs = classifiers.both_ends(classifier)(features)
    return keras.Model(inputs, {"features": features, "logits": logits, "probs": probs})


def build_classifier(feature_dim: int, num_classes: int) -> keras.Model:
    """features `[n, feature_dim]` → probs `[n, num_classes]`; its layer "logits" is linear."""
    features = keras.Input((feature_dim,), name="features")
    # float32 whatever the policy: a half-precision softmax makes u = 1 - p coarse near 0.
    logits = layers.Dense(num_classes, dtype="float32", name="logits")(features)
    return keras.Model(
        features, layers.Softmax(dtype="float32", name="probs")(logits), name="classifier"
    )


def build_estimator(feature_dim: int, *, activation: str = "sigmoid") -> keras.Model:
    """features `[n, feature_dim]` → uncertainty `[n, 1]` in [0, 1] (four hidden layers of 400)."""
    features = x = keras.Input((feature_dim,), name="features")
    for number in range(1, 5):
        x = layers.Dense(400, activation="relu", name=f"hidden{number}")(x)
    u = layers.Dense(1, activation=activation, dtype="float32", name="uncertainty")(x)
    return keras.Model(features, u, name="estimator")
