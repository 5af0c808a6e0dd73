# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeClientQuotas (48): v0-1."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class ComponentData:
    entity_type: str = field("string")
    match_type: int = field("int8")
    match: str | None = field("string", nullable="0+")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: list[ComponentData] = field("[]ComponentData")
    strict: bool = field("bool")


@struct
class EntityData:
    entity_type: str = field("string")
    entity_name: str | None = field("string", nullable="0+")


@struct
class ValueData:
    key: str = field("string")
    value: float = field("float64")


@struct
class EntryData:
    entity: list[EntityData] = field("[]EntityData")
    values: list[ValueData] = field("[]ValueData")


@message(versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    entries: list[EntryData] | None = field("[]EntryData", nullable="0+")
