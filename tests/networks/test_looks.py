import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import ndimage

import btcp_tf
from btcp_tf.networks import classifiers, looks, models
from btcp_tf.networks.looks import GROUPS, LOOKS

IMAGES = [name for name, look in LOOKS.items() if look.kind == "image"]
TOKENS = [name for name, look in LOOKS.items() if look.kind == "tokens"]
SMOOTH = [name for name in IMAGES if name != "mirror" and "shift" not in name]
"""Those that compute new values."""


def pixels(*shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).uniform(0, 255, shape)
    return values.astype(dtype) if dtype != "bfloat16" else tf.cast(values, dtype).numpy()


def made(name, shape, dtype="float32", seed=0):
    layer = LOOKS[name].make(shape, dtype, seed)
    if hasattr(layer, "adapt"):
        layer.adapt(np.random.default_rng(1).normal(size=(50, *shape)))
    return layer


def example(name, rows=4):
    """Inputs that suit a look, and their shape with and without fixed lengths."""
    kind = LOOKS[name].kind
    if kind == "image":
        return pixels(rows, 12, 20, 3), (12, 20, 3), (None, None, 3)
    if kind == "tokens":
        tokens = np.random.default_rng(0).integers(1, 100, (rows, 30)).astype("int32")
        return tokens, (30,), (None,)
    return np.random.default_rng(0).normal(size=(rows, 5)).astype("float32"), (5,), (5,)


def test_the_registry_is_public_by_its_name():
    assert btcp_tf.methods.LOOKS is LOOKS
    assert btcp_tf.networks.LOOKS is LOOKS
    assert {look.kind for look in LOOKS.values()} == {"image", "numbers", "tokens"}
    assert len({look.title for look in LOOKS.values()}) == len(LOOKS)
    assert not set(GROUPS) & set(LOOKS)
    assert {LOOKS[part].kind for parts in GROUPS.values() for part in parts} == {"image"}


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((28, 28), "uint8", "image"),
        ((None, None, 3), "float16", "image"),
        ((28, 28, 1), "int64", "image"),
        ((28, 28, 1), "string", ""),
        ((28, 28, 1), "bool", ""),
        ((28, 28, 5), "float32", ""),
        ((4, 4, 3), "float32", ""),
        ((7,), "float32", "numbers"),
        ((7,), "bfloat16", "numbers"),
        ((None,), "float32", ""),
        ((7,), "int32", "tokens"),
        ((None,), "int64", "tokens"),
        ((7,), "bool", ""),
        ((), "string", ""),
        ((), "int32", ""),
    ],
)
def test_which_looks_suit_which_inputs(shape, dtype, kind):
    wanted = tuple(name for name, look in LOOKS.items() if look.kind == kind)
    groups = tuple(GROUPS) if kind == "image" else ()
    assert looks.looks_for(shape, dtype) == wanted + groups


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "float64"])
@pytest.mark.parametrize("shape", [(3, 12, 20, 3), (3, 12, 20)])
def test_mirror(shape, dtype):
    x = pixels(*shape, dtype=dtype)
    np.testing.assert_array_equal(made("mirror", shape[1:])(x), x[:, :, ::-1])


def test_shifts_by_hand():
    x = pixels(2, 32, 48, 3)
    edge = np.pad(x, ((0, 0), (2, 2), (3, 3), (0, 0)), mode="edge")
    middle = edge[:, 2:-2], edge[:, :, 3:-3]
    wanted = {
        "shift_up": middle[1][:, 4:],
        "shift_down": middle[1][:, :-4],
        "shift_left": middle[0][:, :, 6:],
        "shift_right": middle[0][:, :, :-6],
    }
    for name, moved in wanted.items():
        np.testing.assert_array_equal(made(name, (32, 48, 3))(x), moved, err_msg=name)


@pytest.mark.parametrize(("side", "steps"), [(8, 1), (28, 2), (32, 2), (64, 4)])
def test_a_shift_is_a_sixteenth_of_the_side_and_at_least_one_pixel(side, steps):
    x = np.arange(side, dtype=np.float32)[None, :, None] * np.ones((1, 1, 9), np.float32)
    for layer in (made("shift_up", (side, 9)), made("shift_up", (None, None))):
        np.testing.assert_array_equal(layer(x)[0, :-steps], x[0, steps:])
        np.testing.assert_array_equal(layer(x)[0, -steps:], x[0, [-1] * steps])


