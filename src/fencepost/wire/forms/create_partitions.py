# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""CreatePartitions (37): v0-3."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = field("[]int32")


@struct
class CreatePartitionsTopic:
    name: str = field("string")
    count: int = field("int32")
    assignments: list[CreatePartitionsAssignment] | None = field(
        "[]CreatePartitionsAssignment", nullable="0+"
    )


@message(versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = field("[]CreatePartitionsTopic")
    timeout_ms: int = field("int32")
    validate_only: bool = field("bool")


@struct
class CreatePartitionsTopicResult:
    name: str = field("string")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+", default=None)


@message(versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = field("int32")
    results: list[CreatePartitionsTopicResult] = field("[]CreatePartitionsTopicResult")
