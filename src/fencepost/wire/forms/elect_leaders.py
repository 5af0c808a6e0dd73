# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ElectLeaders (43): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicPartitions:
    topic: str = field("string")
    partitions: list[int] = field("[]int32")


@message(versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: int = field("int8", versions="1+")
    topic_partitions: list[TopicPartitions] | None = field("[]TopicPartitions", nullable="0+")
    timeout_ms: int = field("int32", default=60000)


@struct
class PartitionResult:
    partition_id: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = field("string")
    partition_result: list[PartitionResult] = field("[]PartitionResult")


@message(versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16", versions="1+")
    replica_election_results: list[ReplicaElectionResult] = field("[]ReplicaElectionResult")
