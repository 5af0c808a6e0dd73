"""Heartbeat (12): v0-4

Behaviour: keeps the session of a member alive. REBALANCE_IN_PROGRESS asks it to join again. While
           the coordinator loads its log, every heartbeat succeeds.
Versions:  v3 static members (KIP-345); v4 flexible.
Errors:    INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
           REBALANCE_IN_PROGRESS, GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.coordinator.group.events import Heartbeat
from fencepost.wire.forms.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    """Serves one request; see above."""
    if not context.authorize("READ", "GROUP", request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    event = Heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        request.group_instance_id,
        context.client_address,
    )
    return HeartbeatResponse(error_code=context.services.groups.heartbeat(event))
