"""What a coordinator is told, and what it says: events, replies, effects, and the decision that joins them.

An event carries all that is needed to decide: where a fresh producer id may be called for, the event has a
`new_producer_id`. It is -1 at first; a decision that cannot do without answers with the effect
`ReserveProducerId`, and the same event comes again with an id in it. So deciding stays a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from fencepost.base.errors import ErrorCode
    from fencepost.records.transaction_log import Partitions, TransactionMetadata

# -- events ---------------------------------------------------------------------------------------------------


class InitProducerId(NamedTuple):
    """A producer wants the id: anew (-1, -1), or to go on after an error (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False
    keep_prepared_txn: bool = False
    transaction_version: int = 2
    """Of the cluster: a fence is the coordinator's own abort, not the client's."""
    new_producer_id: int = NO_PRODUCER_ID


class AddPartitions(NamedTuple):
    """AddPartitionsToTxn, AddOffsetsToTxn, or the implicit add of a first write."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Partitions
    transaction_version: int = 0
    """2 from the implicit add of TV2, else 0."""


class EndTxn(NamedTuple):
    """A producer commits or aborts."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    """2 from EndTxn v5 on, else 0."""
    new_producer_id: int = NO_PRODUCER_ID


class TimedOut(NamedTuple):
    """A transaction has been open for longer than its producer allowed."""

    transactional_id: str
    producer_id: int
    transaction_version: int
    new_producer_id: int = NO_PRODUCER_ID


class MarkersWritten(NamedTuple):
    """Every partition of a prepared transaction has its marker, durably."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ExpirationDue(NamedTuple):
    """Time to look for ids that nobody has used for long."""

    expiration_ms: int
    max_bytes: int
    """Of one batch of tombstones."""


# -- decisions ------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """What the client is told, once the records are durable."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class LogRecord(NamedTuple):
    """One record for the coordinator's log; no metadata is a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None


class WriteMarkers(NamedTuple):
    """To be done once the records are durable: end the transaction on each of its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Partitions
    transaction_version: int


class ReserveProducerId(NamedTuple):
    """Nothing is decided yet: come again with a fresh producer id."""


Effect = WriteMarkers | ReserveProducerId


class Decision(NamedTuple):
    """Records to append and apply, what follows when they are durable, and the answer."""

    records: tuple[LogRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    reply: Reply | None = None


RESERVE_PRODUCER_ID: Final = Decision(effects=(ReserveProducerId(),))


def refuse(error: ErrorCode) -> Decision:
    """Nothing happens, and the client is told why."""
    return Decision(reply=Reply(error))
