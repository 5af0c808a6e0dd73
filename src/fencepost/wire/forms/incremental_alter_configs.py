# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""IncrementalAlterConfigs (44): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class AlterableConfig:
    name: str = field("string")
    config_operation: int = field("int8")
    value: str | None = field("string", nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = field("int8")
    resource_name: str = field("string")
    configs: list[AlterableConfig] = field("[]AlterableConfig")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = field("[]AlterConfigsResource")
    validate_only: bool = field("bool")


@struct
class AlterConfigsResourceResponse:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    resource_type: int = field("int8")
    resource_name: str = field("string")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = field("int32")
    responses: list[AlterConfigsResourceResponse] = field("[]AlterConfigsResourceResponse")
