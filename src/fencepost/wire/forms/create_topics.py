# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""CreateTopics (19): v2-7."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class CreatableReplicaAssignment:
    partition_index: int = field("int32")
    broker_ids: list[int] = field("[]int32")


@struct
class CreatableTopicConfig:
    name: str = field("string")
    value: str | None = field("string", nullable="0+")


@struct
class CreatableTopic:
    name: str = field("string")
    num_partitions: int = field("int32")
    replication_factor: int = field("int16")
    assignments: list[CreatableReplicaAssignment] = field("[]CreatableReplicaAssignment")
    configs: list[CreatableTopicConfig] = field("[]CreatableTopicConfig")


@message(versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: list[CreatableTopic] = field("[]CreatableTopic")
    timeout_ms: int = field("int32", default=60000)
    validate_only: bool = field("bool", default=False)


@struct
class CreatableTopicConfigs:
    name: str = field("string")
    value: str | None = field("string", nullable="0+")
    read_only: bool = field("bool")
    config_source: int = field("int8", default=-1)
    is_sensitive: bool = field("bool")


@struct
class CreatableTopicResult:
    name: str = field("string")
    topic_id: bytes = field("uuid", versions="7+")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    topic_config_error_code: int = field("int16", versions="5+", tag=0, default=0)
    num_partitions: int = field("int32", versions="5+", default=-1)
    replication_factor: int = field("int16", versions="5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = field(
        "[]CreatableTopicConfigs", versions="5+", nullable="5+"
    )


@message(versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int = field("int32")
    topics: list[CreatableTopicResult] = field("[]CreatableTopicResult")
