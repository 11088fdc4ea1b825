"""The threshold of a judge: on which samples it is chosen, and what is kept of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from btcp_tf import thresholds
from btcp_tf.attached import held_out
from btcp_tf.attached.scoring import Scored
from btcp_tf.core.config import MIN_COVERAGE
from btcp_tf.core.warning import warn
from btcp_tf.data.known import MOST, Overlap, Part
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.thresholds import Threshold


class Decision(NamedTuple):
    """A chosen threshold."""

    threshold: Threshold
    rows: np.ndarray
    """Rows of the samples that it was chosen on."""
    about: dict[str, Any]
    """What the card says of it; its "seen" are the samples alone."""


def _with_less_coverage(rule: str, settings: Mapping[str, Any]) -> str:
    """What may make a promise achievable where a threshold has to accept a share of the rows."""
    if rule != "target_risk" or settings.get("min_coverage", MIN_COVERAGE) == 0:
        return ""
    return "; min_coverage=0 allows thresholds that accept few answers, too"


def choose(scored: Scored, overlap: Overlap, rule: str, settings: Mapping[str, Any]) -> Decision:
    """Chooses a threshold on samples that have not been seen; warns if it accepts nothing.

    Args:
      scored: Answers, with hashes.
      overlap: Which of the samples are known.
      rule: One of `thresholds.RULES`.
      settings: Settings of the rule.

    Raises:
      ValueError: See `Judge.select_threshold`.
    """
    if rule == "target_risk" and overlap.share > MOST:
        raise ValueError(
            f"x: expected samples that classifier and fit have not seen, at most {MOST:.0%} "
            f"others, received: {overlap.text}; a promise on those would not hold: give fresh "
            "samples"
        )
    rows = held_out.unknown_rows(overlap, "used")
    predicted, u = scored.predicted[rows], scored.uncertainty[rows]
    labels = None
    if scored.labels is not None or thresholds.needs_labels(rule):
        labels = scored.true_classes()[rows]
        held_out.warn_of_one_class(labels, scored.class_names, "chosen on")
    is_error = None if labels is None else predicted != labels
    groups = settings.get("groups")
    if groups is not None:
        groups = groups[rows]
        settings = {**settings, "groups": groups}
    threshold = thresholds.clear_of(thresholds.choose(rule, is_error, u, **settings), u)
    if threshold.tau is None:
        least = threshold.least_risk
        warn(
            f"not achievable with this data, and nothing will be accepted: {threshold.rule}"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
            + _with_less_coverage(rule, settings)
        )
    assert scored.hashes is not None
    # For those who use the exported model.
    calibration = {
        "labels": None if labels is None else labels.tolist(),
        "predicted": predicted.tolist(),
        "uncertainty": u.tolist(),
    }
    if groups is not None:
        calibration["groups"] = groups.tolist()
    if scored.looked_at is not None:
        # `monitor` watches how many inputs MCP is unsure of, which are looked at again.
        calibration[REFERENCE] = scored.mcp[rows].tolist()
    about = {
        "threshold": dataclasses.asdict(threshold),
        "seen": {"threshold": Part.of(scored.hashes[rows]).to_json()},
        "calibration": calibration,
    }
    return Decision(threshold, rows, about)
