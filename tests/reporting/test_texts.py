"""Sentences of reports take the values that they are given, and none is left over."""

import string
import tomllib
from pathlib import Path

import pytest

from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import texts
from btcp_tf.reporting.cells import Cell

FOLDER = Path(texts.__file__).parent
TEXTS = tomllib.loads((FOLDER / "templates" / "texts.toml").read_text(encoding="utf-8"))


def test_cells_stay_cells_and_numbers_are_formatted():
    gain = Cell("+1.00", 0.01)
    pieces = texts.pieces("study.ood_none", ood="<mnist>", mcp="MCP", btcp=["; BTCP ", gain])
    assert pieces[1] == "<mnist>" and pieces[-2] is gain and pieces[-1] == "."
    assert texts.text("study.errors", n=12345).startswith("errors of 12,345 test answers")
    # An empty value leaves nothing behind.
    assert "" not in texts.pieces("study.ood_none", ood="x", mcp="MCP", btcp="")


def test_lines_of_the_file_are_one_line_of_a_report():
    assert "\n" not in texts.text("notes.paper") and "  " not in texts.text("notes.paper")


def test_a_figure_of_a_data_set_is_named_by_it():
    assert texts.figure("shift")[:2] == ("shift", "Covariate shift")
    stem, title, _ = texts.figure("risk_coverage__of_a_study", "digits")
    assert (stem, title) == ("risk_coverage_digits", "Risk and coverage: digits")


def test_a_value_or_text_that_is_missing_is_named():
    with pytest.raises(KeyError, match="seeds"):
        texts.text("notes.few_seeds")
    with pytest.raises(KeyError, match="nothing"):
        texts.text("notes.nothing")


def test_every_text_is_used():
    code = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    assert set(TEXTS["methods"]) <= set(METHODS)
    for section in TEXTS.keys() - {"methods"}:
        for name in TEXTS[section]:
            key = name if section in ("figures", "tables") else f"{section}.{name}"
            assert f'"{key}"' in code, f"{section}.{name}"


def test_fields_have_names():
    def strings(entry):
        return (
            [entry] if isinstance(entry, str) else [x for e in entry.values() for x in strings(e)]
        )

    for text in strings(TEXTS):
        for _, field, _, conversion in string.Formatter().parse(text):
            assert field is None or field.isidentifier()
            assert conversion is None or not conversion
