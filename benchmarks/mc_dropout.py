"""MC dropout that repeats only what comes after the first dropout, against whole passes.

    python -m benchmarks.mc_dropout [--encoders=small,svhn,vgg16] [--images=256] [--passes=50]

Run it from the checkout on an idle machine. Both answer the same random images with the same masks
in one process, in turns: the graph of `training.sample_dropout`, and a loop over whole passes.
Their mean probabilities must agree, or no figures are printed. How much is saved depends on where
the first dropout is: behind all convolutions (small, vgg16), or behind the first block (svhn).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import common

SHAPES = {"small": (28, 28, 1), "svhn": (32, 32, 3), "vgg16": (32, 32, 3)}

TOLERANCE = 1e-4
"""Largest difference of the probabilities: rounding alone."""


def main() -> None:
    parser = common.parser("mc_dropout", __doc__)
    parser.add_argument("--encoders", default=",".join(SHAPES))
    parser.add_argument("--images", type=common.count, default=256)
    parser.add_argument("--passes", type=common.count, default=50)
    parser.add_argument("--rounds", type=common.count, default=5, help="rounds that count")
    parser.add_argument("--threads", type=common.count, default=common.cores())
    arguments = parser.parse_args()
    common.print_environment("tensorflow", "keras")
    common.start_tensorflow(arguments.threads)
    print(
        f"{arguments.images} random images, {arguments.passes} passes, {arguments.threads} "
        f"threads; medians of {arguments.rounds} rounds after one to warm up"
    )
    lines = []
    for encoder in arguments.encoders.split(","):
        whole, cut = measure(encoder, arguments)
        ratios = [a / b for a, b in zip(whole, cut, strict=True)]
        seconds = [f"{statistics.median(times):.2f}" for times in (whole, cut)]
        lines.append((encoder, *seconds, common.range_text(ratios)))
    common.print_table(("encoder", "whole passes s", "cut s", "times as fast"), lines)


def measure(encoder: str, arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Seconds of each round: whole passes, and `sample_dropout`."""
    import keras
    import tensorflow as tf

    from btcp_tf.networks.models import build_model
    from btcp_tf.training.inference import dropout_mean

    keras.utils.set_random_seed(0)
    shape = SHAPES[encoder]
    network = build_model(encoder, shape, 10, feature_dim=128)
    numbers = np.random.default_rng(0).integers(0, 256, (arguments.images, *shape), np.uint8)
    images = tf.constant(numbers)
    competitors = (
        whole_passes(network, arguments.passes),
        dropout_mean(network, arguments.passes, 0),
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(1 + arguments.rounds):
        answers = {}
        # Who goes first changes.
        for place in ((0, 1), (1, 0))[turn % 2]:
            started = time.perf_counter()
            answers[place] = competitors[place](images).numpy()
            if turn:
                seconds[place].append(time.perf_counter() - started)
        difference = np.abs(answers[0] - answers[1]).max()
        if difference > TOLERANCE:
            sys.exit(f"error: {encoder}: expected equal answers, received {difference} apart")
    return seconds


def whole_passes(network: Any, passes: int) -> Callable[[Any], Any]:
    """Images → mean probabilities of passes from the images on, with the masks of seed 0."""
    import tensorflow as tf

    from btcp_tf.networks.dropout_passes import dropout_models

    before, after = dropout_models(network, 0)
    one_pass = tf.function(lambda images: after(before(images)), jit_compile=False)
    return lambda images: tf.add_n([one_pass(images) for _ in range(passes)]) / passes


if __name__ == "__main__":
    main()
