"""u of an exported model after new labels: learned from half of them, judged by the other half.

Labels that u was fitted to promise nothing, and say too little of its errors. So a threshold is
chosen, and later answers are compared, on the half that u has not seen. No TensorFlow here.
"""

import dataclasses

import numpy as np
from scipy import special

from btcp_tf.core import groups
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods import recalibration
from btcp_tf.methods.recalibration import SAME, Map, Recalibration

_LEAST = float(np.finfo(np.float32).smallest_subnormal)

_SMALL = 1e-7


def is_rounded(u: np.ndarray) -> bool:
    """Whether small u `[n]` became 0, as in a table for people: they have no logit then.

    Where single precision alone makes some of them 0, others are almost 0.

    >>> is_rounded(np.array([0.0, 0.25, 0.001])), is_rounded(np.array([0.0, 0.25, 1e-9]))
    (True, False)
    """
    return bool((u == 0).any() and not ((u > 0) & (u < _SMALL)).any())


def halves(rows: Predictions, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Two random parts of labeled answers, half of the rows or of the groups each.

    Args:
      rows: At least 2, or of 2 groups.
      seed: Seed of the draw.
    """
    n = len(rows.predicted)
    number = np.arange(n) if rows.groups is None else groups.numbers(rows.groups, n)
    count = int(number.max()) + 1
    drawn = np.random.default_rng(seed).permutation(count)[: count // 2]
    first = np.isin(number, drawn)
    return rows.taken(first), rows.taken(~first)


def learn(rows: Predictions) -> Recalibration:
    """What labels say of u; see `recalibration.recalibrate`.

    Args:
      rows: Labeled answers with u as `COLUMN`; without MCP's beside it, as `REFERENCE`, u does not
        move towards MCP.

    Raises:
      ValueError: With fewer than 10 wrong, or right, answers.
    """
    together = None if rows.groups is None else groups.numbers(rows.groups, len(rows.predicted))
    logit = _logit(rows.uncertainty[COLUMN])
    return recalibration.recalibrate(rows.is_error, logit, _mcp_logit(rows), groups=together)


def apply(rows: Predictions, change: Map) -> Predictions | None:
    """The same answers with u as it is now; None: that takes MCP's u, which is not known.

    u keeps its precision: `export_check.check_digits` asks for it.
    """
    if change == SAME:
        return rows
    u, z = rows.uncertainty[COLUMN], _mcp_logit(rows)
    if z is None and change.gamma:
        return None
    new = change(_logit(u), np.zeros(len(u)) if z is None else z)
    # Numbers of float32 may stand in a wider array.
    dtype = np.float32 if (u == u.astype(np.float32)).all() else np.float64
    columns = {**rows.uncertainty, COLUMN: special.expit(new).astype(dtype)}
    return dataclasses.replace(rows, uncertainty=columns)


def _mcp_logit(rows: Predictions) -> np.ndarray | None:
    mcp = rows.uncertainty.get(REFERENCE)
    return None if mcp is None else _logit(mcp)


def _logit(u: np.ndarray) -> np.ndarray:
    # What float32 rounds to 0 is at most this.
    return recalibration.logit_of(np.where(u == 0, _LEAST, u))
