"""Deletes offsets and groups: by request, with their topic, or by retention.

All deletions are tombstones. Offsets of an open transaction do not expire, and their group is not
deleted by retention; otherwise the marker would bring half a group back (KAFKA-19163). A request
may delete them; the tombstone clears pending offsets too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP, TopicPartition
from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
from fencepost.coordinator.group.decision import Decision
from fencepost.coordinator.group.events import CommitReply, DeleteOffsets
from fencepost.coordinator.group.group import Group
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.offsets import Stored
from fencepost.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE
from fencepost.coordinator.group.views import is_of_another_topic
from fencepost.records.group_log import GroupKey, GroupRecord, LogRecord, OffsetKey, OffsetRecord

# -- by request


def decide_delete_offsets(state: GroupCoordinatorState, event: DeleteOffsets) -> Decision:
    """OffsetDelete; topics that a member reads are skipped."""
    if not event.group_id:
        return Decision(reply=CommitReply(ErrorCode.INVALID_GROUP_ID))
    group = state.groups.get(event.group_id)
    if group is None:
        return Decision(reply=CommitReply(ErrorCode.GROUP_ID_NOT_FOUND))
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        # The topics of these members are unknown.
        return Decision(reply=CommitReply(ErrorCode.NON_EMPTY_GROUP))
    decision = Decision()
    errors = []
    known = set(state.offsets.known_partitions(event.group_id))
    for partition in event.partitions:
        if group.is_subscribed(partition.topic):
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        errors.append(ErrorCode.NONE)
        if partition in known:
            decision.records.append(_offset_tombstone(event.group_id, partition))
    decision.reply = CommitReply(errors=tuple(errors))
    return decision


def decide_delete_group(state: GroupCoordinatorState, group_id: str) -> Decision:
    """DeleteGroups for one group; the reply is an ErrorCode."""
    group = state.groups.get(group_id)
    if group is None:
        return Decision(reply=ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not State.EMPTY:
        return Decision(reply=ErrorCode.NON_EMPTY_GROUP)
    partitions = state.offsets.known_partitions(group_id)
    records: list[LogRecord] = [_offset_tombstone(group_id, name) for name in partitions]
    records.append(_group_tombstone(group_id))
    return Decision(records=records, reply=ErrorCode.NONE)


# -- with the topic


def decide_topics_deleted(state: GroupCoordinatorState, topics: Collection[str]) -> Decision:
    """Delete the offsets of deleted topics."""
    group_ids: Iterable[str] = {*state.offsets.committed, *state.offsets.writers}
    return Decision(
        records=[
            _offset_tombstone(group_id, partition)
            for group_id in sorted(group_ids)
            for partition in state.offsets.known_partitions(group_id)
            if partition.topic in topics
        ]
    )


def decide_stale(
    state: GroupCoordinatorState, group_id: str, id_of: Callable[[str], bytes | None]
) -> Decision:
    """Delete a group's offsets in topics that are gone or were created again since.

    A crash or a failed write may come between the deletion of a topic and the tombstones of its
    offsets. A tombstone removes both the committed and the pending offset, so it waits until both
    are stale.
    """
    offsets = state.offsets
    decision = Decision()
    for partition in offsets.known_partitions(group_id):
        key = OffsetKey(group_id, partition)
        topic_id = id_of(partition.topic)
        if topic_id is None or all(
            is_of_another_topic(stored, topic_id) for stored in offsets.all_of(key)
        ):
            decision.records.append(_offset_tombstone(group_id, partition))
    return decision


# -- by time


def decide_expiry(state: GroupCoordinatorState, group: Group, now_ms: int) -> Decision:
    """Delete offsets past offsets.retention.minutes, and the group if nothing is left."""
    decision = Decision()
    offsets = state.offsets.of_group(group.group_id)
    if offsets and not _may_expire(group):
        return decision
    for partition, stored in offsets.items():
        if not group.is_subscribed(partition.topic) and _is_expired(
            state, group, partition, stored, now_ms
        ):
            decision.records.append(_offset_tombstone(group.group_id, partition))
    if (
        len(decision.records) == len(offsets)
        and group.state is State.EMPTY
        and not group.pending_members
        and not state.offsets.pending_of_group(group.group_id)
    ):
        decision.records.append(_group_tombstone(group.group_id))
    return decision


def _may_expire(group: Group) -> bool:
    """Return False for a group that rebalances or whose topics are unknown."""
    if group.protocol_type is None or group.state is State.EMPTY:
        return True
    return group.state is State.STABLE and group.subscribed_topics is not None


def _is_expired(
    state: GroupCoordinatorState,
    group: Group,
    partition: TopicPartition,
    stored: Stored,
    now_ms: int,
) -> bool:
    if state.offsets.is_pending(OffsetKey(group.group_id, partition)):
        return False
    value = stored.value
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= value.expire_timestamp_ms
    since_ms = value.commit_timestamp_ms
    if (
        group.protocol_type is not None
        and group.state is State.EMPTY
        # Records of old Kafka versions do not say when the last member left.
        and group.state_timestamp_ms != NO_TIMESTAMP
    ):
        since_ms = group.state_timestamp_ms
    return now_ms - since_ms >= state.settings.offsets_retention_ms


def _offset_tombstone(group_id: str, partition: TopicPartition) -> OffsetRecord:
    return OffsetRecord(OffsetKey(group_id, partition), None)


def _group_tombstone(group_id: str) -> GroupRecord:
    return GroupRecord(GroupKey(group_id), None)
