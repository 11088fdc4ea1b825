"""Time and memory of a judge as its data grows: 1, 4 and 16 times as many samples.

    python -m benchmarks.data_size [--samples=5000] [--figure=FILE.svg]

Images come as datasets whose batches are made as they are asked for, so that none of them has to be
in memory: as the reference of `fit`, to `select_threshold` and to `evaluate`. Memory is the largest
anonymous one above that before the step; features that went to a file are not in it.
"""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common

FACTORS = (1, 4, 16)

_SHAPE, _CLASSES, _BATCH = (28, 28, 1), 10, 500


def main() -> None:
    parser = common.parser("data_size", __doc__)
    parser.add_argument("--samples", type=common.count, default=5000, help="of the smallest step")
    parser.add_argument("--figure", type=Path, help="an .svg or .png file to write")
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    import keras
    import tensorflow as tf

    import btcp_tf
    from btcp_tf.core import rows

    # What is small stays in memory; with this limit, no more of it than of what is large.
    rows.LARGEST = 2**22
    form = tf.TensorSpec((None, *_SHAPE)), tf.TensorSpec((None,), tf.int64)

    def dataset(count: int, seed: int) -> Any:
        return tf.data.Dataset.from_generator(lambda: batches(count, seed), output_signature=form)

    keras.utils.set_random_seed(0)
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input(_SHAPE),
            layers.Conv2D(16, 5, 2, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(_CLASSES, "softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy")
    network.fit(dataset(10_000, 1), verbose=0)
    judge = btcp_tf.attach(network)
    own = dataset(2000, 2)

    def fit(count: int) -> None:
        judge.fit(own, reference=dataset(count, 3), looks=(), verbose=0)

    def select(count: int) -> None:
        judge.select_threshold(dataset(count, 4), rule="target_coverage", coverage=0.9)

    def evaluate(count: int) -> None:
        judge.evaluate(dataset(count, 5), draws=10)

    steps = {"fit, reference": fit, "select_threshold": select, "evaluate": evaluate}
    measured = {name: measure(step, arguments.samples) for name, step in steps.items()}
    counts = [factor * arguments.samples for factor in FACTORS]
    header = ("", *(f"{count:,}: s" for count in counts), *(f"{count:,}: MiB" for count in counts))
    common.print_table(
        header,
        [
            (name, *(f"{s:.1f}" for s, _ in found), *(f"{mib:.0f}" for _, mib in found))
            for name, found in measured.items()
        ],
    )
    if arguments.figure:
        draw(arguments.figure, counts, measured)


def batches(count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Noisy images of one pattern for each class."""
    patterns = np.random.default_rng(0).normal(size=(_CLASSES, *_SHAPE))
    random = np.random.default_rng(seed)
    for start in range(0, count, _BATCH):
        labels = random.integers(0, _CLASSES, min(_BATCH, count - start))
        noise = 7 * random.normal(size=(len(labels), *_SHAPE))
        yield (patterns[labels] + noise).astype(np.float32), labels


def measure(step: Callable[[int], None], samples: int) -> list[tuple[float, float]]:
    """Seconds, and memory in MiB, for each number of samples."""
    step(samples // 2)  # Graphs are built once.
    found = []
    for factor in FACTORS:
        gc.collect()
        before = common.anonymous_mib()
        with common.Watch() as watch:
            step(factor * samples)
        found.append((watch.seconds, watch.peak - before))
    return found


def draw(path: Path, counts: list[int], measured: dict[str, list[tuple[float, float]]]) -> None:
    """Time and memory against the number of samples."""
    from matplotlib import figure

    plot = figure.Figure(figsize=(8, 3), layout="constrained")
    for column, (axes, unit) in enumerate(
        zip(plot.subplots(1, 2), ("seconds", "MiB above the start"), strict=True)
    ):
        for name, found in measured.items():
            axes.plot(counts, [pair[column] for pair in found], marker="o", label=name)
        axes.set(xlabel="samples", ylabel=unit, ylim=(0, None))
    axes.legend()
    plot.savefig(path)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
