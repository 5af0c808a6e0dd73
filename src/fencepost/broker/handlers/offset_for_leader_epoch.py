"""OffsetForLeaderEpoch (23): v2-4

Behaviour: the end offset of a leader epoch, by which a consumer detects that the log was truncated
           below its position.
Versions:  v3 replica id (consumers send -2); v4 flexible.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
           UNKNOWN_LEADER_EPOCH, TOPIC_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fencepost.base.errors import ErrorCode
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.turns import fill, in_turns
from fencepost.broker.waiting import Parked
from fencepost.wire.forms.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(
    request: OffsetForLeaderEpochRequest, context: Context
) -> OffsetForLeaderEpochResponse | Parked:
    """Serves one request; see above."""
    response = OffsetForLeaderEpochResponse()

    def steps() -> Iterator[None]:
        for topic in request.topics:
            result = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(result)
            yield from fill(
                result.partitions, topic.partitions, partial(_end_of, topic.topic, context=context)
            )
            yield

    return in_turns(context.services.runtime, steps(), response, holds_followers=True)


def _end_of(topic: str, asked: OffsetForLeaderPartition, *, context: Context) -> EpochEndOffset:
    index = asked.partition
    if not (
        context.may("CLUSTER_ACTION", CLUSTER, CLUSTER_NAME)
        or context.authorize("DESCRIBE", "TOPIC", topic)
    ):
        return EpochEndOffset(partition=index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = leadership.find(context.services, topic, index, asked.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(partition=index, error_code=partition)
    if (
        asked.leader_epoch < 0
    ):  # A client without an epoch has read nothing that could be truncated.
        return EpochEndOffset(partition=index)
    epoch, end_offset = partition.end_offset_for_epoch(asked.leader_epoch)
    return EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end_offset)
