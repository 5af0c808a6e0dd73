"""A schedule of faults, made from a seed: the same seed gives the same schedule.

A fault names the part that it hits by its role, because which broker has the role follows from
what happened before:

    leader 3            the broker that leads copies-3
    coordinator 1       the coordinator of the transactions of copier 1
    group 1             the coordinator of its consumer group
    broker 2            broker 2

A round is one fault, or two that overlap: the second begins before the first has ended.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """What happens to a broker, the parent or a copier."""

    KILL = "kill, and restart by command"
    CRASH = "kill; the parent restarts it"
    PAUSE = "pause below the session timeout"
    FREEZE = "pause until the parent kills it"
    DOWN = "cut off from its clients"
    ROLL = "roll"
    MOVE = "move partitions and coordinators"
    REBALANCE = "kill, restart, rebalance at once"
    PARENT_KILL = "kill the parent"
    PARENT_KILL_IN_TAKEOVER = "kill a broker and then the parent"
    PARENT_PAUSE = "pause the parent"
    RESTART = "stop the cluster cleanly and start it"
    COPIER_KILL = "kill a copier"


ROLES: Final = ("leader", "coordinator", "group", "broker")

WEIGHTS: Final = {
    Kind.KILL: 5,
    Kind.CRASH: 5,
    Kind.PAUSE: 5,
    Kind.FREEZE: 3,
    Kind.DOWN: 3,
    Kind.ROLL: 3,
    Kind.MOVE: 6,
    Kind.REBALANCE: 1,
    Kind.PARENT_KILL: 1,
    Kind.PARENT_KILL_IN_TAKEOVER: 1,
    Kind.PARENT_PAUSE: 1,
    Kind.RESTART: 1,
    Kind.COPIER_KILL: 2,
}

OVERLAPPING: Final = (Kind.KILL, Kind.CRASH, Kind.PAUSE, Kind.FREEZE, Kind.DOWN)
"""Faults that last: another one may begin before they end."""

SECOND: Final = (
    Kind.KILL,
    Kind.CRASH,
    Kind.PAUSE,
    Kind.DOWN,
    Kind.MOVE,
    Kind.COPIER_KILL,
    Kind.PARENT_KILL,
)
"""Faults that can begin while another one lasts."""

OVERLAP_SHARE: Final = 0.25


class Fault(NamedTuple):
    """One fault."""

    kind: Kind
    role: str
    number: int
    """Which leader, coordinator, group, broker or copier."""
    dice: int
    """What else is to be chosen follows from this number."""

    def __str__(self) -> str:
        return f"{self.kind.name} {self.role} {self.number} ({self.dice})"


Round = tuple[Fault, ...]


def make_schedule(seed: int, faults: int, *, copiers: int = 4) -> list[Round]:
    """The rounds of a run, with as many faults as asked for."""
    randomness = random.Random(f"schedule {seed}")
    rounds: list[Round] = []
    left = faults
    while left > 0:
        first = _draw(randomness, list(WEIGHTS), copiers)
        is_overlapped = first.kind in OVERLAPPING and randomness.random() < OVERLAP_SHARE
        if is_overlapped and left > 1:
            rounds.append((first, _draw(randomness, list(SECOND), copiers)))
        else:
            rounds.append((first,))
        left -= len(rounds[-1])
    return rounds


def _draw(randomness: random.Random, kinds: list[Kind], copiers: int) -> Fault:
    (kind,) = randomness.choices(kinds, [WEIGHTS[each] for each in kinds])
    role = randomness.choice(ROLES)
    number = {"leader": 6, "broker": 3}.get(role, copiers)
    return Fault(kind, role, randomness.randrange(number), randomness.randrange(1_000_000))
