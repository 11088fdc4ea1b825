"""What a judge refuses: samples that it knows, inputs that cannot be meant, soft labels."""

import warnings

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import btcp_tf
from btcp_tf import judge as module
from btcp_tf.decisions import exported
from btcp_tf.networks import plausibility
from btcp_tf.serving.scorer import Scorer

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")

CLASSES = 3


def samples(n, seed):
    """Three overlapping clusters in the plane."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    centers = np.array([[0, 2], [2, -1], [-2, -1]])
    return (centers[y] + random.normal(size=(n, 2))).astype(np.float32), y


@pytest.fixture(scope="module")
def classifier():
    """The nearest center; a ReLU in front of it swallows NaN."""
    inputs = keras.Input((2,))
    wide = keras.layers.Dense(4, "relu", use_bias=False)
    last = keras.layers.Dense(CLASSES, "softmax")
    model = keras.Model(inputs, last(wide(inputs)))
    back = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    wide.set_weights([back.T])
    last.set_weights([back @ np.array([[0, 2], [2, -1], [-2, -1]]).T, np.array([0, -0.5, -0.5])])
    return model


ANSWER = {"evidence": ("answer",), "looks": (), "verbose": 0}


@pytest.fixture(scope="module")
def fitted(classifier):
    """Has learned from 400 samples; 600 others are its classifier's."""
    judge = btcp_tf.attach(classifier)
    return judge.fit(*samples(400, 1), reference=samples(600, 0), **ANSWER)


def copy_of(judge):
    copy = module.Judge(keras.models.clone_model(judge.model))
    copy.model.set_weights(judge.model.get_weights())
    return copy


@pytest.fixture
def judge(fitted):
    return copy_of(fitted)


def batches(x, y):
    return (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(64),)


def mixed(seen, fresh):
    """Samples of two sets, one after the other."""
    return tuple(np.concatenate(pair) for pair in zip(seen, fresh, strict=True))


PROMISE = {"rule": "target_risk", "risk": 0.3, "delta": 0.1}


@pytest.mark.parametrize("given", [lambda x, y: (x, y), batches], ids=["arrays", "dataset"])
def test_known_samples_take_no_part_in_calibration_and_evaluation(judge, given):
    x, y = samples(400, 1)
    part = x[:100], y[:100]
    fresh = samples(300, 2)
    few = mixed((x[:10], y[:10]), fresh)
    # A promise is made on the others where the known ones are few.
    told = "10 of 310 samples are among those of fit; left out, 300 are used"
    with pytest.warns(UserWarning, match=told):
        chosen = judge.select_threshold(*given(*few), **PROMISE)
    assert chosen.n == 300
    many = mixed(part, fresh)
    with pytest.raises(ValueError, match="at most 5% others, received: 100 of 400 .* fresh"):
        judge.select_threshold(*given(*many), **PROMISE)
    assert judge.threshold == chosen
    with pytest.warns(UserWarning, match="100 of 400 samples .*; left out, 300 are used"):
        assert judge.select_threshold(*given(*many)).n == 300
    with pytest.warns(UserWarning, match="100 of 400 samples .*; left out, 300 are evaluated"):
        found = judge.evaluate(*given(*many), draws=5)
    wanted = judge.evaluate(*fresh, draws=5)
    assert [row["auroc"] for row in found] == pytest.approx([row["auroc"] for row in wanted])
    assert found[0]["n"] == 300
    # Row i is of input i.
    with pytest.warns(UserWarning, match="100 of 400 samples .* they are kept"):
        assert len(judge.predictions(*given(*many)).labels) == 400
    for call in (judge.evaluate, judge.select_threshold):
        with pytest.raises(ValueError, match="100 of 100 samples .* give fresh samples"):
            call(*given(*part))
    with pytest.raises(ValueError, match="600 of 600 samples are among those of the reference"):
        judge.evaluate(*given(*samples(600, 0)))


