"""A suite as a service has it: every test makes a topic, writes a transaction, and reads it.

On fencepost each has a broker of its own. With FENCEPOST_KIT_BOOTSTRAP all share that broker, so
each has names of its own.
"""

from __future__ import annotations

import os
import uuid
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

COUNT: Final = int(os.environ.get("FENCEPOST_KIT_TESTS", "10"))
SHARED: Final = os.environ.get("FENCEPOST_KIT_BOOTSTRAP")
SECONDS: Final = 30
# What waits for a client's timers measures the client: so it asks for metadata often, and the
# consumer is told its partition, because joining a group takes librdkafka half a second.
_IMPATIENT: Final = {"log_level": 0, "topic.metadata.refresh.fast.interval.ms": 10}


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> str:
    if SHARED:
        return SHARED
    broker = request.getfixturevalue("fencepost_broker")
    found: str = broker.bootstrap_servers
    return found


@pytest.fixture
def name() -> str:
    return f"refunds-{uuid.uuid4().hex}"


@pytest.mark.parametrize("number", range(COUNT))
def test_a_refund_is_written_and_read(servers: str, name: str, number: int) -> None:
    common = {**_IMPATIENT, "bootstrap.servers": servers}
    admin = AdminClient(common)
    admin.create_topics([NewTopic(name, 1)])[name].result(SECONDS)
    producer = Producer({**common, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(name, key=b"%d" % number, value=b"refund")
    producer.commit_transaction(SECONDS)
    consumer = Consumer({**common, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(name, 0, 0)])
    try:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        assert message.key() == b"%d" % number
    finally:
        consumer.close()
