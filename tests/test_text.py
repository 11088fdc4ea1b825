"""A classifier of strings, from `fit` to the SavedModel."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from scipy import special

import btcp_tf
from btcp_tf.judge import Judge
from btcp_tf.serving import answers, batch_scoring
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


def test_predict_scores_a_column_of_a_csv_file_and_text_in_npz(judge, tmp_path):
    x, y = reviews(40, 4)
    path = judge.export(tmp_path / "models", "reviews", x[:8], verbose=0)
    lines = [
        f'{number},"{text}",{label}' for number, (text, label) in enumerate(zip(x, y, strict=True))
    ]
    (tmp_path / "in.csv").write_text("\n".join(["id,review,label", *lines]), encoding="utf-8")
    np.savez(tmp_path / "in.npz", x_test=x, y_test=y)
    wanted = judge.predict(x)
    for name, key in (("in.csv", "review"), ("in.npz", "")):
        output = tmp_path / f"{name}.jsonl"
        summary = batch_scoring.score(
            path, tmp_path / name, output, key=key, labels=True, batch_size=16, verbose=0
        )
        assert (summary.inputs, summary.problems, summary.labeled) == (40, 0, 40)
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert [row["predicted"] for row in rows] == wanted["predicted"].tolist()
        u = special.logit([row["uncertainty"] for row in rows])
        assert u == pytest.approx(special.logit(wanted["uncertainty"]), abs=1e-3)
