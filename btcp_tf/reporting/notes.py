"""Notes: what a reader has to know beside the numbers."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from btcp_tf.metrics import METRICS
from btcp_tf.reporting import cells, pages, tables
from btcp_tf.reporting.cells import MIN_ERRORS_TO_COMPARE, Row
from btcp_tf.reporting.pages import Block
from btcp_tf.reporting.texts import text


def paper_blocks(rows: Sequence[Row], whole: bool) -> list[Block]:
    """The paper's cells beside a run's, or why there are none."""
    if not whole:
        return [pages.text(text("notes.part"))]
    return [pages.text(text("notes.paper")), *tables.paper_tables(rows)]


def merge_notes(notes: Iterable[str]) -> list[str]:
    """Notes in their order; the same sentence about several stages becomes one.

    Example:
      >>> merge_notes(["tcp: few errors", "One seed.", "btcp: few errors"])
      ['tcp, btcp: few errors', 'One seed.']
    """
    stages: dict[str, list[str]] = {}
    for note in notes:
        stage, colon, rest = note.partition(": ")
        has_stage = colon and " " not in stage
        stages.setdefault(rest if has_stage else note, []).extend([stage] if has_stage else [])
    return [
        f"{', '.join(dict.fromkeys(names))}: {sentence}" if names else sentence
        for sentence, names in stages.items()
    ]


def of_runs(runs: set[str], notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes of runs; those that differ in their numbers alone are one with ranges.

    Args:
      runs: Names of all runs.
      notes: Note -> names of the runs that have it.
    """
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(_NUMBER.sub("#", note), []).append(note)
    merged = []
    for group in alike.values():
        having = dict.fromkeys(name for note in group for name in notes[note])
        suffix = "" if runs <= set(having) else f" ({', '.join(having)})"
        merged.append(_with_ranges(group) + suffix)
    return merged


_NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]\d+)?")


def _with_ranges(notes: Sequence[str]) -> str:
    """One sentence for several that differ in their numbers.

    Example:
      >>> _with_ranges(["12 errors of 100", "15 errors of 100"])
      '12 to 15 errors of 100'
    """
    ranges = []
    for numbers in zip(*map(_NUMBER.findall, notes), strict=True):
        ordered = sorted(set(numbers), key=lambda text: float(text.replace(",", "")))
        ranges.append(" to ".join(dict.fromkeys((ordered[0], ordered[-1]))))
    return _NUMBER.sub(lambda _: ranges.pop(0), notes[0])


def uses_all_data(settings: Mapping[str, Any]) -> bool:
    """Whether a run used all images of its data set."""
    limits = ("max_train_images", "max_test_images")
    return all(str(settings.get(name, 0)) == "0" for name in limits)


def error_count_notes(rows: Iterable[Row]) -> list[str]:
    """Notes about classifiers with no error, few errors or errors alone."""
    notes = []
    for group in cells.classifiers(rows):
        errors, who = group[0]["errors"], f"The {cells.stage_label(group[0]['stage'])} classifier"
        if errors == 0:
            notes.append(f"{who} has no wrong answers: {_undefined(group)}.")
        elif errors == group[0]["n"]:
            notes.append(f"{who} has no right answers: {_undefined(group)}.")
        elif errors < MIN_ERRORS_TO_COMPARE:
            notes.append(
                f"{who} makes only {errors} error{'s' * (errors > 1)}: every figure about finding "
                "its errors rests on these few. More test images have more, or a harder data set."
            )
    return list(dict.fromkeys(notes))


def _undefined(group: Sequence[Row]) -> str:
    """The metrics that are not defined where all answers are right, or all are wrong."""
    titles = [
        metric.title
        for name, metric in METRICS.items()
        if metric.kind != "calibration"
        and all(math.isnan(cells.number(row[name])) for row in group)
    ]
    return f"{', '.join(titles)} are not defined (n/a)"
