# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeLogDirs (35): v1-5."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class DescribableLogDirTopic:
    topic: str = field("string")
    partitions: list[int] = field("[]int32")


@message(versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = field("[]DescribableLogDirTopic", nullable="0+")


@struct
class DescribeLogDirsPartition:
    partition_index: int = field("int32")
    partition_size: int = field("int64")
    offset_lag: int = field("int64")
    is_future_key: bool = field("bool")


@struct
class DescribeLogDirsTopic:
    name: str = field("string")
    partitions: list[DescribeLogDirsPartition] = field("[]DescribeLogDirsPartition")


@struct
class DescribeLogDirsResult:
    error_code: int = field("int16")
    log_dir: str = field("string")
    topics: list[DescribeLogDirsTopic] = field("[]DescribeLogDirsTopic")
    total_bytes: int = field("int64", versions="4+", default=-1)
    usable_bytes: int = field("int64", versions="4+", default=-1)
    is_cordoned: bool = field("bool", versions="5+", default=False)


@message(versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16", versions="3+")
    results: list[DescribeLogDirsResult] = field("[]DescribeLogDirsResult")
