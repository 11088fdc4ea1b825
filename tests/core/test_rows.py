"""Rows that come in batches, in memory or in a file."""

import gc
import os

import numpy as np
import pytest

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

    def anonymous():
        with open("/proc/self/status") as file:
            [line] = [line for line in file if line.startswith("RssAnon")]
        return int(line.split()[1]) / 1024

    if not os.path.exists("/proc/self/status"):
        pytest.skip("reads /proc")
    batch = np.ones((1024, 256), np.float32)  # 1 MiB.
    gc.collect()
    before, found = anonymous(), Rows()
    for _ in range(64):
        found.add(batch)
    array = found.array()
    assert len(array) == 64 * 1024 and array[-1].sum() == 256
    assert anonymous() - before < 16
