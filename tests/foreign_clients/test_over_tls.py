"""librdkafka, kafka-python and aiokafka over TLS, with client certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

import fencepost
from tests.broker.network.test_connection_slow_clients import connections_of
from tests.broker.security.certificates import ALICE, Authority, tls_config

VALUES = [b"x" * size for size in (1, 1000, 100_000, 900_000)]


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(name="broker", scope="module", params=["TLSv1.2", "TLSv1.3"])
def _broker(authority: Authority, request: pytest.FixtureRequest) -> Iterator[fencepost.Broker]:
    config = tls_config(authority, ssl_client_auth="required", ssl_enabled_protocols=request.param)
    with fencepost.Broker(config=config) as running:
        yield running


def librdkafka(
    broker: fencepost.Broker, authority: Authority, certificate: str | None
) -> dict[str, str]:
    found = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "ssl.endpoint.identification.algorithm": "https",
    }
    if certificate is not None:
        found |= {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    return found


def test_a_transaction_of_librdkafka(
    broker: fencepost.Broker, authority: Authority, new_name: Callable[[str], str]
) -> None:
    topic, settings = new_name("tls"), librdkafka(broker, authority, authority.client())
    producer = confluent_kafka.Producer({**settings, "transactional.id": new_name("id")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value)
    producer.commit_transaction(30)
    principals = broker.call(lambda node: {each.principal for each in connections_of(node)})
    assert principals == {ALICE}
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": new_name("group"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    while len(found) < len(VALUES):
        found += [message.value() for message in consumer.consume(len(VALUES), 30)]
    consumer.close()
    assert found == VALUES


def test_kafka_python(
    broker: fencepost.Broker, authority: Authority, new_name: Callable[[str], str]
) -> None:
    topic = new_name("tls")
    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": authority.trusting(authority.client()),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value).get(timeout=30)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_aiokafka(
    broker: fencepost.Broker, authority: Authority, new_name: Callable[[str], str]
) -> None:
    topic = new_name("tls")
    settings = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": authority.trusting(authority.client()),
    }

    async def run() -> list[bytes | None]:
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        for value in VALUES:
            await producer.send_and_wait(topic, value)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in VALUES]
        await consumer.stop()
        return found

    assert asyncio.run(run()) == VALUES


@pytest.mark.parametrize("who", ["nobody", "expired", "stranger"])
def test_a_client_without_a_certificate_that_counts_is_refused(
    broker: fencepost.Broker,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    who: str,
) -> None:
    certificate: str | None = None
    if who == "expired":
        certificate = authority.client("expired", days=-1)
    elif who == "stranger":
        certificate = Authority(tmp_path, "strangers").client()
    problems: list[str] = []
    producer = confluent_kafka.Producer(
        {
            **librdkafka(broker, authority, certificate),
            "error_cb": lambda error: problems.append(str(error)),
            "logger": logging.getLogger("quiet"),
        }
    )
    while not problems:
        producer.poll(0.1)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.list_topics(timeout=0.2)
    expected = {
        "nobody": "it has no certificate",
        "expired": "its certificate is not accepted: certificate has expired",
        "stranger": "its certificate is not accepted",
    }
    assert expected[who] in caplog.text


def test_a_client_refuses_a_listener_that_it_does_not_trust(
    broker: fencepost.Broker, authority: Authority, tmp_path: Path
) -> None:
    others = Authority(tmp_path, "others")
    problems: list[str] = []
    producer = confluent_kafka.Producer(
        {
            **librdkafka(broker, others, authority.client()),
            "error_cb": lambda error: problems.append(str(error)),
            "logger": logging.getLogger("quiet"),
        }
    )
    while not any("certificate verify failed" in each for each in problems):
        producer.poll(0.1)


def test_a_client_of_a_listener_whose_certificate_has_expired_is_refused_and_the_broker_knows_why(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    config = tls_config(authority)
    config["ssl.keystore.location"] = authority.listener("expired-listener", days=-1)
    problems: list[str] = []
    with fencepost.Broker(config=config) as running:
        producer = confluent_kafka.Producer(
            {
                **librdkafka(running, authority, None),
                "error_cb": lambda error: problems.append(str(error)),
                "logger": logging.getLogger("quiet"),
            }
        )
        while not (problems and "the certificate of this listener is expired" in caplog.text):
            producer.poll(0.1)
    # librdkafka names no reason, and has the wrong advice: whoever runs the broker sees it.
    assert "certificate verify failed" in problems[0]
    assert "SSL: the certificate has expired on" in caplog.text
