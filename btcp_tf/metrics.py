"""Failure prediction, measured: how well uncertainty u tells wrong answers from right ones.

Every metric is a function of `(is_error, uncertainty)`: for n rows, whether the classifier's answer
is wrong, and how little it should be trusted (higher = less). Rows with equal u cannot be told
apart, so none depends on the order of tied rows: all are computed from `TieGroups`, the counts of
rows and errors for each distinct u. Those counts are also all that a bootstrap draw changes; one
formula therefore serves the point estimate and, with a leading axis, all draws at once.

"Positive" is a correct answer in `bacc`, `fpr`, `fp_share` and `fnr`, as in the paper's confusion
matrix; elsewhere the names say which class is meant. "The paper" is Identifying Incorrect
Classifications with Balanced Uncertainty (BTCP).

OOD detection asks the same of other rows: which samples are out of the classifier's distribution.
Its metrics, `OOD_METRICS`, are functions of `(is_ood, uncertainty)` and of the same counts, with
OOD samples in the place of errors and in-distribution samples in that of correct answers.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf.core.checks import LEAVE_OUT, array, check_rows, whole_number
from btcp_tf.core.checks import RowError as RowError
from btcp_tf.core.checks import number as number
from btcp_tf.core.groups import Members, numbers

_BLOCK_CELLS = 2**18
"""Counts that the bootstrap holds per array: few enough to stay in the processor's cache."""


class TieGroups(NamedTuple):
    """Rows counted by distinct uncertainty.

    Counts are cumulative from the most trusted row on, with a 0 in front: entry i counts the rows
    of the i smallest values of u. Leading axes, if any, are bootstrap draws, in which a group may
    be empty.
    """

    u: np.ndarray
    """Distinct uncertainties, ascending, [g] float64."""
    rows: np.ndarray
    """Rows up to each group's end, [..., g + 1] int64."""
    errors: np.ndarray
    """Wrong answers among `rows`, [..., g + 1] int64."""

    @property
    def correct(self) -> np.ndarray:
        """Correct answers among `rows`, [..., g + 1] int64."""
        return self.rows - self.errors


class _Task(NamedTuple):
    """How messages call what is to be told apart."""

    argument: str
    trusted: str
    wanted: str


_FAILURE = _Task("is_error", "correct answers", "errors")
_OOD = _Task("is_ood", "in-distribution samples", "OOD samples")


def tie_groups(is_error: ArrayLike, uncertainty: ArrayLike) -> TieGroups:
    """Sorts and groups the rows; the one costly step that all metrics share.

    Args:
      is_error: Whether each answer is wrong, [n], bool or 0 / 1.
      uncertainty: Finite numbers, [n]; higher = less to be trusted. Compared as float64.

    Raises:
      ValueError: If a shape, a type or a value is not as described, or n is 0; the message names
        the first bad row.

    Example:
      >>> groups = tie_groups([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9])
      >>> groups.rows.tolist(), groups.errors.tolist()
      ([0, 1, 3, 4], [0, 0, 1, 2])
    """
    return _grouped(is_error, uncertainty, _FAILURE)


def _grouped(wanted: ArrayLike, uncertainty: ArrayLike, task: _Task) -> TieGroups:
    return _count(*_keys(*_columns(wanted, uncertainty, task)))


def _columns(
    is_error: ArrayLike, uncertainty: ArrayLike, task: _Task
) -> tuple[np.ndarray, np.ndarray]:
    """The two columns as [n] bool and [n] float64."""
    if np.ma.isMaskedArray(is_error) or np.ma.isMaskedArray(uncertainty):
        raise ValueError("expected plain arrays, received a masked one; leave its rows out first")
    errors, u = array(task.argument, is_error), array("uncertainty", uncertainty)
    for name, column in ((task.argument, errors), ("uncertainty", u)):
        if column.dtype.kind not in "biuf":
            raise ValueError(f"{name}: expected numbers, received dtype {column.dtype}")
        if column.ndim != 1 or not column.size:
            raise ValueError(f"{name}: expected shape [n], n > 0, received {list(column.shape)}")
    if errors.shape != u.shape:
        raise ValueError(
            f"{task.argument} and uncertainty: expected the same shape, "
            f"received {list(errors.shape)} and {list(u.shape)}"
        )
    if errors.dtype != bool:
        check_rows((errors == 0) | (errors == 1), errors, f"{task.argument}: expected 0 or 1")
    u = u.astype(np.float64, copy=False)
    check_rows(np.isfinite(u), u, "uncertainty: expected finite numbers", LEAVE_OUT)
    return errors.astype(bool, copy=False), u


