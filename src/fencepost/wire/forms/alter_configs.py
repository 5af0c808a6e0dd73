# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""AlterConfigs (33): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class AlterableConfig:
    name: str = field("string")
    value: str | None = field("string", nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = field("int8")
    resource_name: str = field("string")
    configs: list[AlterableConfig] = field("[]AlterableConfig")


@message(versions="0-2", flexible="2+")
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = field("[]AlterConfigsResource")
    validate_only: bool = field("bool")


@struct
class AlterConfigsResourceResponse:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    resource_type: int = field("int8")
    resource_name: str = field("string")


@message(versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int = field("int32")
    responses: list[AlterConfigsResourceResponse] = field("[]AlterConfigsResourceResponse")
