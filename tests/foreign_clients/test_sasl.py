"""confluent-kafka, kafka-python, aiokafka and our client against a broker that wants a login."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

import fencepost
from fencepost.base.scram import BY_NUMBER, SALT_BYTES
from fencepost.client.blocking import connect
from fencepost.client.failures import AuthenticationFailed
from fencepost.coordinator.metadata.users import Upsertion

if TYPE_CHECKING:
    from fencepost.broker.node import Node

NewName = Callable[[str], str]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECONDS = 30.0


def add_alice(node: Node) -> None:
    salt = bytes(SALT_BYTES)
    users = [
        Upsertion("alice", each.number, salt, each.salted_password("pencil", salt, 4096), 4096)
        for each in BY_NUMBER.values()
    ]
    node.controller.alter_users(users, lambda outcomes: None)


@pytest.fixture(scope="module")
def secured() -> Iterator[fencepost.Broker]:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.plaintext.scram-sha-512.connections.max.reauth.ms": 1500,
    }
    with fencepost.Broker(config=config) as running:
        running.call(add_alice)
        yield running


def confluent(broker: fencepost.Broker, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


def python(broker: fencepost.Broker, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_writes_and_reads(
    secured: fencepost.Broker, new_name: NewName, mechanism: str
) -> None:
    topic = new_name("sasl")
    producer = confluent_kafka.Producer(confluent(secured, mechanism, "pencil"))
    producer.produce(topic, b"value")
    assert producer.flush(SECONDS) == 0
    consumer = confluent_kafka.Consumer(
        {
            **confluent(secured, mechanism, "pencil"),
            "group.id": new_name("group"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()


def test_confluent_kafka_renews_its_login(secured: fencepost.Broker, new_name: NewName) -> None:
    producer = confluent_kafka.Producer(confluent(secured, "SCRAM-SHA-512", "pencil"))
    topic = new_name("renewed")
    before = secured.call(lambda node: node.logins.renewed_count)
    while secured.call(lambda node: node.logins.renewed_count) < before + 2:
        producer.produce(topic, b"value")
        assert producer.flush(SECONDS) == 0
        producer.poll(0.1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_reports_a_wrong_password(
    secured: fencepost.Broker, mechanism: str
) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    options = {**confluent(secured, mechanism, "chalk"), "error_cb": errors.append}
    producer = confluent_kafka.Producer(options)
    while not errors:
        producer.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_writes_and_reads(
    secured: fencepost.Broker, new_name: NewName, mechanism: str
) -> None:
    topic = new_name("sasl")
    options = python(secured, mechanism, "pencil")
    producer = kafka.KafkaProducer(**options)
    producer.send(topic, b"value").get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **options, auto_offset_reset="earliest")
    assert next(consumer).value == b"value"
    consumer.close()


def test_kafka_python_reports_a_wrong_password(secured: fencepost.Broker) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaProducer(**python(secured, "SCRAM-SHA-256", "chalk"), bootstrap_timeout_ms=1_000)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_writes_and_reads(
    secured: fencepost.Broker, new_name: NewName, mechanism: str
) -> None:
    async def run() -> None:
        topic = new_name("sasl")
        options = python(secured, mechanism, "pencil")
        async with AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(topic, **options, auto_offset_reset="earliest") as consumer:
            async with asyncio.timeout(SECONDS):
                assert (await consumer.getone()).value == b"value"

    asyncio.run(run())


def test_aiokafka_reports_a_wrong_password(secured: fencepost.Broker) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(**python(secured, "PLAIN", "chalk"))
        with pytest.raises(KafkaError):
            await producer.start()
        await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_own_client_logs_in(secured: fencepost.Broker, mechanism: str) -> None:
    options = confluent(secured, mechanism, "pencil")
    address = options.pop("bootstrap.servers")
    with connect(address, options) as cluster:
        assert cluster.metadata(()).brokers
    with (
        pytest.raises(AuthenticationFailed, match=r"check sasl\.username and sasl\.password"),
        connect(address, {**options, "sasl.password": "chalk"}) as cluster,
    ):
        cluster.metadata(())
