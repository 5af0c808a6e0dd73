# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""JoinGroup (11): v0-9."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class JoinGroupRequestProtocol:
    name: str = field("string")
    metadata: bytes = field("bytes")


@message(versions="0-9", flexible="6+")
class JoinGroupRequest:
    group_id: str = field("string")
    session_timeout_ms: int = field("int32")
    rebalance_timeout_ms: int = field("int32", versions="1+", default=-1)
    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="5+", nullable="5+", default=None)
    protocol_type: str = field("string")
    protocols: list[JoinGroupRequestProtocol] = field("[]JoinGroupRequestProtocol")
    reason: str | None = field("string", versions="8+", nullable="8+", default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="5+", nullable="5+", default=None)
    metadata: bytes = field("bytes")


@message(versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: int = field("int32", versions="2+")
    error_code: int = field("int16")
    generation_id: int = field("int32", default=-1)
    protocol_type: str | None = field("string", versions="7+", nullable="7+", default=None)
    protocol_name: str | None = field("string", nullable="7+")
    leader: str = field("string")
    skip_assignment: bool = field("bool", versions="9+", default=False)
    member_id: str = field("string")
    members: list[JoinGroupResponseMember] = field("[]JoinGroupResponseMember")
