"""Draws the plots of docs/performance-details.md again, from the figures in its tables.

    python -m bench.redraw

For a change of the drawing without new figures. A cell of a table has the median with the smallest
and largest round, to three digits: all that a plot shows. What is not in the table is not drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.document import PAGE, folder_of_plots
from bench.load import Load, Plot
from bench.loads import LOADS
from bench.svg import Line, Point, line_plot

CELL: Final = re.compile(r"([\d.,]+)(?: \(([\d.,]+) \.\. ([\d.,]+)\))?")

Table = dict[str, dict[str, str]]
"""The cells by measure and side."""


def redraw(page: Path = PAGE) -> list[Path]:
    """Writes every plot that has figures on the page; returns the files."""
    tables = dict(_tables(page.read_text()))
    written = []
    for load in LOADS:
        for plot in load.plots:
            if lines := _lines(load, plot, tables.get(load.title.lower(), {})):
                target = folder_of_plots(page) / f"{plot.name}.svg"
                target.write_text(line_plot(plot.title, plot.x_label, plot.y_label, lines))
                written.append(target)
    return written


def _tables(text: str) -> Iterator[tuple[str, Table]]:
    """Each heading of level 3 with the measures of the table below it."""
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"
        ]
        if len(rows) > 1 and rows[0][:2] == ["measure", "ratio"]:
            sides = rows[0][2:]
            yield (
                title.lower(),
                {row[0]: dict(zip(sides, row[2:], strict=False)) for row in rows[2:]},
            )


def _lines(load: Load, plot: Plot, table: Table) -> list[Line]:
    units = {measure.name: measure.unit for measure in load.measures}
    rows = [(x, table.get(units[name], {})) for x, name in plot.points]
    sides = list(dict.fromkeys(side for _, row in rows for side in row))
    lines = [Line(side, list(_points(side, rows))) for side in sides]
    return [line for line in lines if line.points]


def _points(side: str, rows: list[tuple[float, dict[str, str]]]) -> Iterator[Point]:
    for x, row in rows:
        if found := CELL.fullmatch(row.get(side, "")):
            median, least, most = (
                None if n is None else float(n.replace(",", "")) for n in found.groups()
            )
            assert median is not None
            yield Point(
                x, median, median if least is None else least, median if most is None else most
            )


if __name__ == "__main__":
    for path in redraw():
        print(path)
