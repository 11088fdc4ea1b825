"""Studies on Ray; `python -m pytest -m servers -n0 tests/experiment/test_ray_cells.py` starts a
cluster of several nodes on this machine, which takes about three minutes."""

import contextlib
import csv
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from btcp_tf import study
from btcp_tf.core import files
from btcp_tf.core.config import Config
from btcp_tf.experiment import cells, ray_cells

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]

WORDS = [
    *("--dataset=digits", "--max_train_images=600", "--seeds=2", "--method=mcp,btcp", "--noshift"),
    *("--classifier_epochs=30", "--estimator_epochs=6", "--finetune_epochs=2"),
    *("--bootstrap_draws=20", "--ood=", "--output_dir=study"),
]

# The command, with one ablation in place of eight.
CODE = """
import sys
from btcp_tf.core import interrupt
interrupt.watch()
from btcp_tf import study
from btcp_tf.experiment import studies
studies.ABLATION = (("epsilon", 0.2),)
sys.exit(study.main(sys.argv[1:]))
"""

CHILD = [sys.executable, "-m", "btcp_tf.experiment.cells"]

CELLS = ("digits-seed0", "digits-seed1", "ablation/digits-epsilon=0.2")


def environment(**more):
    """This process's, without what is pytest's: Ray's workers would take it over."""
    kept = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    one = dict.fromkeys(
        ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
    )
    return {**kept, **one, "PYTHONPATH": str(CHECKOUT), **more}


def start(folder, *more):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *WORDS, *more],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, seconds=180.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "expected it in time"
        time.sleep(0.1)


