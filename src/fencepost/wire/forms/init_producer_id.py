# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""InitProducerId (22): v0-6."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-6", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = field("string", nullable="0+")
    transaction_timeout_ms: int = field("int32")
    producer_id: int = field("int64", versions="3+", default=-1)
    producer_epoch: int = field("int16", versions="3+", default=-1)
    enable2_pc: bool = field("bool", versions="6+", default=False)
    keep_prepared_txn: bool = field("bool", versions="6+", default=False)


@message(versions="0-6", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    producer_id: int = field("int64", default=-1)
    producer_epoch: int = field("int16")
    ongoing_txn_producer_id: int = field("int64", versions="6+", default=-1)
    ongoing_txn_producer_epoch: int = field("int16", versions="6+", default=-1)
