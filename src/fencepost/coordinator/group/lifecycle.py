"""The life of a consumer group, as one table.

Rule 1: whatever decides which state may follow which stands here and nowhere else.
Rule 2: this file knows neither members nor log; it speaks of groups in the abstract.

A pair that TRANSITIONS does not list is a bug of ours, never a client's mistake: what a client may
not do is refused before the table is asked. Only EMPTY and STABLE are ever in the log; the states
between them live in memory, and a coordinator that loads a group takes up the last generation that
was written.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """Where a group stands; the values are what Kafka's tools print."""

    EMPTY = "Empty"
    """No members. Offsets may remain, and expire in time."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again: JoinGroup requests wait until all have, or until time is
    up."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the next generation are known; SyncGroup requests wait for the leader's
    assignment."""
    STABLE = "Stable"
    """Every member knows its assignment, or may have it by SyncGroup."""
    DEAD = "Dead"
    """Deleted, or handed to another coordinator. Nobody finds the group any more."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset(
        {
            State.PREPARING_REBALANCE,  # the first member joins
            State.DEAD,  # DeleteGroups, the last offset has expired
        }
    ),
    State.PREPARING_REBALANCE: frozenset(
        {
            State.COMPLETING_REBALANCE,  # the members have joined, or the rebalance timeout has passed
            State.EMPTY,  # every member has left
            State.DEAD,
        }
    ),
    State.COMPLETING_REBALANCE: frozenset(
        {
            State.STABLE,  # the leader's assignment is in the log
            State.PREPARING_REBALANCE,  # a member joins, leaves or fails
            State.DEAD,
        }
    ),
    State.STABLE: frozenset(
        {
            State.PREPARING_REBALANCE,  # a member joins, leaves or fails; the leader joins again
            State.DEAD,
        }
    ),
    State.DEAD: frozenset({State.DEAD}),
}
