"""librdkafka, through confluent-kafka, against a fencepost broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

import fencepost

NewName = Callable[[str], str]

DEADLINE_SECONDS = 30.0


def producer(broker: fencepost.Broker, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})


def consumer(broker: fencepost.Broker, group: str, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


def admin(broker: fencepost.Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def send(target: Producer, topic: str, *values: bytes | None, **more: Any) -> list[tuple[int, int]]:
    """Produce all values; return their (partition, offset) in the order of acknowledgement."""
    places: list[tuple[int, int]] = []

    def acknowledged(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        places.append((message.partition(), message.offset()))

    for value in values:
        target.produce(topic, value, on_delivery=acknowledged, **more)
    assert target.flush(DEADLINE_SECONDS) == 0
    return places


def take(source: Consumer, count: int) -> list[Any]:
    """Consume exactly `count` messages, or fail."""
    messages: list[Any] = []
    while len(messages) < count:
        message = source.poll(DEADLINE_SECONDS)
        assert message is not None, f"only {len(messages)} of {count} messages came"
        assert message.error() is None, message.error()
        messages.append(message)
    return messages


def create(broker: fencepost.Broker, topic: str, partitions: int = 1, **config: str) -> None:
    client = admin(broker)  # Must live as long as its futures.
    made = client.create_topics(
        [NewTopic(topic, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})]
    )
    made[topic].result(DEADLINE_SECONDS)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_records_of_every_codec_are_consumed(
    broker: fencepost.Broker, new_name: NewName, codec: str, idempotent: bool
) -> None:
    topic = new_name("codecs")
    values = [b"value-%d" % n * 50 for n in range(100)]
    source = producer(
        broker, **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 20}
    )
    send(source, topic, *values)
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        assert [message.value() for message in take(reader, 100)] == values
    finally:
        reader.close()


def test_keys_headers_nulls_and_timestamps_are_kept(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("whole")
    source = producer(broker)
    headers = [("trace", b"\x00\x01"), ("empty", b""), ("null", None), ("trace", b"again")]
    source.produce(topic, b"v", b"k", headers=headers, timestamp=1_700_000_000_123)
    source.produce(topic, None, b"tombstone")
    source.produce(topic, b"", None)
    assert source.flush(DEADLINE_SECONDS) == 0
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        first, second, third = take(reader, 3)
    finally:
        reader.close()
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", headers)
    assert first.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert (second.key(), second.value()) == (b"tombstone", None)
    assert (third.key(), third.value()) == (None, b"")


def test_a_message_of_one_megabyte_is_accepted_and_a_larger_one_refused(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("large")
    large = b"x" * 1_000_000
    source = producer(broker, **{"message.max.bytes": 10_000_000})
    assert send(source, topic, large) == [(0, 0)]
    errors: list[KafkaError] = []
    source.produce(topic, b"y" * 2_000_000, on_delivery=lambda error, _: errors.append(error))
    source.flush(DEADLINE_SECONDS)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        assert take(reader, 1)[0].value() == large
    finally:
        reader.close()


def test_a_group_continues_from_its_committed_offsets(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic, group = new_name("commits"), new_name("group")
    send(producer(broker), topic, *[b"%d" % n for n in range(10)])
    first = consumer(broker, group, **{"enable.auto.commit": False})
    first.subscribe([topic])
    messages = take(first, 4)
    first.commit(message=messages[-1], asynchronous=False)
    first.close()
    second = consumer(broker, group)
    second.subscribe([topic])
    try:
        assert take(second, 1)[0].value() == b"4"
        [committed] = second.committed([TopicPartition(topic, 0)], DEADLINE_SECONDS)
        assert committed.offset == 4
    finally:
        second.close()


def poll_until(done: Callable[[], bool], *members: Consumer) -> None:
    """Poll with all members of a group until the condition holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not done():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(0.02)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_the_remaining_one_gets_all(
    broker: fencepost.Broker, new_name: NewName, strategy: str
) -> None:
    topic, group = new_name("shared"), new_name("group")
    create(broker, topic, partitions=4)
    # A member hears of a rebalance with its next heartbeat.
    settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 300}
    one, two = consumer(broker, group, **settings), consumer(broker, group, **settings)
    one.subscribe([topic])
    poll_until(lambda: len(one.assignment()) == 4, one, two)
    two.subscribe([topic])
    poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
    shared = {p.partition for p in one.assignment()} | {p.partition for p in two.assignment()}
    assert shared == {0, 1, 2, 3}
    one.close()
    poll_until(lambda: len(two.assignment()) == 4, two)
    assert {p.partition for p in two.assignment()} == {0, 1, 2, 3}
    two.close()


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic, group = new_name("static"), new_name("group")
    create(broker, topic, partitions=4)
    rebalances: list[str] = []

    def member(name: str) -> Consumer:
        made = consumer(broker, group, **{"group.instance.id": name})
        made.subscribe([topic], on_assign=lambda *_: rebalances.append(name))
        return made

    one, two = member("one"), member("two")
    poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
    before = {p.partition for p in two.assignment()}
    two.close()  # A static member that leaves stays in the group until its session ends.
    rebalances.clear()
    two = member("two")
    poll_until(lambda: bool(two.assignment()), one, two)
    assert {p.partition for p in two.assignment()} == before
    assert rebalances == ["two"]
    one.close()
    two.close()


