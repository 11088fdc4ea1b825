"""What is accepted in each group of answers, and thresholds that promise an error rate in each."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from btcp_tf import thresholds
from btcp_tf.core.groups import numbers, one_of_each
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.predictions import Answers, Predictions
from btcp_tf.reporting import cells, pages
from btcp_tf.reporting.cells import Cell, Table
from btcp_tf.reporting.pages import Block
from btcp_tf.thresholds import GroupThreshold, Outcome, Threshold

_OUTCOMES = {
    "group": "group",
    "rows": "answers",
    "wrong": "wrong ones",
    "accepted": "accepted",
    "errors": "wrong among the accepted",
    "risk": "error rate of accepted answers",
}

_THRESHOLDS = {
    "group": "group",
    "rows": "answers",
    "tau": "tau",
    "coverage": "accepted",
    "errors": "wrong among the accepted",
    "least_risk": "lowest rate that could be promised",
}


def by_group(
    answers: Answers, method: str, threshold: Threshold, risk: float | None, delta: float
) -> tuple[list[Block], dict[str, Any]]:
    """Tables of the groups, and the same as JSON knows values; nothing without groups.

    Args:
      answers: A file's; where it decides itself (`accept`), that counts.
      method: Name of the uncertainty.
      threshold: The threshold on it.
      risk: Error rate that a threshold for each group promises; None: none is chosen.
      delta: Probability that the promise of any group may be broken.

    Raises:
      ValueError: If thresholds are to be chosen on an uncertainty outside of [0, 1].
    """
    if answers.by is None:
        return [], {}
    p, accept = answers.predictions, answers.accept
    if accept is None:
        accept = p.uncertainty[method] < threshold.limits(p.predicted)
    # Of rows that belong together one: the others are no further draws.
    rows = np.arange(len(p.predicted))
    if p.groups is not None:
        rows = one_of_each(numbers(p.groups, len(rows)))
    names, accept = answers.by[rows], accept[rows]
    if answers.by is p.predicted and answers.class_names is not None:
        names = np.array(answers.class_names)[names]
    u, is_error = p.uncertainty[method][rows], p.is_error[rows]
    outcomes, wrong = _outcomes(names, accept, is_error)
    found: dict[str, Any] = {"outcomes": {name: one._asdict() for name, one in outcomes.items()}}
    blocks: list[Block] = [_outcome_table(outcomes, wrong)]
    if risk is None:
        return blocks, found
    if not 0 <= u.min() <= u.max() <= 1:
        raise ValueError(
            f"risk: expected an uncertainty within [0, 1] to choose thresholds on, received "
            f"{method} from {u.min():.4g} to {u.max():.4g}; leave out --risk, or name another one "
            "with --columns"
        )
    chosen = {
        str(name): one
        for name, one in thresholds.target_risk_by_group(
            is_error, u, names, risk=risk, delta=delta
        ).items()
    }
    found["thresholds"] = {name: dataclasses.asdict(one) for name, one in chosen.items()}
    text = pages.text(
        f"Chosen on these answers, for others that are drawn as they were, with "
        f"{cells.label(method)}: {next(iter(chosen.values())).rule}."
    )
    return [*blocks, text, _threshold_table(chosen)], found


def of_classes(
    threshold: Threshold, test: Predictions, method: str, class_names: Sequence[str]
) -> list[Block]:
    """Tables of a threshold for each predicted class, and what they do to test answers; nothing of
    one for all.

    Args:
      threshold: Any.
      test: Answers that it was not chosen on.
      method: Name of the uncertainty.
      class_names: Names by class number; empty: not known.
    """
    if not isinstance(threshold, GroupThreshold):
        return []
    rows = np.arange(len(test.predicted))
    if test.groups is not None:
        rows = one_of_each(numbers(test.groups, len(rows)))
    predicted = test.predicted[rows]
    accept = test.uncertainty[method][rows] < threshold.limits(predicted)

    def named(by_number: Mapping[str, Any]) -> dict[str, Any]:
        return {
            cells.class_name(int(number), class_names or None): one
            for number, one in sorted(by_number.items(), key=lambda pair: int(pair[0]))
        }

    outcomes, wrong = _outcomes(predicted, accept, test.is_error[rows])
    what = "predicted class"
    return [
        _threshold_table(named(threshold.parts), what),
        _outcome_table(named(outcomes), named(wrong), what),
    ]


def _outcomes(
    names: np.ndarray, accept: np.ndarray, is_error: np.ndarray
) -> tuple[dict[str, Outcome], dict[str, int]]:
    """What decisions do in each group, and the wrong answers of each."""
    outcomes: dict[str, Outcome] = {}
    for name in np.unique(names):
        own = names == name
        rejected = (~accept[own]).astype(np.float64)
        outcomes[str(name)] = thresholds.outcome(thresholds.DEFAULT, is_error[own], rejected)
    return outcomes, {name: int(is_error[names.astype(str) == name].sum()) for name in outcomes}


def _outcome_table(
    outcomes: dict[str, Outcome], wrong: dict[str, int], what: str = "group"
) -> Table:
    lines: list[list[str | Cell]] = []
    for name, one in outcomes.items():
        counts = (one.n, wrong[name], one.accepted, one.errors)
        risk = cells.rate_cell(one.risk, one.low, one.high) if one.accepted else Cell("n/a")
        lines.append([tabular.shown(name), *map(cells.count_cell, counts), risk])
    caption = f"What is accepted in each {what}, with exact 95 % intervals, each by itself"
    return Table("groups", caption, {**_OUTCOMES, "group": what}, lines)


def _threshold_table(chosen: dict[str, Threshold], what: str = "group") -> Table:
    lines: list[list[str | Cell]] = []
    for name, one in chosen.items():
        tau = (
            Cell("none: nothing is accepted")
            if one.tau is None
            else Cell(f"{one.tau:.6g}", one.tau)
        )
        least = one.least_risk
        lines.append(
            [
                tabular.shown(name),
                cells.count_cell(one.n),
                tau,
                Cell(f"{one.accepted / one.n:.1%}", one.accepted / one.n),
                cells.count_cell(one.errors or 0),
                "" if least is None else Cell(f"{least:.4f}", least),
            ]
        )
    caption = f"A threshold for each {what}; one with too few answers has none"
    return Table("group_thresholds", caption, {**_THRESHOLDS, "group": what}, lines)
