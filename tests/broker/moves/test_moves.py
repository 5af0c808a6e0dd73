"""Partitions that move to another broker and come back: every reply before, during and after.

Method: a whole broker on a virtual loop and disk. The other broker is a name in the metadata, so
no broker writes to a partition while it is away, and nothing that was acknowledged may be missing
when it comes back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.broker.controller.new_topics import NewTopic
from fencepost.broker.storage.partition_store import PartitionStore
from fencepost.log.config import LogConfig
from fencepost.partition.partition import Partition
from fencepost.records.metadata_log import BrokerRegistrationChangeRecord
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from fencepost.wire.forms.describe_producers import DescribeProducersRequest, TopicRequest
from fencepost.wire.forms.describe_topic_partitions import DescribeTopicPartitionsRequest
from fencepost.wire.forms.describe_topic_partitions import TopicRequest as DescribedTopic
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.heartbeat import HeartbeatRequest
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencepost.wire.forms.metadata import MetadataRequest, MetadataRequestTopic
from fencepost.wire.forms.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker import requests
from tests.broker.moves.moving import (
    OTHER,
    OTHER_PORT,
    THIS,
    apply,
    carry_out,
    in_a_turn,
    join_other,
    move,
    move_all,
    move_record,
    open_all,
    release,
    shrink,
    start_move,
    write,
)
from tests.broker.node_stage import FOLDER, Line, Stage
from tests.broker.requests import (
    batch_of,
    create_topic,
    delete_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    read_topic,
)
from tests.halves import half_of
from tests.transactions.protocol import TV1, TV2, Protocol
from tests.transactions.requests import init_request, offset_fetch_request
from tests.transactions.wire import WireProducer

NONE = ErrorCode.NONE
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
BOTH_MODES = pytest.mark.parametrize("durability", ["os", "fsync"])


def staged(durability: str = "fsync", **settings: str) -> Stage:
    """A broker with another one beside it and the topic "orders", which has one record."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    stage = Stage(durability=durability, settings=given).start()
    create_topic(stage, "orders")
    for topic in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
        with in_a_turn(stage):
            stage.node.services.internal_topics.ensure(topic)
    stage.settle()
    join_other(stage)  # Last: new partitions are placed on both.
    assert produce(stage, "orders", batch_of(b"first")).error_code == NONE
    return stage


def finish(stage: Stage) -> None:
    """Stops the broker, and looks for what went wrong unseen."""
    stage.stop()
    assert not stage.fatal, stage.fatal
    assert not stage.problems, stage.problems


def opened(stage: Stage, topic: str = "orders", index: int = 0) -> Partition:
    return stage.partition(topic, index)


def epoch_of(stage: Stage, topic: str = "orders") -> int:
    state = stage.node.metadata.partition(topic, 0)
    assert state is not None
    return state.leader_epoch


# -- what each API answers


def produce_by_id(stage: Stage) -> int:
    topic_id = stage.node.metadata.topic_id("orders")
    assert topic_id is not None
    reply = stage.call(ApiKey.PRODUCE, 13, produce_request(topic_id, batch_of(b"more")))
    return int(reply.responses[0].partition_responses[0].error_code)


def fetch_by_id(stage: Stage) -> int:
    topic_id = stage.node.metadata.topic_id("orders")
    assert topic_id is not None
    reply = stage.call(ApiKey.FETCH, 17, fetch_request(topic_id))
    return int(reply.responses[0].partitions[0].error_code)


def list_offsets(stage: Stage, leader_epoch: int = -1) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=leader_epoch)
    topic = ListOffsetsTopic(name="orders", partitions=[asked])
    reply = stage.call(ApiKey.LIST_OFFSETS, 8, ListOffsetsRequest(replica_id=-1, topics=[topic]))
    return int(reply.topics[0].partitions[0].error_code)


def end_of_epoch(stage: Stage, leader_epoch: int = -1) -> int:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=leader_epoch, leader_epoch=0)
    topic = OffsetForLeaderTopic(topic="orders", partitions=[asked])
    request = OffsetForLeaderEpochRequest(replica_id=-2, topics=[topic])
    reply = stage.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    return int(reply.topics[0].partitions[0].error_code)


def delete_records(stage: Stage) -> int:
    return requests.delete_records(stage, "orders", 0)


def describe_producers(stage: Stage) -> int:
    asked = [TopicRequest(name="orders", partition_indexes=[0])]
    reply = stage.call(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=asked))
    return int(reply.topics[0].partitions[0].error_code)


