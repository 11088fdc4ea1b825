import dataclasses
import json
import os
from typing import NamedTuple

import numpy as np
import pytest

from btcp_tf.core import json_files


class Pair(NamedTuple):
    low: float
    high: np.ndarray


@dataclasses.dataclass
class Summary:
    rows: int
    pairs: tuple[Pair, ...]


def test_values_become_what_json_knows():
    value = {1: Summary(2, (Pair(np.float64(0.5), np.array([True])),)), "x": [np.int32(3), None]}
    assert json_files.plain(value) == {
        "1": {"rows": 2, "pairs": [{"low": 0.5, "high": [True]}]},
        "x": [3, None],
    }


def test_numbers_that_json_does_not_know():
    values = [np.nan, np.array([np.inf, 1]), -np.inf]
    assert json_files.plain(values) == [None, [None, 1.0], None]
    assert json_files.plain(values, infinity=True) == [None, ["Infinity", 1.0], "-Infinity"]


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "new" / "a.json"
    json_files.write(path, {"b": "ü", "a": np.nan}, indent=1, sort_keys=True)
    assert path.read_text(encoding="utf-8") == '{\n "a": null,\n "b": "ü"\n}\n'
    with pytest.raises(TypeError):
        json_files.write(path, {"a": object()})
    assert json.loads(path.read_bytes()) == {"a": None, "b": "ü"}
    assert os.listdir(path.parent) == ["a.json"]
