"""The checkpoint of a coordinator: its state at one offset of its log.

    int16 version 1, u32 CRC-32C of all other bytes, int64 offset, int32 count, then per record:
    int64 offset, int64 producer id (both -1 where they do not matter), int32 length of the key,
    int32 length of the value (-1: a tombstone), the bytes of the key, the bytes of the value

The records are those of a fully compacted log up to the offset, byte for byte. The load reads the
log only after the offset. Kafka has no such file, and its tools ignore it. A damaged checkpoint is
ignored: the log has everything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

FILE_NAME: Final = "coordinator-checkpoint"

_PREFIX: Final = struct.Struct(">hI")
_HEAD: Final = struct.Struct(">qi")
_RECORD: Final = struct.Struct(">qqii")
_VERSION: Final = 1
_SEED: Final = crc32c(_VERSION.to_bytes(2, "big"))
"""The CRC of the version, with which that of the body continues."""


class SavedRecord(NamedTuple):
    """One record; with a producer id it belongs to a transaction that was open."""

    key: bytes
    value: bytes | None
    offset: int = -1
    producer_id: int = -1


class Checkpoint(NamedTuple):
    """A checkpoint whose records are decoded when they are needed."""

    offset: int
    """The first offset that is not covered."""
    record_count: int
    records: Iterator[SavedRecord]


class CheckpointWriter:
    """Encodes a checkpoint record by record, so that it can take several turns of the loop."""

    __slots__ = ("_count", "_offset", "_parts")

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._count = 0
        self._parts = [b""]

    def add(self, record: SavedRecord) -> None:
        """Adds one record."""
        key, value, offset, producer_id = record
        if value is None:
            self._parts += (_RECORD.pack(offset, producer_id, len(key), -1), key)
        else:
            self._parts += (_RECORD.pack(offset, producer_id, len(key), len(value)), key, value)
        self._count += 1

    def finish(self) -> bytes:
        """The content of the file."""
        self._parts[0] = _HEAD.pack(self._offset, self._count)
        body = b"".join(self._parts)
        return _PREFIX.pack(_VERSION, crc32c(body, _SEED)) + body


def encode_checkpoint(offset: int, records: Iterable[SavedRecord]) -> bytes:
    """The content of the file; `offset` is the first offset that is not in it."""
    writer = CheckpointWriter(offset)
    for record in records:
        writer.add(record)
    return writer.finish()


def open_checkpoint(data: bytes) -> Checkpoint | None:
    """A checkpoint; None for a damaged file."""
    if len(data) < _PREFIX.size + _HEAD.size:
        return None
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION or crc != crc32c(memoryview(data)[_PREFIX.size :], _SEED):
        return None
    offset, count = _HEAD.unpack_from(data, _PREFIX.size)
    return Checkpoint(offset, count, _read_records(data, count))


def decode_checkpoint(data: bytes) -> tuple[int, list[SavedRecord]] | None:
    """The offset and all records; None for a damaged file."""
    found = open_checkpoint(data)
    return None if found is None else (found.offset, list(found.records))


def _read_records(data: bytes, count: int) -> Iterator[SavedRecord]:
    position = _PREFIX.size + _HEAD.size
    unpack, head_bytes = _RECORD.unpack_from, _RECORD.size
    for _ in range(count):
        offset, producer_id, key_bytes, value_bytes = unpack(data, position)
        position += head_bytes
        end = position + key_bytes
        key, position = data[position:end], end
        value = None
        if value_bytes >= 0:
            end = position + value_bytes
            value, position = data[position:end], end
        yield SavedRecord(key, value, offset, producer_id)
    assert position == len(data), "the checksum holds, so these are our own bytes"
