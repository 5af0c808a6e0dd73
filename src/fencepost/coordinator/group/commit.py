"""OffsetCommit and TxnOffsetCommit: authorization by membership, and the records to write.

These functions change nothing but the session of the committing member.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Decision
from fencepost.coordinator.group.events import Commit, CommitReply, OffsetToCommit
from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.records.group_log import (
    NO_LEADER_EPOCH,
    OffsetKey,
    OffsetRecord,
    OffsetValue,
)

_MAX_LONG: Final = 2**63 - 1


def decide_commit(state: GroupCoordinatorState, event: Commit, now_ms: int) -> Decision:
    """Write one record per partition whose metadata is not too long, or refuse the commit."""
    if error := _refuse(state.groups.get(event.group_id), event):
        return Decision(reply=CommitReply(error))
    if not event.transactional:
        _keep_session(state, event, now_ms)
    decision = Decision()
    errors = []
    max_size = state.settings.offset_metadata_max_size
    for offset in event.offsets:
        if java_length(offset.metadata) > max_size:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        errors.append(ErrorCode.NONE)
        key = OffsetKey(event.group_id, offset.partition)
        decision.records.append(OffsetRecord(key, _value(offset, event.retention_ms, now_ms)))
    decision.reply = CommitReply(errors=tuple(errors))
    return decision


def _refuse(group: Group | None, event: Commit) -> ErrorCode | None:
    # Consumers without group management, and administrators, send generation -1. They may commit to
    # a group without members, which creates the group if needed.
    is_standalone = event.generation_id < 0
    if group is None:
        return None if is_standalone else event.unknown_group_error
    if is_standalone and group.state is State.EMPTY:
        return None
    if not is_standalone or event.member_id or event.group_instance_id is not None:
        if error := group.refuse_member(event.member_id, event.group_instance_id):
            return error
        if event.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
    elif not event.transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # A transaction is fenced by its producer. It may commit its offsets while the group rebalances,
    # and old clients do so without a member id (KIP-447).
    if not event.transactional and group.state is State.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return None


def _keep_session(state: GroupCoordinatorState, event: Commit, now_ms: int) -> None:
    group = state.groups.get(event.group_id)
    if group is not None and group.state in (State.STABLE, State.PREPARING_REBALANCE):
        member = group.members[event.member_id]
        group.touch(member, member.session_timeout_ms, now_ms)


def _value(offset: OffsetToCommit, retention_ms: int, now_ms: int) -> OffsetValue:
    if retention_ms >= 0:
        # In v2 to v4 the client chooses. The record version of that time has no epoch and no topic
        # id.
        expire_ms = min(now_ms + retention_ms, _MAX_LONG)
        return OffsetValue(offset.offset, NO_LEADER_EPOCH, offset.metadata, now_ms, expire_ms)
    return OffsetValue(
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        now_ms,
        NO_TIMESTAMP,
        offset.topic_id,
    )


def java_length(text: str) -> int:
    """The length that Kafka compares with its limit: UTF-16 code units."""
    return len(text) + sum(1 for character in text if character > "\uffff")
