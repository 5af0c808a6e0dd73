# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ConsumerGroupHeartbeat (68): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicPartitions:
    topic_id: bytes = field("uuid")
    partitions: list[int] = field("[]int32")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    group_id: str = field("string")
    member_id: str = field("string")
    member_epoch: int = field("int32")
    instance_id: str | None = field("string", nullable="0+", default=None)
    rack_id: str | None = field("string", nullable="0+", default=None)
    rebalance_timeout_ms: int = field("int32", default=-1)
    subscribed_topic_names: list[str] | None = field("[]string", nullable="0+", default=None)
    subscribed_topic_regex: str | None = field("string", versions="1+", nullable="1+", default=None)
    server_assignor: str | None = field("string", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field("[]TopicPartitions", nullable="0+")


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = field("[]TopicPartitions")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    member_id: str | None = field("string", nullable="0+", default=None)
    member_epoch: int = field("int32")
    heartbeat_interval_ms: int = field("int32")
    assignment: Assignment | None = field("Assignment", nullable="0+", default=None)
