"""Has something changed since the threshold was chosen? Tests of two samples, and of a promise.

Functions of plain arrays: a baseline, such as the calibration set, and what came later.
`decisions.monitoring` draws the conclusions for a threshold.
"""

# scipy.special alone: scipy.stats, which has some of these tests, takes a second to import, and the
# commands that read saved files start in less. The formulas below are a few lines each; the tests
# compare them with scipy.stats.

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.core.checks import LEAVE_OUT
from btcp_tf.thresholds import clopper_pearson as clopper_pearson


class Psi(NamedTuple):
    """A population stability index, and what chance alone makes of it."""

    value: float
    """Sum over bins of (q - p) log(q / p), >= 0, with the shares p of the baseline and q of what
    came later, each after half a row was added to every bin."""
    scale: float
    """1/n + 1/m: without a change value / scale is about chi-squared."""
    degrees: int
    """Degrees of freedom: bins that are not empty in both samples, minus 1."""
    p_value: float
    """Probability of a value as large without a change; 1 with a single bin."""
    counts: np.ndarray
    """Rows in the bins, [2, b] int64, baseline first."""

    def by_chance(self, alpha: float) -> float:
        """What chance alone exceeds with probability `alpha`, in (0, 1)."""
        return float(self.scale * special.chdtri(self.degrees, alpha)) if self.degrees else 0.0


def quantile_edges(values: ArrayLike, bins: int = 10) -> np.ndarray:
    """Edges that cut a sample into bins of about equal size, however its values are tied.

    Args:
      values: Finite numbers, `[n]`.
      bins: At least 2. A value that fills a whole bin by itself gets a bin of its own, so there may
        be more or fewer.

    Returns:
      `[e]`, ascending; bin i holds what is above edge i - 1 and at most edge i, and the two outer
      bins are open.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> quantile_edges(np.arange(100), bins=4).tolist()
      [24.0, 49.0, 74.0]
      >>> quantile_edges([0, 0, 0, 0, 1], bins=2).tolist()
      [0.0]
    """
    bins = metrics.whole_number("bins", bins, "a whole number >= 2", 2)
    values = _sample("values", values)
    edges, times = np.unique(
        np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf"), return_counts=True
    )
    # Two quantiles at one value: what is below it and what is at it are different things.
    return np.unique(np.append(edges, np.nextafter(edges[times > 1], -np.inf)))


def psi(baseline: ArrayLike, production: ArrayLike, *, bins: int = 10) -> Psi:
    """The population stability index of a score, in bins that the baseline alone sets.

    Args:
      baseline: Finite numbers, `[n]`.
      production: Finite numbers, `[m]`.
      bins: See `quantile_edges`.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> same = psi(np.arange(1000), np.arange(1000) + 2)
      >>> moved = psi(np.arange(1000), np.arange(1000) + 200)
      >>> same.p_value > 0.9, moved.p_value < 1e-4
      (True, True)
    """
    baseline, production = _sample("baseline", baseline), _sample("production", production)
    edges = quantile_edges(baseline, bins)
    return psi_of_counts(
        *(
            np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
            for values in (baseline, production)
        )
    )


def psi_of_counts(baseline: ArrayLike, production: ArrayLike) -> Psi:
    """The population stability index of rows that are counted in bins or classes already.

    Bins that both samples leave empty do not count. It is Jeffreys' divergence between the two
    histograms; to second order that is Pearson's chi-squared distance, whence its distribution. The
    customary limits, 0.1 for a small and 0.25 for a large change, know nothing of n, m and bins.

    Args:
      baseline: Rows in each bin, `[b]` whole numbers >= 0, at least one row.
      production: The same of what came later.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> round(psi_of_counts([50, 50], [80, 20]).value, 3)
      0.406

    Source: Yurdakul, Statistical Properties of Population Stability Index, 2018; Jeffreys, An
    Invariant Form for the Prior Probability in Estimation Problems, 1946.
    """
    counts = _counts(baseline, production)
    counts = counts[:, counts.any(axis=0)]
    rows = counts.sum(axis=1, keepdims=True)
    p, q = (counts + 0.5) / (rows + 0.5 * counts.shape[1])
    value = float(np.sum((q - p) * np.log(q / p)))
    scale = float(np.sum(1 / rows))
    degrees = counts.shape[1] - 1
    p_value = float(special.chdtrc(degrees, value / scale)) if degrees else 1.0
    return Psi(value, scale, degrees, p_value, counts)