@BOTH_MODES
@pytest.mark.parametrize(
    "ask",
    [
        lambda stage: produce(stage, "orders", batch_of(b"more")).error_code,
        produce_by_id,
        lambda stage: fetch(stage, "orders").error_code,
        fetch_by_id,
        list_offsets,
        end_of_epoch,
        delete_records,
        describe_producers,
    ],
    ids=["produce", "produce by id", "fetch", "fetch by id", "list offsets", "epoch", "cut", "who"],
)
def test_a_partition_of_another_broker_is_refused_until_it_comes_back(
    durability: str, ask: Callable[[Stage], int]
) -> None:
    stage = staged(durability)
    assert ask(stage) == NONE
    move(stage, "orders", to=OTHER)
    assert ask(stage) == NOT_LEADER
    move(stage, "orders", to=THIS)
    assert ask(stage) == NONE
    assert read_topic(stage, "orders")[0] == b"first"
    finish(stage)


def test_a_partition_that_does_not_exist_is_unknown_and_not_elsewhere() -> None:
    stage = staged()
    assert produce(stage, "orders", batch_of(), index=1).error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert fetch(stage, "absent").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = fetch_request(b"\x07" * 16)
    reply = stage.call(ApiKey.FETCH, 17, unknown)
    assert reply.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    finish(stage)


@pytest.mark.parametrize("ask", [list_offsets, end_of_epoch])
def test_leader_epochs_are_compared_also_by_a_broker_that_no_longer_leads(
    ask: Callable[[Stage, int], int],
) -> None:
    stage = staged()
    old = epoch_of(stage)
    move(stage, "orders", to=OTHER)
    assert ask(stage, old) == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(stage, old + 1) == NOT_LEADER
    assert ask(stage, old + 2) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(stage, "orders", leader_epoch=old).error_code == ErrorCode.FENCED_LEADER_EPOCH
    move(stage, "orders", to=THIS)
    assert ask(stage, old + 1) == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(stage, old + 2) == NONE
    finish(stage)


def test_produce_and_fetch_name_the_leader_from_the_versions_on_that_can() -> None:
    stage = staged()
    move(stage, "orders", to=OTHER)
    expected = (OTHER, epoch_of(stage))

    def named(reply: Any, part: Any) -> tuple[Any, Any]:
        found = [(each.node_id, each.host, each.port) for each in reply.node_endpoints]
        leader = part.current_leader
        return leader and (leader.leader_id, leader.leader_epoch), found

    for version, is_named in ((9, False), (10, True), (12, True)):
        reply = stage.call(ApiKey.PRODUCE, version, produce_request("orders", batch_of()))
        part = reply.responses[0].partition_responses[0]
        assert part.error_code == NOT_LEADER
        assert part.base_offset == -1
        if is_named:
            assert named(reply, part) == (expected, [(OTHER, "other", OTHER_PORT)])
    topic_id = stage.node.metadata.topic_id("orders")
    for version, asked in ((15, topic_id), (16, topic_id), (17, topic_id)):
        assert asked is not None
        reply = stage.call(ApiKey.FETCH, version, fetch_request(asked))
        part = reply.responses[0].partitions[0]
        assert part.error_code == NOT_LEADER
        if version >= 16:
            assert named(reply, part) == (expected, [(OTHER, "other", OTHER_PORT)])
    finish(stage)


def test_metadata_shows_the_leader_and_which_replicas_are_offline() -> None:
    stage = staged()

    def shown() -> list[tuple[int, int, list[int], list[int]]]:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        listed = stage.call(ApiKey.METADATA, 12, asked)
        described = stage.call(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            DescribeTopicPartitionsRequest(
                topics=[DescribedTopic(name="orders")], response_partition_limit=10
            ),
        )
        brokers = [each.node_id for each in listed.brokers]
        return [
            (part.error_code, part.leader_id, part.offline_replicas, brokers)
            for part in (listed.topics[0].partitions[0], described.topics[0].partitions[0])
        ]

    assert shown() == [(NONE, THIS, [], [THIS, OTHER])] * 2
    move(stage, "orders", to=OTHER)
    assert shown() == [(NONE, OTHER, [], [THIS, OTHER])] * 2
    effects = apply(stage, move_record(stage, "orders", 0, THIS))
    not_open = (ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE, [THIS], [THIS, OTHER])
    assert shown() == [not_open] * 2
    carry_out(stage, effects, lambda: None)
    stage.settle()
    assert shown() == [(NONE, THIS, [], [THIS, OTHER])] * 2
    write(stage, BrokerRegistrationChangeRecord(broker_id=OTHER, broker_epoch=0, fenced=1))
    stage.settle()
    assert shown() == [(NONE, THIS, [OTHER], [THIS])] * 2
    finish(stage)


