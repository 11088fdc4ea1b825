"""A tiny SavedModel with the signatures and files of an exported one, for tests."""

import json
import pathlib

import numpy as np
import tensorflow as tf


def save(
    directory,
    *,
    shape=(8, 8, 1),
    dtype="uint8",
    class_names=("cat", "dog", "owl"),
    tau=0.55,
    seed=0,
):
    """Writes a linear softmax classifier whose u is 1 - the largest probability.

    Returns:
      `directory`, and the answers in NumPy as a function of images: probs, u.
    """
    directory = pathlib.Path(directory)
    size, classes = int(np.prod(shape)), len(class_names)
    weights = np.random.default_rng(seed).normal(0, 0.5, (size, classes)).astype(np.float32)
    scale = np.float32(1 / 255 if dtype == "uint8" else 1)
    module = tf.Module()
    module.weights = tf.Variable(weights)
    module.names = tf.constant(list(class_names))
    about = {
        "class_names": list(class_names),
        "image_shape": list(shape),
        "threshold": {"tau": tau, "coverage": 0.5, "rule": "given", "n": 100, "target": None},
        "uncertainty": {"method": "mcp", "stage": "frozen"},
    }

    @tf.function(input_signature=[tf.TensorSpec((None, *shape), dtype, name="images")])
    def serving_default(images):
        flat = tf.reshape(tf.cast(images, tf.float32) * scale, (-1, size))
        probs = tf.nn.softmax(flat @ module.weights)
        u = 1 - tf.reduce_max(probs, axis=-1)
        predicted = tf.argmax(probs, axis=-1, output_type=tf.int64)
        limit = tf.constant(-1.0 if tau is None else tau, tf.float64)
        return {
            "predicted": predicted,
            "class_name": tf.gather(module.names, predicted),
            "probs": probs,
            "uncertainty": u,
            "accept": tf.cast(u, tf.float64) < limit,
        }

    @tf.function(input_signature=[])
    def describe():
        return {"json": tf.constant(json.dumps(about))}

    signatures = {"serving_default": serving_default, "about": describe}
    tf.saved_model.save(module, str(directory), signatures=signatures)
    extra = directory / "assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / "btcp_tf.json").write_text(json.dumps(about), encoding="utf-8")

    def answer(images):
        logits = (np.float64(scale) * images.reshape(len(images), -1)) @ weights.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = powers / powers.sum(axis=1, keepdims=True)
        return probs, 1 - probs.max(axis=1)

    return directory, answer
