# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeTopicPartitions (75): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicRequest:
    name: str = field("string")


@struct
class Cursor:
    topic_name: str = field("string")
    partition_index: int = field("int32")


@message(versions="0-0", flexible="0+")
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = field("[]TopicRequest")
    response_partition_limit: int = field("int32", default=2000)
    cursor: Cursor | None = field("Cursor", nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = field("int16")
    partition_index: int = field("int32")
    leader_id: int = field("int32")
    leader_epoch: int = field("int32", default=-1)
    replica_nodes: list[int] = field("[]int32")
    isr_nodes: list[int] = field("[]int32")
    eligible_leader_replicas: list[int] | None = field("[]int32", nullable="0+", default=None)
    last_known_elr: list[int] | None = field("[]int32", nullable="0+", default=None)
    offline_replicas: list[int] = field("[]int32")


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = field("int16")
    name: str | None = field("string", nullable="0+")
    topic_id: bytes = field("uuid")
    is_internal: bool = field("bool", default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        "[]DescribeTopicPartitionsResponsePartition"
    )
    topic_authorized_operations: int = field("int32", default=-2147483648)


@message(versions="0-0", flexible="0+")
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = field("int32")
    topics: list[DescribeTopicPartitionsResponseTopic] = field(
        "[]DescribeTopicPartitionsResponseTopic"
    )
    next_cursor: Cursor | None = field("Cursor", nullable="0+", default=None)
