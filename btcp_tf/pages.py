"""How a report looks: one HTML page, one Markdown file, and tables as CSV and LaTeX.

A report is a title, caveats and sections of blocks; what stands in them is decided in
`btcp_tf.report`. Texts are escaped here and nowhere else.
"""

import base64
import csv
import dataclasses
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from btcp_tf.files import atomic_path
from btcp_tf.plots import Drawing, save_figures
from btcp_tf.tables import Cell, Table, Words


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: Sequence[Words]
    """Plain pieces, and numbers, which stand out."""


@dataclasses.dataclass(frozen=True)
class Notes:
    """Caveats that stand where they belong, and not before everything else."""

    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclasses.dataclass(frozen=True)
class Definitions:
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str, str]]
    """Term, its name for programs, its meaning."""


@dataclasses.dataclass(frozen=True)
class Details:
    """Blocks that are folded away until a reader asks for them."""

    summary: str
    blocks: Sequence["Block"]


Block = Text | Notes | Heading | Definitions | Details | Table | Drawing


@dataclasses.dataclass(frozen=True)
class Report:
    """What a reader is told, in order."""

    title: str
    notes: Sequence[str]
    """Caveats that stand before everything else."""
    sections: Sequence[tuple[str, Sequence[Block]]]
    """Headings and what stands below; a section without blocks is left out."""

    def blocks(self) -> Iterable[Block]:
        """All blocks of all sections, folded ones included."""
        pending = [block for _, blocks in self.sections for block in blocks]
        while pending:
            block = pending.pop(0)
            yield block
            if isinstance(block, Details):
                pending[:0] = block.blocks


def text(*words: Words) -> Text:
    """A paragraph of these pieces."""
    return Text(words)


def write_report(folder: Path, report: Report, *, files: bool) -> Path:
    """Writes `report.html` and `figures/`, and with `files` also `report.md` and `tables/`.

    Args:
      folder: Where.
      report: What.
      files: Whether to write more than the page and the figures.

    Returns:
      Path of the page.
    """
    drawings = [block for block in report.blocks() if isinstance(block, Drawing)]
    save_figures(folder / "figures", drawings)
    contents = {"report.html": to_html(report)}
    if files:
        contents["report.md"] = to_markdown(report)
        for block in report.blocks():
            if isinstance(block, Table):
                contents[f"tables/{block.name}.csv"] = to_csv(block)
                contents[f"tables/{block.name}.tex"] = to_latex(block)
    for name, content in contents.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return folder / "report.html"


# HTML ------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """One page that needs no other file and no network: figures are embedded as PNG."""
    body = "".join(
        f'<section><h2 id="{anchor}">{_escape(heading)}</h2>{"".join(map(_html, blocks))}</section>'
        for anchor, heading, blocks in (
            (re.sub(r"[^a-z0-9]+", "-", heading.lower()), heading, blocks)
            for heading, blocks in report.sections
            if blocks
        )
    )
    notice = _html_notes(report.notes)
    title = _escape(report.title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{title}</title><style>{_CSS}</style></head>\n"
        f"<body><main><h1>{title}</h1>{notice}{body}</main></body></html>\n"
    )


def _html_notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{_escape(note)}</li>" for note in notes)
    return f'<ul class="note" aria-label="Caveats">{items}</ul>' if items else ""


def _escape(value: object) -> str:
    return html.escape(str(value))


