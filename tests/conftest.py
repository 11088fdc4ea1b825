"""What all tests share: a quiet TensorFlow, and prepared real images where they stand.

A test marked `prepared_data`, or `prepared_data("mnist", ...)` to say which, needs
tensorflow-datasets data that is already prepared. It is looked for in TFDS_DATA_DIR, else in
../shared/data/tfds beside the checkout; a file of arrays (`prepared_data("letters.npz")`) beside
that folder. A test that lacks its data is not collected.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

# Read by TensorFlow when it is imported, which the test modules do after this file.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Workers side by side have a core each: more threads would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
# As a run of its own has it, so that runs in this process and in others agree on any processor.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import pytest

_LONGEST = (
    *("test_runs", "test_run_exports", "test_run_images", "test_study", "test_main"),
    *("test_training", "test_judge", "test_judge_looks", "test_saved_model"),
)

# Each needs an environment of its own.
_OTHERS = {
    "torch_uncertainty": "test_metrics_torch.py",
    "mapie": "test_thresholds_mapie.py",
    "kserve": "serving/test_client_kserve.py",
}
collect_ignore = [test for name, test in _OTHERS.items() if not importlib.util.find_spec(name)]


def _prepared_data_dir() -> pathlib.Path:
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "tfds"
    return pathlib.Path(os.environ.get("TFDS_DATA_DIR") or beside).expanduser()


def _has_its_data(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("prepared_data")
    return not marker or all(
        (_prepared_data_dir().parent / name).is_file()
        if name.endswith(".npz")
        else any(_prepared_data_dir().glob(f"{name}/*/dataset_info.json"))
        for name in marker.args or ("*",)
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "prepared_data(*names): needs prepared tensorflow-datasets data (see tests/conftest.py)",
    )
    config.addinivalue_line("markers", "examples: runs a worked example; not by default")
    config.addinivalue_line("markers", "servers: starts servers or Ray; not by default")
    config.addinivalue_line("markers", "browser: looks at pages in Chromium; not by default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without_data = [item for item in items if not _has_its_data(item)]
    if without_data:
        config.hook.pytest_deselected(items=without_data)
        items[:] = [item for item in items if item not in without_data]
    # Files that take minutes come first: begun last, they would leave the other workers idle.
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


@pytest.fixture(scope="session")
def prepared_data_dir() -> str:
    """Folder of prepared data sets; for tests marked `prepared_data`."""
    return str(_prepared_data_dir())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures without pixels, for tests that read words and files alone: they take most of the
    time of a report, and half of that of a short run."""
    from btcp_tf.reporting import drawing

    monkeypatch.setattr(drawing, "_render", lambda figure, ending: b"")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports that no fresh process looks at, for tests of what comes before and after: a process
    takes as long as many of them together."""
    from btcp_tf.serving import export_check

    monkeypatch.setattr(export_check, "check", lambda *arguments: None)
    monkeypatch.setattr(export_check, "early_process", contextlib.nullcontext)


@pytest.fixture(scope="module")
def quick_checks() -> Iterator[None]:
    """Exports that are checked in a fresh process which need not load TensorFlow; see `fresh`."""
    import fresh

    from btcp_tf.serving import export_check, fresh_answers

    def start() -> fresh.Popen:
        words = [fresh_answers.__file__, json.dumps(sys.path)]
        return fresh.Popen(words, {"CUDA_VISIBLE_DEVICES": "-1"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_check, "_start", start)
        yield


@pytest.fixture(scope="module")
def quick_heads() -> Iterator[None]:
    """Second heads of the residual estimator that are trained for a tenth of the time."""
    from btcp_tf.methods import second_head

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_head, "_STEPS", 240)
        yield


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the residual estimator is fitted to from here on: `HeldOut` of the classifier itself,
    then of its folds, of one fit after the other."""
    from btcp_tf.methods import residual_fit

    found = []
    fit_residual = residual_fit.fit_residual

    def fit(held_out: Any, folds: Any, **settings: Any) -> Any:
        found.extend([held_out, *folds])
        return fit_residual(held_out, folds, **settings)

    monkeypatch.setattr(residual_fit, "fit_residual", fit)
    return found
