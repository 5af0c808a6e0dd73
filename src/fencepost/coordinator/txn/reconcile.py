"""Makes coordinator and partition logs agree after each lost a different tail.

In `os` mode a power loss removes the unsynced tail of each log, and the tails differ. What is
left of each log was true once, but the coordinator and the partitions describe different times.
`reconcile` compares the producers of the partitions (their epochs and open transactions) with the
last record of each transactional id, and returns the markers and records that make them agree:

- A transaction is committed only if it certainly was. With TV2 each transaction has a different
  epoch: records at epoch e belong to the transaction that a PrepareCommit or CompleteCommit record
  at epoch e+1 describes. With TV1 several transactions share an epoch, so open records may belong
  to a later transaction that was aborted.
- Everything else that is open is aborted, Ongoing transactions included: some of their records may
  be gone although they were acknowledged, and a commit would expose the rest.
- An id whose transaction is aborted this way gets an epoch above all that any partition has seen.
  Otherwise its producer could continue in the middle of a transaction and commit the second half.
  Its record is CompleteAbort and keeps the epoch before, so that the abort of a TV2 producer
  succeeds.
- An id whose partitions have a higher epoch than its record, and nothing open, takes over that
  epoch. Otherwise its markers would be refused forever.
- A prepared transaction that agrees with the partitions is left to the usual end.

The records do not follow the table of states: PrepareCommit may become CompleteAbort here, if the
partitions show that the commit was over long ago and a later transaction is open.

The result does not depend on earlier runs: an interrupted start may have done all or part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from fencepost.base.ids import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)
from fencepost.coordinator.txn.events import LogRecord
from fencepost.coordinator.txn.prepare import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED_STATES,
)
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import NO_PARTITIONS, TransactionMetadata


class ProducerSeen(NamedTuple):
    """The state of one producer on one partition."""

    name: TopicPartition
    producer_id: int
    epoch: int
    is_open: bool
    """Whether it has an open transaction there."""
    coordinator_epoch: int = -1


class MissingMarker(NamedTuple):
    """A marker that ends a transaction on one partition."""

    name: TopicPartition
    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int


class Reconciliation(NamedTuple):
    """The repair; the markers come first."""

    markers: list[MissingMarker]
    records: list[LogRecord]


def reconcile(
    seen: Iterable[ProducerSeen], known: Iterable[tuple[str, TransactionMetadata]], now_ms: int
) -> Reconciliation:
    """Compare the producers of all partitions with the records of all coordinators."""
    by_producer: dict[int, list[ProducerSeen]] = {}
    for each in seen:
        by_producer.setdefault(each.producer_id, []).append(each)
    result = Reconciliation([], [])
    owned = set()
    for transactional_id, txn in known:
        owned.add(txn.producer_id)
        found = by_producer.get(txn.producer_id, [])
        if found or txn.state == ONGOING:
            _reconcile(transactional_id, txn, found, now_ms, result)
    for producer_id, found in by_producer.items():
        if producer_id not in owned:
            result.markers.extend(
                _marker(each, _after(each.epoch), commit=False) for each in found if each.is_open
            )
    return result


def _reconcile(
    transactional_id: str,
    txn: TransactionMetadata,
    found: list[ProducerSeen],
    now_ms: int,
    result: Reconciliation,
) -> None:
    """Reconcile one transactional id with the partitions that have seen its producer."""
    current = txn.producer_epoch
    highest = max((each.epoch for each in found), default=NO_PRODUCER_EPOCH)
    to_commit: list[ProducerSeen] = []
    to_abort: list[ProducerSeen] = []
    for each in found:
        if each.is_open:
            (to_commit if _was_committed(txn, each) else to_abort).append(each)
    is_doubtful = _is_doubtful(txn, highest, to_abort)
    if is_doubtful or txn.state == COMPLETE_COMMIT:  # Otherwise the usual end writes it.
        result.markers.extend(_marker(each, current, commit=True) for each in to_commit)
    if is_doubtful:
        last = max(highest, current)
        epoch = _after(last)
        result.markers.extend(_marker(each, epoch, commit=False) for each in to_abort)
        record = _idle(txn, epoch, COMPLETE_ABORT, now_ms)
        if epoch != MAX_PRODUCER_EPOCH:  # No client may hold that epoch.
            record.last_producer_epoch = last
        result.records.append(LogRecord(transactional_id, record))
    elif highest > current:
        record = _idle(txn, highest, State.EMPTY, now_ms)
        result.records.append(LogRecord(transactional_id, record))


def _is_doubtful(txn: TransactionMetadata, highest: int, to_abort: list[ProducerSeen]) -> bool:
    """Whether the usual end of the transaction does not suffice."""
    if txn.state == ONGOING or (txn.state in PREPARED_STATES and highest > txn.producer_epoch):
        return True
    return any(not _is_being_aborted(txn, each) for each in to_abort)


def _was_committed(txn: TransactionMetadata, each: ProducerSeen) -> bool:
    """Whether the transaction that is open there is certainly the committed one."""
    if txn.client_transaction_version < 2:
        return False
    if each.epoch != txn.last_producer_epoch or each.epoch + 1 != txn.producer_epoch:
        return False
    return txn.state == COMPLETE_COMMIT or (txn.state == PREPARE_COMMIT and _lists(txn, each))


def _is_being_aborted(txn: TransactionMetadata, each: ProducerSeen) -> bool:
    """Whether the usual end aborts it, at an epoch above the producer's."""
    return txn.state == PREPARE_ABORT and _lists(txn, each) and each.epoch < txn.producer_epoch


def _lists(txn: TransactionMetadata, each: ProducerSeen) -> bool:
    return each.name.partition in txn.partitions.get(each.name.topic, ())


def _after(epoch: int) -> int:
    return min(epoch + 1, MAX_PRODUCER_EPOCH)


def _marker(each: ProducerSeen, epoch: int, *, commit: bool) -> MissingMarker:
    # Not the epoch of the coordinator itself: this one is certainly not too low for the partition.
    coordinator_epoch = max(each.coordinator_epoch, 0)
    return MissingMarker(each.name, each.producer_id, epoch, commit, coordinator_epoch)


def before_loss(txn: TransactionMetadata) -> TransactionMetadata:
    """The record of an id whose later records may be lost, with nothing left to the usual end.

    A decided commit is written where it is certain; everything else that is open is aborted.
    """
    if txn.state not in PREPARED_STATES:
        return txn
    state = COMPLETE_COMMIT if txn.state == PREPARE_COMMIT else ONGOING
    return replace(txn, state=state)


def renewed(txn: TransactionMetadata, producer_id: int, now_ms: int) -> TransactionMetadata:
    """The record of an id that restarts with a new producer id, which fences all producers."""
    record = _idle(txn, 0, State.EMPTY, now_ms)
    record.producer_id, record.previous_producer_id = producer_id, NO_PRODUCER_ID
    return record


def _idle(txn: TransactionMetadata, epoch: int, state: State, now_ms: int) -> TransactionMetadata:
    return TransactionMetadata(
        txn.producer_id,
        txn.producer_id,
        NO_PRODUCER_ID,
        epoch,
        NO_PRODUCER_EPOCH,
        txn.timeout_ms,
        state,
        NO_PARTITIONS,
        NO_TIMESTAMP if state == State.EMPTY else txn.start_ms,
        now_ms,
        2,
    )
