"""Compaction: the newest record of every key, and nothing lost that a producer or a reader still needs.

A round looks at the dirty part of the log (from `first_dirty_offset` to the first segment that may not be
touched yet), notes the newest offset of each key in it, and writes all segments up to there anew without
what is superseded (`cleaning.py`). Offsets never change; small neighbours become one segment.

What may not be touched: the active segment, anything that reaches `upper_offset` (the caller's last stable
offset), and segments younger than min.compaction.lag.ms. A log with damage is not compacted at all: nobody knows which keys
the damaged batch holds.

The swap survives a crash at any point:

    1. write .log.cleaned, .index.cleaned, .timeindex.cleaned, .txnindex.cleaned; sync them and their names
    2. rename each to .swap, the log last; sync the folder.   From here on the new segment is the truth.
    3. remove the segments it replaces, rename each .swap to its own name, the log last; sync the folder

A crash before the end of 2 leaves the old segments and some litter, one after it a `.log.swap`, which the
next open finishes (`recovery.finish_swap`).

`compaction` is a generator that yields after about a megabyte of work, so that a broker can serve its
clients in between. It yields None, or a sync that must have run before it goes on. What changes under it (a segment deleted, the log truncated) ends the round without harm.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.base.failures import CorruptError, StorageError
from fencepost.base.seams import File
from fencepost.log.cleaning import (
    CleanedTransactions,
    Cleaner,
    LastRecord,
    NewestOffsets,
    last_records_of,
)
from fencepost.log.durability import PendingSync
from fencepost.log.log import Log
from fencepost.log.names import CLEANED, INDEX, LOG, SEGMENT_SUFFIXES, SWAP, TIME_INDEX, TXN_INDEX
from fencepost.log.retention import newest_time
from fencepost.log.segment import Segment
from fencepost.log.survey import MAX_RELATIVE_OFFSET, survey
from fencepost.records.batch import CRC_START, HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.index import encode_aborted_txn
from fencepost.records.opened import iterate_records

_STEP_BYTES: Final = 1024 * 1024
_MAX_POSITION: Final = 2**31 - 1


class Compacted(NamedTuple):
    """What a round did."""

    first_dirty_offset: int
    bytes_before: int
    bytes_after: int


class Plan(NamedTuple):
    """What a round would look at."""

    first_dirty_offset: int
    end_offset: int
    """The base offset of the first segment that may not be touched."""
    dirty_bytes: int
    clean_bytes: int
    is_overdue: bool
    """max.compaction.lag.ms has passed for something in the dirty part."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_it(self, min_cleanable_dirty_ratio: float) -> bool:
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio > min_cleanable_dirty_ratio


class _Interrupted(Exception):  # noqa: N818 - the log changed under us, which is nobody's error.
    pass


def compact(
    log: Log,
    *,
    upper_offset: int,
    now_ms: int,
    last_records: Mapping[int, LastRecord] | None = None,
    force: bool = False,
) -> Compacted | None:
    """Runs a whole round at once; None when the log is not dirty enough to be worth it."""
    steps = compaction(
        log, upper_offset=upper_offset, now_ms=now_ms, last_records=last_records, force=force
    )
    while True:
        try:
            if (sync := next(steps)) is not None:
                sync.run()
        except StopIteration as done:
            result: Compacted | None = done.value
            return result


def compaction(
    log: Log,
    *,
    upper_offset: int,
    now_ms: int,
    last_records: Mapping[int, LastRecord] | None = None,
    force: bool = False,
) -> Generator[PendingSync | None, None, Compacted | None]:
    """A round in steps.

    `last_records` are the partition's active producers, whose last batches must stay; without it every
    producer in the log counts as active. `force` cleans however clean the log is.
    """
    try:
        plan = plan_round(log, upper_offset, now_ms)
        if not plan.is_worth_it(0.0 if force else log.config.min_cleanable_dirty_ratio):
            return None
        if last_records is None:
            last_records = last_records_of(log.scan(log.log_start_offset, headers_only=True))
        return (yield from _run(log, plan, now_ms, last_records))
    except _Interrupted:
        return None
    except OSError as problem:
        raise StorageError(f"{log.folder}: compaction failed: {problem}") from problem


