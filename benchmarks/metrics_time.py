"""Time of all failure-prediction metrics, and of their bootstrap.

    python -m benchmarks.metrics_time [--rows=1000000] [--rounds=5]

Run it from the checkout on an idle machine. Neither TensorFlow nor PyTorch is needed. "Without
ties" every row has an uncertainty of its own, the slowest case; "with ties" they are rounded to
three digits. The errors are 8 % of the rows, more of them where u is high.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import common
from btcp_tf import metrics

TAU = 0.5


def main() -> None:
    parser = common.parser("metrics_time", __doc__)
    parser.add_argument("--rows", type=common.count, default=1_000_000, help="rows of evaluate_all")
    parser.add_argument("--bootstrap_rows", type=common.count, default=10_000)
    parser.add_argument("--columns", type=common.count, default=3, help="columns of the bootstrap")
    parser.add_argument("--draws", type=common.count, default=1_000, help="draws of the bootstrap")
    parser.add_argument("--rounds", type=common.count, default=5)
    arguments = parser.parse_args()
    common.print_environment("numpy")
    print(
        f"{len(metrics.METRICS)} metrics, medians of {arguments.rounds} rounds after one to warm up"
    )
    cases: dict[str, Callable[[], Any]] = {}
    for ties in (False, True):
        words = "with ties" if ties else "without ties"
        cases[f"evaluate_all, {arguments.rows:,} rows, {words}"] = evaluation(arguments.rows, ties)
        size = f"{arguments.draws:,} draws x {arguments.bootstrap_rows:,} rows"
        cases[f"bootstrap, {size} x {arguments.columns} columns, {words}"] = bootstrap(
            arguments.bootstrap_rows, arguments.columns, arguments.draws, ties
        )
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(arguments.rounds + 1):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            if number:
                seconds[name].append(time.perf_counter() - started)
    common.print_table(
        ("", "s", "quickest", "slowest"),
        [
            (name, *(f"{x:.3f}" for x in (statistics.median(found), min(found), max(found))))
            for name, found in seconds.items()
        ],
    )
    print(f"\npeak memory {common.peak_mib():.0f} MiB")


def evaluation(rows: int, ties: bool) -> Callable[[], Any]:
    """One column of results to evaluate."""
    is_error, columns = results(rows, 1, ties)
    return lambda: metrics.evaluate_all(is_error, columns["0"], tau=TAU)


def bootstrap(rows: int, count: int, draws: int, ties: bool) -> Callable[[], Any]:
    """Some columns of results for the same answers, to resample."""
    is_error, columns = results(rows, count, ties)
    return lambda: metrics.bootstrap(is_error, columns, tau=TAU, draws=draws, seed=0)


def results(rows: int, count: int, ties: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Errors `[rows]` bool, and uncertainties `[rows]` by column."""
    generator = np.random.default_rng(0)
    is_error = generator.random(rows) < 0.08
    columns = {}
    for number in range(count):
        u = np.where(is_error, generator.beta(2, 2, rows), generator.beta(1, 8, rows))
        columns[str(number)] = np.round(u, 3) if ties else u
    return is_error, columns


if __name__ == "__main__":
    main()
