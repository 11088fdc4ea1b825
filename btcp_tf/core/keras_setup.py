"""Whether Keras is set up as everything here needs it.

What is wrong is said before Keras is imported: later it ends in errors that do not name the cause.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WANTED = {
    "backend": ("tensorflow",),
    "image_data_format": ("channels_last",),
    # A judge's own layers are float32 whatever that of its classifier is, but for halves.
    "floatx": ("float32", "float64"),
}


def check(floatx: Sequence[str] = _WANTED["floatx"]) -> None:
    """Looks at the settings of Keras; imports nothing.

    Args:
      floatx: The types of numbers that are accepted.

    Raises:
      ValueError: If a variable of the environment, keras.json or `keras.config` sets what does not
        go together with this program; says which, and where.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        raise ValueError(
            "TF_USE_LEGACY_KERAS: expected the environment without it, as Keras 3 is used here, "
            f"received {os.environ['TF_USE_LEGACY_KERAS']!r}"
        )
    for name in ("KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH"):
        if os.environ.get(name):
            raise ValueError(
                f"{name}: expected the environment without it, as it ends every training early, "
                f"received {os.environ[name]!r}"
            )
    for name, (value, where) in _settings().items():
        wanted = floatx if name == "floatx" else _WANTED[name]
        if value not in wanted:
            raise ValueError(
                f"Keras: expected {name} {' or '.join(wanted)}, received {value!r} {where}"
            )


def _settings() -> dict[str, tuple[Any, str]]:
    """What Keras has, or will have once it is imported, and where that is set."""
    if config := getattr(sys.modules.get("keras"), "config", None):
        return {name: (getattr(config, name)(), "from keras.config") for name in _WANTED}
    path = _keras_json()
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Keras, too, goes on without it.
        saved = {}
    if not isinstance(saved, dict):
        raise ValueError(f"{path}: expected settings of Keras by name, received {saved!r:.40}")
    settings = {name: (saved.get(name, own[0]), f"in {path}") for name, own in _WANTED.items()}
    if backend := os.environ.get("KERAS_BACKEND"):
        settings["backend"] = (backend, "in the environment as KERAS_BACKEND")
    return settings


def _keras_json() -> Path:
    """Where Keras looks for its settings."""
    folder = os.environ.get("KERAS_HOME")
    if folder is None:
        home = os.path.expanduser("~")
        folder = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    return Path(os.path.expanduser(os.path.join(folder, "keras.json")))
