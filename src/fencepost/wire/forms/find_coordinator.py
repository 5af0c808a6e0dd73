# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""FindCoordinator (10): v0-6."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = field("string", versions="0-3")
    key_type: int = field("int8", versions="1+", default=0)
    coordinator_keys: list[str] = field("[]string", versions="4+")


@struct
class Coordinator:
    key: str = field("string")
    node_id: int = field("int32")
    host: str = field("string")
    port: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")


@message(versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    error_code: int = field("int16", versions="0-3")
    error_message: str | None = field("string", versions="1-3", nullable="1-3")
    node_id: int = field("int32", versions="0-3")
    host: str = field("string", versions="0-3")
    port: int = field("int32", versions="0-3")
    coordinators: list[Coordinator] = field("[]Coordinator", versions="4+")
