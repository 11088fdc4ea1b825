"""The same SavedModel with another threshold, as a new version beside it; nothing is trained.

    python -m btcp_tf.set_threshold saved_models/fashion_mnist --threshold=target_risk --risk=0.02

The threshold is chosen on the calibration rows that travel with the model, or on anyone's labeled
scores (`--scores`). What a SavedModel is and answers stands in `btcp_tf.serving.saved_model`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from btcp_tf import thresholds
from btcp_tf.core import command, files, keras_setup, wording
from btcp_tf.core.command import UsageError
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.decisions.scores import load_scores
from btcp_tf.evaluation.predictions import ENDINGS, Predictions
from btcp_tf.experiment import settings

USAGE = "python -m btcp_tf.set_threshold MODEL --threshold=RULE_OR_TAU [--SETTING=VALUE ...]"

_SETTINGS = ("threshold", *settings.DECISION_SETTINGS, "verbose")


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and carries it out; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    flag_values = flags.FlagValues()
    command.define_settings(_SETTINGS, flag_values)
    flags.DEFINE_string(
        "scores",
        "",
        "Labeled scores of this model to choose the threshold on, such as those of btcp_tf.predict "
        "with --labels; default: the calibration rows that the model brings along.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "export_dir",
        "",
        "Root of the new version, such as one for trials; default: it stands beside its source.",
        flag_values=flag_values,
    )
    with command.reading(argv, flag_values, USAGE) as paths:
        keras_setup.check()
        if len(paths) != 1:
            raise UsageError(
                f"expected one SavedModel, received {' '.join(paths) or 'none'}; usage: {USAGE}"
            )
        if not flag_values["threshold"].present:
            raise UsageError("threshold: expected a rule or a number, received none")
        values = command.settings(flag_values)
        thresholds.check_word(values["threshold"])
        settings.check_decision(sys.argv[1:] if argv is None else argv, flag_values)
        scores = os.path.expanduser(flag_values.scores)
        if scores:
            command.check_file("scores", scores, ENDINGS)
    path, root = paths[0], flag_values.export_dir
    return command.carry_out(lambda: _export(path, values, scores, root), values["verbose"])


def _export(path: str, values: dict, scores: str, root: str) -> None:
    source = exported.newest(path)
    folder = Path(os.path.expanduser(root)) / _name_of(source) if root else None
    if folder:
        files.check_place("export_dir", folder)
    with command.hidden_stderr():
        import tensorflow as tf

        from btcp_tf.serving.saved_model import with_threshold

        # Looking for GPUs speaks, too.
        tf.config.list_logical_devices()

    # Says at once whether it is one of ours.
    about = exported.read_about(source)
    before = thresholds.from_json(about["threshold"])
    held_out = exported.read_held_out(source)
    if scores:
        rows = _labeled(scores, about["class_names"])
    elif "calibration" in held_out:
        rows = held_out["calibration"]
        # Files of earlier versions do not say.
        no_promise = about.get("data", {}).get("no_promise", "")
        if no_promise and values["threshold"] == "target_risk":
            raise ValueError(
                f"threshold: expected another one than target_risk on the calibration rows of "
                f"{source}, as {no_promise}; name labeled scores of new inputs with --scores"
            )
    else:
        raise ValueError(
            f"{source}: expected calibration rows beside the model, received none; name labeled "
            "scores with --scores"
        )
    if "validation" in held_out:
        u = held_out["validation"].uncertainty[COLUMN]
        values["grid"] = thresholds.quantile_grid(u)
    u = rows.uncertainty[COLUMN]
    chosen = thresholds.clear_of(
        thresholds.from_word(values["threshold"], rows.is_error, u, values), u
    )
    if chosen.tau is None:
        # A server would take the highest version, which accepted nothing.
        least = chosen.least_risk
        raise ValueError(
            f"threshold: expected one that {chosen.n} rows can support, received {chosen.rule}: "
            "not achievable"
            + ("" if least is None else f"; the least that would have been is {least:.4f}")
            + "; no version is written"
        )
    target = with_threshold(source, chosen, {"calibration": rows}, folder)
    if values["verbose"]:
        print(f"before  {_words(before)}\nnow     {_words(chosen)}\n{target}")
        if scores and chosen.target is not None:
            print(
                "note: what is promised holds if neither the classifier nor the estimator has seen "
                "the inputs of these scores, which the file cannot show"
            )


def _name_of(source: Path) -> str:
    """Name of the model whose version directory this is."""
    return source.resolve().parent.name


def _labeled(path: str, class_names: Sequence[str]) -> Predictions:
    """Labeled scores of a model of these classes."""
    found = load_scores(path, (COLUMN,))
    if found.labels is None or (found.labels < 0).any():
        received = "none" if found.labels is None else "rows without one"
        raise ValueError(f"{path}: expected a label in every row, received {received}")
    if found.column != COLUMN:
        raise ValueError(f"{path}: expected a column {COLUMN}, received {found.column}")
    k = len(class_names)
    highest = int(max(found.predicted.max(), found.labels.max()))
    names = list(map(wording.clean, class_names))
    foreign = [name for number, name in found.class_names.items() if name != names[number]]
    if found.classes not in (None, k) or highest >= k or foreign:
        told = f"{found.classes or highest + 1} classes"
        if foreign:
            told = f"the class name {foreign[0]!r}"
        raise ValueError(
            f"{path}: expected answers of this model, of {k} classes ({', '.join(class_names)}), "
            f"received {told}: the scores of another model"
        )
    return Predictions(found.labels, None, found.predicted, {COLUMN: found.uncertainty})


def _words(threshold: thresholds.Threshold) -> str:
    if threshold.tau is None:
        return f"{threshold.rule}: nothing is accepted"
    words = f"{threshold.rule}: tau {threshold.tau:.6g}"
    if threshold.n:
        words += f", accepts {threshold.accepted} of {threshold.n}"
    if threshold.errors is not None:
        words += f", {threshold.errors} of them wrong"
    if threshold.n and threshold.accepted == threshold.n:
        words += ": it rejects nothing"
    return words


if __name__ == "__main__":
    sys.exit(main())