def plan_round(log: Log, upper_offset: int, now_ms: int) -> Plan:
    """The part of the log that could be cleaned now."""
    first_dirty = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    dirty = [s for s in log.segments_from(first_dirty) if not s.is_active]
    if any(segment.damage for segment in log.segments):
        dirty = []
    cleanable: list[Segment] = []
    for segment in dirty:
        if segment.next_offset > upper_offset or _is_too_young(log, segment, now_ms):
            break
        cleanable.append(segment)
    end = cleanable[-1].next_offset if cleanable else first_dirty
    clean_bytes = sum(s.size_bytes for s in log.segments if s.next_offset <= first_dirty)
    overdue_ms = now_ms - max(log.config.max_compaction_lag_ms, 0)
    return Plan(
        first_dirty,
        end,
        sum(segment.size_bytes for segment in cleanable),
        clean_bytes,
        any(0 < _first_time(segment) < overdue_ms for segment in dirty),
    )


def _is_too_young(log: Log, segment: Segment, now_ms: int) -> bool:
    lag_ms = log.config.min_compaction_lag_ms
    return lag_ms > 0 and newest_time(segment) > now_ms - lag_ms


def _first_time(segment: Segment) -> int:
    if segment.size_bytes == 0:
        return -1
    return read_header(segment.file().read(0, HEADER_BYTES)).max_timestamp


def _run(
    log: Log, plan: Plan, now_ms: int, last_records: Mapping[int, LastRecord]
) -> Generator[PendingSync | None, None, Compacted]:
    if log.recovery_point < plan.end_offset:
        # What supersedes an older record must be as durable as that was.
        pending = log.prepare_flush()
        yield pending
        log.complete_sync(pending)
    newest = NewestOffsets()
    yield from _fill(log, plan, newest)
    cleaner = Cleaner(
        newest,
        last_records,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
    )
    sources = [s for s in log.segments if s.base_offset < newest.end_offset and not s.is_active]
    bytes_before, bytes_after, groups = 0, 0, _group(log, sources)
    for group in groups:
        bytes_before += sum(segment.size_bytes for segment in group)
        cleaned = yield from _clean_group(log, group, cleaner)
        bytes_after += cleaned.size_bytes
    log.first_dirty_offset = newest.end_offset
    return Compacted(newest.end_offset, bytes_before, bytes_after)


def _fill(log: Log, plan: Plan, newest: NewestOffsets) -> Generator[PendingSync | None, None, None]:
    """Notes the newest offset of every key of the dirty part, as far as there is room."""
    transactions = CleanedTransactions()
    newest.end_offset = plan.first_dirty_offset
    for segment in log.segments_from(plan.first_dirty_offset):
        if segment.base_offset >= plan.end_offset:
            return
        _check_still_there(segment)
        transactions.expect(log.aborted_between(segment.base_offset, segment.next_offset))
        start = segment.seek(plan.first_dirty_offset) or 0
        step_end = start + _STEP_BYTES
        for position, batch in segment.batches(start):
            if batch.is_control:
                transactions.is_marker_idle(batch)
            elif not transactions.is_aborted(batch) and not _note_keys(batch, plan, newest):
                return
            newest.end_offset = max(newest.end_offset, batch.next_offset)
            if position > step_end:
                step_end = position + _STEP_BYTES
                yield None
        _check_still_there(segment)
        newest.end_offset = max(newest.end_offset, segment.next_offset)
        yield None


def _check_still_there(segment: Segment) -> None:
    if segment.is_gone:
        raise _Interrupted


