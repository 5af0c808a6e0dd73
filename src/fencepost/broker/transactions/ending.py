"""One transaction from its Prepare record to its Complete record; the methods follow this order.

    begin             append the Prepare record
    _prepared         it is durable: the outcome is fixed
    write_markers     append a marker to each partition; retry those that cannot be written now
    _send_markers     send the markers of partitions that other nodes lead; `_answered` gets the
                      replies
    _marked           one marker is durable; after the last one:
    _complete         append the Complete record
    _completed        it is durable: answer

Unlike Kafka we answer EndTxn at the end, so that the next request of the client does not get
CONCURRENT_TRANSACTIONS. If the markers take long, the answer goes out after the decision alone, as
in Kafka, and the rest continues; it goes out at once if a partition will never accept its marker.
An answer that is an error (a fence asks the new producer to retry) does not wait either.

A marker that was sent is sent again only after a reply, or after the death of the node that had it
(`markers.py`). The same marker may then be in a partition twice. That ends nothing else: the
producer cannot begin its next transaction before the Complete record.

When a partition refuses a marker, Kafka's rules for the sender apply:

- the partition cannot be written now (no leader, a disk error, another node leads it): retried
  after a pause;
- the topic is gone: nothing that was written there can be read, so the marker is not needed. Only
  the metadata of this node says so. Another node that does not know the partition may have deleted
  it later, or may not lead it yet, so its marker is retried. A topic that was created again under
  the name gets the marker: the transaction may have written to it, and otherwise it ends nothing;
- it has seen a newer producer epoch or a newer coordinator: this coordinator has been overtaken. It
  retries nothing and logs an error; partitions that accepted the marker keep it. The transaction
  stays prepared until its log is loaded again.

`Runtime.crash_points`, if a test has set it, is called with a name between any two writes, and can
stop the process there.

Nothing here may hold a reference to itself: such a transaction would wait for the garbage
collector, which at ten thousand transactions a second takes a twentieth of the broker's time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_NODE, TopicPartition
from fencepost.base.refusal import Refusal
from fencepost.broker.runtime import Runtime, TimerHandle
from fencepost.broker.transactions.journal import BY_CLIENT, Origin
from fencepost.broker.transactions.markers import (
    ABORT_LEADER_POINTS,
    COMMIT_LEADER_POINTS,
    NOT_LEADER,
    UNKNOWN_PARTITION,
    EndMarker,
    MarkerWriter,
)
from fencepost.broker.transactions.partition import CoordinatorPartition
from fencepost.broker.turns import Turn
from fencepost.coordinator.txn.events import LogRecord, MarkersWritten, Reply, WriteMarkers
from fencepost.coordinator.txn.prepare import decide_markers_written
from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
COMPLETE_RETRY_MS: Final = 100
"""Pause before a Complete record that the disk refused is written again."""

MARKER_RETRY_MS: Final = 100
"""Pause before a marker that a partition refused is written again: Kafka's retry.backoff.ms."""

UNTIMED_MARKERS: Final = 20
"""Markers that are written in one turn without checking the time."""

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


class EndPoints(NamedTuple):
    """The points between two writes of one commit or abort, in their order."""

    before_prepare: str
    prepare_appended: str
    prepare_durable: str
    marker_appended: str
    """Once per partition."""
    markers_durable: str
    complete_appended: str
    complete_durable: str


def _end_points(outcome: str) -> EndPoints:
    return EndPoints(*(f"{outcome}.{name.replace('_', '-')}" for name in EndPoints._fields))


COMMIT_POINTS: Final = _end_points("commit")
ABORT_POINTS: Final = _end_points("abort")
CRASH_POINTS: Final = (*COMMIT_POINTS, *ABORT_POINTS)
"""Every name that `Runtime.crash_points` is called with, if one node leads all partitions."""


class RemotePoints(NamedTuple):
    """The points between a coordinator and a leader on another node; once per leader."""

    markers_sent: str
    markers_answered: str


COMMIT_REMOTE_POINTS: Final = RemotePoints("commit.markers-sent", "commit.markers-answered")
ABORT_REMOTE_POINTS: Final = RemotePoints("abort.markers-sent", "abort.markers-answered")
REMOTE_CRASH_POINTS: Final = (
    *COMMIT_REMOTE_POINTS,
    *ABORT_REMOTE_POINTS,
    *COMMIT_LEADER_POINTS,
    *ABORT_LEADER_POINTS,
)
"""The names that are reached if another node leads a partition, by the coordinator and by it."""


