# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeQuorum (55): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class PartitionData:
    partition_index: int = field("int32")


@struct
class TopicData:
    topic_name: str = field("string")
    partitions: list[PartitionData] = field("[]PartitionData")


@message(versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: list[TopicData] = field("[]TopicData")


@struct
class ReplicaState:
    replica_id: int = field("int32")
    replica_directory_id: bytes = field("uuid", versions="2+")
    log_end_offset: int = field("int64")
    last_fetch_timestamp: int = field("int64", versions="1+", default=-1)
    last_caught_up_timestamp: int = field("int64", versions="1+", default=-1)


@struct
class DescribedPartition:
    partition_index: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", versions="2+", nullable="2+")
    leader_id: int = field("int32")
    leader_epoch: int = field("int32")
    high_watermark: int = field("int64")
    current_voters: list[ReplicaState] = field("[]ReplicaState")
    observers: list[ReplicaState] = field("[]ReplicaState")


@struct
class DescribedTopic:
    topic_name: str = field("string")
    partitions: list[DescribedPartition] = field("[]DescribedPartition")


@struct
class Listener:
    name: str = field("string")
    host: str = field("string")
    port: int = field("uint16")


@struct
class Node:
    node_id: int = field("int32")
    listeners: list[Listener] = field("[]Listener")


@message(versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int = field("int16")
    error_message: str | None = field("string", versions="2+", nullable="2+")
    topics: list[DescribedTopic] = field("[]DescribedTopic")
    nodes: list[Node] = field("[]Node", versions="2+")
