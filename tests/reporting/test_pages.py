"""The same report as HTML, Markdown, CSV and LaTeX: nothing lost, nothing taken for markup."""

import csv
import dataclasses
import io
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from btcp_tf.reporting import drawing, pages
from btcp_tf.reporting.cells import Cell, Table
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.glance import Figure, Glance, State, Step
from btcp_tf.reporting.pages import Definitions, Details, Heading, Notes, Report
from btcp_tf.reporting.svg import Axis, Chart, Line, Point

ODD = "<b> & 100 % of a_b | $x^2$ \\ *"


def make_table(name="numbers"):
    return Table(
        name,
        f"caption {ODD}",
        {"method": "method", "auroc": "AUROC % ↑", "aurc": "AURC ×1000 ↓", "paper": "paper's"},
        [
            [
                ODD,
                Cell("91.00", 0.91, "[90.00, 92.00]", {"low": 0.9, "high": 0.92}, "better"),
                Cell("-7.10", -0.0071, "± 0.30", {"sd": 0.0003}),
                Cell("60.63", 60.63, paper=True),
            ],
            ["plain", Cell("n/a", math.nan), Cell("1.00", 0.001), Cell("–", math.nan, paper=True)],
        ],
    )


def make_drawing():
    figure, (ax,), _ = drawing.panels(1)
    ax.plot([0, 1])
    return Drawing("line", f"title {ODD}", f"about {ODD}", figure)


@pytest.fixture(scope="module")
def report():
    return Report(
        f"Title {ODD}",
        [f"note {ODD}"],
        [
            ("First", [pages.text("It is ", Cell("91 %", 0.91), f" of {ODD}."), Heading("Inside")]),
            ("Empty", []),
            ("Second", [make_table(), Details("more", [make_drawing(), make_table("folded")])]),
            ("Third", [Definitions([("Term", "name", ODD)]), Notes([f"late note {ODD}"])]),
        ],
    )


def words(element):
    return " ".join("".join(element.itertext()).split())


def test_html_is_well_formed_and_shows_all_text_as_text(report):
    tree = ElementTree.fromstring(pages.to_html(report).removeprefix("<!DOCTYPE html>"))
    assert ODD not in [element.tag for element in tree.iter()]
    assert not [words(b) for b in tree.iter("b") if "100 % of a_b" in words(b)]
    shown = words(tree)
    for piece in ("Title", "note", "caption", "title", "about", "late note"):
        assert f"{piece} {ODD}" in shown
    assert [words(h) for h in tree.iter("h2")] == ["What to know", "First", "Second", "Third"]
    named = {element.get("id") for element in tree.iter() if element.get("id")}
    assert {a.get("href").lstrip("#") for a in tree.find(".//nav").iter("a")} <= named
    assert [float(data.get("value")) for data in tree.iter("data")][:3] == [0.91, 0.91, -0.0071]
    line = next(line for line in tree.iter("tr") if words(line).startswith(ODD))
    assert words(line) == f"{ODD}91.00 [90.00, 92.00] better-7.10 ± 0.3060.63"
    # An interval with a verdict is drawn, too; a spread without one is not.
    assert len(list(line.iter("svg"))) == 1
    assert [words(x) for x in tree.iter("span") if x.get("class") == "verdict better"] == [
        "better"
    ] * 2
    arrows = [(x.text, x.get("title")) for x in tree.iter("span") if x.get("title")]
    assert arrows == [("↑", "higher is better"), ("↓", "lower is better")] * 2
    details = next(tree.iter("details"))
    assert len(list(details.iter("img"))) == 1 and len(list(details.iter("table"))) == 1


def test_html_needs_no_other_file(report):
    tree = ElementTree.fromstring(pages.to_html(report).removeprefix("<!DOCTYPE html>"))
    sources = [
        element.get(name)
        for element in tree.iter()
        for name in ("src", "href", "srcset", "poster", "action")
        if element.get(name)
    ]
    pictures = [source for source in sources if not source.startswith("#")]
    assert len(pictures) == 1 and pictures[0].startswith("data:image/png;base64,")
    assert not {element.tag for element in tree.iter()} & {"link", "iframe", "object"}
    [script] = tree.iter("script")
    assert not script.attrib and "fetch(" not in script.text and "import" not in script.text
    style = tree.find("head/style").text
    assert "url(" not in style and "@import" not in style


GLANCE = Glance(
    State("broken", f"word {ODD}"),
    f"line {ODD}",
    ["It accepts ", Cell("89.9", 0.899), f" of {ODD}."],
    [Figure("89.9 %", f"figure {ODD}"), Figure("2.87 %", "wrong"), Figure("67 %", "caught")],
    [Step(f"step {ODD}", f"command {ODD}"), Step("look", link="#first")],
    "chart",
    Chart(
        f"alt {ODD}",
        [Line(f"name {ODD}", np.array([0.0, 1.0]), np.array([0.0, 0.2]), "ours")],
        Axis("x"),
        Axis("y"),
        [Point(0.5, 0.1, (ODD, ODD))],
    ),
)


def test_the_first_screen_stands_before_all_else_and_escapes_all(report):
    html = pages.to_html(dataclasses.replace(report, glance=GLANCE))
    tree = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    first = tree.find(".//main/header")
    shown = words(first)
    for piece in ("word", "line", "figure", "step", "command", "name"):
        assert f"{piece} {ODD}" in shown.replace("\N{NO-BREAK SPACE}", " ")
    assert next(tree.find(".//main").iter()).find("*") is first
    assert first.find(".//p[@class='badge broken']/svg") is not None
    assert [x.get("aria-label") for x in first.iter("svg") if x.get("role")] == [f"alt {ODD}"]
    assert first.find(".//a[@href='#first']").text == "look"
    assert [float(x.get("value")) for x in first.iter("data")] == [0.899]
    assert "- **67 %** caught" in pages.to_markdown(dataclasses.replace(report, glance=GLANCE))


