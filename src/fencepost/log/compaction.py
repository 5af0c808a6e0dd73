"""Compaction: keeps the newest record of every key, and what producers and readers still need.

A round reads the dirty part of the log, from `first_dirty_offset` to the first segment that may not
be compacted. It notes the newest offset of each key, and rewrites all segments up to there without
superseded records (`cleaning.py`). Offsets never change; small neighbours become one segment.

A round leaves alone the active segment, everything at or above `upper_offset` (the caller's last
stable offset), and segments younger than min.compaction.lag.ms. A log with damage is not compacted:
the keys in a damaged batch are unknown.

The swap survives a crash and a failing disk at any point:

    1. write .log.cleaned, .index.cleaned, .timeindex.cleaned, .txnindex.cleaned; sync them
    2. rename each to .swap, the log last; sync the folder. With .log.swap the new segment counts.
    3. remove the replaced segments, rename each .swap to its final name, the log last

A crash before `.log.swap` exists leaves the old segments and temporary files, which the next open
removes. From then on the next open finishes the swap. `swap.py` has the states in between, and what
may run in each.

`compaction` is a generator that yields after some milliseconds of work, so that the broker can
serve its clients. It yields None, or a sync that must run before it continues. A change of the log
(a segment removed, the swap withdrawn) ends the round without harm. So does the close of the log:
its folder may belong to another process by then, so the round no longer touches any file.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.base.failures import CorruptError, StorageError
from fencepost.base.seams import Buffer, File
from fencepost.log.cleaning import (
    RECORDS_PER_STEP,
    CleanedTransactions,
    Cleaner,
    LastRecord,
    NewestOffsets,
)
from fencepost.log.durability import PendingSync
from fencepost.log.log import Log
from fencepost.log.names import CLEANED, LOG, SEGMENT_SUFFIXES, TXN_INDEX
from fencepost.log.segment.batches import batches_of
from fencepost.log.segment.index_files import write_index
from fencepost.log.segment.reading import seek_position
from fencepost.log.segment.segment import Segment
from fencepost.log.segment.survey import MAX_RELATIVE_OFFSET, Survey, survey_more
from fencepost.log.swap import SwapState, remove_cleaned
from fencepost.records.batch import CRC_START, BatchError, SealedBatch
from fencepost.records.index import encode_aborted_txn
from fencepost.records.opened import iterate_records

_STEP_COST: Final = 500_000
"""The work of one step: bytes copied, plus `_RECORD_COST` per record."""
_RECORD_COST: Final = 200
_MAX_POSITION: Final = 2**31 - 1


class Compacted(NamedTuple):
    """The result of a round."""

    first_dirty_offset: int
    bytes_before: int
    bytes_after: int


class Plan(NamedTuple):
    """The part of the log that a round would compact."""

    first_dirty_offset: int
    end_offset: int
    """The base offset of the first segment that may not be compacted."""
    dirty_bytes: int
    clean_bytes: int
    is_overdue: bool
    """Whether max.compaction.lag.ms has passed for a dirty segment."""

    @property
    def dirty_ratio(self) -> float:
        """The dirty fraction of the bytes that a round would read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_it(self, min_cleanable_dirty_ratio: float) -> bool:
        """Whether the log is dirty enough, or compaction is overdue."""
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio > min_cleanable_dirty_ratio


class _Interrupted(Exception):  # noqa: N818 - the log changed during the round: not an error.
    pass


def compaction(
    log: Log,
    *,
    upper_offset: int,
    now_ms: int,
    last_records: Mapping[int, LastRecord],
) -> Generator[PendingSync | None, None, Compacted | None]:
    """Runs a round in steps; keeps the last batches of the producers in `last_records`."""
    try:
        plan = plan_round(log, upper_offset, now_ms)
        if not plan.is_worth_it(log.config.min_cleanable_dirty_ratio):
            return None
        return (yield from _run(log, plan, now_ms, last_records))
    except _Interrupted:
        return None
    except OSError as problem:
        raise StorageError(f"{log.folder}: compaction failed: {problem}") from problem


def plan_round(log: Log, upper_offset: int, now_ms: int) -> Plan:
    """Returns the part of the log that may be compacted now; ends a swap that was left before."""
    log.end_swap()
    first_dirty = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    dirty = [s for s in log.segments_from(first_dirty) if not s.is_active]
    if not log.is_sound:
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
        any(s.size_bytes and 0 < s.first_time() < overdue_ms for s in dirty),
    )


def _is_too_young(log: Log, segment: Segment, now_ms: int) -> bool:
    lag_ms = log.config.min_compaction_lag_ms
    return lag_ms > 0 and segment.newest_time() > now_ms - lag_ms


def _run(
    log: Log, plan: Plan, now_ms: int, last_records: Mapping[int, LastRecord]
) -> Generator[PendingSync | None, None, Compacted]:
    if log.recovery_point < plan.end_offset:
        # A record that supersedes another must be as durable as the other was.
        pending = log.prepare_flush()
        yield from _pause(log, pending)
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
    """Fills the map with the keys of the dirty part, until it is full."""
    transactions = CleanedTransactions()
    newest.end_offset = plan.first_dirty_offset
    for segment in log.segments_from(plan.first_dirty_offset):
        if segment.base_offset >= plan.end_offset:
            return
        _check_still_there(segment)
        transactions.expect(log.aborted_between(segment.base_offset, segment.next_offset))
        start = seek_position(segment, plan.first_dirty_offset) or 0
        cost = 0
        for batch in batches_of(segment, start):
            if batch.is_control:
                transactions.is_marker_idle(batch)
            elif not transactions.is_aborted(batch):
                is_noted = yield from _note_keys(batch, plan, newest)
                if not is_noted:
                    return
            newest.end_offset = max(newest.end_offset, batch.next_offset)
            cost += _cost_of(batch)
            if cost > _STEP_COST:
                cost = 0
                yield from _pause(log)
        _check_still_there(segment)
        newest.end_offset = max(newest.end_offset, segment.next_offset)
        yield from _pause(log)


