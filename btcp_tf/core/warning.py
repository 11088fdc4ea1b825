"""Warnings that point to the line of the caller's own program."""

import sys
import warnings


def warn(message: str) -> None:
    """Gives a `UserWarning` at the line that called into this package, however deep it arose."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_ours(module: str) -> bool:
    """Whether the code of a module is this package's, or runs a part of it, as `with` does."""
    return module.startswith("btcp_tf.") or module == "contextlib"
