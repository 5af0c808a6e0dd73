"""The checkpoint of a coordinator: its state at one offset of its log.

    int16 version 0, u32 CRC-32C of everything after byte 6, int64 offset, int32 count,
    then per key: int32 length and bytes of the key, int32 length and bytes of the value

The pairs are those of a fully compacted log up to the offset, byte for byte. The load reads the log
only after the offset. Kafka has no such file, and its tools ignore it. A damaged checkpoint is
ignored: the log has everything.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE_NAME: Final = "coordinator-checkpoint"

_PREFIX: Final = struct.Struct(">hI")
_HEAD: Final = struct.Struct(">qi")
_LENGTH: Final = struct.Struct(">i")
_VERSION: Final = 0


def encode_checkpoint(offset: int, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The content of the file; `offset` is the first offset that is not in it."""
    parts = [b""]
    count = 0
    for key, value in pairs:
        parts += (_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value)
        count += 1
    parts[0] = _HEAD.pack(offset, count)
    body = b"".join(parts)
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def decode_checkpoint(data: bytes) -> tuple[int, list[tuple[bytes, bytes]]] | None:
    """The offset and the pairs; None for a damaged file."""
    if len(data) < _PREFIX.size + _HEAD.size:
        return None
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION or crc != crc32c(memoryview(data)[_PREFIX.size :]):
        return None
    offset, count = _HEAD.unpack_from(data, _PREFIX.size)
    position = _PREFIX.size + _HEAD.size
    pairs = []
    for _ in range(count):
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        pairs.append((key, value))
    assert position == len(data), "the checksum holds, so these are our own bytes"
    return offset, pairs


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    start = position + _LENGTH.size
    end = start + int(_LENGTH.unpack_from(data, position)[0])
    return data[start:end], end
