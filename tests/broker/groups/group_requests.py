"""Requests about groups as clients send them, and the parts of replies that tests check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, coordinator_partition
from fencepost.broker.handlers import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
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
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from fencepost.wire.forms.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from tests.broker.groups.groups_stage import GroupNode

GROUP = "billing"
FSYNC = {"durability": "fsync"}
SESSION_MS = 10_000

NONE = ErrorCode.NONE
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


def join(node: GroupNode, member_id: str = "", version: int = 9, **fields: Any) -> Any:
    request = JoinGroupRequest(
        **{
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"m")],
            **fields,
        }
    )
    return node.send(ApiKey.JOIN_GROUP, join_group.handle, request, version)


def sync(node: GroupNode, member_id: str, generation: int, version: int = 5, **fields: Any) -> Any:
    request = SyncGroupRequest(
        **{
            "group_id": GROUP,
            "generation_id": generation,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")],
            **fields,
        }
    )
    return node.send(ApiKey.SYNC_GROUP, sync_group.handle, request, version)


def beat(node: GroupNode, member_id: str, generation: int, **fields: Any) -> int:
    request = HeartbeatRequest(
        **{"group_id": GROUP, "member_id": member_id, "generation_id": generation, **fields}
    )
    reply = node.send(ApiKey.HEARTBEAT, heartbeat.handle, request, 4)
    return int(reply.error_code)


def leave(node: GroupNode, *member_ids: str, version: int = 5, group_id: str = GROUP) -> Any:
    members = [MemberIdentity(member_id=name) for name in member_ids]
    request = LeaveGroupRequest(group_id=group_id, members=members)
    return node.send(ApiKey.LEAVE_GROUP, leave_group.handle, request, version)


def commit(
    node: GroupNode, offsets: dict[int, int], version: int = 9, topic: str = "orders", **fields: Any
) -> Any:
    request = OffsetCommitRequest(
        **{
            "group_id": GROUP,
            "topics": [
                OffsetCommitRequestTopic(
                    name="" if version >= 10 else topic,
                    topic_id=(node.metadata.topic_id(topic) or b"?" * 16),
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=None
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ],
            **fields,
        }
    )
    return node.send(ApiKey.OFFSET_COMMIT, offset_commit.handle, request, version)


def commit_in_transaction(
    node: GroupNode, offsets: dict[int, int], version: int = 5, **fields: Any
) -> Any:
    request = TxnOffsetCommitRequest(
        **{
            "transactional_id": "etl",
            "group_id": GROUP,
            "producer_id": 4000,
            "producer_epoch": 1,
            "topics": [
                TxnOffsetCommitRequestTopic(
                    name="orders",
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata="m"
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ],
            **fields,
        }
    )
    return node.send(ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit.handle, request, version)


def fetch(
    node: GroupNode,
    indexes: list[int] | None = None,
    version: int = 8,
    *,
    group_ids: tuple[str, ...] = (GROUP,),
    topic: str = "orders",
    require_stable: bool = False,
) -> Any:
    topics = None
    if indexes is not None:
        topic_id = node.metadata.topic_id(topic) or b"?" * 16
        name = "" if version >= 10 else topic
        topics = [OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=indexes)]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=topics) for name in group_ids]
    request = OffsetFetchRequest(groups=groups, require_stable=require_stable)
    return node.send(ApiKey.OFFSET_FETCH, offset_fetch.handle, request, version)


def delete_offsets(node: GroupNode, *indexes: int, topic: str = "orders") -> Any:
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    request = OffsetDeleteRequest(
        group_id=GROUP, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    )
    return node.send(ApiKey.OFFSET_DELETE, offset_delete.handle, request, 0)


def describe(node: GroupNode, group_id: str = GROUP, version: int = 6, **fields: Any) -> Any:
    request = DescribeGroupsRequest(groups=[group_id], **fields)
    reply = node.send(ApiKey.DESCRIBE_GROUPS, describe_groups.handle, request, version)
    return reply.groups[0]


def list_all(node: GroupNode, version: int = 5, **fields: Any) -> Any:
    return node.send(ApiKey.LIST_GROUPS, list_groups.handle, ListGroupsRequest(**fields), version)


def delete(node: GroupNode, *group_ids: str) -> Any:
    request = DeleteGroupsRequest(groups_names=list(group_ids))
    return node.send(ApiKey.DELETE_GROUPS, delete_groups.handle, request, 2)


def errors(reply: Any) -> list[int]:
    return [partition.error_code for topic in reply.topics for partition in topic.partitions]


def errors_of_every_request(node: GroupNode) -> set[int]:
    """The errors of all kinds of requests that name the group."""
    return {
        join(node).error_code,
        sync(node, "m", 1).error_code,
        beat(node, "m", 1),
        leave(node, "m").error_code,
        errors(commit(node, {0: 1}))[0],
        errors(commit_in_transaction(node, {0: 1}))[0],
        fetch(node, [0]).groups[0].error_code,
        delete_offsets(node, 0).error_code,
        describe(node).error_code,
        delete(node, GROUP).results[0].error_code,
    }


def offsets(reply: Any) -> list[int]:
    return [
        partition.error_code or partition.committed_offset
        for group in reply.groups
        for topic in group.topics
        for partition in topic.partitions
    ]


def stable(node: GroupNode, version: int = 9, **fields: Any) -> str:
    """Creates a stable group with one member; returns the member id."""
    told = join(node, version=version, **fields)
    member_id: str = told.member_id
    waiting = join(node, member_id, version, **fields)
    node.advance(0)
    assert waiting.reply.error_code == NONE
    assert sync(node, member_id, waiting.reply.generation_id).assignment == b"all"
    return member_id


def index_of(node: GroupNode, group_id: str = GROUP) -> int:
    count = node.metadata.partition_count(CONSUMER_OFFSETS_TOPIC)
    return coordinator_partition(group_id, count)
