"""Which answers a person should check, and what the decisions say of all of them.

A queue holds two kinds of answers. Those with the highest u come first: they are where errors are
expected, and say nothing about the others. A sample drawn at random from *all* answers comes after
them: from it alone a promise about accepted answers is tested, or a new one made. An answer that is
in both is checked once and counts in both.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import thresholds
from btcp_tf.core import checks, csv_cells, json_files, wording
from btcp_tf.core.groups import one_of_each
from btcp_tf.decisions.scores import Scores
from btcp_tf.evaluation import tabular

RIGHT, WRONG, UNSURE = "right", "wrong", "unsure"
"""What a person says of an answer: "unsure" where even they cannot tell."""

COLUMNS = ("row", "input", "decision", "label")
"""Columns of a file of decisions that are read, `input` if it is there; others are for people."""


@dataclasses.dataclass(frozen=True, eq=False)
class Queue:
    """Rows of the scores that a person should check, in order."""

    rows: np.ndarray
    """`[q]` int64: the highest u first, then those drawn that are not among them."""
    first: int
    """How many of them are there for their u."""
    drawn: np.ndarray
    """`[audit]` int64: the random sample, in the order in which it was drawn."""
    probability: float
    """That with which each answer came into the sample, whatever its u: audit / n."""

    def place_in_sample(self, row: int) -> int | None:
        """From 1, in the order of the draw; None: the row is not in the sample."""
        return self._places.get(row)

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        return {row: place for place, row in enumerate(self.drawn.tolist(), 1)}


def draw(uncertainty: ArrayLike, *, budget: int, audit: int, seed: int = 0) -> Queue:
    """The answers with the highest u, and a sample of all answers, each equally likely.

    The sample is `numpy.random.default_rng(seed).permutation(n)[:audit]`, so that anybody can draw
    it again. Any number of its first rows is a random sample, too.

    Args:
      uncertainty: `[n]`, finite.
      budget: Answers to check for their u, at least 0; all where there are fewer.
      audit: Answers to draw, at least 0; all where there are fewer.
      seed: Of the draw, at least 0.

    Raises:
      ValueError: If an argument is not as described, or nothing is to be checked.

    Example:
      >>> queue = draw([0.2, 0.9, 0.1, 0.5], budget=2, audit=1, seed=3)
      >>> queue.rows[:2].tolist(), queue.probability
      ([1, 3], 0.25)
    """
    u = np.asarray(uncertainty, np.float64)
    if u.ndim != 1 or not len(u) or not np.isfinite(u).all():
        raise ValueError(
            f"uncertainty: expected finite numbers [n], n > 0, received {u.dtype} {list(u.shape)}"
        )
    for name, value in (("budget", budget), ("audit", audit), ("seed", seed)):
        checks.whole_number(name, value, "a whole number >= 0", 0)
    if not budget + audit:
        raise ValueError("budget: expected answers to check, received 0, and 0 to draw (audit)")
    first = np.argsort(-u, kind="stable")[:budget]
    drawn = np.random.default_rng(seed).permutation(len(u))[:audit]
    rest = drawn[~np.isin(drawn, first)]
    return Queue(np.concatenate([first, rest]), len(first), drawn, len(drawn) / len(u))


def record(queue: Queue, scores: Scores, budget: int, audit: int, seed: int) -> dict[str, Any]:
    """What is kept of a queue, as JSON values: how it was drawn, from which scores."""
    return {
        "scores": tabular.shown(scores.name),
        "column": scores.column,
        "answers": len(scores.predicted),
        "fingerprint": fingerprint(scores),
        "budget": budget,
        "audit": audit,
        "seed": seed,
        "sampling": "numpy.random.default_rng(seed).permutation(answers)[:audit]",
        "inclusion_probability": queue.probability,
        "checked_first": queue.rows[: queue.first].tolist(),
        "sample": queue.drawn.tolist(),
    }


def fingerprint(scores: Scores) -> str:
    """Changes where the answers, their order or their u change."""
    # Every form of a file keeps the digits of float32; u of others may be beyond its range.
    with np.errstate(over="ignore"):
        u = scores.uncertainty.astype(np.float32)
    return hashlib.sha256(u.tobytes() + scores.predicted.astype(np.int64).tobytes()).hexdigest()


def read_record(path: Path, scores: Scores) -> Queue:
    """The queue that `record` kept; ValueError if it is none, or one of other scores."""
    try:
        kept = json_files.parse(path.read_text(encoding="utf-8"))
        mark, numbers = kept["fingerprint"], (kept["budget"], kept["audit"], kept["seed"])
        budget, audit, seed = map(int, numbers)
    except FileNotFoundError:
        raise ValueError(
            f"labels: expected the queue that was checked in {path}, which is not there; name its "
            "folder with --output_dir"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected a queue of btcp_tf.review, received what cannot be read ({error})"
        ) from error
    if mark != fingerprint(scores):
        raise ValueError(
            f"{path}: expected a queue of {tabular.shown(scores.name)}, received one of other "
            f"answers ({kept.get('scores')}); name the scores that it was made of"
        )
    return draw(scores.uncertainty, budget=budget, audit=audit, seed=seed)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a person said of an answer."""

    word: str
    """`RIGHT`, `WRONG` or `UNSURE`."""
    label: int | None
    """The true class; None: not known."""