def _html(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{''.join(map(_html_words, block.words))}</p>"
    if isinstance(block, Notes):
        return _html_notes(block.texts)
    if isinstance(block, Heading):
        return f"<h3>{_escape(block.text)}</h3>"
    if isinstance(block, Definitions):
        entries = (
            f"<dt>{_escape(term)} <code>{_escape(name)}</code></dt><dd>{_escape(words)}</dd>"
            for term, name, words in block.entries
        )
        return f"<dl>{''.join(entries)}</dl>"
    if isinstance(block, Details):
        content = "".join(map(_html, block.blocks))
        return f"<details><summary>{_escape(block.summary)}</summary>{content}</details>"
    return _html_table(block) if isinstance(block, Table) else _html_figure(block)


def _html_words(words: Words) -> str:
    if isinstance(words, str):
        return _escape(words)
    number = f"<strong>{_html_number(words)}</strong>"
    return " ".join(filter(None, (number, _html_beside(words))))


def _html_number(cell: Cell) -> str:
    """A value as printed, with the exact one beside it for programs."""
    shown = _escape(cell.text)
    if cell.paper:
        return f'<span class="paper">{shown}</span>'
    return shown if cell.value is None else f'<data value="{cell.value!r}">{shown}</data>'


def _html_beside(cell: Cell) -> str:
    parts = []
    if cell.spread:
        parts.append(f'<span class="ci">{_escape(cell.spread)}</span>')
    if cell.word:
        kind = cell.word.replace(" ", "-")
        parts.append(f'<span class="verdict {kind}">{_escape(cell.word)}</span>')
    return " ".join(parts)


def _html_cell(cell: Words) -> str:
    if isinstance(cell, str):
        return _escape(cell)
    return " ".join(filter(None, (_html_number(cell), _html_beside(cell))))


def _html_table(table: Table) -> str:
    """A table in a box of its own that scrolls."""
    head = "".join(
        f'<th scope="col">{_html_heading(heading)}</th>' for heading in table.columns.values()
    )
    body = "".join(
        f'<tr><th scope="row">{_html_heading(str(first))}</th>'
        f"{''.join(f'<td>{_html_cell(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in table.lines
    )
    return (
        f"{_scroll(table.caption)}<table><caption><span>{_escape(table.caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_heading(heading: str) -> str:
    shown = _escape(heading)
    for arrow, better in (("↑", "higher"), ("↓", "lower")):
        words = f"{better} is better"
        mark = f'<span title="{words}" aria-label="{words}">{arrow}</span>'
        shown = re.sub(f" {arrow}$", f"&#160;{mark}", shown)
    # A unit stays with its name.
    return shown.replace(" %", "&#160;%")


def _html_figure(drawing: Drawing) -> str:
    image = base64.b64encode(drawing.png).decode()
    # Panels keep a readable width; on a narrow screen the box scrolls, not the page.
    width = f"min-width:{19 * drawing.columns}rem;max-width:{30 * drawing.columns}rem"
    return (
        f"<figure><h3>{_escape(drawing.title)}</h3>"
        f'{_scroll(drawing.title)}<img src="data:image/png;base64,{image}" style="{width}" '
        f'alt="{_escape(drawing.title)}"/></div>'
        f"<figcaption>{_escape(drawing.caption)}</figcaption></figure>"
    )


def _scroll(label: str) -> str:
    # A box that scrolls must be reachable by keyboard and have a name.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(label)}">'


_CSS = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1a1a1a;font:1rem/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;overflow-wrap:break-word}
main{max-width:72rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0 1rem}
h2{font-size:1.3rem;margin:2.5rem 0 .75rem;padding-bottom:.3rem;border-bottom:2px solid #0b4f7a}
h3{font-size:1.05rem;margin:1.5rem 0 .4rem}
p,dd,figcaption,.note{max-width:46rem}
.note{background:#fff4d6;border-left:.35rem solid #b36b00;margin:0 0 1rem;
padding:.75rem 1rem .75rem 2rem}
.scroll{overflow-x:auto;margin:.5rem 0 1.25rem}
.scroll:focus-visible{outline:3px solid #0b4f7a;outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#4a4a4a;font-size:.9rem;padding:.25rem 0}
caption span{display:block;position:sticky;left:0;width:max-content;
max-width:min(46rem,calc(100vw - 2rem))}
th,td{padding:.4rem .8rem .4rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #d9d9d9}
thead th{border-bottom:2px solid #6b6b6b;font-size:.9rem}
tbody th{font-weight:600;position:sticky;left:0;background:#fff}
.ci{color:#4a4a4a;font-size:.85rem;white-space:nowrap;display:inline-block}
.verdict{font-size:.85rem;white-space:nowrap}
.better{color:#00573f;font-weight:600}
.worse{color:#8c2f00;font-weight:600}
.not-distinguishable{color:#4a4a4a}
.paper{color:#4a4a4a;font-style:italic}
figure{margin:0 0 2rem}
figure img{display:block;width:100%;height:auto}
figcaption{color:#3a3a3a;font-size:.95rem}
summary{cursor:pointer;font-weight:600;padding:.4rem 0}
dt{font-weight:600;margin-top:.6rem}
dd{margin:0 0 0 1rem}
code{font-size:.9em}
figure .scroll{margin-bottom:.25rem}
@media (max-width:40rem){h1{font-size:1.4rem}table{font-size:.9rem}
thead th,td,tbody th{padding-right:.5rem}
td .ci{display:block;font-size:.75rem}td .verdict{white-space:normal}}
@media print{.scroll{overflow:visible}figure,table{break-inside:avoid}}
"""


# Markdown --------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """The report as Markdown with tables of GitHub's kind; figures are those in `figures/`."""
    parts = [f"# {_plain(report.title)}"]
    if report.notes:
        parts.append(_markdown_notes(report.notes))
    for heading, blocks in report.sections:
        if blocks:
            parts += [f"## {_plain(heading)}", *map(_markdown, blocks)]
    return "\n\n".join(parts) + "\n"


def _markdown_notes(notes: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(note)}" for note in notes)


def _plain(text: object) -> str:
    """Text whose signs mean themselves in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", str(text)).replace("\n", " ")


def _markdown(block: Block) -> str:
    if isinstance(block, Text):
        return "".join(
            _plain(words)
            if isinstance(words, str)
            else " ".join(filter(None, (f"**{words.text}**", _plain(_beside(words)))))
            for words in block.words
        )
    if isinstance(block, Notes):
        return _markdown_notes(block.texts)
    if isinstance(block, Heading):
        return f"### {_plain(block.text)}"
    if isinstance(block, Definitions):
        return "\n".join(
            f"- **{_plain(term)}** `{name}`: {_plain(words)}" for term, name, words in block.entries
        )
    if isinstance(block, Details):
        return "\n\n".join([f"### {_plain(block.summary)}", *map(_markdown, block.blocks)])
    if isinstance(block, Table):
        return _markdown_table(block)
    return (
        f"### {_plain(block.title)}\n\n![{_plain(block.title)}](figures/{block.name}.png)\n\n"
        f"{_plain(block.caption)}"
    )


def _beside(cell: Cell) -> str:
    return " ".join(filter(None, (cell.spread, cell.word)))


def _markdown_table(table: Table) -> str:
    lines = [[*map(_plain, table.columns.values())], ["---"] * len(table.columns)]
    lines += [[_plain(cell) for cell in line] for line in table.lines]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_plain(table.caption)}\n\n{shown}"


# CSV and LaTeX ---------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Exact numbers under the columns' names for programs.

    What stands beside a number has columns of its own: `NAME_sd`, or `NAME_low` and `NAME_high`,
    and `NAME_verdict`. Not a number and what is missing are empty.
    """
    cells = [
        [cell if isinstance(cell, Cell) else Cell(cell) for cell in line] for line in table.lines
    ]
    heads, columns = [], []
    for place, name in enumerate(table.columns):
        column = [line[place] for line in cells]
        found = {
            name: [cell.text if cell.value is None else _exact(cell.value) for cell in column],
            **{
                f"{name}_{key}": [_exact(cell.exact.get(key)) for cell in column]
                for key in ("sd", "low", "high")
            },
            f"{name}_verdict": [cell.word for cell in column],
        }
        for head, values in found.items():
            if head == name or any(values):
                heads.append(head)
                columns.append(values)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return buffer.getvalue()


def _exact(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(value)


def to_latex(table: Table) -> str:
    """A `table` with a `tabular` of booktabs' rules: `\\usepackage{booktabs}` shows it."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        _tex_line(table.columns.values()),
        r"\midrule",
        *map(_tex_line, table.lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_line(cells: Iterable[Words]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "²": "$^2$",
    "³": "$^3$",
    "–": "--",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
}


def _tex(text: object) -> str:
    words = "".join(_TEX.get(sign, sign) for sign in str(text))
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", words)