@pytest.mark.parametrize(
    ("name", "degrees", "zoom"),
    [
        ("rotate_left", 8, 1),
        ("rotate_right", -8, 1),
        ("zoom_in", 0, 1.12),
        ("zoom_out", 0, 1 / 1.12),
    ],
)
@pytest.mark.parametrize("shape", [(17, 24, 3), (17, 24)])
def test_turns_and_zooms_as_scipy(name, degrees, zoom, shape):
    x = pixels(3, *shape)
    angle = np.deg2rad(degrees)
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / zoom
    middle = (np.array(shape[:2]) - 1)[:, None, None] / 2
    places = middle + np.tensordot(matrix, np.indices(shape[:2]) - middle, 1)
    places = np.round(places * 256) / 256
    wanted = np.empty(x.shape)
    for row in np.ndindex(3, *shape[2:]):
        here = (row[0], slice(None), slice(None), *row[1:])
        pixels_here = x[here].astype(np.float64)
        wanted[here] = ndimage.map_coordinates(pixels_here, places, order=1, mode="nearest")
    np.testing.assert_allclose(made(name, shape)(x), wanted, rtol=1e-5, atol=1e-4)


def test_where_left_and_in_are():
    x = pixels(2, 9, 9, 1)
    turned = looks.Resample(degrees=90.0)(x)
    np.testing.assert_allclose(turned, np.rot90(x, axes=(1, 2)), atol=1e-2)
    square = np.zeros((1, 20, 20, 1), np.float32)
    square[:, 5:15, 5:15] = 1
    sizes = [np.sum(made(name, (20, 20, 1))(square)) for name in ("zoom_out", "zoom_in")]
    np.testing.assert_allclose(sizes, [100 / 1.12**2, 100 * 1.12**2], rtol=0.02)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("brighter", lambda t: t + 0.125),
        ("darker", lambda t: t - 0.125),
        ("more_contrast", lambda t: 0.5 + 1.25 * (t - 0.5)),
        ("less_contrast", lambda t: 0.5 + 0.75 * (t - 0.5)),
        ("gamma_up", lambda t: t**1.25),
        ("gamma_down", lambda t: t**0.8),
    ],
)
def test_tones_in_the_range_of_each_image(name, change):
    x = pixels(3, 12, 20, 3) * np.float32([1, 0.01, 100])[:, None, None, None] - 50
    low, high = x.min((1, 2, 3), keepdims=True), x.max((1, 2, 3), keepdims=True)
    wanted = low + (high - low) * np.clip(change((x - low) / (high - low)), 0, 1)
    answers = made(name, (12, 20, 3))(x).numpy()
    np.testing.assert_allclose((answers - wanted) / (high - low), 0, atol=1e-5)
    assert (answers >= low).all() and (answers <= high).all()


def test_blur_as_scipy():
    x = pixels(3, 12, 20, 3)
    weights = np.outer([1, 2, 1], [1, 2, 1])[None, :, :, None] / 16
    wanted = ndimage.convolve(x.astype(np.float64), weights, mode="nearest")
    np.testing.assert_allclose(made("blur", (12, 20, 3))(x), wanted, rtol=1e-5)


def test_noise_is_mild_and_the_same_for_all():
    x = np.full((2, 100, 80, 3), 0.5, np.float32)
    x[:, 0, :2] = [[[0.0], [1.0]]]
    x[1] *= 4
    noise = (made("noise", (100, 80, 3))(x) - x).numpy()
    np.testing.assert_allclose(noise[1], 4 * noise[0], atol=1e-5)
    tile = noise[0, 1:64, :64]
    assert abs(tile.mean()) < 1e-3
    assert abs(tile.std() - 0.03) < 1e-3
    assert np.abs(np.corrcoef(tile[:, :-1].ravel(), tile[:, 1:].ravel())[0, 1]) < 0.05
    np.testing.assert_allclose(noise[0, 64:, :64], noise[0, :36, :64] * [[[1]]], atol=0.6)
    np.testing.assert_array_equal(noise[0, 65:, :16], noise[0, 1:36, 64:])


