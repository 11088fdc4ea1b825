import keras
import numpy as np
import pytest

from btcp_tf.networks import models
from btcp_tf.networks.dropout_passes import dropout_models
from btcp_tf.training.inference import sample_dropout

SEED = 7


def in_a_row():
    layers = keras.layers
    x = image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, activation="relu", name="before")(x)
    x = layers.SpatialDropout2D(0.4, name="drop0")(x)
    x = layers.Flatten()(layers.Conv2D(3, 3, activation="relu", name="after")(x))
    return image, layers.GaussianDropout(0.3, name="drop1")(x)


def past_the_dropout():
    """Three tensors do not depend on a mask, and one layer of dropout is called twice."""
    layers = keras.layers
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", name="before")(image)
    drop = layers.Dropout(0.5, name="drop0")
    y = layers.Add()([x, layers.Conv2D(4, 3, padding="same", name="after")(drop(x))])
    colors = layers.GlobalAveragePooling2D()(image)
    small = layers.Dense(5, name="small")(colors)
    return image, layers.Concatenate()([drop(layers.Flatten()(y)), small])


def inside():
    """As in a classifier of elsewhere, whose layers are in a model of their own."""
    layers = keras.layers
    body = [keras.Input((8, 8, 3)), layers.Conv2D(4, 3, name="before")]
    body += [layers.Dropout(0.5, name="drop0"), layers.Conv2D(3, 3, name="after")]
    image = keras.Input((8, 8, 3), name="image")
    x = keras.Sequential([*body, layers.Flatten()], name="body")(image)
    return image, layers.AlphaDropout(0.2, name="drop1")(x)


def on_the_input():
    image = keras.Input((8, 8, 3), name="image")
    return image, keras.layers.Flatten()(keras.layers.Dropout(0.5, name="drop0")(image))


def masked_tokens(mask_zero=True):
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 5, mask_zero=mask_zero, name="before")(tokens)
    x = layers.Dropout(0.4, name="drop0")(x)
    return tokens, layers.LSTM(4, name="after")(x)


def assembled(make):
    keras.utils.set_random_seed(1)
    inputs, features = make()
    width = features.shape[1]
    network = models.assemble(
        keras.Model(inputs, features, name="encoder"),
        models.build_classifier(width, 3),
        models.build_estimator(width),
    )
    random = np.random.default_rng(0)
    if inputs.dtype == "int32":
        return network, random.integers(0, 3, (9, 6)).astype("int32")
    return network, random.normal(size=(9, 8, 8, 3)).astype("float32")


def whole_passes(network, x, passes):
    """The mean of passes through a copy of everything; layers drop0, drop1 get their seeds."""

    def copied(layer):
        config = layer.get_config()
        if layer.name.startswith("drop"):
            config["seed"] = SEED + int(layer.name[-1])
        return type(layer).from_config(config)

    encoder = network.get_layer("encoder")
    twin = keras.models.clone_model(encoder, clone_function=copied, recursive=True)
    twin.set_weights(encoder.get_weights())
    answers = [network.get_layer("classifier")(twin(x, training=True)) for _ in range(passes)]
    return np.mean(answers, axis=0)


@pytest.mark.parametrize(
    "make",
    [in_a_row, past_the_dropout, inside, on_the_input, masked_tokens],
    ids=lambda f: f.__name__,
)
def test_answers_are_those_of_whole_passes(make):
    network, x = assembled(make)
    found = sample_dropout(network, x, passes=4, seed=SEED, batch_size=len(x))
    np.testing.assert_allclose(found, whole_passes(network, x, 4), atol=2e-6)
    assert np.abs(found - network(x)["probs"]).max() > 1e-3


@pytest.mark.parametrize("make", [in_a_row, past_the_dropout, inside, masked_tokens])
def test_what_no_mask_changes_is_computed_once(make):
    network, x = assembled(make)
    before, after = dropout_models(network, SEED)

    def names(model):
        return {operation.name for operation in model.operations}

    assert "before" in names(before) and "before" not in names(after)
    assert "after" in names(after) and "after" not in names(before)
    assert ("small" in names(before)) == (make is past_the_dropout)
    fixed = before(x)
    assert (np.asarray(after(fixed)) != np.asarray(after(fixed))).any()


@pytest.mark.filterwarnings("error:.*does not support masking:UserWarning")
def test_layers_after_the_cut_read_the_mask():
    network, x = assembled(masked_tokens)
    x[:] = [1, 2, 0, 0, 0, 0]
    before, after = dropout_models(network, SEED)
    found = np.asarray(after(before(x)))
    np.testing.assert_allclose(found, whole_passes(network, x, 1), atol=2e-6)
    network, _ = assembled(lambda: masked_tokens(mask_zero=False))
    assert np.abs(found - whole_passes(network, x, 1)).max() > 1e-4


def test_batch_norm_and_everything_else_is_in_inference_mode():
    network = models.build_model("svhn", (8, 8, 3), 3, feature_dim=6)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    before, after = dropout_models(network, seed=1)
    encoder = network.get_layer("encoder")
    first = keras.Model(encoder.input, encoder.get_layer("block1_dropout").input)
    fixed = before(images)
    np.testing.assert_allclose(fixed, first(images, training=False), atol=1e-6)
    dropout = [layer.dropout for layer in after.layers if "dropout" in layer.name]
    assert len(dropout) == 4
    # Without masks it is the classifier itself.
    for layer in dropout:
        layer.rate = 0.0
    np.testing.assert_allclose(after(fixed), network(images)["probs"], atol=1e-6)


def test_refuses_a_network_without_dropout():
    image = keras.Input((4, 4, 1), dtype="uint8", name="image")
    features = keras.layers.Flatten(name="flat")(keras.layers.Rescaling(1.0, name="scale")(image))
    network = models.assemble(
        keras.Model(image, features, name="encoder"),
        models.build_classifier(16, 3),
        models.build_estimator(16),
    )
    with pytest.raises(ValueError, match="with dropout for mc_dropout, received encoder of layers"):
        dropout_models(network, seed=0)
