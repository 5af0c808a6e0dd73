# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DeleteGroups (42): v0-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[str] = field("[]string")


@struct
class DeletableGroupResult:
    group_id: str = field("string")
    error_code: int = field("int16")
    error_message: str | None = field("string", versions="3+", nullable="3+", default=None)


@message(versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = field("int32")
    results: list[DeletableGroupResult] = field("[]DeletableGroupResult")
