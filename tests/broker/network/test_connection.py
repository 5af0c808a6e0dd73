"""One connection: many requests in flight, with replies in the order of the requests."""

from __future__ import annotations

import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.base.limits import MAX_REQUESTS_IN_FLIGHT
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.conftest import NewTopic
from tests.broker.raw import RawClient, frame_of
from tests.broker.requests import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    fetch_request,
    produce,
    produce_request,
    read_topic,
    records_in,
)

A_MINUTE_MS = 60_000
METADATA_VERSION = 9


def wait_until_parked(broker: fencepost.Broker, topic: str, index: int = 0) -> None:
    """Returns when a long poll waits for the partition."""
    name = TopicPartition(topic, index)
    while not broker.call(lambda node: name in node.partitions.fetch_waiters):
        pass


def test_a_reply_does_not_overtake_a_long_poll(
    broker: fencepost.Broker, client: RawClient, other: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    poll = client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
    metadata = client.send(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None))
    wait_until_parked(broker, topic)
    produce(other, topic, batch_of(b"wakes it"))
    fetched = client.reply(ApiKey.FETCH, FETCH_VERSION, poll)
    assert [r.value for r in records_in(fetched.responses[0].partitions[0].records)] == [
        b"wakes it"
    ]
    assert client.reply(ApiKey.METADATA, METADATA_VERSION, metadata).topics


def test_a_request_after_a_long_poll_takes_effect_before_the_poll_gets_its_reply(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    poll = client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
    written = client.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"own")))
    fetched = client.reply(ApiKey.FETCH, FETCH_VERSION, poll)
    assert [r.value for r in records_in(fetched.responses[0].partitions[0].records)] == [b"own"]
    reply = client.reply(ApiKey.PRODUCE, PRODUCE_VERSION, written)
    assert reply.responses[0].partition_responses[0].base_offset == 0


def test_several_long_polls_on_one_connection_get_replies_in_request_order(
    broker: fencepost.Broker, client: RawClient, other: RawClient, new_topic: NewTopic
) -> None:
    first, second = new_topic(), new_topic()
    polls = [
        client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
        for topic in (first, second)
    ]
    wait_until_parked(broker, second)
    produce(other, second, batch_of(b"second"))
    produce(other, first, batch_of(b"first"))
    got = [
        records_in(
            client.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses[0].partitions[0].records
        )
        for poll in polls
    ]
    assert [records[0].value for records in got] == [b"first", b"second"]


def test_more_requests_than_may_be_in_flight_all_get_replies_in_order(
    broker: fencepost.Broker, client: RawClient, other: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    polls = [
        client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
        for _ in range(3 * MAX_REQUESTS_IN_FLIGHT)
    ]
    wait_until_parked(broker, topic)
    produce(other, topic, batch_of(b"for all"))
    for poll in polls:
        reply = client.reply(ApiKey.FETCH, FETCH_VERSION, poll)
        assert len(records_in(reply.responses[0].partitions[0].records)) == 1


def test_requests_that_arrive_together_or_byte_by_byte_are_all_served(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    frames = [
        frame_of(
            ApiKey.PRODUCE,
            PRODUCE_VERSION,
            produce_request(topic, batch_of(b"%d" % number)),
            number,
        )
        for number in range(10)
    ]
    client.send_bytes(b"".join(frames[:9]))
    for position in range(len(frames[9])):
        client.send_bytes(frames[9][position : position + 1])
    for number in range(10):
        client.reply(ApiKey.PRODUCE, PRODUCE_VERSION, number)
    assert read_topic(client, topic) == [b"%d" % number for number in range(10)]


def test_small_large_and_late_replies_arrive_in_request_order(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    produce(client, topic, batch_of(bytes(5000)))
    write = (ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"x")))
    read = (ApiKey.FETCH, FETCH_VERSION, fetch_request(topic))
    poll = (ApiKey.FETCH, FETCH_VERSION, fetch_request(new_topic(), max_wait_ms=1))
    asked = [write, write, read, write, poll, write, read, write]
    client.send_bytes(b"".join(frame_of(*each, number) for number, each in enumerate(asked)))
    for number, (api, version, _) in enumerate(asked):
        client.reply(api, version, number)  # Fails on a reply to another request.


def test_a_request_with_acks_0_leaves_no_gap_in_the_replies(
    client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, batch_of(b"quiet"), acks=0))
    assert produce(client, topic, batch_of(b"loud")).base_offset == 1
    assert read_topic(client, topic) == [b"quiet", b"loud"]


def test_a_pending_request_of_a_closed_connection_does_not_affect_the_next_one(
    broker: fencepost.Broker, client: RawClient, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with RawClient(broker.bootstrap_servers) as gone:
        gone.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(topic, max_wait_ms=A_MINUTE_MS))
        wait_until_parked(broker, topic)
    name = TopicPartition(topic, 0)
    while broker.call(lambda node: name in node.partitions.fetch_waiters):
        pass  # The poll is dropped with its client, so the disk is not read for it.
    assert produce(client, topic, batch_of(b"value")).error_code == 0
    assert read_topic(client, topic) == [b"value"]


@pytest.mark.parametrize("acks", [1, -1])
def test_replies_that_wait_for_the_disk_are_sent_before_later_ones(acks: int) -> None:
    with (
        fencepost.Broker(durability="fsync") as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        create_topic(client, "synced", 3)
        asked: list[tuple[ApiKey, int, int]] = []
        for number in range(30):
            request = produce_request("synced", batch_of(b"v"), index=number % 3, acks=acks)
            correlation_id = client.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
            asked.append((ApiKey.PRODUCE, PRODUCE_VERSION, correlation_id))
            correlation_id = client.send(
                ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None)
            )
            asked.append((ApiKey.METADATA, METADATA_VERSION, correlation_id))
        for api, version, correlation_id in asked:
            client.reply(api, version, correlation_id)
        assert len(read_topic(client, "synced", 2)) == 10


def test_in_fsync_mode_a_batch_is_visible_only_when_it_is_durable() -> None:
    with (
        fencepost.Broker(durability="fsync") as broker,
        RawClient(broker.bootstrap_servers) as writer,
        RawClient(broker.bootstrap_servers) as reader,
    ):
        create_topic(writer, "synced")
        request = fetch_request("synced", max_wait_ms=A_MINUTE_MS)
        poll = reader.send(ApiKey.FETCH, FETCH_VERSION, request)
        wait_until_parked(broker, "synced")
        writer.send(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("synced", batch_of(b"v")))
        fetched = reader.reply(ApiKey.FETCH, FETCH_VERSION, poll).responses[0].partitions[0]
        assert fetched.high_watermark == 1
        assert len(records_in(fetched.records)) == 1
