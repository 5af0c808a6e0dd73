"""Line plots as SVG, for docs/performance-details.md.

A plot has a line per side with the medians, and a thin bar through each point from the smallest to
the largest round. A line joins two points only if no other side was measured between them: what was
not measured is not drawn. An isolated point shows its value; each line shows its name and last
value at its end. `desc` describes the plot in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from fencepost.base.svg import MARGIN, document, rule, text, text_width

WIDTH: Final = 780
HEIGHT: Final = 360
LEFT: Final = 68
TOP: Final = 76
BOTTOM: Final = 56
TICKS: Final = 5
WIDE: Final = 30.0
"""Points further apart than this (largest to smallest) need more than a linear axis."""
LABEL_HEIGHT: Final = 16
LABEL_GAP: Final = 10
"""Distance between a point and its label, and between the axis and the first point."""


class Point(NamedTuple):
    """The median of the rounds at a position, and their spread."""

    x: float
    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Line:
    """One side's points."""

    name: str
    points: Sequence[Point]

    @property
    def label(self) -> str:
        return f"{self.name}: {number_text(self.points[-1].median)}"


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps values to positions in the picture."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    x_values: Sequence[float]
    y_values: Sequence[float]
    right: float

    def are_neighbours(self, one: Point, other: Point) -> bool:
        """Whether no side was measured between two points."""
        return not any(one.x < x < other.x for x in self.x_values)


def line_plot(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """The picture as text; there must be a point."""
    lines = [line for line in lines if line.points]
    assert lines, f"nothing to draw for {title!r}"
    axes = _axes(lines)
    parts = [
        text(MARGIN, 30, title, "title"),
        text(MARGIN, 52, y_label),
        *_grid(axes, x_label),
    ]
    for number, line in enumerate(lines):
        parts += _draw(number, line, axes)
    parts += _names(lines, axes)
    return document(WIDTH, HEIGHT, title, _in_words(x_label, y_label, lines), parts)


def _axes(lines: Sequence[Line]) -> _Axes:
    xs = sorted({point.x for line in lines for point in line.points})
    ticks = nice_ticks(max(point.most for line in lines for point in line.points))
    height = HEIGHT - TOP - BOTTOM
    longest = max(text_width(line.label, bold=True) for line in lines)
    right = WIDTH - MARGIN - LABEL_GAP - longest

    def y(value: float) -> float:
        return TOP + height * (1 - value / ticks[-1])

    return _Axes(_x_axis(xs, right), y, xs, ticks, right)


def _x_axis(xs: Sequence[float], right: float) -> Callable[[float], float]:
    """Linear for close points, logarithmic for others, in equal steps if one of them is 0."""
    first, width = LEFT + LABEL_GAP, right - LEFT - LABEL_GAP
    positive = [x for x in xs if x > 0]
    if len(xs) == 1:
        return lambda _: first + width / 2
    if not positive or max(positive) / min(positive) <= WIDE:
        return lambda x: first + width * (x - xs[0]) / (xs[-1] - xs[0])
    if len(positive) == len(xs):
        span = math.log(xs[-1] / xs[0])
        return lambda x: first + width * math.log(x / xs[0]) / span
    return lambda x: first + width * xs.index(x) / (len(xs) - 1)


def nice_ticks(highest: float) -> list[float]:
    """From 0 to at least this, in about `TICKS` steps of 1, 2, 2.5 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.8)
    count = math.ceil(highest / step - 1e-9)
    return [number * step for number in range(count + 1)]


def _grid(axes: _Axes, x_label: str) -> Iterator[str]:
    for value in axes.y_values:
        y = axes.y(value)
        yield rule("grid", LEFT, y, axes.right, y)
        yield text(LEFT - 8, y + 4, number_text(value), anchor="end")
    bottom = HEIGHT - BOTTOM
    for x in axes.x_values:
        yield text(axes.x(x), bottom + 20, number_text(x), anchor="middle")
    yield text((LEFT + axes.right) / 2, HEIGHT - 14, x_label, anchor="middle")


def _draw(number: int, line: Line, axes: _Axes) -> Iterator[str]:
    for run in _runs(line, axes):
        places = [(axes.x(point.x), axes.y(point.median)) for point in run]
        if len(run) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline class="line s{number}" points="{path}"/>'
        elif run[-1] is not line.points[-1]:
            x, y = places[0]
            yield text(x + LABEL_GAP, y + 4, number_text(run[0].median), f"strong f{number}")
        for point, (x, y) in zip(run, places, strict=True):
            yield rule(f"spread s{number}", x, axes.y(point.least), x, axes.y(point.most))
            yield f'<circle class="f{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def _runs(line: Line, axes: _Axes) -> list[list[Point]]:
    """The points in groups without gaps that another side has measured."""
    runs = [[line.points[0]]]
    for before, point in pairwise(line.points):
        if axes.are_neighbours(before, point):
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _names(lines: Sequence[Line], axes: _Axes) -> Iterator[str]:
    """Each line's name and last value after its last point, moved apart if they overlap."""
    wanted = sorted((axes.y(line.points[-1].median), n) for n, line in enumerate(lines))
    for y, (_, number) in zip(_apart([y for y, _ in wanted]), wanted, strict=True):
        x = axes.x(lines[number].points[-1].x) + LABEL_GAP
        yield text(x, y + 4, lines[number].label, f"strong f{number}")


def _apart(places: Sequence[float]) -> list[float]:
    """Positions from top to bottom with room for a label at each, none below the axis."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + LABEL_HEIGHT) if found else place)
    limit = float(HEIGHT - BOTTOM)
    for index in range(len(found) - 1, -1, -1):
        found[index] = min(found[index], limit)
        limit = found[index] - LABEL_HEIGHT
    return found


def number_text(value: float) -> str:
    """A number in short form."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _in_words(x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    described = (
        f"{line.name}: "
        + ", ".join(f"{number_text(p.median)} at {number_text(p.x)}" for p in line.points)
        for line in lines
    )
    return f"{y_label} against {x_label}. " + ". ".join(described) + "."
