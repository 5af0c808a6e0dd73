# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DeleteRecords (21): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class DeleteRecordsPartition:
    partition_index: int = field("int32")
    offset: int = field("int64")


@struct
class DeleteRecordsTopic:
    name: str = field("string")
    partitions: list[DeleteRecordsPartition] = field("[]DeleteRecordsPartition")


@message(versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = field("[]DeleteRecordsTopic")
    timeout_ms: int = field("int32")


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = field("int32")
    low_watermark: int = field("int64")
    error_code: int = field("int16")


@struct
class DeleteRecordsTopicResult:
    name: str = field("string")
    partitions: list[DeleteRecordsPartitionResult] = field("[]DeleteRecordsPartitionResult")


@message(versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int = field("int32")
    topics: list[DeleteRecordsTopicResult] = field("[]DeleteRecordsTopicResult")
