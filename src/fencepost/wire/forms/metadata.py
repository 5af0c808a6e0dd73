# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""Metadata (3): v0-13."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class MetadataRequestTopic:
    topic_id: bytes = field("uuid", versions="10+")
    name: str | None = field("string", nullable="10+")


@message(versions="0-13", flexible="9+")
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = field("[]MetadataRequestTopic", nullable="1+")
    allow_auto_topic_creation: bool = field("bool", versions="4+", default=True)
    include_cluster_authorized_operations: bool = field("bool", versions="8-10")
    include_topic_authorized_operations: bool = field("bool", versions="8+")


@struct
class MetadataResponseBroker:
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    rack: str | None = field("string", versions="1+", nullable="1+", default=None)


@struct
class MetadataResponsePartition:
    error_code: int = field("int16")
    partition_index: int = field("int32")
    leader_id: int = field("int32")
    leader_epoch: int = field("int32", versions="7+", default=-1)
    replica_nodes: list[int] = field("[]int32")
    isr_nodes: list[int] = field("[]int32")
    offline_replicas: list[int] = field("[]int32", versions="5+")


@struct
class MetadataResponseTopic:
    error_code: int = field("int16")
    name: str | None = field("string", nullable="12+")
    topic_id: bytes = field("uuid", versions="10+")
    is_internal: bool = field("bool", versions="1+", default=False)
    partitions: list[MetadataResponsePartition] = field("[]MetadataResponsePartition")
    topic_authorized_operations: int = field("int32", versions="8+", default=-2147483648)


@message(versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int = field("int32", versions="3+")
    brokers: list[MetadataResponseBroker] = field("[]MetadataResponseBroker")
    cluster_id: str | None = field("string", versions="2+", nullable="2+", default=None)
    controller_id: int = field("int32", versions="1+", default=-1)
    topics: list[MetadataResponseTopic] = field("[]MetadataResponseTopic")
    cluster_authorized_operations: int = field("int32", versions="8-10", default=-2147483648)
    error_code: int = field("int16", versions="13+")
