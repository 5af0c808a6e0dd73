# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ConsumerProtocolAssignment: v0-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicPartition:
    topic: str = field("string")
    partitions: list[int] = field("[]int32")


@message(versions="0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition] = field("[]TopicPartition")
    user_data: bytes | None = field("bytes", nullable="0+", default=None)
