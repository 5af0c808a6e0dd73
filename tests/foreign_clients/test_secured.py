"""`fencepost.Broker(security=...)` with librdkafka, kafka-python, aiokafka, and through the tap.

Each client writes with its right, and raises its own exception without it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

import fencepost
from fencepost.base.ids import TopicPartition
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from tests.forensics.tap.running import running_tap

SECONDS = 30.0
PASSWORDS = {"alice": "alice-planted", "bob": "bob-planted"}


@pytest.fixture(scope="module")
def secure() -> Iterator[fencepost.Broker]:
    """Alice may write transactions and read; bob may see the topic."""
    security = fencepost.Security(users=PASSWORDS, acls=["User:bob describe topic:orders"])
    with fencepost.Broker(security=security) as broker:
        admin = broker.client_config("admin")
        with connect(broker.bootstrap_servers, admin) as cluster:
            cluster.create_topics([NewTopic("orders")])
        broker.grant("alice", "transactional", transactional_id="alice-*", topic="orders")
        broker.grant("alice", "consumer", source="orders", group="readers")
        yield broker


def python_config(broker: fencepost.Broker, user: str) -> dict[str, Any]:
    """What kafka-python and aiokafka call the same."""
    given = broker.client_config(user)
    return {
        "bootstrap_servers": given["bootstrap.servers"],
        "security_protocol": given["security.protocol"],
        "sasl_mechanism": given["sasl.mechanism"],
        "sasl_plain_username": given["sasl.username"],
        "sasl_plain_password": given["sasl.password"],
        "ssl_context": ssl.create_default_context(cafile=given["ssl.ca.location"]),
    }


def end_offset(broker: fencepost.Broker) -> int:
    with connect(broker.bootstrap_servers, broker.client_config("admin")) as cluster:
        return len(list(cluster.records(TopicPartition("orders", 0))))


def test_a_transaction_of_librdkafka(secure: fencepost.Broker) -> None:
    given = {**secure.client_config("alice"), "transactional.id": "alice-librdkafka"}
    producer = confluent_kafka.Producer(given)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", b"librdkafka")
    producer.commit_transaction(SECONDS)
    consumer = confluent_kafka.Consumer(
        {**secure.client_config("alice"), "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error() is None
    consumer.close()


def test_librdkafka_is_told_which_right_is_missing(secure: fencepost.Broker) -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(secure.client_config("bob"))
    producer.produce("orders", b"no", on_delivery=lambda error, _: failures.append(error))
    producer.flush(SECONDS)
    assert [each.name() for each in failures] == ["TOPIC_AUTHORIZATION_FAILED"]
    given = {**secure.client_config("bob"), "transactional.id": "alice-librdkafka"}
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        confluent_kafka.Producer(given).init_transactions(SECONDS)
    assert refused.value.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def test_kafka_python_writes_and_is_refused(secure: fencepost.Broker) -> None:
    before = end_offset(secure)
    producer = kafka.KafkaProducer(**python_config(secure, "alice"))
    producer.send("orders", b"kafka-python").get(SECONDS)
    producer.close()
    assert end_offset(secure) == before + 1
    producer = kafka.KafkaProducer(**python_config(secure, "bob"), enable_idempotence=False)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send("orders", b"no").get(SECONDS)
    producer.close()


def test_aiokafka_writes_a_transaction_and_is_refused(secure: fencepost.Broker) -> None:
    async def run() -> None:
        async with (
            aiokafka.AIOKafkaProducer(
                **python_config(secure, "alice"), transactional_id="alice-aiokafka"
            ) as producer,
            producer.transaction(),
        ):
            await producer.send_and_wait("orders", b"aiokafka")
        async with aiokafka.AIOKafkaProducer(**python_config(secure, "bob")) as producer:
            with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
                await producer.send_and_wait("orders", b"no")

    before = end_offset(secure)
    asyncio.run(run())
    assert end_offset(secure) == before + 1


def test_a_client_logs_in_through_the_tap_which_shows_no_password(
    secure: fencepost.Broker,
) -> None:
    """Plain text to the tap, TLS behind it. The broker knows who the client is."""
    given = secure.client_config("alice")
    trusting = ssl.create_default_context(cafile=given["ssl.ca.location"])
    port = int(given["bootstrap.servers"].rpartition(":")[2])
    before = end_offset(secure)
    with running_tap(port, tls=trusting, keeps_bytes=True) as tap:
        through = {
            **given,
            "bootstrap.servers": f"127.0.0.1:{tap.proxy.addresses.first}",
            "security.protocol": "SASL_PLAINTEXT",
        }
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):
            identity = {"sasl.mechanism": mechanism, "transactional.id": f"alice-{mechanism}"}
            producer = confluent_kafka.Producer({**through, **identity})
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
            producer.produce("orders", b"through the tap")
            producer.commit_transaction(SECONDS)
        refused = confluent_kafka.Producer(
            {
                **through,
                "sasl.username": "bob",
                "sasl.password": PASSWORDS["bob"],
                "transactional.id": "alice-tapped",
            }
        )
        with pytest.raises(confluent_kafka.KafkaException) as failed:
            refused.init_transactions(SECONDS)
        assert failed.value.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        seen = repr(tap.lines.lines)
    assert end_offset(secure) == before + 2
    assert "SaslAuthenticate" in seen
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in seen
    assert not [each for each in PASSWORDS.values() if each in seen]
