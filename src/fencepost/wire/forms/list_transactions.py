# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ListTransactions (66): v0-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[str] = field("[]string")
    producer_id_filters: list[int] = field("[]int64")
    duration_filter: int = field("int64", versions="1+", default=-1)
    transactional_id_pattern: str | None = field(
        "string", versions="2+", nullable="2+", default=None
    )


@struct
class TransactionState:
    transactional_id: str = field("string")
    producer_id: int = field("int64")
    transaction_state: str = field("string")


@message(versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    unknown_state_filters: list[str] = field("[]string")
    transaction_states: list[TransactionState] = field("[]TransactionState")
