import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from machine import room

from btcp_tf.core import files, wording


def test_replaces_the_file_only_on_a_clean_exit(tmp_path):
    path = tmp_path / "sub" / "file.txt"
    with files.atomic_path(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "one"
    assert os.listdir(path.parent) == ["file.txt"]


def test_keeps_the_ending_and_the_usual_permissions(tmp_path):
    plain = tmp_path / "plain.npz"
    plain.touch()
    with files.atomic_path(tmp_path / "file.npz") as temporary:
        assert temporary.suffix == ".npz"
    assert (tmp_path / "file.npz").stat().st_mode == plain.stat().st_mode


def test_lock_refuses_a_second_process_and_dies_with_the_first(tmp_path):
    hold = (
        "import sys, time\n"
        "from btcp_tf.files import folder_lock\n"
        "with folder_lock(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RuntimeError, match="which another run holds"), files.folder_lock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with files.folder_lock(tmp_path):
        pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_in_which_nothing_was_written_is_removed_after_an_error(tmp_path, error):
    def fail(folder, name=""):
        with pytest.raises(error), files.folder_lock(folder):
            if name:
                (folder / name).touch()
            raise error

    fail(tmp_path / "a" / "b")
    assert not os.listdir(tmp_path)
    fail(tmp_path / "a" / "b", "run.log")
    assert sorted(os.listdir(tmp_path / "a" / "b")) == [".lock", "run.log"]
    (tmp_path / "c").mkdir()
    fail(tmp_path / "c")
    assert not os.listdir(tmp_path / "c")
    # Nobody's lock but one's own.
    with files.folder_lock(tmp_path / "d"):
        with pytest.raises(RuntimeError), files.folder_lock(tmp_path / "d"):
            pass
        assert os.listdir(tmp_path / "d") == [".lock"]


def test_a_lock_that_its_holder_removes_meanwhile_is_none(tmp_path, monkeypatch):
    def removed(*_):
        (tmp_path / ".lock").unlink()

    monkeypatch.setattr("fcntl.flock", removed)
    with pytest.raises(RuntimeError, match="which another run holds"), files.folder_lock(tmp_path):
        pass


def test_a_lock_is_held_once_and_not_of_a_file_that_was_removed(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.touch()
    with files.locked(path) as first, files.locked(path) as second, files.locked(tmp_path) as other:
        assert (first, second, other) == (True, False, True)
    with files.locked(path) as again:
        assert again
    with pytest.raises(FileNotFoundError), files.locked(tmp_path / "absent"):
        pass
    monkeypatch.setattr("fcntl.flock", lambda *_: path.unlink())
    with files.locked(path) as removed:
        assert not removed


def test_lock_sweeps_what_a_killed_writer_left(tmp_path):
    kill = (
        "import os, signal, sys\n"
        "from btcp_tf.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "checkpoints" / "file.npz"
    subprocess.run([sys.executable, "-c", kill, path], check=False)
    assert len(os.listdir(path.parent)) == 1
    mine = [tmp_path / ".notes-20240101.txt", tmp_path / "checkpoints" / ".notes-20240101.txt"]
    for other in mine:
        other.touch()
    with files.folder_lock(tmp_path):
        assert os.listdir(path.parent) == [mine[1].name]
    assert all(other.exists() for other in mine)


def test_a_place_for_a_folder_is_looked_at_and_not_made(tmp_path):
    files.check_place("where", tmp_path / "a" / "b")
    assert not os.listdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for folder, reason in (
        ("file", "it is a file"),
        ("file/a/b", f"{tmp_path}/file is a file"),
        ("nowhere", "it is a file"),
    ):
        with pytest.raises(ValueError) as caught:
            files.check_place("where", tmp_path / folder)
        wanted = f"where: expected a folder that can be written, received '{tmp_path}/{folder}': "
        assert str(caught.value) == wanted + reason


@pytest.mark.parametrize("as_given", [str, Path])
@pytest.mark.parametrize("scheme", ["gs", "s3", "hdfs", "file", "abfs"])
def test_addresses_of_other_places_become_no_folders(tmp_path, monkeypatch, as_given, scheme):
    monkeypatch.chdir(tmp_path)
    place = as_given(f"{scheme}://bucket/x.npz")
    openings = [
        lambda: files.as_path("output_dir", place),
        lambda: files.check_place("output_dir", place),
        lambda: files.check_folder("output_dir", place),
        lambda: files.folder_lock(place).__enter__(),
        lambda: files.atomic_path(place).__enter__(),
    ]
    for opening in openings:
        with pytest.raises(ValueError, match=f"expected a path on this machine, .*{scheme}:/"):
            opening()
    assert not os.listdir(tmp_path)


def test_an_error_of_the_system_names_the_file_that_is_meant(tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("before")
    cases = (
        lambda temporary: temporary.write_bytes(bytes(100_000)),
        # NumPy's own count, in place of what the system says.
        lambda temporary: np.zeros(100_000).tofile(temporary),
    )
    for write in cases:
        with pytest.raises(OSError) as caught, room(10_000), files.atomic_path(path) as temporary:
            write(temporary)
        told = wording.one_line(caught.value)
        assert told.startswith("the disk is full (") and f": {path}); what was saved before" in told
    # Another file's name stays.
    with pytest.raises(FileNotFoundError, match="nowhere"), files.atomic_path(path):
        open(tmp_path / "nowhere")
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("another", [False, True])
def test_a_folder_that_is_renamed_meanwhile_does_not_become_two(tmp_path, another):
    folder, renamed = tmp_path / "run", tmp_path / "old"
    with pytest.raises(RuntimeError, match="renamed or removed meanwhile"):
        with files.folder_lock(folder):
            with files.atomic_path(folder / "checkpoints" / "1") as temporary:
                temporary.write_text("1")
            folder.rename(renamed)
            if another:
                folder.mkdir()
                (folder / "another").touch()
            with files.atomic_path(folder / "checkpoints" / "2") as temporary:
                temporary.write_text("2")
    assert folder.exists() == another and not (folder / "checkpoints").exists()
    # Under its name again, all goes on.
    if another:
        shutil.rmtree(folder)
    renamed.rename(folder)
    with files.folder_lock(folder), files.atomic_path(folder / "checkpoints" / "2") as temporary:
        temporary.write_text("2")
    assert sorted(os.listdir(folder / "checkpoints")) == ["1", "2"]
