"""A swim-lane as an SVG picture, for light and dark mode.

Rows are equally far apart: a proportional scale would be all silence. Times are to the left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.base.svg import MARGIN, document, rectangle, rule, text, text_width
from fencepost.forensics.tap.swimlane.lanes import Kind, Row, Swimlane
from fencepost.forensics.tap.wording import moment, printable

LANE: Final = 250
TIMES: Final = 130
ROW: Final = 26
TOP: Final = 96
WORDS: Final = 330
"""The width of the column with details."""
_HEAD: Final = 6


def draw_svg(lanes: Swimlane, title: str, sentences: list[str]) -> str:
    """Returns the document."""
    middle = [TIMES + MARGIN + LANE / 2 + number * LANE for number in range(len(lanes.lanes))]
    needed = max([text_width(each) for each in (title, *sentences)], default=0) + 2 * MARGIN
    width = int(max(TIMES + LANE * len(lanes.lanes) + WORDS + 2 * MARGIN, needed))
    bottom = TOP + ROW * len(lanes.rows) + ROW
    height = bottom + ROW * len(sentences) + MARGIN
    parts = [text(MARGIN, 30, title, "title")]
    if lanes.left_out:
        parts.append(text(MARGIN, 48, f"{lanes.left_out} rows are not shown"))
    for lane, x in zip(lanes.lanes, middle, strict=True):
        parts += [
            rectangle("shade", x - LANE / 2 + 8, 54, LANE - 16, 34),
            text(x, 68, lane.title, "strong", anchor="middle"),
            text(x, 83, _cut("; ".join(lane.roles), LANE - 20), anchor="middle"),
            rule("grid", x, TOP - 6, x, bottom),
        ]
    for number, row in enumerate(lanes.rows):
        parts += _row(row, TOP + ROW * number + ROW / 2, middle)
    for number, sentence in enumerate(sentences):
        kind = "strong" if number == 0 else "quiet"
        parts.append(text(MARGIN, bottom + ROW * (number + 1), sentence, kind))
    return document(width, height, title, " ".join(sentences), parts)


def _row(row: Row, y: float, middle: list[float]) -> Iterator[str]:
    if row.kind is Kind.SILENCE:
        yield text((middle[0] + middle[-1]) / 2, y + 4, f"… {row.label} …", anchor="middle")
        return
    yield text(MARGIN, y + 4, moment(row.time_us))
    if row.kind is Kind.END:
        yield text((middle[0] + middle[-1]) / 2, y + 4, row.label, anchor="middle")
        return
    colour, fill = _colours(row)
    if row.source == row.target:
        x = middle[row.target]
        yield rectangle(fill, x - 4, y - 4, 8, 8)
        yield text(x + 12, y + 4, row.label)
        return
    start, end = middle[row.source], middle[row.target]
    dashes = "5 4" if row.kind is Kind.MARKER else "none"
    yield rule(f"{colour} spread", start, y, end, y, dashes)
    yield _head(fill, end, y, 1 if end > start else -1)
    span = abs(end - start) - 24
    shown = _cut(row.label, span)
    yield text((start + end) / 2, y - 4, shown, "bad" if row.is_bad else "", anchor="middle")
    if row.detail and row.kind is Kind.REQUEST:
        yield text(middle[-1] + LANE / 2, y + 4, _cut(row.detail, WORDS))


def _colours(row: Row) -> tuple[str, str]:
    if row.is_bad:
        return "s1", "f1"
    return {Kind.MARKER: ("s2", "f2"), Kind.REPLY: ("mark", "f0")}.get(row.kind, ("s0", "f0"))


def _head(kind: str, x: float, y: float, direction: int) -> str:
    back = x - direction * _HEAD * 1.4
    points = f"{x:.1f},{y:.1f} {back:.1f},{y - _HEAD / 1.5:.1f} {back:.1f},{y + _HEAD / 1.5:.1f}"
    return f'<polygon class="{kind}" points="{points}"/>'


def _cut(words: str, width: float) -> str:
    shown = printable(words)
    while shown and text_width(shown) > width:
        shown = shown[:-2] + "…" if len(shown) > 2 else ""
    return shown
