"""Several runs and what they have in common."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from btcp_tf.core import command, files, wording
from btcp_tf.core.config import Config, to_text
from btcp_tf.data.datasets import short_name
from btcp_tf.evaluation import results
from btcp_tf.experiment import cells, ray_cells
from btcp_tf.experiment.cells import Cell
from btcp_tf.experiment.journal import announce
from btcp_tf.experiment.settings import parse
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import study_page

USAGE = "python -m btcp_tf.study --dataset=NAME[,NAME ...] [--seeds=N] [--SETTING=VALUE ...]"

PAIRS = {
    "cifar10": "svhn_cropped",
    "svhn_cropped": "cifar10",
    "mnist": "fashion_mnist",
    "fashion_mnist": "mnist",
}
"""The paper's OOD pairs: data set → the set whose images are out of its distribution."""

ABLATION: tuple[tuple[str, Any], ...] = (
    ("gamma", "0"),
    ("gamma", "1"),
    ("gamma", "auto"),
    ("gamma", "5"),
    ("epsilon", 0.01),
    ("epsilon", 0.2),
    ("scope", "batch"),
    ("density", "bins"),
)
"""Settings of btcp that are changed one at a time, and their values."""

_ON_REQUEST = {
    "ensemble": ("ensemble_members",),
    "ensemble_few": ("ensemble_members",),
    "residual_looks": ("residual_looks", "residual_cost"),
}
"""Methods that take long: a study has them where one of these settings is given; rivals of such a
method where it has that one, too."""

_OF_A_RUN = {"settings", "data", "environment", "notes"}
"""What a run saves beside its rows, as far as a study needs it."""


@dataclasses.dataclass(frozen=True)
class Study:
    """What a command line asks for."""

    folder: Path
    cells: tuple[Cell, ...]
    arguments: tuple[str, ...]
    """The flags of the command line, one text each."""
    verbose: int
    ray: ray_cells.Options | None = None
    """Where Ray runs the cells; None: one after the other in this process."""


def plan(arguments: Sequence[str], flag_values: flags.FlagValues) -> Study:
    """What to run, from a command line.

    Args:
      arguments: Arguments after the program's name.
      flag_values: From `study.define_flags`.

    Raises:
      ValueError: As `command.read` and `settings.parse`.
    """
    command.read(flag_values, arguments)
    # Read anew for every cell below: this is what the command line says.
    values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
    present = [name for name in flag_values if flag_values[name].present]
    datasets = [name for name in values["dataset"].split(",") if name]
    if len(set(datasets)) != len(datasets) or not datasets:
        raise ValueError(
            f"dataset: expected names of data sets, each once, received {values['dataset']!r}"
        )
    short = {name: short_name(name, values["data_dir"]) for name in datasets}
    parts = filter(None, ["study", *short.values(), values["preset"]])
    folder = Path(values["output_dir"] or Path("runs") / "-".join(parts)).expanduser()
    asked = [
        name
        for name in METHODS
        if name not in _ON_REQUEST or not {*_ON_REQUEST[name]}.isdisjoint(present)
    ]
    methods = [name for name in asked if METHODS[name].rival_of in ("", *asked)]
    # A study does all that it can, unless the command line says otherwise.
    wishes = [f"--method={','.join(methods)}", "--shift", *arguments]
    ood = values["ood"] if "ood" in present else ["pair"]
    first = int(values["seed"])
    runs: list[Cell] = []
    ablations: list[Cell] = []
    for dataset in datasets:
        others = _others(ood, dataset)
        for seed in range(first, first + values["seeds"]):
            name = f"{short[dataset]}-seed{seed}"
            place = [f"--dataset={dataset}", f"--seed={seed}", f"--output_dir={folder / name}"]
            runs.append(Cell(name, parse([*wishes, *place, f"--ood={others}"], flag_values)))
            if seed == first and values["ablation"] and "btcp" in runs[-1].config.method:
                ablations += _ablations(folder, runs[-1], short[dataset])
    return Study(
        folder,
        (*runs, *ablations),
        tuple(f"--{name}={to_text(values[name])}" for name in present),
        int(values["verbose"]),
        _ray_options(values),
    )


def _ray_options(values: Mapping[str, Any]) -> ray_cells.Options | None:
    """Where Ray runs the cells, from the values of the flags; None: this process does.

    Raises:
      ValueError: If the address is none, Ray is not installed, or there are cores or GPUs alone.
    """
    address, cpus, gpus = values["ray_address"], values["ray_cpus"], values["ray_gpus"]
    if address:
        options = ray_cells.Options(address, cpus, gpus)
        ray_cells.check_installed()
        return options
    if (cpus, gpus) != (1, 0):
        raise ValueError("ray_cpus, ray_gpus: expected ray_address beside them, received none")
    return None


def _others(ood: Sequence[str], dataset: str) -> str:
    """The OOD sets of a data set, from one list for all: none is out of its own distribution."""
    names = [PAIRS.get(dataset, "") if name == "pair" else name for name in ood]
    return ",".join(name for name in names if name not in ("", dataset))


def _ablations(folder: Path, base: Cell, dataset: str) -> Iterator[Cell]:
    """Runs of btcp on the classifier of another cell, each with one setting changed."""
    for setting, value in ABLATION:
        change = f"{setting}={value}"
        name = f"ablation/{dataset}-{change}"
        changes: dict[str, Any] = {setting: value}
        config = dataclasses.replace(
            base.config,
            method=("mcp", "btcp"),
            finetune_method=(),
            residual_folds=0,
            residual_copies=Config.residual_copies,
            residual_distilled=False,
            residual_looks=Config.residual_looks,
            residual_cost=Config.residual_cost,
            ood=(),
            shift=False,
            output_dir=str(folder / name),
            **changes,
        )
        yield Cell(name, config, change, base.name)


