# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""EndTxn (26): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = field("string")
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    committed: bool = field("bool")


@message(versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    producer_id: int = field("int64", versions="5+", default=-1)
    producer_epoch: int = field("int16", versions="5+", default=-1)
