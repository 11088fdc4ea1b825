"""Takes anyone's Keras classifier apart: an encoder, and a classifier on its features.

The parts are copies, so that the original stays as it is. Together they give its outputs, which is
tried out before they are returned.
"""

import contextlib
import functools
import os
import random
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops, tree
from scipy import special

from btcp_tf import metrics
from btcp_tf.core import wording
from btcp_tf.data import named_inputs
from btcp_tf.networks import keras2_files, keras_files

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


@contextlib.contextmanager
def _without_tf_functions(model: keras.Model) -> Iterator[None]:
    """Within this context no layer's method is a `tf.function`, whose tensors stay inside of it."""
    decorated = [
        (layer, name, getattr(layer, name))
        for layer in (model, *flat_layers(model))
        for kind in type(layer).__mro__
        if not kind.__module__.startswith("keras.")
        for name, value in vars(kind).items()
        if hasattr(value, "python_function")
    ]
    for layer, name, method in decorated:
        setattr(layer, name, method.python_function)
    try:
        yield
    finally:
        for layer, name, method in decorated:
            setattr(layer, name, method)


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
        with _TAPPED, _without_tf_functions(self.model):
            original = layer.call

            def call(*values: Any, **named: Any) -> Any:
                answer = original(*values, **named)
                # The input may come by its name.
                read = values[0] if values else next(iter(named.values()))
                seen.append(read if self.side == "input" else answer)
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
    example: Any = None,
    from_logits: bool | None = None,
) -> tuple[keras.Model, keras.Model]:
    """Takes a classifier apart into an encoder and a classifier on its features.

    Args:
      classifier: A built Keras model, or the path of a `.keras` or `.h5` file. Its last layer with
        weights is a `Dense` layer, and its answers are logits or softmax probabilities `[n, k]` of
        k ≥ 2 classes, or the sigmoid (or logit) `[n, 1]` of the second of two classes. Functional,
        Sequential, or a subclass that Keras can save.
      features: Name of the layer whose output are the features; "": they are the input of the last
        `Dense` layer. Features are vectors.
      example: A few inputs `[n, ...]`; several in a dictionary by name, or in a tuple. Needed where
        the model does not know the shape of its input, or takes other inputs than numbers.
      from_logits: Whether the answers are logits (True) or probabilities (False). None: the answers
        tell, and logits of a model that was compiled with the loss of a regression (mse, mae, …)
        are refused: they are no classifier's. A model that is not compiled does not say what its
        numbers mean: one alone is taken for the logit of the second of two classes.

    Returns:
      `encoder`: inputs, several as a dictionary by name, → features `[n, d]`; and `classifier`:
      features → probs `[n, k]`, with the layers `logits` `[n, k]` and `probs`.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no Keras model, is not built, cannot be copied, has several outputs or no
        such layer, answers with other than finite class scores (a regression, or several labels at
        once, say), or cannot be taken apart there; or if it does not take the example.

    >>> model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2, "softmax")])
    >>> encoder, classifier = take_apart(model)
    >>> encoder.output_shape, classifier.output_shape
    ((None, 3), (None, 2))
    """
    original = _loaded(classifier)
    copied = copy(original)
    if example is not None:
        example = _checked_example(copied, example)
    inputs, pack = _inputs(copied, example)
    trial = _trial(inputs, example)
    answers = _answers(original, pack(trial), example)
    _check_answers(answers)
    for encoder, head in _parts(copied, inputs, pack, features, answers.shape[1]):
        logits, end = _end(encoder, head, trial, answers)
        if end and not (end == "logits" and _bends(copied)):
            _check_meaning(original, end == "logits", from_logits, answers.shape[1])
            return encoder, head
        if np.allclose(special.expit(logits), answers, rtol=1e-4, atol=1e-5):
            raise ValueError(_several_labels(original, "its last layer has a sigmoid"))
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
    if layer.quantization_mode:
        # Its own numbers are whole ones on another scale.
        rows = ops.convert_to_numpy(layer(np.eye(len(kernel), dtype=np.float32)))
        kernel = rows - (ops.convert_to_numpy(layer.bias) if layer.use_bias else 0.0)
    bias = ops.convert_to_numpy(layer.bias) if layer.use_bias else np.zeros(kernel.shape[1])
    if layer.name == "logit":  # TwoLogits: that of the first class is 0.
        kernel, bias = np.hstack([np.zeros_like(kernel), kernel]), np.append(0.0, bias)
    return kernel, bias


