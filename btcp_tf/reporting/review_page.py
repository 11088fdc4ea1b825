"""The page on which a person checks answers, and the same queue as tasks of Label Studio."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf.decisions.reviewing import Queue
from btcp_tf.reporting import cells, pages
from btcp_tf.thresholds import ReviewQueue

CHOICES = 5
"""Classes that have a button and a number key."""

FIRST, SAMPLE, BOTH = "highest u", "random sample", "highest u, random sample"
"""Why an answer is in the queue."""


@dataclasses.dataclass(frozen=True)
class Content:
    """What was answered: a picture, a text or the fields of a row; without any, its name alone."""

    picture: str = ""
    """A data address."""
    text: str = ""
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    link: str = ""
    """Address of its file."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A class that may be the right one."""

    number: int
    name: str
    share: float | None
    """Its probability; None: unknown."""

    @property
    def width(self) -> str:
        """The probability in percent, as the width of a bar."""
        return "0" if self.share is None else f"{100 * self.share:.1f}"

    @property
    def percent(self) -> str:
        """The probability as it is printed."""
        return "" if self.share is None else f"{cells.of_hundred(self.share)} %"


@dataclasses.dataclass(frozen=True)
class Item:
    """One answer of a queue."""

    row: int
    """Its row in the scores, from 0 on."""
    name: str
    """What the scores call the input; "" where they do not."""
    content: Content
    u: float
    choices: Sequence[Choice]
    """The predicted class, then those that are most probable besides."""
    why: str
    """`FIRST`, `SAMPLE` or `BOTH`."""
    place: int | None
    """Its place in the random sample, from 1; None: it is not in it."""
    accepted: bool | None
    """None: there is no threshold."""

    @property
    def title(self) -> str:
        return self.name or f"row {self.row}"


@dataclasses.dataclass(frozen=True)
class Review:
    """Everything on the page."""

    name: str
    """Of the scores."""
    key: str
    """Under which a browser keeps the decisions."""
    items: Sequence[Item]
    class_names: Sequence[str]
    """By number."""
    probability: float
    """Of each answer to be in the random sample."""
    answers: int
    """How many there are altogether."""
    seed: int
    sentence: str
    """What is to be checked, and what it should bring."""
    command: str
    """What takes the decisions back."""

    @property
    def first(self) -> int:
        """Answers that are there for their u."""
        return sum(item.why != SAMPLE for item in self.items)

    @property
    def digits(self) -> bool:
        """Whether every class is called as a key: that key then means the class."""
        return all(name in tuple("0123456789") for name in self.class_names)

    @property
    def sample(self) -> int:
        return sum(item.place is not None for item in self.items)


def to_html(review: Review) -> str:
    """One page that needs no other file and no network."""
    return pages.render("review.html", review=review, many=len(review.class_names) > CHOICES)


def sentence(queue: Queue, expected: ReviewQueue | None, u: np.ndarray) -> str:
    """What is to be checked, and how many errors that should catch.

    Args:
      queue: The answers to check.
      expected: What labeled rows say of those with the highest u; None: there are no such rows.
      u: Of all answers, `[n]`.
    """
    parts = []
    if queue.first:
        k = queue.first
        what = f"Check the {k:,} answers with the highest u" if k > 1 else "Check the highest u"
        if expected is not None and expected.expected_errors is not None:
            count = f"about {expected.expected_errors:.0f} ({expected.low:,} to {expected.high:,})"
            if expected.high - expected.low > k / 2:
                # So few calibration answers are as uncertain that their mean says nothing.
                count = f"{expected.low:,} to {expected.high:,}"
            what += f": by the calibration set, {count} are wrong"
        elif 0 <= u.min() and u.max() <= 1:
            what += f": by their u, about {u[queue.rows[:k]].sum():.0f} are wrong"
        parts.append(f"{what}.")
    if others := len(queue.rows) - queue.first:
        plural = "s" * (others > 1)
        parts.append(
            f"Then {others:,} answer{plural} drawn at random: they show whether the others can be "
            "trusted."
        )
    return " ".join(parts)


def choices(predicted: int, probs: np.ndarray | None, class_names: Sequence[str]) -> list[Choice]:
    """The classes with a button: the predicted one first, then by probability, then by number."""
    order = range(len(class_names)) if probs is None else np.argsort(-probs, kind="stable").tolist()
    numbers = [predicted, *(number for number in order if number != predicted)][:CHOICES]
    return [
        Choice(number, class_names[number], None if probs is None else float(probs[number]))
        for number in numbers
    ]


def label_studio(review: Review) -> list[dict[str, Any]]:
    """The queue as tasks of Label Studio with predictions, for its import of JSON.

    `data` has what is shown as `image` or `text`, and what `btcp_tf.review` knows of the answer.

    Source: https://labelstud.io/guide/predictions and https://labelstud.io/guide/task_format
    """
    kind, tasks = shown_as(review), []
    for item in review.items:
        predicted = item.choices[0]
        data = {
            kind: item.content.picture or item.content.text or _lines(item),
            "row": item.row,
            "input": item.name,
            "uncertainty": item.u,
            "chosen_for": item.why,
            "place_in_sample": item.place,
        }
        prediction: dict[str, Any] = {
            "model_version": review.name,
            "result": [
                {
                    "id": f"row{item.row}",
                    "from_name": "label",
                    "to_name": kind,
                    "type": "choices",
                    "value": {"choices": [predicted.name]},
                }
            ],
        }
        if 0 <= item.u <= 1:
            prediction["score"] = 1 - item.u
        tasks.append({"data": data, "predictions": [prediction]})
    return tasks


def label_config(review: Review) -> str:
    """The labeling interface that fits `label_studio`: the XML for its project's settings."""
    kind = shown_as(review)
    return pages.render("label_studio.xml", kind=kind, class_names=review.class_names)


def shown_as(review: Review) -> str:
    """What Label Studio shows: "image" where every answer has a picture, else "text"."""
    return "image" if all(item.content.picture for item in review.items) else "text"


def _lines(item: Item) -> str:
    return (
        "\n".join(f"{name}: {value}" for name, value in item.content.fields.items()) or item.title
    )
