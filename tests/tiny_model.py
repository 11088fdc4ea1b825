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
    second=False,
):
    """Writes a linear softmax classifier whose u is 1 - the largest probability.

    With `second` it has a second opinion, too, which takes the classes in reverse.

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
        "threshold": {"tau": tau, "coverage": 0.5, "rule": "given", "n": 100, "accepted": 50},
        "uncertainty": {"method": "mcp", "stage": "frozen"},
    }

    @tf.function(input_signature=[tf.TensorSpec((None, *shape), dtype, name="images")])
    def serving_default(images):
        flat = tf.reshape(tf.cast(images, tf.float32) * scale, (-1, size))
        probs = tf.nn.softmax(flat @ module.weights)
        u = 1 - tf.reduce_max(probs, axis=-1)
        predicted = tf.argmax(probs, axis=-1, output_type=tf.int64)
        limit = tf.constant(-1.0 if tau is None else tau, tf.float64)
        opinion = {"second_opinion": classes - 1 - predicted, "second_probability": 1 - u}
        return {
            "predicted": predicted,
            "class_name": tf.gather(module.names, predicted),
            "probs": probs,
            "uncertainty": u,
            "accept": tf.cast(u, tf.float64) < limit,
            **(opinion if second else {}),
        }

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="ask")])
    def describe(ask):
        return {"json": tf.fill(tf.shape(ask), json.dumps(about))}

    signatures = {"serving_default": serving_default, "about": describe}
    if dtype == "uint8":

        @tf.function(input_signature=[tf.TensorSpec((None, *shape), tf.float32, name="images")])
        def serving_float(images):
            pixels = tf.clip_by_value(tf.round(images), 0, 255)
            return serving_default(tf.cast(pixels, tf.uint8))

        def decode(file):
            image = tf.io.decode_image(file, shape[-1], expand_animations=False)
            resized = tf.image.resize(image, shape[:2])
            return tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), shape)

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="image_bytes")])
        def serving_bytes(image_bytes):
            spec = tf.TensorSpec(shape, tf.uint8)
            return serving_default(tf.map_fn(decode, image_bytes, fn_output_signature=spec))

        signatures |= {"serving_float": serving_float, "serving_bytes": serving_bytes}
    tf.saved_model.save(module, str(directory), signatures=signatures)
    extra = directory / "assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / "btcp_tf.json").write_text(json.dumps(about), encoding="utf-8")
    _write_warmup(extra / "tf_serving_warmup_requests", np.zeros((1, *shape), dtype))

    def answer(images):
        logits = (np.float64(scale) * images.reshape(len(images), -1)) @ weights.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = powers / powers.sum(axis=1, keepdims=True)
        return probs, 1 - probs.max(axis=1)

    return directory, answer


def _write_warmup(path, images):
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = "serving_default"
    request.inputs["images"].CopyFrom(tf.make_tensor_proto(images))
    log = prediction_log_pb2.PredictLog(request=request)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())
