# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ShareGroupHeartbeat (76): v1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="1-1", flexible="1+")
class ShareGroupHeartbeatRequest:
    group_id: str = field("string")
    member_id: str = field("string")
    member_epoch: int = field("int32")
    rack_id: str | None = field("string", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field("[]string", nullable="0+", default=None)


@struct
class TopicPartitions:
    topic_id: bytes = field("uuid")
    partitions: list[int] = field("[]int32")


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = field("[]TopicPartitions")


@message(versions="1-1", flexible="1+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    member_id: str | None = field("string", nullable="0+", default=None)
    member_epoch: int = field("int32")
    heartbeat_interval_ms: int = field("int32")
    assignment: Assignment | None = field("Assignment", nullable="0+", default=None)
