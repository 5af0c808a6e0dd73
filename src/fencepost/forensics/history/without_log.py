"""The history of an id without its log: for users who may not read `__transaction_state`.

A partition has the batches and markers of a producer id. Its transactions become records as the
coordinator might have written them: Ongoing at the first batch, Prepare at the marker. What the
coordinator tells today (DescribeTransactions) is the last record. So the same rules judge both;
nothing that rests on such records is called proven, because the times are the client's, a partition
does not show InitProducerId, and other partitions may tell more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from fencepost.forensics.history.rules import Certainty
from fencepost.forensics.history.state_changes import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    StateChange,
)
from fencepost.forensics.history.why import Verdict
from fencepost.records.transaction_log import (
    NO_PARTITIONS,
    STATE_NAMES,
    Partitions,
    TransactionMetadata,
)

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.forensics.history.markers import PartitionFacts, SeenTransaction
    from fencepost.records.fates import Transaction

NO_RECORD: Final = -1
"""The offset of a record that was not read but inferred."""


_NOTHING_KNOWN: Final = TransactionMetadata(
    producer_id=NO_PRODUCER_ID,
    previous_producer_id=NO_PRODUCER_ID,
    next_producer_id=NO_PRODUCER_ID,
    producer_epoch=NO_PRODUCER_EPOCH,
    last_producer_epoch=NO_PRODUCER_EPOCH,
    timeout_ms=-1,
    state=ONGOING,
    partitions=NO_PARTITIONS,
    start_ms=NO_TIMESTAMP,
    last_update_ms=NO_TIMESTAMP,
    client_transaction_version=0,
)


def infer_changes(
    partitions: Iterable[PartitionFacts], view: TransactionView | None
) -> list[StateChange]:
    """Records that would leave what was seen, oldest first.

    One partition is enough, the one with the most transactions: all partitions of a transaction
    get their markers within milliseconds.
    """
    best = max(partitions, key=lambda facts: len(facts.transactions), default=None)
    inferred: list[StateChange] = []
    if best is not None:
        name = {best.partition.topic: (best.partition.partition,)}
        protocol = _protocol([each.transaction for each in best.transactions])
        timeout_ms = view.timeout_ms if view is not None else -1
        for each in best.transactions:
            inferred += _changes(each, name, protocol, timeout_ms)
    if view is not None:
        inferred.append(_current(view))
    return inferred


def _protocol(seen: Sequence[Transaction]) -> int:
    """TV1 if any transaction was ended at its own epoch; TV2 raises it at every end."""
    is_tv1 = any(each.end and each.end.producer_epoch == each.producer_epoch for each in seen)
    return 1 if is_tv1 else 2


def _changes(
    seen: SeenTransaction, partitions: Partitions, protocol: int, timeout_ms: int
) -> Iterable[StateChange]:
    transaction, end = seen.transaction, seen.transaction.end
    opened = replace(
        _NOTHING_KNOWN,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=timeout_ms,
        partitions=partitions,
        start_ms=seen.first_at_ms,
        last_update_ms=seen.first_at_ms,
        client_transaction_version=protocol,
    )
    yield StateChange(NO_RECORD, seen.first_at_ms, -1, opened)
    if end is not None:
        ended = replace(
            opened,
            producer_epoch=end.producer_epoch,
            state=PREPARE_COMMIT if end.commit else PREPARE_ABORT,
            last_update_ms=end.at_ms,
        )
        yield StateChange(NO_RECORD, end.at_ms, end.coordinator_epoch, ended)


def _current(view: TransactionView) -> StateChange:
    metadata = replace(
        _NOTHING_KNOWN,
        producer_id=view.producer_id,
        producer_epoch=view.producer_epoch,
        timeout_ms=view.timeout_ms,
        state=STATE_NAMES.index(view.state) if view.state in STATE_NAMES else ONGOING,
        start_ms=view.start_ms,
        last_update_ms=max(view.start_ms, NO_TIMESTAMP),
    )
    return StateChange(NO_RECORD, NO_TIMESTAMP, -1, metadata)


def at_most_likely(verdict: Verdict, prove: str) -> Verdict:
    """The verdict on records that are inferred or incomplete, and what would prove it."""
    if verdict.certainty is not Certainty.PROVEN:
        return verdict
    return replace(verdict, certainty=Certainty.LIKELY, prove=prove)
