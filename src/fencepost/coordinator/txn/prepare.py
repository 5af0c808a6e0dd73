"""Ends an open transaction: the Prepare record, its markers, the Complete record.

A transaction is ended by its producer (EndTxn, in decide.py), by another producer that takes over
the id, or by the timeout. The last two are fences: the coordinator aborts at the next epoch, so
that the old producer can no longer write. TV1 forgets the epoch before the fence; TV2 keeps it,
and the fenced producer may recover by aborting at its epoch.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from fencepost.coordinator.txn.apply import CoordinatorState
from fencepost.coordinator.txn.events import (
    RESERVE_PRODUCER_ID,
    Decision,
    EndTxn,
    InitProducerId,
    LogRecord,
    MarkersWritten,
    Reply,
    TimedOut,
    WriteMarkers,
    refuse,
)
from fencepost.coordinator.txn.states import TRANSITIONS, State
from fencepost.records.transaction_log import NO_PARTITIONS, TransactionMetadata

# Module constants, because an enum member is an attribute search of its class, and a commit needs a
# dozen of them.
NONE: Final = ErrorCode.NONE
ONGOING: Final = State.ONGOING
PREPARE_COMMIT: Final = State.PREPARE_COMMIT
PREPARE_ABORT: Final = State.PREPARE_ABORT
COMPLETE_COMMIT: Final = State.COMPLETE_COMMIT
COMPLETE_ABORT: Final = State.COMPLETE_ABORT

EXHAUSTED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The last epoch that a client may hold."""

TWO_PHASE_COMMIT_TIMEOUT_MS: Final = 2**31 - 1
"""The stored timeout of a transaction without one (KIP-939)."""

PREPARED_STATES: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})


def legal(before: int, after: int) -> bool:
    """Whether the table lets one state follow the other."""
    return after in TRANSITIONS[before]  # type: ignore[index]


# -- fences: InitProducerId of another, and the timeout


def timed_out_ids(
    state: CoordinatorState, pending: Container[str], now_ms: int
) -> list[tuple[str, int]]:
    """(transactional id, producer id) of open transactions past their timeout."""
    late = []
    for transactional_id in state.open:
        txn = state.transactions[transactional_id]
        if (
            txn.state == ONGOING
            and txn.start_ms + txn.timeout_ms < now_ms
            and txn.timeout_ms != TWO_PHASE_COMMIT_TIMEOUT_MS
            and transactional_id not in pending
        ):
            late.append((transactional_id, txn.producer_id))
    return late


def decide_timeout(
    state: CoordinatorState, pending: Container[str], event: TimedOut, now_ms: int
) -> Decision:
    """Abort a transaction that its producer did not end, and fence that producer.

    This is also how open transactions are aborted at load (transaction.recovery.ongoing=abort). A
    transaction that is no longer open, or about to change, is left for the next scan.
    """
    transactional_id = event.transactional_id
    txn = state.transactions.get(transactional_id)
    if txn is None or txn.producer_id != event.producer_id:
        return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.state != ONGOING or transactional_id in pending:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    return fence(transactional_id, txn, event, now_ms, NONE)


def fence(
    transactional_id: str,
    txn: TransactionMetadata,
    event: InitProducerId | TimedOut,
    now_ms: int,
    answer: ErrorCode,
    administrator: str = "",
) -> Decision:
    """Abort an open transaction at the next epoch, so that its producer can no longer write."""
    assert legal(txn.state, State.PREPARE_EPOCH_FENCE)
    if event.transaction_version >= 2:
        decision = prepare_tv2(event, txn, PREPARE_ABORT, now_ms, administrator, begun=True)
        return decision if decision.reply is None else replace(decision, reply=Reply(answer))
    fenced = prepared_metadata(
        txn,
        PREPARE_ABORT,
        now_ms,
        producer_epoch=min(txn.producer_epoch + 1, MAX_PRODUCER_EPOCH),
        # TV1 forgets the epoch before the fence: InitProducerId with it gets PRODUCER_FENCED.
        last_producer_epoch=NO_PRODUCER_EPOCH,
        administrator=administrator,
    )
    return prepare(transactional_id, fenced, Reply(answer))