def test_jitter_by_hand():
    layer = looks.Jitter([2.0, 0.0, 1.0], seed=3)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    steps = 0.1 * np.random.default_rng(3).normal(size=3) * [2, 0, 1]
    np.testing.assert_allclose(layer(x), x + steps, rtol=1e-6)
    layer.adapt(x)
    steps = 0.1 * np.random.default_rng(3).normal(size=3) * x.std(0)
    np.testing.assert_allclose(layer(x), x + steps, rtol=1e-5)
    # Before samples were seen, nothing is known of the unit of a column.
    np.testing.assert_array_equal(LOOKS["jitter"].make((3,), "float32", 0)(x), x)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_tokens_that_are_dropped_or_masked(dtype):
    x = np.arange(1, 41).astype(dtype)[None] + np.array([[0], [100]], dtype)
    dropped = made("drop_tokens", (40,), seed=2)(x).numpy()
    masked = made("mask_tokens", (40,), seed=2)(x).numpy()
    chosen = masked[0] == 0
    assert chosen.sum() == 4
    for row in range(2):
        np.testing.assert_array_equal(masked[row], np.where(chosen, 0, x[row]))
        np.testing.assert_array_equal(dropped[row], [*x[row, ~chosen], 0, 0, 0, 0])


@pytest.mark.parametrize("length", [1, 2, 5, 200])
def test_tokens_of_other_lengths(length):
    x = np.arange(1, length + 1)[None]
    for fixed in (length, None):
        masked = made("mask_tokens", (fixed,))(x).numpy()
        dropped = made("drop_tokens", (fixed,))(x).numpy()
        if fixed:
            assert (masked == 0).sum() == min(max(round(length / 10), 1), length - 1)
        kept = masked[masked > 0]
        np.testing.assert_array_equal(dropped[0], np.pad(kept, (0, length - len(kept))))


DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in LOOKS
        for dtype in DTYPES
        if name in looks.looks_for(example(name)[1], dtype)
    ],
)
def test_shape_and_dtype_stay(name, dtype):
    x, shape, open_shape = example(name, rows=2)
    x = tf.cast(x % 100, dtype)
    layer = made(name, shape, dtype)
    for inputs in (x, x.numpy(), x[:0]):
        changed = layer(inputs)
        assert changed.dtype == x.dtype and changed.shape == inputs.shape
    symbolic = layer(keras.Input(open_shape, dtype=dtype))
    assert symbolic.dtype == dtype and symbolic.shape == (None, *open_shape)


@pytest.mark.parametrize("name", IMAGES)
def test_images_without_an_axis_of_channels(name):
    x = pixels(2, 12, 20)
    wanted = made(name, (12, 20, 1))(x[..., None])[..., 0]
    for shape in ((12, 20), (None, None)):
        np.testing.assert_array_equal(made(name, shape)(x), wanted)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
@pytest.mark.parametrize("name", SMOOTH)
def test_many_digits_stay(name, dtype):
    x = pixels(2, 12, 20, 3, dtype=dtype) * 2 + 10**8
    changed = np.float64(made(name, (12, 20, 3), dtype)(x)) - 10**8
    near = np.float64(made(name, (12, 20, 3), "float64")(np.float64(x) - 10**8))
    np.testing.assert_allclose(changed, near, atol=0.5 if "int" in dtype else 1e-5)


@pytest.mark.parametrize("name", LOOKS)
def test_rows_are_apart_and_answers_repeat(name):
    x, shape, open_shape = example(name)
    layer = made(name, shape)
    changed = layer(x).numpy()
    assert not np.array_equal(changed, x)
    np.testing.assert_array_equal(layer(x), changed)
    np.testing.assert_array_equal(made(name, shape)(x), changed)
    for row in range(len(x)):
        np.testing.assert_array_equal(layer(x[row : row + 1])[0], changed[row])
    others = np.concatenate([1000 * x[:2], x[2:]]).astype(x.dtype)
    np.testing.assert_array_equal(layer(others)[2:], changed[2:])
    assert np.array_equal(made(name, shape, seed=1)(x), changed) != LOOKS[name].seeded
    # In a graph, and where no length is fixed.
    for lengths in (shape, open_shape):
        layer = made(name, lengths)
        inputs = keras.Input(lengths, dtype=x.dtype.name)
        model = keras.Model(inputs, layer(inputs))
        graph = tf.function(model, input_signature=[tf.TensorSpec((None, *lengths), x.dtype)])
        np.testing.assert_allclose(graph(x), layer(x), rtol=1e-6, atol=1e-4)
        assert graph(x[:0]).shape == (0, *shape)
        if name not in TOKENS:
            np.testing.assert_array_equal(layer(x), changed)


