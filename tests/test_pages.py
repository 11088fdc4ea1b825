"""The same report as HTML, Markdown, CSV and LaTeX: nothing lost, nothing taken for markup."""

import csv
import io
import math
import xml.etree.ElementTree as ElementTree

import pytest

from btcp_tf import pages, plots
from btcp_tf.pages import Definitions, Details, Heading, Notes, Report, text
from btcp_tf.tables import Cell, Table

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
    figure, (ax,), _ = plots.panels(1)
    ax.plot([0, 1])
    return plots.Drawing("line", f"title {ODD}", f"about {ODD}", figure)


@pytest.fixture(scope="module")
def report():
    return Report(
        f"Title {ODD}",
        [f"note {ODD}"],
        [
            ("First", [text("It is ", Cell("91 %", 0.91), f" of {ODD}."), Heading("Inside")]),
            ("Empty", []),
            ("Second", [make_table(), Details("more", [make_drawing(), make_table("folded")])]),
            ("Third", [Definitions([("Term", "name", ODD)]), Notes([f"late note {ODD}"])]),
        ],
    )


def words(element):
    return " ".join("".join(element.itertext()).split())


def test_html_is_well_formed_and_shows_all_text_as_text(report):
    tree = ElementTree.fromstring(pages.to_html(report).removeprefix("<!DOCTYPE html>"))
    assert not list(tree.iter("b"))
    shown = words(tree)
    for piece in ("Title", "note", "caption", "title", "about", "late note"):
        assert f"{piece} {ODD}" in shown
    assert [words(h) for h in tree.iter("h2")] == ["First", "Second", "Third"]
    assert [float(data.get("value")) for data in tree.iter("data")][:3] == [0.91, 0.91, -0.0071]
    line = next(line for line in tree.iter("tr") if words(line).startswith(ODD))
    assert words(line) == f"{ODD}91.00 [90.00, 92.00] better-7.10 ± 0.3060.63"
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
    assert len(sources) == 1 and sources[0].startswith("data:image/png;base64,")
    assert not {element.tag for element in tree.iter()} & {"script", "link", "iframe", "object"}
    style = tree.find("head/style").text
    assert "url(" not in style and "@import" not in style


def test_html_keeps_wide_content_in_boxes_that_scroll(report):
    tree = ElementTree.fromstring(pages.to_html(report).removeprefix("<!DOCTYPE html>"))
    boxes = [box for box in tree.iter("div") if box.get("class") == "scroll"]
    for tag in ("table", "img"):
        assert len(list(tree.iter(tag))) == sum(len(list(box.iter(tag))) for box in boxes)
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
