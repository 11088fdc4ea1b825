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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from btcp_tf.core import csv_cells
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


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    pieces: Sequence[Words]
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


@dataclasses.dataclass(frozen=True)
class Include:
    """Text that is the same on all pages of a kind, for HTML alone."""

    template: str
    """A file of `templates/`."""


Block = (
    Text | Notes | Heading | Definitions | Include | Details | Gallery | Table | Matrix | Drawing
)


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything on a page, in order."""

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


def text(*pieces: Words) -> Text:
    """A paragraph of these pieces."""
    return Text(pieces)


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
    # Late: it takes a tenth of a second, which `--help` need not wait for.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=jinja2.select_autoescape(["html", "xml"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "anchor": _anchor,
        "kind": lambda block: type(block).__name__,
        "exact": repr,
        "png": lambda content: base64.b64encode(content).decode(),
        "px": "{:.1f}".format,
        "u": printed_u,
        "label": label,
        "spans": _spans,
        "md": _escape_markdown,
        "tex": _tex,
    }
    environment.filters |= filters
    environment.globals["svg"] = svg
    return environment


def render(template: str, **content: Any) -> str:
    """A file of `templates/`, filled in; texts are escaped in HTML and XML."""
    return _environment().get_template(template).render(content)


def markup(macro: str, *arguments: Any) -> str:
    """The SVG of a chart, matrix, interval or bar, by a macro of `templates/svg.html`."""
    return str(getattr(_environment().get_template("svg.html").module, macro)(*arguments))


def _spans(table: Table) -> list[tuple[float, float] | None]:
    """For each column the range, zero included, of the intervals that have a verdict."""
    spans: list[tuple[float, float] | None] = []
    for column in zip(*table.lines, strict=True):
        ends = [
            end
            for cell in column
            if isinstance(cell, Cell) and cell.word and "low" in cell.exact
            for end in (cell.exact["low"], cell.exact["high"])
        ]
        spans.append((min(0.0, *ends), max(0.0, *ends)) if ends else None)
    return spans


def to_markdown(report: Report) -> str:
    """The report as Markdown with tables of GitHub's kind; figures are those in `figures/`."""
    page = _environment().get_template("report.md").render(report=report)
    # Templates leave more empty lines than one between two blocks.
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def _escape_markdown(text: object) -> str:
    """Text on one line in which no character is Markdown."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", str(text)).replace("\n", " ")


def to_csv(table: Table) -> str:
    """Exact numbers under the columns' names for programs.

    What stands beside a number has columns of its own: `NAME_sd`, or `NAME_low` and `NAME_high`,
    and `NAME_verdict`. Not a number and what is missing are empty.
    """
    columns: dict[str, list[str]] = {}
    for place, name in enumerate(table.columns):
        cells = [line[place] for line in table.lines]
        column = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        columns[name] = [
            csv_cells.safe(cell.text) if cell.value is None else _exact(cell.value)
            for cell in column
        ]
        beside = {
            key: [_exact(cell.exact.get(key)) for cell in column] for key in ("sd", "low", "high")
        }
        beside["verdict"] = [cell.word for cell in column]
        columns |= {f"{name}_{key}": values for key, values in beside.items() if any(values)}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()


def _exact(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(value)


def to_latex(table: Table) -> str:
    """A `table` with a `tabular` of booktabs' rules: `\\usepackage{booktabs}` shows it."""
    return _environment().get_template("table.tex").render(table=table)


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
    escaped = "".join(_TEX.get(sign, sign) for sign in str(text))
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped)
