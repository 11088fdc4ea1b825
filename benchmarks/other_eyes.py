"""What a model of another kind, trained by `fit` on the reference, gains on a table and on text.

    python -m benchmarks.other_eyes bank --csv=bank_marketing.csv.gz
    python -m benchmarks.other_eyes bank --csv=bank_marketing.csv.gz --dropout=0 --epochs=20
    python -m benchmarks.other_eyes sst2 --csv=sst2.csv.gz

For each seed the rows are split at random; a small network is trained on the first part, the
estimator fitted on the second, with the first as its reference and boosted trees or a bag of tokens
as the look on offer; the rest is tested on, once. Differences as in `given_classifier`.
"""

import csv
import gzip
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import common
from benchmarks.given_classifier import Tested, differences

if TYPE_CHECKING:
    import keras

_PARTS = {"bank": (20_000, 6_000, "trees"), "sst2": (12_000, 5_000, "tokens")}
"""Rows to train on, rows to fit on, the look on offer."""

_TRAINING = {"bank": (0.3, 10), "sst2": (0.5, 4)}
"""Dropout and epochs of the network."""


def main() -> None:
    parser = common.parser("other_eyes", __doc__)
    parser.add_argument("data", choices=list(_PARTS))
    parser.add_argument("--csv", type=Path, required=True, help="the gzipped file")
    parser.add_argument("--cost", type=float, default=2.0, help="passes per row")
    parser.add_argument("--seeds", type=common.count, default=5)
    parser.add_argument("--dropout", type=float, help="of the network")
    parser.add_argument("--epochs", type=common.count, help="of the network")
    parser.add_argument("--draws", type=common.count, default=1000, help="of the bootstrap")
    parser.add_argument("--threads", type=common.count, default=common.cores())
    arguments = parser.parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        x, y = _table(arguments.csv) if arguments.data == "bank" else _text(arguments.csv)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"error: {error}")
    dropout, epochs = _TRAINING[arguments.data]
    dropout = dropout if arguments.dropout is None else arguments.dropout
    tested = []
    for seed in range(arguments.seeds):
        parts = _parts(arguments.data, len(x), seed)
        train = parts[0]
        network = _trained(
            arguments.data, x[train], y[train], dropout, arguments.epochs or epochs, seed
        )
        tested.append(_test(network, arguments.data, x, y, parts, arguments.cost, seed))
    common.print_table(common.DIFFERENCES, list(differences(tested, len(x), arguments.draws)))


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One column for each word of a column of words, numbers in units of their spread."""
    rows = _rows(path)
    columns = []
    for name in (name for name in rows[0] if name != "y"):
        values = np.array([row[name] for row in rows])
        try:
            numbers = values.astype(np.float32)
            columns.append(((numbers - numbers.mean()) / numbers.std())[:, None])
        except ValueError:
            columns.append((values[:, None] == np.unique(values)).astype(np.float32))
    return np.hstack(columns), np.array([row["y"] == "yes" for row in rows]).astype(np.int64)


def _text(path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = _rows(path)
    _, labels = np.unique([row["label"] for row in rows], return_inverse=True)
    return np.array([row["text"] for row in rows]), labels


def _network(data: str, x: np.ndarray, dropout: float) -> "keras.Model":
    import keras
    from keras import layers

    if data == "bank":
        return keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                layers.Dense(64, "relu"),
                layers.Dropout(dropout),
                layers.Dense(64, "relu"),
                layers.Dropout(dropout),
                layers.Dense(2),
            ]
        )
    words = layers.TextVectorization(10_000, output_sequence_length=40)
    words.adapt(x)
    return keras.Sequential(
        [
            keras.Input((), dtype="string"),
            words,
            layers.Embedding(10_000, 64),
            layers.Conv1D(128, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dropout(dropout),
            layers.Dense(2),
        ]
    )


def _parts(data: str, n: int, seed: int) -> list[np.ndarray]:
    """Rows to train on, to fit on and to test on."""
    trained, fitted, _ = _PARTS[data]
    order = np.random.default_rng(seed).permutation(n)
    return np.split(order, [trained, trained + fitted])


def _trained(
    data: str, x: np.ndarray, y: np.ndarray, dropout: float, epochs: int, seed: int
) -> "keras.Model":
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    network = _network(data, x, dropout)
    network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # A dataset, as Keras takes no arrays of text.
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    network.fit(rows.shuffle(len(x), seed=seed).batch(64), epochs=epochs, verbose=0)
    return network


def _test(
    network: "keras.Model",
    data: str,
    x: np.ndarray,
    y: np.ndarray,
    parts: list[np.ndarray],
    cost: float,
    seed: int,
) -> Tested:
    import btcp_tf

    train, fit, test = parts
    look = _PARTS[data][2]
    u = {}
    for name, looks in (("residual", ()), (f"residual with {look}", [look])):
        judge = btcp_tf.attach(network, example=x[train[:4]])
        reference = (x[train], y[train])
        judge.fit(x[fit], y[fit], reference=reference, looks=looks, cost=cost, seed=seed, verbose=0)
        print(f"seed {seed}, {name}: {judge.fitted['words']}", flush=True)
        answers = judge.predictions(x[test], y[test])
        u.setdefault("mcp", answers.uncertainty["mcp"])
        u[name] = answers.uncertainty[next(n for n in answers.uncertainty if n != "mcp")]
    return Tested(test, answers.is_error, u, {})


if __name__ == "__main__":
    main()