def test_log_dirs_list_only_what_this_broker_leads() -> None:
    stage = staged()

    def listed() -> int:
        topics = [DescribableLogDirTopic(topic="orders", partitions=[0])]
        reply = stage.call(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=topics))
        return sum(len(topic.partitions) for topic in reply.results[0].topics)

    assert listed() == 1
    move(stage, "orders", to=OTHER)
    assert listed() == 0
    finish(stage)


# -- coordinators


def find_coordinator(stage: Stage, key: str, key_type: int) -> tuple[int, int, int]:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    (found,) = stage.call(ApiKey.FIND_COORDINATOR, 4, request).coordinators
    stage.settle()
    return found.error_code, found.node_id, found.port


def join_request(member_id: str = "") -> JoinGroupRequest:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def commit_offset(stage: Stage, offset: int) -> int:
    return requests.commit_offset(stage, "g", "orders", offset)


def committed_offset(stage: Stage) -> tuple[int, int]:
    request = offset_fetch_request("g", "orders", stable=False)
    (group,) = stage.call(ApiKey.OFFSET_FETCH, 8, request).groups
    if group.error_code:
        return group.error_code, -1
    return NONE, group.topics[0].partitions[0].committed_offset


@BOTH_MODES
def test_groups_are_refused_while_their_coordinator_is_elsewhere_and_continue_after(
    durability: str,
) -> None:
    stage = staged(durability)
    assert find_coordinator(stage, "g", 0)[:2] == (NONE, THIS)
    assert commit_offset(stage, 7) == NONE
    move_all(stage, CONSUMER_OFFSETS_TOPIC, to=OTHER)
    assert find_coordinator(stage, "g", 0) == (NONE, OTHER, OTHER_PORT)
    assert commit_offset(stage, 8) == NOT_COORDINATOR
    assert committed_offset(stage) == (NOT_COORDINATOR, -1)
    assert stage.call(ApiKey.JOIN_GROUP, 7, join_request()).error_code == NOT_COORDINATOR
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert stage.call(ApiKey.HEARTBEAT, 4, beat).error_code == NOT_COORDINATOR
    described = stage.call(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"]))
    assert described.groups[0].error_code == NOT_COORDINATOR
    deleted = stage.call(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["g"]))
    assert deleted.results[0].error_code == NOT_COORDINATOR
    move_all(stage, CONSUMER_OFFSETS_TOPIC, to=THIS)
    assert committed_offset(stage) == (NONE, 7)
    assert commit_offset(stage, 9) == NONE
    assert committed_offset(stage) == (NONE, 9)
    finish(stage)


def test_a_member_that_waits_for_others_is_answered_when_its_coordinator_moves() -> None:
    stage = staged(group_initial_rebalance_delay_ms="3000")
    find_coordinator(stage, "g", 0)
    line = stage.connect()
    first = line.call(ApiKey.JOIN_GROUP, 7, join_request())
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    waiting = line.send(ApiKey.JOIN_GROUP, 7, join_request(first.member_id))
    stage.settle()
    assert waiting not in line.replies
    move_all(stage, CONSUMER_OFFSETS_TOPIC, to=OTHER)
    assert waiting in line.replies
    assert line.reply(ApiKey.JOIN_GROUP, 7, waiting).error_code == NOT_COORDINATOR
    stage.advance(60_000)  # No timer of the group is left.
    finish(stage)


@BOTH_MODES
@pytest.mark.parametrize("protocol", [TV1, TV2])
@pytest.mark.parametrize("moved", ["orders", TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC])
@pytest.mark.parametrize("commit", [True, False])
def test_an_open_transaction_survives_a_move_of_any_of_its_partitions(
    durability: str, protocol: Protocol, moved: str, commit: bool
) -> None:
    stage = staged(durability)
    producer = WireProducer(stage, "x", protocol).initialise()
    find_coordinator(stage, "g", 0)
    producer.send("orders", b"second")
    producer.send_offsets("g", {("orders", 0): 1})
    move_all(stage, moved, to=OTHER)
    move_all(stage, moved, to=THIS)
    producer.send("orders", b"third")
    if commit:
        producer.commit()
    else:
        producer.abort()
    seen = fetch(stage, "orders", isolation_level=1)
    assert seen.last_stable_offset == seen.high_watermark
    assert bool(seen.aborted_transactions) == (not commit)
    assert committed_offset(stage) == (NONE, 1 if commit else -1)
    finish(stage)