class Ks(NamedTuple):
    """A Kolmogorov-Smirnov distance, how certain it is, and whether chance explains it."""

    distance: float
    """Largest difference of the two distribution functions, in [0, 1]."""
    at: float
    """The smallest value at which they differ so much."""
    low: float
    """With `high`, an interval for the distance of the distributions that were sampled."""
    high: float
    p_value: float
    """Probability of a distance as large without a change; rather too large than too small."""


def ks(baseline: ArrayLike, production: ArrayLike, *, level: float = 0.95) -> Ks:
    """The two-sample Kolmogorov-Smirnov test, with an interval for the distance.

    The p-value is that of the limit of large samples. Finite samples and ties make it too large.
    The interval: with probability 1 - a / 2 an empirical distribution function is within
    sqrt(log(4 / a) / 2n) of the true one everywhere (Dvoretzky, Kiefer and Wolfowitz, with the
    constant of Massart); here a = 1 - level, and the distance cannot be further off than both
    together. It holds for ties and for any n, and is wider than it has to be.

    Args:
      baseline: Finite numbers, `[n]`.
      production: Finite numbers, `[m]`.
      level: Probability of the interval, in (0, 1).

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> result = ks(np.arange(100) / 100, np.arange(100) / 200)
      >>> result.distance, result.p_value < 1e-4
      (0.5, True)

    Source: Smirnov, Table for Estimating the Goodness of Fit of Empirical Distributions, 1948;
    Massart, The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality, 1990.
    """
    check_probability("level", level)
    baseline, production = _sample("baseline", baseline), _sample("production", production)
    values = np.union1d(baseline, production)
    gaps = np.abs(_cdf(baseline, values) - _cdf(production, values))
    place = int(gaps.argmax())
    distance = float(gaps[place])
    n, m = len(baseline), len(production)
    slack = math.sqrt(math.log(4 / (1 - level)) / 2) * (n**-0.5 + m**-0.5)
    p_value = float(special.kolmogorov(math.sqrt(n * m / (n + m)) * distance))
    low, high = max(0.0, distance - slack), min(1.0, distance + slack)
    return Ks(distance, float(values[place]), low, high, p_value)


def ks_by_chance(n: int, m: int, alpha: float) -> float:
    """The distance that chance alone exceeds with probability `alpha`, in (0, 1), or less."""
    return float(min(1.0, special.kolmogi(alpha) * math.sqrt((n + m) / (n * m))))


def _cdf(sample: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(sample), at, side="right") / len(sample)


class Mix(NamedTuple):
    """How the shares of classes differ."""

    chi2: float
    """Pearson's statistic of the table of counts."""
    degrees: int
    p_value: float
    """1 where fewer than two classes are left to compare."""
    psi: Psi
    """Of the same classes."""
    pooled: tuple[int, ...]
    """Classes too rare for the test, counted as one."""

    def by_chance(self, alpha: float) -> float:
        """What chance alone makes `chi2` exceed with probability `alpha`, in (0, 1)."""
        return float(special.chdtri(self.degrees, alpha)) if self.degrees else 0.0


def mix(baseline: ArrayLike, production: ArrayLike) -> Mix:
    """Tests whether two samples have the same mix of classes.

    Pearson's chi-squared test of homogeneity. Classes of which fewer than 5 rows are expected in
    one of the samples are counted as one, with the rarest of the others where that is still too
    few; which ones they are depends on the sums alone, which say nothing of a difference.

    Args:
      baseline: Rows of each class, `[k]` whole numbers >= 0, at least one row.
      production: The same of what came later.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> result = mix([90, 20, 1], [95, 30, 0])
      >>> result.degrees, result.pooled
      (1, (1, 2))

    Source: Pearson, On the Criterion, 1900; Cochran, Some Methods for Strengthening the Common
    Chi-Squared Tests, 1954.
    """
    counts = _counts(baseline, production)
    sums = counts.sum(axis=0)
    fewest = 5 * sums.sum() / counts.sum(axis=1).min()
    order = np.argsort(sums, kind="stable")
    order = order[sums[order] > 0]
    rare = int(np.sum(sums[order] < fewest))
    # One rare class by itself is no better for being called the rest.
    while 0 < rare < len(order) and sums[order[:rare]].sum() < fewest:
        rare += 1
    kept = np.sort(order[rare:])
    table = counts[:, kept]
    if rare:
        table = np.column_stack([table, counts[:, order[:rare]].sum(axis=1)])
    degrees = table.shape[1] - 1
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    chi2 = float(np.sum((table - expected) ** 2 / expected))
    p_value = float(special.chdtrc(degrees, chi2)) if degrees else 1.0
    pooled = tuple(sorted(int(name) for name in order[:rare]))
    return Mix(chi2, degrees, p_value, psi_of_counts(*table), pooled)