def read_decisions(
    path: Path, queue: Queue, scores: Scores, class_names: Sequence[str]
) -> dict[int, Decision]:
    """Decisions by row of the scores, as the page of a queue saves them; open ones are left out.

    Args:
      path: .csv, .jsonl or .parquet with the `COLUMNS`. Where `decision` is empty, a label says
        whether the answer is right. Without that column it is what Label Studio exports: labels by
        name.
      queue: What was to be checked.
      scores: The answers.
      class_names: By number.

    Raises:
      ValueError: If a row is not of the queue, stands twice or names another input; if a decision
        is none, or contradicts its label; or if nothing is decided. The message names the line.
      OSError: If the file cannot be opened.
    """
    table = tabular.read(path, COLUMNS)
    table.require("row", "label")
    rows = table.converted("row", tabular.class_number, "the number of a row of the scores")
    words = table.values.get("decision", [None] * len(table))
    names_first = "decision" not in table.values
    labels = table.converted(
        "label",
        _reader_of_labels(class_names, names_first=names_first),
        f"{'the name of a class' if names_first else 'a class number'} or nothing",
    )
    inputs = table.values.get("input", [None] * len(table))
    known, found = set(queue.rows.tolist()), dict[int, Decision]()
    for place, (row, word, label) in enumerate(zip(rows, words, labels, strict=True)):
        where = table.place(place)
        if row not in known or row in found:
            what = "twice" if row in found else "which is not one of them"
            raise ValueError(
                f"{table.file}: expected rows of this queue, received row {row} {where}, {what}"
            )
        name = None if scores.inputs is None else scores.inputs[row]
        if None not in (name, inputs[place]) and _plain(inputs[place]) != _plain(name):
            raise ValueError(
                f"{table.file}: expected the input {tabular.shown(name)!r} of row {row}, received "
                f"{tabular.shown(inputs[place])!r} {where}: decisions about other scores"
            )
        predicted = int(scores.predicted[row])
        if word is None and label is not None:
            word = RIGHT if label == predicted else WRONG
        if word is not None:
            decision = _decision(word, label, predicted, len(class_names))
            if isinstance(decision, str):
                raise ValueError(f"{table.file}: expected {decision} {where}")
            found[row] = decision
    if not found:
        raise ValueError(f"{table.file}: expected a decision, received {len(table)} open rows")
    return found


def _reader_of_labels(
    class_names: Sequence[str], *, names_first: bool
) -> Callable[[Any], int | None]:
    """What makes a class number of an entry, None of an empty one; there are names like numbers."""
    numbers = {wording.clean(name): number for number, name in enumerate(class_names)}

    def convert(value: Any) -> int | None:
        if value is None:
            return None
        if names_first and isinstance(value, str) and wording.clean(value) in numbers:
            return numbers[wording.clean(value)]
        return tabular.class_number(value)

    return convert


def _plain(name: Any) -> str:
    """A name as a page and a spreadsheet leave it: on one line, without a guard before a sign."""
    return csv_cells.plain(" ".join(tabular.shown(name).split()))


