"""The picture: how both queries got on while things were killed, and how often refunds were paid.

Plain SVG, written by hand: two lines over time with a mark for every kill, and beneath them what the audit found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from fencepost.demo.plan import Victim
from fencepost.demo.report import rupees, verdict
from fencepost.examples.refunds.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

if TYPE_CHECKING:
    from fencepost.demo.run import Course, Wishes

WIDTH: Final = 900
HEIGHT: Final = 560
LEFT, RIGHT, TOP, BOTTOM = 70, 870, 90, 360

COLOURS: Final = {EXACTLY_ONCE: "#1b7837", AT_LEAST_ONCE: "#c2571a"}
KILL_COLOUR: Final = "#555555"
DASHES: Final = {
    Victim.DRIVER: "none",
    Victim.EXECUTOR: "7 4",
    Victim.BROKER: "2 4",
    Victim.LOADER: "none",
}

LABEL_WIDTH: Final = 16
LETTER_HEIGHT: Final = 7
"""Room for a word along the line of a kill, in a font of 12."""


STEPS_SECONDS: Final = (5, 10, 20, 30, 60, 120, 300, 600, 1_200, 3_600, 10_800, 86_400)
"""Distances between the times that are written beneath."""


def draw(course: Course, wishes: Wishes) -> str:
    """The whole picture as SVG."""
    parts = [*_frame(course, wishes), *_loading(course), *_kills(course), *_lines(course, wishes)]
    parts += [*_legend(wishes), *_results(course, wishes)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" fill="#222222">'
    )
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>\n"])


def _text(x: float, y: float, words: str, **attributes: str | int) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def _across(course: Course, seconds: float) -> float:
    return LEFT + (RIGHT - LEFT) * seconds / _end(course)


def _up(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def _end(course: Course) -> float:
    """When the last question was answered."""
    return max(1.0, course.seconds)


def _frame(course: Course, wishes: Wishes) -> Iterator[str]:
    yield _text(LEFT, 34, "Refunds while everything is killed", font_size=20, font_weight="bold")
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _up(share)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#dddddd"/>'
        count = f"{wishes.settlements * share:,.0f}"
        yield _text(LEFT - 8, y + 5, count, text_anchor="end", font_size=12)
    step = next(step for step in STEPS_SECONDS if _end(course) / step <= 10)
    for seconds in range(0, int(_end(course)) + 1, step):
        x = _across(course, seconds)
        yield _text(x, BOTTOM + 18, f"{seconds} s", text_anchor="middle", font_size=12)
    yield _text(LEFT, TOP - 10, "settlements decided", font_size=12)


def _loading(course: Course) -> Iterator[str]:
    """The time after the queries, when topics are loaded and audited."""
    x = _across(course, course.queries_ended)
    yield (
        f'<rect x="{x:.1f}" y="{TOP}" width="{RIGHT - x:.1f}" height="{BOTTOM - TOP}" '
        'fill="#f0f0f0"/>'
    )
    yield _text(RIGHT - 6, BOTTOM - 10, "load, audit", text_anchor="end", font_size=12)


def _kills(course: Course) -> Iterator[str]:
    before, depth = float("-inf"), 0
    for seconds, victim in course.kills:
        x = _across(course, seconds)
        # Along the line; where kills are close together, on its other side and beneath the word before.
        is_close = x - before < LABEL_WIDTH
        depth = depth if is_close else 0
        yield (
            f'<path d="M{x:.1f} {TOP}V{BOTTOM}" stroke="{KILL_COLOUR}" stroke-width="1.5" '
            f'stroke-dasharray="{DASHES[victim]}"/>'
        )
        left, top = x + (LABEL_WIDTH - 2 if is_close else -5), TOP + 4 + depth
        turn = f"rotate(-90 {left:.1f} {top})"
        yield _text(
            left,
            top,
            victim.value,
            transform=turn,
            text_anchor="end",
            font_size=12,
            fill=KILL_COLOUR,
        )
        before, depth = x, depth + LETTER_HEIGHT * (len(victim.value) + 2)


def _lines(course: Course, wishes: Wishes) -> Iterator[str]:
    for side in reversed(wishes.sides):
        points, height = "", -1.0
        for seconds, decided in course.samples:
            x, y = _across(course, seconds), _up(decided[side] / wishes.settlements)
            # A step is drawn where something changed; between changes there is nothing to see.
            if y != height:
                points += f"M{x:.1f} {y:.1f}" if not points else f"H{x:.1f}V{y:.1f}"
                height = y
        points += f"H{_across(course, course.queries_ended):.1f}"
        yield f'<path d="{points}" fill="none" stroke="{COLOURS[side]}" stroke-width="3"/>'


def _legend(wishes: Wishes) -> Iterator[str]:
    x = float(LEFT)
    for side in wishes.sides:
        yield f'<path d="M{x:.1f} 56h26" stroke="{COLOURS[side]}" stroke-width="3"/>'
        yield _text(x + 32, 61, side.replace("-", " "))
        x += 150
    yield f'<path d="M{x:.1f} 50v14" stroke="{KILL_COLOUR}" stroke-width="1.5"/>'
    yield _text(x + 8, 61, "kill -9")


def _results(course: Course, wishes: Wishes) -> Iterator[str]:
    """One row per side: refunds paid once, and those paid more than once, as a bar."""
    y = BOTTOM + 60
    yield _text(LEFT, y, "refunds paid", font_weight="bold")
    most = max(course.findings[side].rows["refunds"] for side in wishes.sides) or 1
    for side in wishes.sides:
        findings = course.findings[side]
        y += 34
        doubled = findings.refunds_too_many
        scale = 420 / most
        once = (findings.rows["refunds"] - doubled) * scale
        yield _text(LEFT, y, side.replace("-", " "))
        yield f'<rect x="{LEFT + 120}" y="{y - 14}" width="{once:.1f}" height="18" fill="{COLOURS[side]}"/>'
        if doubled:
            yield (
                f'<rect x="{LEFT + 120 + once:.1f}" y="{y - 14}" width="{max(2.0, doubled * scale):.1f}" '
                'height="18" fill="#d7191c"/>'
            )
        words = f"{findings.rows['refunds']:,}"
        if doubled:
            words += f", {doubled:,} too many: {rupees(findings.paid_too_much_paise)} rupees"
        yield _text(LEFT + 130 + findings.rows["refunds"] * scale, y, words, font_size=12)
    for number, sentence in enumerate(verdict(course, wishes)):
        yield _text(LEFT, HEIGHT - 36 + 20 * number, sentence)
