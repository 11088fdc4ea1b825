"""Weights and optimizer states in one npz file, written whole or not at all."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from btcp_tf.core import files, json_files, versions
from btcp_tf.core.arrays import read_npz
from btcp_tf.training.phase_model import PhaseModel

Row = dict[str, Any]


def snapshot(model: keras.Model) -> list[np.ndarray]:
    """Everything that training changes in a model, states of dropout included."""
    return [variable.numpy() for variable in model.variables]


def restore(model: keras.Model, values: Sequence[np.ndarray]) -> None:
    """Puts back what `snapshot` took."""
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


def _state(model: PhaseModel) -> list[keras.Variable]:
    return [*model.variables, *model.optimizer.variables]


Versions = dict[str, list[str]]
"""Package → its versions that trained a phase, in order."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    arrays: list[np.ndarray]
    rows: list[Row]
    """One an epoch."""
    basis: str
    """Fingerprint of what the phase started from."""
    versions: Versions
    """Empty in those of earlier versions of this package."""


def save_checkpoint(
    path: Path, model: PhaseModel, rows: list[Row], basis: str, earlier: Versions
) -> None:
    """Writes a checkpoint.

    Args:
      path: The file.
      model: What is trained.
      rows: One an epoch so far.
      basis: See `Saved`.
      earlier: What trained the epochs before this process.
    """
    arrays = {f"variable{n}": variable.numpy() for n, variable in enumerate(_state(model))}
    now = versions.installed()
    used = {
        name: list(dict.fromkeys([*earlier.get(name, []), now[name]])) for name in versions.TRAINING
    }
    about = json.dumps({"basis": basis, "rows": rows, "versions": used})
    with files.atomic_path(path) as temporary:
        np.savez(temporary, about=np.array(about), **arrays)


def read_checkpoint(path: Path, phase: str) -> Saved:
    """Reads a checkpoint of a phase; ValueError if it is damaged."""
    try:
        saved = read_npz(path)
        about = json_files.parse(str(saved["about"]))
        rows, basis = about["rows"], str(about["basis"])
        arrays = [saved[f"variable{n}"] for n in range(len(saved) - 1)]
        if not all(row["epoch"] == number for number, row in enumerate(rows, 1)):
            raise ValueError("its epochs are not in order")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("it holds weights that are not finite")
        return Saved(arrays, rows, basis, _versions(about))
    # A damaged file can raise nearly anything; whatever it is, the file cannot be used.
    except Exception as error:
        raise ValueError(
            f"expected a checkpoint of the phase {phase}, received {path}, which cannot be "
            f"used ({error or type(error).__name__}); delete it to train this phase anew"
        ) from error


def _versions(about: dict[str, Any]) -> Versions:
    return {str(name): [*map(str, used)] for name, used in about.get("versions", {}).items()}


def other_versions(folder: Path) -> Versions:
    """Versions of packages that are not those of this process, and that trained what is in the
    checkpoints of a folder and its sub-folders. Damaged ones are left out: to load them is an
    error."""
    now, found = versions.installed(), dict[str, dict[str, None]]()
    for path in sorted(folder.rglob("*.npz")):
        with contextlib.suppress(Exception):
            used = _versions(json_files.parse(str(read_npz(path)["about"])))
            for name in versions.TRAINING:
                others = [version for version in used.get(name, []) if version != now[name]]
                found.setdefault(name, {}).update(dict.fromkeys(others))
    return {name: [*others] for name, others in found.items() if others}


def load_checkpoint(
    path: Path, model: PhaseModel, bases: Sequence[str]
) -> tuple[list[Row], Versions]:
    """Puts a checkpoint into a model, see `one_phase.fit_phase`; its rows and versions."""
    variables = _state(model)
    saved = read_checkpoint(path, model.name)
    if saved.basis not in bases:
        raise ValueError(
            f"{path}: expected a checkpoint that started from {bases[0]}, received one that "
            f"started from {saved.basis}: the data or an earlier phase is not the one it was "
            "trained with; check --data_dir, or delete it to train this phase anew"
        )
    received = [array.shape for array in saved.arrays]
    expected = [tuple(variable.shape) for variable in variables]
    if received != expected:
        raise ValueError(
            f"{path}: expected variables of shapes {expected}, received {received}; it belongs to "
            "another network"
        )
    for variable, array in zip(variables, saved.arrays, strict=True):
        variable.assign(array)
    return saved.rows, saved.versions


def weights_id(
    network: keras.Model, parts: Sequence[str] = ("encoder", "classifier", "estimator")
) -> str:
    """12 hexadecimal digits of the SHA-256 of the weights of some sub-models.

    For ("encoder", "classifier") it is the classifier's id: rows with one id are of the same
    classifier, and differences between them are paired.
    """
    digest = hashlib.sha256()
    for part in parts:
        for weights in network.get_layer(part).get_weights():
            digest.update(weights.tobytes())
    return digest.hexdigest()[:12]
