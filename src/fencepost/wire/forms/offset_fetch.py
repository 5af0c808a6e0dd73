# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""OffsetFetch (9): v1-10."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class OffsetFetchRequestTopic:
    name: str = field("string")
    partition_indexes: list[int] = field("[]int32")


@struct
class OffsetFetchRequestTopics:
    name: str = field("string", versions="8-9")
    topic_id: bytes = field("uuid", versions="10+")
    partition_indexes: list[int] = field("[]int32")


@struct
class OffsetFetchRequestGroup:
    group_id: str = field("string")
    member_id: str | None = field("string", versions="9+", nullable="9+", default=None)
    member_epoch: int = field("int32", versions="9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field(
        "[]OffsetFetchRequestTopics", nullable="0+"
    )


@message(versions="1-10", flexible="6+")
class OffsetFetchRequest:
    group_id: str = field("string", versions="1-7")
    topics: list[OffsetFetchRequestTopic] | None = field(
        "[]OffsetFetchRequestTopic", versions="1-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = field("[]OffsetFetchRequestGroup", versions="8+")
    require_stable: bool = field("bool", versions="7+", default=False)


@struct
class OffsetFetchResponsePartition:
    partition_index: int = field("int32")
    committed_offset: int = field("int64")
    committed_leader_epoch: int = field("int32", versions="5+", default=-1)
    metadata: str | None = field("string", nullable="0+")
    error_code: int = field("int16")


@struct
class OffsetFetchResponseTopic:
    name: str = field("string")
    partitions: list[OffsetFetchResponsePartition] = field("[]OffsetFetchResponsePartition")


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = field("int32")
    committed_offset: int = field("int64")
    committed_leader_epoch: int = field("int32", default=-1)
    metadata: str | None = field("string", nullable="0+")
    error_code: int = field("int16")


@struct
class OffsetFetchResponseTopics:
    name: str = field("string", versions="8-9")
    topic_id: bytes = field("uuid", versions="10+")
    partitions: list[OffsetFetchResponsePartitions] = field("[]OffsetFetchResponsePartitions")


@struct
class OffsetFetchResponseGroup:
    group_id: str = field("string")
    topics: list[OffsetFetchResponseTopics] = field("[]OffsetFetchResponseTopics")
    error_code: int = field("int16", default=0)


@message(versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: int = field("int32", versions="3+")
    topics: list[OffsetFetchResponseTopic] = field("[]OffsetFetchResponseTopic", versions="1-7")
    error_code: int = field("int16", versions="2-7", default=0)
    groups: list[OffsetFetchResponseGroup] = field("[]OffsetFetchResponseGroup", versions="8+")
