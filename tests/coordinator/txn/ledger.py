"""A transaction coordinator without a broker: it decides, writes to a list, and applies.

After each step it checks fold(log) == fold(compacted log) == live state, so every test that uses it
tests that too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.coordinator.txn.apply import CoordinatorState, apply, fold
from fencepost.coordinator.txn.decide import (
    decide_add_partitions,
    decide_end_txn,
    decide_expiration,
    decide_init_producer_id,
)
from fencepost.coordinator.txn.events import (
    RESERVE_PRODUCER_ID,
    AddPartitions,
    Decision,
    EndTxn,
    ExpirationDue,
    InitProducerId,
    LogRecord,
    MarkersWritten,
    Reply,
    TimedOut,
)
from fencepost.coordinator.txn.prepare import decide_markers_written, decide_timeout
from fencepost.coordinator.txn.states import State
from fencepost.records.entry import Entry
from fencepost.records.transaction_log import (
    NO_PARTITIONS,
    Partitions,
    TransactionMetadata,
    encode_key,
    encode_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

TXN: Final = "orders"
T0: Final[Partitions] = {"t": (0,)}
T0_T1: Final[Partitions] = {"t": (0, 1)}
TIMEOUT_MS: Final = 60_000


def transaction(
    state: State = State.EMPTY,
    producer_id: int = 4000,
    epoch: int = 0,
    *,
    last_epoch: int = -1,
    previous: int | None = None,
    following: int = -1,
    partitions: Partitions | None = None,
    timeout_ms: int = TIMEOUT_MS,
    start_ms: int = 1_000,
    update_ms: int = 1_000,
    version: int = 0,
) -> TransactionMetadata:
    """A transaction as the log could have it."""
    is_open = state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    if partitions is None:
        partitions = T0 if is_open else NO_PARTITIONS
    return TransactionMetadata(
        producer_id,
        producer_id if previous is None else previous,
        following,
        epoch,
        last_epoch,
        timeout_ms,
        state,
        partitions,
        -1 if state is State.EMPTY else start_ms,
        update_ms,
        version,
    )


class Ledger:
    """One coordinator partition in memory."""

    def __init__(
        self, known: TransactionMetadata | None = None, *, cluster_version: int = 2
    ) -> None:
        self.state = CoordinatorState()
        self.pending: set[str] = set()
        self.log: list[Entry] = []
        self.now_ms = 10_000
        self.cluster_version = cluster_version
        self.fresh_ids = count(9_000)
        self.ids_taken = 0
        self.append_fails = 0
        if known is not None:
            self._append(TXN, known)

    @property
    def txn(self) -> TransactionMetadata:
        return self.state.transactions[TXN]

    @property
    def identity(self) -> tuple[int, int]:
        return self.txn.producer_id, self.txn.producer_epoch

    # -- requests

    def init(
        self,
        producer_id: int = -1,
        epoch: int = -1,
        *,
        timeout_ms: int = TIMEOUT_MS,
        two_phase_commit: bool = False,
    ) -> Reply:
        event = InitProducerId(
            TXN,
            timeout_ms,
            producer_id,
            epoch,
            two_phase_commit,
            transaction_version=self.cluster_version,
        )
        decision = decide_init_producer_id(self.state, self.pending, event, self.now_ms)
        if decision is RESERVE_PRODUCER_ID:
            event = replace(event, new_producer_id=self._take_id())
            decision = decide_init_producer_id(self.state, self.pending, event, self.now_ms)
        return self._do(decision)

    def add(
        self, producer_id: int, epoch: int, partitions: Partitions = T0, *, version: int = 0
    ) -> ErrorCode:
        event = AddPartitions(TXN, producer_id, epoch, partitions, version)
        return self._do(decide_add_partitions(self.state, self.pending, event, self.now_ms)).error

    def end(self, producer_id: int, epoch: int, *, commit: bool, version: int) -> Reply:
        event = EndTxn(TXN, producer_id, epoch, commit, version)
        decision = decide_end_txn(self.state, self.pending, event, self.now_ms)
        if decision is RESERVE_PRODUCER_ID:
            event = replace(event, new_producer_id=self._take_id())
            decision = decide_end_txn(self.state, self.pending, event, self.now_ms)
        return self._do(decision)

    def time_out(self) -> Reply:
        event = TimedOut(TXN, self.txn.producer_id, self.cluster_version)
        decision = decide_timeout(self.state, self.pending, event, self.now_ms)
        if decision is RESERVE_PRODUCER_ID:
            event = replace(event, new_producer_id=self._take_id())
            decision = decide_timeout(self.state, self.pending, event, self.now_ms)
        return self._do(decision)

    def complete(self) -> None:
        """Complete a transaction: all markers are written."""
        event = MarkersWritten(TXN, self.txn.producer_id, self.txn.producer_epoch)
        self._do(decide_markers_written(self.state, event, self.now_ms))

    def expire(self, expiration_ms: int = 7_000, max_bytes: int = 1_000_000) -> int:
        event = ExpirationDue(expiration_ms, max_bytes)
        decision = decide_expiration(self.state, self.pending, event, self.now_ms)
        for record in decision.records:
            self._append(record.transactional_id, record.metadata)
        self.check()
        return len(decision.records)

    def moved(self) -> Ledger:
        """Another coordinator that has taken over, with only the log."""
        successor = Ledger(cluster_version=self.cluster_version)
        successor.log = list(self.log)
        successor.state = fold(self.log)
        successor.now_ms = self.now_ms
        return successor

    def put(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self._append(transactional_id, metadata)

    # -- what a shell does

    def _take_id(self) -> int:
        self.ids_taken += 1
        return next(self.fresh_ids)

    def _do(self, decision: Decision) -> Reply:
        assert decision.reply is not None
        if decision.records and self.append_fails:
            self.append_fails -= 1
            return Reply(ErrorCode.NOT_COORDINATOR)
        for record in decision.records:
            self._append(record.transactional_id, record.metadata)
        self.check()
        return decision.reply

    def _append(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        value = None if metadata is None else encode_value(metadata)
        self.log.append(entry(len(self.log), encode_key(transactional_id), value))
        apply(self.state, LogRecord(transactional_id, metadata))

    def check(self) -> None:
        assert fold(self.log) == self.state
        assert fold(compacted(self.log)) == self.state


def entry(offset: int, key: bytes | None, value: bytes | None) -> Entry:
    return Entry(offset, -1, -1, False, key, value)


def compacted(log: Iterable[Entry]) -> list[Entry]:
    """The log after compaction: the last record of each key; tombstones may be gone."""
    last = {found.key: found for found in log}
    kept = [found for found in last.values() if found.value is not None]
    return sorted(kept, key=lambda found: found.offset)
