"""Failures per class: tables and the confusion matrix."""

import math
from collections.abc import Sequence

import numpy as np

from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.reporting import cells, texts
from btcp_tf.reporting.cells import Cell, Table, Words, class_name, count_cell
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
    names = [class_name(int(number), class_names) for number in classes]
    right, total = int(counts.trace()), int(counts.sum())
    alt = f"Confusion matrix of {len(names)} classes: {right:,} of {total:,} answers are right"
    pairs = [
        f"{names[true]} taken for {names[predicted]}, {counts[true, predicted]:,} times"
        for true, predicted in confused(counts)[:3]
    ]
    alt += f". Most often confused: {'; '.join(pairs)}." if pairs else ", none is confused."
    _, title, caption = texts.figure("confusion", dataset)
    return Matrix(alt, counts, names, title, caption)


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
    lines: list[list[Words]] = []
    for number in np.unique(labels):
        of_class = labels == number
        wrong = of_class & (predicted != number)
        answers, times = np.unique(predicted[wrong], return_counts=True)
        most = "–"
        if len(answers):
            most = f"{class_name(int(answers[times.argmax()]), class_names)} ({times.max():,})"
        groups = (of_class & ~wrong, wrong)
        lines.append(
            [
                class_name(int(number), class_names),
                count_cell(of_class.sum()),
                count_cell(wrong.sum()),
                _share_cell(int(wrong.sum()), int(of_class.sum())),
                most,
                *(_mean_cell(u[rows]) for u in columns for rows in groups),
            ]
        )
    seeds = f", images and errors of {len(predictions)} seeds added up"
    means = {
        f"{name}_{kind}": f"mean u of {cells.label(name)}, {kind}"
        for name in shown
        for kind in ("correct", "wrong")
    }
    caption = texts.caption(
        "classes",
        dataset=dataset,
        classifier=who and f", {who}",
        seeds=seeds if len(predictions) > 1 else "",
    )
    name = cells.file_name("classes", dataset)
    return Table(name, caption, texts.columns("classes") | means, lines)


def _share_cell(part: int, whole: int) -> Cell:
    share = part / whole
    return Cell(f"{100 * share:.2f}", share)


def _mean_cell(u: np.ndarray) -> Cell:
    mean = float(u.mean()) if len(u) else math.nan
    return Cell(cells.printed_u(mean) if len(u) else "n/a", mean)


def _answers(predictions: Sequence[Predictions]) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted classes of all seeds, one after the other."""
    return (
        np.concatenate([cells.known_labels(p) for p in predictions]),
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
    places = np.searchsorted(classes, labels) * k + np.searchsorted(classes, predicted)
    return classes, np.bincount(places, minlength=k * k).reshape(k, k)


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
    if not pairs:
        return None
    lines: list[list[Words]] = []
    for true, predicted in pairs[:most]:
        times = int(counts[true, predicted])
        lines.append(
            [
                class_name(int(classes[true]), class_names),
                class_name(int(classes[predicted]), class_names),
                count_cell(times),
                _share_cell(times, int(counts[true].sum())),
                _share_cell(times, errors),
            ]
        )
    more = f", the {most} most frequent of {len(pairs):,} pairs" if len(pairs) > most else ""
    caption = texts.caption("confused", dataset=dataset, most=more)
    return Table(cells.file_name("confused", dataset), caption, texts.columns("confused"), lines)
