"""From an open transaction to its end: the Prepare record, the markers it asks for, the Complete record.

Who ends it: its producer (EndTxn, in decide.py), another producer that takes the id over, or the
clock. The last two are fences: the coordinator aborts at the next epoch, so that the old producer
can write no more. TV1 forgets the epoch before the fence; TV2 keeps it, and the fenced producer may
recover by aborting at the epoch that it knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
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

if TYPE_CHECKING:
    from collections.abc import Container

    from fencepost.coordinator.txn.apply import CoordinatorState

# By themselves: to look a member up in its enum is a search of the class, and a commit asks for a
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
"""How a transaction without a timeout is stored (KIP-939)."""

PREPARED_STATES: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})


def legal(before: int, after: int) -> bool:
    """Whether the table lets one state follow the other."""
    return after in TRANSITIONS[before]  # type: ignore[index]


# -- fences: InitProducerId of another, and the timeout
# -------------------------------------------------------


def timed_out_ids(
    state: CoordinatorState, pending: Container[str], now_ms: int
) -> list[tuple[str, int]]:
    """(transactional id, producer id) of open transactions whose time is over."""
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
    """The coordinator aborts what its producer did not end, and fences that producer.

    Also how an open transaction is aborted at load (transaction.recovery.ongoing=abort). What is
    not open any more, or is about to change, is left alone: the next scan looks again.
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
) -> Decision:
    """Aborts an open transaction at the next epoch, so that its producer can write no more."""
    assert legal(txn.state, State.PREPARE_EPOCH_FENCE)
    if event.transaction_version >= 2:
        decision = prepare_tv2(event, txn, PREPARE_ABORT, now_ms, begun=True)
        return decision if decision.reply is None else replace(decision, reply=Reply(answer))
    fenced = prepared_metadata(
        txn,
        PREPARE_ABORT,
        now_ms,
        producer_epoch=min(txn.producer_epoch + 1, MAX_PRODUCER_EPOCH),
        # TV1 forgets the epoch before the fence: InitProducerId with it is answered
        # PRODUCER_FENCED.
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    return prepare(transactional_id, fenced, Reply(answer))


# -- Prepare and Complete
# -------------------------------------------------------------------------------------


def prepare_tv2(
    event: InitProducerId | EndTxn | TimedOut,
    txn: TransactionMetadata,
    target: State,
    now_ms: int,
    *,
    begun: bool,
) -> Decision:
    """The Prepare record of TV2: the epoch goes up with it, and past its end a fresh producer id is named."""
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
) -> TransactionMetadata:
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
    )


def prepare(transactional_id: str, prepared: TransactionMetadata, reply: Reply) -> Decision:
    return Decision(
        (LogRecord(transactional_id, prepared),),
        (markers_of(transactional_id, prepared),),
        reply,
    )


def markers_of(transactional_id: str, prepared: TransactionMetadata) -> WriteMarkers:
    """What a Prepare record asks for: after it was written, and again after every restart until it is done."""
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
    """The end: every partition knows the outcome."""
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
    )
    assert legal(txn.state, complete.state)
    return Decision((LogRecord(event.transactional_id, complete),), (), Reply(NONE))
