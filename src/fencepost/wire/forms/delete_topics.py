# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DeleteTopics (20): v1-6."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class DeleteTopicState:
    name: str | None = field("string", nullable="0+", default=None)
    topic_id: bytes = field("uuid")


@message(versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topic_names: list[str] = field("[]string", versions="1-5")
    topics: list[DeleteTopicState] = field("[]DeleteTopicState", versions="6+")
    timeout_ms: int = field("int32")


@struct
class DeletableTopicResult:
    name: str | None = field("string", nullable="6+")
    topic_id: bytes = field("uuid", versions="6+")
    error_code: int = field("int16")
    error_message: str | None = field("string", versions="5+", nullable="5+", default=None)


@message(versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = field("int32")
    responses: list[DeletableTopicResult] = field("[]DeletableTopicResult")
