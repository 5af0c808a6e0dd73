"""Opens a batch: reads its records, and checks every length against the bytes that are left.

One record inside a batch (all lengths and deltas are zigzag varints, -1 is null):

    length, attributes (1 byte, 0), timestampDelta, offsetDelta, keyLength, key, valueLength, value,
    headerCount, then per header: keyLength, key (UTF-8), valueLength, value
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.limits import MAX_DECOMPRESSED_BYTES
from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, MIN_RECORD_BYTES, BatchError, SealedBatch
from fencepost.records.compression import decompress
from fencepost.records.varint import read_varint, read_varlong

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record; a writer ignores `offset`, and replaces a missing time by the batch's."""

    offset: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def open_batch(
    batch: SealedBatch, *, name_errors: str = "strict", max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """All records of a sealed batch; BatchError if its content contradicts its header.

    A header name that is not UTF-8 is damage, unless `name_errors` says otherwise ("replace").
    """
    return list(iterate_records(batch, name_errors=name_errors, max_bytes=max_bytes))


def iterate_records(
    batch: SealedBatch, *, name_errors: str = "strict", max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of `open_batch` one by one; BatchError at the first damage."""
    if len(batch.data) != batch.size_bytes:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"{batch!r} is incomplete")
    payload = bytes(decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:], max_bytes))
    count = batch.record_count
    if not 0 <= count * MIN_RECORD_BYTES <= len(payload):
        raise BatchError(ErrorCode.INVALID_RECORD, f"{count} records in {len(payload)} bytes")
    try:
        yield from _iterate_payload(batch, payload, name_errors)
    except (IndexError, ValueError) as problem:
        raise BatchError(ErrorCode.INVALID_RECORD, f"{batch!r}: {problem}") from None


def _iterate_payload(batch: SealedBatch, payload: bytes, name_errors: str) -> Iterator[Record]:
    append_time = batch.max_timestamp if batch.is_append_time else None
    position = 0
    previous_delta = -1
    for _ in range(batch.record_count):
        delta, timestamp_delta, key, value, headers, position = _read_record(
            payload, position, name_errors
        )
        if not previous_delta < delta <= batch.last_offset_delta:
            raise ValueError(f"an offset delta of {delta} after {previous_delta}")
        previous_delta = delta
        timestamp = batch.base_timestamp + timestamp_delta if append_time is None else append_time
        yield Record(batch.base_offset + delta, timestamp, key, value, headers)
    if position != len(payload):
        raise ValueError(f"{len(payload) - position} bytes after the last record")


def _read_record(
    payload: bytes, position: int, name_errors: str
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    length, position = read_varint(payload, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > len(payload):
        raise ValueError(f"a record claims {length} bytes")
    timestamp_delta, position = read_varlong(payload, position + 1)
    offset_delta, position = read_varint(payload, position)
    key, position = read_nullable_bytes(payload, position, end)
    value, position = read_nullable_bytes(payload, position, end)
    headers: Headers = ()
    if payload[position] == 0:
        position += 1
    else:
        headers, position = read_headers(payload, position, end, name_errors)
    if position != end:
        raise ValueError(f"a record of {length} bytes has {end - position} bytes too many")
    return offset_delta, timestamp_delta, key, value, headers, end


def read_headers(payload: Buffer, position: int, end: int, name_errors: str) -> tuple[Headers, int]:
    """The headers of a record, and the position after them."""
    count, position = read_varint(payload, position)
    if not 0 <= count * 2 <= end - position:
        raise ValueError(f"a record claims {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = read_nullable_bytes(payload, position, end)
        if key is None:
            raise ValueError("a header without a name")
        value, position = read_nullable_bytes(payload, position, end)
        headers.append((key.decode("utf-8", name_errors), value))
    return tuple(headers), position


def read_nullable_bytes(payload: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    """Bytes after a varint length (-1 is null), and the position after them."""
    length, position = read_varint(payload, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise ValueError(f"{length} bytes are claimed where {end - position} are left")
    return bytes(payload[position : position + length]), position + length
