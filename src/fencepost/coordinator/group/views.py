"""Queries: OffsetFetch, DescribeGroups, ListGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import ZERO_TOPIC_ID, TopicPartition
from fencepost.coordinator.group.lifecycle import State
from fencepost.records.group_log import NO_LEADER_EPOCH, OffsetKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fencepost.coordinator.group.coordinator_state import GroupCoordinatorState
    from fencepost.coordinator.group.group import Member
    from fencepost.coordinator.group.offsets import Stored

    IdOf = Callable[[str], bytes | None]

GROUP_TYPE: Final = "classic"


class OffsetView(NamedTuple):
    """A committed offset for OffsetFetch; -1 if there is none, or none that is stable."""

    partition: TopicPartition
    offset: int = -1
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


def fetch_offset(
    state: GroupCoordinatorState,
    key: OffsetKey,
    *,
    require_stable: bool,
    topic_id: bytes = ZERO_TOPIC_ID,
) -> OffsetView:
    """The offset of one partition; the topic id excludes an older topic of the same name."""
    if require_stable and state.offsets.is_pending(key):
        return OffsetView(key.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    stored = state.offsets.get(key)
    if stored is None or is_of_another_topic(stored, topic_id):
        return OffsetView(key.partition)
    value = stored.value
    return OffsetView(key.partition, value.offset, value.leader_epoch, value.metadata)


def is_of_another_topic(stored: Stored, topic_id: bytes) -> bool:
    """Whether an offset belongs to an older topic of the same name.

    An offset without a topic id counts as an offset of this topic.
    """
    known = stored.value.topic_id
    return known != topic_id and ZERO_TOPIC_ID not in (known, topic_id)


def fetch_all_offsets(
    state: GroupCoordinatorState, group_id: str, id_of: IdOf, *, require_stable: bool
) -> list[OffsetView]:
    """Every committed offset of a group; partitions that have only pending ones are left out."""
    return [
        fetch_offset(state, OffsetKey(group_id, partition), require_stable=require_stable)
        for partition, stored in state.offsets.of_group(group_id).items()
        if not is_of_another_topic(stored, id_of(partition.topic) or ZERO_TOPIC_ID)
    ]


class MemberView(NamedTuple):
    """A member for DescribeGroups; its metadata is shown only while the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(NamedTuple):
    """A group for DescribeGroups and ListGroups."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str = ""
    members: tuple[MemberView, ...] = ()


def describe_group(state: GroupCoordinatorState, group_id: str) -> GroupView | None:
    """Describe a group; None if there is no such group."""
    group = state.groups.get(group_id)
    if group is None:
        return None
    protocol = group.protocol_name if group.state is State.STABLE else None
    return GroupView(
        group_id,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        tuple(_member_view(member, protocol) for member in group.members.values()),
    )


def _member_view(member: Member, protocol_name: str | None) -> MemberView:
    return MemberView(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.metadata(protocol_name) if protocol_name is not None else b"",
        member.assignment,
    )


def list_groups(
    state: GroupCoordinatorState, states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupView]:
    """The groups in these states and of these types, ignoring case; empty means all."""
    if types and GROUP_TYPE not in {name.strip().lower() for name in types}:
        return []
    wanted = {name.strip().lower() for name in states}
    return [
        GroupView(group.group_id, group.state.value, group.protocol_type or "")
        for group in state.groups.values()
        if not wanted or group.state.value.lower() in wanted
    ]
