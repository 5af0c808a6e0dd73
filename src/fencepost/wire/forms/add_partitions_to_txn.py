# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""AddPartitionsToTxn (24): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class AddPartitionsToTxnTopic:
    name: str = field("string")
    partitions: list[int] = field("[]int32")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = field("string")
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    verify_only: bool = field("bool", default=False)
    topics: list[AddPartitionsToTxnTopic] = field("[]AddPartitionsToTxnTopic")


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    v3_and_below_transactional_id: str = field("string", versions="0-3")
    v3_and_below_producer_id: int = field("int64", versions="0-3")
    v3_and_below_producer_epoch: int = field("int16", versions="0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(
        "[]AddPartitionsToTxnTopic", versions="0-3"
    )
    transactions: list[AddPartitionsToTxnTransaction] = field(
        "[]AddPartitionsToTxnTransaction", versions="4+"
    )


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = field("int32")
    partition_error_code: int = field("int16")


@struct
class AddPartitionsToTxnTopicResult:
    name: str = field("string")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
        "[]AddPartitionsToTxnPartitionResult"
    )


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = field("string")
    topic_results: list[AddPartitionsToTxnTopicResult] = field("[]AddPartitionsToTxnTopicResult")


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = field("int32")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        "[]AddPartitionsToTxnTopicResult", versions="0-3"
    )
    error_code: int = field("int16", versions="4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        "[]AddPartitionsToTxnResult", versions="4+"
    )
