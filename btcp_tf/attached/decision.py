"""The threshold of a judge: on which samples it is chosen, and what is kept of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from btcp_tf import thresholds
from btcp_tf.attached import held_out
from btcp_tf.attached.scoring import Scored
from btcp_tf.core import wording
from btcp_tf.core.config import MIN_COVERAGE
from btcp_tf.core.warning import warn
from btcp_tf.data.known import MOST, Overlap, Part
from btcp_tf.evaluation.predictions import REFERENCE
from btcp_tf.thresholds import GROUP, PREDICTED, GroupThreshold, Threshold


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


def check_by(threshold: Threshold | None, by: np.ndarray | None) -> None:
    """ValueError if the groups that a threshold is by are missing, or it has no use for them."""
    by_group = isinstance(threshold, GroupThreshold) and threshold.by == GROUP
    if by_group and by is None:
        assert isinstance(threshold, GroupThreshold)
        known = wording.some(list(threshold.parts), 3)
        raise ValueError(
            "by: expected the group of each sample, as the threshold was chosen by group "
            f"({known}), received none"
        )
    if by is not None and not by_group:
        raise ValueError(
            "by: expected groups only where the threshold was chosen by group, received some; "
            "leave by out, or call select_threshold(..., by=groups)"
        )


def accepted(
    threshold: Threshold, by: np.ndarray | None, predicted: np.ndarray, uncertainty: np.ndarray
) -> np.ndarray:
    """Which answers are accepted, `[n]` bool; warns of groups without a threshold.

    Args:
      threshold: Any.
      by: Groups `[n]`, where the threshold is by group.
      predicted: Predicted classes `[n]`.
      uncertainty: `[n]`.
    """
    names = predicted if by is None else by
    if by is not None and isinstance(threshold, GroupThreshold):
        distinct = list(dict.fromkeys(map(str, names.tolist())))
        if new := [name for name in distinct if name not in threshold.parts]:
            warn(
                f"by: nothing is accepted of {wording.some(new)}, which select_threshold has not "
                "seen: nothing was promised there"
            )
    return uncertainty < threshold.limits(names)


def choose(
    scored: Scored,
    overlap: Overlap,
    rule: str,
    settings: Mapping[str, Any],
    by: str | np.ndarray | None = None,
) -> Decision:
    """Chooses a threshold on samples that have not been seen; warns if it accepts nothing.

    Args:
      scored: Answers, with hashes.
      overlap: Which of the samples are known.
      rule: One of `thresholds.RULES`.
      settings: Settings of the rule.
      by: `PREDICTED` or groups `[n]`: a threshold for each; None: one for all samples.

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
    names = None if by is None else predicted if isinstance(by, str) else by[rows]
    kind = "" if by is None else PREDICTED if isinstance(by, str) else GROUP
    threshold = thresholds.choose(rule, is_error, u, by=kind, names=names, **settings)
    threshold = thresholds.clear_of(threshold, u, names)
    if threshold.accepts_nothing:
        least = threshold.least_risk
        warn(
            f"not achievable with this data, and nothing will be accepted: {threshold.rule}"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
            + _with_less_coverage(rule, settings)
        )
    elif isinstance(threshold, GroupThreshold):
        if closed := threshold.closed(scored.class_names):
            warn(
                f"nothing will be accepted of {wording.some(closed)}, where the promise is not "
                "achievable with this data" + _with_less_coverage(rule, settings)
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
    if kind == GROUP and names is not None:
        calibration["by"] = names.tolist()
    if scored.looked_at is not None:
        # `monitor` watches how many inputs MCP is unsure of, which are looked at again.
        calibration[REFERENCE] = scored.mcp[rows].tolist()
    about = {
        "threshold": dataclasses.asdict(threshold),
        "seen": {"threshold": Part.of(scored.hashes[rows]).to_json()},
        "calibration": calibration,
    }
    return Decision(threshold, rows, about)
