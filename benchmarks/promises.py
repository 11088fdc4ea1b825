"""How much is accepted under a promised error rate, and how often the promise is broken.

    python -m benchmarks.promises RUN [RUN ...] [--method=mcp,btcp,residual] [--draws=2000]

For each run's frozen classifier: thresholds of `target_risk` for 1, 2 and 5 %, chosen on its
calibration rows with candidates from its validation rows; what they accept of the test set, and how
much of that is wrong. Then the calibration set is drawn anew, with replacement, many times:

- from calibration and test rows together, which are then all there is, so that the true error rate
  of each threshold is known: the share of draws that break the promise must not exceed delta by
  more than its own error;
- from the calibration rows alone, judged on the test rows: where the test set is harder, the
  promise does not hold, and this says how often.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import common
from btcp_tf import thresholds
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions

TARGETS = (0.01, 0.02, 0.05)
COLUMNS = (
    "run",
    "method",
    "promised",
    "calibration",
    "coverage",
    "test error rate",
    "broken, same source",
    "broken, test set",
)


def main() -> None:
    parser = common.parser("promises", __doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--method", default="mcp,btcp,residual")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--min_coverage", type=float, default=0.3)
    arguments = parser.parse_args()
    common.print_environment("numpy", "scipy")
    lines = [line for run in arguments.runs for line in lines_of(run, arguments)]
    common.print_table(COLUMNS, lines)


def lines_of(run: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    validation, calibration, test = (
        predictions.load_predictions(run / f"predictions{split}.npz")
        for split in ("_validation", "_calibration", "")
    )
    for method in arguments.method.split(","):
        grid = thresholds.quantile_grid(validation.uncertainty[method])
        for target in TARGETS:
            settings = dict(risk=target, delta=arguments.delta, min_coverage=arguments.min_coverage)
            chosen = choose(calibration, method, grid, settings)
            found = thresholds.outcome(chosen, test.is_error, test.uncertainty[method])
            rows = f"{chosen.accepted} of {chosen.n}, {chosen.errors} wrong"
            least = chosen.least_risk
            if chosen.tau is None:
                rows = "not achievable" + ("" if least is None else f", least {least:.1%}")
            shown = f"{found.risk:.2%} [{found.low:.2%}, {found.high:.2%}]"
            both = pooled(calibration, test, method)
            yield (
                run.name,
                method,
                f"{target:.0%}",
                rows,
                f"{found.coverage:.1%}" if found.accepted else "0",
                shown if found.accepted else "",
                broken(
                    both, both, method, grid, settings, len(calibration.labels), arguments.draws
                ),
                broken(
                    calibration,
                    test,
                    method,
                    grid,
                    settings,
                    len(calibration.labels),
                    arguments.draws,
                ),
            )


def choose(
    rows: Predictions, method: str, grid: np.ndarray, settings: dict
) -> thresholds.Threshold:
    return thresholds.target_risk(rows.is_error, rows.uncertainty[method], grid=grid, **settings)


def pooled(first: Predictions, second: Predictions, method: str) -> Predictions:
    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(first, name), getattr(second, name)])

    u = np.concatenate([first.uncertainty[method], second.uncertainty[method]])
    return Predictions(joined("labels"), None, joined("predicted"), {method: u})


def broken(
    source: Predictions,
    judged: Predictions,
    method: str,
    grid: np.ndarray,
    settings: dict,
    size: int,
    draws: int,
) -> str:
    """Share of draws whose threshold accepts more errors of `judged` than promised, in words."""
    rng = np.random.default_rng(0)
    u, is_error = judged.uncertainty[method].astype(np.float64), judged.is_error
    order = np.argsort(u, kind="stable")
    errors = np.append(0, np.cumsum(is_error[order]))
    count = achieved = 0
    for _ in range(draws):
        rows = rng.integers(len(source.is_error), size=size)
        chosen = thresholds.target_risk(
            source.is_error[rows], source.uncertainty[method][rows], grid=grid, **settings
        )
        if chosen.tau is not None:
            achieved += 1
            accepted = int(np.searchsorted(u[order], chosen.tau))
            count += errors[accepted] > settings["risk"] * accepted
    share = count / draws
    error = np.sqrt(share * (1 - share) / draws)
    return f"{share:.1%} ± {error:.1%} ({achieved / draws:.0%} achieved)"


if __name__ == "__main__":
    main()
