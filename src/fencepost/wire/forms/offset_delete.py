# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""OffsetDelete (47): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = field("int32")


@struct
class OffsetDeleteRequestTopic:
    name: str = field("string")
    partitions: list[OffsetDeleteRequestPartition] = field("[]OffsetDeleteRequestPartition")


@message(versions="0-0")
class OffsetDeleteRequest:
    group_id: str = field("string")
    topics: list[OffsetDeleteRequestTopic] = field("[]OffsetDeleteRequestTopic")


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = field("int32")
    error_code: int = field("int16")


@struct
class OffsetDeleteResponseTopic:
    name: str = field("string")
    partitions: list[OffsetDeleteResponsePartition] = field("[]OffsetDeleteResponsePartition")


@message(versions="0-0")
class OffsetDeleteResponse:
    error_code: int = field("int16")
    throttle_time_ms: int = field("int32")
    topics: list[OffsetDeleteResponseTopic] = field("[]OffsetDeleteResponseTopic")
