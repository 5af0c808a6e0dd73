"""Reads record batches into Arrow columns, without a Python object per record.

Numba compiles the loops here. The import takes about two seconds with cached code, and more the
first time, so it happens only where it pays (`spark/ways/packing/packer.py`,
`spark/source/range_reader.py`). Small batches, and installations without numba, use `builder.py`
and `opened.py`. Both paths give the same bytes and refuse the same bytes; a test compares them.

Compiled code does not check array indexes. So every read of untrusted bytes is bounded by hand:
`_read_varint` never passes its `end`, and a length is compared with the bytes that are left before
it is used. A kernel that finds damage returns a negative number, one of the reasons below, and its
caller raises BatchError.

`decode_batches` opens sealed batches into columns. `filling.py` writes them. Records with headers
are written by `builder.py`: headers are rare and small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
import pyarrow as pa

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import (
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    BatchError,
    SealedBatch,
)
from fencepost.records.compression import decompress
from fencepost.records.opened import read_nullable_bytes

F = TypeVar("F", bound=Callable[..., Any])
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_MAX_SHIFT_32: Final = 28
_MAX_SHIFT_64: Final = 63

_REASONS: Final = {
    -1: "a length or number reaches beyond the end of the bytes",
    -2: "a record claims an impossible length",
    -3: "an offset delta is not in order",
    -4: "a key or value claims an impossible length",
    -5: "a record has impossible headers",
    -6: "a record is longer than its content",
    -7: "bytes follow the last record",
}


def compiled(function: F) -> F:
    """Numba's decorator, with types; kernels release the interpreter's lock."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


@compiled
def copy_bytes(out: Bytes, position: int, data: Bytes, start: int, size: int) -> None:
    """Copies data[start : start + size] to out[position:]; the caller has checked both.

    The indexes are unsigned: otherwise numba checks each for a negative one, which makes the loop
    fifty times slower.
    """
    to, source = np.uintp(position), np.uintp(start)
    for i in range(np.uintp(size)):
        out[to + i] = data[source + i]


class Column(NamedTuple):
    """A binary column as three arrays: bytes, start of each value, and null flags."""

    data: Bytes
    offsets: Ints
    nulls: Bytes


def _frozen(array: Any) -> Any:
    """A read-only view, like Arrow's: numba compiles a kernel again for every kind of array."""
    array = array.view()
    array.flags.writeable = False
    return array


