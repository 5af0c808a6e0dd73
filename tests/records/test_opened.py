"""Opened batches: round trips, and every kind of damage inside."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fencepost.records.batch import DELETE_HORIZON_FLAG, BatchError, read_header, seal_check
from fencepost.records.builder import build_batch, build_pairs, rebuild_batch
from fencepost.records.compression import CODECS
from fencepost.records.opened import Record, open_batch

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
maybe_bytes = st.none() | st.binary(max_size=30)
a_record = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(0, 2**45),
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(names, maybe_bytes), max_size=3).map(tuple),
)


@given(
    st.lists(a_record, min_size=1, max_size=8),
    st.sampled_from(sorted(CODECS)),
    st.integers(0, 2**62),
)
def test_a_batch_opens_to_the_records_it_was_built_from(
    records: list[Record], codec: int, base_offset: int
) -> None:
    data = build_batch(records, timestamp_ms=1, codec=codec, base_offset=base_offset)
    batch = read_header(data)
    seal_check(batch)
    assert batch.codec == codec
    assert batch.max_timestamp == max(record.timestamp_ms for record in records)
    opened = open_batch(batch)
    assert [record._replace(offset=0) for record in opened] == records
    assert [record.offset for record in opened] == [base_offset + n for n in range(len(records))]


def test_a_record_without_a_timestamp_gets_that_of_its_batch() -> None:
    batch = read_header(build_batch([Record(key=b"k"), Record(0, 5)], timestamp_ms=9))
    assert [record.timestamp_ms for record in open_batch(batch)] == [9, 5]
    assert (batch.base_timestamp, batch.max_timestamp) == (9, 9)


def test_pairs_build_the_same_bytes_as_records() -> None:
    pairs = [(b"k", b"v"), (b"", None), (None, b"")]
    records = [Record(key=key, value=value) for key, value in pairs]
    built = build_pairs(pairs, timestamp_ms=3, producer_id=1, producer_epoch=0)
    assert built.data == build_batch(records, timestamp_ms=3, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_thinned_batch_keeps_its_offsets_producer_and_codec(codec: int) -> None:
    records = [Record(0, 100 + n, b"k%d" % n, b"v" * 50) for n in range(5)]
    batch = read_header(
        build_batch(
            records,
            timestamp_ms=0,
            base_offset=10,
            codec=codec,
            producer_id=7,
            producer_epoch=2,
            base_sequence=30,
        )
    )
    opened = open_batch(batch)
    thinned = read_header(rebuild_batch(batch, [opened[1], opened[3]], delete_horizon_ms=None))
    seal_check(thinned)
    assert (thinned.base_offset, thinned.last_offset, thinned.record_count) == (10, 14, 2)
    assert (thinned.base_sequence, thinned.last_sequence) == (30, 34)
    assert (thinned.codec, thinned.max_timestamp) == (codec, 103)
    assert open_batch(thinned) == [opened[1], opened[3]]


def test_a_delete_horizon_replaces_the_base_timestamp_and_keeps_the_record_timestamps() -> None:
    batch = build_pairs([(b"k", None)], timestamp_ms=5000)
    marked = read_header(rebuild_batch(batch, open_batch(batch), delete_horizon_ms=90_000))
    seal_check(marked)
    assert marked.attributes & DELETE_HORIZON_FLAG
    assert marked.delete_horizon_ms == 90_000
    assert [record.timestamp_ms for record in open_batch(marked)] == [5000]
    assert batch.delete_horizon_ms is None


def test_an_emptied_batch_is_a_bare_header_that_opens_to_nothing() -> None:
    batch = read_header(
        build_batch(
            [Record(key=b"k")] * 3, timestamp_ms=77, codec=4, producer_id=5, base_sequence=9
        )
    )
    empty = read_header(rebuild_batch(batch, (), delete_horizon_ms=None))
    seal_check(empty)
    assert (empty.size_bytes, empty.record_count, empty.codec) == (61, 0, 0)
    assert (empty.last_offset_delta, empty.last_sequence) == (2, 11)
    assert (empty.base_timestamp, empty.max_timestamp) == (-1, 77)
    assert open_batch(empty) == []


def payload_batch(payload: str, count: int = 1, last_delta: int = 0) -> bytearray:
    """A batch with the given content and a valid CRC."""
    data = bytearray(build_pairs([(None, None)], timestamp_ms=0).data[:61]) + bytes.fromhex(payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def test_the_smallest_record_opens() -> None:
    assert open_batch(read_header(payload_batch("0c000000010100"))) == [Record(0, 0)]


@pytest.mark.parametrize(
    ("payload", "count", "last_delta"),
    [
        ("0c000000010100", 2, 1),  # fewer records than claimed
        ("0c0000000101000c000002010100", 1, 0),  # more records than claimed
        ("0a0000000101", 1, 0),  # a record that is too short
        ("0e000000010100", 1, 0),  # a record longer than the batch
        ("ffffffff0f000000010100", 1, 0),  # a negative length
        ("0c00000004ff00", 1, 0),  # a key longer than the record
        ("0c000000030100", 1, 0),  # a key of length -2
        ("0c000002010100", 1, 0),  # an offset beyond the batch
        ("0c0000000101000c000000010100", 2, 1),  # a repeated offset
        ("0c0000010101000c000002010100", 2, 1),  # an offset before the batch
        ("0c000000010102", 1, 0),  # a missing header
        ("0e00000001010101", 1, 0),  # a header count of -1
        ("1000000001010201ff", 1, 0),  # a header without a name
        ("12000000010102 02ff01", 1, 0),  # a header's name that is not UTF-8
        ("0e00000001010000", 1, 0),  # a byte after the headers
        ("0c000080808080808080808080010100", 1, 0),  # a number that never ends
    ],
)
def test_damaged_records_are_refused(payload: str, count: int, last_delta: int) -> None:
    batch = read_header(payload_batch(payload, count, last_delta))
    with pytest.raises(BatchError):
        open_batch(batch)


def test_a_count_too_large_for_memory_is_refused_before_any_record_is_read() -> None:
    with pytest.raises(BatchError):
        open_batch(read_header(payload_batch("0c000000010100", 2**31 - 1, 2**31 - 2)))
    with pytest.raises(BatchError):
        open_batch(read_header(payload_batch("0c000000010100", -1, 0)))


def test_a_truncated_batch_is_not_opened() -> None:
    data = build_pairs([(b"key", b"value")], timestamp_ms=0).data
    with pytest.raises(BatchError):
        open_batch(read_header(data[:-1]))
