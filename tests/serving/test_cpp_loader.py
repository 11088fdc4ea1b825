"""What TensorFlow Serving relies on in an exported version directory.

The C++ loader of TensorFlow's own library, asked through its C API, stands for the server's: it is
the same code (`tensorflow/cc/saved_model`).
"""

import io
import json
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

from btcp_tf import thresholds
from btcp_tf.serving import saved_model

pytestmark = pytest.mark.usefixtures("quick_checks")

SHAPE = (8, 8, 1)
CLASSES = ("cat", "dog", "été")
IMAGES = np.random.default_rng(0).integers(256, size=(5, *SHAPE), dtype=np.uint8)


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


FILES = [png(image) for image in IMAGES]
GOOD = {
    "default": ("serving_default", {"images": IMAGES}),
    "none": ("serving_default", {"images": IMAGES[:0]}),
    "float": ("serving_float", {"images": IMAGES.astype(np.float32) + np.float32(0.3)}),
    "bytes": ("serving_bytes", {"image_bytes": FILES}),
    "about": ("about", {"ask": [b"?", b"what is it"]}),
}
BAD = {
    "lower": ("serving_default", {"images": IMAGES[:, :6]}, "not compatible with expected shape"),
    "flat": ("serving_default", {"images": IMAGES[..., 0]}, "not compatible with expected shape"),
    "one": ("serving_default", {"images": IMAGES[0]}, "not compatible with expected shape"),
    "type": ("serving_default", {"images": IMAGES.astype(np.float32)}, "uint8"),
    "nan": ("serving_float", {"images": np.full(IMAGES.shape, np.nan, np.float32)}, "NaN"),
    "broken": ("serving_bytes", {"image_bytes": [*FILES, b"?"]}, "expected PNG or JPEG files"),
}


def signature_def(path, signature):
    proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    return proto.meta_graphs[0].signature_def[signature]


@pytest.fixture(scope="module")
def asked(path, tmp_path_factory):
    """Folder with what a process says to all requests that loads TensorFlow's library alone."""
    folder = tmp_path_factory.mktemp("requests")
    for key, (signature, inputs, *_) in {**GOOD, **BAD}.items():
        found = signature_def(path, signature)
        request = {f"fetch/{info.name}": np.empty(0) for info in found.outputs.values()}
        for name, value in inputs.items():
            tensor = found.inputs[name].name
            if isinstance(value, list):
                for i, file in enumerate(value):
                    request[f"files/{tensor}/{i}"] = np.frombuffer(file, np.uint8)
            else:
                request[f"feed/{tensor}"] = value
        np.savez(folder / f"{key}.npz", **request)
    program = Path(__file__).with_name("c_loader.py")
    done = subprocess.run(
        [sys.executable, "-I", program, tf.sysconfig.get_lib(), path, folder],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return folder


@pytest.fixture(scope="module")
def signatures(path):
    """The same in Python."""
    return tf.saved_model.load(str(path)).signatures


@pytest.mark.parametrize("key", GOOD)
def test_the_cpp_loader_answers_as_python_does(path, asked, signatures, key):
    signature, inputs = GOOD[key]
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    wanted = {name: value.numpy() for name, value in signatures[signature](**inputs).items()}
    outputs = signature_def(path, signature).outputs
    with np.load(asked / f"{key}.answer.npz") as answer:
        found = {name: answer[info.name] for name, info in outputs.items()}
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        want = np.asarray(want)
        # Strings are objects in Python's answer, a scalar one bytes.
        assert found[name].dtype == want.dtype or found[name].dtype.kind == "S"
        np.testing.assert_array_equal(found[name], want.astype(found[name].dtype))
        assert found[name].shape == want.shape


@pytest.mark.parametrize("key", BAD)
def test_the_cpp_loader_refuses_what_is_no_input(asked, key):
    assert not (asked / f"{key}.answer.npz").exists()
    assert BAD[key][2] in (asked / f"{key}.error").read_text()


def test_the_warm_up_requests_are_answered(path, signatures):
    """A server runs them before a version gets its first request; a wrong file fails the load."""
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(file))
    ]
    assert 1 <= len(logs) <= 1000
    for log in logs:
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        rows = {len(value) for value in inputs.values()}
        assert {len(value) for value in outputs.values()} == rows


def test_about_is_the_file_beside_the_model(path, signatures):
    text = (path / "assets.extra" / "btcp_tf.json").read_text(encoding="utf-8")
    (told,) = signatures["about"](ask=tf.constant(["?"]))["json"].numpy()
    assert json.loads(told) == json.loads(text)
