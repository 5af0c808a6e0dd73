# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DeleteAcls (31): v1-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class DeleteAclsFilter:
    resource_type_filter: int = field("int8")
    resource_name_filter: str | None = field("string", nullable="0+")
    pattern_type_filter: int = field("int8", default=3)
    principal_filter: str | None = field("string", nullable="0+")
    host_filter: str | None = field("string", nullable="0+")
    operation: int = field("int8")
    permission_type: int = field("int8")


@message(versions="1-3", flexible="2+")
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = field("[]DeleteAclsFilter")


@struct
class DeleteAclsMatchingAcl:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    resource_type: int = field("int8")
    resource_name: str = field("string")
    pattern_type: int = field("int8", default=3)
    principal: str = field("string")
    host: str = field("string")
    operation: int = field("int8")
    permission_type: int = field("int8")


@struct
class DeleteAclsFilterResult:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = field("[]DeleteAclsMatchingAcl")


@message(versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: int = field("int32")
    filter_results: list[DeleteAclsFilterResult] = field("[]DeleteAclsFilterResult")
