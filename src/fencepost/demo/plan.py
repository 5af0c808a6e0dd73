"""What is killed, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fencepost.examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

LAST_KILL: Final = 0.85
"""Nothing is killed after this share of the settlements, or in the last two batches: every kill
finds work under way."""

LONGEST_DELAY_MS: Final = 60
"""Between the first write of a batch and the kill: shorter than a batch takes from there to its
end."""

LONGEST_OUTAGE_MS: Final = 1_000

LONGEST_LOAD_DELAY_MS: Final = 400
"""Between the beginning of a load and the kill: about as long as a load takes."""


class Victim(Enum):
    """What can be killed."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"
    LOADER = "loader"


IN_TURN: Final = (Victim.DRIVER, Victim.EXECUTOR, Victim.BROKER)
"""What is killed while the queries run. The loader comes after them, and is killed once."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    victim: Victim
    share: float
    """It comes when this share of the settlements has been decided."""
    side: str
    """And then while this query is writing."""
    delay_ms: int
    outage_ms: int
    """How long a broker stays away."""


def plan_kills(
    seed: int,
    count: int,
    victims: Sequence[Victim],
    sides: Sequence[str],
    batch_share: float = 0.0,
) -> list[Kill]:
    """So many kills, spread over the run; victims take turns, and so do the sides for each victim.

    `batch_share` is the share of the settlements that a batch decides.
    """
    last = max(0.0, min(LAST_KILL, 1 - 2 * batch_share))
    rng = random.Random(seed)
    first = rng.randrange(len(victims))
    order = [victims[(first + number) % len(victims)] for number in range(count)]
    rng.shuffle(order)
    turns = {victim: rng.randrange(len(sides)) for victim in victims}
    kills = []
    for number, victim in enumerate(order):
        turns[victim] += 1
        kills.append(
            Kill(
                victim,
                share=last * (number + rng.uniform(0.2, 1)) / count,
                side=sides[turns[victim] % len(sides)],
                delay_ms=rng.randrange(LONGEST_DELAY_MS),
                outage_ms=rng.randrange(LONGEST_OUTAGE_MS),
            )
        )
    return kills


@dataclass(frozen=True, slots=True)
class LoaderKill:
    """The kill that comes while topics are loaded."""

    load: int
    """Which one of the loads it strikes."""
    delay_ms: int


def plan_loader_kill(seed: int, loads: int) -> LoaderKill:
    """One kill in one of so many loads."""
    rng = random.Random(f"loader {seed}")
    return LoaderKill(rng.randrange(loads), rng.randrange(LONGEST_LOAD_DELAY_MS))


def sides_of(*, compare: bool) -> tuple[str, ...]:
    """The queries of a run."""
    return (EXACTLY_ONCE, AT_LEAST_ONCE) if compare else (EXACTLY_ONCE,)
