# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ShareAcknowledge (79): v1-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class AcknowledgementBatch:
    first_offset: int = field("int64")
    last_offset: int = field("int64")
    acknowledge_types: list[int] = field("[]int8")


@struct
class AcknowledgePartition:
    partition_index: int = field("int32")
    acknowledgement_batches: list[AcknowledgementBatch] = field("[]AcknowledgementBatch")


@struct
class AcknowledgeTopic:
    topic_id: bytes = field("uuid")
    partitions: list[AcknowledgePartition] = field("[]AcknowledgePartition")


@message(versions="1-2", flexible="1+")
class ShareAcknowledgeRequest:
    group_id: str | None = field("string", nullable="0+", default=None)
    member_id: str | None = field("string", nullable="0+")
    share_session_epoch: int = field("int32")
    is_renew_ack: bool = field("bool", versions="2+", default=False)
    topics: list[AcknowledgeTopic] = field("[]AcknowledgeTopic")


@struct
class LeaderIdAndEpoch:
    leader_id: int = field("int32")
    leader_epoch: int = field("int32")


@struct
class PartitionData:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field("LeaderIdAndEpoch")


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: bytes = field("uuid")
    partitions: list[PartitionData] = field("[]PartitionData")


@struct
class NodeEndpoint:
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    rack: str | None = field("string", nullable="0+", default=None)


@message(versions="1-2", flexible="1+")
class ShareAcknowledgeResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field("int32", versions="2+")
    responses: list[ShareAcknowledgeTopicResponse] = field("[]ShareAcknowledgeTopicResponse")
    node_endpoints: list[NodeEndpoint] = field("[]NodeEndpoint")
