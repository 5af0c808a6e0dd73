# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""OffsetForLeaderEpoch (23): v2-4."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class OffsetForLeaderPartition:
    partition: int = field("int32")
    current_leader_epoch: int = field("int32", default=-1)
    leader_epoch: int = field("int32")


@struct
class OffsetForLeaderTopic:
    topic: str = field("string")
    partitions: list[OffsetForLeaderPartition] = field("[]OffsetForLeaderPartition")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    replica_id: int = field("int32", versions="3+", default=-2)
    topics: list[OffsetForLeaderTopic] = field("[]OffsetForLeaderTopic")


@struct
class EpochEndOffset:
    error_code: int = field("int16")
    partition: int = field("int32")
    leader_epoch: int = field("int32", default=-1)
    end_offset: int = field("int64", default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = field("string")
    partitions: list[EpochEndOffset] = field("[]EpochEndOffset")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = field("int32")
    topics: list[OffsetForLeaderTopicResult] = field("[]OffsetForLeaderTopicResult")