def _note_keys(batch: SealedBatch, plan: Plan, newest: NewestOffsets) -> bool:
    """False when the map is full: the round ends before this batch."""
    try:
        for record in iterate_records(batch):
            if record.key is None or record.offset < plan.first_dirty_offset:
                continue
            if not newest.put(record.key, record.offset):
                return False
    except BatchError:
        pass  # What cannot be opened is kept as it is, and supersedes nothing.
    return True


def _group(log: Log, segments: list[Segment]) -> list[list[Segment]]:
    """Neighbours that fit into one segment, so that compaction does not leave ever smaller ones."""
    groups: list[list[Segment]] = []
    max_bytes = min(log.config.segment_bytes, _MAX_POSITION)
    for segment in segments:
        if groups:
            size = sum(member.size_bytes for member in groups[-1]) + segment.size_bytes
            span = segment.next_offset - 1 - groups[-1][0].base_offset
            if size <= max_bytes and span <= MAX_RELATIVE_OFFSET:
                groups[-1].append(segment)
                continue
        groups.append([segment])
    return groups


def _clean_group(
    log: Log, group: list[Segment], cleaner: Cleaner
) -> Generator[PendingSync | None, None, Segment]:
    """Writes one new segment in the place of some neighbours and swaps it in."""
    target = group[0]
    generation = log.generation
    path = target.path(LOG + CLEANED)
    log.disk.remove(path)
    file = log.disk.open(path, create=True)
    cleaner.transactions.retained.clear()
    cleaner.segment_end_offset = group[-1].next_offset
    try:
        size = 0
        for segment in group:
            size = yield from _clean_segment(log, segment, cleaner, file, size)
        file.sync()
        found = survey(file, size, target.base_offset, log.config.index_interval_bytes)
        if found.size_bytes != size:
            raise CorruptError(f"{path}: what was written does not read back")
    except BaseException:
        log.disk.remove(path)
        raise
    finally:
        file.close()
    if log.generation != generation or not log.holds(group):
        log.disk.remove(path)
        raise _Interrupted
    found.index.add_time(found.max_timestamp, found.max_timestamp_offset - target.base_offset)
    offset_index, time_index = found.index.encode()
    aborted = b"".join(map(encode_aborted_txn, cleaner.transactions.retained))
    _promise(log, target, {INDEX: offset_index, TIME_INDEX: time_index, TXN_INDEX: aborted})
    return log.replace_segments(group, size)


def _clean_segment(
    log: Log, segment: Segment, cleaner: Cleaner, file: File, size: int
) -> Generator[PendingSync | None, None, int]:
    _check_still_there(segment)
    cleaner.transactions.expect(log.aborted_between(segment.base_offset, segment.next_offset))
    pending: list[bytes | bytearray | memoryview] = []
    pending_bytes = 0
    step_end = _STEP_BYTES
    for position, batch in segment.batches():
        if crc32c(memoryview(batch.data)[CRC_START:]) != batch.crc:
            # Written anew it would have a right CRC and wrong records.
            segment.examine()
        if segment.damage:
            raise _Interrupted
        data = cleaner.clean(batch)
        if data is not None:
            pending.append(data)
            pending_bytes += len(data)
        if position > step_end:
            file.append(pending)
            size, pending, pending_bytes = size + pending_bytes, [], 0
            step_end = position + _STEP_BYTES
            yield None
    _check_still_there(segment)
    if size + pending_bytes > _MAX_POSITION:
        raise _Interrupted  # Delete horizons can make a batch longer; this segment stays as it is.
    if pending:
        file.append(pending)
    yield None
    return size + pending_bytes


def _promise(log: Log, target: Segment, indexes: Mapping[str, bytes]) -> None:
    """Steps 1 and 2 of the swap; after this the new segment is the truth."""
    for suffix, data in indexes.items():
        log.disk.write_file(target.path(suffix + CLEANED), data, sync=True)
    for suffix in SEGMENT_SUFFIXES:
        log.disk.rename(target.path(suffix + CLEANED), target.path(suffix + SWAP))
    log.disk.sync_dir(log.folder)
