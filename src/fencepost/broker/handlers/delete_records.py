"""DeleteRecords (21): v0-2

Behaviour: moves the log start offset of a partition forward; nothing below it is served any more, also after a crash.
           Segments that lie wholly below it are removed soon afterwards. -1 means the high watermark. An offset below the log start changes
           nothing and is no error.
Versions:  v2 flexible.
Errors:    OFFSET_OUT_OF_RANGE (beyond the high watermark), UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
           INVALID_TOPIC_EXCEPTION (an internal topic), POLICY_VIOLATION (a topic that is compacted and never
           deletes), TOPIC_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import INTERNAL_TOPICS
from fencepost.broker.operations import TOPIC
from fencepost.log.config import DELETE
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context
    from fencepost.partition.partition import Partition
    from fencepost.wire.forms.delete_records import DeleteRecordsPartition

log = logging.getLogger(__name__)

UP_TO_THE_HIGH_WATERMARK: Final = -1
UNKNOWN_OFFSET: Final = -1


def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[delete(topic.name, each, context) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def delete(
    topic: str, wanted: DeleteRecordsPartition, context: Context
) -> DeleteRecordsPartitionResult:
    found = find(topic, wanted.partition_index, context)
    error = found if isinstance(found, ErrorCode) else delete_before(found, wanted.offset, context)
    low_watermark = UNKNOWN_OFFSET
    if not isinstance(found, ErrorCode) and error is ErrorCode.NONE:
        low_watermark = found.log_start_offset
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=error
    )


def find(topic: str, index: int, context: Context) -> Partition | ErrorCode:
    """The partition, if it is here and records may be deleted from it."""
    if not context.authorize("DELETE", TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    state = context.node.topics.state.partition(topic, index)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if state.leader != context.node.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition = context.node.partition(topic, index)
    if partition is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    policy = partition.log.config.cleanup_policy
    # A topic without any policy keeps its records for ever, until somebody deletes them by hand.
    if policy and DELETE not in policy:
        return ErrorCode.POLICY_VIOLATION
    return partition


def delete_before(partition: Partition, offset: int, context: Context) -> ErrorCode:
    node = context.node
    if offset == UP_TO_THE_HIGH_WATERMARK:
        offset = partition.high_watermark
    try:
        if 0 <= offset <= partition.high_watermark:
            # Written down first: what somebody was told is deleted must not come back.
            node.layout.save_log_start(partition.name, offset, sync=node.shard.fsync)
    except StorageError as problem:
        log.error("records of %s cannot be deleted: %s", partition.name, problem)
        return ErrorCode.KAFKA_STORAGE_ERROR
    error = partition.delete_before(offset)
    node.housekeeping.retain_soon(partition)
    return error
