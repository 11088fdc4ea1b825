"""Answers with a label: which are accepted, which are wrong, and whether somebody sorted them."""

import dataclasses
import math
from typing import Any

import numpy as np

from btcp_tf import metrics
from btcp_tf.core import wording
from btcp_tf.decisions import drift
from btcp_tf.decisions.scores import Scores

MAX_P_SORTED = 1e-4
"""p-value, for each column that is checked, at or below which rows count as sorted by it."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledAnswers:
    """The answers whose true class is known, in the order of their labels."""

    rows: np.ndarray
    """Their rows in the scores, `[l]` int64, from 0."""
    labels: np.ndarray
    """True classes, `[l]` int64."""
    predicted: np.ndarray
    """Predicted classes, `[l]` int64."""
    uncertainty: np.ndarray
    """u, `[l]` float64."""
    limits: np.ndarray | None
    """The threshold on each, `[l]` float64; None: there is none, or it accepts nothing."""

    def taken(self, kept: np.ndarray) -> "LabeledAnswers":
        """Those that are kept, `[l]` bool, in the same order."""
        return dataclasses.replace(
            self,
            rows=self.rows[kept],
            labels=self.labels[kept],
            predicted=self.predicted[kept],
            uncertainty=self.uncertainty[kept],
            limits=None if self.limits is None else self.limits[kept],
        )

    @property
    def is_error(self) -> np.ndarray:
        """Whether each is wrong, `[l]` bool."""
        return self.predicted != self.labels

    @property
    def accepted(self) -> np.ndarray:
        """Whether u is below the threshold, `[l]` bool; all False without one."""
        if self.limits is None:
            return np.zeros(len(self.rows), bool)
        return self.uncertainty < self.limits


def labeled_answers(
    scores: Scores,
    uncertainty: np.ndarray,
    labels: Any,
    classes: int | None,
    limits: np.ndarray | None,
) -> LabeledAnswers | None:
    """The answers with a label; None where there are no labels.

    Args:
      scores: The answers.
      uncertainty: Their u, `[m]` float64.
      labels: Rows `[l]` and true classes `[l]`, whole numbers; None: those of the scores, if any.
      classes: Number of classes; None: unknown.
      limits: The threshold on each, `[m]`; None: there is none, or it accepts nothing.

    Raises:
      ValueError: If labels are not as described.
    """
    pair = scores.labeled() if labels is None else _checked(labels, len(uncertainty))
    if pair is None:
        return None
    rows, true = pair
    if classes is not None and len(true) and true.max() >= classes:
        first = int(true.argmax())
        raise ValueError(
            f"labels: expected classes 0 to {classes - 1}, received {true[first]} for "
            f"{scores.row_name(int(rows[first]))}{wording.from_one(true, classes)}"
        )
    own = None if limits is None else limits[rows]
    return LabeledAnswers(rows, true, scores.predicted[rows], uncertainty[rows], own)


def _checked(labels: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    expected = "labels: expected two arrays of whole numbers, rows [l] and true classes [l]"
    if not isinstance(labels, tuple | list) or len(labels) != 2:
        raise ValueError(f"{expected}, received {type(labels).__name__}")
    numbers, true = (metrics.array("labels", column) for column in labels)
    for column, high in ((numbers, rows - 1), (true, math.inf)):
        empty = not column.size
        if column.ndim != 1 or not (empty or column.dtype.kind in "iu") or len(column) != len(true):
            received = " and ".join(f"{one.dtype} {list(one.shape)}" for one in (numbers, true))
            raise ValueError(f"{expected}, received {received}")
        if not empty and not 0 <= column.min() <= column.max() <= high:
            limits = f"from 0 to {high}" if high < math.inf else "from 0 on"
            received = f"{column.min()} to {column.max()}"
            raise ValueError(f"{expected}, {limits}, received {received}")
    return numbers.astype(np.int64), true.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Sorting:
    """What labeled rows are sorted by, or nearly so."""

    column: str
    """"true class", "predicted class", "uncertainty" or "right and wrong"."""
    changes: int
    """How often the column changes from one row to the next."""
    expected: float
    """The mean of `changes` over all orders of the rows."""
    errors_last: bool = False
    """Sorted by "right and wrong", the wrong ones last: a model that fails from some day on looks
    the same."""

    def __str__(self) -> str:
        changing = {
            "uncertainty": "the quarter that u is in",
            "right and wrong": "right or wrong among the accepted",
        }.get(self.column, f"the {self.column}")
        return (
            f"rows that stand together as if sorted by {self.column}: from one to the next "
            f"{changing} changes {self.changes:,} time{'s' * (self.changes != 1)}, and in a random "
            f"order {self.expected:,.0f} times (p at most {MAX_P_SORTED:g})"
        )


def sorted_by(answers: LabeledAnswers) -> Sorting | None:
    """What labeled answers are sorted by, or nearly so; None: by nothing.

    Only an order that a sort makes: less than a third of the changes that chance would make, and so
    few in at most one of 10,000 random orders. That classes come a little bunched is common in a
    stream, and no fault.
    """
    if not len(answers.rows):
        return None
    u = answers.uncertainty
    # The promise is about accepted answers: in their order errors count.
    wrong = answers.is_error if answers.limits is None else answers.is_error[answers.accepted]
    columns = {
        "true class": answers.labels,
        "predicted class": answers.predicted,
        "uncertainty": np.searchsorted(np.quantile(u, [0.25, 0.5, 0.75]), u),
        "right and wrong": wrong.astype(np.int64),
    }
    for name, column in columns.items():
        if not len(column):
            continue
        runs = drift.blocks(column, shuffles=9_999)
        if runs.changes <= runs.expected / 3 and runs.p_value <= MAX_P_SORTED:
            first = wrong[: int(wrong.sum())]
            errors_last = name == "right and wrong" and float(first.mean()) < 0.5
            return Sorting(name, runs.changes, runs.expected, errors_last)
    return None
