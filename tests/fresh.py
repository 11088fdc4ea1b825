"""Fresh processes in a second: forked from one that has loaded TensorFlow and done nothing else.

A new interpreter takes ten seconds to load it, longer than most of what tests look at there.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tensorflow"])


class Popen:
    """`subprocess.Popen` of a Python program, as far as tests and the package use it.

    Args:
      words: As for a new interpreter: `[path, ...]`, `["-m", module, ...]` or `["-c", code, ...]`.
      environment: What to add to its environment.
    """

    def __init__(self, words, environment=None):
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._files = [folder / name for name in ("stdin", "stdout", "stderr")]
        for file in self._files:
            file.touch()
        self._given = ([str(word) for word in words], self._files, environment or {}, os.getcwd())
        self._process = _processes.Process(target=_carry_out, args=self._given)
        self.returncode = None

    def start(self):
        self._process.start()
        return self

    def communicate(self, text="", timeout=None):
        """Starts it, unless it is under way, and waits; (what it printed, its errors)."""
        if self._process.pid is None:
            self._files[0].write_text(text or "")
            self.start()
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._given[0], timeout)
        self.returncode = status
        return tuple(file.read_text(errors="replace") for file in self._files[1:])

    def poll(self):
        return None if self._process.pid is None else self._process.exitcode

    def kill(self, number=signal.SIGKILL):
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folder.cleanup()


def run(*words):
    """`subprocess.run` of a Python program: its exit status, what it printed, its errors."""
    with Popen(words) as process:
        out, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, errors)


def _carry_out(words, files, environment, folder):
    """In the new process."""
    # Whatever started the tests may ignore Ctrl-C, as a shell does for what is in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(files[1:], 1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    sys.stdin = open(files[0])
    os.environ.update(environment)
    os.chdir(folder)
    kind, *rest = words
    sys.orig_argv = [sys.executable, *words]
    sys.argv = words if kind not in ("-c", "-m") else [kind, *rest[1:]]
    if kind == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")
