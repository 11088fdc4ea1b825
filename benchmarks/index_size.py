"""What a smaller index of neighbors loses, and one of 8-bit numbers.

    python -m benchmarks.index_size --data_dir=DIR [--dataset=fashion_mnist]

A small network learns from 40,000 training images, which are the reference; `residual` with the
answer and the neighbors alone is fitted to others, and judged by the rest of the training images.
Test images are not read. The index holds the whole reference, or groups of it by k-means
(`methods.reference_index.condensed`), in 32 bits or in 8.
"""

import sys
from unittest import mock

import numpy as np

from benchmarks import common

SIZES = (40_000, 16_384, 4096, 1024, 256)


def main() -> None:
    parser = common.parser("index_size", __doc__)
    parser.add_argument("--dataset", default="fashion_mnist", help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--epochs", type=common.count, default=4)
    parser.add_argument("--fit", type=common.count, default=5000, help="held-out images")
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    counts = max(SIZES), arguments.fit
    parts = common.training_parts(arguments.dataset, arguments.data_dir, counts)
    network = _trained(*parts[0], arguments.epochs)
    lines = []
    for size in SIZES:
        for bits in (32, 8):
            cells = _judged(network, parts, size, bits)
            print(*cells, sep="  ", flush=True)
            lines.append(cells)
    common.print_table(("vectors", "bits", "AUROC", "AUPR-error", "AURC", "used"), lines)


def _trained(images: np.ndarray, labels: np.ndarray, epochs: int) -> object:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    network = keras.Sequential(
        [
            keras.Input(images.shape[1:], dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.Conv2D(64, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, "relu"),
            layers.Dense(int(labels.max()) + 1, "softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy")
    network.fit(images, labels, 128, epochs, verbose=0)
    return network


def _judged(
    network: object, parts: list[tuple[np.ndarray, np.ndarray]], size: int, bits: int
) -> tuple[str, ...]:
    """Cells of a line: differences to MCP on the rest."""
    import btcp_tf
    from btcp_tf import metrics
    from btcp_tf.methods import reference_index

    reference, fit, rest = parts
    exact = 0 if bits == 8 else sys.maxsize
    with mock.patch.multiple(reference_index, LARGEST=size, _EXACT=exact):
        judge = btcp_tf.attach(network)
        judge.fit(*fit, reference=reference, evidence=("answer", "neighbors"), looks=(), verbose=0)
        answers = judge.predictions(*rest)
    u, mcp = answers.uncertainty["residual"], answers.uncertainty["mcp"]
    gains = [
        100 * (measure(answers.is_error, u) - measure(answers.is_error, mcp))
        for measure in (metrics.auroc, metrics.aupr_error)
    ]
    aurc = metrics.aurc(answers.is_error, u) / metrics.aurc(answers.is_error, mcp) - 1
    used = "yes" if judge.fitted and judge.fitted["evidence"] else "no"
    return f"{size:,}", f"{bits}", *(f"{gain:+.2f}" for gain in gains), f"{aurc:+.1%}", used


if __name__ == "__main__":
    main()
