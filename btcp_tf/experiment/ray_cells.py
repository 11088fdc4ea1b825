"""The runs of a study as tasks of Ray, on the cores and GPUs of one or many machines.

Ray decides where a run goes, and starts it again elsewhere if its machine dies. Each runs in a
child process of its task, so that TensorFlow begins anew, has as many threads as the task has
cores, and can end with the step that is under way. All that runs leave, and what they say, is in
the study's folder, which all machines share.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import btcp_tf
from btcp_tf.core import interrupt, wording
from btcp_tf.experiment.cells import Cell

RETRIES = 3
"""How often a run is tried again whose machine or worker has died, or whose own process has."""

_POLL = 0.2
"""Seconds between two looks at a child: Ray cancels a task only between two of its statements."""

_SETTINGS = ("TF_", "TFDS_", "KERAS_", "XLA_")
"""Beginnings of the environment variables that a run takes over from the study's command."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Where runs go, and what each of them has there."""

    address: str
    """"auto": the cluster of this machine; "local": one that ends with the study; HOST:PORT."""
    cpus: int = 1
    """Cores and threads of each run."""
    gpus: float = 0.0
    """GPUs of each run; 0.5: two runs share one."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|local|[^\s:/]+:\d+|\[[\da-fA-F:]+\]:\d+", self.address):
            raise ValueError(
                f"ray_address: expected auto, local or HOST:PORT, received {self.address!r}"
            )
        port = self.address.rpartition(":")[2]
        if port.isdecimal() and not 0 < int(port) < 2**16:
            raise ValueError(f"ray_address: expected a port from 1 to 65535, received {port:.20}")
        if not math.isfinite(self.gpus):
            raise ValueError(f"ray_gpus: expected a finite number, received {self.gpus}")


def check_installed() -> None:
    """ValueError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            'ray_address: expected Ray to be installed, received none; pip install ".[ray]"'
        )


def run(
    folder: Path,
    cells: Sequence[Cell],
    options: Options,
    *,
    say: Callable[[str], None],
    finished: Callable[[Cell, str], None],
) -> None:
    """Carries out cells as tasks of Ray; an ablation begins when the cell that it is of has ended.

    Args:
      folder: The study's folder, as all machines see it.
      cells: What to run; a cell stands before its ablations.
      options: Where, and with what.
      say: Called with each line that a run prints, behind the name of its cell.
      finished: Called with each cell that has ended and its error, "" if it has none.

    Raises:
      RuntimeError: If there is no such cluster, or no machine with what a run needs.
      KeyboardInterrupt: After Ctrl-C or SIGTERM, when all runs have ended with their step.
    """
    with _connected(options) as ray:
        start = ray.remote(_carry_out).options(
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            max_retries=RETRIES,
        )
        variables = _variables(os.environ, options.cpus)
        tasks: dict[str, Any] = {}
        for cell in cells:
            words = (folder.absolute(), Path.cwd(), cell, variables)
            tasks[cell.name] = start.remote(*words, tasks.get(cell.of))
        pending = {task: cell for cell, task in zip(cells, tasks.values(), strict=True)}
        follow = {cell.name: _Follower(_log(folder, cell)) for cell in cells}
        # Ray makes a Ctrl-C of every signal that comes while it waits.
        with interrupt.noted() as came:
            while pending and not came:
                done, _ = ray.wait(list(pending), timeout=1.0)
                for cell in pending.values():
                    for line in follow[cell.name].lines():
                        say(f"{cell.name}: {line}")
                for task in done:
                    finished(pending.pop(task), _error_of(ray, task))
            for task in pending:
                ray.cancel(task)
            if pending:
                ray.wait(list(pending), num_returns=len(pending), timeout=2 * interrupt.GRACE)


@contextlib.contextmanager
def _connected(options: Options) -> Iterator[Any]:
    """Yields the module `ray`, connected; its own way with SIGTERM does not replace the study's."""
    ray: Any = importlib.import_module("ray")
    own = signal.getsignal(signal.SIGTERM)
    more = {"include_dashboard": False} if options.address == "local" else {}
    try:
        try:
            ray.init(options.address, log_to_driver=False, logging_level=logging.ERROR, **more)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"ray_address: expected a Ray cluster at {options.address}, received: "
                f"{wording.one_line(error)}; `ray start --head` starts one"
            ) from error
        signal.signal(signal.SIGTERM, own)
        _check_room([node["Resources"] for node in ray.nodes() if node["Alive"]], options)
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, own)


