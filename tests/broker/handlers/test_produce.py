"""Produce on the wire: acknowledgements, topic names and ids, error messages."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.records.compression import Codec
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from tests.broker.conftest import Complaints, NewTopic
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    fetch,
    produce,
    produce_request,
    read_topic,
)


@pytest.mark.parametrize("acks", [-2, 2, 32767, -32768])
def test_acks_other_than_0_1_and_all_are_refused(
    client: RawClient, new_topic: NewTopic, acks: int
) -> None:
    topic = new_topic()
    reply = produce(client, topic, batch_of(b"value"), acks=acks)
    assert (reply.error_code, reply.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert read_topic(client, topic) == []


@pytest.mark.parametrize("acks", [-1, 1])
def test_an_acknowledged_batch_can_be_read(
    client: RawClient, new_topic: NewTopic, acks: int
) -> None:
    topic = new_topic()
    reply = produce(client, topic, batch_of(b"a", b"b"), acks=acks)
    assert (reply.error_code, reply.base_offset, reply.log_start_offset) == (0, 0, 0)
    assert fetch(client, topic).high_watermark == 2


def test_a_refused_batch_with_acks_0_closes_the_connection(
    client: RawClient, other: RawClient, new_topic: NewTopic, complaints: Complaints
) -> None:
    """With acks=0 there is no reply: the closed connection makes the client refresh metadata."""
    topic = new_topic()
    request = produce_request("nowhere", batch_of(b"lost"), acks=0)
    request.topic_data += produce_request(topic, batch_of(b"kept")).topic_data
    client.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    assert client.is_closed_by_broker()
    (line,) = complaints()
    assert "UNKNOWN_TOPIC_OR_PARTITION" in line
    assert read_topic(other, topic) == [b"kept"]


def test_a_topic_may_be_written_by_its_id(client: RawClient) -> None:
    topic_id = create_topic(client, "by-id")
    reply = client.call(ApiKey.PRODUCE, 13, produce_request(topic_id, batch_of(b"value")))
    assert reply.responses[0].topic_id == topic_id
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert read_topic(client, "by-id") == [b"value"]


def test_a_produce_with_an_unknown_topic_id_gets_an_error(client: RawClient) -> None:
    unknown = bytes(15) + b"x"
    reply = client.call(ApiKey.PRODUCE, 13, produce_request(unknown, batch_of(b"value")))
    assert reply.responses[0].topic_id == unknown
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("index", [-1, 1, 2**31 - 1])
def test_a_produce_to_a_missing_partition_gets_an_error(
    client: RawClient, new_topic: NewTopic, index: int
) -> None:
    reply = produce(client, new_topic(), batch_of(b"value"), index=index)
    assert reply.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_refused_partition_does_not_affect_the_others(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    request = produce_request("nowhere", batch_of(b"lost"))
    request.topic_data += produce_request(topic, batch_of(b"kept")).topic_data
    reply = client.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    codes = [each.partition_responses[0].error_code for each in reply.responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert read_topic(client, topic) == [b"kept"]


def test_a_batch_sent_twice_is_written_once_and_gets_the_same_reply(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    numbered: dict[str, Any] = {"producer_id": 900, "epoch": 0, "sequence": 0}
    replies = [produce(client, topic, batch_of(b"once", **numbered)) for _ in range(2)]
    assert [(reply.error_code, reply.base_offset) for reply in replies] == [(0, 0), (0, 0)]
    assert read_topic(client, topic) == [b"once"]


def test_zstd_needs_a_client_version_that_supports_it(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    outcomes = []
    for version in (6, 7):
        request = produce_request(topic, batch_of(b"small", codec=Codec.ZSTD))
        reply = client.call(ApiKey.PRODUCE, version, request)
        outcomes.append(reply.responses[0].partition_responses[0].error_code)
    assert outcomes == [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.NONE]


def test_with_log_append_time_the_broker_sets_the_timestamp(
    client: RawClient, new_topic: NewTopic
) -> None:
    from fencepost.records.batch import split_batches

    topic = new_topic(message_timestamp_type="LogAppendTime")
    reply = produce(client, topic, batch_of(b"value", timestamp_ms=5))
    (batch,) = split_batches(fetch(client, topic).records)
    assert batch.is_append_time
    assert batch.max_timestamp == reply.log_append_time_ms > 5


def test_with_create_time_the_client_sets_the_timestamp(
    client: RawClient, new_topic: NewTopic
) -> None:
    from fencepost.records.batch import split_batches

    topic = new_topic()
    reply = produce(client, topic, batch_of(b"value", timestamp_ms=5))
    (batch,) = split_batches(fetch(client, topic).records)
    assert (batch.is_append_time, batch.max_timestamp, reply.log_append_time_ms) == (False, 5, -1)


def test_a_batch_refused_by_the_log_gets_the_log_start_offset(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    out_of_order = produce(client, topic, batch_of(b"x", producer_id=5, epoch=0, sequence=0))
    assert out_of_order.error_code == ErrorCode.NONE
    gap = produce(client, topic, batch_of(b"x", producer_id=5, epoch=0, sequence=7))
    control = produce(client, topic, batch_of(b"x", control=True))
    assert (gap.error_code, gap.log_start_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert (control.error_code, control.log_start_offset) == (ErrorCode.INVALID_RECORD, 0)


def test_a_batch_refused_before_the_log_gets_no_log_start_offset(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    spoiled = batch_of(b"x")
    spoiled[-1] ^= 1
    for records in (b"", spoiled, batch_of(b"x" * 1_100_000), batch_of(b"x")[:20]):
        assert produce(client, topic, records).log_start_offset == -1


def test_a_topic_without_partitions_is_left_out_of_the_produce_reply(
    client: RawClient, new_topic: NewTopic
) -> None:
    request = produce_request(new_topic(), batch_of(b"x"))
    request.topic_data[0].partition_data.clear()
    assert client.call(ApiKey.PRODUCE, PRODUCE_VERSION, request).responses == []


@pytest.mark.parametrize(
    ("enabled", "error"), [("true", ErrorCode.INVALID_PRODUCER_ID_MAPPING), ("false", 0)]
)
def test_a_first_write_is_verified_unless_verification_is_disabled(
    enabled: str, error: int
) -> None:
    settings = {"transaction.partition.verification.enable": enabled}
    with Stage(durability="os", settings=settings) as stage:
        create_topic(stage, "orders")
        records = batch_of(b"x", producer_id=5, epoch=0, sequence=0, transactional=True)
        request = produce_request("orders", records, transactional_id="nobody")
        owner = FindCoordinatorRequest(key_type=1, coordinator_keys=["nobody"])
        stage.call(ApiKey.FIND_COORDINATOR, 4, owner)
        reply = stage.call(ApiKey.PRODUCE, 10, request)
        assert reply.responses[0].partition_responses[0].error_code == error
