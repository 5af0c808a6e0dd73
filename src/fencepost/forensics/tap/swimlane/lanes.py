"""A story as a swim-lane: who talks to whom, row by row. Text and SVG are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from fencepost.forensics.tap.swimlane.fencing import Fence
from fencepost.forensics.tap.swimlane.story import Call, Story

SILENCE_US: Final = 1_000_000
"""A longer pause between two rows gets a row of its own."""
MAX_ROWS: Final = 300


class Kind(Enum):
    """What a row shows."""

    REQUEST = "request"
    REPLY = "reply"
    MARKER = "marker"
    SILENCE = "silence"


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


def lay_out(story: Story, fence: Fence | None) -> Swimlane:
    """Arranges a story: producers to the left, then coordinators, then the other brokers."""
    lanes = _lanes(story)
    place = {lane.key: number for number, lane in enumerate(lanes)}
    rows: list[Row] = []
    for call in story.shown_calls:
        rows += _rows_of(call, place, fence)
    coordinators = story.coordinators
    for marker in story.shown_markers:
        source = place.get(coordinators[-1], 0) if coordinators else 0
        target = place.get(marker.broker or "", source)
        name = "COMMIT" if marker.commit else "ABORT"
        sign = "~" if marker.source == "inferred" else ""
        label = f"{sign}{name} {marker.partition}"
        rows.append(Row(marker.time_us, Kind.MARKER, label, source, target, marker.source))
    rows.sort(key=lambda row: row.time_us)
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


def _rows_of(call: Call, place: dict[str, int], fence: Fence | None) -> list[Row]:
    source, target = place[f"producer {call.instance}"], place[call.broker]
    end_us = call.end_us
    asked = Row(
        call.time_us,
        Kind.REQUEST,
        call.api if end_us is not None else f"{call.api}: no reply",
        source,
        target,
        call.words,
        is_bad=end_us is None,
    )
    if end_us is None:
        return [asked]
    errors = " ".join(call.errors)
    took = f"{(end_us - call.time_us) / 1000:.3f} ms"
    is_fence = fence is not None and fence.call is call
    label = f"{errors} {took}" if errors else took
    return [
        asked,
        Row(end_us, Kind.REPLY, label, target, source, "", bool(errors), is_fence),
    ]


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
            pause = _duration(row.time_us - out[-1].time_us)
            out.append(Row(out[-1].time_us, Kind.SILENCE, pause))
        out.append(row)
    return out


def _duration(time_us: int) -> str:
    return f"{time_us / 1_000_000:.1f} s" if time_us >= 1_000_000 else f"{time_us / 1000:.1f} ms"


def moment(time_us: int) -> str:
    """The time of day of a row, UTC."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%H:%M:%S}.{time_us % 1_000_000:06}"


def conclusion_lines(story: Story, fence: Fence | None) -> list[str]:
    """The sentences below a swim-lane: what was in flight when the producer was fenced."""
    name = story.transactional_id
    if fence is None:
        return [f"{name} was not fenced in this trace."]
    assert fence.call.end_us is not None
    silence = "No earlier request of this producer is in the trace"
    if fence.silence_us is not None:
        silence = f"{_duration(fence.silence_us)} without a request from this producer"
    timeout = "its transaction timeout is not in the trace"
    if fence.timeout_ms is not None:
        timeout = f"its transaction timeout is {fence.timeout_ms / 1000:g} s"
    by = fence.by.value
    cause = "what fenced it is not in the trace"
    if by is not None:
        sign = "~" if fence.by.certainty.value == "estimated" else ""
        cause = f"{sign}fenced by {by}"
    at = moment(fence.call.end_us)
    said = [
        f"{fence.call.api} got {fence.error} from {fence.call.broker} at {at} UTC.",
        f"{silence}; {timeout}; {cause} (see `fencepost txn why {name}`).",
    ]
    if not fence.in_flight:
        return [*said, "In flight at that moment: nothing else."]
    for call in fence.in_flight:
        waited = (fence.call.end_us - call.time_us) / 1000
        said.append(
            f"In flight at that moment: {call.api} to {call.broker}, for {waited:.1f} ms "
            f"({call.words})."
        )
    return said