def load(path: str | os.PathLike, what: str = "path") -> keras.Model:
    """Reads a `.keras` file, or the `.h5` file of a whole model.

    Before Keras reads it, what it would build is looked through: no code of the file's is run, and
    no other file is read.

    Args:
      path: The file.
      what: Name of the argument, for errors; as "classifier", the file of a `Judge` is refused.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no path, Keras cannot load the file, or it holds Python code or names a
        file or an address; the message says what was found.
    """
    check = keras_files.check_classifier if what == "classifier" else keras_files.check_file
    file = check(what, path)
    expected = f"{what}: expected a .keras or .h5 file that Keras can load, received {file}"
    if fault := keras_files.fault_in(file, _is_registered):
        raise ValueError(f"{expected}: {fault}")
    try:
        with keras2_files.readable(file, _is_registered) as readable:
            model = keras.models.load_model(readable, compile=False)
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
        elif keras_files.is_quantized(file):
            why += (
                "; its layers are quantized, and Keras cannot read that of every model: make the "
                "model as it was, call quantize, and give the model itself in the place of its file"
            )
        raise ValueError(f"{expected} ({why})") from error


# Keras keeps TensorFlow's functions (`tf.nn.softmax`) under these names, and does not find them.
# Not in a `custom_object_scope`, which would take the place of the caller's.
keras.saving.get_custom_objects().update(
    softmax_v2=keras.activations.softmax, log_softmax_v2=keras.activations.log_softmax
)


def _is_registered(name: str) -> bool:
    return keras.saving.get_registered_object(name) is not None


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


def settle_policies(model: keras.Model) -> None:
    """Gives each quantized layer the dtype policy of its own that it has in a map of policies.

    Keras 3.15 asks an `Embedding` in two ways for its quantization when it writes it: with a map,
    as the layers of a KerasHub backbone have after they were copied or loaded, one of them says
    that there is none, and it fails.
    """
    for layer in model._flatten_layers():
        policy = getattr(layer, "_dtype_policy", None)
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap) and layer.quantization_mode:
            # The public setter would put it into the map.
            layer._dtype_policy = policy[layer.path]


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
        return "it holds Python code, which is not run from a file"
    first = message.rpartition("Exception encountered: ")[2].strip().splitlines()
    return first[0] if first else type(error).__name__


def _loaded(classifier: keras.Model | str | os.PathLike) -> keras.Model:
    if isinstance(classifier, str | os.PathLike):
        classifier = load(classifier, "classifier")
    if not isinstance(classifier, keras.Model):
        raise ValueError(
            "classifier: expected a Keras model or the path of a .keras or .h5 file, received "
            + _what_it_is(classifier)
        )
    if not classifier.built or not classifier.weights:
        raise ValueError(
            "classifier: expected a model that is built and has weights, received "
            f"{classifier.name} without; call it on some inputs first"
        )
    return classifier


def _what_it_is(classifier: Any) -> str:
    """What is no model of Keras 3, and what to do."""
    kind = type(classifier)
    if any(base.__module__.split(".")[0] == "tf_keras" for base in kind.__mro__):
        return (
            f"a {kind.__name__} of tf_keras, which is Keras 2: model.save('my.h5'), and give the "
            f"path of that file; or {keras_files.FIT_SCORES}"
        )
    if isinstance(classifier, layers.TFSMLayer):
        return f"a TFSMLayer, which runs a SavedModel: {keras_files.SAVED_MODEL}"
    if hasattr(classifier, "signatures"):
        return f"a SavedModel: {keras_files.SAVED_MODEL}"
    if isinstance(classifier, layers.Layer):
        return (
            f"the layer {kind.__name__}: make a model of it, "
            "keras.Sequential([keras.Input(shape), layer])"
        )
    return kind.__name__


def copy(model: keras.Model) -> keras.Model:
    """A model of the same layers with weights of its own.

    Raises:
      ValueError: If Keras cannot copy it.
    """
    _check_layers(model)
    if _is_graph(model):
        # Of the same layers, but not compiled: a loss of one's own need not be known to Keras.
        model = keras.Model(_given(model), model.outputs, name=model.name)
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
    for layer, other in _pairs(model, twin, "lora_enabled"):
        # Where it was added after the layer was made, no configuration tells of it.
        if layer.lora_enabled and not other.lora_enabled:
            other.enable_lora(layer.lora_rank, lora_alpha=layer.lora_alpha)
    if len(twin.weights) != len(model.weights):
        raise ValueError(
            f"classifier: expected a model that Keras can copy, received {model.name}, whose copy "
            f"has {len(twin.weights)} weights in place of {len(model.weights)}: save it, and give "
            f"the path of the file; or {keras_files.FIT_SCORES}"
        )
    twin.set_weights(model.get_weights())
    for layer, other in _pairs(model, twin, "save_assets"):
        # An adapted vocabulary is no weight; Keras knows it as files of the layer.
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            other.load_assets(folder)
    for other in flat_layers(twin):
        # An adapted Normalization computes what it applies from its weights here, once.
        if hasattr(other, "finalize_state"):
            other.finalize_state()
    return twin


