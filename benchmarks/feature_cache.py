"""An estimator's epoch on features computed once, against computing them for every batch.

    python -m benchmarks.feature_cache [--images=50000] [--rounds=5] [--data_dir=FOLDER]
        [--encoder=small]

Run it from the checkout on an idle machine. Both variants train the same estimator of one of the
paper's networks on the same targets in the same order with `training.fit_phase`, each in a process
of its own, in turns. One reads features that the frozen encoder left in memory before the first
epoch, as a run does; the other reads images and sends each batch through the encoder in inference
mode. Their losses must agree, or the figures are not printed. Images for svhn and vgg16 get a black
frame and three channels: they are as large as CIFAR's.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks import common
from btcp_tf.core.config import PHASES, Config

TOLERANCE = 1e-4
"""Largest relative difference of the losses; oneDNN rounds batches of other sizes differently."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What both variants train."""

    images: Path
    config: Config
    threads: int
    onednn: bool
    epochs: int
    encoder: str


def main() -> None:
    parser = common.parser("feature_cache", __doc__)
    common.add_training_flags(parser, 50_000)
    parser.add_argument("--encoder", choices=("small", "svhn", "vgg16"), default="small")
    parser.add_argument(
        "--epochs",
        type=common.count,
        default=100,
        help="epochs that share the cost of the features",
    )
    parser.add_argument(
        "--onednn",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="oneDNN's kernels, as in a run; they speed the encoder up more than the estimator",
    )
    arguments = parser.parse_args()
    common.print_environment("tensorflow", "keras")
    print(
        f"{arguments.encoder}, {arguments.images:,} "
        f"{'Fashion-MNIST' if arguments.data_dir else 'random'} images, "
        f"batch {arguments.batch_size}, {arguments.threads} threads, "
        f"oneDNN {'on' if arguments.onednn else 'off'}\n"
        f"medians of {arguments.rounds} rounds after {arguments.warmup} to warm up",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        images = Path(temporary) / "images.npz"
        common.write_images(images, arguments.images, arguments.data_dir)
        config = Config(dataset="fashion_mnist", batch_size=arguments.batch_size)
        job = Job(
            images,
            config,
            arguments.threads,
            arguments.onednn,
            arguments.warmup + arguments.rounds,
            arguments.encoder,
        )
        found = common.take_turns(
            {name: (worker, (name, job)) for name in ("cached", "recomputed")},
            arguments.rounds,
            arguments.warmup,
        )
    print_figures(found["cached"], found["recomputed"], arguments.epochs)


def print_figures(
    cached: list[common.Figures], recomputed: list[common.Figures], epochs: int
) -> None:
    """Prints medians and ratios.

    Args:
      cached: Figures of all rounds; `beside` is the time that computing the features takes.
      recomputed: Likewise, for the same rounds.
      epochs: Number of epochs that use the features.
    """
    ours, theirs = (np.array([f["loss"] for f in rounds]) for rounds in (cached, recomputed))
    difference = float(np.max(np.abs(ours - theirs) / ours))
    if not difference < TOLERANCE:
        sys.exit(f"error: expected equal losses of both variants, received {ours} and {theirs}")
    print(f"the epochs' losses differ by at most {difference:.1e} of themselves")
    times = {
        "estimator's epoch on cached features": [f["epoch"] for f in cached],
        "estimator's epoch through the frozen encoder": [f["epoch"] for f in recomputed],
        "of each, writing the checkpoint": [f["checkpoint"] for f in cached],
        "computing the features once": [f["beside"] for f in cached],
    }
    common.print_table(
        ("", "s"), [(name, f"{statistics.median(seconds):.3f}") for name, seconds in times.items()]
    )
    pairs = list(zip(cached, recomputed, strict=True))
    ratios = {
        "an epoch": [b["epoch"] / a["epoch"] for a, b in pairs],
        f"{epochs} epochs and computing the features": [
            epochs * b["epoch"] / (epochs * a["epoch"] + a["beside"]) for a, b in pairs
        ],
    }
    print("\nHow many times as fast with cached features (range over the rounds):")
    common.print_table(
        ("", "ratio"),
        [(name, common.range_text(values)) for name, values in ratios.items()],
    )


def worker(connection: Connection, name: str, job: Job) -> None:
    """Trains the estimator, one epoch a turn; see `common.take_turns`."""
    config, cached = job.config, name == "cached"
    common.start_tensorflow(job.threads, job.onednn)
    import keras
    import tensorflow as tf

    from btcp_tf.training import one_phase, phases
    from btcp_tf.training.inference import Inference
    from btcp_tf.training.phase_model import PhaseModel, Recipe
    from btcp_tf.training.settings import TrainingSettings

    images, _ = common.read_images(job.images)
    if job.encoder != "small":
        images = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=-1)
    keras.utils.set_random_seed(0)
    network = common.paper_network(config, images, job.encoder)
    # Targets spread as the paper wishes them; the classifier is untrained and has none to offer.
    u_true = np.random.default_rng(0).random(len(images), np.float32)
    settings = TrainingSettings.of(config)
    loss, _ = phases.loss_settings(settings, Recipe(), u_true)
    # A local name: as an attribute the encoder would become part of the model and its checkpoint.
    encoder = network.get_layer("encoder")

    class Recomputing(PhaseModel):
        def call(self, x, training=False):
            return super().call(tf.stop_gradient(encoder(x, training=False)), training)

    encode = Inference(encoder, config.test_batch_size)

    def time_features() -> float:
        if not cached:
            return 0.0
        started = time.perf_counter()
        encode(images)
        return time.perf_counter() - started

    # As in a phase of so many epochs as a run has.
    one_phase._WORTH_COMPILING = 0
    model = (PhaseModel if cached else Recomputing)(PHASES[1], network, loss)
    clock = common.EpochClock(connection, time_features)

    def before_epoch() -> None:
        clock.before_epoch()
        model.set_targets(u_true)

    common.fit_by_turns(
        clock,
        model,
        encode(images) if cached else images,
        u_true,
        settings=settings,
        epochs=job.epochs,
        learning_rate=config.estimator_learning_rate,
        checkpoint=job.images.with_name(f"{name}.npz"),
        before_epoch=before_epoch,
    )


if __name__ == "__main__":
    main()
