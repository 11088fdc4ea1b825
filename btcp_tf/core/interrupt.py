"""Ctrl-C in a command: one line and status 130 from the first moment on.

An interrupt while modules are imported comes out of some as another error, and others swallow it.
So until its work begins, and while TensorFlow is imported, a command ends at once. Work sees
KeyboardInterrupt as usual, and `command.carry_out` says how to go on. Other programs that import
`btcp_tf` keep their own ways. Only light modules are imported here.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

STATUS = 130
"""Exit status after Ctrl-C, as shells have it."""

_stderr = 2


def watch() -> None:
    """Lets Ctrl-C end this process, a command of `btcp_tf` that begins, at once."""
    # In the background of a script it may be ignored, and stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raised() -> contextlib.AbstractContextManager[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt, where it would end a command at once."""
    return _replaced(_end, _raise)


@contextlib.contextmanager
def at_once(stderr: int) -> Iterator[None]:
    """Inside, Ctrl-C ends a command at once, where it would raise KeyboardInterrupt in its work.

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


def caused(error: BaseException) -> bool:
    """Whether an error is a KeyboardInterrupt, or came of one.

    >>> caused(KeyboardInterrupt()), caused(ImportError("initialization failed"))
    (True, False)
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _end(number: int, frame: Any) -> None:
    # What was printed so far; another print may be under way.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os.write(_stderr, b"\ninterrupted\n")
    os._exit(STATUS)


def _raise(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _replaced(handler: Any, by: Any) -> Iterator[None]:
    """Inside, Ctrl-C calls `by`, if it would call `handler`."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not handler:
        yield
        return
    signal.signal(signal.SIGINT, by)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
