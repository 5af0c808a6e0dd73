"""Formats milliseconds for people."""

from __future__ import annotations

from datetime import UTC, datetime


def for_people(duration_ms: int) -> str:
    """Formats a duration: 850 ms, 12.3 s, 4 min 10 s, 3 h 5 min, 2 d 4 h."""
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
