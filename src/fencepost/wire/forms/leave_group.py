# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""LeaveGroup (13): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class MemberIdentity:
    member_id: str = field("string")
    group_instance_id: str | None = field("string", nullable="0+", default=None)
    reason: str | None = field("string", versions="5+", nullable="5+", default=None)


@message(versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: str = field("string")
    member_id: str = field("string", versions="0-2")
    members: list[MemberIdentity] = field("[]MemberIdentity", versions="3+")


@struct
class MemberResponse:
    member_id: str = field("string")
    group_instance_id: str | None = field("string", nullable="0+")
    error_code: int = field("int16")


@message(versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    error_code: int = field("int16")
    members: list[MemberResponse] = field("[]MemberResponse", versions="3+")
