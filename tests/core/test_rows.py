"""Rows that come in batches, in memory or in a file."""

import gc
import os

import numpy as np
import pytest
from machine import anonymous_mib, room

from btcp_tf.core import rows
from btcp_tf.core.rows import Rows


@pytest.mark.parametrize("largest", [0, 500, 2**20])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_rows_are_those_that_were_added(largest, dtype, monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "LARGEST", largest)
    monkeypatch.setattr(rows.tempfile, "tempdir", str(tmp_path))
    wanted = np.random.default_rng(0).normal(size=(97, 3, 4)).astype(dtype)
    found = Rows()
    for start in range(0, 97, 10):
        found.add(wanted[start : start + 10])
    array = found.array()
    assert type(array) is np.ndarray and array.dtype == dtype
    np.testing.assert_array_equal(array, wanted)
    array[0] = 1  # It may be written to.
    assert os.listdir(tmp_path) == []


def test_a_part_that_is_no_block_of_memory_is_stored_in_order(monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 0)
    wanted = np.arange(24.0).reshape(6, 4)
    found = Rows()
    found.add(wanted[:3].T.copy().T)
    found.add(np.repeat(wanted[3:], 2, axis=1)[:, ::2])
    np.testing.assert_array_equal(found.array(), wanted)


def test_text_stays_in_memory(monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 0)
    found = Rows()
    found.add(np.array([["a"], ["b"]], object))
    found.add(np.array([["c"]], object))
    assert found.array().tolist() == [["a"], ["b"], ["c"]]


def test_large_rows_take_no_memory_of_their_own(monkeypatch):
    """Anonymous memory, that is: the system may write what is mapped to its file any time."""
    monkeypatch.setattr(rows, "LARGEST", 2**20)

    batch = np.ones((1024, 256), np.float32)  # 1 MiB.
    gc.collect()
    before, found = anonymous_mib(), Rows()
    for _ in range(64):
        found.add(batch)
    array = found.array()
    assert len(array) == 64 * 1024 and array[-1].sum() == 256
    # 64 MiB are in the file; what pieces of 4 MiB leave in the heap is not always given back.
    assert anonymous_mib() - before < 32


@pytest.mark.parametrize("largest", [0, 2**20])
@pytest.mark.parametrize("piece", [1, 100, 2**20])
@pytest.mark.parametrize("shape", [(97, 3, 4), (97,), (1, 50)])
def test_what_is_made_in_pieces_is_what_is_made_at_once(
    largest, piece, shape, monkeypatch, tmp_path
):
    monkeypatch.setattr(rows, "LARGEST", largest)
    monkeypatch.setattr(rows, "_PIECE", piece)
    monkeypatch.setattr(rows.tempfile, "tempdir", str(tmp_path))
    random = np.random.default_rng(0)
    x, y = random.normal(size=shape).astype(np.float32), random.normal(size=len(np.zeros(shape)))
    cuts = list(rows.pieces(x))
    assert [number for cut in cuts for number in range(cut.start, cut.stop)] == [*range(len(x))]
    assert all(x[cut].nbytes <= piece or cut.stop - cut.start == 1 for cut in cuts)

    found = rows.in_pieces(lambda a, b: a.reshape(len(a), -1).sum(axis=1) + b, x, y)
    np.testing.assert_array_equal(found, x.reshape(len(x), -1).sum(axis=1) + y)
    assert rows.equal(x, x.copy()) and rows.all_finite(x)
    x.flat[-1] = np.inf
    assert not rows.equal(x, np.zeros_like(x)) and not rows.all_finite(x)
    numbers, mask = random.integers(0, len(x), 200), random.random(len(x)) < 0.5
    for wanted in (numbers, mask, np.zeros(len(x), bool)):
        array = rows.take(x, wanted)
        assert type(array) is np.ndarray and array.dtype == x.dtype
        np.testing.assert_array_equal(array, x[wanted])
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "LARGEST", 2**20)
    monkeypatch.setattr(rows.tempfile, "tempdir", str(tmp_path))
    batch = np.ones((1024, 256), np.float32)  # 1 MiB.
    with room(4 * 2**20), pytest.raises(rows.NoRoomError) as caught:
        found = Rows()
        for _ in range(16):
            found.add(batch)
    message = str(caught.value)
    assert message.startswith(f"TMPDIR: expected room for arrays of more than 1 MiB in {tmp_path}")
    assert "set TMPDIR to a folder on another disk" in message and "\n" not in message
    assert os.listdir(tmp_path) == []
