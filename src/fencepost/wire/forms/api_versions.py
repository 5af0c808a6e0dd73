# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ApiVersions (18): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-5", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = field("string", versions="3+")
    client_software_version: str = field("string", versions="3+")
    cluster_id: str | None = field("string", versions="5+", nullable="5+", default=None)
    node_id: int = field("int32", versions="5+", default=-1)


@struct
class ApiVersion:
    api_key: int = field("int16")
    min_version: int = field("int16")
    max_version: int = field("int16")


@struct
class SupportedFeatureKey:
    name: str = field("string")
    min_version: int = field("int16")
    max_version: int = field("int16")


@struct
class FinalizedFeatureKey:
    name: str = field("string")
    max_version_level: int = field("int16")
    min_version_level: int = field("int16")


@message(versions="0-5", flexible="3+")
class ApiVersionsResponse:
    error_code: int = field("int16")
    api_keys: list[ApiVersion] = field("[]ApiVersion")
    throttle_time_ms: int = field("int32", versions="1+")
    supported_features: list[SupportedFeatureKey] = field(
        "[]SupportedFeatureKey", versions="3+", tag=0
    )
    finalized_features_epoch: int = field("int64", versions="3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field(
        "[]FinalizedFeatureKey", versions="3+", tag=2
    )
    zk_migration_ready: bool = field("bool", versions="3+", tag=3, default=False)
