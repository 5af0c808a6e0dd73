"""The cost of a transaction as ids, partitions, open transactions or the log grow.

Flat is the goal. Each round starts a broker on an empty folder and lets one thing grow from point
to point. At each point some producers commit transactions of one record (TV2) for a while. The
broker is killed at the end: its data are not needed, and closing thousands of logs takes longer
than measuring them.

Apache Kafka grows slowly (5,000 partitions take 15 s until all have a leader), so it is measured at
some points only, always at both ends; the table and the plot say so.
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
from bench.sides import KAFKA, Broker, Side

PRODUCERS: Final = 16
CONNECTIONS: Final = 32
SECONDS: Final = 0.8
QUICK_SECONDS: Final = 0.7
REPEATS: Final = 2
"""Measurements per point in a round; only one for Apache Kafka, to save time."""
WARMUP_SECONDS: Final = 0.3
FIRST_WARMUP_SECONDS: Final = 2
KAFKA_FIRST_WARMUP_SECONDS: Final = 8
KAFKA_QUICK_FIRST_WARMUP_SECONDS: Final = 3
"""The virtual machine compiles code that runs often; without warm-up the first point would look
expensive."""
MOST_AT_ONCE: Final = 100
"""Partitions per request for their first record."""
LOG_RECORDS: Final = 1000
"""Records per request to fill a log."""

Grow = Callable[[Broker, int, int], None]
"""Grows from one size to the next."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The thing that grows, and its sizes."""

    name: str
    title: str
    x_label: str
    points: tuple[int, ...]
    quick_points: tuple[int, ...]
    grow: Grow
    topic: Callable[[int], tuple[str, int]] = lambda _: ("bench", 4)
    """The topic and partitions of the transactions at a point."""
    is_spread: bool = False
    """Whether every transaction writes to all of them; the cost is then given per partition."""

    left_to_us: tuple[int, ...] = ()
    """Points without Apache Kafka, because they would take too long; never the ends."""
    in_quick: bool = True

    def __post_init__(self) -> None:
        assert set(self.left_to_us) <= set(self.points[1:-1]), f"{self.name}: both ask at the ends"

    @property
    def unit(self) -> str:
        return "partition of a transaction" if self.is_spread else "transaction"

    @property
    def axis(self) -> str:
        """The caption of the plot."""
        if not self.left_to_us:
            return self.x_label
        missing = ", ".join(f"{point:,}" for point in self.left_to_us)
        return f"{self.x_label} (at {missing}: fencepost only)"

    def place(self, point: int) -> str:
        """The label of a point in the table."""
        return f"at {point:,}, fencepost only" if point in self.left_to_us else f"at {point:,}"

    def points_of(self, side: Side, scale: Scale) -> tuple[int, ...]:
        if scale.quick:
            return self.quick_points
        left_out = self.left_to_us if side is KAFKA else ()
        return tuple(point for point in self.points if point not in left_out)


def _more_ids(broker: Broker, _: int, wanted: int) -> None:
    connections = min(CONNECTIONS, wanted)
    generate(broker, "ids", count=wanted, producers=connections, prefix="known", seconds=3600)


def _more_partitions(broker: Broker, _: int, wanted: int) -> None:
    """Creates a topic for the point with a record per partition: the first write costs more."""
    generate(
        broker,
        "acks1",
        topic=f"bench-{wanted}",
        partitions=wanted,
        spread=min(wanted, MOST_AT_ONCE),
        size=RECORD_BYTES,
        seconds=3600,
        max_bytes=wanted * RECORD_BYTES,
    )


def _more_open(broker: Broker, before: int, wanted: int) -> None:
    # Each point opens the missing ones under a new prefix: InitProducerId would abort the open
    # transaction of a known id.
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
                values = _curve(broker, growth, side, scale)
                broker.kill()
            shutil.rmtree(data)
            return values

        yield run

    return session


def _curve(broker: Broker, growth: Growth, side: Side, scale: Scale) -> Values:
    values: dict[str, float] = {}
    points = growth.points_of(side, scale)
    before = 0
    warmup_seconds: float = FIRST_WARMUP_SECONDS
    if side is KAFKA:
        warmup_seconds = scale.of(KAFKA_FIRST_WARMUP_SECONDS, KAFKA_QUICK_FIRST_WARMUP_SECONDS)
    for point in points:
        growth.grow(broker, before, point)
        topic, partitions = growth.topic(point)
        runs = []
        for _ in range(1 if side is KAFKA else scale.of(REPEATS, 1)):
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
            warmup_seconds = WARMUP_SECONDS
            runs.append(figures)
        share = point if growth.is_spread else 1
        rate = statistics.median(one["transactions_per_second"] for one in runs)
        values[f"cost at {point}"] = 1e6 / rate / share
        values[f"cpu at {point}"] = statistics.median(one["broker_us"] for one in runs) / share
        values[f"p50 at {point}"] = statistics.median(one["transaction_p50_ms"] for one in runs)
        values[f"memory at {point}"] = broker.process.resident_bytes() / 1e6
        before = point
    for name in ("cost", "cpu"):
        values[f"{name} growth"] = (
            values[f"{name} at {points[-1]}"] / values[f"{name} at {points[0]}"]
        )
    return values


def _load(growth: Growth) -> Load:
    cost = [
        Measure(f"cost at {point}", f"{growth.place(point)}: µs per {growth.unit}", "less")
        for point in growth.points
    ]
    cpu = [
        Measure(f"cpu at {point}", f"{growth.place(point)}: µs of broker CPU each", "less")
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
        rounds=2,
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
                growth.axis,
                f"µs per {growth.unit}",
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
            left_to_us=(10, 1_000),
        )
    ),
    _load(
        Growth(
            "spread",
            "partitions in one transaction",
            "partitions in the transaction",
            # Not to 1,000: there Apache Kafka hardly ended a transaction. It probably refuses such
            # a write until the previous transaction is complete, and producers that send their
            # megabyte again every 3 ms delay its completion.
            (1, 10, 100),
            (1, 10, 100),
            _more_partitions,
            lambda point: (f"bench-{point}", point),
            is_spread=True,
            left_to_us=(10,),
            in_quick=False,
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
            left_to_us=(100, 1_000),
            in_quick=False,
        )
    ),
)
