"""How well the accuracy of a batch is told without its labels, where the inputs change.

    python -m benchmarks.unlabeled_accuracy [--splits=10] [--classifier=mlp|linear]

scikit-learn's digits, in random parts: a small classifier learns from 300, its estimator (the
`residual` of `fit_scores`) from 500, 400 are the calibration rows, and the last 597 are the batch:
as they are, with noise, blur, a shift by a pixel, less contrast, rotated, or of some classes alone.
Its error rate is told from

- the mean of u, MCP's and the estimator's;
- `expected_errors`: the mean of u calibrated on the calibration rows, with a 95 % interval, and how
  often that holds the true rate;
- ATC, the share of the batch with less confidence than a limit that as many calibration rows are
  below as are wrong (Garg et al., Leveraging Unlabeled Data to Predict Out-of-Distribution
  Performance, 2022);
- DoC, the calibration rows' error rate plus the loss of mean confidence (Guillory et al.,
  Predicting with Confidence on Unseen Distributions, 2021);
- the calibration rows' own error rate, which looks at no input.

Figures are mean absolute errors in points of the error rate, over all splits, and in brackets the
mean errors: below 0, fewer wrong answers were expected than there are.
"""

import warnings
from collections.abc import Iterator

import numpy as np
from scipy import ndimage

from benchmarks import common
from btcp_tf.decisions.expected_errors import expected_errors
from btcp_tf.scores_fit import fit_scores

SIZES = (300, 500, 400)

COLUMNS = (
    "batch",
    "error rate",
    "mean u, MCP",
    "expected, MCP",
    "mean u, residual",
    "expected, residual",
    "ATC",
    "DoC",
    "calibration rate",
    "held, MCP",
    "held, residual",
)


def main() -> None:
    parser = common.parser("unlabeled_accuracy", __doc__)
    parser.add_argument("--splits", type=common.count, default=10)
    parser.add_argument("--classifier", choices=("mlp", "linear"), default="mlp")
    arguments = parser.parse_args()
    common.print_environment("numpy", "scipy", "scikit-learn")
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(arguments.splits):
        for name, figures in split_figures(seed, arguments.classifier):
            found.setdefault(name, []).append(figures)
    common.print_table(COLUMNS, [line(name, np.array(rows)) for name, rows in found.items()])


def line(name: str, rows: np.ndarray) -> tuple[str, ...]:
    """A line of the table from a batch's figures, [splits, 10]."""
    mean = rows.mean(axis=0)
    off = zip(100 * np.abs(rows[:, 1:8]).mean(axis=0), 100 * mean[1:8], strict=True)
    errors = [f"{size:.1f} ({signed:+.1f})" for size, signed in off]
    return name, f"{100 * mean[0]:.1f}", *errors, *(f"{value:.0%}" for value in mean[8:])


def split_figures(seed: int, kind: str) -> Iterator[tuple[str, np.ndarray]]:
    """Of each batch its error rate, the errors of all estimates, and what was held."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    random = np.random.default_rng(seed)
    train, held_out, calibration, rest = np.split(random.permutation(len(labels)), np.cumsum(SIZES))
    model = classifier(kind, seed).fit(images[train].reshape(-1, 64), labels[train])

    def answers(batch: np.ndarray) -> np.ndarray:
        return model.predict_log_proba(batch.reshape(-1, 64))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of few errors.
        estimator = fit_scores(answers(images[held_out]), labels[held_out], verbose=0)

    def scores(batch: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors, MCP's u and the estimator's, [n] each."""
        logits = answers(batch)
        u = 1.0 - np.exp(logits.max(axis=1))
        return logits.argmax(axis=1) != true, u.clip(0, 1), estimator.predict(logits)["uncertainty"]

    known = scores(images[calibration], labels[calibration])
    for name, batch, true in batches(images[rest], labels[rest], random):
        yield name, figures(known, scores(batch, true))


def classifier(kind: str, seed: int):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if kind == "linear":
        return LogisticRegression(C=10, max_iter=500)
    return MLPClassifier((32,), max_iter=1000, random_state=seed)


def batches(
    images: np.ndarray, labels: np.ndarray, random: np.random.Generator
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The batch as it is and changed."""
    yield "as calibrated", images, labels
    for sd in (0.1, 0.2, 0.3):
        yield f"noise {sd:g}", images + random.normal(0, sd, images.shape), labels
    for sigma in (0.5, 0.8):
        yield f"blur {sigma:g}", ndimage.gaussian_filter(images, (0, sigma, sigma)), labels
    yield "shift by 1", np.roll(images, 1, axis=2), labels
    yield "half the contrast", images / 2 + 0.25, labels
    for degrees in (10, 20):
        turned = ndimage.rotate(images, degrees, axes=(1, 2), reshape=False, order=1)
        yield f"rotated {degrees}°", turned, labels
    few = np.isin(labels, (1, 8, 9))
    yield "classes 1, 8 and 9", images[few], labels[few]


def figures(known: tuple[np.ndarray, ...], now: tuple[np.ndarray, ...]) -> np.ndarray:
    """True error rate, errors in the order of `COLUMNS`, and whether intervals held."""
    (known_error, *known_u), (is_error, *now_u) = known, now
    rate, known_rate = is_error.mean(), known_error.mean()
    estimates, held = [], []
    for before, u in zip(known_u, now_u, strict=True):
        expected = expected_errors(u, (known_error, before))
        estimates += [u.mean(), expected.rate]
        held.append(expected.low <= rate <= expected.high)
    before, u = known_u[0], now_u[0]
    limit = np.quantile(before, 1 - known_rate, method="higher")
    estimates += [np.mean(u > limit), known_rate + u.mean() - before.mean(), known_rate]
    return np.array([rate, *np.array(estimates) - rate, *held])


if __name__ == "__main__":
    main()
