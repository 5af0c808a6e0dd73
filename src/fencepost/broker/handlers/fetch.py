"""Fetch (1): v4-18

Behaviour: whole batches from each partition, as stored on disk, up to the high watermark or, for
           read_committed, the last stable offset with the list of aborted transactions. Waits for
           min_bytes or max_wait; replies at once to an error. The first batch is returned even if
           it is larger than the limits, as the reader could not get past it otherwise.
           Fetch sessions (KIP-227) are declined: the reply's session id is 0, so every request
           names all of its partitions.
Versions:  v5 log start offset; v7 sessions; v9 leader epochs; v11 rack; v12 flexible, diverging
           epochs; v13 topic ids; v15 replica state; v16 node endpoints; v17, v18 followers only.
Errors:    OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
           NOT_LEADER_OR_FOLLOWER (from v16 on with the leader, KIP-951),
           TOPIC_AUTHORIZATION_FAILED, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
           FETCH_SESSION_ID_NOT_FOUND, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE (the batch at the
           offset is damaged).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import DamagedError, StorageError
from fencepost.base.limits import FETCH_MEMORY_WAIT_MS
from fencepost.broker import turns
from fencepost.broker.authorization import CLUSTER, CLUSTER_NAME
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.runtime import TimerHandle
from fencepost.broker.turns import Steps, run_in_turns
from fencepost.broker.waiting import Parked
from fencepost.partition.partition import Fetched, Partition
from fencepost.wire.forms.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

log = logging.getLogger(__name__)

FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
FIRST_VERSION_WITH_LEADERS: Final = 16
LEADER_ELSEWHERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors whose reply names the leader."""
FULL_FETCH_EPOCHS: Final = (0, -1)
READ_COMMITTED: Final = 1
PARTITIONS_PER_STEP: Final = 100
"""Partitions of one topic that a wide fetch reads without a look at the time."""
MOST_COPIED_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one reply may copy, which takes a few milliseconds. Small batches are copied, and all
batches while too many views of the page cache are in use; views take hardly any time."""


class Read(NamedTuple):
    """One pass over the partitions of a request."""

    response: FetchResponse
    size_bytes: int
    settled: bool
    """Whether to reply at once: an error, a diverged log, or as many bytes as fit."""


def handle(request: FetchRequest, context: Context) -> FetchResponse | Parked:
    """Serves one request; see above."""
    if request.session_epoch not in FULL_FETCH_EPOCHS:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if _is_wide(request) or not context.services.partitions.may_read_now():
        return _LongPoll(request, context, None, 0).parked
    read = read_all(request, context)
    if (
        read.settled
        or read.size_bytes >= request.min_bytes
        or request.max_wait_ms <= 0
        or not request.topics
    ):
        return read.response
    partitions = _partitions_of(request, context)
    if read.size_bytes and _has_rolled(request, partitions):
        return read.response
    return _LongPoll(request, context, partitions, read.size_bytes).parked


def _is_wide(request: FetchRequest) -> bool:
    """Whether it has too many topics and partitions for one turn of the loop."""
    left = turns.ELEMENTS_PER_TURN
    for topic in request.topics:
        left -= 1 + len(topic.partitions)
        if left < 0:
            return True
    return False


class _LongPoll:
    """A fetch that waits for more to read, or for its turn to read.

    After its timeout it is answered in one of the next turns of the loop, as many fetches may have
    the same timeout.

    A wide fetch reads over several turns of the loop. If it finds nothing, it also watches its
    partitions over several turns; a partition that has moved since it was read ends that, and the
    fetch reads again.
    """

    __slots__ = (
        "_context",
        "_is_busy",
        "_is_hurried",
        "_is_late",
        "_is_moved",
        "_is_waiting",
        "_is_wide",
        "_partitions",
        "_request",
        "_timer",
        "parked",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: Context,
        partitions: list[Partition] | None,
        size_bytes: int,
    ) -> None:
        """Waits; `partitions` is None if they have not been read yet."""
        self.parked = Parked(promised_bytes=_most_bytes(request, context))
        self._request = request
        self._context = context
        self._partitions = partitions or []
        self._is_waiting = True
        self._is_wide = _is_wide(request)
        self._is_busy = False
        """Whether a wide fetch is reading, or is about to watch."""
        self._is_moved = False
        """Whether a partition has moved in this time."""
        self._is_hurried = False
        self._is_late = request.max_wait_ms <= 0
        self._timer: TimerHandle = context.services.runtime.call_later(
            request.max_wait_ms, self._time_is_up
        )
        if partitions is None:
            context.services.partitions.wake_soon([self])
        elif context.services.replies.is_full:
            self._wait_for_room()
        else:
            self._watch(size_bytes)
        self.parked.when_abandoned(self._leave)

    def _watch(self, size_bytes: int) -> None:
        self._context.services.partitions.fetch_waiters.add(
            self,
            self._partitions,
            missing_bytes=self._request.min_bytes - size_bytes,
            read_committed=self._request.isolation_level == READ_COMMITTED,
        )

    def _wait_for_room(self) -> None:
        """Waits for memory, while clients have too many replies unread.

        Not for long: the memory may be taken by replies that wait behind this one on its own
        connection.
        """
        services = self._context.services
        if not self._is_hurried:
            self._is_hurried = True
            self._timer.cancel()
            wait_ms = min(self._request.max_wait_ms, FETCH_MEMORY_WAIT_MS)
            self._timer = services.runtime.call_later(wait_ms, self._time_is_up)
        services.replies.when_free(self.wake)

    def _unwatch(self) -> None:
        self._context.services.partitions.fetch_waiters.remove(self, self._partitions)

    def wake(self) -> None:
        """Reads again: one of its partitions has its share of bytes, or has changed otherwise."""
        if not self._is_waiting:
            return  # Answered or abandoned after it was put on the list to wake.
        if self._is_busy:
            self._is_moved = True
            return
        self._unwatch()
        if self._is_wide:
            self._read_in_turns()
        else:
            self._have_read(read_all(self._request, self._context))

    def _read_in_turns(self) -> None:
        self._is_busy, self._is_moved = True, False
        reading = Reading(self._request, self._context)
        run_in_turns(
            self._context.services.runtime,
            self._reading_steps(reading),
            partial(self._have_read_in_turns, reading),
        )

    def _reading_steps(self, reading: Reading) -> Steps:
        for count in reading.steps():
            if not self._is_waiting:
                return
            yield count

    def _have_read_in_turns(self, reading: Reading) -> None:
        self._is_busy = False
        if not self._is_waiting:
            return
        read = reading.end()
        if read.size_bytes:
            self._answer(read.response)  # Without a look at `min_bytes`: it was a long way.
        elif self._is_late or read.settled or self._context.services.replies.is_full:
            self._have_read(read)
        else:
            self._partitions = []
            self._is_busy = True
            run_in_turns(
                self._context.services.runtime, self._watching(reading), self._have_watched
            )

    def _watching(self, reading: Reading) -> Iterator[None]:
        """Watches all partitions, unless one of them is not as it was read."""
        partitions = self._context.services.partitions
        waiters = partitions.fetch_waiters
        read_committed = self._request.isolation_level == READ_COMMITTED
        for partition, data in reading.found:
            if not self._is_waiting or self._is_moved:
                return
            is_here = partitions.by_name.get(partition.name) is partition
            if not is_here or not _is_as_read(partition, data):
                self._is_moved = True
                return
            self._partitions.append(partition)
            waiters.add(self, [partition], missing_bytes=1, read_committed=read_committed)
            yield

    def _have_watched(self) -> None:
        self._is_busy = False
        if not self._is_waiting:
            self._unwatch()
        elif self._is_moved:
            self.wake()

    def _have_read(self, read: Read) -> None:
        if self._is_late or read.settled:
            self._answer(read.response)
            return
        if self._context.services.replies.is_full:
            self._wait_for_room()
            return
        if read.size_bytes >= self._request.min_bytes:
            self._answer(read.response)
            return
        self._partitions = _partitions_of(self._request, self._context)
        if read.size_bytes and _has_rolled(self._request, self._partitions):
            self._answer(read.response)
        else:
            self._watch(read.size_bytes)

    def _time_is_up(self) -> None:
        self._is_late = True
        self._context.services.partitions.wake_soon([self])

    def _leave(self) -> None:
        self._is_waiting = False
        self._timer.cancel()
        self._context.services.replies.forget(self.wake)
        self._unwatch()

    def _answer(self, response: FetchResponse) -> None:
        self._leave()
        if not self.parked.answered:
            self.parked.answer(response)


def _partitions_of(request: FetchRequest, context: Context) -> list[Partition]:
    """The partitions of a fetch. If one is missing, the fetch does not wait."""
    with_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    found = []
    for topic in request.topics:
        name = context.services.metadata.topic_name(topic.topic_id) if with_ids else topic.topic
        for asked in topic.partitions:
            partition = context.services.partitions.get(name or "", asked.partition)
            if partition is not None:
                found.append(partition)
    return found


def _has_rolled(request: FetchRequest, partitions: list[Partition]) -> bool:
    """Whether a reader's position is in an earlier segment than the last batch that it may read.

    A read ends with its segment. The missing bytes are in the next one, which the reader fetches
    after this reply; its own segment no longer grows.
    """
    offsets = (asked.fetch_offset for topic in request.topics for asked in topic.partitions)
    read_committed = request.isolation_level == READ_COMMITTED
    for partition, offset in zip(partitions, offsets, strict=True):
        upper = partition.last_stable_offset if read_committed else partition.high_watermark
        segments_from = partition.log.segments_from
        if offset < upper and (segments_from(offset)[0] is not segments_from(upper - 1)[0]):
            return True
    return False


def _most_bytes(request: FetchRequest, context: Context) -> int:
    """The limit of a reply, which only a larger first batch exceeds."""
    return max(0, min(request.max_bytes, context.services.config.fetch_max_bytes))


def read_all(request: FetchRequest, context: Context) -> Read:
    """Reads every partition of a request."""
    reading = Reading(request, context)
    for topic in request.topics:
        reading.add(topic, topic.partitions)
    return reading.end()


class Reading:
    """Reads every partition in the order of the request until its limit is used up.

    Copied bytes are limited, too; the reader fetches the rest later. While unread replies take up
    all of their memory, nothing is read, and the reply has only the offsets of the partitions.
    """

    __slots__ = (
        "_context",
        "_is_follower",
        "_leaders",
        "_left",
        "_may_copy",
        "_most",
        "_read_committed",
        "_request",
        "_response",
        "_settled",
        "_share",
        "_total",
        "found",
    )

    def __init__(self, request: FetchRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self._share = context.services.replies.share()
        self._most = _most_bytes(request, context)
        self._left = min(self._most, self._share)
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._may_copy = MOST_COPIED_BYTES
        self._response = FetchResponse()
        self._total = 0
        self._settled = False
        self._is_follower = _replica_of(request) >= 0
        self._leaders: set[int] = set()
        self.found: list[tuple[Partition, PartitionData]] = []
        """The partitions that are here, and what was read from each."""

    def steps(self) -> Steps:
        """Reads a few partitions in each step."""
        for topic in self._request.topics:
            partitions = topic.partitions
            for start in range(0, len(partitions) or 1, PARTITIONS_PER_STEP):
                part = partitions[start : start + PARTITIONS_PER_STEP]
                self.add(topic, part, goes_on=start > 0)
                yield len(part) or 1

    def add(
        self, topic: FetchTopic, asked_for: list[FetchPartition], *, goes_on: bool = False
    ) -> None:
        """Reads partitions of a topic; `goes_on` if they are not the first in the reply."""
        context = self._context
        name, error = _find_topic(topic, context, is_follower=self._is_follower)
        partitions = []
        for asked in asked_for:
            partition = context.services.partitions.get(name, asked.partition)
            if error is not None:
                data = _failed(asked, error, aborted=[])
            elif partition is None:
                data = _not_here(name, asked, context)
            else:
                first = self._total == 0 < self._share
                data = _read_one(partition, asked, self._left, first, self._read_committed)
                self.found.append((partition, data))
            self._count(data)
            if data.error_code in LEADER_ELSEWHERE:
                self._name_leader(name, data)
            partitions.append(data)
        if goes_on:
            self._response.responses[-1].partitions += partitions
        elif partitions:  # The reply leaves out a topic without partitions.
            self._response.responses.append(
                FetchableTopicResponse(topic=name, topic_id=topic.topic_id, partitions=partitions)
            )

    def _count(self, data: PartitionData) -> None:
        size = len(data.records) if data.records is not None else 0
        self._total += size
        self._left -= size
        if not isinstance(data.records, memoryview):
            self._may_copy -= size
            self._left = min(self._left, self._may_copy)
        self._settled |= data.error_code != 0 or data.diverging_epoch is not None

    def _name_leader(self, topic: str, data: PartitionData) -> None:
        """Adds the leader of a partition that another broker leads (KIP-951)."""
        if self._context.api_version >= FIRST_VERSION_WITH_LEADERS:
            metadata = self._context.services.metadata
            found = leadership.current_leader(metadata, topic, data.partition_index)
            data.current_leader = LeaderIdAndEpoch(**found._asdict())
            self._leaders.add(found.leader_id)

    def end(self) -> Read:
        """What was read."""
        if self._total and (self._left <= 0 or self._share < self._most):
            self._settled = True  # More would not fit, so it does not wait for more.
        metadata, listener = self._context.services.metadata, self._context.listener
        for node_id in sorted(self._leaders):
            found = leadership.address_of(metadata, node_id, listener)
            if found is not None:
                self._response.node_endpoints.append(NodeEndpoint(**found._asdict()))
        return Read(self._response, self._total, self._settled)


def _is_as_read(partition: Partition, data: PartitionData) -> bool:
    """Whether there is no more to read in a partition than when it was read."""
    return (
        partition.high_watermark == data.high_watermark
        and partition.last_stable_offset == data.last_stable_offset
        and partition.log_start_offset == data.log_start_offset
    )


def _replica_of(request: FetchRequest) -> int:
    """The broker that reads, in Kafka's clusters; -1 for a consumer."""
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


