"""Charts and confusion matrices as inline SVG: what they show, and where each part stands.

`templates/svg.html` turns the positions into markup. Colors, dashes and sizes of letters are
classes of the page's style sheet, so that a chart follows the page into dark mode and onto a phone.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

WIDTH, HEIGHT = 520, 304

LEFT, RIGHT, TOP, BOTTOM = 84, 374, 50, 250
"""The plot area of a chart."""

LONGEST = 12
"""Letters of the name of a line or class, which has to fit beside the plot even on a phone."""

CELL = 30
"""Side of a cell of a confusion matrix."""

_POINTS = 160  # Points of a line: more are narrower than a pixel.

_APART = 21  # Between the names of two lines, so that large letters do not touch either.

_LETTER = 7.0  # Approximate width of a small letter.


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
    method: str = ""
    """Method whose color, dashes and marker the line has in a PNG or PDF; "": a reference line."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """Title and range of an axis, in percent where `percent`."""

    title: str
    low: float = 0.0
    high: float = 1.0
    percent: bool = True

    def place(self, values: Sequence[float] | np.ndarray, start: int, end: int) -> np.ndarray:
        """Positions of values between two ends of the plot area; values outside are clipped."""
        share = (np.asarray(values, np.float64) - self.low) / ((self.high - self.low) or 1.0)
        return start + np.clip(share, 0, 1) * (end - start)

    def ticks(self) -> list[tuple[float, str]]:
        """Three to six round values and their labels."""
        span = (self.high - self.low) or 1.0
        power = 10.0 ** np.floor(np.log10(span / 5))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= 5.0001)
        first = np.ceil(self.low / step - 1e-9)
        count = int(np.floor((self.high + 1e-9 * span) / step) - first) + 1
        values = [float(step * (first + number)) for number in range(count)]
        return [(value, self._label(value)) for value in values]

    def _label(self, value: float) -> str:
        if self.percent:
            return f"{100 * value:.4g} %"
        return f"{value:,.0f}" if self.high >= 10 else f"{value:.3g}"


@dataclasses.dataclass(frozen=True)
class Point:
    """A highlighted point with its label."""

    x: float
    y: float
    label: Sequence[str]
    """One line or two."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines on two axes."""

    alt: str
    """Text for readers who do not see the chart, with its main numbers."""
    lines: Sequence[Line]
    x: Axis
    y: Axis
    points: Sequence[Point] = ()
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """x, low and high of an area, `[m]` each."""
    title: str = ""
    """Shown above the chart where a figure has several."""

    def x_at(self, value: float) -> float:
        return float(self.x.place([value], LEFT, RIGHT)[0])

    def y_at(self, value: float) -> float:
        return float(self.y.place([value], BOTTOM, TOP)[0])

    def corners(self, x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
        """Positions of a line's points, thinned out evenly to what can be seen."""
        count = len(x)
        kept = np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(np.int64))
        across, up = self.x.place(x[kept], LEFT, RIGHT), self.y.place(y[kept], BOTTOM, TOP)
        return list(zip(across.tolist(), up.tolist(), strict=True))

    def outline(self) -> list[tuple[float, float]]:
        """Corners of the band."""
        if self.band is None:
            return []
        x, low, high = self.band
        return self.corners(x, high) + self.corners(x, low)[::-1]

    def curves(self) -> Iterator[tuple[Line, list[tuple[float, float]], float]]:
        """Each line that has a finite point, its corners, and the height of its name."""
        drawn = []
        for line in self.lines:
            defined = np.isfinite([line.x, line.y]).all(axis=0)
            if defined.any():
                drawn.append((line, self.corners(line.x[defined], line.y[defined])))
        heights = _spread([corners[-1][1] for _, corners in drawn])
        for (line, corners), height in zip(drawn, heights, strict=True):
            yield line, corners, height


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of names at the ends of lines, moved down and then up until none overlap."""
    order = np.argsort(heights, kind="stable")
    places = np.asarray(heights, np.float64)[order]
    for row in range(1, len(places)):
        places[row] = max(places[row], places[row - 1] + _APART)
    for row in range(len(places) - 1, -1, -1):
        below = places[row + 1] - _APART if row + 1 < len(places) else BOTTOM
        places[row] = min(places[row], below)
    result = np.empty(len(places))
    result[order] = places
    return result.tolist()


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A confusion matrix: correct answers in one color, wrong ones in another."""

    alt: str
    """Text for readers who do not see the matrix, with its main numbers."""
    counts: np.ndarray
    """`[k, k]` whole numbers, one row per true class."""
    names: Sequence[str]
    """Class names, `[k]`."""
    title: str
    caption: str

    @property
    def _letters(self) -> float:
        return _LETTER * min(max(map(len, self.names)), LONGEST)

    @property
    def left(self) -> float:
        return 30 + self._letters

    @property
    def upright(self) -> bool:
        """Whether the names of the columns fit without being turned."""
        return self._letters <= CELL - 2

    @property
    def top(self) -> float:
        return 40 if self.upright else 28 + self._letters

    def rows(self) -> list[list[str]]:
        """The matrix as lines of a table, the name of the true class first."""
        return [
            [name, *map(str, counts)]
            for name, counts in zip(self.names, self.counts.tolist(), strict=True)
        ]

    def shares(self) -> np.ndarray:
        """Shade of each cell in [0, 1]: its share of the row, for errors beside the largest one."""
        counts = np.asarray(self.counts)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        right = np.diag(np.diag(shares))
        wrong = shares - right
        return right + wrong / (wrong.max(initial=0.0) or 1.0)


def short_count(count: int) -> str:
    """A count in at most four letters: 9999, 12k, 3M."""
    if count < 10_000:
        return str(count)
    return f"{count / 1e3:.0f}k" if count < 999_500 else f"{count / 1e6:.0f}M"


def forest(value: float, low: float, high: float, span: tuple[float, float]) -> list[float]:
    """Positions of zero, the lower end, the value and the upper end in a picture 120 wide.

    Args:
      value: The point estimate.
      low: Lower end of its interval.
      high: Upper end of its interval.
      span: Range that the picture covers; it includes zero.
    """
    axis = Axis("", *span)
    return axis.place([0.0, low, value, high], 4, 116).tolist()
