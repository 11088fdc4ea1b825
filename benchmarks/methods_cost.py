"""What all frozen methods cost together, against one run of BTCP.

    python -m benchmarks.methods_cost --data_dir=FOLDER [--dataset=fashion_mnist] [--images=0]

Run it from the checkout on an idle machine. Each round carries out whole runs in processes of their
own, from images to report: the classifier with `mcp` and `btcp`; the same with all frozen methods;
and with `mc_dropout` or `ensemble` on top, whose passes and members count separately.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import common
from btcp_tf.methods.registry import METHODS

SAMPLED = tuple(name for name, method in METHODS.items() if method.samples)


def main() -> None:
    parser = common.parser("methods_cost", __doc__)
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--images", type=int, default=0, help="training images; 0: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data_dir", default="", help="folder of prepared data sets")
    arguments = parser.parse_args()
    frozen = [name for name in METHODS if name not in SAMPLED]
    variants = {
        "mcp and btcp": ["mcp", "btcp"],
        "all frozen methods": frozen,
        **{f"all frozen methods and {name}": [*frozen, name] for name in SAMPLED},
    }
    common.print_environment("tensorflow", "keras")
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(arguments.rounds):
        for name, methods in variants.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}", end=" ", flush=True)
            seconds[name].append(run(arguments, methods))
            print(f"{seconds[name][-1]:.0f} s", flush=True)
    base = seconds["mcp and btcp"]
    common.print_table(
        ("a whole run with", "s", "times one BTCP run"),
        [
            (
                name,
                f"{statistics.median(found):.0f}",
                f"{statistics.median(a / b for a, b in zip(found, base, strict=True)):.2f}",
            )
            for name, found in seconds.items()
        ],
    )


def run(arguments: argparse.Namespace, methods: list[str]) -> float:
    """Seconds of a run with these methods, without fine-tuning."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "btcp_tf.main", "--verbose=0", "--finetune_epochs=0"),
            f"--dataset={arguments.dataset}",
            f"--preset={arguments.preset}",
            f"--max_train_images={arguments.images}",
            f"--data_dir={arguments.data_dir}",
            f"--method={','.join(methods)}",
            f"--output_dir={folder}/run",
            f"--export_dir={folder}/models",
        ]
        started = time.perf_counter()
        done = subprocess.run(command, check=False)
        if done.returncode:
            sys.exit(f"error: expected a run that ends, received status {done.returncode}")
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
