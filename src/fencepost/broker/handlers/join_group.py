"""JoinGroup (11): v0-9

Behaviour: adds a member to a group; answers when the next generation begins: when all members have
           joined, after the rebalance timeout, or, for the first generation of an empty group,
           after group.initial.rebalance.delay.ms. A follower that rejoins unchanged is answered at
           once.
Versions:  v0 has one timeout; v4 a member without an id gets one first (KIP-394); v5 static
           members (KIP-345); v6 flexible; v7 protocol type and name may be null; v8 a reason, which
           is not used; v9 skip_assignment.
Errors:    INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, MEMBER_ID_REQUIRED,
           FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED,
           GROUP_AUTHORIZATION_FAILED, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
           COORDINATOR_NOT_AVAILABLE, REBALANCE_IN_PROGRESS (a newer JoinGroup of the member
           has replaced this one).
"""

from __future__ import annotations

from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.context import Context
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import Join, JoinReply
from fencepost.wire.forms.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

FIRST_VERSION_WITH_REQUIRED_ID: Final = 4
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT: Final = 9


def handle(request: JoinGroupRequest, context: Context) -> JoinGroupResponse | Parked:
    """Serves one request; see above."""
    if not context.authorize("READ", "GROUP", request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return _respond(JoinReply(error, request.member_id))
    parked = Parked()
    context.services.groups.join(
        _read(request, context), lambda reply: parked.answer(_respond(reply))
    )
    return parked


def _read(request: JoinGroupRequest, context: Context) -> Join:
    groups = context.services.groups
    client_id = context.client_id or ""
    instance_id = request.group_instance_id
    return Join(
        group_id=request.group_id,
        ticket=groups.new_ticket(),
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        new_member_id=groups.new_member_id(client_id if instance_id is None else instance_id),
        member_id=request.member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        # Java prints an address with a leading slash, and Kafka's tools show it.
        client_host=f"/{context.client_host}",
        must_know_its_id=context.api_version >= FIRST_VERSION_WITH_REQUIRED_ID,
        can_skip_assignment=context.api_version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
    )


def _respond(reply: JoinReply) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in reply.members
        ],
    )
