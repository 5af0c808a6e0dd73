"""Invalid batches: each is refused with Kafka's error code, and nothing is written.

What is wrong here is in the header; for records see `test_produce_unreadable_records.py`.
"""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.base.errors import ErrorCode
from fencepost.base.seams import Buffer
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.fetch import FetchRequest
from tests.broker.conftest import NewTopic
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, fetch, produce, read_topic
from tests.halves import examples

LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_DELTA, COUNT = 8, 16, 17, 21, 23, 57


def altered(position: int, layout: str, value: int, *, sealed: bool = True) -> bytearray:
    """A batch of two records with one header field changed; `sealed` makes the CRC match."""
    batch = batch_of(b"first", b"second")
    struct.pack_into(layout, batch, position, value)
    if sealed:
        struct.pack_into(">I", batch, CRC, crc32c(memoryview(batch)[ATTRIBUTES:]))
    return batch


NOT_WHOLE = batch_of(b"first", b"second")[:-3]

REFUSED: dict[str, tuple[Buffer | None, ErrorCode]] = {
    "a wrong CRC": (altered(CRC, ">I", 0, sealed=False), ErrorCode.CORRUPT_MESSAGE),
    "a changed record": (altered(70, ">b", 7, sealed=False), ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (altered(MAGIC, ">b", 0), ErrorCode.INVALID_RECORD),
    "magic 1": (altered(MAGIC, ">b", 1), ErrorCode.INVALID_RECORD),
    "magic 3": (altered(MAGIC, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "magic -1": (altered(MAGIC, ">b", -1), ErrorCode.CORRUPT_MESSAGE),
    "two batches": (batch_of(b"one") + batch_of(b"two"), ErrorCode.INVALID_RECORD),
    "bytes after the batch": (batch_of(b"one") + b"rest", ErrorCode.INVALID_RECORD),
    "a truncated batch": (NOT_WHOLE, ErrorCode.INVALID_RECORD),
    "no batch": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "half a header": (batch_of(b"one")[:30], ErrorCode.INVALID_RECORD),
    "a negative length": (altered(LENGTH, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "a length below a header": (altered(LENGTH, ">i", 10), ErrorCode.CORRUPT_MESSAGE),
    "a huge length": (altered(LENGTH, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
    "fewer records than offsets": (altered(COUNT, ">i", 1), ErrorCode.INVALID_RECORD),
    "more records than offsets": (altered(COUNT, ">i", 3), ErrorCode.INVALID_RECORD),
    "no records": (altered(COUNT, ">i", 0), ErrorCode.INVALID_RECORD),
    "a negative count": (altered(COUNT, ">i", -1), ErrorCode.INVALID_RECORD),
    "a negative span of offsets": (altered(LAST_DELTA, ">i", -1), ErrorCode.INVALID_RECORD),
    "an unknown codec": (altered(ATTRIBUTES, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a control batch": (batch_of(b"marker", control=True), ErrorCode.INVALID_RECORD),
    "a base offset": (batch_of(b"value", base_offset=5), ErrorCode.INVALID_RECORD),
    "a producer without a sequence": (
        batch_of(b"value", producer_id=5, epoch=0, sequence=-1),
        ErrorCode.INVALID_RECORD,
    ),
    "a negative sequence": (
        batch_of(b"value", producer_id=5, epoch=0, sequence=-7),
        ErrorCode.INVALID_RECORD,
    ),
    "a batch above max.message.bytes": (batch_of(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_invalid_batch_is_refused_and_the_next_one_is_accepted(
    client: RawClient, other: RawClient, new_topic: NewTopic, what: str
) -> None:
    records, error = REFUSED[what]
    topic = new_topic()
    reply = produce(client, topic, records)
    assert (reply.error_code, reply.base_offset) == (error, -1)
    assert reply.error_message
    assert produce(client, topic, batch_of(b"good")).base_offset == 0
    assert read_topic(other, topic) == [b"good"]


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic(cleanup_policy="compact")
    reply = produce(client, topic, batch_of(b"a", b"b"))
    assert reply.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in reply.record_errors] == [0, 1]
    assert read_topic(client, topic) == []


def test_a_timestamp_far_from_the_clock_is_refused_if_the_topic_limits_it(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    for time in (0, 2**60):
        reply = produce(client, topic, batch_of(b"value", timestamp_ms=time))
        assert reply.error_code == ErrorCode.INVALID_TIMESTAMP
    assert read_topic(client, topic) == []


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_batch_with_any_byte_changed_is_refused_or_returned_as_it_was_sent(
    client: RawClient, new_topic: NewTopic, data: st.DataObject
) -> None:
    topic = new_topic()
    batch = batch_of(b"first", b"second")
    place = data.draw(st.integers(0, len(batch) - 1))
    batch[place] ^= data.draw(st.integers(1, 255))
    reply = produce(client, topic, batch)
    got = bytes(fetch(client, topic).records or b"")
    if reply.error_code:
        assert got == b""
    else:  # The CRC leaves out only the bytes that the broker writes.
        assert 12 <= place < 16
        assert got[16:] == bytes(batch)[16:]


# -- names -----------------------------------------------------------------------------------------

ILLEGAL = ["", ".", "..", "a/b", "a b", "a:b", "\x00", "naïve", "x" * 250, "../../etc/passwd"]


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_topic_with_an_illegal_name_can_be_neither_written_nor_read(
    client: RawClient, name: str
) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, name, batch_of(b"value")).error_code == unknown
    assert fetch(client, name).error_code == unknown


def test_a_fetch_without_partitions_gets_an_empty_reply(client: RawClient) -> None:
    reply = client.call(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=60_000, min_bytes=1))
    assert (reply.error_code, reply.responses) == (0, [])
