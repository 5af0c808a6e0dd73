"""A swim-lane for the terminal.

    UTC             producer            broker 2            broker 1
                    rdkafka             coordinator         leads t-0
    12:00:00.123456 │─ InitProducerId ─▶│                   │
    12:00:00.125000 │◀──── 1.544 ms ────│                   │

If the terminal is too narrow for the lanes, each row is a line of words instead. Labels that do not
fit on their arrow stand beside it.
"""

from __future__ import annotations

from typing import Final

from fencepost.forensics.tap.swimlane.lanes import Kind, Row, Swimlane
from fencepost.forensics.tap.wording import cut, moment, printable

_TIME: Final = 16
_LEAST_LANE: Final = 14
_WIDEST_LANE: Final = 30
_LEAST_WORDS: Final = 12
_LIFE: Final = "│"


def draw_text(lanes: Swimlane, width: int) -> list[str]:
    """Returns the lines, at most `width` wide."""
    lane = min(_WIDEST_LANE, (width - _TIME) // len(lanes.lanes))
    draw = _Drawing(lanes, lane, width)
    out = draw.heading() if lane >= _LEAST_LANE else []
    if lanes.left_out:
        out.append(f"({lanes.left_out} rows are not shown; narrow the time with --from and --to)")
    row = draw.row if lane >= _LEAST_LANE else draw.words
    return [*out, *(row(each).rstrip() for each in lanes.rows)]


class _Drawing:
    """The lanes of one width."""

    def __init__(self, lanes: Swimlane, lane: int, width: int) -> None:
        self._lanes = lanes.lanes
        self._lane = lane
        self._width = width
        self._places = [_TIME + number * lane for number in range(len(lanes.lanes))]

    def heading(self) -> list[str]:
        """The names of the lanes, and below them what they do."""
        lines = ["UTC".ljust(_TIME) + "".join(self._cell(each.title) for each in self._lanes)]
        for number in range(max(len(each.roles) for each in self._lanes)):
            cells = (self._cell("".join(each.roles[number : number + 1])) for each in self._lanes)
            lines.append(" " * _TIME + "".join(cells))
        return [line.rstrip() for line in lines]

    def row(self, row: Row) -> str:
        """An arrow between lifelines."""
        life = [" "] * (_TIME + self._lane * len(self._places))
        for place in self._places:
            life[place] = _LIFE
        line = "".join(life).rstrip()
        if row.kind is Kind.SILENCE:
            return _over(line, self._places[0] + 2, f"... {row.label} ...")
        line = moment(row.time_us).ljust(_TIME) + line[_TIME:]
        if row.kind is Kind.END:
            return _over(line, self._places[0] + 2, row.label)
        if row.source == row.target:
            # A marker that a coordinator writes to its own partition.
            return _over(line, self._places[row.target] + 2, f"· {printable(row.label)}")
        line, fits = self._arrow(row, line)
        detail = row.detail if row.kind is Kind.REQUEST else ""
        if not fits:
            detail = f"{row.label}  {detail}"
        room = self._width - len(line) - 1
        return f"{line} {cut(detail, room)}" if detail and room >= _LEAST_WORDS else line

    def words(self, row: Row) -> str:
        """A row without lanes."""
        if row.kind is Kind.SILENCE:
            return " " * _TIME + f"... {row.label} ..."
        if row.kind is Kind.END:
            return moment(row.time_us).ljust(_TIME) + row.label
        source, target = self._lanes[row.source].title, self._lanes[row.target].title
        said = f"{source} -> {target}: {row.label}"
        if row.kind is Kind.REQUEST and row.detail:
            said = f"{said}  {row.detail}"
        return moment(row.time_us).ljust(_TIME) + cut(said, self._width - _TIME)

    def _arrow(self, row: Row, line: str) -> tuple[str, bool]:
        left, right = sorted((self._places[row.source], self._places[row.target]))
        stroke = "╌" if row.kind is Kind.MARKER else "─"
        span = right - left - 1
        fits = len(row.label) <= span - 3
        body = f" {cut(row.label, span - 3)} ".center(span - 1, stroke)
        body = f"{body}▶" if row.source < row.target else f"◀{body}"
        return _over(line, left + 1, body), fits

    def _cell(self, text: str) -> str:
        return cut(text, self._lane - 2).ljust(self._lane)


def _over(line: str, start: int, text: str) -> str:
    """Writes over a line."""
    return line[:start].ljust(start) + text + line[start + len(text) :]
