"""Tests of the SavedModel: what it answers, what its directory holds, and how it fails."""

import dataclasses
import errno
import functools
import io
import json
import os
import re
import shutil
import struct
import sys
import threading
import time
import zlib

import keras
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf
from keras import layers
from machine import anonymous_mib
from scipy import special
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.tools import saved_model_cli
from tensorflow_serving.apis import prediction_log_pb2

import btcp_tf
from benchmarks import hostile
from btcp_tf import thresholds
from btcp_tf.core import files
from btcp_tf.data import folders
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods import residual_fit
from btcp_tf.methods.residual_choice import MCP
from btcp_tf.networks import models
from btcp_tf.networks.evidence_layers import McpLogit
from btcp_tf.serving import export_check, saved_model, signatures
from btcp_tf.serving.export_check import WARMUP_FILE
from btcp_tf.serving.signatures import _decoded, served

pytestmark = pytest.mark.usefixtures("quick_checks")

START = export_check._start
"""Starts a new interpreter."""

CLASSES = ("circle", "square", "Dreieck äöü")
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 8, 6, 3), dtype=np.uint8)


def small_model(extra=None, channels=3):
    """A tiny model with everything that trained ones have: scaling, BatchNorm, dropout, nesting."""
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 6, channels), dtype="uint8", name="image")
    pixels = layers.Rescaling(1 / 255)(image)
    inside = keras.Input((8, 6, channels))
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


# One of the two is wrong, and accepted.
HELD_OUT = Predictions(
    np.array([0, 2]), None, np.array([0, 1]), {"uncertainty": np.array([0.1, 0.2], np.float32)}
)
# Half-way between what the model says of two of the images.
TAU = thresholds.best_bacc([0, 1], [0.3, 0.7])


def write(model, root, threshold=TAU, **more):
    return saved_model.export(model, root, "shapes", CLASSES, IMAGES, threshold=threshold, **more)


@functools.lru_cache(maxsize=4)
def loaded(path):
    """A version directory does not change once it has its number."""
    return tf.saved_model.load(str(path))


def answers(path, signature="serving_default", **inputs):
    found = loaded(path).signatures[signature](**inputs)
    return {name: value.numpy() for name, value in found.items()}


def told(path):
    """What `about` says, once for each that asks."""
    found = answers(path, "about", ask=tf.constant(["", "what", "?"]))["json"]
    assert found.shape == (3,) and len(set(found)) == 1
    assert answers(path, "about", ask=tf.constant([], tf.string))["json"].shape == (0,)
    return json.loads(found[0])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model = small_model()
    u = np.sort(model(IMAGES, training=False)["uncertainty"].numpy()[:, 0].astype(np.float64))
    tau = float(u[2:4].mean())
    chosen = thresholds.given(HELD_OUT.is_error, HELD_OUT.uncertainty["uncertainty"], tau=tau)
    about = {"auroc": float("nan"), "errors": np.int64(7), "notes": ("a", "b")}
    root = tmp_path_factory.mktemp("models")
    held_out = {"calibration": HELD_OUT, "validation": HELD_OUT}
    return model, write(model, root, chosen, held_out=held_out, about=about)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_answers_equal_the_keras_model_at_any_batch_size(written, size):
    model, path = written
    found = answers(path, images=tf.constant(IMAGES[:size]))
    assert set(found) == {"predicted", "class_name", "probs", "uncertainty", "accept"}
    outputs = model(IMAGES, training=False)
    probs, uncertainty = outputs["probs"].numpy()[:size], outputs["uncertainty"].numpy()[:size, 0]
    assert found["predicted"].dtype == np.int64
    np.testing.assert_array_equal(found["predicted"], probs.argmax(axis=1))
    words = [CLASSES[number].encode() for number in probs.argmax(axis=1)]
    assert found["class_name"].tolist() == words
    np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=1e-6)
    assert found["uncertainty"].shape == (size,)
    assert found["probs"].shape == (size, 3)
    np.testing.assert_allclose(found["uncertainty"], uncertainty, rtol=0, atol=1e-6)
    tau = exported.read_about(path)["threshold"]["tau"]
    np.testing.assert_array_equal(found["accept"], uncertainty < tau)
    assert size < 7 or found["accept"].sum() == 3


