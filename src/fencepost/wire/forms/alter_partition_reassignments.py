# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""AlterPartitionReassignments (45): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class ReassignablePartition:
    partition_index: int = field("int32")
    replicas: list[int] | None = field("[]int32", nullable="0+", default=None)


@struct
class ReassignableTopic:
    name: str = field("string")
    partitions: list[ReassignablePartition] = field("[]ReassignablePartition")


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = field("int32", default=60000)
    allow_replication_factor_change: bool = field("bool", versions="1+", default=True)
    topics: list[ReassignableTopic] = field("[]ReassignableTopic")


@struct
class ReassignablePartitionResponse:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")


@struct
class ReassignableTopicResponse:
    name: str = field("string")
    partitions: list[ReassignablePartitionResponse] = field("[]ReassignablePartitionResponse")


@message(versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = field("int32")
    allow_replication_factor_change: bool = field("bool", versions="1+", default=True)
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    responses: list[ReassignableTopicResponse] = field("[]ReassignableTopicResponse")
