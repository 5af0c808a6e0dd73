# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ListOffsets (2): v1-11."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class ListOffsetsPartition:
    partition_index: int = field("int32")
    current_leader_epoch: int = field("int32", versions="4+", default=-1)
    timestamp: int = field("int64")


@struct
class ListOffsetsTopic:
    name: str = field("string")
    partitions: list[ListOffsetsPartition] = field("[]ListOffsetsPartition")


@message(versions="1-11", flexible="6+")
class ListOffsetsRequest:
    replica_id: int = field("int32")
    isolation_level: int = field("int8", versions="2+")
    topics: list[ListOffsetsTopic] = field("[]ListOffsetsTopic")
    timeout_ms: int = field("int32", versions="10+")


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    timestamp: int = field("int64", default=-1)
    offset: int = field("int64", default=-1)
    leader_epoch: int = field("int32", versions="4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = field("string")
    partitions: list[ListOffsetsPartitionResponse] = field("[]ListOffsetsPartitionResponse")


@message(versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: int = field("int32", versions="2+")
    topics: list[ListOffsetsTopicResponse] = field("[]ListOffsetsTopicResponse")
