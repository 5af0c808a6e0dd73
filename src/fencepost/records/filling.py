"""Writes rows of Arrow columns into open batches of many partitions, in compiled loops.

Theory of operation. A *lane* is the number of a partition that rows go to. Every lane has at most
one open batch, which grows in a *region* of one large array, the arena:

    arena   | region 0: lane 3 | region 1: sealed, sent | region 2: lane 0 | region 3: free | ...

    region  | room for a header | record | record | ... ->position          limit|

`place_rows` decides the lane of every row. `OpenBatches.fill` copies each row once, to the place
from which it is sent. The compiled loop stops at a row that does not fit. The lane's batch is then
sealed and yielded, and the lane gets a free region. The receiver of a batch frees its region
(`take` waits for that), so the memory of a task is bounded. If too many lanes are open, the fullest
one is sealed early.

A record larger than a region becomes a separate batch outside the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fencepost.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_FLAG,
)
from fencepost.records.columns import Bytes, Column, Ints, compiled, copy_bytes
from fencepost.records.compression import compress

RECORD_OVERHEAD_BYTES: Final = 32
"""An upper bound of a record's bytes besides key and value, without headers: five varints,
attributes, header count."""

ANY_COUNT: Final = 2**31 - 1
NOT_CHOSEN: Final = -(2**40)
"""Marks a row without a chosen partition: a number that no int column can hold."""

# Placement.


@compiled
def _murmur2(data: Bytes, start: int, end: int) -> int:
    """Kafka's hash of data[start:end] without its sign, as in client/partitioner.py."""
    m = np.uint32(0x5BD1E995)
    size = end - start
    value = np.uint32(0x9747B28C) ^ np.uint32(size)
    whole = start + (size & ~3)
    for i in range(start, whole, 4):
        word = (
            np.uint32(data[i])
            | (np.uint32(data[i + 1]) << np.uint32(8))
            | (np.uint32(data[i + 2]) << np.uint32(16))
            | (np.uint32(data[i + 3]) << np.uint32(24))
        )
        word = np.uint32(word * m)
        word = np.uint32(word ^ (word >> np.uint32(24)))
        word = np.uint32(word * m)
        value = np.uint32(np.uint32(value * m) ^ word)
    if whole < end:
        for i in range(end - 1, whole - 1, -1):
            value = np.uint32(value ^ (np.uint32(data[i]) << np.uint32(8 * (i - whole))))
        value = np.uint32(value * m)
    value = np.uint32(value ^ (value >> np.uint32(13)))
    value = np.uint32(value * m)
    value = np.uint32(value ^ (value >> np.uint32(15)))
    return int(value & np.uint32(0x7FFFFFFF))


