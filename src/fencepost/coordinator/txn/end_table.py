"""The effect of EndTxn in each state: one table per protocol.

TV1 recognizes a retry by the state alone: the epoch is the same before and after. TV2 raises the
epoch with every EndTxn, so an equal epoch means the next transaction, and the epoch before it a
retry of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from fencepost.coordinator.txn.states import State


class End(Enum):
    """The effect of an EndTxn."""

    PREPARE = auto()
    """Write the decision."""
    PREPARE_WITHOUT_PARTITIONS = auto()
    """Raise the epoch only: TV2 may abort a transaction that it has not begun."""
    DONE_ALREADY = auto()
    """A retry of a finished end: the same answer again, without a record."""
    RUNNING = auto()
    """Its markers are being written: CONCURRENT_TRANSACTIONS."""
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
"""TV1: the epoch has been compared before this lookup."""

END_TXN_TV2: Final[Mapping[tuple[int, bool, bool], End]] = {
    # (state, commit, retry). A retry carries the epoch before ours; pairs that are absent are
    # fenced.
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
