"""The group coordinator in its broker: membership, loading, the disk, durability."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC
from fencepost.broker.coordinators.log_loader import ENTRIES_PER_TURN
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.heartbeat import HeartbeatRequest
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.broker.groups.group_requests import (
    FSYNC,
    GROUP,
    LOADING,
    NONE,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    SESSION_MS,
    beat,
    commit,
    commit_in_transaction,
    delete,
    describe,
    errors,
    errors_of_every_request,
    fetch,
    index_of,
    join,
    leave,
    list_all,
    offsets,
    stable,
    sync,
)
from tests.broker.groups.groups_stage import GroupNode
from tests.broker.node_stage import Stage

pytestmark = pytest.mark.interpreted

# -- membership ------------------------------------------------------------------------------------


def test_a_member_joins_syncs_sends_a_heartbeat_and_leaves(node: GroupNode) -> None:
    told = join(node)
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("test-")
    waiting = join(node, told.member_id)
    assert not waiting.answered
    node.advance(0)
    assert (waiting.reply.generation_id, waiting.reply.leader) == (1, told.member_id)
    assert [member.metadata for member in waiting.reply.members] == [b"m"]
    assert sync(node, told.member_id, 1).assignment == b"all"
    assert beat(node, told.member_id, 1) == NONE
    assert [each.error_code for each in leave(node, told.member_id).members] == [NONE]
    assert describe(node).group_state == "Empty"


@pytest.mark.parametrize("version", range(10))
def test_join_group_works_in_every_version(node: GroupNode, version: int) -> None:
    fields: dict[str, Any] = {"rebalance_timeout_ms": SESSION_MS}
    refused = join(node, "stranger", version, **fields)
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    first = join(node, version=version, **fields)
    if version >= 4:
        first = join(node, first.member_id, version, **fields)
    node.advance(0)
    assert first.reply.generation_id == 1


def test_the_id_of_a_static_member_begins_with_its_instance_id(node: GroupNode) -> None:
    waiting = join(node, group_instance_id="till-7")
    node.advance(0)
    assert waiting.reply.member_id.startswith("till-7-")


def test_an_empty_instance_id_is_a_static_member(node: GroupNode) -> None:
    waiting = join(node, group_instance_id="")
    node.advance(0)
    assert waiting.reply.member_id.startswith("-")


def test_leave_group_v2_has_the_error_of_the_member(node: GroupNode) -> None:
    stable(node)
    reply = leave(node, "stranger", version=2)
    assert reply.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_group_needs_a_protocol_from_version_5_on(node: GroupNode) -> None:
    member_id = stable(node)
    assert sync(node, member_id, 1, 5, protocol_name=None).error_code == 23
    assert sync(node, member_id, 1, 4, protocol_name=None, protocol_type=None).error_code == 0


def test_waiting_requests_get_not_coordinator_when_the_partition_is_unloaded() -> None:
    node = GroupNode({"group.initial.rebalance.delay.ms": "3000"}).begin()
    waiting = join(node, version=3)
    node.groups.unload(index_of(node))
    assert waiting.reply.error_code == NOT_COORDINATOR
    assert join(node).error_code == NOT_COORDINATOR
    node.advance(60_000)


def test_a_group_survives_a_restart(node: GroupNode) -> None:
    member_id = stable(node)
    commit(node, {0: 7}, member_id=member_id, generation_id_or_member_epoch=1)
    node.advance(SESSION_MS - 1)
    node.stop()
    node = node.again()
    node.advance(SESSION_MS - 1)
    assert beat(node, member_id, 1) == NONE
    assert sync(node, member_id, 1).assignment == b"all"
    assert offsets(fetch(node, [0])) == [7]
    node.advance(SESSION_MS)
    assert describe(node).group_state == "Empty"


# -- loading ---------------------------------------------------------------------------------------


def test_requests_get_not_coordinator_before_the_topic_exists() -> None:
    node = GroupNode()
    node.start()
    node.made("orders", 3)
    assert errors_of_every_request(node) == {NOT_COORDINATOR}
    assert list_all(node).groups == []


def test_an_empty_group_id_is_refused_before_its_coordinator_is_looked_up() -> None:
    node = GroupNode()
    node.start()
    node.made("orders", 3)
    invalid = ErrorCode.INVALID_GROUP_ID
    assert join(node, group_id="").error_code == invalid
    assert sync(node, "m", 1, group_id="").error_code == invalid
    assert beat(node, "m", 1, group_id="") == invalid
    assert leave(node, "m", group_id="").error_code == invalid
    assert errors(commit_in_transaction(node, {0: 1}, group_id="")) == [invalid]


def test_requests_get_a_load_error_while_a_long_log_is_read(node: GroupNode) -> None:
    for number in range(ENTRIES_PER_TURN + 1):
        commit(node, {0: number})
    node.stop()
    node = node.again()
    assert join(node).error_code == LOADING
    assert beat(node, "m", 1) == NONE
    assert errors(commit(node, {0: 1})) == [LOADING]
    assert errors(commit_in_transaction(node, {0: 1}, 1)) == [NOT_AVAILABLE]
    assert errors(commit_in_transaction(node, {0: 1}, 2)) == [LOADING]
    assert fetch(node, [0]).groups[0].error_code == LOADING
    assert describe(node).error_code == LOADING
    assert list_all(node).error_code == LOADING
    assert not node.groups.is_loaded(index_of(node))
    node.advance(0)
    assert node.groups.is_loaded(index_of(node))
    assert offsets(fetch(node, [0])) == [ENTRIES_PER_TURN]


def test_a_load_stops_when_another_one_replaces_it(node: GroupNode) -> None:
    for number in range(ENTRIES_PER_TURN + 1):
        commit(node, {0: number})
    node.stop()
    node = node.again()
    partition = node.partition(CONSUMER_OFFSETS_TOPIC, index_of(node))
    assert partition is not None
    node.groups.load(index_of(node), partition)
    node.advance(0)
    assert offsets(fetch(node, [0])) == [ENTRIES_PER_TURN]


def test_an_unreadable_record_is_skipped(node: GroupNode) -> None:
    commit(node, {0: 5})
    partition = node.partition(CONSUMER_OFFSETS_TOPIC, index_of(node))
    assert partition is not None
    strange = [(b"\0\1\0\5x", b""), (b"", b""), (b"\0\x09", b"later"), (None, b"x")]
    partition.append_records(strange, node.runtime.clock.now_ms())
    commit(node, {1: 6})
    node.stop()
    node = node.again()
    assert offsets(fetch(node, [0, 1])) == [5, 6]


# -- the disk --------------------------------------------------------------------------------------


def test_a_request_that_cannot_be_written_has_no_effect(node: GroupNode) -> None:
    member_id = stable(node)
    as_member: dict[str, Any] = {"member_id": member_id, "generation_id_or_member_epoch": 1}
    commit(node, {0: 5}, **as_member)
    node.disk.fill()
    assert errors(commit(node, {0: 6}, **as_member)) == [ErrorCode.NOT_COORDINATOR]
    assert join(node, group_id="other").error_code == ErrorCode.NOT_COORDINATOR
    assert delete(node, GROUP).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert leave(node, member_id).error_code == ErrorCode.NOT_COORDINATOR
    node.disk.empty()
    assert offsets(fetch(node, [0])) == [5]
    node.advance(2_000)
    assert describe(node).group_state == "Empty"


def test_all_waiting_members_get_an_error_for_an_assignment_that_cannot_be_written() -> None:
    node = GroupNode().begin()
    first = join(node, version=3)
    second = join(node, version=3)
    node.advance(0)
    leader, follower = first.reply.member_id, second.reply.member_id
    waiting = sync(node, follower, 1)
    node.disk.fill()
    assert sync(node, leader, 1).error_code == ErrorCode.NOT_COORDINATOR
    assert waiting.reply.error_code == ErrorCode.NOT_COORDINATOR


def test_a_commit_larger_than_a_batch_is_refused_as_a_whole(node: GroupNode) -> None:
    topic = OffsetCommitRequestTopic(
        name="orders",
        partitions=[
            OffsetCommitRequestPartition(
                partition_index=index % 3, committed_offset=1, committed_metadata="x" * 4_000
            )
            for index in range(400)
        ],
    )
    reply = commit(node, {}, topics=[topic])
    assert set(errors(reply)) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert offsets(fetch(node)) == []


def test_replies_wait_until_their_records_are_durable() -> None:
    node = GroupNode(FSYNC).begin()
    node.sync()
    told = join(node)
    assert not told.answered
    node.sync()
    assert told.reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
    member_id = told.reply.member_id
    joining = join(node, member_id)
    node.advance(0)
    syncing = sync(node, member_id, joining.reply.generation_id)
    assert not syncing.answered
    again = sync(node, member_id, joining.reply.generation_id)
    assert not again.answered
    node.sync()
    assert syncing.reply.assignment == again.reply.assignment == b"all"


def test_an_offset_is_not_shown_before_it_is_durable() -> None:
    node = GroupNode(FSYNC).begin()
    node.sync()
    committing = commit(node, {0: 5})
    fetching = fetch(node, [0])
    assert not committing.answered
    assert not fetching.answered
    node.sync()
    assert errors(committing.reply) == [NONE]
    assert offsets(fetching.reply) == [5]


# -- the clock is set ------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_setting_the_clock_neither_extends_a_rebalance_nor_ends_a_session(jump_ms: int) -> None:
    def join_request(member_id: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )

    with Stage(durability="os") as stage:
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        stage.call(ApiKey.FIND_COORDINATOR, 4, find)
        stage.settle()
        first, second = stage.connect(), stage.connect()
        name = first.call(ApiKey.JOIN_GROUP, 9, join_request("")).member_id
        joined = first.call(ApiKey.JOIN_GROUP, 9, join_request(name))
        stage.advance(5_000)
        other = second.call(ApiKey.JOIN_GROUP, 9, join_request("")).member_id
        waiting = second.send(ApiKey.JOIN_GROUP, 9, join_request(other))
        stage.clock._start_ms += jump_ms
        stage.advance(4_000)
        if jump_ms > 0:
            # The first member is alive, learns of the rebalance, and then falls silent.
            beat = HeartbeatRequest(
                group_id="g", member_id=name, generation_id=joined.generation_id
            )
            told = first.call(ApiKey.HEARTBEAT, 4, beat).error_code
            assert told == ErrorCode.REBALANCE_IN_PROGRESS
            stage.advance(9_000)
        assert waiting not in second.replies
        stage.advance(2_000)
        assert waiting in second.replies
        reply = second.reply(ApiKey.JOIN_GROUP, 9, waiting)
        assert reply.error_code == ErrorCode.NONE
        assert [member.member_id for member in reply.members] == [other]
