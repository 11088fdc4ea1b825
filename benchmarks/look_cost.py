"""What looks cost in time and memory, beside the cost that was planned in multiply-adds.

    python -m benchmarks.look_cost CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR [--server]

Estimators with looks are fitted to the first test images, one for each of `--costs`, and exported.
They answer the images behind those in batches of each size, each batch in turns with the classifier
alone: the SavedModel of the judge that is not fitted, with `probs` and `predicted` as its only
outputs. A ratio is the median of the rounds' ratios, with their range. "planned" is the cost in
multiply-adds at the share of these images that is looked at again. With `--server` requests go
through `examples/serving/ray_serve.py`, too, as in `benchmarks.serving`. The peak memory is that of
a process that loads one SavedModel and answers batches of each size.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common, serving
from btcp_tf.decisions.looked_at import Gate
from btcp_tf.networks.mcp import mcp_logit_of_probs

BARE = "classifier alone"

INPUT = "images"


def main() -> None:
    parser = common.parser("look_cost", __doc__)
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--dataset", required=True, help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--fit", type=common.count, default=2000, help="the first test images")
    parser.add_argument("--looks", default="auto", help="names with commas between, or auto")
    parser.add_argument("--costs", default="1.3,2", help="passes per image")
    parser.add_argument("--images", type=common.count, default=512, help="of each size in a round")
    parser.add_argument("--batch_sizes", default="1,64,256")
    parser.add_argument("--rounds", type=common.count, default=7)
    parser.add_argument("--server", action="store_true", help="through Ray Serve, too")
    arguments = parser.parse_args()
    sizes = [int(word) for word in arguments.batch_sizes.split(",")]
    common.print_environment("tensorflow", "keras", *["ray"] * arguments.server)
    common.start_tensorflow(common.cores())
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths, gates, images = prepare(arguments, Path(folder))
        except (OSError, ValueError) as error:
            sys.exit(f"error: {error}")
        ways = {"in process": {name: _in_process(path) for name, path in paths.items()}}
        z = mcp_logit_of_probs(ways["in process"][BARE](images)["probs"])
        shares = {name: float((z > gate.logit).mean()) for name, gate in gates.items()}
        report(ways, images, sizes, arguments.rounds, gates, shares)
        if arguments.server:
            with serving.serving({path.parent.name: path for path in paths.values()}) as ports:
                ways = {
                    protocol: {
                        name: serving.through(protocol, port, path.parent.name, INPUT)
                        for name, path in paths.items()
                    }
                    for protocol, port in ports.items()
                }
                report(ways, images, sizes, arguments.rounds, gates, shares)
        report_memory(paths, images, sizes)


def prepare(
    arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Path], dict[str, Gate], np.ndarray]:
    """SavedModels by name, the gates of those with looks, and images to answer."""
    import tensorflow as tf

    import btcp_tf
    from btcp_tf.data import datasets

    test = datasets.load(arguments.dataset, arguments.data_dir).test
    end = arguments.fit + arguments.images
    if end > len(test):
        raise ValueError(f"images: expected at most {len(test) - arguments.fit:,} behind --fit")
    samples = test.images[: arguments.fit], test.labels[: arguments.fit]
    judge = btcp_tf.attach(arguments.classifier)
    inputs = judge.model.inputs[0].dtype
    images = test.images[arguments.fit : end].astype(inputs)
    paths = {"no looks": judge.export(folder, "mcp", images[:8], verbose=0)}
    loaded = tf.saved_model.load(str(paths["no looks"]))
    spec = loaded.signatures[serving.SIGNATURE].structured_input_signature[1][INPUT]
    bare = folder / "bare" / "1"
    serving.save_bare(loaded, INPUT, spec, bare)
    gates = {}
    looks = arguments.looks if arguments.looks == "auto" else arguments.looks.split(",")
    for word in arguments.costs.split(","):
        judge = btcp_tf.attach(arguments.classifier)
        judge.fit(samples[0].astype(inputs), samples[1], looks=looks, cost=float(word), verbose=0)
        fitted = judge.fitted
        print(f"cost {word}: {fitted['words']}", flush=True)
        name = f"looks, cost {word}"
        paths[name] = judge.export(folder, f"looks_{word}", images[:8], verbose=0)
        # Without a gate all images are looked at; without looks none are.
        gate = fitted["gate"] if fitted["gate"] is not None else -np.inf
        gates[name] = Gate(gate, fitted["share"] or 1.0, fitted["cost"])
    return {BARE: bare} | paths, gates, images


def _in_process(path: Path) -> serving.Ask:
    import tensorflow as tf

    return serving.in_process(tf.saved_model.load(str(path)).signatures[serving.SIGNATURE], INPUT)


def report(
    ways: Mapping[str, Mapping[str, serving.Ask]],
    images: np.ndarray,
    sizes: Sequence[int],
    rounds: int,
    gates: Mapping[str, Gate],
    shares: Mapping[str, float],
) -> None:
    """Prints a table for each way to an answer: a line for each size and SavedModel."""
    for way, asks in ways.items():
        lines = []
        for size in sizes:
            seconds = measure(asks, images, size, rounds)
            for name, found in seconds.items():
                ratios = [a / b for a, b in zip(found, seconds[BARE], strict=True)]
                planned = ("", "", "")
                if name in gates:
                    planned = (
                        f"{shares[name]:.1%}",
                        f"{gates[name].cost:.2f}",
                        f"{gates[name].cost_of(shares[name]):.2f}",
                    )
                milliseconds = 1000 * statistics.median(found) / len(images)
                lines.append(
                    (f"{size}", name, f"{milliseconds:.3f}", *planned, common.range_text(ratios))
                )
        header = ("batch", way, "ms an image", "looked at", "planned at fit", "planned", "measured")
        common.print_table(header, lines)


def measure(
    asks: Mapping[str, serving.Ask], images: np.ndarray, size: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds for all images by SavedModel, one figure a round; each batch is answered by all of
    them before the next, and who goes first changes."""
    seconds: dict[str, list[float]] = {name: [] for name in asks}
    names = list(asks)
    # The first round warms up.
    for turn in range(rounds + 1):
        total = dict.fromkeys(names, 0.0)
        for number, start in enumerate(range(0, len(images), size)):
            first = (turn + number) % len(names)
            for name in names[first:] + names[:first]:
                total[name] += serving.clock(asks[name], images[start : start + size])
        if turn:
            for name in names:
                seconds[name].append(total[name])
    return seconds


def report_memory(paths: Mapping[str, Path], images: np.ndarray, sizes: Sequence[int]) -> None:
    """Prints the largest resident memory with each SavedModel, which has a process of its own."""
    workers: dict[str, Any] = {name: (_peak, (path, images, sizes)) for name, path in paths.items()}
    peaks = {name: figures[0]["peak"] for name, figures in common.take_turns(workers, 1).items()}
    lines = [(name, f"{peak:.0f}", f"{peak - peaks[BARE]:+.0f}") for name, peak in peaks.items()]
    common.print_table(("peak memory, MiB", "", f"to the {BARE}"), lines)


def _peak(connection: Connection, path: Path, images: np.ndarray, sizes: Sequence[int]) -> None:
    connection.recv()
    common.start_tensorflow(common.cores())
    ask = _in_process(path)
    for size in sizes:
        for start in range(0, len(images), size):
            ask(images[start : start + size])
    connection.send({"peak": common.peak_mib()})


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
