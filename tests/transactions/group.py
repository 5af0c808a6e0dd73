"""The requests of a consumer group with one member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from fencepost.wire.forms.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from fencepost.wire.forms.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.transactions.wire import GROUP, NONE, await_coordinator

if TYPE_CHECKING:
    from tests.broker.requests import Client


class GroupMember(NamedTuple):
    """The identity of a member after joining."""

    group: str
    member_id: str
    generation: int

    @property
    def fields(self) -> dict[str, Any]:
        """As TxnOffsetCommit names them from v3 on (KIP-447)."""
        return {"member_id": self.member_id, "generation_id": self.generation}


def join(client: Client, group: str, instance: str | None = None) -> GroupMember:
    """Joins as the only member; the group waits for its assignment (CompletingRebalance)."""
    await_coordinator(client, group, GROUP)
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    reply = client.call(ApiKey.JOIN_GROUP, 7, request)
    if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = reply.member_id
        reply = client.call(ApiKey.JOIN_GROUP, 7, request)
    assert reply.error_code == NONE, ErrorCode(reply.error_code)
    return GroupMember(group, reply.member_id, reply.generation_id)


def sync(client: Client, member: GroupMember) -> None:
    """Sends the assignment; the group is stable then."""
    request = SyncGroupRequest(
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"all")],
    )
    reply = client.call(ApiKey.SYNC_GROUP, 5, request)
    assert reply.error_code == NONE, ErrorCode(reply.error_code)


def commit_plainly(
    client: Client,
    group: str,
    topic: str,
    offsets: dict[int, int],
    member: GroupMember | None = None,
) -> set[int]:
    """OffsetCommit; returns the errors of its partitions."""
    await_coordinator(client, group, GROUP)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=""
                    )
                    for index, offset in offsets.items()
                ],
            )
        ],
    )
    reply = client.call(ApiKey.OFFSET_COMMIT, 8, request)
    return {partition.error_code for topic in reply.topics for partition in topic.partitions}
