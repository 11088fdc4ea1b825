"""Time and memory as data grows: 1, 4 and 16 times as many samples.

    python -m benchmarks.data_size [--of=attach,runs] [--samples=2500] [--figure=FILE.svg]

attach: images as datasets whose batches are made as they are asked for, so that none of them has
to be in memory: as the reference of `fit`, to `select_threshold` and to `evaluate`. Memory is the
largest anonymous one above that before the step. runs: `btcp_tf.main` on an npz file that is
written batch by batch, a fifth of its images the test set, each run in a process of its own; memory
is above that of a run on a quarter of the smallest data. Pages of files are not in it: the system
keeps them as long as it has room. What has a limit, arrays in memory and the index of a reference,
has a lower one here, so that few samples are enough to reach it. Linux only.
"""

import gc
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common

FACTORS = (1, 4, 16)

_LARGEST = 2**16
"""Bytes of an array that stay in memory here, in place of 2^28."""

_VECTORS = 2**11
"""Of an index, and of a reference in memory at once, here, in place of 2^16."""

_CLASSES, _BATCH = 10, 500

_SHAPE, _IMAGE_SHAPE = (28, 28, 1), (64, 64, 3)

_GRAIN = 8
"""Pixels of a side of what is alike in the patterns of runs."""

Found = list[tuple[float, float]]
"""Seconds, and memory in MiB, for each number of samples."""


def main() -> None:
    parser = common.parser("data_size", __doc__)
    parser.add_argument("--of", default="attach,runs", help="what is measured")
    parser.add_argument("--samples", type=common.count, default=2500, help="of the smallest step")
    parser.add_argument("--figure", type=Path, help="an .svg or .png file to write")
    arguments = parser.parse_args()
    kinds = {"attach": attach, "runs": runs}
    names = arguments.of.split(",")
    if unknown := [name for name in names if name not in kinds]:
        parser.error(f"--of: expected some of {', '.join(kinds)}, received {unknown[0]}")
    common.print_environment("tensorflow", "keras", "scikit-learn")
    measured: dict[str, Found] = {}
    for name in names:
        measured |= kinds[name](arguments.samples)
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


def lower_limits() -> None:
    """Lets what is large begin early: so few samples show what grows with them."""
    from btcp_tf.core import rows
    from btcp_tf.methods import reference_index

    rows.LARGEST, reference_index.LARGEST = _LARGEST, _VECTORS
    reference_index.BLOCK = _VECTORS


def attach(samples: int) -> dict[str, Found]:
    """The steps of a judge."""
    [found] = common.take_turns({"attach": (attach_worker, (samples,))}, rounds=1)["attach"]
    return found


def attach_worker(connection: Connection, samples: int) -> None:
    """Measures all steps; see `common.take_turns`."""
    connection.recv()
    common.start_tensorflow(common.cores())
    import keras
    import tensorflow as tf

    import btcp_tf

    lower_limits()
    patterns = _patterns(_SHAPE)
    form = tf.TensorSpec((None, *_SHAPE)), tf.TensorSpec((None,), tf.int64)

    def dataset(count: int, seed: int) -> Any:
        return tf.data.Dataset.from_generator(
            lambda: batches(patterns, 7, count, seed), output_signature=form
        )

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
    connection.send({name: measure(step, samples) for name, step in steps.items()})


