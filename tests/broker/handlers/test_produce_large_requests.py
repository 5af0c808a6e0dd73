"""Large produce requests: other requests are served in between, and connections take turns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker import turns
from fencepost.broker.handlers import produce as handler
from fencepost.broker.turns import Turn
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.produce import ProduceRequest
from tests.broker.node_stage import Line, Stage
from tests.broker.raw import frame_of
from tests.broker.requests import (
    PRODUCE_VERSION,
    batch_of,
    create_topic,
    delete_topic,
    produce_request,
    read_topic,
)
from tests.transactions.protocol import TV1, TV2
from tests.transactions.requests import produce_request as transactional_request
from tests.transactions.wire import WireProducer, values

pytestmark = pytest.mark.usefixtures("slow")

WIDTH = 12


@pytest.fixture(params=["os", "fsync"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with Stage(durability=request.param) as started:
        create_topic(started, "wide", WIDTH)
        create_topic(started, "doomed")
        yield started


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every append takes longer than the time limit of a turn."""
    monkeypatch.setattr(turns, "SHORT_TURN_SECONDS", 0.0)


def wide_request(*topics: str, acks: int = -1, value: bytes = b"v") -> ProduceRequest:
    request = produce_request("wide", batch_of(value), acks=acks)
    for index in range(1, WIDTH):
        more = produce_request("wide", batch_of(value), index=index).topic_data[0]
        request.topic_data[0].partition_data += more.partition_data
    for topic in topics:
        request.topic_data += produce_request(topic, batch_of(value)).topic_data
    return request


def errors_of(line: Line, sent: int, version: int = PRODUCE_VERSION) -> list[int]:
    reply = line.reply(ApiKey.PRODUCE, version, sent)
    return [each.error_code for topic in reply.responses for each in topic.partition_responses]


def test_other_connections_are_served_while_a_request_is_appended(stage: Stage) -> None:
    line, other = stage.connect(), stage.connect()
    sent = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request())
    turns = 0
    while sent not in line.replies:
        assert other.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
        stage.loop.turn()
        turns += 1
    assert turns >= WIDTH - 2
    assert errors_of(line, sent) == [0] * WIDTH


def test_requests_after_a_large_one_stay_in_order(stage: Stage) -> None:
    line = stage.connect()
    first = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request(value=b"first"))
    last = produce_request("wide", batch_of(b"last"), index=WIDTH - 1)
    second = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, last)
    assert errors_of(line, first) == [0] * WIDTH
    assert errors_of(line, second) == [0]
    assert read_topic(stage, "wide", WIDTH - 1) == [b"first", b"last"]


def test_a_topic_deleted_meanwhile_is_unknown(stage: Stage) -> None:
    line = stage.connect()
    sent = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request("doomed"))
    delete_topic(stage, "doomed")
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert errors_of(line, sent) == [0] * WIDTH + [unknown]


def test_a_large_request_is_written_after_its_client_has_disconnected(stage: Stage) -> None:
    line = stage.connect()
    line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request())
    line.wire.close()
    stage.advance(10)
    assert read_topic(stage, "wide", WIDTH - 1) == [b"v"]


def test_the_broker_can_stop_in_the_middle_of_a_large_request(stage: Stage) -> None:
    stage.connect().send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request())
    stage.stop()
    assert not stage.fatal
    again = stage.again()
    assert all(read_topic(again, "wide", index) in ([], [b"v"]) for index in range(WIDTH))
    again.stop()


def test_a_large_request_with_acks_0_is_written(stage: Stage) -> None:
    line = stage.connect()
    line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request(acks=0))
    assert line.call(ApiKey.METADATA, 9, MetadataRequest(topics=[])).brokers
    stage.settle()  # The reply to the second request does not wait for the disk.
    assert read_topic(stage, "wide", WIDTH - 1) == [b"v"]


@pytest.mark.parametrize("protocol", [TV1, TV2], ids=repr)
def test_a_large_request_may_be_part_of_a_transaction(stage: Stage, protocol: Any) -> None:
    producer = WireProducer(stage, "t", protocol).initialise()
    places = [("wide", index) for index in range(WIDTH)]
    producer.join(*places)
    batches = {place: producer.batch(b"v", topic="wide", index=place[1]) for place in places}
    request = transactional_request(batches, transactional_id="t")
    line = stage.connect()
    sent = line.send(ApiKey.PRODUCE, protocol.produce, request)
    assert errors_of(line, sent, protocol.produce) == [0] * WIDTH
    producer.commit()
    assert values(stage, "wide", index=WIDTH - 1) == [b"v"]


def test_small_requests_do_not_wait_for_all_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four connections have a large request ready in the same turn, and one a small one."""
    with Stage(durability="os") as stage:
        create_topic(stage, "large")
        server = stage._server
        assert server is not None
        large = frame_of(
            ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("large", batch_of(b"x" * 500_000))
        )
        lines = [stage.connect() for _ in range(4)]
        small = stage.connect()
        # This turn has used up its time for large requests.
        monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
        server._large_turn = Turn()
        server._is_scheduled = True
        for line in lines:
            feed(line, large)
        feed(small, frame_of(ApiKey.METADATA, 9, MetadataRequest(topics=[])))
        assert not any(line.replies for line in lines)
        assert all(line.wire.is_reading_paused for line in lines)
        server._work_all()
        assert small.replies
        stage.settle()
        assert all(line.replies for line in lines)
        assert not any(line.wire.is_reading_paused for line in lines)


def feed(line: Line, data: bytes) -> None:
    """Delivers bytes as a turn reads them from the socket, without the rest of that turn."""
    while data:
        room = line.connection.get_buffer(-1)
        part = data[: len(room)]
        room[: len(part)] = part
        data = data[len(part) :]
        line.connection.buffer_updated(len(part))


def test_a_request_is_freed_when_its_reply_is_sent(stage: Stage) -> None:
    """Its bytes no longer count then, so they must not wait for the garbage collector."""
    line = stage.connect()
    gc.collect()
    gc.disable()
    try:
        sent = line.send(ApiKey.PRODUCE, PRODUCE_VERSION, wide_request())
        assert errors_of(line, sent) == [0] * WIDTH
        stage.settle()
        assert [each for each in gc.get_objects() if isinstance(each, handler.Write)] == []
    finally:
        gc.enable()
