"""What `btcp_tf.attach` and `fit` give a classifier that was trained elsewhere.

    python -m benchmarks.given_classifier CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR

The samples that the classifier has not seen are split several times, at random: some to fit the
estimator, some to choose a threshold, the rest to test. `--skip` keeps the first ones out, on which
choices of the software were made. Differences to the MCP of the same answers are means over the
splits. Their 95 % intervals come from drawing samples with replacement: a sample that is in several
splits is drawn once for all of them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import common
from btcp_tf import metrics, thresholds

METRICS = {"auroc": 100, "aupr_error": 100, "aurc": 1000}
"""Metric → its unit in the table."""

RISKS = (0.01, 0.02, 0.05)


class Tested(NamedTuple):
    """One split's test samples."""

    rows: np.ndarray
    """Their numbers among the samples `[n]`."""
    is_error: np.ndarray
    """bool `[n]`."""
    uncertainty: dict[str, np.ndarray]
    """Method → u `[n]`."""
    coverage: dict[tuple[str, float], float]
    """(method, risk) → share of the test samples that is accepted under the guaranteed risk; 0
    where no threshold guarantees it."""


def main() -> None:
    parser = common.parser("given_classifier", __doc__)
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--dataset", required=True, help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument(
        "--unseen", choices=("test", "all"), default="test", help="what it was not trained on"
    )
    parser.add_argument("--fit", type=int, default=3000, help="samples that the estimator learns")
    parser.add_argument("--calibrate", type=int, default=1500, help="samples for thresholds")
    parser.add_argument("--test", type=int, default=3500)
    parser.add_argument("--min_coverage", type=float, default=0.3, help="of the thresholds")
    parser.add_argument("--skip", type=int, default=0, help="first samples that are left out")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000, help="of the bootstrap")
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    from btcp_tf.data import datasets

    try:
        data = datasets.load(arguments.dataset, arguments.data_dir)
        x, y, reference = data.test.images, data.test.labels, (data.train.images, data.train.labels)
        if arguments.unseen == "all":
            held_out = (data.train, data.validation, data.calibration, data.test)
            x = np.concatenate([part.images for part in held_out])
            y = np.concatenate([part.labels for part in held_out])
            reference = None
        parts = [arguments.fit, arguments.calibrate, arguments.test]
        if len(x) < arguments.skip + sum(parts):
            raise ValueError(
                f"expected {arguments.skip + sum(parts)} samples that the classifier has not seen, "
                f"received {len(x)}"
            )
        x, y = x[arguments.skip :], y[arguments.skip :]
        tested = [
            test_split(arguments.classifier, x, y, reference, parts, arguments.min_coverage, seed)
            for seed in range(arguments.splits)
        ]
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    errors = [int(split.is_error.sum()) for split in tested]
    print(f"\n{min(errors)} to {max(errors)} errors among {arguments.test} test samples")
    common.print_table(common.DIFFERENCES, list(differences(tested, len(x), arguments.draws)))
    print("\nShare accepted under a guaranteed risk, delta 0.05; mean over the splits")
    common.print_table(
        ("risk", *tested[0].uncertainty),
        [
            (
                f"{risk:.0%}",
                *(
                    f"{np.mean([split.coverage[method, risk] for split in tested]):.1%}"
                    for method in tested[0].uncertainty
                ),
            )
            for risk in RISKS
        ],
    )


def test_split(
    classifier: Path,
    x: np.ndarray,
    y: np.ndarray,
    reference: tuple[np.ndarray, np.ndarray] | None,
    parts: Sequence[int],
    min_coverage: float,
    seed: int,
) -> Tested:
    """Fits, calibrates and tests on one split.

    Args:
      classifier: Its file.
      x: Samples `[n, ...]` that it has not seen.
      y: Labels `[n]`.
      reference: Samples that it was trained on, and their labels.
      parts: How many samples to fit on, to calibrate on and to test on.
      min_coverage: Share of the samples that a threshold has to accept to be considered.
      seed: Seed of the split.
    """
    import btcp_tf

    order = np.random.default_rng(seed).permutation(len(x))
    fit, calibrate, test = np.split(order, np.cumsum(parts))[:3]
    judge = btcp_tf.attach(classifier)
    judge.fit(x[fit], y[fit], reference=reference, looks=(), seed=seed, verbose=0)
    print(f"split {seed}: {judge.fitted['words'] if judge.fitted else ''}", flush=True)
    calibration = judge.predictions(x[calibrate], y[calibrate])
    answers = judge.predictions(x[test], y[test])
    coverage = {}
    for method, u in answers.uncertainty.items():
        for risk in RISKS:
            chosen = thresholds.target_risk(
                calibration.is_error,
                calibration.uncertainty[method],
                risk=risk,
                delta=0.05,
                min_coverage=min_coverage,
            )
            coverage[method, risk] = 0.0 if chosen.tau is None else float((u < chosen.tau).mean())
    return Tested(test, answers.is_error, dict(answers.uncertainty), coverage)


def differences(tested: Sequence[Tested], samples: int, draws: int) -> Iterator[tuple[str, ...]]:
    """Lines for `common.print_table`: MCP, then the others minus MCP with intervals.

    Args:
      tested: One for each split.
      samples: Number of samples that were split.
      draws: Draws of the bootstrap.
    """
    random = np.random.default_rng(0)
    counts = [np.ones(samples, int)]
    counts += list(random.multinomial(samples, np.full(samples, 1 / samples), draws))
    methods = list(tested[0].uncertainty)
    values = np.array(
        [np.mean([_values(split, count) for split in tested], axis=0) for count in counts]
    )
    units = np.array(list(METRICS.values()))
    yield ("mcp", *(f"{value:.2f}" for value in units * values[0, 0]), "")
    for number, method in enumerate(methods[1:], 1):
        difference = (values[:, number] - values[:, 0]) * units
        cells = []
        for metric in range(len(METRICS)):
            low, high = metrics.interval(difference[1:, metric])
            cells.append(f"{difference[0, metric]:+.2f} [{low:+.2f}, {high:+.2f}]")
        yield (method, *cells, f"{values[0, number, 2] / values[0, 0, 2] - 1:+.1%}")


def _values(split: Tested, counts: np.ndarray) -> list[list[float]]:
    """Each method's metrics where each sample is there so many times."""
    rows = np.repeat(np.arange(len(split.rows)), counts[split.rows])
    is_error = split.is_error[rows]
    return [
        [getattr(metrics, name)(is_error, u[rows]) for name in METRICS]
        for u in split.uncertainty.values()
    ]


if __name__ == "__main__":
    main()
