"""Takes anyone's Keras classifier apart: an encoder, and a classifier on its features.

The parts are copies, so that the original stays as it is. Together they give its outputs, which is
tried out before they are returned.
"""

import os
import random
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from btcp_tf import metrics
from btcp_tf.networks import keras_files

_PACKAGE = "btcp_tf"


@keras.saving.register_keras_serializable(_PACKAGE)
class TwoLogits(layers.Layer):
    """One logit z `[n, 1]` of a binary classifier → the logits (0, z) of its two classes."""

    def call(self, z: Any) -> Any:
        return ops.concatenate([ops.zeros_like(z), z], axis=1)


@keras.saving.register_keras_serializable(_PACKAGE)
class TwoProbs(layers.Layer):
    """Logits (0, z) → (1 − p, p) with p = sigmoid(z), as a sigmoid output has it."""

    def call(self, logits: Any) -> Any:
        p = ops.sigmoid(logits[:, 1:])
        return ops.concatenate([1.0 - p, p], axis=1)


_TAPPED = threading.RLock()


@keras.saving.register_keras_serializable(_PACKAGE)
class Tap(layers.Layer):
    """The input or output of one layer inside a model, in inference mode.

    For layers that are no node of the model's own graph: those of a subclassed model, or inside of
    a nested one.

    Args:
      model: The whole model.
      position: Index of the layer in `flat_layers(model)`.
      side: "input" or "output".
    """

    def __init__(self, model: keras.Model, position: int, side: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.model = model
        self.position = position
        self.side = side

    def call(self, inputs: Any) -> Any:
        layer = flat_layers(self.model)[self.position]
        seen = []

        # One thread's tracing must not see what another put in the layer's place.
        with _TAPPED:
            original = layer.call

            def call(x: Any, *rest: Any, **named: Any) -> Any:
                answer = original(x, *rest, **named)
                seen.append(x if self.side == "input" else answer)
                return answer

            layer.call = call
            try:
                self.model(inputs, training=False)
            finally:
                layer.call = original
        if not seen:
            raise ValueError(f"expected a layer that the model uses, received {layer.name}")
        return seen[-1]

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        own = {"model": model, "position": self.position, "side": self.side}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Tap":
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


def take_apart(
    classifier: keras.Model | str | os.PathLike,
    features: str = "",
    *,
    example: np.ndarray | None = None,
    from_logits: bool | None = None,
) -> tuple[keras.Model, keras.Model]:
    """Takes a classifier apart into an encoder and a classifier on its features.

    Args:
      classifier: A built Keras model with one input, or the path of a `.keras` file. Its last
        layer with weights is a `Dense` layer, and its answers are logits or softmax
        probabilities `[n, k]` of k ≥ 2 classes, or the sigmoid (or logit) `[n, 1]` of the second
        of two classes. Functional, Sequential, or a subclass that Keras can save.
      features: Name of the layer whose output are the features; "": they are the input of the last
        `Dense` layer. Features are vectors.
      example: A few inputs `[n, ...]`. Needed where the model does not know the shape of its
        input, or takes other inputs than numbers.
      from_logits: Whether the answers are logits (True) or probabilities (False). None: the answers
        tell, and logits of a model that was compiled with the loss of a regression (mse, mae, …)
        are refused: they are no classifier's. A model that is not compiled does not say what its
        numbers mean: one alone is taken for the logit of the second of two classes.

    Returns:
      `encoder`: inputs → features `[n, d]`; and `classifier`: features → probs `[n, k]`, with the
      layers `logits` `[n, k]` and `probs`.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no Keras model, is not built, cannot be copied, has several inputs or
        outputs, has no such layer, answers with other than finite class scores (a regression, say),
        or cannot be taken apart there; or if it does not take the example.

    >>> model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2, "softmax")])
    >>> encoder, classifier = take_apart(model)
    >>> encoder.output_shape, classifier.output_shape
    ((None, 3), (None, 2))
    """
    original = _loaded(classifier)
    copied = copy(original)
    if example is not None:
        example = metrics.array("example", example)
    inputs = _inputs(copied, example)
    trial = _trial(inputs, example)
    answers = _answers(original, trial, example)
    _check_answers(answers)
    for encoder, head in _parts(copied, inputs, features, answers.shape[1]):
        if end := _end(encoder, head, trial, answers):
            _check_meaning(original, end == "logits", from_logits)
            return encoder, head
    raise ValueError(
        "classifier: expected answers that are the softmax, the sigmoid or the logits of its last "
        f"Dense layer, received others from {original.name}"
        + (f" with {features} as features" if features else "")
        + (
            f"; they are {answers.dtype}, and apart from it a softmax rounds otherwise: make it a "
            "layer of its own with dtype float32"
            if answers.dtype.itemsize == 2
            else ""
        )
    )


def flat_layers(model: keras.Model) -> list[layers.Layer]:
    """All layers inside a model, at any depth, in the order in which they were made."""
    return list(model._flatten_layers(include_self=False))


def both_ends(classifier: keras.Model) -> keras.Model:
    """features → [logits, probs]; weights are shared."""
    return keras.Model(
        classifier.input, [classifier.get_layer("logits").output, classifier.output], name="ends"
    )


def last_dense(classifier: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Kernel `[d, k]` and bias `[k]` that make the logits of a head of `take_apart` or alike."""
    names = [layer.name for layer in classifier.layers]
    layer = classifier.get_layer("logit" if "logit" in names else "logits")
    kernel = ops.convert_to_numpy(layer.kernel)
    bias = ops.convert_to_numpy(layer.bias) if layer.use_bias else np.zeros(kernel.shape[1])
    if layer.name == "logit":  # TwoLogits: that of the first class is 0.
        kernel, bias = np.hstack([np.zeros_like(kernel), kernel]), np.append(0.0, bias)
    return kernel, bias


def load(path: str | os.PathLike, what: str = "path") -> keras.Model:
    """Reads a `.keras` file.

    Args:
      path: The file.
      what: Name of the argument, for errors; as "classifier", the file of a `Judge` is refused.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no path, or Keras cannot load the file.
    """
    check = keras_files.check_classifier if what == "classifier" else keras_files.check_file
    file = check(what, path)
    try:
        model = keras.models.load_model(file, compile=False)
        # It says what the answers are meant to be.
        model.loss = keras_files.loss_in(file)
        return model
    except Exception as error:  # Whatever a damaged or foreign file raises.
        why = reason(error)
        if name := _unknown(error):
            why = (
                f"it holds {name}, which is not registered here: import the module that registers "
                "it, or load inside of keras.saving.custom_object_scope"
            )
        raise ValueError(
            f"{what}: expected a .keras file that Keras can load, received {file} ({why})"
        ) from error


def check_loadable(model: keras.Model) -> None:
    """ValueError for a model that Keras would write into a file from which it cannot read it.

    That is one with a class or function that is not registered: only by its registered name will
    Keras find it again.
    """
    # The random numbers of layers that are thrown away are not the caller's business.
    state = random.getstate()
    try:
        keras.models.model_from_json(model.to_json())
    except Exception as error:  # Whatever foreign code raises.
        raise ValueError(
            "classifier: expected one that Keras can read from a file again, received one with "
            f"{_obstacle(error)}"
        ) from error
    finally:
        random.setstate(state)


def _obstacle(error: Exception) -> str:
    """What in a model Keras cannot read or copy."""
    if name := _unknown(error):
        return (
            f"{name}, which is not registered: put @keras.saving.register_keras_serializable() "
            "before it, and import it wherever the file is read"
        )
    return f"what it cannot read: {reason(error)}"


def _unknown(error: Exception) -> str:
    """Name of a class or function that Keras did not find; "": it failed otherwise."""
    match = re.search(r"Could not locate (?:class|function) '([^']+)'", str(error))
    return match[1] if match else ""


def reason(error: Exception) -> str:
    """In a line why Keras could not make an object; it hands on reasons inside of others."""
    message = str(error)
    if "enable_unsafe_deserialization" in message:
        return (
            "a Lambda layer holds Python code, which Keras runs only after "
            "keras.config.enable_unsafe_deserialization(); where you trust it, call that first, "
            "or put a registered layer in its place"
        )
    first = message.rpartition("Exception encountered: ")[2].strip().splitlines()
    return first[0] if first else type(error).__name__


def _loaded(classifier: keras.Model | str | os.PathLike) -> keras.Model:
    if isinstance(classifier, str | os.PathLike):
        classifier = load(classifier, "classifier")
    if not isinstance(classifier, keras.Model):
        raise ValueError(
            "classifier: expected a Keras model or the path of a .keras file, received "
            f"{type(classifier).__name__}"
        )
    if not classifier.built or not classifier.weights:
        raise ValueError(
            "classifier: expected a model that is built and has weights, received "
            f"{classifier.name} without; call it on some inputs first"
        )
    return classifier


def copy(model: keras.Model) -> keras.Model:
    """A model of the same layers with weights of its own.

    Raises:
      ValueError: If Keras cannot copy it.
    """
    if _is_graph(model):
        # Of the same layers, but not compiled: a loss of one's own need not be known to Keras.
        model = keras.Model(model.inputs, model.outputs, name=model.name)
        try:
            twin = keras.models.clone_model(model)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"classifier: expected a model that Keras can copy, received {model.name} with "
                f"{_obstacle(error)}"
            ) from error
    else:
        try:
            twin = type(model).from_config(model.get_config())
            twin.build_from_config(model.get_build_config())
        except (NotImplementedError, TypeError, ValueError) as error:
            raise ValueError(
                "classifier: expected a model that Keras can save, with get_config() and "
                f"from_config(), received a {type(model).__name__} without"
            ) from error
    twin.set_weights(model.get_weights())
    for layer, other in zip(flat_layers(model), flat_layers(twin), strict=True):
        # An adapted vocabulary is no weight; Keras knows it as files of the layer.
        if hasattr(layer, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                other.load_assets(folder)
        # An adapted Normalization computes what it applies from its weights here, once.
        if hasattr(other, "finalize_state"):
            other.finalize_state()
    return twin


def _is_graph(model: keras.Model) -> bool:
    """Whether the model is a graph of layers: functional, or a built Sequential."""
    return bool(getattr(model, "inputs", None) and getattr(model, "outputs", None))


def _inputs(model: keras.Model, example: np.ndarray | None) -> Any:
    """The model's input, symbolic."""
    if _is_graph(model):
        if len(model.inputs) != 1 or len(model.outputs) != 1:
            raise ValueError(
                "classifier: expected one input and one output, received "
                f"{len(model.inputs)} and {len(model.outputs)}"
            )
        own = model.inputs[0]
        return keras.Input(own.shape[1:], dtype=own.dtype, name="image")
    if example is not None:
        kind = "string" if example.dtype.kind in "OSU" else example.dtype.name
        return keras.Input(example.shape[1:], dtype=kind, name="image")
    shape = (model.get_build_config() or {}).get("input_shape")
    if not isinstance(shape, list | tuple) or None in shape[1:]:
        raise ValueError(
            f"example: expected a few inputs of {model.name}, which does not know their shape, "
            "received none"
        )
    return keras.Input(shape[1:], name="image")


def _trial(inputs: Any, example: np.ndarray | None) -> Any:
    """A few inputs to compare answers on."""
    if example is not None:
        if not example.ndim or not example.size:
            received = "none" if example.ndim else f"{example.dtype} ()"
            raise ValueError(f"example: expected at least one input [n, ...], received {received}")
        return ops.convert_to_tensor(example[:16])
    if inputs.dtype == "string":
        raise ValueError("example: expected a few inputs of a model that reads text, received none")
    if None in inputs.shape[1:]:
        raise ValueError(
            f"example: expected a few inputs of a model with the input {inputs.shape}, "
            "received none"
        )
    random = np.random.default_rng(0)
    shape = (8, *inputs.shape[1:])
    if "float" in inputs.dtype:
        # Standardized numbers for some models, pixels for others: what sets an answer apart from
        # its parts, a limit say, may not show on the other kind.
        numbers = np.concatenate([random.normal(size=shape), random.uniform(0, 255, shape)])
        return ops.convert_to_tensor(numbers, inputs.dtype)
    # Pixels, or tokens: any vocabulary has two.
    top = 256 if inputs.dtype == "uint8" else 2
    return ops.convert_to_tensor(random.integers(0, top, shape), inputs.dtype)


def _answers(original: keras.Model, trial: Any, example: np.ndarray | None) -> np.ndarray:
    """What the model says to the trial."""
    try:
        return ops.convert_to_numpy(original(trial, training=False))
    except (TypeError, ValueError) as error:
        if example is None:
            raise
        raise ValueError(
            f"example: expected inputs that {original.name} takes, received {example.dtype} "
            f"{example.shape}"
        ) from error


def _check_answers(answers: np.ndarray) -> None:
    if answers.ndim != 2 or not answers.shape[1]:
        raise ValueError(
            f"classifier: expected class scores [n, k], received answers of shape {answers.shape}"
        )
    if not np.isfinite(answers).all():
        raise ValueError("classifier: expected finite class scores, received NaN or infinity")


def _parts(
    model: keras.Model, inputs: Any, features: str, width: int
) -> Iterator[tuple[keras.Model, keras.Model]]:
    """Ways to take the model apart, the most likely one first."""
    dense = _last_dense(model) if _is_graph(model) else None
    if dense is not None and (not features or features in [layer.name for layer in model.layers]):
        yield _cut(model, dense, features)
        return
    inside = flat_layers(model)
    names = [layer.name for layer in inside]
    if features and names.count(features) != 1:
        raise ValueError(
            f"features: expected the name of one layer of {_list(names)}, received {features!r}"
        )
    dense_layers = [n for n, layer in enumerate(inside) if isinstance(layer, layers.Dense)]
    fitting = [n for n in reversed(dense_layers) if inside[n].units == width]
    if not fitting:
        raise ValueError(
            f"classifier: expected a last Dense layer of {width} units, received {model.name} of "
            f"{_list(names)}"
        )
    for position in fitting:
        read = (names.index(features), "output") if features else (position, "input")
        vectors = Tap(model, *read, name="tap")(inputs)
        _check_vectors(vectors.shape, features or f"what {names[position]} reads")
        start = keras.Input(vectors.shape[1:], name="features")
        yield keras.Model(inputs, vectors, name="encoder"), _head(start, start, inside[position])


def _list(names: Sequence[str]) -> str:
    """The last names, where features are looked for, and how many others there are."""
    names = list(dict.fromkeys(names))
    others = f"{len(names) - 12} others, " if len(names) > 13 else ""
    return others + ", ".join(names[-12:] if others else names)


def _last_dense(model: keras.Model) -> layers.Dense | None:
    """The Dense layer that makes the answers of a graph, an activation behind it aside."""
    last = _maker(model, model.outputs[0])
    if isinstance(last, layers.Softmax | layers.Activation):
        last = _maker(model, last.input)
    return last if isinstance(last, layers.Dense) else None


def _maker(model: keras.Model, tensor: Any) -> Any:
    """The operation of a graph that makes a tensor."""
    for operation in model.operations:
        try:
            if operation.output is tensor:
                return operation
        except (AttributeError, ValueError):  # It has no output of its own, or several.
            continue
    return None


def _cut(model: keras.Model, dense: layers.Dense, features: str) -> tuple[keras.Model, keras.Model]:
    """The parts of a graph of layers before and behind the features."""
    read = dense.input
    vectors = model.get_layer(features).output if features else read
    _check_vectors(vectors.shape, features or f"what {dense.name} reads")
    start = x = keras.Input(vectors.shape[1:], name="features")
    if vectors is not read:
        try:
            x = keras.Model(vectors, read, name="between")(start)
        except ValueError as error:
            raise ValueError(
                f"features: expected a layer that all of the answer passes through, received "
                f"{features}"
            ) from error
    return keras.Model(model.inputs[0], vectors, name="encoder"), _head(start, x, dense)


def _check_vectors(shape: tuple[int | None, ...], what: str) -> None:
    if len(shape) != 2 or shape[1] is None:
        raise ValueError(
            f"features: expected vectors [n, d], received {what} of shape {tuple(shape)}; name a "
            "layer behind the pooling"
        )


def _head(start: Any, x: Any, dense: layers.Dense) -> keras.Model:
    """features → probs, with a copy of the last layer."""
    one = dense.units == 1
    copy = layers.Dense(
        dense.units,
        use_bias=dense.use_bias,
        dtype=dense.dtype_policy,
        name="logit" if one else "logits",
    )
    logits = copy(x)
    copy.set_weights(dense.get_weights())
    if one:
        logits = TwoLogits(name="logits")(logits)
        probs = TwoProbs(dtype="float32", name="probs")(logits)
    else:
        # float32 whatever the policy: a half-precision softmax makes u = 1 - p coarse near 0.
        probs = layers.Softmax(dtype="float32", name="probs")(logits)
    return keras.Model(start, probs, name="classifier")


def _end(encoder: keras.Model, head: keras.Model, trial: Any, answers: np.ndarray) -> str:
    """Which end of the two parts the answers are, "logits" or "probs"; "": neither."""
    ends = both_ends(head)
    skip = head.output.shape[1] - answers.shape[1]  # 1 with one answer for two classes.
    outputs = ends(encoder(trial, training=False), training=False)
    for name, output in zip(("logits", "probs"), outputs, strict=True):
        if np.allclose(ops.convert_to_numpy(output)[:, skip:], answers, rtol=1e-5, atol=1e-6):
            return name
    return ""


def _check_meaning(model: keras.Model, are_logits: bool, from_logits: bool | None) -> None:
    """ValueError if answers are not what they are said to be, or are a regression's."""
    if from_logits is not None:
        if bool(from_logits) != are_logits:
            raise ValueError(
                f"from_logits: expected {are_logits}, as {model.name} answers "
                f"{'logits' if are_logits else 'probabilities'}, received {from_logits}"
            )
        return
    if are_logits and (loss := keras_files.regression_loss(getattr(model, "loss", None))):
        raise ValueError(
            "classifier: expected a classifier, whose answers are softmax, sigmoid or logits, "
            f"received {model.name}, a regression: its last layer has no activation, and its loss "
            f"is {loss}; if the answers are logits all the same, put a softmax or sigmoid behind "
            "them, or say attach(classifier, from_logits=True)"
        )
