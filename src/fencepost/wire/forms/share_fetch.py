# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ShareFetch (78): v1-2."""

from __future__ import annotations

from fencepost.wire.schema import Records, field, message, struct


@struct
class AcknowledgementBatch:
    first_offset: int = field("int64")
    last_offset: int = field("int64")
    acknowledge_types: list[int] = field("[]int8")


@struct
class FetchPartition:
    partition_index: int = field("int32")
    acknowledgement_batches: list[AcknowledgementBatch] = field("[]AcknowledgementBatch")


@struct
class FetchTopic:
    topic_id: bytes = field("uuid")
    partitions: list[FetchPartition] = field("[]FetchPartition")


@struct
class ForgottenTopic:
    topic_id: bytes = field("uuid")
    partitions: list[int] = field("[]int32")


@message(versions="1-2", flexible="1+")
class ShareFetchRequest:
    group_id: str | None = field("string", nullable="0+", default=None)
    member_id: str | None = field("string", nullable="0+")
    share_session_epoch: int = field("int32")
    max_wait_ms: int = field("int32")
    min_bytes: int = field("int32")
    max_bytes: int = field("int32", default=2147483647)
    max_records: int = field("int32")
    batch_size: int = field("int32")
    share_acquire_mode: int = field("int8", versions="2+", default=0)
    is_renew_ack: bool = field("bool", versions="2+", default=False)
    topics: list[FetchTopic] = field("[]FetchTopic")
    forgotten_topics_data: list[ForgottenTopic] = field("[]ForgottenTopic")


@struct
class LeaderIdAndEpoch:
    leader_id: int = field("int32")
    leader_epoch: int = field("int32")


@struct
class AcquiredRecords:
    first_offset: int = field("int64")
    last_offset: int = field("int64")
    delivery_count: int = field("int16")


@struct
class PartitionData:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    acknowledge_error_code: int = field("int16")
    acknowledge_error_message: str | None = field("string", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field("LeaderIdAndEpoch")
    records: Records = field("records")
    acquired_records: list[AcquiredRecords] = field("[]AcquiredRecords")


@struct
class ShareFetchableTopicResponse:
    topic_id: bytes = field("uuid")
    partitions: list[PartitionData] = field("[]PartitionData")


@struct
class NodeEndpoint:
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    rack: str | None = field("string", nullable="0+", default=None)


@message(versions="1-2", flexible="1+")
class ShareFetchResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field("int32")
    responses: list[ShareFetchableTopicResponse] = field("[]ShareFetchableTopicResponse")
    node_endpoints: list[NodeEndpoint] = field("[]NodeEndpoint")