def _pairs(model: keras.Model, twin: keras.Model, attribute: str) -> Iterator[tuple[Any, Any]]:
    """Layers with an attribute, and those of the copy that belong to them."""

    def having(one: keras.Model) -> list[Any]:
        # Some models name a layer in several places.
        layers_of = {id(layer): layer for layer in flat_layers(one) if hasattr(layer, attribute)}
        return list(layers_of.values())

    return zip(having(model), having(twin), strict=True)


def _check_layers(model: keras.Model) -> None:
    """ValueError for layers that are programs, which Keras neither copies nor reads from a file."""
    expected = f"classifier: expected a model that Keras can copy, received {model.name} with"
    for layer in flat_layers(model):
        if isinstance(layer, layers.Lambda):
            raise ValueError(
                f"{expected} the Lambda layer {layer.name!r}, Python code that no file can hold: "
                "write what it does as a layer with @keras.saving.register_keras_serializable(), "
                "build the model with that and call set_weights(old.get_weights()); or "
                f"{keras_files.FIT_SCORES}"
            )
        if isinstance(layer, layers.TFSMLayer):
            raise ValueError(
                f"{expected} the TFSMLayer {layer.name!r}, which runs a SavedModel: "
                f"{keras_files.SAVED_MODEL}"
            )


def _is_graph(model: keras.Model) -> bool:
    """Whether the model is a graph of layers: functional, or a built Sequential."""
    return bool(getattr(model, "inputs", None) and getattr(model, "outputs", None))


def _given(model: keras.Model) -> Any:
    """The inputs of a graph of layers, in the structure in which it takes them."""
    # One that was never called has no `input`.
    return model.inputs if isinstance(model, keras.Sequential) else model.input


def named_tensors(model: keras.Model) -> Any:
    """The symbolic input of a graph of layers; several in a dictionary: by the names under which
    the model takes them, or those of its input layers."""
    given = _given(model)
    tensors = tree.flatten(given)
    if len(tensors) == 1:
        return tensors[0]
    if isinstance(given, dict) and len(given) == len(tensors):
        return dict(given)
    return {tensor.name: tensor for tensor in tensors}


def new_inputs(like: Any) -> Any:
    """Inputs for a further model, of the shapes and types of `named_tensors`."""
    if not isinstance(like, dict):
        return keras.Input(like.shape[1:], dtype=like.dtype, name="image")
    return {
        name: keras.Input(one.shape[1:], dtype=one.dtype, name=_layer_name(name))
        for name, one in like.items()
    }


_LAYERS = {"encoder", "ends", "classifier", "card", "tap", "view", "mcp_logit", "residual", "ramp"}
_LAYERS |= {"answer", "head", "neighbors", "image_head", "image_neighbors", "looks", "all_inputs"}
_LAYERS |= {"second_opinion", "logit_of_u", "estimator", "uncertainty", "probs", "logits"}
"""Names of layers of this package's models, which no input can have."""


def _layer_name(name: str) -> str:
    """Of an input. Keras warns where it is another one than the input's key."""
    name = name.replace("/", "_")
    return f"{name}_input" if name in _LAYERS else name


def _packed(model: keras.Model, inputs: Any) -> Any:
    """Inputs by name as a graph of layers takes them."""
    given = _given(model)
    if isinstance(given, dict) and len(given) == 1:
        return dict.fromkeys(given, inputs)
    if isinstance(given, dict) and len(given) == len(model.inputs) or not isinstance(inputs, dict):
        return inputs
    return tree.pack_sequence_as(given, list(inputs.values()))


