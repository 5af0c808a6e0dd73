"""JoinGroup: which members are admitted, and when a join starts a rebalance."""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.limits import MAX_GROUP_SIZE, NEW_MEMBER_JOIN_TIMEOUT_MS
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Answer, Decision
from fencepost.coordinator.group.events import Join, JoinLost, JoinReply, StaticMemberReplaced
from fencepost.coordinator.group.group import Group, Member
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.rebalance import Turn, joined_reply
from fencepost.coordinator.group.settings import (
    GroupCoordinatorSettings,
)


def on_join(state: GroupCoordinatorState, event: Join, now_ms: int) -> Decision:
    """Admit a member or refuse it; most answers wait for the generation."""
    error = refuse_join(event, state.settings)
    if error is None and event.member_id and event.group_id not in state.groups:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    if error is not None:
        return Decision(answers=[Answer(event.ticket, JoinReply(error, event.member_id))])
    group = state.groups.get(event.group_id)
    if group is None:
        return _create_group(event, now_ms)
    turn = Turn(group, state.settings, now_ms)
    if not _has_room(group, event.member_id, state.settings):
        _forget(turn, event.member_id)
        turn.answer(event.ticket, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(event.protocol_type, [name for name, _ in event.protocols]):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        turn.answer(event.ticket, JoinReply(error, event.member_id))
    elif not event.member_id:
        _join_unknown(turn, event)
    else:
        _join_known(turn, event)
    return turn.decision


def refuse_join(event: Join, settings: GroupCoordinatorSettings) -> ErrorCode | None:
    """The error of a join that is invalid for any group, checked before the group is looked up."""
    if not event.group_id:
        return ErrorCode.INVALID_GROUP_ID
    timeout_ms = event.session_timeout_ms
    if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return None


def _create_group(event: Join, now_ms: int) -> Decision:
    """Write the record of a new group; then the join is decided again."""
    group = Group(event.group_id, now_ms)
    return Decision(records=[group.record(group.value())], then=event, otherwise=JoinLost(event))


def _has_room(group: Group, member_id: str, settings: GroupCoordinatorSettings) -> bool:
    """Whether group.max.size admits this member; in a rebalance the last to join are refused."""
    if group.state in (State.EMPTY, State.DEAD):
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING_REBALANCE:
        if member is not None and member.awaiting_join is not None:
            return True
        return group.awaiting_join_count < settings.max_size
    return member is not None or len(group.members) < settings.max_size


def _forget(turn: Turn, member_id: str) -> None:
    member = turn.group.members.get(member_id)
    if member is not None:
        turn.remove(member)
    else:
        turn.group.remove(member_id)


# -- members without an id


def _join_unknown(turn: Turn, event: Join) -> None:
    group = turn.group
    if event.group_instance_id is not None:
        if event.group_instance_id in group.static_members:
            _replace_static(turn, event, event.group_instance_id)
        else:
            _add(turn, event, event.new_member_id)
    elif event.must_know_its_id and len(group.pending_members) >= MAX_GROUP_SIZE:
        turn.answer(event.ticket, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif event.must_know_its_id:
        deadline_ms = group.arm(turn.now_ms + event.session_timeout_ms)
        group.pending_members[event.new_member_id] = deadline_ms
        turn.answer(event.ticket, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, event.new_member_id))
    else:
        _add(turn, event, event.new_member_id)


def _add(turn: Turn, event: Join, member_id: str) -> None:
    group = turn.group
    member = Member(
        member_id,
        event.group_instance_id,
        event.client_id,
        event.client_host,
        event.rebalance_timeout_ms,
        event.session_timeout_ms,
        event.protocols,
    )
    member.is_new = True
    if group.is_initial_rebalance:
        group.new_member_added = True
    group.add(member, event.protocol_type)
    turn.park_join(member, event.ticket)
    group.touch(member, NEW_MEMBER_JOIN_TIMEOUT_MS, turn.now_ms)
    turn.rebalance_or_complete()


def _replace_static(turn: Turn, event: Join, group_instance_id: str) -> None:
    """Give a static member that returned without its id a new id (KIP-345)."""
    group = turn.group
    member = group.members[group.static_members[group_instance_id]]
    if group.state is State.STABLE and _keeps_protocol(group, member, event):
        _write_replacement(turn, event, member)
        return
    turn.fence(member)
    group.replace_static(group_instance_id, event.new_member_id)
    turn.touch(member)
    _update(turn, member, event)
    # A leader that is assigning has the old id, so the group must rebalance in that state too.
    turn.rebalance_or_complete()


def _keeps_protocol(group: Group, member: Member, event: Join) -> bool:
    """Whether the group would select the same protocol with this member's new list."""
    protocols = member.protocols
    group.replace_protocols(member, event.protocols)
    chosen = group.select_protocol()
    group.replace_protocols(member, protocols)
    return chosen == group.protocol_name


def _write_replacement(turn: Turn, event: Join, member: Member) -> None:
    group = turn.group
    subscription = next(data for name, data in event.protocols if name == group.protocol_name)
    old_leader = group.leader or ""
    value = group.value()
    replaced = member.value(group.protocol_name)._replace(
        member_id=event.new_member_id,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        subscription=subscription,
    )
    members = tuple(replaced if m.member_id == member.member_id else m for m in value.members)
    leader = event.new_member_id if value.leader == member.member_id else value.leader
    turn.decision.records.append(group.record(value._replace(members=members, leader=leader)))
    turn.decision.then = StaticMemberReplaced(event, old_leader)
    turn.decision.otherwise = JoinLost(event)


def on_static_member_replaced(
    state: GroupCoordinatorState, event: StaticMemberReplaced, now_ms: int
) -> Decision:
    """The new id is written: the member continues without a rebalance."""
    join = event.join
    group = state.groups[join.group_id]
    turn = Turn(group, state.settings, now_ms)
    member = group.members[join.new_member_id]
    turn.fence(member)
    group.replace_protocols(member, join.protocols)
    turn.touch(member)
    if join.can_skip_assignment:
        turn.answer(join.ticket, joined_reply(group, member, skip_assignment=True))
    else:
        # An older client that receives itself as leader would assign again. It receives the old
        # leader.
        reply = JoinReply(
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=event.old_leader,
        )
        turn.answer(join.ticket, reply)
    return turn.decision


def on_join_lost(event: JoinLost) -> Decision:
    """The disk refused the records of the join; nothing has changed."""
    reply = JoinReply(event.error, event.join.member_id)
    return Decision(answers=[Answer(event.join.ticket, reply)])


# -- members with an id


def _join_known(turn: Turn, event: Join) -> None:
    group = turn.group
    member_id = event.member_id
    if member_id in group.pending_members and event.group_instance_id is None:
        _add(turn, event, member_id)
        return
    if error := group.refuse_member(member_id, event.group_instance_id):
        turn.answer(event.ticket, JoinReply(error, member_id))
        return
    member = group.members[member_id]
    if _changes_nothing(group, member, event):
        # It may have missed our answer, so it receives the generation again.
        turn.answer(event.ticket, joined_reply(group, member))
    else:
        _update(turn, member, event)
        turn.rebalance_or_complete()


def _changes_nothing(group: Group, member: Member, event: Join) -> bool:
    if group.state is State.COMPLETING_REBALANCE:
        return member.protocols == event.protocols
    if group.state is State.STABLE:
        # A leader that joins again wants a rebalance, for reasons that its metadata may not show.
        return group.leader != member.member_id and member.protocols == event.protocols
    return False


def _update(turn: Turn, member: Member, event: Join) -> None:
    turn.group.replace_protocols(member, event.protocols)
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.session_timeout_ms = event.session_timeout_ms
    turn.park_join(member, event.ticket)
