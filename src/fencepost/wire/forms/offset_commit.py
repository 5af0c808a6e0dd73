# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""OffsetCommit (8): v2-10."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class OffsetCommitRequestPartition:
    partition_index: int = field("int32")
    committed_offset: int = field("int64")
    committed_leader_epoch: int = field("int32", versions="6+", default=-1)
    committed_metadata: str | None = field("string", nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: str = field("string", versions="2-9")
    topic_id: bytes = field("uuid", versions="10+")
    partitions: list[OffsetCommitRequestPartition] = field("[]OffsetCommitRequestPartition")


@message(versions="2-10", flexible="8+")
class OffsetCommitRequest:
    group_id: str = field("string")
    generation_id_or_member_epoch: int = field("int32", default=-1)
    member_id: str = field("string")
    retention_time_ms: int = field("int64", versions="2-4", default=-1)
    group_instance_id: str | None = field("string", versions="7+", nullable="7+", default=None)
    topics: list[OffsetCommitRequestTopic] = field("[]OffsetCommitRequestTopic")


@struct
class OffsetCommitResponsePartition:
    partition_index: int = field("int32")
    error_code: int = field("int16")


@struct
class OffsetCommitResponseTopic:
    name: str = field("string", versions="2-9")
    topic_id: bytes = field("uuid", versions="10+")
    partitions: list[OffsetCommitResponsePartition] = field("[]OffsetCommitResponsePartition")


@message(versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int = field("int32", versions="3+")
    topics: list[OffsetCommitResponseTopic] = field("[]OffsetCommitResponseTopic")