def _checked_example(model: keras.Model, example: Any) -> Any:
    """A few inputs as arrays, by name where there are several."""
    if _is_graph(model):
        tensors = named_tensors(model)
        names = [*tensors] if isinstance(tensors, dict) else []
        example = named_inputs.by_name(example, names, "example")
    elif isinstance(example, tuple):
        names = [f"input_{number}" for number in range(1, 1 + len(example))]
        example = named_inputs.by_name(example, names, "example")
    if not named_inputs.is_named(example):
        return _example_array(None, example)
    checked = {name: _example_array(name, one) for name, one in example.items()}
    named_inputs.check_count(checked, "example")
    return checked


def _example_array(name: str | None, example: Any) -> np.ndarray:
    where = named_inputs.place("example", name)
    array = metrics.array(where, example)
    if not array.ndim or not array.size:
        received = "none" if array.ndim else f"{array.dtype} ()"
        raise ValueError(f"{where}: expected at least one input [n, ...], received {received}")
    return array


def _inputs(model: keras.Model, example: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The model's input, symbolic, several by name; and what makes of them what it takes."""
    if _is_graph(model):
        if len(model.outputs) != 1:
            raise ValueError(
                f"classifier: expected one output, class scores [n, k], received "
                f"{len(model.outputs)} of {model.name}; attach to one of them: "
                "keras.Model(model.input, model.outputs[0])"
            )
        return new_inputs(named_tensors(model)), functools.partial(_packed, model)
    if example is not None:
        inputs = new_inputs(named_inputs.each(_like, example))
        # Named by their places.
        in_order = isinstance(inputs, dict) and [*inputs] == [
            f"input_{number}" for number in range(1, 1 + len(inputs))
        ]
        return inputs, (lambda inputs: tuple(inputs.values())) if in_order else _same
    shape = (model.get_build_config() or {}).get("input_shape")
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) for n in shape[1:]):
        raise ValueError(
            f"example: expected a few inputs of {model.name}, which does not know their shape, "
            "received none"
        )
    return keras.Input(shape[1:], name="image"), _same


def _same(inputs: Any) -> Any:
    return inputs


def _like(example: np.ndarray) -> keras.KerasTensor:
    kind = "string" if example.dtype.kind in "OSU" else example.dtype.name
    return keras.KerasTensor((None, *example.shape[1:]), kind)


def _trial(inputs: Any, example: Any) -> Any:
    """A few inputs to compare answers on, several by name."""
    if example is not None:
        return named_inputs.each(lambda one: ops.convert_to_tensor(one[:16]), example)
    random = np.random.default_rng(0)
    rows = 16 if any("float" in one.dtype for one in tree.flatten(inputs)) else 8
    return named_inputs.each(lambda one: _random_input(one, rows, random), inputs)