def _keys(is_error: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct u ascending, [g], and each row's cell in a [g, 2] table (correct, wrong), [n]."""
    distinct, group = np.unique(u, return_inverse=True)
    return distinct, 2 * group + is_error


def _count(u: np.ndarray, keys: np.ndarray) -> TieGroups:
    """Counts rows by their cells.

    Args:
      u: Distinct uncertainties, [g].
      keys: Cells of the rows, [n], or of each draw's rows, [draws, n].
    """
    draws, cells = keys.shape[:-1], 2 * len(u)
    first_cell = cells * np.arange(math.prod(draws)).reshape(*draws, 1)
    table = np.bincount((keys + first_cell).ravel(), minlength=first_cell.size * cells)
    table = table.reshape(*draws, len(u), 2)
    rows = np.zeros((*draws, len(u) + 1), np.int64)
    errors = np.zeros_like(rows)
    np.cumsum(table.sum(axis=-1), axis=-1, out=rows[..., 1:])
    np.cumsum(table[..., 1], axis=-1, out=errors[..., 1:])
    return TieGroups(u, rows, errors)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, and NaN where `whole` is 0."""
    shape = np.broadcast_shapes(np.shape(part), np.shape(whole))
    return np.divide(part, whole, out=np.full(shape, np.nan), where=np.asarray(whole) > 0)


def _first(reached: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The entry of `counts` where `reached` first holds, along the last axis, [...]."""
    index = np.argmax(reached, axis=-1)[..., None]
    return np.take_along_axis(counts, index, axis=-1)[..., 0]


def _single(
    formula: Callable[..., np.ndarray],
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    task: _Task = _FAILURE,
    **settings: Any,
) -> float:
    """One metric of one column; warns if it is undefined."""
    groups = _grouped(is_error, uncertainty, task)
    value = float(formula(groups, **settings))
    if math.isnan(value):
        _warn_undefined([formula.__name__.removeprefix("_")], groups, task, stacklevel=4)
    return value


def _warn_undefined(names: Iterable[str], groups: TieGroups, task: _Task, stacklevel: int) -> None:
    absent = task.trusted if groups.errors[-1] else task.wanted
    warnings.warn(
        f"no {absent} among {groups.rows[-1]} rows: {', '.join(names)} undefined (NaN)",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


# Ranking: unchanged by any increasing map of u.


def auroc(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Probability that a wrong answer has the higher u than a correct one; a tie counts half.

    The paper's AUC: the area under `roc_curve`. In [0, 1]; NaN, with a warning, without errors or
    without correct answers.

    Example:
      >>> round(auroc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.6667
    """
    return _single(_auroc, is_error, uncertainty)


def _auroc(groups: TieGroups) -> np.ndarray:
    correct = groups.correct
    doubled = np.diff(groups.errors) * (correct[..., 1:] + correct[..., :-1])
    return _ratio(doubled.sum(axis=-1), 2 * groups.errors[..., -1] * correct[..., -1])


def aupr_error(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Average precision of finding the errors by highest u; tied rows are one threshold.

    In (0, 1], about the error rate for a useless u; NaN, with a warning, without errors.

    Example:
      >>> round(aupr_error([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.75
    """
    return _single(_aupr_error, is_error, uncertainty)


def _aupr_error(groups: TieGroups) -> np.ndarray:
    errors, rows = groups.errors, groups.rows
    caught, examined = errors[..., -1:] - errors[..., :-1], rows[..., -1:] - rows[..., :-1]
    precision = caught / np.maximum(examined, 1)
    return _ratio((np.diff(errors) * precision).sum(axis=-1), errors[..., -1])


def aupr_success(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Average precision of finding the correct answers by lowest u; tied rows are one threshold.

    In (0, 1], about the accuracy for a useless u; NaN, with a warning, without correct answers.

    Example:
      >>> round(aupr_success([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.8056
    """
    return _single(_aupr_success, is_error, uncertainty)


def _aupr_success(groups: TieGroups) -> np.ndarray:
    correct = groups.correct
    precision = correct[..., 1:] / np.maximum(groups.rows[..., 1:], 1)
    return _ratio((np.diff(correct) * precision).sum(axis=-1), correct[..., -1])


def fpr95(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Share of the errors that are accepted where 95 % of the correct answers are.

    The threshold is the smallest observed u with at least 95 % of the correct answers at or below
    it; no interpolation. In [0, 1]; NaN, with a warning, without errors or correct answers.

    Example:
      >>> round(fpr95([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 2)
      0.5
    """
    return _single(_fpr95, is_error, uncertainty)


def _fpr95(groups: TieGroups) -> np.ndarray:
    correct, errors = groups.correct, groups.errors
    # A quotient of counts is rounded as the literal is, so that 19 of 20 is 0.95.
    reached = correct / np.maximum(correct[..., -1:], 1) >= 0.95
    return _ratio(_first(reached, errors), errors[..., -1] * (correct[..., -1] > 0))


def aurc(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Area under the risk-coverage curve: mean over k = 1..n of the error rate among the k most
    trusted rows, averaged over all orders of tied rows.

    In [0, 1]; 0 without errors. Source: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty
    Estimation for Deep Neural Classifiers, 2019.

    Example:
      >>> round(aurc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.2967
    """
    return _single(_aurc, is_error, uncertainty)


def _aurc(groups: TieGroups) -> np.ndarray:
    size, wrong = np.diff(groups.rows), np.diff(groups.errors)
    # In the mean over its orders, every row of a group adds the same share of an error. So the
    # errors among the first k rows are `offset + k * share`, with offset and share of k's group.
    # Divided by k and summed over the group, that is its errors and `offset` times a sum of 1 / k.
    offset = groups.errors[..., :-1] - groups.rows[..., :-1] * (wrong / np.maximum(size, 1))
    n = groups.rows.flat[-1]
    reciprocals = np.diff(_harmonic(n)[groups.rows])
    return (groups.errors[..., -1] + (offset * reciprocals).sum(axis=-1)) / n


def _harmonic(n: int) -> np.ndarray:
    """Sums of 1 / k over k = 1..m for m = 0..n, [n + 1]."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])


def e_aurc(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Excess of `aurc` over that of an oracle that ranks every error last, without ties.

    In [0, 1]; 0 without errors. Source: as `aurc`, but the oracle is the exact sum.

    Example:
      >>> round(e_aurc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.1667
    """
    return _single(_e_aurc, is_error, uncertainty)


def _e_aurc(groups: TieGroups) -> np.ndarray:
    # The oracle's errors among the first k rows are max(0, k - correct).
    n, correct = groups.rows.flat[-1], groups.correct[..., -1]
    harmonic = _harmonic(n)
    oracle = (groups.errors[..., -1] - correct * (harmonic[n] - harmonic[correct])) / n
    # Rounding must not put a perfect order below the oracle.
    return np.maximum(_aurc(groups) - oracle, 0)


def augrc(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Area under accepted errors / n against coverage, straight between the ends of tie groups.

    In [0, 1/2]; 0 without errors. Source: Traub et al., Overcoming Common Flaws in the Evaluation
    of Selective Classification Systems, 2024.

    Example:
      >>> round(augrc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 2)
      0.16
    """
    return _single(_augrc, is_error, uncertainty)


def _augrc(groups: TieGroups) -> np.ndarray:
    doubled = np.diff(groups.rows) * (groups.errors[..., 1:] + groups.errors[..., :-1])
    return doubled.sum(axis=-1) / (2 * groups.rows[..., -1] ** 2)


def risk_at_coverage(is_error: ArrayLike, uncertainty: ArrayLike, *, coverage: float) -> float:
    """Error rate of the accepted rows at the smallest threshold that accepts enough.

    Args:
      is_error: [n], see `tie_groups`.
      uncertainty: [n], see `tie_groups`.
      coverage: Least share of the rows to accept, in (0, 1]. Tied rows are accepted together.

    Example:
      >>> risk_at_coverage([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], coverage=0.8)
      0.25
    """
    return _single(_risk_at_coverage, is_error, uncertainty, coverage=coverage)


def _risk_at_coverage(groups: TieGroups, coverage: float) -> np.ndarray:
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage: expected a number in (0, 1], received {coverage}")
    reached = groups.rows / groups.rows[..., -1:] >= coverage
    return _first(reached, groups.errors) / _first(reached, groups.rows)


def coverage_at_risk(is_error: ArrayLike, uncertainty: ArrayLike, *, risk: float) -> float:
    """Largest share of rows that can be accepted, most trusted first, at no more than this risk.

    Args:
      is_error: [n], see `tie_groups`.
      uncertainty: [n], see `tie_groups`.
      risk: Largest error rate of the accepted rows, in [0, 1]. Tied rows are accepted together.

    Returns:
      Coverage in [0, 1], 0 if no threshold keeps the risk. It is an observation on these rows, not
      a promise for others.

    Example:
      >>> coverage_at_risk([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], risk=0.25)
      0.8
    """
    return _single(_coverage_at_risk, is_error, uncertainty, risk=risk)


def _coverage_at_risk(groups: TieGroups, risk: float) -> np.ndarray:
    if not 0 <= risk <= 1:
        raise ValueError(f"risk: expected a number in [0, 1], received {risk}")
    kept = groups.errors / np.maximum(groups.rows, 1) <= risk
    return np.where(kept, groups.rows, 0).max(axis=-1) / groups.rows[..., -1]


# Threshold: u < tau accepts, u >= tau rejects. A correct answer is the positive class.


def fpr(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> float:
    """Share of the errors that are accepted: FP / (FP + TN), the paper's formula.

    In [0, 1]; NaN, with a warning, without errors.

    Example:
      >>> fpr([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.35)
      0.5
    """
    return _single(_fpr, is_error, uncertainty, tau=tau)


def _fpr(groups: TieGroups, tau: float) -> np.ndarray:
    return _ratio(_accepted(groups, groups.errors, tau), groups.errors[..., -1])


def fp_share(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> float:
    """Share of all rows that are accepted errors: FP / n, as the authors' prototype has it.

    Example:
      >>> fp_share([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.35)
      0.2
    """
    return _single(_fp_share, is_error, uncertainty, tau=tau)


def _fp_share(groups: TieGroups, tau: float) -> np.ndarray:
    return _accepted(groups, groups.errors, tau) / groups.rows[..., -1]


def fnr(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> float:
    """Share of the correct answers that are rejected: FN / (FN + TP).

    In [0, 1]; NaN, with a warning, without correct answers.

    Example:
      >>> round(fnr([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.35), 4)
      0.3333
    """
    return _single(_fnr, is_error, uncertainty, tau=tau)


def _fnr(groups: TieGroups, tau: float) -> np.ndarray:
    total = groups.correct[..., -1]
    return _ratio(total - _accepted(groups, groups.correct, tau), total)


def bacc(is_error: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> float:
    """Balanced accuracy of accepting and rejecting: mean of the recalls 1 - fpr and 1 - fnr.

    In [0, 1]; NaN, with a warning, without errors or without correct answers.

    Example:
      >>> round(bacc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.35), 4)
      0.5833
    """
    return _single(_bacc, is_error, uncertainty, tau=tau)


def _bacc(groups: TieGroups, tau: float) -> np.ndarray:
    return 1 - (_fpr(groups, tau) + _fnr(groups, tau)) / 2


def _accepted(groups: TieGroups, counts: np.ndarray, tau: float) -> np.ndarray:
    if not math.isfinite(tau):
        raise ValueError(f"tau: expected a finite number, received {tau}")
    return counts[..., np.searchsorted(groups.u, tau, side="left")]


# Calibration: 1 - u as the probability of being correct.


def ece(is_error: ArrayLike, uncertainty: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error: mean over rows of |accuracy - mean confidence| of the row's bin.

    Args:
      is_error: [n], see `tie_groups`.
      uncertainty: [n] in [0, 1]. The confidence is 1 - u.
      bins: Number of equal bins (a, b] of the confidence; 0 belongs to the first.

    Example:
      >>> round(ece([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 2)
      0.42
    """
    return _single(_ece, is_error, uncertainty, bins=bins)


def _ece(groups: TieGroups, bins: int = 15) -> np.ndarray:
    _, _, correct, confidence = _bin_totals(groups, bins)
    return np.abs(correct - confidence).sum(axis=-1) / groups.rows[..., -1]


def _bin_totals(groups: TieGroups, bins: int) -> tuple[np.ndarray, ...]:
    """Occupied bins, [b], and their rows, correct answers and summed confidence, [..., b]."""
    if bins < 1:
        raise ValueError(f"bins: expected at least 1, received {bins}")
    confidence = 1 - _unit_interval(groups)
    bin_of_group = np.searchsorted(np.arange(1, bins) / bins, confidence, side="left")
    # Bins follow each other along the sorted u: each is a slice of groups.
    start = np.flatnonzero(np.diff(bin_of_group, prepend=-1))
    rows = np.diff(groups.rows)
    per_group = rows, np.diff(groups.correct), rows * confidence
    return bin_of_group[start], *(np.add.reduceat(x, start, axis=-1) for x in per_group)


def _unit_interval(groups: TieGroups) -> np.ndarray:
    for u in groups.u[[0, -1]]:
        if not 0 <= u <= 1:
            raise ValueError(f"uncertainty: expected values in [0, 1], received {u}")
    return groups.u


def brier(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Brier score of 1 - u: mean of (u - is_error)^2, u in [0, 1]. In [0, 1].

    Example:
      >>> round(brier([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 2)
      0.23
    """
    return _single(_brier, is_error, uncertainty)


def _brier(groups: TieGroups) -> np.ndarray:
    u = _unit_interval(groups)
    return _mean_cost(groups, correct=u**2, error=(1 - u) ** 2)


def nll(is_error: ArrayLike, uncertainty: ArrayLike) -> float:
    """Negative log-likelihood of 1 - u, u in [0, 1], clipped to [1e-7, 1 - 1e-7].

    In nats per row, >= 0.

    Example:
      >>> round(nll([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.6551
    """
    return _single(_nll, is_error, uncertainty)


def _nll(groups: TieGroups) -> np.ndarray:
    p = np.clip(1 - _unit_interval(groups), 1e-7, 1 - 1e-7)
    return _mean_cost(groups, correct=-np.log(p), error=-np.log1p(-p))


def _mean_cost(groups: TieGroups, correct: np.ndarray, error: np.ndarray) -> np.ndarray:
    cost = np.diff(groups.correct) * correct + np.diff(groups.errors) * error
    return cost.sum(axis=-1) / groups.rows[..., -1]


# OOD detection: out-of-distribution samples are what is to be found.


def aupr_ood(is_ood: ArrayLike, uncertainty: ArrayLike) -> float:
    """Average precision of finding the OOD samples by highest u; tied rows are one threshold.

    In (0, 1], about the share of OOD samples for a useless u, so that it compares only sets of the
    same sizes; NaN, with a warning, without OOD samples.

    Example:
      >>> round(aupr_ood([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.75
    """
    return _single(_aupr_ood, is_ood, uncertainty, _OOD)


def _aupr_ood(groups: TieGroups) -> np.ndarray:
    return _aupr_error(groups)


def aupr_id(is_ood: ArrayLike, uncertainty: ArrayLike) -> float:
    """Average precision of finding the in-distribution samples by lowest u, as `aupr_ood`.

    In (0, 1]; NaN, with a warning, without in-distribution samples.

    Example:
      >>> round(aupr_id([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.8056
    """
    return _single(_aupr_id, is_ood, uncertainty, _OOD)


def _aupr_id(groups: TieGroups) -> np.ndarray:
    return _aupr_success(groups)


def ood_acc(is_ood: ArrayLike, uncertainty: ArrayLike, *, tau: float) -> float:
    """Share of the OOD samples that are rejected, u >= tau: the paper's ACC.

    In [0, 1]; in-distribution samples do not matter, so a larger u everywhere is better. NaN, with
    a warning, without OOD samples.

    Example:
      >>> ood_acc([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5], tau=0.35)
      0.5
    """
    return _single(_ood_acc, is_ood, uncertainty, _OOD, tau=tau)


def _ood_acc(groups: TieGroups, tau: float) -> np.ndarray:
    return 1 - _fpr(groups, tau)


def ood_au(is_ood: ArrayLike, uncertainty: ArrayLike) -> float:
    """Mean u of the OOD samples, u in [0, 1]: the paper's AU.

    In [0, 1]; in-distribution samples do not matter, see `ood_acc`. NaN, with a warning, without
    OOD samples.

    Example:
      >>> round(ood_au([0, 1, 0, 0, 1], [0.1, 0.2, 0.3, 0.4, 0.5]), 4)
      0.35
    """
    return _single(_ood_au, is_ood, uncertainty, _OOD)


def _ood_au(groups: TieGroups) -> np.ndarray:
    total = (np.diff(groups.errors) * _unit_interval(groups)).sum(axis=-1)
    return _ratio(total, groups.errors[..., -1])


# Curves.


class RiskCoverageCurve(NamedTuple):
    """Points at the ends of the g tie groups; coverage rises, from the most trusted on to 1."""

    coverage: np.ndarray
    """Share of rows with u <= threshold, [g]."""
    risk: np.ndarray
    """Error rate among them, [g]."""
    threshold: np.ndarray
    """The g distinct u, ascending."""


def risk_coverage_curve(is_error: ArrayLike, uncertainty: ArrayLike) -> RiskCoverageCurve:
    """Error rate of the accepted rows against the share accepted, see `tie_groups` for arguments.

    `aurc` is the area under it with the errors rising evenly within a group of tied rows.

    Example:
      >>> curve = risk_coverage_curve([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9])
      >>> curve.coverage.tolist(), curve.risk.round(2).tolist()
      ([0.25, 0.75, 1.0], [0.0, 0.33, 0.5])
    """
    groups = tie_groups(is_error, uncertainty)
    rows, errors = groups.rows[1:], groups.errors[1:]
    return RiskCoverageCurve(rows / rows[-1], errors / rows, groups.u)


class RocCurve(NamedTuple):
    """Points from (0, 0), nothing rejected, to (1, 1), everything rejected."""

    correct_rejected: np.ndarray
    """Share of the correct answers with u >= threshold, [g + 1]."""
    errors_rejected: np.ndarray
    """Share of the errors with u >= threshold, [g + 1]."""
    threshold: np.ndarray
    """Infinity, then the g distinct u, descending."""


def roc_curve(is_error: ArrayLike, uncertainty: ArrayLike) -> RocCurve:
    """Errors caught against correct answers lost, see `tie_groups` for arguments.

    The shares of a class without rows are NaN, with a warning.

    Example:
      >>> curve = roc_curve([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9])
      >>> curve.correct_rejected.tolist(), curve.errors_rejected.tolist()
      ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    groups = tie_groups(is_error, uncertainty)
    correct, errors = ((x[-1] - x)[::-1] for x in (groups.correct, groups.errors))
    if not (correct[-1] and errors[-1]):
        _warn_undefined(["roc_curve"], groups, _FAILURE, stacklevel=3)
    threshold = np.append(groups.u, np.inf)[::-1]
    return RocCurve(_ratio(correct, correct[-1]), _ratio(errors, errors[-1]), threshold)


class ReliabilityCurve(NamedTuple):
    """One entry for each of the equal bins of the confidence 1 - u, ascending."""

    confidence: np.ndarray
    """Mean 1 - u of the bin's rows, [bins]; NaN in an empty bin."""
    accuracy: np.ndarray
    """Their share of correct answers, [bins]; NaN in an empty bin."""
    rows: np.ndarray
    """Their number, [bins] int64."""


def reliability_curve(
    is_error: ArrayLike, uncertainty: ArrayLike, *, bins: int = 15
) -> ReliabilityCurve:
    """Accuracy against confidence in the bins of `ece`, which see for arguments.

    Example:
      >>> curve = reliability_curve([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9], bins=2)
      >>> curve.rows.tolist(), curve.accuracy.round(2).tolist()
      ([1, 3], [0.0, 0.67])
    """
    occupied, *totals = _bin_totals(tie_groups(is_error, uncertainty), bins)
    dense = np.zeros((3, bins))
    dense[:, occupied] = totals
    rows, correct, confidence = dense
    return ReliabilityCurve(_ratio(confidence, rows), _ratio(correct, rows), rows.astype(np.int64))


# Whole tables.


@dataclasses.dataclass(frozen=True)
class Metric:
    """What a table needs to know about a metric.

    Called with `(is_error, uncertainty)`, and `tau=` if `kind` is "threshold", it is the function
    of its name. In `OOD_METRICS`, `is_ood` stands for `is_error`.
    """

    formula: Callable[..., np.ndarray]
    """Maps `TieGroups` [..., g] to values [...]; NaN where undefined."""
    title: str
    """Column heading."""
    kind: str
    """"ranking", "threshold" (takes tau), "calibration" or "scale" (what u itself is). All but the
    first need u in [0, 1]."""
    higher_is_better: bool
    in_paper: bool = False
    """Whether the paper reports it."""
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Fixed keyword arguments of the formula."""
    top: float = 1.0
    """No value is greater; none is below 0."""
    task: _Task = _FAILURE
    """For messages: what is told apart."""

    def __call__(self, is_error: ArrayLike, uncertainty: ArrayLike, **tau: float) -> float:
        return _single(self.formula, is_error, uncertainty, self.task, **self.settings, **tau)


METRICS: dict[str, Metric] = {
    "bacc": Metric(_bacc, "BACC", "threshold", True, in_paper=True),
    "auroc": Metric(_auroc, "AUROC", "ranking", True, in_paper=True),
    "fpr": Metric(_fpr, "FPR", "threshold", False, in_paper=True),
    "fp_share": Metric(_fp_share, "FP / n", "threshold", False),
    "fnr": Metric(_fnr, "FNR", "threshold", False, in_paper=True),
    "aupr_error": Metric(_aupr_error, "AUPR-error", "ranking", True),
    "aupr_success": Metric(_aupr_success, "AUPR-success", "ranking", True),
    "fpr95": Metric(_fpr95, "FPR95", "ranking", False),
    "aurc": Metric(_aurc, "AURC", "ranking", False),
    "e_aurc": Metric(_e_aurc, "E-AURC", "ranking", False),
    "augrc": Metric(_augrc, "AUGRC", "ranking", False),
    "risk_at_coverage_80": Metric(
        _risk_at_coverage, "Risk at 80 % coverage", "ranking", False, settings={"coverage": 0.8}
    ),
    "risk_at_coverage_90": Metric(
        _risk_at_coverage, "Risk at 90 % coverage", "ranking", False, settings={"coverage": 0.9}
    ),
    "risk_at_coverage_95": Metric(
        _risk_at_coverage, "Risk at 95 % coverage", "ranking", False, settings={"coverage": 0.95}
    ),
    "coverage_at_risk_1": Metric(
        _coverage_at_risk, "Coverage at 1 % risk", "ranking", True, settings={"risk": 0.01}
    ),
    "coverage_at_risk_2": Metric(
        _coverage_at_risk, "Coverage at 2 % risk", "ranking", True, settings={"risk": 0.02}
    ),
    "coverage_at_risk_5": Metric(
        _coverage_at_risk, "Coverage at 5 % risk", "ranking", True, settings={"risk": 0.05}
    ),
    "ece": Metric(_ece, "ECE", "calibration", False),
    "brier": Metric(_brier, "Brier", "calibration", False),
    "nll": Metric(_nll, "NLL", "calibration", False, top=math.inf),
}
"""Every metric of failure prediction by name."""

DECISION_METRICS = {name: metric for name, metric in METRICS.items() if metric.kind == "threshold"}
"""Those that depend on what is accepted alone."""

OOD_METRICS: dict[str, Metric] = {
    "auroc": dataclasses.replace(METRICS["auroc"], task=_OOD, in_paper=False),
    "fpr95": dataclasses.replace(METRICS["fpr95"], task=_OOD),
    "aupr_ood": Metric(_aupr_ood, "AUPR-OOD", "ranking", True, task=_OOD),
    "aupr_id": Metric(_aupr_id, "AUPR-ID", "ranking", True, task=_OOD),
    "ood_acc": Metric(_ood_acc, "ACC", "threshold", True, in_paper=True, task=_OOD),
    "ood_au": Metric(_ood_au, "AU", "scale", True, in_paper=True, task=_OOD),
}
"""Every metric of OOD detection by name. `fpr95` is the share of the OOD samples that are accepted
where 95 % of the in-distribution samples are."""


def evaluate_groups(
    groups: TieGroups, *, tau: float, table: Mapping[str, Metric] = METRICS
) -> dict[str, np.ndarray]:
    """Metrics of rows that are already grouped, without warnings.

    Args:
      groups: See `tie_groups`.
      tau: Decision threshold on u.
      table: `METRICS`, `OOD_METRICS` or a part of one.

    Returns:
      Values by name, [...] as the leading axes of `groups`. NaN where a metric is undefined: it
      divides by an absent class, or u leaves [0, 1] and it is no ranking metric.

    Example:
      >>> groups = tie_groups([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9])
      >>> print(evaluate_groups(groups, tau=0.5)["auroc"])
      0.875
    """
    on_scale = groups.u[0] >= 0 and groups.u[-1] <= 1
    values = {}
    for name, metric in table.items():
        if on_scale or metric.kind == "ranking":
            tau_if_used = {"tau": tau} if metric.kind == "threshold" else {}
            values[name] = metric.formula(groups, **metric.settings, **tau_if_used)
        else:
            values[name] = np.full(groups.rows.shape[:-1], np.nan)
    return values


def evaluate_all(
    is_error: ArrayLike,
    uncertainty: ArrayLike,
    *,
    tau: float,
    table: Mapping[str, Metric] = METRICS,
) -> dict[str, float]:
    """A table of metrics by name, with one sort.

    One warning lists the metrics that are NaN for want of a class. Threshold, calibration and scale
    metrics of a u that leaves [0, 1] are NaN without one: such a score has no fixed scale.

    Args:
      is_error: [n], see `tie_groups`; for `OOD_METRICS` whether each sample is out of distribution.
      uncertainty: [n], see `tie_groups`.
      tau: Decision threshold on u.
      table: `METRICS`, `OOD_METRICS` or a part of one; at least one metric.

    Example:
      >>> values = evaluate_all([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.9], tau=0.5)
      >>> values["auroc"], values["fpr"]
      (0.875, 0.5)
    """
    task = next(iter(table.values())).task
    groups = _grouped(is_error, uncertainty, task)
    measured = evaluate_groups(groups, tau=tau, table=table)
    values = {name: float(x) for name, x in measured.items()}
    undefined = [name for name, x in values.items() if math.isnan(x)]
    if undefined and groups.errors[-1] in (0, groups.rows[-1]):
        _warn_undefined(undefined, groups, task, stacklevel=3)
    return values


# Bootstrap.


def bootstrap(
    is_error: ArrayLike,
    columns: Mapping[str, ArrayLike],
    *,
    tau: float | Mapping[str, float],
    draws: int,
    seed: int,
    table: Mapping[str, Metric] = METRICS,
    parts: Sequence[int] | None = None,
    groups: ArrayLike | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Metrics of resampled rows: `interval` of them is a confidence interval.

    Draw d consists of the rows `numpy.random.default_rng(seed).integers(n, size=(draws, n))[d]`, in
    all columns (without `groups`): the values of two columns may be subtracted draw by draw, for
    the interval of a paired difference.

    Args:
      is_error: [n], see `tie_groups`; for `OOD_METRICS` whether each sample is out of distribution.
      columns: Uncertainties [n] by name, for the same answers.
      tau: Decision threshold on u, or one for each column by name.
      draws: Number of draws, at least 1.
      seed: Seed of the draws, at least 0.
      table: `METRICS`, `OOD_METRICS` or a part of one; at least one metric.
      parts: Numbers of rows that follow each other and are drawn each from its own part, where the
        sizes were chosen and not drawn, as those of test images and OOD images. None: one part.
      groups: [n], whole numbers or strings: rows with equal ones belong together, such as the
        images of a patient. Then a draw consists of whole groups, as many as there are (Field and
        Welsh, Bootstrapping clustered data, 2007), with `parts` in each of these.

    Returns:
      By column and metric, the metric's value in each draw, [draws] float64; NaN where the draw
      leaves it undefined (see `evaluate_groups`).

    Example:
      >>> columns = {"u": [0.1, 0.2, 0.2, 0.9], "half": [0.1, 0.1, 0.5, 0.5]}
      >>> drawn = bootstrap([0, 1, 0, 1], columns, tau=0.5, draws=100, seed=0)
      >>> low, high = interval(drawn["u"]["augrc"] - drawn["half"]["augrc"])
      >>> low <= 0 <= high
      True
    """
    draws = whole_number("draws", draws, "a whole number >= 1", 1)
    seed = whole_number("seed", seed, "a whole number >= 0", 0)
    task = next(iter(table.values())).task
    keys = {name: _keys(*_columns(is_error, u, task)) for name, u in columns.items()}
    taus = dict(tau) if isinstance(tau, Mapping) else dict.fromkeys(columns, tau)
    values = {column: {name: np.empty(draws) for name in table} for column in columns}
    n = len(np.asarray(is_error))
    first: int | np.ndarray = 0
    end: int | np.ndarray = n
    if parts is not None:
        if sum(parts) != n or min(parts) < 0:
            raise ValueError(f"parts: expected sizes that add up to {n}, received {list(parts)}")
        ends = np.cumsum(parts)
        first, end = np.repeat(ends - parts, parts), np.repeat(ends, parts)
    generator = np.random.default_rng(seed)
    # Draws of whole groups differ in their numbers of rows.
    at_once = max(1, _BLOCK_CELLS // n) if groups is None else 1
    members = None if groups is None else _members(numbers(groups, n), parts or [n])
    for start in range(0, draws, at_once):
        block = slice(start, min(start + at_once, draws))
        if members is None:
            rows = generator.integers(first, end, size=(block.stop - start, n))
        else:
            rows = np.concatenate([first + own.draw(generator) for first, own in members])[None]
        for column, (u, key) in keys.items():
            tied = _count(u, key[rows])
            measured = evaluate_groups(tied, tau=taus[column], table=table)
            for name, x in measured.items():
                values[column][name][block] = x
    return values


def _members(groups: np.ndarray, parts: Sequence[int]) -> list[tuple[int, Members]]:
    """Where each part begins, and the members of its groups."""
    firsts = np.cumsum(parts) - parts
    return [
        (int(first), Members(np.unique(groups[first : first + size], return_inverse=True)[1]))
        for first, size in zip(firsts, parts, strict=True)
    ]


def interval(values: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap values.

    Args:
      values: [draws], of `bootstrap` or differences of two such. NaN is left out.
      level: Share of the draws inside, in (0, 1).

    Returns:
      Lower and upper end; NaN if no draw is defined.

    Example:
      >>> interval(np.arange(101.0), level=0.9)
      (4.999999999999999, 95.0)
    """
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), received {level}")
    defined = values[~np.isnan(values)]
    if not defined.size:
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
