# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeGroups (15): v0-6."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: list[str] = field("[]string")
    include_authorized_operations: bool = field("bool", versions="3+")


@struct
class DescribedGroupMember:
    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="4+", nullable="4+", default=None)
    client_id: str = field("string")
    client_host: str = field("string")
    member_metadata: bytes = field("bytes")
    member_assignment: bytes = field("bytes")


@struct
class DescribedGroup:
    error_code: int = field("int16")
    error_message: str | None = field("string", versions="6+", nullable="6+", default=None)
    group_id: str = field("string")
    group_state: str = field("string")
    protocol_type: str = field("string")
    protocol_data: str = field("string")
    members: list[DescribedGroupMember] = field("[]DescribedGroupMember")
    authorized_operations: int = field("int32", versions="3+", default=-2147483648)


@message(versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    groups: list[DescribedGroup] = field("[]DescribedGroup")
