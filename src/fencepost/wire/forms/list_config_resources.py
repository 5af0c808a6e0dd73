# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ListConfigResources (74): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: list[int] = field("[]int8", versions="1+")


@struct
class ConfigResource:
    resource_name: str = field("string")
    resource_type: int = field("int8", versions="1+", default=16)


@message(versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    config_resources: list[ConfigResource] = field("[]ConfigResource")