@pytest.mark.parametrize("name", [name for name in IMAGES if "gamma" not in name])
def test_8_bit_pixels_are_the_same_in_any_graph(name):
    x = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3)).astype(np.uint8)
    layer = made(name, (32, 32, 3), "uint8")
    changed = layer(x).numpy()
    exact = np.clip(np.round(layer(x.astype(np.float64))), 0, 255)
    np.testing.assert_array_equal(changed, exact)
    for lengths in ((32, 32, 3), (None, None, 3)):
        signature = [tf.TensorSpec((None, *lengths), "uint8")]
        for quick in (False, True) if lengths[0] else (False,):
            graph = tf.function(layer, input_signature=signature, jit_compile=quick)
            np.testing.assert_array_equal(graph(x), changed)


@pytest.mark.parametrize("name", [*SMOOTH, "mirror", "shift_up"])
def test_an_image_of_one_color_stays(name):
    for dtype in ("float32", "float16", "uint8"):
        for color in (0, 0.1, 77, 255):
            x = np.full((2, 12, 20, 3), color, dtype)
            x[1] = 3
            np.testing.assert_array_equal(made(name, (12, 20, 3), dtype)(x), x)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("span", [1e-45, 1e-38, 1e-32, 1e-20, 1e30])
def test_hardly_any_and_much_contrast_is_no_nan(name, span):
    x = (pixels(2, 12, 20, 3) * span).astype(np.float32)
    changed = made(name, (12, 20, 3))(x).numpy()
    assert np.isfinite(changed).all()
    # Graphs take the smallest numbers for 0.
    assert changed.min() >= x.min() - 1e-37 and changed.max() <= x.max() + 1e-37


@pytest.mark.parametrize("name", [*IMAGES, "jitter"])
def test_a_small_step_of_the_input_is_a_small_step_of_the_answer(name):
    x, shape, _ = example(name)
    layer = made(name, shape)
    direction = np.random.default_rng(5).normal(size=x.shape).astype(np.float32)
    steps = [
        np.abs(layer(x + size * direction) - layer(x)).max() / (size * np.abs(direction).max())
        for size in (1e-1, 1e-2)
    ]
    # Not steeper the smaller the step: there is no jump. Gamma is steep where it is dark.
    assert max(steps) < 4


@pytest.mark.parametrize("kind", ["image", "numbers", "tokens"])
def test_looks_go_where_the_model_goes(kind, tmp_path):
    names = [name for name, look in LOOKS.items() if look.kind == kind]
    x, shape, _ = example(names[0])
    inputs = keras.Input(shape, dtype=x.dtype.name)
    changed = {name: made(name, shape, seed=4)(inputs) for name in names}
    model = keras.Model(inputs, changed)
    model.save(tmp_path / "looks.keras")
    loaded = keras.models.load_model(tmp_path / "looks.keras")
    for name, wanted in model(x).items():
        np.testing.assert_array_equal(loaded(x)[name], wanted, err_msg=name)
    assert not model.trainable_weights


def test_the_policy_rounds_nothing():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x = pixels(2, 12, 20, 3)
        inputs = keras.Input((12, 20, 3), dtype="float32")
        model = keras.Model(inputs, made("noise", (12, 20, 3))(inputs))
        under = model(x)
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_array_equal(under, made("noise", (12, 20, 3))(x))


def classifier(*middle, shape=(8, 8, 3)):
    return keras.Sequential([keras.Input(shape), *middle])


