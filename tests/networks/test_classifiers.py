import re
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import btcp_tf
from btcp_tf.core import archives
from btcp_tf.main import main
from btcp_tf.networks import classifiers

SHAPE = (12, 12, 1)


def trunk(dropout=True):
    """Image → `conv` → `gap` `[n, 4]` → `hidden` `[n, 8]` (→ `rest`)."""
    image = keras.Input(SHAPE)
    gap = layers.GlobalAveragePooling2D(name="gap")(
        layers.Conv2D(4, 3, activation="relu", name="conv")(image)
    )
    x = layers.Dense(8, activation="relu", name="hidden")(gap)
    return image, layers.Dropout(0.5, name="rest")(x) if dropout else x


def functional(units=3, activation="softmax", behind=lambda x: x):
    image, x = trunk()
    return keras.Model(image, behind(layers.Dense(units, activation=activation, name="last")(x)))


def with_positive_logits(last):
    """A relu leaves them as they are."""
    model = functional(3, None if last else "relu", last or (lambda x: x))
    model.get_layer("last").bias.assign([1000.0, 1001.0, 1002.0])
    return model


def sequential(*last):
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Flatten(name="flat"),
            *last,
        ]
    )


def built_by_call():
    model = keras.Sequential([layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(5, "softmax")])
    model(np.zeros((1, *SHAPE)))
    return model


@keras.saving.register_keras_serializable("tests")
class Subclass(keras.Model):
    def __init__(self, units=3, **settings):
        super().__init__(**settings)
        self.units = units
        self.conv = layers.Conv2D(4, 3)
        self.pool = layers.GlobalAveragePooling2D(name="pool")
        self.drop = layers.Dropout(0.5)
        self.norm = layers.BatchNormalization(name="norm")
        self.out = layers.Dense(units, name="out")

    def call(self, x, training=None):
        x = self.drop(self.pool(self.conv(x)), training=training)
        return keras.ops.softmax(self.out(self.norm(x, training=training)))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class NotSavable(Subclass):
    def get_config(self):
        raise NotImplementedError


def subclass(kind=Subclass):
    model = kind()
    model(np.zeros((1, *SHAPE)))
    return model


def nested():
    """A rescaled whole classifier inside of a model."""
    return keras.Sequential([keras.Input(SHAPE), layers.Rescaling(0.5), functional()])


def softmax_layer():
    return functional(activation=None, behind=layers.Softmax())


