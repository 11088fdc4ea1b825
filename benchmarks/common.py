"""What the benchmarks share: processes that take turns, an epoch's clock, images, tables.

Nothing here imports TensorFlow or PyTorch in the process that compares: each competitor runs in a
process of its own, so that neither shares threads or memory with the other.
"""

import argparse
import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

    from btcp_tf.core.config import Config

Figures = dict[str, Any]

_SPAWN = multiprocessing.get_context("spawn")


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark's command line; its docstring is the help."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(word: str) -> int:
    """A flag's `type`: a whole number from 1 on."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, received {number}")
    return number


def add_training_flags(parser: argparse.ArgumentParser, images: int) -> None:
    """What is trained, on how many threads and how often; `images` is a default."""
    parser.add_argument("--images", type=count, default=images, help="images of an epoch")
    parser.add_argument("--batch_size", type=count, default=32)
    parser.add_argument("--rounds", type=count, default=5, help="rounds that count")
    parser.add_argument("--warmup", type=count, default=1, help="rounds before them, at least 1")
    parser.add_argument("--threads", type=count, default=cores())
    parser.add_argument("--data_dir", default="", help="folder of prepared Fashion-MNIST")


def range_text(ratios: Sequence[float]) -> str:
    """The median of ratios, and their range."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def take_turns(
    workers: dict[str, tuple[Callable[..., None], tuple[Any, ...]]], rounds: int, warmup: int = 0
) -> dict[str, list[Figures]]:
    """Lets workers measure alternately, so that a slow minute of the machine hits all of them.

    Args:
      workers: By name a function and its arguments. The function runs in a process of its own as
        `function(connection, *arguments)`, and does `warmup + rounds` times: wait for its turn with
        `connection.recv()`, measure, `connection.send(figures)`.
      rounds: Turns of each worker that count.
      warmup: Turns of each worker before them.

    Returns:
      The workers' figures of the turns that count. Entries of one index are of the same round.
    """
    connections, processes = {}, []
    for name, (function, arguments) in workers.items():
        connections[name], theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        # With this end left open, a worker's death would look like a long wait.
        theirs.close()
        processes.append(process)
    found: dict[str, list[Figures]] = {name: [] for name in workers}
    names = list(workers)
    for turn in range(warmup + rounds):
        # Whoever follows whom changes from round to round.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            try:
                connections[name].send("go")
                figures = connections[name].recv()
            except (EOFError, BrokenPipeError):
                sys.exit(f"error: expected an answer of {name}, received its end")
            if turn >= warmup:
                found[name].append(figures)
    for process in processes:
        process.join()
    return found


class EpochClock:
    """Callbacks for `training.fit_phase` that make every epoch a turn.

    An epoch's time is all that `fit` spends from one turn to the next: batches, steps, Keras' own
    work, the checkpoint. Waiting for the turn and measuring `beside` are left out.
    """

    def __init__(self, connection: Connection, beside: Callable[[], float]) -> None:
        """
        Args:
          connection: See `take_turns`.
          beside: Measures something else; called before and after each epoch, within its turn. The
            mean is part of the figures.
        """
        self._connection = connection
        self._beside = beside
        self._loaded = peak_mib()
        self._started = time.perf_counter()

    def before_epoch(self) -> None:
        stopped = time.perf_counter()
        self._connection.recv()
        self._before = self._beside()
        self._started += time.perf_counter() - stopped

    def describe(self, row: Figures) -> Figures:
        self._described = time.perf_counter()
        return row

    def after_epoch(self, rows: Sequence[Figures]) -> None:
        ended = time.perf_counter()
        self._connection.send(
            {
                "epoch": ended - self._started,
                "checkpoint": ended - self._described,
                "beside": (self._before + self._beside()) / 2,
                "loss": rows[-1]["loss"],
                "loaded": self._loaded,
                "peak": peak_mib(),
            }
        )
        self._started = time.perf_counter()


def paper_network(config: "Config", images: np.ndarray, encoder: str = "small") -> "keras.Model":
    """One of the paper's networks for 10 classes of such images."""
    from btcp_tf.networks import models

    return models.build_model(encoder, images.shape[1:], 10, feature_dim=config.feature_dim)


def fit_by_turns(clock: EpochClock, model: Any, *data: np.ndarray, **settings: Any) -> None:
    """`training.fit_phase` with every epoch a turn, and with a progress bar that nobody sees."""
    from btcp_tf.training import one_phase

    hooks = {
        name: getattr(clock, name) for name in ("describe", "before_epoch", "after_epoch")
    } | settings
    # The bar is on, as in a run; it only has nowhere to go.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        one_phase.fit_phase(model, *data, basis="", **hooks)