def test_dropout_is_one_draw_for_all_rows():
    model = classifier(layers.Dropout(0.3), shape=(2000,))
    thin = looks.fixed_dropout(model, seed=0)
    answers = thin(np.ones((3, 2000), np.float32)).numpy()
    np.testing.assert_array_equal(answers[1:], answers[:-1])
    np.testing.assert_allclose(np.unique(answers), [0, 1 / 0.7], rtol=1e-6)
    assert abs((answers == 0).mean() - 0.3) < 0.04
    again, other = (looks.fixed_dropout(model, seed)(np.ones((1, 2000))) for seed in (0, 1))
    np.testing.assert_array_equal(again[0], answers[0])
    assert not np.array_equal(other[0], answers[0])
    assert thin(np.ones((0, 2000))).shape == (0, 2000)


def test_whole_maps_are_dropped_and_little_is_stored():
    thin = looks.fixed_dropout(classifier(layers.SpatialDropout2D(0.5), shape=(8, 8, 64)), 0)
    answers = thin(np.ones((1, 8, 8, 64), np.float32)).numpy()
    np.testing.assert_array_equal(answers, np.broadcast_to(answers[:, :1, :1], answers.shape))
    assert set(np.unique(answers)) == {0, 2}
    assert thin.count_params() == 64 + 1  # A scale of each map, and no offset.


def test_noise_shapes_count():
    thin = looks.fixed_dropout(classifier(layers.Dropout(0.5, (None, 1, 9)), shape=(6, 9)), 0)
    answers = thin(np.ones((2, 6, 9), np.float32)).numpy()
    np.testing.assert_array_equal(answers, np.broadcast_to(answers[:1, :1], answers.shape))


@pytest.mark.parametrize("kind", [layers.GaussianDropout, layers.AlphaDropout])
def test_other_dropout_keeps_mean_and_spread(kind):
    x = np.random.default_rng(0).normal(size=(2, 4000)).astype(np.float32)
    thin = looks.fixed_dropout(classifier(kind(0.2), shape=(4000,)), 0)
    answers = thin(x).numpy()
    assert abs(answers.mean()) < 0.06
    wanted = {layers.GaussianDropout: (1 + 0.2 / 0.8) ** 0.5, layers.AlphaDropout: 1}[kind]
    assert abs(answers.std() - wanted) < 0.06
    # The same line for each number, whatever the row.
    zero, one = thin(np.zeros_like(x)).numpy(), thin(np.ones_like(x)).numpy()
    np.testing.assert_allclose(answers, zero + x * (one - zero), atol=1e-5)


def nested(always=True):
    inner = keras.Sequential([keras.Input((6, 6, 4)), layers.Dropout(0.5), layers.Flatten()])
    plain = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3)], name="plain")
    image = keras.Input((8, 8, 3), name="image")
    x = layers.BatchNormalization(name="norm")(plain(image))
    vectors = layers.Dropout(0.4, name="always")(inner(x), training=always)
    probs = layers.Dense(3, "softmax", name="probs")(vectors)
    return keras.Model(image, {"probs": probs, "vectors": vectors})


def test_nested_models_are_thinned_and_weights_are_shared():
    model = nested()
    model.compile(loss=lambda truth, answer: answer)
    x = pixels(4, 8, 8, 3) / 255
    before = model.get_weights()
    thin = looks.fixed_dropout(model, seed=0)
    assert {id(weight) for weight in model.weights} < {id(weight) for weight in thin.weights}
    answers = thin(x)
    assert set(answers) == {"probs", "vectors"}
    np.testing.assert_array_equal(thin(x)["probs"], answers["probs"])
    np.testing.assert_array_equal(thin(x, training=True)["probs"], answers["probs"])
    np.testing.assert_allclose(thin(x[:1])["probs"][0], answers["probs"][0], atol=1e-6)
    # By hand: two draws, one after the other.
    inner, always = sorted(thin.layers[-1].draws, key=lambda draw: -draw.scale.ndim)
    vectors = model.get_layer("norm")(model.get_layer("plain")(x)) * inner.scale
    vectors = np.reshape(vectors, (4, -1)) * always.scale
    np.testing.assert_allclose(answers["vectors"], vectors, atol=1e-5)
    assert 0.5 < (vectors == 0).mean() < 0.9
    # The classifier is as it was, and both change together.
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    model.get_layer("probs").bias.assign([9.0, 0.0, 0.0])
    assert np.mean(thin(x)["probs"][:, 0]) > 0.9


