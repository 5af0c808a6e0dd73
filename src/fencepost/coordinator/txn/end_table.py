"""What EndTxn does in which state: one table per protocol.

TV1 knows a retry by the state alone: the epoch is the same before and after. TV2 raises the epoch
with every EndTxn, so an equal epoch means the next transaction, and the epoch before it a retry of
the last one.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.txn.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping


class End(Enum):
    """What an EndTxn leads to."""

    PREPARE = auto()
    """The decision is written."""
    PREPARE_WITHOUT_PARTITIONS = auto()
    """TV2 may abort what it has not begun: only the epoch moves."""
    DONE_ALREADY = auto()
    """A retry of what was finished: the same answer again, nothing is written."""
    RUNNING = auto()
    """Its markers are on their way: CONCURRENT_TRANSACTIONS."""
    ILLEGAL = auto()
    """INVALID_TXN_STATE."""


END_TXN_TV1: Final[Mapping[tuple[int, bool], End]] = {
    # (state, commit)
    (State.EMPTY, True): End.ILLEGAL,
    (State.EMPTY, False): End.ILLEGAL,
    (State.ONGOING, True): End.PREPARE,
    (State.ONGOING, False): End.PREPARE,
    (State.PREPARE_COMMIT, True): End.RUNNING,
    (State.PREPARE_COMMIT, False): End.ILLEGAL,
    (State.PREPARE_ABORT, True): End.ILLEGAL,
    (State.PREPARE_ABORT, False): End.RUNNING,
    (State.COMPLETE_COMMIT, True): End.DONE_ALREADY,
    (State.COMPLETE_COMMIT, False): End.ILLEGAL,
    (State.COMPLETE_ABORT, True): End.ILLEGAL,
    (State.COMPLETE_ABORT, False): End.DONE_ALREADY,
}
"""TV1: the epoch has been found equal before this table is asked."""

END_TXN_TV2: Final[Mapping[tuple[int, bool, bool], End]] = {
    # (state, commit, retry). A retry carries the epoch before the one we hold; pairs that are
    # absent are fenced.
    (State.EMPTY, True, False): End.ILLEGAL,
    (State.EMPTY, False, False): End.PREPARE_WITHOUT_PARTITIONS,
    (State.ONGOING, True, False): End.PREPARE,
    (State.ONGOING, False, False): End.PREPARE,
    (State.PREPARE_COMMIT, True, True): End.RUNNING,
    (State.PREPARE_COMMIT, False, True): End.ILLEGAL,
    (State.PREPARE_ABORT, True, True): End.ILLEGAL,
    (State.PREPARE_ABORT, False, True): End.RUNNING,
    (State.COMPLETE_COMMIT, True, False): End.ILLEGAL,
    (State.COMPLETE_COMMIT, True, True): End.DONE_ALREADY,
    (State.COMPLETE_COMMIT, False, False): End.PREPARE_WITHOUT_PARTITIONS,
    (State.COMPLETE_COMMIT, False, True): End.ILLEGAL,
    (State.COMPLETE_ABORT, True, False): End.ILLEGAL,
    (State.COMPLETE_ABORT, True, True): End.ILLEGAL,
    (State.COMPLETE_ABORT, False, False): End.PREPARE_WITHOUT_PARTITIONS,
    (State.COMPLETE_ABORT, False, True): End.DONE_ALREADY,
}
"""TV2: an equal epoch means the next transaction, the epoch before it a retry of the last one."""
