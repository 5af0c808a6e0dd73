# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""Produce (0): v3-13."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.wire.schema import field, message, struct

if TYPE_CHECKING:
    from fencepost.base.seams import Buffer


@struct
class PartitionProduceData:
    index: int = field("int32")
    records: Buffer | None = field("records", nullable="0+")


@struct
class TopicProduceData:
    name: str = field("string", versions="3-12")
    topic_id: bytes = field("uuid", versions="13+")
    partition_data: list[PartitionProduceData] = field("[]PartitionProduceData")


@message(versions="3-13", flexible="9+")
class ProduceRequest:
    transactional_id: str | None = field("string", nullable="0+", default=None)
    acks: int = field("int16")
    timeout_ms: int = field("int32")
    topic_data: list[TopicProduceData] = field("[]TopicProduceData")


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = field("int32")
    batch_index_error_message: str | None = field("string", nullable="0+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = field("int32", default=-1)
    leader_epoch: int = field("int32", default=-1)


@struct
class PartitionProduceResponse:
    index: int = field("int32")
    error_code: int = field("int16")
    base_offset: int = field("int64")
    log_append_time_ms: int = field("int64", default=-1)
    log_start_offset: int = field("int64", versions="5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(
        "[]BatchIndexAndErrorMessage", versions="8+"
    )
    error_message: str | None = field("string", versions="8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch | None = field("LeaderIdAndEpoch", versions="10+", tag=0)


@struct
class TopicProduceResponse:
    name: str = field("string", versions="3-12")
    topic_id: bytes = field("uuid", versions="13+")
    partition_responses: list[PartitionProduceResponse] = field("[]PartitionProduceResponse")


@struct
class NodeEndpoint:
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    rack: str | None = field("string", nullable="0+", default=None)


@message(versions="3-13", flexible="9+")
class ProduceResponse:
    responses: list[TopicProduceResponse] = field("[]TopicProduceResponse")
    throttle_time_ms: int = field("int32", default=0)
    node_endpoints: list[NodeEndpoint] = field("[]NodeEndpoint", versions="10+", tag=0)
