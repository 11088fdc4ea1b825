"""What a few hundred labels of corrupted images make of u that was fitted on clean ones.

    python -m benchmarks.after_drift CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR --skip=2000

The corruptions are those of `benchmarks.looks_shift`, each at its second strength. Of each some
images are labeled, the others are tested on: u as it is, after `Judge.recalibrate`, and after a new
`Judge.fit` on the labeled images alone, beside MCP.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import common
from benchmarks.looks_shift import CORRUPTIONS, parser_of

if TYPE_CHECKING:
    from btcp_tf.judge import Judge

METHODS = ("as it is", "recalibrated", "fitted anew")


def main() -> None:
    parser = parser_of("after_drift", __doc__)
    parser.add_argument("--labels", type=common.count, default=300, help="of each corruption")
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
    for name, (away, aurc) in zip(METHODS, figures.mean(axis=0), strict=True):
        print(f"{name}: |mean u − error rate| {away:.1%}, AURC to MCP {aurc:+.1%}")


def _lines(
    arguments: argparse.Namespace, folder: str
) -> Iterator[tuple[list[str], list[tuple[float, float]]]]:
    """Cells of a line; of each method how far mean u is from the error rate, and the relative
    difference in AURC to MCP."""
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
        judge = btcp_tf.load(kept)
        again = btcp_tf.attach(arguments.classifier)
        try:
            again.fit(*labeled, **settings)
        except ValueError as error:
            print(f"{name}: {error}", flush=True)
        judge.input_range = again.input_range
        before = _figures(judge, *tested)
        try:
            learned = judge.recalibrate(*labeled, verbose=0)
            kind = learned.kind
        except ValueError as error:
            kind = "none"
            print(f"{name}: {error}", flush=True)
        figures = [before, _figures(judge, *tested), _figures(again, *tested)]
        wrong = figures[0][0]
        cells = [name, f"{wrong:.1%}", kind]
        cells += [f"{mean:.1%}" for _, mean, _ in figures]
        cells += [f"{aurc:+.1%}" for *_, aurc in figures]
        print(*cells, sep="  ", flush=True)
        yield cells, [(abs(mean - wrong), aurc) for _, mean, aurc in figures]


def _figures(judge: "Judge", images: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Error rate, mean u, and the relative difference in AURC to MCP."""
    from btcp_tf import metrics

    answers = judge.predictions(images, labels)
    u, mcp = answers.uncertainty[judge.method], answers.uncertainty["mcp"]
    aurc = metrics.aurc(answers.is_error, u) / metrics.aurc(answers.is_error, mcp) - 1
    return float(answers.is_error.mean()), float(u.mean()), float(aurc)


if __name__ == "__main__":
    main()
