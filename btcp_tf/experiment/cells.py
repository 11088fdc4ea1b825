"""One run of a study; `python -m btcp_tf.experiment.cells` carries it out in a process of its own.

Such a process is a child of whoever schedules the runs, see `ray_cells`: it reads the study's
folder and the cell, a pickle, from standard input, and takes its end for a SIGTERM. So a run never
outlives the machine or program that it works for by more than a step.
"""

import dataclasses
import os
import pickle
import shutil
import signal
import sys
import threading
from pathlib import Path

from btcp_tf.core import command, files
from btcp_tf.core.config import Config
from btcp_tf.experiment import publish
from btcp_tf.experiment import run as run_
from btcp_tf.experiment.settings import save_flagfile

LOCK_WAIT = 120.0
"""Seconds that a child waits for a folder which another process holds. A run that is tried again
may find its forerunner still at its last step, and NFS gives the locks of a dead machine back after
90."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    """Its folder in the study's."""
    config: Config
    ablation: str = ""
    """The setting that was changed, as `name=value`."""
    of: str = ""
    """For an ablation, the cell whose classifier it takes."""


def carry_out(folder: Path, cell: Cell) -> None:
    """Carries out a cell, or what an earlier call has left to do.

    Args:
      folder: The study's folder.
      cell: What to run.

    Raises:
      ValueError: As `run.run`, and for an ablation whose cell has left no classifier.
      RuntimeError: If another process holds the run's folder.
    """
    target = folder / cell.name / "checkpoints" / "classifier.npz"
    # A finished one trains nothing. One of the user's own is in its file, and in no checkpoint.
    settled = (folder / cell.name / "finished.json").exists() or cell.config.classifier
    if cell.of and not settled and not target.exists():
        source = folder / cell.of / "checkpoints" / "classifier.npz"
        if not source.exists():
            raise ValueError(f"expected the classifier of {cell.of} in {source}, received none")
        # The settings first: a folder with a checkpoint alone would belong to nobody.
        save_flagfile(cell.config, folder / cell.name / "flags.cfg")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        shutil.copyfile(source, part)
        part.replace(target)
    run_.run(cell.config, part_of_study=True)


def collapse(folder: Path, cell: Cell) -> str:
    """Why the training of a finished cell collapsed; "": it did not, or that is accepted."""
    end = publish.read_finished(folder / cell.name)
    if not end or not end.collapse or cell.config.export_collapsed:
        return ""
    return f"{end.collapse}; its rows are in the study; --export_collapsed accepts it"


def main() -> int:
    """Carries out the cell on standard input; returns the exit status, as `command.carry_out`."""
    folder, cell = pickle.load(sys.stdin.buffer)

    def follow_parent() -> None:
        # Not through `sys.stdin`, which the end of this process would wait for.
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow_parent, daemon=True).start()

    def work() -> None:
        files.wait_until_free(folder / cell.name, LOCK_WAIT)
        carry_out(folder, cell)

    return command.carry_out(work, cell.config.verbose)


if __name__ == "__main__":
    sys.exit(main())
