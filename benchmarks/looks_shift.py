"""Whether u with looks, fitted on clean images, still ranks errors better than MCP on corrupted
ones.

    python -m benchmarks.looks_shift CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR --skip=2000

Fifteen kinds of corruption after Hendrycks and Dietterich (2019), in simple forms of their own,
each at two strengths; the images, and the estimator, are the same for all of them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from benchmarks import common

if TYPE_CHECKING:
    from btcp_tf.judge import Judge

Corruption = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]
"""(images `[n, h, w, c]` from 0 to 1, strength, random numbers) → images that may leave 0 to 1."""

Line = tuple[tuple[str, ...], float, float]
"""Cells of a table, gain in AUROC in points, relative difference in AURC."""


def _gaussian_noise(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return x + strength * random.normal(size=x.shape)


def _shot_noise(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return random.poisson(x / strength) * strength


def _impulse_noise(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return np.where(random.random(x.shape) < strength, random.random(x.shape) < 0.5, x)


def _convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return ndimage.convolve(x, (kernel / kernel.sum())[None, :, :, None], mode="nearest")


def _gaussian_blur(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return ndimage.gaussian_filter(x, (0, strength, strength, 0), mode="nearest")


def _defocus_blur(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    side = np.arange(-4, 5)
    distance = np.hypot(side[:, None], side[None, :])
    return _convolved(x, np.clip(strength + 0.5 - distance, 0.0, 1.0))


def _motion_blur(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return _convolved(x, np.eye(int(strength)))


def _glass_blur(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    n, height, width, _ = x.shape
    places = []
    for axis, side in enumerate((height, width)):
        steps = np.rint(strength * random.normal(size=(n, height, width))).astype(int)
        own = np.arange(side).reshape(-1, 1) if axis == 0 else np.arange(side)
        places.append(np.clip(own + steps, 0, side - 1))
    moved = x[np.arange(n)[:, None, None], places[0], places[1]]
    return _gaussian_blur(moved, 0.4, random)


def _zoom_blur(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    zooms = np.linspace(1.0, strength, 5)
    return np.mean([_zoomed(x, zoom) for zoom in zooms], axis=0)


def _zoomed(x: np.ndarray, zoom: float) -> np.ndarray:
    middle = (np.array(x.shape[1:3]) - 1) / 2
    scale = np.array([1.0, 1 / zoom, 1 / zoom, 1.0])
    offset = np.array([0.0, *(middle * (1 - 1 / zoom)), 0.0])
    return ndimage.affine_transform(x, scale, offset, order=1, mode="nearest")


def _smooth(x: np.ndarray, scale: float, random: np.random.Generator) -> np.ndarray:
    """Smooth random patterns `[n, h, w, 1]` of mean 0 and standard deviation 1 each."""
    noise = random.normal(size=(*x.shape[:3], 1))
    pattern = ndimage.gaussian_filter(noise, (0, scale, scale, 0), mode="wrap")
    return (pattern - pattern.mean((1, 2), keepdims=True)) / pattern.std((1, 2), keepdims=True)


def _fog(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    thick = np.clip(strength * (1 + 0.3 * _smooth(x, 6.0, random)), 0.0, 0.95)
    return (1 - thick) * x + thick * 0.9


def _snow(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    flakes = (random.random((*x.shape[:3], 1)) < strength).astype(float)
    falling = np.minimum(3 * _convolved(flakes, np.eye(3)), 1.0)
    return np.maximum(0.85 * x + 0.1, falling)


def _frost(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    ice = np.clip(_smooth(x, 1.5, random), 0.0, 1.0)
    return (1 - 0.3 * strength) * x + strength * ice * np.array([0.75, 0.85, 0.95])[: x.shape[3]]


def _brightness(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    return x + strength


def _contrast(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    mean = x.mean((1, 2), keepdims=True)
    return mean + strength * (x - mean)


def _elastic(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]].astype(float)
    moves = strength * np.concatenate([_smooth(x, 3.0, random) for _ in range(2)], axis=3)
    moved = np.empty_like(x)
    for number, image in enumerate(x):
        places = [rows + moves[number, ..., 0], columns + moves[number, ..., 1]]
        for channel in range(x.shape[3]):
            moved[number, ..., channel] = ndimage.map_coordinates(
                image[..., channel], places, order=1, mode="nearest"
            )
    return moved


def _pixelate(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    step = int(strength)
    small = ndimage.uniform_filter(x, (1, step, step, 1), mode="nearest")[:, ::step, ::step]
    return small.repeat(step, axis=1).repeat(step, axis=2)[:, : x.shape[1], : x.shape[2]]


def _jpeg(x: np.ndarray, strength: float, random: np.random.Generator) -> np.ndarray:
    import tensorflow as tf

    pixels = tf.constant(np.rint(255 * np.clip(x, 0, 1)).astype(np.uint8))
    return np.stack([tf.image.adjust_jpeg_quality(one, int(strength)) for one in pixels]) / 255


CORRUPTIONS: dict[str, tuple[Corruption, tuple[float, float]]] = {
    "Gaussian noise": (_gaussian_noise, (0.04, 0.08)),
    "shot noise": (_shot_noise, (1 / 200, 1 / 60)),
    "impulse noise": (_impulse_noise, (0.01, 0.04)),
    "Gaussian blur": (_gaussian_blur, (0.6, 1.0)),
    "defocus blur": (_defocus_blur, (1.0, 1.8)),
    "motion blur": (_motion_blur, (3, 5)),
    "glass blur": (_glass_blur, (0.4, 0.7)),
    "zoom blur": (_zoom_blur, (1.1, 1.25)),
    "fog": (_fog, (0.3, 0.6)),
    "snow": (_snow, (0.02, 0.06)),
    "frost": (_frost, (0.3, 0.6)),
    "brightness": (_brightness, (0.1, 0.25)),
    "contrast": (_contrast, (0.6, 0.35)),
    "elastic": (_elastic, (0.6, 1.2)),
    "pixelate and JPEG": (lambda x, s, r: _jpeg(_pixelate(x, 2, r), s, r), (80, 30)),
}
"""By name: what it does, and its two strengths."""


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark of a classifier on corrupted images."""
    parser = common.parser(name, description)
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--dataset", required=True, help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--looks", default="mirror", help="names with commas between, or auto")
    parser.add_argument("--cost", type=float, default=1.3, help="passes per image")
    parser.add_argument("--skip", type=int, default=0, help="first test images that are left out")
    parser.add_argument("--fit", type=common.count, default=3000)
    parser.add_argument("--test", type=common.count, default=2000, help="images of each corruption")
    parser.add_argument("--threads", type=common.count, default=common.cores())
    return parser