def test_what_was_seen_is_known_after_a_file_and_forgotten_by_the_next_fit(judge, tmp_path):
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras")
    with pytest.raises(ValueError, match="400 of 400 samples are among those of fit"):
        again.evaluate(*samples(400, 1))
    assert again.input_range == judge.input_range
    again.fit(*samples(400, 3), **ANSWER)
    assert again.evaluate(*samples(400, 1), draws=5)[0]["n"] == 400
    again.fit_btcp(*samples(400, 1), estimator_epochs=1, verbose=0)
    with pytest.raises(ValueError, match="400 of 400 samples are among those of fit"):
        again.evaluate(*samples(400, 1))


def test_held_out_samples_that_are_in_the_reference_are_not_learned_from(classifier, learned):
    seen, fresh = samples(300, 0), samples(200, 1)
    x, y = mixed((seen[0][:20], seen[1][:20]), fresh)
    judge = btcp_tf.attach(classifier)
    told = "20 of 220 samples are among those of the reference; left out, 200 are learned from"
    with pytest.warns(UserWarning, match=told) as caught:
        judge.fit(x, y, reference=seen, copies=[x + 0.1], ensemble=[classifier], **ANSWER)
    assert judge.fitted["samples"] == 200
    np.testing.assert_array_equal(learned[0].labels, fresh[1])
    rows = [len(learned[0].copies[0].logits), *map(len, learned[0].ensemble)]
    assert rows == [200, 200, 200]
    # What a fold has learned from is known, and said where it is among x.
    with pytest.warns(UserWarning, match="200 of 200 samples are among the held-out ones of the"):
        judge.fit(*fresh, folds=[(classifier, fresh, None)], **ANSWER)
    judge.fit(*samples(90, 5), folds=[(classifier, fresh, None)], **ANSWER)
    with pytest.raises(ValueError, match="200 of 200 samples are among the held-out ones of the"):
        judge.select_threshold(*fresh)
    # They point to the line above, however deep they arose.
    assert {warning.filename for warning in caught} == {__file__}


def test_rows_of_a_table_repeat_by_nature(classifier):
    def table(n, seed):
        x, y = samples(n, seed)
        return np.rint(x), y

    judge = btcp_tf.attach(classifier).fit(*table(400, 1), reference=table(600, 0), **ANSWER)
    with pytest.warns(UserWarning, match="no more than repeat by nature"):
        assert judge.select_threshold(*table(300, 2), **PROMISE).n == 300
    with pytest.warns(UserWarning, match="no more than repeat by nature"):
        assert judge.evaluate(*table(300, 2), draws=5)[0]["n"] == 300


