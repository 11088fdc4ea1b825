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
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any


def _is_command() -> bool:
    """Whether this process was started as `python -m btcp_tf.main` or alike, or as `btcp_tf`."""
    if sys.argv[:1] == ["-m"]:  # As long as Python looks for the module.
        return any(word.removeprefix("-m").startswith("btcp_tf.") for word in sys.orig_argv)
    return os.path.basename(sys.argv[0] if sys.argv else "") in ("btcp_tf", "btcp_tf.exe")


if _is_command():
    # Before all that takes time.
    from btcp_tf.core import interrupt

    interrupt.watch()

__version__ = "0.2.0"

# Public name -> module that holds it; a module stands for itself.
_MODULES = (
    "client config data decisions drift evaluation experiment export judge losses methods metrics "
    "monitor networks plots predict report reporting review scores scores_fit serving "
    "set_threshold study tables thresholds training"
)
_PUBLIC = {
    "Config": "core.config",
    "attach": "judge",
    "load": "judge",
    "fit_scores": "scores_fit",
    "label_errors": "decisions.label_errors",
    "load_scores": "scores_fit",
} | {name: name for name in _MODULES.split()}

# Names that import Keras, which may be set up in ways that they cannot work with.
_WITH_KERAS = ("judge", "losses", "networks", "training")

# Modules of version 0.1.0 -> the modules that hold their names now.
_MOVED = {
    "classifiers": "networks.classifiers",
    "client": "serving.client",
    "command": "core.command experiment.settings",
    "config": "core.config",
    "drift": "decisions.drift decisions.sequential",
    "estimators": (
        "methods.residual_fit methods.residual_choice methods.second_head networks.evidence_layers"
    ),
    "exported": "decisions.exported",
    "files": "core.files",
    "inputs": "serving.inputs",
    "pages": "reporting.pages",
    "plots": "reporting.plots reporting.figures reporting.drawing reporting.gallery",
    "runs": "experiment.run experiment.values experiment.publish experiment.decide",
    "saved_model": "serving.saved_model serving.signatures",
    "scores": "decisions.scores",
    "tables": (
        "reporting.tables reporting.class_failures reporting.other_images reporting.cells "
        "reporting.terminal reporting.paper"
    ),
    "tabular": "evaluation.tabular",
}

__all__ = sorted(_PUBLIC)


class _MovedModule(types.ModuleType):
    """A module of an earlier version: its names, from where they stand now."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in _MOVED[self.__name__.rpartition(".")[2]].split():
                module = importlib.import_module(f"btcp_tf.{home}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _Moved:
    """Finds modules under the names that they had before there were packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package == __name__ and name in _MOVED:
            loader: Any = self
            return importlib.machinery.ModuleSpec(fullname, loader)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _MovedModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# Behind the ordinary finders: they find what is there.
sys.meta_path.append(_Moved())


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC and name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    target = _PUBLIC.get(name, name)
    if target in _WITH_KERAS:
        importlib.import_module(f"{__name__}.core.keras_setup").check()
    module = importlib.import_module(f"{__name__}.{target}")
    value = module if target == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
