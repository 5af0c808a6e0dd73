"""`tap show`: from a file to a story, and from a story to what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.forensics.tap.swimlane.conclusion import conclude
from fencepost.forensics.tap.swimlane.conclusion_words import sentences
from fencepost.forensics.tap.swimlane.lanes import lay_out
from fencepost.forensics.tap.swimlane.lanes_svg import draw_svg
from fencepost.forensics.tap.swimlane.lanes_text import draw_text
from fencepost.forensics.tap.swimlane.markers import find_markers
from fencepost.forensics.tap.swimlane.story import MarkerSeen, Span, Story, list_ids, read_story
from fencepost.records.trace import FORMAT, VERSION, Body

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster


class Trace(NamedTuple):
    """A trace, and the part of it that is wanted."""

    path: str
    span: Span

    def lines(self) -> Iterator[Body]:
        """Reads it from its start: it may be larger than memory."""
        return _read_trace(self.path)


_CLOCK_FORMATS: Final = ("%H:%M:%S.%f", "%H:%M:%S", "%H:%M")


def read(path: str, start: str | None, end: str | None) -> Trace:
    """Opens a trace; FencepostError if it is none, ConfigError for a time that is none."""
    first = next(_read_trace(path), None)
    began_us = 0 if first is None else int(first["time_us"])
    start_us = None if start is None else parse_time("--from", start, began_us)
    end_us = None if end is None else parse_time("--to", end, began_us)
    return Trace(path, Span(start_us, end_us))


def _read_trace(path: str) -> Iterator[Body]:
    """Yields all lines, the opening ones too; FencepostError for what is not a trace.

    A process that was killed may have left its last line incomplete: that one is ignored. Any
    other line that is no JSON, and any other format or version, is refused.
    """
    try:
        with open(path, encoding="utf-8") as file:
            yield from _trace_lines(path, file)
    except OSError as problem:
        raise FencepostError(f"{path} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError:
        raise FencepostError(_no_trace(path, "it is not text")) from None


def _trace_lines(path: str, texts: Iterator[str]) -> Iterator[Body]:
    is_first = True
    for number, text in enumerate(texts, start=1):
        if not text.endswith("\n"):
            return  # Its writer was killed.
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise FencepostError(_no_trace(path, f"line {number} is no JSON object"))
        if "format" in line or is_first:
            _require_format(path, line)
        is_first = False
        yield line


def _require_format(path: str, line: Body) -> None:
    if line.get("format") != FORMAT:
        raise FencepostError(_no_trace(path, "its first line does not name the format"))
    if line.get("version") != VERSION:
        raise FencepostError(
            f"{path} has version {line.get('version')!r} of the trace format, and this fencepost "
            f"reads version {VERSION}. Use the fencepost that wrote it."
        )


def _no_trace(path: str, reason: str) -> str:
    return (
        f"{path} is not a trace: {reason}. Write one with `fencepost tap --out FILE` or "
        "`fencepost serve --trace FILE`."
    )


def ids(trace: Trace) -> list[dict[str, Any]]:
    """Returns a row per transactional id."""
    rows = list_ids(line for line in trace.lines() if trace.span.holds(line["time_us"]))
    for row in rows:
        row["first_at_ms"] = row.pop("first_at_us") // 1000
        row["last_at_ms"] = row.pop("last_at_us") // 1000
    return rows


def story(trace: Trace, transactional_id: str) -> Story:
    """Returns the exchanges of an id."""
    told = read_story(trace.lines(), transactional_id)
    told.span = trace.span
    return told


def markers(cluster: Cluster, told: Story) -> list[MarkerSeen]:
    """Returns the markers of a story from the partitions."""
    return find_markers(cluster, told)


def drawing(told: Story, width: int) -> list[str]:
    """Returns the swim-lane for a terminal."""
    found = conclude(told)
    lines = draw_text(lay_out(told, found), width)
    return [*lines, "", *sentences(told.transactional_id, found)]


def picture(told: Story) -> str:
    """Returns the swim-lane as SVG."""
    found = conclude(told)
    title = f"Requests of {told.transactional_id}"
    return draw_svg(lay_out(told, found), title, sentences(told.transactional_id, found))


def as_row(told: Story) -> dict[str, Any]:
    """Returns the story for JSON."""
    return {
        "transactional_id": told.transactional_id,
        "coordinators": told.coordinators,
        "leaders": told.leaders,
        "producers": [
            {"instance": number, "client_id": name} for number, name in told.clients.items()
        ],
        "exchanges": [
            {
                "number": call.number,
                "at_us": call.time_us,
                "duration_us": None if call.end_us is None else call.end_us - call.time_us,
                "instance": call.instance,
                "broker": call.broker,
                "api": call.api,
                "errors": call.errors,
                "lost_at_us": call.lost_us,
                "lost_reason": call.lost_reason or None,
                "what": call.words,
            }
            for call in told.shown_calls
        ],
        "markers": [
            {
                "at_us": marker.time_us,
                "broker": marker.broker,
                "partition": marker.partition,
                "commit": marker.commit,
                "source": marker.source,
            }
            for marker in told.shown_markers
        ],
        "conclusions": [each.as_row() for each in conclude(told)],
    }


def parse_time(option: str, text: str, began_us: int) -> int:
    """Reads a time of day, on the day on which the trace began, or a moment of ISO 8601."""
    day = datetime.fromtimestamp(began_us // 1_000_000, UTC)
    for pattern in _CLOCK_FORMATS:
        try:
            clock = datetime.strptime(text, pattern).replace(tzinfo=UTC)
        except ValueError:
            continue
        return _microseconds(datetime.combine(day.date(), clock.timetz()))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}: write a time of day such as 12:00:47.2, or a moment such as "
            "2026-11-17T12:00:47Z, both in UTC."
        ) from None
    return _microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _microseconds(moment: datetime) -> int:
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
