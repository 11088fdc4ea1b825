"""A whole Fashion-MNIST run at the paper's settings, in btcp_tf and as the prototype does it.

    python -m benchmarks.whole_run --torch_python=PYTHON [--images=9600] [--rounds=3]
        [--data_dir=FOLDER]

Run it from the checkout on an idle machine: beside other work PyTorch's threads wait for each other
many times as long. PYTHON is an interpreter with PyTorch and NumPy; without one only btcp_tf is
measured. Both train the paper's three phases (20, 100 and 20 epochs, batches of 32) with the same
network and optimizer. One epoch of each phase is measured a round, each phase in a process of its
own, all in turns; the run is their sum, extrapolated to 50,000 training images.

- btcp_tf: all of what `training.fit_phase` does, with the checkpoint of every epoch. The estimator
  trains on features that are computed once, which is counted; before each epoch of fine-tuning
  there is the pass for the histogram of U.
- prototype: a plain loop in PyTorch, channels-last, without checkpoints, the encoder recomputed in
  every epoch of the estimator, the density from a histogram of 10 bins of each batch.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common
from btcp_tf.core.config import PHASES, Config

TRAINING_IMAGES = 50_000


class Job(NamedTuple):
    """What both sides train; as JSON it is what the other interpreter is told."""

    folder: str
    epochs: int
    threads: int
    batch_size: int
    feature_dim: int
    learning_rates: tuple[float, ...]
    momentum: float
    weight_decay: float

    @property
    def images(self) -> Path:
        return Path(self.folder) / "images.npz"


def main() -> None:
    parser = common.parser("whole_run", __doc__)
    common.add_training_flags(parser, 9600)
    parser.add_argument("--torch_python", default="", help="an interpreter with PyTorch")
    arguments = parser.parse_args()
    config = Config(dataset="fashion_mnist", batch_size=arguments.batch_size)
    common.print_environment("tensorflow", "keras")
    if arguments.torch_python:
        print(f"PyTorch {torch_version(arguments.torch_python)} for the prototype")
    print(
        f"{arguments.images:,} {'Fashion-MNIST' if arguments.data_dir else 'random'} images, "
        f"{arguments.threads} threads; medians of {arguments.rounds} rounds after "
        f"{arguments.warmup} to warm up",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            folder,
            arguments.warmup + arguments.rounds,
            arguments.threads,
            config.batch_size,
            config.feature_dim,
            tuple(
                getattr(config, "learning_rate" if number == 0 else f"{phase.name}_learning_rate")
                for number, phase in enumerate(PHASES)
            ),
            config.momentum,
            config.weight_decay,
        )
        common.write_images(job.images, arguments.images, arguments.data_dir)
        workers: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        for number, phase in enumerate(PHASES):
            workers[f"btcp_tf {phase.name}"] = (tensorflow_worker, (number, job))
            if arguments.torch_python:
                relayed = (number, job, arguments.torch_python)
                workers[f"prototype {phase.name}"] = (torch_relay, relayed)
        found = common.take_turns(workers, arguments.rounds, arguments.warmup)
    epochs = [getattr(config, f"{phase.name}_epochs") for phase in PHASES]
    print_figures(found, epochs, TRAINING_IMAGES / arguments.images)


def torch_version(python: str) -> str:
    """Of the interpreter; ends the process where it has no PyTorch."""
    command = [python, "-c", "import torch, numpy; print(torch.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: torch_python: expected one with PyTorch and NumPy, received {error}")
    return done.stdout.strip()


def print_figures(found: dict[str, list[common.Figures]], epochs: list[int], scale: float) -> None:
    """Prints what a run takes on each side, and the ratio.

    Args:
      found: Figures of all rounds, by side and phase.
      epochs: Epochs of each phase.
      scale: Training images of a run by those that were measured.
    """
    sides = list(dict.fromkeys(name.split()[0] for name in found))
    totals, lines = {}, []
    for side in sides:
        seconds = np.array([[f["epoch"] for f in found[f"{side} {p.name}"]] for p in PHASES])
        once = np.array([f["beside"] for f in found[f"{side} {PHASES[1].name}"]])
        totals[side] = scale * (np.array(epochs) @ seconds + once)
        medians = [scale * statistics.median(row) for row in seconds]
        cells = [f"{count} x {value:.2f}" for count, value in zip(epochs, medians, strict=True)]
        lines.append((side, *cells, f"{scale * statistics.median(once):.2f}"))
        lines[-1] += (f"{statistics.median(totals[side]) / 60:.1f}",)
    header = [f"{phase.name}, s" for phase in PHASES]
    common.print_table(("", *header, "features, s", "run, min"), lines)
    if len(sides) > 1:
        ours, theirs = totals.values()
        print(f"\nbtcp_tf / prototype: {common.range_text(list(ours / theirs))}")
    else:
        print("\nno interpreter with PyTorch, no comparison: see --torch_python")


# btcp_tf.


def tensorflow_worker(connection: Connection, number: int, job: Job) -> None:
    """Trains one phase with `fit_phase`, one epoch a turn; see `common.take_turns`."""
    common.start_tensorflow(job.threads)
    import keras

    from btcp_tf import losses
    from btcp_tf.networks import classifiers
    from btcp_tf.training import one_phase, phases
    from btcp_tf.training.inference import Inference
    from btcp_tf.training.phase_model import PhaseModel, Recipe
    from btcp_tf.training.settings import TrainingSettings

    config = Config(dataset="fashion_mnist", batch_size=job.batch_size)
    images, labels = common.read_images(job.images)
    keras.utils.set_random_seed(0)
    network = common.paper_network(config, images)
    encode = Inference(network.get_layer("encoder"), config.test_batch_size)
    ends = classifiers.both_ends(network.get_layer("classifier"))
    classify = Inference(ends, config.test_batch_size)

    def u_true() -> np.ndarray:
        _, probs = classify(encode(images))
        return 1.0 - losses.true_class_probability(probs, labels).numpy()

    def time_features() -> float:
        started = time.perf_counter()
        encode(images)
        return time.perf_counter() - started

    settings, phase = TrainingSettings.of(config), PHASES[number]
    targets = u_true()
    loss, _ = phases.loss_settings(settings, Recipe(), targets)
    model = PhaseModel(phase, network, loss if "estimator" in phase.trains else None)
    on_features = "encoder" not in phase.trains
    clock = common.EpochClock(connection, time_features if on_features else lambda: 0.0)
    # As in a phase of so many epochs as a run has.
    one_phase._WORTH_COMPILING = 0

    def before_epoch() -> None:
        clock.before_epoch()
        if "estimator" in phase.trains:
            model.set_targets(targets if on_features else u_true())

    common.fit_by_turns(
        clock,
        model,
        encode(images) if on_features else images,
        targets if on_features else labels,
        settings=settings,
        epochs=job.epochs,
        learning_rate=job.learning_rates[number],
        checkpoint=Path(job.folder) / f"{phase.name}.npz",
        before_epoch=before_epoch,
    )


# The prototype, in another interpreter.


def torch_relay(connection: Connection, number: int, job: Job, python: str) -> None:
    """Hands turns on to `torch_side`; see `common.take_turns`."""
    command = [python, "-m", "benchmarks.whole_run_torch", str(number), json.dumps(job)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(job.epochs):
            connection.recv()
            print("go", file=process.stdin, flush=True)
            connection.send(json.loads(process.stdout.readline()))


if __name__ == "__main__":
    main()
