"""Reports of a run, of a study and of anyone's scores, from what was saved: nothing is trained.

    python -m btcp_tf.report runs/fashion_mnist-seed0

draws the report and the figures of a run's or a study's folder again; for a predictions file it
computes the same tables and writes a report beside it. No TensorFlow here. What tables hold is in
`reporting.tables`, figures are in `reporting.figures`, and `reporting.pages` writes them.
"""

import os
import sys
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from btcp_tf import thresholds
from btcp_tf.core import checks, command, wording
from btcp_tf.core.command import UsageError
from btcp_tf.evaluation import predictions, results, seeds
from btcp_tf.evaluation.predictions import ENDINGS
from btcp_tf.reporting import cells, pictures, run_page, scores_page, study_page, terminal

USAGE = "python -m btcp_tf.report PATH [--SETTING=VALUE ...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and writes the report; returns the exit status.

    Args:
      argv: The arguments after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if len(leftovers) != 1:
            raise UsageError(
                f"expected one PATH, received {len(leftovers)}: {' '.join(leftovers)}".rstrip(": ")
            )
        path = Path(leftovers[0]).expanduser()
        scores = path.suffix.lower() in ENDINGS
        if path.is_dir() and not (path / "results.json").exists() and any(path.rglob("flags.cfg")):
            raise UsageError(
                f"expected a run or a study that is finished, received {path} without "
                "results.json; the command that began it goes on with it"
            )
        if not (path.is_file() if scores else (path / "results.json").is_file()):
            received = str(path) if path.exists() else f"none: {path} is not there"
            raise UsageError(
                "expected a run's or a study's folder with results.json, or a predictions file "
                f"({', '.join(ENDINGS)}), received {received}"
            )
        given = [name for name in _SCORING if flag_values[name].present]
        if given and not scores:
            raise UsageError(
                f"{given[0]}: expected only with a predictions file, received it with {path}, "
                "whose rows are saved already"
            )
        for name, other in (("risk", "by"), ("delta", "risk")):
            if flag_values[name].present and not flag_values[other].present:
                raise UsageError(f"{name}: expected it with --{other}, received it without")
            if flag_values[name].value is not None:
                checks.probability(name, flag_values[name].value)
        if folder := flag_values["files_dir"].value:
            pictures.input_folders(path, os.path.expanduser(folder))
        fit = _fit(flag_values["fit"].value or "")
    return command.carry_out(lambda: _write(path, flag_values, fit), verbose=1)


def _fit(file: str) -> Any:
    """How the estimator of a file came about; None without one."""
    if not file:
        return None
    # Late: it takes a while, which `--help` need not wait for.
    from btcp_tf.scores_fit import load_scores

    try:
        return load_scores(os.path.expanduser(file)).fit
    except (OSError, ValueError) as error:
        raise UsageError(str(error).replace("path: ", "fit: ", 1)) from None


_FLAGS: Mapping[str, tuple[Any, Any, str]] = {
    "output_dir": (
        flags.DEFINE_string,
        "",
        "Where to write; empty: the folder itself, or <name>-report beside a file.",
    ),
    "tau": (
        flags.DEFINE_float,
        thresholds.DEFAULT.tau,
        "Decision threshold on u; without it, a file that decides itself (accept) is taken at its "
        "word.",
    ),
    "bootstrap_draws": (flags.DEFINE_integer, 1000, "Draws of the bootstrap intervals."),
    "reverse": (flags.DEFINE_list, [], "Columns where higher = more trusted."),
    "columns": (
        flags.DEFINE_list,
        [],
        "Names of the uncertainty columns of a predictions file; empty: all columns of numbers but "
        "those that say which row it is, such as id and timestamp.",
    ),
    "by": (
        flags.DEFINE_string,
        "",
        "Column of a predictions file that says to which group a row belongs, such as a site, or "
        "predicted: what is accepted, and how much of it is wrong, in each group.",
    ),
    "risk": (
        flags.DEFINE_float,
        None,
        "With --by: error rate of accepted answers that a threshold for each group promises.",
    ),
    "delta": (
        flags.DEFINE_float,
        0.05,
        "With --risk: probability that the promise of any group may be broken.",
    ),
    "seed": (flags.DEFINE_integer, 0, "Seed of the bootstrap draws."),
    "files_dir": (
        flags.DEFINE_string,
        "",
        "Folder of the files that the column input of a predictions file names, to show those that "
        "are images; empty: the folder that was scored, or that of the predictions file.",
    ),
    "fit": (
        flags.DEFINE_string,
        "",
        "File of ScoresFit.save: how the column residual of a predictions file came about, which "
        "the report then says; empty: unknown.",
    ),
}
"""How each flag is defined, its default, and its line of `--help`."""

_SCORING = [name for name in _FLAGS if name != "output_dir"]

_FILES = {
    "report": "report.html",
    "markdown": "report.md",
    "results": "results.json",
    "tables": "tables",
    "figures": "figures",
}


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    for name, (define, default, help) in _FLAGS.items():
        define(name, default, help, flag_values=flag_values)
    return flag_values


def _write(path: Path, flag_values: flags.FlagValues, fit: Any) -> None:
    values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
    output_dir = Path(values["output_dir"]).expanduser() if values["output_dir"] else None
    notes: list[str] = []
    if path.is_file():
        given = {name: values[name] for name in _SCORING}
        given["files_dir"] = os.path.expanduser(values["files_dir"]) or None
        given["fit"] = fit
        if not flag_values["tau"].present:
            given["tau"] = None
        page, rows, notes = scores_page.write_scores_page(path, output_dir=output_dir, **given)
        notes = [*filter(None, [predictions.ranking_note(path)]), *notes]
        table = terminal.terminal_table(rows)
    else:
        page, table = _redraw(path, output_dir)
    print(f"{table}\n")
    for note in notes:
        print(note if "\n" in note else textwrap.fill(note, 79), end="\n\n")
    for name, file in _FILES.items():
        if (page.parent / file).exists():
            print(f"{name:<10}{page.parent / file}")


def _redraw(folder: Path, output_dir: Path | None) -> tuple[Path, str]:
    """Draws the report of a run or study again; returns the page's path and the terminal table.

    Raises:
      ValueError: If a file of the folder is damaged, in whatever way.
    """
    try:
        if not _is_study(folder):
            page, run = run_page.redraw_run(folder, output_dir)
            return page, run_page.terminal_answer(run)
        page = study_page.write_study_report(folder, output_dir=output_dir)
        rows, _ = results.load_rows(folder / "results.json")
        plain = cells.with_answers(row for row in rows if not row["ablation"])
        return page, terminal.study_terminal_table(cells.only(seeds.across_seeds(plain)))
    except (LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{folder}: expected the files of a finished run or study, received some that are "
            f"damaged ({type(error).__name__}: {wording.one_line(error)})"
        ) from error


def _is_study(folder: Path) -> bool:
    rows, _ = results.load_rows(folder / "results.json")
    return any("cell" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
