"""Producer snapshots: the producers of a partition at one offset.

    int16 version 1, u32 CRC-32C of everything after byte 6, int32 count, then per producer 46
    bytes: producerId i64, epoch i16, lastSequence i32, lastOffset i64, offsetDelta i32, timestamp
    i64, coordinatorEpoch i32, currentTxnFirstOffset i64 (-1: no transaction is open)

Only the last batch of each producer is kept. A damaged snapshot is ignored: the partition uses an
older one and reads more of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

_PREFIX: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1
_CRC_START: Final = 6


class ProducerSnapshotEntry(NamedTuple):
    """One producer; `last_offset` is -1 if only a marker of it is known."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    """The bytes of a `.snapshot` file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerSnapshotEntry]:
    """The producers of a `.snapshot` file; ValueError for a damaged one."""
    if len(data) < _PREFIX.size:
        raise ValueError(f"a producer snapshot of {len(data)} bytes")
    version, crc, count = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"a producer snapshot of version {version}")
    if crc32c(memoryview(data)[_CRC_START:]) != crc:
        raise ValueError("the CRC of a producer snapshot is wrong")
    if count < 0 or len(data) != _PREFIX.size + count * _ENTRY.size:
        raise ValueError(f"a producer snapshot claims {count} producers in {len(data)} bytes")
    fields = _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :])
    return [ProducerSnapshotEntry(*entry) for entry in fields]
