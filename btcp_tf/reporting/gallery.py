"""The answers that a person should look at first, with what is known of each."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from btcp_tf.decisions.label_errors import label_errors
from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.evaluation.predictions import REFERENCE, Predictions, mcp_column
from btcp_tf.reporting import cells
from btcp_tf.reporting.cells import Table
from btcp_tf.reporting.pictures import Pictures, data_uri, sheet

SHOWN = 24
"""Answers of each kind."""

REASONS = 3
"""Pieces of evidence that are named for an answer."""

FEWER = 12
"""Answers of each kind in the gallery of a study, which may have one for each of its data sets."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Why some answers are shown."""

    choice: str
    """In the list of a filter."""
    heading: str
    text: str
    """With {method} for the name of u."""


KINDS: Mapping[str, Kind] = {
    "uncertain": Kind(
        "highest u",
        "Highest u: a person should look at these first",
        "The answers that {method} trusts least, correct or not.",
    ),
    "unsuspected": Kind(
        "trusted by all methods",
        "Errors that every method trusts",
        "Wrong answers that every method trusts more than half of all answers. Look at the label "
        "first: it may be the label that is wrong.",
    ),
    "label": Kind(
        "labels that may be wrong",
        "Labels that may be wrong",
        "Answers that differ from their label where, by all probabilities of the classifier and "
        "all labels together, the label is wrong rather than the answer: the most probable first.",
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
    "copies": (
        "looks like a corrupted input with such an error",
        "looks like a corrupted input without such an error",
    ),
}
"""Name of a piece of evidence -> what it says where it raises u, and where it lowers u."""


@dataclasses.dataclass(frozen=True)
class Reason:
    """What a piece of evidence did to u."""

    text: str
    value: float
    """In log odds, beside the mean held-out answer; above 0 it raises u."""


@dataclasses.dataclass(frozen=True)
class Card:
    """One answer."""

    row: int
    kind: str
    """One of `KINDS`."""
    name: str
    """Name of the file or input; "" without one."""
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
    def title(self) -> str:
        return self.name or f"{'image' if self.picture else 'row'} {self.row}"

    @property
    def alt(self) -> str:
        """Text for readers who do not see the picture."""
        what = f"labeled {self.true}" if self.wrong else "which is right"
        return f"{self.title}: predicted {self.predicted}, {what}"


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


def pick(predictions: Predictions, method: str, count: int = SHOWN) -> dict[str, np.ndarray]:
    """The rows to check first, none of them twice.

    Args:
      predictions: With labels.
      method: Method whose u orders the rows.
      count: Most rows of each kind.

    Returns:
      "uncertain": the highest u first; then of the other wrong answers "label", see
      `doubtful_labels`, "unsuspected", see `trusted_by_all`, and "trusted", the lowest u first.
      Tied rows in their order.
    """
    is_error, uncertainty = predictions.is_error, predictions.uncertainty
    u = np.asarray(uncertainty[method], np.float64)
    # Where there are few answers, half of them is enough of one kind.
    first = np.argsort(-u, kind="stable")[: min(count, (len(u) + 1) // 2)]
    doubtful = np.array([*doubtful_labels(predictions)], np.int64)
    label = doubtful[is_error[doubtful] & ~np.isin(doubtful, first)][:count]
    wrong = np.setdiff1d(np.flatnonzero(is_error), [*first, *label])
    unsuspected, rest = _unsuspected(is_error, uncertainty, wrong, u, count)
    return {
        "uncertain": first,
        "label": label,
        "unsuspected": unsuspected,
        "trusted": rest[:count],
    }


@functools.lru_cache(maxsize=1)
def doubtful_labels(predictions: Predictions) -> Mapping[int, float]:
    """Row -> probability that its label is wrong, where it is above one half, the highest first.

    None are known without labels and class probabilities. The classifier must not have been trained
    on these labels, as in every test set.
    """
    if predictions.labels is None or predictions.probs is None:
        return {}
    found = label_errors(predictions.probs, predictions.labels, out_of_fold=True)
    rows = found.order[found.probability[found.order] > 0.5]
    return dict(zip(rows.tolist(), found.probability[rows].tolist(), strict=True))


def pick_errors(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], method: str, count: int = FEWER
) -> dict[str, np.ndarray]:
    """The wrong answers to look at, none of them twice.

    Args:
      is_error: `[n]` bool.
      uncertainty: Name of a method -> u `[n]`.
      method: Method whose u orders the rows.
      count: Most rows of each kind.

    Returns:
      "unsuspected": see `trusted_by_all`; then of the other wrong answers "trusted", the lowest u
      first, and of the rest "caught", the highest u first.
    """
    u = np.asarray(uncertainty[method], np.float64)
    unsuspected, rest = _unsuspected(is_error, uncertainty, np.flatnonzero(is_error), u, count)
    trusted = rest[: min(count, (len(rest) + 1) // 2)]
    caught = rest[len(trusted) :][::-1][:count]
    return {"unsuspected": unsuspected, "trusted": trusted, "caught": caught}


def _unsuspected(
    is_error: np.ndarray,
    uncertainty: Mapping[str, np.ndarray],
    wrong: np.ndarray,
    u: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Of some wrong rows those that every method trusts, and the others with the lowest u first."""
    columns = cells.distinct_columns(uncertainty)
    unsuspected = np.empty(0, np.int64)
    if len(columns) > 1:
        trusted = trusted_by_all(is_error, columns, len(is_error))
        unsuspected = trusted[np.isin(trusted, wrong)][:count]
    rest = np.setdiff1d(wrong, unsuspected)
    return unsuspected, rest[np.argsort(u[rest], kind="stable")]


def candidate_errors(predictions: Predictions) -> np.ndarray:
    """Rows of the wrong answers that a study may show, whichever method it recommends."""
    picked = [
        rows
        for method in predictions.uncertainty
        if cells.is_candidate(method)
        for rows in pick_errors(predictions.is_error, predictions.uncertainty, method).values()
    ]
    return np.unique(np.concatenate([np.empty(0, np.int64), *picked]))


def trusted_by_all(
    is_error: np.ndarray, uncertainty: Mapping[str, np.ndarray], count: int = 24
) -> np.ndarray:
    """Rows of the wrong answers that every method trusts: the label itself may be wrong.

    To trust an answer is here to rank it among the more trusted half of all answers. Ordered by the
    worst rank that any method gives the row among all rows, ties of u sharing the higher rank.

    Args:
      is_error: `[n]` bool, True where the prediction is wrong.
      uncertainty: Name of a method -> u `[n]`. Methods that know the labels, and controls that
        know nothing, do not count.
      count: How many at most.

    Returns:
      `[<= count]` int64; tied rows in their order.
    """
    wrong = np.flatnonzero(is_error)
    worst = np.zeros(len(wrong), np.int64)
    for name, u in uncertainty.items():
        if cells.is_candidate(name):
            worst = np.maximum(worst, np.searchsorted(np.sort(u), u[wrong], side="right"))
    order = np.argsort(worst, kind="stable")[:count]
    return wrong[order[worst[order] <= len(is_error) / 2]]


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
      remarks: Row -> what else is said of it; None: how doubtful its label is.
      name: See `Gallery`.
    """
    labels, u = cells.known_labels(predictions), predictions.uncertainty[method]
    if accept is None:
        accept = np.zeros(len(u), bool) if tau is None else u < tau
    mcp = mcp_column(predictions)
    if mcp is not None and (method == REFERENCE or np.allclose(mcp, u, atol=1e-6)):
        mcp = None  # It is this u.
    if explanations is not None and explanations.method != method:
        explanations = None
    names, links, pictures = names or {}, links or {}, pictures or {}
    doubtful = doubtful_labels(predictions) if remarks is None else {}
    remarks = remarks or {
        row: f"label wrong with probability {cells.of_hundred(share)} %"
        for row, share in doubtful.items()
    }
    picked = picked or pick(predictions, method)
    cards = [
        Card(
            row=row,
            kind=kind,
            name=names.get(row, ""),
            link=links.get(row, ""),
            picture=data_uri(pictures[row]) if row in pictures else "",
            predicted=cells.class_name(int(predictions.predicted[row]), class_names),
            true=cells.class_name(int(labels[row]), class_names),
            wrong=bool(predictions.is_error[row]),
            accepted=bool(accept[row]),
            u=float(u[row]),
            mcp=None if mcp is None else float(mcp[row]),
            reasons=() if explanations is None else reasons(explanations, row),
            remark=remarks.get(row, ""),
        )
        for kind, rows in picked.items()
        for row in rows.tolist()
    ]
    sizes = [abs(reason.value) for card in cards for reason in card.reasons]
    return Gallery(cards, method, max(sizes, default=0.0), name)


def error_tables(shown: Gallery, who: str) -> list[Table]:
    """The wrong answers of a gallery as tables.

    Args:
      shown: The gallery.
      who: Whose u it is, as "BTCP, frozen".
    """
    columns = {name: name for name in ("image", "true class", "predicted class", f"u ({who})")}
    tables = []
    for stem, (caption, cards) in _errors(shown).items():
        lines = [
            [c.name or str(c.row), c.true, c.predicted, cells.printed_u(c.u, 4)] for c in cards
        ]
        tables.append(Table(stem, caption, columns, lines))
    return tables


def error_sheets(shown: Gallery, pictures: Pictures) -> dict[str, np.ndarray]:
    """The wrong answers of a gallery as sheets of pictures, by the stem of their file.

    Args:
      shown: The gallery.
      pictures: Pictures of its rows; without them there is no sheet.
    """
    sheets = {}
    for stem, (_, cards) in _errors(shown).items():
        cards = [card for card in cards if card.row in pictures.images]
        if cards:
            captions = [
                f"is {c.true}\nsaid {c.predicted}\nu = {cells.printed_u(c.u)}" for c in cards
            ]
            images = [pictures.images[card.row] for card in cards]
            sheets[stem] = sheet(images, captions, columns=6)
    return sheets


def _errors(shown: Gallery) -> dict[str, tuple[str, list[Card]]]:
    """Stem of a file -> caption and cards of two kinds of errors, those that occur."""
    unsuspected = [card for card in shown.cards if card.kind in ("label", "unsuspected")]
    trusted = [card for card in shown.cards if card.kind == "trusted"]
    confident = sorted([*unsuspected, *trusted], key=lambda card: card.u)[:SHOWN]
    errors = {
        "most_confident_errors": ("Most confident errors", confident),
        "likely_label_errors": ("Errors that every method trusts", unsuspected),
    }
    return {stem: (caption, cards) for stem, (caption, cards) in errors.items() if cards}


def reasons(explanations: Explanations, row: int) -> list[Reason]:
    """The pieces of evidence that moved the u of a row most, the strongest first."""
    values = explanations.values[row]
    order = np.argsort(-np.abs(values), kind="stable")[:REASONS]
    return [
        _reason(explanations.names[place], float(values[place]))
        for place in order
        if abs(values[place]) >= 0.05
    ]


def _reason(name: str, value: float) -> Reason:
    plain = name.replace("_", " ")
    return Reason(EVIDENCE.get(name, (plain, plain))[int(value < 0)], value)
