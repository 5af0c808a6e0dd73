"""The brokers of a cluster, as its controller follows their progress (`Followers`).

Theory of operation
-------------------
The controller's process has its own follower: it owns the state that is decided on, and
carries out what the controller does itself, which is to remove the folders of deleted topics and to
take new settings of the cluster. Every batch of the log is applied there at once, and queued. When
the controller says that its records are durable (`carry_out`), it is sent to every connected
broker:

    sent       RECORDS to all brokers
    released   every broker that the batch takes something from has closed it
    own        the controller's own effects: no process has the folders of a deleted topic open now
    opening    OPEN to all brokers, if they wait for it
    done       every broker has carried the batch out

Batches go through these steps in their order, each broker at its own speed. A callback of
`carry_out` runs when every connected broker is done with everything that was appended before it. A
broker that is disconnected, because its process is gone, is waited for no longer. One that is
connected gets the state as it is then, and later batches.

A broker whose killed process does not end is suspended: nothing is sent to it, and no batch waits
until it is done. But it may still write what it has not released. So a batch that gives its
partitions to others waits, with all later ones, until it is disconnected; one that leaves them
without a leader does not.

Records that have no effects (blocks of producer ids) are sent with the next batch that has some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fencepost.base.ids import NO_NODE
from fencepost.broker.metadata.follower import MetadataFollower
from fencepost.coordinator.metadata.effects import Effect, LeadersChanged, TopicRemoved
from fencepost.coordinator.metadata.snapshot import snapshot
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import MetadataRecord, RemoveTopicRecord, encode_record


class BrokerPort(Protocol):
    """What is sent to one broker."""

    def state(self, end_offset: int, records: list[bytes]) -> None:
        """Sends the metadata as it is."""

    def records(self, end_offset: int, records: list[bytes], *, opens_at_once: bool) -> None:
        """Sends a batch."""

    def open(self, end_offset: int) -> None:
        """Sends the permission to open what batches below this offset give."""


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch on its way to the brokers."""

    end_offset: int
    values: list[bytes]
    effects: Sequence[Effect]
    losers: set[int]
    """The brokers that lose something by it and have not released it yet."""
    is_own_done: bool = False


class _Progress:
    """How far one broker is."""

    __slots__ = ("done_below", "port")

    def __init__(self, port: BrokerPort, end_offset: int) -> None:
        self.port = port
        self.done_below = end_offset


