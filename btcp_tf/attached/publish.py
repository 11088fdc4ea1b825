"""How a judge leaves the process: as a SavedModel."""

import os
from pathlib import Path
from typing import Any

from btcp_tf import thresholds
from btcp_tf.attached import model as judge_model
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.attached.pixels import scale_of_pixels
from btcp_tf.core.warning import warn
from btcp_tf.data import input_checks


def export(
    model: Any,
    root: str | os.PathLike,
    name: str,
    sample: Any,
    metadata: Any,
    pixels: str,
    calibration_inputs: Any,
    decide_only: bool,
    group_input: str,
    verbose: int,
) -> Path:
    """Writes a SavedModel; arguments and errors are those of `Judge.export`.

    Args:
      model: From `model.join`.
      root: Export root.
      name: Directory below it.
      sample: A few inputs.
      metadata: JSON values to keep with the model.
      pixels: See `Judge.export`.
      calibration_inputs: What the threshold was chosen on, where it is at hand.
      decide_only: See `Judge.export`.
      group_input: See `Judge.export`.
      verbose: 1 says what is done.
    """
    judge_model.check_storable(model)
    # Its imports take seconds, and only here it is needed.
    from btcp_tf.serving.saved_model import export

    about, classifier = judge_model.about(model), AttachedClassifier.of(model)
    if decide_only and about["threshold"] is None:
        raise ValueError(
            "decide_only: expected a threshold to decide by, received none; call select_threshold "
            "first"
        )
    input_range = input_checks.from_json(about.get("input_range"))
    sample, seen = classifier.check_sample(sample, input_range)
    scale = None if seen is None else scale_of_pixels(classifier.encoder, pixels, seen)
    threshold = judge_model.threshold(about) or thresholds.DEFAULT
    if threshold.accepts_nothing:
        warn(
            f"the threshold is not achievable, so the SavedModel accepts nothing: {threshold.rule}"
        )
    if calibration_inputs is not None:
        calibration_inputs = classifier.check_inputs(calibration_inputs)
    return export(
        model,
        root,
        name,
        about["class_names"],
        sample,
        threshold=threshold,
        held_out=judge_model.calibration(about),
        calibration_inputs=calibration_inputs,
        about={
            "uncertainty": {"method": about["method"], "stage": "frozen"},
            "fit": about["fit"],
            "metadata": metadata or {},
        },
        input_range=input_range,
        pixels=scale,
        decide_only=decide_only,
        group_input=group_input,
        verbose=verbose,
    )
