# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ListPartitionReassignments (46): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class ListPartitionReassignmentsTopics:
    name: str = field("string")
    partition_indexes: list[int] = field("[]int32")


@message(versions="0-0", flexible="0+")
class ListPartitionReassignmentsRequest:
    timeout_ms: int = field("int32", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        "[]ListPartitionReassignmentsTopics", nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = field("int32")
    replicas: list[int] = field("[]int32")
    adding_replicas: list[int] = field("[]int32")
    removing_replicas: list[int] = field("[]int32")


@struct
class OngoingTopicReassignment:
    name: str = field("string")
    partitions: list[OngoingPartitionReassignment] = field("[]OngoingPartitionReassignment")


@message(versions="0-0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    topics: list[OngoingTopicReassignment] = field("[]OngoingTopicReassignment")
