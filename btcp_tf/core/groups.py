"""Rows that belong together: the images of a patient, the frames of a video, near-duplicates.

They are no independent draws. So they stay on one side of every split, intervals come from drawing
whole groups, and a promise counts each group once.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf.core import checks


def numbers(groups: ArrayLike, rows: int, name: str = "groups") -> np.ndarray:
    """The number of each row's group, from 0 to g - 1: int64 `[n]`.

    Args:
      groups: `[n]`, whole numbers or strings; rows with equal ones belong together.
      rows: n.
      name: Of the argument, for errors.

    Raises:
      ValueError: If groups are not as described, or there is only one.

    >>> numbers(["ann", "bob", "ann"], 3).tolist()
    [0, 1, 0]
    """
    names = checks.names_array(name, groups)
    if names.dtype.kind not in "biuUS":
        raise ValueError(
            f"{name}: expected whole numbers or strings, one a row, received "
            f"{checks.types_text(names)}; rows without a group each need a name of their own"
        )
    if names.shape != (rows,):
        raise ValueError(f"{name}: expected shape [{rows}], received {list(names.shape)}")
    if names.dtype.kind in "US" and (nameless := np.flatnonzero(np.char.str_len(names) == 0)).size:
        raise ValueError(
            f"{name}: expected a name in every row, received none in row {nameless[0]}; rows that "
            "stand alone need one each"
        )
    distinct, number = np.unique(names, return_inverse=True)
    if rows and len(distinct) < 2:
        raise ValueError(
            f"{name}: expected at least 2 groups, received one of all {rows} rows; leave it out "
            "where rows are independent"
        )
    return number.astype(np.int64)


def one_of_each(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """A row of each group, drawn at random: their places, ascending, `[g]`.

    Args:
      groups: From `numbers`.
      seed: Seed of the draw.

    >>> one_of_each(np.array([0, 1, 1, 2, 0]), seed=1).tolist()
    [1, 3, 4]
    """
    order = np.random.default_rng(seed).permutation(len(groups))
    _, first = np.unique(groups[order], return_index=True)
    return np.sort(order[first])


def sums(values: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """The sum of a value over each group, `[g]`; without groups the values themselves.

    >>> sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0])).tolist()
    [5.0, 2.0]
    """
    return values if groups is None else np.bincount(groups, weights=values)


def mean_error(values: np.ndarray, groups: np.ndarray | None) -> float:
    """Standard error of a mean over rows, where those of a group vary together.

    Without groups it is the standard deviation over √n. With them it is that of a mean over
    clusters: of each group's sum of deviations from the mean.

    >>> round(mean_error(np.array([1.0, 1.0, 3.0, 3.0]), None), 3)
    0.5
    >>> round(mean_error(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1])), 3)
    0.707
    """
    deviations = sums(values - values.mean(), groups)
    return float(np.sqrt(np.square(deviations).sum()) / len(values))


class Members:
    """The rows of each group, for drawing whole groups.

    Args:
      groups: From `numbers`, `[n]`.
    """

    def __init__(self, groups: np.ndarray) -> None:
        self._order = np.argsort(groups, kind="stable")
        self._sizes = np.bincount(groups)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def draw(self, generator: Any) -> np.ndarray:
        """The rows of as many groups as there are, drawn with replacement: `[m]`.

        Args:
          generator: Of `numpy.random`.

        >>> members = Members(np.array([0, 1, 0]))
        >>> sorted(members.draw(np.random.default_rng(0)).tolist())
        [1, 1]
        """
        drawn = generator.integers(0, len(self._sizes), len(self._sizes))
        sizes = self._sizes[drawn]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self._order[np.repeat(self._starts[drawn], sizes) + within]
