"""An estimator for a classifier of rows of numbers, and how far one split can be trusted.

Data that comes with scikit-learn: nothing to download. A small network, with the standardization of
its columns inside, gets an estimator and a threshold. With so few errors one split says next to
nothing, so all of it is done on several random splits.

    python examples/tabular.py [--dataset=digits|breast_cancer] [--splits=10]
"""

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import common  # First: it quiets TensorFlow.
import keras
import numpy as np
from keras import layers
from sklearn import datasets
from sklearn.model_selection import train_test_split

import btcp_tf

DATASETS = {
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}


def build(x: np.ndarray, classes: int) -> keras.Model:
    """A network that standardizes its columns itself, by the mean and the variance of x."""
    return keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Normalization(mean=x.mean(axis=0), variance=x.var(axis=0)),
            layers.Dense(32, "relu"),
            layers.Dense(classes, "softmax"),
        ]
    )


def quarters(y: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows in four random parts of equal size, classes in proportion."""
    halves = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    return [
        part
        for half in halves
        for part in train_test_split(half, test_size=0.5, stratify=y[half], random_state=seed)
    ]


def summary(found: Sequence[dict[str, Any]]) -> str:
    """The splits in words."""
    used = [split for split in found if split["used"]]
    verdicts = [split["verdict"] for split in used]
    differences = [100 * split["difference"] for split in found]
    return (
        f"The estimator was used in {len(used)} of {len(found)} splits (else u is MCP, "
        f"calibrated): there better {verdicts.count('better')}, worse {verdicts.count('worse')}.\n"
        f"AUROC minus MCP's: {np.mean(differences):+.2f} points, sd {np.std(differences):.2f} over "
        "all splits; their test rows overlap, so this is no interval.\n"
        f"A person sees {np.mean([split['rejected'] for split in found]):.1%}; of the rest "
        f"{np.mean([split['risk'] for split in found]):.1%} are wrong."
    )


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the example; returns what each split gave."""
    parser = argparse.ArgumentParser(description="An estimator for a classifier of rows of numbers")
    parser.add_argument("--dataset", choices=DATASETS, default="digits")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args(arguments)
    # That few errors teach little is what this example is about; it is said once, at the end.
    warnings.filterwarnings("ignore", "the classifier is wrong on ", UserWarning)

    x, y = DATASETS[args.dataset](return_X_y=True)
    x = x.astype(np.float32)
    print(f"{args.dataset}: {len(x):,} rows of {x.shape[1]} numbers, {y.max() + 1} classes")
    print("split  errors     AUROC mcp  minus MCP  to a person  errors left  estimator")
    found = []
    for seed in range(args.splits):
        keras.utils.set_random_seed(seed)
        # A quarter each: rows that trained the classifier cannot fit the estimator, those that fit
        # it cannot choose the threshold, and on the test rows nothing is chosen.
        train, held_out, calibration, test = quarters(y, seed)
        classifier = build(x[train], int(y.max()) + 1)
        common.train(
            classifier, x[train], y[train], epochs=args.epochs, batch_size=32, seed=seed, verbose=0
        )

        judge = btcp_tf.attach(classifier)
        # Without looks: boosted trees, say, would take longer than all the rest.
        judge.fit(
            x[held_out],
            y[held_out],
            reference=(x[train], y[train]),
            looks=(),
            seed=seed,
            verbose=0,
        )
        judge.select_threshold(x[calibration], y[calibration])
        mcp, residual = judge.evaluate(x[test], y[test], seed=seed)
        answers = judge.predict(x[test])
        accept = answers["accept"]
        split = {
            "errors": residual["errors"],
            "auroc_mcp": mcp["auroc"],
            "difference": residual["auroc_minus_mcp"],
            "verdict": residual["verdict"],
            "rejected": 1 - accept.mean(),
            "risk": (answers["predicted"] != y[test])[accept].mean(),
            "used": bool(judge.fitted["evidence"]),
        }
        found.append(split)
        print(
            f"{seed:>5}  {split['errors']:>3} of {len(test)}  {100 * split['auroc_mcp']:>9.2f}"
            f"  {100 * split['difference']:>+9.2f}  {split['rejected']:>11.1%}"
            f"  {split['risk']:>11.1%}  {'used' if split['used'] else 'MCP'}",
            flush=True,
        )
    print(summary(found))
    return found


if __name__ == "__main__":
    main()
