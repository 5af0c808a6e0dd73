"""Finds offsets by timestamp, for ListOffsets.

The time index gives the start. From there on only batches are opened whose header has a large
enough time. Damage is skipped.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from fencepost.base.ids import NO_TIMESTAMP
from fencepost.log.log import Log
from fencepost.log.segment.batches import batches_of
from fencepost.log.segment.reading import seek_position
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch
from fencepost.records.compression import decompress
from fencepost.records.opened import open_batch
from fencepost.records.scan import find_time


class TimestampOffset(NamedTuple):
    """The timestamp, offset and leader epoch of a record."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def find_timestamp(log: Log, timestamp_ms: int, upper_offset: int) -> TimestampOffset | None:
    """Finds the first record below `upper_offset` with at least this timestamp."""
    log.check_usable()
    for segment in log.segments:
        if segment.base_offset >= upper_offset:
            return None
        if segment.newest_time() < timestamp_ms:
            continue
        found = _find_in_segment(segment, timestamp_ms, log.log_start_offset)
        if found is not None:
            return found if found.offset < upper_offset else None
    return None


def _find_in_segment(segment: Segment, timestamp_ms: int, start: int) -> TimestampOffset | None:
    offset = segment.index().offset_before_time(timestamp_ms) + segment.base_offset
    position = seek_position(segment, max(start, offset))
    if position is None:
        return None
    for batch in batches_of(segment, position):
        if batch.max_timestamp >= timestamp_ms:
            found = _find_in_batch(segment, batch, timestamp_ms, start)
            if found is not None:
                return found
    return None


def _find_in_batch(
    segment: Segment, batch: SealedBatch, timestamp_ms: int, start: int
) -> TimestampOffset | None:
    """Searches one batch; an empty or unreadable batch gives its largest time and first offset."""
    found: tuple[int, int] | None = batch.max_timestamp, batch.base_offset
    if batch.record_count > 0:
        with contextlib.suppress(BatchError):
            payload = decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:])
            found = find_time(batch, payload, timestamp_ms, start)
    if found is None or found[1] < start:
        return None
    return TimestampOffset(found[0], found[1], segment.leader_epoch_of(batch))


def find_newest(log: Log) -> TimestampOffset | None:
    """Finds the first record with the largest timestamp of the log; None without timestamps."""
    log.check_usable()
    best: Segment | None = None
    for segment in log.segments:
        if best is None or segment.newest_time() > best.newest_time():
            best = segment
    if best is None or best.newest_time() == NO_TIMESTAMP:
        return None
    position = seek_position(best, best.max_timestamp_offset)
    batch = None if position is None else next(batches_of(best, position), None)
    if batch is None:
        return None  # It is damaged, and nothing follows it.
    found = _find_in_batch(best, batch, batch.max_timestamp, batch.base_offset)
    if found is not None:
        return found
    # The header has a time that no record has.
    records = open_batch(batch)
    newest = max(records, key=lambda record: (record.timestamp_ms, -record.offset))
    return TimestampOffset(newest.timestamp_ms, newest.offset, best.leader_epoch_of(batch))
