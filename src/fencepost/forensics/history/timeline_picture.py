"""Draws a timeline: a row per state, and a lane per partition.

The rows have equal heights, because an id that is idle for a night would leave no room for its
milliseconds; durations stand between them. A partition's lane has a line from the record that added
it to its marker, green for COMMIT and red for ABORT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fencepost.base.svg import MARGIN, document, rectangle, rule, text, text_width
from fencepost.forensics.history.timeline import Step, Timeline, names_of
from fencepost.forensics.logs.record_rows import printable

ROW_HEIGHT: Final = 46
TOP: Final = 132
CLOCK_X: Final = MARGIN
SPINE_X: Final = 118
STATE_X: Final = 134
DETAILS_X: Final = STATE_X + 124
LANES_X: Final = 480
LANE_WIDTH: Final = 110
MAX_LANES: Final = 12
"""More lanes do not fit on a page; a sentence says how many are left out."""
MAX_STEPS: Final = 200

_COLOURS: Final = {
    "Empty": "f3",
    "Ongoing": "f0",
    "PrepareCommit": "f2",
    "CompleteCommit": "f2",
    "PrepareAbort": "f1",
    "CompleteAbort": "f1",
}

Moment = Callable[[int], str]
Duration = Callable[[int], str]


def draw(timeline: Timeline, moment: Moment, duration: Duration) -> str:
    """Returns the picture as SVG; `moment` and `duration` format times."""
    steps = timeline.steps[-MAX_STEPS:]
    lanes = _lanes(steps)
    shown = lanes[:MAX_LANES]
    notes = _notes(timeline, len(timeline.steps) - len(steps), len(lanes) - len(shown))
    width = max(820, LANES_X + LANE_WIDTH * len(shown) + MARGIN)
    height = TOP + ROW_HEIGHT * len(steps) + 24 * len(notes) + MARGIN
    title = f"Timeline of {printable(timeline.history.transactional_id.encode())}"
    parts = [
        text(MARGIN, 32, title, "title"),
        text(MARGIN, 54, _subtitle(timeline, moment)),
        *_lane_lines(steps, shown),
        *_rows(steps, moment, duration),
    ]
    bottom = TOP + ROW_HEIGHT * len(steps) + 8
    parts += [
        text(MARGIN, bottom + 24 * number, note, "quiet") for number, note in enumerate(notes)
    ]
    return document(width, height, title, " ".join([_subtitle(timeline, moment), *notes]), parts)


def _subtitle(timeline: Timeline, moment: Moment) -> str:
    history = timeline.history
    first, last = history.changes[0].at_ms, history.changes[-1].at_ms
    return f"{history.partition}, {moment(first)} to {moment(last)} (the coordinator's clock)"


def _notes(timeline: Timeline, hidden_steps: int, hidden_lanes: int) -> list[str]:
    notes = [timeline.lost] if timeline.lost else []
    if hidden_steps:
        notes.append(f"{hidden_steps} earlier states are not drawn.")
    if hidden_lanes:
        notes.append(f"{hidden_lanes} more partitions are not drawn.")
    for marker in timeline.strays:
        outcome = "COMMIT" if marker.end.commit else "ABORT"
        notes.append(
            f"{marker.partition} has a marker that no record explains: {outcome} at offset "
            f"{marker.end.offset}."
        )
    return [*notes, *timeline.problems]


def _lanes(steps: list[Step]) -> list[str]:
    """The partitions of all transactions, in the order of their first use."""
    return list(dict.fromkeys(name for step in steps for name in names_of(step.change)))


def _y(row: int) -> float:
    return TOP + ROW_HEIGHT * row


def _rows(steps: list[Step], moment: Moment, duration: Duration) -> Iterator[str]:
    yield rule("grid", SPINE_X, _y(0), SPINE_X, _y(len(steps) - 1))
    days = {moment(step.change.at_ms)[:10] for step in steps}
    # The time of day, or over several days the date without its year.
    clock = slice(11, 23) if len(days) == 1 else slice(5, 19)
    for row, step in enumerate(steps):
        y = _y(row)
        colour = _COLOURS.get(step.change.state, "f3")
        if row and step.since_previous_ms is not None:
            between = y - ROW_HEIGHT / 2 + 4
            yield text(
                SPINE_X - 10, between, duration(max(0, step.since_previous_ms)), anchor="end"
            )
        yield text(CLOCK_X, y + 4, moment(step.change.at_ms)[clock], "")
        yield rectangle(colour, SPINE_X - 4, y - 4, 8, 8)
        yield text(STATE_X, y + 4, step.change.state, "strong")
        yield text(DETAILS_X, y + 4, _details(step))
        if step.notes:
            yield text(STATE_X, y + 20, _fitting(step.notes[0], LANES_X - STATE_X), "bad")


def _details(step: Step) -> str:
    metadata = step.change.metadata
    if metadata is None:
        return "the id has expired" if step.change.is_tombstone else ""
    return f"producer {metadata.producer_id}, epoch {metadata.producer_epoch}"


def _lane_lines(steps: list[Step], lanes: list[str]) -> Iterator[str]:
    for number, name in enumerate(lanes):
        x = LANES_X + LANE_WIDTH * number + 20
        # Two heights, so that long names of neighbours do not touch.
        yield text(
            x - 16, TOP - (44 if number % 2 == 0 else 26), _fitting(name, 2 * LANE_WIDTH), ""
        )
        yield rule("grid", x, TOP - 16, x, _y(len(steps) - 1) + 12)
        yield from _spans(steps, name, x)


def _spans(steps: list[Step], name: str, x: float) -> Iterator[str]:
    opened: int | None = None
    for row, step in enumerate(steps):
        if step.change.state == "Ongoing" and name in names_of(step.change) and opened is None:
            opened = row
        if not step.change.state.startswith("Prepare") or name not in names_of(step.change):
            continue
        y = _y(row) + ROW_HEIGHT / 2
        start = _y(row if opened is None else opened)
        commit = step.change.state == "PrepareCommit"
        yield rule("line s0", x, start, x, y, "none")
        marker = next((each for each in step.markers if str(each.partition) == name), None)
        if marker is not None:
            yield rectangle("f2" if commit else "bad", x - 5, y - 5, 10, 10)
            yield text(x + 10, y + 4, f"{'COMMIT' if commit else 'ABORT'} @{marker.end.offset}")
        else:
            yield text(x + 10, y + 4, "no marker found", "bad")
        opened = None
    if opened is not None:
        end = _y(len(steps) - 1) + ROW_HEIGHT / 2
        yield rule("line s0", x, _y(opened), x, end, "4 6")
        yield text(x + 10, end, "open")


def _fitting(words: str, width: float) -> str:
    """Words cut to a width."""
    while text_width(words) > width and len(words) > 4:
        words = words[:-4] + "..."
    return words
