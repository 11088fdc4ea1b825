"""Small figures as SVG that stands inside a page: sharp at any zoom, in the page's own colors.

Pure functions from numbers to markup. Colors, dashes and sizes of letters are classes of the
page's style sheet, so that a figure follows it into the dark and onto a phone.
"""

import dataclasses
import html
from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT = 520, 304

_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 374, 50, 250

_POINTS = 160
"""Of a line: more are narrower than a pixel."""

_LONGEST = 12
"""Letters of the name of a line or class, which has to fit beside the plot on a phone, too."""

_APART = 21
"""Between the names of two lines, so that large letters do not touch either."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line with its name at its right end."""

    name: str
    x: np.ndarray
    """`[m]`, ascending."""
    y: np.ndarray
    """`[m]`."""
    look: str = "rest"
    """Class of the style sheet: "ours", "mcp", "third", "rest" or "guide"."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """What an axis shows, from `low` to `high`, in percent where `percent`."""

    title: str
    low: float = 0.0
    high: float = 1.0
    percent: bool = True


@dataclasses.dataclass(frozen=True)
class Point:
    """A point that stands out, and words about it."""

    x: float
    y: float
    words: Sequence[str]
    """One line or two."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines on two axes."""

    alt: str
    """What is seen, in words with numbers."""
    lines: Sequence[Line]
    x: Axis
    y: Axis
    points: Sequence[Point] = ()
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """x, low and high of an area, `[m]` each."""
    title: str = ""
    """What stands above it where there are several."""


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """How often a class is taken for another one."""

    alt: str
    """What is seen, in words with numbers."""
    counts: np.ndarray
    """`[k, k]` whole numbers, a row for each true class."""
    names: Sequence[str]
    """Of the classes, `[k]`."""
    title: str
    caption: str


_CELL = 30

_LETTER = 7.0
"""Width of a small letter, about."""


def matrix(content: Matrix) -> str:
    """The markup of a confusion matrix: right answers in one color, wrong ones in another."""
    counts = np.asarray(content.counts)
    names = content.names
    longest = min(max(map(len, names)), _LONGEST)
    left = 30 + _LETTER * longest
    upright = _LETTER * longest <= _CELL - 2
    top = 40 if upright else 28 + _LETTER * longest
    width, height = left + _CELL * len(names) + 1, top + _CELL * len(names) + 1
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    worst = (shares - np.diag(np.diag(shares))).max(initial=0.0) or 1.0
    parts = [
        f'<svg class="matrix" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'style="min-width:{0.85 * width:.0f}px;max-width:{1.35 * width:.0f}px" '
        f'aria-label="{_escape(content.alt)}">',
        _text(left, 13, "predicted", "tick", "start"),
        f'<g transform="translate(13,{top:.1f}) rotate(-90)">'
        f"{_text(0, 0, 'true', 'tick', 'end')}</g>",
    ]
    for place, name in enumerate(names):
        middle = _CELL * (place + 0.5)
        parts.append(_text(left - 6, top + middle + 4, name, "class", "end", _LONGEST))
        if upright:
            parts.append(_text(left + middle, top - 7, name, "class", "middle", _LONGEST))
        else:
            parts.append(
                f'<g transform="translate({left + middle + 4:.1f},{top - 6:.1f}) rotate(-90)">'
                f"{_text(0, 0, name, 'class', 'start', _LONGEST)}</g>"
            )
    for true, said in np.ndindex(counts.shape):
        x, y = left + _CELL * said, top + _CELL * true
        look = "right" if true == said else "wrong"
        share = float(shares[true, said]) / (1.0 if true == said else worst)
        # Letters on the darkest shade keep their contrast in both of the page's color schemes.
        parts.append(
            f'<rect class="ground" x="{x:.1f}" y="{y:.1f}" width="{_CELL}" height="{_CELL}"/>'
        )
        if counts[true, said]:
            parts.append(
                f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{_CELL}" height="{_CELL}" '
                f'fill-opacity="{0.08 + 0.37 * share:.3f}"><title>'
                f"{_escape(content.names[true])} taken for {_escape(content.names[said])}: "
                f"{counts[true, said]:,}</title></rect>"
            )
            shown = _short_count(int(counts[true, said]))
            parts.append(_text(x + _CELL / 2, y + _CELL / 2 + 4, shown, "cell", "middle"))
    return "".join(parts) + "</svg>"


