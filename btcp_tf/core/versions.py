"""Which versions of packages compute here."""

import contextlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

_PACKAGES = ("btcp_tf", "tensorflow", "keras", "numpy", "tensorflow-datasets", "scikit-learn")

TRAINING = ("python", "btcp_tf", "tensorflow", "keras", "numpy")
"""Those that training depends on."""


def installed() -> dict[str, str]:
    """Package → version, of Python too.

    >>> installed()["python"] == platform.python_version()
    True
    """
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = "not installed"
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def others_text(others: Mapping[str, Sequence[str]], now: Mapping[str, str]) -> str:
    """Other versions than those of this process, in words.

    >>> others_text({"keras": ["3.14.0"]}, {"keras": "3.15.1"})
    'keras 3.14.0 (here 3.15.1)'
    """
    told = (f"{name} {' and '.join(old)} (here {now[name]})" for name, old in others.items())
    return ", ".join(told)
