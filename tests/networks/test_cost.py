import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from btcp_tf.networks import cost, looks, models


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (layers.Dense(10), (64,), 64 * 10),
        (layers.Dense(10), (7, 64), 7 * 64 * 10),
        # Outputs of 6 × 6, each of 3 × 3 × 2 products; of 4 × 4 with strides.
        (layers.Conv2D(5, 3), (8, 8, 2), 6 * 6 * 5 * 3 * 3 * 2),
        (layers.Conv2D(5, 3, strides=2, padding="same"), (8, 8, 2), 4 * 4 * 5 * 3 * 3 * 2),
        (layers.Conv2D(4, 3, groups=2), (8, 8, 2), 6 * 6 * 4 * 3 * 3 * 1),
        (layers.Conv1D(5, 3), (8, 2), 6 * 5 * 3 * 2),
        (layers.Conv3D(5, 3), (4, 4, 4, 2), 2 * 2 * 2 * 5 * 3 * 3 * 3 * 2),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), (8, 8, 5), 6 * 6 * 10 * 3 * 3),
        (layers.SeparableConv2D(4, 3), (8, 8, 5), 6 * 6 * 5 * 3 * 3 + 6 * 6 * 5 * 4),
        # Each of 8 × 8 × 2 inputs goes to 3 × 3 × 5 places.
        (layers.Conv2DTranspose(5, 3), (8, 8, 2), 8 * 8 * 2 * 3 * 3 * 5),
        (layers.EinsumDense("abc,cd->abd", (None, 4)), (5, 3), 5 * 3 * 4),
        (layers.EinsumDense("...x,xy->...y", 4), (5, 3), 5 * 3 * 4),
        (layers.MaxPooling2D(), (8, 8, 2), 0),
        (looks.Mirror(), (8, 8, 2), 0),
    ],
)
def test_layers_by_hand(layer, shape, wanted):
    assert cost.multiply_adds(layer, shape, "float32") == wanted


def test_attention_by_hand():
    tokens = keras.Input((5, 4))
    model = keras.Model(tokens, layers.MultiHeadAttention(num_heads=2, key_dim=3)(tokens, tokens))
    # Queries, keys and values of 2 heads; their products; what they are mixed by; the end.
    wanted = 3 * 5 * 4 * 6 + 2 * 5 * 5 * 3 + 2 * 5 * 5 * 3 + 5 * 6 * 4
    assert cost.multiply_adds(model, (5, 4), "float32") == wanted


@pytest.mark.parametrize("masked", [False, True])
def test_each_step_of_a_recurrent_layer_counts(masked):
    model = keras.Sequential(
        [layers.Embedding(10, 6, mask_zero=masked), layers.LSTM(5), layers.Dense(2)]
    )
    wanted = 7 * (6 * 4 * 5 + 5 * 4 * 5) + 5 * 2
    assert cost.multiply_adds(model, (7,), "int32") == wanted
    assert cost.multiply_adds(model, (None,), "int32", size=7) == wanted


@keras.saving.register_keras_serializable("test_cost")
class Branches(layers.Layer):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.kernel = self.add_weight(shape=(4, 4))

    def call(self, inputs):
        def often(x):
            return tf.map_fn(lambda row: tf.matmul(row[None], self.kernel)[0], x)

        many = tf.repeat(inputs, 3, axis=0)
        first = tf.reduce_mean(inputs) > 0
        return tf.cond(first, lambda: often(many), lambda: tf.matmul(many, self.kernel)[:3])


def test_of_branches_the_costly_one_counts_and_loops_as_often_as_they_turn():
    assert cost.multiply_adds(Branches(), (4,), "float32") == 3 * 4 * 4


def test_a_network_by_hand_without_a_word(capfd):
    model = models.build_model("small", (28, 28, 1), 10, feature_dim=128)
    capfd.readouterr()
    features = 28 * 28 * 9 * (1 * 32 + 32 * 64) + 14 * 14 * 64 * 128
    wanted = features + 128 * 10 + 128 * 400 + 3 * 400 * 400 + 400
    for _ in range(2):
        assert cost.multiply_adds(model, (28, 28, 1), "uint8") == wanted
    assert capfd.readouterr() == ("", "")


def test_axes_without_a_length_take_that_which_is_given():
    layer = layers.Conv2D(2, 3, padding="same")
    assert cost.multiply_adds(layer, (None, None, 1), "float32", size=10) == 100 * 2 * 9
    with pytest.raises(ValueError, match="size: expected at least 1, received 0"):
        cost.multiply_adds(layer, (None, None, 1), "float32", size=0)


def test_the_model_is_left_as_it_is():
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dropout(0.5)])
    before = model.get_weights()
    assert cost.multiply_adds(model, (4,), "float32") == 0
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
