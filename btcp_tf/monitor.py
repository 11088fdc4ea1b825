"""Does a threshold still hold? Scores from production beside the data that it was chosen on.

    python -m btcp_tf.monitor --baseline=saved_models/digits --scores=scores.csv

A promise such as "at most 5 % of the accepted answers are wrong" holds as long as what comes in is
drawn as the calibration set was. Without labels this looks for signs that it is not: in u, in the
classes predicted, in the share of abstentions. With labels, which may come later and for some rows
only, it tests the promise itself: all rows at once, whatever their order; or, where the order in
which labels came is stated, row by row, and says at which row it was shown broken. The verdicts go
to the terminal, to `monitor.json` and to `monitor.html`; the exit status tells a scheduler. No
TensorFlow here. Files are read in `decisions.scores`, the statistics are in `decisions.drift`, and
what earlier looks judged is kept by `decisions.history`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from btcp_tf.core import command, files, json_files
from btcp_tf.core.command import UsageError
from btcp_tf.decisions import drift, exported, monitoring
from btcp_tf.decisions.history import load
from btcp_tf.decisions.scores import (
    Baseline,
    Scores,
    group_column,
    join_labels,
    load_baseline,
    load_scores,
    nameless_note,
)
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.predictions import ENDINGS, ranking_note
from btcp_tf.reporting import monitor_page, pages

USAGE = "python -m btcp_tf.monitor --baseline=BASELINE --scores=FILE [--labels=FILE]"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, compares and reports; returns the exit status.

    Args:
      argv: The arguments after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if leftovers:
            raise UsageError(f"expected --NAME=VALUE, received the word {leftovers[0]!r}")
        values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
        paths = _paths(values)
        for name in ("risk", "alpha", "delta"):
            if values[name] is not None:
                drift.check_probability(name, values[name])
        check_threshold(values, paths["baseline"])
        if values["ordered"] and values["time_column"]:
            raise UsageError(
                "ordered: expected it or --time_column, received both: one order counts"
            )
    return command.carry_out(lambda: _run(values, paths), verbose=1)


_TEXT_FLAGS = {
    "baseline": "What the threshold was chosen on: a run's folder, an exported model's directory "
    "or its parent, or a predictions file.",
    "scores": f"Answers of btcp_tf.predict ({', '.join(ENDINGS)}).",
    "labels": "Labels that came later: a CSV file of input,labels (numbers or names of classes) "
    "for any of the inputs. Or a column labels in the scores.",
    "time_column": "As --ordered, in the order of this column of the labels' file or the scores: "
    "ISO 8601, or numbers such as Unix seconds.",
    "output_dir": "Where to write; empty: <scores>-monitor beside the scores.",
    "column": "Name of the uncertainty in a predictions file that has several.",
    "by": "Column of the scores that says to which group a row belongs, such as a site, or "
    "predicted: the promise is tested in each group by itself, too.",
}

_NUMBER_FLAGS = {
    "tau": (None, "Threshold, for a predictions file as the baseline."),
    "risk": (None, "Error rate of accepted answers to test; else the promised one."),
    "alpha": (0.01, "False alarms of all checks for a change together, each time."),
    "delta": (0.01, "False alarms about the promise: of a look, or of an ordered stream."),
}

_ORDERED = (
    "Labels stand in the order in which they came, and further ones are added at the end: the "
    "promise is tested row by row, however often one looks. Else all rows are tested at once, "
    "which is for one look."
)


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    for name, help in _TEXT_FLAGS.items():
        flags.DEFINE_string(name, "", help, flag_values=flag_values)
    for name, (default, help) in _NUMBER_FLAGS.items():
        flags.DEFINE_float(name, default, help, flag_values=flag_values)
    flags.DEFINE_boolean("ordered", False, _ORDERED, flag_values=flag_values)
    return flag_values


def _paths(values: Mapping[str, Any]) -> dict[str, Path]:
    """Where the files are.

    Raises:
      UsageError: If one of them is not there.
    """
    paths = {
        name: Path(os.path.expanduser(values[name]))
        for name in ("baseline", "scores", "labels", "output_dir")
        if values[name]
    }
    for name in ("baseline", "scores"):
        if name not in paths:
            raise UsageError(f"{name}: expected a path, received none")
    if not paths["baseline"].exists():
        raise UsageError(
            f"baseline: expected a run's folder, an exported model or a predictions file, "
            f"received {paths['baseline']}, which is not there"
        )
    for name, endings in (("scores", ENDINGS), ("labels", tabular.ENDINGS)):
        if name in paths:
            command.check_file(name, paths[name], endings)
    paths.setdefault("output_dir", paths["scores"].with_name(f"{paths['scores'].name}-monitor"))
    return paths


def check_threshold(values: Mapping[str, Any], baseline: Path | None) -> None:
    """UsageError unless what is asked of the threshold fits where it comes from.

    Args:
      values: Flags by name, `tau` and `risk` among them.
      baseline: What the threshold was chosen on; None: nobody says.
    """
    tau = values["tau"]
    if tau is not None:
        monitoring.check_tau(tau)
    if tau is not None and baseline is not None and baseline.is_dir():
        raise UsageError(
            "tau: expected only with a predictions file as the baseline, received it with "
            f"{baseline}, whose own threshold counts"
        )
    if tau is None and values["risk"] is not None and baseline is not None and baseline.is_file():
        raise UsageError(
            "risk: expected with --tau where a predictions file is the baseline, received without: "
            "which answers are accepted is not known"
        )


def _run(values: Mapping[str, Any], paths: Mapping[str, Path]) -> int:
    folder, time_column = paths["output_dir"], values["time_column"]
    history = load(folder / "monitor.json")
    baseline = load_baseline(paths["baseline"], column=values["column"])
    _check_same_u(paths["baseline"], paths["scores"])
    scores = _load_scores(values, paths["scores"], baseline)
    labels = None
    if "labels" in paths:
        labels = join_labels(
            scores,
            paths["labels"],
            time_column=time_column,
            class_names=baseline.class_names,
        )
    elif time_column and scores.times is None:
        raise ValueError(
            f"time_column: expected a column {time_column} in {scores.name}, received none"
        )
    findings = monitoring.monitor(
        baseline,
        scores,
        labels=labels,
        order="time" if time_column else "rows" if values["ordered"] else "",
        history=history,
        **{name: values[name] for name in _NUMBER_FLAGS},
    )
    write_report(findings, values, folder)
    return findings.status


def write_report(findings: monitoring.Findings, values: Mapping[str, Any], folder: Path) -> None:
    """Writes `monitor.html` and `monitor.json`, and prints the verdicts.

    Args:
      findings: What is reported.
      values: Settings that led to it, by name.
      folder: Where to write.
    """
    settings = {
        name: tabular.shown(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
    content = {
        "monitor.html": pages.to_html(monitor_page.to_report(findings, settings)),
        "monitor.json": json_files.to_text(monitoring.to_json(findings, settings), indent=1),
    }
    files.check_folder("output_dir", folder)
    for name, text in content.items():
        with files.atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    print(
        f"{monitor_page.terminal_text(findings)}\n\n"
        f"report    {folder / 'monitor.html'}\nverdicts  {folder / 'monitor.json'}"
    )


def _check_same_u(baseline: Path, scores: Path) -> None:
    """See `exported.check_same_u`; of a predictions file as the baseline nothing is known."""
    if baseline.is_file():
        return
    try:
        source = exported.newest(baseline)
        about = exported.read_about(source)
    except FileNotFoundError:  # A run's folder.
        source, about = baseline, {}
    else:
        print(f"baseline  the SavedModel in {source}")
    exported.check_same_u(scores, source, about)


def _load_scores(values: Mapping[str, Any], path: Path, baseline: Baseline) -> Scores:
    column = values["column"]
    names = [name for name in (column, "uncertainty", baseline.column) if name]
    scores = load_scores(
        path,
        list(dict.fromkeys(names)),
        time_column=values["time_column"],
        class_names=baseline.class_names,
        with_mcp=baseline.gate is not None,
        by=group_column(baseline, values["by"]),
    )
    if column and column not in (baseline.column, scores.column):
        raise ValueError(
            f"column: expected an uncertainty of {baseline.name} or {scores.name}, "
            f"received {column}"
        )
    for note in filter(None, (nameless_note(scores), ranking_note(path))):
        print(f"note: {note}")
    return scores


if __name__ == "__main__":
    sys.exit(main())
