"""Scores a folder of images, or an npz or npy file, with several processes or machines.

    pip install ".[ray]"
    python examples/batch_scoring_ray.py --model=saved_models/digits --input=photos \\
        --output=scores.parquet --workers=2

Ray Data hands batches to workers, each of which holds the model: `btcp_tf.predict.Scorer` is such
an actor as it stands. Without further settings Ray runs on this machine; with `--address=auto` on
the cluster that it is part of, whose machines all need the files under the same paths. The scores
are those of `python -m btcp_tf.predict`, in the order of the inputs, up to the rounding of batches
that are cut elsewhere. Unlike that command, this one begins anew when it is killed; the file still
appears whole or not at all.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import ray

from btcp_tf.decisions import exported
from btcp_tf.serving import records
from btcp_tf.serving.inputs import open_inputs
from btcp_tf.serving.scorer import Scorer


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="a SavedModel, or the folder of its versions"
    )
    parser.add_argument("--input", required=True, help="a folder, an npz or an npy file")
    parser.add_argument("--output", required=True, help="a .csv, .jsonl or .parquet file")
    parser.add_argument("--workers", type=int, default=2, help="processes that hold the model")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--address", default=None, help="of a Ray cluster; default: this machine")
    arguments = parser.parse_args(argv)
    for name in ("workers", "batch_size"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}: expected at least 1, received {getattr(arguments, name)}")
    try:
        # The version directory: a version that appears meanwhile must not answer for some rows.
        model = exported.newest(arguments.model).resolve()
        output = pathlib.Path(arguments.output)
        # A processor for each worker and one for those who read: without it all would wait.
        needed = arguments.workers + 1
        local = {"num_cpus": max(needed, os.cpu_count() or 1), "include_dashboard": False}
        ray.init(
            address=arguments.address,
            log_to_driver=False,
            **({} if arguments.address else local),
        )
        if (found := ray.cluster_resources().get("CPU", 0)) < needed:
            raise ValueError(
                f"workers: expected fewer than the {found:g} CPUs of the cluster, received "
                f"{arguments.workers}"
            )
        # Else the blocks come as they get ready.
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        answers = inputs(arguments.input, arguments.batch_size).map_batches(
            Scorer,
            fn_constructor_args=(os.fspath(model),),
            batch_size=arguments.batch_size,
            compute=ray.data.ActorPoolStrategy(size=arguments.workers),
        )
        count = 0

        def counted() -> Iterator[dict[str, np.ndarray]]:
            nonlocal count
            for batch in answers.iter_batches(batch_size=arguments.batch_size):
                count += len(batch["input"])
                yield batch

        records.write(output, counted())
    except (OSError, ValueError, ray.exceptions.RayError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    print(f"{output}: {count:,} inputs")


def inputs(path: str, batch_size: int) -> "ray.data.Dataset":
    """The inputs as a data set of Ray: names and files, or names and rows of an array.

    Only names and numbers go through this process; workers read what these stand for.
    """
    found = open_inputs(path)
    place = os.path.abspath(path)
    if found.dtype is None:
        names = [
            {"input": name, "files": os.path.abspath(file)}
            for batch in found.batches(0, 2**16)
            for name, file in zip(batch["input"], batch["files"], strict=True)
        ]
        return ray.data.from_items(names)

    def read(rows: dict[str, np.ndarray]) -> dict[str, Any]:
        # Rows of one block follow one another. A compressed array is read from its start.
        first, count = int(rows["id"][0]), len(rows["id"])
        return next(open_inputs(place, key=found.key).batches(first, count))

    return ray.data.range(found.count).map_batches(read, batch_size=batch_size)


if __name__ == "__main__":
    main()