def measure(step: Callable[[int], None], samples: int) -> Found:
    step(samples // 2)  # Graphs are built once.
    found = []
    for factor in FACTORS:
        gc.collect()
        before = common.anonymous_mib()
        with common.Watch() as watch:
            step(factor * samples)
        found.append((watch.seconds, watch.peak - before))
    return found


def runs(samples: int) -> dict[str, Found]:
    """Whole runs with a given classifier, which phase 3 trains on the images."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        classifier = Path(scratch, "classifier.keras")
        common.take_turns({"classifier": (classifier_worker, (classifier,))}, rounds=1)
        for count in (samples // 4, *(factor * samples for factor in FACTORS)):
            npz = Path(scratch, f"{count}.npz")
            write(npz, {"train": count - count // 5, "test": count // 5})
            job = (npz, classifier, Path(scratch, str(count)))
            [figures] = common.take_turns({"run": (run_worker, job)}, rounds=1)["run"]
            print(
                f"run: {count:,} {figures['seconds']:.1f} s {figures['peak']:.0f} MiB", flush=True
            )
            found.append((figures["seconds"], figures["peak"]))
            npz.unlink()
    return {"run": [(seconds, peak - found[0][1]) for seconds, peak in found[1:]]}


def classifier_worker(connection: Connection, path: Path) -> None:
    """Saves a small classifier of images; see `common.take_turns`."""
    connection.recv()
    common.start_tensorflow(common.cores())
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input(_IMAGE_SHAPE),
            layers.Rescaling(1 / 64, -2),
            layers.AveragePooling2D(_GRAIN),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(_CLASSES, "softmax"),
        ]
    )
    network.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
    for images, labels in pictures(5000, 1):
        network.fit(images, labels, epochs=3, verbose=0)
    network.save(path)
    connection.send({})


def run_worker(connection: Connection, npz: Path, classifier: Path, folder: Path) -> None:
    """One run; see `common.take_turns`."""
    connection.recv()
    common.start_tensorflow(common.cores())
    from btcp_tf import main as main_

    lower_limits()
    flags = (
        f"--dataset=npz --data_dir={npz} --classifier={classifier} --classifier_pixels=0_255 "
        f"--output_dir={folder / 'run'} --export_dir={folder / 'models'} "
        "--method=mcp,btcp,residual --finetune_method=btcp --estimator_epochs=1 "
        "--finetune_epochs=1 --bootstrap_draws=100 --verbose=0"
    )
    with common.Watch() as watch:
        status = main_.main(flags.split())
    assert status == 0, status
    connection.send({"seconds": watch.seconds, "peak": watch.peak})


def write(path: Path, counts: dict[str, int]) -> None:
    """Writes an npz file of images and labels of so many samples by part, batch by batch."""
    labels = {}
    with zipfile.ZipFile(path, "w") as archive:
        for seed, (part, count) in enumerate(counts.items(), 10):
            shape = (count, *_IMAGE_SHAPE)
            about = {"descr": "|u1", "fortran_order": False, "shape": shape}
            own = []
            with archive.open(f"x_{part}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, about)
                for images, some in pictures(count, seed):
                    member.write(images.tobytes())
                    own.append(some)
            labels[f"y_{part}"] = np.concatenate(own)
        for name, array in labels.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def pictures(count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of uint8 images, coarse patterns in noise, and their labels."""
    height, width, channels = _IMAGE_SHAPE
    patterns = _patterns((height // _GRAIN, width // _GRAIN, channels))
    patterns = patterns.repeat(_GRAIN, axis=1).repeat(_GRAIN, axis=2)
    for images, labels in batches(patterns, 35, count, seed):
        yield np.rint(128 + 2 * images).clip(0, 255).astype(np.uint8), labels


def _patterns(shape: tuple[int, int, int]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(_CLASSES, *shape)).astype(np.float32)


def batches(
    patterns: np.ndarray, noise: float, count: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Noisy images of one pattern for each class, float32, and their labels."""
    random = np.random.default_rng(seed)
    for start in range(0, count, _BATCH):
        labels = random.integers(0, len(patterns), min(_BATCH, count - start))
        drawn = random.standard_normal((len(labels), *patterns.shape[1:]), np.float32)
        yield patterns[labels] + noise * drawn, labels


def draw(path: Path, counts: list[int], measured: dict[str, Found]) -> None:
    """Time and memory against the number of samples."""
    import matplotlib
    from matplotlib import figure

    # The same figures give the same file, with text that can be searched.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "btcp_tf"})
    plot = figure.Figure(figsize=(8, 3), layout="constrained")
    for column, (axes, unit) in enumerate(
        zip(plot.subplots(1, 2), ("seconds", "MiB above the start"), strict=True)
    ):
        for name, found in measured.items():
            axes.plot(counts, [pair[column] for pair in found], marker="o", label=name)
        if column and "run" in measured:
            size = np.prod(_IMAGE_SHAPE) / 2**20
            axes.plot(counts, [n * size for n in counts], "k:", label="images of the run")
        axes.set(xlabel="samples", ylabel=unit, ylim=(0, None))
    axes.legend()
    plot.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
