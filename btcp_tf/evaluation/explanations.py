"""Saved contributions of each piece of evidence to an uncertainty."""

import dataclasses
import os

import numpy as np

from btcp_tf import metrics
from btcp_tf.core import files
from btcp_tf.core.arrays import read_npz

EXPLANATIONS_FILE = "explanations.npz"
"""In a run's folder: what moved the u of each test answer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Explanations:
    """What each piece of evidence did to the u of n answers.

    Checked on construction.

    Raises:
      ValueError: If the fields do not fit together; the message names the field.
    """

    method: str
    """Whose u: a column of the predictions."""
    names: tuple[str, ...]
    """Of the g pieces of evidence."""
    values: np.ndarray
    """`[n, g]` float32: how far each moved logit(u), beside the mean held-out answer."""

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.dtype.kind != "f" or values.ndim != 2 or values.shape[1] != len(self.names):
            raise ValueError(
                f"values: expected floats [n, {len(self.names)}], one for each of the names, "
                f"received {values.dtype} {list(values.shape)}"
            )
        metrics.check_rows(
            np.isfinite(values).all(axis=1), values, "values: expected finite numbers"
        )
        object.__setattr__(self, "values", values.astype(np.float32))
        object.__setattr__(self, "names", tuple(map(str, self.names)))


def save_explanations(path: str | os.PathLike, explanations: Explanations) -> None:
    """Writes `path`, an npz of `method`, `names` and `values`."""
    with files.atomic_path(path) as temporary:
        np.savez_compressed(
            temporary,
            method=np.array(explanations.method),
            names=np.array(explanations.names),
            values=explanations.values,
        )


def load_explanations(path: str | os.PathLike, rows: int) -> Explanations | None:
    """Reads what `save_explanations` wrote; None without the file.

    Args:
      path: The file.
      rows: How many answers it has to explain.

    Raises:
      ValueError: If it is no such file, or one of other answers; the message names it.
    """
    if not os.path.exists(path):
        return None
    file = f"{os.fspath(path)}: no explanations"
    arrays = dict(read_npz(path, file))
    try:
        explanations = Explanations(
            str(arrays["method"]), tuple(map(str, arrays["names"])), arrays["values"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: expected method, names and values, received {error}") from error
    if len(explanations.values) != rows:
        raise ValueError(
            f"{file}: expected those of {rows} answers, received {len(explanations.values)}"
        )
    return explanations
