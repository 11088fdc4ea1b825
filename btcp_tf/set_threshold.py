"""The same SavedModel with another threshold, as a new version beside it; nothing is trained.

    python -m btcp_tf.set_threshold saved_models/fashion_mnist --threshold=target_risk --risk=0.02

The threshold is chosen on the calibration rows in the model's folder, or on other labeled scores
(`--scores`); with `--by=predicted` there is one for each predicted class, and with `--by=group` one
for each group, where the model's thresholds are by group. If a run made the model,
its decision and its report follow. Where the data has changed,

    python -m btcp_tf.set_threshold MODEL --scores=labeled.csv --recalibrate --threshold=target_risk

first fits u to a random half of these scores, and chooses the threshold on the other half.
`btcp_tf.serving.saved_model` describes a SavedModel and its answers.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from scipy import special

from btcp_tf import thresholds
from btcp_tf.core import command, files, keras_setup, wording
from btcp_tf.core.command import UsageError
from btcp_tf.core.progress import say
from btcp_tf.core.warning import warn
from btcp_tf.core.wording import from_one
from btcp_tf.decisions import exported, recalibrated
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.decisions.looked_at import Gate
from btcp_tf.decisions.scores import load_scores, nameless_note
from btcp_tf.evaluation.predictions import ENDINGS, NO_GROUP, REFERENCE, Predictions
from btcp_tf.experiment import settings
from btcp_tf.methods.recalibration import Recalibration
from btcp_tf.serving import publishing
from btcp_tf.thresholds import GROUP, PREDICTED, GroupThreshold, Threshold

USAGE = "python -m btcp_tf.set_threshold MODEL --threshold=RULE_OR_TAU [--SETTING=VALUE ...]"

_SETTINGS = ("threshold", *settings.DECISION_SETTINGS, "verbose")

_BY_HELP = (
    "predicted: target_risk chooses a threshold for each predicted class, and makes its promise in "
    "each. group: for each group, of a model whose thresholds are by group, such as sites; with "
    "--scores their column is called group, as btcp_tf.predict writes it, whatever the model calls "
    "its input. Empty: one for all answers, whatever the version before had."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and carries it out; returns the exit status.

    Args:
      argv: The arguments behind the program's name; None takes those of this process.
    """
    flag_values = flags.FlagValues()
    command.define_settings(_SETTINGS, flag_values)
    flag_values["by"].help = _BY_HELP
    flags.DEFINE_string(
        "scores",
        "",
        "Labeled scores of this model to choose the threshold on, such as those of btcp_tf.predict "
        "with --labels; default: the calibration rows in the model's folder.",
        flag_values=flag_values,
    )
    flags.DEFINE_boolean(
        "recalibrate",
        False,
        "Fit u to a random half of --scores first; the other half chooses the threshold.",
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
        arguments = sys.argv[1:] if argv is None else argv
        settings.check_decision(arguments, flag_values, by_known=(PREDICTED, GROUP))
        scores = os.path.expanduser(flag_values.scores)
        if scores:
            command.check_file("scores", scores, ENDINGS)
        recalibrate = flag_values.recalibrate
        if recalibrate and not scores:
            raise UsageError(
                "recalibrate: expected labeled answers to inputs as they come now (--scores=FILE), "
                "received none"
            )
    path, root = paths[0], os.path.expanduser(flag_values.export_dir)
    return command.carry_out(
        lambda: _set(path, values, scores, root, recalibrate), values["verbose"]
    )


def _set(path: str, values: dict, scores: str, root: str, recalibrate: bool) -> None:
    """Chooses the threshold, publishes the new version and prints both thresholds."""
    source = exported.newest(path)
    about = exported.read_about(source)
    exported.check_answers_u(source, about)
    folder = Path(root) / source.resolve().parent.name if root else None
    if folder:
        files.check_place("export_dir", folder)
    verbose = values["verbose"]
    say(f"loading {source}", verbose)
    with command.hidden_stderr():
        import tensorflow as tf

        from btcp_tf.serving.saved_model import check_holds, check_recalibrates, with_threshold

        # TensorFlow reports on stderr when it looks for GPUs, too.
        tf.config.list_logical_devices()

    check_holds(source, values["by"])
    if recalibrate:
        check_recalibrates(source)
    held_out, learned = exported.read_held_out(source), None
    if scores:
        say(f"reading {scores}", verbose)
        exported.check_same_u(scores, source, about)
        has_gate = Gate.of(about.get("fit")) is not None
        by = GROUP * (values["by"] == GROUP)
        rows = _labeled(scores, about["class_names"], has_gate or recalibrate, by)
    else:
        rows = _calibration(source, about, held_out, values["threshold"])
    if recalibrate:
        rows, learned = _recalibrated(rows, scores, verbose)
    validation = held_out.get("validation")
    if learned is not None and validation is not None:
        validation = recalibrated.apply(validation, learned.map)
    chosen = _choose(rows, validation, values, about["class_names"])
    before = thresholds.from_json(about["threshold"])
    say(f"before  {_text(before)}\nnow     {_text(chosen)}", verbose)
    if isinstance(before, GroupThreshold) and not isinstance(chosen, GroupThreshold):
        each = "predicted class" if before.by == PREDICTED else "group"
        say(
            f"note: {source} has a threshold for each {each}, and the new version one for all "
            f"answers; to keep one for each, name --threshold=target_risk --by={before.by}",
            verbose,
        )
    say("writing and checking the new version", verbose)
    target = with_threshold(source, chosen, {"calibration": rows}, folder, learned)
    say(str(target), verbose)
    other_u = recalibrate or bool(about.get("recalibrations"))
    if run := publishing.run_of(source, about):
        kept = _why_kept(chosen, target, bool(scores or root), other_u)
        if kept:
            say(f"note: the report of {run} keeps {kept}", verbose)
        else:
            _update_run(run, chosen, target, verbose)
    if scores and chosen.target is not None:
        again = ", nor recalibrated by them before" * other_u
        say(
            "note: the promise holds if neither the classifier nor the estimator was fitted on "
            f"the inputs of these scores{again}, which the file cannot show",
            verbose,
        )


def _recalibrated(rows: Predictions, path: str, verbose: int) -> tuple[Predictions, Recalibration]:
    """Half of labeled scores with u as the other half has changed it, and that change."""
    columns = dict(rows.uncertainty)
    if recalibrated.is_rounded(columns[COLUMN]):
        raise ValueError(
            f"{path}: expected u in all its digits, as btcp_tf.predict writes it, received it "
            "rounded"
        )
    if REFERENCE not in columns or recalibrated.is_rounded(columns[REFERENCE]):
        columns.pop(REFERENCE, None)
        say(
            f"note: without class probabilities in all their digits in {path} u is not moved "
            "towards MCP",
            verbose,
        )
    rows = dataclasses.replace(rows, uncertainty=columns)
    first, second = recalibrated.halves(rows)
    say(f"fitting u to {len(first.predicted):,} of {len(rows.predicted):,} rows", verbose)
    try:
        learned = recalibrated.learn(first)
    except ValueError as error:
        raise ValueError(f"{path}: in the half that u is fitted to, {error}") from None
    say(f"u       {learned.words}", verbose)
    found = recalibrated.apply(second, learned.map)
    assert found is not None  # gamma is 0 where MCP is not known.
    return found, learned


def _why_kept(chosen: Threshold, version: Path, elsewhere: bool, other_u: bool) -> str:
    """What the report of a run keeps, and how to see the new; "": it follows.

    Args:
      chosen: The new threshold.
      version: The new version.
      elsewhere: Whether the threshold was not chosen on the run's calibration images, or the
        version is a trial beside the served ones.
      other_u: Whether the version has another u than the run.
    """
    if other_u:
        return (
            "the threshold and the u that it has; to see what the new version does to labeled "
            f"inputs: python -m btcp_tf.predict --model={version} --labels, then python -m "
            "btcp_tf.report"
        )
    if elsewhere:
        return (
            "the threshold that it has, as this one is from other scores or in another folder; to "
            "see what it does to labeled scores: python -m btcp_tf.report SCORES "
            + ("--by=predicted" if chosen.tau is None else f"--tau={chosen.tau:.6g}")
        )
    return ""


def _update_run(run: Path, chosen: Threshold, version: Path, verbose: int) -> None:
    """Lets a run's decision and report say what its model accepts now."""
    # Its imports take a second, which --help need not wait for.
    from btcp_tf.experiment import publish

    say(f"drawing the report of {run} again", verbose)
    try:
        page = publish.set_threshold(run, chosen, version)
    except (ValueError, RuntimeError, OSError) as error:
        # The version is published all the same.
        warn(
            f"the report of {run} still shows the threshold before, as "
            f"{wording.one_line(error)}; once that is mended, python -m "
            f"btcp_tf.report {run} draws it again"
        )
        return
    say(str(page or run), verbose)


def _calibration(
    source: Path, about: Mapping[str, Any], held_out: Mapping[str, Predictions], rule: str
) -> Predictions:
    """The calibration rows in a version directory; ValueError where this rule cannot use them."""
    if "calibration" not in held_out:
        raise ValueError(
            f"{source}: expected calibration rows beside the model, received none; name labeled "
            "scores with --scores"
        )
    # Files of version 0.1.0 do not say.
    no_promise = about.get("data", {}).get("no_promise", "")
    if no_promise and rule == "target_risk":
        raise ValueError(
            f"threshold: expected another one than target_risk on the calibration rows of "
            f"{source}, as {no_promise}; name labeled scores of new inputs with --scores"
        )
    return held_out["calibration"]


def _labeled(path: str, class_names: Sequence[str], with_mcp: bool, by: str = "") -> Predictions:
    """Labeled scores of a model of these classes; with MCP's u, and the groups in a column `by`,
    too, if these are asked for."""
    names = list(map(wording.clean, class_names))
    rows = load_scores(path, (COLUMN,), class_names=names, with_mcp=with_mcp, by=by)
    if rows.labels is None or (rows.labels < 0).any():
        received = "none" if rows.labels is None else "rows without one"
        raise ValueError(f"{path}: expected a label in every row, received {received}")
    if rows.column != COLUMN:
        raise ValueError(f"{path}: expected a column {COLUMN}, received {rows.column}")
    k = len(class_names)
    highest = int(max(rows.predicted.max(), rows.labels.max()))
    if rows.labels.max() >= k > rows.predicted.max() and (remedy := from_one(rows.labels, k)):
        raise ValueError(
            f"{path}: labels: expected classes 0 to {k - 1}, received {rows.labels.max()}{remedy}"
        )
    foreign = [name for number, name in rows.class_names.items() if name != names[number]]
    if rows.classes not in (None, k) or highest >= k or foreign:
        received = f"{rows.classes or highest + 1} classes"
        if foreign:
            received = f"the class name {foreign[0]!r}"
        raise ValueError(
            f"{path}: expected answers of this model, of {k} classes ({', '.join(class_names)}), "
            f"received {received}: the scores of another model"
        )
    columns = {COLUMN: rows.uncertainty}
    if rows.mcp_logit is not None:
        columns[REFERENCE] = special.expit(rows.mcp_logit)
    found = Predictions(rows.labels, None, rows.predicted, columns, rows.groups, rows.by)
    if rows.by is None or not (note := nameless_note(rows)):
        return found
    warn(f"{note}; left out here")
    return found.taken(rows.by.astype(str) != NO_GROUP)


def _choose(
    rows: Predictions, validation: Predictions | None, values: dict, class_names: Sequence[str]
) -> Threshold:
    """The threshold that the settings ask for; ValueError where the rows cannot support it."""
    u = rows.uncertainty[COLUMN]
    if validation is not None:
        values = values | {"grid": thresholds.quantile_grid(validation.uncertainty[COLUMN])}
    values = values | {"groups": rows.groups}
    by, names = values["by"], rows.predicted
    if by == GROUP:
        if rows.by is None:
            raise ValueError(
                "by: expected rows whose groups are known, received the model's calibration rows "
                "without; name scores of this model with labels (--scores)"
            )
        names = rows.by
    chosen = thresholds.from_word(values["threshold"], rows.is_error, u, values, by=by, names=names)
    if chosen.accepts_nothing:
        # A server would take the highest version, which accepted nothing.
        least = chosen.least_risk
        raise ValueError(
            f"threshold: expected one that {chosen.n} rows can support, received {chosen.rule}: "
            "not achievable"
            + ("" if least is None else f"; the lowest risk they support is {least:.4f}")
            + "; no version is written"
        )
    if isinstance(chosen, GroupThreshold) and (closed := chosen.closed(class_names)):
        warn(
            f"threshold: nothing will be accepted of {wording.some(closed, 20)}, where so few rows "
            "cannot support the promise"
        )
    return thresholds.clear_of(chosen, u, names)


def _text(threshold: Threshold) -> str:
    """A threshold on one line."""
    if threshold.accepts_nothing:
        return f"{threshold.rule}: nothing is accepted"
    which = threshold.accepts if threshold.tau is None else f"tau {threshold.tau:.6g}"
    text = f"{threshold.rule}: {which}"
    if threshold.n:
        text += f", accepts {threshold.accepted} of {threshold.n}"
    if threshold.errors is not None:
        text += f", {threshold.errors} of them wrong"
    if threshold.n and threshold.accepted == threshold.n:
        text += ": it rejects nothing"
    return text


if __name__ == "__main__":
    sys.exit(main())