def children(folder):
    """The processes of runs of a study whose command was given in this folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_child = b"btcp_tf.experiment.cells" in (entry / "cmdline").read_bytes()
            if is_child and os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def cluster():
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if "PYTEST" in name]:
            patch.delenv(name)
        patch.setenv("PYTHONPATH", str(CHECKOUT))
        # Of its own, so that the study sets them and not the cluster.
        patch.delenv("OMP_NUM_THREADS", raising=False)
        head = {"num_cpus": 0, "include_dashboard": False}
        found = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            found.add_node(num_cpus=1)
        yield found
        found.shutdown()


def history(folder, name):
    with open(folder / "study" / name / "history.csv", newline="") as file:
        return list(csv.DictReader(file))


def without_times(rows):
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def assert_same_study(folder, other):
    for name in CELLS:
        mine, theirs = folder / "study" / name, other / "study" / name
        checkpoints = sorted(path.name for path in (theirs / "checkpoints").glob("*.npz"))
        assert checkpoints == sorted(path.name for path in (mine / "checkpoints").glob("*.npz"))
        assert "classifier.npz" in checkpoints
        for checkpoint in checkpoints:
            with (
                np.load(mine / "checkpoints" / checkpoint) as found,
                np.load(theirs / "checkpoints" / checkpoint) as expected,
            ):
                assert found.files == expected.files
                for key in found.files:
                    if found[key].dtype.kind in "fiu":
                        np.testing.assert_array_equal(found[key], expected[key], str((name, key)))
        for path in theirs.glob("predictions*.npz"):
            assert (mine / path.name).read_bytes() == path.read_bytes(), (name, path.name)
        assert (mine / "results.json").read_bytes() == (theirs / "results.json").read_bytes(), name
        assert without_times(history(folder, name)) == without_times(history(other, name))
    found, expected = (
        json.loads((place / "study" / "results.json").read_text()) for place in (folder, other)
    )
    for content in (found, expected):
        content.get("extra", content).pop("command")
    assert found == expected


@pytest.mark.servers
def test_a_study_that_loses_a_machine_a_run_and_its_command_is_that_of_one_machine(
    cluster, tmp_path
):
    plain = start(tmp_path / "plain")
    out, errors = plain.communicate(timeout=400)
    assert plain.returncode == 0, errors

    folder = tmp_path / "ray"
    begun = folder / "study" / "digits-seed0" / "checkpoints" / "classifier.npz"
    # The command is asked to end: its runs save their step and end with it.
    first = start(folder, f"--ray_address={cluster.address}")
    wait_for(begun.exists)
    first.send_signal(signal.SIGTERM)
    out, errors = first.communicate(timeout=60)
    assert first.returncode == 143, errors
    assert errors.strip().endswith("terminated; the same command goes on from here")
    assert not children(folder)
    log = (folder / "study" / "logs" / "digits-seed0.log").read_text()
    assert log.strip().endswith("terminated; the same command goes on from here")
    with np.load(begun) as saved:
        assert saved.files

    # A machine dies, and then a process of the other one.
    second = start(folder, f"--ray_address={cluster.address}")
    before = begun.stat().st_mtime_ns
    wait_for(lambda: len(children(folder)) == 2 and begun.stat().st_mtime_ns > before)
    dead, *_ = cluster.worker_nodes
    cluster.remove_node(dead, allow_graceful=False)
    wait_for(lambda: len(children(folder)) == 1)
    (left,) = children(folder)
    os.kill(left, signal.SIGKILL)
    cluster.add_node(num_cpus=1)
    out, errors = second.communicate(timeout=400)
    assert second.returncode == 0, errors
    # Ray's own words about the lost machine stand between.
    starts = ("[", "study/report.html", *(f"{name}: " for name in CELLS))
    lines = [line for line in out.splitlines() if line.startswith(starts)]
    assert [line for line in lines if "resumed after epoch" in line]
    assert len([line for line in lines if line.endswith(": killed by signal 9")]) == 1
    assert lines[-2:] == ["[3/3] ablation/digits-epsilon=0.2 is finished", "study/report.html"]
    assert not errors
    assert not children(folder)
    assert_same_study(folder, tmp_path / "plain")


@pytest.mark.servers
def test_a_run_that_fails_stops_no_other_and_a_machine_too_small_is_refused(cluster, tmp_path):
    folder = tmp_path / "ray"
    damaged = folder / "study" / "digits-seed0" / "checkpoints" / "classifier.npz"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PK")
    short = ["--classifier_epochs=1", "--estimator_epochs=1", "--finetune_epochs=0"]
    small = start(folder, f"--ray_address={cluster.address}", *short, "--ray_cpus=9")
    _, errors = small.communicate(timeout=60)
    assert small.returncode == 1
    assert errors == ("error: ray_cpus: expected at most 1, of the largest machine, received 9\n")
    done = start(folder, f"--ray_address={cluster.address}", *short, "--noablation")
    _, errors = done.communicate(timeout=200)
    assert done.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("error: digits-seed0: expected "), errors
    about = json.loads((folder / "study" / "results.json").read_text())
    assert list(about.get("extra", about)["failed"]) == ["digits-seed0"]

    # Without Ray the same study goes on.
    kept = folder / "study" / "digits-seed1" / "results.json"
    before = kept.stat().st_mtime_ns
    damaged.unlink()
    again = start(folder, *short, "--noablation")
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    assert kept.stat().st_mtime_ns == before


@pytest.mark.servers
def test_a_cluster_that_ends_with_the_study(tmp_path):
    pytest.importorskip("ray")
    short = ["--classifier_epochs=1", "--estimator_epochs=1", "--finetune_epochs=0", "--seeds=1"]
    done = start(tmp_path, "--ray_address=local", *short, "--noablation")
    out, errors = done.communicate(timeout=200)
    assert done.returncode == 0, errors
    assert "1 runs as tasks of Ray at local" in out
    assert (tmp_path / "study" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ray_address=ray://a:1"], "ray_address: expected"),
        (["--ray_address=here"], "ray_address: expected auto, local or HOST:PORT"),
        (["--ray_address=here:70000"], "a port from 1 to 65535, received 70000"),
        (["--ray_address=auto", "--ray_gpus=nan"], "ray_gpus"),
        (["--ray_cpus=2"], "ray_cpus, ray_gpus: expected ray_address beside them"),
        (["--ray_address=auto", "--ray_cpus=0"], "ray_cpus"),
    ],
)
def test_refuses_at_once(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        study.main(["--dataset=digits", *words])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_says_how_to_get_ray(capsys, monkeypatch):
    monkeypatch.setattr(ray_cells.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        study.main(["--dataset=digits", "--ray_address=auto"])
    assert end.value.code == 2
    assert 'received none; pip install ".[ray]"' in capsys.readouterr().err


def test_addresses_of_clusters():
    for address in ("auto", "local", "10.0.0.1:6379", "head.example:6379", "[::1]:6379"):
        assert ray_cells.Options(address).address == address


def test_an_error_of_the_program_is_no_death(tmp_path):
    """A run that ended by a signal would be tried again."""
    broken = pickle.dumps((tmp_path, "no cell"))
    done = subprocess.Popen(CHILD, cwd=CHECKOUT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ray_cells._wait(done, broken) == 1
    assert b"AttributeError" in done.stderr.read()


def test_follows_a_log_line_by_line_and_only_what_is_new(tmp_path):
    path = tmp_path / "one.log"
    path.write_text("old\n")
    follower = ray_cells._Follower(path)
    assert follower.lines() == []
    with open(path, "a") as file:
        file.write("first\n\nsec")
        file.flush()
        assert follower.lines() == ["first"]
        file.write("ond\n")
    assert follower.lines() == ["second"] and follower.lines() == []
    assert ray_cells._Follower(tmp_path / "none.log").lines() == []


def test_the_error_of_a_run_is_in_its_log(tmp_path):
    path = tmp_path / "one.log"
    path.write_text("error: of an earlier try\nepoch 1\nerror: no data\nbye\n")
    assert ray_cells._last_error(path, 25) == "no data"
    path.write_text("Traceback\nKeyError: 'x'\n")
    assert ray_cells._last_error(path, 0) == "KeyError: 'x'"
    path.write_text("")
    assert str(path) in ray_cells._last_error(path, 0)


@pytest.mark.parametrize(("deaths", "error"), [(2, ""), (9, "killed by signal 9")])
def test_a_run_whose_process_is_killed_is_tried_again(tmp_path, monkeypatch, deaths, error):
    """The fourth death is the last."""
    tries = tmp_path / "tries"
    code = (
        "import os, pathlib\n"
        f"file = pathlib.Path({str(tries)!r})\n"
        "count = len(file.read_text()) if file.exists() else 0\n"
        "file.write_text('x' * (count + 1))\n"
        f"count < {deaths} and os.kill(os.getpid(), 9)\n"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        ray_cells.subprocess, "Popen", lambda _, **more: popen([sys.executable, "-c", code], **more)
    )
    cell = cells.Cell("one", Config("digits"))
    assert ray_cells._carry_out(tmp_path, tmp_path, cell, {}, None) == error
    assert len(tries.read_text()) == (3 if deaths == 2 else 4)


def test_a_child_whose_parent_dies_ends(tmp_path):
    """It waits for a folder that this process holds; its parent's death is a SIGTERM."""
    cell = cells.Cell("one", Config("digits", output_dir=str(tmp_path / "one")))
    with files.folder_lock(tmp_path / "one"):
        child = subprocess.Popen(CHILD, cwd=CHECKOUT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdin.write(pickle.dumps((tmp_path, cell)))
        child.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(3)
        _, errors = child.communicate(timeout=20)  # Closes its standard input.
    assert child.returncode == 143
    # How far it came in three seconds, the machine decides.
    assert errors.decode().startswith("\nterminated")


def test_waits_for_a_folder_until_it_is_free(tmp_path):
    files.wait_until_free(tmp_path / "none", 60.0)
    (tmp_path / ".lock").touch()
    files.wait_until_free(tmp_path, 60.0)
    began = time.monotonic()
    with files.folder_lock(tmp_path):
        # Another open file: for the lock it is another process.
        files.wait_until_free(tmp_path, 0.6)
        assert time.monotonic() - began >= 0.6
        waiting = threading.Thread(target=files.wait_until_free, args=(tmp_path, 60.0))
        waiting.start()
        time.sleep(0.2)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()
