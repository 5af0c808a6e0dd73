"""Rebalances: one member, several, and late ones."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_GROUP_SIZE
from fencepost.coordinator.group.events import JoinedMember
from fencepost.coordinator.group.lifecycle import State
from fencepost.records.group_log import GroupRecord, decode_record
from tests.coordinator.group.stage import (
    BOTH,
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    GroupStage,
    subscription,
)


def last_group_value(stage: GroupStage) -> object:
    entry = stage.log[-1]
    assert entry.key is not None
    record = decode_record(entry.key, entry.value)
    assert isinstance(record, GroupRecord)
    return record.value


@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_join_and_each_gets_its_own_assignment(stage: GroupStage, count: int) -> None:
    tickets = [stage.join() for _ in range(count)]
    assert not stage.replies
    stage.tick(0)
    replies = [stage.joined(ticket) for ticket in tickets]
    ids = [reply.member_id for reply in replies]
    assert {reply.generation_id for reply in replies} == {1}
    assert {reply.leader for reply in replies} == {ids[0]}
    assert {reply.protocol_name for reply in replies} == {"range"}
    assert {reply.protocol_type for reply in replies} == {"consumer"}
    plan = {member_id: member_id.encode() for member_id in ids}
    syncs = [stage.sync(member_id, 1) for member_id in ids[1:]]
    assert stage.is_in(State.COMPLETING_REBALANCE)
    syncs.append(stage.sync(ids[0], 1, plan))
    assert stage.is_in(State.STABLE)
    assert [stage.synced(ticket).assignment for ticket in syncs] == [
        name.encode() for name in [*ids[1:], ids[0]]
    ]
    assert {stage.synced(ticket).protocol_name for ticket in syncs} == {"range"}


def test_only_the_leader_receives_the_list_of_members(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first), stage.joined(second)
    assert follower.members == ()
    assert leader.members == (
        JoinedMember(leader.member_id, None, subscription("orders")),
        JoinedMember(follower.member_id, None, subscription("orders")),
    )


def test_a_member_without_an_assignment_from_the_leader_gets_an_empty_one() -> None:
    stage = GroupStage()
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    stage.sync(leader, 1, {leader: b"all", "nobody": b"x"})
    assert stage.synced(stage.sync(follower, 1)).assignment == b""


def test_a_new_group_is_in_the_log_from_its_first_join_on(stage: GroupStage) -> None:
    stage.join(must_know_its_id=True)
    assert len(stage.log) == 1
    stage.restart()
    assert stage.is_in(State.EMPTY)
    assert stage.group.generation_id == 0


# -- ids (KIP-394)


def test_a_member_without_an_id_is_given_one_and_joins_again_with_it(stage: GroupStage) -> None:
    reply = stage.joined(stage.join(must_know_its_id=True))
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    assert reply.member_id
    assert stage.is_in(State.EMPTY)
    ticket = stage.join(reply.member_id, must_know_its_id=True)
    stage.tick(0)
    assert stage.joined(ticket).member_id == reply.member_id
    assert stage.joined(ticket).error is ErrorCode.NONE


def test_a_new_member_id_expires_if_its_member_does_not_join_with_it(stage: GroupStage) -> None:
    reply = stage.joined(stage.join(must_know_its_id=True))
    stage.tick(SESSION_MS)
    late = stage.join(reply.member_id, must_know_its_id=True)
    assert stage.joined(late).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_member_with_a_new_id(stage: GroupStage) -> None:
    (leader,) = stage.stable(1)
    told = stage.joined(stage.join(must_know_its_id=True)).member_id
    waiting = stage.join(leader)
    assert waiting not in stage.replies
    other = stage.join(told)
    assert stage.joined(waiting).generation_id == 2
    assert stage.joined(other).generation_id == 2


def test_a_rebalance_continues_without_a_member_that_does_not_join_with_its_new_id() -> None:
    stage = GroupStage()
    (leader,) = stage.stable(1)
    stage.join(must_know_its_id=True)
    waiting = stage.join(leader)
    stage.tick(SESSION_MS)
    assert stage.joined(waiting).generation_id == 2


def test_a_member_that_leaves_before_it_joins_is_removed(stage: GroupStage) -> None:
    told = stage.joined(stage.join(must_know_its_id=True)).member_id
    assert stage.leave(told) == (ErrorCode.NONE,)
    assert stage.joined(stage.join(told)).error is ErrorCode.UNKNOWN_MEMBER_ID


# -- bounds


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (5_999, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6_000, ErrorCode.MEMBER_ID_REQUIRED),
        (1_800_000, ErrorCode.MEMBER_ID_REQUIRED),
        (1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_a_session_timeout_has_bounds(stage: GroupStage, timeout_ms: int, error: ErrorCode) -> None:
    ticket = stage.join(session_timeout_ms=timeout_ms, must_know_its_id=True)
    assert stage.joined(ticket).error is error


def test_an_empty_group_id_is_refused(stage: GroupStage) -> None:
    assert stage.joined(stage.join(group_id="")).error is ErrorCode.INVALID_GROUP_ID
    assert stage.synced(stage.sync("m", 1, group_id="")).error is ErrorCode.INVALID_GROUP_ID
    assert stage.heartbeat("m", 1, group_id="") is ErrorCode.INVALID_GROUP_ID
    assert not stage.log


def test_a_full_group_accepts_no_new_member() -> None:
    stage = GroupStage(max_size=2)
    leader, follower = stage.stable(2)
    refused = stage.joined(stage.join())
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.member_id == ""
    assert stage.is_in(State.STABLE)
    assert stage.joined(stage.join(follower)).error is ErrorCode.NONE
    assert stage.heartbeat(leader, 1) is ErrorCode.NONE


def test_the_number_of_member_ids_that_have_not_joined_is_bounded(stage: GroupStage) -> None:
    stage.join(must_know_its_id=True)
    for number in range(MAX_GROUP_SIZE - 1):
        stage.group.pending_members[f"told-{number}"] = stage.now_ms + SESSION_MS
    refused = stage.joined(stage.join(must_know_its_id=True))
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    stage.tick(SESSION_MS)
    told = stage.joined(stage.join(must_know_its_id=True))
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED


def test_after_the_size_limit_is_lowered_the_last_members_to_rejoin_are_refused() -> None:
    stage = GroupStage()
    first, second, third = stage.stable(3)
    log = stage.log
    stage = GroupStage(max_size=2)
    stage.log = log
    stage.restart()
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.join(second)
    stage.join(first)
    assert stage.joined(stage.join(third)).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    stage.tick(REBALANCE_MS)
    assert set(stage.group.members) == {first, second}


# -- choosing a protocol


def test_the_protocol_with_the_most_votes_among_the_common_ones_is_chosen() -> None:
    stage = GroupStage()
    stage.join(protocols=(("sticky", b"s"), ("range", b"r")))
    stage.join(protocols=(("range", b"r"), ("sticky", b"s")))
    ticket = stage.join(protocols=(("range", b"r"), ("sticky", b"s")))
    stage.tick(0)
    assert stage.joined(ticket).protocol_name == "range"


def test_a_protocol_that_one_member_does_not_support_is_not_chosen(stage: GroupStage) -> None:
    stage.join(protocols=(("sticky", b"s"), ("range", b"r")))
    stage.join(protocols=(("sticky", b"s"), ("range", b"r")))
    ticket = stage.join(protocols=(("range", b"r"),))
    stage.tick(0)
    assert stage.joined(ticket).protocol_name == "range"


def test_a_protocol_listed_twice_counts_once(stage: GroupStage) -> None:
    ticket = stage.join(protocols=(("range", b"first"), ("range", b"second")))
    stage.tick(0)
    reply = stage.joined(ticket)
    assert reply.protocol_name == "range"
    assert reply.members[0].metadata == b"first"


def test_an_empty_group_may_change_its_type(stage: GroupStage) -> None:
    stage.leave(*stage.stable(1))
    ticket = stage.join(protocol_type="connect", protocols=(("sessioned", b""),))
    stage.tick(0)
    assert stage.joined(ticket).protocol_type == "connect"


# -- joining again


def test_a_follower_that_rejoins_unchanged_gets_its_current_generation(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    reply = stage.joined(stage.join(follower))
    assert (reply.generation_id, reply.leader, reply.members) == (1, leader, ())
    assert stage.is_in(State.STABLE)


def test_a_leader_that_rejoins_starts_a_rebalance(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    first = stage.join(leader)
    assert stage.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    second = stage.join(follower)
    assert {stage.joined(first).generation_id, stage.joined(second).generation_id} == {2}


def test_a_member_that_lost_the_reply_gets_it_again_while_the_leader_assigns() -> None:
    stage = GroupStage()
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first), stage.joined(second)
    assert stage.joined(stage.join(leader.member_id)) == leader
    assert stage.joined(stage.join(follower.member_id)) == follower


def test_changed_metadata_while_the_leader_assigns_starts_another_rebalance() -> None:
    stage = GroupStage()
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    assigning = stage.sync(leader, 1)
    stage.sync_all([leader, follower])
    waiting = stage.sync(follower, 1)
    changed = stage.join(follower, protocols=BOTH)
    assert stage.synced(assigning).error is ErrorCode.NONE
    assert stage.synced(waiting).error is ErrorCode.NONE
    assert changed not in stage.replies
    assert stage.is_in(State.PREPARING_REBALANCE)


def test_a_waiting_sync_gets_an_error_when_another_rebalance_starts(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(follower, 1)
    stage.join()
    assert stage.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.group.members[leader].assignment == b""


def test_a_newer_join_replaces_the_one_that_waits(stage: GroupStage) -> None:
    leader, _ = stage.stable(2)
    older = stage.join(leader)
    newer = stage.join(leader)
    assert stage.joined(older).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert newer not in stage.replies
    assert stage.group.awaiting_join_count == 1


def test_a_newer_sync_replaces_the_one_that_waits(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    older = stage.sync(follower, 1)
    newer = stage.sync(follower, 1)
    assert stage.synced(older).error is ErrorCode.REBALANCE_IN_PROGRESS
    stage.sync(leader, 1, {follower: b"mine"})
    assert stage.synced(newer).assignment == b"mine"


def test_a_cooperative_rebalance_takes_two_generations(stage: GroupStage) -> None:
    """Members first revoke partitions; then they join again, and others get those partitions."""
    cooperative = (("cooperative-sticky", b"owns 0 1"),)
    (old,) = stage.stable(1, protocols=cooperative)
    new = stage.join(protocols=(("cooperative-sticky", b"owns"),))
    again = stage.join(old, protocols=cooperative)
    assert stage.joined(again).generation_id == 2
    added = stage.joined(new).member_id
    kept = stage.sync(old, 2, {old: b"0", added: b""})
    assert stage.synced(kept).assignment == b"0"
    assert stage.synced(stage.sync(added, 2)).assignment == b""
    given_up = stage.join(old, protocols=(("cooperative-sticky", b"owns 0"),))
    assert stage.heartbeat(added, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    handed_on = stage.join(added, protocols=(("cooperative-sticky", b"owns"),))
    assert stage.joined(given_up).generation_id == stage.joined(handed_on).generation_id == 3
    assert [m.metadata for m in stage.joined(given_up).members] == [b"owns 0", b"owns"]
    stage.sync(old, 3, {old: b"0", added: b"1"})
    assert stage.synced(stage.sync(added, 3)).assignment == b"1"
    assert stage.is_in(State.STABLE)


# -- leaving


def test_when_the_last_member_leaves_the_group_is_empty_and_its_generation_rises() -> None:
    stage = GroupStage()
    (only,) = stage.stable(1)
    assert stage.leave(only) == (ErrorCode.NONE,)
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 2)
    assert stage.group.leader is None
    stage.restart()
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 2)
    assert stage.group.protocol_type == "consumer"
    ticket = stage.join()
    stage.tick(0)
    assert stage.joined(ticket).generation_id == 3


def test_when_the_leader_leaves_another_member_leads(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    stage.leave(leader)
    ticket = stage.join(follower)
    assert stage.joined(ticket).leader == follower


def test_several_members_leave_in_one_request(stage: GroupStage) -> None:
    first, second, third = stage.stable(3)
    errors = stage.leave(first, "nobody", third)
    assert errors == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE)
    assert set(stage.group.members) == {second}


def test_a_member_that_leaves_while_its_join_waits_gets_a_reply(stage: GroupStage) -> None:
    leader, _ = stage.stable(2)
    waiting = stage.join(leader)
    stage.leave(leader)
    assert stage.joined(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.joined(waiting).member_id == ""


def test_a_rebalance_completes_when_the_member_it_waits_for_leaves(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    waiting = stage.join(leader)
    stage.leave(follower)
    assert stage.joined(waiting).generation_id == 2


# -- the disk


def test_a_group_that_cannot_be_written_does_not_exist(stage: GroupStage) -> None:
    stage.disk_is_full = True
    assert stage.joined(stage.join()).error is ErrorCode.NOT_COORDINATOR
    assert GROUP not in stage.state.groups


def test_an_assignment_that_cannot_be_written_starts_another_rebalance(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(follower, 1)
    stage.disk_is_full = True
    assigning = stage.sync(leader, 1, {leader: b"all"})
    assert stage.synced(waiting).error is ErrorCode.NOT_COORDINATOR
    assert stage.synced(assigning).error is ErrorCode.NOT_COORDINATOR
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.disk_is_full = False
    again = [stage.join(leader), stage.join(follower)]
    assert {stage.joined(ticket).generation_id for ticket in again} == {2}


def test_writing_an_empty_generation_is_retried(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.disk_is_full = True
    assert stage.leave(only) is None
    stage.tick(5_000)
    assert stage.failed_appends > 1
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.disk_is_full = False
    stage.tick(1_000)
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 2)


def test_a_member_can_join_before_the_empty_generation_is_written(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.disk_is_full = True
    stage.leave(only)
    stage.disk_is_full = False
    ticket = stage.join()
    assert stage.joined(ticket).generation_id == 2


def test_the_leaders_assignment_is_one_record_and_the_group_loads_from_it() -> None:
    stage = GroupStage()
    ids = stage.stable(3, protocols=BOTH)
    assert last_group_value(stage) == stage.group.value()
    stage.restart()
    assert list(stage.group.members) == ids
    assert stage.group.leader == ids[0]
    assert stage.synced(stage.sync(ids[1], 1)).assignment == f"for {ids[1]}".encode()
    assert stage.group.members[ids[1]].protocols == RANGE
