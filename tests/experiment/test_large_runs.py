"""Runs on arrays above the limit of what is kept in memory."""

import hashlib
import json
import os
import signal
import time

import fresh
import numpy as np
import pytest
from machine import room

from btcp_tf.core import rows
from btcp_tf.data import datasets
from btcp_tf.main import main

pytestmark = pytest.mark.usefixtures("quick_heads", "quick_checks")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """An npz file of digits, and one of images from elsewhere."""
    folder = tmp_path_factory.mktemp("digits")
    whole = datasets.load("digits")
    np.savez(
        folder / "own.npz",
        x_train=whole.train.images[:400],
        y_train=whole.train.labels[:400],
        x_test=whole.test.images,
        y_test=whole.test.labels,
    )
    np.savez_compressed(folder / "other.npz", images=255 - whole.test.images[:40])
    return folder


def words(digits, folder, *more):
    return [
        "--dataset=npz",
        f"--data_dir={digits / 'own.npz'}",
        "--max_test_images=100",
        "--method=mcp,btcp,residual",
        "--finetune_method=btcp",
        "--classifier_epochs=4",
        "--learning_rate=0.02",
        "--batch_size=16",
        "--estimator_epochs=2",
        "--finetune_epochs=2",
        "--residual_folds=2",
        "--residual_copies=noise",
        f"--ood={digits / 'other.npz'}",
        "--shift",
        "--bootstrap_draws=20",
        f"--output_dir={folder}/run",
        f"--export_dir={folder}/models",
        "--verbose=0",
        *more,
    ]


def found(folder):
    """What a run has found out: its results, answers and weights."""
    content = json.loads((folder / "run" / "results.json").read_text())
    files = [*(folder / "run").glob("*.npz"), *(folder / "run").glob("**/checkpoints/**/*.npz")]
    hashes = {}
    for path in sorted(files):
        with np.load(path) as arrays:
            hashes |= {
                f"{path.name} {name}": hashlib.sha256(arrays[name].tobytes()).hexdigest()
                for name in arrays.files
                if name != "about"  # Of checkpoints: it has the seconds of each epoch.
            }
    return content, hashes


def test_a_run_on_large_data_ends_like_one_on_small_data(
    digits, undrawn, unchecked, tmp_path, monkeypatch
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(rows.tempfile, "tempdir", str(scratch))
    assert main(words(digits, tmp_path / "small")) == 0
    small = found(tmp_path / "small")
    stored = []
    store = rows.Rows._store
    monkeypatch.setattr(rows.Rows, "_store", lambda self: (stored.append(self), store(self)))
    monkeypatch.setattr(rows, "LARGEST", 0)
    monkeypatch.setattr(rows, "_PIECE", 5000)
    assert main(words(digits, tmp_path / "large")) == 0
    large = found(tmp_path / "large")
    assert stored
    assert small[0] == large[0]
    assert len(small[1]) > 100 and small[1] == large[1]
    assert left_in(scratch) == []


PROGRAM = """
import sys, tempfile
from btcp_tf.core import rows
rows.LARGEST = 0
tempfile.tempdir = None  # Looked up anew: this process is forked from one of another environment.
from btcp_tf import main
sys.exit(main.main(sys.argv[1:]))
"""


def test_a_full_disk_is_one_clear_error_before_any_work(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rows, "LARGEST", 0)
    with room(10_000):
        assert main(words(digits, tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: TMPDIR: expected room for arrays of more than 0 MiB in ")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("end", ["failure", "Ctrl-C", "kill"])
def test_however_a_run_ends_its_large_arrays_are_gone(digits, tmp_path, end):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    more = ["--learning_rate=1e30"] if end == "failure" else ["--classifier_epochs=100000"]
    arguments = ["-c", PROGRAM, *words(digits, tmp_path / "out", *more)]
    with fresh.Popen(arguments, {"TMPDIR": str(scratch)}) as process:
        process.start()
        pid = process._process.pid
        if end != "failure":
            checkpoints = tmp_path / "out" / "run" / "checkpoints"
            until(lambda: [*checkpoints.rglob("*.npz")] or process.poll() is not None)
            # They have no name, but are there.
            assert [one for one in open_files(pid) if one.startswith(str(scratch))]
            os.kill(pid, signal.SIGKILL if end == "kill" else signal.SIGINT)
        _, errors = process.communicate(timeout=200)
        status = {"failure": 1, "Ctrl-C": 130, "kill": -signal.SIGKILL}[end]
        assert process.returncode == status, errors
        assert end != "failure" or "finite loss" in errors
    assert left_in(scratch) == []


def left_in(folder):
    """Files but those that TensorFlow writes, and may leave."""
    return [name for name in os.listdir(folder) if not name.startswith("__autograph_generated")]


def open_files(pid):
    """Paths of the files that a process has open or mapped."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("reads /proc")
    with open(f"/proc/{pid}/maps") as maps:
        return [line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) > 5]


def until(done, seconds=200):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)