class Rates(NamedTuple):
    """Two shares and whether chance explains their difference."""

    baseline: float
    production: float
    baseline_interval: tuple[float, float]
    """Exact, for the share of all rows that might have been drawn."""
    production_interval: tuple[float, float]
    p_value: float
    """Fisher's exact test, two-sided."""


def rates(baseline: tuple[int, int], production: tuple[int, int], *, level: float = 0.95) -> Rates:
    """Compares two shares, each given as (rows that count, all rows), with exact methods.

    Args:
      baseline: Counts k and n, 0 <= k <= n, n > 0.
      production: The same of what came later.
      level: Of the intervals, in (0, 1).

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> result = rates((10, 100), (40, 200))
      >>> result.production, round(result.p_value, 3)
      (0.2, 0.032)

    Source: Fisher, The Logic of Inductive Inference, 1935.
    """
    intervals = [clopper_pearson(*pair, level=level) for pair in (baseline, production)]
    (k, n), (j, m) = baseline, production
    # Of the k + j rows that count, how many are in the baseline: hypergeometric without a change.
    x = np.arange(max(0, k + j - m), min(n, k + j) + 1)
    logs = _log_choose(n, x) + _log_choose(m, k + j - x)
    # Equal tables must stay equal although their logarithms are rounded.
    as_rare = logs <= logs[k - x[0]] + 1e-7
    p_value = math.exp(special.logsumexp(logs[as_rare]) - special.logsumexp(logs))
    return Rates(k / n, j / m, intervals[0], intervals[1], min(1.0, p_value))


