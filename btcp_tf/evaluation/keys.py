"""What predictions and result rows are about: whose answers, and to which images.

Programs compare these values. Files and rows hold them as text, and this module alone turns one
into the other.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from btcp_tf.methods.registry import METHODS

FROZEN, FINETUNED = STAGES = ("frozen", "finetuned")
"""Whether phase 3 of the training has changed the classifier."""

_FINETUNED = f"_{FINETUNED}"


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A classifier whose answers are scored.

    As text it is "frozen", a method, or a method with "_finetuned" behind it:

    >>> [str(Predictor()), str(Predictor("ensemble")), str(Predictor("btcp", "finetuned"))]
    ['frozen', 'ensemble', 'btcp_finetuned']
    >>> Predictor.from_text("btcp_finetuned")
    Predictor(method='btcp', stage='finetuned')
    """

    method: str = ""
    """"": the classifier of phase 1, which all methods share. Else the method that answers with
    another one: the mean of many passes or members, or the classifier that it fine-tuned."""
    stage: str = FROZEN
    """One of `STAGES`."""

    def __str__(self) -> str:
        if self.stage == FINETUNED:
            return f"{self.method}{_FINETUNED}"
        return self.method or FROZEN

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The predictor whose text this is."""
        if text.endswith(_FINETUNED):
            return cls(text.removesuffix(_FINETUNED), FINETUNED)
        return cls("" if text == FROZEN else text)


CLASSIFIER = Predictor()
"""The classifier of phase 1."""

_PREDICTORS = (
    CLASSIFIER,
    *(Predictor(name) for name, method in METHODS.items() if method.samples),
    *(Predictor(name, FINETUNED) for name, method in METHODS.items() if method.trained),
)
"""All that a run can have."""


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Images that are scored together.

    As text, in the names of files and in notes, it is the kind, with the name behind it if there is
    one. The column `split` of result rows has a text of its own:

    >>> str(ImageSet("test")), str(ImageSet("ood", "mnist")), str(ImageSet("shift", "noise", 2))
    ('test', 'ood_mnist', 'shift_noise2')
    >>> ImageSet("shift", "noise", 2).column
    'test:noise2'
    >>> ImageSet.of_row({"split": "test:noise2", "ood": ""})
    ImageSet(kind='shift', name='noise', strength=2)
    """

    kind: str
    """"validation", "calibration", "test", "ood" or "shift"."""
    name: str = ""
    """Name of the OOD set or of the corruption."""
    strength: int = 0
    """Strength of the corruption, from 1; 0: there is none."""

    def __str__(self) -> str:
        return f"{self.kind}_{self._named}" if self.name else self.kind

    @property
    def _named(self) -> str:
        return f"{self.name}{self.strength or ''}"

    @property
    def column(self) -> str:
        """`split` in result rows: OOD images are judged beside the test images."""
        if self.kind == "shift":
            return f"test:{self._named}"
        return "test" if self.kind == "ood" else self.kind

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """What a result row, with its columns `split` and `ood`, is about."""
        if row.get("ood"):
            return cls("ood", row["ood"])
        kind, _, name = row["split"].partition(":")
        if not name:
            return cls(kind)
        corruption = name.rstrip("0123456789")
        return cls("shift", corruption, int(name[len(corruption) :] or 0))


VALIDATION, CALIBRATION, TEST = map(ImageSet, ("validation", "calibration", "test"))

_FILE, _ENDING = "predictions", ".npz"


def predictions_file(images: ImageSet, predictor: Predictor = CLASSIFIER) -> str:
    """Name of the file of a predictor's answers, in a run's folder; each pair has its own.

    >>> predictions_file(TEST), predictions_file(CALIBRATION, Predictor("btcp", "finetuned"))
    ('predictions.npz', 'predictions_calibration_btcp_finetuned.npz')
    """
    stem = _FILE if images == TEST else f"{_FILE}_{images}"
    # An OOD set "x_ensemble" must not take the file of the ensemble's answers to "x".
    like_another = any(images.name.endswith(f"_{other}") for other in _PREDICTORS)
    if predictor != CLASSIFIER or like_another:
        stem += f"_{predictor}"
    return stem + _ENDING


def predictor_of_file(name: str, images: ImageSet) -> Predictor:
    """The predictor whose answers to these images are in a file of that name.

    >>> predictor_of_file("predictions_calibration_btcp_finetuned.npz", CALIBRATION)
    Predictor(method='btcp', stage='finetuned')
    """
    own = predictions_file(images).removesuffix(_ENDING)
    text = name.removesuffix(_ENDING).removeprefix(own).lstrip("_")
    return Predictor.from_text(text or FROZEN)
