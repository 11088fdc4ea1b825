"""Which labels are wrong: precision at k of `btcp_tf.label_errors`, next to cleanlab.

    python -m benchmarks.label_errors CLASSIFIER.keras --data_dir=DIR --counts=cifar10h.npz
        [--cleanlab=VENV/bin/python]

The labels of the CIFAR-10 test set are drawn anew: each as what a single person said of the image
(`counts` [10000, 10] of CIFAR-10H), and beside that, for comparison only, with as many errors that
are spread evenly over images and classes. A label is wrong if it is not the official one. Two kinds
of answers find them: those of a classifier that was trained on other images, and of a linear model
on its features, trained on the drawn labels in five folds. cleanlab's `find_label_issues` gets the
same probabilities, in an environment of its own (`pip install cleanlab`).
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks import common
from btcp_tf import label_errors

AT = (50, 100, 200, 500)

SCORES = ("self_confidence", "normalized_margin")
"""What cleanlab ranks by."""

CLEANLAB = f"""
import sys
import numpy as np
from cleanlab.filter import find_label_issues
with np.load(sys.argv[1]) as given:
    labels, probs = given["labels"], given["probs"]
found = dict()
for score in {SCORES}:
    found[score] = find_label_issues(labels, probs, return_indices_ranked_by=score, n_jobs=1)
np.savez(sys.argv[2], **found)
"""


def main() -> None:
    parser = common.parser("label_errors", __doc__)
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--counts", type=Path, required=True, help="npz with counts [10000, 10]")
    parser.add_argument("--cleanlab", default="", help="a Python that has cleanlab")
    parser.add_argument("--seeds", type=common.count, default=10, help="draws of the labels")
    parser.add_argument("--answers", type=Path, help="file that keeps the classifier's answers")
    arguments = parser.parse_args()
    if arguments.answers is None or not arguments.answers.exists():
        answers = classify(arguments.classifier, arguments.data_dir)
        if arguments.answers is not None:
            np.savez(arguments.answers, **answers)
    else:
        with np.load(arguments.answers) as kept:
            answers = dict(kept)
    common.print_environment("numpy", "scikit-learn")
    with np.load(arguments.counts) as kept:
        said = kept["counts"] / kept["counts"].sum(axis=1, keepdims=True)
    true = answers["labels"]
    error_rate = 1 - said[np.arange(len(true)), true].mean()
    for kind in ("a single person", "uniform"):
        found: dict[str, list[list[float]]] = {}
        for seed in range(arguments.seeds):
            rng = np.random.default_rng(seed)
            labels = drawn(said, rng) if kind != "uniform" else spread(true, error_rate, rng)
            wrong = labels != true
            for name, ranked, expected in rankings(answers, labels, arguments.cleanlab):
                row = [*precision(ranked, wrong), expected, wrong.sum(), len(ranked)]
                found.setdefault(name, []).append(row)
        print(f"\nLabels: {kind}; means over {arguments.seeds} draws")
        common.print_table(
            ("answers, method", *(f"at {k}" for k in AT), "expected", "wrong", "ranked"),
            [
                (
                    name,
                    *(f"{x:.1%}" for x in mean[: len(AT)]),
                    *(f"{x:.0f}" if x == x else "-" for x in mean[-3:]),
                )
                for name, mean in ((name, np.mean(rows, axis=0)) for name, rows in found.items())
            ],
        )


def classify(classifier: Path, data_dir: str) -> dict[str, np.ndarray]:
    """Labels, features and probabilities, also of the mirrored images, of the test set."""
    common.start_tensorflow(common.cores())
    import keras

    from btcp_tf.data import datasets

    test = datasets.load("cifar10", data_dir).test
    model = keras.models.load_model(classifier)
    both = keras.Model(model.inputs, [model.layers[-2].output, model.output])
    features, logits = both.predict(test.images.astype(np.float32), batch_size=256, verbose=0)
    mirrored = np.ascontiguousarray(test.images[:, :, ::-1]).astype(np.float32)
    return {
        "labels": test.labels,
        "features": features,
        "probs": special.softmax(logits.astype(np.float64), axis=1),
        "mirrored": special.softmax(
            model.predict(mirrored, batch_size=256, verbose=0).astype(np.float64), axis=1
        ),
    }


def drawn(said: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A label of each image, as one person gave it, `[n]`."""
    return (rng.random((len(said), 1)) > np.cumsum(said, axis=1)[:, :-1]).sum(axis=1)


def spread(true: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """The true classes, each with this probability another one, `[n]`."""
    others = (true + rng.integers(1, 10, len(true))) % 10
    return np.where(rng.random(len(true)) < rate, others, true)


def rankings(
    answers: Mapping[str, np.ndarray], labels: np.ndarray, cleanlab: str
) -> Iterator[tuple[str, np.ndarray, float]]:
    """Name, rows from the most probably wrong label on, and how many should be wrong (NaN: the
    method does not say)."""
    both = [answers["probs"], answers["mirrored"]]
    kinds = {
        "classifier": both[:1],
        "classifier, mirrored too": both,
        "five folds": [five_folds(answers["features"], labels)],
    }
    for name, probs in kinds.items():
        found = label_errors(probs[0], labels, looks=probs[1:], out_of_fold=True)
        yield f"{name}: label_errors", found.order, found.expected
        mean = np.mean(probs, axis=0)
        own = mean[np.arange(len(labels)), labels]
        yield f"{name}: 1 - p(label)", np.argsort(own, kind="stable"), float((1 - own).sum())
        if cleanlab:
            for score, ranked in issues(cleanlab, mean, labels).items():
                yield f"{name}: cleanlab, {score}", ranked, np.nan


def five_folds(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities of a linear model that was trained on the other folds, `[n, 10]`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-3, max_iter=100))
    return cross_val_predict(model, features, labels, cv=5, method="predict_proba")


def issues(python: str, probs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows that cleanlab takes for label errors, by the score that ranks them."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "given.npz", Path(folder) / "found.npz"
        np.savez(given, probs=probs, labels=labels)
        subprocess.run([python, "-c", CLEANLAB, str(given), str(found)], check=True)
        with np.load(found) as ranked:
            return dict(ranked)


def precision(ranked: np.ndarray, wrong: np.ndarray) -> list[float]:
    """Share of wrong labels among the first k; where fewer are ranked, those missing count as
    right."""
    return [float(wrong[ranked[:k]].sum() / k) for k in AT]


if __name__ == "__main__":
    sys.exit(main())