def test_a_file_keeps_the_weights_once(tmp_path):
    model = nested(always=None)
    for weight in model.weights:
        weight.assign(np.random.default_rng(1).uniform(0.1, 1, weight.shape))
    image = keras.Input((8, 8, 3))
    answers = [model(image)["probs"]]
    answers += [looks.fixed_dropout(model, seed)(image)["probs"] for seed in (0, 1)]
    whole = keras.Model(image, answers)
    whole.save(tmp_path / "whole.keras")
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    x = pixels(4, 8, 8, 3) / 255
    for found, wanted in zip(loaded(x), whole(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len({np.asarray(answer).tobytes() for answer in whole(x)}) == 3
    assert loaded.count_params() == whole.count_params()
    masks = 2 * (6 * 6 * 4 + 144 + 2)
    assert whole.count_params() == model.count_params() + masks


def test_the_encoder_of_a_classifier_is_thinned_beside_it(tmp_path):
    model = models.build_model("small", (8, 8, 1), 3, feature_dim=4)
    encoder, head = model.get_layer("encoder"), model.get_layer("classifier")
    ends = classifiers.both_ends(head)
    image = keras.Input((8, 8, 1), dtype="uint8")
    thin = looks.fixed_dropout(encoder, seed=0)
    turned = LOOKS["rotate_left"].make((8, 8, 1), "uint8", 0)(image)
    whole = keras.Model(
        image, [ends(encoder(image))[1], ends(thin(image))[1], ends(thin(turned))[1]]
    )
    whole.save(tmp_path / "whole.keras")
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    x = pixels(4, 8, 8, 1, dtype="uint8")
    for found, wanted in zip(loaded(x), whole(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert loaded.count_params() == encoder.count_params() + head.count_params() + sum(
        draw.count_params() for draw in thin.layers[-1].draws
    )


def test_the_classifier_works_as_before(tmp_path):
    model = nested(always=None)
    x = pixels(2, 8, 8, 3)
    answers, names = model(x), [layer.name for layer in model.layers]
    looks.fixed_dropout(model, seed=0)
    assert [layer.name for layer in model.layers] == names
    np.testing.assert_array_equal(model(x)["probs"], answers["probs"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x)["probs"], answers["probs"])
    twin = keras.models.clone_model(model)
    assert [weight.shape for weight in twin.weights] == [weight.shape for weight in model.weights]


def test_maps_and_sequences_of_any_length_are_thinned():
    model = classifier(
        layers.Embedding(20, 4, mask_zero=True), layers.Dropout(0.5), layers.LSTM(3), shape=(None,)
    )
    thin = looks.fixed_dropout(model, seed=0)
    for length in (5, 64, 150):
        tokens = np.arange(2 * length).reshape(2, length) % 20
        assert np.isfinite(thin(tokens)).all()
    # Zeros at the end are left out, as in the classifier.
    padded = np.pad(tokens, ((0, 0), (0, 10)))
    np.testing.assert_allclose(thin(padded), thin(tokens), atol=1e-6)


def test_half_precision_stays():
    model = classifier(layers.Conv2D(4, 3, dtype="mixed_float16"), layers.Dropout(0.5))
    thin = looks.fixed_dropout(model, seed=0)
    assert thin(np.ones((1, 8, 8, 3))).dtype == "float16"


@pytest.mark.parametrize(
    ("model", "told"),
    # Made in the test: layers of dropout start TensorFlow, which test_training sets up first.
    [
        (lambda: classifier(layers.Flatten(name="flat")), "a model with dropout, received .* flat"),
        (lambda: classifier(layers.Dropout(0.0)), "expected a model with dropout"),
        (
            lambda: keras.Sequential([layers.Dropout(0.5)]),
            "a built Sequential model, received a Sequential",
        ),
        (lambda: layers.Dropout(0.5), "expected a functional or a built .* received a Dropout"),
    ],
)
def test_what_cannot_be_thinned_is_said(model, told):
    with pytest.raises(ValueError, match=told):
        looks.fixed_dropout(model(), seed=0)
