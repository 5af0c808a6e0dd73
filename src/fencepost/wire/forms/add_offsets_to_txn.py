# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""AddOffsetsToTxn (25): v0-4."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = field("string")
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    group_id: str = field("string")


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
