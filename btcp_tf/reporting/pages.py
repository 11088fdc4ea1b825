"""How a report looks: one HTML page, one Markdown file, and tables as CSV and LaTeX.

A report is a title, a first screen, caveats and sections of blocks; what stands in them is decided
in `btcp_tf.report` and `btcp_tf.monitor`. The page's frame is in `templates/`; Jinja escapes all
texts there, and Markdown, CSV and LaTeX are escaped here.
"""

import base64
import csv
import dataclasses
import functools
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from btcp_tf.core.files import atomic_path
from btcp_tf.evaluation.keys import Predictor
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import drawing, svg
from btcp_tf.reporting.cells import Cell, Table, Words, label, printed_u
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.gallery import Gallery
from btcp_tf.reporting.glance import Glance, Step
from btcp_tf.reporting.svg import Matrix

if TYPE_CHECKING:
    import jinja2
    import markupsafe


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


Block = Text | Notes | Heading | Definitions | Details | Gallery | Table | Matrix | Drawing


@dataclasses.dataclass(frozen=True)
class Report:
    """What a reader is told, in order."""

    title: str
    notes: Sequence[str]
    """Caveats that stand right after the first screen, the technical ones folded."""
    sections: Sequence[tuple[str, Sequence[Block]]]
    """Headings and what stands below; a section without blocks is left out."""
    glance: Glance | None = None
    """The first screen."""

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
    drawing.save_figures(folder / "figures", drawings)
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


def to_html(report: Report) -> str:
    """One page that needs no other file and no network."""
    sections = [
        (_anchor(heading), heading, blocks) for heading, blocks in report.sections if blocks
    ]
    plain = [note for note in report.notes if not is_technical(note)]
    technical = [note for note in report.notes if is_technical(note)]
    page = _environment().get_template("page.html")
    return page.render(report=report, sections=sections, plain=plain, technical=technical)


def replace_steps(path: Path, steps: Sequence[Step]) -> bool:
    """Puts other steps into the place of those that a page names under "What to do next".

    Args:
      path: A page of `to_html`.
      steps: The new ones.

    Returns:
      Whether the page has that place.
    """
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    start, end = (page.find(mark) for mark in _STEPS)
    if not 0 <= start < end:
        return False
    rendered = str(_environment().get_template("steps.html").render(steps=steps))
    with atomic_path(path) as temporary:
        temporary.write_text(page[:start] + rendered + page[end + len(_STEPS[1]) :], "utf-8")
    return True


_STEPS = ("<!-- steps -->", "<!-- end of steps -->")
"""What stands around the steps of a page; no text of a user's can hold it, as it is escaped."""


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def is_technical(note: str) -> bool:
    """Whether a note is about the training of a method and not about what a reader may conclude.

    Such notes begin with the names of what was trained, as "tcp, btcp: …".
    """
    names = note.partition(": ")[0].split(", ")
    return all(Predictor.from_text(name).method in METHODS for name in names)


@functools.cache
def _environment() -> "jinja2.Environment":
    """The templates and what they call."""
    # Late: it takes a tenth of a second, which `--help` need not wait for.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "anchor": _anchor,
        "heading": _html_heading,
        "kind": lambda block: type(block).__name__,
        "exact": repr,
        "chart": lambda chart: _safe(svg.chart(chart)),
        "matrix": lambda matrix: _safe(svg.matrix(matrix)),
        "png": lambda content: base64.b64encode(content).decode(),
        "forests": _forests,
        "u": printed_u,
        "label": label,
        "bar": lambda value, largest: _safe(svg.signed_bar(value, largest)),
    }
    return environment


def _safe(markup: str) -> "markupsafe.Markup":
    """What `svg` made and escaped itself."""
    import markupsafe

    return markupsafe.Markup(markup)


def _html_heading(heading: str) -> "markupsafe.Markup":
    """A column's heading whose arrow has a name, and whose unit stays with it."""
    import markupsafe

    better = {"↑": "higher", "↓": "lower"}.get(heading[-1:])
    words = heading.removesuffix(f" {heading[-1:]}") if better else heading
    shown = markupsafe.escape(words).replace(" %", "\N{NO-BREAK SPACE}%")
    if better:
        mark = markupsafe.Markup(
            '\N{NO-BREAK SPACE}<span role="img" title="{0}" aria-label="{0}">{1}</span>'
        )
        shown += mark.format(f"{better} is better", heading[-1])
    return shown


def _forests(table: Table) -> list[list["markupsafe.Markup | str"]]:
    """For each entry of a table the picture of its interval, "" where there is none.

    Differences have one, that is, what has an interval and a verdict; those of a column share their
    scale.
    """
    spans: dict[int, tuple[float, float]] = {}
    for line in table.lines:
        for place, cell in enumerate(line):
            if _is_difference(cell):
                low, high = spans.get(place, (0.0, 0.0))
                spans[place] = min(low, cell.exact["low"]), max(high, cell.exact["high"])
    return [
        [
            _safe(svg.forest(cell.value, cell.exact["low"], cell.exact["high"], spans[place]))
            if _is_difference(cell)
            else ""
            for place, cell in enumerate(line)
        ]
        for line in table.lines
    ]


def _is_difference(cell: Words) -> TypeGuard[Any]:
    return isinstance(cell, Cell) and bool(cell.word) and "low" in cell.exact


def to_markdown(report: Report) -> str:
    """The report as Markdown with tables of GitHub's kind; figures are those in `figures/`."""
    parts = [f"# {_plain(report.title)}"]
    if report.glance:
        parts += _markdown_glance(report.glance)
    if report.notes:
        parts.append(_markdown_notes(report.notes))
    for heading, blocks in report.sections:
        if blocks:
            parts += [f"## {_plain(heading)}", *map(_markdown, blocks)]
    return "\n\n".join(parts) + "\n"


def _markdown_glance(glance: Glance) -> list[str]:
    shown = [f"- **{_plain(figure.value)}** {_plain(figure.words)}" for figure in glance.figures]
    return [_markdown(Text([*glance.sentence, f" ({glance.state.word})"])), "\n".join(shown)]


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
    if isinstance(block, Gallery):
        return "\n".join(f"- {_plain(card.alt)}, u {printed_u(card.u)}" for card in block.cards)
    if isinstance(block, Table):
        return _markdown_table(block)
    if isinstance(block, Matrix):
        return f"### {_plain(block.title)}\n\n{_markdown_matrix(block)}"
    return (
        f"### {_plain(block.title)}\n\n![{_plain(block.title)}](figures/{block.name}.png)\n\n"
        f"{_plain(block.caption)}"
    )


def _beside(cell: Cell) -> str:
    return " ".join(filter(None, (cell.spread, cell.word)))


def _markdown_matrix(matrix: Matrix) -> str:
    """A matrix as a table under its caption."""
    lines: list[list[Words]] = [
        [name, *map(str, counts)]
        for name, counts in zip(matrix.names, matrix.counts.tolist(), strict=True)
    ]
    columns = {"": "", **{str(place): name for place, name in enumerate(matrix.names)}}
    return _markdown_table(Table("", matrix.caption, columns, lines))


def _markdown_table(table: Table) -> str:
    lines = [[*map(_plain, table.columns.values())], ["---"] * len(table.columns)]
    lines += [[_plain(cell) for cell in line] for line in table.lines]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_plain(table.caption)}\n\n{shown}"


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