MODELS = {
    "functional": (functional, "", 8),
    "functional, earlier layer": (functional, "gap", 4),
    "softmax layer": (softmax_layer, "", 8),
    "activation layer": (lambda: functional(3, None, layers.Activation("softmax")), "", 8),
    "softmax operation": (lambda: functional(3, None, keras.ops.softmax), "", 8),
    "logits": (lambda: functional(3, None), "", 8),
    "sigmoid": (lambda: functional(1, "sigmoid"), "", 8),
    "one logit": (lambda: functional(1, None), "", 8),
    "sequential": (lambda: sequential(layers.Dense(5, activation="softmax")), "", 400),
    "sequential, built by a call": (built_by_call, "", 400),
    "sequential on a functional": (
        lambda: keras.Sequential([keras.Model(*trunk()), layers.Dense(2, "softmax")]),
        "",
        8,
    ),
    "nested": (nested, "", 8),
    "nested, named layer": (nested, "hidden", 8),
    "subclass": (subclass, "", 4),
    "subclass, named layer": (subclass, "norm", 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_parts_answer_bit_for_bit_and_survive_a_file(name, tmp_path):
    make, features, width = MODELS[name]
    given = make()
    x = np.random.default_rng(1).normal(size=(20, *SHAPE)).astype(np.float32)
    # Statistics that are no zeros and ones: inference mode has to show.
    given.set_weights([w + np.float32(0.1) for w in given.get_weights()])
    weights = given.get_weights()
    answers = np.asarray(given(x, training=False))

    encoder, classifier = classifiers.take_apart(given, features)
    vectors = encoder(encoder.input)
    ends = keras.Model(encoder.input, [vectors, *classifiers.both_ends(classifier)(vectors)])
    vectors, logits, probs = map(np.asarray, ends(x, training=False))
    assert vectors.shape == (20, width)
    assert logits.shape == probs.shape == (20, max(2, answers.shape[1]))
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(
        np.log(probs[:, 1:] / probs[:, :1]), logits[:, 1:] - logits[:, :1], atol=1e-4
    )
    which = logits if "logit" in name else probs
    np.testing.assert_array_equal(which[:, -answers.shape[1] :], answers)
    # A copy: nothing of the given model changed, and nothing is shared with it.
    for before, after in zip(weights, given.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert given.trainable
    mine = {id(variable) for variable in ends.variables}
    assert not mine & {id(variable) for variable in given.variables}

    ends.save(tmp_path / "ends.keras")
    again = keras.models.load_model(tmp_path / "ends.keras")
    for found, wanted in zip(again(x, training=False), (vectors, logits, probs), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_takes_a_file(tmp_path):
    given = functional()
    given.save(tmp_path / "my.keras")
    x = np.ones((2, *SHAPE), np.float32)
    encoder, classifier = classifiers.take_apart(tmp_path / "my.keras")
    np.testing.assert_array_equal(classifier(encoder(x)), given(x))


def test_takes_an_adapted_normalization():
    x = np.random.default_rng(0).normal(5, 3, (40, 4)).astype(np.float32)
    columns = keras.layers.Normalization()
    columns.adapt(x)
    layers = [keras.Input((4,)), columns, keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    encoder, head = classifiers.take_apart(model)
    np.testing.assert_array_equal(head(encoder(x)), model(x))


def test_takes_a_keras_application():
    given = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=4)
    x = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype(np.float32)
    encoder, classifier = classifiers.take_apart(given)
    np.testing.assert_array_equal(classifier(encoder(x)), given(x, training=False))


def test_takes_tokens_and_text():
    tokens = [keras.Input((7,), dtype="int32"), layers.Embedding(9, 4)]
    ends = [layers.GlobalAveragePooling1D(), layers.Dense(2, activation="softmax")]
    encoder, _ = classifiers.take_apart(keras.Sequential([*tokens, *ends]))
    assert encoder(np.zeros((3, 7), np.int32)).shape == (3, 4)

    lookup = layers.TextVectorization(vocabulary=["good", "bad"], output_sequence_length=4)
    text = keras.Sequential(
        [keras.Input((), dtype="string"), lookup, layers.Embedding(9, 4), *ends]
    )
    words = np.array(["good", "bad good"])
    with pytest.raises(ValueError, match="example: expected a few inputs of a model that reads"):
        classifiers.take_apart(text)
    encoder, classifier = classifiers.take_apart(text, example=words)
    np.testing.assert_array_equal(
        classifier(encoder(keras.ops.convert_to_tensor(words))),
        text(keras.ops.convert_to_tensor(words)),
    )


def test_takes_an_adapted_vocabulary(tmp_path):
    lookup = layers.TextVectorization(output_sequence_length=4)
    lookup.adapt(["good", "bad", "good enough"])
    ends = [layers.GlobalAveragePooling1D(), layers.Dense(2, activation="softmax")]
    text = keras.Sequential(
        [keras.Input((), dtype="string"), lookup, layers.Embedding(9, 4), *ends]
    )
    words = keras.ops.convert_to_tensor(["good", "bad enough", "unheard of"])
    encoder, classifier = classifiers.take_apart(text, example=np.array(["good"]))
    keras.Model(encoder.input, classifier(encoder.output)).save(tmp_path / "parts.keras")
    for parts in (lambda x: classifier(encoder(x)), classifiers.load(tmp_path / "parts.keras")):
        np.testing.assert_array_equal(parts(words), text(words))


def squared(x):
    return x * x


def two_outputs():
    image, x = trunk()
    return keras.Model(image, {"boxes": layers.Dense(4)(x), "classes": layers.Dense(3)(x)})


def with_nan():
    model = functional()
    model.set_weights([w * np.nan for w in model.get_weights()])
    return model


def around():
    image, x = trunk()
    return keras.Model(image, layers.Dense(3)(layers.Concatenate()([x, layers.Flatten()(image)])))


def no_dense():
    image = keras.Input(SHAPE)
    return keras.Model(image, layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image)))


REFUSED = {
    "no such layer": (functional, "nope", "one layer of .*conv, gap, hidden.*received 'nope'"),
    "spatial features": (
        functional,
        "conv",
        r"vectors \[n, d\], received conv of shape \(None, 10",
    ),
    "several labels": (
        lambda: functional(3, "sigmoid"),
        "",
        "one true class .*several labels at once: .*sigmoid; use a judge for each .*fit_scores",
    ),
    "several labels as logits": (
        lambda: compiled(keras.losses.BinaryCrossentropy(from_logits=True), 3),
        "",
        "several labels at once: its loss is the binary cross-entropy",
    ),
    "relu": (lambda: functional(3, "relu"), "", "softmax, the sigmoid or the logits"),
    "relu of positive numbers": (
        lambda: with_positive_logits(None),
        "",
        "softmax, the sigmoid or the logits",
    ),
    "relu layer behind positive numbers": (
        lambda: with_positive_logits(layers.Activation("relu")),
        "",
        "softmax, the sigmoid or the logits",
    ),
    "something behind": (lambda: functional(3, None, lambda x: x * 2), "", "received others from"),
    "no dense layer": (no_dense, "", "a last Dense layer of 4 units"),
    "spatial answers": (
        lambda: keras.Sequential([keras.Input(SHAPE), layers.Conv2D(3, 3)]),
        "",
        r"class scores \[n, k\], received answers of shape .* one for each pixel.*fit_scores",
    ),
    "answers at several places": (
        lambda: keras.Sequential([keras.Input((6, 3)), layers.Dense(4)]),
        "",
        r"received answers of shape \(16, 6, 4\), one for each of several places.*fit_scores",
    ),
    "not finite": (with_nan, "", "finite class scores, received NaN"),
    "two outputs": (
        two_outputs,
        "",
        r"one output, .* received 2 of .*keras.Model\(model.input, model.outputs\[0\]\)",
    ),
    "a way around": (around, "hidden", "all of the answer passes through, received hidden"),
    "not built": (Subclass, "", "built and has weights"),
    "a function of one's own": (
        lambda: functional(3, None, layers.Activation(squared)),
        "",
        "Keras can copy, received .* with squared, which is not registered: put @keras",
    ),
    "a lambda": (
        lambda: functional(3, None, layers.Lambda(lambda x: x * 2)),
        "",
        "Keras can copy, .*the Lambda layer 'lambda.*register_keras_serializable.*fit_scores",
    ),
    "not savable": (lambda: subclass(NotSavable), "", "Keras can save.*received a NotSavable"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    make, features, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        classifiers.take_apart(make(), features)
    assert "expected" in str(caught.value) and "\n" not in str(caught.value)


def test_refuses_what_is_no_model(tmp_path):
    for value, name in ((3, "int"), (None, "NoneType")):
        with pytest.raises(ValueError, match=f"expected a Keras model .* received {name}"):
            classifiers.take_apart(value)
    for path, name in ((None, "NoneType"), (3, "int"), (b"x", "bytes")):
        with pytest.raises(ValueError, match=f"path: expected a path, received {name}"):
            classifiers.load(path)
    with pytest.raises(FileNotFoundError, match="received .*, which is no file"):
        classifiers.take_apart(tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a .keras file, received"):
        classifiers.take_apart(tmp_path / "none.keras")
    (tmp_path / "bad.keras").write_bytes(b"PK")
    with pytest.raises(ValueError, match="a zip archive, received .*bad.keras, which is none or"):
        classifiers.take_apart(tmp_path / "bad.keras")
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(ValueError, match="that Keras can load, received .*other.keras"):
        classifiers.take_apart(tmp_path / "other.keras")


class Doubled(layers.Layer):
    """Not registered: Keras writes it into files and does not find it again."""

    def call(self, x):
        return 2 * x


def test_a_file_with_an_unknown_class_is_refused_with_the_remedy(tmp_path):
    given = sequential(Doubled(), layers.Dense(3, "softmax"))
    with pytest.raises(ValueError, match="read from a file again, received .* Doubled, which is"):
        classifiers.check_loadable(given)
    given.save(tmp_path / "my.keras")
    with pytest.raises(
        ValueError, match="received .*my.keras .it holds Doubled, which is not .* import the module"
    ) as caught:
        classifiers.load(tmp_path / "my.keras")
    assert "\n" not in str(caught.value)
    with keras.saving.custom_object_scope({"Doubled": Doubled}):
        classifiers.check_loadable(given)
        x = np.ones((2, *SHAPE), np.float32)
        again = classifiers.load(tmp_path / "my.keras")
        np.testing.assert_array_equal(again(x), given(x))


@pytest.mark.parametrize("name", ["MobileNet", "MobileNetV3Small"])
def test_a_convolution_as_the_last_layer_is_refused_with_what_is_left(name):
    make = getattr(keras.applications, name)
    model = make((32, 32, 3), weights=None, classes=3)
    with pytest.raises(ValueError, match="expected a last Dense layer of 3 units, .*fit_scores"):
        btcp_tf.attach(model)


def test_tokens_that_a_model_does_not_know_ask_for_an_example():
    """Tokens that come as float32, as in Keras 2, look like pixels."""
    x = np.ones((4, 7), np.float32)
    model = keras.Sequential(
        [keras.Input((7,)), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(3, "softmax")]
    )
    with pytest.raises(
        ValueError, match="^example: expected a few inputs .* not in .0, 9."
    ) as told:
        btcp_tf.attach(model)
    assert "\n" not in str(told.value)
    with pytest.raises(
        ValueError, match="^example: expected other inputs that .* received these: "
    ):
        btcp_tf.attach(model, example=9 * x)
    judge = btcp_tf.attach(model, example=x)
    np.testing.assert_allclose(judge.predict(x)["probs"], model(x), atol=1e-6)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("abc", r"at least one input \[n, ...\], received <U3 \(\)"),
        ([[1.0, 2.0], [3.0]], "shape .* rows of different lengths"),
        (np.zeros((2, 5, 12, 1), np.float32), r"that functional\w* takes, received float32 \(2, 5"),
    ],
)
def test_an_example_that_is_none_is_refused(example, message):
    with pytest.raises(ValueError, match=f"^example: expected .*{message}") as caught:
        classifiers.take_apart(functional(activation=None), example=example)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_softmax_in_half_precision_is_refused_with_the_reason(policy):
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(3, "softmax", dtype=policy)
    with pytest.raises(ValueError, match=r"others .*they are b?float16, .* dtype float32"):
        classifiers.take_apart(keras.Model(inputs, dense(inputs)))
    logits = keras.layers.Dense(3, dtype=policy)(inputs)
    probs = keras.layers.Softmax(dtype="float32")(logits)
    classifiers.take_apart(keras.Model(inputs, probs))


def compiled(loss, units=1, activation=None):
    model = functional(units, activation)
    model.compile("sgd", loss)
    return model


def my_loss(truth, answers):
    return keras.ops.mean((truth - answers) ** 2)


REGRESSIONS = {
    "mse": ("mse", "mse"),
    "by its whole name": ("mean_absolute_error", "mae"),
    "an object": (keras.losses.Huber(), "huber"),
    "a function": (keras.losses.mean_squared_logarithmic_error, "msle"),
    "in a list": (["mape"], "mape"),
}


@pytest.mark.parametrize("case", REGRESSIONS)
@pytest.mark.parametrize("units", [1, 3])
def test_a_regression_is_no_classifier(case, units, tmp_path):
    loss, name = REGRESSIONS[case]
    model = compiled(loss, units)
    model.save(tmp_path / "my.keras")
    message = f"^classifier: expected .*softmax, sigmoid or logits.*regression.* loss is {name};"
    for given in (model, tmp_path / "my.keras", str(tmp_path / "my.keras")):
        with pytest.raises(ValueError, match=f"{message}.*from_logits=True") as caught:
            classifiers.take_apart(given)
        assert "\n" not in str(caught.value)
        classifiers.take_apart(given, from_logits=True)


@pytest.mark.parametrize(
    ("loss", "units", "activation"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), 1, None),
        ("binary_crossentropy", 1, None),
        ("hinge", 1, None),
        (my_loss, 1, None),
        ("mse", 1, "sigmoid"),
        ("mse", 3, "softmax"),
        (None, 1, None),
    ],
)
def test_what_may_be_a_classifier_is_taken(loss, units, activation, tmp_path):
    model = compiled(loss, units, activation) if loss else functional(units, activation)
    if loss is not my_loss:
        model.save(tmp_path / "my.keras")
        classifiers.take_apart(tmp_path / "my.keras")
    classifiers.take_apart(model)
    classifiers.take_apart(model, from_logits=activation is None)
    with pytest.raises(ValueError, match="from_logits: expected (True|False), as functional"):
        classifiers.take_apart(model, from_logits=activation is not None)


def test_what_is_no_file_of_a_classifier_is_called_by_its_name(tmp_path, capsys):
    model = functional()
    btcp_tf.attach(model).save(tmp_path / "judge.keras")
    model.save_weights(tmp_path / "my.weights.h5")
    (tmp_path / "old.h5").write_bytes((tmp_path / "my.weights.h5").read_bytes())
    (tmp_path / "models" / "1").mkdir(parents=True)
    (tmp_path / "models" / "1" / "saved_model.pb").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "flags.cfg").touch()
    cases = {
        "judge.keras": "expected a classifier, received a Judge .*the classifier's own .keras file",
        "my.weights.h5": "a file of weights alone: .*load_weights.* model.save",
        "old.h5": "a file of weights alone: .*load_weights.* model.save",
        "models": "a SavedModel: .*that it was exported from, saved with model.save",
        "models/1": "a SavedModel: .*that it was exported from, saved with model.save",
        "run": "the folder of a run.* --flagfile=.*flags.cfg",
    }
    for name, message in cases.items():
        for call in (classifiers.take_apart, btcp_tf.attach):
            with pytest.raises((ValueError, FileNotFoundError), match=f"^classifier: .*{message}"):
                call(tmp_path / name)
        words = ["--dataset=digits", f"--classifier={tmp_path / name}"]
        assert main([*words, f"--output_dir={tmp_path}/out"]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert re.search(message, line), line
        if name != "judge.keras":
            with pytest.raises(
                (ValueError, FileNotFoundError), match=f"^path: .*received .*{name}"
            ):
                btcp_tf.load(tmp_path / name)
    model.save(tmp_path / "my.keras")
    with pytest.raises(ValueError, match="that Judge.save wrote, .*my.keras .*btcp_tf.attach puts"):
        btcp_tf.load(tmp_path / "my.keras")


def keyword_calls():
    image = keras.Input(SHAPE)
    x = layers.Dense(4, "relu")(inputs=layers.Flatten()(inputs=image))
    return keras.Model(image, layers.Dense(3, "softmax")(inputs=x))


@keras.saving.register_keras_serializable("test_classifiers")
class Decorated(keras.Model):
    """Its head is called by keyword, inside of `tf.function`s."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.flat, self.last = layers.Flatten(), layers.Dense(3)

    def build(self, shape):
        self.last.build((None, int(np.prod(shape[1:]))))
        self.built = True

    @tf.function
    def logits(self, images):
        return self.last(inputs=self.flat(images))

    @tf.function
    def call(self, images):
        return tf.nn.softmax(self.logits(images))


def decorated():
    model = Decorated()
    model(np.zeros((2, *SHAPE), np.float32))
    return model


def with_lora():
    model = functional(3, "softmax")
    for layer in (model.layers[-1], model.get_layer("hidden")):
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    return model


def in_int8():
    model = functional(3, "softmax")
    model.layers[-1].quantize("int8")
    return model


ODD = {
    "tf.nn.softmax": lambda: functional(3, tf.nn.softmax),
    "an activation layer of tf.nn.softmax": lambda: functional(
        3, None, layers.Activation(tf.nn.softmax)
    ),
    "called with keywords": keyword_calls,
    "tf.function": decorated,
    "LoRA": with_lora,
    "int8": in_int8,
}


@pytest.mark.parametrize("case", ODD)
def test_takes_odd_models(case, tmp_path):
    model, x = ODD[case](), np.random.default_rng(0).normal(size=(9, *SHAPE)).astype(np.float32)
    wanted = model(x, training=False)
    judge = btcp_tf.attach(model, example=x)
    judge.save(tmp_path / "judge.keras")
    for one in (judge, btcp_tf.load(tmp_path / "judge.keras")):
        np.testing.assert_allclose(one.predict(x)["probs"], wanted, atol=1e-5)
    _, head = classifiers.take_apart(model, example=x)
    kernel, bias = classifiers.last_dense(head)
    features = np.random.default_rng(1).normal(size=(5, len(kernel))).astype(np.float32)
    logits, _ = classifiers.both_ends(head)(features)
    # int8 rounds the features, too.
    np.testing.assert_allclose(
        features @ kernel + bias, logits, atol=0.1 if case == "int8" else 1e-4
    )


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_takes_hdf5_files(tmp_path):
    model = functional(3, "softmax")
    x = np.random.default_rng(0).normal(size=(9, *SHAPE)).astype(np.float32)
    for name in ("my.h5", "my.hdf5"):
        model.save(tmp_path / name)
        judge = btcp_tf.attach(tmp_path / name)
        np.testing.assert_allclose(judge.predict(x)["probs"], model(x), atol=1e-6)
    compiled("mse").save(tmp_path / "regression.h5")
    with pytest.raises(ValueError, match="a regression: .* its loss is mse"):
        classifiers.take_apart(tmp_path / "regression.h5")
    (tmp_path / "my.keras").write_bytes((tmp_path / "my.h5").read_bytes())
    with pytest.raises(ValueError, match="HDF5 file under another name: .* ends with .h5"):
        classifiers.load(tmp_path / "my.keras")


def rewritten(path, change, target):
    """A copy of a `.keras` file with another description of its layers."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            copy.writestr(name, change(name, content))


def replaced(old, new):
    return lambda name, content: content.replace(old, new) if name == "config.json" else content


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_file_with_python_code_is_refused_before_it_is_read(ending, tmp_path, monkeypatch):
    path = tmp_path / f"my{ending}"
    functional(3, None, layers.Lambda(lambda x: x * 2, name="twice")).save(path)
    monkeypatch.setattr(keras.models, "load_model", None)
    with pytest.raises(
        ValueError, match=r"it holds the Lambda layer 'twice', .*load_weights .*fit_scores"
    ) as caught:
        classifiers.load(path)
    assert "unsafe" not in str(caught.value) and "\n" not in str(caught.value)


FOUND = {
    "a function of a module": (
        replaced(
            b'"activation": "softmax"',
            b'"activation": {"module": "os", "class_name": "function", "config": "system", '
            b'"registered_name": "function"}',
        ),
        "names the function 'system' of the module 'os', which is not registered",
    ),
    "an address": (
        replaced(b'"name": "conv"', b'"name": "conv", "path": "https://example.org/x"'),
        "names the address 'https://example.org/x' .path., which loading could read",
    ),
    "a file of words": (
        replaced(b'"name": "conv"', b'"name": "conv", "vocabulary": "/etc/hostname"'),
        "names the file '/etc/hostname' .vocabulary., which loading would read",
    ),
    "a SavedModel": (
        replaced(
            b'"class_name": "GlobalAveragePooling2D", "config": {',
            b'"class_name": "TFSMLayer", "config": {"filepath": "models/1", ',
        ),
        "holds a TFSMLayer, which runs the SavedModel 'models/1'; it cannot be taken apart",
    ),
    "an operation of Keras 2": (
        replaced(b'"class_name": "GlobalAveragePooling2D"', b'"class_name": "TFOpLambda"'),
        "holds TFOpLambda .*, an operation of TensorFlow in a model of Keras 2, which Keras 3 does",
    ),
    "Keras 2": (
        lambda name, content: (
            content if name != "metadata.json" else b'{"keras_version": "2.15.0"}'
        ),
        r"was written by Keras 2.15.0, .* cannot read: .* model.save.'my.h5'., which is read here",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_is_found_in_a_file_is_said(case, tmp_path):
    change, message = FOUND[case]
    functional(3, "softmax").save(tmp_path / "good.keras")
    rewritten(tmp_path / "good.keras", change, tmp_path / "my.keras")
    with pytest.raises(ValueError, match=f"^classifier: expected .*my.keras: it {message}"):
        classifiers.take_apart(tmp_path / "my.keras")


def grown(path, name, size):
    """Makes a member of an archive so large, with zeros, and hardly its file."""
    with zipfile.ZipFile(path) as source:
        members = {one: source.read(one) for one in source.namelist()}
    members[name] += b" " * size
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as copy:
        for one, content in members.items():
            copy.writestr(one, content)


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    import h5py

    good, path = tmp_path / "good.keras", tmp_path / "my.keras"
    functional(3, "softmax").save(good)
    monkeypatch.setattr(keras.models, "load_model", None)

    def refused(message, file=path):
        with pytest.raises(ValueError, match=f"^classifier: .*{file.name}: {message}"):
            classifiers.take_apart(file)

    shutil.copy(good, path)
    grown(path, "config.json", 2**26)
    assert path.stat().st_size < 100_000
    refused(r"config.json: expected at most 67,108,864 bytes, received 67,")
    # An array that is there by its size alone.
    monkeypatch.setattr(archives, "FLOOR", 2**20)
    for file in (tmp_path / "weights.h5", tmp_path / "my.h5"):
        with h5py.File(file, "w") as weights:
            weights.attrs["model_config"] = "{}"
            weights.create_dataset("layer/0", (2**40,), "f4")
            weights.create_dataset("layer/1", data=np.zeros(2**19, "f4"))
    told = "layer/0: expected at most 250 times what is stored of it, received 0 bytes that claim"
    refused(told, tmp_path / "my.h5")
    content = (tmp_path / "weights.h5").read_bytes()
    rewritten(good, lambda name, old: content if name.endswith(".h5") else old, path)
    refused(f"model.weights.h5: {told}")
    shutil.copy(good, path)
    grown(path, "model.weights.h5", 2**24)
    refused("model.weights.h5: expected at most 250 times what is stored of it")
    monkeypatch.undo()
    description = b'{"class_name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    rewritten(good, lambda name, old: description if name == "config.json" else old, path)
    with pytest.raises(ValueError, match="its layers are too deep in one another to be read"):
        classifiers.take_apart(path)


def test_what_is_no_model_of_keras_3_is_called_by_its_name(tmp_path):
    functional(3, "softmax").export(tmp_path / "model", verbose=False)
    layer = layers.TFSMLayer(tmp_path / "model", call_endpoint="serve")
    old = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})()
    cases = (
        (layer, "a TFSMLayer, which runs a SavedModel: .*fit_scores"),
        (tf.saved_model.load(str(tmp_path / "model")), "a SavedModel: .*fit_scores"),
        (old, r"a Sequential of tf_keras, which is Keras 2: model.save\('my.h5'\), and give"),
        (layers.Dense(3), "the layer Dense: make a model of it"),
        (keras.Sequential([keras.Input(SHAPE), layer]), "copy, .* the TFSMLayer .* SavedModel: "),
    )
    for given, message in cases:
        with pytest.raises(ValueError, match=f"^classifier: expected .*{message}"):
            classifiers.take_apart(given)
