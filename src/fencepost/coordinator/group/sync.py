"""SyncGroup: the leader sends the assignment, every member receives its own."""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import AssignmentLost, AssignmentWritten, Sync, SyncReply
from fencepost.coordinator.group.group import NEVER, WHEN_WRITTEN, Group, Member
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.rebalance import Turn


def on_sync(state: GroupCoordinatorState, event: Sync, now_ms: int) -> Decision:
    """Answer with the assignment if there is one; otherwise the answer waits for the leader."""
    group = state.groups.get(event.group_id)
    error = _refuse(group, event)
    if error is not None:
        return Decision(answers=[Answer(event.ticket, SyncReply(error))])
    assert group is not None
    turn = Turn(group, state.settings, now_ms)
    member = group.members[event.member_id]
    member.client_address = event.client_address
    group.pending_sync.pop(event.member_id, None)
    if not group.pending_sync:
        group.sync_deadline_ms = NEVER
    if group.state is State.STABLE:
        turn.answer(event.ticket, _assigned(group, member))
        return turn.decision
    turn.park_sync(member, event.ticket)
    if group.leader == event.member_id:
        _write_assignment(turn, event)
    return turn.decision


def _refuse(group: Group | None, event: Sync) -> ErrorCode | None:
    if not event.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None or group.state is State.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if error := group.refuse_member(event.member_id, event.group_instance_id):
        return error
    if event.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if event.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.protocol_name is not None and event.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return None


def _write_assignment(turn: Turn, event: Sync) -> None:
    group = turn.group
    value = group.value()
    members = tuple(
        member._replace(assignment=event.assignments.get(member.member_id, b""))
        for member in value.members
    )
    value = value._replace(members=members, state_timestamp_ms=WHEN_WRITTEN)
    turn.decision.records.append(group.record(value))
    turn.decision.then = AssignmentWritten(group.group_id, group.generation_id)
    turn.decision.otherwise = AssignmentLost(group.group_id, group.generation_id)


def on_assignment_written(
    state: GroupCoordinatorState, event: AssignmentWritten, now_ms: int
) -> Decision:
    """The group is stable: waiting members get their assignments, and their sessions start."""
    group = state.groups[event.group_id]
    assert group.state is State.STABLE, f"{group} was assigned"
    assert group.generation_id == event.generation_id, f"{group} was assigned"
    turn = Turn(group, state.settings, now_ms)
    for member in group.members.values():
        if member.awaiting_sync is not None:
            turn.answer(member.awaiting_sync, _assigned(group, member))
            member.awaiting_sync = None
            turn.touch(member)
    return turn.decision


def on_assignment_lost(
    state: GroupCoordinatorState, event: AssignmentLost, now_ms: int
) -> Decision:
    """The disk refused the assignment: waiting members get an error, and the group rebalances."""
    group = state.groups[event.group_id]
    turn = Turn(group, state.settings, now_ms)
    turn.refuse_syncs(event.error)
    turn.prepare()
    return turn.decision


def _assigned(group: Group, member: Member) -> SyncReply:
    return SyncReply(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
