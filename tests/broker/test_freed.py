"""What ends is freed without the garbage collector: the broker freezes what has lived long, and nobody looks at it again."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from fencepost import Broker
from fencepost.base.errors import ErrorCode
from fencepost.broker.server import Connection
from fencepost.log.log import Log
from fencepost.log.segment import Segment
from fencepost.partition.partition import Partition
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import create_topic
from tests.transactions.protocol import TV1, TV2
from tests.transactions.wire import WireProducer

KINDS = (Connection, Log, Partition, Segment)
PATIENCE_SECONDS = 30.0


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))


def live(stage: Stage, name: str) -> None:
    """A topic with data and transactions, which are committed, aborted, and deleted with it."""
    create_topic(stage, name, 3)
    for protocol in (TV1, TV2):
        producer = WireProducer(stage, "same", protocol).initialise()
        producer.send(name, b"a")
        producer.commit()
        producer.send(name, b"b")
        producer.abort()
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
    (result,) = stage.call(ApiKey.DELETE_TOPICS, 6, deletion).responses
    assert result.error_code == ErrorCode.NONE
    stage.advance(120)


@pytest.mark.usefixtures("without_collector")
def test_topics_that_are_deleted_need_no_garbage_collector() -> None:
    with Stage(durability="os") as stage:
        live(stage, "first")
        before = count()
        for number in range(3):
            live(stage, f"t{number}")
        assert count() == before


@pytest.mark.usefixtures("without_collector")
def test_connections_that_end_need_no_garbage_collector() -> None:
    with Broker() as broker:
        for number in range(10):
            with RawClient(broker.bootstrap_servers) as client:
                client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
                if number % 2:  # Some leave while their reply is awaited.
                    client.send(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while count()["Connection"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count()["Connection"] == 0
