import keras
import numpy as np
import pytest

from btcp_tf.core.config import Config
from btcp_tf.methods import residual_fit
from btcp_tf.methods.residual_choice import MCP
from btcp_tf.networks import classifiers, models
from btcp_tf.networks.encoders import ENCODERS


@pytest.mark.parametrize(
    ("encoder", "image_shape", "classes", "feature_dim", "counts"),
    [
        # By hand: convolutions 9*in*out + out, dense in*out + out, BatchNorm 4 * channels.
        ("small", (28, 28, 1), 10, 128, (320 + 18_496 + 12_544 * 128 + 128, 1_290, 533_201)),
        ("svhn", (32, 32, 3), 10, 256, (813_344, 2_570, 584_401)),
        ("vgg16", (32, 32, 3), 100, 512, (14_994_240, 51_300, 686_801)),
    ],
)
def test_golden_parameter_counts(encoder, image_shape, classes, feature_dim, counts):
    model = models.build_model(encoder, image_shape, classes, feature_dim=feature_dim)
    parts = [model.get_layer(name) for name in ("encoder", "classifier", "estimator")]
    assert tuple(part.count_params() for part in parts) == counts
    assert model.count_params() == sum(counts)


def test_parameter_counts_of_batchnorm_networks_by_formula():
    def convolutions(channels):
        pairs = zip(channels, channels[1:], strict=False)
        return sum(9 * a * b + b + 4 * b for a, b in pairs)

    assert convolutions([3, 32, 32, 64, 64, 128, 128]) + 4 * 4 * 128 * 256 + 256 == 813_344
    vgg = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    assert convolutions(vgg) + 512 * 512 + 512 == 14_994_240


def test_answers_by_name_from_uint8_images():
    model = models.build_model("small", (8, 8, 1), 3, feature_dim=4)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    answers = model(images)
    assert set(answers) == {"probs", "uncertainty"}
    assert answers["probs"].shape == (5, 3)
    assert answers["uncertainty"].shape == (5, 1)
    np.testing.assert_allclose(np.sum(answers["probs"], axis=1), 1, rtol=1e-6)
    u = np.asarray(answers["uncertainty"])
    assert (u >= 0).all() and (u <= 1).all()
    assert model.inputs[0].dtype == "uint8"


def test_heads_share_the_encoder():
    model = models.build_model("small", (8, 8, 1), 3, feature_dim=4)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    features = model.get_layer("encoder")(images)
    assert features.shape == (5, 4)
    answers = model(images)
    np.testing.assert_array_equal(model.get_layer("classifier")(features), answers["probs"])
    np.testing.assert_array_equal(model.get_layer("estimator")(features), answers["uncertainty"])


def test_pixels_are_scaled_in_the_graph():
    model = models.build_model("small", (8, 8, 1), 3, feature_dim=4)
    scale = model.get_layer("encoder").get_layer("scale")
    np.testing.assert_allclose(scale(np.uint8([0, 51, 255])), [0, 0.2, 1], rtol=1e-6)


def test_residual_model_without_evidence_is_mcp_with_its_logit():
    model = models.build_model("small", (8, 8, 1), 3, feature_dim=4)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    of_mcp = residual_fit.residual_model(model, {}, MCP)
    answers = models.with_logit(of_mcp)(images)
    probs = model(images)["probs"].numpy()
    np.testing.assert_array_equal(answers["probs"], probs)
    u = 1 - probs.max(1, keepdims=True)
    np.testing.assert_allclose(answers["uncertainty"], u, rtol=1e-5)
    np.testing.assert_array_equal(answers["uncertainty"], of_mcp(images)["uncertainty"])
    np.testing.assert_allclose(answers["logit"], np.log(u / (1 - u)), rtol=1e-4)
    # A trained estimator's u is its own.
    assert models.with_logit(model) is model


@pytest.mark.parametrize("encoder", ["small", "svhn", "vgg16"])
def test_outputs_model_shows_what_methods_read(encoder):
    model = models.build_model(encoder, (32, 32, 3), 3, feature_dim=4)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    found = models.outputs_model(model)(images, training=False)
    np.testing.assert_array_equal(found["features"], model.get_layer("encoder")(images))
    np.testing.assert_array_equal(found["probs"], model(images)["probs"])
    logits = model.get_layer("classifier").get_layer("logits")
    expected = found["features"] @ logits.kernel + logits.bias
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)


