"""The saved point of a partition: where recovery may begin after the process was killed.

    int16 version 0, u32 CRC-32C of everything after byte 6, then int64 each: offset, base offset of
    its segment, position in it, first time, largest time and its offset, bytes since the last index
    entry, number of index entries, number of aborted transactions; 16 bytes topic id, int32 number
    of producers, then per producer: producerId i64, epoch i16, coordinatorEpoch i32, timestamp i64,
    first offset of the open transaction i64 (-1: none), number of batches u8, and per batch: first
    and last sequence i32, first and last offset i64, timestamp i64

Kafka has no such file, and its tools ignore it. Unlike a `.snapshot` it has all remembered batches
of a producer: one that sends its last five batches again must get the offsets that they have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

FILE_NAME: Final = "saved-point"

_VERSION: Final = 0
_PREFIX: Final = struct.Struct(">hI")
_HEAD: Final = struct.Struct(">9q16si")
_PRODUCER: Final = struct.Struct(">qhiqqB")
_BATCH: Final = struct.Struct(">iiqqq")

SavedBatch = tuple[int, int, int, int, int]
"""First and last sequence, first and last offset, timestamp."""


class SavedProducer(NamedTuple):
    """One producer and its last batches."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    txn_first_offset: int
    batches: Sequence[SavedBatch]


class SavedSegment(NamedTuple):
    """The active segment at the saved point."""

    offset: int
    """The first offset that is not covered."""
    base_offset: int
    position: int
    """Where the batch with `offset` begins, or will begin."""
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    since_index: int
    index_entries: int
    aborted_entries: int


class SavedPoint(NamedTuple):
    """The state of a partition at one offset."""

    segment: SavedSegment
    topic_id: bytes
    producers: list[SavedProducer]


def encode_point(
    segment: SavedSegment, topic_id: bytes, producers: Iterable[SavedProducer]
) -> bytes:
    """The content of the file."""
    parts = [b""]
    count = 0
    pack, pack_batch = _PRODUCER.pack, _BATCH.pack
    for producer_id, epoch, coordinator_epoch, timestamp_ms, first_offset, batches in producers:
        parts.append(
            pack(producer_id, epoch, coordinator_epoch, timestamp_ms, first_offset, len(batches))
        )
        parts += [pack_batch(*batch) for batch in batches]
        count += 1
    parts[0] = _HEAD.pack(*segment, topic_id, count)
    body = b"".join(parts)
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def decode_point(data: bytes) -> SavedPoint | None:
    """The saved point; None for a damaged file."""
    if len(data) < _PREFIX.size + _HEAD.size:
        return None
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION or crc != crc32c(memoryview(data)[_PREFIX.size :]):
        return None
    *segment, topic_id, count = _HEAD.unpack_from(data, _PREFIX.size)
    position = _PREFIX.size + _HEAD.size
    producers: list[SavedProducer] = []
    for _ in range(count):
        *fields, batch_count = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size
        end = position + batch_count * _BATCH.size
        batches = list(_BATCH.iter_unpack(data[position:end]))
        producers.append(SavedProducer._make((*fields, batches)))
        position = end
    assert position == len(data), "the checksum holds, so these are our own bytes"
    return SavedPoint(SavedSegment(*segment), topic_id, producers)