def test_texts_are_known_again():
    words = keras.Input((), dtype="string")
    x = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words)
    model = keras.Model(words, keras.layers.Dense(2, activation="softmax")(x))
    text = np.array([f"text {number}" for number in range(90)])
    y = np.arange(90) % 2
    judge = btcp_tf.attach(model, example=text[:3]).fit(text[:60], y[:60], **ANSWER)
    assert judge.input_range is None
    with pytest.warns(UserWarning, match="30 of 60 samples are among those of fit; left out"):
        assert judge.evaluate(text[30:], y[30:], draws=5)[0]["n"] == 30


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_are_refused_though_the_answer_is(judge, classifier, bad):
    x, y = samples(80, 4)
    x[7, 0] = bad
    message = f"x: expected finite numbers, received {bad} in input 7"
    fresh = btcp_tf.attach(classifier)
    for call in (
        lambda: judge.predict(x),
        lambda: judge.evaluate(x, y),
        lambda: judge.predictions(x, y),
        lambda: judge.select_threshold(x, y),
        lambda: fresh.fit(x, y, verbose=0),
        lambda: fresh.fit_btcp(x, y, verbose=0),
        lambda: fresh.predict(tf.data.Dataset.from_tensor_slices(x).batch(3)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match=message.replace("x:", "sample:")):
        judge.export("none", "name", x)


def images(n, seed):
    """Bright or dark images in uint8, and whether they are bright."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, n)
    x = random.normal(110 + 40 * y[:, None, None, None], 60, (n, 8, 8, 1))
    return x.clip(0, 255).astype(np.uint8), y


def of_images(rescaling=None, dtype="float32"):
    """Brighter than the mean, or not."""
    inputs = keras.Input((8, 8, 1), dtype=dtype)
    x = inputs if rescaling is None else keras.layers.Rescaling(*rescaling)(inputs)
    last = keras.layers.Dense(2, "softmax")
    model = keras.Model(inputs, last(keras.layers.Flatten()(x)))
    last.set_weights([np.tile([-0.2, 0.2], (64, 1)), np.array([6.4, -6.4])])
    return model


SCALES = {"0_1": (1 / 255, 0), "-1_1": (2 / 255, -1), "0_255": (1, 0)}


def scaled(x, pixels):
    scale, offset = SCALES[pixels]
    return (x * scale + offset).astype(np.float32)


@pytest.mark.parametrize(
    ("pixels", "wrong"), [("0_1", "0_255"), ("-1_1", "0_255"), ("0_255", "0_1"), ("0_255", "-1_1")]
)
def test_pixels_on_another_scale_are_refused(pixels, wrong):
    x, y = images(200, 1)
    judge = btcp_tf.attach(of_images()).fit(scaled(x, pixels), y, **ANSWER)
    test, truth = images(100, 2)
    given = test if wrong == "0_255" else scaled(test, wrong)
    for call in (
        lambda: judge.predict(given),
        lambda: judge.predict(given[:1]),
        lambda: judge.evaluate(given, truth),
        lambda: judge.select_threshold(given, truth),
        lambda: judge.predict(tf.data.Dataset.from_tensor_slices(given).batch(30)),
        lambda: judge.export("none", "name", given),
    ):
        with pytest.raises(ValueError, match="expected numbers like those of fit.*input_range"):
            call()
    fit = btcp_tf.attach(of_images())
    with pytest.raises(ValueError, match="reference: x: expected numbers like those of fit"):
        fit.fit(scaled(x, pixels), y, reference=(given, truth), verbose=0)
    judge.predict(scaled(test, pixels))
    judge.input_range = None
    assert len(judge.predict(given)["predicted"]) == 100


def test_without_fit_the_range_is_that_of_the_threshold(classifier):
    judge = btcp_tf.attach(classifier)
    assert judge.input_range is None
    judge.predict(1000 * samples(5, 0)[0])
    judge.select_threshold(*samples(200, 1))
    with pytest.raises(ValueError, match="expected numbers like those of fit"):
        judge.predict(1000 * samples(5, 0)[0])


def test_a_classifier_that_cannot_be_right_is_said(classifier):
    x, y = samples(200, 1)
    judge = btcp_tf.attach(classifier)
    for given, truth in ((x, (y + 1) % CLASSES), (x[::-1], y)):
        with pytest.warns(
            UserWarning, match="right on .* suspects are the scale of x.*color.*in y"
        ):
            judge.fit(given, truth, **ANSWER)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*suspects")
        judge.fit(x, y, **ANSWER)


def test_a_classifier_that_knows_nothing_is_said_of_every_estimate(classifier):
    x, y = samples(300, 1)
    labels = np.random.default_rng(0).permutation(y)
    judge = btcp_tf.attach(classifier)
    for fit in (
        lambda: judge.fit(x, labels, **ANSWER),
        lambda: judge.fit_btcp(x, labels, estimator_epochs=1, verbose=0),
    ):
        with pytest.warns(UserWarning, match="the classifier is right on .*or it is not trained"):
            fit()


def two_classes(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((2,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
    return keras.Sequential(layers)


@pytest.mark.parametrize("given", [lambda x, y: (x, y), batches], ids=["arrays", "dataset"])
def test_an_untrained_classifier_of_two_classes_is_said_although_its_answers_pass(given):
    x, y = samples(400, 1)
    x, y = x[y > 0], y[y > 0] == 1
    # Labels that nobody can know all, so that luck alone does not get far.
    y ^= np.random.default_rng(0).random(len(y)) < 0.15
    found = []
    for seed in range(40):
        model = two_classes(seed)
        p = model(x).numpy()
        z = np.log(p / (1 - p))
        answers = plausibility.examine(np.hstack([0 * z, z]), y)
        if answers.problem or answers.gain > 0.5 * answers.entropy:
            continue
        judge = btcp_tf.attach(model)
        weights = judge.model.get_weights()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            judge.fit(*given(x, y), **ANSWER)
        found.append(any("weights were shuffled" in str(one.message) for one in caught))
        # The comparison is made on a copy.
        same = zip(weights, judge.model.get_weights(), strict=False)
        assert all(np.array_equal(*pair) for pair in list(same)[:4])
        if len(found) == 2:
            break
    # One of twenty may be the best of its kind.
    assert len(found) == 2 and any(found)


def test_labels_of_one_class_are_warned_of_wherever_they_decide(judge, classifier):
    x, y = samples(300, 5)
    x, y = x[y == 1], y[y == 1]
    fresh = btcp_tf.attach(classifier)
    for call, done in (
        (lambda: judge.evaluate(x, y, draws=5), "measured on"),
        (lambda: judge.select_threshold(x, y), "chosen on"),
        (lambda: judge.select_threshold(x, y, rule="target_coverage", coverage=0.5), "chosen on"),
        (lambda: fresh.fit_btcp(x, y, estimator_epochs=1, verbose=0), "learned from"),
    ):
        message = f"y: expected labels of several classes, .* of '1' alone: what is {done} them"
        with pytest.warns(UserWarning, match=message):
            call()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*several classes")
        judge.select_threshold(x, rule="target_coverage", coverage=0.5)
        judge.evaluate(*samples(100, 6), draws=5)


def test_labels_may_be_the_names_of_the_classes(classifier):
    names = np.array(["cat", "dog", "owl"])
    judge = btcp_tf.attach(classifier, class_names=names)
    x, y = samples(300, 1)
    fold = (classifier, samples(200, 3), samples(200, 4))
    judge.fit(x, y, reference=samples(300, 0), folds=[fold], **ANSWER)
    again = btcp_tf.attach(classifier, class_names=names)
    parts = [(inputs, names[labels]) for inputs, labels in fold[1:]]
    fold = (classifier, *parts)
    reference = samples(300, 0)
    reference = reference[0], list(names[reference[1]])
    again.fit(x, names[y].astype(object), reference=reference, folds=[fold], **ANSWER)
    assert again.fitted == judge.fitted
    x, y = samples(200, 5)
    assert again.select_threshold(x, names[y][:, None]) == judge.select_threshold(x, y)
    x, y = samples(200, 6)
    as_bytes = tf.data.Dataset.from_tensor_slices((x, names[y])).batch(200)
    assert again.evaluate(as_bytes, draws=5) == judge.evaluate(x, y, draws=5)
    np.testing.assert_array_equal(again.predictions(as_bytes).labels, y)
    again.fit_btcp(x, names[y], estimator_epochs=1, verbose=0)
    for call in (again.fit, again.evaluate, again.select_threshold, again.fit_btcp):
        with pytest.raises(ValueError, match=r"y: .*cat, dog, owl.*received cow, hen; name all"):
            call(samples(3, 7)[0], np.array(["cow", "cat", "hen"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Two words for three classes.
        (lambda y: np.array(["cat", "dog", "dog"])[y], r"received <U3 .*class_names=\[...\]"),
        (lambda y: np.array(["cat", "dog", "dog"], object)[y], r"class_names=\[...\]"),
        (lambda y: y + 2, "received 2 to 4$"),
        (lambda y: y * 7.5, "whole numbers, received float64 .*classes, not quantities"),
    ],
)
def test_labels_that_are_none_have_their_remedy(classifier, change, message):
    x, y = samples(60, 1)
    judge = btcp_tf.attach(classifier)
    for call in (judge.fit, judge.evaluate, judge.select_threshold, judge.fit_btcp):
        with pytest.raises(ValueError, match=f"^y: expected .*{message}"):
            call(x, change(y))


def test_one_number_that_is_not_compiled_is_a_logit_whose_labels_are_0_and_1():
    x, y = samples(60, 1)
    judge = btcp_tf.attach(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="y: expected labels from 0 to 1, received 0 to 2"):
        judge.fit(x, y)
    with pytest.raises(ValueError, match="y: .* whole numbers, .*classes, not quantities"):
        judge.fit(x, 20.5 + y)
    regression = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    regression.compile("adam", "mae")
    with pytest.raises(ValueError, match="classifier: .* its loss is mae.*from_logits=True"):
        btcp_tf.attach(regression)
    judge = btcp_tf.attach(regression, from_logits=True)
    assert len(judge.class_names) == 2
    # And its companions are taken as it is.
    judge.fit(x, y > 0, ensemble=[regression], **ANSWER)
    with pytest.raises(ValueError, match="from_logits: expected True"):
        btcp_tf.attach(regression, from_logits=False)


def test_one_hot_labels_are_taken_wherever_labels_are(classifier):
    def one_hot(n, seed):
        x, y = samples(n, seed)
        return x, np.eye(CLASSES)[y]

    fold = (classifier, samples(200, 3), samples(200, 4))
    judge = btcp_tf.attach(classifier).fit(
        *samples(300, 1), reference=samples(300, 0), folds=[fold], **ANSWER
    )
    again = btcp_tf.attach(classifier)
    fold = (classifier, one_hot(200, 3), one_hot(200, 4))
    again.fit(*one_hot(300, 1), reference=one_hot(300, 0), folds=[fold], **ANSWER)
    assert again.fitted == judge.fitted
    assert again.select_threshold(*one_hot(200, 5)) == judge.select_threshold(*samples(200, 5))
    assert again.evaluate(*one_hot(200, 6), draws=5) == judge.evaluate(*samples(200, 6), draws=5)
    dataset = tf.data.Dataset.from_tensor_slices(one_hot(200, 6)).batch(50)
    np.testing.assert_array_equal(again.predictions(dataset).labels, samples(200, 6)[1])
    settings = {"estimator_epochs": 1, "verbose": 0}
    again.fit_btcp(*one_hot(300, 1), **settings)
    assert again.fitted == judge.fit_btcp(*samples(300, 1), **settings).fitted
    x, y = one_hot(20, 7)
    with pytest.raises(ValueError, match=r"y: .* shares of classes in row 0 .*argmax\(axis=1\)"):
        again.evaluate(x, 0.9 * y + 0.1 / CLASSES)


@pytest.mark.parametrize(
    ("pixels", "told", "rescaling"),
    [("0_1", "auto", None), ("-1_1", "-1_1", None), ("0_255", "auto", (1 / 255, 0))],
)
def test_a_classifier_of_float_pixels_scores_folders(tmp_path, pixels, told, rescaling):
    x, y = images(200, 1)
    judge = btcp_tf.attach(of_images(rescaling), class_names=["dark", "bright"])
    judge.fit(scaled(x, pixels), y, **ANSWER)
    path = judge.export(tmp_path, "bright", scaled(x[:3], pixels), pixels=told)
    assert exported.read_about(path)["pixels"] == pixels
    test, _ = images(6, 2)
    wanted = judge.predict(scaled(test, pixels))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(test):
        PIL.Image.fromarray(image[..., 0]).save(folder / f"{number}.png")
    files = [(folder / f"{number}.png").read_bytes() for number in range(6)]
    loaded = tf.saved_model.load(str(path)).signatures
    found = loaded["serving_bytes"](image_bytes=tf.constant(files))
    np.testing.assert_allclose(found["uncertainty"], wanted["uncertainty"], atol=1e-5)
    # The command reads a folder, and an array of pixels, as the judge read the floats.
    scorer = Scorer(path)
    paths = np.array([str(folder / f"{number}.png") for number in range(6)], object)
    for batch in ({"files": paths}, {"images": test}, {"images": scaled(test, pixels)}):
        answers = scorer(batch)
        assert set(answers["problem"]) == {""}
        np.testing.assert_allclose(answers["uncertainty"], wanted["uncertainty"], atol=1e-5)


def test_scales_of_pixels_that_do_not_fit_are_refused(unchecked, classifier, judge, tmp_path):
    x, y = images(200, 1)
    fitted = btcp_tf.attach(of_images()).fit(scaled(x, "0_1"), y, **ANSWER)
    for pixels, message in (
        ("0_255", "pixels: expected the scale of the numbers that fit saw, .* received '0_255'"),
        ("1_2", "pixels: expected auto or one of 0_255, 0_1, -1_1, received '1_2'"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.export(tmp_path, "bright", scaled(x[:3], "0_1"), pixels=pixels)
    judge.input_range = None
    with pytest.raises(ValueError, match=r"pixels: .* with a model of float images \[height"):
        judge.export(tmp_path, "points", np.full((2, 2), 0.7), pixels="0_1")
    whole = btcp_tf.attach(of_images(dtype="uint8")).fit(x, y, **ANSWER)
    assert "pixels" not in exported.read_about(whole.export(tmp_path, "whole", x[:3]))


def test_the_exported_model_refuses_what_the_judge_refuses(tmp_path):
    x, y = images(200, 1)
    judge = btcp_tf.attach(of_images()).fit(scaled(x, "0_1"), y, **ANSWER)
    path = judge.export(tmp_path, "bright", scaled(x[:3], "0_1"))
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    assert exported.read_about(path)["input_range"]["high"] == 1.0
    bad = scaled(x[:3], "0_1")
    bad[1, 2, 2] = np.nan
    for given, message in (
        (x[:2].astype(np.float32), "expected numbers like those of fit, 0 to 1"),
        (bad, "images: expected numbers like those of fit"),
        (scaled(x[:1], "0_1") / 255, "expected numbers like those of fit, 0 to 1"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            serve(images=tf.constant(given))
    # The command marks the rows.
    rows = np.concatenate([scaled(x[:2], "0_1"), bad[1:2], x[2:3]])
    answers = Scorer(path)({"images": rows})
    wanted = judge.predict(rows[:2])["uncertainty"]
    np.testing.assert_allclose(answers["uncertainty"][:2], wanted, atol=1e-5)
    assert [bool(problem) for problem in answers["problem"]] == [False, False, True, True]
    assert "expected numbers like those of fit, 0 to 1, received 2" in answers["problem"][3]


def test_a_judge_of_version_0_1_0_knows_nothing_and_works(judge, tmp_path):
    about = judge.model.get_layer("card").about
    wanted = judge.predict(samples(50, 2)[0])["uncertainty"]
    del about["seen"], about["input_range"]
    judge.save(tmp_path / "judge.keras")
    old = btcp_tf.load(tmp_path / "judge.keras")
    assert old.input_range is None
    np.testing.assert_array_equal(old.predict(samples(50, 2)[0])["uncertainty"], wanted)
    assert old.evaluate(*samples(400, 1), draws=5)[0]["n"] == 400
    assert old.select_threshold(*samples(400, 1)).n == 400
    # But what it chose a threshold on from now on.
    with pytest.warns(UserWarning, match="400 of 400 samples are among those of select_threshold"):
        assert old.evaluate(*samples(400, 1), draws=5)[0]["n"] == 400


@pytest.mark.parametrize(
    ("name", "value"), [("seen", {"fit": 3}), ("input_range", {"low": 0}), ("seen", 5)]
)
def test_a_damaged_memory_is_refused(judge, tmp_path, name, value):
    judge.model.get_layer("card").about[name] = value
    judge.save(tmp_path / "judge.keras")
    with pytest.raises(ValueError, match="a file that Judge.save wrote, received"):
        btcp_tf.load(tmp_path / "judge.keras")


def test_pixels_of_the_package_are_those_of_the_command_line():
    from btcp_tf.data.images import PIXELS

    assert PIXELS is PIXELS and set(SCALES) == set(PIXELS)
