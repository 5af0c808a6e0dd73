"""Many clients with very large requests, clients that leave, and what changes between two turns."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_REQUEST_ITEMS
from fencepost.broker import turns
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.fetch import FetchPartition, FetchRequest, FetchTopic
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.node_stage import Line, Stage
from tests.broker.raw import frame_of
from tests.broker.requests import (
    batch_of,
    create_topic,
    delete_topic,
    produce_request,
    read_topic,
)
from tests.broker.security.secured import ALICE, Secured
from tests.transactions.protocol import TV1
from tests.transactions.wire import WireProducer, values

pytestmark = pytest.mark.interpreted

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
VERSIONS = ApiVersionsRequest(client_software_name="c", client_software_version="1")


@pytest.fixture(autouse=True)
def few_elements_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    monkeypatch.setattr(turns, "SHORT_TURN_SECONDS", 1e9)
    monkeypatch.setattr(turns, "ELEMENTS_PER_TURN", 100)


def metadata_of(count: int) -> MetadataRequest:
    names = [MetadataRequestTopic(name=f"name-{number}") for number in range(count)]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False)


def wide_produce(topic: str, count: int, *, acks: int = -1, records: Any = None) -> ProduceRequest:
    part = [PartitionProduceData(index=0, records=records) for _ in range(count)]
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=topic, partition_data=part)],
    )


def wide_fetch(topic: str, indexes: list[int], *, max_wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=index,
                        current_leader_epoch=-1,
                        fetch_offset=0,
                        partition_max_bytes=1 << 16,
                    )
                    for index in indexes
                ],
            )
        ],
    )


def turns_until(line: Line, correlation_id: int) -> int:
    """How many turns of the loop pass before a reply."""
    count = 0
    while correlation_id not in line.replies:
        line._stage.loop.turn()
        count += 1
        assert count < 10_000
    return count


# -- many clients


def test_a_turn_serves_one_of_a_hundred_clients_that_send_large_requests() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        asked: list[tuple[str, str]] = []
        authorizer: Any = stage.node.services.authorizer
        decide = authorizer.authorize

        def counted(*question: str) -> bool:
            asked.append((question[0], question[4]))
            return bool(decide(*question))

        authorizer.authorize = counted
        lines = [stage.connect(ALICE) for _ in range(100)]
        sent = [line.send(ApiKey.METADATA, 12, metadata_of(500)) for line in lines]
        asked.clear()
        stage.loop.turn()
        most = 0
        while any(number not in line.replies for line, number in zip(lines, sent, strict=True)):
            before = len(asked)
            stage.loop.turn()
            most = max(most, len(asked) - before)
        assert 0 < most <= 100
        for line, number in zip(lines, sent, strict=True):
            reply = line.reply(ApiKey.METADATA, 12, number)
            assert [topic.error_code for topic in reply.topics] == [DENIED] * 500


def test_large_requests_wait_undecoded_while_many_wait_in_their_turns() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        # Each is larger than the inbox of a connection.
        lines = [stage.connect(ALICE) for _ in range(turns.LONG_LINE + 20)]
        sent = [line.send(ApiKey.METADATA, 12, metadata_of(4_000)) for line in lines]
        waiting = stage.node.runtime.line._waiting
        longest = 0
        small = stage.connect(ALICE)
        number = small.send(ApiKey.METADATA, 12, metadata_of(1))
        assert turns_until(small, number) <= 2
        while any(one not in line.replies for line, one in zip(lines, sent, strict=True)):
            stage.loop.turn()
            longest = max(longest, len(waiting))
        assert turns.LONG_LINE <= longest <= turns.LONG_LINE + 1
        for line, one in zip(lines, sent, strict=True):
            assert len(line.reply(ApiKey.METADATA, 12, one).topics) == 4_000


def test_with_a_full_line_small_requests_are_served_at_once() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        lines = [stage.connect(ALICE) for _ in range(turns.MAX_WAITING + 20)]
        sent = [line.send(ApiKey.METADATA, 12, metadata_of(500)) for line in lines]
        waiting = stage.node.runtime.line._waiting
        while any(one not in line.replies for line, one in zip(lines, sent, strict=True)):
            assert len(waiting) <= turns.MAX_WAITING
            stage.loop.turn()


def test_a_small_request_does_not_wait_for_the_large_ones_of_others() -> None:
    with Secured() as stage:
        lines = [stage.connect(ALICE) for _ in range(20)]
        sent = [line.send(ApiKey.METADATA, 12, metadata_of(2_000)) for line in lines]
        small = stage.connect(ALICE)
        number = small.send(ApiKey.METADATA, 12, metadata_of(1))
        assert turns_until(small, number) <= 2
        assert all(number not in line.replies for line, number in zip(lines, sent, strict=True))


def test_a_right_is_asked_for_once_per_name() -> None:
    with Secured() as stage:
        asked: list[str] = []
        authorizer: Any = stage.node.services.authorizer
        decide = authorizer.authorize

        def counted(*question: str) -> bool:
            asked.append(question[4])
            return bool(decide(*question))

        authorizer.authorize = counted
        stage.connect(ALICE).call(ApiKey.METADATA, 12, metadata_of(1_000))
        assert sorted(asked) == sorted(f"name-{number}" for number in range(1_000))


def test_requests_of_one_connection_take_effect_and_are_answered_in_order() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "orders")
        line = stage.connect()
        first = line.send(ApiKey.METADATA, 12, metadata_of(1_000))
        second = line.send(ApiKey.PRODUCE, 11, wide_produce("orders", 300, records=batch_of(b"a")))
        third = line.send(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(b"last")))
        fourth = line.send(
            ApiKey.DELETE_TOPICS,
            6,
            DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], timeout_ms=1_000),
        )
        assert len(line.reply(ApiKey.METADATA, 12, first).topics) == 1_000
        wide = line.reply(ApiKey.PRODUCE, 11, second).responses[0].partition_responses
        assert [each.base_offset for each in wide] == list(range(300))
        last = line.reply(ApiKey.PRODUCE, 11, third).responses[0].partition_responses[0]
        assert last.base_offset == 300
        assert line.reply(ApiKey.DELETE_TOPICS, 6, fourth).responses[0].error_code == 0


# -- the state changes between two turns


def test_a_right_that_is_taken_away_between_two_turns_is_gone_for_the_rest() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        stage.allow(("WRITE", "TOPIC", "orders"))
        line = stage.connect(ALICE)
        request = wide_produce("orders", 1_000, records=batch_of(b"a"))
        number = line.send(ApiKey.PRODUCE, 11, request)
        stage.loop.turn()
        stage.forget()
        replies = line.reply(ApiKey.PRODUCE, 11, number).responses[0].partition_responses
        errors = [each.error_code for each in replies]
        assert len(errors) == 1_000
        taken = errors.count(0)
        assert 0 < taken < 1_000
        assert errors == [0] * taken + [DENIED] * (1_000 - taken)
        assert len(read_topic(stage, "orders")) == taken


def test_a_topic_deleted_between_two_turns_of_a_produce_takes_nothing() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "orders")
        line = stage.connect()
        request = wide_produce("orders", 1_000, records=batch_of(b"a"))
        number = line.send(ApiKey.PRODUCE, 11, request)
        stage.loop.turn()
        delete_topic(stage, "orders")
        create_topic(stage, "orders")
        replies = line.reply(ApiKey.PRODUCE, 11, number).responses[0].partition_responses
        errors = [each.error_code for each in replies]
        assert set(errors) <= {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert len(read_topic(stage, "orders")) == errors.count(0)


# -- produce and fetch


def test_a_wide_produce_without_acks_is_written_though_its_client_has_left() -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "orders")
        line = stage.connect()
        line.send(ApiKey.PRODUCE, 11, wide_produce("orders", 500, acks=0, records=batch_of(b"a")))
        line.wire.abort()
        stage.settle()
        assert len(read_topic(stage, "orders")) == 500


def test_a_wide_produce_without_acks_and_without_rights_closes_the_connection() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        line = stage.connect(ALICE)
        line.send(ApiKey.PRODUCE, 11, wide_produce("orders", 500, acks=0, records=batch_of(b"a")))
        stage.settle()
        assert line.is_closed
        assert read_topic(stage, "orders") == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_wide_produce_of_a_transaction_is_committed_as_a_whole(commit: bool) -> None:
    count = 500
    with Stage(durability="fsync") as stage:
        create_topic(stage, "orders", count)
        producer = WireProducer(stage, "wide", TV1).initialise()
        partitions = AddPartitionsToTxnTopic(name="orders", partitions=list(range(count)))
        added = stage.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id="wide",
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        topics=[partitions],
                    )
                ]
            ),
        )
        (result,) = added.results_by_transaction
        found = result.topic_results[0].results_by_partition
        assert [(each.partition_index, each.partition_error_code) for each in found] == [
            (index, 0) for index in range(count)
        ]
        batch = batch_of(
            b"a",
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            sequence=0,
            transactional=True,
        )
        request = wide_produce("orders", count, records=batch)
        request.transactional_id = "wide"
        for index, data in enumerate(request.topic_data[0].partition_data):
            data.index = index
        replies = stage.call(ApiKey.PRODUCE, 11, request).responses[0].partition_responses
        assert [(each.index, each.error_code) for each in replies] == [(n, 0) for n in range(count)]
        producer.end(commit=commit)
        for index in (0, 1, count - 1):
            assert values(stage, "orders", index=index) == ([b"a"] if commit else [])


def test_a_foreign_transaction_is_refused_as_a_whole_in_a_wide_produce() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        stage.allow(("WRITE", "TOPIC", "orders"))
        batch = batch_of(b"a", producer_id=7, epoch=0, sequence=0, transactional=True)
        request = wide_produce("orders", 300, records=batch_of(b"a"))
        request.transactional_id = "wide"
        request.topic_data[0].partition_data[-1].records = batch
        line = stage.connect(ALICE)
        replies = line.call(ApiKey.PRODUCE, 11, request).responses[0].partition_responses
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert [each.error_code for each in replies] == [error] * 300
        assert read_topic(stage, "orders") == []


def test_a_wide_fetch_reads_what_is_there_and_waits_for_what_comes() -> None:
    indexes = list(range(250))
    with Stage(durability="os") as stage:
        create_topic(stage, "orders", len(indexes))
        line = stage.connect()
        number = line.send(ApiKey.FETCH, 11, wide_fetch("orders", indexes, max_wait_ms=60_000))
        stage.settle()
        assert number not in line.replies
        stage.call(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(b"a"), index=249))
        stage.settle()
        reply = line.reply(ApiKey.FETCH, 11, number)
        found = {each.partition_index: bool(each.records) for each in reply.responses[0].partitions}
        assert found == {index: index == 249 for index in indexes}
        assert not stage.node.partitions.fetch_waiters._watched


@pytest.mark.parametrize("after", range(8))
def test_a_record_that_comes_during_a_wide_fetch_is_not_missed(after: int) -> None:
    indexes = list(range(250))
    with Stage(durability="os") as stage:
        create_topic(stage, "orders", len(indexes))
        line = stage.connect()
        number = line.send(ApiKey.FETCH, 11, wide_fetch("orders", indexes, max_wait_ms=60_000))
        for _ in range(after):
            stage.loop.turn()
        stage.call(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(b"a"), index=0))
        stage.settle()
        assert number in line.replies, "no time has passed"
        (topic,) = line.reply(ApiKey.FETCH, 11, number).responses
        assert any(each.records for each in topic.partitions)


def test_a_wide_fetch_without_anything_to_read_is_answered_when_its_time_is_up() -> None:
    indexes = list(range(250))
    with Stage(durability="os") as stage:
        create_topic(stage, "orders", len(indexes))
        reply = stage.call(ApiKey.FETCH, 11, wide_fetch("orders", indexes, max_wait_ms=500))
        assert [each.error_code for each in reply.responses[0].partitions] == [0] * len(indexes)


def test_a_wide_fetch_without_rights_is_refused_at_once() -> None:
    with Secured() as stage:
        create_topic(stage, "orders")
        line = stage.connect(ALICE)
        reply = line.call(ApiKey.FETCH, 11, wide_fetch("orders", [0] * 250, max_wait_ms=60_000))
        assert [each.error_code for each in reply.responses[0].partitions] == [DENIED] * 250
        assert stage.loop.time() < 1.0


# -- clients that leave, and stops


def large_requests() -> list[tuple[ApiKey, int, Any]]:
    topics = [DeleteTopicState(name=f"name-{number}") for number in range(500)]
    return [
        (ApiKey.METADATA, 12, metadata_of(500)),
        (ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=topics, timeout_ms=1_000)),
        (ApiKey.FETCH, 11, wide_fetch("orders", [0] * 500, max_wait_ms=60_000)),
        (ApiKey.PRODUCE, 11, wide_produce("orders", 500, records=batch_of(b"a"))),
    ]


@pytest.mark.parametrize("number", range(4), ids=["metadata", "delete", "fetch", "produce"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_client_may_leave_between_any_two_turns(number: int, after: int) -> None:
    with Stage(durability="fsync") as stage:
        create_topic(stage, "orders")
        line = stage.connect()
        line.send(*large_requests()[number])
        for _ in range(after):
            stage.loop.turn()
        line.wire.abort()
        stage.settle()
        assert stage.node.requests.taken_bytes == 0
        assert not stage.node.services.runtime.line._waiting
        assert not stage.node.partitions.fetch_waiters._watched
        assert stage.call(ApiKey.METADATA, 12, metadata_of(1)).topics


def test_nothing_more_is_asked_for_a_client_that_has_left() -> None:
    with Secured() as stage:
        line = stage.connect(ALICE)
        line.send(ApiKey.METADATA, 12, metadata_of(10_000))
        line.wire.abort()
        stage.loop.turn()
        stage.loop.turn()
        assert not stage.node.services.runtime.line._waiting


@pytest.mark.parametrize("number", range(4), ids=["metadata", "delete", "fetch", "produce"])
def test_a_broker_stops_cleanly_between_two_turns(number: int) -> None:
    with Stage(durability="fsync") as stage:
        create_topic(stage, "orders")
        line = stage.connect()
        line.send(*large_requests()[number])
        stage.loop.turn()
        stage.stop()
        again = stage.again()
        assert len(read_topic(again, "orders")) <= 500
        again.stop()


# -- the limit


def test_a_request_has_at_most_the_items_that_are_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "ELEMENTS_PER_TURN", 1_000)
    with Stage(durability="os") as stage:
        line = stage.connect()
        reply = line.call(ApiKey.METADATA, 12, metadata_of(MAX_REQUEST_ITEMS))
        assert len(reply.topics) == MAX_REQUEST_ITEMS
        line.send(ApiKey.METADATA, 12, metadata_of(MAX_REQUEST_ITEMS + 1))
        stage.settle()
        assert line.is_closed
        assert "MetadataRequest" in caplog.text
        assert "topics has more items than are allowed (50,000 in one request)" in caplog.text


def test_partitions_count_towards_the_limit_with_their_topics() -> None:
    with Stage(durability="os") as stage:
        line = stage.connect()
        topic = AddPartitionsToTxnTopic(name="orders", partitions=[0] * (MAX_REQUEST_ITEMS // 2))
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="t", producer_id=1, producer_epoch=0, topics=[topic, topic]
                )
            ]
        )
        line.send_bytes(frame_of(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request, 1))
        stage.settle()
        assert line.is_closed
