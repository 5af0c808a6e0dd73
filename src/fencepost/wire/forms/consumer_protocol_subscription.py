# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""ConsumerProtocolSubscription: v0-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class TopicPartition:
    topic: str = field("string")
    partitions: list[int] = field("[]int32")


@message(versions="0-3")
class ConsumerProtocolSubscription:
    topics: list[str] = field("[]string")
    user_data: bytes | None = field("bytes", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field("[]TopicPartition", versions="1+")
    generation_id: int = field("int32", versions="2+", default=-1)
    rack_id: str | None = field("string", versions="3+", nullable="3+", default=None)