@BOTH_MODES
def test_a_transactional_id_is_refused_while_its_coordinator_is_elsewhere(durability: str) -> None:
    stage = staged(durability)
    producer = WireProducer(stage, "x", TV2).initialise()
    move_all(stage, TRANSACTION_STATE_TOPIC, to=OTHER)
    assert find_coordinator(stage, "x", 1) == (NONE, OTHER, OTHER_PORT)
    init = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request("x"))
    assert init.error_code == NOT_COORDINATOR
    added = AddOffsetsToTxnRequest(
        transactional_id="x",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="g",
    )
    assert stage.call(ApiKey.ADD_OFFSETS_TO_TXN, 4, added).error_code == NOT_COORDINATOR
    move_all(stage, TRANSACTION_STATE_TOPIC, to=THIS)
    producer.send("orders", b"second")
    producer.commit()
    assert read_topic(stage, "orders") == [b"first", b"second"]
    finish(stage)


# -- requests that wait at the moment of the move


def long_poll(stage: Stage) -> tuple[Line, int]:
    line = stage.connect()
    return line, line.send(ApiKey.FETCH, 12, fetch_request("orders", 1, max_wait_ms=30_000))


@BOTH_MODES
@pytest.mark.usefixtures("one_step_per_turn")
def test_a_long_poll_is_woken_by_a_move(durability: str) -> None:
    stage = staged(durability)
    line, sent = long_poll(stage)
    move(stage, "orders", to=OTHER)
    assert sent in line.replies
    reply = line.reply(ApiKey.FETCH, 12, sent)
    assert reply.responses[0].partitions[0].error_code == NOT_LEADER
    finish(stage)


def test_a_long_poll_that_is_woken_by_a_move_there_and_back_reads_on() -> None:
    stage = staged("os")
    line, sent = long_poll(stage)
    start_move(stage, "orders", to=OTHER)
    start_move(stage, "orders", to=THIS)
    stage.settle()
    assert produce(stage, "orders", batch_of(b"second")).error_code == NONE
    reply = line.reply(ApiKey.FETCH, 12, sent)
    assert reply.responses[0].partitions[0].error_code in (NONE, NOT_LEADER)
    assert read_topic(stage, "orders") == [b"first", b"second"]
    finish(stage)


@pytest.mark.parametrize("turns", half_of(range(10)))
@pytest.mark.parametrize("acks", [-1, 1])
def test_a_batch_that_waits_for_its_sync_is_acknowledged_before_the_partition_moves(
    turns: int, acks: int
) -> None:
    """Or it is refused, and then it is not in the log."""
    stage = staged("fsync")
    line = stage.connect()
    change = start_move(stage, "orders", to=OTHER)
    for _ in range(turns):
        stage.loop.turn()
    sent = line.send(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(b"second"), acks=acks))
    reply = line.reply(ApiKey.PRODUCE, 11, sent).responses[0].partition_responses[0]
    stage.settle()
    assert change.is_done
    assert reply.error_code in (NONE, NOT_LEADER)
    move(stage, "orders", to=THIS)
    expected = [b"first", b"second"] if reply.error_code == NONE else [b"first"]
    assert read_topic(stage, "orders") == expected
    finish(stage)


def test_a_batch_that_is_being_synced_when_its_partition_moves_is_acknowledged() -> None:
    stage = staged("fsync")
    line = stage.connect()
    sent = line.send(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(b"second")))
    assert sent not in line.replies
    effects = apply(stage, move_record(stage, "orders", 0, OTHER))
    heard: list[str] = []
    carry_out(stage, effects, lambda: heard.append("released"))
    assert stage.node.partitions.get("orders", 0) is None
    assert (heard, sent in line.replies) == ([], False)
    stage.settle()
    assert heard == ["released"]
    reply = line.reply(ApiKey.PRODUCE, 11, sent).responses[0].partition_responses[0]
    assert (reply.error_code, reply.base_offset) == (NONE, 1)
    move(stage, "orders", to=THIS)
    assert read_topic(stage, "orders") == [b"first", b"second"]
    finish(stage)


