"""Figures in a page show the numbers they are given, inside their frame and as XML."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from btcp_tf.reporting import pages, svg
from btcp_tf.reporting.svg import HEIGHT, Axis, Chart, Line, Matrix


def make_chart(ends=(0.1, 0.1001, 0.2), top=0.25, count=1000):
    x = np.linspace(0, 1, count)
    lines = [Line(f"<{i}> & more", x, end * x, "rest") for i, end in enumerate(ends)]
    return Chart("it <rises> & rises", lines, Axis("x <&>"), Axis("y", 0.0, top))


def test_a_chart_is_xml_with_an_alternative_text():
    tree = ElementTree.fromstring(pages.markup("chart", make_chart()))
    assert tree.get("role") == "img" and tree.get("aria-label") == "it <rises> & rises"
    assert {"x <&>", "<0> & more", "0 %", "20 %"} <= {t.text for t in tree.iter("text")}


def test_a_long_name_of_a_line_is_shortened_and_others_are_not():
    x = np.linspace(0, 1, 9)
    names = ("a_column_with_a_long_name", "Mahalanobis")
    lines = [Line(name, x, x) for name in names]
    tree = ElementTree.fromstring(pages.markup("chart", Chart("", lines, Axis("x"), Axis("y"))))
    shown = [t for t in tree.iter("text") if t.get("class").startswith("name")]
    assert [text.text for text in shown] == ["a_column_wi…", "Mahalanobis"]
    assert [text.findtext("title") for text in shown] == ["a_column_with_a_long_name", None]


def test_lines_go_where_their_numbers_say():
    tree = ElementTree.fromstring(pages.markup("chart", make_chart(ends=(0.25,))))
    (path,) = tree.iter("path")
    points = np.array([list(map(float, p.split(","))) for p in path.get("d")[1:].split(" L")])
    assert len(points) <= 200
    grid = [line for line in tree.iter("line") if line.get("class") == "grid"]
    left, right = float(grid[0].get("x1")), float(grid[0].get("x2"))
    assert points[0][0] == left and points[-1][0] == right
    # The line of y = x / 4 is straight and ends at the top of its axis.
    slope = np.diff(points[:, 1]) / np.diff(points[:, 0])
    np.testing.assert_allclose(slope, slope.mean(), atol=0.1)
    tick = next(t for t in tree.iter("text") if t.text == "25 %")
    assert float(tick.get("y")) == pytest.approx(points[-1][1] + 5, abs=0.2)


def test_names_of_lines_do_not_cover_one_another():
    for ends in ((0.1, 0.1001, 0.2), (0.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.249)):
        tree = ElementTree.fromstring(pages.markup("chart", make_chart(ends)))
        names = [t for t in tree.iter("text") if t.get("class").startswith("name")]
        heights = sorted(float(name.get("y")) for name in names)
        assert (np.diff(heights) >= 20.9).all()
        assert 0 < heights[0] and heights[-1] <= HEIGHT
        by_end = [float(t.get("y")) for t in names]
        assert np.argsort(by_end, kind="stable")[0] == int(np.argmax(ends))


def test_an_interval_beside_zero():
    tree = ElementTree.fromstring(pages.markup("forest", 0.02, 0.01, 0.04, (-0.01, 0.04)))
    zero, line = tree.iter("line")
    (dot,) = tree.iter("circle")
    assert float(zero.get("x1")) < float(line.get("x1")) < float(dot.get("cx"))
    assert float(dot.get("cx")) < float(line.get("x2")) <= 120
    scale = (float(line.get("x2")) - float(zero.get("x1"))) / 0.04
    assert float(dot.get("cx")) == pytest.approx(float(zero.get("x1")) + 0.02 * scale, abs=0.2)
    assert "nan" not in pages.markup("forest", 0.0, 0.0, 0.0, (0.0, 0.0))


def test_bars_reach_as_far_as_their_share_and_to_their_side():
    sizes = {}
    for value in (2.0, 1.0, -2.0):
        (bar,) = ElementTree.fromstring(pages.markup("bar", value, 2.0)).iter("rect")
        sizes[value] = float(bar.get("x")), float(bar.get("width")), bar.get("class")
    assert sizes[2.0][1] == 2 * sizes[1.0][1] == sizes[-2.0][1]
    assert sizes[2.0][0] == 30 and sizes[-2.0][0] + sizes[-2.0][1] == 30
    assert sizes[2.0][2] != sizes[-2.0][2]


@pytest.mark.parametrize("high", [1e-4, 0.03, 0.11, 1.0, 37.0, 9_000.0])
def test_ticks_are_few_round_and_inside(high):
    tree = ElementTree.fromstring(
        pages.markup("chart", Chart("", [], Axis("x"), Axis("y", 0.0, high, percent=False)))
    )
    ticks = [t.text for t in tree.iter("text") if t.get("text-anchor") == "end"]
    values = [float(t.replace(",", "")) for t in ticks]
    assert 3 <= len(values) <= 7 and values[0] == 0 and values[-1] <= high * 1.001
    assert all(len(re.sub(r"[0.,e-]", "", t)) <= 3 for t in ticks)


def make_matrix(names=("a", "b <&>", "a very long name of a class"), counts=None):
    if counts is None:
        counts = np.array([[90, 10, 0], [2, 48, 0], [0, 12_345, 1]])
    return Matrix("it <is> seen", counts, names, "title", "caption")


def test_a_matrix_has_a_cell_for_each_count_in_its_place():
    tree = ElementTree.fromstring(pages.markup("matrix", make_matrix()))
    assert tree.get("aria-label") == "it <is> seen" and tree.get("role") == "img"
    rects = {}
    for rect in tree.iter("rect"):
        if rect.find("title") is not None:
            rects[rect.find("title").text.rpartition(": ")[0]] = rect
    assert len(rects) == 6
    wrong = rects["a taken for b <&>"], rects["b <&> taken for a"]
    assert [rect.get("class") for rect in wrong] == ["wrong", "wrong"]
    assert float(wrong[0].get("x")) > float(wrong[1].get("x"))
    assert float(wrong[0].get("y")) < float(wrong[1].get("y"))
    # 10 of 100 beside 2 of 50, and the worst row.
    shades = [float(rect.get("fill-opacity")) for rect in wrong]
    worst = float(rects["a very long name of a class taken for b <&>"].get("fill-opacity"))
    assert shades[0] > shades[1] and worst == max(
        float(rect.get("fill-opacity")) for rect in rects.values()
    )
    assert {"90", "10", "2", "48", "12k", "1"} <= {text.text for text in tree.iter("text")}


@pytest.mark.parametrize("names", [("0", "1"), ("cat", "a class of many letters"), ("W" * 40,) * 2])
def test_a_matrix_holds_its_names_inside_its_frame(names):
    tree = ElementTree.fromstring(pages.markup("matrix", make_matrix(names, np.eye(2, dtype=int))))
    _, _, width, height = map(float, tree.get("viewBox").split())
    for rect in tree.iter("rect"):
        assert float(rect.get("x")) + 30 <= width and float(rect.get("y")) + 30 <= height
        assert float(rect.get("x")) > 0 and float(rect.get("y")) > 0
    shown = [text.text for text in tree.iter("text") if text.get("class") == "class"]
    assert len(shown) == 4 and max(map(len, shown)) <= 12


def luminance(color):
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_letters_on_the_darkest_cell_have_contrast_in_both_schemes():
    style = (Path(svg.__file__).parent / "templates" / "page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+):(#\w{6}|#\w{3})", part)) for part in style.split("@media")]
    for scheme in schemes[:2]:
        full = {
            k: v if len(v) == 7 else "#" + "".join(2 * c for c in v[1:]) for k, v in scheme.items()
        }
        for look in ("good", "bad"):
            parts = [
                round(
                    0.55 * int(full["card"][p : p + 2], 16) + 0.45 * int(full[look][p : p + 2], 16)
                )
                for p in (1, 3, 5)
            ]
            light, dark = sorted(
                (luminance("#" + "".join(f"{c:02x}" for c in parts)), luminance(full["ink"])),
                reverse=True,
            )
            assert (light + 0.05) / (dark + 0.05) >= 4.5
