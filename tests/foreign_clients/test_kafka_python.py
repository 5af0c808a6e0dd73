"""kafka-python 3 against a fencepost broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

import fencepost
from fencepost.client.blocking import connect

NewName = Callable[[str], str]

DEADLINE_SECONDS = 30


def take(consumer: KafkaConsumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    for _ in range(DEADLINE_SECONDS * 5):
        for records in consumer.poll(timeout_ms=200).values():
            values += [record.value for record in records]
        if len(values) >= count:
            return values
    raise AssertionError(f"only {len(values)} of {count} messages came")


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_group_consumes_records_of_every_codec(
    broker: fencepost.Broker, new_name: NewName, codec: str | None
) -> None:
    topic = new_name("codecs")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type=codec)
    values = [b"value-%d" % n * 20 for n in range(50)]
    sent = [producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
    offsets = [future.get(timeout=DEADLINE_SECONDS).offset for future in sent]
    producer.close()
    assert offsets == list(range(50))
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=new_name("group"),
        auto_offset_reset="earliest",
    )
    try:
        # Without the topic's metadata the client would assign itself nothing, and not join again.
        assert consumer.partitions_for_topic(topic) == {0}
        assert take(consumer, 50) == values
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == 50
    finally:
        consumer.close()


def test_topics_are_created_listed_and_deleted(broker: fencepost.Broker, new_name: NewName) -> None:
    topic = new_name("admin")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])
        assert topic in admin.list_topics()
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_offsets_are_found_by_time(broker: fencepost.Broker, new_name: NewName) -> None:
    topic = new_name("times")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for n in range(3):
        producer.send(topic, b"%d" % n, timestamp_ms=1_000 * (n + 1)).get(timeout=DEADLINE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    place = TopicPartition(topic, 0)
    try:
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: 3}
        assert consumer.offsets_for_times({place: 1_500})[place].offset == 1
    finally:
        consumer.close()


def test_a_transaction_is_described_although_fencepost_adds_fields(
    broker: fencepost.Broker, new_name: NewName
) -> None:
    name = new_name("described")
    with connect(broker.bootstrap_servers) as cluster:
        cluster.init_producer_id(name)
        view = cluster.describe_transactions([name])[name]
        assert view is not None
        assert view.client_host == "127.0.0.1"
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        found = admin.describe_transactions([name])[name]
        assert (found.producer_id, found.state.value) == (view.producer_id, "Empty")
    finally:
        admin.close()
