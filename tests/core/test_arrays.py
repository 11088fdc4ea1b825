import gc
import io
import os
import zipfile

import numpy as np
import pytest
from machine import anonymous_mib, room

from benchmarks import hostile
from btcp_tf.core import archives, arrays, rows

ROWS = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


@pytest.fixture(params=["savez", "savez_compressed", "save"])
def stored(request, tmp_path):
    if request.param == "save":
        np.save(tmp_path / "x.npy", ROWS)
        return arrays.stored_array(tmp_path / "x.npy")
    getattr(np, request.param)(tmp_path / "x.npz", other=ROWS[:1], x=ROWS)
    return arrays.stored_array(tmp_path / "x.npz", "x")


@pytest.fixture(params=["in memory", "in files"])
def anywhere(request, monkeypatch):
    """Arrays that are read into memory, and those that are large enough to go into files."""
    if request.param == "in files":
        monkeypatch.setattr(rows, "LARGEST", 0)
        monkeypatch.setattr(rows, "_PIECE", 30)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_all_arrays_of_an_npz_file(tmp_path, save, anywhere, monkeypatch):
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr(rows.tempfile, "tempdir", str(files))
    wanted = {
        "x": ROWS,
        "y": np.arange(256).astype(np.uint8).reshape(64, 2, 2),
        "big-endian": np.arange(9).astype(">i4"),
        "columns": np.asfortranarray(ROWS),
        "transposed": ROWS.T,
        "names": np.array(["a", "ü"]),
        "scalar": np.array(1.5),
        "none": ROWS[:0],
    }
    save(tmp_path / "a.npz", **wanted)
    found = arrays.read_npz(tmp_path / "a.npz")
    assert list(found) == arrays.array_names(tmp_path / "a.npz") == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_what_is_no_npz_file_of_arrays_is_one_error(tmp_path, anywhere):
    path = tmp_path / "a.npz"
    np.savez(path, x=ROWS, y=ROWS)
    whole = path.read_bytes()
    middle = len(whole) // 2
    np.save(tmp_path / "one.npy", ROWS)
    np.savez(tmp_path / "objects.npz", x=np.array([{}]))
    np.savez(tmp_path / "words.npz", x=ROWS)
    with zipfile.ZipFile(tmp_path / "words.npz", "a") as archive:
        archive.writestr("words.txt", "words")
    damaged = {
        "cut": whole[:middle],
        "changed": whole[:200] + bytes([whole[200] ^ 0xFF]) + whole[201:],
        "pickled": b"\x80\x04K\x01.",
        "empty": b"",
        "single": (tmp_path / "one.npy").read_bytes(),
        "objects": (tmp_path / "objects.npz").read_bytes(),
        "others": (tmp_path / "words.npz").read_bytes(),
    }
    for name, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(ValueError) as caught:
            dict(arrays.read_npz(path, "here"))
        told = str(caught.value)
        assert told.startswith("here: expected an npz file, received "), name
        assert told.isprintable() and len(told) < 300
    with pytest.raises(FileNotFoundError):
        arrays.read_npz(tmp_path / "absent.npz")


def test_a_large_array_takes_no_memory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 2**20)

    np.savez(tmp_path / "a.npz", x=np.ones((64, 2**20), np.uint8))
    gc.collect()
    before = anonymous_mib()
    array = arrays.read_npz(tmp_path / "a.npz")["x"]
    assert array.shape == (64, 2**20) and array[-1].sum() == 2**20
    # 64 MiB are in the file; what pieces of 4 MiB leave in the heap is not always given back.
    assert anonymous_mib() - before < 32


def test_a_full_disk_is_no_fault_of_the_npz_file(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 2**20)
    np.savez(tmp_path / "a.npz", x=np.ones((64, 2**20), np.uint8))
    with room(2**24):
        with pytest.raises(rows.NoRoomError, match="^TMPDIR: expected room"):
            arrays.read_npz(tmp_path / "a.npz")["x"]


@pytest.mark.parametrize("size", [1, 4, 10, 99])
def test_stored_arrays_are_read_in_batches(stored, size):
    assert (len(stored), stored.shape, stored.dtype) == (10, (10, 3), np.float32)
    for start in (0, 3, 10):
        found = list(stored.batches(start, size))
        assert [len(rows) for rows in found[:-1]] == [size] * (len(found) - 1)
        np.testing.assert_array_equal(np.concatenate([ROWS[:0], *found]), ROWS[start:])
    stored.verify()


def test_a_file_that_is_cut_off_meanwhile_is_an_error_and_no_crash(stored):
    batches = stored.batches(0, 2)
    np.testing.assert_array_equal(next(batches), ROWS[:2])
    # Small files are in buffers by now: their next reader sees the change.
    os.truncate(stored.path, 100)
    with pytest.raises(ValueError, match="expected the whole array x, received"):
        list(stored.batches(2, 2))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array(["a"]), "numbers, received dtype <U1"),
        (np.array([{}]), "numbers, received dtype object"),
        (np.zeros((0, 3)), "at least one input"),
        (np.array(1.0), r"shape \[n, ...\]"),
        (np.asfortranarray(ROWS), "numpy.ascontiguousarray"),
    ],
)
def test_arrays_that_cannot_be_read_row_by_row_are_refused(tmp_path, array, reason):
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(ValueError, match=reason):
        arrays.stored_array(tmp_path / "a.npz", "x")


@pytest.mark.parametrize(
    "method, times", [(zipfile.ZIP_DEFLATED, 900), (zipfile.ZIP_BZIP2, 100_000)]
)
def test_a_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch, method, times):
    monkeypatch.setattr(archives, "FLOOR", 2**20)
    path, size = tmp_path / "a.npz", 2**24
    hostile.npz(path, size, method, y=ROWS)
    assert path.stat().st_size < size / times + 1000
    found = arrays.read_npz(path)
    # What nobody asks for does no harm.
    assert list(found) == ["x", "y"] and found.kind("x") == ((size,), np.uint8)
    np.testing.assert_array_equal(found["y"], ROWS)
    for read in (lambda: found["x"], lambda: arrays.stored_array(path, "x")):
        with pytest.raises(ValueError) as caught:
            read()
        assert str(path) in str(caught.value) and "claim to be 16,777,344" in str(caught.value)
        assert "numpy.savez" in str(caught.value)
    # As the remedy says.
    np.savez(path, x=np.zeros(size, np.uint8))
    assert arrays.read_npz(path)["x"].sum() == 0


def test_more_rows_than_there_are_take_no_memory(tmp_path):
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": True, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100))
    with pytest.raises(ValueError, match="100 bytes in place of 4,000,000,000,000"):
        arrays.read_npz(tmp_path / "a.npz")["x"]


def test_only_what_is_asked_for_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, x=ROWS, y=ROWS)
    read = []
    member = arrays._member
    monkeypatch.setattr(arrays, "_member", lambda *a: read.append(a[-1]) or member(*a))
    found = arrays.read_npz(path)
    assert "y" in found and len(found) == 2 and found.get("z") is None and read == []
    assert found["y"] is found["y"]
    assert read == ["y"]
    # A file that is replaced meanwhile stays what it was.
    np.savez(tmp_path / "b.npz", x=ROWS + 1)
    (tmp_path / "b.npz").replace(path)
    np.testing.assert_array_equal(found["x"], ROWS)
