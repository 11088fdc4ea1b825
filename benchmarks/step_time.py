"""Training steps and epochs of the paper's small network, in btcp_tf and in PyTorch.

    python -m benchmarks.step_time [--images=6400] [--rounds=5] [--data_dir=FOLDER]

Run it from the checkout on an idle machine; PyTorch is needed for its half (`pip install
torch==2.13.0`). All variants train the same network on the same images with the same optimizer,
threads and batch, each in a process of its own, in turns; a round is one turn of each.

- step: one step of training on batches that lie ready in memory, many in a loop. For btcp_tf the
  loop is compiled, as in `fit`: the time that nothing but the step itself can change.
- epoch: one whole epoch. For btcp_tf all of what `training.fit_phase` does: reading, shuffling and
  batching uint8 images, Keras' loop and progress bar, the checkpoint. For PyTorch a plain loop over
  shuffled rows of one uint8 tensor, which is quicker than a DataLoader, without a checkpoint.
- outside: the share of the epoch that is not steps, 1 - steps x step / epoch.
- peak: largest resident memory of the process; of it, loaded: before the first step.

PyTorch runs eagerly, without torch.compile. Before the rounds, both frameworks take some steps from
the same weights with dropout off: their losses must agree, or nothing is measured.
"""

import argparse
import dataclasses
import importlib.util
import logging
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from btcp_tf.core.config import PHASES, Config

LOOP_STEPS = 20
"""Steps in one call of the compiled loop over batches in memory."""
CHECK_STEPS = 5
CHECK_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Variant:
    """One competitor."""

    framework: str
    title: str
    steps_per_execution: int = 20
    autotune: bool = False
    onednn: bool = True
    channels_last: bool = True


