"""Classifiers of KerasHub, made from their configurations with random weights."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import btcp_tf
from btcp_tf import metrics

hub = pytest.importorskip("keras_hub", reason="needs pip install 'btcp_tf[hub]'")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", *"abcdefgh"]


def backbone(vocabulary=30):
    keras.utils.set_random_seed(0)
    return hub.models.BertBackbone(
        vocabulary_size=vocabulary,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=16,
        max_sequence_length=12,
    )


def tokens(n):
    ids = np.random.default_rng(0).integers(1, 30, (n, 12))
    return {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": 0 * ids}


def lora(model):
    model.backbone.enable_lora(2)
    model.layers[-1].enable_lora(2)
    for weight in model.weights:
        if "lora" in weight.path:
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))


CHANGES = {"as it is": lambda model: None, "LoRA": lora, "int8": lambda m: m.quantize("int8")}


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("case", CHANGES)
def test_a_text_classifier_answers_as_before_and_survives_a_file(case, tmp_path):
    model = hub.models.BertTextClassifier(backbone(), num_classes=3)
    CHANGES[case](model)
    x = tokens(20)
    wanted = keras.ops.softmax(model(x, training=False)).numpy()
    judge = btcp_tf.attach(model, example=tokens(4))
    assert {*judge.model.input} == {"token_ids", "padding_mask", "segment_ids"}
    np.testing.assert_allclose(judge.predict(x)["probs"], wanted, atol=1e-5)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras")
    np.testing.assert_allclose(again.predict(x)["probs"], wanted, atol=1e-5)
    kinds = [weight.dtype for weight in again.model.weights]
    assert ("int8" in kinds) == (case == "int8")
    # What was read is written again.
    again.save(tmp_path / "again.keras")
    last = btcp_tf.load(tmp_path / "again.keras").predict(x)
    np.testing.assert_allclose(last["probs"], wanted, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_file_in_int8_that_keras_cannot_read_says_what_can_be_done(tmp_path):
    model = hub.models.BertTextClassifier(backbone(), num_classes=3)
    model.quantize("int8")
    model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="its layers are quantized.* give the model itself in the"):
        btcp_tf.attach(tmp_path / "m.keras", example=tokens(4))
    # As it says.
    again = hub.models.BertTextClassifier(backbone(), num_classes=3)
    again.quantize("int8")
    assert btcp_tf.attach(again, example=tokens(4)).predict(tokens(4))["probs"].shape == (4, 3)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`", "ignore:the judge is not")
def test_a_text_classifier_in_int8_is_exported_and_its_judge_saved_after_fit(tmp_path):
    model = hub.models.BertTextClassifier(backbone(), num_classes=3)
    model.quantize("int8")
    x = tokens(120)
    judge = btcp_tf.attach(model, example=tokens(4))
    y = np.where(np.arange(120) % 4, judge.predict(x)["predicted"], np.arange(120) % 3)
    judge.fit(x, y, looks=(), verbose=0)
    wanted = judge.predict(x)
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)
    np.testing.assert_allclose(again["uncertainty"], wanted["uncertainty"], atol=1e-5)
    path = judge.export(tmp_path, "m", tokens(4), verbose=0)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    specs = served.structured_input_signature[1]
    answers = served(**{name: tf.cast(x[name], spec.dtype) for name, spec in specs.items()})
    np.testing.assert_allclose(answers["uncertainty"], wanted["uncertainty"], atol=1e-4)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.filterwarnings("ignore:the classifier is right")
def test_a_bag_of_tokens_is_a_look_beside_a_text_classifier(tmp_path):
    model = hub.models.BertTextClassifier(backbone(900), num_classes=2)
    random = np.random.default_rng(3)

    def texts(n):
        """Sentences of 12 words, of which one tells the class, somewhere."""
        ids, y = random.integers(1, 880, (n, 12)), random.integers(0, 2, n)
        ids[np.arange(n), random.integers(0, 12, n)] = 890 + y
        return {"token_ids": ids, "padding_mask": ids * 0 + 1, "segment_ids": ids * 0}, y

    judge = btcp_tf.attach(model, example=texts(4)[0])
    judge.fit(
        *texts(600), reference=texts(600), looks=["tokens"], evidence=("answer",), cost=9.0,
        verbose=0,
    )  # fmt: skip
    assert list(judge.fitted["looks"]) == ["tokens"], judge.fitted["words"]
    x, y = texts(400)
    wanted = judge.predict(x)
    # Its weights are by chance, and the word that tells the class finds its errors.
    wrong = wanted["predicted"] != y
    assert metrics.auroc(wrong, wanted["uncertainty"]) > 0.9
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)
    np.testing.assert_allclose(again["uncertainty"], wanted["uncertainty"], atol=1e-6)
    path = judge.export(tmp_path, "m", texts(4)[0], verbose=0)
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    answers = served(**{name: tf.constant(one, tf.int32) for name, one in x.items()})
    np.testing.assert_allclose(answers["uncertainty"], wanted["uncertainty"], atol=1e-4)


def test_the_preprocessor_stays_outside():
    tokenizer = hub.tokenizers.BertTokenizer(vocabulary=WORDS)
    preprocessor = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    model = hub.models.BertTextClassifier(backbone(), num_classes=3, preprocessor=preprocessor)
    texts = ["good film", "bad film", "film"]
    judge = btcp_tf.attach(model, example=preprocessor(texts))
    wanted = keras.ops.softmax(model.predict(texts, verbose=0)).numpy()
    answers = judge.predict(preprocessor(texts))
    np.testing.assert_allclose(answers["probs"], wanted, atol=1e-5)
    with pytest.raises(ValueError, match="^x: expected the inputs token_ids.*preprocessor.texts."):
        judge.predict(texts)
    # A column of pandas has keys, which are not what is wrong with it.
    for column in (pandas.Series(texts), pandas.Series(texts).array):
        with pytest.raises(ValueError, match="^x: .*received texts; they go through the prepro"):
            judge.predict(column)


def test_an_image_classifier_is_taken(tmp_path):
    keras.utils.set_random_seed(0)
    body = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(16, 16, 3),
    )
    model = hub.models.ResNetImageClassifier(body, num_classes=3)
    x = np.random.default_rng(0).uniform(0, 255, (6, 16, 16, 3)).astype(np.float32)
    wanted = keras.ops.softmax(model(x, training=False)).numpy()
    judge = btcp_tf.attach(model)
    judge.save(tmp_path / "judge.keras")
    for one in (judge, btcp_tf.load(tmp_path / "judge.keras")):
        np.testing.assert_allclose(one.predict(x)["probs"], wanted, atol=1e-5)
