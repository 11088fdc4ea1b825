"""The same SavedModel with another threshold, as a new version beside it; nothing is trained.

    python -m btcp_tf.export saved_models/fashion_mnist --threshold=target_risk --risk=0.02

The threshold is chosen on the calibration rows that travel with the model, or on anyone's labeled
scores (`--scores`). What a SavedModel is and answers stands in `btcp_tf.saved_model`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from btcp_tf import command, evaluation, exported, thresholds

if TYPE_CHECKING:
    from btcp_tf.evaluation import Predictions

USAGE = "python -m btcp_tf.export MODEL --threshold=RULE_OR_TAU [--SETTING=VALUE ...]"

_SETTINGS = (
    "threshold",
    "risk",
    "delta",
    "min_coverage",
    "coverage",
    "error_cost",
    "abstention_cost",
    "verbose",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and carries it out; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    flag_values = flags.FlagValues()
    command.define_settings(_SETTINGS, flag_values)
    flags.DEFINE_string(
        "scores",
        "",
        "Labeled scores of this model to choose the threshold on, such as those of btcp_tf.predict "
        "with --labels; default: the calibration rows that the model brings along.",
        flag_values=flag_values,
    )
    if command.asks_for_help(words):
        command.show_help(flag_values, USAGE)
    with command.exit_on_error():
        paths = command.read(flag_values, words)
        if len(paths) != 1:
            raise command.UsageError(
                f"expected one SavedModel, received {' '.join(paths) or 'none'}; usage: {USAGE}"
            )
        if not flag_values["threshold"].present:
            raise command.UsageError("threshold: expected a rule or a number, received none")
        values = command.settings(flag_values)
    scores = flag_values.scores
    return command.carry_out(lambda: _export(Path(paths[0]), values, scores), values["verbose"])


def _export(path: Path, values: dict, scores: str) -> None:
    path = Path(os.path.expanduser(path))
    with command.hidden_stderr():
        from btcp_tf import saved_model

    source = exported.newest(path)
    # Says at once whether it is one of ours.
    before = thresholds.from_json(exported.read_about(source)["threshold"])
    held_out = exported.read_held_out(source)
    if scores:
        rows = _labeled(scores, exported.COLUMN)
    elif "calibration" in held_out:
        rows = held_out["calibration"]
    else:
        raise ValueError(
            f"{source}: expected calibration rows beside the model, received none; name labeled "
            "scores with --scores"
        )
    if "validation" in held_out:
        u = held_out["validation"].uncertainty[exported.COLUMN]
        values["grid"] = thresholds.quantile_grid(u)
    u = rows.uncertainty[exported.COLUMN]
    chosen = thresholds.from_word(values["threshold"], rows.is_error, u, values)
    target = saved_model.with_threshold(source, chosen, {"calibration": rows})
    if values["verbose"]:
        print(f"before  {_words(before)}\nnow     {_words(chosen)}\n{target}")


def _labeled(path: str, column: str) -> "Predictions":
    rows = evaluation.load_predictions(os.path.expanduser(path))
    if rows.labels is None or column not in rows.uncertainty:
        what = "labels" if rows.labels is None else f"a column {column}"
        raise ValueError(f"{path}: expected {what}, received none")
    return rows


def _words(threshold: thresholds.Threshold) -> str:
    if threshold.tau is None:
        least = threshold.least_risk
        return f"{threshold.rule}: not achievable with {threshold.n} rows; nothing is accepted" + (
            "" if least is None else f"; the least that would have been is {least:.4f}"
        )
    words = f"{threshold.rule}: tau {threshold.tau:.6g}"
    if threshold.n:
        words += f", accepts {threshold.accepted} of {threshold.n}"
    if threshold.errors is not None:
        words += f", {threshold.errors} of them wrong"
    return words


if __name__ == "__main__":
    sys.exit(main())
