"""The answers that a person should look at first, with what is known of each."""

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence

import numpy as np

from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.predictions import Predictions, mcp_of
from btcp_tf.reporting import cells, tables

SHOWN = 24
"""Answers of each kind."""

REASONS = 3
"""Pieces of evidence that are named for an answer."""

_LARGEST = 160  # Pixels of a picture's longer side.

EVIDENCE: Mapping[str, tuple[str, str]] = {
    "mcp": ("the classifier itself is unsure", "the classifier itself is sure"),
    "answer": ("its probabilities look doubtful", "its probabilities look sound"),
    "head": ("a second head on the features disagrees", "a second head on the features agrees"),
    "neighbors": ("nearest training samples disagree", "nearest training samples agree"),
    "image_head": ("a head on the image itself disagrees", "a head on the image itself agrees"),
    "image_neighbors": ("nearest training images disagree", "nearest training images agree"),
    "looks": ("changed copies get other answers", "changed copies get the same answer"),
    "other_eyes": ("a simpler model disagrees", "a simpler model agrees"),
}
"""Name of a piece of evidence -> what it says where it raises u, and where it lowers u."""


@dataclasses.dataclass(frozen=True)
class Reason:
    """What a piece of evidence did to u."""

    words: str
    value: float
    """In log odds, beside the mean held-out answer; above 0 it raises u."""


@dataclasses.dataclass(frozen=True)
class Card:
    """One answer."""

    row: int
    kind: str
    """"uncertain", among the highest u, or "trusted", a confident error."""
    name: str
    """Of the file or row."""
    link: str
    """Address of the file; "" without one."""
    picture: str
    """A data address; "" without one."""
    predicted: str
    true: str
    wrong: bool
    accepted: bool
    u: float
    mcp: float | None
    reasons: Sequence[Reason] = ()

    @property
    def alt(self) -> str:
        """What the picture is, in words."""
        what = f"labeled {self.true}" if self.wrong else "which is right"
        return f"{self.name}: predicted {self.predicted}, {what}"


@dataclasses.dataclass(frozen=True)
class Gallery:
    """Cards, the classes that occur in them, and how u is called."""

    cards: Sequence[Card]
    method: str
    largest: float = 0.0
    """Largest reason of any card, the scale of all bars."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes that are predicted or right in a card."""
        return sorted({name for card in self.cards for name in (card.predicted, card.true)})


def pick(
    is_error: np.ndarray, uncertainty: np.ndarray, count: int = SHOWN
) -> dict[str, np.ndarray]:
    """The rows to check first, none of them twice.

    Args:
      is_error: `[n]` bool.
      uncertainty: `[n]`.
      count: How many of each kind at most.

    Returns:
      "uncertain": the highest u, from the highest on; "trusted": of the other rows the wrong ones
      with the lowest u, from the lowest on. Tied rows in their order.
    """
    u = np.asarray(uncertainty, np.float64)
    # Where there are few answers, half of them is enough of one kind.
    first = np.argsort(-u, kind="stable")[: min(count, (len(u) + 1) // 2)]
    rest = np.setdiff1d(np.flatnonzero(is_error), first)
    trusted = rest[np.argsort(u[rest], kind="stable")[:count]]
    return {"uncertain": first, "trusted": trusted}


def build(
    predictions: Predictions,
    method: str,
    tau: float | None,
    *,
    accept: np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    pictures: Mapping[int, np.ndarray] | None = None,
    names: Mapping[int, str] | None = None,
    links: Mapping[int, str] | None = None,
    explanations: Explanations | None = None,
) -> Gallery:
    """The cards of the rows that `pick` finds.

    Args:
      predictions: With labels.
      method: Whose u.
      tau: Answers with u below it are accepted; None: none is.
      accept: Decisions `[n]` that count in its place.
      class_names: Names by class number.
      pictures: Row -> uint8 `[height, width, 1 or 3]`.
      names: Row -> what it answers.
      links: Row -> address of its file.
      explanations: Of u of this method; others are not used.
    """
    labels, u = tables.known_labels(predictions), predictions.uncertainty[method]
    if accept is None:
        accept = np.zeros(len(u), bool) if tau is None else u < tau
    mcp = mcp_of(predictions)
    if explanations is not None and explanations.method != method:
        explanations = None
    cards = [
        Card(
            row=int(row),
            kind=kind,
            name=(names or {}).get(int(row)) or f"row {row}",
            link=(links or {}).get(int(row), ""),
            picture=picture(pictures[int(row)]) if pictures and int(row) in pictures else "",
            predicted=cells.class_name(int(predictions.predicted[row]), class_names),
            true=cells.class_name(int(labels[row]), class_names),
            wrong=bool(predictions.is_error[row]),
            accepted=bool(accept[row]),
            u=float(u[row]),
            mcp=None if mcp is None else float(mcp[row]),
            reasons=() if explanations is None else reasons(explanations, int(row)),
        )
        for kind, rows in pick(predictions.is_error, u).items()
        for row in rows
    ]
    sizes = [abs(reason.value) for card in cards for reason in card.reasons]
    return Gallery(cards, method, max(sizes, default=0.0))


def reasons(explanations: Explanations, row: int) -> list[Reason]:
    """The pieces of evidence that moved the u of a row most, the strongest first."""
    values = explanations.values[row]
    order = np.argsort(-np.abs(values), kind="stable")[:REASONS]
    return [
        Reason(
            _evidence_words(explanations.names[place], float(values[place])), float(values[place])
        )
        for place in order
        if abs(values[place]) >= 0.05
    ]


def _evidence_words(name: str, value: float) -> str:
    if name in EVIDENCE:
        return EVIDENCE[name][int(value < 0)]
    return name.replace("_", " ")


def picture(pixels: np.ndarray) -> str:
    """An image as the address of a PNG that stands inside a page."""
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if max(image.size) > _LARGEST:
        image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
