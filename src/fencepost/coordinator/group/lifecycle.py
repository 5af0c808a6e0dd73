"""The states of a consumer group, and which may follow which.

Rule 1: the order of states is defined here and nowhere else.

Rule 2: this file does not depend on members or the log.

A pair that TRANSITIONS does not list is a bug of ours, never a client's mistake: a client's
mistakes are refused before the table is consulted. Only EMPTY and STABLE are ever in the log; the
states between them live in memory, and a coordinator that loads a group resumes the last generation
that was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """The state of a group; the values are those that Kafka's tools print."""

    EMPTY = "Empty"
    """No members. Offsets may remain, and expire in time."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members must join again: JoinGroup requests wait until all have, or the timeout passes."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The next generation's members are known; SyncGroup requests wait for the leader's
    assignment."""
    STABLE = "Stable"
    """Every member has its assignment, or can get it by SyncGroup."""
    DEAD = "Dead"
    """Deleted, or moved to another coordinator."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset(
        {
            State.PREPARING_REBALANCE,  # the first member joins
            State.DEAD,  # DeleteGroups, the last offset has expired
        }
    ),
    State.PREPARING_REBALANCE: frozenset(
        {
            State.COMPLETING_REBALANCE,  # all have joined, or the rebalance timeout has passed
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
