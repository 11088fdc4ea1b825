"""What it loses beside a small classifier to count all that an index of neighbors does.

    python -m benchmarks.index_budget --data_dir=DIR [--dataset=fashion_mnist]

A network of one hidden layer, 50,000 multiply-adds for a gray image of 28 × 28 pixels, learns from
40,000 training images, which are the reference; `residual` with the answer, the neighbors and looks
is fitted to 5,000 others at `cost=1.3`, and judged by the rest of the training images. What a
search does beside its products (`NeighborEvidence.overhead`) counts not at all, as `fit` counts it,
or in full.
"""

from unittest import mock

import numpy as np

from benchmarks import common

KEPT = (40_000, 5000)


def main() -> None:
    parser = common.parser("index_budget", __doc__)
    parser.add_argument("--dataset", default="fashion_mnist", help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--epochs", type=common.count, default=4)
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    from btcp_tf.methods import looks

    parts = common.training_parts(arguments.dataset, arguments.data_dir, KEPT)
    network = _trained(*parts[0], arguments.epochs)
    lines = []
    for how, least in (("not at all", np.inf), ("as fit does", looks._SLOW_PASS), ("in full", 1)):
        with mock.patch.object(looks, "_SLOW_PASS", least):
            lines.append((how, *_judged(network, parts)))
        print(*lines[-1], sep="  ", flush=True)
    common.print_table(("it counts", "AUROC", "AURC", "evidence and looks", "share"), lines)


def _trained(images: np.ndarray, labels: np.ndarray, epochs: int) -> object:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    network = keras.Sequential(
        [
            keras.Input(images.shape[1:], dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(int(labels.max()) + 1, "softmax"),
        ]
    )
    network.compile("adam", "sparse_categorical_crossentropy")
    network.fit(images, labels, 128, epochs, verbose=0)
    return network


def _judged(network: object, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[str, ...]:
    """Cells of a line: differences to MCP on the rest, and what is used."""
    import btcp_tf
    from btcp_tf import metrics

    reference, fit, rest = parts
    judge = btcp_tf.attach(network)
    judge.fit(*fit, reference=reference, evidence=("answer", "neighbors"), cost=1.3, verbose=0)
    answers = judge.predictions(*rest)
    u, mcp = answers.uncertainty["residual"], answers.uncertainty["mcp"]
    auroc = metrics.auroc(answers.is_error, u) - metrics.auroc(answers.is_error, mcp)
    aurc = metrics.aurc(answers.is_error, u) / metrics.aurc(answers.is_error, mcp) - 1
    fitted = judge.fitted or {"evidence": [], "looks": [], "share": 0.0}
    used = ", ".join([*fitted["evidence"], *fitted["looks"]]) or "none"
    return f"{100 * auroc:+.2f}", f"{aurc:+.1%}", used, f"{fitted['share']:.0%}"


if __name__ == "__main__":
    main()
