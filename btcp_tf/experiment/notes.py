"""What a reader must know before believing a run's figures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core.rows import equal
from btcp_tf.data.catalog import DATASETS
from btcp_tf.evaluation.keys import CALIBRATION, CLASSIFIER, TEST, VALIDATION, ImageSet
from btcp_tf.experiment.values import AllPredictions
from btcp_tf.methods.registry import METHODS
from btcp_tf.methods.residual_choice import ENOUGH_ERRORS

if TYPE_CHECKING:
    from btcp_tf.training.phases import Stage


def of_classifier(path: str, predictions: AllPredictions, pixels: str) -> str:
    """The note on a classifier that was trained elsewhere.

    Args:
      path: Its file.
      predictions: Of the validation, calibration and test set.
      pixels: The note of `prepare.choose_pixels`.
    """
    accuracy = [
        f"{1.0 - predictions[image_set, CLASSIFIER].is_error.mean():.2%} of the {image_set} images"
        for image_set in (VALIDATION, CALIBRATION, TEST)
    ]
    return (
        f"the classifier is {path}, not trained here: right on {', '.join(accuracy)}{pixels}. "
        "Validation and calibration images that it was trained on make what is chosen on them "
        "look better than it is."
    )


def of_others(
    ood: Sequence[str], others: Mapping[ImageSet, np.ndarray], test_images: np.ndarray
) -> list[str]:
    """Notes on OOD sets that are not whole, and on corruptions that change nothing.

    Args:
      ood: The setting of that name.
      others: From `prepare.load_others`.
      test_images: `[n, ...]`.
    """
    notes = []
    for path in ood:
        count = len(others[ImageSet("ood", Path(path).stem)])
        whole = DATASETS.get(path)
        if whole and count != whole.expected_test:
            notes.append(
                f"OOD set {path}: part or stand-in: {count:,} of {whole.expected_test:,} images"
            )
    same = [name for name, images in others.items() if equal(images, test_images)]
    return notes + [f"{name}: leaves every test image as it is, so small are they" for name in same]


def of_taus(methods: Iterable[str], taus: Mapping[str, float], tau: float) -> list[str]:
    """Notes on methods for which `decide.choose_taus` has no tau; theirs is the run's."""
    return [
        f"{name}: no threshold could be chosen, as the validation answers are all correct or all "
        f"wrong; as for the other methods, it accepts answers with u < {tau:g} (--tau)"
        for name in methods
        if METHODS[name].column_of and name not in taus
    ]


def of_methods(facts: Mapping[str, str]) -> list[str]:
    """How fitted methods came about; of one that fell back on MCP a sentence of its own.

    Args:
      facts: Method → a summary of its fit, see `Reference.facts`.
    """
    return [
        f"The estimator of {name} was not shown to be better than MCP and fell back on it: both "
        f"rank the answers alike ({fact})"
        if FELL_BACK in fact
        else f"{name}: {fact}"
        for name, fact in facts.items()
    ]


FELL_BACK = "u is MCP"
"""What the summary of a fit says where the estimator is MCP, see `methods.residual_choice`."""


def of_training(stages: Iterable["Stage"]) -> list[str]:
    """Notes on stages that failed, whose gamma was capped, or that saw few errors."""
    notes = []
    for stage in stages:
        facts = stage.facts
        if stage.collapse:
            notes.append(f"{stage.name}: {stage.collapse}")
        uncapped = facts.get("gamma_uncapped", 0.0)
        if uncapped > facts.get("gamma", 0.0):
            notes.append(
                f"{stage.name}: gamma = 1 / (12 var(U)) is {uncapped:.4g}, capped at "
                f"{facts['gamma']:g} (gamma_max)"
            )
        if facts.get("train_errors", ENOUGH_ERRORS) < ENOUGH_ERRORS:
            notes.append(
                f"{stage.name}: the classifier is wrong on only {facts['train_errors']} training "
                "images, and an estimator learns little from so few errors: about "
                f"{ENOUGH_ERRORS} are enough; more training images have more, or fewer "
                "classifier_epochs"
            )
    return notes
