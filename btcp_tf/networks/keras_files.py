"""What a file is that is given as a classifier, what is in it, and how its network was trained;
without Keras."""

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from btcp_tf.core import archives, files, json_files

_HDF5 = b"\x89HDF\r\n\x1a\n"

_SAVE = "then model.save('my.keras')"

_REGRESSION = {
    "meansquarederror": "mse",
    "meanabsoluteerror": "mae",
    "meanabsolutepercentageerror": "mape",
    "meansquaredlogarithmicerror": "msle",
    "huber": "huber",
    "logcosh": "log_cosh",
    "poisson": "poisson",
}
"""Losses of regressions, in letters alone, and short names for them."""


def check_file(setting: str, path: str | os.PathLike) -> Path:
    """The path of a file that may be a `.keras` file, or an HDF5 file of a whole model; what is
    something else is called by its name.

    Args:
      setting: Name of the argument, for errors.
      path: The file.

    Raises:
      FileNotFoundError: If there is no such file, or it is a folder.
      ValueError: If it is no path, or the file is no such file.
    """
    found = files.as_path(setting, path)
    kind = _kind_of_folder(found) if found.is_dir() else _kind_of_file(found)
    if not kind:
        if not is_hdf5(found):
            files.check_keras_file(setting, found)
        _check_sizes(f"{setting}: {found}", found)
        return found
    error = FileNotFoundError if found.is_dir() else ValueError
    raise error(f"{setting}: expected a .keras or .h5 file, received {found}, which is {kind}")


_DESCRIPTION = 2**26
"""Bytes that the description of a model's layers may have, vocabularies included."""

_ANEW = "write it anew with model.save"


def _check_sizes(where: str, path: Path) -> None:
    """ValueError for a file that would fill the memory: text, an archive's members or weights that
    are far larger than what is stored of them."""
    if is_hdf5(path):
        with path.open("rb") as weights:
            _check_weights(where, weights)
        return
    # What is damaged otherwise, Keras says.
    with contextlib.suppress(zipfile.BadZipFile, OSError, RuntimeError):
        with zipfile.ZipFile(path) as archive:
            archives.check_members(where, archive, _ANEW)
            for info in archive.infolist():
                if info.filename.endswith(".json") and info.file_size > _DESCRIPTION:
                    raise ValueError(
                        f"{where}: {info.filename}: expected at most {_DESCRIPTION:,} bytes, "
                        f"received {info.file_size:,}"
                    )
                if info.filename.endswith(".h5"):
                    with archive.open(info) as weights:
                        _check_weights(f"{where}: {info.filename}", weights)


