"""Heartbeats, members that leave, and members whose session expires."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import (
    Heartbeat,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    SyncReply,
)
from fencepost.coordinator.group.group import NEVER, Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.rebalance import Turn


def on_heartbeat(state: GroupCoordinatorState, event: Heartbeat, now_ms: int) -> ErrorCode:
    """Keep a session alive; REBALANCE_IN_PROGRESS makes the member join again."""
    if not event.group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = state.groups.get(event.group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if error := group.refuse_member(event.member_id, event.group_instance_id):
        return error
    if event.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    member = group.members[event.member_id]
    member.client_address = event.client_address
    group.touch(member, member.session_timeout_ms, now_ms)
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


# -- leaving


def on_leave(state: GroupCoordinatorState, event: Leave, now_ms: int) -> Decision:
    """Remove members; the rest of the group rebalances."""
    group = state.groups.get(event.group_id)
    if group is None:
        unknown = tuple(ErrorCode.UNKNOWN_MEMBER_ID for _ in event.leavers)
        return Decision(reply=LeaveReply(unknown))
    turn = Turn(group, state.settings, now_ms)
    errors = tuple(_leave(turn, leaver) for leaver in event.leavers)
    if ErrorCode.NONE in errors and group.state is not State.EMPTY:
        turn.rebalance_or_complete()
    turn.decision.reply = LeaveReply(errors)
    return turn.decision


def _leave(turn: Turn, leaver: Leaver) -> ErrorCode:
    group = turn.group
    member_id, group_instance_id = leaver
    if not member_id:
        # An administrator removes static members by their instance id.
        found = group.static_members.get(group_instance_id or "")
        if found is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = found
    elif member_id in group.pending_members:
        group.remove(member_id)
        return ErrorCode.NONE
    elif error := group.refuse_member(member_id, group_instance_id):
        return error
    turn.remove(group.members[member_id])
    return ErrorCode.NONE


# -- time


def on_tick(state: GroupCoordinatorState, group: Group, now_ms: int) -> Decision:
    """Handle one kind of deadline that is due.

    The caller repeats this while `alarm_ms` is not past `now_ms`.
    """
    turn = Turn(group, state.settings, now_ms)
    if not _expire_sessions(turn):
        if group.join_deadline_ms <= now_ms:
            _end_join_phase(turn)
        elif group.sync_deadline_ms <= now_ms:
            _end_sync_phase(turn)
    group.rearm()
    return turn.decision


def _expire_sessions(turn: Turn) -> bool:
    """Remove members whose session has expired; return whether there were any."""
    group, now_ms = turn.group, turn.now_ms
    expired = [name for name, due_ms in group.pending_members.items() if due_ms <= now_ms]
    for member_id in expired:
        group.remove(member_id)
    silent = [member for member in group.members.values() if member.deadline_ms <= now_ms]
    for member in silent:
        if member.is_satisfied:
            member.deadline_ms = NEVER  # Our answer starts its session again.
        else:
            turn.remove(member)
            expired.append(member.member_id)
    if not expired:
        return False
    if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
        if any(member.member_id in expired for member in silent):
            turn.prepare()
    elif group.state is State.PREPARING_REBALANCE and group.has_all_members_joined:
        turn.complete()
    return True


def _end_join_phase(turn: Turn) -> None:
    group = turn.group
    group.join_deadline_ms = NEVER
    if group.is_initial_rebalance:
        turn.gather_on_or_complete()
    elif group.state is State.PREPARING_REBALANCE:
        turn.complete()


def _end_sync_phase(turn: Turn) -> None:
    """Remove members that never requested the assignment of this generation."""
    group = turn.group
    group.sync_deadline_ms = NEVER
    if not group.pending_sync:
        return
    for member_id in tuple(group.pending_sync):
        turn.remove(group.members[member_id])
    turn.prepare()


def pass_time(group: Group, passed_ms: int, is_connected: Callable[[str], bool]) -> None:
    """Lets the sessions of members without a connection come so much closer to their end.

    For clocks that are moved: whoever is connected sends its heartbeats in real time.
    """
    for member in group.members.values():
        if member.deadline_ms == NEVER or not member.client_address:
            continue
        if not is_connected(member.client_address):
            member.deadline_ms -= passed_ms
    group.rearm()


# -- loading and unloading


def on_loaded(state: GroupCoordinatorState, now_ms: int) -> None:
    """The log has been read: every member gets a full session to find its coordinator."""
    state.is_loading = False
    for group in state.groups.values():
        turn = Turn(group, state.settings, now_ms)
        for member in group.members.values():
            turn.touch(member)
        if len(group.members) > state.settings.max_size:
            # The limit was lowered. The last members to join again will be refused.
            turn.prepare()
            assert not turn.decision.records, f"{group} has members"


def on_unloaded(state: GroupCoordinatorState, now_ms: int) -> list[Answer]:
    """Another coordinator will own these groups: redirect all waiting requests."""
    moved = ErrorCode.NOT_COORDINATOR
    answers = []
    for group in state.groups.values():
        for member in group.members.values():
            ticket = group.unpark_join(member)
            if ticket is not None:
                answers.append(Answer(ticket, JoinReply(moved, member.member_id)))
            if member.awaiting_sync is not None:
                answers.append(Answer(member.awaiting_sync, SyncReply(moved)))
                member.awaiting_sync = None
        group.become(State.DEAD, now_ms)
    state.groups.clear()
    return answers