@compiled
def _place_rows(
    key_data: Bytes,
    key_offsets: Ints,
    key_nulls: Bytes,
    value_offsets: Ints,
    topics: Ints,
    chosen: Ints,
    counts: Ints,
    first_lanes: Ints,
    first_turn: int,
    keyless_bytes: int,
    run_bytes: int,
    lanes: Any,
) -> tuple[int, int]:
    """Fills `lanes`; returns the first row with a wrong partition, or -1, and keyless bytes."""
    for row in range(len(lanes)):
        topic = topics[row] if len(topics) else 0
        partition = chosen[row] if len(chosen) else NOT_CHOSEN
        if partition != NOT_CHOSEN:
            if not 0 <= partition < counts[topic]:
                return row, keyless_bytes
        elif not key_nulls[row]:
            partition = _murmur2(key_data, key_offsets[row], key_offsets[row + 1]) % counts[topic]
        else:
            partition = (first_turn + keyless_bytes // run_bytes) % counts[topic]
            size = value_offsets[row + 1] - value_offsets[row]
            keyless_bytes += size + RECORD_OVERHEAD_BYTES
        lanes[row] = first_lanes[topic] + partition
    return -1, keyless_bytes


class Placed(NamedTuple):
    """The lanes of some rows."""

    lanes: Ints
    wrong_row: int
    """The first row whose partition does not exist; -1 if there is none."""
    keyless_bytes: int


def place_rows(
    keys: Column,
    values: Column,
    topics: Ints,
    chosen: Ints,
    counts: Ints,
    first_lanes: Ints,
    *,
    first_turn: int,
    keyless_bytes: int,
    run_bytes: int,
) -> Placed:
    """The lane of every row: by its chosen partition, by its key, or in turns by bytes.

    With empty `topics` all rows go to topic 0; with empty `chosen` no row has chosen a partition.
    """
    lanes = np.empty(len(keys.nulls), np.int64)
    wrong_row, keyless_bytes = _place_rows(
        *keys,
        values.offsets,
        topics,
        chosen,
        counts,
        first_lanes,
        first_turn,
        keyless_bytes,
        run_bytes,
        lanes,
    )
    return Placed(lanes, wrong_row, keyless_bytes)


# Filling.


@compiled
def _varint_size(value: int) -> int:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    size = 1
    while rest >= 128:
        rest >>= 7
        size += 1
    return size


@compiled
def _write_varint(out: Bytes, position: int, value: int) -> int:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    while rest >= 128:
        out[position] = (rest & 0x7F) | 0x80
        rest >>= 7
        position += 1
    out[position] = rest
    return position + 1


@compiled
def _field_size(offsets: Ints, nulls: Bytes, row: int) -> Any:
    if nulls[row]:
        return 1
    size = offsets[row + 1] - offsets[row]
    return _varint_size(size) + size


@compiled
def _write_field(
    out: Bytes, position: int, data: Bytes, offsets: Ints, nulls: Bytes, row: int
) -> Any:
    if nulls[row]:
        return _write_varint(out, position, -1)
    start = offsets[row]
    size = offsets[row + 1] - start
    position = _write_varint(out, position, size)
    copy_bytes(out, position, data, start, size)
    return position + size


@compiled
def _append_rows(
    key_data: Bytes,
    key_offsets: Ints,
    key_nulls: Bytes,
    value_data: Bytes,
    value_offsets: Ints,
    value_nulls: Bytes,
    lanes: Ints,
    row: int,
    arena: Bytes,
    positions: Ints,
    limits: Ints,
    counts: Ints,
    most: Ints,
) -> int:
    """Writes rows to their lanes; returns the first row that does not fit, or their number."""
    while row < len(lanes):
        lane = lanes[row]
        delta = counts[lane]
        position = positions[lane]
        key_size = _field_size(key_offsets, key_nulls, row)
        value_size = _field_size(value_offsets, value_nulls, row)
        # Attributes, timestamp delta 0, offset delta, key, value, no headers.
        body = 3 + _varint_size(delta) + key_size + value_size
        if delta >= most[lane] or position + _varint_size(body) + body > limits[lane]:
            return row
        position = _write_varint(arena, position, body)
        arena[position] = 0
        arena[position + 1] = 0
        position = _write_varint(arena, position + 2, delta)
        position = _write_field(arena, position, key_data, key_offsets, key_nulls, row)
        position = _write_field(arena, position, value_data, value_offsets, value_nulls, row)
        arena[position] = 0
        positions[lane] = position + 1
        counts[lane] = delta + 1
        row += 1
    return row


class EncodedBatch(NamedTuple):
    """A transactional batch without producer and CRC: the writer adds both."""

    lane: int
    record_count: int
    data: bytearray | memoryview
    region: int | None
    """The region that `data` is a view of; None for a separate batch."""


class OpenBatches:
    """The open batches of one task."""

    def __init__(
        self,
        arena: Bytes,
        region_bytes: int,
        take: Callable[[], int],
        give_back: Callable[[int], None],
        *,
        codec: int,
        clock: Callable[[], int],
    ) -> None:
        assert len(arena) >= 2 * region_bytes
        self._arena = arena
        self._region_bytes = region_bytes
        self._take = take
        self._give_back = give_back
        self._codec = codec
        self._clock = clock
        self._max_open = max(1, len(arena) // region_bytes // 2)
        self._open: dict[int, int] = {}
        """The region of every lane that has one."""
        self._positions, self._limits, self._counts, self._most = (
            np.zeros(0, np.int64) for _ in range(4)
        )

    def add_lanes(self, firsts: Sequence[int]) -> None:
        """Adds lanes, each with the maximum number of records of its first batch."""
        more = np.zeros(len(firsts), np.int64)
        self._positions = np.concatenate([self._positions, more])
        self._counts = np.concatenate([self._counts, more])
        self._limits = np.concatenate([self._limits, more])
        self._most = np.concatenate([self._most, np.array(firsts, np.int64)])

    def fill(self, keys: Column, values: Column, lanes: Ints) -> Iterator[EncodedBatch]:
        """Adds rows; yields the batches that became full."""
        row = 0
        while True:
            row = _append_rows(
                *keys,
                *values,
                lanes,
                row,
                self._arena,
                self._positions,
                self._limits,
                self._counts,
                self._most,
            )
            if row == len(lanes):
                return
            lane = int(lanes[row])
            if self._counts[lane]:
                yield self._close(lane)
            size = _row_bytes(keys, row) + _row_bytes(values, row) + RECORD_OVERHEAD_BYTES
            if size > self._region_bytes - HEADER_BYTES:
                yield self._alone(lane, keys, values, row, size)
                row += 1
            elif lane not in self._open:
                if len(self._open) == self._max_open:
                    yield self._close(max(self._open, key=lambda one: int(self._counts[one])))
                self._begin(lane)

    def close_all(self) -> Iterator[EncodedBatch]:
        """Yields the open batches, in the order of their lanes."""
        for lane in sorted(self._open):
            yield self._close(lane)

    def _begin(self, lane: int) -> None:
        region = self._open[lane] = self._take()
        self._positions[lane] = region * self._region_bytes + HEADER_BYTES
        self._limits[lane] = (region + 1) * self._region_bytes

    def _close(self, lane: int) -> EncodedBatch:
        region = self._open.pop(lane)
        begin, end = region * self._region_bytes, int(self._positions[lane])
        count = int(self._counts[lane])
        self._counts[lane] = self._limits[lane] = 0
        self._most[lane] = ANY_COUNT
        data, is_view = self._headed(self._arena[begin:end], count)
        if is_view:
            return EncodedBatch(lane, count, data, region)
        self._give_back(region)
        return EncodedBatch(lane, count, data, None)

    def _alone(self, lane: int, keys: Column, values: Column, row: int, size: int) -> EncodedBatch:
        """Builds a separate batch for a record that fits into no region."""
        room = np.empty(HEADER_BYTES + size, np.uint8)
        at = np.array([HEADER_BYTES], np.int64)
        limit, count, one = np.array([len(room)]), np.zeros(1, np.int64), np.ones(1, np.int64)
        here = np.zeros(row + 1, np.int64)
        written = _append_rows(*keys, *values, here, row, room, at, limit, count, one)
        assert written == row + 1, "the room was measured for it"
        self._most[lane] = ANY_COUNT
        data, _ = self._headed(room[: int(at[0])], 1)
        return EncodedBatch(lane, 1, data, None)

    def _headed(self, content: Bytes, record_count: int) -> tuple[bytearray | memoryview, bool]:
        """Writes the header before the records; in place, unless they are compressed."""
        data: bytearray | memoryview = content.data
        if self._codec:
            data = bytearray(HEADER_BYTES)
            data += compress(self._codec, content[HEADER_BYTES:].data)
        now_ms = self._clock()
        length = len(data) - LOG_OVERHEAD_BYTES
        fields = (self._codec | TRANSACTIONAL_FLAG, record_count - 1, now_ms, now_ms, -1, -1, -1)
        HEADER.pack_into(data, 0, 0, length, 0, MAGIC, 0, *fields, record_count)
        return data, not self._codec


def _row_bytes(column: Column, row: int) -> int:
    return int(column.offsets[row + 1] - column.offsets[row])
