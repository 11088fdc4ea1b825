"""What the examples share: a quiet start, data or one line of error, a network, a table."""

import argparse
import os
import pathlib
import sys
from typing import Any

# Read by TensorFlow when it is imported: no chatter, and the quick kernels of a CPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from btcp_tf.data import datasets
from btcp_tf.data.splits import Dataset
from btcp_tf.judge import Judge
from btcp_tf.reporting import terminal


def existing_file(path: str) -> pathlib.Path:
    """A type of argparse: the path of a file that is there."""
    found = pathlib.Path(path).expanduser()
    if not found.is_file():
        raise argparse.ArgumentTypeError(f"expected a file, received {path}, which is not there")
    return found


def load(name: str, data_dir: str, **settings: Any) -> Dataset:
    """`btcp_tf.data.load`; what is not there ends the program with one line."""
    try:
        dataset = datasets.load(name, data_dir, **settings)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(dataset.note or f"{name}: the whole data set")
    return dataset


def convolutional(image_shape: tuple[int, ...], classes: int, filters: int) -> keras.Model:
    """A small network, in the place of your own; it takes pixels as they are, 0 to 255."""
    model = keras.Sequential([keras.Input(image_shape, dtype="uint8"), layers.Rescaling(1 / 255)])
    for width in (filters, 2 * filters, 4 * filters):
        model.add(layers.Conv2D(width, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    for layer in (layers.Flatten(), layers.Dense(4 * filters, "relu"), layers.Dropout(0.3)):
        model.add(layer)
    model.add(layers.Dense(classes, "softmax"))
    return model


def train(
    classifier: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int,
    batch_size: int = 64,
    seed: int = 0,
    **settings: Any,
) -> None:
    """Trains a classifier as one usually does; `settings` are those of Keras' `fit`."""
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=seed)
    options = tf.data.Options()
    # Its search for better settings can hold `fit` up for seconds at the end of every epoch.
    options.autotune.enabled = False
    batches = batches.batch(batch_size).with_options(options)
    classifier.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    # The batches are shuffled already; asked to do it, Keras warns that it does not.
    classifier.fit(batches, epochs=epochs, shuffle=False, **settings)


def show(judge: Judge, x: np.ndarray, y: np.ndarray, what: str, seed: int) -> list[dict[str, Any]]:
    """Evaluates on test data and prints MCP beside the estimator; returns the rows."""
    rows = judge.evaluate(x, y, seed=seed)
    print(
        "\n" + terminal.terminal_table([row | {"dataset": what, "split": "test"} for row in rows])
    )
    if judge.fitted["evidence"]:
        row = rows[-1]
        ends = (100 * row[f"auroc_minus_mcp{end}"] for end in ("", "_low", "_high"))
        words = "AUROC minus MCP's: {:+.2f} [{:+.2f}, {:+.2f}] points, {}"
        print(words.format(*ends, row["verdict"]))
    else:
        print("The estimator is MCP here, calibrated.")
    return rows
