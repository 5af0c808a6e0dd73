"""ListOffsets (2): v1-11

Behaviour: the offset for a timestamp, or for a special one: earliest (-2), latest (-1), the
           record with the highest timestamp (-3), and those of tiered storage (-4 earliest local,
           -5 latest tiered, -6 earliest pending upload), of which there is none here. Latest is the
           high watermark, or the last stable offset for read_committed; nothing beyond it is found
           by time either.
Versions:  v2 isolation level; v4 leader epochs; v6 flexible; v7 highest timestamp; v8, v9, v11
           tiered storage; v10 a timeout for remote look-ups.
Errors:    UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, TOPIC_AUTHORIZATION_FAILED,
           FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, INVALID_REQUEST (a partition named twice),
           UNSUPPORTED_VERSION (an unknown special timestamp), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.turns import in_turns
from fencepost.broker.waiting import Parked
from fencepost.log.times import TimestampOffset, find_newest, find_timestamp
from fencepost.partition.partition import Partition
from fencepost.wire.apis import NEVER
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

log = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_VERSION_WITH: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The special timestamps, and the first version that has each."""

NOWHERE: Final = TimestampOffset(NO_TIMESTAMP, -1, -1)


def handle(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse | Parked:
    """Looks up some partitions per turn of the loop: each may read from disk and open a batch."""
    lookups, response = _prepare(request, context)
    return in_turns(context.services.runtime, lookups, response)


def _prepare(
    request: ListOffsetsRequest, context: Context
) -> tuple[Iterator[None], ListOffsetsResponse]:
    """Returns the reply, and the steps that fill it in."""
    read_committed = request.isolation_level == 1
    asked_for: Counter[tuple[str, int]] = Counter()
    response = ListOffsetsResponse()

    def run() -> Iterator[None]:
        for topic in request.topics:
            for asked in topic.partitions:
                asked_for[topic.name, asked.partition_index] += 1
                yield
        for topic in request.topics:
            if not topic.partitions:
                yield
                continue
            told = ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(told)
            # A partition that is listed twice is refused once.
            for asked in {each.partition_index: each for each in topic.partitions}.values():
                is_repeated = asked_for[topic.name, asked.partition_index] > 1
                told.partitions.append(
                    _look_up(topic.name, asked, read_committed, is_repeated, context)
                )
                yield

    return run(), response


def _look_up(
    topic: str,
    asked: ListOffsetsPartition,
    read_committed: bool,
    is_repeated: bool,
    context: Context,
) -> ListOffsetsPartitionResponse:
    if not context.authorize("DESCRIBE", "TOPIC", topic):
        return _failed(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if is_repeated:
        return _failed(asked, ErrorCode.INVALID_REQUEST)
    services, epoch = context.services, asked.current_leader_epoch
    partition = leadership.find(services, topic, asked.partition_index, epoch)
    if isinstance(partition, ErrorCode):
        return _failed(asked, partition)
    if asked.timestamp < 0 and context.api_version < FIRST_VERSION_WITH.get(asked.timestamp, NEVER):
        return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
    upper = partition.last_stable_offset if read_committed else partition.high_watermark
    try:
        found = _find(partition, asked.timestamp, upper)
    except (OSError, StorageError) as problem:
        log.error("cannot look up a timestamp in %s: %s", partition.name, problem)
        return _failed(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _find(partition: Partition, timestamp: int, upper: int) -> TimestampOffset:
    """Finds the offset for a timestamp; NOWHERE if there is none."""
    of_partition = partition.log
    if timestamp == LATEST:
        return TimestampOffset(NO_TIMESTAMP, upper, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = of_partition.log_start_offset
        # The next batch has the current leader epoch, which has no entry before its first batch.
        is_empty = start == of_partition.log_end_offset
        epoch = partition.leader_epoch if is_empty else of_partition.epochs.epoch_at(start)
        return TimestampOffset(NO_TIMESTAMP, start, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOWHERE
    if timestamp == MAX_TIMESTAMP:
        newest = find_newest(of_partition)
        return newest if newest is not None and newest.offset < upper else NOWHERE
    assert timestamp >= 0, "the special times are all above"
    return find_timestamp(of_partition, timestamp, upper) or NOWHERE


def _failed(asked: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=error, timestamp=-1, offset=-1
    )
