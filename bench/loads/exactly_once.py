"""The cost of exactly-once: the same records in the same requests, with stronger guarantees.

It uses our own generator, because a client library would dominate the measurement. Each line is
compared with acks=1 of the same round, with the same producers and records per request. Both sides
keep one copy of the data: these figures do not include the cost of acks=all with replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.client import RECORD_BYTES
from bench.generate import generate_once, shared_broker
from bench.load import Load, Measure, Round, Scale, Session, Values
from bench.sides import Broker, Side

SECONDS: Final = 1.5
QUICK_SECONDS: Final = 0.7
MAX_BYTES: Final = 600_000_000
QUICK_MAX_BYTES: Final = 300_000_000
MODES: Final = {
    "acks1": "acks=1",
    "idempotent": "idempotent",
    "tv1": "TV1",
    "tv2": "TV2",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Producers, records per request, and the goals."""

    producers: int
    records: int
    shares: dict[str, float] = field(default_factory=dict)
    """The share of the records/s of acks=1 that should remain."""
    ratios: dict[str, float] = field(default_factory=dict)
    """The goal for records/s as a multiple of Apache Kafka's."""
    rounds: int = 3


def _session(shape: Shape) -> Session:
    @contextmanager
    def session(side: Side, scale: Scale, _: Path) -> Iterator[Round]:
        with shared_broker(side, scale) as broker:
            yield lambda number: _round(broker, shape, scale, number)

    return session


def _round(broker: Broker, shape: Shape, scale: Scale, number: int) -> Values:
    """Each line once; the order alternates, because the first may have an advantage."""
    values: dict[str, float] = {}
    for mode in list(MODES) if number % 2 == 0 else reversed(MODES):
        figures = generate_once(
            broker,
            mode,
            producers=shape.producers,
            records=shape.records,
            size=RECORD_BYTES,
            seconds=SECONDS if not scale.quick else QUICK_SECONDS,
            warmup_seconds=0.3,
            max_bytes=scale.of(MAX_BYTES, QUICK_MAX_BYTES),
        )
        timed = "transaction" if mode in ("tv1", "tv2") else "request"
        values[f"{mode} records"] = figures["records_per_second"]
        values[f"{mode} bytes"] = figures["megabytes_per_second"]
        values[f"{mode} p50"] = figures[f"{timed}_p50_ms"]
        values[f"{mode} p99"] = figures[f"{timed}_p99_ms"]
        values[f"{mode} cpu"] = figures["broker_us"]
        values[f"{mode} generator"] = figures["generator_cpu"]
        values[f"{mode} broker"] = figures["broker_cpu"]
    for mode in MODES:
        values[f"{mode} share"] = values[f"{mode} records"] / values["acks1 records"]
    for who in ("generator", "broker"):
        values[who] = max(values[f"{mode} {who}"] for mode in MODES)
    return values


def _measures(shape: Shape) -> Iterator[Measure]:
    for mode, title in MODES.items():
        ratio, share = shape.ratios.get(mode), shape.shares.get(mode)
        yield Measure(f"{mode} records", f"{title}: records/s", "more", ratio=ratio)
        yield Measure(f"{mode} bytes", f"{title}: MB/s", "more")
        if mode != "acks1":
            yield Measure(f"{mode} share", f"{title}: share of acks=1", "more", limit=share)
        yield Measure(f"{mode} p50", f"{title}: ms p50", "less")
        yield Measure(f"{mode} p99", f"{title}: ms p99", "less")
        yield Measure(f"{mode} cpu", f"{title}: µs of broker CPU each", "less")
    yield Measure("broker", "processors of the broker, at most", "less")
    yield Measure("generator", "processors of the generator, at most", "less")


def _load(shape: Shape) -> Load:
    who = "1 producer" if shape.producers == 1 else f"{shape.producers} producers"
    return Load(
        f"cost-{shape.records}-x{shape.producers}",
        f"{shape.records:,} records per request and transaction, {who}",
        tuple(_measures(shape)),
        _session(shape),
        rounds=shape.rounds,
        quick_rounds=2,
        warmup_seconds=0,
        quick_warmup_seconds=0,
        compares_builds=True,
        in_quick=shape.producers > 1,
    )


LOADS: Final = (
    _load(Shape(1, 10)),
    _load(Shape(16, 10, {"idempotent": 0.95, "tv2": 0.28}, rounds=4)),
    _load(Shape(1, 1000)),
    _load(Shape(16, 1000, {"idempotent": 0.95, "tv2": 0.90}, {"acks1": 1.5}, rounds=6)),
)
