"""Line plots as SVG, for docs/performance.md.

A plot has a line per side with the medians, and a thin bar through each point from the least to the most round. It brings its
own colours for light and dark pages, names its lines and their last values where they end, and says in words (`desc`) what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH: Final = 780
HEIGHT: Final = 360
LEFT: Final = 64
RIGHT: Final = 210
TOP: Final = 64
BOTTOM: Final = 52
TICKS: Final = 5
WIDE: Final = 30.0
"""Points that are further apart than this (largest to smallest) need more than a linear axis."""
LABEL_HEIGHT: Final = 16

_STYLE: Final = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a; }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328; }
  .name { font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
  .spread { stroke-width: 1.5; opacity: 0.55; }
  .s0 { stroke: #0969da; } .f0 { fill: #0969da; }
  .s1 { stroke: #bc4c00; } .f1 { fill: #bc4c00; }
  .s2 { stroke: #1a7f37; } .f2 { fill: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .title { fill: #f0f6fc; }
    .grid { stroke: #3d444d; }
    .s0 { stroke: #58a6ff; } .f0 { fill: #58a6ff; }
    .s1 { stroke: #f0883e; } .f1 { fill: #f0883e; }
    .s2 { stroke: #3fb950; } .f2 { fill: #3fb950; }
  }
"""


class Point(NamedTuple):
    """The median of the rounds at a place, and how far they were apart."""

    x: float
    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Line:
    """One side's points."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class _Axes:
    """From values to places in the picture."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    x_values: Sequence[float]
    y_values: Sequence[float]


def line_plot(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """The picture as text; there must be a point."""
    lines = [line for line in lines if line.points]
    assert lines, f"nothing to draw for {title!r}"
    axes = _axes(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(_in_words(x_label, y_label, lines))}</desc>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text x="16" y="46">{escape(y_label)}</text>',
        *_grid(axes, x_label),
    ]
    for number, line in enumerate(lines):
        parts += _draw(number, line, axes)
    parts += _names(lines, axes)
    return "\n".join([*parts, "</svg>", ""])


def _axes(lines: Sequence[Line]) -> _Axes:
    xs = sorted({point.x for line in lines for point in line.points})
    ticks = nice_ticks(max(point.most for line in lines for point in line.points))
    height = HEIGHT - TOP - BOTTOM

    def y(value: float) -> float:
        return TOP + height * (1 - value / ticks[-1])

    return _Axes(_x_axis(xs), y, xs, ticks)


def _x_axis(xs: Sequence[float]) -> Callable[[float], float]:
    """Linear where the points are close together, logarithmic where they are not, in equal steps where 0 is one of them."""
    width = WIDTH - LEFT - RIGHT
    positive = [x for x in xs if x > 0]
    if len(xs) == 1:
        return lambda _: LEFT + width / 2
    if not positive or max(positive) / min(positive) <= WIDE:
        return lambda x: LEFT + width * (x - xs[0]) / (xs[-1] - xs[0])
    if len(positive) == len(xs):
        span = math.log(xs[-1] / xs[0])
        return lambda x: LEFT + width * math.log(x / xs[0]) / span
    return lambda x: LEFT + width * xs.index(x) / (len(xs) - 1)


def nice_ticks(highest: float) -> list[float]:
    """From 0 to at least this, in about `TICKS` steps of 1, 2, 2.5 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.8)
    count = math.ceil(highest / step - 1e-9)
    return [number * step for number in range(count + 1)]


def _grid(axes: _Axes, x_label: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in axes.y_values:
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, number_text(value), "end"))
    below = [_text(axes.x(x), bottom + 18, number_text(x), "middle") for x in axes.x_values]
    return [*parts, *below, _text((LEFT + right) / 2, HEIGHT - 12, x_label, "middle")]


def _draw(number: int, line: Line, axes: _Axes) -> list[str]:
    places = [(axes.x(point.x), axes.y(point.median)) for point in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="line s{number}" points="{path}"/>']
    for point, (x, y) in zip(line.points, places, strict=True):
        least, most = axes.y(point.least), axes.y(point.most)
        parts.append(
            f'<line class="spread s{number}" x1="{x:.1f}" x2="{x:.1f}" y1="{least:.1f}" y2="{most:.1f}"/>'
        )
        parts.append(f'<circle class="f{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return parts


def _names(lines: Sequence[Line], axes: _Axes) -> list[str]:
    """Each line's name and last value behind its last point, moved apart where they would meet."""
    wanted = sorted((axes.y(line.points[-1].median), n) for n, line in enumerate(lines))
    parts = []
    lowest = -math.inf
    for y, number in wanted:
        lowest = max(y, lowest + LABEL_HEIGHT)
        x = axes.x(lines[number].points[-1].x) + 10
        last = number_text(lines[number].points[-1].median)
        name = escape(f"{lines[number].name}: {last}")
        parts.append(f'<text class="name f{number}" x="{x:.1f}" y="{lowest + 4:.1f}">{name}</text>')
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def number_text(value: float) -> str:
    """A number as short as it can be read."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _in_words(x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    told = (
        f"{line.name}: "
        + ", ".join(f"{number_text(p.median)} at {number_text(p.x)}" for p in line.points)
        for line in lines
    )
    return f"{y_label} against {x_label}. " + ". ".join(told) + "."