def _decision(word: str, label: int | None, predicted: int, classes: int) -> Decision | str:
    """What was decided; a str says what was expected and received instead."""
    if word not in (RIGHT, WRONG, UNSURE):
        return f"a decision {RIGHT}, {WRONG}, {UNSURE} or nothing, received {word!r}"
    if label is not None and label >= classes:
        return (
            f"a label from 0 to {classes - 1}, received {label}"
            f"{wording.from_one(np.array([label]), classes)}"
        )
    if word == RIGHT and label is None:
        label = predicted
    if (word == RIGHT and label != predicted) or (word == WRONG and label == predicted):
        return (
            f"a decision that fits its label, received {word} with the label {label}, where "
            f"{predicted} was predicted,"
        )
    return Decision(word, None if word == UNSURE else label)


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The part of the random sample that was checked: as many of its first rows."""

    rows: np.ndarray
    """`[m]` int64, rows of the scores in the order of the draw."""
    labels: np.ndarray
    """`[m]` int64, true classes. Where nobody knows it, a class that was not predicted."""
    assumed: int
    """Rows of them that count as wrong although nobody could tell."""
    probability: float
    """That with which each answer of the scores is among them."""


def checked_sample(queue: Queue, decisions: Mapping[int, Decision], scores: Scores) -> Sample:
    """The first rows of the sample, up to the last one that was decided.

    Whoever leaves out what is hard would make any promise hold. So within that part, rows that are
    open or unsure count as wrong: a promise that is kept so is kept whatever they are. Rows drawn
    later that were decided for their u alone are left out, since those are the doubtful ones.

    Raises:
      ValueError: If no row of the sample was decided, or none was drawn.
    """
    if not len(queue.drawn):
        raise ValueError(
            "labels: expected a queue with a random sample, received one without (--audit=0), of "
            "which nothing follows for answers that were not checked"
        )
    rest = np.flatnonzero(~np.isin(queue.drawn, queue.rows[: queue.first]))
    done = [place for place in rest.tolist() if int(queue.drawn[place]) in decisions]
    # Those with the highest u alone show nothing but themselves.
    if not done and len(rest):
        raise ValueError(
            "labels: expected decisions about the random sample, from which alone a promise can be "
            f"tested, received none; {len(rest):,} answers stand for it behind those with the "
            "highest u"
        )
    end = len(queue.drawn) if len(done) == len(rest) else done[-1] + 1
    rows = queue.drawn[:end]
    found = [decisions.get(row, Decision(UNSURE, None)) for row in rows.tolist()]
    # Where it is not known, its number does not matter, only that it was not predicted.
    other = np.where(scores.predicted[rows] == 0, 1, 0)
    labels = [
        stand_in if decision.label is None else decision.label
        for decision, stand_in in zip(found, other.tolist(), strict=True)
    ]
    assumed = sum(decision.word == UNSURE for decision in found)
    n = len(scores.predicted)
    return Sample(rows, np.array(labels, np.int64), assumed, end / n)


def words(
    queue: Queue, decisions: Mapping[int, Decision], sample: Sample, scores: Scores
) -> list[str]:
    """What the decisions say, in sentences: of those checked first, and of all the others."""
    first = queue.rows[: queue.first].tolist()
    decided = [decisions[row] for row in first if row in decisions]
    sentences = []
    if decided:
        wrong = sum(decision.word == WRONG for decision in decided)
        sentences.append(
            f"Checked for their u: {len(decided):,} of {len(first):,}, {wrong:,} of them wrong."
        )
    is_error = sample.labels != scores.predicted[sample.rows]
    others = np.flatnonzero(~np.isin(sample.rows, first))
    n = len(scores.predicted)
    counted = ""
    if scores.groups is not None:
        others = others[one_of_each(scores.groups[sample.rows[others]])]
        counted = ", one of each group"
    if len(others):
        errors, rows = int(is_error[others].sum()), len(others)
        share = wording.percent_text(errors / rows, thresholds.clopper_pearson(errors, rows))
        sentences.append(
            f"Of the {n - len(first):,} answers that were not checked for their u, {rows:,} were "
            f"drawn at random and checked{counted}: {errors:,} of them wrong, {share}."
        )
    if sample.assumed:
        sentences.append(
            f"{sample.assumed:,} of {len(sample.rows):,} answers of the sample have no clear "
            "decision and count as wrong."
        )
    if len(sample.rows) < len(queue.drawn):
        sentences.append(
            f"{len(sample.rows):,} of {len(queue.drawn):,} answers of the sample count, those up "
            "to the last one decided. The test holds if what was seen so far had no part in when "
            "checking stopped."
        )
    return sentences