def _find_topic(
    topic: FetchTopic, context: Context, *, is_follower: bool
) -> tuple[str, ErrorCode | None]:
    """The name of a topic, and the error for all of its partitions."""
    name = topic.topic
    if is_follower and not context.authorize("CLUSTER_ACTION", CLUSTER, CLUSTER_NAME):
        return name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
        found = context.services.metadata.topic_name(topic.topic_id)
        if found is None:
            return "", ErrorCode.UNKNOWN_TOPIC_ID
        name = found
    if name and not is_follower and not context.authorize("READ", "TOPIC", name):
        return name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return name, None


def _not_here(topic: str, asked: FetchPartition, context: Context) -> PartitionData:
    epoch = max(-1, asked.current_leader_epoch)
    error = leadership.why_not(context.services, topic, asked.partition, epoch)
    is_unknown = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _failed(asked, error, aborted=[] if is_unknown else None)


def _read_one(
    partition: Partition,
    asked: FetchPartition,
    left: int,
    at_least_one: bool,
    read_committed: bool,
) -> PartitionData:
    # Here, any negative epoch means none; elsewhere only -1 does.
    if error := partition.check_leader_epoch(max(-1, asked.current_leader_epoch)):
        return _failed(asked, error)
    if asked.last_fetched_epoch >= 0 and (diverging := _diverged(partition, asked)):
        return diverging
    try:
        fetched = partition.fetch(
            asked.fetch_offset,
            max(0, min(asked.partition_max_bytes, left)),
            read_committed=read_committed,
            at_least_one=at_least_one,
        )
    except DamagedError as problem:
        log.error("cannot read %s at offset %d: %s", partition.name, asked.fetch_offset, problem)
        return _failed(asked, ErrorCode.CORRUPT_MESSAGE)
    except StorageError as problem:
        log.error("cannot read %s: %s", partition.name, problem)
        return _failed(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    return _partition_data(asked, fetched)


def _partition_data(asked: FetchPartition, fetched: Fetched) -> PartitionData:
    if fetched.error:
        return PartitionData(
            partition_index=asked.partition,
            error_code=fetched.error,
            high_watermark=fetched.high_watermark,
            last_stable_offset=fetched.last_stable_offset,
            log_start_offset=fetched.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
    aborted = None
    if fetched.aborted is not None:
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in fetched.aborted
        ]
    return PartitionData(
        partition_index=asked.partition,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
        aborted_transactions=aborted,
        records=fetched.data,
    )


def _diverged(partition: Partition, asked: FetchPartition) -> PartitionData | None:
    """The reply to a reader whose last epoch ended at another offset: where to truncate."""
    epoch, end_offset = partition.end_offset_for_epoch(asked.last_fetched_epoch)
    if end_offset < 0:  # No leader has had this epoch yet.
        return _failed(asked, ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch == asked.last_fetched_epoch and end_offset >= asked.fetch_offset:
        return None
    return PartitionData(
        partition_index=asked.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset),
        aborted_transactions=None,
        records=b"",
    )


def _failed(
    asked: FetchPartition, error: ErrorCode, aborted: list[AbortedTransaction] | None = None
) -> PartitionData:
    """Nothing to read.

    Kafka has an empty list of aborted transactions where it did not look for the partition.
    """
    return PartitionData(
        partition_index=asked.partition,
        error_code=error,
        high_watermark=-1,
        aborted_transactions=aborted,
        records=b"",
    )
