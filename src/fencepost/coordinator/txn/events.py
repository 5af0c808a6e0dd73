"""The coordinator's events, replies and effects, and the decision that combines them.

An event carries all inputs of a decision. Events that may need a fresh producer id have a field
`new_producer_id`, -1 at first. A decision that needs the id returns the effect `ReserveProducerId`,
and the same event comes again with an id. So deciding stays a function.

The classes that every transaction uses define `__init__` by hand: mypyc then compiles a call
without a frame, and the fields into a struct (docs/decisions/0007). None of these values is changed
after construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from fencepost.records.transaction_log import Partitions, TransactionMetadata

# -- events


@dataclass(slots=True)
class InitProducerId:
    """A producer requests the id: a new instance (-1, -1), or one that recovers (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False
    keep_prepared_txn: bool = False
    transaction_version: int = 2
    """Of the cluster: a fence is an abort by the coordinator, not by the client."""
    new_producer_id: int = NO_PRODUCER_ID
    administrator: str = ""
    """Who fences the id with `fencepost txn`; empty for a producer."""


@dataclass(slots=True, init=False)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, or the implicit add of a first write."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Partitions
    transaction_version: int
    """2 for the implicit add of TV2, otherwise 0."""

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
    """2 from EndTxn v5 on, otherwise 0."""
    new_producer_id: int
    administrator: str
    """Who ends it with `fencepost txn`, in the producer's name; empty for the producer."""

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        transaction_version: int,
        new_producer_id: int = NO_PRODUCER_ID,
        administrator: str = "",
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.commit = commit
        self.transaction_version = transaction_version
        self.new_producer_id = new_producer_id
        self.administrator = administrator


@dataclass(slots=True)
class TimedOut:
    """A transaction has been open longer than its timeout."""

    transactional_id: str
    producer_id: int
    transaction_version: int
    new_producer_id: int = NO_PRODUCER_ID


@dataclass(slots=True, init=False)
class MarkersWritten:
    """Every partition of a prepared transaction has a durable marker."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


@dataclass(slots=True)
class ExpirationDue:
    """A scan for ids past transactional.id.expiration.ms is due."""

    expiration_ms: int
    max_bytes: int
    """The size of one batch of tombstones."""


# -- decisions


@dataclass(slots=True, init=False)
class Reply:
    """The reply to the client, sent once the records are durable."""

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
    """One record of the coordinator's log; without metadata it is a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata


@dataclass(slots=True, init=False)
class WriteMarkers:
    """Once the records are durable: end the transaction on each of its partitions."""

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
    """Nothing is decided yet: repeat the event with a fresh producer id."""


Effect = WriteMarkers | ReserveProducerId


@dataclass(slots=True, init=False)
class Decision:
    """Records to append and apply, the effects once they are durable, and the reply."""

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
    """Refuse a request: no records, an error for the client."""
    return Decision(reply=Reply(error))
