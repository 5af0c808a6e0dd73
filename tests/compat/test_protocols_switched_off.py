"""Clients that ask for the consumer protocol (KIP-848) see what Kafka shows without it."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.broker.raw import RawClient
from tests.compat.conftest import Side
from tools.apache_kafka import ApacheKafka
from tools.java_tools import JavaTools

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def classic_kafka(tmp_path_factory: pytest.TempPathFactory, tools: JavaTools) -> Iterator[Side]:
    """Apache Kafka that serves classic groups only."""
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    with ApacheKafka(tmp_path_factory.mktemp("classic") / "data", settings=settings) as broker:
        yield Side("classic kafka", broker.bootstrap_servers, broker.data, tools)


@pytest.fixture(params=["classic_kafka", "fencepost_broker"])
def side(request: pytest.FixtureRequest) -> Side:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Side)
    return found


@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_of_the_consumer_protocol_is_refused(side: Side, version: int) -> None:
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", topic_partitions=[])
    with RawClient(side.bootstrap_servers) as client:
        reply = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
    assert (reply.error_code, reply.member_id, reply.assignment) == (35, None, None)


def test_a_java_consumer_is_told_to_use_the_classic_protocol(side: Side, topic: str) -> None:
    side.create_topic(topic)
    wanted = ["--topic", topic, "--command-property", "group.protocol=consumer"]
    result = side.attempt("kafka-console-consumer", *wanted, "--timeout-ms", "60000")
    assert (
        "UnsupportedVersionException: The cluster does not support the new CONSUMER group protocol."
        " Set group.protocol=classic" in result.err
    )


def test_librdkafka_reports_a_fatal_error(side: Side, topic: str) -> None:
    side.create_topic(topic)
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": side.bootstrap_servers,
            "group.id": topic,
            "group.protocol": "consumer",
        }
    )
    reader.subscribe([topic])
    try:
        message = reader.poll(PATIENCE_SECONDS)
        assert message is not None, "it polls for ever without a word"
        assert (
            "Fatal error: Broker: API version not supported: ConsumerGroupHeartbeat fatal error"
            in str(message.error())
        )
    finally:
        reader.close()
