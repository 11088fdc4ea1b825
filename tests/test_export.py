"""Tests of the SavedModel: what it answers, what its directory holds, and how it fails."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.core.protobuf import saved_model_pb2

import btcp_tf
from btcp_tf import export

CLASSES = ("circle", "square", "triangle")
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 8, 6, 2), dtype=np.uint8)


def small_model(extra=None):
    """A tiny model with everything that trained ones have: scaling, BatchNorm, dropout, nesting."""
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 6, 2), dtype="uint8", name="image")
    pixels = layers.Rescaling(1 / 255)(image)
    inside = keras.Input((8, 6, 2))
    features = layers.Conv2D(4, 3, activation="relu")(inside)
    features = layers.BatchNormalization()(features)
    features = layers.Dropout(0.5)(layers.Flatten()(layers.MaxPooling2D()(features)))
    features = keras.Model(inside, features, name="encoder")(pixels)
    if extra:
        features = extra(features)
    model = keras.Model(
        image,
        {
            "probs": layers.Dense(3, activation="softmax", name="classifier")(features),
            "uncertainty": layers.Dense(1, activation="sigmoid", name="estimator")(features),
        },
    )
    encoder = model.get_layer("encoder")
    for weight in encoder.weights:  # Statistics as after training, not 0 and 1.
        if "moving" in weight.path:
            weight.assign(np.linspace(0.5, 1.5, 4))
    return model


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = small_model()
    metadata = {"tau": 0.25, "auroc": float("nan"), "errors": np.int64(7), "notes": ("a", "b")}
    root = tmp_path_factory.mktemp("models")
    return model, export.export(model, root, "shapes", CLASSES, metadata, IMAGES)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_answers_equal_the_keras_model_at_any_batch_size(exported, size):
    model, path = exported
    found = tf.saved_model.load(str(path)).signatures["serving_default"](
        images=tf.constant(IMAGES[:size])
    )
    assert set(found) == {"predicted", "probs", "uncertainty"}
    outputs = model(IMAGES, training=False)
    probs, uncertainty = outputs["probs"].numpy()[:size], outputs["uncertainty"].numpy()[:size, 0]
    assert found["predicted"].dtype == tf.int64
    np.testing.assert_array_equal(found["predicted"], probs.argmax(axis=1))
    np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=1e-6)
    assert found["uncertainty"].shape == (size,)
    assert found["probs"].shape == (size, 3)
    np.testing.assert_allclose(found["uncertainty"], uncertainty, rtol=0, atol=1e-6)


def test_float_images_are_refused(exported):
    answer = tf.saved_model.load(str(exported[1])).signatures["serving_default"]
    with pytest.raises(Exception, match="uint8"):
        answer(images=tf.constant(IMAGES / 255))


def test_metadata_lies_beside_the_model(exported):
    content = json.loads((exported[1] / "assets.extra" / "btcp_tf.json").read_text())
    assert content == {
        "class_names": list(CLASSES),
        "image_shape": [8, 6, 2],
        "versions": {
            "btcp_tf": btcp_tf.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "metadata": {"tau": 0.25, "auroc": None, "errors": 7, "notes": ["a", "b"]},
    }


def test_saved_model_cli_shows_a_readable_signature(exported):
    shown = subprocess.run(
        [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
        + ["show", "--dir", str(exported[1]), "--all"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    ).stdout
    signature = shown[shown.index("signature_def['serving_default']") :].split(
        "Concrete Functions"
    )[0]
    lines = [line.strip() for line in signature.splitlines()]
    for name, dtype, shape in (
        ("inputs['images']", "DT_UINT8", "(-1, 8, 6, 2)"),
        ("outputs['predicted']", "DT_INT64", "(-1)"),
        ("outputs['probs']", "DT_FLOAT", "(-1, 3)"),
        ("outputs['uncertainty']", "DT_FLOAT", "(-1)"),
    ):
        at = lines.index(f"{name} tensor_info:")
        assert lines[at + 1 : at + 3] == [f"dtype: {dtype}", f"shape: {shape}"]
    assert sum(line.endswith("tensor_info:") for line in lines) == 4


def test_next_export_from_a_mirrored_model_takes_the_next_number_and_touches_no_other(exported):
    folder = exported[1].parent
    assert exported[1].name == "1"
    (folder / "9").mkdir()
    (folder / "10.bak").mkdir()
    before = {path: path.read_bytes() for path in files_below(exported[1])}
    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        mirrored = small_model()
        with pytest.raises(ValueError, match=r"outside of strategy.scope\(\)"):
            export.export(mirrored, folder.parent, folder.name, CLASSES, {}, IMAGES)
    assert isinstance(mirrored.variables[0].value, tf.distribute.DistributedValues)

    path = export.export(mirrored, folder.parent, folder.name, CLASSES, {}, IMAGES)

    assert path == folder / "10"
    assert {path: path.read_bytes() for path in files_below(exported[1])} == before
    assert sorted(path.name for path in folder.iterdir()) == ["1", "10", "10.bak", "9"]
    assert export.versions(folder) == [1, 9, 10]
    assert devices_of_signature(path) == devices_of_signature(exported[1]) == set()
    found = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(IMAGES))
    wanted = exported[0](IMAGES, training=False)
    np.testing.assert_allclose(found["probs"], wanted["probs"], rtol=0, atol=1e-6)


def devices_of_signature(path):
    """Devices that the graphs name, apart from those that save and restore the variables."""
    content = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    functions = content.meta_graphs[0].graph_def.library.function
    return {
        node.device
        for function in functions
        if not re.search("traced_(save|restore)", function.signature.name)
        for node in function.node_def
        if node.device
    }


class Noise(layers.Layer):
    """Answers differently at each call, whatever the seed."""

    def call(self, x):
        now = tf.cast(tf.timestamp() * 1e6, tf.int64)
        return x + tf.random.stateless_normal(tf.shape(x), seed=tf.stack([now, now]))


class NeedsThisProcess(layers.Layer):
    """Works here and in no other process."""

    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), x.shape)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Noise, "uncertainty of a batch of 7: 7 values, the first"),
        (NeedsThisProcess, "exit status 1 and(.|\n)*pyfunc"),
    ],
)
def test_failed_check_is_an_error_and_leaves_nothing(tmp_path, layer, message):
    with pytest.raises(RuntimeError, match=message):
        export.export(small_model(layer()), tmp_path, "shapes", CLASSES, {}, IMAGES)
    assert list((tmp_path / "shapes").iterdir()) == []


def test_differences_are_found_in_each_answer():
    good = {
        "2/predicted": np.array([0, 1]),
        "2/probs": np.array([[0.75, 0.25], [0.25, 0.75]], np.float32),
    }
    assert export._differences(good, good) == []
    close = {**good, "2/probs": good["2/probs"] + np.float32(5e-7)}
    assert export._differences(close, good) == []

    def only(**changed):
        [line] = export._differences({**good, **{f"2/{k}": v for k, v in changed.items()}}, good)
        return line

    assert only(predicted=np.array([0, 0])) == "predicted of a batch of 2: 1 other classes"
    far = good["2/probs"].copy()
    far[1, 0] += np.float32(2e-6)
    assert only(probs=far).startswith("probs of a batch of 2: 1 values, the first 0.250001997")
    far[1, 0] = np.nan
    assert "the first nan in place of 0.25" in only(probs=far)
    assert "float32 (1, 2) in place of float32 (2, 2)" in only(probs=far[:1])
    assert "int32 (2,) in place of int64 (2,)" in only(predicted=np.array([0, 1], np.int32))
    assert "['2/probs'] in place of" in export._differences({"2/probs": far}, good)[0]


def test_exports_at_once_get_a_number_each(tmp_path):
    count = 16
    start = threading.Barrier(count)

    def publish(word):
        with export._temporary_directory(tmp_path) as temporary:
            (temporary / "word").write_text(str(word))
            start.wait()
            export._publish(temporary, tmp_path)

    threads = [threading.Thread(target=publish, args=(word,)) for word in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        str(n) for n in range(1, count + 1)
    )
    words = {(tmp_path / str(n) / "word").read_text() for n in export.versions(tmp_path)}
    assert words == {str(word) for word in range(count)}


def test_what_a_killed_export_left_goes_and_a_live_one_stays(tmp_path):
    killed, live = tmp_path / ".export-killed", tmp_path / ".export-live"
    for folder in (killed, live):
        (folder / "variables").mkdir(parents=True)
        os.utime(folder, (time.time() - 60,) * 2)
    with export._lock(live) as held, export._temporary_directory(tmp_path) as temporary:
        assert held
        assert sorted(tmp_path.iterdir()) == sorted([live, temporary])
    assert list(tmp_path.iterdir()) == [live]


def test_published_directory_can_be_read_by_others(exported):
    umask = os.umask(0)
    os.umask(umask)
    assert exported[1].stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"class_names": CLASSES[:2]}, "class_names: expected 3 names, received 2"),
        ({"name": "a/b"}, "name: expected one directory name, received 'a/b'"),
        ({"name": ".."}, "name: expected one directory name, received '..'"),
        ({"sample_images": IMAGES / 255}, "sample_images: expected .* received float64"),
        ({"sample_images": IMAGES[:0]}, r"sample_images: expected at least one .*\(0, 8, 6, 2\)"),
        ({"sample_images": IMAGES[:, :7]}, r"sample_images: expected .* \(7, 7, 6, 2\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, exported, changed, message):
    arguments = {"name": "shapes", "class_names": CLASSES, "metadata": {}, "sample_images": IMAGES}
    with pytest.raises(ValueError, match=message):
        export.export(exported[0], tmp_path, **{**arguments, **changed})
    assert list(tmp_path.iterdir()) == []


def test_model_with_other_outputs_is_refused(tmp_path, exported):
    encoder = exported[0].get_layer("encoder")
    with pytest.raises(ValueError, match="expected the outputs probs and uncertainty by name"):
        export.export(encoder, tmp_path, "shapes", CLASSES, {}, IMAGES)