def column_of(array: pa.Array | None, count: int) -> Column:
    """A binary or string array as a column; None is a column of nulls."""
    if array is None or pa.types.is_null(array.type):
        absent = (np.zeros(0, np.uint8), np.zeros(count + 1, np.int64), np.ones(count, np.uint8))
        return Column(*map(_frozen, absent))
    width = np.int64 if _is_large(array.type) else np.int32
    _, offsets, data = array.buffers()
    begin = array.offset
    starts = np.frombuffer(offsets, width)[begin : begin + count + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    nulls = np.zeros(count, np.uint8)
    if array.null_count:
        nulls = np.asarray(array.is_null()).astype(np.uint8)
    assert count == 0 or starts[-1] <= len(content)
    return Column(_frozen(content), _frozen(starts), _frozen(nulls))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


# Reading.


@compiled
def _read_varint(data: Bytes, position: int, end: int, max_shift: int) -> tuple[Any, int]:
    """A zigzag number and the position after it; position -1 if it does not end before `end`."""
    value = np.uint64(0)
    shift = 0
    while position < end:
        byte = np.uint64(data[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(128):
            if max_shift == 28:
                value &= np.uint64(0xFFFFFFFF)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += 7
        if shift > max_shift:
            return 0, -1
    return 0, -1


@compiled
def _read_span(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Start, length (-1 is null) and end of a nullable field; end -1 for damage."""
    length, position = _read_varint(data, position, end, 28)
    if position < 0 or length < -1 or length > end - position:
        return 0, 0, -1
    if length == -1:
        return position, -1, position
    return position, length, position + length


@compiled
def _skip_headers(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The number of headers and the position after them; position -1 for damage."""
    count, position = _read_varint(data, position, end, 28)
    if position < 0 or count < 0 or count * 2 > end - position:
        return 0, -1
    for _ in range(count):
        _, length, position = _read_span(data, position, end)
        if position < 0 or length < 0:
            return 0, -1
        _, _, position = _read_span(data, position, end)
        if position < 0:
            return 0, -1
    return count, position


@compiled
def _read_record(
    data: Bytes, position: int, size: int, previous: int, last_delta: int, found: Any
) -> int:
    """Fills `found` with one record; returns the position after it, or a negative reason."""
    length, position = _read_varint(data, position, size, 28)
    if position < 0:
        return -1
    if length < 6 or length > size - position:
        return -2
    end = position + length
    found[1], position = _read_varint(data, position + 1, end, 63)
    if position < 0:
        return -1
    found[0], position = _read_varint(data, position, end, 28)
    if position < 0:
        return -1
    if found[0] <= previous or found[0] > last_delta:
        return -3
    found[2], found[3], position = _read_span(data, position, end)
    if position < 0:
        return -4
    found[4], found[5], position = _read_span(data, position, end)
    if position < 0:
        return -4
    found[6] = position
    found[7], position = _skip_headers(data, position, end)
    if position < 0:
        return -5
    return end if position == end else -6


@compiled
def _scan(data: Bytes, count: int, last_delta: int, found: Any) -> int:
    """Fills a row of `found` per record; returns 0, or a negative reason."""
    position = 0
    previous = -1
    for i in range(count):
        position = _read_record(data, position, len(data), previous, last_delta, found[i])
        if position < 0:
            return position
        previous = found[i, 0]
    return 0 if position == len(data) else -7


@compiled
def _gather(data: Bytes, starts: Ints, lengths: Ints, out: Bytes, ends: Any, position: int) -> int:
    """Copies the spans one after the other; a null (-1) has no bytes."""
    for i in range(len(starts)):
        if lengths[i] > 0:
            copy_bytes(out, position, data, starts[i], lengths[i])
            position += lengths[i]
        ends[i] = position
    return position


class DecodedColumns(NamedTuple):
    """Records of several batches as columns."""

    keys: pa.Array | None
    values: pa.Array | None
    offsets: Ints
    timestamps_ms: Ints
    append_times: Bytes
    headers: list[list[dict[str, Any]] | None] | None
    batches: list[SealedBatch]
    counts: list[int]
    """How many of the records are from each batch."""


class _Opened(NamedTuple):
    batch: SealedBatch
    payload: Bytes
    found: Ints


def decode_batches(
    batches: Iterable[SealedBatch],
    start: int,
    end: int,
    *,
    group_bytes: int,
    keys: bool = True,
    values: bool = True,
    headers: bool = False,
) -> Iterator[DecodedColumns]:
    """The records of [start, end) in these batches; BatchError for a damaged batch.

    Batches are grouped into columns of about `group_bytes`, by their decompressed size.
    """
    group: list[_Opened] = []
    size = 0
    for batch in batches:
        opened = _open(batch, start, end)
        group.append(opened)
        size += len(opened.payload)
        if size >= group_bytes:
            yield _columns(group, keys, values, headers)
            group, size = [], 0
    if group:
        yield _columns(group, keys, values, headers)


def _columns(opened: list[_Opened], keys: bool, values: bool, headers: bool) -> DecodedColumns:
    # All batches at once: a call of numpy for each would cost more than its records.
    found = _joined([o.found for o in opened])
    counts = [len(o.found) for o in opened]
    return DecodedColumns(
        keys=_binary(opened, found, 2) if keys else None,
        values=_binary(opened, found, 4) if values else None,
        offsets=_repeated([o.batch.base_offset for o in opened], counts) + found[:, 0],
        timestamps_ms=_timestamps(opened, found, counts),
        append_times=np.repeat(
            np.array([o.batch.is_append_time for o in opened], np.uint8), counts
        ),
        headers=[h for o in opened for h in _headers(o)] if headers else None,
        batches=[o.batch for o in opened],
        counts=counts,
    )


def _open(batch: SealedBatch, start: int, end: int) -> _Opened:
    if len(batch.data) != batch.size_bytes:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"{batch!r} is incomplete")
    content = decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:])
    payload = _frozen(np.frombuffer(content, np.uint8))
    count = batch.record_count
    if not 0 <= count * MIN_RECORD_BYTES <= len(payload):
        raise BatchError(ErrorCode.INVALID_RECORD, f"{count} records in {len(payload)} bytes")
    found = np.empty((count, 8), np.int64)
    reason = _scan(payload, count, batch.last_offset_delta, found)
    if reason:
        raise BatchError(ErrorCode.INVALID_RECORD, f"{batch!r}: {_REASONS[reason]}")
    if batch.base_offset < start or batch.last_offset >= end:
        offsets = batch.base_offset + found[:, 0]
        found = found[(offsets >= start) & (offsets < end)]
    return _Opened(batch, payload, found)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _repeated(values: list[int], counts: list[int]) -> Ints:
    """The value of each batch, once for each of its records."""
    return np.repeat(np.array(values, np.int64), counts)


def _timestamps(opened: list[_Opened], found: Ints, counts: list[int]) -> Ints:
    batches = [o.batch for o in opened]
    times = _repeated([batch.base_timestamp for batch in batches], counts) + found[:, 1]
    _check_times(opened, found)
    if any(batch.is_append_time for batch in batches):
        stamped = np.repeat(np.array([batch.is_append_time for batch in batches], bool), counts)
        last = _repeated([batch.max_timestamp for batch in batches], counts)
        times = np.where(stamped, last, times)
    return times


def _check_times(opened: list[_Opened], found: Ints) -> None:
    """Refuses times beyond 64 bits, which numpy would wrap."""
    if not len(found):
        return
    largest = max(abs(int(found[:, 1].min())), abs(int(found[:, 1].max())))
    for o in opened:
        batch = o.batch
        if abs(batch.base_timestamp) + largest < 2**63 or batch.is_append_time or not len(o.found):
            continue
        deltas = o.found[:, 1]
        first, last = (
            batch.base_timestamp + int(deltas.min()),
            batch.base_timestamp + int(deltas.max()),
        )
        if first < -(2**63) or last >= 2**63:
            raise BatchError(ErrorCode.INVALID_RECORD, f"{batch!r}: a time beyond 64 bits")


def _binary(opened: list[_Opened], found: Ints, column: int) -> pa.Array:
    """One field of all records as an Arrow array; column + 1 has the lengths."""
    starts = np.ascontiguousarray(found[:, column])
    lengths = np.ascontiguousarray(found[:, column + 1])
    nulls = lengths < 0
    size = int(lengths[~nulls].sum())
    data = np.empty(size, np.uint8)
    offsets = np.zeros(len(found) + 1, np.int32 if size < 2**31 else np.int64)
    row = position = 0
    for o in opened:
        stop = row + len(o.found)
        position = _gather(
            o.payload, starts[row:stop], lengths[row:stop], data, offsets[row + 1 :], position
        )
        row = stop
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    kind = pa.binary() if offsets.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(
        kind, len(found), [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _headers(opened: _Opened) -> Iterator[list[dict[str, Any]] | None]:
    payload = opened.payload.data
    for start, count in opened.found[:, 6:8].tolist():
        yield _read_headers(payload, start, count) if count else None


def _read_headers(payload: memoryview, start: int, count: int) -> list[dict[str, Any]]:
    """The headers of a record that the scan has checked; skips their count."""
    position = start
    while payload[position] >= 128:
        position += 1
    position += 1
    headers: list[dict[str, Any]] = []
    for _ in range(count):
        name, position = read_nullable_bytes(payload, position, len(payload))
        value, position = read_nullable_bytes(payload, position, len(payload))
        assert name is not None, "the scan refuses a header without a name"
        # Brokers do not check names, so some are not UTF-8. Kafka's Java client accepts them too.
        headers.append({"key": name.decode("utf-8", "replace"), "value": value})
    return headers