def test_topics_are_created_described_altered_and_deleted(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("admin")
    client = admin(broker)
    create(broker, topic, 3, retention_ms="1000")
    found = client.list_topics(timeout=DEADLINE_SECONDS).topics[topic]
    assert len(found.partitions) == 3
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_SECONDS)
    assert len(client.list_topics(topic, DEADLINE_SECONDS).topics[topic].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, topic)
    described = client.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    assert described["retention.ms"].value == "1000"
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "2000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    client.incremental_alter_configs([change])[change].result(DEADLINE_SECONDS)
    described = client.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    assert described["retention.ms"].value == "2000"
    client.delete_topics([topic])[topic].result(DEADLINE_SECONDS)
    assert topic not in client.list_topics(timeout=DEADLINE_SECONDS).topics


def test_creating_a_topic_twice_or_with_an_illegal_name_is_refused(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("twice")
    create(broker, topic)
    with pytest.raises(KafkaException) as twice:
        create(broker, topic)
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as illegal:
        create(broker, "no/slashes")
    assert illegal.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


def test_offsets_are_listed_by_position_and_by_time(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("offsets")
    source = producer(broker)
    for n in range(5):
        source.produce(topic, b"%d" % n, timestamp=1_700_000_000_000 + n * 1000)
        source.flush(DEADLINE_SECONDS)
    place = TopicPartition(topic, 0)
    client = admin(broker)

    def listed(spec: OffsetSpec) -> int:
        return int(client.list_offsets({place: spec})[place].result(DEADLINE_SECONDS).offset)

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 5
    assert listed(OffsetSpec.max_timestamp()) == 4
    assert listed(OffsetSpec.for_timestamp(1_700_000_002_000)) == 2
    assert listed(OffsetSpec.for_timestamp(1_700_000_002_001)) == 3
    assert listed(OffsetSpec.for_timestamp(1_800_000_000_000)) == -1


def test_deleted_records_are_gone_and_the_rest_is_readable(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("deleted")
    send(producer(broker), topic, *[b"%d" % n for n in range(10)])
    client = admin(broker)
    place = TopicPartition(topic, 0, 6)
    result = client.delete_records([place])[place].result(DEADLINE_SECONDS)
    assert result.low_watermark == 6
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        assert [message.value() for message in take(reader, 4)] == [b"6", b"7", b"8", b"9"]
    finally:
        reader.close()


def test_groups_are_listed_described_and_deleted(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic, group = new_name("groups"), new_name("group")
    send(producer(broker), topic, b"v")
    client = admin(broker)
    reader = consumer(broker, group)
    reader.subscribe([topic])
    take(reader, 1)
    listed = client.list_consumer_groups().result(DEADLINE_SECONDS)
    assert group in {each.group_id for each in listed.valid}
    described = client.describe_consumer_groups([group])[group].result(DEADLINE_SECONDS)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert len(described.members) == 1
    with pytest.raises(KafkaException) as refused:
        client.delete_consumer_groups([group])[group].result(DEADLINE_SECONDS)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    reader.close()
    client.delete_consumer_groups([group])[group].result(DEADLINE_SECONDS)
    listed = client.list_consumer_groups().result(DEADLINE_SECONDS)
    assert group not in {each.group_id for each in listed.valid}


def test_a_topic_with_a_thousand_partitions_is_written_and_read(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("thousand")
    create(broker, topic, partitions=1000)
    source = producer(broker)
    for index in range(1000):
        source.produce(topic, b"%d" % index, partition=index)
        source.poll(0)
    assert source.flush(DEADLINE_SECONDS) == 0
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        messages = take(reader, 1000)
    finally:
        reader.close()
    assert {(m.partition(), m.value()) for m in messages} == {(n, b"%d" % n) for n in range(1000)}


def test_records_sent_with_acks_0_are_stored(broker: fencepost.Broker, new_name: NewName) -> None:
    topic = new_name("acks")
    create(broker, topic)
    send(producer(broker, acks=0), topic, b"a", b"b")
    reader = consumer(broker, new_name("group"))
    reader.subscribe([topic])
    try:
        assert [message.value() for message in take(reader, 2)] == [b"a", b"b"]
    finally:
        reader.close()


def test_clients_connect_by_ipv6(new_name: NewName) -> None:
    with fencepost.Broker(host="::1") as broker:
        topic = new_name("six")
        assert send(producer(broker), topic, b"v") == [(0, 0)]


def test_a_consumer_of_the_new_group_protocol_is_told_that_it_is_not_served(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("new-protocol")
    create(broker, topic)
    reader = consumer(broker, new_name("group"), **{"group.protocol": "consumer"})
    reader.subscribe([topic])
    try:
        message = reader.poll(DEADLINE_SECONDS)
        assert message is not None, "it polls for ever without a word"
        error = message.error()
        assert error.code() == KafkaError._FATAL
        assert "ConsumerGroupHeartbeat fatal error: Broker: API version not supported" in str(error)
    finally:
        reader.close()


def test_a_share_consumer_is_told_that_share_groups_are_not_served(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    topic = new_name("shared")
    create(broker, topic)
    reader = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": new_name("share-group")}
    )
    reader.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        with pytest.raises(KafkaException, match="ShareGroupHeartbeat fatal error") as raised:
            while time.monotonic() < deadline:
                reader.poll(1.0)
        assert raised.value.args[0].code() == KafkaError.UNSUPPORTED_VERSION
    finally:
        reader.close()
