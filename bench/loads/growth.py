"""What a transaction costs while something grows: ids that are known, partitions, open transactions, the log.

Flat is the goal. Each round starts a broker on an empty folder, lets the one thing grow from point to point, and at each point
has some producers commit transactions of one record (TV2) for a while.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.client import RECORD_BYTES
from bench.generate import generate
from bench.load import Load, Measure, Plot, Round, Scale, Session, Values
from bench.sides import Broker, Side

PRODUCERS: Final = 16
CONNECTIONS: Final = 32
SECONDS: Final = 1.5
QUICK_SECONDS: Final = 0.7
FIRST_WARMUP_SECONDS: Final = 10
QUICK_FIRST_WARMUP_SECONDS: Final = 3
LOG_RECORDS: Final = 1000
"""Records per request when a log is filled."""

Grow = Callable[[Broker, int, int], None]
"""Lets it grow from one size to the next."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What grows, and how far."""

    name: str
    title: str
    x_label: str
    points: tuple[int, ...]
    quick_points: tuple[int, ...]
    grow: Grow
    topic: Callable[[int], tuple[str, int]] = lambda _: ("bench", 4)
    """Where the transactions go at a point: topic and its partitions."""
    is_spread: bool = False
    """Whether every transaction writes to all of them; the cost is then that of each partition."""

    in_quick: bool = True
    rounds: int = 2
    repeats: int = 1
    """How often each point is measured in a round: more often where it takes long to get there."""

    @property
    def unit(self) -> str:
        return "partition of a transaction" if self.is_spread else "transaction"


def _more_ids(broker: Broker, _: int, wanted: int) -> None:
    connections = min(CONNECTIONS, wanted)
    generate(broker, "ids", count=wanted, producers=connections, prefix="known", seconds=3600)


def _more_partitions(broker: Broker, _: int, wanted: int) -> None:
    """A topic for the point, with a record in every partition: the first write to a log takes longer than the others."""
    generate(
        broker,
        "acks1",
        topic=f"bench-{wanted}",
        partitions=wanted,
        size=RECORD_BYTES,
        seconds=3600,
        max_bytes=wanted * RECORD_BYTES,
    )


def _more_open(broker: Broker, before: int, wanted: int) -> None:
    # Each point opens those that are missing, under a prefix of its own: an id that begins anew ends what it had open.
    if wanted > before:
        generate(
            broker,
            "open",
            count=wanted - before,
            producers=min(CONNECTIONS, wanted - before),
            prefix=f"open-{wanted}",
            topic="open",
            size=RECORD_BYTES,
            seconds=3600,
        )


def _more_log(broker: Broker, before: int, wanted: int) -> None:
    if wanted > before:
        generate(
            broker,
            "acks1",
            producers=4,
            records=LOG_RECORDS,
            size=RECORD_BYTES,
            seconds=3600,
            max_bytes=(wanted - before) * 1_000_000,
        )


def _session(growth: Growth) -> Session:
    @contextmanager
    def session(side: Side, scale: Scale, folder: Path) -> Iterator[Round]:
        def run(number: int) -> Values:
            data = folder / str(number)
            with side.start(data) as broker:
                values = _curve(broker, growth, scale)
            shutil.rmtree(data)
            return values

        yield run

    return session


def _curve(broker: Broker, growth: Growth, scale: Scale) -> Values:
    values: dict[str, float] = {}
    before = 0
    warmup_seconds: float = scale.of(FIRST_WARMUP_SECONDS, QUICK_FIRST_WARMUP_SECONDS)
    for point in growth.quick_points if scale.quick else growth.points:
        growth.grow(broker, before, point)
        topic, partitions = growth.topic(point)
        runs = []
        for _ in range(scale.of(growth.repeats, 1)):
            figures = generate(
                broker,
                "tv2",
                producers=PRODUCERS,
                size=RECORD_BYTES,
                topic=topic,
                partitions=partitions,
                spread=point if growth.is_spread else 1,
                seconds=QUICK_SECONDS if scale.quick else SECONDS,
                warmup_seconds=warmup_seconds,
            )
            warmup_seconds = 0.5
            runs.append(figures)
        share = point if growth.is_spread else 1
        rate = statistics.median(one["transactions_per_second"] for one in runs)
        values[f"cost at {point}"] = 1e6 / rate / share
        values[f"cpu at {point}"] = statistics.median(one["broker_us"] for one in runs) / share
        values[f"p50 at {point}"] = statistics.median(one["transaction_p50_ms"] for one in runs)
        values[f"memory at {point}"] = broker.process.resident_bytes() / 1e6
        before = point
    first = growth.points[0]
    for name in ("cost", "cpu"):
        values[f"{name} growth"] = values[f"{name} at {before}"] / values[f"{name} at {first}"]
    return values


def _load(growth: Growth) -> Load:
    cost = [
        Measure(f"cost at {point}", f"at {point:,}: us per {growth.unit}", "less")
        for point in growth.points
    ]
    cpu = [
        Measure(f"cpu at {point}", f"at {point:,}: processor us of the broker for one", "less")
        for point in growth.points
    ]
    last = growth.points[-1]
    memory = Measure(f"memory at {last}", f"at {last:,}: MB resident", "less")
    points = tuple((float(point), f"cost at {point}") for point in growth.points)
    return Load(
        f"growth-{growth.name}",
        f"growth: {growth.title}",
        (
            Measure("cost growth", "x, last to first point", "less"),
            Measure("cpu growth", "x, last to first point, processor time", "less"),
            *cost,
            *cpu,
            memory,
        ),
        _session(growth),
        rounds=growth.rounds,
        quick_rounds=1,
        warmup_seconds=0,
        quick_warmup_seconds=0,
        quick_only_ours=True,
        in_quick=growth.in_quick,
        quick_note=f"up to {growth.quick_points[-1]:,}",
        plots=(
            Plot(
                f"growth-{growth.name}",
                f"Cost of a transaction: {growth.title}",
                growth.x_label,
                f"us per {growth.unit}",
                points,
            ),
        ),
    )


LOADS: Final = (
    _load(
        Growth(
            "ids",
            "transactional ids that are known",
            "transactional ids",
            (10, 100, 1_000, 10_000, 100_000),
            (10, 1_000, 10_000),
            _more_ids,
        )
    ),
    _load(
        Growth(
            "partitions",
            "partitions that are written to in turns",
            "partitions",
            (1, 10, 100, 1_000, 5_000),
            (1, 100, 1_000),
            _more_partitions,
            lambda point: (f"bench-{point}", point),
            rounds=1,
            repeats=3,
        )
    ),
    _load(
        Growth(
            "spread",
            "partitions in one transaction",
            "partitions in the transaction",
            (1, 10, 100, 1_000),
            (1, 10, 100),
            _more_partitions,
            lambda point: (f"bench-{point}", point),
            is_spread=True,
            in_quick=False,
            rounds=1,
            repeats=3,
        )
    ),
    _load(
        Growth(
            "open",
            "transactions of others that are open",
            "open transactions",
            (0, 10, 100, 1_000, 10_000),
            (0, 100, 1_000),
            _more_open,
        )
    ),
    _load(
        Growth(
            "log",
            "megabytes in the log",
            "MB in the topic",
            (0, 100, 500, 1_000, 2_000),
            (0, 100, 300),
            _more_log,
            in_quick=False,
        )
    ),
)