def test_signatures_share_small_weights_as_constants_and_large_ones_stay_variables(tmp_path):
    small = layers.Dense(64, activation="relu", name="small")
    large = layers.Dense(4096, activation="relu", name="large")
    model = small_model(lambda features: layers.Concatenate()([small(features), large(features)]))
    large.kernel.assign(tf.random.normal(large.kernel.shape))
    assert large.kernel.shape[0] * large.kernel.shape[1] > 2**16
    path = write(model, tmp_path)
    graph = (path / "saved_model.pb").read_bytes()
    # TensorFlow traces each function once more to save it.
    assert 1 <= graph.count(small.kernel.numpy().tobytes()) <= 2
    assert large.kernel.numpy().tobytes() not in graph
    checkpoint = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    kept = [
        name
        for name, shape in checkpoint.get_variable_to_shape_map().items()
        if shape == list(large.kernel.shape)
        and np.array_equal(checkpoint.get_tensor(name), large.kernel.numpy())
    ]
    # Once: the file of a large model would be twice as long.
    assert len(kept) == 1


def test_float_images_are_refused_by_the_default_and_have_a_signature(written):
    signatures = loaded(written[1]).signatures
    with pytest.raises(Exception, match="uint8"):
        signatures["serving_default"](images=tf.constant(IMAGES / 255))
    wanted = signatures["serving_default"](images=tf.constant(IMAGES))
    # Rounded, and cut off at the ends of the range, where a resized image may overshoot.
    for pixels in (IMAGES + 0.4, np.where(IMAGES == 255, 290.0, IMAGES), IMAGES - 0.4):
        found = signatures["serving_float"](images=tf.constant(pixels, tf.float32))
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)
    # Not finite, of 12 bits, scaled.
    for pixels in (IMAGES * np.nan, 16.0 * IMAGES, IMAGES / 255, IMAGES / 127.5 - 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected pixels from 0 to 255"):
            signatures["serving_float"](images=tf.constant(pixels, tf.float32))


def test_files_are_answered_like_the_pixels_that_data_makes_of_them(written, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (6, 12, 4, 4), dtype=np.uint8)
    # Smooth, as JPEG has them.
    images = np.kron(images, np.ones((1, 3, 5, 1), np.uint8))
    modes = {"L": "png", "RGB": "png", "RGBA": "png", "P": "png", "RGB ": "jpg", "L ": "jpg"}
    files = []
    for image, (mode, ending) in zip(images, modes.items(), strict=True):
        files.append(tmp_path / f"{len(files)}.{ending}")
        opened = PIL.Image.fromarray(image[..., :3])
        opened.convert(mode.strip()).save(files[-1])
    pixels, *_ = folders.decode_all(tmp_path, files, (8, 6), 3, "fail", 0)
    image_bytes = tf.constant([file.read_bytes() for file in files])
    decoded = _decoded((8, 6, 3), image_bytes).numpy().astype(int)
    # Decoded alike; the two libraries round halves of a level their own ways afterwards.
    assert (np.abs(decoded - pixels) <= 1).all()
    gray, *_ = folders.decode_all(tmp_path, files, (8, 6), 1, "fail", 0)
    decoded = _decoded((8, 6, 1), image_bytes).numpy().astype(int)
    assert (np.abs(decoded - gray) <= 1).all()
    found = answers(written[1], "serving_bytes", image_bytes=image_bytes)
    wanted = answers(written[1], images=tf.constant(pixels))
    np.testing.assert_allclose(found["uncertainty"], wanted["uncertainty"], rtol=0, atol=1e-2)
    assert answers(written[1], "serving_bytes", image_bytes=tf.constant([], tf.string))[
        "probs"
    ].shape == (0, 3)


PICTURE = PIL.Image.fromarray(
    np.kron(np.random.default_rng(2).integers(0, 256, (5, 4, 3)), np.ones((7, 6, 1))).astype(
        "uint8"
    )
)


def file_of(image, kind, **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def chunk(name, content):
    """A part of a PNG file."""
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def animation_of_one(image):
    """A PNG file of a picture and an animation, of one picture."""
    content = file_of(image, "PNG")
    behind_head = 8 + 25
    return content[:behind_head] + chunk(b"acTL", struct.pack(">II", 1, 0)) + content[behind_head:]


def deep(channels):
    """A gray or color PNG file of 16 bits a channel."""
    rows = np.random.default_rng(3).integers(0, 2**16, (6, 5 * channels)).astype(">u2")
    head = struct.pack(">IIBBBBB", 5, 6, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = (chunk(b"IHDR", head), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def turned(orientation, order="<"):
    exif = PIL.Image.Exif()
    exif.endian = order
    exif[0x010F], exif[0x0112], exif[0x0132] = "a camera", orientation, "2026:01:01 00:00:00"
    return exif.tobytes()


LIKE_PILLOW = {
    "jpeg": file_of(PICTURE, "JPEG"),
    "jpeg, half the colors, noise": file_of(PICTURE, "JPEG", quality=95, subsampling=2),
    "jpeg, progressive": file_of(PICTURE, "JPEG", progressive=True),
    "jpeg, gray": file_of(PICTURE.convert("L"), "JPEG"),
    "jpeg, CMYK": file_of(PICTURE.convert("CMYK"), "JPEG"),
    "png, palette": file_of(PICTURE.quantize(16), "PNG"),
    "png, palette with a transparent color": file_of(PICTURE.quantize(16), "PNG", transparency=3),
    "png, alpha": file_of(PICTURE.convert("RGBA"), "PNG"),
    "png, gray and alpha": file_of(PICTURE.convert("LA"), "PNG"),
    "png, two levels": file_of(PICTURE.convert("1"), "PNG"),
    **{
        f"{kind}, turned {n} {order}": file_of(PICTURE, kind, exif=turned(n, order))
        for kind in ("JPEG", "PNG")
        for n in range(1, 9)
        for order in ("<", ">")
    },
}


def test_files_are_read_as_pillow_does(tmp_path):
    # Of the picture's own size: nothing but the decoder can differ. Turned ones are as wide as it
    # is high.
    for name, content in LIKE_PILLOW.items():
        (tmp_path / "file").write_bytes(content)
        wanted, reason = folders.read_image(tmp_path / "file", (1, 1, 3))
        assert not reason
        with PIL.Image.open(tmp_path / "file") as image:
            upright = PIL.ImageOps.exif_transpose(image)
            shape = (upright.height, upright.width, 3)
        wanted, _ = folders.read_image(tmp_path / "file", shape)
        found = _decoded(shape, tf.constant([content])).numpy()[0]
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.parametrize(
    "content",
    [
        b"no image",
        b"",
        file_of(PICTURE.quantize(16), "BMP"),
        file_of(PICTURE, "BMP"),
        file_of(PICTURE, "GIF"),
        file_of(PICTURE, "WEBP"),
        file_of(PICTURE, "TIFF"),
        deep(1),
        deep(3),
        file_of(PICTURE, "PNG", save_all=True, append_images=[PICTURE.rotate(180)]),
        animation_of_one(PICTURE),
    ],
    ids=[
        *("words", "nothing", "bmp palette", "bmp", "gif", "webp", "tiff", "16 gray", "16 color"),
        *("animated", "one behind the default picture"),
    ],
)
def test_files_that_pillow_reads_otherwise_are_refused_by_their_place(written, content):
    good = LIKE_PILLOW["jpeg"]
    serve = loaded(written[1]).signatures["serving_bytes"]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        serve(image_bytes=tf.constant([good, good, content, good]))
    told = "expected PNG or JPEG files of 8 bits a channel, received another in place"
    assert re.search(rf"{told}[\]\s\[]+2\b", str(caught.value))


@pytest.mark.parametrize("make", [hostile.png, hostile.jpeg])
def test_files_of_too_many_pixels_are_refused_by_their_heads(written, monkeypatch, make):
    serve = loaded(written[1]).signatures["serving_bytes"]
    good, before = LIKE_PILLOW["jpeg"], anonymous_mib()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        serve(image_bytes=tf.constant([good, make(8_001, 8_000)]))
    assert "expected files of at most 64,000,000 pixels, received one of" in str(caught.value)
    assert "64008000" in str(caught.value)
    # Decoded, it has 183 MiB, and as floats four times as many.
    assert anonymous_mib() - before < 100
    # As many as are taken are taken.
    monkeypatch.setattr(signatures, "MAX_PIXELS", 8 * 7)
    _decoded((8, 6, 3), tf.constant([hostile.png(7, 8)]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 56 pixels"):
        _decoded((8, 6, 3), tf.constant([hostile.png(19, 3)]))


def test_models_of_other_inputs_have_the_signatures_that_make_sense(unchecked, tmp_path):
    two = write_small(small_model(channels=2), tmp_path, IMAGES[..., :2])
    assert set(tf.saved_model.load(str(two)).signatures) == {
        "serving_default",
        "serving_float",
        "about",
    }
    rows = keras.Input((5,))
    table = keras.Model(
        rows,
        {
            "probs": layers.Dense(3, activation="softmax")(rows),
            "uncertainty": layers.Dense(1, activation="sigmoid")(rows),
        },
    )
    path = write_small(table, tmp_path, np.ones((2, 5), np.float32))
    assert set(tf.saved_model.load(str(path)).signatures) == {"serving_default", "about"}


def test_an_export_that_promises_less_than_the_version_before_says_so(unchecked, tmp_path, capsys):
    model = small_model()
    write(model, tmp_path, dataclasses.replace(TAU, target=0.1, delta=0.05), verbose=1)
    assert capsys.readouterr().out.startswith(f"writing a SavedModel to {tmp_path}/shapes, checked")
    promises = r"shapes/1 promises error rate <= 0.1 with probability 0.95; this one promises none"
    with pytest.warns(UserWarning, match=promises):
        assert write(model, tmp_path).name == "2"
    assert capsys.readouterr().out == ""


def write_small(model, root, sample):
    return saved_model.export(model, root, "x", CLASSES, sample, threshold=TAU)


def test_what_is_known_of_it_lies_beside_the_model_and_in_it(written):
    path = written[1]
    content = json.loads((path / "assets.extra" / "btcp_tf.json").read_text())
    assert told(path) == content
    assert exported.read_about(path) == content
    rows = exported.read_held_out(path)
    assert content.pop("held_out") == {name: exported.digest(one) for name, one in rows.items()}
    assert {*rows} == {"calibration", "validation"}
    calibration = content.pop("calibration")
    assert (calibration["n"], calibration["errors"], calibration["auroc"]) == (2, 1, 1.0)
    assert calibration["bacc"] == 0.5
    threshold = content.pop("threshold")
    assert threshold["rule"] == "given"
    assert (threshold["n"], threshold["accepted"], threshold["errors"]) == (2, 2, 1)
    git = content.pop("git")
    assert git is None or re.fullmatch(r"[0-9a-f]{40}\+?", git)
    assert content == {
        "class_names": list(CLASSES),
        "image_shape": [8, 6, 3],
        "versions": {
            "btcp_tf": btcp_tf.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "auroc": None,
        "errors": 7,
        "notes": ["a", "b"],
    }
    assert sorted(exported.read_held_out(path)) == ["calibration", "validation"]
    rows = exported.read_held_out(path)["calibration"]
    np.testing.assert_array_equal(rows.labels, HELD_OUT.labels)
    np.testing.assert_array_equal(
        rows.uncertainty["uncertainty"], HELD_OUT.uncertainty["uncertainty"]
    )


def test_warm_up_requests_are_answered(written):
    records = tf.data.TFRecordDataset(str(written[1] / WARMUP_FILE))
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record)
        for record in records.as_numpy_iterator()
    ]
    sizes = []
    for log in logs:
        request = log.predict_log.request
        images = tf.make_ndarray(request.inputs["images"])
        sizes.append(len(images))
        assert request.model_spec.name == "shapes"
        found = answers(written[1], request.model_spec.signature_name, images=tf.constant(images))
        assert len(found["probs"]) == len(images)
    assert sizes == [1, 7]


def test_another_threshold_is_another_version_of_the_same_model(written, tmp_path):
    source = tmp_path / "shapes" / "1"
    shutil.copytree(written[1], source)
    before = {path: path.read_bytes() for path in files_below(source)}
    wanted = answers(source, images=tf.constant(IMAGES))
    u = wanted["uncertainty"].astype(np.float64)
    for threshold, accept in (
        (
            thresholds.given(HELD_OUT.is_error, [0.1, 0.2], tau=float(np.sort(u)[5])),
            u < np.sort(u)[5],
        ),
        # Between two neighboring float32: in single precision it would be the lower one.
        (
            thresholds.given(HELD_OUT.is_error, [0.1, 0.2], tau=float(np.sort(u)[5]) + 1e-12),
            u <= np.sort(u)[5],
        ),
        (thresholds.target_risk([0, 1], [0.1, 0.2], risk=0.1, delta=0.1), np.zeros(7, bool)),
    ):
        path = saved_model.with_threshold(source, threshold)
        found = answers(path, images=tf.constant(IMAGES))
        np.testing.assert_array_equal(found["accept"], accept)
        for name in set(wanted) - {"accept"}:
            np.testing.assert_array_equal(found[name], wanted[name])
        content = exported.read_about(path)
        assert content["threshold"] == dataclasses.asdict(threshold)
        assert told(path) == content
        assert content["calibration"]["n"] == 2
        assert exported.versions(source.parent)[-1] == int(path.name)
        assert (path / "saved_model.pb").read_bytes() == (source / "saved_model.pb").read_bytes()
    assert {path: path.read_bytes() for path in files_below(source)} == before


def test_a_version_whose_about_takes_nothing_gets_a_threshold_too(written, tmp_path):
    """As earlier releases exported it."""
    source = tmp_path / "shapes" / "1"
    loaded = tf.saved_model.load(str(written[1]))
    signatures = dict(loaded.signatures)
    asked = signatures["about"]
    signatures["about"] = tf.function(
        lambda: {"json": asked(ask=tf.constant(["?"]))["json"][0]}, input_signature=[]
    )
    tf.saved_model.save(loaded, str(source), signatures)
    shutil.copytree(written[1] / "assets.extra", source / "assets.extra")
    assert json.loads(answers(source, "about")["json"]) == exported.read_about(source)
    path = saved_model.with_threshold(source, dataclasses.replace(TAU, tau=0.25))
    content = exported.read_about(path)
    assert content["threshold"]["tau"] == 0.25
    assert json.loads(answers(path, "about")["json"]) == content


def test_a_full_disk_is_one_line_and_leaves_the_versions_as_they_were(
    written, tmp_path, monkeypatch
):
    source = tmp_path / "shapes" / "1"
    shutil.copytree(written[1], source)
    before = {path: path.read_bytes() for path in files_below(tmp_path)}
    reason = os.strerror(errno.ENOSPC)

    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, reason, "somewhere")

    def full_in_the_graph(*arguments, **named):
        raise tf.errors.ResourceExhaustedError(None, None, f"{{function}} /data-0; {reason}")

    for place, name, fault, words in (
        (shutil, "copyfile", full, f"room for a copy of {source} in {source.parent}, received for"),
        (tf.raw_ops, "SaveV2", full_in_the_graph, "room for variables in .*, received: No space"),
        (predictions, "save_predictions", full, "No space left"),
        (os, "fsync", full, "No space left"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fault)
            with pytest.raises(OSError, match=words) as caught:
                saved_model.with_threshold(source, TAU, {"calibration": HELD_OUT})
        # One reason, and not a list of every file.
        assert str(caught.value).count(reason) == 1 and "[(" not in str(caught.value)
        assert {path: path.read_bytes() for path in files_below(tmp_path)} == before
        assert [path.name for path in source.parent.iterdir()] == ["1"]


def test_what_is_no_version_of_ours_is_refused(written, tmp_path):
    with pytest.raises(FileNotFoundError, match="SavedModel that btcp_tf exported, received"):
        saved_model.with_threshold(tmp_path, TAU)
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / ABOUT_FILE).write_text('{"threshold": 3}')
    with pytest.raises(ValueError, match="btcp_tf.json: expected what btcp_tf writes about"):
        exported.read_about(tmp_path)
    assert exported.newest(written[1]) == written[1]
    assert exported.newest(written[1].parent).parent == written[1].parent
    with pytest.raises(FileNotFoundError, match="its numbered versions, received .*is not there"):
        exported.newest(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="holds neither"):
        exported.newest(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "assets.extra"]


def test_saved_model_cli_shows_a_readable_signature(written, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cli", "show", "--dir", str(written[1]), "--all"])
    with pytest.raises(SystemExit) as ended:
        saved_model_cli.main()
    assert not ended.value.code
    shown = capsys.readouterr().out
    signature = shown[shown.index("signature_def['serving_default']") :]
    signature = re.split("signature_def|Concrete Functions", signature)[1]
    lines = [line.strip() for line in signature.splitlines()]
    for name, dtype, shape in (
        ("inputs['images']", "DT_UINT8", "(-1, 8, 6, 3)"),
        ("outputs['predicted']", "DT_INT64", "(-1)"),
        ("outputs['probs']", "DT_FLOAT", "(-1, 3)"),
        ("outputs['uncertainty']", "DT_FLOAT", "(-1)"),
        ("outputs['class_name']", "DT_STRING", "(-1)"),
        ("outputs['accept']", "DT_BOOL", "(-1)"),
    ):
        at = lines.index(f"{name} tensor_info:")
        assert lines[at + 1 : at + 3] == [f"dtype: {dtype}", f"shape: {shape}"]
    assert sum(line.endswith("tensor_info:") for line in lines) == 6


def test_next_export_from_a_mirrored_model_takes_the_next_number_and_touches_no_other(written):
    folder = written[1].parent
    assert written[1].name == "1"
    (folder / "9").mkdir()
    (folder / "10.bak").mkdir()
    before = {path: path.read_bytes() for path in files_below(written[1])}
    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        mirrored = small_model()
        with pytest.raises(ValueError, match=r"outside of strategy.scope\(\)"):
            write(mirrored, folder.parent)
    assert isinstance(mirrored.variables[0].value, tf.distribute.DistributedValues)

    path = write(mirrored, folder.parent)

    assert path == folder / "10"
    assert {path: path.read_bytes() for path in files_below(written[1])} == before
    assert sorted(path.name for path in folder.iterdir()) == ["1", "10", "10.bak", "9"]
    assert exported.versions(folder) == [1, 9, 10]
    assert devices_of_signature(path) == devices_of_signature(written[1]) == set()
    found = tf.saved_model.load(str(path)).signatures["serving_default"](images=tf.constant(IMAGES))
    wanted = written[0](IMAGES, training=False)
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
        write(small_model(layer()), tmp_path)
    assert list((tmp_path / "shapes").iterdir()) == []


def test_the_process_of_the_check_can_be_there_before_the_export(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(export_check, "_start", lambda: started.append(START()) or started[-1])
    with export_check.early_process():
        [early] = started
        write(small_model(), tmp_path)
        assert started == [early] and early.returncode == 0
    with export_check.early_process():
        unused = started[1]
        assert unused.poll() is None
    assert unused.returncode is not None and not export_check._waiting


def test_a_process_that_was_killed_while_it_waited_is_replaced(tmp_path, monkeypatch):
    starts = iter([START, export_check._start])
    monkeypatch.setattr(export_check, "_start", lambda: next(starts)())
    with export_check.early_process():
        [early] = export_check._waiting
        early.kill()
        early.wait()
        assert write(small_model(), tmp_path).name == "1"


def test_work_goes_on_where_no_process_can_be_started(monkeypatch):
    def start():
        raise OSError("no memory")

    monkeypatch.setattr(export_check, "_start", start)
    done = []
    with export_check.early_process():
        done.append("scored")
    assert done == ["scored"] and not export_check._waiting


def test_differences_are_found_in_each_answer():
    good = {
        "2/s/predicted": np.array([0, 1]),
        "2/s/probs": np.array([[0.75, 0.25], [0.25, 0.75]], np.float32),
    }
    assert export_check._differences(good, good) == []
    # Logits 5e-4 apart: at 3/4, that is 1e-4 of p.
    close = {**good, "2/s/probs": good["2/s/probs"] + np.float32(9e-5)}
    assert export_check._differences(close, good) == []

    def only(**changed):
        [line] = export_check._differences(
            {**good, **{f"2/s/{k}": v for k, v in changed.items()}}, good
        )
        return line

    assert only(predicted=np.array([0, 0])) == "s: predicted of a batch of 2: 1 others"
    far = good["2/s/probs"].copy()
    far[1, 0] += np.float32(4e-4)
    assert only(probs=far).startswith("s: probs of a batch of 2: 1 values, the first 0.250400007")
    far[1, 0] = np.nan
    assert "the first nan in place of 0.25" in only(probs=far)
    assert "float32 (1, 2) in place of float32 (2, 2)" in only(probs=far[:1])
    assert "int32 (2,) in place of int64 (2,)" in only(predicted=np.array([0, 1], np.int32))
    assert "['2/s/probs'] in place of" in export_check._differences({"2/s/probs": far}, good)[0]


@pytest.mark.parametrize("z", [-80.0, -20.0, -1.0, 0.0, 3.0])
def test_u_of_logits_a_thousandth_apart_are_close_and_others_are_not(z):
    want, near, far = (special.expit(np.array([x])) for x in (z, z + 9e-4, z + 2e-2))
    want, near, far = (x.astype(np.float32) for x in (want, near, far))
    assert export_check._close(near, want, True).all()
    assert not export_check._close(far, want, True).any()
    assert not export_check._close(np.array([np.nan], np.float32), want, True).any()


def saturated(logits):
    """Images [n, 2, 2, 1] that a model answers with these logits [n, 3] in thousandths, and it."""
    codes = np.zeros((len(logits), 2, 2, 1), np.uint8)
    codes[:, 0, 0, 0], codes[:, 0, 1, 0] = (
        np.arange(len(logits)) % 256,
        np.arange(len(logits)) // 256,
    )
    image = keras.Input((2, 2, 1), dtype="uint8")
    rows = layers.Embedding(len(logits), 3, name="table")(
        keras.ops.cast(image[:, 0, 0, 0], "int32")
        + 256 * keras.ops.cast(image[:, 0, 1, 0], "int32")
    )
    u = residual_fit.residual_outputs({}, MCP, image, None, rows, McpLogit()(rows))["uncertainty"]
    model = keras.Model(image, {"probs": layers.Softmax()(rows), "uncertainty": u})
    model.get_layer("table").set_weights([np.asarray(logits, np.float32)])
    return codes, model


@pytest.mark.parametrize("size", [30, 300])
def test_logits_that_float32_cannot_hold_apart_are_decided_apart(tmp_path, monkeypatch, size):
    # Every version is compared with the first: once loaded is enough.
    monkeypatch.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))
    random = np.random.default_rng(size)
    logits = np.round(random.uniform(-size, size, (400, 3)), 3).astype(np.float32)
    logits[:40] = logits[40:80]  # Ties.
    codes, model = saturated(logits)
    probs, u = served(model, codes)
    ordered = np.sort(logits.astype(np.float64), axis=1)
    # An oracle of its own: 1 / (1 + exp(largest) / (sum of the others)).
    np.testing.assert_allclose(
        u,
        special.expit(special.logsumexp(ordered[:, :2], axis=1) - ordered[:, 2]),
        rtol=1e-3,
    )
    # float32 has fewer values of u than there are.
    assert len(np.unique(u)) == 360 > len(np.unique(u.astype(np.float32))) or size == 30
    predicted = probs.argmax(axis=1)
    rows = Predictions(predicted, None, predicted, {"uncertainty": u})
    half = thresholds.target_coverage(u, coverage=0.5)
    path = saved_model.export(
        model,
        tmp_path,
        "x",
        CLASSES,
        codes[:8],
        threshold=half,
        held_out={"calibration": rows},
        calibration_inputs=codes,
    )
    low = float(np.sort(u)[100])
    taus = [low, np.nextafter(low, 0), np.nextafter(low, 1), 1e-30, 0.5, 1.0, half.tau]
    versions = [(half.tau, path)]
    for tau in taus:
        chosen = thresholds.given(rows.is_error, u, tau=float(tau))
        versions.append((tau, saved_model.with_threshold(path, chosen)))
    for tau, version in versions:
        found = answers(version, images=tf.constant(codes))
        np.testing.assert_array_equal(found["accept"], u < tau)
        # For those who have these answers alone.
        np.testing.assert_array_equal(
            found["accept"], found["uncertainty"].astype(np.float64) < tau
        )
        np.testing.assert_allclose(found["uncertainty"], u, rtol=1e-3, atol=2e-38)
    assert 0.5 <= answers(path, images=tf.constant(codes))["accept"].mean() < 0.6


def test_a_decision_that_is_not_u_below_tau_is_not_published(tmp_path):
    codes, model = saturated(np.random.default_rng(0).uniform(-300, 300, (20, 3)))
    probs, u = served(model, codes)
    predicted = probs.argmax(axis=1)
    threshold = thresholds.target_coverage(u, coverage=0.5)
    u[np.argmin(u)] = 0.9  # What was written down is not what is served.
    rows = Predictions(predicted, None, predicted, {"uncertainty": u})
    same = dict(threshold=threshold, held_out={"calibration": rows})
    with pytest.raises(RuntimeError) as caught:
        saved_model.export(
            model, tmp_path, "x", CLASSES, codes[:2], calibration_inputs=codes, **same
        )
    for signature in ("serving_default", "serving_float", "serving_bytes"):
        assert f"{signature}: accept of the calibration rows: 1 others" in str(caught.value)
    assert list((tmp_path / "x").iterdir()) == []
    with pytest.raises(ValueError, match="an input for each calibration row, received 19 inputs"):
        saved_model.export(
            model, tmp_path, "x", CLASSES, codes[:2], calibration_inputs=codes[1:], **same
        )


def test_a_model_that_compares_u_in_single_precision_refuses_what_it_cannot_hold(
    unchecked, tmp_path, monkeypatch
):
    """As 0.1.0 exported MCP."""
    codes, model = saturated(np.random.default_rng(0).uniform(-300, 300, (20, 3)))
    probs, u = served(model, codes)
    predicted = probs.argmax(axis=1)
    rows = Predictions(predicted, None, predicted, {"uncertainty": u})
    with monkeypatch.context() as patch:
        patch.setattr(models, "with_logit", lambda model: model)
        source = saved_model.export(
            model,
            tmp_path,
            "x",
            CLASSES,
            codes[:2],
            threshold=TAU,
            held_out={"calibration": rows},
            about={"uncertainty": {"method": "mcp"}},
        )
    with pytest.raises(ValueError, match="this model can hold.*export the run or the judge again"):
        saved_model.with_threshold(source, thresholds.target_coverage(u, coverage=0.5))
    path = saved_model.with_threshold(source, thresholds.given(rows.is_error, u, tau=0.3))
    np.testing.assert_array_equal(answers(path, images=tf.constant(codes))["accept"], u < 0.3)


def test_scores_in_single_precision_do_not_decide_where_it_tells_nothing_apart(unchecked, tmp_path):
    codes, model = saturated(np.random.default_rng(0).uniform(-300, 300, (40, 3)))
    probs, u = served(model, codes)
    predicted = probs.argmax(axis=1)
    path = write_small(model, tmp_path, codes[:2])
    coarse = u.astype(np.float32)
    rows = Predictions(predicted, None, predicted, {"uncertainty": coarse})
    assert (coarse == 0).sum() > 2
    low = thresholds.target_coverage(coarse, coverage=0.01)
    with pytest.raises(ValueError, match="received u in single precision, .* have all digits"):
        saved_model.with_threshold(path, low, {"calibration": rows})
    half = thresholds.given(rows.is_error, coarse, tau=0.5)
    found = saved_model.with_threshold(path, half, {"calibration": rows})
    np.testing.assert_array_equal(answers(found, images=tf.constant(codes))["accept"], u < 0.5)


def test_exports_at_once_get_a_number_each(tmp_path):
    count = 16
    start = threading.Barrier(count)

    def publish(word):
        with saved_model._temporary_directory(tmp_path) as temporary:
            (temporary / "word").write_text(str(word))
            start.wait()
            saved_model._publish(temporary, tmp_path)

    threads = [threading.Thread(target=publish, args=(word,)) for word in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        str(n) for n in range(1, count + 1)
    )
    words = {(tmp_path / str(n) / "word").read_text() for n in exported.versions(tmp_path)}
    assert words == {str(word) for word in range(count)}


def test_what_a_killed_export_left_goes_and_a_live_one_stays(tmp_path):
    killed, live = tmp_path / ".export-killed", tmp_path / ".export-live"
    for folder in (killed, live):
        (folder / "variables").mkdir(parents=True)
        os.utime(folder, (time.time() - 60,) * 2)
    with files.locked(live) as held, saved_model._temporary_directory(tmp_path) as temporary:
        assert held
        assert sorted(tmp_path.iterdir()) == sorted([live, temporary])
    assert list(tmp_path.iterdir()) == [live]


def test_published_directory_can_be_read_by_others(written):
    umask = os.umask(0)
    os.umask(umask)
    assert written[1].stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"class_names": CLASSES[:2]}, "class_names: expected 3 names, received 2"),
        ({"class_names": ["a", "b", "b\r"]}, "class_names: expected each name once"),
        ({"class_names": ["a", "b", "b\rc"]}, "class_names: expected names without control"),
        ({"name": "a/b"}, "name: expected one directory name, received 'a/b'"),
        ({"name": ".."}, "name: expected one directory name, received '..'"),
        ({"sample_images": IMAGES / 255}, "sample_images: expected .* received float64"),
        ({"sample_images": IMAGES[:0]}, r"sample_images: expected at least one .*\[0, 8, 6, 3\]"),
        ({"sample_images": IMAGES[:, :7]}, r"sample_images: expected .* \[7, 7, 6, 3\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, written, changed, message):
    arguments = {"name": "shapes", "class_names": CLASSES, "sample_images": IMAGES}
    with pytest.raises(ValueError, match=message):
        saved_model.export(written[0], tmp_path, **{**arguments, **changed}, threshold=TAU)
    assert list(tmp_path.iterdir()) == []


def test_model_with_other_outputs_is_refused(tmp_path, written):
    encoder = written[0].get_layer("encoder")
    with pytest.raises(ValueError, match="expected the outputs probs and uncertainty by name"):
        write(encoder, tmp_path)


def test_what_json_cannot_hold_is_refused_and_leaves_nothing(tmp_path, written):
    with pytest.raises(ValueError, match="about: expected what JSON can hold, received: .*set"):
        write(written[0], tmp_path, about={"metadata": {"tags": {"a", "b"}}})
    assert not list(tmp_path.iterdir())
