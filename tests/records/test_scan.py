"""A scan of a batch gives the same result as opening it, for any bytes.

Whatever the scan accepts, a reader must be able to open: the reader is the oracle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.limits import MAX_RECORD_ERRORS
from fencepost.records.batch import HEADER_BYTES, BatchError, SealedBatch, read_header
from fencepost.records.builder import build_batch
from fencepost.records.compression import CODECS, decompress
from fencepost.records.opened import Record, open_batch
from fencepost.records.scan import MANY_HEADERS, WINDOW_BYTES, RecordScan, find_time
from tests.records.malformed import LYING, ODD, header, record
from tests.records.malformed import batch as malformed_batch

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


WINDOWS = st.sampled_from([1, 7, 12, 30, 100, WINDOW_BYTES])
STEPS = st.integers(1, 10)


class Seen(NamedTuple):
    """What a scan finds out about the records."""

    keyless: list[int]
    oldest_ms: int
    newest_ms: int


def scan(
    batch: SealedBatch, step: int, window_bytes: int = WINDOW_BYTES, *, strict_names: bool = True
) -> Seen | str:
    """What it finds, or the error."""
    try:
        payload = decompress(batch.codec, memoryview(batch.data)[HEADER_BYTES:])
        found = RecordScan(batch, payload, strict_names=strict_names, window_bytes=window_bytes)
        while not found.step(step):
            pass
    except BatchError as problem:
        return problem.error_code.name
    return Seen(found.keyless, found.oldest_ms, found.newest_ms)


def opened(batch: SealedBatch, *, name_errors: str = "strict") -> Seen | str:
    """The same from the opened records."""
    try:
        records = open_batch(batch, name_errors=name_errors)
    except BatchError as problem:
        return problem.error_code.name
    times = [record.timestamp_ms for record in records]
    if max(times) >= 2**63 or min(times) < -(2**63):
        return ErrorCode.INVALID_RECORD.name
    return Seen(
        [index for index, record in enumerate(records) if record.key is None],
        min((time for time in times if time != NO_TIMESTAMP), default=NO_TIMESTAMP),
        max(NO_TIMESTAMP, *times),
    )


@given(records=RECORDS, step=STEPS, window=WINDOWS)
def test_scanning_a_valid_batch_gives_the_same_result_as_opening_it(
    records: list[Record], step: int, window: int
) -> None:
    batch = read_header(build_batch(records, timestamp_ms=0))
    seen = scan(batch, step, window)
    assert isinstance(seen, Seen)
    assert seen == opened(batch)


@given(records=RECORDS, step=STEPS, window=WINDOWS, data=st.data())
def test_scanning_a_damaged_batch_gives_the_same_result_as_opening_it(
    records: list[Record], step: int, window: int, data: st.DataObject
) -> None:
    raw = build_batch(records, timestamp_ms=0)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(HEADER_BYTES, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    if cut and len(raw) > HEADER_BYTES + cut:
        raw = raw[:-cut]
        raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    batch = read_header(raw)
    assert scan(batch, step, window) == opened(batch)


NUMBERS = (
    st.integers(-3, 12)
    | st.sampled_from([2**31 - 1, -(2**31), 2**20])
    | st.binary(min_size=1, max_size=11)
)
"""What may be written where a record has a number: any number, or any bytes."""


@given(
    fields=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "delta": NUMBERS,
                "time": NUMBERS | st.integers(-(2**63), 2**63 - 1),
                "off_by": st.integers(-2, 2),
                "length": NUMBERS,
                "key_length": NUMBERS,
                "value_length": NUMBERS,
                "header_count": NUMBERS,
                "headers": st.builds(header, st.binary(max_size=3), st.binary(max_size=3)),
                "after": st.binary(max_size=2),
                "attributes": st.integers(0, 255),
            },
        ),
        min_size=1,
        max_size=4,
    ),
    more=st.integers(-1, 1),
    base=st.sampled_from([0, 1_700_000_000_000, 2**63 - 1, -(2**63)]),
    step=STEPS,
    window=WINDOWS,
)
def test_scanning_records_with_any_fields_gives_the_same_result_as_opening_them(
    fields: list[dict[str, Any]], more: int, base: int, step: int, window: int
) -> None:
    payload = b"".join(record(**{"delta": index, **each}) for index, each in enumerate(fields))
    raw = malformed_batch(payload, max(1, len(fields) + more))
    raw[27:35] = base.to_bytes(8, "big", signed=True)
    batch = read_header(raw)
    assert scan(batch, step, window) == opened(batch)


@pytest.mark.parametrize("window", [1, 7, 64, WINDOW_BYTES])
@pytest.mark.parametrize("name", LYING)
def test_records_that_no_reader_can_read_are_damage(name: str, window: int) -> None:
    payload, count = LYING[name]
    for codec in sorted(CODECS):
        batch = read_header(malformed_batch(payload, count, codec=codec))
        for step in (1, 1000):
            assert scan(batch, step, window) == opened(batch) == "INVALID_RECORD"


READABLE = {
    "a length in more bytes than it needs",
    "record attributes 1",
    "record attributes 255",
    "a time before 1970",
    "the largest time",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_records_are_damage_unless_every_client_can_read_them(name: str) -> None:
    payload, count = ODD[name]
    batch = read_header(malformed_batch(payload, count))
    assert scan(batch, 1000) == opened(batch)
    assert (scan(batch, 1000) != "INVALID_RECORD") == (name in READABLE)


def test_a_header_name_that_is_not_utf8_may_be_left_to_the_reader() -> None:
    payload, count = ODD["a header name that is not UTF-8"]
    batch = read_header(malformed_batch(payload, count))
    assert scan(batch, 1000, strict_names=False) == opened(batch, name_errors="replace")
    assert isinstance(scan(batch, 1000, strict_names=False), Seen)


@pytest.mark.parametrize("size", [WINDOW_BYTES - 40, WINDOW_BYTES, 3 * WINDOW_BYTES])
def test_records_larger_than_a_window_are_read_among_small_ones(size: int) -> None:
    small = Record(value=b"s", timestamp_ms=7)
    large = Record(key=b"k", value=bytes(size), headers=(("n", b"v"),), timestamp_ms=3)
    records = [small, large, small, large, large] + [small] * 3000
    batch = read_header(build_batch(records, timestamp_ms=0))
    seen = scan(batch, 100)
    assert isinstance(seen, Seen)
    assert seen == opened(batch)._replace(keyless=seen.keyless)  # type: ignore[union-attr]
    assert seen.keyless[:3] == [0, 2, 5]


@pytest.mark.parametrize("count", [MANY_HEADERS, MANY_HEADERS + 1, 10 * MANY_HEADERS])
def test_very_many_headers_of_one_record_are_read_in_steps(count: int) -> None:
    """Whatever a batch holds, a step takes about as long as its number of records."""
    records = [Record(headers=(("name", None),) * count)] * 2
    batch = read_header(build_batch(records, timestamp_ms=0))
    found = RecordScan(batch, memoryview(batch.data)[HEADER_BYTES:])
    steps = 1
    while not found.step(100):
        steps += 1
    assert steps >= 2 * count // MANY_HEADERS
    assert found.keyless == [0, 1]
    damaged = bytearray(batch.data)
    damaged[-4:] = b"\xff\xfe\0\0"
    assert scan(read_header(damaged), 100) == "INVALID_RECORD"


def test_an_impossible_count_is_refused() -> None:
    raw = build_batch([Record(key=b"k")], timestamp_ms=0)
    raw[57:61] = (10_000).to_bytes(4, "big")
    batch = read_header(raw)
    with pytest.raises(BatchError, match="10000 records in"):
        RecordScan(batch, memoryview(raw)[HEADER_BYTES:])


def test_the_first_hundred_records_without_a_key_are_reported() -> None:
    raw = build_batch([Record(value=b"v")] * 150, timestamp_ms=0)
    seen = scan(read_header(raw), 40)
    assert isinstance(seen, Seen)
    assert seen.keyless == list(range(MAX_RECORD_ERRORS))


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
