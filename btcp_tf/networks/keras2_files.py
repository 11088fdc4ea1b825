"""HDF5 files of Keras 2, described as Keras 3 reads them.

Keras 3 takes these files, and refuses most for a setting that its layers no longer have, at the
value at which nobody misses it. One activation has another meaning under its old name.
"""

import contextlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
from keras import layers, ops

from btcp_tf.networks import keras_files

_FOR_TRAINING = ("_initializer", "_regularizer", "_constraint")
"""Ends of settings that say nothing of the answers of a trained layer."""

_MEANS_NOTHING = {"groups": (1,), "implementation": (0, 1, 2)}
"""Further settings, and values at which a layer answers as without them; None and False do, too."""

_SAYS_NOTHING = {"input_length", "key_shape", "query_shape", "rng_type", "trainable", "value_shape"}
"""Settings that say nothing of the answers, either: shapes that follow from the inputs, and what
only training heeds."""

_WRAPPED = ("backward_layer", "cell", "cells", "layer")
"""Settings that are layers."""

_GRAPHS = ("Functional", "Model")
"""What models of the functional API are called."""

_RENAMED = {"alpha"}
"""Settings that Keras 3 takes under their old name, too."""


@keras.saving.register_keras_serializable("btcp_tf")
def hard_sigmoid_of_keras_2(x: Any) -> Any:
    """0.2 x + 0.5 in [0, 1]; what Keras 3 calls hard_sigmoid has the slope 1/6.

    Example:
      >>> import numpy as np
      >>> hard_sigmoid_of_keras_2(np.array([-3.0, 0.0, 1.0])).numpy().tolist()
      [0.0, 0.5, 0.7]
    """
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


@contextlib.contextmanager
def readable(file: Path, is_registered: Callable[[str], bool]) -> Iterator[Path]:
    """A file that Keras 3 can read: of Keras 2's HDF5 files a copy, with another description of the
    layers, as long as the context lasts; any other file as it is.

    Args:
      file: In which `keras_files.fault_in` finds nothing.
      is_registered: As there.

    Raises:
      ValueError: If a layer has a setting that Keras 3 does not have, and that changes answers; or
        if something that Keras must not load shows in the new description alone.
    """
    version = keras_files.version_of(file)
    if not keras_files.is_hdf5(file) or not version.startswith(("1.", "2.")):
        yield file
        return
    import h5py

    config = mended(json.loads(keras_files.description(file)))
    if fault := keras_files.fault_of(config, is_registered):
        raise ValueError(fault)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "keras2.h5")
        shutil.copyfile(file, copy)
        with h5py.File(copy, "r+") as content:
            content.attrs["model_config"] = json.dumps(config)
        yield copy


def mended(config: Any) -> Any:
    """The description of a model of Keras 2 as Keras 3 understands it.

    Args:
      config: A JSON value.

    Raises:
      ValueError: If a layer has a setting that Keras 3 does not have, and that changes answers.

    Example:
      >>> config = {"name": "a/b", "groups": 1, "kernel_size": 3, "dilation_rate": 1}
      >>> mended({"class_name": "DepthwiseConv2D", "config": config})["config"]
      {'name': 'a_b', 'kernel_size': 3, 'dilation_rate': 1}
    """
    names: set[str] = set()
    _find_names(config, names)
    return _part(config, {name: name.replace("/", "_") for name in names if "/" in name})


def _find_names(value: Any, names: set[str]) -> None:
    """Collects the names of layers."""
    if isinstance(value, dict) and isinstance(config := value.get("config"), dict):
        if isinstance(name := config.get("name"), str):
            names.add(name)
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            _find_names(entry, names)