@pytest.mark.parametrize("turns", half_of(range(6)))
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.usefixtures("one_step_per_turn")
def test_a_first_write_that_is_being_verified_when_its_partition_moves_is_refused(
    turns: int, durability: str
) -> None:
    stage = staged(durability)
    producer = WireProducer(stage, "x", TV2).initialise()
    batch = batch_of(
        b"second",
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        sequence=0,
        transactional=True,
    )
    line = stage.connect()
    request = produce_request("orders", batch, transactional_id="x")
    sent = line.send(ApiKey.PRODUCE, 12, request)
    for _ in range(turns):
        stage.loop.turn()
    start_move(stage, "orders", to=OTHER)
    reply = line.reply(ApiKey.PRODUCE, 12, sent).responses[0].partition_responses[0]
    assert reply.error_code in (NONE, NOT_LEADER)
    stage.settle()
    move(stage, "orders", to=THIS)
    if reply.error_code != NONE:
        assert opened(stage).log_end_offset == 1
        retried = stage.call(
            ApiKey.PRODUCE, 12, produce_request("orders", bytearray(batch), transactional_id="x")
        )
        assert retried.responses[0].partition_responses[0].error_code == NONE
    producer.commit()
    assert read_topic(stage, "orders") == [b"first", b"second"]
    finish(stage)


def test_a_duplicate_after_a_move_is_recognised() -> None:
    stage = staged("fsync")
    producer = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(None))
    batch = batch_of(b"second", producer_id=producer.producer_id, epoch=0, sequence=0)
    assert produce(stage, "orders", bytearray(batch)).base_offset == 1
    move(stage, "orders", to=OTHER)
    assert produce(stage, "orders", bytearray(batch)).error_code == NOT_LEADER
    move(stage, "orders", to=THIS)
    again = produce(stage, "orders", bytearray(batch))
    assert (again.error_code, again.base_offset) == (NONE, 1)
    assert read_topic(stage, "orders") == [b"first", b"second"]
    finish(stage)


@pytest.mark.usefixtures("one_step_per_turn")
@pytest.mark.parametrize("turns", half_of(range(4)))
def test_records_are_not_deleted_from_a_partition_that_moves_meanwhile(turns: int) -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "orders", 2)
    join_other(stage)
    for index in range(2):
        produce(stage, "orders", batch_of(b"first"), index=index)
    line = stage.connect()
    sent = line.send(ApiKey.DELETE_RECORDS, 2, requests.delete_records_request("orders", 1, 1))
    for _ in range(turns):
        stage.loop.turn()
    start_move(stage, "orders", 1, to=OTHER)
    reply = line.reply(ApiKey.DELETE_RECORDS, 2, sent)
    errors = [part.error_code for part in reply.topics[0].partitions]
    assert errors[0] == NONE
    assert errors[1] in (NONE, NOT_LEADER)
    stage.settle()
    finish(stage)


@pytest.mark.usefixtures("one_step_per_turn")
def test_a_large_batch_that_is_opened_while_its_partition_moves_is_refused() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "orders", settings={"cleanup.policy": "compact"})
    join_other(stage)
    values = [b"v"] * 3000
    line = stage.connect()
    sent = line.send(ApiKey.PRODUCE, 11, produce_request("orders", batch_of(*values, key=b"k")))
    assert sent not in line.replies
    start_move(stage, "orders", to=OTHER)
    reply = line.reply(ApiKey.PRODUCE, 11, sent).responses[0].partition_responses[0]
    assert reply.error_code == NOT_LEADER
    assert "moved to another broker" in reply.error_message
    assert reply.current_leader.leader_id == OTHER
    finish(stage)


# -- release and open


def test_a_partition_is_closed_so_that_its_next_leader_scans_nothing() -> None:
    stage = staged("os")
    for number in range(50):
        produce(stage, "orders", batch_of(b"x" * 1000 + b"%d" % number))
    move(stage, "orders", to=OTHER)
    names = stage.disk.list_dir(f"{FOLDER}/orders-0")
    assert {"00000000000000000051.snapshot", "00000000000000000000.index"} <= set(names)
    assert stage.node.layout.recovery_point(TopicPartition("orders", 0)) == 50
    move(stage, "orders", to=THIS)
    assert opened(stage).log.recovered_from is None
    assert opened(stage).log_end_offset == 51
    finish(stage)


