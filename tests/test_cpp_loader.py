"""What TensorFlow Serving relies on in an exported version directory.

The C++ loader of TensorFlow's own library, asked through its C API, stands for the server's: it is
the same code (`tensorflow/cc/saved_model`).
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from btcp_tf import saved_model, thresholds

SHAPE = (8, 8, 1)
CLASSES = ("cat", "dog", "été")
IMAGES = np.random.default_rng(0).integers(256, size=(5, *SHAPE), dtype=np.uint8)
needs_c_api = pytest.mark.skipif(
    not os.path.exists(f"{tf.sysconfig.get_lib()}/libtensorflow_cc.so.2"),
    reason="TensorFlow's C API is not in this wheel",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An exported network that would take images of any height and width."""
    keras.utils.set_random_seed(1)
    images = keras.Input(SHAPE, dtype="uint8")
    features = layers.Conv2D(4, 3, activation="relu")(layers.Rescaling(1 / 255)(images))
    features = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(features))
    outputs = {
        "probs": layers.Dense(3, activation="softmax")(features),
        "uncertainty": layers.Dense(1, activation="sigmoid")(features),
    }
    model = keras.Model(images, outputs)
    u = np.sort(model(IMAGES, training=False)["uncertainty"].numpy()[:, 0].astype(np.float64))
    threshold = thresholds.given([0, 1, 0, 0, 1], u, tau=float(u[1:3].mean()))
    root = tmp_path_factory.mktemp("models")
    return saved_model.export(model, root, "shapes", CLASSES, IMAGES, threshold=threshold)


def png(image):
    file = io.BytesIO()
    PIL.Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()


def through_the_c_api(path, signature, scratch, **inputs):
    """A signature's answers from a process that loads TensorFlow's library alone."""
    proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    found = proto.meta_graphs[0].signature_def[signature]
    request = {}
    for name, value in inputs.items():
        tensor = found.inputs[name].name
        if isinstance(value, list):
            for i, file in enumerate(value):
                request[f"files/{tensor}/{i}"] = np.frombuffer(file, np.uint8)
        else:
            request[f"feed/{tensor}"] = value
    for info in found.outputs.values():
        request[f"fetch/{info.name}"] = np.empty(0)
    np.savez(scratch / "request.npz", **request)
    libraries = Path(tf.sysconfig.get_lib())
    done = subprocess.run(
        [
            *(sys.executable, "-I", Path(__file__).with_name("c_loader.py"), libraries, path),
            *(scratch / "request.npz", scratch / "answer.npz"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    with np.load(scratch / "answer.npz") as answer:
        return {name: answer[info.name] for name, info in found.outputs.items()}


def in_python(path, signature, **inputs):
    outputs = tf.saved_model.load(str(path)).signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    return {name: value.numpy() for name, value in outputs.items()}


@needs_c_api
@pytest.mark.parametrize(
    "signature, inputs",
    [
        ("serving_default", {"images": IMAGES}),
        ("serving_default", {"images": IMAGES[:0]}),
        ("serving_float", {"images": IMAGES.astype(np.float32)}),
        ("serving_bytes", {"image_bytes": [png(image) for image in IMAGES]}),
        ("about", {}),
    ],
)
def test_the_cpp_loader_answers_as_python_does(path, tmp_path, signature, inputs):
    found = through_the_c_api(path, signature, tmp_path, **inputs)
    wanted = in_python(path, signature, **inputs)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        want = np.asarray(want)
        # Strings are objects in Python's answer, a scalar one bytes.
        assert found[name].dtype == want.dtype or found[name].dtype.kind == "S"
        np.testing.assert_array_equal(found[name], want.astype(found[name].dtype))
        assert found[name].shape == want.shape


@needs_c_api
def test_the_cpp_loader_fails_a_request_with_a_broken_file(path, tmp_path):
    files = [png(IMAGES[0]), b"no image"]
    with pytest.raises(RuntimeError, match="Unknown image file format"):
        through_the_c_api(path, "serving_bytes", tmp_path, image_bytes=files)


@needs_c_api
@pytest.mark.parametrize("images", [IMAGES[:, :6], IMAGES[..., 0], IMAGES[0]])
def test_the_cpp_loader_refuses_images_of_another_shape(path, tmp_path, images):
    with pytest.raises(RuntimeError, match="is not compatible with expected shape"):
        through_the_c_api(path, "serving_default", tmp_path, images=images)


def test_the_warm_up_requests_are_answered(path):
    """A server runs them before a version gets its first request; a wrong file fails the load."""
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(file))
    ]
    assert 1 <= len(logs) <= 1000
    model = tf.saved_model.load(str(path))
    for log in logs:
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        outputs = model.signatures[request.model_spec.signature_name](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        rows = {len(value) for value in inputs.values()}
        assert {len(value) for value in outputs.values()} == rows


def test_about_is_the_file_beside_the_model(path):
    text = (path / "assets.extra" / "btcp_tf.json").read_text(encoding="utf-8")
    assert json.loads(in_python(path, "about")["json"]) == json.loads(text)
