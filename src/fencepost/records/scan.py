"""Checks the records of a batch without an object per record.

`open_batch` takes microseconds per record: a batch of 400,000 small records would stop the loop for
a second. A check for keys and valid lengths reads the lengths and skips the rest, and it runs in
steps: the caller decides how many records one step reads.

All bounds are checked as in `opened.py`, with the same messages.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_RECORD_ERRORS
from fencepost.base.seams import Buffer
from fencepost.records.batch import MIN_RECORD_BYTES, BatchError, SealedBatch
from fencepost.records.opened import read_headers
from fencepost.records.varint import read_varint, read_varlong


class RecordScan:
    """One pass over the records of a batch, in steps."""

    __slots__ = ("_batch", "_delta", "_index", "_payload", "_position", "keyless")

    def __init__(self, batch: SealedBatch, payload: Buffer) -> None:
        """`payload` is the decompressed part after the header."""
        count = batch.record_count
        if not 0 <= count * MIN_RECORD_BYTES <= len(payload):
            raise BatchError(ErrorCode.INVALID_RECORD, f"{count} records in {len(payload)} bytes")
        self._batch = batch
        self._payload = payload
        self._position = 0
        self._index = 0
        self._delta = -1
        self.keyless: list[int] = []
        """The first records without a key, by their index in the batch."""

    def step(self, count: int) -> bool:
        """Checks the next `count` records; True when there are no more. BatchError for damage."""
        last = min(self._index + count, self._batch.record_count)
        try:
            self._scan(last)
        except (IndexError, ValueError) as problem:
            raise BatchError(ErrorCode.INVALID_RECORD, f"{self._batch!r}: {problem}") from None
        return last == self._batch.record_count

    def _scan(self, last: int) -> None:
        payload = self._payload
        size = len(payload)
        position = self._position
        previous = self._delta
        last_delta = self._batch.last_offset_delta
        for index in range(self._index, last):
            length, position = read_varint(payload, position)
            end = position + length
            if length < MIN_RECORD_BYTES - 1 or end > size:
                raise ValueError(f"a record claims {length} bytes")
            _, position = read_varlong(payload, position + 1)
            delta, position = read_varint(payload, position)
            if not previous < delta <= last_delta:
                raise ValueError(f"an offset delta of {delta} after {previous}")
            previous = delta
            key_length, position = _skip(payload, position, end)
            if key_length == -1 and len(self.keyless) < MAX_RECORD_ERRORS:
                self.keyless.append(index)
            _, position = _skip(payload, position, end)
            if payload[position] == 0:
                position += 1
            else:
                _, position = read_headers(payload, position, end, "strict")
            if position != end:
                raise ValueError(f"a record of {length} bytes has {end - position} bytes too many")
        if last == self._batch.record_count and position != size:
            raise ValueError(f"{size - position} bytes after the last record")
        self._index = last
        self._position = position
        self._delta = previous


def _skip(payload: Buffer, position: int, end: int) -> tuple[int, int]:
    """The length of a key or value, and the position after it."""
    length, position = read_varint(payload, position)
    if length == -1:
        return length, position
    if length < 0 or position + length > end:
        raise ValueError(f"{length} bytes are claimed where {end - position} are left")
    return length, position + length


def find_time(
    batch: SealedBatch, payload: Buffer, timestamp_ms: int, start_offset: int
) -> tuple[int, int] | None:
    """Time and offset of the first record from `start_offset` on that is new enough."""
    try:
        return _find_time(batch, payload, timestamp_ms, start_offset)
    except (IndexError, ValueError) as problem:
        raise BatchError(ErrorCode.INVALID_RECORD, f"{batch!r}: {problem}") from None


def _find_time(
    batch: SealedBatch, payload: Buffer, timestamp_ms: int, start_offset: int
) -> tuple[int, int] | None:
    base_offset = batch.base_offset
    base_timestamp = batch.base_timestamp
    append_time = batch.max_timestamp if batch.is_append_time else None
    position = 0
    for _ in range(batch.record_count):
        length, position = read_varint(payload, position)
        end = position + length
        if length < MIN_RECORD_BYTES - 1 or end > len(payload):
            raise ValueError(f"a record claims {length} bytes")
        timestamp_delta, position = read_varlong(payload, position + 1)
        at_ms = base_timestamp + timestamp_delta if append_time is None else append_time
        if at_ms >= timestamp_ms:
            offset = base_offset + read_varint(payload, position)[0]
            if offset >= start_offset:
                return at_ms, offset
        position = end
    return None