def test_a_released_partition_survives_a_power_loss_in_os_mode() -> None:
    stage = staged("os")
    move(stage, "orders", to=OTHER)
    again = stage.lose_power().again()
    move(again, "orders", to=THIS)
    assert read_topic(again, "orders") == [b"first"]
    finish(again)


def test_nothing_is_written_to_the_folder_of_a_released_partition() -> None:
    stage = staged("os", log_retention_check_interval_ms="1000", log_cleaner_backoff_ms="1000")
    move(stage, "orders", to=OTHER)
    before = {n: stage.disk.read_file(f"{FOLDER}/orders-0/{n}") for n in _names(stage)}
    stage.advance(120_000)
    assert {n: stage.disk.read_file(f"{FOLDER}/orders-0/{n}") for n in _names(stage)} == before
    finish(stage)


def _names(stage: Stage) -> list[str]:
    return sorted(stage.disk.list_dir(f"{FOLDER}/orders-0"))


@BOTH_MODES
def test_phases_are_separate_and_an_outdated_open_does_nothing(durability: str) -> None:
    stage = staged(durability)
    away = apply(stage, move_record(stage, "orders", 0, OTHER))
    heard: list[str] = []
    release(stage, away, lambda: heard.append("released"))
    release(stage, away, lambda: heard.append("released twice"))
    stage.settle()
    assert heard == ["released", "released twice"]
    back = apply(stage, move_record(stage, "orders", 0, THIS))
    away_again = apply(stage, move_record(stage, "orders", 0, OTHER))
    back_again = apply(stage, move_record(stage, "orders", 0, THIS))
    # The other broker may lead it between these two, and has not released it yet.
    open_all(stage, away, lambda: heard.append("open"))
    open_all(stage, back, lambda: heard.append("open"))
    stage.settle()
    assert stage.node.partitions.get("orders", 0) is None
    release(stage, away_again, lambda: heard.append("release"))
    open_all(stage, away_again, lambda: heard.append("open"))
    open_all(stage, back_again, lambda: heard.append("open"))
    open_all(stage, back_again, lambda: heard.append("open"))
    stage.settle()
    assert opened(stage).leader_epoch == epoch_of(stage)
    assert heard[2:] == ["open", "open", "release", "open", "open", "open"]
    assert read_topic(stage, "orders") == [b"first"]
    finish(stage)


def test_a_partition_that_is_created_and_moved_before_it_is_opened_is_left_alone() -> None:
    stage = staged("os")
    stage.node.partitions.by_name.pop(TopicPartition("orders", 0)).close(clean=True)
    away = apply(stage, move_record(stage, "orders", 0, OTHER))
    open_all(stage, away, lambda: None)
    topic = stage.node.metadata.topics["orders"]
    back = apply(stage, move_record(stage, "orders", 0, THIS))
    for _ in stage.node.effects._open_slices(topic, 0, 0):
        pass
    assert stage.node.partitions.get("orders", 0) is None
    open_all(stage, back, lambda: None)
    assert opened(stage).leader_epoch == 2
    finish(stage)


