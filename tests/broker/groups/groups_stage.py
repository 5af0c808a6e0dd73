"""A node that coordinates groups: real partitions on a disk in memory, manual clock and timers."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition, coordinator_partition
from fencepost.base.refusal import Refusal
from fencepost.broker.groups.coordinator import GroupCoordinator
from fencepost.broker.peers import NO_PEERS
from fencepost.broker.transactions.markers import EndMarker, MarkerWriter
from fencepost.broker.waiting import Parked
from fencepost.wire.codec import encode_response
from tests.broker.controller.topics_stage import NOW_MS, StageRuntime, StubNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fencepost.broker.peers import Answer, FirstWrite
    from fencepost.simulation.disk import UnsyncedDisk
    from fencepost.wire.apis import ApiKey


class HandClock:
    def __init__(self) -> None:
        self.time_ms = NOW_MS

    def now_ms(self) -> int:
        return self.time_ms


class StageTimer:
    """One timer; timers of the same time fire in the order in which they were set."""

    def __init__(self, due_ms: float, number: int, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.number = number
        self.callback = callback
        self.cancelled = False

    def __lt__(self, other: StageTimer) -> bool:
        return (self.due_ms, self.number) < (other.due_ms, other.number)

    def cancel(self) -> None:
        self.cancelled = True


class Asked(NamedTuple):
    """A call of `verify`."""

    name: TopicPartition
    transactional_id: str
    producer_id: int
    producer_epoch: int
    add: bool


class Verifier:
    """A stub of the transaction coordinator that replies as the test sets it, now or later."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.error = ErrorCode.NONE
        self.answers_later = False
        self.waiting: list[Callable[[ErrorCode], None]] = []

    def load(self, index: int, partition: object, *, held: bool) -> None:
        """The broker loads partitions of `__transaction_state` too."""

    def verify(self, write: FirstWrite, done: Answer) -> None:
        (name,) = write.names
        producer = (write.producer_id, write.producer_epoch)
        self.asked.append(Asked(name, write.transactional_id, *producer, write.add))
        if self.answers_later:
            self.waiting.append(lambda error: done([error]))
        else:
            done([self.error])


class HandRuntime(StageRuntime):
    """Timers that fire in the order of their times, when the test lets time pass."""

    clock: HandClock  # type: ignore[assignment]

    def __init__(self, disk: UnsyncedDisk, *, fsync: bool) -> None:
        super().__init__(disk, fsync=fsync)
        self.clock = HandClock()
        self._by_time: list[StageTimer] = []
        self._numbers = itertools.count()

    def steady_ms(self) -> int:
        return self.clock.now_ms()

    def call_later(  # type: ignore[override]
        self, delay_ms: float, callback: Callable[[], None]
    ) -> StageTimer:
        timer = StageTimer(self.clock.time_ms + delay_ms, next(self._numbers), callback)
        heapq.heappush(self._by_time, timer)
        return timer

    def advance(self, milliseconds: int) -> None:
        """Lets time pass, and fires the timers that are due."""
        until_ms = self.clock.time_ms + milliseconds
        while self._by_time and self._by_time[0].due_ms <= until_ms:
            timer = heapq.heappop(self._by_time)
            self.clock.time_ms = max(self.clock.time_ms, int(timer.due_ms))
            if not timer.cancelled:
                timer.callback()
        self.clock.time_ms = until_ms


class GroupNode(StubNode):
    """A node with the real group coordinator."""

    groups: GroupCoordinator
    transactions: Verifier
    markers: MarkerWriter
    runtime: HandRuntime

    def __init__(self, settings: Mapping[str, str] | None = None, **fields: Any) -> None:
        super().__init__({"offsets.topic.num.partitions": "3", **(settings or {})}, **fields)

    def new_runtime(self) -> HandRuntime:
        return HandRuntime(self.disk, fsync=self.partitions.fsync)

    def add_coordinators(self) -> None:
        runtime: Any = self.runtime
        self.transactions = Verifier()
        self.groups = GroupCoordinator(runtime, self.config, self.randomness, self.metadata)
        self.markers = MarkerWriter(runtime, self.partitions, self.metadata, self.groups, NO_PEERS)

    def begin(self) -> GroupNode:
        """Starts with the topics of the tests and with `__consumer_offsets`."""
        self.start()
        self.made("orders", 3)
        self.internal_topics.ensure(CONSUMER_OFFSETS_TOPIC)
        return self

    def again(self, **fields: Any) -> GroupNode:
        """Starts the next node on the same disk."""
        node = GroupNode(
            {**self.config.static}, disk=self.disk, randomness=self.randomness, **fields
        )
        node.runtime.clock.time_ms = self.runtime.clock.time_ms
        return node.start()

    def advance(self, milliseconds: int) -> None:
        """Lets time pass, and fires the timers that are due."""
        self.runtime.advance(milliseconds)

    # -- requests ----------------------------------------------------------------------------------

    def send(self, api: ApiKey, handle: Callable[..., object], request: Any, version: int) -> Any:
        """Sends a request; returns its reply, or its `Parked` if there is none yet.

        Every reply must fit its version.
        """
        reply = handle(request, self.context(version))
        if isinstance(reply, Parked):
            if reply.holds_followers:
                self.advance(0)  # It may take several turns of the loop.
            if not reply.answered:
                return reply
            reply = reply.reply
        encode_response(api, version, 1, reply)
        return reply

    def end_transaction(self, group_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Writes the marker into the partition of a group."""
        count = self.metadata.partition_count(CONSUMER_OFFSETS_TOPIC)
        index = coordinator_partition(group_id, count)
        marker = EndMarker(producer_id, epoch, commit, 0, 0)
        written = self.markers.append(CONSUMER_OFFSETS_TOPIC, index, marker)
        assert not isinstance(written, Refusal)
