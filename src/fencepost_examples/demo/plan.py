"""The plan of a run: what to kill, pause or roll, and when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fencepost_examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

LAST_KILL: Final = 0.85
"""No kill after this share of the settlements or in the last two batches, so that every kill hits a
running batch."""

LONGEST_DELAY_MS: Final = 60
"""The longest time from a batch's first write to the kill; shorter than the rest of a batch."""

LONGEST_OUTAGE_MS: Final = 1_000

PAUSE_MS: Final = 1_000
"""A paused broker stays so for this long and an outage: less than broker.session.timeout.ms."""

LONGEST_LOAD_DELAY_MS: Final = 400
"""The longest time from the start of a load to the kill; about the duration of a load."""


class Victim(Enum):
    """What can be killed; of several brokers, one can also be paused or rolled."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"
    PAUSED_BROKER = "pause"
    ROLLED_BROKER = "roll"
    LOADER = "loader"
    RELAY = "relay"
    DATABASE = "database"


IN_TURN: Final = (Victim.DRIVER, Victim.EXECUTOR, Victim.BROKER)
"""The victims while the queries run. The loader runs after them and is killed once."""

BROKER_VICTIMS: Final = (Victim.BROKER, Victim.PAUSED_BROKER, Victim.ROLLED_BROKER)

IN_TURN_OF_SEVERAL: Final = (Victim.DRIVER, Victim.EXECUTOR, *BROKER_VICTIMS)
"""The victims with several brokers: one is killed, paused or rolled at a time."""

_DELAY_FACTOR: Final = {Victim.DATABASE: 8}
"""Payments are copied and merged some tenths of a second after their batch has begun."""

OF_DATABASES: Final = (Victim.RELAY, Victim.DATABASE)
"""More victims between databases; there is no loader then."""


class Aim(Enum):
    """Which of several brokers is hit."""

    COORDINATOR = "coordinator"
    """The coordinator of the pipeline's transactional id."""
    LEADER = "leader"
    """The leader of a partition that is being written."""
    ANY = "any"


_AIMS: Final = (Aim.COORDINATOR, Aim.LEADER, Aim.ANY)
"""The aims of each kind of fault, in turn: the first kill hits the coordinator, and so does the
first pause."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One planned kill."""

    victim: Victim
    share: float
    """The kill happens after this share of the settlements has been decided."""
    side: str
    """The kill happens while this query is writing."""
    delay_ms: int
    outage_ms: int
    """How long a killed broker stays down."""
    aim: Aim = Aim.ANY
    """Of several brokers, the one to hit."""


def plan_kills(
    seed: int,
    count: int,
    victims: Sequence[Victim],
    sides: Sequence[str],
    batch_share: float = 0.0,
) -> list[Kill]:
    """Spreads `count` kills over the run; alternates victims, and the sides for each victim.

    `batch_share` is the share of the settlements in one batch.
    """
    last = max(0.0, min(LAST_KILL, 1 - 2 * batch_share))
    rng = random.Random(seed)
    first = rng.randrange(len(victims))
    order = [victims[(first + number) % len(victims)] for number in range(count)]
    rng.shuffle(order)
    turns = {victim: rng.randrange(len(sides)) for victim in victims}
    struck: Counter[Victim] = Counter()
    kills = []
    for number, victim in enumerate(order):
        turns[victim] += 1
        kills.append(
            Kill(
                victim,
                share=last * (number + rng.uniform(0.2, 1)) / count,
                side=sides[turns[victim] % len(sides)],
                delay_ms=rng.randrange(LONGEST_DELAY_MS) * _DELAY_FACTOR.get(victim, 1),
                outage_ms=rng.randrange(LONGEST_OUTAGE_MS),
                aim=_AIMS[struck[victim] % len(_AIMS)],
            )
        )
        struck[victim] += 1
    return kills


@dataclass(frozen=True, slots=True)
class LoaderKill:
    """The planned kill of the loader."""

    load: int
    """Which load it hits."""
    delay_ms: int


def plan_loader_kill(seed: int, loads: int) -> LoaderKill:
    """Plans a kill in one of the loads."""
    rng = random.Random(f"loader {seed}")
    return LoaderKill(rng.randrange(loads), rng.randrange(LONGEST_LOAD_DELAY_MS))


def sides_of(*, compare: bool) -> tuple[str, ...]:
    """Returns the queries of a run."""
    return (EXACTLY_ONCE, AT_LEAST_ONCE) if compare else (EXACTLY_ONCE,)
