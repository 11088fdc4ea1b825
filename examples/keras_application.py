"""An estimator for a network of keras.applications, found and attached by itself.

MobileNetV2 without weights (no download), briefly trained on a few thousand CIFAR-10 images: a poor
classifier on purpose. What is shown is the way from a network that someone else built to a
SavedModel that answers with an uncertainty. With `weights="imagenet"` and images of your own it is
the same.

    python examples/keras_application.py --data_dir=TFDS_DIR [--dataset=cifar10]
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import common  # First: it quiets TensorFlow.
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import btcp_tf


def build(image_shape: tuple[int, ...], classes: int) -> keras.Model:
    """MobileNetV2 behind the scaling that it expects; it takes pixels as they are, 0 to 255."""
    network = keras.applications.MobileNetV2(image_shape, alpha=0.5, weights=None, classes=classes)
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            # Made for a million images; in so few steps its averages would hardly move.
            layer.momentum = 0.9
    image = keras.Input(image_shape, dtype="uint8")
    return keras.Model(image, network(layers.Rescaling(1 / 127.5, -1)(image)))


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the example; returns the rows of its table."""
    parser = argparse.ArgumentParser(description="An estimator for a keras.applications network")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--dataset", default="cifar10", help="32 x 32 pixels in color at least")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train_images", type=int, default=6000)
    parser.add_argument("--test_images", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    output = "runs/example-keras_application"
    parser.add_argument("--output_dir", type=pathlib.Path, default=output)
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)

    # A tenth of the training images each is kept away from training: validation, calibration.
    limits = dict(max_train_images=args.train_images, max_test_images=args.test_images)
    images = common.load(args.dataset, args.data_dir, seed=args.seed, **limits)
    train, test = images.train, images.test
    classifier = build(train.images.shape[1:], len(images.class_names))
    common.train(
        classifier, train.images, train.labels, epochs=args.epochs, seed=args.seed, verbose=2
    )
    before = classifier.predict(test.images, verbose=0)

    # No layer is named: the estimator reads what the last Dense layer reads, inside the network.
    judge = btcp_tf.attach(classifier, class_names=images.class_names)
    width = judge.model.get_layer("encoder").output.shape[1]
    print(f"the estimator reads {width} features of {classifier.layers[-1].name}")
    validation, calibration = images.validation, images.calibration
    reference = (train.images, train.labels)
    # Looks would train a small network on the reference, which takes minutes.
    judge.fit(validation.images, validation.labels, reference=reference, looks=(), seed=args.seed)
    judge.select_threshold(calibration.images, calibration.labels)
    rows = common.show(judge, test.images, test.labels, images.name, args.seed)
    print(
        f"\nA network without weights, {len(train):,} images and {args.epochs} epochs: an accuracy "
        f"of {rows[0]['accuracy']:.0%} is no reproduction of anything."
    )

    answers = judge.predict(test.images)
    same = np.array_equal(answers["predicted"], before.argmax(axis=1))
    print(f"the classifier answers as before: {same}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    judge.save(args.output_dir / "judge.keras")
    again = btcp_tf.load(args.output_dir / "judge.keras").predict(test.images)
    same = all(np.array_equal(again[name], answers[name]) for name in answers)
    print(f"loaded from judge.keras it answers the same: {same}")

    sample = test.images[:8]
    path = judge.export(args.output_dir, images.name, sample)
    served = tf.saved_model.load(str(path)).signatures["serving_default"](
        images=tf.constant(sample)
    )
    off = np.abs(served["uncertainty"].numpy() - judge.predict(sample)["uncertainty"]).max()
    print(f"{path}: a SavedModel; its u differs from the judge's by at most {off:.1e}")
    return rows


if __name__ == "__main__":
    main()
