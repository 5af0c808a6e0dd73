# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ConsumerGroupDescribe (69): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = field("[]string")
    include_authorized_operations: bool = field("bool")


@struct
class TopicPartitions:
    topic_id: bytes = field("uuid")
    topic_name: str = field("string")
    partitions: list[int] = field("[]int32")


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = field("[]TopicPartitions")


@struct
class Member:
    member_id: str = field("string")
    instance_id: str | None = field("string", nullable="0+", default=None)
    rack_id: str | None = field("string", nullable="0+", default=None)
    member_epoch: int = field("int32")
    client_id: str = field("string")
    client_host: str = field("string")
    subscribed_topic_names: list[str] = field("[]string")
    subscribed_topic_regex: str | None = field("string", nullable="0+", default=None)
    assignment: Assignment = field("Assignment")
    target_assignment: Assignment = field("Assignment")
    member_type: int = field("int8", versions="1+", default=-1)


@struct
class DescribedGroup:
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    group_id: str = field("string")
    group_state: str = field("string")
    group_epoch: int = field("int32")
    assignment_epoch: int = field("int32")
    assignor_name: str = field("string")
    members: list[Member] = field("[]Member")
    authorized_operations: int = field("int32", default=-2147483648)


@message(versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = field("int32")
    groups: list[DescribedGroup] = field("[]DescribedGroup")
