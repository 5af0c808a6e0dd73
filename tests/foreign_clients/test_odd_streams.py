"""Compressed streams that Produce accepts are read by every client, however oddly they are made.

kafka-python reads zstd with a package that is not installed here; its zstd is the library of the
other two.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer
from kafka.codec import has_zstd

import fencepost
from fencepost.records.compression import Codec
from tests.broker.raw import RawClient
from tests.broker.requests import create_topic, produce
from tests.records.malformed import batch, odd_streams, record
from tests.records.test_compression import READ_BY_ALL

DEADLINE_SECONDS = 30

Read = Callable[[str, str], list[bytes]]


def with_librdkafka(servers: str, topic: str) -> list[bytes]:
    settings = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        values = []
        for _ in range(DEADLINE_SECONDS * 5):
            if (message := consumer.poll(0.2)) is not None:
                assert message.error() is None
                values.append(message.value() or b"")
                if values[-1] == b"end":
                    return values
        raise AssertionError(f"only {len(values)} messages came")
    finally:
        consumer.close()


def with_aiokafka(servers: str, topic: str) -> list[bytes]:
    async def run() -> list[bytes]:
        settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest"}
        async with asyncio.timeout(DEADLINE_SECONDS), AIOKafkaConsumer(topic, **settings) as reader:
            values = [(await reader.getone()).value]
            while values[-1] != b"end":
                values.append((await reader.getone()).value)
            return values

    return asyncio.run(run())


def with_kafka_python(servers: str, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=DEADLINE_SECONDS * 1000,
    )
    try:
        return up_to_the_end(message.value for message in consumer)
    finally:
        consumer.close()


def up_to_the_end(values: Iterable[bytes]) -> list[bytes]:
    return [*itertools.takewhile(lambda value: value != b"end", values), b"end"]


@pytest.mark.parametrize("read", [with_librdkafka, with_aiokafka, with_kafka_python])
def test_every_accepted_stream_is_read_by_every_client(
    broker: fencepost.Broker, new_name: Callable[[str], str], read: Read
) -> None:
    topic = new_name("odd-streams")
    streams = {name: odd_streams()[name] for name in sorted(READ_BY_ALL)}
    if read is with_kafka_python and not has_zstd():
        streams = {name: each for name, each in streams.items() if each[0] != Codec.ZSTD}
    with RawClient(broker.bootstrap_servers) as client:
        create_topic(client, topic)
        for codec, packed in streams.values():
            raw = batch(b"", 2, codec=codec, packed=packed, timestamp_ms=1)
            assert produce(client, topic, raw).error_code == 0
        end = batch(record(value=b"end"), 1, timestamp_ms=1)
        assert produce(client, topic, end).error_code == 0
    assert read(broker.bootstrap_servers, topic) == [*[b"value"] * 2 * len(streams), b"end"]
