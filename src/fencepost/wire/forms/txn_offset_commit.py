# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""TxnOffsetCommit (28): v0-6."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = field("int32")
    committed_offset: int = field("int64")
    committed_leader_epoch: int = field("int32", versions="2+", default=-1)
    committed_metadata: str | None = field("string", nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = field("string", versions="0-5")
    topic_id: bytes = field("uuid", versions="6+")
    partitions: list[TxnOffsetCommitRequestPartition] = field("[]TxnOffsetCommitRequestPartition")


@message(versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    transactional_id: str = field("string")
    group_id: str = field("string")
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    generation_id: int = field("int32", versions="3+", default=-1)
    member_id: str = field("string", versions="3+", default="")
    group_instance_id: str | None = field("string", versions="3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field("[]TxnOffsetCommitRequestTopic")


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = field("int32")
    error_code: int = field("int16")


@struct
class TxnOffsetCommitResponseTopic:
    name: str = field("string", versions="0-5")
    topic_id: bytes = field("uuid", versions="6+")
    partitions: list[TxnOffsetCommitResponsePartition] = field("[]TxnOffsetCommitResponsePartition")


@message(versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: int = field("int32")
    topics: list[TxnOffsetCommitResponseTopic] = field("[]TxnOffsetCommitResponseTopic")
