"""Peak memory and throughput of batch scoring, for few and for many images.

    python -m benchmarks.predict_memory [--model=DIR] [--images=10,1000,100000] [--batch_size=256]

Run it from the checkout on an idle machine. Random images go through `btcp_tf.predict.score`, from
an npz file and from a folder of PNG files, into a CSV file and a Parquet file; each time in a
process of its own, that has loaded the model and answered one batch before it is measured. Without
`--model` a network of the package's Fashion-MNIST encoder with random weights is exported first.
"""

import pathlib
import shutil
import tempfile
import time
from multiprocessing.connection import Connection

import numpy as np

from benchmarks import common

SHAPE = (28, 28, 1)


def main() -> None:
    parser = common.parser("predict_memory", __doc__)
    parser.add_argument("--model", default="", help="of images 28x28x1; empty: random weights")
    parser.add_argument("--images", default="10,1000,100000", help="numbers of images")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--kinds", default="npz,folder", help="of npz, folder")
    parser.add_argument("--formats", default="csv,parquet", help="of csv, jsonl, parquet")
    arguments = parser.parse_args()
    counts = [int(word) for word in arguments.images.split(",")]
    if min(counts) < 1:
        parser.error(f"--images: expected at least 1, received {min(counts)}")

    common.print_environment("tensorflow", "numpy", "pillow", "pyarrow")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        model = pathlib.Path(arguments.model) if arguments.model else folder / "model"
        if not arguments.model:
            common.take_turns({"export": (export, (model,))}, rounds=1)
        for kind in arguments.kinds.split(","):
            for count in counts:
                source = images(folder, kind, count)
                for ending in arguments.formats.split(","):
                    output = folder / f"{kind}-{count}.{ending}"
                    job = (model, source, output, arguments.batch_size)
                    (found,) = common.take_turns({kind: (worker, job)}, rounds=1)[kind]
                    rows.append(
                        (
                            f"{kind} to {ending}",
                            f"{count:,}",
                            f"{found['loaded']:.0f}",
                            f"{found['peak'] - found['loaded']:.1f}",
                            f"{found['seconds']:.2f}",
                            f"{count / found['seconds']:,.0f}",
                        )
                    )
                if source.is_dir():
                    shutil.rmtree(source)
                else:
                    source.unlink()
    header = ("", "images", "model MiB", "peak above it MiB", "s", "images/s")
    common.print_table(header, rows)


def images(folder: pathlib.Path, kind: str, count: int) -> pathlib.Path:
    """An input of so many random images."""
    generator = np.random.default_rng(0)
    if kind == "npz":
        path = folder / f"{count}.npz"
        np.savez(path, x_test=generator.integers(256, size=(count, *SHAPE), dtype=np.uint8))
        return path
    from PIL import Image

    path = folder / f"{count}"
    for row in range(count):
        place = path / f"{row // 1000:04}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(256, size=SHAPE[:2], dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{row:07}.png", compress_level=1)
    return path


def export(connection: Connection, directory: pathlib.Path) -> None:
    """Writes a model of the right signature; see `common.take_turns`."""
    connection.recv()
    common.start_tensorflow(common.cores())
    from btcp_tf import thresholds
    from btcp_tf.networks import models
    from btcp_tf.serving import saved_model as saved_model_

    saved_model_.export(
        models.build_model("small", SHAPE, 10, feature_dim=128),
        directory.parent,
        directory.name,
        [str(number) for number in range(10)],
        np.zeros((8, *SHAPE), np.uint8),
        threshold=thresholds.DEFAULT,
    )
    connection.send({})


def worker(
    connection: Connection,
    model: pathlib.Path,
    source: pathlib.Path,
    output: pathlib.Path,
    batch_size: int,
) -> None:
    """Scores `source` once; see `common.take_turns`."""
    connection.recv()
    common.start_tensorflow(common.cores())
    from btcp_tf.serving import batch_scoring
    from btcp_tf.serving.scorer import Scorer

    batch = np.zeros((batch_size, *SHAPE), np.uint8)
    Scorer(model)({"images": batch})
    loaded, started = common.peak_mib(), time.perf_counter()
    batch_scoring.score(model, source, output, batch_size=batch_size, verbose=0)
    seconds = time.perf_counter() - started
    connection.send({"loaded": loaded, "peak": common.peak_mib(), "seconds": seconds})


if __name__ == "__main__":
    main()