@pytest.mark.parametrize("name", ["holds", "broken", "open", "none"])
def test_every_state_has_a_shape_of_its_own_and_a_word(report, name):
    html = pages.to_html(
        dataclasses.replace(report, glance=dataclasses.replace(GLANCE, state=State(name, "so")))
    )
    tree = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    badge = tree.find(f".//p[@class='badge {name}']")
    assert words(badge) == "so" and badge.find("svg").get("aria-hidden") == "true"
    shapes = {"holds": "circle", "none": "rect", "broken": "path", "open": "path"}
    assert next(iter(badge.find("svg"))).tag == shapes[name]
    outline = next(iter(badge.find("svg"))).get("d", "")
    assert outline.count("L") == {"broken": 7, "open": 2}.get(name, 0)


def test_steps_are_replaced_in_a_page_that_has_them(tmp_path, report):
    path = tmp_path / "report.html"
    assert not pages.replace_steps(path, GLANCE.steps)
    path.write_text(pages.to_html(report), encoding="utf-8")
    assert not pages.replace_steps(path, GLANCE.steps)
    whole = dataclasses.replace(report, glance=GLANCE)
    path.write_text(pages.to_html(whole), encoding="utf-8")
    steps = [Step(f"another {ODD}")]
    for _ in range(2):
        assert pages.replace_steps(path, steps)
        after = dataclasses.replace(report, glance=dataclasses.replace(GLANCE, steps=steps))
        assert path.read_text(encoding="utf-8") == pages.to_html(after)


@pytest.mark.parametrize(
    ("note", "technical"),
    [
        ("tcp: few errors", True),
        ("tcp, btcp_finetuned: gamma = 1 is capped", True),
        ("residual: learned from 20 answers", True),
        ("fashion_mnist: part or stand-in", False),
        ("threshold: not achievable", False),
        ("One seed.", False),
        ("tcp, and more: x", False),
    ],
)
def test_notes_about_training_are_folded(note, technical):
    assert pages.is_technical(note) is technical
    html = pages.to_html(Report("t", [note, "One seed: plain."], []))
    tree = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    folded = "".join(words(part) for part in tree.iter("details"))
    assert (note in folded) is technical and note in words(tree)


def test_html_keeps_wide_content_in_boxes_that_scroll(report):
    tree = ElementTree.fromstring(pages.to_html(report).removeprefix("<!DOCTYPE html>"))
    boxes = [box for box in tree.iter("div") if box.get("class") == "scroll"]
    for tag in ("table", "img"):
        assert boxes and len(list(tree.iter(tag))) == sum(len(list(box.iter(tag))) for box in boxes)
    assert all(box.get("tabindex") == "0" and box.get("aria-label") for box in boxes)
    viewport = next(meta for meta in tree.iter("meta") if meta.get("name") == "viewport")
    assert viewport.get("content").startswith("width=device-width")


def test_markdown_escapes_and_links_the_figures(report):
    found = pages.to_markdown(report)
    odd = r"\<b\> & 100 % of a\_b \| $x^2$ \\ \*"
    assert found.startswith(
        f"# Title {odd}\n\n- note {odd}\n\n## First\n\nIt is **91 %** of {odd}."
    )
    assert (
        f"| {odd} | 91.00 \\[90.00, 92.00\\] better | -7.10 ± 0.30 | 60.63 |\n"
        "| plain | n/a | 1.00 | – |\n"
    ) in found
    assert "](figures/line.png)" in found
    assert f"- **Term** `name`: {odd}" in found and f"\n- late note {odd}\n" in found
    assert "## Empty" not in found


def test_csv_holds_exact_numbers():
    rows = list(csv.DictReader(io.StringIO(pages.to_csv(make_table()))))
    assert rows == [
        {
            "method": ODD,
            "auroc": "0.91",
            "auroc_low": "0.9",
            "auroc_high": "0.92",
            "auroc_verdict": "better",
            "aurc": "-0.0071",
            "aurc_sd": "0.0003",
            "paper": "60.63",
        },
        {
            "method": "plain",
            "auroc": "",
            "auroc_low": "",
            "auroc_high": "",
            "auroc_verdict": "",
            "aurc": "0.001",
            "aurc_sd": "",
            "paper": "",
        },
    ]


def test_latex_escapes_and_has_a_column_for_each_entry():
    found = pages.to_latex(make_table())
    odd = r"$<$b$>$ \& 100 \% of a\_b | \$x\textasciicircum{}2\$ \textbackslash{} *"
    assert rf"\caption{{caption {odd}}}" in found
    assert r"\begin{tabular}{lrrr}" in found
    assert r"method & AUROC \% $\uparrow$ & AURC $\times$1000 $\downarrow$ & paper's \\" in found
    assert rf"{odd} & 91.00 [90.00, 92.00] better & $-$7.10 $\pm$ 0.30 & 60.63 \\" in found


def test_write_report_writes_files_where_asked(tmp_path, report):
    page = pages.write_report(tmp_path / "all", report, files=True)
    assert page.read_text(encoding="utf-8") == pages.to_html(report)
    found = {str(path.relative_to(tmp_path / "all")) for path in tmp_path.rglob("*.*")}
    assert found == {
        "report.html",
        "report.md",
        "figures/line.png",
        "figures/line.pdf",
        *(f"tables/{name}.{end}" for name in ("numbers", "folded") for end in ("csv", "tex")),
    }
    pages.write_report(tmp_path / "page", report, files=False)
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == ["figures", "report.html"]
