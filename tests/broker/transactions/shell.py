"""A small node for the transaction service: real partitions in memory, manual time and syncs.

With `fsync` nothing is durable before `sync` is called, so a test can check every step in between.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fencepost.base.failures import StorageError
from fencepost.base.ids import (
    CONSUMER_OFFSETS_TOPIC,
    NO_NODE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from fencepost.broker.coordinators.log_loader import LoadQueue
from fencepost.broker.peers import NO_PEERS, FirstWrite
from fencepost.broker.transactions.coordinator import TransactionCoordinator
from fencepost.broker.transactions.markers import MarkerWriter
from fencepost.broker.turns import Line
from fencepost.coordinator.metadata.state import PartitionState
from fencepost.coordinator.txn.events import AddPartitions, EndTxn, InitProducerId, Reply
from fencepost.log.config import LogConfig
from fencepost.log.opening import open_log
from fencepost.partition.partition import Partition
from fencepost.simulation.disk import UnsyncedDisk

if TYPE_CHECKING:
    from fencepost.base.errors import ErrorCode
    from fencepost.records.entry import Entry
    from fencepost.records.transaction_log import Partitions, TransactionMetadata

Callback = Callable[[], None]
NODE_ID = 1


class ShellTimer:
    """A timer of the node."""

    def __init__(self, due_ms: float, callback: Callback) -> None:
        self.due_ms = due_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Broken(Exception):  # noqa: N818 - the test asked for it.
    """The crash point that the test has set was reached."""


class ShellNode:
    """A stub of the node, with what the transaction service needs."""

    def __init__(
        self,
        *,
        fsync: bool = False,
        topics: dict[str, int] | None = None,
        coordinator_partitions: int = 1,
        recovery: str = "resume",
        disk: UnsyncedDisk | None = None,
    ) -> None:
        self.disk = disk or UnsyncedDisk()
        self.fsync = fsync
        self.now_ms = 1_000_000
        self.clock_is_off_by_ms = 0
        self.clock = SimpleNamespace(now_ms=lambda: self.now_ms + self.clock_is_off_by_ms)
        self.config = SimpleNamespace(
            transaction_max_timeout_ms=900_000,
            transaction_recovery_ongoing=recovery,
            data="/data",
            node_id=NODE_ID,
            transactional_id_expiration_ms=604_800_000,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=10_000,
            transaction_remove_expired_transaction_cleanup_interval_ms=3_600_000,
        )
        self.counts = {
            "t": 4,
            CONSUMER_OFFSETS_TOPIC: 2,
            TRANSACTION_STATE_TOPIC: coordinator_partitions,
            **(topics or {}),
        }
        self.metadata: Any = SimpleNamespace(
            features={},
            topics=self.counts,
            partition_count=lambda topic: self.counts.get(topic, 0),
            partition=self._known_partition,
            leader=self._leader,
            topic_id=lambda topic: bytes(16) if topic in self.counts else None,
        )
        self.groups: Any = SimpleNamespace(is_loaded=self._group_loaded, on_marker=self._on_marker)
        self.groups_loading: set[int] = set()
        self.settled: list[tuple[int, Entry]] = []
        self.crash_points: Callable[[str], None] = self._pass_point
        self.points: list[str] = []
        self.stop_at: str | None = None
        self.denied: set[tuple[str, str, str]] = set()
        self.producer_ids = count(9_000)
        self.allocations = 0
        self.allocation_fails = False
        self.held_allocations: list[Callback] | None = None
        self.partitions: dict[TopicPartition, Partition] = {}
        self.waiting: list[tuple[Partition, int, Callback]] = []
        self.timers: list[ShellTimer] = []
        self.line = Line(self)
        self.loads = LoadQueue(self)
        for topic, partition_count in self.counts.items():
            for index in range(partition_count):
                self.open(TopicPartition(topic, index))
        stub: Any = self
        local: Any = SimpleNamespace(get=self.partition, offline=frozenset())
        ids: Any = SimpleNamespace(allocate=self._allocate)
        self.markers = MarkerWriter(
            stub, local, stub.metadata, stub.groups, NO_PEERS, self.config.node_id
        )
        self.transactions = TransactionCoordinator(
            stub, stub.config, stub.metadata, ids, self.markers, NO_PEERS
        )
        self.services: Any = SimpleNamespace(
            runtime=self,
            config=self.config,
            authorizer=SimpleNamespace(authorize=self._authorize),
            audit=SimpleNamespace(denied=lambda *_: None),
            partitions=local,
            metadata=self.metadata,
            internal_topics=SimpleNamespace(ensure=lambda name: None),
            groups=self.groups,
            transactions=self.transactions,
            markers=self.markers,
        )

    # -- for the service ---------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get(TopicPartition(topic, index))

    def when_durable(self, partition: Partition, end_offset: int, callback: Callback) -> None:
        if partition.high_watermark >= end_offset:
            callback()
        else:
            self.waiting.append((partition, end_offset, callback))

    def call_later(self, delay_ms: float, callback: Callback) -> ShellTimer:
        timer = ShellTimer(self.now_ms + delay_ms, callback)
        self.timers.append(timer)
        return timer

    def _known_partition(self, topic: str, index: int) -> PartitionState | None:
        if not 0 <= index < self.counts.get(topic, 0):
            return None
        return PartitionState(NODE_ID, 0, 0, (NODE_ID,), (NODE_ID,))

    def _leader(self, topic: str, index: int) -> int:
        return NO_NODE if self._known_partition(topic, index) is None else NODE_ID

    def _allocate(self, done: Callable[[int | None], None]) -> None:
        self.allocations += 1
        producer_id = None if self.allocation_fails else next(self.producer_ids)
        if self.held_allocations is None:
            done(producer_id)
        else:
            self.held_allocations.append(lambda: done(producer_id))

    def _group_loaded(self, index: int) -> bool:
        return index not in self.groups_loading

    def _on_marker(self, index: int, entry: Entry) -> None:
        self.settled.append((index, entry))

    def _pass_point(self, point: str) -> None:
        self.points.append(point)
        if point == self.stop_at:
            raise Broken(point)

    def _authorize(self, principal: str, host: str, operation: str, kind: str, name: str) -> bool:
        return (operation, kind, name) not in self.denied

    # -- for tests ---------------------------------------------------------------------------------

    def open(self, name: TopicPartition, *, leader_epoch: int = 0) -> Partition:
        log = open_log(
            self.disk, f"/{name}", LogConfig(), now_ms=self.now_ms, clean=False, log_start_offset=0
        )
        if self.fsync:
            log.sync()  # As in the node: records served after a crash must survive the next one.
        partition = Partition(name, bytes(16), leader_epoch, log, durable_at_append=not self.fsync)
        self.partitions[name] = partition
        return partition

    def load(self, index: int = 0) -> None:
        self.transactions.load(
            index, self.partitions[TopicPartition(TRANSACTION_STATE_TOPIC, index)]
        )

    def sync(self, *topics: str) -> None:
        """Makes all appends durable, or only those to these topics; callbacks may append more."""
        for name, partition in self.partitions.items():
            if topics and name.topic not in topics:
                continue
            if self.fsync:
                partition.log.sync()
            partition.advance_high_watermark(partition.log_end_offset)
        waiting, self.waiting = self.waiting, []
        for partition, end_offset, callback in waiting:
            self.when_durable(partition, end_offset, callback)

    def sync_all(self) -> None:
        """Syncs until nothing waits for durability."""
        while self.waiting:
            self.sync()

    def steady_ms(self) -> int:
        return self.now_ms

    def pass_time(self, milliseconds: int) -> None:
        """Moves the clock; timers fire in order."""
        end_ms = self.now_ms + milliseconds
        while True:
            due = [t for t in self.timers if not t.cancelled and t.due_ms <= end_ms]
            if not due:
                break
            timer = min(due, key=lambda t: t.due_ms)
            self.timers.remove(timer)
            self.now_ms = max(self.now_ms, int(timer.due_ms))
            timer.callback()
        self.now_ms = end_ms

    def fail_appends(self, name: TopicPartition, times: int) -> None:
        """Makes the disk refuse the next appends to a partition."""
        partition = self.partitions[name]
        real = partition.log
        left = [times]

        class FailingLog:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(real, attribute)

            def append(self, batch: Any) -> None:
                if left[0]:
                    left[0] -= 1
                    raise StorageError("no space left")
                real.append(batch)

        partition.log = FailingLog()  # type: ignore[assignment]

    def restart(self, *, power_lost: bool = False, **options: Any) -> ShellNode:
        """Another node on the same disk, after kill -9 of this one or a power loss."""
        if power_lost:
            self.disk.crash()
        else:
            self.disk.kill()
        again = ShellNode(disk=self.disk, fsync=self.fsync, topics=dict(self.counts), **options)
        again.now_ms = self.now_ms
        again.producer_ids = self.producer_ids
        return again

    # -- requests ----------------------------------------------------------------------------------

    def init(self, transactional_id: str = "a", **fields: Any) -> Answer:
        answer = Answer()
        event = InitProducerId(transactional_id, fields.pop("timeout_ms", 60_000), **fields)
        self.transactions.init_producer_id(event, answer)
        return answer

    def add(
        self,
        producer_id: int,
        epoch: int,
        partitions: Partitions | None = None,
        *,
        version: int = 0,
        transactional_id: str = "a",
    ) -> Answer:
        answer = Answer()
        event = AddPartitions(
            transactional_id, producer_id, epoch, partitions or {"t": (0,)}, version
        )
        self.transactions.add_partitions(event, answer)
        return answer

    def end(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool = True,
        version: int = 0,
        transactional_id: str = "a",
    ) -> Answer:
        answer = Answer()
        self.transactions.end_txn(
            EndTxn(transactional_id, producer_id, epoch, commit, version), answer
        )
        return answer

    def verify(
        self, *indexes: int, producer_id: int = 9_000, epoch: int = 0, add: bool = False
    ) -> list[list[ErrorCode]]:
        answers: list[list[ErrorCode]] = []
        names = [TopicPartition("t", index) for index in indexes]
        first = FirstWrite(names, "a", producer_id, epoch, add)
        self.transactions.verify(first, answers.append)
        return answers

    # -- results -----------------------------------------------------------------------------------

    def txn(self, transactional_id: str = "a", index: int = 0) -> TransactionMetadata:
        (coordinator,) = [c for c in self.transactions.coordinators() if c.index == index]
        return coordinator.state.transactions[transactional_id]

    def markers_in(self, topic: str = "t", index: int = 0) -> list[tuple[bool, int, int]]:
        """(commit, producer epoch, coordinator epoch) of every marker in a partition."""
        return [
            (entry.marker.commit, entry.producer_epoch, entry.marker.coordinator_epoch)
            for entry in self.partitions[TopicPartition(topic, index)].entries()
            if entry.marker is not None
        ]

    def states(self, index: int = 0) -> list[int | None]:
        """The status of every record in a coordinator's log, in order."""
        log = self.partitions[TopicPartition(TRANSACTION_STATE_TOPIC, index)]
        return [None if e.value is None else e.value[16] for e in log.entries()]


class Answer:
    """Receives one reply."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def __call__(self, reply: Reply) -> None:
        assert not self.replies, "a request gets one reply"
        self.replies.append(reply)

    @property
    def reply(self) -> Reply | None:
        return self.replies[0] if self.replies else None

    @property
    def error(self) -> ErrorCode | None:
        return self.replies[0].error if self.replies else None
