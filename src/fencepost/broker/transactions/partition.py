"""One partition of `__transaction_state` that this node serves: its state, log and pending ids.

Every record takes the same steps: it is appended, applied at once, and its id is pending until the
record is durable. A request that must not be answered CONCURRENT_TRANSACTIONS can wait here until
an id is no longer pending.

A load (`coordinators/log_loader.py`) reads the last checkpoint first, and then what the log has
after it. What the log has before the checkpoint is not needed, and may be damaged.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import StorageError
from fencepost.base.limits import END_TXN_WAIT_MS, MAX_BATCH_BYTES
from fencepost.base.refusal import Refusal
from fencepost.broker.coordinators.checkpoint_keeper import CheckpointKeeper, read_checkpoint
from fencepost.broker.deadlines import Deadlines
from fencepost.coordinator.txn.apply import CoordinatorState, apply, read_entry
from fencepost.coordinator.txn.prepare import ONGOING
from fencepost.records.coordinator_checkpoint import SavedRecord
from fencepost.records.entry import Entry
from fencepost.records.transaction_log import TransactionMetadata, encode_key, encode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fencepost.broker.runtime import Runtime, TimerHandle
    from fencepost.broker.transactions.ending import Ending
    from fencepost.broker.transactions.journal import Client, Journal
    from fencepost.coordinator.txn.events import LogRecord
    from fencepost.partition.partition import Partition

log = logging.getLogger(__name__)

MAX_VALUE_BYTES: Final = MAX_BATCH_BYTES - 64 * 1024
"""Of one record: its batch also holds a header and a key of up to 32 KiB."""


REMEMBERED_CLIENTS: Final = 1_000
"""Per partition; each takes about 250 bytes."""


class Waiter:
    """A request that continues when an id is no longer pending, or when its time is up."""

    __slots__ = ("_callback", "timer")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self.timer: TimerHandle | None = None

    def wake(self) -> None:
        """Continues the request; only the first call has an effect."""
        callback, self._callback = self._callback, None
        if callback is not None:
            if self.timer is not None:
                self.timer.cancel()
            callback()


class CoordinatorPartition:
    """One partition that is served.

    Once it is given away or loaded again, it is `closed` and never served again.
    """

    __slots__ = (
        "_runtime",
        "_waiting",
        "answers",
        "checkpoint",
        "clients",
        "closed",
        "endings",
        "fenced",
        "index",
        "journal",
        "partition",
        "pending",
        "state",
    )

    def __init__(
        self, runtime: Runtime, index: int, partition: Partition, journal: Journal
    ) -> None:
        self._runtime = runtime
        self._waiting: dict[str, list[Waiter]] = {}
        self.index = index
        self.partition = partition
        self.journal = journal
        self.state = CoordinatorState()
        self.pending: dict[str, int] = {}
        """Ids whose last record is not durable, or whose markers are being written, each with the
        end offset that its last record waits for. Not in the log: empty after a load."""
        self.checkpoint = self._new_keeper()
        self.endings: dict[str, Ending] = {}
        """Transactions whose markers are being written."""
        self.answers = Deadlines(runtime, END_TXN_WAIT_MS)
        """When each EndTxn is answered even if its markers are not written."""
        self.clients: dict[str, Client] = {}
        """Who spoke for each id here last, for the log and DescribeTransactions. Not in the log of
        the partition, so empty after a load; only the last `REMEMBERED_CLIENTS`."""
        self.fenced: set[str] = set()
        """Ids whose producer was fenced with its open transaction, and which have no owner yet."""
        self.closed = False

    @property
    def epoch(self) -> int:
        """The coordinator epoch: partitions refuse markers with a lower one."""
        return self.partition.leader_epoch

    def __repr__(self) -> str:
        return f"CoordinatorPartition({self.index}, epoch {self.epoch}, {self.state})"

    # -- loading ----------------------------------------------------------------------------------

    def begin_load(self) -> Iterator[Entry]:
        """Starts from an empty state; the entries of the checkpoint, then of the log after it."""
        partition = self.partition
        self.state = CoordinatorState()
        self.checkpoint = self._new_keeper()
        saved = read_checkpoint(self._runtime.disk, partition)
        self.checkpoint.unsaved = -saved.record_count
        entries = (Entry(-1, -1, -1, False, each.key, each.value) for each in saved.records)
        return chain(entries, partition.whole_entries(saved.offset))

    def _new_keeper(self) -> CheckpointKeeper:
        transactions = self.state.transactions
        return CheckpointKeeper(
            self._runtime,
            self.partition,
            view=partial(_saved_records, transactions),
            size=transactions.__len__,
        )

    def load_entry(self, entry: Entry) -> bool:
        """Applies one entry of the load; False if it cannot be decoded."""
        self.checkpoint.unsaved += 1
        record = read_entry(entry)
        if record is None:
            return False
        apply(self.state, record)
        return True

    # -- writing ----------------------------------------------------------------------------------

    def append(self, record: LogRecord, now_ms: int) -> int | Refusal:
        """Appends and applies one record, and makes its id pending.

        Returns the end offset of the log. A refusal changes nothing: the disk failed, or the record
        is too large for a batch.
        """
        transactional_id = record.transactional_id
        metadata = record.metadata
        assert not self.closed
        assert metadata is not None
        if self.partition.is_under_min_isr:
            # As in Kafka: the coordinator is not available until enough brokers are alive again.
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too few in-sync replicas")
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
        if metadata.state == ONGOING and transactional_id not in self.state.open:
            self.journal.counters.started += 1
        apply(self.state, record)
        self.pending[transactional_id] = end_offset
        self.checkpoint.count(1)
        return end_offset

    def append_tombstones(self, records: Sequence[LogRecord]) -> bool:
        """Removes ids, all in one batch; False when the disk refused, and all of them stay."""
        if self.partition.is_under_min_isr:
            return False
        tombstones = [(encode_key(record.transactional_id), None) for record in records]
        try:
            end_offset = self.partition.append_records(tombstones, self._runtime.clock.now_ms())
        except StorageError as problem:
            log.error("%s: expired ids stay for now: %s", self.partition.name, problem)
            return False
        for record in records:
            apply(self.state, record)
            self.clients.pop(record.transactional_id, None)
            self.fenced.discard(record.transactional_id)
            self.pending[record.transactional_id] = end_offset
        self.checkpoint.count(len(records))

        def durable() -> None:
            for record in records:
                self.settle(record.transactional_id, end_offset)

        self._runtime.when_durable(self.partition, end_offset, durable)
        return True

    def fence(self, transactional_id: str) -> Client | None:
        """Notes that the producer of an id was fenced; returns its client, if it is known."""
        self.fenced.add(transactional_id)
        return self.clients.pop(transactional_id, None)

    def take_over(self, transactional_id: str, client: Client | None) -> tuple[bool, Client | None]:
        """Notes who has an id from now on; whether somebody had it before, and who."""
        last = self.clients.pop(transactional_id, None)
        is_fence = transactional_id not in self.fenced
        self.fenced.discard(transactional_id)
        if client is not None:
            self.remember(transactional_id, client)
        return is_fence, last

    def remember(self, transactional_id: str, client: Client) -> None:
        """Notes which client speaks for an id now."""
        if transactional_id not in self.clients and len(self.clients) >= REMEMBERED_CLIENTS:
            del self.clients[next(iter(self.clients))]
        self.clients[transactional_id] = client

    def settle(self, transactional_id: str, end_offset: int) -> None:
        """Ends the wait of an id, unless a later record of it was appended; waiters continue."""
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
        """Calls back once: when the id is no longer pending, after the timeout, or at `close`."""
        waiter = Waiter(callback)
        self._waiting.setdefault(transactional_id, []).append(waiter)
        if timeout_ms is not None:
            waiter.timer = self._runtime.call_later(timeout_ms, waiter.wake)

    def close(self) -> None:
        """Stops everything in progress: another node has the partition, or it is loaded again."""
        self.closed = True
        self.checkpoint.close()
        for ending in list(self.endings.values()):
            ending.abandon()
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                waiter.wake()


def _saved_records(transactions: Mapping[str, TransactionMetadata]) -> Iterator[SavedRecord]:
    """The last record of every id, as of now; encoded one by one."""
    now = list(transactions.items())
    return (SavedRecord(encode_key(id_), encode_value(txn)) for id_, txn in now)
