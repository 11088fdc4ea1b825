"""Ctrl-C and SIGTERM in a command: one line and status 130 or 143 from the first moment on.

An interrupt while modules are imported comes out of some as another error, and others swallow it.
So until its work begins, and while TensorFlow is imported, a command ends at once. Work sees
KeyboardInterrupt as usual, of SIGTERM its kind `Terminated`, and `command.carry_out` says how to go
on. Clusters send SIGTERM some seconds before they kill: time enough to end a step that is under
way, see `by_step`. Other programs that import `btcp_tf` keep their own ways. Only light modules are
imported here.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

GRACE = 10.0
"""Seconds that a step has for its end after SIGTERM. Kubernetes and Slurm kill after 30."""

_SOON = 0.1
"""Seconds after which a signal comes again that was ignored."""

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

_stderr = 2

_steps = False
"""Whether what is under way ends with a step, see `by_step`."""

_waiting: threading.Timer | None = None
"""After a SIGTERM that waits for the end of a step: what ends the wait."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: a cluster or a person asks this process to end."""


def watch() -> None:
    """Lets Ctrl-C and SIGTERM end this process, a command of `btcp_tf` that begins, at once."""
    # In the background of a script Ctrl-C may be ignored, and stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Inside, both raise KeyboardInterrupt, where they would end a command at once."""
    with _replaced(_end, _raise), _not_ignored():
        yield


@contextlib.contextmanager
def _not_ignored() -> Iterator[None]:
    """Inside, a signal that comes where Python ignores errors, as while it frees an object, comes
    once more."""
    before, main = sys.unraisablehook, threading.main_thread().ident

    def again(ignored: Any) -> None:
        number = behind(ignored.exc_value) if ignored.exc_value is not None else None
        if number is None or main is None:
            return before(ignored)
        timer = threading.Timer(_SOON, signal.pthread_kill, (main, number))
        timer.daemon = True
        timer.start()
        return None

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def at_once(stderr: int) -> Iterator[None]:
    """Inside, both end a command at once, where they would raise KeyboardInterrupt in its work.

    Args:
      stderr: Number of the open file that the line goes to.
    """
    global _stderr
    before, _stderr = _stderr, stderr
    try:
        with _replaced(_raise, _end):
            yield
    finally:
        _stderr = before


@contextlib.contextmanager
def by_step() -> Iterator[None]:
    """Inside, SIGTERM is raised by `step_done`: what a step has made is saved before.

    A step that takes longer than `GRACE`, or a second SIGTERM, ends the wait; so does the end of
    the block.
    """
    global _steps
    before, _steps = _steps, True
    try:
        yield
    finally:
        _steps = before
        step_done()


def step_done() -> None:
    """Says that a step is saved; raises `Terminated` where SIGTERM waits for it."""
    if _stop_waiting():
        raise Terminated


@contextlib.contextmanager
def noted() -> Iterator[list[int]]:
    """Inside, a signal that would be raised is noted, and is raised behind the block.

    For calls of libraries that make another error of it, or lose which one it was.

    Yields:
      The signals that have come so far.
    """
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        came.append(number)

    with _replaced(_raise, note):
        yield came
    if came:
        raise Terminated if came[0] == signal.SIGTERM else KeyboardInterrupt


def _stop_waiting() -> bool:
    """Ends the wait for a step; whether there was one."""
    global _waiting
    timer, _waiting = _waiting, None
    if timer is not None:
        timer.cancel()
    return timer is not None


def behind(error: BaseException) -> signal.Signals | None:
    """The signal that an error came of; None: another reason.

    >>> behind(KeyboardInterrupt()).name, behind(Terminated()).name
    ('SIGINT', 'SIGTERM')
    >>> behind(ImportError("initialization failed"))
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    return signal.SIGTERM if isinstance(cause, Terminated) else signal.SIGINT


def word(number: int) -> str:
    """What became of a process that received the signal.

    >>> word(signal.SIGTERM)
    'terminated'
    """
    return _WORDS[signal.Signals(number)]


def status(number: int) -> int:
    """The exit status of a process that ended for a signal, as shells have it.

    >>> status(signal.SIGINT), status(signal.SIGTERM)
    (130, 143)
    """
    return 128 + number


def _end(number: int, frame: Any) -> None:
    # What was printed so far; another print may be under way.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os.write(_stderr, f"\n{word(number)}\n".encode())
    os._exit(status(number))


def _raise(number: int, frame: Any) -> None:
    global _waiting
    if number != signal.SIGTERM:
        raise KeyboardInterrupt
    if not _steps or _stop_waiting():
        raise Terminated
    # To this thread, where it ends a call that blocks, too.
    main = threading.get_ident()
    _waiting = threading.Timer(GRACE, signal.pthread_kill, (main, signal.SIGTERM))
    _waiting.daemon = True
    _waiting.start()


@contextlib.contextmanager
def _replaced(handler: Any, by: Any) -> Iterator[None]:
    """Inside, the signals that would call `handler` call `by`."""
    in_main = threading.current_thread() is threading.main_thread()
    own = [one for one in _WORDS if in_main and signal.getsignal(one) is handler]
    for one in own:
        signal.signal(one, by)
    try:
        yield
    finally:
        for one in own:
            signal.signal(one, handler)