def run(study: Study) -> int:
    """Carries out what is left of a study, and writes its results and report.

    Args:
      study: From `plan`.

    Returns:
      The number of cells that failed. One whose training collapsed has rows like all others, and
      is counted: as a run of its own it would export nothing, and end with an error.

    Raises:
      RuntimeError: If another process holds the folder, or no cell is finished.
    """
    folder = study.folder
    failed: dict[str, str] = {}
    collapsed: dict[str, str] = {}

    def note(cell: Cell, error: str) -> None:
        if error:
            failed[cell.name] = error
            print(f"error: {cell.name}: {error}", file=sys.stderr)
        elif end := cells.collapse(folder, cell):
            collapsed[cell.name] = end

    with files.folder_lock(folder):
        if study.ray is None:
            _one_by_one(study, note)
        else:
            _side_by_side(study, study.ray, note)
        finished = [cell for cell in study.cells if cell.name not in failed]
        rows, extra, unreadable = gather(folder, finished)
        failed |= unreadable
        if not rows:
            raise RuntimeError("expected at least one run that ends, received none")
        extra |= {"failed": failed, "command": ["python -m btcp_tf.study", *study.arguments]}
        results.save_rows(folder / "results.json", rows, extra)
        announce(f"\ndrawing the report of {len(extra['cells'])} runs", study.verbose)
        page = study_page.write_study_report(folder)
        if study.verbose:
            print(f"\n{page}")
        collapsed = {name: why for name, why in collapsed.items() if name not in failed}
        for name, message in (collapsed | failed).items():
            print(f"error: {name}: {message}", file=sys.stderr)
    return len(collapsed | failed)


def _one_by_one(study: Study, finished: Callable[[Cell, str], None]) -> None:
    """Carries out the cells in this process, in their order."""
    with command.hidden_stderr():
        import keras

    for number, cell in enumerate(study.cells, 1):
        announce(f"\n[{number}/{len(study.cells)}] {cell.name}", study.verbose)
        # What an earlier run left in memory.
        keras.backend.clear_session()
        try:
            cells.carry_out(study.folder, cell)
        except Exception as error:
            if not command.is_expected(error):
                raise
            finished(cell, wording.one_line(error))
        else:
            finished(cell, "")


def _side_by_side(
    study: Study, options: ray_cells.Options, finished: Callable[[Cell, str], None]
) -> None:
    """Carries out the cells as tasks of Ray."""
    count = len(study.cells)
    announce(f"{count} runs as tasks of Ray at {options.address}", study.verbose)
    ended = 0

    def say(line: str) -> None:
        announce(line, study.verbose)

    def end(cell: Cell, error: str) -> None:
        nonlocal ended
        ended += 1
        say(f"[{ended}/{count}] {cell.name} {'failed' if error else 'is finished'}")
        finished(cell, error)

    ray_cells.run(study.folder, study.cells, options, say=say, finished=end)


def gather(
    folder: Path, cells: Sequence[Cell]
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Rows of finished cells, and what belongs to them.

    What an earlier command gathered from other cells is kept.

    Args:
      folder: The study's folder.
      cells: Cells that are finished.

    Returns:
      Rows of `evaluation.rows` and `evaluation.ood_rows` with `ablation` and `cell`;
      `settings` by cell, `data` by data set, `notes`, `environment`; and name → message of the
      cells whose results cannot be read.
    """
    rows: list[dict[str, Any]] = []
    extra: dict[str, Any] = {"cells": {}, "data": {}, "notes": {}, "environment": {}}
    unreadable = {}
    for cell in cells:
        path = folder / cell.name / "results.json"
        try:
            saved, about = results.load_rows(path)
            if not saved or not about.keys() >= _OF_A_RUN:
                raise ValueError("it is not complete")
        except (ValueError, OSError) as error:
            unreadable[cell.name] = (
                f"expected the results of a finished run in {path}, received what cannot be read "
                f"({wording.one_line(error)}); delete {path.with_name('finished.json')}, and the "
                "same command makes them again"
            )
            continue
        rows += [
            row | {"ablation": cell.ablation, "cell": cell.name}
            for row in saved
            # An ablation repeats its base's mcp.
            if not cell.ablation or row["method"] == "btcp"
        ]
        extra["cells"][cell.name] = about["settings"]
        if "costs" in about:
            extra.setdefault("costs", {})[cell.name] = about["costs"]
        data_name = short_name(cell.config.dataset, cell.config.data_dir)
        extra["data"].setdefault(data_name, about["data"])
        extra["environment"] = about["environment"]
        for note in about["notes"]:
            extra["notes"].setdefault(note, []).append(cell.name)
    # Without any, or with damaged ones, they are made anew.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        _keep_others(folder / "results.json", rows, extra)
    return rows, extra, unreadable


def _keep_others(path: Path, rows: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    """Adds what is saved of cells that are not among `extra["cells"]`."""
    saved, about = results.load_rows(path)
    others = {
        name: settings for name, settings in about["cells"].items() if name not in extra["cells"]
    }
    rows += [row for row in saved if row["cell"] in others]
    extra["cells"] |= others
    if costs := {name: one for name, one in about.get("costs", {}).items() if name in others}:
        extra["costs"] = costs | extra.get("costs", {})
    extra["data"] = about["data"] | extra["data"]
    for note, names in about["notes"].items():
        kept = [name for name in names if name in others]
        if kept:
            extra["notes"].setdefault(note, []).extend(kept)
