"""What a model server adds to a model's time, and the decision to a classifier's.

    python -m benchmarks.serving --model=saved_models/fashion_mnist/1 [--requests=100] [--rounds=5]

Run it from the checkout on an idle machine, with the extra `ray`. Three ways to an answer of the
SavedModel, and of the bare classifier (the same graph with `probs` and `predicted` as its only
outputs, so that TensorFlow leaves the estimator out): in this process, and through
`examples/serving/ray_serve.py` by REST (row form) and gRPC, one client after another and several at
once. Requests are those of `btcp_tf.client`, without its checks of inputs and answers. Server and
clients share this machine's cores. The ways take turns in each round; a ratio is the median of the
rounds' ratios.
"""

import argparse
import contextlib
import functools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from btcp_tf.serving.client import Client
from btcp_tf.serving.transport import Deadline

SERVER = Path(__file__).resolve().parents[1] / "examples" / "serving" / "ray_serve.py"
SIGNATURE = "serving_default"

Ask = Callable[[np.ndarray], Any]


def main() -> None:
    parser = common.parser("serving", __doc__)
    parser.add_argument("--model", required=True, help="version directory of a SavedModel")
    parser.add_argument("--requests", type=int, default=100, help="of each way in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4, help="at once, for the throughput")
    parser.add_argument("--batch_sizes", default="1,64")
    arguments = parser.parse_args()
    model = Path(arguments.model).resolve()
    if not (model / "saved_model.pb").is_file():
        parser.error(f"model: expected a version directory, received {arguments.model!r}")
    sizes = [int(word) for word in arguments.batch_sizes.split(",")]

    common.print_environment("tensorflow", "ray", "grpcio", "requests")
    common.start_tensorflow(common.cores())
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    ((name, spec),) = loaded.signatures[SIGNATURE].structured_input_signature[1].items()
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch, "bare", "1")
        save_bare(loaded, name, spec, bare)
        with serving({"whole": model, "bare": bare}) as ports:
            makers: dict[str, Callable[[], Ask]] = {}
            for kind, path in (("whole", model), ("bare", bare)):
                signature = tf.saved_model.load(str(path)).signatures[SIGNATURE]
                makers[f"in process, {kind}"] = functools.partial(in_process, signature, name)
                for protocol, port in ports.items():
                    makers[f"{protocol}, {kind}"] = functools.partial(
                        through, protocol, port, kind, name
                    )
            for size in sizes:
                images = draw(spec, size)
                report(size, measure(makers, images, arguments))


def save_bare(loaded: Any, name: str, spec: Any, path: Path) -> None:
    """The classifier alone, of a model with the estimator and the decision."""
    import tensorflow as tf

    module = tf.Module()
    module.loaded = loaded

    @tf.function(input_signature=[tf.TensorSpec(spec.shape, spec.dtype, name=name)])
    def classify(images: Any) -> dict[str, Any]:
        answers = loaded.signatures[SIGNATURE](**{name: images})
        return {key: answers[key] for key in ("predicted", "probs")}

    tf.saved_model.save(module, str(path), {SIGNATURE: classify})


def draw(spec: Any, size: int) -> np.ndarray:
    """Random inputs."""
    generator = np.random.default_rng(0)
    shape = (size, *(side or 32 for side in spec.shape[1:]))
    if spec.dtype.is_floating:
        return generator.normal(size=shape).astype(spec.dtype.as_numpy_dtype)
    return generator.integers(256, size=shape).astype(spec.dtype.as_numpy_dtype)


@contextlib.contextmanager
def serving(models: dict[str, Path]) -> Iterator[dict[str, int]]:
    """The Ray Serve example with these models; yields its ports by protocol."""
    ports = {}
    with contextlib.ExitStack() as stack:
        for protocol in ("rest", "grpc"):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports[protocol] = probe.getsockname()[1]
    command = [
        *(sys.executable, str(SERVER), "--max_ongoing=16"),
        *(f"--{protocol}_port={port}" for protocol, port in ports.items()),
        *(f"--model={name}={path}" for name, path in models.items()),
    ]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            if not any(line.startswith("serving ") for line in process.stdout):
                log.seek(0)
                sys.exit(f"error: expected a server, received {log.read()[-2000:]}")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield ports
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def in_process(signature: Any, name: str) -> Ask:
    import tensorflow as tf

    def ask(images: np.ndarray) -> Any:
        outputs = signature(**{name: tf.constant(images)})
        return {key: value.numpy() for key, value in outputs.items()}

    return ask


def through(protocol: str, port: int, model: str, name: str) -> Ask:
    transport = Client(f"127.0.0.1:{port}", model, protocol=protocol)._transport

    def ask(images: np.ndarray) -> Any:
        return transport.call(SIGNATURE, name, images, Deadline(60))

    return ask


def measure(
    makers: dict[str, Callable[[], Ask]], images: np.ndarray, arguments: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """By way, the figures of each round: median and p95 in ms, images a second."""
    asks = {way: [make() for _ in range(arguments.clients)] for way, make in makers.items()}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in makers}
    ways = list(makers)
    # The first round warms up.
    for turn in range(arguments.rounds + 1):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            times = [clock(asks[way][0], images) for _ in range(arguments.requests)]
            share = -(-arguments.requests // arguments.clients)

            def one_after_another(ask: Ask, share: int = share) -> None:
                for _ in range(share):
                    ask(images)

            with futures.ThreadPoolExecutor(arguments.clients) as pool:
                started = time.perf_counter()
                list(pool.map(one_after_another, asks[way]))
                seconds = time.perf_counter() - started
            if turn:
                found[way].append(
                    {
                        "median": 1000 * statistics.median(times),
                        "p95": 1000 * float(np.quantile(times, 0.95)),
                        "rate": share * arguments.clients * len(images) / seconds,
                    }
                )
    return found


def clock(ask: Ask, images: np.ndarray) -> float:
    started = time.perf_counter()
    ask(images)
    return time.perf_counter() - started


def report(size: int, found: dict[str, list[dict[str, float]]]) -> None:
    def ratio(figure: str, way: str, other: str) -> str:
        pairs = zip(found[way], found[other], strict=True)
        return f"{statistics.median(a[figure] / b[figure] for a, b in pairs):.2f}"

    rows = []
    for way, rounds in found.items():
        route, _, kind = way.partition(", ")
        middle = {figure: statistics.median(r[figure] for r in rounds) for figure in rounds[0]}
        rows.append(
            (
                way,
                f"{middle['median']:.2f}",
                f"{middle['p95']:.2f}",
                ratio("median", way, f"in process, {kind}"),
                ratio("median", way, f"{route}, bare"),
                f"{middle['rate']:.0f}",
                ratio("rate", way, f"in process, {kind}"),
                ratio("rate", way, f"{route}, bare"),
            )
        )
    header = (
        *(f"batch {size}", "median ms", "p95 ms", "x in process", "x bare"),
        *("images/s", "x in process", "x bare"),
    )
    common.print_table(header, rows)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
