# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ListGroups (16): v0-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@message(versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[str] = field("[]string", versions="4+")
    types_filter: list[str] = field("[]string", versions="5+")


@struct
class ListedGroup:
    group_id: str = field("string")
    protocol_type: str = field("string")
    group_state: str = field("string", versions="4+")
    group_type: str = field("string", versions="5+")


@message(versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = field("int32", versions="1+")
    error_code: int = field("int16")
    groups: list[ListedGroup] = field("[]ListedGroup")
