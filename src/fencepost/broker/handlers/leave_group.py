"""LeaveGroup (13): v0-5

Behaviour: removes members from a group, by member id or, for administrators, static members by
           instance id. The remaining members rebalance. If the group becomes empty, answers when
           that is durable.
Versions:  v0-2 one member, whose error is that of the reply; v3 several (KIP-345); v4 flexible; v5
           reasons, not used.
Errors:    INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, GROUP_AUTHORIZATION_FAILED,
           NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import Leave, Leaver, LeaveReply
from fencepost.wire.forms.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


def handle(request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("READ", "GROUP", request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    leavers = tuple(Leaver(each.member_id, each.group_instance_id) for each in request.members)
    parked = Parked()
    context.services.groups.leave(
        Leave(request.group_id, leavers), lambda reply: parked.answer(_respond(leavers, reply))
    )
    return parked


def _respond(leavers: tuple[Leaver, ...], reply: LeaveReply | ErrorCode) -> LeaveGroupResponse:
    if isinstance(reply, ErrorCode):
        return LeaveGroupResponse(error_code=reply)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=leaver.member_id,
                group_instance_id=leaver.group_instance_id,
                error_code=error,
            )
            for leaver, error in zip(leavers, reply.errors, strict=True)
        ]
    )
