# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""Fetch (1): v4-18."""

from __future__ import annotations

from fencepost.wire.schema import Records, field, message, struct


@struct
class FetchPartition:
    partition: int = field("int32")
    current_leader_epoch: int = field("int32", versions="9+", default=-1)
    fetch_offset: int = field("int64")
    last_fetched_epoch: int = field("int32", versions="12+", default=-1)
    log_start_offset: int = field("int64", versions="5+", default=-1)
    partition_max_bytes: int = field("int32")
    replica_directory_id: bytes = field("uuid", versions="17+", tag=0)
    high_watermark: int = field("int64", versions="18+", tag=1, default=9223372036854775807)


@struct
class FetchTopic:
    topic: str = field("string", versions="4-12")
    topic_id: bytes = field("uuid", versions="13+")
    partitions: list[FetchPartition] = field("[]FetchPartition")


@struct
class ForgottenTopic:
    topic: str = field("string", versions="7-12")
    topic_id: bytes = field("uuid", versions="13+")
    partitions: list[int] = field("[]int32")


@struct
class ReplicaState:
    replica_id: int = field("int32", default=-1)
    replica_epoch: int = field("int64", default=-1)


@message(versions="4-18", flexible="12+")
class FetchRequest:
    cluster_id: str | None = field("string", versions="12+", nullable="12+", tag=0, default=None)
    replica_id: int = field("int32", versions="4-14", default=-1)
    replica_state: ReplicaState | None = field("ReplicaState", versions="15+", tag=1)
    max_wait_ms: int = field("int32")
    min_bytes: int = field("int32")
    max_bytes: int = field("int32", default=2147483647)
    isolation_level: int = field("int8", default=0)
    session_id: int = field("int32", versions="7+", default=0)
    session_epoch: int = field("int32", versions="7+", default=-1)
    topics: list[FetchTopic] = field("[]FetchTopic")
    forgotten_topics_data: list[ForgottenTopic] = field("[]ForgottenTopic", versions="7+")
    rack_id: str = field("string", versions="11+", default="")


@struct
class AbortedTransaction:
    producer_id: int = field("int64")
    first_offset: int = field("int64")


@struct
class EpochEndOffset:
    epoch: int = field("int32", default=-1)
    end_offset: int = field("int64", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = field("int32", default=-1)
    leader_epoch: int = field("int32", default=-1)


@struct
class SnapshotId:
    end_offset: int = field("int64", default=-1)
    epoch: int = field("int32", default=-1)


@struct
class PartitionData:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    high_watermark: int = field("int64")
    last_stable_offset: int = field("int64", default=-1)
    log_start_offset: int = field("int64", versions="5+", default=-1)
    diverging_epoch: EpochEndOffset | None = field("EpochEndOffset", versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = field("LeaderIdAndEpoch", versions="12+", tag=1)
    snapshot_id: SnapshotId | None = field("SnapshotId", versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        "[]AbortedTransaction", nullable="0+"
    )
    preferred_read_replica: int = field("int32", versions="11+", default=-1)
    records: Records | None = field("records", nullable="0+")


@struct
class FetchableTopicResponse:
    topic: str = field("string", versions="4-12")
    topic_id: bytes = field("uuid", versions="13+")
    partitions: list[PartitionData] = field("[]PartitionData")


@struct
class NodeEndpoint:
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    rack: str | None = field("string", nullable="0+", default=None)


@message(versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16", versions="7+")
    session_id: int = field("int32", versions="7+", default=0)
    responses: list[FetchableTopicResponse] = field("[]FetchableTopicResponse")
    node_endpoints: list[NodeEndpoint] = field("[]NodeEndpoint", versions="16+", tag=0)
