"""How many of the answers of a file of scores are expected to be wrong, while it is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core import wording
from btcp_tf.decisions import exported
from btcp_tf.decisions.expected_errors import Batch, ExpectedErrors, expected_errors
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.serving.records import Record
from btcp_tf.thresholds import GroupThreshold


class Expectation(NamedTuple):
    """The expected errors of all answers, and of the accepted ones."""

    answers: ExpectedErrors | None = None
    """None: it is not known, or there are none."""
    accepted: ExpectedErrors | None = None
    unknown: str = ""
    """Why it is not known."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Self | None:
        """What a file keeps of it; None where an earlier version wrote that file."""
        if content is None:
            return None
        answers, accepted = (
            None if content[name] is None else ExpectedErrors(**content[name])
            for name in ("answers", "accepted")
        )
        return cls(answers, accepted, content["unknown"])

    def lines(self) -> list[str]:
        """The same for a reader, and what it rests on."""
        if self.unknown:
            return [f"expected errors: not known, as {self.unknown}"]
        if self.answers is None:
            return []
        found = [("expected among all answers", self.answers)]
        if self.accepted is not None:
            found.append(("expected among accepted ones", self.accepted))
        lines = [
            f"{title}: {round(one.rate * one.rows):,} of {one.rows:,} wrong, "
            f"{wording.percent_text(one.rate, (one.low, one.high))}"
            for title, one in found
        ]
        rows, errors = self.answers.calibration_rows, self.answers.calibration_errors
        return [
            *lines,
            "that is by u alone, in a 95 % interval, if an answer of some u is as often wrong as "
            f"among the {rows:,} calibration rows ({errors:,} wrong); where inputs have changed, "
            "it can be far off, either way",
        ]


class Expecting:
    """Sums over the rows of a file of scores.

    Args:
      directory: Version directory of the model.
      about: What it says of itself.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any]) -> None:
        self._calibration: tuple[np.ndarray, np.ndarray] | None = None
        self._accepted: tuple[np.ndarray, np.ndarray] | None = None
        self._unknown = ""
        self._batches = Batch(), Batch()
        damaged = ""
        try:
            rows = exported.read_held_out(directory).get("calibration")
        except (OSError, ValueError) as error:  # Scores are worth more than this.
            rows, damaged = None, f"the rows beside the model cannot be read ({error})"
        no_promise = (about.get("data") or {}).get("no_promise", "")
        if about.get(exported.DECIDE_ONLY):
            self._unknown = "the model computes u only as far as its decision needs (decide_only)"
        elif rows is None:
            self._unknown = damaged or "there are no calibration rows beside the model"
        elif rows.labels is None:
            self._unknown = "the calibration rows beside the model have no labels"
        elif no_promise:
            self._unknown = no_promise
        else:
            rows = rows.independent()
            u, threshold = rows.uncertainty[COLUMN], thresholds.from_json(about["threshold"])
            self._calibration = self._accepted = rows.is_error, u
            if isinstance(threshold, GroupThreshold):
                # Those of one u are not alike: which of them are accepted depends on the class.
                names = thresholds.names_of_rows(threshold, rows.predicted, rows.by)
                own = u < threshold.limits(names)
                self._accepted = (rows.is_error[own], u[own]) if own.any() else None

    def add(self, rows: Sequence[Record]) -> None:
        """Counts further rows; those without an answer do not count."""
        answered = [row for row in rows if not row["problem"]]
        accepted = [row for row in answered if row["accept"]]
        for batch, some in zip(self._batches, (answered, accepted), strict=True):
            if some and self._calibration is not None:
                batch.add(np.array([row["uncertainty"] for row in some], np.float64))

    def expectation(self) -> Expectation:
        """Of all rows so far."""
        if self._calibration is None:
            return Expectation(unknown=self._unknown)
        known = self._calibration, self._accepted
        answers, accepted = (
            expected_errors(batch, rows) if batch.rows and rows is not None else None
            for batch, rows in zip(self._batches, known, strict=True)
        )
        return Expectation(answers, accepted)