def start_tensorflow(threads: int, onednn: bool = True) -> None:
    """Imports TensorFlow with the settings of `btcp_tf.main` and this number of threads."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = str(int(onednn))
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = str(threads)
    # Each worker would repeat the start-up messages, which no log level hides.
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        import tensorflow as tf

        tf.config.list_logical_devices()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def peak_mib() -> float:
    """Largest resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # What `getrusage` says begins with that of the process that started this one.
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


class Watch:
    """Seconds, and the largest anonymous memory of this process in MiB, while it is entered.

    Pages of mapped files are not counted: the system keeps them as long as it has room. Linux only.
    """

    seconds = peak = 0.0

    def __enter__(self) -> "Watch":
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.2):
            self.peak = max(self.peak, anonymous_mib())


def anonymous_mib() -> float:
    """Anonymous memory of this process, in MiB; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) / 2**10


def write_images(path: Path, count: int, data_dir: str) -> None:
    """Saves `images` uint8 `[count, 28, 28, 1]` and `labels` int64 `[count]`.

    Args:
      path: An `.npz` file.
      count: Number of images.
      data_dir: Folder with prepared Fashion-MNIST, of which the first training images are taken;
        "": random images and labels.
    """
    process = _SPAWN.Process(target=_write_images, args=(path, count, data_dir))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(1)


def _write_images(path: Path, count: int, data_dir: str) -> None:
    if data_dir:
        start_tensorflow(cores())
        from btcp_tf.data import datasets

        try:
            train = datasets.load("fashion_mnist", data_dir).train
        except (OSError, ValueError) as error:
            sys.exit(f"error: {error}")
        if count > len(train):
            sys.exit(f"error: images: expected at most {len(train)}, received {count}")
        images, labels = train.images[:count], train.labels[:count]
    else:
        generator = np.random.default_rng(0)
        images = generator.integers(256, size=(count, 28, 28, 1), dtype=np.uint8)
        labels = generator.integers(10, size=count)
    np.savez(path, images=images, labels=labels)


def read_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """What `write_images` saved."""
    with np.load(path) as saved:
        return saved["images"], saved["labels"]


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def print_environment(*packages: str) -> None:
    """Says what machine and versions the figures are of, and whether it was busy before."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    versions = [f"{package} {metadata.version(package)}" for package in packages]
    print(f"{model}, {cores()} cores; Python {platform.python_version()}, {', '.join(versions)}")
    load = os.getloadavg()[0]
    if load > 0.3:
        print(f"load average {load:.1f} before the start: other work distorts these figures")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints columns, the first to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print()
    for first, *others in lines:
        cells = [word.rjust(width) for word, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]))


DIFFERENCES = ("", "AUROC %", "AUPR-error %", "AURC x 1000", "AURC")
"""Header of `differences`."""


def differences(
    rows: Sequence[Mapping[str, Any]], reference: str = "mcp"
) -> Iterator[tuple[str, ...]]:
    """Lines for `print_table`: MCP's metrics, then what each other method's are above or below.

    Args:
      rows: Of `evaluation.across_seeds`, one of them of the method mcp.
      reference: What that one is called.
    """
    units = {"auroc": 100, "aupr_error": 100, "aurc": 1000}
    mcp = next(row for row in rows if row["method"] == "mcp")
    yield (reference, *(f"{unit * mcp[metric]:.2f}" for metric, unit in units.items()), "")
    for row in rows:
        if row is mcp:
            continue
        cells = []
        for metric, unit in units.items():
            value, low, high = (
                unit * row[f"{metric}_minus_mcp{end}"] for end in ("", "_low", "_high")
            )
            cells.append(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]")
        yield (row["method"], *cells, f"{row['aurc_minus_mcp'] / mcp['aurc']:+.1%}")


def training_parts(
    dataset: str, data_dir: str, counts: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """All images but the test images, shuffled, and their labels: so many in each part, and the
    rest."""
    from btcp_tf.data import datasets

    try:
        data = datasets.load(dataset, data_dir)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    whole = (data.train, data.validation, data.calibration)
    images = np.concatenate([part.images for part in whole])
    labels = np.concatenate([part.labels for part in whole])
    order = np.random.default_rng(0).permutation(len(labels))
    return [(images[rows], labels[rows]) for rows in np.split(order, np.cumsum(counts))]
