import itertools

import pytest

from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.evaluation.keys import (
    CALIBRATION,
    CLASSIFIER,
    TEST,
    VALIDATION,
    ImageSet,
    Predictor,
    predictions_file,
    predictor_of_file,
)
from btcp_tf.methods.registry import METHODS

PREDICTORS = [
    CLASSIFIER,
    Predictor("mc_dropout"),
    Predictor("ensemble"),
    Predictor("mc_dropout_few"),
    Predictor("ensemble_few"),
    *(Predictor(name, "finetuned") for name in ("tcp", "ohem", "btcp")),
]

# What version 0.1.0 wrote.
FILES = {
    (TEST, CLASSIFIER): "predictions.npz",
    (TEST, Predictor("mc_dropout")): "predictions_mc_dropout.npz",
    (TEST, Predictor("btcp", "finetuned")): "predictions_btcp_finetuned.npz",
    (VALIDATION, CLASSIFIER): "predictions_validation.npz",
    (CALIBRATION, Predictor("btcp", "finetuned")): "predictions_calibration_btcp_finetuned.npz",
    (ImageSet("ood", "fashion_mnist"), CLASSIFIER): "predictions_ood_fashion_mnist.npz",
    (ImageSet("ood", "svhn_cropped"), Predictor("ensemble")): (
        "predictions_ood_svhn_cropped_ensemble.npz"
    ),
    (ImageSet("shift", "noise", 2), CLASSIFIER): "predictions_shift_noise2.npz",
}


@pytest.mark.parametrize(("about", "name"), FILES.items())
def test_files_have_the_names_of_before(about, name):
    assert predictions_file(*about) == name


def test_predictors_are_all_that_methods_can_have():
    own = {Predictor(name) for name, method in METHODS.items() if method.samples}
    tuned = {Predictor(name, "finetuned") for name, method in METHODS.items() if method.trained}
    assert {CLASSIFIER} | own | tuned == set(PREDICTORS)


@pytest.mark.parametrize("predictor", PREDICTORS, ids=str)
def test_text_and_file_lead_back_to_the_predictor(predictor):
    assert Predictor.from_text(str(predictor)) == predictor
    assert predictor_of_file(predictions_file(CALIBRATION, predictor), CALIBRATION) == predictor


# Names that end like predictors, and like names that do.
_ENDS = ["", *(f"_{predictor}" for predictor in PREDICTORS)]
NAMES = ["ensemble", *(f"x{one}{other}" for one, other in itertools.product(_ENDS, _ENDS))]
SETS = [
    TEST,
    VALIDATION,
    CALIBRATION,
    *(ImageSet("shift", *of) for of in itertools.product(CORRUPTIONS, (1, 2, 3))),
    *(ImageSet("ood", name) for name in dict.fromkeys(NAMES)),
]


def test_each_pair_has_a_file_of_its_own():
    pairs = list(itertools.product(SETS, PREDICTORS))
    assert len({predictions_file(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("images", SETS[:13], ids=str)
def test_a_row_says_what_it_is_about(images):
    row = {"split": images.column, "ood": images.name if images.kind == "ood" else ""}
    assert ImageSet.of_row(row) == images
    assert images.kind not in ("ood", "shift") or images.column.startswith("test")