def main() -> None:
    arguments = parser_of("looks_shift", __doc__).parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        lines = list(_lines(arguments))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    titles = ("", "right", "AUROC of MCP", "AUROC", "AURC of MCP x 1000", "AURC", "looked at")
    common.print_table(titles, [line for line, _, _ in lines])
    gains = np.array([(auroc, aurc) for _, auroc, aurc in lines[1:]])
    print(
        f"\n{len(gains)} corruptions: AUROC {gains[:, 0].mean():+.2f} on the mean; AURC "
        f"{gains[:, 1].mean():+.1%} on the mean, {gains[:, 1].min():+.1%} to "
        f"{gains[:, 1].max():+.1%}"
    )


def _lines(arguments: argparse.Namespace) -> Iterator[Line]:
    """Of the clean images, then of each corruption."""
    import btcp_tf
    from btcp_tf.data import datasets

    test = datasets.load(arguments.dataset, arguments.data_dir).test
    order = arguments.skip + np.random.default_rng(0).permutation(len(test.labels) - arguments.skip)
    fit, rows, _ = np.split(order, np.cumsum([arguments.fit, arguments.test]))
    looks = arguments.looks if arguments.looks == "auto" else arguments.looks.split(",")
    judge = btcp_tf.attach(arguments.classifier)
    judge.fit(test.images[fit], test.labels[fit], looks=looks, cost=arguments.cost, verbose=0)
    print(judge.fitted["words"] if judge.fitted else "", flush=True)
    images, labels = test.images[rows], test.labels[rows]
    yield _line("clean", judge, images, labels)
    for name, (corrupt, strengths) in CORRUPTIONS.items():
        for strength in strengths:
            # The same random numbers for both strengths.
            changed = corrupt(images / 255, strength, np.random.default_rng(0))
            pixels = np.rint(255 * np.clip(changed, 0, 1)).astype(images.dtype)
            yield _line(f"{name} {strength:.3g}", judge, pixels, labels)


def _line(name: str, judge: "Judge", images: np.ndarray, labels: np.ndarray) -> Line:
    mcp, own = judge.evaluate(images, labels, draws=2)
    auroc, aurc = 100 * (own["auroc"] - mcp["auroc"]), own["aurc"] / mcp["aurc"] - 1
    looked_at = own.get("looked_at", 0) / len(labels)
    cells = (
        name,
        f"{mcp['accuracy']:.1%}",
        f"{100 * mcp['auroc']:.2f}",
        f"{auroc:+.2f}",
        f"{1000 * mcp['aurc']:.1f}",
        f"{aurc:+.1%}",
        f"{looked_at:.0%}",
    )
    print(*cells, sep="  ", flush=True)
    return cells, auroc, aurc


if __name__ == "__main__":
    main()
