"""Reads a log from an offset to its end: batches, or the records in them.

The caller may pause between two batches. If segments are compacted or removed during a pause, the
scan continues in the segment that has its offset now. It ends when the log is closed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from fencepost.base.failures import DamagedError, StorageError
from fencepost.log.segment.batches import batches_of
from fencepost.log.segment.reading import seek_position
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import SealedBatch
from fencepost.records.entry import Entry, entries_of

if TYPE_CHECKING:
    from fencepost.log.log import Log


def scan_batches(log: Log, from_offset: int, headers_only: bool) -> Iterator[SealedBatch]:
    """The batches from the one with an offset on; skips damage."""
    offset = from_offset
    while offset < log.log_end_offset and not log.active.is_gone:
        log.check_usable()
        segment = log.segment_list.at(offset)
        for batch in _scan_segment(log, segment, offset, headers_only):
            yield batch
            offset = batch.next_offset
            if log.is_closed:
                return
        if not segment.is_gone:
            if segment is log.active:
                return
            offset = max(offset, segment.next_offset)


def _scan_segment(
    log: Log, segment: Segment, offset: int, headers_only: bool
) -> Iterator[SealedBatch]:
    try:
        position = seek_position(segment, offset)
        if position is not None:
            yield from batches_of(segment, position, headers_only=headers_only)
    except OSError as problem:
        raise StorageError(f"{log.folder}: reading failed: {problem}") from problem


def scan_entries(log: Log, from_offset: int) -> Iterator[Entry]:
    """The records and markers from an offset on; skips damage, and checks no CRC of records."""
    for batch in scan_batches(log, from_offset, headers_only=False):
        for entry in entries_of(batch):
            if entry.offset >= from_offset:
                yield entry


def scan_whole_entries(log: Log, from_offset: int) -> Iterator[Entry]:
    """The same; DamagedError if a batch is missing or fails its check."""
    for first, end in log.missing:
        if end > from_offset:
            raise DamagedError(f"{log.folder}: offsets {first} to {end - 1} are missing")
    offset = max(from_offset, log.log_start_offset)
    while offset < log.log_end_offset and not log.active.is_gone:
        log.check_usable()
        segment = log.segment_list.at(offset)
        offset = yield from _whole_segment(log, segment, offset)
        if segment is log.active:
            return


def _whole_segment(log: Log, segment: Segment, from_offset: int) -> Generator[Entry, None, int]:
    """Yields the entries of one segment from an offset on; returns the next offset to read."""
    segment.refuse_damage(from_offset)
    next_offset = -1
    for batch in _scan_segment(log, segment, from_offset, headers_only=False):
        if batch.base_offset < next_offset or not batch.is_sound:
            _examine(log, segment)
        segment.refuse_damage(from_offset)
        for entry in entries_of(batch):
            if entry.offset >= from_offset:
                yield entry
        next_offset = batch.next_offset
    if segment.is_gone:  # Compacted or removed during a pause: its replacement is read next.
        return max(next_offset, from_offset)
    if next_offset < segment.next_offset and not segment.is_active:
        _examine(log, segment)
    segment.refuse_damage(from_offset)
    return segment.next_offset


def _examine(log: Log, segment: Segment) -> None:
    try:
        segment.examine()
    except OSError as problem:
        raise StorageError(f"{log.folder}: reading failed: {problem}") from problem
