"""Checks the records of a batch without an object per record.

`open_batch` takes microseconds per record: a batch of 400,000 small records would stop the loop for
a second. A check of all lengths, counts and deltas reads those and skips the rest, and it runs in
steps: the caller decides how many records one step reads. `open_batch` opens what passes it.

Compiled code reads a byte of `bytes` in about a nanosecond, and a byte of any other buffer in
thirty. So the payload is copied window by window, each small enough for the processor's cache, and
`_scan_window` reads the records that are complete in a window. A record that is larger than a
window, or that has very many headers, is read in place (`_scan_in_place`).

The offset deltas must increase and stay within the range of the batch. A client's batch has as many
records as offsets (`produced.py`), so its deltas are 0, 1, 2 and so on; compaction leaves gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.limits import MAX_RECORD_ERRORS
from fencepost.base.seams import Buffer
from fencepost.records.batch import MIN_RECORD_BYTES, BatchError, SealedBatch
from fencepost.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    # Only annotations use it: machine integers in compiled code, and no name at run time.
    from mypy_extensions import i64

WINDOW_BYTES: Final = 64 * 1024
MANY_HEADERS: Final = 1000
"""A record with more headers than this is read in place, over several steps if need be."""
NULL: Final = 1
"""The length -1, as it is encoded."""
_LONGEST_VARINT: Final = 5
_SHIFT_32: Final = 28
_SHIFT_56: Final = 49
_MAX_INT_64: Final = 2**63 - 1
_MIN_INT_64: Final = -(2**63)


class RecordScan:
    """One pass over the records of a batch, in steps."""

    __slots__ = (
        "_batch",
        "_budget",
        "_count",
        "_delta",
        "_end",
        "_headers_left",
        "_index",
        "_is_strict",
        "_newest",
        "_oldest",
        "_position",
        "_window_bytes",
        "keyless",
        "newest_ms",
        "oldest_ms",
        "payload",
        "size_bytes",
    )

    def __init__(
        self,
        batch: SealedBatch,
        payload: Buffer,
        *,
        strict_names: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """`payload` is the decompressed part after the header.

        A header name that is not UTF-8 is damage, unless `strict_names` is false.
        """
        count = batch.record_count
        size = len(payload)
        if not 0 <= count * MIN_RECORD_BYTES <= size:
            raise BatchError(ErrorCode.INVALID_RECORD, f"{count} records in {size} bytes")
        self._batch = batch
        self.payload = payload
        """The caller may replace it by a copy, and by nothing after the last step."""
        self._is_strict = strict_names
        self._window_bytes = window_bytes
        self._count: i64 = count
        self.size_bytes = size
        self._budget: i64 = 0
        """What this step may still read: a record and each of its headers count as one."""
        self._position: i64 = 0
        self._index: i64 = 0
        self._delta: i64 = -1
        self._end: i64 = 0
        """The end of a record that is being read in place."""
        self._headers_left: i64 = 0
        """Headers of that record that are still to be read."""
        self._oldest: i64 = _MAX_INT_64
        self._newest: i64 = _MIN_INT_64
        """The extremes of the timestamp deltas; the oldest without records that have no time."""
        self.keyless: list[int] = []
        """The first records without a key, by their index in the batch."""
        self.oldest_ms: int = NO_TIMESTAMP
        """After the last step: the lowest timestamp of a record that has one."""
        self.newest_ms: int = NO_TIMESTAMP
        """After the last step: the largest timestamp, but not below NO_TIMESTAMP, as in Kafka."""

    def step(self, count: int) -> bool:
        """Checks about `count` records; True when there are no more. BatchError for damage."""
        self._budget = count
        try:
            while self._index < self._count:
                if self._budget <= 0:
                    return False
                if self._headers_left or not self._scan_windows():
                    self._scan_in_place()
        except IndexError:
            raise self._damage("a record is incomplete") from None
        except ValueError as problem:
            raise self._damage(str(problem)) from None
        if self._position != self.size_bytes:
            raise self._damage(f"{self.size_bytes - self._position} bytes follow the last record")
        if self._count:
            self._add_times()
        return True

    def _add_times(self) -> None:
        # Not machine integers: the sums may not fit.
        oldest: int = self._oldest
        newest: int = self._newest
        base = self._batch.base_timestamp
        self.newest_ms = max(NO_TIMESTAMP, base + newest)
        if oldest != _MAX_INT_64:
            self.oldest_ms = base + oldest
        if self.oldest_ms < _MIN_INT_64 or self.newest_ms > _MAX_INT_64:
            raise self._damage("a timestamp does not fit into 64 bits")

    def _damage(self, problem: str) -> BatchError:
        return BatchError(ErrorCode.INVALID_RECORD, problem)

    def _scan_windows(self) -> bool:
        """Reads the next window; returns whether that was at least one record."""
        start, size = self._position, self.size_bytes
        end = min(start + self._window_bytes, size)
        if start == 0 and end == size:
            window = bytes(self.payload)  # No copy, if it is bytes already.
        else:
            window = bytes(memoryview(self.payload)[start:end])
        return self._scan_window(window, end == size)

    def _scan_window(  # noqa: C901 - see its docstring
        self, window: bytes, is_end: bool
    ) -> bool:
        """Reads the records that are complete in a window; IndexError or ValueError for damage.

        Every produced record passes this loop, so it is one function: with functions for the
        length of the record, the key and the value, records of 100 bytes took 14 % longer compiled
        and 12 % interpreted. Lengths stay as they are encoded: twice the number, odd if it is
        negative.
        """
        size: i64 = len(window)
        index: i64 = self._index
        count: i64 = self._count
        budget: i64 = self._budget
        previous: i64 = self._delta
        last_delta: i64 = self._batch.last_offset_delta
        without_time: i64 = NO_TIMESTAMP - self._batch.base_timestamp
        oldest: i64 = self._oldest
        newest: i64 = self._newest
        begin: i64 = 0
        position: i64 = 0
        value: i64 = 0
        key: i64 = 0
        time: i64 = 0
        while index < count and budget > 0:
            if not is_end and size - position < _LONGEST_VARINT:
                break
            value, position = _read_number(window, position)
            length: i64 = (value >> 1) ^ -(value & 1)
            end: i64 = position + length
            if end > size and not is_end:
                break
            if length < MIN_RECORD_BYTES - 1 or end > size:
                raise ValueError(f"record {index} claims {length} bytes")
            # The attributes have no meaning.
            time, position = _read_time(window, position + 1)
            value, position = _read_number(window, position)
            delta: i64 = (value >> 1) ^ -(value & 1)
            if delta <= previous or delta > last_delta:
                raise ValueError(f"record {index} has the offset delta {delta} after {previous}")
            key, position = _read_number(window, position)
            if key != NULL:
                position += key >> 1
                if key & 1 or position > end:
                    raise _wrong_length(index, "key", key)
            value, position = _read_number(window, position)
            if value != NULL:
                position += value >> 1
                if value & 1 or position > end:
                    raise _wrong_length(index, "value", value)
            value, position = _read_number(window, position)
            if value:
                if value >> 1 > MANY_HEADERS:
                    break
                position = _scan_headers(window, position, end, index, value, self._is_strict)
                budget -= value >> 1
            if position != end:
                raise _wrong_size(index, length, position - end)
            if key == NULL and len(self.keyless) < MAX_RECORD_ERRORS:
                self.keyless.append(index)
            if time > newest:
                newest = time
            if time < oldest and time != without_time:
                oldest = time
            previous = delta
            begin = end
            index += 1
            budget -= 1
        is_ahead: bool = index > self._index
        self._index = index
        self._budget = budget
        self._position += begin
        self._delta = previous
        self._oldest = oldest
        self._newest = newest
        return is_ahead

    def _scan_in_place(self) -> None:
        """Reads a large record, or as many of its headers as this step may."""
        payload, index = self.payload, self._index
        if not self._headers_left:
            self._scan_start()
        position = self._position
        count = min(self._headers_left, MANY_HEADERS)
        for _ in range(count):
            start, position = _skip(payload, position, self._end, index, "header name")
            if start < 0:
                raise ValueError(f"record {index} has a header without a name")
            if self._is_strict:
                bytes(payload[start:position]).decode()
            _, position = _skip(payload, position, self._end, index, "header value")
        self._position = position
        self._headers_left -= count
        self._budget -= count + 1
        if self._headers_left:
            return
        if position != self._end:
            raise ValueError(f"record {index} ends {self._end - position} bytes early")
        self._index = index + 1

    def _scan_start(self) -> None:
        """Reads a record up to its headers."""
        payload, index = self.payload, self._index
        length, position = read_varint(payload, self._position)
        end = position + length
        if length < MIN_RECORD_BYTES - 1 or end > self.size_bytes:
            raise ValueError(f"record {index} claims {length} bytes")
        time, position = read_varlong(payload, position + 1)
        delta, position = read_varint(payload, position)
        if not self._delta < delta <= self._batch.last_offset_delta:
            raise ValueError(f"record {index} has the offset delta {delta} after {self._delta}")
        key, position = _skip(payload, position, end, index, "key")
        _, position = _skip(payload, position, end, index, "value")
        headers, position = read_varint(payload, position)
        if not 0 <= headers * 2 <= end - position:
            raise ValueError(f"record {index} claims {headers} headers")
        if key < 0 and len(self.keyless) < MAX_RECORD_ERRORS:
            self.keyless.append(index)
        self._newest = max(self._newest, time)
        if time != NO_TIMESTAMP - self._batch.base_timestamp:
            self._oldest = min(self._oldest, time)
        self._delta = delta
        self._position = position
        self._headers_left = headers
        self._end = end


def _read_number(window: bytes, position: i64) -> tuple[i64, i64]:
    """A VARINT before its zigzag decoding, and the position after it."""
    byte: i64 = window[position]
    if byte < 128:
        return byte, position + 1
    value: i64 = byte & 0x7F
    byte = window[position + 1]
    if byte < 128:
        return value | byte << 7, position + 2
    return _read_long_number(window, position)


def _read_long_number(window: bytes, position: i64) -> tuple[i64, i64]:
    value: i64 = 0
    shift: i64 = 0
    while shift <= _SHIFT_32:
        byte: i64 = window[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value & 0xFFFFFFFF, position
        shift += 7
    raise ValueError("a variable-length integer is too long")


def _read_time(window: bytes, position: i64) -> tuple[i64, i64]:
    """A timestamp delta, and the position after it."""
    start: i64 = position
    value: i64 = 0
    shift: i64 = 0
    while shift <= _SHIFT_56:
        byte: i64 = window[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    long_value, after = read_varlong(window, start)  # More than a machine integer can hold.
    return long_value, after


def _scan_headers(
    window: bytes, position: i64, end: i64, index: i64, count: i64, is_strict: bool
) -> i64:
    """The position after the headers of a record."""
    if count & 1 or count > end - position:
        raise ValueError(f"record {index} claims {(count >> 1) ^ -(count & 1)} headers")
    # Most are ASCII: then no name has to be decoded by itself.
    must_decode: bool = is_strict and not window[position:end].isascii()
    length: i64 = 0
    for _ in range(count >> 1):
        length, position = _read_number(window, position)
        start: i64 = position
        position += length >> 1
        if length & 1 or position > end:
            raise _wrong_length(index, "header name", length)
        if must_decode:
            window[start:position].decode()
        length, position = _read_number(window, position)
        if length != NULL:
            position += length >> 1
            if length & 1 or position > end:
                raise _wrong_length(index, "header value", length)
    return position


def _wrong_size(index: i64, length: i64, off_by: i64) -> ValueError:
    return ValueError(f"record {index} claims {length} bytes, but has {length + off_by}")


def _wrong_length(index: i64, what: str, length: i64) -> ValueError:
    return ValueError(f"record {index} claims a {what} of {(length >> 1) ^ -(length & 1)} bytes")


def _skip(payload: Buffer, position: int, end: int, index: int, what: str) -> tuple[int, int]:
    """Where bytes begin (-1 for null), and the position after them."""
    length, position = read_varint(payload, position)
    if length == -1:
        return -1, position
    if length < 0 or position + length > end:
        raise ValueError(f"record {index} claims a {what} of {length} bytes")
    return position, position + length


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
