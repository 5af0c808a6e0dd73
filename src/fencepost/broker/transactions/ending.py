"""One transaction on its way from its Prepare record to its Complete record.

    Prepare appended - durable - a marker on each partition - all durable - Complete appended -
    durable - answer

Unlike Kafka we answer EndTxn at the end: a client that has its answer never meets
CONCURRENT_TRANSACTIONS with its next request. If the markers take long, the answer goes out with
the decision alone, as in Kafka, and the rest goes on; at once if a partition will never take its
marker. An answer that is an error (a fence tells the new producer to come again) does not wait.

`node.crash_points`, where a test has set it, is called with a name between any two writes: it stops
the process there.

Nothing here may hold itself alive: a transaction whose parts point at each other waits for the
garbage collector, and with ten thousand of them a second that is a twentieth of the broker's time.
So an `Ending` lets its run go when the markers are written.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.broker.transactions.markers import EndMarker, MarkerRun
from fencepost.coordinator.txn.events import MarkersWritten, Reply
from fencepost.coordinator.txn.prepare import decide_markers_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fencepost.base.ids import TopicPartition
    from fencepost.broker.node import Node, TimerHandle
    from fencepost.broker.transactions.partition import CoordinatorPartition
    from fencepost.coordinator.txn.events import WriteMarkers

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
END_TXN_WAIT_MS: Final = 5_000
"""How long EndTxn waits for its markers before it answers with the decision alone. Clients give a
request up after 30 s (Java, kafka-python), 40 s (aiokafka) or 60 s (librdkafka), and applications
often wait 10 s for a commit."""

COMPLETE_RETRY_MS: Final = 100
"""Between two attempts to write a Complete record that the disk refused."""


class EndPoints(NamedTuple):
    """The places between two writes of one commit or abort, in their order."""

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
"""Every name that `node.crash_points` is called with."""


class Ending:
    """One transaction between Prepare and Complete, and the answer that waits for it."""

    __slots__ = ("_coordinator", "_done", "_effect", "_node", "_reply", "_run", "_timer", "points")

    def __init__(
        self,
        node: Node,
        coordinator: CoordinatorPartition,
        effect: WriteMarkers,
        reply: Reply,
        done: Callable[[Reply], None] | None,
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._effect = effect
        self._reply = reply
        self._done = done
        self._run: MarkerRun | None = None
        self._timer: TimerHandle | None = None
        self.points = COMMIT_POINTS if effect.commit else ABORT_POINTS

    def reached(self, point: str) -> None:
        """The place between two writes where a test may let the process die."""
        crash = self._node.crash_points
        if crash is not None:
            crash(point)

    @property
    def unmarked(self) -> Iterable[TopicPartition]:
        """The partitions that have no durable marker yet."""
        return () if self._run is None else self._run.unmarked

    def prepared(self) -> None:
        """The Prepare record is durable: the outcome is fixed."""
        self.reached(self.points.prepare_durable)
        if self._coordinator.closed:
            self._reply = Reply(ErrorCode.NOT_COORDINATOR)
            self.answer()
            return
        if self._reply.error is not NONE:
            log.info(
                "transactional id %s: another producer takes it over; the open transaction of "
                "producer %d is aborted",
                self._effect.transactional_id,
                self._effect.producer_id,
            )
            self.answer()
        self.write_markers()

    def write_markers(self) -> None:
        """Brings the outcome to every partition; also what a load does with what it finds prepared."""
        effect, coordinator = self._effect, self._coordinator
        marker = EndMarker(
            effect.producer_id,
            effect.producer_epoch,
            effect.commit,
            coordinator.epoch,
            effect.transaction_version,
        )
        coordinator.endings[effect.transactional_id] = self
        self._run = run = MarkerRun(self._node, marker, effect.partitions, self)
        run.start()
        if self._done is not None:
            self._timer = self._node.call_later(END_TXN_WAIT_MS, self.answer)

    def marker_appended(self) -> None:
        """The run has written one marker, which may not be durable yet."""
        self.reached(self.points.marker_appended)

    def markers_written(self) -> None:
        """The run is at its end: every partition has its marker."""
        self._run = None
        self.reached(self.points.markers_durable)
        self._complete()

    def _complete(self) -> None:
        effect, coordinator = self._effect, self._coordinator
        if coordinator.closed:
            return
        event = MarkersWritten(effect.transactional_id, effect.producer_id, effect.producer_epoch)
        now_ms = self._node.clock.now_ms()
        decision = decide_markers_written(coordinator.state, event, now_ms)
        end_offset = coordinator.append(decision.records[0], now_ms)
        if isinstance(end_offset, Refusal):
            self._node.call_later(COMPLETE_RETRY_MS, self._complete)
            return
        self.reached(self.points.complete_appended)
        if coordinator.partition.high_watermark >= end_offset:
            self._completed(end_offset)
        else:
            self._node.when_durable(
                coordinator.partition, end_offset, partial(self._completed, end_offset)
            )

    def _completed(self, end_offset: int) -> None:
        self.reached(self.points.complete_durable)
        coordinator, transactional_id = self._coordinator, self._effect.transactional_id
        if not coordinator.closed:
            del coordinator.endings[transactional_id]
            # Before the answer: the client's next request may be there already, and is served
            # within it.
            coordinator.settle(transactional_id, end_offset)
            self.answer()

    def abandon(self) -> None:
        """The partition goes to another: it finds the Prepare record and finishes.

        The decision stands.
        """
        if self._run is not None:
            self._run.cancel()
        self.answer()

    def answer(self) -> None:
        """What the client hears, once; also when the run has given up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is not None:
            done(self._reply)
