"""What a few hundred labels of corrupted images make of u that was fitted on clean ones.

    python -m benchmarks.after_drift CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR --skip=2000

The corruptions are those of `benchmarks.looks_shift`, each at its second strength. Of each some
images are labeled, the others are tested on: u as it is, after `Judge.recalibrate`, and after a new
`Judge.fit` on the labeled images alone, beside MCP. `benchmarks.other_source` does the same for
images of another source.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import common
from benchmarks.looks_shift import CORRUPTIONS, parser_of

if TYPE_CHECKING:
    from btcp_tf.judge import Judge

METHODS = ("as it is", "recalibrated", "fitted anew")


def main() -> None:
    parser = parser_of("after_drift", __doc__)
    parser.add_argument("--labels", type=common.count, default=300, help="of each corruption")
    parser.add_argument("--risk", type=float, default=0.05, help="of the coverage")
    arguments = parser.parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        with tempfile.TemporaryDirectory() as folder:
            lines = list(_lines(arguments, folder))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    titles = ["", "wrong", "map"]
    titles += [f"mean u, {name}" for name in METHODS]
    titles += [f"AURC to MCP, {name}" for name in METHODS]
    common.print_table(titles, [cells for cells, _ in lines])
    # Not of the clean ones.
    figures = np.array([one for _, one in lines[1:]])
    print(f"\nmeans over {len(figures)} corruptions:")
    for name, (away, aurc, coverage) in zip(METHODS, figures.mean(axis=0), strict=True):
        print(
            f"{name}: |mean u − error rate| {away:.1%}, AURC to MCP {aurc:+.1%}, coverage at "
            f"{arguments.risk:.0%} wrong {coverage:.1%}"
        )


def _lines(
    arguments: argparse.Namespace, folder: str
) -> Iterator[tuple[list[str], list[tuple[float, float, float]]]]:
    """Cells of a line; of each method how far mean u is from the error rate, the relative
    difference in AURC to MCP, and the coverage."""
    import btcp_tf
    from btcp_tf.data import datasets

    test = datasets.load(arguments.dataset, arguments.data_dir).test
    order = arguments.skip + np.random.default_rng(0).permutation(len(test.labels) - arguments.skip)
    sizes = [arguments.fit, arguments.labels, arguments.test]
    fit, new, rows, _ = np.split(order, np.cumsum(sizes))
    looks = arguments.looks if arguments.looks == "auto" else arguments.looks.split(",")
    settings = {"looks": looks, "cost": arguments.cost, "verbose": 0}
    judge = btcp_tf.attach(arguments.classifier)
    judge.fit(test.images[fit], test.labels[fit], **settings)
    print(judge.fitted["words"] if judge.fitted else "", flush=True)
    kept = Path(folder) / "judge.keras"
    judge.save(kept)
    shown = np.concatenate([new, rows])
    cases = {"clean": test.images[shown]}
    for name, (corrupt, strengths) in CORRUPTIONS.items():
        changed = corrupt(test.images[shown] / 255, strengths[1], np.random.default_rng(0))
        cases[name] = np.rint(255 * np.clip(changed, 0, 1)).astype(test.images.dtype)
    for name, images in cases.items():
        labeled = images[: len(new)], test.labels[new]
        tested = images[len(new) :], test.labels[rows]
        kind, figures, faults = after_labels(
            kept, arguments.classifier, labeled, tested, arguments.risk, **settings
        )
        for fault in faults:
            print(f"{name}: {fault}", flush=True)
        wrong = figures[0].wrong
        cells = [name, f"{wrong:.1%}", kind]
        cells += [f"{one.mean_u:.1%}" for one in figures]
        cells += [f"{one.aurc:+.1%}" for one in figures]
        print(*cells, sep="  ", flush=True)
        yield cells, [(one.away, one.aurc, one.coverage) for one in figures]


class Figures(NamedTuple):
    """What u is worth on answers that it did not learn from."""

    wrong: float
    """Error rate."""
    mean_u: float
    aurc: float
    """Relative difference to MCP's."""
    coverage: float
    """Largest share of the answers that can be accepted with at most `risk` of them wrong."""

    @property
    def away(self) -> float:
        """How far mean u is from the error rate."""
        return abs(self.mean_u - self.wrong)


def after_labels(
    kept: Path,
    classifier: Path,
    labeled: tuple[np.ndarray, np.ndarray],
    tested: tuple[np.ndarray, np.ndarray],
    risk: float,
    **settings: Any,
) -> tuple[str, list[Figures], list[str]]:
    """Uses some labels in all ways of `METHODS`.

    Args:
      kept: File of the judge as it is.
      classifier: Its classifier's file.
      labeled: Images and labels that are learned from.
      tested: Images and labels of the figures.
      risk: See `Figures.coverage`.
      **settings: Of `Judge.fit`.

    Returns:
      The kind of the recalibration, "none" where the labels are too few; figures in the order of
      `METHODS`; and what could not be done.
    """
    import btcp_tf

    judge, again, faults = btcp_tf.load(kept), btcp_tf.attach(classifier), []
    try:
        again.fit(*labeled, **settings)
    except ValueError as error:
        faults.append(str(error))
    judge.input_range = again.input_range
    figures = [_figures(judge, *tested, risk)]
    try:
        kind = judge.recalibrate(*labeled, verbose=0).kind
    except ValueError as error:
        kind = "none"
        faults.append(str(error))
    return kind, [*figures, _figures(judge, *tested, risk), _figures(again, *tested, risk)], faults


def _figures(judge: "Judge", images: np.ndarray, labels: np.ndarray, risk: float) -> Figures:
    from btcp_tf import metrics

    answers = judge.predictions(images, labels)
    wrong, u, mcp = answers.is_error, answers.uncertainty[judge.method], answers.uncertainty["mcp"]
    aurc = metrics.aurc(wrong, u) / metrics.aurc(wrong, mcp) - 1
    coverage = metrics.coverage_at_risk(wrong, u, risk=risk)
    return Figures(float(wrong.mean()), float(u.mean()), float(aurc), coverage)


if __name__ == "__main__":
    main()
