"""The life of one transaction: a micro-batch, or a batch write, as one table.

A transaction may pass through three processes: format("fencepost") plans (up to decided), writes
(up to entered) and commits (up to the end) in separate ones.

A move that MOVES does not list is a bug of ours. Whatever a user, a task or a broker may cause has
its own move: a failure aborts, and an abort without an answer leaves the transaction in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
    """Where a transaction stands, and what that means."""

    PLANNED = "nothing has happened yet"
    FENCED = "the transactional id is ours, with an epoch that no one has written with"
    DECIDED = "the ledger has said what to do with the batch"
    WRITING = "executors, or the driver itself, write rows with the identity that was lent to them"
    ENTERED = (
        "all rows are acknowledged and counted; the source offsets and the ledger's record are in "
        "the transaction too"
    )
    ENDING = "EndTxn is on its way: from here on the brokers decide"
    IN_DOUBT = "an answer was lost: the transaction may be open, committed or aborted"
    COMMITTED = "everything is visible"
    ABORTED = "nothing is or will be visible; the next attempt begins with a fresh epoch"
    DRAINED = "the batch was committed before, so its plan ran and its rows were dropped"


MOVES: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.PLANNED: frozenset({State.FENCED}),
        State.FENCED: frozenset({State.DECIDED}),
        State.DECIDED: frozenset({State.WRITING, State.DRAINED}),
        State.WRITING: frozenset({State.ENTERED, State.ABORTED, State.IN_DOUBT}),
        State.ENTERED: frozenset({State.ENDING, State.ABORTED, State.IN_DOUBT}),
        State.ENDING: frozenset({State.COMMITTED, State.ABORTED, State.IN_DOUBT}),
        State.IN_DOUBT: frozenset({State.COMMITTED, State.ABORTED, State.DECIDED}),
        State.ABORTED: frozenset({State.FENCED}),
        State.COMMITTED: frozenset(),
        State.DRAINED: frozenset(),
    }
)
"""Which state may follow which. From in doubt to decided: the batch turned out to be committed
before its plan had run to its end, so it is drained."""

OPEN: Final = frozenset({State.WRITING, State.ENTERED, State.ENDING})
"""States in which the transaction may be open, and a failure must abort it."""