def _part(value: Any, names: Mapping[str, str]) -> Any:
    """Some of a description; `names` are those of layers that Keras 3 refuses, and others."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_part(entry, names) for entry in value]
    if not isinstance(value, dict):
        return value
    value = {key: _part(entry, names) for key, entry in value.items()}
    kind, config = value.get("class_name"), value.get("config")
    if kind == "Sequential":
        return {**value, "config": _sequential(config)}
    if kind in _GRAPHS and isinstance(config, dict) and "input_layers" in config:
        return {**value, "class_name": "Functional", "config": _graph(config)}
    known = getattr(layers, kind, None) if isinstance(kind, str) else None
    if not isinstance(config, dict) or not (inspect.isclass(known) and kind != "InputLayer"):
        return value
    return {**value, "config": _layer(config, kind, known)}


def _sequential(config: Any) -> Any:
    """A stack of layers: Keras before 2.2 wrote no more than their list, and no `InputLayer`."""
    if isinstance(config, list):
        config = {"name": "sequential", "layers": config}
    stack = config.get("layers") if isinstance(config, dict) else None
    if not stack:
        return config
    shape = _input_shape(stack[0])
    if stack[0].get("class_name") != "InputLayer" and shape is not None:
        first = {"batch_shape": shape, "name": f"{config.get('name')}_input"}
        stack = [{"class_name": "InputLayer", "config": first}, *stack]
    start, *rest = map(_without_shape, stack)
    # In Keras 2 tokens came as float32, by the type of the vectors.
    if start["class_name"] == "InputLayer" and rest and rest[0]["class_name"] == "Embedding":
        start = {**start, "config": {**start["config"], "dtype": "int32"}}
    return {**config, "layers": [start, *rest]}


def _input_shape(layer: Any) -> Any:
    config = layer.get("config") if isinstance(layer, dict) else None
    return config.get("batch_input_shape") if isinstance(config, dict) else None


def _without_shape(layer: Any) -> Any:
    """A layer behind an `InputLayer`, which has the shape."""
    if _input_shape(layer) is None or layer["class_name"] == "InputLayer":
        return layer
    config = {key: entry for key, entry in layer["config"].items() if key != "batch_input_shape"}
    return {**layer, "config": config}


def _graph(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model of the functional API: one input or output is no list of one, and what a model inside
    of it answers counts from 0, not from 1 as where its own making had been the first answer."""
    config = dict(config)
    inside = [
        layer["config"]["name"]
        for layer in config["layers"]
        if layer.get("class_name") in (*_GRAPHS, "Sequential")
    ]
    uses = [*_uses([config["layers"], config["output_layers"]], {*inside})]
    late = {*inside} - {name for name, node in uses if node == 0}
    for key in ("layers", "input_layers", "output_layers"):
        config[key] = _earlier(config[key], late)
    for key in ("input_layers", "output_layers"):
        if len(config[key]) == 1:
            config[key] = config[key][0]
    return config


def _is_use(value: Any, names: Collection[str]) -> bool:
    """Whether this is [name of a layer, number of the call, number of the output, …]."""
    return (
        isinstance(value, list)
        and len(value) >= 3
        and isinstance(value[0], str)
        and value[0] in names
        and all(type(number) is int for number in value[1:3])
    )


def _uses(value: Any, names: Collection[str]) -> Iterator[tuple[str, int]]:
    """(name, number of the call) wherever an output of one of these layers is used."""
    if _is_use(value, names):
        yield value[0], value[1]
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _uses(entry, names)


def _earlier(value: Any, names: Collection[str]) -> Any:
    """The same with the calls of these layers counted from one less."""
    if _is_use(value, names):
        return [value[0], value[1] - 1, *value[2:]]
    if isinstance(value, dict):
        return {key: _earlier(entry, names) for key, entry in value.items()}
    return [_earlier(entry, names) for entry in value] if isinstance(value, list) else value


def _layer(config: Mapping[str, Any], kind: str, known: type) -> dict[str, Any]:
    """Settings of a layer that Keras 3 has."""
    taken, found = _settings_of(known), {}
    for key, entry in config.items():
        if key in taken or key == "batch_input_shape":
            found[key] = _setting(key, entry)
        elif not _means_nothing(key, entry):
            raise ValueError(
                f"it holds the {kind} layer {config.get('name')!r} of Keras 2 with "
                f"{key}={entry!r}, which Keras 3 does not have: build the model in Keras 3 with "
                f"layers in its place, and load the weights; or {keras_files.FIT_SCORES}"
            )
    if kind == "GRU":
        found.setdefault("reset_after", False)  # Keras 3 has another default.
    return found


def _setting(key: str, entry: Any) -> Any:
    if key in ("activation", "recurrent_activation") and entry == "hard_sigmoid":
        function = {"class_name": "function", "module": "builtins"}
        return {**function, "config": "btcp_tf>hard_sigmoid_of_keras_2"}
    if key in _WRAPPED:
        return (
            [_with_module(one) for one in entry] if isinstance(entry, list) else _with_module(entry)
        )
    if key == "axis" and isinstance(entry, list) and len(entry) == 1:
        return entry[0]
    if key == "dtype" and isinstance(entry, dict) and entry.get("class_name") == "Policy":
        return entry["config"]["name"]
    return entry


def _with_module(layer: Any) -> Any:
    """A layer inside of another, which Keras 3 looks for in its module."""
    is_layer = isinstance(layer, dict) and hasattr(layers, str(layer.get("class_name")))
    return {"module": "keras.layers", "registered_name": None, **layer} if is_layer else layer


def _means_nothing(key: str, entry: Any) -> bool:
    """Whether a layer answers as without this setting."""
    return (
        key in _SAYS_NOTHING
        or key.endswith(_FOR_TRAINING)
        or entry is None
        or entry is False
        or entry in _MEANS_NOTHING.get(key, ())
    )


def _settings_of(known: type) -> set[str]:
    """Names of the arguments of a class of layers, and of those to which it passes on others."""
    found = set(_RENAMED)
    for base in known.__mro__:
        if "__init__" in vars(base):
            arguments = inspect.signature(vars(base)["__init__"]).parameters
            found |= {*arguments}
            if all(one.kind is not one.VAR_KEYWORD for one in arguments.values()):
                break
    return found
