"""The answers that a person should look at first, with what is known of each."""

import base64
import dataclasses
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.predictions import REFERENCE, Predictions, mcp_column
from btcp_tf.reporting import cells, figures, plots, tables

SHOWN = 24
"""Answers of each kind."""

REASONS = 3
"""Pieces of evidence that are named for an answer."""

FEWER = 12
"""Answers of each kind in the gallery of a study, which may have one for each of its data sets."""

LARGEST_FILE, MOST_PIXELS = 2**25, 50_000_000
"""Bytes and pixels of the files that are opened for a picture: 32 MiB, and a large photo."""

_LARGEST = 160  # Pixels of a picture's longer side.

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")

_GRAY, _COLOR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Why some answers are shown."""

    choice: str
    """In the list of a filter."""
    heading: str
    words: str
    """With {method} for the name of u."""


KINDS: Mapping[str, Kind] = {
    "uncertain": Kind(
        "highest u",
        "Highest u: a person should look at these first",
        "The answers that {method} trusts least, whatever they are.",
    ),
    "unsuspected": Kind(
        "trusted by all methods",
        "Errors that every method trusts",
        "Wrong answers that every method trusts more than half of all answers. Look at the label "
        "first: it may be the label that is wrong.",
    ),
    "trusted": Kind(
        "trusted errors",
        "Trusted errors",
        "Wrong answers with the lowest u by {method}, each shown once: what a threshold is least "
        "likely to catch. Look at the label, too.",
    ),
    "caught": Kind(
        "errors of highest u",
        "Errors with the highest u",
        "Other wrong answers, from the one that {method} trusts least: what it catches first.",
    ),
}
"""In the order in which they stand."""

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
    """One of `KINDS`."""
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
    remark: str = ""
    """What else is known of it."""

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
    name: str = ""
    """Tells it from others on the page, as the name of a data set."""

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds that occur, in their order."""
        here = {card.kind for card in self.cards}
        return {name: kind for name, kind in KINDS.items() if name in here}

    @property
    def mixed(self) -> bool:
        """Whether there are right and wrong answers, so that one may choose."""
        return len({card.wrong for card in self.cards}) > 1

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


def pick_errors(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], method: str, count: int = FEWER
) -> dict[str, np.ndarray]:
    """The wrong answers to look at, none of them twice.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`.
      method: Whose u orders them.
      count: How many of each kind at most.

    Returns:
      "unsuspected": what `plots.trusted_by_all` returns, nothing if there is one method; "trusted":
      of the other wrong answers those with the lowest u; "caught": of the rest the highest u.
    """
    columns = figures.curves(uncertainty)
    unsuspected = np.empty(0, np.int64)
    if len(columns) > 1:
        unsuspected = plots.trusted_by_all(is_error, columns, count)
    u = np.asarray(uncertainty[method], np.float64)
    rest = np.setdiff1d(np.flatnonzero(is_error), unsuspected)
    rest = rest[np.argsort(u[rest], kind="stable")]
    trusted = rest[: min(count, (len(rest) + 1) // 2)]
    return {
        "unsuspected": unsuspected,
        "trusted": trusted,
        "caught": rest[len(trusted) :][::-1][:count],
    }


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
    picked: Mapping[str, np.ndarray] | None = None,
    remarks: Mapping[int, str] | None = None,
    name: str = "",
) -> Gallery:
    """The cards of some rows.

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
      picked: Name of a kind -> rows; None: those that `pick` finds.
      remarks: Row -> what else is said of it.
      name: See `Gallery`.
    """
    labels, u = tables.known_labels(predictions), predictions.uncertainty[method]
    if accept is None:
        accept = np.zeros(len(u), bool) if tau is None else u < tau
    mcp = mcp_column(predictions)
    if mcp is not None and (method == REFERENCE or np.allclose(mcp, u, atol=1e-6)):
        mcp = None  # It is this u.
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
            remark=(remarks or {}).get(int(row), ""),
        )
        for kind, rows in (picked or pick(predictions.is_error, u)).items()
        for row in rows
    ]
    sizes = [abs(reason.value) for card in cards for reason in card.reasons]
    return Gallery(cards, method, max(sizes, default=0.0), name)


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

    small = thumbnail(pixels)
    buffer = io.BytesIO()
    Image.fromarray(small[..., 0] if small.shape[-1] == 1 else small).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """An image, uint8 `[height, width, 1 or 3]`, in the size of a picture; a small one as it is."""
    from PIL import Image

    if max(pixels.shape[:2]) <= _LARGEST:
        return pixels
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((_LARGEST, _LARGEST), Image.Resampling.BOX)
    return np.asarray(image).reshape(*image.size[::-1], pixels.shape[-1])


def read_picture(file: Path) -> np.ndarray | None:
    """The thumbnail of an image file, the right way up; None if it is none, or too large."""
    from PIL import Image, ImageOps

    try:
        if not file.is_file() or file.stat().st_size > LARGEST_FILE:
            return None
        with warnings.catch_warnings():
            # Pillow warns of sizes that are refused here.
            warnings.simplefilter("ignore")
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    return None
                if image.mode not in (*_GRAY, *_COLOR):
                    return None  # Of 16 bits Pillow would show the darkest alone.
                # A JPEG is decoded no larger than it must be.
                image.draft(None, (2 * _LARGEST, 2 * _LARGEST))
                upright = ImageOps.exif_transpose(image)
                pixels = np.asarray(upright.convert("L" if image.mode in _GRAY else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return thumbnail(pixels.reshape(*pixels.shape[:2], -1))
