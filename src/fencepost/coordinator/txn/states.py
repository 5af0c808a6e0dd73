"""The states of a transaction, and which may follow which.

Rule 1: the order of states is defined here and nowhere else.

Rule 2: this file does not depend on the clock or the log.

A pair that TRANSITIONS does not list is a bug of ours, never a client's mistake: `decide.py`
refuses a client's mistakes before the table is consulted. The numbers are the status bytes of
`__transaction_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class State(IntEnum):
    """The state of a transactional id's one transaction; the names are Kafka's."""

    EMPTY = 0
    """InitProducerId has been answered; no partition has been added since."""
    ONGOING = 1
    """At least one partition or group has been added. Lasts until EndTxn, a fence or the
    timeout."""
    PREPARE_COMMIT = 2
    """The decision to commit is in the log: the point of no return. Markers are being written."""
    PREPARE_ABORT = 3
    """The decision to abort is in the log. Markers are being written."""
    COMPLETE_COMMIT = 4
    """Every partition has its COMMIT marker."""
    COMPLETE_ABORT = 5
    """Every partition has its ABORT marker."""
    DEAD = 6
    """The id has expired and is being tombstoned. Never written: the tombstone replaces it."""
    PREPARE_EPOCH_FENCE = 7
    """A new producer fences the old one. Kafka's name for the step before PREPARE_ABORT; never
    written."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset(
        {
            State.EMPTY,  # InitProducerId again
            State.ONGOING,  # AddPartitionsToTxn, AddOffsetsToTxn, an implicit add
            State.PREPARE_ABORT,  # EndTxn(abort) of TV2, which needs no partition
            State.DEAD,  # transactional.id.expiration.ms
        }
    ),
    State.ONGOING: frozenset(
        {
            State.ONGOING,  # more partitions
            State.PREPARE_COMMIT,  # EndTxn(commit)
            State.PREPARE_ABORT,  # EndTxn(abort)
            State.PREPARE_EPOCH_FENCE,  # InitProducerId by another producer, transaction.timeout.ms
        }
    ),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),  # all markers written
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),  # all markers written
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
}
