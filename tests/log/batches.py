"""Batches and logs for the tests of the log."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fencepost.base.failures import StorageError
from fencepost.base.seams import Disk
from fencepost.log import Log, LogConfig, opening
from fencepost.log.cleaning import LastRecord
from fencepost.log.compaction import Compacted, compaction
from fencepost.log.durability import PendingSync
from fencepost.log.retention import expired_segments
from fencepost.log.roll import should_roll
from fencepost.log.segment.segment import Segment
from fencepost.records.batch import SealedBatch, read_header, split_batches
from fencepost.records.builder import build_batch, build_pairs
from fencepost.records.control import Marker, build_marker
from fencepost.records.opened import Record

FOLDER = "data/topic-0"
Pair = tuple[bytes | None, bytes | None]


class SeededRandomness:
    """Seeded randomness."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def open_log(
    disk: Disk,
    config: LogConfig | None = None,
    *,
    clean: bool = False,
    folder: str = FOLDER,
    **more: Any,
) -> Log:
    return opening.open_log(disk, folder, config or LogConfig(), now_ms=0, clean=clean, **more)


def sealed(
    log: Log, pairs: Sequence[Pair], *, timestamp_ms: int = 1000, **more: Any
) -> SealedBatch:
    more.setdefault("leader_epoch", 1)
    return build_pairs(pairs, timestamp_ms=timestamp_ms, base_offset=log.log_end_offset, **more)


def append(
    log: Log, count: int = 1, *, size: int = 10, timestamp_ms: int = 1000, **more: Any
) -> SealedBatch:
    """Appends a batch of `count` records, and rolls where Kafka would."""
    pairs: list[Pair] = [(b"key", b"v" * size)] * count
    return put(log, sealed(log, pairs, timestamp_ms=timestamp_ms, **more), timestamp_ms)


def put(log: Log, batch: SealedBatch, now_ms: int = 0) -> SealedBatch:
    if should_roll(log.active, log.config, batch, now_ms):
        log.roll(now_ms)
    log.append(batch)
    return batch


def append_pairs(log: Log, *pairs: Pair, timestamp_ms: int = 1000, **more: Any) -> SealedBatch:
    return put(log, sealed(log, pairs, timestamp_ms=timestamp_ms, **more))


def append_times(log: Log, *timestamps: int) -> SealedBatch:
    """A batch with one record per time."""
    records = [Record(0, timestamp, b"k", b"v") for timestamp in timestamps]
    data = build_batch(records, timestamp_ms=-1, base_offset=log.log_end_offset)
    return put(log, read_header(data))


def append_marker(
    log: Log, producer_id: int, *, commit: bool, epoch: int = 0, timestamp_ms: int = 1000
) -> SealedBatch:
    batch = build_marker(
        Marker(commit, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=timestamp_ms,
        base_offset=log.log_end_offset,
    )
    return put(log, batch)


def all_bytes(log: Log) -> bytes:
    """All bytes that a reader gets from start to end."""
    parts: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, upper_offset=log.log_end_offset)
        parts.append(bytes(part.data))
        assert part.next_offset > offset, "every read makes progress"
        offset = part.next_offset
    return b"".join(parts)


def all_batches(log: Log) -> list[SealedBatch]:
    return split_batches(all_bytes(log))


Table = dict[bytes, bytes]


def fold(log: Log, upper_offset: int | None = None) -> Table:
    """The newest committed value of every key, which compaction must keep."""
    table: Table = {}
    pending: dict[int, list[Pair]] = {}
    for entry in log.entries(log.log_start_offset):
        if upper_offset is not None and entry.offset >= upper_offset:
            break
        if entry.marker is not None:
            for pair in pending.pop(entry.producer_id, []) if entry.marker.commit else ():
                apply_pair(table, pair)
            pending.pop(entry.producer_id, None)
        elif entry.transactional:
            pending.setdefault(entry.producer_id, []).append((entry.key, entry.value))
        else:
            apply_pair(table, (entry.key, entry.value))
    return table


def apply_pair(table: Table, pair: Pair) -> None:
    key, value = pair
    if key is None:
        return
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def retain(log: Log, now_ms: int, upper_offset: int) -> list[Segment]:
    """Removes what is past its retention, as the partition does; returns it."""
    expired = expired_segments(log, now_ms, upper_offset)
    if len(expired) == len(log.segments):
        log.roll(now_ms)
    return log.remove_below(expired[-1].next_offset if expired else 0)


def round_of(
    log: Log,
    *,
    upper_offset: int,
    now_ms: int,
    last_records: Mapping[int, LastRecord] | None = None,
    force: bool = False,
) -> Generator[PendingSync | None, None, Compacted | None]:
    """A round of compaction in steps; `force` compacts even a clean log."""
    if force:
        log.config = replace(log.config, min_cleanable_dirty_ratio=0.0)
    if last_records is None:
        last_records = last_records_of(log)
    return compaction(log, upper_offset=upper_offset, now_ms=now_ms, last_records=last_records)


def compact(log: Log, **more: Any) -> Compacted | None:
    """Runs a whole round of compaction; None when the log is not dirty enough."""
    steps = round_of(log, **more)
    sync: PendingSync | None = None
    while True:
        try:
            if sync is not None:
                sync.run()
        except StorageError as problem:
            steps.throw(problem)
        try:
            sync = next(steps)
        except StopIteration as done:
            result: Compacted | None = done.value
            return result


def last_records_of(log: Log) -> dict[int, LastRecord]:
    """The last record of every producer in the log, as if all of them were active."""
    found: dict[int, LastRecord] = {}
    for batch in log.scan(log.log_start_offset, headers_only=True):
        if not batch.has_producer_id:
            continue
        known = found.get(batch.producer_id)
        offset = known.last_data_offset if known is not None else None
        if not batch.is_control:
            offset = batch.last_offset
        found[batch.producer_id] = LastRecord(offset, batch.producer_epoch)
    return found
