"""Is the classifier unsure where people disagree?

CIFAR-10H (Peterson et al., ICCV 2019; non-commercial) holds how some fifty people labeled each of
the 10,000 CIFAR-10 test images. A u that is worth something is high on the images that people do
not agree about, though no u has seen a person. We compare MCP, the entropy of the softmax and the
residual estimator.

    python examples/human_disagreement.py --data_dir=TFDS_DIR --counts=cifar10h.npz

The counts are in the order of CIFAR-10 as published; a file of them comes from
https://github.com/jcpeterson/cifar-10h:
`numpy.savez("cifar10h.npz", counts=numpy.load("cifar10h-counts.npy"))`.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import common  # First: it quiets TensorFlow.
import keras
import numpy as np
import tensorflow_datasets as tfds
from matplotlib.figure import Figure
from scipy import stats

import btcp_tf
from btcp_tf import metrics

DRAWS = 500


def people(path: pathlib.Path, data_dir: str, labels: np.ndarray) -> np.ndarray:
    """Share of people for each class, [n, 10], in the order of the loaded test images."""
    with np.load(path) as arrays:
        counts = arrays["counts"].astype(np.float64)
    # tensorflow-datasets shuffles what it prepares; the id of an image is its published place.
    builder = tfds.builder("cifar10", data_dir=data_dir or None)
    ids = builder.as_dataset(split="test", batch_size=-1)["id"].numpy()[: len(labels)]
    counts = counts[[int(name.decode().rpartition("_")[2]) for name in ids]]
    agree = (counts.argmax(axis=1) == labels).mean()
    print(f"the label is what most people say for {agree:.2%} of {len(labels):,} test images")
    if agree < 0.98:
        sys.exit(f"error: expected counts of the same images in order, received {agree:.0%} alike")
    return counts / counts.sum(axis=1, keepdims=True)


def spearman(u: Mapping[str, np.ndarray], doubt: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Rank correlations [1 + draws, scores, kinds of doubt]: of all images, then of each draw."""
    columns = np.column_stack([*u.values(), *doubt.values()])
    random = np.random.default_rng(seed)
    n = len(columns)
    found = []
    for rows in [np.arange(n), *(random.integers(0, n, n) for _ in range(DRAWS))]:
        ranks = stats.rankdata(columns[rows], axis=0)
        found.append(np.corrcoef(ranks, rowvar=False)[: len(u), len(u) :])
    return np.array(found)


def told(values: np.ndarray) -> str:
    """The first of some values, and the interval of the others."""
    low, high = metrics.interval(values[1:])
    return f"{values[0]:+.3f} [{low:+.3f}, {high:+.3f}]"


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example; returns u and people's doubt by name."""
    parser = argparse.ArgumentParser(description="Is the classifier unsure where people disagree?")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--counts", type=common.existing_file, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--train_images", type=int, default=0, help="0: all")
    parser.add_argument("--test_images", type=int, default=0, help="0: all; else the first")
    parser.add_argument("--agree", type=float, default=0.8, help="people disagree below this share")
    parser.add_argument("--seed", type=int, default=0)
    output = "runs/example-human_disagreement"
    parser.add_argument("--output_dir", type=pathlib.Path, default=output)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)

    limits = dict(max_train_images=args.train_images, max_test_images=args.test_images)
    images = common.load("cifar10", args.data_dir, seed=args.seed, **limits)
    test = images.test
    shares = people(args.counts, args.data_dir, test.labels)

    train = images.train
    classifier = common.convolutional(train.images.shape[1:], 10, filters=32)
    common.train(
        classifier, train.images, train.labels, epochs=args.epochs, seed=args.seed, verbose=2
    )
    judge = btcp_tf.attach(classifier, class_names=images.class_names)
    # There is no threshold to choose: all that is held out fits the estimator.
    held_out = [
        np.concatenate([getattr(part, name) for part in (images.validation, images.calibration)])
        for name in ("images", "labels")
    ]
    judge.fit(*held_out, reference=(train.images, train.labels), looks=(), seed=args.seed)
    common.show(judge, test.images, test.labels, "CIFAR-10", args.seed)

    found = judge.predictions(test.images, test.labels)
    u = {
        "mcp": found.uncertainty["mcp"],
        "entropy": stats.entropy(found.probs, axis=1),
        "residual": found.uncertainty["residual"],
    }
    doubt = {
        "entropy of people": stats.entropy(shares, axis=1),
        "1 - share of the label": 1 - shares[np.arange(len(shares)), test.labels],
    }
    disagree = shares.max(axis=1) < args.agree
    table = {"auroc": metrics.METRICS["auroc"]}
    drawn = metrics.bootstrap(disagree, u, tau=0.5, draws=DRAWS, seed=args.seed, table=table)
    correlation = spearman(u, doubt, args.seed)
    print(
        f"\nSpearman's rank correlation with people's doubt, and AUROC for the {disagree.sum():,} "
        f"images of {len(disagree):,} where fewer than {args.agree:.0%} of people agree; 95 % "
        f"bootstrap intervals\n{'':<10}" + "".join(f"{name:<26}" for name in [*doubt, "AUROC"])
    )
    for row, name in enumerate(u):
        auroc = np.append(metrics.auroc(disagree, u[name]), drawn[name]["auroc"])
        cells = [told(correlation[:, row, column]) for column in range(len(doubt))] + [told(auroc)]
        print(f"{name:<10}" + "".join(f"{cell:<26}" for cell in cells))
    change = correlation[:, -1, 0] - correlation[:, 0, 0]
    print(f"residual minus mcp, entropy of people: {told(change)}")

    figure = Figure(layout="constrained")
    ax = figure.subplots()
    for (name, values), style in zip(u.items(), ("s--", "^:", "o-"), strict=True):
        tenths = np.array_split(doubt["entropy of people"][np.argsort(values, kind="stable")], 10)
        ax.plot(range(1, 11), [tenth.mean() for tenth in tenths], style, label=name)
    ax.set_xticks(range(1, 11))
    ax.set_xlabel("tenth of the test images, by u")
    ax.set_ylabel("mean entropy of people's labels")
    ax.set_ylim(0)
    ax.legend()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output_dir / "deciles.png", dpi=150)
    print(f"\nin {args.output_dir}: deciles.png")
    return {"u": u, "doubt": doubt, "spearman": correlation[0]}


if __name__ == "__main__":
    main()