VARIANTS = {
    "torch": Variant("torch", "PyTorch, channels-last"),
    "torch_contiguous": Variant("torch", "PyTorch, contiguous", channels_last=False),
    "btcp_tf": Variant("tf", "btcp_tf"),
    "btcp_tf_single": Variant("tf", "btcp_tf, steps_per_execution=1", steps_per_execution=1),
    "btcp_tf_autotune": Variant("tf", "btcp_tf, tf.data autotuning on", autotune=True),
    "btcp_tf_no_onednn": Variant("tf", "btcp_tf, oneDNN off", onednn=False),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """What all variants train."""

    images: Path
    folder: Path
    config: Config
    threads: int
    epochs: int
    loop_steps: int


def main() -> None:
    arguments = parse()
    names = arguments.variants
    compared = {VARIANTS[name].framework for name in names} == {"torch", "tf"}
    packages = ["tensorflow", "keras"] * any(VARIANTS[name].framework == "tf" for name in names)
    packages += ["torch"] * any(VARIANTS[name].framework == "torch" for name in names)
    if "torch" in packages and importlib.util.find_spec("torch") is None:
        print(
            "error: expected PyTorch for the comparison, received none; `pip install torch==2.13.0`"
            " installs it, --variants=btcp_tf does without it",
            file=sys.stderr,
        )
        sys.exit(2)

    config = Config(dataset="fashion_mnist", batch_size=arguments.batch_size)
    steps = -(-arguments.images // config.batch_size)
    common.print_environment(*packages)
    print(
        f"{arguments.images:,} {'Fashion-MNIST' if arguments.data_dir else 'random'} images, "
        f"batch {config.batch_size} ({steps} steps an epoch), {arguments.threads} threads, "
        f"SGD {config.learning_rate}, momentum {config.momentum}, "
        f"weight decay {config.weight_decay}\n"
        f"medians of {arguments.rounds} rounds after {arguments.warmup} to warm up",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job = Job(
            folder / "images.npz",
            folder,
            config,
            arguments.threads,
            arguments.warmup + arguments.rounds,
            arguments.loop_steps,
        )
        common.write_images(job.images, arguments.images, arguments.data_dir)
        if compared:
            check_same_network(job)
        workers = {"torch": torch_worker, "tf": tensorflow_worker}
        found = common.take_turns(
            {name: (workers[VARIANTS[name].framework], (name, job)) for name in names},
            arguments.rounds,
            arguments.warmup,
        )
    print_figures(found, steps)


def parse() -> argparse.Namespace:
    parser = common.parser("step_time", __doc__)
    common.add_training_flags(parser, 6400)
    parser.add_argument(
        "--loop_steps",
        type=int,
        default=100,
        help=f"steps of the loop, before and again after each epoch; a multiple of {LOOP_STEPS}",
    )
    parser.add_argument(
        "--variants",
        type=lambda words: words.split(","),
        default=list(VARIANTS),
        help=f"any of {','.join(VARIANTS)}; ratios are to the first (default: all)",
    )
    arguments = parser.parse_args()
    for name in arguments.variants:
        if name not in VARIANTS:
            parser.error(f"--variants: expected some of {','.join(VARIANTS)}, received {name!r}")
    if arguments.images < LOOP_STEPS * arguments.batch_size:
        parser.error(
            f"--images: expected at least {LOOP_STEPS} batches, received {arguments.images}"
        )
    if arguments.loop_steps < LOOP_STEPS or arguments.loop_steps % LOOP_STEPS:
        parser.error(
            f"--loop_steps: expected a multiple of {LOOP_STEPS}, received {arguments.loop_steps}"
        )
    return arguments


def print_figures(found: dict[str, list[common.Figures]], steps: int) -> None:
    """Prints the medians, and the ratios to the first variant.

    Args:
      found: Figures of all rounds by variant.
      steps: Steps of an epoch.
    """

    def median(name: str, value: Any) -> float:
        return statistics.median(value(figures) for figures in found[name])

    common.print_table(
        ("", "step, ms", "epoch, s", "outside", "checkpoint", "loaded, MiB", "peak, MiB"),
        [
            (
                VARIANTS[name].title,
                f"{1e3 * median(name, lambda f: f['beside']):.2f}",
                f"{median(name, lambda f: f['epoch']):.2f}",
                f"{median(name, lambda f: 1 - steps * f['beside'] / f['epoch']):.1%}",
                f"{median(name, lambda f: f['checkpoint'] / f['epoch']):.1%}",
                f"{found[name][-1]['loaded']:.0f}",
                f"{found[name][-1]['peak']:.0f}",
            )
            for name in found
        ],
    )
    reference, *others = found
    rows = []
    for name in others:
        cells = [VARIANTS[name].title]
        for key in ("beside", "epoch"):
            # Of the same round: what slows the machine down slows both.
            ratios = [a[key] / b[key] for a, b in zip(found[reference], found[name], strict=True)]
            cells.append(common.range_text(ratios))
        rows.append(tuple(cells))
    if rows:
        print(f"\nHow many times as fast as {VARIANTS[reference].title} (range over the rounds):")
        common.print_table(("", "step", "epoch"), rows)


def check_same_network(job: Job) -> None:
    """Ends the process unless both frameworks' first losses agree."""
    found = common.take_turns(
        {"torch": (torch_check, (job,)), "tf": (tensorflow_check, (job,))}, rounds=1
    )
    ours, theirs = (np.array(found[name][0]["losses"]) for name in ("tf", "torch"))
    difference = float(np.abs(ours - theirs).max())
    if not difference < CHECK_TOLERANCE:
        sys.exit(f"error: expected equal losses of both frameworks, received {ours} and {theirs}")
    print(
        f"same network: the losses of {CHECK_STEPS} steps without dropout, from {ours[0]:.4f} to "
        f"{ours[-1]:.4f}, differ by at most {difference:.1e}",
        flush=True,
    )


def check_settings(config: Config) -> Config:
    """Settings with which momentum and weight decay show within a few steps."""
    return dataclasses.replace(config, learning_rate=0.05, weight_decay=0.05, verbose=0)


def check_weights() -> list[np.ndarray]:
    """Kernels and biases of the four layers, in the shapes of Keras."""
    generator = np.random.default_rng(1)
    shapes = (3, 3, 1, 32), (3, 3, 32, 64), (14 * 14 * 64, 128), (128, 10)
    weights = []
    for shape in shapes:
        scale = (2 / np.prod(shape[:-1])) ** 0.5
        weights.append(generator.normal(0, scale, shape).astype(np.float32))
        weights.append(generator.normal(0, 0.1, shape[-1:]).astype(np.float32))
    return weights


# btcp_tf.


def tensorflow_worker(connection: Connection, name: str, job: Job) -> None:
    """Trains with `fit_phase`, one epoch a turn; see `common.take_turns`."""
    variant = VARIANTS[name]
    common.start_tensorflow(job.threads, variant.onednn)
    import keras
    import tensorflow as tf

    from btcp_tf.data import batching
    from btcp_tf.training.phase_model import PhaseModel
    from btcp_tf.training.settings import TrainingSettings

    if variant.autotune:
        logging.getLogger("absl").setLevel(logging.ERROR)  # It warns of the change of options.
        tuned = tf.data.Options()
        tuned.autotune.enabled = True
        plain = batching.batches
        batching.batches = lambda *args, **kwargs: plain(*args, **kwargs).with_options(tuned)
    config = dataclasses.replace(job.config, steps_per_execution=variant.steps_per_execution)
    images, labels = common.read_images(job.images)
    keras.utils.set_random_seed(0)
    network = common.paper_network(config, images)
    model = PhaseModel(PHASES[0], network)

    first = LOOP_STEPS * config.batch_size
    x = tf.reshape(tf.constant(images[:first]), (LOOP_STEPS, -1, *images.shape[1:]))
    y = tf.reshape(tf.constant(labels[:first]), (LOOP_STEPS, -1))
    weight = tf.ones(config.batch_size)

    # As Keras builds its own function of several steps, without the iterator.
    @tf.function(autograph=False, jit_compile=False)
    def loop() -> None:
        def step(number: tf.Tensor) -> tuple[tf.Tensor]:
            model.train_step((x[number], y[number], weight))
            return (number + 1,)

        tf.while_loop(lambda number: number < LOOP_STEPS, step, (tf.constant(0),))

    def time_step() -> float:
        started = time.perf_counter()
        for _ in range(job.loop_steps // LOOP_STEPS):
            loop()
        seconds = (time.perf_counter() - started) / job.loop_steps
        model.reset_metrics()  # The epoch reports its own.
        return seconds

    clock = common.EpochClock(connection, time_step)
    common.fit_by_turns(
        clock,
        model,
        images,
        labels,
        settings=TrainingSettings.of(config),
        epochs=job.epochs,
        learning_rate=config.learning_rate,
        checkpoint=job.folder / f"{name}.npz",
    )


def tensorflow_check(connection: Connection, job: Job) -> None:
    """Sends the losses of the first steps, taken by `fit_phase`, from `check_weights`."""
    common.start_tensorflow(job.threads)
    import keras

    from btcp_tf.training import one_phase
    from btcp_tf.training.phase_model import PhaseModel
    from btcp_tf.training.settings import TrainingSettings

    config = check_settings(job.config)
    images, labels = (array[: config.batch_size] for array in common.read_images(job.images))
    network = common.paper_network(config, images)
    encoder, weights = network.get_layer("encoder"), check_weights()
    encoder.set_weights(weights[:6])
    network.get_layer("classifier").set_weights(weights[6:])
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    connection.recv()
    rows = one_phase.fit_phase(
        PhaseModel(PHASES[0], network),
        images,
        labels,
        settings=TrainingSettings.of(config),
        epochs=CHECK_STEPS,
        learning_rate=config.learning_rate,
        checkpoint=job.folder / "check.npz",
        basis="",
    )
    connection.send({"losses": [row["cross_entropy"] for row in rows]})


# PyTorch.


def torch_parts(config: Config, channels_last: bool, dropout: bool = True) -> tuple[Any, Any]:
    """The network and one step of its training.

    Returns:
      The `torch.nn.Module`, whose parameters are in the order of `check_weights`, and
      `step(images uint8 [n, h, w, c], labels int64 [n])` → summed loss, number of right answers.
    """
    import torch
    from torch.nn import functional

    layout = torch.channels_last if channels_last else torch.contiguous_format

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(1, 32, 3, padding=1)
            self.conv2 = torch.nn.Conv2d(32, 64, 3, padding=1)
            self.features = torch.nn.Linear(14 * 14 * 64, config.feature_dim)
            self.logits = torch.nn.Linear(config.feature_dim, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            n, height, width, channels = images.shape
            # With one channel both layouts fit the same strides: this says which is meant.
            x = torch.empty((n, channels, height, width), memory_format=layout)
            x.copy_(images.permute(0, 3, 1, 2)).div_(255)
            x = functional.relu(self.conv1(x))
            x = functional.relu(self.conv2(x))
            x = functional.max_pool2d(x, 2)
            x = functional.dropout(x, 0.25, self.training)
            # Flattened as it lies in memory; with channels-last as Keras does.
            x = (x.permute(0, 2, 3, 1) if channels_last else x).flatten(1)
            x = functional.relu(self.features(x))
            return self.logits(functional.dropout(x, 0.5, self.training))

    net = Net().to(memory_format=layout).train(dropout)
    optimizer = torch.optim.SGD(
        net.parameters(),
        config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = net(images)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach() * len(labels), (logits.argmax(1) == labels).sum()

    return net, step


def torch_worker(connection: Connection, name: str, job: Job) -> None:
    """Trains in a plain loop, one epoch a turn; see `common.take_turns`."""
    import torch

    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array) for array in common.read_images(job.images))
    _, step = torch_parts(job.config, VARIANTS[name].channels_last)
    split = (array.split(job.config.batch_size) for array in (images, labels))
    ready = list(zip(*split, strict=True))[:LOOP_STEPS]

    def time_step() -> float:
        started = time.perf_counter()
        for number in range(job.loop_steps):
            step(*ready[number % LOOP_STEPS])
        return (time.perf_counter() - started) / job.loop_steps

    clock = common.EpochClock(connection, time_step)
    for _ in range(job.epochs):
        clock.before_epoch()
        loss, right = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for rows in torch.randperm(len(images)).split(job.config.batch_size):
            batch_loss, batch_right = step(images[rows], labels[rows])
            loss += batch_loss
            right += batch_right
        row = {"loss": loss.item() / len(images), "train_accuracy": right.item() / len(images)}
        clock.after_epoch([clock.describe(row)])


def torch_check(connection: Connection, job: Job) -> None:
    """Sends the losses of the first steps from `check_weights`."""
    import torch

    torch.set_num_threads(job.threads)
    config = check_settings(job.config)
    images, labels = (
        torch.from_numpy(array[: config.batch_size]) for array in common.read_images(job.images)
    )
    net, step = torch_parts(config, channels_last=True, dropout=False)
    with torch.no_grad():
        for parameter, weights in zip(net.parameters(), check_weights(), strict=True):
            order = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[weights.ndim]
            parameter.copy_(torch.from_numpy(weights.transpose(order)))
    connection.recv()
    losses = [step(images, labels)[0].item() / len(images) for _ in range(CHECK_STEPS)]
    connection.send({"losses": losses})


if __name__ == "__main__":
    main()
