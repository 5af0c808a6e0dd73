"""Selects the segments that retention removes, by Kafka's rules.

Segments are removed from the oldest on, and only below the high watermark. The active segment is
removed only if all of it is too old; a new segment replaces it first, so that the log end offset is
kept.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from fencepost.base.ids import NO_TIMESTAMP
from fencepost.log.config import DELETE
from fencepost.log.segment.segment import Segment

if TYPE_CHECKING:
    from fencepost.log.log import Log


def expired_segments(log: Log, now_ms: int, upper_offset: int) -> list[Segment]:
    """The oldest segments that are past the log's retention, in order."""
    count = _below_start(log)
    if DELETE in log.config.cleanup_policy:
        count = max(count, _too_old(log, now_ms), _too_many(log))
    durable = takewhile(lambda segment: segment.next_offset <= upper_offset, log.segments[:count])
    return [segment for segment in durable if not (segment.is_active and segment.size_bytes == 0)]


def _below_start(log: Log) -> int:
    """Counts the sealed segments below the log start offset (DeleteRecords)."""
    sealed = log.segments[:-1]
    return len(list(takewhile(lambda segment: segment.next_offset <= log.log_start_offset, sealed)))


def _too_old(log: Log, now_ms: int) -> int:
    """Counts segments whose newest record is too old.

    A segment without timestamps (emptied by compaction, or from a client that sends none) is
    removed together with a later one, never alone. Kafka uses the time of the file instead.
    """
    if log.config.retention_ms < 0:
        return 0
    count = 0
    for index, segment in enumerate(log.segments):
        newest = newest_time(segment)
        if newest == NO_TIMESTAMP:
            continue
        if now_ms - newest <= log.config.retention_ms:
            break
        count = index + 1
    return count


def _too_many(log: Log) -> int:
    """Counts the oldest segments above `retention.bytes`."""
    if log.config.retention_bytes < 0:
        return 0
    excess = log.size_bytes - log.config.retention_bytes
    count = 0
    for segment in log.segments:
        if excess < segment.size_bytes:
            break
        excess -= segment.size_bytes
        count += 1
    return count


def newest_time(segment: Segment) -> int:
    """The largest timestamp of a segment; -1 without any."""
    if segment.max_timestamp == NO_TIMESTAMP and segment.size_bytes:
        segment.index()  # Sets it from the last entry of the time index.
    return segment.max_timestamp
