"""DescribeGroups (15): v0-6

Behaviour: groups with their members; protocol metadata and assignments only for a stable group. A
           group that does not exist has the state Dead.
Versions:  v3 authorized operations (KIP-430); v4 static members; v5 flexible; v6 a group that
           does not exist has the error GROUP_ID_NOT_FOUND and a message (KIP-1043).
Errors:    GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR,
           COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import GROUP, NOT_REQUESTED, authorized_operations
from fencepost.broker.context import Context
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.lifecycle import State
from fencepost.coordinator.group.views import GroupView, describe_group
from fencepost.wire.forms.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

FIRST_VERSION_WITH_NOT_FOUND: Final = 6


def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse | Parked:
    """Serves one request; see above."""

    def tell(group_id: str) -> DescribedGroup:
        group = _describe(group_id, context)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(context, GROUP, group_id)
        return group

    response = DescribeGroupsResponse()
    steps = fill(response.groups, request.groups, tell)
    return in_turns(context.services.runtime, steps, response, holds_followers=True)


def _describe(group_id: str, context: Context) -> DescribedGroup:
    if not context.authorize("DESCRIBE", GROUP, group_id):
        return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    found = context.services.groups.find(group_id)
    if isinstance(found, ErrorCode):
        return _refused(group_id, found)
    view = describe_group(found.state, group_id)
    return _absent(group_id, context) if view is None else _show(view)


def _refused(group_id: str, error: ErrorCode) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error, authorized_operations=NOT_REQUESTED)


def _absent(group_id: str, context: Context) -> DescribedGroup:
    group = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
    if context.api_version >= FIRST_VERSION_WITH_NOT_FOUND:
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"Group {group_id} not found."
    return group


def _show(view: GroupView) -> DescribedGroup:
    return DescribedGroup(
        group_id=view.group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ],
    )
