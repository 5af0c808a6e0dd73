"""Requests about groups, in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.forms.heartbeat import HeartbeatRequest
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from fencepost.wire.forms.leave_group import LeaveGroupRequest, MemberIdentity
from fencepost.wire.forms.list_groups import ListGroupsRequest
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from fencepost.wire.forms.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.compat.twin.talk import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OFFSET_COMMIT_BY_NAME: Final = 9
SUBSCRIPTION: Final = bytes.fromhex("0000 00000001 0001 74 ffffffff")
"""A consumer's subscription of version 0 to the topic "t", without user data."""
RANGE: Final = {"range": SUBSCRIPTION}


def join(
    group: str,
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocols: Mapping[str, bytes] | None = None,
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 10_000,
) -> Ask:
    offered = RANGE if protocols is None else protocols
    return Ask(
        ApiKey.JOIN_GROUP,
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offered.items()
            ],
        ),
    )


def sync(
    group: str,
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    instance_id: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> Ask:
    return Ask(
        ApiKey.SYNC_GROUP,
        SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        ),
    )


def heartbeat(
    group: str, member_id: str, generation: int, *, instance_id: str | None = None
) -> Ask:
    return Ask(
        ApiKey.HEARTBEAT,
        HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
        ),
    )


def leave(group: str, *members: tuple[str, str | None]) -> Ask:
    """Members by (member id, instance id)."""
    identities = [
        MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
    ]
    return Ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=group, members=identities))


def commit(
    group: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str | None = "",
) -> Ask:
    topics = {
        topic: OffsetCommitRequestTopic(name=topic)
        for topic in dict.fromkeys(t for t, _ in offsets)
    }
    for (topic, index), offset in offsets.items():
        partition = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        topics[topic].partitions.append(partition)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )
    return Ask(ApiKey.OFFSET_COMMIT, request, OFFSET_COMMIT_BY_NAME)


def delete_offsets(group: str, partitions: Mapping[str, Sequence[int]]) -> Ask:
    topics = [
        OffsetDeleteRequestTopic(
            name=topic,
            partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in indexes],
        )
        for topic, indexes in partitions.items()
    ]
    return Ask(ApiKey.OFFSET_DELETE, OffsetDeleteRequest(group_id=group, topics=topics))


def describe_groups(*groups: str, operations: bool = False) -> Ask:
    request = DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations)
    return Ask(ApiKey.DESCRIBE_GROUPS, request)


def list_groups(states: Sequence[str] = (), types: Sequence[str] = ()) -> Ask:
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    return Ask(ApiKey.LIST_GROUPS, request)


def delete_groups(*groups: str) -> Ask:
    return Ask(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=list(groups)))


def find_coordinator(key_type: int, *keys: str) -> Ask:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    return Ask(ApiKey.FIND_COORDINATOR, request)