def _check_weights(where: str, file: IO[bytes]) -> None:
    """`archives.check_size` of the arrays in an HDF5 file, of which a size may be all."""
    import h5py

    found: list[tuple[str, int, int]] = []

    def note(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            found.append((name, entry.nbytes, entry.id.get_storage_size()))

    # A damaged file raises nearly anything; Keras refuses it.
    with contextlib.suppress(Exception), h5py.File(file, "r") as weights:
        weights.visititems(note)
    for name, size, stored in found:
        archives.check_size(f"{where}: {name}", size, stored, _ANEW)


def check_classifier(setting: str, path: str | os.PathLike) -> Path:
    """As `check_file`, of the file of a classifier: one of a `Judge` is refused, too."""
    found = check_file(setting, path)
    if b'"btcp_tf>Card"' in description(found):
        raise ValueError(
            f"{setting}: expected a classifier, received a Judge ({found}), which holds one with "
            "an estimator: give the classifier's own .keras file; btcp_tf.load reads this one"
        )
    return found


def loss_in(path: str | os.PathLike) -> Any:
    """The loss that the model in a file was compiled with, as Keras wrote it: a name, a
    dictionary, perhaps one for each output; None: it was not compiled, or the file is damaged."""
    path = Path(path)
    try:
        if is_hdf5(path):
            return json_files.parse(_hdf5_text(path, "training_config")).get("loss")
        return (json_files.parse(description(path)).get("compile_config") or {}).get("loss")
    except (AttributeError, ValueError):
        return None


def is_quantized(path: str | os.PathLike) -> bool:
    """Whether the model in a file has layers that are quantized."""
    return b'"QuantizedDTypePolicy"' in description(Path(path))


_OLD_OPERATIONS = {"TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod"}
_OLD_OPERATIONS |= {"InstanceProperty", "TensorFlowOpLayer"}
"""Layers that Keras 2 made of operations of TensorFlow; Keras 3 has none of them."""

_GONE = {"CuDNNGRU": "GRU", "CuDNNLSTM": "LSTM", "DenseFeatures": "", "LocallyConnected1D": ""}
_GONE |= {"LocallyConnected2D": "", "Merge": "", "ThresholdedReLU": ""}
"""Layers of Keras 2 that Keras 3 does not have, and those that load their weights in Keras 2."""

_ADDRESS = re.compile(r"(https?|ftp|file|gs|s3|hf|kaggle)://", re.IGNORECASE)

FIT_SCORES = "give its answers to btcp_tf.fit_scores(logits, labels), which needs no model"
"""What is always left."""

_PYTHON = (
    "which is Python code, and is not run from a file: write what it does as a layer with "
    "@keras.saving.register_keras_serializable(), build the model with that, call "
    f"model.load_weights on this file and save it anew; or {FIT_SCORES}"
)


def fault_in(path: str | os.PathLike, is_registered: Callable[[str], bool]) -> str:
    """What in a file Keras must not, or cannot, load, with a remedy; "": nothing was found.

    The description of the layers is looked through, before Keras reads it, for code (Lambda layers,
    functions of modules), for files and addresses that loading would read, and for what Keras 3
    does not have.

    Args:
      path: From `check_file`.
      is_registered: Whether Keras knows a custom object of this name.
    """
    path = Path(path)
    if (version := version_of(path)).startswith(("1.", "2.")) and not is_hdf5(path):
        return (
            f"it was written by Keras {version}, whose .keras files Keras 3 cannot read: where "
            "that Keras is installed, load it and save it again with model.save('my.h5'), "
            f"which is read here; or {FIT_SCORES}"
        )
    try:
        return fault_of(json.loads(description(path)), is_registered)
    except ValueError:
        return ""  # A damaged file: Keras says so.
    except RecursionError:
        return "its layers are too deep in one another to be read"


def fault_of(config: Any, is_registered: Callable[[str], bool]) -> str:
    """`fault_in` of a description of layers, a JSON value."""
    for key, value in _parts_of(config):
        if reason := _fault_of(key, value, is_registered):
            return reason
    return ""


def _parts_of(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of all that is in a JSON value; a list's entries have its key."""
    yield key, value
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _parts_of(entry, name)
    if isinstance(value, list) and key != "vocabulary":  # Words may look like addresses.
        for entry in value:
            yield from _parts_of(entry, key)


def _fault_of(key: str, value: Any, is_registered: Callable[[str], bool]) -> str:
    """See `fault_in`; of one part of the description."""
    if isinstance(value, str) and key in ("vocabulary", "vocabulary_file", "merges") and value:
        return (
            f"it names the file {value!r} ({key}), which loading would read: build the layer with "
            "the list of words itself, load the weights and save the model anew"
        )
    if isinstance(value, str) and _ADDRESS.match(value):
        return (
            f"it names the address {value!r:.120} ({key}), which loading could read: build the "
            "model with what is there, load the weights and save it anew"
        )
    kind = value.get("class_name") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return ""
    settings = value.get("config")
    name = settings.get("name", "") if isinstance(settings, dict) else ""
    if kind == "Lambda":
        return f"it holds the Lambda layer {name!r}, {_PYTHON}"
    if kind == "__lambda__":
        return f"it holds a lambda function ({key}), {_PYTHON}"
    module = str(value.get("module") or "builtins")
    is_keras = module.split(".")[0] in ("builtins", "keras", "keras_hub", "keras_nlp", "keras_cv")
    if kind == "function" and not is_keras and not is_registered(str(settings)):
        return (
            f"it names the function {settings!r:.60} of the module {module!r}, which is not "
            "registered: only functions with @keras.saving.register_keras_serializable() are taken "
            "from a file; import the module that registers it"
        )
    if kind in _OLD_OPERATIONS:
        return (
            f"it holds {kind} ({name}), an operation of TensorFlow in a model of Keras 2, which "
            "Keras 3 does not have: build the model in Keras 3 with a layer in its place, such as "
            f"keras.layers.Rescaling or Activation, and load the weights; or {FIT_SCORES}"
        )
    if kind in _GONE:
        other = "layers that Keras 3 has in its place"
        if _GONE[kind]:
            more = ", reset_after=True" * (kind == "CuDNNGRU")
            other = f"{_GONE[kind]}(..., recurrent_activation='sigmoid'{more})"
        return (
            f"it holds {kind} ({name}), a layer of Keras 2 that Keras 3 does not have: where Keras "
            f"2 is installed, build the model with {other}, call model.load_weights on this file, "
            f"then model.save('my.h5'); or {FIT_SCORES}"
        )
    if kind == "TFSMLayer":
        source = settings.get("filepath", "") if isinstance(settings, dict) else ""
        return f"it holds a TFSMLayer, which runs the SavedModel {source!r}; {SAVED_MODEL}"
    return ""


SAVED_MODEL = (
    "it cannot be taken apart into layers: give the model that it was exported from, saved with "
    f"model.save('my.keras'); or {FIT_SCORES}"
)
"""What to do about a SavedModel."""


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(_HDF5)) == _HDF5
    except OSError:
        return False


def _hdf5_text(path: Path, name: str) -> str:
    """An attribute of an HDF5 file; "": there is none, or the file is damaged."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            text = file.attrs.get(name, "")
    except Exception:  # A damaged file raises nearly anything.
        return ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def version_of(path: Path) -> str:
    """Of the Keras that wrote a file; "": it does not say."""
    if is_hdf5(path):
        return _hdf5_text(path, "keras_version")
    try:
        with zipfile.ZipFile(path) as archive:
            return str(json_files.parse(archive.read("metadata.json")).get("keras_version", ""))
    except (AttributeError, KeyError, OSError, ValueError, zipfile.BadZipFile):
        return ""


def regression_loss(loss: Any) -> str:
    """The short name of a loss if it is that of a regression; else "".

    Args:
      loss: What `keras.Model.compile` takes, or what a file holds of it.

    >>> regression_loss("mean_squared_error"), regression_loss("binary_crossentropy")
    ('mse', '')
    """
    letters = _letters(loss)
    return letters if letters in _REGRESSION.values() else _REGRESSION.get(letters, "")


def is_binary(loss: Any) -> bool:
    """Whether a loss is that of a yes or no for each answer.

    >>> is_binary("binary_crossentropy"), is_binary("categorical_crossentropy")
    (True, False)
    """
    return _letters(loss) in ("binarycrossentropy", "binaryfocalcrossentropy", "bce")


def _letters(loss: Any) -> str:
    """The name of a loss, in small letters alone; "": there is none, or several."""
    if isinstance(loss, dict) and "class_name" not in loss:
        loss = list(loss.values())
    if isinstance(loss, list | tuple):
        return _letters(loss[0]) if len(loss) == 1 else ""
    if isinstance(loss, dict):
        # A function is written as the name of its kind, with its own name beside it.
        is_function = loss["class_name"] == "function"
        loss = loss.get("config") if is_function else loss["class_name"]
    elif loss is not None and not isinstance(loss, str):
        loss = getattr(loss, "__name__", type(loss).__name__)
    return re.sub("[^a-z]", "", str(loss).lower())


def description(path: Path) -> bytes:
    """The description of the layers in a file; b"": there is none."""
    if is_hdf5(path):
        return _hdf5_text(path, "model_config").encode("utf-8", "replace")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read("config.json")
    except (KeyError, OSError, zipfile.BadZipFile):
        return b""


def _kind_of_folder(path: Path) -> str:
    """What a folder holds in the place of a `.keras` file, and what to do; "": something else."""
    if (path / "saved_model.pb").exists() or any(path.glob("*/saved_model.pb")):
        return (
            "no file, but a SavedModel: Keras cannot take it apart into layers; give the model "
            "that it was exported from, saved with model.save('my.keras')"
        )
    if (path / "flags.cfg").is_file():
        return (
            "no file, but the folder of a run, whose checkpoints are no .keras files: "
            f"--flagfile={path / 'flags.cfg'} repeats the run with its own classifier"
        )
    return ""


def _kind_of_file(path: Path) -> str:
    """What a file is in the place of a `.keras` file, and what to do; "": nothing known."""
    if not is_hdf5(path):
        return ""
    if path.name.endswith(".weights.h5") or not description(path):
        return (
            "a file of weights alone: build the model, call model.load_weights on this file, "
            + _SAVE
        )
    if path.suffix not in (".h5", ".hdf5"):
        return "an HDF5 file under another name: give it one that ends with .h5"
    return ""
