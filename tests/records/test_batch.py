"""The sealed batch: its header, its checks, and the fields that a broker writes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.records.batch import (
    HEADER_BYTES,
    BatchError,
    SealedBatch,
    read_header,
    seal_check,
    split_batches,
)
from fencepost.records.builder import build_batch, build_pairs
from fencepost.records.opened import Record, open_batch


def a_batch(count: int = 3, **fields: Any) -> SealedBatch:
    records = [Record(key=b"k%d" % n, value=b"v%d" % n) for n in range(count)]
    return read_header(build_batch(records, timestamp_ms=1000, **fields))


def resealed(data: bytearray) -> SealedBatch:
    """The batch with a change and a new CRC, as a hostile client sends it."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return read_header(data)


@pytest.mark.interpreted
def test_a_header_has_the_fields_that_the_batch_was_built_with() -> None:
    built = build_pairs(
        [(b"k", b"v"), (b"k", None)],
        timestamp_ms=1700000000000,
        base_offset=42,
        leader_epoch=7,
        producer_id=4000,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )
    batch = read_header(built.data)
    assert all(getattr(batch, name) == getattr(built, name) for name in SealedBatch.__slots__)
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (42, 43, 44)
    assert (batch.leader_epoch, batch.magic, batch.attributes) == (7, 2, 0x10)
    assert (batch.producer_id, batch.producer_epoch) == (4000, 3)
    assert (batch.base_sequence, batch.last_sequence) == (11, 12)
    assert (batch.base_timestamp, batch.max_timestamp) == (1700000000000, 1700000000000)
    assert (batch.record_count, batch.size_bytes) == (2, len(built.data))
    assert batch.is_transactional
    assert batch.has_producer_id
    assert not batch.is_control
    seal_check(batch)


def test_the_last_sequence_wraps_to_zero() -> None:
    assert a_batch(2, base_sequence=2**31 - 1).last_sequence == 0
    assert a_batch(1, base_sequence=2**31 - 1).last_sequence == 2**31 - 1
    assert a_batch(3, base_sequence=-1).last_sequence == -1


def test_offsets_are_assigned_in_place_and_outside_the_crc() -> None:
    batch = a_batch()
    batch.assign(123456789, 9)
    seal_check(batch)
    again = read_header(bytes(batch.data))
    assert (again.base_offset, again.leader_epoch, again.crc) == (123456789, 9, batch.crc)
    assert [record.offset for record in open_batch(again)] == [123456789, 123456790, 123456791]


def test_a_batch_in_the_middle_of_a_buffer_is_changed_in_place() -> None:
    first, second = a_batch(), a_batch()
    buffer = bytearray(bytes(first.data) + bytes(second.data))
    batch = split_batches(buffer)[1]
    batch.assign(77, 1)
    assert read_header(buffer, first.size_bytes).base_offset == 77
    assert read_header(buffer).base_offset == 0


def test_append_time_applies_to_every_record_and_updates_the_crc() -> None:
    batch = a_batch()
    batch.stamp_append_time(5000)
    again = read_header(bytes(batch.data))
    seal_check(again)
    assert again.is_append_time
    assert again.max_timestamp == 5000
    assert {record.timestamp_ms for record in open_batch(again)} == {5000}


def test_a_truncated_batch_can_be_read_and_fails_its_check() -> None:
    batch = read_header(bytes(a_batch().data)[:HEADER_BYTES])
    assert batch.record_count == 3
    with pytest.raises(BatchError) as refused:
        seal_check(batch)
    assert refused.value.error_code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("position", range(HEADER_BYTES + 20))
def test_a_flipped_bit_is_detected_everywhere_except_in_the_broker_fields(position: int) -> None:
    data = bytearray(a_batch().data)
    data[position] ^= 0x01
    if position < 8 or 12 <= position < 16:
        seal_check(read_header(data))  # The broker writes these; the CRC does not cover them.
        return
    with pytest.raises(BatchError):
        seal_check(read_header(data))


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (255, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_another_message_format_is_refused(magic: int, code: ErrorCode) -> None:
    data = bytearray(a_batch().data)
    data[16] = magic
    with pytest.raises(BatchError) as refused:
        read_header(data)
    assert refused.value.error_code is code


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_an_impossible_length_is_refused(length: int) -> None:
    data = bytearray(a_batch().data)
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(BatchError) as refused:
        read_header(data)
    assert refused.value.error_code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_less_than_a_header_is_not_a_batch(size: int) -> None:
    with pytest.raises(BatchError):
        read_header(bytes(a_batch().data)[:size])


@pytest.mark.parametrize(
    ("count", "last_delta"), [(-1, 2), (4, 2), (3, -1), (2**31 - 1, 2**31 - 1), (-(2**31), 0)]
)
def test_impossible_counts_are_refused_without_opening_the_batch(
    count: int, last_delta: int
) -> None:
    data = bytearray(a_batch().data)
    struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">i", data, 57, count)
    with pytest.raises(BatchError) as refused:
        seal_check(resealed(data))
    assert refused.value.error_code is ErrorCode.INVALID_RECORD


def test_a_records_field_is_split_into_its_batches() -> None:
    batches = [a_batch(count) for count in (1, 5, 2)]
    field = b"".join(bytes(batch.data) for batch in batches)
    assert [batch.record_count for batch in split_batches(field)] == [1, 5, 2]
    assert split_batches(b"") == []
    with pytest.raises(BatchError):
        split_batches(field[:-1])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_a_batch_error(data: bytes) -> None:
    try:
        for batch in split_batches(data):
            seal_check(batch)
    except BatchError:
        pass


@given(st.integers(0, HEADER_BYTES + 30), st.binary(min_size=1, max_size=8))
def test_a_hostile_batch_with_a_valid_crc_opens_or_is_a_batch_error(
    position: int, noise: bytes
) -> None:
    data = bytearray(a_batch().data)
    data[position : position + len(noise)] = noise
    try:
        batch = resealed(data)
        seal_check(batch)
        records = open_batch(batch)
    except BatchError:
        return
    assert len(records) == batch.record_count


def test_the_repr_of_a_batch_shows_its_header() -> None:
    assert repr(a_batch(base_offset=5)).startswith("<batch 5..7, 3 records, ")
