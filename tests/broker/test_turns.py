"""Large requests take several turns of the loop and get the same replies as in one."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.broker import turns
from fencepost.broker.transactions import ending
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_topics import CreatableTopic, CreateTopicsRequest
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.describe_log_dirs import DescribeLogDirsRequest
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.elect_leaders import ElectLeadersRequest, TopicPartitions
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.list_groups import ListGroupsRequest
from fencepost.wire.forms.list_transactions import ListTransactionsRequest
from fencepost.wire.forms.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from fencepost.wire.forms.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from fencepost.wire.forms.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.node_stage import Stage
from tests.broker.requests import (
    batch_of,
    commit_offset,
    create_topic,
    delete_records_request,
    delete_topic,
    produce_request,
)
from tests.transactions.protocol import TV1
from tests.transactions.wire import WireProducer, state_of

pytestmark = pytest.mark.interpreted

TOPIC = "wide"
PARTITIONS = list(range(8))
GROUPS = [f"group-{number}" for number in range(5)]
IDS = [f"id-{number}" for number in range(5)]


def populate(stage: Stage) -> None:
    create_topic(stage, TOPIC, len(PARTITIONS))
    for index in PARTITIONS:
        records = batch_of(b"a", b"b", producer_id=5, epoch=0, sequence=0)
        stage.call(ApiKey.PRODUCE, 11, produce_request(TOPIC, records, index=index))
    for name in IDS:
        WireProducer(stage, name, TV1).initialise().send(TOPIC, b"open", index=1)
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS)
    stage.call(ApiKey.FIND_COORDINATOR, 4, find)
    stage.advance(100)
    for group in GROUPS:
        commit_offset(stage, group, TOPIC, 1)


def questions() -> list[tuple[ApiKey, int, Any]]:
    epochs = [OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in PARTITIONS]
    marker = WritableTxnMarker(
        producer_id=77,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[*PARTITIONS, 99])],
    )
    new = [CreatableTopic(name=f"new-{n}", num_partitions=1) for n in range(4)]
    return [
        (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[*GROUPS, "absent"])),
        (ApiKey.LIST_GROUPS, 4, ListGroupsRequest()),
        (ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest()),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=IDS)),
        (ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=GROUPS)),
        (
            ApiKey.OFFSET_FETCH,
            8,
            OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=g, topics=None) for g in GROUPS]
            ),
        ),
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=epochs)]
            ),
        ),
        (
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            DescribeProducersRequest(
                topics=[TopicRequest(name=TOPIC, partition_indexes=PARTITIONS)]
            ),
        ),
        (ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None)),
        (
            ApiKey.ELECT_LEADERS,
            2,
            ElectLeadersRequest(
                topic_partitions=[TopicPartitions(topic=TOPIC, partitions=PARTITIONS)]
            ),
        ),
        (ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker])),
        (ApiKey.DELETE_RECORDS, 2, delete_records_request(TOPIC, *(n % 4 for n in PARTITIONS))),
        (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[*GROUPS, "absent"])),
        (ApiKey.CREATE_TOPICS, 6, CreateTopicsRequest(topics=new, timeout_ms=1000)),
    ]


def answers(durability: str) -> list[Any]:
    told = {"advertised.listeners": "PLAINTEXT://127.0.0.1:9092"}
    with Stage(durability=durability, settings=told) as stage:
        populate(stage)
        return [stage.call(*question) for question in questions()]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_request_gets_the_same_reply_as_in_one_turn(
    monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 60.0)
    expected = answers(durability)
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    for (api, _, _), reply, wanted in zip(questions(), answers(durability), expected, strict=True):
        assert reply == wanted, api


@pytest.mark.parametrize("commit", [True, False])
def test_the_markers_of_a_wide_transaction_are_written_over_several_turns(
    monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(ending, "UNTIMED_MARKERS", 2)
    with Stage(durability="os") as stage:
        create_topic(stage, TOPIC, len(PARTITIONS))
        create_topic(stage, "goes", 3)
        producer = WireProducer(stage, "wide-1", TV1).initialise()
        for index in PARTITIONS:
            producer.send(TOPIC, b"x", index=index)
        for index in range(3):
            producer.send("goes", b"x", index=index)
        line = stage.connect()
        sent = line.send(ApiKey.END_TXN, 4, producer.end_request(commit=commit))
        delete_topic(stage, "goes")
        assert line.reply(ApiKey.END_TXN, 4, sent).error_code == ErrorCode.NONE
        assert state_of(stage, "wide-1") == ("CompleteCommit" if commit else "CompleteAbort")
        for index in PARTITIONS:
            partition = stage.partition(TOPIC, index)
            assert partition.last_stable_offset == partition.log_end_offset == 2


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_topic_may_be_deleted_while_its_records_are_being_deleted(
    monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    with Stage(durability=durability) as stage:
        populate(stage)
        create_topic(stage, "stays", 2)
        for index in range(2):
            stage.call(ApiKey.PRODUCE, 11, produce_request("stays", batch_of(b"a"), index=index))
        line = stage.connect()
        request = delete_records_request("stays", 1, 1)
        request.topics += delete_records_request(TOPIC, 1, 1).topics
        sent = line.send(ApiKey.DELETE_RECORDS, 2, request)
        delete_topic(stage, TOPIC)
        stays, goes = line.reply(ApiKey.DELETE_RECORDS, 2, sent).topics
        assert [p.low_watermark for p in stays.partitions] == [1, 1]
        for partition in goes.partitions:
            assert (partition.error_code == ErrorCode.NONE) == (partition.low_watermark == 1)
        again = stage.kill().again()
        found = [again.node.partitions.get("stays", n) for n in range(2)]
        assert [p.log_start_offset for p in found if p is not None] == [1, 1]
        again.stop()
