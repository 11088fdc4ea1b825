import dataclasses
import itertools
import types

import keras
import numpy as np
import pytest

from btcp_tf.data import datasets
from btcp_tf.evaluation.keys import CLASSIFIER, Predictor
from btcp_tf.experiment import score
from btcp_tf.experiment.score import ScoreSettings
from btcp_tf.experiment.train import Fold, Trained
from btcp_tf.methods.registry import METHODS
from btcp_tf.networks import models
from btcp_tf.serving import signatures
from btcp_tf.training import checkpoints

TUNED = Predictor("btcp", "finetuned")
SETTINGS = ScoreSettings(
    method=("mcp", "btcp", "ensemble", "mc_dropout"),
    finetuned=("btcp",),
    seed=0,
    verbose=0,
    test_batch_size=64,
    mc_passes=2,
    trust_alpha=0.0,
    trust_neighbors=10,
    residual_copies=(),
    residual_distilled=False,
    residual_looks=("auto",),
    residual_cost=1.3,
)


def network_of(seed):
    keras.utils.set_random_seed(seed)
    return models.build_model("small", (8, 8, 1), 10, feature_dim=8)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", max_train_images=100, max_test_images=30)


@pytest.fixture(scope="module")
def weights():
    """Random networks, by name: of each stage, and of a further member of the ensemble."""
    names = ("classifier", "btcp", "btcp_finetuned", "member")
    return {name: checkpoints.snapshot(network_of(seed)) for seed, name in enumerate(names)}


@pytest.fixture(scope="module")
def scorer(digits, weights):
    stages = {
        name: types.SimpleNamespace(values=values, collapse="")
        for name, values in weights.items()
        if name != "member"
    }
    trained = Trained(network_of(9), stages, [weights["member"]])
    return score.make_scorer(trained, digits, SETTINGS)


def answers_of(weights, images):
    """What a network of its own answers."""
    network = network_of(9)
    checkpoints.restore(network, weights)
    return {name: np.asarray(x) for name, x in network(images, training=False).items()}


def test_every_column_comes_from_the_network_of_its_stage(scorer, weights, digits):
    images = digits.test.images
    found = scorer(images, digits.test.labels)
    assert set(found) == {CLASSIFIER, TUNED, Predictor("ensemble"), Predictor("mc_dropout")}
    expected = {name: answers_of(values, images) for name, values in weights.items()}
    close = dict(atol=1e-5)
    shared, tuned = found[CLASSIFIER], found[TUNED]
    np.testing.assert_allclose(shared.probs, expected["classifier"]["probs"], **close)
    np.testing.assert_allclose(
        shared.uncertainty["mcp"], 1 - expected["classifier"]["probs"].max(axis=1), **close
    )
    # The estimator of phase 2 on the features of phase 1.
    with scorer.classifier.model() as model:
        features = np.asarray(model.get_layer("encoder")(images, training=False))
    own = network_of(9)
    checkpoints.restore(own, weights["btcp"])
    u = np.asarray(own.get_layer("estimator")(features))[:, 0]
    np.testing.assert_allclose(shared.uncertainty["btcp"], u, **close)
    np.testing.assert_allclose(tuned.probs, expected["btcp_finetuned"]["probs"], **close)
    u = expected["btcp_finetuned"]["uncertainty"][:, 0]
    np.testing.assert_allclose(tuned.uncertainty["btcp"], u, **close)
    mean = (expected["classifier"]["probs"] + expected["member"]["probs"]) / 2
    np.testing.assert_allclose(found[Predictor("ensemble")].probs, mean, **close)


def calls_of(scorer, images):
    """What a run asks of its networks: name → a call that gives arrays or texts."""

    def exported(predictor, method):
        with scorer.exported_model(predictor, method) as model:
            return np.concatenate([part.ravel() for part in signatures.served(model, images)])

    return {
        "scores": lambda: scorer(images, None)[TUNED].uncertainty["btcp"],
        "mcp": lambda: scorer.mcp(images),
        "ids": lambda: list(scorer.classifier_ids.values()),
        "frozen": lambda: exported(CLASSIFIER, "btcp"),
        "finetuned": lambda: exported(TUNED, "mcp"),
    }


def test_the_order_of_calls_decides_nothing(scorer, digits):
    calls = calls_of(scorer, digits.test.images)
    alone = {name: call() for name, call in calls.items()}
    for first, second in itertools.permutations(calls, 2):
        calls[first]()
        np.testing.assert_array_equal(calls[second](), alone[second], f"{second} after {first}")


