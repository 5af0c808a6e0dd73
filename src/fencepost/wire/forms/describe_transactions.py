# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeTransactions (65): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-0", flexible="0+")
class DescribeTransactionsRequest:
    transactional_ids: list[str] = field("[]string")


@struct
class TopicData:
    topic: str = field("string")
    partitions: list[int] = field("[]int32")


@struct
class TransactionState:
    error_code: int = field("int16")
    transactional_id: str = field("string")
    transaction_state: str = field("string")
    transaction_timeout_ms: int = field("int32")
    transaction_start_time_ms: int = field("int64")
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    topics: list[TopicData] = field("[]TopicData")
    client_id: str | None = field("string", nullable="0+", tag=10000, default=None)
    client_host: str | None = field("string", nullable="0+", tag=10001, default=None)
    client_connection: str | None = field("string", nullable="0+", tag=10002, default=None)
    client_gone_at_ms: int = field("int64", tag=10003, default=-1)
    administrator: str | None = field("string", nullable="0+", tag=10004, default=None)


@message(versions="0-0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = field("int32")
    transaction_states: list[TransactionState] = field("[]TransactionState")
