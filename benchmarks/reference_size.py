"""What `fit` takes with a reference that is larger than memory should be.

    python -m benchmarks.reference_size --reference=1000000 --held_out=50000

Features come as a dataset of batches that are made as they are asked for, of classes in groups,
each in four modes. What answers is one Dense layer on them that does not know the modes, so that
hardly anything but the estimator takes time.
Memory is that of the process alone (anonymous) and with the pages of the file of features that the
system keeps as long as it has room.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import common

_BATCH = 4096


def main() -> None:
    parser = common.parser("reference_size", __doc__)
    parser.add_argument("--reference", type=common.count, default=100_000, help="samples")
    parser.add_argument("--held_out", type=common.count, default=5000, help="samples")
    parser.add_argument("--width", type=common.count, default=1024, help="of the features")
    parser.add_argument("--classes", type=common.count, default=1000)
    parser.add_argument("--no_index", action="store_true", help="no neighbors")
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    import keras
    import tensorflow as tf

    import btcp_tf

    made = Made(arguments.width, arguments.classes)
    network = keras.Sequential(
        [
            keras.Input((arguments.width,)),
            keras.layers.Activation("linear"),
            keras.layers.Dense(arguments.classes),
        ]
    )
    network.layers[-1].set_weights([made.known.T, -0.5 * np.square(made.known).sum(axis=1)])
    form = tf.TensorSpec((None, arguments.width)), tf.TensorSpec((None,), tf.int64)
    reference = tf.data.Dataset.from_generator(
        lambda: made.batches(arguments.reference, 1), output_signature=form
    )
    parts = zip(*made.batches(arguments.held_out, 2), strict=True)
    x, y = (np.concatenate(part) for part in parts)
    judge = btcp_tf.attach(network, from_logits=True)
    evidence = ("answer", "head") if arguments.no_index else ("answer", "head", "neighbors")
    with common.Watch() as watch:
        judge.fit(x, y, reference=reference, looks=(), evidence=evidence)
    print(f"{arguments.reference:,} x {arguments.width:,} reference, {len(y):,} held out, ", end="")
    print(f"{arguments.classes:,} classes: {watch.seconds:.0f} s", end="")
    print(f", {watch.peak:.0f} MiB anonymous, {common.peak_mib():.0f} MiB with pages of files")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(judge.export(folder, "judge", x[:8]))
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"exported model: {size / 2**20:.0f} MiB")


class Made:
    """Features of classes in groups of ten, each in four modes, and what a classifier knows.

    Args:
      width: Of the features.
      classes: Number of classes.
    """

    def __init__(self, width: int, classes: int) -> None:
        random = np.random.default_rng(0)
        groups = random.normal(size=(max(2, classes // 10), width))
        own = 0.35 * random.normal(size=(classes, width))
        self.known = (groups[np.arange(classes) % len(groups)] + own).astype(np.float32)
        modes = 0.5 * random.normal(size=(4, classes, width))
        self.centers = self.known + modes.astype(np.float32)
        self.noise = 3.0 * (width / 1024) ** 0.5

    def batches(self, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(seed)
        for start in range(0, count, _BATCH):
            labels = random.integers(0, len(self.known), min(_BATCH, count - start))
            x = self.centers[random.integers(0, 4, len(labels)), labels]
            noise = self.noise * random.normal(size=x.shape)
            yield x + noise.astype(np.float32), labels


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
