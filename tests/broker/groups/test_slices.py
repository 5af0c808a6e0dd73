"""Large commits are served in slices, one per turn of the loop, with the same reply as in one."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker.groups import slices
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import create_topic, delete_topic
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import commit_offsets_request
from tests.transactions.wire import WireProducer

WIDTHS = {"a": 8, "b": 2, "c": 7}
GROUP = "g"


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "COMMITTED_PER_TURN", 3)


def prepare(stage: Stage) -> None:
    for name, width in WIDTHS.items():
        create_topic(stage, name, width)
    WireProducer(stage, "first", TV2).initialise().send_offsets(GROUP, {("a", 0): 0})


def plain(**widths: int) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(partition_index=n, committed_offset=100 + n)
                for n in range(width)
            ],
        )
        for name, width in widths.items()
    ]
    return OffsetCommitRequest(group_id=GROUP, topics=topics)


def committed(stage: Stage, *, stable: bool = False) -> dict[str, list[int]]:
    topics = [
        OffsetFetchRequestTopics(name=name, partition_indexes=list(range(width)))
        for name, width in WIDTHS.items()
    ]
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    request = OffsetFetchRequest(groups=[group], require_stable=stable)
    (reply,) = stage.call(ApiKey.OFFSET_FETCH, 8, request).groups
    return {
        topic.name: [each.committed_offset for each in topic.partitions] for topic in reply.topics
    }


def errors_of(reply: Any) -> dict[str, list[int]]:
    return {topic.name: [each.error_code for each in topic.partitions] for topic in reply.topics}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_reply_lists_all_partitions_in_order(durability: str) -> None:
    with Stage(durability=durability) as stage:
        prepare(stage)
        reply = stage.call(ApiKey.OFFSET_COMMIT, 8, plain(a=9, b=2, missing=4, c=7))
        assert errors_of(reply) == {
            "a": [0] * 8 + [3],
            "b": [0, 0],
            "missing": [3] * 4,
            "c": [0] * 7,
        }
        assert [[each.partition_index for each in topic.partitions] for topic in reply.topics] == [
            list(range(9)),
            [0, 1],
            list(range(4)),
            list(range(7)),
        ]
        expected = {name: [100 + n for n in range(width)] for name, width in WIDTHS.items()}
        assert committed(stage) == expected
    again = stage.kill().again()
    again.settle()
    assert committed(again) == expected
    again.stop()


def test_the_next_request_on_the_connection_sees_the_whole_commit() -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        line = stage.connect()
        first = line.send(ApiKey.OFFSET_COMMIT, 8, plain(**WIDTHS))
        assert first not in line.replies
        topics = [OffsetFetchRequestTopics(name="c", partition_indexes=[6])]
        group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
        second = line.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group]))
        line.reply(ApiKey.OFFSET_COMMIT, 8, first)
        (reply,) = line.reply(ApiKey.OFFSET_FETCH, 8, second).groups
        assert reply.topics[0].partitions[0].committed_offset == 106


def test_a_topic_deleted_between_slices_is_unknown_from_then_on() -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        line = stage.connect()
        sent = line.send(ApiKey.OFFSET_COMMIT, 8, plain(**WIDTHS))
        delete_topic(stage, "c")
        errors = errors_of(line.reply(ApiKey.OFFSET_COMMIT, 8, sent))
        assert errors["a"] == [0] * 8
        assert errors["c"][-1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create_topic(stage, "c", WIDTHS["c"])
        assert committed(stage)["c"] == [-1] * 7


@pytest.mark.parametrize("protocol", [TV1, TV2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_offsets_of_a_transaction_are_committed_or_dropped_together(
    protocol: Protocol, commit: bool, durability: str
) -> None:
    with Stage(durability=durability) as stage:
        prepare(stage)
        producer = WireProducer(stage, "x", protocol).initialise()
        places = {(name, n): 100 + n for name, width in WIDTHS.items() for n in range(width)}
        producer.send_offsets(GROUP, places)
        assert committed(stage)["b"] == [-1, -1]
        if commit:
            producer.commit()
        else:
            producer.abort()
        stage.advance(10)
        assert committed(stage)["c"] == ([100 + n for n in range(7)] if commit else [-1] * 7)


@pytest.mark.parametrize("turns", range(8))
def test_a_transaction_fenced_between_slices_commits_none_of_its_offsets(turns: int) -> None:
    with Stage(durability="os") as stage:
        prepare(stage)
        producer = WireProducer(stage, "x", TV2).initialise()
        places = {(name, n): 100 + n for name, width in WIDTHS.items() for n in range(width)}
        line = stage.connect()
        request = commit_offsets_request(producer, GROUP, places)
        sent = line.send(ApiKey.TXN_OFFSET_COMMIT, 5, request)
        for _ in range(turns):
            stage.loop.turn()
        WireProducer(stage, "x", TV2).initialise()
        errors = errors_of(line.reply(ApiKey.TXN_OFFSET_COMMIT, 5, sent))
        assert set(errors["a"] + errors["c"]) <= {0, ErrorCode.INVALID_PRODUCER_EPOCH}
        stage.advance(1_000)
        assert committed(stage, stable=True)["c"] == [-1] * 7


@pytest.mark.parametrize("kind", ["plain", "transactional"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_offsets_for_a_topic_that_is_replaced_in_between_do_not_go_to_its_successor(
    kind: str, durability: str
) -> None:
    with Stage(durability=durability) as stage:
        prepare(stage)
        producer = WireProducer(stage, "x", TV2).initialise()
        line = stage.connect()
        if kind == "plain":
            sent = line.send(api := ApiKey.OFFSET_COMMIT, version := 8, plain(**WIDTHS))
        else:
            places = {(name, n): 100 + n for name, width in WIDTHS.items() for n in range(width)}
            request = commit_offsets_request(producer, GROUP, places)
            sent = line.send(api := ApiKey.TXN_OFFSET_COMMIT, version := 5, request)
        delete_topic(stage, "c")
        create_topic(stage, "c", WIDTHS["c"])
        errors = errors_of(line.reply(api, version, sent))
        assert errors["c"][-1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if kind == "transactional":
            producer.commit()
            stage.advance(10)
        assert committed(stage)["c"] == [-1] * 7


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_a_client_has_left_behind_does_not_overwrite_what_it_commits_next(
    durability: str, turns: int
) -> None:
    with Stage(durability=durability) as stage:
        prepare(stage)
        line = stage.connect()
        line.send(ApiKey.OFFSET_COMMIT, 8, plain(**WIDTHS))
        for _ in range(turns):
            stage.loop.turn()
        line.wire.close()
        request = plain(c=3)
        for each in request.topics[0].partitions:
            each.committed_offset = 500
        stage.call(ApiKey.OFFSET_COMMIT, 8, request)
        stage.advance(10)
        assert committed(stage)["c"][:3] == [500] * 3
