"""A story as a swim-lane: who talks to whom, row by row. Text and SVG are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fencepost.forensics.tap.swimlane.conclusion import Conclusion, Outcome
from fencepost.forensics.tap.swimlane.conclusion_words import duration
from fencepost.forensics.tap.swimlane.story import Call, Story

SILENCE_US: Final = 1_000_000
"""A longer pause between two rows gets its own row."""
MAX_ROWS: Final = 300
_UNFINISHED: Final = frozenset({Outcome.WAITING, Outcome.LOST, Outcome.OPEN})


class Kind(Enum):
    """What a row shows."""

    REQUEST = "request"
    REPLY = "reply"
    MARKER = "marker"
    SILENCE = "silence"
    END = "end"
    """The end of a trace in which something is left open."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A producer or a broker."""

    key: str
    title: str
    roles: tuple[str, ...]
    """The client id of a producer; what a broker does for it."""


@dataclass(frozen=True, slots=True)
class Row:
    """An arrow between two lanes, or a pause."""

    time_us: int
    kind: Kind
    label: str
    source: int = 0
    target: int = 0
    detail: str = ""
    is_bad: bool = False
    is_fence: bool = False


@dataclass(frozen=True, slots=True)
class Swimlane:
    """All lanes and rows."""

    lanes: list[Lane]
    rows: list[Row]
    left_out: int
    """Rows that are not shown."""


def lay_out(story: Story, conclusions: Sequence[Conclusion]) -> Swimlane:
    """Arranges a story: producers to the left, then coordinators, then the other brokers."""
    lanes = _lanes(story)
    place = {lane.key: number for number, lane in enumerate(lanes)}
    rows: list[Row] = []
    fences = [each.call for each in conclusions if each.outcome is Outcome.FENCED]
    for call in story.shown_calls:
        rows += _rows_of(call, place, is_fence=call in fences)
    coordinators = story.coordinators
    for marker in story.shown_markers:
        source = place.get(coordinators[-1], 0) if coordinators else 0
        target = place.get(marker.broker or "", source)
        name = "COMMIT" if marker.commit else "ABORT"
        sign = "~" if marker.source == "inferred" else ""
        label = f"{sign}{name} {marker.partition}"
        rows.append(Row(marker.time_us, Kind.MARKER, label, source, target, marker.source))
    rows.sort(key=lambda row: row.time_us)
    if conclusions[-1].outcome in _UNFINISHED:
        rows.append(Row(conclusions[-1].at_us, Kind.END, "the trace ends"))
    shown = _window(rows)
    return Swimlane(lanes, _with_silences(shown), len(rows) - len(shown))


def _lanes(story: Story) -> list[Lane]:
    lanes = []
    for number in sorted(story.clients):
        title = "producer" if len(story.clients) == 1 else f"producer {number}"
        lanes.append(Lane(f"producer {number}", title, (story.clients[number],)))
    coordinators = story.coordinators
    others = {call.broker for call in story.calls} | set(story.leaders.values())
    others |= {marker.broker for marker in story.markers if marker.broker is not None}
    for broker in [*coordinators, *sorted(others - set(coordinators))]:
        led = sorted(name for name, leader in story.leaders.items() if leader == broker)
        roles = ["coordinator"] if broker in coordinators else []
        if led:
            more = f" and {len(led) - 2} more" if len(led) > 2 else ""
            roles.append(f"leads {', '.join(led[:2])}{more}")
        lanes.append(Lane(broker, broker, tuple(roles)))
    return lanes


def _rows_of(call: Call, place: dict[str, int], *, is_fence: bool) -> list[Row]:
    source, target = place[f"producer {call.instance}"], place[call.broker]
    over_us = call.over_us
    waits = over_us is None and call.gets_reply
    asked = Row(
        call.time_us,
        Kind.REQUEST,
        f"{call.api}: no reply" if waits else call.api,
        source,
        target,
        f"#{call.number} {call.words}" if "bytes" in call.request else call.words,
        is_bad=waits,
    )
    if over_us is None:
        return [asked]
    took = _took(over_us - call.time_us)
    label = f"connection lost {took}" if call.reply is None else " ".join([*call.errors, took])
    is_bad = not call.is_answered
    return [asked, Row(over_us, Kind.REPLY, label, target, source, "", is_bad, is_fence)]


def _took(time_us: int) -> str:
    if time_us < 1_000_000:
        return f"{time_us / 1000:.3f} ms"
    return f"{time_us / 1_000_000:.3f} s"


def _window(rows: list[Row]) -> list[Row]:
    """The rows around the fence, or the last ones, of a story that is too long."""
    if len(rows) <= MAX_ROWS:
        return rows
    middle = next((n for n, row in enumerate(rows) if row.is_fence), len(rows))
    start = min(max(0, middle - MAX_ROWS // 2), len(rows) - MAX_ROWS)
    return rows[start : start + MAX_ROWS]


def _with_silences(rows: list[Row]) -> list[Row]:
    out: list[Row] = []
    for row in rows:
        if out and row.time_us - out[-1].time_us >= SILENCE_US:
            pause = duration(row.time_us - out[-1].time_us)
            out.append(Row(out[-1].time_us, Kind.SILENCE, pause))
        out.append(row)
    return out
