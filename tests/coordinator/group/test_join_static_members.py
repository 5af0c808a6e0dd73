"""Static membership (KIP-345): an instance keeps its place while its process restarts."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.events import Leaver
from fencepost.coordinator.group.lifecycle import State
from tests.coordinator.group.stage import BOTH, RANGE, REBALANCE_MS, SESSION_MS, GroupStage

FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_joins_without_a_member_id_round_trip(stage: GroupStage) -> None:
    ticket = stage.join(group_instance_id="a", must_know_its_id=True)
    stage.tick(0)
    reply = stage.joined(ticket)
    assert reply.error is ErrorCode.NONE
    assert reply.member_id.startswith("a-")
    assert reply.members[0].group_instance_id == "a"


def test_a_restarted_follower_gets_its_assignment_without_a_rebalance(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    reply = stage.joined(stage.join(group_instance_id="b"))
    assert stage.is_in(State.STABLE)
    assert reply.member_id != ids["b"]
    assert (reply.generation_id, reply.leader, reply.members) == (1, ids["a"], ())
    assert not reply.skip_assignment
    synced = stage.synced(stage.sync(reply.member_id, 1, group_instance_id="b"))
    assert synced.assignment == f"for {ids['b']}".encode()


def test_a_restarted_leader_gets_the_members_and_need_not_assign(stage: GroupStage) -> None:
    stage.static("a", "b")
    reply = stage.joined(stage.join(group_instance_id="a"))
    assert reply.leader == reply.member_id == stage.group.leader
    assert reply.skip_assignment
    assert [member.group_instance_id for member in reply.members] == ["a", "b"]


def test_a_restarted_leader_with_an_older_client_gets_the_old_leader_id(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    reply = stage.joined(stage.join(group_instance_id="a", can_skip_assignment=False))
    assert reply.leader == ids["a"]
    assert reply.members == ()
    assert not reply.skip_assignment
    assert stage.group.leader == reply.member_id


def test_the_new_id_survives_a_coordinator_move(stage: GroupStage) -> None:
    stage.static("a", "b")
    new = stage.joined(stage.join(group_instance_id="b", protocols=BOTH)).member_id
    assert stage.group.members[new].protocols == BOTH
    stage.restart()
    assert stage.group.static_members["b"] == new
    assert stage.group.members[new].protocols == RANGE


def test_the_old_process_of_an_instance_is_fenced(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    stage.join(group_instance_id="b")
    old = ids["b"]
    assert stage.heartbeat(old, 1, group_instance_id="b") is FENCED
    assert stage.synced(stage.sync(old, 1, group_instance_id="b")).error is FENCED
    assert stage.joined(stage.join(old, group_instance_id="b")).error is FENCED
    commit = stage.commit({"orders-0": 1}, member_id=old, generation_id=1, group_instance_id="b")
    assert commit is FENCED
    in_txn = stage.commit({"orders-0": 1}, 7, member_id=old, generation_id=1, group_instance_id="b")
    assert in_txn is FENCED
    assert stage.leave(Leaver(old, "b")) == (FENCED,)
    assert stage.heartbeat(old, 1) is UNKNOWN


def test_an_unknown_instance_is_refused(stage: GroupStage) -> None:
    ids = stage.static("a")
    assert stage.heartbeat(ids["a"], 1, group_instance_id="z") is UNKNOWN


def test_a_waiting_process_is_fenced_by_the_next_one_of_its_instance(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    waiting = stage.join(ids["a"], group_instance_id="a")
    assert stage.is_in(State.PREPARING_REBALANCE)
    newer = stage.join(group_instance_id="a")
    assert stage.joined(waiting).error is FENCED
    stage.join(ids["b"], group_instance_id="b")
    assert stage.joined(newer).generation_id == 2


def test_an_instance_that_returns_while_the_leader_assigns_starts_another_rebalance() -> None:
    """The leader has the old id, so its assignment would miss the new one."""
    stage = GroupStage()
    first, second = stage.join(group_instance_id="a"), stage.join(group_instance_id="b")
    stage.tick(0)
    waiting = stage.sync(stage.joined(second).member_id, 1, group_instance_id="b")
    stage.join(group_instance_id="b")
    assert stage.synced(waiting).error is FENCED
    assert stage.is_in(State.PREPARING_REBALANCE)
    again = stage.join(stage.joined(first).member_id, group_instance_id="a")
    assert stage.joined(again).generation_id == 2


def test_an_instance_that_returns_with_another_preferred_protocol_starts_a_rebalance() -> None:
    stage = GroupStage()
    stage.join(group_instance_id="a", protocols=BOTH)
    stage.tick(0)
    (only,) = stage.group.members
    stage.sync_all([only])
    swapped = (BOTH[1], BOTH[0])
    ticket = stage.join(group_instance_id="a", protocols=swapped)
    assert stage.joined(ticket).generation_id == 2
    assert stage.joined(ticket).protocol_name == "roundrobin"


def test_a_new_id_that_cannot_be_written_changes_nothing(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    stage.disk_is_full = True
    reply = stage.joined(stage.join(group_instance_id="b", protocols=BOTH))
    assert reply.error is ErrorCode.NOT_COORDINATOR
    assert stage.heartbeat(ids["b"], 1, group_instance_id="b") is ErrorCode.NONE
    assert stage.group.members[ids["b"]].protocols == RANGE


def test_a_static_member_that_does_not_rejoin_stays_in_the_next_generation() -> None:
    stage = GroupStage()
    ids = stage.static("a", "b")
    ticket = stage.join(ids["a"], group_instance_id="a")
    for _ in range(REBALANCE_MS // 5_000):
        stage.tick(5_000)
        stage.heartbeat(ids["b"], stage.group.generation_id, group_instance_id="b")
    reply = stage.joined(ticket)
    assert reply.generation_id == 2
    assert [member.group_instance_id for member in reply.members] == ["a", "b"]


def test_a_leader_that_does_not_rejoin_is_replaced_by_a_member_that_does(stage: GroupStage) -> None:
    ids = stage.static("a", "b")
    ticket = stage.join(ids["b"], group_instance_id="b", protocols=BOTH)
    for _ in range(REBALANCE_MS // 5_000):
        stage.tick(5_000)
        stage.heartbeat(ids["a"], stage.group.generation_id, group_instance_id="a")
    assert stage.joined(ticket).leader == ids["b"]


def test_while_no_static_member_rejoins_the_group_waits_until_their_sessions_end() -> None:
    stage = GroupStage()
    ids = stage.static("a", "b")
    stage.join(rebalance_timeout_ms=1_000)
    new = next(name for name in stage.group.members if name not in ids.values())
    stage.leave(new)
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.tick(SESSION_MS)
    assert stage.is_in(State.EMPTY)


def test_static_members_with_a_zero_rebalance_timeout_cause_no_busy_loop(stage: GroupStage) -> None:
    ticket = stage.join(group_instance_id="a", rebalance_timeout_ms=0)
    stage.tick(0)
    only = stage.joined(ticket).member_id
    stage.sync(only, 1)
    stage.join()
    new = next(name for name in stage.group.members if name != only)
    stage.leave(new)
    stage.tick(SESSION_MS)
    assert stage.is_in(State.EMPTY)


@pytest.mark.parametrize("instances", [("a",), ("a", "b")])
def test_an_administrator_removes_static_members_by_their_instance(
    instances: tuple[str, ...],
) -> None:
    stage = GroupStage()
    stage.static("a", "b")
    leavers = [Leaver("", name) for name in instances]
    assert stage.leave(*leavers) == tuple(ErrorCode.NONE for _ in instances)
    assert stage.leave(*leavers) == tuple(UNKNOWN for _ in instances)
    expected = State.EMPTY if len(instances) == 2 else State.PREPARING_REBALANCE
    assert stage.is_in(expected)


def test_the_waiting_sync_of_a_removed_static_member_gets_a_reply(stage: GroupStage) -> None:
    stage.join(group_instance_id="a")
    second = stage.join(group_instance_id="b")
    stage.tick(0)
    waiting = stage.sync(stage.joined(second).member_id, 1, group_instance_id="b")
    stage.leave(Leaver("", "b"))
    assert stage.synced(waiting).error is UNKNOWN
