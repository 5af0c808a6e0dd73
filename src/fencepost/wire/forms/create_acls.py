# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""CreateAcls (30): v1-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class AclCreation:
    resource_type: int = field("int8")
    resource_name: str = field("string")
    resource_pattern_type: int = field("int8", default=3)
    principal: str = field("string")
    host: str = field("string")
    operation: int = field("int8")
    permission_type: int = field("int8")


@message(versions="1-3", flexible="2+")
class CreateAclsRequest:
    creations: list[AclCreation] = field("[]AclCreation")


@struct
class AclCreationResult:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")


@message(versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: int = field("int32")
    results: list[AclCreationResult] = field("[]AclCreationResult")
