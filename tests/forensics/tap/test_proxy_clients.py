"""Real clients through the tap, to three brokers.

The tap has to be the only way that they use: the brokers write traces too, and every client that
they saw must be a connection of the tap.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

import fencepost
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from fencepost.forensics.tap.dialing import CLIENT_ID
from tools.tap_process import TapProcess

NUMBERS = itertools.count()
VALUES = [b"value-%d" % number for number in range(30)]
DEADLINE_SECONDS = 60
BROKERS = 3


@dataclass(frozen=True)
class Tapped:
    """Brokers behind a tap."""

    tap: TapProcess
    trace: Path

    @property
    def servers(self) -> str:
        return self.tap.bootstrap_servers


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tapped]:
    folder = tmp_path_factory.mktemp("tapped")
    trace = folder / "trace.jsonl"
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    with (
        fencepost.Cluster(BROKERS, trace=trace, config=settings) as cluster,
        TapProcess(cluster.bootstrap_servers, folder / "tap.jsonl") as tap,
    ):
        yield Tapped(tap, trace)
    seen = {
        line["client"]
        for line in lines_of(trace)
        if "connection" in line and line["client_id"] != CLIENT_ID
    }
    opened = [line for line in lines_of(tap.out) if line.get("event") == "opened"]
    assert seen, "the brokers saw no client"
    assert seen <= {line["through"] for line in opened}, "a client did not use the tap"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def topic(tapped: Tapped) -> str:
    name = f"t-{next(NUMBERS)}"
    with connect(tapped.servers) as cluster:
        cluster.create_topics([NewTopic(name, partitions=3)])
    return name


def with_confluent(servers: str, topic: str, name: str) -> list[bytes]:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(DEADLINE_SECONDS)
    producer.begin_transaction()
    for number, value in enumerate(VALUES):
        producer.produce(topic, value, partition=number % 3)
    producer.commit_transaction(DEADLINE_SECONDS)
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    got: list[bytes] = []
    while len(got) < len(VALUES):
        message = consumer.poll(DEADLINE_SECONDS)
        assert message is not None, "no record within the deadline"
        if message.error() is None:
            got.append(message.value() or b"")
    consumer.close()
    return got


def with_kafka_python(servers: str, topic: str, name: str) -> list[bytes]:
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    for number, value in enumerate(VALUES):
        producer.send(topic, value, partition=number % 3)
    producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=name,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    got = [message.value for message in itertools.islice(consumer, len(VALUES))]
    consumer.close()
    return got


def with_aiokafka(servers: str, topic: str, name: str) -> list[bytes]:
    async def run() -> list[bytes]:
        writer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        async with writer as producer, producer.transaction():
            for number, value in enumerate(VALUES):
                await producer.send(topic, value, partition=number % 3)
        async with (
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=servers,
                group_id=name,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
            asyncio.timeout(DEADLINE_SECONDS),
        ):
            return [(await consumer.getone()).value or b"" for _ in VALUES]

    return asyncio.run(run())


def with_fencepost(servers: str, topic: str, name: str) -> list[bytes]:
    from fencepost.base.ids import TopicPartition
    from fencepost.records.opened import Record

    with connect(servers) as cluster:
        identity = cluster.init_producer_id(name, timeout_ms=60_000)
        with cluster.writer(identity) as writer:
            for index in range(3):
                records = [Record(value=value) for value in VALUES[index::3]]
                writer.write_records(TopicPartition(topic, index), records)
            writer.flush()
            cluster.end_txn(writer.identity, commit=True)
        return [
            record.value or b""
            for index in range(3)
            for record in cluster.records(TopicPartition(topic, index))
        ]


Run = Callable[[str, str, str], list[bytes]]


@pytest.mark.parametrize("run", [with_confluent, with_kafka_python, with_aiokafka, with_fencepost])
def test_a_transaction_is_written_and_read_through_the_tap(
    tapped: Tapped, topic: str, run: Run
) -> None:
    name = f"{run.__name__}-{topic}"
    assert sorted(run(tapped.servers, topic, name)) == sorted(VALUES)

    lines = tapped.tap.lines()
    assert not [line for line in lines if line.get("decoded") is False]
    produced = [
        line
        for line in lines
        if line.get("api") == "Produce"
        and line["kind"] == "request"
        and line["body"].get("transactional_id") == name
    ]
    batches = [
        batch
        for line in produced
        for topic_data in line["body"]["topic_data"]
        for data in topic_data["partition_data"]
        for batch in data["records"]["batches"]
    ]
    assert sum(batch["record_count"] for batch in batches) == len(VALUES)
    assert all(batch["transactional"] for batch in batches)
    assert len({line["broker"] for line in produced}) == BROKERS
    assert "value-" not in tapped.tap.out.read_text()


def test_every_broker_has_one_port_for_the_run(tapped: Tapped, topic: str) -> None:
    with connect(tapped.servers) as cluster:
        first = dict(cluster.describe_cluster().brokers)
        assert dict(cluster.metadata([topic]).brokers) == first
    assert len({each.port for each in first.values()}) == BROKERS
    assert {each.host for each in first.values()} == {"127.0.0.1"}
    listeners = [line for line in tapped.tap.lines() if line.get("kind") == "listener"]
    assert len(listeners) <= BROKERS + 1
