"""A classifier of strings, from `fit` to the SavedModel."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import special

import btcp_tf
from btcp_tf.judge import Judge
from btcp_tf.serving import answers
from btcp_tf.serving.transport import Spec

pytestmark = pytest.mark.usefixtures("quick_checks")

GOOD, BAD = ["fine", "great", "lovely", "schön"], ["dull", "poor", "weak", "flat"]


def reviews(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of six words, most of them of their class."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, n)
    words = np.array([BAD, GOOD])
    picked = random.integers(0, 4, (n, 6))
    kinds = np.where(random.random((n, 6)) < 0.68, labels[:, None], 1 - labels[:, None])
    return np.array([" ".join(row) for row in words[kinds, picked]]), labels


@pytest.fixture(scope="module")
def judge() -> Judge:
    """Its classifier knows half of the words; a bag of tokens knows all of them."""
    lookup = layers.TextVectorization(vocabulary=GOOD[:2] + BAD[:2], output_sequence_length=6)
    network = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            lookup,
            layers.Embedding(6, 1),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    value = np.array([[0.0], [0.0], [1.0], [1.0], [-1.0], [-1.0]])
    network.set_weights([value, np.array([[-6.0, 6.0]]), np.zeros(2)])
    x, y = reviews(600, 0)
    judge = btcp_tf.attach(network, example=x[:4])
    judge.fit(*reviews(800, 1), reference=(x, y), looks=["tokens"], cost=3.0, verbose=0)
    judge.select_threshold(*reviews(300, 2), rule="target_coverage", coverage=0.6)
    return judge


def test_the_saved_model_takes_text_and_answers_as_the_judge(judge, tmp_path):
    assert judge.fitted["looks"] == ["tokens"]
    x, _ = reviews(200, 3)
    path = judge.export(tmp_path, "reviews", x[:8], verbose=0)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    wanted = judge.predict(x)
    for rows in (slice(None), slice(0, 1), slice(0, 0)):
        served = {name: value.numpy() for name, value in serve(images=tf.constant(x[rows])).items()}
        u = wanted["uncertainty"][rows]
        assert special.logit(served["uncertainty"]) == pytest.approx(special.logit(u), abs=1e-3)
        for name in ("predicted", "accept", "second_opinion"):
            assert served[name].tolist() == wanted[name][rows].tolist()


def test_words_and_lists_and_bytes_are_the_same_text(judge):
    x = ["fine flat", "schön poor"]
    u = judge.predict(np.array(x))["uncertainty"].tolist()
    for same in (x, np.array(x, object), np.array([text.encode() for text in x])):
        assert judge.predict(same)["uncertainty"].tolist() == u


@pytest.mark.parametrize("wrong", [[1, 2], [None, "fine"], [["fine"], ["poor"]], [np.nan, "fine"]])
def test_what_is_no_text_is_refused(judge, wrong, tmp_path):
    wrong = np.array(wrong, object)
    for use in (
        lambda: judge.predict(wrong),
        lambda: judge.export(tmp_path, "reviews", wrong, verbose=0),
    ):
        with pytest.raises(ValueError, match=r"(x|sample): expected (text|inputs of shape \[n\])"):
            use()
    assert not list(tmp_path.iterdir())


def test_a_client_sends_text_in_utf_8():
    spec = Spec("string", (None,))
    assert answers.checked_inputs(["schön"], "images", spec) == ["schön".encode()]
    for wrong in ([1.5], [["a"]], [None]):
        with pytest.raises(ValueError, match="images: expected"):
            answers.checked_inputs(wrong, "images", spec)
    with pytest.raises(ValueError, match="images: expected numbers"):
        answers.checked_inputs(["schön"], "images", Spec("uint8", (None, 8, 8, 1)))