def _log_choose(n: int, k: np.ndarray) -> np.ndarray:
    return -special.betaln(k + 1, n - k + 1) - math.log(n + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of checks that are made together: those <= alpha are findings.

    The probability that any of the findings is a false alarm is then at most alpha, however the
    checks depend on one another.

    Example:
      >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
      [0.03, 0.06, 0.06, 0.02]

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    result = np.empty(len(p))
    result[order] = np.minimum(raised, 1.0)
    return result.tolist()


class RateTest(NamedTuple):
    """Exact binomial tests of an error rate, for one look at a fixed sample."""

    above: float
    """p-value of "the rate is at most `risk`": probability of so many errors or more at `risk`."""
    below: float
    """p-value of "the rate is at least `risk`": probability of so many errors or fewer."""


def rate_test(errors: int, rows: int, risk: float) -> RateTest:
    """Tests an error rate from both sides; the order of the rows is no part of it.

    Args:
      errors: From 0 to `rows`.
      rows: At least 1, drawn independently.
      risk: The rate under test, in (0, 1).

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> test = rate_test(errors=12, rows=100, risk=0.05)
      >>> round(test.above, 4), round(test.below, 4)
      (0.0043, 0.9985)

    Source: Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    check_probability("risk", risk)
    rows = metrics.whole_number("rows", rows, "a whole number >= 1", 1)
    errors = metrics.whole_number("errors", errors, f"a whole number from 0 to {rows}", 0, rows)
    above = special.betainc(errors, rows - errors + 1, risk) if errors else 1.0
    below = special.betaincc(errors + 1, rows - errors, risk) if errors < rows else 1.0
    return RateTest(float(above), float(below))


class Blocks(NamedTuple):
    """Whether rows of one group stand together, as in a file that was sorted."""

    changes: int
    """How often a row and the next are of different groups."""
    expected: float
    """Mean of `changes` over all orders of the rows."""
    p_value: float
    """Probability of so few `changes` if all orders of the rows are equally likely."""


def blocks(groups: ArrayLike, *, shuffles: int = 999) -> Blocks:
    """Tests whether groups of rows stand together more than chance puts them: a test of runs.

    Exact where there are two groups. Else a permutation test with fewer shuffles where the answer
    is plain sooner: at ten orders with no more changes than the rows' own; and with none where a
    bound on the p-value is below what shuffles can show, as in any long file that is sorted. The
    p-value is never too small, whatever groups there are.

    Args:
      groups: Whole numbers `[n]`, the group of each row in the order of rows, n > 0.
      shuffles: Orders to compare with, at most.

    Raises:
      ValueError: If an argument is not as described.

    Example:
      >>> blocks([0, 1] * 5).changes
      9
      >>> result = blocks([0] * 20 + [1] * 20)
      >>> result.changes, result.expected, result.p_value < 1e-9
      (1, 20.0, True)

    Source: Wald and Wolfowitz, On a Test Whether Two Samples Are from the Same Population, 1940;
    Besag and Clifford, Sequential Monte Carlo p-values, 1991; McDiarmid, On the Method of Bounded
    Differences, 1989.
    """
    shuffles = metrics.whole_number("shuffles", shuffles, "a whole number >= 1", 1)
    values = metrics.array("groups", groups)
    if values.dtype.kind not in "iu" or values.ndim != 1 or not values.size:
        raise ValueError(
            "groups: expected whole numbers [n], n > 0, received "
            f"{values.dtype} {list(values.shape)}"
        )
    _, order, counts = np.unique(values, return_inverse=True, return_counts=True)
    n = len(order)
    changes = int(np.count_nonzero(np.diff(order)))
    expected = n - 1 - float(np.sum(counts * (counts - 1.0)) / n)
    if len(counts) == 2:
        return Blocks(changes, expected, _few_runs(changes + 1, *map(int, counts)))
    # Two rows that change places alter four neighborhoods at most.
    bound = math.exp(-(max(0.0, expected - changes) ** 2) / (8 * n))
    if bound < 1 / (shuffles + 1):
        return Blocks(changes, expected, bound)
    generator, as_few = np.random.default_rng(0), 0
    for done in range(1, shuffles + 1):
        generator.shuffle(order)
        as_few += int(np.count_nonzero(np.diff(order)) <= changes)
        if as_few == 10:
            return Blocks(changes, expected, as_few / done)
    return Blocks(changes, expected, (as_few + 1) / (shuffles + 1))


def _few_runs(runs: int, first: int, second: int) -> float:
    """Probability of at most so many runs where all orders of two groups are equally likely.

    Args:
      runs: At least 2.
      first: Rows of one group, at least 1.
      second: Of the other.
    """
    numbers = np.arange(2, runs + 1)
    fewer, more = numbers // 2, (numbers + 1) // 2  # Runs of either group.

    def log_splits(rows: int, parts: np.ndarray) -> np.ndarray:
        """Logarithm of the number of ways to split rows into so many runs."""
        return special.gammaln(rows) - special.gammaln(parts) - special.gammaln(rows - parts + 1)

    n = first + second
    log_orders = special.gammaln(n + 1) - special.gammaln(first + 1) - special.gammaln(second + 1)
    shares = [
        np.exp(log_splits(first, a) + log_splits(second, b) - log_orders).sum()
        for a, b in ((fewer, more), (more, fewer))
    ]
    return min(1.0, float(sum(shares)))


def _sample(name: str, values: ArrayLike) -> np.ndarray:
    sample = metrics.array(name, values)
    if sample.dtype.kind not in "iuf" or sample.ndim != 1 or not sample.size:
        raise ValueError(
            f"{name}: expected numbers [n], n > 0, received {sample.dtype} {list(sample.shape)}"
        )
    metrics.check_rows(np.isfinite(sample), sample, f"{name}: expected finite numbers", LEAVE_OUT)
    return sample.astype(np.float64)


def _counts(baseline: ArrayLike, production: ArrayLike) -> np.ndarray:
    """[2, k] int64."""
    columns = [metrics.array("baseline", baseline), metrics.array("production", production)]
    for name, counts in zip(("baseline", "production"), columns, strict=True):
        if counts.dtype.kind not in "iu" or counts.ndim != 1 or (counts < 0).any():
            raise ValueError(f"{name}: expected whole numbers >= 0, shape [k], received other ones")
        if not counts.any():
            raise ValueError(f"{name}: expected at least one row, received none")
    if columns[0].shape != columns[1].shape:
        raise ValueError(
            "baseline and production: expected counts of the same classes, "
            f"received shapes {list(columns[0].shape)} and {list(columns[1].shape)}"
        )
    return np.stack(columns).astype(np.int64)


def check_probability(name: str, value: Any) -> None:
    """ValueError, which names it, unless an argument is a number between 0 and 1."""
    metrics.number(name, value, "a number between 0 and 1", lambda x: 0 < x < 1)
