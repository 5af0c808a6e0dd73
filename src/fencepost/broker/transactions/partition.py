"""One partition of `__transaction_state` that this node serves: its state, its log, and what is under way.

Every record goes the same way: append, apply at once, and the id is pending until the record is
durable. A request that cannot be told to come again may wait here until an id is pending no longer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.limits import MAX_BATCH_BYTES
from fencepost.base.refusal import Refusal
from fencepost.broker.transactions.checkpoint import CheckpointKeeper
from fencepost.coordinator.txn.apply import CoordinatorState, apply
from fencepost.records.transaction_log import encode_key, encode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencepost.broker.node import Node, TimerHandle
    from fencepost.broker.transactions.ending import Ending
    from fencepost.coordinator.txn.events import LogRecord
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

MAX_VALUE_BYTES: Final = MAX_BATCH_BYTES - 64 * 1024
"""Of one record: a batch must have room for its header and a key of up to 32 KiB."""


class Waiter:
    """Someone who goes on when an id is no longer pending, or when the time is up."""

    __slots__ = ("_callback", "timer")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self.timer: TimerHandle | None = None

    def wake(self) -> None:
        """Goes on; the second of the two occasions finds nothing to do."""
        callback, self._callback = self._callback, None
        if callback is not None:
            if self.timer is not None:
                self.timer.cancel()
            callback()


class CoordinatorPartition:
    """One partition that is served.

    Given away or loaded anew, it is `closed` and never served again.
    """

    __slots__ = (
        "_node",
        "_waiting",
        "checkpoint",
        "closed",
        "endings",
        "index",
        "partition",
        "pending",
        "state",
    )

    def __init__(self, node: Node, index: int, partition: Partition) -> None:
        self._node = node
        self._waiting: dict[str, list[Waiter]] = {}
        self.index = index
        self.partition = partition
        self.state = CoordinatorState()
        self.pending: dict[str, int] = {}
        """Ids whose last record is not durable, or whose markers are being written, each with the
        end offset that its last record waits for. Not in the log: empty after a load."""
        self.checkpoint = CheckpointKeeper(node, partition, self.state)
        self.endings: dict[str, Ending] = {}
        """Transactions whose markers are being written."""
        self.closed = False

    @property
    def epoch(self) -> int:
        """The coordinator epoch: a partition takes no marker of a lower one."""
        return self.partition.leader_epoch

    def __repr__(self) -> str:
        return f"CoordinatorPartition({self.index}, epoch {self.epoch}, {self.state})"

    def append(self, record: LogRecord, now_ms: int) -> int | Refusal:
        """Appends and applies one record; its id is pending from now on.

        Returns the end of the log after it. A refusal changes nothing: the disk failed, or the
        record does not fit into a batch.
        """
        transactional_id = record.transactional_id
        metadata = record.metadata
        assert not self.closed
        assert metadata is not None
        value = encode_value(metadata)
        if len(value) > MAX_VALUE_BYTES:
            too_large = f"transactional id {transactional_id} has too many partitions for a record"
            log.error("%s", too_large)
            return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, too_large)
        try:
            end_offset = self.partition.append_records(
                [(encode_key(transactional_id), value)], now_ms
            )
        except StorageError as problem:
            log.error("%s cannot be written: %s", self.partition.name, problem)
            # Kafka's code for a transaction log that cannot be written here.
            return Refusal(ErrorCode.NOT_COORDINATOR, str(problem))
        apply(self.state, record)
        self.pending[transactional_id] = end_offset
        self.checkpoint.count(1)
        return end_offset

    def append_tombstones(self, records: Sequence[LogRecord]) -> bool:
        """Forgets ids, all in one batch; False when the disk refused, and all of them stay."""
        tombstones = [(encode_key(record.transactional_id), None) for record in records]
        try:
            end_offset = self.partition.append_records(tombstones, self._node.clock.now_ms())
        except StorageError as problem:
            log.error("%s: expired ids stay for now: %s", self.partition.name, problem)
            return False
        for record in records:
            apply(self.state, record)
            self.pending[record.transactional_id] = end_offset
        self.checkpoint.count(len(records))

        def durable() -> None:
            for record in records:
                self.settle(record.transactional_id, end_offset)

        self._node.when_durable(self.partition, end_offset, durable)
        return True

    def settle(self, transactional_id: str, end_offset: int) -> None:
        """What the id waited for is done; unless a later record has been appended, others may go on."""
        pending = self.pending
        if pending.get(transactional_id) != end_offset:
            return
        del pending[transactional_id]
        for waiter in self._waiting.pop(transactional_id, ()):
            waiter.wake()

    def when_settled(
        self,
        transactional_id: str,
        callback: Callable[[], None],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Calls back once: when the id is pending no longer, when the time is up, or when this is closed."""
        waiter = Waiter(callback)
        self._waiting.setdefault(transactional_id, []).append(waiter)
        if timeout_ms is not None:
            waiter.timer = self._node.call_later(timeout_ms, waiter.wake)

    def close(self) -> None:
        """Another node has the partition, or it is loaded anew: stops whatever is under way for it."""
        self.closed = True
        self.checkpoint.close()
        for ending in list(self.endings.values()):
            ending.abandon()
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                waiter.wake()
