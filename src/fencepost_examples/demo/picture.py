"""Draws the picture of a run: progress of both queries, kills, and the result of the audit.

At the top are two lines over time with a mark for every kill. Below is a bar per query; its red end
shows what was paid more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.base.svg import MARGIN, document, rectangle, rule, text, text_width
from fencepost_examples.demo.plan import Victim
from fencepost_examples.demo.report import rupees, verdict
from fencepost_examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

if TYPE_CHECKING:
    from fencepost_examples.demo.run import DemoOptions, History

WIDTH: Final = 900
HEIGHT: Final = 580
LEFT, RIGHT, TOP, BOTTOM = 70, 876, 136, 376
BARS: Final = LEFT + 100
"""The left end of the bars, after the names of the queries."""
BAR_HEIGHT: Final = 20
ROW_HEIGHT: Final = 34
TITLE: Final = "Refunds while everything is killed"

COLOURS: Final = {EXACTLY_ONCE: 2, AT_LEAST_ONCE: 0}
DASHES: Final = {
    Victim.DRIVER: "none",
    Victim.EXECUTOR: "7 4",
    Victim.BROKER: "2 4",
    Victim.PAUSED_BROKER: "2 4",
    Victim.ROLLED_BROKER: "2 4",
    Victim.LOADER: "none",
    Victim.RELAY: "7 4",
    Victim.DATABASE: "2 4",
}

WORD_WIDTH: Final = 15
"""Space for the vertical word above a kill."""

STEPS_SECONDS: Final = (5, 10, 20, 30, 60, 120, 300, 600, 1_200, 3_600, 10_800, 86_400)
"""Possible steps of the time axis."""


def draw(history: History, options: DemoOptions) -> str:
    """Returns the picture as SVG."""
    parts = [
        *_loading(history),
        *_frame(history, options),
        *_kills(history),
        *_lines(history, options),
    ]
    parts += [*_legend(options), *_results(history, options)]
    return document(WIDTH, HEIGHT, TITLE, " ".join(verdict(history, options)), parts)


def _across(history: History, seconds: float) -> float:
    return LEFT + (RIGHT - LEFT) * seconds / _end(history)


def _up(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def _end(history: History) -> float:
    """The right end of the time axis."""
    return max(1.0, history.seconds)


def _frame(history: History, options: DemoOptions) -> Iterator[str]:
    yield text(MARGIN, 32, TITLE, "title")
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _up(share)
        yield rule("grid", LEFT, y, RIGHT, y)
        yield text(LEFT - 8, y + 4, f"{options.settlements * share:,.0f}", anchor="end")
    step = next(step for step in STEPS_SECONDS if _end(history) / step <= 10)
    for seconds in range(0, int(_end(history)) + 1, step):
        x = _across(history, seconds)
        # Keep the last label inside the picture.
        x = min(x, WIDTH - MARGIN - text_width(f"{seconds} s") / 2)
        yield text(x, BOTTOM + 20, f"{seconds} s", anchor="middle")
    yield text(MARGIN, 54, "settlements decided")


def _loading(history: History) -> Iterator[str]:
    """Shades the time after the queries, when topics are loaded and audited."""
    x = _across(history, history.queries_ended)
    yield rectangle("shade", x, TOP, RIGHT - x, BOTTOM - TOP)
    yield text(RIGHT - 8, BOTTOM - 10, "load and audit", anchor="end")


def _kills(history: History) -> Iterator[str]:
    """Draws a line for each kill, and its victim above."""
    free = float(LEFT)
    for seconds, victim in history.kills:
        x = _across(history, seconds)
        yield rule("mark", x, TOP, x, BOTTOM, DASHES[victim])
        # Labels of kills that are close together go side by side, as long as they stay near
        # their lines.
        place = max(x, free)
        if place - x < 2 * WORD_WIDTH and place < RIGHT:
            yield text(place + 4, TOP - 8, victim.value, turned=True)
            free = place + WORD_WIDTH


def _lines(history: History, options: DemoOptions) -> Iterator[str]:
    for side in reversed(options.sides):
        points, height = "", -1.0
        for seconds, decided in history.samples:
            x, y = _across(history, seconds), _up(decided[side] / options.settlements)
            # Draw a step only where the count changes.
            if y != height:
                points += f"M{x:.1f} {y:.1f}" if not points else f"H{x:.1f}V{y:.1f}"
                height = y
        points += f"H{_across(history, history.queries_ended):.1f}"
        yield f'<path class="line s{COLOURS[side]}" d="{points}"/>'


def _legend(options: DemoOptions) -> Iterator[str]:
    """Draws the legend at the right of the title."""
    words = [
        *((side.replace("-", " "), COLOURS[side]) for side in options.sides),
        ("kill -9" if options.brokers == 1 else "kill -9, pause, roll", None),
    ]
    x = RIGHT - sum(text_width(word) + 48 for word, _ in words) + 16
    for word, colour in words:
        if colour is None:
            yield rule("mark", x + 24, 20, x + 24, 36)
        else:
            yield rule(f"line s{colour}", x, 28, x + 24, 28)
        yield text(x + 32, 32, word)
        x += text_width(word) + 48


def _results(history: History, options: DemoOptions) -> Iterator[str]:
    """Draws a bar per query: refunds paid once, and those paid more than once."""
    y = BOTTOM + 62
    yield text(MARGIN, y, "Refunds paid", "strong")
    paid = {side: history.findings[side].rows["refunds"] for side in options.sides}
    words = {side: _found(history, side) for side in options.sides}
    room = RIGHT - BARS - 12 - max(text_width(each, bold=True) for each in words.values())
    scale = room / (max(paid.values()) or 1)
    for side in options.sides:
        y += ROW_HEIGHT
        doubled = history.findings[side].refunds_too_many
        once, end = (paid[side] - doubled) * scale, paid[side] * scale
        yield text(MARGIN, y, side.replace("-", " "), "")
        yield rectangle(f"f{COLOURS[side]}", BARS, y - 15, once, BAR_HEIGHT)
        if doubled:
            end = max(end, once + 2)  # A single one is visible too.
            yield rectangle("bad", BARS + once, y - 15, end - once, BAR_HEIGHT)
        kind = "strong bad" if doubled else "strong"
        yield text(BARS + end + 12, y, words[side], kind)
    for number, sentence in enumerate(verdict(history, options)):
        yield text(MARGIN, HEIGHT - 36 + 20 * number, sentence, "")


def _found(history: History, side: str) -> str:
    findings = history.findings[side]
    if not findings.refunds_too_many:
        return f"{findings.rows['refunds']:,}"
    cost = rupees(findings.paid_too_much_paise)
    doubled = f"{findings.refunds_too_many:,} too many: {cost} rupees"
    return f"{findings.rows['refunds']:,} ({doubled})"
