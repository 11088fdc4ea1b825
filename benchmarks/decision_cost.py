"""What the decision costs: SavedModels that decide against the bare classifier.

    python -m benchmarks.decision_cost --data_dir=FOLDER [--images=6000] [--rounds=15]

The paper's small network is trained briefly on Fashion-MNIST and exported five times: its
classifier alone (probabilities, no more), with the estimator of BTCP, with the residual estimator
without neighbors, without and with what copies taught, and with an index of neighbors. All answer
in one process, in turns, through their signature `serving_default`; the figures are medians over
the rounds of each one's time to the bare classifier's in the same round.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import common


def main() -> None:
    parser = common.parser("decision_cost", __doc__)
    parser.add_argument("--data_dir", default="", help="folder of prepared data sets")
    parser.add_argument("--images", type=int, default=6000, help="training images")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    common.print_environment("tensorflow", "keras")
    common.start_tensorflow(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        # The models hold the variables of their signatures.
        models, images = prepare(arguments, Path(folder))
        signatures = {name: model.signatures["serving_default"] for name, model in models.items()}
        lines = []
        for size, calls in ((1, 200), (64, 30)):
            seconds = measure(signatures, images[:size], arguments.rounds, calls)
            bare = seconds["classifier alone"]
            for name, found in seconds.items():
                ratio = statistics.median(a / b for a, b in zip(found, bare, strict=True))
                lines.append(
                    (f"{size}", name, f"{1e3 * statistics.median(found):.3f}", f"{ratio:.3f}")
                )
    common.print_table(("batch", "SavedModel", "ms a call", "times the classifier"), lines)


def prepare(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Any]:
    """Loaded SavedModels by name, and images to answer."""
    import keras
    import tensorflow as tf

    import btcp_tf
    from btcp_tf import thresholds
    from btcp_tf.data import datasets
    from btcp_tf.methods.residual_fit import EVIDENCE, NO_INDEX
    from btcp_tf.networks.models import build_model
    from btcp_tf.serving import saved_model as saved_model_

    found = datasets.load("fashion_mnist", arguments.data_dir, 0, arguments.images)
    keras.utils.set_random_seed(0)
    network = build_model("small", (28, 28, 1), 10, feature_dim=128)
    images = network.input
    classifier = keras.Model(images, network.output["probs"])
    classifier.compile("adam", "sparse_categorical_crossentropy")
    classifier.fit(found.train.images, found.train.labels, epochs=2, batch_size=128, verbose=0)

    archive = keras.export.ExportArchive()
    archive.track(classifier)
    spec = tf.TensorSpec((None, 28, 28, 1), tf.uint8, name="images")
    archive.add_endpoint(
        "serving_default",
        lambda images: {"probs": classifier(images, training=False)},
        input_signature=[spec],
    )
    archive.write_out(str(folder / "bare"), verbose=False)
    paths = {"classifier alone": folder / "bare"}

    def export(model: keras.Model, name: str) -> Path:
        return saved_model_.export(
            model,
            folder,
            name,
            found.class_names,
            found.validation.images[:8],
            threshold=thresholds.DEFAULT,
        )

    paths["with btcp"] = export(network, "btcp")
    held_out = found.validation.images, found.validation.labels
    for name, evidence, copies in (
        ("with residual, no index, no copies", NO_INDEX, ()),
        ("with residual, no index", NO_INDEX, "auto"),
        (f"with residual, index of {len(found.train):,}", EVIDENCE, "auto"),
    ):
        judge = btcp_tf.attach(classifier, class_names=found.class_names)
        reference = found.train.images, found.train.labels
        more: Any = {"evidence": evidence, "copies": copies, "looks": (), "verbose": 0}
        judge.fit(*held_out, reference=reference, **more)
        print(f"{name}: {judge.fitted['words']}")
        paths[name] = export(judge.model, f"residual_{len(paths)}")
    models = {name: tf.saved_model.load(str(path)) for name, path in paths.items()}
    return models, tf.constant(found.test.images[:64])


def measure(
    signatures: dict[str, Callable], images: Any, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Seconds a call by name, one figure a round; who goes first changes."""
    seconds: dict[str, list[float]] = {name: [] for name in signatures}
    names = list(signatures)
    for turn in range(rounds + 2):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            for _ in range(calls):
                answers = signatures[name](images=images)
            answers["probs"].numpy()
            if turn >= 2:
                seconds[name].append((time.perf_counter() - started) / calls)
    return seconds


if __name__ == "__main__":
    main()
