"""Queries: DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_TIMESTAMP
from fencepost.base.patterns import Pattern
from fencepost.coordinator.txn.apply import CoordinatorState
from fencepost.coordinator.txn.states import State
from fencepost.records.transaction_log import (
    NO_PARTITIONS,
    STATE_NAMES,
    Partitions,
    TransactionMetadata,
)

CONNECTED: Final = "connected"
GONE: Final = "gone"
UNKNOWN: Final = "unknown"


class Description(NamedTuple):
    """One transactional id for DescribeTransactions."""

    error: ErrorCode
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: Partitions = NO_PARTITIONS
    client_id: str | None = None
    """Of the client that last spoke for the id; None if the coordinator was loaded since then."""
    client_host: str | None = None
    client_connection: str = UNKNOWN
    """Whether the connection over which it spoke is open."""
    client_gone_at_ms: int = NO_TIMESTAMP
    """When it was closed."""
    administrator: str | None = None
    """Who caused the last change of its state with `fencepost txn`, if that is who did."""


class Filters(NamedTuple):
    """The filters of ListTransactions; empty means all."""

    states: Collection[int] | None = None
    """None for all; empty if none of the requested names is a state."""
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    """Only transactions older than this; negative for all."""
    pattern: Pattern | None = None
    """The whole id must match."""


def describe_transaction(
    state: CoordinatorState, transactional_id: str, unmarked: Partitions | None = None
) -> Description:
    """Describe one transactional id.

    While markers are being written, `unmarked` has the partitions that still lack theirs.
    """
    txn = state.transactions.get(transactional_id)
    if txn is None:
        return Description(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    return Description(
        ErrorCode.NONE,
        transactional_id,
        STATE_NAMES[txn.state],
        txn.timeout_ms,
        txn.start_ms,
        txn.producer_id,
        txn.producer_epoch,
        txn.partitions if unmarked is None else unmarked,
        administrator=txn.administrator or None,
    )


def parse_state_filters(names: Collection[str]) -> tuple[Collection[int] | None, list[str]]:
    """The requested states, and the names that are not states."""
    if not names:
        return None, []
    unknown = [name for name in names if name not in STATE_NAMES]
    return {STATE_NAMES.index(name) for name in names if name in STATE_NAMES}, unknown


def list_transactions(
    state: CoordinatorState, filters: Filters, now_ms: int
) -> Iterator[tuple[str, TransactionMetadata]]:
    """The ids that pass every filter. Expiring (Dead) ids are no longer in the state."""
    for transactional_id, txn in state.transactions.items():
        if filters.states is not None and txn.state not in filters.states:
            continue
        if filters.producer_ids and txn.producer_id not in filters.producer_ids:
            continue
        # As in Kafka, an id that never began a transaction counts from the epoch, and so passes any
        # duration.
        if filters.duration_ms >= 0 and now_ms - txn.start_ms <= filters.duration_ms:
            continue
        if filters.pattern is not None and filters.pattern.fullmatch(transactional_id) is None:
            continue
        assert txn.state != State.DEAD
        yield transactional_id, txn
