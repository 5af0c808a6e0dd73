"""A scan of a batch gives the same result as opening it, for any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.limits import MAX_RECORD_ERRORS
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.opened import Record, open_batch
from fencepost.records.scan import RecordScan, find_time

SOME_BYTES = st.none() | st.binary(max_size=5) | st.binary(min_size=60, max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 2**40),
        key=SOME_BYTES,
        value=SOME_BYTES,
        headers=st.lists(st.tuples(st.text(max_size=3), SOME_BYTES), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def scan(batch: SealedBatch, step: int) -> list[int] | str:
    """The records without a key, or the error."""
    try:
        found = RecordScan(batch, memoryview(batch.data)[HEADER_BYTES:])
        while not found.step(step):
            pass
    except BatchError as problem:
        return problem.error_code.name
    return found.keyless


def opened(batch: SealedBatch) -> list[int] | str:
    try:
        records = open_batch(batch)
    except BatchError as problem:
        return problem.error_code.name
    return [index for index, record in enumerate(records) if record.key is None]


@given(records=RECORDS, step=st.integers(1, 10))
def test_scanning_a_valid_batch_gives_the_same_result_as_opening_it(
    records: list[Record], step: int
) -> None:
    batch = read_header(build_batch(records, timestamp_ms=0))
    assert scan(batch, step) == opened(batch)


@given(records=RECORDS, step=st.integers(1, 10), data=st.data())
def test_scanning_a_damaged_batch_gives_the_same_result_as_opening_it(
    records: list[Record], step: int, data: st.DataObject
) -> None:
    raw = build_batch(records, timestamp_ms=0)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(HEADER_BYTES, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    if cut and len(raw) > HEADER_BYTES + cut:
        raw = raw[:-cut]
        raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    batch = read_header(raw)
    assert scan(batch, step) == opened(batch)


def test_an_impossible_count_is_refused() -> None:
    raw = build_batch([Record(key=b"k")], timestamp_ms=0)
    raw[57:61] = (10_000).to_bytes(4, "big")
    batch = read_header(raw)
    with pytest.raises(BatchError, match="10000 records in"):
        RecordScan(batch, memoryview(raw)[HEADER_BYTES:])


def test_the_first_hundred_records_without_a_key_are_reported() -> None:
    raw = build_batch([Record(value=b"v")] * 150, timestamp_ms=0)
    assert scan(read_header(raw), 40) == list(range(MAX_RECORD_ERRORS))


@given(
    records=RECORDS, wanted=st.integers(0, 2**40), start=st.integers(0, 8), stamped=st.booleans()
)
def test_a_timestamp_is_found_at_the_same_record_as_in_the_opened_batch(
    records: list[Record], wanted: int, start: int, stamped: bool
) -> None:
    batch = read_header(build_batch(records, timestamp_ms=0))
    if stamped:
        batch.stamp_append_time(2**39)
    found = find_time(batch, memoryview(batch.data)[HEADER_BYTES:], wanted, start)
    assert found == next(
        (
            (record.timestamp_ms, record.offset)
            for record in open_batch(batch)
            if record.timestamp_ms >= wanted and record.offset >= start
        ),
        None,
    )
