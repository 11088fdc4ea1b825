"""What one forward pass of the residual estimator is worth beside an ensemble.

    python -m benchmarks.ensemble STUDY

The classifiers of a study's seeds are an ensemble: alike but for their seed. Its mean probabilities
judge each of them, by how probable they leave the class that it predicted, and give answers of
their own, which are more often right. Both need as many forward passes as there are seeds.

Reads the predictions of the test set that the runs of the study wrote, trains nothing, and takes
seconds. Differences are means over the seeds with 95 % intervals, as in a study.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from btcp_tf.evaluation import predictions, results, seeds
from btcp_tf.evaluation.predictions import Predictions


def main() -> None:
    parser = common.parser("ensemble", __doc__)
    parser.add_argument("study", type=Path, help="folder of a study of one data set, 2 seeds up")
    parser.add_argument("--draws", type=common.count, default=1000, help="of the bootstrap")
    arguments = parser.parse_args()
    common.print_environment("numpy")
    found = sorted(arguments.study.glob("*-seed*/predictions.npz"))
    try:
        if len(found) < 2:
            names = ", ".join(path.parent.name for path in found) or "none"
            raise ValueError(
                f"study: expected 2 runs or more in {arguments.study}, received {names}"
            )
        members = [predictions.load_predictions(path) for path in found]
        for path, member in zip(found, members, strict=True):
            check(path, member, members[0])
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    labels = members[0].labels
    mean = np.mean([member.probs for member in members], axis=0)
    many = f"ensemble-of-{len(members)}"
    judged = [
        {**member.uncertainty, many: 1.0 - mean[np.arange(len(labels)), member.predicted]}
        for member in members
    ]
    print(f"\nThe classifiers' own answers, {100 * accuracy(members):.2f} % right, minus MCP")
    show(rows_of(members, judged, arguments.draws))
    print(f"\nThe same, minus the {many}")
    # A difference is always one to the column of that name.
    swapped = [
        {
            "mcp": columns[many],
            **{name: columns[name] for name in columns if name not in {"mcp", many}},
        }
        for columns in judged
    ]
    show(rows_of(members, swapped, arguments.draws), many)
    own = Predictions(labels, mean, mean.argmax(axis=1), {"mcp": 1.0 - mean.max(axis=1)})
    print(f"\nThe ensemble's own answers, {100 * accuracy([own]):.2f} % right")
    show(rows_of([own], [own.uncertainty], arguments.draws), f"{many}, mean probability")


def check(path: Path, member: Predictions, first: Predictions) -> None:
    """ValueError unless they are answers to the images of the first, with errors among them."""
    if member.labels is None or member.probs is None or "mcp" not in member.uncertainty:
        raise ValueError(f"{path}: expected labels, probs and a column mcp, received others")
    assert first.labels is not None and first.probs is not None
    if not np.array_equal(member.labels, first.labels) or member.probs.shape != first.probs.shape:
        raise ValueError(
            f"{path}: expected answers to the images of the first run, received others"
        )
    if not 0 < member.is_error.sum() < len(member.labels):
        raise ValueError(f"{path}: expected wrong and right answers, received but one kind")


def accuracy(members: list[Predictions]) -> float:
    return float(np.mean([1.0 - member.is_error.mean() for member in members]))


def rows_of(
    members: list[Predictions], columns: list[dict[str, np.ndarray]], draws: int
) -> list[dict[str, Any]]:
    """Means over the members, each with its columns."""
    return seeds.across_seeds(
        row
        for seed, (member, u) in enumerate(zip(members, columns, strict=True))
        for row in results.rows(
            Predictions(member.labels, member.probs, member.predicted, u),
            dataset="",
            seed=seed,
            stage="frozen",
            classifier_id="",
            split="test",
            tau=0.5,
            bootstrap_draws=draws,
            bootstrap_seed=seed,
        )
    )


def show(rows: list[Mapping[str, Any]], reference: str = "mcp") -> None:
    common.print_table(common.DIFFERENCES, list(common.differences(rows, reference)))


if __name__ == "__main__":
    main()
