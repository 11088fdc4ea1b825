"""What an index of neighbors costs in time, beside what `cost` counts for it.

    python -m benchmarks.index_cost CLASSIFIER.keras [--sizes=16000x64,65536x256]

The layer `NeighborEvidence` with made-up points answers batches in turns with the classifier, its
points in 32 and in 8 bits; `fit` keeps those of a large index in 8. Ratios are medians of the
rounds', 1 being a pass of the classifier.
"""

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import common

BATCHES = (1, 64, 256)


def main() -> None:
    parser = common.parser("index_cost", __doc__)
    parser.add_argument("classifier", type=Path, help="a .keras file")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default="256x64,4096x64,16000x64,16000x128,16000x512,16000x1024,65536x256",
    )
    parser.add_argument("--rounds", type=common.count, default=11)
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras")
    try:
        classifier = _classifier(arguments.classifier)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    lines = []
    for size, width in arguments.sizes:
        lines += _lines(classifier, size, width, arguments.rounds)
    titles = ("points", "width", "batch", "products", "planned", "planned, 8 bits")
    titles += ("32 bits", "8 bits", "classifier, ms")
    common.print_table(titles, lines)


def _sizes(text: str) -> list[tuple[int, int]]:
    """`16000x64,65536x256` as pairs."""
    try:
        pairs = [pair.split("x") for pair in text.split(",")]
        return [(int(size), int(width)) for size, width in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of points and widths such as 16000x64,65536x256, received {text!r}"
        ) from None


def _classifier(path: Path) -> tuple[Callable[[int], Callable[[], object]], int]:
    """What makes a pass over a batch of a size, and the multiply-adds of an input."""
    import keras
    import tensorflow as tf

    from btcp_tf.networks import cost

    model = keras.models.load_model(path)
    answer = tf.function(lambda x: model(x, training=False))
    random = np.random.default_rng(0)

    def batch(rows: int) -> Callable[[], object]:
        x = tf.constant(255 * random.random((rows, *model.input_shape[1:])), model.inputs[0].dtype)
        return lambda: answer(x)

    one = model.inputs[0]
    return batch, cost.multiply_adds(model, one.shape[1:], one.dtype)


def _lines(
    classifier: tuple[Callable[[int], Callable[[], object]], int],
    size: int,
    width: int,
    rounds: int,
) -> list[tuple[str, ...]]:
    import tensorflow as tf

    from btcp_tf.methods.looks import evidence_cost
    from btcp_tf.networks.evidence_layers import NeighborEvidence

    batch, multiply_adds = classifier
    random = np.random.default_rng(0)
    points = random.normal(size=(size, width)).astype(np.float32)
    labels = random.integers(0, 10, size)
    layers = [NeighborEvidence(size, width, bits=bits) for bits in (32, 8)]
    graphs = []
    for layer in layers:
        layer.set_points(points, labels)
        graphs.append(tf.function(layer))
    planned = [f"{evidence_cost('neighbors', one, multiply_adds):.2f}" for one in layers]
    lines = []
    for rows in BATCHES:
        features = tf.constant(random.normal(size=(rows, width)).astype(np.float32))
        logits = tf.constant(random.normal(size=(rows, 10)).astype(np.float32))
        calls = [batch(rows), *(functools.partial(graph, features, logits) for graph in graphs)]
        for call in calls:
            call()
        seconds = [[_seconds(call) for call in calls] for _ in range(rounds)]
        ratios = [statistics.median(r[i] / r[0] for r in seconds) for i in (1, 2)]
        lines.append(
            (
                f"{size:,}",
                f"{width}",
                f"{rows}",
                f"{layers[0].multiply_adds / multiply_adds:.2f}",
                *planned,
                *(f"{ratio:.2f}" for ratio in ratios),
                f"{1e3 * statistics.median(r[0] for r in seconds):.1f}",
            )
        )
    return lines


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
