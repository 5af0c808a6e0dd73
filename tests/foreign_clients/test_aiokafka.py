"""aiokafka against a fencepost broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import fencepost

NewName = Callable[[str], str]

DEADLINE_SECONDS = 30


async def take(consumer: AIOKafkaConsumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_a_group_consumes_records_of_every_codec(
    broker: fencepost.Broker, new_name: NewName, codec: str | None, idempotent: bool
) -> None:
    async def run() -> None:
        topic = new_name("codecs")
        values = [b"value-%d" % n * 20 for n in range(50)]
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            compression_type=codec,
            enable_idempotence=idempotent,
        ) as producer:
            for value in values:
                await producer.send(topic, value, key=b"k", headers=[("h", b"1")])
            await producer.flush()
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=new_name("group"),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            assert await take(consumer, 50) == values
            await consumer.commit()
            assert await consumer.committed(TopicPartition(topic, 0)) == 50

    asyncio.run(run())


def test_two_members_share_the_partitions(broker: fencepost.Broker, new_name: NewName) -> None:
    async def run() -> None:
        topic, group = new_name("shared"), new_name("group")
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=1)])
        await admin.close()

        def member() -> AIOKafkaConsumer:
            # A member hears of a rebalance with its next heartbeat.
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                heartbeat_interval_ms=300,
            )

        async with member() as one, member() as two, asyncio.timeout(DEADLINE_SECONDS):
            while not (len(one.assignment()) == len(two.assignment()) == 2):
                await asyncio.gather(one.getmany(timeout_ms=50), two.getmany(timeout_ms=50))
            assert one.assignment() | two.assignment() == {
                TopicPartition(topic, index) for index in range(4)
            }

    asyncio.run(run())
