"""The state of one coordinator partition, and its only mutation.

The state is the last record of every transactional id: `apply` sets it, a tombstone removes it.
Everything else can be derived from the log, so fold(log) == fold(compacted log) == the live state.

`open` is an index over the state, also maintained by `apply`. Requests in flight are not part of
the state: the shell keeps them, and passes them to `decide` as `pending`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.base.failures import WireError
from fencepost.coordinator.txn.events import LogRecord
from fencepost.coordinator.txn.states import State
from fencepost.records.entry import Entry
from fencepost.records.transaction_log import TransactionMetadata, decode_key, decode_value

STATES: Final[tuple[State, ...]] = tuple(State)
OPEN_STATES: Final = frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT})


class CoordinatorState:
    """The state of one partition of `__transaction_state`."""

    __slots__ = ("open", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[str, TransactionMetadata] = {}
        self.open: dict[str, None] = {}
        """Ids with an open transaction, in no order; the timeout scan reads only these."""

    def __eq__(self, other: object) -> bool:
        """Equal if two logs lead to the same state."""
        if not isinstance(other, CoordinatorState):
            return NotImplemented
        return self.transactions == other.transactions and self.open.keys() == other.open.keys()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CoordinatorState({len(self.transactions)} ids, {len(self.open)} open)"


def apply(state: CoordinatorState, record: LogRecord) -> None:
    """Apply a record that is in the log."""
    transactional_id = record.transactional_id
    metadata = record.metadata
    if metadata is None:
        state.transactions.pop(transactional_id, None)
        state.open.pop(transactional_id, None)
        return
    state.transactions[transactional_id] = metadata
    if metadata.state in OPEN_STATES:
        state.open[transactional_id] = None
    else:
        state.open.pop(transactional_id, None)


def read_entry(entry: Entry) -> LogRecord | None:
    """Decode an entry of the log.

    None for an entry that cannot be decoded: a key or value of a later Kafka version, damaged
    bytes. One bad record must not keep other ids from being served, so the caller reports it and
    continues.
    """
    if entry.key is None:
        return None
    try:
        transactional_id = decode_key(bytes(entry.key))
        if transactional_id is None:
            return None
        if entry.value is None:
            return LogRecord(transactional_id, None)
        metadata = decode_value(bytes(entry.value))
    except WireError:
        return None
    if metadata is None:
        return None
    metadata.state = STATES[metadata.state]
    return LogRecord(transactional_id, metadata)


def fold(entries: Iterable[Entry], state: CoordinatorState | None = None) -> CoordinatorState:
    """The state after these entries; undecodable entries are skipped."""
    state = CoordinatorState() if state is None else state
    for entry in entries:
        record = read_entry(entry)
        if record is not None:
            apply(state, record)
    return state
