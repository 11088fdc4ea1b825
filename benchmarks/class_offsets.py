"""The predicted class as evidence: one shrunken offset each, a column each, or none.

    python -m benchmarks.class_offsets [ANSWERS.npz ...]

Answers to held-out samples are made up, of classes in groups, some harder than others; or they are
read from npz files with `logits` and `labels`. Half of them at most are fitted on; AURC x 1000 is
that of the rest, with the better strength, of two splits.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks import common
from btcp_tf import metrics
from btcp_tf.methods import stacking
from btcp_tf.networks import evidence_arrays, mcp

_STRENGTHS = (0.1, 1.0)


def main() -> None:
    parser = common.parser("class_offsets", __doc__)
    parser.add_argument("answers", nargs="*", type=Path)
    parser.add_argument("--fit", type=common.count, default=10_000, help="samples, at most")
    arguments = parser.parse_args()
    common.print_environment("scikit-learn")
    rows = []
    if not arguments.answers:
        rows += [row(f"{k:,} classes", *made_up(k), arguments.fit) for k in (10, 100, 1000)]
    for path in arguments.answers:
        with np.load(path) as file:
            rows.append(row(path.stem, file["logits"], file["labels"], arguments.fit))
    common.print_table(("", "errors", "MCP", "no class", "a column each", "an offset each"), rows)


def made_up(classes: int, width: int = 48, count: int = 25_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a nearest-mean classifier that saw twelve samples of each class, and labels."""
    random = np.random.default_rng(0)
    groups = random.normal(size=(max(2, classes // 10), width))
    means = groups[np.arange(classes) % len(groups)] + 0.5 * random.normal(size=(classes, width))
    hardness = 0.75 * np.exp(0.35 * random.normal(size=classes))
    hardness *= {10: 3.0, 100: 2.0}.get(classes, 1.6)

    def draw(labels: np.ndarray) -> np.ndarray:
        return means[labels] + hardness[labels, None] * random.normal(size=(len(labels), width))

    known = draw(np.repeat(np.arange(classes), 12)).reshape(classes, 12, width).mean(axis=1)
    labels = random.integers(0, classes, count)
    return draw(labels) @ known.T - 0.5 * np.square(known).sum(axis=1), labels


def row(name: str, logits: np.ndarray, labels: np.ndarray, most: int) -> tuple[str, ...]:
    """A line of the table."""
    logits = logits.astype(np.float32)
    predicted, k = logits.argmax(axis=1), logits.shape[1]
    is_error, z = predicted != labels, mcp.mcp_logit(logits)[:, None]
    x = np.hstack([z, evidence_arrays.answer_columns(logits, classes=False)])
    wide = np.hstack([x, predicted[:, None] == np.arange(k)])
    kinds = [stacking.Columns(x), stacking.Columns(wide), stacking.Columns(x, predicted, k)]
    found: list[list[float]] = []
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(len(labels))
        fit, rest = np.split(order, [min(most, len(labels) // 2)])
        found.append([metrics.aurc(is_error[rest], z[rest, 0]), is_error[fit].sum()])
        for columns in kinds:
            learned = columns.rows(fit)
            models = [stacking.fitted(learned, is_error[fit], one) for one in _STRENGTHS]
            own = [metrics.aurc(is_error[rest], one.of(columns.rows(rest))) for one in models]
            found[-1].append(min(own))
    of_mcp, errors, *others = np.mean(found, axis=0)
    return (name, f"{errors:,.0f}", *(f"{1000 * aurc:.1f}" for aurc in (of_mcp, *others)))


if __name__ == "__main__":
    sys.exit(main())
