"""Warnings that point to the line of the caller's own program."""

import sys
import warnings


def warn(message: str) -> None:
    """Gives a `UserWarning` at the line that called into this package, however deep it arose."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("btcp_tf."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