def _short_count(count: int) -> str:
    """A count of at most four letters."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.0f}k" if count < 999_500 else f"{count / 1e6:.0f}M"


def chart(content: Chart) -> str:
    """The markup of a chart."""
    x, y = content.x, content.y

    def place(
        values: Sequence[float] | np.ndarray, axis: Axis, ends: tuple[int, int]
    ) -> np.ndarray:
        share = (np.asarray(values, np.float64) - axis.low) / ((axis.high - axis.low) or 1.0)
        return ends[0] + np.clip(share, 0, 1) * (ends[1] - ends[0])

    across, up = (_LEFT, _RIGHT), (_BOTTOM, _TOP)
    # Without a point nothing stands above the plot.
    top = 0 if content.points else 34
    parts = [
        f'<svg class="chart" viewBox="0 {top} {WIDTH} {HEIGHT - top}" role="img" '
        f'aria-label="{_escape(content.alt)}">'
    ]
    for tick in _ticks(y):
        (at,) = place([tick], y, up)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(_LEFT - 8, at + 5, _shown(tick, y), "tick", "end"))
    for tick in _ticks(x):
        (at,) = place([tick], x, across)
        parts.append(_text(at, _BOTTOM + 22, _shown(tick, x), "tick", "middle"))
    parts.append(_text(_LEFT, _BOTTOM + 46, x.title, "tick", "start"))
    if content.band is not None:
        at, low, high = (values[_thin(len(values))] for values in content.band)
        edge = list(zip(place(at, x, across), place(high, y, up), strict=True))
        edge += list(zip(place(at, x, across), place(low, y, up), strict=True))[::-1]
        parts.append(f'<path class="band" d="{_path(edge)}Z"/>')
    ends = []
    # Where a curve is not defined, as a hit rate without a hit, there is none.
    lines = [line for line in content.lines if np.isfinite([line.x, line.y]).all(axis=0).any()]
    for line in lines:
        defined = np.flatnonzero(np.isfinite([line.x, line.y]).all(axis=0))
        kept = defined[_thin(len(defined))]
        corners = list(zip(place(line.x[kept], x, across), place(line.y[kept], y, up), strict=True))
        parts.append(f'<path class="line {line.look}" d="{_path(corners)}"/>')
        ends.append(corners[-1][1])
    for line, at in zip(lines, _spread(ends), strict=True):
        parts.append(_text(_RIGHT + 8, at + 5, line.name, f"name {line.look}", "start", _LONGEST))
    for point in content.points:
        (px,), (py,) = place([point.x], x, across), place([point.y], y, up)
        parts.append(f'<circle class="point" cx="{px:.1f}" cy="{py:.1f}" r="6"/>')
        # Above the plot, where no line is, and on the side where there is room.
        anchor = "end" if px > (_LEFT + _RIGHT) / 2 else "start"
        parts.append(
            f'<line class="zero" x1="{px:.1f}" x2="{px:.1f}" y1="{_TOP - 4}" y2="{py - 8:.1f}"/>'
        )
        for height, words in zip((_TOP - 31, _TOP - 10), point.words, strict=False):
            parts.append(_text(px, height, words, "said", anchor))
    return "".join(parts) + "</svg>"


def forest(value: float, low: float, high: float, span: tuple[float, float]) -> str:
    """An interval and its middle beside zero, all on one scale; the numbers stand beside it.

    Args:
      value: The middle.
      low: Lower end.
      high: Upper end.
      span: What the width shows; it holds zero.
    """
    width = (span[1] - span[0]) or 1.0
    zero, left, at, right = (
        4 + 112 * (min(max(x, span[0]), span[1]) - span[0]) / width for x in (0.0, low, value, high)
    )
    return (
        '<svg class="forest" viewBox="0 0 120 14" aria-hidden="true">'
        f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="14"/>'
        f'<line class="ci-line" x1="{left:.1f}" x2="{right:.1f}" y1="7" y2="7"/>'
        f'<circle class="point" cx="{at:.1f}" cy="7" r="3.5"/></svg>'
    )


def signed_bar(value: float, largest: float) -> str:
    """A bar to the right of the middle for what is positive, else to its left."""
    reach = 28 * min(abs(value) / (largest or 1.0), 1.0)
    start = 30 if value > 0 else 30 - reach
    look = "raises" if value > 0 else "lowers"
    return (
        '<svg class="bar" viewBox="0 0 60 10" preserveAspectRatio="none" aria-hidden="true">'
        '<line class="zero" x1="30" x2="30" y1="0" y2="10"/>'
        f'<rect class="{look}" x="{start:.1f}" y="2" width="{reach:.1f}" height="6"/></svg>'
    )


def _ticks(axis: Axis) -> list[float]:
    """Round values, three to six of them."""
    span = (axis.high - axis.low) or 1.0
    power = 10.0 ** np.floor(np.log10(span / 5))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= 5.0001)
    first = np.ceil(axis.low / step - 1e-9)
    count = int(np.floor((axis.high + 1e-9 * span) / step) - first) + 1
    return [float(step * (first + number)) for number in range(count)]


def _shown(tick: float, axis: Axis) -> str:
    if axis.percent:
        return f"{100 * tick:.4g} %"
    return f"{tick:,.0f}" if axis.high >= 10 else f"{tick:.3g}"


def _thin(count: int) -> np.ndarray:
    """Which of so many points are drawn: the ends, and others evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(np.int64))


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of names: those of the lines' ends, moved down, then up, as far as they overlap."""
    order = np.argsort(heights, kind="stable")
    places = np.asarray(heights, np.float64)[order]
    for row in range(1, len(places)):
        places[row] = max(places[row], places[row - 1] + _APART)
    for row in range(len(places) - 1, -1, -1):
        below = places[row + 1] - _APART if row + 1 < len(places) else _BOTTOM
        places[row] = min(places[row], below)
    result = np.empty(len(places))
    result[order] = places
    return [float(place) for place in result]


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _text(
    x: float, y: float, words: str, look: str, anchor: str, longest: int | None = None
) -> str:
    """Words at a place; of those that are too long the beginning, and all where one points."""
    inside = _escape(words)
    if longest is not None and len(words) > longest:
        inside = f"{_escape(words[: longest - 1])}…<title>{_escape(words)}</title>"
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inside}</text>'


def _escape(words: str) -> str:
    return html.escape(words)
