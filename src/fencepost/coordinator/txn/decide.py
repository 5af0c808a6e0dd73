"""Decides requests: the whole two-phase commit without a socket, a clock or a disk.

Every `decide_*` is a function of (state, pending, event, now); `pending` has the ids whose last
record is not durable or whose markers are being written. It changes nothing: it returns the records
to append, the effects once they are durable, and the reply. The checks are in Kafka's order,
because clients react to the first of two errors.

The two protocols. TV1 keeps the epoch through a transaction; a late EndTxn can therefore decide the
next transaction (KAFKA-17754). TV2 (KIP-890) raises the epoch with each EndTxn, so late requests
carry an old epoch. The request's version selects the protocol, and a client may mix them.

Epochs end at 32767. No client ever holds that one: a producer at 32766 is *exhausted* and gets a
fresh producer id. In TV2 the Prepare record keeps the old id at 32767 for the markers and names the
next id; the Complete record takes it over with epoch 0.

Kafka keeps a failed fence in memory so as not to raise the epoch twice (KAFKA-9666, KAFKA-19367).
That is not needed here: a failed append was never applied, so the next attempt starts from the same
epoch.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from fencepost.coordinator.txn.apply import CoordinatorState
from fencepost.coordinator.txn.end_table import END_TXN_TV1, END_TXN_TV2, End
from fencepost.coordinator.txn.events import (
    RESERVE_PRODUCER_ID,
    AddPartitions,
    Decision,
    EndTxn,
    ExpirationDue,
    InitProducerId,
    LogRecord,
    Reply,
    refuse,
)
from fencepost.coordinator.txn.prepare import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EXHAUSTED_EPOCH,
    NONE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED_STATES,
    TWO_PHASE_COMMIT_TIMEOUT_MS,
    fence,
    legal,
    prepare,
    prepare_tv2,
    prepared_metadata,
)
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import (
    NO_PARTITIONS,
    Partitions,
    TransactionMetadata,
    encode_key,
    new_metadata,
)

IDLE_STATES: Final = frozenset({State.EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})

_PREPARE: Final = End.PREPARE

_TOMBSTONE_OVERHEAD_BYTES: Final = 32
"""Of a record around its key, at most: lengths, offset and timestamp deltas as varints."""


# -- InitProducerId


def refuse_init_producer_id(
    event: InitProducerId, *, max_timeout_ms: int, two_phase_commit_enabled: bool
) -> ErrorCode:
    """The error of a request that is invalid in any state, before the coordinator lookup."""
    if not event.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if event.enable_two_phase_commit and not two_phase_commit_enabled:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if event.keep_prepared_txn:
        return ErrorCode.UNSUPPORTED_VERSION  # KIP-939 is not finished in Kafka either.
    if not event.enable_two_phase_commit and not 0 < event.timeout_ms <= max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return NONE


def decide_init_producer_id(
    state: CoordinatorState, pending: Container[str], event: InitProducerId, now_ms: int
) -> Decision:
    """A producer starts, or recovers from an error; the previous owner of the id is fenced."""
    transactional_id = event.transactional_id
    if transactional_id in pending:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    txn = state.transactions.get(transactional_id)
    if txn is None:
        if event.new_producer_id == NO_PRODUCER_ID:
            return RESERVE_PRODUCER_ID
        txn = new_metadata(event.new_producer_id, event.timeout_ms, now_ms)
    if not _may_reinitialise(txn, event):
        return refuse(ErrorCode.PRODUCER_FENCED)
    if txn.state in PREPARED_STATES:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn.state == ONGOING:
        if event.producer_id != NO_PRODUCER_ID and event.producer_epoch < txn.producer_epoch:
            return refuse(ErrorCode.PRODUCER_FENCED)
        # No client gets the epoch of the abort: the client retries, and gets the one after it.
        answer = ErrorCode.CONCURRENT_TRANSACTIONS
        return fence(transactional_id, txn, event, now_ms, answer, event.administrator)
    return _give_epoch(txn, event, now_ms)


def _may_reinitialise(txn: TransactionMetadata, event: InitProducerId) -> bool:
    """KIP-360: whether a producer that sends its id and epoch may be the current one.

    In Ongoing an earlier epoch is refused too. Kafka compares only the producer id there: an
    earlier owner can abort the transaction of the current one, and is fenced on its next attempt.
    """
    if event.producer_id == NO_PRODUCER_ID or txn.producer_epoch == NO_PRODUCER_EPOCH:
        return True
    if event.producer_id == txn.producer_id:
        return True
    # The reply that moved it to the current producer id may have been lost.
    return event.producer_id == txn.previous_producer_id and event.producer_epoch >= EXHAUSTED_EPOCH


def _give_epoch(txn: TransactionMetadata, event: InitProducerId, now_ms: int) -> Decision:
    current = txn.producer_epoch
    expected = event.producer_epoch if event.producer_id != NO_PRODUCER_ID else None
    if current >= EXHAUSTED_EPOCH and expected in (None, current):
        if event.new_producer_id == NO_PRODUCER_ID:
            return RESERVE_PRODUCER_ID
        last = NO_PRODUCER_EPOCH if expected is None else current
        return _initialised(txn, event, now_ms, event.new_producer_id, 0, last)
    if expected is None:
        return _initialised(txn, event, now_ms, txn.producer_id, current + 1, NO_PRODUCER_EPOCH)
    if current in (NO_PRODUCER_EPOCH, expected):
        return _initialised(txn, event, now_ms, txn.producer_id, current + 1, current)
    if expected == txn.last_producer_epoch:
        # A retry whose first reply was lost. No other producer came in between: that would have
        # erased the last epoch.
        return _initialised(txn, event, now_ms, txn.producer_id, current, expected)
    return refuse(ErrorCode.PRODUCER_FENCED)


def _initialised(
    txn: TransactionMetadata,
    event: InitProducerId,
    now_ms: int,
    producer_id: int,
    producer_epoch: int,
    last_producer_epoch: int,
) -> Decision:
    assert legal(txn.state, State.EMPTY)
    two_phase = event.enable_two_phase_commit
    initialised = TransactionMetadata(
        producer_id,
        txn.producer_id,
        NO_PRODUCER_ID,
        producer_epoch,
        last_producer_epoch,
        TWO_PHASE_COMMIT_TIMEOUT_MS if two_phase else event.timeout_ms,
        State.EMPTY,
        NO_PARTITIONS,
        NO_TIMESTAMP,
        now_ms,
        txn.client_transaction_version,
        event.administrator,
    )
    return Decision(
        (LogRecord(event.transactional_id, initialised),),
        (),
        Reply(NONE, producer_id, producer_epoch),
    )


# -- AddPartitionsToTxn, AddOffsetsToTxn, the first write of a transaction


def decide_add_partitions(
    state: CoordinatorState, pending: Container[str], event: AddPartitions, now_ms: int
) -> Decision:
    """Add partitions to the transaction; the first one begins it."""
    transactional_id = event.transactional_id
    txn = state.transactions.get(transactional_id)
    if transactional_id in pending and not _joins_pending_add(txn, event):
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn is None or txn.producer_id != event.producer_id:
        return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != event.producer_epoch:
        return refuse(ErrorCode.PRODUCER_FENCED)
    if txn.state in PREPARED_STATES:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    ongoing = txn.state == ONGOING
    if ongoing and contains_all(txn.partitions, event.partitions):
        return _ADDED_ALREADY
    assert legal(txn.state, ONGOING)
    joined = TransactionMetadata(
        txn.producer_id,
        txn.producer_id,
        NO_PRODUCER_ID,
        txn.producer_epoch,
        txn.last_producer_epoch,
        txn.timeout_ms,
        ONGOING,
        merged(txn.partitions, event.partitions) if ongoing else event.partitions,
        txn.start_ms if ongoing else now_ms,
        now_ms,
        event.transaction_version,
    )
    return Decision((LogRecord(transactional_id, joined),), (), _ADDED)


def _joins_pending_add(txn: TransactionMetadata | None, event: AddPartitions) -> bool:
    """Whether an add may proceed behind one that is not durable yet.

    The writes of a TV2 producer add their partitions implicitly, several at a time, and the client
    cannot be made to wait between them. We decide on the newest state, so they share one sync.
    Kafka makes them wait and retry.
    """
    return txn is not None and txn.state == ONGOING and event.transaction_version >= 2


_ADDED: Final = Reply(NONE)
_ADDED_ALREADY: Final = Decision(reply=_ADDED)


def verify_partition(
    state: CoordinatorState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topic: str,
    partition: int,
) -> ErrorCode:
    """Whether a first write may proceed without adding anything (TV1, verifyOnly).

    Pending ids do not matter here (KAFKA-14904); the shell waits for an add that is not durable
    yet.
    """
    txn = state.transactions.get(transactional_id)
    if txn is None or txn.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if txn.state in PREPARED_STATES:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if partition in txn.partitions.get(topic, ()):
        return NONE
    return ErrorCode.TRANSACTION_ABORTABLE


def contains_all(known: Partitions, wanted: Partitions) -> bool:
    """Whether every wanted partition is known."""
    for topic, indexes in wanted.items():
        have = known.get(topic)
        if have is None:
            return False
        if have is not indexes and not set(indexes).issubset(have):
            return False
    return True


def merged(known: Partitions, added: Partitions) -> Partitions:
    """The union of both, as a new mapping."""
    result = dict(known)
    for topic, indexes in added.items():
        have = result.get(topic)
        result[topic] = indexes if have is None else tuple(sorted({*have, *indexes}))
    return result


# -- EndTxn


def decide_end_txn(
    state: CoordinatorState, pending: Container[str], event: EndTxn, now_ms: int
) -> Decision:
    """Commit or abort: the point of no return is the Prepare record."""
    if event.transaction_version >= 2:
        return _decide_end_txn_tv2(state, pending, event, now_ms)
    txn = state.transactions.get(event.transactional_id)
    if txn is None:
        return _refuse_unknown(pending, event.transactional_id)
    if txn.producer_id != event.producer_id:
        return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != event.producer_epoch:
        return refuse(ErrorCode.PRODUCER_FENCED)
    if event.transactional_id in pending:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    end = END_TXN_TV1[txn.state, event.commit]
    if end is not End.PREPARE:
        return _end_without_record(end, _ENDED)
    prepared = prepared_metadata(
        txn,
        PREPARE_COMMIT if event.commit else PREPARE_ABORT,
        now_ms,
        producer_epoch=txn.producer_epoch,
        last_producer_epoch=txn.last_producer_epoch,
        administrator=event.administrator,
    )
    return prepare(event.transactional_id, prepared, _ENDED)


_ENDED: Final = Reply(NONE)
"""TV1 returns no identity: the producer keeps its own."""


def _decide_end_txn_tv2(
    state: CoordinatorState, pending: Container[str], event: EndTxn, now_ms: int
) -> Decision:
    txn = state.transactions.get(event.transactional_id)
    if event.transactional_id in pending:
        # Before the epoch check: an abort right after a commit carries the epoch that becomes valid
        # when the commit completes (KAFKA-18464).
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn is None:
        return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    retry_over_new_id = (
        event.producer_id == txn.previous_producer_id
        and event.producer_epoch == EXHAUSTED_EPOCH
        and txn.producer_epoch == 0
    )
    if txn.producer_id != event.producer_id and not retry_over_new_id:
        return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # The epoch before ours belongs to a retry only if EndTxn raised it. With TV1 InitProducerId
    # raised it, and the sender is an earlier owner; Kafka answers it with the epoch of the current
    # owner.
    retry = retry_over_new_id or (
        txn.producer_epoch == event.producer_epoch + 1 and txn.client_transaction_version >= 2
    )
    if not retry and txn.producer_epoch != event.producer_epoch:
        return refuse(ErrorCode.PRODUCER_FENCED)
    end = END_TXN_TV2.get((txn.state, event.commit, retry))
    if end is None:
        return refuse(ErrorCode.PRODUCER_FENCED)
    if end is _PREPARE or end is End.PREPARE_WITHOUT_PARTITIONS:
        begun = end is _PREPARE
        target = PREPARE_COMMIT if event.commit else PREPARE_ABORT
        return prepare_tv2(event, txn, target, now_ms, event.administrator, begun=begun)
    return _end_without_record(end, Reply(NONE, txn.producer_id, txn.producer_epoch))


def _end_without_record(end: End, success: Reply) -> Decision:
    if end is End.DONE_ALREADY:
        return Decision(reply=success)
    if end is End.RUNNING:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert end is End.ILLEGAL
    return refuse(ErrorCode.INVALID_TXN_STATE)


def _refuse_unknown(pending: Container[str], transactional_id: str) -> Decision:
    """Refuse an id without a record; one that is being tombstoned is still pending."""
    if transactional_id in pending:
        return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


# -- expiry


def decide_expiration(
    state: CoordinatorState, pending: Container[str], event: ExpirationDue, now_ms: int
) -> Decision:
    """One batch of tombstones for ids that have been idle too long; empty when none are left."""
    oldest_ms = now_ms - event.expiration_ms
    room_bytes = event.max_bytes
    records: list[LogRecord] = []
    for transactional_id, txn in state.transactions.items():
        if (
            txn.last_update_ms > oldest_ms
            or txn.state not in IDLE_STATES
            or transactional_id in pending
        ):
            continue
        room_bytes -= len(encode_key(transactional_id)) + _TOMBSTONE_OVERHEAD_BYTES
        if records and room_bytes < 0:
            break
        records.append(LogRecord(transactional_id, None))
    return Decision(records=tuple(records))
