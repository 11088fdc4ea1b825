"""The variables of a SavedModel on disk, read and changed without its graph."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

ABOUT = "btcp_tf_about"
"""Name of the variable with what a model says of itself: JSON."""


def stored_text(value: np.ndarray) -> list[str]:
    """Text `[n]` as TensorFlow has it."""
    return [one.decode("utf-8") for one in value.tolist()]


class StoredVariables:
    """Variables by their names.

    Args:
      directory: A version directory.

    Raises:
      ValueError: If its variables cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = str(directory / "variables" / "variables")
        try:
            self._reader = tf.train.load_checkpoint(self._path)
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
                self._reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
            )
        # TensorFlow's, and those that its Python side turns some of them into.
        except (tf.errors.OpError, LookupError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"{directory}: expected the variables of a SavedModel, received what cannot be "
                f"read ({str(error).splitlines()[0][:200]}); export the model again"
            ) from error
        self._keys = {
            attribute.full_name: attribute.checkpoint_key
            for node in graph.nodes
            for attribute in node.attributes
        }

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def read(self, name: str) -> np.ndarray:
        """The value of a variable that is there."""
        return np.asarray(self._reader.get_tensor(self._keys[name]))

    def assign(self, values: Mapping[str, Any]) -> None:
        """Changes variables by name; the rest stays bit for bit.

        Raises:
          ValueError: If one of them is not there.
          OSError: If there is no room for them.
        """
        if missing := [name for name in values if name not in self]:
            raise ValueError(
                f"{self._directory}: expected the variables {', '.join(values)}, received none "
                f"called {', '.join(missing)}; export the model again"
            )
        new = {self._keys[name]: value for name, value in values.items()}
        tensors = {
            key: tf.constant(new[key] if key in new else self._reader.get_tensor(key), dtype)
            for key, dtype in self._reader.get_variable_to_dtype_map().items()
        }
        for old in (self._directory / "variables").iterdir():
            old.unlink()
        try:
            tf.raw_ops.SaveV2(
                prefix=self._path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        except tf.errors.OpError as error:
            raise OSError(
                f"export: expected room for variables in {self._directory.parent}, received: "
                f"{error.message.rpartition('; ')[2]}"
            ) from None
