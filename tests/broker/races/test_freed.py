"""Objects of finished work are freed by reference counting: they form no cycles.

The broker freezes objects that live long, so the garbage collector would not find them.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from types import FunctionType

import pytest

from fencepost import Broker
from fencepost.base.errors import ErrorCode
from fencepost.broker.network.connection import Connection
from fencepost.log.log import Log
from fencepost.log.segment.segment import Segment
from fencepost.partition.partition import Partition
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.delete_topics import DeleteTopicsRequest, DeleteTopicState
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.describe_log_dirs import DescribeLogDirsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from fencepost.wire.forms.leave_group import LeaveGroupRequest, MemberIdentity
from fencepost.wire.forms.metadata import MetadataRequest
from fencepost.wire.forms.offset_commit import OffsetCommitRequest
from fencepost.wire.forms.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.node_stage import Stage
from tests.broker.raw import RawClient
from tests.broker.requests import (
    batch_of,
    commit_offset,
    create_topic,
    fetch_request,
    offset_commit_request,
    produce,
)
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
def test_deleted_topics_are_freed_without_the_garbage_collector() -> None:
    with Stage(durability="os") as stage:
        live(stage, "first")
        before = count()
        for number in range(3):
            live(stage, f"t{number}")
        assert count() == before


def found_garbage() -> list[str]:
    """Objects of the package that only the garbage collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kept = [
        each.__qualname__ if isinstance(each, FunctionType) else type(each).__qualname__
        for each in gc.garbage
        if (each if isinstance(each, FunctionType) else type(each)).__module__.startswith(
            "fencepost."
        )
    ]
    gc.garbage.clear()
    return kept


def use_group(stage: Stage, group: str) -> None:
    """A member joins, syncs, commits and leaves; another one waits for a rebalance and vanishes."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    joined = stage.call(ApiKey.JOIN_GROUP, 3, join)
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    assert stage.call(ApiKey.SYNC_GROUP, 3, sync).error_code == ErrorCode.NONE
    member = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    commit_offset(stage, group, "kept", 1, 7, **member)
    other = stage.connect()
    other.send(ApiKey.JOIN_GROUP, 3, join)
    stage.settle()
    other.wire.close()
    stage.advance(20_000)
    leave = LeaveGroupRequest(members=[MemberIdentity(member_id=joined.member_id)], group_id=group)
    stage.call(ApiKey.LEAVE_GROUP, 3, leave)
    stage.call(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[group]))


def use_long_polls(stage: Stage) -> None:
    """One returns after an append, one after its timeout, and one client disconnects."""
    for isolation in (0, 1):
        lines = [stage.connect() for _ in range(3)]
        end = read_end(stage, "kept")
        for line, wait_ms in zip(lines, (60_000, 50, 60_000), strict=True):
            request = fetch_request(
                "kept", end, max_wait_ms=wait_ms, min_bytes=1, isolation_level=isolation
            )
            line.send(ApiKey.FETCH, 12, request)
        stage.advance(100)
        lines[2].wire.close()
        produce(stage, "kept", batch_of(b"value"))
        stage.advance(100)
        for line in lines[:2]:
            assert len(line.replies) == 1
            line.wire.close()


def use_parked_requests(stage: Stage) -> None:
    """Requests that take several turns, of clients that wait and clients that disconnect."""
    for leaves in (False, True):
        line = stage.connect()
        line.send(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
        line.send(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["a", "b", "c"]))
        line.send(ApiKey.CREATE_PARTITIONS, 3, grow_request("wide", 1_200 + 1_100 * leaves))
        line.send(ApiKey.OFFSET_COMMIT, 8, wide_commit(2_500))
        if not leaves:
            stage.settle()
        line.wire.close()
        stage.settle()


def grow_request(name: str, count: int) -> CreatePartitionsRequest:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=1000)


def wide_commit(width: int) -> OffsetCommitRequest:
    """More offsets than are committed in one turn."""
    return offset_commit_request("plain", "wide", *[1] * width)


def read_end(stage: Stage, topic: str) -> int:
    partition = stage.partition(topic, 0)
    return partition.log_end_offset


def use_transactions(stage: Stage) -> None:
    """Commits, aborts, offsets, a fenced producer and a timeout."""
    for protocol in (TV1, TV2):
        producer = WireProducer(stage, "gone", protocol).initialise(timeout_ms=1_000)
        producer.send("kept", b"a")
        producer.send_offsets("transactional", {("kept", 0): 3})
        producer.commit()
        producer.send("kept", b"b")
        producer.abort()
        producer.send("kept", b"open")
        WireProducer(stage, "gone", protocol).initialise(timeout_ms=1_000).send("kept", b"late")
        stage.advance(30_000)


@pytest.mark.usefixtures("without_collector", "one_step_per_turn")
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_finished_work_leaves_no_cycles(durability: str) -> None:
    with Stage(durability=durability) as stage:
        create_topic(stage, "kept")
        create_topic(stage, "wide")
        live(stage, "first")  # Creates the internal topics.
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        stage.call(ApiKey.FIND_COORDINATOR, 4, find)
        stage.settle()
        found_garbage()
        use_group(stage, "g")
        use_long_polls(stage)
        use_parked_requests(stage)
        use_transactions(stage)
        live(stage, "second")
        assert found_garbage() == []


@pytest.mark.usefixtures("without_collector")
def test_closed_connections_are_freed_without_the_garbage_collector() -> None:
    others = count()["Connection"]  # Connections of brokers that other tests share.
    with Broker() as broker:
        for number in range(10):
            with RawClient(broker.bootstrap_servers) as client:
                client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None))
                if number % 2:  # Some disconnect before their reply.
                    client.send(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while count()["Connection"] > others and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count()["Connection"] <= others