def _check_room(machines: Sequence[Mapping[str, float]], options: Options) -> None:
    """RuntimeError if no machine has what a run needs: Ray would wait for one for ever.

    >>> _check_room([{"CPU": 2.0}], Options("auto", cpus=2))
    >>> _check_room([{"CPU": 2.0}, {"CPU": 1.0}], Options("auto", cpus=3))
    Traceback (most recent call last):
      ...
    RuntimeError: ray_cpus: expected at most 2, of the largest machine, received 3
    """
    for name, resource, wanted in (("cpus", "CPU", options.cpus), ("gpus", "GPU", options.gpus)):
        most = max((machine.get(resource, 0.0) for machine in machines), default=0.0)
        if wanted > most:
            raise RuntimeError(
                f"ray_{name}: expected at most {most:g}, of the largest machine, received "
                f"{wanted:g}"
            )


def _variables(environment: Mapping[str, str], cpus: int) -> dict[str, str]:
    """What a run takes over from an environment, and how many threads it has.

    >>> _variables({"TFDS_DATA_DIR": "/data", "HOME": "/home/me", "OMP_NUM_THREADS": "8"}, 2)
    ... # doctest: +NORMALIZE_WHITESPACE
    {'TFDS_DATA_DIR': '/data', 'TF_NUM_INTRAOP_THREADS': '2', 'TF_NUM_INTEROP_THREADS': '2',
     'OMP_NUM_THREADS': '2'}
    """
    taken = {name: value for name, value in environment.items() if name.startswith(_SETTINGS)}
    threads = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return taken | dict.fromkeys(threads, str(cpus))


def _log(folder: Path, cell: Cell) -> Path:
    """The file of what a run prints."""
    return folder / "logs" / f"{cell.name}.log"


def _carry_out(
    folder: Path, here: Path, cell: Cell, variables: Mapping[str, str], before: object
) -> str:
    """The task: carries out a cell in a child process; returns its error, "" if it has none.

    Args:
      folder: The study's folder.
      here: The folder that the study's command was given in, from which paths of settings count.
      cell: What to run.
      variables: Environment variables of the child.
      before: What the cell that it is an ablation of returned; Ray waits for it.
    """
    if not (here.is_dir() and folder.is_dir()):
        return (
            f"expected {here} and {folder} on all machines, received none on {os.uname().nodename}"
        )
    path = _log(folder, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    packages = [str(Path(btcp_tf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, packages))}
    status = 0
    with open(path, "ab") as log:
        begin = log.tell()
        for _ in range(1 + RETRIES):
            child = subprocess.Popen(
                [sys.executable, "-m", "btcp_tf.experiment.cells"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=here,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal is for the study's command.
            )
            status = _wait(child, pickle.dumps((folder, cell)))
            if status >= 0:
                break
            log.write(f"killed by signal {-status}\n".encode())
            log.flush()
    return _last_error(path, begin) if status else ""


def _wait(child: "subprocess.Popen[bytes]", words: bytes) -> int:
    """The exit status of a child that is given these words; one that is cancelled saves first."""
    assert child.stdin is not None
    # A child that has died already says so by its status.
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(words)
        child.stdin.flush()
    try:
        while child.poll() is None:
            time.sleep(_POLL)
    except KeyboardInterrupt:
        child.terminate()
        try:
            child.wait(1.5 * interrupt.GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    finally:
        # Not before: the child takes it for the death of its parent.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    return child.returncode


def _last_error(path: Path, begin: int) -> str:
    """The last error in a log from a byte on, without its "error: "; else its last line."""
    with open(path, "rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
    told = [line for line in lines if line.strip()] or [f"no word, see {path}"]
    errors = [line for line in told if line.startswith("error: ")] or told
    return errors[-1].removeprefix("error: ")


def _error_of(ray: Any, task: Any) -> str:
    """The error of a task that has ended, Ray's own included; "": none."""
    try:
        return str(ray.get(task))
    except ray.exceptions.RayTaskError as error:
        return wording.one_line(error.cause)
    except ray.exceptions.RayError as error:
        return wording.one_line(error)


class _Follower:
    """Reads the lines that others add to a file, each once."""

    def __init__(self, path: Path) -> None:
        """
        Args:
          path: The file; it need not be there yet. What it holds now is old.
        """
        self._path = path
        self._place = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        """The lines that are whole since the last call, but for empty ones."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._place += len(whole)
        return [line for line in whole.decode(errors="replace").split("\n") if line.strip()]
