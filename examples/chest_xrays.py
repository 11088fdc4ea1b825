"""Which chest X-rays should a doctor look at again?

The paper's motive: a network says "normal" or "pneumonia", and we want to know which of its answers
not to trust. PneumoniaMNIST (MedMNIST v2, CC BY 4.0; `pneumoniamnist.npz` from
https://medmnist.com) has 4,708 training, 524 validation and 624 test X-rays of children, 28 x 28
pixels. Its test set is known to be harder than its validation set.

    python examples/chest_xrays.py --data=pneumoniamnist.npz

What is whose: three quarters of the training images train the classifier; a quarter, which it never
sees, fits the estimator (a classifier hardly errs on what it was trained on); the validation images
choose the threshold; the test images are looked at once, at the end. An image that is there twice
is taken out of the later part.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import common  # First: it quiets TensorFlow.
import keras
import numpy as np
from matplotlib.figure import Figure

import btcp_tf
from btcp_tf.evaluation import predictions
from btcp_tf.reporting import plots

Part = tuple[np.ndarray, np.ndarray]


def without(part: Part, earlier: np.ndarray, name: str) -> Part:
    """Images and labels of a part whose images are not among the earlier ones."""
    known = {image.tobytes() for image in earlier}
    new = np.array([image.tobytes() not in known for image in part[0]])
    print(f"{name}: {new.sum():,} images, {(~new).sum()} left out that stand in an earlier part")
    return part[0][new], part[1][new]


def read(path: pathlib.Path, seed: int) -> dict[str, Part]:
    """The four parts of the data; no image of a part is in another."""
    with np.load(path) as arrays:
        train, validation, test = (
            (arrays[f"x_{part}"][..., None], arrays[f"y_{part}"].reshape(-1).astype(np.int64))
            for part in ("train", "val", "test")
        )
    order = np.random.default_rng(seed).permutation(len(train[0]))
    kept, held_out = np.split(order, [3 * len(order) // 4])
    parts = {"train": (train[0][kept], train[1][kept])}
    for name, part in (
        ("held out", (train[0][held_out], train[1][held_out])),
        ("validation", validation),
        ("test", test),
    ):
        earlier = np.concatenate([images for images, _ in parts.values()])
        parts[name] = without(part, earlier, name)
    return parts


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the example; returns the rows of its table."""
    parser = argparse.ArgumentParser(description="Which chest X-rays should a doctor look at?")
    parser.add_argument("--data", type=common.existing_file, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/example-chest_xrays")
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)

    parts = read(args.data, args.seed)
    x, y = parts["train"]
    classifier = common.convolutional(x.shape[1:], 2, filters=16)
    common.train(
        classifier,
        x,
        y,
        epochs=args.epochs,
        seed=args.seed,
        validation_data=parts["validation"],
        verbose=2,
    )

    judge = btcp_tf.attach(classifier, class_names=["normal", "pneumonia"])
    # No looks: in a mirror the heart is on the other side.
    judge.fit(*parts["held out"], reference=parts["train"], looks=(), seed=args.seed)
    chosen = judge.select_threshold(*parts["validation"])

    # From here on nothing is chosen any more.
    rows = common.show(judge, *parts["test"], "chest X-rays", args.seed)
    print("\nThe threshold was chosen on validation; the test set is harder, as published.")
    for name in ("validation", "test"):
        found = judge.predictions(*parts[name])
        accept = found.uncertainty["residual"] < chosen.tau
        print(
            f"{name}: error rate {found.is_error.mean():.1%}; with u < {chosen.tau:.3f} a doctor "
            f"sees {1 - accept.mean():.1%} of the X-rays, and {found.is_error[accept].mean():.1%} "
            "of the accepted answers are wrong"
        )

    args.output_dir.mkdir(parents=True, exist_ok=True)
    figure = Figure(layout="constrained")
    ax = figure.subplots()
    plots.plot_risk_coverage(ax, found.is_error, found.uncertainty, title="chest X-rays, test")
    figure.savefig(args.output_dir / "risk_coverage.png", dpi=150)
    # `python -m btcp_tf.report` on this file draws all tables and figures.
    predictions.save_predictions(args.output_dir / "predictions.npz", found)
    print(f"\nin {args.output_dir}: risk_coverage.png, predictions.npz")
    return rows


if __name__ == "__main__":
    main()
