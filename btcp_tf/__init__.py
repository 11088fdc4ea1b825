"""Balanced True Class Probability (BTCP) for image classifiers, in TensorFlow and Keras 3.

Learns, for each prediction of a classifier, an uncertainty u in [0, 1] (higher =
less to be trusted), after "Identifying Incorrect Classifications with Balanced
Uncertainty" (Li, Zheng and Zhang, AISTATS 2022), and measures how well it finds
the classifier's errors.

`python -m btcp_tf.main --help` lists the settings of a run. Modules and names
are imported when they are first used, so that `import btcp_tf` is instant: the
work with saved predictions (`btcp_tf.metrics`, `btcp_tf.evaluation`,
`btcp_tf.report`) never waits for TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

# Public name → module that holds it; a module stands for itself.
_PUBLIC = {
    "Config": "config",
    "attach": "judge",
    "load": "judge",
    **{
        name: name
        for name in (
            "classifiers",
            "client",
            "config",
            "data",
            "drift",
            "estimators",
            "evaluation",
            "export",
            "judge",
            "losses",
            "methods",
            "metrics",
            "monitor",
            "networks",
            "plots",
            "predict",
            "report",
            "runs",
            "scores",
            "study",
            "tables",
            "thresholds",
            "training",
        )
    },
}

# Modules that import Keras, which may be set up in ways that they cannot work with.
_WITH_KERAS = ("classifiers", "estimators", "judge", "losses", "networks", "training")

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _PUBLIC[name] in _WITH_KERAS:
        importlib.import_module(f"{__name__}.keras_setup").check()
    module = importlib.import_module(f"{__name__}.{_PUBLIC[name]}")
    value = module if _PUBLIC[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
