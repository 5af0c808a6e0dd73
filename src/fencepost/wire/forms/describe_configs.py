# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeConfigs (32): v1-4."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class DescribeConfigsResource:
    resource_type: int = field("int8")
    resource_name: str = field("string")
    configuration_keys: list[str] | None = field("[]string", nullable="0+")


@message(versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = field("[]DescribeConfigsResource")
    include_synonyms: bool = field("bool", default=False)
    include_documentation: bool = field("bool", versions="3+", default=False)


@struct
class DescribeConfigsSynonym:
    name: str = field("string")
    value: str | None = field("string", nullable="0+")
    source: int = field("int8")


@struct
class DescribeConfigsResourceResult:
    name: str = field("string")
    value: str | None = field("string", nullable="0+")
    read_only: bool = field("bool")
    config_source: int = field("int8", default=-1)
    is_sensitive: bool = field("bool")
    synonyms: list[DescribeConfigsSynonym] = field("[]DescribeConfigsSynonym")
    config_type: int = field("int8", versions="3+", default=0)
    documentation: str | None = field("string", versions="3+", nullable="3+")


@struct
class DescribeConfigsResult:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    resource_type: int = field("int8")
    resource_name: str = field("string")
    configs: list[DescribeConfigsResourceResult] = field("[]DescribeConfigsResourceResult")


@message(versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: int = field("int32")
    results: list[DescribeConfigsResult] = field("[]DescribeConfigsResult")
