"""SyncGroup (14): v0-5

Behaviour: the leader sends the assignment of its generation, and every member receives its own.
           Answers when the assignment is durable, or at once for a stable group.
Versions:  v3 static members (KIP-345); v4 flexible; v5 requires the protocol (KIP-559).
Errors:    INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
           REBALANCE_IN_PROGRESS, INCONSISTENT_GROUP_PROTOCOL, GROUP_AUTHORIZATION_FAILED,
           NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import Sync, SyncReply
from fencepost.wire.forms.sync_group import SyncGroupRequest, SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL: Final = 5


def handle(request: SyncGroupRequest, context: Context) -> SyncGroupResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("READ", "GROUP", request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if context.api_version >= FIRST_VERSION_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    parked = Parked()
    context.services.groups.sync(
        _read(request, context), lambda reply: parked.answer(_respond(reply))
    )
    return parked


def _read(request: SyncGroupRequest, context: Context) -> Sync:
    return Sync(
        group_id=request.group_id,
        ticket=context.services.groups.new_ticket(),
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        client_address=context.client_address,
    )


def _respond(reply: SyncReply) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