class Ending:
    """One commit or abort in progress, and the answer that waits for it."""

    __slots__ = (
        "_answer_deadline",
        "_begun_at",
        "_coordinator",
        "_done",
        "_effect",
        "_elsewhere",
        "_failed",
        "_is_overtaken",
        "_lifetime_ms",
        "_marker",
        "_markers",
        "_origin",
        "_points",
        "_remote_points",
        "_reply",
        "_runtime",
        "_timer",
        "is_abandoned",
        "unmarked",
    )

    def __init__(
        self,
        runtime: Runtime,
        markers: MarkerWriter,
        coordinator: CoordinatorPartition,
        effect: WriteMarkers,
        reply: Reply,
        done: Callable[[Reply], None] | None,
        origin: Origin,
    ) -> None:
        self._runtime = runtime
        self._markers = markers
        self._coordinator = coordinator
        self._effect = effect
        self._reply = reply
        self._done = done
        self._origin = origin
        self._begun_at = perf_counter()
        self._lifetime_ms = 0
        self._marker = EndMarker(
            effect.producer_id,
            effect.producer_epoch,
            effect.commit,
            coordinator.epoch,
            effect.transaction_version,
        )
        self._points = COMMIT_POINTS if effect.commit else ABORT_POINTS
        self._remote_points = COMMIT_REMOTE_POINTS if effect.commit else ABORT_REMOTE_POINTS
        self._answer_deadline = 0
        self._timer: TimerHandle | None = None
        self._failed: list[TopicPartition] = []
        self._elsewhere: dict[int, list[TopicPartition]] | None = None
        """Partitions that other nodes lead, by their leader, whose markers are not sent yet."""
        self._is_overtaken = False
        self.is_abandoned = False
        """Whether another node has the partition of the coordinator, and finishes."""
        self.unmarked: dict[TopicPartition, None] = {}
        """The partitions that have no durable marker yet."""

    # -- the Prepare record -----------------------------------------------------------------------

    def begin(self, record: LogRecord, now_ms: int) -> None:
        """Appends the Prepare record; everything else follows once it is durable."""
        self._reach(self._points.before_prepare)
        coordinator = self._coordinator
        transactional_id = record.transactional_id
        before = None
        if self._origin is not BY_CLIENT:
            before = coordinator.state.transactions[transactional_id]
        end_offset = coordinator.append(record, now_ms)
        if isinstance(end_offset, Refusal):
            self._reply = Reply(end_offset.error)
            self._answer()
            return
        if before is not None:
            assert record.metadata is not None
            is_fenced = record.metadata.producer_epoch != before.producer_epoch
            client = coordinator.fence(transactional_id) if is_fenced else None
            coordinator.journal.ending(
                transactional_id,
                before,
                self._origin,
                client or coordinator.clients.get(transactional_id),
                now_ms,
                commit=self._effect.commit,
                is_fenced=is_fenced,
            )
        self._reach(self._points.prepare_appended)
        if coordinator.partition.high_watermark >= end_offset:
            self._prepared()
        else:
            self._runtime.when_durable(coordinator.partition, end_offset, self._prepared)

    def _prepared(self) -> None:
        """The Prepare record is durable: the outcome is fixed."""
        self._reach(self._points.prepare_durable)
        if self._coordinator.closed:
            self._reply = Reply(ErrorCode.NOT_COORDINATOR)
            self._answer()
            return
        if self._reply.error is not NONE:  # Another producer takes the id over, and has to retry.
            self._answer()
        self.write_markers()

    # -- the markers ------------------------------------------------------------------------------

    def write_markers(self) -> None:
        """Writes a marker to every partition; a load begins here with what it found prepared."""
        effect = self._effect
        self._coordinator.endings[effect.transactional_id] = self
        for topic, indexes in effect.partitions.items():
            for index in indexes:
                self.unmarked[TopicPartition(topic, index)] = None
        if self.unmarked:
            self._write_some(list(self.unmarked))
        else:
            self._complete()
        if self._done is not None:
            self._answer_deadline = self._coordinator.answers.set(self._answer)

    def _write_some(self, names: list[TopicPartition]) -> None:
        """Writes these markers, in several turns of the loop if they are very many."""
        self._timer = None
        turn = Turn() if len(names) > UNTIMED_MARKERS else None
        for count, name in enumerate(names):
            if turn is not None and count > UNTIMED_MARKERS and turn.is_over():
                self._timer = self._runtime.call_later(0, partial(self._write_some, names[count:]))
                return
            self._write_marker(name)
        if self._elsewhere is not None:
            self._send_markers(self._elsewhere)
        self._retry_failed()

    def _retry_failed(self) -> None:
        """Writes refused markers again after a pause, when all others have been tried once."""
        if self._is_overtaken:
            self._answer()
        elif self._failed and self._timer is None:
            self._timer = self._runtime.call_later(MARKER_RETRY_MS, self._write_failed)

    def _write_failed(self) -> None:
        failed, self._failed = self._failed, []
        self._write_some(failed)

    def _write_marker(self, name: TopicPartition) -> None:
        written = self._markers.append(name[0], name[1], self._marker)
        if not isinstance(written, Refusal):
            partition, end_offset = written
            self._reach(self._points.marker_appended)
            if partition.high_watermark >= end_offset:
                self._marked(name)
            else:
                self._runtime.when_durable(
                    partition, end_offset, partial(self._durable, name, partition)
                )
            return
        if written is NOT_LEADER:
            leader = self._markers.other_leader(name)
            if leader != NO_NODE:
                if self._elsewhere is None:
                    self._elsewhere = {}
                self._elsewhere.setdefault(leader, []).append(name)
                return
        elif written is UNKNOWN_PARTITION:
            self._not_needed(name, written.error)
            return
        self._refused(name, written.error)

    def _durable(self, name: TopicPartition, partition: Partition) -> None:
        """A marker that was appended here is durable, unless its partition was closed before."""
        if self.is_abandoned:
            return
        if partition.closed and not self._markers.is_deleted(partition):
            # It moved to another node, perhaps without the marker.
            self._failed.append(name)
            self._retry_failed()
        else:
            self._marked(name)

    def _not_needed(self, name: TopicPartition, error: ErrorCode) -> None:
        log.info(
            "%s needs no marker of producer %d: %s", name, self._marker.producer_id, error.name
        )
        self._marked(name)

    def _refused(self, name: TopicPartition, error: ErrorCode) -> None:
        """A partition refused its marker, here or at another node."""
        if error in NEVER_WRITTEN_THERE:
            self._not_needed(name, error)
        elif error in OVERTAKEN:
            self._is_overtaken = True
            log.error(
                "the transaction of producer %d at epoch %d cannot be ended on %s: %s",
                self._marker.producer_id,
                self._marker.producer_epoch,
                name,
                error.name,
            )
        else:
            assert error in RETRIABLE, f"a marker was refused with {error.name}"
            self._failed.append(name)

    # -- markers for other nodes ------------------------------------------------------------------

    def _send_markers(self, elsewhere: dict[int, list[TopicPartition]]) -> None:
        """Sends each leader the markers of its partitions."""
        self._elsewhere = None
        for leader, names in elsewhere.items():
            self._markers.send(leader, self._marker, names, partial(self._answered, names))
            self._reach(self._remote_points.markers_sent)

    def _answered(self, names: Sequence[TopicPartition], errors: list[ErrorCode] | None) -> None:
        """A leader has answered, or it is dead: the next leader gets the markers then."""
        if self.is_abandoned:
            return
        self._reach(self._remote_points.markers_answered)
        if errors is None:
            self._failed.extend(names)
        else:
            for name, error in zip(names, errors, strict=True):
                if error is NONE:
                    self._marked(name)
                else:
                    self._refused(name, error)
        self._retry_failed()

    def _marked(self, name: TopicPartition) -> None:
        """The marker of one partition is durable, or not needed."""
        if self.is_abandoned:
            return
        del self.unmarked[name]
        if not self.unmarked:
            self._complete()

    # -- the Complete record ----------------------------------------------------------------------

    def _complete(self) -> None:
        """Every marker is durable: appends the Complete record."""
        self._reach(self._points.markers_durable)
        self._append_complete()

    def _append_complete(self) -> None:
        effect, coordinator = self._effect, self._coordinator
        if coordinator.closed:
            return
        event = MarkersWritten(effect.transactional_id, effect.producer_id, effect.producer_epoch)
        now_ms = self._runtime.clock.now_ms()
        decision = decide_markers_written(coordinator.state, event, now_ms)
        record = decision.records[0]
        assert record.metadata is not None
        self._lifetime_ms = now_ms - record.metadata.start_ms
        end_offset = coordinator.append(record, now_ms)
        if isinstance(end_offset, Refusal):
            self._runtime.call_later(COMPLETE_RETRY_MS, self._append_complete)
            return
        self._reach(self._points.complete_appended)
        if coordinator.partition.high_watermark >= end_offset:
            self._completed(end_offset)
        else:
            self._runtime.when_durable(
                coordinator.partition, end_offset, partial(self._completed, end_offset)
            )

    def _completed(self, end_offset: int) -> None:
        """The Complete record is durable: answers."""
        self._reach(self._points.complete_durable)
        coordinator, transactional_id = self._coordinator, self._effect.transactional_id
        if not coordinator.closed:
            del coordinator.endings[transactional_id]
            if self._effect.partitions:  # An abort of TV2 may end nothing.
                coordinator.journal.ended(
                    self._origin,
                    commit=self._effect.commit,
                    seconds=perf_counter() - self._begun_at,
                    lifetime_ms=self._lifetime_ms,
                )
            # Before the answer: the client's next request may be there already, and is served
            # within it.
            coordinator.settle(transactional_id, end_offset)
            self._answer()

    # -- the answer -------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Answers the client, once."""
        if self._answer_deadline:
            self._coordinator.answers.cancel(self._answer_deadline)
            self._answer_deadline = 0
        done, self._done = self._done, None
        if done is not None:
            done(self._reply)

    def abandon(self) -> None:
        """Stops: another node has the partition, finds the Prepare record, and finishes."""
        self.is_abandoned = True
        if self._timer is not None:
            self._timer.cancel()
        self._answer()

    def _reach(self, point: str) -> None:
        crash = self._runtime.crash_points
        if crash is not None:
            crash(point)