class RemoteFollowers:
    """All brokers of one cluster, and the controller's own follower."""

    def __init__(self, follower: MetadataFollower, end_offset: Callable[[], int]) -> None:
        """`end_offset` is the end of the metadata log."""
        self._follower: Final = follower
        self._end_offset: Final = end_offset
        self._brokers: Final[dict[int, _Progress]] = {}
        self._suspended: Final[set[int]] = set()
        self._unsent: Final[deque[_Batch]] = deque()
        self._releasing: Final[deque[_Batch]] = deque()
        """Batches that were sent, and that brokers may not open yet."""
        self._is_own_running = False
        self._sent_below = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    # -- what the controller uses -----------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        """The node that decides."""
        return self._follower.controller_id

    @controller_id.setter
    def controller_id(self, node_id: int) -> None:
        self._follower.controller_id = node_id

    @property
    def state(self) -> MetadataState:
        """The state that the controller decides on."""
        return self._follower.state

    def apply(self, records: Sequence[MetadataRecord]) -> Sequence[Effect]:
        """Applies a batch to the controller's own state, and queues it for the brokers."""
        losers = self._losers_by_removal(records)
        effects = self._follower.apply(records)
        losers |= {
            change.leader_before
            for effect in effects
            if isinstance(effect, LeadersChanged)
            for change in effect.partitions
            if change.closes_at(change.leader_before)
            and not (change.leader == NO_NODE and change.leader_before in self._suspended)
        }
        values = [encode_record(record) for record in records]
        self._unsent.append(_Batch(self._end_offset(), values, effects, losers))
        return effects

    def carry_out(self, effects: Sequence[Effect], done: Callable[[], None]) -> None:
        """Sends what was applied so far, which is durable; calls `done` when all brokers are."""
        self._send_unsent()
        self._waiting.append((self._end_offset(), done))
        self._go_on()

    def _losers_by_removal(self, records: Sequence[MetadataRecord]) -> set[int]:
        """The brokers that lead partitions of the topics that a batch removes."""
        return {
            partition.leader
            for record in records
            if isinstance(record, RemoveTopicRecord)
            for partition in self.state.topics_by_id[bytes(record.topic_id)].partitions
        }

    # -- what the brokers report ------------------------------------------------------------------

    def connect(self, broker_id: int, port: BrokerPort) -> None:
        """A broker has started: it gets the state, and every later batch."""
        assert broker_id not in self._brokers, f"broker {broker_id} is connected"
        self._send_unsent()  # They are in the state that the new broker gets.
        end_offset = self._end_offset()
        port.state(end_offset, [encode_record(record) for record in snapshot(self.state)])
        self._brokers[broker_id] = _Progress(port, end_offset)

    def suspend(self, broker_id: int) -> None:
        """The process of a broker was killed, but has not ended."""
        if self._brokers.pop(broker_id, None) is not None:
            self._suspended.add(broker_id)
            self._go_on()

    def disconnect(self, broker_id: int) -> None:
        """The process of a broker is gone."""
        self._brokers.pop(broker_id, None)
        self._suspended.discard(broker_id)
        for batch in self._releasing:
            batch.losers.discard(broker_id)
        self._go_on()

    def released(self, broker_id: int, end_offset: int) -> None:
        """A broker has closed what the batches below this offset take from it."""
        for batch in self._releasing:
            if batch.end_offset <= end_offset:
                batch.losers.discard(broker_id)
        self._go_on()

    def done(self, broker_id: int, end_offset: int) -> None:
        """A broker has carried out the batches below this offset."""
        progress = self._brokers.get(broker_id)
        if progress is not None:  # Otherwise its process has ended.
            progress.done_below = end_offset
            self._go_on()

    def unfinished(self) -> list[int]:
        """The brokers that have not carried out everything that was sent, by id."""
        return sorted(
            broker_id
            for broker_id, progress in self._brokers.items()
            if progress.done_below < self._sent_below
        )

    # -- the steps --------------------------------------------------------------------------------

    def _send_unsent(self) -> None:
        while self._unsent:
            batch = self._unsent.popleft()
            batch.losers &= self._brokers.keys() | self._suspended
            # The controller removes folders between release and open.
            removes = any(isinstance(effect, TopicRemoved) for effect in batch.effects)
            opens_at_once = not batch.losers and not removes
            for progress in self._brokers.values():
                progress.port.records(batch.end_offset, batch.values, opens_at_once=opens_at_once)
            self._releasing.append(batch)
            self._sent_below = batch.end_offset

    def _go_on(self) -> None:
        while self._releasing and not self._is_own_running:
            batch = self._releasing[0]
            if batch.losers:
                break
            if not batch.is_own_done:
                self._is_own_running = True
                self._follower.carry_out(batch.effects, self._own_done)
                continue
            self._releasing.popleft()
            for progress in self._brokers.values():
                progress.port.open(batch.end_offset)
        self._call_back()

    def _own_done(self) -> None:
        self._is_own_running = False
        self._releasing[0].is_own_done = True
        self._go_on()

    def _call_back(self) -> None:
        opened_below = self._releasing[0].end_offset - 1 if self._releasing else self._end_offset()
        done_below = min(
            (progress.done_below for progress in self._brokers.values()), default=opened_below
        )
        while self._waiting and self._waiting[0][0] <= min(opened_below, done_below):
            self._waiting.popleft()[1]()
