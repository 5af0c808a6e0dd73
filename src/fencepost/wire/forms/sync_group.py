# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""SyncGroup (14): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class SyncGroupRequestAssignment:
    member_id: str = field("string")
    assignment: bytes = field("bytes")


@message(versions="0-5", flexible="4+")
class SyncGroupRequest:
    group_id: str = field("string")
    generation_id: int = field("int32")
    member_id: str = field("string")
    group_instance_id: str | None = field("string", versions="3+", nullable="3+", default=None)
    protocol_type: str | None = field("string", versions="5+", nullable="5+", default=None)
    protocol_name: str | None = field("string", versions="5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = field("[]SyncGroupRequestAssignment")


@message(versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    error_code: int = field("int16")
    protocol_type: str | None = field("string", versions="5+", nullable="5+", default=None)
    protocol_name: str | None = field("string", versions="5+", nullable="5+", default=None)
    assignment: bytes = field("bytes")
