"""DeleteRecords (21): v0-2

Behaviour: moves the log start offset of a partition forward. Records below it are never served
           again, even after a crash; segments below it are removed soon afterwards. -1 means the
           high watermark. An offset below the log start changes nothing and is not an error.
Versions:  v2 flexible.
Errors:    OFFSET_OUT_OF_RANGE (beyond the high watermark), UNKNOWN_TOPIC_OR_PARTITION,
           NOT_LEADER_OR_FOLLOWER, INVALID_TOPIC_EXCEPTION (an internal topic), POLICY_VIOLATION (a
           topic that is compacted and never deletes), TOPIC_AUTHORIZATION_FAILED,
           KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import INTERNAL_TOPICS, TopicPartition
from fencepost.broker.authorization import TOPIC
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.turns import fill, run_in_turns, then
from fencepost.broker.waiting import Parked
from fencepost.log.config import DELETE
from fencepost.partition.partition import Partition
from fencepost.wire.forms.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

log = logging.getLogger(__name__)

UP_TO_THE_HIGH_WATERMARK: Final = -1
UNKNOWN_OFFSET: Final = -1


def handle(request: DeleteRecordsRequest, context: Context) -> object:
    """Serves one request; see above."""
    response = DeleteRecordsResponse()
    deletion = _Deletion(context)
    steps = deletion.prepare(request, response)
    return then(context.services.runtime, steps, partial(_perform, deletion, response, context))


def _perform(
    deletion: _Deletion, response: DeleteRecordsResponse, context: Context
) -> DeleteRecordsResponse | Parked:
    """Once the new starts are saved, each start is moved, even if the client leaves."""
    parked = Parked(holds_followers=True)
    steps = deletion.perform()
    if run_in_turns(context.services.runtime, steps, partial(parked.answer, response)):
        return response
    return parked


class _Cut(NamedTuple):
    """A partition whose log start offset will move."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult


class _Deletion:
    """One request: finds all partitions, saves their new starts together, then moves each start."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._cuts: list[_Cut] = []

    def prepare(
        self, request: DeleteRecordsRequest, response: DeleteRecordsResponse
    ) -> Iterator[None]:
        for topic in request.topics:
            told = DeleteRecordsTopicResult(name=topic.name)
            response.topics.append(told)
            yield from fill(told.partitions, topic.partitions, partial(self._prepare, topic.name))
            yield

    def perform(self) -> Iterator[None]:
        # One write for all of them, in the same turn as the first cut: the file lists every
        # partition whose start was ever moved.
        error = self._save()
        for cut in self._cuts:
            self._perform(cut, error)
            yield

    def _prepare(self, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=UNKNOWN_OFFSET
        )
        found = _find(topic, wanted.partition_index, self._context)
        if isinstance(found, ErrorCode):
            result.error_code = found
            return result
        offset = wanted.offset
        if offset == UP_TO_THE_HIGH_WATERMARK:
            offset = found.high_watermark
        if not 0 <= offset <= found.high_watermark:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            self._cuts.append(_Cut(found, offset, result))
        return result

    def _save(self) -> ErrorCode:
        """Saves the new starts first: deleted records must not come back."""
        services = self._context.services
        starts: dict[TopicPartition, int] = {}
        for cut in self._cuts:
            if not cut.partition.closed:
                name = cut.partition.name
                starts[name] = max(cut.offset, starts.get(name, 0))
        try:
            services.layout.save_log_starts(starts, sync=services.partitions.fsync)
        except StorageError as problem:
            log.error("cannot delete records of %s: %s", ", ".join(map(str, starts)), problem)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _perform(self, cut: _Cut, error: ErrorCode) -> None:
        partition = cut.partition
        if partition.closed:
            error = leadership.gone(partition)
        elif error is ErrorCode.NONE:
            error = partition.delete_before(cut.offset)
            self._context.services.housekeeping.retain_soon(partition)
        cut.result.error_code = error
        if error is ErrorCode.NONE:
            cut.result.low_watermark = partition.log_start_offset


def _find(topic: str, index: int, context: Context) -> Partition | ErrorCode:
    """Finds the partition, if it is here and records may be deleted from it."""
    if not context.authorize("DELETE", TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if context.services.metadata.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = leadership.find(context.services, topic, index)
    if isinstance(partition, ErrorCode):
        return partition
    policy = partition.log.config.cleanup_policy
    # A topic without a policy keeps its records until DeleteRecords removes them.
    if policy and DELETE not in policy:
        return ErrorCode.POLICY_VIOLATION
    return partition
