"""Groups as their coordinators describe them: list, describe, delete.

There are two kinds of consumer groups with two requests. A classic group (DescribeGroups) carries
what its members subscribe to and own as bytes of the consumer protocol, which are read here. A
group of the new protocol (KIP-848, ConsumerGroupDescribe) has them as fields. The coordinator says
which kind a group is: it answers GROUP_ID_NOT_FOUND to the wrong request. A broker that does not
know the new request has no such groups.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import WireError
from fencepost.base.ids import TopicPartition
from fencepost.client.calls import Core, call_all_brokers, error_code, only
from fencepost.client.failures import UnsupportedByBroker
from fencepost.client.groups import call_coordinator
from fencepost.client.steps import Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.compile import reader
from fencepost.wire.forms.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    Member,
)
from fencepost.wire.forms.consumer_protocol_assignment import ConsumerProtocolAssignment
from fencepost.wire.forms.consumer_protocol_subscription import ConsumerProtocolSubscription
from fencepost.wire.forms.delete_groups import DeleteGroupsRequest
from fencepost.wire.forms.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from fencepost.wire.forms.list_groups import ListGroupsRequest

F = TypeVar("F")

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""The two kinds of groups, as ListGroups names them."""

_NEWEST_CONSUMER_PROTOCOL: Final = 3
"""Later versions append fields, so an older reader can read them."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One entry of ListGroups. Brokers before Kafka 3.8 do not report the kind."""

    group: str
    kind: str
    protocol_type: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    """What it subscribes to."""
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its coordinator describes it."""

    group: str
    kind: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberView, ...]

    @property
    def owners(self) -> dict[TopicPartition, MemberView]:
        """The member that each partition is assigned to."""
        return {partition: member for member in self.members for partition in member.assigned}


def list_groups(core: Core) -> Steps[list[ListedGroup]]:
    """Lists the groups of all coordinators."""
    replies = yield from call_all_brokers(core, ApiKey.LIST_GROUPS, ListGroupsRequest(), error_code)
    return [
        ListedGroup(g.group_id, g.group_type, g.protocol_type, g.group_state, node_id)
        for node_id, form in replies.items()
        for g in form.groups
    ]


def describe_group(core: Core, group: str) -> Steps[GroupView | None]:
    """Describes a group of either kind; None if there is none of this name."""
    classic = DescribeGroupsRequest(groups=[group])
    reply = yield from call_coordinator(
        core, group, ApiKey.DESCRIBE_GROUPS, classic, _code_of_group
    )
    found = reply.form.groups[0]
    # Before version 6 a group that does not exist has the state Dead.
    if not found.error_code and found.group_state != "Dead":
        return _classic(found)
    try:
        newer = ConsumerGroupDescribeRequest(group_ids=[group])
        reply = yield from call_coordinator(
            core, group, ApiKey.CONSUMER_GROUP_DESCRIBE, newer, _code_of_group
        )
    except UnsupportedByBroker:
        return None
    found = reply.form.groups[0]
    return None if found.error_code else _consumer(found)


def delete_group(core: Core, group: str) -> Steps[None]:
    """Deletes a group and its committed offsets; it must have no members."""
    request = DeleteGroupsRequest(groups_names=[group])
    yield from call_coordinator(core, group, ApiKey.DELETE_GROUPS, request, only("results"))


def _code_of_group(form: Any) -> tuple[int, str | None]:
    (group,) = form.groups
    # A group that does not exist is a valid answer here.
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return 0, None
    return group.error_code, group.error_message


def _classic(group: DescribedGroup) -> GroupView:
    members = tuple(_classic_member(member, group.protocol_type) for member in group.members)
    return GroupView(
        group.group_id,
        CLASSIC,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        members,
    )


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> MemberView:
    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    if protocol_type == "consumer":
        subscription = _read(ConsumerProtocolSubscription, member.member_metadata)
        assignment = _read(ConsumerProtocolAssignment, member.member_assignment)
        topics = tuple(sorted(subscription.topics)) if subscription else ()
        assigned = tuple(
            TopicPartition(each.topic, index)
            for each in (assignment.assigned_partitions if assignment else ())
            for index in sorted(each.partitions)
        )
    return MemberView(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        topics,
        assigned,
    )


def _read(form: type[F], data: bytes) -> F | None:
    """Reads a part of the consumer protocol: its version, then its fields.

    None if it is empty, as between two generations, or if a member sent something else.
    """
    try:
        (version,) = struct.unpack_from(">h", data)
        return reader(form, max(0, min(version, _NEWEST_CONSUMER_PROTOCOL)))(data, 2)[0]
    except (struct.error, IndexError, ValueError, WireError):
        return None


def _consumer(group: Any) -> GroupView:
    members = tuple(_consumer_member(member) for member in group.members)
    return GroupView(
        group.group_id, CONSUMER, group.group_state, "consumer", group.assignor_name, members
    )


def _consumer_member(member: Member) -> MemberView:
    return MemberView(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(member.subscribed_topic_names)),
        _assigned(member.assignment),
    )


def _assigned(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(each.topic_name, index)
        for each in assignment.topic_partitions
        for index in sorted(each.partitions)
    )