# -- Prepare and Complete


def prepare_tv2(
    event: InitProducerId | EndTxn | TimedOut,
    txn: TransactionMetadata,
    target: State,
    now_ms: int,
    administrator: str,
    *,
    begun: bool,
) -> Decision:
    """The Prepare record of TV2: it raises the epoch, or names a new producer id after the last."""
    exhausted = txn.producer_epoch >= EXHAUSTED_EPOCH
    if exhausted and event.new_producer_id == NO_PRODUCER_ID:
        return RESERVE_PRODUCER_ID
    prepared = prepared_metadata(
        txn,
        target,
        now_ms,
        producer_epoch=min(txn.producer_epoch + 1, MAX_PRODUCER_EPOCH),
        last_producer_epoch=txn.producer_epoch,
        next_producer_id=event.new_producer_id if exhausted else NO_PRODUCER_ID,
        start_ms=txn.start_ms if begun else now_ms,
        transaction_version=2,
        administrator=administrator,
    )
    if exhausted:
        reply = Reply(NONE, prepared.next_producer_id, 0)
    else:
        reply = Reply(NONE, prepared.producer_id, prepared.producer_epoch)
    return prepare(event.transactional_id, prepared, reply)


def prepared_metadata(
    txn: TransactionMetadata,
    target: State,
    now_ms: int,
    *,
    producer_epoch: int,
    last_producer_epoch: int,
    next_producer_id: int = NO_PRODUCER_ID,
    start_ms: int | None = None,
    transaction_version: int = 0,
    administrator: str = "",
) -> TransactionMetadata:
    """The transaction's metadata in a Prepare state."""
    assert target in PREPARED_STATES
    assert legal(txn.state, target)
    assert txn.state == ONGOING or not txn.partitions
    return TransactionMetadata(
        txn.producer_id,
        txn.producer_id,
        next_producer_id,
        producer_epoch,
        last_producer_epoch,
        txn.timeout_ms,
        target,
        txn.partitions,
        txn.start_ms if start_ms is None else start_ms,
        now_ms,
        transaction_version,
        administrator,
    )


def prepare(transactional_id: str, prepared: TransactionMetadata, reply: Reply) -> Decision:
    """Write a Prepare record, then its markers."""
    return Decision(
        (LogRecord(transactional_id, prepared),),
        (markers_of(transactional_id, prepared),),
        reply,
    )


def markers_of(transactional_id: str, prepared: TransactionMetadata) -> WriteMarkers:
    """The markers of a Prepare record: written after it, and after every restart until done."""
    assert prepared.state in PREPARED_STATES
    return WriteMarkers(
        transactional_id,
        prepared.producer_id,
        prepared.producer_epoch,
        prepared.state == PREPARE_COMMIT,
        prepared.partitions,
        prepared.client_transaction_version,
    )


def decide_markers_written(state: CoordinatorState, event: MarkersWritten, now_ms: int) -> Decision:
    """Complete a transaction: every partition has its marker."""
    txn = state.transactions[event.transactional_id]
    assert txn.state in PREPARED_STATES, f"markers were written for a transaction in {txn.state!r}"
    assert txn.producer_id == event.producer_id
    assert txn.producer_epoch == event.producer_epoch
    producer_id, producer_epoch = txn.producer_id, txn.producer_epoch
    if txn.next_producer_id != NO_PRODUCER_ID:
        producer_id, producer_epoch = txn.next_producer_id, 0
    committed = txn.state == PREPARE_COMMIT
    complete = TransactionMetadata(
        producer_id,
        txn.producer_id,
        NO_PRODUCER_ID,
        producer_epoch,
        txn.last_producer_epoch,
        txn.timeout_ms,
        COMPLETE_COMMIT if committed else COMPLETE_ABORT,
        NO_PARTITIONS,
        txn.start_ms,
        now_ms,
        txn.client_transaction_version,
        txn.administrator,
    )
    assert legal(txn.state, complete.state)
    return Decision((LogRecord(event.transactional_id, complete),), (), Reply(NONE))
