"""Sessions, rebalance timeouts, the initial rebalance, and moves of the coordinator."""

from __future__ import annotations

import pytest

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import NEW_MEMBER_JOIN_TIMEOUT_MS
from fencepost.coordinator.group.group import NEVER
from fencepost.coordinator.group.lifecycle import State
from tests.coordinator.group.stage import REBALANCE_MS, SESSION_MS, GroupStage

NONE = ErrorCode.NONE


def keep_alive(stage: GroupStage, milliseconds: int, *member_ids: str) -> None:
    """Advance the clock while these members send heartbeats."""
    for _ in range(milliseconds // 1_000):
        stage.tick(1_000)
        for member_id in member_ids:
            stage.heartbeat(member_id, stage.group.generation_id)


# -- sessions


def test_a_silent_member_is_removed_when_its_session_ends(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    keep_alive(stage, SESSION_MS - 1_000, leader)
    assert stage.is_in(State.STABLE)
    keep_alive(stage, 1_000, leader)
    assert set(stage.group.members) == {leader}
    assert stage.is_in(State.PREPARING_REBALANCE)
    assert stage.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_when_all_sessions_end_the_group_is_empty(stage: GroupStage) -> None:
    stage.stable(3)
    stage.tick(SESSION_MS)
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 2)
    stage.tick(SESSION_MS)
    assert stage.group.alarm_ms == NEVER


def test_heartbeats_keep_a_session_alive(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    keep_alive(stage, 10 * SESSION_MS, only)
    assert stage.heartbeat(only, 1) is NONE


def test_a_commit_keeps_a_session_alive(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.tick(SESSION_MS - 1)
    stage.commit({"orders-0": 1}, member_id=only, generation_id=1)
    stage.tick(SESSION_MS - 1)
    assert stage.heartbeat(only, 1) is NONE


def test_a_transactional_commit_does_not_keep_a_session_alive(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.tick(SESSION_MS - 1)
    stage.commit({"orders-0": 1}, 7, member_id=only, generation_id=1)
    stage.tick(1)
    assert stage.is_in(State.EMPTY)


def test_a_member_whose_join_waits_need_not_send_heartbeats(stage: GroupStage) -> None:
    leader, follower = stage.stable(2)
    waiting = stage.join(leader)
    keep_alive(stage, 3 * SESSION_MS, follower)
    assert waiting not in stage.replies
    stage.join(follower)
    assert stage.joined(waiting).generation_id == 2
    keep_alive(stage, SESSION_MS - 1_000, follower)
    assert leader in stage.group.members
    keep_alive(stage, 1_000, follower)
    assert leader not in stage.group.members


def test_a_member_whose_sync_waits_need_not_send_heartbeats(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(follower, 1)
    keep_alive(stage, 3 * SESSION_MS, leader)
    stage.sync(leader, 1, {follower: b"mine"})
    assert stage.synced(waiting).assignment == b"mine"
    keep_alive(stage, SESSION_MS - 1_000, leader)
    assert follower in stage.group.members
    keep_alive(stage, 1_000, leader)
    assert follower not in stage.group.members


def test_a_member_whose_sync_failed_must_send_heartbeats_again(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(follower, 1)
    keep_alive(stage, 2 * SESSION_MS, leader)
    stage.join()
    assert stage.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    keep_alive(stage, SESSION_MS, leader)
    assert leader in stage.group.members
    assert follower not in stage.group.members


def test_a_new_member_does_not_wait_forever(stage: GroupStage) -> None:
    """Its client may have given up and retried without its id."""
    patient = 2 * NEW_MEMBER_JOIN_TIMEOUT_MS
    (old,) = stage.stable(1, rebalance_timeout_ms=patient)
    waiting = stage.join(rebalance_timeout_ms=patient)
    keep_alive(stage, NEW_MEMBER_JOIN_TIMEOUT_MS, old)
    assert stage.joined(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(stage.group.members) == {old}


# -- rebalances


def test_members_that_do_not_rejoin_in_time_are_removed(stage: GroupStage) -> None:
    leader, slow, slower = stage.stable(3)
    waiting = stage.join(leader)
    keep_alive(stage, REBALANCE_MS - 1_000, slow, slower)
    assert waiting not in stage.replies
    keep_alive(stage, 1_000, slow, slower)
    assert stage.joined(waiting).generation_id == 2
    assert set(stage.group.members) == {leader}


def test_the_longest_rebalance_timeout_of_the_members_applies(stage: GroupStage) -> None:
    (impatient,) = stage.stable(1, rebalance_timeout_ms=10_000)
    waiting = stage.join(rebalance_timeout_ms=30_000)
    keep_alive(stage, 29_000, impatient)
    assert waiting not in stage.replies
    keep_alive(stage, 1_000, impatient)
    assert stage.joined(waiting).error is NONE


def test_members_that_never_sync_are_removed(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    stage.sync(leader, 1)
    keep_alive(stage, REBALANCE_MS, leader, follower)
    assert set(stage.group.members) == {leader}
    assert stage.is_in(State.PREPARING_REBALANCE)


def test_a_leader_that_never_assigns_is_removed_and_the_others_rejoin(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    leader, follower = stage.joined(first).member_id, stage.joined(second).member_id
    waiting = stage.sync(follower, 1)
    keep_alive(stage, REBALANCE_MS, leader)
    assert stage.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in stage.group.members
    assert stage.joined(stage.join(follower)).leader == follower


def test_there_is_no_sync_deadline_once_all_members_have_synced(stage: GroupStage) -> None:
    ids = stage.stable(2)
    assert stage.group.sync_deadline_ms == NEVER
    keep_alive(stage, 2 * REBALANCE_MS, *ids)
    assert set(stage.group.members) == set(ids)


# -- the first rebalance


def test_an_empty_group_waits_for_more_members_before_its_first_generation() -> None:
    stage = GroupStage(initial_rebalance_delay_ms=3_000)
    first = stage.join()
    stage.tick(2_999)
    assert first not in stage.replies
    stage.tick(1)
    assert stage.joined(first).generation_id == 1


def test_every_member_that_joins_meanwhile_extends_the_wait() -> None:
    stage = GroupStage(initial_rebalance_delay_ms=3_000)
    first = stage.join()
    stage.tick(2_000)
    second = stage.join()
    stage.tick(1_000)
    assert first not in stage.replies
    stage.tick(3_000)
    assert stage.joined(first).generation_id == stage.joined(second).generation_id == 1
    assert len(stage.joined(first).members) == 2


def test_the_wait_ends_at_the_rebalance_timeout_however_many_join() -> None:
    stage = GroupStage(initial_rebalance_delay_ms=3_000)
    first = stage.join(rebalance_timeout_ms=7_000)
    for _ in range(7):
        stage.tick(1_000)
        stage.join(rebalance_timeout_ms=7_000)
    stage.tick(3_000)
    assert stage.joined(first).generation_id == 1


def test_a_member_that_leaves_during_the_wait_leaves_an_empty_group() -> None:
    stage = GroupStage(initial_rebalance_delay_ms=3_000)
    stage.join()
    (only,) = stage.group.members
    stage.leave(only)
    assert stage.is_in(State.PREPARING_REBALANCE)
    stage.tick(3_000)
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 1)


def test_a_rebalance_of_a_group_with_members_does_not_wait() -> None:
    stage = GroupStage(initial_rebalance_delay_ms=3_000)
    (old,) = stage.stable(1)
    stage.join()
    assert stage.joined(stage.join(old)).generation_id == 2


# -- moves of the coordinator


def test_loaded_members_get_a_full_session_to_find_their_coordinator(stage: GroupStage) -> None:
    (only,) = stage.stable(1)
    stage.tick(SESSION_MS - 1)
    stage.restart()
    stage.tick(SESSION_MS - 1)
    assert stage.heartbeat(only, 1) is NONE
    stage.tick(SESSION_MS)
    assert stage.is_in(State.EMPTY)


def test_a_waiting_join_is_sent_to_the_new_coordinator(stage: GroupStage) -> None:
    leader, _ = stage.stable(2)
    joining = stage.join(leader)
    stage.restart()
    assert stage.joined(joining).error is ErrorCode.NOT_COORDINATOR
    assert stage.is_in(State.STABLE)
    assert stage.group.generation_id == 1


def test_a_waiting_sync_is_sent_to_the_new_coordinator(stage: GroupStage) -> None:
    first, second = stage.join(), stage.join()
    stage.tick(0)
    follower = stage.joined(second).member_id
    assert stage.joined(first).leader != follower
    waiting = stage.sync(follower, 1)
    stage.restart()
    assert stage.synced(waiting).error is ErrorCode.NOT_COORDINATOR
    assert (stage.group.state, stage.group.generation_id) == (State.EMPTY, 0)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_jump_of_the_clock_breaks_no_invariant(stage: GroupStage, jump_ms: int) -> None:
    leader, follower = stage.stable(2)
    stage.now_ms += jump_ms
    stage.heartbeat(leader, 1)
    stage.join(leader)
    stage.join(follower)
    stage.tick(0)
    assert stage.group.generation_id >= 1
