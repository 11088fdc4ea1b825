"""Names that a package offers and imports when they are first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names stand in its modules.

    So `from btcp_tf.data import DATASETS` imports one module of the package and not all of them,
    which would take TensorFlow's seconds.

    Args:
      package: The package's `__name__`.
      homes: Module below the package, or the full name of one elsewhere -> the names that it
        holds, with spaces between them.
    """
    home_of = {
        name: module if "." in module else f"{package}.{module}"
        for module, held in homes.items()
        for name in held.split()
    }

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    def __dir__() -> list[str]:
        return sorted(home_of)

    return __getattr__, __dir__
