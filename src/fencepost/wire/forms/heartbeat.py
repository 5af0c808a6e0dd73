# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""Heartbeat (12): v0-4."""

from __future__ import annotations

from fencepost.wire.schema import field, message


@message(versions="0-4", flexible="4+")
class HeartbeatRequest:
    group_id: str = field("string")
    generation_id: int = field("int32")
    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="3+", nullable="3+", default=None)


@message(versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    error_code: int = field("int16")
