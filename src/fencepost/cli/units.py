"""Durations, moments, sizes and counts as people write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fencepost.base.options import INT64_MAX
from fencepost.forensics.client_connection import connection_fields

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_RECENT_MS: Final = 12 * 3_600_000
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|min|m|h|d)")


def parse_duration(text: str) -> int:
    """Returns the milliseconds of a duration such as 500ms, 10s, 5m, 2h or 1.5h."""
    found = _DURATION.fullmatch(text.strip())
    duration_ms = round(float(found[1]) * _UNITS_MS[found[2]]) if found else -1
    if not 0 <= duration_ms <= INT64_MAX:
        raise ValueError(
            f"{text!r} is not a duration: write a number and a unit, such as 5s, 5m or 500ms"
        )
    return duration_ms


def for_people(duration_ms: int) -> str:
    """Formats a duration: <1 ms, 850 ms, 12.3 s, 4 min 10 s, 3 h 5 min, 2 d 4 h."""
    if duration_ms < 1:
        return "<1 ms"  # A measured duration is never nothing.
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1_000:.1f} s"
    seconds = duration_ms // 1_000
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = seconds // 60
    if minutes < 1_440:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = minutes // 60
    return f"{hours // 24} d {hours % 24} h"


def moment_for_people(since_epoch_ms: int) -> str:
    """Formats a timestamp in UTC, to compare with the logs of other machines."""
    moment = datetime.fromtimestamp(since_epoch_ms / 1_000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{since_epoch_ms % 1_000:03} UTC"


def connection_in_words(view: TransactionView | None, at_ms: int | None = None) -> str:
    """Formats whether the client of a transactional id is connected to its coordinator.

    For a table, with the time of the look, a recent moment has no date.
    """
    fields = connection_fields(view)
    if (gone_at_ms := fields["client_gone_at_ms"]) is not None:
        moment = moment_for_people(gone_at_ms)
        if at_ms is not None:
            moment = moment[11:19] if at_ms - gone_at_ms < _RECENT_MS else moment[:16]
        return f"gone since {moment}"
    return fields["client_connection"] or "unknown"


def size_for_people(size_bytes: int) -> str:
    """Formats a size: 850 B, 12.3 KB, 4.1 MB, with 1 KB = 1,000 bytes."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB"):
        if size < 1_000:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_000
    return f"{size:.1f} GB"


def counted(count: int, noun: str) -> str:
    """Formats a count of things: 1 record, 2 records."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
