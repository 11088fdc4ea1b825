"""What a few hundred labels of another source make of u: PneumoniaMNIST's official test set.

    python -m benchmarks.other_source pneumoniamnist.npz

Its test images come from another distribution than those for training and validation
(MedMNIST v2, CC BY 4.0; https://medmnist.com). A small network learns from the training images,
the estimator from the validation images. Of the test images some, drawn at random, are labeled, the
others are tested on, as in `benchmarks.after_drift`: u as it is, after `Judge.recalibrate`, and
after a new `Judge.fit` on the labeled images alone. An image that stands in an earlier part is left
out of the later one.
"""

import argparse
import collections
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import common
from benchmarks.after_drift import METHODS, after_labels

if TYPE_CHECKING:
    import keras

Part = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = common.parser("other_source", __doc__)
    parser.add_argument("data", type=Path, help="pneumoniamnist.npz, or a file of the same arrays")
    parser.add_argument("--labels", type=common.count, nargs="+", default=[100, 300])
    parser.add_argument("--draws", type=common.count, default=20)
    parser.add_argument("--epochs", type=common.count, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the classifier")
    parser.add_argument("--risk", type=float, default=0.05, help="of the coverage")
    parser.add_argument("--threads", type=common.count, default=common.cores())
    arguments = parser.parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        lines = _lines(arguments)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: {error}")
    titles = ("labels", "u", "|mean u − error rate|", "AURC to MCP")
    common.print_table((*titles, f"coverage at {arguments.risk:.0%} wrong"), lines)


def _lines(arguments: argparse.Namespace) -> list[tuple[str, ...]]:
    """Of each number of labels a line for each way to use them: means ± standard deviations over
    draws."""
    import btcp_tf

    train, validation, test = _parts(arguments.data)
    classifier = _trained(train, arguments)
    settings = {"reference": train, "looks": (), "verbose": 0}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "classifier.keras", Path(folder) / "judge.keras"
        classifier.save(path)
        judge = btcp_tf.attach(path)
        judge.fit(*validation, **settings)
        judge.save(kept)
        print(judge.fitted["words"] if judge.fitted else "")
        for part, name in ((validation, "validation"), (test, "test")):
            wrong = judge.predict(part[0])["predicted"] != part[1]
            print(f"{name}: {wrong.sum()} of {len(wrong)} answers wrong", flush=True)
        for labels in arguments.labels:
            figures, kinds = [], collections.Counter()
            for draw in range(arguments.draws):
                order = np.random.default_rng(draw).permutation(len(test[1]))
                new, rows = order[:labels], order[labels:]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Of few errors, which is what this is about.
                    kind, found, _ = after_labels(
                        kept, path, _of(test, new), _of(test, rows), arguments.risk, **settings
                    )
                kinds[kind] += 1
                figures.append([(one.away, one.aurc, one.coverage) for one in found])
            print(f"{labels} labels: {dict(kinds)}", flush=True)
            lines += _cells(str(labels), np.array(figures))
    return lines


def _cells(labels: str, figures: np.ndarray) -> list[tuple[str, ...]]:
    """Lines of the table from figures `[draws, methods, 3]`."""
    lines = []
    for name, mean, sd in zip(METHODS, figures.mean(axis=0), figures.std(axis=0), strict=True):
        away, aurc, coverage = zip(mean, sd, strict=True)
        cells = [f"{away[0]:.1%} ± {away[1]:.1%}", f"{aurc[0]:+.1%} ± {aurc[1]:.1%}"]
        lines.append((labels, name, *cells, f"{coverage[0]:.1%} ± {coverage[1]:.1%}"))
    return lines


def _of(part: Part, rows: np.ndarray) -> Part:
    return part[0][rows], part[1][rows]


def _parts(path: Path) -> list[Part]:
    """Training, validation and test images with their labels; no image is in two."""
    parts, known = [], set()
    with np.load(path) as arrays:
        for name in ("train", "val", "test"):
            images, labels = arrays[f"x_{name}"], arrays[f"y_{name}"].reshape(-1)
            images = images.reshape(*images.shape[:3], -1)
            new = np.array([image.tobytes() not in known for image in images])
            known |= {image.tobytes() for image in images}
            parts.append((images[new], labels[new].astype(np.int64)))
    return parts


def _trained(train: Part, arguments: argparse.Namespace) -> "keras.Model":
    """A small network that takes pixels from 0 to 255."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(arguments.seed)
    images, labels = train
    model = keras.Sequential([keras.Input(images.shape[1:]), layers.Rescaling(1 / 255)])
    for width in (16, 32, 64):
        model.add(layers.Conv2D(width, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(64, "relu"))
    model.add(layers.Dropout(0.3))
    model.add(layers.Dense(int(labels.max()) + 1, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(images.astype(np.float32), labels, 64, arguments.epochs, verbose=0)
    return model


if __name__ == "__main__":
    main()
