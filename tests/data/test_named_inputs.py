"""Inputs by name, and tables and columns of pandas as one input."""

import numpy as np
import pandas
import pytest

from btcp_tf.data import named_inputs

COLUMNS = {
    "texts": (pandas.Series(["fine", "poor"]), ["fine", "poor"]),
    "objects": (pandas.Series(["fine", "poor"], dtype=object), ["fine", "poor"]),
    "an array of texts": (pandas.Series(["fine", "poor"]).array, ["fine", "poor"]),
    "numbers": (pandas.Series([1.5, 2.0], index=[7, 9]), [1.5, 2.0]),
    "whole numbers with a missing one": (pandas.Series([1, None], dtype="Int64"), [1.0, np.nan]),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_column_of_pandas_is_one_input(case):
    given, wanted = COLUMNS[case]
    found = named_inputs.by_name(given, ())
    assert isinstance(found, np.ndarray) and found.shape == (2,)
    np.testing.assert_array_equal(found, np.array(wanted, found.dtype))


def test_a_column_of_one_input_is_not_several():
    with pytest.raises(
        ValueError, match="expected the inputs a and b, received one of type ndarra"
    ):
        named_inputs.by_name(COLUMNS["numbers"][0], ["a", "b"])


def test_a_table_of_pandas_is_one_input_or_several():
    table = pandas.DataFrame({"a": [1, 2], "b": [0.5, None]})
    np.testing.assert_array_equal(named_inputs.by_name(table, ()), [[1, 0.5], [2, np.nan]])
    several = named_inputs.by_name(table, ["b", "a"])
    assert [*several] == ["b", "a"] and several["a"].tolist() == [1, 2]