def test_an_exported_model_keeps_its_weights_whatever_else_is_scored(scorer, digits):
    images = digits.test.images
    calls = calls_of(scorer, images)
    with scorer.exported_model(TUNED, "btcp") as model:
        before = signatures.served(model, images)
        for name, call in calls.items():
            call()
            for old, new in zip(before, signatures.served(model, images), strict=True):
                np.testing.assert_array_equal(new, old, name)


def test_each_classifier_of_the_folds_is_asked_for_its_own_looks(digits, weights, capsys):
    unseen = np.arange(len(digits.train)) % 2 == 0
    settings = dataclasses.replace(
        SETTINGS,
        method=("mcp", "looks_move", "mc_dropout_few", "residual_looks"),
        finetuned=(),
        verbose=2,
        residual_looks=("mirror", "dropout", "shift_up"),
        residual_copies=("noise",),
    )
    stages = {"classifier": types.SimpleNamespace(values=weights["classifier"], collapse="")}
    trained = Trained(network_of(9), stages, folds=[Fold(weights["member"], unseen)])
    scorer = score.make_scorer(trained, digits, settings)
    reference = scorer.reference

    def mirrored(name, outputs, images):
        """Log odds against the class of the outputs, of the mirrored images."""
        probs = answers_of(weights[name], images[:, :, ::-1])["probs"]
        of_class = probs[np.arange(len(images)), outputs.predicted].astype(np.float64)
        return np.log1p(-of_class) - np.log(of_class)

    train, validation = digits.train.images[unseen], digits.validation.images
    for name, outputs, images in (
        ("classifier", reference.validation, validation),
        ("member", reference.folds[0][1], train),
    ):
        assert outputs.odds.shape == (len(images), 3)
        np.testing.assert_allclose(
            outputs.odds[:, 0], mirrored(name, outputs, images), rtol=1e-3, atol=1e-4
        )
        # Dropout changes the answer of the same classifier.
        own = np.log1p(-outputs.probs.max(axis=1)) - np.log(outputs.probs.max(axis=1))
        assert 0 < np.abs(outputs.odds[:, 1] - own).mean()
    assert [copy.odds.shape for (copy,) in reference.copies] == [
        (len(validation), 3),
        (len(train), 3),
    ]
    assert reference.train.odds is None
    # Few errors are too few: u is MCP, and nothing is looked at again, by nobody.
    assert "u is MCP" in reference.facts["residual_looks"] and scorer.odds is None
    for name in ("looks_move", "mc_dropout_few"):
        assert reference.facts[name] == "no rows, as residual_looks uses no look"
    assert f"looks_move: {reference.facts['looks_move']}" in capsys.readouterr().out
    found = scorer(validation[:3], None)
    assert set(found[CLASSIFIER].uncertainty) == {"mcp", "residual_looks"}
    assert set(found) == {CLASSIFIER} and scorer.costs == {}


def test_few_passes_and_members_are_as_many_as_the_looks_cost(scorer, digits):
    images = digits.test.images
    chosen = dataclasses.replace(scorer.reference, chosen={0: 1.0}, facts={})
    wanted = dataclasses.replace(SETTINGS, method=("mc_dropout_few", "ensemble_few"), mc_passes=9)
    settings = score.without_idle_rivals(wanted, chosen, 2)
    assert settings == wanted
    further = [*scorer.members, scorer.network(TUNED, "btcp")]
    few = dataclasses.replace(
        scorer,
        settings=settings,
        reference=chosen,
        members=further,
        scores={name: METHODS[name].prepare(chosen) for name in wanted.method},
    )
    found, whole = few(images, digits.test.labels), scorer(images, digits.test.labels)
    # Two passes, as many as `mc_dropout` has here; two of three members.
    for name in ("mc_dropout", "ensemble"):
        own, other = found[Predictor(f"{name}_few")], whole[Predictor(name)]
        np.testing.assert_array_equal(own.probs, other.probs)
        np.testing.assert_array_equal(own.uncertainty[f"{name}_few"], other.uncertainty[name])
    assert few.costs == {"mc_dropout_few": 2.0, "ensemble_few": 2.0}
    dear = dataclasses.replace(chosen, chosen={0: 2.5}, facts={})
    assert score.without_idle_rivals(wanted, dear, 2).method == ("mc_dropout_few",)
    assert dear.facts["mc_dropout_few"].startswith("4 passes")
    assert "cost as much as 4 classifiers, and the ensemble has 3" in dear.facts["ensemble_few"]
