"""Runs each worked example with short settings on real data."""

import importlib
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from btcp_tf import metrics
from btcp_tf.evaluation import predictions

pytestmark = pytest.mark.examples

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
FILES = {"chest_xrays.py", "human_disagreement.py", "keras_application.py", "tabular.py"}
# In test_predict.py: it starts Ray.
ELSEWHERE = "batch_scoring_ray.py"


@pytest.fixture
def example(monkeypatch):
    """An example as a module, by its name."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


@pytest.fixture
def arrays_dir(prepared_data_dir):
    """Folder of the files of arrays."""
    return pathlib.Path(prepared_data_dir).parent


def test_there_is_no_example_without_a_test():
    assert {path.name for path in EXAMPLES.glob("*.py")} == FILES | {"common.py", ELSEWHERE}


@pytest.mark.prepared_data("pneumoniamnist.npz")
def test_chest_xrays(example, arrays_dir, tmp_path, capsys):
    data = arrays_dir / "pneumoniamnist.npz"
    rows = example("chest_xrays").main([f"--data={data}", "--epochs=2", f"--output_dir={tmp_path}"])
    printed = capsys.readouterr().out
    # Eight X-rays of the validation set are training images, too.
    assert "validation: 516 images, 8 left out" in printed

    with np.load(data) as arrays:
        labels = arrays["y_test"].reshape(-1)
    saved = predictions.load_predictions(tmp_path / "predictions.npz")
    np.testing.assert_array_equal(saved.labels, labels)
    assert [row["method"] for row in rows] == list(saved.uncertainty) == ["mcp", "residual"]
    for row in rows:
        u = saved.uncertainty[row["method"]]
        for name in ("auroc", "aupr_error", "aurc"):
            found = getattr(metrics, name)(saved.is_error, u)
            assert row[name] == pytest.approx(found, abs=1e-6)
            assert row[f"{name}_low"] <= found <= row[f"{name}_high"]
    # What is printed of the threshold is what it does to the test set.
    accept = saved.uncertainty["residual"] < rows[1]["tau"]
    assert f"a doctor sees {1 - accept.mean():.1%} of the X-rays" in printed.split("test: ")[-1]
    assert f"and {saved.is_error[accept].mean():.1%} of the accepted" in printed
    assert (tmp_path / "risk_coverage.png").stat().st_size > 10_000


@pytest.mark.prepared_data("pneumoniamnist.npz")
def test_no_chest_xray_is_in_two_parts(example, arrays_dir):
    parts = example("chest_xrays").read(arrays_dir / "pneumoniamnist.npz", seed=1)
    sets = [{image.tobytes() for image in images} for images, _ in parts.values()]
    assert len(set.union(*sets)) == sum(map(len, sets))
    assert all(len(images) == len(labels) for images, labels in parts.values())
    assert len(parts["test"][0]) == 624 and len(parts["held out"][0]) > 1000


@pytest.mark.prepared_data("cifar10")
def test_keras_application(example, prepared_data_dir, tmp_path, capsys):
    # Untrained: half of the time would go into compiling one step of so many layers.
    flags = ["--epochs=0", "--train_images=500", "--test_images=100", f"--output_dir={tmp_path}"]
    rows = example("keras_application").main([f"--data_dir={prepared_data_dir}", *flags])
    printed = capsys.readouterr().out
    assert "reads 1280 features of mobilenetv2" in printed
    assert "the classifier answers as before: True" in printed
    assert "loaded from judge.keras it answers the same: True" in printed
    assert float(printed.rsplit("at most ", 1)[1]) < 1e-4
    assert rows[0]["n"] == 100 and rows[0]["errors"] == rows[1]["errors"]
    served = tf.saved_model.load(str(tmp_path / "cifar10" / "1")).signatures["serving_default"]
    assert set(served.structured_outputs) >= {"predicted", "probs", "uncertainty"}


def test_tabular(example, capsys):
    found = example("tabular").main(["--splits=2", "--epochs=10"])
    printed = capsys.readouterr().out
    assert "digits: 1,797 rows of 64 numbers, 10 classes" in printed
    for split in found:
        # Better than chance by far, and what is left after rejecting errs less.
        assert 0.5 < split["auroc_mcp"] < 1 and 0 < split["errors"] < 90
        assert split["risk"] < split["errors"] / 450 and 0 < split["rejected"] < 0.5
    used = sum(split["used"] for split in found)
    assert f"The estimator was used in {used} of 2 splits" in printed


def test_quarters_share_no_row(example):
    y = np.repeat([0, 1, 2], [200, 120, 80])
    parts = example("tabular").quarters(y, seed=3)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    for part in parts:
        np.testing.assert_array_equal(np.bincount(y[part]), [50, 30, 20])


@pytest.mark.prepared_data("cifar10", "cifar10h.npz")
def test_human_disagreement(example, prepared_data_dir, arrays_dir, tmp_path, capsys):
    from scipy import stats

    flags = ["--epochs=5", "--train_images=5000", "--test_images=3000", f"--output_dir={tmp_path}"]
    found = example("human_disagreement").main(
        [f"--data_dir={prepared_data_dir}", f"--counts={arrays_dir / 'cifar10h.npz'}", *flags]
    )
    printed = capsys.readouterr().out
    for row, u in enumerate(found["u"].values()):
        for column, doubt in enumerate(found["doubt"].values()):
            wanted = stats.spearmanr(u, doubt).statistic
            assert found["spearman"][row, column] == pytest.approx(wanted)
            assert f"{wanted:+.3f} [" in printed
    assert list(found["u"]) == ["mcp", "entropy", "residual"]
    # Even this short, a classifier is less sure of what people do not agree about: about 0.1,
    # where chance has a standard deviation of 0.02.
    assert found["spearman"].min() > 0.05
    assert (tmp_path / "deciles.png").stat().st_size > 10_000


@pytest.mark.prepared_data("cifar10", "cifar10h.npz")
def test_counts_in_another_order_are_refused(example, prepared_data_dir, arrays_dir, tmp_path):
    with np.load(arrays_dir / "cifar10h.npz") as arrays:
        np.savez(tmp_path / "turned.npz", counts=arrays["counts"][::-1])
    flags = [f"--data_dir={prepared_data_dir}", f"--counts={tmp_path / 'turned.npz'}"]
    with pytest.raises(SystemExit, match="expected counts of the same images in order, received"):
        example("human_disagreement").main(flags)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("chest_xrays", ["--data=none.npz"]),
        ("human_disagreement", ["--counts=none.npz"]),
    ],
)
def test_a_missing_file_is_one_line(example, name, flags, capsys):
    with pytest.raises(SystemExit) as end:
        example(name).main(flags)
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert "expected a file, received none.npz, which is not there" in error.splitlines()[-1]


def test_missing_data_sets_are_one_line(tmp_path):
    """As a program: no traceback, and a status that is not 0."""
    command = [sys.executable, EXAMPLES / "keras_application.py", f"--data_dir={tmp_path}"]
    done = subprocess.run(
        [*command, "--dataset=no_such_set"], capture_output=True, text=True, cwd=EXAMPLES.parent
    )
    assert done.returncode == 1
    assert "error: dataset: expected one of mnist, fashion_mnist" in done.stderr
    assert "Traceback" not in done.stderr
