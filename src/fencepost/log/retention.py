"""Which segments are too old or too many, by Kafka's rules.

Segments go from the oldest on, and none that reaches what is not yet durable. The active one goes
only when all of it is too old; then a new one takes its place first, so that the log end offset is
not lost.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from fencepost.base.ids import NO_TIMESTAMP
from fencepost.log.config import DELETE
from fencepost.log.segment import Segment

if TYPE_CHECKING:
    from fencepost.log.log import Log


def expired_segments(log: Log, now_ms: int, upper_offset: int) -> list[Segment]:
    """The oldest segments that the log's retention lets go, in order."""
    count = _below_start(log)
    if DELETE in log.config.cleanup_policy:
        count = max(count, _too_old(log, now_ms), _too_many(log))
    durable = takewhile(lambda segment: segment.next_offset <= upper_offset, log.segments[:count])
    return [segment for segment in durable if not (segment.is_active and segment.size_bytes == 0)]


def _below_start(log: Log) -> int:
    """Segments that DeleteRecords has left behind."""
    sealed = log.segments[:-1]
    return len(list(takewhile(lambda segment: segment.next_offset <= log.log_start_offset, sealed)))


def _too_old(log: Log, now_ms: int) -> int:
    """Counts segments whose newest record is too old.

    A segment without any time (emptied by compaction, or written by a client that sends none) goes
    together with a later one and never by itself: Kafka asks the file system for its age.
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
    """The largest timestamp of a segment; -1 when it has none."""
    if segment.max_timestamp == NO_TIMESTAMP and segment.size_bytes:
        segment.index()  # A sealed segment learns it from the last entry of its time index.
    return segment.max_timestamp
