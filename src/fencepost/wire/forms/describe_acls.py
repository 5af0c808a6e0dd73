# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeAcls (29): v1-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: int = field("int8")
    resource_name_filter: str | None = field("string", nullable="0+")
    pattern_type_filter: int = field("int8", default=3)
    principal_filter: str | None = field("string", nullable="0+")
    host_filter: str | None = field("string", nullable="0+")
    operation: int = field("int8")
    permission_type: int = field("int8")


@struct
class AclDescription:
    principal: str = field("string")
    host: str = field("string")
    operation: int = field("int8")
    permission_type: int = field("int8")


@struct
class DescribeAclsResource:
    resource_type: int = field("int8")
    resource_name: str = field("string")
    pattern_type: int = field("int8", default=3)
    acls: list[AclDescription] = field("[]AclDescription")


@message(versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    resources: list[DescribeAclsResource] = field("[]DescribeAclsResource")
