"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp and by leader epoch."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker import turns
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencepost.wire.forms.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.conftest import NewTopic
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    NOW_MS,
    Client,
    batch_of,
    create_topic,
    delete_records,
    delete_topic,
    produce,
)

LATEST, EARLIEST, NEWEST = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6


def look_up(
    client: Client, topic: str, time: int, *, version: int = 11, epoch: int = -1, index: int = 0
) -> Any:
    asked = ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=time)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    reply = client.call(ApiKey.LIST_OFFSETS, version, request)
    return reply.topics[0].partitions[0]


@pytest.fixture
def filled(client: RawClient, new_topic: NewTopic) -> str:
    """Offsets 0 to 3 at the times 0, 20, 10 and 30 ms, of which 0 was deleted.

    The retention that follows a deletion of records must not take the others, which are old.
    """
    topic = new_topic(retention_ms="-1")
    for time in (0, 20, 10, 30):
        produce(client, topic, batch_of(b"v", timestamp_ms=NOW_MS + time))
    assert delete_records(client, topic, 1) == ErrorCode.NONE
    return topic


@pytest.mark.parametrize(
    ("time", "offset", "found_time"),
    [
        (LATEST, 4, -1),
        (EARLIEST, 1, -1),
        (NEWEST, 3, NOW_MS + 30),
        (EARLIEST_LOCAL, 1, -1),
        (LATEST_TIERED, -1, -1),
        (EARLIEST_PENDING_UPLOAD, -1, -1),
        (0, 1, NOW_MS + 20),
        (NOW_MS + 15, 1, NOW_MS + 20),
        (NOW_MS + 21, 3, NOW_MS + 30),
        (NOW_MS + 31, -1, -1),
    ],
)
def test_an_offset_is_found_by_timestamp(
    client: RawClient, filled: str, time: int, offset: int, found_time: int
) -> None:
    found = look_up(client, filled, time)
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, found_time)


@pytest.mark.parametrize(
    ("time", "first_version"),
    [(NEWEST, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)],
)
def test_a_special_timestamp_is_unsupported_before_its_version(
    client: RawClient, filled: str, time: int, first_version: int
) -> None:
    before = look_up(client, filled, time, version=first_version - 1)
    assert (before.error_code, before.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert look_up(client, filled, time, version=first_version).error_code == ErrorCode.NONE


@pytest.mark.parametrize("time", [-7, -(2**63)])
def test_an_unknown_special_timestamp_is_unsupported(
    client: RawClient, filled: str, time: int
) -> None:
    assert look_up(client, filled, time).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_partition_begins_and_ends_at_zero(client: RawClient, new_topic: NewTopic) -> None:
    topic = new_topic()
    offsets = [look_up(client, topic, time).offset for time in (LATEST, EARLIEST, NEWEST, 0)]
    assert offsets == [0, 0, -1, -1]


def test_a_partition_listed_twice_is_an_invalid_request(client: RawClient, filled: str) -> None:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST) for _ in range(2)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=filled, partitions=asked)])
    reply = client.call(ApiKey.LIST_OFFSETS, 11, request)
    codes = {partition.error_code for partition in reply.topics[0].partitions}
    assert codes == {ErrorCode.INVALID_REQUEST}


def test_an_unknown_partition_has_no_offsets(client: RawClient, filled: str) -> None:
    for topic, index in ((filled, 1), ("nowhere", 0)):
        found = look_up(client, topic, LATEST, index=index)
        assert (found.error_code, found.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


# -- the epochs of a leader ------------------------------------------------------------------------


def two_epochs() -> Stage:
    """Offsets 0 and 1 of epoch 0, then a crash, then offset 2 of epoch 1."""
    stage = Stage(durability="os").start()
    create_topic(stage, "led")
    produce(stage, "led", batch_of(b"a", b"b"))
    after = stage.kill().again()
    produce(after, "led", batch_of(b"c"))
    return after


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.NONE), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_client_with_another_leader_epoch_gets_an_error(epoch: int, error: ErrorCode) -> None:
    stage = two_epochs()
    assert look_up(stage, "led", LATEST, epoch=epoch).error_code == error
    assert end_of(stage, 0, current=epoch).error_code == error
    stage.stop()


def test_an_offset_is_returned_with_its_leader_epoch() -> None:
    stage = two_epochs()
    epochs = [look_up(stage, "led", time).leader_epoch for time in (EARLIEST, LATEST, NEWEST)]
    assert epochs == [0, 1, 0]
    stage.stop()


def end_of(client: Client, epoch: int, *, current: int = -1, topic: str = "led") -> Any:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )
    reply = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    return reply.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 2)), (1, (1, 3)), (2, (-1, -1)), (-1, (-1, -1)), (-2, (-1, -1))]
)
def test_an_epoch_ends_where_the_next_one_begins(epoch: int, expected: tuple[int, int]) -> None:
    stage = two_epochs()
    found = end_of(stage, epoch)
    assert found.error_code == ErrorCode.NONE
    assert (found.leader_epoch, found.end_offset) == expected
    stage.stop()


@pytest.mark.parametrize(("epoch", "expected"), [(0, (0, 0)), (-2, (-1, -1)), (5, (-1, -1))])
def test_an_empty_log_has_only_the_epoch_of_its_leader(
    epoch: int, expected: tuple[int, int]
) -> None:
    with Stage(durability="os") as stage:
        create_topic(stage, "led")
        found = end_of(stage, epoch)
        assert (found.leader_epoch, found.end_offset) == expected


def test_an_unknown_topic_has_no_epochs(client: RawClient) -> None:
    assert end_of(client, 0, topic="no").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_start_of_an_empty_log_has_the_current_leader_epoch() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "led")
    assert look_up(stage, "led", EARLIEST).leader_epoch == 0
    stage.kill()
    again = stage.again()
    assert look_up(again, "led", EARLIEST).leader_epoch == 1
    again.stop()


def test_a_partition_listed_twice_is_refused_once(client: RawClient, new_topic: NewTopic) -> None:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=time) for time in (LATEST, EARLIEST)]
    topics = [
        ListOffsetsTopic(name=new_topic(), partitions=asked),
        ListOffsetsTopic(name=new_topic(), partitions=[]),
    ]
    request = ListOffsetsRequest(replica_id=-1, topics=topics)
    (topic,) = client.call(ApiKey.LIST_OFFSETS, 11, request).topics
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.INVALID_REQUEST


def test_a_request_for_many_partitions_is_served_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    with Stage(durability="os") as stage:
        for topic in ("stays", "goes"):
            create_topic(stage, topic, 10)
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=n, timestamp=LATEST) for n in range(10)
                ],
            )
            for name in ("stays", "goes")
        ]
        line = stage.connect()
        sent = line.send(ApiKey.LIST_OFFSETS, 11, ListOffsetsRequest(replica_id=-1, topics=topics))
        delete_topic(stage, "goes")
        stays, goes = line.reply(ApiKey.LIST_OFFSETS, 11, sent).topics
        assert [(p.partition_index, p.error_code) for p in stays.partitions] == [
            (n, 0) for n in range(10)
        ]
        assert goes.partitions[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