def _check_still_there(segment: Segment) -> None:
    if segment.is_gone:
        raise _Interrupted


def _pause(log: Log, sync: PendingSync | None = None) -> Generator[PendingSync | None, None, None]:
    """Lets others run; the round ends here if they have closed the log."""
    yield sync
    if log.is_closed:
        raise _Interrupted


def _cost_of(batch: SealedBatch) -> int:
    return batch.size_bytes + _RECORD_COST * batch.record_count


def _note_keys(
    batch: SealedBatch, plan: Plan, newest: NewestOffsets
) -> Generator[None, None, bool]:
    """Adds the keys of a batch; False when the map is full, and the round ends before it."""
    try:
        for number, record in enumerate(iterate_records(batch), 1):
            if number % RECORDS_PER_STEP == 0:
                yield
            if record.key is None or record.offset < plan.first_dirty_offset:
                continue
            if not newest.put(record.key, record.offset):
                return False
    except BatchError:
        pass  # A batch that cannot be opened is kept, and supersedes nothing.
    return True


def _group(log: Log, segments: list[Segment]) -> list[list[Segment]]:
    """Groups neighbours that fit into one segment, so that segments do not keep shrinking."""
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
    """Writes one new segment for a group of neighbours and swaps it in."""
    cleaner.transactions.retained.clear()
    cleaner.segment_end_offset = group[-1].next_offset
    try:
        found = yield from _write_cleaned(log, group, cleaner)
        if group[0].is_gone or not log.segment_list.holds(group):
            raise _Interrupted
        swap = log.promise_swap(group, found.size_bytes)
        # If the disk does not confirm these names, other names in the folder may be lost as well:
        # fatal, like every failed sync of the log itself.
        yield from _pause(log, _sync_of(log, folders=[log.folder]))
        if swap.state is not SwapState.PROMISED:
            raise _Interrupted  # Retention has withdrawn it.
    except BaseException:
        _give_up(log, group[0])
        raise
    log.finish_swap(swap)
    return swap.new


def _give_up(log: Log, target: Segment) -> None:
    """Removes the files of an unfinished segment, if the disk lets us."""
    if log.is_closed:
        return
    try:
        log.end_swap()
    except StorageError:
        return  # The next operation that changes sealed segments tries again.
    remove_cleaned(log.disk, target.path(""))


def _sync_of(log: Log, *, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> PendingSync:
    return PendingSync(
        log.disk,
        end_offset=0,
        number=0,
        paths=list(paths),
        folders=list(folders),
        is_temporary=bool(paths),  # New files, which are removed again: the log is unchanged.
    )


def _write_cleaned(
    log: Log, group: list[Segment], cleaner: Cleaner
) -> Generator[PendingSync | None, None, Survey]:
    """Step 1 of the swap: writes and syncs the files of the new segment."""
    target = group[0]
    path = target.path(LOG + CLEANED)
    log.disk.remove(path)
    found = Survey(target.base_offset, log.config.index_interval_bytes)
    file = log.disk.open(path, create=True)
    try:
        for segment in group:
            yield from _clean_segment(log, segment, cleaner, file, found)
        if file.size() != found.size_bytes:
            raise CorruptError(f"{path}: the file does not have the size that was written")
    finally:
        file.close()
    found.index.add_time(found.max_timestamp, found.max_timestamp_offset - target.base_offset)
    write_index(log.disk, target.path(""), found.index, CLEANED)
    aborted = b"".join(map(encode_aborted_txn, cleaner.transactions.retained))
    log.disk.write_file(target.path(TXN_INDEX + CLEANED), aborted, sync=False)
    written = [target.path(suffix + CLEANED) for suffix in SEGMENT_SUFFIXES]
    try:
        yield from _pause(log, _sync_of(log, paths=written))
    except StorageError as problem:
        raise StorageError(f"{log.folder}: compaction failed: {problem}") from problem
    return found


def _clean_segment(
    log: Log, segment: Segment, cleaner: Cleaner, file: File, found: Survey
) -> Generator[PendingSync | None, None, None]:
    _check_still_there(segment)
    cleaner.transactions.expect(log.aborted_between(segment.base_offset, segment.next_offset))
    pending: list[Buffer] = []
    cost, end_offset = 0, segment.base_offset
    for batch in batches_of(segment):
        if crc32c(memoryview(batch.data)[CRC_START:]) != batch.crc:
            # Rewritten it would have a valid CRC and wrong records.
            segment.examine()
        if segment.damage:
            raise _Interrupted
        data = yield from cleaner.clean(batch)
        if data is not None:
            pending.append(data)
        end_offset = batch.next_offset
        cost += _cost_of(batch)
        if cost > _STEP_COST:
            _write(file, pending, found)
            pending, cost = [], 0
            yield from _pause(log)
    _check_still_there(segment)
    if end_offset != segment.next_offset:
        segment.examine()  # Notes what is missing at its end.
    if segment.damage:
        raise _Interrupted
    _write(file, pending, found)
    yield from _pause(log)


def _write(file: File, pending: list[Buffer], found: Survey) -> None:
    """Appends cleaned batches to the new segment and to its index."""
    if not pending:
        return
    data = b"".join(pending)
    if found.size_bytes + len(data) > _MAX_POSITION:
        raise _Interrupted  # Delete horizons can make batches longer; the segments stay.
    file.append((data,))
    if not survey_more(found, data):
        raise CorruptError("a cleaned batch fails its check")
