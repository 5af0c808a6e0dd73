# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeProducers (61): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicRequest:
    name: str = field("string")
    partition_indexes: list[int] = field("[]int32")


@message(versions="0-0", flexible="0+")
class DescribeProducersRequest:
    topics: list[TopicRequest] = field("[]TopicRequest")


@struct
class ProducerState:
    producer_id: int = field("int64")
    producer_epoch: int = field("int32")
    last_sequence: int = field("int32", default=-1)
    last_timestamp: int = field("int64", default=-1)
    coordinator_epoch: int = field("int32")
    current_txn_start_offset: int = field("int64", default=-1)


@struct
class PartitionResponse:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    active_producers: list[ProducerState] = field("[]ProducerState")


@struct
class TopicResponse:
    name: str = field("string")
    partitions: list[PartitionResponse] = field("[]PartitionResponse")


@message(versions="0-0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int = field("int32")
    topics: list[TopicResponse] = field("[]TopicResponse")