def _random_input(one: Any, rows: int, random: np.random.Generator) -> Any:
    """So many values of one input."""
    if one.dtype == "string":
        raise ValueError("example: expected a few inputs of a model that reads text, received none")
    if None in one.shape[1:]:
        raise ValueError(
            f"example: expected a few inputs of a model with the input {one.shape}, received none"
        )
    if "float" in one.dtype:
        # Standardized numbers for some models, pixels for others: what sets an answer apart from
        # its parts, a limit say, may not show on the other kind.
        shape = (rows // 2, *one.shape[1:])
        numbers = np.concatenate([random.normal(size=shape), random.uniform(0, 255, shape)])
        return ops.convert_to_tensor(numbers, one.dtype)
    # Pixels, or tokens: any vocabulary has two.
    top = 256 if one.dtype == "uint8" else 2
    return ops.convert_to_tensor(random.integers(0, top, (rows, *one.shape[1:])), one.dtype)


def _answers(original: keras.Model, trial: Any, example: Any) -> np.ndarray:
    """What the model says to the trial."""
    try:
        answers = tree.flatten(original(trial, training=False))
    except tf.errors.InvalidArgumentError as error:
        wanted = "other inputs" if example is not None else "a few inputs"
        received = "these" if example is not None else "none, and made-up ones"
        raise ValueError(
            f"example: expected {wanted} that {original.name} answers, received {received}: "
            f"{wording.one_line(error)}"
        ) from error
    except (TypeError, ValueError) as error:
        if example is None:
            raise
        received = ", ".join(f"{one.dtype} {one.shape}" for _, one in named_inputs.items(example))
        raise ValueError(
            f"example: expected inputs that {original.name} takes, received {received}"
        ) from error
    if len(answers) != 1:
        raise ValueError(
            f"classifier: expected one output, class scores [n, k], received {len(answers)} of "
            f"{original.name}"
        )
    return ops.convert_to_numpy(answers[0])


_PLACES = {
    3: "one for each of several places, such as words or boxes",
    4: "one for each pixel, as of a segmentation",
}
"""What answers of so many axes are."""


def _check_answers(answers: np.ndarray) -> None:
    if answers.ndim != 2 or not answers.shape[1]:
        what = _PLACES.get(answers.ndim, "")
        remedy = (
            f", {what}: btcp_tf.fit_scores(logits, labels) takes logits [n, k] with a row for each "
            "of them, or for each object"
        )
        raise ValueError(
            "classifier: expected class scores [n, k], received answers of shape "
            f"{answers.shape}{remedy if what else ''}"
        )
    if not np.isfinite(answers).all():
        raise ValueError("classifier: expected finite class scores, received NaN or infinity")


def _parts(
    model: keras.Model, inputs: Any, pack: Callable[[Any], Any], features: str, width: int
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
            f"{_list(names)}; {keras_files.FIT_SCORES}"
        )
    for position in fitting:
        read = (names.index(features), "output") if features else (position, "input")
        vectors = Tap(model, *read, name="tap")(pack(inputs))
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
    return keras.Model(named_tensors(model), vectors, name="encoder"), _head(start, x, dense)


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
    weights = dense.get_weights()
    if dense.lora_enabled and dense.quantization_mode is None:
        # With LoRA's part in it.
        weights = [ops.convert_to_numpy(dense.kernel), *weights[1 : 1 + dense.use_bias]]
    copy.set_weights(weights)
    if one:
        logits = TwoLogits(name="logits")(logits)
        probs = TwoProbs(dtype="float32", name="probs")(logits)
    else:
        # float32 whatever the policy: a half-precision softmax makes u = 1 - p coarse near 0.
        probs = layers.Softmax(dtype="float32", name="probs")(logits)
    return keras.Model(start, probs, name="classifier")


def _end(
    encoder: keras.Model, head: keras.Model, trial: Any, answers: np.ndarray
) -> tuple[np.ndarray, str]:
    """The logits of the two parts; and which end of them the answers are, "logits" or "probs"; "":
    neither."""
    skip = head.output.shape[1] - answers.shape[1]  # 1 with one answer for two classes.
    ends = both_ends(head)(encoder(trial, training=False), training=False)
    outputs = [ops.convert_to_numpy(end)[:, skip:] for end in ends]
    for name, output in zip(("logits", "probs"), outputs, strict=True):
        if np.allclose(output, answers, rtol=1e-5, atol=1e-6):
            return outputs[0], name
    return outputs[0], ""


def _bends(model: keras.Model) -> bool:
    """Whether an activation at the end makes something else of logits, if perhaps not of these: a
    relu leaves positive ones as they are."""
    last = _maker(model, model.outputs[0]) if _is_graph(model) else None
    activation = getattr(last, "activation", None)
    return activation is not None and activation is not keras.activations.linear


def _several_labels(model: keras.Model, why: str) -> str:
    """What to do about a model that tells of each class whether it is there."""
    return (
        "classifier: expected one true class for each input (softmax, or one sigmoid), received "
        f"{model.name}, which gives several labels at once: {why}; use a judge for each label i: "
        "btcp_tf.fit_scores(np.stack([0 * logits[:, i], logits[:, i]], axis=1), labels[:, i])"
    )


def _check_meaning(
    model: keras.Model, are_logits: bool, from_logits: bool | None, width: int
) -> None:
    """ValueError if answers are not what they are said to be, are a regression's, or tell of each
    of several labels whether it is there."""
    if from_logits is not None:
        if bool(from_logits) != are_logits:
            raise ValueError(
                f"from_logits: expected {are_logits}, as {model.name} answers "
                f"{'logits' if are_logits else 'probabilities'}, received {from_logits}"
            )
        return
    loss = getattr(model, "loss", None)
    if are_logits and width > 1 and keras_files.is_binary(loss):
        why = (
            "its loss is the binary cross-entropy (attach(classifier, from_logits=True) says that "
        )
        raise ValueError(
            _several_labels(model, f"{why}they are the logits of a softmax all the same)")
        )
    if are_logits and (loss := keras_files.regression_loss(loss)):
        raise ValueError(
            "classifier: expected a classifier, whose answers are softmax, sigmoid or logits, "
            f"received {model.name}, a regression: its last layer has no activation, and its loss "
            f"is {loss}; if the answers are logits all the same, put a softmax or sigmoid behind "
            "them, or say attach(classifier, from_logits=True)"
        )
