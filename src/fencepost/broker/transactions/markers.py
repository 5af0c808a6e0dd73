"""The ends of transactions, written to their partitions: the second phase of two-phase commit.

`append_marker` writes one marker to one partition that this node leads; the coordinator here and
the coordinator of another node (WriteTxnMarkers) both come through it. A marker on
`__consumer_offsets` also settles the offsets that the transaction had pending, before anybody is
told that it was written (KAFKA-17507).

A `MarkerRun` brings the markers of one transaction to all its partitions and keeps at it until
every one of them has its own, durably. What a refusal means (Kafka's rules for the sender):

- the partition cannot be written now (no leader, disk trouble): tried again, after a pause;
- the topic is gone: nobody can read what was written there, so the marker is not needed;
- a newer producer epoch or a newer coordinator has been there: this run has no say any more. It
  tries nothing again, and says so; partitions that take the marker have it all the same. The
  transaction stays prepared, and whoever loads its log next looks again.

A partition that another node leads is one that cannot be written now.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.broker.turns import TURN_SECONDS
from fencepost.records.control import Marker
from fencepost.records.entry import Entry

if TYPE_CHECKING:
    from fencepost.broker.node import Node, TimerHandle
    from fencepost.broker.transactions.ending import Ending
    from fencepost.partition.partition import Partition
    from fencepost.records.transaction_log import Partitions

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
RETRY_PAUSE_MS: Final = 100
"""Between two attempts on a partition that could not be written: Kafka's retry.backoff.ms."""

FEW: Final = 20
"""Markers that are written without a look at the time."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
OVERTAKEN: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
NEVER_WRITTEN_THERE: Final = frozenset(
    {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
"""The partition cannot hold transactions, so the producer cannot have written to it."""

_UNKNOWN_PARTITION: Final = Refusal(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."
)
_NOT_LEADER: Final = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker does not lead the partition."
)
_GROUPS_LOADING: Final = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "The group coordinator is loading the partition."
)


@dataclass(slots=True, init=False)
class EndMarker:
    """What is written to each partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


Written = tuple["Partition", int]
"""The partition of a marker, and the high watermark from which on the marker is durable."""


def append_marker(node: Node, topic: str, index: int, marker: EndMarker) -> Written | Refusal:
    """Appends one marker and applies it; the caller waits until it is durable."""
    partition = node.partition(topic, index)
    if partition is None:
        if node.metadata.partition(topic, index) is None:
            return _UNKNOWN_PARTITION
        return _NOT_LEADER
    if topic == CONSUMER_OFFSETS_TOPIC and not node.groups.is_loaded(index):
        # The fold of the group coordinator could miss a marker that comes while it runs.
        return _GROUPS_LOADING
    try:
        end_offset = partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            now_ms=node.clock.now_ms(),
        )
    except StorageError as problem:
        log.error("a marker could not be written to %s: %s", partition.name, problem)
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
    if isinstance(end_offset, Refusal):
        return end_offset
    if topic == CONSUMER_OFFSETS_TOPIC:
        _settle_offsets(node, index, end_offset - 1, marker)
    return partition, end_offset


def _settle_offsets(node: Node, index: int, offset: int, marker: EndMarker) -> None:
    outcome = Marker(marker.commit, marker.coordinator_epoch)
    node.groups.on_marker(
        index, Entry(offset, marker.producer_id, marker.producer_epoch, True, None, None, outcome)
    )


class MarkerRun:
    """The markers of one transaction, until every partition has its own."""

    __slots__ = (
        "_ending",
        "_failed",
        "_marker",
        "_node",
        "_overtaken",
        "_stopped",
        "_timer",
        "unmarked",
    )

    def __init__(
        self,
        node: Node,
        marker: EndMarker,
        partitions: Partitions,
        ending: Ending,
    ) -> None:
        self._node = node
        self._marker = marker
        self._ending = ending
        self._failed: list[TopicPartition] = []
        self._timer: TimerHandle | None = None
        self._overtaken = False
        self._stopped = False
        self.unmarked = {
            TopicPartition(topic, index): None
            for topic, indexes in partitions.items()
            for index in indexes
        }
        """Where the marker is not durable yet."""

    def start(self) -> None:
        """Writes them all; the ending hears once that it is done or over, perhaps before this returns."""
        if self.unmarked:
            self._write_all(list(self.unmarked))
        else:
            self._ending.markers_written()

    def cancel(self) -> None:
        """The coordinator lost its partition: whoever has it now writes what is missing."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _write_all(self, names: list[TopicPartition]) -> None:
        """Writes them; those of a transaction over very many partitions in several turns of the loop."""
        until = perf_counter() + TURN_SECONDS if len(names) > FEW else 0.0
        for count, name in enumerate(names):
            if until and count > FEW and perf_counter() >= until:
                self._timer = self._node.call_later(0, partial(self._go_on, names[count:]))
                return
            self._write(name)
        if self._overtaken:
            self._ending.answer()
        elif self._failed:
            self._timer = self._node.call_later(RETRY_PAUSE_MS, self._retry)

    def _write(self, name: TopicPartition) -> None:
        written = append_marker(self._node, name[0], name[1], self._marker)
        if not isinstance(written, Refusal):
            partition, end_offset = written
            self._ending.marker_appended()
            if partition.high_watermark >= end_offset:
                self._settled(name)
            else:
                self._node.when_durable(partition, end_offset, partial(self._settled, name))
            return
        error = written.error
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or error in NEVER_WRITTEN_THERE:
            log.info(
                "%s needs no marker of producer %d: %s", name, self._marker.producer_id, error.name
            )
            self._settled(name)
        elif error in OVERTAKEN:
            self._refused(name, error)
        else:
            assert error in RETRIABLE, f"a marker was refused with {error.name}"
            self._failed.append(name)

    def _settled(self, name: TopicPartition) -> None:
        if self._stopped:
            return
        del self.unmarked[name]
        if not self.unmarked:
            self._ending.markers_written()

    def _refused(self, name: TopicPartition, error: ErrorCode) -> None:
        self._overtaken = True
        log.error(
            "the transaction of producer %d at epoch %d cannot be ended on %s: %s",
            self._marker.producer_id,
            self._marker.producer_epoch,
            name,
            error.name,
        )

    def _go_on(self, names: list[TopicPartition]) -> None:
        self._timer = None
        self._write_all(names)

    def _retry(self) -> None:
        self._timer = None
        names, self._failed = self._failed, []
        self._write_all(names)