def test_saves_and_loads_as_keras_file(tmp_path):
    model = models.build_model("svhn", (8, 8, 3), 3, feature_dim=4)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for name, answer in model(images).items():
        np.testing.assert_array_equal(loaded(images)[name], answer)


def given(kind):
    """A classifier of 8x8 images as people have them, and what it reads for uint8 images."""
    layers = keras.layers
    if kind == "flat":
        found = [keras.Input((64,)), layers.Dense(6, "relu"), layers.Dense(3, "softmax")]
        return keras.Sequential(found), lambda images: images.reshape(-1, 64) / 255
    if kind == "no channel":
        found = [keras.Input((8, 8)), layers.Flatten(), layers.Dense(3)]
        return keras.Sequential(found), lambda images: images[..., 0] / 127.5 - 1
    if kind == "bytes":
        found = [keras.Input((8, 8, 1), dtype="uint8"), layers.Rescaling(1 / 255)]
        found += [layers.Flatten(), layers.Dense(3, "softmax")]
        return keras.Sequential(found), lambda images: images
    if kind == "whole numbers":
        found = [keras.Input((8, 8, 1), dtype="int32"), layers.Rescaling(1 / 255)]
        found += [layers.Flatten(), layers.Dense(3, "softmax")]
        return keras.Sequential(found), lambda images: images
    image = keras.Input((None, None, 1))
    body = keras.Sequential([layers.Conv2D(4, 3), layers.Dropout(0.5)], name="body")
    x = layers.GlobalAveragePooling2D()(body(image))
    return keras.Model(image, layers.Dense(1, "sigmoid")(x)), lambda images: images.astype(
        "float32"
    )


@pytest.mark.parametrize(
    ("kind", "pixels"),
    [
        ("flat", "0_1"),
        ("no channel", "-1_1"),
        ("bytes", "0_1"),
        ("whole numbers", "-1_1"),
        ("any size", "0_255"),
    ],
)
def test_adopts_a_classifier_that_answers_as_before(tmp_path, kind, pixels):
    classifier, read = given(kind)
    classifier.save(tmp_path / "my.keras")
    classes = max(2, classifier.output_shape[1])
    model = models.adopt(tmp_path / "my.keras", (8, 8, 1), classes, pixels=pixels)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    answers = np.asarray(classifier(read(images)))
    if kind == "any size":
        answers = np.hstack([1 - answers, answers])
    found = models.outputs_model(model)(images)
    logits = kind == "no channel"
    np.testing.assert_allclose(found["logits" if logits else "probs"], answers, atol=1e-5)
    np.testing.assert_array_equal(found["probs"], model(images)["probs"])
    kernel, bias = classifiers.last_dense(model.get_layer("classifier"))
    np.testing.assert_allclose(found["features"] @ kernel + bias, found["logits"], atol=1e-5)
    assert models.reads_whole_numbers(model) == (kind in ("bytes", "whole numbers"))


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((8, 8, 1), 4, "expected answers of the 4 classes of the data set, received .* of 3"),
        ((9, 8, 1), 3, r"reads images of \(9, 8, 1\), received .* that reads \(64,\)"),
    ],
)
def test_adopts_no_classifier_of_something_else(tmp_path, shape, classes, message):
    given("flat")[0].save(tmp_path / "my.keras")
    with pytest.raises(ValueError, match=message):
        models.adopt(tmp_path / "my.keras", shape, classes)


def test_encoders_are_those_that_the_command_line_accepts():
    (field,) = [field for field in Config.__dataclass_fields__.values() if field.name == "encoder"]
    assert tuple(ENCODERS) == field.metadata["choices"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(encoder="resnet"), "encoder: expected one of small, svhn, vgg16, received 'resnet'"),
        (dict(num_classes=1), "num_classes: expected at least 2, received 1"),
        (dict(encoder="vgg16"), "expected images large enough .* received ones that are 1x1"),
    ],
)
def test_refuses(change, message):
    arguments = dict(encoder="small", image_shape=(8, 8, 1), num_classes=3, feature_dim=4) | change
    with pytest.raises(ValueError, match=message):
        models.build_model(**arguments)
