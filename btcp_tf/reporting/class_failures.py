"""Failures per class: tables and the confusion matrix."""

import math
from collections.abc import Sequence

import numpy as np

from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.reporting.cells import (
    Cell,
    Table,
    Words,
    class_name,
    count_cell,
    file_name,
    known_labels,
    label,
    printed_u,
)
from btcp_tf.reporting.pages import Block, Details
from btcp_tf.reporting.svg import Matrix

MOST_CLASSES = 20
"""Classes of a confusion matrix; of more only the most confused pairs are listed."""


def per_class(
    predictions: Sequence[Predictions],
    class_names: Sequence[str] | None,
    dataset: str,
    who: str = "frozen classifier",
) -> list[Block]:
    """Failures per class, and which class is taken for which; see `class_table`."""
    blocks: list[Block] = [class_table(predictions, class_names, dataset, who)]
    classes, counts = confusion(predictions)
    pairs = confused_table(classes, counts, class_names, dataset)
    if 1 < len(classes) <= MOST_CLASSES:
        blocks.append(_confusion_matrix(classes, counts, class_names, dataset))
        if pairs is not None:
            blocks.append(Details("Confused classes as a table", [pairs]))
    elif pairs is not None:
        blocks.append(pairs)
    return blocks


def _confusion_matrix(
    classes: np.ndarray, counts: np.ndarray, class_names: Sequence[str] | None, dataset: str
) -> Matrix:
    names = [class_name(int(number_), class_names) for number_ in classes]
    right, total = int(counts.trace()), int(counts.sum())
    alt = f"Confusion matrix of {len(names)} classes: {right:,} of {total:,} answers are right"
    pairs = [
        f"{names[true]} taken for {names[predicted]}, {counts[true, predicted]:,} times"
        for true, predicted in confused(counts)[:3]
    ]
    alt += f". Most often confused: {'; '.join(pairs)}." if pairs else ", none is confused."
    return Matrix(
        alt,
        counts,
        names,
        f"Which class is taken for which: {dataset}",
        "A row for each true class, a column for each class that was predicted, as counts. Right "
        "answers stand on the diagonal. The shade of a wrong cell is its share of the row, beside "
        "the largest such share.",
    )


def class_table(
    predictions: Sequence[Predictions],
    class_names: Sequence[str] | None,
    dataset: str,
    who: str = "frozen classifier",
) -> Table:
    """Failures per class, summed over seeds.

    Args:
      predictions: Those of the frozen classifier on the test set, one for each seed.
      class_names: Names by class number.
      dataset: Name of the data set.
      who: Whose answers they are; "": the data set says it.
    """
    labels, predicted = _answers(predictions)
    shown = [
        name for name in (REFERENCE, "btcp") if all(name in p.uncertainty for p in predictions)
    ]
    columns = [np.concatenate([p.uncertainty[name] for p in predictions]) for name in shown]
    lines = []
    for number in np.unique(labels):
        here = labels == number
        wrong = here & (predicted != number)
        share = float(wrong.sum() / here.sum())
        answers, times = np.unique(predicted[wrong], return_counts=True)
        most = "–"
        if len(answers):
            most = f"{class_name(int(answers[times.argmax()]), class_names)} ({times.max():,})"
        line: list[Words] = [
            class_name(int(number), class_names),
            count_cell(here.sum()),
            count_cell(wrong.sum()),
            Cell(f"{100 * share:.2f}", share),
            most,
        ]
        for u in columns:
            for rows in (here & ~wrong, wrong):
                mean = float(u[rows].mean()) if rows.any() else math.nan
                line.append(Cell("n/a" if math.isnan(mean) else printed_u(mean), mean))
        lines.append(line)
    seeds = len(predictions)
    return Table(
        file_name("classes", dataset),
        f"Failures per class: {dataset}{who and ', '}{who}"
        + (f", images and errors of {seeds} seeds added up" if seeds > 1 else ""),
        {
            "class": "class",
            "images": "images",
            "errors": "errors",
            "error_rate": "error rate %",
            "taken_for": "most often taken for",
            **{
                f"{name}_{kind}": f"mean u of {label(name)}, {kind}"
                for name in shown
                for kind in ("correct", "wrong")
            },
        },
        lines,
    )


def _answers(predictions: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted classes of all seeds, one after the other."""
    return (
        np.concatenate([known_labels(p) for p in predictions]),
        np.concatenate([p.predicted for p in predictions]),
    )


def confusion(predictions: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
    """How often a class is taken for another one, summed over classifiers.

    Args:
      predictions: With labels.

    Returns:
      Numbers of the classes that occur, `[k]`, ascending; counts `[k, k]` int64, a row for each
      true and a column for each predicted class.
    """
    labels, predicted = _answers(predictions)
    classes = np.unique(np.concatenate([labels, predicted]))
    k = len(classes)
    cells = np.searchsorted(classes, labels) * k + np.searchsorted(classes, predicted)
    return classes, np.bincount(cells, minlength=k * k).reshape(k, k)


def confused(counts: np.ndarray) -> list[tuple[int, int]]:
    """Places (true, predicted) of the wrong cells of a confusion matrix, the fullest first."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
    places = np.unravel_index(order, wrong.shape)
    return [(int(true), int(predicted)) for true, predicted in zip(*places, strict=True)]


def confused_table(
    classes: np.ndarray,
    counts: np.ndarray,
    class_names: Sequence[str] | None,
    dataset: str,
    most: int = 20,
) -> Table | None:
    """The pairs of classes that are confused most; None: none is.

    Args:
      classes: From `confusion`.
      counts: The same.
      class_names: Names by class number.
      dataset: Name of the data set.
      most: How many pairs.
    """
    pairs = confused(counts)
    errors = sum(int(counts[pair]) for pair in pairs)
    lines: list[list[Words]] = []
    for true, predicted in pairs[:most]:
        found, of_class = int(counts[true, predicted]), int(counts[true].sum())
        shares = found / of_class, found / errors
        lines.append(
            [
                class_name(int(classes[true]), class_names),
                class_name(int(classes[predicted]), class_names),
                count_cell(found),
                *(Cell(f"{100 * share:.2f}", share) for share in shares),
            ]
        )
    if not lines:
        return None
    more = f", the {most} most frequent of {len(pairs):,} pairs" if len(pairs) > most else ""
    return Table(
        file_name("confused", dataset),
        f"Which class is taken for which: {dataset}{more}",
        {
            "true": "true class",
            "predicted": "predicted",
            "times": "times",
            "share_of_class": "of the class %",
            "share_of_errors": "of all errors %",
        },
        lines,
    )