class SlowStore:
    """Lets the test take every slice of an opening, and counts those that were given up."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self.slices = 0
        self.given_up = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def opening(self, name: TopicPartition, topic_id: bytes, epoch: int, config: LogConfig) -> Any:
        is_open = False
        try:
            for _ in range(5):
                self.slices += 1
                yield
            is_open = True
            return self._store.open(name, topic_id, epoch, config)
        finally:
            self.given_up += not is_open


@pytest.mark.usefixtures("one_step_per_turn")
@pytest.mark.parametrize("turns", half_of(range(8)))
def test_a_release_ends_an_opening_that_is_in_progress(turns: int) -> None:
    stage = staged("os")
    move(stage, "orders", to=OTHER)
    effects: Any = stage.node.effects
    effects._store = store = SlowStore(effects._store)
    heard: list[str] = []
    back = apply(stage, move_record(stage, "orders", 0, THIS))
    open_all(stage, back, lambda: heard.append("opened"))
    for _ in range(turns):
        stage.loop.turn()
    away = apply(stage, move_record(stage, "orders", 0, OTHER))
    release(stage, away, lambda: heard.append("released"))
    stage.settle()
    assert heard == ["opened", "released"]
    assert stage.node.partitions.get("orders", 0) is None
    assert store.given_up == (turns < 5)
    move(stage, "orders", to=THIS)
    assert read_topic(stage, "orders") == [b"first"]
    finish(stage)


@pytest.mark.usefixtures("one_step_per_turn")
def test_an_opening_does_not_delay_other_topics_or_requests() -> None:
    stage = staged("os")
    move(stage, "orders", to=OTHER)
    effects: Any = stage.node.effects
    effects._store = SlowStore(effects._store)
    start_move(stage, "orders", to=THIS)
    effects._store = effects._store._store
    with in_a_turn(stage):
        here = NewTopic("others", assignments=[(0, [THIS])])
        stage.node.controller.create([here], lambda _: None, validate_only=False)
    assert stage.node.partitions.get("orders", 0) is None
    assert produce(stage, "others", batch_of(b"first")).error_code == NONE
    stage.settle()
    assert read_topic(stage, "orders") == [b"first"]
    finish(stage)


@BOTH_MODES
@pytest.mark.usefixtures("one_step_per_turn")
def test_many_partitions_move_over_several_turns_with_one_save(durability: str) -> None:
    stage = Stage(durability=durability).start()
    create_topic(stage, "orders", 150)
    join_other(stage)
    for index in range(0, 150, 3):
        produce(stage, "orders", batch_of(b"%d" % index), index=index)
    change = write(stage, *(move_record(stage, "orders", index, OTHER) for index in range(150)))
    turns = 0
    while not change.is_done:
        stage.loop.turn()
        turns += 1
    assert turns > 20
    assert not [name for name in stage.node.partitions.by_name if name.topic == "orders"]
    move_all(stage, "orders", to=THIS)
    for index in range(0, 150, 3):
        assert read_topic(stage, "orders", index) == [b"%d" % index]
    finish(stage)


def test_a_topic_deleted_while_another_broker_leads_it_is_gone_when_it_is_created_again() -> None:
    stage = staged("os")
    move(stage, "orders", to=OTHER)
    assert delete_topic(stage, "orders") == NONE
    assert produce(stage, "orders", batch_of()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(stage, "orders")
    if epoch_of(stage) == 0 and stage.node.partitions.get("orders", 0) is None:
        move(stage, "orders", to=THIS)
    assert read_topic(stage, "orders") == []
    finish(stage)


@BOTH_MODES
@pytest.mark.parametrize("turns", half_of(range(6)))
def test_a_stop_in_the_middle_of_a_release_closes_the_partition(
    durability: str, turns: int
) -> None:
    stage = staged(durability)
    start_move(stage, "orders", to=OTHER)
    for _ in range(turns):
        stage.loop.turn()
    finish(stage)
    again = stage.again()
    move(again, "orders", to=OTHER)  # It may have been there already.
    move(again, "orders", to=THIS)
    assert read_topic(again, "orders") == [b"first"]
    finish(again)


# -- failures


def release_with(stage: Stage, prepare: Callable[[], None]) -> bool:
    """Moves "orders" away on a disk that fails; False if that ended the broker."""
    effects = apply(stage, move_record(stage, "orders", 0, OTHER))
    stage.settle()
    heard: list[str] = []
    prepare()
    release(stage, effects, lambda: heard.append("released"))
    stage.settle()
    stage.disk.heal()
    assert bool(heard) != bool(stage.fatal)
    return bool(heard)


@BOTH_MODES
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.usefixtures("quiet")
def test_a_disk_call_that_fails_during_a_release_loses_nothing(durability: str, error: int) -> None:
    """The partition is closed all the same, or a failed sync ends the broker."""
    number, is_reached = 0, True
    while is_reached:
        number += 1
        stage = Stage(durability=durability).start()
        create_topic(stage, "orders")
        join_other(stage)
        values = [b"x" * 2000 + b"%d" % number for number in range(20)]
        for value in values:
            assert produce(stage, "orders", batch_of(value)).error_code == NONE
        before = stage.disk.calls
        released = release_with(stage, partial(stage.disk.fail_call, number, error))
        is_reached = stage.disk.calls - before >= number
        if released:
            assert stage.node.partitions.get("orders", 0) is None
            assert produce(stage, "orders", batch_of()).error_code == NOT_LEADER
            move(stage, "orders", to=THIS)
            assert read_topic(stage, "orders") == values
            assert produce(stage, "orders", batch_of(b"last")).error_code == NONE
            stage.stop()
            values.append(b"last")
        again = stage.kill().again() if stage.fatal else stage.again()
        if again.node.partitions.get("orders", 0) is None:
            move(again, "orders", to=THIS)
        assert read_topic(again, "orders") == values
        finish(again)
    assert number > 20, "a release has more disk calls than that"


@BOTH_MODES
@pytest.mark.usefixtures("quiet")
def test_a_partition_that_was_not_closed_cleanly_is_scanned_when_it_comes_back(
    durability: str,
) -> None:
    stage = Stage(durability=durability).start()
    create_topic(stage, "orders")
    join_other(stage)
    for number in range(20):
        produce(stage, "orders", batch_of(b"x" * 2000 + b"%d" % number))
    assert release_with(stage, lambda: stage.disk.fail_call(1, errno.ENOSPC))
    assert stage.node.host.store._unclean == {TopicPartition("orders", 0)}
    move(stage, "orders", to=THIS)
    assert opened(stage).log.recovered_from is not None
    assert opened(stage).log_end_offset == 20
    finish(stage)


@BOTH_MODES
@pytest.mark.parametrize("is_power", [False, True])
@pytest.mark.usefixtures("quiet")
def test_a_broker_that_dies_during_a_release_loses_nothing_that_it_acknowledged(
    durability: str, is_power: bool
) -> None:
    number, is_reached = 0, True
    while is_reached:
        number += 1
        stage = staged(durability)
        away = apply(stage, move_record(stage, "orders", 0, OTHER))
        stage.settle()
        before = stage.disk.calls
        stage.disk.lose_power_at(number)
        release(stage, away, lambda: None)
        stage.settle()
        is_reached = stage.disk.calls - before >= number
        (stage.lose_power if is_power else stage.kill)()
        if is_power and durability == "os":
            continue  # What was not synced may be lost.
        again = stage.again()
        if again.node.partitions.get("orders", 0) is None:
            move(again, "orders", to=THIS)
        assert read_topic(again, "orders") == [b"first"]
        finish(again)
    assert number > 7, "a release has that many disk calls"


@pytest.mark.usefixtures("quiet")
def test_a_partition_that_the_disk_refuses_is_a_storage_error_and_not_elsewhere() -> None:
    stage = staged("os")
    move(stage, "orders", to=OTHER)
    stage.disk.fail_for_a_while(1, 1000, errno.EIO, kinds=("list_dir",))
    start_move(stage, "orders", to=THIS)
    stage.settle()
    stage.disk.heal()
    assert stage.node.partitions.get("orders", 0) is None
    assert produce(stage, "orders", batch_of()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert fetch(stage, "orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    stage.advance(6_000)
    assert read_topic(stage, "orders") == [b"first"]
    finish(stage)


# -- min.insync.replicas


def test_too_few_live_brokers_refuse_writes_that_ask_for_all() -> None:
    stage = Stage(durability="os").start()
    create_topic(stage, "orders", settings={"min.insync.replicas": "2"})
    join_other(stage)
    # As in Kafka, a topic with one replica needs one.
    assert produce(stage, "orders", batch_of(b"alone")).error_code == NONE
    shrink(stage, "orders", THIS)
    refused = produce(stage, "orders", batch_of(b"refused"))
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (refused.base_offset, refused.log_start_offset) == (-1, 0)
    assert produce(stage, "orders", batch_of(b"leader only"), acks=1).error_code == NONE
    shrink(stage, "orders", THIS, OTHER)
    assert produce(stage, "orders", batch_of(b"all")).error_code == NONE
    assert read_topic(stage, "orders") == [b"alone", b"leader only", b"all"]
    move(stage, "orders", to=OTHER)
    move(stage, "orders", to=THIS)
    shrink(stage, "orders", THIS)
    assert produce(stage, "orders", batch_of()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    finish(stage)


def test_coordinators_are_not_available_while_too_few_brokers_are_alive() -> None:
    stage = staged("os", min_insync_replicas="2", transaction_state_log_min_isr="2")
    for key_type, key in ((0, "g"), (1, "x")):
        find_coordinator(stage, key, key_type)
    producer = WireProducer(stage, "x", TV2).initialise()
    producer.send("orders", b"second")
    for topic in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
        for index in range(2):
            opened(stage, topic, index).is_under_min_isr = True
    assert commit_offset(stage, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.end(commit=True) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    for topic in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
        for index in range(2):
            opened(stage, topic, index).is_under_min_isr = False
    assert commit_offset(stage, 7) == NONE
    producer.commit()
    finish(stage)
