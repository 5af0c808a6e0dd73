"""What a coordinator is told, and what it says: events, replies, effects, and the decision that joins them.

An event carries all that is needed to decide: where a fresh producer id may be called for, the
event has a `new_producer_id`. It is -1 at first; a decision that cannot do without answers with the
effect `ReserveProducerId`, and the same event comes again with an id in it. So deciding stays a
function.

What every transaction needs has an `__init__` of its own: mypyc makes a call without a frame of it,
and of the fields a struct (docs/decisions/0007). None of these values is changed once it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from fencepost.records.transaction_log import Partitions, TransactionMetadata

# -- events
# ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class InitProducerId:
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


@dataclass(slots=True, init=False)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, or the implicit add of a first write."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Partitions
    transaction_version: int
    """2 from the implicit add of TV2, else 0."""

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Partitions,
        transaction_version: int = 0,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.partitions = partitions
        self.transaction_version = transaction_version


@dataclass(slots=True, init=False)
class EndTxn:
    """A producer commits or aborts."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    """2 from EndTxn v5 on, else 0."""
    new_producer_id: int

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        transaction_version: int,
        new_producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.transaction_version = transaction_version
        self.new_producer_id = new_producer_id


@dataclass(slots=True)
class TimedOut:
    """A transaction has been open for longer than its producer allowed."""

    transactional_id: str
    producer_id: int
    transaction_version: int
    new_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True, init=False)
class MarkersWritten:
    """Every partition of a prepared transaction has its marker, durably."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


@dataclass(slots=True)
class ExpirationDue:
    """Time to look for ids that nobody has used for long."""

    expiration_ms: int
    max_bytes: int
    """Of one batch of tombstones."""


# -- decisions
# ------------------------------------------------------------------------------------------------


@dataclass(slots=True, init=False)
class Reply:
    """What the client is told, once the records are durable."""

    error: ErrorCode
    producer_id: int
    producer_epoch: int

    def __init__(
        self,
        error: ErrorCode,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> None:
        self.error = error
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


@dataclass(slots=True, init=False)
class LogRecord:
    """One record for the coordinator's log; no metadata is a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata


@dataclass(slots=True, init=False)
class WriteMarkers:
    """To be done once the records are durable: end the transaction on each of its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Partitions
    transaction_version: int

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        partitions: Partitions,
        transaction_version: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.partitions = partitions
        self.transaction_version = transaction_version


class ReserveProducerId:
    """Nothing is decided yet: come again with a fresh producer id."""


Effect = WriteMarkers | ReserveProducerId


@dataclass(slots=True, init=False)
class Decision:
    """Records to append and apply, what follows when they are durable, and the answer."""

    records: tuple[LogRecord, ...]
    effects: tuple[Effect, ...]
    reply: Reply | None

    def __init__(
        self,
        records: tuple[LogRecord, ...] = (),
        effects: tuple[Effect, ...] = (),
        reply: Reply | None = None,
    ) -> None:
        self.records = records
        self.effects = effects
        self.reply = reply


RESERVE_PRODUCER_ID: Final = Decision(effects=(ReserveProducerId(),))


def refuse(error: ErrorCode) -> Decision:
    """Nothing happens, and the client is told why."""
    return Decision(reply=Reply(error))
