"""Weights and optimizer states in one npz file, written whole or not at all."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from btcp_tf.core import files
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


def save_checkpoint(path: Path, model: PhaseModel, rows: list[Row], basis: str) -> None:
    arrays = {f"variable{n}": variable.numpy() for n, variable in enumerate(_state(model))}
    with files.atomic_path(path) as temporary:
        np.savez(temporary, about=np.array(json.dumps({"basis": basis, "rows": rows})), **arrays)


def load_checkpoint(path: Path, model: PhaseModel, bases: Sequence[str]) -> list[Row]:
    variables = _state(model)
    try:
        with np.load(path) as saved:
            about = json.loads(str(saved["about"]))
            rows, saved_basis = about["rows"], about["basis"]
            arrays = [saved[f"variable{n}"] for n in range(len(saved.files) - 1)]
        if not all(row["epoch"] == number for number, row in enumerate(rows, 1)):
            raise ValueError("its epochs are not in order")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("it holds weights that are not finite")
    # A damaged file can raise nearly anything; whatever it is, the file cannot be used.
    except Exception as error:
        raise ValueError(
            f"expected a checkpoint of the phase {model.name}, received {path}, which cannot be "
            f"used ({error or type(error).__name__}); delete it to train this phase anew"
        ) from error
    if saved_basis not in bases:
        raise ValueError(
            f"{path}: expected a checkpoint that started from {bases[0]}, received one that "
            f"started from {saved_basis}: the data or an earlier phase is not the one it was "
            "trained with; check --data_dir, or delete it to train this phase anew"
        )
    received = [array.shape for array in arrays]
    expected = [tuple(variable.shape) for variable in variables]
    if received != expected:
        raise ValueError(
            f"{path}: expected variables of shapes {expected}, received {received}; it belongs to "
            "another network"
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
    return rows


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
